//! The receiver's end of the pipeline.

use std::collections::VecDeque;

use super::OPEN;
use crate::api::Protocol;
use crate::engine::channel::ChanId;
use crate::engine::transfer::inbound::State;
use crate::engine::{Engine, Fx, Window};
use crate::fabric::Access;
use crate::fabric::keys::Place;
use crate::protocol::message::Message;
use crate::status::Status;

/// What of a message has come, and what was asked for.
#[derive(Default)]
pub(in crate::engine) struct Inflow {
    /// The sender's index.
    response: u32,
    /// Where the next fragment begins, and where the last ends.
    next: u64,
    end: u64,
    /// Fragments that are being written, in order; each has a window as long as it is open.
    open: VecDeque<Option<Window>>,
    /// What comes in messages, in order: from where to where.
    sent: VecDeque<(u64, u64)>,
}

impl Inflow {
    fn is_done(&self) -> bool {
        self.next == self.end && self.open.is_empty() && self.sent.is_empty()
    }

    /// The sender may still write.
    pub fn is_exposed(&self) -> bool {
        self.open.iter().any(Option::is_some)
    }
}

impl Engine {
    /// A receive has met a message that is offered with a pipeline, and takes it so.
    pub(in crate::engine) fn begin_pipeline(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        response: u32,
        first: &[u8],
    ) {
        let ch = self.requests.get(index).and_then(|r| r.ch);
        let last = ch.map_or(0, |ch| self.sizes(ch).rdma_pipeline_send_length);
        let Some(r) = self.requests.get_mut(index) else { return };
        let (begun, all) = (first.len() as u64, r.meta.as_ref().map_or(0, |m| m.nbytes));
        let end = all.saturating_sub(last).max(begun);
        let mut flow = Inflow { response, next: begun, end, ..Inflow::default() };
        flow.sent.extend((end < all).then_some((end, all)));
        r.flow = Some(Box::new(flow));
        (r.state, r.protocol) = (State::Awaiting, Protocol::Pipeline);
        if !first.is_empty() {
            // SAFETY: the application keeps its memory, which has room for all, until it hears of the end.
            let result = unsafe { fx.deliver_part(r.dst, first) };
            if let Err(status) = result {
                self.drop_response(fx, index, response);
                return self.fail(fx, index, status);
            }
        }
        self.ask_by_message(fx, index, end, all - end);
        self.open_more(fx, index);
    }

    /// MSG_ACK: these bytes are to come in messages; none: the pipeline begins.
    fn ask_by_message(&mut self, fx: &mut impl Fx, index: u32, at: u64, len: u64) {
        let Some(r) = self.requests.get(index) else { return };
        let (Some(flow), Some(ch)) = (&r.flow, r.ch) else { return };
        let m = Message::MsgAck { response: flow.response, request: index, at, len };
        self.send(fx, ch, &m, &[]);
    }

    /// Opens fragments, as many as may be open, and tells the sender of each.
    fn open_more(&mut self, fx: &mut impl Fx, index: u32) {
        let ch = self.requests.get(index).and_then(|r| r.ch);
        let Some(most) = ch.map(|ch| self.sizes(ch).rdma_pipeline_frag_size) else { return };
        loop {
            let Some(r) = self.requests.get_mut(index) else { return };
            let (Some(flow), Some(ch)) = (&mut r.flow, r.ch) else { return };
            if flow.next == flow.end || flow.open.len() >= OPEN {
                return;
            }
            let (at, len) = (flow.next, most.min(flow.end - flow.next));
            match fx.pin(ch, r.dst + at, len, Access::REMOTE_WRITE) {
                Ok(window) => {
                    let rkeys = window.keys.map(|mr| mr.rkey);
                    let dst = Place { addr: r.dst + at, rkeys };
                    flow.next += len;
                    flow.open.push_back(Some(window));
                    let (response, request, pipeline) = (flow.response, index, true);
                    let m = Message::MsgGrant { response, request, dst, len, pipeline };
                    self.send(fx, ch, &m, &[]);
                }
                Err(_) => {
                    // All that is left comes in messages, which needs no registration.
                    let end = flow.end;
                    flow.sent.push_back((at, end));
                    flow.next = end;
                    return self.ask_by_message(fx, index, at, end - at);
                }
            }
        }
    }

    /// The oldest fragment was written: the immediate arrived. False: no pipeline brings this request's content.
    pub(in crate::engine) fn fragment_written(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        index: u32,
    ) -> bool {
        let flow = self.requests.get_mut(index).and_then(|r| r.flow.as_mut());
        let Some(flow) = flow else { return false };
        match flow.open.pop_front() {
            Some(window) => {
                window.into_iter().for_each(|window| fx.close(ch, window));
                self.open_more(fx, index);
                self.may_have_all(fx, index);
            }
            None => self.violation(ch, Status::invalid("a fragment that was not asked for")),
        }
        true
    }

    /// MSG_FRAG arrived.
    pub(in crate::engine) fn on_msg_frag(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        index: u32,
        at: u64,
        content: &[u8],
    ) {
        let Some(r) = self.answered(ch, index) else { return };
        let len = content.len() as u64;
        let range = r.flow.as_mut().and_then(|flow| flow.sent.front_mut());
        let Some(range) = range.filter(|(from, to)| *from == at && (1..=to - from).contains(&len))
        else {
            let text = text!("MSG_FRAG of {len} bytes at {at}, which was not asked for");
            return self.violation(ch, Status::invalid(text));
        };
        range.0 += len;
        let left = range.1 - range.0;
        // SAFETY: the destination has room for the whole message, of which these bytes are a part; it is the application's
        // only when the receive has ended, which comes later.
        let result = unsafe { fx.deliver_part(r.dst + at, content) };
        if let Some(flow) = r.flow.as_mut().filter(|_| left == 0) {
            flow.sent.pop_front();
        }
        match result {
            Ok(()) => self.may_have_all(fx, index),
            Err(status) => self.end(fx, index, status),
        }
    }

    fn may_have_all(&mut self, fx: &mut impl Fx, index: u32) {
        let flow = self.requests.get(index).and_then(|r| r.flow.as_ref());
        if flow.is_some_and(|flow| flow.is_done()) {
            self.finish(fx, index, Ok(()));
        }
    }

    /// Closes what is open of a request: the sender writes no more.
    pub(in crate::engine) fn close_flow(&mut self, fx: &mut impl Fx, index: u32) {
        let Some(r) = self.requests.get_mut(index) else { return };
        if let (Some(flow), Some(ch)) = (&mut r.flow, r.ch) {
            flow.open.iter_mut().filter_map(Option::take).for_each(|window| fx.close(ch, window));
        }
    }
}
