//! Memory for content that is copied before a peer reads it (`Caps::staged_max`), and that copy.
//!
//! Who read a buffer last has its lines in its caches. To write it again at once takes them from there one by one, for more than
//! the copy costs. So what was used longest ago comes first: by the time that the oldest buffer comes again its lines have left. On one machine
//! half a round trip of 64 KiB took 6.6 µs so, and 12.8 with the buffer that was free last.
//!
//! Where both processors are far from each other (of two sockets, say) that may not help, and it is better to write past the caches, which
//! takes nothing from anybody; but then the reader gets it from memory. Both are tried, too, by what a transfer takes: the copy alone tells
//! nothing of its reader, and a buffer that was written past the caches is slow to be written otherwise the next time.
//!
//! Whether it pays to copy at all depends on the processor and the kernel: content of 1 MiB took 0.5 of the time so on an AMD EPYC, and 2.6 times
//! as long on an Intel Xeon, where `process_vm_readv` is quick. So both are tried, by length, and apart for what is alone on its way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::posting::POSTED_MAX;
use super::world::World;
use crate::bulk::{self, Way};
use crate::engine::{Buffer, Fx, Stage};
use crate::room;
use crate::trials::{Plan, Trial, Trials};

/// Bytes that are kept, about what a processor's own caches hold. More of them would leave this one's caches, too.
const KEPT: u64 = 2 << 20;
/// The least buffer.
const LEAST: u64 = 16 << 10;
/// Bytes that may be in use at a time; what is beyond stays where it is.
const MOST: u64 = 16 << 20;
/// So many in a row go past the caches, or not, to see what it takes: enough to have all buffers that are kept written so.
const RUN: u32 = (KEPT / LEAST) as u32;
/// Through the caches as a rule. How far the processors are from each other changes by the second.
const MANNERS: Plan = Plan { run: RUN, usual: true, restless: true, ..Plan::OPEN };
/// Bytes through buffers after which the memory that they come from has its pages.
const WARM: u64 = 4 * KEPT;
/// Lengths that are told apart, each twice the one before; alone on its way, or not.
const CLASSES: usize = 2 * 7;

/// Buffers that wait for their next use.
pub struct Staging {
    oldest_first: Vec<Buffer>,
    /// Bytes of these.
    kept: u64,
    /// Bytes of those in use.
    out: u64,
    /// Copies that a call does not make are made by another thread, which has to be woken for a long one.
    handed_on: bool,
    pub pace: Arc<Pace>,
    /// Whether it is left where it is, or copied.
    trials: Trials<CLASSES>,
    /// Whether it is copied through the caches, or past them.
    manners: Trials<CLASSES>,
    /// When the last were answered that nothing was learnt from yet.
    answered: u64,
    /// Bytes of all buffers that were given, over all time.
    used: u64,
}

impl Staging {
    /// None yet; `handed_on` as above.
    pub fn new(handed_on: bool, pace: Arc<Pace>) -> Staging {
        Staging {
            oldest_first: Vec::new(),
            kept: 0,
            out: 0,
            handed_on,
            pace,
            trials: Trials::default(),
            manners: Trials::with([MANNERS; CLASSES]),
            answered: 0,
            used: 0,
        }
    }

    /// The oldest of this length, once there are many.
    fn take(&mut self, len: u64) -> Option<Buffer> {
        if self.kept + len <= KEPT {
            return None;
        }
        let at = self.oldest_first.iter().position(|b| b.len == len)?;
        self.kept -= len;
        Some(self.oldest_first.remove(at))
    }

    /// Keeps a buffer. What comes back is not kept.
    fn put(&mut self, buffer: Buffer) -> Option<Buffer> {
        if room::grow(&mut self.oldest_first, 1, "buffers").is_err() {
            return Some(buffer);
        }
        self.kept += buffer.len;
        self.oldest_first.push(buffer);
        None
    }

    /// Whether content is copied, whose buffer would have this length, and how.
    fn choose(&mut self, len: u64, alone: bool, now: u64) -> Trial {
        self.settle(now);
        let class = 2 * (len / LEAST).max(1).ilog2() as usize + usize::from(alone);
        let trial = self.trials.choose(class, now);
        if !trial.is_second() {
            return trial;
        }
        let manner = self.manners.choose(class, now);
        self.pace.past.store(manner.is_second(), Ordering::Relaxed);
        trial.in_manner(manner)
    }

    /// Content has gone of which it was asked whether it is copied.
    pub fn moved(&mut self, trial: Trial, len: u64, now: u64) {
        self.settle(now);
        self.answered = now;
        if trial.is_second() {
            self.manners.answered(trial.manner(), len);
            if self.manners.tries(trial.manner()) {
                // It is not what a copy takes as a rule.
                return;
            }
        }
        self.trials.answered(trial, len);
    }

    /// What one look found was answered at once.
    fn settle(&mut self, now: u64) {
        if self.answered != now {
            self.trials.learn(self.answered);
            self.manners.learn(self.answered);
        }
    }

    /// The oldest, if they are too many.
    fn excess(&mut self) -> Option<Buffer> {
        if self.kept <= KEPT || self.oldest_first.is_empty() {
            return None;
        }
        let oldest = self.oldest_first.remove(0);
        self.kept -= oldest.len;
        Some(oldest)
    }
}

impl World {
    /// A buffer for so many bytes, unless too many are in use, or it does not pay; see [`Fx::stage`].
    pub(super) fn take_staging(&mut self, len: u64, alone: bool, here: bool) -> Stage {
        let woken = self.staging.handed_on && !here && len > POSTED_MAX;
        let Some(len) = len.checked_next_power_of_two().map(|len| len.max(LEAST)) else {
            return Stage::default();
        };
        if woken || self.staging.out + len > MOST {
            return Stage::default();
        }
        self.tick();
        let trial = self.staging.choose(len, alone, self.clock.now());
        if !trial.is_second() {
            return Stage { buffer: None, trial: Some(trial) };
        }
        let Some(buffer) = self.staging.take(len).or_else(|| self.alloc(len).ok()) else {
            return Stage::default();
        };
        self.staging.out += buffer.len;
        // The first use of memory takes long for its pages.
        let warm = self.staging.used >= WARM;
        self.staging.used += buffer.len;
        Stage { buffer: Some(buffer), trial: warm.then_some(trial) }
    }

    /// Takes it back.
    pub(super) fn keep_staging(&mut self, buffer: Buffer) {
        self.staging.out = self.staging.out.saturating_sub(buffer.len);
        let not_kept = match self.is_touched(&buffer) {
            true => Some(buffer),
            false => self.staging.put(buffer),
        };
        if let Some(buffer) = not_kept {
            self.free(buffer);
        }
        while let Some(buffer) = self.staging.excess() {
            self.free(buffer);
        }
    }
}

/// How content is copied to such a buffer, as was chosen last.
#[derive(Default)]
pub struct Pace {
    /// Past the caches.
    past: AtomicBool,
}

impl Pace {
    /// Copies `len` bytes.
    ///
    /// # Safety
    /// Both ranges are valid and do not overlap.
    pub(super) unsafe fn copy(&self, dst: u64, src: u64, len: u64) {
        let way = if self.past.load(Ordering::Relaxed) { Way::Past } else { Way::Plain };
        // SAFETY: by this function's contract.
        unsafe { bulk::copy(src as *const u8, dst as *mut u8, len as usize, way) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_comes_first_and_no_more_is_kept_than_the_bound() {
        let mut staging = Staging::new(false, Arc::default());
        let len = KEPT / 4;
        for addr in 1..=4 {
            assert_eq!(staging.take(len), None, "there are few");
            assert_eq!(staging.put(Buffer { addr, len }), None);
        }
        assert_eq!(staging.excess(), None);
        assert_eq!(staging.take(len), Some(Buffer { addr: 1, len }));
        staging.put(Buffer { addr: 1, len });
        assert_eq!(staging.take(len).map(|b| b.addr), Some(2));
        staging.put(Buffer { addr: 2, len });
        // One of another length takes the place of the oldest.
        assert_eq!(staging.take(LEAST), None);
        staging.put(Buffer { addr: 5, len: LEAST });
        assert_eq!(staging.excess().map(|b| b.addr), Some(3));
        assert_eq!(staging.excess(), None);
        assert_eq!(staging.take(2 * LEAST), None);
        assert_eq!((staging.oldest_first.len(), staging.kept), (4, 3 * len + LEAST));
    }

    /// Costs are in nanoseconds of one: left where it is, copied.
    #[test]
    fn what_takes_less_time_is_done_for_each_length_alone_and_not() {
        let mut staging = Staging::new(false, Arc::default());
        let mut now = 0;
        let mut copied = |len: u64, alone: bool, costs: [u64; 2]| {
            let mut count = 0;
            for _ in 0..1000 {
                let trial = staging.choose(len, alone, now);
                count += u32::from(trial.is_second());
                now += costs[usize::from(trial.is_second())];
                staging.moved(trial, len, now);
            }
            count
        };
        assert!(copied(64 << 10, true, [4000, 8000]) < 50);
        assert!(copied(64 << 10, false, [8000, 4000]) > 950);
        assert!(copied(1 << 20, true, [90_000, 40_000]) > 950);
        assert!(copied(LEAST, true, [1000, 2000]) < 50);
    }

    /// Costs are in nanoseconds of one: left where it is, copied through the caches, past them.
    #[test]
    fn what_is_copied_goes_through_the_caches_or_past_them() {
        let mut staging = Staging::new(false, Arc::default());
        let mut now = 0;
        let mut past = |count: u32, costs: [u64; 3]| {
            let mut ways = [0u32; 3];
            for _ in 0..count {
                let trial = staging.choose(64 << 10, false, now);
                let way = match (trial.is_second(), trial.manner().is_second()) {
                    (false, _) => 0,
                    (true, false) => 1,
                    (true, true) => 2,
                };
                assert!(way == 0 || staging.pace.past.load(Ordering::Relaxed) == (way == 2));
                ways[way] += 1;
                now += costs[way];
                staging.moved(trial, 64 << 10, now);
            }
            ways.map(|n| f64::from(n) / f64::from(count))
        };
        let ways = past(10_000, [12_000, 5000, 8000]);
        assert!(ways[1] > 0.9 && ways[2] > 0.0, "{ways:?}");
        let ways = past(40_000, [12_000, 9000, 4000]);
        assert!(ways[2] > 0.8, "{ways:?}");
        let ways = past(40_000, [12_000, 4000, 8000]);
        assert!(ways[1] > 0.6, "{ways:?}");
        let ways = past(40_000, [2000, 4000, 8000]);
        assert!(ways[0] > 0.9, "{ways:?}");
    }

    #[test]
    fn each_way_copies_every_byte() {
        let src: Vec<u8> = (0..100_000u32).map(|i| (i * 7) as u8).collect();
        for past in [false, true] {
            let pace = Pace { past: AtomicBool::new(past) };
            let mut dst = vec![0u8; 100_000];
            // SAFETY: both are as long.
            unsafe { pace.copy(dst.as_mut_ptr() as u64, src.as_ptr() as u64, 100_000) };
            assert!(dst == src);
        }
    }
}
