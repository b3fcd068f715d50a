//! The two messages of a small transfer as they mostly are: written on the stack, and read where they lie.
//!
//! A request without exposed memory and checksum, content without checksum, and few dimensions in either. What is not so,
//! or is malformed, goes the way of all messages ([`decode`](super::decode)), which says what is wrong.

use super::flags::{OF_CONTENT, OF_MSG, of_request};
use super::{
    CREDITS_AT, Content, Envelope, Extra, F_ACTIVE, F_ANY_LEN, F_META, F_PIPELINE, F_ROOM, F_SAME,
    F_SYNC, F_USER, HEADER_LEN, MAX_KEY_LEN, MAX_USER, MSG, MSG_MATCHED, Meta, Request,
    TENSOR_CONTENT, TENSOR_REQUEST, TENSOR_SERIALIZED, fixed_meta, get_content, get_envelope,
    get_request,
};
use crate::fabric::{HEAD_ROOM, VIEW_HEAD};
use crate::status::Status;
use crate::wire::Reader;

const F_META_ANY_LEN: u8 = F_META | F_ANY_LEN;
/// Dimensions for which a [`Short`] head has room.
const SHORT_DIMS: usize = 8;

/// The head of a TENSOR_REQUEST or TENSOR_CONTENT as they mostly are: without checksum, exposed memory and many
/// dimensions, or bytes of the application. It is written where it lies, on the stack.
pub struct Short {
    bytes: [u8; 16 + 14 + 8 * SHORT_DIMS],
    len: usize,
}

impl Default for Short {
    /// An empty one.
    #[inline(always)]
    fn default() -> Short {
        Short { bytes: [0; _], len: 0 }
    }
}

impl Short {
    /// An empty one becomes a TENSOR_REQUEST; false: that is none of the short ones. `any_len`: there will be memory for a
    /// longer tensor than the metadata says, too.
    #[inline(always)]
    pub fn request(&mut self, index: u32, step: i64, any_len: bool, cached: Option<&Meta>) -> bool {
        self.bytes[0] = TENSOR_REQUEST;
        self.bytes[4..8].copy_from_slice(&index.to_le_bytes());
        self.bytes[8..16].copy_from_slice(&step.to_le_bytes());
        match cached {
            None => {
                self.len = 16;
                true
            }
            Some(meta) => {
                self.bytes[1] = if any_len { F_META | F_ANY_LEN } else { F_META };
                self.put_meta::<16>(meta)
            }
        }
    }

    /// An empty one becomes a TENSOR_REQUEST of a tensor of which nothing is known, with room for so many bytes.
    #[inline]
    pub fn request_with_room(&mut self, index: u32, step: i64, room: u64) {
        (self.bytes[0], self.bytes[1]) = (TENSOR_REQUEST, F_ROOM);
        self.bytes[4..8].copy_from_slice(&index.to_le_bytes());
        self.bytes[8..16].copy_from_slice(&step.to_le_bytes());
        self.bytes[16..24].copy_from_slice(&room.to_le_bytes());
        self.len = 24;
    }

    /// A tagged message whose sender does not wait for the match.
    pub fn msg(envelope: Envelope) -> Short {
        let mut head = Short { bytes: [0; _], len: MSG_HEAD };
        let m = UsualMsg { envelope, active: false, user: &[], content: &[] };
        head.bytes[..MSG_HEAD].copy_from_slice(&m.head(0));
        head
    }

    /// MSG_MATCHED.
    pub fn matched(number: u32) -> Short {
        let mut head = Short { bytes: [0; _], len: 8 };
        head.bytes[0] = MSG_MATCHED;
        head.bytes[4..8].copy_from_slice(&number.to_le_bytes());
        head
    }

    /// An empty one becomes a TENSOR_CONTENT; without metadata: the request said it.
    #[inline(always)]
    pub fn content(&mut self, index: u32, meta: Option<&Meta>) -> bool {
        self.bytes[0] = TENSOR_CONTENT;
        self.bytes[4..8].copy_from_slice(&index.to_le_bytes());
        match meta {
            None => {
                (self.bytes[1], self.len) = (F_SAME, 8);
                true
            }
            Some(meta) => self.put_meta::<8>(meta),
        }
    }

    /// Puts metadata behind the first `AT` bytes.
    #[inline(always)]
    fn put_meta<const AT: usize>(&mut self, meta: &Meta) -> bool {
        let dims = &meta.dims[..];
        if dims.len() > SHORT_DIMS || !meta.user.is_empty() {
            return false;
        }
        self.bytes[AT..AT + 14].copy_from_slice(&fixed_meta(meta));
        if !dims.is_empty() {
            let (places, _) = self.bytes[AT + 14..].as_chunks_mut::<8>();
            places.iter_mut().zip(dims).for_each(|(place, d)| *place = d.to_le_bytes());
        }
        self.len = AT + 14 + 8 * dims.len();
        true
    }

    /// Its bytes.
    #[inline(always)]
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }

    /// How many they are.
    #[inline(always)]
    pub fn count(&self) -> usize {
        self.len
    }

    /// They and how many they are, if there are few.
    #[inline(always)]
    pub fn in_room(&self) -> Option<(&[u8; HEAD_ROOM], usize)> {
        let room = self.bytes.first_chunk()?;
        (self.len <= HEAD_ROOM).then_some((room, self.len))
    }

    /// Writes the credits that it returns.
    #[inline(always)]
    pub fn return_credits(&mut self, credits: u16) {
        self.bytes[CREDITS_AT..HEADER_LEN].copy_from_slice(&credits.to_le_bytes());
    }
}

/// A TENSOR_REQUEST as it mostly is: without exposed memory and checksum, and with few dimensions, if any.
#[derive(Clone, Copy, Debug)]
pub struct UsualRequest<'a> {
    /// The receiver's request index.
    pub index: u32,
    /// Step.
    pub step: i64,
    /// There will be memory for a tensor longer than that of the metadata, too.
    pub any_len: bool,
    /// The metadata in the receiver's cache.
    pub cached: Option<UsualMeta<'a>>,
    /// Key.
    pub key: &'a [u8],
}

/// Metadata where it lies in a message, checked.
#[derive(Clone, Copy, Debug)]
pub struct UsualMeta<'a> {
    dtype: u32,
    flags: u32,
    nbytes: u64,
    dims: &'a [[u8; 8]],
}

impl UsualMeta<'_> {
    /// A copy, if there is memory for the dimensions.
    #[inline(always)]
    pub fn read(&self) -> Option<Meta> {
        let UsualMeta { dtype, flags, nbytes, dims } = *self;
        let mut meta = Meta { dtype, flags, nbytes, ..Meta::default() };
        if dims.is_empty() || self.read_dims(&mut meta) { Some(meta) } else { None }
    }

    #[inline(never)]
    fn read_dims(&self, meta: &mut Meta) -> bool {
        let room = meta.dims.try_reserve(self.dims.len()).is_ok();
        if room {
            meta.dims.extend(self.dims.iter().map(|d| i64::from_le_bytes(*d)));
        }
        room
    }

    /// Content bytes.
    #[inline(always)]
    pub fn nbytes(&self) -> u64 {
        self.nbytes
    }

    /// Whether it is the same.
    #[inline]
    pub fn is(&self, meta: &Meta) -> bool {
        let same = (self.dtype, self.flags, self.nbytes) == (meta.dtype, meta.flags, meta.nbytes);
        let mut both = self.dims.iter().zip(&meta.dims);
        same && meta.user.is_empty()
            && self.dims.len() == meta.dims.len()
            && both.all(|(d, m)| i64::from_le_bytes(*d) == *m)
    }

    /// How many dimensions it has.
    #[inline]
    pub fn ndims(&self) -> usize {
        self.dims.len()
    }
}

/// Reads a [`UsualRequest`], with the credits that it returns. `None`: it is something else, or malformed, which
/// [`decode`](super::decode) tells.
#[inline(always)]
pub fn usual_request(bytes: &[u8]) -> Option<(UsualRequest<'_>, u16)> {
    let (&[kind, flags, c0, c1, i0, i1, i2, i3, ref step @ ..], rest) =
        bytes.split_first_chunk::<16>()?;
    let (cached, key) = match flags {
        0 => (None, rest),
        F_META | F_META_ANY_LEN => usual_meta(rest).map(|(meta, rest)| (Some(meta), rest))?,
        _ => return None,
    };
    if kind != TENSOR_REQUEST || key.is_empty() || key.len() > MAX_KEY_LEN {
        return None;
    }
    let (index, step) = (u32::from_le_bytes([i0, i1, i2, i3]), i64::from_le_bytes(*step));
    let any_len = flags & F_ANY_LEN != 0;
    Some((UsualRequest { index, step, any_len, cached, key }, u16::from_le_bytes([c0, c1])))
}

/// Reads metadata of few dimensions, and what is behind it.
#[inline(always)]
fn usual_meta(bytes: &[u8]) -> Option<(UsualMeta<'_>, &[u8])> {
    let (&[d0, d1, d2, d3, flags, ndims, ref n @ ..], rest) = bytes.split_first_chunk::<14>()?;
    let (dtype, nbytes) = (u32::from_le_bytes([d0, d1, d2, d3]), u64::from_le_bytes(*n));
    // Not dead, about which there is more to be checked.
    if u32::from(flags) & !TENSOR_SERIALIZED != 0 || usize::from(ndims) > SHORT_DIMS {
        return None;
    }
    let (dims, rest) = rest.split_at_checked(8 * usize::from(ndims))?;
    let (dims, _) = dims.as_chunks::<8>();
    // Negative ones.
    if dims.iter().any(|d| d[7] & 0x80 != 0) {
        return None;
    }
    Some((UsualMeta { dtype, flags: u32::from(flags), nbytes, dims }, rest))
}

/// Bytes before the content of a tagged message whose sender does not wait for the match.
pub const MSG_HEAD: usize = 16;

/// A tagged message whose sender does not wait for the match, where it lies.
#[derive(Clone, Copy, Debug)]
pub struct UsualMsg<'a> {
    /// Communicator and tag.
    pub envelope: Envelope,
    /// It is for the handler that has its communicator's number.
    pub active: bool,
    /// The application's header, if there is one.
    pub user: &'a [u8],
    /// The content.
    pub content: &'a [u8],
}

impl UsualMsg<'_> {
    /// Bytes that it counts for.
    #[inline]
    pub fn cost(&self) -> u64 {
        (self.user.len() + self.content.len()) as u64
    }

    /// What is before the content, or before the header of the application.
    #[inline(always)]
    pub fn head(&self, credits: u16) -> [u8; MSG_HEAD] {
        let Envelope { comm, tag } = self.envelope;
        let active = if self.active { F_ACTIVE } else { 0 };
        let flags = if self.user.is_empty() { active } else { active | F_USER };
        let first = u64::from(MSG)
            | u64::from(flags) << 8
            | u64::from(credits) << 16
            | u64::from(comm) << 32;
        (u128::from(first) | u128::from(tag) << 64).to_le_bytes()
    }

    /// The same with the application's header, and how long it is, if that is short.
    #[inline]
    pub fn head_short(&self, credits: u16) -> Option<([u8; HEAD_ROOM], usize)> {
        const AT: usize = MSG_HEAD + 2;
        let mut head = [0; HEAD_ROOM];
        let len = self.user.len();
        if len > HEAD_ROOM - AT {
            return None;
        }
        head[..AT].copy_from_slice(&self.head_user(credits));
        match <[u8; 8]>::try_from(self.user) {
            Ok(word) => head[AT..AT + 8].copy_from_slice(&word),
            Err(_) => head[AT..AT + len].copy_from_slice(self.user),
        }
        Some((head, AT + len))
    }

    /// The same with the length of the application's header, which follows.
    #[inline]
    pub fn head_user(&self, credits: u16) -> [u8; MSG_HEAD + 2] {
        let mut head = [0; MSG_HEAD + 2];
        head[..MSG_HEAD].copy_from_slice(&self.head(credits));
        head[MSG_HEAD..].copy_from_slice(&(self.user.len() as u16).to_le_bytes());
        head
    }
}

/// A head that is put together on the stack.
struct Head {
    bytes: [u8; HEAD_ROOM],
    len: usize,
}

impl Head {
    /// Puts bytes behind what there is; `None` without room for them.
    #[inline]
    fn put(&mut self, part: &[u8]) -> Option<()> {
        let end = self.len + part.len();
        self.bytes.get_mut(self.len..end)?.copy_from_slice(part);
        self.len = end;
        Some(())
    }
}

/// The head of a tagged message with what travels beside it, and how long it is, if that is short; `sync`: its sender's number.
pub fn msg_head(
    envelope: Envelope,
    sync: Option<u32>,
    extra: &Extra<'_>,
    credits: u16,
) -> Option<([u8; HEAD_ROOM], usize)> {
    let mut head = Head { bytes: [0; _], len: 0 };
    let usual = UsualMsg { envelope, active: false, user: &[], content: &[] };
    head.put(&usual.head(credits))?;
    head.bytes[1] = if sync.is_some() { F_SYNC } else { 0 } | extra.flags();
    if let Some(number) = sync {
        head.put(&number.to_le_bytes())?;
    }
    if !extra.user.is_empty() {
        head.put(&(extra.user.len() as u16).to_le_bytes())?;
        head.put(extra.user)?;
    }
    if !extra.parts.is_empty() {
        head.put(&[extra.parts.len() as u8])?;
        head.put(extra.parts.as_flattened())?;
    }
    extra.first.is_none().then_some((head.bytes, head.len))
}

/// A tagged message with what may travel beside it.
#[derive(Debug)]
pub struct WholeMsg<'a> {
    /// Communicator and tag.
    pub envelope: Envelope,
    /// Its sender's number of it, if that is told of the match.
    pub sync: Option<u32>,
    /// What travels beside it.
    pub extra: Extra<'a>,
    /// The content.
    pub content: &'a [u8],
}

/// Reads a tagged message where it lies, with the credits that it returns. `None`: it is something else, or malformed, which
/// [`decode`](super::decode) tells.
pub fn whole_msg(bytes: &[u8]) -> Option<(WholeMsg<'_>, u16)> {
    let (&[MSG, flags, c0, c1], rest) = bytes.split_first_chunk::<HEADER_LEN>()? else {
        return None;
    };
    if flags & !OF_MSG != 0 {
        return None;
    }
    let msg = get_msg(&mut Reader::new(rest), flags).ok()?;
    Some((msg, u16::from_le_bytes([c0, c1])))
}

/// Reads a TENSOR_REQUEST, with the credits that it returns. `None`: as of [`whole_msg`].
pub fn whole_request(bytes: &[u8]) -> Option<(Request<'_>, u16)> {
    let (&[TENSOR_REQUEST, flags, c0, c1], rest) = bytes.split_first_chunk::<HEADER_LEN>()? else {
        return None;
    };
    if flags & !of_request(flags) != 0 {
        return None;
    }
    let request = get_request(&mut Reader::new(rest), flags).ok()?;
    Some((request, u16::from_le_bytes([c0, c1])))
}

/// Reads a TENSOR_CONTENT, with the credits that it returns. `None`: as of [`whole_msg`].
pub fn whole_content(bytes: &[u8]) -> Option<(Content<'_>, u16)> {
    let (&[TENSOR_CONTENT, flags, c0, c1], rest) = bytes.split_first_chunk::<HEADER_LEN>()? else {
        return None;
    };
    if flags & !OF_CONTENT != 0 {
        return None;
    }
    let content = get_content(&mut Reader::new(rest), flags).ok()?;
    Some((content, u16::from_le_bytes([c0, c1])))
}

/// Reads what is behind the header of a tagged message.
#[inline]
pub(super) fn get_msg<'a>(r: &mut Reader<'a>, flags: u8) -> Result<WholeMsg<'a>, Status> {
    let envelope = get_envelope(r)?;
    let sync = if flags & F_SYNC != 0 { Some(r.u32()?) } else { None };
    let extra = Extra::get(r, flags & !F_PIPELINE)?;
    let content = r.rest();
    extra.check(content.len() as u64)?;
    Ok(WholeMsg { envelope, sync, extra, content })
}

/// Reads the number of a MSG_MATCHED, with the credits that it returns.
pub fn matched(bytes: &[u8]) -> Option<(u32, u16)> {
    match *bytes {
        [MSG_MATCHED, 0, c0, c1, n0, n1, n2, n3] => {
            Some((u32::from_le_bytes([n0, n1, n2, n3]), u16::from_le_bytes([c0, c1])))
        }
        _ => None,
    }
}

/// Reads a [`UsualMsg`], with the credits that it returns.
#[inline(always)]
pub fn usual_msg(bytes: &[u8]) -> Option<(UsualMsg<'_>, u16)> {
    let (head, rest) = bytes.split_first_chunk::<16>()?;
    let [MSG, flags, c0, c1, m0, m1, m2, m3, tag @ ..] = *head else { return None };
    let (user, content) = match flags & !F_ACTIVE {
        0 => (&[][..], rest),
        F_USER => usual_user(rest)?,
        _ => return None,
    };
    let comm = u32::from_le_bytes([m0, m1, m2, m3]);
    let envelope = Envelope { comm, tag: u64::from_le_bytes(tag) };
    let active = flags & F_ACTIVE != 0;
    Some((UsualMsg { envelope, active, user, content }, u16::from_le_bytes([c0, c1])))
}

/// The same of one with nothing beside its content, of which no more than the head is at hand: its envelope, with the credits.
#[inline]
pub fn plain_msg(head: &[u8; VIEW_HEAD]) -> Option<(Envelope, u16)> {
    let head = head.first_chunk::<MSG_HEAD>()?;
    let [MSG, 0, c0, c1, m0, m1, m2, m3, tag @ ..] = *head else { return None };
    let comm = u32::from_le_bytes([m0, m1, m2, m3]);
    let envelope = Envelope { comm, tag: u64::from_le_bytes(tag) };
    Some((envelope, u16::from_le_bytes([c0, c1])))
}

/// The same of one for a handler: its envelope, where the application's header begins and how long that is, and the credits.
#[inline]
pub fn active_msg(head: &[u8; VIEW_HEAD]) -> Option<(Envelope, (usize, usize), u16)> {
    let head = head.first_chunk::<{ MSG_HEAD + 2 }>()?;
    let [MSG, flags, c0, c1, m0, m1, m2, m3, tag @ .., u0, u1] = *head else { return None };
    let user = match flags {
        F_ACTIVE => (MSG_HEAD, 0),
        _ if flags == F_ACTIVE | F_USER => {
            let len = usize::from(u16::from_le_bytes([u0, u1]));
            (MSG_HEAD + 2, Some(len).filter(|len| (1..=MAX_USER).contains(len))?)
        }
        _ => return None,
    };
    let comm = u32::from_le_bytes([m0, m1, m2, m3]);
    let envelope = Envelope { comm, tag: u64::from_le_bytes(tag) };
    Some((envelope, user, u16::from_le_bytes([c0, c1])))
}

/// A header of the application with its length, and what is behind it.
#[inline]
fn usual_user(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<2>()?;
    let len = usize::from(u16::from_le_bytes(*len));
    if len == 0 || len > MAX_USER { None } else { rest.split_at_checked(len) }
}

/// Bytes of a TENSOR_CONTENT before the content, as it mostly is.
pub const CONTENT_HEAD: usize = 8;

/// Reads a TENSOR_CONTENT as it mostly is: without checksum and metadata. The request's index and the content, with the
/// credits that it returns.
#[inline(always)]
pub fn usual_content(bytes: &[u8]) -> Option<(u32, &[u8], u16)> {
    match bytes.split_first_chunk::<CONTENT_HEAD>()? {
        (&[TENSOR_CONTENT, F_SAME, c0, c1, i0, i1, i2, i3], content) => {
            Some((u32::from_le_bytes([i0, i1, i2, i3]), content, u16::from_le_bytes([c0, c1])))
        }
        _ => None,
    }
}
