//! What the two sides of a transfer are told when one of them takes its memory back, over every software provider.

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

fn manager(name: &str, kind: ProviderKind) -> Arc<Manager> {
    let config = Config {
        name: name.into(),
        provider: Some(kind),
        progress: Progress::Manual,
        ..Config::default()
    };
    Manager::new(config).unwrap()
}

/// Both move only when they are turned.
fn pair(kind: ProviderKind) -> (Arc<Manager>, Arc<Manager>) {
    let (a, b) = (manager("a", kind), manager("b", kind));
    a.import_address(&b.export_address().unwrap()).unwrap();
    (a, b)
}

/// Turns both until something has ended.
fn until<T>(a: &Manager, b: &Manager, ended: &mpsc::Receiver<T>) -> T {
    let begun = Instant::now();
    loop {
        a.progress().unwrap();
        b.progress().unwrap();
        if let Ok(result) = ended.try_recv() {
            return result;
        }
        assert!(begun.elapsed() < LONG, "it never ended");
    }
}

fn recv(m: &Manager, peer: &str, target: Target) -> (u64, mpsc::Receiver<Result<(), Status>>) {
    let (tx, rx) = mpsc::channel();
    let done: RecvDone = Box::new(move |result, _| drop(tx.send(result.map(drop))));
    let options = RecvOptions { timeout: Some(LONG), target, device: 0, keep: false };
    // SAFETY: the callers' memory outlives the managers.
    (unsafe { m.recv_async(Some(peer), b"key", 1, options, done) }.unwrap(), rx)
}

fn send(m: &Manager, bytes: &[u8]) -> mpsc::Receiver<Result<(), Status>> {
    let mut meta = Meta { dtype: 1, nbytes: bytes.len() as u64, ..Default::default() };
    meta.dims.push(bytes.len() as i64);
    let tensor = Tensor { meta, addr: bytes.as_ptr() as u64, device: 0 };
    let (tx, rx) = mpsc::channel();
    let done: SendDone = Box::new(move |result, _| drop(tx.send(result)));
    // SAFETY: as above.
    unsafe { m.send(b"key", 1, tensor, None, Some(done.into())) }.unwrap();
    rx
}

/// The receiver unregisters its destination while it is written, as far as so many turns of the sender get.
#[test]
fn r18_the_sender_is_told_the_same_whenever_the_receiver_unregisters() {
    for kind in KINDS {
        for turns in 0..6 {
            let (a, b) = pair(kind);
            let (source, destination) = (vec![1u8; BIG], vec![2u8; BIG]);
            let addr = destination.as_ptr() as u64;
            // SAFETY: alive until the end of this loop.
            unsafe { a.mem_register(addr, BIG as u64, 0) }.unwrap();
            let (_, ended) = recv(&a, "b", Target::Given { addr, len: BIG as u64 });
            let begun = Instant::now();
            while b.peer_info("a").map_or(0, |info| info.requests_received) == 0 {
                a.progress().unwrap();
                b.progress().unwrap();
                assert!(begun.elapsed() < LONG);
            }
            let sent = send(&b, &source);
            for _ in 0..turns {
                b.progress().unwrap();
            }
            a.mem_unregister(addr).unwrap();
            let received = until(&a, &b, &ended).unwrap_err();
            assert_eq!(received.code, Code::FailedPrecondition, "{kind:?} {turns}: {received}");
            // As rdma_send_done_fn says.
            let sent = until(&a, &b, &sent).unwrap_err();
            assert_eq!(sent.code, Code::PermissionDenied, "{kind:?} {turns}: {sent}");
            b.destroy().unwrap();
            a.destroy().unwrap();
        }
    }
}

/// The sender ends the connection while the receiver, which is not driven meanwhile, reads from it: as for one that was
/// stopped for longer than its peer's patience.
#[test]
fn r27_who_comes_back_late_is_told_that_the_peer_is_gone() {
    for kind in KINDS {
        for turns in 0..24 {
            let (a, b) = pair(kind);
            let source = vec![1u8; BIG];
            let sent = send(&b, &source);
            let (_, ended) = recv(&a, "b", Target::Library);
            let begun = Instant::now();
            while b.peer_info("a").map_or(0, |info| info.requests_received) == 0 {
                a.progress().unwrap();
                b.progress().unwrap();
                assert!(begun.elapsed() < LONG);
            }
            for _ in 0..turns / 2 {
                a.progress().unwrap();
                b.progress().unwrap();
            }
            (0..turns % 2).for_each(|_| _ = a.progress().unwrap());
            b.disconnect("a").unwrap();
            let received = until(&a, &b, &ended);
            let code = received.as_ref().map_or_else(|s| s.code, |()| Code::Ok);
            assert!(matches!(code, Code::Unavailable | Code::Ok), "{kind:?} {turns}: {received:?}");
            let told = until(&a, &b, &sent);
            let code = told.as_ref().map_or_else(|s| s.code, |()| Code::Ok);
            assert!(matches!(code, Code::Unavailable | Code::Ok), "{kind:?} {turns}: {told:?}");
            b.destroy().unwrap();
            a.destroy().unwrap();
        }
    }
}

/// Whoever is told that a manager could not be made learns of which setting.
#[test]
fn a_setting_that_fails_is_named() {
    let refused = |change: fn(&mut Config)| {
        let mut config = Config { name: "m".into(), allow_remote: true, ..Config::default() };
        change(&mut config);
        Manager::new(config).err().expect("refused").into_message()
    };
    // An address of the documentation's, which no host has.
    let listen = refused(|config| config.listen = Some("192.0.2.1:1".into()));
    assert!(listen.starts_with("RDMA_LISTEN: ") && listen.contains("192.0.2.1"), "{listen}");
    let trace = refused(|config| config.trace = Some("/dev/null/trace.json".into()));
    assert!(trace.starts_with("RDMA_TRACE: ") && trace.contains("/dev/null/trace.json"), "{trace}");
}
