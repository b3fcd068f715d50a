//! Peers: tries to connect, incarnations, claims of a name.

use std::time::Duration;

use rdma_transport::api::{OnRecv, PeerState, Protocol, RecvOptions, Target};
use rdma_transport::engine::{Engine, Work};
use rdma_transport::status::{Code, Reason};

use super::engine::ScriptFx;
use super::kind::Kind;
use super::ops::*;
use super::script::{EAGER, LARGE, R, S, shm};
use super::stage::Stage;

const UNAVAILABLE: End = Some((Code::Unavailable, Reason::None));
const GONE: End = Some((Code::Unavailable, Reason::PeerGone));
const RESTARTED: End = Some((Code::Unavailable, Reason::PeerRestarted));
const STALLED: End = Some((Code::Unavailable, Reason::PeerStalled));
const DISCONNECTED: End = Some((Code::Unavailable, Reason::Cancelled));
const EXPIRED: End = Some((Code::DeadlineExceeded, Reason::Deadline));

/// A receive on a node that is not connected, and tries to be.
fn dialling() -> (Stage, RecvId) {
    let mut s = shm().stage();
    s.hold(R, Kind::Dial);
    let r = s.recv(R, K, Into::Callback);
    assert_eq!((s.dials(), s.peer_state(R)), (1, (PeerState::Connecting, 0)));
    (s, r)
}

#[test]
fn the_first_receive_connects_and_others_wait_with_it() {
    let (mut s, r) = dialling();
    let more = s.recv(R, Tell { key: "more", ..K }, Into::Callback);
    assert_eq!(s.dials(), 1, "one try at a time");
    let (a, b) = (s.send(S, K, EAGER), s.send(S, Tell { key: "more", ..K }, LARGE));
    s.let_all_go();
    assert_eq!([s.recv_end(r), s.recv_end(more), s.send_end(a), s.send_end(b)], [OK; 4]);
    assert_eq!(s.peer_state(R), (PeerState::Connected, 1));
    s.finish();
}

#[test]
fn a_try_that_fails_is_followed_by_another() {
    let (mut s, r) = dialling();
    s.refuse_dial(R, true);
    assert_eq!((s.recv_end(r), s.dials()), (None, 1));
    assert_eq!(s.peer_state(R).0, PeerState::Connecting);
    let send = s.send(S, K, EAGER);
    s.let_all_go();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    s.finish();
}

#[test]
fn a_try_that_fails_for_good_ends_what_waits() {
    let (mut s, r) = dialling();
    s.refuse_dial(R, true);
    s.refuse_dial(R, false);
    assert_eq!((s.recv_end(r), s.dials()), (UNAVAILABLE, 0));
    assert_eq!(s.peer_state(R).0, PeerState::Failed);
    // The next one tries again.
    let r = s.recv(R, K, Into::Callback);
    let send = s.send(S, K, EAGER);
    s.let_all_go();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    s.finish();
}

#[test]
fn a_try_that_fails_when_nothing_waits_any_more() {
    let (mut s, r) = dialling();
    s.cancel(r).unwrap();
    s.refuse_dial(R, true);
    assert_eq!((s.dials(), s.peer_state(R).0), (0, PeerState::Failed));
    s.finish();
}

#[test]
fn a_try_that_fails_while_the_peer_has_connected() {
    let (mut s, r) = dialling();
    s.connect(S);
    s.run();
    // What waited has gone out over its connection.
    let send = s.send(S, K, EAGER);
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    s.refuse_dial(R, false);
    assert_eq!(s.peer_state(R), (PeerState::Connected, 1));
    s.finish();
}

#[test]
fn the_deadline_tells_what_each_try_met() {
    let (mut s, r) = dialling();
    s.refuse_dial(R, true);
    s.refuse_dial(R, true);
    s.pass(1_010);
    assert_eq!(s.recv_end(r), EXPIRED);
    assert!(s.recv_text(r).contains("scripted: no connection, in each of 2 tries"));
    s.refuse_dial(R, true);
    s.finish();
}

#[test]
fn disconnect_while_dialling() {
    let (mut s, r) = dialling();
    s.disconnect(R);
    assert_eq!((s.recv_end(r), s.peer_state(R).0), (DISCONNECTED, PeerState::Idle));
    s.refuse_dial(R, true);
    assert_eq!(s.dials(), 0);
    s.finish();
}

#[test]
fn the_connection_comes_after_disconnect() {
    let (mut s, r) = dialling();
    s.disconnect(R);
    assert_eq!(s.recv_end(r), DISCONNECTED);
    s.let_all_go();
    let (send, r) = (s.send(S, K, EAGER), s.recv(R, K, Into::Callback));
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    s.finish();
}

#[test]
fn after_a_loss_the_next_receive_connects_again() {
    let mut s = shm().connected();
    s.cut();
    assert_eq!(s.peer_state(R), (PeerState::Idle, 0));
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Callback));
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    assert_eq!(s.peer_state(R), (PeerState::Connected, 1));
    s.finish();
}

/// A stage on which metadata is known, and a receive that is under way.
fn known() -> (Stage, RecvId) {
    let mut s = shm().connected();
    let of = Tell { step: 0, ..K };
    s.send(S, of, LARGE);
    s.recv(R, of, Into::Callback);
    s.run();
    let r = s.recv(R, K, Into::Callback);
    s.run();
    (s, r)
}

#[test]
fn metadata_survives_a_connection() {
    let (mut s, r) = known();
    s.cut();
    assert_eq!(s.recv_end(r), GONE);
    let (_, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Callback));
    s.run();
    assert_eq!(s.carried(r), Protocol::DirectPut);
    s.finish();
}

#[test]
fn peer_restarts_as_new_incarnation() {
    for silent in [false, true] {
        let (mut s, r) = known();
        s.hold(S, Kind::Fin);
        s.crash(S, silent);
        s.restart(S);
        assert_eq!(s.recv_end(r), None, "nobody has told");
        s.connect(S);
        s.run();
        assert_eq!(s.recv_end(r), RESTARTED);
        // Nothing is known of it.
        let (_, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Callback));
        s.run();
        assert_eq!(s.carried(r), Protocol::DirectGet);
        s.let_all_go();
        s.finish();
    }
}

#[test]
fn old_incarnations_answer() {
    let (mut s, r) = known();
    s.hold(S, Kind::Write);
    s.hold(S, Kind::Imm);
    let send = s.send(S, K, LARGE);
    s.run();
    s.step(S);
    assert_eq!((s.send_end(send), s.recv_end(r)), (None, None));
    // Another process has its name, and proves it; the old one still writes.
    assert_eq!(s.stranger(R), Some(true));
    assert_eq!(s.recv_end(r), RESTARTED);
    s.let_all_go();
    assert_eq!(s.send_end(send), GONE);
    s.finish();
}

#[test]
fn the_receiver_restarts_while_its_request_waits() {
    let mut s = shm().connected();
    s.recv(R, K, Into::Given(LARGE));
    s.run();
    s.hold(R, Kind::Fin);
    s.crash(R, false);
    s.restart(R);
    s.connect(R);
    s.run();
    // The tensor goes to whom lives.
    let r = s.recv(R, K, Into::Given(LARGE));
    let send = s.send(S, K, LARGE);
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    s.let_all_go();
    s.finish();
}

#[test]
fn the_receiver_restarts_while_it_is_written_to() {
    let mut s = shm().connected();
    s.hold(S, Kind::Write);
    s.recv(R, K, Into::Given(LARGE));
    let send = s.send(S, K, LARGE);
    s.run();
    s.step(S);
    s.crash(R, true);
    s.restart(R);
    s.connect(R);
    s.run();
    assert_eq!(s.send_end(send), RESTARTED);
    s.let_all_go();
    s.finish();
}

#[test]
fn what_is_queued_goes_to_the_new_incarnation() {
    let (mut s, r) = dialling();
    s.crash(S, false);
    s.restart(S);
    s.connect(S);
    let send = s.send(S, K, EAGER);
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    s.let_all_go();
    s.finish();
}

/// The old one is gone without a word, and the new one has no proof.
fn claimed() -> (Stage, RecvId) {
    let (mut s, r) = known();
    s.crash(S, true);
    s.restart(S);
    s.proved = false;
    s.hold(S, Kind::Open);
    s.connect(S);
    s.run();
    (s, r)
}

#[test]
fn a_claim_without_proof_waits_until_the_old_one_is_found_dead() {
    let (mut s, r) = claimed();
    assert_eq!((s.recv_end(r), s.peer_state(R).1), (None, 1));
    s.cancel(r).unwrap();
    let r = s.recv(R, Tell { timeout: Some(60_000_000_000), ..K }, Into::Callback);
    s.pass(12_000);
    assert_eq!(s.recv_end(r), STALLED);
    // Asked again, it is let in.
    s.let_all_go();
    assert_eq!(s.peer_state(R).1, 1);
    let (send, r) = (s.send(S, K, EAGER), s.recv(R, K, Into::Callback));
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    s.finish();
}

#[test]
fn a_claim_without_proof_while_the_old_one_lives() {
    let (mut s, r) = known();
    s.proved = false;
    assert_eq!(s.stranger(R), None, "the old one is asked for a sign of life");
    s.run();
    assert_eq!(s.stranger(R), Some(false), "it has given one");
    let send = s.send(S, K, LARGE);
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    s.finish();
}

#[test]
fn goodbye_tells_both_why() {
    let (mut s, r) = known();
    let waits = s.send(S, Tell { key: "waits", ..K }, EAGER);
    s.disconnect(S);
    s.run();
    assert_eq!((s.recv_end(r), s.send_end(waits)), (GONE, None));
    assert_eq!((s.peer_state(R).1, s.peer_state(S).1), (0, 0));
    s.cleanup(S, 1);
    s.finish();
}

/// What a thread has had of the processor up to this moment; what the system's files say of it may be as old as its last tick.
pub fn used() -> Duration {
    let mut at = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for one time.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut at) }, 0);
    Duration::new(at.tv_sec as u64, at.tv_nsec as u32)
}

/// What the end of each of so many receives takes that wait for a connection, at its best of a few times.
fn each_that_waits(count: usize, end: impl Fn(&mut Engine, &mut ScriptFx<'_>, &[u64])) -> Duration {
    let once = || {
        let mut s = shm().stage();
        let took = s.call_only(R, |e, fx| {
            let mut begin = |i: usize| {
                let (key, target) = (format!("key {i}"), Target::Library);
                let options = RecvOptions { timeout: None, target, device: 0, keep: false };
                let done = OnRecv::Plain(|_, _, _| {}, [0; 2]);
                e.recv(fx, Some("node1"), key.as_bytes(), 1, options, done).unwrap()
            };
            let ids: Vec<u64> = (0..count).map(&mut begin).collect();
            let begun = used();
            end(e, fx, &ids);
            used() - begun
        });
        // Their callbacks run, or they would count as lost.
        let mut ended = 0;
        for work in std::mem::take(&mut s.w.nodes[R].work) {
            if let Work::RecvDone { mut done, result, info, .. } = work {
                done.end(result.as_ref(), &info);
                ended += 1;
            }
        }
        assert_eq!(ended, count);
        took
    };
    (0..3).map(|_| once()).min().unwrap() / count as u32
}

#[test]
fn ends_among_many_that_wait_for_a_connection() {
    type Ends = fn(&mut Engine, &mut ScriptFx<'_>, &[u64]);
    let ways: [(&str, Ends); 3] = [
        ("the last first", |e, fx, ids| {
            ids.iter().rev().for_each(|&id| e.cancel(fx, id).unwrap());
        }),
        ("the first first", |e, fx, ids| ids.iter().for_each(|&id| e.cancel(fx, id).unwrap())),
        ("with their step", |e, fx, _| e.step_cleanup(fx, 1).unwrap()),
    ];
    for (what, end) in ways {
        let (few, many) = (each_that_waits(2_000, end), each_that_waits(40_000, end));
        println!("{what}: {few:?} each among 2,000, {many:?} among 40,000");
        assert!(many < 6 * few.max(Duration::from_nanos(500)), "{what}: {few:?}, {many:?}");
    }
}
