//! Memory whose pages come only when somebody lets them.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_ZEROPAGE: libc::c_ulong = 0xc020_aa04;

/// A mapping whose faults nobody serves until [`Slow::serve`]: whoever touches it waits, from whichever process.
#[derive(Debug)]
pub struct Slow {
    fd: OwnedFd,
    addr: u64,
    len: usize,
}

impl Slow {
    /// So many bytes. `None`: userfaultfd is not allowed here; root may.
    pub fn new(len: usize) -> Option<Slow> {
        // SAFETY: no pointer is passed.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
        if fd < 0 {
            return None;
        }
        // SAFETY: a fresh descriptor.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice; it stays until the process ends.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return None;
        }
        let mut api = [0xAAu64, 0, 0];
        // SAFETY: the structures of these requests, which live through the calls.
        let ok = unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API, api.as_mut_ptr()) } == 0;
        // Range, mode "missing", and what is possible then.
        let mut register = [at as u64, len as u64, 1, 0];
        // SAFETY: as above.
        let done = unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_REGISTER, register.as_mut_ptr()) };
        (ok && done == 0).then_some(Slow { fd, addr: at as u64, len })
    }

    /// Its first byte.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Its length.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Zeros for everybody who waits, and from now on.
    pub fn serve(&self) {
        let mut zero = [self.addr, self.len as u64, 0, 0];
        // SAFETY: the structure of this request, which lives through the call.
        let rc = unsafe { libc::ioctl(self.fd.as_raw_fd(), UFFDIO_ZEROPAGE, zero.as_mut_ptr()) };
        assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    }

    /// Whether a page of it is asked for within this time, by anybody.
    pub fn is_touched_within(&self, limit: Duration) -> bool {
        let mut entry = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry.
        unsafe { libc::poll(&mut entry, 1, limit.as_millis() as i32) == 1 }
    }
}
