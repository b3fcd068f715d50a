//! What happened: counters and latencies per peer and provider, as JSON and as Prometheus text;
//! and traces that Perfetto opens.
//!
//! A channel asks [`Stats::peer`] once for its [`PeerCounters`] and keeps them; counting is then a load and a
//! store, since whoever counts holds the manager's lock.

mod histogram;
mod render;
mod trace;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

pub use histogram::{BUCKETS, Histogram, HistogramSnapshot};
pub use render::{prometheus, providers_json, stats_json};
pub use trace::{Args, Trace};

use crate::api::Protocol;
use crate::engine::transfer::table::TABLE;
use crate::fabric::ProviderKind;
use crate::status::Code;

/// Number of codes.
pub const CODES: usize = 17;
/// Number of protocols.
pub const PROTOCOLS: usize = TABLE.len();
/// Pairs of peer and provider that are counted apart; what comes later is counted together.
pub const MAX_PEERS: usize = 8192;
/// Peer's name under which the rest is counted.
pub const OTHERS: &str = "(others)";

/// A number that grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds. One thread at a time, which the manager's lock sees to; others may read meanwhile.
    pub fn add(&self, n: u64) {
        self.0.store(self.get().wrapping_add(n), Ordering::Relaxed);
    }
    /// Takes off, for numbers that also shrink; as [`add`](Self::add).
    pub fn sub(&self, n: u64) {
        self.0.store(self.get().wrapping_sub(n), Ordering::Relaxed);
    }
    /// The number now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of one peer over one provider. Shared by its channels and those that come after them.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct PeerCounters {
    /// Content sent, bytes.
    pub bytes_sent: Counter,
    /// Content received, bytes.
    pub bytes_received: Counter,
    /// Requests made of the peer.
    pub requests_sent: Counter,
    /// Requests the peer made.
    pub requests_received: Counter,
    /// Connections that came up.
    pub connects: Counter,
    /// Connections that went down.
    pub disconnects: Counter,
    /// Times a post found the queue full and had to wait.
    pub queue_full: Counter,
    /// Content that this side's READs and WRITEs carried over rails, bytes.
    pub rail_bytes: Counter,
    /// Time from the call of a receive to its end, successful ones.
    pub recv_latency: Histogram,
    completions: [Counter; CODES],
    protocols: [Counter; PROTOCOLS],
}

impl PeerCounters {
    /// A send to the peer ended.
    pub fn send_done(&self, bytes: u64, code: Code, protocol: Protocol) {
        self.completed(code, protocol);
        if code == Code::Ok {
            self.bytes_sent.add(bytes);
        }
    }

    /// A receive from the peer ended, `elapsed_ns` after its call.
    pub fn recv_done(&self, bytes: u64, elapsed_ns: u64, code: Code, protocol: Protocol) {
        self.completed(code, protocol);
        if code == Code::Ok {
            self.bytes_received.add(bytes);
            self.recv_latency.record(elapsed_ns);
        }
    }

    fn completed(&self, code: Code, protocol: Protocol) {
        self.completions[code as usize].add(1);
        if code == Code::Ok {
            self.protocols[protocol as usize].add(1);
        }
    }

    fn snapshot(&self, peer: &str, provider: &'static str) -> PeerSnapshot {
        PeerSnapshot {
            peer: peer.to_owned(),
            provider,
            bytes_sent: self.bytes_sent.get(),
            bytes_received: self.bytes_received.get(),
            requests_sent: self.requests_sent.get(),
            requests_received: self.requests_received.get(),
            connects: self.connects.get(),
            disconnects: self.disconnects.get(),
            queue_full: self.queue_full.get(),
            rail_bytes: self.rail_bytes.get(),
            completions: std::array::from_fn(|i| self.completions[i].get()),
            protocols: std::array::from_fn(|i| self.protocols[i].get()),
            recv_latency: self.recv_latency.snapshot(),
        }
    }
}

/// Counters of a manager.
#[derive(Debug, Default)]
pub struct ManagerCounters {
    /// Memory registrations made.
    pub registrations: Counter,
    /// Memory registrations ended.
    pub deregistrations: Counter,
    /// Bytes registered now.
    pub registered_bytes: Counter,
    /// Metadata found in the cache.
    pub meta_hits: Counter,
    /// Metadata not found, or changed since.
    pub meta_misses: Counter,
    /// Contents that went through a proxy, bytes.
    pub proxy_bytes: Counter,
    /// Steps aborted.
    pub steps_aborted: Counter,
    /// Operations that ended with INTERNAL, by a defect of the library.
    pub internal_ends: Counter,
}

/// All counters of a manager.
#[derive(Debug)]
pub struct Stats {
    manager: Mutex<String>,
    started: Instant,
    /// Those not of a peer.
    pub own: ManagerCounters,
    peers: Mutex<BTreeMap<(String, &'static str), Arc<PeerCounters>>>,
}

impl Stats {
    /// Counters of the manager of this name, all zero.
    pub fn new(manager: &str) -> Stats {
        Stats {
            manager: Mutex::new(manager.to_owned()),
            started: Instant::now(),
            own: ManagerCounters::default(),
            peers: Mutex::new(BTreeMap::new()),
        }
    }

    /// The manager has another name.
    pub fn rename(&self, manager: &str) {
        manager.clone_into(&mut self.manager.lock());
    }

    /// The counters of a peer ("" is oneself) over a provider ("" is none yet, "local" oneself).
    /// To be kept by the channel; takes a lock.
    pub fn peer(&self, peer: &str, provider: &'static str) -> Arc<PeerCounters> {
        let mut peers = self.peers.lock();
        let key = (peer.to_owned(), provider);
        let full = peers.len() >= MAX_PEERS && !peers.contains_key(&key);
        let key = if full { (OTHERS.to_owned(), "") } else { key };
        peers.entry(key).or_default().clone()
    }

    /// Forgets the counters of a peer. Those that somebody still counts in stay.
    pub fn forget(&self, peer: &str) {
        let mut peers = self.peers.lock();
        for via in ["", "loopback", "shm", "ibverbs", "tcp"] {
            let key = (peer.to_owned(), via);
            if peers.get(&key).is_some_and(|c| Arc::strong_count(c) == 1) {
                peers.remove(&key);
            }
        }
    }

    /// Sums over the providers of a peer: bytes sent and received, requests sent and received.
    pub fn totals(&self, peer: &str) -> [u64; 4] {
        let peers = self.peers.lock();
        let mine = peers.iter().filter(|((name, _), _)| name == peer);
        mine.fold([0; 4], |[sent, received, asked, answered], (_, counters)| {
            [
                sent + counters.bytes_sent.get(),
                received + counters.bytes_received.get(),
                asked + counters.requests_sent.get(),
                answered + counters.requests_received.get(),
            ]
        })
    }

    /// All numbers as they are now. `gauges` adds numbers that only the caller knows, by name in
    /// the form `requests_pending`.
    pub fn snapshot(&self, gauges: Vec<(&'static str, u64)>) -> Snapshot {
        let own = &self.own;
        let counters = vec![
            ("registrations", own.registrations.get()),
            ("deregistrations", own.deregistrations.get()),
            ("meta_hits", own.meta_hits.get()),
            ("meta_misses", own.meta_misses.get()),
            ("proxy_bytes", own.proxy_bytes.get()),
            ("steps_aborted", own.steps_aborted.get()),
            ("internal_ends", own.internal_ends.get()),
        ];
        let mut all = vec![("registered_bytes", own.registered_bytes.get())];
        all.extend(gauges);
        let peers = self.peers.lock();
        Snapshot {
            manager: self.manager.lock().clone(),
            uptime_ms: self.started.elapsed().as_millis() as u64,
            counters,
            gauges: all,
            peers: peers.iter().map(|((peer, via), c)| c.snapshot(peer, via)).collect(),
        }
    }
}

/// The numbers of a manager at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The manager's name.
    pub manager: String,
    /// Its age.
    pub uptime_ms: u64,
    /// Numbers that grow, by name.
    pub counters: Vec<(&'static str, u64)>,
    /// Numbers that go up and down, by name.
    pub gauges: Vec<(&'static str, u64)>,
    /// Per peer and provider.
    pub peers: Vec<PeerSnapshot>,
}

/// The numbers of one peer over one provider at one moment.
#[derive(Clone, Debug, Default)]
pub struct PeerSnapshot {
    /// Name, "" for oneself.
    pub peer: String,
    /// Provider.
    pub provider: &'static str,
    /// See [`PeerCounters`].
    pub bytes_sent: u64,
    /// See [`PeerCounters`].
    pub bytes_received: u64,
    /// See [`PeerCounters`].
    pub requests_sent: u64,
    /// See [`PeerCounters`].
    pub requests_received: u64,
    /// See [`PeerCounters`].
    pub connects: u64,
    /// See [`PeerCounters`].
    pub disconnects: u64,
    /// See [`PeerCounters`].
    pub queue_full: u64,
    /// See [`PeerCounters`].
    pub rail_bytes: u64,
    /// Ends of sends and receives, by code.
    pub completions: [u64; CODES],
    /// Successful ones, by protocol.
    pub protocols: [u64; PROTOCOLS],
    /// See [`PeerCounters`].
    pub recv_latency: HistogramSnapshot,
}

/// Whether a provider can be used here, and why.
#[derive(Clone, Debug)]
pub struct ProviderStatus {
    /// Which.
    pub kind: ProviderKind,
    /// It can.
    pub available: bool,
    /// What was found, or what is missing.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_per_peer_and_provider() {
        let stats = Stats::new("w0");
        let tcp = stats.peer("w1", "tcp");
        let shm = stats.peer("w1", "shm");
        assert!(Arc::ptr_eq(&tcp, &stats.peer("w1", "tcp")));
        tcp.send_done(10, Code::Ok, Protocol::Eager);
        tcp.send_done(99, Code::Unavailable, Protocol::Auto);
        shm.recv_done(5, 1000, Code::Ok, Protocol::DirectGet);
        shm.recv_done(7, 1000, Code::Cancelled, Protocol::DirectGet);
        shm.requests_sent.add(2);
        stats.own.registered_bytes.add(100);
        stats.own.registered_bytes.sub(40);
        assert_eq!(stats.totals("w1"), [10, 5, 2, 0]);
        assert_eq!(stats.totals("w2"), [0; 4]);

        let snapshot = stats.snapshot(vec![("requests_pending", 3)]);
        assert_eq!(snapshot.gauges, [("registered_bytes", 60), ("requests_pending", 3)]);
        let tcp = snapshot.peers.iter().find(|p| p.provider == "tcp").unwrap();
        assert_eq!((tcp.completions[0], tcp.completions[14], tcp.bytes_sent), (1, 1, 10));
        assert_eq!(tcp.protocols, [0, 0, 1, 0, 0, 0, 0]);
        let shm = snapshot.peers.iter().find(|p| p.provider == "shm").unwrap();
        assert_eq!((shm.recv_latency.count, shm.completions[1]), (1, 1));
    }

    #[test]
    fn the_number_of_peers_is_bounded() {
        let stats = Stats::new("w0");
        for i in 0..MAX_PEERS + 10 {
            stats.peer(&format!("w{i}"), "tcp").connects.add(1);
        }
        assert!(Arc::ptr_eq(&stats.peer("w0", "tcp"), &stats.peer("w0", "tcp")));
        let snapshot = stats.snapshot(Vec::new());
        assert_eq!(snapshot.peers.len(), MAX_PEERS + 1);
        assert_eq!(stats.peer("never seen", "tcp").connects.get(), 10);
    }
}
