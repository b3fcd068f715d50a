//! A few turns of a caller that blocks, before it becomes the driver, which takes the seat, and is left by another hold of
//! the lock: what comes soon comes within them. Only where nobody drives: no other caller, and the progress thread rests, as it does
//! for a while after each. So one blocking call after the other costs no change of the driver. And only where spinning pays
//! (`spin`), and nobody else wants the processor: who would make the event may wait for it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Manager;
use super::waiter::Waiter;
use crate::os::ticks;
use crate::thread::Thread;

/// Turns where each finds nothing.
const GLANCES: u32 = 256;
/// Microseconds, at most, after which no further one begins; and processor ticks that each is taken for.
const GLANCE_US: u64 = 10;
const TICKS_PER_US: u64 = 1 << 11;
/// Of turns that find nothing one of so many is followed by a look at what is waited for: another thread may see to that.
const LOOK_EVERY: u32 = 16;

impl Manager {
    /// One for each time to look: none where another drives, or nobody is to spin. They end by time, too, since a turn may run
    /// callbacks. `asks`: whether there is somebody who drives.
    pub(super) fn glances(&self, asks: bool, limit: Option<Duration>) -> impl Iterator<Item = u32> {
        let us = self.config.busy_poll_us.min(GLANCE_US);
        let us = limit.map_or(us, |limit| us.min(limit.as_micros() as u64));
        let none =
            us == 0 || !self.spins.load(Ordering::Relaxed) || asks && !self.core.lock().visits();
        let began = ticks();
        let in_time = move |_: &u32| ticks().wrapping_sub(began) < us * TICKS_PER_US;
        (0..if none { 0 } else { GLANCES }).take_while(in_time)
    }

    /// Turns a few times. True: the result is there, or `done` says so.
    pub(super) fn glance(
        &self,
        waiter: &Waiter,
        limit: Option<Duration>,
        mut done: impl FnMut() -> bool,
    ) -> bool {
        let thread = Thread::this();
        self.glances(true, limit).any(|nth| {
            let found = self.turn_on(thread) > 0;
            if waiter.is_ready() || (found || nth % LOOK_EVERY == LOOK_EVERY - 1) && done() {
                return true;
            }
            std::hint::spin_loop();
            false
        })
    }
}
