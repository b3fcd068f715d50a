//! One-sided operations over a stream socket: the provider that works everywhere.
//!
//! WRITEs are received straight into the checked destination, READs are answered straight from the
//! region; a WRITE ends at its initiator when the target has acknowledged it, so a refused one is
//! reported as that operation's failure and the connection lives on. `stream::Stream` is one end
//! without system calls; `endpoint` gives it a socket, `adapter` drives all of them.

mod adapter;
mod burst;
mod endpoint;
pub mod frame;
mod left;
mod rx;
mod sock;
mod stream;
mod tx;

pub use self::adapter::TcpAdapter;
use self::rx::Cx;
pub(super) use self::sock::{recv, send};
use self::stream::Stream;
use super::regions::RegionTable;
use super::{Access, EpId, Mem, Remote};
use crate::status::Status;

/// Bound of operations under way per endpoint, whatever the settings say.
const MAX_OPS: usize = 4096;
/// Largest WRITE or READ: what a process can have in its address space.
const MAX_RDMA: u64 = 1 << 47;
/// What an endpoint tells its peer: the version of the frames.
const ADDRESS: &[u8] = b"rdma-tcp\x02";

/// Why tcp cannot be used here.
pub fn probe() -> Result<(), Status> {
    sock::epoll().map(drop)
}

/// Takes `bytes` for the input of an endpoint with two READs and a WRITE under way and two small
/// regions; for fuzzing. Nothing that arrives may do anything but fail.
pub fn fuzz_frames(bytes: &[u8]) {
    let (mut open, mut local) = (vec![0u8; 4096], vec![0u8; 8192]);
    let mut regions = RegionTable::new();
    // SAFETY: both buffers outlive every use of the table and of the endpoint.
    let (_, a, b) = unsafe {
        let addr = open.as_mut_ptr() as u64;
        let all = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let at = local.as_mut_ptr() as u64;
        (regions.insert(addr, 4096, all), Mem::new(at, 4096, 0), Mem::new(at + 4096, 4096, 0))
    };
    let mut stream = Stream::new(EpId(1), "fuzz", 16);
    let remote = Remote { addr: 4096, rkey: 1 };
    for (wr, mem) in [a, b].into_iter().enumerate() {
        let _ = stream.read(wr as u64, mem, remote);
        let _ = stream.write(wr as u64, mem, remote, None);
    }
    let (mut events, mut held) = (Vec::new(), Vec::new());
    // The first byte chooses in which pieces the rest arrives.
    let piece = bytes.first().map_or(1, |&b| usize::from(b) + 1);
    for part in bytes.get(1..).unwrap_or_default().chunks(piece) {
        let (events, held) = (&mut events, &mut held);
        let mut cx = Cx { regions: &regions, events, held, viewed: false, ends: 0 };
        // SAFETY: `bytes` outlive the events.
        if let Err(status) = unsafe { stream.feed(part, &mut cx) } {
            stream.fail(status, 0, events);
            return;
        }
        stream.fill(true);
        let mut iovs = [EMPTY; tx::IOVS];
        let (_, n) = stream.tx.gather(&regions, &mut iovs);
        stream.tx.advance(n / 2);
    }
}

const EMPTY: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

#[cfg(test)]
mod tests;
