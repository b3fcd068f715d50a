//! How much memory a pool keeps that nobody uses.
//!
//! Getting memory from the system costs as much as filling it, or more: who allocates, fills and frees
//! again and again should pay once. So as much is kept as was in use lately, and half as much after each
//! [`HALF_LIFE`] in which the use did not come back to it.

use std::time::{Duration, Instant};

/// So much may be kept for ever.
pub(super) const ALWAYS: usize = 16 << 20;
/// After this time without use half of it counts.
pub(super) const HALF_LIFE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Spare {
    /// The most that was in use, faded.
    recent: usize,
    /// When it was in use, or faded last.
    since: Instant,
    /// Until then nothing can be given back.
    rests: Option<Instant>,
}

impl Default for Spare {
    fn default() -> Spare {
        Spare { recent: 0, since: Instant::now(), rests: None }
    }
}

impl Spare {
    /// So much is in use now, after an allocation.
    pub(super) fn see_use(&mut self, used: usize) {
        if used >= self.recent {
            self.recent = used;
            self.since = Instant::now();
        }
    }

    /// What may be kept beside `used`.
    fn allowed(&self, used: usize) -> usize {
        self.recent.saturating_sub(used).max(ALWAYS)
    }

    /// Bytes that are to be given back now.
    pub(super) fn excess(&mut self, now: Instant, held: usize, used: usize) -> usize {
        while self.recent > used && now.saturating_duration_since(self.since) >= HALF_LIFE {
            self.recent = (self.recent / 2).max(used);
            self.since += HALF_LIFE;
        }
        if self.rests.is_some_and(|end| now < end) {
            return 0;
        }
        held.saturating_sub(used).saturating_sub(self.allowed(used))
    }

    /// When there may be some to give back.
    pub(super) fn due(&self, held: usize, used: usize) -> Instant {
        let now = held.saturating_sub(used) > self.allowed(used);
        let due = if now { self.since } else { self.since + HALF_LIFE };
        self.rests.map_or(due, |end| due.max(end))
    }

    /// There was less to give back than should be: it is tried again after a while.
    pub(super) fn rest(&mut self, now: Instant) {
        self.rests = Some(now + HALF_LIFE);
    }
}
