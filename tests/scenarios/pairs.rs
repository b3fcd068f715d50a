//! Pairs and buffers: seeded walks over two engines. Scenarios by name are in `pairs_by_name.rs`.
//!
//! A walk makes pairs and buffers, connects, sends, destroys and closes at random, holds things back on the wire and lets
//! them go, and loses connections. It holds: each send ends once; an arrival is told once for each send that took effect;
//! what a buffer holds was sent to just that slot and place, the last send of a place last; memory that was given back
//! is touched by nobody; nothing is left. `PAIR_SEEDS` says how many walks there are of each kind, `PAIR_FROM` where they
//! begin.

use rdma_transport::engine::front::pair::{Connecting, PairState, Part, Slot, Way};
use rdma_transport::status::{Code, Status};

use super::common::memory::content;
use super::common::rng::Rng;
use super::kind::Kind;
use super::script::{EAGER, LARGE, R, S, Setup, ibverbs, shm};
use super::stage::Stage;

const FILL: u8 = 0xCD;
/// Places in a receive buffer, each as long as the longest content.
pub const PLACES: u64 = 4;

/// Two ends that are, or may be, of each other.
pub struct Two {
    pub ids: [u64; 2],
    /// Which has been told to connect.
    pub called: [bool; 2],
    pub closed: [bool; 2],
    /// A receive buffer of it was destroyed, or a connection lost: what was sent then may be lost, too.
    pub lossy: bool,
}

pub struct Buf {
    pub node: usize,
    pub two: usize,
    pub id: u64,
    pub way: Way,
    pub slot: u64,
    pub addr: u64,
    /// Of a receive buffer: how many places it has.
    pub places: u64,
    pub gone: bool,
    /// Of a send buffer: how its sends ended. Of a receive buffer: arrivals.
    pub ended: Vec<Result<(), Code>>,
    pub arrivals: usize,
}

/// A send, by the number of its content.
pub struct Sent {
    pub buffer: usize,
    pub place: u64,
    pub len: u64,
}

pub struct Post {
    pub s: Stage,
    pub twos: Vec<Two>,
    pub bufs: Vec<Buf>,
    pub sends: Vec<Sent>,
    pub tokens: u64,
}

impl Stage {
    /// The owners of buffers ask for themselves.
    pub fn buffer_events(&mut self, node: usize, buffer: u32) {
        // Not by `call`, which comes back to here for the next work.
        let Some(engine) = self.engines[node].as_mut() else { return };
        while engine.next_buffer_event(buffer).is_some() {}
    }
}

impl Post {
    pub fn new(setup: Setup) -> Post {
        let mut post = Post::unconnected(setup);
        post.s.connect(0);
        post.s.run();
        post
    }

    pub fn unconnected(setup: Setup) -> Post {
        let (twos, bufs, sends) = (vec![], vec![], vec![]);
        Post { s: setup.stage(), twos, bufs, sends, tokens: 0 }
    }

    pub fn pair(&mut self) -> usize {
        let ids = [0, 1].map(|node| {
            self.tokens += 1;
            let token = self.tokens;
            self.s.call(node, |e, _| e.pair_create(node as u64, token, None)).unwrap()
        });
        self.twos.push(Two { ids, called: [false; 2], closed: [false; 2], lossy: false });
        self.twos.len() - 1
    }

    pub fn state(&self, two: usize, node: usize) -> PairState {
        let engine = self.s.engines[node].as_ref().unwrap();
        engine.pair_facts(self.twos[two].ids[node]).unwrap().state
    }

    pub fn connect(&mut self, two: usize, node: usize) -> Result<(), Status> {
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

    pub fn buffer(
        &mut self,
        two: usize,
        node: usize,
        way: Way,
        slot: u64,
    ) -> Result<usize, Status> {
        self.buffer_of(two, node, way, slot, PLACES)
    }

    /// A buffer; one to receive has so many places.
    pub fn buffer_of(
        &mut self,
        two: usize,
        node: usize,
        way: Way,
        slot: u64,
        places: u64,
    ) -> Result<usize, Status> {
        let len = if way == Way::Send { LARGE } else { places * LARGE };
        let addr = self.s.memory(node, 0, len, format!("buffer {}", self.bufs.len()));
        let (id, of) = (self.twos[two].ids[node], Slot { way, slot, addr, len });
        let made = self.s.call(node, |e, fx| e.buffer_create(fx, id, of, None));
        let id = made.inspect_err(|_| self.s.w.mem.free(addr, "it was not made"))?;
        let (ended, gone, arrivals) = (vec![], false, 0);
        self.bufs.push(Buf { node, two, id, way, slot, addr, places, gone, ended, arrivals });
        Ok(self.bufs.len() - 1)
    }

    /// Sends from a buffer of which nothing else is under way, so that its memory may change.
    pub fn send(&mut self, buffer: usize, place: u64, len: u64) -> Result<(), Status> {
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

    pub fn begun(&self, buffer: usize) -> usize {
        self.sends.iter().filter(|s| s.buffer == buffer).count()
    }

    pub fn is_idle(&self, buffer: usize) -> bool {
        self.begun(buffer) == self.bufs[buffer].ended.len()
    }

    pub fn destroy(&mut self, buffer: usize) {
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

    pub fn close(&mut self, two: usize, node: usize) {
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
    pub fn look(&mut self) {
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
    pub fn check(&self, buffer: usize) {
        let b = &self.bufs[buffer];
        let bytes =
            self.s.w.mem.read(self.s.w.who(b.node), false, b.addr, b.places * LARGE, "a look");
        for place in 0..b.places {
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

    pub fn ended_well(&self, sent: &Sent) -> bool {
        self.bufs[sent.buffer].ended.iter().all(Result::is_ok) && self.is_idle(sent.buffer)
    }

    pub fn finish(mut self) {
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
                let Two { closed, lossy, .. } = &self.twos[two];
                if !lossy && !closed.contains(&true) {
                    let broken = matches!(self.state(two, node), PairState::Broken(_));
                    assert!(!broken, "a pair has ended by itself");
                }
                if !closed[node] {
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
                let conn = self.rng.below(post.s.conn() as u64 + 1) as usize;
                match self.rng.below(4) {
                    0 => post.s.cut(),
                    1 => post.s.lose(node),
                    2 => post.s.cut_one(conn),
                    _ => post.s.lose_of(conn, node),
                }
                post.s.run();
                match self.rng.below(4) {
                    0 => post.s.connect(node),
                    1 => _ = post.s.cross(),
                    _ => {}
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
            let mut post = Post::unconnected(setup());
            let two = post.pair();
            match walk.rng.percent(50) {
                true => post.s.connect(0),
                false => _ = post.s.cross(),
            }
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

/// Two connected pairs, a buffer that is sent from and one that is written to, of slot 5.
pub fn two_of(setup: Setup) -> (Post, usize, usize) {
    let mut post = Post::new(setup);
    let two = post.pair();
    post.connect(two, R).unwrap();
    post.connect(two, S).unwrap();
    post.s.run();
    let to = post.buffer(two, R, Way::Recv, 5).unwrap();
    let from = post.buffer(two, S, Way::Send, 5).unwrap();
    (post, from, to)
}
