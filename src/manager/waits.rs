//! Waiting for more than one operation, being woken, and what the application is told.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::*;
use crate::engine::{Fx, Hooks};
use crate::observe::Args;

/// Calls of `wake`. One that finds nobody waiting ends the next wait.
#[derive(Default)]
pub(super) struct Wakes {
    count: AtomicU64,
    /// Those that have ended a wait.
    spent: AtomicU64,
}

impl Wakes {
    /// What a wait that begins now has to see exceeded.
    pub(super) fn begin(&self) -> u64 {
        self.spent.load(Ordering::SeqCst)
    }

    /// Whether a wait that began so is woken.
    pub(super) fn came(&self, begun: u64) -> bool {
        let count = self.count.load(Ordering::SeqCst);
        if count == begun {
            return false;
        }
        self.spent.fetch_max(count, Ordering::SeqCst);
        true
    }
}

/// Callbacks taken from the queue that have not all returned.
pub(super) struct Taken<'a>(&'a AtomicUsize);

impl<'a> Taken<'a> {
    /// To be made with the manager's lock held, so that they are never neither queued nor counted.
    pub(super) fn count(running: &'a AtomicUsize) -> Taken<'a> {
        running.fetch_add(1, Ordering::AcqRel);
        Taken(running)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Manager {
    /// Ends every `wait` under way, or else the next one.
    pub fn wake(&self) -> Result<(), Status> {
        self.wakes.count.fetch_add(1, Ordering::SeqCst);
        self.call(|core| {
            core.engine.poke();
            // What is queued keeps a driver from falling asleep, and wakes one that sleeps.
            core.world.run(Work::Call(Box::new(|| {})));
        });
        Ok(())
    }

    /// Turns until nothing is under way with this peer, or with anybody, and every callback has returned.
    pub fn flush(&self, peer: Option<&str>, timeout: Duration) -> Result<(), Status> {
        self.refuse_inside("rdma_mgr_flush")?;
        let own = peer.is_some_and(|p| *p == *self.core.lock().engine.name);
        let index = match peer {
            Some(name) if !own => Some(self.core.lock().peer(name)?),
            _ => None,
        };
        let waiter = Arc::new(Waiter::default());
        let idle = || {
            let core = self.core.lock();
            core.engine.under_way_with(index) == 0
                && core.world.work.is_empty()
                && self.drivers.running.load(Ordering::Acquire) == 0
        };
        if self.block(&waiter, Some(timeout), idle) {
            return Ok(());
        }
        self.refuse_closing()?;
        let left = self.core.lock().engine.under_way_with(index);
        let with = peer.map_or_else(String::new, |p| format!(" with peer '{p}'"));
        let text = format!("{left} operations{with} are under way after {}", seconds(timeout));
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
