//! Messages whose connection has ended before a receive met them.
//!
//! Those that had come whole stay, up to [`ORPHANS`] bytes of all peers. Of each end what is kept is the first that came, without a gap;
//! those of earlier ends go before that, the oldest end first.

use super::{Arrived, COST, Content, ORPHANS, Unexpected};

impl Unexpected {
    /// A connection has ended. What came over it whole stays, within a bound; what is still with the sender is gone.
    /// How many were dropped that were whole.
    pub fn lose_channel(&mut self, ch: u32) -> usize {
        let (need, mut dropped) = (self.lose_offers(ch), 0);
        if self.orphans + need > ORPHANS {
            let excess = self.orphans + need - ORPHANS;
            let first = least(self.ends, |end| {
                self.bytes_of(|a| a.is_left() && u64::from(a.end) <= end) >= excess
            });
            dropped += self.drop_all(|a| a.is_left() && u64::from(a.end) <= first);
        }
        if self.orphans + need > ORPHANS {
            let room = ORPHANS.saturating_sub(self.orphans);
            let above = least(self.order, |last| {
                self.bytes_of(|a| a.is_here_by(ch) && a.order <= last) > room
            });
            dropped += self.drop_all(|a| a.is_here_by(ch) && a.order >= above && !a.claimed);
        }
        self.ends = self.ends.wrapping_add(1);
        let mut at = 0;
        while let Some(index) = self.next(&mut at, |a| a.ch == Some(ch)) {
            self.forget_number(index);
            let Some(a) = self.all.get_mut(index) else { continue };
            (a.ch, a.end) = (None, self.ends);
            if let Content::Here { sync, .. } = &mut a.content {
                *sync = None;
                self.orphans += COST + a.cost();
            }
        }
        dropped
    }

    /// Drops what was offered over a connection, and is not claimed: the receive of a claimed one hears of the loss. Bytes of what came
    /// whole.
    fn lose_offers(&mut self, ch: u32) -> u64 {
        let (mut at, mut whole) = (0, 0);
        while let Some(index) = self.next(&mut at, |a| a.ch == Some(ch)) {
            match self.all.get(index) {
                Some(a) if a.is_here_by(ch) => whole += COST + a.cost(),
                Some(a) if matches!(a.content, Content::There { .. }) && a.claimed => {}
                _ => _ = self.remove(index),
            }
        }
        whole
    }

    /// Bytes of these.
    fn bytes_of(&self, which: impl Fn(&Arrived) -> bool) -> u64 {
        let all = self.all.iter().map(|(_, a)| a).filter(|a| which(a));
        all.map(|a| COST + a.cost()).sum()
    }

    /// Drops these; how many.
    fn drop_all(&mut self, which: impl Fn(&Arrived) -> bool) -> usize {
        let (mut at, mut count) = (0, 0);
        while let Some(index) = self.next(&mut at, &which) {
            self.remove(index);
            count += 1;
        }
        count
    }
}

/// The least number up to `most` of which it is so, as it is of all above it; `most` if it is of none. There may be no memory for a list of
/// messages, by which it would be found at once.
fn least(most: impl Into<u64>, is_so: impl Fn(u64) -> bool) -> u64 {
    let (mut from, mut to) = (0, most.into());
    while from < to {
        let middle = from + (to - from) / 2;
        if is_so(middle) { to = middle } else { from = middle + 1 }
    }
    to
}

impl Arrived {
    /// Whether it came whole over this connection.
    fn is_here_by(&self, ch: u32) -> bool {
        self.ch == Some(ch) && matches!(self.content, Content::Here { .. })
    }

    /// Whether its connection has ended, and no receive is to be its own.
    fn is_left(&self) -> bool {
        self.is_orphan() && !self.claimed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::front::message::{Bytes, Envelope, Party, Wanted};

    const TAG: Envelope = Envelope { comm: 1, tag: 2 };

    /// A message of `len` bytes over a connection to peer 0, of this incarnation.
    fn add(all: &mut Unexpected, ch: u32, incarnation: u64, len: u64) -> u32 {
        let bytes = Bytes::from_elem(0, len as usize);
        let content = Content::Here { bytes, sync: None };
        let sender = (Party::peer(0), incarnation);
        all.add(Arrived::new(sender, Some(ch), TAG, len, content)).unwrap()
    }

    /// Lengths of what an incarnation has left, in order.
    fn take(all: &mut Unexpected, incarnation: u64) -> Vec<u64> {
        let wanted = Wanted { from: Party::peer(0), comm: 1, tag: 2, mask: u64::MAX };
        let next = |all: &mut Unexpected| {
            let index = all.find_of(&wanted, incarnation)?;
            all.remove(index).map(|a| a.len)
        };
        std::iter::from_fn(|| next(all)).collect()
    }

    /// A message that a small one has room beside.
    const LARGE: u64 = ORPHANS / 4 - COST - 1000;

    /// A stranger's: one was dropped out of the middle, since what came behind it was smaller and fitted.
    #[test]
    fn what_is_kept_of_a_connection_has_no_gap() {
        let mut all = Unexpected::default();
        // Their places are not in the order in which they come.
        let spare: Vec<u32> = (0..7).map(|_| add(&mut all, 9, 9, 1)).collect();
        for index in spare {
            all.remove(index);
        }
        let lens: Vec<u64> = (0..7).map(|i| if i == 6 { 5 } else { LARGE - i }).collect();
        for len in &lens {
            add(&mut all, 1, 1, *len);
        }
        assert_eq!(all.lose_channel(1), 3);
        assert_eq!(take(&mut all, 1), lens[..4]);
        assert_eq!((all.bytes, all.orphans), (0, 0));
    }

    /// The same stranger's: what those before had left, and nobody asked for, cost those after them all that they had said.
    #[test]
    fn what_earlier_ones_left_makes_room() {
        let mut all = Unexpected::default();
        for incarnation in 1..=3 {
            for i in 0..2 {
                add(&mut all, incarnation, incarnation.into(), LARGE - i);
            }
            let dropped = if incarnation == 3 { 2 } else { 0 };
            assert_eq!(all.lose_channel(incarnation), dropped);
        }
        let kept = vec![LARGE, LARGE - 1];
        assert_eq!([1, 2, 3].map(|i| take(&mut all, i)), [vec![], kept.clone(), kept]);
        assert_eq!((all.bytes, all.orphans), (0, 0));
    }

    /// What many small ends have left goes in the order of these ends, whatever place it has in the table.
    #[test]
    fn of_many_ends_the_earliest_go() {
        let mut all = Unexpected::default();
        let mut spare: Vec<u32> = (0..100).map(|_| add(&mut all, 999, 9, 1)).collect();
        while let Some(index) = spare.pop() {
            all.remove(index);
        }
        for end in 1..=100 {
            add(&mut all, end, end.into(), 50_000);
            assert_eq!(all.lose_channel(end), 0);
        }
        let before = all.orphans;
        for i in 0..4 {
            add(&mut all, 200, 200, LARGE - i);
        }
        let room = ORPHANS - all.bytes_of(|a| a.ch == Some(200));
        let kept = room / (before / 100);
        assert!((0..100).contains(&kept));
        assert_eq!(all.lose_channel(200) as u64, 100 - kept);
        let left = (1..=100).filter(|end| !take(&mut all, *end).is_empty());
        assert!(left.eq(101 - kept..=100));
        assert_eq!(take(&mut all, 200).len(), 4);
        assert_eq!((all.bytes, all.orphans), (0, 0));
    }

    /// Who has claimed one receives it, however much comes after it.
    #[test]
    fn what_is_claimed_stays() {
        let mut all = Unexpected::default();
        let early = add(&mut all, 1, 1, LARGE);
        all.claim(early, early.into());
        all.lose_channel(1);
        let mut last = 0;
        for i in 0..5 {
            let index = add(&mut all, 2, 2, LARGE - i);
            if i == 4 {
                all.claim(index, index.into());
                last = index;
            }
        }
        assert_eq!(all.lose_channel(2), 1);
        assert_eq!(take(&mut all, 2), [LARGE, LARGE - 1, LARGE - 2]);
        let claimed = [early, last].map(|i| all.claimed(i.into()).unwrap());
        assert_eq!(claimed.map(|i| all.remove(i).unwrap().len), [LARGE, LARGE - 4]);
        assert_eq!((all.bytes, all.orphans), (0, 0));
    }
}
