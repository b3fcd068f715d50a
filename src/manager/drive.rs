//! The drivers' loops: the progress thread and callers that block. Who drives and who sleeps is decided in `wheel`; how
//! long a driver spins, in `spin` (counted in `rounds`); the callbacks are run in `deliver`.

mod rounds;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rounds::{LOOK_EVERY, Pause, Rounds};

use super::copies::Copy;
use super::lent::Queues;
use super::lock::{Locked, Platform, Sitting, sleep};
use super::seam::Seam;
use super::slice::Slice;
use super::spin::Spin;
use super::sys::Tag;
use super::waiter::{Caller, Waiter};
use super::waits::{Counts, Taken};
use super::{Manager, inside};
use crate::limits::POLL_EVENTS;
use crate::log;
use crate::thread::Thread;

/// State of the drivers that is asked for without the lock.
pub struct Drivers {
    /// Callbacks that are running, and have run.
    pub(super) callbacks: Counts,
    /// Deliveries under way that claim no memory; see `copies`.
    pub unclaimed: AtomicUsize,
    /// Callers of `rdma_mgr_wait`: they are woken when a callback ran on another thread.
    pub waits: AtomicUsize,
    /// The world lends them.
    pub(super) queues: Arc<Queues>,
    /// The manager ends.
    pub closing: AtomicBool,
}

impl Drivers {
    pub(super) fn new(queues: Arc<Queues>) -> Drivers {
        Drivers {
            callbacks: Counts::default(),
            unclaimed: AtomicUsize::new(0),
            waits: AtomicUsize::new(0),
            queues,
            closing: AtomicBool::new(false),
        }
    }
}

/// So often in a row may something be due at once.
const RESTLESS: u32 = 8;
/// Longest sleep of a caller; it looks whether the manager ends.
const CALLER_SLEEP: Duration = Duration::from_secs(1);
/// A queued caller that hears nothing looks so often: whoever holds the seat may be kept by a callback, and then it drives.
const QUEUED: Duration = Duration::from_millis(100);
/// A driver that stands in looks so often whether it still has to.
const STAND_BY: Duration = Duration::from_millis(50);
/// Pause after a panic, a defect of the library: one that comes back must not fill the log.
const AFTER_PANIC: Duration = Duration::from_millis(100);

impl Manager {
    /// One turn and its callbacks; the number of events.
    pub(super) fn turn(&self) -> u32 {
        let thread = Thread::this();
        let _log = log::Deferred::on(thread);
        self.turn_on(thread)
    }

    /// The same on this thread, whose log messages wait already.
    #[inline(always)]
    pub(super) fn turn_on(&self, thread: Thread) -> u32 {
        self.turn_locked(self.core.lock_on(thread), thread)
    }

    /// The progress thread's turn; `None`: a caller drives, and the thread has parked for a while.
    fn thread_turn(&self) -> Option<u32> {
        let thread = Thread::this();
        let _log = log::Deferred::on(thread);
        let mut core = self.core.lock();
        core.thread_drives()?;
        Some(self.turn_locked(core, thread))
    }

    #[inline(always)]
    pub(super) fn turn_locked<'a>(&'a self, core: Locked<'a, Seam>, thread: Thread) -> u32 {
        self.turn_before(core, thread, |_| {})
    }

    /// The same, and `before` callbacks and copies, if there are any.
    #[inline(always)]
    pub(super) fn turn_before<'a>(
        &'a self,
        mut core: Locked<'a, Seam>,
        thread: Thread,
        before: impl FnOnce(&mut Locked<'a, Seam>),
    ) -> u32 {
        core.turns = core.turns.wrapping_add(1);
        let mut count = match core.turn_short(thread, 1, POLL_EVENTS as u32) {
            Some(count) => count,
            None => {
                let (held, count) = self.turn_long(core, thread);
                core = held;
                count
            }
        };
        // What needs no callback: a connection that is there, for who waits for one on another thread.
        self.tell_news(&mut core, thread);
        // Most turns find nothing.
        if !core.leaves_something() {
            return count;
        }
        before(&mut core);
        self.complete(core, &mut count, thread);
        count
    }

    /// The rest of a turn, without the lock: copies, then callbacks. The lock, if it is held when that is done.
    #[inline(never)]
    pub(super) fn complete<'a>(
        &'a self,
        mut core: Locked<'a, Seam>,
        count: &mut u32,
        thread: Thread,
    ) -> Option<Locked<'a, Seam>> {
        if core.copies_wait() {
            core = self.make_copies(core, count, thread);
            self.tell_news(&mut core, thread);
        }
        if !core.world.has_work() {
            return Some(core);
        }
        let Some(mut batch) = core.world.take_work(&self.drivers.queues) else {
            *count += self.complete_one(core, thread);
            return None;
        };
        let (len, ended) = (batch.works.len(), batch.works.ended().len());
        *count += (len + ended) as u32;
        let mut taken = Taken::count(&self.drivers.callbacks, len, &mut core);
        drop(core);
        let left = batch.deliveries.are_left();
        if batch.has_deliveries() {
            self.may_be_kept(|| batch.deliver());
        }
        if ended > 0 || left {
            let mut core = self.core.lock_on(thread);
            if left {
                core.world.let_go_of_left();
            }
            self.tell_ended(&mut core, batch.works.ended(), thread);
            if len == 0 {
                return Some(core);
            }
        }
        batch.works.iter_mut().for_each(|work| self.run(work, &mut taken, thread));
        if taken.are_quiet() {
            drop(taken);
            self.tell_others();
        }
        None
    }

    /// Copies, until there are no more, or enough for one turn.
    #[inline(never)]
    fn make_copies<'a>(
        &'a self,
        mut core: Locked<'a, Seam>,
        count: &mut u32,
        thread: Thread,
    ) -> Locked<'a, Seam> {
        core.begin_copies();
        while let Some(copy) = core.next_copy() {
            drop(core);
            match copy {
                Copy::Move(kind, copy) => {
                    let done = self.may_be_kept(|| copy.run());
                    core = self.core.lock();
                    *count += core.copied(kind, done);
                }
                Copy::Job(mut job) => {
                    self.may_be_kept(|| self.run_job(&mut job, thread));
                    core = self.core.lock();
                    *count += 1;
                }
            }
        }
        core
    }

    /// Runs one callback, where there is no queue to take more; how many it was.
    #[cold]
    fn complete_one<'a>(&'a self, mut core: Locked<'a, Seam>, thread: Thread) -> u32 {
        let deliveries = core.world.take_deliveries(&self.drivers.unclaimed);
        // What remains may be run by others at once: what is to be in place before it is put there now.
        deliveries.iter().for_each(|d| d.make());
        // The callback may have it that the memory is touched by nobody.
        drop(deliveries);
        let all = core.world.batch.works.take_ended();
        self.tell_ended(&mut core, &all, thread);
        let ended = all.len() as u32;
        core.world.batch.works.keep_room(all);
        let Some(mut one) = core.world.batch.works.pop_first() else { return ended };
        let mut taken = Taken::count(&self.drivers.callbacks, 1, &mut core);
        drop(core);
        self.run(&mut one, &mut taken, thread);
        ended + 1
    }

    /// Whoever drives, `None` the progress thread, sleeps until something happens, `limit` at most. False: something is
    /// there, or another drives.
    fn sleep(&self, who: Option<&Caller>, limit: Duration) -> bool {
        let _log = log::Deferred::new();
        let closing = &self.drivers.closing;
        sleep(
            &self.core,
            who,
            |core| {
                core.world.tick();
                core.whole = true;
                let (until, mut timeout) = core.idle_until();
                core.restless = if timeout.is_zero() { core.restless + 1 } else { 0 };
                if core.restless > RESTLESS {
                    // Something is due that turns do not see to, a defect: it must not take a processor.
                    timeout = LOOK_EVERY;
                }
                let go = !(timeout.is_zero() || closing.load(Ordering::SeqCst));
                let end = core.world.clock.now().saturating_add(limit.as_nanos() as u64);
                go.then_some((until.min(end), timeout.min(limit)))
            },
            |core, tags| self.hear_tags(core, &tags),
        )
    }

    /// A driver looks at the descriptors without waiting. What the application waits for on its own is left alone.
    fn look(&self) {
        let tags = self.core.wait(Duration::ZERO);
        self.take_tags(&tags);
    }

    /// The application looks, who waits on its descriptor.
    pub(super) fn look_watched(&self) {
        let tags = self.core.unwatch();
        self.take_tags(&tags);
    }

    fn take_tags(&self, tags: &[Tag]) {
        if !tags.is_empty() {
            let _log = log::Deferred::new();
            self.hear_tags(&mut self.core.lock(), tags);
        }
    }

    /// What is ready may be the end of a peer, before which all is heard that has come of it. Whoever drives now hears of that, too:
    /// it is not always this thread, and what was heard wakes nobody else any more.
    fn hear_tags(&self, core: &mut Locked<'_, Seam>, tags: &[Tag]) {
        core.take_tags(tags);
        self.tell_news(core, Thread::this());
    }

    /// The progress thread. A panic, a defect, must not leave the manager without one.
    pub(super) fn progress_thread_lasting(&self) {
        while catch_unwind(AssertUnwindSafe(|| self.progress_thread())).is_err() {
            log::error(format_args!(
                "caught a panic on the progress thread, a defect of the library"
            ));
            std::thread::sleep(AFTER_PANIC);
        }
        self.core.lock().wheel().thread_ended();
    }

    fn progress_thread(&self) {
        inside::begin_to_drive(self);
        let mut spin = self.new_spin();
        let mut rounds = Rounds::new(&mut spin);
        let mut slice = Slice::default();
        while !self.drivers.closing.load(Ordering::Acquire) {
            match self.thread_turn() {
                Some(0) => {}
                Some(events) => {
                    slice.found(events);
                    rounds.found();
                    continue;
                }
                None => {
                    rounds.idle = 0;
                    continue;
                }
            }
            match rounds.nothing().0 {
                Pause::None => {}
                Pause::Look => self.look(),
                Pause::Sleep => {
                    self.sleep(None, Duration::from_secs(3600));
                    rounds.slept();
                }
            }
        }
    }

    /// Blocks until the waiter's result is there or `done` says so: drives, or waits for the caller that does. `done` is
    /// asked without any lock held. False: the time is over.
    pub(super) fn block(
        &self,
        waiter: &Arc<Waiter>,
        limit: Option<Duration>,
        mut done: impl FnMut() -> bool,
    ) -> bool {
        waiter.is_ready()
            || done()
            || self.glance(waiter, limit, &mut done)
            || self.block_or_stand_in(waiter, limit, done, false)
    }

    /// The same. Where the manager ends meanwhile it is waited for what that ends: the operation's memory is the library's until then.
    pub(super) fn block_to_the_end(
        &self,
        waiter: &Arc<Waiter>,
        limit: Option<Duration>,
        mut done: impl FnMut() -> bool,
    ) -> bool {
        self.block(waiter, limit, &mut done) || self.is_closing() && self.block(waiter, None, done)
    }

    fn block_or_stand_in(
        &self,
        waiter: &Arc<Waiter>,
        limit: Option<Duration>,
        mut done: impl FnMut() -> bool,
        stand_in: bool,
    ) -> bool {
        let deadline = limit.and_then(|l| Instant::now().checked_add(l));
        let caller = Caller(waiter.clone());
        waiter.is_here();
        let sitting = Sitting::new(&self.core, caller.clone());
        loop {
            if waiter.is_ready() || done() {
                return true;
            }
            if sitting.sit(stand_in) {
                match self.drive(&caller, deadline, &mut done) {
                    Some(ended) => return ended,
                    // Another stood in meanwhile, and drives.
                    None => continue,
                }
            }
            // It is told of what happens from now on, not of what happened before it was queued.
            if waiter.is_ready() || done() {
                return true;
            }
            let left = deadline.map_or(QUEUED, |at| at.saturating_duration_since(Instant::now()));
            let nudged = waiter.wait(left.min(QUEUED));
            if left.is_zero() {
                return waiter.is_ready() || done();
            }
            if !nudged {
                self.free_seat_of_the_dead();
            }
        }
    }

    /// Blocks until the waiter's result is there, whatever happens: its operation owns the caller's memory until then.
    pub(super) fn block_until_ready(&self, waiter: &Arc<Waiter>) {
        let block = || self.block(waiter, None, || false);
        Manager::blocking(waiter, || {
            while !waiter.is_ready() {
                if catch_unwind(AssertUnwindSafe(block)).is_err() {
                    log::error(format_args!(
                        "caught a panic in a blocking call, a defect of the library"
                    ));
                    std::thread::sleep(AFTER_PANIC);
                }
            }
        });
    }

    /// Drives until `done` says so, where nobody waits for a result.
    pub(super) fn drive_guarded(&self, waiter: &Arc<Waiter>, done: impl Fn() -> bool) {
        while !done() {
            if catch_unwind(AssertUnwindSafe(|| {
                self.block_or_stand_in(waiter, Some(STAND_BY), &done, true)
            }))
            .is_err()
            {
                log::error(format_args!("caught a panic in a driver, a defect of the library"));
                std::thread::sleep(AFTER_PANIC);
            }
        }
    }

    /// The caller holds the seat. `None`: it has lost it.
    fn drive(
        &self,
        caller: &Caller,
        deadline: Option<Instant>,
        mut done: impl FnMut() -> bool,
    ) -> Option<bool> {
        // Free but where another stood in for its holder.
        let mut shared = self.caller_spin.try_lock();
        let mut own = shared.is_none().then(|| self.new_spin());
        let spin = shared.as_deref_mut().or(own.as_mut())?;
        let mut rounds = Rounds::new(spin);
        loop {
            let count = self.turn();
            if count > 0 {
                rounds.found();
            }
            if caller.0.is_ready() || done() {
                return Some(true);
            }
            if count > 0 {
                // Events that are not the caller's must not keep it beyond its time.
                if deadline.is_some_and(|at| Instant::now() >= at) {
                    return Some(false);
                }
                continue;
            }
            let (pause, Some(now)) = rounds.nothing() else { continue };
            self.glances_pay(rounds.spin);
            let closing = self.drivers.closing.load(Ordering::Acquire);
            if deadline.is_some_and(|at| now >= at) || closing && deadline.is_some() {
                return Some(false);
            }
            match pause {
                // The manager's end is about to end what this waits for.
                _ if closing => std::thread::yield_now(),
                Pause::None => {}
                Pause::Look => self.look(),
                Pause::Sleep => {
                    let left = deadline.map_or(CALLER_SLEEP, |at| at - now);
                    if !self.sleep(Some(caller), left.min(CALLER_SLEEP))
                        && !self.core.lock().wheel().holds(caller)
                    {
                        return None;
                    }
                    rounds.slept();
                    self.glances_pay(rounds.spin);
                }
            }
        }
    }

    /// Whether a caller glances: while spinning pays, and nobody else wants its processor.
    fn glances_pay(&self, spin: &Spin) {
        let pay = spin.is_on() && !spin.offers();
        if self.spins.load(Ordering::Relaxed) != pay {
            self.spins.store(pay, Ordering::Relaxed);
        }
    }

    fn new_spin(&self) -> Spin {
        Spin::new(Duration::from_micros(self.config.busy_poll_us), super::processors())
    }

    /// Wakes whoever sleeps, at the end.
    pub(super) fn wake_all(&self) {
        self.drivers.closing.store(true, Ordering::SeqCst);
        self.core.lock().wake_all();
    }
}

#[cfg(test)]
mod tests;
