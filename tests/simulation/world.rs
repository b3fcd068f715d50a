//! Everything but the engines: virtual time, memory, connections, queues of work.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use rdma_transport::engine::{ChanId, Work};
use rdma_transport::status::Status;

use super::app::Act;
use super::fabric::{Conn, NetEvent};
use super::memory::{Memory, Who};
use super::profile::Profile;
use super::rng::{Rng, mix};

/// Something that happens at a time.
pub enum Event {
    /// The next operation of one direction of a connection takes effect, or a part of it.
    Net { conn: usize, side: usize },
    /// The oldest completion of one end is reported.
    Completion { conn: usize, side: usize },
    /// The connection of one end goes down.
    Kill { conn: usize, side: usize },
    /// One end learns that it is connected.
    Open { conn: usize, side: usize },
    /// An attempt to connect ends.
    Connect { who: Who, to: usize },
    /// A node looks for events.
    Poll { who: Who },
    /// A node's timer.
    Tick { who: Who },
    /// A node runs what the engine queued.
    Work { who: Who },
    /// An answer of the application or of a copy that took its time.
    Later { who: Who, what: Later },
    /// The application does something.
    App(Act),
}

/// Ends of work that was begun.
pub enum Later {
    Allocated { request: u32, alloc: rdma_transport::api::AllocFn, addr: Option<u64> },
    Copy { token: u64, dst: (u64, bool), src: (u64, bool), len: u64 },
    Hash { token: u64, addr: u64, len: u64 },
    Hashed { token: u64, result: Result<u64, Status> },
    Copied { token: u64, result: Result<(), Status> },
}

struct Queued {
    at: u64,
    seq: u64,
    event: Event,
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.seq == other.seq
    }
}
impl Eq for Queued {}
impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Queued {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.seq).cmp(&(other.at, other.seq))
    }
}

/// What the world knows of a node.
pub struct Node {
    pub inc: u64,
    pub up: bool,
    pub closing: bool,
    pub chans: BTreeMap<ChanId, (usize, usize)>,
    pub inbox: VecDeque<(usize, usize, NetEvent)>,
    pub work: VecDeque<Work>,
    /// Content to be put in its place before any of that.
    pub deliveries: Vec<(u64, Vec<u8>)>,
    pub stalled_until: u64,
    pub poll_at: u64,
    pub tick_at: u64,
    pub work_at: u64,
    /// A post found its queue full since the last turn.
    pub full: bool,
    /// Receives that have ended: completions queued.
    pub recvs_ended: usize,
    pub recvs_begun: usize,
    /// Connection attempts under way, by target.
    pub dialing: Vec<bool>,
}

impl Node {
    fn new(nodes: usize) -> Node {
        Node {
            inc: 1,
            up: true,
            closing: false,
            chans: BTreeMap::new(),
            inbox: VecDeque::new(),
            work: VecDeque::new(),
            deliveries: Vec::new(),
            stalled_until: 0,
            poll_at: u64::MAX,
            tick_at: u64::MAX,
            work_at: u64::MAX,
            full: false,
            recvs_ended: 0,
            recvs_begun: 0,
            dialing: vec![false; nodes],
        }
    }

    /// Forgets what belonged to the incarnation that ended.
    pub fn restart(&mut self) {
        let inc = self.inc + 1;
        *self = Node { inc, ..Node::new(self.dialing.len()) };
    }
}

pub struct World {
    pub now: u64,
    pub rng: Rng,
    pub profile: Profile,
    pub mem: Memory,
    pub conns: Vec<Conn>,
    pub nodes: Vec<Node>,
    pub tracing: bool,
    /// No more faults: the end has begun.
    pub calm: bool,
    /// Folds all that happened, to compare two runs of a seed.
    pub hash: u64,
    /// How often what was met, to show that the runs reach it.
    pub met: BTreeMap<String, u64>,
    /// To which requests metadata went.
    pub told: BTreeSet<(Who, (ChanId, u32))>,
    queue: BinaryHeap<Reverse<Queued>>,
    seq: u64,
}

impl World {
    pub fn new(seed: u64, tracing: bool) -> World {
        let mut rng = Rng::new(seed);
        let profile = Profile::draw(&mut rng);
        let nodes = (0..profile.nodes).map(|_| Node::new(profile.nodes)).collect();
        World {
            // Not 0: a time of 0 would hide comparisons that are the wrong way round.
            now: 1_000_000_000,
            rng,
            profile,
            mem: Memory::default(),
            conns: Vec::new(),
            nodes,
            tracing,
            calm: false,
            hash: 0,
            met: BTreeMap::new(),
            told: BTreeSet::new(),
            queue: BinaryHeap::new(),
            seq: 0,
        }
    }

    pub fn who(&self, node: usize) -> Who {
        Who { node, inc: self.nodes[node].inc }
    }

    /// Whether this incarnation lives.
    pub fn lives(&self, who: Who) -> bool {
        self.nodes[who.node].up && self.nodes[who.node].inc == who.inc
    }

    pub fn at(&mut self, at: u64, event: Event) {
        self.seq += 1;
        self.queue.push(Reverse(Queued { at: at.max(self.now), seq: self.seq, event }));
    }

    pub fn after(&mut self, delay: u64, event: Event) {
        self.at(self.now + delay, event);
    }

    /// The next event not later than `until`; time moves to it.
    pub fn pop(&mut self, until: u64) -> Option<Event> {
        if self.queue.peek()?.0.at > until {
            return None;
        }
        let Reverse(q) = self.queue.pop()?;
        self.now = q.at;
        self.note(q.seq);
        Some(q.event)
    }

    pub fn meet(&mut self, what: impl Into<String>) {
        *self.met.entry(what.into()).or_default() += 1;
    }

    /// Folds a number into the run's hash.
    pub fn note(&mut self, n: u64) {
        self.hash = mix(self.hash ^ mix(n ^ self.now));
    }

    pub fn trace(&self, text: impl FnOnce() -> String) {
        if self.tracing {
            println!("{:>12.6} {}", (self.now - 1_000_000_000) as f64 / 1e6, text());
        }
    }

    /// A delay up to `max`, short ones as likely as all longer ones.
    pub fn delay(&mut self, max: u64) -> u64 {
        let max = if self.rng.percent(50) { max / 20 } else { max };
        self.rng.below(max + 1)
    }

    /// Makes sure that a node looks for events soon.
    pub fn wake(&mut self, node: usize) {
        let delay = self.delay(20_000);
        let at = (self.now + delay).max(self.nodes[node].stalled_until);
        if at < self.nodes[node].poll_at {
            self.nodes[node].poll_at = at;
            let who = self.who(node);
            self.at(at, Event::Poll { who });
        }
    }

    /// True so many times in a hundred, as long as there are faults.
    pub fn fault(&mut self, percent: u64) -> bool {
        percent > 0 && !self.calm && self.rng.percent(percent)
    }

    /// A key that no region has.
    pub fn key(&mut self) -> u32 {
        loop {
            let key = self.rng.next() as u32;
            if key != 0 && !self.mem.regions.contains_key(&key) {
                return key;
            }
        }
    }
}
