//! The world as the engine and the handshake see it: adapters, channels, memory, clock, and the
//! queue of callbacks.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::{HashMap, HashSet};

use super::clock::Clock;
use super::copies::HeldBack;
use super::doubt::Doubt;
use super::early::Fresh;
use super::endpoints::{Endpoints, Kinds};
use super::lent::{Batch, Lender, Works};
use super::memory::{self, Adapters, Regions};
use super::near::Near;
use super::registrations::{self, Registrations};
use super::segments::{self, SharedPool};
use super::staging::Staging;
use super::sys::{Epoll, Tag};
use crate::bootstrap::Backoff;
use crate::engine::{Buffer, ChanId, Fx, MapError, Origin, Window, Work};
use crate::fabric::moves::{self, Kept};
use crate::fabric::{Access, EpId, Event, Mem, Mr, PostError, ProviderKind, Remote};
use crate::limits::EARLY_BYTES_ALL;
use crate::local_fd::Local;
use crate::memory::pool::Pool;
use crate::name::Name;
use crate::observe::Trace;
use crate::room::{self, Grows};
use crate::status::{Reason, Status};

/// Up to here unregistered memory is copied to a proxy rather than registered for one transfer.
const PROXY_MAX: u64 = 256 * 1024;

/// Shorter content is copied: to keep it where it came in takes as long.
const KEPT_MIN: usize = 2048;

/// An endpoint of some adapter.
pub type EpKey = (ProviderKind, EpId);

/// A channel's way to its adapter.
pub struct Link {
    /// The endpoint.
    pub ep: EpKey,
    /// Its end tells that the peer is gone; not for tcp, whose endpoint tells itself.
    pub alive: Option<Local<OwnedFd>>,
    /// Its peer's device refused something, and the peer was not heard since.
    pub doubt: Doubt,
}

/// How a peer is reached.
#[derive(Default)]
pub struct Route {
    /// Addresses, the best first.
    pub addrs: Vec<SocketAddr>,
    /// The text that was given.
    pub text: String,
    /// A connection is wanted.
    pub wanted: bool,
    /// A dial is under way.
    pub dialing: bool,
    /// When the dial under way began.
    pub dialled: Option<Instant>,
    /// When to dial next.
    pub next_try: Option<Instant>,
    /// The peer introduced itself to a dial, and then the connection broke.
    pub broke: bool,
    /// Pauses between dials.
    pub backoff: Backoff,
    /// Why the present provider was chosen.
    pub reason: String,
    /// One more connection is to be dialled, for a rail of this channel; and its dial is under way.
    pub rail: Option<ChanId>,
    pub dialing_rail: bool,
}

/// See the module's text.
pub struct World {
    /// Opened adapters.
    pub adapters: Adapters,
    /// Channels.
    pub links: HashMap<ChanId, Link>,
    /// Channels by endpoint.
    pub chans: HashMap<EpKey, ChanId>,
    /// Some of both.
    pub near: Near,
    /// How many endpoints each adapter has.
    pub endpoints: Endpoints,
    /// So many channels at most are in doubt.
    pub doubts: usize,
    /// Endpoints that are not channels yet.
    pub fresh: HashMap<EpKey, Fresh>,
    /// Endpoints to be destroyed once no view is held.
    pub dying: Vec<EpKey>,
    /// Peers by engine index.
    pub routes: HashMap<u32, Route>,
    /// Some route has a next try.
    pub tries: bool,
    /// Registered memory.
    pub regions: Regions,
    /// The endpoint of the message that was heard last.
    pub hearing: EpKey,
    /// Registrations that are kept for the next transfer.
    pub kept: Registrations,
    /// Memory of the library.
    pub pool: Pool,
    /// A pool that the application brought.
    pub shared: Option<SharedPool>,
    /// Blocks of the library's own pool that the application asked for, and frees.
    pub lent: HashSet<u64>,
    /// Blocks to be freed once the endpoints that may still touch them are destroyed, and the copies
    /// that do have ended.
    pub parked: Vec<Buffer>,
    /// Buffers that the engine has, each of which finds room in `parked`.
    pub buffers: usize,
    /// Some of these that staged content, for the next.
    pub staging: Staging,
    /// Its version whose segments are known to all adapters.
    pub segments: usize,
    /// Callbacks to run, and content to be put in its place before.
    pub batch: Box<Batch>,
    /// Copies and checksums of host memory that the engine asked for.
    pub jobs: VecDeque<Work>,
    /// So many callbacks, and jobs, find room in any queue.
    pub room: usize,
    /// Lends queues to those that run callbacks.
    pub lender: Lender,
    /// Callbacks that wait for copies.
    pub held_back: HeldBack,
    /// Callbacks that the calling thread runs before its call returns.
    pub inline: Box<Batch>,
    /// Inline callbacks are collected for the call in progress.
    pub in_call: bool,
    /// Some post found no room: try again after the next poll.
    pub full: bool,
    /// Adapters that were posted to since the last flush.
    pub posted_to: Kinds,
    /// Adapters that may have copies to be made: see [`World::has_moves`].
    pub moving: Kinds,
    /// The clock; read once per turn and call.
    pub clock: Clock,
    /// This worker's name.
    pub name: String,
    /// Waits for everything.
    pub epoll: Arc<Epoll>,
    /// The manager's trace.
    pub trace: Arc<Trace>,
}

impl World {
    #[inline]
    fn adapter(&mut self, ch: ChanId) -> Option<(&mut dyn crate::fabric::Adapter, EpId)> {
        let (kind, ep) = match self.near.endpoint(ch) {
            Some(key) => key,
            None => self.find_endpoint(ch)?,
        };
        self.posted_to.add(kind);
        let adapter = self.adapters[kind as usize].as_mut()?;
        Some((adapter.as_mut(), ep))
    }

    /// An endpoint's channel, if it is one already.
    #[inline]
    pub fn channel_of(&mut self, ep: EpKey) -> Option<ChanId> {
        self.near.channel(ep).or_else(|| self.find_channel(ep))
    }

    #[cold]
    fn find_endpoint(&mut self, ch: ChanId) -> Option<EpKey> {
        let key = self.links.get(&ch)?.ep;
        self.near.learn(ch, key);
        Some(key)
    }

    #[cold]
    fn find_channel(&mut self, ep: EpKey) -> Option<ChanId> {
        let &ch = self.chans.get(&ep)?;
        self.near.learn(ch, ep);
        Some(ch)
    }

    /// Nothing is posted on a channel in doubt: it waits, as for room in a queue.
    #[inline]
    fn in_doubt(&self, ch: ChanId) -> bool {
        self.doubts > 0 && self.is_doubted(ch)
    }

    #[cold]
    fn is_doubted(&self, ch: ChanId) -> bool {
        self.links.get(&ch).is_some_and(|link| link.doubt.until().is_some())
    }

    fn gone<T>() -> Result<T, PostError> {
        Err(PostError::Failed(Status::gone("the connection ended")))
    }

    /// A post failed. One that finds the peer gone waits: the endpoint's end is on its way, behind what the peer sent before it left.
    #[cold]
    fn posted(&mut self, result: Result<(), PostError>) -> Result<(), PostError> {
        let result = match result {
            Err(PostError::Failed(s)) if s.reason == Reason::PeerGone => Err(PostError::QueueFull),
            other => other,
        };
        self.full |= matches!(result, Err(PostError::QueueFull));
        result
    }

    /// Makes room for so many in all queues.
    #[cold]
    fn make_room(&mut self, count: usize) -> bool {
        let fits =
            self.batch.works.holds(count) && self.jobs.fits(count) && self.held_back.fits(count);
        if fits {
            self.room = count;
        }
        fits
    }

    /// Queues what is neither the end of a send nor of a receive, or has to wait.
    #[inline(never)]
    fn run_other(&mut self, work: Work) {
        if matches!(work, Work::HostCopy { .. } | Work::HostHash { .. } | Work::Spread { .. }) {
            self.jobs.push_back(work);
        } else if World::must_wait(&work) {
            self.held_back.work.push_back(work);
        } else if matches!(work, Work::Alloc { inline: true, .. }) {
            self.queue_of(true).push(work);
        } else {
            self.batch.works.push(work);
        }
    }

    /// Whether callbacks are to be run.
    #[inline]
    pub fn has_work(&self) -> bool {
        !self.batch.works.is_empty()
    }

    /// Where a callback is queued that may run `inline`, which is faster and no more: there is room in the other queue in
    /// any case.
    #[inline]
    fn queue_of(&mut self, inline: bool) -> &mut Works {
        let own = &mut self.inline.works;
        match inline && self.in_call && own.has_place() {
            true => own,
            false => &mut self.batch.works,
        }
    }

    /// Reads the clock.
    pub fn tick(&mut self) {
        self.clock.read();
    }

    /// Whether there are endpoints to bury, callbacks to let go of or dials to begin.
    #[inline(always)]
    pub fn is_unfinished(&self) -> bool {
        self.tries
            || !self.dying.is_empty()
            || !self.parked.is_empty()
            || !self.held_back.is_empty()
    }

    /// Rings the doorbells.
    pub fn flush(&mut self) {
        for kind in std::mem::take(&mut self.posted_to) {
            if let Some(adapter) = self.adapters[kind as usize].as_mut() {
                let moves = adapter.flush();
                if moves {
                    self.moving.add(kind);
                }
            }
        }
    }

    /// Destroys the endpoints that ended. Only when no view into their memory is held.
    pub fn bury(&mut self) {
        if self.dying.is_empty() && self.parked.is_empty() {
            return;
        }
        while let Some((kind, ep)) = self.dying.pop() {
            self.endpoints.remove(kind);
            if let Some(adapter) = self.adapters[kind as usize].as_mut() {
                adapter.flush();
                adapter.destroy(ep);
                self.moving.add(kind);
            }
        }
        let mut at = 0;
        while let Some(buffer) = self.parked.get(at) {
            if self.is_touched(buffer) {
                at += 1;
                continue;
            }
            let buffer = self.parked.swap_remove(at);
            self.buffers += 1;
            self.free(buffer);
        }
    }

    /// Memory of the library, of the pool.
    pub fn pool_alloc(&mut self, len: u64) -> Result<u64, Status> {
        let addr = self.pool.alloc(usize::try_from(len).unwrap_or(usize::MAX))?;
        self.share_segments();
        Ok(addr as u64)
    }

    /// Content of the message that is being heard, if its adapter keeps that until it is in its place.
    #[inline(never)]
    fn keep_content(&mut self, content: &[u8]) -> Option<Kept> {
        let (kind, ep) = self.hearing;
        self.adapters[kind as usize].as_mut()?.keep(ep, content)
    }

    /// A window to memory that nobody registered, by a registration that is kept.
    ///
    /// # Safety
    /// If registrations are kept, the memory stays valid until it is invalidated.
    unsafe fn open_kept(
        &mut self,
        kind: usize,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Option<Window> {
        if !self.kept.is_on() || len < registrations::SHORTEST {
            return None;
        }
        let found = self.kept.find(kind, addr, len, access);
        // SAFETY: by this function's contract.
        found.or_else(|| unsafe { self.kept.add(&mut self.adapters, kind, (addr, len), access) })
    }

    /// Gives it back.
    pub fn pool_free(&mut self, addr: u64) -> Result<(), Status> {
        self.pool.free(addr as *mut u8)?;
        self.share_segments();
        Ok(())
    }

    /// Gives memory of the pool back to the system that was not used for a while.
    pub fn trim_pool(&mut self) {
        self.pool.trim(Instant::now());
        self.share_segments();
        if let Some(shared) = &mut self.shared {
            shared.trim(&mut self.regions, &mut self.adapters);
        }
    }

    /// How long until `trim_pool` has something to do.
    pub fn trim_due(&self, now: Instant) -> Option<Duration> {
        let shared = self.shared.as_ref().and_then(|shared| shared.trim_due(now));
        self.pool.trim_due(now).into_iter().chain(shared).min()
    }

    /// Makes new segments of the pool known to the adapters. One that an adapter could not take is offered
    /// again at the next allocation.
    fn share_segments(&mut self) {
        let version = self.pool.version();
        if version != self.segments
            && segments::tell(&self.pool, &mut self.regions, &mut self.adapters)
        {
            self.segments = version;
        }
    }

    /// The same of the pool that the application brought, before memory is used that may lie in it.
    #[inline]
    fn see_shared(&mut self) {
        if let Some(shared) = &mut self.shared {
            shared.see(&mut self.regions, &mut self.adapters);
        }
    }

    /// All that one more endpoint will need here: nothing that follows lacks it.
    pub fn room_for_endpoint(&mut self) -> bool {
        let fresh = self.fresh.len() + 1;
        let ends = self.links.len() + fresh;
        self.fresh.fits(1)
            && self.links.fits(fresh)
            && self.chans.fits(fresh)
            && self.dying.fits(ends)
            && self.routes.fits(1)
    }

    /// Keeps an event of an endpoint that is not a channel yet.
    pub fn keep_early(&mut self, key: EpKey, event: Event) {
        // Handshakes are few: their number is bounded.
        let used: usize = self.fresh.values().map(|f| f.bytes).sum();
        if let Some(fresh) = self.fresh.get_mut(&key) {
            fresh.keep(event, EARLY_BYTES_ALL.saturating_sub(used));
        }
    }
}

impl Fx for World {
    fn now(&self) -> u64 {
        self.clock.now()
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
        let Some(&Link { ep: (kind, ep), .. }) = self.links.get(&ch) else {
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
        match unsafe { memory::open(adapter.as_mut(), addr, len, access) } {
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

    fn registered(&self, ch: ChanId, addr: u64, len: u64) -> bool {
        let kind = self.links.get(&ch).map(|link| link.ep.0 as usize);
        kind.is_some_and(|kind| self.regions.find(kind, addr, len, 0).is_some())
    }

    fn pin(&mut self, ch: ChanId, addr: u64, len: u64, access: Access) -> Result<Window, Status> {
        let gone = || Status::gone("the connection ended");
        self.see_shared();
        let link = self.links.get(&ch).ok_or_else(gone)?;
        let kind = link.ep.0 as usize;
        let adapter = self.adapters[kind].as_mut().ok_or_else(gone)?;
        if !adapter.caps().windows
            && let Some(keys) = self.regions.find(kind, addr, len, 0)
        {
            return Ok(Window { keys, origin: Origin::Registered });
        }
        // SAFETY: as of `open`.
        let keys = unsafe { memory::open(adapter.as_mut(), addr, len, access) }?;
        keys.iter().for_each(|mr| adapter.grant(link.ep.1, mr));
        Ok(Window { keys, origin: Origin::Transfer })
    }

    fn open_device(&mut self, ch: ChanId, addr: u64, len: u64, device: u32) -> Option<Window> {
        let kind = self.links.get(&ch)?.ep.0 as usize;
        let keys = self.regions.find(kind, addr, len, device)?;
        Some(Window { keys, origin: Origin::Registered })
    }

    fn close(&mut self, ch: ChanId, window: Window) {
        match window.origin {
            Origin::Registered => return,
            Origin::Cached(of) => return self.kept.release(&mut self.adapters, of),
            Origin::Transfer => {}
        }
        let Some(link) = self.links.get(&ch) else { return };
        if let Some(adapter) = self.adapters[link.ep.0 as usize].as_mut()
            && let Err(status) = memory::close(adapter.as_mut(), &window.keys)
        {
            crate::log::error(format_args!("closing a memory window: {status}"));
        }
    }

    fn hang_up(&mut self, ch: ChanId) {
        let Some(link) = self.links.get(&ch) else { return };
        if let Some(adapter) = self.adapters[link.ep.0 as usize].as_mut() {
            adapter.hang_up(link.ep.1);
        }
    }

    fn end_channel(&mut self, ch: ChanId) {
        let Some(link) = self.links.remove(&ch) else { return };
        if let Some(fd) = &link.alive {
            self.epoll.remove(fd.as_raw_fd());
        }
        self.chans.remove(&link.ep);
        self.near.forget(ch, link.ep);
        self.dying.push(link.ep);
    }

    fn progress_mark(&self, ch: ChanId) -> u64 {
        let Some(link) = self.links.get(&ch) else { return 0 };
        let adapter = self.adapters[link.ep.0 as usize].as_ref();
        adapter.map_or(0, |a| a.progress_mark(link.ep.1))
    }

    fn reads_sources(&self, ch: ChanId) -> bool {
        let Some(link) = self.links.get(&ch) else { return true };
        let adapter = self.adapters[link.ep.0 as usize].as_ref();
        adapter.is_none_or(|a| a.reads_sources(link.ep.1))
    }

    fn is_unreachable(&self, ch: ChanId) -> bool {
        let Some(link) = self.links.get(&ch) else { return false };
        let adapter = self.adapters[link.ep.0 as usize].as_ref();
        adapter.is_some_and(|a| a.is_unreachable(link.ep.1))
    }

    fn on_device(&self, ch: ChanId, mr: Mr, device: u8) -> Option<Mr> {
        let kind = self.links.get(&ch)?.ep.0;
        self.adapters[kind as usize].as_ref()?.on_device(mr, device)
    }

    fn tracing(&self) -> bool {
        self.trace.enabled()
    }

    fn connect(&mut self, peer: u32, _name: &str) {
        // Due at once: the interpolated clock may be ahead of the one that dials are timed by.
        let now = self.clock.start();
        let route = self.routes.entry(peer).or_default();
        route.wanted = true;
        if !route.dialing && route.next_try.is_none() {
            route.next_try = Some(now);
            self.tries = true;
        }
    }

    fn connect_rail(&mut self, peer: u32, _name: &str, main: ChanId) {
        if let Some(route) = self.routes.get_mut(&peer) {
            route.rail = Some(main);
            self.tries = true;
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

    fn stage(&mut self, len: u64, alone: bool, here: bool) -> Option<Buffer> {
        self.take_staging(len, alone, here)
    }

    fn unstage(&mut self, buffer: Buffer) {
        self.keep_staging(buffer);
    }

    fn copy_in(&mut self, to: &Buffer, bytes: &[u8]) {
        let len = to.len.min(bytes.len() as u64);
        // SAFETY: a buffer is a block of the pool until it is freed, and `bytes` is a live slice.
        unsafe { super::sys::copy(to.addr, bytes.as_ptr() as u64, len) };
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

    #[inline]
    fn fits(&mut self, work: usize) -> bool {
        let works = &self.batch.works;
        let queued = works.len() + works.ended().len();
        let count = work + queued + self.jobs.len() + self.held_back.len();
        // And for a route to the peer.
        (count <= self.room || self.make_room(count)) && self.routes.fits(1)
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
            _ => return self.run_other(work),
        };
        match moves::touched(memory.0, memory.1) {
            true => self.run_other(work),
            false => self.queue_of(inline).push(work),
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

/// Marks a descriptor of a channel in the epoll set.
pub fn alive_tag(ch: ChanId) -> Tag {
    Tag::Alive(ch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_not_used_again_before_the_endpoint_that_may_touch_it_is_gone() {
        use crate::config::{Config, Progress};
        let config = Config {
            name: "a".into(),
            provider: Some(ProviderKind::Loopback),
            progress: Progress::Manual,
            ..Config::default()
        };
        let manager = crate::manager::Manager::new(config).unwrap();
        let world = &mut manager.core.lock().world;
        let adapter = world.adapters[ProviderKind::Loopback as usize].as_mut().unwrap();
        let ep = adapter.create("b").unwrap();
        let first = world.alloc(1000).unwrap();
        let addr = first.addr;
        world.dying.push((ProviderKind::Loopback, ep));
        world.free(first);
        assert_ne!(world.alloc(1000).unwrap().addr, addr);
        world.bury();
        assert_eq!(world.alloc(1000).unwrap().addr, addr);
    }
}
