//! What a manager is made with.

use std::ffi::{c_char, c_void};

use super::{rdma_peer_event_fn, rdma_pool_t, rdma_source_ended_fn, rdma_source_fn};

/// Progress: the library's own thread (default).
pub const RDMA_PROGRESS_THREAD: i32 = 0;
/// Progress: only inside rdma_mgr_progress, rdma_mgr_wait and blocking calls.
pub const RDMA_PROGRESS_MANUAL: i32 = 1;

/// Settings of a manager. Prepare it with rdma_mgr_options_init, which fills in the defaults.
/// Environment variables override it, and the log (level info) says so.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_mgr_options {
    /// sizeof(rdma_mgr_options_t) as the application was compiled.
    pub struct_size: usize,
    /// This worker's name, unique among its peers. NULL: generated.
    pub name: *const c_char,
    /// "loopback", "shm", "ibverbs" or "tcp": only this one, or an error. NULL or "auto": chosen
    /// per peer. RDMA_PROVIDER
    pub provider: *const c_char,
    /// "host:port", IPv6 in brackets (link-local: [fe80::1%eth0]:port), port 0, or "host" alone, is any. NULL: 127.0.0.1:0 on first need, or
    /// [::1]:0 where that cannot be had. RDMA_LISTEN
    pub listen: *const c_char,
    /// Secret shared by all workers. NULL: no authentication. RDMA_AUTH_SECRET_FILE
    pub secret: *const c_char,
    /// Length of the secret in bytes.
    pub secret_len: usize,
    /// RDMA_PROGRESS_*
    pub progress: i32,
    /// RDMA_PROTOCOL_*; AUTO chooses per transfer. RDMA_PROTOCOL
    pub protocol: i32,
    /// Default deadline of an operation in milliseconds, 1 to 3153600000000 (100 years); 120000 if it is not set. RDMA_TIMEOUT_MS
    pub timeout_ms: i64,
    /// Time to spin before sleeping, in microseconds; less where spinning does not pay, up to four
    /// times that where waits were seen to end so. 0: never. RDMA_BUSY_POLL_US
    pub busy_poll_us: i64,
    /// Silence after which a peer counts as stalled, in milliseconds; 10000 if it is not set. 0: never, only a connection
    /// that ends is a peer that is gone. Time in which this manager was not driven, or the machine
    /// stood still, does not count. Nor does a peer that is driven by its application alone (RDMA_PROGRESS_MANUAL) stall: it may be
    /// silent for as long as it computes, and operations with it end by their deadlines, or with its connection. A connection to a peer that stands still ends sooner where an operation's deadline
    /// passes while its content is on its way and nobody says for two seconds that its memory is not touched any
    /// more: rdma_msg_isend and rdma_recv_async tell when. RDMA_PEER_TIMEOUT_MS
    pub peer_timeout_ms: i64,
    /// Largest content that rides in the response message. 0: the provider's own.
    pub eager_max: u64,
    /// Bound of the metadata cache, entries per peer. 0 counts as 1.
    pub meta_cache_entries: u32,
    /// Depth of send and receive queues; control messages in flight. RDMA_QP_QUEUE_DEPTH
    pub queue_depth: u32,
    /// 1: all messages and content have checksums (xxh3), in both directions; one side that has this set
    /// is enough. Damage is RDMA_DATA_LOSS.
    pub checksum: u8,
    /// 1: a receive of a key and step that another waits for already waits as well instead of failing with RDMA_ABORTED.
    /// What counts is the setting of the manager that the tensor is asked of, its sender's; of receives from oneself one's own.
    pub tolerate_dup_recv: u8,
    /// 1: may listen beyond loopback without a secret.
    pub allow_remote: u8,
    /// 1: ibverbs resolves address and route by rdma_cm (librdmacm), also across subnets; 0 or 1.
    pub use_rdma_cm: u8,
    /// Name of the ibverbs device, or up to 4 with a comma between, over which long content is spread; behind each a
    /// colon and a port, if need be. NULL: chosen. RDMA_DEVICE
    pub ib_device: *const c_char,
    /// Port of the device. 0: the first active one. RDMA_DEVICE_PORT
    pub ib_port: i32,
    /// Index into the port's GID table. -1: chosen. RDMA_GID_INDEX
    pub ib_gid_index: i32,
    /// Index into the port's partition key table. RDMA_QP_PKEY_INDEX
    pub ib_pkey_index: i32,
    /// Local ACK timeout, 0 to 31: 4.096 us * 2^n. RDMA_QP_TIMEOUT
    pub ib_timeout: i32,
    /// Retries, 0 to 7. RDMA_QP_RETRY_COUNT
    pub ib_retry_count: i32,
    /// Service level, 0 to 7. RDMA_QP_SL
    pub ib_sl: i32,
    /// Path MTU in bytes: 256, 512, 1024, 2048, 4096. 0: the port's active MTU. RDMA_QP_MTU
    pub ib_mtu: i32,
    /// Traffic class, 0 to 255. RDMA_TRAFFIC_CLASS
    pub ib_traffic_class: i32,
    /// The source function, as by rdma_mgr_set_source, but before the first request can come. NULL:
    /// none.
    pub source: rdma_source_fn,
    /// Hears of requests that ended while the source function owes the answer, its own and that of
    /// rdma_mgr_set_source. NULL: not wanted.
    pub source_ended: rdma_source_ended_fn,
    /// Passed to source and source_ended. Lives until rdma_mgr_destroy has returned.
    pub source_userdata: *mut c_void,
    /// Hears of peers that come and go. NULL: not wanted.
    pub peer_event: rdma_peer_event_fn,
    /// Passed to peer_event. Lives until rdma_mgr_destroy has returned.
    pub peer_event_userdata: *mut c_void,
    /// Memory that nobody registered stays registered after a transfer, for the next one of the same
    /// memory: so many bytes at most, the least recently used go first. 0: none. Where it is not 0, call
    /// rdma_mem_invalidate before memory that was sent from or received into is freed or mapped anew. On
    /// ibverbs; the other providers register nothing. RDMA_REGISTRATION_CACHE
    pub registration_cache_bytes: u64,
    /// A pool of rdma_pool_create, whose memory this manager then knows as its own: registered, and shared with
    /// peers on this host. Several managers may have the same one. It stays until each of them has ended, also after
    /// rdma_pool_destroy. NULL: none.
    pub pool: *mut rdma_pool_t,
    /// Connections that long content of one transfer is spread over, 1 to 8; the smaller of both ends' counts. 0: as the
    /// tuning file says, or 1, on ibverbs one for each device that is named. shm has no use for more than 1. RDMA_MAX_RDMA_PER_REQUEST
    pub max_rdma_per_request: u32,
}
/// Settings of a manager.
pub type rdma_mgr_options_t = rdma_mgr_options;
