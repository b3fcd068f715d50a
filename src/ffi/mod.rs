//! The C ABI: argument checks, handles, panic boundary. No logic.
//!
//! `include/rdma_transport.h` is generated from this module (see `cbindgen.toml` and
//! `tests/header.rs`), so the comments here are written for readers of C. Every exported function
//! is one call of `error::guard`, which catches panics and records the error text.

#![allow(non_camel_case_types, reason = "the names are those of the C header")]
#![allow(rustdoc::broken_intra_doc_links, reason = "elements of C arrays have brackets")]
#![allow(clippy::missing_safety_doc, reason = "the contract is written for callers from C")]

mod args;
mod base;
mod callback;
mod called;
mod callers;
mod convert;
mod error;
mod handle;
mod keys;
mod manager;
mod memory;
mod mesh;
mod message_claims;
mod message_convert;
mod message_ends;
mod message_more;
mod message_places;
mod message_plain;
mod messages;
mod object;
mod observe;
mod options;
mod pairs;
mod peers;
mod pool;
mod progress;
mod rendezvous;
mod sized;
mod source;
mod store;
mod store_calls;
mod store_ops;
mod types;
mod unbound;

pub use base::*;
pub(crate) use called::{Leaving, go};
pub(crate) use callers::Own as Callers;
pub(crate) use error::Depth;
pub use keys::*;
pub use manager::*;
pub use memory::*;
pub use mesh::*;
pub use message_claims::*;
pub use message_ends::*;
pub use message_more::*;
pub use messages::*;
pub use observe::*;
pub use options::*;
pub use pairs::*;
pub use peers::*;
pub use pool::*;
pub use progress::*;
pub use rendezvous::*;
pub use source::*;
pub use store::*;
pub use store_calls::*;
pub use types::*;
pub use unbound::*;

#[cfg(test)]
mod tests;
