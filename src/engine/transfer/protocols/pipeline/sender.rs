//! The sender's end of the pipeline.

use std::collections::VecDeque;

use super::MOST;
use crate::api::Protocol;
use crate::engine::channel::ChanId;
use crate::engine::transfer::outbound::{RState, Response};
use crate::engine::{Buffer, Engine, Fx, WR_PART, WR_RESPONSE, Window, Work};
use crate::fabric::keys::{Keys, Place, pieces};
use crate::fabric::{Access, Mem};
use crate::protocol::message::{MSG_FRAG_HEAD, Message};
use crate::status::{Code, Reason, Status};

/// What the receiver asked for: bytes from `at` on.
struct Ask {
    at: u64,
    len: u64,
    /// Where they are to be written; `None`: in messages.
    dst: Option<Place>,
}

/// A fragment that is being written.
struct Part {
    serial: u16,
    /// WRITEs that have not ended.
    left: u32,
    window: Option<Window>,
    /// A copy of it, where its memory could not be registered.
    copy: Option<Buffer>,
}

/// What of a message has gone, and what is asked for.
#[derive(Default)]
pub(in crate::engine) struct Outflow {
    /// Where the next fragment is.
    next: u64,
    /// Bytes that may still be asked for, and those that have not gone.
    unasked: u64,
    left: u64,
    asks: VecDeque<Ask>,
    parts: Vec<Part>,
    serial: u16,
    /// A copy that is being made: of what the first of `asks` wants.
    copy: Option<Buffer>,
    /// It waits behind answers that the peer does not take.
    deferred: bool,
    failed: Option<Status>,
}

impl Outflow {
    /// Nothing touches the source now.
    pub fn is_quiet(&self) -> bool {
        self.parts.is_empty() && self.copy.is_none()
    }

    /// It is to end: nothing more is begun.
    pub fn give_up(&mut self, status: Status) {
        self.failed.get_or_insert(status);
        self.asks.clear();
    }

    /// Its end came: why, if something had failed before; a copy that is being made goes on.
    pub fn end_parts(&mut self, fx: &mut impl Fx, ch: ChanId) -> Option<Status> {
        for part in self.parts.drain(..) {
            part.window.into_iter().for_each(|window| fx.close(ch, window));
            part.copy.into_iter().for_each(|copy| fx.free(copy));
        }
        self.asks.clear();
        self.failed.take()
    }

    /// A copy of a part of the source is being made.
    pub fn is_copying(&self) -> bool {
        self.copy.is_some()
    }

    /// The windows of what it has open.
    pub fn take_windows(&mut self) -> impl Iterator<Item = Window> {
        self.parts.iter_mut().filter_map(|part| part.window.take())
    }
}

impl Engine {
    /// MSG_ACK arrived: the receiver takes an offered message by the pipeline, and these bytes of it in messages.
    pub(in crate::engine) fn on_msg_ack(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        (response, request): (u32, u32),
        at: u64,
        len: u64,
    ) {
        if !self.is_in_pipeline(ch, response, request) {
            let offered = |r: &Response| r.source.as_ref().and_then(|s| s.first);
            let found = self.responses.get(response).filter(|r| r.asked.to.ch == ch);
            let told = found.filter(|r| r.is_offered());
            if told.is_some_and(|r| offered(r).is_none()) {
                let text = "MSG_ACK for a message that was not offered with a pipeline";
                return self.violation(ch, Status::invalid(text));
            }
            if !self.takes_up(fx, ch, response, request) {
                return;
            }
            let Some(source) = self.responses.get_mut(response).and_then(|r| r.source.as_mut())
            else {
                return;
            };
            let first = source.first.unwrap_or(0);
            let left = source.tensor.meta.nbytes - first;
            source.protocol = Protocol::Pipeline;
            let flow = Outflow { next: first, unasked: left, left, ..Outflow::default() };
            source.flow = Some(Box::new(flow));
            if let Some(r) = self.responses.get_mut(response) {
                r.state = RState::Piping;
            }
        }
        if len > 0 {
            self.asked_for(fx, ch, response, Ask { at, len, dst: None });
        }
    }

    /// MSG_GRANT of a pipeline arrived: the next bytes have a place.
    pub(in crate::engine) fn on_fragment_grant(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        (response, request): (u32, u32),
        (dst, len): (Place, u64),
    ) {
        if !self.is_in_pipeline(ch, response, request) {
            return self.stale += 1; // It has ended here; the receiver heard of that.
        }
        let source = self.responses.get_mut(response).and_then(|r| r.source.as_mut());
        let Some(flow) = source.and_then(|s| s.flow.as_mut()) else { return };
        let at = flow.next;
        flow.next = flow.next.saturating_add(len);
        self.asked_for(fx, ch, response, Ask { at, len, dst: Some(dst) });
    }

    fn is_in_pipeline(&self, ch: ChanId, response: u32, request: u32) -> bool {
        let of = self.responses.get(response);
        of.is_some_and(|r| {
            let to = r.asked.to;
            to.ch == ch && to.request == request && matches!(r.state, RState::Piping)
        })
    }

    /// Takes what the receiver asks for in, if there is so much.
    fn asked_for(&mut self, fx: &mut impl Fx, ch: ChanId, index: u32, ask: Ask) {
        let Some(r) = self.responses.get_mut(index) else { return };
        let Some(source) = r.source.as_mut() else { return };
        let nbytes = source.tensor.meta.nbytes;
        let Some(flow) = source.flow.as_mut() else { return };
        let inside = ask.at.checked_add(ask.len).is_some_and(|end| end <= nbytes);
        let count = flow.asks.len() + flow.parts.len();
        if ask.len == 0 || ask.len > flow.unasked || !inside || count >= MOST {
            let text = text!(
                "{} bytes at {} of a message of {nbytes} asked for, of which {} are left, {count} at a time",
                ask.len,
                ask.at,
                flow.unasked
            );
            return self.violation(ch, Status::invalid(text));
        }
        if r.cancelled || flow.failed.is_some() {
            return; // Its end is on its way.
        }
        flow.unasked -= ask.len;
        flow.asks.push_back(ask);
        self.go_on(fx, index);
    }

    /// Begins with what is asked for, in order.
    pub(in crate::engine) fn go_on(&mut self, fx: &mut impl Fx, index: u32) {
        loop {
            let Some(r) = self.responses.get_mut(index) else { return };
            let (ch, cancelled) = (r.asked.to.ch, r.cancelled);
            let Some(flow) = r.source.as_mut().and_then(|s| s.flow.as_mut()) else { return };
            if cancelled {
                flow.asks.clear();
            }
            if flow.copy.is_some() || flow.deferred && !flow.asks.is_empty() {
                return;
            }
            let Some(ask) = flow.asks.front() else { return self.may_be_through(fx, index) };
            let (at, len, by_message) = (ask.at, ask.len, ask.dst.is_none());
            let Some(c) = self.channels.get_mut(ch) else { return };
            if by_message {
                if c.is_congested() {
                    flow.deferred = crate::room::grow(&mut c.deferred, 1, "answers").is_ok();
                    match flow.deferred {
                        true => c.deferred.push_back(index),
                        false => flow.give_up(crate::room::none(8, "answers")),
                    }
                    continue;
                }
                let sizes = self.settings.sizes[c.caps.provider as usize];
                let depth = u64::from(sizes.send_pipeline_depth);
                let one = c.room().saturating_sub(MSG_FRAG_HEAD).max(1) as u64;
                return self.copy_part(fx, index, at, len.min(depth * one));
            }
            if c.caps.windows {
                self.write_part(fx, index, None, None);
                continue;
            }
            let from = r.source.as_ref().map_or(0, |s| s.tensor.addr) + at;
            match fx.pin(ch, from, len, Access::empty()) {
                Ok(window) => self.write_part(fx, index, Some(window), None),
                Err(_) => return self.copy_part(fx, index, at, len),
            }
        }
    }

    /// Copies a part of the source to memory of the library.
    fn copy_part(&mut self, fx: &mut impl Fx, index: u32, at: u64, len: u64) {
        let Some(source) = self.responses.get_mut(index).and_then(|r| r.source.as_mut()) else {
            return;
        };
        let src = source.tensor.addr + at;
        let Some(flow) = source.flow.as_mut() else { return };
        match fx.alloc(len) {
            Ok(buffer) => {
                let (dst, token) = (buffer.addr, WR_RESPONSE | u64::from(index));
                flow.copy = Some(buffer);
                fx.run(Work::HostCopy { token, dst, src, len });
            }
            Err(status) => {
                flow.give_up(status);
                self.may_be_through(fx, index);
            }
        }
    }

    /// Such a copy has ended, or was not made.
    pub(in crate::engine) fn part_copied(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        result: Result<(), Status>,
    ) {
        let Some(r) = self.responses.get_mut(index) else { return };
        let (ch, request, cancelled) = (r.asked.to.ch, r.asked.to.request, r.cancelled);
        r.copying = false;
        let ended = r.ended.take();
        let Some(flow) = r.source.as_mut().and_then(|s| s.flow.as_mut()) else { return };
        let Some(copy) = flow.copy.take() else { return };
        if let Err(status) = ended.map_or(result, Err) {
            flow.give_up(status);
        }
        if cancelled || flow.failed.is_some() {
            fx.free(copy);
            flow.asks.clear();
        } else if flow.asks.front().is_some_and(|ask| ask.dst.is_some()) {
            match fx.pin(ch, copy.addr, copy.len, Access::empty()) {
                Ok(window) => self.write_part(fx, index, Some(window), Some(copy)),
                Err(status) => {
                    fx.free(copy);
                    flow.give_up(status);
                }
            }
        } else if let Some(ask) = flow.asks.front_mut() {
            let (at, len) = (ask.at, copy.len.min(ask.len));
            (ask.at, ask.len, flow.left) = (at + len, ask.len - len, flow.left - len);
            if ask.len == 0 {
                flow.asks.pop_front();
            }
            // SAFETY: it is ours, filled, and freed below.
            let content = unsafe { fx.bytes(&copy) };
            if let Some(c) = self.channels.get_mut(ch) {
                let one = c.room().saturating_sub(MSG_FRAG_HEAD).max(1);
                for (i, content) in content[..len as usize].chunks(one).enumerate() {
                    let at = at + (i * one) as u64;
                    c.send(fx, &Message::MsgFrag { request, at, content }, content);
                }
            }
            fx.free(copy);
        }
        self.go_on(fx, index);
        self.settle(fx, ch);
    }

    /// Writes what the first that is asked for wants, out of the source or a copy of it.
    fn write_part(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        window: Option<Window>,
        copy: Option<Buffer>,
    ) {
        let Some(r) = self.responses.get_mut(index) else { return };
        let request = r.asked.to.request;
        let Some(c) = self.channels.get_mut(r.asked.to.ch) else { return };
        let Some(source) = r.source.as_mut() else { return };
        let Some(flow) = source.flow.as_mut() else { return };
        let Some(Ask { at, len, dst: Some(dst) }) = flow.asks.pop_front() else { return };
        let from = copy.as_ref().map_or(source.tensor.addr + at, |copy| copy.addr);
        let lkeys = window.as_ref().map_or(Keys::one(0), |w| w.keys.map(|mr| mr.lkey));
        let parts = pieces(len, c.caps.max_rdma, &lkeys, &dst);
        flow.serial = flow.serial.wrapping_add(1);
        flow.left -= len;
        let (left, serial) = (parts.clone().count() as u32, flow.serial);
        flow.parts.push(Part { serial, left, window, copy });
        let wr = WR_RESPONSE | u64::from(serial) << WR_PART | u64::from(index);
        for p in parts {
            let last = p.at + p.len == len;
            // SAFETY: the source is valid until the sender's callback, and a copy until its part has ended; both come after
            // the last `Done`, or after the channel has ended.
            let local = unsafe { Mem::new(from + p.at, p.len, p.lkey) };
            c.write(fx, wr, local, p.remote, last.then_some(request));
        }
    }

    /// A WRITE of a fragment has ended. False: it was none of a pipeline.
    pub(in crate::engine) fn on_part_done(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        index: u32,
        wr: u64,
        result: &Result<(), Status>,
    ) -> bool {
        let Some(r) = self.responses.get_mut(index) else { return false };
        let Some(flow) = r.source.as_mut().and_then(|s| s.flow.as_mut()) else { return false };
        if let Err(status) = result {
            flow.give_up(status.clone());
        }
        let serial = (wr >> WR_PART) as u16;
        let Some(at) = flow.parts.iter().position(|part| part.serial == serial) else {
            return true;
        };
        flow.parts[at].left -= 1;
        if flow.parts[at].left == 0 {
            let part = flow.parts.remove(at);
            part.window.into_iter().for_each(|window| fx.close(ch, window));
            part.copy.into_iter().for_each(|copy| fx.free(copy));
            self.may_be_through(fx, index);
        }
        true
    }

    /// Ends the send if nothing of it is under way, and all has gone, or it is to end.
    pub(in crate::engine) fn may_be_through(&mut self, fx: &mut impl Fx, index: u32) {
        let Some(r) = self.responses.get_mut(index) else { return };
        let (ch, request, cancelled) = (r.asked.to.ch, r.asked.to.request, r.cancelled);
        let Some(flow) = r.source.as_mut().and_then(|s| s.flow.as_mut()) else { return };
        if !flow.is_quiet() {
            return;
        }
        let (left, failed) = (flow.left, flow.failed.take());
        if cancelled {
            self.send(fx, ch, &Message::CancelAck { index: request }, &[]);
            let status = Status::new(Code::Cancelled, "the receiver no longer wants the message");
            return self.end_response(fx, index, Err(status.because(Reason::RemoteError)));
        }
        match failed {
            Some(status) => self.undeliverable(fx, index, status),
            None if left == 0 => self.end_response(fx, index, Ok(())),
            None => {}
        }
    }

    /// Goes on behind the answers that have gone.
    pub(in crate::engine) fn go_on_deferred(&mut self, fx: &mut impl Fx, index: u32) {
        let source = self.responses.get_mut(index).and_then(|r| r.source.as_mut());
        if let Some(flow) = source.and_then(|s| s.flow.as_mut()) {
            flow.deferred = false;
            self.go_on(fx, index);
        }
    }
}
