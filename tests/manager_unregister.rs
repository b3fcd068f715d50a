//! Memory that the application unregisters while transfers use it: they end, and nothing touches it
//! afterwards.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rdma_transport::api::*;
use rdma_transport::config::{Config, Progress};
use rdma_transport::fabric::ProviderKind;
use rdma_transport::manager::Manager;
use rdma_transport::status::{Code, Status};

const LONG: Duration = Duration::from_secs(20);
const BIG: usize = 8 << 20;
const KINDS: [ProviderKind; 3] = [ProviderKind::Loopback, ProviderKind::Shm, ProviderKind::Tcp];

/// `a` has a thread; `b` moves only when it is turned.
fn pair(kind: ProviderKind) -> (Arc<Manager>, Arc<Manager>) {
    let config =
        |name: &str| Config { name: name.into(), provider: Some(kind), ..Config::default() };
    let a = Manager::new(config("a")).unwrap();
    let b = Manager::new(Config { progress: Progress::Manual, ..config("b") }).unwrap();
    a.import_address(&b.export_address().unwrap()).unwrap();
    let up = Arc::new(AtomicBool::new(false));
    let (theirs, peer) = (up.clone(), a.clone());
    let dial = std::thread::spawn(move || {
        let result = peer.connect("b", Some(LONG));
        theirs.store(true, Ordering::SeqCst);
        result
    });
    until(&b, || up.load(Ordering::SeqCst));
    dial.join().unwrap().unwrap();
    until(&b, || b.peer_info("a").is_ok_and(|info| info.state == PeerState::Connected));
    (a, b)
}

/// Turns a manager until something is so.
fn until(m: &Manager, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        m.progress().unwrap();
        assert!(begun.elapsed() < LONG, "it never was so");
    }
}

/// Pages of their own, which can be taken away.
struct Pages(*mut u8, usize);

impl Pages {
    fn new(len: usize, fill: u8) -> Pages {
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        // SAFETY: the mapping is writable and of this length.
        unsafe { at.cast::<u8>().write_bytes(fill, len) };
        Pages(at.cast(), len)
    }
    fn addr(&self) -> u64 {
        self.0 as u64
    }
    fn unmap(self) {
        // SAFETY: the mapping is ours and nothing refers to it.
        assert_eq!(unsafe { libc::munmap(self.0.cast(), self.1) }, 0);
    }
    fn tensor(&self, len: usize) -> Tensor {
        let mut meta = Meta { dtype: 1, nbytes: len as u64, ..Default::default() };
        meta.dims.push(len as i64);
        Tensor { meta, addr: self.addr(), device: 0 }
    }
}

fn register(m: &Manager, pages: &Pages) {
    // SAFETY: the callers unmap after unregistering.
    unsafe { m.mem_register(pages.addr(), pages.1 as u64, 0) }.unwrap();
}

type Ended<T> = mpsc::Receiver<Result<T, Status>>;

fn recv(m: &Manager, peer: Option<&str>, key: &[u8], target: Target) -> (u64, Ended<u64>) {
    let (tx, rx) = mpsc::channel();
    let done: RecvDone = Box::new(move |r, _| drop(tx.send(r.map(|t| t.meta.nbytes))));
    let options = RecvOptions { timeout: Some(LONG), target, device: 0, keep: false };
    // SAFETY: the callers' memory is unregistered before it goes.
    let id = unsafe { m.recv_async(peer, key, 1, options, done) }.unwrap();
    (id, rx)
}

fn send(m: &Manager, key: &[u8], tensor: Tensor) -> Ended<()> {
    let (tx, rx) = mpsc::channel();
    let done: SendDone = Box::new(move |result, _| drop(tx.send(result)));
    // SAFETY: as above.
    unsafe { m.send(key, 1, tensor, None, Some(done.into())) }.unwrap();
    rx
}

#[track_caller]
fn refused<T: std::fmt::Debug>(ended: &Ended<T>, what: &str) {
    let status = ended.recv_timeout(LONG).unwrap().unwrap_err();
    assert_eq!(status.code, Code::FailedPrecondition, "{what}: {status}");
    assert!(status.message.contains("unregistered"), "{what}: {status}");
}

/// A small transfer over the same connection, to see that it lives.
fn still_works(a: &Manager, b: &Manager) {
    let sent = send(b, b"after", Pages::new(4096, 9).tensor(4096));
    let (_, got) = recv(a, Some("b"), b"after", Target::Library);
    until(b, || sent.try_recv().is_ok());
    assert_eq!(got.recv_timeout(LONG).unwrap().unwrap(), 4096);
}

#[test]
fn r18_receives_end_when_their_memory_is_unregistered() {
    for kind in KINDS {
        let (a, b) = pair(kind);
        let (dst, src) = (Pages::new(BIG, 0x11), Pages::new(BIG, 0x22));
        register(&a, &dst);
        let given = Target::Given { addr: dst.addr(), len: BIG as u64 };
        let (_, ended) = recv(&a, Some("b"), b"key", given);
        let sent = send(&b, b"key", src.tensor(BIG));
        // Part of the way, as far as one turn gets.
        b.progress().unwrap();
        a.mem_unregister(dst.addr()).unwrap();
        // Or it was quicker.
        if let Some(status) = ended.recv_timeout(LONG).unwrap().err() {
            assert_eq!(status.code, Code::FailedPrecondition, "{kind:?}: {status}");
            assert!(status.message.contains("unregistered"), "{kind:?}: {status}");
        }
        // SAFETY: the mapping is alive and of this length.
        unsafe { dst.0.write_bytes(0x33, BIG) };
        until(&b, || sent.try_recv().is_ok());
        still_works(&a, &b);
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(dst.0, BIG) };
        assert!(bytes.iter().all(|&b| b == 0x33), "{kind:?}: written after it was unregistered");
        dst.unmap();
        b.destroy().unwrap();
        a.destroy().unwrap();
    }
}

#[test]
fn r18_tensors_that_wait_end_when_their_memory_is_unregistered() {
    for kind in KINDS {
        let (a, b) = pair(kind);
        let src = Pages::new(BIG, 1);
        register(&b, &src);
        let sent = send(&b, b"key", src.tensor(BIG));
        b.mem_unregister(src.addr()).unwrap();
        src.unmap();
        until(&b, || match sent.try_recv() {
            Ok(result) => {
                let status = result.unwrap_err();
                assert_eq!(status.code, Code::FailedPrecondition, "{kind:?}: {status}");
                true
            }
            Err(_) => false,
        });
        // It does not hand out what is gone.
        let (id, ended) = recv(&a, Some("b"), b"key", Target::Library);
        for _ in 0..100 {
            b.progress().unwrap();
        }
        assert!(ended.try_recv().is_err());
        a.request_cancel(id).unwrap();
        assert_eq!(ended.recv_timeout(LONG).unwrap().unwrap_err().code, Code::Cancelled);
        still_works(&a, &b);
        b.destroy().unwrap();
        a.destroy().unwrap();
    }
}

#[test]
fn r18_tensors_that_are_offered_end_when_their_memory_is_unregistered() {
    for kind in KINDS {
        let (a, b) = pair(kind);
        let (src, dst) = (Pages::new(BIG, 1), Pages::new(BIG, 2));
        register(&b, &src);
        let sent = send(&b, b"key", src.tensor(BIG));
        // The receiver thinks about where to put it until it is told to go on.
        let (asked, is_asked) = mpsc::channel();
        let (go, going) = mpsc::channel::<()>();
        let addr = dst.addr();
        let alloc = Target::Alloc(Box::new(move |_| {
            asked.send(()).unwrap();
            let _ = going.recv_timeout(LONG);
            Some(addr)
        }));
        let (_, ended) = recv(&a, Some("b"), b"key", alloc);
        until(&b, || is_asked.try_recv().is_ok());
        b.mem_unregister(src.addr()).unwrap();
        src.unmap();
        go.send(()).unwrap();
        until(&b, || match ended.try_recv() {
            Ok(result) => {
                // Told by the sender, or refused when it read.
                let status = result.unwrap_err();
                let fits = [Code::FailedPrecondition, Code::PermissionDenied];
                assert!(fits.contains(&status.code), "{kind:?}: {status}");
                true
            }
            Err(_) => false,
        });
        // Its callback is one turn away at most.
        b.progress().unwrap();
        refused(&sent, "the send");
        still_works(&a, &b);
        b.destroy().unwrap();
        a.destroy().unwrap();
        dst.unmap();
    }
}

#[test]
fn r18_writes_to_a_peer_that_stands_still_end_with_its_connection() {
    let (a, b) = pair(ProviderKind::Tcp);
    let (src, dst) = (Pages::new(BIG * 8, 1), Pages::new(BIG * 8, 2));
    register(&a, &src);
    // b asks, and then takes nothing any more: the writes get stuck in the socket.
    let given = Target::Given { addr: dst.addr(), len: (BIG * 8) as u64 };
    let (_, _ended) = recv(&b, Some("a"), b"key", given);
    let sent = send(&a, b"key", src.tensor(BIG * 8));
    let begun = Instant::now();
    a.mem_unregister(src.addr()).unwrap();
    assert!(begun.elapsed() < LONG);
    src.unmap();
    refused(&sent, "the send");
    b.destroy().unwrap();
    a.destroy().unwrap();
    dst.unmap();
}

#[test]
fn r18_local_transfers_end_when_their_memory_is_unregistered() {
    let (a, b) = pair(ProviderKind::Loopback);
    let dst = Pages::new(4096, 1);
    register(&a, &dst);
    let given = Target::Given { addr: dst.addr(), len: 4096 };
    let (_, ended) = recv(&a, None, b"key", given);
    a.mem_unregister(dst.addr()).unwrap();
    refused(&ended, "the receive");
    assert_eq!(a.mem_unregister(dst.addr()).unwrap_err().code, Code::NotFound);
    b.destroy().unwrap();
    a.destroy().unwrap();
    dst.unmap();
}

#[test]
fn r18_memory_can_be_unregistered_inside_a_callback() {
    for kind in KINDS {
        let (a, b) = pair(kind);
        let dst = Pages::new(BIG, 0x11);
        register(&a, &dst);
        let given = Target::Given { addr: dst.addr(), len: BIG as u64 };
        let (_, ended) = recv(&a, Some("b"), b"key", given);
        let (tx, called) = mpsc::channel();
        let (inside, addr) = (a.clone(), dst.addr());
        let done: RecvDone = Box::new(move |_, _| drop(tx.send(inside.mem_unregister(addr))));
        let target = Target::Library;
        let options = RecvOptions { timeout: Some(LONG), target, device: 0, keep: false };
        // SAFETY: library memory.
        unsafe { a.recv_async(None, b"local", 1, options, done) }.unwrap();
        let _sent = send(&a, b"local", Pages::new(4096, 1).tensor(16));
        called.recv_timeout(LONG).unwrap().unwrap();
        refused(&ended, "the receive");
        dst.unmap();
        b.destroy().unwrap();
        a.destroy().unwrap();
    }
}

/// Callbacks of as many threads as there are queues for are under way: the next one is run by itself, and its memory is nobody's, too.
#[test]
fn r18_memory_can_be_unregistered_inside_one_of_many_callbacks() {
    const BUSY: usize = 8;
    let (a, b) = pair(ProviderKind::Shm);
    let inside = Arc::new(AtomicUsize::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let places: Vec<Pages> = (0..=BUSY).map(|_| Pages::new(4096, 1)).collect();
    let (tx, rx) = mpsc::channel();
    for (i, place) in places.iter().enumerate() {
        register(&b, place);
        let (inside, stop, tx) = (inside.clone(), stop.clone(), tx.clone());
        let (manager, addr) = (Arc::downgrade(&b), place.addr());
        let done: RecvDone = Box::new(move |result, _| {
            result.unwrap();
            inside.fetch_add(1, Ordering::SeqCst);
            while i < BUSY && !stop.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            if i == BUSY {
                tx.send(manager.upgrade().unwrap().mem_unregister(addr)).unwrap();
            }
        });
        let target = Target::Given { addr, len: 4096 };
        let options = RecvOptions { timeout: Some(LONG), target, device: 0, keep: false };
        // SAFETY: the memory outlives the manager.
        unsafe { b.recv_async(Some("a"), &[i as u8], 1, options, done) }.unwrap();
    }
    std::thread::scope(|scope| {
        for _ in 0..=BUSY {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    b.progress().unwrap();
                    std::thread::sleep(Duration::from_micros(100));
                }
            });
        }
        for i in 0..=BUSY {
            send(&a, &[i as u8], Pages::new(4096, 2).tensor(4096));
            let begun = Instant::now();
            while inside.load(Ordering::SeqCst) <= i && begun.elapsed() < LONG {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let ended = rx.recv_timeout(LONG);
        stop.store(true, Ordering::SeqCst);
        ended.unwrap().unwrap();
    });
    b.destroy().unwrap();
    a.destroy().unwrap();
}
