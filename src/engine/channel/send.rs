//! Messages of a channel: at once, or where they wait.

use super::*;

impl Channel {
    /// Sends a message; `tail` follows what `encode` writes.
    pub fn send(&mut self, fx: &mut impl Fx, message: &Message<'_>, tail: &[u8]) {
        self.send_for(fx, message, tail, None);
    }

    /// Sends what asks for a request; its place, if all of it has to wait.
    pub fn ask(
        &mut self,
        fx: &mut impl Fx,
        request: u32,
        message: &Message<'_>,
        tail: &[u8],
    ) -> Option<u64> {
        self.send_for(fx, message, tail, Some(request))
    }

    /// The same, of a request that has a short head.
    #[inline]
    pub fn ask_short(
        &mut self,
        fx: &mut impl Fx,
        request: u32,
        head: &mut Short,
        key: &[u8],
    ) -> Option<u64> {
        let of = Of { answer: false, urgent: false, ask: Some(request) };
        self.send_whole(fx, head, key, of)
    }

    /// Sends a message with a short head.
    #[inline]
    fn send_whole(
        &mut self,
        fx: &mut impl Fx,
        head: &mut Short,
        tail: &[u8],
        of: Of,
    ) -> Option<u64> {
        // Mostly it goes out as it is.
        if self.takes_messages()
            && self.seal.is_none()
            && head.count() + tail.len() <= self.caps.max_send
        {
            let returned = self.consumed.min(u32::from(u16::MAX));
            head.return_credits(returned as u16);
            let sent = match head.in_room() {
                Some((bytes, len)) => fx.send_head(self.id, bytes, len, tail),
                None => fx.send(self.id, &[head.bytes(), tail]),
            };
            if sent.is_ok() {
                self.credits -= 1;
                self.consumed -= returned;
                return None;
            }
        }
        self.send_or_wait(fx, head.bytes(), tail, of)
    }

    /// The same of what has a checksum, is long, or has to wait.
    #[inline(never)]
    fn send_or_wait(
        &mut self,
        fx: &mut impl Fx,
        head: &mut [u8],
        tail: &[u8],
        of: Of,
    ) -> Option<u64> {
        match head.len() + tail.len() <= self.room() {
            true => self.post_message(fx, head, tail, of),
            false => self.send_fragments(fx, head, tail, of),
        }
    }

    /// Takes back what asks for a request. False: some of it has left.
    pub fn withdraw(&mut self, place: u64, request: u32) -> bool {
        self.pending.withdraw(place, request)
    }

    /// Whether more may be asked for.
    #[inline]
    pub fn takes_asks(&self) -> bool {
        self.pending.len() < ASKS
    }

    /// Why no more may be asked for: what waits already.
    pub fn too_many_asks(&self) -> Option<Status> {
        let n = self.pending.len();
        (n >= ASKS).then(|| {
            let text = text!(
                "{n} posts wait on the connection, faster than the peer takes them; with {ASKS} nothing \
                 more is asked for"
            );
            Status::new(Code::ResourceExhausted, text).because(Reason::LocalError)
        })
    }

    /// Sends TENSOR_CONTENT; without metadata: the request said it.
    #[inline(always)]
    pub fn send_content(
        &mut self,
        fx: &mut impl Fx,
        request: u32,
        checksum: Option<u64>,
        meta: Option<&Meta>,
        content: &[u8],
    ) {
        let of = Of { answer: true, urgent: false, ask: None };
        let mut head = Short::default();
        if checksum.is_none() && head.content(request, meta) {
            self.send_whole(fx, &mut head, content, of);
            return;
        }
        let len = message::content_head_len(meta);
        let head = |out: &mut Vec<u8>| message::put_content(out, request, checksum, meta);
        self.send_head(fx, len, head, content, of);
    }

    /// Sends a tagged message with its content.
    #[inline(always)]
    pub fn send_msg(
        &mut self,
        fx: &mut impl Fx,
        envelope: Envelope,
        sync: Option<u32>,
        extra: &Extra<'_>,
        content: &[u8],
    ) {
        let of = Of { answer: false, urgent: false, ask: None };
        if sync.is_none() && extra.is_empty() {
            self.send_whole(fx, &mut Short::msg(envelope), content, of);
            return;
        }
        let head = |out: &mut Vec<u8>| message::put_msg(out, envelope, sync, extra);
        let len = message::MSG_HEAD_LEN + extra.cost() as usize;
        self.send_head(fx, len, head, content, of);
    }

    /// Sends a tagged message if that can be done at once, where [`takes_messages`](Self::takes_messages) says so. False:
    /// nothing was done.
    #[inline]
    pub fn send_msg_now(&mut self, fx: &mut impl Fx, m: UsualMsg<'_>) -> bool {
        // One with a header has its length, too.
        if self.seal.is_some() || (MSG_HEAD + 2) as u64 + m.cost() > self.caps.max_send as u64 {
            return false;
        }
        let returned = self.consumed.min(u32::from(u16::MAX)) as u16;
        let sent = if m.user.is_empty() {
            fx.send_short(self.id, &m.head(returned), m.content).is_ok()
        } else if let Some((head, len)) = m.head_short(returned) {
            fx.send_head(self.id, &head, len, m.content).is_ok()
        } else {
            fx.send(self.id, &[&m.head_user(returned), m.user, m.content]).is_ok()
        };
        if sent {
            self.credits -= 1;
            self.consumed -= u32::from(returned);
        }
        sent
    }

    /// The same of one with a number by which its sender hears of the match, or with more beside it than a header.
    pub fn send_whole_msg_now(&mut self, fx: &mut impl Fx, m: &WholeMsg<'_>) -> bool {
        let WholeMsg { envelope, sync, extra, content } = m;
        let returned = self.consumed.min(u32::from(u16::MAX)) as u16;
        let head = message::msg_head(*envelope, *sync, extra, returned);
        let Some((head, len)) = head.filter(|_| self.seal.is_none()) else { return false };
        let sent = len + content.len() <= self.caps.max_send
            && fx.send_head(self.id, &head, len, content).is_ok();
        if sent {
            self.credits -= 1;
            self.consumed -= u32::from(returned);
        }
        sent
    }

    /// Sends MSG_MATCHED.
    pub fn send_matched(&mut self, fx: &mut impl Fx, number: u32) {
        let of = Of { answer: false, urgent: false, ask: None };
        self.send_whole(fx, &mut Short::matched(number), &[], of);
    }

    fn send_for(
        &mut self,
        fx: &mut impl Fx,
        message: &Message<'_>,
        tail: &[u8],
        ask: Option<u32>,
    ) -> Option<u64> {
        // Neither waits for what is queued before it, which may take long: the other side has to
        // see that this one lives.
        let urgent = matches!(message, Message::Ping | Message::Pong);
        let of = Of { answer: is_answer(message), urgent, ask };
        self.send_head(fx, head_len(message), |out| encode(message, out), tail, of)
    }

    /// Sends what `head` writes, up to `len` bytes, and `tail` behind it.
    fn send_head(
        &mut self,
        fx: &mut impl Fx,
        len: usize,
        head: impl FnOnce(&mut Vec<u8>),
        tail: &[u8],
        of: Of,
    ) -> Option<u64> {
        let mut scratch = std::mem::take(&mut self.scratch);
        // What it held is not wanted any more, and `head` replaces it.
        scratch.clear();
        if scratch.try_reserve(len).is_err() {
            self.scratch = scratch;
            self.fail(no_memory());
            return None;
        }
        head(&mut scratch);
        let place = if scratch.len() + tail.len() <= self.room() {
            self.post_message(fx, &mut scratch, tail, of)
        } else {
            self.send_fragments(fx, &scratch, tail, Of { urgent: false, ..of })
        };
        self.scratch = scratch;
        place
    }

    /// The place of the first, if that has to wait, and so do all.
    fn send_fragments(
        &mut self,
        fx: &mut impl Fx,
        head: &[u8],
        tail: &[u8],
        of: Of,
    ) -> Option<u64> {
        let Some(whole) = joined(head, tail) else {
            self.fail(no_memory());
            return None;
        };
        let piece = self.room().saturating_sub(HEADER_LEN).max(1);
        let count = whole.len().div_ceil(piece);
        let mut header = Vec::with_capacity(HEADER_LEN);
        let mut first = None;
        for (i, bytes) in whole.chunks(piece).enumerate() {
            encode(&Message::Fragment { last: i + 1 == count, bytes }, &mut header);
            let place = self.post_message(fx, &mut header, bytes, of);
            if i == 0 {
                first = place;
            }
        }
        first
    }

    /// The message's place, if it has to wait.
    fn post_message(
        &mut self,
        fx: &mut impl Fx,
        head: &mut [u8],
        tail: &[u8],
        Of { answer, urgent, ask }: Of,
    ) -> Option<u64> {
        if (urgent || self.pending.is_empty()) && self.credits > RESERVED {
            let returned = self.consumed.min(u32::from(u16::MAX));
            head[CREDITS_AT..HEADER_LEN].copy_from_slice(&(returned as u16).to_le_bytes());
            match post(fx, self.id, &mut self.seal, head, tail) {
                Ok(()) => {
                    self.credits -= 1;
                    self.consumed -= returned;
                    return None;
                }
                Err(PostError::QueueFull) => {}
                Err(PostError::Failed(status)) => {
                    self.fail(status);
                    return None;
                }
            }
        }
        match joined(head, tail) {
            Some(bytes) => self.enqueue(Pending::Message { bytes, answer, ask }, urgent),
            None => {
                self.fail(no_memory());
                None
            }
        }
    }
}
