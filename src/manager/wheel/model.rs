//! The wake-up protocol over every interleaving that loom tries: the real `Wheel`, `Locked` and `sleep` on a lock,
//! descriptors and an adapter of the model. A lost wake-up is a deadlock, which loom reports.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Condvar, Mutex, MutexGuard};
use loom::thread;

use super::super::lock::{Locked, Platform, Shared, Sitting, sleep};
use super::{Ground, Wheel};
use crate::thread::Thread;

/// An adapter as its peer sees it, and the descriptors that a sleeper waits on.
#[derive(Default)]
struct Wire {
    arrived: usize,
    armed: bool,
    /// The adapter's descriptor is readable.
    rung: bool,
    /// The manager's own is.
    signalled: bool,
}

/// What lies behind the manager's lock.
struct Core {
    wire: &'static (Mutex<Wire>, Condvar),
    armed: bool,
    taken: usize,
    /// An application's call queued this.
    queued: usize,
    done: usize,
    /// Whoever asks again has waited for `step`.
    time: u64,
    step: u64,
    turns: u32,
}

impl Core {
    /// A turn: the number of things done.
    fn turn(&mut self) -> usize {
        self.armed = false;
        self.turns += 1;
        let mut wire = self.wire.0.lock().unwrap();
        (wire.armed, wire.rung) = (false, false);
        let count = wire.arrived - self.taken + self.queued;
        self.taken = wire.arrived;
        self.done += std::mem::take(&mut self.queued);
        count
    }
}

impl Ground for Core {
    fn due(&mut self) -> bool {
        self.queued > 0
    }
    fn next(&self) -> u64 {
        u64::MAX
    }
    fn arm(&mut self) -> bool {
        let mut wire = self.wire.0.lock().unwrap();
        wire.armed = true;
        self.armed = wire.arrived == self.taken;
        self.armed
    }
    fn armed(&self) -> bool {
        self.armed
    }
    fn now(&mut self) -> u64 {
        self.time += self.step;
        self.time
    }
    fn turns(&self) -> u32 {
        self.turns
    }
}

type Caller = usize;

struct Model {
    core: Mutex<Shared<Core, Caller>>,
    unpark: Condvar,
    wire: &'static (Mutex<Wire>, Condvar),
    /// Callers that were told that the seat is model.
    granted: (Mutex<[bool; 2]>, Condvar),
}

/// A guard that can be put back into a condition variable.
struct Guard<'a>(Option<MutexGuard<'a, Shared<Core, Caller>>>);

impl Deref for Guard<'_> {
    type Target = Shared<Core, Caller>;
    fn deref(&self) -> &Self::Target {
        self.0.as_ref().unwrap()
    }
}
impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.0.as_mut().unwrap()
    }
}

impl Platform for Model {
    type Ground = Core;
    type Waiter = Caller;
    type Guard<'a> = Guard<'a>;
    /// Whether it was signalled.
    type Ready = bool;

    fn raw_lock(&self, _: Thread) -> Guard<'_> {
        Guard(Some(self.core.lock().unwrap()))
    }
    fn wait(&self, _timeout: Duration) -> bool {
        let mut wire = self.wire.0.lock().unwrap();
        while !wire.rung && !wire.signalled {
            wire = self.wire.1.wait(wire).unwrap();
        }
        wire.signalled
    }
    fn signal(&self) {
        self.wire.0.lock().unwrap().signalled = true;
        self.wire.1.notify_all();
    }
    fn drain(&self, &ready: &bool) {
        self.wire.0.lock().unwrap().signalled &= !ready;
    }
    fn ring(&self) {}
    fn park<'a>(&'a self, guard: &mut Guard<'a>, limit: Option<Duration>) {
        let held = guard.0.take().unwrap();
        guard.0 = Some(match limit {
            None => self.unpark.wait(held).unwrap(),
            Some(_) => {
                drop(held);
                thread::yield_now();
                self.core.lock().unwrap()
            }
        });
    }
    fn unpark(&self) {
        self.unpark.notify_one();
    }
    fn grant(&self, &caller: &Caller) {
        self.granted.0.lock().unwrap()[caller] = true;
        self.granted.1.notify_all();
    }
}

impl Model {
    /// Leaked, some hundred bytes a run: a deadlock panics, and no destructor may then touch the model.
    fn new(thread: bool) -> &'static Model {
        Model::with(thread, super::REST)
    }

    fn with(thread: bool, step: Duration) -> &'static Model {
        let step = step.as_nanos() as u64;
        let wire = &*Box::leak(Box::new((Mutex::new(Wire::default()), Condvar::new())));
        let ground =
            Core { wire, armed: false, taken: 0, queued: 0, done: 0, time: 0, step, turns: 0 };
        Box::leak(Box::new(Model {
            core: Mutex::new(Shared { ground, wheel: Wheel::new(thread) }),
            unpark: Condvar::new(),
            wire,
            granted: (Mutex::new([false; 2]), Condvar::new()),
        }))
    }

    /// The peer sends something.
    fn arrive(&self) {
        let mut wire = self.wire.0.lock().unwrap();
        wire.arrived += 1;
        if std::mem::take(&mut wire.armed) {
            wire.rung = true;
            self.wire.1.notify_all();
        }
    }

    fn lie(&self, who: Option<&Caller>) {
        sleep(self, who, |_| Some((u64::MAX, Duration::MAX)), |_, _| {});
    }

    /// The progress thread, until so many things are done.
    fn thread(&self, until: usize) {
        loop {
            let mut core = self.locked();
            if core.taken + core.done >= until {
                break;
            }
            if core.thread_drives().is_none() {
                continue;
            }
            let count = core.turn();
            drop(core);
            if count == 0 {
                self.lie(None);
            }
        }
        self.locked().wheel().thread_ended();
    }

    /// A blocked caller, until so many things are done.
    fn caller(&self, me: Caller, until: usize) {
        let sitting = Sitting::new(self, me);
        loop {
            if sitting.sit(false) {
                break;
            }
            let mut granted = self.granted.0.lock().unwrap();
            while !granted[me] {
                granted = self.granted.1.wait(granted).unwrap();
            }
        }
        loop {
            let mut core: Locked<'_, Model> = self.locked();
            let count = core.turn();
            if core.taken + core.done >= until {
                return;
            }
            drop(core);
            if count == 0 {
                self.lie(Some(&me));
            }
        }
    }
}

fn check(f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(f);
}

/// A caller gets its message and leaves; what comes then is the thread's.
#[test]
fn r01_a_caller_beside_the_thread_loses_no_wake_up() {
    check(|| {
        let model = Model::new(true);
        let thread = thread::spawn(move || model.thread(2));
        let peer = thread::spawn(move || {
            model.arrive();
            model.arrive();
        });
        model.caller(0, 1);
        // Only where the caller got all of it is there nothing left to wake the thread.
        let mut core = model.locked();
        if core.taken == 2 {
            core.wake_all();
        }
        drop(core);
        peer.join().unwrap();
        thread.join().unwrap();
    });
}

/// Somebody turns the manager once, beside whoever sleeps.
#[test]
fn r01_a_turn_beside_a_sleeper_loses_no_wake_up() {
    for thread_sleeps in [true, false] {
        check(move || {
            let model = Model::new(thread_sleeps);
            let sleeper = thread::spawn(move || match thread_sleeps {
                true => model.thread(1),
                false => model.caller(0, 1),
            });
            let peer = thread::spawn(move || model.arrive());
            model.locked().turn();
            peer.join().unwrap();
            // It may have been taken here: the sleeper is to see that too.
            model.locked().wake_all();
            sleeper.join().unwrap();
        });
    }
}

/// The defect that this protocol replaced: a turn that gives the lock back and forgets the sleeper.
#[test]
#[should_panic(expected = "deadlock")]
fn r01_the_model_finds_a_turn_that_forgets_the_sleeper() {
    check(|| {
        let model = Model::new(true);
        let sleeper = thread::spawn(move || model.thread(1));
        // Not by `locked`: the release settles nothing.
        model.raw_lock(Thread::this()).ground.turn();
        model.arrive();
        sleeper.join().unwrap();
    });
}

/// Calls queue work while the thread sleeps, or a caller drives.
#[test]
fn r01_a_call_wakes_whoever_sleeps() {
    check(|| {
        let model = Model::new(true);
        let thread = thread::spawn(move || model.thread(2));
        let peer = thread::spawn(move || model.arrive());
        model.locked().queued += 1;
        thread.join().unwrap();
        peer.join().unwrap();
    });
}

/// What a caller waits for happens elsewhere: a callback on another thread, an abort.
#[test]
fn r01_a_caller_that_is_about_to_sleep_hears_of_what_happens_elsewhere() {
    check(|| {
        let model = Model::new(false);
        let happened = &*Box::leak(Box::new(AtomicBool::new(false)));
        let waiter = thread::spawn(move || {
            let sitting = Sitting::new(model, 0);
            assert!(sitting.sit(false));
            while !happened.load(Ordering::SeqCst) {
                model.lie(Some(&0));
            }
        });
        happened.store(true, Ordering::SeqCst);
        model.locked().wake_waiters();
        waiter.join().unwrap();
    });
}

/// The manager's end reaches the progress thread and a caller, wherever they are.
#[test]
fn r01_the_end_wakes_everybody() {
    check(|| {
        let model = Model::new(true);
        let closing = &*Box::leak(Box::new(AtomicBool::new(false)));
        let thread = thread::spawn(move || {
            while !closing.load(Ordering::SeqCst) {
                if model.locked().thread_drives().is_some() {
                    model.lie(None);
                }
            }
        });
        let caller = thread::spawn(move || {
            let sitting = Sitting::new(model, 0);
            assert!(sitting.sit(false));
            while !closing.load(Ordering::SeqCst) {
                model.lie(Some(&0));
            }
        });
        closing.store(true, Ordering::SeqCst);
        model.locked().wake_all();
        thread.join().unwrap();
        caller.join().unwrap();
    });
}

/// A callback keeps whoever drives until another has driven in its place. Neither loses what comes.
#[test]
fn r01_another_drives_in_the_place_of_one_that_is_kept() {
    for by_thread in [true, false] {
        check(move || {
            let model = Model::with(by_thread, super::KEPT);
            let gone_on = &*Box::leak(Box::new(AtomicBool::new(false)));
            let other = thread::spawn(move || {
                if by_thread {
                    model.thread(1);
                } else {
                    let sitting = Sitting::new(model, 1);
                    while !sitting.sit(false) {
                        thread::yield_now();
                    }
                    while model.locked().turn() == 0 {
                        model.lie(Some(&1));
                    }
                }
                gone_on.store(true, Ordering::SeqCst);
            });
            let sitting = Sitting::new(model, 0);
            if sitting.sit(false) {
                model.arrive();
                while !gone_on.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
            } else {
                model.arrive();
            }
            other.join().unwrap();
            model.arrive();
            while !sitting.sit(false) {
                thread::yield_now();
            }
            while model.locked().taken < 2 {
                model.locked().turn();
            }
        });
    }
}

/// The seat goes from caller to caller.
#[test]
fn r01_callers_hand_the_seat_on() {
    check(|| {
        let model = Model::new(false);
        let other = thread::spawn(move || model.caller(1, 2));
        let peer = thread::spawn(move || {
            model.arrive();
            model.arrive();
        });
        model.caller(0, 1);
        other.join().unwrap();
        peer.join().unwrap();
    });
}
