//! The system calls of the shm provider behind small safe types.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use crate::os::{self, check, owned, without_write_signals};
use crate::status::{Code, Reason, Status};

/// Size of a page.
pub(crate) fn page_size() -> usize {
    // SAFETY: sysconf reads a constant.
    let n = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(n).unwrap_or(4096)
}

/// Bytes of memory of this host.
pub(crate) fn physical_memory() -> u64 {
    // SAFETY: no pointers.
    let (pages, size) =
        unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    match (u64::try_from(pages), u64::try_from(size)) {
        (Ok(pages), Ok(size)) => pages.saturating_mul(size),
        _ => 1 << 34,
    }
}

/// Random bytes of the system's generator.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Status> {
    let mut out = [0; N];
    getrandom::fill(&mut out).map_err(Status::random)?;
    Ok(out)
}

/// A system call that this process may not make: its name and the system's error, whose kind is that of the whole.
#[derive(Debug)]
struct Refused(String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// Names the call of an error that no later try is without; others stay as they are.
pub(crate) fn called(call: &'static str) -> impl Fn(io::Error) -> io::Error {
    move |e| match os::is_refused(&e) {
        true => io::Error::new(e.kind(), Refused(crate::room::said(format_args!("{call}: {e}")))),
        false => e,
    }
}

/// Whether an error is one that [`called`] has named.
pub(crate) fn is_refused(e: &io::Error) -> bool {
    e.get_ref().is_some_and(|inner| inner.is::<Refused>())
}

/// Whether an error is of a system call of this side.
pub(crate) fn is_ours(e: &io::Error) -> bool {
    e.raw_os_error().is_some() || is_refused(e)
}

/// A memfd of this size that nobody can shrink or grow any more.
pub(crate) fn memfd(name: &CStr, len: usize) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: `name` is NUL-terminated.
    let made = owned(unsafe { libc::memfd_create(name.as_ptr(), flags) });
    let fd = made.map_err(called("memfd_create"))?;
    let len = libc::off_t::try_from(len).map_err(io::Error::other)?;
    // A limit on file sizes counts here too, and is an error, not the end of the process.
    // SAFETY: plain system call on an owned descriptor.
    check(without_write_signals(|| unsafe { libc::ftruncate(fd.as_raw_fd(), len) }))
        .map_err(called("ftruncate"))?;
    seal(&fd, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)?;
    Ok(fd)
}

/// Adds seals to a memfd.
pub(crate) fn seal(fd: &OwnedFd, seals: libc::c_int) -> io::Result<()> {
    // SAFETY: plain system call on an owned descriptor.
    let sealed = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) });
    sealed.map(drop).map_err(called("fcntl"))
}

/// From now on nobody can change `fd` but by the mappings that there are: also one who opens it anew
/// through `/proc`. Needs Linux 5.1.
pub(crate) fn seal_future_write(fd: &OwnedFd) -> io::Result<()> {
    let all = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_FUTURE_WRITE;
    // One that is sealed already takes no more seals, and needs none.
    if seals(fd)? & all == all { Ok(()) } else { seal(fd, all | libc::F_SEAL_SEAL) }
}

/// The seals of a memfd; an error for every other file.
fn seals(fd: &OwnedFd) -> io::Result<libc::c_int> {
    // SAFETY: plain system call on an owned descriptor.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) }).map_err(called("fcntl"))
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
        status.code = Code::Unavailable;
    }
    status.because(Reason::LocalError)
}

/// What a meeting says of what a peer has passed and is not mapped. A check that failed speaks for itself.
pub(crate) fn mapping(what: &'static str) -> impl Fn(io::Error) -> io::Error {
    move |e| match is_ours(&e) {
        false => e,
        true => {
            let text = crate::room::said(format_args!("this side could not map {what}: {e}"));
            match is_refused(&e) {
                true => io::Error::new(e.kind(), Refused(text)),
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

/// Mapped memory, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is an address range of the process; it belongs to no thread.
unsafe impl Send for Mapping {}
// SAFETY: it hands out nothing but its address and length.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves address space without memory.
    fn reserve(len: usize) -> io::Result<Mapping> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let ptr = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
        Mapping::from_mmap(ptr, len)
    }

    fn from_mmap(ptr: *mut libc::c_void, len: usize) -> io::Result<Mapping> {
        if ptr == libc::MAP_FAILED {
            return Err(called("mmap")(io::Error::last_os_error()));
        }
        let ptr = NonNull::new(ptr.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Mapping { ptr, len })
    }

    /// Maps the first `len` bytes of `fd`, shared.
    pub(crate) fn shared(fd: BorrowedFd<'_>, len: usize, writable: bool) -> io::Result<Mapping> {
        let prot = protection(writable);
        let fd = fd.as_raw_fd();
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let ptr = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, fd, 0) };
        let map = Mapping::from_mmap(ptr, len)?;
        map.keep_from_children(0, len)?;
        Ok(map)
    }

    /// A forked child does not inherit a part: what it wrote there would be seen here, and it would hold
    /// on to a peer's memory.
    fn keep_from_children(&self, offset: usize, len: usize) -> io::Result<()> {
        debug_assert!(offset + len <= self.len);
        // SAFETY: advice about a part of this mapping; it changes no content.
        let rc = unsafe {
            libc::madvise(self.ptr.as_ptr().add(offset).cast(), len, libc::MADV_DONTFORK)
        };
        check(rc).map(drop).map_err(called("madvise"))
    }

    /// Maps `head + ring` bytes of `fd` and behind them the ring part once more, so that whatever
    /// starts inside the ring is contiguous.
    pub(crate) fn mirrored(
        fd: BorrowedFd<'_>,
        head: usize,
        ring: usize,
        writable: bool,
    ) -> io::Result<Mapping> {
        let map = Mapping::reserve(head + 2 * ring)?;
        map.place(0, head + ring, Some(fd), 0, writable)?;
        map.place(head + ring, ring, Some(fd), head, writable)?;
        map.keep_from_children(0, map.len)?;
        Ok(map)
    }

    /// Maps the first `len` bytes of `fd`, shared, or without one memory of this process alone, writable, at a multiple of
    /// `align`.
    pub(crate) fn aligned(
        fd: Option<BorrowedFd<'_>>,
        len: usize,
        align: usize,
    ) -> io::Result<Mapping> {
        let size = len.checked_add(align).ok_or(io::ErrorKind::OutOfMemory)?;
        let whole = Mapping::reserve(size)?;
        let skip = whole.ptr.as_ptr().align_offset(align);
        whole.place(skip, len, fd, 0, true)?;
        whole.keep_from_children(skip, len)?;
        let whole = std::mem::ManuallyDrop::new(whole);
        let start = whole.ptr.as_ptr();
        // SAFETY: the rims of the reservation, which nobody uses; the middle becomes the result.
        unsafe {
            if skip > 0 {
                libc::munmap(start.cast(), skip);
            }
            if size - skip > len {
                libc::munmap(start.add(skip + len).cast(), size - skip - len);
            }
            Mapping::from_mmap(start.add(skip).cast(), len)
        }
    }

    /// Maps `len` bytes of `fd` from `offset`, or without one memory of this process alone, over the reserved range at `at`.
    fn place(
        &self,
        at: usize,
        len: usize,
        fd: Option<BorrowedFd<'_>>,
        offset: usize,
        writable: bool,
    ) -> io::Result<()> {
        debug_assert!(at + len <= self.len);
        let (kind, fd) = match &fd {
            Some(fd) => (libc::MAP_SHARED, fd.as_raw_fd()),
            // As with a file, memory counts from its first use on.
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1),
        };
        let flags = kind | libc::MAP_FIXED;
        let prot = protection(writable);
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: the range lies inside this mapping, in a part that nobody uses.
        let ptr = unsafe {
            let addr = self.ptr.as_ptr().add(at).cast();
            libc::mmap(addr, len, prot, flags, fd, offset)
        };
        if ptr == libc::MAP_FAILED {
            return Err(called("mmap")(io::Error::last_os_error()));
        }
        Ok(())
    }

    /// Puts `fd`, which has the same length, in the place of the file that was mapped, writable.
    pub(crate) fn replace(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.place(0, self.len, Some(fd), 0, true)?;
        // The new file is in place, whether or not this can be done; it was possible before.
        let _ = self.keep_from_children(0, self.len);
        Ok(())
    }

    /// Asks for huge pages; a kernel without them says no, which costs nothing.
    pub(crate) fn advise_huge(&self) {
        // SAFETY: advice about a range that this value owns; it changes no content.
        unsafe { libc::madvise(self.ptr.as_ptr().cast(), self.len, libc::MADV_HUGEPAGE) };
    }

    /// Gives the memory of a part of a shared file back to the system; it reads as zero then.
    pub(crate) fn advise_remove(&self, offset: usize, len: usize) -> io::Result<()> {
        self.forget(offset, len, libc::MADV_REMOVE)
    }

    /// The same for memory of this process alone.
    pub(crate) fn advise_unneeded(&self, offset: usize, len: usize) -> io::Result<()> {
        self.forget(offset, len, libc::MADV_DONTNEED)
    }

    fn forget(&self, offset: usize, len: usize, how: libc::c_int) -> io::Result<()> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: the range lies inside this mapping; the caller has no live data in it.
        check(unsafe {
            let addr = self.ptr.as_ptr().add(offset).cast();
            libc::madvise(addr, len, how)
        })
        .map(drop)
    }

    /// First byte.
    pub(crate) fn ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by this value, and nothing refers to it after its drop.
        unsafe { libc::munmap(self.ptr.as_ptr().cast(), self.len) };
    }
}

fn protection(writable: bool) -> libc::c_int {
    if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ }
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

/// A borrowed view of an owned descriptor.
pub(crate) fn borrow(fd: &OwnedFd) -> BorrowedFd<'_> {
    fd.as_fd()
}

/// Ends a connected socket in both directions; its descriptor stays.
pub(crate) fn shut(sock: &OwnedFd) {
    // SAFETY: plain system call on an owned descriptor.
    unsafe { libc::shutdown(sock.as_raw_fd(), libc::SHUT_RDWR) };
}
