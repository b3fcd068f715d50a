//! Moves tensors between processes: by one-sided RDMA on real devices, by shared
//! memory on one host, by TCP between hosts.
//!
//! The product is the C ABI in `include/rdma_transport.h`. The Rust items below are the engine
//! behind it; they are public for the tests and benchmarks of this repository.

/// A text for a person, as [`format!`] has it; where there is no memory for all of it, its beginning.
macro_rules! text {
    ($($arg:tt)*) => { $crate::room::said(format_args!($($arg)*)) };
}

pub mod api;
pub mod bootstrap;
mod bulk;
pub mod config;
pub mod counted;
pub mod engine;
pub mod fabric;
mod few;
pub mod ffi;
pub mod key;
pub mod limits;
pub mod local_fd;
pub mod log;
pub mod manager;
pub mod memory;
pub mod mesh;
pub mod name;
pub mod observe;
pub mod os;
pub mod protocol;
mod room;
pub mod shown;
pub mod status;
pub mod store;
mod thread;
pub mod trials;
pub mod user;
pub mod wire;
