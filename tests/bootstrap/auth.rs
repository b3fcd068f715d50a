//! Authentication: success, failure, and somebody in the middle.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

use rdma_transport::bootstrap::*;
use rdma_transport::status::Code;

use crate::fake::*;

#[test]
fn the_same_secret_lets_in() {
    for s in ["s", &"long ".repeat(1000)] {
        let (mut a, mut b) =
            (Node::new(identity("a"), secret(s)), Node::new(identity("b"), secret(s)));
        meet(&mut a, &mut b);
        assert!(a.ready().is_some() && b.ready().is_some());
        assert_eq!((a.neg.checked, b.neg.checked), (vec!["b".into()], vec!["a".into()]));
    }
}

#[test]
fn anything_else_is_unauthenticated_on_both_sides() {
    let none = BootConfig::default;
    for (of_a, of_b, part) in [
        (secret("hunter2"), secret("hunter3"), "do not share the same secret"),
        (secret("hunter2"), none(), "'a' requires authentication and 'b' has no secret"),
        (none(), secret("hunter2"), "'b' requires authentication and 'a' has no secret"),
    ] {
        let (mut a, mut b) = (Node::new(identity("a"), of_a), Node::new(identity("b"), of_b));
        meet(&mut a, &mut b);
        let (status, retryable) = a.failed().unwrap();
        assert!(!retryable);
        for status in [status, b.rejected().unwrap()] {
            assert_eq!(status.code, Code::Unauthenticated);
            assert!(status.message.contains(part), "{status}");
            assert!(!status.message.contains("hunter"), "{status}");
        }
        for n in [&a, &b] {
            assert!(n.neg.checked.is_empty() && n.neg.created == 0);
        }
    }
}

/// Carries one connection and passes every frame by `tamper`.
struct Relay {
    listener: TcpListener,
    to: SocketAddr,
    /// Socket and unsent frame bytes, connector's side first.
    sides: Vec<(TcpStream, Vec<u8>, usize)>,
}

impl Relay {
    fn new(to: SocketAddr) -> (Relay, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let addr = listener.local_addr().unwrap();
        (Relay { listener, to, sides: Vec::new() }, addr)
    }

    fn step(&mut self, tamper: &mut dyn FnMut(usize, usize, &mut Vec<u8>)) {
        if self.sides.is_empty() {
            let Ok((near, _)) = self.listener.accept() else { return };
            let far = TcpStream::connect(self.to).unwrap();
            for s in [near, far] {
                s.set_nonblocking(true).unwrap();
                self.sides.push((s, Vec::new(), 0));
            }
        }
        for from in 0..2 {
            let mut chunk = [0; 4096];
            match self.sides[from].0.read(&mut chunk) {
                Ok(0) => drop(self.sides[1 - from].0.shutdown(Shutdown::Write)),
                Ok(n) => self.sides[from].1.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(_) => drop(self.sides[1 - from].0.shutdown(Shutdown::Both)),
            }
            while let Some(mut frame) = take_frame(&mut self.sides[from].1) {
                tamper(from, self.sides[from].2, &mut frame);
                self.sides[from].2 += 1;
                let _ = self.sides[1 - from].0.write_all(&frame);
            }
        }
    }
}

fn take_frame(buf: &mut Vec<u8>) -> Option<Vec<u8>> {
    if !buf.starts_with(b"RDMT") {
        return None;
    }
    let len = u32::from_le_bytes(buf.get(8..12)?.try_into().ok()?) as usize + 12;
    (buf.len() >= len).then(|| buf.drain(..len).collect())
}

/// Counts the frames of a handshake, then flips a bit at the start, middle and end of each.
#[test]
fn nobody_in_the_middle_changes_a_bit_unnoticed() {
    let run = |tamper: &mut dyn FnMut(usize, usize, &mut Vec<u8>)| {
        let (mut a, mut b) =
            (Node::new(identity("a"), secret("s")), Node::new(identity("b"), secret("s")));
        let (mut relay, addr) = Relay::new(b.listen());
        a.dial(1, &[addr]);
        drive(&mut [&mut a, &mut b], |n| {
            relay.step(tamper);
            n.iter().all(|n| !n.events.is_empty())
        });
        (a, b)
    };
    let mut lens = [Vec::new(), Vec::new()];
    let (a, b) = run(&mut |from, _, frame| lens[from].push(frame.len()));
    assert!(a.ready().is_some() && b.ready().is_some(), "the relay itself does no harm");
    assert_eq!((lens[0].len(), lens[1].len()), (4, 4), "HELLO, AUTH, ENDPOINT, READY");

    for (side, lens) in lens.iter().enumerate() {
        for (index, &len) in lens.iter().enumerate() {
            for at in [12, 12 + (len - 12) / 2, len - 1] {
                let (a, b) = run(&mut |from, i, frame| {
                    if (from, i) == (side, index) {
                        frame[at] ^= 1;
                    }
                });
                let last = index + 1 == lens.len();
                let victim = if side == 0 { &b } else { &a };
                assert!(victim.ready().is_none(), "side {side} frame {index} byte {at}");
                // The other one has succeeded only if all but the last frame was untouched.
                let author = if side == 0 { &a } else { &b };
                assert!(last || author.ready().is_none(), "side {side} frame {index} byte {at}");
            }
        }
    }
}

#[test]
fn an_acceptor_that_does_not_know_the_secret_gets_nothing() {
    // It answers with a HELLO_ACK taken from another handshake and sends the AUTH back it was sent.
    let mut recorded = Vec::new();
    {
        let (mut a, mut b) =
            (Node::new(identity("a"), secret("s")), Node::new(identity("b"), secret("s")));
        let (mut relay, addr) = Relay::new(b.listen());
        a.dial(1, &[addr]);
        drive(&mut [&mut a, &mut b], |n| {
            relay.step(&mut |from, i, frame| {
                if (from, i) == (1, 0) {
                    recorded = frame.clone();
                }
            });
            n.iter().all(|n| !n.events.is_empty())
        });
    }
    let fake = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut a = Node::new(identity("a"), secret("s"));
    a.dial(1, &[fake.local_addr().unwrap()]);
    a.poll();
    let (mut stream, _) = fake.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    let mut buf = Vec::new();
    let mut answered = 0;
    drive(&mut [&mut a], |n| {
        let mut chunk = [0; 4096];
        if let Ok(k) = stream.read(&mut chunk) {
            buf.extend_from_slice(&chunk[..k]);
        }
        if let Some(frame) = take_frame(&mut buf) {
            let answer = if answered == 0 { &recorded } else { &frame };
            stream.write_all(answer).unwrap();
            answered += 1;
        }
        !n[0].events.is_empty()
    });
    assert_eq!(a.failed().unwrap().0.code, Code::Unauthenticated);
    assert!(a.neg.checked.is_empty() && a.neg.created == 0);
}

/// The far end may take a handshake for finished that has failed here: it knows this side by the name that it heard.
#[test]
fn a_name_that_a_connection_may_have_is_kept() {
    // From which of the connector's frames on they are lost.
    for (lost, kept) in [(2, false), (3, true)] {
        let (mut a, mut b) =
            (Node::new(identity("a"), secret("s")), Node::new(identity("b"), secret("s")));
        let (mut relay, addr) = Relay::new(b.listen());
        b.boot.rename("first").unwrap();
        a.dial(1, &[addr]);
        drive(&mut [&mut a, &mut b], |n| {
            relay.step(&mut |from, i, frame| {
                if from == 0 && i >= lost {
                    frame.clear();
                }
            });
            relay.sides.first().is_some_and(|side| side.2 > lost) && n[0].ready().is_some() == kept
        });
        let status = b.boot.rename("second").unwrap_err();
        assert_eq!(status.code, Code::FailedPrecondition, "{status}");
        drive(&mut [&mut b], |n| {
            n[0].pass(std::time::Duration::from_secs(60));
            n[0].boot.pending() == 0
        });
        assert!(b.ready().is_none());
        let renamed = b.boot.rename("second");
        assert_eq!(renamed.is_err(), kept, "{renamed:?}");
        if let Some(ready) = a.ready() {
            assert_eq!(ready.hello.name, "first");
        }
    }
}
