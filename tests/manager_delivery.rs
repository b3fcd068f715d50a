//! What a manager has reported as sent arrives, although it ends right afterwards.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rdma_transport::api::*;
use rdma_transport::config::{Config, Progress};
use rdma_transport::fabric::ProviderKind;
use rdma_transport::manager::Manager;
use rdma_transport::status::Status;

const LONG: Duration = Duration::from_secs(30);
/// More than the peer has receives for: the rest waits for it.
const MANY: i64 = 1000;

static DATA: [u8; 512] = [7; 512];

fn manager(name: &str, kind: ProviderKind, progress: Progress) -> Arc<Manager> {
    let config = Config { name: name.into(), provider: Some(kind), progress, ..Config::default() };
    Manager::new(config).unwrap()
}

type Ended = mpsc::Receiver<Result<(), Status>>;

fn recv(m: &Manager, step: i64) -> Ended {
    let (tx, rx) = mpsc::channel();
    let done: RecvDone = Box::new(move |result, _| drop(tx.send(result.map(drop))));
    let options =
        RecvOptions { timeout: Some(LONG), target: Target::Library, device: 0, keep: false };
    // SAFETY: library memory.
    unsafe { m.recv_async(Some("b"), b"key", step, options, done) }.unwrap();
    rx
}

fn send(m: &Manager, step: i64) -> Ended {
    send_of(m, step, &DATA)
}

fn send_of(m: &Manager, step: i64, data: &'static [u8]) -> Ended {
    let mut meta = Meta { dtype: 1, nbytes: data.len() as u64, ..Default::default() };
    meta.dims.push(data.len() as i64);
    let tensor = Tensor { meta, addr: data.as_ptr() as u64, device: 0 };
    let (tx, rx) = mpsc::channel();
    let done: SendDone = Box::new(move |result, _| drop(tx.send(result)));
    // SAFETY: static memory.
    unsafe { m.send(b"key", step, tensor, None, Some(done.into())) }.unwrap();
    rx
}

#[test]
fn r23_what_was_sent_arrives_although_the_manager_ends() {
    for kind in [ProviderKind::Loopback, ProviderKind::Shm, ProviderKind::Tcp] {
        let a = manager("a", kind, Progress::Thread);
        let b = manager("b", kind, Progress::Manual);
        a.import_address(&b.export_address().unwrap()).unwrap();
        let received: Vec<Ended> = (0..MANY).map(|step| recv(&a, step)).collect();
        let begun = Instant::now();
        while b.peer_info("a").map_or(0, |info| info.requests_received) < MANY as u64 {
            b.progress().unwrap();
            assert!(begun.elapsed() < LONG);
        }
        let sent: Vec<Ended> = (0..MANY).map(|step| send(&b, step)).collect();
        b.destroy().unwrap();
        let mut good = 0;
        for (step, (sent, received)) in sent.iter().zip(&received).enumerate() {
            let received = received.recv_timeout(LONG).unwrap();
            if sent.recv_timeout(LONG).unwrap().is_ok() {
                assert!(received.is_ok(), "{kind:?}, {step}: sent, and {received:?}");
                good += 1;
            }
        }
        assert_eq!(good, MANY, "{kind:?}");
        a.destroy().unwrap();
    }
}

/// A peer that takes nothing is not waited for without end.
#[test]
fn r23_a_manager_ends_although_its_peer_takes_nothing() {
    for kind in [ProviderKind::Loopback, ProviderKind::Tcp] {
        let (a, b) = (manager("a", kind, Progress::Manual), manager("b", kind, Progress::Manual));
        a.import_address(&b.export_address().unwrap()).unwrap();
        let _received: Vec<Ended> = (0..MANY).map(|step| recv(&a, step)).collect();
        let begun = Instant::now();
        while b.peer_info("a").map_or(0, |info| info.requests_received) < MANY as u64 {
            a.progress().unwrap();
            b.progress().unwrap();
            assert!(begun.elapsed() < LONG);
        }
        let sent: Vec<Ended> = (0..MANY).map(|step| send(&b, step)).collect();
        let begun = Instant::now();
        b.destroy().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(10), "{kind:?}: {:?}", begun.elapsed());
        let ends = sent.iter().all(|sent| sent.recv_timeout(LONG).is_ok());
        assert!(ends, "{kind:?}: an end each");
    }
}

/// A socket that is closed with input that nobody has read, or gets some afterwards, is reset: what its system has not
/// handed to the peer's by then is lost. Here the peer takes nothing for a while, and then says something with each that it takes.
#[test]
fn r23_what_was_sent_arrives_although_the_peer_speaks_meanwhile() {
    // More than the peer's system takes while its process does not.
    const COUNT: i64 = 1200;
    static LONGER: [u8; 8000] = [7; 8000];
    let a = manager("a", ProviderKind::Tcp, Progress::Manual);
    let b = manager("b", ProviderKind::Tcp, Progress::Manual);
    a.import_address(&b.export_address().unwrap()).unwrap();
    let received: Vec<Ended> = (0..COUNT).map(|step| recv(&a, step)).collect();
    let begun = Instant::now();
    let turn = || {
        a.progress().unwrap();
        b.progress().unwrap();
        assert!(begun.elapsed() < LONG);
    };
    while b.peer_info("a").map_or(0, |info| info.requests_received) < COUNT as u64 {
        turn();
    }
    // What is owed of the requests, so that nothing but the content is left.
    (0..100).for_each(|_| turn());
    let sent: Vec<Ended> = (0..COUNT).map(|step| send_of(&b, step, &LONGER)).collect();
    let ends = {
        let b = b.clone();
        std::thread::spawn(move || b.destroy().unwrap())
    };
    std::thread::sleep(Duration::from_millis(200));
    let begun = Instant::now();
    let mut more = Vec::new();
    for (step, end) in received.iter().enumerate() {
        let result = loop {
            a.progress().unwrap();
            match end.try_recv() {
                Ok(result) => break result,
                Err(_) => assert!(begun.elapsed() < LONG),
            }
        };
        if sent[step].recv_timeout(LONG).unwrap().is_ok() {
            assert!(result.is_ok(), "{step}: sent, and {result:?}");
        }
        more.push(recv(&a, COUNT + step as i64));
        // Slower than the other end puts it into its socket.
        std::thread::sleep(Duration::from_micros(100));
    }
    ends.join().unwrap();
    a.destroy().unwrap();
}
