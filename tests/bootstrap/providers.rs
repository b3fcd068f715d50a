//! Which provider is taken, and what happens when it does not work.

use std::collections::BTreeSet;
use std::time::Duration;

use rdma_transport::bootstrap::*;
use rdma_transport::fabric::ProviderKind::{self, *};
use rdma_transport::status::Code;

use crate::fake::*;

fn unavailable(id: &mut Identity, kind: ProviderKind, why: &str) {
    let offer = id.providers.iter_mut().find(|o| o.kind == kind).unwrap();
    offer.unavailable = Some(why.into());
}

type Case<'a> =
    (bool, bool, bool, bool, &'a [ProviderKind], &'a [ProviderKind], Option<ProviderKind>);

/// (same process, same host, ibverbs at a, ibverbs at b, what a offers, what b offers) -> choice.
#[test]
fn table() {
    let all = &ProviderKind::ALL[..];
    let cases: &[Case] = &[
        (true, true, true, true, all, all, Some(Loopback)),
        (false, true, true, true, all, all, Some(Shm)),
        (false, false, true, true, all, all, Some(Ibverbs)),
        (false, false, true, false, all, all, Some(Tcp)),
        (false, false, false, true, all, all, Some(Tcp)),
        (true, true, true, true, &[Tcp], all, Some(Tcp)),
        (true, true, true, true, all, &[Tcp], Some(Tcp)),
        (true, true, true, true, &[Shm], all, Some(Shm)),
        (true, true, true, true, &[Ibverbs], all, Some(Ibverbs)),
        (true, true, false, true, &[Ibverbs], all, None),
        (false, false, true, true, &[Shm], all, None),
        (false, true, true, true, &[Loopback], all, None),
        (true, true, true, true, &[Tcp], &[Shm], None),
        (true, true, true, true, &[], all, None),
    ];
    for &(process, host, ib_a, ib_b, of_a, of_b, expected) in cases {
        let (mut a, mut b) = (identity("a"), identity("b"));
        if process {
            b.process_id = a.process_id;
        }
        if host {
            b.host_id = a.host_id;
        }
        for (id, of, ib) in [(&mut a, of_a, ib_a), (&mut b, of_b, ib_b)] {
            id.providers = offers(of);
            if !ib && of.contains(&Ibverbs) {
                unavailable(id, Ibverbs, "libibverbs.so.1 not found");
            }
        }
        let one = choose(&a, &b).map(|c| c.candidates);
        let other = choose(&b, &a).map(|c| c.candidates);
        assert_eq!(one.clone().ok(), other.ok(), "both sides see the same");
        assert_eq!(
            one.ok().map(|c| c[0]),
            expected,
            "{process} {host} {ib_a} {ib_b} {of_a:?} {of_b:?}"
        );
    }
}

#[test]
fn the_reason_says_why_none_is_better() {
    let (a, mut b) = (identity("a"), identity("b"));
    unavailable(&mut b, Ibverbs, "libibverbs.so.1 not found");
    let (mut a, mut b) = (Node::new(a, BootConfig::default()), Node::new(b, BootConfig::default()));
    meet(&mut a, &mut b);
    let reason = a.ready().unwrap().reason.to_owned();
    assert_eq!(reason, b.ready().unwrap().reason);
    for part in ["different processes", "different hosts", "libibverbs.so.1 not found", "'b'"] {
        assert!(reason.contains(part), "{reason}");
    }
}

#[test]
fn each_provider_connects() {
    for kind in ProviderKind::ALL {
        let (mut a, mut b) = (identity("a"), identity("b"));
        b.host_id = a.host_id;
        b.process_id = a.process_id;
        a.providers = offers(&[kind]);
        a.checksum = true;
        let (mut a, mut b) =
            (Node::new(a.clone(), BootConfig::default()), Node::new(b, BootConfig::default()));
        (a.neg.patience, b.neg.patience) = (2, 5);
        (a.neg.address_len, b.neg.address_len) = (Some(MAX_ENDPOINT_ADDRESS), Some(64));
        a.listen();
        meet(&mut a, &mut b);
        let (ra, rb) = (a.ready().unwrap(), b.ready().unwrap());
        assert_eq!((ra.kind, rb.kind), (kind, kind));
        assert_eq!((ra.token, rb.token), (Some(1), None));
        assert!(ra.initiator && !rb.initiator);
        assert_eq!(ra.hello.name, "b");
        assert_eq!(&rb.hello.identity, a.boot.identity());
        assert_eq!(rb.hello.addrs, a.boot.addresses());
        assert_eq!(ra.sock.is_none(), [Tcp, Loopback].contains(&kind));
        assert_eq!(a.neg.remotes[&ra.ep.0].len(), 64);
        assert_eq!(b.neg.remotes[&rb.ep.0].len(), MAX_ENDPOINT_ADDRESS);
        if kind == Tcp {
            assert_eq!(a.first_data(), FIRST_DATA, "nothing of the data was swallowed");
            assert_eq!(b.first_data(), FIRST_DATA);
        }
    }
}

#[test]
fn a_required_provider_is_never_replaced() {
    let (mut a, mut b) = (identity("a"), identity("b"));
    a.providers = offers(&[Ibverbs]);
    unavailable(&mut b, Ibverbs, "no device");
    let (mut a, mut b) = (Node::new(a, BootConfig::default()), Node::new(b, BootConfig::default()));
    meet(&mut a, &mut b);
    let (status, retryable) = a.failed().unwrap();
    assert_eq!((status.code, retryable), (Code::FailedPrecondition, false));
    for text in [&status.message, &b.rejected().unwrap().message] {
        assert!(text.contains("ibverbs: no device (at 'b')"), "{text}");
        assert!(text.contains("tcp: not offered by 'a'"), "{text}");
    }
    assert_eq!((a.neg.created, b.neg.created), (0, 0));
}

/// Every way in which shm can fail, on either side, ends at tcp with all else given back.
#[test]
fn the_next_provider_follows_a_failure() {
    type Fault = fn(&mut Fake) -> &mut BTreeSet<ProviderKind>;
    let faults: [Fault; 3] =
        [|f| &mut f.fail_create, |f| &mut f.fail_connect, |f| &mut f.fail_connected];
    for auth in [false, true] {
        for fault in faults {
            for (at_a, at_b) in [(true, false), (false, true), (true, true)] {
                let config = if auth { secret("s") } else { BootConfig::default() };
                let (a, mut b) = (identity("a"), identity("b"));
                b.host_id = a.host_id;
                unavailable(&mut b, Ibverbs, "no device");
                let (mut a, mut b) = (Node::new(a, config.clone()), Node::new(b, config));
                for (node, on) in [(&mut a, at_a), (&mut b, at_b)] {
                    if on {
                        fault(&mut node.neg).insert(Shm);
                    }
                }
                meet(&mut a, &mut b);
                for node in [&mut a, &mut b] {
                    let r = node.ready().expect("ready");
                    assert_eq!(r.kind, Tcp);
                    assert!(r.reason.contains("fails on purpose"), "{}", r.reason);
                    assert_eq!(node.neg.live.len(), 1, "the others were discarded");
                    assert_eq!(node.events.len(), 1);
                    assert_eq!(node.first_data(), FIRST_DATA);
                }
            }
        }
    }
}

#[test]
fn when_all_fail_the_error_names_all() {
    let (mut a, mut b) = (Node::plain("a"), Node::plain("b"));
    a.neg.fail_connect.insert(Ibverbs);
    b.neg.fail_create.insert(Tcp);
    meet(&mut a, &mut b);
    let (status, retryable) = a.failed().unwrap();
    assert_eq!((status.code, retryable), (Code::ResourceExhausted, true));
    for part in ["ibverbs connect fails", "tcp create fails", "different processes"] {
        assert!(status.message.contains(part), "{status}");
    }
    assert!(a.neg.live.is_empty() && b.neg.live.is_empty());
}

#[test]
fn an_endpoint_that_never_connects_is_given_up() {
    for at_a in [true, false] {
        let (mut a, mut b) = (Node::plain("a"), Node::plain("b"));
        let slow = if at_a { &mut a } else { &mut b };
        slow.neg.never_connected.insert(Ibverbs);
        let addr = b.listen();
        a.dial(1, &[addr]);
        let waits = |n: &Node| n.neg.remotes.len() == 1;
        drive(&mut [&mut a, &mut b], |n| waits(n[0]) && waits(n[1]));
        assert!(a.events.is_empty() && b.events.is_empty());
        for n in [&mut a, &mut b] {
            n.pass(Duration::from_secs(4));
        }
        drive(&mut [&mut a, &mut b], |n| n.iter().all(|n| n.ready().is_some()));
        assert_eq!(a.ready().unwrap().kind, Tcp);
        assert!(a.ready().unwrap().reason.contains("not connected within 3s"));
        assert_eq!((a.neg.live.len(), b.neg.live.len()), (1, 1));
    }
}

/// A peer that is slow to do its part of another provider, which is given up later, or, if there is no other to try, not before the peer is.
#[test]
fn an_endpoint_that_waits_for_the_peer_alone_has_more_time() {
    for others in [true, false] {
        let (mut a, mut b) = (identity("a"), identity("b"));
        b.host_id = a.host_id;
        a.providers = offers(if others { &[Shm, Tcp] } else { &[Shm] });
        let (mut a, mut b) =
            (Node::new(a, BootConfig::default()), Node::new(b, BootConfig::default()));
        b.neg.never_connected.insert(Shm);
        let addr = b.listen();
        a.dial(1, &[addr]);
        drive(&mut [&mut a, &mut b], |n| n.iter().all(|n| n.neg.remotes.len() == 1));
        b.pass(Duration::from_secs(9));
        b.poll();
        assert_eq!(b.neg.live.len(), 1);
        b.pass(Duration::from_secs(2));
        match others {
            true => {
                drive(&mut [&mut a, &mut b], |n| n.iter().all(|n| n.ready().is_some()));
                assert_eq!(b.ready().unwrap().kind, Tcp);
            }
            false => {
                b.poll();
                b.neg.never_connected.clear();
                drive(&mut [&mut a, &mut b], |n| n.iter().all(|n| n.ready().is_some()));
                assert_eq!(b.ready().unwrap().kind, Shm);
            }
        }
    }
}

#[test]
fn a_tcp_endpoint_that_fails_after_ready_fails_the_dial() {
    let (mut a, mut b) = (Node::plain("a"), Node::plain("b"));
    unavailable_everywhere(&mut a, &mut b);
    a.neg.fail_connected.insert(Tcp);
    meet(&mut a, &mut b);
    assert_eq!(a.failed().unwrap().0.code, Code::ResourceExhausted);
    assert!(a.neg.live.is_empty());
}

fn unavailable_everywhere(a: &mut Node, b: &mut Node) {
    for node in [a, b] {
        let mut id = node.boot.identity().clone();
        id.providers = offers(&[Tcp]);
        node.boot = Bootstrap::new(id, BootConfig::default()).unwrap();
    }
}

#[test]
fn an_endpoint_address_that_is_too_long_is_an_error_here() {
    let (mut a, mut b) = (Node::plain("a"), Node::plain("b"));
    b.neg.address_len = Some(MAX_ENDPOINT_ADDRESS + 1);
    meet(&mut a, &mut b);
    assert!(a.failed().unwrap().0.message.contains("1025 bytes"));
    assert!(b.neg.live.is_empty());
}
