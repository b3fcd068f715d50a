//! Messages for one incarnation of a peer alone: a process that has died and another that bears its name are two.
//!
//! A connection is to one incarnation, and all connections to a peer are to the same: a new one's comes after the last of the
//! earlier one's has ended. So what is checked before it goes out, or before it waits for a peer that is connected, meets nobody else. What
//! waits without a connection is looked at once more when one comes.

use super::{Outgoing, Party};
use crate::api::incarnation_word;
use crate::engine::known::Peer;
use crate::engine::{Engine, Fx};
use crate::status::{Code, Reason, Status};

impl Engine {
    /// Which incarnation of its name this manager is.
    pub fn set_incarnation(&mut self, incarnation: &[u8; 16]) {
        self.messages.own = incarnation_word(incarnation);
    }

    /// Whether a message is for another incarnation than the one that would get it.
    #[inline(always)]
    pub(super) fn is_other(&self, out: &Outgoing<'_>) -> bool {
        out.incarnation != 0 && self.other(out.to, out.incarnation).is_some()
    }

    /// The same, and what its send ends with.
    pub(super) fn refuse_other(&self, to: Party, incarnation: u64) -> Result<(), Status> {
        if incarnation == 0 {
            return Ok(());
        }
        self.other(to, incarnation).map_or(Ok(()), |name| Err(restarted(name)))
    }

    /// Whose name it is, if that is another incarnation than this one. A peer that was never connected may be any.
    #[inline(never)]
    fn other(&self, to: Party, incarnation: u64) -> Option<&str> {
        if to == Party::OWN {
            return (incarnation != self.messages.own).then_some(&*self.name);
        }
        let known = self.peers.get(to.index()?).filter(|p| p.incarnation != [0; 16])?;
        (incarnation_word(&known.incarnation) != incarnation).then_some(&*known.name)
    }

    /// A peer is another incarnation than before: messages that wait here and were not for this one fail. It has no connection yet.
    pub(in crate::engine) fn fail_for_earlier(
        &mut self,
        fx: &mut impl Fx,
        peer: u32,
        incarnation: &[u8; 16],
    ) {
        let now = incarnation_word(incarnation);
        let Some(name) = self.peers.get(peer).map(|p| p.name.clone()) else { return };
        self.fail_bound(fx, peer, |of| of != now, || restarted(&name));
    }

    /// Nobody listens any more where a peer did: messages for that incarnation, the last that was connected, will reach nobody. Those
    /// for whoever has the name wait on: another may begin.
    pub(in crate::engine) fn fail_for_gone(
        &mut self,
        fx: &mut impl Fx,
        peer: u32,
        status: &Status,
    ) {
        let known = |p: &&Peer| p.channels.is_empty() && p.incarnation != [0; 16];
        let Some(p) = self.peers.get(peer).filter(known) else { return };
        let (name, last) = (p.name.clone(), incarnation_word(&p.incarnation));
        let gone = || {
            let text = text!(
                "peer '{name}' is gone, the incarnation that options.incarnation names: {}",
                status.message
            );
            Status::gone(text)
        };
        self.fail_bound(fx, peer, |of| of == last, gone);
    }

    /// Ends the sends that wait for a peer and are for such an incarnation of it.
    fn fail_bound(
        &mut self,
        fx: &mut impl Fx,
        peer: u32,
        which: impl Fn(u64) -> bool,
        why: impl Fn() -> Status,
    ) {
        let mut at = self.peers.get(peer).and_then(|p| p.outbox.first());
        while let Some(index) = at {
            let Some(op) = self.messages.ops.get(index) else { return };
            let found = op.incarnation != 0 && which(op.incarnation);
            at = op.links.next();
            if found {
                self.withdraw_send(fx, index, why());
            }
        }
    }
}

#[cold]
fn restarted(name: &str) -> Status {
    let text = text!(
        "peer '{name}' has restarted: the incarnation that options.incarnation names is another"
    );
    Status::new(Code::Unavailable, text).because(Reason::PeerRestarted)
}
