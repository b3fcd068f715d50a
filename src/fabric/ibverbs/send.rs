//! Buffers in which SENDs wait for the device.

use std::sync::Arc;

use crate::status::Status;

use super::mr::{Pd, Slab};
use super::recv::BUFFER;

const PER_SLAB: usize = 32;

/// The send buffers of an adapter. Grows on demand; each endpoint takes a bounded number.
pub(super) struct SendPool {
    slabs: Vec<Slab>,
    free: Vec<u32>,
    pd: Arc<Pd>,
}

impl SendPool {
    /// A pool with its first buffers.
    pub fn new(pd: &Arc<Pd>) -> Result<SendPool, Status> {
        let mut pool = SendPool { slabs: Vec::new(), free: Vec::new(), pd: pd.clone() };
        pool.grow()?;
        Ok(pool)
    }

    fn grow(&mut self) -> Result<(), Status> {
        let slab = Slab::new(&self.pd, PER_SLAB * BUFFER)?;
        let first = (self.slabs.len() * PER_SLAB) as u32;
        self.slabs.push(slab);
        self.free.extend((first..first + PER_SLAB as u32).rev());
        Ok(())
    }

    /// Copies `parts`, together at most a buffer long, into a buffer: its number.
    pub fn fill(&mut self, parts: &[&[u8]]) -> Result<u32, Status> {
        if self.free.is_empty() {
            self.grow()?;
        }
        let index = self.free.pop().ok_or_else(|| Status::internal("no send buffer"))?;
        let mut offset = 0;
        for p in parts {
            assert!(p.len() <= BUFFER - offset);
            // SAFETY: a free buffer of BUFFER bytes, of which `offset` are used.
            unsafe {
                crate::few::copy(p.as_ptr(), self.address(index).add(offset), p.len());
            }
            offset += p.len();
        }
        Ok(index)
    }

    /// Takes a buffer back.
    pub fn put(&mut self, index: u32) {
        self.free.push(index);
    }
    /// Where buffer `index` is.
    pub fn address(&self, index: u32) -> *mut u8 {
        self.slabs[index as usize / PER_SLAB].at(index as usize % PER_SLAB * BUFFER)
    }
    /// Key of buffer `index`.
    pub fn lkey(&self, index: u32) -> u32 {
        self.slabs[index as usize / PER_SLAB].lkey()
    }
}
