//! The application's registered memory, and where to find the keys for a range of it.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::api::DeviceOps;
use crate::fabric::keys::Keys;
use crate::fabric::{Access, Adapter, AnyAdapter, Mr, PoolSegment};
use crate::protocol::message::MAX_REGIONS;
use crate::status::{Code, Status};

/// Adapters by `ProviderKind as usize`.
pub type Adapters = [Option<AnyAdapter>; 4];

/// One region that is registered.
struct Registered {
    len: u64,
    device: u32,
    /// Keys by provider; only of providers that need registration.
    keys: [Option<Keys<Mr>>; 4],
    /// A pool segment: not the application's to unregister.
    pool: bool,
}

/// Regions by address. They do not overlap.
#[derive(Default)]
pub struct Regions {
    map: BTreeMap<u64, Registered>,
    /// Those of the application.
    own: usize,
}

/// Device memory that is to be registered: the device's id and functions.
pub type OnDevice<'a> = Option<(u32, &'a dyn DeviceOps)>;

/// All that a transfer may do.
pub const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE);

/// Registers a range in as many regions as the adapter's limit on their length asks for: all of them,
/// or none.
fn in_parts(
    adapter: &mut dyn Adapter,
    len: u64,
    mut register: impl FnMut(&mut dyn Adapter, u64, u64) -> Result<Mr, Status>,
) -> Result<Keys<Mr>, Status> {
    // Whole pages, so that no two regions pin the same one.
    let max = adapter.max_region();
    let max = if max < 4096 { max.max(1) } else { max & !4095 };
    if len.div_ceil(max) > MAX_REGIONS as u64 {
        let text = text!("{len} bytes need more than {MAX_REGIONS} regions of at most {max}");
        return Err(Status::new(Code::ResourceExhausted, text));
    }
    let mut keys = Keys::one(register(adapter, 0, len.min(max))?);
    let mut at = max;
    while at < len {
        match register(adapter, at, max.min(len - at)) {
            Ok(mr) => _ = keys.push(at, mr),
            Err(status) => {
                close(adapter, &keys)?;
                return Err(status);
            }
        }
        at += max;
    }
    Ok(keys)
}

/// Registers host memory.
///
/// # Safety
/// The memory stays valid until `close`.
pub unsafe fn open(
    adapter: &mut dyn Adapter,
    addr: u64,
    len: u64,
    access: Access,
) -> Result<Keys<Mr>, Status> {
    in_parts(adapter, len, |a, at, n| {
        // SAFETY: the caller's promise.
        unsafe { a.register(addr + at, n, access) }
    })
}

/// Registers device memory that is exported as a dmabuf, in which it begins at `offset`.
fn open_dmabuf(
    adapter: &mut dyn Adapter,
    addr: u64,
    len: u64,
    (fd, offset): &(OwnedFd, u64),
) -> Result<Keys<Mr>, Status> {
    in_parts(adapter, len, |a, at, n| {
        a.register_dmabuf(fd.as_raw_fd(), offset + at, n, addr + at, ALL)
    })
}

/// The keys of a part of the memory that these are of.
pub fn part(keys: &Keys<Mr>, from: u64, len: u64) -> Option<Keys<Mr>> {
    let (first, mut border) = keys.at(from);
    let mut part = Keys::one(first);
    while border < from + len {
        let (mr, next) = keys.at(border);
        if !part.fits(1) || !part.push(border - from, mr) {
            return None;
        }
        border = next;
    }
    Some(part)
}

/// Deregisters all of them, even if one fails.
pub fn close(adapter: &mut dyn Adapter, keys: &Keys<Mr>) -> Result<(), Status> {
    keys.iter().map(|mr| adapter.deregister(mr)).fold(Ok(()), Result::and)
}

impl Regions {
    /// Whether the application has none.
    pub fn is_unused(&self) -> bool {
        self.own == 0
    }

    /// Keys of the registered regions that together cover the whole range.
    pub fn find(&self, kind: usize, addr: u64, len: u64, device: u32) -> Option<Keys<Mr>> {
        let end = addr.checked_add(len)?;
        let (&base, _) = self.map.range(..=addr).next_back()?;
        let mut found: Option<Keys<Mr>> = None;
        let mut at = addr;
        for (&base, region) in self.map.range(base..end) {
            if base > at || region.device != device {
                return None;
            }
            let stop = end.min(base + region.len);
            let keys = region.keys[kind].as_ref()?;
            while at < stop {
                let (mr, border) = keys.at(at - base);
                match &mut found {
                    None => found = Some(Keys::one(mr)),
                    Some(keys) => _ = keys.push(at - addr, mr),
                }
                at = stop.min(base.saturating_add(border));
            }
        }
        found.filter(|keys| at == end && keys.rest().len() < MAX_REGIONS)
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
        on: OnDevice<'_>,
        pool: bool,
    ) -> Result<Vec<Status>, Status> {
        let end = addr.checked_add(len).filter(|_| addr != 0 && len != 0).ok_or_else(|| {
            Status::invalid(text!("region of {len} bytes at {addr:#x} is empty or wraps around"))
        })?;
        let before = self.map.range(..end).next_back();
        if let Some((&base, r)) = before
            && base + r.len > addr
        {
            return Err(Status::new(
                Code::AlreadyExists,
                text!("region {addr:#x}+{len} overlaps the registered region {base:#x}+{}", r.len),
            ));
        }
        let device = on.map_or(0, |d| d.0);
        let mut region = Registered { len, device, keys: Default::default(), pool };
        let mut failed = Vec::new();
        for (kind, adapter) in adapters.iter_mut().enumerate() {
            let Some(a) = adapter.as_mut().filter(|a| !a.caps().windows) else { continue };
            let keys = match on {
                // SAFETY: the caller's promise; `remove` deregisters.
                None => unsafe { open(&mut **a, addr, len, ALL) },
                Some((_, ops)) => match ops.export_dmabuf(addr, len) {
                    Some(Ok(exported)) => open_dmabuf(&mut **a, addr, len, &exported),
                    Some(Err(status)) => Err(status),
                    None => continue,
                },
            };
            match keys {
                Ok(keys) => region.keys[kind] = Some(keys),
                Err(status) => failed.push(status),
            }
        }
        self.own += usize::from(!region.pool);
        self.map.insert(addr, region);
        Ok(failed)
    }

    /// Whether a range lies in the pool.
    pub fn pooled(&self, addr: u64, len: u64) -> bool {
        let region = self.map.range(..=addr).next_back();
        region.is_some_and(|(&base, r)| {
            r.pool && addr - base <= r.len && len <= r.len - (addr - base)
        })
    }

    /// A region of the application: its length and device.
    pub fn get(&self, addr: u64) -> Result<(u64, u32), Status> {
        match self.map.get(&addr) {
            Some(r) if !r.pool => Ok((r.len, r.device)),
            _ => {
                let text = text!("no region was registered at {addr:#x}");
                Err(Status::new(Code::NotFound, text))
            }
        }
    }

    /// Forgets a region of the application; its length.
    pub fn remove(&mut self, adapters: &mut Adapters, addr: u64) -> Result<u64, Status> {
        self.get(addr)?;
        let Some(region) = self.map.remove(&addr) else { return Ok(0) };
        self.own -= 1;
        for (kind, keys) in region.keys.iter().enumerate() {
            if let (Some(keys), Some(a)) = (keys, adapters[kind].as_mut()) {
                close(&mut **a, keys)?;
            }
        }
        Ok(region.len)
    }

    /// Offers a segment of the pool to every adapter, also after one that fails, and to those that
    /// have it already. After an error it may be offered again.
    pub fn add_segment(&mut self, adapters: &mut Adapters, s: PoolSegment) -> Result<(), Status> {
        let offers = adapters.iter_mut().flatten().map(|adapter| adapter.add_pool(s));
        let taken = offers.fold(Ok(()), Result::and);
        if self.map.get(&s.addr).is_some_and(|r| r.pool) {
            return taken;
        }
        // SAFETY: a pool segment lives as long as its pool, which outlives the adapters.
        let added = unsafe { self.add(adapters, s.addr, s.len, None, true) };
        taken.and(added.map(drop))
    }
}

#[cfg(test)]
pub(super) mod tests;
