//! When to try again.

use std::time::Duration;

/// Randomised exponential backoff. Pure: the caller brings the randomness and the clock.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    limit: Duration,
    ceiling: Duration,
}

impl Default for Backoff {
    /// From 10 ms to 1 s.
    fn default() -> Self {
        Backoff::new(Duration::from_millis(10), Duration::from_secs(1))
    }
}

impl Backoff {
    /// Starts at `first` and doubles up to `limit`.
    pub fn new(first: Duration, limit: Duration) -> Backoff {
        let limit = limit.max(first);
        Backoff { first, limit, ceiling: first }
    }

    /// The next pause: between half of the ceiling and the ceiling, which then doubles. `random` is
    /// any 64 random bits. Peers that fail together thus do not return together.
    pub fn pause(&mut self, random: u64) -> Duration {
        let ceiling = self.ceiling;
        self.ceiling = ceiling.saturating_mul(2).min(self.limit);
        let half = ceiling / 2;
        let span = (ceiling - half).as_nanos() as u64;
        let extra = ((random as u128 * (span as u128 + 1)) >> 64) as u64;
        half + Duration::from_nanos(extra)
    }

    /// Back to the start, after a success.
    pub fn reset(&mut self) {
        self.ceiling = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_to_the_limit_and_resets() {
        let mut b = Backoff::default();
        let most: Vec<u128> = (0..9).map(|_| b.pause(u64::MAX).as_millis()).collect();
        assert_eq!(most, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        let mut b = Backoff::default();
        let least: Vec<u128> = (0..9).map(|_| b.pause(0).as_millis()).collect();
        assert_eq!(least, [5, 10, 20, 40, 80, 160, 320, 500, 500]);
        b.reset();
        assert_eq!(b.pause(0).as_millis(), 5);
    }

    #[test]
    fn odd_bounds_are_harmless() {
        let mut b = Backoff::new(Duration::ZERO, Duration::ZERO);
        assert_eq!(b.pause(u64::MAX), Duration::ZERO);
        let mut b = Backoff::new(Duration::from_secs(2), Duration::from_secs(1));
        assert_eq!(b.pause(u64::MAX).as_secs(), 2);
    }
}
