//! Pool segments: our own, which peers may map, and those of a peer that we have mapped.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::ring::MAX_POOLS;
use super::sys::{self, Mapping};
use crate::fabric::PoolSegment;
use crate::status::Status;

/// A segment of this process.
#[derive(Debug)]
struct Local {
    addr: u64,
    len: u64,
    id: u32,
    /// Opened for reading only where the system allows that.
    fd: OwnedFd,
}

/// The segments of this process, sorted by address.
#[derive(Debug, Default)]
pub(crate) struct LocalPools(Vec<Local>);

impl LocalPools {
    /// Makes a segment known. Known ones are left alone.
    pub(crate) fn add(&mut self, segment: PoolSegment) -> Result<(), Status> {
        if segment.addr.checked_add(segment.len).is_none() || segment.id == u32::MAX {
            return Err(Status::invalid(format!(
                "pool segment {} of {} bytes at {:#x} exceeds the address space",
                segment.id, segment.len, segment.addr
            )));
        }
        if self.0.iter().any(|s| s.id == segment.id) {
            return Ok(());
        }
        // SAFETY: the contract of PoolSegment: the pool keeps the descriptor open.
        let fd = unsafe { BorrowedFd::borrow_raw(segment.fd) };
        let fd = sys::reopen_read_only(fd)
            .or_else(|_| fd.try_clone_to_owned())
            .map_err(|e| Status::os("pool segment's descriptor", &e))?;
        let at = self.0.partition_point(|s| s.addr < segment.addr);
        let PoolSegment { id, addr, len, .. } = segment;
        self.0.insert(at, Local { addr, len, id, fd });
        Ok(())
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

/// The segments of one peer, mapped read-only.
#[derive(Debug, Default)]
pub(crate) struct PeerPools {
    mapped: Vec<(u32, Arc<Mapping>)>,
    /// Segments that came, mapped or not.
    pub(crate) taken: u64,
}

impl PeerPools {
    /// Maps a segment that the peer has passed.
    pub(crate) fn add(&mut self, id: u32, len: u64, fd: &OwnedFd) -> io::Result<()> {
        if self.mapped.len() >= MAX_POOLS || self.has(id) {
            return Err(io::Error::other("too many pool segments, or one twice"));
        }
        if sys::sealed_len(fd)? < len || len == 0 {
            return Err(io::Error::other("the pool segment is shorter than announced"));
        }
        let len = usize::try_from(len).map_err(io::Error::other)?;
        let map = Mapping::shared(sys::borrow(fd), len, false)?;
        map.advise_huge();
        self.mapped.push((id, Arc::new(map)));
        Ok(())
    }

    /// Whether the segment is mapped.
    pub(crate) fn has(&self, id: u32) -> bool {
        self.mapped.iter().any(|s| s.0 == id)
    }

    /// Where `len` bytes at `offset` of a segment are mapped here, while the mapping is held; `None`
    /// beyond its bounds.
    pub(crate) fn at(&self, id: u32, offset: u64, len: u64) -> Option<(u64, Arc<Mapping>)> {
        let (_, map) = self.mapped.iter().find(|s| s.0 == id)?;
        let size = map.len() as u64;
        if offset > size || len > size - offset {
            return None;
        }
        Some((map.ptr() as u64 + offset, map.clone()))
    }
}
