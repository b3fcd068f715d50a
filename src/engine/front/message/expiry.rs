//! Deadlines of message operations: those of the application, and those for a peer's answer when one is taken back.

use super::flow::OFFERS;
use super::{Envelope, State};
use crate::engine::channel::ChanId;
use crate::engine::known::Peer;
use crate::engine::timers::PATIENCE;
use crate::engine::{Engine, Fx};
use crate::status::{Code, Reason, Status};

/// What a receive waited for may wait itself, behind messages for which there is no receive.
const FULL: &str = "no message came, and none can: as many as are allowed (65,536 on a connection) wait here for other \
                    receives, and later ones behind them at their sender";

impl Engine {
    /// Ends the operations whose time is over.
    pub(in crate::engine) fn expire_messages(&mut self, fx: &mut impl Fx, now: u64) {
        loop {
            let messages = &mut self.messages;
            let due = messages.deadlines.pop(&messages.ops, now, |op| op.deadline);
            let Some(index) = due else { break };
            self.expire_message(fx, index);
        }
        self.expire_rooms(fx, now);
    }

    fn expire_message(&mut self, fx: &mut impl Fx, index: u32) {
        let grace = self.grace_since_woken(fx.now());
        let Some(op) = self.messages.ops.get_mut(index) else { return };
        let stalled = match op.state {
            State::Unmatched { ch } | State::Offered { ch, .. } if op.ended.is_some() => Some(ch),
            _ => None,
        };
        if let Some(ch) = stalled {
            if let Some(until) = grace.or_else(|| self.on_its_way_until(fx.now(), index)) {
                return self.set_message_deadline(index, until);
            }
            if self.end_withdrawn(fx, ch, index) {
                return;
            }
            let text = match self.is_long_over(fx.now(), index) {
                true => {
                    "the peer neither took a message nor gave it back, long after it was to end"
                }
                false => "the peer did not answer when a message was taken back",
            };
            let status = Status::new(Code::Unavailable, text).because(Reason::PeerStalled);
            return self.channel_down(fx, ch, status);
        }
        let from = op.wanted.from.index();
        let full = matches!(op.state, State::Posted) && self.is_full_of_offers(from);
        let peer = from.and_then(|peer| self.peers.get(peer));
        let apart = peer.is_some_and(|p| p.channels.is_empty());
        let whom = match peer {
            // This manager itself, or one that nobody has tried to reach.
            Some(p) if p.tries.is_empty() && p.last_error.is_none() => {
                text!(" with peer '{}'", p.name)
            }
            Some(p) => text!(" with {}", p.told()),
            None => String::new(),
        };
        let Some(op) = self.messages.ops.get_mut(index) else { return };
        let seconds = op.deadline.saturating_sub(op.started) as f64 / 1e9;
        let state = match op.state {
            State::Queued | State::Gathering { .. } if apart => "not connected",
            State::Queued | State::Gathering { .. } => "waited to be sent",
            State::Offered { .. } | State::Unmatched { .. } | State::Own { .. } => {
                "no receive met it"
            }
            State::Posted if full => FULL,
            State::Posted => "no message came",
            _ => "the content was on its way",
        };
        let Envelope { comm, tag } = op.envelope();
        op.deadline = u64::MAX;
        let text = text!(
            "message of tag {tag:#x}, communicator {comm}{whom}: {state} after {seconds:.3} s"
        );
        let status = Status::new(Code::DeadlineExceeded, text).because(Reason::Deadline);
        self.give_up_message(fx, index, status);
    }

    /// Whether a peer, of none: any, has offered as much as it may without a receive for it.
    fn is_full_of_offers(&self, peer: Option<u32>) -> bool {
        let of = |p: &Peer| {
            let mut channels = p.channels.iter().filter_map(|&ch| self.channels.get(ch));
            channels.any(|c| c.flow.offers >= OFFERS)
        };
        match peer {
            Some(peer) => self.peers.get(peer).is_some_and(of),
            None => self.peers.iter().any(of),
        }
    }

    /// A message that was taken back from a peer which drives progress itself, and is silent as long as its application computes:
    /// that is no stall. The operation ends without its word, where nothing of its memory can be read any more; what the
    /// peer says later is stale. A small one may be received all the same.
    fn end_withdrawn(&mut self, fx: &mut impl Fx, ch: ChanId, index: u32) -> bool {
        let Some(c) = self.channels.get(ch).filter(|c| c.remote_manual) else { return false };
        let windows = c.caps.windows;
        let Some(op) = self.messages.ops.get(index) else { return false };
        match op.state {
            State::Unmatched { .. } => {}
            // What this end writes ends with its connection only.
            State::Offered { response, .. } if windows && !self.is_wanted(response) => {}
            _ => return false,
        }
        let Some(status) = op.ended.clone() else { return false };
        let status = match status.code {
            Code::Cancelled if !self.closing => {
                let text =
                    "the peer, which drives progress itself, did not answer when it was taken back";
                Status::new(Code::Unavailable, text).because(Reason::PeerStalled)
            }
            _ => status,
        };
        match op.state {
            State::Offered { response, .. } => self.end_response(fx, response, Err(status)),
            _ => self.end_message(fx, index, Err(status)),
        }
        true
    }

    /// An offer that was taken back, and that a receive had met before it heard of that: it ends with its content. A receiver that asks for
    /// a WRITE has said so, and there is nothing more to wait for until the application wants an end, come what may. One that READs says
    /// nothing before it is done. From then on, both have time as long as they say anything at all, which they do when they are pinged, but
    /// not for ever: one that lives may wait itself for what was lost on its way. So has one with a small message: that it is taken back may
    /// have to wait behind content that goes there.
    fn on_its_way_until(&self, now: u64, index: u32) -> Option<u64> {
        let op = self.messages.ops.get(index)?;
        let (ch, wanted) = match op.state {
            State::Offered { ch, response } => (ch, self.is_wanted(response)),
            State::Unmatched { ch } => (ch, false),
            _ => return None,
        };
        let end = op.limit.saturating_add(self.quiesce_grace());
        if wanted && now < end {
            return Some(end);
        }
        let since = op.deadline.saturating_sub(self.quiesce_grace());
        let heard = self.channels.get(ch)?.last_rx;
        let over = self.is_long_over(now, index);
        (heard > since && !over).then(|| now + self.quiesce_grace())
    }

    /// Whether the application has wanted the end of an operation for so long that nothing is waited for any more.
    fn is_long_over(&self, now: u64, index: u32) -> bool {
        self.messages.ops.get(index).is_some_and(|op| now >= op.limit.saturating_add(PATIENCE))
    }
}
