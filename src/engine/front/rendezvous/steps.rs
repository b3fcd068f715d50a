//! The steps that there are: found by number, mostly the one that was asked for last.

use foldhash::HashMap;

use super::table::Step;
use crate::engine::list::List;
use crate::room;
use crate::status::Status;

/// A step that has ended keeps its table of items, if it is no longer than this, for the next: a training loop makes
/// one per step.
const KEPT_ITEMS: usize = 1024;

/// What the engine has under way in a step.
#[derive(Debug, Default)]
pub struct Members {
    pub(crate) requests: List,
    pub(crate) responses: List,
}

impl Members {
    /// Nothing is under way.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.responses.is_empty()
    }
}

/// See the module's text.
#[derive(Default)]
pub(super) struct Steps {
    by_number: HashMap<i64, usize>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// The slot that was found last.
    last: usize,
}

struct Slot {
    /// `None`: free.
    number: Option<i64>,
    step: Step,
}

impl Steps {
    fn at(&mut self, number: i64) -> Option<usize> {
        match self.slots.get(self.last) {
            Some(slot) if slot.number == Some(number) => Some(self.last),
            _ => {
                self.last = *self.by_number.get(&number)?;
                Some(self.last)
            }
        }
    }

    /// The step of this number, if it is there.
    pub fn find(&mut self, number: i64) -> Option<&mut Step> {
        self.at(number).map(|at| &mut self.slots[at].step)
    }

    /// Memory for one more.
    pub fn make_room(&mut self) -> Result<(), Status> {
        let none = || room::none(size_of::<Slot>(), "a step");
        if self.free.is_empty() {
            let slots = self.slots.len() + 1;
            self.slots.try_reserve(1).map_err(|_| none())?;
            // So that the end of a step allocates nothing.
            self.free.try_reserve(slots).map_err(|_| none())?;
        }
        self.by_number.try_reserve(1).map_err(|_| none())
    }

    /// The step of this number, which begins if it is not there; after [`make_room`](Self::make_room).
    pub fn get(&mut self, number: i64) -> &mut Step {
        let at = self.at(number).unwrap_or_else(|| {
            let at = self.free.pop().unwrap_or_else(|| {
                self.slots.push(Slot { number: None, step: Step::default() });
                self.slots.len() - 1
            });
            self.slots[at].number = Some(number);
            self.by_number.insert(number, at);
            self.last = at;
            at
        });
        &mut self.slots[at].step
    }

    /// The step goes if nothing is left of it.
    pub fn shrink(&mut self, number: i64) {
        if let Some(at) = self.at(number)
            && self.slots[at].step.is_empty()
        {
            self.by_number.remove(&number);
            self.let_go(at);
        }
    }

    fn let_go(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        slot.number = None;
        if slot.step.items.capacity() > KEPT_ITEMS {
            slot.step = Step::default();
        }
        self.free.push(at);
    }

    /// The same for all.
    pub fn shrink_all(&mut self) {
        for at in 0..self.slots.len() {
            if let (Some(number), true) = (self.slots[at].number, self.slots[at].step.is_empty()) {
                self.by_number.remove(&number);
                self.let_go(at);
            }
        }
    }

    /// All steps, with their numbers.
    pub fn all(&mut self) -> impl Iterator<Item = (i64, &mut Step)> {
        self.slots.iter_mut().filter_map(|slot| Some((slot.number?, &mut slot.step)))
    }

    /// Those that hold more than what the engine has under way.
    pub fn held(&self) -> impl Iterator<Item = i64> {
        let held = |slot: &Slot| !slot.step.items.is_empty() || slot.step.aborted.is_some();
        self.slots.iter().filter(move |slot| held(slot)).filter_map(|slot| slot.number)
    }

    /// The same, to look at.
    pub fn iter(&self) -> impl Iterator<Item = &Step> {
        self.slots.iter().filter(|slot| slot.number.is_some()).map(|slot| &slot.step)
    }

    /// Whether there is none.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.by_number.is_empty() && self.free.len() == self.slots.len()
    }
}
