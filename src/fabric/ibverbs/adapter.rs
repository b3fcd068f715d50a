//! The provider contract on a verbs device.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use foldhash::fast::RandomState;
use rdma_sys::ibv_wc;

use crate::config::IbConfig;
use crate::fabric::{Access, Adapter, Caps, EpId, Event, Mem, Mr, PostError, Remote};
use crate::local_fd::Local;
use crate::os::Epoll;
use crate::status::{Code, Status};

use super::address::{Address, LinkLayer};
use super::cm::{Cm, CmAddress};
use super::cq::{CompChannel, Cq};
use super::device::Context;
use super::endpoint::Endpoint;
use super::events::{Events, Happening};
use super::mr::{MemoryRegion, Pd};
use super::progress::{BATCH, ROUNDS};
use super::qp::{Path, Qp, QpDepth};
use super::recv::{self, RecvPool};
use super::select::{self, Choice, DeviceInfo};
use super::send::SendPool;
use super::several;

/// Up to here content is better inside a SEND: copying it twice costs less than another round
/// trip.
pub(super) const EAGER_MAX: usize = 4096;
/// Longest single WRITE or READ. Devices allow 1 GiB or more, but a peer whose memory is written sees
/// nothing of it, so that answers to its questions must get through between the pieces.
pub(super) const MAX_RDMA: u64 = 16 << 20;
/// The same on the software device, which moves some ten megabytes per second.
pub(super) const MAX_RDMA_SOFT: u64 = 4 << 20;

pub(super) type Map<K, V> = HashMap<K, V, RandomState>;

/// A completion queue and its endpoints.
pub(super) struct CqSlot {
    /// Never used again.
    pub id: usize,
    /// The queue.
    pub cq: Arc<Cq>,
    /// Endpoints on it.
    pub users: u32,
    /// Endpoints that it has room for.
    pub room: u32,
    /// It overran: its endpoints ended, and it is replaced when they are destroyed.
    pub lost: bool,
}

/// An opened RDMA device. Fields end in order: endpoints before what they use.
pub struct IbverbsAdapter {
    pub(super) endpoints: Map<u32, Endpoint>,
    pub(super) by_qpn: Map<u32, u32>,
    pub(super) regions: Map<u32, MemoryRegion>,
    pub(super) cm: Option<Cm>,
    pub(super) recv: RecvPool,
    pub(super) send: SendPool,
    pub(super) cqs: Vec<CqSlot>,
    pub(super) next_cq: usize,
    pub(super) channel: Arc<CompChannel>,
    pub(super) armed: bool,
    /// Between `arm` and `poll`: what is put into `ready` must wake.
    pub(super) sleeping: bool,
    pub(super) events: Events,
    pub(super) epoll: Epoll,
    pub(super) pd: Arc<Pd>,
    pub(super) context: Arc<Context>,
    pub(super) info: DeviceInfo,
    pub(super) choice: Choice,
    pub(super) cfg: IbConfig,
    /// Which of the devices it is that its manager uses.
    pub(super) number: u8,
    pub(super) name: String,
    pub(super) caps: Caps,
    pub(super) next: u32,
    pub(super) polls: u32,
    /// Endpoints with work requests not yet handed to the device.
    pub(super) dirty: Vec<u32>,
    /// Events for the next poll.
    pub(super) ready: Vec<Event>,
    /// Completions taken on the way, for the next poll.
    pub(super) stash: Vec<ibv_wc>,
    pub(super) wcs: Vec<ibv_wc>,
    /// Why nothing works any more.
    pub(super) lost: Option<Status>,
    pub(super) port_down: bool,
    /// Memory that the CPU cannot read is registered: nothing may be sent inline.
    pub(super) has_dmabuf: bool,
    pub(super) notes: Vec<String>,
}

impl IbverbsAdapter {
    /// Puts the queue pair of an endpoint into the error state behind the adapter's back, as a
    /// failing device does: for tests.
    pub fn force_error(&mut self, ep: EpId) -> Result<(), Status> {
        self.endpoint(ep)?.qp().map_or(Ok(()), Qp::to_error)
    }

    /// The device tells that the queue pair of an endpoint is in error, which is less than its
    /// completions tell: for tests.
    pub fn force_last_receive(&mut self, ep: EpId) -> Result<(), Status> {
        let qpn = self.endpoint(ep)?.qpn();
        self.events.pretend(Happening::LastReceive(qpn));
        Ok(())
    }

    /// The device tells of its end: for tests.
    pub fn force_loss(&mut self) {
        self.events.pretend(Happening::DeviceLost("lost for a test"));
    }

    /// The device's name.
    pub fn device(&self) -> &str {
        &self.info.name
    }

    fn keep(&mut self, region: MemoryRegion) -> Mr {
        let mr = Mr { lkey: region.lkey(), rkey: region.rkey() };
        self.regions.insert(mr.lkey, region);
        mr
    }

    pub(super) fn own_process(&self) -> Result<(), Status> {
        if !self.context.forked() {
            return Ok(());
        }
        Err(Status::new(
            Code::FailedPrecondition,
            text!(
                "process {} was forked after {} was opened; open it again in the child",
                std::process::id(),
                self.info.name
            ),
        ))
    }

    fn alive(&self) -> Result<(), Status> {
        self.own_process()?;
        match &self.lost {
            Some(s) => Err(s.clone()),
            None => Ok(()),
        }
    }

    fn local_address(&self, ep: &Endpoint) -> Address {
        Address {
            link: self.choice.port.link.unwrap_or(LinkLayer::Ethernet),
            gid_kind: self.choice.gid.kind,
            mtu: self.choice.mtu,
            reads_in: self.info.max_reads_in,
            grh_required: self.choice.port.grh_required,
            device: self.number,
            lid: self.choice.port.lid,
            qpn: ep.qpn(),
            psn: ep.psn,
            gid: self.choice.gid.gid,
        }
    }

    fn endpoint(&mut self, ep: EpId) -> Result<&mut Endpoint, Status> {
        self.endpoints
            .get_mut(&ep.0)
            .ok_or_else(|| Status::new(Code::NotFound, text!("endpoint {} does not exist", ep.0)))
    }

    /// Work that appeared while the owner sleeps wakes it.
    fn wake_if_asleep(&self) {
        if self.sleeping && !(self.ready.is_empty() && self.stash.is_empty()) {
            self.events.nudge();
        }
    }
}

impl several::Numbered for IbverbsAdapter {
    fn number_in(address: &[u8]) -> u8 {
        let queue_pair = Address::decode(address).map(|a| a.device);
        queue_pair.or_else(|_| CmAddress::decode(address).map(|a| a.device)).unwrap_or(0)
    }
}

impl Adapter for IbverbsAdapter {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    unsafe fn register(&mut self, addr: u64, len: u64, access: Access) -> Result<Mr, Status> {
        self.alive()?;
        if len > self.max_region() {
            return Err(Status::invalid(text!(
                "region of {len} bytes: {} allows {}; register it in parts",
                self.info.name,
                self.max_region()
            )));
        }
        // SAFETY: valid until `deregister`, by this function's contract.
        let region = unsafe { MemoryRegion::new(&self.pd, addr, len, access)? };
        Ok(self.keep(region))
    }

    fn max_region(&self) -> u64 {
        self.info.max_mr_size.min(self.cfg.max_region)
    }

    fn register_dmabuf(
        &mut self,
        fd: RawFd,
        offset: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Mr, Status> {
        self.alive()?;
        let region = MemoryRegion::from_dmabuf(&self.pd, fd, offset, len, iova, access)?;
        self.has_dmabuf = true;
        Ok(self.keep(region))
    }

    fn deregister(&mut self, mr: Mr) -> Result<(), Status> {
        self.own_process()?;
        match self.regions.entry(mr.lkey) {
            Entry::Occupied(e) if e.get().rkey() == mr.rkey => e.remove().close(),
            _ => Err(Status::new(Code::NotFound, text!("no region with key {:#x}", mr.lkey))),
        }
    }

    fn create(&mut self, peer: &str) -> Result<EpId, Status> {
        self.alive()?;
        if self.port_down {
            let (dev, port) = (&self.info.name, self.choice.port.number);
            return Err(Status::new(Code::Unavailable, text!("{dev} port {port} is down")));
        }
        if self.cfg.use_rdma_cm && self.cm.is_none() {
            self.restart_cm()?;
        }
        let (id, next) = (self.next, several::next_id(self.next)?);
        let cq = self.find_cq()?;
        let depth = QpDepth { send: self.send_slots(), recv: recv::DEPTH };
        let qp = Qp::new(&self.pd, &self.cqs[cq].cq, self.recv.srq(), &depth)?;
        qp.to_init(self.choice.port.number, self.cfg.pkey_index)?;
        let count = self.endpoints.len() as u32 + 1;
        if let Err(e) = self.recv.add_endpoint(&qp, count) {
            let qpn = qp.number();
            drop(qp);
            self.recv.remove_endpoint(qpn);
            return Err(e);
        }
        let psn = getrandom::u32().map_err(Status::random)? & 0xff_ffff;
        if let Some(cm) = &mut self.cm {
            cm.add(id, qp.number())?;
        }
        self.next = next;
        self.cqs[cq].users += 1;
        if self.by_qpn.contains_key(&qp.number()) {
            self.forget_completions(qp.number());
        }
        self.by_qpn.insert(qp.number(), id);
        let limits = (depth.send - 1, 2 * self.caps.max_rdma);
        let ep = Endpoint::new(EpId(id), (&self.name, peer), qp, cq, psn, limits);
        self.endpoints.insert(id, ep);
        Ok(EpId(id))
    }

    fn devices(&self, ep: EpId) -> (u8, u8) {
        (self.number, self.endpoints.get(&ep.0).map_or(0, |e| e.there))
    }

    fn address(&self, ep: EpId) -> Result<Vec<u8>, Status> {
        if let Some(a) = self.cm.as_ref().and_then(|cm| cm.address(ep.0, self.number)) {
            return Ok(a.encode());
        }
        match self.endpoints.get(&ep.0) {
            Some(e) => Ok(self.local_address(e).encode()),
            None => Err(Status::new(Code::NotFound, text!("endpoint {} does not exist", ep.0))),
        }
    }

    fn connect(
        &mut self,
        ep: EpId,
        remote: &[u8],
        active: bool,
        _sock: Option<Local<OwnedFd>>,
    ) -> Result<(), Status> {
        self.alive()?;
        let peer = self.endpoint(ep)?.peer().to_string();
        if !self.endpoint(ep)?.is_new() {
            let text = text!("endpoint to {peer} was connected before");
            return Err(Status::new(Code::FailedPrecondition, text));
        }
        if let Some(cm) = &mut self.cm {
            let remote = CmAddress::decode(remote)?;
            let event = cm.connect(ep.0, &remote, active)?;
            let endpoint = self.endpoint(ep)?;
            endpoint.there = remote.device;
            endpoint.connecting();
            if let Some(event) = event {
                self.connection_event(event);
            }
            return Ok(());
        }
        let remote = Address::decode(remote)?;
        let path = Path {
            port: self.choice.port.number,
            gid_index: self.choice.gid.index,
            sl: self.cfg.sl,
            traffic_class: self.cfg.traffic_class,
        };
        let reads_out = self.info.max_reads_out.min(remote.reads_in);
        let (timeout, retries) = (self.cfg.timeout, self.choice.retries);
        let local = self.local_address(&self.endpoints[&ep.0]);
        local.compatible(&remote)?;
        self.endpoint(ep)?.there = remote.device;
        if let Some(qp) = self.endpoint(ep)?.qp() {
            qp.to_rtr(&path, &local, &remote)?;
            qp.to_rts(timeout, retries, local.psn, reads_out)?;
        }
        let mtu = select::mtu_bytes(local.mtu.min(remote.mtu));
        self.probe(ep.0, mtu, active)?;
        self.wake_if_asleep();
        Ok(())
    }

    fn send(&mut self, ep: EpId, parts: &[&[u8]]) -> Result<(), PostError> {
        let len = parts.iter().fold(0usize, |n, p| n.saturating_add(p.len()));
        if len > recv::BUFFER {
            let text = text!("message of {len} bytes; at most {} are allowed", recv::BUFFER);
            return Err(PostError::Failed(Status::invalid(text)));
        }
        self.post(ep, |e, pool| e.send(parts, pool))
    }

    fn write(
        &mut self,
        ep: EpId,
        wr: u64,
        local: Mem,
        remote: Remote,
        imm: Option<u32>,
    ) -> Result<(), PostError> {
        self.check_len("write", &local)?;
        let inline = !self.has_dmabuf;
        self.post(ep, |e, _| e.write(wr, local, remote, imm, inline))
    }

    fn read(&mut self, ep: EpId, wr: u64, local: Mem, remote: Remote) -> Result<(), PostError> {
        self.check_len("read", &local)?;
        self.post(ep, |e, _| e.read(wr, local, remote))
    }

    fn flush(&mut self) -> bool {
        self.ring();
        self.wake_if_asleep();
        self.has_moves()
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> bool {
        if self.context.forked() {
            return false;
        }
        self.sleeping = false;
        // The views of the last poll end here.
        if self.recv.is_due() {
            self.repost();
        }
        let held = self.recv.held();
        if self.events.pending() {
            // Takes completions first: they tell more.
            self.take_happenings();
        }
        if !self.stash.is_empty() {
            for wc in std::mem::take(&mut self.stash) {
                self.complete(&wc);
            }
        }
        let mut wcs = std::mem::take(&mut self.wcs);
        for i in 0..self.cqs.len() {
            for _ in 0..ROUNDS {
                let n = self.cqs[i].cq.poll(&mut wcs);
                for wc in &wcs[..n] {
                    self.complete(wc);
                }
                if n < BATCH {
                    break;
                }
            }
        }
        self.wcs = wcs;
        self.polls = self.polls.wrapping_add(1);
        if self.cm.as_ref().is_some_and(|cm| cm.busy() || self.polls.is_multiple_of(64)) {
            self.poll_connections();
        }
        self.ring();
        if held > 0 && self.recv.held() == held {
            // Nothing came: a good moment, since no answer waits for it.
            self.repost();
        }
        events.append(&mut self.ready);
        self.has_moves()
    }

    fn arm(&mut self) -> bool {
        if self.context.forked() {
            return true;
        }
        // What rdma_cm has to say wakes at once; the next poll looks.
        self.polls = u32::MAX;
        self.ring();
        if !self.ready.is_empty() || !self.stash.is_empty() || self.events.pending() {
            return false;
        }
        if self.armed {
            self.channel.drain(&self.cqs);
        }
        self.armed = true;
        if self.lost.is_some() {
            // Nothing completes any more.
            self.sleeping = true;
            return true;
        }
        for slot in &self.cqs {
            slot.cq.arm();
        }
        // What completed before the arming makes no event.
        for slot in &self.cqs {
            Self::drain_cq(&slot.cq, &mut self.wcs, &mut self.stash, |_| false);
        }
        self.sleeping = self.stash.is_empty() && !self.events.pending();
        self.sleeping
    }

    fn fd(&self) -> Option<RawFd> {
        Some(self.epoll.as_raw_fd())
    }

    fn progress_mark(&self, ep: EpId) -> u64 {
        self.endpoints.get(&ep.0).map_or(0, |e| e.moved)
    }

    fn has_delivered(&mut self) -> bool {
        if self.lost.is_some() || self.context.forked() {
            return true;
        }
        let mut all = true;
        for (&id, e) in &mut self.endpoints {
            all &= e.has_delivered();
            if e.waiting() && !self.dirty.contains(&id) {
                self.dirty.push(id);
            }
        }
        self.ring();
        all
    }

    fn destroy(&mut self, ep: EpId) {
        let Some(e) = self.endpoints.remove(&ep.0) else { return };
        if let Some(cm) = &mut self.cm {
            cm.remove(ep.0);
        }
        if self.by_qpn.get(&e.qpn()) == Some(&ep.0) {
            self.by_qpn.remove(&e.qpn());
        }
        self.dirty.retain(|&id| id != ep.0);
        self.ready.retain(|event| match event {
            Event::Connected(e) => *e != ep,
            Event::Message { ep: e, .. }
            | Event::Written { ep: e, .. }
            | Event::Done { ep: e, .. }
            | Event::Down { ep: e, .. } => *e != ep,
        });
        if self.context.forked() {
            // The parent's queue pair: neither used nor destroyed here.
            std::mem::forget(e);
            return;
        }
        self.close(e);
        self.wake_if_asleep();
    }
}
