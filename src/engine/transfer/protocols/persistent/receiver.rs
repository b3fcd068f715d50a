//! The receiver's end of persistent buffers.

use crate::api::*;
use crate::engine::channel::ChanId;
use crate::engine::transfer::buffers::{Fill, imm_of, pages};
use crate::engine::transfer::inbound::{AfterAlloc, Landing};
use crate::engine::{Buffer, Engine, Fx};
use crate::fabric::Access;
use crate::fabric::keys::Place;
use crate::protocol::message::{BufferMessage, Message};
use crate::status::Status;

impl Engine {
    /// BUFFER_REQUEST arrived: the buffer, or word that there is none.
    pub(super) fn on_buffer_request(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        number: u32,
        len: u64,
    ) {
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
    /// share, its own. What a connection owes counts for it alone: who does not answer is passed over.
    fn recall_for(&mut self, fx: &mut impl Fx, ch: ChanId, held: u64, len: u64) {
        let all = self.settings.buffers;
        if len > all / 2 {
            return;
        }
        let own = held + len > all / 2;
        let over = if own { held + len - all / 2 } else { 2 * len };
        let mut called = 0;
        while called < over {
            let channels = &self.channels;
            let owes = |of| channels.get(of).is_none_or(|c| c.buffers.recalled >= over);
            let Some(oldest) = self.buffers.oldest_incoming(own.then_some(ch), owes) else {
                return;
            };
            self.buffers.wake_incoming(oldest);
            let Some(b) = self.buffers.incoming.get_mut(oldest) else { return };
            b.recalled = true;
            let (of, number) = (b.ch, b.number);
            called += b.len;
            if let Some(c) = self.channels.get_mut(of) {
                c.buffers.recalled += b.len;
            }
            self.send(fx, of, &Message::Buffer(BufferMessage::Recall { number }), &[]);
        }
    }

    /// TENSOR_WRITE arrived: the content of this request comes by a buffer.
    pub(super) fn on_tensor_write(
        &mut self,
        ch: ChanId,
        request: u32,
        buffer: u32,
        meta: Option<Meta>,
    ) {
        let nbytes = meta.as_ref().map_or(1, |m| m.nbytes);
        let idle = self.buffers.incoming.get_mut(buffer).filter(|b| {
            b.ch == ch && matches!(b.fill, Fill::Idle) && (1..=b.len).contains(&nbytes)
        });
        let Some(b) = idle else {
            let text = text!(
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
            let text = text!("content in the buffer {imm:#x}, of which nothing was said");
            return self.violation(ch, Status::invalid(text));
        };
        let (Some(memory), len) = (b.memory.take(), b.len) else { return };
        let Some(r) = self.answered_tensor(ch, request, "TENSOR_WRITE") else {
            return self.buffer_emptied(fx, buffer, memory);
        };
        let same = told.as_ref().is_none_or(|told| r.is_as_known(told));
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

    pub(super) fn free_incoming(&mut self, fx: &mut impl Fx, memory: Buffer) {
        self.buffers.bytes_in -= memory.len;
        fx.free(memory);
    }

    /// BUFFER_FREE arrived: the sender writes to it no more. Content that is still being taken out keeps the memory.
    pub(super) fn on_buffer_free(&mut self, fx: &mut impl Fx, ch: ChanId, buffer: u32) {
        if self.buffers.incoming.get(buffer).is_none_or(|b| b.ch != ch) {
            let text = text!("BUFFER_FREE for {buffer:#x}, which was not given");
            return self.violation(ch, Status::invalid(text));
        }
        let Some(b) = self.buffers.take_incoming(buffer) else { return };
        if let Some(window) = b.window {
            fx.close(ch, window);
        }
        if let Some(c) = self.channels.get_mut(ch) {
            c.buffers.held -= b.len;
            c.buffers.recalled -= if b.recalled { b.len } else { 0 };
        }
        if let Some(memory) = b.memory {
            self.free_incoming(fx, memory);
        }
    }
}
