//! For how long a manager has nothing to do but wait for an event: what its sleepers and its timers go by.

use std::time::{Duration, Instant};

use super::core::Core;
use super::wheel::Ground;
use crate::log;

/// Longest sleep while lines of the log were left out and not counted yet.
const TELL: Duration = Duration::from_secs(1);
/// Longest sleep while something waits for room in a queue.
const RETRY: Duration = Duration::from_millis(1);
impl Core {
    /// How long nothing but an event can be due.
    pub(super) fn idle_time(&self) -> Duration {
        let elapsed = self.world.clock.start().elapsed();
        let tick = match self.engine.next_tick() {
            u64::MAX => Duration::from_secs(60),
            at => Duration::from_nanos(at).saturating_sub(elapsed),
        };
        let now = Instant::now();
        let until = |at: Instant| at.saturating_duration_since(now);
        let boot = self.boot.next_deadline().map(until);
        let dials = self.world.routes.next_try().map(until);
        let retry = self.engine.has_pending() || self.world.waits_for_copies();
        let retry = retry.then_some(RETRY);
        let trim = self.world.trim_due(now);
        let untold = log::owes().then_some(TELL);
        let all = [boot, dials, retry, trim, untold, self.doubt_ends()];
        all.into_iter().flatten().fold(tick, Duration::min)
    }

    /// Until when nothing but an event can be due, in nanoseconds, and how long that is.
    pub fn idle_until(&mut self) -> (u64, Duration) {
        self.world.tick();
        // Before it is asked when the next is due: who does not sleep would else never come to it.
        self.world.trim_pool();
        let idle = self.idle_time();
        (self.world.clock.now().saturating_add(idle.as_nanos() as u64), idle)
    }
}

impl Ground for Core {
    fn due(&mut self) -> bool {
        self.world.has_work() || self.copies_wait() || std::mem::take(&mut self.timed)
    }

    fn next(&self) -> u64 {
        let retry = match self.world.full {
            true => self.world.clock.now().saturating_add(RETRY.as_nanos() as u64),
            false => u64::MAX,
        };
        self.engine.next_tick().min(self.next_dial()).min(retry)
    }

    fn arm(&mut self) -> bool {
        // Every adapter is armed, so that none misses its wake-up because of another.
        let idle = self.world.adapters.iter_mut().flatten().filter_map(|a| a.arm().then_some(()));
        self.armed = idle.count() == self.world.adapters.iter().flatten().count();
        self.armed
    }

    fn armed(&self) -> bool {
        self.armed
    }

    fn now(&mut self) -> u64 {
        self.world.tick();
        self.world.clock.now()
    }

    fn turns(&self) -> u32 {
        self.turns
    }
}
