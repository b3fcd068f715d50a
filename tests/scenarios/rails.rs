//! Transfers over two connections: a main one and its rail, which the last connection is. Either is lost in the middle, strangers
//! would be rails, and what is cancelled or lost touches nothing any more.

use rdma_transport::api::Protocol;
use rdma_transport::fabric::ProviderKind;
use rdma_transport::protocol::message::{Message, RailMessage, encode};
use rdma_transport::status::{Code, Reason, Status};

use super::common::Fault;
use super::kind::Kind;
use super::ops::*;
use super::script::{LARGE, R, S, Setup, ibverbs, shm};
use super::stage::Stage;

const GONE: End = Some((Code::Unavailable, Reason::PeerGone));

/// Stripes of 100 bytes over two connections.
pub fn two(setup: Setup) -> Setup {
    setup.settings(|s| {
        for sizes in s.sizes.iter_mut() {
            (sizes.max_rdma_per_request, sizes.min_striped_size) = (2, 100);
        }
    })
}

pub fn setups() -> [Setup; 6] {
    [
        two(shm()),
        two(ibverbs()),
        two(ibverbs().proxies()),
        two(shm().checksums()),
        two(ibverbs().cards(2)),
        two(shm().cards(3)),
    ]
}

/// Whether content moved on a connection.
pub fn moved(s: &Stage, conn: usize) -> bool {
    s.w.conns[conn].ends.iter().any(|e| e.mark > 0)
}

/// A tensor, and the receive of it: read, or written.
fn begin(s: &mut Stage, read: bool) -> (SendId, RecvId) {
    begin_of(s, read, K)
}

fn begin_of(s: &mut Stage, read: bool, what: Tell<'_>) -> (SendId, RecvId) {
    let into = if read { Into::Callback } else { Into::Given(LARGE) };
    let ids = (s.send(S, what, LARGE), s.recv(R, what, into));
    s.run();
    ids
}

fn ends(s: &Stage, ids: (SendId, RecvId)) -> (End, End) {
    (s.send_end(ids.0), s.recv_end(ids.1))
}

/// Whose READs or WRITEs they are, and what they are.
fn mover(read: bool) -> (usize, Kind) {
    if read { (R, Kind::Read) } else { (S, Kind::Write) }
}

/// Whichever end has dialled, and however content goes.
#[test]
fn content_goes_over_both() {
    for setup in setups() {
        for (dials, read) in [(R, true), (R, false), (S, true), (S, false)] {
            let mut s = setup.clone().stage();
            s.connect(dials);
            s.run();
            assert_eq!((s.rails(R), s.rails(S)), (1, 1));
            let ids = begin(&mut s, read);
            assert_eq!(ends(&s, ids), (OK, OK));
            let way = if read { Protocol::DirectGet } else { Protocol::DirectPut };
            assert_eq!(s.carried(ids.1), way);
            assert!(moved(&s, 0) && moved(&s, 1));
            s.finish();
        }
    }
}

/// Memory that lies in several regions, between the second devices: each stripe names the key of its region there.
#[test]
fn content_in_several_regions_goes_over_both_devices() {
    for read in [true, false] {
        let mut setup = two(ibverbs().cards(2));
        setup.max_region = 130;
        let mut s = setup.connected();
        let ids = begin(&mut s, read);
        assert_eq!(ends(&s, ids), (OK, OK), "{}", s.recv_text(ids.1));
        assert!(moved(&s, 0) && moved(&s, 1));
        s.finish();
    }
}

/// Where one end could not register its memory with the device of a rail, that rail is left out, and lives on.
#[test]
fn a_rail_to_a_device_that_lacks_the_memory_is_left_out() {
    for (read, lacks) in [(true, R), (true, S), (false, R), (false, S)] {
        let mut s = two(ibverbs().cards(2)).connected();
        s.w.fate.failing.insert((lacks, Fault::Card));
        let ids = begin(&mut s, read);
        assert_eq!(ends(&s, ids), (OK, OK), "{}", s.recv_text(ids.1));
        assert!(moved(&s, 0) && !moved(&s, 1));
        s.w.fate.failing.clear();
        let next = begin_of(&mut s, read, Tell { key: "k2", ..K });
        assert_eq!(ends(&s, next), (OK, OK));
        assert!(moved(&s, 1));
        s.finish();
    }
}

#[test]
fn short_content_goes_over_the_main_one() {
    let mut s = two(shm())
        .settings(|s| s.sizes.iter_mut().for_each(|s| s.min_striped_size = LARGE + 1))
        .connected();
    let ids = begin(&mut s, true);
    assert_eq!(ends(&s, ids), (OK, OK));
    assert!(moved(&s, 0) && !moved(&s, 1));
    s.finish();
}

#[test]
fn no_notice_before_the_end_of_each_stripe() {
    for setup in setups() {
        let mut s = setup.connected();
        s.hold(S, Kind::Done);
        let ids = begin(&mut s, false);
        assert_eq!(ends(&s, ids), (None, None));
        assert_eq!((s.count(S, Kind::ContentDone), s.stale(R)), (0, 0));
        s.let_all_go();
        assert_eq!(ends(&s, ids), (OK, OK));
        s.finish();
    }
}

#[test]
fn no_get_done_before_the_end_of_each_stripe() {
    let mut s = two(shm()).connected();
    s.hold(R, Kind::Done);
    let ids = begin(&mut s, true);
    assert_eq!((ends(&s, ids), s.count(R, Kind::GetDone)), ((None, None), 0));
    s.let_all_go();
    assert_eq!(ends(&s, ids), (OK, OK));
    s.finish();
}

/// Its stripes go over the main connection; the transfer ends well, and so does the next.
#[test]
fn rail_lost_in_a_transfer() {
    for setup in setups() {
        for read in [true, false] {
            for loser in [Some(R), Some(S), None] {
                let mut s = setup.clone().connected();
                s.w.fate.part = Some(30);
                let (node, kind) = mover(read);
                s.hold(node, kind);
                let ids = begin(&mut s, read);
                s.step(node);
                match loser {
                    Some(node) => s.lose(node),
                    None => s.cut(),
                }
                assert_eq!(ends(&s, ids), (None, None));
                s.let_all_go();
                assert_eq!(ends(&s, ids), (OK, OK), "{}", s.recv_text(ids.1));
                assert_eq!((s.rails(R), s.rails(S)), (0, 0));
                s.finish();
            }
        }
    }
}

/// What it had under way could still be written: until the peer has closed its end, too, nothing of that is written anew.
#[test]
fn what_a_lost_rail_was_to_write_waits_for_the_other_end() {
    let mut s = two(shm()).connected();
    s.hold(S, Kind::Write);
    let ids = begin(&mut s, false);
    s.hold(R, Kind::RailEnd);
    s.cut();
    s.let_go(S, Kind::Write);
    assert_eq!(ends(&s, ids), (None, None));
    s.let_go(R, Kind::RailEnd);
    assert_eq!(ends(&s, ids), (OK, OK));
    s.finish();
}

#[test]
fn rail_lost_before_it_has_joined() {
    for kind in [Kind::RailAdd, Kind::RailJoin, Kind::RailJoined] {
        for loser in [R, S] {
            let mut s = two(shm()).stage();
            let node = if kind == Kind::RailJoined { S } else { R };
            s.hold(node, kind);
            s.connect(R);
            s.run();
            s.lose(loser);
            s.let_all_go();
            s.pass(6_000);
            assert_eq!((s.rails(R), s.rails(S)), (0, 0), "{kind:?}");
            let ids = begin(&mut s, true);
            assert_eq!(ends(&s, ids), (OK, OK));
            s.finish();
        }
    }
}

#[test]
fn main_connection_lost_in_a_transfer() {
    for setup in setups() {
        for read in [true, false] {
            for loser in [R, S] {
                let mut s = setup.clone().connected();
                let (node, kind) = mover(read);
                s.hold(node, kind);
                let ids = begin(&mut s, read);
                let side = s.side(0, loser);
                s.w.kill(0, side, Status::gone("the scripted connection went down"));
                s.poll(loser);
                s.let_all_go();
                assert_eq!(ends(&s, ids), (GONE, GONE));
                assert_eq!((s.rails(R), s.rails(S)), (0, 0));
                s.finish();
            }
        }
    }
}

/// The peer has heard all of the rail and writes by it, and this side has not heard that: its main connection ends, and another one
/// goes on. The rail ends before the memory that is written to is anybody's.
#[test]
fn main_connection_lost_whose_rail_only_the_peer_knows_to_have_joined() {
    let mut s = two(ibverbs()).stage();
    s.hold(S, Kind::RailJoined);
    s.connect(R);
    s.run();
    assert_eq!((s.rails(R), s.rails(S)), (0, 1));
    s.hold(S, Kind::Write);
    let ids = begin(&mut s, false);
    s.hold(R, Kind::Dial);
    s.connect(R);
    s.run();
    let to_write = |op: &super::common::net::Op| matches!(op, super::common::net::Op::Write { .. });
    assert!(s.w.conns[1].ends[1].out.iter().any(to_write), "nothing goes by the rail");
    s.stalled[S] = true;
    let side = s.side(0, R);
    s.w.kill(0, side, Status::gone("the scripted connection went down"));
    s.poll(R);
    s.let_go(S, Kind::Write);
    s.stalled[S] = false;
    s.let_all_go();
    assert_eq!(ends(&s, ids), (GONE, GONE));
    s.finish();
}

/// At once with windows, otherwise when nothing touches the memory any more; and with the rail lost meanwhile.
#[test]
fn cancel_while_it_is_striped() {
    for setup in setups() {
        for read in [true, false] {
            for lost in [false, true] {
                let mut s = setup.clone().connected();
                let (node, kind) = mover(read);
                s.hold(node, kind);
                let ids = begin(&mut s, read);
                s.cancel(ids.1).unwrap();
                s.run();
                if lost {
                    s.cut();
                }
                s.let_all_go();
                assert!(s.recv_end(ids.1).is_some() && s.recv_end(ids.1) != OK);
                assert!(s.send_end(ids.0).is_some());
                s.finish();
            }
        }
    }
}

#[test]
fn reclaim_of_the_source_while_it_is_striped() {
    for setup in [two(shm()), two(ibverbs())] {
        let mut s = setup.connected();
        s.hold(S, Kind::Write);
        let ids = begin(&mut s, false);
        s.shut_down(R);
        s.let_all_go();
        assert!(s.send_end(ids.0).is_some() && s.recv_end(ids.1).is_some());
        s.finish();
    }
}

#[test]
fn a_side_that_wants_none_has_none() {
    for none in [R, S] {
        let mut setup = two(shm());
        setup.settings[none].sizes.iter_mut().for_each(|s| s.max_rdma_per_request = 1);
        let mut s = setup.connected();
        s.pass(6_000);
        assert_eq!((s.rails(R), s.rails(S)), (0, 0));
        let ids = begin(&mut s, true);
        assert_eq!(ends(&s, ids), (OK, OK));
        s.finish();
    }
}

fn bytes(m: RailMessage) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&Message::Rail(m), &mut out);
    out
}

/// A stranger with the peer's name, who does not know what was said on the main connection.
#[test]
fn a_stranger_is_no_rail() {
    let mut setup = two(shm());
    setup.settings[R].sizes.iter_mut().for_each(|s| s.max_rdma_per_request = 1);
    let mut s = setup.connected();
    s.stranger_rail(S);
    s.inject(R, bytes(RailMessage::Join { nonce: [9; 16] }));
    let ids = begin(&mut s, false);
    assert_eq!((ends(&s, ids), s.rails(S)), ((OK, OK), 0));
    let conn = s.conn();
    s.pass(6_000);
    assert_eq!(s.w.conns[conn].ends[1].life, super::common::net::Life::Ended);
    s.finish();
}

/// Nothing but its name and signs of life may come by a rail.
#[test]
fn a_rail_that_says_more_is_closed() {
    let mut s = two(shm()).connected();
    let conn = s.conn();
    s.inject(R, bytes(RailMessage::End { nonce: [9; 16] }));
    s.run();
    let side = s.side(conn, S);
    assert_eq!(s.w.conns[conn].ends[side].life, super::common::net::Life::Ended);
    let ids = begin(&mut s, true);
    assert_eq!((ends(&s, ids), s.rails(R)), ((OK, OK), 0));
    s.finish();
}

/// One that ends while the next is being dialled is not dialled again.
#[test]
fn rail_lost_while_the_next_is_dialled() {
    let mut setup = two(shm());
    setup.settings[R].sizes.iter_mut().for_each(|s| s.max_rdma_per_request = 3);
    let mut s = setup.stage();
    s.hold(S, Kind::RailJoined);
    s.connect(R);
    s.run();
    let first = s.conn();
    // On the main connection. The next is wanted, and not there yet.
    s.hold(R, Kind::Dial);
    s.step_on(first - 1, S);
    s.run();
    assert_eq!((s.rails(R), s.w.fate.rails.len(), s.conn()), (1, 1, first));
    for node in [R, S] {
        let side = s.side(first, node);
        s.w.kill(first, side, Status::gone("the scripted rail went down"));
        s.poll(node);
    }
    s.let_all_go();
    assert_eq!((s.rails(R), s.rails(S), s.conn()), (1, 1, first + 1));
    let ids = begin(&mut s, false);
    assert_eq!(ends(&s, ids), (OK, OK));
    s.finish();
}

/// Who has dialled a rail finds that it does not fit when the other end has joined it: that hears of it.
#[test]
fn a_rail_that_does_not_fit_who_dialled_it() {
    let mut s = two(shm()).stage();
    s.hold(R, Kind::Dial);
    s.connect(R);
    s.run();
    s.w.nodes[R].caps.provider = ProviderKind::Ibverbs;
    s.let_go(R, Kind::Dial);
    assert_eq!((s.rails(R), s.rails(S), s.count(R, Kind::RailEnd)), (0, 0, 1));
    s.w.nodes[R].caps.provider = ProviderKind::Shm;
    for read in [true, false] {
        let key = if read { "read" } else { "written" };
        let ids = begin_of(&mut s, read, Tell { key, ..K });
        assert_eq!(ends(&s, ids), (OK, OK));
    }
    s.finish();
}
