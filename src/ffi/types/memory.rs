//! Devices that tensors live on, and their functions.

use std::ffi::{c_int, c_void};

use super::rdma_code_t;

/// Device id of host memory.
pub const RDMA_DEVICE_HOST: u32 = 0;

/// To be called once by a device's copy function when the copy is complete, from any thread. A
/// second call with the same token is ignored.
pub type rdma_copy_done_fn = Option<unsafe extern "C" fn(code: rdma_code_t, token: *mut c_void)>;

/// Starts a copy between the host and a device, and returns. Calls `done` with `token` when the
/// copy is complete, at once or later. Runs on the thread that drives progress.
pub type rdma_copy_to_host_fn = Option<
    unsafe extern "C" fn(
        host: *mut c_void,
        device: *const c_void,
        nbytes: u64,
        done: rdma_copy_done_fn,
        token: *mut c_void,
        userdata: *mut c_void,
    ),
>;

/// The other direction of rdma_copy_to_host_fn.
pub type rdma_copy_from_host_fn = Option<
    unsafe extern "C" fn(
        device: *mut c_void,
        host: *const c_void,
        nbytes: u64,
        done: rdma_copy_done_fn,
        token: *mut c_void,
        userdata: *mut c_void,
    ),
>;

/// Exports device memory as a dmabuf: *fd is a descriptor, which the library closes, and *offset is
/// where in it the memory begins. Returns RDMA_OK, or why it cannot. Runs inside rdma_mem_register,
/// with the manager's lock held: it calls no function of this library, and its thread does not end in it.
pub type rdma_export_dmabuf_fn = Option<
    unsafe extern "C" fn(
        device: *const c_void,
        nbytes: u64,
        fd: *mut c_int,
        offset: *mut u64,
        userdata: *mut c_void,
    ) -> rdma_code_t,
>;

/// An accelerator's functions.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_device_ops {
    /// sizeof(rdma_device_ops_t) as the application was compiled.
    pub struct_size: usize,
    /// Copies from the device to the host. Not NULL.
    pub copy_to_host: rdma_copy_to_host_fn,
    /// Copies from the host to the device. Not NULL.
    pub copy_from_host: rdma_copy_from_host_fn,
    /// NULL is allowed: tensors on the device always go through host memory. With it, memory that is
    /// registered by rdma_mem_register is moved by the RDMA device itself where that can
    /// (GPUDirect); see docs/rdma.md.
    pub export_dmabuf: rdma_export_dmabuf_fn,
}
/// An accelerator's functions.
pub type rdma_device_ops_t = rdma_device_ops;
