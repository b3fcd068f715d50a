//! Every time in milliseconds that a function takes: one that is not allowed is refused, and the error names all that is.

use std::ptr::{null, null_mut};

use super::super::*;
use super::{Mgr, invalid};

const WRONG: i64 = -7;
/// 0 is a time like others, or that none is given.
const PLAIN: &str = "0 and above";
const LIMIT: &str = "0 and above, and -1 (RDMA_MSG_FOREVER)";
const TIMEOUT: &str = "1 and above, 0 (the manager's) and -1 (RDMA_MSG_FOREVER)";
const STORE: &str = "1 and above, 0 (the store's), -1 (RDMA_STORE_FOREVER) and -2 (RDMA_STORE_NOW)";
const MESH: &str = "1 and above, 0 (the store's) and -1 (RDMA_STORE_FOREVER)";

/// The functions with such an argument, by the header.
fn in_header() -> Vec<String> {
    let header = include_str!("../../../include/rdma_transport.h");
    let functions = header.split("\nrdma_code_t ").skip(1);
    let told = functions.filter_map(|text| text.split_once("(")?.1.split_once(");").map(|_| text));
    let times = told.filter(|text| {
        let (declared, _) = text.split_once(");").unwrap();
        declared.contains("int64_t timeout_ms") || declared.contains("int64_t ttl_ms")
    });
    times.map(|text| text.split_once("(").unwrap().0.to_owned()).collect()
}

macro_rules! refuse {
    ($seen:ident: $($name:ident($($arg:expr),*): $arg_name:literal, $allowed:expr;)*) => {$(
        // SAFETY: arguments as the header demands, but for the time, which is tested.
        let code = unsafe { $name($($arg),*) };
        let text = format!("{}: {} is -7, allowed are {}", stringify!($name), $arg_name, $allowed);
        invalid(code, &[&text]);
        assert!(super::last_error().ends_with($allowed), "more than {text:?}");
        $seen.push(stringify!($name).to_owned());
    )*};
}

#[test]
fn times_that_are_not_allowed() {
    let mgr = Mgr::new();
    let (m, peer, key) = (mgr.0, c"w1".as_ptr(), c"key".as_ptr());
    let (mut store, mut out, mut mesh) = (null_mut(), null_mut(), null_mut());
    // SAFETY: as the header demands.
    assert_eq!(unsafe { rdma_store_memory(null(), &mut store) }, RDMA_OK);
    let (mut len, mut pair, mut yes, mut sum, mut compared) = (0, 0, false, 0, 0);
    let keys = rdma_bytes_t { data: key.cast(), len: 3 };
    let mut place = rdma_bytes_out_t { data: null_mut(), cap: 0, len: 0 };
    let (mut request, blob) = (1, [0u8; 8]);
    // SAFETY: plain data, in which zero is a value.
    let mut status = unsafe { std::mem::zeroed::<rdma_msg_status_t>() };
    status.struct_size = size_of::<rdma_msg_status_t>();
    let mut seen = Vec::new();
    refuse! { seen:
        rdma_mgr_meet(m, c"127.0.0.1:1".as_ptr(), WRONG, null_mut(), 0, &mut len): "timeout_ms", "1 and above";
        rdma_mgr_connect(m, peer, WRONG): "timeout_ms", PLAIN;
        rdma_mgr_wait(m, WRONG): "timeout_ms", PLAIN;
        rdma_mgr_flush(m, null(), WRONG): "timeout_ms", PLAIN;
        rdma_msg_probe(m, 0, 0, 0, 0, false, WRONG, &mut status): "timeout_ms", PLAIN;
        rdma_msg_wait(m, &mut request, 1, RDMA_MSG_ALL, WRONG, null_mut(), null_mut(), &mut len): "timeout_ms", LIMIT;
        rdma_msg_detach(m, WRONG): "timeout_ms", LIMIT;
        rdma_pair_create(m, 0, WRONG, &mut pair): "timeout_ms", TIMEOUT;
        rdma_pair_connect(m, 1, blob.as_ptr(), 8, WRONG): "timeout_ms", PLAIN;
        rdma_buffer_wait_send(m, 1, WRONG): "timeout_ms", TIMEOUT;
        rdma_buffer_wait_recv(m, 1, WRONG): "timeout_ms", TIMEOUT;
        rdma_unbound_send(m, 1, 1, 0, 0, 0, WRONG): "timeout_ms", TIMEOUT;
        rdma_unbound_ssend(m, 1, 1, 0, 0, 0, WRONG): "timeout_ms", TIMEOUT;
        rdma_unbound_recv(m, 1, null(), 0, 0, 0, 0, WRONG): "timeout_ms", TIMEOUT;
        rdma_unbound_wait_send(m, 1, WRONG, null_mut()): "timeout_ms", TIMEOUT;
        rdma_unbound_wait_recv(m, 1, WRONG, null_mut()): "timeout_ms", TIMEOUT;
        rdma_store_lease(store, WRONG, &mut out): "ttl_ms", "100 to 86400000";
        rdma_store_set(store, key, 3, null(), 0, WRONG): "timeout_ms", STORE;
        rdma_store_multi_set(store, &keys, &keys, 1, WRONG): "timeout_ms", STORE;
        rdma_store_get(store, key, 3, WRONG, null_mut(), 0, &mut len): "timeout_ms", STORE;
        rdma_store_multi_get(store, &keys, &mut place, 1, WRONG): "timeout_ms", STORE;
        rdma_store_wait(store, &keys, 1, WRONG): "timeout_ms", STORE;
        rdma_store_check(store, &keys, 1, WRONG, &mut yes): "timeout_ms", STORE;
        rdma_store_add(store, key, 3, 1, WRONG, &mut sum): "timeout_ms", STORE;
        rdma_store_compare_set(store, key, 3, null(), 0, key.cast(), 3, WRONG, &mut compared, null_mut(), 0, &mut len):
            "timeout_ms", STORE;
        rdma_store_delete(store, key, 3, WRONG, &mut yes): "timeout_ms", STORE;
    }
    let mut all = in_header();
    all.sort();
    seen.sort();
    assert_eq!(seen, all);

    // Those in options.
    // SAFETY: plain data, in which zero is a value.
    let (mut msg, mut to) = unsafe {
        (std::mem::zeroed::<rdma_msg_options_t>(), std::mem::zeroed::<rdma_mesh_options_t>())
    };
    (msg.struct_size, msg.timeout_ms) = (size_of::<rdma_msg_options_t>(), WRONG);
    (to.struct_size, to.timeout_ms) = (size_of::<rdma_mesh_options_t>(), WRONG);
    refuse! { seen:
        rdma_msg_irecv(m, 0, 0, 0, 0, null_mut(), 0, &msg, null_mut(), &mut request): "options.timeout_ms", TIMEOUT;
        rdma_mesh_connect(m, store, 0, 1, &to, &mut mesh): "options.timeout_ms", MESH;
    }
    (to.timeout_ms, to.keep_ms) = (RDMA_STORE_NOW, 0);
    // SAFETY: as above.
    invalid(unsafe { rdma_mesh_connect(m, store, 0, 1, &to, &mut mesh) }, &[MESH]);
    (to.timeout_ms, to.keep_ms) = (0, WRONG);
    refuse! { seen: rdma_mesh_connect(m, store, 0, 1, &to, &mut mesh): "options.keep_ms", PLAIN; }
    // SAFETY: as above.
    assert_eq!(unsafe { rdma_store_destroy(store) }, RDMA_OK);
}

/// Whoever waited in vain hears of which slot, rank and peer it was.
#[test]
fn what_was_waited_for_in_vain_is_named() {
    let (mgr, mut pair, mut buffer, mut len) = (Mgr::new(), 0, 0, 0);
    let (m, mut memory, mut address) = (mgr.0, [0u8; 8], [0u8; RDMA_PAIR_ADDRESS_MAX]);
    let at = memory.as_mut_ptr().cast();
    // SAFETY: plain data, in which zero is a value.
    let mut status = unsafe { std::mem::zeroed::<rdma_msg_status_t>() };
    status.struct_size = size_of::<rdma_msg_status_t>();
    let late = |code, words: &[&str]| {
        assert_eq!(code, RDMA_DEADLINE_EXCEEDED, "{}", super::last_error());
        let text = super::last_error();
        words.iter().for_each(|word| assert!(text.contains(word), "{word}: {text}"));
    };
    // SAFETY: as the header demands; the memory outlives the manager.
    unsafe {
        assert_eq!(rdma_pair_create(m, 41, 1000, &mut pair), RDMA_OK);
        assert_eq!(
            rdma_buffer_create_recv(m, pair, 77, at, 8, None, null_mut(), &mut buffer),
            RDMA_OK
        );
        let words = ["slot 77", "rank 41", "was not connected", "nothing arrived"];
        late(rdma_buffer_wait_recv(m, buffer, 1), &words);
        let (other, mut of_other) = (Mgr::new(), 0);
        assert_eq!(rdma_mgr_set_name(other.0, c"other".as_ptr()), RDMA_OK);
        let listens = rdma_mgr_listen(other.0, c"127.0.0.1:0".as_ptr(), null_mut(), 0, null_mut());
        assert_eq!(listens, RDMA_OK);
        assert_eq!(rdma_pair_create(other.0, 0, 1000, &mut of_other), RDMA_OK);
        let told =
            rdma_pair_address(other.0, of_other, address.as_mut_ptr(), address.len(), &mut len);
        assert_eq!(told, RDMA_OK, "{}", super::last_error());
        assert_eq!(rdma_pair_connect(m, pair, address.as_ptr(), len, 0), RDMA_OK);
        late(rdma_buffer_wait_recv(m, buffer, 1), &["slot 77", "rank 41", "'other'"]);
        assert_eq!(rdma_unbound_create(m, 5, at, 8, &mut buffer), RDMA_OK);
        late(rdma_unbound_wait_recv(m, buffer, 1, &mut status), &["none is under way"]);
        let mut peer = 0;
        assert_eq!(rdma_peer_lookup(m, c"other".as_ptr(), &mut peer), RDMA_OK);
        assert_eq!(rdma_unbound_recv(m, buffer, &peer, 1, 78, 0, 8, -1), RDMA_OK);
        assert_eq!(rdma_unbound_recv(m, buffer, null(), 0, 79, 0, 8, -1), RDMA_OK);
        let words = ["2 under way", "slot 78", "communicator 5", "'other'"];
        late(rdma_unbound_wait_recv(m, buffer, 1, &mut status), &words);
    }
}

/// A message behind as many as may wait for receives reaches no receive, whose error says why.
#[test]
fn a_receive_behind_too_many_messages_says_so() {
    let make = |name: &std::ffi::CStr| {
        let mut options = super::options();
        options.name = name.as_ptr();
        let mut mgr = null_mut();
        // SAFETY: options and output as the header demands.
        assert_eq!(unsafe { rdma_mgr_create(&options, &mut mgr) }, RDMA_OK);
        Mgr(mgr)
    };
    let (a, b) = (make(c"sender"), make(c"receiver"));
    let (mut address, mut peer, mut place) = ([0; 64], 0, 0u64);
    let mut options = std::mem::MaybeUninit::uninit();
    // SAFETY: as the header demands; what is sent is static.
    unsafe {
        let len = size_of::<rdma_msg_options_t>();
        assert_eq!(rdma_msg_options_init(options.as_mut_ptr(), len), RDMA_OK);
        let mut options: rdma_msg_options_t = options.assume_init();
        let at = address.as_mut_ptr();
        assert_eq!(rdma_mgr_listen(b.0, c"127.0.0.1:0".as_ptr(), at, 64, null_mut()), RDMA_OK);
        assert_eq!(rdma_mgr_meet(a.0, at, 30_000, null_mut(), 0, null_mut()), RDMA_OK);
        assert_eq!(rdma_peer_lookup(a.0, c"receiver".as_ptr(), &mut peer), RDMA_OK);
        options.timeout_ms = RDMA_MSG_FOREVER;
        for tag in 0..80_000u64 {
            let data = b"8 bytes.".as_ptr().cast();
            let sent = rdma_msg_isend(a.0, peer, 1, tag, data, 8, &options, null_mut());
            assert_eq!(sent, RDMA_OK, "{}", super::last_error());
        }
        options.timeout_ms = 200;
        let begun = std::time::Instant::now();
        loop {
            let into = (&raw mut place).cast();
            let code = rdma_msg_recv(b.0, 0, 1, 79_999, u64::MAX, into, 8, &options, null_mut());
            let text = super::last_error();
            assert_eq!(code, RDMA_DEADLINE_EXCEEDED, "{text}");
            if text.contains("65,536") {
                break;
            }
            assert!(begun.elapsed().as_secs() < 60, "{text}");
        }
    }
}
