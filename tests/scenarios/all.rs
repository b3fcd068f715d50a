//! The end of a manager, a process, a connection, with everything under way at once.

use rdma_transport::engine::front::message::{Envelope, Mode, Wanted};
use rdma_transport::engine::layout::LAYOUT;
use rdma_transport::status::{Code, Reason};

use super::kind::Kind;
use super::messages::{ALL, ANY, Post};
use super::ops::*;
use super::script::{EAGER, LARGE, R, S, Setup, ibverbs, shm};
use super::stage::Stage;

const CANCELLED: End = Some((Code::Cancelled, Reason::Cancelled));

/// What waits for no answer goes first: behind what is held nothing of a node moves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum First {
    Tensors,
    Messages,
}

/// Transfers and messages in every state, both ways.
fn everything(setup: Setup, first: First) -> Post {
    let mut p = Post::new(setup);
    for (a, b) in [(R, S), (S, R)] {
        let known = Tell { key: "known", step: 0, ..K };
        p.s.send(b, known, LARGE);
        p.s.recv(a, known, Into::Callback);
        p.run();
    }
    if first == First::Messages {
        messages(&mut p);
    }
    tensors(&mut p.s);
    p.look();
    if first == First::Tensors {
        messages(&mut p);
    }
    let under_way = p.sends.iter().chain(&p.recvs).filter(|op| op.ended.is_none()).count();
    assert!(under_way > 30, "{under_way} messages and receives");
    p
}

/// Each setup, in each order.
fn each(setups: impl IntoIterator<Item = Setup>) -> Vec<(Setup, First)> {
    let orders = |s: Setup| [(s.clone(), First::Tensors), (s, First::Messages)];
    setups.into_iter().flat_map(orders).collect()
}

fn message(p: &mut Post, from: usize, tag: u64, (len, device): (u64, u32), mode: Mode) {
    let (to, given) = (p.other(from), tag != GATHERING);
    p.send_from(from, to, Envelope { comm: 0, tag }, (len, device, given), mode);
}

/// The tag of what is copied when its turn comes.
const GATHERING: u64 = 9;

fn messages(p: &mut Post) {
    use Mode::{Standard, Synchronous};
    let wants = |tag| Wanted { tag, mask: ALL, ..ANY };
    for (a, b) in [(R, S), (S, R)] {
        // Claimed, and offered or unmatched: for these no receive comes.
        for (len, device, mode) in
            [(8, 0, Standard), (8, 0, Synchronous), (LARGE, 0, Standard), (LARGE, LAYOUT, Standard)]
        {
            message(p, a, 1, (len, device), mode);
            p.run();
            p.probe(b, wants(1), true);
            message(p, a, 2, (len, device), mode);
            p.run();
        }
        // A receive that waits for what never comes; messages to oneself that wait, or are claimed.
        p.recv(b, wants(7), LARGE);
        let own = |p: &mut Post| {
            let own = rdma_transport::engine::front::message::Party::OWN;
            p.send(a, own, Envelope { comm: 2, tag: 0 }, LARGE, Standard);
        };
        own(p);
        p.probe(a, Wanted { comm: 2, ..ANY }, true);
        own(p);
    }
    // Copied to a device, from and into pieces; read, or written and granted.
    for (node, kind) in [(R, Kind::Copy), (S, Kind::Copy), (R, Kind::Read), (R, Kind::Write)] {
        p.s.hold(node, kind);
    }
    [Kind::Read, Kind::Write].into_iter().for_each(|kind| p.s.hold(S, kind));
    for (a, b) in [(R, S), (S, R)] {
        p.recv_into(b, wants(3), EAGER, 1, None);
        message(p, a, 3, (EAGER, 0), Standard);
        for (tag, from, to) in [(4, 0, LAYOUT), (5, LAYOUT, 0), (6, 0, 0)] {
            p.recv_into(b, wants(tag), LARGE, to, None);
            message(p, a, tag, (LARGE, from), Standard);
        }
        p.run();
    }
    // Behind what gathers all the others of its node wait.
    for a in [R, S] {
        for len in [8, LARGE, 8] {
            message(p, a, GATHERING, (len, 0), Standard);
        }
        p.run();
    }
}

/// Transfers of tensors.
fn tensors(s: &mut Stage) {
    let mut n = 0;
    let mut key = || {
        n += 1;
        format!("all {n}")
    };
    for (a, b) in [(R, S), (S, R)] {
        // Without its tensor; with it, by each way; local; waiting for nobody.
        for into in [Into::Given(LARGE), Into::Callback, Into::Library] {
            s.recv(a, Tell { key: &key(), ..K }, into);
            s.recv_local(a, Tell { key: &key(), ..K }, into);
        }
        s.send(a, Tell { key: &key(), ..K }, EAGER);
        for kind in [Kind::Read, Kind::Alloc, Kind::Copy, Kind::Write, Kind::Imm, Kind::GetDone] {
            for (len, into) in [
                (LARGE, Into::Given(LARGE)),
                (LARGE, Into::Callback),
                (EAGER, Into::Callback),
                (LARGE, Into::Device),
            ] {
                let (from, to) = if kind == Kind::Imm { (a, b) } else { (b, a) };
                let name = key();
                s.send(from, Tell { key: &name, ..K }, len);
                s.recv(to, Tell { key: &name, ..K }, into);
                s.run();
            }
            s.hold(a, kind);
        }
        s.send(a, Tell { key: "local", ..K }, LARGE);
        s.recv_local(a, Tell { key: "local", ..K }, Into::Callback);
        s.run();
    }
}

#[test]
fn destroy_with_everything_under_way() {
    for (setup, first) in
        each([shm(), ibverbs(), ibverbs().proxies(), shm().no_reads(), shm().checksums()])
    {
        for node in [R, S] {
            let mut p = everything(setup.clone(), first);
            p.s.shut_down(node);
            p.look();
            let mine: Vec<bool> = (0..p.s.recvs.len())
                .filter(|&r| p.s.recvs[r].node == node)
                .map(|r| p.s.recv_end(RecvId(r)).is_some())
                .collect();
            assert!(mine.iter().filter(|ended| **ended).count() > 5, "{mine:?}");
            p.s.let_all_go();
            p.look();
            p.has_ended_all(node);
            p.s.cleanup(1 - node, 1);
            p.finish();
        }
    }
}

#[test]
fn lost_with_everything_under_way() {
    for (setup, first) in
        each([shm(), ibverbs(), ibverbs().proxies(), shm().no_reads(), shm().checksums()])
    {
        let mut p = everything(setup, first);
        p.s.cut();
        p.s.let_all_go();
        p.look();
        p.s.cleanup(R, 1);
        p.s.cleanup(S, 1);
        p.finish();
    }
}

#[test]
fn crash_with_everything_under_way() {
    for silent in [false, true] {
        for (setup, first) in each([shm(), ibverbs(), ibverbs().proxies(), shm().no_reads()]) {
            let mut p = everything(setup, first);
            p.crash(S, silent);
            p.s.pass(11_000);
            p.s.let_all_go();
            p.look();
            p.has_ended_all(R);
            p.s.cleanup(R, 1);
            p.finish();
        }
    }
}

#[test]
fn a_manager_that_ends_takes_nothing_more() {
    let mut s = shm().connected();
    s.shut_down(R);
    let (send, r) = (s.send(R, K, EAGER), s.recv(R, K, Into::Callback));
    assert_eq!((s.send_end(send), s.recv_end(r)), (CANCELLED, CANCELLED));
    s.run();
    s.finish();
}
