//! Control messages: type, flags, returned credits (2), then the fields of `docs/protocol.md`.

/// TENSOR_REQUEST
pub const REQUEST: u8 = 1;
/// META_DATA_RESPONSE
pub const META: u8 = 2;
/// TENSOR_RE_REQUEST
pub const RE_REQUEST: u8 = 3;
/// ERROR_STATUS
pub const ERROR: u8 = 4;
/// TENSOR_CONTENT
pub const CONTENT: u8 = 5;
/// CONTENT_DONE
pub const CONTENT_DONE: u8 = 6;
/// GET_DONE
pub const GET_DONE: u8 = 7;
/// CANCEL
pub const CANCEL: u8 = 8;
/// CANCEL_ACK
pub const CANCEL_ACK: u8 = 9;
/// PING
pub const PING: u8 = 10;
/// PONG
pub const PONG: u8 = 11;
/// CREDIT
pub const CREDIT: u8 = 12;
/// FRAGMENT
pub const FRAGMENT: u8 = 13;
/// GOODBYE
pub const GOODBYE: u8 = 14;

/// A message of any type, with `returned` credits.
pub fn any(kind: u8, flags: u8, returned: u16, fields: &[&[u8]]) -> Vec<u8> {
    let mut m = vec![kind, flags];
    m.extend(returned.to_le_bytes());
    fields.iter().for_each(|f| m.extend_from_slice(f));
    m
}

/// CREDIT, the first message of each side.
pub fn credit(depth: u32) -> Vec<u8> {
    any(CREDIT, 0, 0, &[&depth.to_le_bytes()])
}

/// PING.
pub fn ping() -> Vec<u8> {
    any(PING, 0, 0, &[])
}

/// PONG.
pub fn pong() -> Vec<u8> {
    any(PONG, 0, 0, &[])
}

/// TENSOR_REQUEST without a destination.
pub fn request(index: u32, step: i64, key: &[u8]) -> Vec<u8> {
    any(REQUEST, 0, 0, &[&index.to_le_bytes(), &step.to_le_bytes(), key])
}

/// TENSOR_REQUEST with a destination in one region that takes any metadata.
pub fn request_into(
    index: u32,
    step: i64,
    (addr, rkey, len): (u64, u32, u64),
    key: &[u8],
) -> Vec<u8> {
    let (index, step) = (index.to_le_bytes(), step.to_le_bytes());
    let dst = [&addr.to_le_bytes()[..], &rkey.to_le_bytes(), &len.to_le_bytes()].concat();
    any(REQUEST, 1 | 4, 0, &[&index, &step, &dst, key])
}

/// Metadata as it is inside of messages.
pub fn meta(dtype: u32, flags: u8, dims: &[i64], nbytes: u64) -> Vec<u8> {
    let mut m = dtype.to_le_bytes().to_vec();
    m.extend([flags, dims.len() as u8]);
    m.extend(nbytes.to_le_bytes());
    dims.iter().for_each(|d| m.extend(d.to_le_bytes()));
    m
}

/// TENSOR_CONTENT without a checksum.
pub fn content(index: u32, meta: &[u8], content: &[u8]) -> Vec<u8> {
    any(CONTENT, 0, 0, &[&index.to_le_bytes(), meta, content])
}

/// The same with the content's checksum.
pub fn content_checked(index: u32, meta: &[u8], content: &[u8]) -> Vec<u8> {
    let sum = xxhash_rust::xxh3::xxh3_64(content).to_le_bytes();
    any(CONTENT, 8, 0, &[&index.to_le_bytes(), &sum, meta, content])
}

/// ERROR_STATUS.
pub fn error(index: u32, code: i32, text: &[u8]) -> Vec<u8> {
    any(ERROR, 0, 0, &[&index.to_le_bytes(), &code.to_le_bytes(), text])
}

/// CANCEL.
pub fn cancel(index: u32) -> Vec<u8> {
    any(CANCEL, 0, 0, &[&index.to_le_bytes()])
}

/// The index that stands first in most messages.
pub fn index_of(message: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(message.get(4..8)?.try_into().ok()?))
}
