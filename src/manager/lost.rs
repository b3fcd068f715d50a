//! Managers of which a thread has ended inside a callback, and sleeps there (see `ffi::called`): what it had taken never comes
//! back. The library's own thread does not end then, and a caller's never returns; whoever ends the manager must not wait for
//! either.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use super::inside;
use crate::status::{Code, Status};
use crate::thread::Thread;

/// There are some.
static ANY: AtomicBool = AtomicBool::new(false);
/// By address; they are never freed.
static LOST: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Looks whether a thread has ended: the first pause, and the longest.
const LOOK: Duration = Duration::from_micros(50);
const LOOK_MOST: Duration = Duration::from_millis(2);

/// This thread never comes back from the callbacks that it is inside of, nor to the manager whose own it is.
pub(crate) fn lose(thread: Thread) {
    let mut lost = LOST.lock();
    inside::each(thread, |manager| lost.push(manager));
    ANY.store(true, Ordering::Release);
}

/// Whether a thread of this manager, or in its callback, will not come back.
pub(super) fn is_lost<T>(manager: &T) -> bool {
    ANY.load(Ordering::Acquire) && LOST.lock().contains(&inside::address(manager))
}

/// Waits for the end of a thread of this manager; false: one of them will not come back.
pub(super) fn join<T>(manager: &T, thread: JoinHandle<()>) -> bool {
    let mut pause = LOOK;
    while !thread.is_finished() {
        if is_lost(manager) {
            return false;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LOOK_MOST);
    }
    let _ = thread.join();
    !is_lost(manager)
}

/// Why such a manager does not end. Nobody knows what the thread was about to do: nothing of the manager is touched any more, nor freed.
pub(super) fn why() -> Status {
    let text = "a thread has ended inside a callback of this manager (pthread_exit, cancellation), and sleeps there; the manager \
                is dead, callbacks that have not run never will, and its connections and memory stay until the process ends";
    Status::new(Code::Aborted, text)
}

/// A pause of who waits for what the manager's end is about to end. Where a thread is lost it ends nothing: there is nothing
/// to come back to, and no callback is to run any more.
pub(super) fn pause<T>(manager: &T) {
    while is_lost(manager) {
        std::thread::park();
    }
    std::thread::yield_now();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r04_an_end_does_not_wait_for_a_lost_thread() {
        let manager = Box::new(0u64);
        let (tell, told) = std::sync::mpsc::channel::<()>();
        let waits = std::thread::spawn(move || {
            let _ = told.recv();
        });
        assert!(!is_lost(&*manager));
        let address = inside::address(&*manager);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let thread = Thread::this();
                let _inside = inside::Inside::enter(&*manager, thread);
                lose(thread);
            });
            assert!(!join(&*manager, waits));
        });
        assert!(is_lost(&*manager));
        tell.send(()).unwrap();
        LOST.lock().retain(|&m| m != address);
        assert!(join(&*manager, std::thread::spawn(|| {})));
    }
}
