//! A manager's settings: options given in code, overridden by the environment.

mod devices;
mod env;
pub mod misspelt;
mod tuning;

use crate::api::MAX_NAME_LEN;
use crate::counted::Counted;
use crate::engine::transfer::sizes::Chosen;
use crate::engine::transfer::table;
use crate::fabric::ProviderKind;
use crate::memory::pool::Pool;
use crate::status::Status;
pub use tuning::{Tuning, TuningOutcome};

/// Longest deadline in milliseconds, 100 years: fits every unit the engine computes in.
pub const MAX_TIMEOUT_MS: u64 = 100 * 365 * 24 * 3_600_000;
/// Longest shared secret in bytes.
pub const MAX_SECRET_LEN: usize = 4096;
/// Longest address to listen on in bytes.
pub const MAX_LISTEN_LEN: usize = 1024;
/// Longest name of an ibverbs device in bytes.
pub const MAX_DEVICE_LEN: usize = 320;
/// Most ibverbs devices that a manager uses.
pub const MAX_DEVICES: usize = 4;
/// Sizes that `RDMA_QP_MTU` may have, beside 0 for the active one.
pub const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];

/// Who drives progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The library's own thread.
    Thread,
    /// The application, inside `rdma_mgr_progress`, `rdma_mgr_wait` and blocking calls.
    Manual,
}

/// A manager's settings, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// This worker's name; unique among its peers.
    pub name: String,
    /// Required provider; `None` chooses per peer.
    pub provider: Option<ProviderKind>,
    /// It is required by the environment.
    pub provider_from_env: bool,
    /// Address to listen on, `host:port`; `None`: loopback, any port, on first need.
    pub listen: Option<String>,
    /// Shared secret of the handshake.
    pub secret: Option<Vec<u8>>,
    /// Who drives progress.
    pub progress: Progress,
    /// Forced transfer protocol (`RDMA_PROTOCOL_*`), 0: chosen per transfer.
    pub protocol: u32,
    /// Default deadline of an operation, in milliseconds.
    pub timeout_ms: u64,
    /// Time to spin before sleeping, in microseconds.
    pub busy_poll_us: u64,
    /// Silence after which a peer counts as stalled, in milliseconds. 0: never; only a connection
    /// that ends is a peer that is gone. Time in which this manager was not driven, or the machine
    /// stood still, does not count.
    pub peer_timeout_ms: u64,
    /// Largest content that rides in the response; `None`: the provider's own.
    pub eager_max: Option<usize>,
    /// Bound of the metadata cache, entries per peer.
    pub meta_cache_entries: usize,
    /// Bytes of memory that nobody registered whose registration is kept for the next transfer; 0: none.
    pub registration_cache_bytes: u64,
    /// Depth of send and receive queues (`RDMA_QP_QUEUE_DEPTH`).
    pub queue_depth: u32,
    /// Validate content end to end.
    pub checksum: bool,
    /// Duplicate receives wait instead of failing.
    pub tolerate_dup_recv: bool,
    /// May listen beyond loopback without a secret.
    pub allow_remote: bool,
    /// Forced copy path of shm (`RDMA_SHM_COPY`: pool, cma, ring), for tests and odd kernels.
    pub shm_copy: Option<String>,
    /// File to trace to from the start (`RDMA_TRACE`); "%p" becomes the process id, "%n" the name.
    pub trace: Option<String>,
    /// By what sizes long messages are cut, as far as the environment says.
    pub sizes: Box<Chosen>,
    /// The same for each provider, as far as the tuning file says.
    pub tuning: Tuning,
    /// A pool of the application, beside the manager's own.
    pub pool: Option<Counted<Pool>>,
    /// Settings of the ibverbs provider.
    pub ib: IbConfig,
}

/// Settings of the ibverbs provider, by the names of TensorFlow's contrib/verbs.
#[derive(Clone, Debug)]
pub struct IbConfig {
    /// `RDMA_DEVICE`: a name, or up to [`MAX_DEVICES`] of them, with a comma between; each may say its port behind a colon.
    pub device: Option<String>,
    /// The environment said so, and not the application.
    pub device_from_env: bool,
    /// `RDMA_DEVICE_PORT`; 0: first active.
    pub port: u8,
    /// `RDMA_GID_INDEX`; -1: chosen.
    pub gid_index: i32,
    /// `RDMA_QP_PKEY_INDEX`
    pub pkey_index: u16,
    /// `RDMA_QP_TIMEOUT`, 0 to 31: 4.096 µs · 2^timeout.
    pub timeout: u8,
    /// `RDMA_QP_RETRY_COUNT`, 0 to 7.
    pub retry_count: u8,
    /// `RDMA_QP_SL`, 0 to 7.
    pub sl: u8,
    /// `RDMA_QP_MTU` in bytes; 0: the port's active MTU.
    pub mtu: u32,
    /// `RDMA_TRAFFIC_CLASS`
    pub traffic_class: u8,
    /// Connect through rdma_cm.
    pub use_rdma_cm: bool,
    /// Entries of a completion queue; 0: as many as can be needed. Fewer overrun: for tests.
    pub cq_entries: u32,
    /// Longest memory region, below the device's own limit: for tests (`RDMA_MAX_REGION`).
    pub max_region: u64,
}

impl Default for IbConfig {
    fn default() -> Self {
        IbConfig {
            device: None,
            device_from_env: false,
            port: 0,
            gid_index: -1,
            pkey_index: 0,
            timeout: 14,
            retry_count: 7,
            sl: 0,
            mtu: 0,
            traffic_class: 0,
            use_rdma_cm: false,
            cq_entries: 0,
            max_region: u64::MAX,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            name: String::new(),
            provider: None,
            provider_from_env: false,
            listen: None,
            secret: None,
            progress: Progress::Thread,
            protocol: 0,
            timeout_ms: 120_000,
            busy_poll_us: 50,
            peer_timeout_ms: 10_000,
            eager_max: None,
            meta_cache_entries: 4096,
            registration_cache_bytes: 0,
            queue_depth: 1024,
            checksum: false,
            tolerate_dup_recv: false,
            allow_remote: false,
            shm_copy: None,
            trace: None,
            sizes: Box::default(),
            tuning: Tuning::default(),
            pool: None,
            ib: IbConfig::default(),
        }
    }
}

impl Config {
    /// Silence after which a peer counts as stalled, in milliseconds; `u64::MAX`: never.
    pub fn patience_ms(&self) -> u64 {
        if self.peer_timeout_ms == 0 { u64::MAX } else { self.peer_timeout_ms }
    }

    /// Checks every setting and generates the name if there is none.
    pub fn finish(&mut self) -> Result<(), Status> {
        if self.name.is_empty() {
            self.name = generated_name()?;
        }
        text("name", &self.name, MAX_NAME_LEN)?;
        if let Some(address) = &self.listen {
            check_listen("listen", address)?;
        }
        if let Some(secret) = &self.secret {
            let what = "the secret's length";
            range(what, secret.len() as i128, 1, MAX_SECRET_LEN as i64)?;
        }
        if let Err(allowed) = table::forced(self.protocol, |e| e.name.into()) {
            let text = text!("protocol is {}, allowed are {allowed}", self.protocol);
            return Err(Status::invalid(text));
        }
        let most = MAX_TIMEOUT_MS as i64;
        range("timeout_ms", self.timeout_ms as i128, 1, most)?;
        range("peer_timeout_ms", self.peer_timeout_ms as i128, 0, most)?;
        range("busy_poll_us", self.busy_poll_us as i128, 0, limits::BUSY_POLL_US)?;
        range("eager_max", self.eager_max.unwrap_or(0) as i128, 0, limits::EAGER_MAX)?;
        let entries = self.meta_cache_entries as i128;
        range("meta_cache_entries", entries, 0, limits::META_CACHE_ENTRIES)?;
        let kept = i128::from(self.registration_cache_bytes);
        range("registration_cache_bytes", kept, 0, limits::REGISTRATION_CACHE)?;
        range("queue_depth", self.queue_depth as i128, 1, limits::QUEUE_DEPTH)?;
        if let Some(copy) = &self.shm_copy {
            choice("shm_copy", copy, &SHM_COPIES)?;
        }
        self.ib.check()
    }
}

impl IbConfig {
    fn check(&self) -> Result<(), Status> {
        if let Some(device) = &self.device {
            text("ib_device", device, MAX_DEVICE_LEN)?;
            self.devices()?;
        }
        range("ib_gid_index", self.gid_index as i128, -1, limits::GID_INDEX)?;
        range("ib_timeout", self.timeout as i128, 0, limits::QP_TIMEOUT)?;
        range("ib_retry_count", self.retry_count as i128, 0, limits::RETRY_COUNT)?;
        range("ib_sl", self.sl as i128, 0, limits::SL)?;
        check_mtu("ib_mtu", self.mtu as i128).map(|_| ())
    }
}

/// Upper ends of the ranges of numbers.
pub mod limits {
    /// `busy_poll_us`
    pub const BUSY_POLL_US: i64 = 60_000_000;
    /// `eager_max`
    pub const EAGER_MAX: i64 = 1 << 30;
    /// `meta_cache_entries`
    pub const META_CACHE_ENTRIES: i64 = 1 << 24;
    /// `registration_cache_bytes`
    pub const REGISTRATION_CACHE: i64 = 1 << 46;
    /// `queue_depth`
    pub const QUEUE_DEPTH: i64 = 65535;
    /// `ib_port`
    pub const PORT: i64 = 255;
    /// `ib_gid_index`
    pub const GID_INDEX: i64 = 65535;
    /// `ib_pkey_index`
    pub const PKEY_INDEX: i64 = 65535;
    /// `ib_timeout`
    pub const QP_TIMEOUT: i64 = 31;
    /// `ib_retry_count`
    pub const RETRY_COUNT: i64 = 7;
    /// `ib_sl`
    pub const SL: i64 = 7;
    /// Lower end of `RDMA_MAX_REGION`: a page.
    pub const MIN_REGION: i64 = 4096;
    /// `ib_traffic_class`
    pub const TRAFFIC_CLASS: i64 = 255;
}

/// Copy paths of shm.
const SHM_COPIES: [&str; 3] = ["pool", "cma", "ring"];

/// Checks that a number is within its range. The message names both.
pub fn range(what: &str, value: i128, min: i64, max: i64) -> Result<i64, Status> {
    match i64::try_from(value) {
        Ok(n) if (min..=max).contains(&n) => Ok(n),
        _ => Err(Status::invalid(text!("{what} is {value}, allowed are {min} to {max}"))),
    }
}

/// Checks an MTU in bytes; 0 is the active one.
pub fn check_mtu(what: &str, value: i128) -> Result<u32, Status> {
    match u32::try_from(value) {
        Ok(mtu) if mtu == 0 || MTUS.contains(&mtu) => Ok(mtu),
        _ => Err(Status::invalid(text!(
            "{what} is {value}, allowed are 0 (the active MTU), 256, 512, 1024, 2048, 4096"
        ))),
    }
}

/// Checks a word against the allowed ones.
fn choice<'a>(what: &str, value: &str, allowed: &[&'a str]) -> Result<&'a str, Status> {
    allowed.iter().copied().find(|&word| word == value).ok_or_else(|| {
        Status::invalid(text!("{what} is {value:?}, allowed are {}", allowed.join(", ")))
    })
}

/// Checks the length of a text and that it has no NUL.
fn text(what: &str, value: &str, max: usize) -> Result<(), Status> {
    if value.is_empty() || value.len() > max {
        let len = value.len();
        return Err(Status::invalid(text!("{what} has {len} bytes, allowed are 1 to {max}")));
    }
    if value.contains('\0') {
        return Err(Status::invalid(text!("{what} {value:?} contains a NUL byte")));
    }
    Ok(())
}

/// Checks the form of an address, as it is for all that listens; the host is resolved when listening.
fn check_listen(what: &str, address: &str) -> Result<(), Status> {
    text(what, address, MAX_LISTEN_LEN)?;
    let bad = |why: Status| Status::invalid(text!("{what}: {}", why.into_message()));
    crate::bootstrap::split(address).map(drop).map_err(bad)
}

/// `host-pid-random`: unique without coordination.
fn generated_name() -> Result<String, Status> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host.trim().chars().filter(|c| c.is_ascii_graphic()).take(64).collect();
    let host = if host.is_empty() { "host" } else { &host };
    let random = getrandom::u32().map_err(Status::random)?;
    Ok(format!("{host}-{}-{random:08x}", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(change: impl FnOnce(&mut Config)) -> String {
        let mut config = Config::default();
        change(&mut config);
        config.finish().unwrap_err().into_message()
    }

    #[test]
    fn defaults_are_valid_and_get_a_unique_name() {
        let (mut a, mut b) = (Config::default(), Config::default());
        a.finish().unwrap();
        b.finish().unwrap();
        assert_ne!(a.name, b.name);
        assert!(a.name.contains(&format!("-{}-", std::process::id())), "{}", a.name);
        a.name = "w".repeat(MAX_NAME_LEN);
        a.finish().unwrap();
        assert_eq!(a.name.len(), MAX_NAME_LEN, "a given name stays");
    }

    #[test]
    fn wrong_settings_are_named_with_value_and_range() {
        assert!(error(|c| c.name = "w".repeat(256)).contains("name has 256 bytes"));
        assert!(error(|c| c.name = "a\0b".into()).contains("NUL"));
        assert!(error(|c| c.secret = Some(vec![])).contains("is 0, allowed are 1 to 4096"));
        assert!(error(|c| c.protocol = 1).contains("protocol is 1, allowed are 0 (auto)"));
        assert!(error(|c| c.protocol = 7).contains("protocol is 7"));
        assert!(error(|c| c.timeout_ms = 0).contains("timeout_ms is 0, allowed are 1 to"));
        assert!(error(|c| c.timeout_ms = u64::MAX).contains("timeout_ms is 18446744073709551615"));
        assert!(error(|c| c.peer_timeout_ms = u64::MAX).contains("allowed are 0 to"));
        assert!(error(|c| c.queue_depth = 0).contains("queue_depth is 0, allowed are 1 to 65535"));
        assert!(error(|c| c.eager_max = Some(usize::MAX)).contains("eager_max is"));
        assert!(error(|c| c.shm_copy = Some("dma".into())).contains("pool, cma, ring"));
        assert!(error(|c| c.ib.timeout = 32).contains("ib_timeout is 32, allowed are 0 to 31"));
        assert!(error(|c| c.ib.mtu = 1500).contains("ib_mtu is 1500, allowed are 0"));
        assert!(error(|c| c.ib.device = Some(String::new())).contains("ib_device has 0 bytes"));
    }

    #[test]
    fn addresses_to_listen_on() {
        for good in ["127.0.0.1:0", "localhost:65535", "[::1]:80", "[fe80::1%eth0]:1", "0.0.0.0:1"]
        {
            check_listen("listen", good).unwrap();
        }
        // As rdma_mgr_listen and rdma_store_serve have it: without a port it is any.
        for good in ["127.0.0.1", "host", "[::1]", "::1"] {
            check_listen("listen", good).unwrap();
        }
        for bad in ["", ":1", "host:", "host:x", "h:65536", "h:-1", "h:+1", "a:b:80", "[]:1"] {
            let text = check_listen("listen", bad).unwrap_err().into_message();
            assert!(bad.is_empty() || text.contains("'host', port 0 to 65535"), "{text}");
        }
    }
}
