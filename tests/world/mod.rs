//! What engines act on in tests: their memory, and the connections between them, in virtual time.
//!
//! It keeps the provider contract and checks that the engines do: who touches which memory, how many
//! messages a receive queue holds, which regions are open. When anything happens, and what fails, says
//! [`Fate`]: the seeded simulation draws it, a scenario writes it down.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rdma_transport::engine::{ChanId, Work};
use rdma_transport::fabric::Caps;

pub mod fx;
pub mod memory;
pub mod net;
pub mod rng;

use memory::{Memory, Region, Who};
use net::{Conn, NetEvent};

/// What may fail, or be refused, of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Memory of the library.
    Alloc,
    /// Content is not put in its place.
    Deliver,
    /// Memory is not opened.
    Open,
    /// Memory is not registered with a further network device.
    Card,
}

/// Who decides when things happen, and what fails.
pub trait Fate {
    /// The first operation of this direction may take effect from now on: [`World::net`].
    fn moves(&mut self, now: u64, conn: usize, side: usize);
    /// One more completion of this end may be reported: [`World::completion`]. Not before `earliest`; when.
    fn completes(&mut self, now: u64, conn: usize, side: usize, earliest: u64) -> u64;
    /// The node has something to poll.
    fn wakes(&mut self, now: u64, who: Who, node: &mut Node);
    /// The node tries to connect.
    fn dials(&mut self, now: u64, who: Who, to: usize);
    /// The node tries to connect once more, for a rail of this channel.
    fn dials_rail(&mut self, now: u64, who: Who, to: usize, main: ChanId);
    /// How much of what is left of a write or read takes effect at once.
    fn part(&mut self, left: u64) -> u64;
    /// Whether this fails now.
    fn fails(&mut self, node: usize, what: Fault) -> bool;
    /// Whether memory that is not registered needs a proxy, where there are no windows.
    fn needs_proxy(&mut self) -> bool;
    /// Whether a device's memory can be opened.
    fn opens_device(&mut self) -> bool;
    /// Whether messages that were posted before an end was destroyed still arrive.
    fn last_words(&mut self) -> bool;
    /// A number for a memory key.
    fn key(&mut self) -> u32;
    /// Something worth counting was met.
    fn meet(&mut self, what: &str) {
        let _ = what;
    }
}

/// What the world knows of a node.
pub struct Node {
    pub inc: u64,
    pub up: bool,
    pub closing: bool,
    pub caps: Caps,
    /// Depth of the send queue of each of its connections.
    pub sq_depth: usize,
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
    pub fn new(nodes: usize, caps: Caps, sq_depth: usize) -> Node {
        Node {
            inc: 1,
            up: true,
            closing: false,
            caps,
            sq_depth,
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
        *self = Node { inc, ..Node::new(self.dialing.len(), self.caps.clone(), self.sq_depth) };
    }

    /// The process is gone, and what it had to do.
    pub fn crash(&mut self) {
        self.up = false;
        self.work.clear();
        self.deliveries.clear();
        self.inbox.clear();
        self.chans.clear();
    }
}

/// Everything but the engines, and what drives them.
pub struct World<F> {
    pub now: u64,
    pub fate: F,
    pub mem: Memory,
    pub conns: Vec<Conn>,
    pub nodes: Vec<Node>,
    /// Without windows: longest region.
    pub max_region: u64,
    /// Network devices of each node.
    pub cards: u8,
    pub tracing: bool,
    /// To which requests metadata went.
    pub told: BTreeSet<(Who, (ChanId, u32))>,
}

impl<F: Fate> World<F> {
    pub fn build(
        fate: F,
        nodes: Vec<Node>,
        (max_region, cards): (u64, u8),
        tracing: bool,
    ) -> World<F> {
        World {
            // Not 0: a time of 0 would hide comparisons that are the wrong way round.
            now: 1_000_000_000,
            fate,
            mem: Memory::default(),
            conns: Vec::new(),
            nodes,
            max_region,
            cards,
            tracing,
            told: BTreeSet::new(),
        }
    }

    pub fn who(&self, node: usize) -> Who {
        Who { node, inc: self.nodes[node].inc }
    }

    /// Whether this incarnation lives.
    pub fn lives(&self, who: Who) -> bool {
        self.nodes[who.node].up && self.nodes[who.node].inc == who.inc
    }

    pub fn trace(&self, text: impl FnOnce() -> String) {
        if self.tracing {
            println!("{:>12.6} {}", (self.now - 1_000_000_000) as f64 / 1e6, text());
        }
    }

    /// Makes sure that a node looks for events soon.
    pub fn wake(&mut self, node: usize) {
        let who = self.who(node);
        self.fate.wakes(self.now, who, &mut self.nodes[node]);
    }

    /// Begins an attempt to connect.
    pub fn dial(&mut self, from: usize, to: usize) {
        if !std::mem::replace(&mut self.nodes[from].dialing[to], true) {
            let who = self.who(from);
            self.fate.dials(self.now, who, to);
        }
    }

    /// Registers memory with all network devices of its owner, but for those that fail to; its key for the first.
    pub fn register(&mut self, region: Region) -> u32 {
        let (rkey, node) = (self.key(), region.who.node);
        self.mem.open(rkey, region);
        for card in 1..self.cards {
            if self.fate.fails(node, Fault::Card) {
                continue;
            }
            let key = self.key();
            self.mem.open_on(rkey, card, key);
        }
        rkey
    }

    /// A key that no region has.
    pub fn key(&mut self) -> u32 {
        loop {
            let key = self.fate.key();
            if key != 0 && !self.mem.regions.contains_key(&key) {
                return key;
            }
        }
    }
}
