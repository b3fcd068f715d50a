//! The messages of the transfer protocol.

pub mod message;
