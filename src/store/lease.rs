//! Leases: what was written under one lasts only as long as somebody renews it.
//!
//! A lease is a random number and a time, its ttl. It begins when a leased view is made. A thread renews it each third of
//! its ttl. It ends, and with it every key whose last write was under it: when the view ends; when the process that
//! renews it has ended, at most a ttl after the last renewal; and, *lost*, when it could not be renewed for a ttl. From then
//! on such a key is as if it had been deleted. Who waits for it waits on; whose wait for it is over has seen it. A lost lease
//! takes no more writes, even if its store comes back: its holder would take for granted what is gone.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::stop::Stop;
use super::{Kind, LeaseId, Until};
use crate::log;
use crate::os::OwnThread;
use crate::status::{Code, Status};

/// Shortest ttl: below it a loaded machine would lose leases.
pub const MIN_TTL: Duration = Duration::from_millis(100);
/// Longest ttl.
pub const MAX_TTL: Duration = Duration::from_secs(24 * 3600);
/// The end of a lease does not wait longer for a store that is not there.
const FAREWELL: Duration = Duration::from_secs(2);

/// What a store says of a write under a lease that it does not know, or no more.
pub(super) fn ended() -> Status {
    Status::new(Code::FailedPrecondition, "the lease of this write has ended")
}

struct Shared {
    kind: Arc<dyn Kind>,
    id: LeaseId,
    ttl: Duration,
    /// Begin of the last renewal that went well; `None`: the lease is lost.
    renewed: Mutex<Option<Instant>>,
    stop: Stop,
}

/// A lease that is held. Its end ends it.
pub struct Lease {
    shared: Arc<Shared>,
    thread: Mutex<Option<OwnThread>>,
}

impl Shared {
    /// Renews it, trying for so long.
    fn renew(&self, until: Until<'_>) -> Result<(), Status> {
        // One that is over is not asked for: others have seen its end, and the store might give it back.
        drop(self.still_held()?);
        let begun = Instant::now();
        let renewed = self.kind.lease(self.id, self.ttl, until);
        let mut last = self.still_held()?;
        renewed.map(|()| *last = Some(begun))
    }

    /// When it was last renewed. An error, for ever, if that is too long ago.
    fn still_held(&self) -> Result<MutexGuard<'_, Option<Instant>>, Status> {
        let mut last = self.renewed.lock();
        if last.is_some_and(|last| last.elapsed() < self.ttl) {
            return Ok(last);
        }
        *last = None;
        Err(self.lost())
    }

    fn lost(&self) -> Status {
        let text = text!(
            "{}: the lease of {} ms was lost, since it could not be renewed for so long; what was written \
             under it is gone",
            self.kind.name(),
            self.ttl.as_millis()
        );
        Status::new(Code::FailedPrecondition, text)
    }

    fn renew_until_stopped(&self) {
        while self.stop.sleep(self.ttl / 3).is_ok() {
            let until = Until::after(Some(self.ttl / 3), &self.stop);
            let Err(status) = self.renew(until) else { continue };
            if self.stop.check().is_err() {
                return;
            }
            log::warn(format_args!("a lease was not renewed: {status}"));
            if self.renewed.lock().is_none() {
                return;
            }
        }
    }
}

impl Lease {
    /// Begins one; `thread`: that is renewed and released by itself.
    pub fn begin(
        kind: Arc<dyn Kind>,
        ttl: Duration,
        thread: bool,
        until: Until<'_>,
    ) -> Result<Lease, Status> {
        if ttl < MIN_TTL || ttl > MAX_TTL {
            let text = text!(
                "a lease of {} ms, allowed are {} to {}",
                ttl.as_millis(),
                MIN_TTL.as_millis(),
                MAX_TTL.as_millis()
            );
            return Err(Status::invalid(text));
        }
        let id = u128::from_le_bytes(crate::bootstrap::random_id()?);
        let (begun, stop) = (Instant::now(), Stop::new()?);
        // One that has not begun, as far as is known, nobody will end.
        kind.lease(id, ttl, until).inspect_err(|_| kind.forget(id))?;
        let renewed = Mutex::new(Some(begun));
        let shared = Arc::new(Shared { kind, id, ttl, renewed, stop });
        let lease = Lease { shared: shared.clone(), thread: Mutex::new(None) };
        if thread {
            let thread = super::spawn("rdma-lease", move || shared.renew_until_stopped())
                .map_err(|e| Status::os("starting the thread of a lease", &e))?;
            *lease.thread.lock() = Some(thread);
        }
        Ok(lease)
    }

    /// Its number, as long as it is held.
    pub fn id(&self) -> Result<LeaseId, Status> {
        self.shared.still_held().map(|_| self.shared.id)
    }
}

impl Lease {
    /// Renews one that no thread renews.
    pub fn renew(&self, until: Until<'_>) -> Result<(), Status> {
        self.shared.renew(until)
    }

    /// Renews it no more; false: nobody did.
    pub(super) fn let_go(&self) -> bool {
        let Some(thread) = self.thread.lock().take() else { return false };
        self.shared.stop.stop();
        self.shared.kind.nudge();
        thread.join();
        true
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.let_go() {
            return self.shared.kind.forget(self.shared.id);
        }
        let Ok(stop) = Stop::new() else { return };
        let until = Until::after(Some(FAREWELL.min(self.shared.ttl)), &stop);
        if let Err(status) = self.shared.kind.release(self.shared.id, until) {
            log::info(format_args!("a lease ends by its time: {status}"));
        }
    }
}

/// The keys that were written under leases of this process, for kinds that do not keep them themselves. Each has the number of
/// the write that put it there: a write or deletion by somebody else takes it out only if nobody has put it there since.
#[derive(Default)]
pub struct LeasedKeys(Mutex<Keys>);

#[derive(Default)]
struct Keys {
    writes: u64,
    leases: HashMap<LeaseId, HashMap<Box<[u8]>, u64>>,
}

impl LeasedKeys {
    /// A lease begins, or goes on.
    pub fn begin(&self, id: LeaseId) -> Result<(), Status> {
        let leases = &mut self.0.lock().leases;
        crate::room::grow(leases, 1, "leases")?;
        leases.entry(id).or_default();
        Ok(())
    }

    /// These keys are about to be written under this lease, or have just been.
    pub fn add<'a>(&self, id: LeaseId, keys: impl Iterator<Item = &'a [u8]>) -> Result<(), Status> {
        let Keys { writes, leases } = &mut *self.0.lock();
        *writes += 1;
        crate::room::grow(leases, 1, "leases")?;
        let held = leases.entry(id).or_default();
        for key in keys {
            crate::room::grow(held, 1, "keys of a lease")?;
            held.insert(crate::room::key(key)?, *writes);
        }
        Ok(())
    }

    /// The number of the last write.
    pub fn writes(&self) -> u64 {
        self.0.lock().writes
    }

    /// These keys were deleted, or written under no lease but `lease`: they are no keys of others, unless they were written
    /// under those after so many writes.
    pub fn part<'a>(
        &self,
        keys: impl Iterator<Item = &'a [u8]>,
        lease: Option<LeaseId>,
        writes: u64,
    ) {
        let mut all = self.0.lock();
        for key in keys {
            for held in all.leases.iter_mut().filter(|(id, _)| Some(**id) != lease) {
                if held.1.get(key).is_some_and(|write| *write <= writes) {
                    held.1.remove(key);
                }
            }
        }
    }

    /// The keys of a lease.
    pub fn keys(&self, id: LeaseId) -> Result<Vec<Box<[u8]>>, Status> {
        let all = self.0.lock();
        let mut copies = Vec::new();
        let Some(keys) = all.leases.get(&id) else { return Ok(copies) };
        crate::room::grow(&mut copies, keys.len(), "keys of a lease")?;
        for key in keys.keys() {
            copies.push(crate::room::key(key)?);
        }
        Ok(copies)
    }

    /// Whether a lease has begun, and not ended.
    pub fn has(&self, id: LeaseId) -> bool {
        self.0.lock().leases.contains_key(&id)
    }

    /// How many leases there are.
    #[cfg(test)]
    pub fn leases(&self) -> usize {
        self.0.lock().leases.len()
    }

    /// A lease has ended; its keys.
    pub fn end(&self, id: LeaseId) -> HashMap<Box<[u8]>, u64> {
        self.0.lock().leases.remove(&id).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key that one thread writes while another deletes it may be there: then its lease is to know it.
    #[test]
    fn a_key_that_is_written_again_stays() {
        let held = LeasedKeys::default();
        let key = || std::iter::once(&b"key"[..]);
        held.add(1, key()).unwrap();
        let before = held.writes();
        held.add(1, key()).unwrap();
        held.part(key(), None, before);
        assert_eq!(held.keys(1).unwrap().len(), 1);
        held.part(key(), Some(1), held.writes());
        assert_eq!(held.keys(1).unwrap().len(), 1);
        held.part(key(), Some(2), held.writes());
        assert!(held.keys(1).unwrap().is_empty());
    }
}
