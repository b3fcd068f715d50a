//! Dialing, listening, expectations, cancelling.

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rdma_transport::bootstrap::*;
use rdma_transport::status::{Code, Reason, Status};

use crate::fake::*;

const HOUR: Duration = Duration::from_secs(3600);

fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn expectations_are_checked() {
    let wrong = [8; 16];
    for (name, incarnation, code, reason) in [
        ("c", None, Code::NotFound, Reason::None),
        ("b", Some(wrong), Code::Unavailable, Reason::PeerRestarted),
    ] {
        let (mut a, mut b) = (Node::plain("a"), Node::plain("b"));
        let addr = b.listen();
        a.boot.dial(1, &[addr], Some((name, incarnation)), a.now + HOUR);
        drive(&mut [&mut a, &mut b], |n| n.iter().all(|n| !n.events.is_empty()));
        let (status, retryable) = a.failed().unwrap();
        assert_eq!((status.code, status.reason, retryable), (code, reason, false));
        assert!(status.message.contains("'b'") && status.message.contains(&addr.to_string()));
        assert!(b.ready().is_none() && a.neg.live.is_empty());
    }
    let (mut a, mut b) = (Node::plain("a"), Node::plain("b"));
    let addr = b.listen();
    let incarnation = b.boot.identity().incarnation;
    a.boot.dial(1, &[addr], Some(("b", Some(incarnation))), a.now + HOUR);
    drive(&mut [&mut a, &mut b], |n| n.iter().all(|n| n.ready().is_some()));
}

#[test]
fn the_first_address_that_works_is_taken() {
    let (mut a, mut b, mut c) = (Node::plain("a"), Node::plain("b"), Node::plain("c"));
    let addrs = [nobody(), c.listen(), b.listen()];
    a.boot.dial(1, &addrs, Some(("b", None)), a.now + HOUR);
    drive(&mut [&mut a, &mut b, &mut c], |n| !n[0].events.is_empty());
    assert_eq!(a.ready().unwrap().hello.name, "b");
}

#[test]
fn nobody_there_is_retryable_and_a_stranger_does_not_hide_it() {
    let (mut a, mut c) = (Node::plain("a"), Node::plain("c"));
    let addrs = [nobody(), c.listen()];
    a.boot.dial(7, &addrs, Some(("b", None)), a.now + HOUR);
    drive(&mut [&mut a, &mut c], |n| !n[0].events.is_empty());
    let (status, retryable) = a.failed().unwrap();
    assert_eq!((status.code, retryable), (Code::Unavailable, true));
    for part in ["to 'b'", "refused", "'c' answers"] {
        assert!(status.message.contains(part), "{status}");
    }
}

/// Nobody is patient with who may be anybody.
#[test]
fn a_peer_that_says_nothing_runs_into_the_handshake_timeout() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut a = Node::plain("a");
    a.dial(1, &[silent.local_addr().unwrap()]);
    a.poll();
    let (mut stream, _) = silent.accept().unwrap();
    drive(&mut [&mut a], |_| {
        stream.set_nonblocking(true).unwrap();
        stream.read(&mut [0; 4]).is_ok_and(|n| n > 0)
    });
    assert!(a.boot.next_deadline().unwrap() > a.now);
    a.pass(Duration::from_secs(11));
    a.poll();
    let (status, retryable) = a.failed().unwrap();
    assert_eq!((status.code, status.reason), (Code::Unavailable, Reason::PeerStalled));
    assert!(retryable && status.message.contains("no HELLO_ACK within 10s"), "{status}");
}

#[test]
fn r06_a_dial_never_fails_with_a_deadline() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut a = Node::plain("a");
    let addr = silent.local_addr().unwrap();
    a.boot.dial(1, &[addr], None, a.now + Duration::from_secs(2));
    a.poll();
    a.pass(Duration::from_secs(2));
    a.poll();
    let (status, retryable) = a.failed().unwrap();
    assert_eq!((status.code, status.reason), (Code::Unavailable, Reason::PeerStalled));
    assert!(retryable, "{status}");
}

/// What a peer says of its own deadlines and cancels does not become a deadline of ours.
#[test]
fn r06_a_refusal_is_no_deadline() {
    for code in [Code::DeadlineExceeded, Code::Cancelled] {
        let (mut a, mut b) = (Node::plain("a"), Node::plain("b"));
        b.neg.refuse = Some(Status::new(code, "not now"));
        meet(&mut a, &mut b);
        let (status, retryable) = a.failed().unwrap();
        assert_eq!((status.code, retryable), (Code::Unavailable, true), "{status}");
        assert!(status.message.contains("not now"), "{status}");
    }
}

#[test]
fn useless_dials_fail_at_the_next_poll() {
    let mut a = Node::plain("a");
    let past = a.now;
    a.boot.dial(1, &[], None, a.now + HOUR);
    a.boot.dial(2, &[nobody()], None, past);
    a.boot.dial(3, &["127.0.0.1:0".parse().unwrap()], None, a.now + HOUR);
    assert_eq!(a.boot.pending(), 3);
    assert!(a.boot.next_deadline().unwrap() <= Instant::now(), "poll is due at once");
    a.poll();
    let codes: Vec<(u64, Code)> = a
        .events
        .iter()
        .map(|e| match e {
            BootEvent::Failed { token, status, .. } => (*token, status.code),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        codes,
        [(1, Code::InvalidArgument), (2, Code::Unavailable), (3, Code::InvalidArgument)]
    );
    assert_eq!((a.boot.pending(), a.boot.next_deadline()), (0, None));
}

#[test]
fn a_cancelled_dial_is_silent_and_gives_its_endpoint_back() {
    let (mut a, mut b) = (Node::plain("a"), Node::plain("b"));
    a.neg.patience = u32::MAX;
    let addr = b.listen();
    a.dial(1, &[addr]);
    a.boot.dial(2, &[addr], None, a.now + HOUR);
    a.boot.cancel(2);
    drive(&mut [&mut a, &mut b], |n| !n[0].neg.remotes.is_empty());
    a.boot.cancel(1);
    assert!(a.boot.next_deadline().unwrap() <= Instant::now());
    drive(&mut [&mut a, &mut b], |n| n.iter().all(|n| n.boot.pending() == 0));
    assert!(a.events.is_empty(), "{:?}", a.events);
    assert_eq!(b.rejected().unwrap().code, Code::Cancelled);
    assert!(a.neg.live.is_empty() && b.neg.live.is_empty());
}

#[test]
fn a_refusal_reaches_the_other_side() {
    let no = Status::new(Code::AlreadyExists, "one 'a' is enough");
    let (mut a, mut b) = (Node::plain("a"), Node::plain("b"));
    b.neg.refuse = Some(no.clone());
    meet(&mut a, &mut b);
    let (status, retryable) = a.failed().unwrap();
    assert_eq!((status.code, retryable), (Code::AlreadyExists, false));
    assert!(status.message.contains("one 'a' is enough"));
    assert_eq!(b.rejected(), Some(&no));

    let (mut a, mut b) = (Node::plain("a"), Node::plain("b"));
    a.neg.refuse = Some(no.clone());
    meet(&mut a, &mut b);
    assert!(b.rejected().unwrap().message.contains("one 'a' is enough"));
    assert!(a.neg.live.is_empty() && b.neg.live.is_empty());
}

#[test]
fn both_may_dial_at_once() {
    let (mut a, mut b) = (Node::plain("a"), Node::plain("b"));
    let (at_a, at_b) = (a.listen(), b.listen());
    a.dial(1, &[at_b]);
    b.dial(2, &[at_a]);
    let count = |n: &Node| n.events.iter().filter_map(as_ready).count();
    drive(&mut [&mut a, &mut b], |n| n.iter().all(|n| count(n) == 2));
    for n in [&a, &b] {
        let roles: Vec<bool> = n.events.iter().filter_map(as_ready).map(|r| r.initiator).collect();
        assert!(roles.contains(&true) && roles.contains(&false));
    }
}

#[test]
fn a_manager_may_dial_itself() {
    let mut a = Node::plain("a");
    let addr = a.listen();
    a.dial(1, &[addr]);
    drive(&mut [&mut a], |n| n[0].events.iter().filter_map(as_ready).count() == 2);
    assert!(a.events.iter().filter_map(as_ready).all(|r| r.kind.name() == "loopback"));
}

#[test]
fn many_dial_one() {
    let mut hub = Node::new(identity("hub"), BootConfig { max_handshakes: 8, ..secret("s") });
    let addr = hub.listen();
    let mut rim: Vec<Node> =
        (0..40).map(|i| Node::new(identity(&format!("w{i}")), secret("s"))).collect();
    for n in &mut rim {
        n.dial(1, &[addr]);
    }
    let mut all: Vec<&mut Node> = rim.iter_mut().chain([&mut hub]).collect();
    drive(&mut all, |n| {
        n.iter_mut().for_each(|n| n.pass(Duration::from_micros(200)));
        n.iter().all(|n| n.events.iter().any(|e| as_ready(e).is_some()) && n.boot.pending() == 0)
    });
    assert_eq!(hub.events.iter().filter_map(as_ready).count(), 40);
}

#[test]
fn the_liveness_socket_ends_with_the_peer() {
    let (mut a, mut b) = (Node::plain("a"), Node::plain("b"));
    meet(&mut a, &mut b);
    b.events.clear();
    let Some(BootEvent::Ready { sock: Some(sock), .. }) = a.events.pop() else { panic!() };
    let mut stream = TcpStream::from(sock.into_inner());
    stream.set_nonblocking(false).unwrap();
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn beyond_loopback_only_with_a_secret_or_leave() {
    let mut open = Node::plain("a");
    for addr in ["0.0.0.0:0", "[::]:0"] {
        let status = open.boot.listen(addr).unwrap_err();
        assert_eq!(status.code, Code::FailedPrecondition);
        for part in [addr, "RDMA_AUTH_SECRET_FILE", "allow_remote", "loopback"] {
            assert!(status.message.contains(part), "{status}");
        }
    }
    assert!(open.boot.addresses().is_empty());
    open.boot.listen("127.0.0.2").unwrap();
    open.boot.listen("localhost:0").unwrap();
    assert_eq!(open.boot.addresses().len(), 2);

    let leave = BootConfig { allow_remote: true, ..BootConfig::default() };
    for config in [secret("s"), leave] {
        let mut n = Node::new(identity("a"), config);
        let bound: SocketAddr = n.boot.listen("0.0.0.0:0").unwrap().parse().unwrap();
        assert!(bound.ip().is_unspecified() && bound.port() != 0);
        let addrs = n.boot.addresses();
        assert!(addrs.iter().all(|a| a.port() == bound.port() && !a.ip().is_unspecified()));
        assert!(addrs.last().unwrap().ip().is_loopback());
        let blob = n.boot.blob();
        assert_eq!(AddressBlob::decode(&blob.encode().unwrap()), Ok(blob));
    }
}

#[test]
fn an_address_in_use_is_named() {
    let (mut a, mut b) = (Node::plain("a"), Node::plain("b"));
    let addr = a.listen().to_string();
    let status = b.boot.listen(&addr).unwrap_err();
    assert_eq!(status.code, Code::AlreadyExists);
    assert!(status.message.contains(&addr), "{status}");
    a.boot.stop_listening();
    assert!(a.boot.addresses().is_empty());
    b.boot.listen(&addr).unwrap();
}

#[test]
fn ipv6_works_where_the_system_has_it() {
    let (mut a, mut b) = (Node::plain("a"), Node::plain("b"));
    let Ok(bound) = b.boot.listen("[::1]:0") else { return };
    a.dial(1, &[bound.parse().unwrap()]);
    drive(&mut [&mut a, &mut b], |n| n.iter().all(|n| n.ready().is_some()));
}

#[test]
fn bad_identities_and_secrets_are_refused() {
    let mut nameless = identity("a");
    nameless.name.clear();
    assert!(Bootstrap::new(nameless, BootConfig::default()).is_err());
    assert!(Bootstrap::new(identity("a"), secret("")).is_err());
    assert!(!format!("{:?}", secret("hunter2")).contains("hunter2"));
}
