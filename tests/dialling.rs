//! Connecting through an address that is silent, refuses, or dies in the middle.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rdma_transport::api::*;
use rdma_transport::bootstrap::AddressBlob;
use rdma_transport::config::{Config, Progress};
use rdma_transport::engine::front::pair::PairState;
use rdma_transport::fabric::ProviderKind;
use rdma_transport::manager::{Manager, Timeout};
use rdma_transport::status::{Code, Reason, Status};

const LONG: Duration = Duration::from_secs(60);

fn manager(name: &str) -> Arc<Manager> {
    let provider = Some(ProviderKind::Tcp);
    Manager::new(Config { name: name.into(), provider, ..Config::default() }).unwrap()
}

type Ended = mpsc::Receiver<Result<u64, Status>>;

fn recv(m: &Manager, peer: &str, timeout: Duration) -> Ended {
    let (tx, rx) = mpsc::channel();
    let done: RecvDone = Box::new(move |r, _| drop(tx.send(r.map(|t| t.meta.nbytes))));
    let options =
        RecvOptions { timeout: Some(timeout), target: Target::Library, device: 0, keep: false };
    // SAFETY: library memory.
    unsafe { m.recv_async(Some(peer), b"key", 1, options, done) }.unwrap();
    rx
}

/// Copies both ways until either end closes, or, with `until_answer`, until the first bytes came back.
fn join(client: TcpStream, to: SocketAddr, until_answer: bool) {
    let server = TcpStream::connect(to).unwrap();
    let pipe = |mut from: TcpStream, mut to: TcpStream, once: bool| {
        move || {
            let mut buf = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut buf)
                && to.write_all(&buf[..n]).is_ok()
                && !once
            {}
            let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
        }
    };
    let (c, s) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let there = thread::spawn(pipe(client, server, false));
    pipe(s, c, until_answer)();
    there.join().unwrap();
}

/// An address that takes the first connection and says nothing; the next ones lead to `to`.
fn first_silent(to: SocketAddr) -> SocketAddr {
    let front = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = front.local_addr().unwrap();
    thread::spawn(move || {
        let _silent = front.accept().unwrap();
        while let Ok((client, _)) = front.accept() {
            thread::spawn(move || join(client, to, false));
        }
    });
    address
}

/// A dial has five seconds. The receive and the call that wait for it have more, and nothing but
/// their own deadline may end them.
#[test]
fn r06_a_dial_that_times_out_is_tried_again() {
    let b = manager("b");
    let to: SocketAddr = b.listen("127.0.0.1:0").unwrap().parse().unwrap();
    // SAFETY: no content.
    unsafe { b.send(b"key", 1, Tensor { meta: Meta::default(), addr: 0, device: 0 }, None, None) }
        .unwrap();
    let (a, c) = (manager("a"), manager("c"));
    a.add_peer("b", &first_silent(to).to_string()).unwrap();
    c.add_peer("b", &first_silent(to).to_string()).unwrap();
    let received = recv(&a, "b", LONG);
    c.connect("b", Some(LONG)).unwrap();
    assert_eq!(received.recv_timeout(LONG).unwrap(), Ok(0));
}

#[test]
fn r06_the_final_error_tells_what_the_tries_met() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let a = manager("a");
    a.add_peer("silent", &silent.local_addr().unwrap().to_string()).unwrap();
    a.add_peer("nobody", &nobody.to_string()).unwrap();
    for (peer, part) in [("silent", "no try to connect has ended yet"), ("nobody", " tries")] {
        let ended = recv(&a, peer, Duration::from_secs(2));
        let status = ended.recv_timeout(LONG).unwrap().unwrap_err();
        assert_eq!((status.code, status.reason), (Code::DeadlineExceeded, Reason::Deadline));
        assert!(status.message.contains(part), "{status}");
        let status = a.connect(peer, Some(Duration::from_millis(300))).unwrap_err();
        assert_eq!((status.code, status.reason), (Code::DeadlineExceeded, Reason::Deadline));
        assert!(status.message.contains(part), "{status}");
    }
}

#[test]
fn r06_a_peer_that_dies_while_connecting_is_unavailable() {
    let b = manager("b");
    let to: SocketAddr = b.listen("127.0.0.1:0").unwrap().parse().unwrap();
    let front = TcpListener::bind("127.0.0.1:0").unwrap();
    let a = manager("a");
    a.add_peer("b", &front.local_addr().unwrap().to_string()).unwrap();
    let ended = recv(&a, "b", 10 * LONG);
    let waiter = {
        let a = a.clone();
        thread::spawn(move || a.connect("b", Some(10 * LONG)))
    };
    let (client, _) = front.accept().unwrap();
    // From here on nobody listens; then the connection breaks in the middle of the handshake.
    drop(front);
    join(client, to, true);
    let status = ended.recv_timeout(LONG).unwrap().unwrap_err();
    assert_eq!((status.code, status.reason), (Code::Unavailable, Reason::PeerGone), "{status}");
    assert!(status.message.contains("ended while connecting"), "{status}");
    let status = waiter.join().unwrap().unwrap_err();
    assert_eq!((status.code, status.reason), (Code::Unavailable, Reason::PeerGone), "{status}");
}

/// Each silent address takes a second of a dial's five. The next dial begins with those that there was no time for.
#[test]
fn r06_addresses_behind_silent_ones_are_reached() {
    let (a, b) = (manager("a"), manager("b"));
    let to: SocketAddr = b.listen("127.0.0.1:0").unwrap().parse().unwrap();
    let silent: Vec<_> = (0..5).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let mut blob = AddressBlob::decode(&b.export_address().unwrap()).unwrap();
    blob.addrs = silent.iter().map(|l| l.local_addr().unwrap()).chain([to]).collect();
    a.import_address(&blob.encode().unwrap()).unwrap();
    a.connect("b", Some(Duration::from_secs(20))).unwrap();
}

fn until(what: &str, is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < LONG, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A peer that the application gave no address of is reached by what it said last of itself.
#[test]
fn an_address_that_a_peer_named_is_renewed_when_it_comes_back() {
    let of = |name: &str| {
        let (provider, secret) = (Some(ProviderKind::Tcp), Some(b"secret".to_vec()));
        Manager::new(Config { name: name.into(), provider, secret, ..Config::default() }).unwrap()
    };
    let a = of("a");
    let at = a.listen("127.0.0.1:0").unwrap();
    let is_connected = || a.peer_info("p").is_ok_and(|info| info.state == PeerState::Connected);
    let life = || {
        let p = of("p");
        p.listen("127.0.0.1:0").unwrap();
        p.add_peer("a", &at).unwrap();
        p.connect("a", Some(LONG)).unwrap();
        until("it comes", is_connected);
        p
    };
    life().destroy().unwrap();
    until("it goes", || !is_connected());
    let p = life();
    a.disconnect("p").unwrap();
    until("it is let go", || !is_connected());
    // SAFETY: no content.
    unsafe { p.send(b"key", 1, Tensor { meta: Meta::default(), addr: 0, device: 0 }, None, None) }
        .unwrap();
    let received = recv(&a, "p", Duration::from_secs(10));
    assert_eq!(received.recv_timeout(LONG).unwrap(), Ok(0));
}

/// Whoever disconnects ends no other call's wait for a connection: neither where tries have failed before, nor in the first.
#[test]
fn a_wait_for_a_connection_goes_on_though_another_disconnects() {
    for silent in [true, false] {
        let (a, b) = (manager("a"), manager("b"));
        let at = match silent {
            true => first_silent(b.listen("127.0.0.1:0").unwrap().parse().unwrap()),
            false => TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap(),
        };
        a.add_peer("b", &at.to_string()).unwrap();
        let waiter = {
            let a = a.clone();
            thread::spawn(move || a.connect("b", Some(Duration::from_secs(20))))
        };
        thread::sleep(Duration::from_millis(300));
        a.disconnect("b").unwrap();
        if !silent {
            thread::sleep(Duration::from_millis(100));
            b.listen(&at.to_string()).unwrap();
        }
        let begun = Instant::now();
        waiter.join().unwrap().unwrap();
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "it waited for the dial that was cancelled"
        );
        a.destroy().unwrap();
        b.destroy().unwrap();
    }
}

/// Where nobody listens a call tries until its time is over, and says so.
#[test]
fn a_meeting_lasts_until_its_time_is_over() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let a = manager("a");
    for ms in [1, 5, 30, 300, 700] {
        let (limit, begun) = (Duration::from_millis(ms), Instant::now());
        let status = a.add_peer_at(&nobody, Some(limit)).unwrap_err();
        assert!(begun.elapsed() >= limit, "gave up after {:?}: {status}", begun.elapsed());
        assert_eq!(
            (status.code, status.reason),
            (Code::DeadlineExceeded, Reason::Deadline),
            "{status}"
        );
        assert!(ms < 30 || status.message.contains("refused"), "{status}");
    }
    // One that comes late.
    let (limit, b) = (Duration::from_secs(8), manager("b"));
    thread::scope(|scope| {
        let meets = scope.spawn(|| a.add_peer_at(&nobody, Some(limit)));
        thread::sleep(limit - Duration::from_millis(800));
        b.listen(&nobody).unwrap();
        assert_eq!(meets.join().unwrap().unwrap().as_deref(), Some("b"));
    });
    a.destroy().unwrap();
    b.destroy().unwrap();
}

/// The same of whoever waits for all ranks: in the second in which it leaves a part of the dialling to others, and later.
#[test]
fn a_wait_for_all_goes_on_though_another_disconnects() {
    for (dial, when) in [(1, 300), (1, 1500), (0, 1500)] {
        let (a, b) = (manager("a"), manager("b"));
        let at = first_silent(b.listen("127.0.0.1:0").unwrap().parse().unwrap());
        a.add_peer("b", &at.to_string()).unwrap();
        let waiter = {
            let a = a.clone();
            let time = Some(Duration::from_secs(20));
            thread::spawn(move || a.connect_all(&["b".to_owned()], dial, time))
        };
        thread::sleep(Duration::from_millis(when));
        a.disconnect("b").unwrap();
        let begun = Instant::now();
        waiter.join().unwrap().unwrap();
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(10), "{dial}, {when}: it waited for {took:?}");
        a.destroy().unwrap();
        b.destroy().unwrap();
    }
}

/// Pairs of two managers, each with its end.
fn pairs_of(ends: &[Arc<Manager>; 2], count: usize) -> Vec<[(u64, Vec<u8>); 2]> {
    let end = |m: &Arc<Manager>| {
        let pair = m.pair_create(0, Timeout::Default).unwrap();
        (pair, m.pair_address(pair).unwrap())
    };
    (0..count).map(|_| [end(&ends[0]), end(&ends[1])]).collect()
}

/// Both ends of a pair are told to connect, which is one connection: that whose name is lower dials. So it is with several pairs.
#[test]
fn two_ends_of_a_pair_make_one_connection() {
    for turn in 0..20 {
        let ends = [manager("a"), manager("b")];
        let pairs = pairs_of(&ends, 3);
        let begun = Instant::now();
        thread::scope(|scope| {
            for node in if turn % 2 == 0 { [0, 1] } else { [1, 0] } {
                let (ends, pairs) = (&ends, &pairs);
                scope.spawn(move || {
                    for pair in pairs {
                        let (id, to) = (pair[node].0, &pair[1 - node].1);
                        ends[node].pair_connect(id, to, Some(LONG)).unwrap();
                    }
                });
            }
        });
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        let connections = |i: usize, peer: &str| ends[i].peer_info(peer).unwrap().channels;
        // An end that stood still for a second lets the other one dial as well.
        if begun.elapsed() < Duration::from_millis(500) {
            assert_eq!([connections(0, "b"), connections(1, "a")], [1, 1]);
        }
        ends.iter().for_each(|m| m.destroy().unwrap());
    }
}

/// The end that leaves it to the other to dial dials itself a moment later, for a wait that is shorter in the middle of that.
#[test]
fn an_end_of_a_pair_dials_if_the_other_does_not() {
    for (time, late) in [(LONG, 20), (Duration::from_millis(20), 10)] {
        let ends = [manager("a"), manager("b")];
        let pairs = pairs_of(&ends, 1);
        let ([(first, to_first), (second, to_second)], begun) = (&pairs[0], Instant::now());
        thread::scope(|scope| {
            let waits = scope.spawn(|| ends[1].pair_connect(*second, to_first, Some(time)));
            while ends[1].peer_info("a").map_or(0, |peer| peer.channels) == 0 {
                thread::sleep(Duration::from_millis(1));
                assert!(begun.elapsed() < LONG, "nobody dials");
            }
            let took = begun.elapsed();
            assert!(took >= Duration::from_millis(late), "{took:?}");
            ends[0].pair_connect(*first, to_second, Some(LONG)).unwrap();
            let waited = waits.join().unwrap();
            assert!(waited.is_ok() || time < LONG, "{waited:?}");
        });
        ends.iter().for_each(|m| m.destroy().unwrap());
    }
}

/// A manager that has told a pair's address, and ended before anybody dialled it, is gone: the other end hears that, by whichever name.
#[test]
fn an_end_of_a_pair_hears_that_the_other_has_ended_before_it_was_connected() {
    for (waits, ends) in [("a", "b"), ("b", "a")] {
        for before in [true, false] {
            let both = [manager(waits), manager(ends)];
            let pairs = pairs_of(&both, 1);
            let ([(pair, _), (_, to)], [here, there]) = (&pairs[0], both);
            let begin = || here.pair_connect(*pair, to, None).unwrap();
            if !before {
                begin();
            }
            there.destroy().unwrap();
            drop(there);
            if before {
                begin();
            }
            let status = here.pair_connect(*pair, to, Some(LONG)).unwrap_err();
            let ended = (Code::Unavailable, Reason::PeerGone);
            assert_eq!((status.code, status.reason), ended, "{waits}, {before}: {status}");
            here.destroy().unwrap();
        }
    }
}

/// The other end has connected, has said what it had to say, and has ended, before this one has looked again at the connection: by what comes
/// with that it hears more than by its own dial, at whose end there is nobody any more.
#[test]
fn a_connection_that_has_come_counts_more_than_a_dial_that_finds_nobody() {
    let mut connected = 0;
    for stop in 0..8 {
        let manual = |name: &str| {
            let (provider, progress) = (Some(ProviderKind::Tcp), Progress::Manual);
            let config = Config { name: name.into(), provider, progress, ..Config::default() };
            Manager::new(config).unwrap()
        };
        let ends = [manual("a"), manual("b")];
        let pairs = pairs_of(&ends, 1);
        let [(first, to_first), (second, to_second)] = &pairs[0];
        ends[0].pair_connect(*first, to_second, None).unwrap();
        ends[1].pair_connect(*second, to_first, None).unwrap();
        let [ends, here] = ends;
        let turns = |m: &Manager, n: u32| {
            for _ in 0..n {
                m.progress().unwrap();
                thread::sleep(Duration::from_micros(300));
            }
        };
        for _ in 0..stop {
            turns(&ends, 6);
            here.progress().unwrap();
        }
        turns(&ends, 6);
        let came = ends.peer_info("b").unwrap().channels > 0;
        connected += u32::from(came);
        ends.destroy().unwrap();
        drop(ends);
        thread::sleep(Duration::from_millis(30));
        // A call begins the dial that is due.
        here.pair_connect(*second, to_first, None).unwrap();
        let begun = Instant::now();
        let status = loop {
            if let PairState::Broken(status) = here.pair_facts(*second).unwrap().state {
                break status;
            }
            assert!(begun.elapsed() < LONG, "{stop}: nobody tells");
            here.progress().unwrap();
        };
        assert_eq!(status.message.contains("cannot connect"), !came, "{stop}: {status}");
        here.destroy().unwrap();
    }
    assert!(connected > 0, "nobody connects in so few turns");
}

/// Where those who are to dial cannot, the others do, in the second half of a wait that is shorter than two seconds.
#[test]
fn half_of_a_short_wait_is_for_those_who_are_not_to_dial() {
    let (a, b) = (manager("a"), manager("b"));
    b.add_peer("a", &a.listen("127.0.0.1:0").unwrap()).unwrap();
    b.connect_all(&["a".to_owned()], 0, Some(Duration::from_millis(900))).unwrap();
    a.destroy().unwrap();
    b.destroy().unwrap();
}

/// Whoever leaves it to the others to dial does so for as long as they come: of many it takes some time.
#[test]
fn those_who_are_to_dial_are_left_to_it_for_as_long_as_they_come() {
    let b = manager("b");
    let to = b.listen("127.0.0.1:0").unwrap();
    let names: Vec<String> = (0..6).map(|i| format!("a{i}")).collect();
    let fronts: Vec<_> = names.iter().map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    for (name, front) in names.iter().zip(&fronts) {
        front.set_nonblocking(true).unwrap();
        b.add_peer(name, &front.local_addr().unwrap().to_string()).unwrap();
    }
    let all: Vec<_> = names.iter().map(|name| manager(name)).collect();
    let mut pauses = vec![];
    thread::scope(|scope| {
        let waits = scope.spawn(|| b.connect_all(&names, 0, Some(LONG)));
        for a in &all {
            let begun = Instant::now();
            thread::sleep(Duration::from_millis(300));
            a.add_peer("b", &to).unwrap();
            a.connect("b", Some(LONG)).unwrap();
            pauses.push(begun.elapsed());
        }
        waits.join().unwrap().unwrap();
    });
    let dialled = fronts.iter().filter(|front| front.accept().is_ok()).count();
    let late = pauses.iter().any(|pause| *pause > Duration::from_millis(600));
    assert!(dialled == 0 || late, "{dialled} were dialled: {pauses:?}");
    all.iter().chain([&b]).for_each(|m| m.destroy().unwrap());
}

/// Not all are dialled at once, and those that do not answer keep no other one waiting for good: of many that say nothing for
/// two seconds twice as many are dialled next, up to eight. The nearest below is dialled first, so the last one here is "z".
#[test]
fn many_are_dialled_a_few_at_a_time() {
    let silent: Vec<_> = (0..20).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let (a, last) = (manager("a"), manager("z"));
    let mut names = vec!["z".to_owned()];
    a.add_peer("z", &last.listen("127.0.0.1:0").unwrap()).unwrap();
    for (i, front) in silent.iter().enumerate() {
        let name = format!("b{i:02}");
        front.set_nonblocking(true).unwrap();
        a.add_peer(&name, &front.local_addr().unwrap().to_string()).unwrap();
        names.push(name);
    }
    let begun = Instant::now();
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let called = |i| format!("rank {i} ");
            a.connect_all_called(&names, names.len(), Some(LONG / 4), called)
        });
        let (mut taken, mut dialled) = (vec![], vec![false; silent.len()]);
        while a.peer_info("z").unwrap().channels == 0 {
            for (front, dialled) in silent.iter().zip(&mut dialled) {
                let came = front.accept();
                *dialled |= came.is_ok();
                taken.extend(came);
            }
            let count = dialled.iter().filter(|dialled| **dialled).count();
            let rounds = begun.elapsed().as_millis() / 1990;
            let most: usize = (0..=rounds).map(|round| 8.min(1 << round)).sum();
            assert!(count <= most, "{count} in {rounds} rounds");
            thread::sleep(Duration::from_millis(5));
        }
        assert!(begun.elapsed() > Duration::from_millis(7900), "{:?}", begun.elapsed());
        let status = waits.join().unwrap().unwrap_err();
        for part in ["20 of 21 peers", "rank 1 'b00': "] {
            assert!(status.message.contains(part), "{status}");
        }
    });
    a.destroy().unwrap();
    last.destroy().unwrap();
}
