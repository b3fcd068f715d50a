//! Tagged messages beside the tensors: what the applications send and receive of them, and what has to hold.

use rdma_transport::engine::Fx;
use rdma_transport::engine::front::message::{
    Envelope, Memory, MessageEnd, Mode, OnMessage, Outgoing, Party, Receiving, Sending, Wanted,
};
use rdma_transport::protocol::message::Extra;
use rdma_transport::status::Status;

use super::app::Act;
use super::check;
use super::common::memory::{Who, content};
use super::profile::MS;
use super::sim::Sim;
use super::world::{Event, World};

/// The content of the message of this number is that of no tensor.
const CONTENT: usize = 2_000_000;

/// A send, or a receive.
pub struct MessageOp {
    sends: bool,
    node: usize,
    peer: usize,
    tag: u64,
    len: u64,
    device: u32,
    mode: Mode,
    timeout: Option<u64>,
    who: Option<Who>,
    id: Option<u64>,
    addr: u64,
    /// Set once: its one end.
    ended: Option<Result<(), Status>>,
    /// A receive has got it.
    taken: bool,
}

impl MessageOp {
    pub fn node(&self) -> usize {
        self.node
    }

    /// It has begun, and nobody was told of its end.
    fn is_open(&self) -> bool {
        self.who.is_some() && self.ended.is_none()
    }
}

/// Plans the messages of a run: of some, so that in the others all is as exact as before.
pub fn plan(w: &mut World, (begin, end): (u64, u64)) -> Vec<MessageOp> {
    // By a copy of what draws, so that a seed is otherwise what it was.
    let (mut rng, p, mut ops) = (w.rng.clone(), w.profile.clone(), Vec::new());
    if !rng.percent(60) {
        return ops;
    }
    for i in 0..rng.range(5, 80) {
        let nodes = p.nodes as u64;
        let from = rng.below(nodes) as usize;
        let away = if rng.percent(10) { 0 } else { rng.range(1, nodes - 1) as usize };
        let to = (from + away) % p.nodes;
        let len = match rng.below(10) {
            0 => 0,
            1..=4 => rng.range(8, 200),
            5..=7 => rng.range(200, 3000),
            _ => rng.range(3000, p.large),
        };
        let tag = if p.quiet { i } else { rng.below(6) };
        for sends in [true, false] {
            let device = if p.devices && rng.percent(30) { rng.range(1, 2) as u32 } else { 0 };
            let mode = if rng.percent(30) { Mode::Synchronous } else { Mode::Standard };
            let (node, peer) = if sends { (from, to) } else { (to, from) };
            let timeout = rng.percent(p.short_timeouts).then(|| rng.range(0, 5 * MS));
            let (who, id, addr, ended, taken) = Default::default();
            let op = MessageOp {
                sends,
                node,
                peer,
                tag,
                len,
                device,
                mode,
                timeout,
                who,
                id,
                addr,
                ended,
                taken,
            };
            ops.push(op);
            let (op, at) = (ops.len() - 1, rng.range(begin, end));
            w.at(at, Event::App(Act::Message(op)));
            if rng.percent(p.cancels) {
                let give_up = rng.percent(50);
                let at = at + rng.below(3 * MS);
                w.at(at, Event::App(Act::MessageCancel { op, give_up }));
            }
        }
    }
    ops
}

impl Sim {
    /// The peer of an operation, as its node numbers it.
    fn party(&self, node: usize, peer: usize) -> Party {
        let engine = self.engines[node].as_ref().unwrap();
        match peer == node {
            true => Party::OWN,
            false => Party::peer(engine.find_peer(&format!("node{peer}")).unwrap()),
        }
    }

    pub fn message(&mut self, op: usize) {
        let MessageOp { sends, node, len, device, .. } = self.app.messages[op];
        let who = self.w.who(node);
        let what = format!("memory of message operation {op}");
        let addr = self.w.mem.alloc(who, device, len, 0xCD, what);
        self.maybe_register(who, device, addr, len);
        let m = &mut self.app.messages[op];
        (m.who, m.addr) = (Some(who), addr);
        let memory = Memory { addr, len, device };
        if sends { self.message_send(op, memory) } else { self.message_recv(op, memory) }
    }

    fn message_send(&mut self, op: usize, memory: Memory) {
        let MessageOp { node, peer, tag, mode, timeout, .. } = self.app.messages[op];
        let (who, to) = (self.w.who(node), self.party(node, peer));
        let bytes = content(CONTENT + op, memory.len);
        self.w.mem.write(who, memory.device != 0, memory.addr, &bytes, "the application");
        let copied = memory.device == 0 && self.w.rng.percent(50);
        let mut out = Outgoing {
            to,
            incarnation: 0,
            envelope: Envelope { comm: 0, tag },
            memory,
            content: if copied { &bytes[..] } else { &[] },
            extra: &Extra::NONE,
            mode,
            timeout,
            done: OnMessage::Asked,
            trial: None,
        };
        let begun = self.call(node, |e, fx| match e.message_stage(fx, &mut out) {
            Some(buffer) => {
                fx.copy_in(&buffer, &bytes);
                e.message_send_staged(fx, out, buffer)
            }
            None => e.message_send(fx, out),
        });
        self.w.trace(|| format!("message {op} of {who:?}: {begun:?}"));
        match begun {
            Ok(Sending::Begun(id)) => self.app.messages[op].id = Some(id),
            Ok(Sending::Done) => self.message_is_over(op, Ok(())),
            Err(status) => {
                check::refused(self, &status);
                self.message_is_over(op, Err(status));
            }
        }
    }

    fn message_recv(&mut self, op: usize, memory: Memory) {
        let MessageOp { node, peer, tag, timeout, .. } = self.app.messages[op];
        let any = !self.w.profile.quiet && self.w.rng.percent(30);
        let from = if any { Party::ANY } else { self.party(node, peer) };
        let wanted = Wanted { from, comm: 0, tag, mask: u64::MAX };
        let begun =
            self.call(node, |e, fx| e.message_recv(fx, wanted, memory, timeout, OnMessage::Asked));
        match begun {
            Ok(Receiving::Begun(id)) => self.app.messages[op].id = Some(id),
            Ok(Receiving::Done(bytes, end)) => {
                let who = self.w.who(node);
                self.w.mem.write(who, memory.device != 0, memory.addr, &bytes, "the call");
                self.message_received(op, end);
            }
            Err(status) => {
                check::refused(self, &status);
                self.message_is_over(op, Err(status));
            }
        }
    }

    pub fn message_cancel(&mut self, op: usize, give_up: bool) {
        let m = &self.app.messages[op];
        let (Some(id), Some(who), true) = (m.id, m.who, m.is_open()) else { return };
        if !self.w.lives(who) {
            return;
        }
        let result = self.call(who.node, |e, fx| match give_up {
            true => e.message_give_up(fx, id),
            false => e.message_cancel(fx, id),
        });
        result.expect("it has not ended");
    }

    /// The memory of an operation is the application's: whoever has begun it hears of its end, once.
    pub fn message_ended(&mut self, who: Who, index: u32) {
        self.engines[who.node].as_mut().unwrap().message_ended(index);
        for op in 0..self.app.messages.len() {
            let m = &self.app.messages[op];
            let (Some(id), true) = (m.id, m.who == Some(who) && m.is_open()) else { continue };
            let engine = self.engines[who.node].as_mut().unwrap();
            let Some(end) = engine.message_take_end(id).expect("it was not asked for") else {
                continue;
            };
            assert!(engine.message_take_end(id).is_err(), "message operation {op} ended twice");
            match m.sends {
                true => self.message_is_over(op, end.result),
                false => self.message_received(op, end),
            }
        }
    }

    /// A receive has ended: if well, with a message that was sent for it, and that no other has.
    fn message_received(&mut self, op: usize, end: MessageEnd) {
        if end.result.is_ok() {
            let m = &self.app.messages[op];
            let who = m.who.unwrap();
            assert_eq!(end.envelope.tag, m.tag, "receive {op} has a message of another tag");
            let got = self.w.mem.read(who, m.device != 0, m.addr, end.len, "a received message");
            let fits = |(i, s): (usize, &MessageOp)| {
                let same = (s.tag, s.peer, s.len) == (m.tag, m.node, end.len)
                    && self.party(m.node, s.node) == end.party;
                s.sends && s.who.is_some() && !s.taken && same && content(CONTENT + i, s.len) == got
            };
            let sent = self.app.messages.iter().enumerate().position(fits);
            let sent = sent.unwrap_or_else(|| panic!("receive {op} has what was not sent for it"));
            self.app.messages[sent].taken = true;
        }
        self.message_is_over(op, end.result);
    }

    fn message_is_over(&mut self, op: usize, result: Result<(), Status>) {
        self.w.trace(|| format!("message operation {op} ended: {result:?}"));
        let MessageOp { sends, addr, .. } = self.app.messages[op];
        match &result {
            Ok(()) => self.w.meet(if sends { "message sent" } else { "message received" }),
            Err(status) => {
                check::plausible(self, status, sends);
                self.w.meet(format!("message {:?} {:?}", status.code, status.reason));
            }
        }
        match sends {
            true => self.w.mem.free(addr, "its message has ended"),
            false => self.w.mem.freeze(addr, "its receive has ended"),
        }
        let m = &mut self.app.messages[op];
        assert!(m.ended.is_none(), "message operation {op} ended twice");
        m.ended = Some(result);
    }

    /// A process is gone, and what it had begun.
    pub fn messages_crashed(&mut self, who: Who) {
        for m in self.app.messages.iter_mut().filter(|m| m.who == Some(who)) {
            m.ended.get_or_insert_with(|| Err(Status::gone("its own process ended")));
        }
    }

    /// Operations of a node, or of all, that nobody was told the end of.
    pub fn messages_open(&self, who: Option<Who>) -> usize {
        let of = |m: &&MessageOp| m.is_open() && (who.is_none() || m.who == who);
        self.app.messages.iter().filter(of).count()
    }

    /// In a run without disturbances.
    pub fn messages_succeeded(&self) {
        for (i, m) in self.app.messages.iter().enumerate() {
            assert!(matches!(m.ended, Some(Ok(()))), "message operation {i}: {:?}", m.ended);
            assert!(m.taken || !m.sends, "message {i} was not received");
        }
    }
}
