//! A program that gives receives up as fast as it posts them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rdma_transport::api::*;
use rdma_transport::config::{Config, Progress};
use rdma_transport::fabric::ProviderKind;
use rdma_transport::manager::Manager;
use rdma_transport::status::{Code, Status};

const LONG: Duration = Duration::from_secs(30);
/// More than a channel lets wait.
const MANY: u32 = 1_000_000;

static DATA: [u8; 8] = [7; 8];

fn manager(name: &str, kind: ProviderKind) -> Arc<Manager> {
    let config = Config {
        name: name.into(),
        provider: Some(kind),
        listen: Some("127.0.0.1:0".into()),
        progress: Progress::Manual,
        ..Config::default()
    };
    Manager::new(config).unwrap()
}

fn post(m: &Manager, key: &[u8], step: i64, timeout: Duration, done: RecvDone) -> u64 {
    let options =
        RecvOptions { timeout: Some(timeout), target: Target::Library, device: 0, keep: false };
    // SAFETY: library memory.
    unsafe { m.recv_async(Some("b"), key, step, options, done) }.unwrap()
}

/// Drives both until a receive of a tensor that is there has ended.
fn innocent(a: &Manager, b: &Manager) -> Result<(), Status> {
    let meta = Meta { dtype: 1, nbytes: DATA.len() as u64, ..Default::default() };
    let tensor = Tensor { meta, addr: DATA.as_ptr() as u64, device: 0 };
    // SAFETY: static memory.
    unsafe { b.send(b"innocent", 1, tensor, None, None) }.unwrap();
    let (tx, rx) = std::sync::mpsc::channel();
    post(a, b"innocent", 1, LONG, Box::new(move |result, _| drop(tx.send(result.map(drop)))));
    loop {
        a.progress().unwrap();
        b.progress().unwrap();
        if let Ok(result) = rx.try_recv() {
            return result;
        }
    }
}

/// Receives of names that nobody sends are posted and cancelled while the peer takes nothing. What has not left
/// leaves the queue again: the peer never hears of it, and the next receive is not behind it.
fn given_up(kind: ProviderKind) {
    let (a, b) = (manager("a", kind), manager("b", kind));
    a.import_address(&b.export_address().unwrap()).unwrap();
    innocent(&a, &b).unwrap();
    let ended = Arc::new(AtomicU32::new(0));
    for step in 0..MANY {
        let ended = ended.clone();
        let done: RecvDone = Box::new(move |result, _| {
            assert_eq!(result.unwrap_err().code, Code::Cancelled);
            ended.fetch_add(1, Ordering::Relaxed);
        });
        let id = post(&a, b"nobody sends this", i64::from(step), LONG, done);
        a.request_cancel(id).unwrap();
        if step.is_multiple_of(1000) {
            a.progress().unwrap();
        }
    }
    a.progress().unwrap();
    let start = Instant::now();
    innocent(&a, &b).unwrap();
    println!("{kind:?}: an innocent receive took {:?}", start.elapsed());
    assert_eq!(count(&a, "disconnects"), 0, "the channel ended");
    // Only those that left at once, for which the peer had room, and a CANCEL for each.
    let heard = count(&b, "requests_received");
    println!("{kind:?}: the peer heard of {heard} receives");
    assert!(heard < MANY as u64 / 4, "the peer heard of {heard} receives");
    while ended.load(Ordering::Relaxed) < MANY {
        a.progress().unwrap();
        b.progress().unwrap();
    }
}

/// A counter of the manager's one peer.
fn count(m: &Manager, name: &str) -> u64 {
    let (json, name) = (m.stats_json().unwrap(), format!("\"{name}\":"));
    let counts = json.match_indices(&name).map(|(at, _)| {
        let digits = json[at + name.len()..].trim_start();
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        digits[..end].parse::<u64>().unwrap()
    });
    counts.max().expect("the counter")
}

#[test]
fn r08_receives_given_up_leave_the_queue_loopback() {
    given_up(ProviderKind::Loopback);
}

#[test]
fn r08_receives_given_up_leave_the_queue_shm() {
    given_up(ProviderKind::Shm);
}

#[test]
fn r08_receives_given_up_leave_the_queue_tcp() {
    given_up(ProviderKind::Tcp);
}

/// The same for those whose time is up, and for ones that wait behind too many others.
#[test]
fn r08_a_receive_that_finds_the_queue_full_fails_and_the_channel_lives() {
    use rdma_transport::limits::ASKS;
    let (a, b) = (manager("a", ProviderKind::Loopback), manager("b", ProviderKind::Loopback));
    a.import_address(&b.export_address().unwrap()).unwrap();
    innocent(&a, &b).unwrap();
    let (full, late) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let many = ASKS as u32 + 10_000;
    for step in 0..many {
        let (full, late) = (full.clone(), late.clone());
        let done: RecvDone = Box::new(move |result, _| {
            let status = result.unwrap_err();
            match status.code {
                Code::ResourceExhausted => full.fetch_add(1, Ordering::Relaxed),
                Code::DeadlineExceeded => late.fetch_add(1, Ordering::Relaxed),
                _ => panic!("{status}"),
            };
        });
        post(&a, b"nobody sends this", i64::from(step), Duration::from_secs(2), done);
    }
    while full.load(Ordering::Relaxed) + late.load(Ordering::Relaxed) < many {
        a.progress().unwrap();
    }
    let full = full.load(Ordering::Relaxed);
    assert!((1..10_000).contains(&full), "{full} were refused");
    innocent(&a, &b).unwrap();
    assert_eq!(count(&a, "disconnects"), 0, "the channel ended");
    let heard = count(&b, "requests_received");
    assert!(heard < ASKS as u64 / 4, "the peer heard of {heard} receives");
}

/// Its memory is the application's as soon as the READ has ended: neither at the end of the time that the peer has to answer a
/// CANCEL, nor with the connection.
#[test]
fn a_receive_that_is_cancelled_while_it_reads_ends_with_its_read() {
    const LEN: usize = 64 << 20;
    for kind in [ProviderKind::Loopback, ProviderKind::Shm, ProviderKind::Tcp] {
        let (a, b) = (manager("a", kind), manager("b", kind));
        a.import_address(&b.export_address().unwrap()).unwrap();
        innocent(&a, &b).unwrap();
        let (src, dst) = (vec![1u8; LEN].leak(), vec![0u8; LEN].leak());
        let meta = Meta { dtype: 1, nbytes: LEN as u64, ..Default::default() };
        let tensor = Tensor { meta, addr: src.as_ptr() as u64, device: 0 };
        // SAFETY: the memory is never freed.
        unsafe { b.send(b"long", 1, tensor, None, None) }.unwrap();
        let (addr, (tx, found)) = (dst.as_mut_ptr() as u64, std::sync::mpsc::channel());
        let alloc: AllocFn = Box::new(move |_| {
            tx.send(()).unwrap();
            Some(addr)
        });
        let target = Target::Alloc(alloc);
        let options = RecvOptions { timeout: Some(LONG), target, device: 0, keep: false };
        let (tx, ended) = std::sync::mpsc::channel();
        let done: RecvDone = Box::new(move |result, _| drop(tx.send(result.map(drop))));
        // SAFETY: as above.
        let id = unsafe { a.recv_async(Some("b"), b"long", 1, options, done) }.unwrap();
        while found.try_recv().is_err() {
            b.progress().unwrap();
            a.progress().unwrap();
        }
        a.request_cancel(id).unwrap();
        let start = Instant::now();
        let result = loop {
            a.progress().unwrap();
            b.progress().unwrap();
            if let Ok(result) = ended.try_recv() {
                break result;
            }
        };
        println!("{kind:?}: it ended after {:?}", start.elapsed());
        assert_eq!(result.unwrap_err().code, Code::Cancelled, "{kind:?}");
        // SAFETY: the memory is valid, and nobody else's any more.
        let mine = unsafe { std::slice::from_raw_parts_mut(addr as *mut u8, LEN) };
        mine.fill(9);
        innocent(&a, &b).unwrap();
        assert!(mine.iter().all(|&byte| byte == 9), "{kind:?}: written after its end");
        assert_eq!(count(&a, "disconnects"), 0, "{kind:?}: the connection ended");
    }
}
