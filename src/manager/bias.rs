//! A lock that costs its usual holder no locked instruction.
//!
//! One thread often has a manager to itself: it drives and calls. A mutex that nobody else asks for still costs two
//! locked instructions, each as long as twenty others. So a thread that has taken the lock many times in a row *owns* it: it
//! marks that it is inside, looks whether it still owns the lock, and leaves by another store. Any other thread takes the
//! mutex, ends the ownership, and waits until the owner is outside. Both store, then load, and one of them has to see
//! the other: the one that takes ownership away makes the processors keep that order (`membarrier`), the owner keeps
//! it by having no instruction more. Each time costs the other some microseconds, and the next ownership takes longer to
//! come; there are [`GRANTS`] of them. Each has its own mark, since one who looked before it was taken away may set it at
//! any time after.
//!
//! Without that system call, and where there is a progress thread, the lock is a mutex.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, compiler_fence};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::os;
use crate::thread::{Own, Thread};

/// So many times in a row a thread takes the lock before it owns it for the first time.
const FIRST: u32 = 64;
/// So many times more often after each time that it was taken away.
const MORE: u32 = 16;
/// So often a lock gets an owner. Their number goes into the low bits of a thread's.
const GRANTS: usize = 8;
const _: () = assert!(GRANTS.is_power_of_two() && align_of::<Own>() >= GRANTS);
/// Longer than any processor keeps a store to itself.
const LATE: Duration = Duration::from_millis(100);

/// A value behind a lock that one thread may own, and then takes without a locked instruction.
pub struct Biased<T> {
    mutex: Mutex<T>,
    /// The thread that owns the lock, and which grant this is; 0: none. Changed with the mutex held.
    owner: AtomicUsize,
    /// The owner by this grant holds the lock, without the mutex.
    inside: [AtomicBool; GRANTS],
    /// There may be an owner.
    may: bool,
    habit: Habit,
}

/// Who takes the mutex; looked at with the mutex held.
struct Habit {
    last: Cell<usize>,
    times: Cell<u32>,
    wanted: Cell<u32>,
    grants: Cell<usize>,
}

// SAFETY: what is guarded is reached by one thread at a time, which holds the mutex with no owner inside, or owns the lock
// and is inside; `habit` is reached with the mutex held only.
unsafe impl<T: Send> Sync for Biased<T> {}

/// The lock, held.
pub struct Guard<'a, T> {
    lock: &'a Biased<T>,
    by: By<'a, T>,
}

enum By<'a, T> {
    /// The mutex is released when this is dropped.
    Mutex(MutexGuard<'a, T>),
    /// Its owner, whose mark this is.
    Owner(&'a AtomicBool),
}

impl<T> Biased<T> {
    /// `may`: there may be an owner.
    pub fn new(value: T, may: bool) -> Biased<T> {
        Biased {
            mutex: Mutex::new(value),
            owner: AtomicUsize::new(0),
            inside: [const { AtomicBool::new(false) }; GRANTS],
            may: may && os::orders_others(),
            habit: Habit {
                last: Cell::new(0),
                times: Cell::new(0),
                wanted: Cell::new(FIRST),
                grants: Cell::new(0),
            },
        }
    }

    /// Takes the lock on this thread.
    #[inline]
    pub fn lock(&self, thread: Thread) -> Guard<'_, T> {
        let me = thread.number();
        let owner = self.owner.load(Ordering::Relaxed);
        if owner & !(GRANTS - 1) == me {
            let inside = &self.inside[owner % GRANTS];
            debug_assert!(!inside.load(Ordering::Relaxed), "taken twice");
            inside.store(true, Ordering::Relaxed);
            // The processor may look first; who takes ownership away sees to that.
            compiler_fence(Ordering::SeqCst);
            if self.owner.load(Ordering::Relaxed) == owner {
                return Guard { lock: self, by: By::Owner(inside) };
            }
            inside.store(false, Ordering::Release);
        }
        let mutex = self.mutex.lock();
        if self.may {
            self.settle(me);
        }
        Guard { lock: self, by: By::Mutex(mutex) }
    }

    /// Whether this thread owns the lock: for many calls nobody else has asked for it.
    #[inline]
    pub fn is_owned_by(&self, thread: Thread) -> bool {
        self.owner.load(Ordering::Relaxed) & !(GRANTS - 1) == thread.number()
    }

    /// The mutex is held by this thread: there is no other owner any more, or this is one from the next time on.
    #[inline(never)]
    fn settle(&self, me: usize) {
        let habit = &self.habit;
        let (owner, grants) = (self.owner.load(Ordering::Relaxed), habit.grants.get());
        if owner != 0 {
            self.take_away(owner);
            habit.wanted.set(habit.wanted.get().saturating_mul(MORE));
            habit.times.set(0);
        } else if habit.last.replace(me) != me {
            habit.times.set(0);
        } else if habit.times.get() < habit.wanted.get() {
            habit.times.set(habit.times.get() + 1);
        } else if grants < GRANTS {
            habit.grants.set(grants + 1);
            self.owner.store(me | grants, Ordering::Relaxed);
        }
    }

    #[cold]
    fn take_away(&self, owner: usize) {
        self.owner.store(0, Ordering::SeqCst);
        if !os::order_others() {
            // Somebody has forbidden it since.
            std::thread::sleep(LATE);
        }
        while self.inside[owner % GRANTS].load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }
}

impl<'a, T> Guard<'a, T> {
    /// The mutex, if it is held by that.
    pub fn mutex(&mut self) -> Option<&mut MutexGuard<'a, T>> {
        match &mut self.by {
            By::Mutex(mutex) => Some(mutex),
            By::Owner(_) => None,
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held, by one of its two ways, of which each excludes the other.
        unsafe { &*self.lock.mutex.data_ptr() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.lock.mutex.data_ptr() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if let By::Owner(inside) = &self.by {
            inside.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn own(lock: &Biased<u64>) -> bool {
        for _ in 0..FIRST + 3 {
            *lock.lock(Thread::this()) += 1;
        }
        lock.lock(Thread::this()).mutex().is_none()
    }

    #[test]
    fn who_takes_it_often_owns_it_until_another_asks() {
        let lock = Arc::new(Biased::new(0, true));
        if !lock.may {
            return; // The system has no such call.
        }
        assert!(!lock.is_owned_by(Thread::this()));
        assert!(own(&lock) && lock.is_owned_by(Thread::this()));
        let theirs = lock.clone();
        let (inside, told) = std::sync::mpsc::channel();
        let held = lock.lock(Thread::this());
        let other = std::thread::spawn(move || {
            inside.send(()).unwrap();
            let mut guard = theirs.lock(Thread::this());
            *guard += 1000;
            guard.mutex().is_some() && !theirs.is_owned_by(Thread::this())
        });
        told.recv().unwrap();
        let before = *held;
        for _ in 0..1000 {
            std::thread::yield_now();
        }
        assert_eq!(*held, before, "nobody comes in while its owner is inside");
        drop(held);
        assert!(other.join().unwrap());
        assert_eq!(*lock.lock(Thread::this()), before + 1000);
        assert!(!own(&lock), "the next time it takes longer");
    }

    #[test]
    fn threads_that_come_in_bursts_exclude_each_other() {
        const THREADS: u64 = 4;
        const BURSTS: u64 = 40;
        for may in [true, false] {
            let lock = Biased::new((0u64, 0u64), may);
            std::thread::scope(|s| {
                for _ in 0..THREADS {
                    s.spawn(|| {
                        let thread = Thread::this();
                        for burst in 0..BURSTS {
                            for _ in 0..u64::from(FIRST) * 2 {
                                let mut both = lock.lock(thread);
                                both.0 += 1;
                                std::hint::spin_loop();
                                assert_eq!(both.0, both.1 + 1);
                                both.1 += 1;
                            }
                            if burst % 4 == 0 {
                                // Ownership comes again as if for the first time.
                                let _held = lock.lock(thread);
                                lock.habit.wanted.set(FIRST);
                            }
                            std::thread::yield_now();
                        }
                    });
                }
            });
            let all = THREADS * BURSTS * u64::from(FIRST) * 2;
            assert_eq!(*lock.lock(Thread::this()), (all, all));
        }
    }
}
