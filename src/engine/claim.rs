//! Whose a name is, when a second process claims it.
//!
//! Without a secret a name proves nothing: a claim alone must not end a channel that lives. A peer that
//! has really restarted left a dead channel behind, and that is found out: its socket has ended, or its
//! host does not acknowledge a PING, or it does not answer one until it counts as stalled.

use super::{Engine, Fx};
use crate::engine::channel::ChanId;
use crate::protocol::message::Message;
use crate::status::Status;

/// An answer to a PING holds so long: a crowd of claims costs the peer ten messages a second.
const ANSWER_HOLDS: u64 = 100_000_000;

/// What a new incarnation of a name may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Nobody of this name is connected with another incarnation.
    Free,
    /// Somebody is, and was asked for a sign of life; ask again.
    Probing,
    /// Somebody is, and answers.
    Living,
}

/// A channel was asked for a sign of life.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    heard: u64,
    mark: u64,
    answered: Option<u64>,
}

impl Engine {
    /// Whether a channel of this peer is there that another incarnation made.
    pub fn contested(&self, peer: u32, incarnation: &[u8; 16]) -> bool {
        let known = self.peer(peer);
        known.is_some_and(|p| !p.channels.is_empty() && p.incarnation != *incarnation)
    }

    /// A process of another incarnation claims this name: asks those that have it whether they live.
    pub fn claim(&mut self, fx: &mut impl Fx, name: &str, incarnation: &[u8; 16]) -> Claim {
        let Some(peer) = self.find_peer(name) else { return Claim::Free };
        if !self.contested(peer, incarnation) {
            return Claim::Free;
        }
        let mut lives = false;
        let channels = self.peer(peer).map(|p| p.channels.clone());
        for ch in channels.into_iter().flatten() {
            lives |= self.probe(fx, ch);
        }
        match (self.contested(peer, incarnation), lives) {
            (false, _) => Claim::Free,
            (true, true) => Claim::Living,
            (true, false) => Claim::Probing,
        }
    }

    /// Whether the channel has answered since it was first asked.
    fn probe(&mut self, fx: &mut impl Fx, ch: ChanId) -> bool {
        let (now, mark) = (fx.now(), fx.sign_of_life(ch));
        let Some(c) = self.channels.get_mut(ch) else { return false };
        if let Some(probe) = &mut c.probe {
            if c.heard != probe.heard || mark != probe.mark {
                probe.answered.get_or_insert(now);
            }
            match probe.answered {
                None => {
                    if fx.is_unreachable(ch) {
                        let text =
                            "the peer's host does not answer, and another process has its name";
                        self.channel_down(fx, ch, Status::gone(text));
                    }
                    return false;
                }
                Some(at) if now.saturating_sub(at) < ANSWER_HOLDS => return true,
                Some(_) => {}
            }
        }
        c.probe = Some(Probe { heard: c.heard, mark, answered: None });
        if c.pinged.is_none() {
            // The keep-alive takes it from here: unanswered, it ends the channel as stalled.
            c.pinged = Some(now);
            c.send(fx, &Message::Ping, &[]);
            self.settle(fx, ch);
        }
        false
    }
}
