//! Registrations that are kept after the transfer that made them, for the next one of the same memory.
//!
//! For applications that cannot register ahead, since others allocate: opt-in, by a bound on the bytes. Nothing watches the
//! allocator: whoever frees or maps anew memory that was sent from or received into says so
//! (`rdma_mem_invalidate`). An entry has a number that no other ever gets, and a window names it: once it was
//! invalidated no transfer finds it, and those that use it still give it back by that number, upon which it is deregistered.

use super::memory::{self, ALL, Adapters};
use crate::engine::{Cached, Origin, Window};
use crate::fabric::keys::Keys;
use crate::fabric::{Access, Adapter, Mr};
use crate::room::Grows;

/// Entries, of which each is looked at when one has to go.
const ENTRIES: usize = 4096;
/// Shorter memory is copied: that takes less than to register it, and to look whether it is.
pub const SHORTEST: u64 = 16 * 1024;

/// A registration.
#[derive(Debug)]
struct Entry {
    id: u64,
    kind: usize,
    addr: u64,
    len: u64,
    access: Access,
    keys: Keys<Mr>,
    /// Windows that are open.
    users: u32,
    /// When it was last used, in uses of all.
    used: u64,
}

impl Entry {
    fn end(&self) -> u64 {
        self.addr + self.len
    }
    fn overlaps(&self, addr: u64, len: u64) -> bool {
        self.addr < addr.saturating_add(len) && addr < self.end()
    }
    fn close(&self, adapters: &mut Adapters) {
        if let Some(adapter) = adapters[self.kind].as_mut()
            && let Err(status) = memory::close(&mut **adapter, &self.keys)
        {
            crate::log::error(format_args!("a registration that was kept: {status}"));
        }
    }
}

/// What became of lookups, and what is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Found.
    pub hits: u64,
    /// Not found.
    pub misses: u64,
    /// Let go for want of room.
    pub evicted: u64,
    /// Bytes registered now.
    pub bytes: u64,
}

/// The registrations that are kept for the next transfer of the same memory.
#[derive(Debug, Default)]
pub struct Registrations {
    /// Bytes; 0: nothing is kept.
    bound: u64,
    counts: Counts,
    /// By provider and address; those of one provider do not overlap.
    live: Vec<Entry>,
    /// Invalidated, and used by transfers that began before.
    stale: Vec<Entry>,
    /// Numbers of entries, and of uses.
    last: u64,
}

impl Registrations {
    /// Keeps so many bytes at most; 0: none.
    pub fn new(bound: u64) -> Registrations {
        Registrations { bound, ..Registrations::default() }
    }

    /// Whether anything is kept.
    pub fn is_on(&self) -> bool {
        self.bound > 0
    }

    /// See [`Counts`].
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The first entry that ends behind this address.
    fn position(&self, kind: usize, addr: u64) -> usize {
        self.live.partition_point(|e| (e.kind, e.end()) <= (kind, addr))
    }

    /// Those that overlap a range.
    fn overlapping(&self, kind: usize, addr: u64, len: u64) -> std::ops::Range<usize> {
        let first = self.position(kind, addr);
        let rest = self.live.get(first..).unwrap_or_default();
        let count = rest.iter().take_while(|e| e.kind == kind && e.overlaps(addr, len)).count();
        first..first + count
    }

    /// A window to memory that is registered already.
    pub fn find(&mut self, kind: usize, addr: u64, len: u64, access: Access) -> Option<Window> {
        let at = self.position(kind, addr);
        let entry = self.live.get_mut(at).filter(|e| e.kind == kind && e.addr <= addr)?;
        let fits = len <= entry.end() - addr && entry.access.contains(access);
        let keys =
            if fits { memory::part(&entry.keys, addr - entry.addr, len)? } else { return None };
        self.last += 1;
        entry.used = self.last;
        entry.users += 1;
        self.counts.hits += 1;
        let cached = Cached { id: entry.id, kind, addr: entry.addr };
        Some(Window { keys, origin: Origin::Cached(cached) })
    }

    /// Registers memory, and keeps that. `None` if it cannot be registered, or not be kept.
    ///
    /// # Safety
    /// The memory stays valid until it is invalidated.
    pub unsafe fn add(
        &mut self,
        adapters: &mut Adapters,
        kind: usize,
        (addr, len): (u64, u64),
        access: Access,
    ) -> Option<Window> {
        self.counts.misses += 1;
        // What it overlaps becomes one with it, or memory used in several ways would be registered again and again.
        let over = self.overlapping(kind, addr, len);
        let near = self.live.get(over.clone()).unwrap_or_default();
        let from = near.first().map_or(addr, |e| e.addr.min(addr));
        let to = near.last().map_or(addr + len, |e| e.end().max(addr + len));
        for at in over.rev() {
            self.take_out(adapters, at);
        }
        let (mut place, mut rights) = ((from, to - from), ALL);
        let mut keys = None;
        if self.make_room(adapters, place.1) {
            // SAFETY: what was registered has not been invalidated; the rest by the caller.
            keys = unsafe { register(adapters, kind, place, rights) };
        }
        if keys.is_none() {
            // Part of it is gone without a word, or the system allows no more; or it may only be read.
            self.drop_idle(adapters);
            place = (addr, len);
            if self.make_room(adapters, len) {
                // SAFETY: by the caller.
                keys = unsafe { register(adapters, kind, place, rights) };
                rights = if keys.is_some() { rights } else { access };
                // SAFETY: by the caller.
                keys = keys.or_else(|| unsafe { register(adapters, kind, place, rights) });
            }
        }
        let keys = keys?;
        self.last += 1;
        let (id, used, users) = (self.last, self.last, 0);
        let entry =
            Entry { id, kind, addr: place.0, len: place.1, access: rights, keys, users, used };
        self.counts.bytes += entry.len;
        self.live.insert(self.position(kind, entry.addr), entry);
        let window = self.find(kind, addr, len, access);
        self.counts.hits -= u64::from(window.is_some());
        window
    }

    /// Makes room for one more entry of so many bytes; false: what is in use leaves none.
    fn make_room(&mut self, adapters: &mut Adapters, len: u64) -> bool {
        let full = |all: &Registrations| {
            all.counts.bytes.saturating_add(len) > all.bound || all.live.len() >= ENTRIES
        };
        while len <= self.bound && full(self) {
            let idle = self.live.iter().enumerate().filter(|(_, e)| e.users == 0);
            let Some((oldest, _)) = idle.min_by_key(|(_, e)| e.used) else { return false };
            self.take_out(adapters, oldest);
            self.counts.evicted += 1;
        }
        let places = self.live.len() + 1;
        // Each entry can become stale without an allocation.
        !full(self) && self.live.fits(1) && self.stale.fits(places)
    }

    /// Lets go of all that no transfer uses.
    fn drop_idle(&mut self, adapters: &mut Adapters) {
        for at in (0..self.live.len()).rev() {
            if self.live[at].users == 0 {
                self.take_out(adapters, at);
                self.counts.evicted += 1;
            }
        }
    }

    /// No transfer finds it any more; it is deregistered when none uses it.
    fn take_out(&mut self, adapters: &mut Adapters, at: usize) {
        let entry = self.live.remove(at);
        if entry.users > 0 {
            return self.stale.push(entry);
        }
        self.counts.bytes -= entry.len;
        entry.close(adapters);
    }

    /// The memory is freed, or mapped anew: nothing that was registered of it is used again.
    pub fn invalidate(&mut self, adapters: &mut Adapters, addr: u64, len: u64) {
        for at in (0..self.live.len()).rev() {
            if self.live[at].overlaps(addr, len) {
                self.take_out(adapters, at);
            }
        }
    }

    /// A window is closed.
    pub fn release(&mut self, adapters: &mut Adapters, of: Cached) {
        let at = self.position(of.kind, of.addr);
        if let Some(entry) = self.live.get_mut(at).filter(|e| e.id == of.id) {
            entry.users -= 1;
            return;
        }
        let Some(at) = self.stale.iter().position(|e| e.id == of.id) else { return };
        self.stale[at].users -= 1;
        if self.stale[at].users == 0 {
            let entry = self.stale.swap_remove(at);
            self.counts.bytes -= entry.len;
            entry.close(adapters);
        }
    }
}

/// # Safety
/// The memory stays valid until it is deregistered.
unsafe fn register(
    adapters: &mut Adapters,
    kind: usize,
    (addr, len): (u64, u64),
    access: Access,
) -> Option<Keys<Mr>> {
    let adapter: &mut dyn Adapter = &mut **adapters[kind].as_mut()?;
    // SAFETY: by the caller.
    unsafe { memory::open(adapter, addr, len, access) }.ok()
}

#[cfg(test)]
mod tests;
