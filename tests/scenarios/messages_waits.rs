//! Messages, and who waits for room, that wait for something which comes by one way or another. Each by name.

use std::sync::{Arc, Mutex};

use rdma_transport::api::PeerState;
use rdma_transport::engine::front::message::flow::{COST, OFFERED_BESIDE, WINDOW};
use rdma_transport::engine::front::message::{
    Envelope, Mode, OnMessage, Outgoing, Party, Sending, Wanted,
};
use rdma_transport::protocol::message::Extra;
use rdma_transport::status::{Code, Reason, Status};

use super::common::memory::content;
use super::kind::Kind;
use super::messages::{ALL, ANY, Post, TAG, code};
use super::script::{EAGER, LARGE, MS, R, S, ibverbs, shm};

type Rooms = Arc<Mutex<Vec<u64>>>;

/// Node S is to be told when so many bytes may be sent.
fn on_room(p: &mut Post, bytes: u64) -> Rooms {
    let (told, to) = (Rooms::default(), p.other(S));
    let tell = told.clone();
    let tell = move |room: Result<u64, _>| tell.lock().unwrap().push(room.unwrap_or(0));
    p.s.call(S, |e, fx| e.message_on_room(fx, to, bytes, Box::new(tell))).unwrap();
    told
}

/// So many bytes of room are told of.
fn was_told(told: &Rooms) -> bool {
    matches!(told.lock().unwrap()[..], [room] if room > 0)
}

/// Small messages from node S until the connection has no credit for another, whose return is held.
fn without_credit(p: &mut Post) -> usize {
    let to = p.other(S);
    p.s.hold(R, Kind::Ack);
    let mut count = 0;
    while p.s.call(S, |e, _| e.message_room(to)).unwrap() > 0 {
        let send = p.send(S, to, TAG, 8, Mode::Standard);
        assert_eq!(code(&p.sends[send]), Some(Code::Ok), "it went at once");
        p.run();
        count += 1;
    }
    assert!((8..100).contains(&count), "{count}");
    count
}

#[test]
fn room_is_told_when_credits_come_back() {
    let mut p = Post::new(shm());
    without_credit(&mut p);
    let told = on_room(&mut p, 1000);
    p.run();
    assert!(!was_told(&told));
    // No receive meets anything: the window stays as it is.
    p.s.let_go(R, Kind::Ack);
    p.run();
    assert!(was_told(&told));
    p.finish();
}

#[test]
fn room_is_told_when_credits_come_with_a_message() {
    let mut p = Post::new(shm());
    let recv = p.recv(S, ANY, 8);
    without_credit(&mut p);
    let told = on_room(&mut p, 1000);
    // Behind what is held, unless it is not to be waited for.
    p.s.let_go(R, Kind::Ack);
    p.run();
    assert!(was_told(&told));
    without_credit(&mut p);
    let told = on_room(&mut p, 1000);
    let back = p.other(R);
    p.send(R, back, TAG, 8, Mode::Standard);
    p.run();
    p.s.let_go(R, Kind::Ack);
    p.run();
    assert!(was_told(&told) && code(&p.recvs[recv]) == Some(Code::Ok));
    p.finish();
}

/// A message of node S with so long a header, of so many bytes, or of so many parts of one byte; its number.
pub(super) fn with_beside(p: &mut Post, tag: u64, len: u64, header: usize, parts: u64) -> u64 {
    let to = p.other(S);
    let memory = p.memory(S, 0, len.max(parts), "a message");
    let bytes = content(tag as usize, memory.len);
    p.s.w.mem.write(p.s.w.who(S), false, memory.addr, &bytes, "the application");
    let (user, parts) = (vec![7; header], vec![1u64.to_le_bytes(); parts as usize]);
    let extra = &Extra { user: &user, parts: &parts, active: false, first: None };
    let (mode, timeout, done) = (Mode::Standard, Some(u64::MAX), OnMessage::Asked);
    let envelope = Envelope { comm: 0, tag };
    let content: &[u8] = if memory.len <= EAGER { &bytes } else { &[] };
    let out = Outgoing {
        to,
        incarnation: 0,
        envelope,
        memory,
        content,
        extra,
        mode,
        timeout,
        done,
        trial: None,
    };
    match p.s.call(S, |e, fx| e.message_send(fx, out)).unwrap() {
        Sending::Done => 0,
        Sending::Begun(id) => id,
    }
}

/// Whether an operation of node S has ended.
fn has_ended(p: &mut Post, id: u64) -> bool {
    p.look();
    id == 0 || p.s.call(S, |e, _| e.message_has_ended(id)).unwrap()
}

/// Offers of node S have as much beside their content as they may have together; their numbers.
fn offers_enough(p: &mut Post) -> Vec<u64> {
    const EACH: u64 = 2 * 512;
    let offers = (0..OFFERED_BESIDE / EACH).map(|_| {
        let id = with_beside(p, 2, 0, 512, 64);
        p.s.run();
        id
    });
    offers.collect()
}

/// A receive of node R for this tag.
fn recv_tag(p: &mut Post, tag: u64, len: u64) -> usize {
    let wanted = Wanted { from: Party::ANY, comm: 0, tag, mask: ALL };
    p.recv(R, wanted, len)
}

/// Takes back what waits, and ends.
fn finish(mut p: Post, offers: Vec<u64>) {
    for id in offers {
        p.cancel(S, id).unwrap();
        p.s.run();
        p.look();
        assert!(p.s.call(S, |e, _| e.message_take_end(id)).unwrap().is_some());
    }
    p.finish();
}

#[test]
fn what_waits_behind_a_message_goes_when_that_is_taken_back() {
    let mut p = Post::new(shm().no_reads());
    let offers = offers_enough(&mut p);
    let to = p.other(S);
    // It may not be offered; the next one may go, but not before it.
    let first = with_beside(&mut p, 3, LARGE, 100, 0);
    let send = p.send(S, to, TAG, 8, Mode::Standard);
    let told = on_room(&mut p, 1000);
    let recv = recv_tag(&mut p, TAG.tag, 8);
    p.run();
    assert_eq!((code(&p.sends[send]), code(&p.recvs[recv])), (None, None));
    p.cancel(S, first).unwrap();
    p.run();
    assert_eq!((code(&p.sends[send]), code(&p.recvs[recv])), (Some(Code::Ok), Some(Code::Ok)));
    assert!(was_told(&told));
    assert!(p.s.call(S, |e, _| e.message_take_end(first)).unwrap().is_some());
    finish(p, offers);
}

#[test]
fn what_may_not_be_offered_goes_when_the_window_opens() {
    let mut p = Post::new(shm().no_reads());
    let small = WINDOW / (COST + 7);
    for _ in 0..small {
        assert_eq!(with_beside(&mut p, 1, 7, 0, 0), 0);
        p.s.run();
    }
    let offers = offers_enough(&mut p);
    let blocked = with_beside(&mut p, 3, 7, 20, 0);
    p.s.run();
    assert!(blocked != 0 && !has_ended(&mut p, blocked));
    for _ in 0..small {
        recv_tag(&mut p, 1, 7);
        p.s.run();
    }
    // The receiver wants nothing of what was offered.
    let recv = recv_tag(&mut p, 3, 7);
    p.run();
    assert!(has_ended(&mut p, blocked));
    assert_eq!(code(&p.recvs[recv]), Some(Code::Ok));
    assert!(p.s.call(S, |e, _| e.message_take_end(blocked)).unwrap().is_some());
    finish(p, offers);
}

/// What takes a message back waits behind content, say: its peer lives, and is not ended for that.
#[test]
fn a_synchronous_send_is_taken_back_while_its_word_waits() {
    let mut p = Post::new(shm());
    let to = p.other(S);
    let send = p.send(S, to, TAG, 8, Mode::Synchronous);
    p.run();
    p.s.hold(S, Kind::MsgWithdraw);
    p.cancel(S, p.sends[send].id).unwrap();
    p.s.pass(3_000);
    p.look();
    assert_eq!(code(&p.sends[send]), None);
    assert_eq!(p.s.peer_state(S), (PeerState::Connected, 1));
    p.s.let_go(S, Kind::MsgWithdraw);
    p.look();
    assert_eq!(code(&p.sends[send]), Some(Code::Cancelled));
    p.finish();
}

/// Time passes, in which node R says every second that it lives: small messages that no receive meets.
fn time_passes_with_signs_of_life(p: &mut Post, seconds: u64) {
    let to = p.other(R);
    for _ in 0..seconds {
        p.send(R, to, Envelope { comm: TAG.comm, tag: TAG.tag + 1 }, 8, Mode::Standard);
        p.s.pass(1_000);
    }
    p.look();
}

/// A word to the receiver is lost, as on a path that loses bytes, and what the receiver says arrives. The send is over some seconds behind its
/// deadline all the same.
#[test]
fn a_send_whose_words_are_lost_ends_behind_its_deadline() {
    let lost = [
        (Kind::MsgOffer, LARGE),
        (Kind::Write, LARGE),
        (Kind::Msg, 8),
        (Kind::MsgWithdraw, 8),
        (Kind::MsgWithdraw, LARGE),
    ];
    let setups = [shm().no_reads(), ibverbs().no_reads()];
    for (setup, (kind, len)) in setups.iter().flat_map(|s| lost.map(|l| (s.clone(), l))) {
        let patient = setup.settings(|s| (s.timeout, s.peer_timeout) = (3_000 * MS, 100_000 * MS));
        let mut p = Post::new(patient);
        let to = p.other(S);
        p.s.hold(S, kind);
        let mode = if len == LARGE { Mode::Standard } else { Mode::Synchronous };
        let send = p.send(S, to, TAG, len, mode);
        if kind == Kind::Write {
            p.recv(R, ANY, LARGE);
        }
        time_passes_with_signs_of_life(&mut p, 4);
        assert_eq!(p.s.peer_state(S).1, 1, "{kind:?}: it has a while");
        time_passes_with_signs_of_life(&mut p, 10);
        assert_eq!(code(&p.sends[send]), Some(Code::DeadlineExceeded), "{kind:?} is lost");
        p.s.let_all_go();
        p.finish();
    }
}

/// Who waits for room is told when it has waited for as long as an operation by default, whether the peer is connected or not.
#[test]
fn room_that_does_not_come_is_told_in_time() {
    for cut in [true, false] {
        let mut p = Post::new(shm());
        without_credit(&mut p);
        if cut {
            p.s.cut();
            p.s.hold(S, Kind::Dial);
        }
        let to = p.other(S);
        let told: Arc<Mutex<Vec<Result<u64, Status>>>> = Arc::default();
        let hear = told.clone();
        let tell = move |room| hear.lock().unwrap().push(room);
        p.s.call(S, |e, fx| e.message_on_room(fx, to, 1000, Box::new(tell))).unwrap();
        p.s.pass(900);
        assert!(told.lock().unwrap().is_empty(), "{cut}");
        p.s.pass(200);
        let heard = std::mem::take(&mut *told.lock().unwrap());
        let [Err(status)] = &heard[..] else { panic!("{cut}: {heard:?}") };
        assert_eq!((status.code, status.reason), (Code::DeadlineExceeded, Reason::Deadline));
        assert!(status.message.contains("node0") && status.message.contains("1.000 s"), "{status}");
        p.s.let_all_go();
        p.finish();
    }
}
