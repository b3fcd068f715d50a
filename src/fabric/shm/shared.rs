//! READs that both ends copy: the owner feeds its stream from the front, as long as it polls, and this side reads what does not come
//! soon out of the owner's memory, from the back. The owner is needed for none of it, so it is not woken for short ones.
//!
//! One READ at a time is so: this side says how far it has read by itself (`read_pulled`), and which of the READs that were asked for
//! have ended (`reads_over`); then the owner feeds them no more.

use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::link::Link;
use super::moving::{Read, Running};
use super::operations::{How, Reading};
use super::pieces::{Drain, Wanted};
use super::reads::Looked;
use super::stream::{READ, SLOTS, Slot};
use super::tuning::Way;
use super::wire::{self, Ask, kind, outcome};
use super::{Core, Kind};
use crate::bulk;
use crate::fabric::Access;
use crate::fabric::moves::Move;
use crate::status::Status;

/// From this length on the owner may be asked to help.
const SHARE_FROM: u64 = 128 << 10;
/// From this length on it is woken for that.
const WAKE_FROM: u64 = 2 << 20;
/// An owner that feeds is waited for so long.
pub(super) const PATIENCE: Duration = Duration::from_micros(8);
/// Bytes that are then read without it at a time.
pub(super) const ASIDE: u64 = 128 * 1024;

impl Link {
    /// A READ of memory that is in no pool begins. Asks the owner for help, where that is measured to be quicker; false: it goes without.
    pub(super) fn ask_for_help(&mut self, core: &Core, read: &mut Reading) -> Result<bool, Status> {
        if read.len < SHARE_FROM || read.timed.is_some() || !core.policy.share {
            return Ok(false);
        }
        let timed = self.reading.choose(read.len);
        if timed.way() == Way::Both {
            let Reading { remote, len, .. } = *read;
            let ask = Ask { addr: remote.addr, len, rkey: remote.rkey, helps: true };
            if !self.whisper(kind::READ_HELP, &ask.encode(), len >= WAKE_FROM)? {
                return Ok(false);
            }
            read.how = How::Shared(self.asked);
            self.asked += 1;
        }
        read.timed = Some(timed);
        Ok(timed.way() == Way::Both)
    }

    /// The next READ is asked for while this one is under way, so that the owner goes on without a pause.
    pub(super) fn ask_ahead(&mut self, core: &Core, at: usize) -> Result<(), Status> {
        let Some(&(mut next)) = self.reads.get(at) else { return Ok(()) };
        let direct = next.how == How::Direct && next.timed.is_none();
        if !direct || next.len < SHARE_FROM || self.process.is_none() {
            return Ok(());
        }
        let Some((_, region)) = self.exports.look(next.remote.rkey) else { return Ok(()) };
        let pool = core.policy.pool && region.pool.is_some();
        if !pool && region.allows(next.remote.addr, next.len, Access::REMOTE_READ) {
            self.ask_for_help(core, &mut next)?;
            self.reads[at] = next;
        }
        Ok(())
    }

    /// Begins to copy one piece of such a READ, whose region allows it; `seq`: the last change of that.
    pub(super) fn share_read(
        &mut self,
        core: &mut Core,
        read: &mut Reading,
        seq: u32,
    ) -> Result<Looked, Status> {
        let How::Shared(number) = read.how else { return Ok(Looked::Wait) };
        if let Some(code) = read.ended {
            return Ok(Looked::Ended(code));
        }
        if read.done >= read.back {
            // A process number may belong to another process by now.
            let aside = read.back < read.len;
            return match self.peer_closed() || (aside && self.is_gone()) {
                true => Err(self.gone()),
                false => Ok(Looked::Ended(outcome::OK)),
            };
        }
        let (ep, what, id) = (self.ep, Kind::Read as u32, read.id);
        if let Some(slot) = self.next_slot_of_read(number)? {
            if slot.offset != read.done || slot.len as u64 > read.len - read.done {
                return Err(self.broken("stream slot of a READ"));
            }
            let Some(segment) = self.into.segment() else { return Ok(Looked::Wait) };
            let wanted = Wanted {
                op: slot.op,
                offset: read.done,
                dst: read.local.wrapping_add(read.done),
                room: read.back - read.done,
                left: read.len - read.done,
            };
            let way = bulk::Way::to_place(read.len);
            self.begin(core, Kind::Read, Running::Fed { id, seq }, |link| {
                let drain = Drain::new(segment, link.pages(), wanted, link.into.taken, way);
                // SAFETY: the destination is what is left of the READ's local memory, valid by the contract of Mem.
                unsafe { Move::drain(ep, what, drain) }
            });
            return Ok(Looked::Wait);
        }
        let Some(process) = self.process else {
            self.ask_for_all(read, number);
            return Ok(Looked::Ask);
        };
        let now = Instant::now();
        if now.saturating_duration_since(*read.fed.get_or_insert(now)) < PATIENCE {
            return Ok(Looked::Wait);
        }
        let len = (read.back - read.done).min(ASIDE);
        let at = read.back - len;
        let (src, dst) = (read.remote.addr.wrapping_add(at), read.local.wrapping_add(at));
        self.begin(core, Kind::Read, Running::Aside { id, seq, at, len }, |_| {
            // SAFETY: the destination is a part of the READ's local memory, valid by the contract of Mem.
            unsafe { Move::process(ep, what, process, src, dst, len as usize) }
        });
        Ok(Looked::Wait)
    }

    /// The next slot of the peer's stream, if it is of this READ. Those that nobody needs any more are let go of.
    fn next_slot_of_read(&mut self, number: u64) -> Result<Option<Slot>, Status> {
        if self.is_taking_slots() {
            return Ok(None);
        }
        self.look_at_stream()?;
        for _ in 0..=SLOTS {
            let Some(slot) = self.into.peek().map_err(|()| self.broken("stream slot"))? else {
                return Ok(None);
            };
            if slot.op == READ | number {
                return Ok(Some(slot));
            }
            if !self.is_left_over(slot.op) {
                return Ok(None);
            }
            self.slot_taken();
        }
        Ok(None)
    }

    /// Whether slots of this operation are needed no more: a WRITE that has ended, a READ that has, too.
    pub(super) fn is_left_over(&self, op: u64) -> bool {
        if op & READ == 0 {
            return op < self.executed;
        }
        let number = op & !READ;
        number < self.helped && !self.reads.iter().any(|r| r.how == How::Asked(number))
    }

    /// What was in slots was copied to its place.
    pub(super) fn fed_moved(&mut self, id: u64, seq: u32, n: u64) {
        let Some(at) = self.reads.iter().position(|r| r.id == id) else { return };
        let read = &mut self.reads[at];
        // Bytes of a region that was closed meanwhile do not count.
        match self.exports.unchanged(read.remote.rkey, seq) {
            true => (read.done, read.fed) = (read.done + n, None),
            false => read.ended = Some(outcome::DENIED),
        }
    }

    /// A part was read out of the owner's memory, from the back.
    pub(super) fn aside_moved(
        &mut self,
        result: io::Result<usize>,
        id: u64,
        seq: u32,
        (from, len): (u64, u64),
    ) -> Result<(), Status> {
        let Some(at) = self.reads.iter().position(|r| r.id == id) else { return Ok(()) };
        let Reading { remote, how, .. } = self.reads[at];
        if !self.exports.unchanged(remote.rkey, seq) {
            self.reads[at].ended = Some(outcome::DENIED);
            return Ok(());
        }
        match (self.out_of_process(result)?, how) {
            // A short read is a hole: only whole ones count.
            (Read::Bytes(n), How::Shared(number)) if n == len => {
                self.reads[at].back = from;
                let word = wire::pulled(number, from);
                self.tx.control().read_pulled.store(word, Ordering::Relaxed);
            }
            (Read::Refused, How::Shared(number)) => {
                let mut read = self.reads[at];
                self.ask_for_all(&mut read, number);
                self.reads[at] = read;
            }
            _ => self.reads[at].ended = Some(outcome::FAULT),
        }
        Ok(())
    }

    /// A READ has ended, however it went.
    pub(super) fn read_ended(&mut self, read: &Reading, code: u8) {
        if let How::Shared(number) = read.how {
            self.help_is_over(number);
        }
        if let Some(timed) = read.timed
            && code == outcome::OK
        {
            self.reading.answered(timed, read.len);
            self.reading.learn();
        }
    }

    /// The owner's memory can be read no longer: it is asked for all of it, as for those that follow.
    fn ask_for_all(&mut self, read: &mut Reading, number: u64) {
        self.help_is_over(number);
        (read.how, read.done, read.back, read.timed) = (How::Ask, 0, read.len, None);
    }

    fn help_is_over(&mut self, number: u64) {
        self.helped = number + 1;
        self.tx.control().reads_over.store(self.helped, Ordering::Relaxed);
    }
}
