//! Which flags a message of each type may have.

use super::*;

/// Of a tagged message.
pub(super) const OF_MSG: u8 = F_SYNC | F_USER | F_PARTS | F_ACTIVE;
/// Of a TENSOR_CONTENT.
pub(super) const OF_CONTENT: u8 = F_SAME | F_CHECKSUM;

/// Of a TENSOR_REQUEST. Several regions are those of a destination.
#[inline]
pub(super) fn of_request(flags: u8) -> u8 {
    let more = if flags & F_DST != 0 { F_REGIONS } else { 0 };
    F_DST | F_META | F_ANY_META | F_CHECKSUM | F_ROOM | F_ANY_LEN | more
}

/// Refuses a message that is longer than what was read of it, or has a flag that its type does not have: its sender means something that
/// this side does not know.
pub(super) fn check(kind: u8, flags: u8, rest: usize) -> Result<(), Status> {
    let of_source = if flags & F_SOURCE != 0 { F_SOURCE | F_REGIONS } else { F_SOURCE };
    let known = match kind {
        TENSOR_REQUEST => of_request(flags),
        META_DATA_RESPONSE => of_source | F_FOLLOWS | F_CHECKSUM,
        TENSOR_RE_REQUEST => F_REGIONS,
        TENSOR_CONTENT => OF_CONTENT,
        GET_DONE if flags & F_OK != 0 => F_OK,
        GET_DONE => F_TOO_LONG,
        FRAGMENT => F_LAST,
        MSG => OF_MSG,
        MSG_OFFER => of_source | F_PIPELINE | F_LIMIT | F_USER | F_PARTS | F_ACTIVE,
        MSG_GRANT => F_REGIONS | F_PIPELINE,
        MSG_WITHDRAW | MSG_WITHDRAWN => F_SYNC,
        pairs::FIRST..=pairs::LAST => pairs::flags(kind),
        buffers::FIRST..=buffers::LAST => buffers::flags(kind, flags),
        _ => 0,
    };
    if flags & !known != 0 {
        let text = text!("message type {kind} with flags {flags:#x}, {known:#x} are known");
        return Err(Status::invalid(text));
    }
    if rest > 0 {
        let text = text!("message type {kind} with {rest} bytes more than it has");
        return Err(Status::invalid(text));
    }
    Ok(())
}
