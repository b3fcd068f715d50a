//! Messages, taken apart.

use super::*;
use crate::limits::CHANNELS_PER_PEER;

pub(super) fn get_user<'a>(r: &mut Reader<'a>) -> Result<&'a [u8], Status> {
    let len = usize::from(r.u16()?);
    if len == 0 || len > MAX_USER {
        let text = text!("{len} bytes of the application, 1 to {MAX_USER} are allowed");
        return Err(Status::invalid(text));
    }
    Ok(r.bytes(len)?)
}

pub(super) fn get_meta(r: &mut Reader<'_>) -> Result<Meta, Status> {
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
pub(super) fn bad_meta(flags: u32, ndims: usize, nbytes: u64) -> Status {
    Status::invalid(if flags & !(TENSOR_DEAD | TENSOR_SERIALIZED | M_USER) != 0 {
        text!("tensor flags {flags:#x} are not known")
    } else if ndims > MAX_DIMS {
        text!("{ndims} dimensions, at most {MAX_DIMS} are allowed")
    } else {
        text!("a dead tensor with {nbytes} bytes, 0 are allowed")
    })
}

pub(super) fn get_dims(r: &mut Reader<'_>, ndims: usize, meta: &mut Meta) -> Result<(), Status> {
    let (dims, _) = r.bytes(8 * ndims)?.as_chunks::<8>();
    crate::room::grow(&mut meta.dims, ndims, "dimensions")?;
    meta.dims.extend(dims.iter().map(|d| i64::from_le_bytes(*d)));
    match meta.dims.iter().find(|d| **d < 0) {
        Some(d) => Err(Status::invalid(text!("a dimension of {d}, 0 and more are allowed"))),
        None => Ok(()),
    }
}

/// Memory: address, key, and with `F_REGIONS` the number of further regions with offset and key of
/// each.
pub(super) fn get_place(r: &mut Reader<'_>, flags: u8) -> Result<Place, Status> {
    let mut place = Place { addr: r.u64()?, rkeys: Keys::one(r.u32()?) };
    if flags & F_REGIONS == 0 {
        return Ok(place);
    }
    let n = usize::from(r.u16()?);
    if n == 0 || n >= MAX_REGIONS {
        let most = MAX_REGIONS - 1;
        return Err(Status::invalid(text!("{n} further regions, 1 to {most} are allowed")));
    }
    if !place.rkeys.fits(n) {
        return Err(crate::room::none(16 * n, "a place"));
    }
    for _ in 0..n {
        let (at, rkey) = (r.u64()?, r.u32()?);
        if !place.rkeys.push(at, rkey) {
            return Err(Status::invalid(text!("a region at offset {at} is out of order")));
        }
    }
    Ok(place)
}

pub(super) fn get_envelope(r: &mut Reader<'_>) -> Result<Envelope, Status> {
    Ok(Envelope { comm: r.u32()?, tag: r.u64()? })
}

pub(super) fn get_msg_offer<'a>(r: &mut Reader<'a>, flags: u8) -> Result<Message<'a>, Status> {
    let (envelope, response, nbytes) = (get_envelope(r)?, r.u32()?, r.u64()?);
    let source = if flags & F_SOURCE != 0 { Some(get_place(r, flags)?) } else { None };
    if nbytes > isize::MAX as u64 {
        let text = text!("an offered message of {nbytes} bytes, 0 to {} are allowed", isize::MAX);
        return Err(Status::invalid(text));
    }
    let limit = if flags & F_LIMIT != 0 { r.u32()? } else { 0 };
    if flags & F_LIMIT != 0 && limit < MIN_LIMIT {
        let text = text!("content in pieces of {limit} bytes, at least {MIN_LIMIT} are allowed");
        return Err(Status::invalid(text));
    }
    let extra = Extra::get(r, flags)?;
    extra.check(nbytes)?;
    let first = extra.first.map_or(0, <[u8]>::len) as u64;
    if extra.first.is_some() && (first > nbytes || source.is_some() || limit > 0) {
        let text = "a message that begins with more than all of it, or goes another way, too";
        return Err(Status::invalid(text));
    }
    Ok(Message::MsgOffer(MsgOffer { envelope, response, nbytes, source, limit, extra }))
}

pub(super) fn get_request<'a>(r: &mut Reader<'a>, flags: u8) -> Result<Request<'a>, Status> {
    let [i0, i1, i2, i3, step @ ..] = r.array::<12>()?;
    let (index, step) = (u32::from_le_bytes([i0, i1, i2, i3]), i64::from_le_bytes(step));
    let dst = if flags & F_DST != 0 { Some((get_place(r, flags)?, r.u64()?)) } else { None };
    let fits = get_fits(r, flags)?;
    let cached = if flags & F_META != 0 { Some(get_meta(r)?) } else { None };
    if cached.as_ref().is_some_and(|meta| !meta.user.is_empty()) {
        return Err(Status::invalid("TENSOR_REQUEST with bytes of the application as known"));
    }
    let key = r.rest();
    if key.is_empty() || key.len() > MAX_KEY_LEN {
        return Err(bad_key(key.len()));
    }
    let (any_meta, checksum) = (flags & F_ANY_META != 0, flags & F_CHECKSUM != 0);
    Ok(Request { index, step, dst, any_meta, checksum, fits, cached, key })
}

/// How long the tensor of a request may be.
fn get_fits(r: &mut Reader<'_>, flags: u8) -> Result<Fits, Status> {
    match flags & (F_ROOM | F_ANY_LEN) {
        0 => Ok(Fits::Known),
        F_ANY_LEN => Ok(Fits::Any),
        F_ROOM => match r.u64()? {
            len if len <= isize::MAX as u64 => Ok(Fits::UpTo(len)),
            len => {
                let text = "TENSOR_REQUEST with room for";
                Err(Status::invalid(text!(
                    "{text} {len} bytes, at most {} are allowed",
                    isize::MAX
                )))
            }
        },
        _ => Err(Status::invalid("TENSOR_REQUEST with room for any length, and for some")),
    }
}

#[cold]
pub(super) fn bad_key(len: usize) -> Status {
    let text = "TENSOR_REQUEST with a key of";
    Status::invalid(text!("{text} {len} bytes, 1 to {MAX_KEY_LEN} are allowed"))
}

pub(super) fn get_content<'a>(r: &mut Reader<'a>, flags: u8) -> Result<Content<'a>, Status> {
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
    Status::invalid(text!("{text} {len} bytes of content, its metadata says {}", meta.nbytes))
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
        GET_DONE if flags & (F_OK | F_TOO_LONG) == F_TOO_LONG => {
            Message::TooLong { response: r.u32()? }
        }
        GET_DONE => Message::GetDone { response: r.u32()?, ok: flags & F_OK != 0 },
        CANCEL => Message::Cancel { index: r.u32()? },
        CANCEL_ACK => Message::CancelAck { index: r.u32()? },
        PING => Message::Ping,
        PONG => Message::Pong,
        CREDIT => Message::Credit { depth: r.u32()? },
        FRAGMENT => Message::Fragment { last: flags & F_LAST != 0, bytes: r.rest() },
        GOODBYE => Message::Goodbye { code: r.i32()?, text: r.rest() },
        MSG => {
            let usual::WholeMsg { envelope, sync, extra, content } = usual::get_msg(&mut r, flags)?;
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
        MSG_CARRIER => Message::MsgCarrier { number: r.u64()? },
        CONNECTION_LOST => Message::Lost { names: names(r.rest())? },
        MSG_WITHDRAW => Message::MsgWithdraw { number: r.u32()?, sync: flags & F_SYNC != 0 },
        MSG_WITHDRAWN => Message::MsgWithdrawn { number: r.u32()?, sync: flags & F_SYNC != 0 },
        pairs::FIRST..=pairs::LAST => pairs::get(&mut r, kind, flags)?,
        buffers::FIRST..=buffers::LAST => buffers::get(&mut r, kind, flags)?,
        rails::FIRST..=rails::LAST => rails::get(&mut r, kind)?,
        other => return Err(Status::invalid(text!("message type {other} is not known"))),
    };
    flags::check(kind, flags, r.remaining())?;
    Ok((message, credits))
}

/// Names of connections: as many as a peer may have.
fn names(bytes: &[u8]) -> Result<&[u8], Status> {
    if bytes.is_empty()
        || !bytes.len().is_multiple_of(NAME)
        || bytes.len() > CHANNELS_PER_PEER * NAME
    {
        let text = text!("{} bytes of names of connections", bytes.len());
        return Err(Status::invalid(text));
    }
    Ok(bytes)
}

/// The bytes that follow what `encode` writes of this message.
pub(super) fn tail<'a>(message: &Message<'a>) -> &'a [u8] {
    match message {
        Message::Request(r) => r.key,
        Message::Error { text, .. } | Message::Goodbye { text, .. } => text,
        Message::Content(c) => c.content,
        Message::Fragment { bytes, .. } => bytes,
        Message::Msg { content, .. } | Message::MsgFrag { content, .. } => content,
        Message::Pair(PairMessage::Bye { text, .. }) => text,
        Message::Lost { names } => names,
        _ => &[],
    }
}

/// For fuzzers: decodes any bytes; what decodes must survive encoding and decoding.
pub fn fuzz_message(bytes: &[u8]) {
    let (request, content, msg) = (usual_request(bytes), usual_content(bytes), usual_msg(bytes));
    if let Some(head) = bytes.first_chunk() {
        // Who reads no more than the head says the same.
        let plain = msg.filter(|(m, _)| !m.active && m.user.is_empty());
        assert_eq!(plain_msg(head), plain.map(|(m, credits)| (m.envelope, credits)));
        let active = active_msg(head).filter(|(_, (at, len), _)| at + len <= bytes.len());
        let user = |m: UsualMsg<'_>| match m.user.len() {
            0 => (MSG_HEAD, 0),
            len => (MSG_HEAD + 2, len),
        };
        let of = msg.filter(|(m, _)| m.active).map(|(m, back)| (m.envelope, user(m), back));
        assert_eq!(active, of);
    }
    let Ok((message, credits)) = decode(bytes) else {
        let none = request.is_none() && content.is_none() && msg.is_none();
        let none = none && whole_request(bytes).is_none() && whole_content(bytes).is_none();
        return assert!(none && whole_msg(bytes).is_none() && matched(bytes).is_none());
    };
    // The short ways read the same.
    if let Some((r, returned)) = request {
        let UsualRequest { index, step, any_len, cached, key } = r;
        let meta = cached.and_then(|cached| cached.read());
        assert!(cached.is_none_or(|cached| meta.as_ref().is_some_and(|meta| cached.is(meta))));
        let (dst, any_meta, checksum) = (None, false, false);
        let fits = if any_len { Fits::Any } else { Fits::Known };
        let r = Request { index, step, dst, any_meta, checksum, fits, cached: meta, key };
        assert_eq!((Message::Request(r), returned), (message.clone(), credits));
    }
    if let Some((index, content, returned)) = content {
        let c = Content { index, checksum: None, meta: None, content };
        assert_eq!((Message::Content(c), returned), (message.clone(), credits));
    }
    if let Some((UsualMsg { envelope, active, user, content }, returned)) = msg {
        let extra = Extra { active, ..Extra::user(user) };
        let m = Message::Msg { envelope, sync: None, extra, content };
        assert_eq!((m, returned), (message.clone(), credits));
    }
    if let Some((WholeMsg { envelope, sync, extra, content }, returned)) = whole_msg(bytes) {
        let m = Message::Msg { envelope, sync, extra, content };
        assert_eq!((m, returned), (message.clone(), credits));
    }
    if let Some((number, returned)) = matched(bytes) {
        assert_eq!((Message::MsgMatched { number }, returned), (message.clone(), credits));
    }
    if let Some((r, returned)) = whole_request(bytes) {
        assert_eq!((Message::Request(r), returned), (message.clone(), credits));
    }
    if let Some((c, returned)) = whole_content(bytes) {
        assert_eq!((Message::Content(c), returned), (message.clone(), credits));
    }
    let mut out = Vec::new();
    encode(&message, &mut out);
    out.extend_from_slice(tail(&message));
    assert_eq!(decode(&out), Ok((message, 0)));
    // There is one way to say it.
    out[CREDITS_AT..HEADER_LEN].copy_from_slice(&credits.to_le_bytes());
    assert_eq!(out, bytes);
}
