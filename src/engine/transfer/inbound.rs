//! The receiving end of a transfer: a request, from the call to its one callback.

use super::outbound::Sent;
use super::protocols::Inflow;
use super::protocols::stripes::Stripes;
use crate::api::*;
use crate::engine::channel::ChanId;
use crate::engine::front::rendezvous::Named;
use crate::engine::list::Links;
use crate::engine::{Buffer, Due, Engine, Fx, Window};
use crate::fabric::keys::Place;
use crate::protocol::message::Fits;
use crate::status::Status;

/// Where the bytes of a transfer land.
pub(in crate::engine) struct Landing {
    pub addr: u64,
    pub len: u64,
    pub window: Option<Window>,
    /// A registered proxy, copied to the destination afterwards.
    pub staged: Option<Buffer>,
    /// That is the memory of this buffer, which lasts.
    pub buffer: Option<u32>,
}

/// Content that goes in several legs, since memory of either end lies in pieces; see `protocols::legs`.
pub(in crate::engine) struct Legs {
    /// Bytes that are in their place.
    pub at: u64,
    /// Longest leg.
    pub limit: u64,
    /// The sender's index, and where it may be read.
    pub response: u32,
    pub source: Option<Place>,
}

/// What an allocation was for.
pub(in crate::engine) enum AfterAlloc {
    Request,
    Eager(Vec<u8>),
    Meta {
        response: u32,
        source: Option<Place>,
    },
    Local(Sent),
    /// The content is in a buffer.
    Buffered,
}

pub(in crate::engine) enum State {
    /// Waits for a connection.
    Queued,
    /// The allocation callback is out; nothing: it has returned, and the next state follows.
    Allocating(Option<AfterAlloc>),
    /// TENSOR_REQUEST is out; content, metadata or an error comes back.
    Requested,
    /// The metadata is known; the content is being written.
    Awaiting,
    /// The source is being read.
    Reading { left: u32, response: u32, failed: Option<Status> },
    /// The checksum of the landing is being computed, or it is being copied to the destination.
    Copying,
    /// Waits in this manager's own table.
    LocalWait,
    /// Copied from a local sender's tensor.
    LocalCopy(Sent),
    /// Ended for the application, but its memory may still be written.
    Quiescing { status: Status, left: u32, response: Option<u32> },
}

/// A tensor that this worker receives, from the call to its one callback.
pub(in crate::engine) struct Request {
    /// The front end's part.
    pub named: Named,
    pub peer: Option<u32>,
    pub ch: Option<ChanId>,
    /// Among those that wait for a connection to the peer.
    pub in_queue: Links,
    /// Where what asks for it waits on the channel.
    pub place: Option<u64>,
    pub started: u64,
    pub deadline: u64,
    pub target: Target,
    pub device: u32,
    pub keep: bool,
    pub done: Due<OnRecv>,
    pub state: State,
    /// Metadata for which `dst` was made; the result's in the end.
    pub meta: Option<Meta>,
    /// It is what was known from before.
    pub known: bool,
    pub dst: u64,
    pub buffer: Option<Buffer>,
    pub landing: Option<Landing>,
    pub legs: Option<Box<Legs>>,
    /// Its READs go over several connections.
    pub stripes: Option<Box<Stripes>>,
    /// The content comes by the pipeline.
    pub flow: Option<Box<Inflow>>,
    pub checksum: Option<u64>,
    pub protocol: Protocol,
    /// The request ends with this as soon as the callback or copy that is out returns.
    pub ended: Option<Status>,
    /// A copy from or to its memory runs, outside of the engine.
    pub copying: bool,
}

impl Request {
    /// Whether this channel may bring its answer now.
    fn waits_on(&self, ch: ChanId) -> bool {
        self.ch == Some(ch) && matches!(self.state, State::Requested | State::Awaiting)
    }

    /// Whether content of this length, without metadata and checksum, goes to its place as it is.
    #[inline]
    pub fn takes_simply(&self, len: usize) -> bool {
        let known = self.meta.as_ref().is_some_and(|known| known.nbytes == len as u64);
        let elsewhere = self.landing.is_some() || self.done.is_message();
        known && !elsewhere && self.device == 0 && !matches!(self.target, Target::Library)
    }

    /// Whether such content, which this channel brings, does.
    pub fn takes_from(&self, ch: ChanId, len: usize) -> bool {
        self.waits_on(ch) && self.takes_simply(len)
    }

    /// Bytes that the landing is for: all, or those of this leg.
    pub fn leg_len(&self) -> u64 {
        let all = self.meta.as_ref().map_or(0, |m| m.nbytes);
        self.legs.as_ref().map_or(all, |legs| legs.limit.min(all.saturating_sub(legs.at)))
    }

    /// Whether this leg is not the last.
    pub fn goes_on(&self) -> bool {
        let all = self.meta.as_ref().map_or(0, |m| m.nbytes);
        self.legs.as_ref().is_some_and(|legs| legs.at + self.leg_len() < all)
    }

    /// The destination was given up front, where the sender may write.
    #[inline]
    pub fn takes_any_meta(&self) -> bool {
        matches!(self.target, Target::Given { .. }) && self.device == 0
    }

    /// What is to be said of how long the tensor may be; `told`: the destination says it.
    pub fn fits(&self, told: bool) -> Fits {
        match (&self.target, &self.meta) {
            (Target::Given { len, .. }, Some(meta)) if !told && *len > meta.nbytes => {
                Fits::UpTo((*len).min(isize::MAX as u64))
            }
            // What is cached is known to fit.
            (Target::Given { .. }, Some(_)) => Fits::Known,
            (Target::Given { .. }, None) if told => Fits::Known,
            (Target::Given { len, .. }, None) => Fits::UpTo((*len).min(isize::MAX as u64)),
            (_, Some(_)) => Fits::Any,
            (_, None) => Fits::Known,
        }
    }

    /// Memory of the host that is the application's again when it has ended.
    #[inline]
    pub fn memory(&self) -> (u64, u64) {
        self.memory_of(self.meta.as_ref().map_or(0, |m| m.nbytes))
    }

    /// The same of a result of this length.
    #[inline]
    pub fn memory_of(&self, nbytes: u64) -> (u64, u64) {
        let given = if let Target::Given { len, .. } = self.target { len } else { 0 };
        if self.device == 0 { (self.dst, given.max(nbytes)) } else { (0, 0) }
    }

    /// Where the result is: the address, and of which device.
    #[inline]
    pub fn place_of_result(&self) -> (u64, u32) {
        match self.target {
            Target::Library => (self.dst, 0),
            Target::Given { .. } | Target::Alloc(_) => (self.dst, self.device),
        }
    }

    /// Length of the content, as far as it is known, or there is room for.
    #[inline]
    pub fn expected(&self) -> u64 {
        match self.target {
            Target::Given { len, .. } if self.device == 0 => len,
            _ => self.meta.as_ref().map_or(0, |m| m.nbytes),
        }
    }

    /// Whether the memory that was found by what was known does for the tensor that the sender tells of, too.
    pub fn is_as_known(&mut self, told: &Meta) -> bool {
        let known = self.meta.as_mut().filter(|known| known.is_like(told));
        known.map(|known| known.user = told.user.clone()).is_some()
    }

    /// The sender told what its tensor is: what was known from before counts no more.
    pub fn told(&mut self, meta: Meta) {
        (self.meta, self.known) = (Some(meta), false);
    }
}

/// Its links among those that wait for a connection to its peer.
pub(in crate::engine) fn request_in_queue(r: &mut Request) -> &mut Links {
    &mut r.in_queue
}

impl Engine {
    /// The request ends then, if not before; `u64::MAX`: never.
    pub(in crate::engine) fn set_deadline(&mut self, index: u32, at: u64) {
        if let Some(r) = self.requests.get_mut(index) {
            r.deadline = at;
            self.deadlines.set(index, at);
            self.next_deadline = self.next_deadline.min(at);
        }
    }

    #[inline]
    pub(in crate::engine) fn settle_request(&mut self, fx: &mut impl Fx, index: u32) {
        if let Some(ch) = self.requests.get(index).and_then(|r| r.ch) {
            self.settle(fx, ch);
        }
    }

    /// The request of this index, if it is on this channel and waits for an answer.
    #[inline]
    pub(in crate::engine) fn answered(&mut self, ch: ChanId, index: u32) -> Option<&mut Request> {
        let found = self.requests.get_mut(index).filter(|r| r.waits_on(ch));
        if found.is_none() {
            self.stale += 1;
        }
        found
    }
    /// The same of an answer that names a tensor. What receives a message waits for none: it knows how long the content is,
    /// and in legs its destination is that of the leg.
    #[inline]
    pub(in crate::engine) fn answered_tensor(
        &mut self,
        ch: ChanId,
        index: u32,
        what: &'static str,
    ) -> Option<&mut Request> {
        if self.answered(ch, index)?.done.is_message() {
            let text = text!("{what} for a tagged message");
            self.violation(ch, Status::invalid(text));
            return None;
        }
        self.requests.get_mut(index)
    }
}
