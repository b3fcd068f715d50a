//! Buffered mode: the library copies the content of a send, within a bound that the application sets.
//!
//! ob1's Buffered Pipeline: in A the content is packed into such memory, and the send has ended for the application. What follows is
//! any other message's, out of that memory.

use super::flow::COST;
use super::{Beside, Memory, Outgoing, Sending, State};
use crate::engine::{Buffer, Engine, Fx};
use crate::status::{Code, Status};

/// What sends in buffered mode may take.
#[derive(Default)]
pub(super) struct Attached {
    bound: Option<u64>,
    used: u64,
}

impl Engine {
    /// Sends in buffered mode may take so many bytes from now on.
    pub fn message_attach(&mut self, bytes: u64) -> Result<(), Status> {
        let buffer = &mut self.messages.buffer;
        if let Some(bound) = buffer.bound {
            let text = text!("a buffer of {bound} bytes is attached; detach it first");
            return Err(Status::new(Code::AlreadyExists, text));
        }
        buffer.bound = Some(bytes);
        Ok(())
    }

    /// They may take nothing any more. False: some are under way.
    pub fn message_detach(&mut self) -> Result<bool, Status> {
        let closing = self.closing;
        let buffer = &mut self.messages.buffer;
        if buffer.bound.is_none() {
            return Err(not_attached());
        }
        if closing {
            // What was under way has ended, and has not gone.
            return Err(Self::ending());
        }
        let done = buffer.used == 0;
        if done {
            buffer.bound = None;
        }
        Ok(done)
    }

    /// Bytes of the attached buffer that are in use: what was sent so, and has not gone.
    pub fn message_buffered(&self) -> u64 {
        self.messages.buffer.used
    }

    /// Whether all of it is offered to peers, which would have to receive it.
    pub fn message_buffered_is_offered(&self) -> bool {
        self.messages.buffer.used > 0 && self.messages.ops.iter().all(|(_, op)| !op.waits)
    }

    /// Sends a copy of content that goes out at once: it needs no more memory, but there has to be room. False: nothing was done.
    pub fn message_buffered_now(&mut self, fx: &mut impl Fx, out: &Outgoing<'_>) -> bool {
        let Attached { bound, used } = self.messages.buffer;
        let room = bound.is_some_and(|bound| COST + out.memory.len <= bound - used);
        room && self.message_send_now(fx, out)
    }

    /// Memory for a copy of content (A, where to pack).
    pub fn message_buffer(&mut self, fx: &mut impl Fx, len: u64) -> Result<Buffer, Status> {
        let buffer = &mut self.messages.buffer;
        let bound = buffer.bound.ok_or_else(not_attached)?;
        let need = COST + len;
        if need > bound - buffer.used {
            let text = text!(
                "a message of {len} bytes takes {need} of the attached buffer, which has {bound}, of which {} are used",
                buffer.used
            );
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        // Not none, which is not freed.
        let copy = fx.alloc(len.max(1))?;
        self.messages.buffer.used += need;
        Ok(Buffer { addr: copy.addr, len: copy.len })
    }

    /// It is not needed any more.
    pub(super) fn drop_buffer(&mut self, fx: &mut impl Fx, buffer: Buffer, len: u64) {
        self.messages.buffer.used = self.messages.buffer.used.saturating_sub(COST + len);
        fx.free(buffer);
    }

    /// Sends what lies in such memory (A, RNDV, or all of it); nobody hears of the end.
    pub fn message_send_buffered(
        &mut self,
        fx: &mut impl Fx,
        out: Outgoing<'_>,
        buffer: Buffer,
    ) -> Result<(), Status> {
        let len = out.memory.len;
        let memory = Memory { addr: buffer.addr, len, device: 0 };
        match self.message_send(fx, Outgoing { memory, ..out }) {
            Ok(Sending::Begun(id)) => {
                let found = self.messages.ops.occupant(id as u32).map(|(index, _)| index);
                match found.and_then(|index| self.messages.ops.get_mut(index)) {
                    Some(op) if matches!(op.state, State::Ending | State::Ended) => {
                        op.released = true;
                        // It ended in its call, which says so: nobody hears of it later.
                        let failed = op.ended.take();
                        self.drop_buffer(fx, buffer, len);
                        return failed.map_or(Ok(()), Err);
                    }
                    Some(op) => {
                        op.extra.get_or_insert_with(Box::<Beside>::default).kept = Some(buffer);
                        op.released = true;
                    }
                    // It has ended, so nothing uses its memory.
                    None => self.drop_buffer(fx, buffer, len),
                }
                Ok(())
            }
            Ok(Sending::Done) => {
                self.drop_buffer(fx, buffer, len);
                Ok(())
            }
            Err(status) => {
                self.drop_buffer(fx, buffer, len);
                Err(status)
            }
        }
    }
}

fn not_attached() -> Status {
    let text = "no buffer is attached; rdma_msg_attach attaches one";
    Status::new(Code::FailedPrecondition, text)
}
