//! The shm provider: processes of one host, through shared memory.
//!
//! - Control and small content travel in lock-free rings, one memfd per direction (`ring`).
//! - Larger content that lies in the pool is copied once, out of the mapped segment: by the target
//!   of a WRITE, by the initiator of a READ.
//! - Other content is read by `process_vm_readv`, or both sides copy it at once through a stream
//!   segment (`stream`; READs: `shared`), whichever was measured to be quicker (`tuning`), and
//!   everything goes through the stream where the kernel forbids the other.
//! - A peer is woken, by an eventfd, only while it says that it sleeps (`exports`).
//! - The Unix socket of the handshake stays open: its end is the end of the endpoint.
//!
//! Peers are processes of the same user on the same host; the kernel says so (`SO_PEERCRED`).
//! Nevertheless nothing of what they write into shared memory is trusted: lengths, positions, keys
//! and bounds are read once and checked, and a peer that breaks the protocol loses its endpoint.
//! Whatever is looked at is copied into memory of this process first (`ring`); content alone is read
//! where the peer wrote it, once, into its destination.

mod adapter;
mod exports;
mod foreign;
mod handshake;
mod link;
mod meeting;
mod moving;
mod nest;
mod operations;
mod pieces;
mod pools;
mod post;
mod process;
mod pull;
mod reads;
mod receive;
mod ring;
mod shared;
mod short;
mod socket;
mod stream;
pub(crate) mod sys;
#[cfg(test)]
mod tests;
mod tuning;
mod wire;

use std::collections::HashMap;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use crate::config::Config;
use crate::fabric::moves::{KeepAlive, MOVE_MAX, Move, Moved};
use crate::fabric::{
    Access, Adapter, Caps, EpId, Event, Mem, Mr, One, PoolSegment, PostError, ProviderKind, Remote,
    SHORT_HEAD,
};
use crate::local_fd::Local;
use crate::os::ticks;
use crate::os::{Epoll, EventFd};
use crate::room::Grows;
use crate::status::{Code, Reason, Status};

use exports::{Export, Exports};
use foreign::Closer;
use handshake::{Greeter, State};
use link::{Link, MAX_RDMA, MAX_SEND, gone};
use moving::{Kind, Moves};
pub(super) use pieces::{Drain, Feed};
use pools::{LocalPools, MapBudget};
pub(super) use process::Process;
use ring::MAX_WRITES;
use wire::Address;

/// Content up to this length travels in the record of its WRITE.
const INLINE_MAX: u64 = 8192;
/// Content up to this length is better inside a SEND.
const EAGER_MAX: usize = 4096;
/// The same of messages, and of tensors in no pool, which would be read by `process_vm_readv`.
const PLAIN_MAX: usize = 11 << 10;
/// The same while the ring is half free. What fills it, many of these that follow each other, takes up to six times as long as through the
/// pool.
const DIRECT_MAX: usize = 33 << 10;
const _: () = assert!(DIRECT_MAX < MAX_SEND);
/// Longer content of messages that lies in no pool is copied there first, up to this length: two copies, each by one end and in
/// its caches, take less than one by `process_vm_readv`. What is longer leaves the caches meanwhile, and goes through the stream, in
/// pieces that stay in them.
const STAGED_MAX: u64 = 256 << 10;
/// Processor ticks, about a millisecond, after which an adapter that finds nothing looks at its sockets.
const HOUSEKEEPING: u64 = 1 << 21;
/// Endpoints that are found without a look into a map.
const NEAR: usize = 32;
/// Busy polls between two looks at the clock, and at sockets while endpoints meet.
const CLOCK_EVERY: u32 = 32;

/// Which ways content may take.
#[derive(Clone, Copy, Debug)]
struct Policy {
    pool: bool,
    process: bool,
    /// Content in no pool may be copied by both sides.
    share: bool,
    /// Content up to this length travels in its record: copied by the post, or before it.
    inline_max: u64,
    /// See [`Caps::staged_max`].
    staged_max: u64,
}

impl Policy {
    fn new(forced: Option<&str>) -> Result<Policy, Status> {
        let (pool, process, share, inline_max, staged_max) = match forced {
            None => (true, true, true, INLINE_MAX, STAGED_MAX),
            Some("pool") => (true, true, true, 0, 0),
            Some("cma") => (false, true, false, 0, 0),
            Some("ring") => (false, false, false, 0, 0),
            Some(other) => {
                return Err(Status::invalid(text!(
                    "RDMA_SHM_COPY is \"{other}\"; pool, cma and ring are allowed"
                )));
            }
        };
        Ok(Policy { pool, process, share, inline_max, staged_max })
    }
}

/// What all endpoints of an adapter share.
#[derive(Debug)]
struct Core {
    exports: Exports,
    bell: EventFd,
    epoll: Epoll,
    pools: LocalPools,
    policy: Policy,
    /// WRITEs, and READs, under way on one endpoint.
    depth: usize,
    moves: Moves,
    /// A word that proves to a peer that it reads this process.
    nonce: Box<u64>,
    host: [u8; 16],
    /// Lets go of what came from others.
    closer: Arc<Closer>,
    /// The address space that peers' segments may take.
    map_budget: Arc<MapBudget>,
}

/// An endpoint in any state.
#[derive(Debug)]
struct Endpoint {
    id: EpId,
    peer: Arc<str>,
    token: [u8; 16],
    state: State,
}

/// The shm provider's adapter.
#[derive(Debug)]
pub struct ShmAdapter {
    core: Core,
    greeter: Greeter,
    eps: Vec<Endpoint>,
    index: HashMap<u32, usize, foldhash::fast::FixedState>,
    /// Some of the same, by the low bits of the number; what is found there is compared.
    near: [u16; NEAR],
    /// Where sleeping peers may have to be woken.
    rings: Which,
    /// Where something of what was read may still be copied.
    left: Which,
    next: u32,
    polls: u32,
    /// Polls of all links, which looks at one that has something are not.
    rounds: u32,
    /// Place of the endpoint that `poll_one` heard last.
    heard: usize,
    /// When its sockets were last looked at, in processor ticks.
    kept_house: u64,
    caps: Caps,
    notes: Vec<String>,
}

/// Some endpoints: one by its place, or one of the following.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Which(usize);

impl Which {
    const NONE: Which = Which(usize::MAX);
    const ALL: Which = Which(usize::MAX - 1);

    /// One more.
    #[inline(always)]
    fn add(&mut self, at: usize) {
        if self.0 != at {
            *self = if *self == Which::NONE { Which(at) } else { Which::ALL };
        }
    }
}

/// Wakes the peers of those links on which something was published.
#[inline]
fn ring<'a>(eps: impl IntoIterator<Item = &'a mut Endpoint>) {
    let mut fenced = false;
    for endpoint in eps {
        if let State::Up(link) = &mut endpoint.state
            && link.dirty
        {
            if !fenced {
                // What was published comes before the look at the peer's doorbell word.
                fence(Ordering::SeqCst);
                fenced = true;
            }
            link.dirty = false;
            link.exports.ring();
        }
    }
}

#[cold]
fn not_up(state: &State, peer: &str) -> Status {
    if let State::Dead(_) = state {
        // Whoever posts has not heard of it yet.
        return gone(peer);
    }
    let text = text!("shm: the endpoint to peer {peer} is not connected");
    Status::new(Code::FailedPrecondition, text)
}

/// Whether this system can run the provider; if not, why.
pub fn probe() -> Result<(), Status> {
    ShmAdapter::open(&Config::default()).map(drop)
}

impl ShmAdapter {
    /// Opens an adapter.
    pub fn open(config: &Config) -> Result<ShmAdapter, Status> {
        let policy = Policy::new(config.shm_copy.as_deref())?;
        let os = |what: &'static str| move |e: std::io::Error| Status::os(what, &e);
        let socket = sys::random()?;
        let nonce = u64::from_le_bytes(sys::random()?);
        let core = Core {
            exports: Exports::create().map_err(os("shm: table of regions"))?,
            bell: EventFd::new().map_err(os("shm: eventfd"))?,
            epoll: Epoll::new().map_err(os("shm: epoll"))?,
            pools: LocalPools::default(),
            policy,
            depth: (config.queue_depth as usize).clamp(1, MAX_WRITES),
            moves: Moves::default(),
            nonce: Box::new(nonce),
            host: sys::boot_id(),
            closer: Arc::default(),
            map_budget: Arc::new(MapBudget::host()),
        };
        let greeter = Greeter::open(&core, socket).map_err(os("shm: Unix socket, or timer"))?;
        let caps = Caps {
            provider: ProviderKind::Shm,
            max_send: MAX_SEND,
            eager_max: EAGER_MAX,
            max_rdma: MAX_RDMA,
            read: true,
            windows: true,
            // The ring holds fewer records: its back-pressure comes first.
            recv_depth: 1 << 16,
            plain_max: PLAIN_MAX,
            direct_max: DIRECT_MAX,
            staged_max: policy.staged_max,
        };
        let notes = match greeter.is_private() {
            true => Vec::new(),
            false => vec![
                "the socket has an abstract name: neither $XDG_RUNTIME_DIR nor /tmp has \
                           room for a private directory"
                    .to_owned(),
            ],
        };
        Ok(ShmAdapter {
            core,
            greeter,
            eps: Vec::new(),
            index: HashMap::default(),
            near: [0; NEAR],
            rings: Which::NONE,
            left: Which::NONE,
            next: 1,
            polls: 0,
            rounds: 0,
            heard: 0,
            kept_house: 0,
            caps,
            notes,
        })
    }

    /// The endpoint's place, quickly for those that are used most.
    #[inline(always)]
    fn find_near(&mut self, ep: EpId) -> Result<usize, Status> {
        let near = ep.0 as usize % NEAR;
        let at = usize::from(self.near[near]);
        if self.eps.get(at).is_some_and(|endpoint| endpoint.id == ep) {
            return Ok(at);
        }
        let at = self.find(ep)?;
        // A place beyond what a number holds is looked for each time.
        self.near[near] = u16::try_from(at).unwrap_or(0);
        Ok(at)
    }

    /// The endpoint's place.
    fn find(&self, ep: EpId) -> Result<usize, Status> {
        self.index
            .get(&ep.0)
            .copied()
            .ok_or_else(|| Status::new(Code::NotFound, text!("shm: no endpoint {}", ep.0)))
    }

    /// The link of a connected endpoint, to post on, beside what all share.
    #[inline(always)]
    fn up(&mut self, ep: EpId) -> Result<(&mut Link, &mut Core), PostError> {
        let at = self.find_near(ep).map_err(PostError::Failed)?;
        self.rings.add(at);
        let endpoint = &mut self.eps[at];
        match &mut endpoint.state {
            State::Up(link) => Ok((link, &mut self.core)),
            other => Err(PostError::Failed(not_up(other, &endpoint.peer))),
        }
    }

    /// An operation on a link found that it has ended. What the peer published before it left still counts: polls take that first,
    /// and find the end again.
    #[inline(never)]
    fn ended(&mut self, at: usize, status: Status, events: &mut Vec<Event>) {
        let rest = match &mut self.eps[at].state {
            State::Up(link) => status.reason == Reason::PeerGone && link.postpones_end(self.rounds),
            _ => false,
        };
        if !rest {
            self.down(at, status, events);
        }
    }

    /// Ends a connected endpoint.
    #[inline(never)]
    fn down(&mut self, at: usize, status: Status, events: &mut Vec<Event>) {
        let ends = self.eps.len() + 1;
        let endpoint = &mut self.eps[at];
        let mut state = std::mem::replace(&mut endpoint.state, State::Dead(None));
        // The connection's end tells the peer.
        state.hang_up(&self.core.epoll);
        match state {
            State::Up(mut link) => {
                link.fail(&status, ends, events);
                // The rings stay, views may point there.
                endpoint.state = State::Dead(Some(link));
            }
            State::Dead(link) => endpoint.state = State::Dead(link),
            _ => events.push(Event::Down { ep: endpoint.id, status }),
        }
    }

    /// Wakes the sleeping peers of all links on which something was published.
    fn ring_bells(&mut self) {
        match std::mem::replace(&mut self.rings, Which::NONE) {
            Which::NONE => {}
            Which::ALL => ring(&mut self.eps),
            Which(at) => ring(self.eps.get_mut(at)),
        }
    }

    /// Makes the copies that were found, within the budget. True if there was one.
    #[inline(never)]
    fn make_moves(&mut self, events: &mut Vec<Event>) -> bool {
        let mut left = MOVE_MAX;
        let mut any = false;
        while left > 0
            && let Some(one) = self.take_move(events)
        {
            let done = one.run();
            left = left.saturating_sub(*done.result.as_ref().unwrap_or(&1));
            self.moved(done, events);
            any = true;
        }
        any
    }

    /// What need not be done at every poll: sockets, and peers that wait for room.
    #[inline(never)]
    fn housekeeping(&mut self, events: &mut Vec<Event>) {
        self.rings = Which::ALL;
        self.check_sockets(events);
        for endpoint in &mut self.eps {
            if let State::Up(link) = &mut endpoint.state {
                link.share_room(true);
                link.show_life();
                link.tell_gone_pools();
            }
        }
    }

    /// Whether the sockets have not been looked at for a while. Cheap.
    #[inline]
    fn is_house_due(&mut self) -> bool {
        let now = ticks();
        let due = now.wrapping_sub(self.kept_house) >= HOUSEKEEPING;
        if due {
            self.kept_house = now;
        }
        due
    }

    /// Looks for a message on one endpoint after the other, first behind the one that was heard last: each has its turn.
    fn poll_one_of_many(&mut self) -> One {
        self.polls = self.polls.wrapping_add(1);
        let count = self.eps.len();
        for _ in 0..count {
            self.heard = if self.heard + 1 < count { self.heard + 1 } else { 0 };
            let State::Up(link) = &mut self.eps[self.heard].state else { return One::Other };
            match link.hear_one() {
                One::Nothing => {}
                found => return found,
            }
        }
        One::Nothing
    }

    /// Polls the links that do not rest; whether there was something.
    #[inline]
    fn poll_links(&mut self, events: &mut Vec<Event>) -> bool {
        let mut busy = false;
        let ends = self.eps.len() + 1;
        let mut at = 0;
        while let Some(endpoint) = self.eps.get_mut(at) {
            let place = at;
            at += 1;
            let State::Up(link) = &mut endpoint.state else { continue };
            // If there is no room for what it has, nothing is lost: it is looked at again.
            if link.rests() || !link.fits(ends, events) {
                continue;
            }
            // Messages and nothing else, as a rule.
            let (taken, all) = link.hears_only(events);
            busy |= taken > 0;
            if !all {
                busy |= self.poll_link(place, taken, events);
            }
        }
        busy
    }

    /// All that there may be for a link, of which so many messages were taken; whether there was something.
    #[inline(never)]
    fn poll_link(&mut self, place: usize, taken: usize, events: &mut Vec<Event>) -> bool {
        // Who waits for room, or for an answer, may be told.
        self.rings = Which::ALL;
        let State::Up(link) = &mut self.eps[place].state else { return false };
        match link.work(&mut self.core, taken, events) {
            Ok(did) => did,
            Err(status) => {
                self.ended(place, status, events);
                false
            }
        }
    }
}

impl Drop for ShmAdapter {
    fn drop(&mut self) {
        for endpoint in std::mem::take(&mut self.eps) {
            self.forget(endpoint);
        }
        self.greeter.close(&self.core.closer);
        self.core.closer.rest();
    }
}
