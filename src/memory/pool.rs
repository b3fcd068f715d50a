//! The allocator behind `rdma_mem_alloc`: blocks in memfd-backed segments, which peers of this host
//! may map, so that content in them is copied once, by plain loads and stores. Where the system gives no file (a sandbox
//! refuses `memfd_create`, no descriptor is left) a segment is memory of this process alone.
//!
//! A segment's addresses are never unmapped before the pool is dropped, since adapters know them. What is
//! free keeps its memory for a while, by how much was in use lately (`spare`), and then gives it back to the
//! system. A segment that peers may map is sealed against whoever would write to it; of such a file no part
//! can be given back, so a segment in which nothing lives gets another file, and another number.

mod ranges;
mod spare;

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use foldhash::HashMap;
use parking_lot::Mutex;

use ranges::{FreeList, Pages};
use spare::Spare;

use crate::fabric::PoolSegment;
use crate::os::memory::{self, Mapping};
use crate::room::{self, Grows};
use crate::status::{Code, Status};

/// Alignment of blocks, and their granularity.
pub const ALIGN: usize = 64;
/// Least bytes of a segment; a larger request gets a segment of its own.
pub const SEGMENT: usize = 64 << 20;
/// The same where a device pins all of it.
const PINNED_SEGMENT: usize = 8 << 20;
/// Alignment of blocks that may use huge pages.
pub const HUGE: usize = 2 << 20;
/// A segment has at least this part of the bytes before it, so that there are few: each costs
/// descriptors here, and a mapping in every peer.
const GROWTH: usize = 8;
/// The part of its limit that the pool keeps at most in memory that nobody uses.
const KEPT_PART: usize = 8;
/// Given back at a time, so that nobody waits long.
const GIVE_BACK: usize = 64 << 20;
/// Blocks up to this length are kept as they are for the next of their length, so many of each.
const SHORT: usize = 4 * ALIGN;
const SHORTS: usize = 64;
/// Most segments; shm peers map no more.
const MAX_SEGMENTS: usize = 1024;

#[derive(Debug)]
struct Segment {
    id: u32,
    map: Mapping,
    /// None: memory of this process alone.
    fd: Option<OwnedFd>,
    /// Nobody but this mapping can change the file.
    sealed: bool,
    free: FreeList,
    /// Huge pages that may hold memory.
    used: Pages,
}

/// The next segment's number: an adapter may know segments of two pools.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A new file for a segment.
fn new_file(size: usize) -> std::io::Result<OwnedFd> {
    memory::memfd(c"rdma-transport-pool", size)
}

impl Segment {
    fn pages(&self) -> std::ops::Range<usize> {
        0..self.map.len() / HUGE
    }

    /// Takes `len` bytes of what is free; the pages that may hold memory since then.
    fn take(&mut self, len: usize) -> Option<(usize, usize)> {
        let offset = self.free.take(len)?;
        let pages = offset / HUGE..(offset + len).div_ceil(HUGE);
        let new = pages.len() - self.used.count(&pages);
        self.used.insert(pages);
        Some((offset, new))
    }

    /// Gives memory of a free range back: `over` pages, but at most `most` at a time. A sealed segment
    /// goes as a whole, if that is not much more. The pages that were given back.
    fn give_back(&mut self, (start, len): (usize, usize), (over, most): (usize, usize)) -> usize {
        if self.sealed {
            let held = self.used.count(&self.pages());
            let fits = len == self.map.len() && held > 0 && held <= 2 * over;
            return if fits && self.renew() { held } else { 0 };
        }
        let whole = start.div_ceil(HUGE)..(start + len) / HUGE;
        let most = over.min(most);
        let mut given = 0;
        while given < most
            && let Some(run) = self.used.take_run(&whole, most - given)
        {
            if self.forget(run.start * HUGE, run.len() * HUGE).is_err() {
                // Somebody has sealed it, or the system cannot.
                self.sealed = true;
                self.used.insert(run);
                break;
            }
            given += run.len();
        }
        given
    }

    fn forget(&self, offset: usize, len: usize) -> std::io::Result<()> {
        match self.fd {
            Some(_) => self.map.advise_remove(offset, len),
            None => self.map.advise_unneeded(offset, len),
        }
    }

    /// Puts a new file in the place of the one that peers may have mapped, whose memory goes once they
    /// hold it no more. Nothing lives in it. Failure costs memory only.
    fn renew(&mut self) -> bool {
        let Ok(fd) = new_file(self.map.len()) else { return false };
        if self.map.replace(memory::borrow(&fd)).is_err() {
            return false;
        }
        self.map.advise_huge();
        // One that could not be sealed is not passed to peers.
        let _ = memory::seal_future_write(&fd);
        self.fd = Some(fd);
        self.id = NEXT.fetch_add(1, Ordering::Relaxed);
        self.used = Pages::new(self.map.len() / HUGE);
        true
    }
}

#[derive(Clone, Copy, Debug)]
struct Block {
    segment: usize,
    len: usize,
}

/// Which blocks there are.
#[derive(Debug, Default)]
struct Index {
    /// Live ones by address.
    blocks: HashMap<usize, Block>,
    /// Where short ones are that are neither live nor among what is free, by length: segment and offset.
    short: [Vec<(usize, usize)>; SHORT / ALIGN],
}

#[derive(Debug, Default)]
struct Inner {
    segments: Vec<Segment>,
    /// Apart: a manager is to fit a page.
    index: Box<Index>,
    /// Bytes of all segments.
    reserved: usize,
    /// Bytes of all live blocks.
    used: usize,
    /// Bytes of huge pages that may hold memory.
    held: usize,
    spare: Spare,
}

impl Inner {
    /// The short blocks of this length, a multiple of [`ALIGN`]; `None`: that is not short.
    #[inline]
    fn short(&mut self, len: usize) -> Option<&mut Vec<(usize, usize)>> {
        self.index.short.get_mut(len / ALIGN - 1)
    }

    /// All short blocks are among what is free again. Whether there were some.
    #[cold]
    fn settle_short(&mut self) -> bool {
        let mut any = false;
        for (at, blocks) in self.index.short.iter_mut().enumerate() {
            for (segment, offset) in blocks.drain(..) {
                self.segments[segment].free.give(offset, (at + 1) * ALIGN);
                any = true;
            }
        }
        any
    }

    /// Takes a block of what is free: its segment, and what that gives.
    fn take(&mut self, len: usize) -> Option<(usize, (usize, usize))> {
        let mut segments = self.segments.iter_mut().enumerate();
        segments.find_map(|(i, s)| s.take(len).map(|offset| (i, offset)))
    }
}

/// A growing pool of shared memory. Every method may be called from any thread.
#[derive(Debug)]
pub struct Pool {
    inner: Mutex<Inner>,
    version: AtomicUsize,
    limit: usize,
    /// Free ranges keep their memory.
    keep: AtomicBool,
    /// No peer maps the segments.
    private: AtomicBool,
    /// More is kept than nobody minds.
    much: AtomicBool,
}

/// Maps a segment of `size` bytes, or where a limit of the process leaves no room for that, of less: at least `own`.
fn map_segment(mut size: usize, own: usize) -> Result<(Option<OwnedFd>, Mapping), Status> {
    loop {
        let fd = match new_file(size) {
            Ok(fd) => Some(fd),
            Err(e) => {
                let text =
                    format_args!("pool segment of {size} bytes is not shared: memory file: {e}");
                crate::log::info(text);
                None
            }
        };
        match Mapping::aligned(fd.as_ref().map(memory::borrow), size, HUGE) {
            Ok(map) => return Ok((fd, map)),
            Err(e) if size == own => {
                return Err(Status::os(format_args!("shared memory segment of {size} bytes"), &e));
            }
            Err(_) => size = (size / 2 / HUGE * HUGE).max(own),
        }
    }
}

impl Pool {
    /// An empty pool whose segments take up at most `limit` bytes of address space.
    pub fn new(limit: usize) -> Pool {
        Pool::with(limit, Inner::default())
    }

    /// The same where memory may lack, which is an answer.
    pub fn create(limit: usize) -> Result<Pool, Status> {
        let index = room::boxed(Index::default(), "a pool")?;
        let (segments, spare) = (Vec::new(), Spare::default());
        let inner = Inner { segments, index, reserved: 0, used: 0, held: 0, spare };
        Ok(Pool::with(limit, inner))
    }

    fn with(limit: usize, inner: Inner) -> Pool {
        Pool {
            inner: Mutex::new(inner),
            version: AtomicUsize::new(0),
            limit,
            keep: AtomicBool::new(false),
            private: AtomicBool::new(false),
            much: AtomicBool::new(false),
        }
    }

    /// From now on free ranges keep their memory. For devices that hold on to the pages of a
    /// registered segment: a range given back and used again would have other pages than those that
    /// the device reads and writes.
    pub fn keep_memory(&self) {
        self.keep.store(true, Ordering::Relaxed);
    }

    /// Segments made from now on are not for peers: any part of them can be given back.
    pub fn keep_private(&self) {
        self.private.store(true, Ordering::Relaxed);
    }

    /// Allocates `len` bytes, aligned to [`ALIGN`]; zero bytes get a block too. The content is not
    /// defined. The block stays valid until it is freed or the pool is dropped.
    pub fn alloc(&self, len: usize) -> Result<*mut u8, Status> {
        let exhausted = || {
            Status::new(
                Code::ResourceExhausted,
                text!("shared memory pool: {len} bytes exceed its limit of {}", self.limit),
            )
        };
        let rounded = len.max(1).checked_next_multiple_of(ALIGN).ok_or_else(exhausted)?;
        let mut inner = self.inner.lock();
        room::grow(&mut inner.index.blocks, 1, "blocks of the shared memory pool")?;
        let mut found =
            inner.short(rounded).and_then(Vec::pop).map(|(segment, at)| (segment, (at, 0)));
        if found.is_none() {
            found = inner.take(rounded);
        }
        if found.is_none() && inner.settle_short() {
            found = inner.take(rounded);
        }
        let (segment, (offset, pages)) = match found {
            Some(found) => found,
            None => {
                self.grow(&mut inner, rounded, exhausted)?;
                let last = inner.segments.len() - 1;
                let taken = inner.segments[last].take(rounded);
                (last, taken.ok_or_else(|| Status::internal("a new segment has no room"))?)
            }
        };
        let addr = inner.segments[segment].map.ptr().wrapping_add(offset);
        inner.index.blocks.insert(addr.addr(), Block { segment, len: rounded });
        inner.used += rounded;
        inner.held += pages * HUGE;
        let used = inner.used;
        inner.spare.see_use(used);
        Ok(addr)
    }

    /// Adds a segment with at least `len` free bytes.
    fn grow(
        &self,
        inner: &mut Inner,
        len: usize,
        exhausted: impl Fn() -> Status,
    ) -> Result<(), Status> {
        let own = len.checked_next_multiple_of(HUGE).ok_or_else(&exhausted)?;
        let left = self.limit.saturating_sub(inner.reserved);
        // Near the limit a segment may be smaller than usual; so may one that devices pin as a whole.
        let least = if self.keep.load(Ordering::Relaxed) { PINNED_SEGMENT } else { SEGMENT };
        let usual = least.max(inner.reserved / GROWTH / HUGE * HUGE);
        let size = own.max(usual.min(left / HUGE * HUGE));
        if size > left {
            return Err(exhausted());
        }
        if inner.segments.len() >= MAX_SEGMENTS {
            let text =
                text!("shared memory pool: it has {MAX_SEGMENTS} segments, the most allowed");
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        let (fd, map) = map_segment(size, own)?;
        let size = map.len();
        map.advise_huge();
        // Where the system cannot, shm peers are not passed this segment.
        let shared = !self.private.load(Ordering::Relaxed);
        let sealed = shared && fd.as_ref().is_some_and(|fd| memory::seal_future_write(fd).is_ok());
        let mut free = FreeList::default();
        free.insert(0, size);
        let used = Pages::new(size / HUGE);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        inner.segments.push(Segment { id, map, fd, sealed, free, used });
        inner.reserved += size;
        self.version.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Frees a block by the address that `alloc` returned. Any other address, also one that was
    /// freed already, is `NotFound`.
    pub fn free(&self, addr: *mut u8) -> Result<(), Status> {
        let mut inner = self.inner.lock();
        let block = inner.index.blocks.remove(&addr.addr()).ok_or_else(|| {
            let text = text!("shared memory pool: no block begins at {:#x}", addr.addr());
            Status::new(Code::NotFound, text)
        })?;
        inner.used -= block.len;
        let offset = addr.addr() - inner.segments[block.segment].map.ptr().addr();
        if let Some(blocks) = inner.short(block.len)
            && blocks.len() < SHORTS
            && blocks.fits(1)
        {
            blocks.push((block.segment, offset));
            return Ok(());
        }
        let keep = self.keep.load(Ordering::Relaxed);
        let kept = inner.held.saturating_sub(inner.used);
        let over = if keep { 0 } else { kept.saturating_sub(self.limit / KEPT_PART) };
        if over > 0 {
            inner.settle_short();
        }
        let range = inner.segments[block.segment].free.give(offset, block.len);
        if over > 0 {
            self.give_back(&mut inner, block.segment, range, (over, over));
        }
        if !keep {
            let kept = inner.held.saturating_sub(inner.used);
            self.much.store(kept > spare::ALWAYS, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Gives back `over` bytes of a free range, or a little more, and at most so many.
    fn give_back(
        &self,
        inner: &mut Inner,
        at: usize,
        range: (usize, usize),
        (over, most): (usize, usize),
    ) -> usize {
        let Inner { segments, held, .. } = inner;
        let before = segments[at].id;
        let pages = (over.div_ceil(HUGE), most.div_ceil(HUGE));
        let given = segments[at].give_back(range, pages) * HUGE;
        *held = held.saturating_sub(given);
        if segments[at].id != before {
            self.version.fetch_add(1, Ordering::Release);
        }
        given
    }

    /// How long until `trim` has something to do; `None`: nothing is kept that anybody minds.
    pub fn trim_due(&self, now: Instant) -> Option<Duration> {
        if !self.much.load(Ordering::Relaxed) {
            return None;
        }
        let inner = self.inner.lock();
        Some(inner.spare.due(inner.held, inner.used).saturating_duration_since(now))
    }

    /// Gives back memory that was not used for a while, a part at a time. Whoever drives the manager
    /// calls it before it sleeps.
    pub fn trim(&self, now: Instant) {
        if !self.much.load(Ordering::Relaxed) {
            return;
        }
        let mut inner = self.inner.lock();
        // Looked at under the lock, since it may be said late: who registers segments with a device has said it before
        // it asked for them.
        if self.keep.load(Ordering::Relaxed) {
            return self.much.store(false, Ordering::Relaxed);
        }
        inner.settle_short();
        let (held, used) = (inner.held, inner.used);
        let over = inner.spare.excess(now, held, used);
        let mut given = 0;
        // The last segments are the first to be needless.
        'all: for at in (0..inner.segments.len()).rev() {
            for range in inner.segments[at].free.large(HUGE) {
                if given >= over.min(GIVE_BACK) {
                    break 'all;
                }
                given += self.give_back(&mut inner, at, range, (over - given, GIVE_BACK - given));
            }
        }
        if over > 0 && given == 0 {
            // What is left lies between live blocks.
            inner.spare.rest(now);
        }
        let kept = inner.held.saturating_sub(inner.used);
        self.much.store(kept > spare::ALWAYS, Ordering::Relaxed);
    }

    /// Length of the live block that begins at this address, rounded up to [`ALIGN`].
    pub fn len_of(&self, addr: *const u8) -> Option<usize> {
        self.inner.lock().index.blocks.get(&addr.addr()).map(|b| b.len)
    }

    /// Whether the range lies inside one segment.
    pub fn contains(&self, addr: u64, len: u64) -> bool {
        self.inner.lock().segments.iter().any(|s| {
            let size = s.map.len() as u64;
            addr.checked_sub(s.map.ptr().addr() as u64)
                .is_some_and(|offset| offset <= size && len <= size - offset)
        })
    }

    /// A number, without a lock: a change says that `segments` has new ones.
    pub fn version(&self) -> usize {
        self.version.load(Ordering::Acquire)
    }

    /// The segments. They keep address and length for ever; one that gets a new file gets a new number.
    pub fn segments(&self) -> Vec<PoolSegment> {
        let inner = self.inner.lock();
        let describe = |s: &Segment| PoolSegment {
            id: s.id,
            fd: s.fd.as_ref().map(AsRawFd::as_raw_fd),
            addr: s.map.ptr().addr() as u64,
            len: s.map.len() as u64,
        };
        inner.segments.iter().map(describe).collect()
    }

    /// Bytes in live blocks, and bytes of all segments.
    pub fn usage(&self) -> (usize, usize) {
        let inner = self.inner.lock();
        (inner.used, inner.reserved)
    }
}

#[cfg(test)]
mod tests;
