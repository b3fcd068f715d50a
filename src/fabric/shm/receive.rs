//! The receiving side of a link: records of the peer's ring, and the WRITEs that this side, like a
//! device, carries out for the peer: it checks key, bounds and access against its own table before
//! every piece, and pulls (`pull`, where the content is elsewhere). So a region that was closed is not touched any more, even in mid-copy.

use std::sync::atomic::{AtomicU8, Ordering};

use super::link::Link;
use super::moving::Running;
use super::operations::How;
use super::pieces::{Drain, Wanted};
use super::ring::{Header, MAX_POOLS, MAX_WRITES, load64};
use super::socket;
use super::stream::{READ, Slot};
use super::sys;
use super::wire::{self, Ask, ContentAt, SocketMessage, Write, kind, outcome};
use super::{Core, Kind};
use crate::bulk::Way;
use crate::fabric::Event;
use crate::fabric::moves::Move;
use crate::limits::POLL_EVENTS;
use crate::room::{self, Grows};
use crate::status::{Code, Status};

/// Most messages that the socket has at a time: what a peer passes before it is answered, and lets go of, and some.
const SOCKET_MESSAGES: usize = 4 * MAX_POOLS;

/// What a look at the peer's stream came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drained {
    /// Nothing is there that is wanted now.
    Nothing,
    /// Slots that nobody needs are gone.
    Some,
    /// A slot is to be copied first.
    Wait,
}

impl Link {
    /// Takes records and moves data, within the budget, of which `taken` records are used up, and reports the WRITEs that the peer has
    /// answered: those that it executed before it published a message are told before that, which may be the last that it says. True if
    /// there was something.
    pub(crate) fn receive(
        &mut self,
        core: &mut Core,
        taken: usize,
        events: &mut Vec<Event>,
    ) -> Result<bool, Status> {
        let first = events.len();
        let mut busy = self.take_records(core, taken, events)?;
        if !self.writes.is_empty() && events.fits(self.writes.len()) {
            let messages = events.len();
            busy |= self.collect(events)?;
            events[first..].rotate_left(messages - first);
        }
        Ok(busy)
    }

    fn take_records(
        &mut self,
        core: &mut Core,
        mut taken: usize,
        events: &mut Vec<Event>,
    ) -> Result<bool, Status> {
        let mut busy = taken > 0;
        if self.is_running(Kind::In) {
            return Ok(busy);
        }
        if self.asking > 0 && self.inbound.is_none() {
            match self.drain(core, false)? {
                Drained::Wait => return Ok(true),
                Drained::Some => busy = true,
                Drained::Nothing => {}
            }
        }
        loop {
            if self.inbound.is_some() {
                if !self.pull(core, events)? {
                    return Ok(busy);
                }
                busy = true;
                continue;
            }
            if taken == POLL_EVENTS {
                // The rest is for the next poll, when the other endpoints have had theirs.
                return Ok(true);
            }
            match self.rx.peek() {
                Ok(None) => return Ok(busy),
                Ok(Some(header)) => {
                    if !self.take(core, header, events)? {
                        return Ok(busy);
                    }
                    taken += 1;
                }
                Err(what) => return Err(self.broken(&what)),
            }
            busy = true;
        }
    }

    /// Takes messages, until something else is next, or nothing, or enough for one poll were taken; how many.
    #[inline(always)]
    pub(crate) fn take_messages(&mut self, events: &mut Vec<Event>) -> usize {
        let mut taken = 0;
        while taken < POLL_EVENTS
            && let Some(bytes) = self.rx.take(kind::SEND)
        {
            events.push(Event::Message { ep: self.ep, bytes });
            taken += 1;
        }
        taken
    }

    /// Takes the next record; false if it must wait.
    fn take(
        &mut self,
        core: &mut Core,
        header: Header,
        events: &mut Vec<Event>,
    ) -> Result<bool, Status> {
        if self.inline_moved.is_some_and(|(moved, _)| moved != header) {
            return Err(self.broken("a record that changes"));
        }
        if header.kind == kind::SEND {
            if !self.rx.takes(header.len) {
                // The next poll begins with an empty inbox.
                return Ok(false);
            }
            let Some(bytes) = self.rx.take(kind::SEND) else {
                return Err(self.broken("a record that changes"));
            };
            events.push(Event::Message { ep: self.ep, bytes });
            return Ok(true);
        }
        let taken = self.take_other(core, header, events)?;
        if taken {
            self.rx.advance(header.len);
        }
        Ok(taken)
    }

    fn take_other(
        &mut self,
        core: &mut Core,
        header: Header,
        events: &mut Vec<Event>,
    ) -> Result<bool, Status> {
        const DESCRIBED: usize = Write::LEN + ContentAt::LEN;
        let len = header.len as usize;
        match header.kind {
            kind::WRITE_INLINE if len >= Write::LEN => {
                return Ok(self.write_inline_in(core, header, events));
            }
            kind::WRITE if len == DESCRIBED => self.begin_write(header)?,
            kind::READ_ASK | kind::READ_HELP if len == Ask::LEN => {
                if self.asks.len() + self.out.jobs.len() + self.ends.len() >= 2 * MAX_WRITES {
                    return Ok(false);
                }
                room::grow(&mut self.asks, 1, "READs of the peer")?;
                let helps = header.kind == kind::READ_HELP;
                self.asks.push_back(Ask::decode(&self.rx.copy(), helps));
            }
            kind::READ_END if len == 1 => {
                let [code] = self.rx.copy();
                return self.end_read(core, code, events);
            }
            kind::FEED_ASK if len == size_of::<u64>() => {
                self.feed_asked()?;
                let op = u64::from_le_bytes(self.rx.copy());
                // Peers of before say it by the record alone.
                if Some(op) != self.fed_from {
                    self.feed_from(op)?;
                }
            }
            kind::POOL_ASK if len == 4 => {
                // Without the segment the peer goes on by another path.
                let key = u32::from_le_bytes(self.rx.copy());
                if let Some(id) = core.exports.pool_of(self.ep, key) {
                    self.pass_pool(core, id);
                }
            }
            other => return Err(self.broken(&text!("record {other} of {len} bytes"))),
        }
        Ok(true)
    }

    /// A WRITE with its content in the record; false until that is in place.
    fn write_inline_in(
        &mut self,
        core: &mut Core,
        header: Header,
        events: &mut Vec<Event>,
    ) -> bool {
        // What was read before its content was moved counts, whatever the peer has made of it since.
        let moved = self.inline_moved.take();
        let to = moved.map_or_else(|| Write::decode(&self.rx.copy()), |(_, to)| to);
        let len = header.len as usize - Write::LEN;
        let code = if !self.is_allowed(core, to, len) {
            outcome::DENIED
        } else if moved.is_some() || len == 0 {
            outcome::OK
        } else {
            let Some((src, kept)) = self.rx.content(Write::LEN, len) else { return false };
            let (ep, what) = (self.ep, Kind::In as u32);
            self.begin(core, Kind::In, Running::Inline { header, to }, |_| {
                // SAFETY: the record is mapped for its checked length while the mapping is kept; the
                // destination lies inside a registered region.
                unsafe { Move::copy(ep, what, src, to.dst, len, Way::Plain) }.keeping(kept)
            });
            return false;
        };
        let imm = (header.flags & wire::HAS_IMM != 0).then_some(to.imm);
        self.answer(code, imm, events);
        true
    }

    /// Answers a WRITE, and reports it here if it has an immediate.
    pub(super) fn answer(&mut self, code: u8, imm: Option<u32>, events: &mut Vec<Event>) {
        self.outcome(code);
        if let (Some(imm), outcome::OK) = (imm, code) {
            events.push(Event::Written { ep: self.ep, imm });
        }
    }

    /// Answers a WRITE.
    pub(super) fn outcome(&mut self, code: u8) {
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
    }

    /// Sees what the peer has put into its stream.
    pub(super) fn look_at_stream(&mut self) -> Result<(), Status> {
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
        Ok(())
    }

    /// Takes slots out of the peer's stream: of READs of ours, of the WRITE under way if `write`,
    /// and such as nobody needs any more. Stops at one that is for later, or is to be copied.
    pub(crate) fn drain(&mut self, core: &mut Core, write: bool) -> Result<Drained, Status> {
        if self.is_taking_slots() {
            return Ok(Drained::Wait);
        }
        self.look_at_stream()?;
        let mut drained = Drained::Nothing;
        while let Some(slot) = self.into.peek().map_err(|()| self.broken("stream slot"))? {
            let mut current = self.inbound.filter(|w| write && w.front < w.back);
            if let Some(w) = current
                .as_mut()
                .filter(|_| self.fed && slot.op == self.executed && slot.offset == 0)
            {
                // The peer has begun anew: it cuts the content in other places than before.
                w.front = 0;
                self.inbound = current;
            }
            if self.is_left_over(slot.op) {
                self.slot_taken();
            } else if slot.op & READ != 0 {
                let shared = How::Shared(slot.op & !READ);
                if self.reads.iter().any(|r| r.how == shared) {
                    // It is taken where READs are moved on.
                    break;
                }
                self.take_answer(core, slot)?;
                return Ok(Drained::Wait);
            } else if let Some(w) = current
                && slot.op == self.executed
            {
                if self.fed && slot.offset != w.front {
                    // It was put before the peer was asked to feed all.
                    self.slot_taken();
                    drained = Drained::Some;
                    continue;
                }
                if slot.offset != w.front || slot.len as u64 > w.from.len - w.front {
                    let Slot { op, offset, len } = slot;
                    let (front, whole) = (w.front, w.from.len);
                    return Err(self.broken(&text!(
                        "stream slot of WRITE {op}: {len} bytes at {offset}, not at {front} of {whole}"
                    )));
                }
                // The caller has checked the whole destination against a live region.
                let wanted = Wanted {
                    op: slot.op,
                    offset: w.front,
                    dst: w.to.dst.wrapping_add(w.front),
                    room: w.back - w.front,
                    left: w.from.len - w.front,
                };
                self.take_slots(core, Running::Slots, wanted, w.from.len);
                return Ok(Drained::Wait);
            } else if current.is_some() && self.fed {
                // Of a later one: left over, too, since those come in order.
                self.slot_taken();
            } else {
                break;
            }
            drained = Drained::Some;
        }
        Ok(drained)
    }

    /// Copies what is in the next slots to its place, checked by the caller; `whole` is the length of
    /// the transfer that they belong to.
    fn take_slots(&mut self, core: &mut Core, of: Running, wanted: Wanted, whole: u64) {
        let Some(segment) = self.into.segment() else { return };
        let (ep, what, way) = (self.ep, Kind::In as u32, Way::to_place(whole));
        self.begin(core, Kind::In, of, |link| {
            let drain = Drain::new(segment, link.pages(), wanted, link.into.taken, way);
            // SAFETY: the destination was checked against a live region, or is what is left of a READ of ours.
            unsafe { Move::drain(ep, what, drain) }
        });
    }

    /// Takes a slot of a READ of ours.
    fn take_answer(&mut self, core: &mut Core, slot: Slot) -> Result<(), Status> {
        let number = slot.op & !READ;
        let Some(read) = self.reads.iter().find(|r| r.how == How::Asked(number)) else {
            return Err(self.broken("data for no READ"));
        };
        if slot.offset != read.done || slot.len as u64 > read.len - read.done {
            return Err(self.broken("stream slot of a READ"));
        }
        let (left, whole) = (read.len - read.done, read.len);
        let dst = read.local.wrapping_add(read.done);
        let wanted = Wanted { op: slot.op, offset: read.done, dst, room: left, left };
        self.take_slots(core, Running::Answer { number }, wanted, whole);
        Ok(())
    }

    /// The outcome of the first READ that we asked for; false until its data is in place.
    fn end_read(
        &mut self,
        core: &mut Core,
        code: u8,
        events: &mut Vec<Event>,
    ) -> Result<bool, Status> {
        // Its data was put before the record.
        if self.drain(core, false)? == Drained::Wait {
            return Ok(false);
        }
        let Some(at) = self.reads.iter().position(|r| matches!(r.how, How::Asked(_))) else {
            return Err(self.broken("end of no READ"));
        };
        let read = self.reads[at];
        if code == outcome::OK && read.done != read.len {
            return Err(self.broken("end of a READ without its data"));
        }
        self.counts(code)?;
        self.reads.remove(at);
        self.asking = self.asking.saturating_sub(1);
        let result = self.result("READ", code, read.remote, read.len);
        events.push(Event::Done { ep: self.ep, wr: read.wr, result });
        Ok(true)
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

    /// Why the peer's stream is not mapped: a check of it failed, or a system call of this side, which is not the peer's fault.
    pub(super) fn not_mapped(&self, error: &std::io::Error) -> Status {
        match sys::is_ours(error) {
            true => sys::ended_here(
                format_args!("shm: mapping the stream of peer {}", self.peer),
                error,
            ),
            false => self.broken(&error.to_string()),
        }
    }

    /// Why nothing came from the socket, nor will: the peer is gone, or has sent what is no message, or a system call of this side
    /// failed.
    pub(super) fn not_received(&self, error: &std::io::Error) -> Status {
        use std::io::ErrorKind as K;
        match error.kind() {
            K::InvalidData => self.broken("socket message too long"),
            K::UnexpectedEof | K::ConnectionReset | K::NotConnected | K::BrokenPipe => self.gone(),
            _ => sys::ended_here(
                format_args!("shm: hearing from the socket of peer {}", self.peer),
                error,
            ),
        }
    }

    /// Takes the messages that wait on the socket: segments of the peer.
    pub(crate) fn read_socket(&mut self) -> Result<(), Status> {
        for _ in 0..SOCKET_MESSAGES {
            let closer = self.sock.closer();
            if closer.is_full() && !closer.is_stuck() {
                // They are being closed: what comes waits in the socket.
                return Ok(());
            }
            let received = match socket::receive(&self.sock) {
                Ok(received) => received,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(self.not_received(&e)),
            };
            if received.fds.len() > 1 {
                return Err(self.broken("more descriptors than one"));
            }
            let fd = received.fds.into_iter().next();
            match (SocketMessage::decode(&received.bytes), fd) {
                (Some(SocketMessage::Pool { id, len }), fd)
                    if fd.is_some() || received.lacks_fds =>
                {
                    let mapped = fd.is_some_and(|fd| self.pools.add(id, len, fd).is_ok());
                    if !mapped && self.sock.closer().is_stuck() {
                        let text =
                            text!("shm: peer {} passes descriptors that are not closed", self.peer);
                        return Err(Status::new(Code::ResourceExhausted, text));
                    }
                    self.answer_pool(mapped);
                }
                (Some(SocketMessage::PoolGone { id }), None) => {
                    self.pools.remove(id);
                    self.pools_wanted.retain(|wanted| *wanted != id);
                }
                (Some(SocketMessage::Stream { len }), Some(fd)) => {
                    self.into.open(&fd, len).map_err(|e| self.not_mapped(&e))?;
                }
                (Some(SocketMessage::Stream { .. }), None) if received.lacks_fds => {
                    let text =
                        text!("shm: no descriptor left for the stream of peer {}", self.peer);
                    return Err(Status::new(Code::ResourceExhausted, text));
                }
                _ => return Err(self.broken("unexpected socket message")),
            }
        }
        Err(self.broken("socket messages without end"))
    }
}
