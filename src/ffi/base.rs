//! Version, codes, errors, log, providers.

use std::ffi::{c_char, c_void};

use super::args::{TextOut, cut};
use super::callback;
use super::error::{guard, with_last};
use super::types::*;
use crate::log::{self, Level};
use crate::observe;
use crate::status::{Code, Status};

/// The library's version, "0.1.0". Threads: any. The text is static. Never NULL.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn rdma_version() -> *const c_char {
    const { concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast() }
}

/// The library's RDMA_ABI_VERSION; it serves applications compiled with this one or a lower one.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn rdma_abi_version() -> u32 {
    RDMA_ABI_VERSION
}

/// The name of a code, "INVALID_ARGUMENT"; "INVALID_CODE" for a number that is none. Threads: any.
/// The text is static. Never NULL.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn rdma_code_name(code: rdma_code_t) -> *const c_char {
    Code::from_i32(code).map_or(c"INVALID_CODE", Code::c_name).as_ptr()
}

/// The text of the last error that a function returned on this thread; successful calls leave it.
/// Writes at most `cap` bytes with the NUL, cut if need be, and returns the full length without
/// it; 0 if there was no error yet. Threads: any, each has its own. `buf` NULL: only the length.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_last_error(buf: *mut c_char, cap: usize) -> usize {
    with_last(|text| {
        if !buf.is_null() && cap > 0 {
            let part = cut(text, cap - 1);
            // SAFETY: the caller's buffer has `cap` bytes, the part and its NUL at most as many.
            unsafe {
                buf.copy_from_nonoverlapping(part.as_ptr().cast(), part.len());
                buf.add(part.len()).write(0);
            }
        }
        text.len()
    })
}

/// Sends log messages up to `level` (RDMA_LOG_*) to `log` instead of stderr. `log` NULL: stderr
/// again. The environment's RDMA_LOG (error, warn, info, debug) overrides `level`. One per process.
/// A message under way on another thread may still reach the earlier function.
///
/// Threads: any. `userdata` is passed on, also from other threads; NULL is allowed.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: unknown level; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_set_log_callback(
    log: rdma_log_fn,
    level: i32,
    userdata: *mut c_void,
) -> rdma_code_t {
    guard("rdma_set_log_callback", || {
        let level = Level::from_i32(level).ok_or_else(|| {
            Status::invalid(text!(
                "level is {level}, allowed are 1 (RDMA_LOG_ERROR) to 4 (RDMA_LOG_DEBUG)"
            ))
        })?;
        log::set_level(level);
        log::set_callback(callback::log_fn(log, userdata));
        Ok(())
    })
}

/// Lists the providers as a JSON array of objects: "name", "available" and, in "reason", what is
/// missing. Text output.
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_OUT_OF_RANGE: the text was cut; RDMA_INVALID_ARGUMENT: `buf` NULL with
/// cap above 0, or with `out_len` NULL; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_providers(
    buf: *mut c_char,
    cap: usize,
    out_len: *mut usize,
) -> rdma_code_t {
    guard("rdma_providers", || {
        // SAFETY: the caller's arguments, as the header demands.
        let out = unsafe { TextOut::new("buf", buf, cap, out_len) }?;
        out.write(&observe::providers_json(&crate::manager::providers()))
    })
}
