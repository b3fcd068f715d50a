//! What a manager did: statistics, metrics, traces.

use std::ffi::c_char;

use super::args::{TextOut, text};
use super::error::guard;
use super::handle::borrow;
use super::types::*;

/// Longest path of a trace.
const MAX_PATH_LEN: usize = 4095;

/// Statistics as a JSON object: per peer and provider bytes, requests, completions by code,
/// protocols, connections, and latencies of receives. Text output.
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_OUT_OF_RANGE: the text was cut; RDMA_INVALID_ARGUMENT: `mgr` NULL, `buf`
/// NULL with cap above 0, or with `out_len` NULL; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a
/// forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mgr_stats_json(
    mgr: *const rdma_mgr_t,
    buf: *mut c_char,
    cap: usize,
    out_len: *mut usize,
) -> rdma_code_t {
    guard("rdma_mgr_stats_json", || {
        // SAFETY: the caller's arguments, as the header demands.
        let (mgr, out) = unsafe { (borrow(mgr)?, TextOut::new("buf", buf, cap, out_len)?) };
        out.write(&mgr.stats_json()?)
    })
}

/// The same in Prometheus' text format, to be served by the application. Text output.
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_OUT_OF_RANGE: the text was cut; RDMA_INVALID_ARGUMENT: `mgr` NULL, `buf`
/// NULL with cap above 0, or with `out_len` NULL; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a
/// forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mgr_metrics(
    mgr: *const rdma_mgr_t,
    buf: *mut c_char,
    cap: usize,
    out_len: *mut usize,
) -> rdma_code_t {
    guard("rdma_mgr_metrics", || {
        // SAFETY: the caller's arguments, as the header demands.
        let (mgr, out) = unsafe { (borrow(mgr)?, TextOut::new("buf", buf, cap, out_len)?) };
        out.write(&mgr.metrics()?)
    })
}

/// Starts to write transfers to the file `path` as Chrome's trace events, which
/// Perfetto opens. An existing file is replaced; "%p" in the path becomes the process id, "%n" the
/// manager's name. Environment: RDMA_TRACE.
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `path` NULL, not UTF-8, longer than 4095 bytes, a FIFO, socket or terminal;
/// RDMA_FAILED_PRECONDITION: a trace is running, another manager's is written to that file, `mgr` destroyed or in a forked child;
/// RDMA_NOT_FOUND, RDMA_PERMISSION_DENIED, RDMA_RESOURCE_EXHAUSTED, RDMA_UNAVAILABLE: the file
/// cannot be written; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_trace_start(
    mgr: *mut rdma_mgr_t,
    path: *const c_char,
) -> rdma_code_t {
    guard("rdma_trace_start", || {
        // SAFETY: the caller's arguments, as the header demands.
        let (mgr, path) = unsafe { (borrow(mgr)?, text("path", path, MAX_PATH_LEN)?) };
        mgr.trace_start(path)
    })
}

/// Completes the trace's file and closes it.
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL; RDMA_FAILED_PRECONDITION: no trace is
/// running, `mgr` destroyed or in a forked child; RDMA_RESOURCE_EXHAUSTED, RDMA_UNAVAILABLE: the
/// file could not be written; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_trace_stop(mgr: *mut rdma_mgr_t) -> rdma_code_t {
    guard("rdma_trace_stop", || {
        // SAFETY: the caller's handle, as the header demands.
        unsafe { borrow(mgr) }?.trace_stop()
    })
}
