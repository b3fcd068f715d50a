//! Who waits for keys, by the key: one that comes costs a look by those who wait for it, and by nobody else.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::BuildHasher;

use crate::room;
use crate::status::Status;

/// Numbers of those who wait, each for one key at a time.
#[derive(Default)]
pub struct Waiters {
    /// By the hash of the key: one for another key of the same hash looks once in vain.
    waiting: HashMap<u64, HashSet<u32>>,
    count: usize,
    /// Those whose key has come, in whose order they look. There is room for all that wait.
    woken: VecDeque<u32>,
}

impl Waiters {
    fn hash(&self, key: &[u8]) -> u64 {
        self.waiting.hasher().hash_one(key)
    }

    /// It waits for a key. Should that fail, [`part`](Waiters::part) is called nevertheless.
    pub fn wait(&mut self, key: &[u8], who: u32) -> Result<(), Status> {
        let hash = self.hash(key);
        room::grow(&mut self.woken, self.count + 1, "clients that wait")?;
        room::grow(&mut self.waiting, 1, "keys that are waited for")?;
        let all = self.waiting.entry(hash).or_default();
        room::grow(all, 1, "clients that wait")?;
        self.count += usize::from(all.insert(who));
        Ok(())
    }

    /// It waits for a key no more.
    pub fn part(&mut self, key: &[u8], who: u32) {
        let hash = self.hash(key);
        let Some(all) = self.waiting.get_mut(&hash) else { return };
        self.count -= usize::from(all.remove(&who));
        if all.is_empty() {
            self.waiting.remove(&hash);
        }
    }

    /// A key has come.
    pub fn wake(&mut self, key: &[u8]) {
        if self.waiting.is_empty() {
            return;
        }
        if let Some(all) = self.waiting.remove(&self.hash(key)) {
            self.count -= all.len();
            self.woken.extend(all);
        }
    }

    /// The next that is to look.
    pub fn next(&mut self) -> Option<u32> {
        self.woken.pop_front()
    }

    /// How many are to look.
    pub fn woken(&self) -> usize {
        self.woken.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_a_key_is_woken_by_it_once() {
        let mut waiters = Waiters::default();
        for who in 0..100 {
            waiters.wait(if who % 2 == 0 { b"even" } else { b"odd" }, who).unwrap();
        }
        waiters.part(b"odd", 7);
        waiters.wake(b"other");
        assert_eq!(waiters.woken(), 0);
        waiters.wake(b"odd");
        let mut woken: Vec<u32> = std::iter::from_fn(|| waiters.next()).collect();
        woken.sort_unstable();
        assert!(woken.iter().copied().eq((1..100).step_by(2).filter(|&who| who != 7)));
        waiters.wake(b"odd");
        assert_eq!((waiters.woken(), waiters.count), (0, 50));
        (0..100).for_each(|who| waiters.part(b"even", who));
        assert_eq!((waiters.count, waiters.waiting.len()), (0, 0));
    }
}
