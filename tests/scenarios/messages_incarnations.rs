//! Messages and restarts: whose a message is, and sends for one incarnation of a peer alone.

use rdma_transport::api::incarnation_word;
use rdma_transport::engine::Fx;
use rdma_transport::engine::front::message::{
    Envelope, Memory, Mode, OnMessage, Outgoing, Party, Sending, Wanted,
};
use rdma_transport::protocol::message::Extra;
use rdma_transport::status::{Code, Reason, Status};

use super::engine::incarnation;
use super::kind::Kind;
use super::messages::{ALL, ANY, Post, TAG, code};
use super::script::{EAGER, LARGE, R, S, shm};

/// What messages tell of the present incarnation of a node.
fn word(p: &Post, node: usize) -> u64 {
    incarnation_word(&incarnation(node, p.s.w.who(node).inc))
}

/// Node S ends, and begins again.
fn restart(p: &mut Post) {
    p.s.crash(S, false);
    p.s.run();
    p.s.restart(S);
}

/// The same, and connects.
fn restart_and_connect(p: &mut Post) {
    restart(p);
    p.s.connect(S);
    p.run();
}

/// Who sent what the receive met.
fn sent_by(p: &Post, recv: usize) -> u64 {
    let end = p.recvs[recv].ended.as_ref().unwrap();
    assert!(end.result.is_ok());
    end.incarnation
}

/// A send whose content is at hand, as the manager begins it.
fn try_send(
    p: &mut Post,
    (node, to): (usize, Party),
    incarnation: u64,
    len: u64,
    mode: Mode,
) -> Result<Sending, Status> {
    let memory: Memory = p.memory(node, 0, len, "for one alone");
    let bytes = vec![5; len as usize];
    let who = p.s.w.who(node);
    p.s.w.mem.write(who, false, memory.addr, &bytes, "the application");
    let content = if len <= EAGER { &bytes[..] } else { &[] };
    let (envelope, extra, timeout) = (TAG, &Extra::NONE, None);
    let (done, trial) = (OnMessage::Asked, None);
    let mut out =
        Outgoing { to, incarnation, envelope, memory, content, extra, mode, timeout, done, trial };
    p.s.call(node, |e, fx| {
        // As the manager does, from the shortest way on.
        if e.message_send_now(fx, &out) {
            return Ok(Sending::Done);
        }
        if out.mode == Mode::Synchronous
            && let Some(id) = e.message_send_synchronous(fx, &out)
        {
            return Ok(Sending::Begun(id));
        }
        match e.message_stage(fx, &mut out) {
            Some(buffer) => {
                fx.copy_in(&buffer, &bytes);
                e.message_send_staged(fx, out, buffer)
            }
            None => e.message_send(fx, out),
        }
    })
}

fn is_restarted(result: Result<Sending, Status>) {
    let status = result.unwrap_err();
    assert_eq!((status.code, status.reason), (Code::Unavailable, Reason::PeerRestarted));
    assert!(status.message.contains("'node") && status.message.contains("restarted"), "{status}");
}

#[test]
fn the_end_of_a_receive_tells_the_incarnation_of_the_sender() {
    let mut p = Post::new(shm());
    let (first, to) = (word(&p, S), p.other(S));
    // Met as it comes, and in each way in which it may wait; and one that waits for longer than its sender lives.
    for (len, mode) in [(8, Mode::Standard), (8, Mode::Synchronous), (LARGE, Mode::Standard)] {
        for before in [true, false] {
            let posted = before.then(|| p.recv(R, ANY, LARGE));
            p.send(S, to, TAG, len, mode);
            p.run();
            let recv = posted.unwrap_or_else(|| {
                assert_eq!(p.probe(R, ANY, false).unwrap().incarnation, first);
                p.recv(R, ANY, LARGE)
            });
            p.run();
            assert_eq!(sent_by(&p, recv), first);
        }
    }
    p.send(S, to, TAG, 8, Mode::Standard);
    p.run();
    restart_and_connect(&mut p);
    let second = word(&p, S);
    assert!(first != second && first != 0 && second != 0);
    let to = p.other(S);
    p.send(S, to, TAG, 16, Mode::Standard);
    p.run();
    let recvs = [(); 2].map(|()| p.recv(R, ANY, 16));
    p.run();
    assert_eq!(recvs.map(|r| sent_by(&p, r)), [first, second]);
    p.finish();
}

#[test]
fn a_send_for_an_incarnation_that_is_gone_fails_in_its_call() {
    let mut p = Post::new(shm());
    let first = word(&p, S);
    restart_and_connect(&mut p);
    let (now, to) = (word(&p, S), p.other(R));
    for mode in [Mode::Standard, Mode::Synchronous] {
        for len in [0, 8, EAGER, LARGE] {
            is_restarted(try_send(&mut p, (R, to), first, len, mode));
            p.run();
            assert_eq!(p.probe(S, ANY, false), None, "it was delivered");
        }
    }
    // The one that lives is met in the same ways, and asked for by none.
    for incarnation in [now, 0] {
        p.incarnation = incarnation;
        for (len, mode) in [(8, Mode::Standard), (8, Mode::Synchronous), (LARGE, Mode::Standard)] {
            let (send, recv) = (p.send(R, to, TAG, len, mode), p.recv(S, ANY, LARGE));
            p.run();
            assert_eq!(code(&p.sends[send]), Some(Code::Ok));
            assert_eq!(code(&p.recvs[recv]), Some(Code::Ok));
        }
    }
    p.finish();
}

#[test]
fn what_waits_for_a_connection_fails_when_another_incarnation_comes() {
    let mut p = Post::new(shm());
    let first = word(&p, S);
    restart(&mut p);
    let to = p.other(R);
    let mut sends = [0, 0, 0, 0];
    for (i, send) in sends.iter_mut().enumerate() {
        p.incarnation = if i % 2 == 0 { first } else { 0 };
        let len = if i < 2 { 8 } else { LARGE };
        *send = p.send(R, to, TAG, len, Mode::Standard);
        assert_eq!(code(&p.sends[*send]), None, "it may be the same that comes again");
    }
    p.s.connect(S);
    p.run();
    let recvs = [(); 2].map(|()| p.recv(S, ANY, LARGE));
    p.run();
    let (gone, ok) = (Some(Code::Unavailable), Some(Code::Ok));
    assert_eq!(sends.map(|send| code(&p.sends[send])), [gone, ok, gone, ok]);
    assert_eq!(recvs.map(|recv| p.recvs[recv].ended.as_ref().unwrap().len), [8, LARGE]);
    let end = p.sends[sends[0]].ended.as_ref().unwrap();
    assert_eq!(end.result.as_ref().unwrap_err().reason, Reason::PeerRestarted);
    assert_eq!(end.incarnation, first);
    p.finish();
}

#[test]
fn what_waits_for_a_connection_goes_when_the_same_incarnation_comes_again() {
    let mut p = Post::new(shm());
    let to = p.other(R);
    p.incarnation = word(&p, S);
    p.s.cut();
    p.run();
    let send = p.send(R, to, TAG, 8, Mode::Standard);
    p.s.connect(R);
    let recv = p.recv(S, ANY, 8);
    p.run();
    assert_eq!(code(&p.sends[send]), Some(Code::Ok));
    assert_eq!(code(&p.recvs[recv]), Some(Code::Ok));
    p.finish();
}

#[test]
fn what_waits_for_room_is_lost_with_its_incarnation() {
    for (len, mode) in [(8, Mode::Standard), (8, Mode::Synchronous), (LARGE, Mode::Standard)] {
        let mut p = Post::new(shm());
        p.incarnation = word(&p, S);
        let to = p.other(R);
        p.s.hold(S, Kind::Ack);
        while p.s.call(R, |e, _| e.message_room(to)).unwrap() > 0 {
            p.send(R, to, TAG, 8, Mode::Standard);
            p.run();
        }
        let send = p.send(R, to, Envelope { comm: 0, tag: 2 }, len, mode);
        p.run();
        assert_eq!(code(&p.sends[send]), None, "it waits");
        p.s.crash(S, true);
        p.s.restart(S);
        p.s.connect(S);
        p.run();
        assert_eq!(code(&p.sends[send]), Some(Code::Unavailable));
        let wanted = Wanted { from: Party::ANY, comm: 0, tag: 2, mask: ALL };
        assert_eq!(p.probe(S, wanted, false), None, "it was delivered");
        p.finish();
    }
}

#[test]
fn messages_to_oneself_are_of_an_incarnation_too() {
    let mut p = Post::new(shm());
    let own = word(&p, S);
    for (len, mode) in [(8, Mode::Standard), (8, Mode::Synchronous), (LARGE, Mode::Standard)] {
        is_restarted(try_send(&mut p, (S, Party::OWN), own ^ 1, len, mode));
        p.incarnation = own;
        let send = p.send(S, Party::OWN, TAG, len, mode);
        let recv = p.recv(S, ANY, LARGE);
        p.run();
        assert_eq!(code(&p.sends[send]), Some(Code::Ok));
        assert_eq!(sent_by(&p, recv), own);
    }
    p.finish();
}

/// A stranger's: such a send was dialled for until its deadline, or for ever, though who alone may have it was gone.
#[test]
fn a_send_for_who_is_gone_ends_when_nobody_listens_there() {
    let mut p = Post::new(shm());
    let (to, first) = (p.other(R), word(&p, S));
    p.s.crash(S, false);
    p.run();
    let bound = try_send(&mut p, (R, to), first, 8, Mode::Standard);
    let any = try_send(&mut p, (R, to), 0, 8, Mode::Standard);
    let (Ok(Sending::Begun(bound)), Ok(Sending::Begun(any))) = (bound, any) else {
        panic!("they wait for a connection")
    };
    let peer = to.index().unwrap();
    let refused = Status::gone("Connection refused");
    p.s.call(R, |e, fx| e.nobody_there(fx, peer, &refused));
    let end = p.s.call(R, |e, _| e.message_take_end(bound)).unwrap().unwrap();
    let status = end.result.unwrap_err();
    assert_eq!((status.code, status.reason), (Code::Unavailable, Reason::PeerGone));
    assert!(status.message.contains("Connection refused"), "{status}");
    assert!(p.s.call(R, |e, _| e.message_take_end(any)).unwrap().is_none(), "another may begin");
    // One that is connected is there, wherever else nobody listens.
    p.s.restart(S);
    p.s.connect(S);
    p.run();
    p.fill_window(R);
    let second = word(&p, S);
    let waits = try_send(&mut p, (R, to), second, 8, Mode::Standard);
    let Ok(Sending::Begun(waits)) = waits else { panic!("there is no room for it") };
    p.s.call(R, |e, fx| e.nobody_there(fx, peer, &refused));
    assert!(p.s.call(R, |e, _| e.message_take_end(waits)).unwrap().is_none());
}
