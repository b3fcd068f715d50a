//! Callbacks of C, as the engine calls them.

use crate::api::Carrier;
use crate::fabric::ProviderKind;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::smallvec;

use super::super::callback::{self, Device};
use super::super::*;
use crate::api::{DeviceOps, Meta, Protocol, Tensor, TransferInfo};
use crate::status::{Code, Reason, Status};
use crate::user::UserBytes;

type Seen = Vec<String>;

fn info() -> TransferInfo {
    TransferInfo {
        bytes: 12,
        elapsed_ns: 34,
        provider: Carrier::Provider(ProviderKind::Ibverbs),
        peer: "wörker".into(),
        protocol: Protocol::DirectGet,
        reason: Reason::PeerGone,
    }
}

/// What a callback got, in words.
///
/// # Safety
/// The arguments of a callback.
unsafe fn describe(
    code: rdma_code_t,
    message: *const c_char,
    len: usize,
    info: *const rdma_transfer_info_t,
) -> String {
    // SAFETY: by this function's contract.
    unsafe {
        let message = CStr::from_ptr(message).to_str().unwrap();
        assert_eq!(message.len(), len, "the NUL stands at the end");
        let i = &*info;
        assert_eq!(i.struct_size, size_of::<rdma_transfer_info_t>());
        let provider = CStr::from_ptr(i.provider).to_str().unwrap();
        let peer = CStr::from_ptr(i.peer).to_str().unwrap();
        let numbers = [i.bytes, i.elapsed_ns, i.protocol.into(), i.reason.into()];
        format!("{code} {message:?} {provider} {peer} {numbers:?}")
    }
}

unsafe extern "C" fn on_send(
    code: rdma_code_t,
    message: *const c_char,
    len: usize,
    info: *const rdma_transfer_info_t,
    userdata: *mut c_void,
) {
    // SAFETY: the arguments that the header promises; userdata is the test's list.
    unsafe { (*userdata.cast::<Seen>()).push(describe(code, message, len, info)) };
}

unsafe extern "C" fn on_recv(
    code: rdma_code_t,
    message: *const c_char,
    len: usize,
    tensor: *const rdma_tensor_t,
    info: *const rdma_transfer_info_t,
    userdata: *mut c_void,
) {
    // SAFETY: the arguments that the header promises; userdata is the test's list.
    unsafe {
        let mut text = describe(code, message, len, info);
        if let Some(t) = tensor.as_ref() {
            assert_eq!(t.struct_size, size_of::<rdma_tensor_t>());
            let dims: Vec<i64> = (0..t.ndims as usize).map(|i| *t.dims.add(i)).collect();
            let (data, device) = (t.data as usize, t.device);
            text += &format!(" {data} {} {dims:?} {} {} {device}", t.nbytes, t.dtype, t.flags);
            text +=
                std::str::from_utf8(std::slice::from_raw_parts(t.user.cast(), t.user_len)).unwrap();
        }
        (*userdata.cast::<Seen>()).push(text);
    }
}

fn some_tensor() -> Tensor {
    let user = UserBytes::copy(b"beside").unwrap();
    let (dtype, flags) = (3, RDMA_TENSOR_SERIALIZED);
    let meta = Meta { dtype, flags, dims: smallvec![4, 0], nbytes: 77, user };
    Tensor { meta, addr: 4096, device: 2 }
}

#[test]
fn the_ends_of_operations() {
    let mut seen = Seen::new();
    let userdata = (&raw mut seen).cast();
    callback::send_done(Some(on_send), userdata).unwrap().end(Ok(()), &info());
    let failed = || Status::new(Code::Unavailable, "w1 is gone");
    callback::send_done(Some(on_send), userdata).unwrap().end(Err(&failed()), &info());
    callback::recv_done(Some(on_recv), userdata).end(Ok(&some_tensor()), &info());
    callback::recv_done(Some(on_recv), userdata).end(Err(&failed()), &info());
    assert!(callback::send_done(None, userdata).is_none());
    callback::recv_done(None, userdata).end(Err(&failed()), &info());
    assert_eq!(
        seen,
        [
            "0 \"\" ibverbs wörker [12, 34, 4, 3]",
            "14 \"w1 is gone\" ibverbs wörker [12, 34, 4, 3]",
            "0 \"\" ibverbs wörker [12, 34, 4, 3] 4096 77 [4, 0] 3 2 2beside",
            "14 \"w1 is gone\" ibverbs wörker [12, 34, 4, 3]",
        ]
    );
}

unsafe extern "C" fn allocate(meta: *const rdma_tensor_t, userdata: *mut c_void) -> *mut c_void {
    // SAFETY: the arguments that the header promises.
    let meta = unsafe { &*meta };
    assert!(meta.data.is_null());
    if meta.nbytes > 100 { std::ptr::null_mut() } else { userdata }
}

#[test]
fn memory_for_a_result() {
    let mut alloc = callback::alloc(allocate, 512 as *mut c_void, 0);
    let mut meta = some_tensor().meta;
    assert_eq!(alloc(&meta), Some(512));
    meta.nbytes = 101;
    assert_eq!(alloc(&meta), None);
}

unsafe extern "C" fn on_request(
    mgr: *mut rdma_mgr_t,
    response: rdma_response_t,
    peer: *const c_char,
    peer_len: usize,
    key: *const c_char,
    key_len: usize,
    step: i64,
    userdata: *mut c_void,
) {
    // SAFETY: the arguments that the header promises; userdata is the test's list.
    unsafe {
        let peer = CStr::from_ptr(peer).to_bytes();
        assert_eq!(peer.len(), peer_len);
        let key = std::slice::from_raw_parts(key.cast::<u8>(), key_len);
        let (mgr, peer, key) = (mgr as usize, peer.escape_ascii(), key.escape_ascii());
        let text = format!("{mgr} {response} {peer} {key} {step}");
        (*userdata.cast::<Seen>()).push(text);
    }
}

#[test]
fn requests_to_the_source() {
    let mut seen = Seen::new();
    let source =
        callback::source(64 as *mut rdma_mgr_t, Some(on_request), (&raw mut seen).cast()).unwrap();
    source(7, "w1", b"a\0b", -2);
    assert_eq!(seen, ["64 7 w1 a\\x00b -2"]);
    assert!(callback::source(64 as *mut rdma_mgr_t, None, std::ptr::null_mut()).is_none());
}

unsafe extern "C" fn copy_and_report_twice(
    _to: *mut c_void,
    _from: *const c_void,
    nbytes: u64,
    done: rdma_copy_done_fn,
    token: *mut c_void,
    userdata: *mut c_void,
) {
    assert_eq!(userdata as usize, 9);
    let code = if nbytes == 1 { RDMA_OK } else { nbytes as rdma_code_t };
    // SAFETY: the library's function, with its token; the second call and the wrong token are
    // what is tested.
    unsafe {
        let done = done.unwrap();
        done(code, token);
        done(code, token);
        done(code, std::ptr::null_mut());
    }
}

#[test]
fn a_copy_ends_once_whatever_the_device_calls() {
    let ops = rdma_device_ops_t {
        struct_size: size_of::<rdma_device_ops_t>(),
        copy_to_host: Some(copy_and_report_twice),
        copy_from_host: None,
        export_dmabuf: None,
    };
    let error = Device::new(&ops, std::ptr::null_mut()).err().unwrap();
    assert_eq!(error.message, "ops.copy_from_host is NULL");
    let ops = rdma_device_ops_t { copy_from_host: Some(copy_and_report_twice), ..ops };
    let device = Device::new(&ops, 9 as *mut c_void).unwrap();
    let ends: Arc<Mutex<Vec<Option<Code>>>> = Arc::default();
    for (nbytes, expected) in [(1, None), (14, Some(Code::Unavailable)), (99, Some(Code::Unknown))]
    {
        let sink = ends.clone();
        device.copy_to_host(
            8,
            8,
            nbytes,
            Box::new(move |r| sink.lock().push(r.err().map(|s| s.code))),
        );
        let sink = ends.clone();
        device.copy_from_host(
            8,
            8,
            nbytes,
            Box::new(move |r| {
                sink.lock().push(r.err().map(|s| s.code));
                panic!("planted, to be caught");
            }),
        );
        assert_eq!(std::mem::take(&mut *ends.lock()), [expected; 2]);
    }
}

/// Gives a descriptor, none, an error or an unknown code, by the number of bytes.
unsafe extern "C" fn export(
    device: *const c_void,
    nbytes: u64,
    fd: *mut c_int,
    offset: *mut u64,
    userdata: *mut c_void,
) -> rdma_code_t {
    assert_eq!(userdata as usize, 9);
    if nbytes == 1 {
        use std::os::fd::IntoRawFd;
        let file = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: the library's variables.
        unsafe { (fd.write(file.into_raw_fd()), offset.write(device as u64 + 7)) };
    }
    [0, 0, 0, 12, 99][nbytes as usize]
}

#[test]
fn a_dmabuf_is_taken_over_and_failures_are_told() {
    let mut ops = rdma_device_ops_t {
        struct_size: size_of::<rdma_device_ops_t>(),
        copy_to_host: Some(copy_and_report_twice),
        copy_from_host: Some(copy_and_report_twice),
        export_dmabuf: None,
    };
    let without = Device::new(&ops, 9 as *mut c_void).unwrap();
    assert!(without.export_dmabuf(8, 1).is_none());
    ops.export_dmabuf = Some(export);
    let device = Device::new(&ops, 9 as *mut c_void).unwrap();
    assert_eq!(device.export_dmabuf(8, 1).unwrap().unwrap().1, 15);
    let code = |n| device.export_dmabuf(8, n).unwrap().unwrap_err().code;
    assert_eq!(
        [code(2), code(3), code(4)],
        [Code::InvalidArgument, Code::Unimplemented, Code::Unknown]
    );
}
