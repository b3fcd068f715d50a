//! The operations of an unbound buffer in one direction, and the order in which their ends can be taken.

use std::collections::VecDeque;

use crate::engine::front::message::{MessageEnd, Party};
use crate::engine::list::{Fifo, Links};
use crate::engine::slab::Slab;
use crate::status::{Code, Status};

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

/// Its operations in one direction.
#[derive(Default)]
pub(super) struct Side {
    /// Those under way, and those whose end waits for one before it.
    pub begun: Slab<UnderWay>,
    /// The same by lane, in the order of the calls. Of more than [`LANES`] none is empty.
    lanes: foldhash::HashMap<Lane, Fifo>,
    /// Rises as a call begins an operation, and as it returns.
    serial: u64,
    /// Ends that were not taken. There is always room for those of all that have begun.
    pub ended: VecDeque<MessageEnd>,
    /// Who waits for them.
    pub waits: Waits,
    /// The buffer is being destroyed.
    pub gone: bool,
}

/// An operation under way.
pub(super) struct UnderWay {
    /// When its call began, and returned.
    pub serial: u64,
    returned: u64,
    pub lane: Lane,
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
    /// Takes an operation in, whose call begins: its place, and when that was.
    pub fn begin(&mut self, id: u64, lane: Lane) -> Result<(u32, u64), Status> {
        let under_way = self.begun.len() + 1;
        crate::room::grow(&mut self.ended, under_way, "operations of an unbound buffer")?;
        let queue = match self.lanes.get_mut(&lane) {
            Some(queue) => queue,
            None => {
                crate::room::grow(&mut self.lanes, 1, "operations of an unbound buffer")?;
                self.lanes.entry(lane.copy()?).or_default()
            }
        };
        self.serial += 1;
        let (serial, returned) = (self.serial, u64::MAX);
        let op =
            UnderWay { serial, returned, lane, links: Links::default(), request: None, end: None };
        let number = self.begun.insert(op).map_err(|_| {
            let text = format!(
                "{} operations of unbound buffer {id} are under way: no room for more",
                under_way - 1
            );
            Status::new(Code::ResourceExhausted, text)
        })?;
        queue.push(&mut self.begun, links, number);
        Ok((number, serial))
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
        if end.result.is_err() {
            // It may have met nothing, while those before it wait for something: nobody takes it for one of these.
            self.ended.push_back(end);
            self.leave(number);
        } else if let Some(op) = self.begun.get_mut(number) {
            op.end = Some(end);
            self.let_go(number);
        }
    }

    /// It is not there any more. What ended behind it can be taken, if nothing else is before that.
    pub fn leave(&mut self, number: u32) {
        let Some(op) = self.begun.remove(number) else { return };
        let Some(lane) = self.lanes.get_mut(&op.lane) else { return };
        lane.remove(&mut self.begun, links, number, op.links);
        match lane.first() {
            Some(first) => self.let_go(first),
            None if self.lanes.len() > LANES => drop(self.lanes.remove(&op.lane)),
            None => {}
        }
    }

    /// Ends of this one's lane that can be taken are: those before which all has ended whose calls had returned before theirs began.
    /// Of calls that were made at once nobody knows which came first, and a message may meet either.
    fn let_go(&mut self, number: u32) {
        let Some(lane) = self.begun.get(number).and_then(|op| self.lanes.get_mut(&op.lane)) else {
            return;
        };
        let (mut at, mut before) = (lane.first(), u64::MAX);
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
            lane.remove(&mut self.begun, links, number, around);
            let gone = self.begun.remove(number);
            if let (Some(op), true) = (gone, at.is_none() && lane.is_empty()) {
                if self.lanes.len() > LANES {
                    self.lanes.remove(&op.lane);
                }
                return;
            }
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
        MessageEnd { result, party, envelope, len, extra: None, short: Default::default() }
    }

    fn begin(side: &mut Side, slot: u64) -> (u32, u64) {
        side.begin(1, Lane::of(slot, &[Party::peer(1)]).unwrap()).unwrap()
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
        assert!(side.begun.is_empty() && side.lanes.values().all(|lane| lane.is_empty()));
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
        assert!(side.begun.is_empty() && side.lanes.values().all(|lane| lane.is_empty()));
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
        assert!(side.begun.is_empty() && side.lanes.len() <= LANES + 1);
    }
}
