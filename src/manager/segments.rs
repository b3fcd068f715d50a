//! Pools, and which of their segments the adapters know.

use std::time::{Duration, Instant};

use super::memory::{Adapters, Regions};
use crate::counted::Counted;
use crate::memory::pool::Pool;

/// Makes new segments of a pool known to the adapters; false if one of them could not take one (for want of
/// descriptors, say). It may be offered again; until then its content travels as other memory does.
pub fn tell(pool: &Pool, regions: &mut Regions, adapters: &mut Adapters) -> bool {
    let mut all = true;
    for segment in pool.segments() {
        if let Err(status) = regions.add_segment(adapters, segment) {
            crate::log::debug(format_args!("pool segment {}: {status}", segment.id));
            all = false;
        }
    }
    all
}

/// A pool of the application, which other managers may have as well: nobody here hears of an allocation.
pub struct SharedPool {
    pool: Counted<Pool>,
    /// Its version whose segments the adapters were told of.
    version: usize,
    /// They took all of them.
    complete: bool,
}

impl SharedPool {
    /// `pinned`: a device holds on to the pages of registered segments.
    pub fn new(pool: Counted<Pool>, pinned: bool) -> SharedPool {
        if pinned {
            pool.keep_memory();
        }
        SharedPool { pool, version: 0, complete: true }
    }

    /// Makes new segments known. Called before memory is opened or read that may lie in one: the segment of a block is
    /// there before the block, so it is seen here.
    #[inline]
    pub fn see(&mut self, regions: &mut Regions, adapters: &mut Adapters) {
        let version = self.pool.version();
        if version != self.version {
            self.version = version;
            self.complete = tell(&self.pool, regions, adapters);
        }
    }

    /// How long until `trim` has something to do.
    pub fn trim_due(&self, now: Instant) -> Option<Duration> {
        self.pool.trim_due(now)
    }

    /// Gives memory back that was not used for a while, and offers again what could not be taken.
    pub fn trim(&mut self, regions: &mut Regions, adapters: &mut Adapters) {
        self.pool.trim(Instant::now());
        if !self.complete {
            self.complete = tell(&self.pool, regions, adapters);
        }
        self.see(regions, adapters);
    }
}
