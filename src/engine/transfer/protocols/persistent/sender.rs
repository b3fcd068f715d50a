//! The sender's end of persistent buffers.

use crate::api::Protocol;
use crate::engine::channel::ChanId;
use crate::engine::transfer::buffers::{Outgoing, imm_of, pages};
use crate::engine::transfer::outbound::{RState, Response};
use crate::engine::{Buffer, Engine, Fx, MapError, WR_RESPONSE};
use crate::fabric::keys::{Keys, Place, pieces};
use crate::fabric::{Access, Mem};
use crate::protocol::message::{BufferMessage, Message};
use crate::status::Status;

/// Its links among those that wait for a buffer.
fn in_buffer(r: &mut Response) -> &mut crate::engine::list::Links {
    &mut r.in_buffer
}

impl Engine {
    /// A response goes by the buffer of its name: it has it, or waits for it.
    pub(in crate::engine) fn persist(&mut self, fx: &mut impl Fx, index: u32) {
        let Some(r) = self.responses.get(index) else { return };
        let Some(source) = &r.source else { return };
        match source.buffer {
            Some(_) if r.asked.to.checksum && source.sum.is_none() => self.hash(fx, index),
            Some(number) => self.write_buffer(fx, index, number),
            None => match self.buffer_of(index) {
                Some(number) => {
                    if let Some(r) = self.responses.get_mut(index) {
                        r.state = RState::Buffering(number);
                    }
                    if let Some(b) = self.buffers.outgoing.get_mut(number) {
                        b.waiting.push(&mut self.responses, in_buffer, index);
                    }
                    self.serve(fx, number);
                }
                None => self.go_unbuffered(fx, index),
            },
        }
    }

    /// There is no buffer to be had: the content goes another way.
    fn go_unbuffered(&mut self, fx: &mut impl Fx, index: u32) {
        let Some(source) = self.responses.get_mut(index).and_then(|r| r.source.as_mut()) else {
            return;
        };
        source.unbuffered = true;
        self.go(fx, index, &[]);
    }

    /// A response waits no more for its buffer, if it did.
    pub(in crate::engine) fn leave_buffer(&mut self, index: u32) {
        let Some(r) = self.responses.get_mut(index) else { return };
        if let RState::Buffering(number) = r.state {
            let links = r.in_buffer;
            r.state = RState::Ready;
            if let Some(b) = self.buffers.outgoing.get_mut(number) {
                b.waiting.remove(&mut self.responses, in_buffer, index, links);
            }
        }
    }

    /// Begins with the first that waits for a buffer, if that is idle.
    fn serve(&mut self, fx: &mut impl Fx, number: u32) {
        loop {
            let Some(b) = self.buffers.outgoing.get_mut(number) else { return };
            if b.is_busy() {
                return;
            }
            if b.recalled {
                self.empty_buffer(fx, number);
                continue;
            }
            let Some(index) = b.waiting.first() else { return self.rest_buffer(number) };
            let source = self.responses.get(index).and_then(|r| r.source.as_ref());
            let len = source.map_or(0, |s| s.tensor.meta.nbytes);
            self.buffers.wake_outgoing(number);
            let Some(b) = self.buffers.outgoing.get_mut(number) else { return };
            if b.takes(len) {
                b.lent = true;
                let memory = b.memory.take();
                self.leave_buffer(index);
                return self.fill_buffer(fx, index, number, memory);
            }
            if self.ask_for_buffer(fx, number, len) {
                return;
            }
            self.leave_buffer(index);
            self.go_unbuffered(fx, index);
        }
    }

    /// Nobody waits for a buffer: it stays until it is wanted again, if it has memory.
    fn rest_buffer(&mut self, number: u32) {
        let Some(b) = self.buffers.outgoing.get_mut(number) else { return };
        if b.remote.is_some() {
            return self.buffers.rest_outgoing(number);
        }
        self.buffers.wake_outgoing(number);
        if let Some(Outgoing { ch, .. }) = self.buffers.outgoing.remove(number)
            && let Some(c) = self.channels.get_mut(ch)
        {
            c.names.remove(number);
        }
    }

    /// Gives a buffer's memory up, at both ends.
    fn empty_buffer(&mut self, fx: &mut impl Fx, number: u32) {
        let Some(b) = self.buffers.outgoing.get_mut(number) else { return };
        b.recalled = false;
        let (ch, memory, window, remote) =
            (b.ch, b.memory.take(), b.window.take(), b.remote.take());
        if let Some((buffer, _)) = remote {
            self.send(fx, ch, &Message::Buffer(BufferMessage::Free { buffer }), &[]);
        }
        if let Some(window) = window {
            fx.close(ch, window);
        }
        if let Some(memory) = memory {
            self.free_outgoing(fx, memory);
        }
    }

    pub(super) fn free_outgoing(&mut self, fx: &mut impl Fx, memory: Buffer) {
        self.buffers.bytes_out -= memory.len;
        fx.free(memory);
    }

    /// BUFFER_REQUEST: a buffer at either end, or a longer one than there is. False: there is none to be had.
    fn ask_for_buffer(&mut self, fx: &mut impl Fx, number: u32, len: u64) -> bool {
        self.empty_buffer(fx, number);
        let Some(b) = self.buffers.outgoing.get(number) else { return false };
        let ch = b.ch;
        let Some(c) = self.channels.get_mut(ch) else { return false };
        let windows = c.caps.windows;
        let room = pages(len).filter(|len| *len <= self.settings.buffers);
        let (true, Some(len)) = (c.buffers.may_ask(), room) else { return false };
        while self.buffers.bytes_out + len > self.settings.buffers {
            let Some(oldest) = self.buffers.oldest_outgoing() else { return false };
            self.empty_buffer(fx, oldest);
            self.rest_buffer(oldest);
        }
        let Ok(memory) = fx.alloc(len) else { return false };
        let window = match windows {
            true => None,
            false => match fx.open(ch, memory.addr, len, Access::empty()) {
                Ok(window) => Some(window),
                Err(MapError::NeedProxy | MapError::Failed(_)) => {
                    fx.free(memory);
                    return false;
                }
            },
        };
        self.buffers.bytes_out += len;
        if let Some(b) = self.buffers.outgoing.get_mut(number) {
            (b.memory, b.window, b.len, b.asked) = (Some(memory), window, len, true);
        }
        self.send(fx, ch, &Message::Buffer(BufferMessage::Request { number, len }), &[]);
        true
    }

    /// BUFFER_RESPONSE arrived.
    pub(super) fn on_buffer_response(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        number: u32,
        given: Option<(u32, Place, u64)>,
    ) {
        let of = self.buffers.outgoing.get_mut(number).filter(|b| b.ch == ch && b.asked);
        let Some(b) = of else {
            let text = text!("BUFFER_RESPONSE for {number:#x}, which was not asked for");
            return self.violation(ch, Status::invalid(text));
        };
        match given {
            Some((_, _, len)) if len < b.len => {
                let text = text!("BUFFER_RESPONSE of {len} bytes, {} were asked for", b.len);
                return self.violation(ch, Status::invalid(text));
            }
            Some((buffer, place, _)) => b.remote = Some((buffer, place)),
            None => {
                if let Some(c) = self.channels.get_mut(ch) {
                    c.buffers.refused();
                }
                self.empty_buffer(fx, number);
            }
        }
        if let Some(b) = self.buffers.outgoing.get_mut(number) {
            b.asked = false;
        }
        self.serve(fx, number);
    }

    /// Copies the tensor to the buffer, which is idle.
    fn fill_buffer(&mut self, fx: &mut impl Fx, index: u32, number: u32, memory: Option<Buffer>) {
        let source = self.responses.get_mut(index).and_then(|r| r.source.as_mut());
        if let Some(source) = source {
            (source.protocol, source.buffer) = (Protocol::Persistent, Some(number));
            source.staged = memory;
        }
        self.stage(fx, index);
    }

    /// TENSOR_WRITE, and the content.
    fn write_buffer(&mut self, fx: &mut impl Fx, index: u32, number: u32) {
        let Some(r) = self.responses.get_mut(index) else { return };
        let (Some(source), Some(c)) = (&r.source, self.channels.get_mut(r.asked.to.ch)) else {
            return;
        };
        let b = self.buffers.outgoing.get_mut(number);
        let Some(((buffer, place), b)) = b.and_then(|b| Some((b.remote.clone()?, b))) else {
            let status = self.defect("a tensor is to be written to no buffer");
            return self.undeliverable(fx, index, status);
        };
        b.full = true;
        let meta = &source.tensor.meta;
        let same = r.asked.cached.as_ref() == Some(meta);
        let meta = (!same).then(|| meta.clone());
        let m = BufferMessage::Write { request: r.asked.to.request, buffer, meta };
        c.send(fx, &Message::Buffer(m), &[]);
        let (addr, nbytes) = (source.addr(), source.len());
        let sum = source.sum.filter(|_| r.asked.to.checksum);
        let lkeys = b.window.as_ref().map_or(Keys::one(0), |w| w.keys.map(|mr| mr.lkey));
        let parts = pieces(nbytes, c.caps.max_rdma, &lkeys, &place);
        r.state = RState::Writing { left: parts.clone().count() as u32, failed: None };
        let (wr, imm) = (WR_RESPONSE | u64::from(index), imm_of(buffer));
        for p in parts {
            let last = p.at + p.len == nbytes;
            // SAFETY: the response has the buffer's memory until the last `Done`, or until the channel has ended.
            let local = unsafe { Mem::new(addr + p.at, p.len, p.lkey) };
            c.write(fx, wr, local, p.remote, (last && sum.is_none()).then_some(imm));
        }
        if let Some(checksum) = sum {
            c.send(fx, &Message::ContentDone { index: imm, checksum }, &[]);
        }
    }

    /// A response has ended that had the memory of a buffer.
    pub(in crate::engine) fn buffer_written_from(
        &mut self,
        fx: &mut impl Fx,
        number: u32,
        memory: Buffer,
    ) {
        match self.buffers.outgoing.get_mut(number) {
            Some(b) => {
                (b.memory, b.lent) = (Some(memory), false);
                self.serve(fx, number);
            }
            None => self.free_outgoing(fx, memory),
        }
    }

    /// A write to it failed, of which the receiver learns nothing by itself.
    pub(in crate::engine::transfer) fn distrust_buffer(&mut self, number: u32) {
        if let Some(b) = self.buffers.outgoing.get_mut(number) {
            (b.full, b.recalled) = (false, true);
        }
    }

    /// BUFFER_IDLE arrived.
    pub(super) fn on_buffer_idle(&mut self, fx: &mut impl Fx, ch: ChanId, number: u32) {
        match self.buffers.outgoing.get_mut(number).filter(|b| b.ch == ch) {
            Some(b) if b.full => {
                b.full = false;
                self.serve(fx, number);
            }
            Some(_) => {
                let text = text!("BUFFER_IDLE for {number:#x}, which is not busy");
                self.violation(ch, Status::invalid(text));
            }
            None => self.stale += 1, // Given up after a write that failed.
        }
    }

    /// BUFFER_RECALL arrived.
    pub(super) fn on_buffer_recall(&mut self, fx: &mut impl Fx, ch: ChanId, number: u32) {
        let known = |b: &&mut Outgoing| b.ch == ch && b.remote.is_some();
        match self.buffers.outgoing.get_mut(number).filter(known) {
            Some(b) => {
                b.recalled = true;
                self.serve(fx, number);
            }
            None => self.stale += 1, // Given up meanwhile.
        }
    }
}
