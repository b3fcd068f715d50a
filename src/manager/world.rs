//! The world as the engine and the handshake see it: adapters, channels, memory, clock, and the
//! queue of callbacks.

mod fx;

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::HashSet;

use super::clock::Clock;
use super::connections::Connections;
pub use super::connections::{Connection, EpKey};
use super::copies::HeldBack;
use super::endpoints::Kinds;
use super::lent::{Batch, Lender, Works};
use super::memory::{self, Adapters, Regions};
use super::registrations::{self, Registrations};
pub use super::routes::{Route, Routes};
use super::segments::{self, SharedPool};
use super::staging::Staging;
use super::sys::{Epoll, Tag};
use crate::engine::{Buffer, ChanId, Fx, MapError, Origin, Stage, Window, Work};
use crate::fabric::moves::{self, KeepAlive};
use crate::fabric::{Access, EpId, Follows, Mem, Mr, PostError, ProviderKind, Remote};
use crate::memory::pool::Pool;
use crate::name::Name;
use crate::observe::Trace;
use crate::room::{self, Grows};
use crate::status::{Reason, Status};

/// Up to here unregistered memory is copied to a proxy rather than registered for one transfer.
const PROXY_MAX: u64 = 256 * 1024;

/// Shorter content is copied: to keep it where it came in takes as long.
const KEPT_MIN: usize = 2048;

/// What the engine and the handshake act on: adapters, channels, memory, clock, callbacks.
pub struct World {
    /// Opened adapters.
    pub adapters: Adapters,
    /// Endpoints, and which channel has which.
    pub connections: Connections,
    /// How each peer is reached.
    pub routes: Routes,
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
    pub staging: Box<Staging>,
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
    /// What follows what the call posts.
    pub follows: Follows,
    /// An adapter may keep something for later.
    pub keeps: bool,
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
    fn adapter(&mut self, ch: ChanId) -> Option<(&mut crate::fabric::AnyAdapter, EpId)> {
        let (kind, ep) = self.connections.endpoint(ch)?;
        self.posted_to.add(kind);
        let adapter = self.adapters[kind as usize].as_mut()?;
        Some((adapter, ep))
    }

    /// See [`Adapter::has_rest`](crate::fabric::Adapter::has_rest).
    pub fn has_rest(&self, ch: ChanId) -> bool {
        let Some(connection) = self.connections.get(ch) else { return false };
        let adapter = self.adapters[connection.ep.0 as usize].as_ref();
        adapter.is_some_and(|a| a.has_rest(connection.ep.1))
    }

    /// An endpoint's channel, if it is one already.
    #[inline]
    pub fn channel_of(&mut self, ep: EpKey) -> Option<ChanId> {
        self.connections.channel(ep)
    }

    /// Nothing is posted on a channel in doubt: it waits, as for room in a queue.
    #[inline]
    fn in_doubt(&self, ch: ChanId) -> bool {
        self.connections.in_doubt(ch)
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

    /// Time passes: who asks for it next reads the clock.
    #[inline(always)]
    pub fn tick(&mut self) {
        self.clock.tick();
    }

    /// Whether there are endpoints to destroy, callbacks to let go of or dials to begin.
    #[inline(always)]
    pub fn is_unfinished(&self) -> bool {
        self.routes.next_try().is_some()
            || self.connections.has_dying()
            || !self.parked.is_empty()
            || !self.held_back.is_empty()
    }

    /// Rings the doorbells.
    pub fn flush(&mut self) {
        for kind in std::mem::take(&mut self.posted_to) {
            if let Some(adapter) = self.adapters[kind as usize].as_mut() {
                let moves = match self.follows {
                    Follows::Nothing => adapter.flush(),
                    follows => {
                        self.keeps |= kind == ProviderKind::Tcp;
                        adapter.flush_soon(follows)
                    }
                };
                if moves {
                    self.moving.add(kind);
                }
            }
        }
    }

    /// What adapters keep for later goes out.
    #[inline]
    pub fn push(&mut self) {
        if std::mem::take(&mut self.keeps) {
            self.push_all();
        }
    }

    #[inline(never)]
    fn push_all(&mut self) {
        for kind in ProviderKind::ALL {
            if self.adapters[kind as usize].as_mut().is_some_and(|adapter| adapter.push()) {
                self.moving.add(kind);
            }
        }
    }

    /// Destroys the endpoints that ended. Only when no view into their memory is held.
    pub fn destroy_ended(&mut self) {
        if !self.connections.has_dying() && self.parked.is_empty() {
            return;
        }
        while let Some((kind, ep)) = self.connections.next_dying() {
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
    fn keep_content(&mut self, content: &[u8]) -> Option<KeepAlive> {
        let (kind, ep) = self.hearing;
        self.adapters[kind as usize].as_mut()?.keep(ep, content)
    }

    /// The same of one that it has left where it came.
    fn keep_left(&mut self) -> Result<KeepAlive, Status> {
        let (kind, ep) = self.hearing;
        let kept = self.adapters[kind as usize].as_mut().and_then(|adapter| adapter.keep_left(ep));
        kept.ok_or_else(|| Status::internal("a message that was not left anywhere"))
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

    /// Makes new segments of all pools known.
    pub fn see_pools(&mut self) {
        self.share_segments();
        self.see_shared();
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
        self.connections.has_room() && self.routes.has_room()
    }
}

/// Marks a descriptor of a channel in the epoll set.
pub fn alive_tag(ch: ChanId) -> Tag {
    Tag::Alive(ch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::ProviderKind;

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
        world.connections.give_up((ProviderKind::Loopback, ep));
        world.free(first);
        assert_ne!(world.alloc(1000).unwrap().addr, addr);
        world.destroy_ended();
        assert_eq!(world.alloc(1000).unwrap().addr, addr);
    }
}
