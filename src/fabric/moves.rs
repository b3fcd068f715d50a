//! Moving content without the manager's lock.
//!
//! Memory of an application can take long to touch: a page of a file on slow storage, of swap, of
//! another process that serves its faults itself. So an adapter that was told so
//! ([`Adapter::leave_moves`](super::Adapter::leave_moves)) touches no content in `poll` or in a
//! post. It builds a [`Move`], a copy that needs nothing of the adapter any more; who drives the
//! adapter makes it without any lock, and reports it back.
//!
//! While a move runs, the memory that it touches is in a table of the process. Closing a region or
//! ending an endpoint does not wait for it; instead the memory's owner gets it back only when the
//! table no longer names it ([`touched`]): callbacks that return a buffer, the library's own
//! buffers, and `rdma_mem_unregister` wait for that. The table is the process's, not a manager's,
//! since on loopback one manager moves what another one owns.

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};

use super::EpId;
use super::shm::{Drain, Feed, Process};
use crate::bulk::{self, Way};
use crate::local_fd::Local;

/// Most bytes of one move: what a turn does between two looks at everything else.
pub const MOVE_MAX: usize = 512 << 10;

/// Addresses and lengths.
pub type Ranges = SmallVec<[(u64, u64); 2]>;

/// Memory that running moves touch.
static RUNNING: Mutex<Vec<(u64, Ranges)>> = Mutex::new(Vec::new());
/// How many there are, so that the usual answer costs nothing.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether a running move may touch a byte of this memory of the host. Exact for moves that were
/// begun before whatever closed their way to the memory.
#[inline(always)]
pub fn touched(addr: u64, len: u64) -> bool {
    len != 0 && COUNT.load(Ordering::Acquire) != 0 && is_among_running(addr, len)
}

#[inline(never)]
fn is_among_running(addr: u64, len: u64) -> bool {
    let meets = |&(a, n): &(u64, u64)| a < addr.saturating_add(len) && addr < a.saturating_add(n);
    RUNNING.lock().iter().any(|(_, ranges)| ranges.iter().any(meets))
}

/// Keeps memory in the table while it lives.
#[derive(Debug)]
pub struct Claim(u64);

impl Claim {
    /// These ranges: first bytes and lengths.
    pub fn new(ranges: Ranges) -> Claim {
        let mut running = RUNNING.lock();
        let id = running.last().map_or(0, |last| last.0 + 1);
        running.push((id, ranges));
        COUNT.store(running.len(), Ordering::Release);
        Claim(id)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut running = RUNNING.lock();
        running.retain(|(id, _)| *id != self.0);
        COUNT.store(running.len(), Ordering::Release);
    }
}

/// How content is moved.
#[derive(Debug)]
enum How {
    /// Within this process.
    Copy { src: u64, dst: u64, len: usize, way: Way },
    /// Out of another process.
    Process { process: Process, src: u64, dst: u64, len: usize },
    /// Into a stream between processes.
    Feed(Feed),
    /// Out of one.
    Drain(Drain),
    /// To a socket.
    Send { sock: Arc<Local<OwnedFd>>, parts: Vec<Part> },
    /// From a socket.
    Recv { sock: Arc<Local<OwnedFd>>, parts: Vec<Part> },
}

/// Memory that a socket's call reads or writes.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// First byte.
    pub addr: u64,
    /// Bytes.
    pub len: usize,
}

/// A copy that is to be made without any lock.
#[derive(Debug)]
pub struct Move {
    /// The endpoint that it belongs to.
    pub ep: EpId,
    /// Which of the endpoint's moves it is; the adapter's own number.
    pub what: u32,
    how: How,
    /// What its addresses lie in, where that is not the application's.
    keep: SmallVec<[KeepAlive; 2]>,
    claim: Claim,
}

/// Something that a move keeps alive.
pub type KeepAlive = Arc<dyn Any + Send + Sync>;

/// What a move came to.
#[derive(Debug)]
pub struct Moved {
    /// The endpoint that it belongs to.
    pub ep: EpId,
    /// As in [`Move`].
    pub what: u32,
    /// Bytes that were moved.
    pub result: io::Result<usize>,
}

fn ranges(parts: &[(u64, usize)]) -> Ranges {
    parts.iter().map(|&(addr, len)| (addr, len as u64)).collect()
}

impl Move {
    /// A copy within this process.
    ///
    /// # Safety
    /// `src` is readable and `dst` writable for `len` bytes while `keep` lives and [`touched`] says
    /// so; where both are one process's memory they may overlap.
    pub unsafe fn copy(ep: EpId, what: u32, src: u64, dst: u64, len: usize, way: Way) -> Move {
        let claim = Claim::new(ranges(&[(src, len), (dst, len)]));
        Move { ep, what, how: How::Copy { src, dst, len, way }, keep: SmallVec::new(), claim }
    }

    /// A copy out of the memory of another process.
    ///
    /// # Safety
    /// As for [`copy`](Self::copy), of `dst`.
    pub(crate) unsafe fn process(
        ep: EpId,
        what: u32,
        process: Process,
        src: u64,
        dst: u64,
        len: usize,
    ) -> Move {
        let claim = Claim::new(ranges(&[(dst, len)]));
        Move {
            ep,
            what,
            how: How::Process { process, src, dst, len },
            keep: SmallVec::new(),
            claim,
        }
    }

    /// Pieces into a stream.
    ///
    /// # Safety
    /// As for [`copy`](Self::copy), of its source.
    pub(crate) unsafe fn feed(ep: EpId, what: u32, feed: Feed) -> Move {
        let claim = Claim::new(smallvec![feed.source()]);
        Move { ep, what, how: How::Feed(feed), keep: SmallVec::new(), claim }
    }

    /// Pieces out of a stream.
    ///
    /// # Safety
    /// As for [`copy`](Self::copy), of its destination.
    pub(crate) unsafe fn drain(ep: EpId, what: u32, drain: Drain) -> Move {
        let claim = Claim::new(smallvec![drain.destination()]);
        Move { ep, what, how: How::Drain(drain), keep: SmallVec::new(), claim }
    }

    /// One call that writes to a socket.
    ///
    /// # Safety
    /// As for [`copy`](Self::copy), of all parts.
    pub unsafe fn send(ep: EpId, what: u32, sock: &Arc<Local<OwnedFd>>, parts: Vec<Part>) -> Move {
        let claim = Claim::new(parts.iter().map(|p| (p.addr, p.len as u64)).collect());
        let how = How::Send { sock: sock.clone(), parts };
        Move { ep, what, how, keep: SmallVec::new(), claim }
    }

    /// One call that reads from a socket.
    ///
    /// # Safety
    /// As for [`copy`](Self::copy), of all parts.
    pub unsafe fn recv(ep: EpId, what: u32, sock: &Arc<Local<OwnedFd>>, parts: Vec<Part>) -> Move {
        let claim = Claim::new(parts.iter().map(|p| (p.addr, p.len as u64)).collect());
        let how = How::Recv { sock: sock.clone(), parts };
        Move { ep, what, how, keep: SmallVec::new(), claim }
    }

    /// The same, keeping alive what it needs.
    pub fn keeping(mut self, what: KeepAlive) -> Move {
        self.keep.push(what);
        self
    }

    /// Makes it. May take as long as memory takes.
    pub fn run(self) -> Moved {
        let Move { ep, what, how, keep, claim } = self;
        // SAFETY: by the contracts of the constructors: the claim is in the table, and what had to be
        // kept is kept.
        let result = unsafe { carry_out(&how) };
        drop((keep, claim));
        Moved { ep, what, result }
    }
}

/// # Safety
/// All memory that `how` names is valid for what it says.
unsafe fn carry_out(how: &How) -> io::Result<usize> {
    match how {
        How::Copy { src, dst, len, way } => {
            let (from, to) = (*src as *const u8, *dst as *mut u8);
            if src.abs_diff(*dst) < *len as u64 {
                // SAFETY: by the caller.
                unsafe { std::ptr::copy(from, to, *len) };
            } else {
                // SAFETY: by the caller; they do not overlap.
                unsafe { bulk::copy(from, to, *len, *way) };
            }
            Ok(*len)
        }
        How::Process { process, src, dst, len } => {
            // SAFETY: by the caller.
            let read = unsafe { process.read(*src, *dst as *mut u8, *len) };
            read.map_err(io::Error::from)
        }
        // SAFETY: by the caller.
        How::Feed(feed) => Ok(unsafe { feed.run() }),
        // SAFETY: by the caller.
        How::Drain(drain) => Ok(unsafe { drain.run() }),
        How::Send { sock, parts } => {
            // SAFETY: by the caller.
            unsafe { super::tcp::send(sock.as_fd(), &mut iovs(parts), false) }
        }
        How::Recv { sock, parts } => {
            // SAFETY: by the caller.
            unsafe { super::tcp::recv(sock.as_fd(), &mut iovs(parts)) }
        }
    }
}

fn iovs(parts: &[Part]) -> SmallVec<[libc::iovec; 8]> {
    let iov = |p: &Part| libc::iovec { iov_base: p.addr as *mut libc::c_void, iov_len: p.len };
    parts.iter().map(iov).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r19_memory_is_named_while_a_move_of_it_exists() {
        let (src, mut dst) = (vec![7u8; 100], vec![0u8; 100]);
        let (from, to) = (src.as_ptr() as u64, dst.as_mut_ptr() as u64);
        // SAFETY: both vectors outlive the move.
        let one = unsafe { Move::copy(EpId(1), 5, from, to, 100, Way::Plain) };
        // SAFETY: as above.
        let two = unsafe { Move::copy(EpId(1), 6, from, to, 50, Way::Plain) };
        assert!(touched(from + 99, 1) && touched(to, 1) && touched(to - 1, 2));
        assert!(!touched(to, 0));
        let done = one.run();
        assert_eq!((done.ep, done.what, done.result.unwrap()), (EpId(1), 5, 100));
        assert!(touched(to, 1));
        assert!(!touched(to + 50, 50), "of a move that ended");
        drop(two);
        assert!(!touched(from, 100) && !touched(to, 100));
        assert_eq!(dst, src);
    }
}
