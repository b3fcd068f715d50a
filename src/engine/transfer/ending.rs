//! The one end of each transfer, for all protocols: what it held goes back, it is counted, its callback is queued.

use super::inbound::Request;
use super::outbound::{Response, Sent, Source, code_of};
use crate::api::*;
#[cfg(feature = "planted")]
use crate::engine::Planted;
use crate::engine::channel::ChanId;
use crate::engine::{Due, Engine, Fx, Held, Work};
use crate::status::{Code, Reason, Status};

impl Engine {
    /// Ends a request with an error.
    pub(in crate::engine) fn fail(&mut self, fx: &mut impl Fx, index: u32, status: Status) {
        self.finish(fx, index, Err(status));
    }

    /// A request that cannot go on, by a defect of the library.
    pub(in crate::engine) fn fail_by_defect(&mut self, fx: &mut impl Fx, index: u32, what: &str) {
        let status = self.defect(what);
        self.fail(fx, index, status);
    }

    /// Ends a request with its one callback. The only place where an accepted one leaves the slab.
    pub(in crate::engine) fn finish(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        result: Result<(), Status>,
    ) {
        self.finish_held(fx, index, result, Held::Nothing, None);
    }

    /// The same of one that ends well, with its content in its place; as a rule by metadata that was known before, and then
    /// all that is left of it goes from where it lies to its callback.
    #[inline(always)]
    pub(in crate::engine) fn finish_well(&mut self, fx: &mut impl Fx, index: u32) {
        let now = fx.now();
        let usual = |r: &&mut Request| {
            r.known && r.landing.is_none() && r.buffer.is_none() && !fx.tracing()
        };
        let planted = self.has_planted();
        let found = self.requests.get_mut(index).filter(usual);
        let (Some(r), false) = (found, planted) else {
            return self.finish_held(fx, index, Ok(()), Held::Nothing, None);
        };
        let Some(bytes) = r.meta.as_ref().map(|meta| meta.nbytes) else { return };
        let (request, keep, started) = (r.named.id, r.keep, r.started);
        let (peer, ch, protocol) = (r.peer, r.ch, r.protocol);
        let memory = r.memory_of(bytes);
        let (addr, device) = if bytes == 0 { (0, 0) } else { r.place_of_result() };
        let place = r.named.take_place();
        let elapsed_ns = now.saturating_sub(started);
        let Some(mut meta) = r.meta.take() else { return };
        let mut done = r.done.take();
        self.requests.vacate(index);
        self.unlink_request(index, place);
        let (mut peer, provider) = match ch.and_then(|ch| self.channels.get(ch)) {
            Some(c) => {
                c.counters.recv_done(bytes, elapsed_ns, Code::Ok, protocol);
                (fx.name(&c.name, false), Carrier::Provider(c.caps.provider))
            }
            None => {
                self.count(peer, ch, |c| c.recv_done(bytes, elapsed_ns, Code::Ok, protocol));
                let TransferInfo { peer, provider, .. } = self.info(peer, ch, protocol);
                (peer, provider)
            }
        };
        fx.run_end(memory, false, &mut || Work::RecvDone {
            request,
            of: None,
            done: done.take(),
            result: Ok(Tensor { meta: std::mem::take(&mut meta), addr, device }),
            info: TransferInfo {
                bytes,
                elapsed_ns,
                provider,
                peer: std::mem::take(&mut peer),
                protocol,
                reason: Reason::None,
            },
            after: Held::Nothing,
            keep,
            memory,
        });
    }

    /// Whether a bug is planted.
    #[inline(always)]
    fn has_planted(&self) -> bool {
        #[cfg(feature = "planted")]
        return self.planted.is_some();
        #[cfg(not(feature = "planted"))]
        false
    }

    /// The same; `held` is what a local result refers to, at `addr`.
    pub(in crate::engine) fn finish_held(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        result: Result<(), Status>,
        held: Held,
        at: Option<(u64, u32)>,
    ) {
        if self.requests.get(index).is_some_and(|r| r.landing.is_some() || r.flow.is_some()) {
            self.drop_landing(fx, index);
        }
        let now = fx.now();
        let Some(r) = self.requests.get_mut(index) else { return };
        let (request, keep, peer, ch, protocol) = (r.named.id, r.keep, r.peer, r.ch, r.protocol);
        let (memory, place, started, known) = (r.memory(), r.place_of_result(), r.started, r.known);
        let (buffer, meta) = (r.buffer.take(), r.meta.take());
        let of = if fx.tracing() { r.named.traced() } else { None };
        let mut info = self.info(peer, ch, protocol);
        info.elapsed_ns = now.saturating_sub(started);
        let (result, after) = match (result, meta) {
            (Ok(()), Some(meta)) => {
                if !known {
                    self.remember(index, &meta);
                }
                info.bytes = meta.nbytes;
                let (addr, device) = at.unwrap_or(if meta.nbytes == 0 { (0, 0) } else { place });
                let after = buffer.map_or(held, Held::Buffer);
                #[cfg(feature = "planted")]
                if self.planted == Some(Planted::WrongBytes) && meta.nbytes > 0 && device == 0 {
                    // SAFETY: the destination holds `nbytes` bytes.
                    let _ = unsafe { fx.deliver(addr, &[0x5a]) };
                }
                (Ok(Tensor { meta, addr, device }), after)
            }
            (result, _) => {
                let status = self.why(result);
                info.reason = status.reason;
                if let Some(buffer) = buffer {
                    fx.free(buffer);
                }
                (Err(status), held)
            }
        };
        let code = code_of(&result);
        // A message that failed is counted as it ends.
        let message = self.requests.get(index).is_some_and(|r| r.done.is_message());
        if code == Code::Ok || !message {
            self.count(peer, ch, |c| c.recv_done(info.bytes, info.elapsed_ns, code, info.protocol));
        }
        #[cfg(feature = "planted")]
        if self.planted == Some(Planted::LosesRecv) {
            self.remove_request(index);
            return;
        }
        #[cfg(feature = "planted")]
        if self.planted == Some(Planted::DoubleCompletion) {
            let done = self.due(OnRecv::Plain(|_, _, _| {}, [0; 2]));
            let (result, info) = (result.clone(), info.clone());
            let (of, after, keep) = (None, Held::Nothing, false);
            fx.run(Work::RecvDone { request, of, done, result, info, after, keep, memory });
        }
        let Some(mut done) = self.remove_request(index) else { return };
        if let Some(op) = done.take_message() {
            return self.end_message(fx, op, result.map(drop));
        }
        fx.run(Work::RecvDone { request, of, done, result, info, after, keep, memory });
    }

    /// Why a receive ended without a tensor.
    #[cold]
    fn why(&self, result: Result<(), Status>) -> Status {
        match result {
            Ok(()) => self.defect("a receive ended without metadata"),
            Err(status) => status,
        }
    }

    /// A request leaves the slab, and what refers to it; its callback.
    pub(in crate::engine) fn remove_request(&mut self, index: u32) -> Option<Due<OnRecv>> {
        let take = |r: &mut Request| (r.named.take_place(), r.done.take());
        let (place, done) = self.requests.take(index, take)?;
        self.unlink_request(index, place);
        Some(done)
    }

    /// A response leaves the slab, and what refers to it.
    pub(in crate::engine) fn forget(&mut self, index: u32) {
        self.forget_here(index);
    }

    /// The same, where most do.
    #[inline(always)]
    pub(in crate::engine) fn forget_here(&mut self, index: u32) {
        let take = |r: &mut Response| (r.named.take_place(), r.cost, r.peer, r.asked.to);
        let Some((place, cost, peer, to)) = self.responses.take(index, take) else {
            return;
        };
        self.unlink_response(index, place);
        if let Some(c) = self.channels.get_mut(to.ch) {
            c.responses.remove(to.request);
        }
        self.waiting_bytes = self.waiting_bytes.saturating_sub(cost);
        if let Some(p) = self.peers.get_mut(peer) {
            // A message takes no memory for its name.
            let count = if cost == 0 { &mut p.offered } else { &mut p.waiting };
            *count = count.saturating_sub(1);
            p.waiting_bytes = p.waiting_bytes.saturating_sub(cost);
        }
    }

    /// Ends a response whose tensor cannot go out: both ends hear why. What nobody has asked for is taken back, so that no
    /// receive meets it, and it counts for nothing at the peer.
    pub(in crate::engine) fn undeliverable(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        status: Status,
    ) {
        if let Some(r) = self.responses.get(index) {
            let (ch, request) = (r.asked.to.ch, r.asked.to.request);
            match r.is_unasked() {
                true => self.take_offer_back(fx, ch, index),
                false => self.send_error(fx, ch, request, &status),
            }
        }
        self.end_response(fx, index, Err(status));
    }

    /// Ends a response, and the send whose tensor it has.
    pub(in crate::engine) fn end_response(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        result: Result<(), Status>,
    ) {
        self.end_response_of(fx, index, result, false);
    }

    /// The same of one whose content is in a message: its callback may run within the call that sent it.
    pub(super) fn end_response_inline(&mut self, fx: &mut impl Fx, index: u32) {
        self.end_response_of(fx, index, Ok(()), true);
    }

    /// A response leaves its tensor to its sender again: nothing of it is on its way, and nobody reads it any more.
    pub(in crate::engine) fn take_back(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        index: u32,
    ) -> Option<Sent> {
        let mut source = self.responses.get_mut(index)?.source.take()?;
        if let Some(window) = source.window.take() {
            fx.close(ch, window);
        }
        if let Some(staged) = source.staged.take() {
            if source.ahead { fx.unstage(staged) } else { fx.free(staged) }
        }
        let Source { tensor, content, done, deadline, .. } = source;
        Some(Sent { tensor, content, done, deadline })
    }

    fn end_response_of(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        result: Result<(), Status>,
        inline: bool,
    ) {
        self.leave_buffer(index);
        let Some(r) = self.responses.get_mut(index) else { return };
        let (ch, peer, source) = (r.asked.to.ch, r.peer, r.source.take());
        let of = if fx.tracing() { r.named.traced() } else { None };
        self.forget(index);
        let Some(mut source) = source else { return };
        if let (Some(trial), true) = (source.trial, result.is_ok()) {
            fx.moved(trial, source.tensor.meta.nbytes);
        }
        if let Some(window) = source.window.take() {
            fx.close(ch, window);
        }
        if let Some(flow) = &mut source.flow {
            flow.end_parts(fx, ch);
        }
        if let Some(staged) = source.staged.take() {
            match source.buffer {
                Some(buffer) => self.buffer_written_from(fx, buffer, staged),
                None if source.ahead => fx.unstage(staged),
                None => fx.free(staged),
            }
        }
        let elapsed_ns = fx.now().saturating_sub(source.started);
        let (tensor, protocol) = (&source.tensor, source.protocol);
        let info = TransferInfo { elapsed_ns, ..self.info(Some(peer), Some(ch), protocol) };
        let memory = source_memory(tensor);
        let bytes = tensor.meta.nbytes;
        self.end_sent(
            fx,
            ch,
            source.done,
            result,
            TransferInfo { bytes, ..info },
            of,
            inline,
            memory,
        );
    }

    /// Counts the end of a send, and queues its callback.
    #[allow(clippy::too_many_arguments, reason = "the facts of one transfer")]
    pub(in crate::engine) fn end_sent(
        &mut self,
        fx: &mut impl Fx,
        ch: crate::engine::channel::ChanId,
        done: Option<Due<OnSend>>,
        result: Result<(), Status>,
        mut info: TransferInfo,
        of: Option<(Box<[u8]>, i64)>,
        inline: bool,
        memory: (u64, u64),
    ) {
        let code = code_of(&result);
        if let Err(status) = &result {
            (info.bytes, info.reason) = (0, status.reason);
        }
        let message = done.as_ref().is_some_and(|done| done.is_message());
        if let Some(c) = self.channels.get(ch).filter(|_| code == Code::Ok || !message) {
            c.counters.send_done(info.bytes, code, info.protocol);
        }
        if let Some(mut done) = done {
            if let Some(op) = done.take_message() {
                return self.end_message(fx, op, result.map_err(of_message));
            }
            fx.run(Work::SendDone { done, result, info, of, inline, memory });
        }
    }
}

/// Why a message was not sent: a receiver that closes its memory while it is written has given its receive up.
fn of_message(status: Status) -> Status {
    if status.code == Code::PermissionDenied && status.reason != Reason::LocalError {
        let text = text!("the receiver ended its receive meanwhile: {}", status.message);
        return status.with_code(Code::Cancelled).with_message(text);
    }
    status
}

/// Memory of the host that is the application's again when a send has ended.
pub(in crate::engine) fn source_memory(tensor: &Tensor) -> (u64, u64) {
    match tensor {
        Tensor { device: 0, addr, meta } => (*addr, meta.nbytes),
        _ => (0, 0),
    }
}
