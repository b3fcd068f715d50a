//! Two ends that dialled each other at once: each tells of itself by its own connection, so the pair lives on two.

use rdma_transport::engine::front::pair::{PairState, Part, Way};
use rdma_transport::status::{Code, Reason};

use super::kind::Kind;
use super::pairs::Post;
use super::script::{LARGE, R, S, Setup, ibverbs, shm};

/// What such a pair is made of.
struct Crossed {
    post: Post,
    /// The connection that R tells by, opens its slots on, and is written to by; and S's.
    to_r: usize,
    to_s: usize,
    /// S's buffer to send from, R's to be written to; of slot 5.
    from: usize,
    to: usize,
}

fn crossed(setup: Setup) -> Crossed {
    let mut post = Post::unconnected(setup);
    let two = post.pair();
    for node in [R, S] {
        post.s.hold(node, Kind::Dial);
        post.connect(two, node).unwrap();
    }
    let [to_r, to_s] = post.s.cross();
    post.s.let_all_go();
    let to = post.buffer(two, R, Way::Recv, 5).unwrap();
    let from = post.buffer(two, S, Way::Send, 5).unwrap();
    post.s.run();
    Crossed { post, to_r, to_s, from, to }
}

/// The other end closes behind its last write, and its own connection is the first that is found to have ended: what it wrote by
/// the other one is heard of, and then that it closed.
#[test]
fn the_last_write_is_heard_where_the_other_connection_ends_first() {
    for setup in [shm, ibverbs] {
        let Crossed { mut post, to_r: _, to_s, from, to } = crossed(setup());
        post.s.hold(S, Kind::Imm);
        post.send(from, 0, LARGE).unwrap();
        post.twos[0].lossy = true;
        let id = post.twos[0].ids[S];
        post.s.call(S, |e, fx| e.pair_close(fx, id)).unwrap();
        (post.twos[0].closed[S], post.bufs[from].gone) = (true, true);
        post.s.cut_one(to_s);
        let waits = post.bufs[to].id;
        assert_eq!(post.s.call(R, |e, _| e.buffer_take(waits, Way::Recv)).unwrap(), None);
        post.s.let_all_go();
        post.look();
        assert_eq!(post.bufs[to].arrivals, 1);
        let PairState::Broken(why) = post.state(0, R) else { panic!("it is not broken") };
        assert_eq!((why.code, why.reason), (Code::Unavailable, Reason::RemoteError), "{why}");
        let addr = post.bufs[from].addr;
        post.s.w.mem.free(addr, "its pair was closed");
        post.finish();
    }
}

/// Meanwhile nothing can be sent: what waited ends, what is new is refused, for the reason for which that connection ended.
#[test]
fn what_would_go_by_the_connection_that_ended_fails_at_once() {
    let Crossed { mut post, to_r, to_s, from: _, to } = crossed(shm());
    let back = post.buffer(0, R, Way::Send, 6).unwrap();
    post.send(back, 0, LARGE).unwrap();
    post.twos[0].lossy = true;
    post.s.stalled[S] = true;
    post.s.lose_of(to_s, R);
    post.look();
    assert_eq!(post.bufs[back].ended, [Err(Code::Unavailable)]);
    let (id, part) = (post.bufs[back].id, Part { offset: 0, len: 8 });
    let refused = post.s.call(R, |e, fx| e.buffer_send(fx, id, part, 0, &[])).unwrap_err();
    assert_eq!((refused.code, refused.reason), (Code::Unavailable, Reason::PeerGone), "{refused}");
    let opened = post.buffer(0, R, Way::Recv, 7).unwrap();
    assert!(matches!(post.state(0, R), PairState::Connected));
    // With the other one all is over.
    post.s.lose_of(to_r, R);
    let PairState::Broken(why) = post.state(0, R) else { panic!("it is not broken") };
    assert_eq!((why.code, why.reason), (Code::Unavailable, Reason::PeerGone), "{why}");
    for buffer in [to, opened] {
        let id = post.bufs[buffer].id;
        assert!(post.s.call(R, |e, _| e.buffer_take(id, Way::Recv)).is_err());
    }
    post.s.stalled[S] = false;
    post.s.let_all_go();
    assert!(matches!(post.state(0, S), PairState::Broken(_)));
    post.finish();
}

/// Where only one connection ended, both ends of the pair end all the same: whoever cannot be written to any more says so by the other.
#[test]
fn one_connection_of_two_ends_the_pair_at_both_ends() {
    for setup in [shm, ibverbs] {
        for first in [R, S] {
            let Crossed { mut post, to_r, to_s, .. } = crossed(setup());
            post.twos[0].lossy = true;
            post.s.lose_of(to_s, first);
            post.s.lose_of(to_s, 1 - first);
            post.s.run();
            for node in [R, S] {
                let PairState::Broken(why) = post.state(0, node) else { panic!("{node} lives") };
                assert_eq!(why.code, Code::Unavailable, "{why}");
            }
            let ends = &post.s.w.conns[to_r].ends;
            assert!(ends.iter().all(|end| end.ch.is_some()), "the other connection stays");
            post.finish();
        }
    }
}
