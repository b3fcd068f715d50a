//! Control messages between two managers. `docs/protocol.md` describes each field.
//!
//! Every message begins with type (1 byte), flags (1 byte) and returned credits (2 bytes, patched
//! in at the moment of posting). All numbers are little-endian. Decoding borrows from the input,
//! checks every bound and never allocates more than the input's own size.

use crate::api::{MAX_DIMS, MAX_KEY_LEN, Meta, TENSOR_DEAD, TENSOR_SERIALIZED};
use crate::fabric::keys::{Keys, Place};
use crate::status::Status;
use crate::user::UserBytes;
use crate::wire::Reader;

mod buffers;
mod pairs;
mod rails;
mod usual;

pub use buffers::{BufferMessage, IMM_BUFFER, IMM_BUFFER_LAST};
pub use pairs::{IMM_SLOT, IMM_SLOT_LAST, PairMessage};
pub use rails::{Nonce, RailMessage};
pub use usual::{
    MSG_HEAD, Short, UsualMeta, UsualMsg, UsualRequest, usual_content, usual_msg, usual_msg_head,
    usual_msg_head_user, usual_request,
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

const F_DST: u8 = 1; // request: a destination is exposed
const F_META: u8 = 2; // request: the cached metadata follows
const F_ANY_META: u8 = 4; // request: the destination fits any metadata up to its length
const F_CHECKSUM: u8 = 8; // request: wanted; response: present
const F_SAME: u8 = 1; // content: its metadata is what the request said to be cached
const F_FOLLOWS: u8 = 1; // metadata: the content is on its way to the exposed destination
const F_SOURCE: u8 = 2; // metadata: the source may be read
const F_REGIONS: u8 = 16; // any of the above with memory: it lies in several regions
const F_LAST: u8 = 1; // fragment: the last
const F_OK: u8 = 1; // get done: success
const F_SYNC: u8 = 1; // tagged message: its sender wants to hear of the match
const F_PIPELINE: u8 = 4; // offer: its first bytes, and the rest may come by a pipeline; grant: of one
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
    /// The metadata in the receiver's cache.
    pub cached: Option<Meta>,
    /// Key.
    pub key: &'a [u8],
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
    /// Of an offer: the rest of the content may come by a pipeline, these first bytes of it are here.
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

    /// Whether there is nothing but a header.
    #[inline]
    pub fn is_header(&self) -> bool {
        self.parts.is_empty() && !self.active && self.first.is_none()
    }

    /// Bytes that it counts for.
    pub fn cost(&self) -> u64 {
        (self.user.len() + 8 * self.parts.len() + self.first.map_or(0, <[u8]>::len)) as u64
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
                let text = format!("a message of {n} parts, 1 to {MAX_PARTS} are allowed");
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
        let text = format!("parts that are not as long as their message, which has {nbytes} bytes");
        Err(Status::invalid(text))
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

fn put_header(out: &mut Vec<u8>, kind: u8, flags: u8) {
    out.clear();
    out.extend_from_slice(&[kind, flags, 0, 0]);
}

/// Metadata without its dimensions.
#[inline(always)]
fn fixed_meta(meta: &Meta) -> [u8; 14] {
    let mut fixed = [0; 14];
    fixed[..4].copy_from_slice(&meta.dtype.to_le_bytes());
    let user = if meta.user.is_empty() { 0 } else { M_USER };
    (fixed[4], fixed[5]) = ((meta.flags | user) as u8, meta.dims.len() as u8);
    fixed[6..].copy_from_slice(&meta.nbytes.to_le_bytes());
    fixed
}

fn put_meta(out: &mut Vec<u8>, meta: &Meta) {
    out.extend_from_slice(&fixed_meta(meta));
    for d in &meta.dims {
        out.extend_from_slice(&d.to_le_bytes());
    }
    if !meta.user.is_empty() {
        put_user(out, meta.user.bytes());
    }
}

/// Bytes of the application that it has here.
fn put_user(out: &mut Vec<u8>, user: &[u8]) {
    out.extend_from_slice(&(user.len() as u16).to_le_bytes());
    out.extend_from_slice(user);
}

fn get_user<'a>(r: &mut Reader<'a>) -> Result<&'a [u8], Status> {
    let len = usize::from(r.u16()?);
    if len == 0 || len > MAX_USER {
        let text = format!("{len} bytes of the application, 1 to {MAX_USER} are allowed");
        return Err(Status::invalid(text));
    }
    Ok(r.bytes(len)?)
}

/// Most bytes that metadata takes beyond its fixed part.
fn meta_room(meta: &Meta) -> usize {
    8 * meta.dims.len() + meta.user.room()
}

fn get_meta(r: &mut Reader<'_>) -> Result<Meta, Status> {
    let [d0, d1, d2, d3, flags, ndims, n @ ..] = r.array::<14>()?;
    let (flags, ndims) = (u32::from(flags), usize::from(ndims));
    let (dtype, nbytes) = (u32::from_le_bytes([d0, d1, d2, d3]), u64::from_le_bytes(n));
    let known = flags & !(TENSOR_DEAD | TENSOR_SERIALIZED | M_USER) == 0;
    if !known || ndims > MAX_DIMS || (flags & TENSOR_DEAD != 0 && nbytes != 0) {
        return Err(bad_meta(flags, ndims, nbytes));
    }
    let mut meta = Meta { dtype, flags: flags & !M_USER, nbytes, ..Meta::default() };
    if ndims > 0 {
        get_dims(r, ndims, &mut meta)?;
    }
    if flags & M_USER != 0 {
        meta.user = UserBytes::copy(get_user(r)?)?;
    }
    Ok(meta)
}

#[cold]
fn bad_meta(flags: u32, ndims: usize, nbytes: u64) -> Status {
    Status::invalid(if flags & !(TENSOR_DEAD | TENSOR_SERIALIZED | M_USER) != 0 {
        format!("tensor flags {flags:#x} are not known")
    } else if ndims > MAX_DIMS {
        format!("{ndims} dimensions, at most {MAX_DIMS} are allowed")
    } else {
        format!("a dead tensor with {nbytes} bytes, 0 are allowed")
    })
}

fn get_dims(r: &mut Reader<'_>, ndims: usize, meta: &mut Meta) -> Result<(), Status> {
    let (dims, _) = r.bytes(8 * ndims)?.as_chunks::<8>();
    crate::room::grow(&mut meta.dims, ndims, "dimensions")?;
    meta.dims.extend(dims.iter().map(|d| i64::from_le_bytes(*d)));
    match meta.dims.iter().find(|d| **d < 0) {
        Some(d) => Err(Status::invalid(format!("a dimension of {d}, 0 and more are allowed"))),
        None => Ok(()),
    }
}

/// Memory: address, key, and with `F_REGIONS` the number of further regions with offset and key of
/// each.
fn get_place(r: &mut Reader<'_>, flags: u8) -> Result<Place, Status> {
    let mut place = Place { addr: r.u64()?, rkeys: Keys::one(r.u32()?) };
    if flags & F_REGIONS == 0 {
        return Ok(place);
    }
    let n = usize::from(r.u16()?);
    if n == 0 || n >= MAX_REGIONS {
        let most = MAX_REGIONS - 1;
        return Err(Status::invalid(format!("{n} further regions, 1 to {most} are allowed")));
    }
    if !place.rkeys.fits(n) {
        return Err(crate::room::none(16 * n, "a place"));
    }
    for _ in 0..n {
        let (at, rkey) = (r.u64()?, r.u32()?);
        if !place.rkeys.push(at, rkey) {
            return Err(Status::invalid(format!("a region at offset {at} is out of order")));
        }
    }
    Ok(place)
}

fn put_place(out: &mut Vec<u8>, place: &Place) {
    out.extend_from_slice(&place.addr.to_le_bytes());
    out.extend_from_slice(&place.rkeys.first().to_le_bytes());
    let rest = place.rkeys.rest();
    if !rest.is_empty() {
        out.extend_from_slice(&(rest.len() as u16).to_le_bytes());
    }
    for (at, rkey) in rest {
        out.extend_from_slice(&at.to_le_bytes());
        out.extend_from_slice(&rkey.to_le_bytes());
    }
}

fn regions_flag(place: Option<&Place>) -> u8 {
    if place.is_some_and(|p| !p.rkeys.rest().is_empty()) { F_REGIONS } else { 0 }
}

/// At least as many bytes as [`encode`] writes.
pub fn head_len(message: &Message<'_>) -> usize {
    // More than all parts of a fixed length together.
    const FIXED: usize = 96;
    let place = |place: &Place| 12 * place.rkeys.rest().len();
    FIXED
        + match message {
            Message::Request(r) => {
                r.cached.as_ref().map_or(0, meta_room) + r.dst.as_ref().map_or(0, |d| place(&d.0))
            }
            Message::Meta(m) => meta_room(&m.meta) + m.source.as_ref().map_or(0, place),
            Message::ReRequest { dst, .. } => place(dst),
            Message::Content(c) => c.meta.as_ref().map_or(0, meta_room),
            Message::MsgOffer(m) => m.source.as_ref().map_or(0, place) + m.extra.cost() as usize,
            Message::Msg { extra, .. } => extra.cost() as usize,
            Message::MsgGrant { dst, .. } => place(dst),
            Message::Pair(m) => 12 * m.regions(),
            Message::Buffer(m) => m.more(),
            _ => 0,
        }
}

/// What is before the content of a MSG_FRAG.
pub const MSG_FRAG_HEAD: usize = HEADER_LEN + 4 + 8;
/// At least as many bytes as [`put_msg`] writes, beside the cost of the [`Extra`].
pub const MSG_HEAD_LEN: usize = 32;

/// Writes the head of a tagged message, as [`encode`] does.
#[inline]
pub fn put_msg(out: &mut Vec<u8>, envelope: Envelope, sync: Option<u32>, extra: &Extra<'_>) {
    let flags = if sync.is_some() { F_SYNC } else { 0 } | extra.flags();
    let mut fixed = [0; 16];
    (fixed[0], fixed[1]) = (MSG, flags);
    fixed[4..8].copy_from_slice(&envelope.comm.to_le_bytes());
    fixed[8..].copy_from_slice(&envelope.tag.to_le_bytes());
    out.clear();
    out.extend_from_slice(&fixed);
    if let Some(number) = sync {
        out.extend_from_slice(&number.to_le_bytes());
    }
    extra.put(out);
}

/// At least as many bytes as [`put_content`] writes.
#[inline]
pub fn content_head_len(meta: Option<&Meta>) -> usize {
    64 + meta.map_or(0, meta_room)
}

/// Writes the head of a TENSOR_CONTENT, as [`encode`] does.
pub fn put_content(out: &mut Vec<u8>, index: u32, checksum: Option<u64>, meta: Option<&Meta>) {
    let flags =
        if checksum.is_some() { F_CHECKSUM } else { 0 } | if meta.is_none() { F_SAME } else { 0 };
    put_header(out, TENSOR_CONTENT, flags);
    out.extend_from_slice(&index.to_le_bytes());
    if let Some(sum) = checksum {
        out.extend_from_slice(&sum.to_le_bytes());
    }
    if let Some(meta) = meta {
        put_meta(out, meta);
    }
}

/// Writes all of a message but its trailing bytes (key, text or content) into `out`, replacing what
/// was there; the caller posts `out` followed by those bytes.
pub fn encode(message: &Message<'_>, out: &mut Vec<u8>) {
    match message {
        Message::Request(r) => {
            let flags = if r.dst.is_some() { F_DST } else { 0 }
                | if r.cached.is_some() { F_META } else { 0 }
                | if r.any_meta { F_ANY_META } else { 0 }
                | if r.checksum { F_CHECKSUM } else { 0 }
                | regions_flag(r.dst.as_ref().map(|d| &d.0));
            let mut fixed = [0; 16];
            (fixed[0], fixed[1]) = (TENSOR_REQUEST, flags);
            fixed[4..8].copy_from_slice(&r.index.to_le_bytes());
            fixed[8..].copy_from_slice(&r.step.to_le_bytes());
            out.clear();
            out.extend_from_slice(&fixed);
            if let Some((place, len)) = &r.dst {
                put_place(out, place);
                out.extend_from_slice(&len.to_le_bytes());
            }
            if let Some(meta) = &r.cached {
                put_meta(out, meta);
            }
        }
        Message::Meta(m) => {
            let flags = if m.follows { F_FOLLOWS } else { 0 }
                | if m.source.is_some() { F_SOURCE } else { 0 }
                | if m.checksum.is_some() { F_CHECKSUM } else { 0 }
                | regions_flag(m.source.as_ref());
            put_header(out, META_DATA_RESPONSE, flags);
            out.extend_from_slice(&m.index.to_le_bytes());
            out.extend_from_slice(&m.response.to_le_bytes());
            if let Some(source) = &m.source {
                put_place(out, source);
            }
            if let Some(sum) = m.checksum {
                out.extend_from_slice(&sum.to_le_bytes());
            }
            put_meta(out, &m.meta);
        }
        Message::ReRequest { response, dst, len } => {
            put_header(out, TENSOR_RE_REQUEST, regions_flag(Some(dst)));
            out.extend_from_slice(&response.to_le_bytes());
            put_place(out, dst);
            out.extend_from_slice(&len.to_le_bytes());
        }
        Message::Error { index, code, .. } => {
            put_header(out, ERROR_STATUS, 0);
            out.extend_from_slice(&index.to_le_bytes());
            out.extend_from_slice(&code.to_le_bytes());
        }
        Message::Content(c) => put_content(out, c.index, c.checksum, c.meta.as_ref()),
        Message::ContentDone { index, checksum } => {
            put_header(out, CONTENT_DONE, 0);
            out.extend_from_slice(&index.to_le_bytes());
            out.extend_from_slice(&checksum.to_le_bytes());
        }
        Message::GetDone { response, ok } => {
            put_header(out, GET_DONE, if *ok { F_OK } else { 0 });
            out.extend_from_slice(&response.to_le_bytes());
        }
        Message::Cancel { index } => {
            put_header(out, CANCEL, 0);
            out.extend_from_slice(&index.to_le_bytes());
        }
        Message::CancelAck { index } => {
            put_header(out, CANCEL_ACK, 0);
            out.extend_from_slice(&index.to_le_bytes());
        }
        Message::Ping => put_header(out, PING, 0),
        Message::Pong => put_header(out, PONG, 0),
        Message::Credit { depth } => {
            put_header(out, CREDIT, 0);
            out.extend_from_slice(&depth.to_le_bytes());
        }
        Message::Fragment { last, .. } => put_header(out, FRAGMENT, if *last { F_LAST } else { 0 }),
        Message::Goodbye { code, .. } => {
            put_header(out, GOODBYE, 0);
            out.extend_from_slice(&code.to_le_bytes());
        }
        Message::Msg { envelope, sync, extra, .. } => put_msg(out, *envelope, *sync, extra),
        Message::MsgOffer(m) => put_msg_offer(out, m),
        Message::MsgAck { response, request, at, len } => {
            put_header(out, MSG_ACK, 0);
            out.extend_from_slice(&response.to_le_bytes());
            out.extend_from_slice(&request.to_le_bytes());
            out.extend_from_slice(&at.to_le_bytes());
            out.extend_from_slice(&len.to_le_bytes());
        }
        Message::MsgFrag { request, at, .. } => {
            put_header(out, MSG_FRAG, 0);
            out.extend_from_slice(&request.to_le_bytes());
            out.extend_from_slice(&at.to_le_bytes());
        }
        Message::MsgGrant { response, request, dst, len, pipeline } => {
            let flag = if *pipeline { F_PIPELINE } else { 0 };
            put_header(out, MSG_GRANT, regions_flag(Some(dst)) | flag);
            out.extend_from_slice(&response.to_le_bytes());
            out.extend_from_slice(&request.to_le_bytes());
            put_place(out, dst);
            out.extend_from_slice(&len.to_le_bytes());
        }
        Message::MsgMatched { number } => put_number(out, MSG_MATCHED, false, *number),
        Message::MsgWindow { limit } => {
            put_header(out, MSG_WINDOW, 0);
            out.extend_from_slice(&limit.to_le_bytes());
        }
        Message::MsgWithdraw { number, sync } => put_number(out, MSG_WITHDRAW, *sync, *number),
        Message::MsgWithdrawn { number, sync } => put_number(out, MSG_WITHDRAWN, *sync, *number),
        Message::Pair(m) => pairs::put(out, m),
        Message::Buffer(m) => buffers::put(out, m),
        Message::Rail(m) => rails::put(out, m),
    }
}

fn put_number(out: &mut Vec<u8>, kind: u8, sync: bool, number: u32) {
    put_header(out, kind, if sync { F_SYNC } else { 0 });
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_msg_offer(out: &mut Vec<u8>, m: &MsgOffer<'_>) {
    let flags = if m.source.is_some() { F_SOURCE } else { 0 }
        | if m.limit > 0 { F_LIMIT } else { 0 }
        | regions_flag(m.source.as_ref())
        | m.extra.flags();
    put_header(out, MSG_OFFER, flags);
    out.extend_from_slice(&m.envelope.comm.to_le_bytes());
    out.extend_from_slice(&m.envelope.tag.to_le_bytes());
    out.extend_from_slice(&m.response.to_le_bytes());
    out.extend_from_slice(&m.nbytes.to_le_bytes());
    if let Some(source) = &m.source {
        put_place(out, source);
    }
    if m.limit > 0 {
        out.extend_from_slice(&m.limit.to_le_bytes());
    }
    m.extra.put(out);
}

fn get_envelope(r: &mut Reader<'_>) -> Result<Envelope, Status> {
    Ok(Envelope { comm: r.u32()?, tag: r.u64()? })
}

fn get_msg_offer<'a>(r: &mut Reader<'a>, flags: u8) -> Result<Message<'a>, Status> {
    let (envelope, response, nbytes) = (get_envelope(r)?, r.u32()?, r.u64()?);
    let source = if flags & F_SOURCE != 0 { Some(get_place(r, flags)?) } else { None };
    if nbytes > isize::MAX as u64 {
        let text = format!("an offered message of {nbytes} bytes, 0 to {} are allowed", isize::MAX);
        return Err(Status::invalid(text));
    }
    let limit = if flags & F_LIMIT != 0 { r.u32()? } else { 0 };
    if flags & F_LIMIT != 0 && limit < MIN_LIMIT {
        let text = format!("content in pieces of {limit} bytes, at least {MIN_LIMIT} are allowed");
        return Err(Status::invalid(text));
    }
    let extra = Extra::get(r, flags)?;
    extra.check(nbytes)?;
    let first = extra.first.map_or(0, <[u8]>::len) as u64;
    if extra.first.is_some() && (first >= nbytes || source.is_some() || limit > 0) {
        let text = "a pipeline of a message that begins with all of it, or goes another way, too";
        return Err(Status::invalid(text));
    }
    Ok(Message::MsgOffer(MsgOffer { envelope, response, nbytes, source, limit, extra }))
}

fn get_request<'a>(r: &mut Reader<'a>, flags: u8) -> Result<Request<'a>, Status> {
    let [i0, i1, i2, i3, step @ ..] = r.array::<12>()?;
    let (index, step) = (u32::from_le_bytes([i0, i1, i2, i3]), i64::from_le_bytes(step));
    let dst = if flags & F_DST != 0 { Some((get_place(r, flags)?, r.u64()?)) } else { None };
    let cached = if flags & F_META != 0 { Some(get_meta(r)?) } else { None };
    if cached.as_ref().is_some_and(|meta| !meta.user.is_empty()) {
        return Err(Status::invalid("TENSOR_REQUEST with bytes of the application as known"));
    }
    let key = r.rest();
    if key.is_empty() || key.len() > MAX_KEY_LEN {
        return Err(bad_key(key.len()));
    }
    let (any_meta, checksum) = (flags & F_ANY_META != 0, flags & F_CHECKSUM != 0);
    Ok(Request { index, step, dst, any_meta, checksum, cached, key })
}

#[cold]
fn bad_key(len: usize) -> Status {
    let text = "TENSOR_REQUEST with a key of";
    Status::invalid(format!("{text} {len} bytes, 1 to {MAX_KEY_LEN} are allowed"))
}

fn get_content<'a>(r: &mut Reader<'a>, flags: u8) -> Result<Content<'a>, Status> {
    let index = r.u32()?;
    let checksum = if flags & F_CHECKSUM != 0 { Some(r.u64()?) } else { None };
    let meta = if flags & F_SAME == 0 { Some(get_meta(r)?) } else { None };
    let content = r.rest();
    if let Some(meta) = &meta
        && content.len() as u64 != meta.nbytes
    {
        return Err(content_of(content.len(), meta));
    }
    Ok(Content { index, checksum, meta, content })
}

/// Content is not as long as its metadata says.
#[cold]
pub fn content_of(len: usize, meta: &Meta) -> Status {
    let text = "TENSOR_CONTENT with";
    Status::invalid(format!("{text} {len} bytes of content, its metadata says {}", meta.nbytes))
}

/// Decodes one message, with the credits that its header returns. The bytes come from a peer.
pub fn decode(bytes: &[u8]) -> Result<(Message<'_>, u16), Status> {
    let mut r = Reader::new(bytes);
    let [kind, flags, credits @ ..] = r.array::<4>()?;
    let credits = u16::from_le_bytes(credits);
    let message = match kind {
        TENSOR_REQUEST => Message::Request(get_request(&mut r, flags)?),
        META_DATA_RESPONSE => {
            let (index, response) = (r.u32()?, r.u32()?);
            let source = if flags & F_SOURCE != 0 { Some(get_place(&mut r, flags)?) } else { None };
            let checksum = if flags & F_CHECKSUM != 0 { Some(r.u64()?) } else { None };
            let meta = get_meta(&mut r)?;
            let follows = flags & F_FOLLOWS != 0;
            Message::Meta(MetaResponse { index, response, follows, source, checksum, meta })
        }
        TENSOR_RE_REQUEST => {
            Message::ReRequest { response: r.u32()?, dst: get_place(&mut r, flags)?, len: r.u64()? }
        }
        ERROR_STATUS => Message::Error { index: r.u32()?, code: r.i32()?, text: r.rest() },
        TENSOR_CONTENT => Message::Content(get_content(&mut r, flags)?),
        CONTENT_DONE => Message::ContentDone { index: r.u32()?, checksum: r.u64()? },
        GET_DONE => Message::GetDone { response: r.u32()?, ok: flags & F_OK != 0 },
        CANCEL => Message::Cancel { index: r.u32()? },
        CANCEL_ACK => Message::CancelAck { index: r.u32()? },
        PING => Message::Ping,
        PONG => Message::Pong,
        CREDIT => Message::Credit { depth: r.u32()? },
        FRAGMENT => Message::Fragment { last: flags & F_LAST != 0, bytes: r.rest() },
        GOODBYE => Message::Goodbye { code: r.i32()?, text: r.rest() },
        MSG => {
            let envelope = get_envelope(&mut r)?;
            let sync = if flags & F_SYNC != 0 { Some(r.u32()?) } else { None };
            let extra = Extra::get(&mut r, flags & !F_PIPELINE)?;
            let content = r.rest();
            extra.check(content.len() as u64)?;
            Message::Msg { envelope, sync, extra, content }
        }
        MSG_OFFER => get_msg_offer(&mut r, flags)?,
        MSG_GRANT => Message::MsgGrant {
            response: r.u32()?,
            request: r.u32()?,
            dst: get_place(&mut r, flags)?,
            len: r.u64()?,
            pipeline: flags & F_PIPELINE != 0,
        },
        MSG_ACK => {
            Message::MsgAck { response: r.u32()?, request: r.u32()?, at: r.u64()?, len: r.u64()? }
        }
        MSG_FRAG => Message::MsgFrag { request: r.u32()?, at: r.u64()?, content: r.rest() },
        MSG_MATCHED => Message::MsgMatched { number: r.u32()? },
        MSG_WINDOW => Message::MsgWindow { limit: r.u64()? },
        MSG_WITHDRAW => Message::MsgWithdraw { number: r.u32()?, sync: flags & F_SYNC != 0 },
        MSG_WITHDRAWN => Message::MsgWithdrawn { number: r.u32()?, sync: flags & F_SYNC != 0 },
        pairs::FIRST..=pairs::LAST => pairs::get(&mut r, kind, flags)?,
        buffers::FIRST..=buffers::LAST => buffers::get(&mut r, kind, flags)?,
        rails::FIRST..=rails::LAST => rails::get(&mut r, kind)?,
        other => return Err(Status::invalid(format!("message type {other} is not known"))),
    };
    Ok((message, credits))
}

/// The bytes that follow what `encode` writes of this message.
fn tail<'a>(message: &Message<'a>) -> &'a [u8] {
    match message {
        Message::Request(r) => r.key,
        Message::Error { text, .. } | Message::Goodbye { text, .. } => text,
        Message::Content(c) => c.content,
        Message::Fragment { bytes, .. } => bytes,
        Message::Msg { content, .. } | Message::MsgFrag { content, .. } => content,
        Message::Pair(PairMessage::Bye { text, .. }) => text,
        _ => &[],
    }
}

/// For fuzzers: decodes any bytes; what decodes must survive encoding and decoding.
pub fn fuzz_message(bytes: &[u8]) {
    let (request, content, msg) = (usual_request(bytes), usual_content(bytes), usual_msg(bytes));
    let Ok((message, credits)) = decode(bytes) else {
        return assert!(request.is_none() && content.is_none() && msg.is_none());
    };
    // The short ways read the same.
    if let Some((r, returned)) = request {
        let UsualRequest { index, step, cached, key } = r;
        let meta = cached.and_then(|cached| cached.read());
        assert!(cached.is_none_or(|cached| meta.as_ref().is_some_and(|meta| cached.is(meta))));
        let (dst, any_meta, checksum) = (None, false, false);
        let r = Request { index, step, dst, any_meta, checksum, cached: meta, key };
        assert_eq!((Message::Request(r), returned), (message.clone(), credits));
    }
    if let Some((index, content, returned)) = content {
        let c = Content { index, checksum: None, meta: None, content };
        assert_eq!((Message::Content(c), returned), (message.clone(), credits));
    }
    if let Some((UsualMsg { envelope, user, content }, returned)) = msg {
        let m = Message::Msg { envelope, sync: None, extra: Extra::user(user), content };
        assert_eq!((m, returned), (message.clone(), credits));
    }
    let mut out = Vec::new();
    encode(&message, &mut out);
    out.extend_from_slice(tail(&message));
    assert_eq!(decode(&out), Ok((message, 0)));
}

#[cfg(test)]
mod tests;
