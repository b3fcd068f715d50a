//! Messages about further connections that carry a part of one's READs and WRITEs. `docs/protocol.md` describes each field.

use super::{Message, put_header};
use crate::status::Status;
use crate::wire::Reader;

pub(super) const FIRST: u8 = RAIL_ADD;
pub(super) const LAST: u8 = RAIL_END;

const RAIL_ADD: u8 = 50;
const RAIL_JOIN: u8 = 51;
const RAIL_JOINED: u8 = 52;
const RAIL_END: u8 = 53;

/// Names a rail: drawn by who dialled it, and good once.
pub type Nonce = [u8; 16];

/// A message about a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields are those of docs/protocol.md")]
pub enum RailMessage {
    /// On the main connection: a connection that says this is a rail of it.
    Add { nonce: Nonce },
    /// On the rail: its name.
    Join { nonce: Nonce },
    /// On the main connection: both were heard, and the rail is one.
    Joined { nonce: Nonce },
    /// On the main connection: this end of the rail is closed, and nothing touches memory through it any more.
    End { nonce: Nonce },
}

pub(super) fn put(out: &mut Vec<u8>, m: &RailMessage) {
    let (kind, nonce) = match m {
        RailMessage::Add { nonce } => (RAIL_ADD, nonce),
        RailMessage::Join { nonce } => (RAIL_JOIN, nonce),
        RailMessage::Joined { nonce } => (RAIL_JOINED, nonce),
        RailMessage::End { nonce } => (RAIL_END, nonce),
    };
    put_header(out, kind, 0);
    out.extend_from_slice(nonce);
}

pub(super) fn get<'a>(r: &mut Reader<'a>, kind: u8) -> Result<Message<'a>, Status> {
    let nonce = r.array()?;
    Ok(Message::Rail(match kind {
        RAIL_ADD => RailMessage::Add { nonce },
        RAIL_JOIN => RailMessage::Join { nonce },
        RAIL_JOINED => RailMessage::Joined { nonce },
        _ => RailMessage::End { nonce },
    }))
}
