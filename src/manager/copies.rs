//! Content moves without the manager's lock.
//!
//! Adapters leave their copies of content to the turn that polls them (see
//! [`crate::fabric::moves`]). A turn takes one, lets the lock go, makes the copy, takes the lock and
//! reports it: a page that comes slowly holds up this thread and this endpoint, and nobody else. Two
//! threads never make the same copy, since taking it takes it out; other endpoints, calls and
//! deadlines go on under whoever turns next.
//!
//! What follows from that for memory: closing a window does not wait for a copy that runs. So
//! whatever gives memory back to its owner (a callback, a buffer of the pool) is held back while a
//! running copy names a byte of it, and looked at again at least every millisecond.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};

use super::core::Core;
use super::world::World;
use crate::engine::{Buffer, Work};
use crate::fabric::moves::{self, MOVE_MAX, Move, Moved};
use crate::fabric::{Event, ProviderKind};
use crate::room::Grows;

/// What a turn may still move, and who is asked first.
#[derive(Default)]
pub struct Copies {
    /// Bytes; set by each turn.
    left: usize,
    /// The provider that is asked first, so that none starves.
    first: usize,
}

/// What waits for running copies.
#[derive(Default)]
pub struct HeldBack {
    work: VecDeque<Box<Work>>,
}

impl HeldBack {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.work.is_empty()
    }

    /// Whether so many more fit in.
    pub fn fits(&mut self, more: usize) -> bool {
        self.work.fits(more)
    }
}

/// Memory of the host that a callback gives back.
fn given_back(work: &Work) -> (u64, u64) {
    match work {
        Work::RecvDone { memory, .. } | Work::SendDone { memory, .. } => *memory,
        _ => (0, 0),
    }
}

impl World {
    /// Whether a callback has to wait for a copy; it then does.
    pub(super) fn hold_back(&mut self, work: Box<Work>) -> Option<Box<Work>> {
        let (addr, len) = given_back(&work);
        if !moves::touched(addr, len) {
            return Some(work);
        }
        self.held_back.work.push_back(work);
        None
    }

    /// Lets go of what waited for copies that have ended.
    pub(super) fn let_go(&mut self) {
        if self.held_back.is_empty() {
            return;
        }
        for _ in 0..self.held_back.work.len() {
            let Some(work) = self.held_back.work.pop_front() else { break };
            if let Some(work) = self.hold_back(work) {
                self.work.push_back(work);
            }
        }
    }

    /// Whether a buffer of the library must not be used again yet.
    pub(super) fn is_touched(&self, buffer: &Buffer) -> bool {
        !self.dying.is_empty() || moves::touched(buffer.addr, buffer.len)
    }

    /// Whether something waits for copies.
    pub fn waits_for_copies(&self) -> bool {
        !(self.held_back.is_empty() && self.parked.is_empty())
    }

    /// Whether an adapter has copies to be made.
    pub fn has_moves(&self) -> bool {
        self.adapters.iter().flatten().any(|adapter| adapter.has_moves())
    }
}

impl Core {
    /// A turn begins: so much may be moved in it.
    pub(super) fn begin_copies(&mut self) {
        self.copies.left = MOVE_MAX;
    }

    /// The next copy to be made in this turn.
    pub(super) fn next_copy(&mut self) -> Option<(ProviderKind, Move)> {
        if self.copies.left == 0 || !self.world.has_moves() {
            return None;
        }
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
            let mut events = std::mem::take(&mut self.events);
            let Some(adapter) = self.world.adapters[kind as usize].as_mut() else { continue };
            let one = adapter.take_move(&mut events);
            self.after_copy(kind, events);
            if let Some(one) = one {
                self.copies.first = (kind as usize + 1) % ProviderKind::ALL.len();
                return Some((kind, one));
            }
        }
        None
    }

    /// A copy was made; the number of events that came of it, itself included.
    pub(super) fn copied(&mut self, kind: ProviderKind, done: Moved) -> u32 {
        // A socket that had nothing after all is no event.
        let idle = matches!(&done.result, Err(e) if e.kind() == std::io::ErrorKind::WouldBlock);
        // Each costs something, however short.
        let cost = done.result.as_ref().map_or(0, |&n| n).max(4096);
        self.copies.left = self.copies.left.saturating_sub(cost);
        self.room_for_events();
        let mut events = std::mem::take(&mut self.events);
        self.armed = false;
        if let Some(adapter) = self.world.adapters[kind as usize].as_mut() {
            adapter.moved(done, &mut events);
        }
        u32::from(!idle) + self.after_copy(kind, events)
    }

    fn after_copy(&mut self, kind: ProviderKind, mut events: Vec<Event>) -> u32 {
        let count = events.len() as u32;
        if count > 0 {
            self.world.tick();
        }
        for event in events.drain(..) {
            self.on_event(kind, event);
        }
        self.events = events;
        // The peer hears of it.
        self.world.posted_to |= 1 << kind as u8;
        self.finish();
        count
    }
}

/// Content up to this length may go into a message, for which it is read under the lock.
const MESSAGE: u64 = 128 << 10;
/// The smallest page.
const PAGE: u64 = 4096;

/// Touches content that may go into a message, or come out of one, before the lock is taken: what is
/// not in memory is fetched now, at the expense of this call alone.
///
/// # Safety
/// The memory is readable for `len` bytes, and writable if `write`.
pub(super) unsafe fn touch(addr: u64, len: u64, write: bool) {
    if len == 0 || len > MESSAGE {
        return;
    }
    let last = addr + len - 1;
    let mut at = addr;
    loop {
        let byte = at as *mut u8;
        if write {
            // SAFETY: by the caller; a byte has any alignment.
            let byte = unsafe { AtomicU8::from_ptr(byte) };
            // Writes what is there: a plain look would leave a page of zeros that nobody owns.
            let was = byte.load(Ordering::Relaxed);
            let _ = byte.compare_exchange(was, was, Ordering::Relaxed, Ordering::Relaxed);
        } else {
            // SAFETY: by the caller.
            unsafe { byte.read_volatile() };
        }
        if at == last {
            return;
        }
        at = ((at & !(PAGE - 1)) + PAGE).min(last);
    }
}
