//! Which connection a peer's messages come by.
//!
//! All messages to a peer go over one connection, the first that the sender has, so they keep their order. Where that ends at the sender
//! alone (the receiver stands still, or the network does), the sender goes on over another one, and what it sent before may arrive
//! behind that. So from the first connection on that a manager has lost it says, before the first message on a connection,
//! the how-manieth this is (MSG_CARRIER). What comes by an earlier one from then on was lost with it, and ends it.

use super::channel::ChanId;
use super::{Engine, Fx};
use crate::protocol::message::Message;
use crate::status::Status;

/// What the two ends of the connections to a peer have said to each other of that.
#[derive(Debug, Default)]
pub(super) struct Carriers {
    /// The connection of ours that was told last to carry messages.
    told: Option<ChanId>,
    /// The highest number that was heard; 0: none.
    heard: u64,
}

impl Carriers {
    /// The peer is another incarnation.
    pub(super) fn forget_heard(&mut self) {
        self.heard = 0;
    }

    /// Whether messages by a connection that is new are out of their time until it has said otherwise.
    pub(super) fn has_heard(&self) -> bool {
        self.heard > 0
    }

    /// A connection has ended.
    pub(super) fn forget(&mut self, ch: ChanId) {
        self.told = self.told.filter(|&told| told != ch);
    }
}

impl Engine {
    /// The connection that carried messages to a peer has ended here; another may take over.
    pub(super) fn lost_carrier(&mut self, fx: &mut impl Fx, peer: u32) {
        self.messages.carriers += 1;
        self.tell_carrier(fx, peer);
    }

    /// Tells a peer by which connection messages come from now on, if it is to know that.
    pub(super) fn tell_carrier(&mut self, fx: &mut impl Fx, peer: u32) {
        let Some(p) = self.peers.get_mut(peer).filter(|_| self.messages.carriers > 0) else {
            return;
        };
        let Some(&ch) = p.channels.first().filter(|&&ch| p.carriers.told != Some(ch)) else {
            return;
        };
        p.carriers.told = Some(ch);
        self.messages.carriers += 1;
        self.send(fx, ch, &Message::MsgCarrier { number: self.messages.carriers }, &[]);
    }

    /// Messages come by this connection from now on, and by no other.
    pub(super) fn on_msg_carrier(&mut self, ch: ChanId, number: u64) {
        let Some(peer) = self.channels.get(ch).map(|c| c.peer) else { return };
        let Some(p) = self.peers.get_mut(peer) else { return };
        if number == 0 {
            return self.violation(ch, Status::invalid("MSG_CARRIER with the number 0"));
        }
        if number <= p.carriers.heard {
            // A later one was heard before.
            if let Some(c) = self.channels.get_mut(ch) {
                c.flow.stop();
            }
            return;
        }
        p.carriers.heard = number;
        for &other in &p.channels {
            if let Some(c) = self.channels.get_mut(other) {
                if other == ch { c.flow.go_on() } else { c.flow.stop() }
            }
        }
    }
}
