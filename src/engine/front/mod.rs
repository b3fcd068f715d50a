//! Front ends: names and matching. What they match, the transfer layer moves; how it goes there, they do not know.
//!
//! Three: [`rendezvous`], of named tensors, [`message`], of tagged messages, and [`pair`], of buffers by slot.

pub mod message;
pub mod pair;
pub mod rendezvous;
