//! What a driver does between two events: another turn, a look at the descriptors, or sleep.

use std::time::{Duration, Instant};

use crate::manager::spin::Spin;

/// Turns without an event between two looks at the clock: it costs as much as a poll.
const CLOCK_EVERY: u32 = 16;
/// A driver that finds no time to sleep looks at the descriptors so often.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(1);

/// A driver's rounds between two events.
pub(super) struct Rounds<'a> {
    pub spin: &'a mut Spin,
    /// Turns in a row that found nothing.
    pub idle: u32,
    looked: Instant,
}

/// What a round without an event asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// Another turn.
    None,
    /// The descriptors are looked at, then another turn.
    Look,
    /// Sleep.
    Sleep,
}

impl Rounds<'_> {
    pub fn new(spin: &mut Spin) -> Rounds<'_> {
        Rounds { spin, idle: 0, looked: Instant::now() }
    }

    /// A turn found something.
    pub fn found(&mut self) {
        if self.idle > 0 {
            self.spin.found();
        }
        self.idle = 0;
    }

    /// A turn found nothing.
    pub fn nothing(&mut self) -> (Pause, Option<Instant>) {
        self.idle += 1;
        let looks = self.idle.is_multiple_of(CLOCK_EVERY) || self.spin.offers();
        if self.idle > 1 && !looks {
            std::hint::spin_loop();
            return (Pause::None, None);
        }
        if self.idle > 1 && self.spin.is_on() {
            // Whoever would make the event may wait for this processor.
            std::thread::yield_now();
        }
        let now = Instant::now();
        if self.idle == 1 {
            self.spin.begin(now);
        }
        (self.pause(now), Some(now))
    }

    /// The spin hears of each look at the clock. Of those that come a millisecond after the one before it hears that the processor was
    /// lost for so long: what is found then was not found by spinning.
    fn pause(&mut self, now: Instant) -> Pause {
        if !self.spin.goes_on(now, self.idle) {
            Pause::Sleep
        } else if now - self.looked > LOOK_EVERY {
            self.looked = now;
            Pause::Look
        } else {
            Pause::None
        }
    }

    /// The sleep has ended.
    pub fn slept(&mut self) {
        self.spin.slept(Instant::now());
        self.idle = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stranger's: beside programs that compute, each wait was a spin that lost its processor for four milliseconds, which nobody
    /// counted since it was time to look at the descriptors, too; and a spin that found something, as the next turn did.
    #[test]
    fn a_processor_lost_for_longer_than_between_two_looks_ends_the_spin() {
        let mut spin = Spin::new(Duration::from_micros(50), 2);
        let mut rounds = Rounds::new(&mut spin);
        let begun = Instant::now();
        let mut now = begun;
        let (mut slept, mut found) = (0, 0);
        // Each wait ends while somebody else has the processor.
        for _ in 0..200 {
            rounds.spin.begin(now);
            rounds.idle = 1;
            now += Duration::from_millis(4);
            match rounds.pause(now) {
                Pause::Sleep => {
                    rounds.spin.slept(now);
                    (rounds.idle, slept) = (0, slept + 1);
                }
                _ => {
                    rounds.found();
                    found += 1;
                }
            }
        }
        assert!(slept > 190, "{slept} slept, {found} were taken for found by spinning");
    }
}
