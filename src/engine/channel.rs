//! One connection to a peer: credits, queueing, fragments, keep-alive.
//!
//! A post that finds no credit, or a full provider queue, waits in `pending`; later posts wait
//! behind it, so the order holds. PING and PONG overtake what waits. Each message returns in its
//! header the credits of what was received since the last; when nothing is being sent, a write of
//! zero bytes with `IMM_ACK` returns a fixed number, the quantum.
//!
//! What waits is of two kinds: what the application caused (requests, reads), which its own operations
//! bound, and answers, which the peer causes. Answers are bounded in bytes, here and over all channels.
//! A request that ends while it waits here is withdrawn, and nothing of it is sent.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Fx;
use super::claim::Probe;
use super::front::message::flow::Flow;
use super::front::rendezvous::names::Names;
use super::owing::Owing;
use super::queue::{Pending, Queue};
use super::rails::{Rail, Rails};
use super::seal::{Seal, TRAILER};
use super::transfer::buffers::Share;
use crate::api::Meta;
use crate::fabric::{Caps, Mem, PostError, Remote};
use crate::limits::{ASKS, OWED_BYTES, OWED_BYTES_ALL, OWED_CONTENT, POSTS};
use crate::name::Name;
use crate::observe::PeerCounters;
use crate::protocol::message::{
    self, CREDITS_AT, Envelope, Extra, HEADER_LEN, IMM_ACK, MAX_MESSAGE, MSG_HEAD, Message, Short,
    encode, head_len, usual_msg_head, usual_msg_head_user,
};
use crate::status::{Code, Reason, Status};

/// Identifies a channel; never reused while an event of it may be under way.
pub type ChanId = u32;

/// Messages that may be sent before the peer has told its depth.
pub const INITIAL_CREDITS: u32 = 8;
/// Credits that only an `IMM_ACK` may use: both sides can always return credits.
const RESERVED: u32 = 2;

/// Bytes of answers that wait, of all channels of an engine.
#[derive(Default)]
pub struct Owed(AtomicUsize);

impl Owed {
    /// How many there are.
    pub fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Whether the peer caused this message; the others belong to operations of the application.
fn is_answer(message: &Message<'_>) -> bool {
    !matches!(message, Message::Request(_) | Message::Cancel { .. } | Message::Credit { .. })
}

/// What a message is of.
#[derive(Clone, Copy)]
struct Of {
    /// See [`is_answer`].
    answer: bool,
    /// It overtakes what waits.
    urgent: bool,
    /// The request that it asks for.
    ask: Option<u32>,
}

/// The parts in one piece; `None` without memory.
fn joined(head: &[u8], tail: &[u8]) -> Option<Vec<u8>> {
    let mut whole = Vec::new();
    whole.try_reserve_exact(head.len() + tail.len()).ok()?;
    whole.extend_from_slice(head);
    whole.extend_from_slice(tail);
    Some(whole)
}

fn no_memory() -> Status {
    Status::new(Code::ResourceExhausted, "no memory for a message that has to wait")
}

/// See the module's text.
pub struct Channel {
    /// This channel.
    pub id: ChanId,
    /// The peer's index.
    pub peer: u32,
    /// Its name.
    pub name: Name,
    /// What the adapter can do.
    pub caps: Caps,
    /// The peer drives progress itself and may be silent for long.
    pub remote_manual: bool,
    /// Responses owed on this channel, by the peer's request index.
    pub responses: Owing,
    /// Time of the last sign of life.
    pub last_rx: u64,
    /// Time of the connection, or of the peer's last request.
    pub used: u64,
    /// Responses whose content waits for the answers before it, in order.
    pub deferred: VecDeque<u32>,
    /// Last value of the adapter's progress mark.
    pub mark: u64,
    /// A PING is unanswered since then.
    pub pinged: Option<u64>,
    /// Messages and writes with immediate received.
    pub heard: u64,
    /// It was asked for a sign of life, since another process claims the peer's name.
    pub probe: Option<Probe>,
    /// Checksums on every message, where either side has the option.
    pub seal: Option<Seal>,
    /// Why the channel has to be closed, found while posting.
    pub broken: Option<Status>,
    /// How much may be sent of tagged messages.
    pub flow: Flow,
    /// Buffers by which tensors go, by key.
    pub(super) names: Names,
    /// What was given to the peer as buffers, and whether it is asked for such.
    pub buffers: Share,
    credits: u32,
    consumed: u32,
    quantum: u32,
    peer_quantum: u32,
    pending: Queue,
    /// Bytes of the answers in `pending`, a part of `owed_all`.
    owed: usize,
    owed_all: Arc<Owed>,
    fragments: Vec<u8>,
    scratch: Vec<u8>,
    /// Connections that carry a part of its READs and WRITEs.
    pub(super) rails: Rails,
    /// It is such a connection itself, or is to be one.
    pub(super) rail: Option<Box<Rail>>,
    /// Counters of the peer over this provider.
    pub counters: Arc<PeerCounters>,
}

impl Channel {
    /// A new connection, without an id yet. `announce` follows once it is in the engine's table.
    pub fn new(
        (peer, name): (u32, Name),
        caps: Caps,
        remote_manual: bool,
        counters: Arc<PeerCounters>,
        now: u64,
        owed_all: Arc<Owed>,
    ) -> Channel {
        let depth = caps.recv_depth.max(INITIAL_CREDITS);
        Channel {
            id: 0,
            peer,
            name,
            caps,
            remote_manual,
            responses: Owing::default(),
            last_rx: now,
            used: now,
            deferred: VecDeque::new(),
            mark: 0,
            pinged: None,
            heard: 0,
            probe: None,
            seal: None,
            broken: None,
            flow: Flow::default(),
            names: Names::default(),
            buffers: Share::default(),
            credits: INITIAL_CREDITS,
            consumed: 0,
            quantum: depth / 2,
            peer_quantum: INITIAL_CREDITS / 2,
            pending: Queue::new(),
            owed: 0,
            owed_all,
            fragments: Vec::new(),
            scratch: Vec::with_capacity(128),
            rails: Rails::default(),
            rail: None,
            counters,
        }
    }

    /// Tells the peer how many messages it may have under way.
    pub fn announce(&mut self, fx: &mut impl Fx) {
        let depth = self.caps.recv_depth.max(INITIAL_CREDITS);
        self.send(fx, &Message::Credit { depth }, &[]);
    }

    /// The peer told its depth.
    pub fn on_credit(&mut self, depth: u32) {
        if depth >= INITIAL_CREDITS && self.peer_quantum == INITIAL_CREDITS / 2 {
            self.credits = self.credits.saturating_add(depth - INITIAL_CREDITS);
            self.peer_quantum = depth / 2;
        }
    }

    /// Something that used a receive of ours arrived.
    #[inline]
    pub fn on_received(&mut self, now: u64, returned: u16) {
        self.last_rx = now;
        self.pinged = None;
        self.heard += 1;
        self.consumed += 1;
        self.credits = self.credits.saturating_add(u32::from(returned));
    }

    /// An `IMM_ACK` arrived.
    pub fn on_ack(&mut self) {
        self.credits = self.credits.saturating_add(self.peer_quantum);
    }

    /// Whether entries wait to be posted.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether something waits to be posted: entries, or credits that are due to the peer. It may
    /// be the peer's last hope of credit, so it counts even while nothing else happens here.
    #[inline]
    pub fn waits(&self) -> bool {
        !self.pending.is_empty()
            || self.consumed >= self.quantum
            || (self.flow.queued && !self.flow.short)
    }

    /// Whether a message would go out at once, as far as this connection is concerned.
    pub fn takes_messages(&self) -> bool {
        self.pending.is_empty() && self.credits > RESERVED && self.broken.is_none()
    }

    /// Whether nothing is to be done for it: no defect, nothing to post, no content that was kept back. What answers
    /// wait elsewhere does not change by what was just done here.
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.broken.is_none() && !self.waits() && self.deferred.is_empty()
    }

    /// Bytes of answers that wait here.
    pub fn owed(&self) -> usize {
        self.owed
    }

    /// So many answers wait that nothing long is to be copied behind them. The less is left for all, the
    /// sooner, so that many slow peers together stay below the bound.
    #[inline]
    pub fn is_congested(&self) -> bool {
        let left = OWED_BYTES_ALL.saturating_sub(self.owed_all.bytes());
        self.owed > OWED_CONTENT.min(left / 16)
    }

    /// The next response whose content may be sent now.
    pub fn next_deferred(&mut self) -> Option<u32> {
        if self.is_congested() { None } else { self.deferred.pop_front() }
    }

    fn owes(&mut self, bytes: usize) {
        self.owed += bytes;
        self.owed_all.0.fetch_add(bytes, Ordering::Relaxed);
    }

    fn owes_less(&mut self, bytes: usize) {
        self.owed -= bytes;
        self.owed_all.0.fetch_sub(bytes, Ordering::Relaxed);
    }

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
        head: Short,
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
        mut head: Short,
        tail: &[u8],
        of: Of,
    ) -> Option<u64> {
        let head = head.bytes();
        // Mostly it goes out as it is.
        if self.takes_messages()
            && self.seal.is_none()
            && head.len() + tail.len() <= self.caps.max_send
        {
            let returned = self.consumed.min(u32::from(u16::MAX));
            head[CREDITS_AT..HEADER_LEN].copy_from_slice(&(returned as u16).to_le_bytes());
            if fx.send(self.id, &[head, tail]).is_ok() {
                self.credits -= 1;
                self.consumed -= returned;
                return None;
            }
        }
        self.send_or_wait(fx, head, tail, of)
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
            let text = format!(
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
        if let (None, Some(head)) = (checksum, Short::content(request, meta)) {
            self.send_whole(fx, head, content, of);
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
            self.send_whole(fx, Short::msg(envelope), content, of);
            return;
        }
        let head = |out: &mut Vec<u8>| message::put_msg(out, envelope, sync, extra);
        let len = message::MSG_HEAD_LEN + extra.cost() as usize;
        self.send_head(fx, len, head, content, of);
    }

    /// Sends a tagged message if that can be done at once, where [`takes_messages`](Self::takes_messages) says so. False:
    /// nothing was done.
    #[inline]
    pub fn send_msg_now(
        &mut self,
        fx: &mut impl Fx,
        envelope: Envelope,
        user: &[u8],
        content: &[u8],
    ) -> bool {
        // One with a header has its length, too.
        if self.seal.is_some() || MSG_HEAD + 2 + user.len() + content.len() > self.caps.max_send {
            return false;
        }
        let returned = self.consumed.min(u32::from(u16::MAX)) as u16;
        let sent = if user.is_empty() {
            fx.send(self.id, &[&usual_msg_head(envelope, returned), content]).is_ok()
        } else {
            let head = usual_msg_head_user(envelope, returned, user.len() as u16);
            fx.send(self.id, &[&head, user, content]).is_ok()
        };
        if sent {
            self.credits -= 1;
            self.consumed -= u32::from(returned);
        }
        sent
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

    /// A write with immediate was refused: the peer saw nothing of it and returns no credit.
    pub fn on_refused(&mut self) {
        self.credits = self.credits.saturating_add(1);
    }

    /// Writes to the peer's memory; with `imm` this uses a credit.
    pub fn write(
        &mut self,
        fx: &mut impl Fx,
        wr: u64,
        local: Mem,
        remote: Remote,
        imm: Option<u32>,
    ) {
        let wr = if imm.is_some() { wr | super::WR_IMM } else { wr };
        if self.pending.is_empty() && (imm.is_none() || self.credits > RESERVED) {
            match fx.write(self.id, wr, local, remote, imm) {
                Ok(()) => {
                    self.credits -= u32::from(imm.is_some());
                    return;
                }
                Err(PostError::QueueFull) => {}
                Err(PostError::Failed(status)) => return self.fail(status),
            }
        }
        self.enqueue(Pending::Write { wr, local, remote, imm }, false);
    }

    /// Writes a copy of content with an immediate, at once or not at all; whether it did.
    pub fn write_copied(
        &mut self,
        fx: &mut impl Fx,
        wr: u64,
        content: &[u8],
        remote: Remote,
        imm: u32,
    ) -> bool {
        if !self.pending.is_empty() || self.credits <= RESERVED {
            return false;
        }
        let done = fx.write_copied(self.id, wr | super::WR_IMM, content, remote, Some(imm)).is_ok();
        self.credits -= u32::from(done);
        done
    }

    /// Reads the peer's memory.
    pub fn read(&mut self, fx: &mut impl Fx, wr: u64, local: Mem, remote: Remote) {
        if self.pending.is_empty() {
            match fx.read(self.id, wr, local, remote) {
                Ok(()) => return,
                Err(PostError::QueueFull) => {}
                Err(PostError::Failed(status)) => return self.fail(status),
            }
        }
        self.enqueue(Pending::Read { wr, local, remote }, false);
    }

    /// Waits behind what waits already, or, if `urgent`, before it; its place.
    fn enqueue(&mut self, entry: Pending, urgent: bool) -> Option<u64> {
        self.counters.queue_full.add(1);
        let owed = entry.owed();
        if self.pending.len() >= POSTS || self.owed + owed > OWED_BYTES {
            let text = format!(
                "{} posts wait on the connection, {} bytes of them answers, faster than the peer takes them; \
                 {POSTS} with {OWED_BYTES} are allowed",
                self.pending.len(),
                self.owed
            );
            self.fail(Status::new(Code::ResourceExhausted, text));
            return None;
        }
        if !self.pending.make_room() {
            self.fail(no_memory());
            return None;
        }
        self.owes(owed);
        Some(self.pending.push(entry, urgent))
    }

    fn fail(&mut self, status: Status) {
        self.broken.get_or_insert(status);
    }

    /// Posts what waits, as far as credits and queue allow, and returns credits that are due.
    pub fn flush(&mut self, fx: &mut impl Fx) {
        while let Some(front) = self.pending.front() {
            let uses_credit =
                !matches!(front, Pending::Read { .. } | Pending::Write { imm: None, .. });
            if uses_credit && self.credits <= RESERVED {
                break;
            }
            let mut returned = 0;
            let posted = match front {
                Pending::Message { bytes, .. } => {
                    returned = self.consumed.min(u32::from(u16::MAX));
                    bytes[CREDITS_AT..HEADER_LEN].copy_from_slice(&(returned as u16).to_le_bytes());
                    post(fx, self.id, &mut self.seal, bytes, &[])
                }
                Pending::Write { wr, local, remote, imm } => {
                    fx.write(self.id, *wr, *local, *remote, *imm)
                }
                Pending::Read { wr, local, remote } => fx.read(self.id, *wr, *local, *remote),
            };
            match posted {
                Ok(()) => {
                    self.credits -= u32::from(uses_credit);
                    self.consumed -= returned;
                    let owed = self.pending.pop().map_or(0, |p| p.owed());
                    self.owes_less(owed);
                }
                Err(PostError::QueueFull) => break,
                Err(PostError::Failed(status)) => return self.fail(status),
            }
        }
        self.return_credits(fx);
    }

    /// The longest message that goes as one.
    #[inline]
    pub fn room(&self) -> usize {
        let trailer = if self.seal.is_some() { TRAILER } else { 0 };
        self.caps.max_send.saturating_sub(trailer)
    }

    /// Returns credits if a quantum is owed and no message took them along: by `IMM_ACK`, or, since
    /// an immediate has no checksum, by a PONG.
    pub fn return_credits(&mut self, fx: &mut impl Fx) {
        let mut pong = Vec::new();
        while self.seal.is_some() && self.consumed >= self.quantum && self.credits > 0 {
            encode(&Message::Pong, &mut pong);
            let returned = self.consumed.min(u32::from(u16::MAX));
            pong[CREDITS_AT..HEADER_LEN].copy_from_slice(&(returned as u16).to_le_bytes());
            match post(fx, self.id, &mut self.seal, &pong, &[]) {
                Ok(()) => {
                    self.consumed -= returned;
                    self.credits -= 1;
                }
                Err(PostError::QueueFull) => return,
                Err(PostError::Failed(status)) => return self.fail(status),
            }
        }
        if self.seal.is_some() {
            return;
        }
        while self.consumed >= self.quantum && self.credits > 0 {
            // SAFETY: zero bytes are never touched.
            let nothing = unsafe { Mem::new(0, 0, 0) };
            match fx.write(
                self.id,
                super::WR_ACK,
                nothing,
                Remote { addr: 0, rkey: 0 },
                Some(IMM_ACK),
            ) {
                Ok(()) => {
                    self.consumed -= self.quantum;
                    self.credits -= 1;
                }
                Err(PostError::QueueFull) => return,
                Err(PostError::Failed(status)) => return self.fail(status),
            }
        }
    }

    /// Adds a fragment; returns the whole message with the last one.
    pub fn on_fragment(&mut self, last: bool, bytes: &[u8]) -> Result<Option<Vec<u8>>, Status> {
        if self.fragments.len() + bytes.len() > MAX_MESSAGE {
            return Err(Status::invalid(format!(
                "a message in fragments of more than {MAX_MESSAGE} bytes"
            )));
        }
        self.fragments.try_reserve(bytes.len()).map_err(|_| no_memory())?;
        self.fragments.extend_from_slice(bytes);
        Ok(last.then(|| std::mem::take(&mut self.fragments)))
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.owes_less(self.owed);
    }
}

/// Posts a message, with its checksum where there are any.
#[inline]
fn post(
    fx: &mut impl Fx,
    ch: ChanId,
    seal: &mut Option<Seal>,
    head: &[u8],
    tail: &[u8],
) -> Result<(), PostError> {
    let Some(seal) = seal else { return fx.send(ch, &[head, tail]) };
    let trailer = seal.trailer(&[head, tail]);
    fx.send(ch, &[head, tail, &trailer])?;
    seal.posted();
    Ok(())
}
