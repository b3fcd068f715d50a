//! Regions over an adapter that limits their length and remembers what is registered.

use std::os::fd::RawFd;
use std::sync::Arc;

use parking_lot::Mutex;

use super::*;
use crate::api::CopyDone;
use crate::fabric::{Caps, EpId, Event, Mem, PostError, ProviderKind, Remote};
use crate::local_fd::Local;

/// What is registered, by key: address, length, offset in a dmabuf.
pub type Table = Arc<Mutex<BTreeMap<u32, (u64, u64, Option<u64>)>>>;

/// Memory that cannot be registered for more than this.
pub type Rules = Arc<Mutex<Vec<(u64, Access)>>>;

pub struct Limited {
    caps: Caps,
    max: u64,
    next: u32,
    /// Registrations that are left.
    left: u32,
    /// Pool segments that are refused before the others are taken.
    refusals: u32,
    /// Pool segments that were offered.
    offers: Arc<Mutex<u32>>,
    table: Table,
    rules: Rules,
}

impl Limited {
    fn adapters(max: u64, left: u32) -> (Adapters, Table) {
        let (adapters, table, _) = Limited::with_rules(max, left);
        (adapters, table)
    }

    pub fn with_rules(max: u64, left: u32) -> (Adapters, Table, Rules) {
        let caps = Caps {
            provider: ProviderKind::Ibverbs,
            max_send: 4096,
            eager_max: 1024,
            max_rdma: 1 << 20,
            read: true,
            windows: false,
            recv_depth: 64,
            plain_max: 0,
            direct_max: 0,
            staged_max: 0,
        };
        let table = Table::default();
        let (refusals, offers) = (0, Arc::default());
        let (held, rules) = (table.clone(), Rules::default());
        let rest = rules.clone();
        let one = Limited { caps, max, next: 0, left, refusals, offers, table: held, rules: rest };
        let mut adapters = Adapters::default();
        adapters[KIND] = Some(AnyAdapter::Other(Box::new(one)));
        (adapters, table, rules)
    }

    fn put(&mut self, addr: u64, len: u64, offset: Option<u64>) -> Result<Mr, Status> {
        assert!(len > 0 && len <= self.max);
        self.left = self.left.checked_sub(1).ok_or_else(|| Status::internal("no more"))?;
        self.next += 1;
        self.table.lock().insert(self.next, (addr, len, offset));
        Ok(Mr { lkey: self.next, rkey: self.next })
    }
}

pub const KIND: usize = ProviderKind::Ibverbs as usize;

impl Adapter for Limited {
    fn caps(&self) -> &Caps {
        &self.caps
    }
    fn max_region(&self) -> u64 {
        self.max
    }
    unsafe fn register(&mut self, addr: u64, len: u64, access: Access) -> Result<Mr, Status> {
        let range = addr..addr + len;
        let refuses =
            |(at, allowed): &(u64, Access)| range.contains(at) && !allowed.contains(access);
        if self.rules.lock().iter().any(refuses) {
            return Err(Status::invalid("no such memory"));
        }
        self.put(addr, len, None)
    }
    fn register_dmabuf(
        &mut self,
        fd: RawFd,
        offset: u64,
        len: u64,
        iova: u64,
        _: Access,
    ) -> Result<Mr, Status> {
        assert!(fd >= 0);
        self.put(iova, len, Some(offset))
    }
    fn deregister(&mut self, mr: Mr) -> Result<(), Status> {
        self.table.lock().remove(&mr.lkey).map(|_| ()).ok_or_else(|| Status::internal("twice"))
    }
    fn add_pool(&mut self, _: PoolSegment) -> Result<(), Status> {
        *self.offers.lock() += 1;
        match self.refusals.checked_sub(1) {
            None => Ok(()),
            Some(left) => {
                self.refusals = left;
                Err(Status::new(Code::ResourceExhausted, "no descriptor"))
            }
        }
    }
    fn create(&mut self, _: &str) -> Result<EpId, Status> {
        Err(Status::internal("not here"))
    }
    fn address(&self, _: EpId) -> Result<Vec<u8>, Status> {
        Err(Status::internal("not here"))
    }
    fn connect(
        &mut self,
        _: EpId,
        _: &[u8],
        _: bool,
        _: Option<Local<OwnedFd>>,
    ) -> Result<(), Status> {
        Err(Status::internal("not here"))
    }
    fn send(&mut self, _: EpId, _: &[&[u8]]) -> Result<(), PostError> {
        Err(PostError::QueueFull)
    }
    fn write(
        &mut self,
        _: EpId,
        _: u64,
        _: Mem,
        _: Remote,
        _: Option<u32>,
    ) -> Result<(), PostError> {
        Err(PostError::QueueFull)
    }
    fn read(&mut self, _: EpId, _: u64, _: Mem, _: Remote) -> Result<(), PostError> {
        Err(PostError::QueueFull)
    }
    fn poll(&mut self, _: &mut Vec<Event>) -> bool {
        false
    }
    fn arm(&mut self) -> bool {
        true
    }
    fn fd(&self) -> Option<RawFd> {
        None
    }
    fn destroy(&mut self, _: EpId) {}
}

/// A device whose memory begins at offset 100 of its dmabuf.
struct Exporter;

impl DeviceOps for Exporter {
    fn copy_to_host(&self, _: u64, _: u64, _: u64, _: CopyDone) {}
    fn copy_from_host(&self, _: u64, _: u64, _: u64, _: CopyDone) {}
    fn export_dmabuf(&self, _: u64, _: u64) -> Option<Result<(OwnedFd, u64), Status>> {
        let file = std::fs::File::open("/dev/null").expect("open");
        Some(Ok((file.into(), 100)))
    }
}

const A: u64 = 0x10_0000;

fn add(regions: &mut Regions, adapters: &mut Adapters, addr: u64, len: u64) -> Vec<Status> {
    // SAFETY: this adapter touches no memory.
    unsafe { regions.add(adapters, addr, len, None, false) }.expect("add")
}

#[test]
fn long_regions_are_registered_in_parts_of_whole_pages() {
    let (mut adapters, table) = Limited::adapters(10_000, 100);
    let mut regions = Regions::default();
    assert!(add(&mut regions, &mut adapters, A, 20_000).is_empty());
    let all: Vec<_> = table.lock().values().copied().collect();
    assert_eq!(all, [(A, 8192, None), (A + 8192, 8192, None), (A + 16384, 3616, None)]);
    let keys = regions.find(KIND, A + 8000, 9000, 0).expect("found");
    assert_eq!(keys.iter().map(|mr| mr.lkey).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!((keys.at(191).0.lkey, keys.at(192).0.lkey, keys.at(8384).0.lkey), (1, 2, 3));
    let inside = regions.find(KIND, A + 8192, 8192, 0).expect("found");
    assert_eq!(inside, Keys::one(Mr { lkey: 2, rkey: 2 }));
    assert_eq!(regions.find(KIND, A + 8000, 12_001, 0), None, "past the end");
    assert_eq!(regions.find(KIND, A, 8, 1), None, "not on that device");
    assert_eq!(regions.remove(&mut adapters, A), Ok(20_000));
    assert!(table.lock().is_empty());
}

#[test]
fn a_range_may_straddle_adjoining_regions() {
    let (mut adapters, _) = Limited::adapters(1 << 30, 100);
    let mut regions = Regions::default();
    add(&mut regions, &mut adapters, A, 4096);
    add(&mut regions, &mut adapters, A + 4096, 4096);
    add(&mut regions, &mut adapters, A + 12_288, 4096);
    let keys = regions.find(KIND, A + 96, 8000, 0).expect("found");
    assert_eq!((keys.at(3999).0.lkey, keys.at(4000).0.lkey), (1, 2));
    assert_eq!(regions.find(KIND, A, 8193, 0), None, "there is a gap");
    assert_eq!(regions.find(KIND, A - 1, 10, 0), None);
    regions.remove(&mut adapters, A).expect("remove");
    assert_eq!(regions.find(KIND, A + 96, 8000, 0), None);
}

#[test]
fn a_part_that_fails_leaves_nothing_registered() {
    let (mut adapters, table) = Limited::adapters(4096, 2);
    let mut regions = Regions::default();
    let failed = add(&mut regions, &mut adapters, A, 20_000);
    assert_eq!(failed.len(), 1);
    assert!(table.lock().is_empty());
    assert_eq!(regions.find(KIND, A, 8, 0), None, "goes through a proxy");
    let failed = add(&mut regions, &mut adapters, 1 << 40, 4096 * 4097);
    assert_eq!(failed[0].code, Code::ResourceExhausted);
}

#[test]
fn device_memory_is_registered_as_its_dmabuf() {
    let (mut adapters, table) = Limited::adapters(8192, 100);
    let mut regions = Regions::default();
    // SAFETY: this adapter touches no memory.
    let failed = unsafe { regions.add(&mut adapters, A, 10_000, Some((3, &Exporter)), false) };
    assert_eq!(failed, Ok(vec![]));
    let all: Vec<_> = table.lock().values().copied().collect();
    assert_eq!(all, [(A, 8192, Some(100)), (A + 8192, 1808, Some(8292))]);
    assert!(regions.find(KIND, A, 10_000, 3).is_some());
    assert_eq!(regions.find(KIND, A, 10_000, 0), None, "not the host's");
    regions.remove(&mut adapters, A).expect("remove");
    assert!(table.lock().is_empty());
}

#[test]
fn a_pool_segment_that_one_adapter_refused_is_offered_again() {
    let (mut adapters, table) = Limited::adapters(1 << 30, 100);
    let offers: Arc<Mutex<u32>> = Arc::default();
    let caps = adapters[KIND].as_ref().expect("there").caps().clone();
    for (kind, refusals) in [(0, 1), (1, 0)] {
        let (table, offers) = (Table::default(), offers.clone());
        let caps = Caps { windows: true, ..caps.clone() };
        let one = Limited {
            caps,
            max: 1,
            next: 0,
            left: 0,
            refusals,
            offers,
            table,
            rules: Rules::default(),
        };
        adapters[kind] = Some(AnyAdapter::Other(Box::new(one)));
    }
    let mut regions = Regions::default();
    let segment = PoolSegment { id: 0, fd: None, addr: A, len: 1 << 20 };
    let refused = regions.add_segment(&mut adapters, segment).unwrap_err();
    assert_eq!((refused.code, *offers.lock()), (Code::ResourceExhausted, 2));
    assert!(regions.find(KIND, A, 1 << 20, 0).is_some(), "registered all the same");
    assert_eq!(regions.add_segment(&mut adapters, segment), Ok(()));
    assert_eq!((table.lock().len(), *offers.lock()), (1, 4));
}
