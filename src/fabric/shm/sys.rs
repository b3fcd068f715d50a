//! The system calls of the shm provider behind small safe types.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::os::memory::seals;
pub(crate) use crate::os::memory::{Mapping, borrow, memfd, page_size, seal_future_write};
pub(crate) use crate::os::refused::{called, is_refused};
use crate::os::{check, owned, refused};
use crate::status::{Code, Reason, Status};

/// Random bytes of the system's generator.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Status> {
    let mut out = [0; N];
    getrandom::fill(&mut out).map_err(Status::random)?;
    Ok(out)
}

/// Whether an error is of a system call of this side.
pub(crate) fn is_ours(e: &io::Error) -> bool {
    e.raw_os_error().is_some() || is_refused(e)
}

/// The length of a peer's memfd, if it can never shrink under our mapping, and its pages are ordinary
/// ones: of huge pages that the system has run out of an access would end the process.
///
/// An error with an errno is one of our own system calls, whatever the peer has passed: what it may have done wrong is looked for
/// before each call that would fail for it.
pub(crate) fn sealed_len(fd: &OwnedFd) -> io::Result<u64> {
    looked_at(fd)?.map_err(io::Error::other)
}

/// The same, or what is wrong with what the peer has passed; takes no memory.
pub(crate) fn looked_at(fd: &OwnedFd) -> io::Result<Result<u64, &'static str>> {
    /// The file system of ordinary memfds.
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    // SAFETY: plain system call on an owned descriptor, which every kind has.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) });
    let flags = flags.map_err(called("fcntl"))?;
    if flags & libc::O_PATH != 0 || flags & libc::O_ACCMODE == libc::O_WRONLY {
        return Ok(Err("the peer's memory cannot be read by its descriptor"));
    }
    let regular = status_of(fd)?.st_mode & libc::S_IFMT == libc::S_IFREG;
    // SAFETY: an all-zero statfs is a valid value of this plain C struct, and a place for the result.
    let fs = unsafe {
        let mut fs: libc::statfs = std::mem::zeroed();
        check(libc::fstatfs(fd.as_raw_fd(), &mut fs)).map_err(called("fstatfs"))?;
        fs
    };
    if !regular || fs.f_type as u64 != TMPFS_MAGIC {
        return Ok(Err("the peer's memory has pages of an unusual kind"));
    }
    // Every regular file of this file system has seals.
    if seals(fd)? & libc::F_SEAL_SHRINK == 0 {
        return Ok(Err("the peer's memory is not sealed against shrinking"));
    }
    // Only from now on can the peer not make it shorter.
    let len = status_of(fd)?.st_size;
    Ok(u64::try_from(len).map_err(|_| "the peer's memory has no length"))
}

fn status_of(fd: &OwnedFd) -> io::Result<libc::stat> {
    // SAFETY: an all-zero stat is a valid value of this plain C struct.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `st` is a valid place for the result.
    check(unsafe { libc::fstat(fd.as_raw_fd(), &mut st) }).map_err(called("fstat"))?;
    Ok(st)
}

/// A connection ends since a system call of this side failed: what that was for, and a code that says which bound was reached, or
/// else, as every operation may hear it, that the connection has ended.
pub(crate) fn ended_here(what: impl std::fmt::Display, e: &io::Error) -> Status {
    let mut status = Status::os(what, e);
    if status.code != Code::ResourceExhausted {
        status = status.with_code(Code::Unavailable);
    }
    status.because(Reason::LocalError)
}

/// What a meeting says of what a peer has passed and is not mapped. A check that failed speaks for itself.
pub(crate) fn mapping(what: &'static str) -> impl Fn(io::Error) -> io::Error {
    move |e| match is_ours(&e) {
        false => e,
        true => {
            let text = text!("this side could not map {what}: {e}");
            match is_refused(&e) {
                true => refused::error(e.kind(), text),
                false => io::Error::new(e.kind(), text),
            }
        }
    }
}

/// Runs a thread that handles no signal and needs little.
pub(crate) fn spawn_quiet(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    crate::os::spawn_small(name, 64 << 10, run).map(drop)
}

/// Whether a process of this number is there, as far as this one can see.
pub(crate) fn process_exists(pid: i32) -> bool {
    // SAFETY: no signal is sent.
    unsafe {
        libc::kill(pid, 0) == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
    }
}

/// Whether a descriptor that came from a peer is an eventfd that does not block. A write to anything
/// else could end or stop this process. An error where this side cannot tell.
pub(crate) fn is_eventfd(fd: &OwnedFd) -> io::Result<bool> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    let link = link.map_err(called("readlink"))?;
    // SAFETY: plain system call on an owned descriptor.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) });
    let flags = flags.map_err(called("fcntl"))?;
    Ok(flags & libc::O_NONBLOCK != 0 && link.as_os_str() == "anon_inode:[eventfd]")
}

/// Adds one to an eventfd; one that is full is readable already, and is left alone: it may be a peer's
/// that has made it block since it was looked at.
pub(crate) fn eventfd_write(fd: &OwnedFd) {
    let one = 1u64;
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: one valid entry; eight readable bytes.
    unsafe {
        if libc::poll(&mut poll, 1, 0) == 1 && poll.revents == libc::POLLOUT {
            libc::write(fd.as_raw_fd(), (&raw const one).cast(), 8);
        }
    }
}

/// Whether the other end of a connected socket, or the process behind it, is gone.
pub(crate) fn hung_up(sock: &OwnedFd, pidfd: Option<&OwnedFd>) -> bool {
    let pid = pidfd.map_or(-1, AsRawFd::as_raw_fd);
    let mut polls = [
        libc::pollfd { fd: sock.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 },
        libc::pollfd { fd: pid, events: libc::POLLIN, revents: 0 },
    ];
    // SAFETY: two valid entries; a negative descriptor is skipped.
    unsafe { libc::poll(polls.as_mut_ptr(), 2, 0) };
    polls.iter().any(|p| p.revents != 0)
}

/// A descriptor that becomes readable when the process ends.
pub(crate) fn pidfd(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: plain system call; the result fits a descriptor.
    let rc = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    owned(libc::c_int::try_from(rc).unwrap_or(-1))
}

/// Identity of the running kernel: equal for two processes on one host.
pub(crate) fn boot_id() -> [u8; 16] {
    // Without memory of the heap: its lack must not make this another host.
    let mut text = [0u8; 64];
    let read = std::fs::File::open("/proc/sys/kernel/random/boot_id");
    let read = read.and_then(|mut file| std::io::Read::read(&mut file, &mut text)).unwrap_or(0);
    let mut out = [0; 16];
    let mut digits = text[..read].iter().filter_map(|&b| char::from(b).to_digit(16));
    for byte in &mut out {
        let (Some(hi), Some(lo)) = (digits.next(), digits.next()) else { break };
        *byte = (hi * 16 + lo) as u8;
    }
    out
}

/// Ends a connected socket in both directions; its descriptor stays.
pub(crate) fn shut(sock: &OwnedFd) {
    // SAFETY: plain system call on an owned descriptor.
    unsafe { libc::shutdown(sock.as_raw_fd(), libc::SHUT_RDWR) };
}
