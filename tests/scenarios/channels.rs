//! A connection by itself: credits, the send queue, fragments, signs of life, its beginning and its end.

use rdma_transport::status::{Code, Reason};

use super::kind::Kind;
use super::ops::*;
use super::script::{EAGER, LARGE, R, S, ibverbs, shm};
use super::stage::Stage;

const CANCELLED: End = Some((Code::Cancelled, Reason::Cancelled));
const GONE: End = Some((Code::Unavailable, Reason::PeerGone));
const STALLED: End = Some((Code::Unavailable, Reason::PeerStalled));

/// Begins so many transfers, in a step of their own.
fn many(s: &mut Stage, n: usize, len: u64, from: usize) -> Vec<(SendId, RecvId)> {
    let one = |i: usize| {
        let key = format!("{from} {i}");
        let of = Tell { key: &key, step: 5, ..K };
        (s.send(from, of, len), s.recv(1 - from, of, Into::Callback))
    };
    (0..n).map(one).collect()
}

fn all_end_well(s: &Stage, all: &[(SendId, RecvId)]) {
    for &(send, r) in all {
        assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK), "{}", s.recv_text(r));
    }
}

#[test]
fn credits_run_out_and_come_back() {
    for setup in [shm(), shm().checksums(), ibverbs()] {
        let mut s = setup.connected();
        s.hold(R, Kind::Request);
        let all = many(&mut s, 60, EAGER, S);
        assert!(s.has_pending(R), "there were credits for all");
        s.let_all_go();
        all_end_well(&s, &all);
        s.finish();
    }
}

#[test]
fn both_sides_are_out_of_credits_at_once() {
    for setup in [shm(), shm().checksums(), ibverbs().no_reads()] {
        for depth in [8, 9, 16] {
            let mut s = setup.clone().caps(|c| c.recv_depth = depth).connected();
            let kinds = [Kind::Request, Kind::Ack, Kind::Pong, Kind::Content];
            for node in [R, S] {
                kinds.into_iter().for_each(|kind| s.hold(node, kind));
            }
            let mut all = many(&mut s, 40, LARGE, S);
            all.extend(many(&mut s, 40, EAGER, R));
            s.run();
            assert!(s.has_pending(R) && s.has_pending(S));
            s.let_all_go();
            all_end_well(&s, &all);
            s.finish();
        }
    }
}

#[test]
fn a_quantum_of_credits_goes_back_by_itself() {
    let mut s = shm().connected();
    let before = s.wire(S).len();
    s.hold(S, Kind::Ack);
    // Messages that nobody answers: requests for what is not there.
    let asked: Vec<RecvId> = (0..8)
        .map(|i| {
            let key = format!("{i}");
            s.recv(R, Tell { key: &key, ..K }, Into::Library)
        })
        .collect();
    s.run();
    assert_eq!((before, s.wire(S)), (0, vec![Kind::Ack]));
    s.let_all_go();
    asked.into_iter().for_each(|r| s.cancel(r).unwrap());
    s.run();
    s.finish();
}

#[test]
fn a_send_queue_of_one() {
    for setup in [shm(), ibverbs().proxies(), shm().no_reads(), shm().checksums()] {
        let mut setup = setup;
        setup.sq_depth = 1;
        let mut s = setup.connected();
        let mut all = many(&mut s, 20, LARGE, S);
        all.extend(many(&mut s, 20, EAGER, R));
        s.run();
        all_end_well(&s, &all);
        s.finish();
    }
}

#[test]
fn a_request_that_waits_for_a_credit_is_taken_back_unsent() {
    let mut s = shm().connected();
    s.hold(R, Kind::Request);
    let all = many(&mut s, 20, EAGER, S);
    let out = s.wire(R).len();
    let last = all[19];
    s.cancel(last.1).unwrap();
    assert_eq!(s.recv_end(last.1), CANCELLED);
    s.let_all_go();
    assert_eq!((s.count(R, Kind::Request), s.count(R, Kind::Cancel)), (19, 0), "{out} had left");
    all_end_well(&s, &all[..19]);
    s.cleanup(S, 5);
    s.finish();
}

#[test]
fn content_waits_for_a_credit() {
    let mut setup = shm();
    setup.caps[R].recv_depth = 8;
    let mut s = setup.connected();
    s.hold(S, Kind::Content);
    let all = many(&mut s, 12, EAGER, S);
    s.run();
    // Eager content is copied when it is posted: the sends have ended, wherever it waits.
    assert!(s.has_pending(S));
    assert!(all.iter().all(|a| s.send_end(a.0) == OK && s.recv_end(a.1).is_none()));
    s.let_all_go();
    all_end_well(&s, &all);
    s.finish();
}

#[test]
fn an_immediate_waits_for_a_credit() {
    let mut setup = ibverbs();
    setup.caps[R].recv_depth = 8;
    let mut s = setup.connected();
    s.hold(S, Kind::Content);
    let all = many(&mut s, 12, EAGER, S);
    s.run();
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Given(LARGE)));
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (None, None));
    s.let_all_go();
    all_end_well(&s, &all);
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    s.finish();
}

const LONG: &str = "a key that is much longer than a message of this provider, ";

fn long() -> String {
    LONG.repeat(50)
}

#[test]
fn fragmented_request() {
    for setup in [shm(), shm().checksums(), ibverbs()] {
        let (mut s, key) = (setup.connected(), long());
        let of = Tell { key: &key, ..K };
        let (send, r) = (s.send(S, of, EAGER), s.recv(R, of, Into::Callback));
        s.run();
        assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
        assert_eq!((s.count(R, Kind::Request), s.count(R, Kind::Fragment)), (0, 3));
        s.finish();
    }
}

#[test]
fn fragmented_request_lost_half_way() {
    let (mut s, key) = (shm().connected(), long());
    let of = Tell { key: &key, ..K };
    s.hold(R, Kind::Fragment);
    let (send, r) = (s.send(S, of, EAGER), s.recv(R, of, Into::Callback));
    s.step(R);
    s.cut();
    assert_eq!((s.send_end(send), s.recv_end(r)), (None, GONE));
    s.let_all_go();
    // Nothing of the half is left on the next connection.
    let r = s.recv(R, of, Into::Callback);
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    s.finish();
}

#[test]
fn fragmented_request_cancelled_half_way() {
    let (mut s, key) = (shm().connected(), long());
    let of = Tell { key: &key, ..K };
    s.hold(R, Kind::Fragment);
    let r = s.recv(R, of, Into::Callback);
    s.step(R);
    s.cancel(r).unwrap();
    assert_eq!(s.recv_end(r), CANCELLED);
    assert_eq!(s.wire(R), [Kind::Fragment, Kind::Fragment, Kind::Cancel]);
    s.let_all_go();
    s.finish();
}

#[test]
fn fragmented_request_of_which_a_part_has_left() {
    let mut s = shm().connected();
    s.hold(R, Kind::Fragment);
    s.hold(R, Kind::Request);
    // So many credits are used that only a part of it goes out.
    let all = many(&mut s, 11, EAGER, S);
    let key = long();
    let of = Tell { key: &key, ..K };
    let r = s.recv(R, of, Into::Callback);
    assert!(s.wire(R).contains(&Kind::Fragment) && s.has_pending(R), "{:?}", s.wire(R));
    s.cancel(r).unwrap();
    assert_eq!(s.recv_end(r), CANCELLED);
    s.let_all_go();
    // What had begun is sent to its end: nothing may come between.
    assert_eq!((s.count(R, Kind::Fragment), s.count(R, Kind::Cancel)), (3, 1));
    all_end_well(&s, &all);
    s.finish();
}

#[test]
fn a_message_in_too_many_fragments_ends_the_connection() {
    let (mut s, key) = (shm().connected(), long());
    s.hold(R, Kind::Fragment);
    let r = s.recv(R, Tell { key: &key, ..K }, Into::Callback);
    s.step(R);
    // Its first piece over and over: what is put together of it is bounded.
    for _ in 0..130 {
        s.repeat(R, Kind::Fragment);
    }
    s.let_all_go();
    assert_eq!(s.recv_end(r), GONE);
    s.finish();
}

#[test]
fn several_regions_do_not_fit_a_message() {
    let mut setup = ibverbs();
    (setup.max_region, setup.caps[S].max_send, setup.caps[R].max_send) = (5, 300, 300);
    let mut s = setup.connected();
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Given(LARGE)));
    s.run();
    assert!(s.count(R, Kind::Fragment) > 2);
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    s.finish();
}

#[test]
fn content_that_moves_is_a_sign_of_life() {
    let mut s = ibverbs().settings(|s| s.timeout = 60_000_000_000).connected();
    s.w.fate.part = Some(10);
    s.hold(S, Kind::Write);
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Given(LARGE)));
    s.run();
    // Its answers to PING are behind the writes.
    for _ in 0..20 {
        s.pass(1_000);
        s.step(S);
    }
    assert_eq!(s.recv_end(r), None);
    s.w.fate.part = None;
    s.let_all_go();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    s.finish();
}

#[test]
fn channel_lost_in_a_read() {
    for setup in [shm(), ibverbs(), ibverbs().proxies()] {
        let mut s = setup.connected();
        s.w.fate.part = Some(150);
        s.hold(R, Kind::Read);
        let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Callback));
        s.run();
        s.step(R);
        s.cut();
        assert_eq!((s.send_end(send), s.recv_end(r)), (GONE, GONE));
        s.finish();
    }
}

#[test]
fn channel_lost_in_a_write() {
    for setup in [shm(), ibverbs(), ibverbs().proxies()] {
        let mut s = setup.connected();
        s.w.fate.part = Some(150);
        s.hold(S, Kind::Write);
        let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Given(LARGE)));
        s.run();
        s.step(S);
        s.cut();
        assert_eq!((s.send_end(send), s.recv_end(r)), (GONE, GONE));
        s.finish();
    }
}

#[test]
fn only_one_end_finds_that_it_is_lost() {
    for (node, of) in [(R, Kind::Write), (S, Kind::Write), (R, Kind::Read), (S, Kind::Read)] {
        let mut s = shm().connected();
        let read = of == Kind::Read;
        s.hold(if read { R } else { S }, of);
        let into = if read { Into::Callback } else { Into::Given(LARGE) };
        let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, into));
        s.run();
        s.lose(node);
        let ends = (s.send_end(send), s.recv_end(r));
        assert_eq!(ends, if node == R { (None, GONE) } else { (GONE, None) });
        s.let_all_go();
        assert_eq!((s.send_end(send), s.recv_end(r)), (GONE, GONE));
        s.finish();
    }
}

#[test]
fn lost_after_the_last_write_and_before_its_completion() {
    let mut s = shm().connected();
    s.hold(S, Kind::Done);
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Given(LARGE)));
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (None, OK));
    s.cut();
    // The completions come before the end: it knows.
    assert_eq!(s.send_end(send), OK);
    s.finish();
}

#[test]
fn lost_before_get_done() {
    let mut s = shm().connected();
    s.hold(R, Kind::GetDone);
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Callback));
    s.run();
    s.cut();
    assert_eq!((s.send_end(send), s.recv_end(r)), (GONE, OK));
    s.finish();
}

#[test]
fn messages_before_one_end_is_open() {
    let mut s = shm().stage();
    s.hold(S, Kind::Open);
    s.connect(R);
    s.run();
    let r = s.recv(R, K, Into::Callback);
    s.run();
    assert_eq!((s.peer_state(R).1, s.peer_state(S).1), (1, 0));
    s.let_all_go();
    let send = s.send(S, K, EAGER);
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    s.finish();
}

#[test]
fn many_messages_before_one_end_is_open() {
    let mut s = shm().caps(|c| c.recv_depth = 64).stage();
    s.hold(S, Kind::Open);
    s.connect(R);
    s.run();
    let all = many(&mut s, 40, EAGER, S);
    s.run();
    // Until it is told of more, it keeps to eight.
    assert!(s.has_pending(R));
    assert!(s.count(R, Kind::Request) < 8);
    s.let_all_go();
    all_end_well(&s, &all);
    s.finish();
}

#[test]
fn both_connect_at_once() {
    let mut s = shm().stage();
    s.connect(R);
    s.connect(S);
    s.run();
    assert_eq!((s.peer_state(R).1, s.peer_state(S).1), (2, 2));
    let mut all = many(&mut s, 10, LARGE, S);
    all.extend(many(&mut s, 10, EAGER, R));
    s.run();
    all_end_well(&s, &all);
    // One of them is lost, and what is on the other goes on.
    s.hold(R, Kind::Read);
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Callback));
    s.run();
    s.cut();
    assert_eq!((s.send_end(send), s.recv_end(r)), (None, None));
    s.let_all_go();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    s.finish();
}

/// Whoever dialled first: a request and what the other one asks for go by the same connection, and by the other one when that is lost.
#[test]
fn both_ends_ask_on_the_same_of_two() {
    for order in [[R, S], [S, R]] {
        let mut s = shm().stage();
        for from in order {
            s.connect(from);
            s.run();
        }
        // That of the end with the lower number, R.
        let meant = order.iter().position(|&from| from == R).unwrap();
        for conn in [meant, 1 - meant] {
            [R, S].into_iter().for_each(|node| s.hold(node, Kind::Request));
            let waits = |s: &Stage| {
                let of = |node| s.w.conns[conn].ends[s.side(conn, node)].out.len();
                [R, S].map(of)
            };
            let before = waits(&s);
            let mut all = many(&mut s, 3, EAGER, S);
            all.extend(many(&mut s, 3, EAGER, R));
            s.run();
            assert_eq!(waits(&s), before.map(|n| n + 3), "{order:?}, {conn}");
            s.let_all_go();
            all_end_well(&s, &all);
            s.cut_one(conn);
            s.run();
        }
        s.finish();
    }
}
