//! A manager's settings: options given in code, overridden by the environment.

use crate::fabric::ProviderKind;

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
    /// Silence after which a peer counts as stalled, in milliseconds.
    pub peer_timeout_ms: u64,
    /// Largest content that rides in the response; `None`: the provider's own.
    pub eager_max: Option<usize>,
    /// Bound of the metadata cache, entries per peer.
    pub meta_cache_entries: usize,
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
    /// Settings of the ibverbs provider.
    pub ib: IbConfig,
}

/// Settings of the ibverbs provider, by the names of TensorFlow's contrib/verbs.
#[derive(Clone, Debug)]
pub struct IbConfig {
    /// `RDMA_DEVICE`
    pub device: Option<String>,
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
}

impl Default for IbConfig {
    fn default() -> Self {
        IbConfig {
            device: None,
            port: 0,
            gid_index: -1,
            pkey_index: 0,
            timeout: 14,
            retry_count: 7,
            sl: 0,
            mtu: 0,
            traffic_class: 0,
            use_rdma_cm: false,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            name: String::new(),
            provider: None,
            listen: None,
            secret: None,
            progress: Progress::Thread,
            protocol: 0,
            timeout_ms: 120_000,
            busy_poll_us: 50,
            peer_timeout_ms: 10_000,
            eager_max: None,
            meta_cache_entries: 4096,
            queue_depth: 1024,
            checksum: false,
            tolerate_dup_recv: false,
            allow_remote: false,
            shm_copy: None,
            ib: IbConfig::default(),
        }
    }
}
