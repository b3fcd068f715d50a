//! A counter that wakes whoever sleeps on its descriptor.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::local_fd::Local;

/// Takes the count of an eventfd or a timerfd.
pub(super) fn drain(fd: &impl AsRawFd) {
    let mut count = 0u64;
    // SAFETY: eight writable bytes. The descriptor does not block; it fails where there is nothing to take.
    unsafe { libc::read(fd.as_raw_fd(), (&raw mut count).cast(), 8) };
}

/// Readable from a signal on until it is drained. A forked child does not inherit it.
#[derive(Debug)]
pub struct EventFd(Local<OwnedFd>);

impl EventFd {
    /// Not signalled.
    pub fn new() -> io::Result<EventFd> {
        // SAFETY: no pointers.
        let rc = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        Ok(EventFd(Local::new(super::owned(rc)?)))
    }

    /// Makes it readable.
    pub fn signal(&self) {
        let one = 1u64;
        // SAFETY: eight readable bytes. A full counter, where it fails, is readable already.
        unsafe { libc::write(self.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Resets it.
    pub fn drain(&self) {
        drain(self);
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// The descriptor alone, which children inherit.
impl From<EventFd> for OwnedFd {
    fn from(event: EventFd) -> OwnedFd {
        event.0.into_inner()
    }
}
