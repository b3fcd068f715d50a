//! Receive buffers: shared by all endpoints through a shared receive queue, or each queue pair its
//! own where the device has none.

use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::*;
use smallvec::SmallVec;

use crate::status::Status;

use super::ledger::Ledger;
use super::mr::{Pd, Slab};
use super::qp::Qp;
use super::{log_failure, sys};

/// Bytes of a receive buffer, the longest SEND: 8 KiB and room for a message's header.
pub(super) const BUFFER: usize = 8192 + 512;
/// Buffers per slab.
const PER_SLAB: usize = 32;
/// SENDs and WRITEs WITH IMMEDIATE under way to one endpoint.
pub(super) const DEPTH: u32 = 64;
/// Shared buffers posted from the start, and more of them for each endpoint. One endpoint may fill
/// `DEPTH`; that all do at once while nothing is polled is rare, and then senders wait.
const SHARED_BASE: u32 = 128;
const SHARED_PER_ENDPOINT: u32 = 4;
/// Most shared buffers.
pub(super) const SHARED_MAX: u32 = 4096;
/// Shared buffers are posted again in chains of at least this many, or when there is nothing else to do.
const REPOST_AT: usize = 16;
/// Work requests posted in one call.
const CHAIN: usize = 32;

/// A shared receive queue.
pub(super) struct Srq {
    raw: NonNull<ibv_srq>,
    pd: Arc<Pd>,
}

// SAFETY: libibverbs' functions on a shared receive queue may be called from any thread.
unsafe impl Send for Srq {}
// SAFETY: as above, also at the same time.
unsafe impl Sync for Srq {}

impl Srq {
    /// A queue for `depth` receives.
    pub fn new(pd: &Arc<Pd>, depth: u32) -> Result<Arc<Srq>, Status> {
        // SAFETY: all zeroes is a valid value of this plain struct.
        let mut a: ibv_srq_init_attr = unsafe { std::mem::zeroed() };
        a.attr.max_wr = depth;
        a.attr.max_sge = 1;
        // SAFETY: the domain lives, and the queue keeps it alive.
        let raw = unsafe { (pd.context().verbs().create_srq)(pd.raw(), &mut a) };
        let raw = NonNull::new(raw).ok_or_else(|| {
            Status::os(format!("shared receive queue of depth {depth}"), &sys::last_error())
        })?;
        Ok(Arc::new(Srq { raw, pd: pd.clone() }))
    }
    /// The C object.
    pub fn raw(&self) -> *mut ibv_srq {
        self.raw.as_ptr()
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        if self.pd.context().forked() {
            return;
        }
        // SAFETY: its queue pairs held an Arc to it and are gone.
        if unsafe { (self.pd.context().verbs().destroy_srq)(self.raw()) } != 0 {
            log_failure("destroy shared receive queue", self.pd.context().name());
        }
    }
}

/// All receive buffers of an adapter.
pub(super) struct RecvPool {
    ledger: Ledger,
    /// Shared buffers that should be posted.
    target: u32,
    /// Shared buffers that took the place of lost ones. A device may never give the place itself back.
    replaced: u32,
    // The queue first: when it is gone, nothing writes into the slabs.
    srq: Option<Arc<Srq>>,
    depth: u32,
    posted: u32,
    /// Buffers handed out by the last poll, due to be posted again; the queue pair's number for
    /// those of its own.
    held: Vec<(u32, u32)>,
    free: Vec<u32>,
    slabs: Vec<Slab>,
    /// Buffers of queue pairs with their own receive queue: (queue pair, buffer).
    own: Vec<(u32, u32)>,
    pd: Arc<Pd>,
}

impl RecvPool {
    /// A pool with a shared queue of up to `max_srq_wr`, or none if that is 0.
    pub fn new(pd: &Arc<Pd>, max_srq_wr: u32) -> Result<RecvPool, Status> {
        let depth = max_srq_wr.min(SHARED_MAX);
        let srq = if depth > 0 { Some(Srq::new(pd, depth)?) } else { None };
        let mut pool = RecvPool {
            ledger: Ledger::default(),
            target: 0,
            replaced: 0,
            srq,
            depth,
            posted: 0,
            held: Vec::new(),
            free: Vec::new(),
            slabs: Vec::new(),
            own: Vec::new(),
            pd: pd.clone(),
        };
        pool.grow(SHARED_BASE)?;
        Ok(pool)
    }

    /// The shared queue.
    pub fn srq(&self) -> Option<&Arc<Srq>> {
        self.srq.as_ref()
    }
    /// Most receives that one completion queue can get.
    pub fn capacity(&self) -> u32 {
        if self.srq.is_some() { self.depth } else { 0 }
    }
    /// Bytes at buffer `index`.
    pub fn bytes(&self, index: u32) -> *const u8 {
        self.address(index)
    }
    fn address(&self, index: u32) -> *mut u8 {
        self.slabs[index as usize / PER_SLAB].at(index as usize % PER_SLAB * BUFFER)
    }
    /// Whether there is a buffer of this number.
    pub fn has(&self, index: u32) -> bool {
        (index as usize) < self.slabs.len() * PER_SLAB
    }

    fn take(&mut self) -> Result<u32, Status> {
        if self.free.is_empty() {
            let slab = Slab::new(&self.pd, PER_SLAB * BUFFER)?;
            let first = (self.slabs.len() * PER_SLAB) as u32;
            self.slabs.push(slab);
            self.free.extend((first..first + PER_SLAB as u32).rev());
        }
        self.free.pop().ok_or_else(|| Status::internal("no receive buffer"))
    }

    /// Posts shared buffers until `target` are.
    fn grow(&mut self, target: u32) -> Result<(), Status> {
        let target = target.min(self.depth);
        self.target = self.target.max(target);
        while self.posted < target {
            let index = self.take()?;
            self.held.push((index, 0));
            self.posted += 1;
        }
        self.repost(|_| None)
    }

    /// Makes room for one more endpoint, the `count`th.
    pub fn add_endpoint(&mut self, qp: &Qp, count: u32) -> Result<(), Status> {
        if self.srq.is_some() {
            return self.grow(SHARED_BASE + count * SHARED_PER_ENDPOINT);
        }
        for _ in 0..DEPTH {
            let index = self.take()?;
            self.own.push((qp.number(), index));
            self.post_own(index, qp)?;
        }
        Ok(())
    }

    /// Takes back the buffers of a destroyed queue pair.
    pub fn remove_endpoint(&mut self, qpn: u32) {
        if self.srq.is_some() {
            self.ledger.ended(self.target);
        }
        self.held.retain(|&(_, owner)| owner != qpn || owner == 0);
        let free = &mut self.free;
        self.own.retain(|&(owner, index)| {
            if owner == qpn {
                free.push(index);
            }
            owner != qpn
        });
    }

    /// Buffer `index` completed at queue pair `qpn`; it is posted again by the next `repost`.
    pub fn hold(&mut self, index: u32, qpn: u32) {
        if self.srq.is_none() {
            self.held.push((index, qpn));
            return;
        }
        if !self.ledger.completed(index) {
            // It was replaced, so there is one more now, if there is room.
            if self.posted >= self.depth {
                return;
            }
            self.posted += 1;
        }
        self.held.push((index, 0));
    }

    /// Puts fresh buffers in place of those that ended connections took with them.
    fn replace_lost(&mut self) {
        let lost = self.ledger.lost(self.target);
        let room = self.depth.saturating_sub(self.target + self.replaced);
        let count = lost.min(room);
        if count == 0 {
            return;
        }
        crate::log::info(format_args!(
            "{}: {lost} receive buffers were lost with ended connections, {count} are replaced",
            self.pd.context().name()
        ));
        self.replaced += count;
        self.posted = self.posted.saturating_sub(count);
        if let Err(e) = self.grow(self.target) {
            crate::log::warn(format_args!("{}: {}", self.pd.context().name(), e.message));
        }
    }

    /// Buffers that wait to be posted again.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Whether they have to be posted now: enough for a good chain, or the only ones that there are.
    pub fn is_due(&self) -> bool {
        self.held.len() >= REPOST_AT || (self.srq.is_none() && !self.held.is_empty())
    }

    /// Posts what is held. `qp` finds a queue pair by its number.
    pub fn repost<'a>(&mut self, qp: impl Fn(u32) -> Option<&'a Qp>) -> Result<(), Status> {
        if self.held.is_empty() {
            return Ok(());
        }
        let held = std::mem::take(&mut self.held);
        let mut result = Ok(());
        if self.srq.is_some() {
            for part in held.chunks(CHAIN) {
                match self.post_shared(part) {
                    Ok(()) => part.iter().for_each(|b| self.ledger.posted(b.0)),
                    Err(e) => result = Err(e),
                }
            }
        } else {
            for &(index, qpn) in &held {
                if let Some(qp) = qp(qpn) {
                    // A queue pair in error refuses; its buffers come back when it is destroyed.
                    let _ = self.post_own(index, qp);
                }
            }
        }
        // Keeps the allocation.
        self.held = held;
        self.held.clear();
        if result.is_ok() && self.ledger.is_due() {
            self.replace_lost();
        }
        result
    }

    fn request(&self, index: u32) -> (ibv_recv_wr, ibv_sge) {
        let lkey = self.slabs[index as usize / PER_SLAB].lkey();
        let sge = ibv_sge { addr: self.address(index) as u64, length: BUFFER as u32, lkey };
        // SAFETY: all zeroes is a valid value of this plain struct.
        let mut wr: ibv_recv_wr = unsafe { std::mem::zeroed() };
        wr.wr_id = super::RECV_BIT | u64::from(index);
        wr.num_sge = 1;
        (wr, sge)
    }

    fn post_shared(&self, part: &[(u32, u32)]) -> Result<(), Status> {
        let Some(srq) = &self.srq else { return Ok(()) };
        let mut chain: SmallVec<[(ibv_recv_wr, ibv_sge); CHAIN]> =
            part.iter().map(|b| self.request(b.0)).collect();
        let first = chain.as_mut_ptr();
        for i in 0..part.len() {
            // SAFETY: inside the chain; the pointers are used only during this call.
            unsafe {
                let w = first.add(i);
                (*w).0.sg_list = &raw mut (*w).1;
                if i + 1 < part.len() {
                    (*w).0.next = &raw mut (*first.add(i + 1)).0;
                }
            }
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live queue and a NULL-terminated chain; the slabs outlive the queue.
        let rc = unsafe { ibv_post_srq_recv(srq.raw(), &raw mut (*first).0, &mut bad) };
        sys::check(rc).map_err(|e| Status::os("posting receives", &e))
    }

    fn post_own(&self, index: u32, qp: &Qp) -> Result<(), Status> {
        let (mut wr, mut sge) = self.request(index);
        wr.sg_list = &mut sge;
        // SAFETY: the slabs live until all queue pairs are gone.
        unsafe { qp.post_recv(&mut wr) }.map_err(|e| Status::os("posting a receive", &e))
    }
}
