//! The operations of an unbound buffer in one direction, and the order in which their ends can be taken.

use std::collections::VecDeque;

use crate::engine::front::message::{MessageEnd, Party};
use crate::engine::list::{Fifo, Links};
use crate::engine::slab::Slab;
use crate::status::{Code, Status};

use super::aborted;
use super::waits::Waits;

/// Operations with the same peers and of the same slot: of two of these, a message of one of the peers meets the one that was called
/// first.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Lane {
    pub slot: u64,
    pub peers: Peers,
}

#[derive(PartialEq, Eq, Hash)]
pub(super) enum Peers {
    /// Or anybody.
    One(Party),
    /// In order, each once.
    Some(Vec<Party>),
}

impl Lane {
    /// Of these peers, in order, each once; of none: of anybody.
    pub fn of(slot: u64, peers: &[Party]) -> Result<Lane, Status> {
        let peers = match *peers {
            [] => Peers::One(Party::ANY),
            [one] => Peers::One(one),
            _ => {
                let mut copy = Vec::new();
                crate::room::grow(&mut copy, peers.len(), "peers of a receive")?;
                copy.extend_from_slice(peers);
                Peers::Some(copy)
            }
        };
        Ok(Lane { slot, peers })
    }

    fn copy(&self) -> Result<Lane, Status> {
        match &self.peers {
            Peers::One(one) => Ok(Lane { slot: self.slot, peers: Peers::One(*one) }),
            Peers::Some(peers) => Lane::of(self.slot, peers),
        }
    }
}

/// With so many lanes one that becomes empty is kept: it is mostly used again.
const LANES: usize = 64;

/// The operations of one lane, in the order of the calls.
struct Queue {
    lane: Lane,
    first: Fifo,
}

/// The same of all lanes. An operation knows its queue by its place, so a lane is looked for when one begins, and mostly it is that of
/// the one before.
#[derive(Default)]
struct Lanes {
    all: Vec<Queue>,
    unused: Vec<u32>,
    by_lane: foldhash::HashMap<Lane, u32>,
    last: u32,
}

impl Lanes {
    /// The place of a lane's queue, made if there is none.
    fn find_or_make(&mut self, lane: &Lane) -> Result<u32, Status> {
        if self.all.get(self.last as usize).is_none_or(|queue| queue.lane != *lane) {
            self.last = match self.by_lane.get(lane) {
                Some(&at) => at,
                None => self.make(lane)?,
            };
        }
        Ok(self.last)
    }

    #[cold]
    fn make(&mut self, lane: &Lane) -> Result<u32, Status> {
        let what = "operations of an unbound buffer";
        crate::room::grow(&mut self.by_lane, 1, what)?;
        crate::room::grow(&mut self.all, 1, what)?;
        // Each has a place among the unused, so that to let one go allocates nothing.
        let more = self.all.len() + 1 - self.unused.len();
        crate::room::grow(&mut self.unused, more, what)?;
        let (queue, key) = (Queue { lane: lane.copy()?, first: Fifo::default() }, lane.copy()?);
        let at = match self.unused.pop() {
            Some(at) => {
                self.all[at as usize] = queue;
                at
            }
            None => {
                self.all.push(queue);
                self.all.len() as u32 - 1
            }
        };
        self.by_lane.insert(key, at);
        Ok(at)
    }

    #[inline]
    fn get(&mut self, at: u32) -> Option<&mut Fifo> {
        self.all.get_mut(at as usize).map(|queue| &mut queue.first)
    }

    /// A queue has become empty: it goes, if there are many.
    #[inline]
    fn rests(&mut self, at: u32) {
        if self.by_lane.len() > LANES {
            self.forget(at);
        }
    }

    #[cold]
    fn forget(&mut self, at: u32) {
        let gone = Lane { slot: 0, peers: Peers::Some(Vec::new()) };
        let Some(queue) = self.all.get_mut(at as usize) else { return };
        // What is not used is no lane of anybody.
        let lane = std::mem::replace(&mut queue.lane, gone);
        self.by_lane.remove(&lane);
        self.unused.push(at);
    }
}

/// Its operations in one direction.
#[derive(Default)]
pub(super) struct Side {
    /// Those under way, and those whose end waits for one before it.
    pub begun: Slab<UnderWay>,
    /// The same by lane. Of more than [`LANES`] none is empty.
    lanes: Lanes,
    /// Rises as a call begins an operation, and as it returns.
    serial: u64,
    /// Ends that were not taken. There is always room for those of all that have begun.
    pub ended: VecDeque<MessageEnd>,
    /// Who waits for them.
    pub waits: Waits,
}

/// An operation under way.
pub(super) struct UnderWay {
    /// When its call began, and returned.
    pub serial: u64,
    returned: u64,
    /// The place of its lane.
    lane: u32,
    links: Links,
    /// Its request, once that is known.
    request: Option<u64>,
    /// How it has ended; one before it has not.
    pub end: Option<MessageEnd>,
}

fn links(op: &mut UnderWay) -> &mut Links {
    &mut op.links
}

impl Side {
    /// Whether an operation has begun whose end nobody can take yet.
    pub fn is_under_way(&self) -> bool {
        !self.begun.is_empty()
    }

    /// Takes an operation in, whose call begins: its place, and when that was.
    pub fn begin(&mut self, id: u64, lane: &Lane) -> Result<(u32, u64), Status> {
        let under_way = self.begun.len() + 1;
        crate::room::grow(&mut self.ended, under_way, "operations of an unbound buffer")?;
        let lane = self.lanes.find_or_make(lane)?;
        self.serial += 1;
        let (serial, returned) = (self.serial, u64::MAX);
        let Some(vacancy) = self.begun.vacancy() else {
            let text = text!(
                "{} operations of unbound buffer {id} are under way: no room for more",
                under_way - 1
            );
            return Err(Status::new(Code::ResourceExhausted, text));
        };
        let links = Links::default();
        let number =
            vacancy.fill(UnderWay { serial, returned, lane, links, request: None, end: None });
        if let Some(queue) = self.lanes.get(lane) {
            queue.push(&mut self.begun, self::links, number);
        }
        Ok((number, serial))
    }

    /// The lane of an operation.
    pub fn lane(&self, op: &UnderWay) -> Option<&Lane> {
        self.lanes.all.get(op.lane as usize).map(|queue| &queue.lane)
    }

    /// Its call returns, and it has this request. False: it has ended meanwhile, and another may be in its place.
    pub fn returned(&mut self, number: u32, serial: u64, request: u64) -> bool {
        let Some(op) = self.begun.get_mut(number).filter(|op| op.serial == serial) else {
            return false;
        };
        self.serial += 1;
        (op.returned, op.request) = (self.serial, Some(request));
        true
    }

    /// An operation has ended.
    pub fn end(&mut self, number: u32, end: MessageEnd) {
        let Some(op) = self.begun.get_mut(number) else { return };
        let first = self.lanes.get(op.lane).and_then(|queue| queue.first());
        // One that failed may have met nothing, while those before it wait for something: nobody takes it for one of these.
        if first == Some(number) || end.result.is_err() {
            self.ended.push_back(end);
            self.leave(number);
        } else {
            op.end = Some(end);
            self.let_go(number);
        }
    }

    /// What a wait finds that begins: an end, or that it was aborted before. `None`: it has to wait.
    #[inline]
    pub fn take_now(&mut self, id: u64) -> Option<Result<MessageEnd, Status>> {
        if self.waits.takes_abort() {
            return Some(Err(aborted(id)));
        }
        self.ended.pop_front().map(Ok)
    }

    /// What a wait finds that is under way.
    pub fn take(&mut self, wait: u64, id: u64) -> Option<Result<MessageEnd, Status>> {
        if self.waits.is_aborted(wait) {
            return Some(Err(aborted(id)));
        }
        let end = self.ended.pop_front()?;
        // From now on an abort is for others.
        self.waits.end(wait);
        Some(Ok(end))
    }

    /// It is not there any more. What ended behind it can be taken, if nothing else is before that.
    pub fn leave(&mut self, number: u32) {
        let Some((at, around)) = self.begun.take(number, |op| (op.lane, op.links)) else { return };
        let Some(queue) = self.lanes.get(at) else { return };
        queue.remove(&mut self.begun, links, number, around);
        match queue.first() {
            Some(first) => self.let_go(first),
            None => self.lanes.rests(at),
        }
    }

    /// Ends of this one's lane that can be taken are: those before which all has ended whose calls had returned before theirs began.
    /// Of calls that were made at once nobody knows which came first, and a message may meet either.
    fn let_go(&mut self, number: u32) {
        let Some(lane) = self.begun.get(number).map(|op| op.lane) else { return };
        let Some(queue) = self.lanes.get(lane) else { return };
        let (mut at, mut before) = (queue.first(), u64::MAX);
        while let Some((number, op)) = at.and_then(|at| Some((at, self.begun.get_mut(at)?))) {
            if op.serial > before {
                return;
            }
            at = op.links.next();
            let Some(end) = op.end.take() else {
                before = before.min(op.returned);
                continue;
            };
            let around = op.links;
            self.ended.push_back(end);
            queue.remove(&mut self.begun, links, number, around);
            self.begun.vacate(number);
        }
        if queue.is_empty() {
            self.lanes.rests(lane);
        }
    }

    /// The request of an operation under way, from place `at` on.
    pub fn next_request(&mut self, at: &mut usize) -> Option<u64> {
        let index = self.begun.next(at, |op| op.request.is_some())?;
        self.begun.get(index)?.request
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::message::Envelope;

    fn end(len: u64, code: Code) -> MessageEnd {
        let result = if code == Code::Ok { Ok(()) } else { Err(Status::new(code, "")) };
        let (party, envelope) = (Party::peer(1), Envelope { comm: 0, tag: 7 });
        let (incarnation, extra, short) = (0, None, Default::default());
        MessageEnd { result, party, incarnation, envelope, len, extra, short }
    }

    fn begin(side: &mut Side, slot: u64) -> (u32, u64) {
        side.begin(1, &Lane::of(slot, &[Party::peer(1)]).unwrap()).unwrap()
    }

    fn ended(side: &mut Side) -> Vec<u64> {
        side.ended.drain(..).map(|end| end.len).collect()
    }

    #[test]
    fn an_end_waits_for_those_before_it_and_for_no_failure() {
        let mut side = Side::default();
        let ops: Vec<u32> = (0..5)
            .map(|i| {
                let (number, serial) = begin(&mut side, 7);
                assert!(side.returned(number, serial, i));
                number
            })
            .collect();
        let (other, _) = begin(&mut side, 8);
        side.end(ops[1], end(1, Code::Ok));
        side.end(ops[3], end(3, Code::DeadlineExceeded));
        side.end(ops[4], end(4, Code::Ok));
        side.end(other, end(8, Code::Ok));
        assert_eq!(ended(&mut side), [3, 8]);
        side.end(ops[0], end(0, Code::Cancelled));
        assert_eq!(ended(&mut side), [0, 1]);
        // Its call fails: it has no end.
        side.leave(ops[2]);
        assert_eq!(ended(&mut side), [4]);
        assert!(side.begun.is_empty() && side.lanes.all.iter().all(|queue| queue.first.is_empty()));
    }

    #[test]
    fn of_calls_made_at_once_neither_waits_for_the_other() {
        let mut side = Side::default();
        let [a, b] = [(); 2].map(|()| begin(&mut side, 7));
        assert!(side.returned(b.0, b.1, 2) && side.returned(a.0, a.1, 1));
        let c = begin(&mut side, 7);
        side.end(c.0, end(3, Code::Ok));
        assert!(side.returned(c.0, c.1, 3), "it is not gone");
        assert!(side.ended.is_empty());
        side.end(b.0, end(2, Code::Ok));
        assert_eq!(ended(&mut side), [2]);
        side.end(a.0, end(1, Code::Ok));
        assert_eq!(ended(&mut side), [1, 3]);
        assert!(side.begun.is_empty() && side.lanes.all.iter().all(|queue| queue.first.is_empty()));
        assert!(!side.returned(a.0, a.1, 1));
    }

    #[test]
    fn lanes_that_are_empty_are_bounded() {
        let mut side = Side::default();
        for slot in 0..10 * LANES as u64 {
            let [a, b] = [(); 2].map(|()| begin(&mut side, slot));
            side.leave(a.0);
            side.end(b.0, end(slot, Code::Ok));
            let [c, d] = [(); 2].map(|()| begin(&mut side, slot));
            side.end(d.0, end(slot, Code::Ok));
            side.leave(c.0);
        }
        assert!(side.begun.is_empty() && side.lanes.by_lane.len() <= LANES + 1);
    }
}
