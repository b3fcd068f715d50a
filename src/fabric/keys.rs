//! Keys of memory that one region covers, or several that follow each other: a device may limit the
//! length of a region, and an allocator hands out ranges that adjoin. A manager that uses several devices has
//! registered its memory with each of them, and says the keys for all to a peer that it has connections over them to.

use super::Remote;

/// Keys of a range of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys<K> {
    first: K,
    /// Where each further region begins, as an offset into the range, ascending; and its key.
    rest: Vec<(u64, K)>,
}

impl<K: Copy> Keys<K> {
    /// One region covers the range.
    pub fn one(key: K) -> Keys<K> {
        Keys { first: key, rest: Vec::new() }
    }

    /// Whether so many further regions fit in.
    pub fn fits(&mut self, more: usize) -> bool {
        self.rest.try_reserve_exact(more).is_ok()
    }

    /// From this offset on another region covers it. False, and nothing changes, unless the offset
    /// is behind all others.
    #[must_use]
    pub fn push(&mut self, at: u64, key: K) -> bool {
        let ascends = at > self.rest.last().map_or(0, |l| l.0);
        if ascends {
            self.rest.push((at, key));
        }
        ascends
    }

    /// Key at the beginning.
    pub fn first(&self) -> K {
        self.first
    }
    /// The further regions: where each begins, and its key.
    pub fn rest(&self) -> &[(u64, K)] {
        &self.rest
    }
    /// All keys.
    pub fn iter(&self) -> impl Iterator<Item = K> {
        std::iter::once(self.first).chain(self.rest.iter().map(|r| r.1))
    }

    /// Key at an offset, and the offset up to which it holds.
    pub fn at(&self, offset: u64) -> (K, u64) {
        let n = self.rest.partition_point(|r| r.0 <= offset);
        let key = if n == 0 { self.first } else { self.rest[n - 1].1 };
        (key, self.rest.get(n).map_or(u64::MAX, |r| r.0))
    }

    /// The same regions with other keys.
    pub fn map<L: Copy>(&self, f: impl Fn(K) -> L) -> Keys<L> {
        Keys { first: f(self.first), rest: self.rest.iter().map(|&(at, k)| (at, f(k))).collect() }
    }
}

/// Keys for a further device of the peer stand behind those for its first, as if the memory went on from its number times
/// two to this power: none is so long. Whoever goes over the first alone never looks there.
const DEVICE: u32 = 56;

/// Memory of the peer, with the keys of its regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Address in the peer's address space.
    pub addr: u64,
    /// The peer's keys for it.
    pub rkeys: Keys<u32>,
}

impl Place {
    /// What begins so many bytes behind it; with one region, where it lies in one.
    pub fn from(&self, offset: u64) -> Place {
        let mut rkeys = Keys::one(self.rkeys.at(offset).0);
        for &(at, key) in &self.rkeys.rest {
            let (device, within) = (at >> DEVICE << DEVICE, at & ((1 << DEVICE) - 1));
            let last = rkeys.rest.last_mut().filter(|last| last.0 == device);
            match last {
                // Those of a device follow each other: the last one that begins no later holds there.
                Some(last) if within <= offset => last.1 = key,
                None if within <= offset && device > 0 => rkeys.rest.push((device, key)),
                _ if within > offset => rkeys.rest.push((device | (within - offset), key)),
                _ => {}
            }
        }
        Place { addr: self.addr.wrapping_add(offset), rkeys }
    }

    /// A copy; `None` without memory for it.
    pub fn copied(&self) -> Option<Place> {
        let mut rkeys = Keys::one(self.rkeys.first);
        rkeys
            .fits(self.rkeys.rest.len())
            .then(|| rkeys.rest.extend_from_slice(&self.rkeys.rest))?;
        Some(Place { addr: self.addr, rkeys })
    }

    /// Adds the keys of the same regions for a further device, of which `on` knows each, in the order of the devices. It is
    /// left as it is if one is lacking, or if that would be more than `most` further regions.
    pub fn add_device<K: Copy>(
        &mut self,
        device: u8,
        keys: &Keys<K>,
        most: usize,
        on: impl Fn(K) -> Option<u32>,
    ) {
        let more = 1 + keys.rest.len();
        if self.rkeys.rest.len() + more > most || keys.iter().any(|key| on(key).is_none()) {
            return;
        }
        if !self.rkeys.fits(more) {
            return;
        }
        let base = u64::from(device) << DEVICE;
        let all = std::iter::once((0, keys.first)).chain(keys.rest.iter().copied());
        for (at, key) in all {
            let pushed = on(key).is_some_and(|key| self.rkeys.push(base | at, key));
            debug_assert!(pushed, "devices in order");
        }
    }

    /// The key at an offset for a device of the peer, 0 being the first; `None`: it is not registered there.
    pub fn key_on(&self, device: u8, offset: u64) -> Option<u32> {
        if device == 0 {
            return Some(self.rkeys.at(offset).0);
        }
        let base = u64::from(device) << DEVICE;
        let n = self.rkeys.rest.partition_point(|r| r.0 <= base | offset);
        self.rkeys.rest[..n].last().filter(|r| r.0 >= base).map(|r| r.1)
    }
}

/// A part of a transfer: one work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset into the transfer.
    pub at: u64,
    /// Length in bytes.
    pub len: u64,
    /// Local key.
    pub lkey: u32,
    /// The peer's memory.
    pub remote: Remote,
}

/// Splits a transfer of `total` bytes into pieces of at most `max` that lie in one region at both
/// ends each.
pub fn pieces<'a>(
    total: u64,
    max: u64,
    lkeys: &'a Keys<u32>,
    there: &'a Place,
) -> impl Iterator<Item = Piece> + Clone + 'a {
    pieces_at(total, max, (lkeys, 0), (there, 0))
}

/// The same of a part of memory, which begins at these offsets here and there.
pub fn pieces_at<'a>(
    total: u64,
    max: u64,
    (lkeys, from): (&'a Keys<u32>, u64),
    (there, to): (&'a Place, u64),
) -> impl Iterator<Item = Piece> + Clone + 'a {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= total {
            return None;
        }
        let (lkey, here_to) = lkeys.at(from + at);
        let (rkey, there_to) = there.rkeys.at(to + at);
        let end = total.min(at.saturating_add(max)).min(here_to - from).min(there_to - to);
        let remote = Remote { addr: there.addr.wrapping_add(to + at), rkey };
        let piece = Piece { at, len: end - at, lkey, remote };
        at = end;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(first: u32, rest: &[(u64, u32)]) -> Keys<u32> {
        let mut k = Keys::one(first);
        rest.iter().for_each(|&(at, key)| assert!(k.push(at, key)));
        k
    }

    #[test]
    fn borders_ascend() {
        let mut k = keys(1, &[(10, 2), (20, 3)]);
        assert!(!k.push(20, 4) && !k.push(5, 4) && !Keys::one(1).push(0, 2));
        assert_eq!(k, keys(1, &[(10, 2), (20, 3)]));
        assert_eq!([k.at(0), k.at(9), k.at(10)], [(1, 10), (1, 10), (2, 20)]);
        assert_eq!(k.at(u64::MAX), (3, u64::MAX));
        assert_eq!(k.iter().collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(k.map(|n| n + 1), keys(2, &[(10, 3), (20, 4)]));
    }

    #[test]
    fn a_place_begins_later_with_the_keys_that_hold_there() {
        let place = Place { addr: 100, rkeys: keys(1, &[(10, 2), (20, 3)]) };
        assert_eq!(place.from(0), place);
        assert_eq!(place.from(10), Place { addr: 110, rkeys: keys(2, &[(10, 3)]) });
        assert_eq!(place.from(25), Place { addr: 125, rkeys: keys(3, &[]) });
    }

    #[test]
    fn keys_of_further_devices_are_found_wherever_it_begins() {
        let mine = keys(1, &[(10, 2), (20, 3)]);
        let mut place = Place { addr: 100, rkeys: mine.clone() };
        assert_eq!(place.key_on(1, 0), None);
        place.add_device(1, &mine, 100, |key| Some(key + 100));
        place.add_device(2, &mine, 100, |key| (key != 2).then_some(key));
        place.add_device(3, &mine, 8, |key| Some(key + 300));
        place.add_device(4, &mine, 8, |key| Some(key + 400));
        assert_eq!(place.copied(), Some(place.clone()));
        assert_eq!(place.rkeys.rest().len(), 8, "one lacks a key, for one there is no room");
        for from in [0, 5, 10, 19, 20, 25] {
            let part = place.from(from);
            assert_eq!(part.addr, 100 + from);
            for at in [0, 1, 9, 10, 11, 30] {
                let here = mine.at(from + at).0;
                let on = [0, 1, 2, 3, 4].map(|device| part.key_on(device, at));
                let want = [Some(here), Some(here + 100), None, Some(here + 300), None];
                assert_eq!(on, want, "from {from}, at {at}");
                assert_eq!(part.from(at), place.from(from + at));
            }
            // Those of the first are as if there were no others.
            let alone = Place { addr: 100, rkeys: mine.clone() }.from(from);
            let of = |place: &Place| pieces(1000, 64, &Keys::one(0), place).collect::<Vec<_>>();
            assert_eq!(of(&part), of(&alone));
        }
    }

    /// Every byte goes once, with the keys that hold there, in pieces that are not too long.
    #[test]
    fn pieces_cover_everything_and_cross_no_border() {
        let layouts = [
            keys(1, &[]),
            keys(1, &[(1, 2)]),
            keys(1, &[(7, 2), (8, 3), (50, 4)]),
            keys(1, &[(30, 2), (60, 3), (90, 4), (1000, 5)]),
        ];
        for (here, there) in layouts.iter().flat_map(|a| layouts.iter().map(move |b| (a, b))) {
            for (total, max) in [(0, 9), (1, 9), (64, 64), (100, 7), (100, u64::MAX)] {
                let place = Place { addr: u64::MAX - 20, rkeys: there.clone() };
                // A part is as if the whole went, without what is before it.
                for from in [1, 7, 40] {
                    let whole = pieces_at(total + from, max, (here, 0), (&place, 0));
                    let part = pieces_at(total, u64::MAX, (here, from), (&place, from));
                    let ends = |p: Piece| (p.at + p.len, p.lkey, p.remote.rkey);
                    let borders: Vec<_> =
                        part.map(|p| ends(Piece { at: p.at + from, ..p })).collect();
                    let all: Vec<_> = whole.map(ends).collect();
                    assert!(
                        max < u64::MAX || borders.iter().all(|b| all.contains(b)),
                        "{borders:?}"
                    );
                }
                let mut next = 0;
                for p in pieces(total, max, here, &place) {
                    assert!(p.at == next && p.len > 0 && p.len <= max, "{p:?}");
                    assert_eq!(p.remote.addr, place.addr.wrapping_add(p.at));
                    for at in [p.at, p.at + p.len - 1] {
                        assert_eq!((p.lkey, p.remote.rkey), (here.at(at).0, there.at(at).0));
                    }
                    next += p.len;
                }
                assert_eq!(next, total);
            }
        }
    }
}
