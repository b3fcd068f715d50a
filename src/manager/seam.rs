//! The manager's lock on real primitives: a mutex, an epoll set with an eventfd in it, a condition variable; and the
//! application's descriptor, where it asked for one.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Condvar;

use super::bias::{Biased, Guard};
use super::core::Core;
use super::lock::{Locked, Platform, Shared};
use super::sys::{Epoll, Tag};
use super::waiter::Caller;
use super::wheel::Wheel;
use crate::os::{EventFd, TimerFd};
use crate::status::Status;
use crate::thread::Thread;

/// A progress thread that waits to be told looks so often.
const PARKED: Duration = Duration::from_millis(500);

fn eventfd() -> Result<EventFd, Status> {
    EventFd::new().map_err(|e| Status::os("eventfd", &e))
}

fn timerfd() -> Result<TimerFd, Status> {
    TimerFd::new().map_err(|e| Status::os("timerfd_create", &e))
}

/// The application's descriptor: readable while something is due or has arrived.
struct Watch {
    /// Around the manager's own epoll set.
    epoll: Epoll,
    bell: EventFd,
    timer: TimerFd,
}

/// The manager's core behind its lock, and what wakes those who sleep.
pub struct Seam {
    mutex: Biased<Shared<Core, Caller>>,
    epoll: Arc<Epoll>,
    wake: EventFd,
    unpark: Condvar,
    watch: OnceLock<Watch>,
}

impl Seam {
    /// `thread`: a progress thread will drive.
    pub fn new(core: Core, epoll: Arc<Epoll>, thread: bool) -> Result<Seam, Status> {
        let wake = eventfd()?;
        epoll.add(wake.as_raw_fd(), Tag::Wake)?;
        // A progress thread and callers take turns, and it parks on the mutex.
        let mutex = Biased::new(Shared { ground: core, wheel: Wheel::new(thread) }, !thread);
        Ok(Seam { mutex, epoll, wake, unpark: Condvar::new(), watch: OnceLock::new() })
    }

    /// Takes the lock.
    pub fn lock(&self) -> Locked<'_, Seam> {
        self.locked()
    }

    /// The same on this thread.
    #[inline(always)]
    pub fn lock_on(&self, thread: Thread) -> Locked<'_, Seam> {
        self.locked_on(thread)
    }

    /// Whether this thread has the manager to itself, as far as it has been seen.
    #[inline]
    pub fn is_alone(&self, thread: Thread) -> bool {
        self.mutex.is_owned_by(thread)
    }

    /// The application's descriptor, which from now on is armed by every turn.
    pub fn watch_fd(&self) -> Result<RawFd, Status> {
        if let Some(watch) = self.watch.get() {
            return Ok(watch.epoll.give());
        }
        let watch = Watch { epoll: Epoll::new()?, bell: eventfd()?, timer: timerfd()? };
        for fd in [self.epoll.fd(), watch.bell.as_raw_fd(), watch.timer.as_raw_fd()] {
            watch.epoll.add(fd, Tag::Wake)?;
        }
        let fd = self.watch.get_or_init(|| watch).epoll.give();
        self.watch();
        Ok(fd)
    }

    /// Whether the application has its descriptor.
    pub fn is_watched(&self) -> bool {
        self.watch.get().is_some()
    }

    /// The application looks: what made its descriptor readable is taken back, and what is ready is seen.
    pub fn unwatch(&self) -> Vec<Tag> {
        if let Some(watch) = self.watch.get() {
            let mut core = self.lock();
            core.wheel().unwatch();
            watch.bell.drain();
            // One for a sleeper that got up by something else: nobody else would take it back.
            if core.wheel().owes_no_signal() {
                self.wake.drain();
            }
        }
        self.wait(Duration::ZERO)
    }

    /// The application may sleep on its descriptor again: it is armed when the lock is released.
    pub fn watch(&self) {
        if self.is_watched() {
            self.watch_in(&mut self.lock());
        }
    }

    /// The same with the lock held.
    pub fn watch_in(&self, core: &mut Locked<'_, Seam>) {
        let Some(watch) = self.watch.get() else { return };
        let (until, idle) = core.idle_until();
        watch.timer.set(idle);
        core.watch(until);
    }
}

impl Platform for Seam {
    type Ground = Core;
    type Waiter = Caller;
    type Guard<'a> = Guard<'a, Shared<Core, Caller>>;
    type Ready = Vec<Tag>;

    #[inline]
    fn raw_lock(&self, thread: Thread) -> Self::Guard<'_> {
        self.mutex.lock(thread)
    }

    fn wait(&self, timeout: Duration) -> Vec<Tag> {
        let mut tags = Vec::new();
        self.epoll.wait(timeout, &mut tags);
        tags
    }

    fn signal(&self) {
        self.wake.signal();
    }

    fn drain(&self, ready: &Vec<Tag>) {
        // One that came since then ends the next sleep.
        if ready.contains(&Tag::Wake) {
            self.wake.drain();
        }
    }

    fn ring(&self) {
        if let Some(watch) = self.watch.get() {
            watch.bell.signal();
        }
    }

    fn park<'a>(&'a self, guard: &mut Self::Guard<'a>, limit: Option<Duration>) {
        // Where there is a thread that parks, the lock has no owner.
        match (guard.mutex(), limit) {
            (Some(mutex), Some(limit)) => {
                self.unpark.wait_for(mutex, limit);
            }
            (Some(mutex), None) => {
                // Whoever is to tell it may be kept: it looks by itself, too, which is a wake-up for nothing as a rule.
                self.unpark.wait_for(mutex, PARKED);
            }
            (None, _) => {}
        }
    }

    fn unpark(&self) {
        self.unpark.notify_one();
    }

    fn grant(&self, caller: &Caller) {
        caller.0.nudge();
    }
}
