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
        let pause = if now - self.looked > LOOK_EVERY {
            self.looked = now;
            Pause::Look
        } else if self.spin.goes_on(now, self.idle) {
            Pause::None
        } else {
            Pause::Sleep
        };
        (pause, Some(now))
    }

    /// The sleep has ended.
    pub fn slept(&mut self) {
        self.spin.slept(Instant::now());
        self.idle = 0;
    }
}
