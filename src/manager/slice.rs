//! How long the progress thread asks to run at once (`os::slice`), where it wakes threads that want its processor.
//!
//! A callback that wakes a thread by a condition variable loses the processor to it: it slept, so the scheduler owes it time, all the
//! more since this thread offers the processor where it has nothing to do, and each offer costs a slice, of some milliseconds. That is
//! right where the woken thread finds all that it waited for, and answers. Where many messages come at once it finds one,
//! and sleeps again until the next callback: two changes of threads for each. With the shortest slice it is owed less
//! than it takes for a few, and runs once this thread has handled what there was. (Tensors of 8 B on shm, 256 in flight: 0.55
//! million/s, and 2.7 million with the short slice. But a round of five processes on two processors, that wait for one answer each: 27 µs,
//! and 35 with it.)
//!
//! So it is short while turns find many events.

use crate::os::slice;

/// The short one, in nanoseconds: the system gives none below.
const SHORT: u64 = 100_000;
/// Turns over which events are averaged, about.
const TURNS: u32 = 16;
/// So many events a turn, in the mean, have it made short; and so few, long again.
const MANY: u32 = 8;
const FEW: u32 = 3;

/// What the progress thread has learnt.
#[derive(Default)]
pub(super) struct Slice {
    /// The one that it has otherwise, once it was changed.
    usual: u64,
    short: bool,
    /// It has none that could be made shorter, or may not.
    fixed: bool,
    /// Events that a turn found which found some, in the mean, times [`TURNS`].
    events: u32,
}

impl Slice {
    /// A turn of the calling thread found so many events.
    #[inline]
    pub fn found(&mut self, events: u32) {
        if self.learn(events) {
            self.change();
        }
    }

    /// Whether it is to be the other one.
    #[inline]
    fn learn(&mut self, events: u32) -> bool {
        self.events = (self.events + events).saturating_sub(self.events / TURNS);
        match self.short {
            true => self.events < FEW * TURNS,
            false => self.events >= MANY * TURNS,
        }
    }

    #[cold]
    fn change(&mut self) {
        self.short = !self.short;
        if self.fixed {
            return;
        }
        if self.short {
            self.usual = slice::slice().unwrap_or(0);
        }
        let next = if self.short { SHORT } else { self.usual };
        self.fixed = self.usual <= SHORT || slice::set_slice(next).is_err();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how many turns of so many events it changed.
    fn turns(slice: &mut Slice, events: u32) -> Option<usize> {
        let before = slice.short;
        (1..1_000).find(|_| {
            slice.found(events);
            slice.short != before
        })
    }

    #[test]
    fn r24_turns_with_many_events_make_the_slice_short_and_few_long_again() {
        let mut slice = Slice { fixed: true, ..Slice::default() };
        assert_eq!(turns(&mut slice, 1), None);
        assert_eq!(turns(&mut slice, 7), None);
        let soon = turns(&mut slice, 40).unwrap();
        assert!(soon <= 8, "{soon}");
        assert_eq!(turns(&mut slice, 5), None, "in between it stays");
        let soon = turns(&mut slice, 1).unwrap();
        assert!((8..=64).contains(&soon), "{soon}");
    }

    #[test]
    fn r24_one_turn_with_all_that_there_may_be_changes_nothing_for_long() {
        let mut slice = Slice { fixed: true, ..Slice::default() };
        slice.found(1_000);
        assert!(slice.short);
        assert!(turns(&mut slice, 1).unwrap() < 100);
    }
}
