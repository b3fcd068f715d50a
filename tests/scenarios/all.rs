//! The end of a manager, a process, a connection, with everything under way at once.

use rdma_transport::status::{Code, Reason};

use super::kind::Kind;
use super::ops::*;
use super::script::{EAGER, LARGE, R, S, ibverbs, shm};
use super::stage::Stage;

const CANCELLED: End = Some((Code::Cancelled, Reason::Cancelled));

/// Transfers in every state, both ways.
fn everything(s: &mut Stage) {
    let mut n = 0;
    let mut key = || {
        n += 1;
        format!("all {n}")
    };
    for (a, b) in [(R, S), (S, R)] {
        let known = Tell { key: "known", step: 0, ..K };
        s.send(b, known, LARGE);
        s.recv(a, known, Into::Callback);
        s.run();
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
    for setup in [shm(), ibverbs(), ibverbs().proxies(), shm().no_reads(), shm().checksums()] {
        for node in [R, S] {
            let mut s = setup.clone().connected();
            everything(&mut s);
            s.shut_down(node);
            let mine: Vec<bool> = (0..s.recvs.len())
                .filter(|&r| s.recvs[r].node == node)
                .map(|r| s.recv_end(RecvId(r)).is_some())
                .collect();
            assert!(mine.iter().filter(|ended| **ended).count() > 5, "{mine:?}");
            s.let_all_go();
            s.cleanup(1 - node, 1);
            s.finish();
        }
    }
}

#[test]
fn lost_with_everything_under_way() {
    for setup in [shm(), ibverbs(), ibverbs().proxies(), shm().no_reads(), shm().checksums()] {
        let mut s = setup.connected();
        everything(&mut s);
        s.cut();
        s.let_all_go();
        s.cleanup(R, 1);
        s.cleanup(S, 1);
        s.finish();
    }
}

#[test]
fn crash_with_everything_under_way() {
    for silent in [false, true] {
        for setup in [shm(), ibverbs(), ibverbs().proxies(), shm().no_reads()] {
            let mut s = setup.connected();
            everything(&mut s);
            s.crash(S, silent);
            s.pass(11_000);
            s.let_all_go();
            s.cleanup(R, 1);
            s.finish();
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
