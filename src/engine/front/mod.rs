//! Front ends: names and matching. What they match, the transfer layer moves; how it goes there, they do not know.
//!
//! One so far: [`rendezvous`], of named tensors.

pub mod rendezvous;
