//! The order in which a ring's lines are written, published, read and given back, apart from the memory that they lie
//! in: the same code runs over mapped memory and, in the tests, in a model checker.

use super::NoRoom;

/// The first words of a ring's lines.
pub(super) trait Words {
    /// Lines of the ring, a power of two.
    fn lines(&self) -> u64;
    /// Makes a line's first word 0; what comes before may come later.
    fn clear(&self, line: u64);
    /// Stores a header that makes all earlier stores visible to who loads it.
    fn publish(&self, line: u64, header: u64);
    /// Loads a line's first word, and makes visible what was stored before it was published.
    fn load(&self, line: u64) -> u64;
}

/// Where the producer is. Lines are counted from the start, not modulo the ring.
#[derive(Debug)]
pub(super) struct Writing {
    /// Next line to write.
    pub(super) head: u64,
    /// Lines from `head` to here have a zero first word.
    zeroed: u64,
    /// The consumer's position when last looked at.
    consumed: u64,
}

impl Writing {
    /// At the start of a ring of zeros.
    pub(super) fn new(words: &impl Words) -> Writing {
        Writing { head: 0, zeroed: words.lines(), consumed: 0 }
    }

    /// Whether a record of `need` lines fits now; `consumed` looks where the consumer is.
    #[inline(always)]
    pub(super) fn room(
        &mut self,
        words: &impl Words,
        need: u64,
        consumed: impl FnOnce() -> u64,
    ) -> Result<(), NoRoom> {
        // One line more: the one behind the record is zeroed before the record is published.
        let end = self.head + need + 1;
        if end - self.consumed <= words.lines() {
            return Ok(());
        }
        let consumed = consumed();
        if consumed < self.consumed || consumed > self.head {
            return Err(NoRoom::Broken);
        }
        self.consumed = consumed;
        if end - consumed <= words.lines() { Ok(()) } else { Err(NoRoom::Full) }
    }

    /// Makes the record at `head` visible, for which there is room.
    #[inline(always)]
    pub(super) fn publish(&mut self, words: &impl Words, need: u64, header: u64) {
        let next = self.head + need;
        if next >= self.zeroed {
            words.clear(next);
            self.zeroed = next + 1;
        }
        words.publish(self.head, header);
        self.head = next;
        // One line ahead, so that the next short record need not wait for a second cache line.
        let ahead = next + 1;
        if ahead >= self.zeroed && ahead + 1 - self.consumed <= words.lines() {
            words.clear(ahead);
            self.zeroed = ahead + 1;
        }
    }
}

/// Where the consumer is.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// Next line to read.
    pub(super) head: u64,
    /// Lines before this are no longer looked at.
    released: u64,
    /// What the peer was told.
    told: u64,
}

impl Reading {
    /// The next record's header word, if one is published.
    #[inline]
    pub(super) fn peek(&self, words: &impl Words) -> Option<u64> {
        let word = words.load(self.head);
        (word != 0).then_some(word)
    }

    /// Whether a record of `need` lines at this place is one for which a producer could have had room.
    /// One that looks at nothing could otherwise lead the consumer round the ring for ever.
    pub(super) fn fits(&self, words: &impl Words, need: u64) -> bool {
        self.head - self.told + need < words.lines()
    }

    /// Lets go of everything read so far; the producer learns it by `tell`.
    pub(super) fn release(&mut self) {
        self.released = self.head;
    }

    /// Lines that were read, and not let go of.
    pub(super) fn unreleased(&self) -> u64 {
        self.head - self.released
    }

    /// Whether so much was released that the producer should know soon.
    pub(super) fn should_tell(&self, words: &impl Words) -> bool {
        self.released - self.told >= words.lines() / 4
    }

    /// Whether the producer could be told of more room.
    pub(super) fn can_tell(&self) -> bool {
        self.released != self.told
    }

    /// The position to tell the producer; it counts as told.
    pub(super) fn tell(&mut self) -> u64 {
        self.told = self.released;
        self.told
    }
}

#[cfg(test)]
mod tests;
