//! A connected endpoint: its two rings and everything under way on it; the posting side.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use smallvec::SmallVec;

use super::Core;
use super::exports::PeerExports;
use super::pools::PeerPools;
use super::ring::{Consumer, Control, MAX_PAYLOAD, MAX_WRITES, NoRoom, Producer, load32, load64};
use super::socket;
use super::stream::{Job, StreamIn, StreamOut};
use super::sys;
use super::tuning::{Timed, Tuning, Way};
use super::wire::{self, Message, Source, Write, kind, outcome};
use crate::fabric::{EpId, Event, Mem, PostError, Remote};
use crate::status::{Code, Reason, Status};

/// Largest SEND.
pub(crate) const MAX_SEND: usize = 12 * 1024;
/// Largest WRITE or READ.
pub(crate) const MAX_RDMA: u64 = 1 << 40;
const _: () = assert!(MAX_SEND <= MAX_PAYLOAD);

/// A WRITE that the peer has not answered yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    wr: u64,
    remote: Remote,
    len: u64,
    /// Taken where there is a choice of ways.
    timed: Option<Timed>,
}

/// How a READ is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// We copy out of the peer's memory.
    Direct,
    /// The peer is to be asked.
    Ask,
    /// It has been asked; the number among the READs asked for.
    Asked(u64),
}

/// A READ under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) wr: u64,
    pub(crate) local: u64,
    pub(crate) remote: Remote,
    pub(crate) len: u64,
    pub(crate) done: u64,
    pub(crate) how: How,
}

/// A WRITE of the peer that is being carried out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inbound {
    /// Destination.
    pub(crate) to: Write,
    /// Whether it has an immediate.
    pub(crate) has_imm: bool,
    /// Where its content is.
    pub(crate) from: Source,
    /// Which of the places (`wire::FROM_*`).
    pub(crate) place: u8,
    /// Bytes in place from the start.
    pub(crate) front: u64,
    /// From here to the end it is in place, too.
    pub(crate) back: u64,
    /// When the stream last brought something.
    pub(crate) fed: Option<Instant>,
}

/// A connected endpoint.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) tx: Producer,
    pub(crate) rx: Consumer,
    pub(crate) exports: PeerExports,
    pub(crate) ep: EpId,
    /// Something was published that a sleeping peer should know.
    pub(crate) dirty: bool,
    /// We wait for room for a record of this length in our ring; 0: we do not.
    pub(crate) starved: usize,
    /// We can read the peer's memory; it can read ours.
    pub(crate) reads_peer: bool,
    pub(crate) peer_reads: bool,
    pub(crate) writes: VecDeque<Posted>,
    pub(crate) answered: u64,
    pub(crate) failures: u64,
    pub(crate) inbound: Option<Inbound>,
    pub(crate) executed: u64,
    pub(crate) failed: u64,
    pub(crate) reads: VecDeque<Reading>,
    pub(crate) out: StreamOut,
    pub(crate) into: StreamIn,
    /// READs that the peer asked for and that have no record yet.
    pub(crate) asks: VecDeque<wire::Ask>,
    /// READs that the peer has asked for, and that we have asked for.
    pub(crate) asks_begun: u64,
    pub(crate) asked: u64,
    /// Those of ours that are not answered.
    pub(crate) asking: usize,
    pub(crate) tuning: Tuning,
    /// Outcomes of such READs that have no record yet.
    pub(crate) ends: VecDeque<u8>,
    pub(crate) pools_sent: SmallVec<[u32; 8]>,
    pub(crate) pools_wanted: SmallVec<[u32; 8]>,
    pub(crate) pools: PeerPools,
    pub(crate) pid: i32,
    pub(crate) pidfd: Option<OwnedFd>,
    pub(crate) sock: OwnedFd,
    pub(crate) peer: Arc<str>,
}

/// What a new link is made of.
pub(crate) struct Parts {
    pub(crate) ep: EpId,
    pub(crate) peer: Arc<str>,
    pub(crate) tx: Producer,
    pub(crate) rx: Consumer,
    pub(crate) exports: PeerExports,
    pub(crate) sock: OwnedFd,
    pub(crate) pid: i32,
    pub(crate) pidfd: Option<OwnedFd>,
    pub(crate) reads_peer: bool,
    pub(crate) peer_reads: bool,
}

impl Link {
    pub(crate) fn new(p: Parts) -> Link {
        Link {
            tx: p.tx,
            rx: p.rx,
            exports: p.exports,
            ep: p.ep,
            dirty: false,
            starved: 0,
            reads_peer: p.reads_peer,
            peer_reads: p.peer_reads,
            writes: VecDeque::new(),
            answered: 0,
            failures: 0,
            inbound: None,
            executed: 0,
            failed: 0,
            reads: VecDeque::new(),
            out: StreamOut::default(),
            into: StreamIn::default(),
            asks: VecDeque::new(),
            asks_begun: 0,
            asked: 0,
            asking: 0,
            tuning: Tuning::default(),
            ends: VecDeque::new(),
            pools_sent: SmallVec::new(),
            pools_wanted: SmallVec::new(),
            pools: PeerPools::default(),
            pid: p.pid,
            pidfd: p.pidfd,
            sock: p.sock,
            peer: p.peer,
        }
    }

    /// The peer's control page.
    pub(crate) fn theirs(&self) -> &Control {
        self.rx.control()
    }

    /// The status of a peer that breaks the rules.
    pub(crate) fn broken(&self, what: &str) -> Status {
        Status::new(Code::Internal, format!("shm: peer {} broke the protocol: {what}", self.peer))
            .because(Reason::RemoteError)
    }

    /// The status of a peer that has left.
    pub(crate) fn gone(&self) -> Status {
        Status::gone(format!("shm: peer {} closed the connection or ended", self.peer))
    }

    /// Whether the process or the connection at the other end is gone; a system call.
    pub(crate) fn is_gone(&self) -> bool {
        sys::hung_up(&self.sock, self.pidfd.as_ref())
    }

    /// Turns a full ring into back-pressure: the peer is told to ring when there is room.
    fn no_room(&mut self, why: NoRoom, len: usize) -> PostError {
        match why {
            NoRoom::Full => {
                self.starved = self.starved.max(len.max(1));
                self.tx.control().starved.store(1, Ordering::Relaxed);
                PostError::QueueFull
            }
            NoRoom::Broken => PostError::Failed(self.broken("ring position")),
        }
    }

    /// A record of this payload was published.
    fn published(&mut self, len: usize) {
        self.dirty = true;
        // A shorter one may have slipped in while a longer one waits.
        if self.starved != 0 && len >= self.starved {
            self.fed();
        }
    }

    /// Whether there is room again for what waited.
    pub(crate) fn has_room_again(&mut self) -> bool {
        let room = self.starved != 0 && self.tx.room(self.starved, self.rx.control()).is_ok();
        if room {
            self.fed();
        }
        room
    }

    fn fed(&mut self) {
        self.starved = 0;
        self.tx.control().starved.store(0, Ordering::Relaxed);
    }

    /// Publishes a record of a kind that only we see; false while there is no room.
    pub(crate) fn record(&mut self, kind: u8, payload: &[u8]) -> Result<bool, Status> {
        let posted = self.tx.reserve(payload.len(), self.rx.control()).map(|mut slot| {
            slot.put(payload);
            slot.publish(kind, 0);
        });
        match posted.map_err(|why| self.no_room(why, payload.len())) {
            Ok(()) => self.published(payload.len()),
            Err(PostError::QueueFull) => return Ok(false),
            Err(PostError::Failed(status)) => return Err(status),
        }
        Ok(true)
    }

    /// Posts a SEND.
    #[inline]
    pub(crate) fn send(&mut self, parts: &[&[u8]]) -> Result<(), PostError> {
        let len: usize = parts.iter().map(|p| p.len()).sum();
        if len > MAX_SEND {
            return Err(PostError::Failed(Status::invalid(format!(
                "shm: SEND of {len} bytes, at most {MAX_SEND} are possible"
            ))));
        }
        match self.tx.reserve(len, self.rx.control()) {
            Ok(mut slot) => {
                parts.iter().for_each(|part| slot.put(part));
                slot.publish(kind::SEND, 0);
            }
            Err(why) => return Err(self.no_room(why, len)),
        }
        self.published(len);
        Ok(())
    }

    /// Posts a WRITE.
    pub(crate) fn write(
        &mut self,
        core: &Core,
        wr: u64,
        local: Mem,
        remote: Remote,
        imm: Option<u32>,
    ) -> Result<(), PostError> {
        let len = local.len();
        check_length("WRITE", len)?;
        // What is read from there is to be read first.
        if self.writes.len() >= core.depth || overlaps_reads(&self.reads, remote, len) {
            return Err(PostError::QueueFull);
        }
        let to = Write { dst: remote.addr, rkey: remote.rkey, imm: imm.unwrap_or(0) };
        let flags = if imm.is_some() { wire::HAS_IMM } else { 0 };
        let timed = if len <= core.policy.inline_max {
            self.write_inline(to, flags, local)?;
            None
        } else {
            self.write_described(core, to, flags, local)?
        };
        self.writes.push_back(Posted { wr, remote, len, timed });
        Ok(())
    }

    /// A WRITE whose content travels in its record.
    fn write_inline(&mut self, to: Write, flags: u8, local: Mem) -> Result<(), PostError> {
        let len = local.len() as usize;
        match self.tx.reserve(Write::LEN + len, self.rx.control()) {
            Ok(mut slot) => {
                slot.put(&to.encode());
                // SAFETY: the contract of Mem: readable until the operation's end.
                unsafe { slot.put_raw(local.addr() as *const u8, len) };
                slot.publish(kind::WRITE_INLINE, flags);
            }
            Err(why) => return Err(self.no_room(why, Write::LEN + len)),
        }
        self.published(Write::LEN + len);
        Ok(())
    }

    /// A WRITE whose record says where the content is.
    fn write_described(
        &mut self,
        core: &Core,
        to: Write,
        flags: u8,
        local: Mem,
    ) -> Result<Option<Timed>, PostError> {
        const LEN: usize = Write::LEN + Source::LEN;
        if let Err(why) = self.tx.room(LEN, self.rx.control()) {
            return Err(self.no_room(why, LEN));
        }
        let (place, from, timed) = self.place(core, local)?;
        match self.tx.reserve(LEN, self.rx.control()) {
            Ok(mut slot) => {
                slot.put(&to.encode());
                slot.put(&from.encode());
                slot.publish(kind::WRITE, flags | place);
            }
            Err(why) => return Err(self.no_room(why, LEN)),
        }
        self.published(LEN);
        if place & wire::FROM_STREAM != 0 {
            let op = self.answered + self.writes.len() as u64;
            self.out.jobs.push_back(Job {
                op,
                addr: local.addr(),
                len: local.len(),
                done: 0,
                rkey: None,
                denied: false,
                optional: place & wire::FROM_PROCESS != 0,
            });
        }
        Ok(timed)
    }

    /// Where the target finds the content.
    fn place(&mut self, core: &Core, local: Mem) -> Result<(u8, Source, Option<Timed>), PostError> {
        let mut from = Source { at: local.addr(), len: local.len(), pool: 0 };
        if core.policy.pool
            && let Some((id, offset)) = core.pools.find(local.addr(), local.len())
            && self.pass_pool(core, id)
        {
            from = Source { at: offset, pool: id, ..from };
            return Ok((wire::FROM_POOL, from, None));
        }
        if !(core.policy.process && self.peer_reads) {
            self.open_stream().map_err(PostError::Failed)?;
            return Ok((wire::FROM_STREAM, from, None));
        }
        if !core.policy.share {
            return Ok((wire::FROM_PROCESS, from, None));
        }
        let timed = self.tuning.choose(local.len(), Instant::now());
        let both = timed.way() == Way::Both && self.open_stream().is_ok();
        let stream = if both { wire::FROM_STREAM } else { 0 };
        Ok((wire::FROM_PROCESS | stream, from, Some(timed)))
    }

    /// Makes sure that the peer has the descriptor of a pool segment of ours.
    pub(crate) fn pass_pool(&mut self, core: &Core, id: u32) -> bool {
        if self.pools_sent.contains(&id) {
            return true;
        }
        let Some((len, fd)) = core.pools.get(id) else { return false };
        let message = Message::Pool { id, len }.encode();
        let sent = socket::send(&self.sock, &message, &[fd.as_raw_fd()]).is_ok();
        if sent {
            self.pools_sent.push(id);
        }
        sent
    }

    /// Makes sure that the peer has our stream segment.
    pub(crate) fn open_stream(&mut self) -> Result<(), Status> {
        if self.out.is_open() {
            return Ok(());
        }
        let failed = |e: std::io::Error| Status::os("shm: stream segment", &e);
        let (map, fd) = StreamOut::create().map_err(failed)?;
        let message = Message::Stream { len: map.len() as u64 }.encode();
        socket::send(&self.sock, &message, &[fd.as_raw_fd()]).map_err(failed)?;
        self.out.open(map);
        Ok(())
    }

    /// Posts a READ.
    pub(crate) fn read(
        &mut self,
        core: &Core,
        wr: u64,
        local: Mem,
        remote: Remote,
    ) -> Result<(), PostError> {
        let len = local.len();
        check_length("READ", len)?;
        // What was written there is to be in place first.
        let overlaps = |p: &Posted| ranges_overlap(p.remote.addr, p.len, remote.addr, len);
        if self.reads.len() >= core.depth || self.writes.iter().any(overlaps) {
            return Err(PostError::QueueFull);
        }
        let direct = core.policy.pool || (core.policy.process && self.reads_peer);
        let how = if direct { How::Direct } else { How::Ask };
        self.reads.push_back(Reading { wr, local: local.addr(), remote, len, done: 0, how });
        Ok(())
    }

    /// Reports the WRITEs that the peer has answered.
    pub(crate) fn collect(&mut self, events: &mut Vec<Event>) -> Result<bool, Status> {
        let executed = load64(&self.theirs().executed);
        if executed == self.answered {
            return Ok(false);
        }
        let count = executed.wrapping_sub(self.answered);
        if count > self.writes.len() as u64 {
            return Err(self.broken("number of executed writes"));
        }
        let look = load64(&self.theirs().failed) != self.failures;
        // Their sources are not read any more.
        self.out.drop_before(executed);
        for _ in 0..count {
            let index = (self.answered % MAX_WRITES as u64) as usize;
            let code = if look {
                self.theirs().outcome[index].load(Ordering::Relaxed)
            } else {
                outcome::OK
            };
            self.answered += 1;
            let Some(posted) = self.writes.pop_front() else { break };
            if let Some(timed) = posted.timed {
                self.tuning.learn(timed, posted.len, Instant::now());
            }
            self.failures += u64::from(code != outcome::OK);
            let result = self.result("WRITE", code, posted.remote, posted.len);
            events.push(Event::Done { ep: self.ep, wr: posted.wr, result });
        }
        Ok(true)
    }

    /// The result of an operation on the peer's memory.
    pub(crate) fn result(
        &self,
        what: &str,
        code: u8,
        remote: Remote,
        len: u64,
    ) -> Result<(), Status> {
        if code == outcome::OK {
            return Ok(());
        }
        let peer = &self.peer;
        let text = format!("shm: {what} of {len} bytes at {:#x} of peer {peer}", remote.addr);
        Err(if code == outcome::DENIED {
            let text = format!("{text}: key {:#010x} does not allow it", remote.rkey);
            Status::new(Code::PermissionDenied, text).because(Reason::RemoteError)
        } else {
            Status::internal(format!("{text}: the memory at one end cannot be accessed"))
        })
    }

    /// Ends everything under way, and tells the peer that nothing of it counts any more.
    pub(crate) fn fail(&mut self, status: &Status, events: &mut Vec<Event>) {
        self.close();
        let wrs = self.writes.drain(..).map(|w| w.wr);
        let wrs = wrs.chain(self.reads.drain(..).map(|r| r.wr));
        events.extend(wrs.map(|wr| Event::Done { ep: self.ep, wr, result: Err(status.clone()) }));
        self.out.jobs.clear();
        self.inbound = None;
        events.push(Event::Down { ep: self.ep, status: status.clone() });
    }

    /// Tells the peer that nothing that we posted counts any more.
    pub(crate) fn close(&mut self) {
        self.tx.control().closed.store(1, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    /// Whether the peer has left this link.
    pub(crate) fn peer_closed(&self) -> bool {
        // What was copied before counts as copied before this look.
        std::sync::atomic::fence(Ordering::SeqCst);
        load32(&self.theirs().closed) != 0
    }
}

/// Whether two ranges share a byte.
pub(crate) fn ranges_overlap(a: u64, a_len: u64, b: u64, b_len: u64) -> bool {
    a_len > 0 && b_len > 0 && a < b.saturating_add(b_len) && b < a.saturating_add(a_len)
}

fn overlaps_reads(reads: &VecDeque<Reading>, remote: Remote, len: u64) -> bool {
    reads.iter().any(|r| ranges_overlap(r.remote.addr, r.len, remote.addr, len))
}

fn check_length(what: &str, len: u64) -> Result<(), PostError> {
    if len <= MAX_RDMA {
        return Ok(());
    }
    Err(PostError::Failed(Status::invalid(format!(
        "shm: {what} of {len} bytes, at most {MAX_RDMA} are possible"
    ))))
}
