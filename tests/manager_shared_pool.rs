//! A pool of the application that several managers have.

use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use rdma_transport::api::{Meta, RecvOptions, SendDone, Target, Tensor};
use rdma_transport::config::Config;
use rdma_transport::counted::Counted;
use rdma_transport::fabric::ProviderKind;
use rdma_transport::manager::Manager;
use rdma_transport::memory::pool::Pool;
use rdma_transport::status::Code;

const LONG: Duration = Duration::from_secs(120);
const MIB: usize = 1 << 20;

fn manager(name: &str, kind: ProviderKind, pool: Option<Counted<Pool>>) -> Arc<Manager> {
    Manager::new(Config { name: name.into(), provider: Some(kind), pool, ..Config::default() })
        .unwrap()
}

/// A block of the pool, and how it is used.
struct Block {
    pool: Counted<Pool>,
    at: *mut u8,
    len: usize,
}

impl Block {
    fn new(pool: &Counted<Pool>, len: usize) -> Block {
        Block { pool: pool.clone(), at: pool.alloc(len).unwrap(), len }
    }

    fn fill(&self, byte: u8) {
        // SAFETY: a live block of this length.
        unsafe { self.at.write_bytes(byte, self.len) };
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: as above; it has been filled.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }

    fn free(self) {
        self.pool.free(self.at).unwrap();
    }

    /// Sends it to `to`, who knows `from` by this name; what arrived.
    fn send(&self, (from, name): (&Manager, &str), to: &Manager, key: &str) -> Vec<u8> {
        let mut meta = Meta { dtype: 1, nbytes: self.len as u64, ..Default::default() };
        meta.dims.push(self.len as i64);
        let tensor = Tensor { meta, addr: self.at as u64, device: 0 };
        let (tx, rx) = mpsc::channel();
        let done: SendDone = Box::new(move |result, _| drop(tx.send(result)));
        // SAFETY: the block stays until the send has ended, below.
        unsafe { from.send(key.as_bytes(), 1, tensor, None, Some(done.into())) }.unwrap();
        let mut got = vec![0; self.len];
        let target = Target::Given { addr: got.as_mut_ptr() as u64, len: got.len() as u64 };
        let options = RecvOptions { timeout: Some(LONG), target, device: 0, keep: false };
        // SAFETY: the destination stays until the receive has ended.
        unsafe { to.recv(Some(name), key.as_bytes(), 1, options) }.unwrap();
        rx.recv_timeout(LONG).unwrap().unwrap();
        got
    }
}

/// One test at a time: they look at the mappings of the whole process.
static ALONE: Mutex<()> = Mutex::new(());

/// Segments of peers that this process has mapped.
fn mapped_segments() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|l| l.contains(" r--s ") && l.contains("rdma-transport-pool")).count()
}

/// Those of a peer that has gone are unmapped once its end is heard of.
fn wait_for_mapped_segments(count: usize) -> bool {
    let end = Instant::now() + LONG;
    while mapped_segments() != count && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    mapped_segments() == count
}

#[test]
fn memory_is_known_to_each_manager_and_outlives_it() {
    let _alone = ALONE.lock().unwrap();
    for kind in [ProviderKind::Loopback, ProviderKind::Tcp, ProviderKind::Shm] {
        let pool = Counted::new(Pool::new(1 << 30), "a pool").unwrap();
        let early = Block::new(&pool, 3 * MIB);
        early.fill(3);
        let to = manager("to", kind, None);
        for name in ["first", "second"] {
            let from = manager(name, kind, Some(pool.clone()));
            to.import_address(&from.export_address().unwrap()).unwrap();
            // A segment that is there before the manager, and one that comes later.
            let late = Block::new(&pool, 70 * MIB);
            late.fill(4);
            for round in 0..4 {
                let key = format!("{name} {round}");
                assert!(early.send((&from, name), &to, &key) == early.bytes(), "{kind:?} {key}");
                let key = format!("{name} {round} late");
                assert!(late.send((&from, name), &to, &key) == late.bytes(), "{kind:?} {key}");
            }
            let expected = if kind == ProviderKind::Shm { 2 } else { 0 };
            assert!(wait_for_mapped_segments(expected), "{kind:?} {name}: {}", mapped_segments());
            let own = from.mem_free(early.at as u64).unwrap_err();
            assert!(own.message.contains("no memory of rdma_mem_alloc"), "{own}");
            from.destroy().unwrap();
            drop(from);
            assert!(late.bytes().iter().all(|&b| b == 4));
            late.free();
        }
        to.destroy().unwrap();
        assert_eq!(pool.usage().0, early.len);
        early.free();
        assert_eq!(Counted::owners(&pool), 1, "{kind:?}: a manager that has ended holds the pool");
    }
}

/// A segment that got another file while it was empty: nobody is sent what lay in the one before.
#[test]
fn memory_that_was_given_back_and_used_again_has_its_new_content() {
    let _alone = ALONE.lock().unwrap();
    for kind in [ProviderKind::Shm, ProviderKind::Tcp] {
        let pool = Counted::new(Pool::new(1 << 30), "a pool").unwrap();
        let to = manager("to", kind, None);
        let froms = ["first", "second"].map(|name| {
            let from = manager(name, kind, Some(pool.clone()));
            to.import_address(&from.export_address().unwrap()).unwrap();
            (name, from)
        });
        let mut place = None;
        for byte in 1..4 {
            let block = Block::new(&pool, 48 * MIB);
            assert!(*place.get_or_insert(block.at) == block.at);
            block.fill(byte);
            for round in 0..3 {
                for (name, from) in &froms {
                    let got = block.send((from, name), &to, &format!("{name} {byte} {round}"));
                    assert!(got.iter().all(|&b| b == byte), "{kind:?} {name}: not {byte}");
                }
            }
            let number = pool.segments()[0].id;
            block.free();
            let mut now = Instant::now();
            while pool.segments()[0].id == number {
                now += Duration::from_secs(5);
                pool.trim(now);
            }
        }
        froms.iter().for_each(|(_, from)| from.destroy().unwrap());
        to.destroy().unwrap();
    }
}

/// Memory of a pool belongs to the manager from the first moment on, not from when it has looked at the pool: it cannot be registered besides.
#[test]
fn memory_of_a_pool_is_registered_already() {
    let _alone = ALONE.lock().unwrap();
    for kind in [ProviderKind::Loopback, ProviderKind::Tcp, ProviderKind::Shm] {
        let pool = Counted::new(Pool::new(1 << 30), "a pool").unwrap();
        let early = Block::new(&pool, 3 * MIB);
        let m = manager("m", kind, Some(pool.clone()));
        let late = Block::new(&pool, 70 * MIB);
        let own = m.mem_alloc(MIB).unwrap();
        for addr in [early.at as u64 + 4096, late.at as u64, own] {
            // SAFETY: nothing is registered, as is asked for.
            let refused = unsafe { m.mem_register(addr, 100_000, 0) }.unwrap_err();
            assert_eq!(refused.code, Code::AlreadyExists, "{kind:?}: {refused}");
        }
        m.destroy().unwrap();
        early.free();
        late.free();
    }
}
