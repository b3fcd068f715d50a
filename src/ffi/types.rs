//! Constants and types of the C ABI, in the layout of C.

use std::ffi::{c_char, c_int, c_void};

/// Version of the ABI: grows when a function or a field is added, never otherwise.
pub const RDMA_ABI_VERSION: u32 = 6;
/// Version of the library, major part.
pub const RDMA_VERSION_MAJOR: u32 = 0;
/// Version of the library, minor part.
pub const RDMA_VERSION_MINOR: u32 = 1;
/// Version of the library, patch.
pub const RDMA_VERSION_PATCH: u32 = 0;
/// Longest key in bytes.
pub const RDMA_MAX_KEY_LEN: u32 = 65536;
/// Most dimensions of a tensor.
pub const RDMA_MAX_DIMS: u32 = 254;
/// Most bytes of the application beside a tensor.
pub const RDMA_MAX_USER_LEN: u32 = 512;
/// Longest name of a worker in bytes, without the NUL.
pub const RDMA_MAX_NAME_LEN: u32 = 255;

/// How an operation ended: RDMA_OK or an error. The numbers are those of gRPC, absl and TensorFlow.
pub type rdma_code_t = i32;
/// Success.
pub const RDMA_OK: i32 = 0;
/// Cancelled by the caller, or by the end of its manager.
pub const RDMA_CANCELLED: i32 = 1;
/// An error without a better code.
pub const RDMA_UNKNOWN: i32 = 2;
/// An argument is not allowed; rdma_last_error names it, its value and what is allowed.
pub const RDMA_INVALID_ARGUMENT: i32 = 3;
/// The deadline passed.
pub const RDMA_DEADLINE_EXCEEDED: i32 = 4;
/// No such peer, request, response, region or device.
pub const RDMA_NOT_FOUND: i32 = 5;
/// It exists already.
pub const RDMA_ALREADY_EXISTS: i32 = 6;
/// Memory key, access rights or system permission forbid it.
pub const RDMA_PERMISSION_DENIED: i32 = 7;
/// A bound was reached: queue, memory, descriptors.
pub const RDMA_RESOURCE_EXHAUSTED: i32 = 8;
/// Not in this state: inside a callback, in a forked child, after rdma_mgr_destroy.
pub const RDMA_FAILED_PRECONDITION: i32 = 9;
/// Step aborted, or a duplicate send or receive.
pub const RDMA_ABORTED: i32 = 10;
/// Outside of a range: a buffer is too small.
pub const RDMA_OUT_OF_RANGE: i32 = 11;
/// Not available in this build or on this provider.
pub const RDMA_UNIMPLEMENTED: i32 = 12;
/// A defect of the library; caught at the ABI.
pub const RDMA_INTERNAL: i32 = 13;
/// The peer is gone or cannot be reached.
pub const RDMA_UNAVAILABLE: i32 = 14;
/// Content arrived damaged.
pub const RDMA_DATA_LOSS: i32 = 15;
/// The peer failed authentication.
pub const RDMA_UNAUTHENTICATED: i32 = 16;

/// rdma_transfer_info_t.reason: nothing to add to the code.
pub const RDMA_REASON_NONE: u32 = 0;
/// rdma_transfer_info_t.reason: rdma_request_cancel or rdma_mgr_destroy.
pub const RDMA_REASON_CANCELLED: u32 = 1;
/// rdma_transfer_info_t.reason: the operation's own deadline.
pub const RDMA_REASON_DEADLINE: u32 = 2;
/// rdma_transfer_info_t.reason: process or connection ended.
pub const RDMA_REASON_PEER_GONE: u32 = 3;
/// rdma_transfer_info_t.reason: the connection is up, the peer answers nothing.
pub const RDMA_REASON_PEER_STALLED: u32 = 4;
/// rdma_transfer_info_t.reason: same name, new incarnation.
pub const RDMA_REASON_PEER_RESTARTED: u32 = 5;
/// rdma_transfer_info_t.reason: the step was aborted.
pub const RDMA_REASON_STEP_ABORTED: u32 = 6;
/// rdma_transfer_info_t.reason: the peer answered with an error.
pub const RDMA_REASON_REMOTE_ERROR: u32 = 7;
/// rdma_transfer_info_t.reason: allocation, registration, protocol violation on this side.
pub const RDMA_REASON_LOCAL_ERROR: u32 = 8;

/// Protocol: chosen per transfer.
pub const RDMA_PROTOCOL_AUTO: u32 = 0;
/// Protocol: both ends in this manager. Reported, cannot be demanded.
pub const RDMA_PROTOCOL_LOCAL: u32 = 1;
/// Protocol: content inside the response message.
pub const RDMA_PROTOCOL_EAGER: u32 = 2;
/// Protocol: RDMA write with immediate by the sender.
pub const RDMA_PROTOCOL_DIRECT_PUT: u32 = 3;
/// Protocol: RDMA read by the receiver.
pub const RDMA_PROTOCOL_DIRECT_GET: u32 = 4;
/// Protocol: by way of a registered buffer of the tensor's name at either end, which lasts.
pub const RDMA_PROTOCOL_PERSISTENT: u32 = 5;
/// Protocol: long messages in three segments, whose memory is registered while other memory is moved.
pub const RDMA_PROTOCOL_PIPELINE: u32 = 6;

/// Progress: the library's own thread (default).
pub const RDMA_PROGRESS_THREAD: i32 = 0;
/// Progress: only inside rdma_mgr_progress, rdma_mgr_wait and blocking calls.
pub const RDMA_PROGRESS_MANUAL: i32 = 1;

/// rdma_tensor_t.flags: a dead tensor; it has no content.
pub const RDMA_TENSOR_DEAD: u32 = 1;
/// rdma_tensor_t.flags: the content is the runtime's serialised form.
pub const RDMA_TENSOR_SERIALIZED: u32 = 2;

/// Log level: something failed.
pub const RDMA_LOG_ERROR: i32 = 1;
/// Log level: something is not as expected, and went on (default).
pub const RDMA_LOG_WARN: i32 = 2;
/// Log level: decisions and changes of state.
pub const RDMA_LOG_INFO: i32 = 3;
/// Log level: details.
pub const RDMA_LOG_DEBUG: i32 = 4;

/// Device id of host memory.
pub const RDMA_DEVICE_HOST: u32 = 0;

/// rdma_peer_info_t.state: not connected, nothing under way.
pub const RDMA_PEER_IDLE: i32 = 0;
/// rdma_peer_info_t.state: connecting.
pub const RDMA_PEER_CONNECTING: i32 = 1;
/// rdma_peer_info_t.state: connected.
pub const RDMA_PEER_CONNECTED: i32 = 2;
/// rdma_peer_info_t.state: the last attempt failed; retried on use.
pub const RDMA_PEER_FAILED: i32 = 3;

/// rdma_peer_event_fn: the first connection to a peer is up.
pub const RDMA_PEER_CAME: i32 = 1;
/// rdma_peer_event_fn: the last connection to a peer has ended.
pub const RDMA_PEER_GONE: i32 = 2;

/// Number of a receive. Never used again by its manager; 0 is none.
pub type rdma_request_t = u64;
/// Number of a request that a peer made of us. Never used again by its manager; 0 is none.
pub type rdma_response_t = u64;

/// A tensor in memory of this process. Prepare it with rdma_tensor_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_tensor {
    /// sizeof(rdma_tensor_t) as the application was compiled.
    pub struct_size: usize,
    /// Content, on its device. May be NULL when nbytes is 0.
    pub data: *const c_void,
    /// Length of the content in bytes.
    pub nbytes: u64,
    /// Dimensions, none negative. May be NULL when ndims is 0.
    pub dims: *const i64,
    /// Number of dimensions, at most RDMA_MAX_DIMS.
    pub ndims: u32,
    /// The runtime's own number of the element type; carried, not read.
    pub dtype: u32,
    /// RDMA_TENSOR_*, or 0.
    pub flags: u32,
    /// RDMA_DEVICE_HOST or an id from rdma_mgr_register_device.
    pub device: u32,
    /// Bytes of the application that go with this one transfer, of dead tensors, too; carried, not read. Copied by the call
    /// that sends. Of a result they live as long as its dimensions. In an allocation callback they are there if the sender
    /// has told of this transfer already. May be NULL when user_len is 0.
    pub user: *const c_void,
    /// Length of these in bytes, at most RDMA_MAX_USER_LEN; 0: none.
    pub user_len: usize,
}
/// A tensor in memory of this process.
pub type rdma_tensor_t = rdma_tensor;

/// How a transfer went.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_transfer_info {
    /// sizeof(rdma_transfer_info_t) as the library was compiled.
    pub struct_size: usize,
    /// Content bytes.
    pub bytes: u64,
    /// Nanoseconds since the call (receive) or the match (send).
    pub elapsed_ns: u64,
    /// "shm", "tcp", "ibverbs", "loopback", "local", or "" if none carried it.
    pub provider: *const c_char,
    /// The peer's name, "" for oneself.
    pub peer: *const c_char,
    /// RDMA_PROTOCOL_*
    pub protocol: u32,
    /// RDMA_REASON_*: why the operation ended, finer than its code.
    pub reason: u32,
}
/// How a transfer went.
pub type rdma_transfer_info_t = rdma_transfer_info;

/// Receives log messages. `message` ends with a NUL. Runs on any thread, with no lock held, and may
/// call any function that its thread may call; what those log is dropped.
pub type rdma_log_fn = Option<
    unsafe extern "C" fn(
        level: i32,
        message: *const c_char,
        message_len: usize,
        userdata: *mut c_void,
    ),
>;

/// Ends a send: the library no longer reads the tensor. Runs once per accepted send. For content
/// that was copied at once it may run on the sending thread before rdma_send returns. `message` is
/// "" for RDMA_OK, and ends with a NUL. Codes: RDMA_OK; RDMA_CANCELLED: the receiver took it back, or
/// `mgr` is destroyed; RDMA_DEADLINE_EXCEEDED; RDMA_UNAVAILABLE: the connection or the peer ended;
/// RDMA_PERMISSION_DENIED: the receiver closed its memory meanwhile; RDMA_FAILED_PRECONDITION: the
/// memory was unregistered; RDMA_RESOURCE_EXHAUSTED; RDMA_INTERNAL; that of rdma_step_abort.
pub type rdma_send_done_fn = Option<
    unsafe extern "C" fn(
        code: rdma_code_t,
        message: *const c_char,
        message_len: usize,
        info: *const rdma_transfer_info_t,
        userdata: *mut c_void,
    ),
>;

/// Ends a receive. Runs once per accepted receive. `tensor` is NULL unless code is RDMA_OK;
/// `message` is "" for RDMA_OK, and ends with a NUL.
pub type rdma_recv_done_fn = Option<
    unsafe extern "C" fn(
        code: rdma_code_t,
        message: *const c_char,
        message_len: usize,
        tensor: *const rdma_tensor_t,
        info: *const rdma_transfer_info_t,
        userdata: *mut c_void,
    ),
>;

/// Returns memory for meta->nbytes bytes on the device named in the receive's options, or NULL to
/// fail the request (RDMA_RESOURCE_EXHAUSTED). Runs inside rdma_recv_async (metadata cached) or on
/// the progress thread; once more if the metadata changed: the earlier memory is then unused. NULL for
/// cached metadata, which may be out of date, does not fail the request yet: the sender is asked, and
/// the callback runs once more with the metadata that it tells; NULL then fails it. Not
/// called for dead or zero-size tensors. The memory stays the application's; meta->data is NULL.
pub type rdma_alloc_fn =
    Option<unsafe extern "C" fn(meta: *const rdma_tensor_t, userdata: *mut c_void) -> *mut c_void>;

/// A peer requests `key` of `step`, which the local table lacks: answer with rdma_response_send or
/// rdma_response_fail, now or later, from any thread, once. `peer` ends with a NUL; `key` does not.
/// No order is promised: requests are handed out in the order of their arrival, but by whichever
/// thread drives progress, so that calls may overlap and overtake one another, also those for one
/// peer, key or step. With RDMA_PROGRESS_MANUAL and one thread that drives they come one at a time, in
/// the order of arrival; even then a peer's requests arrive in the order of its calls only on one
/// connection.
pub type rdma_source_fn = Option<
    unsafe extern "C" fn(
        mgr: *mut rdma_mgr_t,
        response: rdma_response_t,
        peer: *const c_char,
        peer_len: usize,
        key: *const c_char,
        key_len: usize,
        step: i64,
        userdata: *mut c_void,
    ),
>;

/// A request that the source function was given has ended without its answer: its receiver gave it
/// up or is gone, the step was aborted or cleaned up, or this manager ends. Runs once for each such
/// request, never for one that was answered, and not before the source function has returned; an
/// answer that is under way on another thread returns RDMA_NOT_FOUND. `message` ends with a NUL.
pub type rdma_source_ended_fn = Option<
    unsafe extern "C" fn(
        mgr: *mut rdma_mgr_t,
        response: rdma_response_t,
        code: rdma_code_t,
        message: *const c_char,
        message_len: usize,
        userdata: *mut c_void,
    ),
>;

/// A peer came or went: `event` is RDMA_PEER_*. `code` and `message` say why it went, and are RDMA_OK
/// and "" when it came. One event at a time, in their order; a peer that came goes once, with
/// RDMA_CANCELLED at the latest by rdma_mgr_destroy. One that came and went before it could be told
/// of is left out. Both texts end with a NUL.
pub type rdma_peer_event_fn = Option<
    unsafe extern "C" fn(
        mgr: *mut rdma_mgr_t,
        event: i32,
        peer: *const c_char,
        peer_len: usize,
        code: rdma_code_t,
        message: *const c_char,
        message_len: usize,
        userdata: *mut c_void,
    ),
>;

/// To be called once by a device's copy function when the copy is complete, from any thread. A
/// second call with the same token is ignored.
pub type rdma_copy_done_fn = Option<unsafe extern "C" fn(code: rdma_code_t, token: *mut c_void)>;

/// Starts a copy between the host and a device, and returns. Calls `done` with `token` when the
/// copy is complete, at once or later. Runs on the thread that drives progress.
pub type rdma_copy_to_host_fn = Option<
    unsafe extern "C" fn(
        host: *mut c_void,
        device: *const c_void,
        nbytes: u64,
        done: rdma_copy_done_fn,
        token: *mut c_void,
        userdata: *mut c_void,
    ),
>;

/// The other direction of rdma_copy_to_host_fn.
pub type rdma_copy_from_host_fn = Option<
    unsafe extern "C" fn(
        device: *mut c_void,
        host: *const c_void,
        nbytes: u64,
        done: rdma_copy_done_fn,
        token: *mut c_void,
        userdata: *mut c_void,
    ),
>;

/// Exports device memory as a dmabuf: *fd is a descriptor, which the library closes, and *offset is
/// where in it the memory begins. Returns RDMA_OK, or why it cannot. Runs inside rdma_mem_register,
/// with the manager's lock held: it calls no function of this library.
pub type rdma_export_dmabuf_fn = Option<
    unsafe extern "C" fn(
        device: *const c_void,
        nbytes: u64,
        fd: *mut c_int,
        offset: *mut u64,
        userdata: *mut c_void,
    ) -> rdma_code_t,
>;

/// An accelerator's functions.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_device_ops {
    /// sizeof(rdma_device_ops_t) as the application was compiled.
    pub struct_size: usize,
    /// Copies from the device to the host. Not NULL.
    pub copy_to_host: rdma_copy_to_host_fn,
    /// Copies from the host to the device. Not NULL.
    pub copy_from_host: rdma_copy_from_host_fn,
    /// NULL is allowed: tensors on the device always go through host memory. With it, memory that is
    /// registered by rdma_mem_register is moved by the RDMA device itself where that can
    /// (GPUDirect); see docs/rdma.md.
    pub export_dmabuf: rdma_export_dmabuf_fn,
}
/// An accelerator's functions.
pub type rdma_device_ops_t = rdma_device_ops;

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
    /// "host:port", IPv6 in brackets, port 0 is any. NULL: 127.0.0.1:0 on first need. RDMA_LISTEN
    pub listen: *const c_char,
    /// Secret shared by all workers. NULL: no authentication. RDMA_AUTH_SECRET_FILE
    pub secret: *const c_char,
    /// Length of the secret in bytes.
    pub secret_len: usize,
    /// RDMA_PROGRESS_*
    pub progress: i32,
    /// RDMA_PROTOCOL_*; AUTO chooses per transfer. RDMA_PROTOCOL
    pub protocol: i32,
    /// Default deadline of an operation in milliseconds, above 0. RDMA_TIMEOUT_MS
    pub timeout_ms: i64,
    /// Longest time to spin before sleeping, in microseconds; less where spinning does not pay.
    /// RDMA_BUSY_POLL_US
    pub busy_poll_us: i64,
    /// Silence after which a peer counts as stalled, in milliseconds. 0: never, only a connection
    /// that ends is a peer that is gone. Time in which this manager was not driven, or the machine
    /// stood still, does not count. RDMA_PEER_TIMEOUT_MS
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
    /// 1: duplicate receives wait instead of failing.
    pub tolerate_dup_recv: u8,
    /// 1: may listen beyond loopback without a secret.
    pub allow_remote: u8,
    /// 1: ibverbs resolves address and route by rdma_cm (librdmacm), also across subnets; 0 or 1.
    pub use_rdma_cm: u8,
    /// Name of the ibverbs device. NULL: chosen. RDMA_DEVICE
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
    /// tuning file says, or 1. shm has no use for more than 1. RDMA_MAX_RDMA_PER_REQUEST
    pub max_rdma_per_request: u32,
}
/// Settings of a manager.
pub type rdma_mgr_options_t = rdma_mgr_options;

/// Options of a receive. Prepare it with rdma_recv_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_recv_options {
    /// sizeof(rdma_recv_options_t) as the application was compiled.
    pub struct_size: usize,
    /// Deadline in milliseconds. 0: the manager's.
    pub timeout_ms: i64,
    /// Destination given up front, or NULL. The library's until the callback has run.
    pub dst: *mut c_void,
    /// Its length in bytes. A larger tensor fails with RDMA_OUT_OF_RANGE.
    pub dst_len: u64,
    /// Used when dst is NULL. NULL too: memory of the library.
    pub alloc: rdma_alloc_fn,
    /// Passed to alloc.
    pub alloc_userdata: *mut c_void,
    /// Device on which dst, or alloc's memory, lives.
    pub device: u32,
}
/// Options of a receive.
pub type rdma_recv_options_t = rdma_recv_options;

/// Options of a send. Prepare it with rdma_send_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_send_options {
    /// sizeof(rdma_send_options_t) as the application was compiled.
    pub struct_size: usize,
    /// Deadline in milliseconds. 0: waits until taken, or until the step is cleaned up.
    pub timeout_ms: i64,
}
/// Options of a send.
pub type rdma_send_options_t = rdma_send_options;

/// What is known of a peer. Set struct_size before rdma_mgr_peer_info.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_peer_info {
    /// sizeof(rdma_peer_info_t) as the application was compiled.
    pub struct_size: usize,
    /// Its name.
    pub name: [c_char; 256],
    /// Provider of the connection, "" while not connected.
    pub provider: [c_char; 16],
    /// Why this provider, or the last error; cut to fit.
    pub reason: [c_char; 256],
    /// Where it is reached; cut to fit.
    pub address: [c_char; 256],
    /// Identifies the peer's manager; zero while unknown. Another one after a restart.
    pub incarnation: [u8; 16],
    /// RDMA_PEER_*
    pub state: i32,
    /// Live connections, those that carry a part of another's transfers among them.
    pub channels: u32,
    /// Tensor content sent to it, in bytes.
    pub bytes_sent: u64,
    /// Tensor content received from it, in bytes.
    pub bytes_received: u64,
    /// Requests made of it.
    pub requests_sent: u64,
    /// Requests it made.
    pub requests_received: u64,
    /// Largest content that rides in the response message; larger content is written or read beside
    /// it. 0 while not connected.
    pub eager_max: u64,
    /// Largest message in bytes that goes out in one piece; a longer one, as by a long key, goes out in
    /// fragments. 0 while not connected.
    pub max_message: u64,
}
/// What is known of a peer.
pub type rdma_peer_info_t = rdma_peer_info;

/// Number of a peer in one manager: 0 is none, or anybody. See rdma_peer_lookup.
pub type rdma_peer_t = u64;
/// A message from anybody.
pub const RDMA_PEER_ANY: u64 = 0;
/// rdma_msg_options_t.mode: a send has ended when its memory may be used again.
pub const RDMA_MSG_STANDARD: u32 = 0;
/// rdma_msg_options_t.mode: the same, and a receive has met the message.
pub const RDMA_MSG_SYNCHRONOUS: u32 = 1;
/// rdma_msg_options_t.mode: as RDMA_MSG_STANDARD; the application knows that a receive waits for it.
pub const RDMA_MSG_READY: u32 = 2;
/// rdma_msg_options_t.mode: the content is copied by the call, within what rdma_msg_attach allows.
pub const RDMA_MSG_BUFFERED: u32 = 3;
/// rdma_msg_handler_fn: the message is done with.
pub const RDMA_MSG_HANDLED: u32 = 0;
/// rdma_msg_handler_fn: status->message is received by rdma_msg_imrecv later.
pub const RDMA_MSG_LATER: u32 = 1;
/// Longest header of a message in bytes.
pub const RDMA_MSG_MAX_HEADER: usize = 512;
/// Most pieces of a layout that lists them.
pub const RDMA_MSG_MAX_PIECES: usize = 16_384;
/// Most parts of a message.
pub const RDMA_MSG_MAX_PARTS: usize = 64;
/// rdma_msg_layout_t.kind: pieces, one after the other.
pub const RDMA_MSG_IOVEC: u32 = 1;
/// rdma_msg_layout_t.kind: blocks of equal length at equal distances.
pub const RDMA_MSG_STRIDED: u32 = 2;
/// rdma_msg_layout_t.kind: pieces, each a part of the message. A receive has a piece for each part,
/// which may be longer than that; what is left of it is not written.
pub const RDMA_MSG_PARTS: u32 = 3;
/// rdma_msg_options_t.timeout_ms: no deadline.
pub const RDMA_MSG_FOREVER: i64 = -1;
/// A mask under which each bit of a tag counts.
pub const RDMA_MSG_TAG_MASK: u64 = u64::MAX;
/// rdma_msg_test, rdma_msg_wait: all requests, or none.
pub const RDMA_MSG_ALL: u32 = 0;
/// rdma_msg_test, rdma_msg_wait: one request.
pub const RDMA_MSG_ANY: u32 = 1;
/// rdma_msg_test, rdma_msg_wait: as many requests as have ended, one at least.
pub const RDMA_MSG_SOME: u32 = 2;
/// Number of a message operation that is under way. Never used again by its manager; 0 is none.
pub type rdma_msg_request_t = u64;

/// How a message operation ended, or what a probe found. Set struct_size before use.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_msg_status {
    /// sizeof(rdma_msg_status_t) as the application was compiled.
    pub struct_size: usize,
    /// Who sent it; of a send, who it was for.
    pub peer: rdma_peer_t,
    /// Its tag.
    pub tag: u64,
    /// Its length in bytes, also where it was too long for the receive.
    pub bytes: u64,
    /// Its communicator.
    pub comm: u32,
    /// How it ended.
    pub code: rdma_code_t,
    /// The message that rdma_msg_probe has claimed, 0 otherwise.
    pub message: u64,
    /// Text of an error, "" without one. It, `header` and `part_lens` live for the time of a callback;
    /// what a function gives, until this thread's next call of a function that fills statuses.
    pub text: *const c_char,
    /// The header that its sender gave, NULL without one: of a receive, and of what a probe found.
    pub header: *const c_void,
    /// Its length.
    pub header_len: usize,
    /// Lengths of its parts, NULL where it was sent without.
    pub part_lens: *const u64,
    /// How many there are.
    pub parts: usize,
}
/// How a message operation ended.
pub type rdma_msg_status_t = rdma_msg_status;

/// One piece of memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_msg_piece {
    /// First byte; NULL only with len 0.
    pub data: *mut c_void,
    /// Length in bytes.
    pub len: usize,
}
/// One piece of memory.
pub type rdma_msg_piece_t = rdma_msg_piece;

/// Memory of the host in several pieces, where the content of a message lies or goes. The layouts of
/// sender and receiver have nothing to do with each other. Pieces of a receive must not overlap. Set
/// struct_size, and what the kind does not need to zero. It is copied by the call, the memory that it
/// names is borrowed.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_msg_layout {
    /// sizeof(rdma_msg_layout_t) as the application was compiled.
    pub struct_size: usize,
    /// RDMA_MSG_IOVEC, RDMA_MSG_STRIDED or RDMA_MSG_PARTS.
    pub kind: u32,
    /// Always 0.
    pub reserved: u32,
    /// Of RDMA_MSG_IOVEC and RDMA_MSG_PARTS: the pieces.
    pub pieces: *const rdma_msg_piece_t,
    /// How many pieces, up to RDMA_MSG_MAX_PIECES or RDMA_MSG_MAX_PARTS; of RDMA_MSG_STRIDED how many blocks.
    pub count: usize,
    /// Of RDMA_MSG_STRIDED: the first block.
    pub base: *mut c_void,
    /// Length of each block in bytes.
    pub block: usize,
    /// Bytes from the beginning of a block to that of the next, at least `block`.
    pub stride: usize,
}
/// Memory of the host in several pieces.
pub type rdma_msg_layout_t = rdma_msg_layout;

/// A message operation has ended.
pub type rdma_msg_done_fn =
    Option<unsafe extern "C" fn(status: *const rdma_msg_status_t, userdata: *mut c_void)>;

/// An active message has come for the handler that rdma_msg_handler has set. status->comm is the
/// handler's number; status->tag, bytes, header and part_lens are as of a receive. `data` has the content,
/// and lives for the time of the call.
///
/// If status->message is not 0, the content has not come along: it is large, or its sender had no more
/// room. The handler, or somebody later, says by rdma_msg_imrecv where it goes; a length of 0 takes nothing.
/// Returns RDMA_MSG_LATER if that is still to come; with RDMA_MSG_HANDLED a message that was not
/// received is gone.
pub type rdma_msg_handler_fn = Option<
    unsafe extern "C" fn(
        mgr: *mut rdma_mgr_t,
        status: *const rdma_msg_status_t,
        data: *const c_void,
        userdata: *mut c_void,
    ) -> u32,
>;

/// There is room for messages to a peer, `bytes` in all, or `code` says why there will be none.
pub type rdma_msg_room_fn =
    Option<unsafe extern "C" fn(code: rdma_code_t, bytes: u64, userdata: *mut c_void)>;

/// Number of a prepared message operation. Never used again by its manager; 0 is none.
pub type rdma_msg_persistent_t = u64;

/// Options of a message operation. Prepare it with rdma_msg_options_init, or set struct_size and the
/// rest to zero.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_msg_options {
    /// sizeof(rdma_msg_options_t) as the application was compiled.
    pub struct_size: usize,
    /// Deadline in milliseconds. 0: the manager's; RDMA_MSG_FOREVER: none.
    pub timeout_ms: i64,
    /// Of a send: RDMA_MSG_STANDARD, RDMA_MSG_SYNCHRONOUS, RDMA_MSG_READY or RDMA_MSG_BUFFERED.
    pub mode: u32,
    /// Device on which the memory lives, 0 for the host.
    pub device: u32,
    /// Told of the end, unless that is known when the call returns. NULL: rdma_msg_test and
    /// rdma_msg_wait tell.
    pub done: rdma_msg_done_fn,
    /// Passed to done.
    pub userdata: *mut c_void,
    /// Where the content lies, instead of the call's pointer and length, which are NULL and 0 then, and
    /// with device 0. NULL: in one place.
    pub layout: *const rdma_msg_layout_t,
    /// Of a send: bytes that travel beside the content, and that a probe and the status of the receive
    /// show. Copied by the call. NULL: none.
    pub header: *const c_void,
    /// Their length, at most RDMA_MSG_MAX_HEADER.
    pub header_len: usize,
}
/// Options of a message operation.
pub type rdma_msg_options_t = rdma_msg_options;

/// The parts of TensorFlow's key `src_device;src_incarnation;dst_device;edge_name;frame:iter`.
/// Texts are not NUL-terminated. Set struct_size before use.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_parsed_key {
    /// sizeof(rdma_parsed_key_t) as the application was compiled.
    pub struct_size: usize,
    /// Full name of the sending device.
    pub src_device: *const c_char,
    /// Its length.
    pub src_device_len: usize,
    /// Full name of the receiving device.
    pub dst_device: *const c_char,
    /// Its length.
    pub dst_device_len: usize,
    /// Name of the edge.
    pub edge_name: *const c_char,
    /// Its length.
    pub edge_name_len: usize,
    /// Incarnation of the sending device.
    pub src_incarnation: u64,
    /// Frame of the loop, 0 outside of loops.
    pub frame: u64,
    /// Iteration of the frame.
    pub iter: u64,
}
/// The parts of TensorFlow's key.
pub type rdma_parsed_key_t = rdma_parsed_key;

/// timeout_ms of a store: as long as the store was set up for.
pub const RDMA_STORE_DEFAULT: i64 = 0;
/// timeout_ms of a store: without end.
pub const RDMA_STORE_FOREVER: i64 = -1;
/// timeout_ms of a store: one look. What is to be reached over a network has as long as the store was set up for.
pub const RDMA_STORE_NOW: i64 = -2;
/// Longest key of a store in bytes, with its prefixes and their separators.
pub const RDMA_STORE_MAX_KEY_LEN: u32 = 4096;
/// Longest value in bytes.
pub const RDMA_STORE_MAX_VALUE_LEN: u32 = 16777216;
/// Most keys of one call.
pub const RDMA_STORE_MAX_KEYS: u32 = 65536;
/// rdma_store_compare_set: the value was as expected, and is now the new one.
pub const RDMA_STORE_SET: i32 = 0;
/// rdma_store_compare_set: another value is there; nothing was changed.
pub const RDMA_STORE_DIFFERS: i32 = 1;
/// rdma_store_compare_set: one was expected, and none is there; nothing was changed.
pub const RDMA_STORE_ABSENT: i32 = 2;

/// Bytes that are read: a key, or a value to be set.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_bytes {
    /// The first. May be NULL where `len` is 0 and that is allowed.
    pub data: *const c_void,
    /// How many.
    pub len: usize,
}
/// Bytes that are read.
pub type rdma_bytes_t = rdma_bytes;

/// Where a value goes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_bytes_out {
    /// Memory for it. May be NULL where `cap` is 0.
    pub data: *mut c_void,
    /// How many bytes there are.
    pub cap: usize,
    /// Written: how many bytes the value has.
    pub len: usize,
}
/// Where a value goes.
pub type rdma_bytes_out_t = rdma_bytes_out;

/// Options of a store. Prepare it with rdma_store_options_init, or set struct_size and the rest to
/// zero.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_store_options {
    /// sizeof(rdma_store_options_t) as the application was compiled.
    pub struct_size: usize,
    /// Time for operations that say RDMA_STORE_DEFAULT, in milliseconds; 0: 120000.
    pub timeout_ms: i64,
    /// Of a TCP store, the secret that both sides prove; of a Redis store, its password. NULL: none.
    pub secret: *const c_void,
    /// Its length, at most 4096.
    pub secret_len: usize,
    /// Not 0: rdma_store_tcp_serve may serve beyond loopback without a secret.
    pub allow_remote: u8,
}
/// Options of a store.
pub type rdma_store_options_t = rdma_store_options;

/// Takes a value from rdma_store_ops_t.get: call it once, with the value, before get returns.
pub type rdma_store_give_fn =
    Option<unsafe extern "C" fn(value: *const c_void, len: usize, token: *mut c_void)>;

/// The application's own store. All functions may be called by several threads at once, return an
/// rdma_code_t, and should take no longer than timeout_ms. Set struct_size, and to NULL what there is
/// not.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_store_ops {
    /// sizeof(rdma_store_ops_t) as the application was compiled.
    pub struct_size: usize,
    /// Sets a key. Required.
    pub set: Option<
        unsafe extern "C" fn(
            key: *const c_char,
            key_len: usize,
            value: *const c_void,
            value_len: usize,
            timeout_ms: i64,
            userdata: *mut c_void,
        ) -> rdma_code_t,
    >,
    /// Gives the value of a key, by give(value, len, token), or returns RDMA_NOT_FOUND; does not wait
    /// for it. Required.
    pub get: Option<
        unsafe extern "C" fn(
            key: *const c_char,
            key_len: usize,
            timeout_ms: i64,
            give: rdma_store_give_fn,
            token: *mut c_void,
            userdata: *mut c_void,
        ) -> rdma_code_t,
    >,
    /// Whether a key is there. NULL: get is asked.
    pub check: Option<
        unsafe extern "C" fn(
            key: *const c_char,
            key_len: usize,
            timeout_ms: i64,
            out_there: *mut bool,
            userdata: *mut c_void,
        ) -> rdma_code_t,
    >,
    /// Waits until each of the keys has been there; RDMA_DEADLINE_EXCEEDED if not in time. It is
    /// called again and again with half a second at most. NULL: check is asked, with pauses.
    pub wait: Option<
        unsafe extern "C" fn(
            keys: *const rdma_bytes_t,
            count: usize,
            timeout_ms: i64,
            userdata: *mut c_void,
        ) -> rdma_code_t,
    >,
    /// Adds to a decimal number, where nothing counts as 0. NULL: rdma_store_add is
    /// RDMA_UNIMPLEMENTED.
    pub add: Option<
        unsafe extern "C" fn(
            key: *const c_char,
            key_len: usize,
            delta: i64,
            timeout_ms: i64,
            out_sum: *mut i64,
            userdata: *mut c_void,
        ) -> rdma_code_t,
    >,
    /// As rdma_store_compare_set; the value that is there instead is given by give(value, len, token).
    /// NULL: that is RDMA_UNIMPLEMENTED.
    pub compare_set: Option<
        unsafe extern "C" fn(
            key: *const c_char,
            key_len: usize,
            expected: *const rdma_bytes_t,
            desired: *const rdma_bytes_t,
            timeout_ms: i64,
            out_result: *mut i32,
            give: rdma_store_give_fn,
            token: *mut c_void,
            userdata: *mut c_void,
        ) -> rdma_code_t,
    >,
    /// Deletes a key. NULL: rdma_store_delete is RDMA_UNIMPLEMENTED.
    pub remove: Option<
        unsafe extern "C" fn(
            key: *const c_char,
            key_len: usize,
            timeout_ms: i64,
            out_was_there: *mut bool,
            userdata: *mut c_void,
        ) -> rdma_code_t,
    >,
}
/// The application's own store.
pub type rdma_store_ops_t = rdma_store_ops;

/// Most ranks of a mesh.
pub const RDMA_MESH_MAX_RANKS: u32 = 65536;

/// Options of a mesh. Prepare it with rdma_mesh_options_init, or set struct_size and the rest to zero.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_mesh_options {
    /// sizeof(rdma_mesh_options_t) as the application was compiled.
    pub struct_size: usize,
    /// Time until all ranks have met, in milliseconds; RDMA_STORE_DEFAULT: as long as the store was set up
    /// for; RDMA_STORE_FOREVER.
    pub timeout_ms: i64,
    /// How long what a rank publishes outlives the call, in milliseconds, in a store that has leases;
    /// 0: 60000.
    pub keep_ms: i64,
    /// Not 0: connect to all ranks now, and not on first use.
    pub full: u8,
}
/// Options of a mesh.
pub type rdma_mesh_options_t = rdma_mesh_options;

pub use super::handle::{rdma_mgr, rdma_mgr_t};
pub use super::pool::rdma_pool_t;
