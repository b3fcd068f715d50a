//! What waits in a step, by key: tensors, and those who wait for one. Of a key there is either.

use hashbrown::HashTable;
use hashbrown::hash_table::OccupiedEntry;
use smallvec::SmallVec;

use super::keys::{Key, Keys};
use super::{Sent, Waiter};
use crate::room::{self, Grows};
use crate::status::Status;

/// Those who wait for one tensor, in order.
pub(super) type Waiters = SmallVec<[Waiter; 1]>;

/// What waits under one key of one step.
pub(super) struct Entry<T> {
    pub hash: u64,
    pub key: Key,
    pub item: T,
}

/// Entries of one kind.
pub(super) type Entries<T> = HashTable<Entry<T>>;

/// What waits in one step, by key. Each kind has a table of its own, since a tensor is much longer than who waits for one.
#[derive(Default)]
pub(super) struct Items {
    pub tensors: Entries<Sent>,
    pub waiters: Entries<Waiters>,
}

impl Items {
    /// Whether nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty() && self.waiters.is_empty()
    }

    /// For how many there is memory.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.tensors.capacity() + self.waiters.capacity()
    }
}

/// What waits under a key.
#[inline]
pub(super) fn find<'a, T>(
    of: &'a mut Entries<T>,
    hash: u64,
    key: &[u8],
) -> Option<OccupiedEntry<'a, Entry<T>>> {
    if of.is_empty() { None } else { of.find_entry(hash, |e| *e.key == *key).ok() }
}

/// Makes room for one more; its key.
#[inline]
pub(super) fn make_room<T>(
    of: &mut Entries<T>,
    keys: &mut Keys,
    key: &[u8],
) -> Result<Key, Status> {
    let none = |_| room::none(key.len(), "a table of keys");
    of.try_reserve(1, |e| e.hash).map_err(none)?;
    keys.copy(key)
}

/// Puts an entry in that is not there; after [`make_room`].
#[inline]
pub(super) fn insert<T>(of: &mut Entries<T>, new: Entry<T>) {
    of.insert_unique(new.hash, new, |e| e.hash);
}

/// Everything that a step held, where it was: giving up needs no memory.
#[derive(Default)]
pub struct Drained(pub(super) Items);

impl Drained {
    /// Nothing was given up.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Ends each: tensors that nobody took, and receives that nobody served.
    pub fn end(self, mut tensor: impl FnMut(Sent), mut waiter: impl FnMut(Waiter)) {
        let Items { tensors, waiters } = self.0;
        tensors.into_iter().for_each(|entry| tensor(entry.item));
        let mut all: SmallVec<[Waiter; 4]> = SmallVec::new();
        for entry in waiters {
            match entry.item {
                some if all.fits(some.len()) => all.extend(some),
                some => some.into_iter().for_each(&mut waiter),
            }
        }
        // The same in every run, but where memory lacks.
        all.sort_unstable();
        all.into_iter().for_each(waiter);
    }
}
