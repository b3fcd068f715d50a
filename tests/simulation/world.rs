//! When things happen in a run, and what fails: drawn from its seed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::{Deref, DerefMut};

use rdma_transport::engine::ChanId;
use rdma_transport::status::Status;

use super::app::Act;
use super::common::fx::NodeFx;
use super::common::memory::Who;
use super::common::rng::{Rng, mix};
use super::common::{self as world, Fate, Fault, Node};
use super::profile::{MS, Profile, US};

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
    /// The same of one more connection, for a rail of this channel.
    Rail { who: Who, to: usize, main: ChanId },
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

/// Time, luck and faults of one run, all drawn from its seed.
pub struct Seeded {
    pub rng: Rng,
    pub profile: Profile,
    /// No more faults: the end has begun.
    pub calm: bool,
    /// Folds all that happened, to compare two runs of a seed.
    pub hash: u64,
    /// How often what was met, to show that the runs reach it.
    pub met: BTreeMap<String, u64>,
    queue: BinaryHeap<Reverse<Queued>>,
    seq: u64,
}

pub type World = world::World<Seeded>;
pub type SimFx<'a> = NodeFx<'a, Seeded>;

// The run's luck is the world's: `w.rng`, `w.profile`.
impl Deref for World {
    type Target = Seeded;
    fn deref(&self) -> &Seeded {
        &self.fate
    }
}
impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Seeded {
        &mut self.fate
    }
}

impl Seeded {
    fn at(&mut self, now: u64, at: u64, event: Event) {
        self.seq += 1;
        self.queue.push(Reverse(Queued { at: at.max(now), seq: self.seq, event }));
    }

    /// A delay up to `max`, short ones as likely as all longer ones.
    pub fn delay(&mut self, max: u64) -> u64 {
        let max = if self.rng.percent(50) { max / 20 } else { max };
        self.rng.below(max + 1)
    }

    /// True so many times in a hundred, as long as there are faults.
    pub fn fault(&mut self, percent: u64) -> bool {
        percent > 0 && !self.calm && self.rng.percent(percent)
    }
}

impl Fate for Seeded {
    fn moves(&mut self, now: u64, conn: usize, side: usize) {
        let delay = self.delay(self.profile.latency);
        self.at(now, now + delay, Event::Net { conn, side });
    }

    fn completes(&mut self, now: u64, conn: usize, side: usize, earliest: u64) -> u64 {
        let delay = self.delay(2 * self.profile.latency);
        let at = earliest.max(now + delay);
        self.at(now, at, Event::Completion { conn, side });
        at
    }

    fn wakes(&mut self, now: u64, who: Who, node: &mut Node) {
        let delay = self.delay(20_000);
        let at = (now + delay).max(node.stalled_until);
        if at < node.poll_at {
            node.poll_at = at;
            self.at(now, at, Event::Poll { who });
        }
    }

    fn dials(&mut self, now: u64, who: Who, to: usize) {
        let max = if self.profile.quiet { 300 * US } else { 3 * MS };
        let delay = self.delay(max);
        self.at(now, now + delay, Event::Connect { who, to });
    }

    fn dials_rail(&mut self, now: u64, who: Who, to: usize, main: ChanId) {
        let delay = self.delay(300 * US);
        self.at(now, now + delay, Event::Rail { who, to, main });
    }

    fn part(&mut self, left: u64) -> u64 {
        let parts = self.rng.range(1, self.profile.parts);
        left.div_ceil(parts).min(left)
    }

    fn fails(&mut self, _: usize, what: Fault) -> bool {
        self.fault(match what {
            Fault::Alloc | Fault::Deliver => self.profile.alloc_fails,
            Fault::Open => self.profile.open_fails,
            Fault::Card => 5,
        })
    }

    fn needs_proxy(&mut self) -> bool {
        self.rng.percent(self.profile.need_proxy)
    }

    fn opens_device(&mut self) -> bool {
        self.rng.percent(self.profile.registered)
    }

    fn last_words(&mut self) -> bool {
        self.rng.percent(50)
    }

    fn key(&mut self) -> u32 {
        self.rng.next() as u32
    }

    fn meet(&mut self, what: &str) {
        *self.met.entry(what.to_owned()).or_default() += 1;
    }
}

impl World {
    pub fn new(seed: u64, tracing: bool) -> World {
        let mut rng = Rng::new(seed);
        let profile = Profile::draw(&mut rng);
        let node =
            |i: usize| Node::new(profile.nodes, profile.per_node[i].0.clone(), profile.sq_depth[i]);
        let nodes = (0..profile.nodes).map(node).collect();
        let sizes = (profile.max_region, profile.cards);
        let (met, queue) = (BTreeMap::new(), BinaryHeap::new());
        let fate = Seeded { rng, profile, calm: false, hash: 0, met, queue, seq: 0 };
        World::build(fate, nodes, sizes, tracing)
    }

    pub fn at(&mut self, at: u64, event: Event) {
        self.fate.at(self.now, at, event);
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

    /// Whether a copy of this node is under way.
    pub fn copies(&self, who: Who) -> bool {
        self.queue.iter().any(|Reverse(q)| match &q.event {
            Event::Later { who: of, what: Later::Copy { .. } | Later::Copied { .. } } => *of == who,
            _ => false,
        })
    }

    pub fn meet(&mut self, what: impl Into<String>) {
        *self.met.entry(what.into()).or_default() += 1;
    }

    /// See [`Seeded::delay`].
    pub fn delay(&mut self, max: u64) -> u64 {
        self.fate.delay(max)
    }

    /// See [`Seeded::fault`].
    pub fn fault(&mut self, percent: u64) -> bool {
        self.fate.fault(percent)
    }

    /// Folds a number into the run's hash.
    pub fn note(&mut self, n: u64) {
        self.hash = mix(self.hash ^ mix(n ^ self.now));
    }
}
