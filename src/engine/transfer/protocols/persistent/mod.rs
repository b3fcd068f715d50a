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

mod receiver;
mod sender;

use crate::engine::channel::ChanId;
use crate::engine::transfer::buffers::Outgoing;
use crate::engine::{Buffer, Engine, Fx};
use crate::protocol::message::BufferMessage;

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
