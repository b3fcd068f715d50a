//! A timer that wakes whoever sleeps on its descriptor.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use super::eventfd::drain;
use crate::local_fd::Local;

/// Readable some time after it was set, until it is drained or set again. A forked child does not inherit it.
#[derive(Debug)]
pub struct TimerFd(Local<OwnedFd>);

impl TimerFd {
    /// Not set.
    pub fn new() -> io::Result<TimerFd> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: no pointers.
        let rc = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        Ok(TimerFd(Local::new(super::owned(rc)?)))
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
        unsafe { libc::timerfd_settime(self.as_raw_fd(), 0, &spec, std::ptr::null_mut()) };
    }

    /// Resets it.
    pub fn drain(&self) {
        drain(self);
    }
}

impl AsRawFd for TimerFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
