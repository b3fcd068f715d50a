//! What the application is told beside the ends of its operations: a peer's request that it was asked
//! to answer ended early; a peer came or went.

use std::collections::VecDeque;
use std::sync::Arc;

use foldhash::HashMap;

use super::{Engine, Fx, Held, Retained, Work};
use crate::name::Name;
use crate::room::Grows;
use crate::status::Status;

/// A request that the source callback was given has ended unanswered: its response id, and why.
pub type EndedFn = Arc<dyn Fn(u64, &Status) + Send + Sync>;
/// A peer came (`None`), or went and why.
pub type PeerFn = Arc<dyn Fn(&str, Option<&Status>) + Send + Sync>;

/// The application's functions; none by default.
#[derive(Clone, Default)]
pub struct Hooks {
    /// Told of requests that ended early.
    pub ended: Option<EndedFn>,
    /// Told of peers that come and go.
    pub peer: Option<PeerFn>,
}

/// What waits to be told.
#[derive(Default)]
pub(super) struct Notices {
    /// Responses whose source callback has not returned, and how those ended that ended meanwhile.
    asking: HashMap<u64, Option<Status>>,
    peers: VecDeque<(Name, Option<Status>)>,
    /// Somebody is telling of peers, or is about to.
    telling: bool,
}

impl Notices {
    /// Whether there is room for the answers of so many more.
    pub fn fits(&mut self, asked: usize) -> bool {
        self.asking.fits(asked.saturating_sub(self.asking.len()))
    }

    /// Room for the events of so many peers: none has more than two here.
    pub fn fits_peers(&mut self, peers: usize) -> bool {
        self.peers.fits((2 * peers).saturating_sub(self.peers.len()))
    }
}

impl Engine {
    /// The application has named this peer, by its address.
    pub fn keep_peer(&mut self, peer: u32) {
        self.peers.keep(peer);
    }

    /// Another name for this worker.
    pub fn rename(&mut self, name: &str) {
        self.name = name.into();
        self.stats.rename(name);
    }

    /// Sets the application's functions.
    pub fn set_hooks(&mut self, hooks: Hooks) {
        self.hooks = hooks;
    }

    /// The source callback is about to be given this response.
    pub(super) fn source_asked(&mut self, id: u64) {
        if self.hooks.ended.is_some() {
            self.notices.asking.insert(id, None);
        }
    }

    /// It has returned. Only now may it hear that the request is over, so that it never does so
    /// before it knows the request.
    pub fn source_returned(&mut self, fx: &mut impl Fx, id: u64) {
        if let Some(Some(status)) = self.notices.asking.remove(&id) {
            self.tell_ended(fx, id, status);
        }
    }

    /// A request that the application was asked for has ended, not by its answer.
    pub(super) fn ended_early(&mut self, fx: &mut impl Fx, id: u64, status: &Status) {
        if self.hooks.ended.is_none() {
            return;
        }
        match self.notices.asking.get_mut(&id) {
            Some(meanwhile) => *meanwhile = Some(status.clone()),
            None => self.tell_ended(fx, id, status.clone()),
        }
    }

    fn tell_ended(&mut self, fx: &mut impl Fx, id: u64, status: Status) {
        if let Some(ended) = self.hooks.ended.clone() {
            fx.run(Work::Call(Box::new(move || ended(id, &status))));
        }
    }

    /// A peer came, or went.
    pub(super) fn peer_changed(&mut self, fx: &mut impl Fx, peer: u32, gone: Option<Status>) {
        if self.hooks.peer.is_none() {
            return;
        }
        let name = self.peer_name(Some(peer));
        let earlier = self.notices.peers.iter().rposition(|(told, _)| *told == name);
        if let Some(at) = earlier
            && gone.is_some()
            && self.notices.peers[at].1.is_none()
        {
            // It went before anybody was told that it came: so no peer has more than two events here.
            self.notices.peers.remove(at);
            return;
        }
        self.notices.peers.push_back((name, gone));
        if !std::mem::replace(&mut self.notices.telling, true) {
            fx.run(Work::PeerEvents);
        }
    }

    /// The next event of a peer, and whom to tell. One thread at a time asks, until there is none:
    /// so the events come in their order.
    pub fn next_peer_event(&mut self) -> Option<(PeerFn, Name, Option<Status>)> {
        let event = self.notices.peers.pop_front();
        match (event, &self.hooks.peer) {
            (Some((name, gone)), Some(tell)) => Some((tell.clone(), name, gone)),
            _ => {
                self.notices.telling = false;
                None
            }
        }
    }

    /// Operations of this peer, or of all and of no peer, that were accepted and have not ended; what
    /// peers ask for is theirs, until it is answered.
    pub fn under_way_with(&self, peer: Option<u32>) -> usize {
        let of = |p: Option<u32>| peer.is_none() || peer == p;
        let receives = self.requests.iter().filter(|(_, r)| of(r.peer)).count();
        let sends = self.responses.iter().filter(|(_, r)| of(Some(r.peer)) && r.is_sending());
        let posted = self.channels.iter().filter(|(_, c)| of(Some(c.peer)) && c.waits());
        let (offered, lent) = match peer {
            None => (self.table.counts().0, self.lent()),
            Some(_) => (0, 0),
        };
        let front = self.messages.under_way(peer) + self.pairs.under_way(peer);
        receives + sends.count() + posted.count() + offered + lent + front
    }

    /// Sends of this manager to itself whose tensor the receiver has, and not let go of: they have not ended.
    pub fn lent(&self) -> usize {
        let lends = |kept: &&Retained| matches!(kept, Retained::Ended(Held::Source(Some(_), _)));
        self.kept.values().filter(lends).count()
    }
}
