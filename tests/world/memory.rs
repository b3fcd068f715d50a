//! The memory of all nodes. Every access goes through here and is checked: to whom the memory
//! belongs, whether it lives, whether it may be written. Addresses are never reused within a run,
//! so an access that comes too late always meets memory that says so.

use std::collections::BTreeMap;

use rdma_transport::fabric::Access;

use super::rng::mix;

/// One node in one incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Who {
    pub node: usize,
    pub inc: u64,
}

pub struct Alloc {
    ptr: *mut u8,
    len: u64,
    who: Who,
    pub device: u32,
    label: String,
    freed: Option<String>,
    frozen: Option<String>,
    /// Key of its permanent registration.
    pub registered: Option<u32>,
    /// A buffer of the library.
    pub library: bool,
}

/// A registered region.
#[derive(Clone, Debug)]
pub struct Region {
    pub who: Who,
    pub addr: u64,
    pub len: u64,
    pub access: Access,
    pub open: bool,
    /// Opened for one transfer.
    pub owned: bool,
    /// Network device that it is registered with.
    pub card: u8,
}

#[derive(Default)]
pub struct Memory {
    map: BTreeMap<u64, Alloc>,
    pub regions: BTreeMap<u32, Region>,
    /// Keys of the same for further network devices.
    further: BTreeMap<(u32, u8), u32>,
}

impl Memory {
    pub fn alloc(&mut self, who: Who, device: u32, len: u64, fill: u8, label: String) -> u64 {
        // One byte more, so that empty allocations have an address of their own.
        let data = vec![fill; len as usize + 1].into_boxed_slice();
        let ptr = Box::into_raw(data).cast::<u8>();
        let addr = ptr as u64;
        let (freed, frozen, registered, library) = (None, None, None, false);
        let alloc = Alloc { ptr, len, who, device, label, freed, frozen, registered, library };
        self.map.insert(addr, alloc);
        addr
    }

    pub fn at(&mut self, addr: u64) -> &mut Alloc {
        self.map.get_mut(&addr).unwrap_or_else(|| panic!("nothing was allocated at this address"))
    }

    /// The permanent key of the allocation that holds this address.
    pub fn registration(&self, addr: u64) -> Option<u32> {
        self.map.range(..=addr).next_back().and_then(|(_, a)| a.registered)
    }

    pub fn free(&mut self, addr: u64, why: &str) {
        let a = self.at(addr);
        assert!(a.freed.is_none(), "{} freed twice: {why}, {:?}", a.label, a.freed);
        a.freed = Some(why.to_owned());
        // A pool of the library stays registered, which is what makes late writes dangerous.
        if let Some(rkey) = a.registered.filter(|_| !a.library) {
            self.close(rkey);
        }
    }

    pub fn freeze(&mut self, addr: u64, why: &str) {
        self.at(addr).frozen.get_or_insert_with(|| why.to_owned());
    }

    /// A node's memory goes with it.
    pub fn crash(&mut self, who: Who) {
        for a in self.map.values_mut().filter(|a| a.who == who && a.freed.is_none()) {
            a.freed = Some("its process ended".to_owned());
        }
        for r in self.regions.values_mut().filter(|r| r.who == who) {
            r.open = false;
        }
    }

    /// Buffers of the library that were not given back.
    pub fn library_live(&self, who: Who) -> Vec<String> {
        let live = |a: &&Alloc| a.who == who && a.library && a.freed.is_none();
        self.map.values().filter(live).map(|a| a.label.clone()).collect()
    }

    /// Regions opened for a transfer and not closed.
    pub fn owned_open(&self, who: Who) -> usize {
        let counts = |r: &&Region| r.who == who && r.owned && r.open && r.card == 0;
        self.regions.values().filter(counts).count()
    }

    pub fn open(&mut self, rkey: u32, region: Region) {
        let old = self.regions.insert(rkey, region);
        assert!(old.is_none(), "the simulation drew a key twice");
    }

    pub fn close(&mut self, rkey: u32) {
        let further = self.further.range((rkey, 0)..=(rkey, u8::MAX)).map(|(_, &key)| key);
        for key in further.chain([rkey]) {
            if let Some(r) = self.regions.get_mut(&key) {
                r.open = false;
            }
        }
    }

    /// The same region with a further network device.
    pub fn open_on(&mut self, first: u32, card: u8, rkey: u32) {
        let region = Region { card, ..self.regions[&first].clone() };
        self.open(rkey, region);
        self.further.insert((first, card), rkey);
    }

    /// Its key there.
    pub fn on_card(&self, first: u32, card: u8) -> Option<u32> {
        self.further.get(&(first, card)).copied()
    }

    fn find(&self, addr: u64, len: u64, who: Who, device: bool, what: &str) -> &Alloc {
        let (&start, a) = self
            .map
            .range(..=addr)
            .next_back()
            .unwrap_or_else(|| panic!("{what}: {len} bytes outside of every allocation"));
        let at = addr - start;
        assert!(at + len <= a.len, "{what}: {len} bytes at {at} of {} ({})", a.label, a.len);
        assert!(a.who == who, "{what}: memory of {:?} ({}) touched as {who:?}", a.who, a.label);
        assert!((a.device != 0) == device, "{what}: {} is on device {}", a.label, a.device);
        if let Some(why) = &a.freed {
            panic!("{what}: {} was touched after it was given back: {why}", a.label);
        }
        a
    }

    /// Bytes for reading by their owner.
    pub fn read(&self, who: Who, device: bool, addr: u64, len: u64, what: &str) -> &'static [u8] {
        if len == 0 {
            return &[];
        }
        let a = self.find(addr, len, who, device, what);
        let at = (addr - a.ptr as u64) as usize;
        // SAFETY: in bounds by `find`; allocations live as long as the run, and the engine, which
        // gets slices of unbounded life by contract, lives shorter.
        unsafe { std::slice::from_raw_parts(a.ptr.add(at), len as usize) }
    }

    /// Whether memory is a device's: adapters reach what is opened to them wherever it is.
    pub fn on_device(&self, addr: u64) -> bool {
        self.map.range(..=addr).next_back().is_some_and(|(_, a)| a.device != 0)
    }

    pub fn write(&mut self, who: Who, device: bool, addr: u64, bytes: &[u8], what: &str) {
        if bytes.is_empty() {
            return;
        }
        let a = self.find(addr, bytes.len() as u64, who, device, what);
        if let Some(why) = &a.frozen {
            panic!("{what}: {} was written after its end: {why}", a.label);
        }
        let at = (addr - a.ptr as u64) as usize;
        // SAFETY: in bounds by `find`; nobody holds a slice of it across an event.
        unsafe { std::ptr::copy(bytes.as_ptr(), a.ptr.add(at), bytes.len()) };
    }

    /// Whether this is allowed through the key, as a provider checks it.
    pub fn allowed(
        &self,
        (rkey, card): (u32, u8),
        who: Who,
        addr: u64,
        len: u64,
        access: Access,
    ) -> bool {
        self.regions.get(&rkey).is_some_and(|r| {
            r.open
                && r.card == card
                && r.who == who
                && r.access.contains(access)
                && addr >= r.addr
                && addr.checked_add(len).is_some_and(|end| end <= r.addr + r.len)
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for a in self.map.values() {
            let all = std::ptr::slice_from_raw_parts_mut(a.ptr, a.len as usize + 1);
            // SAFETY: made by `Box::into_raw` in `alloc` with this length.
            drop(unsafe { Box::from_raw(all) });
        }
    }
}

/// The content of the tensor of this number.
pub fn content(op: usize, len: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(len as usize + 8);
    let mut i = 0;
    while (out.len() as u64) < len {
        out.extend_from_slice(&mix((op as u64) << 32 | i).to_le_bytes());
        i += 1;
    }
    out.truncate(len as usize);
    out
}
