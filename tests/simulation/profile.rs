//! What one run is like: drawn from its seed.

use rdma_transport::api::Protocol;
use rdma_transport::engine::Settings;
use rdma_transport::engine::transfer::sizes::Sizes;
use rdma_transport::engine::transfer::table::TABLE;
use rdma_transport::fabric::{Caps, ProviderKind};

use super::common::rng::Rng;

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;

#[derive(Clone, Debug)]
pub struct Profile {
    pub nodes: usize,
    /// Pairs of a send and its receive.
    pub pairs: usize,
    /// Nothing is disturbed: every transfer must succeed, and soon.
    pub quiet: bool,
    /// Depth of the send queue, by node.
    pub sq_depth: Vec<usize>,
    /// Longest delay of one hop.
    pub latency: u64,
    /// Most parts in which one operation takes effect.
    pub parts: u64,
    /// Without windows: how often the application's memory is registered, and how often memory that
    /// is not needs a proxy.
    pub registered: u64,
    pub need_proxy: u64,
    /// Without windows: longest region.
    pub max_region: u64,
    /// Faults, in percent of the events they concern.
    pub alloc_fails: u64,
    pub open_fails: u64,
    pub connect_fails: u64,
    pub cancels: u64,
    pub aborts: u64,
    pub short_timeouts: u64,
    pub strays: u64,
    /// Faults, number in this run.
    pub drops: u64,
    pub stalls: u64,
    pub crashes: u64,
    pub disconnects: u64,
    pub shutdowns: u64,
    pub manual: bool,
    pub devices: bool,
    /// Network devices of each node.
    pub cards: u8,
    pub sources: bool,
    pub large: u64,
    pub per_node: Vec<(Caps, Settings)>,
}

impl Profile {
    pub fn draw(rng: &mut Rng) -> Profile {
        let quiet = rng.percent(30);
        let nodes = rng.range(2, 3) as usize;
        // Each kind of disturbance in a part of the runs, so that many runs have few of them.
        let mut some = |percent: u64, of: u64| {
            let on = !quiet && rng.percent(percent);
            let n = rng.range(1, of);
            if on { n } else { 0 }
        };
        let (alloc_fails, open_fails) = (some(15, 10), some(15, 10));
        let (connect_fails, cancels) = (some(30, 60), some(50, 40));
        let (aborts, short_timeouts) = (some(30, 30), some(40, 40));
        let (strays, drops) = (some(40, 30), some(35, 10));
        let (stalls, crashes) = (some(35, 6), some(50, 6));
        let (disconnects, shutdowns) = (some(20, 4), some(20, 3));
        let manual = !quiet && crashes + drops + stalls == 0 && rng.percent(30);
        let windows = rng.percent(50);
        let max_rdma = rng.pick(&[64, 100, 1000, 4096, 1 << 20]);
        let max_send = rng.pick(&[200, 256, 300, 1024, 4096]);
        let eager_max = rng.pick(&[0, 16, 64, 200, 1000]);
        let read = rng.percent(60);
        let checksum = rng.percent(30);
        let tolerate_dup_recv = rng.percent(30);
        let forced: Vec<_> = TABLE.iter().filter(|e| e.forced).map(|e| e.protocol).collect();
        let forced = &forced[1..]; // The first leaves the choice to the engine.
        let protocol = if rng.percent(30) { rng.pick(forced) } else { Protocol::Auto };
        let provider = if windows { ProviderKind::Shm } else { ProviderKind::Ibverbs };
        let (timeout, peer_timeout) = match quiet {
            true => (5_000 * MS, 10_000 * MS),
            false => (rng.range(50, 2000) * MS, rng.range(100, 1000) * MS),
        };
        // Answers on their way for so long that the slots of their requests are in use again.
        let far = !quiet && rng.percent(10);
        let cancels = if far { cancels.max(50) } else { cancels };
        let mut per_node = Vec::new();
        for _ in 0..nodes {
            // Seldom the two ends differ in what they can do and want.
            let odd = rng.percent(10);
            let caps = Caps {
                provider,
                max_send,
                eager_max,
                max_rdma: if odd { 128 } else { max_rdma },
                windows,
                recv_depth: rng.pick(&[8, 9, 11, 16, 33, 64]),
                // Some nodes can only be written to.
                read: rng.pick(&[true, true, true, false]) && if odd { !read } else { read },
                plain_max: rng.pick(&[0, 0, 3000]),
                direct_max: 0,
                staged_max: rng.pick(&[0, 0, 6000, 1 << 20]),
            };
            let settings = Settings {
                timeout,
                peer_timeout,
                protocol: if odd { rng.pick(forced) } else { protocol },
                sizes: Box::new(
                    [Sizes {
                        max_send_size: 4096,
                        rndv_eager_limit: rng.pick(&[0, 16, 100]),
                        min_rdma_pipeline_size: rng.pick(&[0, 0, 300, 3000]),
                        rdma_pipeline_frag_size: rng.pick(&[100, 1000, 1 << 20]),
                        rdma_pipeline_send_length: rng.pick(&[0, 50, 1000, 1 << 20]),
                        send_pipeline_depth: rng.pick(&[1, 2, 4]),
                        ..Sizes::default()
                    }; 4],
                ),
                eager_max: if rng.percent(20) { Some(rng.below(300) as usize) } else { None },
                meta_cache_entries: rng.pick(&[1, 3, 4096]),
                checksum: checksum != odd,
                tolerate_dup_recv,
                max_waiting: if quiet { 1024 } else { rng.pick(&[2, 20, 1024]) },
                max_waiting_bytes: if quiet { 1 << 30 } else { rng.pick(&[500, 5000, 1 << 30]) },
                max_waiting_bytes_all: 1 << 31,
                guest_descriptors: 1000,
                unmet: u64::MAX,
                buffers: rng.pick(&[0, 16 << 10, 1 << 20]),
            };
            per_node.push((caps, settings));
        }
        // Drawn last, so that a seed is otherwise what it was. One side that wants none refuses those of the other.
        // By a copy of what draws, for the same reason.
        let cards = rng.clone().pick(&[1, 1, 2, 3]);
        let rails = rng.pick(&[1, 1, 2, 3, 4]);
        let striped = rng.pick(&[1, 100, 1000]);
        for (_, settings) in &mut per_node {
            let rails = if rng.percent(5) { 1 } else { rails };
            for sizes in settings.sizes.iter_mut() {
                (sizes.max_rdma_per_request, sizes.min_striped_size) = (rails, striped);
            }
        }
        Profile {
            nodes,
            pairs: if far { 500 } else { rng.range(10, 200) as usize },
            quiet,
            sq_depth: (0..nodes).map(|_| rng.pick(&[1, 2, 3, 8, 64])).collect(),
            latency: if far { 3_000 } else { rng.pick(&[2, 10, 50]) } * US,
            parts: rng.range(1, 4),
            registered: rng.pick(&[0, 50, 100]),
            need_proxy: rng.pick(&[0, 50, 100]),
            max_region: if windows { u64::MAX } else { rng.pick(&[16, 100, 1000, u64::MAX]) },
            alloc_fails,
            open_fails,
            connect_fails,
            cancels,
            aborts,
            short_timeouts,
            strays,
            drops,
            stalls,
            crashes,
            disconnects,
            shutdowns,
            manual,
            devices: rng.percent(40),
            cards,
            sources: rng.percent(30),
            large: if max_rdma < 1000 { 4_000 } else { 30_000 },
            per_node,
        }
    }
}
