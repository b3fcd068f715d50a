//! What the engine does, on real adapters.

use super::*;
use crate::engine::front::message::{Active, ActiveFn, MessageEnd};
use crate::fabric::{HEAD_ROOM, SHORT_HEAD};
use crate::trials::Trial;

impl Fx for World {
    fn now(&self) -> u64 {
        self.clock.now()
    }

    #[inline]
    fn lately(&self) -> u64 {
        self.clock.lately()
    }

    #[inline]
    fn send(&mut self, ch: ChanId, parts: &[&[u8]]) -> Result<(), PostError> {
        if self.in_doubt(ch) {
            return self.posted(Err(PostError::QueueFull));
        }
        let Some((adapter, ep)) = self.adapter(ch) else { return Self::gone() };
        match adapter.send(ep, parts) {
            Ok(()) => Ok(()),
            failed => self.posted(failed),
        }
    }

    #[inline]
    fn send_short(
        &mut self,
        ch: ChanId,
        head: &[u8; SHORT_HEAD],
        content: &[u8],
    ) -> Result<(), PostError> {
        if self.in_doubt(ch) {
            return self.posted(Err(PostError::QueueFull));
        }
        let Some((adapter, ep)) = self.adapter(ch) else { return Self::gone() };
        match adapter.send_short(ep, head, content) {
            Ok(()) => Ok(()),
            failed => self.posted(failed),
        }
    }

    #[inline]
    fn send_head(
        &mut self,
        ch: ChanId,
        head: &[u8; HEAD_ROOM],
        len: usize,
        content: &[u8],
    ) -> Result<(), PostError> {
        if self.in_doubt(ch) {
            return self.posted(Err(PostError::QueueFull));
        }
        let Some((adapter, ep)) = self.adapter(ch) else { return Self::gone() };
        match adapter.send_head(ep, head, len, content) {
            Ok(()) => Ok(()),
            failed => self.posted(failed),
        }
    }

    fn write(
        &mut self,
        ch: ChanId,
        wr: u64,
        local: Mem,
        remote: Remote,
        imm: Option<u32>,
    ) -> Result<(), PostError> {
        if self.in_doubt(ch) {
            return self.posted(Err(PostError::QueueFull));
        }
        self.see_shared();
        let Some((adapter, ep)) = self.adapter(ch) else { return Self::gone() };
        let result = adapter.write(ep, wr, local, remote, imm);
        self.posted(result)
    }

    fn write_copied(
        &mut self,
        ch: ChanId,
        wr: u64,
        content: &[u8],
        remote: Remote,
        imm: Option<u32>,
    ) -> Result<(), PostError> {
        if self.in_doubt(ch) {
            return Err(PostError::QueueFull);
        }
        let Some((adapter, ep)) = self.adapter(ch) else { return Self::gone() };
        // Where it is not taken so, it is written.
        adapter.write_copied(ep, wr, content, remote, imm)
    }

    fn read(&mut self, ch: ChanId, wr: u64, local: Mem, remote: Remote) -> Result<(), PostError> {
        if self.in_doubt(ch) {
            return self.posted(Err(PostError::QueueFull));
        }
        let Some((adapter, ep)) = self.adapter(ch) else { return Self::gone() };
        let result = adapter.read(ep, wr, local, remote);
        self.posted(result)
    }

    fn open(
        &mut self,
        ch: ChanId,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Window, MapError> {
        let Some(&Connection { ep: (kind, ep), .. }) = self.connections.get(ch) else {
            return Err(MapError::Failed(Status::gone("the connection ended")));
        };
        self.see_shared();
        let kind = kind as usize;
        let windows = self.adapters[kind].as_ref().is_some_and(|adapter| adapter.caps().windows);
        if !windows {
            if let Some(keys) = self.regions.find(kind, addr, len, 0) {
                return Ok(Window { keys, origin: Origin::Registered });
            }
            // SAFETY: who has registrations kept says when the memory goes.
            if let Some(window) = unsafe { self.open_kept(kind, addr, len, access) } {
                return Ok(window);
            }
            if len <= PROXY_MAX {
                return Err(MapError::NeedProxy);
            }
        }
        let Some(adapter) = self.adapters[kind].as_mut() else {
            return Err(MapError::Failed(Status::internal("the adapter is closed")));
        };
        // SAFETY: the engine closes the window before the memory's owner gets it back.
        match unsafe { memory::open(&mut **adapter, addr, len, access) } {
            Ok(keys) => {
                keys.iter().for_each(|mr| adapter.grant(ep, mr));
                Ok(Window { keys, origin: Origin::Transfer })
            }
            Err(_) if !windows => Err(MapError::NeedProxy),
            Err(status) => Err(MapError::Failed(status)),
        }
    }

    fn pooled(&self, addr: u64, len: u64) -> bool {
        self.regions.pooled(addr, len)
    }

    fn is_half_free(&mut self, ch: ChanId) -> bool {
        self.adapter(ch).is_some_and(|(adapter, ep)| adapter.is_half_free(ep))
    }

    fn registered(&self, ch: ChanId, addr: u64, len: u64) -> bool {
        let kind = self.connections.get(ch).map(|c| c.ep.0 as usize);
        kind.is_some_and(|kind| self.regions.find(kind, addr, len, 0).is_some())
    }

    fn pin(&mut self, ch: ChanId, addr: u64, len: u64, access: Access) -> Result<Window, Status> {
        let gone = || Status::gone("the connection ended");
        self.see_shared();
        let connection = self.connections.get(ch).ok_or_else(gone)?;
        let kind = connection.ep.0 as usize;
        let adapter = self.adapters[kind].as_mut().ok_or_else(gone)?;
        if !adapter.caps().windows
            && let Some(keys) = self.regions.find(kind, addr, len, 0)
        {
            return Ok(Window { keys, origin: Origin::Registered });
        }
        // SAFETY: as of `open`.
        let keys = unsafe { memory::open(&mut **adapter, addr, len, access) }?;
        keys.iter().for_each(|mr| adapter.grant(connection.ep.1, mr));
        Ok(Window { keys, origin: Origin::Transfer })
    }

    fn open_device(&mut self, ch: ChanId, addr: u64, len: u64, device: u32) -> Option<Window> {
        let kind = self.connections.get(ch)?.ep.0 as usize;
        let keys = self.regions.find(kind, addr, len, device)?;
        Some(Window { keys, origin: Origin::Registered })
    }

    fn close(&mut self, ch: ChanId, window: Window) {
        match window.origin {
            Origin::Registered => return,
            Origin::Cached(of) => return self.kept.release(&mut self.adapters, of),
            Origin::Transfer => {}
        }
        let Some(connection) = self.connections.get(ch) else { return };
        if let Some(adapter) = self.adapters[connection.ep.0 as usize].as_mut()
            && let Err(status) = memory::close(&mut **adapter, &window.keys)
        {
            crate::log::error(format_args!("closing a memory window: {status}"));
        }
    }

    fn hang_up(&mut self, ch: ChanId) {
        let Some(connection) = self.connections.get(ch) else { return };
        if let Some(adapter) = self.adapters[connection.ep.0 as usize].as_mut() {
            adapter.hang_up(connection.ep.1);
        }
    }

    fn end_channel(&mut self, ch: ChanId) {
        let Some(connection) = self.connections.end(ch) else { return };
        if let Some(fd) = &connection.alive {
            self.epoll.remove(fd.as_raw_fd());
        }
    }

    fn sign_of_life(&self, ch: ChanId) -> u64 {
        let Some(connection) = self.connections.get(ch) else { return 0 };
        let adapter = self.adapters[connection.ep.0 as usize].as_ref();
        adapter.map_or(0, |a| a.sign_of_life(connection.ep.1))
    }

    fn reads_sources(&self, ch: ChanId) -> bool {
        let Some(connection) = self.connections.get(ch) else { return true };
        let adapter = self.adapters[connection.ep.0 as usize].as_ref();
        adapter.is_none_or(|a| a.reads_sources(connection.ep.1))
    }

    fn is_unreachable(&self, ch: ChanId) -> bool {
        let Some(connection) = self.connections.get(ch) else { return false };
        let adapter = self.adapters[connection.ep.0 as usize].as_ref();
        adapter.is_some_and(|a| a.is_unreachable(connection.ep.1))
    }

    fn on_device(&self, ch: ChanId, mr: Mr, device: u8) -> Option<Mr> {
        let kind = self.connections.get(ch)?.ep.0;
        self.adapters[kind as usize].as_ref()?.on_device(mr, device)
    }

    fn tracing(&self) -> bool {
        self.trace.enabled()
    }

    fn connect(&mut self, peer: u32, _name: &str) {
        // Due at once: the interpolated clock may be ahead of the one that dials are timed by.
        let now = self.clock.start();
        let route = self.routes.enter(peer);
        (route.wanted, route.refused) = (true, false);
        if !route.dialing && (route.next_try.is_none() || std::mem::take(&mut route.left)) {
            route.next_try = Some(now);
            self.routes.try_at(now);
        }
    }

    fn connect_rail(&mut self, peer: u32, _name: &str, main: ChanId) {
        if let Some(route) = self.routes.get_mut(peer) {
            route.rail = Some(main);
            self.routes.try_at(self.clock.start());
        }
    }

    fn alloc(&mut self, len: u64) -> Result<Buffer, Status> {
        room::grow(&mut self.parked, self.buffers + 1, "buffers")?;
        let addr = self.pool_alloc(len)?;
        self.buffers += 1;
        Ok(Buffer { addr, len })
    }

    fn free(&mut self, buffer: Buffer) {
        self.buffers = self.buffers.saturating_sub(1);
        if self.is_touched(&buffer) {
            return self.parked.push(buffer);
        }
        if let Err(status) = self.pool_free(buffer.addr) {
            crate::log::error(format_args!("freeing library memory: {status}"));
        }
    }

    fn stage(&mut self, len: u64, alone: bool, here: bool) -> Stage {
        self.take_staging(len, alone, here)
    }

    fn moved(&mut self, trial: Trial, len: u64) {
        self.staging.moved(trial, len, self.clock.now());
    }

    fn unstage(&mut self, buffer: Buffer) {
        self.keep_staging(buffer);
    }

    fn copy_in(&mut self, to: &Buffer, bytes: &[u8]) {
        let len = to.len.min(bytes.len() as u64);
        // SAFETY: a buffer is a block of the pool until it is freed, and `bytes` is a live slice.
        unsafe { crate::manager::sys::copy(to.addr, bytes.as_ptr() as u64, len) };
    }

    unsafe fn bytes<'a>(&self, of: &Buffer) -> &'a [u8] {
        if of.len == 0 {
            return &[];
        }
        // SAFETY: a buffer is a block of the pool; the rest by this function's contract.
        unsafe { std::slice::from_raw_parts(of.addr as *const u8, of.len as usize) }
    }

    #[inline(always)]
    unsafe fn deliver(&mut self, dst: u64, content: &[u8]) -> Result<(), Status> {
        if content.len() >= KEPT_MIN
            && let Some(kept) = self.keep_content(content)
        {
            // SAFETY: by this function's contract, which is the same.
            return unsafe { self.batch.deliveries.add_kept(dst, content, kept) };
        }
        // SAFETY: as above.
        unsafe { self.batch.deliveries.add(dst, content) }
    }

    unsafe fn deliver_left(&mut self, dst: u64, at: u64, len: usize) -> Result<(), Status> {
        let kept = self.keep_left()?;
        // SAFETY: by this function's contract.
        unsafe { self.batch.deliveries.add_left(dst, (at, len as u64), kept) }
    }

    unsafe fn deliver_part(&mut self, dst: u64, content: &[u8]) -> Result<(), Status> {
        self.batch.deliveries.has_part();
        // SAFETY: by this function's contract: the end is held back while a copy of it runs.
        unsafe { self.deliver(dst, content) }
    }

    #[inline]
    fn hand(
        &mut self,
        handler: &ActiveFn,
        end: MessageEnd,
        user: &[u8],
        content: &[u8],
    ) -> Result<(), Status> {
        let keeps = content.len() >= KEPT_MIN && Active::is_aligned(content);
        let kept = if keeps { self.keep_content(content) } else { None };
        self.batch.works.push_active(handler, end, (user, content), kept)
    }

    unsafe fn hand_left(
        &mut self,
        handler: &ActiveFn,
        end: MessageEnd,
        header: (u64, usize),
        place: (u64, usize),
    ) -> Result<(), Status> {
        let kept = self.keep_left()?;
        // SAFETY: it is kept, and by this function's contract.
        unsafe { self.batch.works.push_active_left(handler, end, header, place, kept) }
    }

    #[inline]
    fn copies_touch(&self, (addr, len): (u64, u64)) -> bool {
        moves::touched(addr, len)
    }

    #[inline]
    fn fits(&mut self, work: usize) -> bool {
        let works = &self.batch.works;
        let queued = works.len() + works.ended().len();
        let count = work + queued + self.jobs.len() + self.held_back.len();
        // And for a route to the peer.
        (count <= self.room || self.make_room(count)) && self.routes.has_room()
    }

    #[inline]
    fn name(&mut self, name: &Name, inline: bool) -> Name {
        self.queue_of(inline).spare_name(name).unwrap_or_else(|| name.clone())
    }

    // Work is long: it is made where it will lie.
    #[inline(always)]
    fn run(&mut self, work: Work) {
        let (memory, inline) = match &work {
            Work::RecvDone { memory, .. } => (*memory, false),
            Work::SendDone { memory, inline, .. } => (*memory, *inline),
            Work::MessageDone { memory, .. } => (*memory, false),
            _ => return self.run_other(work),
        };
        match moves::touched(memory.0, memory.1) {
            true => self.run_other(work),
            false => self.queue_of(inline).push(work),
        }
    }

    #[inline(always)]
    fn run_end(&mut self, memory: (u64, u64), inline: bool, make: &mut impl FnMut() -> Work) {
        let touched = moves::touched(memory.0, memory.1);
        let works = self.queue_of(inline && !touched);
        // At one place alone, so that the compiler makes it there.
        works.push_with(make);
        if touched && let Some(work) = works.pop_last() {
            self.run_other(work);
        }
    }

    #[inline(always)]
    fn ended(&mut self, op: u32, memory: (u64, u64)) {
        match moves::touched(memory.0, memory.1) {
            true => self.run_other(Work::MessageEnded { op, memory }),
            false => self.batch.works.push_ended(op),
        }
    }
}
