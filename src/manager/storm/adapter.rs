//! A provider whose events come late and whose connections break: the loopback provider, disturbed within the contract.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::fabric::moves::{Move, Moved};
use crate::fabric::{
    Access, Adapter, Caps, EpId, Event, Mem, Mr, PoolSegment, PostError, Remote, View,
};
use crate::status::Status;

/// What is drawn, and what is seen of the adapter.
pub struct Luck {
    state: u64,
    /// No more disturbances.
    pub calm: bool,
    /// The next poll breaks a connection.
    pub cut: bool,
    /// Regions that are open, and endpoints that are there.
    pub open: usize,
    pub endpoints: usize,
    /// How often what happened.
    pub late: usize,
    pub full: usize,
    pub cuts: usize,
}

impl Luck {
    pub fn new(seed: u64) -> Luck {
        let state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let (open, endpoints, late, full, cuts) = (0, 0, 0, 0, 0);
        Luck { state, calm: false, cut: false, open, endpoints, late, full, cuts }
    }

    /// Less than `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) % n.max(1)
    }

    /// A disturbance, so many times in a hundred.
    fn strikes(&mut self, percent: u64) -> bool {
        !self.calm && self.below(100) < percent
    }
}

/// An event that waits, with its bytes.
enum LateEvent {
    Connected,
    Message(Box<[u8]>),
    Written(u32),
    Done(u64, Result<(), Status>),
    Down(Status),
}

#[derive(Default)]
struct Endpoint {
    waiting: VecDeque<LateEvent>,
    /// Operations that were accepted and not reported.
    posted: Vec<u64>,
    connected: bool,
    broken: bool,
}

/// A loopback adapter whose events come late and whose connections break, by chance.
pub struct Disturbed {
    inner: Box<dyn Adapter>,
    luck: Arc<Mutex<Luck>>,
    endpoints: BTreeMap<u32, Endpoint>,
    /// Messages that were shown in the last poll, and those of the poll before, which nobody may look at any more.
    shown: Vec<Box<[u8]>>,
    stale: Vec<Box<[u8]>>,
}

fn broken() -> Status {
    Status::gone("the connection was broken")
}

impl Disturbed {
    pub fn new(inner: Box<dyn Adapter>, luck: Arc<Mutex<Luck>>) -> Disturbed {
        let endpoints = BTreeMap::new();
        Disturbed { inner, luck, endpoints, shown: Vec::new(), stale: Vec::new() }
    }

    /// Takes what the provider reports.
    fn keep(&mut self, events: Vec<Event>) {
        for event in events {
            let (ep, kept) = match event {
                Event::Connected(ep) => (ep, LateEvent::Connected),
                Event::Message { ep, bytes } => (ep, LateEvent::Message(bytes.bytes().into())),
                Event::Written { ep, imm } => (ep, LateEvent::Written(imm)),
                Event::Done { ep, wr, result } => (ep, LateEvent::Done(wr, result)),
                Event::Down { ep, status } => (ep, LateEvent::Down(status)),
            };
            if let Some(e) = self.endpoints.get_mut(&ep.0)
                && !e.broken
            {
                e.connected |= matches!(kept, LateEvent::Connected);
                e.waiting.push_back(kept);
            }
        }
    }

    /// Breaks one connection: what is under way on it is reported, then its end.
    fn cut(&mut self) {
        let up: Vec<u32> = self
            .endpoints
            .iter()
            .filter(|(_, e)| e.connected && !e.broken)
            .map(|(&i, _)| i)
            .collect();
        let mut luck = self.luck.lock();
        let at = luck.below(up.len() as u64) as usize;
        let Some(&id) = up.get(at) else { return };
        luck.cut = false;
        luck.cuts += 1;
        drop(luck);
        self.inner.destroy(EpId(id));
        let Some(e) = self.endpoints.get_mut(&id) else { return };
        e.broken = true;
        // Those whose end waits to be told have ended.
        let told: Vec<u64> = e
            .waiting
            .iter()
            .filter_map(|k| if let LateEvent::Done(wr, _) = k { Some(*wr) } else { None })
            .collect();
        let mut left = e.posted.clone();
        for wr in told {
            left.iter().position(|&p| p == wr).map(|at| left.swap_remove(at));
        }
        e.waiting.extend(left.into_iter().map(|wr| LateEvent::Done(wr, Err(broken()))));
        e.waiting.push_back(LateEvent::Down(broken()));
    }

    fn show(&mut self, ep: EpId, kept: LateEvent) -> Event {
        match kept {
            LateEvent::Connected => Event::Connected(ep),
            LateEvent::Message(bytes) => {
                // SAFETY: kept, unchanged, until the next poll.
                let view = unsafe { View::new(bytes.as_ptr(), bytes.len()) };
                self.shown.push(bytes);
                Event::Message { ep, bytes: view }
            }
            LateEvent::Written(imm) => Event::Written { ep, imm },
            LateEvent::Done(wr, result) => {
                let posted = self.endpoints.get_mut(&ep.0).map(|e| &mut e.posted);
                let at = posted.as_ref().and_then(|p| p.iter().position(|&p| p == wr));
                let at = at.expect("reported once, and of what was posted");
                posted.map(|p| p.swap_remove(at));
                Event::Done { ep, wr, result }
            }
            LateEvent::Down(status) => Event::Down { ep, status },
        }
    }

    /// The endpoint, if there is room for a post.
    fn posting(&mut self, ep: EpId) -> Result<&mut Endpoint, PostError> {
        let e = self.endpoints.get_mut(&ep.0).expect("posted to an endpoint that was destroyed");
        if e.broken {
            return Err(PostError::Failed(broken()));
        }
        let mut luck = self.luck.lock();
        if luck.strikes(10) {
            luck.full += 1;
            return Err(PostError::QueueFull);
        }
        Ok(e)
    }
}

impl Adapter for Disturbed {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    unsafe fn register(&mut self, addr: u64, len: u64, access: Access) -> Result<Mr, Status> {
        // SAFETY: the caller's promise.
        let mr = unsafe { self.inner.register(addr, len, access) }?;
        self.luck.lock().open += 1;
        Ok(mr)
    }

    fn deregister(&mut self, mr: Mr) -> Result<(), Status> {
        self.inner.deregister(mr)?;
        self.luck.lock().open -= 1;
        Ok(())
    }

    fn grant(&mut self, ep: EpId, mr: Mr) {
        self.inner.grant(ep, mr);
    }

    fn add_pool(&mut self, segment: PoolSegment) -> Result<(), Status> {
        self.inner.add_pool(segment)
    }

    fn create(&mut self, peer: &str) -> Result<EpId, Status> {
        let ep = self.inner.create(peer)?;
        self.endpoints.insert(ep.0, Endpoint::default());
        self.luck.lock().endpoints += 1;
        Ok(ep)
    }

    fn address(&self, ep: EpId) -> Result<Vec<u8>, Status> {
        self.inner.address(ep)
    }

    fn connect(
        &mut self,
        ep: EpId,
        remote: &[u8],
        active: bool,
        sock: Option<crate::local_fd::Local<OwnedFd>>,
    ) -> Result<(), Status> {
        self.inner.connect(ep, remote, active, sock)
    }

    fn send(&mut self, ep: EpId, parts: &[&[u8]]) -> Result<(), PostError> {
        self.posting(ep)?;
        self.inner.send(ep, parts)
    }

    fn write(
        &mut self,
        ep: EpId,
        wr: u64,
        local: Mem,
        remote: Remote,
        imm: Option<u32>,
    ) -> Result<(), PostError> {
        self.posting(ep)?;
        self.inner.write(ep, wr, local, remote, imm)?;
        self.posting_done(ep, wr)
    }

    fn write_copied(
        &mut self,
        ep: EpId,
        wr: u64,
        content: &[u8],
        remote: Remote,
        imm: Option<u32>,
    ) -> Result<(), PostError> {
        self.posting(ep)?;
        self.inner.write_copied(ep, wr, content, remote, imm)?;
        self.posting_done(ep, wr)
    }

    fn read(&mut self, ep: EpId, wr: u64, local: Mem, remote: Remote) -> Result<(), PostError> {
        self.posting(ep)?;
        self.inner.read(ep, wr, local, remote)?;
        self.posting_done(ep, wr)
    }

    fn flush(&mut self) -> bool {
        self.inner.flush()
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> bool {
        self.stale = std::mem::take(&mut self.shown);
        self.stale.iter_mut().for_each(|bytes| bytes.fill(0xEE));
        let mut new = Vec::new();
        self.inner.poll(&mut new);
        self.keep(new);
        if self.luck.lock().cut {
            self.cut();
        }
        let ids: Vec<u32> = self.endpoints.keys().copied().collect();
        for id in ids {
            while self.endpoints.get(&id).is_some_and(|e| !e.waiting.is_empty()) {
                let mut luck = self.luck.lock();
                if luck.strikes(40) {
                    luck.late += 1;
                    break;
                }
                drop(luck);
                let next = self.endpoints.get_mut(&id).and_then(|e| e.waiting.pop_front());
                let Some(kept) = next else { break };
                let event = self.show(EpId(id), kept);
                events.push(event);
            }
        }
        self.has_moves()
    }

    fn leave_moves(&mut self) {
        self.inner.leave_moves();
    }

    fn has_moves(&self) -> bool {
        self.inner.has_moves()
    }

    fn take_move(&mut self, _: &mut Vec<Event>) -> Option<Move> {
        let mut new = Vec::new();
        let one = self.inner.take_move(&mut new);
        self.keep(new);
        one
    }

    fn take_own_move(&mut self, own: Range<u64>) -> Option<Move> {
        self.inner.take_own_move(own)
    }

    fn moved(&mut self, done: Moved, _: &mut Vec<Event>) {
        let mut new = Vec::new();
        self.inner.moved(done, &mut new);
        self.keep(new);
    }

    fn arm(&mut self) -> bool {
        self.inner.arm() && self.endpoints.values().all(|e| e.waiting.is_empty())
    }

    fn fd(&self) -> Option<RawFd> {
        self.inner.fd()
    }

    fn has_rest(&self, ep: EpId) -> bool {
        self.inner.has_rest(ep)
    }

    fn reads_sources(&self, ep: EpId) -> bool {
        self.inner.reads_sources(ep)
    }

    fn progress_mark(&self, ep: EpId) -> u64 {
        self.inner.progress_mark(ep)
    }

    fn sign_of_life(&self, ep: EpId) -> u64 {
        self.inner.sign_of_life(ep)
    }

    fn has_delivered(&mut self) -> bool {
        self.inner.has_delivered()
    }

    fn has_stalled(&self, time: std::time::Duration) -> bool {
        self.inner.has_stalled(time)
    }

    fn hang_up(&mut self, ep: EpId) {
        self.inner.hang_up(ep);
    }

    fn destroy(&mut self, ep: EpId) {
        let gone = self.endpoints.remove(&ep.0);
        let gone = gone.expect("an endpoint is destroyed once");
        self.luck.lock().endpoints -= 1;
        if !gone.broken {
            self.inner.destroy(ep);
        }
    }
}

impl Disturbed {
    fn posting_done(&mut self, ep: EpId, wr: u64) -> Result<(), PostError> {
        if let Some(e) = self.endpoints.get_mut(&ep.0) {
            e.posted.push(wr);
        }
        Ok(())
    }
}
