//! Content that is copied into the library's memory before its message is offered.
//!
//! Where the peer reaches that memory by plain loads and that of the application through the system only, two copies take less
//! time than one, and each end makes one of them. The call that sends makes the first, without the engine being held, as a small
//! message's content is copied. The operation goes on as any other: it ends when the receiver has the content.

use super::{Copied, Memory, Outgoing, Sending, State};
use crate::engine::transfer::choose::is_eager;
use crate::engine::{Buffer, Engine, Fx, Stage};
use crate::status::Status;

impl Engine {
    /// Memory for a copy of this message's content, if it is better copied: whoever calls copies it there and goes on with
    /// [`message_send_staged`](Self::message_send_staged), without fail.
    pub fn message_stage(&mut self, fx: &mut impl Fx, out: &mut Outgoing<'_>) -> Option<Buffer> {
        let Memory { addr, len, device } = out.memory;
        let p = out.to.index().and_then(|p| self.peers.get(p))?;
        let &ch = p.channels.first()?;
        let c = self.channels.get(ch)?;
        // Not its beginning alone, which goes with the offer. A copy of the whole may have been made in vain.
        let whole = out.content.is_empty() || out.content.len() as u64 == len;
        let whole = device == 0 && whole && !self.closing;
        let pays = whole && self.settings.pays_to_copy(fx, c, addr, len);
        let alone = c.responses.is_empty();
        let room = self.settings.room_of_message(c, len);
        if !pays || is_eager(len, room, self.settings.protocol) {
            return None;
        }
        let Stage { buffer, trial } = fx.stage(len, alone, true);
        out.trial = trial;
        buffer
    }

    /// Begins to send a message whose content was copied to `buffer`, which [`message_stage`](Self::message_stage) gave.
    pub fn message_send_staged(
        &mut self,
        fx: &mut impl Fx,
        out: Outgoing<'_>,
        buffer: Buffer,
    ) -> Result<Sending, Status> {
        let memory = Memory { addr: buffer.addr, ..out.memory };
        let peer = match self.closing {
            true => Err(Self::ending()),
            false => {
                let fits = self.refuse_other(out.to, out.incarnation);
                fits.and_then(|()| self.known_party(out.to))
            }
        };
        let peer = match peer {
            Ok(peer) => peer,
            Err(status) => {
                fx.unstage(buffer);
                return Err(status);
            }
        };
        self.peers.keep(peer);
        // SAFETY: it is ours and filled, and freed with the operation, after whose call this is not used.
        let bytes = unsafe { fx.bytes(&buffer) };
        let content = &bytes[..bytes.len().min(memory.len as usize)];
        let out = Outgoing { memory, content, ..out };
        self.send_or_queue(fx, peer, &out, Copied::Staged(buffer))
    }

    /// The copy of a message that waited, and which is out now: an offered one is read where it is staged.
    pub(super) fn went_out(&mut self, fx: &mut impl Fx, index: u32, content: Copied) {
        let op = self.messages.ops.get_mut(index);
        match (content, op) {
            (content @ Copied::Staged(_), Some(op))
                if matches!(op.state, State::Offered { .. }) =>
            {
                op.content = content;
            }
            (content, _) => self.drop_copy(fx, content),
        }
    }
}
