//! Letters of many senders to one reader, in order: without a lock, and without an allocation once there are enough of them.
//!
//! A queue as D. Vyukov's of many producers and one consumer (1024cores.net, "non-intrusive MPSC node-based queue"): a letter is put
//! behind the newest one by one exchange, and the newest that was read stays in the queue until there is one behind it. A sender has a
//! [`Lane`] for each reader. Its letters come back in their order, so that a count tells which ones: the reader only stores it.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::ptr::{NonNull, null_mut};

// The model checker's in its tests.
use super::atomic::{AtomicPtr, AtomicU64, Ordering};
use crate::counted::Counted;
use crate::room::{self, Grows};

struct Letter<T> {
    /// The one behind it.
    next: AtomicPtr<Letter<T>>,
    /// Counts those of its lane that were read; none: it belongs to whoever reads it.
    back: Option<Counted<AtomicU64>>,
    /// Of a lane's last letter: the lane, of which all others have been read before it.
    rest: Option<Box<Lane<T>>>,
    /// Of its reader: it is the newest that was read; it is done with; the one done with after it.
    newest: Cell<bool>,
    done: Cell<bool>,
    after: Cell<*mut Letter<T>>,
    value: T,
}

type At<T> = NonNull<Letter<T>>;

/// A letter, if there is memory.
fn letter<T>(value: T, back: Option<Counted<AtomicU64>>) -> Option<Box<Letter<T>>> {
    let next = AtomicPtr::new(null_mut());
    let (newest, done, after) = (Cell::new(false), Cell::new(false), Cell::new(null_mut()));
    room::try_boxed(Letter { next, back, rest: None, newest, done, after, value })
}

/// A letter that its sender writes.
pub(super) struct Own<T>(Box<Letter<T>>);

// SAFETY: the cells and pointers in it are its reader's, and nobody's as long as it is its sender's.
unsafe impl<T: Send> Send for Own<T> {}

impl<T> Deref for Own<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> DerefMut for Own<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0.value
    }
}

/// A sender's letters to one reader.
pub(super) struct Lane<T> {
    /// With the reader, in the order sent.
    out: VecDeque<At<T>>,
    free: Vec<Own<T>>,
    /// Taken and not sent.
    lent: usize,
    /// How many the reader has given back, and how many of them were taken back.
    back: Counted<AtomicU64>,
    taken: u64,
    last: Option<Own<T>>,
}

// SAFETY: what it points to is its own, or its reader's, who touches what is his alone.
unsafe impl<T: Send> Send for Lane<T> {}

impl<T> Lane<T> {
    /// An empty one; `last` is what it says at its end. `None`: no memory.
    pub(super) fn new(last: T) -> Option<Lane<T>> {
        let last = Some(Own(letter(last, None)?));
        let back = Counted::try_new(AtomicU64::new(0))?;
        let (out, free) = (VecDeque::new(), Vec::new());
        Some(Lane { out, free, lent: 0, back, taken: 0, last })
    }

    /// How many are taken or sent, of those that were not taken back.
    pub(super) fn count(&self) -> usize {
        self.out.len() + self.lent
    }

    /// A letter, if one is free.
    #[inline]
    pub(super) fn take_free(&mut self) -> Option<Own<T>> {
        let own = self.free.pop()?;
        self.lent += 1;
        Some(own)
    }

    /// A further letter. `None`: no memory.
    pub(super) fn take_new(&mut self, value: T) -> Option<Own<T>> {
        let all = self.count() + self.free.len() + 1;
        let room = self.out.fits(all - self.out.len()) && self.free.fits(all - self.free.len());
        let own = letter(value, Some(self.back.clone())).filter(|_| room)?;
        self.lent += 1;
        Some(Own(own))
    }

    /// Takes back what was read; `keep` says whether a letter shall be there for the next.
    pub(super) fn take_back(&mut self, mut keep: impl FnMut(&mut T) -> bool) {
        let back = self.back.load(Ordering::Acquire);
        while self.taken != back
            && let Some(at) = self.out.pop_front()
        {
            self.taken += 1;
            // SAFETY: it was a box's when it was sent, and the reader, who has counted it, touches it no more.
            let mut own = Own(unsafe { Box::from_raw(at.as_ptr()) });
            if keep(&mut own) {
                self.free.push(own);
            }
        }
    }

    /// One that was taken is not sent; `keep`: it shall be there for the next.
    pub(super) fn give_back(&mut self, own: Own<T>, keep: bool) {
        self.lent -= 1;
        if keep {
            self.free.push(own);
        }
    }

    /// Sends a letter that was taken here.
    #[inline]
    pub(super) fn send(&mut self, own: Own<T>, inbox: &Inbox<T>) {
        let of = own.0.back.as_deref().map(std::ptr::from_ref);
        assert!(of == Some(std::ptr::from_ref(&*self.back)), "a letter of another lane");
        let at = post(own, inbox);
        self.out.push_back(at);
        self.lent -= 1;
    }

    /// Sends the last letter, with which the others go.
    pub(super) fn end(mut self: Box<Self>, inbox: &Inbox<T>) {
        if let Some(mut last) = self.last.take() {
            last.0.rest = Some(self);
            post(last, inbox);
        }
    }
}

impl<T> Drop for Lane<T> {
    fn drop(&mut self) {
        // All of them, if the lane has ended or nothing was sent. Others belong to the reader for ever.
        self.take_back(|_| false);
    }
}

/// Sends a letter.
#[inline]
fn post<T>(own: Own<T>, inbox: &Inbox<T>) -> At<T> {
    let letter = Box::leak(own.0);
    letter.next.store(null_mut(), Ordering::Relaxed);
    letter.newest.set(false);
    letter.done.set(false);
    let at = NonNull::from(letter);
    inbox.push(at);
    at
}

/// Where letters are put.
pub(super) struct Inbox<T> {
    newest: AtomicPtr<Letter<T>>,
    /// The newest that was read, once there is no reader.
    first: AtomicPtr<Letter<T>>,
}

// SAFETY: letters go from their sender's hands into those of the one reader, by atomic operations.
unsafe impl<T: Send> Send for Inbox<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Inbox<T> {}

impl<T> Inbox<T> {
    #[inline]
    fn push(&self, at: At<T>) {
        // SeqCst, as all that has a part in sleeping (a model checker that knows it of fences alone cannot try that): who sleeps
        // has said so before it looked at this; see `Reader::is_empty`.
        let before = self.newest.swap(at.as_ptr(), Ordering::SeqCst);
        // SAFETY: the reader keeps the newest until it has found the one behind it, which is told here.
        unsafe { (*before).next.store(at.as_ptr(), Ordering::Release) };
    }

    /// Sends a letter that belongs to its reader. False: no memory.
    pub(super) fn send_one(&self, value: T) -> bool {
        letter(value, None).map(|letter| post(Own(letter), self)).is_some()
    }
}

impl<T> Drop for Inbox<T> {
    fn drop(&mut self) {
        let mut next = self.first.load(Ordering::Acquire);
        while let Some(at) = NonNull::new(next) {
            // SAFETY: nobody else has the inbox. All senders have sent their last, which comes behind their others.
            unsafe {
                next = at.as_ref().next.load(Ordering::Acquire);
                let_go(at);
            }
        }
    }
}

/// Gives a letter back to its lane, or frees it.
///
/// # Safety
/// Its reader touches it no more, and has let go of all that its lane sent before.
unsafe fn let_go<T>(at: At<T>) {
    // SAFETY: by this function's contract. The count lives as long as the lane, which ends with its last letter.
    unsafe {
        match &(*at.as_ptr()).back {
            Some(back) => {
                let back = &**back;
                back.store(back.load(Ordering::Relaxed) + 1, Ordering::Release);
            }
            None => drop(Box::from_raw(at.as_ptr())),
        }
    }
}

/// A letter that its reader has. It goes by [`Reader::done`].
pub(super) struct Read<T>(At<T>);

// SAFETY: it goes from thread to thread with its reader.
unsafe impl<T: Send> Send for Read<T> {}

/// The one who reads.
pub(super) struct Reader<T> {
    inbox: Counted<Inbox<T>>,
    newest: At<T>,
    /// Those done with, in their order.
    first: *mut Letter<T>,
    last: *mut Letter<T>,
}

// SAFETY: the letters are its own, as long as it has not let go of them.
unsafe impl<T: Send> Send for Reader<T> {}

impl<T: Default> Reader<T> {
    /// A reader of an empty inbox. `None`: no memory.
    pub(super) fn new() -> Option<Reader<T>> {
        let letter = letter(T::default(), None)?;
        letter.newest.set(true);
        letter.done.set(true);
        let inbox = Counted::try_new(Inbox {
            newest: AtomicPtr::new(null_mut()),
            first: AtomicPtr::new(null_mut()),
        })?;
        let newest = NonNull::from(Box::leak(letter));
        inbox.newest.store(newest.as_ptr(), Ordering::Relaxed);
        Some(Reader { inbox, newest, first: null_mut(), last: null_mut() })
    }
}

impl<T> Reader<T> {
    /// Where its letters are put.
    pub(super) fn inbox(&self) -> &Counted<Inbox<T>> {
        &self.inbox
    }

    /// Whether nothing was sent that was not read. What is being sent counts, and may not be found yet. Of two who do both, one by
    /// sending, then looking whether this one sleeps, the other by saying that it sleeps, then asking this, one finds what the other did.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.inbox.newest.load(Ordering::SeqCst) == self.newest.as_ptr()
    }

    /// The next letter.
    #[inline]
    pub(super) fn next(&mut self) -> Option<Read<T>> {
        // SAFETY: both are this reader's: the newest that it has read, and the one behind it, which its sender has told. The first
        // is let go of if it was done with.
        unsafe {
            let next = NonNull::new((*self.newest.as_ptr()).next.load(Ordering::Acquire))?;
            let old = std::mem::replace(&mut self.newest, next);
            (*next.as_ptr()).newest.set(true);
            (*old.as_ptr()).newest.set(false);
            if (*old.as_ptr()).done.get() {
                let_go(old);
            }
            Some(Read(next))
        }
    }

    /// What one of its letters says.
    #[inline]
    pub(super) fn value<'a>(&'a mut self, read: &'a mut Read<T>) -> &'a mut T {
        // SAFETY: nobody else has the letter, which was not let go of.
        unsafe { &mut (*read.0.as_ptr()).value }
    }

    /// A letter is done with: it stays as it is until `clear`.
    #[inline]
    pub(super) fn done(&mut self, read: Read<T>) {
        let at = read.0.as_ptr();
        // SAFETY: letters of this reader that it has not let go of.
        unsafe {
            (*at).after.set(null_mut());
            match self.last.is_null() {
                true => self.first = at,
                false => (*self.last).after.set(at),
            }
        }
        self.last = at;
    }

    /// Lets go of all that is done with.
    #[inline]
    pub(super) fn clear(&mut self) {
        let mut next = std::mem::replace(&mut self.first, null_mut());
        self.last = null_mut();
        while let Some(at) = NonNull::new(next) {
            // SAFETY: letters of this reader that it has not let go of; in their order, so that those of a lane go in theirs.
            unsafe {
                next = (*at.as_ptr()).after.get();
                match (*at.as_ptr()).newest.get() {
                    true => (*at.as_ptr()).done.set(true),
                    false => let_go(at),
                }
            }
        }
    }
}

impl<T> Drop for Reader<T> {
    fn drop(&mut self) {
        self.clear();
        self.inbox.first.store(self.newest.as_ptr(), Ordering::Release);
    }
}
