//! What the application does with pairs and buffers.

use super::{
    Buffer, OnBuffer, Pair, PairState, Send, Stage, Step, Way, buffer_of_pair, of_buffer, of_slot,
};
use crate::engine::front::rendezvous::public_id;
use crate::engine::{Engine, Fx};
use crate::limits::{GRANTS, PAIR_SENDS};
use crate::room::Grows;
use crate::status::{Code, Status};

/// Memory for a slot.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// Which way it goes.
    pub way: Way,
    /// The slot.
    pub slot: u64,
    /// Address.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
}

/// A part of a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Where it begins.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// The other end of a pair, as its address says.
#[derive(Clone, Copy, Debug)]
pub struct Connecting {
    /// Its manager.
    pub peer: u32,
    /// Its token.
    pub token: u64,
}

/// What is known of a pair.
#[derive(Clone, Debug)]
pub struct PairFacts {
    /// The rank that it was made for.
    pub rank: u64,
    /// Where it stands.
    pub state: PairState,
    /// The other end's manager, if it is known.
    pub peer: Option<u32>,
    /// Its token.
    pub token: u64,
    /// Buffers.
    pub buffers: usize,
    /// Sends that have not ended.
    pub sends: usize,
}

fn full(what: &str, n: usize) -> Status {
    Status::new(Code::ResourceExhausted, text!("{n} {what} are there: no room for more"))
}

impl Engine {
    /// Makes one end of a pair. `token`: its name on the wire, drawn at random. `timeout`: how long a send waits for its
    /// slot, nanoseconds; `None`: the manager's.
    pub fn pair_create(
        &mut self,
        rank: u64,
        token: u64,
        timeout: Option<u64>,
    ) -> Result<u64, Status> {
        if self.closing {
            return Err(Self::ending());
        }
        let pairs = &mut self.pairs;
        let n = pairs.pairs.len();
        if !pairs.by_token.fits(1) || token == 0 || pairs.by_token.contains_key(&token) {
            return Err(full("pairs", n));
        }
        let vacancy = pairs.pairs.vacancy().ok_or_else(|| full("pairs", n))?;
        let id = public_id(self.next_id, vacancy.index());
        self.next_id += 1;
        let index = vacancy.fill(Pair {
            id,
            rank,
            token,
            timeout: timeout.unwrap_or(self.settings.timeout),
            state: PairState::Created,
            peer: None,
            remote: 0,
            told: None,
            heard: None,
            lost: None,
            mute: None,
            targets: Default::default(),
            slots: Default::default(),
            granted: 0,
            regions: 0,
            going: None,
            behind: Default::default(),
            all: Default::default(),
            buffers: 0,
            sends: 0,
            unheard: 0,
            released: false,
        });
        pairs.by_token.insert(token, index);
        Ok(id)
    }

    /// What is known of a pair.
    pub fn pair_facts(&self, id: u64) -> Result<PairFacts, Status> {
        let index = self.pairs.pair_by_id(id)?;
        let p = self.pairs.pairs.get(index).ok_or_else(Self::ending)?;
        let (rank, token, peer, state) = (p.rank, p.token, p.peer, p.state.clone());
        Ok(PairFacts { rank, state, peer, token, buffers: p.buffers, sends: p.sends })
    }

    /// How many sends of a pair may still read their memory.
    pub fn pair_reading(&self, fx: &impl Fx, id: u64) -> Result<usize, Status> {
        let pairs = &self.pairs;
        let p = pairs.pairs.get(pairs.pair_by_id(id)?).ok_or_else(Self::ending)?;
        let (mut count, mut asked) = (0, None);
        let mut reads_sources = |ch| match asked {
            Some((of, reads)) if of == ch => reads,
            _ => {
                let waits = self.channels.get(ch).is_some_and(|c| c.has_pending());
                let reads = waits || fx.reads_sources(ch);
                asked = Some((ch, reads));
                reads
            }
        };
        let mut buffer = p.all.first().filter(|_| p.sends > 0);
        while let Some(b) = buffer.and_then(|index| pairs.buffers.get(index)) {
            let mut send = b.sends.first();
            while let Some(s) = send.and_then(|index| pairs.sends.get(index)) {
                count += usize::from(match s.step {
                    Step::Waiting | Step::Hashing { .. } => true,
                    Step::Writing { ch, .. } => !s.copied && reads_sources(ch),
                    Step::Failed { .. } => false,
                });
                send = s.of_buffer.next();
            }
            buffer = b.of_pair.next();
        }
        Ok(count)
    }

    /// Begins to connect a pair to its other end. Again for the same one is nothing.
    pub fn pair_connect(
        &mut self,
        fx: &mut impl Fx,
        id: u64,
        to: Connecting,
    ) -> Result<(), Status> {
        let index = self.pairs.pair_by_id(id)?;
        let Some(p) = self.pairs.pairs.get_mut(index) else { return Ok(()) };
        match &p.state {
            PairState::Broken(status) => return Err(status.clone()),
            PairState::Created => {}
            _ if p.peer == Some(to.peer) && p.remote == to.token => return Ok(()),
            _ => {
                let text = text!("pair {id} of rank {} is connected elsewhere", p.rank);
                return Err(Status::new(Code::FailedPrecondition, text));
            }
        }
        if to.token == p.token {
            let text = text!("pair {id} cannot be connected to itself");
            return Err(Status::new(Code::InvalidArgument, text));
        }
        (p.state, p.peer, p.remote) = (PairState::Connecting, Some(to.peer), to.token);
        self.peers.keep(to.peer);
        let Some(peer) = self.peers.get_mut(to.peer) else { return Ok(()) };
        peer.pairs += 1;
        match peer.channels.first().copied() {
            Some(ch) => {
                self.pair_hello(fx, index, ch);
                self.settle(fx, ch);
            }
            None => self.want_connection(fx, to.peer),
        }
        Ok(())
    }

    /// Makes a buffer of a pair.
    pub fn buffer_create(
        &mut self,
        fx: &mut impl Fx,
        pair: u64,
        slot: Slot,
        told: OnBuffer,
    ) -> Result<u64, Status> {
        self.admit(fx)?;
        let index = self.pairs.pair_by_id(pair)?;
        let pairs = &mut self.pairs;
        let n = pairs.buffers.len();
        let Some(p) = pairs.pairs.get_mut(index) else { return Err(Self::ending()) };
        if let PairState::Broken(status) = &p.state {
            return Err(status.clone());
        }
        if slot.way == Way::Recv && p.slots.contains_key(&slot.slot) {
            let text =
                text!("slot {} of pair {pair} has a receive buffer: one is allowed", slot.slot);
            return Err(Status::new(Code::AlreadyExists, text));
        }
        if slot.way == Way::Recv && p.slots.len() >= GRANTS {
            let text = text!("pair {pair} has {GRANTS} receive buffers: more are not allowed");
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        let vacancy = if p.slots.fits(1) { pairs.buffers.vacancy() } else { None };
        let vacancy = vacancy.ok_or_else(|| full("buffers", n))?;
        let id = public_id(self.next_id, vacancy.index());
        self.next_id += 1;
        let Slot { way, slot, addr, len } = slot;
        let buffer = vacancy.fill(Buffer {
            id,
            pair: index,
            way,
            slot,
            addr,
            len,
            told,
            stage: Stage::Idle,
            ch: None,
            window: None,
            lasts: false,
            of_pair: Default::default(),
            sends: Default::default(),
            failed: Default::default(),
            failures: 0,
            sent: 0,
            sent_since: 0,
            received: 0,
            broken_told: false,
            under_way: 0,
            calls: 0,
            unchecked: None,
            telling: false,
            released: false,
        });
        p.all.push(&mut pairs.buffers, buffer_of_pair, buffer);
        p.buffers += 1;
        if way == Way::Recv {
            p.slots.insert(slot, buffer);
            if let Some(ch) = p.told {
                let opened = self.open_slot(fx, buffer, ch);
                if opened.is_err() {
                    self.release_buffer(fx, buffer);
                }
                self.settle(fx, ch);
                opened?;
            }
        }
        Ok(id)
    }

    /// Begins to send a part of a buffer into the other end's buffer of the same slot, at `at`. `content`: a copy of the
    /// part, for a provider that takes it so, or nothing.
    pub fn buffer_send(
        &mut self,
        fx: &mut impl Fx,
        id: u64,
        part: Part,
        at: u64,
        content: &[u8],
    ) -> Result<(), Status> {
        let Part { offset, len } = part;
        self.admit(fx)?;
        let buffer = self.pairs.buffer_by_id(id)?;
        if !content.is_empty() && self.send_copied(fx, buffer, part, at, content) {
            return Ok(());
        }
        let pairs = &mut self.pairs;
        let Some(b) = pairs.buffers.get(buffer) else { return Err(Self::ending()) };
        if b.way != Way::Send {
            let text = text!("buffer {id} is a receive buffer: it is not sent from");
            return Err(Status::new(Code::FailedPrecondition, text));
        }
        if offset.checked_add(len).is_none_or(|end| end > b.len) {
            let text = text!("{len} bytes at offset {offset} of buffer {id}, which has {}", b.len);
            return Err(Status::new(Code::OutOfRange, text));
        }
        let (slot, index) = (b.slot, b.pair);
        let Some(p) = pairs.pairs.get_mut(index) else { return Err(Self::ending()) };
        if let Some(status) = p.sends_no_more() {
            return Err(status.clone());
        }
        if p.sends + p.unheard >= PAIR_SENDS {
            let text = text!(
                "{} sends of the pair are under way, and {} have failed and were not waited for: {PAIR_SENDS} are allowed",
                p.sends,
                p.unheard
            );
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        if !p.targets.fits(1) {
            return Err(full("sends", p.sends));
        }
        let target = p.targets.entry(slot).or_default();
        let connected = matches!(p.state, PairState::Connected);
        if let Some(grant) = target.grant.as_ref().filter(|_| connected) {
            check_place(slot, grant.len, at, len)?;
        }
        let (now, n) = (fx.now(), pairs.sends.len());
        let deadline = now.saturating_add(p.timeout);
        let vacancy = pairs.sends.vacancy().ok_or_else(|| full("sends", n))?;
        if !pairs.deadlines.has_timer(vacancy.index()) {
            return Err(crate::room::none(size_of::<Send>(), "a send"));
        }
        let part = Part { offset, len };
        let send = vacancy.fill(Send::new(buffer, part, at, Step::Waiting, now, deadline));
        p.sends += 1;
        if let Some(b) = pairs.buffers.get_mut(buffer) {
            b.under_way += 1;
            b.sends.push(&mut pairs.sends, of_buffer, send);
        }
        self.begin_send(fx, index, slot, send);
        Ok(())
    }

    /// A send has been taken in: it goes, or waits behind others.
    fn begin_send(&mut self, fx: &mut impl Fx, pair: u32, slot: u64, send: u32) {
        let pairs = &mut self.pairs;
        let Some(p) = pairs.pairs.get_mut(pair) else { return };
        let connected = p.is_connected();
        let Some(target) = p.targets.get_mut(&slot) else { return };
        let ch = target.grant.as_ref().filter(|_| connected).map(|grant| grant.ch);
        if ch.is_some() && p.going.is_none() {
            self.go_send(fx, send);
        } else {
            target.waiting.push(&mut pairs.sends, of_slot, send);
            self.send_waits(pair, send, ch.is_some());
        }
        if let Some(ch) = ch {
            self.settle(fx, ch);
        }
    }

    /// A buffer as errors call it: by its slot, the rank of its pair, and the peer.
    pub fn buffer_called(&self, id: u64) -> String {
        let found = self.pairs.buffer_by_id(id).ok().and_then(|at| self.pairs.buffers.get(at));
        let Some(b) = found else { return text!("buffer {id}") };
        let way = if b.way == Way::Send { "send" } else { "receive" };
        let Some(p) = self.pairs.pairs.get(b.pair) else {
            return text!("{way} buffer of slot {}", b.slot);
        };
        let with = match (&p.state, p.peer) {
            (PairState::Created, _) | (_, None) => "whose pair was not connected".to_owned(),
            (PairState::Connecting, peer) => {
                text!("whose pair waits for peer '{}'", self.peer_name(peer))
            }
            (_, peer) => text!("peer '{}'", self.peer_name(peer)),
        };
        format!("{way} buffer of slot {} of rank {}, {with}", b.slot, p.rank)
    }

    /// Address and length of a buffer that a call is about to read without the lock: it is not free until
    /// [`buffer_was_read`](Self::buffer_was_read).
    pub fn buffer_to_read(&mut self, id: u64) -> Result<(u64, u64), Status> {
        let index = self.pairs.buffer_by_id(id)?;
        let b = self.pairs.buffers.get_mut(index).ok_or_else(Self::ending)?;
        b.calls += 1;
        Ok((b.addr, b.len))
    }

    /// The call has read it. It may have been let go meanwhile.
    pub fn buffer_was_read(&mut self, id: u64) {
        let found = self.pairs.buffers.occupant(id as u32).filter(|(_, b)| b.id == id);
        let Some(index) = found.map(|(index, _)| index) else { return };
        if let Some(b) = self.pairs.buffers.get_mut(index) {
            b.calls -= 1;
        }
        self.may_leave(index);
    }

    /// Address and length of a buffer.
    pub fn buffer_memory(&self, id: u64) -> Result<(u64, u64), Status> {
        let index = self.pairs.buffer_by_id(id)?;
        Ok(self.pairs.buffers.get(index).map_or((0, 0), |b| (b.addr, b.len)))
    }
}

/// Whether a send fits into the buffer that it goes to.
pub(super) fn check_place(slot: u64, room: u64, at: u64, len: u64) -> Result<(), Status> {
    if at.checked_add(len).is_some_and(|end| end <= room) {
        return Ok(());
    }
    let text = text!(
        "{len} bytes at remote offset {at} of slot {slot}: the buffer there has {room} bytes"
    );
    Err(Status::new(Code::OutOfRange, text))
}
