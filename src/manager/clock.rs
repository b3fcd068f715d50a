//! The manager's clock. Reading the system's costs as much as polling an adapter, so between two real
//! readings the processor's tick counter interpolates. That takes some 10 ns to be read, as long as a hundred instructions: so it
//! is read when somebody asks what time it is for the first time after a `tick`.

use std::cell::Cell;
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
    base: Cell<u64>,
    base_ticks: Cell<u64>,
    /// Nanoseconds per tick, times 2 to the power of [`SHIFT`]; 0 while unknown.
    scale: Cell<u64>,
    now: Cell<u64>,
    /// Time may have passed since `now`.
    stale: Cell<bool>,
}

impl Clock {
    /// Starts at zero.
    pub fn new() -> Clock {
        Clock {
            start: Instant::now(),
            base: Cell::new(0),
            base_ticks: Cell::new(ticks()),
            scale: Cell::new(0),
            now: Cell::new(0),
            stale: Cell::new(false),
        }
    }

    /// Time zero.
    pub fn start(&self) -> Instant {
        self.start
    }

    /// The time: that of the first question since the last `tick`.
    #[inline]
    pub fn now(&self) -> u64 {
        if self.stale.get() { self.read() } else { self.now.get() }
    }

    /// The time of the last reading.
    #[inline]
    pub fn lately(&self) -> u64 {
        self.now.get()
    }

    /// Time passes.
    #[inline]
    pub fn tick(&self) {
        self.stale.set(true);
    }

    /// Reads the time.
    #[inline]
    fn read(&self) -> u64 {
        let ticks = ticks();
        // On a machine whose counters differ between cores this may wrap: then it is large.
        let passed = ticks.wrapping_sub(self.base_ticks.get());
        let scale = self.scale.get();
        let at = if scale > 0 && passed < REBASE {
            self.base.get() + ((passed * scale) >> SHIFT)
        } else {
            self.rebase(ticks, passed)
        };
        let now = self.now.get().max(at);
        self.now.set(now);
        self.stale.set(false);
        now
    }

    /// Reads the system's clock.
    #[cold]
    fn rebase(&self, ticks: u64, passed: u64) -> u64 {
        let real = self.start.elapsed().as_nanos() as u64;
        let plausible = (REBASE / 8..1 << 44).contains(&passed);
        let base = self.base.get();
        let scale = (u128::from(real - base) << SHIFT) / u128::from(passed.max(1));
        // Small enough for what is multiplied with it.
        let scale = u64::try_from(scale).ok().filter(|&s| plausible && s < 1 << 43);
        self.scale.set(scale.unwrap_or(0));
        if plausible || passed >= 1 << 44 {
            self.base.set(real);
            self.base_ticks.set(ticks);
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
        let clock = Clock::new();
        let mut last = 0;
        let end = Instant::now() + Duration::from_millis(20);
        while Instant::now() < end {
            let low = clock.start().elapsed();
            clock.tick();
            let now = clock.now();
            assert_eq!(now, clock.now(), "until the next tick");
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
