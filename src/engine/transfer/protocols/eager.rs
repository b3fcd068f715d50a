//! Eager Send (ob1's): the content rides in the message that answers.
//!
//! Sender (A): TENSOR_CONTENT, and the send has ended; immediate, out of the call's own copy (`eager_at_once`), or
//! allocated, out of one that is made first (`send_eager`). Receiver (B): the content is copied to its destination as it is
//! heard. No memory is opened, and none of the application's is touched but by its own callback's leave. Messages go
//! the same way (`front::message`). Steps by function: `docs/protocols.md`.

use crate::api::*;
use crate::engine::channel::ChanId;
use crate::engine::seal::loss;
use crate::engine::transfer::choose;
use crate::engine::transfer::inbound::{AfterAlloc, Landing};
use crate::engine::transfer::outbound::{Response, To};
use crate::engine::{Engine, Fx, checksum};
use crate::protocol::message::{CONTENT_HEAD, Content, content_of};
use crate::status::{Code, Reason, Status};

impl Engine {
    /// Sends a tensor to who asked for it, if `content` is here, whole, and may go out now. Nothing is
    /// kept of it then. `same`: the receiver has the metadata.
    #[inline(always)]
    pub(in crate::engine) fn eager_at_once(
        &mut self,
        fx: &mut impl Fx,
        to: To,
        tensor: &Tensor,
        content: &[u8],
        same: bool,
    ) -> bool {
        let (meta, n) = (&tensor.meta, tensor.meta.nbytes);
        let Some(c) = self.channels.get_mut(to.ch) else { return false };
        let whole = content.len() as u64 == n;
        let room = self.settings.room_for(fx, c, tensor, to.told);
        if !whole || !choose::is_eager(n, room, self.settings.protocol) {
            return false;
        }
        if n > 0 && c.is_congested() {
            return false;
        }
        let sum = (to.checksum && n > 0).then(|| checksum(content));
        c.send_content(fx, to.request, sum, (!same).then_some(meta), content);
        true
    }

    /// Sends the content of a response in a message, or behind what waits, or once it was copied to where it may be
    /// read.
    pub(in crate::engine) fn send_eager(&mut self, fx: &mut impl Fx, index: u32, content: &[u8]) {
        let Some((asked, source)) = self.responses.get_mut(index).and_then(Response::parts) else {
            return;
        };
        let meta = &source.tensor.meta;
        let n = meta.nbytes;
        // What can be read without touching the application's memory.
        let content = match &source.staged {
            // SAFETY: it is ours, filled, and freed only with the source.
            Some(staged) => unsafe { fx.bytes(staged) },
            None if content.is_empty() => &source.content[..],
            None => content,
        };
        if content.len() as u64 != n {
            return self.gather(fx, index);
        }
        let Some(c) = self.channels.get_mut(asked.to.ch) else { return };
        if n > 0 && c.is_congested() {
            return self.defer(fx, index);
        }
        let known = source.sum;
        let sum = (asked.to.checksum && n > 0).then(|| known.unwrap_or_else(|| checksum(content)));
        let same = asked.cached.as_ref() == Some(meta);
        c.send_content(fx, asked.to.request, sum, (!same).then_some(meta), content);
        self.end_response_inline(fx, index);
    }

    /// TENSOR_CONTENT arrived, without metadata and checksum.
    #[inline(never)]
    pub(in crate::engine) fn on_same_content(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        index: u32,
        content: &[u8],
    ) {
        let Some(r) = self.answered(ch, index) else { return };
        if !r.takes_simply(content.len()) {
            let message = Content { index, checksum: None, meta: None, content };
            return self.on_content(fx, ch, message);
        }
        r.protocol = Protocol::Eager;
        if !content.is_empty() {
            // SAFETY: `dst` was given or allocated for `meta.nbytes`, which is the content's length; it is the
            // application's only from the callback on, which comes later.
            let result = unsafe { fx.deliver(r.dst, content) };
            if let Err(status) = result {
                return self.fail(fx, index, status);
            }
        }
        self.finish_well(fx, index);
    }

    /// Whether content of a message of `len` bytes in all, as it mostly is, goes to its place as it is, wherever it lies.
    pub(in crate::engine) fn takes_left(&self, ch: ChanId, index: u32, len: usize) -> bool {
        self.requests.get(index).is_some_and(|r| r.takes_from(ch, len - CONTENT_HEAD))
    }

    /// Such content goes there, from where it was left in its message.
    pub(in crate::engine) fn on_content_left(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        (at, len): (u64, usize),
    ) {
        let Some(r) = self.requests.get_mut(index) else { return };
        r.protocol = Protocol::Eager;
        let at = at + CONTENT_HEAD as u64;
        // SAFETY: as above.
        let result = unsafe { fx.deliver_left(r.dst, at, len - CONTENT_HEAD) };
        match result {
            Ok(()) => self.finish_well(fx, index),
            Err(status) => self.fail(fx, index, status),
        }
    }

    /// TENSOR_CONTENT arrived; without metadata: that which was told with the request.
    pub(in crate::engine) fn on_content(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        message: Content<'_>,
    ) {
        let Content { index, checksum: sum, meta, content } = message;
        if sum.is_none() && !content.is_empty() && self.sealed(ch) {
            return self.violation(ch, loss("content".into()));
        }
        let Some(r) = self.answered_tensor(ch, index, "TENSOR_CONTENT") else { return };
        r.protocol = Protocol::Eager;
        let ready = match (&meta, &r.meta) {
            (None, Some(known)) if known.nbytes == content.len() as u64 => true,
            (None, Some(known)) => {
                let status = content_of(content.len(), known);
                return self.violation(ch, status);
            }
            (None, None) => {
                let text = "TENSOR_CONTENT without metadata, of which the request said nothing";
                return self.violation(ch, Status::invalid(text));
            }
            (Some(told), _) => r.is_as_known(told),
        };
        if r.landing.is_some() {
            self.drop_landing(fx, index);
        }
        if let Some(sum) = sum
            && sum != checksum(content)
        {
            return self.fail(fx, index, data_loss(sum, checksum(content)));
        }
        if ready {
            return self.deliver(fx, index, content);
        }
        let Some(meta) = meta else { return };
        if meta.nbytes == 0 {
            if let Some(r) = self.requests.get_mut(index) {
                r.told(meta);
            }
            return self.deliver(fx, index, content);
        }
        // Only the callback's memory comes later: then the content has to be kept aside.
        let later = matches!(self.requests.get(index).map(|r| &r.target), Some(Target::Alloc(_)));
        let kept = if later { crate::room::copy(content, "content") } else { Ok(Vec::new()) };
        let kept = match kept {
            Ok(kept) => kept,
            Err(status) => return self.fail(fx, index, status),
        };
        match self.prepare(fx, index, meta, AfterAlloc::Eager(kept), false) {
            Ok(true) => self.deliver(fx, index, content),
            Ok(false) => {}
            Err(status) => self.fail(fx, index, status),
        }
    }

    /// Puts eager content in its place and ends the request.
    pub(in crate::engine) fn deliver(&mut self, fx: &mut impl Fx, index: u32, content: &[u8]) {
        let Some(r) = self.requests.get_mut(index) else { return };
        if content.is_empty() {
            return self.finish(fx, index, Ok(()));
        }
        if matches!(r.target, Target::Library) {
            let Some(buffer) = &r.buffer else {
                return self.fail_by_defect(fx, index, "content without a buffer for it");
            };
            fx.copy_in(buffer, content);
            return self.finish(fx, index, Ok(()));
        }
        if r.device == 0 {
            // SAFETY: `dst` was given or allocated for `meta.nbytes`, which the decoder found equal to the
            // content's length; it is the application's only from the callback on, which comes later.
            let result = unsafe { fx.deliver(r.dst, content) };
            return self.finish(fx, index, result);
        }
        match fx.alloc(content.len() as u64) {
            Ok(staged) => {
                fx.copy_in(&staged, content);
                let (addr, len) = (staged.addr, staged.len);
                r.landing =
                    Some(Landing { addr, len, window: None, staged: Some(staged), buffer: None });
                self.land(fx, index);
            }
            Err(status) => self.fail(fx, index, status),
        }
    }
}

/// What arrived is not what was sent.
pub(in crate::engine) fn data_loss(want: u64, got: u64) -> Status {
    let text = text!("checksum of the content is {got:016x}, the sender's is {want:016x}");
    Status::new(Code::DataLoss, text).because(Reason::LocalError)
}
