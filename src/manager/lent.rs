//! Queues of callbacks, lent to the threads that run them.
//!
//! A turn or a call that has queued callbacks takes a queue, puts them in and lets the lock go; it runs them where they
//! lie. Their memory is the queue's until the next that takes it, with the lock held, finds it back: to give it back is
//! one store. A queue that has not come back is left alone, and its memory with it.

mod pieces;
mod small;

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::deliveries::Deliveries;
use super::world::World;
use crate::engine::Work;
use crate::engine::front::message::{Active, ActiveFn, MessageEnd};
use crate::fabric::moves::{Claim, KeepAlive};
use crate::name::Name;
use crate::status::Status;

/// Memory of so many callbacks is kept for the next.
const BOXES: usize = 64;
/// More threads than run callbacks of one manager at once, as a rule.
const QUEUES: usize = 8;

/// Callbacks in order. They are not moved once they are there, and their memory is used again.
#[derive(Default)]
pub struct Works {
    /// The first `len` are queued. The others have run, or were never any: memory for more.
    #[allow(clippy::vec_box, reason = "room for a million is pointers, not callbacks")]
    all: Vec<Box<Work>>,
    len: usize,
    /// Message operations that have ended, once deliveries are made.
    ended: Vec<u32>,
}

impl Works {
    /// How many callbacks are queued.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is queued.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0 && self.ended.is_empty()
    }

    /// Message operations that have ended.
    #[inline]
    pub fn ended(&self) -> &[u32] {
        &self.ended
    }

    /// One more.
    #[inline]
    pub fn push_ended(&mut self, op: u32) {
        self.ended.push(op);
    }

    /// Takes them out.
    pub fn take_ended(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.ended)
    }

    /// Gives their memory back, for as many more.
    pub fn keep_room(&mut self, mut told: Vec<u32>) {
        told.clear();
        self.ended = told;
    }

    /// Queues one behind the others.
    #[inline(always)]
    pub fn push(&mut self, work: Work) {
        let place = self.place();
        *place = work;
        self.len += 1;
    }

    /// The same of one that is made where it will lie: it is long.
    #[inline(always)]
    pub fn push_with(&mut self, make: &mut impl FnMut() -> Work) {
        let place = self.place();
        // First what was there goes, which takes a call: what is made after that is in nobody's way.
        *place = Work::PeerEvents;
        std::mem::forget(std::mem::replace(place, make()));
        self.len += 1;
    }

    /// Queues an active message that has just come, in the memory of one before it if that lay there.
    #[inline]
    pub fn push_active(
        &mut self,
        handler: &ActiveFn,
        end: MessageEnd,
        (user, content): (&[u8], &[u8]),
        kept: Option<KeepAlive>,
    ) -> Result<(), Status> {
        let place = self.place();
        match place {
            Work::Active { handler: last, active } => {
                active.comes(end, user, content, kept)?;
                // To count who shares it takes a locked instruction each way.
                if !Arc::ptr_eq(last, handler) {
                    *last = handler.clone();
                }
            }
            _ => {
                let active = Active::came(end, user, content, kept)?;
                *place = Work::Active { handler: handler.clone(), active };
            }
        }
        self.len += 1;
        Ok(())
    }

    /// The same of one whose header and content lie at these places, where an adapter has left them.
    ///
    /// # Safety
    /// They are readable, of these lengths, as long as `kept` lives.
    pub unsafe fn push_active_left(
        &mut self,
        handler: &ActiveFn,
        end: MessageEnd,
        header: (u64, usize),
        place: (u64, usize),
        kept: KeepAlive,
    ) -> Result<(), Status> {
        self.push_active(handler, end, (&[], &[]), Some(kept))?;
        self.len -= 1;
        if let Work::Active { active, .. } = self.place() {
            // SAFETY: by this function's contract.
            unsafe { active.lies_at(header, place) }.inspect_err(|_| active.clear())?;
        }
        self.len += 1;
        Ok(())
    }

    /// Where the next will lie.
    #[inline(always)]
    fn place(&mut self) -> &mut Work {
        if self.len == self.all.len() {
            self.all.push(Box::new(Work::PeerEvents));
        }
        &mut self.all[self.len]
    }

    /// Takes the last out.
    pub fn pop_last(&mut self) -> Option<Work> {
        let last = self.len.checked_sub(1)?;
        let work = std::mem::replace(&mut **self.all.get_mut(last)?, Work::PeerEvents);
        self.len = last;
        Some(work)
    }

    /// This name, if the callback that was last where the next will lie was told it: to count who shares it takes a locked
    /// instruction each way.
    #[inline]
    pub fn spare_name(&mut self, name: &Name) -> Option<Name> {
        match &mut **self.all.get_mut(self.len)? {
            Work::RecvDone { info, .. } | Work::SendDone { info, .. } if info.peer.shares(name) => {
                Some(std::mem::take(&mut info.peer))
            }
            _ => None,
        }
    }

    /// Those that are queued, which stay where they are.
    #[inline]
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Work> {
        self.all.iter_mut().take(self.len).map(|work| &mut **work)
    }

    /// The first.
    pub fn pop_first(&mut self) -> Option<Box<Work>> {
        self.len = self.len.checked_sub(1)?;
        Some(self.all.remove(0))
    }

    /// Takes all of another over, behind its own.
    pub fn append(&mut self, other: &mut Works) {
        self.all.truncate(self.len);
        self.all.extend(other.all.drain(..std::mem::take(&mut other.len)));
        self.len = self.all.len();
        self.ended.append(&mut other.ended);
    }

    /// How many find room, of either kind.
    #[inline]
    pub fn room(&self) -> usize {
        self.all.capacity().min(self.ended.capacity())
    }

    /// Whether one callback more finds room, or room could be made for it.
    #[inline]
    pub fn has_place(&mut self) -> bool {
        self.len < self.all.len() || self.holds(self.len + 1)
    }

    /// Whether so many in all find room, or room could be made for them.
    pub fn holds(&mut self, count: usize) -> bool {
        self.all.try_reserve(count.saturating_sub(self.all.len())).is_ok()
            && self.ended.try_reserve(count.saturating_sub(self.ended.len())).is_ok()
    }

    /// The same without more room than that: queues that are made alike by turns, each with some to spare, would grow for ever.
    fn holds_just(&mut self, count: usize) -> bool {
        self.all.try_reserve_exact(count.saturating_sub(self.all.len())).is_ok()
            && self.ended.try_reserve_exact(count.saturating_sub(self.ended.len())).is_ok()
    }

    /// All have run.
    #[inline]
    fn clear(&mut self) {
        self.len = 0;
        self.ended.clear();
        if self.all.len() > BOXES {
            self.all.truncate(BOXES);
        }
    }
}

/// Callbacks that one thread runs, and content that it puts in its place before.
#[derive(Default)]
pub struct Batch {
    /// The callbacks.
    pub works: Works,
    /// The content.
    pub deliveries: Deliveries,
    /// Of the deliveries, while they are made.
    claim: Option<Claim>,
}

/// Whether a queue is lent.
mod state {
    pub const HOME: u8 = 0;
    pub const OUT: u8 = 1;
    /// And deliveries out of it are being made that nobody has claimed.
    pub const UNCLAIMED: u8 = 2;
}

#[derive(Default)]
struct Queue {
    state: AtomicU8,
    batch: UnsafeCell<Box<Batch>>,
}

/// The queues.
#[derive(Default)]
pub struct Queues([Queue; QUEUES]);

// SAFETY: `batch` is reached through `Lent` alone, of which there is one for each queue at most.
unsafe impl Sync for Queues {}

/// Lends them; there is one for them all.
pub struct Lender(Arc<Queues>);

/// A queue, until it is dropped. No more than an address, which stays in a register.
pub struct Lent<'a>(Mark<'a>);

impl Drop for Lent<'_> {
    /// Before the mark goes.
    #[inline(always)]
    fn drop(&mut self) {
        if self.claim.is_some() {
            self.claim = None;
        }
    }
}

/// A queue is marked as lent, until this is dropped.
struct Mark<'a>(&'a Queue);

impl Drop for Mark<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.state.store(state::HOME, Ordering::Release);
    }
}

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
        self.mark(from, state::OUT).map(Lent)
    }

    /// The same of the mark alone.
    #[inline(always)]
    fn mark<'a>(&mut self, from: &'a Arc<Queues>, as_what: u8) -> Option<Mark<'a>> {
        if !Arc::ptr_eq(&self.0, from) {
            return None;
        }
        let home = |queue: &&Queue| queue.state.load(Ordering::Acquire) == state::HOME;
        let queue = from.0.iter().find(home)?;
        // Only this lender, which is held exclusively, marks its queues.
        queue.state.store(as_what, Ordering::Relaxed);
        Some(Mark(queue))
    }

    /// Whether somebody makes deliveries that are not claimed.
    pub fn delivers(&self) -> bool {
        let delivers = |queue: &Queue| queue.state.load(Ordering::Acquire) == state::UNCLAIMED;
        self.0.0.iter().any(delivers)
    }
}

impl Lent<'_> {
    /// Whether there is content to be put in its place before the callbacks run.
    #[inline]
    pub fn has_deliveries(&self) -> bool {
        !self.deliveries.is_empty()
    }

    /// Puts it there.
    #[inline]
    pub fn deliver(&mut self) {
        self.deliveries.make();
        self.deliveries.clear();
        self.claim = None;
        self.0.0.state.store(state::OUT, Ordering::Release);
    }
}

impl Deref for Lent<'_> {
    type Target = Box<Batch>;
    #[inline]
    fn deref(&self) -> &Box<Batch> {
        // SAFETY: while the queue is marked, this is the only way to it.
        unsafe { &*self.0.0.batch.get() }
    }
}

impl DerefMut for Lent<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Box<Batch> {
        // SAFETY: as above.
        unsafe { &mut *self.0.0.batch.get() }
    }
}

impl World {
    /// Takes the callbacks to be run, and the deliveries to be made before. What is left behind has the same room, for
    /// which operations were accepted; `None` if there is no memory for that.
    #[inline]
    pub(super) fn take_work<'a>(&mut self, queues: &'a Arc<Queues>) -> Option<Lent<'a>> {
        let mut lent = self.lender.lend(queues)?;
        lent.works.clear();
        let room = self.batch.works.room();
        if lent.works.room() < room && !lent.works.holds_just(room) {
            return None;
        }
        std::mem::swap(&mut self.batch, &mut *lent);
        if lent.has_deliveries() {
            lent.claim = self.claim(&lent.deliveries);
            if lent.claim.is_none() && !lent.deliveries.make_unclaimed() {
                lent.0.0.state.store(state::UNCLAIMED, Ordering::Relaxed);
            }
        }
        Some(lent)
    }

    /// Takes those that the calling thread runs.
    #[inline]
    pub(super) fn take_inline<'a>(&mut self, queues: &'a Arc<Queues>) -> Option<Lent<'a>> {
        let mut lent = self.lender.lend(queues)?;
        lent.works.clear();
        std::mem::swap(&mut self.inline, &mut *lent);
        Some(lent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_that_take_turns_do_not_grow() {
        let (mut one, mut other) = (Works::default(), Works::default());
        assert!(one.holds_just(8) && other.holds_just(6));
        for _ in 0..40 {
            assert!(other.room() >= one.room() || other.holds_just(one.room()));
            std::mem::swap(&mut one, &mut other);
        }
        assert_eq!((one.room(), other.room()), (8, 8));
    }

    #[test]
    fn a_queue_is_lent_to_one_at_a_time_and_keeps_its_memory() {
        let mut lender = Lender::new();
        let queues = lender.queues();
        let mut all: Vec<_> = (0..QUEUES).map(|_| lender.lend(&queues).unwrap()).collect();
        assert!(lender.lend(&queues).is_none());
        assert!(all[3].works.holds(100));
        drop(all.remove(3));
        let again = lender.lend(&queues).unwrap();
        assert!(again.works.room() >= 100 && again.works.is_empty());
        assert!(lender.lend(&queues).is_none());
        drop((again, all));
        assert!(lender.lend(&Lender::new().queues()).is_none(), "of another lender");
        assert!(lender.lend(&queues).is_some());
    }
    #[test]
    fn callbacks_keep_their_order_and_their_memory() {
        let token = |work: &Work| match work {
            Work::HostHash { token, .. } => *token,
            _ => panic!("another callback"),
        };
        let works = |tokens: std::ops::Range<u64>| {
            let mut works = Works::default();
            tokens.for_each(|token| works.push(Work::HostHash { token, addr: 0, len: 0 }));
            works
        };
        let mut first = works(0..3);
        first.append(&mut works(3..5));
        assert_eq!(first.iter_mut().map(|w| token(w)).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        let at = first.iter_mut().map(|w| std::ptr::from_ref(w)).next();
        first.clear();
        assert!(first.is_empty() && first.pop_first().is_none());
        first.push(Work::HostHash { token: 7, addr: 0, len: 0 });
        assert_eq!(first.iter_mut().map(|w| std::ptr::from_ref(w)).next(), at);
        // What has run does not come back, however more is queued.
        first.append(&mut works(8..9));
        assert_eq!(first.len(), 2);
        assert_eq!(first.pop_first().map(|w| token(&w)), Some(7));
        assert_eq!(first.pop_first().map(|w| token(&w)), Some(8));
        assert!(first.holds(1000) && first.room() >= 1000);
    }
}
