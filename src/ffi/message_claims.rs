//! Messages that are looked for, claimed and given up.

use std::ffi::c_void;

use super::args::{id, millis, timeout};
use super::error::guard_on;
use super::handle::borrow_on;
use super::message_convert::{on_end, party};
use super::message_ends::kept;
use super::message_places::place;
use super::messages::{optional_out, tell_received};
use super::sized::{self, Out};
use super::types::*;
use crate::engine::front::message::{MessageEnd, Wanted};
use crate::status::Status;

/// Looks for the first message that such a receive would meet, and waits for one up to timeout_ms; 0
/// looks once. `claim`: no other receive meets it any more; rdma_msg_imrecv with out_status->message
/// receives it, and has to be called. Until then its sender may take it back: the receive then ends with
/// RDMA_CANCELLED (or RDMA_OUT_OF_RANGE, if its memory is too short).
///
/// Threads: any, but not inside a callback. Set out_status->struct_size first.
///
/// Returns RDMA_OK; RDMA_DEADLINE_EXCEEDED: there is none; RDMA_INVALID_ARGUMENT: `mgr` or `out_status`
/// NULL, `source` no number of a peer, wrong struct_size, negative timeout; RDMA_NOT_FOUND: unknown
/// peer; RDMA_FAILED_PRECONDITION: inside a callback, `mgr` destroyed or in a forked child;
/// RDMA_CANCELLED: `mgr` was destroyed meanwhile; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_msg_probe(
    mgr: *mut rdma_mgr_t,
    source: rdma_peer_t,
    comm: u32,
    tag: u64,
    mask: u64,
    claim: bool,
    timeout_ms: i64,
    out_status: *mut rdma_msg_status_t,
) -> rdma_code_t {
    guard_on("rdma_msg_probe", |thread| {
        // SAFETY: the caller's arguments, as the header demands.
        let (mgr, out) = unsafe { (borrow_on(mgr, thread)?, Out::new("out_status", out_status)?) };
        let wanted = Wanted { from: party("source", source)?, comm, tag, mask };
        let limit = millis("timeout_ms", timeout_ms)?;
        let found = mgr.message_probe(&wanted, claim, limit, thread)?.ok_or_else(|| {
            let text = "no message is here that such a receive would meet";
            Status::new(crate::status::Code::DeadlineExceeded, text)
        })?;
        let (message, result) = (found.message, Ok(()));
        let (party, envelope, len, extra) = (found.sender, found.envelope, found.len, found.extra);
        let (incarnation, short) = (found.incarnation, Default::default());
        let end = MessageEnd { result, party, incarnation, envelope, len, extra, short };
        out.write(rdma_msg_status { message, ..kept(end) });
        Ok(())
    })
}

/// Begins to receive a message that rdma_msg_probe has claimed; otherwise as rdma_msg_irecv. options.incarnation is not looked at: whose
/// message it is, the probe has said. It holds its sender back no more: who begins one for each message that comes, as a handler may,
/// bounds how many are under way.
///
/// Threads: any.
///
/// Returns what rdma_msg_irecv returns; RDMA_INVALID_ARGUMENT also: `message` 0; RDMA_NOT_FOUND also:
/// the message is not known, or was received.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_msg_imrecv(
    mgr: *mut rdma_mgr_t,
    message: u64,
    buf: *mut c_void,
    len: usize,
    options: *const rdma_msg_options_t,
    out_status: *mut rdma_msg_status_t,
    out_request: *mut rdma_msg_request_t,
) -> rdma_code_t {
    guard_on("rdma_msg_imrecv", |thread| {
        // SAFETY: the caller's arguments, as the header demands; it keeps the memory in place until the end.
        unsafe {
            let mgr = borrow_on(mgr, thread)?;
            let options = sized::read_or_defaults("options", options)?;
            let out = optional_out(out_status)?;
            let (message, place) = (id("message", message)?, place(buf, len, &options)?);
            let timeout = timeout("options.timeout_ms", options.timeout_ms)?;
            let done = on_end(&options);
            let received = mgr.message_imrecv(thread, message, place, timeout, done)?;
            tell_received(&mgr, received, options.done.is_none(), out, out_request);
        }
        Ok(())
    })
}

/// Takes a message operation back, unless that is too late, as in MPI: a receive that has met its
/// message, and a send whose message a receive has met, go on and end as if nothing had been asked, so
/// that no message is lost. Otherwise it ends with RDMA_CANCELLED, and nothing was written; or, where the
/// peer knows of it and does not say in time whether a receive has met it, with RDMA_UNAVAILABLE: within
/// some seconds, and then the connection ends, and with it all that is under way on it. The end is
/// told as usual. What must end in any case has a deadline: a receive that it ends in the middle of its
/// message may have been written in part, and that message is gone.
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL, request 0; RDMA_NOT_FOUND: its end was told
/// already, or it never was; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child;
/// RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_msg_cancel(
    mgr: *mut rdma_mgr_t,
    request: rdma_msg_request_t,
) -> rdma_code_t {
    guard_on("rdma_msg_cancel", |thread| {
        // SAFETY: the caller's handle, as the header demands.
        unsafe { borrow_on(mgr, thread) }?.message_cancel(id("request", request)?)
    })
}

/// Nobody will ask for the end of this request; it goes on, and its memory stays borrowed.
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL, request 0; RDMA_NOT_FOUND: its end was told
/// already, or it never was; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child;
/// RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_msg_free(
    mgr: *mut rdma_mgr_t,
    request: rdma_msg_request_t,
) -> rdma_code_t {
    guard_on("rdma_msg_free", |thread| {
        // SAFETY: the caller's handle, as the header demands.
        unsafe { borrow_on(mgr, thread) }?.message_release(id("request", request)?)
    })
}
