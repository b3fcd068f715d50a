//! Real RDMA devices: reliable-connection queue pairs through libibverbs.
//!
//! - `sys`: the library, found at run time; `device`, `select`, `gid`: which device, port and GID;
//! - `mr`, `cq`, `qp`, `recv`, `send`: the verbs objects, each holding its parents, so that they
//!   end in order; `ledger`: which receive buffers a destroyed queue pair took with it;
//! - `endpoint`: one connection and the account of its send queue; `address`: how ends find each
//!   other; `status`: failed completions in words; `events`: what devices tell on their own;
//! - `cm`: connecting through rdma_cm, whose library and objects are in `cm_sys`, its settings in `terms`;
//! - `several`: more than one device for a peer;
//! - `open`: opening a device; `adapter`: the provider contract on top of these; `progress`: what completions and events do.
//!
//! Sends, writes and reads are collected per endpoint and handed to the device in one chain at
//! `flush`. A SEND is copied into a registered buffer and asks for a completion only now and then;
//! a WRITE or READ goes straight from or to the caller's registered memory. A READ always asks for
//! one, of a burst of WRITEs the last, which tells of those before it. Receives come from a shared queue.

mod adapter;
pub mod address;
mod cm;
mod cm_sys;
mod cq;
mod device;
mod endpoint;
mod events;
pub mod gid;
mod ledger;
mod mr;
mod open;
mod posting;
mod progress;
mod qp;
mod recv;
pub mod select;
mod send;
mod several;
mod status;
mod sys;
mod terms;

pub use adapter::IbverbsAdapter;
pub use open::{open, open_all};

/// Marks the work request ids of receives.
const RECV_BIT: u64 = 1 << 63;

/// Logs a failure that nobody can be told of by a return value.
fn log_failure(what: &str, detail: &str) {
    let e = std::io::Error::last_os_error();
    crate::log::log(crate::log::Level::Error, format_args!("ibverbs: {what} ({detail}): {e}"));
}

/// Whether this provider can be used here: "libibverbs.so.1 not found", "no device", or "no active
/// port" with the state of each. `open` says why it does not take a device.
pub fn probe() -> Result<(), String> {
    device::quick_look()
}
