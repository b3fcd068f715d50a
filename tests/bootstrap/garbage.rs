//! What arrives at a port that is open to anybody.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rdma_transport::bootstrap::*;
use rdma_transport::status::{Code, Reason};

use crate::fake::*;

/// The version of the handshake.
const V: u8 = rdma_transport::bootstrap::VERSION_MAX as u8;

fn client(addr: SocketAddr) -> TcpStream {
    let s = TcpStream::connect(addr).unwrap();
    s.set_nonblocking(true).unwrap();
    s
}

/// Waits until the far end has closed; returns what it said before.
fn until_closed(node: &mut Node, stream: &mut TcpStream) -> Vec<u8> {
    until_end(node, stream).0
}

/// The same, and whether it closed in order, without a reset.
fn until_end(node: &mut Node, stream: &mut TcpStream) -> (Vec<u8>, bool) {
    let mut heard = Vec::new();
    let mut orderly = false;
    drive(&mut [node], |_| {
        let mut chunk = [0; 4096];
        match stream.read(&mut chunk) {
            Ok(0) => {
                orderly = matches!(stream.take_error(), Ok(None));
                true
            }
            Ok(n) => {
                heard.extend_from_slice(&chunk[..n]);
                false
            }
            Err(e) => e.kind() != std::io::ErrorKind::WouldBlock,
        }
    });
    (heard, orderly)
}

fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut f = b"RDMT".to_vec();
    f.extend([kind, 0, 0, 0]);
    f.extend((body.len() as u32).to_le_bytes());
    f.extend(body);
    f
}

/// The listener still does its work.
fn still_works(b: &mut Node, addr: SocketAddr) {
    b.events.clear();
    let mut a = Node::plain("a");
    a.dial(1, &[addr]);
    drive(&mut [&mut a, b], |n| n.iter().all(|n| n.ready().is_some()));
}

#[test]
fn garbage_is_turned_away() {
    let tls: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    let cases: Vec<(&str, Vec<u8>, Code, &str)> = vec![
        ("http", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), Code::InvalidArgument, "HTTP"),
        ("tls", tls.to_vec(), Code::InvalidArgument, "TLS"),
        ("ssh", b"SSH-2.0-OpenSSH".to_vec(), Code::InvalidArgument, "SSH"),
        ("zeros", vec![0; 100_000], Code::InvalidArgument, "00 00"),
        ("one byte", vec![b'X'], Code::InvalidArgument, "first bytes 58"),
        ("half magic", b"RDxT".to_vec(), Code::InvalidArgument, "52 44 78"),
        ("too long", b"RDMT\x01\0\0\0\xff\xff\xff\xff".to_vec(), Code::DataLoss, "4294967295"),
        ("longer than allowed", frame(1, &[0; 16 * 1024]), Code::DataLoss, "16384"),
        ("unknown type", frame(99, b""), Code::DataLoss, "type 99"),
        ("wrong type", frame(7, &[1]), Code::DataLoss, "READY while waiting for HELLO"),
        (
            "wrong version",
            frame(1, &[V + 1, 0, V + 2, 0]),
            Code::FailedPrecondition,
            "no handshake version in common",
        ),
        ("empty hello", frame(1, b""), Code::DataLoss, "malformed"),
        ("cut hello", frame(1, &[V, 0, V, 0, 5, 5]), Code::DataLoss, "malformed"),
        ("random hello", frame(1, &[1; 300]), Code::FailedPrecondition, "257"),
        ("reject", frame(3, &[14, 0, 0, 0, 2, 0, b'n', b'o']), Code::Unavailable, "peer: no"),
        ("bad reject", frame(3, b"x"), Code::DataLoss, "malformed"),
    ];
    let mut b = Node::plain("b");
    let addr = b.listen();
    for (what, bytes, code, part) in cases {
        b.events.clear();
        let mut s = client(addr);
        let _ = s.write(&bytes).unwrap();
        let heard = until_closed(&mut b, &mut s);
        let status = b.rejected().unwrap_or_else(|| panic!("{what}: {:?}", b.events));
        assert_eq!(status.code, code, "{what}: {status}");
        assert!(status.message.contains(part), "{what}: {status}");
        // Who speaks another protocol hears nothing; who speaks this one hears why.
        let answered = heard.starts_with(b"RDMT\x03");
        assert_eq!(answered, bytes.starts_with(b"RDMT") && bytes[4] != 3, "{what}: {heard:?}");
        assert!(heard.is_empty() || answered, "{what}: {heard:?}");
        drop(s);
        drive(&mut [&mut b], |n| n[0].boot.pending() == 0);
        assert_eq!(b.events.len(), 1, "{what}");
    }
    assert_eq!(b.neg.created, 0);
    still_works(&mut b, addr);
}

#[test]
fn a_refusal_arrives_although_more_was_sent() {
    let mut b = Node::plain("b");
    let addr = b.listen();
    let mut s = client(addr);
    let mut bytes = frame(1, &[V + 1, 0, V + 2, 0]);
    bytes.extend([7; 50_000]);
    let _ = s.write(&bytes).unwrap();
    let (heard, orderly) = until_end(&mut b, &mut s);
    assert!(orderly, "a reset may destroy the refusal on its way");
    let text = String::from_utf8_lossy(&heard);
    let (next, last) = (V + 1, V + 2);
    let versions = format!("no handshake version in common: {next} to {last} against {V} to {V}");
    assert!(text.contains(&versions), "{text}");
}

#[test]
fn the_slow_and_the_silent_are_cut_off() {
    let mut b = Node::plain("b");
    let addr = b.listen();
    let (mut silent, mut slow) = (client(addr), client(addr));
    let hello = frame(1, &[1; 300]);
    for byte in &hello[..9] {
        slow.write_all(&[*byte]).unwrap();
        b.pass(Duration::from_secs(1));
        drive(&mut [&mut b], |n| n[0].boot.pending() == 2);
        b.poll();
    }
    assert!(b.events.is_empty());
    b.pass(Duration::from_secs(3));
    for s in [&mut silent, &mut slow] {
        assert_eq!(until_closed(&mut b, s), b"");
    }
    assert_eq!(b.events.len(), 2);
    for e in &b.events {
        let BootEvent::Rejected { status, addr: Some(_), .. } = e else { panic!("{e:?}") };
        assert_eq!((status.code, status.reason), (Code::Unavailable, Reason::PeerStalled));
        assert!(status.message.contains("no HELLO within 10s"), "{status}");
    }
    assert_eq!(b.boot.pending(), 0);
    still_works(&mut b, addr);
}

#[test]
fn who_hangs_up_early_is_noticed() {
    let mut b = Node::plain("b");
    let addr = b.listen();
    for (bytes, part) in [(&b""[..], "without a word"), (b"RDMT\x01\0", "after 6 bytes")] {
        b.events.clear();
        let mut s = client(addr);
        s.write_all(bytes).unwrap();
        s.shutdown(Shutdown::Write).unwrap();
        assert_eq!(until_closed(&mut b, &mut s), b"");
        let status = b.rejected().unwrap();
        assert_eq!(status.code, Code::Unavailable);
        assert!(status.message.contains(part), "{status}");
    }
}

/// A peer that ends in the middle of a handshake, and a stranger who says the same, are told apart by the secret.
#[test]
fn who_leaves_after_its_introduction() {
    let ends = [
        (Node::plain("b"), said_first(Node::plain("a")), true),
        (Node::new(identity("b"), secret("right")), hello(), false),
    ];
    for (mut b, said, known) in ends {
        let mut s = client(b.listen());
        s.write_all(&said).unwrap();
        s.shutdown(Shutdown::Write).unwrap();
        until_closed(&mut b, &mut s);
        let [BootEvent::Rejected { status, left, .. }] = &b.events[..] else {
            panic!("{:?}", b.events)
        };
        assert_eq!((status.code, *left), (Code::Unavailable, known), "{status}");
    }
}

/// What a worker that has some secret says first.
fn hello() -> Vec<u8> {
    said_first(Node::new(identity("crowd"), secret("guess")))
}

fn said_first(mut node: Node) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    node.dial(1, &[listener.local_addr().unwrap()]);
    node.poll();
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    let mut heard = vec![0; MAX_HELLO + 12];
    drive(&mut [&mut node], |_| match stream.read(&mut heard) {
        Ok(n) => {
            heard.truncate(n);
            true
        }
        Err(_) => false,
    });
    heard
}

/// Neither those that say nothing, nor those that cannot prove what they say.
#[test]
fn a_crowd_of_strangers_does_not_lock_others_out() {
    for (config, says, awaits) in
        [(BootConfig::default(), vec![], "HELLO"), (secret("s"), hello(), "AUTH")]
    {
        let mut a = Node::new(identity("a"), config.clone());
        let mut b = Node::new(identity("b"), BootConfig { max_handshakes: 4, ..config });
        let addr = b.listen();
        let mut crowd: Vec<TcpStream> = (0..12).map(|_| client(addr)).collect();
        crowd.iter_mut().for_each(|s| s.write_all(&says).unwrap());
        drive(&mut [&mut b], |n| n[0].boot.pending() == 4);
        b.poll();
        b.poll();
        assert_eq!(b.boot.pending(), 4, "bounded");
        a.dial(1, &[addr]);
        drive(&mut [&mut a, &mut b], |n| {
            assert!(n[1].boot.pending() <= 4);
            n[1].pass(Duration::from_millis(5));
            n.iter().all(|n| n.ready().is_some())
        });
        let evicted = b.rejected().unwrap();
        assert_eq!(evicted.code, Code::ResourceExhausted);
        assert!(evicted.message.starts_with(awaits), "{evicted}");
    }
}

/// Nobody has to grow old before a newcomer gets in, whatever the crowd said.
#[test]
fn r07_half_open_connections_make_room_at_once() {
    for (config, says) in [
        (BootConfig::default(), vec![]),
        (BootConfig::default(), plain_hello()),
        (secret("s"), vec![]),
        (secret("s"), hello()),
    ] {
        let mut a = Node::new(identity("a"), config.clone());
        let mut b = Node::new(identity("b"), BootConfig { max_handshakes: 8, ..config });
        let addr = b.listen();
        let mut crowd: Vec<TcpStream> = Vec::new();
        let more = |crowd: &mut Vec<TcpStream>| {
            let mut s = client(addr);
            let _ = s.write_all(&says);
            crowd.push(s);
        };
        (0..20).for_each(|_| more(&mut crowd));
        a.dial(1, &[addr]);
        drive(&mut [&mut a, &mut b], |n| {
            // The flood goes on.
            more(&mut crowd);
            assert!(n[1].boot.pending() <= 8, "bounded");
            n[1].pass(Duration::from_millis(10));
            if n[0].failed().is_some_and(|(_, retryable)| retryable) {
                // Pushed out by chance: the manager would try again.
                n[0].events.clear();
                n[0].dial(1, &[addr]);
            }
            n.iter().all(|n| n.ready().is_some())
        });
        assert_eq!(b.rejected().unwrap().code, Code::ResourceExhausted);
    }
}

/// Whom a crowd pushes out: its own.
#[test]
fn r07_a_crowd_pushes_out_its_own() {
    let mut b = Node::new(identity("b"), BootConfig { max_handshakes: 8, ..BootConfig::default() });
    let addr = b.listen();
    let mut alone = from_source([127, 0, 0, 9], addr);
    while b.boot.pending() == 0 {
        b.poll();
    }
    b.pass(Duration::from_secs(1));
    let crowd: Vec<TcpStream> = (0..60).map(|_| client(addr)).collect();
    drive(&mut [&mut b], |n| {
        n[0].pass(Duration::from_millis(6));
        n[0].events.len() >= 53
    });
    assert_eq!(alone.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    drop(crowd);
}

/// A connection from this address of the loopback network.
fn from_source(source: [u8; 4], to: SocketAddr) -> TcpStream {
    use std::os::fd::{FromRawFd, OwnedFd};
    let sockaddr = |ip: [u8; 4], port: u16| libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(ip) },
        sin_zero: [0; 8],
    };
    let len = std::mem::size_of::<libc::sockaddr_in>() as libc::socklen_t;
    let (here, there) = (sockaddr(source, 0), sockaddr([127, 0, 0, 1], to.port()));
    // SAFETY: both addresses live through the calls and `len` is their size; the descriptor is new.
    let stream = unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        assert_eq!(libc::bind(fd, (&raw const here).cast(), len), 0);
        assert_eq!(libc::connect(fd, (&raw const there).cast(), len), 0);
        TcpStream::from(OwnedFd::from_raw_fd(fd))
    };
    stream.set_nonblocking(true).unwrap();
    stream
}

/// The HELLO of a worker without a secret, as the library sends it.
fn plain_hello() -> Vec<u8> {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut a = Node::plain("stranger");
    a.dial(1, &[server.local_addr().unwrap()]);
    a.poll();
    let (mut s, _) = server.accept().unwrap();
    s.set_nonblocking(true).unwrap();
    let mut hello = Vec::new();
    drive(&mut [&mut a], |_| {
        let mut chunk = [0; 4096];
        hello.extend(s.read(&mut chunk).map_or(&[][..], |n| &chunk[..n]));
        !hello.is_empty()
    });
    hello
}

/// While the manager finds out whose a name is, the newcomer waits, a second at most, and costs no
/// processor time.
#[test]
fn r09_a_claim_waits_for_the_managers_word() {
    let (mut a, mut b) = (Node::plain("a"), Node::plain("b"));
    b.neg.undecided = 3;
    meet(&mut a, &mut b);
    assert!(a.ready().is_some() && b.ready().is_some());

    let (mut a, mut b) = (Node::plain("a"), Node::plain("b"));
    b.neg.undecided = u32::MAX;
    let addr = b.listen();
    a.dial(1, &[addr]);
    drive(&mut [&mut a, &mut b], |n| n[1].neg.undecided < u32::MAX - 20);
    let mut poll = libc::pollfd { fd: b.boot.fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    assert_eq!(unsafe { libc::poll(&mut poll, 1, 0) }, 0, "ready without anything to do");
    b.pass(Duration::from_secs(1));
    drive(&mut [&mut a, &mut b], |n| n.iter().all(|n| !n.events.is_empty()));
    let (status, retryable) = a.failed().unwrap();
    assert_eq!((status.code, retryable), (Code::Unavailable, true), "{status}");
    assert!(status.message.contains("another process is connected as 'a'"), "{status}");
    assert_eq!(b.rejected().unwrap().code, Code::Unavailable);

    // Who hangs up meanwhile is noticed.
    let mut b = Node::plain("b");
    b.neg.undecided = u32::MAX;
    let mut s = client(b.listen());
    s.write_all(&plain_hello()).unwrap();
    drive(&mut [&mut b], |n| n[0].neg.undecided < u32::MAX - 20);
    drop(s);
    drive(&mut [&mut b], |n| !n[0].events.is_empty());
}

#[test]
fn the_far_end_of_a_dial_is_not_trusted_either() {
    type Answer = fn(&[u8]) -> Vec<u8>;
    let cases: [(&str, Answer, Code, &str); 6] = [
        ("http", |_| b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), Code::InvalidArgument, "HTTP"),
        ("echo", <[u8]>::to_vec, Code::DataLoss, "HELLO while waiting for HELLO_ACK"),
        ("ready", |_| frame(7, &[1]), Code::DataLoss, "READY while"),
        ("version", |_| frame(2, &[99, 0, 3, 0, 0]), Code::DataLoss, "version 99"),
        ("rejects with OK", |_| frame(3, &[0, 0, 0, 0, 0, 0]), Code::Unknown, "refused"),
        ("closes", |_| Vec::new(), Code::Unavailable, "without a word"),
    ];
    for (what, answer, code, part) in cases {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut a = Node::plain("a");
        a.dial(1, &[server.local_addr().unwrap()]);
        a.poll();
        let (mut s, _) = server.accept().unwrap();
        s.set_nonblocking(true).unwrap();
        let mut said = false;
        drive(&mut [&mut a], |n| {
            let mut chunk = [0; 4096];
            if !said && let Ok(k) = s.read(&mut chunk) {
                s.write_all(&answer(&chunk[..k])).unwrap();
                s.shutdown(Shutdown::Write).unwrap();
                said = true;
            }
            !n[0].events.is_empty()
        });
        let (status, retryable) = a.failed().unwrap();
        assert_eq!(status.code, code, "{what}: {status}");
        assert!(status.message.contains(part), "{what}: {status}");
        assert_eq!(retryable, code == Code::Unavailable, "{what}");
    }
}
