//! Messages, put together.

use super::*;

pub(super) fn put_header(out: &mut Vec<u8>, kind: u8, flags: u8) {
    out.clear();
    out.extend_from_slice(&[kind, flags, 0, 0]);
}

/// Metadata without its dimensions.
#[inline(always)]
pub(super) fn fixed_meta(meta: &Meta) -> [u8; 14] {
    let mut fixed = [0; 14];
    fixed[..4].copy_from_slice(&meta.dtype.to_le_bytes());
    let user = if meta.user.is_empty() { 0 } else { M_USER };
    (fixed[4], fixed[5]) = ((meta.flags | user) as u8, meta.dims.len() as u8);
    fixed[6..].copy_from_slice(&meta.nbytes.to_le_bytes());
    fixed
}

pub(super) fn put_meta(out: &mut Vec<u8>, meta: &Meta) {
    out.extend_from_slice(&fixed_meta(meta));
    for d in &meta.dims {
        out.extend_from_slice(&d.to_le_bytes());
    }
    if !meta.user.is_empty() {
        put_user(out, meta.user.bytes());
    }
}

/// Bytes of the application that it has here.
pub(super) fn put_user(out: &mut Vec<u8>, user: &[u8]) {
    out.extend_from_slice(&(user.len() as u16).to_le_bytes());
    out.extend_from_slice(user);
}

/// Most bytes that metadata takes beyond its fixed part.
pub(super) fn meta_room(meta: &Meta) -> usize {
    8 * meta.dims.len() + meta.user.room()
}

pub(super) fn put_place(out: &mut Vec<u8>, place: &Place) {
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

pub(super) fn regions_flag(place: Option<&Place>) -> u8 {
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
                | r.fits.flags()
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
            if let Fits::UpTo(len) = r.fits {
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
        Message::TooLong { response } => {
            put_header(out, GET_DONE, F_TOO_LONG);
            out.extend_from_slice(&response.to_le_bytes());
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
        Message::MsgCarrier { number } => {
            put_header(out, MSG_CARRIER, 0);
            out.extend_from_slice(&number.to_le_bytes());
        }
        Message::Lost { .. } => put_header(out, CONNECTION_LOST, 0),
        Message::MsgWithdraw { number, sync } => put_number(out, MSG_WITHDRAW, *sync, *number),
        Message::MsgWithdrawn { number, sync } => put_number(out, MSG_WITHDRAWN, *sync, *number),
        Message::Pair(m) => pairs::put(out, m),
        Message::Buffer(m) => buffers::put(out, m),
        Message::Rail(m) => rails::put(out, m),
    }
}

pub(super) fn put_number(out: &mut Vec<u8>, kind: u8, sync: bool, number: u32) {
    put_header(out, kind, if sync { F_SYNC } else { 0 });
    out.extend_from_slice(&number.to_le_bytes());
}

pub(super) fn put_msg_offer(out: &mut Vec<u8>, m: &MsgOffer<'_>) {
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
