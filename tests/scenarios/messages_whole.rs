//! Short messages that the window has no room for: their content comes along with their offer. Each by name.

use rdma_transport::engine::front::message::flow::OFFERED_FIRST;
use rdma_transport::engine::front::message::{Mode, OnMessage, Party, Receiving, Wanted};
use rdma_transport::engine::layout::LAYOUT;
use rdma_transport::fabric::keys::{Keys, Place};
use rdma_transport::protocol::message::{self, Message, MsgOffer};
use rdma_transport::status::Code;

use super::common::memory::content;
use super::common::net::NetEvent;
use super::kind::{Kind, decode};
use super::messages::{ALL, ANY, Post, TAG, code};
use super::messages_more::{active, end, handler};
use super::messages_waits::with_beside;
use super::script::{EAGER, LARGE, R, S, Setup, ibverbs, shm};

/// A message of so many bytes, `given` with the call, finds node S's window full, and is offered.
fn offered(setup: Setup, (len, from, given): (u64, u32, bool)) -> (Post, usize) {
    let mut p = Post::new(setup);
    p.fill_window(S);
    let to = p.other(S);
    let send = p.send_from(S, to, TAG, (len, from, given), Mode::Standard);
    p.run();
    assert_eq!(p.s.count(S, Kind::MsgOffer), 0, "it waits for room first");
    p.s.pass(21);
    p.look();
    assert_eq!(p.s.count(S, Kind::MsgOffer), 1);
    (p, send)
}

/// What node S's offer says: its number, and how many bytes of content came with it.
fn said(p: &Post) -> (u32, Option<usize>) {
    let offer = p.s.arrived.iter().find(|(n, k, _)| (*n, *k) == (S, Kind::MsgOffer));
    match decode(&offer.expect("an offer").2) {
        Ok((Message::MsgOffer(MsgOffer { response, extra, .. }), _)) => {
            (response, extra.first.map(<[u8]>::len))
        }
        _ => panic!("an offer"),
    }
}

/// How often the receiver has asked for content, or fetched it.
fn asked(p: &Post) -> usize {
    [Kind::MsgGrant, Kind::MsgAck].map(|kind| p.s.count(R, kind)).iter().sum()
}

#[test]
fn the_content_comes_with_the_offer_whatever_the_memory() {
    for setup in [shm(), ibverbs(), shm().no_reads()] {
        for from in [0, LAYOUT] {
            for to in [0, LAYOUT, 1] {
                let (mut p, send) = offered(setup.clone(), (EAGER, from, true));
                assert_eq!(said(&p).1, Some(EAGER as usize));
                assert!(p.sends[send].ended.is_none(), "nobody has it");
                let recv = p.recv_into(R, ANY, LARGE, to, None);
                p.run();
                assert_eq!(p.met(&p.recvs[recv]), Some(send));
                assert_eq!(code(&p.sends[send]), Some(Code::Ok));
                assert_eq!(asked(&p), 0);
                p.finish();
            }
        }
    }
}

#[test]
fn it_does_not_where_it_is_not_at_hand_or_has_a_checksum() {
    for (setup, from, given) in [(shm(), 0, false), (shm().checksums(), 0, true)] {
        let (mut p, send) = offered(setup, (40, from, given));
        assert_eq!(said(&p).1, None);
        let recv = p.recv(R, ANY, LARGE);
        p.run();
        assert_eq!(p.met(&p.recvs[recv]), Some(send));
        p.finish();
    }
}

#[test]
fn a_receive_that_is_too_short_says_so_and_the_send_ends_well() {
    for to in [0, LAYOUT, 1] {
        let (mut p, send) = offered(shm(), (EAGER, 0, true));
        let recv = p.recv_into(R, ANY, EAGER - 1, to, None);
        p.run();
        assert_eq!(code(&p.recvs[recv]), Some(Code::OutOfRange));
        assert_eq!(code(&p.sends[send]), Some(Code::Ok));
        p.finish();
    }
}

#[test]
fn what_is_taken_back_meets_no_receive_though_its_content_is_there() {
    let (mut p, send) = offered(shm(), (EAGER, 0, true));
    p.sends[send].cancelled = true;
    p.cancel(S, p.sends[send].id).unwrap();
    p.run();
    assert_eq!(code(&p.sends[send]), Some(Code::Cancelled));
    let recv = p.recv(R, ANY, LARGE);
    p.run();
    assert_eq!(code(&p.recvs[recv]), None);
    p.finish();
}

#[test]
fn with_its_connection_it_is_gone() {
    let (mut p, send) = offered(shm(), (EAGER, 0, true));
    p.s.cut();
    p.look();
    assert_eq!(code(&p.sends[send]), Some(Code::Unavailable));
    let recv = p.recv(R, Wanted { mask: ALL, tag: TAG.tag, ..ANY }, LARGE);
    p.run();
    assert_eq!(code(&p.recvs[recv]), None);
    p.finish();
}

#[test]
fn who_probes_it_and_claims_it_has_its_header_alone() {
    let (mut p, send) = offered(shm(), (EAGER, 0, true));
    let found = p.probe(R, ANY, true).unwrap();
    p.claims.clear();
    let header = found.extra.as_ref().map_or(0, |beside| beside.user.len());
    assert!(header < EAGER as usize && found.len == EAGER);
    let recv = p.recv_into(R, ANY, LARGE, 0, Some(found.message));
    p.run();
    assert_eq!((p.met(&p.recvs[recv]), asked(&p)), (Some(send), 0));
    p.finish();
}

#[test]
fn a_handler_is_given_the_content() {
    for early in [true, false] {
        let mut p = Post::new(shm());
        p.fill_window(S);
        let first = early.then(|| handler(&mut p, false));
        let id = active(&mut p, 5, EAGER);
        p.s.pass(21);
        assert_eq!(said(&p).1, Some(EAGER as usize));
        let seen = first.unwrap_or_else(|| handler(&mut p, false));
        p.run();
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        assert_eq!(seen, [(5, content(5, EAGER), 0)]);
        assert_eq!((end(&mut p, S, id), asked(&p)), (Some(Code::Ok), 0));
        p.finish();
    }
}

/// A hostile receiver, or one of another make.
#[test]
fn a_receiver_that_asks_for_it_all_the_same_is_answered_or_loses_its_connection() {
    for pipeline in [false, true] {
        let (mut p, send) = offered(shm(), (EAGER, 0, true));
        let (response, _) = said(&p);
        let dst = Place { addr: 8, rkeys: Keys::one(9) };
        let m = match pipeline {
            true => Message::MsgAck { response, request: 5, at: 0, len: 1 },
            false => Message::MsgGrant { response, request: 5, dst, len: EAGER, pipeline },
        };
        let mut out = Vec::new();
        message::encode(&m, &mut out);
        let ch = *p.s.w.nodes[S].chans.keys().next().unwrap();
        p.s.event(S, ch, NetEvent::Message(out));
        p.look();
        assert_eq!(p.s.w.nodes[S].chans.is_empty(), pipeline);
        p.s.let_all_go();
        p.run();
        assert!(code(&p.sends[send]).is_some_and(|code| code != Code::Ok), "nobody has it");
        p.finish();
    }
}

/// A stranger's: a message with a header was never offered while the content of others filled the room for headers.
#[test]
fn content_takes_no_room_of_headers() {
    let mut p = Post::new(shm());
    p.fill_window(S);
    let count = OFFERED_FIRST / EAGER + 100;
    for _ in 0..count {
        with_beside(&mut p, TAG.tag, EAGER, 0, 0);
    }
    let last = with_beside(&mut p, 2, EAGER, 40, 0);
    // 16 are offered, then 32, and so on: all.
    (0..14).for_each(|_| p.s.pass(21));
    assert_eq!(p.s.count(S, Kind::MsgOffer), count as usize + 1);
    let memory = p.memory(R, 0, EAGER, "a destination");
    let wanted = Wanted { from: Party::ANY, comm: 0, tag: 2, mask: ALL };
    let begun = p.s.call(R, |e, fx| e.message_recv(fx, wanted, memory, None, OnMessage::Asked));
    let Ok(Receiving::Begun(id)) = begun else { panic!("its content follows") };
    p.run();
    assert_eq!((end(&mut p, R, id), end(&mut p, S, last)), (Some(Code::Ok), Some(Code::Ok)));
}

#[test]
fn those_to_oneself_need_no_window() {
    let mut p = Post::new(shm());
    p.fill_window(S);
    let send = p.send(S, Party::OWN, TAG, EAGER, Mode::Standard);
    assert_eq!(code(&p.sends[send]), Some(Code::Ok));
    p.recv(S, ANY, LARGE);
    p.finish();
}
