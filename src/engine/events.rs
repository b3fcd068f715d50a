//! What arrives on a channel: messages, immediates, the ends of operations; and what a channel needs after each.

use super::channel::{ChanId, Channel};
use super::front::message::Heard;
use super::{
    Engine, Fx, OWED_BYTES_ALL, WR_IMM, WR_KIND, WR_REQUEST, WR_RESPONSE, WR_SLOT, WR_STRIPE_IN,
    WR_STRIPE_OUT, seal,
};
use crate::fabric::Left;
use crate::protocol::message::{
    self, IMM_ACK, IMM_BUFFER, IMM_BUFFER_LAST, IMM_MESSAGE, IMM_SLOT, IMM_SLOT_LAST, Message,
};
use crate::status::{Code, Status};

/// What has become of a message of which no more than the head was looked at: see [`Engine::on_left`].
pub struct Unheard(Heard);

impl Engine {
    /// A message arrived on a channel.
    pub fn on_message(&mut self, fx: &mut impl Fx, ch: ChanId, bytes: &[u8]) {
        let Some(c) = self.channels.get_mut(ch) else { return };
        // Nearly all are of these kinds. They are read where they lie: what a message of any kind is taken apart into
        // is long, and would be moved from hand to hand.
        if c.seal.is_some() || c.rail.is_some() {
            self.on_any_message(fx, ch, bytes);
        } else if let Some((m, credits)) = message::usual_msg(bytes) {
            c.on_received(fx.lately(), credits);
            match self.messages.hear(fx, c, m) {
                Heard::Ended if c.is_settled() => return,
                Heard::Ended => {}
                // Read once more there: to be handed over it would have to lie in memory, where it is slow to be read back from.
                other => self.on_heard(fx, ch, bytes, other),
            }
        } else if let Some((index, content, credits)) = message::usual_content(bytes) {
            c.on_received(fx.lately(), credits);
            self.on_same_content(fx, ch, index, content);
        } else if let Some((r, credits)) = message::usual_request(bytes) {
            c.on_received(fx.lately(), credits);
            self.on_usual_request(fx, ch, r);
        } else {
            self.on_less_usual(fx, ch, bytes);
        }
        self.settle(fx, ch);
    }

    /// The same of a long message that an adapter has left where it came, and that mostly need not be looked at beyond its head: its
    /// content goes from there to its place. False: nothing was done, and [`on_message`](Self::on_message) has to be called with all
    /// of it. `Err`: it did not simply end a receive, and [`on_unheard`](Self::on_unheard) has to be called with all of it.
    #[inline(never)]
    pub fn on_left(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        left: Left<'_>,
    ) -> Result<bool, Unheard> {
        let Some(c) = self.channels.get_mut(ch) else { return Ok(true) };
        if c.seal.is_some() || c.rail.is_some() {
            return Ok(false);
        }
        let place = (left.at, left.len);
        let heard = if let Some((envelope, credits)) = message::plain_msg(left.head) {
            c.on_received(fx.lately(), credits);
            Some(self.messages.hear_left(fx, c, envelope, place))
        } else if let Some(m) = message::active_msg(left.head) {
            match self.messages.hear_active_left(fx, c, m, place) {
                None => return Ok(false),
                heard => heard,
            }
        } else {
            None
        };
        match heard {
            Some(Heard::Ended) if c.is_settled() => return Ok(true),
            Some(Heard::Ended) => {
                self.settle(fx, ch);
                return Ok(true);
            }
            Some(other) => return Err(Unheard(other)),
            None => {}
        }
        if let Some((index, _, credits)) = message::usual_content(left.head)
            && self.takes_left(ch, index, left.len)
        {
            if let Some(c) = self.channels.get_mut(ch) {
                c.on_received(fx.lately(), credits);
            }
            self.on_content_left(fx, index, place);
        } else {
            return Ok(false);
        }
        self.settle(fx, ch);
        Ok(true)
    }

    /// What [`on_left`](Self::on_left) has left to be done, with all of the message.
    #[inline(never)]
    pub fn on_unheard(&mut self, fx: &mut impl Fx, ch: ChanId, bytes: &[u8], unheard: Unheard) {
        self.on_heard(fx, ch, bytes, unheard.0);
        self.settle(fx, ch);
    }

    /// The same of what comes less often: some of it is read where it lies as well.
    #[inline(never)]
    fn on_less_usual(&mut self, fx: &mut impl Fx, ch: ChanId, bytes: &[u8]) {
        let Some(c) = self.channels.get_mut(ch) else { return };
        if let Some((number, credits)) = message::matched(bytes) {
            c.on_received(fx.lately(), credits);
            self.on_msg_matched(fx, ch, number);
        } else if let Some((m, credits)) = message::whole_msg(bytes) {
            c.on_received(fx.lately(), credits);
            self.on_msg(fx, ch, m.envelope, m.sync, &m.extra, m.content);
        } else if let Some((content, credits)) = message::whole_content(bytes) {
            c.on_received(fx.lately(), credits);
            self.on_content(fx, ch, content);
        } else if let Some((request, credits)) = message::whole_request(bytes) {
            c.on_received(fx.lately(), credits);
            self.on_request(fx, ch, request);
        } else {
            self.on_any_message(fx, ch, bytes);
        }
    }

    #[inline(never)]
    fn on_any_message(&mut self, fx: &mut impl Fx, ch: ChanId, bytes: &[u8]) {
        let Some(channel) = self.channels.get_mut(ch) else { return };
        let now = fx.now();
        let bytes = match channel.seal.as_mut().map_or(Ok(bytes), |s| s.open(bytes)) {
            Ok(bytes) => bytes,
            Err(status) => return self.violation(ch, status),
        };
        match message::decode(bytes) {
            Ok((Message::Fragment { last, bytes }, credits)) => {
                channel.on_received(now, credits);
                match channel.on_fragment(last, bytes) {
                    Ok(None) => {}
                    Ok(Some(whole)) => match message::decode(&whole) {
                        Ok((message, _)) => self.dispatch(fx, ch, message),
                        Err(status) => self.violation(ch, status),
                    },
                    Err(status) => self.violation(ch, status),
                }
            }
            Ok((message, credits)) => {
                channel.on_received(now, credits);
                self.dispatch(fx, ch, message);
            }
            Err(status) => self.violation(ch, status),
        }
    }

    fn dispatch(&mut self, fx: &mut impl Fx, ch: ChanId, message: Message<'_>) {
        if !self.may_come_by(ch, &message) {
            let text = "a message on a connection that carries only READs and WRITEs";
            return self.violation(ch, Status::invalid(text));
        }
        match message {
            Message::Request(r) => self.on_request(fx, ch, r),
            Message::Content(c) => self.on_content(fx, ch, c),
            Message::Meta(m) => self.on_meta(fx, ch, m),
            Message::ReRequest { response, dst, len } => {
                self.on_re_request(fx, ch, response, dst, len)
            }
            Message::Error { index, code, text } => self.on_error(fx, ch, index, code, text),
            Message::ContentDone { index: imm @ IMM_BUFFER..=IMM_BUFFER_LAST, checksum } => {
                self.on_buffer_full(fx, ch, imm, Some(checksum))
            }
            Message::ContentDone { index, checksum } => {
                self.on_written(fx, ch, index, Some(checksum))
            }
            Message::GetDone { response, ok } => self.on_get_done(fx, ch, response, ok),
            Message::TooLong { response } => self.on_too_long(fx, ch, response),
            Message::Cancel { index } => self.on_cancel(fx, ch, index),
            Message::CancelAck { index } => self.on_cancel_ack(fx, ch, index),
            Message::Ping => {
                self.count_sign(ch);
                self.send(fx, ch, &Message::Pong, &[]);
            }
            Message::Pong => self.count_sign(ch),
            Message::Credit { depth } => {
                if let Some(c) = self.channels.get_mut(ch) {
                    c.on_credit(depth);
                }
            }
            Message::Goodbye { code, text } => self.on_goodbye(ch, code, text),
            Message::Msg { envelope, sync, extra, content } => {
                self.on_msg(fx, ch, envelope, sync, &extra, content)
            }
            Message::MsgOffer(m) => self.on_msg_offer(fx, ch, m),
            Message::MsgGrant { response, request, dst, len, pipeline: false } => {
                self.on_msg_grant(fx, ch, response, request, (dst, len))
            }
            Message::MsgGrant { response, request, dst, len, pipeline: true } => {
                self.on_fragment_grant(fx, ch, (response, request), (dst, len))
            }
            Message::MsgAck { response, request, at, len } => {
                self.on_msg_ack(fx, ch, (response, request), at, len)
            }
            Message::MsgFrag { request, at, content } => {
                self.on_msg_frag(fx, ch, request, at, content)
            }
            Message::MsgMatched { number } => self.on_msg_matched(fx, ch, number),
            Message::MsgWindow { limit } => self.on_msg_window(ch, limit),
            Message::MsgCarrier { number } => self.on_msg_carrier(ch, number),
            Message::Lost { names } => self.on_lost(fx, ch, names),
            Message::MsgWithdraw { number, sync } => self.on_msg_withdraw(fx, ch, number, sync),
            Message::MsgWithdrawn { number, sync } => self.on_msg_withdrawn(fx, ch, number, sync),
            Message::Pair(m) => self.on_pair(fx, ch, m),
            Message::Buffer(m) => self.on_buffer(fx, ch, m),
            Message::Rail(m) => self.on_rail(fx, ch, m),
            // A fragment inside a reassembled message.
            Message::Fragment { .. } => self.violation(ch, Status::invalid("nested fragments")),
        }
    }

    fn count_sign(&mut self, ch: ChanId) {
        if let Some(c) = self.channels.get_mut(ch) {
            c.signs += 1;
        }
    }

    /// A write with immediate arrived.
    pub fn on_imm(&mut self, fx: &mut impl Fx, ch: ChanId, imm: u32) {
        let Some(channel) = self.channels.get_mut(ch) else { return };
        channel.on_received(fx.now(), 0);
        if channel.seal.is_some() {
            self.violation(ch, seal::loss(text!("the immediate {imm:#x}")));
            return self.settle(fx, ch);
        }
        match imm {
            IMM_ACK => channel.on_ack(),
            IMM_MESSAGE => {}
            _ if channel.rail.is_some() => {
                let text = text!(
                    "the immediate {imm:#x} on a connection that carries only READs and WRITEs"
                );
                self.violation(ch, Status::invalid(text));
            }
            IMM_SLOT..=IMM_SLOT_LAST => self.on_slot_written(fx, ch, imm),
            IMM_BUFFER..=IMM_BUFFER_LAST => self.on_buffer_full(fx, ch, imm, None),
            index => self.on_written(fx, ch, index, None),
        }
        self.settle(fx, ch);
    }

    /// A write or read that was posted has ended.
    pub fn on_done(&mut self, fx: &mut impl Fx, ch: ChanId, wr: u64, result: Result<(), Status>) {
        let index = wr as u32;
        if let (true, true, Some(c)) =
            (wr & WR_IMM != 0, result.is_err(), self.channels.get_mut(ch))
        {
            c.on_refused();
        }
        match wr & WR_KIND {
            WR_RESPONSE if self.on_part_done(fx, ch, index, wr, &result) => {}
            WR_RESPONSE => self.on_write_done(fx, ch, index, result),
            WR_REQUEST => self.on_read_done(fx, ch, index, result),
            WR_SLOT => self.on_slot_done(fx, index, result),
            WR_STRIPE_IN | WR_STRIPE_OUT => self.on_stripe_done(fx, ch, wr, result),
            _ => {}
        }
        self.settle(fx, ch);
    }

    pub(super) fn violation(&mut self, ch: ChanId, status: Status) {
        if let Some(c) = self.channels.get_mut(ch) {
            c.broken.get_or_insert(status);
        }
    }

    /// Ends the channel if something found it broken; flushes it otherwise.
    #[inline]
    pub(super) fn settle(&mut self, fx: &mut impl Fx, ch: ChanId) {
        // Nothing was found and nothing waits, as a rule.
        if !self.channels.get(ch).is_none_or(Channel::is_settled) {
            self.settle_unsettled(fx, ch);
        }
    }

    #[inline(never)]
    fn settle_unsettled(&mut self, fx: &mut impl Fx, ch: ChanId) {
        let Some(c) = self.channels.get_mut(ch) else { return };
        if c.broken.is_none() {
            c.flush(fx);
            self.send_deferred(fx, ch);
            self.send_messages(fx, ch);
            if self.awaits_room()
                && let Some(peer) = self.channels.get(ch).map(|c| c.peer)
            {
                self.tell_rooms(fx, peer);
            }
        }
        if let Some(status) = self.channels.get_mut(ch).and_then(|c| c.broken.take()) {
            // Its own word, not the connection's or the peer's.
            if status.code != Code::Unavailable {
                self.say_goodbye(fx, ch, &status);
            }
            self.channel_down(fx, ch, status);
        }
        while self.owed.bytes() > OWED_BYTES_ALL && self.end_most_owing(fx) {}
    }
}
