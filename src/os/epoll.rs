//! Epoll sets.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use crate::local_fd::Local;

/// Watched for input; an error or the end of both directions is always told.
pub const READ: u32 = libc::EPOLLIN as u32;
/// For room to write.
pub const WRITE: u32 = libc::EPOLLOUT as u32;
/// For the end of input.
pub const END: u32 = libc::EPOLLRDHUP as u32;

/// What tells that the far end is gone, or takes no more.
pub const ENDED: u32 = END | (libc::EPOLLHUP | libc::EPOLLERR) as u32;

/// A place for one descriptor that is ready.
pub type Place = libc::epoll_event;
/// Such a place before [`Epoll::wait`].
pub const EMPTY: Place = Place { events: 0, u64: 0 };

/// A descriptor of an empty set, which a forked child inherits. Makes no call but that to the system.
pub(crate) fn empty() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    super::owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
}

/// A level-triggered set of descriptors, each with a key. A forked child does not inherit it.
#[derive(Debug)]
pub struct Epoll(Local<OwnedFd>);

impl Epoll {
    /// An empty set.
    pub fn new() -> io::Result<Epoll> {
        Ok(Epoll(Local::new(empty()?)))
    }

    /// The descriptor, for the application, whose number stays taken in a forked child.
    pub fn give(&self) -> RawFd {
        self.0.give()
    }

    fn control(&self, op: libc::c_int, fd: RawFd, interest: u32, key: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: interest, u64: key };
        // SAFETY: `event` lives through the call; bad descriptors are an error.
        super::check(unsafe { libc::epoll_ctl(self.as_raw_fd(), op, fd, &mut event) }).map(drop)
    }

    /// Watches a descriptor for some of [`READ`], [`WRITE`] and [`END`].
    pub fn add(&self, fd: &impl AsRawFd, interest: u32, key: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd.as_raw_fd(), interest, key)
    }

    /// Watches one that is in the set for something else.
    pub fn modify(&self, fd: &impl AsRawFd, interest: u32, key: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd.as_raw_fd(), interest, key)
    }

    /// Forgets a descriptor that stays open; an error where it is not in the set.
    pub fn remove(&self, fd: &impl AsRawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd.as_raw_fd(), 0, 0)
    }

    /// Waits up to `timeout` until something is ready: the keys of as many as there are places. A signal ends it early, with
    /// an error.
    pub fn wait<'a>(
        &self,
        timeout: Duration,
        places: &'a mut [Place],
    ) -> io::Result<impl ExactSizeIterator<Item = u64> + use<'a>> {
        Ok(self.wait_told(timeout, places)?.map(|(key, _)| key))
    }

    /// The same, and of each what it is ready for.
    pub fn wait_told<'a>(
        &self,
        timeout: Duration,
        places: &'a mut [Place],
    ) -> io::Result<impl ExactSizeIterator<Item = (u64, u32)> + use<'a>> {
        // A fraction of a millisecond must not become a busy loop.
        let ms = timeout.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as libc::c_int;
        let room = places.len().min(i32::MAX as usize) as libc::c_int;
        // SAFETY: there are `room` places.
        let n = unsafe { libc::epoll_wait(self.as_raw_fd(), places.as_mut_ptr(), room, ms) };
        let n = super::check(n)? as usize;
        Ok(places[..n].iter().map(|place| (place.u64, place.events)))
    }

    /// What is ready now; nothing if that cannot be said.
    pub fn ready<'a>(&self, places: &'a mut [Place]) -> impl Iterator<Item = u64> + use<'a> {
        self.wait(Duration::ZERO, places).into_iter().flatten()
    }
}

impl AsRawFd for Epoll {
    /// Readable when something in the set is ready.
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::EventFd;

    #[test]
    fn keys_of_what_is_ready() {
        let (set, one, two) =
            (Epoll::new().unwrap(), EventFd::new().unwrap(), EventFd::new().unwrap());
        set.add(&one, READ, 1).unwrap();
        set.add(&two, READ, u64::MAX).unwrap();
        let ready = |room: usize| {
            let mut places = [EMPTY; 4];
            let mut keys: Vec<u64> = set.ready(&mut places[..room]).collect();
            keys.sort_unstable();
            keys
        };
        assert!(ready(4).is_empty());
        one.signal();
        two.signal();
        assert_eq!(ready(4), [1, u64::MAX]);
        assert_eq!(ready(1).len(), 1);
        set.modify(&two, 0, 2).unwrap();
        assert_eq!(ready(4), [1]);
        set.modify(&two, READ | WRITE, 2).unwrap();
        assert_eq!(ready(4), [1, 2]);
        one.drain();
        assert_eq!(ready(4), [2]);
        set.remove(&two).unwrap();
        assert!(ready(4).is_empty());
        assert!(set.remove(&two).is_err());
    }
}
