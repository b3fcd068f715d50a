//! Tagged messages: modes, bounds, layouts, statuses, callbacks, options.

use std::ffi::{c_char, c_void};

use super::{rdma_code_t, rdma_mgr_t, rdma_peer_t};

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
    /// Its length in bytes, also where it was too long for the receive. Of a receive that met no message, how long that may be.
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
    /// Which incarnation of `peer` sent it: a number that is never 0, the same for all messages of one manager, and
    /// another for the next that bears its name. For rdma_msg_options_t.incarnation. Of a send, and of a receive that no
    /// message has met: what its options had there.
    pub incarnation: u64,
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
    /// 0; another value is refused.
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
/// handler's number; status->tag, bytes, header and part_lens are as of a receive. `data` has the content.
/// It and the header live for the time of the call, and begin at a multiple of 8 bytes. Where there is no content,
/// since status->bytes is 0 or status->message is not (it has not come yet), nothing may be read there.
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
    /// Of a send: the incarnation of the peer that alone may get it, as rdma_msg_status_t.incarnation tells it; an
    /// answer is for who has asked. If the name is another's by now, the call returns RDMA_UNAVAILABLE; if that comes out while the
    /// send waits, it ends so, as it does where the last that was connected is this one and nobody listens at its addresses any
    /// more. Of a receive: the incarnation of `source` that alone may have sent it; rdma_msg_irecv tells when it ends without a
    /// message. 0: whoever has the name.
    pub incarnation: u64,
}
/// Options of a message operation.
pub type rdma_msg_options_t = rdma_msg_options;
