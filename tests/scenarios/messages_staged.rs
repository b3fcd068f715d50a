//! Tagged messages whose content is copied before they are offered. Each by name.

use rdma_transport::engine::Fx;
use rdma_transport::engine::front::message::{
    Mode, OnMessage, Outgoing, Party, Receiving, Sending, Wanted,
};
use rdma_transport::protocol::message::{Envelope, Extra};
use rdma_transport::status::Code;

use super::common::memory::content;
use super::messages::{Post, TAG};
use super::script::{LARGE, R, S, shm};

fn end(p: &mut Post, node: usize, id: u64) -> Option<Code> {
    let end = p.s.call(node, |e, _| e.message_take_end(id)).unwrap()?;
    Some(end.result.map_or_else(|s| s.code, |()| Code::Ok))
}

/// Begins to send `LARGE` bytes as the manager does, if they are staged: then the application's memory is overwritten at once.
fn staged(p: &mut Post, tag: u64) -> Option<u64> {
    let to = p.other(S);
    let memory = p.memory(S, 0, LARGE, "what is copied");
    let (extra, mode, done) = (&Extra::NONE, Mode::Standard, OnMessage::Asked);
    let envelope = Envelope { comm: 0, tag };
    let mut out = Outgoing {
        to,
        incarnation: 0,
        envelope,
        memory,
        content: &[],
        extra,
        mode,
        timeout: None,
        done,
        trial: None,
    };
    let buffer = p.s.call(S, |e, fx| e.message_stage(fx, &mut out))?;
    let bytes = content(tag as usize, LARGE);
    p.s.call(S, |_, fx| fx.copy_in(&buffer, &bytes));
    let who = p.s.w.who(S);
    p.s.w.mem.write(who, false, memory.addr, &[0xEE; LARGE as usize], "the application");
    match p.s.call(S, |e, fx| e.message_send_staged(fx, out, buffer)) {
        Ok(Sending::Begun(id)) => Some(id),
        other => panic!("it has to last: {other:?}"),
    }
}

/// Receives it, and what came is what was copied.
fn take_staged(p: &mut Post, tag: u64, send: u64) {
    let memory = p.memory(R, 0, LARGE, "where it goes");
    let wanted = Wanted { from: Party::ANY, comm: 0, tag, mask: u64::MAX };
    let begun = p.s.call(R, |e, fx| e.message_recv(fx, wanted, memory, None, OnMessage::Asked));
    let Ok(Receiving::Begun(id)) = begun else { panic!("it has to come") };
    p.run();
    assert_eq!(end(p, R, id), Some(Code::Ok));
    assert_eq!(end(p, S, send), Some(Code::Ok));
    let came = p.s.w.mem.read(p.s.w.who(R), false, memory.addr, LARGE, "what came");
    assert_eq!(came, content(tag as usize, LARGE));
}

#[test]
fn staged_content_is_what_it_was_at_the_call_and_free_at_the_end() {
    let mut p = Post::new(shm().staged());
    let send = staged(&mut p, 1).unwrap();
    p.run();
    take_staged(&mut p, 1, send);
    // Taken back before anybody asked for it.
    let send = staged(&mut p, 2).unwrap();
    p.run();
    p.s.call(S, |e, fx| e.message_cancel(fx, send)).unwrap();
    p.run();
    assert_eq!(end(&mut p, S, send), Some(Code::Cancelled));
    p.finish();
}

#[test]
fn staged_content_waits_for_room_among_the_others() {
    let mut p = Post::new(shm().staged());
    let sends: Vec<u64> = (0..400).map(|tag| staged(&mut p, tag).unwrap()).collect();
    p.run();
    for (tag, &send) in sends.iter().enumerate() {
        take_staged(&mut p, tag as u64, send);
    }
    p.finish();
}

#[test]
fn staged_content_of_a_call_that_fails_is_free() {
    let mut p = Post::new(shm().staged());
    let memory = p.memory(S, 0, LARGE, "what is copied");
    let (extra, mode, done) = (&Extra::NONE, Mode::Standard, OnMessage::Asked);
    let to = p.other(S);
    let (timeout, trial) = (None, None);
    let mut out = Outgoing {
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
    let buffer = p.s.call(S, |e, fx| e.message_stage(fx, &mut out)).unwrap();
    let mut out = Outgoing { to: Party::peer(99), ..out };
    assert!(p.s.call(S, |e, fx| e.message_stage(fx, &mut out)).is_none(), "nobody of that number");
    let sent = p.s.call(S, |e, fx| e.message_send_staged(fx, out, buffer));
    assert_eq!(sent.unwrap_err().code, Code::NotFound);
    p.finish();
}
