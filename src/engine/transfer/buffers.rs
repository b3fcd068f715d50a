//! Memory that lasts beyond a transfer: the buffers of the persistent protocol, at both ends, and their bounds.
//!
//! At the sender a buffer has a number, by which the tensors of one name find it again; at the receiver another. What
//! passes between the two is in `protocols::persistent`. A buffer's memory is lent to the transfer that uses it, so that it
//! outlives the buffer as long as that needs it. All are bounded in bytes; those that are idle lie in a list, the one not
//! used for longest first.

use crate::api::Meta;
use crate::engine::channel::ChanId;
use crate::engine::list::{Fifo, Links};
use crate::engine::slab::{SLOT_MASK, Slab};
use crate::engine::{Buffer, Window};
use crate::fabric::keys::Place;
use crate::protocol::message::{IMM_BUFFER, IMM_BUFFER_LAST};

/// A buffer takes whole pages.
const PAGE: u64 = 4096;
/// Most buffers of either kind: each has a page at least, and a slot that an immediate names.
const MOST: usize = 1 << 16;
const _: () = assert!(2 * MOST == (IMM_BUFFER_LAST - IMM_BUFFER) as usize + 1);
/// Transfers that go another way after a peer has refused a buffer.
const PAUSE: u32 = 16;

/// A channel's part.
#[derive(Clone, Copy, Debug, Default)]
pub struct Share {
    /// Bytes of buffers that the peer asked for.
    pub(super) held: u64,
    /// Of these, what was called back.
    pub(super) recalled: u64,
    /// It is not asked for a buffer so many times.
    pub(super) pause: u32,
}

impl Share {
    /// The peer has buffers here.
    #[inline]
    pub(in crate::engine) fn is_used(&self) -> bool {
        self.held > 0
    }

    /// The peer has refused one.
    pub(super) fn refused(&mut self) {
        self.pause = PAUSE;
    }

    /// Whether a new one may be asked for; asked of each transfer once.
    pub(super) fn may_ask(&mut self) -> bool {
        self.pause = self.pause.saturating_sub(1);
        self.pause == 0
    }
}

/// A sender's buffer.
pub(super) struct Outgoing {
    pub ch: ChanId,
    /// Of `len` bytes, unless a transfer has it.
    pub memory: Option<Buffer>,
    pub window: Option<Window>,
    pub len: u64,
    /// The receiver's number of its own, and where that lies.
    pub remote: Option<(u32, Place)>,
    /// The receiver was asked for it.
    pub asked: bool,
    /// A transfer has the memory.
    pub lent: bool,
    /// The receiver has not said yet that it is idle.
    pub full: bool,
    /// It is to be given up as soon as it is idle.
    pub recalled: bool,
    /// Transfers that wait for it.
    pub waiting: Fifo,
    listed: bool,
    links: Links,
}

impl Outgoing {
    /// Nothing can be begun with it now.
    pub fn is_busy(&self) -> bool {
        self.asked || self.lent || self.full
    }

    /// Content of this length can be written to it.
    pub fn takes(&self, len: u64) -> bool {
        self.remote.is_some() && len <= self.len
    }
}

/// How far a receiver's buffer is.
pub(super) enum Fill {
    /// The sender may begin.
    Idle,
    /// It writes the content of this request.
    Announced { request: u32, meta: Option<Meta> },
    /// The content is there, and is being taken out.
    Full,
}

/// A receiver's buffer.
pub(super) struct Incoming {
    pub ch: ChanId,
    /// The sender's number.
    pub number: u32,
    /// Unless a transfer has it.
    pub memory: Option<Buffer>,
    pub window: Option<Window>,
    pub len: u64,
    pub fill: Fill,
    pub recalled: bool,
    listed: bool,
    links: Links,
}

fn of_outgoing(b: &mut Outgoing) -> &mut Links {
    &mut b.links
}

fn of_incoming(b: &mut Incoming) -> &mut Links {
    &mut b.links
}

/// The buffers of the persistent protocol that this worker has as a sender and as a receiver.
#[derive(Default)]
pub(in crate::engine) struct Buffers {
    pub(super) outgoing: Slab<Outgoing>,
    pub(super) incoming: Slab<Incoming>,
    /// Those that are idle, the one not used for longest first.
    idle_outgoing: Fifo,
    idle_incoming: Fifo,
    /// Bytes of all, with what is lent.
    pub(super) bytes_out: u64,
    pub(super) bytes_in: u64,
}

/// The length of a buffer for so many bytes.
pub(super) fn pages(len: u64) -> Option<u64> {
    len.checked_next_multiple_of(PAGE)
}

/// The immediate that says that a receiver's buffer is full.
pub(super) fn imm_of(buffer: u32) -> u32 {
    IMM_BUFFER | (buffer & SLOT_MASK)
}

impl Buffers {
    /// A sender's buffer, without memory.
    pub fn begin(&mut self, ch: ChanId) -> Option<u32> {
        let b = Outgoing {
            ch,
            memory: None,
            window: None,
            len: 0,
            remote: None,
            asked: false,
            lent: false,
            full: false,
            recalled: false,
            waiting: Fifo::default(),
            listed: false,
            links: Links::default(),
        };
        if self.outgoing.len() < MOST { self.outgoing.insert(b).ok() } else { None }
    }

    /// Takes a receiver's buffer in.
    pub(super) fn give(
        &mut self,
        (ch, number): (ChanId, u32),
        memory: Buffer,
        window: Window,
    ) -> Result<u32, (Buffer, Window)> {
        let len = memory.len;
        if self.incoming.len() >= MOST {
            return Err((memory, window));
        }
        let Some(vacancy) = self.incoming.vacancy() else { return Err((memory, window)) };
        let buffer = vacancy.fill(Incoming {
            ch,
            number,
            memory: Some(memory),
            window: Some(window),
            len,
            fill: Fill::Idle,
            recalled: false,
            listed: false,
            links: Links::default(),
        });
        self.bytes_in += len;
        self.rest_incoming(buffer);
        Ok(buffer)
    }

    /// A sender's buffer is idle.
    pub(super) fn rest_outgoing(&mut self, number: u32) {
        if self.outgoing.get_mut(number).is_some_and(|b| !std::mem::replace(&mut b.listed, true)) {
            self.idle_outgoing.push(&mut self.outgoing, of_outgoing, number);
        }
    }

    /// It is not any more.
    pub(super) fn wake_outgoing(&mut self, number: u32) {
        if let Some(b) = self.outgoing.get_mut(number)
            && std::mem::take(&mut b.listed)
        {
            let links = b.links;
            self.idle_outgoing.remove(&mut self.outgoing, of_outgoing, number, links);
        }
    }

    /// A receiver's buffer is idle, and stays.
    pub(super) fn rest_incoming(&mut self, buffer: u32) {
        let stays = |b: &mut Incoming| !b.recalled && !std::mem::replace(&mut b.listed, true);
        if self.incoming.get_mut(buffer).is_some_and(stays) {
            self.idle_incoming.push(&mut self.incoming, of_incoming, buffer);
        }
    }

    /// It is not any more.
    pub(super) fn wake_incoming(&mut self, buffer: u32) {
        if let Some(b) = self.incoming.get_mut(buffer)
            && std::mem::take(&mut b.listed)
        {
            let links = b.links;
            self.idle_incoming.remove(&mut self.incoming, of_incoming, buffer, links);
        }
    }

    /// The sender's buffer that was not used for longest.
    pub(super) fn oldest_outgoing(&self) -> Option<u32> {
        self.idle_outgoing.first()
    }

    /// The receiver's buffer that was not used for longest, of one channel or of all, among the first of them. Those of a
    /// channel that `owes` are in nobody's way for long: they are the last then.
    pub(super) fn oldest_incoming(
        &mut self,
        ch: Option<ChanId>,
        owes: impl Fn(ChanId) -> bool,
    ) -> Option<u32> {
        const LOOKED_AT: usize = 256;
        let mut at = self.idle_incoming.first();
        for _ in 0..LOOKED_AT {
            let (buffer, b) = (at?, self.incoming.get_mut(at?)?);
            at = b.links.next();
            if owes(b.ch) {
                self.wake_incoming(buffer);
                self.rest_incoming(buffer);
            } else if ch.is_none_or(|ch| b.ch == ch) {
                return Some(buffer);
            }
        }
        None
    }

    /// A receiver's buffer leaves; its memory, unless a transfer has it.
    pub(super) fn take_incoming(&mut self, buffer: u32) -> Option<Incoming> {
        self.wake_incoming(buffer);
        self.incoming.remove(buffer)
    }
}
