//! Memory of the system: how much there is, files of it that can be sealed, and mappings.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use super::refused::called;
use super::{check, owned, without_write_signals};

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
fn seal(fd: &OwnedFd, seals: libc::c_int) -> io::Result<()> {
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
pub(crate) fn seals(fd: &OwnedFd) -> io::Result<libc::c_int> {
    // SAFETY: plain system call on an owned descriptor.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) }).map_err(called("fcntl"))
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

/// A borrowed view of an owned descriptor.
pub(crate) fn borrow(fd: &OwnedFd) -> BorrowedFd<'_> {
    fd.as_fd()
}
