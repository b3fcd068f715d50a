//! Tagged messages: what is known of them over two engines, held to what MPI says of matching.
//! `messages_by_name` has scenarios, `messages_walks` the seeded walks, `messages_model` what MPI says.

use std::sync::Arc;

use rdma_transport::engine::front::message::flow::COST;
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
use super::script::{EAGER, FIRST, Setup};
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
    pub wanted: Wanted,
    /// The receive takes what a probe has claimed.
    pub claimed: bool,
    /// Rises with each operation of the walk.
    pub number: usize,
    /// The incarnation of its node.
    pub inc: u64,
    pub ended: Option<MessageEnd>,
    pub cancelled: bool,
    /// The send that the receive has met, if it can be told from others.
    met: Option<usize>,
    /// When it began, and when its end was seen.
    pub begun: usize,
    pub over: usize,
    /// Until when a receive is known to have met nothing.
    pub waited: usize,
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
    /// The same, from which alone something is received.
    pub only: u64,
    /// Rises with each thing that is to have a place among the others.
    clock: usize,
}

type Place = (Memory, Option<Arc<Layout>>);

/// What travels beside a message of this number: nothing, as a rule.
fn header(number: usize) -> Vec<u8> {
    if number.is_multiple_of(3) { content(number, 1 + number as u64 % 30) } else { Vec::new() }
}

impl Op {
    pub fn envelope(&self) -> Envelope {
        Envelope { comm: self.wanted.comm, tag: self.wanted.tag }
    }
}

pub fn is_ok(op: &Op) -> bool {
    op.ended.as_ref().is_some_and(|e| e.result.is_ok())
}

impl Post {
    pub fn new(setup: Setup) -> Post {
        let (sends, recvs, claims) = Default::default();
        let (numbers, reclaims, incarnation, only, clock) = Default::default();
        let s = setup.connected();
        Post { s, sends, recvs, claims, numbers, reclaims, incarnation, only, clock }
    }

    fn now(&mut self) -> usize {
        self.clock += 1;
        self.clock
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

    /// An operation that is about to begin.
    fn op(&mut self, node: usize, wanted: Wanted, (len, device): (u64, u32), what: &str) -> Op {
        let (number, begun, inc) = (self.number(), self.now(), self.s.w.who(node).inc);
        let (memory, layout) = self.place(node, device, len, &format!("{what} {number}"));
        let (claimed, cancelled, ended, met) = Default::default();
        let (id, over, waited) = Default::default();
        Op {
            node,
            id,
            memory,
            layout,
            wanted,
            claimed,
            number,
            inc,
            ended,
            cancelled,
            met,
            begun,
            over,
            waited,
        }
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
        let Envelope { comm, tag } = envelope;
        let wanted = Wanted { from: to, comm, tag, mask: ALL };
        let mut op = self.op(node, wanted, (len, device), "message");
        let (number, memory) = (op.number, op.memory);
        let bytes = content(number, len);
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
        let mut op = self.op(node, wanted, (len, device), "destination");
        let (number, memory, pieces) = (op.number, op.memory, op.layout.clone());
        op.claimed = claim.is_some();
        // Anybody is whoever there is: then the peers are named.
        let named = match wanted.from {
            Party::ANY => vec![self.other(node), Party::OWN],
            one => vec![one],
        };
        let envelope = Envelope { comm: wanted.comm, tag: wanted.tag };
        let names = number.is_multiple_of(3) && wanted.mask == ALL;
        let only = self.only;
        let begun = self.s.call(node, |e, fx| {
            let mut begin = |e: &mut Engine, memory: Memory| match claim {
                None if only != 0 => {
                    let of = (wanted, only);
                    e.message_recv_of(fx, of, memory, None, OnMessage::Asked)
                }
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

    /// This node sends, in a communicator in which nobody receives, until its window is full.
    pub fn fill_window(&mut self, node: usize) {
        const SHORT: u64 = 40;
        let (to, extra) = (self.other(node), &Extra::NONE);
        let memory = self.memory(node, 0, SHORT, "what nobody receives");
        let content = &content(0, SHORT)[..];
        self.s.w.mem.write(self.s.w.who(node), false, memory.addr, content, "the application");
        let (mode, timeout, trial) = (Mode::Standard, None, None);
        let (incarnation, envelope) = (0, Envelope { comm: NOBODY, tag: 0 });
        while self.s.call(node, |e, _| e.message_room(to)).unwrap() >= COST + SHORT {
            let done = OnMessage::Asked;
            let out = Outgoing {
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
            let sent = self.s.call(node, |e, fx| e.message_send(fx, out)).unwrap();
            self.s.run();
            if let Sending::Begun(id) = sent {
                let end = self.s.call(node, |e, _| e.message_take_end(id)).unwrap();
                assert!(end.is_some_and(|end| end.result.is_ok()), "it had room");
            }
        }
    }

    pub fn cancel(&mut self, node: usize, id: u64) -> Result<(), Status> {
        let recv = self.recvs.iter().position(|r| (r.node, r.id) == (node, id));
        // An end that is there, and that nobody has taken, is no answer to that.
        let ended = self.s.call(node, |e, _| e.message_has_ended(id));
        let recv = recv.filter(|_| ended == Ok(false));
        let found = match recv.map(|r| &self.recvs[r]) {
            Some(&Op { wanted, claimed: false, ended: None, .. }) => self.find(node, wanted),
            _ => None,
        };
        let result = self.s.call(node, |e, fx| e.message_cancel(fx, id));
        let now = self.now();
        self.look();
        // One that had met something is not ended by that.
        if let Some(recv) = recv.filter(|&r| self.recvs[r].over > now) {
            self.recvs[recv].waited = now;
            assert_eq!(found, None, "receive {recv} waited for a message that was here");
        }
        result
    }

    /// As a deadline does.
    pub fn give_up(&mut self, node: usize, id: u64) -> Result<(), Status> {
        let result = self.s.call(node, |e, fx| e.message_give_up(fx, id));
        self.look();
        result
    }

    /// What such a receive would meet that is here.
    fn find(&mut self, node: usize, wanted: Wanted) -> Option<Envelope> {
        self.probe(node, wanted, false).map(|found| found.envelope)
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
                (self.sends[i].ended, self.sends[i].over) = (Some(end), self.now());
                self.has_no_other_end(node, id);
            }
        }
        for i in 0..self.recvs.len() {
            let Op { node, id, ended: None, .. } = self.recvs[i] else { continue };
            if let Some(end) = self.s.call(node, |e, _| e.message_take_end(id)).unwrap() {
                self.received(i, end);
                self.has_no_other_end(node, id);
            }
        }
    }

    fn has_no_other_end(&mut self, node: usize, id: u64) {
        let again = self.s.call(node, |e, _| e.message_take_end(id));
        assert_eq!(again.unwrap_err().code, Code::NotFound, "it has a second end");
    }

    /// A receive has ended: what is in its memory is what its end says.
    fn received(&mut self, index: usize, end: MessageEnd) {
        let memory = self.recvs[index].memory;
        let bytes = self.read(&self.recvs[index], memory.len);
        match &end.result {
            Ok(()) => {
                let len = end.len as usize;
                assert!(end.len <= memory.len);
                let at = self.sends.iter().position(|s| {
                    s.memory.len == end.len && content(s.number, end.len) == bytes[..len]
                });
                assert!(end.len < 8 || at.is_some(), "bytes that nobody sent");
                self.recvs[index].met = at.filter(|_| end.len >= 8);
                let from = at.map(|at| &self.sends[at]);
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
        (self.recvs[index].ended, self.recvs[index].over) = (Some(end), self.now());
    }

    /// The send that a receive has met.
    pub fn met(&self, recv: &Op) -> Option<usize> {
        recv.met
    }
}

/// The communicator in which nobody receives.
const NOBODY: u32 = 9;
pub const TAG: Envelope = Envelope { comm: 0, tag: 1 };
pub const ANY: Wanted = Wanted { from: Party::ANY, comm: 0, tag: 0, mask: 0 };

pub fn code(op: &Op) -> Option<Code> {
    op.ended.as_ref().map(|e| e.result.as_ref().map_or_else(|s| s.code, |()| Code::Ok))
}
