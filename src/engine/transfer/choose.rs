//! How content travels: pure functions over the facts of one transfer. [`select`] is for tensors, [`select_message`] and
//! [`select_offered`] for the two ends of a message. The conditions in words are those of [`table`](super::table).

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

/// Whether content rides in the response, or in its message: the first question of [`select`] and [`select_message`],
/// and mostly the last.
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

/// The facts that decide how a message goes.
#[derive(Clone, Copy, Debug)]
pub struct MessageFacts {
    /// Content bytes.
    pub nbytes: u64,
    /// Bytes beside the content, which share its room.
    pub beside: u64,
    /// What a message has room for.
    pub room: Room,
    /// The content can be read here, now or once it was gathered.
    pub readable: bool,
    /// It lies in memory of the host, in one piece.
    pub host: bool,
    /// All that goes over the connection has a checksum.
    pub sealed: bool,
    /// The receiver can read the source.
    pub can_read: bool,
    /// From so many bytes on content that is not registered goes by the pipeline; 0: none.
    pub pipeline_from: u64,
    /// The longest first segment of a pipeline: what is no longer has nothing to follow.
    pub first_segment: u64,
    /// Forced by option or `RDMA_PROTOCOL`.
    pub forced: Protocol,
}

/// What the sender of a message does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageChoice {
    /// Content inside the message.
    Eager,
    /// An offer with the first segment: the rest by the pipeline.
    OfferPipeline,
    /// An offer with the address of the source, if that can be opened: the receiver reads.
    OfferGet,
    /// An offer alone: the receiver asks for the content to be written.
    OfferPut,
}

/// Chooses how a message goes; `registered` is asked only where it matters, since it may take a look-up.
#[inline]
pub fn select_message(f: MessageFacts, registered: impl FnOnce() -> bool) -> MessageChoice {
    if f.readable && is_eager(f.nbytes + f.beside, f.room, f.forced) {
        return MessageChoice::Eager;
    }
    if !f.host || f.sealed {
        return MessageChoice::OfferPut;
    }
    let pipeline = match f.forced {
        Protocol::Pipeline => true,
        Protocol::Auto => (1..=f.nbytes).contains(&f.pipeline_from) && !registered(),
        _ => false,
    };
    if pipeline && f.first_segment < f.nbytes {
        return MessageChoice::OfferPipeline;
    }
    if f.can_read && f.forced != Protocol::DirectPut {
        MessageChoice::OfferGet
    } else {
        MessageChoice::OfferPut
    }
}

/// The facts of a message that is longer than its room.
#[derive(Clone, Copy, Debug)]
pub struct LongFacts {
    /// Content bytes, with those beside.
    pub nbytes: u64,
    /// The longest that the provider takes while it has much room.
    pub most: u64,
    /// The application chose an eager limit.
    pub limited: bool,
    /// All that goes over the connection has a checksum.
    pub sealed: bool,
    /// Forced by option or `RDMA_PROTOCOL`.
    pub forced: Protocol,
}

/// Whether such a message rides all the same, for the connection has much room now: one message less each way makes up
/// for the copy, but not where the content would be moved within the pool. `pays`, that both hold, is asked only where
/// it matters.
#[inline]
pub fn is_eager_for_now(f: LongFacts, pays: impl FnOnce() -> bool) -> bool {
    f.nbytes <= f.most && !f.limited && f.forced == Protocol::Auto && !f.sealed && pays()
}

/// The facts that decide how the receiver of a message takes the content that it was offered.
#[derive(Clone, Copy, Debug)]
pub struct OfferFacts {
    /// The sender offers a pipeline.
    pub pipeline: bool,
    /// The sender bounds what goes at a time: its memory lies in pieces.
    pub bounded: bool,
    /// The destination is memory of the host, in one piece.
    pub host: bool,
    /// It lies in pieces.
    pub pieces: bool,
    /// All that goes over the connection has a checksum.
    pub sealed: bool,
}

/// How the receiver takes offered content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// By the pipeline.
    Pipeline,
    /// In legs.
    Legs,
    /// As a tensor whose metadata came: it is read, or written.
    Whole,
}

/// Chooses how offered content is taken.
#[inline]
pub fn select_offered(f: OfferFacts) -> Taken {
    if f.pipeline && f.host && !f.sealed {
        Taken::Pipeline
    } else if f.bounded || f.pieces {
        Taken::Legs
    } else {
        Taken::Whole
    }
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

    const MESSAGE: MessageFacts = MessageFacts {
        nbytes: 1 << 20,
        beside: 0,
        room: Room { eager: 8192, message: 12000 },
        readable: true,
        host: true,
        sealed: false,
        can_read: true,
        pipeline_from: 0,
        first_segment: 4096,
        forced: Protocol::Auto,
    };

    /// Long enough for the pipeline.
    const PIPED: MessageFacts = MessageFacts { pipeline_from: 1 << 20, ..MESSAGE };

    /// What chooses, what it chooses where the memory is not registered, and where it is.
    #[test]
    fn table_of_messages() {
        use MessageChoice::{Eager, OfferGet, OfferPipeline, OfferPut};
        let forced = |forced| MessageFacts { forced, ..MESSAGE };
        let short = MessageFacts { nbytes: 8, ..MESSAGE };
        let cases = [
            (MessageFacts { nbytes: 0, ..MESSAGE }, Eager, Eager),
            (MessageFacts { nbytes: 8192, ..MESSAGE }, Eager, Eager),
            (MessageFacts { nbytes: 8192, beside: 1, ..MESSAGE }, OfferGet, OfferGet),
            (MessageFacts { nbytes: 8192, sealed: true, ..MESSAGE }, Eager, Eager),
            (MessageFacts { readable: false, host: false, ..short }, OfferPut, OfferPut),
            (MessageFacts { host: false, ..short }, Eager, Eager),
            (MESSAGE, OfferGet, OfferGet),
            (MessageFacts { can_read: false, ..MESSAGE }, OfferPut, OfferPut),
            (MessageFacts { sealed: true, ..MESSAGE }, OfferPut, OfferPut),
            (MessageFacts { host: false, ..MESSAGE }, OfferPut, OfferPut),
            (PIPED, OfferPipeline, OfferGet),
            (MessageFacts { pipeline_from: (1 << 20) + 1, ..PIPED }, OfferGet, OfferGet),
            (MessageFacts { can_read: false, ..PIPED }, OfferPipeline, OfferPut),
            (MessageFacts { sealed: true, ..PIPED }, OfferPut, OfferPut),
            (MessageFacts { host: false, ..PIPED }, OfferPut, OfferPut),
            (MessageFacts { first_segment: 1 << 20, ..PIPED }, OfferGet, OfferGet),
            (MessageFacts { forced: Protocol::DirectPut, ..PIPED }, OfferPut, OfferPut),
            (MessageFacts { forced: Protocol::DirectGet, ..PIPED }, OfferGet, OfferGet),
            (forced(Protocol::Pipeline), OfferPipeline, OfferPipeline),
            (MessageFacts { nbytes: 8192, ..forced(Protocol::Pipeline) }, Eager, Eager),
            (forced(Protocol::DirectPut), OfferPut, OfferPut),
            (MessageFacts { forced: Protocol::DirectPut, ..short }, OfferPut, OfferPut),
            (forced(Protocol::DirectGet), OfferGet, OfferGet),
            (MessageFacts { nbytes: 12000, ..forced(Protocol::Eager) }, Eager, Eager),
            (MessageFacts { nbytes: 12001, ..forced(Protocol::Eager) }, OfferGet, OfferGet),
            (forced(Protocol::Persistent), OfferGet, OfferGet),
        ];
        for (facts, unregistered, registered) in cases {
            assert_eq!(select_message(facts, || false), unregistered, "{facts:?}");
            assert_eq!(select_message(facts, || true), registered, "{facts:?}, registered");
        }
    }

    #[test]
    fn table_of_what_rides_for_now() {
        let base = LongFacts {
            nbytes: 100,
            most: 100,
            limited: false,
            sealed: false,
            forced: Protocol::Auto,
        };
        let cases = [
            (base, true),
            (LongFacts { nbytes: 101, ..base }, false),
            (LongFacts { limited: true, ..base }, false),
            (LongFacts { sealed: true, ..base }, false),
            (LongFacts { forced: Protocol::DirectGet, ..base }, false),
        ];
        for (facts, want) in cases {
            assert_eq!(is_eager_for_now(facts, || true), want, "{facts:?}");
            assert!(!is_eager_for_now(facts, || false), "{facts:?}, which does not pay");
        }
    }

    #[test]
    fn table_of_offers() {
        let base = OfferFacts {
            pipeline: false,
            bounded: false,
            host: true,
            pieces: false,
            sealed: false,
        };
        let piped = OfferFacts { pipeline: true, ..base };
        let cases = [
            (base, Taken::Whole),
            (OfferFacts { host: false, ..base }, Taken::Whole),
            (OfferFacts { sealed: true, ..base }, Taken::Whole),
            (OfferFacts { bounded: true, ..base }, Taken::Legs),
            (OfferFacts { host: false, pieces: true, ..base }, Taken::Legs),
            (piped, Taken::Pipeline),
            (OfferFacts { bounded: true, ..piped }, Taken::Pipeline),
            (OfferFacts { sealed: true, ..piped }, Taken::Whole),
            (OfferFacts { host: false, ..piped }, Taken::Whole),
            (OfferFacts { host: false, pieces: true, ..piped }, Taken::Legs),
        ];
        for (facts, want) in cases {
            assert_eq!(select_offered(facts), want, "{facts:?}");
        }
    }
}
