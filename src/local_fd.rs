//! Descriptors that stay in the process that made them: a child after `fork` closes its copies.
//!
//! A child that holds a copy of a socket keeps the connection open when its parent is killed: the parent
//! looks alive, its port stays taken, and who dials it meets silence. So every descriptor whose end means
//! something is kept in a [`Local`]. It is marked in a table that a fork handler reads in the child: a
//! bitmap of atomics, since between `fork` and `exec` nothing may be called but what is safe in a signal
//! handler, and `close` is. `posix_spawn`, `vfork` and `exec` need nothing of this: all descriptors
//! of the library are close-on-exec.
//!
//! A number that the application was [given](Local::give) stays taken in a child, by an epoll set of nothing: an event loop that
//! watches it adds it anew there, which must not fail, nor meet a file that the child has opened since.
//!
//! What is not covered: a fork of another thread in the few instructions between a system call that makes
//! a descriptor and its mark, and children by a bare `clone`, for which no handler runs.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

const WORDS: usize = 1 << 14;
/// One bit a descriptor: as many as Linux lets a process have by default at most (`fs.nr_open`). It takes
/// no memory before it is written to.
static MARKS: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// Of these, those whose numbers the application has.
static GIVEN: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// Words that were ever written to.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Forks on the way from the first process that marked a descriptor to this one.
static FORKS: AtomicU32 = AtomicU32::new(0);
static WATCH: Once = Once::new();

/// Runs in the child, whose only thread is the one that forked: makes no calls but those to the system.
extern "C" fn in_forked_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    let used = USED.load(Ordering::Relaxed);
    let mut given = 0;
    for i in 0..used {
        let kept = GIVEN[i].load(Ordering::Relaxed);
        given |= kept;
        each(i, MARKS[i].swap(0, Ordering::Relaxed) & !kept, |fd| {
            // SAFETY: a copy of a descriptor whose owner, a `Local`, does not use it in this process.
            unsafe { libc::close(fd) };
        });
    }
    if given == 0 {
        return;
    }
    // After the others are closed: there are numbers for it, even at a limit.
    let inert = crate::os::epoll::empty().map_or(-1, IntoRawFd::into_raw_fd);
    for (i, word) in GIVEN.iter().enumerate().take(used) {
        each(i, word.swap(0, Ordering::Relaxed), |fd| {
            // SAFETY: as above. In one step, so that the number is free at no time.
            let put = unsafe { inert >= 0 && libc::dup3(inert, fd, libc::O_CLOEXEC) >= 0 };
            if !put {
                // SAFETY: as above.
                unsafe { libc::close(fd) };
            }
        });
    }
    if inert >= 0 {
        // SAFETY: it is this function's.
        unsafe { libc::close(inert) };
    }
}

/// The descriptors of a word of a bitmap.
fn each(word: usize, mut bits: u64, mut f: impl FnMut(RawFd)) {
    while bits != 0 {
        f((word * 64) as RawFd + bits.trailing_zeros() as RawFd);
        bits &= bits - 1;
    }
}

fn word(fd: RawFd) -> Option<(usize, u64)> {
    let fd = usize::try_from(fd).ok()?;
    (fd / 64 < WORDS).then_some((fd / 64, 1 << (fd % 64)))
}

fn mark(fd: RawFd) {
    // SAFETY: the handler is safe in a child. Should it not be accepted, children keep their copies,
    // as with any library.
    WATCH.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_forked_child));
    });
    if let Some((at, bit)) = word(fd) {
        USED.fetch_max(at + 1, Ordering::Relaxed);
        MARKS[at].fetch_or(bit, Ordering::Relaxed);
    }
}

fn unmark(fd: RawFd) {
    if let Some((at, bit)) = word(fd) {
        GIVEN[at].fetch_and(!bit, Ordering::Relaxed);
        MARKS[at].fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Owns a descriptor, or something made of one, that a forked child does not inherit. In a child it
/// is dead: using it fails, dropping it does nothing.
#[derive(Debug)]
pub struct Local<T: AsRawFd> {
    inner: ManuallyDrop<T>,
    forks: u32,
}

impl<T: AsRawFd> Local<T> {
    /// Takes a descriptor that was just made.
    pub fn new(inner: T) -> Local<T> {
        mark(inner.as_raw_fd());
        Local { inner: ManuallyDrop::new(inner), forks: FORKS.load(Ordering::Relaxed) }
    }

    /// The number, for the application: in a child it stays taken, by a descriptor that is never ready.
    pub fn give(&self) -> RawFd {
        let fd = self.inner.as_raw_fd();
        if let Some((at, bit)) = word(fd).filter(|_| self.is_ours()) {
            GIVEN[at].fetch_or(bit, Ordering::Relaxed);
        }
        fd
    }

    /// Whether this is the process that made it.
    pub fn is_ours(&self) -> bool {
        self.forks == FORKS.load(Ordering::Relaxed)
    }

    /// The same descriptor as another type: children close their copies all the while.
    pub fn convert<U: AsRawFd + From<T>>(self) -> Local<U> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, so the value is taken once.
        let inner = unsafe { ManuallyDrop::take(&mut this.inner) };
        Local { inner: ManuallyDrop::new(inner.into()), forks: this.forks }
    }

    /// Gives it on; children inherit it until it is in a `Local` again.
    pub fn into_inner(self) -> T {
        let mut this = ManuallyDrop::new(self);
        if this.is_ours() {
            unmark(this.inner.as_raw_fd());
        }
        // SAFETY: `this` is not dropped, so the value is taken once.
        unsafe { ManuallyDrop::take(&mut this.inner) }
    }
}

impl<T: AsRawFd> Deref for Local<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: AsRawFd> DerefMut for Local<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: AsRawFd> AsRawFd for Local<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.inner.as_raw_fd()
    }
}

impl<T: AsRawFd> Drop for Local<T> {
    fn drop(&mut self) {
        // In a child the number may belong to somebody else by now.
        if self.is_ours() {
            unmark(self.inner.as_raw_fd());
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.inner) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn is_marked(fd: RawFd) -> bool {
        word(fd).is_some_and(|(at, bit)| MARKS[at].load(Ordering::Relaxed) & bit != 0)
    }

    #[test]
    fn r11_marks_follow_the_owner() {
        let file = Local::new(File::open("/dev/null").unwrap());
        let fd = file.as_raw_fd();
        assert!(is_marked(fd));
        let file = file.into_inner();
        assert!(!is_marked(fd));
        let file = Local::new(file);
        assert!(is_marked(fd));
        let file: Local<std::os::fd::OwnedFd> = file.convert();
        assert!(is_marked(fd) && file.as_raw_fd() == fd);
        let is_given =
            || word(fd).is_some_and(|(i, bit)| GIVEN[i].load(Ordering::Relaxed) & bit != 0);
        assert!(!is_given() && file.give() == fd && is_given());
        drop(file);
        assert!(!is_given());
        assert_eq!(word(-1), None);
        assert_eq!(word(i32::MAX), None);
    }

    #[test]
    fn each_bit_is_a_descriptor() {
        let mut all = Vec::new();
        each(2, 1 | 1 << 5 | 1 << 63, |fd| all.push(fd));
        assert_eq!(all, [128, 133, 191]);
    }
}
