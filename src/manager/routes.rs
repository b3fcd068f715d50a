//! How each peer is reached: what is known of the way to it, and when to go it next.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use foldhash::HashMap;

use crate::bootstrap::{Backoff, PeerHello};
use crate::engine::ChanId;
use crate::room::{self, Grows};
use crate::status::Status;

/// Whoever waits for no longer than this is not worth another dial.
pub(super) const LAST_TRY: Duration = Duration::from_millis(10);
/// A peer that is told to connect at the same moment is left so long to dial by itself: no longer than who has no need of that would notice.
pub(super) const LEFT: Duration = Duration::from_millis(20);
/// Where both ends dial at once, the second connection comes no later than that after the first.
const CROSSING: Duration = Duration::from_secs(10);

/// How a peer is reached.
#[derive(Default)]
pub struct Route {
    /// Addresses, in the order in which they are tried: the best first, but behind those that there was no time for.
    pub addrs: Vec<SocketAddr>,
    /// They are what the peer said last of itself, and not given here.
    pub learned: bool,
    /// The text that was given.
    pub text: String,
    /// A connection is wanted.
    pub wanted: bool,
    /// The last dial heard what each later one would hear, too.
    pub refused: bool,
    /// So long a call waits for it: the pauses between its tries end before that.
    pub awaited: Option<Instant>,
    /// A dial is under way.
    pub dialing: bool,
    /// When the dial under way began.
    pub dialled: Option<Instant>,
    /// When a dial from here last led to a connection.
    pub met_at: Option<Instant>,
    /// When to dial next.
    pub next_try: Option<Instant>,
    /// That is so late because the peer is about to dial by itself. What wants a connection for another reason does not wait for it.
    pub left: bool,
    /// The peer introduced itself to a dial, and then the connection broke.
    pub broke: bool,
    /// Pauses between dials.
    pub backoff: Backoff,
    /// Why the present provider was chosen.
    pub reason: String,
    /// One more connection is to be dialled, for a rail of this channel; and that whose dial is under way.
    pub rail: Option<ChanId>,
    pub dialing_rail: Option<ChanId>,
}

impl Route {
    /// The application names the addresses. What is under way by earlier ones goes on: a dial, and those for rails.
    pub(super) fn give(&mut self, addrs: Vec<SocketAddr>, text: String) {
        (self.addrs, self.text, self.learned) = (addrs, text, false);
        (self.next_try, self.left) = (None, false);
        (self.broke, self.refused) = (false, false);
        self.backoff.reset();
    }

    /// It is wanted, and the peer is left until then to dial by itself, if no dial is under way or has failed.
    pub(super) fn leave_until(&mut self, at: Instant) {
        if self.wanted && !self.dialing {
            (self.next_try, self.left) = (Some(at), true);
        }
    }

    /// Until when the peer is left to dial by itself, where nobody needs it before.
    pub(super) fn left_until(&self) -> Option<Instant> {
        self.next_try.filter(|_| self.left)
    }

    /// A connection came; when its dial began.
    pub(super) fn arrived(
        &mut self,
        hello: &PeerHello,
        proved: bool,
        reason: String,
        address: String,
    ) -> Option<Instant> {
        (self.wanted, self.refused) = (false, false);
        self.broke = false;
        (self.next_try, self.left) = (None, false);
        self.backoff.reset();
        self.reason = reason;
        if self.learned || self.addrs.is_empty() {
            self.text = address;
            // Without the secret a stranger would choose whom this process connects to.
            if proved {
                (self.addrs, self.learned) = (hello.addrs.clone(), true);
            }
        }
        self.dialled.take()
    }

    /// A call waits for it so long.
    pub(super) fn await_until(&mut self, at: Instant) {
        self.awaited = self.awaited.max(Some(at));
    }

    /// When the next try is due. Where the pause would last longer than somebody waits for it, the tries come closer the less
    /// time is left: who has come meanwhile is met.
    pub(super) fn pause(&mut self, now: Instant) -> Instant {
        let next = now + self.backoff.pause(random());
        match self.awaited.map(|at| at.saturating_duration_since(now)) {
            Some(left) if left > LAST_TRY => next.min(now + left / 2),
            _ => next,
        }
    }

    /// Both ends may be dialling at once.
    pub(super) fn crosses(&self, now: Instant) -> bool {
        self.dialing || self.met_at.is_some_and(|at| now < at + CROSSING)
    }

    /// Nobody tries to connect, and nobody is about to.
    pub(super) fn is_over(&self) -> bool {
        !self.wanted && !self.dialing && self.next_try.is_none()
    }

    /// The next dial begins behind so many addresses, for which silent ones before them left no time.
    pub(super) fn put_last(&mut self, tried: usize) {
        let tried = tried.min(self.addrs.len());
        self.addrs.rotate_left(tried);
    }
}

/// The routes to all peers, by the engine's index.
#[derive(Default)]
pub struct Routes {
    by_peer: HashMap<u32, Route>,
    /// None has anything to be done before; `None`: none has.
    next: Option<Instant>,
}

impl Routes {
    /// Memory for one more, or why there is none.
    pub fn grow(&mut self) -> Result<(), Status> {
        room::grow(&mut self.by_peer, 1, "routes")
    }

    /// The same, without words.
    #[inline(always)]
    pub fn has_room(&mut self) -> bool {
        self.by_peer.fits(1)
    }

    /// That to this peer.
    pub fn get(&self, peer: u32) -> Option<&Route> {
        self.by_peer.get(&peer)
    }

    /// The same, to change it.
    pub fn get_mut(&mut self, peer: u32) -> Option<&mut Route> {
        self.by_peer.get_mut(&peer)
    }

    /// The same, which begins if it is not there.
    pub fn enter(&mut self, peer: u32) -> &mut Route {
        self.by_peer.entry(peer).or_default()
    }

    /// All of them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Route)> {
        self.by_peer.iter_mut().map(|(&peer, route)| (peer, route))
    }

    /// One that was made elsewhere.
    pub fn insert(&mut self, peer: u32, route: Route) {
        self.by_peer.insert(peer, route);
    }

    /// Forgets one.
    pub fn remove(&mut self, peer: u32) -> Option<Route> {
        self.by_peer.remove(&peer)
    }

    /// They are looked at then, if not before.
    pub fn try_at(&mut self, at: Instant) {
        self.next = Some(self.next.map_or(at, |earlier| earlier.min(at)));
    }

    /// When they are to be looked at next.
    #[inline(always)]
    pub fn next_try(&self) -> Option<Instant> {
        self.next
    }

    /// Whether they are to be looked at now, which whoever asks then does.
    pub fn are_due(&mut self, now: Instant) -> bool {
        self.next.take_if(|due| *due <= now).is_some()
    }
}

/// Random bits for pauses; nothing secret depends on them.
fn random() -> u64 {
    getrandom::u64().unwrap_or(0)
}
