//! Control messages between two managers. `docs/protocol.md` describes each field.
//!
//! Every message begins with type (1 byte), flags (1 byte) and returned credits (2 bytes, patched
//! in at the moment of posting). All numbers are little-endian. Decoding borrows from the input and
//! checks every bound. It copies what is short and rare (dimensions, user bytes, regions, lengths of parts): in proportion
//! to what is there, and never for what a length only claims.

use crate::api::{MAX_DIMS, MAX_KEY_LEN, Meta, TENSOR_DEAD, TENSOR_SERIALIZED};
use crate::fabric::keys::{Keys, Place};
use crate::status::Status;
use crate::user::UserBytes;
use crate::wire::Reader;

mod buffers;
mod flags;
mod pairs;
mod rails;
mod read;
mod usual;
mod write;

pub use buffers::{BufferMessage, IMM_BUFFER, IMM_BUFFER_LAST};
pub use pairs::{IMM_SLOT, IMM_SLOT_LAST, PairMessage};
pub use rails::{Nonce, RailMessage};
use read::*;
pub use read::{content_of, decode, fuzz_message};
pub use usual::{
    CONTENT_HEAD, MSG_HEAD, Short, UsualMeta, UsualMsg, UsualRequest, WholeMsg, active_msg,
    matched, msg_head, plain_msg, usual_content, usual_msg, usual_request, whole_content,
    whole_msg, whole_request,
};
use write::*;
pub use write::{
    MSG_FRAG_HEAD, MSG_HEAD_LEN, content_head_len, encode, head_len, put_content, put_msg,
};

/// Immediate of a write that only returns credits.
pub const IMM_ACK: u32 = 0xFFFF_FFFE;
/// Immediate of a control message, where the provider's SEND carries one.
pub const IMM_MESSAGE: u32 = 0xFFFF_FFFF;
/// Offset of the two bytes of returned credits in each message.
pub const CREDITS_AT: usize = 2;
/// Length of the header that every message begins with.
pub const HEADER_LEN: usize = 4;
/// Most regions that the memory of one transfer may lie in.
pub const MAX_REGIONS: usize = 4096;
/// Longest message after reassembly: the longest key and the keys of most regions, with the fields.
pub const MAX_MESSAGE: usize = MAX_KEY_LEN + 8192 + MAX_REGIONS * 12;
/// Longest header of the application in a tagged message, and most bytes of it beside a tensor.
pub const MAX_USER: usize = 512;
/// Length of the name of a connection.
pub const NAME: usize = 16;
/// Most parts of a tagged message.
pub const MAX_PARTS: usize = 64;
/// The least that a sender takes at a time of content that goes in pieces.
pub const MIN_LIMIT: u32 = 256;
/// Longest text of an ERROR_STATUS or GOODBYE; longer ones are cut.
pub const MAX_ERROR_TEXT: usize = 4096;

const TENSOR_REQUEST: u8 = 1;
const META_DATA_RESPONSE: u8 = 2;
const TENSOR_RE_REQUEST: u8 = 3;
const ERROR_STATUS: u8 = 4;
const TENSOR_CONTENT: u8 = 5;
const CONTENT_DONE: u8 = 6;
const GET_DONE: u8 = 7;
const CANCEL: u8 = 8;
const CANCEL_ACK: u8 = 9;
const PING: u8 = 10;
const PONG: u8 = 11;
const CREDIT: u8 = 12;
const FRAGMENT: u8 = 13;
const GOODBYE: u8 = 14;
const MSG: u8 = 15;
const MSG_OFFER: u8 = 16;
const MSG_GRANT: u8 = 17;
const MSG_MATCHED: u8 = 18;
const MSG_WINDOW: u8 = 19;
const MSG_WITHDRAW: u8 = 20;
const MSG_WITHDRAWN: u8 = 21;
const MSG_ACK: u8 = 22;
const MSG_FRAG: u8 = 23;
const MSG_CARRIER: u8 = 24;
const CONNECTION_LOST: u8 = 25;

const F_DST: u8 = 1; // request: a destination is exposed
const F_META: u8 = 2; // request: the cached metadata follows
const F_ANY_META: u8 = 4; // request: the destination fits any metadata up to its length
const F_CHECKSUM: u8 = 8; // request: wanted; response: present
const F_ROOM: u8 = 32; // request: the destination's length, which is not exposed
const F_ANY_LEN: u8 = 64; // request: there will be memory for any length
const F_SAME: u8 = 1; // content: its metadata is what the request said to be cached
const F_FOLLOWS: u8 = 1; // metadata: the content is on its way to the exposed destination
const F_SOURCE: u8 = 2; // metadata: the source may be read
const F_REGIONS: u8 = 16; // any of the above with memory: it lies in several regions
const F_LAST: u8 = 1; // fragment: the last
const F_OK: u8 = 1; // get done: success
const F_TOO_LONG: u8 = 2; // get done: the tensor is longer than the destination, and stays its sender's
const F_SYNC: u8 = 1; // tagged message: its sender wants to hear of the match
const F_PIPELINE: u8 = 4; // offer: its first bytes, or all, and the rest may come by a pipeline; grant: of one
const F_LIMIT: u8 = 8; // offer: the content goes in pieces of at most so many bytes
const F_USER: u8 = 32; // message, offer: a header of the application
const F_PARTS: u8 = 64; // message, offer: the lengths of its parts
const F_ACTIVE: u8 = 128; // message, offer: it is for a handler
/// Metadata: bytes of the application follow.
const M_USER: u32 = 4;

/// TENSOR_REQUEST.
#[derive(Clone, Debug, PartialEq)]
pub struct Request<'a> {
    /// The receiver's request index.
    pub index: u32,
    /// Step.
    pub step: i64,
    /// Exposed destination and its length.
    pub dst: Option<(Place, u64)>,
    /// The destination takes any metadata up to its length (given by the application up front).
    pub any_meta: bool,
    /// A checksum of the content is wanted.
    pub checksum: bool,
    /// How long a tensor may be.
    pub fits: Fits,
    /// The metadata in the receiver's cache.
    pub cached: Option<Meta>,
    /// Key.
    pub key: &'a [u8],
}

/// What a request says of how long its tensor may be, beside a destination that takes any metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fits {
    /// As long as the metadata in the cache says; what is longer may fit or not. Without cached metadata: any.
    #[default]
    Known,
    /// Any length: memory is found when it is known.
    Any,
    /// So many bytes.
    UpTo(u64),
}

impl Fits {
    fn flags(self) -> u8 {
        match self {
            Fits::Known => 0,
            Fits::Any => F_ANY_LEN,
            Fits::UpTo(_) => F_ROOM,
        }
    }
}

/// TENSOR_CONTENT.
#[derive(Clone, Debug, PartialEq)]
pub struct Content<'a> {
    /// The receiver's request index.
    pub index: u32,
    /// Checksum of the content.
    pub checksum: Option<u64>,
    /// The tensor's metadata; `None`: that which the request said to be cached.
    pub meta: Option<Meta>,
    /// The content.
    pub content: &'a [u8],
}

/// META_DATA_RESPONSE.
#[derive(Clone, Debug, PartialEq)]
pub struct MetaResponse {
    /// The receiver's request index.
    pub index: u32,
    /// The sender's response index.
    pub response: u32,
    /// The content follows into the destination that the request exposed.
    pub follows: bool,
    /// The source, where the receiver may read it.
    pub source: Option<Place>,
    /// Checksum of the content.
    pub checksum: Option<u64>,
    /// The tensor's metadata.
    pub meta: Meta,
}

/// What a tagged message is matched by, beside its sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Envelope {
    /// The communicator: messages of one never match receives of another.
    pub comm: u32,
    /// The tag.
    pub tag: u64,
}

/// What travels with a tagged message beside its content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extra<'a> {
    /// The application's header, at most [`MAX_USER`] bytes.
    pub user: &'a [u8],
    /// Lengths of its parts, at most [`MAX_PARTS`].
    pub parts: &'a [[u8; 8]],
    /// It is for the handler that has its communicator's number.
    pub active: bool,
    /// Of an offer: these first bytes of the content are here. The rest, if any, may come by a pipeline.
    pub first: Option<&'a [u8]>,
}

impl Extra<'_> {
    /// Nothing.
    pub const NONE: Extra<'static> = Extra { user: &[], parts: &[], active: false, first: None };

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.user.is_empty() && self.parts.is_empty() && !self.active && self.first.is_none()
    }

    /// A header alone.
    pub fn user(user: &[u8]) -> Extra<'_> {
        Extra { user, ..Extra::NONE }
    }

    /// Whether there is nothing but a header, and perhaps a handler that it is for.
    #[inline]
    pub fn is_header(&self) -> bool {
        self.parts.is_empty() && self.first.is_none()
    }

    /// Bytes that it counts for.
    pub fn cost(&self) -> u64 {
        self.offer_cost().sum()
    }

    /// The same of an offer's, one by one.
    pub fn offer_cost(&self) -> OfferCost {
        let beside = (self.user.len() + 8 * self.parts.len()) as u64;
        OfferCost { beside, first: self.first.map_or(0, <[u8]>::len) as u64 }
    }

    fn flags(&self) -> u8 {
        let user = if self.user.is_empty() { 0 } else { F_USER };
        let active = if self.active { F_ACTIVE } else { 0 };
        let first = if self.first.is_some() { F_PIPELINE } else { 0 };
        user | active | first | if self.parts.is_empty() { 0 } else { F_PARTS }
    }

    fn put(&self, out: &mut Vec<u8>) {
        if !self.user.is_empty() {
            put_user(out, self.user);
        }
        if !self.parts.is_empty() {
            out.push(self.parts.len() as u8);
            out.extend_from_slice(self.parts.as_flattened());
        }
        if let Some(first) = self.first {
            out.extend_from_slice(&(first.len() as u16).to_le_bytes());
            out.extend_from_slice(first);
        }
    }

    fn get<'a>(r: &mut Reader<'a>, flags: u8) -> Result<Extra<'a>, Status> {
        let mut extra = Extra { active: flags & F_ACTIVE != 0, ..Extra::default() };
        if flags & F_USER != 0 {
            extra.user = get_user(r)?;
        }
        if flags & F_PARTS != 0 {
            let [n] = r.array::<1>()?;
            if n == 0 || usize::from(n) > MAX_PARTS {
                let text = text!("a message of {n} parts, 1 to {MAX_PARTS} are allowed");
                return Err(Status::invalid(text));
            }
            (extra.parts, _) = r.bytes(8 * usize::from(n))?.as_chunks::<8>();
        }
        if flags & F_PIPELINE != 0 {
            let len = usize::from(r.u16()?);
            extra.first = Some(r.bytes(len)?);
        }
        Ok(extra)
    }

    /// Checks that the parts are as long as the content.
    fn check(&self, nbytes: u64) -> Result<(), Status> {
        let mut lens = self.parts.iter().map(|n| u64::from_le_bytes(*n));
        let sum = lens.try_fold(0u64, u64::checked_add);
        if self.parts.is_empty() || sum == Some(nbytes) {
            return Ok(());
        }
        let text = text!("parts that are not as long as their message, which has {nbytes} bytes");
        Err(Status::invalid(text))
    }
}

/// Bytes that come with an offer. Content has a bound of its own: however much of it waits, a message with a header may be offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OfferCost {
    /// Header and lengths of parts.
    pub beside: u64,
    /// Of the content.
    pub first: u64,
}

impl OfferCost {
    /// Of both.
    pub fn sum(self) -> u64 {
        self.beside + self.first
    }
}

/// MSG_OFFER.
#[derive(Clone, Debug, PartialEq)]
pub struct MsgOffer<'a> {
    /// Communicator and tag.
    pub envelope: Envelope,
    /// The sender's response index.
    pub response: u32,
    /// Content bytes.
    pub nbytes: u64,
    /// The source, where the receiver may read it.
    pub source: Option<Place>,
    /// Longest destination that the sender fills at a time; 0: the content goes whole.
    pub limit: u32,
    /// What travels beside the content.
    pub extra: Extra<'a>,
}

/// A decoded message.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "fields are those of docs/protocol.md")]
pub enum Message<'a> {
    /// The receiver asks for a tensor.
    Request(Request<'a>),
    /// The sender tells what the tensor is.
    Meta(MetaResponse),
    /// The receiver, having allocated, gives the destination.
    ReRequest { response: u32, dst: Place, len: u64 },
    /// The sender has no tensor for this request, and why.
    Error { index: u32, code: i32, text: &'a [u8] },
    /// The tensor with its content.
    Content(Content<'a>),
    /// All content has been written (checksum mode; otherwise the immediate says so).
    ContentDone { index: u32, checksum: u64 },
    /// The receiver has read the source, or gave up.
    GetDone { response: u32, ok: bool },
    /// A GET_DONE: the memory that the receiver was given up front is too short. The tensor stays its sender's.
    TooLong { response: u32 },
    /// The receiver no longer wants the tensor.
    Cancel { index: u32 },
    /// The sender will not write for this request any more.
    CancelAck { index: u32 },
    /// Are you there?
    Ping,
    /// Yes.
    Pong,
    /// Depth of the receive queue: how many messages may be under way.
    Credit { depth: u32 },
    /// A piece of a message longer than the provider's largest SEND.
    Fragment { last: bool, bytes: &'a [u8] },
    /// The end of the connection is meant, and why: a code, 0 where there is nothing to say, and text.
    Goodbye { code: i32, text: &'a [u8] },
    /// A tagged message with its content; with `sync` the sender's number of it, for MSG_MATCHED.
    Msg { envelope: Envelope, sync: Option<u32>, extra: Extra<'a>, content: &'a [u8] },
    /// A tagged message whose content waits for the receiver.
    MsgOffer(MsgOffer<'a>),
    /// The receiver of an offered message gives the destination; of a pipeline, that of the next bytes.
    MsgGrant { response: u32, request: u32, dst: Place, len: u64, pipeline: bool },
    /// The receiver of an offered message takes it by the pipeline, and these bytes of it by messages.
    MsgAck { response: u32, request: u32, at: u64, len: u64 },
    /// These bytes.
    MsgFrag { request: u32, at: u64, content: &'a [u8] },
    /// A message with this number has met its receive.
    MsgMatched { number: u32 },
    /// How many bytes of messages may be sent, from the connection's beginning on.
    MsgWindow { limit: u64 },
    /// Messages come by this connection from now on, the how-manieth of the sender's.
    MsgCarrier { number: u64 },
    /// Connections that the sender had with the receiver and has no longer, by name.
    Lost { names: &'a [u8] },
    /// The sender takes an offer back, or (`sync`) a message of this number.
    MsgWithdraw { number: u32, sync: bool },
    /// It was taken back: nothing had met it.
    MsgWithdrawn { number: u32, sync: bool },
    /// Between the ends of a pair.
    Pair(PairMessage<'a>),
    /// About a buffer that lasts.
    Buffer(BufferMessage),
    /// About a rail.
    Rail(RailMessage),
}

#[cfg(test)]
mod tests;
