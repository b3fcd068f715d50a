//! Pools of the application, apart from managers.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::AtomicUsize;

use parking_lot::Mutex;

use super::args::not_null;
use super::error::guard;
use super::object::Type;
use super::types::*;
use crate::counted::Counted;
use crate::manager::physical_memory;
use crate::memory::pool::{HUGE, Pool};
use crate::status::Status;

/// A pool of memory. Opaque.
pub struct rdma_pool {
    /// What is there is an `Object` of `object.rs`.
    _opaque: [u64; 0],
}
/// A pool of memory. Opaque.
pub type rdma_pool_t = rdma_pool;

static POOLS: Type<Counted<Pool>> = Type {
    magic: 0x7264_6d61_706f_6f6c,
    arg: "pool",
    made: "rdma_pool_create",
    dead: Mutex::new(VecDeque::new()),
    count: AtomicUsize::new(0),
};

/// The pool of a manager's options, if there is one.
///
/// # Safety
/// As the header demands of a handle.
pub(super) unsafe fn optional(pool: *const rdma_pool_t) -> Result<Option<Counted<Pool>>, Status> {
    if pool.is_null() {
        return Ok(None);
    }
    // SAFETY: by this function's contract; the handle points to its object.
    let pool = unsafe { POOLS.borrow(pool.cast()) }?;
    Ok(Some(Counted::clone(&pool)))
}

/// Makes a pool of memory for several managers, or for memory that lives longer than a manager, as an allocator's does:
/// like that of rdma_mem_alloc, registered and shared with peers on this host by every manager that has it in
/// options.pool. It takes `max_bytes` of the address space at most, 2 MiB or a multiple at a time; 0: as much as there is
/// physical memory. Memory is taken on need.
///
/// Threads: any; the handle may be used from any thread at once. It is of no use in a forked child, where every function
/// returns RDMA_FAILED_PRECONDITION for it; the memory is not in the child, and touching it there ends it with SIGSEGV.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `out` NULL, max_bytes 1 to 2097151;
/// RDMA_RESOURCE_EXHAUSTED: no memory; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_pool_create(
    max_bytes: usize,
    out: *mut *mut rdma_pool_t,
) -> rdma_code_t {
    guard("rdma_pool_create", || {
        not_null("out", out)?;
        if (1..HUGE).contains(&max_bytes) {
            return Err(Status::invalid(text!(
                "max_bytes is {max_bytes}, allowed are 0 (as much as there is physical memory), and {HUGE} and above: \
                 so much is taken at a time"
            )));
        }
        let most = if max_bytes == 0 { physical_memory() } else { max_bytes };
        let pool = Counted::new(Pool::create(most)?, "a pool")?;
        // SAFETY: not NULL, and the caller's to write.
        unsafe { out.write(POOLS.make(pool)?.cast()) };
        Ok(())
    })
}

/// Allocates memory in a pool, aligned to 64 bytes. The content is not defined. It is the application's until
/// rdma_pool_free, whatever becomes of managers.
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `pool` or `out` NULL, len 0 or more than PTRDIFF_MAX; RDMA_RESOURCE_EXHAUSTED: more than the pool's
/// most, no memory or descriptors; RDMA_FAILED_PRECONDITION: `pool` destroyed or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_pool_alloc(
    pool: *mut rdma_pool_t,
    len: usize,
    out: *mut *mut c_void,
) -> rdma_code_t {
    guard("rdma_pool_alloc", || {
        not_null("out", out)?;
        // SAFETY: the caller's handle, as the header demands.
        let pool = unsafe { POOLS.borrow(pool.cast()) }?;
        if len == 0 || len > isize::MAX as usize {
            let most = isize::MAX;
            return Err(Status::invalid(text!("len is {len}, allowed are 1 to {most}")));
        }
        let addr = pool.alloc(len)?;
        // SAFETY: not NULL, and the caller's to write.
        unsafe { out.write(addr.cast()) };
        Ok(())
    })
}

/// Frees memory of rdma_pool_alloc. No operation of any manager may be using it.
///
/// Threads: any. `addr` NULL is an error.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `pool` or `addr` NULL; RDMA_NOT_FOUND: not from rdma_pool_alloc of this pool,
/// or freed already; RDMA_FAILED_PRECONDITION: `pool` destroyed or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_pool_free(
    pool: *mut rdma_pool_t,
    addr: *mut c_void,
) -> rdma_code_t {
    guard("rdma_pool_free", || {
        // SAFETY: the caller's handle, as the header demands.
        let pool = unsafe { POOLS.borrow(pool.cast()) }?;
        not_null("addr", addr)?;
        pool.free(addr.cast())
    })
}

/// Bytes of a pool that are allocated, and bytes of address space that it takes for them.
///
/// Threads: any. Either of `used` and `reserved` may be NULL.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `pool` NULL; RDMA_FAILED_PRECONDITION: `pool` destroyed or in a forked child;
/// RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_pool_usage(
    pool: *mut rdma_pool_t,
    used: *mut u64,
    reserved: *mut u64,
) -> rdma_code_t {
    guard("rdma_pool_usage", || {
        // SAFETY: the caller's handle, as the header demands.
        let pool = unsafe { POOLS.borrow(pool.cast()) }?;
        let usage = pool.usage();
        for (out, bytes) in [(used, usage.0), (reserved, usage.1)] {
            if !out.is_null() {
                // SAFETY: not NULL, and the caller's to write.
                unsafe { out.write(bytes as u64) };
            }
        }
        Ok(())
    })
}

/// Ends a pool's handle. Its memory goes, also what was not freed, once the managers that have it in their options have
/// ended as well.
///
/// Threads: any, but not inside a callback. `pool` NULL is an error.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `pool` NULL or no handle; RDMA_FAILED_PRECONDITION: inside a callback,
/// destroyed already, or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_pool_destroy(pool: *mut rdma_pool_t) -> rdma_code_t {
    guard("rdma_pool_destroy", || {
        // SAFETY: the caller's handle, as the header demands.
        unsafe { POOLS.end(pool.cast(), |_| ()) }
    })
}
