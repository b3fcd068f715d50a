//! Adapters whose polls are system calls, beside those that look at memory.
//!
//! A process of a job on several hosts has neighbours on shm and others on tcp. To ask a socket takes longer than a message on shm:
//! with each turn asking all of them, half a round trip of 8 B on shm took 1.3 µs beside one tcp peer that said nothing, and 4 µs beside
//! four, in place of 0.3. So while something comes elsewhere, adapters that have been quiet for a while are left alone for some times as
//! long as it took to ask them, which delays what comes there by no more than that. Where nothing comes anywhere each turn asks all.

/// Processor ticks (some 25 µs) for which something counts as just heard.
const LIVELY: u64 = 1 << 16;
/// They are left alone for so many times as long as it took to ask them,
const TIMES: u64 = 8;
/// and for as many ticks at least and at most: some 6 and 50 µs.
const LEAST: u64 = 1 << 14;
const MOST: u64 = 1 << 17;

/// When something was heard, and when those were asked who are quiet. In processor ticks.
#[derive(Default)]
pub(super) struct Quiet {
    heard: u64,
    asked: u64,
    pause: u64,
}

impl Quiet {
    /// Something came.
    #[inline(always)]
    pub fn hear(&mut self, now: u64) {
        self.heard = now;
    }

    /// Whether those that are quiet are left alone.
    #[inline]
    pub fn leaves(&self, now: u64) -> bool {
        now.wrapping_sub(self.asked) < self.pause && now.wrapping_sub(self.heard) < LIVELY
    }

    /// One was asked, which took from `began` to `ended`.
    pub fn asked(&mut self, began: u64, ended: u64) {
        self.asked = ended;
        self.pause = (TIMES * ended.wrapping_sub(began)).clamp(LEAST, MOST);
    }

    /// They are to be asked: a descriptor has told of something.
    pub fn ask(&mut self) {
        self.pause = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quiet_are_left_alone_for_a_while_beside_the_lively() {
        let mut quiet = Quiet::default();
        let now = 1 << 40;
        assert!(!quiet.leaves(now), "nobody was asked yet");
        quiet.asked(now - 100, now);
        assert!(!quiet.leaves(now + 1), "nothing comes elsewhere");
        quiet.hear(now);
        assert!(quiet.leaves(now) && quiet.leaves(now + LEAST - 1) && !quiet.leaves(now + LEAST));
        // What takes longer is asked less often, but it is asked.
        quiet.asked(now - LEAST, now);
        assert!(quiet.leaves(now + LEAST));
        quiet.asked(now - 1_000 * MOST, now);
        quiet.hear(now + MOST - 1);
        assert!(quiet.leaves(now + MOST - 1) && !quiet.leaves(now + MOST));
        quiet.ask();
        assert!(!quiet.leaves(now));
        quiet.asked(now, now);
        assert!(!quiet.leaves(now + LIVELY + LEAST));
    }
}
