//! The front end of named tensors: sends and receives meet by step and key.
//!
//! `table` holds who waits for whom (`items` of a step), `keys` and `steps` what it uses again, `names` which key goes by which
//! buffer; `receive` and `send` are the calls of the application, `local` a receive from oneself,
//! `asked` is what a peer asks for, `runtime` a rendezvous of the application's own behind that; `leave` is what the
//! transfer layer says when it is done with an end, `give_up` the end of a step.

mod asked;
mod give_up;
mod items;
pub mod keys;
mod leave;
mod local;
pub(in crate::engine) mod names;
mod receive;
mod runtime;
mod send;
mod steps;
pub mod table;

use keys::Key;
pub use table::{Drained, Meeting, Members, RecvOutcome, Sent, Table, Waiter};

use crate::engine::list::Links;

/// What this front end knows of one end of a transfer.
#[derive(Default)]
pub(in crate::engine) struct Named {
    /// Public id.
    pub id: u64,
    /// Key.
    pub key: Key,
    /// Step.
    pub step: i64,
    /// Its place in its step.
    pub in_step: Links,
}

impl Named {
    /// A tensor has a name, a message has none.
    #[inline(always)]
    pub fn is_tensor(&self) -> bool {
        !self.key.is_empty()
    }

    /// Its name in an error.
    pub fn shown(&self) -> impl std::fmt::Display + '_ {
        crate::shown::key(&self.key)
    }

    /// Key and step for a trace.
    pub fn traced(&self) -> Option<(Box<[u8]>, i64)> {
        Some((crate::room::key(&self.key).ok()?, self.step))
    }
}

impl std::fmt::Display for Named {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.key.is_empty() {
            return f.write_str("a tagged message");
        }
        write!(f, "'{}' of step {}", crate::shown::key(&self.key), self.step)
    }
}

/// A public id is a sequence number followed by the slot: monotonic, and found without a map.
const PUBLIC_SLOT_BITS: u32 = 20;

/// The public id of what lies in this slot.
pub(crate) fn public_id(sequence: u64, index: u32) -> u64 {
    sequence << PUBLIC_SLOT_BITS | u64::from(index) & ((1 << PUBLIC_SLOT_BITS) - 1)
}
