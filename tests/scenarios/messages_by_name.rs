//! Messages: one state and one event at a time.

use rdma_transport::api::Protocol;
use rdma_transport::engine::front::message::{Envelope, Memory, Mode, Party, Wanted};
use rdma_transport::status::Code;

use super::kind::Kind;
use super::messages::{ALL, ANY, Op, Post, TAG, code, is_ok};
use super::script::{EAGER, LARGE, R, S, Setup, shm};

/// How receives of messages of several lengths end, into memory of 8 bytes and of all that is eager.
fn ends_of(setup: Setup, odd: bool, posted: bool, mode: Mode) -> Vec<(Code, Envelope, u64)> {
    let mut p = Post::new(setup);
    let to = p.other(S);
    for (i, len) in [0, 1, 7, 8, 9, 100, EAGER].into_iter().enumerate() {
        let envelope = Envelope { comm: 1, tag: i as u64 };
        for room in [8, EAGER] {
            let wanted = Wanted { from: p.other(R), comm: 1, tag: i as u64, mask: ALL };
            let send = |p: &mut Post| {
                p.send(S, to, envelope, len, mode);
                p.run();
            };
            let recv = |p: &mut Post| {
                if p.numbers.is_multiple_of(2) != odd {
                    p.number();
                }
                p.recv(R, wanted, room);
            };
            if posted {
                recv(&mut p);
            }
            send(&mut p);
            if !posted {
                recv(&mut p);
            }
            p.run();
        }
    }
    let end = |op: &Op| op.ended.as_ref().map(|e| (code(op).unwrap(), e.envelope, e.len)).unwrap();
    let ends = p.recvs.iter().map(end).collect();
    assert!(p.sends.iter().all(is_ok));
    p.finish();
    ends
}

#[test]
fn the_short_ways_of_messages_end_as_the_long_ones() {
    // With checksums, or a sender that waits for the match, a message goes the way of all.
    let want = ends_of(shm().checksums(), true, false, Mode::Synchronous);
    assert!(want.iter().filter(|(code, ..)| *code == Code::OutOfRange).count() > 2);
    for odd in [false, true] {
        for posted in [false, true] {
            for mode in [Mode::Standard, Mode::Synchronous] {
                assert_eq!(ends_of(shm(), odd, posted, mode), want);
                assert_eq!(ends_of(shm().checksums(), odd, posted, mode), want);
            }
        }
    }
}

#[test]
fn a_grant_for_an_offer_that_is_gone_is_answered() {
    let mut p = Post::new(shm().no_reads());
    let to = p.other(S);
    let send = p.send(S, to, TAG, LARGE, Mode::Standard);
    p.run();
    p.s.hold(S, Kind::MsgWithdraw);
    let Memory { addr, len, device } = p.sends[send].memory;
    assert!(p.s.reclaim(S, (addr, len, device), true));
    p.look();
    assert_eq!(code(&p.sends[send]), Some(Code::FailedPrecondition));
    let recv = p.recv(R, ANY, LARGE);
    p.run();
    p.s.let_go(S, Kind::MsgWithdraw);
    p.run();
    assert_eq!(code(&p.recvs[recv]), Some(Code::Cancelled));
    p.finish();
}

#[test]
fn memory_of_what_waits_is_taken_back() {
    let mut p = Post::new(shm());
    let recv = p.recv(R, ANY, LARGE);
    let own = p.send(S, Party::OWN, TAG, LARGE, Mode::Standard);
    for (node, Memory { addr, len, device }) in
        [(R, p.recvs[recv].memory), (S, p.sends[own].memory)]
    {
        assert!(p.s.reclaim(node, (addr, len, device), false));
    }
    p.look();
    assert_eq!(code(&p.recvs[recv]), Some(Code::FailedPrecondition));
    assert_eq!(code(&p.sends[own]), Some(Code::FailedPrecondition));
    p.finish();
}

/// Who takes it back inside a callback would have to make the copy itself.
#[test]
fn memory_of_a_message_whose_copy_did_not_begin_is_taken_back() {
    let mut p = Post::new(shm());
    let to = p.other(S);
    p.s.hold(S, Kind::Copy);
    let send = p.send_from(S, to, TAG, (8, 0, false), Mode::Standard);
    p.run();
    assert_eq!(p.s.awaited(S), [Kind::Copy]);
    let Memory { addr, len, device } = p.sends[send].memory;
    assert!(p.s.reclaim(S, (addr, len, device), true), "nothing touches it");
    p.s.let_go(S, Kind::Copy);
    p.look();
    assert_eq!(code(&p.sends[send]), Some(Code::FailedPrecondition));
    p.finish();
}

#[test]
fn a_message_to_oneself_is_taken_back_after_it_was_claimed() {
    let mut p = Post::new(shm());
    let own = p.send(S, Party::OWN, TAG, LARGE, Mode::Standard);
    let found = p.probe(S, ANY, true).unwrap();
    p.claims.clear();
    let id = p.sends[own].id;
    p.cancel(S, id).unwrap();
    assert_eq!(code(&p.sends[own]), Some(Code::Cancelled));
    let recv = p.recv_into(S, ANY, LARGE, 0, Some(found.message));
    assert_eq!(code(&p.recvs[recv]), Some(Code::Cancelled));
    p.finish();
}

#[test]
fn a_message_is_taken_back_after_it_was_claimed() {
    for (len, mode) in [(8, Mode::Synchronous), (LARGE, Mode::Standard)] {
        let mut p = Post::new(shm());
        let to = p.other(S);
        let send = p.send(S, to, TAG, len, mode);
        p.run();
        let found = p.probe(R, ANY, true).unwrap();
        p.claims.clear();
        p.cancel(S, p.sends[send].id).unwrap();
        p.run();
        assert_eq!(code(&p.sends[send]), Some(Code::Cancelled));
        let recv = p.recv_into(R, ANY, LARGE, 0, Some(found.message));
        assert_eq!(code(&p.recvs[recv]), Some(Code::Cancelled));
        p.finish();
    }
}

#[test]
fn memory_of_a_claimed_message_is_taken_back() {
    let mut p = Post::new(shm());
    let own = p.send(S, Party::OWN, TAG, LARGE, Mode::Standard);
    let found = p.probe(S, ANY, true).unwrap();
    p.claims.clear();
    let Memory { addr, len, device } = p.sends[own].memory;
    assert!(p.s.reclaim(S, (addr, len, device), false));
    p.look();
    assert_eq!(code(&p.sends[own]), Some(Code::FailedPrecondition));
    let recv = p.recv_into(S, ANY, LARGE, 0, Some(found.message));
    assert_eq!(code(&p.recvs[recv]), Some(Code::Cancelled));
    p.finish();
}

#[test]
fn what_the_window_has_no_room_for_is_offered_and_keeps_its_order() {
    const N: usize = 6000;
    let mut p = Post::new(shm());
    let to = p.other(S);
    let mut waits = 0;
    for _ in 0..N {
        let send = p.send(S, to, TAG, 8, Mode::Standard);
        waits += usize::from(p.sends[send].ended.is_none());
        if send.is_multiple_of(8) {
            p.s.run();
        }
    }
    p.run();
    assert!(waits > N / 4, "{waits} of {N} wait");
    for i in 0..N {
        let recv = p.recv(R, ANY, 8);
        if p.recvs[recv].ended.is_none() {
            p.run();
        }
        assert_eq!(p.met(&p.recvs[recv]), Some(i));
    }
    p.finish();
}

#[test]
fn what_can_be_read_is_read_unless_a_write_is_forced() {
    let (get, put) = (shm().forced(Protocol::DirectGet), shm().forced(Protocol::DirectPut));
    for (setup, reads) in [(shm(), true), (get, true), (put, false)] {
        let mut p = Post::new(setup);
        let to = p.other(S);
        p.s.hold(R, Kind::Read);
        p.send(S, to, TAG, LARGE, Mode::Standard);
        let recv = p.recv(R, ANY, LARGE);
        p.run();
        assert_eq!(p.recvs[recv].ended.is_none(), reads);
        p.s.let_go(R, Kind::Read);
        p.run();
        assert!(is_ok(&p.recvs[recv]));
        p.finish();
    }
}

#[test]
fn a_receive_finds_its_message_behind_a_full_window() {
    let mut p = Post::new(shm());
    let to = p.other(S);
    for _ in 0..5000 {
        p.send(S, to, TAG, 8, Mode::Standard);
        p.s.run();
    }
    let last = p.send(S, to, Envelope { comm: 0, tag: 2 }, 8, Mode::Standard);
    p.run();
    let recv = p.recv(R, Wanted { from: Party::ANY, comm: 0, tag: 2, mask: ALL }, 8);
    p.run();
    assert_eq!(p.met(&p.recvs[recv]), None, "the receiver may yet take what lies before it");
    // Some thousand lie before it: 16 are offered, then 32 more, and so on.
    for batch in 0..8 {
        assert_eq!(
            p.met(&p.recvs[recv]),
            None,
            "{batch}: so many offers would cost a receiver that was only slow"
        );
        p.s.pass(21);
        p.run();
    }
    assert_eq!(p.met(&p.recvs[recv]), Some(last));
    p.finish();
}

#[test]
fn a_receiver_that_takes_what_comes_is_offered_nothing_that_rides() {
    let mut p = Post::new(shm());
    let to = p.other(S);
    let sends: Vec<_> = (0..10_000).map(|_| p.send(S, to, TAG, 8, Mode::Standard)).collect();
    p.run();
    for &send in &sends {
        let recv = p.recv(R, ANY, 8);
        p.run();
        // No millisecond has passed: what was offered only after a while is not.
        assert_eq!(p.met(&p.recvs[recv]), Some(send));
    }
    p.finish();
}

#[test]
fn a_request_index_of_the_library_itself_ends_the_connection() {
    let mut p = Post::new(shm());
    let request = super::kind::request(0xFFF0_0000, b"k");
    let ch = *p.s.w.nodes[R].chans.keys().next().unwrap();
    p.s.event(R, ch, super::common::net::NetEvent::Message(request));
    assert!(p.s.w.nodes[R].chans.is_empty());
    p.finish();
}
