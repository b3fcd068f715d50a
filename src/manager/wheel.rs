//! Who turns the manager, and who sleeps: the wake-up protocol.
//!
//! One thread at a time holds the *seat* and drives: it turns the manager, spins, sleeps. The progress thread holds it
//! unless a blocked caller (`rdma_recv`, `rdma_mgr_connect`, `rdma_mgr_wait`) takes it away, which a caller may at any
//! time; further callers queue behind that one. Others may turn the manager once without the seat
//! (`rdma_mgr_progress`).
//!
//! The invariant: **whoever sleeps is armed, or will be woken.** It is held in one place. The wheel lies behind the
//! manager's lock, and each release of that lock, by whomever, passes through [`Wheel::settle`]: where somebody sleeps
//! and nobody drives, the adapters that the release leaves disarmed are armed again, and the sleeper is woken if
//! something is due before the time for which it lay down. So no path can poll, queue or set a timer and forget the
//! sleeper. A sleeper is woken once, however much becomes due until it runs.
//!
//! Somebody who drives and is awake needs no waking: it looks before it sleeps ([`Wheel::lie_down`]) and settles when it
//! leaves ([`Wheel::leave`]). A caller that takes the seat lets a progress thread lie that sleeps: to wake it would take as long as all
//! the rest of a call, and most callers are gone before anything comes that it hears. When it wakes the
//! thread parks: for [`REST`] behind a caller that is awake or has come within [`REST`] after another, and until [`REST`]
//! has passed since the last caller left, which is all that a manager may stay without a driver; behind one that sleeps
//! for longer, until it is told. So blocking calls one after the other are not disturbed by a thread that wakes for
//! what the next one would take, nor have they to wake it.
//! Should the last caller leave before the thread has got up, the thread's sleep counts again.
//!
//! Who drives runs callbacks, and copies, and may be kept by one for long. A caller that is awake and has turned nothing for [`KEPT`] is:
//! the seat goes to the next that asks, another caller or the progress thread, and the caller queues when it notices. Only where nobody else
//! is there does everything wait for it.
//!
//! `model` runs this code, and that of `sleep`, in a model checker.

use std::collections::VecDeque;
use std::time::Duration;

/// The progress thread stays away from the seat for so long after the last caller has left.
pub const REST: Duration = Duration::from_micros(500);
/// A caller that drives and turns nothing for so long is kept by a callback.
pub const KEPT: Duration = Duration::from_millis(100);

/// What a driver would have to do, and how it is told of more.
pub trait Ground {
    /// Something is to be done that no descriptor tells of. Asking may forget it: whoever asks wakes the driver.
    fn due(&mut self) -> bool;
    /// When the next timer is due, in nanoseconds.
    fn next(&self) -> u64;
    /// Makes descriptors tell what arrives; false: something has arrived already.
    fn arm(&mut self) -> bool;
    /// Nobody has polled since they were armed.
    fn armed(&self) -> bool;
    /// The time, in nanoseconds.
    fn now(&mut self) -> u64;
    /// How often it was turned, since some time.
    fn turns(&self) -> u32;
}

/// Who holds the seat.
#[derive(Debug, PartialEq, Eq)]
enum Seat<W> {
    Free,
    Thread,
    Caller(W),
}

/// Somebody sleeps on descriptors.
#[derive(Clone, Copy, Debug)]
struct Sleep {
    /// Until then, in nanoseconds.
    until: u64,
    /// It was woken, and has not noticed yet.
    woken: bool,
}

/// Where the progress thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thread {
    /// There is none.
    Absent,
    /// It runs.
    Awake,
    /// It sleeps on the descriptors.
    Asleep { until: u64 },
    /// It waits for callers to leave, and looks again after [`REST`] at most.
    Parked,
    /// It waits until it is told.
    ParkedForLong,
}

/// What was last seen of whoever drives.
#[derive(Debug, Default)]
struct Watch {
    /// At this time, in milliseconds, it was awake; 0: it was not.
    since: u32,
    /// There had been so many turns.
    turns: u32,
}

/// What the holder of the lock does after releasing it.
#[derive(Debug)]
#[must_use]
pub struct Wake<W> {
    /// Wake who sleeps on the descriptors.
    pub sleeper: bool,
    /// Make the application's descriptor readable.
    pub watcher: bool,
    /// Wake the parked progress thread.
    pub thread: bool,
    /// Tell this caller that the seat is its.
    pub caller: Option<W>,
}

impl<W> Default for Wake<W> {
    fn default() -> Self {
        Wake { sleeper: false, watcher: false, thread: false, caller: None }
    }
}

impl<W> Wake<W> {
    /// Nothing is to be done.
    #[inline]
    pub fn is_empty(&self) -> bool {
        !(self.sleeper || self.watcher || self.thread || self.caller.is_some())
    }
}

/// What the progress thread does next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// It holds the seat.
    Drive,
    /// It parks: for so long at most, `None` until it is told.
    Park(Option<Duration>),
}

/// Who has the seat, who sleeps, and until when. `W` is a blocked caller.
#[derive(Debug)]
pub struct Wheel<W> {
    seat: Seat<W>,
    /// The holder of the seat sleeps.
    asleep: Option<Sleep>,
    /// Something has happened that the caller in the seat may wait for, and it was awake: it looks before it sleeps.
    nudged: bool,
    /// The application may sleep on its descriptor.
    watch: Option<Sleep>,
    thread: Thread,
    /// Callers that wait for the seat.
    queue: VecDeque<W>,
    /// When the last caller left the seat.
    left: Option<u64>,
    /// What those who would drive in its place have seen of the caller in the seat.
    watched: Watch,
    /// The manager ends: the thread parks no more, though it may not have heard of it yet.
    ending: bool,
    /// What the last `leave` found to be done.
    handed: Wake<W>,
    /// `settle` would do nothing: see `find_settled`. Kept by all that changes the wheel, so that the release of the
    /// lock asks no more than this.
    settled: bool,
}

impl<W: Clone + PartialEq> Wheel<W> {
    /// Nobody drives. `thread`: a progress thread will.
    pub fn new(thread: bool) -> Wheel<W> {
        Wheel {
            seat: Seat::Free,
            asleep: None,
            nudged: false,
            watch: None,
            thread: if thread { Thread::Awake } else { Thread::Absent },
            queue: VecDeque::new(),
            left: None,
            watched: Watch::default(),
            ending: false,
            handed: Wake::default(),
            settled: true,
        }
    }

    /// Whether `settle` would do nothing.
    #[inline]
    pub fn is_settled(&self) -> bool {
        debug_assert_eq!(self.settled, self.find_settled());
        self.settled
    }

    /// Nobody has to be told, and somebody drives, or nobody sleeps.
    fn find_settled(&self) -> bool {
        self.handed.is_empty() && self.is_calm()
    }

    /// The wheel was changed.
    fn changed(&mut self) {
        self.settled = self.find_settled();
    }

    /// Nobody sleeps, or who drives sees to what the application waits for. (A thread that parks comes by itself, or was told.)
    fn is_calm(&self) -> bool {
        let driven = !matches!(self.seat, Seat::Free);
        self.asleep.is_none() && (driven || self.watch.is_none())
    }

    /// Whether somebody who is awake turns the manager, or comes back to it within [`REST`]; or nobody does, but by calls.
    #[inline]
    pub fn is_attended(&self) -> bool {
        let asleep = self.asleep.is_some_and(|s| !s.woken) || self.watch.is_some();
        let away = matches!(self.thread, Thread::Asleep { .. } | Thread::ParkedForLong);
        !(asleep || away && matches!(self.seat, Seat::Free))
    }

    /// At each release of the lock: what sleeps is armed, or woken.
    pub fn settle(&mut self, ground: &mut impl Ground) -> Wake<W> {
        let mut wake = std::mem::take(&mut self.handed);
        if !self.is_calm() {
            self.settle_sleepers(ground, &mut wake);
        }
        self.changed();
        wake
    }

    fn settle_sleepers(&mut self, ground: &mut impl Ground, wake: &mut Wake<W>) {
        let unwoken = |sleep: &Option<Sleep>| sleep.is_some_and(|s| !s.woken);
        if !unwoken(&self.asleep) && !unwoken(&self.watch) {
            // Nobody sleeps who would not wake anyway. A parked thread comes soon, or was told when the last caller left: to wake
            // it for what is due would bring it no sooner, since it rests first.
            return;
        }
        let now = ground.due() || !(ground.armed() || ground.arm());
        let next = ground.next();
        let tell = |sleep: &mut Option<Sleep>| match sleep {
            Some(s) if !s.woken && (now || next < s.until) => {
                s.woken = true;
                true
            }
            _ => false,
        };
        wake.sleeper |= tell(&mut self.asleep);
        wake.watcher |= tell(&mut self.watch);
    }

    /// A blocked caller wants to drive. True: it holds the seat; false: it is queued behind another. It gets the seat of one that is
    /// kept, and with `force`, for a driver that is kept where it is, in any case; that one notices that it has lost it.
    pub fn sit(&mut self, caller: &W, force: bool, ground: &mut impl Ground) -> bool {
        if self.holds(caller) {
            return true;
        }
        if matches!(self.seat, Seat::Caller(_)) {
            if !force && !self.holder_is_kept(ground) {
                if !self.queue.contains(caller) {
                    self.queue.push_back(caller.clone());
                }
                return false;
            }
            // It is taken from whoever has it, awake or asleep: a caller queues again when it notices; one that sleeps may do so until
            // something comes, or this caller goes.
            self.handed.sleeper |= self.asleep.is_some_and(|s| !s.woken);
            self.queue.retain(|w| w != caller);
        }
        // A thread that has it may sleep on, too, and parks when it notices.
        self.asleep = None;
        self.seat = Seat::Caller(caller.clone());
        self.changed();
        true
    }

    /// The caller that drives.
    pub fn holder(&self) -> Option<&W> {
        match &self.seat {
            Seat::Caller(holder) => Some(holder),
            Seat::Thread | Seat::Free => None,
        }
    }

    /// Whether this caller drives.
    pub fn holds(&self, caller: &W) -> bool {
        matches!(&self.seat, Seat::Caller(holder) if holder == caller)
    }

    /// A caller goes, with the seat or out of the queue.
    pub fn leave(&mut self, caller: &W, now: u64) {
        self.queue.retain(|w| w != caller);
        if self.holds(caller) {
            self.give_up_seat(now);
            self.changed();
        }
    }

    /// A caller that would get the seat of nobody turns the manager a few times without it, as if it had come and gone: true. Else
    /// somebody drives, or sleeps.
    pub fn visits(&mut self, now: u64) -> bool {
        let rests = matches!(self.thread, Thread::Absent | Thread::Parked);
        let visits = rests && self.seat == Seat::Free && self.watch.is_none() && !self.ending;
        if visits {
            self.left = Some(now);
        }
        visits
    }

    /// The caller in the seat goes.
    fn give_up_seat(&mut self, now: u64) {
        self.left = Some(now);
        self.asleep = None;
        if let Some(next) = self.queue.pop_front() {
            self.seat = Seat::Caller(next.clone());
            self.handed.caller = Some(next);
            return;
        }
        self.seat = Seat::Free;
        match self.thread {
            // It still lies there: its sleep counts again, and the release of the lock arms for it.
            Thread::Asleep { until } => {
                self.seat = Seat::Thread;
                self.asleep = Some(Sleep { until, woken: false });
            }
            Thread::ParkedForLong => self.handed.thread = true,
            Thread::Absent | Thread::Awake | Thread::Parked => {}
        }
    }

    /// The progress thread, awake, asks what to do.
    #[inline]
    pub fn thread_next(&mut self, ground: &mut impl Ground) -> Next {
        if matches!(self.seat, Seat::Thread) {
            return Next::Drive;
        }
        let next = self.thread_parks(ground);
        self.changed();
        next
    }

    fn thread_parks(&mut self, ground: &mut impl Ground) -> Next {
        if self.ending {
            return Next::Drive;
        }
        let rest = REST.as_nanos() as u64;
        let rested = self.left.map_or(rest, |left| ground.now().saturating_sub(left));
        if self.holder_is_kept(ground) {
            self.seat = Seat::Thread;
            return Next::Drive;
        }
        let wait = match (&self.seat, self.asleep) {
            (Seat::Free | Seat::Thread, _) if rested >= rest => {
                self.seat = Seat::Thread;
                return Next::Drive;
            }
            (Seat::Free | Seat::Thread, _) => Some(Duration::from_nanos(rest - rested)),
            (Seat::Caller(_), None) => Some(REST),
            // One of many calls: to be told at its end would cost more than to look again.
            (Seat::Caller(_), Some(_)) if rested < rest => Some(REST),
            // Who sleeps stays for a while, and tells when it leaves.
            (Seat::Caller(_), Some(_)) => None,
        };
        self.thread = if wait.is_some() { Thread::Parked } else { Thread::ParkedForLong };
        Next::Park(wait)
    }

    /// Somebody looks whether the caller that drives is kept: it was awake and turned nothing, as far as was watched.
    fn holder_is_kept(&mut self, ground: &mut impl Ground) -> bool {
        let (now, turns) = (((ground.now() / 1_000_000) as u32).max(1), ground.turns());
        let awake = matches!(self.seat, Seat::Caller(_)) && self.asleep.is_none();
        let watched = &mut self.watched;
        if !awake || watched.since == 0 || watched.turns != turns {
            *watched = Watch { since: if awake { now } else { 0 }, turns };
            return false;
        }
        let kept = now.wrapping_sub(watched.since) >= KEPT.as_millis() as u32;
        if kept {
            *watched = Watch::default();
        }
        kept
    }

    /// The progress thread is no longer parked.
    pub fn unparked(&mut self) {
        self.thread = Thread::Awake;
        self.changed();
    }

    /// The progress thread is gone for good.
    pub fn thread_ended(&mut self) {
        self.thread = Thread::Absent;
        if self.seat == Seat::Thread {
            self.seat = Seat::Free;
            self.asleep = None;
        }
        self.changed();
    }

    /// Whoever drives, `None` the progress thread, wants to sleep until then. False: it must not.
    pub fn lie_down(&mut self, who: Option<&W>, until: u64, ground: &mut impl Ground) -> bool {
        let holds = match (&self.seat, who) {
            (Seat::Thread, None) => true,
            (Seat::Caller(holder), Some(caller)) => holder == caller,
            _ => false,
        };
        let nudged = holds && std::mem::take(&mut self.nudged);
        if !holds || nudged || ground.due() || !ground.arm() {
            return false;
        }
        // What is known now wakes nobody: the two clocks behind these times may differ a little.
        let until = until.min(ground.next());
        if who.is_none() {
            self.thread = Thread::Asleep { until };
        }
        self.asleep = Some(Sleep { until, woken: false });
        self.changed();
        true
    }

    /// The same sleeper is awake. True: it still drives, and may take the signal that woke it. Nobody may take that of the
    /// manager's end: somebody else may be about to wait for it.
    pub fn get_up(&mut self, who: Option<&W>) -> bool {
        if who.is_none() {
            self.thread = Thread::Awake;
        }
        let holds = match (&self.seat, who) {
            (Seat::Thread, None) => true,
            (Seat::Caller(holder), Some(caller)) => holder == caller,
            _ => false,
        };
        if holds {
            self.asleep = None;
        }
        self.changed();
        holds && !self.ending
    }

    /// The application may sleep on its descriptor from now on, until then. The release of the lock arms for it.
    pub fn watch(&mut self, until: u64, ground: &impl Ground) {
        self.watch = Some(Sleep { until: until.min(ground.next()), woken: false });
        self.changed();
    }

    /// Whether nobody who was woken has still to get up.
    pub fn owes_no_signal(&self) -> bool {
        !self.ending && self.asleep.is_none_or(|s| !s.woken)
    }

    /// Whether the application may sleep on its descriptor.
    #[cfg(test)]
    pub fn is_watched(&self) -> bool {
        self.watch.is_some()
    }

    /// Whether somebody sleeps and was not woken.
    #[cfg(test)]
    pub fn sleeps(&self) -> bool {
        self.asleep.is_some_and(|s| !s.woken)
    }

    /// The application is awake and looks.
    pub fn unwatch(&mut self) {
        self.watch = None;
        self.changed();
    }

    /// Wakes everybody, for good: the manager ends.
    pub fn wake_all(&mut self) -> Wake<W> {
        self.ending = true;
        for sleep in [&mut self.asleep, &mut self.watch].into_iter().flatten() {
            sleep.woken = true;
        }
        Wake { sleeper: true, watcher: self.watch.is_some(), thread: true, caller: None }
    }

    /// Wakes the driver, if it is a caller that sleeps: it may wait for what happened elsewhere. One that is awake may have
    /// looked before that happened: it looks again before it sleeps.
    pub fn wake_waiters(&mut self) -> Wake<W> {
        let mut wake = Wake::default();
        match (&self.seat, &mut self.asleep) {
            (Seat::Caller(_), Some(sleep)) => {
                wake.sleeper = !std::mem::replace(&mut sleep.woken, true);
            }
            (Seat::Caller(_), None) => self.nudged = true,
            _ => {}
        }
        wake
    }

    /// The same for this caller alone.
    pub fn wake_caller(&mut self, caller: &W) -> Wake<W> {
        if self.holds(caller) { self.wake_waiters() } else { Wake::default() }
    }

    /// Callers that wait for the seat.
    pub fn queued(&self) -> impl Iterator<Item = &W> {
        self.queue.iter()
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
