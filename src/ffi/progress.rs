//! Driving progress.

use std::ffi::{c_char, c_int};

use super::args::{millis, not_null, optional_text};
use super::error::{guard, guard_on};
use super::handle::{borrow, borrow_on};
use super::types::*;
use crate::api::MAX_NAME_LEN;

/// Moves data, runs callbacks and timers, and returns; never blocks, but for a page of content that
/// comes late (see "Threads" above). *events is the number of things that happened. With RDMA_PROGRESS_THREAD it may be called too, and helps.
///
/// Threads: any, but not inside a callback. `events` NULL: not wanted.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL; RDMA_FAILED_PRECONDITION: inside a callback,
/// `mgr` destroyed or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mgr_progress(
    mgr: *mut rdma_mgr_t,
    events: *mut u32,
) -> rdma_code_t {
    guard_on("rdma_mgr_progress", |thread| {
        // SAFETY: the caller's handle, as the header demands.
        let mgr = unsafe { borrow_on(mgr, thread) }?;
        let count = mgr.progress_on(thread)?;
        if !events.is_null() {
            // SAFETY: not NULL, and the caller's to write.
            unsafe { events.write(count) };
        }
        Ok(())
    })
}

/// Drives progress until something happened: a callback ran (on any thread), a connection came or
/// went, a peer asked, somebody called rdma_mgr_wake. Returns at once if something happened since
/// this thread's last call of it, so
/// that nothing is missed between the application's look at its own state and this call; the
/// first call on a thread may return at once. 0 looks once. Spins as busy_poll_us says, then
/// sleeps.
///
/// Threads: any, but not inside a callback.
///
/// Returns RDMA_OK; RDMA_DEADLINE_EXCEEDED: nothing happened; RDMA_INVALID_ARGUMENT: `mgr` NULL,
/// negative timeout; RDMA_FAILED_PRECONDITION: inside a callback, `mgr` destroyed or in a forked
/// child; RDMA_CANCELLED: `mgr` was destroyed meanwhile; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mgr_wait(
    mgr: *mut rdma_mgr_t,
    timeout_ms: i64,
) -> rdma_code_t {
    guard("rdma_mgr_wait", || {
        // SAFETY: the caller's handle, as the header demands.
        let mgr = unsafe { borrow(mgr) }?;
        mgr.wait(millis("timeout_ms", timeout_ms)?)
    })
}

/// Ends each rdma_mgr_wait under way with RDMA_OK, and the next one of each other thread, and makes the
/// descriptor of rdma_mgr_event_fd readable once. For a thread that has other work for the one that
/// waits.
///
/// Threads: any, also inside callbacks.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL; RDMA_FAILED_PRECONDITION: `mgr` destroyed or
/// in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mgr_wake(mgr: *mut rdma_mgr_t) -> rdma_code_t {
    guard("rdma_mgr_wake", || {
        // SAFETY: the caller's handle, as the header demands.
        unsafe { borrow(mgr) }?.wake()
    })
}

/// Drives progress until what was accepted has ended and its callbacks have returned: receives from
/// `peer`, and sends that it is taking. `peer` NULL: all receives and sends, also those that nobody
/// has taken yet, or whose receiver, this manager itself, has yet to call rdma_request_release (see rdma_recv_async). What
/// is started meanwhile is waited for, too.
///
/// Threads: any, but not inside a callback.
///
/// Returns RDMA_OK; RDMA_DEADLINE_EXCEEDED: some are still under way; RDMA_INVALID_ARGUMENT: `mgr`
/// NULL, malformed name, negative timeout; RDMA_NOT_FOUND: unknown peer; RDMA_FAILED_PRECONDITION:
/// inside a callback, `mgr` destroyed or in a forked child; RDMA_CANCELLED: `mgr` was destroyed
/// meanwhile; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mgr_flush(
    mgr: *mut rdma_mgr_t,
    peer: *const c_char,
    timeout_ms: i64,
) -> rdma_code_t {
    guard("rdma_mgr_flush", || {
        // SAFETY: the caller's arguments, as the header demands.
        let (mgr, peer) = unsafe { (borrow(mgr)?, optional_text("peer", peer, MAX_NAME_LEN)?) };
        mgr.flush(peer, millis("timeout_ms", timeout_ms)?)
    })
}

/// Gives a descriptor for poll, select or epoll: when it is readable, call rdma_mgr_progress until
/// that reports no events. For RDMA_PROGRESS_MANUAL. Each call gives the same one, and does not make
/// it readable: it is so when there is something to do. The descriptor belongs to the manager: do not
/// read, write or close it. In a forked child its number is a descriptor that is never ready, which the child
/// may close, for an event loop that adds there what it watches (uv_loop_fork, event_reinit).
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `fd` NULL; RDMA_FAILED_PRECONDITION: progress
/// is RDMA_PROGRESS_THREAD, `mgr` destroyed or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mgr_event_fd(
    mgr: *mut rdma_mgr_t,
    fd: *mut c_int,
) -> rdma_code_t {
    guard("rdma_mgr_event_fd", || {
        not_null("fd", fd)?;
        // SAFETY: the caller's handle, as the header demands.
        let mgr = unsafe { borrow(mgr) }?;
        let value = mgr.event_fd()?;
        // SAFETY: not NULL, and the caller's to write.
        unsafe { fd.write(value) };
        Ok(())
    })
}
