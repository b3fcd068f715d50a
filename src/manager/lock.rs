//! The manager's lock. What it guards is the ground of the [`Wheel`], and each release settles the wheel: see there.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use super::wheel::{Ground, Next, Wake, Wheel};
use crate::thread::Thread;

/// What lies behind the lock.
#[derive(Debug)]
pub struct Shared<G, W> {
    /// What drivers work on.
    pub ground: G,
    /// Who drives.
    pub wheel: Wheel<W>,
}

/// What the wake-up protocol stands on. The manager's is [`super::seam::Seam`]; the model checker has its own.
pub trait Platform {
    /// What drivers work on.
    type Ground: Ground;
    /// A blocked caller.
    type Waiter: Clone + PartialEq;
    /// The lock, held.
    type Guard<'a>: DerefMut<Target = Shared<Self::Ground, Self::Waiter>>
    where
        Self: 'a;
    /// What was ready after a sleep.
    type Ready;

    /// Takes the lock on this thread.
    fn raw_lock(&self, thread: Thread) -> Self::Guard<'_>;
    /// Sleeps on the descriptors, without the lock.
    fn wait(&self, timeout: Duration) -> Self::Ready;
    /// Wakes who sleeps on the descriptors; lasts until `drain`.
    fn signal(&self);
    /// Takes the signal back, if it was among what was ready.
    fn drain(&self, ready: &Self::Ready);
    /// Makes the application's descriptor readable.
    fn ring(&self);
    /// Parks the progress thread: releases the lock until `unpark` or the limit.
    fn park<'a>(&'a self, guard: &mut Self::Guard<'a>, limit: Option<Duration>);
    /// Wakes the parked progress thread.
    fn unpark(&self);
    /// Tells a queued caller that the seat is its.
    fn grant(&self, caller: &Self::Waiter);

    /// Takes the lock; what is given back settles the wheel when it is released.
    fn locked(&self) -> Locked<'_, Self>
    where
        Self: Sized,
    {
        self.locked_on(Thread::this())
    }

    /// The same on this thread.
    #[inline]
    fn locked_on(&self, thread: Thread) -> Locked<'_, Self>
    where
        Self: Sized,
    {
        Locked { guard: ManuallyDrop::new(self.raw_lock(thread)), platform: self }
    }

    /// Carries out what a release found to be done.
    #[inline(never)]
    fn deliver(&self, wake: Wake<Self::Waiter>) {
        if wake.sleeper {
            self.signal();
        }
        if wake.watcher {
            self.ring();
        }
        if wake.thread {
            self.unpark();
        }
        if let Some(caller) = wake.caller {
            self.grant(&caller);
        }
    }
}

/// The lock, held. Reads as what it guards.
pub struct Locked<'a, P: Platform> {
    /// Released when this is dropped, which sees to it by itself: after the wheel was settled, before what that caused is
    /// carried out.
    guard: ManuallyDrop<P::Guard<'a>>,
    platform: &'a P,
}

impl<'a, P: Platform> Locked<'a, P> {
    /// Who drives.
    #[inline]
    pub fn wheel(&mut self) -> &mut Wheel<P::Waiter> {
        &mut self.guard.wheel
    }

    /// See [`Wheel::lie_down`].
    fn lie_down(&mut self, who: Option<&P::Waiter>, until: u64) -> bool {
        let Shared { ground, wheel } = &mut **self.guard;
        wheel.lie_down(who, until, ground)
    }

    /// See [`Wheel::watch`].
    pub fn watch(&mut self, until: u64) {
        let Shared { ground, wheel } = &mut **self.guard;
        wheel.watch(until, ground);
    }

    /// See [`Wheel::visits`].
    pub fn visits(&mut self) -> bool {
        let now = self.guard.ground.now();
        self.wheel().visits(now)
    }

    /// Wakes everybody who sleeps or waits.
    pub fn wake_all(&mut self) {
        let wake = self.wheel().wake_all();
        let platform = self.platform;
        platform.deliver(wake);
        for caller in self.wheel().queued() {
            platform.grant(caller);
        }
    }

    /// Wakes those who wait for what a callback on this thread has just done.
    pub fn wake_waiters(&mut self) {
        let wake = self.wheel().wake_waiters();
        let platform = self.platform;
        platform.deliver(wake);
        for caller in self.wheel().queued() {
            platform.grant(caller);
        }
    }

    /// Wakes this caller, if it drives: its result is there. One that is queued is told by who has it.
    pub fn wake_caller(&mut self, caller: &P::Waiter) {
        let wake = self.wheel().wake_caller(caller);
        let platform = self.platform;
        platform.deliver(wake);
    }

    /// See [`Wheel::sit`].
    fn sit(&mut self, caller: &P::Waiter, force: bool) -> bool {
        let Shared { ground, wheel } = &mut **self.guard;
        wheel.sit(caller, force, ground)
    }

    /// Asks what the progress thread does next. `None`: it has parked, and asks again.
    #[inline]
    pub fn thread_drives(&mut self) -> Option<()> {
        let Shared { ground, wheel } = &mut **self.guard;
        match wheel.thread_next(ground) {
            Next::Drive => Some(()),
            Next::Park(limit) => {
                let Shared { ground, wheel } = &mut **self.guard;
                let wake = wheel.settle(ground);
                self.platform.deliver(wake);
                self.platform.park(&mut self.guard, limit);
                self.wheel().unparked();
                None
            }
        }
    }
}

impl<P: Platform> Deref for Locked<'_, P> {
    type Target = P::Ground;
    #[inline]
    fn deref(&self) -> &P::Ground {
        &self.guard.ground
    }
}

impl<P: Platform> DerefMut for Locked<'_, P> {
    #[inline]
    fn deref_mut(&mut self) -> &mut P::Ground {
        &mut self.guard.ground
    }
}

impl<P: Platform> Drop for Locked<'_, P> {
    #[inline(always)]
    fn drop(&mut self) {
        let settled = self.guard.wheel.is_settled();
        // SAFETY: here alone it is taken out, and nothing looks at it after this.
        let guard = unsafe { ManuallyDrop::take(&mut self.guard) };
        if !settled {
            settle(self.platform, guard);
        }
    }
}

/// See [`Wheel::settle`]; what it finds is carried out when the lock is released.
#[inline(never)]
fn settle<'a, P: Platform>(platform: &'a P, mut guard: P::Guard<'a>) {
    let Shared { ground, wheel } = &mut *guard;
    let wake = wheel.settle(ground);
    drop(guard);
    if !wake.is_empty() {
        platform.deliver(wake);
    }
}

/// Whoever drives (`None`: the progress thread) sleeps. `prepare` says until when (nanoseconds) and for how long, or
/// that there is no time; `after` takes what was ready. False: there was something to do.
pub fn sleep<P: Platform>(
    platform: &P,
    who: Option<&P::Waiter>,
    prepare: impl FnOnce(&mut P::Ground) -> Option<(u64, Duration)>,
    after: impl FnOnce(&mut Locked<'_, P>, P::Ready),
) -> bool {
    let mut core = platform.locked();
    let Some((until, timeout)) = prepare(&mut core) else { return false };
    if !core.lie_down(who, until) {
        return false;
    }
    drop(core);
    let ready = platform.wait(timeout);
    let mut core = platform.locked();
    if core.wheel().get_up(who) {
        // Under the lock: later, it might be another sleeper's signal.
        platform.drain(&ready);
    }
    after(&mut core, ready);
    true
}

/// A blocked caller, in the queue or in the seat, until this is dropped: also by a panic.
pub struct Sitting<'a, P: Platform> {
    platform: &'a P,
    caller: P::Waiter,
}

impl<'a, P: Platform> Sitting<'a, P> {
    /// Not in the queue yet: see `sit`.
    pub fn new(platform: &'a P, caller: P::Waiter) -> Self {
        Sitting { platform, caller }
    }

    /// True: it drives now. `force`: in the place of whoever does.
    pub fn sit(&self, force: bool) -> bool {
        self.platform.locked().sit(&self.caller, force)
    }
}

impl<P: Platform> Drop for Sitting<'_, P> {
    fn drop(&mut self) {
        let mut core = self.platform.locked();
        let now = core.now();
        core.wheel().leave(&self.caller, now);
    }
}
