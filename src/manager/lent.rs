//! Queues of callbacks, lent to the threads that run them.
//!
//! A turn or a call that has queued callbacks takes a queue, puts them in and lets the lock go; it runs them where they
//! lie. Their memory is the queue's until the next that takes it, with the lock held, finds it back: to give it back is
//! one store. A queue that has not come back is left alone, and its memory with it.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::world::World;
use crate::engine::Work;
use crate::room::Grows;

/// Callbacks in order.
pub type Works = VecDeque<Box<Work>>;

/// Memory of so many callbacks is kept for the next.
const BOXES: usize = 64;
/// More threads than run callbacks of one manager at once, as a rule.
const QUEUES: usize = 8;

#[derive(Default)]
struct Queue {
    out: AtomicBool,
    works: UnsafeCell<Works>,
}

/// The queues.
#[derive(Default)]
pub struct Queues([Queue; QUEUES]);

// SAFETY: `works` is reached through `Lent` alone, of which there is one for each queue at most.
unsafe impl Sync for Queues {}

/// Lends them; there is one for them all.
pub struct Lender(Arc<Queues>);

/// A queue, until it is dropped.
pub struct Lent<'a>(&'a Queue);

impl Lender {
    /// With empty queues.
    pub fn new() -> Lender {
        Lender(Arc::default())
    }

    /// What it lends, for those who keep it longer than they have the lender.
    pub fn queues(&self) -> Arc<Queues> {
        self.0.clone()
    }

    /// One that is back; in it is what it was given back with. `from` are the lender's queues.
    #[inline]
    pub fn lend<'a>(&mut self, from: &'a Arc<Queues>) -> Option<Lent<'a>> {
        if !Arc::ptr_eq(&self.0, from) {
            return None;
        }
        let queue = from.0.iter().find(|queue| !queue.out.load(Ordering::Acquire))?;
        // Only this lender, which is held exclusively, marks its queues.
        queue.out.store(true, Ordering::Relaxed);
        Some(Lent(queue))
    }
}

impl Deref for Lent<'_> {
    type Target = Works;
    #[inline]
    fn deref(&self) -> &Works {
        // SAFETY: while the queue is marked, this is the only way to it.
        unsafe { &*self.0.works.get() }
    }
}

impl DerefMut for Lent<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Works {
        // SAFETY: as above.
        unsafe { &mut *self.0.works.get() }
    }
}

impl Drop for Lent<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.out.store(false, Ordering::Release);
    }
}

impl World {
    /// A queue to run callbacks in, empty. The memory of those that have run in it is kept for the next.
    #[inline]
    fn queue<'a>(&mut self, queues: &'a Arc<Queues>) -> Option<Lent<'a>> {
        let mut queue = self.lender.lend(queues)?;
        if self.boxes.is_empty() && queue.len() <= BOXES {
            std::mem::swap(&mut self.boxes, &mut queue);
        }
        while let Some(one) = queue.pop_front() {
            if self.boxes.len() < BOXES && self.boxes.fits(1) {
                self.boxes.push_back(one);
            }
        }
        Some(queue)
    }

    /// Takes the callbacks to be run. What is left behind has the same room, for which operations were accepted;
    /// `None` if there is no memory for that.
    pub(super) fn take_work<'a>(&mut self, queues: &'a Arc<Queues>) -> Option<Lent<'a>> {
        let mut queue = self.queue(queues)?;
        let fits = queue.fits(self.work.capacity());
        fits.then(|| {
            std::mem::swap(&mut self.work, &mut queue);
            queue
        })
    }

    /// Takes those that the calling thread runs.
    pub(super) fn take_inline<'a>(&mut self, queues: &'a Arc<Queues>) -> Option<Lent<'a>> {
        let mut queue = self.queue(queues)?;
        std::mem::swap(&mut self.inline, &mut queue);
        Some(queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_lent_to_one_at_a_time_and_keeps_its_memory() {
        let mut lender = Lender::new();
        let queues = lender.queues();
        let mut all: Vec<_> = (0..QUEUES).map(|_| lender.lend(&queues).unwrap()).collect();
        assert!(lender.lend(&queues).is_none());
        all[3].reserve(100);
        drop(all.remove(3));
        let again = lender.lend(&queues).unwrap();
        assert!(again.capacity() >= 100 && again.is_empty());
        assert!(lender.lend(&queues).is_none());
        drop((again, all));
        assert!(lender.lend(&Lender::new().queues()).is_none(), "of another lender");
        assert!(lender.lend(&queues).is_some());
    }
}
