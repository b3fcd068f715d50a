//! Front ends: names and matching. What they match, the transfer layer moves; how it goes there, they do not know.
//!
//! Two so far: [`rendezvous`], of named tensors, and [`message`], of tagged messages.

pub mod message;
pub mod rendezvous;
