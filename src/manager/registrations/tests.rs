//! Registrations that are kept, over an adapter that remembers what is registered.

use super::super::memory::tests::{KIND, Limited, Rules, Table};
use super::*;

const READ: Access = Access::REMOTE_READ;
const WRITE: Access = Access::REMOTE_WRITE;

struct Test {
    kept: Registrations,
    adapters: Adapters,
    table: Table,
    rules: Rules,
}

impl Test {
    fn new(bound: u64, left: u32) -> Test {
        let (adapters, table, rules) = Limited::with_rules(1 << 30, left);
        Test { kept: Registrations::new(bound), adapters, table, rules }
    }

    fn open(&mut self, addr: u64, len: u64, access: Access) -> Option<Window> {
        let Test { kept, adapters, .. } = self;
        // SAFETY: the adapter only remembers addresses.
        kept.find(KIND, addr, len, access)
            .or_else(|| unsafe { kept.add(adapters, KIND, (addr, len), access) })
    }

    fn close(&mut self, window: Option<Window>) {
        match window.map(|w| w.origin) {
            Some(Origin::Cached(of)) => self.kept.release(&mut self.adapters, of),
            other => panic!("{other:?}"),
        }
    }

    /// What is registered: address and length.
    fn registered(&self) -> Vec<(u64, u64)> {
        let mut all: Vec<_> = self.table.lock().values().map(|&(a, l, _)| (a, l)).collect();
        all.sort_unstable();
        all
    }

    fn found(&self) -> (u64, u64, u64) {
        let Counts { hits, misses, evicted, .. } = self.kept.counts();
        (hits, misses, evicted)
    }
}

#[test]
fn a_part_of_what_is_registered_is_found() {
    let mut t = Test::new(1 << 20, 100);
    let first = t.open(0x10000, 0x8000, WRITE);
    t.close(first.clone());
    let again = t.open(0x10000, 0x8000, READ);
    let part = t.open(0x14000, 0x4000, WRITE);
    assert_eq!(first.unwrap().keys, again.clone().unwrap().keys);
    assert_eq!(part.clone().unwrap().keys, again.clone().unwrap().keys);
    assert_eq!((t.found(), t.registered()), ((2, 1, 0), vec![(0x10000, 0x8000)]));
    t.close(again);
    t.close(part);
    assert_eq!(t.registered().len(), 1, "it is kept");
    assert_eq!(t.kept.counts().bytes, 0x8000);
}

#[test]
fn what_overlaps_becomes_one() {
    let mut t = Test::new(1 << 20, 100);
    let low = t.open(0x10000, 0x8000, READ);
    let high = t.open(0x20000, 0x8000, READ);
    t.close(low);
    let both = t.open(0x14000, 0x10000, WRITE);
    let whole = (0x10000, 0x18000);
    assert_eq!(t.registered(), [whole, (0x20000, 0x8000)], "the second is in use");
    t.close(high);
    assert_eq!(t.registered(), [whole], "and gone, once it is not");
    t.close(both);
    let again = t.open(0x20000, 0x8000, READ);
    t.close(again);
    assert_eq!(t.found(), (1, 3, 0));
    assert_eq!(t.kept.counts().bytes, whole.1);
}

#[test]
fn the_least_recently_used_goes_first_and_what_is_in_use_stays() {
    let mut t = Test::new(0x18000, 100);
    let used = t.open(0x100000, 0x8000, READ);
    for at in [0x200000, 0x300000] {
        let window = t.open(at, 0x8000, READ);
        t.close(window);
    }
    let again = t.open(0x200000, 0x8000, READ);
    t.close(again);
    let new = t.open(0x400000, 0x8000, READ);
    assert_eq!(t.registered(), [(0x100000, 0x8000), (0x200000, 0x8000), (0x400000, 0x8000)]);
    t.close(new);
    assert!(t.open(0x500000, 0x18001, READ).is_none(), "longer than the bound");
    assert!(t.open(0x500000, 0x18000, READ).is_none(), "what is in use leaves no room");
    t.close(used);
    let all = t.open(0x500000, 0x18000, READ);
    t.close(all);
    assert_eq!(t.registered(), [(0x500000, 0x18000)]);
    assert_eq!(t.kept.counts().bytes, 0x18000);
}

#[test]
fn the_number_of_entries_is_bounded() {
    let mut t = Test::new(1 << 40, u32::MAX);
    for n in 0..ENTRIES as u64 + 10 {
        let window = t.open(n << 20, 0x8000, READ);
        t.close(window);
    }
    assert_eq!(t.registered().len(), ENTRIES);
    assert_eq!(t.registered()[0].0, 10 << 20);
}

#[test]
fn what_was_invalidated_is_registered_again() {
    let mut t = Test::new(1 << 20, 100);
    let idle = t.open(0x10000, 0x8000, READ);
    let keys = idle.clone().unwrap().keys;
    t.close(idle);
    t.kept.invalidate(&mut t.adapters, 0x17fff, 1);
    assert_eq!(t.registered(), []);
    let fresh = t.open(0x10000, 0x8000, READ);
    assert_ne!(fresh.clone().unwrap().keys, keys, "the same address, another registration");
    // One in use serves nobody else from then on, and goes with its last user.
    let other = t.open(0x10000, 0x1000, READ);
    t.kept.invalidate(&mut t.adapters, 0, u64::MAX);
    let third = t.open(0x10000, 0x8000, READ);
    assert_ne!(third.clone().unwrap().keys, fresh.clone().unwrap().keys);
    assert_eq!(t.registered().len(), 2);
    t.close(fresh);
    assert_eq!(t.registered().len(), 2);
    t.close(other);
    assert_eq!(t.registered().len(), 1);
    t.close(third);
    assert_eq!((t.registered().len(), t.kept.counts().bytes), (1, 0x8000));
    t.kept.invalidate(&mut t.adapters, 0x18000, 0x8000);
    assert_eq!(t.registered().len(), 1, "a neighbour stays");
}

#[test]
fn memory_that_went_without_a_word_costs_its_neighbours_their_registration_only() {
    let mut t = Test::new(1 << 20, 100);
    let low = t.open(0x10000, 0x8000, READ);
    t.close(low);
    let far = t.open(0x90000, 0x8000, READ);
    t.close(far);
    // The union is refused, as if its first half were unmapped.
    t.rules.lock().push((0x10000, Access::empty()));
    let new = t.open(0x14000, 0x8000, READ);
    assert_eq!(t.registered(), [(0x14000, 0x8000)]);
    t.close(new);
}

#[test]
fn memory_that_may_only_be_read_is_registered_so() {
    let mut t = Test::new(1 << 20, 100);
    t.rules.lock().push((0x10000, READ));
    let window = t.open(0x10000, 0x8000, READ);
    t.close(window);
    assert_eq!(t.registered().len(), 1);
    assert!(t.open(0x10000, 0x8000, WRITE).is_none(), "as the system says");
}

#[test]
fn where_the_system_allows_no_more_nothing_is_kept() {
    let mut t = Test::new(1 << 20, 1);
    let one = t.open(0x10000, 0x8000, READ);
    assert!(t.open(0x90000, 0x8000, READ).is_none());
    t.close(one);
    assert!(t.open(0x90000, 0x8000, READ).is_none());
    assert_eq!(t.kept.counts().bytes, t.registered().iter().map(|r| r.1).sum::<u64>());
}
