//! interim
use crate::{fabric::PoolSegment, status::*};
use std::alloc::*;
/// interim
#[derive(Default)]
pub struct Pool {
    map: std::collections::HashMap<u64, usize>,
}
impl Pool {
    /// interim
    pub fn new() -> Pool {
        Pool::default()
    }
    /// interim
    pub fn alloc(&mut self, n: usize) -> Result<u64, Status> {
        let l = Layout::from_size_align(n.max(1), 64)
            .map_err(|_| Status::new(Code::ResourceExhausted, "too big"))?;
        // SAFETY: not zero
        let p = unsafe { alloc(l) } as u64;
        if p == 0 {
            return Err(Status::new(Code::ResourceExhausted, "no memory"));
        }
        self.map.insert(p, n.max(1));
        Ok(p)
    }
    /// interim
    pub fn free(&mut self, a: u64) -> Result<(), Status> {
        let Some(n) = self.map.remove(&a) else {
            return Err(Status::new(Code::NotFound, format!("{a:#x} was not allocated here")));
        };
        // SAFETY: came from alloc
        unsafe { dealloc(a as *mut u8, Layout::from_size_align(n, 64).expect("checked")) };
        Ok(())
    }
    /// interim
    pub fn take_new_segments(&mut self) -> Vec<PoolSegment> {
        Vec::new()
    }
}
