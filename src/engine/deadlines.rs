//! Deadlines of requests: a hierarchical timing wheel (Varghese and Lauck, 1987). Setting and removing one cost the
//! same however many there are, and looking costs what is due. A deadline is found up to a millisecond late.

use std::marker::PhantomData;

use super::list::{Links, List};
use super::slab::Slab;

/// Nanoseconds of a tick, by shifting.
const TICK: u32 = 20;
/// Each level has as many slots, each as long as the level below it.
const SLOTS: usize = 64;
const BITS: u32 = SLOTS.trailing_zeros();
/// The last reaches over some weeks; what is later is looked at then.
const LEVELS: usize = 5;
/// How far ahead it tells times apart: to the slot before the present one of the last level.
const REACH: u64 = (SLOTS as u64 - 1) << (BITS * (LEVELS as u32 - 1));

/// A request's place in the wheel.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timer {
    pub links: Links,
    /// Level and slot, if it is in the wheel.
    place: Option<(u8, u8)>,
}

/// What has a deadline keeps its timer.
pub(super) trait Timed {
    /// It.
    fn timer(&mut self) -> &mut Timer;
}

/// Where the links of a timer are.
fn links<T: Timed>(of: &mut T) -> &mut Links {
    &mut of.timer().links
}

/// See the module's text.
pub(super) struct Deadlines<T> {
    of: PhantomData<T>,
    /// All that was due before this tick was taken out.
    now: u64,
    slots: Box<[[List; SLOTS]; LEVELS]>,
    /// Slots of each level that are not empty, by bit.
    occupied: [u64; LEVELS],
}

impl<T: Timed> Deadlines<T> {
    /// No deadlines.
    pub fn new() -> Deadlines<T> {
        let slots = Box::new([[List::default(); SLOTS]; LEVELS]);
        Deadlines { of: PhantomData, now: 0, slots, occupied: [0; LEVELS] }
    }

    /// Sets the first deadline of one that has none.
    #[inline]
    pub fn add(&mut self, slab: &mut Slab<T>, index: u32, at: u64) {
        if at < u64::MAX {
            self.insert(slab, index, (at >> TICK) + 1);
        }
    }

    /// Sets a deadline, nanoseconds; `u64::MAX`: none.
    pub fn set(&mut self, slab: &mut Slab<T>, index: u32, at: u64) {
        if let Some(timer) = slab.get_mut(index).map(T::timer) {
            let timer = std::mem::take(timer);
            self.remove(slab, index, timer);
            if at < u64::MAX {
                self.insert(slab, index, (at >> TICK) + 1);
            }
        }
    }

    fn insert(&mut self, slab: &mut Slab<T>, index: u32, tick: u64) {
        let tick = tick.clamp(self.now, self.now + REACH);
        // The highest digit in which it differs from now.
        let differs = (self.now ^ tick) | (SLOTS as u64 - 1);
        let level = ((u64::BITS - 1 - differs.leading_zeros()) / BITS).min(LEVELS as u32 - 1);
        let slot = (tick >> (level * BITS)) as usize % SLOTS;
        let level = level as usize;
        self.slots[level][slot].push(slab, links, index);
        self.occupied[level] |= 1 << slot;
        if let Some(timer) = slab.get_mut(index).map(T::timer) {
            timer.place = Some((level as u8, slot as u8));
        }
    }

    /// Takes a request out whose timer was this; it may have left the slab.
    #[inline]
    pub fn remove(&mut self, slab: &mut Slab<T>, index: u32, timer: Timer) {
        let Some((level, slot)) = timer.place else { return };
        let (level, slot) = (usize::from(level), usize::from(slot));
        let list = &mut self.slots[level][slot];
        list.remove(slab, links, index, timer.links);
        if list.is_empty() {
            self.occupied[level] &= !(1 << slot);
        }
    }

    /// The first slot that is not empty, and the tick at which it begins.
    fn first(&self) -> Option<(usize, usize, u64)> {
        // Whatever is in a level is due before all of the levels above.
        let level = self.occupied.iter().position(|&o| o != 0)?;
        let shift = BITS * level as u32;
        let here = (self.now >> shift) as usize % SLOTS;
        let ahead = self.occupied[level].rotate_right(here as u32).trailing_zeros() as usize;
        let at = ((self.now >> shift) + ahead as u64) << shift;
        Some((level, (here + ahead) % SLOTS, at.max(self.now)))
    }

    /// When to look next, nanoseconds; `u64::MAX`: there is none.
    pub fn next(&self) -> u64 {
        self.first().map_or(u64::MAX, |(_, _, tick)| tick << TICK)
    }

    /// Takes out one request whose deadline has passed.
    pub fn pop(&mut self, slab: &mut Slab<T>, now: u64, deadline: fn(&T) -> u64) -> Option<u32> {
        let tick = now >> TICK;
        while let Some((level, slot, at)) = self.first() {
            if at > tick {
                break;
            }
            self.now = at;
            // The whole of a longer slot, or what is left of it would be behind what lies in shorter ones.
            while let Some(index) = self.slots[level][slot].first() {
                let timer = slab.get_mut(index).map(T::timer).map(std::mem::take)?;
                self.remove(slab, index, timer);
                let due = slab.get(index).map(deadline)?;
                if level == 0 && due <= now {
                    return Some(index);
                }
                self.insert(slab, index, (due >> TICK) + 1);
            }
        }
        self.now = self.now.max(tick);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Request {
        deadline: u64,
        timer: Timer,
    }

    impl Timed for Request {
        fn timer(&mut self) -> &mut Timer {
            &mut self.timer
        }
    }

    fn deadlines() -> Deadlines<Request> {
        Deadlines::new()
    }

    fn add(d: &mut Deadlines<Request>, slab: &mut Slab<Request>, deadline: u64) -> u32 {
        let index = slab.insert(Request { deadline, timer: Timer::default() }).ok().unwrap();
        d.add(slab, index, deadline);
        index
    }

    #[test]
    fn every_deadline_is_found_once_in_time() {
        let mut state = 7u64;
        let mut random = move |bits: u32| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> (64 - bits)
        };
        for round in 0..200 {
            let (mut d, mut slab) = (deadlines(), Slab::default());
            let mut now = random(40);
            assert!(d.pop(&mut slab, now, |r| r.deadline).is_none());
            let mut waiting = std::collections::BTreeMap::new();
            for _ in 0..300 {
                match random(3) {
                    0..4 => {
                        let bits = 10 + random(5) as u32;
                        let at = if random(6) == 0 { u64::MAX } else { now + random(bits) };
                        waiting.insert(add(&mut d, &mut slab, at), at);
                    }
                    4 => {
                        if let Some(&index) = waiting.keys().nth(random(6) as usize) {
                            waiting.remove(&index);
                            let gone = slab.remove(index).unwrap();
                            d.remove(&mut slab, index, gone.timer);
                        }
                    }
                    5 => {
                        if let Some((&index, at)) = waiting.iter_mut().nth(random(6) as usize) {
                            *at = now + random(30);
                            slab.get_mut(index).unwrap().deadline = *at;
                            d.set(&mut slab, index, *at);
                        }
                    }
                    _ => {
                        // Never later than what is due first.
                        let first = waiting.values().min().copied().unwrap_or(u64::MAX);
                        assert!(first == u64::MAX || d.next() <= first + (2 << TICK));
                        let bits = 10 + random(5) as u32;
                        now += random(bits);
                        while let Some(index) = d.pop(&mut slab, now, |r| r.deadline) {
                            let at = waiting.remove(&index).expect("found once");
                            assert!(at <= now, "round {round}: too early");
                            slab.remove(index);
                        }
                        let late =
                            waiting.values().find(|&&at| at.saturating_add(1 << TICK) <= now);
                        assert_eq!(late, None, "round {round}: missed at {now}");
                    }
                }
            }
        }
    }

    #[test]
    fn nothing_is_due_in_an_empty_one() {
        let (mut d, mut slab) = (deadlines(), Slab::default());
        assert_eq!(d.next(), u64::MAX);
        let index = add(&mut d, &mut slab, u64::MAX);
        assert_eq!(d.next(), u64::MAX);
        assert!(d.pop(&mut slab, u64::MAX - 1, |r| r.deadline).is_none());
        d.set(&mut slab, index, 5);
        assert_eq!(d.pop(&mut slab, u64::MAX - 1, |r| r.deadline), None, "its own word counts");
    }
}
