//! Each operation of each kind ends by its deadline, whatever has become of the server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdma_transport::status::{Code, Status};
use rdma_transport::store::memory::Memory;
use rdma_transport::store::tcp::{Client, server::Server};
use rdma_transport::store::{Compared, LeaseId, Patience, Until, in_redis};

use super::redis_server::Redis;
use super::*;

/// Of each operation.
const TIME: Duration = Duration::from_millis(300);
/// A loaded machine may need so much more; what is checked here has been two seconds, and twice the time.
const MORE: Duration = Duration::from_millis(250);

type Operation = fn(&Store) -> Result<(), Status>;

/// Every operation, and what none of them may fail with.
fn all_end_in_time(s: &Store, when: &str) {
    let operations: [(&str, Operation); 11] = [
        ("set", |s| s.set(&[(b"k", b"v")], Patience::For(TIME))),
        ("large set", |s| s.set(&[(b"k", &vec![1; 12 << 20])], Patience::For(TIME))),
        ("get", |s| s.get(&[b"never"], Patience::For(TIME)).map(drop)),
        ("look", |s| s.get(&[b"never"], Patience::Look(TIME)).map(drop)),
        ("wait", |s| s.wait(&[b"never"], Patience::For(TIME))),
        ("check", |s| s.check(&[b"never"], Patience::For(TIME)).map(drop)),
        ("add", |s| s.add(b"n", 1, Patience::For(TIME)).map(drop)),
        ("compare", |s| s.compare_set(b"c", None, b"v", Patience::For(TIME)).map(drop)),
        ("delete", |s| s.delete(&[b"k"], Patience::For(TIME)).map(drop)),
        ("several", |s| s.wait(&[b"k", b"never"], Patience::For(TIME))),
        ("several of get", |s| s.get(&[b"k", b"never"], Patience::For(TIME)).map(drop)),
    ];
    for (what, operation) in operations {
        let begun = Instant::now();
        let status = operation(s).expect_err(what);
        let took = begun.elapsed();
        assert!(took < TIME + MORE, "{when}: {what} took {took:?}: {status}");
        let codes = [Code::DeadlineExceeded, Code::Unavailable];
        assert!(codes.contains(&status.code), "{when}: {what}: {status}");
        // An add of which it is not known whether it was done says so at once.
        let sure = !["add", "compare"].contains(&what);
        assert!(!sure || took >= TIME, "{when}: {what} gave up after {took:?}: {status}");
    }
}

/// Passes bytes on, both ways, until it is to be silent.
fn relay(to: SocketAddr, silent: &Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, silent) = (listener.local_addr().unwrap(), silent.clone());
    let pass = |mut from: TcpStream, mut to: TcpStream, silent: Arc<AtomicBool>| {
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut piece) {
                while silent.load(Ordering::Acquire) {
                    std::thread::park();
                }
                if to.write_all(&piece[..n]).is_err() {
                    return;
                }
            }
        });
    };
    std::thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            let Ok(server) = TcpStream::connect(to) else { continue };
            pass(client.try_clone().unwrap(), server.try_clone().unwrap(), silent.clone());
            pass(server, client, silent.clone());
        }
    });
    address
}

/// A wait that has begun while the server was there.
fn waits_while(s: &Store, when: &str, change: impl FnOnce()) {
    std::thread::scope(|scope| {
        let waits = [true, false].map(|wait| {
            scope.spawn(move || {
                let begun = Instant::now();
                let status = match wait {
                    true => s.wait(&[b"never"], Patience::For(2 * TIME)).unwrap_err(),
                    false => s.get(&[b"never"], Patience::For(2 * TIME)).unwrap_err(),
                };
                (begun.elapsed(), status)
            })
        });
        std::thread::sleep(TIME / 6);
        change();
        for wait in waits {
            let (took, status) = wait.join().unwrap();
            assert_eq!(status.code, Code::DeadlineExceeded, "{when}: {status}");
            assert!(took < 2 * TIME + MORE, "{when}: it took {took:?}: {status}");
            assert!(status.message.contains(s.name()), "{when}: {status}");
        }
    });
}

#[test]
fn a_tcp_store_keeps_deadlines_when_its_server_is_dead() {
    let server = Server::new("127.0.0.1:0", None, false).unwrap();
    let s = store(Arc::new(Client::new(&server.bound().to_string(), None).unwrap()));
    set(&s, b"k", b"v");
    waits_while(&s, "it dies", move || drop(server));
    all_end_in_time(&s, "it is dead");
}

#[test]
fn a_tcp_store_keeps_deadlines_when_its_server_is_silent() {
    let server = Server::new("127.0.0.1:0", None, false).unwrap();
    let silent = Arc::new(AtomicBool::new(false));
    let address = relay(server.bound(), &silent).to_string();
    let s = store(Arc::new(Client::new(&address, None).unwrap()));
    set(&s, b"k", b"v");
    waits_while(&s, "it falls silent", || silent.store(true, Ordering::Release));
    all_end_in_time(&s, "it is silent");
    // One that has never said anything.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let s = store(Arc::new(Client::new(&address, None).unwrap()));
    all_end_in_time(&s, "it never says anything");
}

#[test]
fn a_redis_store_keeps_deadlines_when_its_server_is_silent_or_dead() {
    let Some(mut redis) = Redis::start() else { return };
    let s = store(in_redis(&redis.address(), None).unwrap());
    set(&s, b"k", b"v");
    waits_while(&s, "it falls silent", || redis.signal(libc::SIGSTOP));
    all_end_in_time(&s, "it is silent");
    redis.signal(libc::SIGCONT);
    set(&s, b"k", b"v");
    waits_while(&s, "it dies", || redis.kill());
    all_end_in_time(&s, "it is dead");
}

/// A server's socket in the file system whose queue is full: to connect to it would wait for ever.
#[test]
fn a_redis_store_keeps_deadlines_when_its_servers_queue_is_full() {
    let dir = super::files::Dir::new();
    let path = dir.path.join("socket");
    let _server = UnixListener::bind(&path).unwrap();
    let address = format!("unix:{}", path.display());
    let s = match in_redis(&address, None) {
        Ok(kind) => store(kind),
        Err(status) => return assert_eq!(status.code, Code::Unimplemented, "{status}"),
    };
    // Whom nobody accepts takes up the queue.
    let filled = Arc::new(AtomicBool::new(false));
    std::thread::spawn({
        let (path, filled) = (path.clone(), filled.clone());
        move || {
            let mut all = Vec::new();
            while let Ok(one) = UnixStream::connect(&path) {
                all.push(one);
            }
            filled.store(true, Ordering::Release);
        }
    });
    let status = loop {
        let begun = Instant::now();
        let status = s.get(&[b"k"], Patience::For(TIME)).unwrap_err();
        assert!(begun.elapsed() < TIME + MORE, "it took {:?}: {status}", begun.elapsed());
        if status.message.contains("temporarily unavailable") || filled.load(Ordering::Acquire) {
            break status;
        }
    };
    assert_eq!(status.code, Code::DeadlineExceeded, "{status}");
}

/// Says that each key has been there, and finds none.
struct Forgetful(Memory);

impl Kind for Forgetful {
    fn name(&self) -> &str {
        "a store that forgets"
    }
    fn set(&self, _: &[(&[u8], &[u8])], _: Option<LeaseId>, _: Until<'_>) -> Result<(), Status> {
        Ok(())
    }
    fn get(&self, keys: &[&[u8]], until: Until<'_>) -> Result<Vec<Option<Vec<u8>>>, Status> {
        self.0.get(keys, until)
    }
    fn missing(&self, keys: &[&[u8]], until: Until<'_>) -> Result<Vec<usize>, Status> {
        self.0.missing(keys, until)
    }
    fn wait(&self, _: &[&[u8]], _: Until<'_>) -> Result<Vec<usize>, Status> {
        Ok(Vec::new())
    }
    fn add(&self, _: &[u8], _: i64, _: Option<LeaseId>, _: Until<'_>) -> Result<i64, Status> {
        Ok(0)
    }
    fn compare_set(
        &self,
        _: &[u8],
        _: Option<&[u8]>,
        _: &[u8],
        _: Option<LeaseId>,
        _: Until<'_>,
    ) -> Result<Compared, Status> {
        Ok(Compared::Absent)
    }
    fn delete(&self, keys: &[&[u8]], until: Until<'_>) -> Result<usize, Status> {
        self.0.delete(keys, until)
    }
    fn lease(&self, _: LeaseId, _: Duration, _: Until<'_>) -> Result<(), Status> {
        Ok(())
    }
    fn release(&self, _: LeaseId, _: Until<'_>) -> Result<(), Status> {
        Ok(())
    }
}

/// Keys that have been there, and are gone when they are read: that is no reason to go on for ever.
#[test]
fn a_get_ends_by_its_deadline_though_keys_come_and_go() {
    let s = store(Arc::new(Forgetful(Memory::new())));
    let begun = Instant::now();
    let status = s.get(&[b"k"], Patience::For(TIME)).unwrap_err();
    assert_eq!(status.code, Code::DeadlineExceeded, "{status}");
    assert!(begun.elapsed() >= TIME && begun.elapsed() < TIME + MORE, "{:?}", begun.elapsed());
    std::thread::scope(|scope| {
        let gets = scope.spawn(|| s.get(&[b"k"], Patience::Forever));
        std::thread::sleep(TIME / 6);
        s.stop();
        assert_eq!(gets.join().unwrap().unwrap_err().code, Code::Cancelled);
    });
}

/// Those without a server: a key that does not come, and for a directory a writer that does not end.
#[test]
fn stores_without_a_server_keep_deadlines() {
    let dir = super::files::Dir::new();
    let file = store(super::kinds::dir_store(&dir.path));
    let memory = store(Arc::new(rdma_transport::store::memory::Memory::new()));
    let served = store(Arc::new(Server::new("127.0.0.1:0", None, false).unwrap()));
    for s in [&file, &memory, &served] {
        waits_while(s, s.name(), || {});
    }
}
