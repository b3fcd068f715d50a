//! What the manager sleeps on, and copying by address.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::engine::ChanId;
use crate::fabric::ProviderKind;
use crate::observe::Trace;
use crate::os::epoll;
use crate::status::Status;

/// What a descriptor in the epoll set stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// The manager's own wake-up.
    Wake,
    /// The handshakes.
    Boot,
    /// The adapter of this provider number.
    Adapter(u8),
    /// The liveness socket of a channel.
    Alive(ChanId),
}

impl Tag {
    fn to_u64(self) -> u64 {
        match self {
            Tag::Wake => 0,
            Tag::Boot => 1,
            Tag::Adapter(k) => 2 + u64::from(k),
            Tag::Alive(ch) => 1 << 32 | u64::from(ch),
        }
    }

    /// As a trace calls it.
    fn name(self) -> &'static str {
        match self {
            Tag::Wake => "a call or a timer",
            Tag::Boot => "a handshake",
            Tag::Adapter(kind) => ProviderKind::from_u8(kind).map_or("an adapter", |k| k.name()),
            Tag::Alive(_) => "the end of a peer",
        }
    }

    fn from_u64(n: u64) -> Tag {
        match n {
            0 => Tag::Wake,
            1 => Tag::Boot,
            n if n >> 32 == 1 => Tag::Alive(n as u32),
            n => Tag::Adapter((n - 2) as u8),
        }
    }
}

/// What the manager's descriptors are watched for.
const INPUT: u32 = epoll::READ | epoll::END;

/// A set of what wakes the manager, and the trace that records who sleeps on it.
pub struct Epoll {
    set: epoll::Epoll,
    trace: OnceLock<Arc<Trace>>,
}

impl Epoll {
    /// An empty set.
    pub fn new() -> Result<Epoll, Status> {
        let set = epoll::Epoll::new().map_err(|e| Status::os("epoll_create1", &e))?;
        Ok(Epoll { set, trace: OnceLock::new() })
    }

    /// From now on sleeps are recorded.
    pub fn record_sleeps(&self, trace: Arc<Trace>) {
        let _ = self.trace.set(trace);
    }

    /// Waits for reading (and for the end) of a descriptor.
    pub fn add(&self, fd: RawFd, tag: Tag) -> Result<(), Status> {
        self.set.add(&fd, INPUT, tag.to_u64()).map_err(|e| Status::os("epoll_ctl", &e))
    }

    /// Forgets a descriptor.
    pub fn remove(&self, fd: RawFd) {
        // Failure means that it was not there.
        let _ = self.set.remove(&fd);
    }

    /// Waits up to `timeout` and appends what is ready.
    pub fn wait(&self, timeout: Duration, out: &mut Vec<Tag>) {
        let trace = if timeout.is_zero() { None } else { self.trace.get() };
        let since = trace.and_then(|t| t.sleeps());
        let first = out.len();
        if let Ok(ready) = self.set.wait(timeout, &mut [epoll::EMPTY; 32]) {
            out.extend(ready.map(Tag::from_u64));
        }
        if let Some(trace) = trace {
            trace.slept(since, out.get(first).map_or("time", |tag| tag.name()));
        }
    }

    /// The descriptor, for the application.
    pub fn give(&self) -> RawFd {
        self.set.give()
    }

    /// The descriptor itself.
    pub fn fd(&self) -> RawFd {
        self.set.as_raw_fd()
    }
}

/// Copies `len` bytes.
///
/// # Safety
/// Both ranges are valid and do not overlap.
#[inline(always)]
pub unsafe fn copy(dst: u64, src: u64, len: u64) {
    // SAFETY: by this function's contract.
    unsafe { crate::few::copy(src as *const u8, dst as *mut u8, len as usize) };
}

/// Bytes of main memory, the bound of what the library allocates itself.
pub fn physical_memory() -> usize {
    usize::try_from(crate::fabric::shm::sys::physical_memory()).unwrap_or(usize::MAX)
}
