//! Pairs and buffers: scenarios by name.

use std::time::Duration;

use rdma_transport::engine::front::pair::{PairState, Part, Slot, Way};
use rdma_transport::limits::PAIR_SENDS;
use rdma_transport::status::{Code, Reason, Status};

use super::kind::Kind;
use super::pairs::{PLACES, Post, two_of};
use super::peers::used;
use super::script::{LARGE, R, S, ibverbs, shm};

/// In the steady state a send is its writes and nothing else.
#[test]
fn a_slot_needs_no_message() {
    for setup in [shm, ibverbs] {
        let (mut post, from, to) = two_of(setup());
        post.s.run();
        let before = post.s.arrived.len();
        for i in 0..10 {
            post.send(from, i % PLACES, LARGE).unwrap();
            post.s.run();
            post.look();
            post.check(to);
        }
        let messages = post.s.arrived[before..].iter().filter(|(_, kind, _)| *kind != Kind::Pong);
        assert_eq!(messages.count(), 0, "messages beside the writes");
        assert_eq!((post.bufs[to].arrivals, post.bufs[from].ended.len()), (10, 10));
        post.finish();
    }
}

/// On a provider without windows the memory of a receive buffer is the application's when the other end has said so.
#[test]
fn a_buffer_without_windows_waits_for_the_other_end() {
    let (mut post, _, to) = two_of(ibverbs());
    post.s.run();
    post.s.hold(S, Kind::SlotClosed);
    let (node, id, addr) = (post.bufs[to].node, post.bufs[to].id, post.bufs[to].addr);
    let released = post.s.call(node, |e, fx| e.buffer_release(fx, id)).unwrap();
    post.s.run();
    assert!(!post.s.call(node, |e, _| e.buffer_is_free(&released)), "it may be written to");
    post.s.let_go(S, Kind::SlotClosed);
    assert!(post.s.call(node, |e, _| e.buffer_is_free(&released)));
    post.bufs[to].gone = true;
    post.twos[0].lossy = true;
    post.s.w.mem.free(addr, "its buffer was destroyed");
    post.finish();
}

/// With windows at once, whatever the other end does.
#[test]
fn a_buffer_with_windows_waits_for_nobody() {
    let (mut post, from, to) = two_of(shm());
    post.s.run();
    post.s.hold(S, Kind::Imm);
    post.send(from, 0, LARGE).unwrap();
    post.destroy(to);
    let next = post.buffer(0, R, Way::Recv, 5).unwrap();
    post.s.let_all_go();
    post.look();
    assert_eq!(post.bufs[from].ended, [Err(Code::PermissionDenied)]);
    post.send(from, 1, LARGE).unwrap();
    post.s.run();
    post.look();
    assert_eq!((post.bufs[next].arrivals, post.bufs[from].ended.len()), (1, 2));
    post.finish();
}

/// A send whose slot never opens ends by its deadline, and the pair lives on.
#[test]
fn a_slot_that_never_opens() {
    let (mut post, _, _) = two_of(shm());
    let lonely = post.buffer(0, S, Way::Send, 9).unwrap();
    post.send(lonely, 0, 8).unwrap();
    post.s.pass(990);
    post.look();
    assert!(post.bufs[lonely].ended.is_empty());
    post.s.pass(20);
    post.look();
    assert_eq!(post.bufs[lonely].ended, [Err(Code::DeadlineExceeded)]);
    assert!(matches!(post.state(0, S), PairState::Connected));
    post.finish();
}

/// Nobody will dial again: who waits for the pair is told.
#[test]
fn a_pair_whose_peer_cannot_be_connected_for_good_ends() {
    let mut post = Post::new(shm());
    post.s.cut();
    post.s.hold(R, Kind::Dial);
    let two = post.pair();
    post.connect(two, R).unwrap();
    post.s.run();
    assert!(matches!(post.state(two, R), PairState::Connecting));
    post.s.refuse_dial(R, true);
    post.s.run();
    assert!(matches!(post.state(two, R), PairState::Connecting));
    post.s.refuse_dial(R, false);
    post.s.run();
    assert!(matches!(post.state(two, R), PairState::Broken(_)));
    post.twos[two].lossy = true;
    post.finish();
}

/// The loss of the connection ends the pair at both ends, with everything under way; another pair goes over the next one.
#[test]
fn lost_with_sends_under_way() {
    let (mut post, from, to) = two_of(shm());
    let waits = post.buffer(0, S, Way::Send, 9).unwrap();
    post.s.run();
    post.s.hold(S, Kind::Imm);
    post.send(from, 0, LARGE).unwrap();
    post.send(waits, 0, 8).unwrap();
    post.twos[0].lossy = true;
    post.s.cut();
    post.s.let_all_go();
    post.look();
    assert_eq!(post.bufs[from].ended, [Err(Code::Unavailable)]);
    assert_eq!(post.bufs[waits].ended, [Err(Code::Unavailable)]);
    for node in [R, S] {
        let PairState::Broken(why) = post.state(0, node) else { panic!("it is not broken") };
        assert_eq!((why.code, why.reason), (Code::Unavailable, Reason::PeerGone), "{why}");
    }
    let id = post.bufs[to].id;
    let taken = post.s.call(R, |e, _| e.buffer_take(id, Way::Recv));
    assert_eq!(taken.unwrap_err().code, Code::Unavailable);
    assert!(post.buffer(0, S, Way::Send, 1).is_err() && post.connect(0, S).is_err());
    let two = post.pair();
    post.connect(two, R).unwrap();
    post.connect(two, S).unwrap();
    post.s.run();
    assert!(matches!(post.state(two, R), PairState::Connected));
    post.finish();
}

/// One end is not connected yet when its connection ends, as where the other gave the handshake up that was over here: nothing
/// went over the pair, which takes the next connection.
#[test]
fn a_pair_that_was_not_connected_outlives_its_connection() {
    for setup in [shm, ibverbs] {
        let mut post = Post::new(setup());
        let two = post.pair();
        let to = post.buffer(two, R, Way::Recv, 5).unwrap();
        let from = post.buffer(two, S, Way::Send, 5).unwrap();
        post.connect(two, R).unwrap();
        post.send(from, 0, LARGE).unwrap();
        post.s.run();
        assert!(matches!(post.state(two, R), PairState::Connecting));
        post.s.cut();
        post.s.run();
        assert!(matches!(post.state(two, R), PairState::Connecting));
        post.connect(two, S).unwrap();
        post.s.run();
        for node in [R, S] {
            assert!(matches!(post.state(two, node), PairState::Connected));
        }
        post.look();
        assert_eq!((post.bufs[to].arrivals, post.bufs[from].ended.len()), (1, 1));
        post.finish();
    }
}

/// Who made the other end listened when it told its address: if nobody does, it has ended, also where it was never connected.
#[test]
fn a_pair_whose_other_end_has_ended_before_it_was_connected_ends() {
    let mut post = Post::unconnected(shm());
    let two = post.pair();
    post.s.hold(R, Kind::Dial);
    post.connect(two, R).unwrap();
    let waits = post.buffer(two, R, Way::Send, 5).unwrap();
    post.send(waits, 0, 8).unwrap();
    post.s.refuse_dial(R, true);
    assert!(matches!(post.state(two, R), PairState::Connecting));
    let peer = post.s.engines[R].as_ref().unwrap().find_peer("node1").unwrap();
    let nobody = Status::gone("connect: Connection refused");
    post.s.call(R, |e, fx| e.nobody_there(fx, peer, &nobody));
    let PairState::Broken(why) = post.state(two, R) else { panic!("it waits") };
    assert_eq!((why.code, why.reason), (Code::Unavailable, Reason::PeerGone), "{why}");
    assert!(why.message.contains("'node1'") && why.message.contains("refused"), "{why}");
    post.look();
    assert_eq!(post.bufs[waits].ended, [Err(Code::Unavailable)]);
    post.twos[two].lossy = true;
    post.finish();
}

/// But not where the other end's process has ended, and for no longer than a send waits.
#[test]
fn a_pair_that_lost_its_connection_does_not_wait_for_who_has_ended() {
    let lost = || {
        let mut post = Post::new(shm());
        let two = post.pair();
        post.connect(two, R).unwrap();
        post.s.run();
        post.s.hold(R, Kind::Dial);
        post.twos[two].lossy = true;
        post.s.cut();
        post.s.run();
        assert!(matches!(post.state(two, R), PairState::Connecting));
        (post, two)
    };
    let (mut post, two) = lost();
    let peer = post.s.engines[R].as_ref().unwrap().find_peer("node1").unwrap();
    let nobody = Status::gone("connect: Connection refused");
    post.s.call(R, |e, fx| e.nobody_there(fx, peer, &nobody));
    let PairState::Broken(why) = post.state(two, R) else { panic!("it waits") };
    assert_eq!((why.code, why.reason), (Code::Unavailable, Reason::PeerGone), "{why}");
    assert!(
        why.message.contains("scripted connection") && why.message.contains("refused"),
        "{why}"
    );
    post.finish();

    let (mut post, two) = lost();
    post.s.refuse_dial(R, true);
    assert!(matches!(post.state(two, R), PairState::Connecting));
    post.s.pass(1_100);
    post.s.refuse_dial(R, true);
    assert!(matches!(post.state(two, R), PairState::Broken(_)));
    post.finish();

    let (mut post, two) = lost();
    post.s.call(R, |e, fx| e.disconnect(fx, peer));
    let PairState::Broken(why) = post.state(two, R) else { panic!("it waits") };
    assert_eq!(why.reason, Reason::Cancelled, "{why}");
    post.finish();
}

/// Messages of pairs that nobody of good will sends end the connection, or mean nothing.
#[test]
fn slots_that_are_opened_twice_end_the_connection() {
    let (mut post, _, to) = two_of(shm());
    post.s.run();
    let open = post.s.arrived.iter().rev().find(|(_, kind, _)| *kind == Kind::SlotOpen);
    let (from, _, bytes) = open.unwrap().clone();
    assert_eq!(from, R);
    post.twos[0].lossy = true;
    let ch = post.s.engines[S].as_ref().unwrap().peers().next().unwrap().channels[0];
    post.s.call(S, |e, fx| e.on_message(fx, ch, &bytes));
    post.s.run();
    let PairState::Broken(why) = post.state(0, S) else { panic!("it is not broken") };
    assert_eq!(why.code, Code::InvalidArgument, "{why}");
    let id = post.bufs[to].id;
    assert!(post.s.call(R, |e, _| e.buffer_take(id, Way::Recv)).is_err());
    post.finish();
}

const NOTHING: Part = Part { offset: 0, len: 0 };

impl Post {
    /// A send of nothing to this place, whose buffer nobody looks after.
    fn notify(&mut self, node: usize, id: u64, at: u64) -> Result<(), Code> {
        self.s
            .call(node, |e, fx| e.buffer_send(fx, id, NOTHING, at, &[]))
            .map_err(|status| status.code)
    }

    /// Takes the end of a send.
    fn end_of_send(&mut self, node: usize, id: u64) -> Result<(), String> {
        let taken = self.s.call(node, |e, _| e.buffer_take(id, Way::Send));
        taken.map(|taken| taken.expect("it has ended")).map_err(|status| status.message.clone())
    }

    /// So many buffers of one slot that never opens, each with a send that waits.
    fn waiting(&mut self, count: usize) -> Vec<u64> {
        let two = self.pair();
        let (id, node) = (self.twos[two].ids[S], S);
        self.s.call(node, |e, fx| {
            let mut made = || {
                let slot = Slot { way: Way::Send, slot: 1, addr: 0, len: 0 };
                let buffer = e.buffer_create(fx, id, slot, None).unwrap();
                e.buffer_send(fx, buffer, NOTHING, 0, &[]).unwrap();
                buffer
            };
            (0..count).map(|_| made()).collect()
        })
    }
}

/// Each failed send has its own reason, and ends are told in the order in which they came.
#[test]
fn each_send_fails_for_its_own_reason() {
    let (mut post, _, _) = two_of(shm());
    let from = post.buffer(0, S, Way::Send, 7).unwrap();
    let id = post.bufs[from].id;
    for at in [100_000, 0, 200_000] {
        post.notify(S, id, at).unwrap();
    }
    let slot = Slot { way: Way::Recv, slot: 7, addr: 0, len: 0 };
    let pair = post.twos[0].ids[R];
    let to = post.s.call(R, |e, fx| e.buffer_create(fx, pair, slot, None)).unwrap();
    post.s.run();
    post.s.call(R, |e, fx| e.buffer_release(fx, to)).unwrap();
    post.s.run();
    // Nothing is there to send to now.
    post.notify(S, id, 0).unwrap();
    post.s.pass(2_000);
    post.s.call(R, |e, fx| e.buffer_create(fx, pair, slot, None)).unwrap();
    post.s.run();
    post.notify(S, id, 0).unwrap();
    post.s.run();
    let told: Vec<_> = (0..5).map(|_| post.end_of_send(S, id)).collect();
    let says =
        |end: &Result<(), String>, what: &str| end.as_ref().is_err_and(|text| text.contains(what));
    assert!(says(&told[0], "remote offset 100000 of slot 7"), "{told:?}");
    assert!(says(&told[1], "remote offset 200000 of slot 7"), "{told:?}");
    assert_eq!((&told[2], &told[4]), (&Ok(()), &Ok(())), "{told:?}");
    assert!(says(&told[3], "did not open the slot"), "{told:?}");
    post.finish();
}

/// Ends of failed sends that nobody takes count as sends.
#[test]
fn failures_that_nobody_takes_are_bounded() {
    let (mut post, _, _) = two_of(shm());
    let from = post.buffer(0, S, Way::Send, 9).unwrap();
    let id = post.bufs[from].id;
    for _ in 0..PAIR_SENDS {
        post.notify(S, id, 0).unwrap();
    }
    assert_eq!(post.notify(S, id, 0), Err(Code::ResourceExhausted));
    post.s.pass(1_100);
    let pair = post.twos[0].ids[S];
    assert_eq!(post.s.call(S, |e, _| e.pair_facts(pair)).unwrap().sends, 0);
    assert_eq!(post.s.call(S, |e, _| e.buffer_counts(id)).unwrap().0, PAIR_SENDS as u64);
    assert_eq!(post.notify(S, id, 0), Err(Code::ResourceExhausted));
    post.end_of_send(S, id).unwrap_err();
    assert_eq!(post.notify(S, id, 0), Ok(()));
    let released = post.s.call(S, |e, fx| e.buffer_release(fx, id)).unwrap();
    assert!(post.s.call(S, |e, _| e.buffer_is_free(&released)));
    let other = post.buffer(0, S, Way::Send, 10).unwrap();
    let other = post.bufs[other].id;
    assert_eq!(post.notify(S, other, 0), Ok(()), "what the buffer left behind counts no more");
    post.s.pass(1_100);
    post.end_of_send(S, other).unwrap_err();
    post.bufs[from].gone = true;
    let addr = post.bufs[from].addr;
    post.s.w.mem.free(addr, "its buffer was destroyed");
    post.finish();
}

/// What each of so many takes of the processor, at its best of a few times.
fn each(count: usize, end: impl Fn(&mut Post, Vec<u64>)) -> Duration {
    let once = || {
        let mut post = Post::new(shm());
        let buffers = post.waiting(count);
        let begun = used();
        end(&mut post, buffers);
        used() - begun
    };
    (0..3).map(|_| once()).min().unwrap() / count as u32
}

/// The end of a send costs the same however many others of its slot wait.
#[test]
fn ends_among_many_that_wait() {
    type End = fn(&mut Post, Vec<u64>);
    let ways: [(&str, End); 3] = [
        ("its buffer is destroyed", |post, buffers| {
            post.s.call(S, |e, fx| {
                for &id in buffers.iter().rev() {
                    e.buffer_release(fx, id).unwrap();
                }
            });
        }),
        ("its deadline passes", |post, _| post.s.pass(1_100)),
        ("its pair is closed", |post, _| {
            let id = post.twos[0].ids[S];
            post.s.call(S, |e, fx| e.pair_close(fx, id)).unwrap();
        }),
    ];
    for (what, end) in ways {
        let (few, many) = (each(2_000, end), each(40_000, end));
        println!("{what}: {few:?} each among 2,000, {many:?} among 40,000");
        assert!(many < 6 * few.max(Duration::from_nanos(200)), "{what}: {few:?}, {many:?}");
    }
}

/// Who destroys it inside a callback is waited for by whoever would compute the checksum: it is not begun any more.
#[test]
fn a_buffer_is_free_at_once_though_a_checksum_was_to_be_computed() {
    for (of_sender, node) in [(true, S), (false, R)] {
        let (mut post, from, to) = two_of(shm().checksums());
        post.s.run();
        post.s.hold(node, Kind::Hash);
        post.send(from, 0, LARGE).unwrap();
        post.s.run();
        let gone = if of_sender { from } else { to };
        let (id, addr) = (post.bufs[gone].id, post.bufs[gone].addr);
        let released = post.s.call(node, |e, fx| e.buffer_release(fx, id)).unwrap();
        assert!(post.s.call(node, |e, _| e.buffer_is_untouched(&released)), "{of_sender}");
        (post.bufs[gone].gone, post.twos[0].lossy) = (true, true);
        post.s.w.mem.free(addr, "its buffer was destroyed");
        // The next goes on before that is asked for, and after it.
        let next = post.buffer(0, node, if of_sender { Way::Send } else { Way::Recv }, 5).unwrap();
        let from = if of_sender { next } else { from };
        post.s.let_go(node, Kind::Hash);
        post.look();
        post.send(from, 1, LARGE).unwrap();
        post.s.run();
        post.look();
        assert!(matches!(post.state(0, S), PairState::Connected));
        assert!(post.is_idle(from) && post.bufs[from].ended.iter().all(Result::is_ok));
        post.finish();
    }
}

/// The other end makes its buffer anew, and shorter, while the checksum of a send is computed that fitted: it is not done, and the
/// connection lives.
#[test]
fn a_slot_that_is_shorter_when_the_checksum_is_there() {
    let (mut post, from, to) = two_of(shm().checksums());
    post.s.run();
    post.s.hold(S, Kind::Hash);
    post.send(from, PLACES - 1, LARGE).unwrap();
    post.s.run();
    post.destroy(to);
    let next = post.buffer_of(0, R, Way::Recv, 5, 1).unwrap();
    post.s.run();
    post.s.let_go(S, Kind::Hash);
    post.look();
    assert_eq!(post.bufs[from].ended, [Err(Code::OutOfRange)]);
    post.send(from, 0, LARGE).unwrap();
    post.s.run();
    post.look();
    post.check(next);
    assert_eq!((post.bufs[next].arrivals, &post.bufs[from].ended[1..]), (1, &[Ok(())][..]));
    post.finish();
}
