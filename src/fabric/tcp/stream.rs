//! One endpoint without its socket: operations in, a stream of bytes out; a stream of bytes in,
//! events out. Nothing here makes a system call.

use std::collections::VecDeque;
use std::io;

use super::rx::{Cx, Rx};
use super::tx::Tx;
use super::{MAX_RDMA, frame};
use crate::fabric::regions::Refusal;
use crate::fabric::{EpId, Event, Mem, PostError, Remote};
use crate::room::{self, Grows};
use crate::status::{Code, Reason, Status};

/// A WRITE without acknowledgement.
struct WriteOp {
    wr: u64,
    seq: u32,
    len: u64,
    remote: Remote,
}

/// A READ without a complete answer.
pub(super) struct ReadOp {
    wr: u64,
    pub seq: u32,
    /// Where the next bytes of the answer go.
    pub local: u64,
    /// Bytes of the answer still missing.
    pub left: u64,
    len: u64,
    remote: Remote,
}

/// One end of a connection, without its socket.
pub struct Stream {
    pub(super) ep: EpId,
    pub(super) peer: String,
    pub(super) rx: Rx,
    /// Output.
    pub tx: Tx,
    depth: usize,
    writes: VecDeque<WriteOp>,
    pub(super) reads: VecDeque<ReadOp>,
    write_seq: u32,
    read_seq: u32,
}

fn overlap(a: u64, alen: u64, b: u64, blen: u64) -> bool {
    a < b.saturating_add(blen) && b < a.saturating_add(alen)
}

impl Stream {
    /// A fresh end; at most `depth` WRITEs and as many READs may be under way.
    pub fn new(ep: EpId, peer: &str, depth: usize) -> Stream {
        Stream {
            ep,
            peer: peer.to_owned(),
            rx: Rx::default(),
            tx: Tx::default(),
            depth,
            writes: VecDeque::new(),
            reads: VecDeque::new(),
            write_seq: 0,
            read_seq: 0,
        }
    }

    /// Queues a SEND.
    pub fn send(&mut self, parts: &[&[u8]]) -> Result<(), PostError> {
        let len: usize = parts.iter().map(|p| p.len()).sum();
        if len > frame::MAX_SEND {
            return Err(PostError::Failed(Status::invalid(text!(
                "message of {len} bytes to peer '{}'; at most {} are allowed",
                self.peer,
                frame::MAX_SEND
            ))));
        }
        self.tx.send(parts, len)
    }

    fn check(&self, what: &str, queued: usize, local: Mem) -> Result<(), PostError> {
        if local.len() > MAX_RDMA || local.addr().checked_add(local.len()).is_none() {
            return Err(PostError::Failed(Status::invalid(text!(
                "{what} of {} bytes at {:#x} with peer '{}'; at most {MAX_RDMA} are allowed",
                local.len(),
                local.addr(),
                self.peer
            ))));
        }
        if local.addr() == 0 && !local.is_empty() {
            return Err(PostError::Failed(Status::invalid(text!(
                "{what} of {} bytes with local address 0",
                local.len()
            ))));
        }
        if queued >= self.depth { Err(PostError::QueueFull) } else { Ok(()) }
    }

    /// Queues a WRITE.
    pub fn write(
        &mut self,
        wr: u64,
        local: Mem,
        remote: Remote,
        imm: Option<u32>,
    ) -> Result<(), PostError> {
        self.check("WRITE", self.writes.len(), local)?;
        if !(self.writes.fits(1) && self.tx.fits()) {
            return Err(PostError::Failed(room::none(size_of::<WriteOp>(), "a WRITE")));
        }
        let (seq, len) = (self.write_seq, local.len());
        let fence = self.fence(remote, len);
        self.write_seq = seq.wrapping_add(1);
        self.writes.push_back(WriteOp { wr, seq, len, remote });
        self.tx.write(seq, local.addr(), len, remote.addr, remote.rkey, imm, fence);
        Ok(())
    }

    /// Queues a WRITE of content that is copied.
    pub fn write_copied(
        &mut self,
        wr: u64,
        content: &[u8],
        remote: Remote,
        imm: Option<u32>,
    ) -> Result<(), PostError> {
        let (seq, len) = (self.write_seq, content.len() as u64);
        if len > u64::from(frame::CHUNK)
            || self.writes.len() >= self.depth
            || self.fence(remote, len).is_some()
        {
            return Err(PostError::QueueFull);
        }
        if !self.writes.fits(1) {
            return Err(PostError::Failed(room::none(size_of::<WriteOp>(), "a WRITE")));
        }
        self.tx.write_copied(seq, content, remote.addr, remote.rkey, imm)?;
        self.write_seq = seq.wrapping_add(1);
        self.writes.push_back(WriteOp { wr, seq, len, remote });
        Ok(())
    }

    /// The answer to a READ is taken while later frames arrive, so a WRITE to its source waits: for this READ.
    fn fence(&self, remote: Remote, len: u64) -> Option<u32> {
        let mut reads = self.reads.iter().rev();
        reads.find(|r| overlap(r.remote.addr, r.len, remote.addr, len)).map(|r| r.seq)
    }

    /// Queues a READ.
    pub fn read(&mut self, wr: u64, local: Mem, remote: Remote) -> Result<(), PostError> {
        self.check("READ", self.reads.len(), local)?;
        if !(self.reads.fits(1) && self.tx.fits()) {
            return Err(PostError::Failed(room::none(size_of::<ReadOp>(), "a READ")));
        }
        let (seq, len) = (self.read_seq, local.len());
        self.read_seq = seq.wrapping_add(1);
        self.reads.push_back(ReadOp { wr, seq, local: local.addr(), left: len, len, remote });
        self.tx.read(seq, remote.addr, len, remote.rkey);
        Ok(())
    }

    /// Whether a WRITE is not wholly with the socket.
    pub fn reads_sources(&self) -> bool {
        self.writes.len() > self.tx.sent_writes
    }

    /// Makes frames for the socket; false: memory lacks.
    pub fn fill(&mut self, ack_alone: bool) -> bool {
        self.tx.fill(self.reads.front().map(|r| r.seq), ack_alone)
    }

    /// The peer acknowledged all WRITEs up to `seq`, and refused that one if `refused`.
    pub(super) fn acked(
        &mut self,
        seq: u32,
        refused: Option<Refusal>,
        cx: &mut Cx<'_>,
    ) -> Result<(), Status> {
        // Only what was sent as a whole can be acknowledged: its source may be reused from now on.
        let known = self.writes.iter().take(self.tx.sent_writes).any(|w| w.seq == seq);
        while known && !self.writes.is_empty() {
            cx.fits()?;
            let Some(w) = self.writes.pop_front() else { break };
            self.tx.sent_writes -= 1;
            let last = w.seq == seq;
            let result = match refused.filter(|_| last) {
                None => Ok(()),
                Some(r) => Err(r.status("WRITE", &self.peer, w.remote.addr, w.len, w.remote.rkey)),
            };
            cx.events.push(Event::Done { ep: self.ep, wr: w.wr, result });
            if last {
                return Ok(());
            }
        }
        Err(self.malformed("an acknowledgement of a WRITE that was not sent"))
    }

    /// The answer to the oldest READ is complete, or refused.
    pub(super) fn answered(
        &mut self,
        seq: u32,
        refused: Option<Refusal>,
        cx: &mut Cx<'_>,
    ) -> Result<(), Status> {
        cx.fits()?;
        match self.reads.front() {
            Some(r) if r.seq == seq && (r.left == 0 || refused.is_some()) => {}
            _ => return Err(self.malformed("the end of an answer that was not under way")),
        }
        if let Some(r) = self.reads.pop_front() {
            let (addr, rkey) = (r.remote.addr, r.remote.rkey);
            let result = match refused {
                None => Ok(()),
                Some(why) => Err(why.status("READ", &self.peer, addr, r.len, rkey)),
            };
            cx.events.push(Event::Done { ep: self.ep, wr: r.wr, result });
        }
        Ok(())
    }

    /// Reports every operation under way as failed, then the endpoint as down.
    pub fn fail(&mut self, status: Status, ends: usize, events: &mut Vec<Event>) {
        let writes = self.writes.drain(..).map(|w| w.wr);
        for wr in writes.chain(self.reads.drain(..).map(|r| r.wr)) {
            // The end of the endpoint, for which there is room, ends them too.
            if events.fits(ends) {
                events.push(Event::Done { ep: self.ep, wr, result: Err(status.clone()) });
            }
        }
        self.tx = Tx::default();
        self.rx = Rx::default();
        events.push(Event::Down { ep: self.ep, status });
    }

    pub(super) fn gone(&self, why: &str) -> Status {
        Status::gone(text!("connection to peer '{}' ended: {why}", self.peer))
    }

    /// A system call on the socket failed while content was `moved`: "read", to be sent, or "written", as it came.
    pub(super) fn broke(&self, e: &io::Error, moved: &str) -> Status {
        if e.raw_os_error() != Some(libc::EFAULT) {
            return self.gone(&e.to_string());
        }
        let what = match moved {
            "read" => "the source of content that was being sent",
            _ => "the destination of content that was coming",
        };
        let text = text!(
            "connection to peer '{}' ended: memory of the application at this end, {what}, could not be {moved} ({e}): \
             it is not mapped, or may not be {moved}",
            self.peer
        );
        Status::new(Code::Unavailable, text).because(Reason::LocalError)
    }

    pub(super) fn malformed(&self, what: &str) -> Status {
        Status::new(
            Code::DataLoss,
            text!("connection to peer '{}' closed, it sent what it may not: {what}", self.peer),
        )
    }
}
