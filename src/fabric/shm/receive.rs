//! The receiving side of a link: records of the peer's ring, and the WRITEs that this side, like a
//! device, carries out for the peer: it checks key, bounds and access against its own table before
//! every piece, and pulls. So a region that was closed is not touched any more, even in mid-copy.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use super::Core;
use super::copy::{STREAMING_FROM, copy};
use super::link::{How, Inbound, Link};
use super::process::Unread;
use super::ring::{Header, MAX_POOLS, MAX_WRITES, load64};
use super::socket;
use super::stream::{READ, Slot};
use super::wire::{self, Ask, Message, Source, Write, kind, outcome};
use crate::fabric::{Access, Event};
use crate::status::{Code, Status};

/// A peer that feeds a WRITE through its stream is waited for so long.
const PATIENCE: Duration = Duration::from_micros(8);
/// Bytes that are then read without it at a time.
const ASIDE: u64 = 128 * 1024;

/// What one piece of a copy came to.
pub(crate) enum Piece {
    /// So many bytes are in place.
    Copied(u64),
    /// Nothing is there yet.
    Wait,
    /// The operation fails with this outcome.
    Failed(u8),
}

impl Link {
    /// Takes records and moves data, within the budget. True if there was something.
    pub(crate) fn receive(
        &mut self,
        core: &mut Core,
        events: &mut Vec<Event>,
    ) -> Result<bool, Status> {
        let mut busy = self.asking > 0 && self.inbound.is_none() && self.drain(core, None)?;
        loop {
            if self.inbound.is_some() {
                if core.budget == 0 || !self.pull(core, events)? {
                    return Ok(busy);
                }
                busy = true;
                continue;
            }
            match self.rx.peek() {
                Ok(None) => return Ok(busy),
                Ok(Some(header)) => {
                    if !self.take(core, header, events)? {
                        return Ok(busy);
                    }
                }
                Err(what) => return Err(self.broken(&what)),
            }
            busy = true;
        }
    }

    /// Takes the next record; false if it must wait.
    #[inline]
    fn take(
        &mut self,
        core: &mut Core,
        header: Header,
        events: &mut Vec<Event>,
    ) -> Result<bool, Status> {
        if header.kind == kind::SEND {
            let Some(bytes) = self.rx.message(header.len) else {
                return Err(self.broken("a message longer than its ring"));
            };
            events.push(Event::Message { ep: self.ep, bytes });
        } else if !self.take_other(core, header, events)? {
            return Ok(false);
        }
        self.rx.advance(header.len);
        Ok(true)
    }

    fn take_other(
        &mut self,
        core: &mut Core,
        header: Header,
        events: &mut Vec<Event>,
    ) -> Result<bool, Status> {
        const DESCRIBED: usize = Write::LEN + Source::LEN;
        let len = header.len as usize;
        match header.kind {
            kind::WRITE_INLINE if len >= Write::LEN => self.write_inline_in(core, header, events),
            kind::WRITE if len == DESCRIBED => self.begin_write(header)?,
            kind::READ_ASK if len == Ask::LEN => {
                if self.asks.len() + self.out.jobs.len() + self.ends.len() >= 2 * MAX_WRITES {
                    return Ok(false);
                }
                self.asks.push_back(Ask::decode(&self.rx.copy()));
            }
            kind::READ_END if len == 1 => {
                let [code] = self.rx.copy();
                self.end_read(core, code, events)?;
            }
            kind::POOL_ASK if len == 4 => {
                // Without the segment the peer goes on by another path.
                let key = u32::from_le_bytes(self.rx.copy());
                if let Some(id) = core.exports.pool_of(self.ep, key) {
                    self.pass_pool(core, id);
                }
            }
            other => return Err(self.broken(&format!("record {other} of {len} bytes"))),
        }
        Ok(true)
    }

    /// A WRITE with its content in the record.
    fn write_inline_in(&mut self, core: &Core, header: Header, events: &mut Vec<Event>) {
        let to = Write::decode(&self.rx.copy());
        let len = header.len as usize - Write::LEN;
        let need = Access::REMOTE_WRITE;
        let code = if len == 0 {
            outcome::OK
        } else if core.exports.check(self.ep, to.rkey, to.dst, len as u64, need).is_some() {
            // SAFETY: the destination lies inside a registered region, which is valid memory until it
            // is deregistered.
            unsafe { self.rx.copy_to(Write::LEN, to.dst as *mut u8, len) };
            outcome::OK
        } else {
            outcome::DENIED
        };
        let imm = (header.flags & wire::HAS_IMM != 0).then_some(to.imm);
        self.answer(code, imm, events);
    }

    /// Answers a WRITE, and reports it here if it has an immediate.
    fn answer(&mut self, code: u8, imm: Option<u32>, events: &mut Vec<Event>) {
        let own = self.tx.control();
        let index = (self.executed % MAX_WRITES as u64) as usize;
        let slot: &AtomicU8 = &own.outcome[index];
        // A line that does not change stays in the peer's cache.
        if slot.load(Ordering::Relaxed) != code {
            slot.store(code, Ordering::Relaxed);
        }
        if code != outcome::OK {
            self.failed += 1;
            own.failed.store(self.failed, Ordering::Relaxed);
        }
        self.executed += 1;
        own.executed.store(self.executed, Ordering::Release);
        self.dirty = true;
        if let (Some(imm), outcome::OK) = (imm, code) {
            events.push(Event::Written { ep: self.ep, imm });
        }
    }

    /// A WRITE whose content is elsewhere.
    fn begin_write(&mut self, header: Header) -> Result<(), Status> {
        self.take_pools()?;
        let bytes: [u8; Write::LEN + Source::LEN] = self.rx.copy();
        let (mut to, mut from) = ([0; Write::LEN], [0; Source::LEN]);
        to.copy_from_slice(&bytes[..Write::LEN]);
        from.copy_from_slice(&bytes[Write::LEN..]);
        let (to, from) = (Write::decode(&to), Source::decode(&from));
        let place = header.flags & !wire::HAS_IMM;
        let mut fed = None;
        if place & wire::FROM_STREAM != 0 {
            fed = Some(Instant::now());
        }
        match place & !wire::FROM_STREAM {
            wire::FROM_PROCESS => {}
            0 if fed.is_some() => {}
            wire::FROM_POOL if fed.is_none() => {}
            _ => return Err(self.broken(&format!("source {place} of a WRITE"))),
        }
        let has_imm = header.flags & wire::HAS_IMM != 0;
        let (front, back) = (0, from.len);
        self.inbound = Some(Inbound { to, has_imm, from, place, front, back, fed });
        Ok(())
    }

    /// Moves a piece of the WRITE under way; false if that must wait.
    fn pull(&mut self, core: &mut Core, events: &mut Vec<Event>) -> Result<bool, Status> {
        let Some(mut w) = self.inbound else { return Ok(false) };
        let need = Access::REMOTE_WRITE;
        let code = if w.from.len == 0 {
            outcome::OK
        } else if core.exports.check(self.ep, w.to.rkey, w.to.dst, w.from.len, need).is_none() {
            outcome::DENIED
        } else {
            match self.pull_piece(core, &mut w)? {
                Piece::Copied(n) => {
                    core.spend(n);
                    self.tx.control().moved.fetch_add(1, Ordering::Relaxed);
                    outcome::OK
                }
                Piece::Wait => return Ok(false),
                Piece::Failed(code) => code,
            }
        };
        if code == outcome::OK && w.front < w.back {
            self.inbound = Some(w);
            return Ok(true);
        }
        self.inbound = None;
        // A peer that left may have reused the memory that we copied from, and a process number
        // may belong to another process by now.
        if self.peer_closed() || (w.place & wire::FROM_PROCESS != 0 && self.is_gone()) {
            return Err(self.gone());
        }
        self.answer(code, w.has_imm.then_some(w.to.imm), events);
        Ok(true)
    }

    /// Copies a piece. The destination and its whole length were checked against a live region.
    fn pull_piece(&mut self, core: &mut Core, w: &mut Inbound) -> Result<Piece, Status> {
        if w.place & wire::FROM_STREAM != 0 {
            return self.pull_shared(core, w);
        }
        let want = (w.back - w.front).min(core.budget as u64) as usize;
        let dst = w.to.dst.wrapping_add(w.front) as *mut u8;
        let piece = if w.place == wire::FROM_POOL {
            // A peer names only what we said that we have.
            let Some(src) = self.pools.at(w.from.pool, w.from.at, w.from.len) else {
                return Ok(Piece::Failed(outcome::FAULT));
            };
            // SAFETY: source and length were checked against the mapped segment, destination and
            // length against a live region, just now.
            unsafe {
                copy(src.add(w.front as usize), dst, want, w.from.len >= STREAMING_FROM);
            }
            Piece::Copied(want as u64)
        } else {
            // SAFETY: destination and length were checked against a live region just now.
            unsafe { self.read_peer(w.from.at.wrapping_add(w.front), dst, want)? }
        };
        if let Piece::Copied(n) = piece {
            w.front += n;
        }
        Ok(piece)
    }

    /// From the front by the stream; what does not come soon, from the back out of the peer's
    /// memory, where that is allowed.
    fn pull_shared(&mut self, core: &mut Core, w: &mut Inbound) -> Result<Piece, Status> {
        if self.drain(core, Some(w))? {
            w.fed = None;
            // What it took is off the budget already.
            return Ok(Piece::Copied(0));
        }
        if w.place & wire::FROM_PROCESS == 0 {
            return Ok(Piece::Wait);
        }
        let now = Instant::now();
        if now.saturating_duration_since(*w.fed.get_or_insert(now)) < PATIENCE {
            self.inbound = Some(*w);
            return Ok(Piece::Wait);
        }
        let want = (w.back - w.front).min(ASIDE).min(core.budget as u64);
        let at = w.back - want;
        let dst = w.to.dst.wrapping_add(at) as *mut u8;
        // SAFETY: as for every piece, and `at` with `want` lies inside the checked range.
        let piece = unsafe { self.read_peer(w.from.at.wrapping_add(at), dst, want as usize)? };
        match piece {
            // A short read is a hole in the back part: only whole ones count.
            Piece::Copied(n) if n == want => w.back = at,
            Piece::Copied(_) => return Ok(Piece::Failed(outcome::FAULT)),
            other => return Ok(other),
        }
        let word = wire::pulled(self.executed, at);
        self.tx.control().pulled.store(word, Ordering::Relaxed);
        Ok(piece)
    }

    /// Takes slots out of the peer's stream: of the WRITE under way, of READs of ours, and such
    /// as nobody needs any more. Stops at one that is for later. True if one was taken.
    pub(crate) fn drain(
        &mut self,
        core: &mut Core,
        mut current: Option<&mut Inbound>,
    ) -> Result<bool, Status> {
        let put = load64(&self.theirs().stream_put);
        if !self.into.see_put(put) {
            return Err(self.broken("stream position"));
        }
        if self.into.lacks_segment() {
            self.read_socket()?;
            if self.into.lacks_segment() {
                return Err(self.broken("stream without a segment"));
            }
        }
        let mut moved = false;
        while core.budget > 0 {
            let Some(slot) = self.into.peek().map_err(|()| self.broken("stream slot"))? else {
                break;
            };
            if slot.op & READ != 0 {
                self.take_answer(slot)?;
            } else if slot.op < self.executed {
                // SAFETY: nothing is copied.
                unsafe { self.into.take(None, 0, 0) };
            } else if let Some(w) = current.as_deref_mut()
                && slot.op == self.executed
                && w.front < w.back
            {
                if slot.offset != w.front || slot.len as u64 > w.from.len - w.front {
                    return Err(self.broken("stream slot of a WRITE"));
                }
                let n = (w.back - w.front).min(slot.len as u64);
                let dst = w.to.dst.wrapping_add(w.front) as *mut u8;
                // SAFETY: the caller has checked the whole destination against a live region, and
                // the piece lies inside it.
                unsafe { self.into.take(Some(dst), n as usize, w.from.len) };
                w.front += n;
            } else {
                break;
            }
            core.spend(slot.len as u64);
            moved = true;
            self.tx.control().stream_taken.store(self.into.taken, Ordering::Release);
            self.dirty = true;
        }
        Ok(moved)
    }

    /// Takes a slot of a READ of ours.
    fn take_answer(&mut self, slot: Slot) -> Result<(), Status> {
        let number = How::Asked(slot.op & !READ);
        let Some(read) = self.reads.iter_mut().find(|r| r.how == number) else {
            return Err(self.broken("data for no READ"));
        };
        if slot.offset != read.done || slot.len as u64 > read.len - read.done {
            return Err(self.broken("stream slot of a READ"));
        }
        let dst = read.local.wrapping_add(read.done) as *mut u8;
        // SAFETY: the local memory of a READ is valid until its end, which is not reported yet;
        // the piece lies inside what is left of it.
        unsafe { self.into.take(Some(dst), slot.len, read.len) };
        read.done += slot.len as u64;
        Ok(())
    }

    /// Copies from the peer's address space, if that still is the peer's: a process that calls exec
    /// keeps its number, and a child may keep its connection.
    ///
    /// # Safety
    /// `dst` is writable for `len` bytes.
    pub(crate) unsafe fn read_peer(
        &self,
        src: u64,
        dst: *mut u8,
        len: usize,
    ) -> Result<Piece, Status> {
        let Some(process) = &self.process else { return Ok(Piece::Failed(outcome::FAULT)) };
        // SAFETY: by the caller.
        match unsafe { process.read(src, dst, len) } {
            Ok(0) if len > 0 => Ok(Piece::Failed(outcome::FAULT)),
            Ok(n) => Ok(Piece::Copied(n as u64)),
            Err(Unread::Gone) => Err(self.gone()),
            Err(Unread::Refused) if self.is_gone() => Err(self.gone()),
            Err(Unread::Refused) => Ok(Piece::Failed(outcome::FAULT)),
        }
    }

    /// The outcome of the first READ that we asked for.
    fn end_read(
        &mut self,
        core: &mut Core,
        code: u8,
        events: &mut Vec<Event>,
    ) -> Result<(), Status> {
        // Its data was put before the record; what still lies there fits one segment. It is taken
        // whole, and counts.
        let left = std::mem::replace(&mut core.budget, super::BUDGET);
        self.drain(core, None)?;
        core.budget = left.saturating_sub(super::BUDGET - core.budget);
        let Some(at) = self.reads.iter().position(|r| matches!(r.how, How::Asked(_))) else {
            return Err(self.broken("end of no READ"));
        };
        let read = self.reads[at];
        if code == outcome::OK && read.done != read.len {
            return Err(self.broken("end of a READ without its data"));
        }
        self.reads.remove(at);
        self.asking = self.asking.saturating_sub(1);
        let result = self.result("READ", code, read.remote, read.len);
        events.push(Event::Done { ep: self.ep, wr: read.wr, result });
        Ok(())
    }

    /// Takes the pool segments that the peer has passed since the last look, so that it need not
    /// wait for one to be looked for.
    pub(crate) fn take_pools(&mut self) -> Result<(), Status> {
        if load64(&self.theirs().pools_passed) > self.pools.taken {
            self.read_socket()?;
        }
        Ok(())
    }

    /// Tells the peer whether the pool segment that came last is mapped.
    fn answer_pool(&mut self, mapped: bool) {
        let number = self.pools.taken;
        self.pools.taken += 1;
        let own = self.tx.control();
        // The peer has read what was in this place before it passed so many more.
        let place = (number % MAX_POOLS as u64) as usize;
        let (word, bit) = (&own.pools_refused[place / 64], 1 << (place % 64));
        if mapped {
            word.fetch_and(!bit, Ordering::Relaxed);
        } else {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        own.pools_taken.store(self.pools.taken, Ordering::Release);
    }

    /// Takes the messages that wait on the socket: segments of the peer.
    pub(crate) fn read_socket(&mut self) -> Result<(), Status> {
        loop {
            let received = match socket::receive(&self.sock) {
                Ok(received) => received,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == std::io::ErrorKind::InvalidData => {
                    return Err(self.broken("socket message too long"));
                }
                Err(_) => return Err(self.gone()),
            };
            let fd = received.fds.into_iter().next();
            match (Message::decode(&received.bytes), fd) {
                (Some(Message::Pool { id, len }), fd) if fd.is_some() || received.lacks_fds => {
                    let mapped = fd.is_some_and(|fd| self.pools.add(id, len, fd).is_ok());
                    self.answer_pool(mapped);
                }
                (Some(Message::PoolGone { id }), None) => {
                    self.pools.remove(id);
                    self.pools_wanted.retain(|wanted| *wanted != id);
                }
                (Some(Message::Stream { len }), Some(fd)) => {
                    self.into.open(&fd, len).map_err(|e| self.broken(&e.to_string()))?;
                }
                (Some(Message::Stream { .. }), None) if received.lacks_fds => {
                    let text =
                        format!("shm: no descriptor left for the stream of peer {}", self.peer);
                    return Err(Status::new(Code::ResourceExhausted, text));
                }
                _ => return Err(self.broken("unexpected socket message")),
            }
        }
    }
}
