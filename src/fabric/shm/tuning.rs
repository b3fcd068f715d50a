//! Which way is quicker for content that is in no pool: the target reads the initiator's memory, or
//! both copy through the stream. That depends on the processors, the kernel, and on whether the
//! initiator keeps polling; so each link measures it, by length.

use std::time::Instant;

use crate::trials::{Plan, Trial, Trials};

/// Lengths that are told apart: up to 32 KiB, 256 KiB, 2 MiB, 16 MiB, more.
const CLASSES: usize = 2 * 5;

/// A way for one WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The target reads the initiator's memory.
    Process,
    /// Both copy through the stream; the target reads what does not come soon.
    Both,
}

/// What one link has learnt.
#[derive(Debug)]
pub(crate) struct Tuning {
    begun: Instant,
    trials: Trials<CLASSES>,
}

/// A WRITE whose time is taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timed {
    trial: Trial,
    way: Way,
}

/// All but short ones are copied by both, which is quicker as a rule, until it is time to try the other way; of long ones a single one says
/// enough, and costs enough.
const PLANS: [Plan; CLASSES] = {
    const LONG: Plan = Plan { run: 2, soon: 32, usual: true, restless: false };
    const LONGEST: Plan = Plan { run: 1, ..LONG };
    const SHORT: Plan = Plan::OPEN;
    const BOTH: Plan = Plan { usual: true, ..Plan::OPEN };
    [SHORT, SHORT, BOTH, BOTH, BOTH, BOTH, LONG, LONG, LONGEST, LONGEST]
};

fn class(len: u64) -> usize {
    const ENDS: [u64; 4] = [32 << 10, 256 << 10, 2 << 20, 16 << 20];
    2 * ENDS.iter().position(|&end| len <= end).unwrap_or(ENDS.len())
}

impl Tuning {
    pub(crate) fn new() -> Tuning {
        Tuning { begun: Instant::now(), trials: Trials::with(PLANS) }
    }

    fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    /// Chooses the way of a WRITE of this length.
    pub(crate) fn choose(&mut self, len: u64) -> Timed {
        let class = class(len);
        let trial = self.trials.choose(class, self.now());
        // Where one is usual it is the first.
        let both = trial.is_second() != PLANS[class].usual;
        Timed { trial, way: if both { Way::Both } else { Way::Process } }
    }

    /// A WRITE was answered; its time is taken with that of those answered at once with it.
    pub(crate) fn answered(&mut self, timed: Timed, len: u64) {
        self.trials.answered(timed.trial, len);
    }

    /// Learns from those that were answered at once.
    pub(crate) fn learn(&mut self) {
        self.trials.learn(self.now());
    }
}

impl Timed {
    /// The way it goes.
    pub(crate) fn way(self) -> Way {
        self.way
    }
}
