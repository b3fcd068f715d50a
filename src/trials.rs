//! Which of two ways takes less time, where that depends on processors, kernel and peer: learnt by going both, for each class of
//! lengths apart.
//!
//! The way that took less for each byte is gone, and now and then the other for a while. What many go at a time cost is told by the
//! time between answers: the answers seen at once are one sample, whose time began when those before them were seen. A time that is longer
//! than usual says little (the peer was doing something else), a shorter one that it can be done: what was learnt falls quicker
//! than it rises.

/// Samples of each way before one is preferred; two where each is tried one at a time.
const FIRST: u32 = 4;
/// As a rule the slower way is tried with so many in a row, since of many in flight a single one cannot be timed.
const RUN: u32 = 8;
/// As a rule the slower way is tried again after so many runs, and then after twice as many each time: what was seen first, of a connection
/// that is new, may mislead.
const SOON: u32 = 8;
/// Up to so many.
const LATE: u32 = 64;
/// The same where it costs far more: trying it is not free, and chills the caches.
const LATE_FAR: u32 = 1024;
/// Costs this many times as much.
const FAR: f32 = 1.25;
/// How the ways of a class are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The slower way is tried with so many in a row.
    pub run: u32,
    /// It is tried again after so many runs, and then after twice as many each time.
    pub soon: u32,
    /// The first way is gone until it is time to try the second.
    pub usual: bool,
    /// The better one may be another by the second: the slower is tried as often however slow it was.
    pub restless: bool,
}

impl Plan {
    /// Nothing is known.
    pub const OPEN: Plan = Plan { run: RUN, soon: SOON, usual: false, restless: false };
}

/// Longest time of one sample, in nanoseconds.
const LONGEST: u64 = 1_000_000_000;

/// One that goes one of the ways, whose time is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    class: u8,
    second: bool,
    /// How it goes that way, where other trials decide on that.
    other_manner: bool,
    start: u64,
}

impl Trial {
    /// It goes the second way.
    pub fn is_second(self) -> bool {
        self.second
    }

    /// The same that goes its way as `manner` says, a trial of other trials.
    pub fn in_manner(self, manner: Trial) -> Trial {
        Trial { other_manner: manner.second, ..self }
    }

    /// The trial of its manner.
    pub fn manner(self) -> Trial {
        Trial { second: self.other_manner, other_manner: false, ..self }
    }
}

#[derive(Clone, Copy, Debug)]
struct Class {
    /// Nanoseconds per byte.
    cost: [f32; 2],
    samples: [u32; 2],
    /// The second way is the quicker one.
    second: bool,
    /// How many went since a run of the slower way began, and how many go in all before the next.
    since: u32,
    gap: u32,
}

impl Class {
    fn learn(&mut self, way: usize, cost: f32) {
        let old = self.cost[way];
        self.cost[way] = match self.samples[way] {
            0 => cost,
            _ if cost < old => old + (cost - old) / 4.0,
            // One bad sample, a descheduled peer for example, must not decide for long.
            _ => old + (cost.min(old * 4.0) - old) / 16.0,
        };
        self.samples[way] = self.samples[way].saturating_add(1);
    }

    /// Whether the next goes the second way.
    fn choose(&mut self, plan: Plan) -> bool {
        let Plan { run, soon, usual, restless } = plan;
        let [one, two] = self.samples;
        let first = FIRST.min(2 * run);
        if one.min(two) < first && !(usual && one >= first) {
            return !usual && two <= one;
        }
        let [a, b] = self.cost;
        let b = if two < first { f32::INFINITY } else { b };
        if self.second != (b < a) || self.gap == 0 {
            (self.second, self.since, self.gap) = (b < a, run, soon * run);
        }
        self.since += 1;
        if self.since > self.gap {
            let most = if !restless && a.max(b) > FAR * a.min(b) { LATE_FAR } else { LATE };
            (self.since, self.gap) = (1, (2 * self.gap).min(most * run));
        }
        self.second != (self.since <= run)
    }
}

/// Those whose answers were seen at once.
#[derive(Clone, Copy, Debug)]
struct Burst {
    first: Trial,
    bytes: u64,
    /// A bit for each class.
    classes: u32,
    /// Not all went one way: the time says nothing about either.
    mixed: bool,
}

/// What was learnt of so many classes. Two that follow each other, of which the second is odd, are of one kind: if answers of both are
/// seen at once, they are of the first.
#[derive(Debug)]
pub struct Trials<const CLASSES: usize> {
    classes: [Class; CLASSES],
    /// When the last answer was seen, in nanoseconds from some start.
    last: u64,
    burst: Option<Burst>,
    plans: [Plan; CLASSES],
}

impl<const CLASSES: usize> Default for Trials<CLASSES> {
    fn default() -> Self {
        Trials::with([Plan::OPEN; CLASSES])
    }
}

impl<const CLASSES: usize> Trials<CLASSES> {
    /// Those that try as planned, each class by itself.
    pub const fn with(plans: [Plan; CLASSES]) -> Self {
        const NEW: Class =
            Class { cost: [0.0; 2], samples: [0; 2], second: false, since: 0, gap: 0 };
        Trials { classes: [NEW; CLASSES], last: 0, burst: None, plans }
    }

    /// Chooses the way of one that begins now; a class beyond the last is the last.
    pub fn choose(&mut self, class: usize, now: u64) -> Trial {
        let class = class.min(CLASSES - 1);
        let second = self.classes[class].choose(self.plans[class]);
        Trial { class: class as u8, second, other_manner: false, start: now }
    }

    /// Whether the second way is known to be the quicker one.
    pub fn prefers_second(&self, class: usize) -> bool {
        self.classes[class.min(CLASSES - 1)].second
    }

    /// Whether this goes the way that is known to be the slower one, to see whether it still is.
    pub fn tries(&self, trial: Trial) -> bool {
        self.classes.get(usize::from(trial.class)).is_some_and(|c| c.second != trial.second)
    }

    /// One was answered, together with those told before since the last [`learn`](Self::learn).
    pub fn answered(&mut self, trial: Trial, bytes: u64) {
        match &mut self.burst {
            None => {
                let classes = 1 << trial.class;
                self.burst = Some(Burst { first: trial, bytes, classes, mixed: false });
            }
            Some(b) => {
                b.mixed |= b.first.second != trial.second;
                b.classes |= 1 << trial.class;
                b.bytes += bytes;
            }
        }
    }

    /// Learns from those that were answered at once.
    pub fn learn(&mut self, now: u64) {
        let Some(burst) = self.burst.take() else { return };
        let start = self.last.max(burst.first.start);
        self.last = now;
        let took = now.saturating_sub(start).min(LONGEST);
        // A clock that stands still for a moment says nothing.
        if burst.mixed || took == 0 {
            return;
        }
        let cost = took as f32 / burst.bytes.max(1) as f32;
        let way = usize::from(burst.first.second);
        for (i, c) in self.classes.iter_mut().enumerate() {
            let pair = burst.classes >> (i & !1) & 3;
            if burst.classes >> i & 1 != 0 && (pair != 3 || i % 2 == 0) {
                c.learn(way, cost);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs some whose cost is given by way; the share that went the second.
    fn share(
        trials: &mut Trials<2>,
        now: &mut u64,
        class: usize,
        count: u32,
        cost: impl Fn(u32) -> [u64; 2],
    ) -> f64 {
        let mut second = 0;
        for i in 0..count {
            let trial = trials.choose(class, *now);
            second += u32::from(trial.second);
            *now += cost(i)[usize::from(trial.second)] * 1000;
            trials.answered(trial, 1 << 20);
            trials.learn(*now);
        }
        f64::from(second) / f64::from(count)
    }

    #[test]
    fn the_quicker_way_wins_and_a_change_is_noticed() {
        let (mut trials, mut now) = (Trials::default(), 0);
        assert!(share(&mut trials, &mut now, 0, 1000, |_| [80, 20]) > 0.9);
        assert!(share(&mut trials, &mut now, 0, 4000, |_| [20, 80]) < 0.3);
        // Another length is another matter.
        assert!(share(&mut trials, &mut now, 1, 1000, |_| [80, 20]) > 0.9);
        assert!(share(&mut trials, &mut now, 7, 1000, |_| [80, 20]) > 0.9, "as the last");
    }

    /// Of several lengths at a time each learns what they cost together.
    #[test]
    fn lengths_that_are_answered_at_once_are_learnt_from() {
        let (mut trials, mut now, mut second) = (Trials::<6>::default(), 0, 0);
        for _ in 0..1000 {
            let two = [0, 4].map(|class| trials.choose(class, now));
            second += two.iter().filter(|trial| trial.second).count();
            now += two.iter().map(|trial| if trial.second { 20_000 } else { 8_000 }).sum::<u64>();
            two.iter().for_each(|&trial| trials.answered(trial, 64 << 10));
            trials.learn(now);
        }
        assert!(second < 200, "{second}");
    }

    #[test]
    fn a_time_of_nothing_is_none() {
        let (mut trials, mut now) = (Trials::default(), 5);
        for _ in 0..2 * FIRST {
            let trial = trials.choose(0, now);
            trials.answered(trial, 1 << 20);
            trials.learn(now);
        }
        assert!(share(&mut trials, &mut now, 0, 1000, |_| [20, 80]) < 0.3);
    }

    /// The first of a connection take long, whichever way they go.
    #[test]
    fn what_is_seen_first_does_not_decide() {
        let (mut trials, mut now) = (Trials::default(), 0);
        share(&mut trials, &mut now, 0, 2 * FIRST, |_| [900, 80]);
        assert!(share(&mut trials, &mut now, 0, 1000, |_| [20, 80]) < 0.3);
    }

    /// Half of the time the peer was busy for a while that has nothing to do with the way.
    #[test]
    fn waiting_for_the_peer_does_not_decide() {
        let (mut trials, mut now) = (Trials::default(), 0);
        let busy = |i: u32| u64::from(i.wrapping_mul(2_654_435_761) >> 16) % 2 * 300;
        let cost = |i: u32| [40 + busy(i), 20 + busy(i)];
        share(&mut trials, &mut now, 0, 2000, cost);
        assert!(share(&mut trials, &mut now, 0, 20_000, cost) > 0.9);
        let cost = |i: u32| [20 + busy(i), 40 + busy(i)];
        share(&mut trials, &mut now, 0, 40_000, cost);
        assert!(share(&mut trials, &mut now, 0, 20_000, cost) < 0.1);
    }

    /// Answers to one way are seen eight at a time, those to the other one by one: what counts is what each costs. The first of a burst
    /// once took all of its time, which counts as one bad sample, and the others none.
    #[test]
    fn a_burst_of_answers_does_not_look_quick() {
        let (mut trials, mut now, mut second, mut waiting) =
            (Trials::<1>::default(), 0, 0, Vec::new());
        for _ in 0..40_000 {
            let trial = trials.choose(0, now);
            now += if trial.second { 11_000 } else { 6_000 };
            second += u32::from(trial.second);
            waiting.push(trial);
            if !trial.second || waiting.len() == 8 {
                waiting.drain(..).for_each(|trial| trials.answered(trial, 64 << 10));
                trials.learn(now);
            }
        }
        assert!(second < 400, "{second} of 40,000 went the slower way");
    }
}
