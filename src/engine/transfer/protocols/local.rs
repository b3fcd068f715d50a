//! Local (TensorFlow contrib/verbs): receives from oneself; no connection, no message. Library results refer to the sender's tensor.

use std::sync::Arc;

use crate::api::*;
use crate::engine::layout::{LAYOUT, Layout, Spot};
use crate::engine::transfer::inbound::{AfterAlloc, State};
use crate::engine::transfer::outbound::{Content, Sent};
use crate::engine::{Engine, Fx, Held, WR_REQUEST, Work};
use crate::status::{Code, Reason, Status};

impl Engine {
    /// A receive from oneself has its tensor, for which it has room.
    pub(in crate::engine) fn receive_local(&mut self, fx: &mut impl Fx, index: u32, sent: Sent) {
        let Some(r) = self.requests.get_mut(index) else { return };
        let meta = sent.tensor.meta.clone();
        if matches!(r.target, Target::Library) || meta.nbytes == 0 {
            return self.lend(fx, index, sent, meta);
        }
        // The tensor travels with the request's state; `prepare` puts it there if it has to wait.
        let after = AfterAlloc::Local(Sent {
            tensor: sent.tensor.clone(),
            content: Content::new(),
            done: None,
            deadline: sent.deadline,
        });
        let Sent { tensor, content, done, deadline } = sent;
        match self.prepare(fx, index, meta, after, false) {
            Ok(true) => self.local_ready(fx, index, Sent { tensor, content, done, deadline }, None),
            Ok(false) => {
                let state = self.requests.get_mut(index).map(|r| &mut r.state);
                if let Some(State::Allocating(Some(AfterAlloc::Local(waiting)))) = state {
                    waiting.done = done;
                }
            }
            Err(status) => {
                let sent = Sent { tensor, content, done, deadline };
                self.local_failed(fx, index, sent, status);
            }
        }
    }

    /// The result is the sender's own memory, held until the receiver lets it go.
    fn lend(&mut self, fx: &mut impl Fx, index: u32, sent: Sent, meta: Meta) {
        let mut info = self.info(None, None, Protocol::Local);
        info.bytes = meta.nbytes;
        let at = (sent.tensor.addr, sent.tensor.device);
        if let Some(r) = self.requests.get_mut(index) {
            r.meta = Some(meta);
        }
        let held = Held::Source(sent.done, info);
        self.finish_held(fx, index, Ok(()), held, Some(at));
    }

    /// The destination is there: copy.
    pub(in crate::engine) fn local_ready(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        sent: Sent,
        failed: Option<Status>,
    ) {
        if let Some(status) = failed {
            return self.local_failed(fx, index, sent, status);
        }
        let Some(r) = self.requests.get_mut(index) else { return };
        let (src, from) = (sent.tensor.addr, sent.tensor.device);
        let (dst, to, len) = (r.dst, r.device, sent.tensor.meta.nbytes);
        let token = WR_REQUEST | u64::from(index);
        r.state = State::LocalCopy(sent);
        if from == LAYOUT || to == LAYOUT {
            return self.local_pieces(fx, index, (src, from), (dst, to), len);
        }
        let device = if from != 0 { from } else { to };
        match (from, to, self.device(device)) {
            (0, 0, _) => fx.run(Work::HostCopy { token, dst, src, len }),
            (_, 0, Ok(Some(ops))) => {
                fx.run(Work::DeviceCopy { token, ops, to_host: true, host: dst, device: src, len })
            }
            (0, _, Ok(Some(ops))) => {
                fx.run(Work::DeviceCopy { token, ops, to_host: false, host: src, device: dst, len })
            }
            (_, _, Ok(Some(ops))) => self.through_host(fx, index, ops, src, len),
            (_, _, failed) => {
                let none = || self.defect("a device is not registered any more");
                let status = failed.err().unwrap_or_else(none);
                self.copied(fx, token, Err(status));
            }
        }
    }

    /// The same where either lies in pieces; to or from a device by way of a buffer on the host.
    fn local_pieces(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        (src, from): (u64, u32),
        (dst, to): (u64, u32),
        len: u64,
    ) {
        let spot = |layout: Option<Arc<Layout>>, addr| match layout {
            None => Spot::host(addr),
            layout => Spot { layout, at: 0 },
        };
        let token = WR_REQUEST | u64::from(index);
        let real = if from == LAYOUT { to } else { from };
        let (dst_layout, src_layout) = (self.layout(to, dst), self.layout(from, src));
        match self.copier(real) {
            Ok(Some(ops)) if real == from => self.through_host(fx, index, ops, src, len),
            Ok(Some(_)) => {
                let buffer = self.local_buffer(fx, index, len);
                let Some(host) = buffer else { return };
                let (dst, src) = (Spot::host(host), spot(src_layout, src));
                fx.run(Work::Spread { token, dst, src, len });
            }
            Ok(None) => {
                let (dst, src) = (spot(dst_layout, dst), spot(src_layout, src));
                fx.run(Work::Spread { token, dst, src, len });
            }
            Err(status) => self.copied(fx, token, Err(status)),
        }
    }

    /// A buffer of the host between two copies, which the tensor then is; its address.
    fn local_buffer(&mut self, fx: &mut impl Fx, index: u32, len: u64) -> Option<u64> {
        match fx.alloc(len) {
            Ok(buffer) => {
                let host = buffer.addr;
                if let Some(r) = self.requests.get_mut(index) {
                    r.buffer = Some(buffer);
                    if let State::LocalCopy(sent) = &mut r.state {
                        sent.tensor.addr = host;
                    }
                }
                Some(host)
            }
            Err(status) => {
                self.copied(fx, WR_REQUEST | u64::from(index), Err(status));
                None
            }
        }
    }

    /// From device to device: first to a buffer on the host. The tensor then is that buffer.
    fn through_host(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        ops: std::sync::Arc<dyn DeviceOps>,
        device: u64,
        len: u64,
    ) {
        let token = WR_REQUEST | u64::from(index);
        if let Some(host) = self.local_buffer(fx, index, len) {
            fx.run(Work::DeviceCopy { token, ops, to_host: true, host, device, len });
        }
    }

    pub(in crate::engine) fn local_copied(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        mut sent: Sent,
        result: Result<(), Status>,
    ) {
        if let Err(status) = result {
            return self.local_failed(fx, index, sent, status);
        }
        let Some(r) = self.requests.get_mut(index) else { return };
        let staged = r.buffer.as_ref().is_some_and(|b| b.addr == sent.tensor.addr);
        if staged && sent.tensor.device != 0 {
            // The first of two copies: now from the host's buffer to the device.
            sent.tensor.device = 0;
            return self.local_ready(fx, index, sent, None);
        }
        if let Some(buffer) = r.buffer.take() {
            fx.free(buffer);
        }
        let mut info = self.info(None, None, Protocol::Local);
        info.bytes = sent.tensor.meta.nbytes;
        self.end_send(fx, sent.done, Ok(()), info);
        self.finish(fx, index, Ok(()));
    }

    pub(in crate::engine) fn local_failed(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        sent: Sent,
        status: Status,
    ) {
        let info = self.info(None, None, Protocol::Local);
        let text = text!("the receiver failed: {}", status.message);
        let theirs = Status::new(Code::Cancelled, text).because(Reason::RemoteError);
        self.end_send(fx, sent.done, Err(theirs), info);
        self.fail(fx, index, status);
    }
}
