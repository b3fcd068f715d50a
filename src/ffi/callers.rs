//! Who is inside of a call with which handle, so that destroying a manager waits for them.
//!
//! A call notes its handle in a place of its thread, then looks whether the handle is retired; who destroys retires the
//! handle, then looks at all places. Each side stores before it loads, so one of them sees the other, if the processor
//! keeps that order. Calls are many and destroying is rare: so a call has plain instructions only, and who destroys makes
//! the processors of all other threads keep the order, by a system call (`membarrier`). Where there is none, calls hold
//! the handle's lock for reading instead; so do those for which no place is left.
//!
//! Places are never given back to the allocator: another thread uses them when theirs has ended, which is asked when one
//! is needed. So nothing has to run at the end of a thread, and calls in destructors of thread-local storage are as any.

use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering, compiler_fence, fence};
use std::time::Duration;

use parking_lot::RwLock;

use super::handle::rdma_mgr;
use crate::os;
use crate::thread::Thread;

/// Handles that one thread is inside of, by calls in callbacks of calls; more hold the lock.
const PLACES: usize = 4;
/// A destroyer looks so often whether calls have returned.
const LOOK: Duration = Duration::from_micros(50);
/// Longer than any processor keeps a store to itself: should the system call fail later on.
const LATE: Duration = Duration::from_millis(100);

/// A thread's places. On lines of its own: others read it only when they destroy.
#[derive(Default)]
#[repr(align(128))]
struct Places {
    handles: [AtomicPtr<rdma_mgr>; PLACES],
    /// The thread that has them, as the system calls it.
    owner: AtomicI32,
}

static ALL: RwLock<Vec<&'static Places>> = RwLock::new(Vec::new());
/// The system orders what other threads do.
static ORDERS: AtomicBool = AtomicBool::new(false);

/// This module's part of [`crate::thread`].
pub(crate) struct Own {
    places: Cell<Option<&'static Places>>,
    /// The thread has been given its places, or goes without.
    asked: Cell<bool>,
}

impl Own {
    pub(crate) const fn new() -> Own {
        Own { places: Cell::new(None), asked: Cell::new(false) }
    }
}

/// Asks the system to order what other threads do, for [`order`]. Before a handle is made.
pub(super) fn prepare() {
    if os::orders_others() {
        ORDERS.store(true, Ordering::Relaxed);
    }
}

/// A handle noted in a place of this thread, until it is dropped.
pub(super) struct Noted {
    place: &'static AtomicPtr<rdma_mgr>,
    /// Stays on its thread.
    _thread: Thread,
}

impl Drop for Noted {
    #[inline]
    fn drop(&mut self) {
        self.place.store(null_mut(), Ordering::Release);
    }
}

/// Notes that this thread is inside of a call with the handle. Whoever retires it then waits, if `is_retired`, asked
/// after this, says no. `None`: there is no place.
#[inline]
pub(super) fn note(handle: &rdma_mgr, thread: Thread) -> Option<Noted> {
    let places = match thread.callers.places.get() {
        Some(places) => places,
        None => find_places(thread)?,
    };
    // Only this thread puts something there.
    let free = |place: &&AtomicPtr<rdma_mgr>| place.load(Ordering::Relaxed).is_null();
    let place = places.handles.iter().find(free)?;
    place.store(std::ptr::from_ref(handle).cast_mut(), Ordering::Relaxed);
    // The processor may look first; `order` sees to that.
    compiler_fence(Ordering::SeqCst);
    Some(Noted { place, _thread: thread })
}

#[cold]
fn find_places(thread: Thread) -> Option<&'static Places> {
    let own = &thread.callers;
    if own.asked.replace(true) || !ORDERS.load(Ordering::Relaxed) {
        return None;
    }
    let mut all = ALL.write();
    let places = match all.iter().find(|places| os::has_ended(places.owner.load(Ordering::Relaxed)))
    {
        Some(&places) => places,
        None => {
            let mut new = Vec::new();
            new.try_reserve_exact(1).ok()?;
            all.try_reserve(1).ok()?;
            new.push(Places::default());
            let new = new.leak().first()?;
            all.push(new);
            new
        }
    };
    // One that ended inside of a call, as `pthread_exit` in a callback does, is inside no more.
    places.handles.iter().for_each(|place| place.store(null_mut(), Ordering::Relaxed));
    // SAFETY: no pointers.
    places.owner.store(unsafe { libc::gettid() }, Ordering::Relaxed);
    own.places.set(Some(places));
    Some(places)
}

/// In a forked child, by its one thread: it has another number there.
pub(super) fn renumber() {
    if let Some(places) = Thread::this().callers.places.get() {
        // SAFETY: no pointers.
        places.owner.store(unsafe { libc::gettid() }, Ordering::Relaxed);
    }
}

/// Waits until no thread has the handle, which is retired, noted.
pub(super) fn wait_for_calls(handle: &rdma_mgr) {
    order();
    let handle = std::ptr::from_ref(handle).cast_mut();
    let inside = || {
        let all = ALL.read();
        let noted = |places: &&Places| {
            places.handles.iter().any(|place| place.load(Ordering::Acquire) == handle)
        };
        // One that has ended inside of a call, without a word to anybody, is inside no more.
        let lives = |places: &Places| !os::has_ended(places.owner.load(Ordering::Relaxed));
        all.iter().copied().filter(noted).any(lives)
    };
    while inside() {
        std::thread::sleep(LOOK);
    }
}

/// Afterwards what this thread stored before is seen by every load that other threads make, and what they stored before
/// such a load is seen here.
fn order() {
    fence(Ordering::SeqCst);
    if ORDERS.load(Ordering::Relaxed) && !os::order_others() {
        // Somebody has forbidden it since.
        std::thread::sleep(LATE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    fn handle() -> &'static rdma_mgr {
        super::super::handle::reserve()
    }

    fn is_noted(handle: &rdma_mgr) -> bool {
        let all = ALL.read();
        let mut places = all.iter().flat_map(|places| &places.handles);
        places.any(|place| std::ptr::eq(place.load(Ordering::Relaxed), handle))
    }

    #[test]
    fn a_thread_has_places_for_calls_within_calls_and_leaves_none_behind() {
        let handles: Vec<_> = (0..PLACES + 1).map(|_| handle()).collect();
        std::thread::spawn(move || {
            let thread = Thread::this();
            let mut noted: Vec<_> =
                handles[..PLACES].iter().filter_map(|handle| note(handle, thread)).collect();
            if noted.is_empty() {
                return; // The system has no such call.
            }
            assert_eq!(noted.len(), PLACES);
            assert!(note(handles[PLACES], thread).is_none());
            // Not in order.
            drop(noted.remove(1));
            assert!(!is_noted(handles[1]) && is_noted(handles[0]) && is_noted(handles[2]));
            let other = note(handles[PLACES], thread);
            assert!(other.is_some() && is_noted(handles[PLACES]));
            drop((noted, other));
            assert!(!handles.iter().any(|handle| is_noted(handle)));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn who_destroys_waits_for_who_is_inside() {
        let handle = handle();
        let (tell, told) = channel();
        let (leave, left) = channel::<()>();
        let inside = std::thread::spawn(move || {
            let noted = note(handle, Thread::this());
            tell.send(noted.is_some()).unwrap();
            left.recv().unwrap();
        });
        if told.recv().unwrap() {
            let (ended, end) = channel();
            let waits = std::thread::spawn(move || {
                wait_for_calls(handle);
                ended.send(()).unwrap();
            });
            assert!(end.recv_timeout(LOOK * 20).is_err(), "somebody is inside");
            leave.send(()).unwrap();
            end.recv().unwrap();
            waits.join().unwrap();
        } else {
            leave.send(()).unwrap();
        }
        inside.join().unwrap();
        // The places of threads that ended are used again.
        let count = || ALL.read().len();
        let before = count();
        for _ in 0..500 {
            std::thread::spawn(move || drop(note(handle, Thread::this()))).join().unwrap();
        }
        assert!(count() <= before + 100, "{before} {}", count());
    }
}
