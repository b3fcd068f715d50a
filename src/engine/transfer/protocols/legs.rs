//! Send/Receive Pipeline (ob1's): content in legs, where the memory of an end lies in pieces.
//!
//! Neither end holds a copy of more than a leg. The receiver sets the pace: with its destination in pieces it reads, or
//! asks the sender to write (C), as much as one buffer takes, spreads that over its pieces (G), and goes on. A sender with its
//! source in pieces has said in its offer (A) how much it gathers at a time (E); the receiver asks for no more than that at
//! once. A leg that is written ends as a put does (F), by its immediate or CONTENT_DONE; GET_DONE comes after the last that
//! is read, or when the receiver gives up between two.

use crate::api::*;
use crate::engine::channel::ChanId;
use crate::engine::layout::{FRAGMENT, LAYOUT};
use crate::engine::transfer::inbound::{Legs, State};
use crate::engine::transfer::outbound::{Leg, RState, Response};
use crate::engine::{Engine, Fx};
use crate::fabric::Access;
use crate::fabric::keys::Place;
use crate::status::{Code, Reason, Status};

impl Engine {
    /// Begins to bring content in legs of at most `limit` bytes, 0: of what this side takes.
    pub(in crate::engine) fn begin_legs(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        (response, source): (u32, Option<Place>),
        limit: u64,
    ) {
        let ch = self.requests.get(index).and_then(|r| r.ch);
        let most = ch.map_or(FRAGMENT, |ch| self.sizes(ch).max_send_size);
        let Some(r) = self.requests.get_mut(index) else { return };
        let here = if r.device == LAYOUT { most.into() } else { u64::MAX };
        let limit = if limit == 0 { here } else { here.min(limit) };
        r.legs = Some(Box::new(Legs { at: 0, limit, response, source }));
        self.next_leg(fx, index);
    }

    fn next_leg(&mut self, fx: &mut impl Fx, index: u32) {
        let Some(r) = self.requests.get_mut(index) else { return };
        let channel = r.ch.and_then(|ch| Some((ch, self.channels.get(ch)?.caps.read)));
        let (Some((ch, read)), Some(legs)) = (channel, &r.legs) else {
            let status = Status::gone("the connection of the sender ended");
            return self.fail(fx, index, status);
        };
        let response = legs.response;
        let source = legs.source.as_ref().filter(|_| read).map(|s| s.from(legs.at));
        if let (Target::Given { addr, .. }, true) = (&r.target, r.device != LAYOUT) {
            r.dst = addr + legs.at;
        }
        let (len, access) = match source {
            Some(_) => (r.leg_len(), Access::LOCAL_WRITE),
            None => (r.leg_len(), Access::REMOTE_WRITE),
        };
        if let Err(status) = self.open_landing(fx, index, ch, len, access) {
            self.drop_response(fx, index, response);
            return self.fail(fx, index, status);
        }
        match source {
            None => self.ask_for_put(fx, index, ch, response),
            Some(source) => self.read_all(fx, index, ch, response, &source),
        }
    }

    /// What came is in its place: all of it, or a leg.
    pub(in crate::engine::transfer) fn landed(&mut self, fx: &mut impl Fx, index: u32) {
        let Some(r) = self.requests.get_mut(index) else { return };
        if !r.goes_on() {
            return self.finish(fx, index, Ok(()));
        }
        let len = r.leg_len();
        if let Some(legs) = &mut r.legs {
            legs.at += len;
        }
        (r.state, r.checksum) = (State::Requested, None);
        self.drop_landing(fx, index);
        self.next_leg(fx, index);
        self.settle_request(fx, index);
    }

    /// A copy failed, or was not to be made: the sender hears of it if it waits for more.
    pub(in crate::engine::transfer) fn leg_failed(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        status: Status,
    ) {
        let ch = self.requests.get(index).and_then(|r| r.ch);
        let waits = self.requests.get(index).filter(|r| r.goes_on());
        if let Some(response) = waits.and_then(|r| Some(r.legs.as_ref()?.response)) {
            self.drop_response(fx, index, response);
        }
        self.fail(fx, index, status);
        if let Some(ch) = ch {
            self.settle(fx, ch);
        }
    }

    /// The receiver asks for so many bytes of an offered message to be written there: all, or the next.
    pub(in crate::engine) fn granted(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        index: u32,
        (dst, len): (Place, u64),
    ) {
        let most = u64::from(self.sizes(ch).max_send_size);
        let Some(r) = self.responses.get_mut(index) else { return };
        let Some(source) = &mut r.source else { return };
        let nbytes = source.tensor.meta.nbytes;
        let in_pieces = source.tensor.device == LAYOUT;
        let begun = source.leg.as_ref().map(|leg| leg.at + leg.len);
        let left = nbytes - begun.unwrap_or(0);
        let bad = len == 0 || begun.is_some() && len > left || in_pieces && len > left.min(most);
        let text = || format!("MSG_GRANT for {len} bytes, the message has {left} more");
        if let RState::Writing { .. } = r.state {
            // The receiver has seen the end of this leg before us; nothing ends while it is written.
            match source.leg.as_mut().filter(|leg| !bad && leg.next.is_none()) {
                Some(leg) => leg.next = Some((dst, len)),
                None => self.violation(ch, Status::invalid(text())),
            }
            return;
        }
        if bad {
            return self.undeliverable(fx, index, Status::invalid(text()));
        }
        let len = len.min(left);
        if len < nbytes {
            let at = begun.unwrap_or(0);
            source.leg = Some(Box::new(Leg { at, len, next: None }));
            source.sum = None;
        }
        r.asked.dst = Some((dst, len));
        (r.asked.granted, r.state) = (true, RState::Ready);
        self.go(fx, index, &[]);
    }

    /// A leg was written, and there is more.
    pub(super) fn leg_written(&mut self, fx: &mut impl Fx, index: u32) {
        let Some(r) = self.responses.get_mut(index) else { return };
        let (ch, cancelled) = (r.asked.to.ch, r.cancelled);
        if cancelled {
            let status = Status::new(Code::Cancelled, "the receiver no longer wants the message");
            return self.end_response(fx, index, Err(status.because(Reason::RemoteError)));
        }
        r.state = RState::Told;
        let Some(source) = &mut r.source else { return };
        let (window, staged) = (source.window.take(), source.staged.take());
        let next = source.leg.as_mut().and_then(|leg| leg.next.take());
        if let Some(window) = window {
            fx.close(ch, window);
        }
        if let Some(staged) = staged {
            fx.free(staged);
        }
        if let Some(next) = next {
            self.granted(fx, ch, index, next);
        }
    }

    /// The receiver wants no more, and knew the end of a leg before us: the send ends when we do.
    pub(super) fn given_up_in_a_leg(&mut self, ch: ChanId, index: u32) -> bool {
        let writes = |r: &&mut Response| {
            let more = r.source.as_ref().is_some_and(|s| s.left() > 0);
            r.asked.to.ch == ch && more && matches!(r.state, RState::Writing { .. })
        };
        let found = self.responses.get_mut(index).filter(writes);
        found.is_some_and(|r| {
            r.cancelled = true;
            true
        })
    }

    /// The response of this index whose receiver asks for more of it.
    pub(in crate::engine) fn asks_for_more(&self, ch: ChanId, index: u32, request: u32) -> bool {
        let more = |r: &&Response| {
            let to = r.asked.to;
            let waits = matches!(r.state, RState::Told | RState::Writing { .. });
            to.ch == ch && to.request == request && waits
        };
        let found = self.responses.get(index).filter(more).and_then(|r| r.source.as_ref());
        found.is_some_and(|s| s.leg.is_some())
    }
}
