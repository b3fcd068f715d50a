//! Who waits for the ends of an unbound buffer in one direction, and whose wait is aborted.

use crate::status::Status;

/// An abort is for a wait that is under way when it comes, and for which none has come yet; without such, for the next one. One that
/// begins later takes it from nobody.
#[derive(Default)]
pub(super) struct Waits {
    /// Those under way, in the order in which they began.
    under_way: Vec<Wait>,
    /// So many that begin later are aborted.
    later: u64,
    last: u64,
}

struct Wait {
    number: u64,
    aborted: bool,
}

impl Waits {
    /// A wait begins; its number.
    pub fn begin(&mut self) -> Result<u64, Status> {
        crate::room::grow(&mut self.under_way, 1, "waits for an unbound buffer")?;
        let aborted = self.takes_abort();
        self.last += 1;
        self.under_way.push(Wait { number: self.last, aborted });
        Ok(self.last)
    }

    /// Whether the wait that begins now is aborted: that is then done with.
    #[inline]
    pub fn takes_abort(&mut self) -> bool {
        let aborted = self.later > 0;
        self.later -= u64::from(aborted);
        aborted
    }

    /// Whether a wait is to return.
    pub fn is_aborted(&self, number: u64) -> bool {
        self.under_way.iter().any(|wait| wait.number == number && wait.aborted)
    }

    /// A wait returns. True: it was aborted.
    pub fn end(&mut self, number: u64) -> bool {
        let at = self.under_way.iter().position(|wait| wait.number == number);
        at.is_some_and(|at| self.under_way.remove(at).aborted)
    }

    /// One wait is to return.
    pub fn abort(&mut self) {
        match self.under_way.iter_mut().find(|wait| !wait.aborted) {
            Some(wait) => wait.aborted = true,
            None => self.later += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abort_is_for_who_waits_when_it_comes() {
        let mut waits = Waits::default();
        let first = waits.begin().unwrap();
        waits.abort();
        let later = waits.begin().unwrap();
        assert!(waits.is_aborted(first) && !waits.is_aborted(later));
        waits.abort();
        let last = waits.begin().unwrap();
        assert!(waits.is_aborted(later) && !waits.is_aborted(last));
        assert!(waits.end(later) && waits.end(first) && !waits.end(last));
        assert_eq!(waits.later, 0);
    }

    #[test]
    fn an_abort_that_meets_nobody_is_for_the_next() {
        let mut waits = Waits::default();
        let gone = waits.begin().unwrap();
        assert!(!waits.end(gone) && !waits.end(gone));
        (0..2).for_each(|_| waits.abort());
        let all = [(); 3].map(|()| waits.begin().unwrap());
        assert_eq!(all.map(|wait| waits.is_aborted(wait)), [true, true, false]);
        // It goes with the wait, also where that ends otherwise.
        assert!(waits.end(all[0]) && !waits.is_aborted(all[0]));
        assert!(!waits.is_aborted(all[2]) && waits.later == 0);
    }
}
