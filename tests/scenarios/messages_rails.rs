//! Messages over two connections, of which one is lost in the middle: `rails` has the same of tensors. Seeded walks, too, in
//! `messages_walks`.

use rdma_transport::engine::front::message::Mode;
use rdma_transport::status::{Code, Status};

use super::kind::Kind;
use super::messages::{ANY, Post, TAG, code};
use super::rails::{moved, setups};
use super::script::{LARGE, R, S, Setup};

/// How content goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Get,
    Put,
}

/// Each setup and way. Content that has its checksum, or has to be copied first, is not read as it was offered, but written.
fn each() -> Vec<(Setup, Way)> {
    let get = |s: &Setup| !s.settings[0].checksum && !s.proxies;
    let gets = setups().into_iter().filter(get).map(|s| (s, Way::Get));
    gets.chain(setups().map(|s| (s.no_reads(), Way::Put))).collect()
}

/// A message whose content is about to move, in parts; its send and its receive.
fn held(setup: Setup, way: Way) -> (Post, usize, usize) {
    let mut p = Post::new(setup);
    assert_eq!((p.s.rails(R), p.s.rails(S)), (1, 1));
    p.s.w.fate.part = Some(30);
    let to = p.other(S);
    match way {
        Way::Get => p.s.hold(R, Kind::Read),
        Way::Put => p.s.hold(S, Kind::Write),
    }
    let recv = p.recv(R, ANY, LARGE);
    let send = p.send(S, to, TAG, LARGE, Mode::Standard);
    p.run();
    let (mover, kind) = mover(way);
    assert_eq!(p.s.wire(mover)[0], kind, "it goes by the rail, too");
    p.s.step(mover);
    p.look();
    assert_eq!(codes(&p, send, recv), [None, None]);
    (p, send, recv)
}

/// Whose READs or WRITEs they are.
fn mover(way: Way) -> (usize, Kind) {
    if way == Way::Get { (R, Kind::Read) } else { (S, Kind::Write) }
}

fn codes(p: &Post, send: usize, recv: usize) -> [Option<Code>; 2] {
    [code(&p.sends[send]), code(&p.recvs[recv])]
}

#[test]
fn content_of_a_message_goes_over_both() {
    for (setup, way) in each() {
        let (mut p, send, recv) = held(setup, way);
        p.s.let_all_go();
        p.look();
        assert_eq!(codes(&p, send, recv), [Some(Code::Ok); 2], "{way:?}");
        assert!(moved(&p.s, 0) && moved(&p.s, 1), "{way:?}");
        p.finish();
    }
}

/// Its stripes go over the main connection; the message is whole, and so is the next.
#[test]
fn a_rail_is_lost_in_a_message() {
    for (setup, way) in each() {
        for loser in [Some(R), Some(S), None] {
            let (mut p, send, recv) = held(setup.clone(), way);
            match loser {
                Some(node) => p.s.lose(node),
                None => p.s.cut(),
            }
            p.look();
            assert_eq!(codes(&p, send, recv), [None, None]);
            p.s.let_all_go();
            p.look();
            assert_eq!(codes(&p, send, recv), [Some(Code::Ok); 2], "{way:?}, {loser:?}");
            assert_eq!((p.s.rails(R), p.s.rails(S)), (0, 0));
            let to = p.other(S);
            let (recv, send) = (p.recv(R, ANY, LARGE), p.send(S, to, TAG, LARGE, Mode::Standard));
            p.run();
            assert_eq!(codes(&p, send, recv), [Some(Code::Ok); 2]);
            p.finish();
        }
    }
}

#[test]
fn the_main_connection_is_lost_in_a_striped_message() {
    for (setup, way) in each() {
        for loser in [R, S] {
            let (mut p, send, recv) = held(setup.clone(), way);
            let side = p.s.side(0, loser);
            p.s.w.kill(0, side, Status::gone("the scripted connection went down"));
            p.s.poll(loser);
            p.s.let_all_go();
            p.look();
            assert_eq!(codes(&p, send, recv), [Some(Code::Unavailable); 2], "{way:?}, {loser}");
            p.finish();
        }
    }
}

/// And the rail is lost meanwhile, or not: nothing is touched behind the end.
#[test]
fn a_striped_message_is_given_up() {
    for (setup, way) in each() {
        for (node, lost) in [(R, false), (R, true), (S, false), (S, true)] {
            let (mut p, send, recv) = held(setup.clone(), way);
            let id = if node == R { p.recvs[recv].id } else { p.sends[send].id };
            p.give_up(node, id).unwrap();
            p.run();
            if lost {
                p.s.cut();
            }
            p.s.let_all_go();
            p.look();
            let [sent, received] = codes(&p, send, recv);
            let want = if node == R { Code::Cancelled } else { Code::Ok };
            assert_eq!(received, Some(want), "{way:?}, node {node}, lost: {lost}");
            assert!(sent.is_some() && (node == R || sent == Some(Code::Ok)), "{sent:?}");
            p.finish();
        }
    }
}

#[test]
fn the_peer_crashes_in_a_striped_message() {
    for (setup, way) in each() {
        for node in [R, S] {
            let (mut p, send, recv) = held(setup.clone(), way);
            p.crash(node, false);
            p.s.let_all_go();
            p.look();
            assert_eq!(codes(&p, send, recv), [Some(Code::Unavailable); 2], "{way:?}, {node}");
            p.has_ended_all(1 - node);
            p.finish();
        }
    }
}
