//! Messages that wait for their receive, in the queues that `matching` tells of.

mod orphans;

use foldhash::HashMap;
use smallvec::SmallVec;

use super::flow::COST;
use super::matching::{Lane, Sources};
use super::{Beside, Envelope, Party, Wanted};
use crate::engine::list::{Fifo, Links};
use crate::engine::slab::{CAPACITY, Slab};
use crate::fabric::keys::Place;
use crate::protocol::message::{Extra, OfferCost};
use crate::room::{self, Grows};
use crate::status::{Code, Status};

/// Bytes of messages that may wait here although the connection over which they came has ended.
pub const ORPHANS: u64 = 64 << 20;

/// Further regions of the sources of offers that wait here, of all peers: each takes 16 bytes. A source with more is not read, but
/// written from.
pub const REGIONS: usize = 1 << 20;

/// Peers of a receive each of whose messages are looked for.
const FEW: usize = 64;
/// As long as no more messages wait, each is looked at.
const ROW: usize = 8;

fn in_lane(arrived: &mut Arrived) -> &mut Links {
    &mut arrived.in_lane
}

fn in_tag(arrived: &mut Arrived) -> &mut Links {
    &mut arrived.in_tag
}

fn in_comm(arrived: &mut Arrived) -> &mut Links {
    &mut arrived.in_comm
}

/// Content that waits. Short content takes no memory of its own.
pub type Bytes = SmallVec<[u8; 64]>;

/// Where the content of a message that waits is.
pub enum Content {
    /// Here. `sync`: the sender's number, which is told.
    Here { bytes: Bytes, sync: Option<u32> },
    /// With the sender, under its response index, and where it may be read.
    There { response: u32, source: Option<Place>, limit: u32 },
    /// In the memory of this send of our own.
    Own { op: u32 },
    /// Nowhere: its sender took it back after a probe had claimed it.
    Gone,
}

impl Content {
    /// Further regions that it names.
    fn regions(&self) -> usize {
        match self {
            Content::There { source: Some(place), .. } => place.rkeys.rest().len(),
            _ => 0,
        }
    }
}

/// How a peer names a message to take it back: its channel, its number, and whether that is a MSG's.
pub type Number = (u32, u32, bool);

/// A message that waits for its receive.
pub struct Arrived {
    /// Public id, once it is claimed.
    pub id: u64,
    pub sender: Party,
    /// Its sender's incarnation, in a word.
    pub incarnation: u64,
    pub envelope: Envelope,
    pub len: u64,
    /// The channel that it counts for.
    pub ch: Option<u32>,
    pub content: Content,
    /// What came beside it.
    pub extra: Option<Box<Beside>>,
    /// No receive but its claimant's finds it.
    pub claimed: bool,
    /// Rises with each.
    order: u64,
    /// Of one whose connection has ended: which of these ends that was.
    end: u32,
    in_lane: Links,
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
        (sender, incarnation): (Party, u64),
        ch: Option<u32>,
        envelope: Envelope,
        len: u64,
        content: Content,
    ) -> Arrived {
        let none = Links::default();
        Arrived {
            id: 0,
            sender,
            incarnation,
            envelope,
            len,
            ch,
            content,
            extra: None,
            claimed: false,
            order: 0,
            end: 0,
            in_lane: none,
            in_tag: none,
            in_comm: none,
        }
    }

    /// The same with what came beside the content.
    pub fn with(mut self, extra: &Extra<'_>) -> Result<Arrived, Status> {
        self.extra = Beside::of(extra)?;
        Ok(self)
    }

    /// The same of what its content counts for: none does that is still with its sender.
    fn counted(&self) -> u64 {
        match self.content {
            Content::Here { .. } => self.cost(),
            _ => self.offer_cost().sum(),
        }
    }

    /// A copy of what came beside it.
    pub fn copy_extra(&self) -> Result<Option<Box<Beside>>, Status> {
        self.extra.as_ref().map_or(Ok(None), |beside| Beside::of(&beside.extra()))
    }

    /// Whether it is for a handler.
    pub fn is_active(&self) -> bool {
        self.extra.as_ref().is_some_and(|beside| beside.extra().active)
    }

    /// Bytes that it counts for in its window.
    pub fn cost(&self) -> u64 {
        self.len + self.offer_cost().sum()
    }

    /// Bytes that came with it.
    pub fn offer_cost(&self) -> OfferCost {
        self.extra.as_ref().map_or_else(OfferCost::default, |beside| beside.extra().offer_cost())
    }
}

/// Messages that wait.
///
/// A few are in a row, each of which is looked at. Once there are more, all are in the queues, until none is left.
#[derive(Default)]
pub struct Unexpected {
    all: Slab<Arrived>,
    /// Bytes of those of peers, each [`COST`] more than it counts for.
    bytes: u64,
    /// Bytes of those whose connection has ended: they count in no window.
    orphans: u64,
    /// Connections that have ended.
    ends: u32,
    /// Further regions that they name.
    regions: usize,
    order: u64,
    /// The row, in the order in which they came, by the links of lanes.
    row: Fifo,
    /// How many can be found, there or in the queues.
    found: usize,
    /// They are in the queues.
    queued: bool,
    by_lane: HashMap<Lane, Fifo>,
    by_tag: HashMap<Envelope, Fifo>,
    by_comm: HashMap<u32, Fifo>,
    /// Those that are for handlers which are not there.
    by_handler: HashMap<u32, Fifo>,
    /// What its sender may take back: until a receive meets it, or the connection ends.
    by_number: HashMap<Number, u32>,
}

impl Unexpected {
    /// Takes a message in.
    pub fn add(&mut self, mut arrived: Arrived) -> Result<u32, Status> {
        self.order += 1;
        arrived.order = self.order;
        let none = || room::none(size_of::<Arrived>(), "a message");
        let (number, active, envelope) = (arrived.number(), arrived.is_active(), arrived.envelope);
        let queued = self.queued || self.found >= ROW;
        let fits = match active {
            true => self.by_handler.fits(1),
            false => !queued || self.queues_fit(),
        };
        if self.all.len() >= CAPACITY {
            let text = text!("{CAPACITY} messages wait to be received: no room for more");
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        if !fits || number.is_some() && !self.by_number.fits(1) {
            return Err(none());
        }
        let index = self.all.insert(arrived).map_err(|_| none())?;
        if let Some(number) = number {
            self.by_number.insert(number, index);
        }
        self.count(index);
        if active {
            self.by_handler.entry(envelope.comm).or_default().push(&mut self.all, in_tag, index);
            return Ok(index);
        }
        self.found += 1;
        if queued {
            self.leave_row();
            self.enqueue(index);
        } else {
            self.row.push(&mut self.all, in_lane, index);
        }
        Ok(index)
    }

    /// Whether there is room in the queues for one more, and for those in the row.
    fn queues_fit(&mut self) -> bool {
        let more = if self.queued { 1 } else { 1 + self.found };
        self.by_lane.fits(more) && self.by_tag.fits(more) && self.by_comm.fits(more)
    }

    /// Those in the row go to the queues, where there is room for them.
    fn leave_row(&mut self) {
        self.queued = true;
        let mut row = std::mem::take(&mut self.row).first();
        while let Some(index) = row {
            row = self.all.get(index).and_then(|a| a.in_lane.next());
            self.enqueue(index);
        }
    }

    fn enqueue(&mut self, index: u32) {
        let Some(a) = self.all.get(index) else { return };
        let (from, envelope) = (a.sender, a.envelope);
        let lane = Lane::new(from, envelope);
        self.by_lane.entry(lane).or_default().push(&mut self.all, in_lane, index);
        self.by_tag.entry(envelope).or_default().push(&mut self.all, in_tag, index);
        self.by_comm.entry(envelope.comm).or_default().push(&mut self.all, in_comm, index);
    }

    /// Counts one that has come. A source of too many regions is forgotten.
    fn count(&mut self, index: u32) {
        let Some(a) = self.all.get_mut(index) else { return };
        let n = a.content.regions();
        if let (Content::There { source, .. }, true) = (&mut a.content, self.regions + n > REGIONS)
        {
            *source = None;
        }
        self.regions += a.content.regions();
        if a.sender != Party::OWN {
            self.bytes += COST + a.counted();
        }
    }

    /// Counts one no more.
    fn uncount(&mut self, a: &Arrived) {
        self.regions -= a.content.regions();
        if a.sender != Party::OWN && !matches!(a.content, Content::Gone) {
            self.bytes = self.bytes.saturating_sub(COST + a.counted());
        }
    }

    /// Bytes of those of peers, but of those whose connection has ended.
    pub fn bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.orphans)
    }

    /// The first message that a receive accepts.
    #[inline]
    pub fn find(&self, wanted: &Wanted) -> Option<u32> {
        if self.all.is_empty() { None } else { self.find_one(wanted) }
    }

    fn find_one(&self, wanted: &Wanted) -> Option<u32> {
        let accepts = |a: &Arrived| wanted.accepts(a.sender, a.envelope);
        if !self.queued {
            return self.look(&self.row, |a| a.in_lane, accepts);
        }
        match (wanted.mask, wanted.from) {
            (u64::MAX, Party::ANY) => self.by_tag.get(&wanted.envelope())?.first(),
            (u64::MAX, _) => self.by_lane.get(&wanted.lane())?.first(),
            _ => self.look(self.by_comm.get(&wanted.comm)?, |a| a.in_comm, accepts),
        }
    }

    /// The same of what one incarnation of a peer has sent. What earlier ones have may lie before it.
    pub fn find_of(&self, wanted: &Wanted, incarnation: u64) -> Option<u32> {
        let accepts =
            |a: &Arrived| a.incarnation == incarnation && wanted.accepts(a.sender, a.envelope);
        match wanted.mask {
            _ if !self.queued => self.look(&self.row, |a| a.in_lane, accepts),
            u64::MAX => self.look(self.by_lane.get(&wanted.lane())?, |a| a.in_lane, accepts),
            _ => self.look(self.by_comm.get(&wanted.comm)?, |a| a.in_comm, accepts),
        }
    }

    /// The same of a receive from some peers.
    pub fn find_from(&self, wanted: &Wanted, sources: &Sources) -> Option<u32> {
        let envelope = wanted.envelope();
        if !self.queued {
            let accepts = |a: &Arrived| a.envelope == envelope && sources.have(a.sender);
            return self.look(&self.row, |a| a.in_lane, accepts);
        }
        let queue = self.by_tag.get(&envelope)?;
        if sources.parties().len() > FEW {
            return self.look(queue, |a| a.in_tag, |a| sources.have(a.sender));
        }
        let head = |&from: &Party| {
            let index = self.by_lane.get(&Lane::new(from, envelope))?.first()?;
            Some((self.all.get(index)?.order, index))
        };
        sources.parties().iter().filter_map(head).min().map(|(_, index)| index)
    }

    /// The first of a queue that will do.
    fn look(
        &self,
        queue: &Fifo,
        links: impl Fn(&Arrived) -> Links,
        will_do: impl Fn(&Arrived) -> bool,
    ) -> Option<u32> {
        let mut at = queue.first();
        while let Some((index, a)) = at.and_then(|i| Some((i, self.all.get(i)?))) {
            if will_do(a) {
                return Some(index);
            }
            at = links(a).next();
        }
        None
    }

    /// The first message for a handler.
    pub fn find_active(&self, id: u32) -> Option<u32> {
        self.by_handler.get(&id)?.first()
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
        self.uncount(&arrived);
        if arrived.is_orphan() {
            self.orphans = self.orphans.saturating_sub(COST + arrived.cost());
        }
        Some(arrived)
    }

    /// Takes out what a send of our own has given. False: it was met.
    pub fn remove_own(&mut self, index: u32, send: u32) -> bool {
        let this = |a: &&Arrived| matches!(a.content, Content::Own { op } if op == send);
        self.get(index).filter(this).is_some() && self.take_back(index).is_some()
    }

    /// Its sender takes a message back: what it was, how long, and what came with it. Who has claimed it finds that it is gone.
    pub fn take_back(&mut self, index: u32) -> Option<(Content, u64, OfferCost)> {
        if !self.all.get(index)?.claimed {
            return self.remove(index).map(|a| {
                let cost = a.offer_cost();
                (a.content, a.len, cost)
            });
        }
        self.forget_number(index);
        let a = self.all.get_mut(index)?;
        a.ch = None;
        let (counted, len, cost) = (a.counted(), a.len, a.offer_cost());
        let content = std::mem::replace(&mut a.content, Content::Gone);
        self.regions -= content.regions();
        if a.sender != Party::OWN {
            self.bytes = self.bytes.saturating_sub(COST + counted);
        }
        Some((content, len, cost))
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

    fn unlink(&mut self, index: u32) {
        let Some(a) = self.all.get(index) else { return };
        let (envelope, tag_links, comm_links) = (a.envelope, a.in_tag, a.in_comm);
        let (lane, lane_links) = (Lane::new(a.sender, envelope), a.in_lane);
        if a.is_active() {
            if let Some(queue) = self.by_handler.get_mut(&envelope.comm) {
                queue.remove(&mut self.all, in_tag, index, tag_links);
                if queue.is_empty() {
                    self.by_handler.remove(&envelope.comm);
                }
            }
            return;
        }
        self.found -= 1;
        if !self.queued {
            return self.row.remove(&mut self.all, in_lane, index, lane_links);
        }
        self.queued = self.found > 0;
        if let Some(queue) = self.by_lane.get_mut(&lane) {
            queue.remove(&mut self.all, in_lane, index, lane_links);
            if queue.is_empty() {
                self.by_lane.remove(&lane);
            }
        }
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
