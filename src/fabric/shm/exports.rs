//! What an adapter shows to all its peers, in one sealed memfd that only it writes: the doorbell
//! word and the table of registered regions. Peers map it read-only; the cost is per adapter.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::foreign::Foreign;
use super::ring::load32;
use super::sys::{self, Mapping};
use crate::fabric::{Access, EpId};
use crate::local_fd::Local;
use crate::status::{Code, Status};

/// Low bits of the key of a region that peers see: the slot in the table.
const SLOT_BITS: u32 = 14;
/// Most such regions at a time.
pub(crate) const MAX_REGIONS: usize = 1 << SLOT_BITS;
const _: () = assert!(MAX_REGIONS == crate::limits::SHM_REGIONS);
/// The table begins here; the first page holds the doorbell.
const TABLE: usize = 4096;
/// Bytes of the memfd; pages that were never used cost nothing.
const FILE: usize = TABLE + MAX_REGIONS * size_of::<Entry>();

/// A region as peers see it, under a sequence lock: odd while it changes.
#[derive(Debug)]
#[repr(C, align(64))]
struct Entry {
    seq: AtomicU32,
    rkey: AtomicU32,
    access: AtomicU32,
    /// Pool segment plus one; 0: not in the pool.
    pool: AtomicU32,
    base: AtomicU64,
    len: AtomicU64,
    /// Where `base` lies in the pool segment.
    pool_offset: AtomicU64,
}

/// An exported region, as its owner knows it or as a peer has read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Export {
    /// First byte, in its owner's address space.
    pub(crate) base: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// Allowed operations.
    pub(crate) access: Access,
    /// Pool segment that holds it, with the offset of `base`.
    pub(crate) pool: Option<(u32, u64)>,
}

impl Export {
    /// Whether it covers the range and allows the access; overflow-safe.
    pub(crate) fn allows(&self, addr: u64, len: u64, need: Access) -> bool {
        self.access.contains(need)
            && addr
                .checked_sub(self.base)
                .is_some_and(|off| off <= self.len && len <= self.len - off)
    }
}

#[derive(Debug)]
struct Owned {
    /// 0: free.
    rkey: u32,
    /// The key that this slot had last: never given twice in a row.
    last: u32,
    region: Export,
    /// The endpoint whose peer was given the key; `None`: whoever knows it.
    to: Option<EpId>,
}

const NOTHING: Export = Export { base: 0, len: 0, access: Access::empty(), pool: None };

/// A region's place: in the table that peers see, or beside it. Only what a peer may read by itself has to be seen; what it may have
/// written there, or what is used here alone, is looked up here. Of those there are as many as messages on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    hidden: bool,
    at: u32,
}

/// Of a key: it is hidden.
const HIDDEN: u32 = 1 << 31;
/// Low bits of the key of a hidden region: its slot.
const HIDDEN_BITS: u32 = 20;
const _: () = assert!(1 << HIDDEN_BITS == crate::limits::SHM_HIDDEN_REGIONS);

impl Slot {
    fn of(rkey: u32) -> Slot {
        let hidden = rkey & HIDDEN != 0;
        let bits = if hidden { HIDDEN_BITS } else { SLOT_BITS };
        Slot { hidden, at: rkey & ((1 << bits) - 1) }
    }

    /// A key of it, with these random bits. Never 0, nor for a hidden one a number that is none.
    fn key(self, random: u32) -> Option<u32> {
        match self.hidden {
            true => Some(HIDDEN | random << HIDDEN_BITS | self.at),
            false => {
                Some((random << SLOT_BITS | self.at) & !HIDDEN).filter(|key| key >> SLOT_BITS != 0)
            }
        }
    }
}

/// Regions in slots, which are used again.
#[derive(Debug, Default)]
struct Slots {
    all: Vec<Owned>,
    free: Vec<u32>,
}

impl Slots {
    /// A free slot, of this many at most.
    fn take(&mut self, most: usize) -> Result<u32, Status> {
        if let Some(slot) = self.free.pop() {
            return Ok(slot);
        }
        if self.all.len() >= most {
            let text = text!("shm: {most} regions are registered, which is the limit");
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        crate::room::grow(&mut self.all, 1, "regions")?;
        // So that `remove` needs none.
        let more = self.all.len() + 1 - self.free.len();
        crate::room::grow(&mut self.free, more, "regions")?;
        self.all.push(Owned { rkey: 0, last: 0, region: NOTHING, to: None });
        Ok((self.all.len() - 1) as u32)
    }
}

/// The owner's side.
#[derive(Debug)]
pub(crate) struct Exports {
    map: Mapping,
    fd: Local<OwnedFd>,
    shown: Slots,
    hidden: Slots,
    random: KeySource,
    armed: u32,
}

impl Exports {
    /// Makes an empty table.
    pub(crate) fn create() -> io::Result<Exports> {
        let fd = sys::memfd(c"rdma-transport-exports", FILE)?;
        let map = Mapping::shared(sys::borrow(&fd), FILE, true)?;
        sys::seal_future_write(&fd)?;
        let (random, fd) = (KeySource::default(), Local::new(fd));
        let (shown, hidden) = (Slots::default(), Slots::default());
        Ok(Exports { map, fd, shown, hidden, random, armed: 0 })
    }

    /// The file, to pass to peers.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Announces that this side is about to sleep: from now on peers ring.
    pub(crate) fn arm(&mut self) {
        self.armed = self.armed.wrapping_add(1) | 1;
        doorbell(&self.map).store(self.armed, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Announces that this side is awake.
    pub(crate) fn disarm(&mut self) {
        if self.armed & 1 == 1 {
            self.armed = self.armed.wrapping_add(1);
            doorbell(&self.map).store(self.armed, Ordering::Relaxed);
        }
    }

    /// Whether peers ring.
    pub(crate) fn is_armed(&self) -> bool {
        self.armed & 1 == 1
    }

    /// Adds a region and draws its key.
    pub(crate) fn add(&mut self, region: Export) -> Result<u32, Status> {
        if region.base.checked_add(region.len).is_none() {
            return Err(Status::invalid(text!(
                "region of {} bytes at {:#x} exceeds the address space",
                region.len,
                region.base
            )));
        }
        let hidden = !region.access.contains(Access::REMOTE_READ);
        let (slots, most) = match hidden {
            true => (&mut self.hidden, 1 << HIDDEN_BITS),
            false => (&mut self.shown, MAX_REGIONS),
        };
        let slot = Slot { hidden, at: slots.take(most)? };
        let owned = &mut slots.all[slot.at as usize];
        let rkey = loop {
            let random = match self.random.next() {
                Ok(random) => random,
                Err(e) => {
                    slots.free.push(slot.at);
                    return Err(e);
                }
            };
            if let Some(rkey) = slot.key(random).filter(|&rkey| rkey != owned.last) {
                break rkey;
            }
        };
        *owned = Owned { rkey, last: rkey, region, to: None };
        if !hidden {
            self.show(slot.at, rkey, &region);
        }
        Ok(rkey)
    }

    /// Removes a region; peers that are reading it notice.
    pub(crate) fn remove(&mut self, rkey: u32) -> Result<(), Status> {
        let slot = Slot::of(rkey);
        let slots = if slot.hidden { &mut self.hidden } else { &mut self.shown };
        match slots.all.get_mut(slot.at as usize) {
            Some(owned) if owned.rkey == rkey && rkey != 0 => owned.rkey = 0,
            _ => {
                return Err(Status::new(Code::NotFound, text!("shm: no region {rkey:#010x}")));
            }
        }
        slots.free.push(slot.at);
        if !slot.hidden {
            self.show(slot.at, 0, &NOTHING);
            // Whatever the caller does to the memory next, a reader of the entry sees the change first.
            fence(Ordering::SeqCst);
        }
        Ok(())
    }

    fn owned(&self, rkey: u32) -> Option<&Owned> {
        let slot = Slot::of(rkey);
        let slots = if slot.hidden { &self.hidden } else { &self.shown };
        slots.all.get(slot.at as usize).filter(|owned| rkey != 0 && owned.rkey == rkey)
    }

    /// From now on the key is good for this endpoint's peer only.
    pub(crate) fn grant(&mut self, rkey: u32, to: EpId) {
        let slot = Slot::of(rkey);
        let slots = if slot.hidden { &mut self.hidden } else { &mut self.shown };
        let owned = slots.all.get_mut(slot.at as usize);
        if let Some(owned) = owned.filter(|o| rkey != 0 && o.rkey == rkey) {
            owned.to = Some(to);
        }
    }

    /// The region of a key that this endpoint's peer used.
    fn of_peer(&self, rkey: u32, ep: EpId) -> Option<&Export> {
        // All peers see all keys in the table: that one knows a key does not say that it was given it.
        let given = |owned: &&Owned| owned.to.is_none_or(|to| to == ep);
        self.owned(rkey).filter(given).map(|owned| &owned.region)
    }

    /// The region of a key that this endpoint's peer used, if it covers the range and allows the
    /// access.
    pub(crate) fn check(
        &self,
        ep: EpId,
        rkey: u32,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Option<&Export> {
        self.of_peer(rkey, ep).filter(|region| region.allows(addr, len, need))
    }

    /// The pool segment in which this endpoint's peer may read by this key.
    pub(crate) fn pool_of(&self, ep: EpId, rkey: u32) -> Option<u32> {
        let region = self.of_peer(rkey, ep)?;
        region.access.contains(Access::REMOTE_READ).then_some(region.pool?.0)
    }

    fn show(&self, slot: u32, rkey: u32, region: &Export) {
        let Some(entry) = entry(&self.map, slot) else { return };
        let seq = entry.seq.load(Ordering::Relaxed);
        entry.seq.store(seq.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        entry.rkey.store(rkey, Ordering::Relaxed);
        entry.access.store(region.access.bits(), Ordering::Relaxed);
        entry.pool.store(region.pool.map_or(0, |(id, _)| id + 1), Ordering::Relaxed);
        entry.base.store(region.base, Ordering::Relaxed);
        entry.len.store(region.len, Ordering::Relaxed);
        entry.pool_offset.store(region.pool.map_or(0, |(_, off)| off), Ordering::Relaxed);
        entry.seq.store(seq.wrapping_add(2), Ordering::Release);
    }
}

/// The doorbell word at the start of a mapped exports file.
fn doorbell(map: &Mapping) -> &AtomicU32 {
    // SAFETY: the mapping is page-aligned and longer than a word; the word is only used atomically.
    unsafe { AtomicU32::from_ptr(map.ptr().cast()) }
}

/// An entry of a mapped exports file.
fn entry(map: &Mapping, slot: u32) -> Option<&Entry> {
    let at = TABLE + slot as usize * size_of::<Entry>();
    if at + size_of::<Entry>() > map.len() {
        return None;
    }
    // SAFETY: inside the mapping, 64-byte aligned, made of atomics, which take any bytes.
    Some(unsafe { &*map.ptr().add(at).cast::<Entry>() })
}

/// A peer's side: its table and how to wake it.
#[derive(Debug)]
pub(crate) struct PeerExports {
    map: Mapping,
    bell: Foreign,
    rung: u32,
}

impl PeerExports {
    /// Maps a peer's exports, once size and seals are right and the doorbell is one.
    pub(crate) fn map(fd: &OwnedFd, bell: Foreign) -> io::Result<PeerExports> {
        if !sys::is_eventfd(&bell)? {
            return Err(io::Error::other("the peer's doorbell is no eventfd that does not block"));
        }
        if sys::sealed_len(fd)? != FILE as u64 {
            return Err(io::Error::other("the peer's exports have another size than ours"));
        }
        let map = Mapping::shared(sys::borrow(fd), FILE, false)?;
        Ok(PeerExports { map, bell, rung: 0 })
    }

    /// Wakes the peer if it sleeps, once per sleep. The caller has published and fenced.
    pub(crate) fn ring(&mut self) {
        let armed = load32(doorbell(&self.map));
        if armed & 1 == 1 && armed != self.rung {
            self.rung = armed;
            sys::eventfd_write(&self.bell);
        }
    }

    /// The region of a key as the peer shows it now, with the number of its last change.
    pub(crate) fn look(&self, rkey: u32) -> Option<(u32, Export)> {
        let entry = entry(&self.map, rkey & (MAX_REGIONS as u32 - 1))?;
        let seq = load32(&entry.seq);
        let shown = entry.rkey.load(Ordering::Relaxed);
        let pool = entry.pool.load(Ordering::Relaxed);
        let region = Export {
            base: entry.base.load(Ordering::Relaxed),
            len: entry.len.load(Ordering::Relaxed),
            access: Access::from_bits_truncate(entry.access.load(Ordering::Relaxed)),
            pool: pool.checked_sub(1).map(|id| (id, entry.pool_offset.load(Ordering::Relaxed))),
        };
        fence(Ordering::Acquire);
        let same = entry.seq.load(Ordering::Relaxed) == seq && seq & 1 == 0;
        (same && rkey != 0 && shown == rkey).then_some((seq, region))
    }

    /// Whether nothing changed at this key since `look`.
    pub(crate) fn unchanged(&self, rkey: u32, seq: u32) -> bool {
        // Everything read before counts as read before this look.
        fence(Ordering::SeqCst);
        entry(&self.map, rkey & (MAX_REGIONS as u32 - 1))
            .is_some_and(|e| load_pair(e) == (seq, rkey))
    }
}

fn load_pair(entry: &Entry) -> (u32, u32) {
    (load32(&entry.seq), load32(&entry.rkey))
}

/// Random bits for keys, fetched from the system in blocks.
#[derive(Debug)]
struct KeySource {
    block: [u8; 512],
    used: usize,
}

impl Default for KeySource {
    fn default() -> KeySource {
        KeySource { block: [0; 512], used: 512 }
    }
}

impl KeySource {
    fn next(&mut self) -> Result<u32, Status> {
        if self.used + 4 > self.block.len() {
            self.block = sys::random()?;
            self.used = 0;
        }
        let mut word = [0; 4];
        word.copy_from_slice(&self.block[self.used..self.used + 4]);
        // Used bits do not stay in memory.
        self.block[self.used..self.used + 4].fill(0);
        self.used += 4;
        Ok(u32::from_le_bytes(word))
    }
}

#[cfg(test)]
mod tests;
