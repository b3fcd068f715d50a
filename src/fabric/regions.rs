//! The table of registered memory of a software provider.

use std::collections::HashMap;

use super::{Access, Mr};
use crate::room;
use crate::status::{Code, Status};

/// Why an operation on a region is refused. The numbers travel on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// No region has this key, or it was deregistered in the meantime.
    Key = 1,
    /// The range leaves the region.
    Bounds = 2,
    /// The region does not allow this kind of operation.
    Access = 3,
}

impl Refusal {
    /// The refusal of this wire number.
    pub fn from_u8(n: u8) -> Option<Refusal> {
        [Refusal::Key, Refusal::Bounds, Refusal::Access].into_iter().find(|&r| r as u8 == n)
    }

    /// The status of an operation that `peer` refused.
    pub fn status(self, what: &str, peer: &str, addr: u64, len: u64, rkey: u32) -> Status {
        let why = match self {
            Refusal::Key => "no region has this key, or it was deregistered",
            Refusal::Bounds => "the range is not inside the region of this key",
            Refusal::Access => "the region of this key does not allow it",
        };
        Status::new(
            Code::PermissionDenied,
            text!("{what} of {len} bytes at {addr:#x}, key {rkey:#010x}, at peer '{peer}': {why}"),
        )
    }
}

#[derive(Clone, Copy, Debug)]
struct Region {
    addr: u64,
    len: u64,
    access: Access,
}

/// Registered regions by remote key.
///
/// Keys are random, so that a peer cannot guess the key of memory that was not shown to it.
#[derive(Debug, Default)]
pub struct RegionTable {
    regions: HashMap<u32, Region, foldhash::fast::RandomState>,
    /// Random numbers that no region had yet: drawing many at once saves a system call per region.
    fresh: Vec<u32>,
}

/// Random numbers drawn at once.
const DRAW: usize = 64;

impl RegionTable {
    /// An empty table.
    pub fn new() -> RegionTable {
        RegionTable::default()
    }

    /// Adds a region under a fresh key.
    ///
    /// # Safety
    /// The memory stays valid until `remove` of the key returns.
    pub unsafe fn insert(&mut self, addr: u64, len: u64, access: Access) -> Result<Mr, Status> {
        if addr.checked_add(len).is_none_or(|end| end > usize::MAX as u64) {
            return Err(Status::invalid(text!(
                "region of {len} bytes at {addr:#x} leaves the address space"
            )));
        }
        if addr == 0 && len > 0 {
            return Err(Status::invalid(text!("region of {len} bytes at address 0")));
        }
        room::grow(&mut self.regions, 1, "regions")?;
        loop {
            let rkey = self.draw()?;
            if rkey != 0 && !self.regions.contains_key(&rkey) {
                self.regions.insert(rkey, Region { addr, len, access });
                return Ok(Mr { lkey: 0, rkey });
            }
        }
    }

    fn draw(&mut self) -> Result<u32, Status> {
        if self.fresh.is_empty() {
            room::grow(&mut self.fresh, DRAW, "memory keys")?;
            let mut bytes = [0u8; 4 * DRAW];
            getrandom::fill(&mut bytes).map_err(Status::random)?;
            let (words, _) = bytes.as_chunks::<4>();
            self.fresh.extend(words.iter().map(|w| u32::from_le_bytes(*w)));
        }
        Ok(self.fresh.pop().unwrap_or_default())
    }

    /// Removes a region.
    pub fn remove(&mut self, mr: Mr) -> Result<(), Status> {
        match self.regions.remove(&mr.rkey) {
            Some(_) => Ok(()),
            None => Err(Status::new(
                Code::NotFound,
                text!("no region with key {:#010x} is registered", mr.rkey),
            )),
        }
    }

    /// Whether `len` bytes at `addr` may be used through `rkey` in the way `need`. As on RDMA
    /// hardware, an empty range is always allowed: it touches nothing. But one that names a key is held to it.
    pub fn check(&self, rkey: u32, addr: u64, len: u64, need: Access) -> Result<(), Refusal> {
        if len == 0 && rkey == 0 {
            return Ok(());
        }
        let region = self.regions.get(&rkey).ok_or(Refusal::Key)?;
        if !region.access.contains(need) {
            return Err(Refusal::Access);
        }
        // The offset, not the end, is compared, so nothing can overflow.
        let offset = addr.checked_sub(region.addr).ok_or(Refusal::Bounds)?;
        match offset <= region.len && len <= region.len - offset {
            true => Ok(()),
            false => Err(Refusal::Bounds),
        }
    }

    /// Number of regions.
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(addr: u64, len: u64, access: Access) -> (RegionTable, u32) {
        let mut t = RegionTable::new();
        // SAFETY: the table only compares addresses; nothing here goes through them.
        let mr = unsafe { t.insert(addr, len, access) }.expect("insert");
        (t, mr.rkey)
    }

    #[test]
    fn bounds() {
        let (t, k) = table(0x1000, 0x100, Access::REMOTE_WRITE);
        let w = Access::REMOTE_WRITE;
        assert_eq!(t.check(k, 0x1000, 0x100, w), Ok(()));
        assert_eq!(t.check(k, 0x10ff, 1, w), Ok(()));
        assert_eq!(t.check(k, 0x0fff, 1, w), Err(Refusal::Bounds));
        assert_eq!(t.check(k, 0x1100, 1, w), Err(Refusal::Bounds));
        assert_eq!(t.check(k, 0x1001, 0x100, w), Err(Refusal::Bounds));
        assert_eq!(t.check(k, 0x1001, u64::MAX, w), Err(Refusal::Bounds));
        assert_eq!(t.check(k, u64::MAX, 2, w), Err(Refusal::Bounds));
        assert_eq!(t.check(0, 0, 0, w), Ok(()));
        assert_eq!(t.check(k, 0x1100, 0, w), Ok(()));
        assert_eq!(t.check(k, 0x1101, 0, w), Err(Refusal::Bounds));
        assert_eq!(t.check(k ^ 1, 0x1000, 0, w), Err(Refusal::Key));
    }

    #[test]
    fn keys_and_access() {
        let (mut t, k) = table(0x1000, 0x100, Access::REMOTE_READ);
        assert_eq!(t.check(k, 0x1000, 1, Access::REMOTE_WRITE), Err(Refusal::Access));
        assert_eq!(t.check(0, 0x1000, 1, Access::REMOTE_READ), Err(Refusal::Key));
        assert_eq!(t.check(k ^ 1, 0x1000, 1, Access::REMOTE_READ), Err(Refusal::Key));
        assert!(t.remove(Mr { lkey: 0, rkey: k }).is_ok());
        assert_eq!(t.check(k, 0x1000, 1, Access::REMOTE_READ), Err(Refusal::Key));
        assert_eq!(t.remove(Mr { lkey: 0, rkey: k }).unwrap_err().code, Code::NotFound);
    }

    #[test]
    fn bad_ranges_are_not_registered() {
        let mut t = RegionTable::new();
        // SAFETY: refused, or never accessed.
        unsafe {
            assert!(t.insert(u64::MAX, 2, Access::empty()).is_err());
            assert!(t.insert(0, 1, Access::empty()).is_err());
            assert!(t.insert(u64::MAX, 0, Access::empty()).is_ok());
        }
        assert_eq!(t.len(), 1);
    }
}
