//! Messages, and who waits for room, that wait for something which comes by one way or another. Each by name.

use std::sync::{Arc, Mutex};

use rdma_transport::engine::front::message::Mode;
use rdma_transport::status::Code;

use super::kind::Kind;
use super::messages::{ANY, Post, TAG, code};
use super::script::{R, S, shm};

type Told = Arc<Mutex<Vec<u64>>>;

/// Node S is to be told when so many bytes may be sent.
fn on_room(p: &mut Post, bytes: u64) -> Told {
    let (told, to) = (Told::default(), p.other(S));
    let tell = told.clone();
    let tell = move |room: Result<u64, _>| tell.lock().unwrap().push(room.unwrap_or(0));
    p.s.call(S, |e, fx| e.message_on_room(fx, to, bytes, Box::new(tell))).unwrap();
    told
}

/// So many bytes of room are told of.
fn was_told(told: &Told) -> bool {
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
