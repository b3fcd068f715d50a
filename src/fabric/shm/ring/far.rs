//! How far away the lines are that the peer has read.
//!
//! A line of the ring, or of the stream, that its reader has in its caches has to be got from there before it can be written
//! the usual way. Where both processors share a cache that takes some 15 ns a line; where they do not (those of different
//! chiplets of an AMD EPYC), 45, and a message of 8 KiB waits 4 µs for nothing but that. Stores past the caches ask
//! nobody for the line: they take longer once, since the reader has to go to main memory, and less for each line. One way of a
//! ping-pong of two threads, in µs, as far as the virtual processors of one machine were, which wander from one place to another by the second:
//!
//! | | near, usual | near, past | far, usual | far, past |
//! |---|---|---|---|---|
//! | 64 B | 0.21 | 0.47 | 0.56 | 0.58 |
//! | 1 KiB | 0.37 | 0.55 | 1.05 | 0.72 |
//! | 8 KiB | 1.93 | 1.50 | 5.40 | 1.75 |
//! | a line, in ticks | 40 | | 110 to 130 | |
//!
//! So now and then some lines are written the usual way, and timed; from what that took follows the length from where on it pays to
//! store past the caches.

use crate::bulk;
use crate::few;
use crate::os::ticks;

/// So many bytes are timed, of one long block in so many.
const TIMED: usize = 1024;
const EVERY: u32 = 128;
/// Until something is known.
const SOON: u32 = 16;
/// A block as long as a slot of the stream goes past the caches from so many ticks a line on. Where both processors were near, 1 MiB through
/// slots took 22 µs, and 58 past the caches; a line 10 to 50 ticks.
const SLOT_EACH: u64 = 70;
/// What past the caches takes, in ticks of the processor's counter (some 0.4 ns): once, and for each line. From the table above.
const ONCE: u64 = 600;
const EACH: u64 = 24;

/// What a writer knows of the lines.
#[derive(Debug)]
pub(crate) struct Far {
    /// Past the caches pays from this length on.
    least: usize,
    /// Long blocks until the next that is timed.
    left: u32,
    /// What a line took of late, the usual way; 0: not known yet.
    each: u64,
}

impl Far {
    /// Nothing is known.
    pub(crate) fn new() -> Far {
        Far { least: usize::MAX, left: SOON, each: 0 }
    }

    /// Copies `len` bytes to where the peer reads them.
    ///
    /// # Safety
    /// As for [`std::ptr::copy_nonoverlapping`] of bytes.
    #[inline(always)]
    pub(crate) unsafe fn copy(&mut self, src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: by this function's contract.
        unsafe {
            match len < TIMED.min(self.least) {
                true => few::copy(src, dst, len),
                false => self.copy_long(src, dst, len),
            }
        }
    }

    /// The same of what is not short.
    ///
    /// # Safety
    /// As for `copy`.
    #[inline(never)]
    unsafe fn copy_long(&mut self, src: *const u8, dst: *mut u8, len: usize) {
        let mut done = 0;
        if len >= TIMED && self.is_due() {
            // SAFETY: by this function's contract.
            self.time(|| unsafe { few::copy(src, dst, TIMED) });
            done = TIMED;
        }
        // SAFETY: by this function's contract; so much is left.
        unsafe {
            match len >= self.least {
                true => bulk::past(src.add(done), dst.add(done), len - done),
                false => few::to_reader(src.add(done), dst.add(done), len - done),
            }
        }
    }

    /// Whether a slot of the stream is to be filled past the caches.
    ///
    /// # Safety
    /// `dst` is writable for more than [`TIMED`] bytes, and holds nothing yet.
    pub(crate) unsafe fn pays(&mut self, dst: *mut u8) -> bool {
        if self.is_due() {
            // SAFETY: by this function's contract.
            unsafe {
                // What it takes to have the page is not what is asked for.
                dst.add(TIMED).write_volatile(0);
                self.time(|| dst.write_bytes(0, TIMED));
            }
        }
        self.each >= SLOT_EACH
    }

    fn is_due(&mut self) -> bool {
        self.left -= 1;
        self.left == 0
    }

    /// Takes the time of writing [`TIMED`] bytes, until the peer would see all of them.
    fn time(&mut self, write: impl FnOnce()) {
        let began = ticks();
        write();
        settle();
        self.learn(ticks().wrapping_sub(began) / (TIMED / 64) as u64);
    }

    /// So many ticks did each line take.
    fn learn(&mut self, each: u64) {
        (self.each, self.left) = match self.each {
            0 => (each.max(1), SOON),
            known if each < known => ((known + each) / 2, EVERY),
            // One that an interrupt, or a page's first use, made longer must not count for much.
            known => ((3 * known + each.min(4 * known)).div_ceil(4), EVERY),
        };
        let saved = self.each.saturating_sub(EACH);
        self.least = ONCE.checked_div(saved).map_or(usize::MAX, |lines| 64 * (lines as usize + 1));
    }
}

/// Waits until all stores have their lines.
fn settle() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction, which accesses nothing.
    unsafe {
        std::arch::x86_64::_mm_mfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_follows_from_what_a_line_takes() {
        let mut far = Far::new();
        let mut after = |each: u64, times: usize| {
            (0..times).for_each(|_| far.learn(each));
            far.least
        };
        assert_eq!(after(20, 1), usize::MAX, "never");
        assert!((2000..3000).contains(&after(40, 20)), "near");
        assert!((2000..3000).contains(&after(43, 1)), "nearly so");
        assert!(after(100_000, 1) > 512, "an interrupt");
        assert!((300..600).contains(&after(120, 30)), "far");
        assert_eq!(after(20, 30), usize::MAX, "near again");
    }

    #[test]
    fn slots_are_filled_past_the_caches_where_processors_are_far() {
        let (mut slot, mut far) = (vec![1u8; TIMED + 1], Far::new());
        let mut pays = |each: u64, times: usize| {
            (0..times).for_each(|_| far.learn(each));
            // SAFETY: so long is the vector; none is timed meanwhile.
            unsafe { far.pays(slot.as_mut_ptr()) }
        };
        assert!(!pays(30, 5), "near");
        assert!(!pays(50, 5), "nearly so");
        assert!(pays(120, 20), "far");
        assert!(!pays(20, 5), "near again");
        let timed = far.left;
        // SAFETY: as above.
        assert!(!(0..timed).any(|_| unsafe { far.pays(slot.as_mut_ptr()) }));
        assert!(far.left > timed && slot.iter().all(|&byte| byte == 0), "one was timed");
    }

    #[test]
    fn every_byte_arrives_either_way() {
        let from: Vec<u8> = (0..20_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        let mut far = Far::new();
        let all = [0, 1, 511, 512, 513, 1023, 1024, 1025, 4096, 12_345];
        for (nth, len) in all.into_iter().cycle().take(700).enumerate() {
            if nth % 50 == 0 {
                far.learn(if nth % 100 == 0 { 1 } else { 1000 });
            }
            let at = nth % 67;
            let mut to = vec![0xEE; len + 200];
            // SAFETY: `at + len` is below the length of both.
            unsafe { far.copy(from[at..].as_ptr(), to[at..].as_mut_ptr(), len) };
            assert_eq!(to[at..at + len], from[at..at + len], "{len} bytes at {at}");
            assert!(to[..at].iter().chain(&to[at + len..]).all(|&byte| byte == 0xEE));
        }
    }
}
