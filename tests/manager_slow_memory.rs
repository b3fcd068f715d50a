//! Memory that pages in slowly holds up what is in it, and nothing else: other peers' transfers,
//! calls and deadlines of the same managers go on.
//!
//! The memory's faults are served by nobody (userfaultfd) until the test serves them. Where that is
//! not allowed, which root is, the tests skip.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use rdma_transport::api::*;
use rdma_transport::config::Config;
use rdma_transport::engine::front::message::{Memory, MessageEnd, Mode, OnMessage, Party, Wanted};
use rdma_transport::engine::front::pair::{Slot, Way};
use rdma_transport::fabric::ProviderKind;
use rdma_transport::manager::{Manager, Post, Timeout, Where};
use rdma_transport::protocol::message::{Envelope, Extra};
use rdma_transport::status::{Code, Status};

#[path = "support/skip.rs"]
mod skip;

/// Only a hang takes so long; transfers that wait for memory have this deadline, too, while others go on.
const LONG: Duration = Duration::from_secs(60);
const BIG: usize = 4 << 20;
const SMALL: usize = 4096;
/// Fits into a message of tcp.
const SLOW_MESSAGE: usize = 20 << 10;
const KINDS: [ProviderKind; 3] = [ProviderKind::Loopback, ProviderKind::Shm, ProviderKind::Tcp];

const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_ZEROPAGE: libc::c_ulong = 0xc020_aa04;

/// Pages that are not there until `serve`.
struct Slow {
    fd: OwnedFd,
    addr: u64,
    len: usize,
}

impl Slow {
    /// `None`: not allowed here.
    fn new(len: usize) -> Option<Slow> {
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
    fn serve(&self) {
        self.serve_first(self.len);
    }

    /// The same of so many bytes.
    fn serve_first(&self, len: usize) {
        let mut zero = [self.addr, len as u64, 0, 0];
        // SAFETY: the structure of this request, which lives through the call.
        let rc = unsafe { libc::ioctl(self.fd.as_raw_fd(), UFFDIO_ZEROPAGE, zero.as_mut_ptr()) };
        assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    }

    /// A page of it is asked for.
    fn wait_for_fault(&self) {
        let mut entry = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry.
        let n = unsafe { libc::poll(&mut entry, 1, LONG.as_millis() as i32) };
        // Of a descriptor that blocks it would be an error, and at once.
        assert_eq!((n, entry.revents), (1, libc::POLLIN), "nobody touches the memory");
    }

    /// Its pages are gone again, and nobody serves them.
    fn evict(&self) {
        self.evict_first(self.len);
    }

    /// The same of so many bytes.
    fn evict_first(&self, len: usize) {
        // SAFETY: the mapping is ours, anonymous, and nothing in it matters.
        let rc = unsafe { libc::madvise(self.addr as *mut _, len, libc::MADV_DONTNEED) };
        assert_eq!(rc, 0);
    }

    fn tensor(&self) -> Tensor {
        tensor(self.addr, self.len)
    }
}

fn slow(len: usize) -> Option<Slow> {
    let slow = Slow::new(len);
    if slow.is_none() {
        skip::skip("userfaultfd is not allowed here");
    }
    slow
}

fn tensor(addr: u64, len: usize) -> Tensor {
    let mut meta = Meta { dtype: 1, nbytes: len as u64, ..Default::default() };
    meta.dims.push(len as i64);
    Tensor { meta, addr, device: 0 }
}

/// A manager that nobody turns but the library's own threads: where one is kept by slow memory, another drives.
struct Node {
    m: Arc<Manager>,
}

impl Node {
    fn with(name: &str, kind: ProviderKind, checksum: bool) -> Node {
        Node::forced(name, kind, checksum, Protocol::Auto)
    }

    fn forced(name: &str, kind: ProviderKind, checksum: bool, protocol: Protocol) -> Node {
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
        Node { m: Manager::new(config).unwrap() }
    }

    fn knows(&self, other: &Node) {
        self.m.import_address(&other.m.export_address().unwrap()).unwrap();
    }

    fn end(self) {
        self.m.destroy().unwrap();
    }
}

type Ended<T> = mpsc::Receiver<Result<T, Status>>;

fn send(m: &Manager, key: &[u8], tensor: Tensor) -> Ended<()> {
    let (tx, rx) = mpsc::channel();
    let done: SendDone = Box::new(move |result, _| drop(tx.send(result)));
    // SAFETY: the callers' memory outlives the managers.
    unsafe { m.send(key, 1, tensor, None, Some(done.into())) }.unwrap();
    rx
}

fn recv(m: &Manager, peer: &str, key: &[u8], target: Target, limit: Duration) -> Ended<Vec<u8>> {
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
fn goes_on(m: &Manager, name: &str, other: &Manager, what: &str) {
    goes_on_with(m, name, other, what, &[SMALL, BIG]);
}

fn goes_on_with(m: &Manager, name: &str, other: &Manager, what: &str, sizes: &[usize]) {
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
fn three(kind: ProviderKind) -> (Node, Node, Node) {
    three_with(kind, false)
}

fn three_with(kind: ProviderKind, checksum: bool) -> (Node, Node, Node) {
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

#[test]
fn r19_a_slow_source_holds_up_its_own_transfer_only() {
    for kind in KINDS {
        let Some(source) = slow(BIG) else { return };
        let (a, b, other) = three(kind);
        let sent = send(&a.m, b"slow", source.tensor());
        let got = recv(&b.m, "a", b"slow", Target::Library, LONG);
        source.wait_for_fault();
        goes_on(&a.m, "a", &other.m, &format!("{kind:?}, the sender"));
        goes_on(&b.m, "b", &other.m, &format!("{kind:?}, the receiver"));
        assert!(sent.try_recv().is_err() && got.try_recv().is_err());
        source.serve();
        assert!(got.recv_timeout(LONG).unwrap().unwrap() == vec![0; BIG], "{kind:?}");
        sent.recv_timeout(LONG).unwrap().unwrap();
        [b, a, other].into_iter().for_each(Node::end);
    }
}

#[test]
fn r19_a_slow_destination_holds_up_its_own_transfer_only() {
    for kind in KINDS {
        let Some(dst) = slow(BIG) else { return };
        let (a, b, other) = three(kind);
        let data = vec![3u8; BIG];
        let sent = send(&a.m, b"slow", tensor(data.as_ptr() as u64, BIG));
        let target = Target::Given { addr: dst.addr, len: BIG as u64 };
        let got = recv(&b.m, "a", b"slow", target, LONG);
        dst.wait_for_fault();
        goes_on(&a.m, "a", &other.m, &format!("{kind:?}, the sender"));
        goes_on(&b.m, "b", &other.m, &format!("{kind:?}, the receiver"));
        assert!(got.try_recv().is_err());
        // Zeros come where a page was waited for, and elsewhere, before the content.
        dst.serve();
        assert!(got.recv_timeout(LONG).unwrap().unwrap() == data, "{kind:?}");
        sent.recv_timeout(LONG).unwrap().unwrap();
        [b, a, other].into_iter().for_each(Node::end);
    }
}

/// What a pair sends is mostly short, and comes in its record: it is put in its place without the lock, too, and the memory is not free before.
#[test]
fn r19_a_slow_destination_of_a_pair_holds_up_its_own_send_only() {
    for kind in KINDS {
        let Some(dst) = slow(SMALL) else { return };
        let (a, b, other) = three(kind);
        let ends = [&a, &b].map(|node| node.m.pair_create(1, Timeout::Default).unwrap());
        let addresses =
            [(&b, ends[1]), (&a, ends[0])].map(|(n, end)| n.m.pair_address(end).unwrap());
        let (mut near, source) = ([0u8; 8], [7u8; 8]);
        let create = |node: &Node, end, way, slot, addr| {
            let slot = Slot { way, slot, addr, len: 8 };
            // SAFETY: the memory outlives the managers.
            unsafe { node.m.buffer_create(end, slot, None) }.unwrap()
        };
        let far = create(&b, ends[1], Way::Recv, 1, dst.addr);
        let first = create(&b, ends[1], Way::Recv, 2, near.as_mut_ptr() as u64);
        let sends = [2, 1].map(|slot| create(&a, ends[0], Way::Send, slot, source.as_ptr() as u64));
        a.m.pair_connect(ends[0], &addresses[0], None).unwrap();
        b.m.pair_connect(ends[1], &addresses[1], Some(LONG)).unwrap();
        // The end of the first tells that both slots are open.
        // SAFETY: as above.
        unsafe { a.m.buffer_send(sends[0], 0, 8, 0) }.unwrap();
        b.m.buffer_wait(first, Way::Recv, Timeout::After(LONG)).unwrap();
        // SAFETY: as above.
        unsafe { a.m.buffer_send(sends[1], 0, 8, 0) }.unwrap();
        dst.wait_for_fault();
        goes_on(&b.m, "b", &other.m, &format!("{kind:?}, the receiver"));
        assert_eq!(b.m.buffer_counts(far).unwrap(), (0, 0), "{kind:?}");
        let ((tx, free), m) = (mpsc::channel(), b.m.clone());
        let destroy = std::thread::spawn(move || tx.send(m.buffer_destroy(far)).unwrap());
        let early = free.recv_timeout(Duration::from_millis(300));
        dst.serve();
        assert!(early.is_err(), "{kind:?}: given back while it is written to");
        free.recv_timeout(LONG).unwrap().unwrap();
        destroy.join().unwrap();
        [b, a, other].into_iter().for_each(Node::end);
    }
}

#[test]
fn r19_memory_comes_back_only_when_no_copy_touches_it() {
    for kind in KINDS {
        let Some(dst) = slow(BIG) else { return };
        let (a, b, other) = three(kind);
        let data = vec![3u8; BIG];
        let _sent = send(&a.m, b"slow", tensor(data.as_ptr() as u64, BIG));
        let target = Target::Given { addr: dst.addr, len: BIG as u64 };
        // It has to begin before its deadline.
        let limit = Duration::from_secs(3);
        let got = recv(&b.m, "a", b"slow", target, limit);
        dst.wait_for_fault();
        // Its deadline passes. The copy that waits for the page would still write to it.
        let never = recv(&b.m, "a", b"never", Target::Library, limit);
        assert!(never.recv_timeout(LONG).unwrap().is_err());
        assert!(got.try_recv().is_err(), "{kind:?}: given back while it is written");
        dst.serve();
        let status = got.recv_timeout(LONG).unwrap().unwrap_err();
        assert_eq!(status.code, Code::DeadlineExceeded, "{kind:?}: {status}");
        // SAFETY: the mapping is alive.
        unsafe { (dst.addr as *mut u8).write_bytes(9, BIG) };
        goes_on(&b.m, "b", &other.m, "afterwards");
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(dst.addr as *const u8, BIG) };
        assert!(bytes.iter().all(|&b| b == 9), "{kind:?}: written afterwards");
        [b, a, other].into_iter().for_each(Node::end);
    }
}

#[test]
fn r19_a_slow_source_of_a_message_holds_up_its_own_call_only() {
    for kind in KINDS {
        let Some(source) = slow(SMALL) else { return };
        let (a, b, other) = three(kind);
        let (from, tensor) = (a.m.clone(), source.tensor());
        let call = std::thread::spawn(move || send(&from, b"slow", tensor));
        source.wait_for_fault();
        goes_on(&a.m, "a", &other.m, &format!("{kind:?}"));
        let got = recv(&b.m, "a", b"slow", Target::Library, LONG);
        source.serve();
        assert!(got.recv_timeout(LONG).unwrap().unwrap() == vec![0; SMALL]);
        call.join().unwrap().recv_timeout(LONG).unwrap().unwrap();
        [b, a, other].into_iter().for_each(Node::end);
    }
}

#[test]
fn r19_a_source_that_turned_slow_before_it_was_asked_for() {
    // The first is in a message already, the second is copied for one, the third is longer than any.
    for (len, late) in [(SMALL, false), (SLOW_MESSAGE, true), (BIG, true)] {
        for kind in KINDS {
            let Some(source) = slow(len) else { return };
            source.serve();
            let (a, b, other) = three(kind);
            let sent = send(&a.m, b"slow", source.tensor());
            source.evict();
            let got = recv(&b.m, "a", b"slow", Target::Library, LONG);
            if late {
                source.wait_for_fault();
                goes_on(&a.m, "a", &other.m, &format!("{kind:?}, {len} bytes"));
                goes_on(&b.m, "b", &other.m, &format!("{kind:?}, {len} bytes"));
                source.serve();
            }
            assert!(got.recv_timeout(LONG).unwrap().unwrap() == vec![0; len], "{kind:?}, {len}");
            sent.recv_timeout(LONG).unwrap().unwrap();
            [b, a, other].into_iter().for_each(Node::end);
        }
    }
}

#[test]
fn r19_a_destination_of_a_message_that_turned_slow() {
    for kind in KINDS {
        let Some(dst) = slow(SMALL) else { return };
        dst.serve();
        let (a, b, other) = three(kind);
        let target = Target::Given { addr: dst.addr, len: SMALL as u64 };
        let got = recv(&b.m, "a", b"slow", target, LONG);
        dst.evict();
        let data = vec![3u8; SMALL];
        let sent = send(&a.m, b"slow", tensor(data.as_ptr() as u64, SMALL));
        dst.wait_for_fault();
        sent.recv_timeout(LONG).unwrap().unwrap();
        goes_on(&a.m, "a", &other.m, &format!("{kind:?}, the sender"));
        goes_on(&b.m, "b", &other.m, &format!("{kind:?}, the receiver"));
        assert!(got.try_recv().is_err());
        dst.serve();
        assert!(got.recv_timeout(LONG).unwrap().unwrap() == data, "{kind:?}");
        [b, a, other].into_iter().for_each(Node::end);
    }
}

/// Who has two receives of one slot under way, and is told of one, takes the first's place for filled.
#[test]
fn r19_the_end_of_a_receive_waits_for_the_one_before_it() {
    const LEN: u64 = 400;
    // The second message is there before its receive, or comes after it.
    for (kind, early) in KINDS.into_iter().flat_map(|kind| [(kind, true), (kind, false)]) {
        let Some(mut dst) = slow(2 * SMALL) else { return };
        dst.serve();
        // Only the first page of it will be missing.
        dst.len = SMALL;
        let (a, b, other) = three(kind);
        let (to, from) = (a.m.peer_lookup("b").unwrap(), b.m.peer_lookup("a").unwrap());
        let data = [[3u8; LEN as usize], [4u8; LEN as usize]].concat();
        // SAFETY: these outlive the managers.
        let (sends, receives) = unsafe {
            let sends = a.m.unbound_create(5, data.as_ptr() as u64, 2 * LEN).unwrap();
            (sends, b.m.unbound_create(5, dst.addr, 2 * SMALL as u64).unwrap())
        };
        let send = |at| a.m.unbound_send(sends, to, 9, (at, LEN), Timeout::Never).unwrap();
        let receive = |at| {
            b.m.unbound_recv(receives, &[from], 9, (at as u64, LEN), Timeout::Never).unwrap();
        };
        let wait = |limit| b.m.unbound_wait(receives, Way::Recv, Timeout::After(limit));
        // SAFETY: the mapping is alive.
        let byte = |at: usize| unsafe { (dst.addr as *const u8).add(at).read_volatile() };
        receive(0);
        dst.evict();
        send(0);
        if early {
            send(LEN);
        }
        dst.wait_for_fault();
        if early {
            std::thread::sleep(Duration::from_millis(30));
        }
        receive(SMALL);
        if !early {
            send(LEN);
        }
        let status = wait(Duration::from_millis(300)).map(|end| end.len).unwrap_err();
        assert_eq!(status.code, Code::DeadlineExceeded, "{kind:?}, {early}: {status}");
        dst.serve();
        for (at, value) in [(0, 3), (SMALL, 4)] {
            wait(LONG).unwrap().result.unwrap();
            let got = [byte(at), byte(at + LEN as usize - 1)];
            assert_eq!(got, [value; 2], "{kind:?}, {early}: at {at}");
        }
        [b, a, other].into_iter().for_each(Node::end);
    }
}

#[test]
fn r19_memory_whose_checksum_is_computed_may_be_slow() {
    for kind in KINDS {
        let Some(source) = slow(BIG) else { return };
        let (a, b, other) = three_with(kind, true);
        let sent = send(&a.m, b"slow", source.tensor());
        let dst = vec![1u8; BIG];
        let target = Target::Given { addr: dst.as_ptr() as u64, len: BIG as u64 };
        let got = recv(&b.m, "a", b"slow", target, LONG);
        source.wait_for_fault();
        goes_on(&a.m, "a", &other.m, &format!("{kind:?}, the sender"));
        goes_on(&b.m, "b", &other.m, &format!("{kind:?}, the receiver"));
        assert!(got.try_recv().is_err());
        source.serve();
        assert!(got.recv_timeout(LONG).unwrap().unwrap() == vec![0; BIG], "{kind:?}");
        sent.recv_timeout(LONG).unwrap().unwrap();
        [b, a, other].into_iter().for_each(Node::end);
    }
}

#[test]
fn r19_however_many_copies_are_kept_calls_and_deadlines_go_on() {
    let (a, b, other) = three(ProviderKind::Tcp);
    let mut slow_ones = Vec::new();
    for i in 0..12 {
        let Some(source) = slow(SLOW_MESSAGE) else { return };
        let key = format!("slow {i}");
        source.serve();
        let sent = send(&a.m, key.as_bytes(), source.tensor());
        source.evict();
        let dst = vec![1u8; SLOW_MESSAGE];
        let target = Target::Given { addr: dst.as_ptr() as u64, len: dst.len() as u64 };
        let got = recv(&a.m, "a", key.as_bytes(), target, LONG);
        slow_ones.push((source, sent, got, dst));
    }
    // So many threads are kept, and the last of them is not.
    for (source, ..) in &slow_ones[..8] {
        source.wait_for_fault();
    }
    goes_on_with(&a.m, "a", &other.m, "all are kept", &[SMALL, SMALL]);
    // What goes on elsewhere.
    goes_on(&b.m, "b", &other.m, "the others");
    for (source, ..) in &slow_ones {
        source.serve();
    }
    for (_, sent, got, dst) in slow_ones {
        got.recv_timeout(LONG).unwrap().unwrap();
        sent.recv_timeout(LONG).unwrap().unwrap();
        assert!(dst == vec![0; SLOW_MESSAGE]);
    }
    goes_on(&a.m, "a", &other.m, "afterwards");
    [b, a, other].into_iter().for_each(Node::end);
}

/// The progress thread is kept, another thread in a turn of its own, and one stands in. When the second is back that one
/// leaves, and the next has seen nothing to look at for long: it has to hear of that.
#[test]
fn r19_who_watches_hears_that_who_stood_in_has_left() {
    const LEN: usize = 256 << 10;
    let (Some(first), Some(second)) = (slow(LEN), slow(LEN)) else { return };
    let (a, b, other) = three(ProviderKind::Tcp);
    let got = [(&b, &b"first"[..]), (&other, b"second")]
        .map(|(m, key)| recv(&m.m, "a", key, Target::Library, LONG));
    let asked = |peer| a.m.peer_info(peer).unwrap().requests_received > 0;
    let begun = Instant::now();
    while !(asked("b") && asked("other")) {
        assert!(begun.elapsed() < LONG, "nobody asks");
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut sent = vec![send(&a.m, b"first", first.tensor())];
    first.wait_for_fault();
    sent.push(send(&a.m, b"second", second.tensor()));
    let m = a.m.clone();
    let turns = std::thread::spawn(move || m.progress());
    second.wait_for_fault();
    // Who watches looks for a second, and then waits to be told.
    std::thread::sleep(Duration::from_millis(1500));
    second.serve();
    let never = recv(&a.m, "b", b"never", Target::Library, Duration::from_millis(300));
    let ended = never.recv_timeout(Duration::from_secs(8));
    first.serve();
    let status = ended.expect("nobody drives").unwrap_err();
    assert_eq!(status.code, Code::DeadlineExceeded, "{status}");
    for end in got {
        assert!(end.recv_timeout(LONG).unwrap().unwrap() == vec![0; LEN]);
    }
    sent.into_iter().for_each(|end| end.recv_timeout(LONG).unwrap().unwrap());
    turns.join().unwrap().unwrap();
    [b, a, other].into_iter().for_each(Node::end);
}

/// A message of this tag has ended.
type Told = Arc<Mutex<Vec<(u64, bool)>>>;

fn tell(told: &Told) -> OnMessage {
    fn end(words: Words, end: &MessageEnd) {
        // SAFETY: the one who asked keeps it until the managers are gone.
        let told = unsafe { &*(words[0] as *const Mutex<Vec<(u64, bool)>>) };
        told.lock().unwrap().push((end.envelope.tag, end.result.is_ok()));
    }
    OnMessage::Plain(end, [Arc::as_ptr(told) as usize, 0])
}

/// The first bytes of a message by the pipeline are put in their place by the thread that heard of it, the others by whoever drives
/// meanwhile: the end comes after all.
#[test]
fn r19_the_beginning_of_a_message_that_waits_holds_up_its_end() {
    for kind in KINDS {
        let Some(dst) = slow(BIG) else { return };
        dst.serve();
        dst.evict_first(SMALL);
        let [a, b] = ["a", "b"].map(|name| Node::forced(name, kind, false, Protocol::Pipeline));
        a.knows(&b);
        a.m.connect("b", Some(LONG)).unwrap();
        let (data, mut small, told) = (vec![3u8; BIG], [0u8; 8], Told::default());
        let whole =
            |addr: u64, len: usize| Where::Whole(Memory { addr, len: len as u64, device: 0 });
        for (tag, addr, len) in [(1, dst.addr, BIG), (2, small.as_mut_ptr() as u64, small.len())] {
            let wanted = Wanted { from: Party::ANY, comm: 0, tag, mask: u64::MAX };
            // SAFETY: the memory outlives the managers.
            unsafe { b.m.message_irecv(wanted, whole(addr, len), Timeout::Never, tell(&told)) }
                .unwrap();
        }
        let (to, sent) = (a.m.peer_lookup("b").unwrap(), Told::default());
        // The end of the second is what the first bytes of the first are put in their place before.
        for (tag, len) in [(1, BIG), (2, 8)] {
            let (extra, envelope) = (&Extra::default(), Envelope { comm: 0, tag });
            let (mode, timeout) = (Mode::Standard, Timeout::Never);
            let post = Post { to, envelope, extra, mode, timeout };
            // SAFETY: as above.
            unsafe { a.m.message_isend(&post, whole(data.as_ptr() as u64, len), tell(&sent)) }
                .unwrap();
        }
        dst.wait_for_fault();
        // Longer than it takes for another thread to drive, and for it to get the rest.
        std::thread::sleep(Duration::from_secs(2));
        let early = told.lock().unwrap().clone();
        assert!(
            early.iter().all(|(tag, _)| *tag != 1),
            "{kind:?}: {early:?} before its first bytes"
        );
        dst.serve_first(SMALL);
        let begun = Instant::now();
        while told.lock().unwrap().len() < 2 {
            assert!(begun.elapsed() < LONG, "{kind:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        // SAFETY: the whole of it is there.
        let got = unsafe { std::slice::from_raw_parts(dst.addr as *const u8, BIG) };
        assert!(got == data && small == [3; 8], "{kind:?}");
        assert!(told.lock().unwrap().iter().all(|(_, well)| *well));
        [a, b].into_iter().for_each(Node::end);
    }
}

/// A call that reads a buffer's memory has begun no send yet: who destroys the buffer waits for it all the same.
#[test]
fn a_buffer_is_not_free_while_a_call_reads_it() {
    let Some(source) = slow(SMALL) else { return };
    let a = Node::with("a", ProviderKind::Tcp, false);
    let pair = a.m.pair_create(1, Timeout::Default).unwrap();
    let slot = Slot { way: Way::Send, slot: 1, addr: source.addr, len: SMALL as u64 };
    // SAFETY: the mapping outlives the manager.
    let buffer = unsafe { a.m.buffer_create(pair, slot, None) }.unwrap();
    let (from, to) = (a.m.clone(), a.m.clone());
    // SAFETY: as above.
    let call = std::thread::spawn(move || unsafe { from.buffer_send(buffer, 0, SMALL as u64, 0) });
    source.wait_for_fault();
    let (tx, free) = mpsc::channel();
    let destroy = std::thread::spawn(move || tx.send(to.buffer_destroy(buffer)).unwrap());
    while a.m.buffer_counts(buffer).is_ok() {
        std::thread::yield_now();
    }
    // Longer than it waits for a connection, which is not what uses the memory.
    let early = free.recv_timeout(Duration::from_millis(2500));
    source.serve();
    assert!(early.is_err(), "given back while a call reads it");
    free.recv_timeout(LONG).unwrap().unwrap();
    let end = call.join().unwrap().unwrap_err();
    assert_eq!(end.code, Code::NotFound, "{end}");
    destroy.join().unwrap();
    assert_eq!(a.m.pair_facts(pair).unwrap().buffers, 0);
    a.end();
}
