//! A connection that ends at the sender alone: what it sent by it comes late, if at all, and nothing of it behind what it sent by another one.

use rdma_transport::engine::front::message::{Envelope, Mode};

use super::common::net::Life;
use super::kind::Kind;
use super::messages::{ANY, Post, TAG, is_ok};
use super::script::{LARGE, R, S, Setup, ibverbs, shm};

const FEW: usize = 3;

/// As many messages, which stay on the wire: their sends have ended.
fn send_few(p: &mut Post, len: u64) {
    let to = p.other(S);
    for _ in 0..FEW {
        let send = p.send(S, to, TAG, len, Mode::Standard);
        p.run();
        assert!(len == LARGE || is_ok(&p.sends[send]));
    }
}

/// The sender alone finds that the last connection is lost.
fn lose_late(p: &mut Post) {
    let conn = p.s.conn();
    p.s.lose_late(conn, S);
    p.run();
}

/// All that a node has posted on this connection arrives.
fn arrives(p: &mut Post, conn: usize, node: usize) {
    for _ in 0..1000 {
        let side = p.s.side(conn, node);
        if p.s.w.conns[conn].ends[side].out.is_empty() {
            return;
        }
        p.s.step_on(conn, node);
    }
    panic!("it goes on for ever");
}

/// The messages that receives meet, in order, until there is none.
fn received(p: &mut Post) -> Vec<usize> {
    let mut met = Vec::new();
    while p.probe(R, ANY, false).is_some() {
        let recv = p.recv(R, ANY, LARGE);
        p.run();
        met.push(p.met(&p.recvs[recv]).unwrap());
    }
    met
}

fn each() -> [Setup; 3] {
    [shm(), ibverbs(), shm().checksums()]
}

#[test]
fn what_was_sent_before_comes_not_behind_what_is_sent_by_a_new_connection() {
    for (setup, len) in each().into_iter().flat_map(|s| [(s.clone(), 8), (s, LARGE)]) {
        let mut p = Post::new(setup);
        [Kind::Msg, Kind::MsgOffer].into_iter().for_each(|kind| p.s.hold(S, kind));
        send_few(&mut p, len);
        let first = p.s.conn();
        lose_late(&mut p);
        send_few(&mut p, len);
        let second = p.s.conn();
        assert_ne!(first, second);
        arrives(&mut p, second, S);
        p.s.let_all_go();
        assert_eq!(received(&mut p), [3, 4, 5]);
        p.finish();
    }
}

/// What came in time stays.
#[test]
fn what_had_arrived_before_is_received_first() {
    for setup in each() {
        let mut p = Post::new(setup);
        send_few(&mut p, 8);
        p.s.hold(S, Kind::Msg);
        send_few(&mut p, 8);
        lose_late(&mut p);
        send_few(&mut p, 8);
        let second = p.s.conn();
        arrives(&mut p, second, S);
        p.s.let_all_go();
        assert_eq!(received(&mut p), [0, 1, 2, 6, 7, 8]);
        p.finish();
    }
}

/// Both had dialled: the other connection is there already, and the receiver uses both.
#[test]
fn the_other_of_two_connections_takes_over() {
    for (setup, lost) in each().into_iter().flat_map(|s| [(s.clone(), 0), (s, 1)]) {
        let mut p = Post::new(setup);
        p.s.connect(1);
        p.run();
        let back = p.other(R);
        let envelope = Envelope { comm: 1, tag: 1 };
        p.send(R, back, envelope, 8, Mode::Standard);
        p.s.hold(S, Kind::Msg);
        send_few(&mut p, 8);
        // Whether it is the one that carries them or not.
        let side = p.s.side(lost, S);
        let carries = !p.s.w.conns[lost].ends[side].out.is_empty();
        p.s.lose_late(lost, S);
        p.run();
        send_few(&mut p, 8);
        arrives(&mut p, 1 - lost, S);
        p.s.let_all_go();
        let all: &[usize] = if carries { &[4, 5, 6] } else { &[1, 2, 3, 4, 5, 6] };
        assert_eq!(received(&mut p), all);
        p.finish();
    }
}

/// Both connections are ended by the application: no other takes over, and what was sent before arrives.
#[test]
fn what_was_sent_before_a_disconnect_of_two_connections_arrives() {
    for (setup, from) in each().into_iter().flat_map(|s| [(s.clone(), R), (s, S)]) {
        let mut p = Post::new(setup);
        p.s.connect(from);
        p.run();
        p.s.hold(S, Kind::Msg);
        send_few(&mut p, 8);
        p.s.disconnect(S);
        p.s.run();
        p.s.let_all_go();
        assert_eq!(received(&mut p), [0, 1, 2]);
        p.finish();
    }
}

/// The receiver alone has lost its connection, has made another and asked by it: what it is answered goes by that one, and not where nobody
/// hears it.
#[test]
fn an_answer_goes_by_the_connection_that_its_asker_made_anew() {
    for (setup, len) in each().into_iter().flat_map(|s| [(s.clone(), 8), (s, LARGE)]) {
        let mut p = Post::new(setup);
        send_few(&mut p, 8);
        let first = p.s.conn();
        p.s.hold(R, Kind::Fin);
        p.s.lose_late(first, R);
        p.run();
        let back = p.other(R);
        let asked = p.send(R, back, Envelope { comm: 1, tag: 1 }, 8, Mode::Standard);
        p.run();
        assert_ne!(first, p.s.conn());
        assert!(is_ok(&p.sends[asked]));
        send_few(&mut p, len);
        assert_eq!(received(&mut p), [0, 1, 2, 4, 5, 6]);
        // The older one has ended at both ends.
        let side = p.s.side(first, S);
        assert_eq!(p.s.w.conns[first].ends[side].life, Life::Ended);
        p.finish();
    }
}

/// Both had dialled, and one end alone has lost one of the two: the other end hears of it by the one that is left.
#[test]
fn of_two_connections_the_one_that_the_receiver_has_lost_carries_nothing_more() {
    for (setup, lost) in each().into_iter().flat_map(|s| [(s.clone(), 0), (s, 1)]) {
        let mut p = Post::new(setup);
        p.s.connect(1);
        p.run();
        send_few(&mut p, 8);
        assert_eq!(received(&mut p), [0, 1, 2]);
        p.s.hold(R, Kind::Fin);
        p.s.lose_late(lost, R);
        p.run();
        send_few(&mut p, 8);
        assert_eq!(received(&mut p), [3, 4, 5]);
        p.finish();
    }
}
