//! An `Arc` that is made where memory may lack, which is an answer: the standard library's own aborts the process.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

use crate::room;
use crate::status::Status;

/// Shared by as many as there are clones; the last that goes drops it.
pub struct Counted<T> {
    one: NonNull<One<T>>,
    _owns: PhantomData<One<T>>,
}

/// A value with how many have it.
pub(crate) struct One<T> {
    count: AtomicUsize,
    value: T,
}

impl<T> One<T> {
    /// One that lasts, for [`Counted::of_fixed`].
    pub(crate) const fn fixed(value: T) -> One<T> {
        One { count: AtomicUsize::new(1), value }
    }
}

// SAFETY: as for `Arc`: whoever has a clone may read the value, and may be the one to drop it.
unsafe impl<T: Send + Sync> Send for Counted<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Counted<T> {}

impl<T> Counted<T> {
    /// With one owner.
    pub fn new(value: T, what: &str) -> Result<Counted<T>, Status> {
        let one = room::boxed(One { count: AtomicUsize::new(1), value }, what)?;
        Ok(Counted { one: NonNull::from(Box::leak(one)), _owns: PhantomData })
    }

    /// The same; `None`: there is no memory.
    pub(crate) fn try_new(value: T) -> Option<Counted<T>> {
        let one = room::try_boxed(One { count: AtomicUsize::new(1), value })?;
        Some(Counted { one: NonNull::from(Box::leak(one)), _owns: PhantomData })
    }

    /// One more owner of what lasts: the first one never goes, so that it is not dropped.
    pub(crate) fn of_fixed(one: &'static One<T>) -> Counted<T> {
        one.count.fetch_add(1, Ordering::Relaxed);
        Counted { one: NonNull::from(one), _owns: PhantomData }
    }

    /// It, if nobody else has it.
    pub(crate) fn get_mut(this: &mut Counted<T>) -> Option<&mut T> {
        if this.one().count.load(Ordering::Acquire) != 1 {
            return None;
        }
        // SAFETY: this is the only owner, as `Acquire` sees, and it is borrowed for as long; what is fixed has one more owner always.
        Some(unsafe { &mut this.one.as_mut().value })
    }

    /// How many have it.
    pub fn owners(this: &Counted<T>) -> usize {
        this.one().count.load(Ordering::Relaxed)
    }

    fn one(&self) -> &One<T> {
        // SAFETY: it lives as long as it is counted, as this is.
        unsafe { self.one.as_ref() }
    }
}

impl<T> Clone for Counted<T> {
    fn clone(&self) -> Counted<T> {
        let before = self.one().count.fetch_add(1, Ordering::Relaxed);
        if before > isize::MAX as usize {
            // As `Arc` does: so many were leaked that the count would begin anew.
            std::process::abort();
        }
        Counted { one: self.one, _owns: PhantomData }
    }
}

impl<T> Drop for Counted<T> {
    fn drop(&mut self) {
        if self.one().count.fetch_sub(1, Ordering::Release) == 1 {
            // What the others did with it has happened.
            fence(Ordering::Acquire);
            // SAFETY: it came out of a box, and this was the last that referred to it.
            drop(unsafe { Box::from_raw(self.one.as_ptr()) });
        }
    }
}

impl<T> Deref for Counted<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.one().value
    }
}

impl<T: PartialEq> PartialEq for Counted<T> {
    fn eq(&self, other: &Counted<T>) -> bool {
        **self == **other
    }
}

impl<T: Eq> Eq for Counted<T> {}

impl<T: fmt::Debug> fmt::Debug for Counted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn the_last_one_drops_it() {
        let inside = Arc::new(());
        let first = Counted::new(inside.clone(), "a test").unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let other = first.clone();
                scope.spawn(move || (0..1000).for_each(|_| drop(other.clone())));
            }
        });
        assert_eq!(Arc::strong_count(&inside), 2);
        drop(first);
        assert_eq!(Arc::strong_count(&inside), 1);
    }
}
