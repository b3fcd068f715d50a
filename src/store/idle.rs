//! Connections of a store's client that rest until the next question.

use crossbeam_queue::ArrayQueue;

use crate::room;

/// Most of one client.
const MOST: usize = 16;

/// Connections that any thread takes and gives back, without a lock.
#[derive(Debug)]
pub struct Idle<C>(ArrayQueue<Box<C>>);

impl<C> Idle<C> {
    /// None yet.
    #[inline(never)] // The table of what aborts without memory names it, whatever is inlined elsewhere.
    pub fn new() -> Idle<C> {
        Idle(ArrayQueue::new(MOST))
    }

    /// The one that has rested longest of those that rest still; the others end.
    pub fn take(&self, rests: impl Fn(&C) -> bool) -> Option<C> {
        std::iter::from_fn(|| self.0.pop()).map(|one| *one).find(rests)
    }

    /// Keeps one. Of too many it ends, and without memory for it.
    pub fn keep(&self, connection: C) {
        if let Some(one) = room::try_boxed(connection) {
            drop(self.0.push(one));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn those_that_rest_are_taken_and_too_many_end() {
        let (idle, open) = (Idle::new(), Arc::new(()));
        (0..MOST + 3).for_each(|n| idle.keep((n, open.clone())));
        assert_eq!(Arc::strong_count(&open), 1 + MOST);
        let taken = idle.take(|&(n, _)| n % 5 == 3);
        assert_eq!(taken.map(|(n, _)| n), Some(3));
        assert_eq!(Arc::strong_count(&open), 1 + MOST - 4, "those that ended before it are gone");
        assert!(idle.take(|_| false).is_none() && Arc::strong_count(&open) == 1);
    }
}
