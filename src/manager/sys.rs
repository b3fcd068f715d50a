//! What the manager sleeps on, and copying by address.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::engine::ChanId;
use crate::fabric::ProviderKind;
use crate::log;
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

/// How long a wait is that the system refuses.
const UNABLE: Duration = Duration::from_millis(1);

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
        match self.set.wait(timeout, &mut [epoll::EMPTY; 32]) {
            Ok(ready) => out.extend(ready.map(Tag::from_u64)),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => Self::unable(&e, timeout),
        }
        if let Some(trace) = trace {
            trace.slept(since, out.get(first).map_or("time", |tag| tag.name()));
        }
    }

    /// The system does not let this process wait, as where a sandbox came later. Whoever waits looks again after a moment, which must
    /// not become a busy loop.
    #[cold]
    fn unable(e: &io::Error, timeout: Duration) {
        /// A process has one sandbox.
        static TOLD: AtomicBool = AtomicBool::new(false);
        if !TOLD.swap(true, Ordering::Relaxed) {
            log::warn(format_args!(
                "epoll_wait: {e}: what comes is looked for every {UNABLE:?} instead, which takes longer"
            ));
        }
        let time = timeout.min(UNABLE).as_nanos() as libc::c_long;
        let time = libc::timespec { tv_sec: 0, tv_nsec: time };
        // The standard library's sleep would panic where that is refused, too.
        // SAFETY: one valid time; what is left of it is not asked for.
        unsafe { libc::nanosleep(&time, std::ptr::null_mut()) };
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
    usize::try_from(crate::os::memory::physical_memory()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// A sandbox that came later refuses to wait: whoever waits takes no processor for it, and wakes in time.
    #[test]
    fn r41_a_wait_that_is_refused_is_no_busy_loop() {
        for errno in [libc::EPERM, libc::ENOSYS] {
            let waits = std::thread::spawn(move || {
                let set = Epoll::new().unwrap();
                crate::os::sandbox::refuse(libc::SYS_epoll_wait, errno);
                let (start, mut waits, mut tags) = (Instant::now(), 0, Vec::new());
                while start.elapsed() < Duration::from_millis(100) {
                    set.wait(Duration::from_secs(60), &mut tags);
                    waits += 1;
                }
                assert!(tags.is_empty());
                waits
            });
            let waits = waits.join().unwrap();
            assert!(waits <= 101, "{waits} times in 100 ms");
        }
    }
}
