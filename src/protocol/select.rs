//! How the content of a tensor travels: one pure function over the facts of one transfer.
//!
//! | Protocol | Used when |
//! |---|---|
//! | none | dead or empty: the metadata is all there is |
//! | eager | up to the eager limit: the content rides in the response |
//! | direct put | the request exposed a destination that fits: written at once |
//! | direct get | the receiver learns the size with the answer, and can read |
//! | metadata, then put | the same, where it cannot read (or put is forced) |

use crate::api::Protocol;

/// The facts that decide.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Content bytes; 0 also for a dead tensor.
    pub nbytes: u64,
    /// Up to here content rides in the response.
    pub eager_max: u64,
    /// Most content that one message can carry.
    pub message_max: u64,
    /// Length of the destination that the request exposed.
    pub dst_len: Option<u64>,
    /// The receiver's cached metadata equals the tensor's.
    pub meta_known: bool,
    /// The destination takes any metadata that fits.
    pub any_meta: bool,
    /// The receiver can read the source.
    pub can_read: bool,
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
}

/// Chooses. Forcing a protocol that cannot carry the transfer falls to the nearest that can.
pub fn select(f: Facts) -> Choice {
    let eager = match f.forced {
        Protocol::Eager => f.nbytes <= f.message_max,
        Protocol::DirectPut | Protocol::DirectGet => false,
        _ => f.nbytes <= f.eager_max,
    };
    if f.nbytes == 0 || eager {
        return Choice::Eager;
    }
    let fits = match f.dst_len {
        Some(len) => (f.meta_known && len == f.nbytes) || (f.any_meta && len >= f.nbytes),
        None => false,
    };
    if fits && f.forced != Protocol::DirectGet {
        return Choice::Put { tell: !f.meta_known };
    }
    if f.can_read && f.forced != Protocol::DirectPut { Choice::OfferGet } else { Choice::TellMeta }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Facts = Facts {
        nbytes: 1 << 20,
        eager_max: 8192,
        message_max: 12000,
        dst_len: Some(1 << 20),
        meta_known: true,
        any_meta: false,
        can_read: true,
        forced: Protocol::Auto,
    };

    #[test]
    fn table() {
        let cases = [
            (Facts { nbytes: 0, ..BASE }, Choice::Eager),
            (Facts { nbytes: 8192, ..BASE }, Choice::Eager),
            (Facts { nbytes: 8193, dst_len: Some(8193), ..BASE }, Choice::Put { tell: false }),
            (BASE, Choice::Put { tell: false }),
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
