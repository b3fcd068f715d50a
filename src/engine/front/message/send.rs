//! The sending side: a message goes out at once, or waits its turn.
//!
//! Of ob1's Eager Send this is A: immediate (its `btl_sendi`) where the content goes out of the call's copy, and the send has ended with it;
//! allocated (`btl_alloc`) where the content is copied to memory of the library first. Its B there, the end of the provider's own send, has
//! no counterpart: a message that is posted is copied. What does not ride is offered (`offers.rs`).

use super::flow::{COST, WHOLE_OFFER};
use super::matching::op_links;
use super::{
    Beside, Copied, Envelope, Memory, Mode, OnMessage, Op, Party, Sending, State, Wanted, public,
};
use crate::api::*;
use crate::engine::channel::ChanId;
use crate::engine::list::Links;
use crate::engine::transfer::choose::MessageChoice;
use crate::engine::{Engine, Fx, WR_MESSAGE, Work};
use crate::protocol::message::{Extra, UsualMsg};
use crate::room;
use crate::status::{Code, Status};
use crate::trials::Trial;

/// Bytes of content that sends which wait may copy, all together; what is beyond is copied when its turn comes.
const COPIES: usize = 4 << 20;

/// A send, as it is called for.
pub struct Outgoing<'a> {
    /// To whom.
    pub to: Party,
    /// The incarnation of the peer that alone may get it; 0: whichever has the name.
    pub incarnation: u64,
    /// Communicator and tag.
    pub envelope: Envelope,
    /// Where the content lies.
    pub memory: Memory,
    /// A copy of the content, made before the engine was held; empty: none.
    pub content: &'a [u8],
    /// What travels beside it.
    pub extra: &'a Extra<'a>,
    /// When it has ended.
    pub mode: Mode,
    /// Nanoseconds; `None`: the manager's, `u64::MAX`: for ever.
    pub timeout: Option<u64>,
    /// Told of the end, unless that is known at once.
    pub done: OnMessage,
    /// Its time is taken.
    pub trial: Option<Trial>,
}

impl<'a> Outgoing<'a> {
    /// As it mostly is, with a copy of its content.
    #[inline]
    fn usual(&self) -> UsualMsg<'a> {
        let Extra { active, user, .. } = *self.extra;
        UsualMsg { envelope: self.envelope, active, user, content: self.content }
    }
}

/// What became of a message that was to go out.
enum Went {
    /// It did.
    Out,
    /// There is no room for it.
    NoRoom,
    /// Its content has to be copied first.
    NoContent,
}

#[cold]
fn too_many(outstanding: usize) -> Status {
    let text = text!("{outstanding} message operations are outstanding: no room for more");
    Status::new(Code::ResourceExhausted, text)
}

impl Engine {
    /// Begins to send a message.
    pub fn message_send(&mut self, fx: &mut impl Fx, out: Outgoing<'_>) -> Result<Sending, Status> {
        if self.closing {
            return Err(Self::ending());
        }
        self.copier(out.memory.device)?;
        if out.incarnation != 0 {
            self.refuse_other(out.to, out.incarnation)?;
        }
        if out.to == Party::OWN {
            return self.send_own(fx, out);
        }
        let peer = self.known_party(out.to)?;
        self.peers.keep(peer);
        if self.message_send_now(fx, &out) {
            return Ok(Sending::Done);
        }
        self.send_or_queue(fx, peer, &out, Copied::No)
    }

    /// Takes a message in that did not go out at once, with a copy of its content if there is one, and sends it if it may be.
    pub(super) fn send_or_queue(
        &mut self,
        fx: &mut impl Fx,
        peer: u32,
        out: &Outgoing<'_>,
        copied: Copied,
    ) -> Result<Sending, Status> {
        let first = self.peers.get(peer).filter(|p| p.outbox.is_empty());
        let ch = first.and_then(|p| p.channels.first().copied());
        let (content, id) = (out.content, self.next_id);
        let index = match self.insert_send(fx, out) {
            Ok(index) => index,
            Err(status) => {
                self.drop_copy(fx, copied);
                return Err(status);
            }
        };
        if let Some(op) = self.messages.ops.get_mut(index) {
            op.content = copied;
        }
        let went = match ch {
            Some(ch) => self.send_op(fx, ch, index, content, out.trial),
            None => Went::NoRoom,
        };
        if !matches!(went, Went::Out) {
            self.queue_message(fx, index, peer, content);
        }
        if let Some(ch) = ch {
            self.settle(fx, ch);
        }
        Ok(Sending::Begun(public(id, index)))
    }

    /// The peer of this party, if there is one.
    pub(super) fn known_party(&self, party: Party) -> Result<u32, Status> {
        let peer = party.index().filter(|&p| self.peers.get(p).is_some());
        peer.ok_or_else(|| {
            let text = text!("peer {} is not known; rdma_peer_lookup gives them", party.handle());
            Status::new(Code::NotFound, text)
        })
    }

    /// Eager Send, immediate (A): sends a message whose content is here over a connection on which nothing waits, and it has ended then. False:
    /// nothing was done, and [`message_send`](Self::message_send) has to see to it.
    #[inline]
    pub fn message_send_now(&mut self, fx: &mut impl Fx, out: &Outgoing<'_>) -> bool {
        let Memory { len, device, .. } = out.memory;
        let plain = out.mode == Mode::Standard && device == 0 && !self.closing;
        if !plain || out.content.len() as u64 != len || self.is_other(out) {
            return false;
        }
        match out.extra.is_header() {
            true => self.message_send_plain(fx, out.to, out.usual(), out.memory.addr),
            false => self.message_send_whole(fx, out),
        }
    }

    /// The same of a message in standard mode out of memory of the host, at this address, with no more beside it than a header.
    #[inline]
    pub fn message_send_plain(
        &mut self,
        fx: &mut impl Fx,
        to: Party,
        m: UsualMsg<'_>,
        addr: u64,
    ) -> bool {
        let cost = m.cost();
        let peer = to.index().and_then(|p| self.peers.get(p));
        let Some(p) = peer.filter(|p| !p.guest && p.outbox.is_empty()) else { return false };
        let c = p.channels.first().and_then(|&ch| self.channels.get_mut(ch));
        let Some(c) = c.filter(|c| c.takes_messages() && c.flow.fits(cost)) else { return false };
        let rides = cost <= c.rides || self.settings.rides(fx, c, addr, cost);
        if !rides || self.closing || !c.send_msg_now(fx, m) {
            return false;
        }
        c.flow.count_sent(cost);
        c.counters.send_done(m.content.len() as u64, Code::Ok, Protocol::Eager);
        true
    }

    /// Takes an operation in.
    fn insert_send(&mut self, fx: &mut impl Fx, out: &Outgoing<'_>) -> Result<u32, Status> {
        let Envelope { comm, tag } = out.envelope;
        let wanted = Wanted { from: out.to, comm, tag, mask: u64::MAX };
        let extra = Beside::of(out.extra)?;
        let index =
            self.insert_op(fx, State::Queued, &wanted, &out.memory, out.timeout, out.done)?;
        if let Some(op) = self.messages.ops.get_mut(index) {
            (op.mode, op.extra, op.incarnation) = (out.mode, extra, out.incarnation);
        }
        Ok(index)
    }

    /// Takes an operation in: into the slab and the deadlines.
    #[inline(always)]
    pub(super) fn insert_op(
        &mut self,
        fx: &mut impl Fx,
        state: State,
        wanted: &Wanted,
        memory: &Memory,
        timeout: Option<u64>,
        done: OnMessage,
    ) -> Result<u32, Status> {
        self.admit(fx)?;
        let now = fx.now();
        let deadline = now.saturating_add(timeout.unwrap_or(self.settings.timeout));
        let messages = &mut *self.messages;
        let outstanding = messages.ops.len();
        let vacancy = messages.ops.vacancy().ok_or_else(|| too_many(outstanding))?;
        if !messages.deadlines.has_timer(vacancy.index()) {
            return Err(room::none(size_of::<Op>(), "an operation"));
        }
        let id = public(self.next_id, vacancy.index());
        self.next_id += 1;
        let index = vacancy.fill(Op {
            id,
            wanted: *wanted,
            incarnation: 0,
            // Field by field, as it was written just before: read in larger pieces a processor waits for it.
            memory: Memory { addr: memory.addr, len: memory.len, device: memory.device },
            mode: Mode::Standard,
            started: now,
            deadline,
            limit: deadline,
            ended: None,
            done,
            state,
            content: Copied::No,
            met: None,
            extra: None,
            released: false,
            waits: false,
            order: 0,
            links: Links::default(),
        });
        messages.deadlines.set(index, deadline);
        self.next_deadline = self.next_deadline.min(deadline);
        Ok(index)
    }

    /// A message waits, behind those to the same peer.
    fn queue_message(&mut self, fx: &mut impl Fx, index: u32, peer: u32, content: &[u8]) {
        let Some(p) = self.peers.get_mut(peer) else { return };
        p.outbox.push(&mut self.messages.ops, op_links, index);
        if let Some(op) = self.messages.ops.get_mut(index) {
            op.waits = true;
        }
        match p.channels.first() {
            Some(&ch) => {
                if let Some(c) = self.channels.get_mut(ch) {
                    c.flow.queued = true;
                }
            }
            None => self.want_connection(fx, peer),
        }
        if !content.is_empty()
            && self.messages.copied + content.len() <= COPIES
            && let Some(op) = self.messages.ops.get_mut(index)
            && matches!(op.content, Copied::No)
            && let Ok(copy) = crate::room::copy(content, "content")
        {
            self.messages.copied += copy.len();
            op.content = Copied::Early(copy);
        }
    }

    /// A message waits no more, if it did.
    pub(super) fn leave_outbox(&mut self, index: u32) {
        let Some(op) = self.messages.ops.get_mut(index).filter(|op| op.waits) else { return };
        op.waits = false;
        let (links, peer) = (op.links, op.wanted.from.index());
        let Some(p) = peer.and_then(|p| self.peers.get_mut(p)) else { return };
        p.outbox.remove(&mut self.messages.ops, op_links, index, links);
        // The next may need no offer.
        if let Some(c) = p.channels.first().and_then(|&ch| self.channels.get_mut(ch)) {
            c.flow.short = false;
        }
    }

    /// What waits for this peer may go, since what was before it has left.
    pub(super) fn settle_outbox(&mut self, fx: &mut impl Fx, peer: Option<u32>) {
        let p = peer.and_then(|p| self.peers.get(p));
        if let Some(&ch) = p.and_then(|p| p.channels.first()) {
            self.settle(fx, ch);
        }
    }

    /// Sends what waits for this connection, as far as there is room.
    pub(in crate::engine) fn send_messages(&mut self, fx: &mut impl Fx, ch: ChanId) {
        loop {
            let Some(c) = self.channels.get_mut(ch).filter(|c| c.flow.queued) else { return };
            let Some(p) = self.peers.get_mut(c.peer) else { return };
            let here = p.channels.first() == Some(&ch);
            let Some(index) = p.outbox.first().filter(|_| here) else {
                c.flow.queued = false;
                return;
            };
            let Some(op) = self.messages.ops.get_mut(index) else { return };
            if !matches!(op.state, State::Queued) {
                return;
            }
            let (content, len) = (std::mem::take(&mut op.content), op.memory.len as usize);
            let bytes: &[u8] = match &content {
                Copied::No => &[],
                Copied::Early(bytes) => bytes,
                // SAFETY: it is ours, filled, and freed below or with the operation.
                Copied::Late(buffer) | Copied::Staged(buffer) => unsafe { fx.bytes(buffer) },
            };
            // A buffer may be longer than what lies in it.
            let bytes = &bytes[..bytes.len().min(len)];
            // It has waited: its time says nothing.
            let went = self.send_op(fx, ch, index, bytes, None);
            match went {
                Went::Out => {
                    self.leave_outbox(index);
                    self.went_out(fx, index, content);
                }
                Went::NoRoom => {
                    if let Some(op) = self.messages.ops.get_mut(index) {
                        op.content = content;
                    }
                    return;
                }
                Went::NoContent => {
                    self.drop_copy(fx, content);
                    self.gather_message(fx, index);
                }
            }
        }
    }

    /// Gives back the memory of a copy.
    pub(super) fn drop_copy(&mut self, fx: &mut impl Fx, content: Copied) {
        match content {
            Copied::No => {}
            Copied::Early(bytes) => {
                self.messages.copied = self.messages.copied.saturating_sub(bytes.len());
            }
            Copied::Late(buffer) => fx.free(buffer),
            Copied::Staged(buffer) => fx.unstage(buffer),
        }
    }

    /// Eager Send, allocated (A, packing): copies the content of the first message that waits, where nobody is held up by it.
    fn gather_message(&mut self, fx: &mut impl Fx, index: u32) {
        let Some(op) = self.messages.ops.get_mut(index) else { return };
        let (src, len) = (op.memory.addr, op.memory.len);
        match fx.alloc(len) {
            Ok(buffer) => {
                let (dst, token) = (buffer.addr, WR_MESSAGE | u64::from(index));
                op.content = Copied::Late(buffer);
                op.state = State::Gathering { begun: false };
                fx.run(Work::HostCopy { token, dst, src, len });
            }
            Err(status) => self.end_message(fx, index, Err(status)),
        }
    }

    /// The copy was made.
    pub(in crate::engine) fn message_copied(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        result: Result<(), Status>,
    ) {
        let Some(op) = self.messages.ops.get_mut(index) else { return };
        op.state = State::Queued;
        let peer = op.wanted.from.index();
        if let Some(status) = op.ended.take().or(result.err()) {
            self.end_message(fx, index, Err(status));
        }
        self.settle_outbox(fx, peer);
    }

    /// Why a copy for a message must not begin.
    pub(in crate::engine) fn message_copy_begins(&mut self, index: u32) -> Result<(), Status> {
        let Some(op) = self.messages.ops.get_mut(index) else { return Ok(()) };
        match (&op.ended, &mut op.state) {
            (Some(status), _) => return Err(status.clone()),
            (None, State::Gathering { begun }) => *begun = true,
            (None, _) => {}
        }
        Ok(())
    }

    /// Sends a message that has an operation: its content (A of Eager Send), or the offer of it (A of the others).
    fn send_op(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        index: u32,
        content: &[u8],
        trial: Option<Trial>,
    ) -> Went {
        let Some(op) = self.messages.ops.get(index) else { return Went::Out };
        let (memory, envelope, mode) = (op.memory, op.envelope(), op.mode);
        let here = content.len() as u64 == memory.len;
        let extra = op.extra.as_ref().map_or(0, |beside| beside.extra().cost());
        let choice = self.choose_message(fx, ch, &memory, extra, content);
        let rides = choice == MessageChoice::Eager;
        let Some(c) = self.channels.get_mut(ch) else { return Went::NoRoom };
        if !c.takes_messages() {
            c.flow.queued = true;
            return Went::NoRoom;
        }
        if rides && !here && memory.len + extra + COST <= c.flow.room() {
            return Went::NoContent;
        }
        if rides
            && !c.flow.fits(memory.len + extra)
            && let Some(until) = c.flow.hold(fx.now())
        {
            self.offer_later(until);
            return Went::NoRoom;
        }
        if !rides || !c.flow.send(memory.len + extra) {
            // Offered for lack of room alone.
            let whole =
                rides && here && c.seal.is_none() && (1..=WHOLE_OFFER).contains(&memory.len);
            let piped = choice == MessageChoice::OfferPipeline;
            let first = match whole {
                true => Some(content),
                false => piped.then(|| self.first_segment(ch, content)),
            };
            if !self.may_offer(ch, index, extra, (first, piped)) {
                return Went::NoRoom;
            }
            self.offer_message(fx, ch, index, (memory, envelope), choice, trial);
            return Went::Out;
        }
        let beside = self.messages.ops.get(index).and_then(|op| op.extra.as_ref());
        let extra = beside.map_or_else(Extra::default, |beside| beside.extra());
        let sync = (mode == Mode::Synchronous).then_some(index);
        c.send_msg(fx, envelope, sync, &extra, content);
        if sync.is_none() {
            c.counters.send_done(memory.len, Code::Ok, Protocol::Eager);
        }
        match self.messages.ops.get_mut(index) {
            Some(op) if mode == Mode::Synchronous => op.state = State::Unmatched { ch },
            _ => self.end_message(fx, index, Ok(())),
        }
        Went::Out
    }

    /// What waits to be sent to a peer fails.
    pub(in crate::engine) fn fail_outbox(&mut self, fx: &mut impl Fx, peer: u32, status: &Status) {
        if self.awaits_room() {
            self.fail_rooms(fx, Some(peer), status);
        }
        let Some(p) = self.peers.get(peer) else { return };
        let to = p.name.clone();
        while let Some(index) = self.peers.get(peer).and_then(|p| p.outbox.first()) {
            self.leave_outbox(index);
            let Some(op) = self.messages.ops.get_mut(index) else { return };
            let text = text!("a message to peer '{to}': {}", status.message);
            let status = status.clone().with_message(text);
            if matches!(op.state, State::Gathering { .. }) {
                op.ended.get_or_insert(status);
            } else {
                self.end_message(fx, index, Err(status));
            }
        }
    }

    /// A message to oneself: short ones are copied, the others stay where they are until a receive meets them.
    fn send_own(&mut self, fx: &mut impl Fx, out: Outgoing<'_>) -> Result<Sending, Status> {
        let len = out.memory.len;
        if out.mode == Mode::Standard && out.content.len() as u64 == len {
            let own = (Party::OWN, self.messages.own);
            self.arrive(fx, own, None, out.envelope, None, out.extra, out.content)?;
            self.local.send_done(len, Code::Ok, Protocol::Local);
            return Ok(Sending::Done);
        }
        let id = self.next_id;
        let index = self.insert_send(fx, &out)?;
        if let Some(op) = self.messages.ops.get_mut(index) {
            op.state = State::Met;
        }
        match self.arrive_own(fx, index, out.envelope, len, out.extra) {
            Ok(arrived) => {
                if let (Some(arrived), Some(op)) = (arrived, self.messages.ops.get_mut(index)) {
                    op.state = State::Own { arrived };
                }
                Ok(Sending::Begun(public(id, index)))
            }
            Err(status) => {
                self.drop_op(index);
                Err(status)
            }
        }
    }
}
