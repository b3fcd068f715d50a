//! How long a driver spins before it sleeps: as long as it pays, up to `busy_poll_us`, and up to [`REACH`] times that where
//! its waits were seen to end so.
//!
//! Spinning saves the wake-up of a thread (30 to 50 µs) where the next event comes soon, and steals a processor where it
//! does not. So the driver learns from its last waits, as kernels do for idle guests (Linux's `halt_poll_ns`, after
//! arXiv 1505.04310's idea of growing and shrinking the window):
//!
//! - a spin that found something goes on being worth it;
//! - a wait that ended soon after its spin is tried with a longer spin, a few times; if those find nothing, not for a while.
//!   (A copy of 1 MiB takes longer than `busy_poll_us` is by default: who waited for one slept, and so did the other end,
//!   which waited for a wake-up as well. Half a round trip took 125 µs in place of 70.) One longer spin that finds nothing
//!   ends the longer ones;
//! - a long wait is not spun for again until a short one was seen;
//! - more threads run than there are processors: who would make the event may be who waits for this one. So that this shows
//!   soon, the driver offers its processor (`sched_yield`) at each look at the clock: schedulers let a thread that spins run
//!   for milliseconds before they take it away for one that has just been woken. Where it was lost for some microseconds,
//!   others like this one have something to do, and the driver offers it after each poll, for some waits, for more each time:
//!   to go to sleep and be woken takes several times as long as to hand the processor round. (Four ranks on two processors: an
//!   allreduce of 1 KiB, some twenty waits, took 600 µs while the driver slept then.) On a machine with one processor it does
//!   so always. What others do meanwhile does not count as its own spinning;
//! - where it was lost for much longer than a wait is spun for, somebody works there, and a thread that is woken gets it sooner
//!   than one that has offered it: the spin ends at once, and spinning is left off for longer each time;
//! - a loss that is rare does not count: a thread of this manager looks twice a millisecond whether a caller still drives, and
//!   a pause of the spinning each time cost 1 MiB between two blocked callers a third of its time.

use std::time::{Duration, Instant};

/// A wait of up to so many times `busy_poll_us` counts as short, and may be spun for whole once one was seen.
const REACH: u32 = 4;
/// The same where others have their turn meanwhile; and who has the processor for longer than that works there.
const CROWD: u32 = 5;
/// A poll and an offer of the processor take half a microsecond and more.
const POLLS_PER_US: u32 = 2;
/// Fruitless spins in a row before a pause.
const TRIES: u8 = 8;
/// Waits without spinning after that, or with the processor offered after each poll, at first and at most. The first is short:
/// where nothing else wants the processor it was lost to a timer or a neighbour for a moment, which comes some hundred times
/// a second, and each wait without a spin costs two wake-ups, since the other end sleeps as well then. Where it is always
/// lost the pauses soon are long ones.
const PAUSE: u16 = 8;
const PAUSE_MAX: u16 = 1024;
/// Two looks at the clock this far apart, with only polls between them that find nothing and an offer of the processor:
/// the thread did not run. Where nobody else wants the processor they are some three microseconds apart.
const LOST: Duration = Duration::from_micros(20);
/// A loss of less than one part in so many of the time that the thread was awake since the loss before is a timer's, not that
/// of one who needs the processor: a thread of this manager looks every half a millisecond whether a caller still drives
/// (`wheel`).
const RARE: u32 = 8;

/// What one driver has learnt.
#[derive(Debug)]
pub struct Spin {
    /// In microseconds: the manager has to fit a page.
    max: u32,
    /// The next wait spins.
    on: bool,
    /// For `REACH` times `max`.
    longer: bool,
    misses: u8,
    /// There is one processor.
    single: bool,
    /// Others want it: it is offered after each poll.
    crowded: bool,
    /// Waits that do not spin, still; or that offer the processor.
    pause: u16,
    next_pause: u16,
    /// When the present wait began.
    since: Instant,
    looked: Instant,
    /// When the processor was lost, and as much later as the thread slept since then.
    lost_at: Instant,
    lost: bool,
}

impl Spin {
    /// Spins for `max`, or [`REACH`] times that where it pays, on so many processors.
    pub fn new(max: Duration, processors: usize) -> Spin {
        let now = Instant::now();
        Spin {
            max: max.as_micros().min(u32::MAX.into()) as u32,
            single: processors == 1,
            crowded: false,
            on: true,
            longer: false,
            misses: 0,
            pause: 0,
            next_pause: PAUSE,
            since: now,
            looked: now,
            lost_at: now,
            lost: false,
        }
    }

    /// A wait begins: there was something to do until now.
    pub fn begin(&mut self, now: Instant) {
        (self.since, self.looked, self.lost) = (now, now, false);
    }

    /// Whether to go on spinning; asked now and then with the time.
    pub fn goes_on(&mut self, now: Instant, polls: u32) -> bool {
        let gap = now - std::mem::replace(&mut self.looked, now);
        if self.on && gap > LOST {
            self.lose(gap, now);
        }
        self.on && !self.lost && self.reaches(now, polls)
    }

    /// Whether the wait has not taken too long. While the processor goes round only its own turns count.
    fn reaches(&self, now: Instant, polls: u32) -> bool {
        match self.offers() {
            true => polls < self.max.saturating_mul(REACH * POLLS_PER_US),
            false => now - self.since < self.reach(),
        }
    }

    /// The processor was somebody else's for so long.
    fn lose(&mut self, gap: Duration, now: Instant) {
        if gap * RARE <= now - std::mem::replace(&mut self.lost_at, now) {
            return;
        }
        if gap > self.longest() * CROWD {
            self.lost = true;
        } else if !self.offers() {
            self.crowded = true;
            self.pause_anew();
        }
    }

    fn pause_anew(&mut self) {
        self.pause = self.next_pause;
        self.next_pause = (self.next_pause * 2).min(PAUSE_MAX);
    }

    /// How long a wait is spun for at the most, which is called a short one.
    fn longest(&self) -> Duration {
        Duration::from_micros(self.max.into()) * REACH
    }

    /// How long a wait is spun for.
    fn reach(&self) -> Duration {
        if self.longer { self.longest() } else { Duration::from_micros(self.max.into()) }
    }

    /// Whether waits are spun for.
    pub fn is_on(&self) -> bool {
        self.on && self.max > 0
    }

    /// Whether the processor is offered after each poll.
    pub fn offers(&self) -> bool {
        self.crowded || self.single
    }

    /// A wait is over; with the last of these the processor is not offered so often any more.
    fn crowded_wait(&mut self) {
        self.pause = self.pause.saturating_sub(1);
        self.crowded = self.pause > 0;
    }

    /// The spin found something.
    pub fn found(&mut self) {
        self.misses = 0;
        if self.crowded {
            self.crowded_wait();
        } else if self.on {
            self.next_pause = (self.next_pause - 1).max(PAUSE);
        }
    }

    /// The wait ended after a sleep.
    pub fn slept(&mut self, now: Instant) {
        if self.max == 0 {
            return;
        }
        self.lost_at += now - self.looked;
        if self.crowded && self.on {
            self.crowded_wait();
        } else if self.pause > 0 && !self.crowded {
            self.pause -= 1;
            return;
        }
        let short = now - self.since <= self.longest() * if self.offers() { CROWD } else { 1 };
        if self.on {
            self.misses += 1;
        }
        self.longer = short && !self.longer;
        if self.lost || self.misses > TRIES {
            (self.on, self.crowded, self.misses) = (false, false, 0);
            self.pause_anew();
        } else {
            self.on = short;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);
    const MAX: Duration = Duration::from_micros(50);

    /// A wait of so long, looked at every microsecond; whether it spun to the end of it or of the spin.
    fn wait(spin: &mut Spin, now: &mut Instant, length: Duration, step: Duration) -> bool {
        spin.begin(*now);
        let end = *now + length;
        let (mut spun, mut polls) = (false, 0);
        while spin.goes_on(*now, polls) {
            spun = true;
            polls += 1;
            *now += step;
            if *now >= end {
                spin.found();
                return true;
            }
        }
        *now = end.max(*now);
        spin.slept(*now);
        spun
    }

    #[test]
    fn r24_spins_while_it_finds_and_stops_when_it_does_not() {
        let mut spin = Spin::new(MAX, 2);
        let mut now = Instant::now();
        for _ in 0..100 {
            assert!(wait(&mut spin, &mut now, 10 * US, US));
        }
        wait(&mut spin, &mut now, 10_000 * US, US);
        assert!(!wait(&mut spin, &mut now, 10_000 * US, US), "a long wait is not spun for again");
        assert!(!wait(&mut spin, &mut now, 60 * US, US));
        assert!(wait(&mut spin, &mut now, 10 * US, US), "a short one brings it back");
    }

    #[test]
    fn r24_spins_that_never_find_become_rare() {
        let mut spin = Spin::new(MAX, 2);
        let mut now = Instant::now();
        // Each ends soon enough for the next to be tried, which then takes longer.
        let spun = (0..10_000u32)
            .filter(|i| {
                wait(&mut spin, &mut now, if i % 2 == 0 { 100 * US } else { 1000 * US }, US)
            })
            .count();
        assert!(spun < 300, "{spun} of 10000");
        let again = (0..PAUSE_MAX + 3).any(|_| wait(&mut spin, &mut now, 10 * US, US));
        assert!(again, "it is tried again");
    }

    #[test]
    fn r24_waits_a_little_longer_than_the_spin_are_spun_for() {
        let mut spin = Spin::new(MAX, 2);
        let mut now = Instant::now();
        wait(&mut spin, &mut now, 120 * US, US);
        for _ in 0..1_000 {
            let before = now;
            assert!(wait(&mut spin, &mut now, 120 * US, US));
            assert_eq!(now - before, 120 * US, "to the end");
        }
        wait(&mut spin, &mut now, 10_000 * US, US);
        assert!(!wait(&mut spin, &mut now, 10 * US, US), "not after a long wait");
        let before = now;
        spin.begin(now);
        while spin.goes_on(now, 0) {
            now += US;
        }
        assert!(now - before <= MAX * REACH, "{:?}", now - before);
    }

    #[test]
    fn r24_a_processor_lost_to_who_works_ends_spinning_at_once() {
        let mut spin = Spin::new(MAX, 2);
        let mut now = Instant::now();
        assert!(wait(&mut spin, &mut now, 4_000 * US, 2_000 * US));
        let spun = (0..PAUSE as usize)
            .filter(|_| wait(&mut spin, &mut now, 4_000 * US, 2_000 * US))
            .count();
        assert_eq!(spun, 0);
    }

    #[test]
    fn r24_a_processor_lost_for_a_moment_is_offered_after_each_poll() {
        let mut spin = Spin::new(MAX, 2);
        let mut now = Instant::now();
        let (mut spun, mut offered) = (0, 0);
        for _ in 0..1_000 {
            // Who makes the event runs for 30 us on the processor that the driver gave up for it.
            spun += u32::from(wait(&mut spin, &mut now, 45 * US, 30 * US));
            offered += u32::from(spin.offers());
        }
        assert_eq!(spun, 1_000, "no wait is slept for");
        assert!(offered > 900, "{offered} of 1000");
        let waits = (1..).find(|_| wait(&mut spin, &mut now, 45 * US, US) && !spin.offers());
        assert!(waits.is_some_and(|n| n <= PAUSE_MAX), "{waits:?}, once nobody wants it");
    }

    #[test]
    fn r24_a_crowd_is_left_to_itself_where_somebody_works_or_waits_are_long() {
        let mut spin = Spin::new(MAX, 2);
        let mut now = Instant::now();
        while !spin.offers() {
            wait(&mut spin, &mut now, 45 * US, 30 * US);
        }
        assert!(wait(&mut spin, &mut now, 4_000 * US, 100 * US), "by its own turns it is not long");
        wait(&mut spin, &mut now, 40_000 * US, 30 * US);
        assert!(!wait(&mut spin, &mut now, 900 * US, 30 * US), "a long wait is not spun for again");
        assert!(wait(&mut spin, &mut now, 45 * US, 30 * US), "a short one brings it back");
        assert!(spin.offers());
        wait(&mut spin, &mut now, 10_000 * US, 3_000 * US);
        assert!(!spin.offers() && !wait(&mut spin, &mut now, 45 * US, 30 * US));
    }

    #[test]
    fn r24_a_processor_lost_now_and_then_goes_on_being_spun_on() {
        let mut spin = Spin::new(MAX, 2);
        let mut now = Instant::now();
        let mut spun = 0;
        for i in 0..1_000 {
            now += 100 * US;
            // 30 us in 700.
            spun += u32::from(wait(
                &mut spin,
                &mut now,
                45 * US,
                if i % 5 == 4 { 30 * US } else { US },
            ));
        }
        assert_eq!(spun, 1_000);
    }

    #[test]
    fn r24_one_processor_is_offered_after_each_poll() {
        let mut spin = Spin::new(MAX, 1);
        let mut now = Instant::now();
        assert!((0..100).all(|_| wait(&mut spin, &mut now, 10 * US, US) && spin.offers()));
        let mut never = Spin::new(Duration::ZERO, 1);
        assert!((0..100).all(|_| !wait(&mut never, &mut now, 10 * US, US)));
    }
}
