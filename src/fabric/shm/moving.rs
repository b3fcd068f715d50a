//! The copies of a link: what each is of, and what follows when it has been made.
//!
//! Everything is checked when a copy is built, under the driver's lock, and again when it has ended,
//! since a region may have been closed meanwhile: then it counts as not made.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;

use super::Core;
use super::link::Link;
use super::operations::How;
use super::ring::Header;
use super::wire::{self, Write, outcome};
use crate::fabric::moves::{Move, Moved};
use crate::fabric::{Access, EpId, Event};
use crate::status::Status;

/// The copies of an adapter, see [`crate::fabric::moves`]. One of each kind is under way on an
/// endpoint at most; what it is of is checked when it is taken, not when it was found.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// They are left to the caller.
    pub(super) left: bool,
    /// Found, and not taken yet.
    pub(super) wanted: VecDeque<(EpId, Kind)>,
    /// This kind is being taken.
    pub(super) taking: Option<Kind>,
    /// It is this.
    pub(super) taken: Option<Move>,
}

/// The three kinds of copies that an endpoint makes, each in its own order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Content of the peer's WRITEs, and out of its stream.
    In = 0,
    /// Content of our READs.
    Read = 1,
    /// Into our stream.
    Out = 2,
}

impl Kind {
    pub(super) const ALL: [Kind; 3] = [Kind::In, Kind::Read, Kind::Out];
}

impl Moves {
    /// A post has left something to be looked at, which a poll would find. Whoever drives may sleep: as a copy that waits it is told.
    pub(super) fn want(&mut self, ep: EpId, kind: Kind) {
        if self.left && !self.wanted.contains(&(ep, kind)) {
            self.wanted.push_back((ep, kind));
        }
    }

    /// A copy can be made. True: it is to be built now; otherwise it is remembered.
    pub(super) fn begin(&mut self, ep: EpId, kind: Kind) -> bool {
        let now = self.taking == Some(kind) && self.taken.is_none();
        if !now && !self.wanted.contains(&(ep, kind)) {
            self.wanted.push_back((ep, kind));
        }
        now
    }
}

/// What a copy that is being made is of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Running {
    /// The content in a record, as it was when it was looked at.
    Inline { header: Header, to: Write },
    /// The WRITE under way, from the front.
    Front { process: bool },
    /// The same, from here to its back, out of the peer's memory.
    Back { at: u64, len: u64 },
    /// The same, out of the stream.
    Slots,
    /// A READ that we asked for, out of the stream.
    Answer { number: u64 },
    /// A READ that we carry out; `seq`: the last change of the peer's region.
    Piece { id: u64, seq: u32, process: bool },
    /// The same of one that both ends copy, out of the stream.
    Fed { id: u64, seq: u32 },
    /// The same, from here to its back, out of the owner's memory.
    Aside { id: u64, seq: u32, at: u64, len: u64 },
    /// Into our stream.
    Fill { op: u64, done: u64 },
}

impl Running {
    /// Whether it takes slots of the peer's stream.
    fn takes_slots(&self) -> bool {
        matches!(self, Running::Slots | Running::Answer { .. } | Running::Fed { .. })
    }
}

/// What a look into the peer's memory came to.
pub(super) enum Read {
    /// So many bytes.
    Bytes(u64),
    /// The memory at one end cannot be accessed.
    Fault,
    /// The peer's memory can be read no longer.
    Refused,
}

impl Link {
    /// Whether a copy of this kind is being made.
    pub(crate) fn is_running(&self, kind: Kind) -> bool {
        self.running[kind as usize].is_some()
    }

    /// Whether a copy takes slots of the peer's stream, of which nothing is known before it has ended.
    pub(super) fn is_taking_slots(&self) -> bool {
        self.running.iter().flatten().any(Running::takes_slots)
    }

    /// A copy can be made: builds it if it is being looked for, otherwise it is remembered.
    pub(crate) fn begin(
        &mut self,
        core: &mut Core,
        kind: Kind,
        running: Running,
        build: impl FnOnce(&Link) -> Move,
    ) {
        if core.moves.begin(self.ep, kind) {
            let built = build(self);
            self.running[kind as usize] = Some(running);
            core.moves.taken = Some(built);
        }
    }

    /// Looks for a copy of this kind.
    pub(crate) fn advance(
        &mut self,
        core: &mut Core,
        kind: Kind,
        events: &mut Vec<Event>,
    ) -> Result<(), Status> {
        match kind {
            Kind::In => self.receive(core, 0, events),
            Kind::Read => self.advance_reads(core, events),
            Kind::Out => self.send_out(core),
        }
        .map(drop)
    }

    /// A copy has been made, or failed.
    pub(crate) fn moved(
        &mut self,
        core: &mut Core,
        done: Moved,
        events: &mut Vec<Event>,
    ) -> Result<(), Status> {
        let Some(&kind) = Kind::ALL.get(done.what as usize) else { return Ok(()) };
        let Some(running) = self.running[kind as usize].take() else { return Ok(()) };
        match running {
            Running::Inline { header, to } => self.inline_moved = Some((header, to)),
            Running::Front { process } => self.front_moved(done.result, process, events)?,
            Running::Back { at, len } => self.back_moved(done.result, at, len, events)?,
            Running::Slots => {
                let n = self.took_slots(done.result);
                if let Some(w) = &mut self.inbound {
                    (w.front, w.fed) = (w.front + n, None);
                }
            }
            Running::Answer { number } => {
                let (n, number) = (self.took_slots(done.result), How::Asked(number));
                if let Some(read) = self.reads.iter_mut().find(|r| r.how == number) {
                    read.done += n;
                }
            }
            Running::Piece { id, seq, process } => {
                self.piece_moved(done.result, id, seq, process, events)?
            }
            Running::Fed { id, seq } => {
                let n = self.took_slots(done.result);
                self.fed_moved(id, seq, n);
            }
            Running::Aside { id, seq, at, len } => {
                self.aside_moved(done.result, id, seq, (at, len))?
            }
            Running::Fill { op, done: from } => self.slots_filled(core, op, from, done.result),
        }
        // Nobody else writes it; a locked instruction would wait until all that was copied has left this processor.
        let moved = &self.tx.control().moved;
        moved.store(moved.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.advance(core, kind, events)
    }

    /// What came out of the peer's memory. One that allowed it may forbid it at any time: by other rights, by a filter of system calls.
    pub(super) fn out_of_process(&mut self, result: io::Result<usize>) -> Result<Read, Status> {
        match result {
            Ok(0) => Ok(Read::Fault),
            Ok(n) => Ok(Read::Bytes(n as u64)),
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Err(self.gone()),
            Err(_) if self.is_gone() => Err(self.gone()),
            Err(_) => {
                self.process = None;
                Ok(Read::Refused)
            }
        }
    }

    fn front_moved(
        &mut self,
        result: io::Result<usize>,
        process: bool,
        events: &mut Vec<Event>,
    ) -> Result<(), Status> {
        let read = match result {
            Ok(n) if !process => Read::Bytes(n as u64),
            other => self.out_of_process(other)?,
        };
        match (read, &mut self.inbound) {
            (Read::Bytes(n), Some(w)) => w.front += n,
            (Read::Fault, Some(_)) => return self.end_write(outcome::FAULT, events),
            // The next look asks for it.
            (Read::Refused, _) | (_, None) => {}
        }
        Ok(())
    }

    fn back_moved(
        &mut self,
        result: io::Result<usize>,
        at: u64,
        len: u64,
        events: &mut Vec<Event>,
    ) -> Result<(), Status> {
        match (self.out_of_process(result)?, &mut self.inbound) {
            // A short read is a hole in the back part: only whole ones count.
            (Read::Bytes(n), Some(w)) if n == len => {
                w.back = at;
                let word = wire::pulled(self.executed, at);
                self.tx.control().pulled.store(word, Ordering::Relaxed);
                Ok(())
            }
            (Read::Refused, _) | (_, None) => Ok(()),
            (_, Some(_)) => self.end_write(outcome::FAULT, events),
        }
    }

    /// A move has taken slots of the peer's stream; how many bytes of content.
    fn took_slots(&mut self, result: io::Result<usize>) -> u64 {
        let taken = self.tx.control().stream_taken.load(Ordering::Relaxed);
        self.into.took(taken);
        self.dirty = true;
        result.unwrap_or(0) as u64
    }

    /// A slot of the peer's stream is not needed any more.
    pub(crate) fn slot_taken(&mut self) {
        self.into.take();
        self.tx.control().stream_taken.store(self.into.taken, Ordering::Release);
        self.dirty = true;
    }

    fn piece_moved(
        &mut self,
        result: io::Result<usize>,
        id: u64,
        seq: u32,
        process: bool,
        events: &mut Vec<Event>,
    ) -> Result<(), Status> {
        let Some(at) = self.reads.iter().position(|r| r.id == id) else { return Ok(()) };
        let read = self.reads[at];
        let result = match result {
            // Bytes of a region that was closed meanwhile do not count.
            _ if !self.exports.unchanged(read.remote.rkey, seq) => Err(outcome::DENIED),
            Ok(n) if !process => Ok(n as u64),
            other => match self.out_of_process(other)? {
                Read::Bytes(n) => Ok(n),
                Read::Fault => Err(outcome::FAULT),
                // The next look asks the owner.
                Read::Refused => return Ok(()),
            },
        };
        let code = match result {
            Ok(n) if read.done + n < read.len => {
                self.reads[at].done += n;
                return Ok(());
            }
            Ok(_) if self.peer_closed() || (process && self.is_gone()) => return Err(self.gone()),
            Ok(_) => outcome::OK,
            Err(code) => code,
        };
        self.counts(code)?;
        self.reads.remove(at);
        self.read_ended(&read, code);
        let result = self.result("READ", code, read.remote, read.len);
        events.push(Event::Done { ep: self.ep, wr: read.wr, result });
        Ok(())
    }

    /// Slots of ours hold the next bytes of a job, if that is still what comes next.
    fn slots_filled(&mut self, core: &Core, op: u64, done: u64, result: io::Result<usize>) {
        self.out.put = self.tx.control().stream_put.load(Ordering::Relaxed);
        self.dirty = true;
        let n = result.unwrap_or(0) as u64;
        let Some(mut job) = self.out.jobs.front().copied() else { return };
        if (job.op, job.done) != (op, done) {
            return;
        }
        if let Some(key) = job.rkey
            && core.exports.check(self.ep, key, job.addr, job.len, Access::REMOTE_READ).is_none()
        {
            return; // The next look at it finds the same.
        }
        job.done += n;
        if job.done == job.len {
            self.out_done(job);
        } else if let Some(front) = self.out.jobs.front_mut() {
            *front = job;
        }
    }
}
