//! The application's own store, as its functions in C.

use std::ffi::c_void;
use std::time::Duration;

use super::callback::UserData;
use super::called::call;
use super::types::*;
use crate::status::{Code, Status};
use crate::store::Compared;
use crate::store::foreign::Runtime;

/// See [`Runtime`].
pub(super) struct Ops {
    ops: rdma_store_ops,
    userdata: UserData,
}

/// A value on its way out of the application.
#[derive(Default)]
struct Given {
    value: Option<Result<Vec<u8>, Status>>,
    most: usize,
}

unsafe extern "C" fn give(value: *const c_void, len: usize, token: *mut c_void) {
    // SAFETY: the token is the place that the call which gave it out keeps until it returns.
    let Some(given) = (unsafe { token.cast::<Given>().as_mut() }) else { return };
    let most = given.most;
    given.value = Some(if len > most {
        let text = text!("a value of {len} bytes, allowed are at most {most}");
        Err(Status::new(Code::DataLoss, text))
    } else if len == 0 {
        Ok(Vec::new())
    } else if value.is_null() {
        Err(Status::new(Code::DataLoss, text!("a value of {len} bytes at NULL")))
    } else {
        // SAFETY: the application's `len` bytes, for the call.
        let bytes = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), len) };
        crate::room::copy(bytes, "a value")
    });
}

fn bytes(of: &[u8]) -> rdma_bytes {
    rdma_bytes { data: of.as_ptr().cast(), len: of.len() }
}

fn ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX).max(1)
}

fn ended(code: rdma_code_t, function: &str) -> Result<(), Status> {
    match Code::from_i32(code) {
        Some(Code::Ok) => Ok(()),
        Some(code) => Err(Status::new(code, text!("its function {function} failed"))),
        None => {
            let text = text!("its function {function} failed with the unknown code {code}");
            Err(Status::new(Code::Unknown, text))
        }
    }
}

impl Ops {
    /// Checks that what is required is there.
    pub(super) fn new(ops: rdma_store_ops, userdata: *mut c_void) -> Result<Ops, Status> {
        let missing = |what| Err(Status::invalid(text!("ops.{what} is NULL")));
        match (ops.set, ops.get) {
            (None, _) => missing("set"),
            (_, None) => missing("get"),
            _ => Ok(Ops { ops, userdata: UserData(userdata) }),
        }
    }
}

impl Runtime for Ops {
    fn set(&self, key: &[u8], value: &[u8], time: Duration) -> Result<(), Status> {
        let Some(set) = self.ops.set else { return Err(Status::internal("ops.set is gone")) };
        let (k, v) = (bytes(key), bytes(value));
        // SAFETY: the application's function, with the arguments that the header promises.
        let code =
            unsafe { call(set, (k.data.cast(), k.len, v.data, v.len, ms(time), self.userdata.0)) };
        ended(code, "set")
    }

    fn get(&self, key: &[u8], most: usize, time: Duration) -> Result<Option<Vec<u8>>, Status> {
        let Some(get) = self.ops.get else { return Err(Status::internal("ops.get is gone")) };
        let mut given = Given { value: None, most };
        let (k, token) = (bytes(key), (&raw mut given).cast());
        // SAFETY: as above; the token lives through the call.
        let code = unsafe {
            let give: rdma_store_give_fn = Some(give);
            call(get, (k.data.cast(), k.len, ms(time), give, token, self.userdata.0))
        };
        if code == RDMA_NOT_FOUND || code == RDMA_DEADLINE_EXCEEDED {
            return Ok(None);
        }
        ended(code, "get")?;
        let nothing = || Status::new(Code::DataLoss, "its function get gave no value");
        given.value.ok_or_else(nothing)?.map(Some)
    }

    fn check(&self, key: &[u8], time: Duration) -> Option<Result<bool, Status>> {
        let (check, k, mut there) = (self.ops.check?, bytes(key), false);
        // SAFETY: as above; the output lives through the call.
        let code = unsafe {
            call(check, (k.data.cast(), k.len, ms(time), &raw mut there, self.userdata.0))
        };
        Some(ended(code, "check").map(|()| there))
    }

    fn wait(&self, keys: &[&[u8]], time: Duration) -> Option<Result<bool, Status>> {
        let wait = self.ops.wait?;
        let keys = match crate::room::collect(keys.iter().map(|key| bytes(key)), "keys") {
            Ok(keys) => keys,
            Err(status) => return Some(Err(status)),
        };
        // SAFETY: as above; the keys live through the call.
        let code = unsafe { call(wait, (keys.as_ptr(), keys.len(), ms(time), self.userdata.0)) };
        Some(match code {
            RDMA_DEADLINE_EXCEEDED => Ok(false),
            code => ended(code, "wait").map(|()| true),
        })
    }

    fn add(&self, key: &[u8], delta: i64, time: Duration) -> Option<Result<i64, Status>> {
        let (add, k, mut sum) = (self.ops.add?, bytes(key), 0);
        // SAFETY: as above; the output lives through the call.
        let code = unsafe {
            call(add, (k.data.cast(), k.len, delta, ms(time), &raw mut sum, self.userdata.0))
        };
        Some(ended(code, "add").map(|()| sum))
    }

    fn compare_set(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        desired: &[u8],
        time: Duration,
    ) -> Option<Result<Compared, Status>> {
        let compare_set = self.ops.compare_set?;
        let (k, expected, desired) = (bytes(key), expected.map(bytes), bytes(desired));
        let expected = expected.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let mut given = Given { value: None, most: crate::limits::STORE_VALUE };
        let (mut result, token) = (-1, (&raw mut given).cast());
        // SAFETY: as above; what is pointed to lives through the call.
        let code = unsafe {
            let (key, len) = (k.data.cast(), k.len);
            let (ms, out, userdata) = (ms(time), &raw mut result, self.userdata.0);
            let (desired, give) = (&raw const desired, Some(give as _));
            call(compare_set, (key, len, expected, desired, ms, out, give, token, userdata))
        };
        Some(ended(code, "compare_set").and_then(|()| match (result, given.value) {
            (RDMA_STORE_SET, _) => Ok(Compared::Set),
            (RDMA_STORE_ABSENT, _) => Ok(Compared::Absent),
            (RDMA_STORE_DIFFERS, Some(value)) => Ok(Compared::Differs(value?)),
            (other, _) => {
                let text = text!("its function compare_set told the result {other}, or no value");
                Err(Status::new(Code::DataLoss, text))
            }
        }))
    }

    fn delete(&self, key: &[u8], time: Duration) -> Option<Result<bool, Status>> {
        let (remove, k, mut there) = (self.ops.remove?, bytes(key), false);
        // SAFETY: as above; the output lives through the call.
        let code = unsafe {
            call(remove, (k.data.cast(), k.len, ms(time), &raw mut there, self.userdata.0))
        };
        Some(ended(code, "remove").map(|()| there))
    }
}
