//! Tagged messages: what is known of them over two engines, held to what MPI says of matching.
//! `messages_by_name` has scenarios, `messages_walks` the seeded walks.

use std::sync::Arc;

use rdma_transport::engine::front::message::{
    Envelope, Found, Memory, MessageEnd, Mode, OnMessage, Outgoing, Party, Receiving, Sending,
    Sources, Wanted,
};
use rdma_transport::engine::layout::{LAYOUT, Layout, Piece};
use rdma_transport::engine::{Engine, Fx};
use rdma_transport::protocol::message::Extra;
use rdma_transport::status::{Code, Status};

use super::common::memory::content;
use super::common::rng::mix;
use super::script::{EAGER, FIRST, LARGE, Setup};
use super::stage::Stage;

pub const ALL: u64 = u64::MAX;
const FILL: u8 = 0xCD;

/// A send or a receive.
pub struct Op {
    pub node: usize,
    pub id: u64,
    pub memory: Memory,
    /// The same, where it lies in pieces.
    layout: Option<Arc<Layout>>,
    wanted: Wanted,
    /// The receive takes what a probe has claimed.
    claimed: bool,
    /// Rises with each operation of the walk.
    number: usize,
    pub ended: Option<MessageEnd>,
    pub cancelled: bool,
}

/// A stage, and what is known of its messages.
pub struct Post {
    pub s: Stage,
    pub sends: Vec<Op>,
    pub recvs: Vec<Op>,
    pub claims: Vec<(usize, Found)>,
    pub numbers: usize,
    /// Memory of sends is taken back: a READ of it may be refused.
    pub reclaims: bool,
    /// The incarnation of the other node that alone may get what is sent; 0: whichever has the name.
    pub incarnation: u64,
}

type Place = (Memory, Option<Arc<Layout>>);

/// What travels beside a message of this number: nothing, as a rule.
fn header(number: usize) -> Vec<u8> {
    if number.is_multiple_of(3) { content(number, 1 + number as u64 % 30) } else { Vec::new() }
}

pub fn is_ok(op: &Op) -> bool {
    op.ended.as_ref().is_some_and(|e| e.result.is_ok())
}

impl Post {
    pub fn new(setup: Setup) -> Post {
        let (sends, recvs, claims) = Default::default();
        let (numbers, reclaims, incarnation) = Default::default();
        Post { s: setup.connected(), sends, recvs, claims, numbers, reclaims, incarnation }
    }

    /// The other node, as this one numbers it.
    pub fn other(&self, node: usize) -> Party {
        let engine = self.s.engines[node].as_ref().unwrap();
        Party::peer(engine.find_peer(&format!("node{}", 1 - node)).unwrap())
    }

    pub fn memory(&mut self, node: usize, device: u32, len: u64, what: &str) -> Memory {
        let addr = self.s.memory(node, device, len, what.to_owned());
        Memory { addr, len, device }
    }

    /// The same, in pieces for [`LAYOUT`]: of all lengths, and some empty.
    fn place(&mut self, node: usize, device: u32, len: u64, what: &str) -> Place {
        if device != LAYOUT {
            return (self.memory(node, device, len, what), None);
        }
        let (mut pieces, mut left) = (Vec::new(), len);
        while left > 0 || pieces.is_empty() {
            let i = pieces.len() as u64;
            let most = 1 + mix(len + i * 1000 + self.numbers as u64) % (len / 3 + 1);
            let len = if i % 3 == 1 { 0 } else { left.min(most) };
            let Memory { addr, .. } = self.memory(node, 0, len, what);
            pieces.push(Piece { addr, len });
            left -= len;
        }
        let layout = Layout::listed(pieces.into_iter(), false).unwrap();
        (Memory { addr: 0, len, device }, Some(Arc::new(layout)))
    }

    /// Each piece of the memory of an operation.
    pub fn each(op: &Op, f: impl FnMut(Piece)) {
        let whole = Piece { addr: op.memory.addr, len: op.memory.len };
        match &op.layout {
            None => [whole].into_iter().for_each(f),
            Some(layout) => layout.each(0, u64::MAX, f),
        }
    }

    fn read(&self, op: &Op, len: u64) -> Vec<u8> {
        let (who, device) = (self.s.w.who(op.node), op.memory.device != 0 && op.layout.is_none());
        let mut all = Vec::new();
        Post::each(op, |p| {
            all.extend_from_slice(self.s.w.mem.read(who, device, p.addr, p.len, "a result"));
        });
        all.truncate(len as usize);
        all
    }

    fn write(&mut self, op: &Op, bytes: &[u8], who_writes: &str) {
        let (who, device) = (self.s.w.who(op.node), op.memory.device != 0 && op.layout.is_none());
        let mut rest = bytes;
        Post::each(op, |p| {
            let (one, more) = rest.split_at(rest.len().min(p.len as usize));
            self.s.w.mem.write(who, device, p.addr, one, who_writes);
            rest = more;
        });
    }

    pub fn number(&mut self) -> usize {
        self.numbers += 1;
        self.numbers
    }

    /// Sends so many bytes. `given`: the call has copied them.
    pub fn send(
        &mut self,
        node: usize,
        to: Party,
        envelope: Envelope,
        len: u64,
        mode: Mode,
    ) -> usize {
        self.send_from(node, to, envelope, (len, 0, true), mode)
    }

    pub fn send_from(
        &mut self,
        node: usize,
        to: Party,
        envelope: Envelope,
        (len, device, given): (u64, u32, bool),
        mode: Mode,
    ) -> usize {
        let number = self.number();
        let (memory, layout) = self.place(node, device, len, &format!("message {number}"));
        let bytes = content(number, len);
        let Envelope { comm, tag } = envelope;
        let wanted = Wanted { from: to, comm, tag, mask: ALL };
        let (claimed, ended, cancelled) = (false, None, false);
        let mut op = Op { node, id: 0, memory, layout, wanted, claimed, number, ended, cancelled };
        self.write(&op, &bytes, "the application");
        let here = device == 0 || device == LAYOUT;
        // Of what is long, perhaps the beginning.
        let copied = match given && here {
            true if len <= EAGER => &bytes[..],
            true if device == 0 => &bytes[..FIRST as usize],
            _ => &[],
        };
        let header = header(number);
        let extra = &Extra { user: &header, parts: &[], active: false, first: None };
        let (timeout, done) = (None, OnMessage::Asked);
        let (incarnation, trial, content) = (self.incarnation, None, copied);
        let mut out = Outgoing {
            to,
            incarnation,
            envelope,
            memory,
            content,
            extra,
            mode,
            timeout,
            done,
            trial,
        };
        let pieces = op.layout.clone();
        let begun = self.s.call(node, |e, fx| match pieces {
            None => match e.message_stage(fx, &mut out) {
                Some(buffer) => {
                    fx.copy_in(&buffer, &bytes);
                    e.message_send_staged(fx, out, buffer)
                }
                None => e.message_send(fx, out),
            },
            Some(layout) => e.message_send_pieces(fx, out, layout),
        });
        match begun.unwrap() {
            Sending::Done => {
                let (result, extra, short) = (Ok(()), None, Default::default());
                let party = to;
                let end = MessageEnd { result, party, incarnation, envelope, len, extra, short };
                op.ended = Some(end);
            }
            Sending::Begun(id) => op.id = id,
        }
        self.sends.push(op);
        self.look();
        self.sends.len() - 1
    }

    pub fn recv(&mut self, node: usize, wanted: Wanted, len: u64) -> usize {
        self.recv_into(node, wanted, len, 0, None)
    }

    pub fn recv_into(
        &mut self,
        node: usize,
        wanted: Wanted,
        len: u64,
        device: u32,
        claim: Option<u64>,
    ) -> usize {
        let number = self.number();
        let (memory, layout) = self.place(node, device, len, &format!("destination {number}"));
        let pieces = layout.clone();
        // Anybody is whoever there is: then the peers are named.
        let named = match wanted.from {
            Party::ANY => vec![self.other(node), Party::OWN],
            one => vec![one],
        };
        let envelope = Envelope { comm: wanted.comm, tag: wanted.tag };
        let names = number.is_multiple_of(3) && wanted.mask == ALL;
        let begun = self.s.call(node, |e, fx| {
            let mut begin = |e: &mut Engine, memory: Memory| match claim {
                None if names => {
                    let sources = Sources::new(named.clone());
                    e.message_recv_from(fx, sources, envelope, memory, None, OnMessage::Asked)
                }
                // As the manager does, or without its first try.
                None => {
                    let tries = number.is_multiple_of(2) && memory.device != LAYOUT;
                    let mut post = || e.message_post(fx, &wanted, &memory, None, OnMessage::Asked);
                    match tries.then(&mut post).flatten() {
                        Some(id) => Ok(Receiving::Begun(id)),
                        None => e.message_recv(fx, wanted, memory, None, OnMessage::Asked),
                    }
                }
                Some(m) => e.message_recv_claimed(fx, m, memory, None, OnMessage::Asked),
            };
            match pieces {
                None => begin(e, memory),
                Some(layout) => e.message_recv_pieces(layout, begin),
            }
        });
        let (claimed, cancelled) = (claim.is_some(), false);
        let mut op =
            Op { node, id: 0, memory, layout, wanted, claimed, number, ended: None, cancelled };
        let ended = match begun.unwrap() {
            Receiving::Done(bytes, end) => {
                self.write(&op, &bytes, "the call");
                Some(end)
            }
            Receiving::Begun(id) => {
                op.id = id;
                None
            }
        };
        self.recvs.push(op);
        let index = self.recvs.len() - 1;
        if let Some(end) = ended {
            self.received(index, end);
        }
        self.look();
        index
    }

    pub fn cancel(&mut self, node: usize, id: u64) -> Result<(), Status> {
        let result = self.s.call(node, |e, fx| e.message_cancel(fx, id));
        self.look();
        result
    }

    /// As a deadline does.
    pub fn give_up(&mut self, node: usize, id: u64) -> Result<(), Status> {
        let result = self.s.call(node, |e, fx| e.message_give_up(fx, id));
        self.look();
        result
    }

    pub fn probe(&mut self, node: usize, wanted: Wanted, claim: bool) -> Option<Found> {
        let found = self.s.call(node, |e, _| e.message_probe(&wanted, claim)).unwrap();
        if let (true, Some(found)) = (claim, &found) {
            let extra = found.extra.as_ref().map(|beside| beside.again().unwrap());
            self.claims.push((node, Found { extra, ..*found }));
        }
        found
    }

    pub fn run(&mut self) {
        self.s.run();
        self.look();
    }

    /// Takes the ends that are there.
    pub fn look(&mut self) {
        self.s.work(0);
        self.s.work(1);
        for i in 0..self.sends.len() {
            let Op { node, id, ended: None, .. } = self.sends[i] else { continue };
            if let Some(end) = self.s.call(node, |e, _| e.message_take_end(id)).unwrap() {
                let mem = &mut self.s.w.mem;
                Post::each(&self.sends[i], |p| mem.free(p.addr, "its message has ended"));
                self.sends[i].ended = Some(end);
            }
        }
        for i in 0..self.recvs.len() {
            let Op { node, id, ended: None, .. } = self.recvs[i] else { continue };
            if let Some(end) = self.s.call(node, |e, _| e.message_take_end(id)).unwrap() {
                self.received(i, end);
            }
        }
    }

    /// A receive has ended: what is in its memory is what its end says.
    fn received(&mut self, index: usize, end: MessageEnd) {
        let memory = self.recvs[index].memory;
        let bytes = self.read(&self.recvs[index], memory.len);
        match &end.result {
            Ok(()) => {
                let len = end.len as usize;
                assert!(end.len <= memory.len);
                let from = self.sends.iter().find(|s| {
                    content(s.number, end.len) == bytes[..len] && s.memory.len == end.len
                });
                assert!(end.len < 8 || from.is_some(), "bytes that nobody sent");
                let beside = end.extra.as_ref().map_or(&[][..], |beside| &beside.user);
                // The shortest cannot be told apart.
                if let (Some(sent), true) = (from, end.len >= 8) {
                    assert_eq!(beside, header(sent.number), "the header of another message");
                }
                assert!(bytes[len..].iter().all(|&b| b == FILL), "more was written");
            }
            Err(status) if status.code == Code::OutOfRange => {
                assert!(end.len > memory.len, "{status}");
                assert!(bytes.iter().all(|&b| b == FILL), "a part was written");
            }
            Err(status) => {
                use Code::*;
                let early = [Cancelled, Unavailable, DeadlineExceeded, FailedPrecondition];
                let refused = self.reclaims && status.code == PermissionDenied;
                let failing = refused || !self.s.failing.is_empty();
                assert!(early.contains(&status.code) || failing, "{status}");
            }
        }
        let mem = &mut self.s.w.mem;
        Post::each(&self.recvs[index], |p| mem.freeze(p.addr, "its receive has ended"));
        self.recvs[index].ended = Some(end);
    }

    /// The send that a receive has met.
    pub fn met(&self, recv: &Op) -> Option<usize> {
        let end = recv.ended.as_ref().filter(|e| e.result.is_ok() && e.len >= 8)?;
        let bytes = self.read(recv, end.len);
        self.sends
            .iter()
            .position(|s| s.memory.len == end.len && content(s.number, end.len) == bytes)
    }

    /// Order, among those messages that can be told apart.
    fn check_order(&self) {
        let met: Vec<Option<usize>> = self.recvs.iter().map(|r| self.met(r)).collect();
        let mut by: Vec<Option<usize>> = vec![None; self.sends.len()];
        for (r, s) in met.iter().enumerate().filter_map(|(r, s)| Some((r, (*s)?))) {
            assert_eq!(by[s].replace(r), None, "message {s} was received twice");
            let (send, recv) = (&self.sends[s], &self.recvs[r]);
            if !recv.claimed {
                assert_eq!(send.wanted.comm, recv.wanted.comm);
                assert_eq!((send.wanted.tag ^ recv.wanted.tag) & recv.wanted.mask, 0);
            }
            assert_eq!(recv.ended.as_ref().unwrap().envelope.tag, send.wanted.tag);
        }
        for (r, s2) in met.iter().enumerate().filter_map(|(r, s)| Some((r, (*s)?))) {
            let recv = &self.recvs[r];
            if recv.claimed {
                continue;
            }
            for (s1, first) in self.sends.iter().enumerate().take(s2) {
                let second = &self.sends[s2];
                let same = first.node == second.node
                    && first.wanted.from == second.wanted.from
                    && first.wanted.comm == second.wanted.comm
                    && (first.wanted.tag ^ recv.wanted.tag) & recv.wanted.mask == 0
                    && first.memory.len >= 8
                    && is_ok(first);
                let Some(r1) = by[s1] else {
                    // Met by one that was too small, or one whose end was bad.
                    continue;
                };
                let overtaken =
                    same && !self.recvs[r1].claimed && self.recvs[r1].number > recv.number;
                assert!(!overtaken, "message {s2} overtook {s1}");
            }
        }
    }

    /// No receive waits for a message that is here.
    fn check_meetings(&mut self) {
        for i in 0..self.recvs.len() {
            let Op { node, wanted, ended: None, claimed: false, .. } = self.recvs[i] else {
                continue;
            };
            let found = self.probe(node, wanted, false);
            assert_eq!(found, None, "receive {i} waits for a message that is here");
        }
    }

    /// Ends what is left, and the stage.
    pub fn finish(&mut self) {
        self.s.failing.clear();
        self.s.let_all_go();
        self.look();
        self.check_meetings();
        for (node, found) in std::mem::take(&mut self.claims) {
            let wanted = Wanted { from: Party::ANY, comm: 0, tag: 0, mask: 0 };
            self.recv_into(node, wanted, 2 * LARGE, 0, Some(found.message));
        }
        // What no receive has met: a receive for each, so that everything comes.
        for node in [0, 1] {
            for comm in 0..3 {
                let wanted = Wanted { from: Party::ANY, comm, tag: 0, mask: 0 };
                while self.probe(node, wanted, false).is_some() {
                    self.recv(node, wanted, 2 * LARGE);
                    self.run();
                }
            }
        }
        for i in 0..self.recvs.len() {
            if self.recvs[i].ended.is_none() {
                let Op { node, id, .. } = self.recvs[i];
                self.cancel(node, id).unwrap();
            }
        }
        self.run();
        for op in self.sends.iter().chain(&self.recvs) {
            assert!(op.ended.is_some(), "operation {} has no end", op.number);
        }
        self.check_order();
        self.s.finish();
    }
}

pub const TAG: Envelope = Envelope { comm: 0, tag: 1 };
pub const ANY: Wanted = Wanted { from: Party::ANY, comm: 0, tag: 0, mask: 0 };

pub fn code(op: &Op) -> Option<Code> {
    op.ended.as_ref().map(|e| e.result.as_ref().map_or_else(|s| s.code, |()| Code::Ok))
}
