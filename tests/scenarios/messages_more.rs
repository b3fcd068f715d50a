//! Tagged messages in legs, for handlers, from the attached buffer; room. Each by name.

use std::sync::{Arc, Mutex};

use rdma_transport::engine::front::message::{
    Active, Envelope, Handler, Mode, OnMessage, Outgoing, Party, Receiving, Sending,
};
use rdma_transport::engine::layout::LAYOUT;
use rdma_transport::fabric::ProviderKind;
use rdma_transport::fabric::keys::{Keys, Place};
use rdma_transport::protocol::message::{self, Extra, Message};
use rdma_transport::status::Code;

use super::common::memory::content;
use super::common::net::NetEvent;
use super::kind::Kind;
use super::messages::{ANY, Post, TAG, code};
use super::messages_given_up::held;
use super::ops::{Into, K, OK};
use super::script::{EAGER, LARGE, R, S, Setup, ibverbs, shm};

/// A message on its way to pieces, of whose first leg the copy is held; its send and its receive.
fn in_its_first_copy(setup: Setup, from: u32) -> (Post, usize, usize) {
    let mut p = Post::new(setup);
    let to = p.other(S);
    p.s.hold(R, Kind::Copy);
    let send = p.send_from(S, to, TAG, (LARGE, from, false), Mode::Standard);
    let recv = p.recv_into(R, ANY, LARGE, LAYOUT, None);
    p.run();
    assert_eq!(p.s.awaited(R), [Kind::Copy]);
    (p, send, recv)
}

fn each() -> Vec<(Setup, u32)> {
    let setups = [shm(), ibverbs(), shm().no_reads(), ibverbs().proxies(), shm().checksums()];
    setups.into_iter().flat_map(|s| [(s.clone(), 0), (s, LAYOUT)]).collect()
}

#[test]
fn a_receive_into_pieces_is_given_up_between_two_legs() {
    for (setup, from) in each() {
        let (mut p, send, recv) = in_its_first_copy(setup, from);
        p.give_up(R, p.recvs[recv].id).unwrap();
        p.s.let_go(R, Kind::Copy);
        p.run();
        assert_eq!(code(&p.recvs[recv]), Some(Code::Cancelled));
        assert_eq!(code(&p.sends[send]), Some(Code::Cancelled));
        p.finish();
    }
}

#[test]
fn a_receive_is_given_up_before_the_sender_sees_the_end_of_its_leg() {
    for (setup, from) in each() {
        let mut p = Post::new(setup);
        let to = p.other(S);
        p.s.hold(R, Kind::Copy);
        p.s.hold(S, Kind::Done);
        let send = p.send_from(S, to, TAG, (LARGE, from, false), Mode::Standard);
        let recv = p.recv_into(R, ANY, LARGE, LAYOUT, None);
        p.run();
        p.give_up(R, p.recvs[recv].id).unwrap();
        p.s.let_go(R, Kind::Copy);
        p.s.let_go(S, Kind::Done);
        p.run();
        assert_eq!(code(&p.recvs[recv]), Some(Code::Cancelled));
        assert_eq!(code(&p.sends[send]), Some(Code::Cancelled));
        p.finish();
    }
}

#[test]
fn the_connection_is_lost_between_two_legs() {
    for (setup, from) in each() {
        let (mut p, send, recv) = in_its_first_copy(setup, from);
        p.s.cut();
        p.look();
        p.s.let_go(R, Kind::Copy);
        p.run();
        assert_eq!(code(&p.recvs[recv]), Some(Code::Unavailable));
        assert_eq!(code(&p.sends[send]), Some(Code::Unavailable));
        p.finish();
    }
}

#[test]
fn a_copy_to_pieces_fails() {
    for (setup, from) in each() {
        let (mut p, send, recv) = in_its_first_copy(setup, from);
        p.s.fail(R, Kind::Copy);
        p.s.let_go(R, Kind::Copy);
        p.run();
        assert_eq!(code(&p.recvs[recv]), Some(Code::ResourceExhausted));
        assert_eq!(code(&p.sends[send]), Some(Code::Cancelled));
        p.finish();
    }
}

/// A grant of `len` bytes for the message that node S has offered.
fn grant(p: &mut Post, len: u64) {
    let mut offers =
        p.s.arrived.iter().filter(|(from, kind, _)| (*from, *kind) == (S, Kind::MsgOffer));
    let (_, _, bytes) = offers.next().expect("an offer");
    let Ok((Message::MsgOffer(offer), _)) = message::decode(bytes) else { panic!("an offer") };
    let dst = Place { addr: 8, rkeys: Keys::one(9) };
    let m = Message::MsgGrant { response: offer.response, request: 5, dst, len, pipeline: false };
    let mut out = Vec::new();
    message::encode(&m, &mut out);
    let ch = *p.s.w.nodes[S].chans.keys().next().unwrap();
    p.s.event(S, ch, NetEvent::Message(out));
}

#[test]
fn a_grant_for_more_or_less_than_there_is_ends_the_send() {
    for len in [0, 301, u64::MAX] {
        let mut p = Post::new(shm());
        let to = p.other(S);
        let send = p.send_from(S, to, TAG, (LARGE, LAYOUT, false), Mode::Standard);
        p.run();
        grant(&mut p, len);
        p.look();
        assert_eq!(code(&p.sends[send]), Some(Code::InvalidArgument), "{len}");
        p.s.let_all_go();
        let recv = p.recv(R, ANY, LARGE);
        p.run();
        assert_ne!(code(&p.recvs[recv]), Some(Code::Ok));
        p.finish();
    }
}

pub(super) type Seen = Arc<Mutex<Vec<(u64, Vec<u8>, u64)>>>;

/// Node R's handler 7: what it saw are tag, content and number. It receives what did not come along later.
pub(super) fn handler(p: &mut Post, later: bool) -> Seen {
    let seen = Seen::default();
    let tell = seen.clone();
    let run = move |a: &Active| {
        tell.lock().unwrap().push((a.end.envelope.tag, a.content().to_vec(), a.message));
        later
    };
    let handler = Handler { run: Arc::new(run), in_place: false };
    p.s.call(R, |e, fx| e.message_handler(fx, 7, Some(handler))).unwrap();
    seen
}

/// An active message of so many bytes from node S.
pub(super) fn active(p: &mut Post, tag: u64, len: u64) -> u64 {
    let to = p.other(S);
    let memory = p.memory(S, 0, len, "an active message");
    let bytes = content(tag as usize, len);
    p.s.w.mem.write(p.s.w.who(S), false, memory.addr, &bytes, "the application");
    let copied: &[u8] = if len <= 100 { &bytes } else { &[] };
    let extra = &Extra { user: &[], parts: &[], active: true, first: None };
    let (mode, timeout, done) = (Mode::Standard, None, OnMessage::Asked);
    let envelope = Envelope { comm: 7, tag };
    let trial = None;
    let out = Outgoing {
        to,
        incarnation: 0,
        envelope,
        memory,
        content: copied,
        extra,
        mode,
        timeout,
        done,
        trial,
    };
    match p.s.call(S, |e, fx| e.message_send(fx, out)).unwrap() {
        Sending::Done => 0,
        Sending::Begun(id) => id,
    }
}

pub(super) fn end(p: &mut Post, node: usize, id: u64) -> Option<Code> {
    let end = p.s.call(node, |e, _| e.message_take_end(id)).unwrap()?;
    Some(end.result.map_or_else(|s| s.code, |()| Code::Ok))
}

#[test]
fn a_handler_has_what_came_before_it_and_after_it_in_order() {
    for early in [true, false] {
        let mut p = Post::new(shm());
        let first = (!early).then(|| handler(&mut p, true));
        let ids = [(1, 8), (2, LARGE), (3, 0)].map(|(tag, len)| active(&mut p, tag, len));
        p.run();
        assert_eq!(p.probe(R, ANY, false), None);
        let seen = first.unwrap_or_else(|| handler(&mut p, true));
        p.run();
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        assert_eq!(seen.iter().map(|s| s.0).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!((&seen[0].1, seen[0].2), (&content(1, 8), 0));
        assert!(seen[1].1.is_empty() && seen[1].2 != 0);
        let recv = p.memory(R, 0, LARGE, "where it goes");
        let begun = p
            .s
            .call(R, |e, fx| e.message_recv_claimed(fx, seen[1].2, recv, None, OnMessage::Asked));
        let Ok(Receiving::Begun(id)) = begun else { panic!("it has to come") };
        p.run();
        assert_eq!((end(&mut p, R, id), end(&mut p, S, ids[1])), (Some(Code::Ok), Some(Code::Ok)));
        let got = p.s.w.mem.read(p.s.w.who(R), false, recv.addr, LARGE, "a result");
        assert_eq!(got, content(2, LARGE));
        p.finish();
    }
}

#[test]
fn what_a_handler_does_not_take_is_gone() {
    let mut p = Post::new(shm());
    let seen = handler(&mut p, false);
    let id = active(&mut p, 1, LARGE);
    p.run();
    let message = seen.lock().unwrap()[0].2;
    assert_eq!(end(&mut p, S, id), Some(Code::Ok));
    let memory = p.memory(R, 0, LARGE, "too late");
    let late = p.s.call(R, |e, fx| {
        e.message_recv_claimed(fx, message, memory, None, OnMessage::Asked).map(drop)
    });
    assert_eq!(late.unwrap_err().code, Code::NotFound);
    p.finish();
}

#[test]
fn a_message_that_waits_for_a_handler_is_taken_back() {
    let mut p = Post::new(shm());
    let id = active(&mut p, 1, LARGE);
    p.run();
    p.cancel(S, id).unwrap();
    p.run();
    assert_eq!(end(&mut p, S, id), Some(Code::Cancelled));
    let seen = handler(&mut p, false);
    p.run();
    assert!(seen.lock().unwrap().is_empty());
    p.finish();
}

#[test]
fn room_is_told_when_it_is_there() {
    let mut p = Post::new(shm());
    let to = p.other(S);
    let told = Arc::new(Mutex::new(Vec::new()));
    let ask = |p: &mut Post, bytes: u64| {
        let told = told.clone();
        let tell = move |room: Result<u64, _>| {
            let code = |s: rdma_transport::status::Status| s.code;
            told.lock().unwrap().push(room.map_err(code));
        };
        p.s.call(S, |e, fx| e.message_on_room(fx, to, bytes, Box::new(tell))).unwrap();
    };
    ask(&mut p, 1000);
    assert_eq!(told.lock().unwrap().len(), 1);
    for _ in 0..5000 {
        p.send(S, to, TAG, 8, Mode::Standard);
        p.s.run();
    }
    ask(&mut p, 1000);
    ask(&mut p, 1 << 20);
    p.run();
    assert_eq!(told.lock().unwrap().len(), 1);
    for _ in 0..2500 {
        p.recv(R, ANY, 8);
        p.s.run();
    }
    p.run();
    assert!(matches!(told.lock().unwrap()[..], [Ok(_), Ok(1000..)]));
    let party = Party::peer(to.index().unwrap());
    assert!(p.s.call(S, |e, fx| e.message_on_room(fx, party, 0, Box::new(|_| {}))).is_err());
    for _ in 0..2500 {
        p.recv(R, ANY, 8);
        p.s.run();
    }
    p.run();
    // Of the whole window there may be three quarters, once something was sent.
    let seen = told.lock().unwrap().clone();
    assert!(matches!(seen[..], [Ok(_), Ok(1000..), Ok(786_432..)]), "{seen:?}");
    for _ in 0..5000 {
        p.send(S, to, TAG, 8, Mode::Standard);
        p.s.run();
    }
    ask(&mut p, 1 << 20);
    p.run();
    assert_eq!(told.lock().unwrap().len(), 3);
    p.finish();
    let seen = told.lock().unwrap().clone();
    assert!(matches!(seen[3..], [Ok(786_432..)]), "{seen:?}");
}

#[test]
fn what_the_attached_buffer_holds_is_free_when_it_has_gone() {
    let mut p = Post::new(ibverbs());
    let to = p.other(S);
    assert!(p.s.call(S, |e, fx| e.message_buffer(fx, 8)).is_err());
    p.s.call(S, |e, _| e.message_attach(2000)).unwrap();
    let buffer = p.s.call(S, |e, fx| e.message_buffer(fx, LARGE)).unwrap();
    let refused = p.s.call(S, |e, fx| e.message_buffer(fx, LARGE)).unwrap_err();
    assert_eq!(refused.code, Code::ResourceExhausted);
    let memory =
        rdma_transport::engine::front::message::Memory { addr: buffer.addr, len: LARGE, device: 0 };
    let (extra, mode, done) = (&Extra::NONE, Mode::Standard, OnMessage::Asked);
    let (timeout, trial) = (None, None);
    let out = Outgoing {
        to,
        incarnation: 0,
        envelope: TAG,
        memory,
        content: &[],
        extra,
        mode,
        timeout,
        done,
        trial,
    };
    p.s.call(S, |e, fx| e.message_send_buffered(fx, out, buffer)).unwrap();
    p.run();
    assert!(!p.s.call(S, |e, _| e.message_detach()).unwrap());
    let recv = p.memory(R, 0, LARGE, "where it goes");
    let begun = p.s.call(R, |e, fx| e.message_recv(fx, ANY, recv, None, OnMessage::Asked));
    let Ok(Receiving::Begun(id)) = begun else { panic!("it has to come") };
    p.run();
    assert_eq!(end(&mut p, R, id), Some(Code::Ok));
    assert!(p.s.call(S, |e, _| e.message_detach()).unwrap());
    p.finish();
}

/// Whether one more guest finds room at the receiver.
fn newcomer(p: &mut Post, name: &str) -> bool {
    p.s.call(R, |e, fx| {
        let guest = e.guest(name).unwrap();
        e.room_for_channel(fx, guest, ProviderKind::Ibverbs).is_ok()
    })
}

#[test]
fn a_guest_in_the_middle_of_a_message_makes_no_room_for_another() {
    let one = || ibverbs().guests().settings(|s| s.guest_descriptors = 1);
    // It waits here for a receive: an offer, and what came whole.
    for (len, mode) in [(LARGE, Mode::Standard), (EAGER, Mode::Standard), (8, Mode::Synchronous)] {
        let mut p = Post::new(one());
        let to = p.other(S);
        let send = p.send(S, to, TAG, len, mode);
        p.run();
        assert!(!newcomer(&mut p, "newcomer"), "{len} bytes, {mode:?}");
        let recv = p.recv(R, ANY, LARGE);
        p.run();
        assert_eq!((code(&p.sends[send]), code(&p.recvs[recv])), (Some(Code::Ok), Some(Code::Ok)));
        assert!(newcomer(&mut p, "newcomer"), "all has ended");
        p.finish();
    }
    for setup in [one(), one().no_reads()] {
        let (mut p, send, recv) = held(setup, Kind::Done);
        assert!(!newcomer(&mut p, "newcomer"));
        p.s.let_all_go();
        p.look();
        assert_eq!((code(&p.sends[send]), code(&p.recvs[recv])), (Some(Code::Ok), Some(Code::Ok)));
        assert!(newcomer(&mut p, "newcomer"), "all has ended");
        p.finish();
    }
}

#[test]
fn r08_messages_of_guests_that_nobody_receives_are_bounded() {
    const COUNT: u64 = 5;
    for guests in [true, false] {
        // All but the last of them fit.
        let setup = shm().settings(|s| s.unmet = (COUNT - 1) * 300);
        let mut p = Post::new(if guests { setup.guests() } else { setup });
        let to = p.other(S);
        (0..COUNT).for_each(|_| _ = p.send(S, to, TAG, 8, Mode::Standard));
        p.run();
        let engine = p.s.engines[R].as_ref().unwrap();
        let peer = engine.peer(engine.find_peer("node1").unwrap()).unwrap();
        assert_eq!(peer.channels.is_empty(), guests, "whom the application named is not bounded");
        // What came whole stays.
        let all: Vec<usize> = (0..COUNT).map(|_| p.recv(R, ANY, 8)).collect();
        p.run();
        let codes: Vec<Option<Code>> = all.iter().map(|&recv| code(&p.recvs[recv])).collect();
        assert_eq!(codes, vec![Some(Code::Ok); COUNT as usize], "guests: {guests}");
        p.finish();
    }
}

#[test]
fn messages_count_as_use_of_a_guests_connection() {
    for (len, mode) in [(8, Mode::Standard), (8, Mode::Synchronous), (LARGE, Mode::Standard)] {
        let mut p = Post::new(shm());
        let to = p.other(S);
        let used = |p: &Post| {
            let engine = p.s.engines[R].as_ref().unwrap();
            let peer = engine.peer(engine.find_peer("node1").unwrap()).unwrap();
            engine.channel(peer.channels[0]).unwrap().used
        };
        let (before, _) = (used(&p), p.s.pass(10));
        for recv_first in [true, false] {
            p.s.pass(10);
            if recv_first {
                p.recv(R, ANY, LARGE);
            }
            p.send(S, to, TAG, len, mode);
            p.run();
            assert_eq!(used(&p), p.s.w.now, "{len} bytes, {mode:?}");
        }
        assert!(used(&p) > before);
        p.finish();
    }
}

#[test]
fn offers_that_we_send_take_no_place_of_a_peers_requests() {
    let mut p = Post::new(shm().settings(|s| s.max_waiting = 4));
    let to = p.other(S);
    for _ in 0..4 {
        p.send(S, to, TAG, LARGE, Mode::Standard);
    }
    p.run();
    let r = p.s.recv(R, K, Into::Callback);
    p.run();
    assert_eq!(p.s.recv_end(r), None, "it waits");
    let send = p.s.send(S, K, EAGER);
    p.run();
    assert_eq!((p.s.send_end(send), p.s.recv_end(r)), (OK, OK));
    p.finish();
}
