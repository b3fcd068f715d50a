//! Messages for one incarnation of a peer alone, and of one alone: a process that has died and another that bears its name are two.
//!
//! A connection is to one incarnation, and all connections to a peer are to the same: a new one's comes after the last of the
//! earlier one's has ended. So what is checked before it goes out, or before it waits for a peer that is connected, meets nobody else. What
//! waits without a connection is looked at once more when one comes.
//!
//! A receive of one incarnation alone meets what that one has said, also after its end; it waits while that one is connected, and ends with
//! its last connection: what had been said by then has come before.

use super::{Memory, OnMessage, Op, Outgoing, Party, Receiving, State, Wanted};
use crate::api::incarnation_word;
use crate::engine::known::Peer;
use crate::engine::{Engine, Fx};
use crate::status::{Code, Reason, Status};

impl Engine {
    /// Begins to receive a message of one incarnation of a peer alone: see [`message_recv`](Self::message_recv).
    pub fn message_recv_of(
        &mut self,
        fx: &mut impl Fx,
        (wanted, incarnation): (Wanted, u64),
        memory: Memory,
        timeout: Option<u64>,
        done: OnMessage,
    ) -> Result<Receiving, Status> {
        self.may_receive(wanted.from, &memory)?;
        if wanted.from == Party::ANY {
            let text = "options.incarnation is given and source is RDMA_PEER_ANY, allowed is the peer whose incarnation it is";
            return Err(Status::invalid(text));
        }
        if let Some(found) = self.messages.unexpected.find_of(&wanted, incarnation) {
            return self.receive_found(fx, found, wanted, memory, timeout, done);
        }
        self.refuse_other(wanted.from, incarnation)?;
        if let Some(peer) = wanted.from.index() {
            self.refuse_gone(peer)?;
            self.peers.keep(peer);
        }
        let id = self.post_receive(fx, &wanted, &memory, timeout, done)?;
        if let Some((_, op)) = self.messages.ops.occupant_mut(id as u32) {
            op.incarnation = incarnation;
        }
        self.messages.bound = true;
        Ok(Receiving::Begun(id))
    }

    /// Whether nothing more comes of the incarnation of a peer that was connected last, unless it connects again.
    fn refuse_gone(&self, peer: u32) -> Result<(), Status> {
        let gone = |p: &&Peer| p.channels.is_empty() && p.incarnation != [0; 16];
        let Some(p) = self.peers.get(peer).filter(gone) else { return Ok(()) };
        let why = p.last_error.as_ref().map_or("it is not connected", |why| &why.message);
        Err(Status::gone(text!("{}: {why}", NoMore(&p.name))))
    }

    /// The last connection to a peer has ended: what is to be received from that incarnation alone will not come.
    pub(in crate::engine) fn fail_receives_of_gone(
        &mut self,
        fx: &mut impl Fx,
        peer: u32,
        status: &Status,
    ) {
        let last = |p: &&Peer| p.channels.is_empty() && !self.closing;
        let Some(p) = self.peers.get(peer).filter(last) else { return };
        let name = p.name.clone();
        // However it ended: what the application asks for is whether the peer is there.
        let gone =
            || Status::gone(text!("{}: {}", NoMore(&name), status.message)).because(status.reason);
        self.fail_bound_receives(fx, peer, |_| true, gone);
    }

    /// Ends the receives that wait for such an incarnation of a peer.
    fn fail_bound_receives(
        &mut self,
        fx: &mut impl Fx,
        peer: u32,
        which: impl Fn(u64) -> bool,
        why: impl FnOnce() -> Status,
    ) {
        if !self.messages.bound {
            return;
        }
        // All share its text.
        let why = why();
        let from = Party::peer(peer);
        let waits = |op: &Op| {
            let bound = op.incarnation != 0 && op.wanted.from == from;
            bound && matches!(op.state, State::Posted) && which(op.incarnation)
        };
        let mut at = 0;
        while let Some(index) = self.messages.ops.next(&mut at, waits) {
            self.give_up_message(fx, index, why.clone());
        }
    }

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
        self.fail_bound_receives(fx, peer, |of| of != now, || restarted(&name));
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
        let gone = || Status::gone(text!("{}: {}", NoMore(&name), status.message));
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

/// What the end of a receive says of its peer, of this name.
struct NoMore<'a>(&'a str);

impl std::fmt::Display for NoMore<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let NoMore(name) = self;
        write!(f, "peer '{name}' is gone, the incarnation that options.incarnation names")
    }
}

#[cold]
fn restarted(name: &str) -> Status {
    let text = text!(
        "peer '{name}' has restarted: the incarnation that options.incarnation names is another"
    );
    Status::new(Code::Unavailable, text).because(Reason::PeerRestarted)
}
