//! How long an operation goes on: deadlines, pauses, tries.

use std::time::{Duration, Instant};

use super::stop::Stop;
use crate::status::{Code, Reason, Status};

/// How long an operation may take, and what ends it early.
#[derive(Clone, Copy)]
pub struct Until<'a> {
    /// `None`: no deadline.
    pub deadline: Option<Instant>,
    /// The end of the view.
    pub stop: &'a Stop,
}

impl<'a> Until<'a> {
    /// So long from now on.
    pub fn after(time: Option<Duration>, stop: &'a Stop) -> Until<'a> {
        Until { deadline: time.and_then(|t| Instant::now().checked_add(t)), stop }
    }

    /// What is left, `None` for no deadline.
    pub fn left(&self) -> Option<Duration> {
        self.deadline.map(|d| d.saturating_duration_since(Instant::now()))
    }

    /// Whether the deadline has passed.
    pub fn is_over(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }

    /// The same, or so long from now on if that is earlier.
    pub fn at_most(&self, time: Duration) -> Until<'a> {
        let early = Instant::now().checked_add(time);
        Until { deadline: [self.deadline, early].into_iter().flatten().min(), stop: self.stop }
    }

    /// Sleeps so long, or until the deadline. An error if the view ends.
    pub fn sleep(&self, time: Duration) -> Result<(), Status> {
        self.stop.sleep(self.left().map_or(time, |left| left.min(time)))?;
        Ok(())
    }
}

/// An answer that is no older counts where the deadline comes upon the next.
const FRESH: Duration = Duration::from_millis(100);

/// Looks again and again for what is missing, with pauses from 1 ms to 20 ms.
pub(crate) fn poll(
    keys: &[&[u8]],
    until: Until<'_>,
    mut missing: impl FnMut(&[&[u8]]) -> Result<Vec<usize>, Status>,
) -> Result<Vec<usize>, Status> {
    let mut left = crate::room::collect(0..keys.len(), "keys")?;
    let mut pause = Duration::from_millis(1);
    let mut heard: Option<Instant> = None;
    loop {
        let wanted = crate::room::collect(left.iter().map(|&i| keys[i]), "keys")?;
        match missing(&wanted) {
            Ok(mut some) => {
                // In the memory that has come: there are no more of them.
                some.retain_mut(|at| left.get(*at).map(|left| *at = *left).is_some());
                left = some;
            }
            Err(status)
                if status.code == Code::DeadlineExceeded
                    && heard.is_some_and(|at| at.elapsed() <= FRESH) =>
            {
                return Ok(left);
            }
            Err(status) => return Err(status),
        }
        heard = Some(Instant::now());
        if left.is_empty() || until.is_over() {
            return Ok(left);
        }
        until.sleep(pause)?;
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// How an attempt to reach a store failed.
pub(crate) enum Failed {
    /// It may be reached later, and nothing was done.
    Again(Status),
    /// The same, but that it was told what to do, and did not answer: it may do that yet.
    Unheard(Status),
    /// It would fail again, or may have been done.
    Finally(Status),
}

impl From<Status> for Failed {
    fn from(status: Status) -> Failed {
        Failed::Finally(status)
    }
}

/// What a question does to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing.
    Look,
    /// What may be done twice.
    Write,
    /// What may not.
    Once,
}

impl Effect {
    /// What it means that such a question was sent as a whole, and that no answer came.
    pub fn unheard(self, why: Status) -> Failed {
        match self {
            Effect::Look => Failed::Again(why),
            Effect::Write => Failed::Unheard(why),
            Effect::Once => {
                let text = text!("{UNKNOWN}: {}", why.message);
                Failed::Finally(Status::new(Code::Unavailable, text).because(Reason::PeerGone))
            }
        }
    }
}

const UNKNOWN: &str = "it is not known whether this was done, or is done later";

/// Tries until the deadline, with pauses from 5 ms to 500 ms.
pub(crate) fn patiently<T>(
    name: &str,
    until: Until<'_>,
    mut attempt: impl FnMut() -> Result<T, Failed>,
) -> Result<T, Status> {
    let begun = Instant::now();
    let mut pause = Duration::from_millis(5);
    let (mut earlier, mut told) = (None, false);
    loop {
        let why = match attempt() {
            Ok(done) => return Ok(done),
            Err(Failed::Finally(status)) => return Err(status),
            Err(Failed::Again(why)) => why,
            Err(Failed::Unheard(why)) => {
                told = true;
                why
            }
        };
        until.stop.check()?;
        if until.is_over() {
            let time = begun.elapsed().as_secs_f64();
            // The last try ended by the deadline, which tells less.
            let why = earlier.unwrap_or(why).into_message();
            let text = match told {
                true => text!("{name} did not answer in {time:.3} s, and {UNKNOWN}: {why}"),
                false => text!("{name} was not reached in {time:.3} s: {why}"),
            };
            return Err(Status::new(Code::DeadlineExceeded, text).because(Reason::Deadline));
        }
        earlier = Some(why);
        until.sleep(pause)?;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}
