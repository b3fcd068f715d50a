//! What ends the calls of a view: a flag, and a descriptor that is readable from then on, so that whoever sleeps on
//! sockets sleeps on it as well.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::os::EventFd;
use crate::status::{Code, Reason, Status};

/// A silent bell.
pub fn bell() -> Result<EventFd, Status> {
    EventFd::new().map_err(|e| Status::os("eventfd of a store", &e))
}

/// What a descriptor is waited for, and what came.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// The descriptor.
    pub fd: RawFd,
    /// Readable, or ended.
    pub read: bool,
    /// Writable, or ended.
    pub write: bool,
}

impl Look {
    fn poll(&self) -> libc::pollfd {
        let events = (if self.read { libc::POLLIN } else { 0 })
            | (if self.write { libc::POLLOUT } else { 0 });
        // One that nothing is waited for is left out: its end would be told again and again.
        let fd = if events == 0 { -1 } else { self.fd };
        libc::pollfd { fd, events, revents: 0 }
    }
}

/// Sleeps until one of them is ready, at most so long (`None`: for ever). What is left of `read` and `write` is so.
pub fn ready<const N: usize>(looks: &mut [Look; N], time: Option<Duration>) {
    let mut fds = looks.each_ref().map(Look::poll);
    // A fraction of a millisecond must not become a busy loop.
    let ms = time.map_or(-1, |t| t.as_nanos().div_ceil(1_000_000).min(1 << 30) as libc::c_int);
    // SAFETY: an array of that length. A signal ends it early, as if nothing was ready.
    let found = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, ms) };
    for (look, fd) in looks.iter_mut().zip(&fds) {
        let ended = fd.revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0;
        let got = |event| found > 0 && (fd.revents & event != 0 || ended);
        look.read &= got(libc::POLLIN);
        look.write &= got(libc::POLLOUT);
    }
}

/// What ends the calls of one view, once.
pub struct Stop {
    stopped: AtomicBool,
    bell: EventFd,
}

impl Stop {
    /// Nothing is stopped yet.
    pub fn new() -> Result<Stop, Status> {
        Ok(Stop { stopped: AtomicBool::new(false), bell: bell()? })
    }

    /// Stops.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.bell.signal();
    }

    /// An error if it is stopped.
    pub fn check(&self) -> Result<(), Status> {
        if self.stopped.load(Ordering::Acquire) {
            let status = Status::new(Code::Cancelled, "the store was destroyed");
            return Err(status.because(Reason::Cancelled));
        }
        Ok(())
    }

    /// Sleeps so long. An error if it is stopped.
    pub fn sleep(&self, time: Duration) -> Result<(), Status> {
        ready(&mut [self.look()], Some(time));
        self.check()
    }

    /// To be waited for beside other descriptors.
    pub fn look(&self) -> Look {
        Look { fd: self.bell.as_raw_fd(), read: true, write: false }
    }
}
