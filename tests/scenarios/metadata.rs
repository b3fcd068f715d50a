//! Metadata goes only where it is not known: content whose request told it comes without.

use rdma_transport::status::Code;

use super::kind::{self, Kind};
use super::ops::*;
use super::script::{EAGER, LARGE, R, S, shm};
use super::stage::Stage;

const BEFORE: Tell<'static> = Tell { step: 0, ..K };

/// A stage on which a short tensor of this key went before.
fn known() -> Stage {
    let mut s = shm().connected();
    let (send, recv) = (s.send(S, BEFORE, EAGER), s.recv(R, BEFORE, Into::Library));
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(recv)), (OK, OK));
    assert!(kind::tells_metadata(last(&s, S, Kind::Content)));
    s
}

fn last(s: &Stage, node: usize, kind: Kind) -> &[u8] {
    &s.arrived.iter().rfind(|(n, k, _)| (*n, *k) == (node, kind)).expect("it arrived").2
}

#[test]
fn metadata_that_the_request_told_is_not_told_again() {
    for first in [S, R] {
        let mut s = known();
        let (send, recv) = if first == S {
            let send = s.send(S, K, EAGER);
            (send, s.recv(R, K, Into::Library))
        } else {
            let recv = s.recv(R, K, Into::Library);
            s.run();
            (s.send(S, K, EAGER), recv)
        };
        s.run();
        assert_eq!((s.send_end(send), s.recv_end(recv)), (OK, OK));
        assert!(!kind::tells_metadata(last(&s, S, Kind::Content)));
        s.finish();
    }
}

#[test]
fn metadata_that_changed_is_told() {
    let mut s = known();
    let (send, recv) = (s.send(S, K, EAGER - 1), s.recv(R, K, Into::Library));
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(recv)), (OK, OK));
    assert!(kind::tells_metadata(last(&s, S, Kind::Content)));
    s.finish();
}

/// A peer of ill will answers without metadata.
fn bare(mut s: Stage, len: u64) -> (Stage, RecvId) {
    let recv = s.recv(R, K, Into::Library);
    s.run();
    let index = kind::index(last(&s, R, Kind::Request));
    s.inject(S, kind::bare_content(index, &vec![1; len as usize]));
    s.run();
    (s, recv)
}

#[test]
fn content_without_metadata_of_which_nothing_was_told_ends_the_connection() {
    let (mut s, recv) = bare(shm().connected(), EAGER);
    assert_eq!(s.recv_end(recv).map(|e| e.0), Some(Code::InvalidArgument));
    assert!(s.recv_text(recv).contains("without metadata"), "{}", s.recv_text(recv));
    s.finish();
}

#[test]
fn content_of_another_length_than_was_told_ends_the_connection() {
    for len in [0, EAGER - 1, EAGER + 1] {
        let (mut s, recv) = bare(known(), len);
        assert_eq!(s.recv_end(recv).map(|e| e.0), Some(Code::InvalidArgument));
        assert!(s.recv_text(recv).contains("its metadata says"), "{}", s.recv_text(recv));
        s.finish();
    }
}

#[test]
fn the_other_end_hears_why_a_connection_ended() {
    let mut s = shm().connected();
    let theirs = s.recv(S, Tell { step: 9, ..K }, Into::Library);
    s.run();
    let (s, recv) = bare(s, EAGER);
    assert_eq!(s.recv_end(recv).map(|e| e.0), Some(Code::InvalidArgument));
    assert_eq!(s.recv_end(theirs).map(|e| e.0), Some(Code::Unavailable));
    let text = s.recv_text(theirs);
    assert!(text.contains("closed the connection: TENSOR_CONTENT without metadata"), "{text}");
}

/// Metadata that comes ahead of a WRITE replaces what was known: it is told once, and not at each transfer again.
#[test]
fn metadata_told_ahead_of_a_write_is_remembered() {
    let mut s = shm().connected();
    let mut transfer = |step, dtype| {
        let of = Tell { step, dtype, ..K };
        let (send, recv) = (s.send(S, of, LARGE), s.recv(R, of, Into::Given(LARGE)));
        s.run();
        assert_eq!((s.send_end(send), s.recv_end(recv)), (OK, OK));
        s.count(S, Kind::Meta)
    };
    let told = [transfer(1, 1), transfer(2, 1), transfer(3, 2), transfer(4, 2), transfer(5, 2)];
    assert_eq!(told, [1, 1, 2, 2, 2]);
    s.finish();
}
