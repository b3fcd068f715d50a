//! Leases that end otherwise than by their view.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rdma_transport::status::{Code, Status};
use rdma_transport::store::lease::Lease;
use rdma_transport::store::memory::Memory;
use rdma_transport::store::stop::Stop;
use rdma_transport::store::tcp::{Client, server::Server};
use rdma_transport::store::{Compared, Kind, LeaseId, Until};

use super::*;

/// A store that cannot be reached when it is told so.
struct Shaky {
    memory: Memory,
    gone: AtomicBool,
    /// How often a lease was begun or renewed.
    leased: AtomicUsize,
}

impl Shaky {
    fn new() -> Shaky {
        Shaky { memory: Memory::new(), gone: AtomicBool::new(false), leased: AtomicUsize::new(0) }
    }
}

impl Kind for Shaky {
    fn name(&self) -> &str {
        "shaky store"
    }
    fn set(
        &self,
        items: &[(&[u8], &[u8])],
        lease: Option<LeaseId>,
        until: Until<'_>,
    ) -> Result<(), Status> {
        self.memory.set(items, lease, until)
    }
    fn get(&self, keys: &[&[u8]], until: Until<'_>) -> Result<Vec<Option<Vec<u8>>>, Status> {
        self.memory.get(keys, until)
    }
    fn missing(&self, keys: &[&[u8]], until: Until<'_>) -> Result<Vec<usize>, Status> {
        self.memory.missing(keys, until)
    }
    fn add(&self, _: &[u8], _: i64, _: Option<LeaseId>, _: Until<'_>) -> Result<i64, Status> {
        unreachable!()
    }
    fn compare_set(
        &self,
        _: &[u8],
        _: Option<&[u8]>,
        _: &[u8],
        _: Option<LeaseId>,
        _: Until<'_>,
    ) -> Result<Compared, Status> {
        unreachable!()
    }
    fn delete(&self, keys: &[&[u8]], until: Until<'_>) -> Result<usize, Status> {
        self.memory.delete(keys, until)
    }
    fn lease(&self, id: LeaseId, ttl: Duration, until: Until<'_>) -> Result<(), Status> {
        self.leased.fetch_add(1, Ordering::Relaxed);
        if self.gone.load(Ordering::Relaxed) {
            return Err(Status::new(Code::Unavailable, "gone"));
        }
        self.memory.lease(id, ttl, until)
    }
    fn release(&self, id: LeaseId, until: Until<'_>) -> Result<(), Status> {
        self.memory.release(id, until)
    }
}

#[test]
fn a_lease_that_cannot_be_renewed_is_lost_and_stays_lost() {
    let shaky = Arc::new(Shaky::new());
    let s = store(shaky.clone());
    let leased = s.leased(Duration::from_millis(200)).unwrap();
    set(&leased, b"k", b"v");
    shaky.gone.store(true, Ordering::Relaxed);
    let begun = Instant::now();
    while s.check(&[b"k"], LONG).unwrap() {
        assert!(begun.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(5));
    }
    shaky.gone.store(false, Ordering::Relaxed);
    let status = leased.set(&[(b"k", b"v")], LONG).unwrap_err();
    assert_eq!(status.code, Code::FailedPrecondition);
    assert!(status.message.contains("200 ms was lost"), "{status}");
    assert!(!leased.check(&[b"k"], LONG).unwrap(), "reading goes on");
    set(&s, b"k", b"v");
    drop(leased);
    assert_eq!(get(&s, b"k"), b"v");
}

#[test]
fn a_ttl_out_of_bounds_is_refused() {
    let s = store(Arc::new(Memory::new()));
    for ttl in [Duration::ZERO, Duration::from_millis(99), Duration::from_secs(86_401)] {
        let status = s.leased(ttl).map(drop).unwrap_err();
        assert_eq!(status.code, Code::InvalidArgument);
        assert!(status.message.contains("100 to 86400000"), "{status}");
    }
}

/// A client whose process ends says nothing more: its lease ends by its time.
#[test]
fn a_dead_clients_keys_go_with_its_lease() {
    let server = Arc::new(Server::new("127.0.0.1:0", None, false).unwrap());
    let s = store(server.clone());
    let client = store(Arc::new(Client::new(&server.bound().to_string(), None).unwrap()));
    let leased = client.leased(Duration::from_millis(300)).unwrap();
    set(&leased, b"k", b"v");
    assert_eq!(get(&s, b"k"), b"v");
    leased.abandon();
    let begun = Instant::now();
    while s.check(&[b"k"], LONG).unwrap() {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    // Nobody knows that lease any more.
    assert!(client.leased(Duration::from_secs(60)).is_ok());
}

/// Who was stopped for longer than its lease lasts finds that by itself: a store might give the lease back.
#[test]
fn a_lease_that_is_over_is_not_renewed() {
    let shaky = Arc::new(Shaky::new());
    let stop = Stop::new().unwrap();
    let until = Until::after(Some(Duration::from_secs(60)), &stop);
    let lease = Lease::begin(shaky.clone(), Duration::from_millis(100), false, until).unwrap();
    while lease.id().is_ok() {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(lease.renew(until).unwrap_err().code, Code::FailedPrecondition);
    assert_eq!(shaky.leased.load(Ordering::Relaxed), 1);
}
