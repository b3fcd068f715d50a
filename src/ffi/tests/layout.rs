//! Layouts and numbers, which applications have compiled in.

use std::mem::offset_of;

use super::super::*;
use crate::api::{MAX_DIMS, MAX_KEY_LEN, MAX_NAME_LEN, PeerState};
use crate::api::{TENSOR_DEAD, TENSOR_SERIALIZED};
use crate::config::Config;
use crate::engine::layout::MAX_PIECES;
use crate::log::Level;
use crate::protocol::message;
use crate::status::{Code, Reason};

macro_rules! offsets {
    ($type:ty, $size:literal: $($field:ident $at:literal),* $(,)?) => {
        $(assert_eq!(offset_of!($type, $field), $at, stringify!($field));)*
        assert_eq!(size_of::<$type>(), $size);
    };
}

#[test]
#[cfg(target_pointer_width = "64")]
fn structs_have_the_layout_of_the_first_version() {
    offsets!(rdma_tensor_t, 64: struct_size 0, data 8, nbytes 16, dims 24, ndims 32, dtype 36,
        flags 40, device 44, user 48, user_len 56);
    offsets!(rdma_transfer_info_t, 48: struct_size 0, bytes 8, elapsed_ns 16, provider 24, peer 32,
        protocol 40, reason 44);
    offsets!(rdma_device_ops_t, 32: struct_size 0, copy_to_host 8, copy_from_host 16, export_dmabuf 24);
    offsets!(rdma_mgr_options_t, 208: struct_size 0, name 8, provider 16, listen 24, secret 32,
        secret_len 40, progress 48, protocol 52, timeout_ms 56, busy_poll_us 64,
        peer_timeout_ms 72, eager_max 80, meta_cache_entries 88, queue_depth 92, checksum 96,
        tolerate_dup_recv 97, allow_remote 98, use_rdma_cm 99, ib_device 104, ib_port 112,
        ib_gid_index 116, ib_pkey_index 120, ib_timeout 124, ib_retry_count 128, ib_sl 132,
        ib_mtu 136, ib_traffic_class 140, source 144, source_ended 152, source_userdata 160,
        peer_event 168, peer_event_userdata 176, registration_cache_bytes 184, pool 192,
        max_rdma_per_request 200);
    offsets!(rdma_recv_options_t, 56: struct_size 0, timeout_ms 8, dst 16, dst_len 24, alloc 32,
        alloc_userdata 40, device 48);
    offsets!(rdma_send_options_t, 16: struct_size 0, timeout_ms 8);
    offsets!(rdma_peer_info_t, 872: struct_size 0, name 8, provider 264, reason 280, address 536,
        incarnation 792, state 808, channels 812, bytes_sent 816, bytes_received 824,
        requests_sent 832, requests_received 840, eager_max 848, max_message 856, message_incarnation 864);
    offsets!(rdma_msg_status_t, 96: struct_size 0, peer 8, tag 16, bytes 24, comm 32, code 36,
        message 40, text 48, header 56, header_len 64, part_lens 72, parts 80, incarnation 88);
    offsets!(rdma_msg_options_t, 72: struct_size 0, timeout_ms 8, mode 16, device 20, done 24,
        userdata 32, layout 40, header 48, header_len 56, incarnation 64);
    offsets!(rdma_msg_layout_t, 56: struct_size 0, kind 8, reserved 12, pieces 16, count 24,
        base 32, block 40, stride 48);
    offsets!(rdma_msg_piece_t, 16: data 0, len 8);
    offsets!(rdma_bytes_t, 16: data 0, len 8);
    offsets!(rdma_bytes_out_t, 24: data 0, cap 8, len 16);
    offsets!(rdma_store_options_t, 40: struct_size 0, timeout_ms 8, secret 16, secret_len 24,
        allow_remote 32);
    offsets!(rdma_store_ops_t, 64: struct_size 0, set 8, get 16, check 24, wait 32, add 40,
        compare_set 48, remove 56);
    offsets!(rdma_pair_info_t, 56: struct_size 0, rank 8, peer 16, state 24, code 28, buffers 32,
        sends 40, reading 48);
    offsets!(rdma_mesh_options_t, 32: struct_size 0, timeout_ms 8, keep_ms 16, full 24);
    offsets!(rdma_parsed_key_t, 80: struct_size 0, src_device 8, src_device_len 16, dst_device 24,
        dst_device_len 32, edge_name 40, edge_name_len 48, src_incarnation 56, frame 64, iter 72);
}

#[test]
fn bounds_of_stores_are_those_of_the_code() {
    assert_eq!(RDMA_STORE_MAX_KEY_LEN as usize, crate::limits::STORE_KEY);
    assert_eq!(RDMA_STORE_MAX_VALUE_LEN as usize, crate::limits::STORE_VALUE);
    assert_eq!(RDMA_STORE_MAX_KEYS as usize, crate::limits::STORE_CALL);
    assert_eq!(RDMA_MESH_MAX_RANKS as usize, crate::limits::MESH_RANKS);
}

#[test]
fn numbers_are_those_of_the_engine() {
    let codes = [
        (RDMA_OK, Code::Ok),
        (RDMA_CANCELLED, Code::Cancelled),
        (RDMA_UNKNOWN, Code::Unknown),
        (RDMA_INVALID_ARGUMENT, Code::InvalidArgument),
        (RDMA_DEADLINE_EXCEEDED, Code::DeadlineExceeded),
        (RDMA_NOT_FOUND, Code::NotFound),
        (RDMA_ALREADY_EXISTS, Code::AlreadyExists),
        (RDMA_PERMISSION_DENIED, Code::PermissionDenied),
        (RDMA_RESOURCE_EXHAUSTED, Code::ResourceExhausted),
        (RDMA_FAILED_PRECONDITION, Code::FailedPrecondition),
        (RDMA_ABORTED, Code::Aborted),
        (RDMA_OUT_OF_RANGE, Code::OutOfRange),
        (RDMA_UNIMPLEMENTED, Code::Unimplemented),
        (RDMA_INTERNAL, Code::Internal),
        (RDMA_UNAVAILABLE, Code::Unavailable),
        (RDMA_DATA_LOSS, Code::DataLoss),
        (RDMA_UNAUTHENTICATED, Code::Unauthenticated),
    ];
    for (number, code) in codes {
        assert_eq!(number, code as i32);
    }
    let reasons = [
        (RDMA_REASON_NONE, Reason::None),
        (RDMA_REASON_CANCELLED, Reason::Cancelled),
        (RDMA_REASON_DEADLINE, Reason::Deadline),
        (RDMA_REASON_PEER_GONE, Reason::PeerGone),
        (RDMA_REASON_PEER_STALLED, Reason::PeerStalled),
        (RDMA_REASON_PEER_RESTARTED, Reason::PeerRestarted),
        (RDMA_REASON_STEP_ABORTED, Reason::StepAborted),
        (RDMA_REASON_REMOTE_ERROR, Reason::RemoteError),
        (RDMA_REASON_LOCAL_ERROR, Reason::LocalError),
    ];
    for (number, reason) in reasons {
        assert_eq!(number, reason as u32);
    }
    let states = [
        (RDMA_PEER_IDLE, PeerState::Idle),
        (RDMA_PEER_CONNECTING, PeerState::Connecting),
        (RDMA_PEER_CONNECTED, PeerState::Connected),
        (RDMA_PEER_FAILED, PeerState::Failed),
    ];
    for (number, state) in states {
        assert_eq!(number, state as i32);
    }
    let levels = [RDMA_LOG_ERROR, RDMA_LOG_WARN, RDMA_LOG_INFO, RDMA_LOG_DEBUG];
    assert_eq!(levels, Level::ALL.map(|l| l as i32));
    assert_eq!((RDMA_TENSOR_DEAD, RDMA_TENSOR_SERIALIZED), (TENSOR_DEAD, TENSOR_SERIALIZED));
    assert_eq!(RDMA_MAX_KEY_LEN as usize, MAX_KEY_LEN);
    assert_eq!(RDMA_MAX_DIMS as usize, MAX_DIMS);
    assert_eq!(RDMA_MAX_NAME_LEN as usize, MAX_NAME_LEN);
    assert_eq!(RDMA_MSG_MAX_HEADER, message::MAX_USER);
    assert_eq!(RDMA_MAX_USER_LEN as usize, message::MAX_USER);
    assert_eq!(RDMA_MSG_MAX_PARTS, message::MAX_PARTS);
    assert_eq!(RDMA_MSG_MAX_PIECES, MAX_PIECES);
    let version = format!("{RDMA_VERSION_MAJOR}.{RDMA_VERSION_MINOR}.{RDMA_VERSION_PATCH}");
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
}

#[test]
fn default_options_are_the_default_settings() {
    let options = super::options();
    assert_eq!(options.struct_size, size_of::<rdma_mgr_options_t>());
    let (given, absent) =
        // SAFETY: options as the header describes them; NULL stands for the defaults.
        unsafe { (options::config(&options).unwrap(), options::config(std::ptr::null()).unwrap()) };
    let defaults = format!("{:?}", Config::default());
    assert_eq!(format!("{given:?}"), defaults);
    assert_eq!(format!("{absent:?}"), defaults);
}
