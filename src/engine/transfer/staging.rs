//! Copies and checksums around a transfer, for all protocols: the source before it goes, the landing after it came.
//!
//! They are run outside of the engine ([`Work`]), since memory may be slow to come; the state says that one is out.

use super::inbound::State;
use super::outbound::{RState, Response};
use super::protocols::data_loss;
use crate::api::*;
use crate::engine::layout::Spot;
use crate::engine::{
    Engine, Fx, Stage, WR_KIND, WR_MESSAGE, WR_REQUEST, WR_RESPONSE, WR_SLOT, Work,
};
use crate::protocol::message::Message;
use crate::status::{Code, Reason, Status};

impl Engine {
    /// Copies the content to memory of the library: off a device, or to where it is registered.
    pub(super) fn stage(&mut self, fx: &mut impl Fx, index: u32) {
        let source = self.responses.get(index).and_then(|r| r.source.as_ref());
        self.stats.own.proxy_bytes.add(source.map_or(0, |s| s.tensor.meta.nbytes));
        self.gather(fx, index);
    }

    /// The same for a tensor of the host that need not be copied, where that takes less time. False: it does not.
    pub(super) fn stage_ahead(&mut self, fx: &mut impl Fx, index: u32) -> bool {
        let Some(r) = self.responses.get_mut(index) else { return false };
        let named = r.named.is_tensor();
        let Some((asked, source)) = r.parts() else { return false };
        let (addr, len) = (source.tensor.addr, source.tensor.meta.nbytes);
        let untouched = source.staged.is_none() && source.window.is_none() && source.leg.is_none();
        let whole = named && untouched && source.tensor.device == 0 && source.trial.is_none();
        let Some(c) = self.channels.get(asked.to.ch).filter(|_| whole) else { return false };
        if !self.settings.pays_to_copy(fx, c, addr, len) {
            return false;
        }
        // This one is among them.
        let alone = c.responses.len() <= 1;
        let Stage { buffer, trial } = fx.stage(len, alone, false);
        source.trial = trial;
        let Some(buffer) = buffer else { return false };
        (source.staged, source.ahead) = (Some(buffer), true);
        self.gather(fx, index);
        true
    }

    /// The same copy, for a message: on its way into one content passes no proxy.
    pub(super) fn gather(&mut self, fx: &mut impl Fx, index: u32) {
        let source = self.responses.get(index).and_then(|r| r.source.as_ref());
        let Some(tensor) = source.map(|s| &s.tensor) else { return };
        let at = source.and_then(|s| s.leg.as_ref()).map_or(0, |leg| leg.at);
        let (device, from, len) = (tensor.device, tensor.addr, source.map_or(0, |s| s.len()));
        let layout = self.layout(device, from);
        // A buffer of its name, as a rule memory that is found now.
        let own = source.and_then(|s| s.staged.as_ref()).map(|b| b.addr);
        let ready = self.copier(device).and_then(|ops| match own {
            Some(_) => Ok((ops, None)),
            None => Ok((ops, Some(fx.alloc(len)?))),
        });
        let (ops, staged) = match ready {
            Ok(ready) => ready,
            Err(status) => return self.undeliverable(fx, index, status),
        };
        let host = staged.as_ref().map(|b| b.addr).or(own).unwrap_or(0);
        if let Some(r) = self.responses.get_mut(index) {
            r.state = RState::Staging;
            if let (Some(source), Some(staged)) = (&mut r.source, staged) {
                source.staged = Some(staged);
            }
        }
        let token = WR_RESPONSE | u64::from(index);
        fx.run(match (ops, layout) {
            (Some(ops), _) => {
                Work::DeviceCopy { token, ops, to_host: true, host, device: from + at, len }
            }
            (None, None) => Work::HostCopy { token, dst: host, src: from + at, len },
            (None, layout) => {
                Work::Spread { token, dst: Spot::host(host), src: Spot { layout, at }, len }
            }
        });
    }

    /// Computes the checksum of the content, of any length and on slow pages: not here.
    pub(super) fn hash(&mut self, fx: &mut impl Fx, index: u32) {
        let Some(r) = self.responses.get_mut(index) else { return };
        let Some(source) = &r.source else { return };
        let (addr, len) = (source.addr(), source.len());
        r.state = RState::Staging;
        fx.run(Work::HostHash { token: WR_RESPONSE | u64::from(index), addr, len });
    }

    /// A checksum that the engine had asked for has been computed.
    pub fn hashed(&mut self, fx: &mut impl Fx, token: u64, result: Result<u64, Status>) {
        let index = token as u32;
        if token & WR_KIND == WR_SLOT {
            return self.slot_hashed(fx, token, result);
        }
        if token & WR_KIND == WR_RESPONSE {
            let of = self.responses.get_mut(index);
            let of = of.filter(|r| matches!(r.state, RState::Staging));
            if let (Some(source), Ok(sum)) = (of.and_then(|r| r.source.as_mut()), &result) {
                source.sum = Some(*sum);
            }
            return self.response_copied(fx, index, result.map(drop));
        }
        let Some(r) = self.requests.get_mut(index) else { return };
        match (&r.state, &r.ended, r.checksum, result) {
            (State::Copying, None, Some(want), Ok(got)) if want == got => {
                r.copying = false;
                self.land(fx, index);
            }
            (State::Copying, None, Some(want), Ok(got)) => {
                self.copied(fx, token, Err(data_loss(want, got)));
            }
            (_, _, _, result) => self.copied(fx, token, result.map(drop)),
        }
    }

    fn response_copied(&mut self, fx: &mut impl Fx, index: u32, result: Result<(), Status>) {
        if self.responses.get(index).is_some_and(|r| matches!(r.state, RState::Piping)) {
            return self.part_copied(fx, index, result);
        }
        let staging = |r: &&mut Response| matches!(r.state, RState::Staging);
        let Some(r) = self.responses.get_mut(index).filter(staging) else {
            self.defect("a copy of a response that was not asked for");
            return;
        };
        (r.copying, r.state) = (false, RState::Ready);
        let (ch, request, cancelled) = (r.asked.to.ch, r.asked.to.request, r.cancelled);
        let result = r.ended.take().map_or(result, Err);
        if cancelled {
            self.send(fx, ch, &Message::CancelAck { index: request }, &[]);
            let status = Status::new(Code::Cancelled, "the receiver no longer wants what was sent");
            self.end_response(fx, index, Err(status.because(Reason::RemoteError)));
        } else {
            match result {
                Ok(()) => self.go(fx, index, &[]),
                Err(status) => self.undeliverable(fx, index, status),
            }
        }
        self.settle(fx, ch);
    }

    /// The content is complete in its landing.
    pub(super) fn arrived(&mut self, fx: &mut impl Fx, index: u32) {
        self.close_landing(fx, index);
        let Some(r) = self.requests.get_mut(index) else { return };
        if let (Some(_), Some(l), Some(m)) = (r.checksum, &r.landing, &r.meta)
            && (r.device == 0 || l.staged.is_some())
        {
            let leg = r.legs.is_some() && l.buffer.is_none();
            let (addr, len) = (l.addr, if leg { l.len } else { m.nbytes });
            r.state = State::Copying;
            return fx.run(Work::HostHash { token: WR_REQUEST | u64::from(index), addr, len });
        }
        self.land(fx, index);
    }

    /// Copies from a proxy to the destination where there is one, and ends the request.
    pub(super) fn land(&mut self, fx: &mut impl Fx, index: u32) {
        let (device, to) = self.requests.get(index).map_or((0, 0), |r| (r.device, r.dst));
        let (ops, layout) = (self.copier(device), self.layout(device, to));
        let Some(r) = self.requests.get_mut(index) else { return };
        let (Some(l), Some(m)) = (&r.landing, &r.meta) else {
            return self.fail_by_defect(fx, index, "content arrived nowhere");
        };
        if l.staged.is_none() {
            return self.landed(fx, index);
        }
        // The memory of a buffer is as long as its sender wished.
        let legs = r.legs.as_ref().filter(|_| l.buffer.is_none());
        let (at, leg) = legs.map_or((0, m.nbytes), |legs| (legs.at, l.len));
        let (src, dst, len) = (l.addr, r.dst, leg);
        let token = WR_REQUEST | u64::from(index);
        r.state = State::Copying;
        match ops {
            Ok(None) if layout.is_some() => {
                let (dst, src) = (Spot { layout, at }, Spot::host(src));
                fx.run(Work::Spread { token, dst, src, len });
            }
            Ok(Some(ops)) if !matches!(r.target, Target::Library) => {
                let work =
                    Work::DeviceCopy { token, ops, to_host: false, host: src, device: dst, len };
                fx.run(work);
            }
            Ok(_) => fx.run(Work::HostCopy { token, dst, src, len }),
            Err(status) => self.fail(fx, index, status),
        }
    }

    /// A copy that the engine had asked for is about to begin; an error: it must not.
    pub fn copy_begins(&mut self, token: u64) -> Result<(), Status> {
        let index = token as u32;
        if token & WR_KIND == WR_MESSAGE {
            return self.message_copy_begins(index);
        }
        if token & WR_KIND == WR_SLOT {
            return self.slot_hash_begins(token);
        }
        let found = if token & WR_KIND == WR_RESPONSE {
            self.responses.get_mut(index).map(|r| (&mut r.copying, &r.ended))
        } else {
            self.requests.get_mut(index).map(|r| (&mut r.copying, &r.ended))
        };
        let Some((copying, ended)) = found else { return Ok(()) };
        *copying = ended.is_none();
        ended.clone().map_or(Ok(()), Err)
    }

    /// A copy that the engine had asked for has ended.
    pub fn copied(&mut self, fx: &mut impl Fx, token: u64, result: Result<(), Status>) {
        let index = token as u32;
        if token & WR_KIND == WR_MESSAGE {
            return self.message_copied(fx, index, result);
        }
        if token & WR_KIND == WR_RESPONSE {
            return self.response_copied(fx, index, result);
        }
        let ch = self.requests.get(index).and_then(|r| r.ch);
        self.request_copied(fx, index, result);
        if let Some(ch) = ch {
            self.settle(fx, ch); // It may have emptied a buffer, which was said.
        }
    }

    fn request_copied(&mut self, fx: &mut impl Fx, index: u32, result: Result<(), Status>) {
        let Some(r) = self.requests.get_mut(index) else { return };
        r.copying = false;
        if !matches!(r.state, State::Copying | State::LocalCopy(_)) {
            let status = self.defect("a copy that was not asked for");
            return self.end(fx, index, status);
        }
        let result = match r.ended.take() {
            Some(status) => Err(status),
            None => result,
        };
        match std::mem::replace(&mut r.state, State::Copying) {
            State::Copying => match result {
                Ok(()) => self.landed(fx, index),
                Err(status) => self.leg_failed(fx, index, status),
            },
            State::LocalCopy(sent) => self.local_copied(fx, index, sent, result),
            other => r.state = other,
        }
    }
}
