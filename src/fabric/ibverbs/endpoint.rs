//! One connection: its queue pair and the account of what is posted on it.

mod ending;
pub(super) mod probe;

use std::collections::VecDeque;

use rdma_sys::{ibv_send_flags, ibv_wc_status, ibv_wr_opcode};

use crate::fabric::{EpId, Event, Mem, PostError, Remote};
use crate::status::{Code, Status};

use super::qp::{Qp, Wqe};
use super::recv::DEPTH;
use super::send::SendPool;
use super::status;
use probe::Probe;

/// SENDs carry this immediate; it tells them from writes.
pub(super) const IMM_MESSAGE: u32 = 0xffff_ffff;
/// Id of the request that is posted last, when the queue pair is in error: requests that had already
/// succeeded, without asking for a completion, make none when the queue is flushed. When this one
/// comes back, all before it have ended.
const MARKER: u64 = 1 << 62;
/// At most this many SENDs and WRITEs without a completion of their own follow each other, and at
/// most this many bytes of WRITEs. A later completion tells of the earlier requests, too.
const SIGNAL_EVERY: u32 = 16;
const SIGNAL_BYTES: u64 = 64 << 10;
/// WRITEs and READs from here on show that a long transfer moves.
const LONG: u64 = 64 << 10;

/// What a posted work request was.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// A SEND from this buffer.
    Send(u32),
    /// The one that shows that the path works, from this buffer.
    Probe(u32),
    /// A WRITE of so many bytes.
    Write(u64),
    /// A READ of this range of the peer's memory.
    Read {
        /// First byte.
        addr: u64,
        /// Length.
        len: u64,
    },
}

impl Kind {
    fn name(&self) -> &'static str {
        match self {
            Kind::Send(_) => "send",
            Kind::Probe(_) => "first packet",
            Kind::Write(_) => "write",
            Kind::Read { .. } => "read",
        }
    }
}

struct Posted {
    wr: u64,
    kind: Kind,
}

/// Where an endpoint is in its life.
#[derive(Debug)]
enum State {
    /// Made, not connected.
    New,
    /// `connect` was called, and goes on.
    Connecting,
    /// Operations may be posted.
    Ready,
    /// Ending: the root cause. What is posted is being flushed.
    Failing(Status),
    /// `Event::Down` was reported.
    Down(Status),
}

/// One connection.
pub(super) struct Endpoint {
    id: EpId,
    peer: String,
    local: String,
    /// `None` after the device was lost.
    qp: Option<Qp>,
    qpn: u32,
    /// First packet sequence number sent.
    pub psn: u32,
    /// Index of its completion queue.
    pub cq: usize,
    /// Signs of the peer's life so far: receives, and long WRITEs and READs that ended. The peer's
    /// device acknowledges SENDs by itself.
    pub moved: u64,
    state: State,
    depth: u32,
    /// What holds a slot of the send queue, oldest first; its number in the work request's id.
    posted: VecDeque<Posted>,
    first: u64,
    /// The youngest ones, not yet handed to the device.
    batch: Vec<Wqe>,
    since_signal: u32,
    bytes_since_signal: u64,
    /// A WRITE of the batch is without a completion behind it.
    quiet_write: bool,
    sends: u32,
    reads: u32,
    /// Of the WRITEs and READs under way, and the most that may be.
    bytes: u64,
    max_bytes: u64,
    /// The marker is under way.
    draining: bool,
    /// The root cause is only that it failed; a completion that says why takes its place.
    vague: bool,
    /// While the path is being tried.
    probe: Option<Probe>,
    /// Which of the peer's devices it leads to.
    pub there: u8,
}

impl Endpoint {
    /// A new, unconnected endpoint; `names` are this end's and the peer's. At most `depth` requests and
    /// `max_bytes` of WRITEs and READs are under way.
    pub fn new(
        id: EpId,
        names: (&str, &str),
        qp: Qp,
        cq: usize,
        psn: u32,
        (depth, max_bytes): (u32, u64),
    ) -> Endpoint {
        Endpoint {
            id,
            local: names.0.to_string(),
            peer: names.1.to_string(),
            cq,
            moved: 0,
            qpn: qp.number(),
            qp: Some(qp),
            psn,
            state: State::New,
            depth,
            posted: VecDeque::new(),
            first: 0,
            batch: Vec::new(),
            since_signal: 0,
            bytes_since_signal: 0,
            quiet_write: false,
            sends: 0,
            reads: 0,
            bytes: 0,
            max_bytes,
            draining: false,
            vague: false,
            probe: None,
            there: 0,
        }
    }

    /// Its queue pair, unless the device was lost.
    pub fn qp(&self) -> Option<&Qp> {
        self.qp.as_ref()
    }
    /// Its queue pair's number.
    pub fn qpn(&self) -> u32 {
        self.qpn
    }
    /// The peer's name.
    pub fn peer(&self) -> &str {
        &self.peer
    }
    /// Whether it waits for `connect`.
    pub fn is_new(&self) -> bool {
        matches!(self.state, State::New)
    }
    /// Whether `Event::Down` was reported.
    pub fn is_down(&self) -> bool {
        matches!(self.state, State::Down(_))
    }
    /// It is being connected.
    pub fn connecting(&mut self) {
        self.state = State::Connecting;
    }
    /// Whether it is in error and not all of it was flushed.
    pub fn draining(&self) -> bool {
        self.draining
    }

    fn admit(&self) -> Result<(), PostError> {
        match &self.state {
            State::Ready if self.posted.len() < self.depth as usize => Ok(()),
            State::Ready => Err(PostError::QueueFull),
            State::New | State::Connecting => Err(PostError::Failed(Status::new(
                Code::FailedPrecondition,
                text!("endpoint to {} is not connected", self.peer),
            ))),
            State::Failing(s) | State::Down(s) => {
                Err(PostError::Failed(status::down(&self.peer, s)))
            }
        }
    }

    /// The same for a WRITE or READ. What is under way is limited, so that a message posted later
    /// does not wait for long.
    fn admit_bytes(&mut self, len: u64) -> Result<(), PostError> {
        self.admit()?;
        if self.bytes > 0 && self.bytes + len > self.max_bytes {
            return Err(PostError::QueueFull);
        }
        self.bytes += len;
        Ok(())
    }

    fn push(&mut self, wqe: Wqe, posted: Posted) {
        self.batch.push(wqe);
        self.posted.push_back(posted);
    }

    fn next_id(&self) -> u64 {
        self.first + self.posted.len() as u64
    }

    /// Prepares a SEND. Its first use of the batch is reported by `true`.
    pub fn send(&mut self, parts: &[&[u8]], pool: &mut SendPool) -> Result<bool, PostError> {
        self.admit()?;
        if self.sends >= DEPTH {
            return Err(PostError::QueueFull);
        }
        let len: usize = parts.iter().map(|p| p.len()).sum();
        let buffer = pool.fill(parts).map_err(PostError::Failed)?;
        let mut w = Wqe::new(ibv_wr_opcode::IBV_WR_SEND_WITH_IMM, self.next_id());
        w.immediate(IMM_MESSAGE);
        w.local(pool.address(buffer) as u64, len as u32, pool.lkey(buffer));
        if len > 0 && len <= self.inline_max() {
            w.flag(ibv_send_flags::IBV_SEND_INLINE);
        }
        self.signal(&mut w, false);
        let first = self.batch.is_empty();
        self.push(w, Posted { wr: 0, kind: Kind::Send(buffer) });
        self.sends += 1;
        Ok(first)
    }

    /// Asks for a completion where one is due. A request without keeps its slot until a later one
    /// completes; so no more than a quarter of the queue may be without.
    fn signal(&mut self, w: &mut Wqe, must: bool) {
        self.since_signal += 1;
        let due = self.since_signal >= (self.depth / 4).clamp(1, SIGNAL_EVERY);
        if due || must || self.bytes_since_signal >= SIGNAL_BYTES {
            w.flag(ibv_send_flags::IBV_SEND_SIGNALED);
            self.since_signal = 0;
            self.bytes_since_signal = 0;
            self.quiet_write = false;
        }
    }

    fn inline_max(&self) -> usize {
        self.qp.as_ref().map_or(0, |q| q.max_inline() as usize)
    }

    /// Prepares a WRITE; see `send`.
    pub fn write(
        &mut self,
        wr: u64,
        local: Mem,
        remote: Remote,
        imm: Option<u32>,
        inline: bool,
    ) -> Result<bool, PostError> {
        self.admit_bytes(local.len())?;
        let opcode = match imm {
            Some(_) => ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
            None => ibv_wr_opcode::IBV_WR_RDMA_WRITE,
        };
        let mut w = Wqe::new(opcode, self.next_id());
        w.immediate(imm.unwrap_or(0));
        w.remote(remote.addr, remote.rkey);
        w.local(local.addr(), local.len() as u32, local.lkey());
        // `flush` makes sure that a completion follows.
        self.quiet_write = true;
        self.bytes_since_signal += local.len();
        self.signal(&mut w, false);
        if inline && !local.is_empty() && local.len() <= self.inline_max() as u64 {
            w.flag(ibv_send_flags::IBV_SEND_INLINE);
        }
        if self.reads > 0 && self.overlaps_read(remote.addr, local.len()) {
            // The device may start a write before an earlier read has fetched its data.
            w.flag(ibv_send_flags::IBV_SEND_FENCE);
        }
        let first = self.batch.is_empty();
        self.push(w, Posted { wr, kind: Kind::Write(local.len()) });
        Ok(first)
    }

    fn overlaps_read(&self, start: u64, n: u64) -> bool {
        let end = start.saturating_add(n);
        self.posted.iter().any(|p| match p.kind {
            Kind::Read { addr, len } => addr < end && start < addr.saturating_add(len),
            _ => false,
        })
    }

    /// Whether the peer's device has acknowledged all that was posted. Where no completion is due that would tell, an
    /// empty WRITE asks for one.
    pub fn has_delivered(&mut self) -> bool {
        if !matches!(self.state, State::Ready) || self.posted.is_empty() {
            return true;
        }
        if self.since_signal > 0 {
            // SAFETY: zero bytes are never touched.
            let nothing = unsafe { Mem::new(0, 0, 0) };
            // A queue without room for it has a completion due.
            let _ = self.write(
                crate::engine::WR_ACK,
                nothing,
                Remote { addr: 0, rkey: 0 },
                None,
                false,
            );
        }
        false
    }

    /// Prepares a READ; see `send`.
    pub fn read(&mut self, wr: u64, local: Mem, remote: Remote) -> Result<bool, PostError> {
        self.admit_bytes(local.len())?;
        let mut w = Wqe::new(ibv_wr_opcode::IBV_WR_RDMA_READ, self.next_id());
        w.remote(remote.addr, remote.rkey);
        w.local(local.addr(), local.len() as u32, local.lkey());
        self.signal(&mut w, true);
        let first = self.batch.is_empty();
        self.push(w, Posted { wr, kind: Kind::Read { addr: remote.addr, len: local.len() } });
        self.reads += 1;
        Ok(first)
    }

    /// Hands the batch to the device.
    pub fn flush(&mut self, pool: &mut SendPool, events: &mut Vec<Event>) {
        let Some(qp) = &self.qp else { return };
        if self.quiet_write
            && let Some(last) = self.batch.last_mut()
        {
            last.flag(ibv_send_flags::IBV_SEND_SIGNALED);
            self.quiet_write = false;
            self.since_signal = 0;
            self.bytes_since_signal = 0;
        }
        // SAFETY: `Mem`'s contract and the pools keep local memory valid until completion.
        let (taken, errno) = unsafe { qp.post(&mut self.batch) };
        self.batch.drain(..taken);
        // ENOMEM: the device's queue is full, though by our account it is not. Later, then.
        if errno != 0 && errno != libc::ENOMEM {
            let e = std::io::Error::from_raw_os_error(errno);
            self.fail(Status::os(format!("posting to {}", self.peer), &e), pool, events);
        }
    }

    /// Whether some of the batch waits.
    pub fn waiting(&self) -> bool {
        !self.batch.is_empty()
    }

    /// Work request `id` completed. Requests complete in order, so all before it have too.
    pub fn completed(
        &mut self,
        id: u64,
        error: Option<(u32, u32)>,
        pool: &mut SendPool,
        events: &mut Vec<Event>,
    ) {
        if id == MARKER {
            self.draining = false;
            self.settle(pool, events);
            return;
        }
        if id < self.first || id >= self.next_id() {
            return;
        }
        while self.first < id {
            self.retire(Ok(()), pool, events);
        }
        let Some((code, vendor)) = error else {
            self.retire(Ok(()), pool, events);
            return;
        };
        let what = self.posted.front().map_or("operation", |p| p.kind.name());
        let own = status::completion(code, vendor, what, &self.local, &self.peer);
        if self.vague && code != ibv_wc_status::IBV_WC_WR_FLUSH_ERR {
            self.vague = false;
            if matches!(self.state, State::Failing(_)) {
                self.state = State::Failing(own.clone());
                return self.retire(Err(own), pool, events);
            }
        }
        let result = match &self.state {
            State::Failing(root) | State::Down(root) => status::flushed(root),
            _ => own.clone(),
        };
        self.retire(Err(result), pool, events);
        self.fail(own, pool, events);
    }

    /// Ends the oldest posted request.
    fn retire(&mut self, result: Result<(), Status>, pool: &mut SendPool, events: &mut Vec<Event>) {
        let Some(p) = self.posted.pop_front() else { return };
        self.first += 1;
        match p.kind {
            Kind::Send(buffer) => {
                pool.put(buffer);
                self.sends -= 1;
                return;
            }
            Kind::Probe(buffer) => {
                pool.put(buffer);
                self.sends -= 1;
                if result.is_ok() {
                    self.probe_acknowledged(events);
                }
                return;
            }
            Kind::Read { len, .. } => {
                self.reads -= 1;
                self.bytes -= len;
                self.moved += u64::from(len >= LONG);
            }
            Kind::Write(len) => {
                self.bytes -= len;
                self.moved += u64::from(len >= LONG);
            }
        }
        events.push(Event::Done { ep: self.id, wr: p.wr, result });
    }
}
