//! What peers send of messages.

use super::unexpected::{Arrived, Bytes, Content};
use super::{Beside, Envelope, MessageEnd, Messages, OnMessage, Op, Party, ShortHeader, State};
use crate::api::Protocol;
use crate::engine::channel::{ChanId, Channel};
use crate::engine::transfer::outbound::Response;
use crate::engine::{Engine, Fx, Work};
use crate::fabric::keys::Place;
use crate::protocol::message::{self, Extra, IMM_SLOT, MSG_HEAD, Message, MsgOffer, UsualMsg};
use crate::status::{Code, Status};

/// What became of a message that arrived.
pub(in crate::engine) enum Heard {
    /// A receive has met it, and ended.
    Ended,
    /// This receive has met it, and waits no more.
    Met(u32),
    /// No receive waits for it.
    Nobody,
    /// The peer must not send it.
    Refused(Status),
}

impl Messages {
    /// A message whose sender does not wait for the match arrived (B of Eager Send): as a rule a receive into memory of the host waits, which
    /// somebody will ask for, and that has ended then.
    #[inline(always)]
    pub(in crate::engine) fn hear(
        &mut self,
        fx: &mut impl Fx,
        c: &mut Channel,
        m: UsualMsg<'_>,
    ) -> Heard {
        if m.active {
            return self.hear_active(fx, c, m.envelope, m.user, m.content);
        }
        self.hear_plain(fx, c, m, None)
    }

    /// The same of one that is for no handler. Its content lies at this address, with this length, if it was left where it came.
    #[inline(always)]
    fn hear_plain(
        &mut self,
        fx: &mut impl Fx,
        c: &mut Channel,
        m: UsualMsg<'_>,
        left: Option<(u64, usize)>,
    ) -> Heard {
        let sender = Party::peer(c.peer);
        let len = left.map_or(m.content.len(), |(_, len)| len) as u64;
        let cost = m.user.len() as u64 + len;
        if let Err(status) = c.flow.receive(cost) {
            return Heard::Refused(status);
        }
        c.used = c.last_rx;
        let Some(index) = self.posted.take(&mut self.ops, sender, m.envelope) else {
            return Heard::Nobody;
        };
        let Some(op) = self.ops.get_mut(index) else { return Heard::Ended };
        op.meets((sender, c.incarnation), m.envelope, len);
        // Who asks may do so later: it is kept for that.
        let short = match op.done {
            OnMessage::Plain(..) => ShortHeader::of(m.user),
            OnMessage::Asked => None,
        };
        let keep = short.is_none() && !m.user.is_empty();
        if !op.takes_on_host(len) || keep && !op.keep_header(m.user) {
            return Heard::Met(index);
        }
        // SAFETY: the application keeps the receive's memory until it hears of its end, which comes after this.
        let put = unsafe {
            match left {
                Some((at, len)) => fx.deliver_left(op.memory.addr, at, len),
                None if len > 0 => fx.deliver(op.memory.addr, m.content),
                None => Ok(()),
            }
        };
        if put.is_err() {
            return Heard::Met(index);
        }
        c.counters.recv_done(len, 0, Code::Ok, Protocol::Eager);
        // What `end_message` would do for it.
        let memory = op.host_memory();
        match op.done {
            OnMessage::Asked => {
                op.state = State::Ending;
                fx.ended(index, memory);
            }
            OnMessage::Plain(told, words) => {
                let end = MessageEnd { short: short.unwrap_or_default(), ..op.take_end() };
                self.ops.vacate(index);
                fx.run(Work::MessageDone { end, done: (told, words), memory });
            }
        }
        if let Some(limit) = c.flow.take(cost) {
            c.send(fx, &Message::MsgWindow { limit }, &[]);
        }
        Heard::Ended
    }

    /// The same of a message of `len` bytes with nothing beside its content that was left where it came, and lies there.
    #[inline]
    pub(in crate::engine) fn hear_left(
        &mut self,
        fx: &mut impl Fx,
        c: &mut Channel,
        envelope: Envelope,
        (at, len): (u64, usize),
    ) -> Heard {
        let m = UsualMsg { envelope, active: false, user: &[], content: &[] };
        self.hear_plain(fx, c, m, Some((at + MSG_HEAD as u64, len - MSG_HEAD)))
    }
}

impl Op {
    /// The header that came. False: there is no memory for it.
    #[inline(never)]
    fn keep_header(&mut self, user: &[u8]) -> bool {
        let kept = Beside::of_user(user);
        kept.map(|beside| self.extra = beside).is_ok()
    }
}

impl Engine {
    /// A message with its content arrived (B of Eager Send).
    pub(in crate::engine) fn on_msg(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        envelope: Envelope,
        sync: Option<u32>,
        extra: &Extra<'_>,
        content: &[u8],
    ) {
        let Some(c) = self.channels.get_mut(ch) else { return };
        let sender = (Party::peer(c.peer), c.incarnation);
        c.used = c.last_rx;
        let result = c.flow.receive(content.len() as u64 + extra.cost());
        let result =
            result.and_then(|()| self.arrive(fx, sender, Some(ch), envelope, sync, extra, content));
        self.has_arrived(fx, ch, result);
    }

    /// A message of a peer is here, or was refused.
    fn has_arrived<T>(&mut self, fx: &mut impl Fx, ch: ChanId, result: Result<T, Status>) {
        if let Err(status) = result {
            return self.violation(ch, status);
        }
        if self.messages.unexpected.bytes() > self.settings.unmet {
            self.bound_unmet(fx);
        }
    }

    /// A message whose sender does not wait for the match, and that did not simply end its receive, where it lies.
    #[inline(never)]
    pub(in crate::engine) fn on_heard(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        bytes: &[u8],
        heard: Heard,
    ) {
        let Some((m, _)) = message::usual_msg(bytes) else { return };
        match heard {
            Heard::Ended => {}
            Heard::Met(index) => {
                self.message_taken(fx, ch, m.cost());
                self.put_with(fx, index, &Extra::user(m.user), m.content);
            }
            Heard::Nobody => self.keep_msg(fx, ch, m),
            Heard::Refused(status) => self.violation(ch, status),
        }
    }

    /// A message that no receive waits for.
    fn keep_msg(&mut self, fx: &mut impl Fx, ch: ChanId, m: UsualMsg<'_>) {
        let Some(c) = self.channels.get(ch) else { return };
        let sender = (Party::peer(c.peer), c.incarnation);
        let extra = Extra { active: m.active, ..Extra::user(m.user) };
        let result = self.arrive(fx, sender, Some(ch), m.envelope, None, &extra, m.content);
        self.has_arrived(fx, ch, result);
    }

    /// What a receive has met goes to its place, and what came beside it.
    fn put_with(&mut self, fx: &mut impl Fx, index: u32, extra: &Extra<'_>, content: &[u8]) {
        match Beside::of(extra) {
            Ok(None) => {}
            Ok(beside) => self.set_extra(index, beside),
            Err(status) => return self.end_message(fx, index, Err(status)),
        }
        self.put_content(fx, index, content);
    }

    /// A message with its content is here: it meets its receive, or waits for it.
    #[allow(clippy::too_many_arguments, reason = "what a message is")]
    pub(super) fn arrive(
        &mut self,
        fx: &mut impl Fx,
        (sender, incarnation): (Party, u64),
        ch: Option<ChanId>,
        envelope: Envelope,
        sync: Option<u32>,
        extra: &Extra<'_>,
        content: &[u8],
    ) -> Result<(), Status> {
        if extra.active {
            let sender = (sender, incarnation);
            return self.arrive_active(fx, (sender, ch), envelope, sync, extra, content);
        }
        let len = content.len() as u64;
        let messages = &mut self.messages;
        if let Some(index) = messages.posted.take(&mut messages.ops, sender, envelope) {
            if let Some(op) = messages.ops.get_mut(index) {
                op.meets((sender, incarnation), envelope, len);
            }
            if let Some(ch) = ch {
                if let (Some(number), Some(c)) = (sync, self.channels.get_mut(ch)) {
                    c.send_matched(fx, number);
                }
                self.message_taken(fx, ch, len + extra.cost());
            }
            self.put_with(fx, index, extra, content);
            return Ok(());
        }
        let mut bytes = Bytes::new();
        if bytes.try_reserve_exact(content.len()).is_err() {
            return Err(crate::room::none(content.len(), "a message that waits"));
        }
        bytes.extend_from_slice(content);
        let content = Content::Here { bytes, sync };
        let arrived =
            Arrived::new((sender, incarnation), ch, envelope, len, content).with(extra)?;
        messages.unexpected.add(arrived)?;
        self.has_come(fx);
        Ok(())
    }

    /// A send of our own that is not copied is here; where it waits, if it does.
    pub(super) fn arrive_own(
        &mut self,
        fx: &mut impl Fx,
        op: u32,
        envelope: Envelope,
        len: u64,
        extra: &Extra<'_>,
    ) -> Result<Option<u32>, Status> {
        let sender = (Party::OWN, self.messages.own);
        let arrived = Arrived::new(sender, None, envelope, len, Content::Own { op });
        self.arrive_offer(fx, arrived.with(extra)?)
    }

    fn arrive_offer(&mut self, fx: &mut impl Fx, arrived: Arrived) -> Result<Option<u32>, Status> {
        if arrived.is_active() {
            return self.offer_active(fx, arrived).map(Some);
        }
        let messages = &mut self.messages;
        match messages.posted.take(&mut messages.ops, arrived.sender, arrived.envelope) {
            Some(index) => {
                self.meet(fx, index, arrived);
                Ok(None)
            }
            None => {
                let index = messages.unexpected.add(arrived)?;
                self.has_come(fx);
                Ok(Some(index))
            }
        }
    }

    /// Where more of them wait for receives than is allowed for all, the guest ends that has most of them here: there may be any
    /// number of guests. What the application has named is as many as it wants.
    fn bound_unmet(&mut self, fx: &mut impl Fx) {
        let most = self.settings.unmet;
        while self.messages.unexpected.bytes() > most {
            let guest = |c: &Channel| self.peers.get(c.peer).is_some_and(|p| p.guest);
            let guests = self.channels.iter().filter(|(_, c)| guest(c));
            let held = guests.map(|(ch, c)| (c.flow.waits(), ch)).max();
            let Some((bytes, ch)) = held.filter(|&(bytes, _)| bytes > 0) else { return };
            let text = text!(
                "{bytes} bytes of messages and offers of this peer wait for receives, more than of any other whom the \
                 application has not named; all together may have {most}"
            );
            let status = Status::new(Code::ResourceExhausted, text);
            self.say_goodbye(fx, ch, &status);
            self.channel_down(fx, ch, status);
        }
    }

    /// A message waits: whoever probes for one looks.
    fn has_come(&mut self, fx: &mut impl Fx) {
        self.happened += 1;
        if self.messages.probing > 0 && fx.fits(1) {
            fx.run(Work::Call(Box::new(|| {})));
        }
    }

    /// Somebody waits for messages to come, or does so no more.
    pub fn message_probing(&mut self, begins: bool) {
        let probing = &mut self.messages.probing;
        *probing = if begins { *probing + 1 } else { probing.saturating_sub(1) };
    }

    /// A message whose content waits at the sender arrived.
    pub(in crate::engine) fn on_msg_offer(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        m: MsgOffer<'_>,
    ) {
        let Some(c) = self.channels.get_mut(ch) else { return };
        let sender = (Party::peer(c.peer), c.incarnation);
        c.used = c.last_rx;
        let sealed = c.seal.is_some();
        // A READ would have no checksum.
        let source = m.source.filter(|_| !sealed);
        let content = Content::There { response: m.response, source, limit: m.limit };
        let arrived = Arrived::new(sender, Some(ch), m.envelope, m.nbytes, content).with(&m.extra);
        let result = c.flow.receive_offer(m.extra.offer_cost()).and(arrived);
        let result = result.and_then(|arrived| self.arrive_offer(fx, arrived));
        self.has_arrived(fx, ch, result);
    }

    /// The receiver of an offered message has opened its destination.
    pub(in crate::engine) fn on_msg_grant(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        response: u32,
        request: u32,
        (dst, len): (Place, u64),
    ) {
        let Some(c) = self.channels.get(ch) else { return };
        let same = c.responses.get(request) == Some(response);
        if same && self.asks_for_more(ch, response, request)
            || self.takes_up(fx, ch, response, request)
        {
            self.granted(fx, ch, response, (dst, len));
        }
    }

    /// The receiver takes an offered message, by this request of its own. False: it cannot, and hears of it.
    pub(in crate::engine) fn takes_up(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        response: u32,
        request: u32,
    ) -> bool {
        let Some(c) = self.channels.get_mut(ch) else { return false };
        if request >= IMM_SLOT || c.responses.get(request).is_some() {
            let text = text!("MSG_GRANT for the request {request:#x}, which is asked for already");
            self.violation(ch, Status::invalid(text));
            return false;
        }
        let told = |r: &&mut Response| r.asked.to.ch == ch && r.is_offered();
        let Some(r) = self.responses.get_mut(response).filter(told) else {
            // It has ended here, and its offer was on its way or waited: the receiver must not wait for the content.
            self.stale += 1;
            let status = Status::new(Code::Cancelled, "the sender took the message back");
            self.send_error(fx, ch, request, &status);
            return false;
        };
        let unasked = std::mem::replace(&mut r.asked.to.request, request);
        c.responses.remove(unasked);
        c.responses.insert(request, response);
        true
    }

    /// The peer raised the limit for messages to it.
    pub(in crate::engine) fn on_msg_window(&mut self, ch: ChanId, limit: u64) {
        // What waits goes, and who waits is told, when the channel is settled.
        if let Some(Err(status)) = self.channels.get_mut(ch).map(|c| c.flow.widen(limit)) {
            self.violation(ch, status);
        }
    }

    /// The peer takes a message back that no receive may have met.
    pub(in crate::engine) fn on_msg_withdraw(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        number: u32,
        withdraw_sync: bool,
    ) {
        let key = (ch, number, withdraw_sync);
        let Some(index) = self.messages.unexpected.withdrawable(key) else { return };
        match self.messages.unexpected.take_back(index) {
            Some((Content::Here { .. }, len, cost)) => self.message_taken(fx, ch, len + cost.sum()),
            Some((.., cost)) => self.offer_taken(ch, cost),
            None => {}
        }
        self.send(fx, ch, &Message::MsgWithdrawn { number, sync: withdraw_sync }, &[]);
    }

    /// A channel has ended: what of messages was on it.
    pub(in crate::engine) fn messages_lost_channel(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        status: &Status,
    ) {
        let dropped = self.messages.unexpected.lose_channel(ch);
        if dropped > 0 {
            crate::log::warn(format_args!(
                "{dropped} messages were dropped that no receive had met: their connection ended, and more than {} \
                 bytes of such messages wait",
                super::unexpected::ORPHANS
            ));
        }
        let mut at = 0;
        let on = |op: &super::Op| matches!(op.state, State::Unmatched { ch: on } if on == ch);
        while let Some(index) = self.messages.ops.next(&mut at, on) {
            self.end_message(fx, index, Err(status.clone()));
        }
    }
}
