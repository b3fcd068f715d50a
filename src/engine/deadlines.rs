//! Deadlines of requests: a hierarchical timing wheel (Varghese and Lauck, 1987). Setting one costs the same however many
//! there are, and looking costs what is due. A deadline is found up to a millisecond late.
//!
//! Nearly all requests end long before theirs, so one that ends leaves its timer where it is: whoever has its slot of the
//! slab next has that timer, too, which moves only to come earlier. One that goes off for nothing goes where it belongs by
//! then, or nowhere. So a request that comes and goes costs the wheel nothing.

use super::slab::{SLOT_MASK, Slab};

/// Nanoseconds of a tick, by shifting.
const TICK: u32 = 20;
/// Each level has as many slots, each as long as the level below it.
const SLOTS: usize = 64;
const BITS: u32 = SLOTS.trailing_zeros();
/// The last reaches over some weeks; what is later is looked at then.
const LEVELS: usize = 5;
/// How far ahead it tells times apart: to the slot before the present one of the last level.
const REACH: u64 = (SLOTS as u64 - 1) << (BITS * (LEVELS as u32 - 1));
/// Timers that go off for nothing in one look; for more the next comes soon.
const IN_VAIN: usize = 65_536;
/// No timer.
const NONE: u32 = u32::MAX;
/// Of a timer that is in no list.
const NEVER: u64 = u64::MAX;

/// The timer of a slot of the slab.
#[derive(Clone, Copy, Debug)]
struct Timer {
    /// It goes off at this tick.
    at: u64,
    prev: u32,
    next: u32,
    level: u8,
    slot: u8,
}

/// A timing wheel, which knows by its slot which request is due.
pub(super) struct Deadlines {
    /// All that was due before this tick was taken out.
    now: u64,
    timers: Vec<Timer>,
    /// The first timer of each list.
    slots: Box<[[u32; SLOTS]; LEVELS]>,
    /// Slots of each level that are not empty, by bit.
    occupied: [u64; LEVELS],
}

impl Deadlines {
    /// No deadlines.
    pub fn new() -> Deadlines {
        let slots = Box::new([[NONE; SLOTS]; LEVELS]);
        Deadlines { now: 0, timers: Vec::new(), slots, occupied: [0; LEVELS] }
    }

    /// Whether what has this index finds a timer: to be asked before there is such. No: memory lacks.
    #[inline]
    pub fn has_timer(&mut self, index: u32) -> bool {
        let slot = (index & SLOT_MASK) as usize;
        slot < self.timers.len() || self.make_timers(slot + 1)
    }

    #[cold]
    fn make_timers(&mut self, count: usize) -> bool {
        let room = self.timers.try_reserve(count - self.timers.len()).is_ok();
        if room {
            let none = Timer { at: NEVER, prev: NONE, next: NONE, level: 0, slot: 0 };
            self.timers.resize(count, none);
        }
        room
    }

    /// Sets the deadline of what has this index, nanoseconds; `u64::MAX`: none.
    #[inline]
    pub fn set(&mut self, index: u32, at: u64) {
        let (slot, tick) = (index & SLOT_MASK, (at >> TICK) + 1);
        // As a rule it goes off early enough, and when it does is set again.
        if at < u64::MAX && self.timers.get(slot as usize).is_some_and(|t| t.at > tick) {
            self.put(slot, tick);
        }
    }

    /// A timer is to go off then.
    fn put(&mut self, timer: u32, tick: u64) {
        self.take_out(timer);
        let at = tick.clamp(self.now, self.now + REACH);
        // The highest digit in which it differs from now.
        let differs = (self.now ^ at) | (SLOTS as u64 - 1);
        let level = ((u64::BITS - 1 - differs.leading_zeros()) / BITS).min(LEVELS as u32 - 1);
        let slot = (at >> (level * BITS)) as usize % SLOTS;
        let first = &mut self.slots[level as usize][slot];
        let next = std::mem::replace(first, timer);
        self.occupied[level as usize] |= 1 << slot;
        if let Some(t) = self.timers.get_mut(timer as usize) {
            *t = Timer { at, prev: NONE, next, level: level as u8, slot: slot as u8 };
        }
        if let Some(t) = self.timers.get_mut(next as usize) {
            t.prev = timer;
        }
    }

    /// A timer goes off no more.
    fn take_out(&mut self, timer: u32) {
        let Some(t) = self.timers.get_mut(timer as usize).filter(|t| t.at != NEVER) else { return };
        t.at = NEVER;
        let Timer { prev, next, level, slot, .. } = *t;
        if let Some(t) = self.timers.get_mut(next as usize) {
            t.prev = prev;
        }
        match self.timers.get_mut(prev as usize) {
            Some(t) => t.next = next,
            None => {
                self.slots[usize::from(level)][usize::from(slot)] = next;
                if next == NONE {
                    self.occupied[usize::from(level)] &= !(1 << slot);
                }
            }
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

    /// Finds one request whose deadline has passed; it has none any more.
    pub fn pop<T>(&mut self, slab: &Slab<T>, now: u64, deadline: fn(&T) -> u64) -> Option<u32> {
        let (tick, mut in_vain) = (now >> TICK, 0);
        while let Some((level, slot, at)) = self.first() {
            if at > tick {
                break;
            }
            self.now = at;
            // The whole of a longer slot, or what is left of it would be behind what lies in shorter ones.
            while self.slots[level][slot] != NONE {
                let timer = self.slots[level][slot];
                self.take_out(timer);
                // Whoever has it by now.
                let of = slab.occupant(timer).map(|(index, of)| (index, deadline(of)));
                match of {
                    Some((index, due)) if level == 0 && due <= now => return Some(index),
                    Some((_, due)) if due < u64::MAX => self.put(timer, (due >> TICK) + 1),
                    _ => {}
                }
                in_vain += 1;
                if in_vain == IN_VAIN && level == 0 {
                    return None;
                }
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
    }

    fn add(d: &mut Deadlines, slab: &mut Slab<Request>, deadline: u64) -> u32 {
        let index = slab.insert(Request { deadline }).ok().unwrap();
        assert!(d.has_timer(index));
        d.set(index, deadline);
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
            let (mut d, mut slab) = (Deadlines::new(), Slab::<Request>::default());
            let mut now = random(40);
            assert!(d.pop(&slab, now, |r| r.deadline).is_none());
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
                            slab.remove(index).unwrap();
                        }
                    }
                    5 => {
                        if let Some((&index, at)) = waiting.iter_mut().nth(random(6) as usize) {
                            *at = now + random(30);
                            slab.get_mut(index).unwrap().deadline = *at;
                            d.set(index, *at);
                        }
                    }
                    _ => {
                        // Never later than what is due first.
                        let first = waiting.values().min().copied().unwrap_or(u64::MAX);
                        assert!(first == u64::MAX || d.next() <= first + (2 << TICK));
                        let bits = 10 + random(5) as u32;
                        now += random(bits);
                        while let Some(index) = d.pop(&slab, now, |r| r.deadline) {
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
        let (mut d, mut slab) = (Deadlines::new(), Slab::<Request>::default());
        assert_eq!(d.next(), u64::MAX);
        let index = add(&mut d, &mut slab, u64::MAX);
        assert_eq!(d.next(), u64::MAX);
        assert!(d.pop(&slab, u64::MAX - 1, |r| r.deadline).is_none());
        d.set(index, 5);
        assert_eq!(d.pop(&slab, u64::MAX - 1, |r| r.deadline), None, "its own word counts");
    }

    #[test]
    fn what_comes_and_goes_leaves_one_timer_for_each_slot() {
        let (mut d, mut slab) = (Deadlines::new(), Slab::<Request>::default());
        for i in 0..10_000u64 {
            let index = add(&mut d, &mut slab, (1000 + i) << TICK);
            slab.remove(index);
        }
        assert!(d.timers.len() < 100, "{}", d.timers.len());
        // They go off, for nothing, and then there are none.
        assert!(d.next() <= 1001 << TICK);
        assert_eq!(d.pop(&slab, 20_000 << TICK, |r| r.deadline), None);
        assert_eq!(d.next(), u64::MAX);
        // One that is needed earlier than whoever had it before does.
        let late = add(&mut d, &mut slab, 90_000 << TICK);
        slab.remove(late);
        for _ in 0..200 {
            let index = add(&mut d, &mut slab, 30_000 << TICK);
            assert_eq!(d.pop(&slab, 30_001 << TICK, |r| r.deadline), Some(index));
            slab.remove(index);
        }
    }
}
