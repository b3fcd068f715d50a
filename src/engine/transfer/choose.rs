//! How the content of a tensor travels: one pure function over the facts of one transfer.
//! The conditions in words are those of [`table`](super::table).

use crate::api::Protocol;

/// Room for content in one message of a channel.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Up to here content rides in the response.
    pub eager: u64,
    /// Most that fits.
    pub message: u64,
}

/// The facts that decide.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Content bytes; 0 also for a dead tensor.
    pub nbytes: u64,
    /// There is memory for them at the receiver, or there will be, as far as that is known.
    pub fits: bool,
    /// What a message has room for.
    pub room: Room,
    /// Length of the destination that the request exposed.
    pub dst_len: Option<u64>,
    /// The receiver's cached metadata equals the tensor's.
    pub meta_known: bool,
    /// The application sends bytes beside the content.
    pub user: bool,
    /// The destination takes any metadata that fits.
    pub any_meta: bool,
    /// The receiver can read the source.
    pub can_read: bool,
    /// It has a name, and there may be a buffer of that name.
    pub buffers: bool,
    /// Forced by option or `RDMA_PROTOCOL`.
    pub forced: Protocol,
}

/// What the sender does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Content (or nothing) inside the response.
    Eager,
    /// Write to the exposed destination; `tell` sends the metadata first.
    Put {
        /// The receiver does not know the metadata yet.
        tell: bool,
    },
    /// Metadata with the address of the source: the receiver reads.
    OfferGet,
    /// Metadata alone: the receiver allocates and asks again.
    TellMeta,
    /// By the buffers of its name.
    Persist,
}

/// Whether content rides in the response: the first question of [`select`], and mostly the last.
#[inline]
pub fn is_eager(nbytes: u64, room: Room, forced: Protocol) -> bool {
    nbytes == 0
        || match forced {
            Protocol::Eager => nbytes <= room.message,
            Protocol::DirectPut | Protocol::DirectGet | Protocol::Persistent => false,
            _ => nbytes <= room.eager,
        }
}

/// Chooses. Forcing a protocol that cannot carry the transfer falls to the nearest that can.
pub fn select(f: Facts) -> Choice {
    if f.fits && is_eager(f.nbytes, f.room, f.forced) {
        return Choice::Eager;
    }
    if f.fits && f.forced == Protocol::Persistent && f.buffers {
        return Choice::Persist;
    }
    let fits = match f.dst_len {
        Some(len) => (f.meta_known && len == f.nbytes) || (f.any_meta && len >= f.nbytes),
        None => false,
    };
    if fits && f.forced != Protocol::DirectGet {
        return Choice::Put { tell: !f.meta_known || f.user };
    }
    if f.can_read && f.forced != Protocol::DirectPut { Choice::OfferGet } else { Choice::TellMeta }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Facts = Facts {
        nbytes: 1 << 20,
        fits: true,
        room: Room { eager: 8192, message: 12000 },
        dst_len: Some(1 << 20),
        meta_known: true,
        user: false,
        any_meta: false,
        can_read: true,
        buffers: true,
        forced: Protocol::Auto,
    };

    /// A short tensor, of which it is not known whether it fits.
    const UNSURE: Facts =
        Facts { nbytes: 8, fits: false, dst_len: None, meta_known: false, ..BASE };

    #[test]
    fn table() {
        let cases = [
            (Facts { nbytes: 0, ..BASE }, Choice::Eager),
            (Facts { nbytes: 8192, ..BASE }, Choice::Eager),
            (Facts { nbytes: 8193, dst_len: Some(8193), ..BASE }, Choice::Put { tell: false }),
            (UNSURE, Choice::OfferGet),
            (Facts { can_read: false, ..UNSURE }, Choice::TellMeta),
            (Facts { forced: Protocol::Eager, ..UNSURE }, Choice::OfferGet),
            (Facts { forced: Protocol::DirectPut, ..UNSURE }, Choice::TellMeta),
            (Facts { forced: Protocol::Persistent, ..UNSURE }, Choice::OfferGet),
            (BASE, Choice::Put { tell: false }),
            (Facts { user: true, ..BASE }, Choice::Put { tell: true }),
            (Facts { user: true, nbytes: 8192, ..BASE }, Choice::Eager),
            (Facts { meta_known: false, ..BASE }, Choice::OfferGet),
            (Facts { meta_known: false, can_read: false, ..BASE }, Choice::TellMeta),
            (
                Facts { meta_known: false, any_meta: true, dst_len: Some(2 << 20), ..BASE },
                Choice::Put { tell: true },
            ),
            (Facts { dst_len: None, meta_known: false, ..BASE }, Choice::OfferGet),
            (Facts { forced: Protocol::DirectGet, ..BASE }, Choice::OfferGet),
            (Facts { forced: Protocol::DirectGet, can_read: false, ..BASE }, Choice::TellMeta),
            (
                Facts { forced: Protocol::DirectPut, nbytes: 8, dst_len: None, ..BASE },
                Choice::TellMeta,
            ),
            (Facts { forced: Protocol::Persistent, nbytes: 0, ..BASE }, Choice::Eager),
            (Facts { forced: Protocol::Persistent, nbytes: 8, ..BASE }, Choice::Persist),
            (
                Facts { forced: Protocol::Persistent, buffers: false, ..BASE },
                Choice::Put { tell: false },
            ),
            (
                Facts { forced: Protocol::Persistent, buffers: false, dst_len: None, ..BASE },
                Choice::OfferGet,
            ),
            (Facts { forced: Protocol::Eager, nbytes: 12000, ..BASE }, Choice::Eager),
            (
                Facts { forced: Protocol::Eager, nbytes: 12001, dst_len: None, ..BASE },
                Choice::OfferGet,
            ),
        ];
        for (facts, want) in cases {
            assert_eq!(select(facts), want, "{facts:?}");
        }
    }
}
