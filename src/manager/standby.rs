//! A second driver, for as long as the first is kept by a copy.
//!
//! A turn makes its copies of content without the lock (see `copies`), and a page of the application's memory may take
//! seconds to come: from slow storage, or never. The thread that waits for it cannot drive meanwhile. So in the mode
//! with a progress thread there is one more, which sleeps until copies are made, then looks every [`LOOK`] whether any
//! has ended, and if none has while one runs, takes the seat as a blocked caller would, until one ends. It is
//! started with the first copy, and costs ten wake-ups a second while there are copies.
//!
//! In manual progress the application has other threads that turn the manager, or has chosen to be kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::Manager;
use super::drive::Waiter;
use crate::log;

/// A copy that runs so long keeps its thread: the stand-by thread takes the seat within twice this.
const LOOK: Duration = Duration::from_millis(50);
/// Looks without a copy after which the thread sleeps until there is one.
const QUIET: u32 = 20;

/// What the stand-by thread goes by.
#[derive(Default)]
pub struct Standby {
    running: AtomicUsize,
    ended: AtomicU64,
    /// It sleeps until there are copies, or has not been started.
    off: AtomicBool,
    lock: Mutex<Thread>,
    wake: Condvar,
}

#[derive(Default)]
struct Thread {
    handle: Option<JoinHandle<()>>,
    stop: bool,
    refused: bool,
}

impl Standby {
    /// Nothing runs yet.
    pub fn new() -> Standby {
        Standby { off: AtomicBool::new(true), ..Standby::default() }
    }
}

/// A copy runs.
struct Running<'a>(&'a Standby);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Manager {
    /// Makes a copy, which may be kept by a page that does not come.
    pub(super) fn may_be_kept<R>(&self, copy: impl FnOnce() -> R) -> R {
        if !self.has_thread {
            return copy();
        }
        let standby = &self.standby;
        standby.running.fetch_add(1, Ordering::SeqCst);
        let _running = Running(standby);
        if standby.off.load(Ordering::SeqCst) {
            self.stand_by();
        }
        copy()
    }

    /// Starts the stand-by thread, or wakes it.
    fn stand_by(&self) {
        let standby = &self.standby;
        let mut thread = standby.lock.lock();
        if !standby.off.swap(false, Ordering::SeqCst) || thread.stop {
            return;
        }
        if thread.handle.is_some() {
            standby.wake.notify_one();
            return;
        }
        if thread.refused {
            return;
        }
        let Some(own) = self.me.upgrade() else { return };
        match crate::os::spawn("rdma-standby", move || own.standby_thread()) {
            Ok(handle) => thread.handle = Some(handle),
            Err(error) => {
                thread.refused = true;
                log::warn(format_args!(
                    "no second progress thread ({error}): a page of memory that comes slowly delays deadlines"
                ));
            }
        }
    }

    fn standby_thread(self: &Arc<Self>) {
        let standby = &self.standby;
        let (mut last, mut quiet) = (0, 0);
        loop {
            {
                let mut thread = standby.lock.lock();
                if quiet >= QUIET && !thread.stop {
                    standby.off.store(true, Ordering::SeqCst);
                    // One that began before it could see that is looked after.
                    if standby.running.load(Ordering::SeqCst) == 0 {
                        standby.wake.wait(&mut thread);
                    }
                    standby.off.store(false, Ordering::SeqCst);
                    quiet = 0;
                }
                if !thread.stop {
                    standby.wake.wait_for(&mut thread, LOOK);
                }
                if thread.stop {
                    return;
                }
            }
            let ended = standby.ended.load(Ordering::SeqCst);
            let kept = standby.running.load(Ordering::SeqCst) > 0 && ended == last;
            quiet = if ended == last { quiet + 1 } else { 0 };
            last = ended;
            if kept {
                quiet = 0;
                let waiter = Arc::new(Waiter::default());
                let closing = || self.drivers.closing.load(Ordering::SeqCst);
                let over = || closing() || standby.ended.load(Ordering::SeqCst) != ended;
                self.drive_guarded(&waiter, over);
            }
        }
    }

    /// Ends the thread. Not while a callback runs on it.
    pub(super) fn end_standby(&self) {
        let handle = {
            let mut thread = self.standby.lock.lock();
            thread.stop = true;
            self.standby.wake.notify_one();
            thread.handle.take()
        };
        if let Some(handle) = handle {
            let _ = handle.join();
        }
    }
}
