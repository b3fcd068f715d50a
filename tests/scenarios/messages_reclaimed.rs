//! Messages whose memory is taken back while their offer is out: the receiver hears of it, and nothing is left there.

use rdma_transport::api::Protocol;
use rdma_transport::engine::front::message::{Envelope, Memory, Mode};
use rdma_transport::engine::layout::LAYOUT;
use rdma_transport::status::Code;

use super::kind::Kind;
use super::messages::{ANY, Post, TAG, code, is_ok};
use super::script::{LARGE, R, S, Setup, ibverbs, shm};

/// Sends an offer, and takes its memory back at once.
fn offered_and_gone(p: &mut Post, device: u32, number: u64) -> usize {
    let to = p.other(S);
    let envelope = Envelope { comm: 0, tag: number };
    let send = p.send_from(S, to, envelope, (LARGE, device, true), Mode::Standard);
    p.run();
    assert_eq!(code(&p.sends[send]), None, "it waits for a receive");
    reclaim(p, send);
    assert_eq!(code(&p.sends[send]), Some(Code::FailedPrecondition));
    send
}

fn reclaim(p: &mut Post, send: usize) {
    p.reclaims = true;
    let Memory { addr, len, device } = first_of(p, send);
    assert!(p.s.reclaim(S, (addr, len, device), false), "nothing touches it");
    p.look();
}

/// Memory of the application that the message has, or the first piece of it.
fn first_of(p: &Post, send: usize) -> Memory {
    let mut first = None;
    Post::each(&p.sends[send], |piece| {
        if piece.len > 0 {
            first.get_or_insert(piece);
        }
    });
    let (whole, piece) = (p.sends[send].memory, first.unwrap());
    let device = if whole.device == LAYOUT { 0 } else { whole.device };
    Memory { addr: piece.addr, len: piece.len, device }
}

/// Every way to offer a message.
fn setups() -> [(Setup, u32); 8] {
    [
        (shm(), 0),
        (shm(), 1),
        (shm(), LAYOUT),
        (shm().no_reads(), 0),
        (shm().checksums(), 0),
        (shm().forced(Protocol::Pipeline), 0),
        (ibverbs(), 0),
        (ibverbs().proxies(), 0),
    ]
}

#[test]
fn an_offer_whose_memory_is_taken_back_meets_no_receive() {
    for (i, (setup, device)) in setups().into_iter().enumerate() {
        let mut p = Post::new(setup);
        for _ in 0..3 {
            offered_and_gone(&mut p, device, TAG.tag);
        }
        p.run();
        assert_eq!(p.probe(R, ANY, false), None, "setup {i}: a dead offer is there");
        let to = p.other(S);
        let send = p.send_from(S, to, TAG, (LARGE, device, true), Mode::Standard);
        let recv = p.recv(R, ANY, LARGE);
        p.run();
        assert_eq!(p.met(&p.recvs[recv]), Some(send), "setup {i}");
        p.finish();
    }
}

#[test]
fn an_offer_whose_memory_is_taken_back_is_gone_for_who_has_claimed_it() {
    for (setup, device) in setups() {
        let mut p = Post::new(setup);
        let to = p.other(S);
        let send = p.send_from(S, to, TAG, (LARGE, device, true), Mode::Standard);
        p.run();
        let found = p.probe(R, ANY, true).unwrap();
        p.claims.clear();
        reclaim(&mut p, send);
        p.run();
        let recv = p.recv_into(R, ANY, LARGE, 0, Some(found.message));
        p.run();
        assert_eq!(code(&p.recvs[recv]), Some(Code::Cancelled));
        p.finish();
    }
}

/// The receive met the offer before it heard that it is gone. (Where there are no windows a READ costs the connection then.)
#[test]
fn an_offer_whose_memory_is_taken_back_as_it_is_met_fails_its_receive() {
    for (setup, device) in setups().into_iter().filter(|(setup, _)| setup.caps[0].windows) {
        let mut p = Post::new(setup);
        p.s.hold(S, Kind::MsgWithdraw);
        offered_and_gone(&mut p, device, TAG.tag);
        let recv = p.recv(R, ANY, LARGE);
        p.s.let_all_go();
        p.run();
        let ended = code(&p.recvs[recv]);
        assert!(ended.is_some() && !is_ok(&p.recvs[recv]), "{ended:?}");
        p.finish();
    }
}

#[test]
fn an_offer_that_is_being_taken_back_may_lose_its_memory() {
    let mut p = Post::new(shm());
    let to = p.other(S);
    let send = p.send(S, to, TAG, LARGE, Mode::Standard);
    p.run();
    p.s.hold(R, Kind::MsgWithdrawn);
    p.cancel(S, p.sends[send].id).unwrap();
    p.run();
    assert_eq!(code(&p.sends[send]), None, "the receiver has not said that it is gone");
    reclaim(&mut p, send);
    assert_eq!(code(&p.sends[send]), Some(Code::Cancelled), "what came first counts");
    p.s.let_go(R, Kind::MsgWithdrawn);
    p.run();
    assert_eq!(p.probe(R, ANY, false), None);
    p.finish();
}

/// They wait behind another. Of one the call has copied what is to go with its offer: the rest still lies where it was. Of the other all,
/// but should there be no room for that it is offered from where it lies.
#[test]
fn messages_that_wait_and_are_copied_end_with_their_memory() {
    let mut p = Post::new(shm().forced(Protocol::Pipeline));
    let to = p.other(S);
    p.s.hold(S, Kind::Copy);
    let before = p.send_from(S, to, TAG, (8, 0, false), Mode::Standard);
    p.run();
    assert_eq!(p.s.awaited(S), [Kind::Copy]);
    let waits = p.send(S, to, TAG, LARGE, Mode::Standard);
    let whole = p.send(S, to, TAG, 8, Mode::Standard);
    reclaim(&mut p, waits);
    assert_eq!(code(&p.sends[waits]), Some(Code::FailedPrecondition));
    reclaim(&mut p, whole);
    assert_eq!(code(&p.sends[whole]), Some(Code::FailedPrecondition));
    p.s.let_go(S, Kind::Copy);
    p.run();
    assert!(is_ok(&p.sends[before]));
    p.finish();
}

#[test]
fn many_offers_come_and_go_with_their_memory() {
    let mut p = Post::new(shm());
    for i in 0..300 {
        offered_and_gone(&mut p, 0, i);
    }
    p.run();
    assert_eq!(p.probe(R, ANY, false), None);
    p.finish();
}

/// Ending the one that waits first lets the next go out: it ends as well, rather than be offered from memory that is gone.
#[test]
fn messages_that_wait_behind_each_other_end_with_their_memory() {
    for sends in [2, 6, 40] {
        let mut p = Post::new(Setup { sq_depth: 1, ..shm() });
        let to = p.other(S);
        let sends: Vec<_> = (0..sends)
            .map(|_| p.send_from(S, to, TAG, (LARGE, 0, false), Mode::Standard))
            .collect();
        p.reclaims = true;
        p.s.reclaim(S, (0, u64::MAX, 0), false);
        p.run();
        for send in sends {
            assert_eq!(code(&p.sends[send]), Some(Code::FailedPrecondition));
        }
        p.finish();
    }
}
