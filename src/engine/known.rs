//! The peers that are known, by name: those of the application for good, guests until there are too many.
//!
//! A guest connected by itself, and the application never named it: no receive refers to it, and no dial
//! is under way to it. What may refer to it are channels and responses, and while it has one of these it
//! is not forgotten. An index has a generation, as those of requests do: one that is left over meets nobody.

use std::num::NonZeroUsize;

use foldhash::HashMap;
use lru::LruCache;

use super::carrier::Carriers;
use super::channel::ChanId;
use super::list::Fifo;
use super::lost::LostNames;
use super::slab::Slab;
use super::tries::Tries;
use crate::api::{Meta, PeerState};
use crate::limits::{CACHE_BYTES, CHANNELS_PER_PEER, GUESTS, PEERS};
use crate::name::Name;
use crate::room::{self, Grows};
use crate::status::{Code, Status};

/// A peer, known by name.
pub struct Peer {
    /// Name.
    pub name: Name,
    /// Incarnation of the last connection.
    pub incarnation: [u8; 16],
    /// State of the connection.
    pub state: PeerState,
    /// Live channels; messages go by the first, and so do requests, but for the next.
    pub channels: Vec<ChanId>,
    /// The one of these that both ends ask on.
    pub(super) preferred: Option<ChanId>,
    pub(super) carriers: Carriers,
    pub(super) lost: LostNames,
    /// Last connect error.
    pub last_error: Option<Status>,
    /// What the tries to connect met since the last connection.
    pub tries: Tries,
    /// Its requests that wait here.
    pub waiting: usize,
    /// Bytes of memory that these take.
    pub waiting_bytes: usize,
    /// Messages offered to it.
    pub(super) offered: usize,
    /// The application never named it.
    pub guest: bool,
    /// Receives that wait for a connection, in order.
    pub(super) queue: Fifo,
    /// Messages that wait to be sent, in order.
    pub(super) outbox: Fifo,
    /// Pairs that wait for its word.
    pub(super) pairs: usize,
    pub(super) cache: Cache,
    /// Grows with each connection.
    used: u64,
}

impl Peer {
    /// The channel for a request.
    #[inline]
    pub(super) fn asks_on(&self) -> Option<ChanId> {
        self.preferred.or_else(|| self.channels.first().copied())
    }

    /// Its name, and why there is no connection to it.
    pub(super) fn told(&self) -> String {
        let met = match &self.last_error {
            _ if !self.channels.is_empty() => return text!("peer '{}'", self.name),
            // It was connected before; what ended that explains more than no try at all.
            Some(e) if self.tries.is_empty() => e.message.clone(),
            _ => self.tries.text(),
        };
        format!("peer '{}' ({met})", self.name)
    }

    /// Nothing refers to it, and nothing is lost with it.
    fn is_forgettable(&self) -> bool {
        self.guest
            && self.channels.is_empty()
            && self.waiting == 0
            && self.offered == 0
            && self.queue.is_empty()
            && self.outbox.is_empty()
            && self.pairs == 0
    }
}

/// Metadata by key, bounded in entries and bytes.
pub(super) struct Cache {
    entries: LruCache<Box<[u8]>, Meta>,
    bytes: usize,
}

fn cost(key: &[u8], meta: &Meta) -> usize {
    // Two words of links and the hash table's place, about.
    key.len() + 8 * meta.dims.len() + size_of::<Meta>() + 64
}

impl Cache {
    fn new(bound: usize) -> Cache {
        // `LruCache::new` would reserve the whole bound at once.
        let mut entries = LruCache::unbounded();
        entries.resize(NonZeroUsize::new(bound).unwrap_or(NonZeroUsize::MIN));
        Cache { entries, bytes: 0 }
    }

    pub(super) fn get(&mut self, key: &[u8]) -> Option<&Meta> {
        self.entries.get(key)
    }

    pub(super) fn put(&mut self, key: &[u8], meta: &Meta) {
        // What there is no memory for is not in the cache.
        let Ok(own) = room::key(key) else { return };
        self.bytes += cost(key, meta);
        // Without what was said of that one transfer.
        if let Some((key, old)) = self.entries.push(own, meta.lasting()) {
            self.bytes = self.bytes.saturating_sub(cost(&key, &old));
        }
        while self.bytes > CACHE_BYTES
            && let Some((key, old)) = self.entries.pop_lru()
        {
            self.bytes = self.bytes.saturating_sub(cost(&key, &old));
        }
    }

    pub(super) fn remove(&mut self, key: &[u8]) {
        if let Some((key, old)) = self.entries.pop_entry(key) {
            self.bytes = self.bytes.saturating_sub(cost(&key, &old));
        }
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }
}

/// All peers that are known, found by name or by index.
#[derive(Default)]
pub(super) struct Peers {
    slab: Slab<Peer>,
    by_name: HashMap<Name, u32>,
    /// Whom the application named last: mostly it is asked again.
    last: u32,
    guests: usize,
    uses: u64,
}

impl Peers {
    #[inline]
    pub fn get(&self, peer: u32) -> Option<&Peer> {
        self.slab.get(peer)
    }

    #[inline]
    pub fn get_mut(&mut self, peer: u32) -> Option<&mut Peer> {
        self.slab.get_mut(peer)
    }

    pub fn find(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// The same for who asks often.
    #[inline]
    pub fn find_again(&mut self, name: &str) -> Option<u32> {
        if self.slab.get(self.last).is_none_or(|p| p.name != *name) {
            self.last = self.find(name)?;
        }
        Some(self.last)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.slab.iter().map(|(_, p)| p)
    }

    /// How many are known.
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// From now on the peer is the application's.
    pub fn keep(&mut self, peer: u32) {
        if let Some(p) = self.slab.get_mut(peer)
            && std::mem::take(&mut p.guest)
        {
            self.guests -= 1;
        }
    }

    /// Marks the peer as used just now.
    pub fn touch(&mut self, peer: u32) {
        self.uses += 1;
        if let Some(p) = self.slab.get_mut(peer) {
            p.used = self.uses;
        }
    }

    /// Whether one more needs [`forget_some`](Self::forget_some) first.
    pub fn is_full(&self, guest: bool) -> bool {
        self.slab.len() >= PEERS || (guest && self.guests >= GUESTS)
    }

    /// Takes a peer in that is not known.
    pub fn insert(&mut self, name: &str, guest: bool, cache: usize) -> Result<u32, Status> {
        let full = || {
            let text = text!(
                "'{}' would be one peer too many: {PEERS} may be known, {GUESTS} of them guests, and all are in \
                 use",
                name.escape_debug()
            );
            Status::new(Code::ResourceExhausted, text)
        };
        if self.is_full(guest) {
            return Err(full());
        }
        room::grow(&mut self.by_name, 1, "peers")?;
        if !self.slab.make_room() {
            return Err(room::none(size_of::<Peer>(), "a peer"));
        }
        let mut channels = Vec::new();
        room::grow(&mut channels, CHANNELS_PER_PEER, "connections")?;
        let name: Name = name.into();
        let peer = Peer {
            name: name.clone(),
            incarnation: [0; 16],
            state: PeerState::Idle,
            channels,
            preferred: None,
            carriers: Carriers::default(),
            lost: LostNames::default(),
            last_error: None,
            tries: Tries::default(),
            waiting: 0,
            waiting_bytes: 0,
            offered: 0,
            guest,
            queue: Fifo::default(),
            outbox: Fifo::default(),
            pairs: 0,
            cache: Cache::new(cache),
            used: 0,
        };
        let index = self.slab.insert(peer).map_err(|_| full())?;
        self.guests += usize::from(guest);
        self.by_name.insert(name, index);
        self.touch(index);
        Ok(index)
    }

    /// Forgets the guests that have not been connected for longest: some at once, so that a flood of names
    /// does not look through all for each. Their number.
    pub fn forget_some(&mut self, mut gone: impl FnMut(u32, &str)) -> usize {
        let mut idle: Vec<(u64, u32)> = Vec::new();
        for (i, p) in self.slab.iter().filter(|(_, p)| p.is_forgettable()) {
            // Without memory for all, the oldest of some.
            if !idle.fits(1) {
                break;
            }
            idle.push((p.used, i));
        }
        idle.sort_unstable();
        idle.truncate((idle.len() / 16).max(1));
        for &(_, index) in &idle {
            let Some(peer) = self.slab.remove(index) else { continue };
            self.by_name.remove(&peer.name);
            self.guests -= 1;
            gone(index, &peer.name);
        }
        idle.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r08_guests_are_forgotten_oldest_first_and_never_while_in_use() {
        let mut peers = Peers::default();
        let mine = peers.insert("mine", false, 1).unwrap();
        let busy = peers.insert("busy", true, 1).unwrap();
        peers.get_mut(busy).unwrap().channels.push(7);
        let named = peers.insert("named", true, 1).unwrap();
        peers.keep(named);
        let first = peers.insert("first", true, 1).unwrap();
        for i in 0..200_000 {
            let name = format!("guest {i}");
            if peers.is_full(true) {
                assert!(peers.forget_some(|_, _| ()) > 0);
            }
            peers.insert(&name, true, 1).unwrap();
        }
        assert!(peers.slab.len() <= GUESTS + 2);
        assert!(peers.get(first).is_none() && peers.find("first").is_none());
        assert!(peers.find("guest 199999").is_some() && peers.find("guest 0").is_none());
        for (name, index) in [("mine", mine), ("busy", busy), ("named", named)] {
            assert_eq!(peers.find(name), Some(index));
            assert_eq!(&*peers.get(index).unwrap().name, name);
        }
    }

    #[test]
    fn r08_when_all_are_in_use_a_new_name_is_refused() {
        let mut peers = Peers::default();
        for i in 0..GUESTS {
            let index = peers.insert(&i.to_string(), true, 1).unwrap();
            peers.get_mut(index).unwrap().waiting = 1;
        }
        assert_eq!(peers.forget_some(|_, _| ()), 0);
        let status = peers.insert("one more", true, 1).unwrap_err();
        assert_eq!(status.code, Code::ResourceExhausted, "{status}");
        // The application's own are not affected.
        peers.insert("mine", false, 1).unwrap();
    }

    #[test]
    fn r08_the_cache_is_bounded_in_bytes() {
        let mut cache = Cache::new(1 << 20);
        let meta = Meta { dims: [1; 254].into_iter().collect(), ..Meta::default() };
        for i in 0..10_000u32 {
            let mut key = vec![b'k'; 60_000];
            key[..4].copy_from_slice(&i.to_le_bytes());
            cache.put(&key, &meta);
            cache.put(&key, &Meta::default());
            let sum: usize = cache.entries.iter().map(|(k, m)| cost(k, m)).sum();
            assert!(sum <= CACHE_BYTES && sum == cache.bytes);
            assert!(cache.get(&key).is_some());
        }
    }
}
