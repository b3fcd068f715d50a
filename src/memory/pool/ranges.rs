//! Parts of a segment: which bytes are free, and which huge pages may hold memory.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The free ranges of one segment, by offset and by size.
#[derive(Debug, Default)]
pub(super) struct FreeList {
    pub(super) by_offset: BTreeMap<usize, usize>,
    pub(super) by_size: BTreeSet<(usize, usize)>,
}

impl FreeList {
    pub(super) fn insert(&mut self, offset: usize, len: usize) {
        self.by_offset.insert(offset, len);
        self.by_size.insert((len, offset));
    }

    fn remove(&mut self, offset: usize, len: usize) {
        self.by_offset.remove(&offset);
        self.by_size.remove(&(len, offset));
    }

    /// Takes `len` bytes from the smallest range that has them.
    pub(super) fn take(&mut self, len: usize) -> Option<usize> {
        let &(size, offset) = self.by_size.range((len, 0)..).next()?;
        self.remove(offset, size);
        if size > len {
            self.insert(offset + len, size - len);
        }
        Some(offset)
    }

    /// The ranges of at least `least` bytes, largest first.
    pub(super) fn large(&self, least: usize) -> Vec<(usize, usize)> {
        self.by_size.range((least, 0)..).rev().map(|&(len, offset)| (offset, len)).collect()
    }

    /// Gives a range back; returns the free range that it is now part of.
    pub(super) fn give(&mut self, mut offset: usize, mut len: usize) -> (usize, usize) {
        if let Some((&before, &size)) = self.by_offset.range(..offset).next_back()
            && before + size == offset
        {
            self.remove(before, size);
            offset = before;
            len += size;
        }
        if let Some(&size) = self.by_offset.get(&(offset + len)) {
            self.remove(offset + len, size);
            len += size;
        }
        self.insert(offset, len);
        (offset, len)
    }
}

/// A set of the pages of a segment, a bit each.
#[derive(Debug)]
pub(super) struct Pages(Vec<u64>);

/// The bits of word `word` that lie in a range, which is not empty there.
fn bits(word: usize, range: &Range<usize>) -> u64 {
    let first = range.start.saturating_sub(word * 64);
    let end = (range.end - word * 64).min(64);
    u64::MAX >> (64 - (end - first)) << first
}

/// The words in which a range lies.
fn words(range: &Range<usize>) -> Range<usize> {
    if range.is_empty() { 0..0 } else { range.start / 64..range.end.div_ceil(64) }
}

impl Pages {
    /// The empty set of `len` pages.
    pub(super) fn new(len: usize) -> Pages {
        Pages(vec![0; len.div_ceil(64)])
    }

    pub(super) fn insert(&mut self, pages: Range<usize>) {
        words(&pages).for_each(|w| self.0[w] |= bits(w, &pages));
    }

    /// How many of a range are in the set.
    pub(super) fn count(&self, range: &Range<usize>) -> usize {
        words(range).map(|w| (self.0[w] & bits(w, range)).count_ones() as usize).sum()
    }

    /// Takes the first pages in a range that follow each other out of the set, at most `most`.
    pub(super) fn take_run(&mut self, range: &Range<usize>, most: usize) -> Option<Range<usize>> {
        let first =
            words(range).map(|w| (w, self.0[w] & bits(w, range))).find(|&(_, word)| word != 0);
        let start = first.map(|(w, word)| w * 64 + word.trailing_zeros() as usize)?;
        let mut end = start;
        while end < range.end.min(start + most) && self.0[end / 64] & 1 << (end % 64) != 0 {
            self.0[end / 64] &= !(1 << (end % 64));
            end += 1;
        }
        Some(start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_pages_are_taken_once() {
        let mut pages = Pages::new(200);
        for part in [0..1, 60..70, 127..128, 128..129, 199..200] {
            pages.insert(part);
        }
        pages.insert(5..5);
        let all = 0..200;
        assert_eq!((pages.count(&all), pages.count(&(61..128)), pages.count(&(7..7))), (14, 10, 0));
        assert_eq!(pages.take_run(&(63..65), 9), Some(63..65));
        let mut runs = Vec::new();
        while let Some(run) = pages.take_run(&all, 4) {
            runs.push(run);
        }
        assert_eq!(runs, [0..1, 60..63, 65..69, 69..70, 127..129, 199..200]);
        assert_eq!(pages.count(&all), 0);
    }
}
