//! The transfer protocol: its messages, and the choice of how content travels.

pub mod message;
pub mod select;
