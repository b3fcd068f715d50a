//! The sending side of what does not go out whole: offers, and messages that are taken back.
//!
//! An offer is A of ob1's rendezvous protocols, and its receiver chooses among them: without anything (RNDV) of Direct Put and of
//! Send/Receive Pipeline, with the source's address (RGET) of Direct Get, with a first segment (RNDV) of RDMA Pipeline. What follows is
//! in `engine/transfer/protocols/`.

use super::{Envelope, Memory, Op, State};
use crate::api::*;
use crate::engine::channel::ChanId;
use crate::engine::front::rendezvous::Named;
use crate::engine::layout::LAYOUT;
use crate::engine::slab::SLOT_MASK;
use crate::engine::transfer::choose::{MessageChoice, MessageFacts, select_message};
use crate::engine::transfer::outbound::{Asked, RState, Response, Sent, Source, To, UNASKED};
use crate::engine::{Engine, Fx};
use crate::fabric::Access;
use crate::fabric::keys::Place;
use crate::protocol::message::{Extra, Fits, Message, MsgOffer, OfferCost};
use crate::status::{Code, Reason, Status};
use crate::trials::Trial;

impl Engine {
    /// MSG_OFFER (A): the content is the transfer layer's from here on. Nothing of it is copied before the receiver asks, so
    /// the offer keeps its place among the messages. Chosen to be read, the source is opened; not so what is offered
    /// only for lack of room: there may be very many of those.
    pub(super) fn offer_message(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        index: u32,
        (memory, envelope): (Memory, Envelope),
        choice: MessageChoice,
        trial: Option<Trial>,
    ) {
        let sealed = self.sealed(ch);
        let cost = self.messages.ops.get(index).map_or_else(OfferCost::default, Op::offer_cost);
        let extra = self.messages.ops.get(index).and_then(|op| op.extra.as_ref());
        let first = extra.and_then(|extra| Some(extra.first.as_ref()?.len() as u64));
        let done = self.due(OnSend::Message(index));
        let meta = Meta { nbytes: memory.len, ..Meta::default() };
        let tensor = Tensor { meta, addr: memory.addr, device: memory.device };
        let sent =
            Sent { tensor, content: Default::default(), done: Some(done), deadline: u64::MAX };
        let request = UNASKED | index & SLOT_MASK;
        let to = To { ch, request, checksum: sealed, told: false };
        let asked = Asked::new(to, None, false, Fits::Any, None);
        let whole = first == Some(memory.len);
        let protocol = if whole { Protocol::Eager } else { Protocol::DirectPut };
        // Whoever has all of it has nothing to ask for by a pipeline.
        let first = first.filter(|_| !whole);
        let source = Source { protocol, first, trial, ..Source::new(sent, fx.now()) };
        let response = match self.insert_offer(ch, asked, source) {
            Ok(response) => response,
            Err(status) => {
                if let Some(c) = self.channels.get_mut(ch) {
                    c.flow.offer_ended(cost);
                }
                return self.end_message(fx, index, Err(status));
            }
        };
        if let Some(op) = self.messages.ops.get_mut(index) {
            op.state = State::Offered { ch, response };
        }
        let read = choice == MessageChoice::OfferGet && first.is_none();
        let source = if read { self.readable(fx, ch, response) } else { None };
        let beside = self.messages.ops.get(index).and_then(|op| op.extra.as_ref());
        let extra = beside.map_or_else(Extra::default, |beside| beside.extra());
        let gathered = memory.device == LAYOUT && !whole;
        let limit = if gathered { self.sizes(ch).max_send_size } else { 0 };
        let m = MsgOffer { envelope, response, nbytes: memory.len, source, limit, extra };
        if let Some(c) = self.channels.get_mut(ch) {
            c.send(fx, &Message::MsgOffer(m), &[]);
        }
    }

    /// How a message goes; `content`: what of it is here, with so many bytes beside it.
    pub(super) fn choose_message(
        &self,
        fx: &impl Fx,
        ch: ChanId,
        memory: &Memory,
        beside: u64,
        content: &[u8],
    ) -> MessageChoice {
        let Some(c) = self.channels.get(ch) else { return MessageChoice::OfferPut };
        let &Memory { addr, len, device } = memory;
        let copied = content.len() as u64 == len && device == LAYOUT;
        let facts = MessageFacts {
            nbytes: len,
            beside,
            room: self.settings.room_of_message(c, len + beside),
            readable: device == 0 || len == 0 || copied,
            host: device == 0,
            sealed: c.seal.is_some(),
            can_read: c.caps.read,
            pipeline_from: self.sizes(ch).min_rdma_pipeline_size,
            first_segment: self.first_segment(ch, content).len() as u64,
            forced: self.settings.protocol,
        };
        select_message(facts, || c.caps.windows || fx.registered(ch, addr, len))
    }

    /// RDMA Pipeline (A): what of a message's content goes with its offer, if the rest is to come by it: the sender's candidate.
    pub(super) fn first_segment<'a>(&self, ch: ChanId, content: &'a [u8]) -> &'a [u8] {
        let eager = self.channels.get(ch).map_or(0, |c| self.settings.room_of(c, 0).eager);
        let most = eager.min(self.sizes(ch).rndv_eager_limit.into());
        &content[..content.len().min(most as usize)]
    }

    /// Counts an offer, with its first bytes if there is room for them: the first segment of a pipeline, or all. False: there is none for an
    /// offer.
    pub(super) fn may_offer(
        &mut self,
        ch: ChanId,
        index: u32,
        beside: u64,
        (first, piped): (Option<&[u8]>, bool),
    ) -> bool {
        let Some(c) = self.channels.get_mut(ch) else { return false };
        let copy = first.and_then(|first| crate::room::copy(first, "content").ok());
        let mut may = |first: usize| c.flow.offer(OfferCost { beside, first: first as u64 });
        let kept = match copy.filter(|copy| may(copy.len())) {
            Some(copy) => Some(copy),
            None if !may(0) => return false,
            None => piped.then(Vec::new),
        };
        if let (Some(op), true) = (self.messages.ops.get_mut(index), kept.is_some()) {
            op.extra.get_or_insert_default().first = kept;
        }
        true
    }

    /// The response that an offered message is, until it is asked for.
    fn insert_offer(
        &mut self,
        ch: ChanId,
        asked: Asked,
        mut source: Source,
    ) -> Result<u32, Status> {
        let request = asked.to.request;
        let mut done = source.done.take();
        let room = match self.channels.get_mut(ch) {
            Some(c) => crate::room::grow(&mut c.responses, 1, "messages").map(|()| c.peer),
            None => Err(Status::gone("the connection of the receiver ended")),
        };
        let response = room.and_then(|peer| {
            let mut response = Response::new(peer, Named::default(), asked, RState::Told, 0);
            response.source = Some(source);
            let full = |_| {
                let text = "too many transfers are under way: no room for a message";
                Status::new(Code::ResourceExhausted, text)
            };
            Ok((peer, self.responses.insert(response).map_err(full)?))
        });
        match response {
            Ok((peer, index)) => {
                if let Some(c) = self.channels.get_mut(ch) {
                    c.responses.insert(request, index);
                }
                if let Some(p) = self.peers.get_mut(peer) {
                    p.offered += 1;
                }
                let source = self.responses.get_mut(index).and_then(|r| r.source.as_mut());
                if let Some(source) = source {
                    source.done = done.take();
                }
                Ok(index)
            }
            Err(status) => {
                if let Some(done) = done {
                    done.refuse();
                }
                Err(status)
            }
        }
    }

    /// Direct Get (A): opens an offered source, where the receiver may read it as it is; where.
    fn readable(&mut self, fx: &mut impl Fx, ch: ChanId, response: u32) -> Option<Place> {
        // Otherwise it is opened, or copied to where it may be, when the receiver asks.
        let Ok(true) = self.open_source(fx, response, Access::REMOTE_READ) else { return None };
        let source = self.responses.get_mut(response).and_then(|r| r.source.as_mut())?;
        source.protocol = Protocol::DirectGet;
        let keys = &source.window.as_ref()?.keys;
        Some(self.channels.get(ch)?.place(fx, source.addr(), keys))
    }

    /// The application takes a send back: at once, or, if the peer knows of it, as soon as that agrees.
    pub(super) fn withdraw_send(&mut self, fx: &mut impl Fx, index: u32, status: Status) {
        let grace = fx.now() + self.quiesce_grace();
        let Some(op) = self.messages.ops.get_mut(index) else { return };
        let (ch, number, sync) = match op.state {
            State::Gathering { .. } => {
                op.ended.get_or_insert(status);
                return;
            }
            State::Unmatched { ch } => (ch, index, true),
            State::Offered { response, .. } => match self.responses.get(response) {
                Some(r) if r.is_offered() => (r.asked.to.ch, response, false),
                // The content is on its way: its end is near, unless the peer has stalled.
                _ => {
                    op.ended.get_or_insert(status);
                    return self.set_message_deadline(index, grace);
                }
            },
            State::Queued => {
                let peer = op.wanted.from.index();
                self.end_message(fx, index, Err(status));
                return self.settle_outbox(fx, peer);
            }
            State::Own { arrived } => {
                if self.messages.unexpected.remove_own(arrived, index) {
                    self.end_message(fx, index, Err(status));
                }
                return;
            }
            _ => return,
        };
        op.ended.get_or_insert(status);
        self.set_message_deadline(index, grace);
        self.send(fx, ch, &Message::MsgWithdraw { number, sync }, &[]);
        self.settle(fx, ch);
    }

    /// An offer ends here, whatever the peer says of it: what it answers is stale, but a MSG_GRANT, which is answered.
    pub(in crate::engine) fn take_offer_back(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        response: u32,
    ) {
        self.send(fx, ch, &Message::MsgWithdraw { number: response, sync: false }, &[]);
    }

    /// The peer has given back what was withdrawn.
    pub(in crate::engine) fn on_msg_withdrawn(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        number: u32,
        sync: bool,
    ) {
        if !sync {
            let of = |r: &&Response| r.asked.to.ch == ch;
            let text = "the sender took the message back";
            let status = Status::new(Code::Cancelled, text).because(Reason::Cancelled);
            match self.responses.get(number).filter(of).is_some_and(Response::is_offered) {
                true => self.end_response(fx, number, Err(status)),
                false => self.stale += 1,
            }
            return;
        }
        let Some(op) = self.messages.ops.get_mut(number) else { return self.stale += 1 };
        match (&op.state, op.ended.take()) {
            (State::Unmatched { ch: on }, Some(status)) if *on == ch => {
                self.end_message(fx, number, Err(status));
            }
            (_, ended) => {
                op.ended = ended;
                self.stale += 1;
            }
        }
    }

    /// A synchronous message has met its receive.
    pub(in crate::engine) fn on_msg_matched(&mut self, fx: &mut impl Fx, ch: ChanId, number: u32) {
        let op = self.messages.ops.get(number);
        match op.map(|op| &op.state) {
            Some(State::Unmatched { ch: on }) if *on == ch => {
                self.end_message(fx, number, Ok(()));
            }
            _ => self.stale += 1,
        }
    }
}
