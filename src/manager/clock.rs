//! The manager's clock. Reading the system's costs as much as polling an adapter, so between two real
//! readings the processor's tick counter interpolates.

use std::time::Instant;

use crate::os::ticks;

/// Ticks after which the system's clock is read again: well under a millisecond.
const REBASE: u64 = 1 << 20;
/// Bits of a nanosecond's fraction.
const SHIFT: u32 = 32;

/// Nanoseconds since its start; never goes back.
#[derive(Debug)]
pub struct Clock {
    start: Instant,
    base: u64,
    base_ticks: u64,
    /// Nanoseconds per tick, times 2 to the power of [`SHIFT`]; 0 while unknown.
    scale: u64,
    now: u64,
}

impl Clock {
    /// Starts at zero.
    pub fn new() -> Clock {
        Clock { start: Instant::now(), base: 0, base_ticks: ticks(), scale: 0, now: 0 }
    }

    /// Time zero.
    pub fn start(&self) -> Instant {
        self.start
    }

    /// The time of the last `read`.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Reads the time.
    #[inline]
    pub fn read(&mut self) -> u64 {
        let ticks = ticks();
        // On a machine whose counters differ between cores this may wrap: then it is large.
        let passed = ticks.wrapping_sub(self.base_ticks);
        let at = if self.scale > 0 && passed < REBASE {
            self.base + ((passed * self.scale) >> SHIFT)
        } else {
            self.rebase(ticks, passed)
        };
        self.now = self.now.max(at);
        self.now
    }

    /// Reads the system's clock.
    #[cold]
    fn rebase(&mut self, ticks: u64, passed: u64) -> u64 {
        let real = self.start.elapsed().as_nanos() as u64;
        let plausible = (REBASE / 8..1 << 44).contains(&passed);
        let scale = (u128::from(real - self.base) << SHIFT) / u128::from(passed.max(1));
        // Small enough for what is multiplied with it.
        self.scale = u64::try_from(scale).ok().filter(|&s| plausible && s < 1 << 43).unwrap_or(0);
        if plausible || passed >= 1 << 44 {
            (self.base, self.base_ticks) = (real, ticks);
        }
        real
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn follows_the_system_and_never_goes_back() {
        let mut clock = Clock::new();
        let mut last = 0;
        let end = Instant::now() + Duration::from_millis(20);
        while Instant::now() < end {
            let low = clock.start().elapsed();
            let now = clock.read();
            let high = clock.start().elapsed();
            assert!(now >= last);
            last = now;
            // The interpolation may be off by a little of the time since the last real reading,
            // and by what the machine kept this thread from running.
            let slack = Duration::from_millis(5);
            let now = Duration::from_nanos(now);
            assert!(now + slack >= low && now <= high + slack, "{now:?} not in {low:?}..{high:?}");
        }
    }
}
