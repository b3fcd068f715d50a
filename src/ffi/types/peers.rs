//! What is known of peers, and what is told of them.

use std::ffi::{c_char, c_void};

use super::{rdma_code_t, rdma_mgr_t};

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
    /// Content sent to it, in bytes: of tensors, messages and pairs' buffers. What the peer refused since it was too long for its
    /// receive counts here, and not there.
    pub bytes_sent: u64,
    /// Content received from it, in bytes: of tensors and messages. A receiver does not count what comes into pairs' buffers.
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
    /// `incarnation` in one word, as rdma_msg_status_t.incarnation has it: for rdma_msg_options_t.incarnation. Of one that is not connected the last that was, 0 if none was.
    pub message_incarnation: u64,
}
/// What is known of a peer.
pub type rdma_peer_info_t = rdma_peer_info;

/// Number of a peer in one manager: 0 is none, or anybody. See rdma_peer_lookup.
pub type rdma_peer_t = u64;
/// A message from anybody.
pub const RDMA_PEER_ANY: u64 = 0;
