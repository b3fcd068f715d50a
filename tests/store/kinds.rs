//! The same of every kind.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rdma_transport::limits::{STORE_KEY, STORE_VALUE};
use rdma_transport::status::Code;
use rdma_transport::store::memory::Memory;
use rdma_transport::store::stop::Stop;
use rdma_transport::store::tcp::{Client, server::Server};
use rdma_transport::store::{Compared, Kind, Patience, Store, Until};

use super::files::Dir;
use super::redis_server::Redis;
use super::*;

/// A store, and what makes others of it as other processes would.
struct Place {
    again: Box<dyn Fn() -> Arc<dyn Kind> + Send + Sync>,
    _held: Box<dyn std::any::Any + Send + Sync>,
}

impl Place {
    fn store(&self) -> Store {
        store((self.again)())
    }
}

fn memory() -> Option<Place> {
    let memory: Arc<dyn Kind> = Arc::new(Memory::new());
    Some(Place { again: Box::new(move || memory.clone()), _held: Box::new(()) })
}

fn file() -> Option<Place> {
    let dir = Dir::new();
    let path = dir.path.clone();
    Some(Place { again: Box::new(move || dir_store(&path)), _held: Box::new(dir) })
}

pub fn dir_store(path: &std::path::Path) -> Arc<dyn Kind> {
    Arc::new(rdma_transport::store::file::FileStore::open(path).unwrap())
}

fn tcp_with(secret: Option<&'static [u8]>) -> Option<Place> {
    let server = Arc::new(Server::new("127.0.0.1:0", secret, false).unwrap());
    let address = server.bound().to_string();
    Some(Place {
        again: Box::new(move || Arc::new(Client::new(&address, secret).unwrap())),
        _held: Box::new(server),
    })
}

fn tcp() -> Option<Place> {
    tcp_with(None)
}

fn tcp_with_secret() -> Option<Place> {
    tcp_with(Some(b"a secret"))
}

fn served() -> Option<Place> {
    let server: Arc<dyn Kind> = Arc::new(Server::new("[::1]:0", None, false).unwrap());
    Some(Place { again: Box::new(move || server.clone()), _held: Box::new(()) })
}

fn redis() -> Option<Place> {
    let redis = Redis::start()?;
    let address = redis.address();
    Some(Place {
        again: Box::new(move || rdma_transport::store::in_redis(&address, None).unwrap()),
        _held: Box::new(redis),
    })
}

macro_rules! kinds {
    ($($test:ident),* $(,)?) => {
        kinds!(@ memory: $($test)*);
        kinds!(@ file: $($test)*);
        kinds!(@ tcp: $($test)*);
        kinds!(@ tcp_with_secret: $($test)*);
        kinds!(@ served: $($test)*);
        kinds!(@ redis: $($test)*);
    };
    (@ $kind:ident: $($test:ident)*) => {
        mod $kind {
            $(#[test]
            fn $test() {
                if let Some(place) = super::$kind() {
                    super::$test(&place);
                }
            })*
        }
    };
}

kinds! {
    set_and_get,
    several_keys,
    waits_name_what_is_missing,
    a_wait_ends_when_the_last_key_comes,
    counters,
    comparisons,
    deleting,
    large_values,
    limits,
    prefixes_nest,
    the_end_of_a_view_ends_its_waits,
    sixty_four_ranks_at_once,
    a_lease_ends_with_its_view,
    a_lease_outlives_its_ttl_while_it_is_held,
    what_others_wrote_outlives_a_lease,
    a_lease_that_is_over_stays_over,
}

fn set_and_get(place: &Place) {
    let (one, other) = (place.store(), place.store());
    set(&one, b"k", b"v");
    assert_eq!(get(&other, b"k"), b"v");
    set(&other, b"k", b"");
    assert_eq!(get(&one, b"k"), b"");
    let odd = b"\0/..%\xff key with ' and\n";
    set(&one, odd, odd);
    assert_eq!(get(&other, odd), odd);
    let absent = one.get(&[b"none"], Patience::Now).unwrap_err();
    assert_eq!(absent.code, Code::NotFound);
    assert!(absent.message.contains("'none'"), "{absent}");
    assert!(absent.message.contains(one.name()), "{absent}");
}

fn several_keys(place: &Place) {
    let (one, other) = (place.store(), place.store());
    let keys: Vec<String> = (0..1000).map(|i| format!("key/{i}")).collect();
    let values: Vec<Vec<u8>> = (0..1000).map(|i| vec![i as u8; i * 37]).collect();
    let items: Vec<(&[u8], &[u8])> =
        keys.iter().zip(&values).map(|(k, v)| (k.as_bytes(), &v[..])).collect();
    one.set(&items, LONG).unwrap();
    let keys: Vec<&[u8]> = keys.iter().map(|k| k.as_bytes()).collect();
    assert_eq!(other.get(&keys, LONG).unwrap(), values);
    assert!(other.check(&keys, LONG).unwrap());
    assert!(!other.check(&[keys[0], b"none"], LONG).unwrap());
    assert_eq!(other.delete(&keys, LONG).unwrap(), 1000);
}

fn waits_name_what_is_missing(place: &Place) {
    let s = place.store();
    set(&s, b"there", b"");
    let begun = Instant::now();
    let status = s.wait(&[b"there", b"rank/3", b"rank/5"], SHORT).unwrap_err();
    assert_eq!(status.code, Code::DeadlineExceeded);
    assert!(begun.elapsed() >= Duration::from_millis(50));
    for part in ["2 of 3", "'rank/3', 'rank/5'", s.name()] {
        assert!(status.message.contains(part), "{part}: {status}");
    }
    let status = s.get(&[b"rank/3"], SHORT).unwrap_err();
    assert_eq!(status.code, Code::DeadlineExceeded);
    assert!(status.message.contains("'rank/3'"), "{status}");
    let status = s.wait(&[b"rank/3"], Patience::Now).unwrap_err();
    assert_eq!(status.code, Code::DeadlineExceeded);
}

fn a_wait_ends_when_the_last_key_comes(place: &Place) {
    let (one, other) = (place.store(), place.store());
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| one.wait(&[b"a", b"b", b"c"], LONG));
        for key in [b"c", b"a", b"b"] {
            std::thread::sleep(Duration::from_millis(5));
            set(&other, key, b"1");
        }
        waits.join().unwrap().unwrap();
        let gets = scope.spawn(|| one.get(&[b"a", b"d"], Patience::Forever));
        std::thread::sleep(Duration::from_millis(5));
        set(&other, b"d", b"2");
        assert_eq!(gets.join().unwrap().unwrap(), [b"1", b"2"]);
    });
}

fn counters(place: &Place) {
    let s = place.store();
    assert_eq!(s.add(b"n", 5, LONG).unwrap(), 5);
    assert_eq!(s.add(b"n", -7, LONG).unwrap(), -2);
    assert_eq!(get(&s, b"n"), b"-2");
    set(&s, b"n", b"9223372036854775807");
    assert_eq!(s.add(b"n", 0, LONG).unwrap(), i64::MAX);
    assert_eq!(s.add(b"n", 1, LONG).unwrap_err().code, Code::OutOfRange);
    assert_eq!(s.add(b"n", i64::MIN, LONG).unwrap(), -1);
    for text in ["no number", "+5", "007", "-0", " 5", "5 ", "", "9223372036854775808"] {
        set(&s, b"n", text.as_bytes());
        let status = s.add(b"n", 1, LONG).expect_err(text);
        assert_eq!(status.code, Code::FailedPrecondition, "{text}");
        assert!(status.message.contains("'n'"), "{status}");
    }
    // Nothing is lost among many.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let own = place.store();
                for _ in 0..25 {
                    own.add(b"sum", 1, LONG).unwrap();
                }
            });
        }
    });
    assert_eq!(s.add(b"sum", 0, LONG).unwrap(), 100);
}

fn comparisons(place: &Place) {
    let s = place.store();
    let swap = |expected: Option<&[u8]>, desired: &[u8]| {
        s.compare_set(b"k", expected, desired, LONG).unwrap()
    };
    assert_eq!(swap(Some(b""), b"1"), Compared::Absent);
    assert_eq!(swap(None, b"1"), Compared::Set);
    assert_eq!(swap(None, b"2"), Compared::Differs(b"1".to_vec()));
    assert_eq!(swap(Some(b"2"), b"3"), Compared::Differs(b"1".to_vec()));
    assert_eq!(swap(Some(b"1"), b""), Compared::Set);
    assert_eq!(swap(Some(b""), b"4"), Compared::Set);
    assert_eq!(get(&s, b"k"), b"4");
    // One of many wins.
    let wins: usize = std::thread::scope(|scope| {
        let all: Vec<_> = (0..8u8)
            .map(|i| {
                scope.spawn(move || {
                    let own = place.store();
                    own.compare_set(b"leader", None, &[i], LONG).unwrap() == Compared::Set
                })
            })
            .collect();
        all.into_iter().map(|t| usize::from(t.join().unwrap())).sum()
    });
    assert_eq!(wins, 1);
}

fn deleting(place: &Place) {
    let s = place.store();
    set(&s, b"k", b"v");
    assert_eq!(s.delete(&[b"k", b"none"], LONG).unwrap(), 1);
    assert_eq!(s.delete(&[b"k"], LONG).unwrap(), 0);
    assert!(!s.check(&[b"k"], LONG).unwrap());
    assert_eq!(s.compare_set(b"k", None, b"w", LONG).unwrap(), Compared::Set);
}

fn large_values(place: &Place) {
    let (one, other) = (place.store(), place.store());
    let content = |len: usize| -> Vec<u8> { (0..len).map(|i| ((i * i) >> 7) as u8).collect() };
    for len in [1 << 20, STORE_VALUE] {
        let value = content(len);
        set(&one, b"large", &value);
        assert!(get(&other, b"large") == value, "{len}");
    }
    let smaller = content(STORE_VALUE - 1);
    let compared = one.compare_set(b"large", Some(&content(STORE_VALUE)), &smaller, LONG).unwrap();
    assert_eq!(compared, Compared::Set);
    match one.compare_set(b"large", None, &smaller, LONG).unwrap() {
        Compared::Differs(there) => assert!(there == smaller),
        _ => panic!("it is there"),
    }
    set(&one, b"second", &smaller);
    assert!(other.get(&[b"large", b"second"], LONG).unwrap() == [smaller.clone(), smaller]);
}

fn limits(place: &Place) {
    let s = place.store();
    let long = vec![b'k'; STORE_KEY];
    set(&s, &long, b"v");
    assert_eq!(get(&s, &long), b"v");
    let refused = |result: Result<(), rdma_transport::status::Status>, part: &str| {
        let status = result.unwrap_err();
        assert_eq!(status.code, Code::InvalidArgument);
        assert!(status.message.contains(part), "{status}");
    };
    refused(s.set(&[(&vec![b'k'; STORE_KEY + 1], b"")], LONG), "4097");
    refused(s.set(&[(b"", b"")], LONG), "0 bytes");
    refused(s.set(&[(b"k", &vec![0; STORE_VALUE + 1])], LONG), "16777217");
    refused(s.prefix(b"").map(drop), "0 bytes");
    refused(s.prefix(&long).map(drop), "4096");
    let inner = s.prefix(&long[..STORE_KEY - 2]).unwrap();
    set(&inner, b"k", b"v");
    refused(inner.set(&[(b"kk", b"")], LONG), "4097");
}

fn prefixes_nest(place: &Place) {
    let s = place.store();
    let job = s.prefix(b"job").unwrap();
    let group = job.prefix(b"group").unwrap();
    set(&group, b"k", b"v");
    assert_eq!(get(&s, b"job/group/k"), b"v");
    assert_eq!(get(&job, b"group/k"), b"v");
    assert!(!job.check(&[b"k"], LONG).unwrap());
    drop((s, job));
    assert_eq!(get(&group, b"k"), b"v");
    let status = group.wait(&[b"none"], SHORT).unwrap_err();
    assert!(status.message.contains("under 'job/group'"), "{status}");
}

fn the_end_of_a_view_ends_its_waits(place: &Place) {
    let (s, stays) = (place.store(), place.store());
    let view = stays.prefix(b"view").unwrap();
    let (tell, told) = channel();
    std::thread::scope(|scope| {
        for (s, patience) in [(&s, Patience::Forever), (&s, LONG), (&view, LONG)] {
            let tell = tell.clone();
            scope.spawn(move || {
                let code = s.wait(&[b"none"], patience).unwrap_err().code;
                tell.send(code).unwrap();
            });
        }
        std::thread::sleep(Duration::from_millis(30));
        s.stop();
        for _ in 0..2 {
            assert_eq!(told.recv().unwrap(), Code::Cancelled);
        }
        assert!(told.recv_timeout(Duration::from_millis(30)).is_err(), "another view goes on");
        view.stop();
        assert_eq!(told.recv().unwrap(), Code::Cancelled);
    });
    assert_eq!(s.set(&[(b"k", b"v")], LONG).unwrap_err().code, Code::Cancelled);
    assert_eq!(s.check(&[b"k"], LONG).unwrap_err().code, Code::Cancelled);
    set(&stays, b"k", b"v");
}

fn sixty_four_ranks_at_once(place: &Place) {
    const RANKS: usize = 64;
    let keys: Vec<String> = (0..RANKS).map(|r| format!("rank/{r}")).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|k| k.as_bytes()).collect();
    std::thread::scope(|scope| {
        for rank in 0..RANKS {
            let keys = &keys;
            scope.spawn(move || {
                let own = place.store();
                set(&own, keys[rank], &vec![rank as u8; 300]);
                own.wait(keys, LONG).unwrap();
                let all = own.get(keys, LONG).unwrap();
                assert!(all.iter().enumerate().all(|(r, v)| *v == [r as u8; 300]));
                own.add(b"done", 1, LONG).unwrap();
            });
        }
    });
    assert_eq!(place.store().add(b"done", 0, LONG).unwrap(), RANKS as i64);
}

fn a_lease_ends_with_its_view(place: &Place) {
    let (s, other) = (place.store(), place.store());
    let leased = s.leased(Duration::from_secs(60)).unwrap();
    let under = leased.prefix(b"job").unwrap();
    set(&leased, b"k", b"v");
    set(&under, b"k", b"v");
    leased.add(b"n", 1, LONG).unwrap();
    leased.compare_set(b"c", None, b"v", LONG).unwrap();
    let all: [&[u8]; 4] = [b"k", b"job/k", b"n", b"c"];
    assert!(other.check(&all, LONG).unwrap());
    drop(leased);
    assert!(other.check(&all, LONG).unwrap(), "the view under it holds the lease");
    drop(under);
    for key in all {
        assert!(!other.check(&[key], LONG).unwrap(), "{}", key.escape_ascii());
        assert_eq!(other.get(&[key], Patience::Now).unwrap_err().code, Code::NotFound);
    }
    assert_eq!(other.delete(&all, LONG).unwrap(), 0);
    assert_eq!(other.add(b"n", 1, LONG).unwrap(), 1);
}

fn a_lease_outlives_its_ttl_while_it_is_held(place: &Place) {
    let s = place.store();
    // Long enough for a loaded machine.
    let leased = s.leased(Duration::from_millis(1500)).unwrap();
    set(&leased, b"k", b"v");
    std::thread::sleep(Duration::from_millis(3500));
    assert_eq!(get(&s, b"k"), b"v");
    set(&leased, b"l", b"v");
}

fn what_others_wrote_outlives_a_lease(place: &Place) {
    let s = place.store();
    let one = s.leased(Duration::from_secs(60)).unwrap();
    let two = s.leased(Duration::from_secs(60)).unwrap();
    for key in [b"a", b"b", b"c"] {
        set(&one, key, b"1");
    }
    set(&s, b"a", b"0");
    set(&two, b"b", b"2");
    drop(one);
    assert_eq!(get(&s, b"a"), b"0");
    assert_eq!(get(&s, b"b"), b"2");
    assert!(!s.check(&[b"c"], LONG).unwrap());
    drop(two);
    assert!(!s.check(&[b"b"], LONG).unwrap());
    assert_eq!(get(&s, b"a"), b"0");
}

/// Its holder was stopped for longer than the lease lasts, and comes back.
fn a_lease_that_is_over_stays_over(place: &Place) {
    const TTL: Duration = Duration::from_millis(200);
    let (kind, stop) = ((place.again)(), Stop::new().unwrap());
    let until = Until::after(Some(Duration::from_secs(60)), &stop);
    kind.lease(7, TTL, until).unwrap();
    kind.set(&[(b"k", b"v")], Some(7), until).unwrap();
    while kind.missing(&[b"k"], until).unwrap().is_empty() {
        std::thread::sleep(Duration::from_millis(10));
    }
    // Twice, as who does not hear that it is over would.
    for _ in 0..2 {
        let _ = kind.lease(7, TTL, until);
        assert_eq!(kind.missing(&[b"k"], until).unwrap(), [0]);
    }
}
