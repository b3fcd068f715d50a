//! Messages between the two ends of a pair. `docs/protocol.md` describes each field.

use super::{F_REGIONS, Message, get_place, put_header, put_place, regions_flag};
use crate::fabric::keys::Place;
use crate::status::Status;
use crate::wire::Reader;

pub(super) const FIRST: u8 = PAIR_HELLO;
pub(super) const LAST: u8 = SLOT_CHECKED;

const PAIR_HELLO: u8 = 32;
const PAIR_BYE: u8 = 33;
const SLOT_OPEN: u8 = 34;
const SLOT_CLOSE: u8 = 35;
const SLOT_CLOSED: u8 = 36;
const SLOT_DONE: u8 = 37;
const SLOT_CHECKED: u8 = 38;

/// Immediates from here up to [`IMM_SLOT_LAST`] are those of writes to a slot; the bits below are the grant's number.
pub const IMM_SLOT: u32 = 0xFFE0_0000;
/// The last of them.
pub const IMM_SLOT_LAST: u32 = 0xFFEF_FFFF;

/// A message of a pair. Ends are named by their tokens, grants by the number that whoever gave one gave it.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "fields are those of docs/protocol.md")]
pub enum PairMessage<'a> {
    /// This end is connected to that one.
    Hello { to: u64, from: u64 },
    /// This end is no more, or there was none of that token: a code and text.
    Bye { to: u64, from: u64, code: i32, text: &'a [u8] },
    /// Memory for a slot: it may be written until the grant is closed.
    Open { to: u64, slot: u64, grant: u32, place: Place, len: u64 },
    /// It may not any more.
    Close { grant: u32 },
    /// It will not any more.
    Closed { grant: u32 },
    /// Content was written (where there are checksums; otherwise the immediate says so).
    Done { grant: u32, number: u32, offset: u64, len: u64, checksum: u64 },
    /// The checksum was compared, and is the same or not: content may be written there again.
    Checked { number: u32, same: bool },
}

impl PairMessage<'_> {
    /// Further regions that it names.
    pub(super) fn regions(&self) -> usize {
        match self {
            PairMessage::Open { place, .. } => place.rkeys.rest().len(),
            _ => 0,
        }
    }
}

pub(super) fn put(out: &mut Vec<u8>, m: &PairMessage<'_>) {
    let words = |out: &mut Vec<u8>, words: &[u64]| {
        words.iter().for_each(|w| out.extend_from_slice(&w.to_le_bytes()));
    };
    match m {
        PairMessage::Hello { to, from } => {
            put_header(out, PAIR_HELLO, 0);
            words(out, &[*to, *from]);
        }
        PairMessage::Bye { to, from, code, .. } => {
            put_header(out, PAIR_BYE, 0);
            words(out, &[*to, *from]);
            out.extend_from_slice(&code.to_le_bytes());
        }
        PairMessage::Open { to, slot, grant, place, len } => {
            put_header(out, SLOT_OPEN, regions_flag(Some(place)));
            words(out, &[*to, *slot]);
            out.extend_from_slice(&grant.to_le_bytes());
            put_place(out, place);
            words(out, &[*len]);
        }
        PairMessage::Close { grant } => {
            put_header(out, SLOT_CLOSE, 0);
            out.extend_from_slice(&grant.to_le_bytes());
        }
        PairMessage::Closed { grant } => {
            put_header(out, SLOT_CLOSED, 0);
            out.extend_from_slice(&grant.to_le_bytes());
        }
        PairMessage::Checked { number, same } => {
            put_header(out, SLOT_CHECKED, u8::from(*same));
            out.extend_from_slice(&number.to_le_bytes());
        }
        PairMessage::Done { grant, number, offset, len, checksum } => {
            put_header(out, SLOT_DONE, 0);
            out.extend_from_slice(&grant.to_le_bytes());
            out.extend_from_slice(&number.to_le_bytes());
            words(out, &[*offset, *len, *checksum]);
        }
    }
}

/// Flags that a message of this type may have.
pub(super) fn flags(kind: u8) -> u8 {
    match kind {
        SLOT_OPEN => F_REGIONS,
        SLOT_CHECKED => 1,
        _ => 0,
    }
}

pub(super) fn get<'a>(r: &mut Reader<'a>, kind: u8, flags: u8) -> Result<Message<'a>, Status> {
    Ok(Message::Pair(match kind {
        PAIR_HELLO => PairMessage::Hello { to: r.u64()?, from: r.u64()? },
        PAIR_BYE => {
            PairMessage::Bye { to: r.u64()?, from: r.u64()?, code: r.i32()?, text: r.rest() }
        }
        SLOT_OPEN => get_open(r, flags & F_REGIONS)?,
        SLOT_CLOSE => PairMessage::Close { grant: r.u32()? },
        SLOT_CLOSED => PairMessage::Closed { grant: r.u32()? },
        SLOT_CHECKED => PairMessage::Checked { number: r.u32()?, same: flags & 1 != 0 },
        _ => PairMessage::Done {
            grant: r.u32()?,
            number: r.u32()?,
            offset: r.u64()?,
            len: r.u64()?,
            checksum: r.u64()?,
        },
    }))
}

fn get_open<'a>(r: &mut Reader<'_>, flags: u8) -> Result<PairMessage<'a>, Status> {
    let (to, slot, grant) = (r.u64()?, r.u64()?, r.u32()?);
    let (place, len) = (get_place(r, flags)?, r.u64()?);
    if grant > IMM_SLOT_LAST - IMM_SLOT {
        let most = IMM_SLOT_LAST - IMM_SLOT;
        return Err(Status::invalid(text!("SLOT_OPEN {grant}, 0 to {most} are allowed")));
    }
    if len > isize::MAX as u64 || place.addr.checked_add(len).is_none() {
        let text = text!("SLOT_OPEN of {len} bytes at {:#x}: not in an address space", place.addr);
        return Err(Status::invalid(text));
    }
    Ok(PairMessage::Open { to, slot, grant, place, len })
}
