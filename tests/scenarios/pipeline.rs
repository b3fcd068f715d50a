//! The RDMA pipeline: long messages in three segments, in each of its states with each event.

use rdma_transport::api::Protocol;
use rdma_transport::engine::front::message::Mode;
use rdma_transport::engine::layout::LAYOUT;
use rdma_transport::fabric::keys::{Keys, Place};
use rdma_transport::protocol::message::{self, Message};
use rdma_transport::status::Code;

use super::common::Fault;
use super::common::net::NetEvent;
use super::kind::Kind;
use super::messages::{ANY, Post, TAG, code};
use super::script::{EAGER, FIRST, FRAGMENT, LARGE, LAST, R, S, Setup, ibverbs, shm};

fn forced(setup: Setup) -> Setup {
    setup.forced(Protocol::Pipeline).caps(|c| c.max_rdma = FRAGMENT / 2)
}

/// By windows; registered; with messages so short that the last segment takes two.
fn each() -> [Setup; 3] {
    [shm(), ibverbs(), ibverbs().caps(|c| c.max_send = 300)].map(forced)
}

/// A message of `len` bytes goes into a receive that waits; their indices.
fn begin(p: &mut Post, len: u64, from: u32, to: u32, given: bool) -> (usize, usize) {
    let party = p.other(S);
    let recv = p.recv_into(R, ANY, LARGE, to, None);
    let send = p.send_from(S, party, TAG, (len, from, given), Mode::Standard);
    p.run();
    (send, recv)
}

/// How many MSG_ACKs and MSG_GRANTs the receiver has sent, and MSG_FRAGs the sender.
fn said(p: &Post) -> [usize; 3] {
    [(R, Kind::MsgAck), (R, Kind::MsgGrant), (S, Kind::MsgFrag)]
        .map(|(node, kind)| p.s.count(node, kind))
}

fn all_ended(mut p: Post, (send, recv): (usize, usize), want: [Code; 2]) {
    p.s.let_all_go();
    p.run();
    assert_eq!([code(&p.sends[send]), code(&p.recvs[recv])], want.map(Some));
    p.finish();
}

const WELL: [Code; 2] = [Code::Ok, Code::Ok];

#[test]
fn a_message_goes_in_three_segments() {
    let fragments = (LARGE - FIRST - LAST).div_ceil(FRAGMENT) as usize;
    for (setup, last) in each().into_iter().zip([1, 1, 2]) {
        for unexpected in [false, true] {
            let mut p = Post::new(setup.clone());
            let party = p.other(S);
            let (mut send, mut recv) = (0, 0);
            for receives in [!unexpected, unexpected] {
                match receives {
                    true => recv = p.recv(R, ANY, LARGE),
                    false => send = p.send(S, party, TAG, LARGE, Mode::Standard),
                }
                p.run();
            }
            assert_eq!(said(&p), [1, fragments, last]);
            all_ended(p, (send, recv), WELL);
        }
    }
}

/// Around each border: of what is eager, of the first, the middle and the last segment, of one fragment.
#[test]
fn each_length_around_a_border() {
    let borders = [EAGER, FIRST + LAST, FIRST + LAST + FRAGMENT, FIRST + LAST + 2 * FRAGMENT];
    for setup in each() {
        for len in borders.into_iter().flat_map(|n| [n - 1, n, n + 1]) {
            for given in [true, false] {
                let mut p = Post::new(setup.clone());
                let both = begin(&mut p, len, 0, 0, given);
                let first = if given { FIRST } else { 0 };
                let middle = len.saturating_sub(first + LAST).div_ceil(FRAGMENT) as usize;
                // Without a copy what is short waits for one, and then goes as it is.
                let want = if len <= EAGER { [0, 0] } else { [1, middle] };
                assert_eq!(said(&p)[..2], want, "{len} bytes, {given}");
                all_ended(p, both, WELL);
            }
        }
    }
}

/// Without being forced: from a length on that the setting says, where the sender's memory would have to be registered first.
#[test]
fn it_is_chosen_for_long_messages_in_memory_that_is_not_registered() {
    const LEAST: u64 = 600;
    let from = |least: u64| {
        move |s: &mut rdma_transport::engine::Settings| {
            s.sizes.iter_mut().for_each(|s| s.min_rdma_pipeline_size = least);
        }
    };
    let cases = [(LEAST - 1, 0), (LEAST, 1), (LEAST + 1, 1)];
    for (setup, least, registered) in [
        (ibverbs(), LEAST, false),
        (ibverbs(), LEAST, true),
        // By default it is not, and where memory is mapped nothing is registered.
        (ibverbs(), 0, false),
        (shm(), LEAST, false),
        (ibverbs().forced(Protocol::DirectPut), LEAST, false),
    ] {
        let chosen = setup.settings[S].protocol == Protocol::Auto && least > 0 && !registered;
        let chosen = usize::from(chosen && !setup.caps[S].windows);
        for (len, long) in cases {
            for unexpected in [false, true] {
                let mut p = Post::new(setup.clone().settings(from(least)));
                p.s.registered = registered;
                let party = p.other(S);
                let (mut send, mut recv) = (0, 0);
                for receives in [!unexpected, unexpected] {
                    match receives {
                        true => recv = p.recv(R, ANY, LARGE),
                        false => send = p.send(S, party, TAG, len, Mode::Standard),
                    }
                    p.run();
                }
                let told = format!("{len} of {least}, registered: {registered}, {unexpected}");
                assert_eq!(said(&p)[0], long * chosen, "{told}");
                all_ended(p, (send, recv), WELL);
            }
        }
    }
}

/// The receiver's last word, and the sender's.
#[test]
fn memory_in_pieces_or_on_a_device_goes_another_way() {
    for setup in each() {
        for (from, to) in [(LAYOUT, 0), (0, LAYOUT), (LAYOUT, LAYOUT), (1, 0), (0, 1)] {
            let mut p = Post::new(setup.clone());
            let both = begin(&mut p, LARGE, from, to, true);
            assert_eq!(said(&p)[0], 0, "{from} to {to}");
            all_ended(p, both, WELL);
        }
    }
    let mut p = Post::new(forced(shm().checksums()));
    let both = begin(&mut p, LARGE, 0, 0, true);
    assert_eq!(said(&p)[0], 0, "content has its checksum");
    all_ended(p, both, WELL);
}

#[test]
fn what_cannot_be_registered_is_asked_for_in_messages_and_goes_from_a_copy() {
    for (node, failing) in [(R, true), (R, false)] {
        let mut setup = forced(ibverbs());
        setup.proxies = !failing;
        let mut p = Post::new(setup);
        if failing {
            p.s.w.fate.failing.insert((node, Fault::Open));
        }
        let both = begin(&mut p, LARGE, 0, 0, true);
        assert_eq!(said(&p)[1], 0, "nothing was opened");
        all_ended(p, both, WELL);
    }
    // At the sender alone: each fragment is copied to memory that is registered.
    let mut p = Post::new(forced(ibverbs()));
    p.s.hold(R, Kind::MsgGrant);
    let both = begin(&mut p, LARGE, 0, 0, true);
    p.s.w.fate.proxies = true;
    p.s.let_go(R, Kind::MsgGrant);
    p.run();
    all_ended(p, both, WELL);
}

/// Where a transfer is held, and at whom.
const STATES: [(usize, Kind); 8] = [
    (R, Kind::MsgAck),
    (R, Kind::MsgGrant),
    (S, Kind::MsgFrag),
    (S, Kind::Write),
    (S, Kind::Imm),
    (S, Kind::Copy),
    (S, Kind::Done),
    (S, Kind::MsgOffer),
];

fn held(setup: &Setup, (node, kind): (usize, Kind)) -> (Post, (usize, usize)) {
    let mut p = Post::new(setup.clone());
    p.s.hold(node, kind);
    let both = begin(&mut p, LARGE, 0, 0, true);
    (p, both)
}

#[test]
fn each_state_goes_on() {
    for setup in each() {
        for state in STATES {
            let (p, both) = held(&setup, state);
            all_ended(p, both, WELL);
        }
    }
}

/// It has met its message: that would be lost.
#[test]
fn a_cancel_comes_too_late_in_each_state() {
    for setup in each() {
        for state in STATES.into_iter().filter(|(_, kind)| *kind != Kind::MsgOffer) {
            let (mut p, (send, recv)) = held(&setup, state);
            if p.recvs[recv].ended.is_none() {
                p.cancel(R, p.recvs[recv].id).unwrap();
            }
            all_ended(p, (send, recv), WELL);
        }
    }
}

#[test]
fn a_receive_is_given_up_in_each_state() {
    for setup in each() {
        for state in STATES {
            let (mut p, (send, recv)) = held(&setup, state);
            p.recvs[recv].cancelled = true;
            if p.recvs[recv].ended.is_none() {
                p.give_up(R, p.recvs[recv].id).unwrap();
            }
            p.s.let_all_go();
            p.run();
            let (sent, received) = (code(&p.sends[send]), code(&p.recvs[recv]));
            match state.1 {
                // It had not met the message, which then waits for another.
                Kind::MsgOffer => assert_eq!(received, Some(Code::Cancelled)),
                // The content was there.
                Kind::Done => assert_eq!(received, Some(Code::Ok)),
                _ => assert_eq!(received, Some(Code::Cancelled), "{state:?}: {sent:?}"),
            }
            p.finish();
        }
    }
}

#[test]
fn a_send_is_cancelled_in_each_state() {
    for setup in each() {
        for state in STATES {
            let (mut p, (send, _)) = held(&setup, state);
            p.sends[send].cancelled = true;
            if p.sends[send].ended.is_none() {
                p.cancel(S, p.sends[send].id).unwrap();
            }
            p.finish();
        }
    }
}

#[test]
fn the_connection_is_lost_in_each_state() {
    for setup in each() {
        for state in STATES {
            for cut in [true, false] {
                let (mut p, _) = held(&setup, state);
                match cut {
                    true => p.s.cut(),
                    false => p.s.lose(state.0),
                }
                p.look();
                p.s.let_all_go();
                p.run();
                p.finish(); // Each has its one end.
            }
        }
    }
}

#[test]
fn a_copy_fails() {
    for setup in each() {
        let (mut p, (send, recv)) = held(&setup, (S, Kind::Copy));
        p.s.fail(S, Kind::Copy);
        p.s.let_all_go();
        p.run();
        assert_eq!(code(&p.sends[send]), Some(Code::ResourceExhausted));
        assert_ne!(code(&p.recvs[recv]), Some(Code::Ok));
        p.s.w.fate.failing.clear();
        p.finish();
    }
}

/// The index that node S has given to what it offered, and node R to what takes it.
fn indices(p: &Post) -> (u32, u32) {
    let find = |node, kind| p.s.arrived.iter().find(|(n, k, _)| (*n, *k) == (node, kind));
    let (_, _, offer) = find(S, Kind::MsgOffer).expect("an offer");
    let request = find(R, Kind::MsgAck).map_or(5, |(_, _, ack)| match message::decode(ack) {
        Ok((Message::MsgAck { request, .. }, _)) => request,
        _ => panic!("an acknowledgement"),
    });
    match message::decode(offer) {
        Ok((Message::MsgOffer(offer), _)) => (offer.response, request),
        _ => panic!("an offer"),
    }
}

/// A message of a hostile peer reaches this node.
fn hear(p: &mut Post, node: usize, m: &Message<'_>, tail: &[u8]) {
    let mut out = Vec::new();
    message::encode(m, &mut out);
    out.extend_from_slice(tail);
    let ch = p.s.w.nodes[node].chans.keys().next().copied();
    // It may have lost its connection.
    if let Some(ch) = ch {
        p.s.event(node, ch, NetEvent::Message(out));
    }
    p.look();
}

#[test]
fn a_receiver_that_asks_for_what_there_is_not_loses_its_connection() {
    let place = |addr| Place { addr, rkeys: Keys::one(9) };
    for case in 0..6 {
        let mut p = Post::new(forced(shm()));
        let party = p.other(S);
        let plain = if case == 5 { LAYOUT } else { 0 };
        let send = p.send_from(S, party, TAG, (LARGE, plain, true), Mode::Standard);
        p.run();
        let (response, request) = indices(&p);
        let ack = |at, len| Message::MsgAck { response, request, at, len };
        let grant =
            |len| Message::MsgGrant { response, request, dst: place(8), len, pipeline: true };
        match case {
            0 => hear(&mut p, S, &ack(LARGE - 1, 2), &[]),
            1 => hear(&mut p, S, &ack(u64::MAX, 2), &[]),
            2 => {
                hear(&mut p, S, &ack(0, 0), &[]);
                hear(&mut p, S, &grant(0), &[]);
            }
            3 => {
                hear(&mut p, S, &ack(LARGE - 1, 1), &[]);
                hear(&mut p, S, &grant(LARGE - FIRST), &[]);
            }
            4 => {
                p.s.hold(S, Kind::Copy);
                for at in 0..100 {
                    hear(&mut p, S, &ack(500 + at, 1), &[]);
                }
            }
            _ => hear(&mut p, S, &ack(0, 0), &[]),
        }
        p.s.let_all_go();
        p.run();
        assert_eq!(code(&p.sends[send]), Some(Code::InvalidArgument), "case {case}");
        p.finish();
    }
}

#[test]
fn a_sender_that_sends_what_was_not_asked_for_loses_its_connection() {
    let bytes = [7; 400];
    for case in 0..6 {
        let mut p = Post::new(forced(shm()));
        p.s.hold(S, Kind::Copy);
        p.s.hold(R, Kind::MsgGrant);
        let (_, recv) = begin(&mut p, LARGE, 0, 0, true);
        let (_, request) = indices(&p);
        p.s.fail(R, Kind::Hash); // The receive is to fail.
        let (at, len) = match case {
            0 => (0, 10),
            1 => (LARGE - LAST, LAST + 1),
            2 => (LARGE - LAST, 0),
            3 => (LARGE - LAST + 1, 10),
            4 => (u64::MAX, 10),
            _ => (LARGE - FRAGMENT - LAST, 10),
        };
        let content = &bytes[..len as usize];
        hear(&mut p, R, &Message::MsgFrag { request, at, content }, content);
        p.s.let_all_go();
        p.run();
        assert_eq!(code(&p.recvs[recv]), Some(Code::InvalidArgument), "case {case}");
        p.finish();
    }
}
