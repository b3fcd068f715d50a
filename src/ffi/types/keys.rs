//! TensorFlow's keys in parts.

use std::ffi::c_char;

/// The parts of TensorFlow's key `src_device;src_incarnation;dst_device;edge_name;frame:iter`.
/// Texts are not NUL-terminated. Set struct_size before use.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_parsed_key {
    /// sizeof(rdma_parsed_key_t) as the application was compiled.
    pub struct_size: usize,
    /// Full name of the sending device.
    pub src_device: *const c_char,
    /// Its length.
    pub src_device_len: usize,
    /// Full name of the receiving device.
    pub dst_device: *const c_char,
    /// Its length.
    pub dst_device_len: usize,
    /// Name of the edge.
    pub edge_name: *const c_char,
    /// Its length.
    pub edge_name_len: usize,
    /// Incarnation of the sending device.
    pub src_incarnation: u64,
    /// Frame of the loop, 0 outside of loops.
    pub frame: u64,
    /// Iteration of the frame.
    pub iter: u64,
}
/// The parts of TensorFlow's key.
pub type rdma_parsed_key_t = rdma_parsed_key;
