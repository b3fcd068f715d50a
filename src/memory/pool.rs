//! The allocator behind `rdma_mem_alloc`: blocks in memfd-backed segments, which peers of this host
//! may map, so that content in them is copied once, by plain loads and stores.
//!
//! A segment is never unmapped before the pool is dropped, since adapters know its address and
//! peers may have it mapped. Large free ranges give their memory back to the system nevertheless.

mod ranges;

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use ranges::{FreeList, Pages};

use crate::fabric::PoolSegment;
use crate::fabric::shm::sys::{self, Mapping};
use crate::status::{Code, Status};

/// Alignment of blocks, and their granularity.
pub const ALIGN: usize = 64;
/// Least bytes of a segment; a larger request gets a segment of its own.
pub const SEGMENT: usize = 64 << 20;
/// The same where a device pins all of it.
const PINNED_SEGMENT: usize = 8 << 20;
/// Alignment of blocks that may use huge pages.
const HUGE: usize = 2 << 20;
/// A segment has at least this part of the bytes before it, so that there are few: each costs
/// descriptors here, and a mapping in every peer.
const GROWTH: usize = 8;
/// A free range that may hold so much memory in whole huge pages gives it back.
const GIVE_BACK: usize = 16 << 20;
/// Most segments; shm peers map no more.
const MAX_SEGMENTS: usize = 1024;

#[derive(Debug)]
struct Segment {
    map: Mapping,
    fd: OwnedFd,
    free: FreeList,
    /// Huge pages that may hold memory.
    used: Pages,
}

impl Segment {
    /// Takes `len` bytes of what is free.
    fn take(&mut self, len: usize) -> Option<usize> {
        let offset = self.free.take(len)?;
        self.used.insert(offset / HUGE..(offset + len).div_ceil(HUGE));
        Some(offset)
    }

    /// Gives the memory of a free range back, once it is so much that it is worth it.
    fn give_back(&mut self, (start, len): (usize, usize)) {
        let whole = start.div_ceil(HUGE)..(start + len) / HUGE;
        if len < GIVE_BACK || self.used.count(&whole) * HUGE < GIVE_BACK {
            return;
        }
        while let Some(run) = self.used.take_run(&whole) {
            // Failure costs memory only.
            let _ = self.map.advise_remove(run.start * HUGE, run.len() * HUGE);
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Block {
    segment: usize,
    len: usize,
}

#[derive(Debug, Default)]
struct Inner {
    segments: Vec<Segment>,
    /// Live blocks by address.
    blocks: BTreeMap<usize, Block>,
    /// Bytes of all segments.
    reserved: usize,
    /// Bytes of all live blocks.
    used: usize,
}

/// A growing pool of shared memory. Every method may be called from any thread.
#[derive(Debug)]
pub struct Pool {
    inner: Mutex<Inner>,
    count: AtomicUsize,
    limit: usize,
    /// Free ranges keep their memory.
    keep: AtomicBool,
}

impl Pool {
    /// An empty pool whose segments take up at most `limit` bytes of address space.
    pub fn new(limit: usize) -> Pool {
        Pool {
            inner: Mutex::default(),
            count: AtomicUsize::new(0),
            limit,
            keep: AtomicBool::new(false),
        }
    }

    /// From now on free ranges keep their memory. For devices that hold on to the pages of a
    /// registered segment: a range given back and used again would have other pages than those that
    /// the device reads and writes.
    pub fn keep_memory(&self) {
        self.keep.store(true, Ordering::Relaxed);
    }

    /// Allocates `len` bytes, aligned to [`ALIGN`]; zero bytes get a block too. The content is not
    /// defined. The block stays valid until it is freed or the pool is dropped.
    pub fn alloc(&self, len: usize) -> Result<*mut u8, Status> {
        let exhausted = || {
            Status::new(
                Code::ResourceExhausted,
                format!("shared memory pool: {len} bytes exceed its limit of {}", self.limit),
            )
        };
        let rounded = len.max(1).checked_next_multiple_of(ALIGN).ok_or_else(exhausted)?;
        let mut inner = self.inner.lock();
        let found = inner
            .segments
            .iter_mut()
            .enumerate()
            .find_map(|(i, s)| s.take(rounded).map(|offset| (i, offset)));
        let (segment, offset) = match found {
            Some(found) => found,
            None => {
                self.grow(&mut inner, rounded, exhausted)?;
                let last = inner.segments.len() - 1;
                let offset = inner.segments[last].take(rounded);
                (last, offset.ok_or_else(|| Status::internal("a new segment has no room"))?)
            }
        };
        let addr = inner.segments[segment].map.ptr().wrapping_add(offset);
        inner.blocks.insert(addr.addr(), Block { segment, len: rounded });
        inner.used += rounded;
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
                format!("shared memory pool: it has {MAX_SEGMENTS} segments, the most allowed");
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        let failed = |e: std::io::Error| {
            Status::os(format_args!("shared memory segment of {size} bytes"), &e)
        };
        let fd = sys::memfd(c"rdma-transport-pool", size).map_err(failed)?;
        let map = Mapping::aligned(sys::borrow(&fd), size, HUGE).map_err(failed)?;
        map.advise_huge();
        let mut free = FreeList::default();
        free.insert(0, size);
        let used = Pages::new(size / HUGE);
        inner.segments.push(Segment { map, fd, free, used });
        inner.reserved += size;
        self.count.store(inner.segments.len(), Ordering::Release);
        Ok(())
    }

    /// Frees a block by the address that `alloc` returned. Any other address, also one that was
    /// freed already, is `NotFound`.
    pub fn free(&self, addr: *mut u8) -> Result<(), Status> {
        let mut inner = self.inner.lock();
        let block = inner.blocks.remove(&addr.addr()).ok_or_else(|| {
            let text = format!("shared memory pool: no block begins at {:#x}", addr.addr());
            Status::new(Code::NotFound, text)
        })?;
        inner.used -= block.len;
        let segment = &mut inner.segments[block.segment];
        let offset = addr.addr() - segment.map.ptr().addr();
        let range = segment.free.give(offset, block.len);
        if !self.keep.load(Ordering::Relaxed) {
            segment.give_back(range);
        }
        Ok(())
    }

    /// Length of the live block that begins at this address, rounded up to [`ALIGN`].
    pub fn len_of(&self, addr: *const u8) -> Option<usize> {
        self.inner.lock().blocks.get(&addr.addr()).map(|b| b.len)
    }

    /// Whether the range lies inside one segment.
    pub fn contains(&self, addr: u64, len: u64) -> bool {
        self.inner.lock().segments.iter().any(|s| {
            let size = s.map.len() as u64;
            addr.checked_sub(s.map.ptr().addr() as u64)
                .is_some_and(|offset| offset <= size && len <= size - offset)
        })
    }

    /// Number of segments, without a lock: a change says that `segments` has new ones.
    pub fn segment_count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// The segments from number `from` on; they keep number, address and length for ever.
    pub fn segments(&self, from: usize) -> Vec<PoolSegment> {
        let inner = self.inner.lock();
        let describe = |(i, s): (usize, &Segment)| PoolSegment {
            id: i as u32,
            fd: s.fd.as_raw_fd(),
            addr: s.map.ptr().addr() as u64,
            len: s.map.len() as u64,
        };
        inner.segments.iter().enumerate().skip(from).map(describe).collect()
    }

    /// Bytes in live blocks, and bytes of all segments.
    pub fn usage(&self) -> (usize, usize) {
        let inner = self.inner.lock();
        (inner.used, inner.reserved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small generator with a seed, so that a failure replays.
    struct Random(u64);

    impl Random {
        fn below(&mut self, n: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % n as u64) as usize
        }
    }

    #[test]
    fn blocks_are_aligned_distinct_and_reusable() {
        let pool = Pool::new(1 << 30);
        let a = pool.alloc(0).unwrap();
        let b = pool.alloc(1).unwrap();
        let c = pool.alloc(65).unwrap();
        assert!([a, b, c].iter().all(|p| p.addr() % ALIGN == 0));
        assert_eq!((pool.len_of(a), pool.len_of(c)), (Some(64), Some(128)));
        assert!(a != b && b != c && pool.contains(c.addr() as u64, 65));
        assert_eq!(pool.usage(), (256, SEGMENT));
        pool.free(b).unwrap();
        assert_eq!(pool.alloc(64).unwrap(), b);
        assert_eq!(pool.segment_count(), 1);
    }

    #[test]
    fn a_wrong_address_is_refused() {
        let pool = Pool::new(1 << 30);
        let a = pool.alloc(1000).unwrap();
        for wrong in [std::ptr::null_mut(), a.wrapping_add(64), a.wrapping_sub(64)] {
            assert_eq!(pool.free(wrong).unwrap_err().code, Code::NotFound);
        }
        pool.free(a).unwrap();
        assert_eq!(pool.free(a).unwrap_err().code, Code::NotFound);
        assert_eq!(pool.usage().0, 0);
    }

    #[test]
    fn the_limit_holds_and_is_usable_to_the_end() {
        let pool = Pool::new(SEGMENT + 3 * HUGE);
        let a = pool.alloc(SEGMENT).unwrap();
        let b = pool.alloc(3 * HUGE).unwrap();
        assert_eq!(pool.alloc(1).unwrap_err().code, Code::ResourceExhausted);
        assert_eq!(pool.alloc(usize::MAX).unwrap_err().code, Code::ResourceExhausted);
        pool.free(b).unwrap();
        pool.alloc(1).unwrap();
        pool.free(a).unwrap();
        assert_eq!(pool.alloc(SEGMENT).unwrap(), a);
        assert_eq!(Pool::new(100).alloc(1).unwrap_err().code, Code::ResourceExhausted);
    }

    #[test]
    fn large_blocks_have_their_own_segment_and_give_memory_back() {
        let pool = Pool::new(1 << 30);
        let len = 2 * SEGMENT + 5;
        let a = pool.alloc(len).unwrap();
        let segment = pool.segments(0)[0];
        assert_eq!((segment.addr, segment.len), (a.addr() as u64, (2 * SEGMENT + HUGE) as u64));
        // SAFETY: a live block of this length.
        unsafe { a.write_bytes(0x5A, len) };
        pool.free(a).unwrap();
        // SAFETY: the segment stays mapped as long as the pool lives.
        assert_eq!(unsafe { a.add(SEGMENT).read_volatile() }, 0, "memory was kept");
        let stays = pool.segments(0);
        assert_eq!((stays.len(), stays[0].addr), (1, a.addr() as u64));
        assert_eq!(pool.segments(1).len(), 0);
    }

    /// Bytes of memory behind a segment.
    fn resident(segment: &PoolSegment) -> usize {
        // SAFETY: an all-zero stat is a valid value, and a valid place for the result.
        unsafe {
            let mut st: libc::stat = std::mem::zeroed();
            assert_eq!(libc::fstat(segment.fd, &mut st), 0);
            st.st_blocks as usize * 512
        }
    }

    #[test]
    fn small_blocks_that_together_are_large_give_memory_back_too() {
        const LEN: usize = 1 << 20;
        for keeps in [false, true] {
            let pool = Pool::new(1 << 30);
            if keeps {
                pool.keep_memory();
            }
            let blocks: Vec<*mut u8> = (0..64).map(|_| pool.alloc(LEN).unwrap()).collect();
            // SAFETY: live blocks of this length.
            blocks.iter().for_each(|block| unsafe { block.write_bytes(1, LEN) });
            let segments = pool.segments(0);
            let held = || segments.iter().map(resident).sum::<usize>();
            assert!(held() >= 64 * LEN);
            // In an order in which no block is the neighbour of the one before.
            (0..64).for_each(|i| pool.free(blocks[i * 37 % 64]).unwrap());
            assert_eq!(held() < GIVE_BACK, !keeps, "{} bytes are held", held());
        }
    }

    #[test]
    fn a_large_pool_has_few_segments() {
        let pool = Pool::new(1 << 40);
        let refused = loop {
            if let Err(status) = pool.alloc(60 << 20) {
                break status;
            }
        };
        assert!(refused.message.contains("limit of 1099511627776"), "{refused}");
        assert!(pool.usage().0 > (1 << 40) / 10 * 9, "{:?}", pool.usage());
        assert!(pool.segment_count() < 80, "{} segments", pool.segment_count());
    }

    #[test]
    fn random_allocations_never_overlap_and_all_space_returns() {
        for seed in 1..=5 {
            let mut random = Random(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(seed));
            let pool = Pool::new(4 * SEGMENT);
            let mut live: Vec<(*mut u8, usize, u8)> = Vec::new();
            for step in 0..4000 {
                if random.below(5) < 3 {
                    let len = match random.below(20) {
                        0 => random.below(8 << 20),
                        1..5 => random.below(100_000),
                        _ => random.below(2000),
                    };
                    let Ok(ptr) = pool.alloc(len) else { continue };
                    let mark = step as u8;
                    let used = len.min(256);
                    // SAFETY: a live block of at least `used` bytes.
                    unsafe { ptr.write_bytes(mark, used) };
                    live.push((ptr, used, mark));
                } else if !live.is_empty() {
                    let (ptr, used, mark) = live.swap_remove(random.below(live.len()));
                    // SAFETY: a live block of at least `used` bytes.
                    let bytes = unsafe { std::slice::from_raw_parts(ptr, used) };
                    assert!(bytes.iter().all(|&b| b == mark), "seed {seed} step {step}");
                    pool.free(ptr).unwrap();
                }
            }
            let blocks: Vec<(usize, usize)> =
                pool.inner.lock().blocks.iter().map(|(&a, b)| (a, b.len)).collect();
            assert!(blocks.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0), "seed {seed}");
            for (ptr, ..) in live {
                pool.free(ptr).unwrap();
            }
            let inner = pool.inner.lock();
            for s in &inner.segments {
                assert_eq!(s.free.by_offset.iter().collect::<Vec<_>>(), [(&0, &s.map.len())]);
                assert_eq!(s.free.by_size.len(), 1);
            }
        }
    }
}
