//! The engine's settings, and what follows from them for one piece of content: whether it goes in a message, is copied
//! first, or is moved from where it lies.

use super::channel::Channel;
use super::fx::Fx;
use super::transfer::choose::{LongFacts, Room, is_eager, is_eager_for_now};
use super::transfer::sizes::Sizes;
use crate::api::*;

/// Dimensions that leave the room for content in a message as it is.
const USUAL_DIMS: usize = 16;

/// The engine's settings, a part of `Config`.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Default deadline, nanoseconds.
    pub timeout: u64,
    /// Silence after which a peer counts as stalled, nanoseconds; `u64::MAX`: never.
    pub peer_timeout: u64,
    /// Forced protocol.
    pub protocol: Protocol,
    /// Largest eager content; `None`: the provider's.
    pub eager_max: Option<usize>,
    /// Bound of the metadata cache, entries per peer.
    pub meta_cache_entries: usize,
    /// Check content end to end.
    pub checksum: bool,
    /// Duplicate receives wait.
    pub tolerate_dup_recv: bool,
    /// Requests of one peer that may wait here.
    pub max_waiting: usize,
    /// Memory that these may take, in bytes.
    pub max_waiting_bytes: usize,
    /// The same of all peers together.
    pub max_waiting_bytes_all: usize,
    /// Descriptors that connections of guests may use.
    pub guest_descriptors: usize,
    /// Bytes of tagged messages that no receive has met, from which on guests end.
    pub unmet: u64,
    /// By what sizes content is cut on each provider.
    pub sizes: Box<[Sizes; 4]>,
    /// Bytes of buffers that last, for tensors that go out, and again for those that come in.
    pub buffers: u64,
}

impl Settings {
    /// Room for the content of a tensor in one message. One of the pool goes straight to the pool of a receiver who said
    /// where.
    #[inline]
    pub(super) fn room_for(&self, fx: &impl Fx, c: &Channel, tensor: &Tensor, told: bool) -> Room {
        let meta = &tensor.meta;
        let dims = meta.dims.len().saturating_sub(USUAL_DIMS);
        let room = self.room_of(c, 8 * dims + meta.user.room());
        if tensor.device != 0 || meta.nbytes <= room.eager {
            return room;
        }
        self.more_room(c, room, meta.nbytes, || told && fx.pooled(tensor.addr, meta.nbytes))
    }

    /// Room for content in one message, beside metadata that takes so many bytes more than usual.
    #[inline]
    pub(super) fn room_of(&self, c: &Channel, more: usize) -> Room {
        const OVERHEAD: usize = 4 + 4 + 8 + 14 + 8 * USUAL_DIMS;
        let message = c.room().saturating_sub(OVERHEAD + more);
        let eager = self.eager_max.unwrap_or(c.caps.eager_max).min(message);
        Room { eager: eager as u64, message: message as u64 }
    }

    /// The same for so many bytes from or to this address of the host.
    #[inline]
    pub(super) fn room_at(&self, fx: &impl Fx, c: &Channel, addr: u64, len: u64) -> Room {
        self.more_room(c, self.room_of(c, 0), len, || fx.pooled(addr, len))
    }

    /// Whether a message of so many bytes, whose content is at hand and lies at this address of the host, goes with its content.
    #[inline(never)]
    pub(in crate::engine) fn rides(
        &self,
        fx: &mut impl Fx,
        c: &mut Channel,
        addr: u64,
        len: u64,
    ) -> bool {
        let rides = is_eager(len, self.room_of_message(c, len), self.protocol);
        if len > 0 && rides {
            c.rides = c.rides.max(len);
        }
        rides || self.rides_for_now(fx, c, addr, len)
    }

    /// Room for the content of a message, wherever it lies: to offer it takes a message each way more, which one copy less, where it
    /// lies in the pool, does not make up for.
    #[inline]
    pub(super) fn room_of_message(&self, c: &Channel, len: u64) -> Room {
        self.more_room(c, self.room_of(c, 0), len, || false)
    }

    /// The same of a longer one, while there is much room.
    fn rides_for_now(&self, fx: &mut impl Fx, c: &Channel, addr: u64, len: u64) -> bool {
        let facts = LongFacts {
            nbytes: len,
            most: c.caps.direct_max as u64,
            limited: self.eager_max.is_some(),
            sealed: c.seal.is_some(),
            forced: self.protocol,
        };
        is_eager_for_now(facts, || !fx.pooled(addr, len) && fx.is_half_free(c.id))
    }

    /// There is more for content that would not be moved in the pool.
    #[inline]
    fn more_room(&self, c: &Channel, room: Room, len: u64, pooled: impl Fn() -> bool) -> Room {
        let more = len > room.eager && self.eager_max.is_none() && len <= c.caps.plain_max as u64;
        match more && !pooled() {
            true => Room { eager: room.message.min(c.caps.plain_max as u64), ..room },
            false => room,
        }
    }

    /// Whether content of the host at this address is better copied to the library's memory than moved from where it lies.
    #[inline]
    pub(super) fn pays_to_copy(&self, fx: &impl Fx, c: &Channel, addr: u64, len: u64) -> bool {
        len > c.caps.plain_max as u64
            && len <= c.caps.staged_max
            && self.protocol == Protocol::Auto
            && c.seal.is_none()
            && !fx.pooled(addr, len)
    }

    /// Whether a destination of this length is exposed to the sender: what is shorter rides in a message.
    #[inline]
    pub(super) fn exposes(&self, len: u64, eager_max: u64) -> bool {
        match self.protocol {
            Protocol::DirectGet | Protocol::Persistent => false,
            Protocol::DirectPut => len > 0,
            _ => len > eager_max,
        }
    }

    /// Whether a request says how much memory was given, also where cached metadata does for a usual one: a tensor that grew
    /// goes by its buffer if its sender knows that it fits.
    #[inline]
    pub(super) fn says_room(&self, c: &Channel) -> bool {
        self.protocol == Protocol::Persistent || c.buffers.is_used()
    }
}
