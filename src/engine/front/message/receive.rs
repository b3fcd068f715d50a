//! The receiving side: a receive meets a message that is here, or waits for one.
//!
//! By what it meets it goes on with a step of ob1's: content that is here is copied to its place (B of an immediate Eager Send, C of an
//! allocated one); of an offer C of the protocol that this end chooses, which is in `engine/transfer/protocols/`.

use super::unexpected::{Arrived, Bytes, Content};
use super::{
    Beside, Envelope, Memory, MessageEnd, OnMessage, Op, Party, Receiving, Sources, State, Wanted,
    public,
};
use crate::api::*;
use crate::engine::channel::ChanId;
use crate::engine::front::rendezvous::Named;
use crate::engine::layout::LAYOUT;
use crate::engine::list::Links;
use crate::engine::slab::Vacancy;
use crate::engine::transfer::choose::{OfferFacts, Taken, select_offered};
use crate::engine::transfer::inbound::{Request, State as Inbound};
use crate::engine::transfer::outbound::Sent;
use crate::engine::{Due, Engine, Fx};
use crate::protocol::message::{Message, OfferCost};
use crate::status::{Code, Reason, Status};

/// What a probe found.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    /// Who sent it.
    pub sender: Party,
    /// Its incarnation, in a word.
    pub incarnation: u64,
    /// Communicator and tag.
    pub envelope: Envelope,
    /// Bytes.
    pub len: u64,
    /// Its number, if it was claimed; 0 otherwise.
    pub message: u64,
    /// What came beside the content.
    pub extra: Option<Box<Beside>>,
}

/// A message is longer than the memory for it.
pub(super) fn too_long(len: u64, room: u64) -> Status {
    let text = text!("the message has {len} bytes, the destination given has {room}");
    Status::new(Code::OutOfRange, text).because(Reason::LocalError)
}

impl Engine {
    /// Whether a receive from this sender may begin into this memory.
    pub(super) fn may_receive(&self, from: Party, memory: &Memory) -> Result<(), Status> {
        if self.closing {
            return Err(Self::ending());
        }
        self.copier(memory.device)?;
        match from.index() {
            Some(_) => self.known_party(from).map(drop),
            None => Ok(()),
        }
    }

    /// Begins to receive a message into memory of the application.
    pub fn message_recv(
        &mut self,
        fx: &mut impl Fx,
        wanted: Wanted,
        memory: Memory,
        timeout: Option<u64>,
        done: OnMessage,
    ) -> Result<Receiving, Status> {
        self.may_receive(wanted.from, &memory)?;
        if let Some(found) = self.messages.unexpected.find(&wanted) {
            return self.receive_found(fx, found, wanted, memory, timeout, done);
        }
        if let Some(peer) = wanted.from.index() {
            self.peers.keep(peer);
        }
        self.post_receive(fx, &wanted, &memory, timeout, done).map(Receiving::Begun)
    }

    /// The same from some peers, of which the first that has sent such a message is received.
    pub fn message_recv_from(
        &mut self,
        fx: &mut impl Fx,
        sources: Sources,
        Envelope { comm, tag }: Envelope,
        memory: Memory,
        timeout: Option<u64>,
        done: OnMessage,
    ) -> Result<Receiving, Status> {
        if self.closing {
            return Err(Self::ending());
        }
        self.copier(memory.device)?;
        for party in sources.parties().iter().filter(|party| party.index().is_some()) {
            self.known_party(*party)?;
        }
        let wanted = Wanted { from: Party::SOME, comm, tag, mask: u64::MAX };
        if let Some(found) = self.messages.unexpected.find_from(&wanted, &sources) {
            return self.receive_found(fx, found, wanted, memory, timeout, done);
        }
        for peer in sources.parties().iter().filter_map(|party| party.index()) {
            self.peers.keep(peer);
        }
        let id = self.next_id;
        let index = self.insert_op(fx, State::Posted, &wanted, &memory, timeout, done)?;
        let messages = &mut *self.messages;
        if let Err(status) = messages.posted.add_from(&mut messages.ops, index, &wanted, sources) {
            self.drop_op(index);
            return Err(status);
        }
        Ok(Receiving::Begun(public(id, index)))
    }

    /// Begins a receive into memory of the host that nothing meets that is here; its number. `None`: nothing was done, and
    /// [`message_recv`](Self::message_recv) has to see to it.
    #[inline]
    pub fn message_post(
        &mut self,
        fx: &mut impl Fx,
        wanted: &Wanted,
        memory: &Memory,
        timeout: Option<u64>,
        done: OnMessage,
    ) -> Option<u64> {
        let known = match wanted.from.index() {
            Some(peer) => self.peers.get(peer).is_some_and(|p| !p.guest),
            None => true,
        };
        if !known || self.closing || memory.device != 0 {
            return None;
        }
        match self.messages.unexpected.find(wanted) {
            Some(_) => None,
            None => self.post_receive(fx, wanted, memory, timeout, done).ok(),
        }
    }

    /// A receive that waits; its number.
    #[inline]
    pub(super) fn post_receive(
        &mut self,
        fx: &mut impl Fx,
        wanted: &Wanted,
        memory: &Memory,
        timeout: Option<u64>,
        done: OnMessage,
    ) -> Result<u64, Status> {
        let id = self.next_id;
        let index = self.insert_op(fx, State::Posted, wanted, memory, timeout, done)?;
        if let Err(status) = self.messages.posted.add(&mut self.messages.ops, index, wanted) {
            self.drop_op(index);
            return Err(status);
        }
        Ok(public(id, index))
    }

    /// Receives a message that was claimed.
    pub fn message_recv_claimed(
        &mut self,
        fx: &mut impl Fx,
        message: u64,
        memory: Memory,
        timeout: Option<u64>,
        done: OnMessage,
    ) -> Result<Receiving, Status> {
        if self.closing {
            return Err(Self::ending());
        }
        self.copier(memory.device)?;
        let unexpected = &self.messages.unexpected;
        let found = unexpected.claimed(message).and_then(|i| Some((i, unexpected.get(i)?)));
        let Some((found, arrived)) = found else {
            let text = text!("message {message} is not known, or was received");
            return Err(Status::new(Code::NotFound, text));
        };
        let (from, Envelope { comm, tag }) = (arrived.sender, arrived.envelope);
        let wanted = Wanted { from, comm, tag, mask: u64::MAX };
        self.receive_found(fx, found, wanted, memory, timeout, done)
    }

    /// The first message that such a receive would meet. `claim`: no other receive meets it from now on.
    pub fn message_probe(&mut self, wanted: &Wanted, claim: bool) -> Result<Option<Found>, Status> {
        if wanted.from.index().is_some() {
            self.known_party(wanted.from)?;
        }
        let Some(index) = self.messages.unexpected.find(wanted) else { return Ok(None) };
        let message = if claim { public(self.next_id, index) } else { 0 };
        self.next_id += u64::from(claim);
        if claim {
            self.messages.unexpected.claim(index, message);
        }
        let found = self.messages.unexpected.get(index).map(|a| {
            let Arrived { sender, incarnation, envelope, len, .. } = *a;
            let extra = a.extra.as_ref().map_or(Ok(None), |beside| Beside::of(&beside.extra()));
            extra.map(|extra| Found { sender, incarnation, envelope, len, message, extra })
        });
        found.transpose()
    }

    /// A receive meets a message that is here.
    pub(super) fn receive_found(
        &mut self,
        fx: &mut impl Fx,
        found: u32,
        wanted: Wanted,
        memory: Memory,
        timeout: Option<u64>,
        done: OnMessage,
    ) -> Result<Receiving, Status> {
        let here = |a: &Arrived| matches!(a.content, Content::Here { .. }) && a.len <= memory.len;
        let simple = memory.device == 0 || self.is_simple(&memory);
        let at_once = simple && self.messages.unexpected.get(found).is_some_and(here);
        if at_once {
            let Some(arrived) = self.messages.unexpected.remove(found) else {
                return Err(self.defect("a message that was found is not there"));
            };
            let (party, incarnation) = (arrived.sender, arrived.incarnation);
            let (envelope, len) = (arrived.envelope, arrived.len);
            let (bytes, extra) = self.take_content(fx, arrived);
            self.count_received(party, len, &Ok(()));
            let (result, short) = (Ok(()), Default::default());
            let end = MessageEnd { result, party, incarnation, envelope, len, extra, short };
            return Ok(Receiving::Done(bytes, end));
        }
        let id = self.next_id;
        let index = self.insert_op(fx, State::Queued, &wanted, &memory, timeout, done)?;
        if let Some(arrived) = self.messages.unexpected.remove(found) {
            self.meet(fx, index, arrived);
        }
        Ok(Receiving::Begun(public(id, index)))
    }

    /// Counts a message that was received; a failure is counted with the receive's end.
    pub(super) fn count_received(&self, party: Party, len: u64, result: &Result<(), Status>) {
        if result.is_err() {
            return;
        }
        let p = party.index().and_then(|p| self.peers.get(p));
        let ch = p.and_then(|p| p.channels.first().copied());
        self.count(party.index(), ch, |c| c.recv_done(len, 0, Code::Ok, Protocol::Eager));
    }

    /// What a message that was here carries; its sender hears that it was taken.
    pub(super) fn take_content(
        &mut self,
        fx: &mut impl Fx,
        arrived: Arrived,
    ) -> (Bytes, Option<Box<Beside>>) {
        let cost = arrived.cost();
        let Content::Here { bytes, sync } = arrived.content else { return Default::default() };
        if let Some(ch) = arrived.ch {
            if let (Some(number), Some(c)) = (sync, self.channels.get_mut(ch)) {
                c.send_matched(fx, number);
            }
            self.message_taken(fx, ch, cost);
            self.settle(fx, ch);
        }
        (bytes, arrived.extra)
    }

    /// A message is not here any more: there is room for others of its sender.
    pub(super) fn message_taken(&mut self, fx: &mut impl Fx, ch: ChanId, len: u64) {
        if let Some(limit) = self.channels.get_mut(ch).and_then(|c| c.flow.take(len)) {
            self.send(fx, ch, &Message::MsgWindow { limit }, &[]);
        }
    }

    /// The same of an offer.
    pub(super) fn offer_taken(&mut self, ch: ChanId, cost: OfferCost) {
        if let Some(c) = self.channels.get_mut(ch) {
            c.flow.offer_taken(cost);
        }
    }

    /// A receive, which waits in no queue any more, meets a message: the receiver's last word on the way that its content comes (C).
    pub(super) fn meet(&mut self, fx: &mut impl Fx, index: u32, mut arrived: Arrived) {
        let Some(op) = self.messages.ops.get_mut(index) else { return };
        let len = arrived.len;
        op.meets((arrived.sender, arrived.incarnation), arrived.envelope, len);
        let cost = arrived.offer_cost();
        if !matches!(arrived.content, Content::Here { .. }) {
            op.extra = arrived.extra.take();
            if let Err(status) = self.fits_memory(index, len) {
                self.refuse_long(fx, arrived, cost);
                return self.end_message(fx, index, Err(status));
            }
        }
        match arrived.content {
            Content::Here { .. } => {
                let (bytes, extra) = self.take_content(fx, arrived);
                if extra.is_some() {
                    self.set_extra(index, extra);
                }
                self.put_content(fx, index, &bytes);
            }
            Content::There { response, source, limit } => {
                let Some(ch) = arrived.ch else {
                    let status = Status::gone("the connection of the sender ended");
                    return self.end_message(fx, index, Err(status));
                };
                self.offer_taken(ch, cost);
                if let Some(content) = self.take_whole(index, len) {
                    self.send(fx, ch, &Message::GetDone { response, ok: true }, &[]);
                    self.put_content(fx, index, &content);
                } else if let Some(request) = self.insert_moving(fx, index, Some(ch), len) {
                    let device = self.requests.get(request).map_or(0, |r| r.device);
                    let extra = self.messages.ops.get_mut(index).and_then(|op| op.extra.as_mut());
                    let first = extra.and_then(|extra| extra.first.take());
                    self.drop_empty_extra(index);
                    match select_offered(OfferFacts {
                        pipeline: first.is_some(),
                        bounded: limit > 0,
                        host: device == 0,
                        pieces: device == LAYOUT,
                        sealed: self.sealed(ch),
                    }) {
                        // C of RDMA Pipeline.
                        Taken::Pipeline => {
                            let first = first.unwrap_or_default();
                            self.begin_pipeline(fx, request, response, &first);
                        }
                        // C of Send/Receive Pipeline.
                        Taken::Legs => {
                            self.begin_legs(fx, request, (response, source), limit.into());
                        }
                        // C of Direct Get, or Direct Put.
                        Taken::Whole => self.after_meta(fx, request, response, source),
                    }
                } else {
                    self.send(fx, ch, &Message::GetDone { response, ok: false }, &[]);
                }
                self.settle(fx, ch);
            }
            Content::Own { op: send } if len == 0 => {
                self.end_message(fx, send, Ok(()));
                self.end_message(fx, index, Ok(()));
            }
            Content::Own { op: send } => self.meet_own(fx, index, send),
            Content::Gone => {
                let text = "the sender took the message back after it was claimed";
                let status = Status::new(Code::Cancelled, text).because(Reason::Cancelled);
                self.end_message(fx, index, Err(status));
            }
        }
    }

    /// Content that came in a message goes to the memory of its receive, whose end follows (B, or C, of Eager Send).
    pub(super) fn put_content(&mut self, fx: &mut impl Fx, index: u32, content: &[u8]) {
        let Some(op) = self.messages.ops.get_mut(index) else { return };
        let (memory, sender) = (op.memory, op.wanted.from);
        let len = content.len() as u64;
        if len > memory.len || memory.device == LAYOUT {
            if let Err(status) = self.fits_memory(index, len) {
                return self.end_message(fx, index, Err(status));
            }
            let result = self.deliver_pieces(fx, memory, content);
            self.count_received(sender, len, &result);
            return self.end_message(fx, index, result);
        }
        if memory.device != 0 && len > 0 {
            if let Some(request) = self.insert_moving(fx, index, None, len) {
                self.deliver(fx, request, content);
            }
            return;
        }
        // SAFETY: the application keeps the receive's memory until it hears of its end, which comes after this.
        let result = if len == 0 { Ok(()) } else { unsafe { fx.deliver(memory.addr, content) } };
        self.count_received(sender, len, &result);
        self.end_message(fx, index, result);
    }

    /// The content that came with the offer that a receive has met, if that is all of it.
    fn take_whole(&mut self, index: u32, len: u64) -> Option<Vec<u8>> {
        let extra = self.messages.ops.get_mut(index).and_then(|op| op.extra.as_mut());
        let whole = extra.and_then(|extra| extra.take_whole(len));
        if whole.is_some() {
            self.drop_empty_extra(index);
        }
        whole.or_else(|| (len == 0).then(Vec::new))
    }

    /// What came beside the content was nothing that the application has to hear of.
    fn drop_empty_extra(&mut self, index: u32) {
        let op = self.messages.ops.get_mut(index);
        if let Some(op) = op.filter(|op| op.extra.as_ref().is_some_and(|e| e.extra().is_empty())) {
            op.extra = None;
        }
    }

    /// What came beside the content that a receive has met.
    #[cold]
    pub(super) fn set_extra(&mut self, index: u32, extra: Option<Box<Beside>>) {
        if let Some(op) = self.messages.ops.get_mut(index) {
            op.extra = extra;
        }
    }

    /// Whether content can be copied to these pieces as it is.
    fn is_simple(&self, memory: &Memory) -> bool {
        self.layout(memory.device, memory.addr).is_some_and(|layout| !layout.is_slots())
    }

    /// The sender of a message that is too long hears that it was taken.
    pub(super) fn refuse_long(&mut self, fx: &mut impl Fx, arrived: Arrived, cost: OfferCost) {
        match (&arrived.content, arrived.ch) {
            (&Content::There { response, .. }, Some(ch)) => {
                self.send(fx, ch, &Message::GetDone { response, ok: true }, &[]);
                self.offer_taken(ch, cost);
                self.settle(fx, ch);
            }
            (&Content::Own { op }, _) => self.end_message(fx, op, Ok(())),
            _ => drop(self.take_content(fx, arrived)),
        }
    }

    /// The transfer that brings the content of a receive.
    fn insert_moving(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        ch: Option<ChanId>,
        nbytes: u64,
    ) -> Option<u32> {
        let op = self.messages.ops.get(index)?;
        let Memory { addr, len, device } = op.memory;
        let started = fx.now();
        // It has no deadline of its own, but one by which it has to be quiet when it was given up.
        let timer = |v: &Vacancy<_>| self.deadlines.has_timer(v.index());
        let Some(vacancy) = self.requests.vacancy().filter(timer) else {
            let text = "too many transfers are under way: no room for a message";
            let status = Status::new(Code::ResourceExhausted, text);
            self.end_message(fx, index, Err(status));
            return None;
        };
        let request = vacancy.fill(Request {
            named: Named::default(),
            peer: op.wanted.from.index(),
            ch,
            in_queue: Links::default(),
            place: None,
            started,
            deadline: u64::MAX,
            target: Target::Given { addr, len },
            device,
            keep: false,
            done: Due::new(OnRecv::Message(index), self.owner.0),
            state: Inbound::Requested,
            meta: Some(Meta { nbytes, ..Meta::default() }),
            // No name, so nothing is remembered by it.
            known: true,
            dst: addr,
            buffer: None,
            landing: None,
            legs: None,
            stripes: None,
            flow: None,
            checksum: None,
            protocol: if ch.is_some() { Protocol::DirectGet } else { Protocol::Eager },
            ended: None,
            copying: false,
        });
        if let Some(op) = self.messages.ops.get_mut(index) {
            op.state = State::Moving { request };
        }
        Some(request)
    }

    /// A receive meets a message of our own, whose content lies in the memory of its send.
    fn meet_own(&mut self, fx: &mut impl Fx, index: u32, send: u32) {
        let done = self.due(OnSend::Message(send));
        let waits = |op: &&mut Op| matches!(op.state, State::Own { .. } | State::Met);
        let Some(op) = self.messages.ops.get_mut(send).filter(waits) else {
            done.refuse();
            let status = Status::new(Code::Cancelled, "the message was taken back");
            return self.end_message(fx, index, Err(status.because(Reason::Cancelled)));
        };
        let Memory { addr, len, device } = op.memory;
        let meta = Meta { nbytes: len, ..Meta::default() };
        let tensor = Tensor { meta, addr, device };
        let Some(request) = self.insert_moving(fx, index, None, len) else {
            done.refuse();
            return self.end_message(fx, send, Ok(()));
        };
        if let Some(op) = self.messages.ops.get_mut(send) {
            op.state = State::Met;
        }
        if let Some(r) = self.requests.get_mut(request) {
            (r.state, r.protocol) = (Inbound::LocalWait, Protocol::Local);
        }
        let (content, deadline) = (Default::default(), u64::MAX);
        self.deliver_local(fx, request, Sent { tensor, content, done: Some(done), deadline });
    }
}
