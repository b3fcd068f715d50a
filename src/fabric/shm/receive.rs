//! The receiving side of a link: records of the peer's ring, and the WRITEs that this side, like a
//! device, carries out for the peer: it checks key, bounds and access against its own table before
//! every piece, and pulls. So a region that was closed is not touched any more, even in mid-copy.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, Ordering};

use super::Core;
use super::copy::{STREAMING_FROM, copy};
use super::link::{How, Inbound, Link};
use super::ring::{Header, MAX_WRITES, load64};
use super::socket;
use super::sys;
use super::wire::{self, Ask, Message, Source, Write, kind, outcome};
use crate::fabric::{Access, Event, View};
use crate::status::Status;

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
        let mut busy = false;
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
                Err(word) => return Err(self.broken(&format!("record header {word:#x}"))),
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
            // SAFETY: the payload is mapped for at least the checked length. Its space is given
            // back to the peer by the next poll only, so that a peer that keeps the protocol does
            // not change it before; one that does not can only be a process of the same user.
            let bytes = unsafe { View::new(self.rx.payload(), header.len as usize) };
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
            kind::READ_DATA if len == 8 => self.begin_data(u64::from_le_bytes(self.rx.copy()))?,
            kind::READ_END if len == 1 => {
                let [code] = self.rx.copy();
                self.end_read(code, events)?;
            }
            kind::POOL_ASK if len == 4 => {
                // Without the segment the peer goes on by another path.
                let _ = self.pass_pool(core, u32::from_le_bytes(self.rx.copy()));
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
        } else if core.exports.check(to.rkey, to.dst, len as u64, need).is_some() {
            // SAFETY: the record is mapped for its checked length; the destination lies inside a
            // registered region, which is valid memory until it is deregistered.
            unsafe {
                let src = self.rx.payload().add(Write::LEN);
                std::ptr::copy_nonoverlapping(src, to.dst as *mut u8, len);
            }
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
        let bytes: [u8; Write::LEN + Source::LEN] = self.rx.copy();
        let (mut to, mut from) = ([0; Write::LEN], [0; Source::LEN]);
        to.copy_from_slice(&bytes[..Write::LEN]);
        from.copy_from_slice(&bytes[Write::LEN..]);
        let (to, from) = (Write::decode(&to), Source::decode(&from));
        let place = header.flags & !wire::HAS_IMM;
        let mut code = outcome::OK;
        match place {
            wire::FROM_PROCESS => {}
            wire::FROM_STREAM if self.into.is_open() => {}
            wire::FROM_STREAM => {
                self.read_socket()?;
                if !self.into.is_open() {
                    return Err(self.broken("stream without a segment"));
                }
            }
            wire::FROM_POOL => {
                if !self.pools.has(from.pool) {
                    self.read_socket()?;
                }
                if self.pools.at(from.pool, from.at, from.len).is_none() {
                    code = outcome::FAULT;
                }
            }
            other => return Err(self.broken(&format!("source {other} of a WRITE"))),
        }
        let has_imm = header.flags & wire::HAS_IMM != 0;
        self.inbound = Some(Inbound::Write { to, has_imm, from, place, done: 0, outcome: code });
        Ok(())
    }

    /// Moves a piece of what is under way; false if that must wait.
    fn pull(&mut self, core: &mut Core, events: &mut Vec<Event>) -> Result<bool, Status> {
        match self.inbound {
            Some(Inbound::Write { to, has_imm, from, place, mut done, outcome: mut code }) => {
                let moved = self.pull_write(core, to, from, place, &mut done, &mut code)?;
                let discard = code != outcome::OK && place != wire::FROM_STREAM;
                if done < from.len && !discard {
                    let outcome = code;
                    self.inbound = Some(Inbound::Write { to, has_imm, from, place, done, outcome });
                    return Ok(moved);
                }
                self.inbound = None;
                self.finish_write(place, code, has_imm.then_some(to.imm), events)?;
                Ok(true)
            }
            Some(Inbound::Data { left }) => self.pull_data(core, left),
            None => Ok(false),
        }
    }

    /// All is in place, or the WRITE has failed.
    fn finish_write(
        &mut self,
        place: u8,
        code: u8,
        imm: Option<u32>,
        events: &mut Vec<Event>,
    ) -> Result<(), Status> {
        // A peer that left may have reused the memory that we copied from, and a process number
        // may belong to another process by now.
        if self.peer_closed() || (place == wire::FROM_PROCESS && self.is_gone()) {
            return Err(self.gone());
        }
        self.answer(code, imm, events);
        Ok(())
    }

    fn pull_write(
        &mut self,
        core: &mut Core,
        to: Write,
        from: Source,
        place: u8,
        done: &mut u64,
        code: &mut u8,
    ) -> Result<bool, Status> {
        let allowed = core.exports.check(to.rkey, to.dst, from.len, Access::REMOTE_WRITE);
        if *code == outcome::OK && from.len > 0 && allowed.is_none() {
            *code = outcome::DENIED;
        }
        let want = (from.len - *done).min(core.budget as u64) as usize;
        let dst = (*code == outcome::OK).then(|| to.dst.wrapping_add(*done) as *mut u8);
        let piece = match (place, dst) {
            (wire::FROM_STREAM, dst) => {
                self.take_stream(want, dst, from.len).map_err(|()| self.broken("stream"))?
            }
            (_, None) => return Ok(true),
            (wire::FROM_POOL, Some(dst)) => match self.pools.at(from.pool, from.at, from.len) {
                Some(src) => {
                    // SAFETY: source and length were checked against the mapped segment,
                    // destination and length against a live region, just now.
                    unsafe { copy(src.add(*done as usize), dst, want, from.len >= STREAMING_FROM) };
                    Piece::Copied(want as u64)
                }
                None => Piece::Failed(outcome::FAULT),
            },
            // SAFETY: destination and length were checked against a live region just now.
            (_, Some(dst)) => unsafe { self.read_peer(from.at.wrapping_add(*done), dst, want)? },
        };
        match piece {
            Piece::Copied(n) => {
                *done += n;
                core.spend(n);
                Ok(true)
            }
            Piece::Wait => Ok(false),
            Piece::Failed(outcome) => {
                *code = outcome;
                Ok(true)
            }
        }
    }

    /// Copies from the peer's address space.
    ///
    /// # Safety
    /// `dst` is writable for `len` bytes.
    pub(crate) unsafe fn read_peer(
        &self,
        src: u64,
        dst: *mut u8,
        len: usize,
    ) -> Result<Piece, Status> {
        if self.pid <= 0 {
            return Ok(Piece::Failed(outcome::FAULT));
        }
        // SAFETY: by the caller.
        match unsafe { sys::read_process(self.pid, src, dst, len) } {
            Ok(0) if len > 0 => Ok(Piece::Failed(outcome::FAULT)),
            Ok(n) => Ok(Piece::Copied(n as u64)),
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Err(self.gone()),
            Err(_) if self.is_gone() => Err(self.gone()),
            Err(_) => Ok(Piece::Failed(outcome::FAULT)),
        }
    }

    /// Takes up to `want` bytes from the peer's stream; `dst` `None` discards them.
    fn take_stream(&mut self, want: usize, dst: Option<*mut u8>, whole: u64) -> Result<Piece, ()> {
        let put = load64(&self.theirs().stream_put);
        if !self.into.see_put(put) {
            return Err(());
        }
        let n = self.into.ready().min(want);
        if n == 0 && want > 0 {
            return Ok(Piece::Wait);
        }
        // SAFETY: both callers have just checked `want` bytes at `dst`: against a live region, or
        // as the rest of a READ's local memory.
        unsafe { self.into.take(dst, n, whole) };
        self.tx.control().stream_taken.store(self.into.taken, Ordering::Release);
        self.dirty = true;
        Ok(Piece::Copied(n as u64))
    }

    /// The answer to our first unanswered READ begins.
    fn begin_data(&mut self, len: u64) -> Result<(), Status> {
        let Some(read) = self.reads.iter_mut().find(|r| r.how == How::Asked) else {
            return Err(self.broken("data for no READ"));
        };
        if len != 0 && len != read.len {
            return Err(self.broken("data of another length than the READ's"));
        }
        if len == 0 {
            read.how = How::Filled;
            return Ok(());
        }
        if !self.into.is_open() {
            self.read_socket()?;
        }
        if !self.into.is_open() {
            return Err(self.broken("stream without a segment"));
        }
        self.inbound = Some(Inbound::Data { left: len });
        Ok(())
    }

    fn pull_data(&mut self, core: &mut Core, left: u64) -> Result<bool, Status> {
        let Some(at) = self.reads.iter().position(|r| r.how == How::Asked) else {
            return Err(self.broken("data for no READ"));
        };
        let read = self.reads[at];
        let want = left.min(core.budget as u64) as usize;
        let dst = read.local.wrapping_add(read.done) as *mut u8;
        let piece = self.take_stream(want, Some(dst), read.len);
        let Piece::Copied(n) = piece.map_err(|()| self.broken("stream"))? else {
            return Ok(false);
        };
        core.spend(n);
        let left = left - n;
        let read = &mut self.reads[at];
        read.done += n;
        if left == 0 {
            read.how = How::Filled;
        }
        self.inbound = (left > 0).then_some(Inbound::Data { left });
        Ok(true)
    }

    /// The outcome of the first READ whose data is there.
    fn end_read(&mut self, code: u8, events: &mut Vec<Event>) -> Result<(), Status> {
        let Some(at) = self.reads.iter().position(|r| r.how == How::Filled) else {
            return Err(self.broken("end of no READ"));
        };
        let Some(read) = self.reads.remove(at) else { return Ok(()) };
        if code == outcome::OK && read.done != read.len {
            return Err(self.broken("end of a READ without its data"));
        }
        let result = self.result("READ", code, read.remote, read.len);
        events.push(Event::Done { ep: self.ep, wr: read.wr, result });
        Ok(())
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
            let fd: Option<&OwnedFd> = received.fds.first();
            match (Message::decode(&received.bytes), fd) {
                (Some(Message::Pool { id, len }), Some(fd)) => {
                    // Not fatal: operations that name the segment fail, or take another path.
                    let _ = self.pools.add(id, len, fd);
                }
                (Some(Message::Stream { len }), Some(fd)) => {
                    self.into.open(fd, len).map_err(|e| self.broken(&e.to_string()))?;
                }
                _ => return Err(self.broken("unexpected socket message")),
            }
        }
    }
}
