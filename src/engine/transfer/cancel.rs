//! Giving up, for all protocols: at once where nothing can touch the memory any more, otherwise as soon as that is so.
//!
//! A request that exposed its memory on a provider that cannot revoke quiesces: it waits for the sender's CANCEL_ACK, or
//! for its own READs. A response whose writes or copy are out answers a CANCEL when they have ended.

use super::inbound::{AfterAlloc, Request, State};
use super::outbound::{RState, Response};
use crate::engine::channel::ChanId;
use crate::engine::{Engine, Fx};
use crate::protocol::message::Message;
use crate::status::{Code, Reason, Status};

impl Engine {
    /// Ends a request early.
    pub(in crate::engine) fn end(&mut self, fx: &mut impl Fx, index: u32, status: Status) {
        let now = fx.now();
        let grace = self.quiesce_grace();
        let Some(r) = self.requests.get_mut(index) else { return };
        match &mut r.state {
            State::Queued => {
                self.leave_queue(index);
                self.fail(fx, index, status);
            }
            State::LocalWait => {
                self.wait_no_more(index);
                self.fail(fx, index, status);
            }
            State::Allocating(_) | State::Copying | State::LocalCopy(_) => {
                r.ended.get_or_insert(status);
            }
            State::Requested | State::Awaiting => self.end_asked(fx, index, status, now + grace),
            State::Reading { left, response, .. } => {
                let (left, response) = (*left, Some(*response));
                r.state = State::Quiescing { status, left, response };
                self.set_deadline(index, now + grace);
            }
            State::Quiescing { .. } => {}
        }
    }

    /// The same of one that was asked for, or waits to be.
    fn end_asked(&mut self, fx: &mut impl Fx, index: u32, status: Status, latest: u64) {
        let Some(r) = self.requests.get_mut(index) else { return };
        let ch = r.ch;
        if let (Some(place), Some(ch)) = (r.place.take(), ch)
            && self.channels.get_mut(ch).is_some_and(|c| c.withdraw(place, index))
        {
            // The peer has not heard of it, and never will.
            self.fail(fx, index, status);
            return self.settle(fx, ch);
        }
        let windows = ch.and_then(|ch| self.channels.get(ch)).is_some_and(|c| c.caps.windows);
        let exposed = r.landing.as_ref().is_some_and(|l| l.window.is_some())
            || r.flow.as_ref().is_some_and(|flow| flow.is_exposed());
        if exposed && !windows {
            r.state = State::Quiescing { status, left: 0, response: None };
            self.set_deadline(index, latest);
        } else {
            self.fail(fx, index, status);
        }
        if let Some(ch) = ch {
            self.send(fx, ch, &Message::Cancel { index }, &[]);
            self.settle(fx, ch);
        }
    }

    /// CANCEL_ACK arrived: nothing is written any more.
    pub(in crate::engine) fn on_cancel_ack(&mut self, fx: &mut impl Fx, ch: ChanId, index: u32) {
        let Some(r) = self.requests.get(index) else { return };
        if let (State::Quiescing { status, left: 0, .. }, true) = (&r.state, r.ch == Some(ch)) {
            let status = status.clone();
            self.fail(fx, index, status);
        }
    }

    /// ERROR_STATUS arrived.
    pub(in crate::engine) fn on_error(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        index: u32,
        code: i32,
        text: &[u8],
    ) {
        let code = Code::from_i32(code).filter(|&c| c != Code::Ok).unwrap_or(Code::Unknown);
        let status = || Status::new(code, crate::room::heard(text)).because(Reason::RemoteError);
        // What was told of is gone while memory is found for it: nobody would answer what follows.
        let finds = |r: &&mut Request| {
            let told = matches!(r.state, State::Allocating(Some(AfterAlloc::Meta { .. })));
            told && r.ch == Some(ch)
        };
        if let Some(r) = self.requests.get_mut(index).filter(finds) {
            r.ended.get_or_insert_with(status);
        } else if self.answered(ch, index).is_some() {
            self.fail(fx, index, status());
        }
    }

    /// CANCEL arrived.
    pub(in crate::engine) fn on_cancel(&mut self, fx: &mut impl Fx, ch: ChanId, request: u32) {
        let found = self.channels.get(ch).and_then(|c| c.responses.get(request));
        if let Some((index, r)) = found.and_then(|i| Some((i, self.responses.get_mut(i)?))) {
            if matches!(r.state, RState::Writing { .. } | RState::Staging) {
                r.cancelled = true;
                return; // Acknowledged when the writes have ended.
            }
            if matches!(r.state, RState::Piping) {
                r.cancelled = true;
                return self.go_on(fx, index); // The same.
            }
            let status = Status::new(Code::Cancelled, "the receiver cancelled");
            self.end_given_up(fx, index, status.because(Reason::RemoteError));
        }
        self.send(fx, ch, &Message::CancelAck { index: request }, &[]);
    }

    /// Ends a response whose receiver is gone, or wants it no more: who is to hear of it here does.
    fn end_given_up(&mut self, fx: &mut impl Fx, index: u32, status: Status) {
        let Some(r) = self.responses.get(index) else { return };
        match r.state {
            RState::Waiting(_) | RState::Asking => self.forget_unmet(fx, index, &status),
            _ => self.end_response(fx, index, Err(status)),
        }
    }

    /// Closes the window of a source: its channel ends.
    pub(in crate::engine) fn close_source(&mut self, fx: &mut impl Fx, index: u32) {
        let Some(r) = self.responses.get_mut(index) else { return };
        let open = matches!(r.state, RState::Told | RState::Writing { .. });
        if let (true, Some((asked, source))) = (open, r.parts())
            && let Some(window) = source.window.take()
        {
            fx.close(asked.to.ch, window);
        }
        let Some((asked, source)) = self.responses.get_mut(index).and_then(Response::parts) else {
            return;
        };
        if let Some(flow) = &mut source.flow {
            flow.take_windows().for_each(|window| fx.close(asked.to.ch, window));
        }
    }

    /// The channel of a request has ended.
    pub(in crate::engine) fn request_lost_channel(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        status: &Status,
        provider: &'static str,
    ) {
        let from = self.peer_name(self.requests.get(index).and_then(|r| r.peer));
        let Some(r) = self.requests.get_mut(index) else { return };
        r.ch = None;
        match &r.state {
            // A copy from a complete landing needs the channel no more.
            State::Copying if !r.goes_on() => {}
            State::Copying => _ = r.ended.get_or_insert(status.clone()),
            State::Allocating(_) => _ = r.ended.get_or_insert(status.clone()),
            State::Quiescing { status, .. } => {
                let status = status.clone();
                self.fail(fx, index, status);
            }
            _ => {
                let text =
                    text!("{} from peer '{from}' over {provider}: {}", r.named, status.message);
                self.fail(fx, index, status.clone().with_message(text));
            }
        }
    }

    /// The channel of a response has ended.
    pub(in crate::engine) fn response_lost_channel(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        status: &Status,
    ) {
        let Some(r) = self.responses.get(index) else { return };
        if matches!(r.state, RState::Waiting(_) | RState::Asking) {
            return self.end_given_up(fx, index, status.clone());
        }
        let (named, to) = (&r.named, self.peer_name(Some(r.peer)));
        let message = text!("{named} to peer '{to}': {}", status.message);
        let lost = status.clone().with_message(message);
        let Some(r) = self.responses.get_mut(index) else { return };
        let failed = match &mut r.state {
            // The copy writes to our buffer; its end ends the response, with this.
            RState::Staging => {
                r.ended.get_or_insert(lost);
                return;
            }
            RState::Writing { failed, .. } => failed.take(),
            RState::Piping => {
                let to = r.asked.to.ch;
                let flow = r.source.as_mut().and_then(|s| s.flow.as_mut());
                let copying = flow.as_ref().is_some_and(|flow| flow.is_copying());
                let failed = flow.and_then(|flow| flow.end_parts(fx, to));
                if copying {
                    r.ended.get_or_insert(failed.unwrap_or(lost));
                    return;
                }
                failed
            }
            _ => None,
        };
        // What failed before keeps its own cause.
        let status = failed.unwrap_or(lost);
        self.end_response(fx, index, Err(status));
    }

    /// What lies behind this response was told to a receiver that does not want it.
    pub(super) fn drop_response(&mut self, fx: &mut impl Fx, index: u32, response: u32) {
        if let Some(ch) = self.requests.get(index).and_then(|r| r.ch) {
            self.send(fx, ch, &Message::GetDone { response, ok: false }, &[]);
        }
    }
}
