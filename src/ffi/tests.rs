//! Tests of the ABI layer, from the side of C.

mod arguments;
mod callbacks;
mod layout;
mod outputs;
mod times;

use std::ffi::CStr;

use super::*;

/// A manager that ends with its test.
struct Mgr(*mut rdma_mgr_t);

impl Mgr {
    fn new() -> Mgr {
        let mut options = options();
        options.progress = RDMA_PROGRESS_MANUAL;
        let mut mgr = std::ptr::null_mut();
        // SAFETY: options and output as the header demands.
        let code = unsafe { rdma_mgr_create(&options, &mut mgr) };
        assert_eq!(code, RDMA_OK, "{}", last_error());
        Mgr(mgr)
    }
}

impl Drop for Mgr {
    fn drop(&mut self) {
        // SAFETY: a handle, also where the test has destroyed it already.
        unsafe { rdma_mgr_destroy(self.0) };
    }
}

fn options() -> rdma_mgr_options_t {
    let mut options = std::mem::MaybeUninit::uninit();
    // SAFETY: init fills the whole struct.
    unsafe {
        let code = rdma_mgr_options_init(options.as_mut_ptr(), size_of::<rdma_mgr_options_t>());
        assert_eq!(code, RDMA_OK);
        options.assume_init()
    }
}

fn tensor() -> rdma_tensor_t {
    let mut tensor = std::mem::MaybeUninit::uninit();
    // SAFETY: init fills the whole struct.
    unsafe {
        assert_eq!(rdma_tensor_init(tensor.as_mut_ptr(), size_of::<rdma_tensor_t>()), RDMA_OK);
        tensor.assume_init()
    }
}

fn last_error() -> String {
    let mut buf = [0; 4096];
    // SAFETY: a buffer of that size, which then holds a C string.
    unsafe {
        rdma_last_error(buf.as_mut_ptr(), buf.len());
        CStr::from_ptr(buf.as_ptr()).to_str().unwrap().to_owned()
    }
}

/// Asserts that a call was refused, by this code and with a text that has all of `parts`.
#[track_caller]
fn refused(code: rdma_code_t, expected: rdma_code_t, parts: &[&str]) {
    let text = last_error();
    assert_eq!(code, expected, "{text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

/// Asserts that a call was refused for an argument.
#[track_caller]
fn invalid(code: rdma_code_t, parts: &[&str]) {
    refused(code, RDMA_INVALID_ARGUMENT, parts);
}
