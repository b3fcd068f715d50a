//! One case a name.

use super::*;

#[derive(Default)]
struct Fake {
    due: bool,
    next: u64,
    arrived: bool,
    armed: bool,
    arms: u32,
    now: u64,
    turns: u32,
}

impl Ground for Fake {
    fn due(&mut self) -> bool {
        self.due
    }
    fn next(&self) -> u64 {
        self.next
    }
    fn arm(&mut self) -> bool {
        self.arms += 1;
        self.armed = !self.arrived;
        self.armed
    }
    fn armed(&self) -> bool {
        self.armed
    }
    fn now(&mut self) -> u64 {
        self.now
    }
    fn turns(&self) -> u32 {
        self.turns
    }
}

/// Nanoseconds of the rest.
const NS: u64 = REST.as_nanos() as u64;

/// The progress thread sleeps until 100.
fn asleep() -> (Wheel<u32>, Fake) {
    let mut wheel = Wheel::new(true);
    let mut ground = Fake { next: 1000, ..Fake::default() };
    assert_eq!(wheel.thread_next(&mut ground), Next::Drive);
    assert!(wheel.lie_down(None, 100, &mut ground));
    assert!(wheel.settle(&mut ground).is_empty());
    (wheel, ground)
}

#[test]
fn r01_a_turn_beside_a_sleeper_is_followed_by_arming() {
    let (mut wheel, mut ground) = asleep();
    ground.armed = false;
    assert!(wheel.settle(&mut ground).is_empty());
    assert!(ground.armed);
    (ground.armed, ground.arrived) = (false, true);
    assert!(wheel.settle(&mut ground).sleeper, "something arrived before it was armed");
    assert!(wheel.settle(&mut ground).is_empty(), "it is woken once");
}

#[test]
fn an_earlier_deadline_wakes_and_a_later_one_does_not() {
    let (mut wheel, mut ground) = asleep();
    ground.next = 100;
    assert!(wheel.settle(&mut ground).is_empty());
    ground.next = 99;
    assert!(wheel.settle(&mut ground).sleeper);
}

#[test]
fn a_caller_takes_the_seat_and_the_sleep_counts_again() {
    let (mut wheel, mut ground) = asleep();
    assert!(wheel.sit(&1, false, &mut ground));
    assert!(wheel.settle(&mut ground).is_empty(), "the thread may lie");
    ground.armed = false;
    ground.due = true;
    assert!(wheel.settle(&mut ground).is_empty(), "the caller looks for itself");
    ground.due = false;
    wheel.leave(&1, 0);
    assert!(wheel.settle(&mut ground).is_empty());
    assert!(ground.armed, "the thread has not got up, and is relied on again");
    ground.due = true;
    assert!(wheel.settle(&mut ground).sleeper);
}

#[test]
fn r02_the_thread_is_back_when_it_has_rested() {
    let (mut wheel, mut ground) = asleep();
    assert!(wheel.sit(&1, false, &mut ground));
    assert!(!wheel.get_up(None), "the seat is the caller's");
    assert_eq!(wheel.thread_next(&mut ground), Next::Park(Some(REST)));
    wheel.unparked();
    wheel.leave(&1, 100);
    ground.now = 100 + NS / 5;
    let left = Duration::from_nanos(NS - NS / 5);
    assert_eq!(wheel.thread_next(&mut ground), Next::Park(Some(left)), "another caller may come");
    wheel.unparked();
    ground.now = 100 + NS;
    assert_eq!(wheel.thread_next(&mut ground), Next::Drive);
}

#[test]
fn r02_a_caller_that_slept_tells_the_thread_when_it_leaves() {
    let (mut wheel, mut ground) = asleep();
    assert!(wheel.sit(&1, false, &mut ground));
    assert!(wheel.lie_down(Some(&1), 100, &mut ground));
    assert!(!wheel.get_up(None));
    assert_eq!(wheel.thread_next(&mut ground), Next::Park(None));
    assert!(wheel.get_up(Some(&1)));
    wheel.leave(&1, 0);
    assert!(wheel.settle(&mut ground).thread);
}

#[test]
fn r24_the_thread_is_not_woken_by_one_of_many_calls() {
    let (mut wheel, mut ground) = asleep();
    assert!(wheel.sit(&1, false, &mut ground));
    assert!(wheel.settle(&mut ground).is_empty(), "it may lie");
    assert!(wheel.lie_down(Some(&1), 1000, &mut ground));
    assert!(wheel.settle(&mut ground).is_empty(), "even then");
    assert!(!wheel.get_up(None), "something came, and woke both");
    assert!(wheel.get_up(Some(&1)));
    wheel.leave(&1, 100);
    assert!(wheel.sit(&2, false, &mut ground));
    assert!(wheel.lie_down(Some(&2), 1000, &mut ground));
    ground.now = 100 + NS / 5;
    assert_eq!(wheel.thread_next(&mut ground), Next::Park(Some(REST)));
    assert!(wheel.get_up(Some(&2)));
    wheel.leave(&2, 200);
    assert!(wheel.settle(&mut ground).is_empty(), "it looks by itself");
}

#[test]
fn r24_the_thread_stays_away_from_a_caller_that_visits_as_from_one_that_left() {
    let (mut wheel, mut ground) = asleep();
    assert!(!wheel.visits(0), "the thread has the seat");
    assert!(wheel.sit(&1, false, &mut ground));
    assert!(wheel.settle(&mut ground).is_empty());
    assert!(!wheel.get_up(None));
    assert_eq!(wheel.thread_next(&mut ground), Next::Park(Some(REST)));
    assert!(!wheel.visits(0), "a caller has it");
    wheel.leave(&1, 0);
    assert!(wheel.visits(NS / 2) && wheel.settle(&mut ground).is_empty());
    ground.now = NS;
    wheel.unparked();
    assert_eq!(wheel.thread_next(&mut ground), Next::Park(Some(REST / 2)));
    ground.due = true;
    assert!(wheel.settle(&mut ground).is_empty(), "nor is it woken, only to rest on");
    ground.now = NS + NS / 2;
    wheel.unparked();
    assert_eq!(wheel.thread_next(&mut ground), Next::Drive);
    assert!(!wheel.visits(ground.now));
    // Without a thread nobody has to stay away.
    let mut alone: Wheel<u32> = Wheel::new(false);
    assert!(alone.visits(0) && alone.visits(1));
    alone.watch(10, &ground);
    assert!(!alone.visits(2), "the application sleeps");
}

/// It was: by each call that left something to be done, 30,000 times a second, and only to park again. Callers of `rdma_mgr_wait`
/// with tensors of 64 KiB to 1 MiB under way had half of the bandwidth.
#[test]
fn r24_work_that_nobody_drives_does_not_wake_a_thread_that_would_rest_on() {
    let (mut wheel, mut ground) = asleep();
    assert!(wheel.sit(&1, false, &mut ground));
    assert!(!wheel.get_up(None));
    assert_eq!(wheel.thread_next(&mut ground), Next::Park(Some(REST)));
    wheel.leave(&1, 0);
    let _ = wheel.settle(&mut ground);
    ground.due = true;
    assert!(wheel.settle(&mut ground).is_empty());
    ground.now = NS;
    wheel.unparked();
    assert_eq!(wheel.thread_next(&mut ground), Next::Drive, "it comes by itself");
}

#[test]
fn callers_queue_and_inherit() {
    let mut wheel: Wheel<u32> = Wheel::new(false);
    let mut ground = Fake::default();
    assert!(wheel.sit(&1, false, &mut ground));
    assert!(
        !wheel.sit(&2, false, &mut ground)
            && !wheel.sit(&3, false, &mut ground)
            && !wheel.sit(&2, false, &mut ground)
    );
    wheel.leave(&3, 0);
    wheel.leave(&1, 0);
    assert_eq!(wheel.settle(&mut ground).caller, Some(2));
    assert!(wheel.sit(&2, false, &mut ground), "it was handed the seat");
    wheel.leave(&2, 0);
    assert!(wheel.settle(&mut ground).is_empty());
    assert!(wheel.sit(&4, false, &mut ground));
}

#[test]
fn nobody_lies_down_without_the_seat_or_over_work() {
    let (mut wheel, mut ground) = asleep();
    assert!(wheel.get_up(None));
    ground.due = true;
    assert!(!wheel.lie_down(None, 100, &mut ground));
    ground.due = false;
    assert!(wheel.sit(&1, false, &mut ground));
    assert!(!wheel.lie_down(None, 100, &mut ground), "a caller drives");
    ground.arrived = true;
    assert!(!wheel.lie_down(Some(&1), 100, &mut ground));
}

#[test]
fn an_application_that_watches_is_told_once_until_it_looks() {
    let mut wheel: Wheel<u32> = Wheel::new(false);
    let mut ground = Fake { next: 1000, ..Fake::default() };
    wheel.watch(100, &ground);
    assert!(wheel.settle(&mut ground).is_empty());
    assert!(ground.armed);
    ground.due = true;
    assert!(wheel.settle(&mut ground).watcher);
    assert!(wheel.settle(&mut ground).is_empty());
    wheel.unwatch();
    wheel.watch(100, &ground);
    assert!(wheel.settle(&mut ground).watcher);
}

#[test]
fn r19_a_caller_that_is_kept_loses_the_seat_and_gets_it_back() {
    let mut wheel: Wheel<u32> = Wheel::new(false);
    let mut ground = Fake { next: 1000, ..Fake::default() };
    assert!(wheel.sit(&1, false, &mut ground));
    assert!(wheel.sit(&2, true, &mut ground));
    assert!(!wheel.holds(&1));
    assert!(!wheel.lie_down(Some(&1), 100, &mut ground), "it notices");
    assert!(!wheel.sit(&1, false, &mut ground), "and queues");
    wheel.leave(&2, 0);
    assert_eq!(wheel.settle(&mut ground).caller, Some(1));
    assert!(wheel.holds(&1));
}

#[test]
fn a_deadline_that_was_known_wakes_nobody() {
    let mut wheel: Wheel<u32> = Wheel::new(true);
    let mut ground = Fake { next: 99, ..Fake::default() };
    assert_eq!(wheel.thread_next(&mut ground), Next::Drive);
    assert!(wheel.lie_down(None, 100, &mut ground));
    assert!(wheel.settle(&mut ground).is_empty(), "it would be up again at once");
}

#[test]
fn r04_a_thread_that_has_not_heard_of_the_end_does_not_park() {
    let (mut wheel, mut ground) = asleep();
    assert!(wheel.sit(&1, false, &mut ground));
    assert!(!wheel.get_up(None));
    assert!(wheel.lie_down(Some(&1), 100, &mut ground));
    let _ = wheel.wake_all();
    assert_eq!(wheel.thread_next(&mut ground), Next::Drive, "nobody would unpark it");
}

#[test]
fn r01_the_seat_of_one_that_is_kept_is_the_next_ones() {
    let (mut wheel, mut ground) = asleep();
    let later = |ground: &mut Fake, ms: u64| ground.now += ms * 1_000_000;
    let kept = KEPT.as_millis() as u64;
    ground.now = 5_000_000;
    assert!(wheel.sit(&1, false, &mut ground));
    assert!(!wheel.sit(&2, false, &mut ground), "it was just seen");
    later(&mut ground, kept - 1);
    assert!(!wheel.sit(&2, false, &mut ground));
    ground.turns += 1;
    later(&mut ground, 1);
    assert!(!wheel.sit(&2, false, &mut ground), "it has turned");
    later(&mut ground, kept);
    assert!(wheel.sit(&2, false, &mut ground));
    assert!(wheel.queued().next().is_none() && wheel.holds(&2));
    assert!(!wheel.lie_down(Some(&1), 100, &mut ground), "it notices");
    assert!(!wheel.sit(&1, false, &mut ground));
    wheel.leave(&2, ground.now);
    assert_eq!(wheel.settle(&mut ground).caller, Some(1));
    // One that sleeps is not kept.
    assert!(wheel.lie_down(Some(&1), 100_000, &mut ground));
    for _ in 0..3 {
        later(&mut ground, kept);
        assert!(!wheel.sit(&2, false, &mut ground));
    }
}

#[test]
fn r01_the_thread_drives_in_the_place_of_a_caller_that_is_kept() {
    let (mut wheel, mut ground) = asleep();
    assert!(wheel.sit(&1, false, &mut ground));
    assert!(!wheel.get_up(None));
    ground.now = 5_000_000;
    for turns in [1, 2, 2] {
        ground.turns = turns;
        assert_eq!(wheel.thread_next(&mut ground), Next::Park(Some(REST)));
        wheel.unparked();
        ground.now += KEPT.as_nanos() as u64 / 2;
    }
    assert_eq!(wheel.thread_next(&mut ground), Next::Drive);
    assert!(!wheel.holds(&1));
    assert!(wheel.sit(&1, false, &mut ground), "it takes its seat back");
}
