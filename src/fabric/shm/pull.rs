//! WRITEs of the peer whose content is not in their record: this side pulls it, out of a pool segment, out of the peer's
//! stream, or out of the peer's memory.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::link::Link;
use super::moving::Running;
use super::operations::Inbound;
use super::receive::Drained;
use super::ring::Header;
use super::shared::{ASIDE, PATIENCE};
use super::wire::{self, ContentAt, Write, kind, outcome};
use super::{Core, Kind};
use crate::bulk::Way;
use crate::fabric::moves::{MOVE_MAX, Move};
use crate::fabric::{Access, Event};
use crate::status::Status;

impl Link {
    /// A WRITE whose content is elsewhere.
    pub(super) fn begin_write(&mut self, header: Header) -> Result<(), Status> {
        self.take_pools()?;
        let bytes: [u8; Write::LEN + ContentAt::LEN] = self.rx.copy();
        let (mut to, mut from) = ([0; Write::LEN], [0; ContentAt::LEN]);
        to.copy_from_slice(&bytes[..Write::LEN]);
        from.copy_from_slice(&bytes[Write::LEN..]);
        let (to, from) = (Write::decode(&to), ContentAt::decode(&from));
        let place = header.flags & !wire::HAS_IMM;
        let mut fed = None;
        if place & wire::FROM_STREAM != 0 {
            fed = Some(Instant::now());
        }
        match place & !wire::FROM_STREAM {
            wire::FROM_PROCESS => {}
            0 if fed.is_some() => {}
            wire::FROM_POOL if fed.is_none() => {}
            _ => return Err(self.broken(&text!("source {place} of a WRITE"))),
        }
        let has_imm = header.flags & wire::HAS_IMM != 0;
        let (front, back) = (0, from.len);
        self.inbound = Some(Inbound { to, has_imm, from, place, front, back, fed });
        Ok(())
    }

    /// Moves the WRITE under way on; false if that must wait, for a copy or for the peer.
    pub(super) fn pull(
        &mut self,
        core: &mut Core,
        events: &mut Vec<Event>,
    ) -> Result<bool, Status> {
        let Some(w) = self.inbound else { return Ok(false) };
        let need = Access::REMOTE_WRITE;
        let code = if w.from.len == 0 {
            outcome::OK
        } else if core.exports.check(self.ep, w.to.rkey, w.to.dst, w.from.len, need).is_none() {
            outcome::DENIED
        } else if w.front >= w.back {
            outcome::OK
        } else if w.place & wire::FROM_PROCESS != 0 && self.process.is_none() {
            return self.ask_to_feed();
        } else if w.place & wire::FROM_STREAM != 0 {
            return self.pull_shared(core, w);
        } else {
            match self.pull_front(core, w) {
                None => return Ok(false),
                Some(code) => code,
            }
        };
        self.end_write(code, events)?;
        Ok(true)
    }

    /// The peer's memory can be read no longer, or never could: the content of the WRITE under way, and of all that are posted, comes
    /// through its stream, from the beginning. What came through it before counts: the peer may be putting what follows that, and go on
    /// with it. False if that must wait.
    fn ask_to_feed(&mut self) -> Result<bool, Status> {
        if !self.fed {
            self.tx.control().feed_asked.store(self.executed + 1, Ordering::Release);
        }
        if !self.fed && !self.record(kind::FEED_ASK, &self.executed.to_le_bytes())? {
            return Ok(false);
        }
        self.fed = true;
        if let Some(w) = &mut self.inbound {
            let front = if w.place & wire::FROM_STREAM != 0 { w.front } else { 0 };
            (w.place, w.front, w.back, w.fed) = (wire::FROM_STREAM, front, w.from.len, None);
        }
        Ok(true)
    }

    /// The WRITE under way has ended.
    pub(crate) fn end_write(&mut self, code: u8, events: &mut Vec<Event>) -> Result<(), Status> {
        let Some(w) = self.inbound else { return Ok(()) };
        // A peer that left may have reused the memory that we copied from, and a process number
        // may belong to another process by now. It stays under way: nothing behind it is looked at, as it would be by its number.
        if self.peer_closed() || (w.place & wire::FROM_PROCESS != 0 && self.is_gone()) {
            return Err(self.gone());
        }
        self.inbound = None;
        self.answer(code, w.has_imm.then_some(w.to.imm), events);
        Ok(())
    }

    /// Copies from the front. The destination and its whole length were checked against a live
    /// region. The outcome if that cannot be.
    fn pull_front(&mut self, core: &mut Core, w: Inbound) -> Option<u8> {
        let want = (w.back - w.front).min(MOVE_MAX as u64) as usize;
        let dst = w.to.dst.wrapping_add(w.front);
        let (ep, what) = (self.ep, Kind::In as u32);
        if w.place == wire::FROM_POOL {
            // A peer names only what we said that we have.
            let Some((src, map)) = self.pools.at(w.from.pool, w.from.at, w.from.len) else {
                return Some(outcome::FAULT);
            };
            let way = Way::to_place(w.from.len);
            self.begin(core, Kind::In, Running::Front { process: false }, |_| {
                // SAFETY: source and length were checked against the segment, whose mapping is kept,
                // destination and length against a live region, just now.
                unsafe { Move::copy(ep, what, src + w.front, dst, want, way) }.keeping(map)
            });
            return None;
        }
        let process = self.process?;
        let src = w.from.at.wrapping_add(w.front);
        self.begin(core, Kind::In, Running::Front { process: true }, |_| {
            // SAFETY: destination and length were checked against a live region just now.
            unsafe { Move::process(ep, what, process, src, dst, want) }
        });
        None
    }

    /// From the front by the stream; what does not come soon, from the back out of the peer's
    /// memory, where that is allowed.
    fn pull_shared(&mut self, core: &mut Core, w: Inbound) -> Result<bool, Status> {
        match self.drain(core, true)? {
            // The next look goes on: a peer may put slots that nobody needs without end.
            Drained::Wait | Drained::Some => return Ok(false),
            Drained::Nothing => {}
        }
        let process = self.process.filter(|_| w.place & wire::FROM_PROCESS != 0);
        let Some(process) = process else { return Ok(false) };
        let now = Instant::now();
        let fed = w.fed.unwrap_or(now);
        if let Some(w) = &mut self.inbound {
            w.fed = Some(fed);
        }
        if now.saturating_duration_since(fed) < PATIENCE {
            return Ok(false);
        }
        let len = (w.back - w.front).min(ASIDE);
        let at = w.back - len;
        let (src, dst) = (w.from.at.wrapping_add(at), w.to.dst.wrapping_add(at));
        let (ep, what) = (self.ep, Kind::In as u32);
        self.begin(core, Kind::In, Running::Back { at, len }, |_| {
            // SAFETY: the destination was checked against a live region just now, and `at` with `len`
            // lies inside of it.
            unsafe { Move::process(ep, what, process, src, dst, len as usize) }
        });
        Ok(false)
    }
}
