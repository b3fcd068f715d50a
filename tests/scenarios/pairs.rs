//! Pairs and buffers: seeded walks over two engines, and scenarios by name.
//!
//! A walk makes pairs and buffers, connects, sends, destroys and closes at random, holds things back on the wire and lets
//! them go, and loses connections. It holds: each send ends once; an arrival is told once for each send that took effect;
//! what a buffer holds was sent to just that slot and place, the last send of a place last; memory that was given back
//! is touched by nobody; nothing is left. `PAIR_SEEDS` says how many walks there are of each kind, `PAIR_FROM` where they
//! begin.

use rdma_transport::engine::front::pair::{Connecting, PairState, Part, Slot, Way};
use rdma_transport::status::{Code, Reason, Status};

use super::common::memory::content;
use super::common::rng::Rng;
use super::kind::Kind;
use super::script::{EAGER, LARGE, R, S, Setup, ibverbs, shm};
use super::stage::Stage;

const FILL: u8 = 0xCD;
/// Places in a receive buffer, each as long as the longest content.
const PLACES: u64 = 4;

/// Two ends that are, or may be, of each other.
struct Two {
    ids: [u64; 2],
    /// Which has been told to connect.
    called: [bool; 2],
    closed: [bool; 2],
    /// A receive buffer of it was destroyed, or a connection lost: what was sent then may be lost, too.
    lossy: bool,
}

struct Buf {
    node: usize,
    two: usize,
    id: u64,
    way: Way,
    slot: u64,
    addr: u64,
    gone: bool,
    /// Of a send buffer: how its sends ended. Of a receive buffer: arrivals.
    ended: Vec<Result<(), Code>>,
    arrivals: usize,
}

/// A send, by the number of its content.
struct Sent {
    buffer: usize,
    place: u64,
    len: u64,
}

struct Post {
    s: Stage,
    twos: Vec<Two>,
    bufs: Vec<Buf>,
    sends: Vec<Sent>,
    tokens: u64,
}

impl Stage {
    /// The owners of buffers ask for themselves.
    pub fn buffer_events(&mut self, node: usize, buffer: u32) {
        while self.call(node, |e, _| e.next_buffer_event(buffer)).is_some() {}
    }
}

impl Post {
    fn new(setup: Setup) -> Post {
        let (twos, bufs, sends) = (vec![], vec![], vec![]);
        Post { s: setup.connected(), twos, bufs, sends, tokens: 0 }
    }

    fn pair(&mut self) -> usize {
        let ids = [0, 1].map(|node| {
            self.tokens += 1;
            let token = self.tokens;
            self.s.call(node, |e, _| e.pair_create(node as u64, token, None)).unwrap()
        });
        self.twos.push(Two { ids, called: [false; 2], closed: [false; 2], lossy: false });
        self.twos.len() - 1
    }

    fn state(&self, two: usize, node: usize) -> PairState {
        let engine = self.s.engines[node].as_ref().unwrap();
        engine.pair_facts(self.twos[two].ids[node]).unwrap().state
    }

    fn connect(&mut self, two: usize, node: usize) -> Result<(), Status> {
        let other = self.s.engines[1 - node].as_ref().unwrap();
        let token = match other.pair_facts(self.twos[two].ids[1 - node]) {
            Ok(facts) => facts.token,
            Err(_) => 77,
        };
        let engine = self.s.engines[node].as_ref().unwrap();
        let peer = engine.find_peer(&format!("node{}", 1 - node)).unwrap();
        let id = self.twos[two].ids[node];
        self.twos[two].called[node] = true;
        self.s.call(node, |e, fx| e.pair_connect(fx, id, Connecting { peer, token }))
    }

    fn buffer(&mut self, two: usize, node: usize, way: Way, slot: u64) -> Result<usize, Status> {
        let len = if way == Way::Send { LARGE } else { PLACES * LARGE };
        let addr = self.s.memory(node, 0, len, format!("buffer {}", self.bufs.len()));
        let (id, of) = (self.twos[two].ids[node], Slot { way, slot, addr, len });
        let made = self.s.call(node, |e, fx| e.buffer_create(fx, id, of, None));
        let id = made.inspect_err(|_| self.s.w.mem.free(addr, "it was not made"))?;
        let (ended, gone, arrivals) = (vec![], false, 0);
        self.bufs.push(Buf { node, two, id, way, slot, addr, gone, ended, arrivals });
        Ok(self.bufs.len() - 1)
    }

    /// Sends from a buffer of which nothing else is under way, so that its memory may change.
    fn send(&mut self, buffer: usize, place: u64, len: u64) -> Result<(), Status> {
        let (number, b) = (self.sends.len(), &self.bufs[buffer]);
        let (node, id, addr) = (b.node, b.id, b.addr);
        let who = self.s.w.who(node);
        self.s.w.mem.write(who, false, addr, &content(number, len), "the application");
        self.s.call(node, |e, fx| {
            e.buffer_send(fx, id, Part { offset: 0, len }, place * LARGE, &[])
        })?;
        self.sends.push(Sent { buffer, place, len });
        self.look();
        Ok(())
    }

    fn begun(&self, buffer: usize) -> usize {
        self.sends.iter().filter(|s| s.buffer == buffer).count()
    }

    fn is_idle(&self, buffer: usize) -> bool {
        self.begun(buffer) == self.bufs[buffer].ended.len()
    }

    fn destroy(&mut self, buffer: usize) {
        let b = &mut self.bufs[buffer];
        b.gone = true;
        let (node, id, addr, two) = (b.node, b.id, b.addr, b.two);
        if b.way == Way::Recv {
            self.twos[two].lossy = true;
        }
        let released = self.s.call(node, |e, fx| e.buffer_release(fx, id)).unwrap();
        if !self.s.call(node, |e, _| e.buffer_is_free(&released)) {
            self.s.let_all_go();
            self.s.pass(1);
        }
        if !self.s.call(node, |e, _| e.buffer_is_free(&released)) {
            self.twos.iter_mut().for_each(|two| two.lossy = true);
            self.s.call(node, |e, fx| e.buffer_force(fx, &released));
            self.s.run();
        }
        assert!(self.s.call(node, |e, _| e.buffer_is_free(&released)), "it is not free");
        self.s.w.mem.free(addr, "its buffer was destroyed");
    }

    fn close(&mut self, two: usize, node: usize) {
        self.twos[two].closed[node] = true;
        self.twos[two].lossy = true;
        let id = self.twos[two].ids[node];
        let released = self.s.call(node, |e, fx| e.pair_close(fx, id)).unwrap();
        self.s.let_all_go();
        for r in &released {
            if !self.s.call(node, |e, _| e.buffer_is_free(r)) {
                self.twos.iter_mut().for_each(|two| two.lossy = true);
                self.s.call(node, |e, fx| e.buffer_force(fx, r));
                self.s.run();
            }
            assert!(self.s.call(node, |e, _| e.buffer_is_free(r)), "it is not free");
        }
        for b in &mut self.bufs {
            if b.two == two && b.node == node && !b.gone {
                b.gone = true;
                self.s.w.mem.free(b.addr, "its pair was closed");
            }
        }
    }

    /// Takes what there is to be heard of.
    fn look(&mut self) {
        for i in 0..self.bufs.len() {
            let Buf { node, id, way, gone: false, .. } = self.bufs[i] else { continue };
            loop {
                let counts = self.s.call(node, |e, _| e.buffer_counts(id)).unwrap();
                if counts == (0, 0) {
                    break;
                }
                let taken = self.s.call(node, |e, _| e.buffer_take(id, way));
                match way {
                    Way::Recv => self.bufs[i].arrivals += 1,
                    Way::Send => self.bufs[i].ended.push(taken.map(drop).map_err(|s| s.code)),
                }
            }
            assert!(self.bufs[i].ended.len() <= self.begun(i), "a send ended twice");
        }
    }

    /// Each place of a receive buffer holds what was sent to it, or nothing.
    fn check(&self, buffer: usize) {
        let b = &self.bufs[buffer];
        let bytes =
            self.s.w.mem.read(self.s.w.who(b.node), false, b.addr, PLACES * LARGE, "a look");
        for place in 0..PLACES {
            let there = &bytes[(place * LARGE) as usize..][..LARGE as usize];
            let to = |s: &&Sent| {
                let of = &self.bufs[s.buffer];
                of.two == b.two && of.node != b.node && of.slot == b.slot && s.place == place
            };
            let held = |s: &Sent| {
                let number = self.sends.iter().position(|other| std::ptr::eq(other, s)).unwrap();
                there[..s.len as usize] == content(number, s.len)[..]
            };
            let sent: Vec<&Sent> = self.sends.iter().filter(to).collect();
            let empty = there.iter().all(|&b| b == FILL);
            // The last that ended well is there, where nothing was lost.
            let lossy = self.twos[b.two].lossy || sent.iter().any(|s| !self.ended_well(s));
            match sent.last() {
                None => assert!(empty, "what was sent elsewhere"),
                Some(last) if !lossy => assert!(held(last), "place {place}: not the last"),
                Some(_) => assert!(empty || there[0] != FILL || sent.iter().any(|s| held(s))),
            }
        }
    }

    fn ended_well(&self, sent: &Sent) -> bool {
        self.bufs[sent.buffer].ended.iter().all(Result::is_ok) && self.is_idle(sent.buffer)
    }

    fn finish(mut self) {
        self.s.let_all_go();
        self.s.pass(2_000);
        self.look();
        for i in 0..self.bufs.len() {
            let b = &self.bufs[i];
            if b.gone {
                continue;
            }
            match b.way {
                Way::Send => assert!(self.is_idle(i), "a send has no end"),
                Way::Recv => {
                    self.check(i);
                    let to_it = |s: &&Sent| {
                        let of = &self.bufs[s.buffer];
                        of.two == b.two && of.node != b.node && of.slot == b.slot
                    };
                    let sent: Vec<&Sent> = self.sends.iter().filter(to_it).collect();
                    let well = sent.iter().all(|s| self.ended_well(s));
                    if well && !self.twos[b.two].lossy {
                        assert_eq!(b.arrivals, sent.len(), "arrivals");
                    }
                    assert!(b.arrivals <= sent.len(), "more arrivals than sends");
                }
            }
        }
        for two in 0..self.twos.len() {
            for node in [0, 1] {
                if !self.twos[two].closed[node] {
                    self.close(two, node);
                }
            }
        }
        self.s.finish();
    }
}

/// What a walk draws.
struct Walk {
    rng: Rng,
    losses: bool,
}

impl Walk {
    fn live(&mut self, post: &Post, way: Way) -> Option<usize> {
        let live = |(i, b): (usize, &Buf)| (b.way == way && !b.gone).then_some(i);
        let all: Vec<usize> = post.bufs.iter().enumerate().filter_map(live).collect();
        if all.is_empty() { None } else { Some(self.rng.pick(&all)) }
    }

    fn open_pair(&mut self, post: &Post, node: usize) -> Option<usize> {
        let open: Vec<usize> =
            (0..post.twos.len()).filter(|&i| !post.twos[i].closed[node]).collect();
        if open.is_empty() { None } else { Some(self.rng.pick(&open)) }
    }

    fn step(&mut self, post: &mut Post) {
        let node = self.rng.below(2) as usize;
        match self.rng.below(100) {
            0..4 if post.twos.len() < 6 => _ = post.pair(),
            4..14 => {
                if let Some(two) = self.open_pair(post, node) {
                    let _ = post.connect(two, node);
                }
            }
            14..32 => {
                if let Some(two) = self.open_pair(post, node) {
                    let way = if self.rng.percent(50) { Way::Send } else { Way::Recv };
                    let slot = self.rng.below(3);
                    let _ = post.buffer(two, node, way, slot);
                }
            }
            32..74 => {
                if let Some(buffer) = self.live(post, Way::Send).filter(|&b| post.is_idle(b)) {
                    let len = self.rng.pick(&[0, 8, 40, EAGER, LARGE]);
                    let _ = post.send(buffer, self.rng.below(PLACES), len);
                }
            }
            74..78 => {
                let way = if self.rng.percent(50) { Way::Send } else { Way::Recv };
                if let Some(buffer) = self.live(post, way) {
                    post.destroy(buffer);
                }
            }
            78 => {
                if let Some(two) = self.open_pair(post, node) {
                    post.close(two, node);
                }
            }
            79..88 => {
                let kind = self.rng.pick(&KINDS);
                if post.s.may(node, kind) {
                    post.s.hold(node, kind);
                }
            }
            88..93 => post.s.let_all_go(),
            93..95 if self.losses => {
                post.twos.iter_mut().for_each(|two| two.lossy = true);
                match self.rng.percent(50) {
                    true => post.s.cut(),
                    false => post.s.lose(node),
                }
                post.s.run();
                if self.rng.percent(50) {
                    post.s.connect(node);
                }
            }
            _ => post.s.pass(self.rng.below(300)),
        }
        if self.rng.percent(60) {
            post.s.run();
        }
        post.look();
    }
}

/// What a walk holds back.
const KINDS: [Kind; 10] = [
    Kind::PairHello,
    Kind::SlotOpen,
    Kind::SlotClose,
    Kind::SlotClosed,
    Kind::SlotDone,
    Kind::SlotChecked,
    Kind::Write,
    Kind::Imm,
    Kind::Hash,
    Kind::Done,
];

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

fn walks(setup: impl Fn() -> Setup, losses: bool) {
    let from = number("PAIR_FROM", 0);
    for seed in from..from + number("PAIR_SEEDS", 150) {
        let walk = || {
            let mut walk = Walk { rng: Rng::new(seed), losses };
            let mut post = Post::new(setup());
            let two = post.pair();
            if walk.rng.percent(80) {
                post.connect(two, 0).unwrap();
                post.connect(two, 1).unwrap();
            }
            for _ in 0..200 {
                walk.step(&mut post);
            }
            post.finish();
        };
        if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(walk)) {
            eprintln!("PAIR_FROM={seed} PAIR_SEEDS=1 repeats this");
            std::panic::resume_unwind(panic);
        }
    }
}

macro_rules! walk {
    ($($name:ident: $setup:expr, $losses:literal;)*) => {$(
        #[test]
        fn $name() {
            walks(|| $setup, $losses);
        }
    )*};
}

walk! {
    walk_with_windows: shm(), false;
    walk_without_windows: ibverbs(), false;
    walk_with_checksums: shm().checksums(), false;
    walk_with_checksums_without_windows: ibverbs().checksums(), false;
    walk_with_a_short_queue: Setup { sq_depth: 3, ..ibverbs() }, false;
    walk_with_losses: shm(), true;
    walk_with_losses_without_windows: ibverbs(), true;
    walk_with_losses_and_checksums: shm().checksums(), true;
}

fn two_of(setup: Setup) -> (Post, usize, usize) {
    let mut post = Post::new(setup);
    let two = post.pair();
    post.connect(two, R).unwrap();
    post.connect(two, S).unwrap();
    post.s.run();
    let to = post.buffer(two, R, Way::Recv, 5).unwrap();
    let from = post.buffer(two, S, Way::Send, 5).unwrap();
    (post, from, to)
}

/// In the steady state a send is its writes and nothing else.
#[test]
fn a_slot_needs_no_message() {
    let (mut post, from, to) = two_of(shm());
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
