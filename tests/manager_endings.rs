//! Ends that come from outside of a transfer: of a manager, of a dial, of a request; and what wakes
//! who waits for them.

use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rdma_transport::api::*;
use rdma_transport::config::{Config, Progress};
use rdma_transport::engine::Planted;
use rdma_transport::fabric::ProviderKind;
use rdma_transport::manager::Manager;
use rdma_transport::status::{Code, Status};

const LONG: Duration = Duration::from_secs(20);

fn config(name: &str, kind: ProviderKind) -> Config {
    Config { name: name.into(), provider: Some(kind), ..Config::default() }
}

fn manager(name: &str, kind: ProviderKind) -> Arc<Manager> {
    Manager::new(config(name, kind)).unwrap()
}

fn pair(a: Config, b: Config) -> (Arc<Manager>, Arc<Manager>) {
    let (a, b) = (Manager::new(a).unwrap(), Manager::new(b).unwrap());
    a.import_address(&b.export_address().unwrap()).unwrap();
    (a, b)
}

fn tensor(data: &[u8], dims: usize) -> Tensor {
    let mut meta = Meta { dtype: 1, nbytes: data.len() as u64, ..Default::default() };
    meta.dims.extend((0..dims).map(|d| if d == 0 { data.len() as i64 } else { 1 }));
    Tensor { meta, addr: data.as_ptr() as u64, device: 0 }
}

fn options(target: Target, keep: bool) -> RecvOptions {
    RecvOptions { timeout: Some(LONG), target, device: 0, keep }
}

type Ended = mpsc::Receiver<Result<Vec<u8>, Status>>;

/// A receive into library memory, whose content is copied in its callback.
fn recv(m: &Manager, peer: Option<&str>, key: &[u8], keep: bool) -> (u64, Ended) {
    let (tx, rx) = mpsc::channel();
    let done: RecvDone = Box::new(move |result, _| {
        let bytes = result.map(|t| match t.meta.nbytes {
            0 => Vec::new(),
            // SAFETY: library memory lives at least for this call.
            n => unsafe { std::slice::from_raw_parts(t.addr as *const u8, n as usize) }.to_vec(),
        });
        let _ = tx.send(bytes);
    });
    // SAFETY: library memory.
    let id = unsafe { m.recv_async(peer, key, 1, options(Target::Library, keep), done) }.unwrap();
    (id, rx)
}

fn send(m: &Manager, key: &[u8], tensor: Tensor) -> mpsc::Receiver<Result<(), Status>> {
    let (tx, rx) = mpsc::channel();
    let done: SendDone = Box::new(move |result, _| drop(tx.send(result)));
    // SAFETY: the callers' content is 'static or outlives the manager.
    unsafe { m.send(key, 1, tensor, None, Some(done.into())) }.unwrap();
    rx
}

#[test]
fn disconnect_ends_a_dial_and_what_waits_for_it() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let a = manager("a", ProviderKind::Tcp);
    a.add_peer("b", &address).unwrap();
    for _ in 0..3 {
        // Each receive dials anew: the disconnect before it has not left the old attempt behind.
        let (_, ended) = recv(&a, Some("b"), b"key", false);
        let _connection = silent.accept().unwrap();
        assert!(ended.recv_timeout(Duration::from_millis(50)).is_err());
        assert_eq!(a.peer_info("b").unwrap().state, PeerState::Connecting);
        a.disconnect("b").unwrap();
        let status = ended.recv_timeout(LONG).unwrap().unwrap_err();
        assert_eq!(status.code, Code::Unavailable, "{status}");
        assert!(status.message.contains("disconnected from peer 'b'"), "{status}");
        assert_eq!(a.peer_info("b").unwrap().state, PeerState::Idle);
    }
    a.destroy().unwrap();
}

/// Whether the descriptor becomes readable in time.
fn readable(fd: i32, limit: Duration) -> bool {
    let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&mut entry, 1, limit.as_millis() as i32) > 0 }
}

#[test]
fn calls_wake_whoever_sleeps_on_the_descriptor() {
    let config = Config { progress: Progress::Manual, ..config("a", ProviderKind::Loopback) };
    let m = Manager::new(config).unwrap();
    let fd = m.event_fd().unwrap();
    let settle = || {
        while readable(fd, Duration::from_millis(20)) {
            m.progress().unwrap();
        }
    };
    let wait_for = |ended: &Ended| {
        let begun = Instant::now();
        loop {
            match ended.try_recv() {
                Ok(result) => return result,
                Err(_) => assert!(begun.elapsed() < LONG, "no end"),
            }
            // Nothing else is under way that would make it readable.
            assert!(readable(fd, LONG), "asleep while there is something to do");
            m.progress().unwrap();
        }
    };
    settle();
    // A local tensor: its callback is due at once.
    let (_, ended) = recv(&m, None, b"local", false);
    send(&m, b"local", tensor(b"hello", 1));
    assert_eq!(wait_for(&ended).unwrap(), b"hello");
    settle();
    // A deadline that is earlier than everything before it.
    let (tx, ended) = mpsc::channel();
    let done: RecvDone = Box::new(move |r, _| drop(tx.send(r.map(|_| Vec::new()))));
    let timeout = Some(Duration::from_millis(30));
    let options = RecvOptions { timeout, ..options(Target::Library, false) };
    // SAFETY: library memory.
    unsafe { m.recv_async(None, b"never", 1, options, done) }.unwrap();
    assert_eq!(wait_for(&ended).unwrap_err().code, Code::DeadlineExceeded);
    settle();
    // A dial.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    m.add_peer("b", &silent.local_addr().unwrap().to_string()).unwrap();
    let (_, _ended) = recv(&m, Some("b"), b"key", false);
    assert!(readable(fd, LONG), "asleep while there is somebody to connect to");
    m.progress().unwrap();
    m.destroy().unwrap();
}

#[test]
fn a_request_may_be_released_before_its_end() {
    let (a, b) = pair(config("a", ProviderKind::Tcp), config("b", ProviderKind::Tcp));
    let data = vec![7u8; 300_000];
    let (id, ended) = recv(&a, Some("b"), b"key", true);
    a.request_release(id).unwrap();
    assert_eq!(a.request_release(id).unwrap_err().code, Code::NotFound);
    send(&b, b"key", tensor(&data, 1));
    assert!(ended.recv_timeout(LONG).unwrap().unwrap() == data);
    assert_eq!(a.request_release(id).unwrap_err().code, Code::NotFound);
    a.destroy().unwrap();
    b.destroy().unwrap();
}

#[test]
fn a_result_outlives_its_release_inside_the_callback() {
    let (a, b) = pair(config("a", ProviderKind::Tcp), config("b", ProviderKind::Tcp));
    let data = vec![7u8; 300_000];
    let (tx, rx) = mpsc::channel();
    let (tell, id) = mpsc::channel();
    let own = a.clone();
    let done: RecvDone = Box::new(move |result, _| {
        let at = result.unwrap().addr;
        own.request_release(id.recv().unwrap()).unwrap();
        // The block would be handed out again if it were free.
        let other = own.mem_alloc(300_000).unwrap();
        tx.send((at, other)).unwrap();
    });
    let options = options(Target::Library, true);
    // SAFETY: library memory.
    let request = unsafe { a.recv_async(Some("b"), b"key", 1, options, done) }.unwrap();
    tell.send(request).unwrap();
    send(&b, b"key", tensor(&data, 1));
    let (at, other) = rx.recv_timeout(LONG).unwrap();
    assert_ne!(at, other);
    a.mem_free(other).unwrap();
    a.destroy().unwrap();
    b.destroy().unwrap();
}

#[test]
fn destroy_ends_a_send_whose_local_result_was_not_released() {
    static DATA: [u8; 64] = [3; 64];
    let m = manager("a", ProviderKind::Loopback);
    let sent = send(&m, b"key", tensor(&DATA, 1));
    // SAFETY: library memory.
    let (t, _) = unsafe { m.recv(None, b"key", 1, options(Target::Library, true)) }.unwrap();
    assert_eq!(t.addr, DATA.as_ptr() as u64);
    assert!(sent.try_recv().is_err(), "the tensor is still referred to");
    m.destroy().unwrap();
    sent.recv_timeout(LONG).unwrap().unwrap();
}

#[test]
fn only_what_was_allocated_can_be_freed() {
    let (a, b) = pair(config("a", ProviderKind::Tcp), config("b", ProviderKind::Tcp));
    let data = vec![9u8; 100_000];
    send(&b, b"key", tensor(&data, 1));
    // SAFETY: library memory.
    let (t, id) = unsafe { a.recv(Some("b"), b"key", 1, options(Target::Library, true)) }.unwrap();
    let status = a.mem_free(t.addr).unwrap_err();
    assert_eq!(status.code, Code::NotFound, "{status}");
    a.request_release(id).unwrap();
    let own = a.mem_alloc(100).unwrap();
    a.mem_free(own).unwrap();
    assert_eq!(a.mem_free(own).unwrap_err().code, Code::NotFound);
    a.destroy().unwrap();
    b.destroy().unwrap();
}

#[test]
fn many_dimensions_leave_less_room_in_a_message() {
    for kind in [ProviderKind::Loopback, ProviderKind::Tcp, ProviderKind::Shm] {
        let eager = |name| Config { protocol: 2, ..config(name, kind) };
        let (a, b) = pair(eager("a"), eager("b"));
        for nbytes in [7_000, 11_900, 12_100, 122_000, 130_500, 130_900] {
            for dims in [16, 18, 60, 254] {
                let data = vec![5u8; nbytes];
                let key = format!("{nbytes} {dims}");
                let (_, ended) = recv(&a, Some("b"), key.as_bytes(), false);
                let sent = send(&b, key.as_bytes(), tensor(&data, dims));
                let got = ended.recv_timeout(LONG).unwrap();
                assert!(got.as_ref().is_ok_and(|g| *g == data), "{kind:?} {key}: {got:?}");
                // Until then the content is borrowed.
                sent.recv_timeout(LONG).unwrap().unwrap();
            }
        }
        a.destroy().unwrap();
        b.destroy().unwrap();
    }
}

#[test]
fn very_many_receives_with_too_little_room() {
    let config = Config { tolerate_dup_recv: true, ..config("a", ProviderKind::Loopback) };
    let m = Manager::new(config).unwrap();
    static DATA: [u8; 64] = [3; 64];
    let mut byte = 0u8;
    let (tx, rx) = mpsc::channel();
    const N: usize = 100_000;
    for _ in 0..N {
        let tx = tx.clone();
        let done: RecvDone = Box::new(move |r, _| tx.send(r.map(drop)).unwrap());
        let target = Target::Given { addr: (&raw mut byte).addr() as u64, len: 1 };
        // SAFETY: nothing fits, so nothing is written; `byte` lives to the end.
        unsafe { m.recv_async(None, b"key", 1, options(target, false), done) }.unwrap();
    }
    let (_, last) = recv(&m, None, b"key", false);
    send(&m, b"key", tensor(&DATA, 1));
    for _ in 0..N {
        assert_eq!(rx.recv_timeout(LONG).unwrap().unwrap_err().code, Code::OutOfRange);
    }
    assert_eq!(last.recv_timeout(LONG).unwrap().unwrap(), DATA);
    m.destroy().unwrap();
}

#[test]
fn a_trace_that_cannot_be_written_does_not_keep_a_manager_alive() {
    let m = manager("a", ProviderKind::Loopback);
    // SAFETY: a C string, and a descriptor that is nobody else's.
    let file = unsafe {
        let fd = libc::memfd_create(c"trace".as_ptr(), libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC);
        assert!(fd >= 0);
        OwnedFd::from_raw_fd(fd)
    };
    m.trace_start(&format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    // Nobody writes to it any more.
    // SAFETY: an open descriptor.
    let sealed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_WRITE) };
    assert_eq!(sealed, 0);
    static DATA: [u8; 64] = [3; 64];
    let sent = send(&m, b"key", tensor(&DATA, 1));
    let (_, ended) = recv(&m, None, b"key", false);
    assert_eq!(ended.recv_timeout(LONG).unwrap().unwrap(), DATA);
    sent.recv_timeout(LONG).unwrap().unwrap();
    m.destroy().unwrap();
}

#[test]
fn a_peer_fills_its_part_of_the_memory_only() {
    let (a, b) = pair(config("a", ProviderKind::Tcp), config("b", ProviderKind::Tcp));
    let refused = Arc::new(AtomicBool::new(false));
    let mut left = 3000;
    // Each waits with a key of 64 KiB, twice: 3,000 of them are over the 64 MiB that are allowed.
    while left > 0 && !refused.load(Ordering::Relaxed) {
        let mut key = vec![b'k'; MAX_KEY_LEN];
        key[..4].copy_from_slice(&(left as u32).to_le_bytes());
        let refused = refused.clone();
        let done: RecvDone = Box::new(move |r, _| {
            if r.is_err_and(|s| s.code == Code::ResourceExhausted) {
                refused.store(true, Ordering::Relaxed);
            }
        });
        // SAFETY: library memory.
        unsafe { a.recv_async(Some("b"), &key, 1, options(Target::Library, false), done) }.unwrap();
        left -= 1;
    }
    let begun = Instant::now();
    while !refused.load(Ordering::Relaxed) {
        assert!(begun.elapsed() < LONG, "nothing was refused");
        std::thread::sleep(Duration::from_millis(5));
    }
    // The connection lives on, and others' requests are not affected.
    static DATA: [u8; 64] = [3; 64];
    send(&b, b"key", tensor(&DATA, 1));
    a.step_abort(1, Status::new(Code::Aborted, "enough")).unwrap();
    a.step_cleanup(1).unwrap();
    a.destroy().unwrap();
    b.destroy().unwrap();
}

/// A tensor of so many bytes that nobody touches.
fn unseen(nbytes: u64) -> Tensor {
    static DATA: [u8; 64] = [3; 64];
    Tensor { meta: Meta { dtype: 1, nbytes, ..Default::default() }, ..tensor(&DATA, 0) }
}

#[test]
fn r17_a_refused_tensor_does_not_spoil_its_key() {
    static DATA: [u8; 300_000] = [9; 300_000];
    for kind in [ProviderKind::Tcp, ProviderKind::Loopback, ProviderKind::Shm] {
        let (a, b) = pair(config("a", kind), config("b", kind));
        let (_, ended) = recv(&a, Some("b"), b"key", false);
        send(&b, b"key", unseen(1 << 40));
        let status = ended.recv_timeout(LONG).unwrap().unwrap_err();
        assert_eq!(status.code, Code::ResourceExhausted, "{kind:?} {status}");
        for _ in 0..2 {
            let (_, ended) = recv(&a, Some("b"), b"key", false);
            send(&b, b"key", tensor(&DATA, 1));
            assert_eq!(ended.recv_timeout(LONG).unwrap().unwrap(), DATA, "{kind:?}");
        }
        a.destroy().unwrap();
        b.destroy().unwrap();
    }
}

/// A receive by an allocation callback that gives memory only up to a size.
fn recv_up_to(
    m: &Manager,
    step: i64,
    into: &'static [u8],
    most: u64,
) -> (mpsc::Receiver<u64>, Ended) {
    let (asked, asks) = mpsc::channel();
    let (tx, rx) = mpsc::channel();
    let at = into.as_ptr() as u64;
    let alloc: AllocFn = Box::new(move |meta| {
        let _ = asked.send(meta.nbytes);
        (meta.nbytes <= most).then_some(at)
    });
    let done: RecvDone = Box::new(move |r, _| drop(tx.send(r.map(|_| Vec::new()))));
    let options = options(Target::Alloc(alloc), false);
    // SAFETY: the memory is 'static.
    unsafe { m.recv_async(Some("b"), b"key", step, options, done) }.unwrap();
    (asks, rx)
}

#[test]
fn r17_no_memory_for_cached_metadata_asks_again() {
    const LARGE: usize = 300_000;
    const SMALL: usize = 200_000;
    let large: &'static [u8] = vec![1; LARGE].leak();
    let small: &'static [u8] = vec![2; SMALL].leak();
    let into: &'static [u8] = vec![0; LARGE].leak();
    for kind in [ProviderKind::Tcp, ProviderKind::Loopback, ProviderKind::Shm] {
        let (a, b) = pair(config("a", kind), config("b", kind));
        send(&b, b"key", tensor(large, 1));
        let (asks, ended) = recv_up_to(&a, 1, into, LARGE as u64);
        ended.recv_timeout(LONG).unwrap().unwrap();
        assert_eq!(asks.iter().collect::<Vec<_>>(), [LARGE as u64], "{kind:?}");
        // The cached metadata is of the large one, for which there is no memory any more.
        send(&b, b"key", tensor(small, 1));
        let (asks, ended) = recv_up_to(&a, 1, into, SMALL as u64);
        ended.recv_timeout(LONG).unwrap().unwrap();
        assert_eq!(asks.iter().collect::<Vec<_>>(), [LARGE as u64, SMALL as u64], "{kind:?}");
        // No memory for what the sender really has is the end, after one more question.
        send(&b, b"key", tensor(large, 1));
        let (asks, ended) = recv_up_to(&a, 1, into, 0);
        let status = ended.recv_timeout(LONG).unwrap().unwrap_err();
        assert_eq!(status.code, Code::ResourceExhausted, "{kind:?} {status}");
        assert_eq!(asks.iter().collect::<Vec<_>>(), [SMALL as u64, LARGE as u64], "{kind:?}");
        a.destroy().unwrap();
        b.destroy().unwrap();
    }
}

/// The destination comes from the callback before anything is sent, so it is the callback's return that
/// asks for the connection: a driver that sleeps has to hear of it.
#[test]
fn r22_a_receive_by_cached_metadata_dials_a_peer_that_was_lost() {
    static CONTENT: [u8; 3000] = [7; 3000];
    let quiet = |name| Config { busy_poll_us: 0, ..config(name, ProviderKind::Tcp) };
    let (a, b) = pair(quiet("a"), quiet("b"));
    for round in 0..2 {
        // Every driver goes to sleep, and the last tick of the keep-alive passes: nothing else wakes one.
        std::thread::sleep(Duration::from_millis(1500));
        let sent = send(&b, b"key", tensor(&CONTENT, 1));
        let (tx, rx) = mpsc::channel();
        let done: RecvDone =
            Box::new(move |result, _| drop(tx.send(result.map(|t| t.meta.nbytes))));
        let mut room = vec![0u8; CONTENT.len()];
        let at = room.as_mut_ptr() as u64;
        let target = Target::Alloc(Box::new(move |_: &Meta| Some(at)));
        // SAFETY: `room` lives until the receive has ended, below.
        unsafe { a.recv_async(Some("b"), b"key", 1, options(target, false), done) }.unwrap();
        assert_eq!(rx.recv_timeout(LONG).unwrap().unwrap(), 3000, "round {round}");
        sent.recv_timeout(LONG).unwrap().unwrap();
        assert_eq!(room, CONTENT);
        a.disconnect("b").unwrap();
    }
}

/// What a defect of the engine drops ends with `INTERNAL`: the receive, and the send whose tensor it held.
#[test]
fn r21_dropped_callbacks_run_with_internal_and_are_counted() {
    static CONTENT: [u8; 16] = [7; 16];
    let a = manager("a", ProviderKind::Loopback);
    a.plant(Planted::LosesRecv);
    let sent = send(&a, b"key", tensor(&CONTENT, 1));
    let (_, received) = recv(&a, None, b"key", false);
    let status = received.recv_timeout(LONG).unwrap().unwrap_err();
    assert_eq!(status.code, Code::Internal, "{status}");
    assert!(status.message.contains("was dropped"), "{status}");
    let status = sent.recv_timeout(LONG).unwrap().unwrap_err();
    assert_eq!(status.code, Code::Internal, "{status}");
    let stats = a.stats_json().unwrap();
    assert!(stats.contains("\"internal_ends\":2"), "{stats}");
    a.destroy().unwrap();
}
