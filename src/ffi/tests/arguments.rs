//! Arguments that are not allowed: a status and a text, nothing else.

use std::ffi::{c_char, c_void};
use std::ptr::{null, null_mut};

use super::super::*;
use super::{Mgr, invalid, last_error, options, tensor};

const PEER: *const c_char = c"w1".as_ptr();
const KEY: *const c_char = c"key".as_ptr();

unsafe extern "C" fn never(
    _: rdma_code_t,
    _: *const c_char,
    _: usize,
    _: *const rdma_transfer_info_t,
    _: *mut c_void,
) {
    panic!("called for a send that was not accepted");
}

/// Every function that takes a manager, with valid arguments otherwise.
fn each_with(mgr: *mut rdma_mgr_t) -> Vec<(&'static str, rdma_code_t)> {
    let tensor = tensor();
    let mut out = tensor;
    let (mut len, mut number, mut fd, mut ptr, mut id) = (0usize, 0u32, 0, null_mut(), 0u64);
    let mut info = rdma_peer_info_t { struct_size: size_of::<rdma_peer_info_t>(), ..zeroed() };
    let mut buf = [0 as c_char; 64];
    let buf = buf.as_mut_ptr();
    let ops = rdma_device_ops_t {
        struct_size: size_of::<rdma_device_ops_t>(),
        copy_to_host: None,
        copy_from_host: None,
        export_dmabuf: None,
    };
    let memory = (&raw mut len).cast::<c_void>();
    let mut calls = Vec::new();
    macro_rules! call {
        ($($name:ident($($arg:expr),*);)*) => {
            // SAFETY: arguments as the header demands, but for the manager, which is tested.
            $(calls.push((stringify!($name), unsafe { $name(mgr, $($arg),*) }));)*
        };
    }
    call! {
        rdma_mgr_destroy();
        rdma_mgr_listen(c"127.0.0.1:0".as_ptr(), buf, 64, &mut len);
        rdma_mgr_add_peer(PEER, c"127.0.0.1:1".as_ptr());
        rdma_mgr_connect(PEER, 0);
        rdma_mgr_disconnect(PEER);
        rdma_mgr_peer_info(PEER, &mut info);
        rdma_mgr_export_address(buf.cast(), 64, &mut len);
        rdma_mgr_import_address(c"blob".as_ptr().cast(), 4, buf, 64, &mut len);
        rdma_mgr_progress(&mut number);
        rdma_mgr_wait(0);
        rdma_mgr_event_fd(&mut fd);
        rdma_mem_register(memory, 8, 0);
        rdma_mem_unregister(memory);
        rdma_mem_alloc(8, &mut ptr);
        rdma_mem_free(memory);
        rdma_mgr_register_device(&ops, null_mut(), &mut number);
        rdma_send(KEY, 3, 0, &tensor, null(), None, null_mut());
        rdma_recv_async(PEER, KEY, 3, 0, null(), None, null_mut(), &mut id);
        rdma_recv(PEER, KEY, 3, 0, null(), &mut out, &mut id);
        rdma_request_cancel(1);
        rdma_request_release(1);
        rdma_step_abort(0, RDMA_ABORTED, null(), 0);
        rdma_step_cleanup(0);
        rdma_mgr_set_source(None, null_mut());
        rdma_response_send(1, &tensor, None, null_mut());
        rdma_response_fail(1, RDMA_ABORTED, null(), 0);
        rdma_mgr_stats_json(buf, 64, &mut len);
        rdma_mgr_metrics(buf, 64, &mut len);
        rdma_trace_start(c"/nonexistent/trace".as_ptr());
        rdma_trace_stop();
    }
    calls
}

fn zeroed() -> rdma_peer_info_t {
    // SAFETY: integers and arrays of integers.
    unsafe { std::mem::zeroed() }
}

#[test]
fn no_function_takes_null_or_a_foreign_pointer_for_a_manager() {
    for (name, code) in each_with(null_mut()) {
        assert_eq!(code, RDMA_INVALID_ARGUMENT, "{name}");
    }
    invalid(RDMA_INVALID_ARGUMENT, &["rdma_trace_stop: mgr is NULL"]);
    let foreign = [0u64; 64];
    for (name, code) in each_with(foreign.as_ptr().cast_mut().cast()) {
        assert_eq!(code, RDMA_INVALID_ARGUMENT, "{name}");
    }
    invalid(RDMA_INVALID_ARGUMENT, &["rdma_mgr_create"]);
}

#[test]
fn a_destroyed_manager_is_refused_by_all() {
    let mgr = Mgr::new();
    // SAFETY: a handle.
    assert_eq!(unsafe { rdma_mgr_destroy(mgr.0) }, RDMA_OK);
    for (name, code) in each_with(mgr.0) {
        assert_eq!(code, RDMA_FAILED_PRECONDITION, "{name}");
    }
}

#[test]
fn null_names_its_argument() {
    let mgr = Mgr::new();
    let m = mgr.0;
    let tensor = tensor();
    let (mut len, mut id) = (0, 0);
    let address = c"127.0.0.1:1".as_ptr();
    // SAFETY: arguments as the header demands, but for the NULLs, which are tested.
    unsafe {
        invalid(rdma_mgr_create(null(), null_mut()), &["rdma_mgr_create: out is NULL"]);
        invalid(rdma_mgr_options_init(null_mut(), 144), &["options is NULL"]);
        invalid(rdma_recv_options_init(null_mut(), 56), &["options is NULL"]);
        invalid(rdma_send_options_init(null_mut(), 16), &["options is NULL"]);
        invalid(rdma_tensor_init(null_mut(), 48), &["tensor is NULL"]);
        invalid(rdma_providers(null_mut(), 1, &mut len), &["buf is NULL, but cap is 1"]);
        invalid(rdma_mgr_listen(m, null(), null_mut(), 0, &mut len), &["address is NULL"]);
        invalid(rdma_mgr_listen(m, address, null_mut(), 1, &mut len), &["bound is NULL"]);
        invalid(rdma_mgr_meet(m, null(), 1, null_mut(), 0, null_mut()), &["address is NULL"]);
        invalid(rdma_mgr_set_name(m, null()), &["name is NULL"]);
        let odd = c"a\nb".as_ptr();
        let code = rdma_recv_async(m, odd, KEY, 1, 1, null(), None, null_mut(), null_mut());
        invalid(code, &["control character '\\n'"]);
        invalid(rdma_peer_lookup(m, odd, &mut id), &["control character '\\n'"]);
        invalid(rdma_mgr_add_peer(m, PEER, c"a\nb:5".as_ptr()), &["'a\\x0ab:5'"]);
        invalid(rdma_peer_name(m, 0, null_mut(), 0, &mut len), &["peer is 0 (RDMA_PEER_ANY)"]);
        invalid(rdma_mgr_add_peer(m, PEER, null()), &["address is NULL"]);
        invalid(rdma_mgr_connect(m, null(), 1), &["peer is NULL"]);
        invalid(rdma_mgr_disconnect(m, null()), &["peer is NULL"]);
        invalid(rdma_mgr_peer_info(m, null(), &mut zeroed()), &["peer is NULL"]);
        invalid(rdma_mgr_peer_info(m, PEER, null_mut()), &["out is NULL"]);
        invalid(rdma_mgr_export_address(m, null_mut(), 0, null_mut()), &["out_len is NULL"]);
        invalid(rdma_mgr_export_address(m, null_mut(), 9, &mut len), &["blob is NULL"]);
        invalid(rdma_mgr_import_address(m, null(), 4, null_mut(), 0, null_mut()), &["blob is"]);
        invalid(rdma_mgr_import_address(m, [1].as_ptr(), 0, null_mut(), 0, null_mut()), &["is 0"]);
        invalid(rdma_mgr_event_fd(m, null_mut()), &["fd is NULL"]);
        invalid(rdma_mem_register(m, null_mut(), 4, 0), &["addr is NULL"]);
        invalid(rdma_mem_unregister(m, null_mut()), &["addr is NULL"]);
        invalid(rdma_mem_alloc(m, 4, null_mut()), &["out is NULL"]);
        invalid(rdma_mem_free(m, null_mut()), &["addr is NULL"]);
        let mut device = 0;
        invalid(rdma_mgr_register_device(m, null(), null_mut(), &mut device), &["ops is NULL"]);
        let mut ops = rdma_device_ops_t { struct_size: 24, ..std::mem::zeroed() };
        invalid(rdma_mgr_register_device(m, &ops, null_mut(), null_mut()), &["device is NULL"]);
        invalid(rdma_mgr_register_device(m, &ops, null_mut(), &mut device), &["ops.copy_to_host"]);
        ops.struct_size = 23;
        invalid(rdma_mgr_register_device(m, &ops, null_mut(), &mut device), &["is 23"]);
        invalid(rdma_send(m, null(), 3, 0, &tensor, null(), None, null_mut()), &["key is NULL"]);
        invalid(rdma_send(m, KEY, 3, 0, null(), null(), None, null_mut()), &["tensor is NULL"]);
        let code = rdma_recv_async(m, PEER, null(), 3, 0, null(), None, null_mut(), &mut id);
        invalid(code, &["key is NULL"]);
        invalid(rdma_recv(m, PEER, KEY, 3, 0, null(), null_mut(), &mut id), &["out is NULL"]);
        let mut out = tensor;
        let code = rdma_recv(m, PEER, KEY, 3, 0, null(), &mut out, null_mut());
        invalid(code, &["out_request is NULL"]);
        invalid(rdma_step_abort(m, 0, RDMA_ABORTED, null(), 2), &["message is NULL"]);
        invalid(rdma_response_send(m, 1, null(), None, null_mut()), &["tensor is NULL"]);
        invalid(rdma_response_fail(m, 1, RDMA_ABORTED, null(), 2), &["message is NULL"]);
        invalid(rdma_mgr_stats_json(m, null_mut(), 2, &mut len), &["buf is NULL"]);
        invalid(rdma_mgr_metrics(m, null_mut(), 0, null_mut()), &["buf and out_len are NULL"]);
        invalid(rdma_trace_start(m, null()), &["path is NULL"]);
    }
}

#[test]
fn numbers_out_of_range_are_named() {
    let mgr = Mgr::new();
    let m = mgr.0;
    let (mut id, mut ptr) = (0, null_mut());
    let mut byte = 0u8;
    let memory = (&raw mut byte).cast::<c_void>();
    // SAFETY: arguments as the header demands, but for the numbers, which are tested.
    unsafe {
        for level in [0, 5, -1] {
            let code = rdma_set_log_callback(None, level, null_mut());
            invalid(code, &[&format!("level is {level}, allowed are 1")]);
        }
        invalid(rdma_mgr_connect(m, PEER, -1), &["timeout_ms is -1, allowed are 0 and above"]);
        invalid(rdma_mgr_wait(m, i64::MIN), &["timeout_ms is -9223372036854775808"]);
        invalid(rdma_mem_alloc(m, 0, &mut ptr), &["len is 0"]);
        invalid(rdma_mem_alloc(m, usize::MAX, &mut ptr), &["len is 18446744073709551615"]);
        invalid(rdma_mem_register(m, memory, 0, 0), &["len is 0"]);
        invalid(rdma_mem_register(m, memory, usize::MAX, 0), &["len is 18446744073709551615"]);
        invalid(rdma_request_cancel(m, 0), &["request is 0"]);
        invalid(rdma_request_release(m, 0), &["request is 0"]);
        for code in [0, -1, 17] {
            let text = format!("code is {code}, allowed are 1");
            invalid(rdma_step_abort(m, 0, code, null(), 0), &[&text]);
            invalid(rdma_response_fail(m, 1, code, null(), 0), &[&text]);
        }
        let long = vec![b'x'; 65536];
        let code = rdma_step_abort(m, 0, RDMA_ABORTED, long.as_ptr().cast(), long.len());
        invalid(code, &["message_len is 65536, allowed are 0 to 65535"]);
        invalid(rdma_response_fail(m, 0, RDMA_ABORTED, null(), 0), &["response is 0"]);
        invalid(rdma_response_send(m, 0, &tensor(), None, null_mut()), &["response is 0"]);

        for len in [0, 65537] {
            let text = format!("key_len is {len}, allowed are 1 to 65536");
            let code = rdma_send(m, KEY, len, 0, &tensor(), null(), Some(never), null_mut());
            invalid(code, &[&text]);
            let code = rdma_recv_async(m, PEER, KEY, len, 0, null(), None, null_mut(), &mut id);
            invalid(code, &[&text]);
        }
        let options = rdma_send_options_t { struct_size: 16, timeout_ms: -5 };
        let code = rdma_send(m, KEY, 3, 0, &tensor(), &options, Some(never), null_mut());
        invalid(code, &["options.timeout_ms is -5"]);
    }
    assert_eq!(id, 0, "outputs are written on success only");
}

#[test]
fn names_are_checked() {
    let mgr = Mgr::new();
    let long = std::ffi::CString::new(vec![b'n'; 256]).unwrap();
    let longest = std::ffi::CString::new(vec![b'n'; 255]).unwrap();
    let cases = [
        (long.as_ptr(), "peer has more than 255 bytes, allowed are 1 to 255"),
        (c"".as_ptr(), "peer has 0 bytes, allowed are 1 to 255"),
        (c"\xff\xfe".as_ptr(), "peer \"\\xff\\xfe\" is not UTF-8"),
    ];
    for name in [c"a\nb", c"\x7f", c"\xc2\x85"] {
        // SAFETY: as above.
        let given = unsafe { rdma_mgr_add_peer(mgr.0, name.as_ptr(), c"127.0.0.1:1".as_ptr()) };
        invalid(given, &["peer", "control character"]);
        // SAFETY: as above.
        invalid(unsafe { rdma_mgr_set_name(mgr.0, name.as_ptr()) }, &["control character"]);
        let mut options = options();
        options.name = name.as_ptr();
        let mut out = null_mut();
        // SAFETY: as above.
        invalid(unsafe { rdma_mgr_create(&options, &mut out) }, &["control character"]);
    }
    let mut info = rdma_peer_info_t { struct_size: size_of::<rdma_peer_info_t>(), ..zeroed() };
    let mut id = 0;
    for (name, text) in cases {
        // SAFETY: arguments as the header demands, but for the names, which are tested.
        unsafe {
            let m = mgr.0;
            invalid(rdma_mgr_add_peer(m, name, c"127.0.0.1:1".as_ptr()), &[text]);
            invalid(rdma_mgr_connect(m, name, 0), &[text]);
            invalid(rdma_mgr_disconnect(m, name), &[text]);
            invalid(rdma_mgr_peer_info(m, name, &mut info), &[text]);
            let code = rdma_recv_async(m, name, KEY, 3, 0, null(), None, null_mut(), &mut id);
            invalid(code, &[text]);
            invalid(rdma_recv(m, name, KEY, 3, 0, null(), &mut tensor(), &mut id), &[text]);
        }
    }
    // SAFETY: arguments as the header demands.
    let code = unsafe { rdma_mgr_disconnect(mgr.0, longest.as_ptr()) };
    assert_ne!(code, RDMA_INVALID_ARGUMENT, "{}", last_error());
}

#[test]
fn tensors_are_checked() {
    let mgr = Mgr::new();
    let refuse = |change: &dyn Fn(&mut rdma_tensor_t), text: &str| {
        let mut t = tensor();
        change(&mut t);
        // SAFETY: arguments as the header demands, but for the tensor, which is tested.
        unsafe {
            invalid(rdma_send(mgr.0, KEY, 3, 0, &t, null(), Some(never), null_mut()), &[text]);
            invalid(rdma_response_send(mgr.0, 1, &t, Some(never), null_mut()), &[text]);
        }
    };
    let dims = [3i64, -2];
    let memory = [0u8; 8];
    refuse(&|t| t.struct_size = 0, "struct_size of rdma_tensor_t (tensor) is 0, allowed are 48");
    refuse(&|t| t.struct_size = 47, "(tensor) is 47");
    refuse(&|t| t.nbytes = 8, "tensor.data is NULL, but tensor.nbytes is 8");
    refuse(&|t| t.ndims = 1, "tensor.dims is NULL");
    refuse(&|t| t.user_len = 1, "tensor.user is NULL");
    refuse(&|t| t.user_len = 513, "tensor.user_len is 513, allowed are 0 to 512");
    refuse(&|t| t.ndims = 255, "tensor.ndims is 255, allowed are 0 to 254");
    refuse(&|t| (t.dims, t.ndims) = (dims.as_ptr(), 2), "tensor.dims[1] is -2");
    refuse(&|t| t.flags = 4, "tensor.flags is 0x4");
    refuse(&|t| (t.data, t.nbytes) = (memory.as_ptr().cast(), u64::MAX), "tensor.nbytes is 1844");
    let dead = |t: &mut rdma_tensor_t| {
        (t.data, t.nbytes, t.flags) = (memory.as_ptr().cast(), 8, RDMA_TENSOR_DEAD);
    };
    refuse(&dead, "allowed is 0 with RDMA_TENSOR_DEAD");
}

#[test]
fn options_of_a_receive_are_checked() {
    let mgr = Mgr::new();
    let refuse = |change: &dyn Fn(&mut rdma_recv_options_t), text: &str| {
        let mut options = std::mem::MaybeUninit::uninit();
        let mut id = 0;
        // SAFETY: arguments as the header demands, but for the options, which are tested.
        unsafe {
            assert_eq!(rdma_recv_options_init(options.as_mut_ptr(), 56), RDMA_OK);
            let mut options = options.assume_init();
            change(&mut options);
            let m = mgr.0;
            let code = rdma_recv_async(m, PEER, KEY, 3, 0, &options, None, null_mut(), &mut id);
            invalid(code, &[text]);
            invalid(rdma_recv(m, PEER, KEY, 3, 0, &options, &mut tensor(), &mut id), &[text]);
        }
    };
    refuse(&|o| o.struct_size = 55, "struct_size of rdma_recv_options_t (options) is 55");
    refuse(&|o| o.timeout_ms = -1, "options.timeout_ms is -1");
    refuse(&|o| o.dst_len = 9, "options.dst is NULL, but options.dst_len is 9");
    refuse(&|o| (o.dst, o.dst_len) = (8 as *mut c_void, u64::MAX), "options.dst_len is 1844");
    refuse(&|o| o.device = 3, "options.device is 3");
}

#[test]
fn options_of_a_manager_are_checked() {
    let refuse = |change: &dyn Fn(&mut rdma_mgr_options_t), text: &str| {
        let mut options = options();
        change(&mut options);
        let mut mgr = null_mut();
        // SAFETY: options as the header describes them, but for what is tested.
        let code = unsafe { rdma_mgr_create(&options, &mut mgr) };
        invalid(code, &[text]);
        assert!(mgr.is_null(), "outputs are written on success only");
    };
    let long = std::ffi::CString::new(vec![b'n'; 256]).unwrap();
    refuse(&|o| o.struct_size = 0, "struct_size of rdma_mgr_options_t (options) is 0");
    refuse(&|o| o.struct_size = 143, "is 143, allowed are 144");
    refuse(&|o| o.name = long.as_ptr(), "options.name has more than 255 bytes");
    refuse(&|o| o.name = c"".as_ptr(), "options.name has 0 bytes");
    refuse(&|o| o.name = c"\xff".as_ptr(), "options.name \"\\xff\" is not UTF-8");
    refuse(&|o| o.provider = c"rdma".as_ptr(), "options.provider is \"rdma\", allowed are NULL");
    refuse(
        &|o| o.listen = c"here:x".as_ptr(),
        "listen: address 'here:x': port is not a number; allowed are",
    );
    refuse(&|o| o.secret_len = 3, "options.secret is NULL");
    refuse(&|o| o.secret = c"".as_ptr(), "options.secret_len is 0, allowed are 1 to 4096");
    refuse(&|o| o.progress = 2, "options.progress is 2, allowed are 0");
    refuse(&|o| o.protocol = 1, "options.protocol is 1, allowed are 0 (RDMA_PROTOCOL_AUTO), 2");
    refuse(&|o| o.protocol = -1, "options.protocol is -1");
    refuse(&|o| o.timeout_ms = 0, "options.timeout_ms is 0, allowed are 1 to");
    refuse(&|o| o.timeout_ms = -1, "options.timeout_ms is -1");
    refuse(&|o| o.busy_poll_us = -1, "options.busy_poll_us is -1, allowed are 0 to");
    refuse(&|o| o.peer_timeout_ms = -1, "options.peer_timeout_ms is -1, allowed are 0 to");
    refuse(&|o| o.eager_max = u64::MAX, "options.eager_max is 18446744073709551615");
    refuse(&|o| o.meta_cache_entries = u32::MAX, "meta_cache_entries is 4294967295");
    refuse(&|o| o.queue_depth = 0, "queue_depth is 0");
    refuse(
        &|o| o.max_rdma_per_request = 9,
        "options.max_rdma_per_request is 9, allowed are 0 to 8",
    );
    refuse(&|o| o.checksum = 2, "options.checksum is 2, allowed are 0 to 1");
    refuse(&|o| o.tolerate_dup_recv = 2, "options.tolerate_dup_recv is 2");
    refuse(&|o| o.allow_remote = 255, "options.allow_remote is 255");
    refuse(&|o| o.use_rdma_cm = 9, "options.use_rdma_cm is 9");
    refuse(&|o| o.ib_device = c"".as_ptr(), "options.ib_device has 0 bytes");
    refuse(&|o| o.ib_port = 256, "options.ib_port is 256, allowed are 0 to 255");
    refuse(&|o| o.ib_gid_index = -2, "options.ib_gid_index is -2");
    refuse(&|o| o.ib_pkey_index = 65536, "options.ib_pkey_index is 65536");
    refuse(&|o| o.ib_timeout = 32, "options.ib_timeout is 32, allowed are 0 to 31");
    refuse(&|o| o.ib_retry_count = 8, "options.ib_retry_count is 8");
    refuse(&|o| o.ib_sl = -1, "options.ib_sl is -1, allowed are 0 to 7");
    refuse(&|o| o.ib_mtu = 1500, "options.ib_mtu is 1500, allowed are 0 (the active MTU), 256");
    refuse(&|o| o.ib_traffic_class = 256, "options.ib_traffic_class is 256");
}
