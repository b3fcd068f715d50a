//! Silence: who is asked for a sign of life, how often, and what becomes of who gives none.

use rdma_transport::status::{Code, Reason};

use super::kind::Kind;
use super::ops::*;
use super::script::{LARGE, MS, R, S, ibverbs, shm};
use super::stage::Stage;

const STALLED: End = Some((Code::Unavailable, Reason::PeerStalled));
const CANCELLED: End = Some((Code::Cancelled, Reason::Cancelled));

#[test]
fn a_quiet_peer_that_answers_is_alive() {
    let mut s = shm().connected();
    s.pass(30_000);
    assert!(s.count(R, Kind::Ping) + s.count(S, Kind::Ping) > 10);
    assert_eq!((s.peer_state(R).1, s.peer_state(S).1), (1, 1));
    s.finish();
}

/// Most connections of a full mesh rest most of the time.
#[test]
fn a_connection_that_rests_is_asked_for_a_sign_of_life_less_often() {
    let mut s = shm().settings(|s| s.timeout = 600_000_000_000).connected();
    let pings = |s: &mut Stage, ms| {
        let before = s.count(R, Kind::Ping) + s.count(S, Kind::Ping);
        s.pass(ms);
        s.count(R, Kind::Ping) + s.count(S, Kind::Ping) - before
    };
    let busy = pings(&mut s, 10_000);
    assert!((15..=40).contains(&busy), "{busy}");
    s.pass(1_000);
    let rest = pings(&mut s, 10_000);
    assert!((3..=8).contains(&rest), "{rest}");
    // Both know at once that it rests no more.
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Given(LARGE)));
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    let busy = pings(&mut s, 5_000);
    assert!((7..=20).contains(&busy), "{busy}");
    // One whose peer stood still while it rested is found a little later than another.
    s.pass(20_000);
    s.stalled[S] = true;
    s.pass(3_000);
    let r = s.recv(R, Tell { key: "late", ..K }, Into::Given(LARGE));
    s.run();
    s.pass(10_500);
    assert_eq!(s.recv_end(r), STALLED);
    s.stalled[S] = false;
    s.run();
    s.finish();
}

#[test]
fn a_peer_that_stands_still_is_stalled() {
    let mut s = shm().settings(|s| s.timeout = 60_000_000_000).connected();
    let r = s.recv(R, K, Into::Given(LARGE));
    s.run();
    s.stalled[S] = true;
    s.pass(10_000);
    assert_eq!(s.recv_end(r), None);
    s.pass(2_000);
    assert_eq!(s.recv_end(r), STALLED);
    s.stalled[S] = false;
    s.run();
    s.finish();
}

/// A machine that stood still for a minute: the peer's answers were kept as well.
#[test]
fn where_all_stood_still_nobody_is_stalled() {
    let mut s = shm().settings(|s| s.timeout = 600_000_000_000).connected();
    let r = s.recv(R, K, Into::Given(LARGE));
    s.run();
    s.stalled[S] = true;
    s.pass(1_000);
    assert!(s.count(R, Kind::Ping) > 0, "it waits for an answer");
    s.w.now += 60_000_000_000;
    s.tick(R);
    s.pass(5_000);
    assert_eq!((s.recv_end(r), s.peer_state(R).1), (None, 1));
    s.stalled[S] = false;
    s.tick(S);
    let send = s.send(S, K, LARGE);
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    // Its time is the usual one from then on.
    let r = s.recv(R, Tell { key: "later", ..K }, Into::Given(LARGE));
    s.run();
    s.stalled[S] = true;
    s.pass(12_000);
    assert_eq!(s.recv_end(r), STALLED);
    s.stalled[S] = false;
    s.run();
    s.finish();
}

/// The same of an answer to CANCEL, for which the peer has less time.
#[test]
fn where_all_stood_still_a_cancelled_receive_waits_on() {
    let mut s = ibverbs().settings(|s| s.timeout = 600_000_000_000).connected();
    let r = s.recv(R, K, Into::Given(LARGE));
    s.run();
    s.stalled[S] = true;
    s.cancel(r).unwrap();
    s.run();
    s.w.now += 60_000_000_000;
    s.tick(R);
    assert_eq!((s.recv_end(r), s.peer_state(R).1), (None, 1));
    s.stalled[S] = false;
    s.run();
    assert_eq!((s.recv_end(r), s.peer_state(R).1), (CANCELLED, 1));
    s.finish();
}

#[test]
fn a_peer_that_drives_itself_may_be_silent() {
    let mut setup = shm().settings(|s| s.timeout = 60_000_000_000);
    setup.manual = true;
    let mut s = setup.connected();
    let r = s.recv(R, K, Into::Given(LARGE));
    s.run();
    s.stalled[S] = true;
    s.pass(30_000);
    assert_eq!(s.recv_end(r), None);
    s.stalled[S] = false;
    let send = s.send(S, K, LARGE);
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    s.finish();
}

/// So may one from which nothing is wanted any more: the application has said how long its send lasts.
#[test]
fn a_tensor_that_a_silent_receiver_does_not_take_ends_behind_its_deadline() {
    for timeout in [Some(1_000 * MS), None] {
        let mut setup = shm().settings(|s| s.timeout = 60_000 * MS);
        setup.manual = true;
        let mut s = setup.connected();
        let r = s.recv(R, K, Into::Given(LARGE));
        s.run();
        s.hold(S, Kind::Write);
        s.stalled[R] = true;
        let send = s.send(S, Tell { timeout, ..K }, LARGE);
        s.pass(7_900);
        assert_eq!((s.send_end(send), s.peer_state(S).1), (None, 1));
        // What moved before may be seen as a sign of life once.
        s.pass(3_000);
        let over = timeout.is_some();
        let ends = (s.send_end(send), s.peer_state(S).1);
        assert_eq!(ends, if over { (STALLED, 0) } else { (None, 1) });
        s.stalled[R] = false;
        s.let_all_go();
        s.run();
        assert_eq!(s.recv_end(r) == OK, !over);
        s.finish();
    }
}
