//! The way from a channel to its endpoint and back, for the few that are used most: each message goes it, and a look into
//! a map costs as much as the rest of the way.

use crate::engine::ChanId;
use crate::fabric::{EpId, ProviderKind};

use super::world::EpKey;

/// Places; a power of two. Neighbours in number share none.
const PLACES: usize = 32;
/// No channel, and no endpoint of a provider.
const NOBODY: u64 = u64::MAX;

/// Remembers some of what the world's maps say. It may forget at any time, and never says what they do not.
pub struct Near {
    /// Endpoints by channel.
    eps: [(u64, EpKey); PLACES],
    /// Channels by endpoint.
    chans: [(u64, ChanId); PLACES],
}

impl Default for Near {
    fn default() -> Near {
        let nobody = (ProviderKind::Loopback, EpId(0));
        Near { eps: [(NOBODY, nobody); PLACES], chans: [(NOBODY, 0); PLACES] }
    }
}

fn number((kind, EpId(ep)): EpKey) -> u64 {
    (kind as u64) << 32 | u64::from(ep)
}

impl Near {
    /// A channel's endpoint, if it is remembered.
    #[inline]
    pub fn endpoint(&self, ch: ChanId) -> Option<EpKey> {
        let place = &self.eps[ch as usize % PLACES];
        (place.0 == u64::from(ch)).then_some(place.1)
    }

    /// An endpoint's channel.
    #[inline]
    pub fn channel(&self, ep: EpKey) -> Option<ChanId> {
        let place = &self.chans[ep.1.0 as usize % PLACES];
        (place.0 == number(ep)).then_some(place.1)
    }

    /// The maps say that they belong together.
    pub fn learn(&mut self, ch: ChanId, ep: EpKey) {
        self.eps[ch as usize % PLACES] = (u64::from(ch), ep);
        self.chans[ep.1.0 as usize % PLACES] = (number(ep), ch);
    }

    /// The maps say nothing of them any more.
    pub fn forget(&mut self, ch: ChanId, ep: EpKey) {
        self.eps[ch as usize % PLACES].0 = NOBODY;
        self.chans[ep.1.0 as usize % PLACES].0 = NOBODY;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_the_maps_say_and_forgets_what_they_forget() {
        let mut near = Near::default();
        let ep = |n| (ProviderKind::Shm, EpId(n));
        assert_eq!((near.endpoint(7), near.channel(ep(1))), (None, None));
        near.learn(7, ep(1));
        assert_eq!((near.endpoint(7), near.channel(ep(1))), (Some(ep(1)), Some(7)));
        // Another one in the same place, and the same number at another provider.
        let far = 7 + PLACES as u32;
        near.learn(far, ep(2));
        assert_eq!((near.endpoint(far), near.endpoint(7)), (Some(ep(2)), None));
        assert_eq!(near.channel((ProviderKind::Tcp, EpId(1))), None);
        assert_eq!(near.channel(ep(1)), Some(7));
        near.forget(7, ep(1));
        assert_eq!(near.channel(ep(1)), None);
    }
}
