//! Small sends one after the other: the socket is told that more follows, and makes one segment of them.
//!
//! A send of a few bytes costs a walk through the network stack, three times as much as leaving them with the socket
//! (`MSG_MORE`). They are left there where whoever posts them is seen to post more within microseconds; the
//! next poll sends them on. Should it not come after all, the kernel does: with the next acknowledgement, or when its
//! timer for that runs out, after 200 ms (tcp(7), `TCP_CORK`). It has them, too, should the process end: unless that resets the
//! connection, as unread input does.
//!
//! Where a poll is sure to come, a thread drives, even that is too dear: they are kept here, and the poll gives the socket
//! all of them at once.

use crate::fabric::Follows;

/// Sends that go out at once before others are held back: one or two may be all that there are.
const AT_ONCE: u32 = 2;
/// Who has posted so many between two polls, at most, twice in a row, does so once more: all but the last are held back. (A receive by name and a
/// send in answer to what came, say: a request and a content.)
const FEW: u32 = 4;
/// Bytes that are held back at most: the peer begins with these while the rest is posted.
const HELD: u64 = 16 << 10;
/// Processor ticks, some 10 microseconds: posts that are no further apart belong together.
const SOON: u64 = 1 << 15;
/// Processor ticks, some 300 microseconds: who has polled within that polls often.
const OFTEN: u64 = 1 << 20;

/// When the adapter was polled.
#[derive(Clone, Copy, Debug, Default)]
pub struct Polled {
    /// How often, so far.
    pub count: usize,
    /// When last, in ticks.
    pub at: u64,
}

/// The small sends of one endpoint since the last poll.
#[derive(Debug, Default)]
pub struct Burst {
    /// Polls before the first of them.
    polls: usize,
    sends: u32,
    /// How many there were in the last burst, and in the one before.
    before: [u32; 2],
    /// When the last of them ended, in ticks.
    last: u64,
    /// Bytes that the socket holds back.
    held: u64,
}

impl Burst {
    /// Whether the socket is to hold back what is sent now.
    pub fn begin(&mut self, follows: Follows, polled: Polled, now: u64) -> bool {
        let apart = now.wrapping_sub(self.last) > SOON;
        if apart || self.polls != polled.count {
            self.before = [self.sends, self.before[0]];
            (self.polls, self.sends) = (polled.count, 0);
        }
        self.sends += 1;
        let often = now.wrapping_sub(polled.at) < OFTEN;
        let [last, other] = self.before;
        let expected = if last == other && last <= FEW { last } else { 0 };
        let more =
            if self.sends <= expected { self.sends < expected } else { self.sends > AT_ONCE };
        follows != Follows::Nothing && often && more
    }

    /// Whether so many bytes may still be held back.
    pub fn holds(&self, bytes: u64) -> bool {
        self.held + bytes <= HELD
    }

    /// The socket has taken so many bytes, and holds them back or not, with those before.
    pub fn sent(&mut self, bytes: u64, held: bool) {
        self.held = if held { self.held + bytes } else { 0 };
    }

    /// It has ended.
    pub fn end(&mut self, now: u64) {
        self.last = now;
    }

    /// Whether the socket holds anything back.
    pub fn is_held(&self) -> bool {
        self.held > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn polled(count: usize, at: u64) -> Polled {
        Polled { count, at }
    }

    #[test]
    fn the_third_of_a_burst_is_held_back() {
        let mut burst = Burst::default();
        let mut at = 1 << 40;
        let mut post = |burst: &mut Burst, follows, after, polls: Polled| {
            at += after;
            let held = burst.begin(follows, polls, at);
            burst.end(at);
            held
        };
        let poll = polled(1, 1 << 40);
        let held = [0; 4].map(|_| post(&mut burst, Follows::Perhaps, SOON, poll));
        assert_eq!(held, [false, false, true, true]);
        // A pause ends it, a poll does, and the word of the caller.
        assert!(!post(&mut burst, Follows::Perhaps, SOON + 1, poll));
        let held = [0; 4].map(|_| post(&mut burst, Follows::Perhaps, 1, poll));
        assert_eq!(held, [false, true, true, true]);
        assert!(!post(&mut burst, Follows::Perhaps, 1, polled(2, 1 << 40)));
        let held = [0; 4].map(|_| post(&mut burst, Follows::Nothing, 1, poll));
        assert_eq!(held, [false; 4]);
        // Who has not polled for long may not poll soon.
        assert!(post(&mut burst, Follows::Perhaps, 1, poll));
        assert!(!post(&mut burst, Follows::Perhaps, 1, polled(1, (1 << 40) - OFTEN)));
    }

    #[test]
    fn all_but_the_last_of_as_many_as_usual_are_held_back() {
        let mut burst = Burst::default();
        let mut held = |polls, count| -> Vec<bool> {
            let now = 1 << 40;
            let post = |_| {
                let held = burst.begin(Follows::Perhaps, polled(polls, now), now);
                burst.end(now);
                held
            };
            (0..count).map(post).collect()
        };
        assert_eq!((held(1, 2), held(2, 2)), (vec![false; 2], vec![false; 2]));
        assert_eq!(held(3, 2), [true, false]);
        // One more than usual, and then it is not known any more how many are.
        assert_eq!(held(4, 3), [true, false, true]);
        assert_eq!(held(5, 2), [false, false]);
        // One alone is never held back.
        (6..9).for_each(|polls| assert_eq!(held(polls, 1), [false]));
        // Of many the first two go, so that the peer begins.
        (9..12).for_each(|polls| assert_eq!(held(polls, 5)[..3], [false, false, true]));
    }

    #[test]
    fn only_so_much_is_held_back() {
        let mut burst = Burst::default();
        assert!(burst.holds(HELD) && !burst.holds(HELD + 1));
        burst.sent(HELD - 1, true);
        assert!(burst.is_held() && burst.holds(1) && !burst.holds(2));
        burst.sent(2, false);
        assert!(!burst.is_held() && burst.holds(HELD));
    }
}
