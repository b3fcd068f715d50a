//! Levels and callback of the log.

use std::ffi::{c_char, c_void};

/// Log level: something failed.
pub const RDMA_LOG_ERROR: i32 = 1;
/// Log level: something is not as expected, and went on (default).
pub const RDMA_LOG_WARN: i32 = 2;
/// Log level: decisions and changes of state.
pub const RDMA_LOG_INFO: i32 = 3;
/// Log level: details.
pub const RDMA_LOG_DEBUG: i32 = 4;

/// Receives log messages. `message` ends with a NUL. Runs on any thread, on several at once, with no
/// lock held, and may call any function that its thread may call; what those log is dropped.
pub type rdma_log_fn = Option<
    unsafe extern "C" fn(
        level: i32,
        message: *const c_char,
        message_len: usize,
        userdata: *mut c_void,
    ),
>;
