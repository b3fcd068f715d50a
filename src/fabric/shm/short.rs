//! WRITEs whose content came in their record and is short, and their ends: what a pair sends is mostly such. They take the way of all
//! WRITEs, but what is asked for one by one is asked here at once: no copy is built and kept for later, since who looked for it makes it.

use std::sync::atomic::Ordering;

use super::link::Link;
use super::moving::Running;
use super::ring::load64;
use super::wire::{self, Write, kind, outcome};
use super::{Core, Kind};
use crate::fabric::{Access, One, ShortRoom, ShortWrite};

impl Link {
    /// What is published next, where nothing else is under way.
    #[inline(always)]
    pub(super) fn hear_published(&mut self) -> One {
        match self.rx.take(kind::SEND) {
            Some(bytes) => One::Message(self.ep, bytes),
            None if self.rx.next_of(kind::WRITE_INLINE).is_some() => One::Write(self.ep),
            None => One::Other,
        }
    }

    /// The same while WRITEs of ours are under way, and perhaps something else is. What the peer has executed before it published that
    /// comes first: it may be the last that the peer says.
    #[inline(never)]
    pub(super) fn hear_behind_writes(&mut self, published: bool) -> One {
        let others = self.reads.len() | self.out.jobs.len() | self.asks.len() | self.ends.len();
        if others > 0 || self.inbound.is_some() {
            return One::Other;
        }
        match published {
            _ if load64(&self.theirs().executed) != self.answered => One::Done(self.ep),
            true => self.hear_published(),
            false => One::Nothing,
        }
    }

    /// See [`Adapter::take_write`](crate::fabric::Adapter::take_write).
    pub(super) fn take_write(&mut self, core: &Core, room: &mut ShortRoom) -> Option<ShortWrite> {
        if self.is_running(Kind::In) || self.inline_moved.is_some() || self.inbound.is_some() {
            return None;
        }
        let header = self.rx.next_of(kind::WRITE_INLINE)?;
        let len = (header.len as usize).checked_sub(Write::LEN)?;
        let to = Write::decode(&self.rx.copy());
        if !self.is_allowed(core, to, len) || !self.rx.copy_short(Write::LEN, len, room) {
            return None;
        }
        self.running[Kind::In as usize] = Some(Running::Inline { header, to });
        Some(ShortWrite { dst: to.dst, len })
    }

    /// See [`Adapter::wrote`](crate::fabric::Adapter::wrote). A region that was closed meanwhile counts as not written to.
    pub(super) fn wrote(&mut self, core: &Core) -> Option<u32> {
        let Some(Running::Inline { header, to }) = self.running[Kind::In as usize].take() else {
            return None;
        };
        let moved = &self.tx.control().moved;
        moved.store(moved.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        let allowed = self.is_allowed(core, to, header.len as usize - Write::LEN);
        self.outcome(if allowed { outcome::OK } else { outcome::DENIED });
        self.rx.advance(header.len);
        (allowed && header.flags & wire::HAS_IMM != 0).then_some(to.imm)
    }

    /// Whether the peer may write there. One of no content needs no key, but is held to one that it names.
    pub(super) fn is_allowed(&self, core: &Core, to: Write, len: usize) -> bool {
        let need = Access::REMOTE_WRITE;
        len == 0 && to.rkey == 0
            || core.exports.check(self.ep, to.rkey, to.dst, len as u64, need).is_some()
    }

    /// See [`Adapter::take_done`](crate::fabric::Adapter::take_done). What failed, or is timed, is left to `collect`.
    pub(super) fn take_done(&mut self) -> Option<u64> {
        let count = load64(&self.theirs().executed).wrapping_sub(self.answered);
        let few = count > 0 && count <= self.writes.len() as u64 && self.out.jobs.is_empty();
        if !few || load64(&self.theirs().failed) != self.failures {
            return None;
        }
        let wr = self.writes.front().filter(|posted| posted.timed.is_none())?.wr;
        self.writes.pop_front();
        self.answered += 1;
        Some(wr)
    }
}
