//! Further drivers, for as long as others are kept by copies.
//!
//! A turn makes its copies of content without the lock (see `copies`), and a page of memory may take seconds to come: from
//! slow storage, from a peer that does not want it to come, or never. The thread that waits for it cannot drive meanwhile.
//! So in the mode with a progress thread there is one more, which sleeps until copies are made, then looks every [`LOOK`]
//! whether any has ended, and if none has while one runs, takes the seat as a blocked caller would, until fewer are
//! kept. Meanwhile another one watches, up to [`THREADS`]. The last of them makes no copies itself: however many are kept,
//! messages, deadlines, calls and callbacks go on.
//!
//! The first is started with the first copy, and costs twenty wake-ups a second while there are copies; the others when
//! they are needed.
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

/// A copy that runs so long keeps its thread: a stand-by thread takes the seat within twice this.
const LOOK: Duration = Duration::from_millis(50);
/// Looks without a copy after which the thread sleeps until there is one.
const QUIET: u32 = 20;
/// Most stand-by threads of a manager.
const THREADS: usize = 8;

/// What the stand-by threads go by.
#[derive(Default)]
pub struct Standby {
    running: AtomicUsize,
    ended: AtomicU64,
    /// Nobody watches until there are copies, or none has been started.
    off: AtomicBool,
    lock: Mutex<Threads>,
    wake: Condvar,
}

#[derive(Default)]
struct Threads {
    handles: Vec<JoinHandle<()>>,
    /// So many of them drive, or are kept by a copy themselves.
    driving: usize,
    /// One of them watches.
    watched: bool,
    stop: bool,
    refused: bool,
}

impl Threads {
    /// All that there may be are in use.
    fn is_last(&self) -> bool {
        self.driving >= THREADS || self.refused && self.driving >= self.handles.len()
    }
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
        let mut threads = standby.lock.lock();
        if !standby.off.swap(false, Ordering::SeqCst) {
            return;
        }
        if threads.handles.is_empty() {
            self.start_standby(&mut threads);
        }
        standby.wake.notify_all();
    }

    /// Starts one more.
    fn start_standby(&self, threads: &mut Threads) {
        if threads.stop || threads.refused {
            return;
        }
        let Some(own) = self.me.upgrade() else { return };
        match crate::os::spawn("rdma-standby", move || own.standby_thread()) {
            Ok(handle) => threads.handles.push(handle),
            Err(error) => {
                threads.refused = true;
                log::warn(format_args!(
                    "no further progress thread ({error}): pages of memory that come slowly delay deadlines"
                ));
            }
        }
    }

    fn standby_thread(self: &Arc<Self>) {
        while let Some(kept) = self.watch_copies() {
            let standby = &self.standby;
            let last = {
                let mut threads = standby.lock.lock();
                threads.driving += 1;
                if threads.driving == threads.handles.len() && threads.driving < THREADS {
                    self.start_standby(&mut threads);
                }
                threads.is_last()
            };
            if last {
                self.core.lock().bar_copies(true);
            }
            let closing = || self.drivers.closing.load(Ordering::SeqCst);
            let over = || closing() || standby.running.load(Ordering::SeqCst) < kept;
            self.drive_guarded(&Arc::new(Waiter::default()), over);
            standby.lock.lock().driving -= 1;
            if last {
                self.core.lock().bar_copies(false);
            }
        }
    }

    /// Waits until copies keep all who drive: how many. `None`: the manager ends.
    fn watch_copies(&self) -> Option<usize> {
        let standby = &self.standby;
        let mut threads = standby.lock.lock();
        while threads.watched && !threads.stop {
            standby.wake.wait(&mut threads);
        }
        threads.watched = true;
        let (mut last, mut quiet) = (standby.ended.load(Ordering::SeqCst), 0);
        let kept = loop {
            if quiet >= QUIET && !threads.stop {
                standby.off.store(true, Ordering::SeqCst);
                // One that began before it could see that is looked after.
                while standby.running.load(Ordering::SeqCst) <= threads.driving
                    && standby.off.load(Ordering::SeqCst)
                    && !threads.stop
                {
                    standby.wake.wait(&mut threads);
                }
                standby.off.store(false, Ordering::SeqCst);
                quiet = 0;
            }
            if !threads.stop {
                standby.wake.wait_for(&mut threads, LOOK);
            }
            if threads.stop {
                break None;
            }
            let (ended, running) =
                (standby.ended.load(Ordering::SeqCst), standby.running.load(Ordering::SeqCst));
            if ended == last && running > threads.driving {
                break Some(running);
            }
            quiet = if ended == last { quiet + 1 } else { 0 };
            last = ended;
        };
        threads.watched = false;
        standby.wake.notify_all();
        kept
    }

    /// Ends the threads. Not while a callback runs on one.
    pub(super) fn end_standby(&self) {
        let handles = {
            let mut threads = self.standby.lock.lock();
            threads.stop = true;
            self.standby.wake.notify_all();
            std::mem::take(&mut threads.handles)
        };
        for handle in handles {
            let _ = handle.join();
        }
    }
}
