//! Copies of large blocks.
//!
//! Some processors wait for main memory when they read and write it in one place only: an Intel Xeon copied 64 MiB with 14.5 GB/s, a line
//! in each of four places in turn and past the caches, with 9.1 past the caches from front to back, and with 7.2 by the C library. Others
//! lose by it: an AMD EPYC (Zen 5) took 14 GB/s in four places and 21 from front to back past the caches, 11 and 16 through them, and half
//! of the time for content that goes into a segment that stays in its caches. So what is too long for the caches is copied in the order
//! that takes less, which each thread measures, and past the caches where nobody needs it there. (The C library goes past them from a
//! length on that it takes from the size of the last cache: on that Xeon 360 MiB.)

use std::cell::RefCell;
use std::sync::OnceLock;
use std::time::Instant;

use crate::few;
use crate::trials::{Plan, Trial, Trials};

/// Bounds of [`long`], and what it is where the second cache's size is not told.
const LONG: (u64, u64, u64) = (1 << 20, 16 << 20, 4 << 20);
/// From this length on the time of a piece is taken.
const TIMED: usize = 32 << 10;
/// Pieces of one transfer are many, and much alike.
const PLAN: Plan = Plan { run: 2, ..Plan::OPEN };

/// From this length of a whole transfer on its pieces are copied so: it decides whether they go past the caches, or are copied by lines at
/// all; which order of lines takes less is measured in any case. Four times the cache that a processor has for itself. The last one's size
/// says less: many share it, and in a virtual machine `sysconf` has been seen to tell the whole socket's (384 MiB, of which 32 were its own).
fn long() -> u64 {
    static LONG: OnceLock<u64> = OnceLock::new();
    *LONG.get_or_init(|| long_by(second_cache()))
}

/// The same, where the second cache has so many bytes; none: it is not known.
fn long_by(cache: Option<u64>) -> u64 {
    let (least, most, unknown) = LONG;
    cache.map_or(unknown, |bytes| bytes.saturating_mul(4).clamp(least, most))
}

/// Bytes of the second cache.
fn second_cache() -> Option<u64> {
    #[cfg(target_env = "gnu")]
    // SAFETY: no pointers.
    let bytes = unsafe { libc::sysconf(libc::_SC_LEVEL2_CACHE_SIZE) };
    #[cfg(not(target_env = "gnu"))]
    let bytes = 0;
    u64::try_from(bytes).ok().filter(|&bytes| bytes > 0)
}

/// Whether a transfer is so long; a short one does not ask.
fn is_long(whole: u64) -> bool {
    whole >= LONG.0 && whole >= long()
}

/// How a block is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As the C library does.
    Plain,
    /// It comes from main memory, and somebody reads it soon.
    Through,
    /// It comes from main memory, and goes there, past the caches.
    Past,
}

impl Way {
    /// For a piece of a transfer of so many bytes, to its place.
    pub fn to_place(whole: u64) -> Way {
        if is_long(whole) { Way::Past } else { Way::Plain }
    }

    /// The same, to where somebody reads it at once.
    pub fn to_reader(whole: u64) -> Way {
        if is_long(whole) { Way::Through } else { Way::Plain }
    }
}

/// In which order the lines of a block are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// From front to back.
    Front,
    /// In several places, a line of each in turn.
    Abreast,
}

/// What a thread has learnt of the two orders.
struct Orders {
    begun: Instant,
    through: Trials<1>,
    past: Trials<1>,
}

thread_local! {
    static ORDERS: RefCell<Option<Orders>> = const { RefCell::new(None) };
}

impl Orders {
    /// Chooses the order of a block; `None` in the place of the trial: the order that is known to be the better one.
    fn choose(way: Way, len: usize) -> (Order, Option<Trial>) {
        let chosen = ORDERS.try_with(|orders| {
            let mut orders = orders.try_borrow_mut().ok()?;
            let o = orders.get_or_insert_with(|| Orders {
                begun: Instant::now(),
                through: Trials::with([PLAN]),
                past: Trials::with([PLAN]),
            });
            if len < TIMED {
                return Some((Order::of(o.of(way).prefers_second(0)), None));
            }
            let now = o.now();
            let trial = o.of(way).choose(0, now);
            Some((Order::of(trial.is_second()), Some(trial)))
        });
        // A thread that ends may copy still.
        chosen.ok().flatten().unwrap_or((Order::Front, None))
    }

    /// A block was copied.
    fn learn(way: Way, trial: Trial, len: usize) {
        let _ = ORDERS.try_with(|orders| {
            let Ok(mut orders) = orders.try_borrow_mut() else { return };
            let Some(o) = orders.as_mut() else { return };
            let now = o.now();
            o.of(way).answered(trial, len as u64);
            o.of(way).learn(now);
        });
    }

    fn of(&mut self, way: Way) -> &mut Trials<1> {
        match way {
            Way::Past => &mut self.past,
            Way::Through | Way::Plain => &mut self.through,
        }
    }

    fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }
}

impl Order {
    fn of(second: bool) -> Order {
        if second { Order::Abreast } else { Order::Front }
    }
}

/// Copies `len` bytes; without vectors, or if it is short, always plainly.
///
/// # Safety
/// `src` is readable and `dst` writable for `len` bytes. They do not overlap.
pub unsafe fn copy(src: *const u8, dst: *mut u8, len: usize, way: Way) {
    if way == Way::Plain || len < BLOCK {
        // SAFETY: by the caller.
        unsafe { few::copy(src, dst, len) };
        return;
    }
    let (order, trial) = Orders::choose(way, len);
    // SAFETY: by the caller.
    unsafe { in_order(src, dst, len, way, order) };
    if let Some(trial) = trial {
        Orders::learn(way, trial, len);
    }
}

/// The same in the given order.
///
/// # Safety
/// As for [`copy`].
unsafe fn in_order(src: *const u8, dst: *mut u8, len: usize, way: Way, order: Order) {
    #[cfg(target_arch = "x86_64")]
    if (way == Way::Past || order == Order::Abreast) && std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: by the caller; AVX is there.
        unsafe {
            match way {
                Way::Past => lines::<true>(src, dst, len, order),
                _ => lines::<false>(src, dst, len, order),
            }
        };
        return;
    }
    let _ = (way, order);
    // SAFETY: by the caller.
    unsafe { few::copy(src, dst, len) };
}

/// Copies `len` bytes past the caches, but for parts of lines at the ends; what is stored after this is seen after them.
///
/// # Safety
/// As for [`copy`].
pub unsafe fn past(src: *const u8, dst: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= 64 && std::arch::is_x86_feature_detected!("avx") {
        let (order, trial) = Orders::choose(Way::Past, len);
        // SAFETY: by the caller; AVX is there.
        unsafe { lines::<true>(src, dst, len, order) };
        if let Some(trial) = trial {
            Orders::learn(Way::Past, trial, len);
        }
        return;
    }
    // SAFETY: by the caller.
    unsafe { few::copy(src, dst, len) };
}

/// Blocks that are copied side by side.
#[cfg(target_arch = "x86_64")]
const ABREAST: usize = 4;
/// Bytes of a block.
const BLOCK: usize = 4096;

/// Whole cache lines in the middle, plain copies at the ends.
///
/// # Safety
/// As `copy`; AVX is there; `len` is at least 64.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn lines<const PAST: bool>(src: *const u8, dst: *mut u8, len: usize, order: Order) {
    let front = dst.align_offset(64).min(len);
    let lines = (len - front) & !63;
    let broad = match order {
        Order::Front => 0,
        Order::Abreast => lines - lines % (ABREAST * BLOCK),
    };
    // SAFETY: every access lies in the caller's ranges: `front`, `lines` and what is left are `len`; lines are aligned because
    // `front` aligns `dst`.
    unsafe {
        std::ptr::copy_nonoverlapping(src, dst, front);
        let (s, d) = (src.add(front), dst.add(front));
        for at in (0..broad).step_by(ABREAST * BLOCK) {
            for line in (at..at + BLOCK).step_by(64) {
                for block in 0..ABREAST {
                    let at = line + block * BLOCK;
                    copy_line::<PAST>(s.add(at), d.add(at));
                }
            }
        }
        for at in (broad..lines).step_by(64) {
            copy_line::<PAST>(s.add(at), d.add(at));
        }
        std::ptr::copy_nonoverlapping(s.add(lines), d.add(lines), len - front - lines);
    }
    if PAST {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Copies a line of 64 bytes.
///
/// # Safety
/// As `copy` of so many bytes; `dst` is aligned to them; AVX is there.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
#[inline]
unsafe fn copy_line<const PAST: bool>(src: *const u8, dst: *mut u8) {
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_store_si256, _mm256_stream_si256};
    let (first, second) = (dst.cast::<__m256i>(), dst.wrapping_add(32).cast::<__m256i>());
    // SAFETY: by the caller.
    unsafe {
        let (a, b) = (_mm256_loadu_si256(src.cast()), _mm256_loadu_si256(src.add(32).cast()));
        if PAST {
            _mm256_stream_si256(first, a);
            _mm256_stream_si256(second, b);
        } else {
            _mm256_store_si256(first, a);
            _mm256_store_si256(second, b);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_long_goes_by_the_second_cache_within_bounds() {
        let of = |kib: u64| long_by(Some(kib << 10));
        assert_eq!([of(1), of(256), of(512), of(1024)], [1 << 20, 1 << 20, 2 << 20, 4 << 20]);
        assert_eq!([of(2048), of(4096), of(1 << 20)], [8 << 20, 16 << 20, 16 << 20]);
        assert_eq!((long_by(Some(u64::MAX)), long_by(None)), (16 << 20, 4 << 20));
        // A length that is long anywhere, and one that is nowhere.
        assert_eq!((Way::to_place(16 << 20), Way::to_reader(16 << 20)), (Way::Past, Way::Through));
        assert_eq!((Way::to_place((1 << 20) - 1), Way::to_reader(0)), (Way::Plain, Way::Plain));
        assert_eq!(long(), long_by(second_cache()));
    }

    #[test]
    fn copies_any_alignment_and_length() {
        let src: Vec<u8> = (0..40_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        let all = [
            (0, 0, 4096),
            (1, 3, 4097),
            (63, 1, 8191),
            (0, 0, 16_384),
            (5, 64, 16_383),
            (5, 64, 32_768),
            (7, 9, 16_447),
            (7, 9, 100),
            (0, 1, 0),
        ];
        for (from, to, len) in all {
            let ways = [Way::Plain, Way::Through, Way::Past];
            let orders = [None, Some(Order::Front), Some(Order::Abreast)];
            for (way, order) in ways.into_iter().flat_map(|w| orders.map(|o| (w, o))) {
                let mut dst = vec![0xEEu8; 40_100];
                // SAFETY: both ranges lie inside the vectors; the last three are longer than a line.
                unsafe {
                    let (s, d) = (src.as_ptr().add(from), dst.as_mut_ptr().add(to));
                    match order.filter(|_| len >= 64) {
                        None => copy(s, d, len, way),
                        Some(order) => in_order(s, d, len, way, order),
                    }
                }
                assert_eq!(&dst[to..to + len], &src[from..from + len], "{from} {to} {len}");
                assert!(dst[..to].iter().chain(&dst[to + len..]).all(|&b| b == 0xEE));
            }
        }
    }
}
