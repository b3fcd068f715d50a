//! The end of a request: cancelled, failed, finished; always one callback.

use super::*;
#[cfg(feature = "planted")]
use crate::engine::Planted;

impl Engine {
    /// The application no longer wants a receive.
    pub fn cancel(&mut self, fx: &mut impl Fx, id: u64) -> Result<(), Status> {
        let index = self.by_id(id).ok_or_else(|| {
            Status::new(Code::NotFound, format!("request {id} is not known or has ended"))
        })?;
        let status = Status::new(Code::Cancelled, "the receive was cancelled");
        self.end(fx, index, status.because(Reason::Cancelled));
        Ok(())
    }

    /// Ends a request early: at once where nothing can touch its memory any more, otherwise as soon
    /// as that is so.
    pub(in crate::engine) fn end(&mut self, fx: &mut impl Fx, index: u32, status: Status) {
        let now = fx.now();
        let grace = self.quiesce_grace();
        let Some(r) = self.requests.get_mut(index) else { return };
        let windows = r.ch.and_then(|ch| self.channels.get(ch)).is_some_and(|c| c.caps.windows);
        match &mut r.state {
            State::Queued => {
                if let Some(p) = r.peer.and_then(|p| self.peers.get_mut(p)) {
                    p.queue.retain(|&q| q != index);
                }
                self.fail(fx, index, status);
            }
            State::LocalWait => {
                self.table.remove_waiter(&r.key, r.step, Waiter::Local(index));
                self.fail(fx, index, status);
            }
            State::Allocating(_) | State::Copying | State::LocalCopy(_) => {
                r.ended.get_or_insert(status);
            }
            State::Requested | State::Awaiting => {
                let exposed = r.landing.as_ref().is_some_and(|l| l.window.is_some());
                let ch = r.ch;
                if let (Some(place), Some(ch)) = (r.place.take(), ch)
                    && self.channels.get_mut(ch).is_some_and(|c| c.withdraw(place, index))
                {
                    // The peer has not heard of it, and never will.
                    self.fail(fx, index, status);
                    return self.settle(fx, ch);
                }
                let Some(r) = self.requests.get_mut(index) else { return };
                if exposed && !windows {
                    r.state = State::Quiescing { status, left: 0, response: None };
                    self.set_deadline(index, now + grace);
                } else {
                    self.fail(fx, index, status);
                }
                if let Some(ch) = ch {
                    self.send(fx, ch, &Message::Cancel { index }, &[]);
                    self.settle(fx, ch);
                }
            }
            State::Reading { left, response, .. } => {
                let (left, response) = (*left, Some(*response));
                r.state = State::Quiescing { status, left, response };
                self.set_deadline(index, now + grace);
            }
            State::Quiescing { .. } => {}
        }
    }

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
            State::Allocating(_) | State::Copying => {
                // A copy from a complete landing needs the channel no more.
                if matches!(r.state, State::Allocating(_)) {
                    r.ended.get_or_insert(status.clone());
                }
            }
            State::Quiescing { status, .. } => {
                let status = status.clone();
                self.fail(fx, index, status);
            }
            _ => {
                let mut status = status.clone();
                status.message = format!(
                    "'{}' of step {} from peer '{}' over {provider}: {}",
                    crate::shown::key(&r.key),
                    r.step,
                    from,
                    status.message
                );
                self.fail(fx, index, status);
            }
        }
    }

    pub(in crate::engine) fn fail(&mut self, fx: &mut impl Fx, index: u32, status: Status) {
        self.finish(fx, index, Err(status));
    }

    /// A request that cannot go on, by a defect of the library.
    pub(in crate::engine) fn fail_by_defect(&mut self, fx: &mut impl Fx, index: u32, what: &str) {
        let status = self.defect(what);
        self.fail(fx, index, status);
    }

    /// Ends a request with its one callback. The only place where an accepted one leaves the table.
    pub(in crate::engine) fn finish(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        result: Result<(), Status>,
    ) {
        self.finish_held(fx, index, result, Held::Nothing, None);
    }

    /// The same; `held` is what a local result refers to, at `addr`.
    pub(in crate::engine) fn finish_held(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        result: Result<(), Status>,
        mut held: Held,
        at: Option<(u64, u32)>,
    ) {
        self.close_landing(fx, index);
        let mut gone = self.remove_request(index);
        let Some(r) = &mut gone else { return };
        if let Some(staged) = r.landing.take().and_then(|l| l.staged) {
            fx.free(staged);
        }
        let given = if let Target::Given { len, .. } = r.target { len } else { 0 };
        let memory = match r.device {
            0 => (r.dst, given.max(r.meta.as_ref().map_or(0, |m| m.nbytes))),
            _ => (0, 0),
        };
        let elapsed_ns = fx.now().saturating_sub(r.started);
        let mut info = TransferInfo { elapsed_ns, ..self.info(r.peer, r.ch, r.protocol) };
        let code = result.as_ref().map_or_else(|s| s.code, |_| Code::Ok);
        let keep = r.keep;
        let result = match (result, r.meta.take()) {
            (Ok(()), Some(meta)) => {
                self.remember(r.peer, &r.key, &meta);
                info.bytes = meta.nbytes;
                let library = matches!(r.target, Target::Library);
                let (addr, device) = at.unwrap_or(match meta.nbytes {
                    0 => (0, 0),
                    _ => (r.dst, if library { 0 } else { r.device }),
                });
                if let Some(buffer) = r.buffer.take() {
                    held = Held::Buffer(buffer);
                }
                #[cfg(feature = "planted")]
                if self.planted == Some(Planted::WrongBytes) && meta.nbytes > 0 && device == 0 {
                    // SAFETY: the destination holds `nbytes` bytes.
                    let _ = unsafe { fx.deliver(addr, &[0x5a]) };
                }
                Ok(Tensor { meta, addr, device })
            }
            (Ok(()), None) => Err(self.defect("a receive ended without metadata")),
            (Err(status), _) => {
                info.reason = status.reason;
                if let Some(buffer) = r.buffer.take() {
                    fx.free(buffer);
                }
                Err(status)
            }
        };
        let protocol = info.protocol;
        self.count(r.peer, r.ch, |c| c.recv_done(info.bytes, elapsed_ns, code, protocol));
        let request = r.id;
        let of = self.traced(fx, &r.key, r.step);
        self.table.keys().give(std::mem::take(&mut r.key));
        #[cfg(feature = "planted")]
        if self.planted == Some(Planted::LosesRecv) {
            return;
        }
        #[cfg(feature = "planted")]
        if self.planted == Some(Planted::DoubleCompletion) {
            let done = self.due(OnRecv::Plain(|_, _, _| {}, [0; 2]));
            let (result, info) = (result.clone(), info.clone());
            let (of, after, keep) = (None, Held::Nothing, false);
            fx.run(Work::RecvDone { request, of, done, result, info, after, keep, memory });
        }
        let Some(Request { done, .. }) = gone else { return };
        fx.run(Work::RecvDone { request, of, done, result, info, after: held, keep, memory });
    }

    /// Caches the metadata of a receive that ended well: the only place that does, so no tensor for
    /// which there was no memory is ever in the cache.
    fn remember(&mut self, peer: Option<u32>, key: &[u8], meta: &Meta) {
        let Some(peer) = peer.and_then(|p| self.peers.get_mut(p)) else { return };
        if peer.cache.get(key) != Some(meta) {
            peer.cache.put(key, meta);
        }
    }

    /// There was no memory for what the cached metadata says. The sender's tensor may be another by
    /// now: the request goes out as one that knows nothing.
    pub(super) fn distrust_cache(&mut self, fx: &mut impl Fx, index: u32) {
        let Some(r) = self.requests.get_mut(index) else { return };
        r.meta = None;
        if let Some(buffer) = r.buffer.take() {
            fx.free(buffer);
        }
        if let Some(peer) = r.peer.and_then(|p| self.peers.get_mut(p)) {
            peer.cache.remove(&r.key);
        }
        self.submit(fx, index);
    }

    /// Gives up what a kept request holds. Until its callback has returned that is in use there,
    /// and comes from [`returned`](Self::returned) instead.
    pub fn release(&mut self, id: u64) -> Result<Held, Status> {
        match self.kept.get_mut(&id) {
            Some(kept @ Kept::Running) => {
                *kept = Kept::Released;
                Ok(Held::Nothing)
            }
            None | Some(Kept::Released) => {
                let text = format!("request {id} is not known, not kept, or was released");
                Err(Status::new(Code::NotFound, text))
            }
            Some(Kept::Ended(held)) => {
                let held = std::mem::take(held);
                self.kept.remove(&id);
                Ok(held)
            }
        }
    }

    /// The callback of a kept request has returned. What the request holds stays, or is given back
    /// by the caller if it was released meanwhile.
    pub fn returned(&mut self, id: u64, held: Held) -> Held {
        match self.kept.get_mut(&id) {
            Some(kept @ Kept::Running) => {
                *kept = Kept::Ended(held);
                Held::Nothing
            }
            _ => {
                self.kept.remove(&id);
                held
            }
        }
    }

    /// What requests hold that were never released, at the end.
    pub fn unreleased(&mut self) -> Vec<Held> {
        let ended = |kept| match kept {
            Kept::Ended(held) => Some(held),
            Kept::Running | Kept::Released => None,
        };
        std::mem::take(&mut self.kept).into_values().filter_map(ended).collect()
    }
}
