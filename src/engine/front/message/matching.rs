//! Who waits for whom: receives that wait for a message. `unexpected` has the messages that wait for a receive.
//!
//! A receive lies in the queue of its communicator, tag and sender, where anybody is a sender, too; a message in that of its
//! sender and in that of all senders. So a look at the first of one queue does, or of two, however many others wait. A
//! receive from some peers is in a queue of such, with its peers in a table apart; of these each is looked at.
//!
//! As a rule all bits of the tag count; or, of a runtime that keeps some of them for itself, all but the same few in each receive: those
//! lie in such queues, too, by the bits that count. One that leaves yet other bits open is in the queue of its communicator; of these
//! each is looked at, as they look at each message.

use foldhash::HashMap;

use super::{Envelope, Op, Party, Wanted};
use crate::engine::list::{Fifo, Links};
use crate::engine::slab::Slab;
use crate::room::{self, Grows};
use crate::status::Status;

/// With more queues of receives, of either kind, one that becomes empty goes.
const EMPTY: usize = 1024;
/// Queues of receives that are found without a look into a map; a power of two.
const NEAR: usize = 64;

pub(super) fn op_links(op: &mut Op) -> &mut Links {
    &mut op.links
}

/// What a queue is of. Two words, which are handed on in registers: a record of three fields would be written field by field and read
/// back in other pieces, for which a processor waits until the writes are through.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Lane {
    /// Sender and communicator.
    whom: u64,
    tag: u64,
}

impl Lane {
    #[inline(always)]
    pub fn new(from: Party, Envelope { comm, tag }: Envelope) -> Lane {
        Lane { whom: u64::from(from.0) << 32 | u64::from(comm), tag }
    }
}

/// Receives of one sender, communicator and tag.
struct Queue {
    lane: Lane,
    first: Fifo,
}

/// The same of all. A queue that was used is mostly used again, soon: some are remembered by a few bits of what they are for.
struct Queues {
    all: Vec<Queue>,
    unused: Vec<u32>,
    by_lane: HashMap<Lane, u32>,
    near: [u32; NEAR],
}

impl Default for Queues {
    fn default() -> Queues {
        let (all, unused, by_lane) = Default::default();
        Queues { all, unused, by_lane, near: [u32::MAX; NEAR] }
    }
}

/// Where a queue is remembered.
#[inline(always)]
fn place(Lane { whom, tag }: Lane) -> usize {
    // Fibonacci hashing: tags that follow each other lie apart.
    let mixed = (tag ^ whom.rotate_left(16)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> (u64::BITS - NEAR.trailing_zeros())) as usize
}

impl Queues {
    /// The queue of a lane, if there is one.
    #[inline(always)]
    fn find(&mut self, lane: Lane) -> Option<&mut Fifo> {
        let mut at = self.near[place(lane)];
        if self.all.get(at as usize).is_none_or(|queue| queue.lane != lane) {
            at = self.look_up(lane)?;
        }
        self.all.get_mut(at as usize).map(|queue| &mut queue.first)
    }

    #[inline(never)]
    fn look_up(&mut self, lane: Lane) -> Option<u32> {
        let at = *self.by_lane.get(&lane)?;
        self.near[place(lane)] = at;
        Some(at)
    }

    /// The same, made if there is none; `None` without memory.
    #[inline]
    fn find_or_make(&mut self, lane: Lane) -> Option<&mut Fifo> {
        let mut at = self.near[place(lane)];
        if self.all.get(at as usize).is_none_or(|queue| queue.lane != lane) {
            at = match self.look_up(lane) {
                Some(at) => at,
                None => self.make(lane)?,
            };
        }
        self.all.get_mut(at as usize).map(|queue| &mut queue.first)
    }

    #[cold]
    fn make(&mut self, lane: Lane) -> Option<u32> {
        let count = self.all.len() + 1;
        let room = self.by_lane.fits(1) && self.all.fits(1);
        // Each queue has a place among the unused, so that to let one go allocates nothing.
        if !room || !self.unused.fits(count - self.unused.len()) {
            return None;
        }
        let queue = Queue { lane, first: Fifo::default() };
        let at = match self.unused.pop() {
            Some(at) => {
                self.all[at as usize] = queue;
                at
            }
            None => {
                self.all.push(queue);
                count as u32 - 1
            }
        };
        self.by_lane.insert(lane, at);
        self.near[place(lane)] = at;
        Some(at)
    }

    /// Whether there are so many that empty ones go.
    #[inline]
    fn are_many(&self) -> bool {
        self.by_lane.len() > EMPTY
    }

    /// A queue has become empty, and goes.
    #[cold]
    fn forget(&mut self, lane: Lane) {
        if let Some(at) = self.by_lane.remove(&lane) {
            self.near[place(lane)] = u32::MAX;
            self.unused.push(at);
        }
    }
}

/// Some peers, of which a receive wants a message.
#[derive(Clone, Debug)]
pub struct Sources(Vec<Party>);

impl Sources {
    /// These, each named once or more.
    pub fn new(mut parties: Vec<Party>) -> Sources {
        parties.sort_unstable();
        parties.dedup();
        // As they are: to give back what is too much may take memory, too.
        Sources(parties)
    }

    /// In order, each once.
    pub fn parties(&self) -> &[Party] {
        &self.0
    }

    pub(super) fn have(&self, sender: Party) -> bool {
        self.0.binary_search(&sender).is_ok()
    }
}

/// Receives of which the same bits of the tag count, found by these.
struct Alike {
    queues: Queues,
    /// The bits; the others are 0 in their lanes.
    mask: u64,
    /// Receives from one sender, and from anybody.
    named: usize,
    any: usize,
}

impl Alike {
    fn new(mask: u64) -> Alike {
        Alike { queues: Queues::default(), mask, named: 0, any: 0 }
    }

    fn is_empty(&self) -> bool {
        self.named + self.any == 0
    }

    /// The lane of such receives, and messages.
    #[inline(always)]
    fn lane(&self, from: Party, Envelope { comm, tag }: Envelope) -> Lane {
        Lane::new(from, Envelope { comm, tag: tag & self.mask })
    }
}

/// Receives that wait.
pub struct Posted {
    exact: Alike,
    /// Those that leave the same bits open, of any communicator. Which bits, may change while there are none, and none in `open`,
    /// which may leave them open, too.
    masked: Alike,
    /// Those that leave other bits open, by communicator.
    open: HashMap<u32, Fifo>,
    /// Of the receives from some peers, whose `from` is [`Party::SOME`].
    sources: HashMap<u32, Sources>,
    /// Receives in `open`, and those that name some peers.
    opened: usize,
    some: usize,
    order: u64,
}

impl Default for Posted {
    fn default() -> Posted {
        Posted {
            exact: Alike::new(u64::MAX),
            masked: Alike::new(u64::MAX),
            open: HashMap::default(),
            sources: HashMap::default(),
            opened: 0,
            some: 0,
            order: 0,
        }
    }
}

impl Wanted {
    /// The lane of a receive each bit of whose tag counts.
    pub(super) fn lane(&self) -> Lane {
        Lane::new(self.from, self.envelope())
    }

    pub(super) fn envelope(&self) -> Envelope {
        Envelope { comm: self.comm, tag: self.tag }
    }
}

impl Posted {
    /// Takes a receive in, whose operation this is.
    #[inline]
    pub fn add(&mut self, ops: &mut Slab<Op>, index: u32, wanted: &Wanted) -> Result<(), Status> {
        let all = wanted.mask == u64::MAX;
        if !all && wanted.mask != self.masked.mask && self.masked.is_empty() && self.opened == 0 {
            self.masked.mask = wanted.mask;
        }
        let envelope = wanted.envelope();
        let alike = match all {
            true => Some(&mut self.exact),
            false => Some(&mut self.masked).filter(|masked| masked.mask == wanted.mask),
        };
        let queue = match alike {
            Some(alike) => alike.queues.find_or_make(alike.lane(wanted.from, envelope)),
            None if self.open.fits(1) => Some(self.open.entry(wanted.comm).or_default()),
            None => None,
        };
        let Some(queue) = queue else { return Err(room::none(size_of::<Queue>(), "a receive")) };
        self.order += 1;
        if let Some(op) = ops.get_mut(index) {
            op.order = self.order;
            queue.push(ops, op_links, index);
            *self.count(wanted) += 1;
        }
        Ok(())
    }

    /// Those among which such a receive is found by its tag.
    #[inline(always)]
    fn alike(&mut self, wanted: &Wanted) -> Option<&mut Alike> {
        match wanted.mask {
            u64::MAX => Some(&mut self.exact),
            mask if mask == self.masked.mask => Some(&mut self.masked),
            _ => None,
        }
    }

    /// How many there are of its kind.
    #[inline]
    fn count(&mut self, wanted: &Wanted) -> &mut usize {
        let alike = match wanted.mask {
            _ if wanted.from == Party::SOME => return &mut self.some,
            u64::MAX => &mut self.exact,
            mask if mask == self.masked.mask => &mut self.masked,
            _ => return &mut self.opened,
        };
        if wanted.from == Party::ANY { &mut alike.any } else { &mut alike.named }
    }

    /// The same from some peers.
    pub fn add_from(
        &mut self,
        ops: &mut Slab<Op>,
        index: u32,
        wanted: &Wanted,
        sources: Sources,
    ) -> Result<(), Status> {
        room::grow(&mut self.sources, 1, "receives from some peers")?;
        self.add(ops, index, wanted)?;
        self.sources.insert(index, sources);
        Ok(())
    }

    /// Lets a receive go.
    pub fn remove(&mut self, ops: &mut Slab<Op>, index: u32) {
        let Some(op) = ops.get(index) else { return };
        let (wanted, links) = (op.wanted, op.links);
        *self.count(&wanted) -= 1;
        if wanted.from == Party::SOME {
            self.sources.remove(&index);
        }
        let leave = |queue: &mut Fifo| {
            queue.remove(ops, op_links, index, links);
            queue.is_empty()
        };
        let envelope = wanted.envelope();
        if let Some(alike) = self.alike(&wanted) {
            let lane = alike.lane(wanted.from, envelope);
            if alike.queues.find(lane).is_some_and(leave) && alike.queues.are_many() {
                alike.queues.forget(lane);
            }
        } else if self.open.get_mut(&wanted.comm).is_some_and(leave) && self.open.len() > EMPTY {
            self.open.remove(&wanted.comm);
        }
    }

    /// The receive that has waited longest of those that accept this message; it leaves.
    #[inline(always)]
    pub fn take(&mut self, ops: &mut Slab<Op>, sender: Party, envelope: Envelope) -> Option<u32> {
        if self.some + self.opened > 0 {
            return self.take_of_all(ops, sender, envelope);
        }
        let alike = match (self.exact.is_empty(), self.masked.is_empty()) {
            (_, true) => &mut self.exact,
            (true, false) => &mut self.masked,
            (false, false) => return self.take_of_all(ops, sender, envelope),
        };
        let (from, count) = match (alike.named, alike.any) {
            (_, 0) => (sender, &mut alike.named),
            (0, _) => (Party::ANY, &mut alike.any),
            _ => return self.take_of_all(ops, sender, envelope),
        };
        let many = alike.queues.are_many();
        let tag = envelope.tag & alike.mask;
        let lane = Lane::new(from, Envelope { tag, ..envelope });
        let queue = alike.queues.find(lane)?;
        let index = queue.pop(ops, op_links)?;
        *count -= 1;
        if many && queue.is_empty() {
            alike.queues.forget(lane);
        }
        Some(index)
    }

    /// The same where there are receives of several kinds.
    #[inline(never)]
    fn take_of_all(
        &mut self,
        ops: &mut Slab<Op>,
        sender: Party,
        envelope: Envelope,
    ) -> Option<u32> {
        let mut oldest = None;
        for alike in [&mut self.exact, &mut self.masked] {
            for from in [sender, Party::ANY] {
                let queue = alike.queues.find(alike.lane(from, envelope));
                older(&mut oldest, queue.and_then(|queue| first(queue, ops, |_, _| true)));
            }
        }
        if self.some + self.opened > 0 {
            let some = |index: u32, _: &Wanted| {
                self.sources.get(&index).is_some_and(|some| some.have(sender))
            };
            let queue = self.exact.queues.find(Lane::new(Party::SOME, envelope));
            older(&mut oldest, queue.and_then(|queue| first(queue, ops, some)));
            let open = |_: u32, wanted: &Wanted| wanted.accepts(sender, envelope);
            let queue = self.open.get(&envelope.comm);
            older(&mut oldest, queue.and_then(|queue| first(queue, ops, open)));
        }
        let (_, index) = oldest?;
        self.remove(ops, index);
        Some(index)
    }
}

/// Keeps the one that comes first, of two by their order.
fn older(oldest: &mut Option<(u64, u32)>, found: Option<(u64, u32)>) {
    *oldest = [*oldest, found].into_iter().flatten().min();
}

/// The first of a queue that accepts a message: its order, and its index.
fn first(
    queue: &Fifo,
    ops: &Slab<Op>,
    accepts: impl Fn(u32, &Wanted) -> bool,
) -> Option<(u64, u32)> {
    let mut at = queue.first();
    while let Some((index, op)) = at.and_then(|i| Some((i, ops.get(i)?))) {
        if accepts(index, &op.wanted) {
            return Some((op.order, index));
        }
        at = op.links.next();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::front::message::{Memory, OnMessage};

    fn op(wanted: Wanted) -> Op {
        let memory = Memory { addr: 0, len: 0, device: 0 };
        Op::for_test(wanted, memory, OnMessage::Asked)
    }

    /// Receives with one mask after another, and with several at a time: each is found by what it accepts, the first that was posted first,
    /// and leaves from where it was put, also where the mask that most have has changed meanwhile.
    #[test]
    fn receives_are_found_whatever_masks_there_were_before() {
        const MASKS: [u64; 4] = [u64::MAX, !0xFF, !0xFF00, 0];
        let (mut ops, mut posted) = (Slab::default(), Posted::default());
        let mut waiting: Vec<(u32, Wanted)> = Vec::new();
        let mut seed = 7u64;
        let mut draw = |below: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..200_000 {
            // Now and then nobody waits, and another mask becomes the common one.
            let most = if draw(50) == 0 { 0 } else { 12 };
            let envelope = Envelope { comm: draw(2) as u32, tag: draw(3) << 8 | draw(3) };
            let from = if draw(3) == 0 { Party::ANY } else { Party::peer(draw(2) as u32) };
            match draw(5) {
                0 | 1 if waiting.len() < most => {
                    let mask = MASKS[draw(4) as usize];
                    let wanted = Wanted { from, comm: envelope.comm, tag: envelope.tag, mask };
                    let index = ops.insert(op(wanted)).ok().unwrap();
                    posted.add(&mut ops, index, &wanted).unwrap();
                    waiting.push((index, wanted));
                }
                2 if !waiting.is_empty() => {
                    let (index, _) = waiting.remove(draw(waiting.len() as u64) as usize);
                    posted.remove(&mut ops, index);
                    ops.vacate(index);
                }
                _ => {
                    let sender = Party::peer(draw(2) as u32);
                    let at = waiting.iter().position(|(_, w)| w.accepts(sender, envelope));
                    let found = posted.take(&mut ops, sender, envelope);
                    assert_eq!(found, at.map(|at| waiting[at].0));
                    if let Some(at) = at {
                        ops.vacate(waiting.remove(at).0);
                    }
                }
            }
        }
    }
}
