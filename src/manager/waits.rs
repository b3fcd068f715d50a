//! Waiting for more than one operation, being woken, and what the application is told.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::engine::{Fx, Hooks};
use crate::observe::Args;

/// Callbacks, counted when they are taken from the queue, and again when they have returned.
#[derive(Default)]
pub(super) struct Counts {
    /// Written with the lock held.
    taken: AtomicU64,
    /// The application's that have run.
    ran: AtomicU64,
    /// Others that have ended.
    quiet: AtomicU64,
}

impl Counts {
    /// The application's that have run.
    pub(super) fn ran(&self) -> u64 {
        self.ran.load(Ordering::Acquire)
    }

    /// Whether some that were taken have not returned. To be asked with the lock held.
    pub(super) fn any(&self, _held: &mut Core) -> bool {
        let ended = self.ran().wrapping_add(self.quiet.load(Ordering::Acquire));
        self.taken.load(Ordering::Relaxed) != ended
    }
}

/// Callbacks taken from the queue that have not all returned.
pub(super) struct Taken<'a> {
    counts: &'a Counts,
    left: u64,
}

impl<'a> Taken<'a> {
    /// So many. With the lock held, so that they are never neither queued nor counted.
    #[inline]
    pub(super) fn count(counts: &'a Counts, n: usize, _held: &mut Core) -> Taken<'a> {
        let taken = counts.taken.load(Ordering::Relaxed).wrapping_add(n as u64);
        counts.taken.store(taken, Ordering::Relaxed);
        Taken { counts, left: n as u64 }
    }

    /// Whether nobody is told of some of them.
    pub(super) fn are_quiet(&self) -> bool {
        self.left > 0
    }

    /// One of them, the application's, has run. Whoever waits for it and says so before it looks is seen after this.
    #[inline]
    pub(super) fn ran(&mut self) {
        self.left = self.left.saturating_sub(1);
        self.counts.ran.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for Taken<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.left > 0 {
            self.counts.quiet.fetch_add(self.left, Ordering::AcqRel);
        }
    }
}

impl Manager {
    /// Ends every `wait` under way, and the next one of each thread that does not wait now.
    pub fn wake(&self) -> Result<(), Status> {
        self.call(|core| {
            core.engine.poke();
            // What is queued keeps a driver from falling asleep, and wakes one that sleeps; when it has run, those who
            // wait are told.
            core.world.run(Work::Call(Box::new(|| {})));
        });
        Ok(())
    }

    /// Turns until nothing is under way with this peer, or with anybody, and every callback has returned.
    pub fn flush(&self, peer: Option<&str>, timeout: Duration) -> Result<(), Status> {
        self.refuse_inside()?;
        let own = peer.is_some_and(|p| *p == *self.core.lock().engine.name);
        let index = match peer {
            Some(name) if !own => Some(self.core.lock().peer(name)?),
            _ => None,
        };
        let waiter = Arc::new(Waiter::default());
        let idle = || {
            let mut core = self.core.lock();
            core.engine.under_way_with(index) == 0
                && !core.world.has_work()
                && core.world.held_back.is_empty()
                && !self.drivers.callbacks.any(&mut core)
        };
        let ended = self.waiting(|| self.block(&waiter, Some(timeout), idle));
        // What ended with the manager did not end well, whoever drove it to its end.
        self.refuse_closing()?;
        if ended {
            return Ok(());
        }
        let (left, lent) = {
            let engine = &self.core.lock().engine;
            (engine.under_way_with(index), if index.is_none() { engine.lent() } else { 0 })
        };
        let with = peer.map_or_else(String::new, |p| format!(" with peer '{p}'"));
        let wait = match lent {
            0 => String::new(),
            n => format!(
                ", {n} of them sends to this manager itself that end when rdma_request_release was called for their receives"
            ),
        };
        let what = match left {
            0 => "callbacks have not returned".to_owned(),
            _ => format!("{left} operations{with} are under way"),
        };
        let text = text!("{what} after {}{wait}", seconds(timeout));
        Err(Status::new(Code::DeadlineExceeded, text).because(Reason::Deadline))
    }

    /// Sets what the application is told, before anything can happen.
    pub(super) fn set_hooks(&self, mut hooks: Hooks, source: Option<SourceFn>) {
        if let Some(ended) = hooks.ended.take() {
            let trace = self.trace.clone();
            hooks.ended = Some(Arc::new(move |id, status| {
                trace.answered(id, status.code);
                ended(id, status);
            }));
        }
        let mut core = self.core.lock();
        core.engine.set_hooks(hooks);
        core.engine.set_source(source);
    }

    /// Asks the runtime's rendezvous.
    pub(super) fn ask_source(&self, source: &SourceFn, id: u64, peer: &str, key: &[u8], step: i64) {
        if self.trace.enabled() {
            self.trace.asked(id, peer, key, step);
            let start = Instant::now();
            source(id, peer, key, step);
            let args = Args { peer, key, step, ..Args::default() };
            self.trace.span("source callback", "callback", start, &args);
        } else {
            source(id, peer, key, step);
        }
        if self.hears_of_ends {
            self.with_engine(|engine, fx| engine.source_returned(fx, id));
        }
    }

    /// Tells of peers that came and went, one after the other.
    pub(super) fn tell_of_peers(&self) {
        loop {
            let event = self.core.lock().engine.next_peer_event();
            let Some((tell, name, gone)) = event else { return };
            tell(&name, gone.as_ref());
        }
    }
}
