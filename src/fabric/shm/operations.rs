//! What is under way on a link.

use std::time::Instant;

use super::tuning::Timed;
use super::wire::{ContentAt, Write};
use crate::fabric::Remote;

/// A WRITE that the peer has not answered yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    pub(crate) wr: u64,
    pub(crate) remote: Remote,
    pub(crate) len: u64,
    /// Where its content is in this process's memory, if that is all that the peer was told; 0: it came with the record, or lies in a pool.
    pub(crate) local: u64,
    /// Taken where there is a choice of ways.
    pub(crate) timed: Option<Timed>,
}

/// How a READ is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// We copy out of the peer's memory.
    Direct,
    /// The peer is to be asked.
    Ask,
    /// It has been asked; the number among the READs asked for.
    Asked(u64),
    /// Both copy; the same number.
    Shared(u64),
}

/// A READ under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// Tells it from all others of the link.
    pub(crate) id: u64,
    pub(crate) wr: u64,
    pub(crate) local: u64,
    pub(crate) remote: Remote,
    pub(crate) len: u64,
    /// Bytes in place from the start.
    pub(crate) done: u64,
    /// From here to the end it is in place, too.
    pub(crate) back: u64,
    pub(crate) how: How,
    /// When the stream last brought something.
    pub(crate) fed: Option<Instant>,
    /// Taken where there is a choice of ways.
    pub(crate) timed: Option<Timed>,
    /// What a copy that both make came to.
    pub(crate) ended: Option<u8>,
}

impl Reading {
    /// It goes on without the peer.
    pub(super) fn needs_no_answer(&self) -> bool {
        matches!(self.how, How::Direct | How::Shared(_))
    }
}

/// A WRITE of the peer that is being carried out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inbound {
    /// Destination.
    pub(crate) to: Write,
    /// Whether it has an immediate.
    pub(crate) has_imm: bool,
    /// Where its content is.
    pub(crate) from: ContentAt,
    /// Which of the places (`wire::FROM_*`).
    pub(crate) place: u8,
    /// Bytes in place from the start.
    pub(crate) front: u64,
    /// From here to the end it is in place, too.
    pub(crate) back: u64,
    /// When the stream last brought something.
    pub(crate) fed: Option<Instant>,
}

/// A pool segment of ours that the peer was passed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passed {
    pub(crate) id: u32,
    /// How many were passed before.
    pub(crate) at: u64,
    /// Whether the peer has mapped it, once it has said so.
    pub(crate) mapped: Option<bool>,
}
