//! What a scenario decides, and how its two nodes are made.

use std::collections::{BTreeSet, VecDeque};

use rdma_transport::api::Protocol;
use rdma_transport::engine::transfer::sizes::Sizes;
use rdma_transport::engine::{ChanId, Settings};
use rdma_transport::fabric::{Caps, ProviderKind};

use super::common::memory::Who;
use super::common::{Fate, Fault, Node};

pub const MS: u64 = 1_000_000;
/// The receiver, mostly, and the sender.
pub const R: usize = 0;
pub const S: usize = 1;
/// The largest eager content, and content that is written or read in three pieces.
pub const EAGER: u64 = 100;
pub const LARGE: u64 = 1000;
/// Of the pipeline: the first bytes, a fragment, the last bytes.
pub const FIRST: u64 = 60;
pub const FRAGMENT: u64 = 200;
pub const LAST: u64 = 300;

/// Nothing happens by itself, and what fails was said to.
#[derive(Default)]
pub struct Script {
    keys: u32,
    /// Bytes of a write or read that take effect at once; `None`: all.
    pub part: Option<u64>,
    pub failing: BTreeSet<(usize, Fault)>,
    /// Memory of the application, where there are no windows.
    pub proxies: bool,
    /// Memory of devices can be opened.
    pub devices: bool,
    pub last_words: bool,
    pub dials: VecDeque<(Who, usize)>,
    pub rails: VecDeque<(Who, ChanId)>,
}

impl Fate for Script {
    fn moves(&mut self, _: u64, _: usize, _: usize) {}

    fn completes(&mut self, now: u64, _: usize, _: usize, _: u64) -> u64 {
        now
    }

    fn wakes(&mut self, _: u64, _: Who, _: &mut Node) {}

    fn dials(&mut self, _: u64, who: Who, to: usize) {
        self.dials.push_back((who, to));
    }

    fn dials_rail(&mut self, _: u64, who: Who, _: usize, main: ChanId) {
        self.rails.push_back((who, main));
    }

    fn part(&mut self, left: u64) -> u64 {
        self.part.unwrap_or(left).min(left)
    }

    fn fails(&mut self, node: usize, what: Fault) -> bool {
        self.failing.contains(&(node, what))
    }

    fn needs_proxy(&mut self) -> bool {
        self.proxies
    }

    fn opens_device(&mut self) -> bool {
        self.devices
    }

    fn last_words(&mut self) -> bool {
        self.last_words
    }

    fn key(&mut self) -> u32 {
        self.keys += 1;
        self.keys
    }
}

/// Two nodes before they begin.
#[derive(Clone)]
pub struct Setup {
    pub caps: [Caps; 2],
    pub settings: [Settings; 2],
    pub sq_depth: usize,
    pub max_region: u64,
    /// Network devices of each node; rails go between the last ones.
    pub cards: u8,
    pub proxies: bool,
    pub devices: bool,
    /// A node drives progress itself, and may be silent.
    pub manual: bool,
    /// Neither knows the other before it connects.
    pub guests: bool,
}

/// Both nodes with windows, or without.
fn setup(windows: bool) -> Setup {
    let caps = Caps {
        provider: if windows { ProviderKind::Shm } else { ProviderKind::Ibverbs },
        max_send: 1024,
        eager_max: EAGER as usize,
        max_rdma: 400,
        read: true,
        windows,
        recv_depth: 16,
        plain_max: 0,
        direct_max: 0,
        staged_max: 0,
    };
    let settings = Settings {
        timeout: 1_000 * MS,
        peer_timeout: 10_000 * MS,
        protocol: Protocol::Auto,
        eager_max: None,
        sizes: Box::new(
            [Sizes {
                max_send_size: 300,
                rdma_pipeline_frag_size: FRAGMENT,
                rdma_pipeline_send_length: LAST,
                send_pipeline_depth: 1,
                ..Sizes::default()
            }; 4],
        ),
        meta_cache_entries: 100,
        checksum: false,
        tolerate_dup_recv: false,
        max_waiting: 1024,
        max_waiting_bytes: 1 << 30,
        max_waiting_bytes_all: 1 << 31,
        guest_descriptors: 1000,
        unmet: u64::MAX,
        buffers: 64 << 10,
    };
    Setup {
        caps: [caps.clone(), caps],
        settings: [settings.clone(), settings],
        sq_depth: 64,
        max_region: u64::MAX,
        cards: 1,
        proxies: false,
        devices: false,
        manual: false,
        guests: false,
    }
}

/// A provider with windows.
pub fn shm() -> Setup {
    setup(true)
}

/// A provider without.
pub fn ibverbs() -> Setup {
    setup(false)
}

impl Setup {
    /// Changes what both can do.
    pub fn caps(mut self, change: impl Fn(&mut Caps)) -> Setup {
        self.caps.iter_mut().for_each(change);
        self
    }

    /// Changes both settings.
    pub fn settings(mut self, change: impl Fn(&mut Settings)) -> Setup {
        self.settings.iter_mut().for_each(change);
        self
    }

    /// Each is a guest of the other.
    pub fn guests(mut self) -> Setup {
        self.guests = true;
        self
    }

    pub fn no_reads(self) -> Setup {
        self.caps(|c| c.read = false)
    }

    /// Long content of messages is copied first.
    pub fn staged(self) -> Setup {
        self.caps(|c| c.staged_max = LARGE)
    }

    pub fn checksums(self) -> Setup {
        self.settings(|s| s.checksum = true)
    }

    pub fn proxies(mut self) -> Setup {
        self.proxies = true;
        self
    }

    pub fn cards(mut self, cards: u8) -> Setup {
        self.cards = cards;
        self
    }

    pub fn forced(self, protocol: Protocol) -> Setup {
        self.settings(|s| s.protocol = protocol)
    }

    pub fn world(&self) -> super::World {
        let script = Script {
            proxies: self.proxies,
            devices: self.devices,
            last_words: true,
            ..Script::default()
        };
        let nodes = self.caps.iter().map(|c| Node::new(2, c.clone(), self.sq_depth)).collect();
        let tracing = std::env::var_os("SCENARIO_TRACE").is_some();
        super::World::build(script, nodes, (self.max_region, self.cards), tracing)
    }
}
