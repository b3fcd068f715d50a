//! The sending side: a tensor meets who waits for it, or goes to the table; a response meets its tensor.

use super::keys::Key;
use super::{Meeting, Sent, Waiter};
use crate::api::*;
use crate::engine::channel::ChanId;
use crate::engine::transfer::ending::source_memory;
use crate::engine::transfer::outbound::{Asked, Content, RState, Source, To};
use crate::engine::{Due, Engine, Fx, Offer, Work};
use crate::status::{Code, Reason, Status};

impl Engine {
    /// Offers a tensor under a key: to whoever waits for it, or to the table.
    #[inline(always)]
    pub fn post_send(
        &mut self,
        fx: &mut impl Fx,
        key: &[u8],
        step: i64,
        offer: &mut Offer<'_>,
        timeout: Option<u64>,
    ) -> Result<(), Status> {
        if self.closing {
            return Err(Self::ending());
        }
        Self::check_key(key)?;
        self.check_device(offer.tensor.device)?;
        self.admit(fx)?;
        let deadline = timeout.map_or(u64::MAX, |t| fx.now().saturating_add(t));
        let waiter = match self.table.meet(key, step) {
            Meeting::Waiter(waiter, key) => Ok(self.met(waiter, key)),
            Meeting::Nobody(free) => Err(free),
            Meeting::Refused(status) => return Err(status),
            Meeting::Duplicate => {
                return Err(Status::new(
                    Code::Aborted,
                    text!(
                        "duplicate send: '{}' of step {step} waits already",
                        crate::shown::key(key)
                    ),
                ));
            }
            Meeting::Full => {
                return Err(Status::new(
                    Code::ResourceExhausted,
                    text!(
                        "{} tensors wait to be taken; clean their steps up",
                        crate::limits::TENSORS
                    ),
                ));
            }
        };
        match waiter {
            Ok(Waiter::Remote(index)) => self.answer_offer(fx, index, offer, deadline),
            Ok(Waiter::Local(index)) => {
                let (sent, _) = self.taken(offer, deadline);
                self.deliver_local(fx, index, sent);
            }
            Err(free) => {
                self.next_deadline = self.next_deadline.min(deadline);
                let (sent, content) = self.taken(offer, deadline);
                self.table.store(free, step, sent, content);
            }
        }
        Ok(())
    }

    /// A tensor that the application offers is the engine's from now on, with the copy of its content that the call made.
    #[inline(always)]
    fn taken<'a>(&self, offer: &mut Offer<'a>, deadline: u64) -> (Sent, &'a [u8]) {
        let done = offer.done.take().map(|done| self.due(done));
        let (tensor, content) = (offer.take_tensor(), offer.content);
        (Sent { tensor, content: Content::new(), done, deadline }, content)
    }

    /// A response meets what is offered. Mostly it goes out at once, from where it is: it is long.
    #[inline(always)]
    fn answer_offer(&mut self, fx: &mut impl Fx, index: u32, offer: &mut Offer<'_>, deadline: u64) {
        let (meta, content) = (&offer.tensor.meta, offer.content);
        if let Some(r) = self.responses.get(index) {
            let (to, same) = (r.asked.to, r.asked.cached.as_ref() == Some(meta));
            let fits = same || r.asked.fits(meta.nbytes);
            if fits && self.eager_at_once(fx, to, &offer.tensor, content, same) {
                let memory = source_memory(&offer.tensor);
                let (done, bytes) = (offer.done.take().map(|done| self.due(done)), meta.nbytes);
                return self.answered_at_once(fx, index, to, done, memory, bytes);
            }
        }
        let (sent, content) = self.taken(offer, deadline);
        self.answer(fx, index, sent, content);
    }

    /// The content that a response waited for has left in a message.
    #[inline]
    fn answered_at_once(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        to: To,
        done: Option<Due<OnSend>>,
        memory: (u64, u64),
        bytes: u64,
    ) {
        let of = match fx.tracing() {
            true => self.responses.get(index).and_then(|r| r.named.traced()),
            false => None,
        };
        self.forget_here(index);
        self.sent_at_once(fx, to.ch, done, memory, bytes, of);
        self.settle(fx, to.ch);
    }

    /// A waiter has left the table, which kept a response's key.
    #[inline]
    fn met(&mut self, waiter: Waiter, key: Key) -> Waiter {
        match waiter {
            Waiter::Remote(index) => {
                if let Some(r) = self.responses.get_mut(index) {
                    r.named.key = key;
                }
            }
            Waiter::Local(_) => self.table.keys().give(key),
        }
        waiter
    }

    /// A response has its tensor; `content`: a copy of what is in it, or nothing.
    pub(in crate::engine) fn answer(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        sent: Sent,
        content: &[u8],
    ) {
        let Some(r) = self.responses.get(index) else { return };
        let meta = &sent.tensor.meta;
        if r.asked.too_short(meta.nbytes) {
            return self.answer_next(fx, index, sent);
        }
        let (to, same) = (r.asked.to, r.asked.cached.as_ref() == Some(meta));
        let fits = r.asked.fits(meta.nbytes);
        let own = if content.is_empty() { &sent.content[..] } else { content };
        if fits && self.eager_at_once(fx, to, &sent.tensor, own, same) {
            let (memory, bytes) = (source_memory(&sent.tensor), meta.nbytes);
            return self.answered_at_once(fx, index, to, sent.done, memory, bytes);
        }
        if let Some(r) = self.responses.get_mut(index) {
            r.state = RState::Ready;
            r.source = Some(Source::new(sent, fx.now()));
            self.go(fx, index, content);
        }
        self.settle(fx, to.ch);
    }

    /// Sends a tensor that was there to who asks for it.
    pub(super) fn respond(
        &mut self,
        fx: &mut impl Fx,
        asked: Asked,
        key: &[u8],
        step: i64,
        sent: Sent,
    ) {
        let (to, nbytes) = (asked.to, sent.tensor.meta.nbytes);
        let same = asked.cached.as_ref() == Some(&sent.tensor.meta);
        if asked.too_short(nbytes) {
            let status = self.send_too_long(fx, &asked, key, nbytes);
            self.hand_on(fx, key, step, sent, status);
        } else if asked.fits(nbytes)
            && self.eager_at_once(fx, to, &sent.tensor, &sent.content, same)
        {
            let (of, memory) = (self.traced(fx, key, step), source_memory(&sent.tensor));
            self.sent_at_once(fx, to.ch, sent.done, memory, nbytes, of);
        } else {
            match self.insert_response(asked, key, step, RState::Ready) {
                Ok(index) => self.answer(fx, index, sent, &[]),
                Err(status) => {
                    self.send_error(fx, to.ch, to.request, &status);
                    let info = self.info_of(to.ch, Protocol::Eager);
                    let (of, memory) = (self.traced(fx, key, step), source_memory(&sent.tensor));
                    self.end_sent(fx, to.ch, sent.done, Err(status), info, of, false, memory);
                }
            }
        }
    }

    /// The content has left in a message.
    #[inline(always)]
    pub(super) fn sent_at_once(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        done: Option<Due<OnSend>>,
        memory: (u64, u64),
        bytes: u64,
        of: Option<(Box<[u8]>, i64)>,
    ) {
        let Some(c) = self.channels.get(ch) else {
            let info = TransferInfo { bytes, ..self.info_of(ch, Protocol::Eager) };
            return self.end_sent(fx, ch, done, Ok(()), info, of, true, memory);
        };
        c.counters.send_done(bytes, Code::Ok, Protocol::Eager);
        let Some(mut done) = done else { return };
        let (mut peer, mut of) = (fx.name(&c.name, true), of);
        let provider = Carrier::Provider(c.caps.provider);
        fx.run_end(memory, true, &mut || Work::SendDone {
            done: done.take(),
            result: Ok(()),
            info: TransferInfo {
                bytes,
                elapsed_ns: 0,
                provider,
                peer: std::mem::take(&mut peer),
                protocol: Protocol::Eager,
                reason: Reason::None,
            },
            of: of.take(),
            inline: true,
            memory,
        });
    }

    /// A destination that is too short: its receiver fails, and the tensor goes to the next who waits for it, or back to
    /// the table.
    #[cold]
    fn answer_next(&mut self, fx: &mut impl Fx, index: u32, sent: Sent) {
        let (mut index, mut sent) = (index, sent);
        // A loop, not a recursion: a peer may have made very many requests of this kind.
        loop {
            let Some(r) = self.responses.get_mut(index) else { return };
            let nbytes = sent.tensor.meta.nbytes;
            if !r.asked.too_short(nbytes) {
                return self.answer(fx, index, sent, &[]);
            }
            let (key, step) = (std::mem::take(&mut r.named.key), r.named.step);
            let asked = r.asked.clone();
            let status = self.send_too_long(fx, &asked, &key, nbytes);
            self.forget(index);
            self.settle(fx, asked.to.ch);
            let next = self.offer_again(fx, &key, step, sent, status);
            self.table.keys().give(key);
            match next {
                Some((Waiter::Remote(next), back)) => (index, sent) = (next, back),
                Some((Waiter::Local(next), back)) => return self.deliver_local(fx, next, back),
                None => return,
            }
        }
    }

    /// A tensor that did not fit goes to the next who waits for it, or back to the table.
    pub(super) fn hand_on(
        &mut self,
        fx: &mut impl Fx,
        key: &[u8],
        step: i64,
        sent: Sent,
        status: Status,
    ) {
        match self.offer_again(fx, key, step, sent, status) {
            Some((Waiter::Remote(index), sent)) => self.answer(fx, index, sent, &[]),
            Some((Waiter::Local(index), sent)) => self.deliver_local(fx, index, sent),
            None => {}
        }
    }

    /// A tensor that did not fit goes to the next who waits for it, who is returned, back to the table, or, if that
    /// takes it no more, to its end with this status.
    pub(super) fn offer_again(
        &mut self,
        fx: &mut impl Fx,
        key: &[u8],
        step: i64,
        sent: Sent,
        status: Status,
    ) -> Option<(Waiter, Sent)> {
        self.next_deadline = self.next_deadline.min(sent.deadline);
        match self.table.meet(key, step) {
            Meeting::Waiter(next, key) => return Some((self.met(next, key), sent)),
            Meeting::Nobody(free) => self.table.store(free, step, sent, &[]),
            Meeting::Duplicate | Meeting::Refused(_) | Meeting::Full => {
                let info = self.info(None, None, Protocol::Auto);
                self.end_send(fx, sent.done, Err(status), info);
            }
        }
        None
    }

    /// Tells the receiver that its destination is too short.
    pub(super) fn send_too_long(
        &mut self,
        fx: &mut impl Fx,
        asked: &Asked,
        key: &[u8],
        nbytes: u64,
    ) -> Status {
        let text = text!(
            "tensor '{}' has {nbytes} bytes, the destination given has {}",
            crate::shown::key(key),
            asked.room
        );
        let status = Status::new(Code::OutOfRange, text);
        self.send_error(fx, asked.to.ch, asked.to.request, &status);
        status
    }
}
