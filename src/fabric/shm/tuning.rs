//! Which way is quicker for content that is in no pool: the target reads the initiator's memory, or
//! both copy through the stream. That depends on the processors, the kernel, and on whether the
//! initiator keeps polling; so each link measures it, by length.

use std::time::{Duration, Instant};

/// Ways that are compared.
const WAYS: usize = 2;
/// Lengths that are told apart: up to 32 KiB, 256 KiB, 2 MiB, 16 MiB, more.
const CLASSES: usize = 5;
/// Samples of each way before one is preferred.
const FIRST: u32 = 2;
/// The slower way is tried with so many in a row, since of many in flight a single one cannot be timed.
const RUN: u32 = 8;
/// The last of so many runs tries the slower way again; a power of two.
const RETRY: u32 = 64;
/// The same where it costs far more: trying it is not free, and chills the caches.
const RETRY_FAR: u32 = 1024;
/// Costs this many times as much.
const FAR: f32 = 1.25;

/// A way for one WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The target reads the initiator's memory.
    Process = 0,
    /// Both copy through the stream; the target reads what does not come soon.
    Both = 1,
}

#[derive(Clone, Copy, Debug, Default)]
struct Class {
    /// Nanoseconds per byte, averaged.
    cost: [f32; WAYS],
    samples: [u32; WAYS],
    chosen: u32,
}

/// What one link has learnt.
#[derive(Debug, Default)]
pub(crate) struct Tuning {
    classes: [Class; CLASSES],
    /// When the last WRITE was answered.
    last: Option<Instant>,
    burst: Option<Burst>,
}

/// WRITEs whose answers were seen at once.
#[derive(Clone, Copy, Debug)]
struct Burst {
    first: Timed,
    class: usize,
    bytes: u64,
    /// Not all of one class went one way: the time says nothing about either.
    mixed: bool,
}

/// A WRITE whose time is taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timed {
    way: Way,
    start: Instant,
}

impl Class {
    fn retry(&self) -> u32 {
        let [a, b] = self.cost;
        if a.max(b) > FAR * a.min(b) { RETRY_FAR } else { RETRY }
    }
}

fn class(len: u64) -> usize {
    const ENDS: [u64; CLASSES - 1] = [32 << 10, 256 << 10, 2 << 20, 16 << 20];
    ENDS.iter().position(|&end| len <= end).unwrap_or(CLASSES - 1)
}

impl Tuning {
    /// Chooses the way of a WRITE of this length.
    pub(crate) fn choose(&mut self, len: u64, now: Instant) -> Timed {
        let c = &mut self.classes[class(len)];
        c.chosen = c.chosen.wrapping_add(1);
        let [process, both] = c.samples;
        let way = if process.min(both) < FIRST {
            if both <= process { Way::Both } else { Way::Process }
        } else if (c.cost[1] < c.cost[0]) != (c.chosen / RUN % c.retry() == c.retry() - 1) {
            Way::Both
        } else {
            Way::Process
        };
        Timed { way, start: now }
    }

    /// A WRITE was answered; its time is taken with that of those answered at once with it.
    pub(crate) fn answered(&mut self, timed: Timed, len: u64) {
        let class = class(len);
        match &mut self.burst {
            None => self.burst = Some(Burst { first: timed, class, bytes: len, mixed: false }),
            Some(b) => {
                b.mixed |= b.class != class || b.first.way != timed.way;
                b.bytes += len;
            }
        }
    }

    /// Learns from those that were answered at once. Their own time began when the ones before had ended.
    pub(crate) fn learn(&mut self, now: Instant) {
        let Some(burst) = self.burst.take() else { return };
        let start = self.last.map_or(burst.first.start, |last| last.max(burst.first.start));
        self.last = Some(now);
        if burst.mixed {
            return;
        }
        let took = now.saturating_duration_since(start).min(Duration::from_secs(1));
        let cost = took.as_nanos() as f32 / burst.bytes.max(1) as f32;
        let c = &mut self.classes[burst.class];
        let way = burst.first.way as usize;
        // One bad sample, a descheduled peer for example, must not decide for long.
        let old = c.cost[way];
        c.cost[way] = match c.samples[way] {
            0 => cost,
            _ => old + (cost.min(old * 4.0) - old) / 4.0,
        };
        c.samples[way] = c.samples[way].saturating_add(1);
    }
}

impl Timed {
    /// The way it goes.
    pub(crate) fn way(self) -> Way {
        self.way
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs WRITEs whose cost is given by way; the share that went by `Both`.
    fn share(tuning: &mut Tuning, len: u64, cost: [u64; 2], count: u32) -> f64 {
        let mut both = 0;
        let mut now = Instant::now();
        for _ in 0..count {
            let timed = tuning.choose(len, now);
            both += u32::from(timed.way == Way::Both);
            now += Duration::from_micros(cost[timed.way as usize]);
            tuning.answered(timed, len);
            tuning.learn(now);
        }
        f64::from(both) / f64::from(count)
    }

    #[test]
    fn the_quicker_way_wins_and_a_change_is_noticed() {
        let mut tuning = Tuning::default();
        assert!(share(&mut tuning, 1 << 20, [80_000, 20_000], 1000) > 0.9);
        assert!(share(&mut tuning, 1 << 20, [20_000, 80_000], 4000) < 0.3);
        // Another length is another matter.
        assert!(share(&mut tuning, 64 << 20, [80_000, 20_000], 1000) > 0.9);
    }

    /// Answers to one way are seen eight at a time, those to the other one by one: what counts is what each costs. The first of a burst
    /// once took all of its time, which counts as one bad sample, and the others none.
    #[test]
    fn a_burst_of_answers_does_not_look_quick() {
        let (mut tuning, mut now, mut both, mut waiting) =
            (Tuning::default(), Instant::now(), 0, Vec::new());
        for _ in 0..40_000 {
            let timed = tuning.choose(64 << 10, now);
            now += Duration::from_micros(if timed.way == Way::Both { 11 } else { 6 });
            both += u32::from(timed.way == Way::Both);
            waiting.push(timed);
            if timed.way == Way::Process || waiting.len() == 8 {
                waiting.drain(..).for_each(|timed| tuning.answered(timed, 64 << 10));
                tuning.learn(now);
            }
        }
        assert!(both < 400, "{both} of 40,000 went the slower way");
    }
}
