//! Pool segments: our own, which peers may map, and those of a peer that we have mapped.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::foreign::{Foreign, ForeignMap};
use super::ring::MAX_POOLS;
use super::sys;
use crate::fabric::PoolSegment;
use crate::fabric::moves::KeepAlive;
use crate::limits::{SHM_SEGMENT_MEMORY, SHM_SEGMENT_MEMORY_ALL, SHM_SEGMENTS_ALL};
use crate::room;
use crate::status::Status;

/// A segment of this process.
#[derive(Debug)]
struct Local {
    addr: u64,
    len: u64,
    id: u32,
    fd: OwnedFd,
}

/// The segments of this process, sorted by address.
#[derive(Debug, Default)]
pub(crate) struct LocalPools(Vec<Local>);

impl LocalPools {
    /// Makes a segment known. Known ones are left alone. One at the place of another takes that one's
    /// place, whose number is returned. One that cannot be sealed is not offered to peers.
    pub(crate) fn add(&mut self, segment: PoolSegment) -> Result<Option<u32>, Status> {
        if segment.addr.checked_add(segment.len).is_none() || segment.id == u32::MAX {
            return Err(Status::invalid(text!(
                "pool segment {} of {} bytes at {:#x} exceeds the address space",
                segment.id,
                segment.len,
                segment.addr
            )));
        }
        if self.0.iter().any(|s| s.id == segment.id) {
            return Ok(None);
        }
        let Some(fd) = segment.fd else { return Ok(None) };
        // SAFETY: the contract of PoolSegment: the pool keeps the descriptor open.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let fd =
            fd.try_clone_to_owned().map_err(|e| Status::os("pool segment's descriptor", &e))?;
        if let Err(e) = sys::seal_future_write(&fd) {
            let text = format_args!("pool segment {} is not shared: {e}", segment.id);
            crate::log::debug(text);
            return Ok(None);
        }
        let PoolSegment { id, addr, len, .. } = segment;
        room::grow(&mut self.0, 1, "pool segments")?;
        let at = self.0.partition_point(|s| s.addr < addr);
        let new = Local { addr, len, id, fd };
        match self.0.get_mut(at).filter(|old| old.addr == addr) {
            Some(old) => Ok(Some(std::mem::replace(old, new).id)),
            None => {
                self.0.insert(at, new);
                Ok(None)
            }
        }
    }

    /// The segment that holds the whole range, and the range's offset in it.
    pub(crate) fn find(&self, addr: u64, len: u64) -> Option<(u32, u64)> {
        let at = self.0.partition_point(|s| s.addr <= addr).checked_sub(1)?;
        let s = self.0.get(at)?;
        let offset = addr - s.addr;
        (offset <= s.len && len <= s.len - offset).then_some((s.id, offset))
    }

    /// Length and descriptor of a segment.
    pub(crate) fn get(&self, id: u32) -> Option<(u64, &OwnedFd)> {
        self.0.iter().find(|s| s.id == id).map(|s| (s.len, &s.fd))
    }
}

/// How much of the address space peers' segments take, over all endpoints of an adapter.
#[derive(Debug)]
pub(crate) struct MapBudget {
    /// Bytes of one peer's segments, at most; and of all.
    peer: u64,
    all: u64,
    bytes: AtomicU64,
    count: AtomicUsize,
}

impl MapBudget {
    /// What this host bears.
    pub(crate) fn host() -> MapBudget {
        let memory = crate::os::memory::physical_memory();
        MapBudget::of(
            memory.saturating_mul(SHM_SEGMENT_MEMORY),
            memory.saturating_mul(SHM_SEGMENT_MEMORY_ALL),
        )
    }

    fn of(peer: u64, all: u64) -> MapBudget {
        MapBudget { peer, all, bytes: AtomicU64::new(0), count: AtomicUsize::new(0) }
    }

    /// Takes a share for one segment, if there is one. Only the adapter's driver adds.
    fn take(self: &Arc<MapBudget>, len: u64) -> Option<Share> {
        let bytes = self.bytes.load(Ordering::Relaxed).checked_add(len)?;
        if bytes > self.all || self.count.load(Ordering::Relaxed) >= SHM_SEGMENTS_ALL {
            return None;
        }
        self.bytes.fetch_add(len, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
        Some(Share { budget: self.clone(), len })
    }
}

/// One segment's share, given back on drop.
#[derive(Debug)]
struct Share {
    budget: Arc<MapBudget>,
    len: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.bytes.fetch_sub(self.len, Ordering::Relaxed);
        self.budget.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A segment of a peer, mapped read-only. A copy out of it that is under way holds on to it.
#[derive(Debug)]
pub(crate) struct PeerPool {
    map: ForeignMap,
    share: Share,
}

/// The segments of one peer.
#[derive(Debug)]
pub(crate) struct PeerPools {
    mapped: Vec<(u32, Arc<PeerPool>)>,
    budget: Arc<MapBudget>,
    /// Segments that came, mapped or not.
    pub(crate) taken: u64,
}

impl PeerPools {
    pub(crate) fn new(budget: Arc<MapBudget>) -> PeerPools {
        PeerPools { mapped: Vec::new(), budget, taken: 0 }
    }

    /// Maps a segment that the peer has passed.
    pub(crate) fn add(&mut self, id: u32, len: u64, fd: Foreign) -> io::Result<()> {
        if self.mapped.len() >= MAX_POOLS || self.has(id) {
            return Err(io::Error::other("too many pool segments, or one twice"));
        }
        if sys::sealed_len(&fd)? < len || len == 0 {
            return Err(io::Error::other("the pool segment is shorter than announced"));
        }
        let own: u64 = self.mapped.iter().map(|(_, pool)| pool.share.len).sum();
        let share =
            if len <= self.budget.peer.saturating_sub(own) { self.budget.take(len) } else { None };
        let Some(share) = share else {
            return Err(io::Error::other("the pool segments take too much of the address space"));
        };
        let map = ForeignMap::open(fd, usize::try_from(len).map_err(io::Error::other)?)?;
        map.advise_huge();
        room::grow(&mut self.mapped, 1, "pool segments").map_err(io::Error::other)?;
        self.mapped.push((id, Arc::new(PeerPool { map, share })));
        Ok(())
    }

    /// Lets go of a segment that the peer has given up.
    pub(crate) fn remove(&mut self, id: u32) {
        self.mapped.retain(|(mapped, _)| *mapped != id);
    }

    /// Whether the segment is mapped.
    pub(crate) fn has(&self, id: u32) -> bool {
        self.mapped.iter().any(|s| s.0 == id)
    }

    /// Where `len` bytes at `offset` of a segment are mapped here, while the mapping is held; `None`
    /// beyond its bounds.
    pub(crate) fn at(&self, id: u32, offset: u64, len: u64) -> Option<(u64, KeepAlive)> {
        let (_, pool) = self.mapped.iter().find(|s| s.0 == id)?;
        let size = pool.map.len() as u64;
        if offset > size || len > size - offset {
            return None;
        }
        Some((pool.map.ptr() as u64 + offset, pool.clone()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn foreign(len: u64) -> Foreign {
        Foreign::new(sys::memfd(c"pool", len as usize).unwrap(), &Arc::default())
    }

    #[test]
    fn r14_what_peers_announce_is_bounded() {
        let budget = Arc::new(MapBudget::of(8 * MIB, 12 * MIB));
        let mut peers = [(); 2].map(|()| PeerPools::new(budget.clone()));
        for id in 0..8 {
            peers[0].add(id, MIB, foreign(MIB)).unwrap();
        }
        assert!(peers[0].add(8, MIB, foreign(MIB)).is_err(), "more than one peer may");
        assert!(peers[1].add(0, 1 << 43, foreign(1 << 43)).is_err());
        peers[1].add(0, 4 * MIB, foreign(4 * MIB)).unwrap();
        assert!(peers[1].add(1, MIB, foreign(MIB)).is_err(), "more than all may");
        peers[0].remove(3);
        assert!(!peers[0].has(3));
        peers[1].add(1, MIB, foreign(MIB)).unwrap();
        drop(peers);
        let left = (budget.bytes.load(Ordering::Relaxed), budget.count.load(Ordering::Relaxed));
        assert_eq!(left, (0, 0));
    }

    #[test]
    fn r14_a_segment_that_peers_get_cannot_be_mapped_for_writing() {
        let file = sys::memfd(c"pool", 4096).unwrap();
        let map = sys::Mapping::shared(sys::borrow(&file), 4096, true).unwrap();
        let mut pools = LocalPools::default();
        let (fd, addr) = (Some(file.as_raw_fd()), map.ptr().addr() as u64);
        let segment = PoolSegment { id: 1, fd, addr, len: 4096 };
        assert_eq!(pools.add(segment), Ok(None));
        let (_, passed) = pools.get(1).unwrap();
        let path = format!("/proc/self/fd/{}", passed.as_raw_fd());
        let again = std::fs::File::options().read(true).write(true).open(path).unwrap();
        assert!(sys::Mapping::shared(sys::borrow(passed), 4096, true).is_err());
        assert!(sys::Mapping::shared(sys::borrow(&again.into()), 4096, true).is_err());
        assert!(sys::Mapping::shared(sys::borrow(passed), 4096, false).is_ok());
        // SAFETY: inside the mapping; this side still writes.
        unsafe { map.ptr().write_volatile(1) };
        // Another one in its place.
        let other = sys::memfd(c"pool", 4096).unwrap();
        assert_eq!(
            pools.add(PoolSegment { id: 2, fd: Some(other.as_raw_fd()), ..segment }),
            Ok(Some(1))
        );
        assert!(pools.get(1).is_none() && pools.find(addr, 4096) == Some((2, 0)));
        // One that cannot be sealed is not offered.
        let plain = std::fs::File::open("/dev/zero").unwrap();
        let fd = Some(plain.as_raw_fd());
        let unsealed = PoolSegment { id: 3, fd, addr: 1 << 40, len: 4096 };
        assert_eq!(pools.add(unsealed), Ok(None));
        assert!(pools.get(3).is_none());
        // Nor is one without a file.
        assert_eq!(pools.add(PoolSegment { id: 4, fd: None, ..unsealed }), Ok(None));
        assert!(pools.get(4).is_none());
    }
}
