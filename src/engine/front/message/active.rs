//! Active messages: a handler of the application runs on their arrival.
//!
//! A handler has a number, which stands in the place of a communicator. A message that came with its content is given to it
//! whole, out of memory that is used again, or where an adapter keeps it, or has left it, if the handler asks for that. Of one whose content waits at the sender it hears as
//! of a message that a probe has claimed, which it receives or not. What comes before there is a handler of its number waits,
//! within the bounds of all messages.

use std::sync::Arc;

use super::arrivals::Heard;
use super::unexpected::{Arrived, Content};
use super::{Envelope, MessageEnd, Messages, Party, public};
use crate::api::Protocol;
use crate::engine::channel::{ChanId, Channel};
use crate::engine::{Engine, Fx, Work};
use crate::fabric::moves::KeepAlive;
use crate::protocol::message::{Extra, Message};
use crate::status::{Code, Status};

/// How content and header are aligned where a handler finds them.
const ALIGNED: usize = 8;
/// Memory for so much content and header is kept for the next message.
const KEPT: usize = 16 << 10;

/// An active message.
pub struct Active {
    /// Who sent it, its handler and tag, its length, and what travels beside it, but for a header that lies here.
    pub end: MessageEnd,
    /// Its number, to be received by, if its content did not come along; 0 otherwise.
    pub message: u64,
    /// Content, unless it is kept, of this length, and the header behind it.
    bytes: Vec<u8>,
    len: usize,
    /// Where an adapter keeps the content.
    kept: Option<(u64, KeepAlive)>,
    /// There its peer may change it, and the adapter has to hear when it is read: see [`is_left`](Self::is_left).
    left: bool,
    /// Where the header begins.
    user: usize,
}

impl Active {
    /// One of no content that came along.
    fn new(end: MessageEnd, message: u64) -> Active {
        Active { end, message, bytes: Vec::new(), len: 0, kept: None, left: false, user: 0 }
    }

    /// One that has waited, with its content, if that came along, and what travels beside it in its end.
    fn waited(end: MessageEnd, bytes: Vec<u8>, message: u64) -> Active {
        let len = bytes.len();
        let mut active = Active { bytes, len, user: len, ..Active::new(end, message) };
        if let Some(beside) = active.end.extra.take() {
            // Where it is aligned; without memory for that it stays where it is.
            let _ = active.put_user(&beside.user);
            active.end.extra = Some(beside);
        }
        active
    }

    /// One that has just come.
    pub fn came(
        end: MessageEnd,
        user: &[u8],
        content: &[u8],
        kept: Option<KeepAlive>,
    ) -> Result<Active, Status> {
        let mut active = Active::new(end, 0);
        active.fill(user, content, kept)?;
        Ok(active)
    }

    /// It becomes another one, which has just come, in its memory.
    #[inline]
    pub fn comes(
        &mut self,
        end: MessageEnd,
        user: &[u8],
        content: &[u8],
        kept: Option<KeepAlive>,
    ) -> Result<(), Status> {
        (self.end, self.message) = (end, 0);
        self.fill(user, content, kept)
    }

    /// Header and content are copied, unless the latter is kept: content first, and the header where it is aligned.
    #[inline]
    fn fill(&mut self, user: &[u8], content: &[u8], kept: Option<KeepAlive>) -> Result<(), Status> {
        let copied = if kept.is_some() { &[][..] } else { content };
        let len = copied.len();
        self.user = if user.is_empty() { len } else { len.next_multiple_of(ALIGNED) };
        self.bytes.clear();
        self.grow(self.user + user.len())?;
        let to = self.bytes.as_mut_ptr();
        // SAFETY: there is room for all of it, which lies elsewhere. Between the two is less than a word, which the first write fills:
        // where the header is aligned, a whole word lies before it, if anything does.
        unsafe {
            if self.user > len {
                to.add(self.user - ALIGNED).cast::<[u8; ALIGNED]>().write([0; ALIGNED]);
            }
            std::ptr::copy_nonoverlapping(copied.as_ptr(), to, len);
            std::ptr::copy_nonoverlapping(user.as_ptr(), to.add(self.user), user.len());
            self.bytes.set_len(self.user + user.len());
        }
        self.len = content.len();
        (self.kept, self.left) = (kept.map(|kept| (content.as_ptr() as u64, kept)), false);
        Ok(())
    }

    /// Its content, of which there was none, lies at this place, where an adapter has left it; it is kept. The header, which lies at the
    /// other, is copied.
    ///
    /// # Safety
    /// Both are readable, of this length, as long as it is kept.
    pub unsafe fn lies_at(
        &mut self,
        (header, user): (u64, usize),
        (at, len): (u64, usize),
    ) -> Result<(), Status> {
        self.grow(user)?;
        // SAFETY: there is room for it, and it is readable by this function's contract.
        unsafe {
            std::ptr::copy_nonoverlapping(header as *const u8, self.bytes.as_mut_ptr(), user);
            self.bytes.set_len(user);
        }
        if let Some(kept) = &mut self.kept {
            (kept.0, self.len, self.left) = (at, len, true);
        }
        Ok(())
    }

    /// Whether its content lies where an adapter has left it, whose peer may still change it. When the handler has run, the adapter has to
    /// hear that it is kept no more.
    #[inline]
    pub fn is_left(&self) -> bool {
        self.left
    }

    /// Copies the header behind the content.
    fn put_user(&mut self, user: &[u8]) -> Result<(), Status> {
        let at = self.bytes.len().next_multiple_of(ALIGNED);
        self.grow(at + user.len() - self.bytes.len())?;
        self.bytes.resize(at, 0);
        self.bytes.extend_from_slice(user);
        self.user = at;
        Ok(())
    }

    #[inline]
    fn grow(&mut self, more: usize) -> Result<(), Status> {
        let fits = self.bytes.capacity() - self.bytes.len() >= more;
        match fits || self.bytes.try_reserve(more).is_ok() {
            true => Ok(()),
            false => Err(crate::room::none(more, "an active message")),
        }
    }

    /// Whether the content at this place can be kept for a handler, as it is aligned.
    pub fn is_aligned(content: &[u8]) -> bool {
        (content.as_ptr() as usize).is_multiple_of(ALIGNED)
    }

    /// Where the content lies that came along, and its length: as long as this is not cleared.
    pub fn place(&self) -> (*const u8, usize) {
        match &self.kept {
            Some((at, _)) => (*at as *const u8, self.len),
            None => (self.bytes.as_ptr(), self.len.min(self.bytes.len())),
        }
    }

    /// The content that came along, unless its peer may still change it: that is at its [`place`](Self::place) alone.
    pub fn content(&self) -> &[u8] {
        match &self.kept {
            Some(_) if self.left => &[],
            // SAFETY: it lies there unchanged as long as it is kept, of this length.
            Some((at, _)) => unsafe { std::slice::from_raw_parts(*at as *const u8, self.len) },
            None => self.bytes.get(..self.len).unwrap_or_default(),
        }
    }

    /// The header, aligned, if there is one.
    pub fn user(&self) -> &[u8] {
        self.bytes.get(self.user..).unwrap_or_default()
    }

    /// The handler has run. Some memory stays for the next.
    #[inline]
    pub fn clear(&mut self) {
        (self.kept, self.left, self.end.extra) = (None, false, None);
        if self.bytes.capacity() > KEPT {
            self.bytes = Vec::new();
        }
    }
}

/// A handler's function. True: the message, whose content did not come along, is received later.
pub type ActiveFn = Arc<dyn Fn(&Active) -> bool + Send + Sync>;

/// A handler.
#[derive(Clone)]
pub struct Handler {
    /// What it runs.
    pub run: ActiveFn,
    /// It reads content where the peer wrote it, if an adapter has left it there.
    pub in_place: bool,
}

impl Messages {
    /// A message whose sender does not wait came for a handler: as a rule there is one.
    #[inline(never)]
    pub(super) fn hear_active(
        &mut self,
        fx: &mut impl Fx,
        c: &mut Channel,
        envelope: Envelope,
        user: &[u8],
        content: &[u8],
    ) -> Heard {
        let lens = (user.len() as u64, content.len() as u64);
        self.hand_active(fx, c, envelope, lens, |fx, run, end| fx.hand(run, end, user, content))
    }

    /// The same of a message that was left where it came, of `len` bytes at `at`, if its handler reads content there. `None`: it does not;
    /// then nothing was done.
    pub(in crate::engine) fn hear_active_left(
        &mut self,
        fx: &mut impl Fx,
        c: &mut Channel,
        (envelope, (begin, user), credits): (Envelope, (usize, usize), u16),
        (at, len): (u64, usize),
    ) -> Option<Heard> {
        let wanted = self.handlers.get(&envelope.comm).is_some_and(|h| h.in_place);
        if !wanted || begin + user > len {
            return None;
        }
        c.on_received(fx.lately(), credits);
        let header = (at + begin as u64, user);
        let place = (header.0 + user as u64, len - begin - user);
        let lens = (user as u64, place.1 as u64);
        Some(self.hand_active(fx, c, envelope, lens, |fx, run, end| {
            // SAFETY: the message is left there, and these are parts of it.
            unsafe { fx.hand_left(run, end, header, place) }
        }))
    }

    #[inline]
    fn hand_active<F: Fx>(
        &mut self,
        fx: &mut F,
        c: &mut Channel,
        envelope: Envelope,
        (user, len): (u64, u64),
        hand: impl FnOnce(&mut F, &ActiveFn, MessageEnd) -> Result<(), Status>,
    ) -> Heard {
        let (party, incarnation) = (Party::peer(c.peer), c.incarnation);
        let cost = len + user;
        if let Err(status) = c.flow.receive(cost) {
            return Heard::Refused(status);
        }
        c.used = c.last_rx;
        let Some(handler) = self.handlers.get(&envelope.comm) else { return Heard::Nobody };
        if !fx.fits(1) {
            return Heard::Refused(crate::room::none(size_of::<Work>(), "an active message"));
        }
        let (extra, short) = (None, Default::default());
        let result = Ok(());
        let end = MessageEnd { result, party, incarnation, envelope, len, extra, short };
        if let Err(status) = hand(fx, &handler.run, end) {
            return Heard::Refused(status);
        }
        c.counters.recv_done(len, 0, Code::Ok, Protocol::Eager);
        if let Some(limit) = c.flow.take(cost) {
            c.send(fx, &Message::MsgWindow { limit }, &[]);
        }
        Heard::Ended
    }
}

impl Engine {
    /// Sets the handler of a number, or takes it away; what has waited for it goes to it.
    pub fn message_handler(
        &mut self,
        fx: &mut impl Fx,
        id: u32,
        handler: Option<Handler>,
    ) -> Result<(), Status> {
        if self.closing {
            return Err(Self::ending());
        }
        let Some(handler) = handler else {
            self.messages.handlers.remove(&id);
            return Ok(());
        };
        crate::room::grow(&mut self.messages.handlers, 1, "handlers")?;
        let run = handler.run.clone();
        let before = self.messages.handlers.insert(id, handler);
        while let Some(index) = self.messages.unexpected.find_active(id) {
            let handed = match fx.fits(1) {
                true => self.hand_over(fx, index, run.clone()),
                false => Err(crate::room::none(size_of::<Work>(), "an active message")),
            };
            if let Err(status) = handed {
                // As if it had not been called: what waits is not overtaken by what comes.
                match before {
                    Some(before) => drop(self.messages.handlers.insert(id, before)),
                    None => drop(self.messages.handlers.remove(&id)),
                }
                return Err(status);
            }
        }
        Ok(())
    }

    /// A message with its content came for a handler.
    pub(super) fn arrive_active(
        &mut self,
        fx: &mut impl Fx,
        (sender, ch): ((Party, u64), Option<ChanId>),
        envelope: Envelope,
        sync: Option<u32>,
        extra: &Extra<'_>,
        content: &[u8],
    ) -> Result<(), Status> {
        let len = content.len() as u64;
        let bytes = crate::room::copy(content, "an active message")?;
        let content = Content::Here { bytes: bytes.into(), sync };
        let arrived = Arrived::new(sender, ch, envelope, len, content).with(extra)?;
        self.take_active(fx, arrived).map(drop)
    }

    /// A message whose content waits came for a handler; where it waits.
    pub(super) fn offer_active(
        &mut self,
        fx: &mut impl Fx,
        arrived: Arrived,
    ) -> Result<u32, Status> {
        self.take_active(fx, arrived)
    }

    fn take_active(&mut self, fx: &mut impl Fx, arrived: Arrived) -> Result<u32, Status> {
        let handler = self.messages.handlers.get(&arrived.envelope.comm).map(|h| h.run.clone());
        if !fx.fits(1) {
            return Err(crate::room::none(size_of::<Work>(), "an active message"));
        }
        let index = self.messages.unexpected.add(arrived)?;
        if let Some(handler) = handler
            && let Err(status) = self.hand_over(fx, index, handler)
        {
            self.messages.unexpected.remove(index);
            return Err(status);
        }
        Ok(index)
    }

    /// Gives a message that waits to its handler. Without memory for what travels beside it nothing was done.
    fn hand_over(&mut self, fx: &mut impl Fx, index: u32, handler: ActiveFn) -> Result<(), Status> {
        let Some(a) = self.messages.unexpected.get(index) else { return Ok(()) };
        let (party, incarnation, envelope) = (a.sender, a.incarnation, a.envelope);
        let (len, ch, short) = (a.len, a.ch, Default::default());
        let end = |extra| {
            let result = Ok(());
            MessageEnd { result, party, incarnation, envelope, len, extra, short }
        };
        if let Content::Here { .. } = a.content {
            let Some(arrived) = self.messages.unexpected.remove(index) else { return Ok(()) };
            let (content, extra) = self.take_content(fx, arrived);
            self.count_received(party, len, &Ok(()));
            let active = Active::waited(end(extra), content.into_vec(), 0);
            fx.run(Work::Active { handler, active });
            return Ok(());
        }
        let whole = len == 0 || a.extra.as_ref().is_some_and(|beside| beside.has_whole(len));
        if let (Content::There { response, .. }, true, Some(ch)) = (&a.content, whole, ch) {
            // There is nothing to wait for.
            let response = *response;
            let Some(arrived) = self.messages.unexpected.remove(index) else { return Ok(()) };
            let (cost, mut extra) = (arrived.offer_cost(), arrived.extra);
            let content =
                extra.as_mut().and_then(|extra| extra.take_whole(len)).unwrap_or_default();
            self.offer_taken(ch, cost);
            self.send(fx, ch, &Message::GetDone { response, ok: true }, &[]);
            self.count_received(party, len, &Ok(()));
            let active = Active::waited(end(extra), content, 0);
            fx.run(Work::Active { handler, active });
            return Ok(());
        }
        let extra = a.copy_extra()?;
        let message = public(self.next_id, index);
        self.next_id += 1;
        self.messages.unexpected.claim(index, message);
        let active = Active::waited(end(extra), Vec::new(), message);
        fx.run(Work::Active { handler, active });
        Ok(())
    }

    /// Nobody receives a message that was claimed: its sender hears that it was taken.
    pub fn message_drop(&mut self, fx: &mut impl Fx, message: u64) {
        let unexpected = &mut self.messages.unexpected;
        if let Some(arrived) =
            unexpected.claimed(message).and_then(|index| unexpected.remove(index))
        {
            let cost = arrived.offer_cost();
            self.refuse_long(fx, arrived, cost);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::front::message::{Beside, Envelope};

    fn end(tag: u64) -> MessageEnd {
        let (party, envelope) = (Party::peer(1), Envelope { comm: 2, tag });
        let (extra, short) = (None, Default::default());
        let (result, incarnation) = (Ok(()), 7);
        MessageEnd { result, party, incarnation, envelope, len: 0, extra, short }
    }

    #[test]
    fn an_active_message_takes_the_memory_of_the_one_before() {
        let mut active = Active::came(end(1), b"head", &[7; 13], None).unwrap();
        assert_eq!((active.content(), active.user()), (&[7; 13][..], &b"head"[..]));
        assert!(active.user().as_ptr().addr().is_multiple_of(ALIGNED));
        let at = active.content().as_ptr();
        active.clear();
        active.comes(end(2), &[], &[9; 5], None).unwrap();
        assert_eq!((active.content(), active.user()), (&[9; 5][..], &b""[..]));
        assert_eq!((active.content().as_ptr(), active.end.envelope.tag), (at, 2));
    }

    #[test]
    fn content_that_is_kept_stays_where_it_is_until_the_handler_has_run() {
        let (kept, lies) = (Arc::new(()), [3u8; 100]);
        let mut active = Active::came(end(1), &[], &[1; 64], None).unwrap();
        active.comes(end(2), b"beside", &lies, Some(kept.clone())).unwrap();
        assert_eq!((active.content(), active.user()), (&lies[..], &b"beside"[..]));
        assert_eq!(active.content().as_ptr(), lies.as_ptr());
        assert_eq!(Arc::strong_count(&kept), 2);
        active.clear();
        assert_eq!(Arc::strong_count(&kept), 1);
    }

    #[test]
    fn memory_of_long_content_does_not_stay() {
        let mut active = Active::came(end(1), &[], &vec![1; KEPT + 1], None).unwrap();
        active.clear();
        assert_eq!(active.bytes.capacity(), 0);
        for len in [0, 3] {
            let beside = Beside::of(&Extra::user(b"a header")).unwrap();
            let waited = MessageEnd { extra: beside, ..end(3) };
            let waited = Active::waited(waited, vec![5; len], 4);
            assert_eq!((waited.content(), waited.user()), (&vec![5; len][..], &b"a header"[..]));
            assert!(waited.user().as_ptr().addr().is_multiple_of(ALIGNED));
        }
    }
}
