//! One connection to a peer: credits, queueing, fragments, keep-alive.
//!
//! A post that finds no credit, or a full provider queue, waits in `pending`; later posts wait
//! behind it, so the order holds. PING and PONG overtake what waits. Each message returns in its
//! header the credits of what was received since the last; when nothing is being sent, a write of
//! zero bytes with `IMM_ACK` returns a fixed number, the quantum.

use std::collections::VecDeque;
use std::sync::Arc;

use foldhash::HashMap;

use super::Fx;
use super::seal::{Seal, TRAILER};
use crate::fabric::{Caps, Mem, PostError, Remote};
use crate::observe::PeerCounters;
use crate::protocol::message::{CREDITS_AT, HEADER_LEN, IMM_ACK, MAX_MESSAGE, Message, encode};
use crate::status::{Code, Status};

/// Identifies a channel; never reused while an event of it may be under way.
pub type ChanId = u32;

/// Messages that may be sent before the peer has told its depth.
pub const INITIAL_CREDITS: u32 = 8;
/// Credits that only an `IMM_ACK` may use: both sides can always return credits.
const RESERVED: u32 = 2;
/// Entries that may wait in `pending`; a peer that makes us queue more is cut off.
const MAX_PENDING: usize = 1 << 18;

enum Pending {
    Message(Vec<u8>),
    Write { wr: u64, local: Mem, remote: Remote, imm: Option<u32> },
    Read { wr: u64, local: Mem, remote: Remote },
}

/// See the module's text.
pub struct Channel {
    /// This channel.
    pub id: ChanId,
    /// The peer's index.
    pub peer: u32,
    /// What the adapter can do.
    pub caps: Caps,
    /// The peer drives progress itself and may be silent for long.
    pub remote_manual: bool,
    /// Responses owed on this channel, by the peer's request index.
    pub responses: HashMap<u32, u32>,
    /// Time of the last sign of life.
    pub last_rx: u64,
    /// Last value of the adapter's progress mark.
    pub mark: u64,
    /// A PING is unanswered since then.
    pub pinged: Option<u64>,
    /// Checksums on every message, where either side has the option.
    pub seal: Option<Seal>,
    /// Why the channel has to be closed, found while posting.
    pub broken: Option<Status>,
    credits: u32,
    consumed: u32,
    quantum: u32,
    peer_quantum: u32,
    pending: VecDeque<Pending>,
    fragments: Vec<u8>,
    scratch: Vec<u8>,
    /// Counters of the peer over this provider.
    pub counters: Arc<PeerCounters>,
}

impl Channel {
    /// A new connection, without an id yet. `announce` follows once it is in the engine's table.
    pub fn new(
        peer: u32,
        caps: Caps,
        remote_manual: bool,
        counters: Arc<PeerCounters>,
        now: u64,
    ) -> Channel {
        let depth = caps.recv_depth.max(INITIAL_CREDITS);
        Channel {
            id: 0,
            peer,
            caps,
            remote_manual,
            responses: HashMap::default(),
            last_rx: now,
            mark: 0,
            pinged: None,
            seal: None,
            broken: None,
            credits: INITIAL_CREDITS,
            consumed: 0,
            quantum: depth / 2,
            peer_quantum: INITIAL_CREDITS / 2,
            pending: VecDeque::new(),
            fragments: Vec::new(),
            scratch: Vec::with_capacity(128),
            counters,
        }
    }

    /// Tells the peer how many messages it may have under way.
    pub fn announce(&mut self, fx: &mut dyn Fx) {
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
    pub fn on_received(&mut self, now: u64, returned: u16) {
        self.last_rx = now;
        self.pinged = None;
        self.consumed += 1;
        self.credits = self.credits.saturating_add(u32::from(returned));
    }

    /// An `IMM_ACK` arrived.
    pub fn on_ack(&mut self) {
        self.credits = self.credits.saturating_add(self.peer_quantum);
    }

    /// Whether something waits to be posted: entries, or credits that are due to the peer. It may
    /// be the peer's last hope of credit, so it counts even while nothing else happens here.
    pub fn waits(&self) -> bool {
        !self.pending.is_empty() || self.consumed >= self.quantum
    }

    /// Sends a message; `tail` follows what `encode` writes.
    pub fn send(&mut self, fx: &mut dyn Fx, message: &Message<'_>, tail: &[u8]) {
        let mut scratch = std::mem::take(&mut self.scratch);
        encode(message, &mut scratch);
        if scratch.len() + tail.len() <= self.room() {
            // Neither waits for what is queued before it, which may take long: the other side has to
            // see that this one lives.
            let urgent = matches!(message, Message::Ping | Message::Pong);
            self.post_message(fx, &mut scratch, tail, urgent);
        } else {
            self.send_fragments(fx, &scratch, tail);
        }
        self.scratch = scratch;
    }

    fn send_fragments(&mut self, fx: &mut dyn Fx, head: &[u8], tail: &[u8]) {
        let whole = [head, tail].concat();
        let piece = self.room().saturating_sub(HEADER_LEN).max(1);
        let count = whole.len().div_ceil(piece);
        let mut header = Vec::with_capacity(HEADER_LEN);
        for (i, bytes) in whole.chunks(piece).enumerate() {
            encode(&Message::Fragment { last: i + 1 == count, bytes }, &mut header);
            self.post_message(fx, &mut header, bytes, false);
        }
    }

    fn post_message(&mut self, fx: &mut dyn Fx, head: &mut [u8], tail: &[u8], urgent: bool) {
        if (urgent || self.pending.is_empty()) && self.credits > RESERVED {
            let returned = self.consumed.min(u32::from(u16::MAX));
            head[CREDITS_AT..HEADER_LEN].copy_from_slice(&(returned as u16).to_le_bytes());
            match post(fx, self.id, &mut self.seal, head, tail) {
                Ok(()) => {
                    self.credits -= 1;
                    self.consumed -= returned;
                    return;
                }
                Err(PostError::QueueFull) => {}
                Err(PostError::Failed(status)) => return self.fail(status),
            }
        }
        let message = Pending::Message([&*head, tail].concat());
        self.enqueue(message, urgent);
    }

    /// A write with immediate was refused: the peer saw nothing of it and returns no credit.
    pub fn on_refused(&mut self) {
        self.credits = self.credits.saturating_add(1);
    }

    /// Writes to the peer's memory; with `imm` this uses a credit.
    pub fn write(
        &mut self,
        fx: &mut dyn Fx,
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

    /// Reads the peer's memory.
    pub fn read(&mut self, fx: &mut dyn Fx, wr: u64, local: Mem, remote: Remote) {
        if self.pending.is_empty() {
            match fx.read(self.id, wr, local, remote) {
                Ok(()) => return,
                Err(PostError::QueueFull) => {}
                Err(PostError::Failed(status)) => return self.fail(status),
            }
        }
        self.enqueue(Pending::Read { wr, local, remote }, false);
    }

    /// Waits behind what waits already, or, if `urgent`, before it.
    fn enqueue(&mut self, entry: Pending, urgent: bool) {
        self.counters.queue_full.add(1);
        if self.pending.len() >= MAX_PENDING {
            let text = format!("{MAX_PENDING} operations wait for the peer, which takes none");
            return self.fail(Status::new(Code::ResourceExhausted, text));
        }
        if urgent {
            self.pending.push_front(entry);
        } else {
            self.pending.push_back(entry);
        }
    }

    fn fail(&mut self, status: Status) {
        self.broken.get_or_insert(status);
    }

    /// Posts what waits, as far as credits and queue allow, and returns credits that are due.
    pub fn flush(&mut self, fx: &mut dyn Fx) {
        while let Some(front) = self.pending.front_mut() {
            let uses_credit =
                !matches!(front, Pending::Read { .. } | Pending::Write { imm: None, .. });
            if uses_credit && self.credits <= RESERVED {
                break;
            }
            let mut returned = 0;
            let posted = match front {
                Pending::Message(bytes) => {
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
                    self.pending.pop_front();
                }
                Err(PostError::QueueFull) => break,
                Err(PostError::Failed(status)) => return self.fail(status),
            }
        }
        self.return_credits(fx);
    }

    /// The longest message that goes as one.
    pub fn room(&self) -> usize {
        let trailer = if self.seal.is_some() { TRAILER } else { 0 };
        self.caps.max_send.saturating_sub(trailer)
    }

    /// Returns credits if a quantum is owed and no message took them along: by `IMM_ACK`, or, since
    /// an immediate has no checksum, by a PONG.
    pub fn return_credits(&mut self, fx: &mut dyn Fx) {
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
        self.fragments.extend_from_slice(bytes);
        Ok(last.then(|| std::mem::take(&mut self.fragments)))
    }
}

/// Posts a message, with its checksum where there are any.
fn post(
    fx: &mut dyn Fx,
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
