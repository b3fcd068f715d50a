//! The application's own rendezvous as the source: it is asked, and answers, in time or not.

use rdma_transport::status::{Code, Reason};

use super::kind::Kind;
use super::ops::*;
use super::script::{EAGER, LARGE, R, S, ibverbs, shm};
use super::stage::Stage;

const CANCELLED: End = Some((Code::Cancelled, Reason::Cancelled));
const GONE: End = Some((Code::Unavailable, Reason::PeerGone));
const UNKNOWN: End = Some((Code::NotFound, Reason::None));

/// A request for which the application was asked.
fn asked(into: Into) -> (Stage, RecvId, u64) {
    let mut s = shm().connected();
    s.set_source(S);
    let r = s.recv(R, K, into);
    s.run();
    assert_eq!(s.asked.len(), 1);
    let response = s.asked[0];
    (s, r, response)
}

#[test]
fn source_answers() {
    for len in [0, EAGER, LARGE] {
        for into in [Into::Given(LARGE), Into::Callback, Into::Library] {
            let (mut s, r, response) = asked(into);
            let send = s.answer(S, response, K, len);
            s.run();
            assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
            assert!(s.in_vain.is_empty());
            s.finish();
        }
    }
}

#[test]
fn source_has_no_such_tensor() {
    let (mut s, r, response) = asked(Into::Callback);
    s.answer_none(S, response).unwrap();
    s.run();
    assert_eq!(s.recv_end(r), Some((Code::NotFound, Reason::RemoteError)));
    assert!(s.in_vain.is_empty(), "it was its own answer");
    s.finish();
}

#[test]
fn source_answers_twice() {
    let (mut s, r, response) = asked(Into::Callback);
    let (send, again) = (s.answer(S, response, K, EAGER), s.answer(S, response, K, EAGER));
    s.run();
    assert_eq!((s.send_end(send), s.send_end(again), s.recv_end(r)), (OK, UNKNOWN, OK));
    s.finish();
}

#[test]
fn source_answers_after_the_channel_ended() {
    let (mut s, r, response) = asked(Into::Given(LARGE));
    s.cut();
    assert_eq!(s.in_vain, [(response, Code::Unavailable, Reason::PeerGone)]);
    let send = s.answer(S, response, K, LARGE);
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (UNKNOWN, GONE));
    s.finish();
}

#[test]
fn source_answers_after_cancel() {
    let (mut s, r, response) = asked(Into::Given(LARGE));
    s.cancel(r).unwrap();
    s.run();
    assert_eq!(s.in_vain, [(response, Code::Cancelled, Reason::RemoteError)]);
    let send = s.answer(S, response, K, LARGE);
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (UNKNOWN, CANCELLED));
    s.finish();
}

#[test]
fn source_answers_while_the_cancel_is_on_its_way() {
    let (mut s, r, response) = asked(Into::Given(LARGE));
    s.hold(R, Kind::Cancel);
    s.cancel(r).unwrap();
    let send = s.answer(S, response, K, LARGE);
    s.let_all_go();
    // The destination is closed, and nothing got there.
    assert_eq!(s.send_end(send), Some((Code::PermissionDenied, Reason::None)));
    assert_eq!(s.recv_end(r), CANCELLED);
    s.finish();
}

#[test]
fn source_answers_with_what_is_too_long() {
    let (mut s, r, response) = asked(Into::Given(LARGE));
    let send = s.answer(S, response, K, LARGE + 1);
    s.run();
    assert_eq!(s.send_end(send), Some((Code::OutOfRange, Reason::None)));
    assert_eq!(s.recv_end(r), Some((Code::OutOfRange, Reason::RemoteError)));
    // Not put into the table, of which the application knows nothing.
    assert_eq!(s.outstanding(S), [0; 4]);
    s.finish();
}

#[test]
fn source_is_not_asked_for_what_is_in_the_table() {
    let mut s = shm().connected();
    s.set_source(S);
    let (send, r) = (s.send(S, K, EAGER), s.recv(R, K, Into::Callback));
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r), s.asked.len()), (OK, OK, 0));
    s.finish();
}

#[test]
fn source_is_not_asked_for_an_aborted_step() {
    let mut s = shm().connected();
    s.set_source(S);
    s.abort(S, 1);
    let r = s.recv(R, K, Into::Callback);
    s.run();
    assert_eq!(s.recv_end(r), Some((Code::Aborted, Reason::RemoteError)));
    assert_eq!(s.asked.len(), 0);
    s.finish();
}

#[test]
fn source_answers_with_memory_that_needs_a_proxy() {
    let mut s = ibverbs().proxies().connected();
    s.set_source(S);
    let r = s.recv(R, K, Into::Given(LARGE));
    s.run();
    let send = s.answer(S, s.asked[0], K, LARGE);
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    s.finish();
}

#[test]
fn too_many_requests_wait() {
    let mut s = shm().settings(|s| s.max_waiting = 2).connected();
    let all: Vec<RecvId> = ["a", "b", "c"]
        .into_iter()
        .map(|key| s.recv(R, Tell { key, ..K }, Into::Callback))
        .collect();
    s.run();
    let ends: Vec<End> = all.iter().map(|&r| s.recv_end(r)).collect();
    assert_eq!(ends, [None, None, Some((Code::ResourceExhausted, Reason::RemoteError))]);
    // When one has ended, there is room.
    s.cancel(all[0]).unwrap();
    s.run();
    let r = s.recv(R, Tell { key: "d", ..K }, Into::Callback);
    for key in ["b", "d"] {
        s.send(S, Tell { key, ..K }, EAGER);
    }
    s.run();
    assert_eq!((s.recv_end(all[1]), s.recv_end(r)), (OK, OK));
    s.finish();
}

#[test]
fn too_many_bytes_of_requests_wait() {
    let mut s = shm().settings(|s| s.max_waiting_bytes = 5_000).connected();
    let key = "k".repeat(3_000);
    let r = s.recv(R, Tell { key: &key, ..K }, Into::Callback);
    s.run();
    assert_eq!(s.recv_end(r), Some((Code::ResourceExhausted, Reason::RemoteError)));
    let (send, r) = (s.send(S, K, EAGER), s.recv(R, K, Into::Callback));
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    s.finish();
}
