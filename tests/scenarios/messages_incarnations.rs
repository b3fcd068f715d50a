//! Messages and restarts: whose a message is, and sends for one incarnation of a peer alone, and receives of one.

use rdma_transport::api::incarnation_word;
use rdma_transport::engine::Fx;
use rdma_transport::engine::front::message::{
    Envelope, Memory, Mode, OnMessage, Outgoing, Party, Receiving, Sending, Wanted,
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

/// The number of a receive that waits, of one incarnation of the other node alone; or what its call is refused with.
fn recv_of(p: &mut Post, node: usize, from: Party, only: u64) -> Result<u64, Status> {
    let (memory, wanted) = (p.memory(node, 0, 64, "from one alone"), Wanted { from, ..ANY });
    let of = (wanted, only);
    let begun =
        p.s.call(node, |e, fx| e.message_recv_of(fx, of, memory, None, OnMessage::Asked))?;
    match begun {
        Receiving::Begun(id) => Ok(id),
        Receiving::Done(..) => panic!("it has met something"),
    }
}

fn end_of(p: &mut Post, node: usize, id: u64) -> Option<Status> {
    let end = p.s.call(node, |e, _| e.message_take_end(id)).unwrap()?;
    Some(end.result.expect_err("it has met something"))
}

fn is_gone(status: &Status) {
    assert_eq!(status.code, Code::Unavailable, "{status}");
    assert!(
        status.message.contains("peer 'node") && status.message.contains("is gone"),
        "{status}"
    );
}

/// A receive that has met nothing outlives its peer, whose name another may bear; one of that peer alone does not.
#[test]
fn a_receive_of_one_incarnation_ends_with_its_last_connection() {
    let mut p = Post::new(shm());
    let (from, first) = (p.other(R), word(&p, S));
    let bound = [(); 3].map(|()| recv_of(&mut p, R, from, first).unwrap());
    let any = p.recv(R, Wanted { from, ..ANY }, 64);
    // One of them has met its message before.
    let to = p.other(S);
    p.send(S, to, TAG, 8, Mode::Standard);
    p.run();
    let end = p.s.call(R, |e, _| e.message_take_end(bound[0])).unwrap().unwrap();
    assert!(end.result.is_ok() && end.incarnation == first && end.len == 8);
    p.s.crash(S, false);
    p.run();
    let ended = [1, 2].map(|i| end_of(&mut p, R, bound[i]).unwrap());
    ended.iter().for_each(is_gone);
    // However many there are, the text is there once.
    assert_eq!(ended[0].message.as_ptr(), ended[1].message.as_ptr());
    assert_eq!(code(&p.recvs[any]), None);
    // Nobody is there of whom it could come.
    is_gone(&recv_of(&mut p, R, from, first).unwrap_err());
    // What another sends is met by the one that takes it from whoever has the name.
    p.s.restart(S);
    p.s.connect(S);
    p.run();
    let second = word(&p, S);
    let status = recv_of(&mut p, R, from, first).unwrap_err();
    assert_eq!((status.code, status.reason), (Code::Unavailable, Reason::PeerRestarted));
    let to = p.other(S);
    p.send(S, to, TAG, 16, Mode::Standard);
    p.run();
    assert_eq!(sent_by(&p, any), second);
    let waits = recv_of(&mut p, R, from, second).unwrap();
    p.s.cut();
    p.run();
    is_gone(&end_of(&mut p, R, waits).unwrap());
    // The same comes again.
    p.s.connect(R);
    p.run();
    p.only = second;
    let recv = p.recv(R, Wanted { from, ..ANY }, LARGE);
    let to = p.other(S);
    p.send(S, to, TAG, LARGE, Mode::Synchronous);
    p.run();
    assert_eq!(sent_by(&p, recv), second);
    p.finish();
}

/// Its peer is not there: that is what is asked for, however the connection ended.
#[test]
fn a_receive_of_one_incarnation_is_unavailable_however_its_connection_ended() {
    let mut p = Post::new(shm());
    let (from, first) = (p.other(R), word(&p, S));
    let bound = recv_of(&mut p, R, from, first).unwrap();
    let ch = p.s.call(R, |e, _| e.peer(from.index().unwrap()).unwrap().channels[0]);
    p.s.call(R, |e, fx| e.channel_down(fx, ch, Status::invalid("it broke the protocol")));
    p.run();
    let status = end_of(&mut p, R, bound).unwrap();
    is_gone(&status);
    assert!(status.message.contains("it broke the protocol"), "{status}");
}

#[test]
fn a_receive_of_one_incarnation_meets_what_that_one_has_said() {
    // A few lie in a row, more in queues.
    for before in [1, 40] {
        let mut p = Post::new(shm());
        let first = word(&p, S);
        let (from, to) = (p.other(R), p.other(S));
        for _ in 0..before {
            p.send(S, to, TAG, 8, Mode::Standard);
        }
        p.run();
        restart_and_connect(&mut p);
        let (second, to) = (word(&p, S), p.other(S));
        for _ in 0..2 {
            p.send(S, to, TAG, 16, Mode::Standard);
        }
        p.run();
        let exact = Wanted { from, comm: TAG.comm, tag: TAG.tag, mask: ALL };
        for wanted in [Wanted { from, ..ANY }, exact] {
            let id = p.s.call(R, |e, _| e.message_probe(&wanted, false)).unwrap().unwrap();
            assert_eq!(id.incarnation, first, "the first that has come lies before it");
            let memory = p.memory(R, 0, 64, "of the second");
            let of = (wanted, second);
            let begun =
                p.s.call(R, |e, fx| e.message_recv_of(fx, of, memory, None, OnMessage::Asked));
            let Receiving::Done(_, end) = begun.unwrap() else { panic!("it is here") };
            assert_eq!((end.incarnation, end.len), (second, 16));
        }
        // The dead one's are received after its end, as long as there are some.
        for _ in 0..before {
            let memory = p.memory(R, 0, 64, "of the first");
            let of = (exact, first);
            let begun =
                p.s.call(R, |e, fx| e.message_recv_of(fx, of, memory, None, OnMessage::Asked));
            let Receiving::Done(_, end) = begun.unwrap() else { panic!("it is here") };
            assert_eq!((end.incarnation, end.len), (first, 8));
        }
        let status = recv_of(&mut p, R, from, first).unwrap_err();
        assert_eq!(status.reason, Reason::PeerRestarted);
    }
}

#[test]
fn a_receive_of_one_that_was_never_connected_waits_for_who_comes() {
    for same in [true, false] {
        let mut p = Post::new(shm());
        let (from, of) = (p.other(R), word(&p, S));
        p.s.crash(R, false);
        p.run();
        p.s.restart(R);
        let bound = recv_of(&mut p, R, from, if same { of } else { of ^ 1 }).unwrap();
        p.s.connect(R);
        p.run();
        if same {
            assert!(p.s.call(R, |e, _| e.message_take_end(bound)).unwrap().is_none());
            let to = p.other(S);
            p.send(S, to, TAG, 8, Mode::Standard);
            p.run();
            let end = p.s.call(R, |e, _| e.message_take_end(bound)).unwrap().unwrap();
            assert!(end.result.is_ok() && end.incarnation == of);
        } else {
            let status = end_of(&mut p, R, bound).unwrap();
            assert_eq!((status.code, status.reason), (Code::Unavailable, Reason::PeerRestarted));
        }
    }
}

#[test]
fn a_receive_of_an_incarnation_names_its_peer() {
    let mut p = Post::new(shm());
    let own = word(&p, S);
    let status = recv_of(&mut p, S, Party::ANY, own).unwrap_err();
    assert_eq!(status.code, Code::InvalidArgument);
    assert!(status.message.contains("RDMA_PEER_ANY"), "{status}");
    // Its own is never gone.
    let status = recv_of(&mut p, S, Party::OWN, own ^ 1).unwrap_err();
    assert_eq!((status.code, status.reason), (Code::Unavailable, Reason::PeerRestarted));
    p.only = own;
    for len in [8, LARGE] {
        let recv = p.recv(S, Wanted { from: Party::OWN, ..ANY }, len);
        p.send(S, Party::OWN, TAG, len, Mode::Standard);
        p.run();
        assert_eq!(sent_by(&p, recv), own);
    }
    p.finish();
}
