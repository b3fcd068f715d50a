//! The responses that are under way on one channel, by the peer's index of its request.
//!
//! A peer counts its requests through few slots, so a small table by the lowest bits finds most of them; what collides
//! there, and whatever a peer makes up, is in a map.

use foldhash::HashMap;

use crate::room::Grows;

/// Places of the table.
const DIRECT: usize = 256;
/// No response has this index.
const NONE: u32 = u32::MAX;

/// A map from a peer's request to the response to it.
#[derive(Default)]
pub struct ResponseMap {
    /// Request and response at the request's lowest bits; made at the first use.
    direct: Vec<(u32, u32)>,
    more: HashMap<u32, u32>,
    len: usize,
}

impl ResponseMap {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The response to this request.
    #[inline]
    pub fn get(&self, request: u32) -> Option<u32> {
        match self.direct.get(request as usize % DIRECT) {
            Some(&(of, response)) if of == request && response != NONE => Some(response),
            _ if self.more.is_empty() => None,
            _ => self.more.get(&request).copied(),
        }
    }

    /// Whether the next place that this request takes needs no memory.
    #[inline]
    pub fn has_place(&self, request: u32) -> bool {
        self.direct.get(request as usize % DIRECT).is_some_and(|place| place.1 == NONE)
    }

    /// Takes one in that is not there; after [`Grows::fits`], or where it [has a place](Self::has_place).
    #[inline]
    pub fn insert(&mut self, request: u32, response: u32) {
        self.len += 1;
        match self.direct.get_mut(request as usize % DIRECT) {
            Some(place) if place.1 == NONE => *place = (request, response),
            _ => _ = self.more.insert(request, response),
        }
    }

    /// Takes one out.
    #[inline]
    pub fn remove(&mut self, request: u32) {
        let found = match self.direct.get_mut(request as usize % DIRECT) {
            Some(place) if place.0 == request && place.1 != NONE => {
                place.1 = NONE;
                true
            }
            _ => self.more.remove(&request).is_some(),
        };
        self.len -= usize::from(found);
    }

    /// All responses.
    pub fn responses(&self) -> impl Iterator<Item = u32> {
        let direct = self.direct.iter().map(|place| place.1).filter(|&response| response != NONE);
        direct.chain(self.more.values().copied())
    }
}

impl Grows for ResponseMap {
    fn fits(&mut self, more: usize) -> bool {
        if self.direct.is_empty() {
            if self.direct.try_reserve_exact(DIRECT).is_err() {
                return false;
            }
            self.direct.resize(DIRECT, (0, NONE));
        }
        self.more.fits(more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_a_map_would() {
        let (mut responses, mut map) = (ResponseMap::default(), std::collections::BTreeMap::new());
        let mut seed = 7u32;
        for i in 0..20_000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Few slots in several generations, so that they collide.
            let request = ((seed >> 8) % 300) | ((seed >> 28) << 20);
            assert_eq!(responses.get(request), map.get(&request).copied());
            if map.remove(&request).is_some() {
                responses.remove(request);
            } else {
                assert!(responses.fits(1));
                responses.insert(request, i);
                map.insert(request, i);
            }
            responses.remove(u32::MAX);
            assert_eq!(responses.is_empty(), map.is_empty());
        }
        let mut all: Vec<u32> = responses.responses().collect();
        let mut same: Vec<u32> = map.into_values().collect();
        all.sort_unstable();
        same.sort_unstable();
        assert_eq!(all, same);
        assert!(all.len() > 100 && !responses.more.is_empty());
    }
}
