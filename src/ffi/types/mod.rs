//! Constants and types of the C ABI, in the layout of C.

mod base;
mod keys;
mod manager;
mod memory;
mod mesh;
mod messages;
mod observe;
mod peers;
mod rendezvous;
mod store;

pub use base::*;
pub use keys::*;
pub use manager::*;
pub use memory::*;
pub use mesh::*;
pub use messages::*;
pub use observe::*;
pub use peers::*;
pub use rendezvous::*;
pub use store::*;

pub use super::handle::{rdma_mgr, rdma_mgr_t};
pub use super::pool::rdma_pool_t;
