//! Seeded walks of tagged messages over two engines.
//!
//! A walk sends, receives, probes, claims and cancels at random, holds things back on the wire and lets them go, loses
//! connections, and lets nodes stand still, crash, end in order and begin again under the same name. It holds: each operation ends once; a receive that ends well has the bytes of one message that it
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
use super::rails::two;
use super::script::{EAGER, LARGE, Setup, ibverbs, shm};

/// What a walk draws.
struct Walk {
    rng: Rng,
    devices: bool,
    harm: Harm,
    /// Where a node stands still, for so many steps.
    still: [u64; 2],
    /// Nobody receives what fills the windows from the beginning: what is short waits, and is offered.
    full: bool,
}

/// What befalls nodes and their connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Harm {
    Nothing,
    Losses,
    /// And deaths, and nodes that stand still.
    Deaths,
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
        if self.full && self.rng.percent(15) {
            post.s.pass(self.rng.below(30));
        }
        if self.harm == Harm::Deaths {
            self.live_on(post);
            if self.rng.percent(4) {
                self.strike(post, node);
            }
            if !post.lives(node) || post.s.stalled[node] {
                return self.go_on(post);
            }
        }
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
            97 if self.harm >= Harm::Losses => {
                let conn = post.s.conn();
                match self.rng.below(4) {
                    // Of a main connection and its rails any.
                    0..2 if self.rng.percent(30) => {
                        post.s.cut_one(self.rng.below(conn as u64 + 1) as usize);
                    }
                    0..2 => post.s.cut(),
                    2 => post.s.lose(node),
                    _ => post.s.lose_late(conn, node),
                }
            }
            // By the last connection, before what an earlier one has still to bring.
            98 if self.harm >= Harm::Losses => {
                for _ in 0..self.rng.below(20) {
                    if !post.s.wire(node).is_empty() {
                        post.s.step(node);
                    }
                }
            }
            _ => post.s.pass(self.rng.below(3)),
        }
        self.go_on(post);
    }

    fn go_on(&mut self, post: &mut Post) {
        if self.rng.percent(60) {
            post.run();
        }
        post.look();
    }

    /// A node is struck, whatever it is at.
    fn strike(&mut self, post: &mut Post, node: usize) {
        match (self.rng.below(4), post.lives(node)) {
            (0 | 1, true) => post.crash(node, self.rng.percent(30)),
            (2, true) => {
                post.claims.retain(|(of, _)| *of != node);
                post.s.shut_down(node);
            }
            // It is there, and one of its threads is not: time passes for the other.
            _ if post.s.engines[node].is_some() => {
                post.s.stalled[node] = true;
                self.still[node] = 1 + self.rng.below(12);
                post.s.pass(self.rng.pick(&[0, 1, 500, 3_000, 15_000]));
            }
            _ => {}
        }
    }

    /// Who stood still may go on; who is dead, or has ended, may begin again.
    fn live_on(&mut self, post: &mut Post) {
        for node in [0, 1] {
            self.still[node] = self.still[node].saturating_sub(1);
            post.s.stalled[node] = self.still[node] > 0 && post.s.engines[node].is_some();
            if !post.lives(node) && self.rng.percent(15) {
                self.begin_again(post, node);
            }
        }
    }

    fn begin_again(&mut self, post: &mut Post, node: usize) {
        (self.still[node], post.s.stalled[node]) = (0, false);
        if post.s.engines[node].is_some() {
            // It waits for its end, as a manager does; so long its peer may be dead or stand still.
            post.s.let_all_go();
            post.s.pass(15_000);
            post.look();
            post.has_ended_all(node);
            post.crash(node, false);
        }
        post.s.restart(node);
        if post.lives(1 - node) && self.rng.percent(50) {
            post.s.connect(self.rng.below(2) as usize);
        }
    }

    /// Before the walk ends both may live again; or who is left waits for a peer that is dead, until its time is over.
    fn end(&mut self, post: &mut Post) {
        if self.harm != Harm::Deaths {
            return;
        }
        (self.still, post.s.stalled) = ([0; 2], [false; 2]);
        for node in [0, 1] {
            if !post.lives(node) && self.rng.percent(70) {
                self.begin_again(post, node);
            }
        }
        // Of a host that went without a word its peer has not heard either.
        if !(post.lives(0) && post.lives(1)) || post.s.w.conns.iter().any(|c| c.silent) {
            post.s.let_all_go();
            post.s.pass(15_000);
            post.look();
        }
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

fn walks(setup: impl Fn() -> Setup, devices: bool, harm: Harm, full: bool) {
    let from = number("MESSAGE_FROM", 0);
    // Some thousand messages more are in each of these.
    let seeds = number("MESSAGE_SEEDS", 300) / if full { 5 } else { 1 };
    for seed in from..from + seeds.max(1) {
        let walk = || {
            let mut walk = Walk { rng: Rng::new(seed), devices, harm, still: [0; 2], full };
            let mut post = Post::new(setup());
            if full {
                [0, 1].into_iter().for_each(|node| post.fill_window(node));
            }
            for _ in 0..200 {
                walk.step(&mut post);
            }
            walk.end(&mut post);
            if full {
                post.s.let_all_go();
                // What still waits is offered, 16 and then twice as many after each 20 ms.
                (0..6).for_each(|_| post.s.pass(21));
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
    ($($name:ident: $setup:expr, $devices:literal, $harm:ident $(, full: $full:literal)?;)*) => {$(
        #[test]
        fn $name() {
            walks(|| $setup, $devices, Harm::$harm, false $(|| $full)?);
        }
    )*};
}

walk! {
    walk_with_windows: shm(), true, Nothing;
    walk_without_windows: ibverbs(), true, Nothing;
    walk_with_proxies: ibverbs().proxies(), true, Nothing;
    walk_without_reads: shm().no_reads(), false, Nothing;
    walk_with_checksums: shm().checksums(), true, Nothing;
    walk_of_puts: shm().forced(Protocol::DirectPut), false, Nothing;
    walk_of_gets: ibverbs().forced(Protocol::DirectGet), false, Nothing;
    walk_of_pipelines: shm().forced(Protocol::Pipeline), true, Nothing;
    walk_of_pipelines_without_windows: ibverbs().forced(Protocol::Pipeline).caps(short), true, Nothing;
    walk_of_pipelines_with_proxies: ibverbs().forced(Protocol::Pipeline).proxies(), false, Nothing;
    walk_of_pipelines_with_losses: shm().forced(Protocol::Pipeline).caps(short), true, Losses;
    walk_of_pipelines_with_losses_without_windows: ibverbs().forced(Protocol::Pipeline), true, Losses;
    walk_of_pipelines_with_a_short_queue: Setup { sq_depth: 2, ..ibverbs().forced(Protocol::Pipeline) }, false, Losses;
    walk_with_a_short_queue: Setup { sq_depth: 3, ..ibverbs() }, false, Nothing;
    walk_of_staged_messages: shm().staged(), true, Nothing;
    walk_of_staged_messages_with_losses: shm().staged(), true, Losses;
    walk_with_losses: shm(), true, Losses;
    walk_of_puts_with_losses: shm().forced(Protocol::DirectPut), false, Losses;
    walk_with_losses_without_windows: ibverbs(), true, Losses;
    walk_with_losses_and_proxies: ibverbs().proxies(), false, Losses;
    walk_with_deaths: shm(), true, Deaths;
    walk_with_deaths_without_windows: ibverbs(), true, Deaths;
    walk_with_deaths_and_proxies: ibverbs().proxies(), false, Deaths;
    walk_of_puts_with_deaths: shm().forced(Protocol::DirectPut), true, Deaths;
    walk_with_deaths_without_windows_and_reads: ibverbs().no_reads(), false, Deaths;
    walk_of_pipelines_with_deaths: shm().forced(Protocol::Pipeline).caps(short), true, Deaths;
    walk_of_pipelines_with_deaths_without_windows: ibverbs().forced(Protocol::Pipeline), false, Deaths;
    walk_of_staged_messages_with_deaths: shm().staged().checksums(), true, Deaths;
    walk_with_deaths_and_a_short_queue: Setup { sq_depth: 3, ..ibverbs() }, false, Deaths;
    walk_with_full_windows: shm(), true, Nothing, full: true;
    walk_with_full_windows_and_checksums: shm().checksums(), true, Nothing, full: true;
    walk_with_full_windows_and_losses: shm(), true, Losses, full: true;
    walk_with_full_windows_and_losses_without_windows: ibverbs(), true, Losses, full: true;
    walk_with_full_windows_and_deaths: ibverbs(), true, Deaths, full: true;
    walk_of_pipelines_with_full_windows: shm().forced(Protocol::Pipeline).caps(short), true, Losses, full: true;
    walk_without_reads_with_full_windows: shm().no_reads(), true, Deaths, full: true;
    walk_with_rails: two(shm()), true, Losses;
    walk_with_rails_without_windows: two(ibverbs()), false, Losses;
    walk_of_puts_with_rails: two(shm()).no_reads(), true, Losses;
    walk_of_puts_with_rails_without_windows: two(ibverbs().cards(2)).no_reads(), false, Losses;
    walk_with_rails_and_checksums: two(shm()).checksums(), false, Losses;
    walk_with_rails_and_deaths: two(ibverbs()), true, Deaths;
    walk_of_puts_with_rails_and_deaths: two(shm().cards(3)).no_reads(), true, Deaths;
}
