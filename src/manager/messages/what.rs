//! What the calls are given, and what they give back.

use std::sync::Arc;
use std::time::Duration;

use crate::counted::Counted;
use crate::engine::front::message::{Memory, MessageEnd, Mode, OnMessage, Outgoing, Party, Wanted};
use crate::engine::layout::Layout;
use crate::protocol::message::{Envelope, Extra};

/// How long an operation may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// As the manager's options say.
    Default,
    /// So long.
    After(Duration),
    /// There is no deadline.
    Never,
}

impl Timeout {
    pub(in crate::manager) fn nanos(self) -> Option<u64> {
        match self {
            Timeout::Default => None,
            Timeout::After(time) => Some(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
            Timeout::Never => Some(u64::MAX),
        }
    }
}

/// A message operation that may be begun again and again.
#[allow(missing_docs, reason = "fields are those of the calls")]
pub enum Prepared {
    /// A send.
    Send {
        to: Party,
        incarnation: u64,
        envelope: Envelope,
        user: Vec<u8>,
        lens: Vec<[u8; 8]>,
        at: Where,
        mode: Mode,
        buffered: bool,
        timeout: Timeout,
        done: OnMessage,
    },
    /// A receive.
    Recv { wanted: Wanted, incarnation: u64, at: Where, timeout: Timeout, done: OnMessage },
}

/// Operations that are prepared.
#[derive(Default)]
pub(in crate::manager) struct AllPrepared {
    pub(super) last: u64,
    pub(super) all: foldhash::HashMap<u64, Counted<Prepared>>,
}

/// Where the content of a message lies.
#[derive(Clone)]
pub enum Where {
    /// In one place.
    Whole(Memory),
    /// In pieces of the host's memory.
    Pieces(Arc<Layout>),
    /// The same, of one operation alone.
    Once(Layout),
}

impl Where {
    /// The same once more. Mostly it is in one place, which takes no call.
    #[inline(always)]
    pub fn again(&self) -> Where {
        match self {
            Where::Whole(memory) => Where::Whole(*memory),
            pieces => pieces.clone(),
        }
    }

    /// The same, for several operations.
    pub fn shared(self) -> Where {
        match self {
            Where::Once(layout) => Where::Pieces(Arc::new(layout)),
            other => other,
        }
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        match self {
            Where::Whole(memory) => memory.len,
            Where::Pieces(layout) => layout.len(),
            Where::Once(layout) => layout.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pieces, if there are such.
    pub fn layout(&self) -> Option<&Layout> {
        match self {
            Where::Whole(_) => None,
            Where::Pieces(layout) => Some(layout),
            Where::Once(layout) => Some(layout),
        }
    }
}

/// A message that is to be sent, but for its content.
pub struct Post<'a> {
    /// To whom.
    pub to: Party,
    /// The incarnation of the peer that alone may get it; 0: whichever has the name.
    pub incarnation: u64,
    /// Communicator and tag.
    pub envelope: Envelope,
    /// What travels beside the content.
    pub extra: &'a Extra<'a>,
    /// When it has ended.
    pub mode: Mode,
    /// Until when.
    pub timeout: Timeout,
}

impl<'a> Post<'a> {
    #[inline]
    pub(super) fn outgoing(
        &self,
        memory: Memory,
        content: &'a [u8],
        done: OnMessage,
    ) -> Outgoing<'a> {
        let Post { to, incarnation, envelope, extra, mode, timeout } = *self;
        Outgoing {
            to,
            incarnation,
            envelope,
            memory,
            content,
            extra,
            mode,
            timeout: timeout.nanos(),
            done,
            trial: None,
        }
    }
}

/// A receive that has begun.
#[derive(Debug)]
pub enum Received {
    /// It has ended well, and there is no operation.
    Done(MessageEnd),
    /// Its number.
    Begun(u64),
}

/// Which operations are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collect {
    /// All of them, or none.
    All,
    /// One.
    Any,
    /// As many as have ended, one at least.
    Some,
}
