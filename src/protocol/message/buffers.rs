//! Messages about buffers that last (TensorFlow's first design). `docs/protocol.md` describes each field.

use super::{
    F_REGIONS, Message, get_meta, get_place, meta_room, put_header, put_meta, put_place,
    regions_flag,
};
use crate::api::Meta;
use crate::fabric::keys::Place;
use crate::status::Status;
use crate::wire::Reader;

pub(super) const FIRST: u8 = BUFFER_REQUEST;
pub(super) const LAST: u8 = BUFFER_FREE;

const BUFFER_REQUEST: u8 = 40;
const BUFFER_RESPONSE: u8 = 41;
const BUFFER_IDLE: u8 = 42;
const TENSOR_WRITE: u8 = 43;
const BUFFER_RECALL: u8 = 44;
const BUFFER_FREE: u8 = 45;

const F_GIVEN: u8 = 1; // response: here is one
const F_SAME: u8 = 1; // write: the metadata is what the request said to be cached

/// Immediates from here up to [`IMM_BUFFER_LAST`] say that a buffer is full; the bits below are its slot at the receiver.
pub const IMM_BUFFER: u32 = 0xFFF0_0000;
/// The last of them.
pub const IMM_BUFFER_LAST: u32 = 0xFFF1_FFFF;

/// A message about a buffer. The sender of tensors numbers it (`number`), and so does the receiver (`buffer`).
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "fields are those of docs/protocol.md")]
pub enum BufferMessage {
    /// The sender wants a buffer of this length.
    Request { number: u32, len: u64 },
    /// Here it is: the receiver's number, the memory, its length; or there is none to be had.
    Response { number: u32, given: Option<(u32, Place, u64)> },
    /// Its content has been taken out: it may be written again.
    Idle { number: u32 },
    /// The content of this request is being written to it; no metadata: that which the request said to be cached.
    Write { request: u32, buffer: u32, meta: Option<Meta> },
    /// The receiver wants the memory back.
    Recall { number: u32 },
    /// The sender writes to it no more.
    Free { buffer: u32 },
}

impl BufferMessage {
    /// Bytes of it that have no fixed length.
    pub(super) fn more(&self) -> usize {
        match self {
            BufferMessage::Response { given: Some((_, place, _)), .. } => {
                12 * place.rkeys.rest().len()
            }
            BufferMessage::Write { meta: Some(meta), .. } => meta_room(meta),
            _ => 0,
        }
    }
}

pub(super) fn put(out: &mut Vec<u8>, m: &BufferMessage) {
    let head = |out: &mut Vec<u8>, kind, flags, number: u32| {
        put_header(out, kind, flags);
        out.extend_from_slice(&number.to_le_bytes());
    };
    match m {
        BufferMessage::Request { number, len } => {
            head(out, BUFFER_REQUEST, 0, *number);
            out.extend_from_slice(&len.to_le_bytes());
        }
        BufferMessage::Response { number, given: None } => head(out, BUFFER_RESPONSE, 0, *number),
        BufferMessage::Response { number, given: Some((buffer, place, len)) } => {
            head(out, BUFFER_RESPONSE, F_GIVEN | regions_flag(Some(place)), *number);
            out.extend_from_slice(&buffer.to_le_bytes());
            put_place(out, place);
            out.extend_from_slice(&len.to_le_bytes());
        }
        BufferMessage::Idle { number } => head(out, BUFFER_IDLE, 0, *number),
        BufferMessage::Write { request, buffer, meta } => {
            head(out, TENSOR_WRITE, if meta.is_none() { F_SAME } else { 0 }, *request);
            out.extend_from_slice(&buffer.to_le_bytes());
            if let Some(meta) = meta {
                put_meta(out, meta);
            }
        }
        BufferMessage::Recall { number } => head(out, BUFFER_RECALL, 0, *number),
        BufferMessage::Free { buffer } => head(out, BUFFER_FREE, 0, *buffer),
    }
}

/// Flags that a message of this type may have.
pub(super) fn flags(kind: u8, flags: u8) -> u8 {
    match kind {
        BUFFER_RESPONSE if flags & F_GIVEN != 0 => F_GIVEN | F_REGIONS,
        BUFFER_RESPONSE => F_GIVEN,
        TENSOR_WRITE => F_SAME,
        _ => 0,
    }
}

pub(super) fn get<'a>(r: &mut Reader<'a>, kind: u8, flags: u8) -> Result<Message<'a>, Status> {
    let number = r.u32()?;
    Ok(Message::Buffer(match kind {
        BUFFER_REQUEST => {
            BufferMessage::Request { number, len: length(r.u64()?, "BUFFER_REQUEST")? }
        }
        BUFFER_RESPONSE if flags & F_GIVEN != 0 => {
            let (buffer, place) = (r.u32()?, get_place(r, flags & F_REGIONS)?);
            let len = length(r.u64()?, "BUFFER_RESPONSE")?;
            if place.addr.checked_add(len).is_none() {
                let text =
                    text!("a buffer of {len} bytes at {:#x}: not in an address space", place.addr);
                return Err(Status::invalid(text));
            }
            BufferMessage::Response { number, given: Some((buffer, place, len)) }
        }
        BUFFER_RESPONSE => BufferMessage::Response { number, given: None },
        BUFFER_IDLE => BufferMessage::Idle { number },
        TENSOR_WRITE => {
            let buffer = r.u32()?;
            let meta = if flags & F_SAME == 0 { Some(get_meta(r)?) } else { None };
            BufferMessage::Write { request: number, buffer, meta }
        }
        BUFFER_RECALL => BufferMessage::Recall { number },
        _ => BufferMessage::Free { buffer: number },
    }))
}

fn length(len: u64, what: &str) -> Result<u64, Status> {
    if len == 0 || len > isize::MAX as u64 {
        let text = text!("{what} of {len} bytes, 1 to {} are allowed", isize::MAX);
        return Err(Status::invalid(text));
    }
    Ok(len)
}
