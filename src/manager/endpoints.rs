//! Which adapters have endpoints, and how many.

use super::memory::Adapters;
use crate::fabric::ProviderKind;

/// Endpoints of each adapter, counted.
pub struct Endpoints {
    of: [usize; 4],
    all: usize,
    /// Adapters that are open, and those of them that have endpoints.
    open: Kinds,
    used: Kinds,
}

impl Endpoints {
    /// None.
    pub fn new(adapters: &Adapters) -> Endpoints {
        let open = ProviderKind::ALL.into_iter().filter(|&kind| adapters[kind as usize].is_some());
        let open = Kinds(open.fold(0, |bits, kind| bits | 1 << kind as u8));
        Endpoints { of: [0; 4], all: 0, open, used: Kinds(0) }
    }

    /// One more.
    pub fn add(&mut self, kind: ProviderKind) {
        self.of[kind as usize] += 1;
        self.all += 1;
        self.used.0 |= 1 << kind as u8;
    }

    /// One less.
    pub fn remove(&mut self, kind: ProviderKind) {
        let of = &mut self.of[kind as usize];
        if *of > 0 {
            *of -= 1;
            self.all -= 1;
        }
        if *of == 0 {
            self.used.0 &= !(1 << kind as u8);
        }
    }

    /// Of all adapters.
    #[inline]
    pub fn len(&self) -> usize {
        self.all
    }

    /// The adapter that has endpoints, if no other has.
    #[inline]
    pub fn only(&self) -> Option<ProviderKind> {
        self.used
            .0
            .is_power_of_two()
            .then(|| ProviderKind::ALL[self.used.0.trailing_zeros() as usize % 4])
    }

    /// Adapters that have endpoints, or `all` that are open.
    #[inline]
    pub fn kinds(&self, all: bool) -> Kinds {
        if all { self.open } else { self.used }
    }
}

/// A set of providers, by bit.
#[derive(Clone, Copy, Default)]
pub struct Kinds(u8);

impl Kinds {
    /// With this one.
    #[inline]
    pub fn add(&mut self, kind: ProviderKind) {
        self.0 |= 1 << kind as u8;
    }

    /// Without it.
    #[inline]
    pub fn remove(&mut self, kind: ProviderKind) {
        self.0 &= !(1 << kind as u8);
    }

    /// Whether it is empty.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl Iterator for Kinds {
    type Item = ProviderKind;
    #[inline]
    fn next(&mut self) -> Option<ProviderKind> {
        if self.0 == 0 {
            return None;
        }
        let kind = ProviderKind::ALL[self.0.trailing_zeros() as usize % ProviderKind::ALL.len()];
        self.0 &= self.0 - 1;
        Some(kind)
    }
}
