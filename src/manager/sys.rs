//! System calls of the manager: epoll, eventfd, timerfd, and copying by address.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::engine::ChanId;
use crate::fabric::ProviderKind;
use crate::local_fd::Local;
use crate::observe::Trace;
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

/// An epoll set, and the trace that records who sleeps on it.
pub struct Epoll(Local<OwnedFd>, OnceLock<Arc<Trace>>);

fn check(what: &str, rc: libc::c_int) -> Result<libc::c_int, Status> {
    if rc < 0 { Err(Status::os(what, &io::Error::last_os_error())) } else { Ok(rc) }
}

fn own(what: &str, rc: libc::c_int) -> Result<OwnedFd, Status> {
    let fd = check(what, rc)?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl Epoll {
    /// An empty set.
    pub fn new() -> Result<Epoll, Status> {
        // SAFETY: no pointers.
        let fd = own("epoll_create1", unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        Ok(Epoll(Local::new(fd), OnceLock::new()))
    }

    /// From now on sleeps are recorded.
    pub fn record_sleeps(&self, trace: Arc<Trace>) {
        let _ = self.1.set(trace);
    }

    /// Waits for reading (and for the end) of a descriptor.
    pub fn add(&self, fd: RawFd, tag: Tag) -> Result<(), Status> {
        let events = (libc::EPOLLIN | libc::EPOLLRDHUP) as u32;
        let mut event = libc::epoll_event { events, u64: tag.to_u64() };
        let rc =
            // SAFETY: `event` lives through the call.
            unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
        check("epoll_ctl", rc).map(|_| ())
    }

    /// Forgets a descriptor.
    pub fn remove(&self, fd: RawFd) {
        // SAFETY: no event is needed to remove; failure means that it was not there.
        unsafe {
            libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut())
        };
    }

    /// Waits up to `timeout` and appends what is ready.
    pub fn wait(&self, timeout: Duration, out: &mut Vec<Tag>) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 32];
        // A fraction of a millisecond must not become a busy loop.
        let ms = timeout.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32;
        let trace = if ms > 0 { self.1.get() } else { None };
        let since = trace.and_then(|t| t.sleeps());
        // SAFETY: `events` is valid for its length.
        let n = unsafe {
            libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), events.len() as i32, ms)
        };
        let first = out.len();
        out.extend(events.iter().take(n.max(0) as usize).map(|e| Tag::from_u64(e.u64)));
        if let Some(trace) = trace {
            trace.slept(since, out.get(first).map_or("time", |tag| tag.name()));
        }
    }

    /// The descriptor itself.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A counter that wakes an epoll set.
pub struct EventFd(Local<File>);

impl EventFd {
    /// Not signalled.
    pub fn new() -> Result<EventFd, Status> {
        // SAFETY: no pointers.
        let rc = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        Ok(EventFd(Local::new(File::from(own("eventfd", rc)?))))
    }

    /// Signals.
    pub fn signal(&self) {
        // A full counter is signalled already.
        let _ = (&*self.0).write(&1u64.to_ne_bytes());
    }

    /// Resets.
    pub fn drain(&self) {
        let _ = (&*self.0).read(&mut [0; 8]);
    }

    /// The descriptor itself.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A timer that wakes an epoll set.
pub struct TimerFd(Local<OwnedFd>);

impl TimerFd {
    /// Not set.
    pub fn new() -> Result<TimerFd, Status> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: no pointers.
        let rc = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        Ok(TimerFd(Local::new(own("timerfd_create", rc)?)))
    }

    /// Fires once after `after`; this also resets it.
    pub fn set(&self, after: Duration) {
        let after = after.max(Duration::from_nanos(1));
        let it_value = libc::timespec {
            tv_sec: after.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: i64::from(after.subsec_nanos()),
        };
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = libc::itimerspec { it_interval: zero, it_value };
        // SAFETY: `spec` lives through the call; the old value is not asked for.
        unsafe { libc::timerfd_settime(self.0.as_raw_fd(), 0, &spec, std::ptr::null_mut()) };
    }

    /// The descriptor itself.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
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
