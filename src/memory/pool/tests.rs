//! The pool: blocks, its limit, and memory that it gives back.

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
    assert_eq!(pool.segments().len(), 1);
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

/// Lets so much time go by, a trim at a time.
fn idle(pool: &Pool, seconds: u64) {
    let start = Instant::now();
    (0..=seconds).for_each(|second| {
        let now = start + Duration::from_secs(second);
        while pool.trim_due(now) == Some(Duration::ZERO) {
            pool.trim(now);
        }
    });
}

#[test]
fn large_blocks_have_their_own_segment_and_give_memory_back() {
    let pool = Pool::new(1 << 30);
    let len = 2 * SEGMENT + 5;
    let a = pool.alloc(len).unwrap();
    let segment = pool.segments()[0];
    assert_eq!((segment.addr, segment.len), (a.addr() as u64, (2 * SEGMENT + HUGE) as u64));
    // SAFETY: a live block of this length.
    unsafe { a.write_bytes(0x5A, len) };
    pool.free(a).unwrap();
    idle(&pool, 100);
    // SAFETY: the addresses stay mapped as long as the pool lives.
    assert_eq!(unsafe { a.add(SEGMENT).read_volatile() }, 0, "memory was kept");
    let stays = pool.segments();
    assert_eq!((stays.len(), stays[0].addr), (1, a.addr() as u64));
    assert_eq!(pool.alloc(len).unwrap(), a);
}

/// Bytes of memory behind a pool.
fn resident(pool: &Pool) -> usize {
    let of = |segment: PoolSegment| {
        // SAFETY: an all-zero stat is a valid value, and a valid place for the result.
        unsafe {
            let mut st: libc::stat = std::mem::zeroed();
            assert_eq!(libc::fstat(segment.fd.unwrap(), &mut st), 0);
            st.st_blocks as usize * 512
        }
    };
    pool.segments().into_iter().map(of).sum()
}

fn filled(pool: &Pool, len: usize) -> *mut u8 {
    let block = pool.alloc(len).unwrap();
    // SAFETY: a live block of this length.
    unsafe { block.write_bytes(1, len) };
    block
}

#[test]
fn small_blocks_that_together_are_large_give_memory_back_too() {
    const LEN: usize = 1 << 20;
    for (keeps, private) in [(false, false), (false, true), (true, false), (true, true)] {
        let pool = Pool::new(1 << 30);
        if keeps {
            pool.keep_memory();
        }
        if private {
            pool.keep_private();
        }
        let blocks: Vec<*mut u8> = (0..64).map(|_| filled(&pool, LEN)).collect();
        assert!(resident(&pool) >= 64 * LEN);
        // In an order in which no block is the neighbour of the one before.
        (0..64).for_each(|i| pool.free(blocks[i * 37 % 64]).unwrap());
        idle(&pool, 100);
        let held = resident(&pool);
        assert_eq!(held <= spare::ALWAYS, !keeps, "{held} bytes are held");
    }
}

#[test]
fn r25_memory_that_is_used_again_is_kept_and_idle_memory_is_not() {
    for private in [false, true] {
        let pool = Pool::new(1 << 30);
        if private {
            pool.keep_private();
        }
        const LEN: usize = 48 << 20;
        let first = filled(&pool, LEN);
        pool.free(first).unwrap();
        for _ in 0..20 {
            idle(&pool, 5);
            assert!(resident(&pool) >= LEN, "memory was given back between two uses");
            let again = pool.alloc(LEN).unwrap();
            assert_eq!(again, first);
            // SAFETY: a live block.
            assert_eq!(unsafe { again.read_volatile() }, 1);
            pool.free(again).unwrap();
        }
        idle(&pool, 100);
        assert!(resident(&pool) <= spare::ALWAYS, "{} bytes are kept", resident(&pool));
    }
}

#[test]
fn r25_what_is_kept_is_bounded() {
    for private in [false, true] {
        let pool = Pool::new(512 << 20);
        if private {
            pool.keep_private();
        }
        let blocks: Vec<*mut u8> = (0..6).map(|_| filled(&pool, 60 << 20)).collect();
        blocks.into_iter().for_each(|block| pool.free(block).unwrap());
        // Without any idle time. A sealed segment goes as a whole.
        let bound = (512 << 20) / KEPT_PART + HUGE;
        assert!(resident(&pool) <= bound, "{} bytes are kept", resident(&pool));
    }
}

#[test]
fn r14_a_segment_is_sealed_before_anybody_sees_it() {
    let pool = Pool::new(1 << 30);
    let block = filled(&pool, 48 << 20);
    let first = pool.segments()[0].id;
    for round in 0..2 {
        let segment = pool.segments()[0];
        assert_eq!(segment.id == first, round == 0);
        let path = format!("/proc/self/fd/{}", segment.fd.unwrap());
        let file = std::fs::File::options().read(true).write(true).open(path).unwrap().into();
        assert!(Mapping::shared(memory::borrow(&file), 4096, true).is_err());
        assert!(Mapping::shared(memory::borrow(&file), 4096, false).is_ok());
        if round == 0 {
            pool.free(block).unwrap();
            idle(&pool, 100);
            assert_eq!(filled(&pool, 48 << 20), block);
        }
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
    assert!(pool.segments().len() < 80, "{} segments", pool.segments().len());
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
        let mut blocks: Vec<(usize, usize)> =
            pool.inner.lock().index.blocks.iter().map(|(&a, b)| (a, b.len)).collect();
        blocks.sort_unstable();
        assert!(blocks.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0), "seed {seed}");
        for (ptr, ..) in live {
            pool.free(ptr).unwrap();
        }
        let mut inner = pool.inner.lock();
        inner.settle_short();
        for s in &inner.segments {
            assert_eq!(s.free.by_offset.iter().collect::<Vec<_>>(), [(&0, &s.map.len())]);
            assert_eq!(s.free.by_size.len(), 1);
        }
    }
}

#[test]
fn short_blocks_are_used_again_and_are_in_nobodys_way() {
    let pool = Pool::new(SEGMENT);
    let first = pool.alloc(100).unwrap();
    pool.free(first).unwrap();
    assert_eq!((pool.usage().0, pool.len_of(first)), (0, None));
    assert_eq!(pool.free(first).unwrap_err().code, Code::NotFound);
    // Of another length is another one.
    let (other, again) = (pool.alloc(60).unwrap(), pool.alloc(128).unwrap());
    assert!(again == first && other != first && pool.len_of(again) == Some(128));
    for short in [again, other] {
        pool.free(short).unwrap();
    }
    let whole = pool.alloc(SEGMENT).unwrap();
    assert_eq!(pool.usage(), (SEGMENT, SEGMENT));
    pool.free(whole).unwrap();
    assert!(!pool.inner.lock().settle_short());
}

#[test]
fn without_memory_files_a_pool_has_memory_of_its_own() {
    std::thread::spawn(|| {
        crate::os::sandbox::refuse(libc::SYS_memfd_create, libc::EPERM);
        let pool = Pool::new(1 << 30);
        let block = filled(&pool, 48 << 20);
        assert!(pool.segments()[0].fd.is_none(), "no peer can map it");
        assert!(!pool.inner.lock().segments[0].sealed);
        pool.free(block).unwrap();
        // What is free goes back, and reads as zero then.
        let later = Instant::now() + Duration::from_secs(3600);
        for _ in 0..20 {
            pool.trim(later);
        }
        let held = pool.inner.lock().held;
        assert!(held < 48 << 20, "{held} bytes are kept");
        let again = pool.alloc(48 << 20).unwrap();
        assert_eq!(again, block);
        // SAFETY: the block has so many bytes.
        let content = unsafe { std::slice::from_raw_parts(again, 48 << 20) };
        assert!(content.iter().filter(|&&byte| byte == 0).count() >= (48 << 20) - held);
        pool.free(again).unwrap();
    })
    .join()
    .unwrap();
}
