//! A WRITE or a READ: what is allowed in the target's memory, and the copy, here or as moves.

use std::sync::atomic::Ordering;

use parking_lot::RwLockReadGuard;

use super::endpoint::gone;
use super::hub::{End, Item};
use super::mail::Own;
use crate::bulk::Way;
use crate::fabric::moves::{MOVE_MAX, Move};
use crate::fabric::regions::{Refusal, RegionTable};
use crate::fabric::{Access, EpId, Remote};
use crate::status::Status;

/// Bytes copied under one lock.
const CHUNK: u64 = 1 << 20;

/// A WRITE or a READ.
pub(super) struct Rdma {
    read: bool,
    pub(super) wr: u64,
    local: u64,
    pub(super) len: u64,
    pub(super) done: u64,
    remote: Remote,
    /// Says at the target that it is in place, if it is to.
    pub(super) notice: Option<Own<Item>>,
    /// Tells it from all others of the adapter.
    pub(super) id: u64,
    /// A piece could not be moved.
    pub(super) failed: Option<Status>,
}

impl Rdma {
    pub(super) fn new(read: bool, wr: u64, local: u64, len: u64, remote: Remote) -> Rdma {
        Rdma { read, wr, local, len, done: 0, remote, notice: None, id: 0, failed: None }
    }

    /// Copies as far as `budget` lasts; true when done.
    pub(super) fn step(
        &mut self,
        remote: &End,
        budget: &mut u64,
        peer: &str,
    ) -> Result<bool, Status> {
        if self.len == 0 && self.remote.rkey != 0 {
            // No content is held to a key that it names.
            drop(self.allowed(remote, peer)?);
        }
        while self.done < self.len {
            if *budget == 0 {
                return Ok(false);
            }
            let n = (self.len - self.done).min(CHUNK).min(*budget);
            self.copy(remote, n, peer)?;
            *budget -= n;
            self.done += n;
            remote.pieces.fetch_add(1, Ordering::Relaxed);
        }
        Ok(true)
    }

    /// The regions of the target, held, if the operation is still allowed there.
    pub(super) fn allowed<'a>(
        &self,
        remote: &'a End,
        peer: &str,
    ) -> Result<RwLockReadGuard<'a, RegionTable>, Status> {
        let Remote { addr, rkey } = self.remote;
        let (what, need) = match self.read {
            true => ("READ", Access::REMOTE_READ),
            false => ("WRITE", Access::REMOTE_WRITE),
        };
        let refused = |why: Refusal| why.status(what, peer, addr, self.len, rkey);
        let regions = remote.hub.regions.read();
        if remote.closed.load(Ordering::SeqCst) {
            return Err(gone(peer));
        }
        // Each time the whole range, which cannot wrap then.
        regions.check(rkey, addr, self.len, need).map_err(refused)?;
        Ok(regions)
    }

    /// From where to where the next bytes go.
    fn way(&self) -> (u64, u64) {
        let (there, here) = (self.remote.addr + self.done, self.local + self.done);
        if self.read { (there, here) } else { (here, there) }
    }

    /// The next piece, to be moved without any lock; `None`: nothing is left.
    pub(super) fn piece(&self, remote: &End, peer: &str, ep: EpId) -> Result<Option<Move>, Status> {
        if self.done >= self.len {
            return Ok(None);
        }
        // Held until the move is in the table that whoever closes the region looks at.
        let _regions = self.allowed(remote, peer)?;
        let (from, to) = self.way();
        let n = (self.len - self.done).min(MOVE_MAX as u64) as usize;
        // SAFETY: one is in a region that is registered now, the other in the local memory of an
        // operation that has not ended.
        Ok(Some(unsafe { Move::copy(ep, 0, from, to, n, Way::to_place(self.len)) }))
    }

    fn copy(&self, remote: &End, n: u64, peer: &str) -> Result<(), Status> {
        let _regions = self.allowed(remote, peer)?;
        let (from, to) = self.way();
        // SAFETY: `there` is in a region that is registered while the lock is held, `here` in the
        // local memory of an operation that has not ended. They may overlap: both ends are here.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, n as usize) };
        Ok(())
    }
}
