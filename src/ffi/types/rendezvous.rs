//! Tensors, and the callbacks and options of sends, receives and sources.

use std::ffi::{c_char, c_void};

use super::{rdma_code_t, rdma_mgr_t};

/// rdma_tensor_t.flags: a dead tensor; it has no content.
pub const RDMA_TENSOR_DEAD: u32 = 1;
/// rdma_tensor_t.flags: the content is the runtime's serialised form.
pub const RDMA_TENSOR_SERIALIZED: u32 = 2;

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
    /// Nanoseconds since the call (receive) or the match (send). 0 of a send within one manager.
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

/// Ends a send: the library no longer reads the tensor, nor does a receiver of the same manager (see rdma_recv_async). Runs
/// once per accepted send. For content that was copied at once it may run on the sending thread before rdma_send returns,
/// but not of a send that a callback makes which runs so. `message` is "" for RDMA_OK, and ends with a NUL. Codes: RDMA_OK; RDMA_CANCELLED: the receiver took it back, or
/// `mgr` is destroyed; RDMA_DEADLINE_EXCEEDED; RDMA_UNAVAILABLE: the connection or the peer ended;
/// RDMA_PERMISSION_DENIED: the receiver closed its memory meanwhile; RDMA_FAILED_PRECONDITION: the
/// memory was unregistered; RDMA_ABORTED: the step was cleaned up; that of rdma_step_abort;
/// RDMA_OUT_OF_RANGE: of rdma_response_send, the receiver's memory is too short; RDMA_DATA_LOSS: what came
/// over the connection was damaged; RDMA_INVALID_ARGUMENT: the peer broke the protocol;
/// RDMA_RESOURCE_EXHAUSTED; RDMA_INTERNAL.
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
    /// Its length in bytes. A larger tensor ends the receive with RDMA_OUT_OF_RANGE, and stays at its sender.
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
    /// Deadline in milliseconds. 0: waits until taken, or until the step is cleaned up. What is being taken by then goes on;
    /// but if its receiver gives no sign of life for 8 seconds behind it the connection ends, and the send with
    /// RDMA_UNAVAILABLE.
    pub timeout_ms: i64,
}
/// Options of a send.
pub type rdma_send_options_t = rdma_send_options;
