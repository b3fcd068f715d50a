//! The runtime's own rendezvous as the source of tensors.

use std::ffi::{c_char, c_void};

use super::args::{id, status};
use super::callback::{self, send_done};
use super::convert::tensor_from_c;
use super::error::guard;
use super::handle::borrow;
use super::types::*;

/// Sets the function that is asked for keys which the local table lacks, when a peer requests
/// them. `source` NULL: none, requests wait for rdma_send. Requests that wait already stay with
/// what was set when they came: with options.listen set it in the options instead, where no request
/// can come before it.
///
/// Threads: any. `userdata` (NULL is allowed) is passed on with requests that came before another
/// source was set, perhaps after this has returned: it must live until rdma_mgr_destroy has returned.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL; RDMA_FAILED_PRECONDITION: `mgr` destroyed or
/// in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mgr_set_source(
    mgr: *mut rdma_mgr_t,
    source: rdma_source_fn,
    userdata: *mut c_void,
) -> rdma_code_t {
    guard("rdma_mgr_set_source", || {
        // SAFETY: the caller's handle, as the header demands.
        let manager = unsafe { borrow(mgr) }?;
        manager.set_source(callback::source(mgr, source, userdata))
    })
}

/// Answers a request that came to the source function with a tensor.
///
/// Threads: any, also inside the source function. Struct and dimensions are copied; the content is
/// borrowed until `done` runs, once. `done` NULL: not wanted, the content must then live until
/// rdma_mgr_destroy has returned. On a code other than RDMA_OK `done` never runs, and except for
/// RDMA_INVALID_ARGUMENT the response is over.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `tensor` NULL, response 0, and as for
/// rdma_send; RDMA_NOT_FOUND: answered already, never made, or the request has ended meanwhile; unknown device;
/// RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_CANCELLED: `mgr` is being
/// destroyed; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_response_send(
    mgr: *mut rdma_mgr_t,
    response: rdma_response_t,
    tensor: *const rdma_tensor_t,
    done: rdma_send_done_fn,
    userdata: *mut c_void,
) -> rdma_code_t {
    guard("rdma_response_send", || {
        // SAFETY: the caller's arguments, as the header demands; it keeps the content in place
        // until `done` has run.
        unsafe {
            let mgr = borrow(mgr)?;
            let response = id("response", response)?;
            mgr.response_send(response, tensor_from_c(tensor)?, send_done(done, userdata))
        }
    })
}

/// Answers a request that came to the source function with an error, which ends the peer's receive.
///
/// Threads: any, also inside the source function. The text is copied; bytes that are not UTF-8 are
/// replaced. `message` NULL with length 0: none. A peer hears the first 4096 bytes of it, or 64 where many messages to it
/// wait; a text that was cut ends with "...".
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL, response 0, code RDMA_OK or unknown,
/// `message` NULL with a length, or longer than 65535 bytes; RDMA_NOT_FOUND: answered already,
/// never made, or the request has ended meanwhile; RDMA_RESOURCE_EXHAUSTED: no memory;
/// RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_response_fail(
    mgr: *mut rdma_mgr_t,
    response: rdma_response_t,
    code: rdma_code_t,
    message: *const c_char,
    message_len: usize,
) -> rdma_code_t {
    guard("rdma_response_fail", || {
        // SAFETY: the caller's arguments, as the header demands.
        let (mgr, status) = unsafe { (borrow(mgr)?, status(code, message, message_len)?) };
        mgr.response_fail(id("response", response)?, status)
    })
}
