//! The application's registered memory, and where to find the keys for a range of it.

use std::collections::BTreeMap;

use crate::fabric::{Access, Adapter, Mr, PoolSegment};
use crate::status::{Code, Status};

/// Adapters by `ProviderKind as usize`.
pub type Adapters = [Option<Box<dyn Adapter>>; 4];

struct Region {
    len: u64,
    /// Keys by provider; only of providers that need registration.
    keys: [Option<Mr>; 4],
    /// A pool segment: not the application's to unregister.
    pool: bool,
}

/// Regions by address. They do not overlap.
#[derive(Default)]
pub struct Regions {
    map: BTreeMap<u64, Region>,
}

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE);

impl Regions {
    fn covering(&self, addr: u64, len: u64) -> Option<&Region> {
        let (&base, region) = self.map.range(..=addr).next_back()?;
        (addr - base <= region.len && len <= region.len - (addr - base)).then_some(region)
    }

    /// Keys of a registered region that covers the whole range.
    pub fn find(&self, kind: usize, addr: u64, len: u64) -> Option<Mr> {
        self.covering(addr, len).and_then(|r| r.keys[kind])
    }

    /// Adds a region and registers it with each adapter that needs it. Where that fails (memory
    /// lock limit, say), the region stays known and its transfers go through proxies.
    ///
    /// # Safety
    /// The memory stays valid until `remove`.
    pub unsafe fn add(
        &mut self,
        adapters: &mut Adapters,
        addr: u64,
        len: u64,
        device: u32,
        pool: bool,
    ) -> Result<Vec<Status>, Status> {
        let end = addr.checked_add(len).filter(|_| addr != 0 && len != 0).ok_or_else(|| {
            Status::invalid(format!("region of {len} bytes at {addr:#x} is empty or wraps around"))
        })?;
        let before = self.map.range(..end).next_back();
        if let Some((&base, r)) = before
            && base + r.len > addr
        {
            return Err(Status::new(
                Code::AlreadyExists,
                format!(
                    "region {addr:#x}+{len} overlaps the registered region {base:#x}+{}",
                    r.len
                ),
            ));
        }
        let mut region = Region { len, keys: [None; 4], pool };
        let mut failed = Vec::new();
        for (kind, adapter) in adapters.iter_mut().enumerate() {
            if let Some(a) = adapter.as_mut().filter(|a| !a.caps().windows && device == 0) {
                // SAFETY: the caller's promise; `remove` deregisters.
                match unsafe { a.register(addr, len, ALL) } {
                    Ok(mr) => region.keys[kind] = Some(mr),
                    Err(status) => failed.push(status),
                }
            }
        }
        self.map.insert(addr, region);
        Ok(failed)
    }

    /// Forgets a region of the application; its length.
    pub fn remove(&mut self, adapters: &mut Adapters, addr: u64) -> Result<u64, Status> {
        match self.map.get(&addr) {
            Some(r) if !r.pool => {}
            _ => {
                let text = format!("no region was registered at {addr:#x}");
                return Err(Status::new(Code::NotFound, text));
            }
        }
        let Some(region) = self.map.remove(&addr) else { return Ok(0) };
        for (kind, keys) in region.keys.iter().enumerate() {
            if let (Some(mr), Some(a)) = (keys, adapters[kind].as_mut()) {
                a.deregister(*mr)?;
            }
        }
        Ok(region.len)
    }

    /// Adds a segment of the pool.
    pub fn add_segment(&mut self, adapters: &mut Adapters, s: PoolSegment) -> Result<(), Status> {
        for adapter in adapters.iter_mut().flatten() {
            adapter.add_pool(s)?;
        }
        // SAFETY: a pool segment lives as long as its pool, which outlives the adapters.
        unsafe { self.add(adapters, s.addr, s.len, 0, true) }.map(|_| ())
    }
}
