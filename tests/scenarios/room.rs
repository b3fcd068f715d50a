//! Memory given up front that is too short: the receive ends, and the tensor stays at its sender for the next, whatever its
//! length, whoever finds it out, and whichever way it would have gone.

use rdma_transport::api::Protocol;
use rdma_transport::status::{Code, Reason};

use super::kind::{self, Kind};
use super::ops::*;
use super::script::{EAGER, LARGE, MS, R, S, Setup, ibverbs, shm};
use super::stage::Stage;

const PROTOCOLS: [Protocol; 5] = [
    Protocol::Auto,
    Protocol::Eager,
    Protocol::DirectPut,
    Protocol::DirectGet,
    Protocol::Persistent,
];
const TOO_LONG: Option<Code> = Some(Code::OutOfRange);

fn setups() -> [Setup; 5] {
    [shm(), shm().no_reads(), ibverbs(), ibverbs().proxies(), shm().checksums()]
}

fn code(end: End) -> Option<Code> {
    end.map(|e| e.0)
}

/// A receive with too little room, and one with enough.
fn stays(s: &mut Stage, of: Tell<'_>, len: u64, room: u64, first: usize) {
    let (send, short) = if first == S {
        let send = s.send(S, of, len);
        s.run();
        (send, s.recv(R, of, Into::Given(room)))
    } else {
        let short = s.recv(R, of, Into::Given(room));
        s.run();
        (s.send(S, of, len), short)
    };
    s.run();
    assert_eq!(code(s.recv_end(short)), TOO_LONG, "{len} into {room}");
    let text = s.recv_text(short);
    let want = format!("has {len} bytes, the destination given has {room}");
    assert!(text.contains(&want), "{text}");
    assert_eq!(s.send_end(send), None, "{len} into {room}");
    let r = s.recv(R, of, Into::Given(len));
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK), "{}", s.recv_text(r));
}

#[test]
fn a_tensor_that_does_not_fit_stays_whatever_its_length() {
    for setup in setups() {
        for (protocol, first) in PROTOCOLS.iter().flat_map(|p| [(*p, S), (*p, R)]) {
            let mut s = setup.clone().forced(protocol).connected();
            for len in [1, 8, EAGER, EAGER + 1, LARGE] {
                for (j, room) in [0, len / 2, len - 1].into_iter().enumerate() {
                    let key = format!("{len} {j}");
                    stays(&mut s, Tell { key: &key, ..K }, len, room, first);
                }
            }
            s.finish();
        }
    }
}

/// The request says the metadata of the step before, and not how much room there is.
#[test]
fn a_tensor_that_grew_stays_if_it_does_not_fit() {
    const CASES: [(u64, u64, u64); 5] =
        [(8, 8, 9), (8, 50, EAGER), (0, 1, 8), (50, EAGER, LARGE), (8, 300, LARGE)];
    for setup in setups() {
        for (protocol, first) in PROTOCOLS.iter().flat_map(|p| [(*p, S), (*p, R)]) {
            for user in [&b""[..], b"beside"] {
                let mut s = setup.clone().forced(protocol).connected();
                for (before, room, len) in CASES {
                    let key = format!("{before} {room} {len}");
                    let of = Tell { key: &key, user, ..K };
                    let known = Tell { step: 0, ..of };
                    let ids = (s.send(S, known, before), s.recv(R, known, Into::Given(room)));
                    s.run();
                    assert_eq!((s.send_end(ids.0), s.recv_end(ids.1)), (OK, OK));
                    stays(&mut s, of, len, room, first);
                }
                s.finish();
            }
        }
    }
}

/// A stage on which a tensor of this key went before.
fn known(len: u64, into: Into) -> Stage {
    known_on(shm(), len, into)
}

fn known_on(setup: Setup, len: u64, into: Into) -> Stage {
    let mut s = setup.connected();
    let before = Tell { step: 0, ..K };
    let (send, recv) = (s.send(S, before, len), s.recv(R, before, into));
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(recv)), (OK, OK));
    s
}

/// The sender cannot know; it tells, and the receiver reads it or leaves it.
#[test]
fn a_tensor_that_grew_may_fit_or_not() {
    for room in [50, EAGER] {
        let mut s = known(8, Into::Given(room));
        let (send, r) = (s.send(S, K, 80), s.recv(R, K, Into::Given(room)));
        s.run();
        assert_eq!((s.count(S, Kind::Meta), s.count(R, Kind::GetDone)), (1, 1));
        if room < 80 {
            assert_eq!((s.send_end(send), code(s.recv_end(r))), (None, TOO_LONG));
            let r = s.recv(R, K, Into::Library);
            s.run();
            assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
        } else {
            assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
        }
        s.finish();
    }
}

#[test]
fn a_tensor_that_grew_takes_no_longer_where_memory_is_found_for_any() {
    for into in [Into::Library, Into::Callback, Into::Device] {
        let mut s = known(8, into);
        let (send, r) = (s.send(S, K, EAGER), s.recv(R, K, into));
        s.run();
        assert_eq!((s.send_end(send), s.recv_end(r), s.carried(r)), (OK, OK, Protocol::Eager));
        assert_eq!((s.count(S, Kind::Meta), s.count(S, Kind::Content)), (0, 2));
        s.finish();
    }
}

#[test]
fn a_tensor_that_shrank_rides_in_the_response() {
    let mut s = known(80, Into::Given(EAGER));
    let (send, r) = (s.send(S, K, 8), s.recv(R, K, Into::Given(EAGER)));
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r), s.carried(r)), (OK, OK, Protocol::Eager));
    s.finish();
}

/// The next may be the sender's own manager.
#[test]
fn a_tensor_that_does_not_fit_goes_to_the_next_who_waits() {
    for room in [50, EAGER] {
        let mut s = known(8, Into::Given(room));
        s.hold(R, Kind::GetDone);
        let (send, short) = (s.send(S, K, EAGER + 1), s.recv(R, K, Into::Given(room)));
        s.run();
        let next = s.recv_local(S, K, Into::Library);
        s.let_all_go();
        assert_eq!(code(s.recv_end(short)), TOO_LONG);
        assert_eq!((s.send_end(send), s.recv_end(next)), (OK, OK));
        s.finish();
    }
}

/// The word of it is on its way while the step ends.
#[test]
fn a_tensor_that_does_not_fit_goes_back_to_no_step_that_is_over() {
    for cleanup in [true, false] {
        let mut s = known(8, Into::Given(50));
        s.hold(R, Kind::GetDone);
        let (send, r) = (s.send(S, K, 80), s.recv(R, K, Into::Given(50)));
        s.run();
        assert_eq!((s.send_end(send), code(s.recv_end(r))), (None, TOO_LONG));
        match cleanup {
            true => s.cleanup(S, 1),
            false => s.abort(S, 1),
        }
        s.let_all_go();
        assert_eq!(s.send_end(send), Some((Code::OutOfRange, Reason::RemoteError)));
        s.finish();
    }
}

/// A copy of it has been told of, and its memory is taken back while the word of it is on its way.
#[test]
fn a_tensor_that_does_not_fit_goes_back_to_no_memory_that_is_gone() {
    let mut s = known_on(ibverbs().proxies(), 8, Into::Given(50));
    s.hold(R, Kind::GetDone);
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Given(50)));
    s.run();
    assert_eq!((s.send_end(send), code(s.recv_end(r))), (None, TOO_LONG));
    let of = &s.sends[send.0];
    let range = (of.addr, of.meta.nbytes, of.device);
    assert!(s.reclaim(S, range, false), "the copy is the library's");
    s.let_all_go();
    assert_eq!(s.send_end(send), Some((Code::FailedPrecondition, Reason::LocalError)));
    let r = s.recv(R, K, Into::Library);
    s.run();
    assert_eq!(s.recv_end(r), None);
    s.cancel(r).unwrap();
    s.run();
    s.finish();
}

/// The same of one that fits: its copy goes on.
#[test]
fn a_tensor_whose_copy_was_told_of_goes_on_without_its_memory() {
    let mut s = known_on(ibverbs().proxies(), 8, Into::Given(LARGE));
    s.hold(R, Kind::GetDone);
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Library));
    s.run();
    let of = &s.sends[send.0];
    let range = (of.addr, of.meta.nbytes, of.device);
    assert!(s.reclaim(S, range, false), "the copy is the library's");
    s.let_all_go();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    s.finish();
}

#[test]
fn a_tensor_that_does_not_fit_keeps_its_deadline() {
    let mut s = known(8, Into::Given(50));
    let send = s.send(S, Tell { timeout: Some(100 * MS), ..K }, 80);
    s.recv(R, K, Into::Given(50));
    s.run();
    assert_eq!(s.send_end(send), None);
    s.pass(200);
    assert_eq!(code(s.send_end(send)), Some(Code::DeadlineExceeded));
    s.finish();
}

#[test]
fn a_tensor_of_the_runtime_that_grew_and_does_not_fit_ends() {
    let mut s = known(8, Into::Given(50));
    s.set_source(S);
    let r = s.recv(R, K, Into::Given(50));
    s.run();
    let response = s.asked[0];
    let send = s.answer(S, response, K, 80);
    s.run();
    assert_eq!((code(s.send_end(send)), code(s.recv_end(r))), (TOO_LONG, TOO_LONG));
    s.finish();
}

/// Who is of ill will does not look how much room there is.
#[test]
fn content_that_is_too_long_from_a_peer_that_does_not_look() {
    let mut s = shm().connected();
    let r = s.recv(R, K, Into::Given(EAGER - 1));
    s.run();
    let request = s.arrived.iter().rfind(|(n, k, _)| (*n, *k) == (R, Kind::Request));
    let index = kind::index(&request.unwrap().2);
    s.inject(S, kind::told_content(index, &[7; EAGER as usize]));
    s.run();
    assert_eq!(s.recv_end(r), Some((Code::OutOfRange, Reason::None)));
    // The honest answer comes too late.
    s.send(S, K, 8);
    s.run();
    s.finish();
}

#[test]
fn word_of_too_little_room_for_what_is_gone_is_stale() {
    let mut s = shm().connected();
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Callback));
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    s.inject(R, kind::too_long(77));
    s.run();
    s.finish();
}
