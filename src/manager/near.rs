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
    /// A channel's endpoint; `look` asks the map.
    #[inline]
    pub fn endpoint(&mut self, ch: ChanId, look: impl FnOnce() -> Option<EpKey>) -> Option<EpKey> {
        let place = &mut self.eps[ch as usize % PLACES];
        if place.0 != u64::from(ch) {
            *place = (u64::from(ch), look()?);
        }
        Some(place.1)
    }

    /// An endpoint's channel.
    #[inline]
    pub fn channel(&mut self, ep: EpKey, look: impl FnOnce() -> Option<ChanId>) -> Option<ChanId> {
        let place = &mut self.chans[ep.1.0 as usize % PLACES];
        if place.0 != number(ep) {
            *place = (number(ep), look()?);
        }
        Some(place.1)
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
        assert_eq!(near.endpoint(7, || None), None, "what is not there is not kept");
        assert_eq!(near.endpoint(7, || Some(ep(1))), Some(ep(1)));
        assert_eq!(near.endpoint(7, || panic!("it is known")), Some(ep(1)));
        assert_eq!(near.channel(ep(1), || Some(7)), Some(7));
        // Another one in the same place, and the same number at another provider.
        let far = 7 + PLACES as u32;
        assert_eq!(near.endpoint(far, || Some(ep(2))), Some(ep(2)));
        assert_eq!(near.endpoint(7, || None), None);
        assert_eq!(near.channel((ProviderKind::Tcp, EpId(1)), || None), None);
        assert_eq!(near.channel(ep(1), || panic!("it is known")), Some(7));
        near.forget(7, ep(1));
        assert_eq!(near.channel(ep(1), || None), None);
    }
}
