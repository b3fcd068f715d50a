//! The stream of one direction: slots in a segment that is made on first need. Through it travels
//! content that the other side cannot read where it lies, or whose copy is quicker when both sides
//! take part. Both copy at once, a slot each.
//!
//! The producer owns the segment; the counts of slots put and taken are words on the control pages.
//! Each slot says which operation and which part of it it holds, so a slot of an operation that has
//! ended meanwhile is skipped.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::ring::far::Far;
use super::sys::{self, Mapping};

/// Bytes of a slot.
pub(crate) const SLOT: usize = 128 * 1024;
/// Smallest piece of a longer transfer.
const PIECE_MIN: usize = 8 * 1024;
/// Slots of a segment.
pub(crate) const SLOTS: usize = 8;
/// The labels come first, in pages of their own.
const LABELS: usize = 64 * 1024;
/// Bytes of a segment.
const SEGMENT: usize = LABELS + SLOTS * SLOT;
/// Marks the number of a READ among the numbers of WRITEs.
pub(crate) const READ: u64 = 1 << 63;

/// What a slot holds.
#[derive(Debug)]
#[repr(C, align(64))]
struct Label {
    op: AtomicU64,
    offset: AtomicU64,
    len: AtomicU64,
}

/// The same, read once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    /// Number of the WRITE, or of the READ with [`READ`] set.
    pub(crate) op: u64,
    /// Where in its content.
    pub(crate) offset: u64,
    /// Bytes, at most [`SLOT`].
    pub(crate) len: usize,
}

/// The label of a slot in a mapped segment.
fn label(map: &Mapping, count: u64) -> &Label {
    let index = (count % SLOTS as u64) as usize;
    // SAFETY: the labels lie at the start of the mapping, aligned, and are made of atomics.
    unsafe { &*map.ptr().cast::<Label>().add(index) }
}

/// The first byte of a slot in a mapped segment.
fn bytes(map: &Mapping, count: u64) -> *mut u8 {
    let index = (count % SLOTS as u64) as usize;
    // SAFETY: the index is below the number of slots, which follow the labels.
    unsafe { map.ptr().add(LABELS + index * SLOT) }
}

/// What the producer copies, and on whose behalf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    /// Number of the WRITE, or of the READ with [`READ`] set.
    pub(crate) op: u64,
    /// Address of the content here.
    pub(crate) addr: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// Bytes already in the stream.
    pub(crate) done: u64,
    /// The key by which a peer reads; `None`: our own WRITE, whose source is held by contract.
    pub(crate) rkey: Option<u32>,
    /// The region does not allow it.
    pub(crate) denied: bool,
    /// The peer can do without: it reads what does not come.
    pub(crate) optional: bool,
}

impl Job {
    /// Bytes that go into the next slot: short pieces let both sides copy a short block at once, and each costs half a microsecond.
    pub(crate) fn piece(&self) -> usize {
        let even = (self.len / 8).next_multiple_of(4096).clamp(PIECE_MIN as u64, SLOT as u64);
        even.min(self.len - self.done) as usize
    }
}

/// The producing end.
#[derive(Debug)]
pub(crate) struct StreamOut {
    map: Option<Arc<Mapping>>,
    /// How far away the lines of its slots are.
    pub(crate) far: Far,
    /// Slots ever put.
    pub(crate) put: u64,
    /// What the consumer had taken when last looked at.
    taken: u64,
    /// In the order of their records.
    pub(crate) jobs: VecDeque<Job>,
}

impl StreamOut {
    /// Without a segment.
    pub(crate) fn new() -> StreamOut {
        StreamOut { map: None, far: Far::new(), put: 0, taken: 0, jobs: VecDeque::new() }
    }

    /// Whether the segment exists.
    pub(crate) fn is_open(&self) -> bool {
        self.map.is_some()
    }

    /// Makes the segment; the descriptor is for the peer.
    pub(crate) fn create() -> io::Result<(Mapping, OwnedFd)> {
        let fd = sys::memfd(c"rdma-transport-stream", SEGMENT)?;
        let map = Mapping::shared(sys::borrow(&fd), SEGMENT, true)?;
        sys::seal_future_write(&fd)?;
        Ok((map, fd))
    }

    /// Takes the segment into use.
    pub(crate) fn open(&mut self, map: Mapping) {
        self.map = Some(Arc::new(map));
    }

    /// Takes over the consumer's count; false if it is impossible.
    pub(crate) fn see_taken(&mut self, taken: u64) -> bool {
        let sane = taken >= self.taken && taken <= self.put;
        if sane {
            self.taken = taken;
        }
        sane
    }

    /// Whether a slot is free.
    pub(crate) fn has_slot(&self) -> bool {
        self.put - self.taken < SLOTS as u64
    }

    /// Where the next slot is filled, while the mapping is held.
    pub(crate) fn place(&self) -> Option<(u64, Arc<Mapping>)> {
        let map = self.map.as_ref().filter(|_| self.has_slot())?;
        Some((bytes(map, self.put) as u64, map.clone()))
    }

    /// The next slot holds the next `len` bytes of a job; the caller then shows the new count.
    pub(crate) fn filled(&mut self, job: &Job, len: usize) {
        assert!(self.has_slot() && len <= SLOT, "stream overrun");
        let Some(map) = &self.map else { return };
        let label = label(map, self.put);
        label.op.store(job.op, Ordering::Relaxed);
        label.offset.store(job.done, Ordering::Relaxed);
        label.len.store(len as u64, Ordering::Relaxed);
        self.put += 1;
    }

    /// Forgets the jobs of WRITEs before number `answered`: their source may be gone.
    pub(crate) fn drop_before(&mut self, answered: u64) {
        self.jobs.retain(|job| job.rkey.is_some() || job.op >= answered);
    }
}

/// The consuming end.
#[derive(Debug, Default)]
pub(crate) struct StreamIn {
    map: Option<Arc<Mapping>>,
    /// Slots ever taken.
    pub(crate) taken: u64,
    /// What the producer had put when last looked at.
    put: u64,
}

impl StreamIn {
    /// Whether slots were announced whose segment has not come.
    pub(crate) fn lacks_segment(&self) -> bool {
        self.map.is_none() && self.put != 0
    }

    /// Maps the peer's segment.
    pub(crate) fn open(&mut self, fd: &OwnedFd, len: u64) -> io::Result<()> {
        if self.map.is_some() || len != SEGMENT as u64 || sys::sealed_len(fd)? != len {
            return Err(io::Error::other("the peer's stream segment has the wrong size"));
        }
        self.map = Some(Arc::new(Mapping::shared(sys::borrow(fd), SEGMENT, false)?));
        Ok(())
    }

    /// Takes over the producer's count; false if it is impossible.
    pub(crate) fn see_put(&mut self, put: u64) -> bool {
        let sane = put >= self.put && put.wrapping_sub(self.taken) <= SLOTS as u64;
        if sane {
            self.put = put;
        }
        sane
    }

    /// The next slot, if there is one; `Err` if its label is impossible.
    pub(crate) fn peek(&self) -> Result<Option<Slot>, ()> {
        let Some(map) = &self.map else { return Ok(None) };
        if self.put == self.taken {
            return Ok(None);
        }
        let label = label(map, self.taken);
        let len = label.len.load(Ordering::Relaxed);
        // One without content would be a copy that costs nothing of what a poll may make.
        if len == 0 || len > SLOT as u64 {
            return Err(());
        }
        let (op, offset) = (&label.op, &label.offset);
        let (op, offset) = (op.load(Ordering::Relaxed), offset.load(Ordering::Relaxed));
        Ok(Some(Slot { op, offset, len: len as usize }))
    }

    /// Where the content of the next slot is, while the mapping is held.
    pub(crate) fn place(&self) -> Option<(u64, Arc<Mapping>)> {
        let map = self.map.as_ref().filter(|_| self.put != self.taken)?;
        Some((bytes(map, self.taken) as u64, map.clone()))
    }

    /// The next slot is not needed any more; the caller then shows the new count.
    pub(crate) fn take(&mut self) {
        assert!(self.put != self.taken, "stream underrun");
        self.taken += 1;
    }
}
