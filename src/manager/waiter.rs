//! Callers that block, each until its result is there, and what becomes of the seat of one whose thread is no more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::Manager;
use crate::log;
use crate::os;

/// One blocked caller.
#[derive(Default)]
pub struct Waiter {
    ready: AtomicBool,
    nudged: Mutex<bool>,
    wake: Condvar,
    /// The number of the thread that drives, or wants to, once it has said so.
    thread: AtomicI32,
}

impl Waiter {
    /// Its result is there.
    pub fn finish(&self) {
        self.ready.store(true, Ordering::Release);
        self.nudge();
    }

    /// It is to look: the seat is its, or something happened.
    pub fn nudge(&self) {
        *self.nudged.lock() = true;
        self.wake.notify_one();
    }

    /// Whether its result is there.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// It is this thread that blocks.
    pub(super) fn is_here(&self) {
        // SAFETY: no pointers.
        self.thread.store(unsafe { libc::gettid() }, Ordering::Relaxed);
    }

    /// Whether the thread that blocked has ended.
    pub(super) fn is_dead(&self) -> bool {
        let thread = self.thread.load(Ordering::Relaxed);
        thread != 0 && os::has_ended(thread)
    }

    /// Waits for a nudge; whether it came.
    pub(super) fn wait(&self, timeout: Duration) -> bool {
        let mut nudged = self.nudged.lock();
        if !*nudged {
            self.wake.wait_for(&mut nudged, timeout);
        }
        std::mem::take(&mut *nudged)
    }
}

/// Waiters are told apart by their address.
#[derive(Clone)]
pub struct Caller(pub Arc<Waiter>);

impl PartialEq for Caller {
    fn eq(&self, other: &Caller) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Manager {
    /// A thread that drove may have ended without a word: by longjmp out of a callback, which some interpreters do with a thread that
    /// they end. Nobody may do that, but those that wait behind it need not wait for ever.
    pub(super) fn free_seat_of_the_dead(&self) {
        let mut core = self.core.lock();
        let holder = core.wheel().holder().cloned();
        if let Some(caller) = holder.filter(|caller| caller.0.is_dead()) {
            let now = core.world.clock.now();
            core.wheel().leave(&caller, now);
            log::warn(format_args!(
                "a thread has ended inside a call, and not by a return from its callback: others drive in its place"
            ));
        }
    }
}
