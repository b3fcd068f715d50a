//! The endpoints that a manager has, from when a handshake makes them to when they are destroyed: at first they are nobody's,
//! then a channel's, at last they wait to be destroyed.

use std::os::fd::OwnedFd;

use foldhash::HashMap;

use super::doubt::{Doubt, Waiting};
use super::early::Fresh;
use super::endpoints::Endpoints;
use super::memory::Adapters;
use super::near::Near;
use crate::engine::ChanId;
use crate::fabric::{EpId, Event, ProviderKind};
use crate::limits::EARLY_BYTES_ALL;
use crate::local_fd::Local;
use crate::room::Grows;

/// An endpoint of some adapter.
pub type EpKey = (ProviderKind, EpId);

/// A channel's connection: its endpoint, and what belongs to that.
pub struct Connection {
    /// The endpoint.
    pub ep: EpKey,
    /// Its end tells that the peer is gone; not for tcp, whose endpoint tells itself.
    pub alive: Option<Local<OwnedFd>>,
    /// Its peer's device refused something, and the peer was not heard since.
    pub doubt: Doubt,
}

/// All endpoints, each in one of three states, and the way from a channel to its endpoint and back.
pub struct Connections {
    by_channel: HashMap<ChanId, Connection>,
    by_endpoint: HashMap<EpKey, ChanId>,
    /// Some of both.
    near: Near,
    /// How many endpoints each adapter has.
    endpoints: Endpoints,
    /// So many channels at most are in doubt.
    doubts: usize,
    /// Endpoints that are not channels yet.
    fresh: HashMap<EpKey, Fresh>,
    /// Endpoints to be destroyed once no view is held.
    dying: Vec<EpKey>,
}

impl Connections {
    /// None, of these adapters.
    pub fn new(adapters: &Adapters) -> Connections {
        Connections {
            by_channel: HashMap::default(),
            by_endpoint: HashMap::default(),
            near: Near::default(),
            endpoints: Endpoints::new(adapters),
            doubts: 0,
            fresh: HashMap::default(),
            dying: Vec::new(),
        }
    }

    /// How many endpoints there are, and of which adapters.
    #[inline(always)]
    pub fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// All that one more endpoint will need here: nothing that follows lacks it.
    pub fn has_room(&mut self) -> bool {
        let fresh = self.fresh.len() + 1;
        let ends = self.by_channel.len() + fresh;
        self.fresh.fits(1)
            && self.by_channel.fits(fresh)
            && self.by_endpoint.fits(fresh)
            && self.dying.fits(ends)
    }

    /// An endpoint was made; after [`has_room`](Self::has_room).
    pub fn begin(&mut self, key: EpKey) {
        self.fresh.insert(key, Fresh::default());
        self.endpoints.add(key.0);
    }

    /// What came for an endpoint that is no channel yet.
    pub fn fresh(&self, key: EpKey) -> Option<&Fresh> {
        self.fresh.get(&key)
    }

    /// Keeps an event of such an endpoint.
    pub fn keep_early(&mut self, key: EpKey, event: Event) {
        // Handshakes are few: their number is bounded.
        let used: usize = self.fresh.values().map(|f| f.bytes).sum();
        if let Some(fresh) = self.fresh.get_mut(&key) {
            fresh.keep(event, EARLY_BYTES_ALL.saturating_sub(used));
        }
    }

    /// The endpoint becomes a channel, or is given up: what came for it before.
    pub fn take_fresh(&mut self, key: EpKey) -> Fresh {
        self.fresh.remove(&key).unwrap_or_default()
    }

    /// It is a channel from now on.
    pub fn link(&mut self, ch: ChanId, connection: Connection) {
        self.by_endpoint.insert(connection.ep, ch);
        self.by_channel.insert(ch, connection);
    }

    /// It becomes no channel.
    pub fn give_up(&mut self, key: EpKey) {
        self.fresh.remove(&key);
        self.dying.push(key);
    }

    /// The same of all that are none yet.
    pub fn give_up_fresh(&mut self) {
        self.dying.extend(self.fresh.drain().map(|(key, _)| key));
    }

    /// A channel has ended, and its endpoint waits to be destroyed.
    pub fn end(&mut self, ch: ChanId) -> Option<Connection> {
        let connection = self.by_channel.remove(&ch)?;
        self.by_endpoint.remove(&connection.ep);
        self.near.forget(ch, connection.ep);
        self.dying.push(connection.ep);
        Some(connection)
    }

    /// Whether endpoints wait to be destroyed.
    #[inline(always)]
    pub fn has_dying(&self) -> bool {
        !self.dying.is_empty()
    }

    /// One that is to be destroyed now.
    pub fn next_dying(&mut self) -> Option<EpKey> {
        let key = self.dying.pop()?;
        self.endpoints.remove(key.0);
        Some(key)
    }

    /// A channel's connection.
    #[inline]
    pub fn get(&self, ch: ChanId) -> Option<&Connection> {
        self.by_channel.get(&ch)
    }

    /// The same, to change it.
    #[inline]
    pub fn get_mut(&mut self, ch: ChanId) -> Option<&mut Connection> {
        self.by_channel.get_mut(&ch)
    }

    /// Those of all channels.
    pub fn iter(&self) -> impl Iterator<Item = (ChanId, &Connection)> {
        self.by_channel.iter().map(|(&ch, connection)| (ch, connection))
    }

    /// A channel's endpoint.
    #[inline(always)]
    pub fn endpoint(&mut self, ch: ChanId) -> Option<EpKey> {
        match self.near.endpoint(ch) {
            Some(key) => Some(key),
            None => self.find_endpoint(ch),
        }
    }

    #[cold]
    fn find_endpoint(&mut self, ch: ChanId) -> Option<EpKey> {
        let key = self.by_channel.get(&ch)?.ep;
        self.near.learn(ch, key);
        Some(key)
    }

    /// An endpoint's channel, if it is one already.
    #[inline(always)]
    pub fn channel(&mut self, ep: EpKey) -> Option<ChanId> {
        self.near.channel(ep).or_else(|| self.find_channel(ep))
    }

    #[cold]
    fn find_channel(&mut self, ep: EpKey) -> Option<ChanId> {
        let &ch = self.by_endpoint.get(&ep)?;
        self.near.learn(ch, ep);
        Some(ch)
    }

    /// Whether channels may be in doubt.
    #[inline(always)]
    pub fn has_doubts(&self) -> bool {
        self.doubts > 0
    }

    /// Whether this one is.
    #[inline(always)]
    pub fn in_doubt(&self, ch: ChanId) -> bool {
        self.has_doubts() && self.is_doubted(ch)
    }

    #[cold]
    fn is_doubted(&self, ch: ChanId) -> bool {
        self.by_channel.get(&ch).is_some_and(|c| c.doubt.until().is_some())
    }

    /// A channel's doubt, which begins if it has none and `begins` says so, and until when it lasts at most.
    pub fn doubt(
        &mut self,
        ch: ChanId,
        begins: impl FnOnce(&Connection) -> Option<u64>,
    ) -> Option<&mut Doubt> {
        let connection = self.by_channel.get_mut(&ch)?;
        if matches!(connection.doubt, Doubt::None)
            && let Some(until) = begins(connection)
        {
            connection.doubt = Doubt::Since(until, Waiting::default());
            self.doubts += 1;
        }
        Some(&mut connection.doubt)
    }

    /// The channels that are in doubt now, each with its end, counted again.
    pub fn doubtful(&mut self) -> Vec<(ChanId, u64)> {
        let until = |(&ch, c): (&ChanId, &Connection)| Some((ch, c.doubt.until()?));
        let doubtful: Vec<_> = self.by_channel.iter().filter_map(until).collect();
        self.doubts = doubtful.len();
        doubtful
    }

    /// Checks that both ways lead to each other; how many endpoints are known here.
    #[cfg(test)]
    pub fn check(&self) -> usize {
        let (channels, endpoints) = (self.by_channel.len(), self.by_endpoint.len());
        assert_eq!(endpoints, channels, "channels by endpoint, and by number");
        for (ch, connection) in &self.by_channel {
            assert_eq!(self.by_endpoint.get(&connection.ep), Some(ch));
        }
        channels + self.fresh.len() + self.dying.len()
    }
}
