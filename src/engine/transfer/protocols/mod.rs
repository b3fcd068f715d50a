//! How content goes, a file each: what the sender does, and what the receiver does.

mod eager;
mod get;
mod legs;
mod local;
mod persistent;
mod pipeline;
mod put;
pub(super) mod stripes;

pub(super) use eager::data_loss;
pub(super) use pipeline::{Inflow, Outflow};
