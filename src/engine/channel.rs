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

mod send;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Fx;
use super::claim::Probe;
use super::front::message::flow::Flow;
use super::front::rendezvous::names::Names;
use super::queue::{Pending, Queue};
use super::rails::{Rail, Rails};
use super::responses::ResponseMap;
use super::seal::{Seal, TRAILER};
use super::transfer::buffers::Share;
use crate::api::Meta;
use crate::fabric::{Caps, Mem, PostError, Remote};
use crate::limits::{ASKS, OWED_BYTES, OWED_BYTES_ALL, OWED_CONTENT, POSTS};
use crate::name::Name;
use crate::observe::PeerCounters;
use crate::protocol::message::{
    self, CREDITS_AT, Envelope, Extra, HEADER_LEN, IMM_ACK, MAX_MESSAGE, MSG_HEAD, Message, Nonce,
    Short, UsualMsg, WholeMsg, encode, head_len,
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

/// One connection to a peer: what waits to be posted on it, and the credits of both ends.
pub struct Channel {
    /// This channel.
    pub id: ChanId,
    /// The peer's index.
    pub peer: u32,
    /// Its name.
    pub name: Name,
    /// Its incarnation, in a word.
    pub incarnation: u64,
    /// What the adapter can do.
    pub caps: Caps,
    /// The peer drives progress itself and may be silent for long.
    pub remote_manual: bool,
    /// Its name, which both ends know; `None` once the peer knows of its end.
    pub nonce: Option<Nonce>,
    /// Responses owed on this channel, by the peer's request index.
    pub responses: ResponseMap,
    /// Time of the last sign of life.
    pub last_rx: u64,
    /// Time of the connection, or of the peer's last request or message.
    pub used: u64,
    /// Responses whose content waits for the answers before it, in order.
    pub deferred: VecDeque<u32>,
    /// Last value of the adapter's progress mark.
    pub mark: u64,
    /// A PING is unanswered since then.
    pub pinged: Option<u64>,
    /// Messages and writes with immediate received.
    pub heard: u64,
    /// Of these, questions for a sign of life and answers to them.
    pub signs: u64,
    /// What was received beside these, when that was last looked at, and since when it has not changed.
    pub talk: (u64, u64),
    /// It was asked for a sign of life, since another process claims the peer's name.
    pub probe: Option<Probe>,
    /// Checksums on every message, where either side has the option.
    pub seal: Option<Seal>,
    /// Messages of up to so many bytes go with their content, as was seen; what is longer is looked at.
    pub rides: u64,
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
            incarnation: 0,
            caps,
            remote_manual,
            nonce: None,
            responses: ResponseMap::default(),
            last_rx: now,
            used: now,
            deferred: VecDeque::new(),
            mark: 0,
            pinged: None,
            heard: 0,
            signs: 0,
            talk: (0, now),
            probe: None,
            seal: None,
            rides: 0,
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

    /// Whether nothing is to be done for it: no defect, nothing to post, no content that was kept back, nobody to be told of
    /// room. What answers wait elsewhere does not change by what was just done here.
    #[inline(always)]
    pub fn is_settled(&self) -> bool {
        let told = !self.flow.awaited;
        self.broken.is_none() && !self.waits() && self.deferred.is_empty() && told
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

    /// An answer of so many bytes begins to wait for the peer to take it.
    fn count_waiting(&mut self, bytes: usize) {
        self.owed += bytes;
        self.owed_all.0.fetch_add(bytes, Ordering::Relaxed);
    }

    /// It waits no more.
    fn count_taken(&mut self, bytes: usize) {
        self.owed -= bytes;
        self.owed_all.0.fetch_sub(bytes, Ordering::Relaxed);
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
            let text = text!(
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
        self.count_waiting(owed);
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
                    self.count_taken(owed);
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
            return Err(Status::invalid(text!(
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
        self.count_taken(self.owed);
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
