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

/// Low bits of an rkey: the slot in the table.
const SLOT_BITS: u32 = 14;
/// Most regions at a time.
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

/// The owner's side.
#[derive(Debug)]
pub(crate) struct Exports {
    map: Mapping,
    fd: Local<OwnedFd>,
    slots: Vec<Owned>,
    free: Vec<u32>,
    random: KeySource,
    armed: u32,
}

impl Exports {
    /// Makes an empty table.
    pub(crate) fn create() -> io::Result<Exports> {
        let fd = sys::memfd(c"rdma-transport-exports", FILE)?;
        let map = Mapping::shared(sys::borrow(&fd), FILE, true)?;
        sys::seal_future_write(&fd)?;
        let random = KeySource::default();
        let fd = Local::new(fd);
        Ok(Exports { map, fd, slots: Vec::new(), free: Vec::new(), random, armed: 0 })
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
            return Err(Status::invalid(format!(
                "region of {} bytes at {:#x} exceeds the address space",
                region.len, region.base
            )));
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < MAX_REGIONS => {
                crate::room::grow(&mut self.slots, 1, "regions")?;
                // So that `remove` needs none.
                let (all, free) = (self.slots.len() + 1, self.free.len());
                crate::room::grow(&mut self.free, all - free, "regions")?;
                self.slots.push(Owned { rkey: 0, last: 0, region: NOTHING, to: None });
                (self.slots.len() - 1) as u32
            }
            None => {
                return Err(Status::new(
                    Code::ResourceExhausted,
                    format!("shm: {MAX_REGIONS} regions are registered, which is the limit"),
                ));
            }
        };
        let owned = &mut self.slots[slot as usize];
        let rkey = loop {
            let high = match self.random.next() {
                Ok(high) => high,
                Err(e) => {
                    self.free.push(slot);
                    return Err(Status::os("system's random generator", &e));
                }
            };
            let rkey = high << SLOT_BITS | slot;
            if rkey >> SLOT_BITS != 0 && rkey != owned.last {
                break rkey;
            }
        };
        *owned = Owned { rkey, last: rkey, region, to: None };
        self.show(slot, rkey, &region);
        Ok(rkey)
    }

    /// Removes a region; peers that are reading it notice.
    pub(crate) fn remove(&mut self, rkey: u32) -> Result<(), Status> {
        let slot = rkey & (MAX_REGIONS as u32 - 1);
        match self.slots.get_mut(slot as usize) {
            Some(owned) if owned.rkey == rkey && rkey != 0 => owned.rkey = 0,
            _ => {
                return Err(Status::new(Code::NotFound, format!("shm: no region {rkey:#010x}")));
            }
        }
        self.free.push(slot);
        self.show(slot, 0, &NOTHING);
        // Whatever the caller does to the memory next, a reader of the entry sees the change first.
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// From now on the key is good for this endpoint's peer only.
    pub(crate) fn grant(&mut self, rkey: u32, to: EpId) {
        let slot = (rkey & (MAX_REGIONS as u32 - 1)) as usize;
        if let Some(owned) = self.slots.get_mut(slot).filter(|o| rkey != 0 && o.rkey == rkey) {
            owned.to = Some(to);
        }
    }

    /// The region of a key that this endpoint's peer used.
    fn of_peer(&self, rkey: u32, ep: EpId) -> Option<&Export> {
        let owned = self.slots.get((rkey & (MAX_REGIONS as u32 - 1)) as usize)?;
        // All peers see all keys in the table: that one knows a key does not say that it was given it.
        let given = owned.to.is_none_or(|to| to == ep);
        (rkey != 0 && owned.rkey == rkey && given).then_some(&owned.region)
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
        if !sys::is_eventfd(&bell) {
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
    fn next(&mut self) -> io::Result<u32> {
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
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::os::EventFd;

    fn region(base: u64, len: u64) -> Export {
        Export { base, len, access: Access::REMOTE_WRITE, pool: None }
    }

    const EP: EpId = EpId(7);

    fn foreign(fd: OwnedFd) -> Foreign {
        Foreign::new(fd, &std::sync::Arc::default())
    }

    #[test]
    fn r14_a_key_is_good_for_the_peer_that_was_given_it() {
        let mut table = Exports::create().unwrap();
        let region = Export { access: Access::REMOTE_READ, pool: Some((3, 0)), ..region(64, 64) };
        let key = table.add(region).unwrap();
        let reads = |table: &Exports, ep| {
            let reads = table.check(ep, key, 64, 64, Access::REMOTE_READ).is_some();
            assert_eq!(table.pool_of(ep, key), reads.then_some(3));
            reads
        };
        assert!(reads(&table, EP) && reads(&table, EpId(8)));
        table.grant(key, EP);
        assert!(reads(&table, EP) && !reads(&table, EpId(8)));
        table.remove(key).unwrap();
        assert!(!reads(&table, EP));
        let writes = table.add(Export { access: Access::REMOTE_WRITE, ..region }).unwrap();
        assert_eq!(table.pool_of(EP, writes), None);
    }

    #[test]
    fn bounds_are_overflow_safe() {
        let r = region(1000, 100);
        let w = Access::REMOTE_WRITE;
        assert!(r.allows(1000, 100, w) && r.allows(1100, 0, w) && r.allows(1099, 1, w));
        for (addr, len) in [(999, 1), (1000, 101), (1100, 1), (1101, 0), (0, u64::MAX)] {
            assert!(!r.allows(addr, len, w), "{addr} {len}");
        }
        assert!(!r.allows(1050, u64::MAX, w) && !r.allows(u64::MAX, u64::MAX, w));
        assert!(!r.allows(1000, 1, Access::REMOTE_READ));
    }

    #[test]
    fn keys_are_fresh_and_die_with_the_region() {
        let mut table = Exports::create().unwrap();
        let peer =
            PeerExports::map(table.fd(), foreign(OwnedFd::from(EventFd::new().unwrap()))).unwrap();
        let mut last = 0;
        for _ in 0..1000 {
            let key = table.add(region(64, 64)).unwrap();
            assert!(key != 0 && key != last);
            last = key;
            assert!(table.check(EP, key, 64, 64, Access::REMOTE_WRITE).is_some());
            let (seq, seen) = peer.look(key).unwrap();
            assert_eq!(seen, region(64, 64));
            assert!(peer.unchanged(key, seq));
            table.remove(key).unwrap();
            assert!(peer.look(key).is_none() && !peer.unchanged(key, seq));
            assert!(table.check(EP, key, 64, 64, Access::REMOTE_WRITE).is_none());
            assert_eq!(table.remove(key).unwrap_err().code, Code::NotFound);
        }
    }

    #[test]
    fn the_table_is_bounded() {
        let mut table = Exports::create().unwrap();
        let keys: Vec<u32> = (0..MAX_REGIONS).map(|_| table.add(region(0, 1)).unwrap()).collect();
        assert_eq!(table.add(region(0, 1)).unwrap_err().code, Code::ResourceExhausted);
        table.remove(keys[77]).unwrap();
        table.add(region(0, 1)).unwrap();
        assert_eq!(table.add(region(u64::MAX, 2)).unwrap_err().code, Code::InvalidArgument);
    }

    #[test]
    fn a_bell_that_is_none_or_blocks_does_no_harm() {
        let mut table = Exports::create().unwrap();
        let (read, write) = std::io::pipe().unwrap();
        drop(read);
        assert!(PeerExports::map(table.fd(), foreign(write.into())).is_err(), "ends the process");
        let blocks = |fd: &OwnedFd| {
            // SAFETY: plain system call.
            assert_eq!(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, 0) }, 0);
        };
        let bell = OwnedFd::from(EventFd::new().unwrap());
        blocks(&bell);
        assert!(PeerExports::map(table.fd(), foreign(bell)).is_err(), "stops the process");
        let bell = OwnedFd::from(EventFd::new().unwrap());
        let held = bell.try_clone().unwrap();
        let mut peer = PeerExports::map(table.fd(), foreign(bell)).unwrap();
        let full = (u64::MAX - 1).to_ne_bytes();
        // SAFETY: eight readable bytes.
        assert_eq!(unsafe { libc::write(held.as_raw_fd(), full.as_ptr().cast(), 8) }, 8);
        blocks(&held);
        table.arm();
        peer.ring();
    }
}
