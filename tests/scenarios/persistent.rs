//! Persistent buffers: one of each name at either end, in every state with every event.
//!
//! The buffer of a name is asked for, filled, written, emptied, idle; or busy while the next tensor of its name waits. No
//! memory of the application is ever open to the other end, so whoever gives up does so at once, but for copies that run (`persistent_ends`).

use rdma_transport::api::Protocol;
use rdma_transport::fabric::Access;
use rdma_transport::protocol::message::BufferMessage;
use rdma_transport::status::Code;

use super::common::Fault;
use super::kind::{self, Kind};
use super::ops::*;
use super::script::{EAGER, LARGE, R, S, Setup, ibverbs, shm};
use super::stage::Stage;

/// What a buffer takes at least, and what all buffers may.
const PAGE: u64 = 4096;
const BOUND: u64 = 64 << 10;

pub fn forced(setup: Setup) -> Setup {
    setup.forced(Protocol::Persistent)
}

pub fn step(step: i64) -> Tell<'static> {
    Tell { step, ..K }
}

/// One tensor, which must arrive; by which way.
pub fn transfer(s: &mut Stage, of: Tell<'_>, len: u64, into: Into) -> Protocol {
    let (send, r) = (s.send(S, of, len), s.recv(R, of, into));
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK), "{}", s.recv_text(r));
    s.carried(r)
}

/// A stage on which the buffer of the first key is there, and idle.
pub fn idle(setup: Setup) -> Stage {
    let mut s = forced(setup).connected();
    assert_eq!(transfer(&mut s, step(0), LARGE, Into::Given(LARGE)), Protocol::Persistent);
    s
}

/// Each way in which the ends may be set up.
fn setups() -> [Setup; 5] {
    [shm(), ibverbs(), ibverbs().proxies(), shm().checksums(), ibverbs().checksums().no_reads()]
}

#[test]
fn the_first_tensor_asks_for_a_buffer_and_the_next_use_it() {
    for setup in setups() {
        let mut s = forced(setup).connected();
        for (i, into) in [Into::Given(LARGE), Into::Callback, Into::Library, Into::Device]
            .into_iter()
            .enumerate()
        {
            let got = transfer(&mut s, step(i as i64), LARGE, into);
            assert_eq!(got, Protocol::Persistent, "{into:?}");
        }
        assert_eq!((s.count(S, Kind::BufferRequest), s.count(R, Kind::BufferResponse)), (1, 1));
        assert_eq!((s.count(S, Kind::TensorWrite), s.count(R, Kind::BufferIdle)), (4, 4));
        assert_eq!((s.buffers_kept(S), s.buffers_given(R)), (1, 1));
        s.finish();
    }
}

/// The receiver has no such setting: that its peer writes to buffers is enough for it to say how much room there is.
#[test]
fn a_tensor_that_grew_goes_by_its_buffer_where_only_the_sender_wants_that() {
    for mut setup in setups() {
        setup.settings[S].protocol = Protocol::Persistent;
        let mut s = setup.connected();
        for (i, len) in [8, 8, 50, 50, EAGER, 8].into_iter().enumerate() {
            let got = transfer(&mut s, step(i as i64), len, Into::Given(EAGER));
            assert_eq!(got, Protocol::Persistent, "{len} bytes, tensor {i}");
        }
        s.finish();
    }
}

/// Where the request is none of the short ones, it says so whatever the peer does.
#[test]
fn a_tensor_that_grew_is_known_to_fit_where_the_request_is_long() {
    let mut s = shm().checksums().connected();
    for (i, len) in [8, 50, EAGER].into_iter().enumerate() {
        let got = transfer(&mut s, step(i as i64), len, Into::Given(EAGER));
        assert_eq!(got, Protocol::Eager, "{len} bytes");
    }
    assert_eq!(s.count(S, Kind::Meta), 0);
    s.finish();
}

#[test]
fn both_ends_send_under_the_same_name() {
    let mut s = idle(ibverbs());
    let (send, r) = (s.send(R, step(5), LARGE), s.recv(S, step(5), Into::Callback));
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    assert_eq!((s.buffers_given(S), s.buffers_given(R)), (1, 1));
    s.finish();
}

#[test]
fn a_tensor_of_a_device_goes_by_a_buffer() {
    for setup in [shm(), ibverbs().checksums()] {
        let mut s = forced(setup).connected();
        for i in 0..2 {
            let of = Tell { device: 1, ..step(i) };
            assert_eq!(transfer(&mut s, of, LARGE, Into::Device), Protocol::Persistent);
        }
        assert_eq!(s.count(S, Kind::BufferRequest), 1);
        s.finish();
    }
}

#[test]
fn an_empty_tensor_needs_no_buffer() {
    let mut s = forced(shm()).connected();
    assert_eq!(transfer(&mut s, K, 0, Into::Callback), Protocol::Eager);
    assert_eq!(s.count(S, Kind::BufferRequest), 0);
    s.finish();
}

#[test]
fn a_busy_buffer_keeps_the_next_tensor_of_its_name_waiting() {
    for held in [(R, Kind::Copy), (R, Kind::BufferIdle)] {
        let mut s = idle(ibverbs());
        s.hold(held.0, held.1);
        let first = (s.send(S, step(1), LARGE), s.recv(R, step(1), Into::Given(LARGE)));
        s.run();
        let next: Vec<_> = (2..5)
            .map(|i| (s.send(S, step(i), LARGE), s.recv(R, step(i), Into::Callback)))
            .collect();
        s.run();
        assert_eq!(s.count(S, Kind::TensorWrite), 2, "the buffer was not waited for");
        assert!(next.iter().all(|n| s.send_end(n.0).is_none() && s.recv_end(n.1).is_none()));
        let other = Tell { key: "another name", ..step(1) };
        if held.1 == Kind::Copy {
            // What comes over a connection keeps its order, so this is not tried where a message is held.
            let (_, r) = (s.send(S, other, LARGE), s.recv(R, other, Into::Given(LARGE)));
            s.run();
            assert_eq!((s.count(S, Kind::TensorWrite), s.recv_end(r)), (3, None));
        }
        s.let_all_go();
        for (send, r) in next.into_iter().chain([first]) {
            assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
            assert_eq!(s.carried(r), Protocol::Persistent);
        }
        s.finish();
    }
}

#[test]
fn a_tensor_that_grew_asks_for_a_longer_buffer() {
    for setup in setups() {
        let mut s = idle(setup);
        let lens = [PAGE, PAGE + 1, 9_000, LARGE];
        for (i, len) in lens.into_iter().enumerate() {
            let got = transfer(&mut s, step(1 + i as i64), len, Into::Callback);
            assert_eq!(got, Protocol::Persistent, "{len}");
        }
        // A page held the first two; then two, then three, which the last uses, too.
        assert_eq!((s.count(S, Kind::BufferRequest), s.count(S, Kind::BufferFree)), (3, 2));
        assert_eq!((s.buffers_kept(S), s.buffers_given(R)), (1, 1));
        s.finish();
    }
}

#[test]
fn metadata_that_changes_is_told_with_the_write() {
    let mut s = idle(shm());
    // Of one that grew the sender has to know that there is memory for it.
    let given = Into::Given(LARGE);
    for (i, len, into) in [(1, LARGE, given), (2, 77, given), (3, LARGE, Into::Library)] {
        let of = Tell { dtype: 1 + i as u32 % 2, ..step(i) };
        assert_eq!(transfer(&mut s, of, len, into), Protocol::Persistent);
    }
    assert_eq!((s.count(S, Kind::Meta), s.count(S, Kind::BufferRequest)), (0, 1));
    s.finish();
}

#[test]
fn too_little_room_ends_the_receive_and_leaves_tensor_and_buffer() {
    let mut s = idle(ibverbs());
    let (send, r) = (s.send(S, step(1), LARGE), s.recv(R, step(1), Into::Given(LARGE - 1)));
    s.run();
    assert_eq!(s.recv_end(r).map(|e| e.0), Some(Code::OutOfRange));
    assert_eq!(s.send_end(send), None);
    let r = s.recv(R, step(1), Into::Given(LARGE));
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r), s.carried(r)), (OK, OK, Protocol::Persistent));
    assert_eq!(transfer(&mut s, step(2), LARGE, Into::Callback), Protocol::Persistent);
    s.finish();
}

#[test]
fn no_memory_for_the_result_ends_the_receive_and_leaves_the_buffer() {
    let mut s = idle(ibverbs());
    s.fail(R, Kind::Alloc);
    let (send, r) = (s.send(S, step(1), 50), s.recv(R, step(1), Into::Callback));
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r).map(|e| e.0)), (OK, Some(Code::ResourceExhausted)));
    s.failing.clear();
    assert_eq!(transfer(&mut s, step(2), LARGE, Into::Callback), Protocol::Persistent);
    s.finish();
}

#[test]
fn copies_into_and_out_of_a_buffer_fail() {
    for node in [R, S] {
        let mut s = idle(ibverbs());
        s.fail(node, Kind::Copy);
        let (send, r) = (s.send(S, step(1), LARGE), s.recv(R, step(1), Into::Given(LARGE)));
        s.run();
        assert_eq!(s.recv_end(r).map(|e| e.0), Some(Code::ResourceExhausted));
        let sent = if node == R { Code::Ok } else { Code::ResourceExhausted };
        assert_eq!(s.send_end(send).map(|e| e.0), Some(sent));
        s.failing.clear();
        assert_eq!(transfer(&mut s, step(2), LARGE, Into::Callback), Protocol::Persistent);
        assert_eq!(s.count(S, Kind::BufferRequest), 1);
        s.finish();
    }
}

#[test]
fn a_write_to_a_buffer_that_fails_costs_the_buffer() {
    for setup in [shm(), shm().checksums()] {
        let mut s = idle(setup);
        s.hold(S, Kind::Write);
        let (send, r) = (s.send(S, step(1), LARGE), s.recv(R, step(1), Into::Given(LARGE)));
        s.run();
        s.w.mem.regions.values_mut().for_each(|r| r.access = Access::empty());
        s.let_all_go();
        assert_eq!(s.send_end(send).map(|e| e.0), Some(Code::PermissionDenied));
        assert!(s.recv_end(r).is_some_and(|e| e.0 != Code::Ok), "{:?}", s.recv_end(r));
        assert_eq!(s.count(S, Kind::BufferFree), 1);
        assert_eq!((s.buffers_kept(S), s.buffers_given(R)), (0, 0));
        assert_eq!(transfer(&mut s, step(2), LARGE, Into::Callback), Protocol::Persistent);
        assert_eq!(s.count(S, Kind::BufferRequest), 2);
        s.finish();
    }
}

// Bounds.

/// A tensor of so many pages, under a name of its own.
fn pages(s: &mut Stage, name: usize, i: i64, pages: u64) -> Protocol {
    let key = format!("name {name}");
    transfer(s, Tell { key: &key, ..step(i) }, pages * PAGE, Into::Callback)
}

/// Of one connection half of all may be.
const SHARE: usize = (BOUND / PAGE / 2) as usize;

#[test]
fn the_receiver_calls_back_what_was_not_used_for_longest() {
    for setup in setups() {
        let mut s = forced(setup).connected();
        for name in 0..SHARE {
            assert_eq!(pages(&mut s, name, 0, 1), Protocol::Persistent, "{name}");
        }
        assert_eq!(pages(&mut s, 0, 1, 1), Protocol::Persistent);
        // No room: it goes another way, and the second name, which now was not used for longest, is called back.
        assert_ne!(pages(&mut s, SHARE, 0, 1), Protocol::Persistent);
        assert_eq!((s.count(R, Kind::BufferRecall), s.count(S, Kind::BufferFree)), (1, 1));
        assert_eq!((s.buffers_kept(S), s.buffers_given(R)), (SHARE - 1, SHARE - 1));
        // After a refusal the receiver is left alone for a while. Then there is room.
        let ways: Vec<_> = (1..17).map(|i| pages(&mut s, SHARE, i, 1)).collect();
        assert_eq!(ways.last(), Some(&Protocol::Persistent), "{ways:?}");
        assert_eq!(s.count(S, Kind::BufferRequest), SHARE + 2);
        for name in [0, 2, SHARE - 1] {
            assert_eq!(pages(&mut s, name, 20, 1), Protocol::Persistent);
        }
        assert_eq!(s.count(S, Kind::BufferRequest), SHARE + 2, "another name was called back");
        s.finish();
    }
}

#[test]
fn a_buffer_that_is_called_back_while_it_is_busy_goes_when_it_is_idle() {
    let mut s = forced(ibverbs()).connected();
    for name in 0..SHARE {
        pages(&mut s, name, 0, 1);
    }
    s.hold(R, Kind::BufferRecall);
    // The first is the one not used for longest; the recall is on its way while it is used again.
    let (key, len) = ("one too many", PAGE);
    let of = Tell { key, ..step(1) };
    let (send, r) = (s.send(S, of, len), s.recv(R, of, Into::Callback));
    s.run();
    let again = Tell { key: "name 0", ..step(1) };
    let used = (s.send(S, again, len), s.recv(R, again, Into::Callback));
    s.let_all_go();
    for (send, r) in [(send, r), used] {
        assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    }
    assert_eq!(s.count(S, Kind::BufferFree), 1);
    s.finish();
}

#[test]
fn what_is_longer_than_the_bound_goes_another_way() {
    for setup in setups() {
        let mut s = forced(setup).connected();
        let got = transfer(&mut s, K, BOUND / 2 + 1, Into::Callback);
        assert_ne!(got, Protocol::Persistent);
        let got = transfer(&mut s, step(2), BOUND + 1, Into::Given(BOUND + 1));
        assert_ne!(got, Protocol::Persistent);
        assert_eq!((s.buffers_kept(S), s.buffers_given(R)), (0, 0));
        s.finish();
    }
}

#[test]
fn the_sender_gives_up_what_it_did_not_use_for_longest() {
    let mut setup = forced(ibverbs());
    setup.settings[S].buffers = 3 * PAGE;
    let mut s = setup.connected();
    for (name, i) in [(0, 0), (1, 0), (2, 0), (0, 1), (3, 0), (0, 2), (2, 1), (1, 1)] {
        assert_eq!(pages(&mut s, name, i, 1), Protocol::Persistent, "name {name}, step {i}");
    }
    // The fourth name took the place of the second, and that then the fourth's.
    assert_eq!((s.count(S, Kind::BufferRequest), s.count(S, Kind::BufferFree)), (5, 2));
    assert_eq!((s.buffers_kept(S), s.buffers_given(R)), (3, 3));
    s.finish();
}

#[test]
fn no_memory_for_a_buffer_is_no_error() {
    for node in [R, S] {
        let mut s = forced(shm()).connected();
        s.w.fate.failing.insert((node, Fault::Alloc));
        let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Given(LARGE)));
        s.run();
        assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK), "{}", s.recv_text(r));
        assert_ne!(s.carried(r), Protocol::Persistent);
        s.finish();
    }
}

#[test]
fn a_buffer_in_which_the_content_changed_is_used_again() {
    let mut s = idle(ibverbs().checksums());
    s.hold(S, Kind::ContentDone);
    let (send, r) = (s.send(S, step(1), LARGE), s.recv(R, step(1), Into::Given(LARGE)));
    s.run();
    let given = s.given_to(R);
    let who = s.w.who(R);
    s.w.mem.write(who, false, given, b"not what was sent", "the network");
    s.let_all_go();
    assert_eq!((s.send_end(send), s.recv_end(r).map(|e| e.0)), (OK, Some(Code::DataLoss)));
    assert_eq!(transfer(&mut s, step(2), LARGE, Into::Callback), Protocol::Persistent);
    assert_eq!(s.count(S, Kind::BufferRequest), 1);
    s.finish();
}

// What nobody of good will says.

/// This ends the connection, and nothing else comes of it.
fn ends_the_connection(mut s: Stage, from: usize, m: BufferMessage) {
    s.inject(from, kind::about_a_buffer(m));
    s.run();
    assert_eq!(s.peer_state(1 - from).1, 0, "the connection is still there");
    s.let_all_go();
    for node in [R, S] {
        s.cleanup(node, 1);
    }
    s.finish();
}

#[test]
fn buffer_idle_for_what_is_not_busy_ends_the_connection() {
    let s = idle(shm());
    let number = s.numbers_of_buffer().0;
    ends_the_connection(s, R, BufferMessage::Idle { number });
}

#[test]
fn buffer_response_that_was_not_asked_for_ends_the_connection() {
    let s = idle(shm());
    let number = s.numbers_of_buffer().0;
    ends_the_connection(s, R, BufferMessage::Response { number, given: None });
}

#[test]
fn buffer_free_for_what_was_not_given_ends_the_connection() {
    let s = idle(shm());
    let buffer = s.numbers_of_buffer().1 + 1;
    ends_the_connection(s, S, BufferMessage::Free { buffer });
}

#[test]
fn tensor_write_to_a_busy_buffer_ends_the_connection() {
    let mut s = idle(shm());
    s.hold(R, Kind::Copy);
    let (_, r) = (s.send(S, K, 80), s.recv(R, K, Into::Given(80)));
    s.run();
    assert_eq!(s.recv_end(r), None);
    let buffer = s.numbers_of_buffer().1;
    ends_the_connection(s, S, BufferMessage::Write { request: 1, buffer, meta: None });
}

#[test]
fn tensor_write_of_more_than_the_buffer_takes_ends_the_connection() {
    let s = idle(shm());
    let buffer = s.numbers_of_buffer().1;
    let meta = Some(rdma_transport::api::Meta { nbytes: PAGE + 1, ..Default::default() });
    ends_the_connection(s, S, BufferMessage::Write { request: 1, buffer, meta });
}

#[test]
fn a_buffer_that_is_freed_while_it_is_emptied_stays_until_it_is() {
    let mut s = idle(ibverbs());
    s.hold(R, Kind::Copy);
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Given(LARGE)));
    s.run();
    let buffer = s.numbers_of_buffer().1;
    s.inject(S, kind::about_a_buffer(BufferMessage::Free { buffer }));
    s.run();
    s.let_go(R, Kind::Copy);
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    assert_eq!(s.buffers_given(R), 0);
    s.disconnect(R);
    s.finish();
}

#[test]
fn requests_for_very_long_and_very_many_buffers_are_refused() {
    let mut s = forced(shm()).connected();
    for len in [BOUND, 1 << 40, isize::MAX as u64] {
        s.inject(S, kind::about_a_buffer(BufferMessage::Request { number: 7, len }));
    }
    assert_eq!(s.buffers_given(R), 0);
    for number in 0..100 {
        s.inject(S, kind::about_a_buffer(BufferMessage::Request { number, len: 1 }));
    }
    assert_eq!(s.buffers_given(R), SHARE);
    s.disconnect(R);
    s.finish();
}
