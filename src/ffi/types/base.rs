//! Versions, bounds, codes and protocols: what all front ends share.

/// Version of the ABI: grows when a function or a field is added, never otherwise.
pub const RDMA_ABI_VERSION: u32 = 11;
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
/// rdma_transfer_info_t.reason: rdma_request_cancel, rdma_mgr_disconnect or rdma_mgr_destroy.
pub const RDMA_REASON_CANCELLED: u32 = 1;
/// rdma_transfer_info_t.reason: the operation's own deadline.
pub const RDMA_REASON_DEADLINE: u32 = 2;
/// rdma_transfer_info_t.reason: process or connection ended.
pub const RDMA_REASON_PEER_GONE: u32 = 3;
/// rdma_transfer_info_t.reason: the connection is up, the peer answers nothing.
pub const RDMA_REASON_PEER_STALLED: u32 = 4;
/// rdma_transfer_info_t.reason: same name, new incarnation.
pub const RDMA_REASON_PEER_RESTARTED: u32 = 5;
/// rdma_transfer_info_t.reason: the step was aborted or cleaned up.
pub const RDMA_REASON_STEP_ABORTED: u32 = 6;
/// rdma_transfer_info_t.reason: the peer answered with an error.
pub const RDMA_REASON_REMOTE_ERROR: u32 = 7;
/// rdma_transfer_info_t.reason: allocation, registration, checksum, protocol violation on this side.
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
