//! The provider contract on a verbs device.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use foldhash::fast::RandomState;
use rdma_sys::ibv_wc;

use crate::config::{Config, IbConfig};
use crate::fabric::{Access, Adapter, Caps, EpId, Event, Mem, Mr, PostError, ProviderKind, Remote};
use crate::status::{Code, Status};

use super::address::{Address, Link};
use super::cm::{self, Cm, CmAddress, Terms};
use super::cq::{CompChannel, Cq, empty_wc};
use super::device::{self, Context};
use super::endpoint::Endpoint;
use super::events::Events;
use super::mr::{Pd, Region};
use super::progress::{BATCH, ROUNDS};
use super::qp::{Path, Qp, QpDepth};
use super::recv::{self, RecvPool};
use super::select::{self, Choice, DeviceInfo};
use super::send::SendPool;
use super::sys;

/// Up to here content is better inside a SEND: copying it twice costs less than another round
/// trip.
const EAGER_MAX: usize = 4096;
/// Longest single WRITE or READ. Devices allow 1 GiB or more, but a completion now and then shows
/// that a long transfer moves.
const MAX_RDMA: u64 = 64 << 20;
/// Endpoints that share a completion queue.
const PER_CQ: u32 = 8;

pub(super) type Map<K, V> = HashMap<K, V, RandomState>;

/// An opened RDMA device. Fields end in order: endpoints before what they use.
pub struct IbverbsAdapter {
    pub(super) endpoints: Map<u32, Endpoint>,
    pub(super) by_qpn: Map<u32, u32>,
    pub(super) regions: Map<u32, Region>,
    pub(super) cm: Option<Cm>,
    pub(super) recv: RecvPool,
    pub(super) send: SendPool,
    pub(super) cqs: Vec<Arc<Cq>>,
    /// Endpoints on each completion queue.
    pub(super) cq_users: Vec<u32>,
    pub(super) per_cq: u32,
    pub(super) channel: Arc<CompChannel>,
    pub(super) armed: bool,
    /// Between `arm` and `poll`: what is put into `ready` must wake.
    pub(super) sleeping: bool,
    pub(super) events: Events,
    pub(super) epoll: OwnedFd,
    pub(super) pd: Arc<Pd>,
    pub(super) context: Arc<Context>,
    pub(super) info: DeviceInfo,
    pub(super) choice: Choice,
    pub(super) cfg: IbConfig,
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

/// Opens the device that the settings name, or the best one.
pub fn open(cfg: &Config) -> Result<IbverbsAdapter, Status> {
    let found = device::list(cfg.ib.device.as_deref())?;
    let infos: Vec<DeviceInfo> = found.iter().map(|f| f.0.clone()).collect();
    let choice = select::choose(&infos, &cfg.ib, cfg.queue_depth)?;
    let (info, context) = found.into_iter().nth(choice.device).unwrap_or_else(|| unreachable!());
    let context =
        context.ok_or_else(|| Status::internal(format!("{} is not open", choice.device)))?;
    IbverbsAdapter::new(cfg, choice, info, context)
}

fn epoll_of(fds: &[RawFd]) -> Result<OwnedFd, Status> {
    // SAFETY: makes a new descriptor.
    let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if fd < 0 {
        return Err(Status::os("epoll", &sys::last_error()));
    }
    // SAFETY: a new descriptor, owned by nobody else.
    let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
    for &fd in fds {
        let mut e = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: two live descriptors and a live struct.
        let rc = unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut e) };
        if rc < 0 {
            return Err(Status::os("epoll", &sys::last_error()));
        }
    }
    Ok(epoll)
}

fn start_cm(cfg: &Config, choice: &Choice, info: &DeviceInfo) -> Result<Cm, Status> {
    let link = choice.port.link.unwrap_or(Link::Ethernet);
    let terms = Terms {
        reads_in: info.max_reads_in,
        reads_out: info.max_reads_out,
        retries: choice.retries,
        timeout: cfg.ib.timeout,
        sl: cfg.ib.sl,
        traffic_class: cfg.ib.traffic_class,
        mtu: choice.mtu,
    };
    Cm::listen(cm::ip_of(&info.name, link, &choice.gid.gid)?, terms)
}

impl IbverbsAdapter {
    fn new(
        cfg: &Config,
        choice: Choice,
        info: DeviceInfo,
        context: Arc<Context>,
    ) -> Result<IbverbsAdapter, Status> {
        let pd = Pd::new(context.clone())?;
        let channel = CompChannel::new(context.clone())?;
        let events = Events::start(context.clone())?;
        let cm = if cfg.ib.use_rdma_cm { Some(start_cm(cfg, &choice, &info)?) } else { None };
        let mut fds = vec![channel.fd(), events.fd()];
        fds.extend(cm.as_ref().map(Cm::fd));
        let epoll = epoll_of(&fds)?;
        // A completion queue must have room for all receives and the sends of its endpoints.
        let recv = RecvPool::new(&pd, info.max_srq_wr.min(info.max_cqe / 2))?;
        let each = Self::completions_each(&choice, &recv);
        let per_cq = (info.max_cqe.saturating_sub(recv.capacity()) / each).clamp(1, PER_CQ);
        let caps = Caps {
            provider: ProviderKind::Ibverbs,
            max_send: recv::BUFFER,
            eager_max: EAGER_MAX,
            max_rdma: MAX_RDMA.min(u64::from(choice.port.max_msg)),
            read: info.max_reads_in > 0 && info.max_reads_out > 0,
            windows: false,
            recv_depth: recv::DEPTH,
        };
        let mut notes = choice.notes.clone();
        notes.extend(context.verbs().fork_note.clone());
        if recv.srq().is_none() {
            notes.push(format!("{} has no shared receive queue: one per connection", info.name));
        }
        Ok(IbverbsAdapter {
            endpoints: Map::default(),
            by_qpn: Map::default(),
            regions: Map::default(),
            cm,
            send: SendPool::new(&pd)?,
            recv,
            cqs: Vec::new(),
            cq_users: Vec::new(),
            per_cq,
            channel,
            armed: false,
            sleeping: false,
            events,
            epoll,
            pd,
            context,
            info,
            choice,
            cfg: cfg.ib.clone(),
            name: if cfg.name.is_empty() { "this process".into() } else { cfg.name.clone() },
            caps,
            next: 0,
            polls: 0,
            dirty: Vec::new(),
            ready: Vec::new(),
            stash: Vec::new(),
            wcs: (0..BATCH).map(|_| empty_wc()).collect(),
            lost: None,
            port_down: false,
            has_dmabuf: false,
            notes,
        })
    }

    /// The device's name.
    pub fn device(&self) -> &str {
        &self.info.name
    }

    /// Longest memory region of the device; a longer range needs several.
    pub fn max_region(&self) -> u64 {
        self.info.max_mr_size
    }

    /// Registers device memory exported as dmabuf `fd`; operations name it by addresses from
    /// `iova` on.
    pub fn register_dmabuf(
        &mut self,
        fd: RawFd,
        offset: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Mr, Status> {
        self.own_process()?;
        let region = Region::from_dmabuf(&self.pd, fd, offset, len, iova, access)?;
        self.has_dmabuf = true;
        Ok(self.keep(region))
    }

    fn keep(&mut self, region: Region) -> Mr {
        let mr = Mr { lkey: region.lkey(), rkey: region.rkey() };
        self.regions.insert(mr.lkey, region);
        mr
    }

    fn own_process(&self) -> Result<(), Status> {
        if !self.context.forked() {
            return Ok(());
        }
        Err(Status::new(
            Code::FailedPrecondition,
            format!(
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

    /// Completions that one endpoint can have waiting, shared receives apart: its send queue, the
    /// marker that ends it, and receives of its own.
    fn completions_each(choice: &Choice, recv: &RecvPool) -> u32 {
        choice.depth + 1 + if recv.srq().is_some() { 0 } else { recv::DEPTH }
    }

    /// A completion queue with room for one more endpoint.
    fn find_cq(&mut self) -> Result<usize, Status> {
        if let Some(i) = self.cq_users.iter().position(|&n| n < self.per_cq) {
            return Ok(i);
        }
        let each = Self::completions_each(&self.choice, &self.recv);
        let entries = (each * self.per_cq + self.recv.capacity()).min(self.info.max_cqe);
        let index = self.cqs.len();
        let cq = Cq::new(&self.channel, entries, index)?;
        if self.armed {
            cq.arm();
        }
        self.cqs.push(cq);
        self.cq_users.push(0);
        Ok(index)
    }

    fn local_address(&self, ep: &Endpoint) -> Address {
        Address {
            link: self.choice.port.link.unwrap_or(Link::Ethernet),
            gid_kind: self.choice.gid.kind,
            mtu: self.choice.mtu,
            reads_in: self.info.max_reads_in,
            lid: self.choice.port.lid,
            qpn: ep.qpn(),
            psn: ep.psn,
            gid: self.choice.gid.gid,
        }
    }

    fn endpoint(&mut self, ep: EpId) -> Result<&mut Endpoint, Status> {
        self.endpoints
            .get_mut(&ep.0)
            .ok_or_else(|| Status::new(Code::NotFound, format!("endpoint {} does not exist", ep.0)))
    }

    /// Runs a post on an endpoint and remembers to flush it.
    fn post(
        &mut self,
        ep: EpId,
        f: impl FnOnce(&mut Endpoint, &mut SendPool) -> Result<bool, PostError>,
    ) -> Result<(), PostError> {
        self.own_process().map_err(PostError::Failed)?;
        let Some(e) = self.endpoints.get_mut(&ep.0) else {
            let s = Status::new(Code::NotFound, format!("endpoint {} does not exist", ep.0));
            return Err(PostError::Failed(s));
        };
        if f(e, &mut self.send)? {
            self.dirty.push(ep.0);
        }
        Ok(())
    }

    fn check_len(&self, what: &str, local: &Mem) -> Result<(), PostError> {
        let n = local.len();
        if n > self.caps.max_rdma {
            let max = self.caps.max_rdma;
            let s = Status::invalid(format!("{what} of {n} bytes; at most {max} are allowed"));
            return Err(PostError::Failed(s));
        }
        Ok(())
    }

    /// Hands to the device what was posted.
    pub(super) fn ring(&mut self) {
        if self.dirty.is_empty() || self.context.forked() {
            return;
        }
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.retain(|id| {
            let Some(ep) = self.endpoints.get_mut(id) else { return false };
            ep.flush(&mut self.send, &mut self.ready);
            ep.waiting()
        });
        self.dirty = dirty;
    }

    /// Work that appeared while the owner sleeps wakes it.
    fn wake_if_asleep(&self) {
        if self.sleeping && !(self.ready.is_empty() && self.stash.is_empty()) {
            self.events.nudge();
        }
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
        if len > self.info.max_mr_size {
            return Err(Status::invalid(format!(
                "region of {len} bytes: {} allows {}; register it in parts",
                self.info.name, self.info.max_mr_size
            )));
        }
        // SAFETY: valid until `deregister`, by this function's contract.
        let region = unsafe { Region::new(&self.pd, addr, len, access)? };
        Ok(self.keep(region))
    }

    fn deregister(&mut self, mr: Mr) -> Result<(), Status> {
        self.own_process()?;
        match self.regions.entry(mr.lkey) {
            Entry::Occupied(e) if e.get().rkey() == mr.rkey => e.remove().close(),
            _ => Err(Status::new(Code::NotFound, format!("no region with key {:#x}", mr.lkey))),
        }
    }

    fn create(&mut self, peer: &str) -> Result<EpId, Status> {
        self.alive()?;
        if self.port_down {
            let (dev, port) = (&self.info.name, self.choice.port.number);
            return Err(Status::new(Code::Unavailable, format!("{dev} port {port} is down")));
        }
        let cq = self.find_cq()?;
        let depth = QpDepth { send: self.choice.depth + 1, recv: recv::DEPTH };
        let qp = Qp::new(&self.pd, &self.cqs[cq], self.recv.srq(), &depth)?;
        qp.to_init(self.choice.port.number, self.cfg.pkey_index)?;
        let count = self.endpoints.len() as u32 + 1;
        if let Err(e) = self.recv.add_endpoint(&qp, count) {
            let qpn = qp.number();
            drop(qp);
            self.recv.remove_endpoint(qpn);
            return Err(e);
        }
        let psn = getrandom::u32()
            .map_err(|e| Status::internal(format!("no random numbers: {e}")))?
            & 0xff_ffff;
        let id = self.next;
        self.next += 1;
        if let Some(cm) = &mut self.cm {
            cm.add(id, qp.number())?;
        }
        self.cq_users[cq] += 1;
        if self.by_qpn.contains_key(&qp.number()) {
            self.forget_completions(qp.number());
        }
        self.by_qpn.insert(qp.number(), id);
        let ep = Endpoint::new(EpId(id), (&self.name, peer), qp, cq, psn, self.choice.depth);
        self.endpoints.insert(id, ep);
        Ok(EpId(id))
    }

    fn address(&self, ep: EpId) -> Result<Vec<u8>, Status> {
        if let Some(a) = self.cm.as_ref().and_then(|cm| cm.address(ep.0)) {
            return Ok(a.encode());
        }
        match self.endpoints.get(&ep.0) {
            Some(e) => Ok(self.local_address(e).encode()),
            None => Err(Status::new(Code::NotFound, format!("endpoint {} does not exist", ep.0))),
        }
    }

    fn connect(
        &mut self,
        ep: EpId,
        remote: &[u8],
        active: bool,
        _sock: Option<OwnedFd>,
    ) -> Result<(), Status> {
        self.alive()?;
        let peer = self.endpoint(ep)?.peer().to_string();
        if !self.endpoint(ep)?.is_new() {
            let text = format!("endpoint to {peer} was connected before");
            return Err(Status::new(Code::FailedPrecondition, text));
        }
        if let Some(cm) = &mut self.cm {
            let remote = CmAddress::decode(remote)?;
            let event = cm.connect(ep.0, &remote, active)?;
            self.endpoint(ep)?.connecting();
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
        let e = self.endpoint(ep)?;
        if let Some(qp) = e.qp() {
            qp.to_rtr(&path, &local, &remote)?;
            qp.to_rts(timeout, retries, local.psn, reads_out)?;
        }
        let _ = e.connected();
        self.ready.push(Event::Connected(ep));
        self.wake_if_asleep();
        Ok(())
    }

    fn send(&mut self, ep: EpId, parts: &[&[u8]]) -> Result<(), PostError> {
        let len = parts.iter().fold(0usize, |n, p| n.saturating_add(p.len()));
        if len > recv::BUFFER {
            let text = format!("message of {len} bytes; at most {} are allowed", recv::BUFFER);
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

    fn flush(&mut self) {
        self.ring();
        self.wake_if_asleep();
    }

    fn poll(&mut self, events: &mut Vec<Event>) {
        if self.context.forked() {
            return;
        }
        self.sleeping = false;
        // The views of the last poll end here.
        let (recv, endpoints, by_qpn) = (&mut self.recv, &self.endpoints, &self.by_qpn);
        let posted = recv.repost(|qpn| endpoints.get(by_qpn.get(&qpn)?)?.qp());
        if posted.is_err() && self.lost.is_none() {
            self.device_lost("receives cannot be posted");
        }
        if self.events.pending() {
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
                let n = self.cqs[i].poll(&mut wcs);
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
        events.append(&mut self.ready);
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
        for cq in &self.cqs {
            cq.arm();
        }
        // What completed before the arming makes no event.
        for cq in &self.cqs {
            Self::drain_cq(cq, &mut self.wcs, &mut self.stash, |_| false);
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
