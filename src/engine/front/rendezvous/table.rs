//! Matching of sends and receives by step and key.
//!
//! A send before its receive waits as a tensor; a receive before its send waits as a waiter. A step
//! need not exist: it comes into being with its first entry and goes with its last, unless it was
//! aborted; then it stays, with its status, until cleaned up.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

pub use super::items::Drained;
use super::items::{Entry, Items, Waiters, find, insert, make_room};
use super::keys::{Key, Keys};
pub use super::steps::Members;
use super::steps::{KEPT_ITEMS, Steps};
use crate::api::Tensor;
pub use crate::engine::transfer::outbound::{Content, Sent};
use crate::limits::{ABORTED_STEPS, TENSORS};
use crate::room::{self, Grows};
use crate::status::Status;

/// Who waits for a tensor: an index into the engine's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Waiter {
    /// A request of this manager itself.
    Local(u32),
    /// A response owed to a peer.
    Remote(u32),
}

#[derive(Default)]
pub(super) struct Step {
    pub(super) aborted: Option<Status>,
    pub(super) items: Items,
    /// What the engine has under way in it.
    pub(super) members: Members,
}

impl Step {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty() && self.aborted.is_none() && self.members.is_empty()
    }

    /// Its memory is not kept for the next.
    #[inline]
    pub(super) fn is_large(&self) -> bool {
        self.items.capacity() > KEPT_ITEMS
    }
}

/// Whom a tensor met.
pub enum Meeting {
    /// The first waiter takes it, and with it the key, or what there was memory for.
    Waiter(Waiter, Key),
    /// It waits in the table, once it is put there.
    Nobody(Free),
    /// A tensor of this key waits already.
    Duplicate,
    /// The step was aborted, or memory lacks.
    Refused(Status),
    /// So many tensors wait already.
    Full,
}

/// A place for a tensor, or for who waits for one, until anything else is done to the table; it is to be stored there.
pub struct Free {
    hash: u64,
    /// `None`: others wait there already.
    key: Option<Key>,
}

impl Free {
    /// By which who waits there is found again.
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

/// What a receive met.
pub enum RecvOutcome {
    /// The receive waits in the table, once it is put there.
    Nobody(Free),
    /// The tensor was there.
    Matched(Sent),
    /// A receive of this key waits already.
    Duplicate,
    /// The step was aborted, or memory lacks.
    Refused(Status),
}

/// A tensor that was taken out, with its key and step.
pub type Withdrawn = (Key, i64, Sent);

/// Bytes of copied content that wait with their tensors; of others the content is copied when it is asked for.
const COPIES: usize = 16 << 20;

/// The tensors that wait for a receive, and the receives that wait for a tensor, by step and key.
#[derive(Default)]
pub struct Table {
    steps: Steps,
    hasher: RandomState,
    keys: Keys,
    aborted: VecDeque<i64>,
    earliest: u64,
    tensors: usize,
    /// Bytes of the copies of their content that take memory.
    copies: usize,
}

impl Table {
    /// An empty table.
    pub fn new() -> Table {
        Table { earliest: u64::MAX, ..Default::default() }
    }

    /// Copies of keys.
    pub fn keys(&mut self) -> &mut Keys {
        &mut self.keys
    }

    /// Tensors that wait.
    pub fn tensors(&self) -> usize {
        self.tensors
    }

    /// A tensor is no longer in the table.
    fn taken(&mut self, sent: &Sent) {
        self.tensors -= 1;
        self.copies -= sent.content.len();
    }

    /// What the engine has under way in a step, which begins if it was not; after [`make_room`](Self::make_room).
    #[inline]
    pub fn members(&mut self, step: i64) -> &mut Members {
        &mut self.steps.get(step).members
    }

    /// The same of a step that is there.
    #[inline]
    pub fn members_of(&mut self, step: i64) -> Option<&mut Members> {
        self.steps.find(step).map(|s| &mut s.members)
    }

    /// Memory for this step.
    #[inline]
    pub fn make_room(&mut self, step: i64) -> Result<(), Status> {
        self.steps.make_room(step)
    }

    /// Members have left the step: it goes with the last.
    #[inline]
    pub fn left(&mut self, step: i64) {
        self.steps.shrink(step);
    }

    /// The status with which the step was aborted, if it was.
    #[inline]
    pub fn aborted(&mut self, step: i64) -> Option<&Status> {
        self.steps.find(step).and_then(|s| s.aborted.as_ref())
    }

    /// The hash of a key.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        hasher.finish()
    }

    /// Who takes a tensor of this key: the first waiter, which leaves the table, or nobody yet.
    #[inline]
    pub fn meet(&mut self, key: &[u8], step: i64) -> Meeting {
        let hash = self.hash(key);
        let s = match self.steps.enter(step) {
            Ok(s) => s,
            Err(status) => return Meeting::Refused(status),
        };
        if let Some(status) = &s.aborted {
            return Meeting::Refused(status.clone());
        }
        if let Some(mut found) = find(&mut s.items.waiters, hash, key) {
            let waiters = &mut found.get_mut().item;
            return match waiters[..] {
                [only] => {
                    let key = std::mem::take(&mut found.get_mut().key);
                    found.remove();
                    self.steps.shrink(step);
                    Meeting::Waiter(only, key)
                }
                _ => {
                    let first = waiters.remove(0);
                    Meeting::Waiter(first, self.keys.copy(key).unwrap_or_default())
                }
            };
        }
        if find(&mut s.items.tensors, hash, key).is_some() {
            return Meeting::Duplicate;
        }
        if self.tensors >= TENSORS {
            self.steps.shrink(step);
            return Meeting::Full;
        }
        match make_room(&mut s.items.tensors, &mut self.keys, key) {
            Ok(key) => Meeting::Nobody(Free { hash, key: Some(key) }),
            Err(status) => {
                self.steps.shrink(step);
                Meeting::Refused(status)
            }
        }
    }

    /// Puts a tensor where nobody waits for it; `content` is the tensor's, or nothing.
    #[inline]
    pub fn store(&mut self, free: Free, step: i64, mut sent: Sent, content: &[u8]) {
        if content.len() <= COPIES - self.copies {
            // Where memory lacks, it is copied when it is asked for.
            let room = sent.content.try_reserve_exact(content.len());
            sent.content.extend_from_slice(if room.is_ok() { content } else { &[] });
        }
        self.copies += sent.content.len();
        self.tensors += 1;
        self.earliest = self.earliest.min(sent.deadline);
        let Free { hash, key } = free;
        let key = key.unwrap_or_default();
        insert(&mut self.steps.get(step).items.tensors, Entry { hash, key, item: sent });
    }

    /// Takes the tensor of this key, or finds a place for who waits for one.
    #[inline]
    pub fn recv(&mut self, key: &[u8], step: i64, tolerate_duplicates: bool) -> RecvOutcome {
        let hash = self.hash(key);
        let s = match self.steps.enter(step) {
            Ok(s) => s,
            Err(status) => return RecvOutcome::Refused(status),
        };
        if let Some(status) = &s.aborted {
            return RecvOutcome::Refused(status.clone());
        }
        if let Some(found) = find(&mut s.items.tensors, hash, key) {
            let Entry { key, item: sent, .. } = found.remove().0;
            self.keys.give(key);
            self.taken(&sent);
            self.steps.shrink(step);
            return RecvOutcome::Matched(sent);
        }
        if let Some(mut found) = find(&mut s.items.waiters, hash, key) {
            if !tolerate_duplicates {
                return RecvOutcome::Duplicate;
            }
            return match room::grow(&mut found.get_mut().item, 1, "receives of one key") {
                Ok(()) => RecvOutcome::Nobody(Free { hash, key: None }),
                Err(status) => RecvOutcome::Refused(status),
            };
        }
        // First the memory: who waits must not have been made in vain.
        match make_room(&mut s.items.waiters, &mut self.keys, key) {
            Ok(key) => RecvOutcome::Nobody(Free { hash, key: Some(key) }),
            Err(status) => {
                self.steps.shrink(step);
                RecvOutcome::Refused(status)
            }
        }
    }

    /// Puts a waiter in its place; `key` is what the place was found by.
    #[inline]
    pub fn wait(&mut self, free: Free, key: &[u8], step: i64, waiter: Waiter) {
        let Free { hash, key: own } = free;
        let waiters = &mut self.steps.get(step).items.waiters;
        match own {
            Some(key) => insert(waiters, Entry { hash, key, item: smallvec::smallvec![waiter] }),
            None => {
                if let Some(mut found) = find(waiters, hash, key) {
                    found.get_mut().item.push(waiter);
                }
            }
        }
    }

    /// Nobody takes this place.
    pub fn leave(&mut self, free: Free, step: i64) {
        if let Some(key) = free.key {
            self.keys.give(key);
        }
        self.steps.shrink(step);
    }

    /// Whether a tensor of this key waits.
    pub fn has_tensor(&mut self, key: &[u8], step: i64) -> bool {
        let hash = self.hash(key);
        let s = self.steps.find(step);
        s.is_some_and(|s| find(&mut s.items.tensors, hash, key).is_some())
    }

    /// Takes one waiter out, wherever it stands, by the hash of its key.
    pub fn remove_waiter(&mut self, hash: u64, step: i64, waiter: Waiter) {
        let Some(s) = self.steps.find(step) else { return };
        let here = |e: &Entry<Waiters>| e.item.contains(&waiter);
        if let Ok(mut found) = s.items.waiters.find_entry(hash, here) {
            let waiters = &mut found.get_mut().item;
            waiters.retain(|w| *w != waiter);
            if waiters.is_empty() {
                self.keys.give(found.remove().0.key);
            }
        }
        self.steps.shrink(step);
    }

    /// Marks the step as aborted and gives up all it holds. A second abort keeps the first status.
    pub fn abort(&mut self, step: i64, status: Status) -> Result<Drained, Status> {
        room::grow(&mut self.aborted, 1, "aborted steps")?;
        let s = self.steps.enter(step)?;
        let items = std::mem::take(&mut s.items);
        if s.aborted.is_none() {
            s.aborted = Some(status);
            self.aborted.push_back(step);
            while self.aborted.len() > ABORTED_STEPS {
                if let Some(old) = self.aborted.pop_front() {
                    if let Some(s) = self.steps.find(old) {
                        s.aborted = None;
                    }
                    self.steps.shrink(old);
                }
            }
        }
        Ok(self.give_up(items))
    }

    /// Forgets the step, if there is nothing in it; false: there is.
    #[inline]
    pub fn end_of_empty(&mut self, step: i64) -> bool {
        match self.steps.find(step) {
            None => true,
            Some(s) if s.is_empty() => {
                if s.is_large() {
                    self.steps.end(step);
                }
                true
            }
            Some(_) => false,
        }
    }

    /// Forgets the step and gives up all it holds.
    pub fn cleanup(&mut self, step: i64) -> Drained {
        let Some(s) = self.steps.find(step) else { return Drained::default() };
        if s.aborted.take().is_some() {
            self.aborted.retain(|&a| a != step);
        }
        // Its memory stays for the next step.
        let none = s.items.is_empty();
        let items = if none { Items::default() } else { std::mem::take(&mut s.items) };
        let drained = self.give_up(items);
        self.steps.end(step);
        drained
    }

    fn give_up(&mut self, items: Items) -> Drained {
        items.tensors.iter().for_each(|entry| self.taken(&entry.item));
        Drained(items)
    }

    /// The steps that hold something, in order; as many as there is memory for, at least one if there is any.
    pub fn steps(&self) -> SmallVec<[i64; 1]> {
        let mut steps = SmallVec::new();
        for step in self.steps.held() {
            if !steps.fits(1) {
                break;
            }
            steps.push(step);
        }
        steps.sort_unstable();
        steps
    }

    /// Earliest deadline of a waiting tensor, or earlier; `u64::MAX`: none.
    pub fn next_deadline(&self) -> u64 {
        self.earliest
    }

    /// Takes out the tensors whose deadline has passed, as many as there is memory for: the rest is due next time.
    pub fn expire(&mut self, now: u64) -> Vec<Sent> {
        let mut out = Vec::new();
        if now < self.earliest {
            return out;
        }
        let due = |e: &Entry<Sent>| e.item.deadline <= now;
        let mut earliest = u64::MAX;
        for (_, s) in self.steps.all() {
            let tensors = &mut s.items.tensors;
            let count = tensors.iter().filter(|e| due(e)).count();
            if count > 0 && out.fits(count) {
                out.extend(tensors.extract_if(|e| due(e)).map(|gone| gone.item));
            }
            earliest = tensors.iter().fold(earliest, |first, e| first.min(e.item.deadline));
        }
        self.earliest = earliest;
        out.iter().for_each(|sent| self.taken(sent));
        self.steps.shrink_all();
        out
    }

    /// Takes out the tensors that `which` picks, with their keys and steps. False: some are left, since memory
    /// lacks.
    pub fn withdraw(&mut self, which: impl Fn(&Tensor) -> bool) -> (Vec<Withdrawn>, bool) {
        let (mut out, mut whole) = (Vec::new(), true);
        let picked = |e: &Entry<Sent>| which(&e.item.tensor);
        for (step, s) in self.steps.all() {
            let tensors = &mut s.items.tensors;
            if out.fits(tensors.iter().filter(|e| picked(e)).count()) {
                let gone = tensors.extract_if(|e| picked(e));
                out.extend(gone.map(|gone| (gone.key, step, gone.item)));
            } else {
                whole = false;
            }
        }
        out.iter().for_each(|(_, _, sent)| self.taken(sent));
        self.steps.shrink_all();
        (out, whole)
    }

    /// Entries, for reports: waiting tensors and waiting receives.
    pub fn counts(&self) -> (usize, usize) {
        self.steps.iter().fold((0, 0), |(tensors, waiters), s| {
            let waiting: usize = s.items.waiters.iter().map(|e| e.item.len()).sum();
            (tensors + s.items.tensors.len(), waiters + waiting)
        })
    }
}

#[cfg(test)]
mod tests;
