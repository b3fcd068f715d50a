//! Memory whose faults are served by nobody (userfaultfd) until the test serves them, and managers that have to do with it. Where
//! that is not allowed, which root is, the tests skip.
#![allow(dead_code, reason = "each test program uses a part")]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rdma_transport::api::*;
use rdma_transport::config::Config;
use rdma_transport::fabric::ProviderKind;
use rdma_transport::manager::Manager;
use rdma_transport::status::{Code, Status};

#[path = "skip.rs"]
mod skip;

/// Only a hang takes so long; transfers that wait for memory have this deadline, too, while others go on.
pub const LONG: Duration = Duration::from_secs(60);
pub const BIG: usize = 4 << 20;
pub const SMALL: usize = 4096;
pub const KINDS: [ProviderKind; 3] = [ProviderKind::Loopback, ProviderKind::Shm, ProviderKind::Tcp];

const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_ZEROPAGE: libc::c_ulong = 0xc020_aa04;

/// Pages that are not there until `serve`.
pub struct Slow {
    fd: OwnedFd,
    pub addr: u64,
    pub len: usize,
}

impl Slow {
    /// `None`: not allowed here.
    pub fn new(len: usize) -> Option<Slow> {
        // SAFETY: no pointer is passed.
        let fd =
            unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
        if fd < 0 {
            return None;
        }
        // SAFETY: a fresh descriptor.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let mut api = [0xAAu64, 0, 0];
        // SAFETY: the structures of these requests, which live through the calls.
        let ok = unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API, api.as_mut_ptr()) } == 0;
        // Range, mode "missing", and what is possible then.
        let mut register = [at as u64, len as u64, 1, 0];
        // SAFETY: as above.
        let done = unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_REGISTER, register.as_mut_ptr()) };
        (ok && done == 0).then_some(Slow { fd, addr: at as u64, len })
    }

    /// Zeros for everybody who waits, and from now on.
    pub fn serve(&self) {
        self.serve_first(self.len);
    }

    /// The same of so many bytes.
    pub fn serve_first(&self, len: usize) {
        let mut zero = [self.addr, len as u64, 0, 0];
        // SAFETY: the structure of this request, which lives through the call.
        let rc = unsafe { libc::ioctl(self.fd.as_raw_fd(), UFFDIO_ZEROPAGE, zero.as_mut_ptr()) };
        assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    }

    /// A page of it is asked for.
    pub fn wait_for_fault(&self) {
        let mut entry = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry.
        let n = unsafe { libc::poll(&mut entry, 1, LONG.as_millis() as i32) };
        // Of a descriptor that blocks it would be an error, and at once.
        assert_eq!((n, entry.revents), (1, libc::POLLIN), "nobody touches the memory");
    }

    /// Its pages are gone again, and nobody serves them.
    pub fn evict(&self) {
        self.evict_first(self.len);
    }

    /// The same of so many bytes.
    pub fn evict_first(&self, len: usize) {
        // SAFETY: the mapping is ours, anonymous, and nothing in it matters.
        let rc = unsafe { libc::madvise(self.addr as *mut _, len, libc::MADV_DONTNEED) };
        assert_eq!(rc, 0);
    }

    pub fn tensor(&self) -> Tensor {
        tensor(self.addr, self.len)
    }
}

pub fn slow(len: usize) -> Option<Slow> {
    let slow = Slow::new(len);
    if slow.is_none() {
        skip::skip("userfaultfd is not allowed here");
    }
    slow
}

pub fn tensor(addr: u64, len: usize) -> Tensor {
    let mut meta = Meta { dtype: 1, nbytes: len as u64, ..Default::default() };
    meta.dims.push(len as i64);
    Tensor { meta, addr, device: 0 }
}

/// A manager that nobody turns but the library's own threads: where one is kept by slow memory, another drives.
pub struct Node {
    pub m: Arc<Manager>,
}

impl Node {
    pub fn with(name: &str, kind: ProviderKind, checksum: bool) -> Node {
        Node::forced(name, kind, checksum, Protocol::Auto)
    }

    pub fn forced(name: &str, kind: ProviderKind, checksum: bool, protocol: Protocol) -> Node {
        // A connection whose memory waits may be silent for as long as that takes.
        let peer_timeout_ms = 120_000;
        let config = Config {
            name: name.into(),
            provider: Some(kind),
            peer_timeout_ms,
            checksum,
            protocol: protocol as u32,
            ..Config::default()
        };
        Node::of(config)
    }

    pub fn of(config: Config) -> Node {
        Node { m: Manager::new(config).unwrap() }
    }

    pub fn knows(&self, other: &Node) {
        self.m.import_address(&other.m.export_address().unwrap()).unwrap();
    }

    pub fn end(self) {
        self.m.destroy().unwrap();
    }
}

pub type Ended<T> = mpsc::Receiver<Result<T, Status>>;

pub fn send(m: &Manager, key: &[u8], tensor: Tensor) -> Ended<()> {
    let (tx, rx) = mpsc::channel();
    let done: SendDone = Box::new(move |result, _| drop(tx.send(result)));
    // SAFETY: the callers' memory outlives the managers.
    unsafe { m.send(key, 1, tensor, None, Some(done.into())) }.unwrap();
    rx
}

pub fn recv(
    m: &Manager,
    peer: &str,
    key: &[u8],
    target: Target,
    limit: Duration,
) -> Ended<Vec<u8>> {
    let (tx, rx) = mpsc::channel();
    let done: RecvDone = Box::new(move |result, _| {
        // SAFETY: memory of the library, or the test's, of this length.
        let bytes = |t: &Tensor| unsafe {
            std::slice::from_raw_parts(t.addr as *const u8, t.meta.nbytes as usize).to_vec()
        };
        drop(tx.send(result.map(bytes)));
    });
    let options = RecvOptions { timeout: Some(limit), target, device: 0, keep: false };
    // SAFETY: as above.
    unsafe { m.recv_async(Some(peer), key, 1, options, done) }.unwrap();
    rx
}

/// Transfers between the others and with `m`, and deadlines of `m`, while something in it is stuck.
pub fn goes_on(m: &Manager, name: &str, other: &Manager, what: &str) {
    goes_on_with(m, name, other, what, &[SMALL, BIG]);
}

pub fn goes_on_with(m: &Manager, name: &str, other: &Manager, what: &str, sizes: &[usize]) {
    for (round, &len) in sizes.iter().enumerate() {
        let data = vec![7u8 + round as u8; len];
        for (from, to, source) in [(m, other, name), (other, m, "other")] {
            let key = format!("{name}-{round}-{source}");
            let sent = send(from, key.as_bytes(), tensor(data.as_ptr() as u64, len));
            let got = recv(to, source, key.as_bytes(), Target::Library, LONG);
            let got = got.recv_timeout(LONG).unwrap_or_else(|e| panic!("{what}: {key}: {e}"));
            assert!(got.unwrap() == data, "{what}");
            sent.recv_timeout(LONG).unwrap().unwrap();
        }
    }
    let key = format!("never-{name}");
    let never = recv(m, "other", key.as_bytes(), Target::Library, Duration::from_millis(200));
    let status = never.recv_timeout(LONG).expect(what).unwrap_err();
    assert_eq!(status.code, Code::DeadlineExceeded, "{what}: {status}");
}

/// `a` sends to `b`, `other` has to do with both.
pub fn three(kind: ProviderKind) -> (Node, Node, Node) {
    three_with(kind, false)
}

pub fn three_with(kind: ProviderKind, checksum: bool) -> (Node, Node, Node) {
    let [a, b, other] = ["a", "b", "other"].map(|name| Node::with(name, kind, checksum));
    b.knows(&a);
    a.knows(&other);
    b.knows(&other);
    for (m, peer) in [(&b, "a"), (&a, "other"), (&b, "other")] {
        m.m.connect(peer, Some(LONG)).unwrap();
    }
    // The side that dialled is connected first; the other one knows the name of its peer a little later.
    let begun = Instant::now();
    for (m, peer) in [(&a, "b"), (&other, "a"), (&other, "b")] {
        while m.m.peer_info(peer).map_or(true, |info| info.state != PeerState::Connected) {
            assert!(begun.elapsed() < LONG, "a connection at one end only");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    (a, b, other)
}
