//! What ends a call that blocks, and what it must not miss.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rdma_transport::api::*;
use rdma_transport::config::{Config, Progress};
use rdma_transport::engine::front::pair::{Slot, Way};
use rdma_transport::fabric::ProviderKind;
use rdma_transport::fabric::moves::{Claim, Ranges};
use rdma_transport::manager::{Manager, Timeout};
use rdma_transport::status::Code;

const LONG: Duration = Duration::from_secs(30);

static DATA: [u8; 1024] = [7; 1024];

fn manager(name: &str, progress: Progress) -> Arc<Manager> {
    let config = Config {
        name: name.into(),
        provider: Some(ProviderKind::Tcp),
        progress,
        ..Config::default()
    };
    Manager::new(config).unwrap()
}

fn send(from: &Manager, key: &[u8], step: i64) {
    let meta = Meta { dtype: 1, nbytes: DATA.len() as u64, ..Default::default() };
    let tensor = Tensor { meta, addr: DATA.as_ptr() as u64, device: 0 };
    // SAFETY: static memory.
    unsafe { from.send(key, step, tensor, None, None) }.unwrap();
}

fn options(target: Target, keep: bool) -> RecvOptions {
    RecvOptions { timeout: Some(LONG), target, device: 0, keep }
}

fn receive(m: &Manager, key: &[u8], step: i64, done: RecvDone) -> u64 {
    // SAFETY: library memory.
    unsafe { m.recv_async(None, key, step, options(Target::Library, false), done) }.unwrap()
}

/// A rank that never comes, and a manager that ends meanwhile.
#[test]
fn who_waits_for_ever_for_a_mesh_hears_of_the_end() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let m = manager("m", Progress::Thread);
    m.add_peer("x", &silent.local_addr().unwrap().to_string()).unwrap();
    let (tx, ended) = mpsc::channel();
    let other = m.clone();
    let waits = std::thread::spawn(move || {
        tx.send(other.connect_all(&["x".to_owned()], 1, None)).unwrap();
    });
    // Longer than it leaves the dialling to others.
    assert!(ended.recv_timeout(Duration::from_millis(1500)).is_err());
    m.destroy().unwrap();
    let end = ended.recv_timeout(LONG).expect("it waits on").unwrap_err();
    assert_eq!(end.code, Code::Cancelled, "{end}");
    waits.join().unwrap();
}

/// A callback waits for a copy that writes what it gives back.
#[test]
fn a_flush_waits_for_callbacks_that_wait_for_a_copy() {
    let m = manager("m", Progress::Manual);
    let memory = Box::leak(Box::new([0u8; DATA.len()]));
    let (addr, len) = (memory.as_mut_ptr() as u64, memory.len() as u64);
    let told = Arc::new(AtomicBool::new(false));
    let ran = told.clone();
    let done: RecvDone = Box::new(move |_, _| ran.store(true, Ordering::SeqCst));
    let target = options(Target::Given { addr, len }, false);
    // SAFETY: the memory is leaked.
    let id = unsafe { m.recv_async(None, b"never", 1, target, done) }.unwrap();
    let mut ranges = Ranges::new();
    ranges.push((addr, len));
    let copy = Claim::new(ranges);
    m.request_cancel(id).unwrap();
    let end = m.flush(None, Duration::from_millis(50)).unwrap_err();
    assert_eq!(end.code, Code::DeadlineExceeded, "{end}");
    assert!(end.message.contains("callbacks have not returned"), "{end}");
    assert!(!told.load(Ordering::SeqCst));
    drop(copy);
    m.flush(None, LONG).unwrap();
    assert!(told.load(Ordering::SeqCst));
    m.destroy().unwrap();
}

/// A manager that receives from itself has the sender's memory until it lets go of it.
#[test]
fn a_flush_waits_for_what_a_receive_of_ones_own_has_not_let_go_of() {
    for progress in [Progress::Thread, Progress::Manual] {
        let m = manager("m", progress);
        let ended = Arc::new(AtomicBool::new(false));
        let ends = ended.clone();
        let done: SendDone = Box::new(move |_, _| ends.store(true, Ordering::SeqCst));
        let meta = Meta { nbytes: DATA.len() as u64, ..Meta::default() };
        let tensor = Tensor { meta, addr: DATA.as_ptr() as u64, device: 0 };
        // SAFETY: the data is static.
        unsafe { m.send(b"key", 1, tensor, None, Some(done.into())) }.unwrap();
        let target = options(Target::Library, true);
        let done: RecvDone = Box::new(|result, _| assert!(result.is_ok()));
        // SAFETY: the library's own memory.
        let id = unsafe { m.recv_async(None, b"key", 1, target, done) }.unwrap();
        let end = m.flush(None, Duration::from_millis(50)).unwrap_err();
        assert_eq!(end.code, Code::DeadlineExceeded, "{end}");
        assert!(end.message.contains("rdma_request_release"), "{end}");
        assert!(!ended.load(Ordering::SeqCst), "{progress:?}");
        let releases = m.clone();
        let released = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            releases.request_release(id).unwrap();
        });
        m.flush(None, LONG).unwrap();
        assert!(ended.load(Ordering::SeqCst), "{progress:?}");
        released.join().unwrap();
        m.destroy().unwrap();
    }
}

/// What ends with the manager did not end well, whoever drives.
#[test]
fn a_flush_hears_that_its_manager_was_destroyed() {
    for progress in [Progress::Thread, Progress::Manual] {
        let m = manager("m", progress);
        let (tx, ended) = mpsc::channel();
        let done: RecvDone = Box::new(move |result, _| {
            let _ = tx.send(result.map(drop));
        });
        receive(&m, b"never", 1, done);
        let waits = m.clone();
        let flushes = std::thread::spawn(move || waits.flush(None, LONG));
        std::thread::sleep(Duration::from_millis(100));
        m.destroy().unwrap();
        let end = flushes.join().unwrap().unwrap_err();
        assert_eq!(end.code, Code::Cancelled, "{progress:?}: {end}");
        assert_eq!(ended.recv_timeout(LONG).unwrap().unwrap_err().code, Code::Cancelled);
    }
}

/// A caller that drives and sleeps hears of what the progress thread had begun before.
#[test]
fn r01_a_flush_hears_of_a_callback_on_another_thread() {
    const ROUNDS: i64 = 10;
    let m = manager("m", Progress::Thread);
    let mut slow = 0;
    for step in 0..ROUNDS {
        let (tx, running) = mpsc::channel();
        let done: RecvDone = Box::new(move |_, _| {
            tx.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(30));
        });
        receive(&m, b"key", step, done);
        let from = m.clone();
        let sender = std::thread::spawn(move || send(&from, b"key", step));
        running.recv_timeout(LONG).unwrap();
        let began = Instant::now();
        m.flush(None, LONG).unwrap();
        slow += i64::from(began.elapsed() > Duration::from_millis(250));
        sender.join().unwrap();
    }
    assert!(slow < ROUNDS / 2, "{slow} of {ROUNDS} waited for a timer");
    m.destroy().unwrap();
}

/// The callbacks of others that a blocking receive runs are news to the wait that follows.
#[test]
fn r03_a_blocking_receive_hides_nothing_from_a_wait() {
    let m = manager("m", Progress::Manual);
    let told = Arc::new(AtomicBool::new(false));
    let ran = told.clone();
    receive(&m, b"first", 1, Box::new(move |_, _| ran.store(true, Ordering::SeqCst)));
    send(&m, b"first", 1);
    send(&m, b"second", 1);
    // SAFETY: library memory.
    let (_, id) = unsafe { m.recv(None, b"second", 1, options(Target::Library, true)) }.unwrap();
    m.request_release(id).unwrap();
    assert!(told.load(Ordering::SeqCst), "it ran in the receive");
    m.wait(Duration::from_millis(100)).unwrap();
    m.destroy().unwrap();
}

/// What a thread has seen of a manager is nothing that it knows of the next, wherever that lies.
#[test]
fn r03_a_wait_on_a_new_manager_sees_what_happened_before_it() {
    for _ in 0..5 {
        let m = manager("m", Progress::Manual);
        receive(&m, b"key", 1, Box::new(|_, _| ()));
        send(&m, b"key", 1);
        while m.progress().unwrap() > 0 {}
        m.wait(Duration::from_millis(100)).unwrap();
        m.destroy().unwrap();
    }
}

/// How many of these waits, each ended by a call on another thread, went on until a timer was due.
fn late(
    rounds: usize,
    mut round: impl FnMut() -> (Box<dyn FnOnce() + Send>, Box<dyn FnOnce()>),
) -> usize {
    (0..rounds)
        .filter(|i| {
            let (wait, end) = round();
            let (tx, ended) = mpsc::channel();
            let waits = std::thread::spawn(move || {
                wait();
                tx.send(Instant::now()).unwrap();
            });
            // Until it sleeps; at another time before its own look each round.
            std::thread::sleep(Duration::from_millis(150 + 40 * *i as u64));
            let begun = Instant::now();
            end();
            let ended = ended.recv_timeout(LONG).expect("it waits on");
            waits.join().unwrap();
            ended.saturating_duration_since(begun) > Duration::from_millis(90)
        })
        .count()
}

/// Nothing happens in the engine that a turn would tell of: the call itself tells who waits.
#[test]
fn r01_who_waits_for_what_another_thread_ends_hears_of_it() {
    const ROUNDS: usize = 8;
    for progress in [Progress::Thread, Progress::Manual] {
        let [m, other] = ["m", "other"].map(|name| manager(name, progress));
        let buffers = late(ROUNDS, || {
            let pair = m.pair_create(1, Timeout::Default).unwrap();
            let slot = Slot { way: Way::Recv, slot: 1, addr: 0, len: 0 };
            // SAFETY: no memory.
            let buffer = unsafe { m.buffer_create(pair, slot, None) }.unwrap();
            let (waits, ends) = (m.clone(), m.clone());
            let wait = move || {
                let end = waits.buffer_wait(buffer, Way::Recv, Timeout::Never).unwrap_err();
                assert_eq!(end.code, Code::NotFound, "{end}");
            };
            (Box::new(wait), Box::new(move || ends.buffer_destroy(buffer).unwrap()))
        });
        let pairs = late(ROUNDS, || {
            let pair = m.pair_create(1, Timeout::Default).unwrap();
            let (waits, ends) = (m.clone(), m.clone());
            let theirs = other.pair_create(0, Timeout::Default).unwrap();
            let address = other.pair_address(theirs).unwrap();
            let wait = move || {
                let end = waits.pair_connect(pair, &address, Some(LONG)).unwrap_err();
                assert_eq!(end.code, Code::NotFound, "{end}");
            };
            (Box::new(wait), Box::new(move || ends.pair_close(pair).unwrap()))
        });
        let peers = late(ROUNDS, || {
            let (waits, ends) = (m.clone(), m.clone());
            if progress == Progress::Manual {
                let turns = other.clone();
                let name = Arc::new(AtomicBool::new(false));
                let done = name.clone();
                let turned = std::thread::spawn(move || {
                    while !done.load(Ordering::SeqCst) {
                        turns.progress().unwrap();
                    }
                });
                m.connect("other", Some(LONG)).unwrap();
                name.store(true, Ordering::SeqCst);
                turned.join().unwrap();
            } else {
                m.connect("other", Some(LONG)).unwrap();
            }
            let wait = move || {
                while waits.wait(Duration::from_millis(20)).is_ok() {}
                // On a busy machine it may have been told of that already.
                if waits.peer_info("other").unwrap().channels > 0 {
                    waits.wait(LONG).unwrap();
                }
            };
            (Box::new(wait), Box::new(move || ends.disconnect("other").unwrap()))
        });
        let all = [buffers, pairs, peers];
        assert!(all.iter().all(|&n| n < ROUNDS / 2), "{progress:?}: {all:?} of {ROUNDS} were late");
        m.destroy().unwrap();
        other.destroy().unwrap();
    }
}
