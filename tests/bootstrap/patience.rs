//! Ends of a handshake that are slow: who gives up, when, and what the other one makes of it.

use std::collections::BTreeSet;
use std::time::Duration;

use rdma_transport::bootstrap::BootConfig;
use rdma_transport::fabric::ProviderKind::{self, Shm, Tcp};
use rdma_transport::status::{Code, Reason};

use super::fake::*;

/// Two that would connect by this provider alone; `a` dials.
fn two_of(kind: ProviderKind) -> (Node, Node) {
    let (mut a, mut b) = (identity("a"), identity("b"));
    b.host_id = a.host_id;
    a.providers = offers(&[kind]);
    let (mut a, mut b) = (Node::new(a, BootConfig::default()), Node::new(b, BootConfig::default()));
    let addr = b.listen();
    a.dial(1, &[addr]);
    (a, b)
}

/// Both have gone on as far as they do while `b` does not see its endpoint connect.
fn until_one_is_ready(a: &mut Node, b: &mut Node) {
    b.neg.never_connected = BTreeSet::from([Shm]);
    for _ in 0..200 {
        a.poll();
        b.poll();
        std::thread::sleep(Duration::from_micros(100));
    }
    assert!(a.events.is_empty() && b.events.is_empty());
}

/// It waits for longer than for somebody who may be anybody: a processor that others have is no reason to give up.
#[test]
fn who_has_introduced_itself_may_be_slow() {
    for kind in [Shm, Tcp] {
        let (mut a, mut b) = two_of(kind);
        drive(&mut [&mut a, &mut b], |n| n[1].boot.pending() > 0 && n[1].neg.created > 0);
        // The rest of the dial's own time, and of a stranger's.
        for node in [&mut a, &mut b] {
            node.pass(Duration::from_secs(9));
        }
        drive(&mut [&mut a], |n| n[0].neg.created > 0);
        a.pass(Duration::from_secs(9));
        a.poll();
        assert!(a.events.is_empty(), "{kind:?}: {:?}", a.events);
        drive(&mut [&mut a, &mut b], |n| n.iter().all(|n| n.ready().is_some()));
    }
}

/// But not for ever.
#[test]
fn who_has_introduced_itself_and_says_nothing_more_is_given_up() {
    let (mut a, mut b) = two_of(Shm);
    until_one_is_ready(&mut a, &mut b);
    a.pass(Duration::from_secs(31));
    a.poll();
    let (status, retryable) = a.failed().unwrap();
    assert_eq!((status.code, status.reason), (Code::Unavailable, Reason::PeerStalled));
    assert!(retryable && status.message.contains("no ENDPOINT or READY within 30s"), "{status}");
    assert!(a.neg.live.is_empty());
}

/// One has said READY and given up since, which the other finds when it comes to say READY, too: it does not take for a
/// connection what nobody holds at the other end.
#[test]
fn a_handshake_that_the_other_end_gave_up_is_not_over_here() {
    for kind in [Shm, Tcp] {
        let (mut a, mut b) = two_of(kind);
        match kind {
            Shm => until_one_is_ready(&mut a, &mut b),
            // Who dials says READY with its endpoint.
            _ => drive(&mut [&mut a, &mut b], |n| {
                let created = n[1].neg.created > 0;
                n[0].poll();
                created
            }),
        }
        a.poll();
        std::thread::sleep(Duration::from_millis(20));
        a.poll();
        assert!(a.ready().is_none(), "{kind:?}");
        a.pass(Duration::from_secs(31));
        a.poll();
        assert!(a.failed().is_some(), "{kind:?}: {:?}", a.events);
        b.neg.never_connected.clear();
        drive(&mut [&mut a, &mut b], |n| !n[1].events.is_empty() && n[0].boot.pending() == 0);
        let status = b.rejected().unwrap_or_else(|| panic!("{kind:?}: {:?}", b.events));
        assert_eq!(status.code, Code::Unavailable, "{status}");
        assert!(status.message.contains("no ENDPOINT or READY within"), "{status}");
        assert!(b.neg.live.is_empty() && a.neg.live.is_empty());
    }
}

/// A handshake that is over is over, whatever the other end does then: what it sent before it left is to be heard.
#[test]
fn who_leaves_after_a_handshake_that_is_over_was_there() {
    for kind in [Shm, Tcp] {
        let (mut a, mut b) = two_of(kind);
        until_one_is_ready_to_finish(&mut a, &mut b);
        assert!(b.ready().is_some() && a.ready().is_none(), "{kind:?}");
        drop(b);
        drive(&mut [&mut a], |n| !n[0].events.is_empty());
        assert!(a.ready().is_some(), "{kind:?}: {:?}", a.events);
    }
}

/// `b`, who answers, is through, and `a` has not looked yet.
fn until_one_is_ready_to_finish(a: &mut Node, b: &mut Node) {
    drive(&mut [b, a], |n| n[1].neg.created > 0);
    for _ in 0..200 {
        b.poll();
        std::thread::sleep(Duration::from_micros(100));
        if b.ready().is_some() {
            return;
        }
    }
}

/// Who has been told READY may take itself for connected, and is expected until it is heard or has left.
#[test]
fn who_may_take_itself_for_connected_is_expected() {
    for kind in [Shm, Tcp] {
        let (mut a, mut b) = two_of(kind);
        // The endpoint of the one who answers: by shm it connects before READY, by tcp after it.
        drive(&mut [&mut a, &mut b], |n| n[1].neg.created > 0);
        assert!(!b.boot.is_expecting("a"), "{kind:?}: it has not been told");
        b.neg.never_connected = BTreeSet::from([Tcp]);
        a.neg.patience = 1000;
        drive(&mut [&mut a, &mut b], |n| n[1].boot.is_expecting("a"));
        assert!(b.events.is_empty() && !b.boot.is_expecting("b") && !a.boot.is_expecting("b"));
        drop(a);
        drive(&mut [&mut b], |n| n[0].boot.pending() == 0 || kind == Tcp);
        // What a socket of tcp has brought is heard once its endpoint is there.
        assert_eq!(b.boot.is_expecting("a"), kind == Tcp);
        b.neg.never_connected.clear();
        drive(&mut [&mut b], |n| !n[0].events.is_empty());
        assert!(!b.boot.is_expecting("a") && b.ready().is_some() == (kind == Tcp), "{kind:?}");
    }
}
