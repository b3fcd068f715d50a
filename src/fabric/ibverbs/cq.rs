//! Completion channel and completion queues.

use std::ffi::c_void;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rdma_sys::*;

use crate::status::Status;

use super::adapter::CqSlot;
use super::device::Context;
use super::{log_failure, sys};

/// Completion events acknowledged at once: each acknowledgement takes a lock.
const ACK_BATCH: u32 = 64;

/// A descriptor that tells of completions.
pub(super) struct CompChannel {
    raw: NonNull<ibv_comp_channel>,
    context: Arc<Context>,
}

// SAFETY: libibverbs' functions on a completion channel may be called from any thread.
unsafe impl Send for CompChannel {}
// SAFETY: as above, also at the same time.
unsafe impl Sync for CompChannel {}

impl CompChannel {
    /// A new one, non-blocking.
    pub fn new(context: Arc<Context>) -> Result<Arc<CompChannel>, Status> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.verbs().create_comp_channel)(context.raw()) };
        let raw = NonNull::new(raw)
            .ok_or_else(|| Status::os("completion channel", &sys::last_error()))?;
        let channel = CompChannel { raw, context };
        set_nonblocking(channel.fd())?;
        Ok(Arc::new(channel))
    }

    /// Its descriptor.
    pub fn fd(&self) -> RawFd {
        // SAFETY: a live channel.
        unsafe { self.raw.as_ref().fd }
    }

    /// Takes the next event; the queue's number.
    fn next_event(&self) -> Option<usize> {
        let mut cq = std::ptr::null_mut();
        let mut id: *mut c_void = std::ptr::null_mut();
        let get = self.context.verbs().get_cq_event;
        // SAFETY: both outputs are valid; the channel does not block.
        let rc = unsafe { get(self.raw.as_ptr(), &mut cq, &mut id) };
        (rc == 0).then_some(id as usize)
    }

    /// Takes all events, so that the descriptor becomes readable only for new ones.
    pub fn drain(&self, queues: &[CqSlot]) {
        while let Some(id) = self.next_event() {
            if let Some(slot) = queues.iter().find(|s| s.id == id) {
                slot.cq.acknowledge_later();
            }
        }
    }
}

impl Drop for CompChannel {
    fn drop(&mut self) {
        if self.context.forked() {
            return;
        }
        // SAFETY: its queues held an Arc to it and are gone.
        if unsafe { (self.context.verbs().destroy_comp_channel)(self.raw.as_ptr()) } != 0 {
            log_failure("destroy completion channel", self.context.name());
        }
    }
}

/// Makes reads of a descriptor return at once.
pub(super) fn set_nonblocking(fd: RawFd) -> Result<(), Status> {
    // SAFETY: fcntl on a descriptor has no memory effects.
    let rc = unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
    if rc < 0 { Err(Status::os("fcntl", &sys::last_error())) } else { Ok(()) }
}

/// A completion queue.
pub(super) struct Cq {
    raw: NonNull<ibv_cq>,
    unacknowledged: AtomicU32,
    channel: Arc<CompChannel>,
}

// SAFETY: libibverbs' functions on a completion queue may be called from any thread.
unsafe impl Send for Cq {}
// SAFETY: as above, also at the same time: providers lock polling.
unsafe impl Sync for Cq {}

impl Cq {
    /// A queue for `entries`, number `id` of its owner.
    pub fn new(channel: &Arc<CompChannel>, entries: u32, id: usize) -> Result<Arc<Cq>, Status> {
        let context = &channel.context;
        // SAFETY: context and channel live; the number is only handed back.
        let raw = unsafe {
            (context.verbs().create_cq)(
                context.raw(),
                entries as i32,
                id as *mut c_void,
                channel.raw.as_ptr(),
                0,
            )
        };
        let raw = NonNull::new(raw).ok_or_else(|| {
            let what = text!("completion queue of {entries} entries");
            Status::os(what, &sys::last_error())
        })?;
        Ok(Arc::new(Cq { raw, unacknowledged: AtomicU32::new(0), channel: channel.clone() }))
    }

    /// The C object.
    pub fn raw(&self) -> *mut ibv_cq {
        self.raw.as_ptr()
    }

    /// Takes completions; how many.
    pub fn poll(&self, out: &mut [ibv_wc]) -> usize {
        // SAFETY: a live queue; room for `out.len()` completions.
        let n = unsafe { ibv_poll_cq(self.raw(), out.len() as i32, out.as_mut_ptr()) };
        // A negative number is a broken queue; the device tells of it by an asynchronous event.
        n.clamp(0, out.len() as i32) as usize
    }

    /// Asks for one event at the next completion.
    pub fn arm(&self) {
        // SAFETY: a live queue. A failure shows as a CQ_ERR event.
        unsafe { ibv_req_notify_cq(self.raw(), 0) };
    }

    fn acknowledge_later(&self) {
        let n = self.unacknowledged.fetch_add(1, Ordering::Relaxed) + 1;
        if n >= ACK_BATCH {
            self.acknowledge();
        }
    }

    fn acknowledge(&self) {
        let n = self.unacknowledged.swap(0, Ordering::Relaxed);
        // SAFETY: as many as were taken and not yet acknowledged.
        unsafe { (self.channel.context.verbs().ack_cq_events)(self.raw(), n) };
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        if self.channel.context.forked() {
            return;
        }
        // Destroying waits for all acknowledgements.
        self.acknowledge();
        // SAFETY: its queue pairs held an Arc to it and are gone.
        if unsafe { (self.channel.context.verbs().destroy_cq)(self.raw()) } != 0 {
            log_failure("destroy completion queue", self.channel.context.name());
        }
    }
}

/// A completion, without anything.
pub(super) fn empty_wc() -> ibv_wc {
    // SAFETY: all zeroes is a valid value of this plain struct.
    unsafe { std::mem::zeroed() }
}
