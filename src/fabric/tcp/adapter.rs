//! The provider contract on sockets: the endpoints, and which of them has something to do.

mod serve;

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use super::burst::Polled;
use super::endpoint::{Buffer, Endpoint, LIVELY, Shared};
use super::left::Dir;
use super::stream::Stream;
use super::{ADDRESS, MAX_OPS, MAX_RDMA, frame, sock};
use crate::config::Config;
use crate::fabric::moves::{Move, Moved};
use crate::fabric::regions::RegionTable;
use crate::fabric::{
    Access, Adapter, Caps, EpId, Event, Follows, Mem, Mr, PostError, ProviderKind, Remote,
};
use crate::local_fd::Local;
use crate::os::{epoll, ticks};
use crate::room::Grows;
use crate::status::{Code, Status};

/// Retransmissions of the same bytes in vain after which the peer's host counts as lost: with the
/// system's shortest timeout, six seconds. The system itself goes on for a quarter of an hour.
const LOST_AFTER: u8 = 5;
/// Up to this many sockets are asked directly, more through epoll.
const DIRECT: usize = 4;

/// An adapter of the tcp provider.
pub struct TcpAdapter {
    caps: Caps,
    depth: usize,
    next_ep: u32,
    pub(super) eps: HashMap<u32, Endpoint, foldhash::fast::RandomState>,
    /// Connected endpoints.
    order: Vec<u32>,
    /// Each poll begins with another endpoint.
    polled: Polled,
    /// Endpoints with something to send.
    busy: Vec<u32>,
    /// Endpoints whose sockets hold something back.
    held: Vec<u32>,
    /// Endpoints that were busy since the adapter was last armed.
    lazy: Vec<u32>,
    /// Endpoints whose connection is to be reported.
    fresh: VecDeque<u32>,
    /// Polls in a row that took nothing in.
    quiet: u32,
    /// Nobody has polled since it was armed: whoever posts sees to it that the descriptor tells of room.
    armed: bool,
    shared: Shared,
}

impl TcpAdapter {
    /// Opens an adapter.
    pub fn open(config: &Config) -> Result<TcpAdapter, Status> {
        let depth = (config.queue_depth.max(1) as usize).min(MAX_OPS);
        Ok(TcpAdapter {
            caps: Caps {
                provider: ProviderKind::Tcp,
                max_send: frame::MAX_SEND,
                eager_max: 32 << 10,
                max_rdma: MAX_RDMA,
                read: true,
                windows: true,
                recv_depth: depth as u32,
                plain_max: 0,
                direct_max: 0,
                staged_max: 0,
            },
            depth,
            next_ep: 1,
            eps: HashMap::default(),
            order: Vec::new(),
            polled: Polled::default(),
            busy: Vec::new(),
            held: Vec::new(),
            lazy: Vec::new(),
            fresh: VecDeque::new(),
            quiet: 0,
            armed: false,
            shared: Shared {
                epoll: sock::epoll()?,
                regions: RegionTable::new(),
                buffer: Buffer::new()?,
                viewed: 0,
                held: Vec::new(),
                left: false,
                wanted: VecDeque::new(),
                aside: Vec::new(),
                ends: 0,
            },
        })
    }

    fn endpoint(&mut self, ep: EpId) -> Result<&mut Endpoint, Status> {
        self.eps.get_mut(&ep.0).ok_or_else(|| {
            Status::new(Code::NotFound, text!("no tcp endpoint has the number {}", ep.0))
        })
    }

    /// The endpoint, for a post that will leave something to send.
    fn posting(&mut self, ep: EpId) -> Result<&mut Stream, PostError> {
        let e = match self.eps.get_mut(&ep.0) {
            Some(e) if e.sock.is_some() && e.broken.is_none() => e,
            Some(e) => {
                let peer = &e.stream.peer;
                return Err(PostError::Failed(match &e.broken {
                    Some(status) => status.clone(),
                    None if e.used => {
                        Status::gone(text!("the tcp endpoint to peer '{peer}' is down"))
                    }
                    None => Status::new(
                        Code::FailedPrecondition,
                        text!("the tcp endpoint to peer '{peer}' is not connected"),
                    ),
                }));
            }
            None => {
                return Err(PostError::Failed(Status::new(
                    Code::NotFound,
                    text!("no tcp endpoint has the number {}", ep.0),
                )));
            }
        };
        if !e.listed {
            e.listed = true;
            self.busy.push(ep.0);
        }
        Ok(&mut e.stream)
    }
}

impl Adapter for TcpAdapter {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    unsafe fn register(&mut self, addr: u64, len: u64, access: Access) -> Result<Mr, Status> {
        // SAFETY: by the contract of this method.
        unsafe { self.shared.regions.insert(addr, len, access) }
    }

    fn deregister(&mut self, mr: Mr) -> Result<(), Status> {
        self.shared.regions.remove(mr)
    }

    fn create(&mut self, peer: &str) -> Result<EpId, Status> {
        let id = self.next_ep;
        self.next_ep = id.checked_add(1).ok_or_else(|| {
            Status::new(
                Code::ResourceExhausted,
                "this tcp adapter has used up its endpoint numbers",
            )
        })?;
        // Its place in each list.
        let all = self.eps.len() + 1;
        let room = self.eps.fits(1)
            && [&mut self.order, &mut self.busy, &mut self.lazy, &mut self.held]
                .into_iter()
                .all(|l| l.fits(all))
            && self.fresh.fits(all)
            && self.shared.wanted.fits(2 * all);
        if !room {
            return Err(crate::room::none(size_of::<Endpoint>(), "an endpoint"));
        }
        self.shared.ends = all;
        let stream = Stream::new(EpId(id), peer, self.depth);
        self.eps.insert(id, Endpoint::new(stream));
        Ok(EpId(id))
    }

    fn address(&self, ep: EpId) -> Result<Vec<u8>, Status> {
        match self.eps.contains_key(&ep.0) {
            true => Ok(ADDRESS.to_vec()),
            false => {
                Err(Status::new(Code::NotFound, text!("no tcp endpoint has the number {}", ep.0)))
            }
        }
    }

    fn connect(
        &mut self,
        ep: EpId,
        remote: &[u8],
        _active: bool,
        sock: Option<Local<OwnedFd>>,
    ) -> Result<(), Status> {
        let e = self.endpoint(ep)?;
        let peer = e.stream.peer.clone();
        if e.used {
            return Err(Status::new(
                Code::FailedPrecondition,
                text!("the tcp endpoint to peer '{peer}' was connected before"),
            ));
        }
        if remote != ADDRESS {
            let shown = remote.get(..16).unwrap_or(remote);
            return Err(Status::invalid(text!(
                "tcp address of peer '{peer}': {} bytes, {shown:02x?}; {ADDRESS:02x?} is allowed",
                remote.len()
            )));
        }
        let sock = sock.ok_or_else(|| {
            Status::invalid(text!("tcp endpoint to peer '{peer}': a connected socket is needed"))
        })?;
        sock::prepare(sock.as_fd())?;
        sock::watch(&self.shared.epoll, sock.as_fd(), ep.0)?;
        let left = self.shared.left;
        let e = self.endpoint(ep)?;
        (e.sock, e.used) = (Some(Arc::new(sock)), true);
        e.stream.rx.leave = left;
        self.order.push(ep.0);
        self.fresh.push_back(ep.0);
        Ok(())
    }

    fn send(&mut self, ep: EpId, parts: &[&[u8]]) -> Result<(), PostError> {
        self.posting(ep)?.send(parts)
    }

    fn write(
        &mut self,
        ep: EpId,
        wr: u64,
        local: Mem,
        remote: Remote,
        imm: Option<u32>,
    ) -> Result<(), PostError> {
        self.posting(ep)?.write(wr, local, remote, imm)
    }

    fn write_copied(
        &mut self,
        ep: EpId,
        wr: u64,
        content: &[u8],
        remote: Remote,
        imm: Option<u32>,
    ) -> Result<(), PostError> {
        self.posting(ep)?.write_copied(wr, content, remote, imm)
    }

    fn read(&mut self, ep: EpId, wr: u64, local: Mem, remote: Remote) -> Result<(), PostError> {
        self.posting(ep)?.read(wr, local, remote)
    }

    fn progress_mark(&self, ep: EpId) -> u64 {
        self.eps.get(&ep.0).map_or(0, |e| e.moved)
    }

    fn reads_sources(&self, ep: EpId) -> bool {
        self.eps.get(&ep.0).is_some_and(|e| e.moves.out.is_some() || e.stream.reads_sources())
    }

    fn is_unreachable(&self, ep: EpId) -> bool {
        let sock = self.eps.get(&ep.0).and_then(|e| e.sock.as_ref());
        sock.is_some_and(|s| sock::retransmits(s.as_fd()) >= LOST_AFTER)
    }

    fn is_quiet(&self) -> bool {
        let waits = !(self.busy.is_empty() && self.held.is_empty() && self.fresh.is_empty());
        self.quiet >= LIVELY && !waits && self.shared.wanted.is_empty()
    }

    fn flush(&mut self) -> bool {
        self.flush_soon(Follows::Nothing)
    }

    fn flush_soon(&mut self, follows: Follows) -> bool {
        // Who armed it may sleep.
        let follows = if self.armed { follows.min(Follows::Perhaps) } else { follows };
        for id in &self.busy {
            let Some(e) = self.eps.get_mut(id) else { continue };
            e.output_of_call(follows, self.polled, &self.shared.regions);
            e.ask(&mut self.shared.wanted);
            if self.armed {
                e.watch_output(&self.shared.epoll);
            }
            if (e.kept || e.burst.is_held()) && !e.held {
                e.held = true;
                self.held.push(*id);
            }
        }
        self.settle();
        self.has_moves()
    }

    fn push(&mut self) -> bool {
        self.push_held();
        self.has_moves()
    }

    fn leave_moves(&mut self) {
        self.shared.left = true;
    }

    fn has_moves(&self) -> bool {
        !self.shared.wanted.is_empty()
    }

    fn take_move(&mut self, _events: &mut Vec<Event>) -> Option<Move> {
        while let Some((id, dir)) = self.shared.wanted.pop_front() {
            let most = if dir == Dir::Out { self.turn(id) } else { 0 };
            let Some(e) = self.eps.get_mut(&id) else { continue };
            let one = match dir {
                Dir::In => e.take_input(&self.shared.regions),
                Dir::Out => e.take_output(&self.shared.regions, most),
            };
            if one.is_some() {
                return one;
            }
        }
        None
    }

    fn take_own_move(&mut self, own: std::ops::Range<u64>) -> Option<Move> {
        let (1, Some(&(id, Dir::Out))) = (self.shared.wanted.len(), self.shared.wanted.front())
        else {
            return None;
        };
        let most = self.turn(id);
        let e = self.eps.get_mut(&id).filter(|e| e.stream.tx.is_content_of(own))?;
        self.shared.wanted.clear();
        e.take_output(&self.shared.regions, most)
    }

    fn moved(&mut self, done: Moved, events: &mut Vec<Event>) {
        let id = done.ep.0;
        let Some(e) = self.eps.get_mut(&id) else { return };
        let ended = match Dir::of(done.what) {
            Dir::In => e.input_moved(done.result, &mut self.shared, events),
            Dir::Out => {
                e.output_moved(done.result);
                None
            }
        };
        if let Some(status) = ended {
            e.down(&self.shared, status, events);
            self.unlist(id);
            return;
        }
        // What has arrived behind it, and what goes next.
        self.service(id, events);
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> bool {
        self.armed = false;
        self.shared.held.clear();
        self.shared.aside.clear();
        self.shared.viewed = 0;
        while let Some(id) = self.fresh.pop_front() {
            events.push(Event::Connected(EpId(id)));
        }
        self.push_held();
        // Each begins with another endpoint, so that none always finds the buffer full.
        self.polled = Polled { count: self.polled.count.wrapping_add(1), at: ticks() };
        self.quiet = self.quiet.saturating_add(1);
        if self.order.len() <= DIRECT {
            self.poll_few(events);
        } else {
            let mut places = [epoll::EMPTY; 64];
            let mut seen = [0u32; 64];
            let mut n = 0;
            for (id, at) in self.shared.epoll.ready(&mut places).zip(&mut seen) {
                *at = id as u32;
                n += 1;
            }
            for i in 0..n {
                self.service(seen[(self.polled.count + i) % n], events);
            }
            for i in (0..self.busy.len()).rev() {
                match self.busy.get(i) {
                    Some(&id) if !seen[..n].contains(&id) => self.service(id, events),
                    _ => {}
                }
            }
        }
        if !self.busy.is_empty() {
            self.settle();
        }
        self.has_moves()
    }

    fn arm(&mut self) -> bool {
        self.push_held();
        for id in &self.busy {
            let Some(e) = self.eps.get_mut(id) else { continue };
            // Its share of one poll is used up and the socket takes more: no room to wait for.
            let more = e.output(true, &self.shared.regions);
            e.ask(&mut self.shared.wanted);
            if more || e.broken.is_some() {
                return false;
            }
        }
        if self.has_moves() {
            return false;
        }
        self.settle();
        for id in self.busy.iter().chain(&self.lazy) {
            if let Some(e) = self.eps.get_mut(id) {
                e.settle(&self.shared.epoll);
                e.lazy = false;
            }
        }
        self.lazy.clear();
        self.armed = true;
        let mut one = [epoll::EMPTY];
        self.fresh.is_empty() && self.shared.epoll.ready(&mut one).next().is_none()
    }

    fn fd(&self) -> Option<RawFd> {
        Some(self.shared.epoll.as_raw_fd())
    }

    fn has_delivered(&mut self) -> bool {
        // Each is asked, so that what was taken since the last time shows as progress of its peer.
        self.eps.values_mut().fold(true, |all, e| e.has_delivered() & all)
    }

    fn has_stalled(&self, time: Duration) -> bool {
        self.eps.values().all(|e| e.has_stalled(time))
    }

    fn destroy(&mut self, ep: EpId) {
        if let Some(mut e) = self.eps.remove(&ep.0) {
            // What was posted still goes out as far as the socket takes it.
            e.output(true, &self.shared.regions);
            e.push(&self.shared.regions);
            if let Some(sock) = &e.sock {
                let _ = self.shared.epoll.remove(sock);
            }
        }
        self.unlist(ep.0);
    }
}
