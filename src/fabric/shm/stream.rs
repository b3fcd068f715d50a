//! The stream of one direction: a larger segment, made on first need, through which content travels
//! where neither side can read the other's memory. Both sides copy at once, in pieces.
//!
//! The producer owns the segment; its position and the consumer's are words on the control pages.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use super::copy::{STREAMING_FROM, copy};
use super::sys::{self, Mapping};

/// Bytes of a segment.
pub(crate) const SEGMENT: usize = 1 << 20;
/// Bytes copied before the other side is told.
pub(crate) const PIECE: usize = 64 * 1024;

/// What the producer copies, and on whose behalf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    /// Address of the content here.
    pub(crate) addr: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// Bytes already in the stream.
    pub(crate) done: u64,
    /// The key by which a peer reads; `None`: our own WRITE, whose source is held by contract.
    pub(crate) rkey: Option<u32>,
    /// The region was closed on the way: the rest of the stream is filler.
    pub(crate) denied: bool,
}

/// The producing end.
#[derive(Debug, Default)]
pub(crate) struct StreamOut {
    map: Option<Mapping>,
    /// Bytes ever put.
    pub(crate) put: u64,
    /// What the consumer had taken when last looked at.
    pub(crate) taken: u64,
    /// In the order of their records.
    pub(crate) jobs: VecDeque<Job>,
    /// WRITEs of ours that were ever given to the stream, and those wholly in it.
    pub(crate) writes_begun: u64,
    pub(crate) writes_fed: u64,
}

impl StreamOut {
    /// Whether the segment exists.
    pub(crate) fn is_open(&self) -> bool {
        self.map.is_some()
    }

    /// Makes the segment; the descriptor is for the peer.
    pub(crate) fn create() -> io::Result<(Mapping, OwnedFd)> {
        let fd = sys::memfd(c"rdma-transport-stream", SEGMENT)?;
        let map = Mapping::shared(sys::borrow(&fd), SEGMENT, true)?;
        sys::seal_future_write(&fd);
        Ok((map, fd))
    }

    /// Takes the segment into use.
    pub(crate) fn open(&mut self, map: Mapping) {
        self.map = Some(map);
    }

    /// Takes over the consumer's position; false if it is impossible.
    pub(crate) fn see_taken(&mut self, taken: u64) -> bool {
        let sane = taken >= self.taken && taken <= self.put;
        if sane {
            self.taken = taken;
        }
        sane
    }

    /// Bytes that can be put now without a wrap, at most a piece.
    pub(crate) fn space(&self) -> usize {
        let free = SEGMENT - (self.put - self.taken) as usize;
        free.min(PIECE).min(SEGMENT - (self.put % SEGMENT as u64) as usize)
    }

    /// Copies `len` bytes into the segment, at most `space`; `None`: filler.
    ///
    /// # Safety
    /// `src` is readable for `len` bytes.
    pub(crate) unsafe fn fill(&mut self, src: Option<*const u8>, len: usize) {
        assert!(len <= self.space(), "stream overrun");
        if let (Some(map), Some(src)) = (&self.map, src) {
            let at = (self.put % SEGMENT as u64) as usize;
            // SAFETY: the source by the caller; `space` keeps the rest inside the segment.
            unsafe { copy(src, map.ptr().add(at), len, false) };
        }
        self.put += len as u64;
    }
}

/// The consuming end.
#[derive(Debug, Default)]
pub(crate) struct StreamIn {
    map: Option<Mapping>,
    /// Bytes ever taken.
    pub(crate) taken: u64,
    /// What the producer had put when last looked at.
    put: u64,
}

impl StreamIn {
    /// Whether the peer's segment is mapped.
    pub(crate) fn is_open(&self) -> bool {
        self.map.is_some()
    }

    /// Maps the peer's segment.
    pub(crate) fn open(&mut self, fd: &OwnedFd, len: u64) -> io::Result<()> {
        if self.is_open() || len != SEGMENT as u64 || sys::sealed_len(fd)? != len {
            return Err(io::Error::other("the peer's stream segment has the wrong size"));
        }
        self.map = Some(Mapping::shared(sys::borrow(fd), SEGMENT, false)?);
        Ok(())
    }

    /// Takes over the producer's position; false if it is impossible.
    pub(crate) fn see_put(&mut self, put: u64) -> bool {
        let sane = put >= self.put && put.wrapping_sub(self.taken) <= SEGMENT as u64;
        if sane {
            self.put = put;
        }
        sane
    }

    /// Bytes that can be taken now without a wrap, at most a piece.
    pub(crate) fn ready(&self) -> usize {
        let there = (self.put - self.taken) as usize;
        there.min(PIECE).min(SEGMENT - (self.taken % SEGMENT as u64) as usize)
    }

    /// Copies `len` bytes out of the segment, at most `ready`; `None` discards them. `whole` is
    /// the length of the transfer that they belong to.
    ///
    /// # Safety
    /// `dst` is writable for `len` bytes.
    pub(crate) unsafe fn take(&mut self, dst: Option<*mut u8>, len: usize, whole: u64) {
        assert!(len <= self.ready(), "stream underrun");
        if let (Some(map), Some(dst)) = (&self.map, dst) {
            let at = (self.taken % SEGMENT as u64) as usize;
            // SAFETY: the destination by the caller; `ready` keeps the rest inside the segment.
            unsafe { copy(map.ptr().add(at), dst, len, whole >= STREAMING_FROM) };
        }
        self.taken += len as u64;
    }
}
