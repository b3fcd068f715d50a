//! Stores: values, options, results, and the functions of one of the application's own.

use std::ffi::{c_char, c_void};

use super::rdma_code_t;

/// timeout_ms of a store: as long as the store was set up for.
pub const RDMA_STORE_DEFAULT: i64 = 0;
/// timeout_ms of a store: without end.
pub const RDMA_STORE_FOREVER: i64 = -1;
/// timeout_ms of a store: one look. What is to be reached over a network has as long as the store was set up for.
pub const RDMA_STORE_NOW: i64 = -2;
/// Longest key of a store in bytes, with its prefixes and their separators.
pub const RDMA_STORE_MAX_KEY_LEN: u32 = 4096;
/// Longest value in bytes.
pub const RDMA_STORE_MAX_VALUE_LEN: u32 = 16777216;
/// Most keys of one call.
pub const RDMA_STORE_MAX_KEYS: u32 = 65536;
/// rdma_store_compare_set: the value was as expected, and is now the new one.
pub const RDMA_STORE_SET: i32 = 0;
/// rdma_store_compare_set: another value is there; nothing was changed.
pub const RDMA_STORE_DIFFERS: i32 = 1;
/// rdma_store_compare_set: one was expected, and none is there; nothing was changed.
pub const RDMA_STORE_ABSENT: i32 = 2;

/// Bytes that are read: a key, or a value to be set.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_bytes {
    /// The first. May be NULL where `len` is 0 and that is allowed.
    pub data: *const c_void,
    /// How many.
    pub len: usize,
}
/// Bytes that are read.
pub type rdma_bytes_t = rdma_bytes;

/// Where a value goes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_bytes_out {
    /// Memory for it. May be NULL where `cap` is 0.
    pub data: *mut c_void,
    /// How many bytes there are.
    pub cap: usize,
    /// Written: how many bytes the value has.
    pub len: usize,
}
/// Where a value goes.
pub type rdma_bytes_out_t = rdma_bytes_out;

/// Options of a store. Prepare it with rdma_store_options_init, or set struct_size and the rest to
/// zero.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_store_options {
    /// sizeof(rdma_store_options_t) as the application was compiled.
    pub struct_size: usize,
    /// Time for operations that say RDMA_STORE_DEFAULT, in milliseconds; 0: 120000.
    pub timeout_ms: i64,
    /// Of a TCP store, the secret that both sides prove; of a Redis store, its password. NULL: none.
    pub secret: *const c_void,
    /// Its length, at most 4096.
    pub secret_len: usize,
    /// Not 0: rdma_store_tcp_serve may serve beyond loopback without a secret.
    pub allow_remote: u8,
}
/// Options of a store.
pub type rdma_store_options_t = rdma_store_options;

/// Takes a value from rdma_store_ops_t.get: call it once, with the value, before get returns.
pub type rdma_store_give_fn =
    Option<unsafe extern "C" fn(value: *const c_void, len: usize, token: *mut c_void)>;

/// The application's own store. All functions may be called by several threads at once, return an
/// rdma_code_t, and should take no longer than timeout_ms. Set struct_size, and to NULL what there is
/// not.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_store_ops {
    /// sizeof(rdma_store_ops_t) as the application was compiled.
    pub struct_size: usize,
    /// Sets a key. Required.
    pub set: Option<
        unsafe extern "C" fn(
            key: *const c_char,
            key_len: usize,
            value: *const c_void,
            value_len: usize,
            timeout_ms: i64,
            userdata: *mut c_void,
        ) -> rdma_code_t,
    >,
    /// Gives the value of a key, by give(value, len, token), or returns RDMA_NOT_FOUND; does not wait
    /// for it. Required.
    pub get: Option<
        unsafe extern "C" fn(
            key: *const c_char,
            key_len: usize,
            timeout_ms: i64,
            give: rdma_store_give_fn,
            token: *mut c_void,
            userdata: *mut c_void,
        ) -> rdma_code_t,
    >,
    /// Whether a key is there. NULL: get is asked.
    pub check: Option<
        unsafe extern "C" fn(
            key: *const c_char,
            key_len: usize,
            timeout_ms: i64,
            out_there: *mut bool,
            userdata: *mut c_void,
        ) -> rdma_code_t,
    >,
    /// Waits until each of the keys has been there; RDMA_DEADLINE_EXCEEDED if not in time. It is
    /// called again and again with half a second at most. NULL: check is asked, with pauses.
    pub wait: Option<
        unsafe extern "C" fn(
            keys: *const rdma_bytes_t,
            count: usize,
            timeout_ms: i64,
            userdata: *mut c_void,
        ) -> rdma_code_t,
    >,
    /// Adds to a decimal number, where nothing counts as 0. NULL: rdma_store_add is
    /// RDMA_UNIMPLEMENTED.
    pub add: Option<
        unsafe extern "C" fn(
            key: *const c_char,
            key_len: usize,
            delta: i64,
            timeout_ms: i64,
            out_sum: *mut i64,
            userdata: *mut c_void,
        ) -> rdma_code_t,
    >,
    /// As rdma_store_compare_set; the value that is there instead is given by give(value, len, token).
    /// NULL: that is RDMA_UNIMPLEMENTED.
    pub compare_set: Option<
        unsafe extern "C" fn(
            key: *const c_char,
            key_len: usize,
            expected: *const rdma_bytes_t,
            desired: *const rdma_bytes_t,
            timeout_ms: i64,
            out_result: *mut i32,
            give: rdma_store_give_fn,
            token: *mut c_void,
            userdata: *mut c_void,
        ) -> rdma_code_t,
    >,
    /// Deletes a key. NULL: rdma_store_delete is RDMA_UNIMPLEMENTED.
    pub remove: Option<
        unsafe extern "C" fn(
            key: *const c_char,
            key_len: usize,
            timeout_ms: i64,
            out_was_there: *mut bool,
            userdata: *mut c_void,
        ) -> rdma_code_t,
    >,
}
/// The application's own store.
pub type rdma_store_ops_t = rdma_store_ops;
