//! The store in memory: shared by the threads of a process, and what the TCP store serves.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;
use parking_lot::{Condvar, Mutex};

use super::lease::ended;
use super::waiters::Waiters;
use super::{Compared, Kind, LeaseId, Until, sum};
use crate::limits::{STORE_BYTES, STORE_KEYS, STORE_REPLY};
use crate::os::EventFd;
use crate::room;
use crate::status::{Code, Status};

struct Value {
    bytes: Vec<u8>,
    lease: Option<LeaseId>,
}

struct Term {
    ends: Instant,
    keys: HashSet<Box<[u8]>>,
}

#[derive(Default)]
struct Table {
    values: HashMap<Box<[u8]>, Value>,
    /// Of keys and values.
    bytes: usize,
    leases: HashMap<LeaseId, Term>,
    /// The same in the order of their ends.
    ends: BTreeSet<(Instant, LeaseId)>,
    /// Bells of the keys that have come, for who waits in this process.
    came: u32,
    /// Clients of a server that wait.
    waiters: Waiters,
}

/// Who waits is woken by the bell of the first key that he misses, which it shares with some others: of many who wait, each for
/// another key, few are woken in vain.
const BELLS: usize = 16;

fn bell(key: &[u8]) -> usize {
    let mut hasher = FixedState::with_seed(0).build_hasher();
    hasher.write(key);
    hasher.finish() as usize % BELLS
}

/// What a key and its value cost beyond their bytes.
const OVERHEAD: usize = 128;

/// What a value takes with its key, which its lease has, too.
fn cost(key: &[u8], value: usize, lease: Option<LeaseId>) -> usize {
    key.len() * if lease.is_some() { 2 } else { 1 } + value + OVERHEAD
}

impl Table {
    /// Drops what leases that have ended held.
    fn expire(&mut self) {
        if self.ends.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some(&(_, id)) = self.ends.first().filter(|(end, _)| *end <= now) {
            self.end(id);
        }
    }

    fn end(&mut self, id: LeaseId) {
        let Some(term) = self.leases.remove(&id) else { return };
        self.ends.remove(&(term.ends, id));
        for key in term.keys {
            self.remove(&key);
        }
    }

    /// Takes a key out of its lease.
    fn part(&mut self, key: &[u8], lease: Option<LeaseId>) {
        if let Some(term) = lease.and_then(|id| self.leases.get_mut(&id)) {
            term.keys.remove(key);
        }
    }

    fn remove(&mut self, key: &[u8]) -> bool {
        let Some(old) = self.values.remove(key) else { return false };
        self.bytes -= cost(key, old.bytes.len(), old.lease);
        self.part(key, old.lease);
        true
    }

    fn put(&mut self, key: &[u8], value: &[u8], lease: Option<LeaseId>) -> Result<(), Status> {
        let old = self.values.get(key).map_or(0, |old| cost(key, old.bytes.len(), old.lease));
        let bytes = self.bytes - old + cost(key, value.len(), lease);
        if bytes > STORE_BYTES || old == 0 && self.values.len() >= STORE_KEYS {
            let text = text!(
                "a value of {} bytes does not fit: {} keys and {} bytes are there, allowed are {STORE_KEYS} and \
                 {STORE_BYTES}",
                value.len(),
                self.values.len(),
                self.bytes
            );
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        let new = Value { bytes: room::copy(value, "a value")?, lease };
        room::grow(&mut self.values, 1, "keys")?;
        let own = if old == 0 { Some(room::key(key)?) } else { None };
        if let Some(id) = lease {
            let term = self.leases.get_mut(&id).ok_or_else(ended)?;
            room::grow(&mut term.keys, 1, "keys of a lease")?;
            term.keys.insert(room::key(key)?);
        }
        // From here on nothing fails: a lease that knew a key which was not written under it would take somebody else's with it.
        match (own, self.values.get_mut(key)) {
            (Some(own), _) => drop(self.values.insert(own, new)),
            (None, Some(there)) => {
                let before = std::mem::replace(there, new);
                if before.lease != lease {
                    self.part(key, before.lease);
                }
            }
            (None, None) => {}
        }
        self.bytes = bytes;
        self.came |= 1 << bell(key);
        self.waiters.wake(key);
        Ok(())
    }

    fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.values.get(key).map(|value| &*value.bytes)
    }
}

/// A store in this process's memory.
pub struct Memory {
    name: String,
    table: Mutex<Table>,
    bells: [Condvar; BELLS],
    /// Rung when a key has come that a client of a server waits for.
    bell: Option<Arc<EventFd>>,
}

impl Memory {
    /// An empty one.
    pub fn new() -> Memory {
        Memory::named("memory store".to_owned(), None)
    }

    /// The same, that tells a server.
    pub fn named(name: String, bell: Option<Arc<EventFd>>) -> Memory {
        Memory { name, table: Mutex::default(), bells: [const { Condvar::new() }; _], bell }
    }

    fn with<R>(&self, f: impl FnOnce(&mut Table) -> R) -> R {
        let mut table = self.table.lock();
        table.expire();
        let before = table.waiters.woken();
        let result = f(&mut table);
        let (mut came, woken) = (std::mem::take(&mut table.came), table.waiters.woken() > before);
        drop(table);
        while came != 0 {
            self.bells[came.trailing_zeros() as usize].notify_all();
            came &= came - 1;
        }
        if let Some(bell) = self.bell.as_ref().filter(|_| woken) {
            bell.signal();
        }
        result
    }

    /// How many of the keys, from `from` on, are there before the first that is not.
    pub fn there<K: AsRef<[u8]>>(&self, keys: &[K], from: usize) -> usize {
        self.with(|table| {
            keys[from..].iter().take_while(|key| table.values.contains_key(key.as_ref())).count()
        })
    }

    /// The same; for that one a server's client waits from now on, until it is woken or parts.
    pub fn there_or_wait<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        from: usize,
        who: u32,
    ) -> Result<usize, Status> {
        self.with(|table| {
            let rest = keys[from..].iter().map(AsRef::as_ref);
            let there = rest.clone().take_while(|key| table.values.contains_key(*key)).count();
            let lacks = rest.clone().nth(there);
            lacks.map_or(Ok(()), |key| table.waiters.wait(key, who))?;
            Ok(there)
        })
    }

    /// A client of a server waits for a key no more.
    pub fn part(&self, key: &[u8], who: u32) {
        self.with(|table| table.waiters.part(key, who));
    }

    /// The next client of a server whose key has come.
    pub fn woken(&self) -> Option<u32> {
        self.table.lock().waiters.next()
    }

    /// Bytes of the values that [`get`](Kind::get) would find.
    pub fn lengths(&self, keys: &[&[u8]]) -> usize {
        self.with(|table| {
            let mut bytes = 0;
            for value in keys.iter().filter_map(|key| table.get(key)) {
                if bytes > 0 && bytes + value.len() > STORE_REPLY {
                    break;
                }
                bytes += value.len();
            }
            bytes
        })
    }

    /// Keys that are there.
    pub fn len(&self) -> usize {
        self.with(|table| table.values.len())
    }

    /// Whether no key is there.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::new()
    }
}

impl Kind for Memory {
    fn name(&self) -> &str {
        &self.name
    }

    fn set(
        &self,
        items: &[(&[u8], &[u8])],
        lease: Option<LeaseId>,
        _until: Until<'_>,
    ) -> Result<(), Status> {
        self.with(|table| items.iter().try_for_each(|(key, value)| table.put(key, value, lease)))
    }

    fn get(&self, keys: &[&[u8]], _until: Until<'_>) -> Result<Vec<Option<Vec<u8>>>, Status> {
        let mut found = Vec::new();
        room::grow(&mut found, keys.len(), "values")?;
        self.with(|table| {
            let mut bytes = 0;
            for key in keys {
                let value = table.get(key);
                bytes += value.map_or(0, <[u8]>::len);
                if bytes > STORE_REPLY && !found.is_empty() {
                    break;
                }
                found.push(value.map(|value| room::copy(value, "a value")).transpose()?);
            }
            Ok(found)
        })
    }

    fn missing(&self, keys: &[&[u8]], _until: Until<'_>) -> Result<Vec<usize>, Status> {
        self.with(|table| {
            room::collect((0..keys.len()).filter(|&i| !table.values.contains_key(keys[i])), "keys")
        })
    }

    fn wait(&self, keys: &[&[u8]], until: Until<'_>) -> Result<Vec<usize>, Status> {
        let mut at = 0;
        let mut table = self.table.lock();
        loop {
            until.stop.check()?;
            table.expire();
            at += keys[at..].iter().take_while(|key| table.values.contains_key(**key)).count();
            if at == keys.len() {
                return Ok(Vec::new());
            }
            if until.is_over() {
                let missing = |i: &usize| !table.values.contains_key(keys[*i]);
                return room::collect((at..keys.len()).filter(missing), "keys");
            }
            let bell = &self.bells[bell(keys[at])];
            match until.deadline {
                Some(deadline) => drop(bell.wait_until(&mut table, deadline)),
                None => bell.wait(&mut table),
            }
        }
    }

    fn add(
        &self,
        key: &[u8],
        delta: i64,
        lease: Option<LeaseId>,
        _until: Until<'_>,
    ) -> Result<i64, Status> {
        self.with(|table| {
            let sum = sum(table.get(key), delta)?;
            table.put(key, sum.to_string().as_bytes(), lease)?;
            Ok(sum)
        })
    }

    fn compare_set(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        desired: &[u8],
        lease: Option<LeaseId>,
        _until: Until<'_>,
    ) -> Result<Compared, Status> {
        self.with(|table| {
            match (table.get(key), expected) {
                (None, Some(_)) => return Ok(Compared::Absent),
                (Some(there), expected) if expected != Some(there) => {
                    return Ok(Compared::Differs(room::copy(there, "a value")?));
                }
                _ => {}
            }
            table.put(key, desired, lease)?;
            Ok(Compared::Set)
        })
    }

    fn delete(&self, keys: &[&[u8]], _until: Until<'_>) -> Result<usize, Status> {
        Ok(self.with(|table| keys.iter().filter(|key| table.remove(key)).count()))
    }

    fn lease(&self, id: LeaseId, ttl: Duration, _until: Until<'_>) -> Result<(), Status> {
        self.with(|table| {
            if !table.leases.contains_key(&id) && table.leases.len() >= STORE_KEYS {
                let text = text!("{STORE_KEYS} leases are held, more are not allowed");
                return Err(Status::new(Code::ResourceExhausted, text));
            }
            room::grow(&mut table.leases, 1, "leases")?;
            let ends = Instant::now() + ttl;
            let term =
                table.leases.entry(id).or_insert_with(|| Term { ends, keys: HashSet::new() });
            table.ends.remove(&(term.ends, id));
            table.ends.insert((ends, id));
            term.ends = ends;
            Ok(())
        })
    }

    fn release(&self, id: LeaseId, _until: Until<'_>) -> Result<(), Status> {
        self.with(|table| table.end(id));
        Ok(())
    }

    fn nudge(&self) {
        // Who is about to sleep holds the lock from its look at the flag until it sleeps.
        drop(self.table.lock());
        for bell in &self.bells {
            bell.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a leased key takes is counted, and given back however it ends.
    #[test]
    fn r08_bytes_of_a_store_are_counted_where_they_are() {
        let mut table = Table::default();
        let (now, keys) = (Instant::now(), HashSet::new());
        table.leases.insert(1, Term { ends: now + Duration::from_secs(60), keys });
        table.put(b"key", b"value", None).unwrap();
        assert_eq!(table.bytes, 3 + 5 + OVERHEAD);
        table.put(b"key", b"v", Some(1)).unwrap();
        assert_eq!(table.bytes, 2 * 3 + 1 + OVERHEAD);
        table.put(b"key", b"v", None).unwrap();
        assert_eq!(table.bytes, 3 + 1 + OVERHEAD);
        table.put(b"key", b"v", Some(1)).unwrap();
        table.put(b"other", b"v", Some(1)).unwrap();
        assert!(table.remove(b"other"));
        table.end(1);
        assert_eq!((table.bytes, table.values.len()), (0, 0));
    }
}
