//! Who turns the manager, and when it sleeps.
//!
//! One thread at a time turns it: the progress thread, or a caller that blocks (`rdma_recv`,
//! `rdma_mgr_connect`, `rdma_mgr_wait`), which so saves the wake-up of another thread. While callers
//! turn it, the progress thread stays out of the way; it comes back at most half a millisecond after
//! the last caller that only span has left, and at once after one that slept. A turner spins for
//! the busy-poll time after the last event, then arms the adapters and sleeps on the epoll set.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::{Manager, inside};
use crate::engine::{Held, Work};
use crate::log;
use crate::status::{Code, Status};

/// State of the drivers.
#[derive(Default)]
pub struct Drivers {
    /// Callers that block.
    callers: AtomicUsize,
    /// Counts calls that turned the manager.
    epoch: AtomicU64,
    /// The progress thread waits here while callers turn.
    parked: Mutex<bool>,
    unpark: Condvar,
    /// Held by the caller that turns; other callers wait for their results.
    leading: Mutex<()>,
    followers: Mutex<VecDeque<Arc<Waiter>>>,
    /// Drivers that sleep on the epoll set, or are about to.
    sleepers: AtomicUsize,
    /// Until when the last of them sleeps (nanoseconds since the manager's start).
    pub sleeps_until: AtomicU64,
    /// The progress thread is among them.
    thread_sleeps: AtomicBool,
    /// Callbacks that are running.
    pub running: AtomicUsize,
    /// The manager ends.
    pub closing: AtomicBool,
    /// The application sleeps on the epoll set, which `progress` has armed.
    pub fd_armed: AtomicBool,
}

/// One blocked caller.
#[derive(Default)]
pub struct Waiter {
    ready: AtomicBool,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Waiter {
    /// Its result is there, or it is to lead.
    pub fn notify(&self, ready: bool) {
        if ready {
            self.ready.store(true, Ordering::Release);
        }
        let _guard = self.lock.lock();
        self.wake.notify_one();
    }

    fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    fn wait(&self, timeout: Duration) {
        let mut guard = self.lock.lock();
        if !self.is_ready() {
            self.wake.wait_for(&mut guard, timeout);
        }
    }
}

/// A callback of this manager runs on this thread.
struct Inside<'a>(&'a Manager, #[expect(dead_code, reason = "a guard")] inside::Inside);

impl Inside<'_> {
    fn enter(manager: &Manager) -> Inside<'_> {
        manager.drivers.running.fetch_add(1, Ordering::AcqRel);
        Inside(manager, inside::Inside::enter(manager))
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.drivers.running.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Longest that the progress thread leaves turning to callers that have gone.
const HYSTERESIS: Duration = Duration::from_micros(500);
/// Longest park while a caller is inside.
const LONG_PARK: Duration = Duration::from_millis(10);
/// A caller that follows looks so often whether somebody still leads.
const FOLLOW: Duration = Duration::from_millis(5);

impl Manager {
    /// Whether this thread is inside a callback of this manager.
    pub(super) fn inside_callback(&self) -> bool {
        inside::contains(self)
    }

    pub(super) fn refuse_inside(&self, what: &str) -> Result<(), Status> {
        if self.inside_callback() {
            let text = format!("{what} was called inside a callback of the same manager");
            return Err(Status::new(Code::FailedPrecondition, text));
        }
        Ok(())
    }

    /// One turn and its callbacks; the number of events.
    pub(super) fn turn(&self) -> u32 {
        let _log = log::Deferred::new();
        let mut core = self.core.lock();
        let mut count = core.turn();
        while let Some((kind, copy)) = core.next_copy() {
            drop(core);
            let done = copy.run();
            core = self.core.lock();
            count += core.copied(kind, done);
        }
        if core.world.work.is_empty() {
            return count;
        }
        let batch = std::mem::take(&mut core.world.work);
        let _taken = super::Taken::count(&self.drivers.running);
        drop(core);
        count + self.run_all(batch)
    }

    /// Runs callbacks, and those that they cause, without the lock.
    pub(super) fn run_all(&self, mut batch: VecDeque<Work>) -> u32 {
        let mut count = 0;
        while let Some(work) = batch.pop_front() {
            count += 1;
            self.run(work);
        }
        count
    }

    /// Runs one callback. A panic in it, a defect, does not keep the others from running.
    pub(super) fn run(&self, work: Work) {
        let _inside = Inside::enter(self);
        if catch_unwind(AssertUnwindSafe(|| self.run_inside(work))).is_err() {
            log::error(format_args!("caught a panic in a callback, a defect of the library"));
        }
    }

    fn run_inside(&self, work: Work) {
        match work {
            Work::RecvDone { key, step, done, result, info, mut after, request, keep, .. } => {
                self.trace_recv(request, &key, step, &result, &info);
                if let Some(done) = done {
                    done(result.as_ref().map_err(Status::clone), &info);
                }
                if keep {
                    after = self.core.lock().engine.returned(request, after);
                }
                self.give_back(after);
            }
            Work::SendDone { done, result, info, of, .. } => {
                self.trace_send(of.as_ref(), &result, &info);
                done(result, &info);
            }
            Work::Alloc { request, mut alloc, meta, .. } => {
                let addr = alloc(&meta);
                let mut guard = self.core.lock();
                let core = &mut *guard;
                core.world.tick();
                core.engine.allocated(&mut core.world, request, alloc, addr);
                core.finish();
                // Inside a caller nobody else looks at what this caused, be it a dial.
                let queued = core.needs_driver();
                drop(guard);
                if queued {
                    self.kick();
                }
            }
            Work::Source { source, response, peer, key, step } => {
                self.ask_source(&source, response, &peer, &key, step)
            }
            Work::Call(call) => call(),
            Work::PeerEvents => self.tell_of_peers(),
            Work::HostCopy { token, dst, src, len } => {
                let begun = self.core.lock().engine.copy_begins(token);
                if begun.is_ok() {
                    // SAFETY: the engine asks for copies between memory that it holds until `copied`.
                    unsafe { super::sys::copy(dst, src, len) };
                }
                self.copied(token, begun);
            }
            Work::DeviceCopy { token, ops, to_host, host, device, len } => {
                let begun = self.core.lock().engine.copy_begins(token);
                if begun.is_err() {
                    return self.copied(token, begun);
                }
                // The copy may end on any thread, and after this manager's other callbacks.
                let manager = self.me.clone();
                let done = Box::new(move |result| {
                    if let Some(manager) = manager.upgrade() {
                        manager.copied(token, result);
                        manager.kick();
                    }
                });
                if to_host {
                    ops.copy_to_host(host, device, len, done);
                } else {
                    ops.copy_from_host(device, host, len, done);
                }
            }
        }
    }

    fn copied(&self, token: u64, result: Result<(), Status>) {
        let mut guard = self.core.lock();
        let core = &mut *guard;
        core.world.tick();
        core.engine.copied(&mut core.world, token, result);
        core.finish();
        let queued = core.needs_driver();
        drop(guard);
        if queued {
            self.kick();
        }
    }

    /// Gives back what a finished receive held.
    pub(super) fn give_back(&self, held: Held) {
        match held {
            Held::Nothing => {}
            Held::Buffer(buffer) => {
                use crate::engine::Fx;
                self.core.lock().world.free(buffer);
            }
            Held::Source(done, info) => {
                if let Some(done) = done {
                    let _inside = Inside::enter(self);
                    done(Ok(()), &info);
                }
            }
        }
    }

    /// After a call queued work or set an earlier deadline: wakes a driver that sleeps.
    pub(super) fn kick(&self) {
        let d = &self.drivers;
        let on_fd = d.fd_armed.load(Ordering::SeqCst) && d.fd_armed.swap(false, Ordering::SeqCst);
        if on_fd || d.sleepers.load(Ordering::SeqCst) > 0 {
            self.wake.signal();
        } else if d.callers.load(Ordering::SeqCst) == 0 && *d.parked.lock() {
            d.unpark.notify_one();
        }
    }

    /// The same, only if the deadline is earlier than the sleeper's.
    pub(super) fn kick_for(&self, deadline: u64) {
        let d = &self.drivers;
        let asleep = d.sleepers.load(Ordering::SeqCst) > 0 || d.fd_armed.load(Ordering::SeqCst);
        if asleep && deadline < d.sleeps_until.load(Ordering::SeqCst) {
            self.kick();
        }
    }

    /// Sleeps until something happens, `limit` at most. Returns at once if something is there.
    fn sleep(&self, limit: Duration) {
        let mut tags = Vec::new();
        let d = &self.drivers;
        // Counted before arming: a call that comes in between sees a sleeper and wakes it.
        d.sleepers.fetch_add(1, Ordering::SeqCst);
        let timeout;
        {
            let mut core = self.core.lock();
            core.world.tick();
            core.whole = true;
            timeout = core.idle_time().min(limit);
            let until = core.world.clock.now().saturating_add(timeout.as_nanos() as u64);
            d.sleeps_until.store(until, Ordering::SeqCst);
            if !core.arm() || timeout.is_zero() || d.closing.load(Ordering::SeqCst) {
                d.sleepers.fetch_sub(1, Ordering::SeqCst);
                return;
            }
        }
        self.epoll().wait(timeout, &mut tags);
        d.sleepers.fetch_sub(1, Ordering::SeqCst);
        self.take_tags(&tags);
    }

    /// After turns beside a sleeping progress thread, or an application that sleeps on the
    /// descriptor: what they disarmed is armed again.
    pub(super) fn rearm(&self) {
        let d = &self.drivers;
        if d.fd_armed.load(Ordering::SeqCst) {
            self.arm_fd();
        } else if d.thread_sleeps.load(Ordering::SeqCst) && !self.core.lock().arm() {
            self.wake.signal();
        }
    }

    /// Looks at the epoll set without waiting.
    pub(super) fn look(&self) {
        let mut tags = Vec::new();
        self.epoll().wait(Duration::ZERO, &mut tags);
        self.take_tags(&tags);
    }

    fn take_tags(&self, tags: &[super::sys::Tag]) {
        if !tags.is_empty() {
            let _log = log::Deferred::new();
            self.wake.drain();
            let mut core = self.core.lock();
            core.on_tags(tags);
            core.finish();
        }
    }

    /// The progress thread. A panic, a defect, must not leave the manager without one.
    pub(super) fn progress_thread_lasting(&self) {
        inside::begin_to_drive(self);
        while catch_unwind(AssertUnwindSafe(|| self.progress_thread())).is_err() {
            log::error(format_args!(
                "caught a panic on the progress thread, a defect of the library"
            ));
            self.drivers.thread_sleeps.store(false, Ordering::SeqCst);
            // One that comes back must not fill the log.
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn progress_thread(&self) {
        let d = &self.drivers;
        let spin = Duration::from_micros(self.busy_poll_us);
        let mut active = Instant::now();
        let mut epoch = 0;
        let mut looked = Instant::now();
        while !d.closing.load(Ordering::Acquire) {
            let callers = d.callers.load(Ordering::Acquire);
            let now_epoch = d.epoch.load(Ordering::Acquire);
            if callers > 0 || now_epoch != epoch {
                epoch = now_epoch;
                let mut parked = d.parked.lock();
                *parked = true;
                let limit = if callers > 0 { LONG_PARK } else { HYSTERESIS };
                d.unpark.wait_for(&mut parked, limit);
                *parked = false;
                continue;
            }
            if self.turn() > 0 {
                active = Instant::now();
                continue;
            }
            let now = Instant::now();
            if now - looked > Duration::from_millis(1) {
                looked = now;
                self.look();
            }
            if now - active < spin {
                std::hint::spin_loop();
                continue;
            }
            d.thread_sleeps.store(true, Ordering::SeqCst);
            // A caller that came in before the store did not see it: do not sleep beside it.
            if d.callers.load(Ordering::SeqCst) == 0 && d.epoch.load(Ordering::SeqCst) == epoch {
                self.sleep(Duration::from_secs(3600));
            }
            d.thread_sleeps.store(false, Ordering::SeqCst);
        }
    }

    /// Blocks until `done` says so: turns the manager, or waits for the caller that does. `done`
    /// is asked without any lock held. False: the time is over.
    pub(super) fn block(
        &self,
        waiter: &Arc<Waiter>,
        limit: Option<Duration>,
        mut done: impl FnMut() -> bool,
    ) -> bool {
        let d = &self.drivers;
        let deadline = limit.map(|l| Instant::now() + l);
        let over = |now: Instant| deadline.is_some_and(|at| now >= at);
        d.callers.fetch_add(1, Ordering::SeqCst);
        if d.thread_sleeps.load(Ordering::SeqCst) {
            // It parks instead: asleep it would not notice that this caller disarmed the adapters.
            self.wake.signal();
        }
        let mut slept = false;
        let mut ended = true;
        'turns: while !(waiter.is_ready() || done()) {
            let Some(_lead) = d.leading.try_lock() else {
                d.followers.lock().push_back(waiter.clone());
                waiter.wait(FOLLOW);
                d.followers.lock().retain(|w| !Arc::ptr_eq(w, waiter));
                if over(Instant::now()) {
                    ended = waiter.is_ready() || done();
                    break;
                }
                continue;
            };
            let spin = Duration::from_micros(self.busy_poll_us);
            let mut active = Instant::now();
            let mut looked = active;
            let mut idle = 0u32;
            loop {
                let count = self.turn();
                if waiter.is_ready() || done() {
                    break 'turns;
                }
                if count > 0 {
                    idle = 0;
                    active = Instant::now();
                    continue;
                }
                idle += 1;
                // The clock is read only now and then: it costs as much as a poll.
                if idle & 15 != 0 {
                    std::hint::spin_loop();
                    continue;
                }
                let now = Instant::now();
                let closing = d.closing.load(Ordering::Acquire);
                if over(now) || closing && deadline.is_some() {
                    ended = false;
                    break 'turns;
                }
                if closing {
                    // The manager's end is about to end what this waits for.
                    std::thread::yield_now();
                    continue;
                }
                if now - looked > Duration::from_millis(1) {
                    looked = now;
                    self.look();
                }
                if now - active >= spin {
                    slept = true;
                    let left = deadline.map_or(Duration::from_secs(1), |at| at - now);
                    self.sleep(left.min(Duration::from_secs(1)));
                    active = Instant::now();
                }
            }
        }
        d.epoch.fetch_add(1, Ordering::SeqCst);
        self.rearm();
        let others = d.callers.fetch_sub(1, Ordering::SeqCst) > 1;
        if others && let Some(next) = d.followers.lock().pop_front() {
            next.notify(false);
        } else if slept && *d.parked.lock() {
            d.unpark.notify_one();
        }
        ended
    }

    /// Wakes whoever sleeps, at the end.
    pub(super) fn wake_all(&self) {
        self.drivers.closing.store(true, Ordering::SeqCst);
        self.wake.signal();
        let _parked = self.drivers.parked.lock();
        self.drivers.unpark.notify_all();
    }
}
