//! Operations on stores.

use std::ffi::{c_char, c_void};

use super::args::{self, TextOut, bytes, not_null};
use super::error::guard;
use super::store::{borrow, rdma_store_t};
use super::types::*;
use crate::limits::{STORE_CALL, STORE_KEY, STORE_VALUE};
use crate::status::{Code, Status};
use crate::store::{Compared, Patience};

fn patience(timeout_ms: i64) -> Result<Patience, Status> {
    args::patience("timeout_ms", timeout_ms, true)
}

/// # Safety
/// As the header demands of a key.
unsafe fn key<'a>(key: *const c_char, len: usize) -> Result<&'a [u8], Status> {
    // SAFETY: by this function's contract.
    unsafe { bytes("key", key, len, 1, STORE_KEY) }
}

/// # Safety
/// `all` is NULL or has `count` entries, each with as many bytes as it says, for `'a`.
unsafe fn list<'a>(
    arg: &str,
    all: *const rdma_bytes_t,
    count: usize,
    min: usize,
    max: usize,
) -> Result<Vec<&'a [u8]>, Status> {
    if count == 0 || count > STORE_CALL {
        return Err(Status::invalid(text!("count is {count}, allowed are 1 to {STORE_CALL}")));
    }
    not_null(arg, all)?;
    // SAFETY: not NULL, and `count` entries by this function's contract.
    let all = unsafe { std::slice::from_raw_parts(all, count) };
    let mut list = Vec::new();
    crate::room::grow(&mut list, count, "keys")?;
    for (i, one) in all.iter().enumerate() {
        if one.data.is_null() && one.len > 0 || one.len < min || one.len > max {
            return Err(Status::invalid(text!(
                "{arg}[{i}] has {} bytes{}, allowed are {min} to {max}",
                one.len,
                if one.data.is_null() { " at NULL" } else { "" }
            )));
        }
        // SAFETY: by this function's contract.
        list.push(unsafe { bytes(arg, one.data.cast(), one.len, min, max) }?);
    }
    Ok(list)
}

/// # Safety
/// As for [`list`].
unsafe fn keys<'a>(all: *const rdma_bytes_t, count: usize) -> Result<Vec<&'a [u8]>, Status> {
    // SAFETY: by this function's contract.
    unsafe { list("keys", all, count, 1, STORE_KEY) }
}

/// Sets a key to a value.
///
/// timeout_ms of this and the other operations: milliseconds, RDMA_STORE_DEFAULT, RDMA_STORE_FOREVER or
/// RDMA_STORE_NOW, which is as RDMA_STORE_DEFAULT for what waits for no keys.
///
/// Threads: any. `value` NULL is allowed with length 0.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `store` NULL, a key or value of a length that is not allowed, NULL
/// with a length, a timeout that is not allowed. All operations on a store also return
/// RDMA_DEADLINE_EXCEEDED: the store was not reached, or was locked by others, or did not answer: of a change
/// rdma_last_error says then that it may have been done, or be done later; RDMA_CANCELLED: `store` was
/// destroyed meanwhile; RDMA_FAILED_PRECONDITION: `store` destroyed or in a forked child; of writes, its lease
/// was lost; the server refuses; RDMA_UNAUTHENTICATED: by the server; RDMA_RESOURCE_EXHAUSTED: no memory or
/// disk, here or there; RDMA_PERMISSION_DENIED: by the system, or by a Redis server, which may have done a part
/// of it; RDMA_UNAVAILABLE: by the system, or a directory that is gone; RDMA_DATA_LOSS: what is there, or
/// came, is damaged or a stranger's; RDMA_UNIMPLEMENTED: the application's store has no such function; the
/// codes of its functions; RDMA_UNKNOWN: an error of Redis's; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_store_set(
    store: *const rdma_store_t,
    key: *const c_char,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
    timeout_ms: i64,
) -> rdma_code_t {
    guard("rdma_store_set", || {
        // SAFETY: the caller's arguments, as the header demands.
        let (store, item) = unsafe {
            let key = self::key(key, key_len)?;
            (borrow(store)?, (key, bytes("value", value.cast(), value_len, 0, STORE_VALUE)?))
        };
        store.set(&[item], patience(timeout_ms)?)
    })
}

/// Sets several keys, values[i] of keys[i]. Others may see some of them before the rest.
///
/// Threads: any.
///
/// Returns what rdma_store_set returns; RDMA_INVALID_ARGUMENT also: `keys` or `values` NULL, count not 1 to
/// RDMA_STORE_MAX_KEYS. After an error some may have been set.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_store_multi_set(
    store: *const rdma_store_t,
    keys: *const rdma_bytes_t,
    values: *const rdma_bytes_t,
    count: usize,
    timeout_ms: i64,
) -> rdma_code_t {
    guard("rdma_store_multi_set", || {
        // SAFETY: the caller's arguments, as the header demands.
        let (store, keys, values) = unsafe {
            let keys = self::keys(keys, count)?;
            (borrow(store)?, keys, list("values", values, count, 0, STORE_VALUE)?)
        };
        let items = crate::room::collect(keys.into_iter().zip(values), "keys")?;
        store.set(&items, patience(timeout_ms)?)
    })
}

/// Gives the value of a key, once it is there: all of it and its length, or, with RDMA_OUT_OF_RANGE, only
/// the length. `buf` NULL with cap 0 asks for the length.
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_OUT_OF_RANGE: cap is too small; RDMA_NOT_FOUND: it is not there, with
/// RDMA_STORE_NOW; RDMA_DEADLINE_EXCEEDED: it did not come in time; RDMA_INVALID_ARGUMENT also: `out_len`
/// NULL, `buf` NULL with cap above 0; otherwise as rdma_store_set.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_store_get(
    store: *const rdma_store_t,
    key: *const c_char,
    key_len: usize,
    timeout_ms: i64,
    buf: *mut c_void,
    cap: usize,
    out_len: *mut usize,
) -> rdma_code_t {
    guard("rdma_store_get", || {
        not_null("out_len", out_len)?;
        // SAFETY: the caller's arguments, as the header demands.
        let (store, key, out) = unsafe {
            let key = self::key(key, key_len)?;
            (borrow(store)?, key, TextOut::new("buf", buf.cast(), cap, out_len)?)
        };
        let values = store.get(&[key], patience(timeout_ms)?)?;
        out.write_bytes(values.first().map_or(&[][..], |value| value))
    })
}

/// Gives the values of several keys, once they are all there: that of keys[i] goes to buffers[i].data, and its
/// length to buffers[i].len. If one does not fit, RDMA_OUT_OF_RANGE: then the lengths alone are written.
///
/// Threads: any.
///
/// Returns what rdma_store_get returns; RDMA_INVALID_ARGUMENT also: `keys` or `buffers` NULL, count not 1 to
/// RDMA_STORE_MAX_KEYS.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_store_multi_get(
    store: *const rdma_store_t,
    keys: *const rdma_bytes_t,
    buffers: *mut rdma_bytes_out_t,
    count: usize,
    timeout_ms: i64,
) -> rdma_code_t {
    guard("rdma_store_multi_get", || {
        // SAFETY: the caller's arguments, as the header demands.
        let (store, keys, buffers) = unsafe {
            let keys = self::keys(keys, count)?;
            not_null("buffers", buffers)?;
            (borrow(store)?, keys, std::slice::from_raw_parts_mut(buffers, count))
        };
        for (i, buffer) in buffers.iter().enumerate() {
            if buffer.data.is_null() && buffer.cap > 0 {
                let text = text!("buffers[{i}].data is NULL, but cap is {}", buffer.cap);
                return Err(Status::invalid(text));
            }
        }
        let values = store.get(&keys, patience(timeout_ms)?)?;
        let mut short = None;
        for (i, (buffer, value)) in buffers.iter_mut().zip(&values).enumerate() {
            buffer.len = value.len();
            if buffer.cap < value.len() && short.is_none() {
                let text =
                    text!("buffers[{i}].cap is {}, needed are {} bytes", buffer.cap, value.len());
                short = Some(Status::new(Code::OutOfRange, text));
            }
        }
        if let Some(status) = short {
            return Err(status);
        }
        for (buffer, value) in buffers.iter_mut().zip(&values) {
            if !value.is_empty() {
                // SAFETY: `cap` bytes are writable, and the value has no more.
                unsafe {
                    buffer.data.cast::<u8>().copy_from_nonoverlapping(value.as_ptr(), value.len());
                }
            }
        }
        Ok(())
    })
}

/// Waits until each of the keys has been there. With RDMA_STORE_NOW: one look.
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_DEADLINE_EXCEEDED: some are missing, and rdma_last_error names them;
/// RDMA_INVALID_ARGUMENT also: `keys` NULL, count not 1 to RDMA_STORE_MAX_KEYS; otherwise as rdma_store_set.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_store_wait(
    store: *const rdma_store_t,
    keys: *const rdma_bytes_t,
    count: usize,
    timeout_ms: i64,
) -> rdma_code_t {
    guard("rdma_store_wait", || {
        // SAFETY: the caller's arguments, as the header demands.
        let (store, keys) = unsafe { (borrow(store)?, self::keys(keys, count)?) };
        store.wait(&keys, patience(timeout_ms)?)
    })
}

/// Tells whether all of the keys are there, at one look.
///
/// Threads: any.
///
/// Returns what rdma_store_set returns; RDMA_INVALID_ARGUMENT also: `keys` or `out_all` NULL, count not 1 to
/// RDMA_STORE_MAX_KEYS.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_store_check(
    store: *const rdma_store_t,
    keys: *const rdma_bytes_t,
    count: usize,
    timeout_ms: i64,
    out_all: *mut bool,
) -> rdma_code_t {
    guard("rdma_store_check", || {
        not_null("out_all", out_all)?;
        // SAFETY: the caller's arguments, as the header demands.
        unsafe {
            let (store, keys) = (borrow(store)?, self::keys(keys, count)?);
            out_all.write(store.check(&keys, patience(timeout_ms)?)?);
        }
        Ok(())
    })
}

/// Adds `delta` to a value that is a decimal number, where nothing counts as 0, and gives the sum. The
/// value is the sum as text: rdma_store_get gives "5".
///
/// Threads: any.
///
/// Returns what rdma_store_set returns; RDMA_FAILED_PRECONDITION also: the value is no number;
/// RDMA_OUT_OF_RANGE: the sum does not fit into 64 bits; RDMA_UNAVAILABLE: the connection broke, and it is
/// not known whether it was done; RDMA_INVALID_ARGUMENT also: `out_sum` NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_store_add(
    store: *const rdma_store_t,
    key: *const c_char,
    key_len: usize,
    delta: i64,
    timeout_ms: i64,
    out_sum: *mut i64,
) -> rdma_code_t {
    guard("rdma_store_add", || {
        not_null("out_sum", out_sum)?;
        // SAFETY: the caller's arguments, as the header demands.
        unsafe {
            let key = self::key(key, key_len)?;
            out_sum.write(borrow(store)?.add(key, delta, patience(timeout_ms)?)?);
        }
        Ok(())
    })
}

/// Sets a key to `desired` if its value is `expected`; `expected` NULL: if it is not there. *out_result is
/// RDMA_STORE_SET, RDMA_STORE_DIFFERS or RDMA_STORE_ABSENT. With RDMA_STORE_DIFFERS the value that is there
/// goes to `buf`, as in rdma_store_get; `buf` NULL with cap 0 and `out_len` NULL: not wanted.
///
/// Threads: any.
///
/// Returns what rdma_store_set returns; RDMA_OUT_OF_RANGE: the value that is there does not fit; nothing was
/// changed, and *out_result is written; RDMA_UNAVAILABLE: the connection broke, and it is not known whether it
/// was done; RDMA_INVALID_ARGUMENT also: `out_result` NULL, `buf` NULL with cap above 0.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_store_compare_set(
    store: *const rdma_store_t,
    key: *const c_char,
    key_len: usize,
    expected: *const c_void,
    expected_len: usize,
    desired: *const c_void,
    desired_len: usize,
    timeout_ms: i64,
    out_result: *mut i32,
    buf: *mut c_void,
    cap: usize,
    out_len: *mut usize,
) -> rdma_code_t {
    guard("rdma_store_compare_set", || {
        not_null("out_result", out_result)?;
        // SAFETY: the caller's arguments, as the header demands.
        unsafe {
            let key = self::key(key, key_len)?;
            let known = bytes("expected", expected.cast(), expected_len, 0, STORE_VALUE)?;
            let known = (!expected.is_null()).then_some(known);
            let desired = bytes("desired", desired.cast(), desired_len, 0, STORE_VALUE)?;
            let out = TextOut::optional("buf", buf.cast(), cap, out_len)?;
            let wanted = !buf.is_null() || !out_len.is_null();
            let store = borrow(store)?;
            match store.compare_set(key, known, desired, patience(timeout_ms)?)? {
                Compared::Set => out_result.write(RDMA_STORE_SET),
                Compared::Absent => out_result.write(RDMA_STORE_ABSENT),
                Compared::Differs(there) => {
                    out_result.write(RDMA_STORE_DIFFERS);
                    if wanted {
                        out.write_bytes(&there)?;
                    }
                }
            }
        }
        Ok(())
    })
}

/// Deletes a key. *out_was_there tells whether it was there; `out_was_there` NULL: not wanted.
///
/// Threads: any.
///
/// Returns what rdma_store_set returns. After a connection broke and was made anew, *out_was_there may be
/// false for a key that this call deleted.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_store_delete(
    store: *const rdma_store_t,
    key: *const c_char,
    key_len: usize,
    timeout_ms: i64,
    out_was_there: *mut bool,
) -> rdma_code_t {
    guard("rdma_store_delete", || {
        // SAFETY: the caller's arguments, as the header demands.
        unsafe {
            let key = self::key(key, key_len)?;
            let count = borrow(store)?.delete(&[key], patience(timeout_ms)?)?;
            if !out_was_there.is_null() {
                out_was_there.write(count > 0);
            }
        }
        Ok(())
    })
}
