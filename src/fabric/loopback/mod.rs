//! Both ends in one process: operations are copies, made by the initiator's thread.
//!
//! Each copy of at most a mebibyte is begun under the read lock of the target's region table, so that
//! `deregister` and `destroy`, which take the write lock, end all access at once; but for copies that
//! run as moves, see `moves`.

mod endpoint;
mod hub;
mod mail;
#[cfg(test)]
mod mail_model;
#[cfg(test)]
mod mail_tests;
mod out;
mod serve;
mod transfer;

mod atomic {
    pub(super) use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
}

use std::collections::{HashMap, VecDeque};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use self::endpoint::{Endpoint, Op, gone};
use self::hub::{End, Hub, Item, What};
use self::mail::{Read, Reader};
use self::out::Out;
use self::transfer::Rdma;
use super::moves::{Move, Moved};
use super::{
    Access, Adapter, Caps, EpId, Event, Mem, Mr, One, PostError, ProviderKind, Remote, View,
};
use crate::config::Config;
use crate::local_fd::Local;
use crate::room::Grows;
use crate::status::{Code, Status};

/// Bytes copied in one poll.
const POLL_BYTES: u64 = 4 << 20;
/// A transfer up to this size is made at once if nothing is before it.
const AT_ONCE: u64 = 64 << 10;
const MAX_SEND: usize = 128 << 10;
const MAX_RDMA: u64 = 1 << 47;

/// Why loopback cannot be used here: it always can.
pub fn probe() -> Result<(), String> {
    Ok(())
}

/// An adapter of the loopback provider.
pub struct LoopbackAdapter {
    caps: Caps,
    depth: usize,
    next_ep: u32,
    hub: Arc<Hub>,
    /// What the others have for this.
    reader: Reader<Item>,
    eps: HashMap<u32, Endpoint, foldhash::fast::RandomState>,
    /// Endpoints with operations that are not finished.
    busy: VecDeque<u32>,
    /// Endpoints with items in their inbox.
    served: VecDeque<u32>,
    /// To be reported by the next poll.
    ready: VecDeque<Event>,
    /// Operations that were posted and not reported: each finds room in `ready`.
    posted: usize,
    /// An item of the hub that its endpoint has no memory for yet.
    stuck: Option<Read<Item>>,
    armed: bool,
    /// Copies are left to the driver.
    left: bool,
    /// Endpoints on which one can be made.
    wanted: VecDeque<u32>,
    next_op: u64,
}

impl LoopbackAdapter {
    /// Opens an adapter.
    pub fn open(config: &Config) -> Result<LoopbackAdapter, Status> {
        let depth = config.queue_depth.clamp(1, 4096);
        let (hub, reader) = Hub::new()?;
        Ok(LoopbackAdapter {
            caps: Caps {
                provider: ProviderKind::Loopback,
                max_send: MAX_SEND,
                eager_max: 8 << 10,
                max_rdma: MAX_RDMA,
                read: true,
                windows: true,
                recv_depth: depth,
                plain_max: 0,
                direct_max: 0,
                staged_max: 0,
            },
            depth: depth as usize,
            next_ep: 1,
            hub,
            reader,
            eps: HashMap::default(),
            busy: VecDeque::new(),
            served: VecDeque::new(),
            ready: VecDeque::new(),
            posted: 0,
            stuck: None,
            armed: false,
            left: false,
            wanted: VecDeque::new(),
            next_op: 0,
        })
    }

    fn unknown(ep: EpId) -> Status {
        Status::new(Code::NotFound, text!("no loopback endpoint has the number {}", ep.0))
    }

    /// A connected endpoint, to post on.
    fn posting(&mut self, ep: EpId) -> Result<&mut Endpoint, PostError> {
        let e = self.eps.get_mut(&ep.0).ok_or_else(|| PostError::Failed(Self::unknown(ep)))?;
        match e.up && e.out.as_ref().is_some_and(|o| !o.end.closed.load(Ordering::Relaxed)) {
            true => Ok(e),
            false => Err(PostError::Failed(e.not_up())),
        }
    }

    fn rdma(
        &mut self,
        ep: EpId,
        local: Mem,
        mut op: Rdma,
        imm: Option<u32>,
    ) -> Result<(), PostError> {
        let (depth, left) = (self.depth, self.left);
        op.id = self.next_op;
        self.next_op += 1;
        // The end of each operation, and, of each endpoint, its begin and its end.
        if !self.ready.fits(self.posted + 1 + 2 * self.eps.len()) {
            return Err(PostError::Failed(crate::room::none(size_of::<Event>(), "a transfer")));
        }
        let e = self.posting(ep)?;
        if local.len() > MAX_RDMA
            || local.addr().checked_add(local.len()).is_none()
            || (local.addr() == 0 && !local.is_empty())
        {
            return Err(PostError::Failed(Status::invalid(text!(
                "transfer of {} bytes at {:#x} with peer '{}'; at most {MAX_RDMA} are allowed",
                local.len(),
                local.addr(),
                e.peer
            ))));
        }
        if !e.ops.fits(1) {
            return Err(PostError::Failed(crate::room::none(size_of::<Op>(), "a transfer")));
        }
        if e.under_way >= depth {
            return Err(PostError::QueueFull);
        }
        if let (Some(imm), Some(out)) = (imm, &mut e.out) {
            op.notice = Some(out.letter(What::Written(imm), 0, depth)?);
        }
        e.under_way += 1;
        let at_once = e.ops.is_empty() && op.len <= AT_ONCE;
        e.ops.push_back(Op::Rdma(op));
        self.posted += 1;
        let mut budget = if at_once && !left { AT_ONCE } else { 0 };
        let done = match self.eps.get_mut(&ep.0) {
            Some(e) if at_once => e.run(&mut budget, &mut self.ready),
            _ => false,
        };
        if !done && !self.busy.contains(&ep.0) {
            self.busy.push_back(ep.0);
        }
        self.want(ep.0);
        Ok(())
    }

    /// Remembers that the endpoint may have a piece to be moved.
    fn want(&mut self, id: u32) {
        let Some(e) = self.eps.get(&id) else { return };
        if self.left && e.moving.is_none() && !e.ops.is_empty() && !self.wanted.contains(&id) {
            self.wanted.push_back(id);
        }
    }

    /// The next piece of an endpoint.
    fn next_piece(&mut self, id: u32) -> Option<Move> {
        let e = self.eps.get_mut(&id)?;
        let remote = e.out.as_ref()?.end.clone();
        while e.moving.is_none() {
            let Some(Op::Rdma(r)) = e.ops.front_mut() else { return None };
            // Only what needs no copy: the rest is a move.
            match r.piece(&remote, &e.peer, EpId(id)) {
                Ok(Some(one)) => {
                    e.moving = Some(r.id);
                    return Some(one);
                }
                Ok(None) => {}
                Err(status) => r.failed = Some(status),
            }
            if e.run(&mut 0, &mut self.ready) {
                return None;
            }
        }
        None
    }
}

impl Adapter for LoopbackAdapter {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    unsafe fn register(&mut self, addr: u64, len: u64, access: Access) -> Result<Mr, Status> {
        // SAFETY: by the contract of this method.
        unsafe { self.hub.regions.write().insert(addr, len, access) }
    }

    fn deregister(&mut self, mr: Mr) -> Result<(), Status> {
        self.hub.regions.write().remove(mr)
    }

    fn create(&mut self, peer: &str) -> Result<EpId, Status> {
        let id = self.next_ep;
        self.next_ep = id.checked_add(1).ok_or_else(|| {
            Status::new(
                Code::ResourceExhausted,
                "this loopback adapter has used up its endpoint numbers",
            )
        })?;
        // Its place in each list.
        let all = self.eps.len() + 1;
        let room = self.eps.fits(1)
            && [&mut self.busy, &mut self.served, &mut self.wanted]
                .into_iter()
                .all(|l| l.fits(all))
            && self.ready.fits(self.posted + 2 * all);
        if !room {
            return Err(crate::room::none(size_of::<Endpoint>(), "an endpoint"));
        }
        let e = Endpoint {
            peer: peer.to_owned(),
            me: self.hub.add_end(id)?,
            out: None,
            hellos: Vec::new(),
            up: false,
            down: false,
            ops: VecDeque::new(),
            inbox: VecDeque::new(),
            under_way: 0,
            moving: None,
        };
        self.eps.insert(id, e);
        Ok(EpId(id))
    }

    fn address(&self, ep: EpId) -> Result<Vec<u8>, Status> {
        self.eps.get(&ep.0).map(|e| e.me.address()).ok_or_else(|| Self::unknown(ep))
    }

    fn connect(
        &mut self,
        ep: EpId,
        remote: &[u8],
        _active: bool,
        _sock: Option<Local<OwnedFd>>,
    ) -> Result<(), Status> {
        let e = self.eps.get_mut(&ep.0).ok_or_else(|| Self::unknown(ep))?;
        if e.out.is_some() || e.down {
            return Err(Status::new(
                Code::FailedPrecondition,
                text!("the loopback endpoint to peer '{}' was connected before", e.peer),
            ));
        }
        let end = hub::find(remote, &e.peer)?;
        let token = end.token;
        let lacks = || crate::room::none(size_of::<Item>(), "an endpoint");
        let mut out = Out::new(end.clone(), e.me.token).ok_or_else(lacks)?;
        let hello = out.letter(What::Hello(e.me.clone(), token), 0, self.depth);
        out.send(hello.map_err(|_| lacks())?);
        if end.closed.load(Ordering::SeqCst) {
            return Err(gone(&e.peer));
        }
        if e.hellos.contains(&token) {
            e.up = true;
            self.ready.push_back(Event::Connected(ep));
        }
        e.out = Some(out);
        Ok(())
    }

    fn send(&mut self, ep: EpId, parts: &[&[u8]]) -> Result<(), PostError> {
        let depth = self.depth;
        let e = self.posting(ep)?;
        let len: usize = parts.iter().map(|p| p.len()).sum();
        if len > MAX_SEND {
            return Err(PostError::Failed(Status::invalid(text!(
                "message of {len} bytes to peer '{}'; at most {MAX_SEND} are allowed",
                e.peer
            ))));
        }
        if !e.ops.fits(1) {
            return Err(PostError::Failed(crate::room::none(size_of::<Op>(), "a message")));
        }
        let Some(out) = &mut e.out else { return Err(PostError::QueueFull) };
        let mut message = out.letter(What::Message, len, depth)?;
        for part in parts {
            message.bytes.extend_from_slice(part);
        }
        match e.ops.is_empty() {
            true => out.send(message),
            false => e.ops.push_back(Op::Send(message)),
        }
        Ok(())
    }

    fn write(
        &mut self,
        ep: EpId,
        wr: u64,
        local: Mem,
        remote: Remote,
        imm: Option<u32>,
    ) -> Result<(), PostError> {
        let (addr, len) = (local.addr(), local.len());
        self.rdma(ep, local, Rdma::new(false, wr, addr, len, remote), imm)
    }

    fn read(&mut self, ep: EpId, wr: u64, local: Mem, remote: Remote) -> Result<(), PostError> {
        let (addr, len) = (local.addr(), local.len());
        self.rdma(ep, local, Rdma::new(true, wr, addr, len, remote), None)
    }

    fn progress_mark(&self, ep: EpId) -> u64 {
        // What the peer copies, and what this side does.
        let Some(e) = self.eps.get(&ep.0) else { return 0 };
        let pieces = |end: &End| end.pieces.load(Ordering::Relaxed) as u64;
        pieces(&e.me).wrapping_add(e.out.as_ref().map_or(0, |out| pieces(&out.end)))
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> bool {
        if self.armed {
            self.armed = false;
            self.hub.disarm();
        }
        self.reader.clear();
        let mut budget = if self.left { 0 } else { POLL_BYTES };
        for _ in 0..self.busy.len() {
            let Some(id) = self.busy.pop_front() else { break };
            if let Some(e) = self.eps.get_mut(&id)
                && !e.run(&mut budget, &mut self.ready)
            {
                self.busy.push_back(id);
                self.want(id);
            }
        }
        self.report(events);
        if self.stuck.is_some() || !self.served.is_empty() || !self.reader.is_empty() {
            self.serve(events);
            self.report(events);
        }
        self.has_moves()
    }

    fn poll_one(&mut self) -> One {
        let idle = self.busy.is_empty()
            && self.ready.is_empty()
            && self.served.is_empty()
            && self.wanted.is_empty()
            && self.stuck.is_none();
        if self.armed || !idle {
            return One::Other;
        }
        self.reader.clear();
        match self.take_message() {
            Some((ep, bytes)) => One::Message(ep, bytes),
            None if self.stuck.is_some() => One::Other,
            None => One::Nothing,
        }
    }

    fn poll_next(&mut self) -> Option<(EpId, View)> {
        if self.stuck.is_none() { self.take_message() } else { None }
    }

    fn arm(&mut self) -> bool {
        self.armed = true;
        let moving = |id| self.eps.get(id).is_some_and(|e: &Endpoint| e.moving.is_some());
        self.hub.arm(&self.reader)
            && self.ready.is_empty()
            && self.served.is_empty()
            && self.stuck.is_none()
            && self.busy.iter().all(moving)
    }

    fn leave_moves(&mut self) {
        self.left = true;
    }

    fn has_moves(&self) -> bool {
        !self.wanted.is_empty()
    }

    fn take_move(&mut self, events: &mut Vec<Event>) -> Option<Move> {
        while let Some(id) = self.wanted.pop_front() {
            let one = self.next_piece(id);
            self.report(events);
            if one.is_some() {
                return one;
            }
        }
        None
    }

    fn moved(&mut self, done: Moved, events: &mut Vec<Event>) {
        let id = done.ep.0;
        let Some(e) = self.eps.get_mut(&id) else { return };
        let moving = e.moving.take();
        if let Some(Op::Rdma(r)) = e.ops.front_mut()
            && Some(r.id) == moving
            && let Some(Out { end: remote, .. }) = &e.out
        {
            match r.allowed(remote, &e.peer).map(drop) {
                Ok(()) => r.done += done.result.unwrap_or(0) as u64,
                // Closed meanwhile: it does not count.
                Err(status) => r.failed = Some(status),
            }
            remote.pieces.fetch_add(1, Ordering::Relaxed);
        }
        if e.run(&mut 0, &mut self.ready) {
            self.busy.retain(|&x| x != id);
        }
        self.want(id);
        self.report(events);
    }

    fn fd(&self) -> Option<RawFd> {
        Some(self.hub.fd())
    }

    fn has_delivered(&mut self) -> bool {
        self.busy.is_empty()
    }

    fn hang_up(&mut self, ep: EpId) {
        if let Some(e) = self.eps.get(&ep.0) {
            e.me.closed.store(true, Ordering::SeqCst);
        }
    }

    fn destroy(&mut self, ep: EpId) {
        let Some(mut e) = self.eps.remove(&ep.0) else { return };
        self.hub.close_end(&e.me);
        self.posted = self.posted.saturating_sub(e.under_way);
        // Which tells the peer.
        drop(e.out.take());
        for mut item in e.inbox.drain(..) {
            self.reader.value(&mut item).refuse();
            self.reader.done(item);
        }
        self.busy.retain(|&x| x != ep.0);
        self.served.retain(|&x| x != ep.0);
        self.ready.retain(|event| match event {
            Event::Connected(x) => *x != ep,
            Event::Message { ep: x, .. } | Event::Written { ep: x, .. } => *x != ep,
            Event::Done { ep: x, .. } | Event::Down { ep: x, .. } => *x != ep,
        });
    }
}

impl Drop for LoopbackAdapter {
    fn drop(&mut self) {
        while let Some(&id) = self.eps.keys().next() {
            self.destroy(EpId(id));
        }
        self.hub.retire();
        while let Some(mut item) = self.stuck.take().or_else(|| self.reader.next()) {
            self.reader.value(&mut item).refuse();
            self.reader.done(item);
        }
    }
}
