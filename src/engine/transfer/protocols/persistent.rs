//! Persistent buffers (TensorFlow contrib/verbs, its first design): a registered buffer of each name at either end.
//!
//! Sender: TENSOR_REQUEST has come and the tensor is there. If the buffer of its name is busy, it waits. If there is none,
//! or too short a one, BUFFER_REQUEST asks for one at the receiver, of the same length. The tensor is copied to the
//! sender's, TENSOR_WRITE says of which request it is, and the WRITE's immediate that it is all there. Receiver: copies it
//! to its destination, and says BUFFER_IDLE. No memory of the application is ever opened to the other end, so who gives up
//! waits for nobody.
//!
//! The sender gives a buffer up (BUFFER_FREE) when it needs the memory for another, or a longer one; or when the receiver,
//! which needs it, asks for that (BUFFER_RECALL): only the sender knows that nothing of it is on its way.

use crate::api::*;
use crate::engine::channel::ChanId;
use crate::engine::transfer::buffers::{Fill, Outgoing, imm_of, pages};
use crate::engine::transfer::inbound::{AfterAlloc, Landing};
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

/// The sender.
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

    fn free_outgoing(&mut self, fx: &mut impl Fx, memory: Buffer) {
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
    fn on_buffer_response(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        number: u32,
        given: Option<(u32, Place, u64)>,
    ) {
        let of = self.buffers.outgoing.get_mut(number).filter(|b| b.ch == ch && b.asked);
        let Some(b) = of else {
            let text = format!("BUFFER_RESPONSE for {number:#x}, which was not asked for");
            return self.violation(ch, Status::invalid(text));
        };
        match given {
            Some((_, _, len)) if len < b.len => {
                let text = format!("BUFFER_RESPONSE of {len} bytes, {} were asked for", b.len);
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
        let Some((b, (buffer, place))) = b.and_then(|b| Some((b.remote.clone()?, b)).map(flip))
        else {
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
    pub(super) fn distrust_buffer(&mut self, number: u32) {
        if let Some(b) = self.buffers.outgoing.get_mut(number) {
            (b.full, b.recalled) = (false, true);
        }
    }

    /// BUFFER_IDLE arrived.
    fn on_buffer_idle(&mut self, fx: &mut impl Fx, ch: ChanId, number: u32) {
        match self.buffers.outgoing.get_mut(number).filter(|b| b.ch == ch) {
            Some(b) if b.full => {
                b.full = false;
                self.serve(fx, number);
            }
            Some(_) => {
                let text = format!("BUFFER_IDLE for {number:#x}, which is not busy");
                self.violation(ch, Status::invalid(text));
            }
            None => self.stale += 1, // Given up after a write that failed.
        }
    }

    /// BUFFER_RECALL arrived.
    fn on_buffer_recall(&mut self, fx: &mut impl Fx, ch: ChanId, number: u32) {
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

fn flip<A, B>((a, b): (A, B)) -> (B, A) {
    (b, a)
}

/// The receiver.
impl Engine {
    /// A message about a buffer arrived.
    pub(in crate::engine) fn on_buffer(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        message: BufferMessage,
    ) {
        match message {
            BufferMessage::Request { number, len } => self.on_buffer_request(fx, ch, number, len),
            BufferMessage::Response { number, given } => {
                self.on_buffer_response(fx, ch, number, given)
            }
            BufferMessage::Idle { number } => self.on_buffer_idle(fx, ch, number),
            BufferMessage::Write { request, buffer, meta } => {
                self.on_tensor_write(ch, request, buffer, meta)
            }
            BufferMessage::Recall { number } => self.on_buffer_recall(fx, ch, number),
            BufferMessage::Free { buffer } => self.on_buffer_free(fx, ch, buffer),
        }
    }

    /// BUFFER_REQUEST arrived: the buffer, or word that there is none.
    fn on_buffer_request(&mut self, fx: &mut impl Fx, ch: ChanId, number: u32, len: u64) {
        let given = self.give_buffer(fx, ch, number, len);
        self.send(fx, ch, &Message::Buffer(BufferMessage::Response { number, given }), &[]);
    }

    fn give_buffer(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        number: u32,
        len: u64,
    ) -> Option<(u32, Place, u64)> {
        let len = pages(len)?;
        let (all, held) = (self.settings.buffers, self.channels.get(ch)?.buffers.held);
        let left = all.saturating_sub(self.buffers.bytes_in);
        if held.checked_add(len)? > (all / 2).min(left) {
            self.recall_for(fx, ch, held, len);
            return None;
        }
        let memory = fx.alloc(len).ok()?;
        let Ok(window) = fx.open(ch, memory.addr, len, Access::REMOTE_WRITE) else {
            fx.free(memory);
            return None;
        };
        let place = Place { addr: memory.addr, rkeys: window.keys.map(|mr| mr.rkey) };
        match self.buffers.give((ch, number), memory, window) {
            Ok(buffer) => {
                self.channels.get_mut(ch)?.buffers.held += len;
                Some((buffer, place, len))
            }
            Err((memory, window)) => {
                fx.close(ch, window);
                fx.free(memory);
                None
            }
        }
    }

    /// Calls idle buffers back, so that next time there is room for one: those of all, or, where the connection has its
    /// share, its own.
    fn recall_for(&mut self, fx: &mut impl Fx, ch: ChanId, held: u64, len: u64) {
        let all = self.settings.buffers;
        if len > all / 2 {
            return;
        }
        let own = held + len > all / 2;
        let over = if own { held + len - all / 2 } else { 2 * len };
        while self.buffers.recalled < over
            && let Some(oldest) = self.buffers.oldest_incoming(own.then_some(ch))
        {
            self.buffers.wake_incoming(oldest);
            let Some(b) = self.buffers.incoming.get_mut(oldest) else { return };
            b.recalled = true;
            let (of, number) = (b.ch, b.number);
            self.buffers.recalled += b.len;
            self.send(fx, of, &Message::Buffer(BufferMessage::Recall { number }), &[]);
        }
    }

    /// TENSOR_WRITE arrived: the content of this request comes by a buffer.
    fn on_tensor_write(&mut self, ch: ChanId, request: u32, buffer: u32, meta: Option<Meta>) {
        let nbytes = meta.as_ref().map_or(1, |m| m.nbytes);
        let idle = self.buffers.incoming.get_mut(buffer).filter(|b| {
            b.ch == ch && matches!(b.fill, Fill::Idle) && (1..=b.len).contains(&nbytes)
        });
        let Some(b) = idle else {
            let text = format!(
                "TENSOR_WRITE of {nbytes} bytes to {buffer:#x}: that is no idle buffer of such a length"
            );
            return self.violation(ch, Status::invalid(text));
        };
        b.fill = Fill::Announced { request, meta };
        self.buffers.wake_incoming(buffer);
    }

    /// The content is in a buffer: its immediate, or CONTENT_DONE with the checksum, arrived.
    pub(in crate::engine) fn on_buffer_full(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        imm: u32,
        sum: Option<u64>,
    ) {
        let of = self.buffers.incoming.occupant_mut(imm ^ imm_of(0)).filter(|(_, b)| b.ch == ch);
        let found = of.and_then(|(buffer, b)| match std::mem::replace(&mut b.fill, Fill::Full) {
            Fill::Announced { request, meta } => Some((buffer, b, request, meta)),
            other => {
                b.fill = other;
                None
            }
        });
        let Some((buffer, b, request, told)) = found else {
            let text = format!("content in the buffer {imm:#x}, of which nothing was said");
            return self.violation(ch, Status::invalid(text));
        };
        let (Some(memory), len) = (b.memory.take(), b.len) else { return };
        let Some(r) = self.answered(ch, request) else {
            return self.buffer_emptied(fx, buffer, memory);
        };
        let same = told.is_none() || told == r.meta;
        let meta = told.or_else(|| r.meta.clone());
        let Some(meta) = meta.filter(|m| (1..=len).contains(&m.nbytes)) else {
            self.buffer_emptied(fx, buffer, memory);
            let text = "TENSOR_WRITE without metadata, of which the request said nothing that fits";
            return self.violation(ch, Status::invalid(text));
        };
        self.drop_landing(fx, request);
        self.take_from_buffer(fx, request, (buffer, memory), sum, (!same).then_some(meta));
    }

    /// The content of a request lies in a buffer: into its destination with it, for which memory is found if the
    /// metadata is not what was known.
    fn take_from_buffer(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        (buffer, memory): (u32, Buffer),
        sum: Option<u64>,
        told: Option<Meta>,
    ) {
        let Some(r) = self.requests.get_mut(index) else { return };
        (r.protocol, r.checksum) = (Protocol::Persistent, sum);
        let (addr, len, buffer) = (memory.addr, memory.len, Some(buffer));
        r.landing = Some(Landing { addr, len, window: None, staged: Some(memory), buffer });
        let ready = match told {
            None => Ok(true),
            Some(meta) => self.prepare(fx, index, meta, AfterAlloc::Buffered, false),
        };
        match ready {
            Ok(true) => self.arrived(fx, index),
            Ok(false) => {}
            Err(status) => self.fail(fx, index, status),
        }
    }

    /// The content of a buffer was taken out, or nobody wants it: BUFFER_IDLE.
    pub(in crate::engine) fn buffer_emptied(
        &mut self,
        fx: &mut impl Fx,
        buffer: u32,
        memory: Buffer,
    ) {
        let Some(b) = self.buffers.incoming.get_mut(buffer) else {
            return self.free_incoming(fx, memory);
        };
        (b.memory, b.fill) = (Some(memory), Fill::Idle);
        let (ch, number) = (b.ch, b.number);
        self.buffers.rest_incoming(buffer);
        self.send(fx, ch, &Message::Buffer(BufferMessage::Idle { number }), &[]);
    }

    fn free_incoming(&mut self, fx: &mut impl Fx, memory: Buffer) {
        self.buffers.bytes_in -= memory.len;
        fx.free(memory);
    }

    /// BUFFER_FREE arrived: the sender writes to it no more. Content that is still being taken out keeps the memory.
    fn on_buffer_free(&mut self, fx: &mut impl Fx, ch: ChanId, buffer: u32) {
        if self.buffers.incoming.get(buffer).is_none_or(|b| b.ch != ch) {
            let text = format!("BUFFER_FREE for {buffer:#x}, which was not given");
            return self.violation(ch, Status::invalid(text));
        }
        let Some(b) = self.buffers.take_incoming(buffer) else { return };
        if let Some(window) = b.window {
            fx.close(ch, window);
        }
        if let Some(c) = self.channels.get_mut(ch) {
            c.buffers.held -= b.len;
        }
        if let Some(memory) = b.memory {
            self.free_incoming(fx, memory);
        }
    }
}

/// The end of a channel.
impl Engine {
    /// Closes the windows of its buffers: it is about to end.
    pub(in crate::engine) fn close_buffers(&mut self, fx: &mut impl Fx, ch: ChanId) {
        let mut at = 0;
        while let Some(i) = self.buffers.outgoing.next(&mut at, |b| b.ch == ch) {
            let window = self.buffers.outgoing.get_mut(i).and_then(|b| b.window.take());
            window.into_iter().for_each(|window| fx.close(ch, window));
        }
        at = 0;
        while let Some(i) = self.buffers.incoming.next(&mut at, |b| b.ch == ch) {
            let window = self.buffers.incoming.get_mut(i).and_then(|b| b.window.take());
            window.into_iter().for_each(|window| fx.close(ch, window));
        }
    }

    /// It has ended: nothing touches their memory any more, but transfers that have it.
    pub(in crate::engine) fn drop_buffers(&mut self, fx: &mut impl Fx, ch: ChanId) {
        let mut at = 0;
        while let Some(i) = self.buffers.outgoing.next(&mut at, |b| b.ch == ch) {
            self.buffers.wake_outgoing(i);
            if let Some(Outgoing { memory: Some(memory), .. }) = self.buffers.outgoing.remove(i) {
                self.free_outgoing(fx, memory);
            }
        }
        at = 0;
        while let Some(i) = self.buffers.incoming.next(&mut at, |b| b.ch == ch) {
            if let Some(memory) = self.buffers.take_incoming(i).and_then(|b| b.memory) {
                self.free_incoming(fx, memory);
            }
        }
    }

    /// Buffers that last: of what is sent and of what is received, their number and bytes, without what transfers have.
    pub fn buffers_held(&self) -> [(usize, u64); 2] {
        let (out, incoming) = (&self.buffers.outgoing, &self.buffers.incoming);
        let out = out.iter().filter_map(|(_, b)| b.memory.as_ref());
        let incoming = incoming.iter().filter_map(|(_, b)| b.memory.as_ref());
        let add = |(n, bytes): (usize, u64), b: &Buffer| (n + 1, bytes + b.len);
        [out.fold((0, 0), add), incoming.fold((0, 0), add)]
    }
}
