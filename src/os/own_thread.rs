//! A thread of the library, as who has started it holds it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// How long it is waited for the beginning of a thread whose end is wanted.
const BEGINS: Duration = Duration::from_millis(500);

/// A thread of the library. Dropped, it goes on by itself.
#[derive(Debug)]
pub struct OwnThread(Box<Parts>);

#[derive(Debug)]
pub(super) struct Parts {
    pub handle: JoinHandle<()>,
    pub begun: Arc<AtomicBool>,
}

impl OwnThread {
    pub(super) fn new(parts: Box<Parts>) -> OwnThread {
        OwnThread(parts)
    }

    /// Waits until it has ended. False: it has not begun, and does not while this waits; it will find that it is to end.
    ///
    /// What begins a thread registers destructors with the C library, which takes the loader's lock for that. Whoever is called by
    /// the loader, in a constructor or destructor of a shared object that is loaded or unloaded, holds it, and would wait for ever.
    /// (This library stays loaded: `-z nodelete` in build.rs.)
    pub fn join(self) -> bool {
        let until = Instant::now() + BEGINS;
        while !self.0.begun.load(Ordering::Acquire) {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = self.0.handle.join();
        true
    }
}

/// This thread begins: it has what it registers with the C library, so that the loader's lock does not keep it from its end.
pub(super) fn begin(begun: &AtomicBool) {
    // What parking_lot keeps for a thread that waits.
    let lock = Mutex::new(());
    Condvar::new().wait_for(&mut lock.lock(), Duration::ZERO);
    begun.store(true, Ordering::Release);
}
