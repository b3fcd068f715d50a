//! A table addressed by an index of 20 bits with a generation of 12.
//!
//! The index travels as the immediate of writes, so it stays below the reserved values, and a
//! late one of an earlier occupant does not match. Freed slots are reused in the order in which
//! they became free, which puts the most operations between two uses of one index.

const SLOT_BITS: u32 = 20;
pub(crate) const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;
// 0xFFE are the immediates of slots, 0xFFF would reach the reserved ones.
const GENERATIONS: u32 = 0xFFE;

/// Most occupants.
pub const CAPACITY: usize = 1 << SLOT_BITS;

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    /// The one that became free after this one, if it is free.
    next: u32,
    value: Option<T>,
}

/// The generation of a slot's next occupant.
#[inline]
fn later(generation: u32) -> u32 {
    if generation + 1 == GENERATIONS { 0 } else { generation + 1 }
}

/// A table of what comes and goes; each entry is found by its index and generation.
#[derive(Debug)]
pub struct Slab<T> {
    slots: Vec<Slot<T>>,
    /// Free ones, in a row from the first to the last.
    first_free: u32,
    last_free: u32,
    free: usize,
    len: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { slots: Vec::new(), first_free: 0, last_free: 0, free: 0, len: 0 }
    }
}

/// A slot for one value, which is made in its place: values are long, and are not to be moved there.
/// One that is not filled is the first that is free again.
pub struct Vacancy<'a, T> {
    index: u32,
    place: &'a mut Option<T>,
    len: &'a mut usize,
    next: &'a mut u32,
    first_free: &'a mut u32,
    last_free: &'a mut u32,
    free: &'a mut usize,
}

impl<T> Drop for Vacancy<'_, T> {
    #[cold]
    fn drop(&mut self) {
        let slot = self.index & SLOT_MASK;
        *self.next = std::mem::replace(self.first_free, slot);
        if *self.free == 0 {
            *self.last_free = slot;
        }
        *self.free += 1;
    }
}

impl<T> Vacancy<'_, T> {
    /// The index that the value will have.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Takes the value in; its index.
    #[inline(always)]
    pub fn fill(self, value: T) -> u32 {
        *self.len += 1;
        debug_assert!(self.place.is_none());
        // Without a look at what was there, which is nothing.
        std::mem::forget(self.place.replace(value));
        let index = self.index;
        std::mem::forget(self);
        index
    }
}

// Reuse begins only when so many slots are free: a generation then lasts at least this many
// operations times 4094.
const MIN_FREE: usize = 64;

impl<T> Slab<T> {
    /// Occupants.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether memory for one more is there, or could be had.
    pub fn make_room(&mut self) -> bool {
        self.slots.try_reserve(1).is_ok()
    }

    /// A free slot, unless it is full or memory lacks.
    #[inline]
    pub fn vacancy(&mut self) -> Option<Vacancy<'_, T>> {
        let reuse = self.free > MIN_FREE || (self.slots.len() == CAPACITY && self.free > 0);
        let slot = if reuse { self.first_free } else { self.new_slot()? };
        let s = self.slots.get_mut(slot as usize)?;
        if reuse {
            self.first_free = s.next;
            self.free -= 1;
        }
        Some(Vacancy {
            index: s.generation << SLOT_BITS | slot,
            place: &mut s.value,
            len: &mut self.len,
            next: &mut s.next,
            first_free: &mut self.first_free,
            last_free: &mut self.last_free,
            free: &mut self.free,
        })
    }

    #[cold]
    fn new_slot(&mut self) -> Option<u32> {
        let room = self.slots.len() < CAPACITY && self.make_room();
        room.then(|| {
            self.slots.push(Slot { generation: 0, next: 0, value: None });
            self.slots.len() as u32 - 1
        })
    }

    /// Takes a value in and returns its index, or, when full or without memory, the value.
    pub fn insert(&mut self, value: T) -> Result<u32, T> {
        match self.vacancy() {
            Some(vacancy) => Ok(vacancy.fill(value)),
            None => Err(value),
        }
    }

    /// The occupant of this index, unless it has left.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        let s = self.slots.get((index & SLOT_MASK) as usize)?;
        if s.generation == index >> SLOT_BITS { s.value.as_ref() } else { None }
    }

    /// The occupant of a slot (the low bits of `index`) of whatever generation, with its index.
    pub fn occupant(&self, index: u32) -> Option<(u32, &T)> {
        let slot = index & SLOT_MASK;
        let s = self.slots.get(slot as usize)?;
        s.value.as_ref().map(|v| (s.generation << SLOT_BITS | slot, v))
    }

    /// The same, mutable.
    #[inline]
    pub fn occupant_mut(&mut self, index: u32) -> Option<(u32, &mut T)> {
        let slot = index & SLOT_MASK;
        let s = self.slots.get_mut(slot as usize)?;
        s.value.as_mut().map(|v| (s.generation << SLOT_BITS | slot, v))
    }

    /// The occupant of this index, mutable.
    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        let s = self.slots.get_mut((index & SLOT_MASK) as usize)?;
        if s.generation == index >> SLOT_BITS { s.value.as_mut() } else { None }
    }

    /// Takes the occupant out; the index never matches again until its generation comes round.
    pub fn remove(&mut self, index: u32) -> Option<T> {
        let s = self.slots.get_mut((index & SLOT_MASK) as usize)?;
        let value = if s.generation == index >> SLOT_BITS { s.value.take()? } else { return None };
        self.vacated(index);
        Some(value)
    }

    /// Frees a slot in its place: what `keep` takes out of the value stays, the rest is dropped there.
    #[inline]
    pub fn take<U>(&mut self, index: u32, keep: impl FnOnce(&mut T) -> U) -> Option<U> {
        let kept = self.get_mut(index).map(keep)?;
        self.vacate(index);
        Some(kept)
    }

    /// The same, where nothing of it is wanted.
    #[inline]
    pub fn vacate(&mut self, index: u32) {
        let slot = self.slots.get_mut((index & SLOT_MASK) as usize);
        if let Some(s) = slot.filter(|s| s.generation == index >> SLOT_BITS)
            && s.value.is_some()
        {
            s.value = None;
            s.generation = later(s.generation);
            self.freed(index & SLOT_MASK);
        }
    }

    /// The slot of this index is free.
    #[inline]
    fn vacated(&mut self, index: u32) {
        let slot = index & SLOT_MASK;
        if let Some(s) = self.slots.get_mut(slot as usize) {
            s.generation = later(s.generation);
        }
        self.freed(slot);
    }

    /// A slot is the last of those that are free.
    #[inline]
    fn freed(&mut self, slot: u32) {
        self.len -= 1;
        match self.slots.get_mut(self.last_free as usize) {
            Some(last) if self.free > 0 => last.next = slot,
            _ => self.first_free = slot,
        }
        self.last_free = slot;
        self.free += 1;
    }

    /// The next occupant from slot `at` on that `which` picks; `at` moves behind it. A walk without a list, in
    /// which occupants may leave and come.
    pub fn next(&self, at: &mut usize, which: impl Fn(&T) -> bool) -> Option<u32> {
        while let Some(s) = self.slots.get(*at) {
            *at += 1;
            if s.value.as_ref().is_some_and(&which) {
                return Some(s.generation << SLOT_BITS | (*at - 1) as u32);
            }
        }
        None
    }

    /// All occupants with their indices.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().enumerate().filter_map(|(i, s)| {
            s.value.as_ref().map(|v| (s.generation << SLOT_BITS | i as u32, v))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_index_does_not_match() {
        let mut slab = Slab::default();
        let a = slab.insert('a').unwrap();
        assert_eq!(slab.remove(a), Some('a'));
        assert_eq!(slab.remove(a), None);
        let mut seen = vec![a];
        for _ in 0..1000 {
            let i = slab.insert('b').unwrap();
            assert!(!seen.contains(&i), "index {i:#x} came back too soon");
            assert!(slab.get(a).is_none());
            seen.push(i);
            slab.remove(i);
        }
        assert!(slab.is_empty());
    }

    #[test]
    fn a_vacancy_that_is_not_filled_is_given_back() {
        let mut slab = Slab::default();
        for _ in 0..10_000 {
            assert!(slab.vacancy().is_some());
        }
        assert!(slab.slots.len() <= MIN_FREE + 1, "{} slots", slab.slots.len());
        assert!(slab.is_empty());
        // All of them are used before there are more, and each by one.
        let all: Vec<u32> = (0..1000).map(|i| slab.insert(i).unwrap()).collect();
        assert!(slab.slots.len() <= 1000 + MIN_FREE, "{} slots", slab.slots.len());
        for (i, &index) in all.iter().enumerate() {
            assert_eq!(slab.get(index), Some(&i));
        }
        for &index in &all {
            drop(slab.vacancy());
            assert!(slab.remove(index).is_some());
        }
        assert_eq!((slab.len(), slab.free), (0, slab.slots.len()));
    }

    #[test]
    fn stays_below_reserved_immediates() {
        let mut slab = Slab::default();
        for _ in 0..64 * 5000 {
            let i = slab.insert(()).unwrap();
            assert!(i < crate::protocol::message::IMM_SLOT);
            slab.remove(i);
        }
    }
}
