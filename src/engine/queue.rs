//! What waits to be posted on a channel, in order; what is no longer wanted leaves it.
//!
//! Entries have rising numbers, so a request that is still here is found by halves, wherever it is. Its
//! place stays empty until it comes to an end of the queue, or until more places are empty than not.

use std::collections::VecDeque;

use crate::fabric::{Mem, Remote};

/// Empty places that are not worth a pass over the queue.
const EMPTY: usize = 64;

/// A post that waits.
pub enum Pending {
    /// A message. `answer`: the peer caused it. `ask`: the request that it asks for.
    Message { bytes: Vec<u8>, answer: bool, ask: Option<u32> },
    /// A WRITE.
    Write { wr: u64, local: Mem, remote: Remote, imm: Option<u32> },
    /// A READ.
    Read { wr: u64, local: Mem, remote: Remote },
}

impl Pending {
    /// Bytes that it counts for, if it is an answer.
    pub fn owed(&self) -> usize {
        match self {
            Pending::Message { bytes, answer: true, .. } => size_of::<Pending>() + bytes.capacity(),
            Pending::Write { .. } => size_of::<Pending>(),
            Pending::Message { answer: false, .. } | Pending::Read { .. } => 0,
        }
    }

    fn asks_for(&self, request: u32) -> bool {
        matches!(self, Pending::Message { ask: Some(r), .. } if *r == request)
    }
}

/// What waits to be posted on a channel, in order. The first and the last place are never empty.
pub struct Queue {
    places: VecDeque<(u64, Option<Pending>)>,
    len: usize,
}

impl Queue {
    /// An empty one.
    pub fn new() -> Queue {
        Queue { places: VecDeque::new(), len: 0 }
    }

    /// What really waits.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing does.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether there is memory for one more.
    pub fn make_room(&mut self) -> bool {
        self.places.try_reserve(1).is_ok()
    }

    /// Waits behind all others, or, if `urgent`, before them; the number of its place.
    pub fn push(&mut self, entry: Pending, urgent: bool) -> u64 {
        self.len += 1;
        // In the middle of all numbers, so that they go on in both directions.
        let number = |end: Option<&(u64, _)>, step: i64| {
            end.map_or(1 << 63, |(number, _)| number.wrapping_add_signed(step))
        };
        if urgent {
            let number = number(self.places.front(), -1);
            self.places.push_front((number, Some(entry)));
            number
        } else {
            let number = number(self.places.back(), 1);
            self.places.push_back((number, Some(entry)));
            number
        }
    }

    /// What is next.
    pub fn front(&mut self) -> Option<&mut Pending> {
        self.places.front_mut()?.1.as_mut()
    }

    /// Takes it.
    pub fn pop(&mut self) -> Option<Pending> {
        let entry = self.places.pop_front()?.1;
        self.len -= usize::from(entry.is_some());
        self.trim();
        entry
    }

    /// Removes what asks for a request, from the place of its first message on. False: that has left.
    pub fn withdraw(&mut self, place: u64, request: u32) -> bool {
        let Ok(first) = self.places.binary_search_by_key(&place, |(number, _)| *number) else {
            return false;
        };
        let mut found = false;
        for (_, entry) in self.places.range_mut(first..) {
            // The fragments of a message lie side by side.
            if !entry.as_ref().is_some_and(|e| e.asks_for(request)) {
                break;
            }
            *entry = None;
            self.len -= 1;
            found = true;
        }
        self.trim();
        if self.places.len() > 2 * self.len + EMPTY {
            self.places.retain(|(_, entry)| entry.is_some());
        }
        found
    }

    fn trim(&mut self) {
        while self.places.front().is_some_and(|(_, entry)| entry.is_none()) {
            self.places.pop_front();
        }
        while self.places.back().is_some_and(|(_, entry)| entry.is_none()) {
            self.places.pop_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(request: u32) -> Pending {
        Pending::Message { bytes: vec![request as u8], answer: false, ask: Some(request) }
    }

    fn ping() -> Pending {
        Pending::Message { bytes: vec![0xFF], answer: true, ask: None }
    }

    /// What is left, in order, by the first byte of each message.
    fn rest(queue: &mut Queue) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(Pending::Message { bytes, .. }) = queue.pop() {
            all.push(bytes[0]);
        }
        assert!(queue.is_empty() && queue.places.is_empty());
        all
    }

    #[test]
    fn order_is_kept_and_what_is_withdrawn_is_gone() {
        let mut q = Queue::new();
        let places: Vec<u64> = (0..6).map(|i| q.push(ask(i), false)).collect();
        q.push(ping(), true);
        assert!(q.withdraw(places[2], 2) && !q.withdraw(places[2], 2), "once");
        assert!(!q.withdraw(places[3], 4), "another's place");
        assert!(q.withdraw(places[5], 5) && q.withdraw(places[0], 0));
        assert_eq!(q.len(), 4);
        assert_eq!(rest(&mut q), [0xFF, 1, 3, 4]);
    }

    #[test]
    fn a_message_in_fragments_is_withdrawn_whole_or_not_at_all() {
        let mut q = Queue::new();
        let first = q.push(ask(1), false);
        (0..2).for_each(|_| _ = q.push(ask(1), false));
        q.push(ask(2), false);
        assert!(q.withdraw(first, 1));
        assert_eq!(rest(&mut q), [2]);
        let first = q.push(ask(1), false);
        q.push(ask(1), false);
        q.pop();
        // Takes the number of the one that left.
        assert_eq!(q.push(ping(), true), first);
        assert!(!q.withdraw(first, 1), "its first fragment has left");
        assert_eq!(rest(&mut q), [0xFF, 1]);
    }

    /// However they are withdrawn, no more places are kept than what waits is worth.
    #[test]
    fn empty_places_do_not_add_up() {
        let mut q = Queue::new();
        q.push(ping(), false);
        let mut last = q.push(ask(0), false);
        for i in 1..10_000 {
            let next = q.push(ask(i), false);
            assert!(q.withdraw(last, i - 1));
            last = next;
            assert_eq!(q.len(), 2);
            assert!(q.places.len() <= 2 * q.len() + EMPTY, "{}", q.places.len());
        }
    }
}
