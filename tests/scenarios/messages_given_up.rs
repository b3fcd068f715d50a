//! Tagged messages that are given up, or whose deadline passes, when their content is on its way. Each by name.

use rdma_transport::api::PeerState;
use rdma_transport::engine::front::message::Mode;
use rdma_transport::status::Code;

use super::kind::Kind;
use super::messages::{ANY, Post, TAG, code};
use super::script::{EAGER, LARGE, MS, R, S, Setup, ibverbs, shm};

/// A message whose content is on its way: of a READ `kind` stays where it is, a WRITE does.
pub fn held(setup: Setup, kind: Kind) -> (Post, usize, usize) {
    let mut p = Post::new(setup.settings(|s| s.timeout = 100_000 * MS));
    let to = p.other(S);
    p.s.hold(R, kind);
    p.s.hold(S, Kind::Write);
    let send = p.send(S, to, TAG, LARGE, Mode::Standard);
    let recv = p.recv(R, ANY, LARGE);
    p.run();
    assert_eq!((code(&p.sends[send]), code(&p.recvs[recv])), (None, None));
    (p, send, recv)
}

#[test]
fn a_receive_that_was_given_up_ends_though_the_sender_stands_still() {
    // No receive of a tensor was ever there: none has left a timer.
    for setup in [shm(), ibverbs(), shm().no_reads(), ibverbs().no_reads()] {
        let (mut p, send, recv) = held(setup, Kind::Read);
        p.give_up(R, p.recvs[recv].id).unwrap();
        p.s.stalled[S] = true;
        p.s.pass(2_100);
        p.look();
        assert_eq!(code(&p.recvs[recv]), Some(Code::Cancelled));
        p.s.stalled[S] = false;
        p.s.let_all_go();
        p.look();
        assert!(code(&p.sends[send]).is_some());
        p.finish();
    }
}

#[test]
fn a_send_that_is_taken_back_too_late_ends_with_its_content() {
    for setup in [shm(), ibverbs(), shm().no_reads(), ibverbs().no_reads()] {
        // What the receiver says passes its READ.
        let (mut p, send, recv) = held(setup, Kind::Done);
        p.cancel(S, p.sends[send].id).unwrap();
        p.s.pass(5_000);
        p.look();
        assert_eq!((code(&p.sends[send]), code(&p.recvs[recv])), (None, None));
        assert_eq!(p.s.peer_state(S), (PeerState::Connected, 1));
        p.s.let_all_go();
        p.look();
        assert_eq!((code(&p.sends[send]), code(&p.recvs[recv])), (Some(Code::Ok), Some(Code::Ok)));
        p.finish();
    }
}

#[test]
fn a_send_is_taken_back_while_its_grant_is_on_its_way() {
    for setup in [shm().no_reads(), ibverbs().no_reads()] {
        let mut p = Post::new(setup.settings(|s| s.timeout = 100_000 * MS));
        let to = p.other(S);
        p.s.hold(R, Kind::MsgGrant);
        p.s.hold(S, Kind::Write);
        let send = p.send(S, to, TAG, LARGE, Mode::Standard);
        let recv = p.recv(R, ANY, LARGE);
        p.run();
        p.cancel(S, p.sends[send].id).unwrap();
        p.s.let_go(R, Kind::MsgGrant);
        p.s.pass(5_000);
        p.look();
        assert_eq!((code(&p.sends[send]), code(&p.recvs[recv])), (None, None));
        p.s.let_all_go();
        p.look();
        assert_eq!((code(&p.sends[send]), code(&p.recvs[recv])), (Some(Code::Ok), Some(Code::Ok)));
        p.finish();
    }
}

/// A send whose content the receiver has asked for, and does not take: it computes, or stands still.
fn asked_and_not_taken(setup: Setup, timeout: u64) -> (Post, usize, usize) {
    let mut p = Post::new(setup.settings(|s| s.timeout = timeout));
    let to = p.other(S);
    p.s.hold(S, Kind::Write);
    let send = p.send(S, to, TAG, LARGE, Mode::Standard);
    let recv = p.recv(R, ANY, LARGE);
    p.run();
    p.s.stalled[R] = true;
    (p, send, recv)
}

#[test]
fn a_send_that_is_not_taken_ends_behind_its_deadline() {
    for manual in [false, true] {
        let mut setup = shm().no_reads().settings(|s| s.peer_timeout = 100_000 * MS);
        setup.manual = manual;
        let (mut p, send, _) = asked_and_not_taken(setup, 3_000 * MS);
        p.s.pass(4_800);
        p.look();
        assert_eq!(code(&p.sends[send]), None, "manual: {manual}");
        // What was heard before it was given up may be seen as a sign of life once.
        p.s.pass(2_300);
        p.look();
        assert_eq!(code(&p.sends[send]), Some(Code::DeadlineExceeded), "manual: {manual}");
        assert_eq!(p.s.peer_state(S).1, 0, "what is written ends with its connection");
        p.s.stalled[R] = false;
        p.s.let_all_go();
        p.finish();
    }
}

#[test]
fn a_send_that_is_not_taken_ends_when_it_is_given_up() {
    let mut setup = shm().no_reads();
    setup.manual = true;
    let (mut p, send, _) = asked_and_not_taken(setup, 100_000 * MS);
    p.give_up(S, p.sends[send].id).unwrap();
    p.s.pass(4_200);
    p.look();
    assert_eq!(code(&p.sends[send]), Some(Code::Unavailable));
    p.s.stalled[R] = false;
    p.s.let_all_go();
    p.finish();
}

/// To cancel comes too late then: it ends with its content, or by its deadline.
#[test]
fn a_send_that_is_not_taken_is_not_cancelled() {
    let mut setup = shm().no_reads();
    setup.manual = true;
    let (mut p, send, recv) = asked_and_not_taken(setup, 100_000 * MS);
    p.cancel(S, p.sends[send].id).unwrap();
    p.s.pass(20_000);
    p.look();
    assert_eq!((code(&p.sends[send]), p.s.peer_state(S).1), (None, 1));
    p.s.stalled[R] = false;
    p.s.let_all_go();
    p.run();
    p.look();
    assert_eq!((code(&p.sends[send]), code(&p.recvs[recv])), (Some(Code::Ok), Some(Code::Ok)));
    p.finish();
}

#[test]
fn a_peer_that_says_nothing_when_a_send_is_taken_back_is_stalled() {
    let (mut p, send, recv) = held(shm(), Kind::Done);
    p.cancel(S, p.sends[send].id).unwrap();
    p.s.stalled[R] = true;
    // Content that moved before may be seen as a sign of life once.
    p.s.pass(4_100);
    p.look();
    assert_eq!(code(&p.sends[send]), Some(Code::Unavailable));
    assert_eq!(p.s.peer_state(S).1, 0);
    p.s.stalled[R] = false;
    p.s.let_all_go();
    p.look();
    assert_eq!(code(&p.recvs[recv]), Some(Code::Unavailable));
    p.finish();
}

/// A rank that computes: it says nothing, and its connection lives. What is taken back from it ends, and nobody knows whether it was received; the rest goes
/// on.
#[test]
fn what_is_taken_back_from_who_drives_itself_ends_and_nothing_else() {
    for (len, mode) in [(LARGE, Mode::Standard), (EAGER, Mode::Synchronous)] {
        let mut setup = shm().settings(|s| s.timeout = 100_000 * MS);
        setup.manual = true;
        let mut p = Post::new(setup);
        let to = p.other(S);
        p.s.stalled[R] = true;
        let taken = p.send(S, to, TAG, len, mode);
        let other = p.send(S, to, TAG, LARGE, Mode::Standard);
        p.run();
        p.cancel(S, p.sends[taken].id).unwrap();
        p.s.pass(2_200);
        p.look();
        let ends = (code(&p.sends[taken]), code(&p.sends[other]));
        assert_eq!(ends, (Some(Code::Unavailable), None), "{len} bytes");
        assert_eq!(p.s.peer_state(S), (PeerState::Connected, 1));
        p.s.stalled[R] = false;
        p.s.let_all_go();
        let recv = p.recv(R, ANY, LARGE);
        p.run();
        p.look();
        let ends = (code(&p.sends[other]), code(&p.recvs[recv]));
        assert_eq!(ends, (Some(Code::Ok), Some(Code::Ok)), "{len} bytes");
        p.finish();
    }
}
