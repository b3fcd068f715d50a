//! What the loopback adapters of a process know of each other.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};

use super::mail::{Inbox, Reader};
use crate::counted::Counted;
use crate::fabric::regions::RegionTable;
use crate::os::EventFd;
use crate::status::{Code, Status};

const MAGIC: &[u8] = b"rdma-loop\x01";
const ADDRESS_LEN: usize = MAGIC.len() + 4 + 16 + 8 + 4 + 8;

/// One endpoint as its peer sees it.
pub struct End {
    /// The adapter it belongs to.
    pub hub: Arc<Hub>,
    /// Its number there.
    pub id: u32,
    /// Tells it from all other endpoints of the process, earlier ones too.
    pub token: u64,
    /// Destroyed. Set before the write lock of the hub's regions was taken once, so that who holds
    /// the read lock and finds it open may use the regions.
    pub closed: AtomicBool,
    /// Counts pieces of content that its peer has copied to or from it.
    pub pieces: AtomicUsize,
}

impl End {
    /// What the peer needs to find this endpoint.
    pub fn address(&self) -> Vec<u8> {
        let mut a = prefix();
        a.extend_from_slice(&self.hub.id.to_le_bytes());
        a.extend_from_slice(&self.id.to_le_bytes());
        a.extend_from_slice(&self.token.to_le_bytes());
        a
    }
}

/// Something for an endpoint of a hub.
#[derive(Default)]
pub struct Item {
    /// Number of the endpoint.
    pub to: u32,
    /// Token of the endpoint that it comes from.
    pub from: u64,
    /// What it is.
    pub what: What,
    /// Of a message.
    pub bytes: Vec<u8>,
}

/// Kinds of items.
#[derive(Default)]
pub enum What {
    /// No item.
    #[default]
    Nothing,
    /// The sender has connected to the endpoint with this token.
    Hello(Arc<End>, u64),
    /// A message.
    Message,
    /// A WRITE WITH IMMEDIATE is in place.
    Written(u32),
    /// The sender is gone.
    Bye,
}

impl Item {
    /// The sender of a Hello hears that there is nobody.
    pub fn refuse(&mut self) {
        if let What::Hello(from, token) = std::mem::take(&mut self.what) {
            // Without memory for it, who waits does so until its time is over.
            let bye = Item { to: from.id, from: token, what: What::Bye, bytes: Vec::new() };
            from.hub.inbox.send_one(bye);
            from.hub.wake();
        }
    }
}

/// One adapter as the others see it.
pub struct Hub {
    id: u64,
    /// Its regions. Who copies from or to them holds the read lock.
    pub regions: RwLock<RegionTable>,
    /// What the others have for it.
    pub inbox: Counted<Inbox<Item>>,
    ends: Mutex<HashMap<u32, Arc<End>>>,
    armed: AtomicBool,
    event: EventFd,
}

/// Tells this process, and this loaded copy of the library, from others.
fn nonce() -> Result<&'static [u8; 16], Status> {
    static NONCE: OnceLock<[u8; 16]> = OnceLock::new();
    if let Some(n) = NONCE.get() {
        return Ok(n);
    }
    let mut n = [0; 16];
    getrandom::fill(&mut n).map_err(Status::random)?;
    Ok(NONCE.get_or_init(|| n))
}

/// The part of an address that all endpoints of a process share; a forked child is another process.
fn prefix() -> Vec<u8> {
    let mut p = MAGIC.to_vec();
    p.extend_from_slice(&std::process::id().to_le_bytes());
    // `Hub::new` has made it.
    p.extend_from_slice(nonce().unwrap_or(&[0; 16]));
    p
}

fn registry() -> &'static Mutex<HashMap<u64, Arc<Hub>>> {
    static REGISTRY: OnceLock<Mutex<HashMap<u64, Arc<Hub>>>> = OnceLock::new();
    REGISTRY.get_or_init(Mutex::default)
}

impl Hub {
    /// A hub, known to the process, and the one who reads what it gets.
    pub fn new() -> Result<(Arc<Hub>, Reader<Item>), Status> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        nonce()?;
        let event = EventFd::new().map_err(|e| Status::os("eventfd", &e))?;
        let reader = Reader::new()
            .ok_or_else(|| crate::room::none(size_of::<Item>(), "a loopback adapter"))?;
        let hub = Arc::new(Hub {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            regions: RwLock::new(RegionTable::new()),
            inbox: reader.inbox().clone(),
            ends: Mutex::default(),
            armed: AtomicBool::new(false),
            event,
        });
        registry().lock().insert(hub.id, hub.clone());
        Ok((hub, reader))
    }

    /// Makes an endpoint known.
    pub fn add_end(self: &Arc<Hub>, id: u32) -> Result<Arc<End>, Status> {
        let end = Arc::new(End {
            hub: self.clone(),
            id,
            token: getrandom::u64().map_err(Status::random)?,
            closed: AtomicBool::new(false),
            pieces: AtomicUsize::new(0),
        });
        self.ends.lock().insert(id, end.clone());
        Ok(end)
    }

    /// Closes an endpoint: on return nobody uses the regions on its behalf.
    pub fn close_end(&self, end: &End) {
        self.ends.lock().remove(&end.id);
        end.closed.store(true, Ordering::SeqCst);
        // Whoever found it open still holds the read lock.
        drop(self.regions.write());
    }

    /// Removes the hub from the process: nobody finds its endpoints any more.
    pub fn retire(&self) {
        registry().lock().remove(&self.id);
    }

    /// Wakes the adapter if it sleeps, after something was put into the inbox.
    #[inline]
    pub fn wake(&self) {
        // SeqCst, as in `arm`: either this sees that it is armed, or that sees what is in the inbox.
        if self.armed.load(Ordering::SeqCst) && self.armed.swap(false, Ordering::Relaxed) {
            self.event.signal();
        }
    }

    /// From now on `wake` wakes; false if there is something in the inbox.
    pub fn arm(&self, reader: &Reader<Item>) -> bool {
        self.armed.store(true, Ordering::SeqCst);
        reader.is_empty()
    }

    /// Ends `arm`.
    pub fn disarm(&self) {
        self.armed.store(false, Ordering::Relaxed);
        self.event.drain();
    }

    /// Readable after a wake.
    pub fn fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }
}

/// The endpoint with this address; the bytes are untrusted.
pub fn find(address: &[u8], peer: &str) -> Result<Arc<End>, Status> {
    if address.len() != ADDRESS_LEN || !address.starts_with(MAGIC) {
        return Err(Status::invalid(text!(
            "loopback address of peer '{peer}': {} bytes that are no such address",
            address.len()
        )));
    }
    let prefix = prefix();
    let Some(rest) = address.strip_prefix(&prefix[..]) else {
        return Err(Status::new(
            Code::FailedPrecondition,
            text!("peer '{peer}' is in another process, loopback cannot reach it"),
        ));
    };
    let number = |from: usize, to: usize| {
        let b = rest.get(from..to).unwrap_or_default();
        b.iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b))
    };
    let (hub, id, token) = (number(0, 8), number(8, 12) as u32, number(12, 20));
    let hub = registry().lock().get(&hub).cloned();
    hub.and_then(|h| h.ends.lock().get(&id).cloned())
        .filter(|e| e.token == token)
        .ok_or_else(|| Status::gone(text!("the loopback endpoint of peer '{peer}' is gone")))
}
