//! Who waits for whom: receives that wait for a message, and messages that wait for a receive.
//!
//! Either kind lies in a queue of its communicator and tag. A receive whose mask leaves bits of the tag open is in the
//! queue of its communicator, and looks through that of the messages.

use foldhash::HashMap;

use super::flow::COST;
use super::{Envelope, Op, Party, Wanted};
use crate::engine::list::{Fifo, Links};
use crate::engine::slab::Slab;
use crate::fabric::keys::Place;
use crate::room::{self, Grows};
use crate::status::Status;

/// Bytes of messages that may wait here although the connection over which they came has ended.
pub const ORPHANS: u64 = 64 << 20;

/// With more queues of receives, one that becomes empty goes.
const EMPTY: usize = 1024;

pub(super) fn op_links(op: &mut Op) -> &mut Links {
    &mut op.links
}

fn in_tag(arrived: &mut Arrived) -> &mut Links {
    &mut arrived.in_tag
}

fn in_comm(arrived: &mut Arrived) -> &mut Links {
    &mut arrived.in_comm
}

/// Receives that wait.
#[derive(Default)]
pub struct Posted {
    exact: HashMap<Envelope, Fifo>,
    open: HashMap<u32, Fifo>,
    order: u64,
}

impl Posted {
    /// Takes a receive in.
    pub fn add(&mut self, ops: &mut Slab<Op>, index: u32) -> Result<(), Status> {
        if !self.exact.fits(1) || !self.open.fits(1) {
            return Err(room::none(size_of::<Fifo>(), "a receive"));
        }
        let Some(op) = ops.get_mut(index) else { return Ok(()) };
        self.order += 1;
        op.order = self.order;
        let (wanted, envelope) = (op.wanted, op.envelope());
        let queue = match wanted.mask {
            u64::MAX => self.exact.entry(envelope).or_default(),
            _ => self.open.entry(wanted.comm).or_default(),
        };
        queue.push(ops, op_links, index);
        Ok(())
    }

    /// Lets a receive go.
    pub fn remove(&mut self, ops: &mut Slab<Op>, index: u32) {
        let Some(op) = ops.get(index) else { return };
        let (wanted, envelope, links) = (op.wanted, op.envelope(), op.links);
        let leave = |queue: &mut Fifo| {
            queue.remove(ops, op_links, index, links);
            queue.is_empty()
        };
        if wanted.mask == u64::MAX {
            // A queue that was used is mostly used again.
            if self.exact.get_mut(&envelope).is_some_and(leave) && self.exact.len() > EMPTY {
                self.exact.remove(&envelope);
            }
        } else if self.open.get_mut(&wanted.comm).is_some_and(leave) {
            self.open.remove(&wanted.comm);
        }
    }

    /// The receive that has waited longest of those that accept this message; it leaves.
    pub fn take(&mut self, ops: &mut Slab<Op>, sender: Party, envelope: Envelope) -> Option<u32> {
        let first = |queue: Option<&Fifo>| {
            let mut at = queue?.first();
            while let Some((index, op)) = at.and_then(|i| Some((i, ops.get(i)?))) {
                if op.wanted.accepts(sender, envelope) {
                    return Some((op.order, index));
                }
                at = op.links.next();
            }
            None
        };
        let exact = first(self.exact.get(&envelope));
        if self.open.is_empty() {
            let (_, index) = exact?;
            // The usual case: no other queue is looked at.
            let (links, many) = (ops.get(index)?.links, self.exact.len() > EMPTY);
            let queue = self.exact.get_mut(&envelope)?;
            queue.remove(ops, op_links, index, links);
            if many && queue.is_empty() {
                self.exact.remove(&envelope);
            }
            return Some(index);
        }
        let open = first(self.open.get(&envelope.comm));
        let (_, index) = [exact, open].into_iter().flatten().min()?;
        self.remove(ops, index);
        Some(index)
    }
}

/// Where the content of a message that waits is.
pub enum Content {
    /// Here. `sync`: the sender's number, which is told.
    Here { bytes: Vec<u8>, sync: Option<u32> },
    /// With the sender, under its response index, and where it may be read.
    There { response: u32, source: Option<Place> },
    /// In the memory of this send of our own.
    Own { op: u32 },
    /// Nowhere: its sender took it back after a probe had claimed it.
    Gone,
}

/// How a peer names a message to take it back: its channel, its number, and whether that is a MSG's.
pub type Number = (u32, u32, bool);

/// A message that waits for its receive.
pub struct Arrived {
    /// Public id, once it is claimed.
    pub id: u64,
    pub sender: Party,
    pub envelope: Envelope,
    pub len: u64,
    /// The channel that it counts for.
    pub ch: Option<u32>,
    pub content: Content,
    /// No receive but its claimant's finds it.
    pub claimed: bool,
    in_tag: Links,
    in_comm: Links,
}

impl Arrived {
    fn number(&self) -> Option<Number> {
        match self.content {
            Content::Here { sync, .. } => Some((self.ch?, sync?, true)),
            Content::There { response, .. } => Some((self.ch?, response, false)),
            Content::Own { .. } | Content::Gone => None,
        }
    }

    fn is_orphan(&self) -> bool {
        let here = matches!(self.content, Content::Here { .. });
        here && self.ch.is_none() && self.sender != Party::OWN
    }

    pub fn new(
        sender: Party,
        ch: Option<u32>,
        envelope: Envelope,
        len: u64,
        content: Content,
    ) -> Arrived {
        let (in_tag, in_comm) = (Links::default(), Links::default());
        Arrived { id: 0, sender, envelope, len, ch, content, claimed: false, in_tag, in_comm }
    }
}

/// Messages that wait.
#[derive(Default)]
pub struct Unexpected {
    all: Slab<Arrived>,
    /// Bytes of those whose connection has ended: they count in no window.
    orphans: u64,
    by_tag: HashMap<Envelope, Fifo>,
    by_comm: HashMap<u32, Fifo>,
    /// What its sender may take back: until a receive meets it, or the connection ends.
    by_number: HashMap<Number, u32>,
}

impl Unexpected {
    /// Takes a message in.
    pub fn add(&mut self, arrived: Arrived) -> Result<u32, Status> {
        let envelope = arrived.envelope;
        let none = || room::none(size_of::<Arrived>(), "a message");
        if !self.by_tag.fits(1) || !self.by_comm.fits(1) || !self.by_number.fits(1) {
            return Err(none());
        }
        let number = arrived.number();
        let index = self.all.insert(arrived).map_err(|_| none())?;
        if let Some(number) = number {
            self.by_number.insert(number, index);
        }
        self.by_tag.entry(envelope).or_default().push(&mut self.all, in_tag, index);
        self.by_comm.entry(envelope.comm).or_default().push(&mut self.all, in_comm, index);
        Ok(index)
    }

    /// The first message that a receive accepts.
    pub fn find(&self, wanted: &Wanted) -> Option<u32> {
        if self.all.is_empty() {
            return None;
        }
        let exact = wanted.mask == u64::MAX;
        let queue = match exact {
            true => self.by_tag.get(&Envelope { comm: wanted.comm, tag: wanted.tag })?,
            false => self.by_comm.get(&wanted.comm)?,
        };
        let mut at = queue.first();
        while let Some((index, a)) = at.and_then(|i| Some((i, self.all.get(i)?))) {
            if wanted.accepts(a.sender, a.envelope) {
                return Some(index);
            }
            at = if exact { a.in_tag.next() } else { a.in_comm.next() };
        }
        None
    }

    /// A message keeps its place, and is found no more.
    pub fn claim(&mut self, index: u32, id: u64) {
        self.unlink(index);
        if let Some(a) = self.all.get_mut(index) {
            (a.id, a.claimed) = (id, true);
        }
    }

    pub fn get(&self, index: u32) -> Option<&Arrived> {
        self.all.get(index)
    }

    /// The message of this public id, if it was claimed.
    pub fn claimed(&self, id: u64) -> Option<u32> {
        let (index, a) = self.all.occupant(id as u32)?;
        (a.claimed && a.id == id).then_some(index)
    }

    /// The first that `which` picks, from slot `at` on.
    pub fn next(&self, at: &mut usize, which: impl Fn(&Arrived) -> bool) -> Option<u32> {
        self.all.next(at, which)
    }

    /// Takes a message out.
    pub fn remove(&mut self, index: u32) -> Option<Arrived> {
        self.forget_number(index);
        if !self.all.get(index)?.claimed {
            self.unlink(index);
        }
        let arrived = self.all.remove(index)?;
        if arrived.is_orphan() {
            self.orphans = self.orphans.saturating_sub(COST + arrived.len);
        }
        Some(arrived)
    }

    /// Takes out what a send of our own has given. False: it was met.
    pub fn remove_own(&mut self, index: u32, send: u32) -> bool {
        let this = |a: &&Arrived| matches!(a.content, Content::Own { op } if op == send);
        self.get(index).filter(this).is_some() && self.take_back(index).is_some()
    }

    /// Its sender takes a message back: what it was. Who has claimed it finds that it is gone.
    pub fn take_back(&mut self, index: u32) -> Option<(Content, u64)> {
        if !self.all.get(index)?.claimed {
            return self.remove(index).map(|a| (a.content, a.len));
        }
        self.forget_number(index);
        let a = self.all.get_mut(index)?;
        a.ch = None;
        Some((std::mem::replace(&mut a.content, Content::Gone), a.len))
    }

    /// The message that its sender may take back by this number.
    pub fn withdrawable(&self, number: Number) -> Option<u32> {
        self.by_number.get(&number).copied()
    }

    fn forget_number(&mut self, index: u32) {
        let number = self.all.get(index).and_then(Arrived::number);
        if let Some(number) = number.filter(|n| self.by_number.get(n) == Some(&index)) {
            self.by_number.remove(&number);
        }
    }

    /// A connection has ended. What came over it whole stays, within a bound; what is still with the sender is gone.
    /// How many were dropped that were whole.
    pub fn lose_channel(&mut self, ch: u32) -> usize {
        let (mut at, mut dropped) = (0, 0);
        while let Some(index) = self.next(&mut at, |a| a.ch == Some(ch)) {
            self.forget_number(index);
            let Some(a) = self.all.get_mut(index) else { continue };
            a.ch = None;
            let cost = COST + a.len;
            match &mut a.content {
                Content::Here { sync, .. } if self.orphans + cost <= ORPHANS => {
                    *sync = None;
                    self.orphans += cost;
                }
                // Its receive hears of the loss.
                Content::There { .. } if a.claimed => {}
                content => {
                    if matches!(content, Content::Here { .. }) {
                        dropped += 1;
                        self.orphans += cost;
                    }
                    self.remove(index);
                }
            }
        }
        dropped
    }

    fn unlink(&mut self, index: u32) {
        let Some(a) = self.all.get(index) else { return };
        let (envelope, tag_links, comm_links) = (a.envelope, a.in_tag, a.in_comm);
        if let Some(queue) = self.by_tag.get_mut(&envelope) {
            queue.remove(&mut self.all, in_tag, index, tag_links);
            if queue.is_empty() {
                self.by_tag.remove(&envelope);
            }
        }
        if let Some(queue) = self.by_comm.get_mut(&envelope.comm) {
            queue.remove(&mut self.all, in_comm, index, comm_links);
            if queue.is_empty() {
                self.by_comm.remove(&envelope.comm);
            }
        }
    }
}
