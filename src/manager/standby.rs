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

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::Manager;
use super::inside;
use super::waiter::Waiter;
use crate::log;
use crate::os::OwnThread;

/// A copy that runs so long keeps its thread: a stand-by thread takes the seat within twice this.
const LOOK: Duration = Duration::from_millis(50);
/// Looks without a copy after which the thread sleeps until there is one.
const QUIET: u32 = 20;
/// Most stand-by threads of a manager.
const THREADS: usize = 8;

thread_local! {
    /// This is a stand-by thread.
    static STANDS_BY: Cell<bool> = const { Cell::new(false) };
}

/// What the stand-by threads go by.
#[derive(Default)]
pub struct Standby {
    /// In one word, since each short delivery changes all of them twice.
    counts: AtomicU64,
    /// Nobody watches until there are copies, or none has been started.
    off: AtomicBool,
    lock: Mutex<Threads>,
    wake: Condvar,
}

/// Copies, as [`Standby`] counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    /// Under way: one for each thread at most.
    running: usize,
    /// Those of them that stand-by threads make.
    own: usize,
    /// Over, since the beginning; it wraps.
    ended: u32,
}

impl Counts {
    const OWN: u32 = 24;
    const ENDED: u32 = 32;

    fn of(word: u64) -> Counts {
        let running = (word & ((1 << Counts::OWN) - 1)) as usize;
        let own = usize::from((word >> Counts::OWN) as u8);
        Counts { running, own, ended: (word >> Counts::ENDED) as u32 }
    }

    /// What is added for one that begins.
    fn one(own: bool) -> u64 {
        1 | u64::from(own) << Counts::OWN
    }

    /// And for the same one when it is over.
    fn one_less(own: bool) -> u64 {
        (1u64 << Counts::ENDED).wrapping_sub(Counts::one(own))
    }
}

#[derive(Default)]
struct Threads {
    handles: Vec<OwnThread>,
    /// So many of them drive, or are kept by a copy themselves.
    driving: usize,
    /// One of them watches.
    watched: bool,
    stop: bool,
    refused: bool,
}

impl Threads {
    /// Copies run, and whoever stands in already is kept by one, too. That another than these has come back from its copy
    /// does not help: it leaves the seat to who stands in.
    fn all_kept(&self, running: usize, own: usize) -> bool {
        running > 0 && own >= self.driving
    }

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

    fn counts(&self) -> Counts {
        Counts::of(self.counts.load(Ordering::SeqCst))
    }
}

/// A copy runs.
struct Running<'a> {
    standby: &'a Standby,
    /// On a stand-by thread.
    own: bool,
}

impl Running<'_> {
    fn new(standby: &Standby) -> Running<'_> {
        let own = STANDS_BY.get();
        standby.counts.fetch_add(Counts::one(own), Ordering::SeqCst);
        Running { standby, own }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.standby.counts.fetch_add(Counts::one_less(self.own), Ordering::SeqCst);
    }
}

impl Manager {
    /// Makes a copy, which may be kept by a page that does not come.
    pub(super) fn may_be_kept<R>(&self, copy: impl FnOnce() -> R) -> R {
        if !self.has_thread {
            return copy();
        }
        let standby = &self.standby;
        let _running = Running::new(standby);
        if standby.off.load(Ordering::SeqCst) {
            self.stand_by();
        }
        copy()
    }

    /// Starts the stand-by thread, or wakes it.
    fn stand_by(&self) {
        let standby = &self.standby;
        let _log = log::Deferred::new();
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
        STANDS_BY.set(true);
        inside::begin_to_drive(&**self);
        while let Some(kept) = self.watch_copies() {
            let standby = &self.standby;
            let last = {
                // Who hears of a thread that cannot be had may call, and a call may need the lock.
                let _log = log::Deferred::new();
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
            let over = || closing() || standby.counts().running < kept;
            self.drive_guarded(&Arc::new(Waiter::default()), over);
            {
                // Others may be all that is left now, and kept: who watches looks only when it is told to.
                let mut threads = standby.lock.lock();
                threads.driving -= 1;
                standby.wake.notify_all();
            }
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
        let (mut last, mut quiet) = (standby.counts().ended, 0);
        let kept = loop {
            if quiet >= QUIET && !threads.stop {
                standby.off.store(true, Ordering::SeqCst);
                // One that began before it could see that is looked after.
                while self.all_kept(&threads).is_none()
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
            let kept = self.all_kept(&threads);
            let ended = standby.counts().ended;
            // None ended since the last look: what ran then runs still.
            if ended == last && kept.is_some() {
                break kept;
            }
            quiet = if ended == last { quiet + 1 } else { 0 };
            last = ended;
        };
        threads.watched = false;
        standby.wake.notify_all();
        kept
    }

    /// How many copies run, if all who drive are kept by them.
    fn all_kept(&self, threads: &Threads) -> Option<usize> {
        let Counts { running, own, .. } = self.standby.counts();
        threads.all_kept(running, own).then_some(running)
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
            handle.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;
    use crate::config::Config;
    use crate::fabric::ProviderKind;
    use crate::log::Level;
    use crate::status::Code;

    /// Its log may be heard on a stand-by thread, and whoever hears it may call anything.
    #[test]
    fn r04_a_manager_is_not_ended_on_its_stand_by_thread() {
        if std::env::var_os("RDMA_LOG").is_some() {
            return; // the environment fixes the level
        }
        let _one = log::ONE_TEST.lock();
        let config = Config {
            name: "kept".into(),
            provider: Some(ProviderKind::Loopback),
            ..Config::default()
        };
        let manager = Manager::new(config).unwrap();
        let (tell, told) = mpsc::channel();
        let (me, tell) = (Arc::downgrade(&manager), Mutex::new(tell));
        log::set_callback(Some(Arc::new(move |_, text| {
            let stands_by = std::thread::current().name() == Some("rdma-standby");
            if let Some(manager) = me.upgrade()
                && stands_by
                && text.contains("no peer met")
            {
                let _ = tell.lock().send(manager.destroy());
            }
        })));
        log::set_level(Level::Info);
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = nobody.local_addr().unwrap().to_string();
        drop(nobody);
        let begun = Instant::now();
        let ended = manager.may_be_kept(|| {
            loop {
                // Until the time of a stand-by thread has come, the progress thread tells.
                let _ = manager.add_peer_at(&address, Some(Duration::from_millis(20)));
                match told.try_recv() {
                    Err(_) if begun.elapsed() < Duration::from_secs(20) => {}
                    ended => break ended,
                }
            }
        });
        log::set_level(Level::Warn);
        log::set_callback(None);
        let refused = ended.expect("no stand-by thread was heard").unwrap_err();
        assert_eq!(refused.code, Code::FailedPrecondition, "{refused}");
        manager.destroy().unwrap();
    }

    #[test]
    fn copies_are_counted_in_one_word() {
        let mut word = (u64::from(u32::MAX - 1)) << Counts::ENDED;
        let all = [false, true, true, false, true];
        all.iter().for_each(|&own| word = word.wrapping_add(Counts::one(own)));
        let begun = Counts { running: 5, own: 3, ended: u32::MAX - 1 };
        assert_eq!(Counts::of(word), begun);
        all[..3].iter().for_each(|&own| word = word.wrapping_add(Counts::one_less(own)));
        assert_eq!(Counts::of(word), Counts { running: 2, own: 1, ended: 1 });
        all[3..].iter().for_each(|&own| word = word.wrapping_add(Counts::one_less(own)));
        assert_eq!(Counts::of(word), Counts { running: 0, own: 0, ended: 3 });
    }

    #[test]
    fn r19_who_stands_in_and_is_kept_has_to_be_stood_in_for() {
        let kept = |driving, running, own| {
            Threads { driving, ..Threads::default() }.all_kept(running, own)
        };
        assert!(!kept(0, 0, 0), "nothing runs");
        assert!(kept(0, 1, 0), "the progress thread, or a caller");
        assert!(!kept(1, 1, 0), "somebody stands in for it");
        assert!(kept(1, 2, 1), "who is kept, too");
        assert!(
            kept(1, 1, 1),
            "and is so still when the first is back, which does not take the seat from it"
        );
        assert!(!kept(2, 1, 1), "until the next stands in");
        assert!(!kept(1, 0, 0), "it has not left yet");
    }
}
