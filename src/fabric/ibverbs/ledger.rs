//! The account of a shared receive queue.
//!
//! A queue pair takes a buffer out of the queue when a message begins to arrive. If it is destroyed before the
//! message's end, the device may never say so: the buffer is gone, and after enough of that the queue is empty
//! for all. Which ones are gone shows in the order: the queue is first in, first out, so a buffer that a whole
//! queue of later ones overtook was taken, and if its connection ended it does not come back. One that
//! a slow message of a living connection still fills looks the same; it is counted as lost, never posted
//! again by that, and simply comes back.

/// Where a buffer is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Not in the queue.
    Out,
    /// In the queue, or taken from it: the number of its posting.
    Posted(u64),
    /// Overtaken, and replaced.
    Lost,
}

/// Which buffers of a shared receive queue are posted, in which order, and which are taken for lost.
#[derive(Default)]
pub(super) struct Ledger {
    places: Vec<Place>,
    /// Number of the next posting.
    next: u64,
    /// The youngest posting that completed.
    newest: u64,
    /// Postings before the first number may be lost, which shows when the second one has completed.
    check: Option<(u64, u64)>,
    /// Connections ended after that.
    again: bool,
}

impl Ledger {
    /// A buffer was posted.
    pub fn posted(&mut self, index: u32) {
        let index = index as usize;
        if index >= self.places.len() {
            self.places.resize(index + 1, Place::Out);
        }
        self.places[index] = Place::Posted(self.next);
        self.next += 1;
    }

    /// A buffer completed: false if it was taken for lost.
    pub fn completed(&mut self, index: u32) -> bool {
        let Some(place) = self.places.get_mut(index as usize) else { return true };
        match std::mem::replace(place, Place::Out) {
            Place::Posted(number) => self.newest = self.newest.max(number),
            Place::Out => {}
            Place::Lost => return false,
        }
        true
    }

    /// A queue pair was destroyed; `count` buffers are in the queue at most.
    pub fn ended(&mut self, count: u32) {
        if self.check.is_some() {
            self.again = true;
        } else {
            self.check = Some((self.next, self.next + u64::from(count)));
        }
    }

    /// Whether `lost` may find something.
    pub fn is_due(&self) -> bool {
        self.check.is_some_and(|(_, at)| self.newest >= at)
    }

    /// Buffers that were lost, each counted once.
    pub fn lost(&mut self, count: u32) -> u32 {
        let Some((before, _)) = self.check.take() else { return 0 };
        let mut lost = 0;
        for place in &mut self.places {
            if matches!(place, Place::Posted(number) if *number < before) {
                *place = Place::Lost;
                lost += 1;
            }
        }
        if std::mem::take(&mut self.again) {
            self.ended(count);
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const COUNT: u32 = 8;

    /// A queue of a device, and its account.
    struct Device {
        queue: VecDeque<u32>,
        ledger: Ledger,
    }

    impl Device {
        fn new() -> Device {
            let mut d = Device { queue: VecDeque::new(), ledger: Ledger::default() };
            (0..COUNT).for_each(|i| d.post(i));
            d
        }
        fn post(&mut self, index: u32) {
            self.queue.push_back(index);
            self.ledger.posted(index);
        }
        fn take(&mut self) -> u32 {
            self.queue.pop_front().unwrap()
        }
        /// Messages arrive and their buffers are posted again: how many were found to be lost.
        fn run(&mut self, messages: u32) -> u32 {
            let mut lost = 0;
            for _ in 0..messages {
                let index = self.take();
                assert!(self.ledger.completed(index));
                self.post(index);
                if self.ledger.is_due() {
                    lost += self.ledger.lost(COUNT);
                }
            }
            lost
        }
    }

    #[test]
    fn what_a_destroyed_queue_pair_took_is_found_once() {
        let mut d = Device::new();
        assert_eq!(d.run(100), 0);
        let gone = [d.take(), d.take()];
        d.ledger.ended(COUNT);
        assert_eq!(d.run(3 * COUNT), 2);
        assert_eq!(d.run(100), 0);
        d.ledger.ended(COUNT);
        assert_eq!(d.run(100), 0, "not again");
        // If one comes back after all, it is told from the others.
        assert!(!d.ledger.completed(gone[0]));
        d.post(gone[0]);
        assert_eq!(d.run(100), 0);
    }

    #[test]
    fn slow_messages_without_an_end_are_not_lost() {
        let mut d = Device::new();
        let slow = d.take();
        assert_eq!(d.run(100), 0);
        assert!(d.ledger.completed(slow));
    }

    #[test]
    fn ends_without_a_pause_do_not_put_it_off() {
        let mut d = Device::new();
        let mut lost = 0;
        for _ in 0..COUNT - 2 {
            d.take();
            for _ in 0..40 {
                d.ledger.ended(COUNT);
                lost += d.run(1);
            }
        }
        d.ledger.ended(COUNT);
        lost += d.run(100);
        assert_eq!(lost, COUNT - 2);
    }
}
