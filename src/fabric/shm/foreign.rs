//! What came from other processes and must be let go of: descriptors, and mappings of their files.
//!
//! Closing a descriptor can take as long as its maker wants: a socket that lingers, a file of a slow or
//! hostile file system. The same is true of a socket in whose queue such descriptors wait, and of the
//! last reference to a file with much memory. So nothing of this kind is closed by whoever drops it,
//! unless it is known to be harmless; it goes to a thread that does nothing else. While much waits there,
//! nobody is let in who may bring more, and what others bring is left where it is for a while; who brings more after
//! that is turned away.

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::sys::{self, Mapping};
use crate::limits::{SHM_CLOSING, SHM_SEGMENTS};
use crate::local_fd::Local;
use crate::room::Grows;

/// Files up to this size are closed at once.
const SMALL: u64 = 2 << 20;
/// How long an adapter that ends waits for what is still to be closed; and how long one that goes on does, before it turns away
/// who brings more.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// What is to be let go of; its drop may take long.
#[derive(Debug)]
enum Waste {
    Fd { _fd: OwnedFd },
    Map { _map: Mapping },
}

#[derive(Debug, Default)]
struct Queue {
    waste: VecDeque<Waste>,
    /// How many of these are descriptors.
    fds: usize,
    /// Since when they are as many as may wait.
    full: Option<Instant>,
    /// A thread is at it.
    running: bool,
}

/// Lets go of things on a thread of its own, which exists only while there are some.
#[derive(Debug, Default)]
pub(crate) struct Closer {
    queue: Mutex<Queue>,
    rested: Condvar,
}

impl Closer {
    /// Whether so much waits that nothing should be added.
    pub(crate) fn is_full(&self) -> bool {
        self.queue.lock().fds >= SHM_CLOSING
    }

    /// Whether that has lasted for longer than a thread takes that is not held up.
    pub(crate) fn is_stuck(&self) -> bool {
        self.queue.lock().full.is_some_and(|since| since.elapsed() > LAST_WAIT)
    }

    fn give(self: &Arc<Closer>, waste: Waste) {
        let mut queue = self.queue.lock();
        let is_fd = matches!(waste, Waste::Fd { .. });
        if !is_fd && queue.waste.len() >= SHM_SEGMENTS {
            // It takes time, but as much as its size says, and nobody can hold it up.
            drop(queue);
            return drop(waste);
        }
        if !queue.waste.fits(1) {
            // As without a thread.
            return std::mem::forget(waste);
        }
        queue.waste.push_back(waste);
        queue.fds += usize::from(is_fd);
        if queue.fds >= SHM_CLOSING {
            queue.full.get_or_insert_with(Instant::now);
        }
        if queue.running {
            return;
        }
        let own = self.clone();
        // Without a thread everything waits for the next call: better a descriptor less than a manager
        // that stands still.
        queue.running = sys::spawn_quiet("rdma-closer", move || own.run()).is_ok();
    }

    /// As if its thread were held up for ever; how much waits.
    #[cfg(test)]
    pub(crate) fn held_up(&self) -> usize {
        let mut queue = self.queue.lock();
        queue.running = true;
        queue.waste.len()
    }

    fn run(&self) {
        let mut queue = self.queue.lock();
        while let Some(waste) = queue.waste.pop_front() {
            queue.fds -= usize::from(matches!(waste, Waste::Fd { .. }));
            if queue.fds < SHM_CLOSING {
                queue.full = None;
            }
            drop(queue);
            drop(waste);
            queue = self.queue.lock();
        }
        queue.running = false;
        self.rested.notify_all();
    }

    /// Waits until everything is closed, but not for what somebody holds up on purpose.
    pub(crate) fn rest(&self) {
        let end = Instant::now() + LAST_WAIT;
        let mut queue = self.queue.lock();
        while queue.running && !self.rested.wait_until(&mut queue, end).timed_out() {}
    }
}

/// A descriptor that another process has made, or in whose queue it can put some.
#[derive(Debug)]
pub(crate) struct Foreign {
    fd: ManuallyDrop<Local<OwnedFd>>,
    closer: Arc<Closer>,
}

impl Foreign {
    pub(crate) fn new(fd: OwnedFd, closer: &Arc<Closer>) -> Foreign {
        Foreign { fd: ManuallyDrop::new(Local::new(fd)), closer: closer.clone() }
    }

    /// Who closes what comes through it.
    pub(crate) fn closer(&self) -> &Arc<Closer> {
        &self.closer
    }
}

impl Deref for Foreign {
    type Target = OwnedFd;
    fn deref(&self) -> &OwnedFd {
        &self.fd
    }
}

impl AsRawFd for Foreign {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: taken once, here, and not used afterwards.
        let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
        if fd.is_ours() && !is_harmless(&fd) {
            self.closer.give(Waste::Fd { _fd: fd.into_inner() });
        }
    }
}

/// Whether closing it takes no time.
fn is_harmless(fd: &OwnedFd) -> bool {
    match sys::looked_at(fd) {
        Ok(Ok(len)) => len <= SMALL,
        _ => sys::is_eventfd(fd).unwrap_or(false) || super::socket::shut_and_empty(fd),
    }
}

/// Another process's file, mapped for reading.
#[derive(Debug)]
pub(crate) struct ForeignMap {
    map: ManuallyDrop<Mapping>,
    closer: Arc<Closer>,
}

impl ForeignMap {
    /// Maps the first `len` bytes, and lets go of the descriptor.
    pub(crate) fn open(fd: Foreign, len: usize) -> io::Result<ForeignMap> {
        let map = Mapping::shared(sys::borrow(&fd), len, false)?;
        let closer = fd.closer.clone();
        let mut fd = ManuallyDrop::new(fd);
        // SAFETY: both parts are taken once; the value itself is never dropped. The mapping holds on to
        // the file, which is a memfd, so that this is not its last close.
        unsafe {
            drop(ManuallyDrop::take(&mut fd.fd));
            std::ptr::drop_in_place(&raw mut fd.closer);
        }
        Ok(ForeignMap { map: ManuallyDrop::new(map), closer })
    }
}

impl Deref for ForeignMap {
    type Target = Mapping;
    fn deref(&self) -> &Mapping {
        &self.map
    }
}

impl Drop for ForeignMap {
    fn drop(&mut self) {
        // SAFETY: taken once, here, and not used afterwards.
        let map = unsafe { ManuallyDrop::take(&mut self.map) };
        if map.len() as u64 > SMALL {
            self.closer.give(Waste::Map { _map: map });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::fabric::shm::socket;
    use crate::os::EventFd;

    /// A TCP socket whose close takes ten seconds.
    fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        ours.set_nonblocking(true).unwrap();
        while ours.write(&[0; 65536]).is_ok() {}
        let linger = libc::linger { l_onoff: 1, l_linger: 10 };
        let (at, len) = ((&raw const linger).cast(), size_of_val(&linger) as u32);
        let fd = ours.as_raw_fd();
        // SAFETY: a valid option value.
        let rc = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, at, len) };
        assert_eq!(rc, 0);
        (ours, theirs)
    }

    #[test]
    fn r13_who_drops_a_foreign_descriptor_does_not_wait_for_it() {
        let closer = Arc::new(Closer::default());
        // Held by this process; and in the queue of a socket of ours.
        for queued in [false, true] {
            // A child that a test beside this one forks has it, too, for a moment: then this is not the last close.
            let takes_its_time = (0..5).any(|_| {
                let (ours, theirs) = lingering();
                let (one, other) = socket::pair().unwrap();
                if queued {
                    socket::send(&other, b"here", &[ours.as_raw_fd()]).unwrap();
                    drop(ours);
                    drop(Foreign::new(one, &closer));
                } else {
                    drop(Foreign::new(ours.into(), &closer));
                }
                let running = closer.queue.lock().running;
                // The other end's end lets it go.
                drop(theirs);
                while closer.queue.lock().running {
                    std::thread::yield_now();
                }
                running
            });
            // It was being closed after the drop: otherwise this test shows nothing.
            assert!(takes_its_time, "queued: {queued}");
        }
    }

    #[test]
    fn what_is_harmless_needs_no_thread() {
        let closer = Arc::new(Closer::default());
        let (one, other) = socket::pair().unwrap();
        socket::send(&one, b"out", &[]).unwrap();
        drop(Foreign::new(one, &closer));
        assert!(!is_harmless(&other), "a message waits there");
        let (one, _other) = socket::pair().unwrap();
        let memory = sys::memfd(c"small", 4096).unwrap();
        for fd in [one, OwnedFd::from(EventFd::new().unwrap()), memory] {
            drop(Foreign::new(fd, &closer));
            assert!(!closer.queue.lock().running);
        }
        // An empty message has a descriptor, too.
        let (one, other) = socket::pair().unwrap();
        socket::send(&other, b"", &[other.as_raw_fd()]).unwrap();
        assert!(!is_harmless(&one));
    }
}
