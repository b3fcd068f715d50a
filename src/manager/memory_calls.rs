//! Memory of the application and of the library, and devices: the calls.

use super::*;

impl Manager {
    /// Registers memory of the application.
    ///
    /// # Safety
    /// The memory stays valid until `mem_unregister`.
    pub unsafe fn mem_register(&self, addr: u64, len: u64, device: u32) -> Result<(), Status> {
        self.call(|core| {
            let ops = core.engine.device_ops(device)?;
            let on = ops.as_deref().map(|ops| (device, ops));
            let w = &mut core.world;
            // What lies in a pool is the manager's own already, whether or not it has been looked at.
            w.see_pools();
            // SAFETY: the caller's promise.
            let failed = unsafe { w.regions.add(&mut w.adapters, addr, len, on, false) }?;
            self.stats.own.registrations.add(1);
            self.stats.own.registered_bytes.add(len);
            for status in failed {
                log::warn(format_args!("memory goes through proxies: {status}"));
            }
            Ok(())
        })
    }

    /// Forgets registered memory. On return nothing of the library touches it any more: transfers
    /// that use it have ended, or end as soon as their callbacks have run.
    pub fn mem_unregister(&self, addr: u64) -> Result<(), Status> {
        let begun = Instant::now();
        // Inside a callback nobody can be waited for who needs this thread.
        let inside = self.inside_callback();
        let mut force = inside;
        while !self.reclaim(addr, force)? {
            force |= begun.elapsed() > RECLAIM;
            self.make_deliveries();
            if !inside {
                self.progress()?;
            } else if begun.elapsed() > RECLAIM {
                let text = text!("a copy is under way in the memory registered at {addr:#x}");
                return Err(Status::new(Code::FailedPrecondition, text));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    /// Ends what uses the memory; true: nothing touches it, and it is forgotten.
    fn reclaim(&self, addr: u64, force: bool) -> Result<bool, Status> {
        self.call(|core| {
            let w = &mut core.world;
            let (len, device) = w.regions.get(addr)?;
            let range = Range { addr, len, device };
            let used = |w: &World| !w.is_delivered(&range, &self.drivers.unclaimed);
            if !core.engine.reclaim(w, &range, force) || device == 0 && used(w) {
                return Ok(false);
            }
            w.regions.remove(&mut w.adapters, addr)?;
            self.stats.own.deregistrations.add(1);
            self.stats.own.registered_bytes.sub(len);
            Ok(true)
        })
    }

    /// The memory is freed, or mapped anew: no registration of it that was kept is used again.
    pub fn mem_invalidate(&self, addr: u64, len: u64) -> Result<(), Status> {
        self.call(|core| {
            let w = &mut core.world;
            w.kept.invalidate(&mut w.adapters, addr, len);
            Ok(())
        })
    }

    /// Memory that is registered and shared with peers on this host, aligned to 64 bytes.
    pub fn mem_alloc(&self, len: usize) -> Result<u64, Status> {
        if len == 0 {
            return Err(Status::invalid("len is 0, at least 1 is allowed"));
        }
        self.call(|core| {
            crate::room::grow(&mut core.world.lent, 1, "blocks of memory")?;
            let addr = core.world.pool_alloc(len as u64)?;
            core.world.lent.insert(addr);
            Ok(addr)
        })
    }

    /// Takes it back.
    pub fn mem_free(&self, addr: u64) -> Result<(), Status> {
        self.call(|core| {
            if !core.world.lent.remove(&addr) {
                let text = text!("no memory of rdma_mem_alloc begins at {addr:#x}");
                return Err(Status::new(Code::NotFound, text));
            }
            core.world.pool_free(addr)
        })
    }

    /// Makes an accelerator's copy functions known; the device's id.
    pub fn register_device(&self, ops: Arc<dyn DeviceOps>) -> Result<u32, Status> {
        self.with_engine(|engine, _| engine.add_device(ops))
    }
}
