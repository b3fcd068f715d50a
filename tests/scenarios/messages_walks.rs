//! Seeded walks of tagged messages over two engines.
//!
//! A walk sends, receives, probes, claims and cancels at random, holds things back on the wire and lets them go, and
//! loses connections. It holds: each operation ends once; a receive that ends well has the bytes of one message that it
//! accepts, and each message is received once; messages of one sender to one communicator do not overtake one another,
//! neither do receives; what nobody may touch any more is touched by nobody; nothing is left.
//! `MESSAGE_SEEDS` says how many walks there are of each kind (300, more than a million operations in all), `MESSAGE_FROM`
//! where they begin.

use rdma_transport::api::Protocol;
use rdma_transport::engine::front::message::{Envelope, Mode, Party, Wanted};
use rdma_transport::engine::layout::LAYOUT;
use rdma_transport::fabric::Caps;

use super::common::rng::Rng;
use super::kind::Kind;
use super::messages::{ALL, Post};
use super::script::{EAGER, LARGE, Setup, ibverbs, shm};

/// What a walk draws.
struct Walk {
    rng: Rng,
    devices: bool,
    losses: bool,
}

impl Walk {
    fn envelope(&mut self) -> Envelope {
        Envelope { comm: self.rng.below(2) as u32, tag: self.rng.below(4) }
    }

    fn len(&mut self) -> u64 {
        self.rng.pick(&[0, 5, 8, 40, EAGER, EAGER + 1, LARGE])
    }

    fn device(&mut self) -> u32 {
        if self.rng.percent(25) {
            return LAYOUT;
        }
        u32::from(self.devices && self.rng.percent(20))
    }

    fn step(&mut self, post: &mut Post) {
        let node = self.rng.below(2) as usize;
        let to = if self.rng.percent(15) { Party::OWN } else { post.other(node) };
        match self.rng.below(100) {
            0..35 => {
                let (envelope, len, device) = (self.envelope(), self.len(), self.device());
                let mode = if self.rng.percent(20) { Mode::Synchronous } else { Mode::Standard };
                let given = self.rng.percent(70);
                post.send_from(node, to, envelope, (len, device, given), mode);
            }
            35..70 => {
                let Envelope { comm, tag } = self.envelope();
                let from = if self.rng.percent(50) { Party::ANY } else { to };
                let mask = self.rng.pick(&[ALL, ALL, !1, 0]);
                let len = if self.rng.percent(80) { 2 * LARGE } else { self.len() };
                let device = self.device();
                post.recv_into(node, Wanted { from, comm, tag, mask }, len, device, None);
            }
            70..76 => {
                let Envelope { comm, tag } = self.envelope();
                let wanted = Wanted { from: Party::ANY, comm, tag, mask: self.rng.pick(&[ALL, 0]) };
                let claim = self.rng.percent(50);
                post.probe(node, wanted, claim);
            }
            76..80 => {
                if let Some((node, found)) = post.claims.pop() {
                    let wanted = Wanted { from: Party::ANY, comm: 0, tag: 0, mask: 0 };
                    let len = if self.rng.percent(80) { 2 * LARGE } else { self.len() };
                    post.recv_into(node, wanted, len, 0, Some(found.message));
                }
            }
            80..88 => self.cancel(post),
            88..94 => {
                let kind = self.rng.pick(&KINDS);
                if post.s.may(node, kind) {
                    post.s.hold(node, kind);
                }
            }
            94..97 => post.s.let_all_go(),
            97 if self.losses => {
                let conn = post.s.conn();
                match self.rng.below(4) {
                    0..2 => post.s.cut(),
                    2 => post.s.lose(node),
                    _ => post.s.lose_late(conn, node),
                }
            }
            // By the last connection, before what an earlier one has still to bring.
            98 if self.losses => {
                for _ in 0..self.rng.below(20) {
                    if !post.s.wire(node).is_empty() {
                        post.s.step(node);
                    }
                }
            }
            _ => post.s.pass(self.rng.below(3)),
        }
        if self.rng.percent(60) {
            post.run();
        }
        post.look();
    }

    fn cancel(&mut self, post: &mut Post) {
        let of = if self.rng.percent(50) { &mut post.sends } else { &mut post.recvs };
        let live: Vec<usize> =
            of.iter().enumerate().filter(|(_, op)| op.ended.is_none()).map(|(i, _)| i).collect();
        if live.is_empty() {
            return;
        }
        let op = &mut of[live[self.rng.below(live.len() as u64) as usize]];
        op.cancelled = true;
        let (node, id) = (op.node, op.id);
        match self.rng.percent(50) {
            true => post.cancel(node, id).unwrap(),
            false => post.give_up(node, id).unwrap(),
        }
    }
}

/// What a walk holds back.
const KINDS: [Kind; 14] = [
    Kind::Msg,
    Kind::MsgOffer,
    Kind::MsgGrant,
    Kind::MsgAck,
    Kind::MsgFrag,
    Kind::MsgMatched,
    Kind::MsgWithdraw,
    Kind::MsgWithdrawn,
    Kind::GetDone,
    Kind::Read,
    Kind::Imm,
    Kind::Copy,
    Kind::Done,
    Kind::CancelAck,
];

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

fn walks(setup: impl Fn() -> Setup, devices: bool, losses: bool) {
    let from = number("MESSAGE_FROM", 0);
    for seed in from..from + number("MESSAGE_SEEDS", 300) {
        let walk = || {
            let mut walk = Walk { rng: Rng::new(seed), devices, losses };
            let mut post = Post::new(setup());
            for _ in 0..200 {
                walk.step(&mut post);
            }
            post.finish();
        };
        if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(walk)) {
            eprintln!("MESSAGE_FROM={seed} MESSAGE_SEEDS=1 repeats this");
            std::panic::resume_unwind(panic);
        }
    }
}

/// Messages are so short that what goes in them goes in several.
fn short(caps: &mut Caps) {
    caps.max_send = 300;
}

macro_rules! walk {
    ($($name:ident: $setup:expr, $devices:literal, $losses:literal;)*) => {$(
        #[test]
        fn $name() {
            walks(|| $setup, $devices, $losses);
        }
    )*};
}

walk! {
    walk_with_windows: shm(), true, false;
    walk_without_windows: ibverbs(), true, false;
    walk_with_proxies: ibverbs().proxies(), true, false;
    walk_without_reads: shm().no_reads(), false, false;
    walk_with_checksums: shm().checksums(), true, false;
    walk_of_puts: shm().forced(Protocol::DirectPut), false, false;
    walk_of_gets: ibverbs().forced(Protocol::DirectGet), false, false;
    walk_of_pipelines: shm().forced(Protocol::Pipeline), true, false;
    walk_of_pipelines_without_windows: ibverbs().forced(Protocol::Pipeline).caps(short), true, false;
    walk_of_pipelines_with_proxies: ibverbs().forced(Protocol::Pipeline).proxies(), false, false;
    walk_of_pipelines_with_losses: shm().forced(Protocol::Pipeline).caps(short), true, true;
    walk_of_pipelines_with_losses_without_windows: ibverbs().forced(Protocol::Pipeline), true, true;
    walk_of_pipelines_with_a_short_queue: Setup { sq_depth: 2, ..ibverbs().forced(Protocol::Pipeline) }, false, true;
    walk_with_a_short_queue: Setup { sq_depth: 3, ..ibverbs() }, false, false;
    walk_of_staged_messages: shm().staged(), true, false;
    walk_of_staged_messages_with_losses: shm().staged(), true, true;
    walk_with_losses: shm(), true, true;
    walk_of_puts_with_losses: shm().forced(Protocol::DirectPut), false, true;
    walk_with_losses_without_windows: ibverbs(), true, true;
    walk_with_losses_and_proxies: ibverbs().proxies(), false, true;
}
