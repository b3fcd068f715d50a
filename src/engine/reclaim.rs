//! Memory that the application takes back while transfers use it.
//!
//! A transfer is found by the memory that it names: the destination of a receive, the source of a
//! send that waits, is offered to a peer or is being written. Each is ended, once, and counts until
//! nothing can touch its memory any more; who takes the memory back waits for that. What cannot be
//! called back (a WRITE that was posted) is waited for, and after the usual grace its connection
//! ends, after which nothing of it is touched.

use super::front::message::{Memory, Messages};
use super::front::rendezvous::Named;
use super::transfer::inbound::{AfterAlloc, Request, State};
use super::transfer::outbound::{RState, Response};
use super::{ChanId, Engine, Fx};
use crate::api::*;
use crate::status::{Code, Reason, Status};

/// Memory of the application.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// First byte.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// Its device, 0 for the host.
    pub device: u32,
}

impl Range {
    /// Whether the two share a byte.
    pub fn meets(&self, addr: u64, len: u64, device: u32) -> bool {
        let apart =
            addr >= self.addr.saturating_add(self.len) || self.addr >= addr.saturating_add(len);
        device == self.device && len > 0 && self.len > 0 && !apart
    }

    /// What is left to be read of content: none of it where it was `copied`.
    pub fn unless(copied: bool, addr: u64, len: u64, device: u32) -> Range {
        Range { addr, len: if copied { 0 } else { len }, device }
    }

    /// Whether this memory of the host lies in it.
    pub fn contains(&self, addr: u64, len: u64) -> bool {
        self.device == 0 && addr >= self.addr && addr - self.addr <= self.len.saturating_sub(len)
    }

    fn holds(&self, tensor: &Tensor) -> bool {
        self.meets(tensor.addr, tensor.meta.nbytes, tensor.device)
    }

    fn status(&self, named: &Named, what: &str) -> Status {
        self.unregistered(format_args!("{what}{named}"))
    }

    /// Why what lies in it ends.
    pub(super) fn unregistered(&self, what: std::fmt::Arguments<'_>) -> Status {
        let text = text!(
            "{what} lies in memory that was unregistered: {} bytes at {:#x}",
            self.len,
            self.addr
        );
        Status::new(Code::FailedPrecondition, text).because(Reason::LocalError)
    }
}

/// What of a request or response lies in a range that is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Nothing.
    No,
    /// Something of which a copy is on its way: it is not touched any more, as long as nobody goes back to it.
    Copied,
    /// Something; it is not touched at the moment.
    Idle,
    /// Something, and it may be touched until the transfer has quiesced.
    Busy,
}

fn holds(range: &Range, messages: &Messages, tensor: &Tensor) -> bool {
    let Tensor { addr, device, .. } = *tensor;
    messages.meets(range, Memory { addr, len: tensor.meta.nbytes, device })
}

impl Request {
    fn uses(&self, range: &Range, messages: &Messages) -> Use {
        let source = match &self.state {
            State::LocalCopy(sent) | State::Allocating(Some(AfterAlloc::Local(sent))) => {
                holds(range, messages, &sent.tensor)
            }
            _ => false,
        };
        let target = match &self.target {
            Target::Given { addr, len } => {
                messages.meets(range, Memory { addr: *addr, len: *len, device: self.device })
            }
            Target::Alloc(_) => {
                let len = self.meta.as_ref().map_or(0, |m| m.nbytes);
                self.dst != 0 && range.meets(self.dst, len, self.device)
            }
            Target::Library => false,
        };
        match &self.state {
            _ if !(source || target) => Use::No,
            // Its callback is out; what comes after it sees that the request has ended.
            State::Allocating(_) => Use::Idle,
            State::Copying | State::LocalCopy(_) if !self.copying => Use::Idle,
            _ => Use::Busy,
        }
    }
}

impl Response {
    fn uses(&self, range: &Range, messages: &Messages) -> Use {
        let Some(s) = self.source.as_ref().filter(|s| holds(range, messages, &s.tensor)) else {
            return Use::No;
        };
        match self.state {
            RState::Staging if self.copying => Use::Busy,
            RState::Staging => Use::Idle,
            RState::Piping if s.flow.as_ref().is_some_and(|flow| flow.is_quiet()) => Use::Idle,
            RState::Piping => Use::Busy,
            // A staged copy is the library's; of a leg there is more to come.
            _ if s.leg.is_none() && s.staged.is_some() => Use::Copied,
            RState::Writing { .. } => Use::Busy,
            _ => Use::Idle,
        }
    }
}

impl Engine {
    /// Ends what uses memory of the range. True: nothing touches it any more. `force`: connections
    /// end on which something would still be waited for.
    pub fn reclaim(&mut self, fx: &mut impl Fx, range: &Range, force: bool) -> bool {
        let (withdrawn, whole) = self.table.withdraw(|tensor| range.holds(tensor));
        for (key, step, sent) in withdrawn {
            let named = Named { key, step, ..Named::default() };
            let status = range.status(&named, "the tensor ");
            let info = self.info(None, None, Protocol::Auto);
            self.end_send(fx, sent.done, Err(status), info);
        }
        // First those that wait: what comes behind one of them goes when it ends, and is an offer then, perhaps of the same memory.
        let messages = self.reclaim_messages(fx, range);
        self.reclaim_requests(fx, range, force);
        self.reclaim_responses(fx, range, force);
        let pairs = self.reclaim_pairs(fx, range, force);
        let busy = messages
            || pairs
            || !whole
            || self.requests.iter().any(|(_, r)| r.uses(range, &self.messages) == Use::Busy)
            || self.responses.iter().any(|(_, r)| r.uses(range, &self.messages) == Use::Busy);
        !busy
    }

    /// A connection on which something would still be waited for.
    fn end_forced(&mut self, fx: &mut impl Fx, ch: ChanId) {
        let text = "it did not end a transfer in time whose memory was unregistered";
        let status = Status::new(Code::Unavailable, text).because(Reason::PeerStalled);
        self.channel_down(fx, ch, status);
    }

    /// Ends requests, and, with `force`, the connections of those that have to quiesce.
    fn reclaim_requests(&mut self, fx: &mut impl Fx, range: &Range, force: bool) {
        let mut at = 0;
        while let Some(index) = {
            let messages = &self.messages;
            self.requests.next(&mut at, |r| r.uses(range, messages) != Use::No)
        } {
            let Some(r) = self.requests.get(index) else { continue };
            let status = range.status(&r.named, "the receive of ");
            self.end(fx, index, status);
            let busy = |r: &&Request| r.uses(range, &self.messages) == Use::Busy;
            let left = self.requests.get(index).filter(busy);
            if let (true, Some(ch)) = (force, left.and_then(|r| r.ch)) {
                self.end_forced(fx, ch);
            }
        }
    }

    /// The same for responses.
    fn reclaim_responses(&mut self, fx: &mut impl Fx, range: &Range, force: bool) {
        let mut at = 0;
        while let Some(index) = {
            let messages = &self.messages;
            self.responses.next(&mut at, |r| r.uses(range, messages) != Use::No)
        } {
            let Some(r) = self.responses.get_mut(index) else { continue };
            let what = if r.is_message() { "" } else { "the tensor " };
            let status = range.status(&r.named, what);
            let ch = r.asked.to.ch;
            if r.uses(range, &self.messages) == Use::Copied {
                // Left by its receiver, it would be a tensor again that lies there.
                r.no_table = true;
                r.ended.get_or_insert(status);
                continue;
            }
            match &mut r.state {
                RState::Ready | RState::Buffering(_) | RState::Told | RState::Deferred => {
                    self.undeliverable(fx, index, status);
                    self.settle(fx, ch);
                }
                RState::Staging => _ = r.ended.get_or_insert(status),
                RState::Piping => {
                    if let Some(flow) = r.source.as_mut().and_then(|s| s.flow.as_mut()) {
                        if flow.is_copying() {
                            r.ended.get_or_insert(status.clone());
                        }
                        flow.give_up(status);
                        let busy = !flow.is_quiet();
                        self.go_on(fx, index);
                        self.settle(fx, ch);
                        if force && busy {
                            self.end_forced(fx, ch);
                        }
                    }
                }
                RState::Writing { failed, .. } => {
                    failed.get_or_insert(status);
                    if force {
                        self.end_forced(fx, ch);
                    }
                }
                RState::Waiting(_) | RState::Asking => {}
            }
        }
    }
}
