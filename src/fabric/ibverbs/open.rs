//! Opening a device, and the completion queues of its endpoints.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use crate::config::{Config, IbConfig};
use crate::fabric::{Adapter, Caps, ProviderKind};
use crate::os::epoll::{Epoll, READ};
use crate::status::Status;

use super::adapter::{CqSlot, EAGER_MAX, IbverbsAdapter, MAX_RDMA, MAX_RDMA_SOFT, Map};
use super::address::LinkLayer;
use super::cm::Cm;
use super::cm_sys::ip_of;
use super::cq::{CompChannel, Cq, empty_wc};
use super::device::{self, Context};
use super::events::Events;
use super::mr::Pd;
use super::progress::BATCH;
use super::recv::{self, RecvPool};
use super::select::{self, Choice, DeviceInfo};
use super::send::SendPool;
use super::several::{self, Several};
use super::terms::Terms;

/// Endpoints that share a completion queue: few on the first, for managers with few peers. Each queue
/// must have room for all shared receives, which is most of its size.
const ON_FIRST_CQ: u32 = 8;
const PER_CQ: u32 = 64;
/// From this depth on the marker and the slot that some drivers add are taken from the depth, so that
/// a power of two does not become the next one.
const DEEP: u32 = 16;

/// Opens the device that the settings name, or the best one.
pub fn open(cfg: &Config) -> Result<IbverbsAdapter, Status> {
    open_one(cfg, &cfg.ib, 0)
}

/// Opens the devices that the settings name, or the best one.
pub fn open_all(cfg: &Config) -> Result<Box<dyn Adapter>, Status> {
    let named = cfg.ib.devices()?;
    let of = |(name, port): &(String, Option<u8>)| IbConfig {
        device: Some(name.clone()),
        port: port.unwrap_or(cfg.ib.port),
        ..cfg.ib.clone()
    };
    match &named[..] {
        [] => Ok(Box::new(open(cfg)?)),
        [one] => Ok(Box::new(open_one(cfg, &of(one), 0)?)),
        several => {
            let numbered = several.iter().zip(0..);
            let open = |(one, number)| {
                let adapter = open_one(cfg, &of(one), number)?;
                Ok((one.0.clone(), adapter))
            };
            let all = numbered.map(open).collect::<Result<Vec<_>, Status>>()?;
            Ok(Box::new(Several::new(all)?))
        }
    }
}

fn open_one(cfg: &Config, ib: &IbConfig, number: u8) -> Result<IbverbsAdapter, Status> {
    let found = device::list(ib.device.as_deref())?;
    let infos: Vec<DeviceInfo> = found.iter().map(|f| f.0.clone()).collect();
    let choice = select::choose(&infos, ib, cfg.queue_depth)?;
    let (info, context) = found.into_iter().nth(choice.device).unwrap_or_else(|| unreachable!());
    let context =
        context.ok_or_else(|| Status::internal(text!("{} is not open", choice.device)))?;
    IbverbsAdapter::new((cfg, ib, number), choice, info, context)
}

/// A set that is readable when one of these is.
pub(super) fn epoll_of(fds: &[RawFd]) -> Result<Epoll, Status> {
    let epoll = Epoll::new().map_err(failed)?;
    for fd in fds {
        epoll.add(fd, READ, 0).map_err(failed)?;
    }
    Ok(epoll)
}

fn failed(e: io::Error) -> Status {
    Status::os("epoll", &e)
}

fn start_cm(cfg: &IbConfig, choice: &Choice, info: &DeviceInfo) -> Result<Cm, Status> {
    let link = choice.port.link.unwrap_or(LinkLayer::Ethernet);
    let terms = Terms {
        reads_in: info.max_reads_in,
        reads_out: info.max_reads_out,
        retries: choice.retries,
        timeout: cfg.timeout,
        sl: cfg.sl,
        traffic_class: cfg.traffic_class,
        mtu: choice.mtu,
    };
    Cm::listen(ip_of(&info.name, link, &choice.gid.gid)?, terms)
}

impl IbverbsAdapter {
    fn new(
        (cfg, ib, number): (&Config, &IbConfig, u8),
        choice: Choice,
        info: DeviceInfo,
        context: Arc<Context>,
    ) -> Result<IbverbsAdapter, Status> {
        let pd = Pd::new(context.clone())?;
        let channel = CompChannel::new(context.clone())?;
        let events = Events::start(context.clone())?;
        let cm = if ib.use_rdma_cm { Some(start_cm(ib, &choice, &info)?) } else { None };
        let mut fds = vec![channel.fd(), events.fd()];
        fds.extend(cm.as_ref().map(Cm::fd));
        let epoll = epoll_of(&fds)?;
        let recv = RecvPool::new(&pd, info.max_srq_wr.min(info.max_cqe / 2))?;
        let max_rdma = if info.soft_roce { MAX_RDMA_SOFT } else { MAX_RDMA };
        let caps = Caps {
            provider: ProviderKind::Ibverbs,
            max_send: recv::BUFFER,
            eager_max: EAGER_MAX,
            max_rdma: max_rdma.min(u64::from(choice.port.max_msg)),
            read: info.max_reads_in > 0 && info.max_reads_out > 0,
            windows: false,
            recv_depth: recv::DEPTH,
            plain_max: 0,
            direct_max: 0,
            staged_max: 0,
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
            next_cq: 0,
            channel,
            armed: false,
            sleeping: false,
            events,
            epoll,
            pd,
            context,
            info,
            choice,
            cfg: ib.clone(),
            number,
            name: if cfg.name.is_empty() { "this process".into() } else { cfg.name.clone() },
            caps,
            next: several::first_id(number),
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

    /// Listens for rdma_cm at the port's present address. What was being connected at the old one ends.
    pub(super) fn restart_cm(&mut self) -> Result<(), Status> {
        // Its descriptor leaves the epoll set when it is closed.
        self.cm = None;
        let cm = start_cm(&self.cfg, &self.choice, &self.info)?;
        self.epoll.add(&cm.fd(), READ, 0).map_err(failed)?;
        self.cm = Some(cm);
        Ok(())
    }

    /// The owner no longer sleeps on this descriptor.
    pub(super) fn unwatch(&self, fd: RawFd) {
        // Fails where it is not watched, which is as wanted.
        let _ = self.epoll.remove(&fd);
    }

    /// Slots of a send queue: one more than may be used, for the marker that ends it.
    pub(super) fn send_slots(&self) -> u32 {
        let depth = self.choice.depth;
        if depth < DEEP { depth + 1 } else { depth - 1 }
    }

    /// A completion queue with room for one more endpoint.
    pub(super) fn find_cq(&mut self) -> Result<usize, Status> {
        let free = |s: &CqSlot| s.users == 0 && s.lost;
        if let Some(i) = self.cqs.iter().position(|s| !s.lost && s.users < s.room) {
            return Ok(i);
        }
        // Completions that one endpoint can have waiting, shared receives apart.
        let own = if self.recv.srq().is_some() { 0 } else { recv::DEPTH };
        let each = self.send_slots() + own;
        let index = self.cqs.iter().position(free).unwrap_or(self.cqs.len());
        let room = if index == 0 { ON_FIRST_CQ } else { PER_CQ };
        let shared = self.recv.capacity();
        let room = (self.info.max_cqe.saturating_sub(shared) / each).clamp(1, room);
        let entries = match self.cfg.cq_entries {
            0 => (each * room + shared).min(self.info.max_cqe),
            forced => forced,
        };
        let id = self.next_cq;
        self.next_cq += 1;
        let cq = Cq::new(&self.channel, entries, id)?;
        if self.armed {
            cq.arm();
        }
        let slot = CqSlot { id, cq, users: 0, room, lost: false };
        if index < self.cqs.len() {
            self.cqs[index] = slot;
        } else {
            self.cqs.push(slot);
        }
        Ok(index)
    }
}
