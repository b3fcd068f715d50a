//! Reading another process's memory, and knowing that it still is that process.

use std::io;
use std::ptr::NonNull;

/// Bytes of the word that proves it.
const WORD: usize = size_of::<u64>();

/// Why nothing was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// The process is gone, or runs another program now.
    Gone,
    /// The kernel does not allow it.
    Refused,
}

impl From<Unread> for io::Error {
    fn from(why: Unread) -> io::Error {
        io::Error::from_raw_os_error(match why {
            Unread::Gone => libc::ESRCH,
            Unread::Refused => libc::EPERM,
        })
    }
}

/// A process whose memory can be read. The word that it has told us is read again by every call,
/// together with the content: a call looks at one address space, so content that came with the right
/// word is that process's. One that called exec has another address space under the same number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    pid: i32,
    word_at: u64,
    word: u64,
}

impl Process {
    /// The process, if its memory can be read and holds the word.
    pub(crate) fn open(pid: i32, word_at: u64, word: u64) -> Option<Process> {
        let process = (pid > 0).then_some(Process { pid, word_at, word })?;
        // SAFETY: nothing is read beside the word.
        let read = unsafe { process.read(0, NonNull::dangling().as_ptr(), 0) };
        (read == Ok(0)).then_some(process)
    }

    /// Reads to `dst`. Returns the bytes read, which may be fewer; none if the memory at one end
    /// cannot be accessed.
    ///
    /// # Safety
    /// `dst` is valid for writing `len` bytes.
    pub(crate) unsafe fn read(&self, src: u64, dst: *mut u8, len: usize) -> Result<usize, Unread> {
        #[cfg(test)]
        if len > 0 && !tests::is_allowed() {
            return Err(Unread::Refused);
        }
        let part = |at: *mut libc::c_void, len| libc::iovec { iov_base: at, iov_len: len };
        let mut word = 0u64;
        // The word comes first: what follows may end in the middle.
        let local = [part((&raw mut word).cast(), WORD), part(dst.cast(), len)];
        let remote = [part(self.word_at as *mut _, WORD), part(src as *mut _, len)];
        // SAFETY: the word is writable, and `dst` by the caller; the kernel checks the other
        // process's ranges.
        let n =
            unsafe { libc::process_vm_readv(self.pid, local.as_ptr(), 2, remote.as_ptr(), 2, 0) };
        match usize::try_from(n) {
            Ok(n) if n >= WORD && word == self.word => Ok(n - WORD),
            Ok(_) => Err(Unread::Gone),
            Err(_) => Err(match io::Error::last_os_error().raw_os_error() {
                // Not even the word could be read.
                Some(libc::ESRCH | libc::EFAULT) => Unread::Gone,
                _ => Unread::Refused,
            }),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// So many more reads of content are allowed on this thread, as if the process forbade it then.
        pub(crate) static ALLOWED: Cell<u32> = const { Cell::new(u32::MAX) };
    }

    pub(super) fn is_allowed() -> bool {
        let left = ALLOWED.get();
        ALLOWED.set(if left == u32::MAX { left } else { left.saturating_sub(1) });
        left > 0
    }

    #[test]
    fn r16_content_without_the_word_is_not_read() {
        // SAFETY: reads a number.
        let pid = unsafe { libc::getpid() };
        let (mut word, text, mut out) = (Box::new(77u64), [5u8; 100], [0u8; 100]);
        let at = (&raw mut *word).addr() as u64;
        assert!(Process::open(pid, at, 78).is_none() && Process::open(0, at, 77).is_none());
        let process = Process::open(pid, at, 77).unwrap();
        let mut read = |process: &Process, len| {
            // SAFETY: `out` has so much room.
            unsafe { process.read(text.as_ptr().addr() as u64, out.as_mut_ptr(), len) }
        };
        assert_eq!((read(&process, 100), read(&process, 0)), (Ok(100), Ok(0)));
        // SAFETY: the box is alive; another program would have another word there.
        unsafe { (&raw mut *word).write_volatile(79) };
        assert_eq!(read(&process, 100), Err(Unread::Gone));
        // Or nothing at all.
        let nowhere = Process { word_at: 8, ..process };
        assert_eq!(read(&nowhere, 100), Err(Unread::Gone));
    }
}
