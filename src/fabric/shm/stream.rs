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

/// Says what a slot holds; whoever calls then shows the new count.
pub(super) fn mark(map: &Mapping, count: u64, slot: Slot) {
    let label = label(map, count);
    label.op.store(slot.op, Ordering::Relaxed);
    label.offset.store(slot.offset, Ordering::Relaxed);
    label.len.store(slot.len as u64, Ordering::Relaxed);
}

/// What a slot holds; `None`: its label is impossible.
pub(super) fn read(map: &Mapping, count: u64) -> Option<Slot> {
    let label = label(map, count);
    let len = label.len.load(Ordering::Relaxed);
    // One without content would be a copy that costs nothing of what a poll may make.
    if len == 0 || len > SLOT as u64 {
        return None;
    }
    let (op, offset) = (&label.op, &label.offset);
    let (op, offset) = (op.load(Ordering::Relaxed), offset.load(Ordering::Relaxed));
    Some(Slot { op, offset, len: len as usize })
}

/// The first byte of a slot in a mapped segment.
pub(super) fn bytes(map: &Mapping, count: u64) -> *mut u8 {
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
    /// Bytes that go into the next slot. The shorter they are the sooner the other side begins, and the sooner slots are used again,
    /// out of the caches; but each costs two lines that go from one processor to the other.
    pub(crate) fn piece(&self) -> usize {
        let even = (self.len / 16).next_multiple_of(4096);
        even.clamp(PIECE_MIN as u64, SLOT as u64).min(self.len - self.done) as usize
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

    /// Makes the segment; the descriptor is for the peer, which may map it for writing, too: nobody here reads what lies in it.
    pub(crate) fn create() -> io::Result<(Mapping, OwnedFd)> {
        let fd = sys::memfd(c"rdma-transport-stream", SEGMENT)?;
        let map = Mapping::shared(sys::borrow(&fd), SEGMENT, true)?;
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

    /// The segment, if the next slot is free.
    pub(crate) fn segment(&self) -> Option<Arc<Mapping>> {
        self.map.as_ref().filter(|_| self.has_slot()).cloned()
    }

    /// Whether the next slot is to be filled past the caches.
    pub(crate) fn is_far(&mut self) -> bool {
        let Some(map) = &self.map else { return false };
        // SAFETY: a slot has more than is asked for, and what is not put yet nobody reads.
        unsafe { self.far.pays(bytes(map, self.put)) }
    }

    /// The next slot holds the next `len` bytes of a job, whatever that is; the caller then shows the new count.
    #[cfg(test)]
    pub(crate) fn filled(&mut self, job: &Job, len: usize) {
        let Some(map) = &self.map else { return };
        mark(map, self.put, Slot { op: job.op, offset: job.done, len });
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
        // For writing, if it can be, though nothing is written: what a processor reads through such a mapping it takes over as a whole, and
        // the writer has it back sooner. On an AMD EPYC (Zen 5) 256 KiB went through in 5.4 µs so, and in 9.5 else.
        let writable = Mapping::shared(sys::borrow(fd), SEGMENT, true);
        let map = writable.or_else(|_| Mapping::shared(sys::borrow(fd), SEGMENT, false))?;
        // Nobody else does so from now on, whoever gets at the file. A peer that has seen to it that it cannot be sealed harms itself.
        let _ = sys::seal_future_write(fd);
        self.map = Some(Arc::new(map));
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
        read(map, self.taken).map(Some).ok_or(())
    }

    /// The segment, if there is a slot.
    pub(crate) fn segment(&self) -> Option<Arc<Mapping>> {
        self.map.as_ref().filter(|_| self.put != self.taken).cloned()
    }

    /// A move has taken slots, so many in all now.
    pub(crate) fn took(&mut self, taken: u64) {
        (self.taken, self.put) = (taken, self.put.max(taken));
    }

    /// The next slot is not needed any more; the caller then shows the new count.
    pub(crate) fn take(&mut self) {
        assert!(self.put != self.taken, "stream underrun");
        self.taken += 1;
    }
}
