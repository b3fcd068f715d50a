//! The end of a response: sent, cancelled, refused, or without its channel; the sender's callback, where there is one.

use super::*;

impl Engine {
    /// Ends the send of a source that cannot go out.
    pub(in crate::engine) fn undeliverable(
        &mut self,
        fx: &mut impl Fx,
        asked: &Asked,
        of: (&[u8], i64),
        source: Source,
        status: Status,
    ) {
        self.send_error(fx, asked.ch, asked.index, &status);
        self.end_source(fx, asked.ch, of, source, Err(status), false);
    }

    pub(super) fn end_source(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        (key, step): (&[u8], i64),
        mut source: Source,
        result: Result<(), Status>,
        inline: bool,
    ) {
        let memory = match &source.tensor {
            Tensor { device: 0, addr, meta } => (*addr, meta.nbytes),
            _ => (0, 0),
        };
        if let Some(window) = source.window.take() {
            fx.close(ch, window);
        }
        if let Some(staged) = source.staged.take() {
            fx.free(staged);
        }
        let peer = self.channels.get(ch).map(|c| c.peer);
        let mut info = self.info(peer, Some(ch), source.protocol);
        info.elapsed_ns = fx.now().saturating_sub(source.started);
        if result.is_ok() {
            info.bytes = source.tensor.meta.nbytes;
        }
        let code = result.as_ref().map_or_else(|s| s.code, |_| Code::Ok);
        if let Some(c) = self.channels.get(ch) {
            c.counters.send_done(info.bytes, code, info.protocol);
        }
        self.end_send_of(fx, Some((key, step)), source.done, result, info, inline, memory);
    }

    pub(in crate::engine) fn on_cancel(&mut self, fx: &mut impl Fx, ch: ChanId, request: u32) {
        let found = self.channels.get(ch).and_then(|c| c.responses.get(&request).copied());
        let busy = found.and_then(|i| self.responses.get_mut(i)).is_some_and(|r| {
            let busy = matches!(r.state, RState::Writing { .. } | RState::Staging(_));
            r.cancelled |= busy;
            busy
        });
        if busy {
            return; // Acknowledged when the writes have ended.
        }
        if let Some(r) = found.and_then(|i| self.forget_waiting(i)) {
            let status = Status::new(Code::Cancelled, "the receiver cancelled");
            let status = status.because(Reason::RemoteError);
            match r.state {
                RState::Told(source) | RState::Deferred(source) => {
                    self.end_source(fx, ch, (&r.key, r.step), source, Err(status), false);
                }
                RState::Asking => self.ended_early(fx, r.id, &status),
                // Nobody here was told of it, or, for the two that are busy, see above.
                RState::Waiting | RState::Staging(_) | RState::Writing { .. } => {}
            }
        }
        self.send(fx, ch, &Message::CancelAck { index: request }, &[]);
    }

    /// Removes a response, also from the table if it waits there.
    pub(super) fn forget_waiting(&mut self, index: u32) -> Option<Response> {
        let r = self.forget(index)?;
        if matches!(r.state, RState::Waiting) {
            self.table.remove_waiter(&r.key, r.step, Waiter::Remote(index));
        }
        Some(r)
    }

    pub(in crate::engine) fn close_source(&mut self, fx: &mut impl Fx, index: u32) {
        let Some(r) = self.responses.get_mut(index) else { return };
        let ch = r.asked.ch;
        if let RState::Told(source) | RState::Writing { source, .. } = &mut r.state
            && let Some(window) = source.window.take()
        {
            fx.close(ch, window);
        }
    }

    pub(in crate::engine) fn response_lost_channel(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        status: &Status,
    ) {
        let staging =
            self.responses.get(index).is_some_and(|r| matches!(r.state, RState::Staging(_)));
        if staging {
            return; // The copy writes to our buffer; `response_copied` ends it.
        }
        let Some(r) = self.forget_waiting(index) else { return };
        let (source, failed) = match r.state {
            RState::Told(source) | RState::Deferred(source) => (source, None),
            RState::Writing { source, failed, .. } => (source, failed),
            RState::Asking => return self.ended_early(fx, r.id, status),
            RState::Waiting | RState::Staging(_) => return,
        };
        let peer = self.peer_name(Some(r.peer));
        // What failed before keeps its own cause.
        let status = failed.unwrap_or_else(|| {
            let mut status = status.clone();
            status.message = format!(
                "'{}' of step {} to peer '{peer}': {}",
                crate::shown::key(&r.key),
                r.step,
                status.message
            );
            status
        });
        self.end_source(fx, r.asked.ch, (&r.key, r.step), source, Err(status), false);
    }

    /// Ends a remote receive that waits here, with an error.
    pub(in crate::engine) fn refuse(&mut self, fx: &mut impl Fx, index: u32, status: &Status) {
        let Some(r) = self.forget(index) else { return };
        self.send_error(fx, r.asked.ch, r.asked.index, status);
        self.settle(fx, r.asked.ch);
    }
    /// The same, and the runtime, which was asked, is told.
    pub(in crate::engine) fn refuse_asked(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        status: &Status,
    ) {
        if let Some(id) = self.responses.get(index).map(|r| r.id) {
            self.ended_early(fx, id, status);
        }
        self.refuse(fx, index, status);
    }
}
