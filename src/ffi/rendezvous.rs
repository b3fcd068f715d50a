//! Send and receive by key and step.

use std::cell::RefCell;
use std::ffi::{c_char, c_void};

use super::args::{id, key as checked_key, name, optional_millis, status};
use super::callback::{recv_done, send_done};
use super::convert::{recv_options, tensor_from_c, tensor_to_c};
use super::error::{guard, guard_on};
use super::handle::{Beside, borrow, borrow_on};
use super::sized::{self, Out};
use super::types::*;
use crate::api::Target;
use crate::status::Status;

thread_local! {
    /// What is beside the content of this thread's last `rdma_recv` without a request.
    static LAST: RefCell<Beside> = RefCell::default();
}

/// Offers a tensor under `key` for `step`: to a receive that waits here or at a peer, or to one
/// that comes later. Does not wait.
///
/// Threads: any. Key, struct, dimensions and user bytes are copied; the content is borrowed until `done` runs,
/// once; `done` NULL: not wanted, the content must then live until rdma_mgr_destroy has returned: a
/// peer may still read it after rdma_step_cleanup. On a code other than RDMA_OK `done` never runs.
/// `options` NULL: defaults. `userdata` may be NULL.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr`, `key` or `tensor` NULL, key_len not 1 to 65536,
/// wrong struct_size, negative timeout or dimension, more than 254 dimensions, unknown flags,
/// nbytes without data, more than 512 user bytes, user_len without user; RDMA_ABORTED: sent already, or the step was aborted; then the step's own
/// code; RDMA_NOT_FOUND: unknown device; RDMA_RESOURCE_EXHAUSTED: too many tensors wait;
/// RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_CANCELLED: `mgr` is being
/// destroyed; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_send(
    mgr: *mut rdma_mgr_t,
    key: *const c_char,
    key_len: usize,
    step: i64,
    tensor: *const rdma_tensor_t,
    options: *const rdma_send_options_t,
    done: rdma_send_done_fn,
    userdata: *mut c_void,
) -> rdma_code_t {
    guard_on("rdma_send", |thread| {
        // SAFETY: the caller's arguments, as the header demands; it keeps the content in place
        // until `done` has run.
        unsafe {
            let mgr = borrow_on(mgr, thread)?;
            let key = checked_key(key, key_len)?;
            let tensor = tensor_from_c(tensor)?;
            let options = sized::read_or_defaults("options", options)?;
            let timeout = optional_millis("options.timeout_ms", options.timeout_ms)?;
            mgr.send_on(thread, key, step, tensor, timeout, send_done(done, userdata))
        }
    })
}

/// Starts to receive the tensor `key` of `step` from `peer`; NULL or one's own name: from this
/// manager. `done` runs once, perhaps before this returns, perhaps before *out_request is written.
/// The tensor's struct, dimensions and user bytes are borrowed for that call. `done` NULL: not wanted.
///
/// Content in the library's memory lives for the call of `done` only, if `out_request` is NULL;
/// otherwise until rdma_request_release, which must be called once, or rdma_mgr_destroy. Content in
/// options.dst, or from options.alloc, is the application's. Where a manager receives from itself, content in the library's
/// memory is the sender's, which is not copied: the send ends, and its `done` runs, when this lifetime is over, and not before.
///
/// A tensor longer than options.dst_len ends the receive with RDMA_OUT_OF_RANGE; the message says its length. Nothing is
/// written, and the tensor, whatever its length, stays at its sender for the next receive: the send has not ended, unless a
/// source callback had answered. If options.alloc returns NULL, the receive ends with RDMA_RESOURCE_EXHAUSTED and the tensor
/// is gone: the send ends with RDMA_OK if it was short, else with RDMA_CANCELLED.
///
/// Its deadline ends it once nothing writes to the destination any more: at once as a rule. Where content is on its way from a
/// peer that stands still (a stopped process), and is read from there over tcp (as where options.dst is NULL) or written by it
/// over ibverbs, that is up to 2 s later, or peer_timeout_ms if that is less, and the connection ends with it: nothing else
/// says that the memory is not touched any more.
///
/// Threads: any. Key, name and options are copied; options.dst is written until `done` runs.
/// `options` NULL: defaults. `userdata` may be NULL. On a code other than RDMA_OK `done` never runs
/// and *out_request is not written.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `key` NULL, key_len not 1 to 65536, malformed
/// name, wrong struct_size, negative timeout, dst_len without dst; RDMA_NOT_FOUND: unknown peer or
/// device; RDMA_RESOURCE_EXHAUSTED: too many requests; RDMA_ABORTED: duplicate receive from this
/// manager, `peer` being NULL or oneself (of one from a peer `done` hears); the step's own code, if it was aborted; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in
/// a forked child; RDMA_CANCELLED: `mgr` is being destroyed; RDMA_INTERNAL.
/// To `done` come RDMA_OK; RDMA_ABORTED: duplicate receive, or the step was aborted; then the
/// step's own code; RDMA_CANCELLED; RDMA_DEADLINE_EXCEEDED; RDMA_UNAVAILABLE: the peer cannot be
/// reached, or is gone; RDMA_OUT_OF_RANGE: dst is too small; RDMA_RESOURCE_EXHAUSTED: no memory;
/// RDMA_DATA_LOSS: the checksum differs; RDMA_PERMISSION_DENIED; RDMA_UNAUTHENTICATED;
/// RDMA_NOT_FOUND: another worker answers at the peer's address; RDMA_FAILED_PRECONDITION: the required
/// provider does not reach the peer, a system call that connecting needs is refused, or dst was unregistered; RDMA_INVALID_ARGUMENT: the peer broke the
/// protocol, or no manager answers there; RDMA_INTERNAL; and any code that the peer's application gave.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_recv_async(
    mgr: *mut rdma_mgr_t,
    peer: *const c_char,
    key: *const c_char,
    key_len: usize,
    step: i64,
    options: *const rdma_recv_options_t,
    done: rdma_recv_done_fn,
    userdata: *mut c_void,
    out_request: *mut rdma_request_t,
) -> rdma_code_t {
    guard_on("rdma_recv_async", |thread| {
        // SAFETY: the caller's arguments, as the header demands; it keeps the destination in place
        // until `done` has run.
        unsafe {
            let mgr = borrow_on(mgr, thread)?;
            let peer = if peer.is_null() { None } else { Some(name("peer", peer)?) };
            let key = checked_key(key, key_len)?;
            let options = recv_options(options, !out_request.is_null())?;
            let done = recv_done(done, userdata);
            let request = mgr.recv_on(thread, peer, key, step, options, done)?;
            if !out_request.is_null() {
                out_request.write(request);
            }
        }
        Ok(())
    })
}

/// Receives like rdma_recv_async and waits for the end, driving progress itself. Set
/// out->struct_size first. With `out_request`, content in the library's memory, the dimensions and the
/// user bytes live until rdma_request_release, which must be called once, or rdma_mgr_destroy.
/// `out_request` NULL is allowed with options.dst or options.alloc only; dimensions and user bytes then
/// live until this thread's next rdma_recv. A dst that is too small, and an alloc that returns NULL, are as with rdma_recv_async: after
/// RDMA_OUT_OF_RANGE the tensor can be received again, into a larger one. So is a deadline behind which a peer stands still: it may
/// return up to 2 s later.
///
/// Threads: any, but not inside a callback.
///
/// Returns what rdma_recv_async returns, and what it gives to `done`; RDMA_INVALID_ARGUMENT also:
/// `out` NULL or of a wrong struct_size, `out_request` NULL without a destination;
/// RDMA_FAILED_PRECONDITION also: inside a callback.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_recv(
    mgr: *mut rdma_mgr_t,
    peer: *const c_char,
    key: *const c_char,
    key_len: usize,
    step: i64,
    options: *const rdma_recv_options_t,
    out: *mut rdma_tensor_t,
    out_request: *mut rdma_request_t,
) -> rdma_code_t {
    guard_on("rdma_recv", |thread| {
        // SAFETY: the caller's arguments, as the header demands; the destination stays in place
        // until this returns.
        unsafe {
            let mgr = borrow_on(mgr, thread)?;
            let peer = if peer.is_null() { None } else { Some(name("peer", peer)?) };
            let key = checked_key(key, key_len)?;
            let keep = !out_request.is_null();
            let options = recv_options(options, keep)?;
            if !keep && matches!(options.target, Target::Library) {
                return Err(Status::invalid(
                    "out_request is NULL, allowed with options.dst or options.alloc only",
                ));
            }
            let out = Out::new("out", out)?;
            let (tensor, request) = mgr.recv(peer, key, step, options)?;
            let mut c = tensor_to_c(&tensor);
            let beside = Beside::of(tensor.meta, &mut c);
            if keep {
                mgr.keep_beside(request, beside);
                out_request.write(request);
            } else {
                keep_last(beside);
            }
            out.write(c);
        }
        Ok(())
    })
}

fn keep_last(beside: Beside) {
    let kept = std::cell::Cell::new(Some(beside));
    let taken = LAST.try_with(|last| {
        *last.borrow_mut() = kept.take().unwrap_or_default();
    });
    if taken.is_err() {
        // In a thread-local destructor of the application nothing frees them any more: at most 3 KiB.
        std::mem::forget(kept);
    }
}

/// Asks for the end of a receive. Its callback runs with RDMA_CANCELLED once nothing writes to the
/// destination any more, or with another code if that was earlier. That is up to 2 s later, and ends the connection, where
/// rdma_recv_async says so of the deadline.
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL, request 0; RDMA_NOT_FOUND: ended already, or
/// never made; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_request_cancel(
    mgr: *mut rdma_mgr_t,
    request: rdma_request_t,
) -> rdma_code_t {
    guard("rdma_request_cancel", || {
        // SAFETY: the caller's handle, as the header demands.
        let mgr = unsafe { borrow(mgr) }?;
        mgr.request_cancel(id("request", request)?)
    })
}

/// Gives up a request, and with it the library's memory of its result. To be called once for each
/// request that was handed out, also for failed ones. Before the receive has ended, or inside its
/// callback: the callback runs all the same, and the memory is freed once it has returned.
/// rdma_mgr_destroy releases what is left, and unmaps the memory.
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL, request 0; RDMA_NOT_FOUND: released already,
/// also by rdma_mgr_destroy that runs on another thread, or never made; RDMA_FAILED_PRECONDITION:
/// `mgr` destroyed or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_request_release(
    mgr: *mut rdma_mgr_t,
    request: rdma_request_t,
) -> rdma_code_t {
    guard_on("rdma_request_release", |thread| {
        // SAFETY: the caller's handle, as the header demands.
        let mgr = unsafe { borrow_on(mgr, thread) }?;
        mgr.request_release(id("request", request)?)?;
        mgr.drop_beside(request);
        Ok(())
    })
}

/// Fails the pending and the future operations of a step with `code` and `message`, until
/// rdma_step_cleanup.
///
/// Threads: any. The text is copied; bytes that are not UTF-8 are replaced. `message` NULL with
/// length 0: none. Operations of this manager end with all of it. A peer hears its first 4096 bytes, or 64 where many
/// messages to it wait; one that was cut ends with "...". Where there is no memory for the text, an operation ends without it.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL, code RDMA_OK or unknown, `message` NULL with
/// a length, or longer than 65535 bytes; RDMA_RESOURCE_EXHAUSTED: no memory; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a
/// forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_step_abort(
    mgr: *mut rdma_mgr_t,
    step: i64,
    code: rdma_code_t,
    message: *const c_char,
    message_len: usize,
) -> rdma_code_t {
    guard("rdma_step_abort", || {
        // SAFETY: the caller's arguments, as the header demands.
        let (mgr, status) = unsafe { (borrow(mgr)?, status(code, message, message_len)?) };
        mgr.step_abort(step, status)
    })
}

/// Frees what a step left: tensors nobody took, receives that wait (they end with RDMA_ABORTED),
/// its abort status. A step that never was is success.
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL; RDMA_FAILED_PRECONDITION: `mgr` destroyed or
/// in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_step_cleanup(mgr: *mut rdma_mgr_t, step: i64) -> rdma_code_t {
    guard_on("rdma_step_cleanup", |thread| {
        // SAFETY: the caller's handle, as the header demands.
        unsafe { borrow_on(mgr, thread) }?.step_cleanup_on(thread, step)
    })
}
