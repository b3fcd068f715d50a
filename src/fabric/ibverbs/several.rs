//! Several devices as one adapter: a main connection goes over the first, its rails over the others.
//!
//! Memory is registered with all of them, and known by its keys on the first. A work request on an endpoint of another
//! device is given that one's local key here; the peer's key comes from the peer (`Place::key_on`). An endpoint's number
//! says which device it is on.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::open::epoll_of;
use crate::config::MAX_DEVICES;
use crate::fabric::{Access, Adapter, Caps, EpId, Event, Mem, Mr, PoolSegment, PostError, Remote};
use crate::local_fd::Local;
use crate::log;
use crate::os::Epoll;
use crate::status::{Code, Status};

/// Endpoints of a device are numbered from its own number times two to this power.
const DEVICE: u32 = 28;

/// Number of a device's first endpoint.
pub(super) fn first_id(device: u8) -> u32 {
    u32::from(device) << DEVICE
}

/// The number after this one, on the same device.
pub(super) fn next_id(id: u32) -> Result<u32, Status> {
    match (id + 1) % (1 << DEVICE) {
        0 => {
            let text = "ibverbs: all endpoint numbers are used up";
            Err(Status::new(Code::ResourceExhausted, text))
        }
        _ => Ok(id + 1),
    }
}

fn device_of(ep: EpId) -> usize {
    (ep.0 >> DEVICE) as usize
}

/// A region's keys on the devices after the first, in order; `None` where it could not be registered.
type Others = SmallVec<[Option<Mr>; MAX_DEVICES]>;

/// The devices that carry a channel together, as one adapter.
pub(super) struct Several<A> {
    devices: Vec<A>,
    /// By the local key on the first device.
    regions: HashMap<u32, Others, RandomState>,
    /// The peer of each endpoint, by which the next rail to it finds the device with the fewest.
    peers: HashMap<u32, Box<str>, RandomState>,
    caps: Caps,
    notes: Vec<String>,
    epoll: Epoll,
}

impl<A: Adapter> Several<A> {
    /// Of these, with their names: at least one.
    pub fn new(devices: Vec<(String, A)>) -> Result<Several<A>, Status> {
        let mut notes = Vec::new();
        let mut caps: Option<Caps> = None;
        for (name, device) in &devices {
            notes.extend(device.notes().iter().map(|note| format!("{name}: {note}")));
            let own = device.caps();
            let all = caps.get_or_insert_with(|| own.clone());
            all.max_rdma = all.max_rdma.min(own.max_rdma);
            all.max_send = all.max_send.min(own.max_send);
            all.recv_depth = all.recv_depth.min(own.recv_depth);
            all.read &= own.read;
        }
        let devices: Vec<A> = devices.into_iter().map(|(_, device)| device).collect();
        let fds: Vec<RawFd> = devices.iter().filter_map(Adapter::fd).collect();
        Ok(Several {
            epoll: epoll_of(&fds)?,
            caps: caps.ok_or_else(|| Status::internal("no device"))?,
            devices,
            regions: HashMap::default(),
            peers: HashMap::default(),
            notes,
        })
    }

    fn device(&mut self, ep: EpId) -> Result<&mut A, Status> {
        let device = self.devices.get_mut(device_of(ep));
        device.ok_or_else(|| Status::new(Code::NotFound, text!("endpoint {} does not exist", ep.0)))
    }

    /// Registers with the first device as `register` does, and with the others as far as they can.
    fn on_all(
        &mut self,
        mut register: impl FnMut(&mut A) -> Result<Mr, Status>,
    ) -> Result<Mr, Status> {
        let (first, others) =
            self.devices.split_first_mut().ok_or_else(|| Status::internal("no device"))?;
        let mr = register(first)?;
        let each = |(number, device): (usize, &mut A)| {
            let made = register(device);
            if let Err(status) = &made {
                log::debug(format_args!(
                    "memory is not registered with device {}, whose connections will not carry it: {status}",
                    number + 1
                ));
            }
            made.ok()
        };
        let others: Others = others.iter_mut().enumerate().map(each).collect();
        self.regions.insert(mr.lkey, others);
        Ok(mr)
    }

    /// The device of an endpoint, and memory as it is known there.
    fn posting(&mut self, ep: EpId, local: Mem) -> Result<(&mut A, Mem), PostError> {
        let number = device_of(ep);
        let mut key = local.lkey();
        if number > 0 && !local.is_empty() {
            let others = self.regions.get(&key);
            let Some(Some(mr)) = others.and_then(|all| all.get(number - 1)) else {
                let text = text!("no region with key {key:#x} on device {number}");
                return Err(PostError::Failed(Status::new(Code::NotFound, text)));
            };
            key = mr.lkey;
        }
        let device = self.device(ep).map_err(PostError::Failed)?;
        // SAFETY: the same memory, for the same operation.
        Ok((device, unsafe { Mem::new(local.addr(), local.len(), key) }))
    }

    /// The devices, those with the fewest endpoints to a peer first.
    fn by_use(&self, peer: &str) -> SmallVec<[usize; MAX_DEVICES]> {
        let mut counts = [0u32; MAX_DEVICES];
        for (&id, _) in self.peers.iter().filter(|(_, name)| ***name == *peer) {
            counts[device_of(EpId(id))] += 1;
        }
        let mut order: SmallVec<_> = (0..self.devices.len()).collect();
        order.sort_by_key(|&number| counts[number]);
        order
    }

    fn create_on(&mut self, number: usize, peer: &str) -> Result<EpId, Status> {
        let ep = self.device(EpId(first_id(number as u8)))?.create(peer)?;
        self.peers.insert(ep.0, peer.into());
        Ok(ep)
    }
}

impl<A: Adapter + Numbered> Adapter for Several<A> {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    unsafe fn register(&mut self, addr: u64, len: u64, access: Access) -> Result<Mr, Status> {
        // SAFETY: by this function's contract; `deregister` takes it from all.
        self.on_all(|device| unsafe { device.register(addr, len, access) })
    }

    fn max_region(&self) -> u64 {
        self.devices.iter().map(Adapter::max_region).min().unwrap_or(0)
    }

    fn register_dmabuf(
        &mut self,
        fd: RawFd,
        offset: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Mr, Status> {
        self.on_all(|device| device.register_dmabuf(fd, offset, len, iova, access))
    }

    fn deregister(&mut self, mr: Mr) -> Result<(), Status> {
        let Some((first, others)) = self.devices.split_first_mut() else { return Ok(()) };
        let known = self.regions.remove(&mr.lkey).unwrap_or_default();
        let mut result = first.deregister(mr);
        for (device, mr) in others.iter_mut().zip(known) {
            if let Some(mr) = mr {
                result = result.and(device.deregister(mr));
            }
        }
        result
    }

    fn on_device(&self, mr: Mr, device: u8) -> Option<Mr> {
        let others = self.regions.get(&mr.lkey)?;
        *others.get(usize::from(device).checked_sub(1)?)?
    }

    fn grant(&mut self, ep: EpId, mr: Mr) {
        let mr = match device_of(ep) {
            0 => Some(mr),
            number => self.on_device(mr, number as u8),
        };
        if let (Ok(device), Some(mr)) = (self.device(ep), mr) {
            device.grant(ep, mr);
        }
    }

    fn add_pool(&mut self, segment: PoolSegment) -> Result<(), Status> {
        self.devices.iter_mut().map(|device| device.add_pool(segment)).fold(Ok(()), Result::and)
    }

    fn create(&mut self, peer: &str) -> Result<EpId, Status> {
        self.create_on(0, peer)
    }

    fn create_rail(&mut self, peer: &str, remote: Option<&[u8]>) -> Result<EpId, Status> {
        // The same number at both ends, where there is a choice: such devices are in one network as a rule.
        match usize::from(remote.map_or(0, A::number_in)) {
            0 => {
                // One whose port is down takes none.
                let mut made = Err(Status::internal("no device"));
                for number in self.by_use(peer) {
                    made = self.create_on(number, peer);
                    if made.is_ok() {
                        break;
                    }
                }
                made
            }
            theirs => self.create_on(theirs % self.devices.len(), peer),
        }
    }

    fn devices(&self, ep: EpId) -> (u8, u8) {
        self.devices.get(device_of(ep)).map_or((0, 0), |device| device.devices(ep))
    }

    fn address(&self, ep: EpId) -> Result<Vec<u8>, Status> {
        match self.devices.get(device_of(ep)) {
            Some(device) => device.address(ep),
            None => Err(Status::new(Code::NotFound, text!("endpoint {} does not exist", ep.0))),
        }
    }

    fn connect(
        &mut self,
        ep: EpId,
        remote: &[u8],
        active: bool,
        sock: Option<Local<OwnedFd>>,
    ) -> Result<(), Status> {
        self.device(ep)?.connect(ep, remote, active, sock)
    }

    fn send(&mut self, ep: EpId, parts: &[&[u8]]) -> Result<(), PostError> {
        self.device(ep).map_err(PostError::Failed)?.send(ep, parts)
    }

    fn write(
        &mut self,
        ep: EpId,
        wr: u64,
        local: Mem,
        remote: Remote,
        imm: Option<u32>,
    ) -> Result<(), PostError> {
        let (device, local) = self.posting(ep, local)?;
        device.write(ep, wr, local, remote, imm)
    }

    fn read(&mut self, ep: EpId, wr: u64, local: Mem, remote: Remote) -> Result<(), PostError> {
        let (device, local) = self.posting(ep, local)?;
        device.read(ep, wr, local, remote)
    }

    fn flush(&mut self) -> bool {
        self.devices.iter_mut().fold(false, |moves, device| device.flush() | moves)
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> bool {
        self.devices.iter_mut().fold(false, |moves, device| device.poll(events) | moves)
    }

    fn arm(&mut self) -> bool {
        // All of them, though one may have something already: the poll that follows disarms them.
        self.devices.iter_mut().fold(true, |asleep, device| device.arm() & asleep)
    }

    fn fd(&self) -> Option<RawFd> {
        Some(self.epoll.as_raw_fd())
    }

    fn progress_mark(&self, ep: EpId) -> u64 {
        self.devices.get(device_of(ep)).map_or(0, |device| device.progress_mark(ep))
    }

    fn reads_sources(&self, ep: EpId) -> bool {
        self.devices.get(device_of(ep)).is_none_or(|device| device.reads_sources(ep))
    }

    fn is_unreachable(&self, ep: EpId) -> bool {
        self.devices.get(device_of(ep)).is_some_and(|device| device.is_unreachable(ep))
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn has_delivered(&mut self) -> bool {
        self.devices.iter_mut().fold(true, |all, device| device.has_delivered() & all)
    }

    fn hang_up(&mut self, ep: EpId) {
        if let Ok(device) = self.device(ep) {
            device.hang_up(ep);
        }
    }

    fn destroy(&mut self, ep: EpId) {
        self.peers.remove(&ep.0);
        if let Ok(device) = self.device(ep) {
            device.destroy(ep);
        }
    }
}

/// An adapter whose endpoints' addresses say which of the peer's devices they are on.
pub(super) trait Numbered {
    /// The number in an address; untrusted bytes.
    fn number_in(address: &[u8]) -> u8;
}

#[cfg(test)]
mod tests;
