//! Bytes of the application beside a tensor: they go with just one transfer, by whatever protocol. That each receive gets
//! those of its send, and no others, `received` compares, as the rest of the metadata.

use rdma_transport::api::Protocol;

use super::kind::{self, Kind};
use super::ops::*;
use super::script::{EAGER, LARGE, R, S, Setup, ibverbs, shm};
use super::stage::Stage;

/// What goes with one transfer of the key after the other.
const BESIDE: [&[u8]; 6] = [b"", b"one", &[7; 512], b"", b"one", b"one"];
const INTO: [Into; 3] = [Into::Callback, Into::Library, Into::Given(LARGE)];

/// One transfer; messages that told metadata of it.
fn transfer(s: &mut Stage, of: Tell<'_>, len: u64, into: Into, first: usize) -> (usize, RecvId) {
    let before = s.count(S, Kind::Meta);
    let (send, recv) = if first == S {
        let send = s.send(S, of, len);
        s.run();
        (send, s.recv(R, of, into))
    } else {
        let recv = s.recv(R, of, into);
        s.run();
        (s.send(S, of, len), recv)
    };
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(recv)), (OK, OK), "{of:?} {into:?} {len}");
    (s.count(S, Kind::Meta) - before, recv)
}

/// All of them; of each the messages that told metadata, and the protocol.
fn all(setup: &Setup, len: u64, into: Into, first: usize) -> Vec<(usize, Protocol)> {
    let mut s = setup.clone().connected();
    let mut went = Vec::new();
    for (step, user) in (0..).zip(BESIDE) {
        let (told, recv) = transfer(&mut s, Tell { step, user, ..K }, len, into, first);
        // Memory that was found by what is known of the tensor does whatever is said beside it.
        assert!(step == 0 || s.recvs[recv.0].dests.len() <= 1, "{into:?} {user:?}");
        went.push((told, s.carried(recv)));
    }
    s.finish();
    went
}

#[test]
fn user_bytes_of_a_put_go_ahead_of_it() {
    let put = Protocol::DirectPut;
    let after = [(1, put), (1, put), (0, put), (1, put), (1, put)];
    for setup in [shm(), ibverbs(), ibverbs().proxies(), shm().no_reads(), shm().checksums()] {
        for (into, first) in INTO.into_iter().flat_map(|into| [(into, S), (into, R)]) {
            assert_eq!(all(&setup, LARGE, into, first)[1..], after, "{into:?} {first}");
        }
    }
}

#[test]
fn user_bytes_of_a_get_go_with_its_offer() {
    for setup in [shm(), ibverbs().proxies(), shm().checksums()] {
        for (into, first) in INTO.into_iter().flat_map(|into| [(into, S), (into, R)]) {
            let went = all(&setup.clone().forced(Protocol::DirectGet), LARGE, into, first);
            assert_eq!(went, [(1, Protocol::DirectGet); 6], "{into:?} {first}");
        }
    }
}

#[test]
fn user_bytes_of_eager_content_go_before_it() {
    for setup in [shm(), ibverbs(), shm().checksums()] {
        for (len, into) in INTO.into_iter().flat_map(|into| [(EAGER, into), (0, into), (1, into)]) {
            for first in [S, R] {
                assert_eq!(all(&setup, len, into, first), [(0, Protocol::Eager); 6], "{into:?}");
            }
        }
    }
}

/// Metadata that is known goes with user bytes only.
#[test]
fn metadata_is_told_again_for_user_bytes_only() {
    let mut s = shm().connected();
    for (step, user) in (0..).zip(BESIDE) {
        let recv = transfer(&mut s, Tell { step, user, ..K }, EAGER, Into::Library, S).1;
        let content = s.arrived.iter().rfind(|(n, k, _)| (*n, *k) == (S, Kind::Content));
        let told = kind::tells_metadata(&content.expect("it arrived").2);
        assert_eq!(told, step == 0 || !user.is_empty(), "{step} {:?}", s.recv_end(recv));
    }
    s.finish();
}

#[test]
fn user_bytes_go_with_what_is_written_to_a_persistent_buffer() {
    for setup in [shm(), ibverbs(), shm().checksums()] {
        for (into, first) in INTO.into_iter().flat_map(|into| [(into, S), (into, R)]) {
            let went = all(&setup.clone().forced(Protocol::Persistent), LARGE, into, first);
            assert_eq!(went, [(0, Protocol::Persistent); 6], "{into:?} {first}");
        }
    }
}

#[test]
fn user_bytes_stay_in_one_manager() {
    let mut s = shm().connected();
    for (step, user) in (0..).zip(BESIDE) {
        for (i, into) in INTO.into_iter().enumerate() {
            let of = Tell { step: step * 3 + i as i64, user, ..K };
            let (send, recv) = (s.send(S, of, LARGE), s.recv_local(S, of, into));
            s.run();
            assert_eq!((s.send_end(send), s.recv_end(recv)), (OK, OK), "{into:?} {user:?}");
        }
    }
    s.finish();
}

/// Content rides in a message only if it fits beside them.
#[test]
fn user_bytes_take_room_in_a_message() {
    let setup = shm().forced(Protocol::Eager);
    let longest = |user: &'static [u8]| {
        let mut s = setup.clone().connected();
        let mut longest = 0;
        for len in 1..4096 {
            let of = Tell { step: len as i64, user, ..K };
            let recv = transfer(&mut s, of, len, Into::Library, S).1;
            if s.carried(recv) != Protocol::Eager {
                break;
            }
            longest = len;
        }
        s.finish();
        longest
    };
    let (without, with) = (longest(b""), longest(&[1; 50]));
    assert_eq!(without - with, 52);
}
