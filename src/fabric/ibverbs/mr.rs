//! Protection domain, memory regions, and the adapter's own registered buffers.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::*;

use crate::fabric::Access;
use crate::status::{Code, Status};

use super::device::Context;
use super::{log_failure, sys};

/// A protection domain: regions and queue pairs of one adapter.
pub(super) struct Pd {
    raw: NonNull<ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: libibverbs' functions on a protection domain may be called from any thread.
unsafe impl Send for Pd {}
// SAFETY: as above, also at the same time.
unsafe impl Sync for Pd {}

impl Pd {
    /// A new one.
    pub fn new(context: Arc<Context>) -> Result<Arc<Pd>, Status> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.verbs().alloc_pd)(context.raw()) };
        let raw =
            NonNull::new(raw).ok_or_else(|| Status::os("protection domain", &sys::last_error()))?;
        Ok(Arc::new(Pd { raw, context }))
    }
    /// The C object.
    pub fn raw(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }
    /// Its device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: its regions and queue pairs held an Arc to it and are gone.
        if !self.context.forked() && unsafe { (self.context.verbs().dealloc_pd)(self.raw()) } != 0 {
            log_failure("deallocate protection domain", self.context.name());
        }
    }
}

/// Memory that the device may read or write, registered.
pub(super) struct MemoryRegion {
    raw: NonNull<ibv_mr>,
    pd: Arc<Pd>,
}

// SAFETY: libibverbs' functions on a region may be called from any thread.
unsafe impl Send for MemoryRegion {}

/// The verbs access bits for ours: none that was not asked for. The verbs demand local write for
/// remote write.
fn access_bits(access: Access) -> i32 {
    let mut bits = ibv_access_flags(0);
    if access.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE) {
        bits |= ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
    }
    if access.contains(Access::REMOTE_WRITE) {
        bits |= ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
    }
    if access.contains(Access::REMOTE_READ) {
        bits |= ibv_access_flags::IBV_ACCESS_REMOTE_READ;
    }
    bits.0 as i32
}

impl MemoryRegion {
    /// Registers host memory.
    ///
    /// # Safety
    /// The memory stays mapped until the region is dropped.
    pub unsafe fn new(
        pd: &Arc<Pd>,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<MemoryRegion, Status> {
        let what = || format!("registration of {len} bytes at {addr:#x}");
        let n = usize::try_from(len).map_err(|_| Status::invalid(what()))?;
        if n == 0 || addr.checked_add(len).is_none() {
            return Err(Status::invalid(text!("{}: empty or past the end of memory", what())));
        }
        let verbs = pd.context.verbs();
        // SAFETY: the range is the caller's, by contract.
        let raw = unsafe { (verbs.reg_mr)(pd.raw(), addr as *mut c_void, n, access_bits(access)) };
        NonNull::new(raw)
            .map(|raw| MemoryRegion { raw, pd: pd.clone() })
            .ok_or_else(|| explain(&what(), &sys::last_error()))
    }

    /// Registers device memory exported as a dmabuf. `iova` is the address that operations use.
    pub fn from_dmabuf(
        pd: &Arc<Pd>,
        fd: i32,
        offset: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<MemoryRegion, Status> {
        let what = text!("registration of {len} bytes of dmabuf {fd}");
        let reg = pd.context.verbs().reg_dmabuf_mr.ok_or_else(|| {
            Status::new(Code::Unimplemented, text!("{what}: this libibverbs is too old"))
        })?;
        let n = usize::try_from(len).map_err(|_| Status::invalid(what.clone()))?;
        // SAFETY: the kernel checks descriptor and range; it holds the dmabuf while registered.
        let raw = unsafe { reg(pd.raw(), offset, n, iova, fd, access_bits(access)) };
        NonNull::new(raw).map(|raw| MemoryRegion { raw, pd: pd.clone() }).ok_or_else(|| {
            let e = sys::last_error();
            match e.raw_os_error() {
                Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT) => Status::new(
                    Code::Unimplemented,
                    text!("{what}: {} cannot register dmabufs", pd.context.name()),
                ),
                _ => explain(&what, &e),
            }
        })
    }

    /// Key for local use.
    pub fn lkey(&self) -> u32 {
        // SAFETY: a live region.
        unsafe { self.raw.as_ref().lkey }
    }
    /// Key for peers, never 0. Some devices give regions without remote access the key 0; theirs
    /// is then the local one, which a peer's access with is refused all the same.
    pub fn rkey(&self) -> u32 {
        // SAFETY: a live region.
        match unsafe { self.raw.as_ref().rkey } {
            0 => self.lkey(),
            key => key,
        }
    }

    /// Ends the registration; on return the device touches the memory no more.
    pub fn close(self) -> Result<(), Status> {
        let this = std::mem::ManuallyDrop::new(self);
        let verbs = this.pd.context.verbs();
        // SAFETY: registered once, deregistered once: the drop does not run.
        let result = sys::check(unsafe { (verbs.dereg_mr)(this.raw.as_ptr()) });
        // SAFETY: `this` is never dropped or used again; its Arc is released here.
        drop(unsafe { std::ptr::read(&this.pd) });
        result.map_err(|e| Status::os("deregistration", &e))
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if self.pd.context.forked() {
            return;
        }
        // SAFETY: registered once, deregistered once.
        if unsafe { (self.pd.context.verbs().dereg_mr)(self.raw.as_ptr()) } != 0 {
            log_failure("deregister memory", self.pd.context.name());
        }
    }
}

fn explain(what: &str, e: &std::io::Error) -> Status {
    let hint = match e.raw_os_error() {
        Some(libc::ENOMEM) => "; raise the limit of locked memory (ulimit -l)",
        Some(libc::EFAULT) => "; the range is not all mapped with the access asked for",
        _ => "",
    };
    let mut s = Status::os(what, e);
    if e.raw_os_error() == Some(libc::EFAULT) {
        s = s.with_code(Code::InvalidArgument);
    }
    let text = text!("{}{hint}", s.message);
    s.with_message(text)
}

/// Registered memory of the adapter's own, in buffers of one size. Whole pages, so that a fork
/// takes nothing else from the child.
pub(super) struct Slab {
    // Before the memory, so that it ends first.
    region: MemoryRegion,
    memory: Pages,
}

struct Pages {
    addr: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory, reached only through the slab's owner.
unsafe impl Send for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped with this address and length, unmapped once.
        unsafe { libc::munmap(self.addr.as_ptr().cast(), self.len) };
    }
}

impl Slab {
    /// `len` bytes, zeroed, writable by the device for receives.
    pub fn new(pd: &Arc<Pd>, len: usize) -> Result<Slab, Status> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new anonymous mapping.
        let p = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        if p == libc::MAP_FAILED {
            return Err(Status::os(format!("{len} bytes of buffers"), &sys::last_error()));
        }
        let addr = NonNull::new(p.cast::<u8>())
            .ok_or_else(|| Status::internal("mmap returned address 0"))?;
        let memory = Pages { addr, len };
        // SAFETY: the mapping outlives the region: fields drop in order.
        let region = unsafe {
            MemoryRegion::new(pd, memory.addr.as_ptr() as u64, len as u64, Access::LOCAL_WRITE)?
        };
        Ok(Slab { region, memory })
    }
    /// Key of the buffers.
    pub fn lkey(&self) -> u32 {
        self.region.lkey()
    }
    /// Address of byte `offset`.
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.memory.len);
        // SAFETY: inside the mapping.
        unsafe { self.memory.addr.as_ptr().add(offset) }
    }
}
