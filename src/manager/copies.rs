//! Content moves without the manager's lock.
//!
//! Adapters leave their copies of content to the turn that polls them (see
//! [`crate::fabric::moves`]). A turn takes one, lets the lock go, makes the copy, takes the lock and
//! reports it: a page that comes slowly holds up this thread and this endpoint, and nobody else. Two
//! threads never make the same copy, since taking it takes it out; other endpoints, calls and
//! deadlines go on under whoever turns next.
//!
//! So does the engine's own business with memory of the application. It gets to read or write none of it by itself:
//! content that may go into a message is copied by the call that names it, before the lock (one that keeps nobody waiting
//! hands it over where it lies: see [`super::copied`]); what came in one is delivered after the lock, before the callbacks
//! of that turn (`deliveries`); copies and checksums of any length are jobs that a turn takes one by one, as it does the moves.
//!
//! What follows from that for memory: closing a window does not wait for a copy that runs. So
//! whatever gives memory back to its owner (a callback, a buffer of the pool) is held back while a
//! running copy names a byte of it, and looked at again at least every millisecond.

use std::collections::VecDeque;

use super::core::Core;
use super::world::World;
use crate::engine::{Buffer, Range, Work};
use crate::fabric::ProviderKind;
use crate::fabric::moves::{self, MOVE_MAX, Move, Moved};
use crate::room::Grows;

/// What a turn may still move, and who is asked first.
#[derive(Default)]
pub struct Copies {
    /// Bytes; set by each turn.
    left: usize,
    /// The provider that is asked first, so that none starves.
    first: usize,
    /// A job was taken last.
    job: bool,
    /// None is to be begun: whoever drives is the last who can.
    barred: bool,
}

impl Copies {
    /// None is to be begun.
    pub(super) fn are_barred(&self) -> bool {
        self.barred
    }

    fn spend(&mut self, len: usize) {
        // Each costs something, however short.
        self.left = self.left.saturating_sub(len.max(4096));
    }
}

/// What a turn does without the lock, one at a time.
#[allow(clippy::large_enum_variant, reason = "there is one at a time, on the stack")]
pub(super) enum Copy {
    /// Of an adapter.
    Move(ProviderKind, Move),
    /// Of the engine.
    Job(Work),
}

/// What waits for running copies.
#[derive(Default)]
pub struct HeldBack {
    pub(super) work: VecDeque<Work>,
}

impl HeldBack {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.work.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.work.len()
    }

    /// Whether so many more fit in.
    pub fn fits(&mut self, more: usize) -> bool {
        self.work.fits(more)
    }
}

/// Memory of the host that a callback gives back.
fn given_back(work: &Work) -> (u64, u64) {
    match work {
        Work::RecvDone { memory, .. }
        | Work::SendDone { memory, .. }
        | Work::MessageDone { memory, .. }
        | Work::MessageEnded { memory, .. }
        | Work::BufferEvents { memory, .. } => *memory,
        _ => (0, 0),
    }
}

impl World {
    /// Whether a callback has to wait for a copy.
    #[inline]
    pub(super) fn must_wait(work: &Work) -> bool {
        let (addr, len) = given_back(work);
        moves::touched(addr, len)
    }

    /// Lets go of what waited for copies that have ended.
    pub(super) fn let_go(&mut self) {
        if self.held_back.is_empty() {
            return;
        }
        for _ in 0..self.held_back.work.len() {
            let Some(work) = self.held_back.work.pop_front() else { break };
            if World::must_wait(&work) {
                self.held_back.work.push_back(work);
            } else {
                self.batch.works.push(work);
            }
        }
    }

    /// Whether a buffer of the library must not be used again yet.
    pub(super) fn is_touched(&self, buffer: &Buffer) -> bool {
        self.connections.has_dying() || moves::touched(buffer.addr, buffer.len)
    }

    /// Whether something waits for copies.
    pub fn waits_for_copies(&self) -> bool {
        !(self.held_back.is_empty() && self.parked.is_empty())
    }

    /// Whether there are copies to be made, or checksums to be computed. An adapter that was neither flushed nor
    /// said so since it was asked has none.
    #[inline]
    pub fn has_moves(&mut self) -> bool {
        !self.jobs.is_empty() || !self.moving.is_empty() && self.ask_for_moves()
    }

    fn ask_for_moves(&mut self) -> bool {
        for kind in self.moving {
            if !matches!(&self.adapters[kind as usize], Some(a) if a.has_moves()) {
                self.moving.remove(kind);
            }
        }
        !self.moving.is_empty()
    }
}

impl Core {
    /// A turn begins: so much may be moved in it.
    pub(super) fn begin_copies(&mut self) {
        self.copies.left = MOVE_MAX;
    }

    /// Whether copies may begin; see `standby`.
    pub(super) fn bar_copies(&mut self, barred: bool) {
        self.copies.barred = barred;
    }

    /// Whether a turn leaves something to be done without the lock.
    #[inline]
    pub(super) fn leaves_something(&mut self) -> bool {
        self.world.has_work() || self.copies_wait()
    }

    /// Whether a turn would make copies.
    #[inline(always)]
    pub(super) fn copies_wait(&mut self) -> bool {
        !self.copies.barred && self.world.has_moves()
    }

    /// The next copy to be made in this turn.
    pub(super) fn next_copy(&mut self) -> Option<Copy> {
        if self.copies.left == 0 || !self.copies_wait() {
            return None;
        }
        // By turns, so that neither starves.
        let job = |core: &mut Core| {
            let job = core.world.jobs.pop_front()?;
            if let Work::HostCopy { len, .. }
            | Work::Spread { len, .. }
            | Work::HostHash { len, .. } = &job
            {
                core.copies.spend(*len as usize);
            }
            core.copies.job = true;
            Some(Copy::Job(job))
        };
        if !self.copies.job
            && let Some(job) = job(self)
        {
            return Some(job);
        }
        self.copies.job = false;
        self.next_move().or_else(|| job(self))
    }

    fn next_move(&mut self) -> Option<Copy> {
        let first = self.copies.first;
        let kinds = ProviderKind::ALL.into_iter().cycle().skip(first).take(ProviderKind::ALL.len());
        for kind in kinds {
            let Some(adapter) = self.world.adapters[kind as usize].as_mut() else { continue };
            if !adapter.has_moves() {
                continue;
            }
            if !self.room_for_events() {
                return None;
            }
            let Some(adapter) = self.world.adapters[kind as usize].as_mut() else { continue };
            let one = adapter.take_move(&mut self.events);
            self.after_copy(kind);
            if let Some(one) = one {
                self.copies.first = (kind as usize + 1) % ProviderKind::ALL.len();
                return Some(Copy::Move(kind, one));
            }
        }
        None
    }

    /// The only copy that waits, if it touches no memory of an application but this.
    pub(super) fn own_copy(&mut self, own: &Range) -> Option<Copy> {
        if !self.copies_wait() || !self.room_for_events() {
            return None;
        }
        let (jobs, mut moving) = (&mut self.world.jobs, self.world.moving.into_iter());
        match (jobs.front(), moving.next(), moving.next()) {
            (Some(job), None, None) => {
                let is_own = job.reads().is_some_and(|(addr, len)| own.contains(addr, len));
                let taken = if is_own && jobs.len() == 1 { jobs.pop_front() } else { None };
                taken.map(Copy::Job)
            }
            (None, Some(kind), None) => {
                let own = own.addr..own.addr.saturating_add(own.len);
                let one = self.world.adapters[kind as usize].as_mut()?.take_own_move(own);
                // It may have failed for memory, which nobody is told of who sleeps by what was armed before.
                self.armed &= one.is_some();
                Some(Copy::Move(kind, one?))
            }
            _ => None,
        }
    }

    /// A copy was made; the number of events that came of it, itself included.
    pub(super) fn copied(&mut self, kind: ProviderKind, done: Moved) -> u32 {
        // A socket that had nothing after all is no event.
        let idle = matches!(&done.result, Err(e) if e.kind() == std::io::ErrorKind::WouldBlock);
        self.copies.spend(done.result.as_ref().map_or(0, |&n| n));
        self.room_for_events();
        self.armed = false;
        if let Some(adapter) = self.world.adapters[kind as usize].as_mut() {
            adapter.moved(done, &mut self.events);
        }
        u32::from(!idle) + self.after_copy(kind)
    }

    fn after_copy(&mut self, kind: ProviderKind) -> u32 {
        let count = if self.events.is_empty() { 0 } else { self.take_events(kind) };
        // The peer hears of it.
        self.world.posted_to.add(kind);
        self.finish();
        count
    }
}
