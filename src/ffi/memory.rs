//! Memory: registered, of the library, of accelerators.

use std::ffi::c_void;
use std::sync::Arc;

use super::args::{memory, not_null};
use super::callback::Device;
use super::error::guard;
use super::handle::borrow;
use super::sized;
use super::types::*;
use crate::status::Status;

/// Registers memory, so that tensors inside it move without a copy. Not needed for a transfer to
/// work. `device` is RDMA_DEVICE_HOST or an id from rdma_mgr_register_device. Ranges may adjoin,
/// and must not overlap. Where the RDMA device does not take it (a limit on locked memory, say), that is
/// logged, and transfers of it go through memory of the library.
///
/// Threads: any. The memory stays the application's, and valid until rdma_mem_unregister or
/// rdma_mgr_destroy.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `addr` NULL, len 0 or beyond the address space;
/// RDMA_ALREADY_EXISTS: overlaps registered memory; RDMA_NOT_FOUND: unknown device;
/// RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mem_register(
    mgr: *mut rdma_mgr_t,
    addr: *mut c_void,
    len: usize,
    device: u32,
) -> rdma_code_t {
    guard("rdma_mem_register", || {
        // SAFETY: the caller's handle, as the header demands.
        let mgr = unsafe { borrow(mgr) }?;
        let (addr, len) = memory("addr", addr, len)?;
        // SAFETY: the header demands that the memory stays valid until it is unregistered.
        unsafe { mgr.mem_register(addr, len, device) }
    })
}

/// Ends a registration; `addr` as given to rdma_mem_register. Transfers under way that use the
/// memory, and tensors in it that wait to be received, end with RDMA_FAILED_PRECONDITION; a pair with a buffer in it breaks,
/// at both ends, also while it is idle (rdma_buffer_destroy before this spares it); when this
/// returns, neither the library nor a peer reads or writes it any more. Where a peer is slow that
/// takes up to 2 seconds; then the connection to it ends. A result that rdma_recv of the same
/// manager gave by reference stays the application's to keep valid. Callbacks of transfers that had
/// ended before may still run, also with RDMA_OK, after this returned.
///
/// Threads: any. Drives progress while it waits; inside a callback of `mgr` it does not wait: connections end at
/// once.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `addr` NULL; RDMA_NOT_FOUND: not registered;
/// RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child, or called inside a device's copy
/// function of this memory; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mem_unregister(
    mgr: *mut rdma_mgr_t,
    addr: *mut c_void,
) -> rdma_code_t {
    guard("rdma_mem_unregister", || {
        // SAFETY: the caller's handle, as the header demands.
        let mgr = unsafe { borrow(mgr) }?;
        not_null("addr", addr)?;
        mgr.mem_unregister(addr as u64)
    })
}

/// Says that memory is about to be freed or mapped anew: no registration of it that was kept is used
/// again. Only where options.registration_cache_bytes (RDMA_REGISTRATION_CACHE) is not 0; otherwise, and
/// where nothing is kept of the range, it does nothing. Without it a later transfer of memory at the same
/// address would read or write what lay there before. Memory of rdma_mem_register and rdma_mem_alloc is
/// not concerned.
///
/// Threads: any, also inside callbacks: it waits for nobody. No operation may be using the memory. What other
/// operations use, of one registration with it, stays registered until they have ended.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `addr` NULL, len 0 or beyond the address space;
/// RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mem_invalidate(
    mgr: *mut rdma_mgr_t,
    addr: *mut c_void,
    len: usize,
) -> rdma_code_t {
    guard("rdma_mem_invalidate", || {
        // SAFETY: the caller's handle, as the header demands.
        let mgr = unsafe { borrow(mgr) }?;
        let (addr, len) = memory("addr", addr, len)?;
        mgr.mem_invalidate(addr, len)
    })
}

/// Allocates memory in the library's pool: registered, shared with peers on this host, aligned to
/// 64 bytes, zero when fresh. The best place for tensors.
///
/// Threads: any. Free it with rdma_mem_free; rdma_mgr_destroy frees what is left.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `out` NULL, len 0 or more than half of
/// the address space (PTRDIFF_MAX); RDMA_RESOURCE_EXHAUSTED: no memory; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mem_alloc(
    mgr: *mut rdma_mgr_t,
    len: usize,
    out: *mut *mut c_void,
) -> rdma_code_t {
    guard("rdma_mem_alloc", || {
        not_null("out", out)?;
        // SAFETY: the caller's handle, as the header demands.
        let mgr = unsafe { borrow(mgr) }?;
        if len == 0 || len > isize::MAX as usize {
            let most = isize::MAX;
            return Err(Status::invalid(text!("len is {len}, allowed are 1 to {most}")));
        }
        let addr = mgr.mem_alloc(len)?;
        // SAFETY: not NULL, and the caller's to write.
        unsafe { out.write(addr as *mut c_void) };
        Ok(())
    })
}

/// Frees memory of rdma_mem_alloc. No operation may be using it.
///
/// Threads: any. `addr` NULL is an error.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `addr` NULL; RDMA_NOT_FOUND: not from
/// rdma_mem_alloc of this manager, or freed already; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in
/// a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mem_free(
    mgr: *mut rdma_mgr_t,
    addr: *mut c_void,
) -> rdma_code_t {
    guard("rdma_mem_free", || {
        // SAFETY: the caller's handle, as the header demands.
        let mgr = unsafe { borrow(mgr) }?;
        not_null("addr", addr)?;
        mgr.mem_free(addr as u64)
    })
}

/// Makes an accelerator known by its copy functions. *device is its id, for rdma_tensor_t.device,
/// rdma_recv_options_t.device and rdma_mem_register.
///
/// Threads: any. `ops` is copied; `userdata` (NULL is allowed) is passed to its functions, until
/// rdma_mgr_destroy.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr`, `ops`, `device` or a function NULL, wrong
/// struct_size; RDMA_RESOURCE_EXHAUSTED: too many devices; RDMA_FAILED_PRECONDITION: `mgr`
/// destroyed or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mgr_register_device(
    mgr: *mut rdma_mgr_t,
    ops: *const rdma_device_ops_t,
    userdata: *mut c_void,
    device: *mut u32,
) -> rdma_code_t {
    guard("rdma_mgr_register_device", || {
        not_null("device", device)?;
        // SAFETY: the caller's arguments, as the header demands.
        let (mgr, ops) = unsafe { (borrow(mgr)?, sized::read("ops", ops)?) };
        let id = mgr.register_device(Arc::new(Device::new(&ops, userdata)?))?;
        // SAFETY: not NULL, and the caller's to write.
        unsafe { device.write(id) };
        Ok(())
    })
}
