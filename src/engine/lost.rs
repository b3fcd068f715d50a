//! Connections that ended at one end alone.
//!
//! The network may tell one end that a connection is over (a reset, an address that is gone) and the other one nothing. That end dials anew
//! and asks at once; the other one has two connections then, and what it sends by the older one is lost. So an end names what it
//! has lost to the peer, on the connections that are left and on those that come, before anything else (CONNECTION_LOST): the
//! other end ends them at once. One that the peer has ended itself is not named: to write to it by another that it is about to end, too, might
//! cost what comes by that. The names come of the handshake, which no third one has seen the secret or the nonces of.

use super::channel::ChanId;
use super::{Engine, Fx};
use crate::limits::CHANNELS_PER_PEER;
use crate::protocol::message::{Message, NAME, Nonce};
use crate::status::Status;

/// The last connections to a peer that ended here: the peer has no more of them than this.
#[derive(Debug, Default)]
pub(super) struct LostNames {
    names: [[u8; NAME]; CHANNELS_PER_PEER],
    /// How many there were.
    count: usize,
}

impl LostNames {
    pub(super) fn add(&mut self, name: Nonce) {
        self.names[self.count % CHANNELS_PER_PEER] = name;
        self.count += 1;
    }

    fn names(&self) -> &[[u8; NAME]] {
        &self.names[..self.count.min(CHANNELS_PER_PEER)]
    }
}

impl Engine {
    /// The name of a connection, which both ends drew in the handshake. Between `channel_new` and `channel_open`.
    pub fn channel_name(&mut self, ch: ChanId, name: [u8; NAME]) {
        if let Some(c) = self.channels.get_mut(ch) {
            c.nonce = Some(name);
        }
    }

    /// Tells the peer on this connection which ones have ended here: it may not have heard of it.
    pub(super) fn tell_lost(&mut self, fx: &mut impl Fx, ch: ChanId) {
        let peer = self.channels.get(ch).and_then(|c| self.peers.get(c.peer));
        let Some(p) = peer.filter(|p| !p.lost.names().is_empty()) else { return };
        let mut all = [0; CHANNELS_PER_PEER * NAME];
        let names = p.lost.names().as_flattened();
        let all = &mut all[..names.len()];
        all.copy_from_slice(names);
        self.send(fx, ch, &Message::Lost { names: all }, all);
    }

    /// The peer has these connections no longer: what would be sent by them would be lost.
    pub(super) fn on_lost(&mut self, fx: &mut impl Fx, ch: ChanId, names: &[u8]) {
        let Some(peer) = self.channels.get(ch).map(|c| c.peer) else { return };
        let (names, _) = names.as_chunks::<NAME>();
        for name in names {
            let others = self.peers.get(peer).map(|p| p.channels.clone()).unwrap_or_default();
            let named =
                |ch: &ChanId| self.channels.get(*ch).is_some_and(|c| c.nonce == Some(*name));
            if let Some(other) = others.into_iter().filter(|&o| o != ch).find(named) {
                if let Some(c) = self.channels.get_mut(other) {
                    c.nonce = None;
                }
                let text = "the peer has lost this connection, and says so on another";
                self.channel_down(fx, other, Status::gone(text));
            }
        }
    }
}
