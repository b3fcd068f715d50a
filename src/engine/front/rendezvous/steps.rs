//! The steps that there are: found by number, mostly the one that was asked for last.

use foldhash::HashMap;

use super::table::Step;
use crate::engine::list::List;
use crate::room;
use crate::status::Status;

/// A step that has ended keeps its table of items, if it is no longer than this, for the next: a training loop makes
/// one per step.
pub(super) const KEPT_ITEMS: usize = 1024;

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

/// All steps, by number. The slot of the step that was asked for last stays, also when nothing is left of the step, and
/// need not be in the map: steps that follow each other use one slot, and never touch the map.
#[derive(Default)]
pub(super) struct Steps {
    /// With room for the last slot's number, if that is not there.
    by_number: HashMap<i64, usize>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// The slot that was found last.
    last: usize,
}

struct Slot {
    /// `None`: free.
    number: Option<i64>,
    /// Its number is in the map.
    mapped: bool,
    step: Step,
}

impl Slot {
    /// It can become another step's as it is.
    fn serves_again(&self) -> bool {
        self.number.is_some() && !self.mapped && self.step.is_empty()
    }
}

impl Steps {
    /// The last slot, if it is this step's.
    #[inline(always)]
    fn last(&mut self, number: i64) -> Option<&mut Step> {
        let slot = self.slots.get_mut(self.last)?;
        (slot.number == Some(number)).then_some(&mut slot.step)
    }

    /// Makes the slot of this number the last, if it is there.
    fn turn_to(&mut self, number: i64) -> Option<usize> {
        let at =
            if self.by_number.is_empty() { None } else { self.by_number.get(&number).copied() };
        if at.is_some_and(|at| at != self.last) {
            self.leave_last();
            self.last = at?;
        }
        at
    }

    /// The last slot will not be the last: it is found through the map, or free.
    fn leave_last(&mut self) {
        let at = self.last;
        let Some(slot) = self.slots.get_mut(at) else { return };
        let Some(number) = slot.number else { return };
        if slot.step.is_empty() {
            self.let_go(at, number);
        } else if !slot.mapped {
            slot.mapped = true;
            self.by_number.insert(number, at);
        }
    }

    /// The step of this number, if it is there.
    #[inline]
    pub fn find(&mut self, number: i64) -> Option<&mut Step> {
        let at = match self.slots.get(self.last) {
            Some(slot) if slot.number == Some(number) => self.last,
            _ if self.by_number.is_empty() => return None,
            _ => self.turn_to(number)?,
        };
        self.slots.get_mut(at).map(|slot| &mut slot.step)
    }

    /// The step of this number, which begins if it is not there.
    #[inline]
    pub fn enter(&mut self, number: i64) -> Result<&mut Step, Status> {
        let at = match self.slots.get(self.last) {
            Some(slot) if slot.number == Some(number) => self.last,
            _ => self.enter_other(number)?,
        };
        Ok(&mut self.slots[at].step)
    }

    #[inline(never)]
    fn enter_other(&mut self, number: i64) -> Result<usize, Status> {
        match self.slots.get_mut(self.last) {
            // It becomes this one's, and room for that was made when it was another's.
            Some(slot) if self.by_number.is_empty() && slot.serves_again() => {
                slot.number = Some(number);
                Ok(self.last)
            }
            _ => {
                self.make_more_room()?;
                Ok(self.begin(number))
            }
        }
    }

    /// Memory for one more, of this number.
    #[inline]
    pub fn make_room(&mut self, number: i64) -> Result<(), Status> {
        self.enter(number).map(drop)
    }

    fn make_more_room(&mut self) -> Result<(), Status> {
        let none = || room::none(size_of::<Slot>(), "a step");
        if self.free.is_empty() {
            let slots = self.slots.len() + 1;
            self.slots.try_reserve(1).map_err(|_| none())?;
            // So that the end of a step allocates nothing.
            self.free.try_reserve(slots).map_err(|_| none())?;
        }
        // For the last, which is left, and for the new one, when that is.
        self.by_number.try_reserve(2).map_err(|_| none())
    }

    /// The step of this number, which begins if it is not there; after [`make_room`](Self::make_room).
    #[inline]
    pub fn get(&mut self, number: i64) -> &mut Step {
        let at = match self.slots.get(self.last) {
            Some(slot) if slot.number == Some(number) => self.last,
            _ => self.begin(number),
        };
        &mut self.slots[at].step
    }

    fn begin(&mut self, number: i64) -> usize {
        if !self.by_number.is_empty()
            && let Some(at) = self.turn_to(number)
        {
            return at;
        }
        if !self.slots.get(self.last).is_some_and(Slot::serves_again) {
            self.leave_last();
            self.last = self.free.pop().unwrap_or_else(|| {
                self.slots.push(Slot { number: None, mapped: false, step: Step::default() });
                self.slots.len() - 1
            });
        }
        self.slots[self.last].number = Some(number);
        self.last
    }

    /// The step goes if nothing is left of it, unless it is the last.
    #[inline]
    pub fn shrink(&mut self, number: i64) {
        if self.last(number).is_none() {
            self.shrink_other(number);
        }
    }

    fn shrink_other(&mut self, number: i64) {
        if let Some(&at) = self.by_number.get(&number)
            && self.slots[at].step.is_empty()
        {
            self.let_go(at, number);
        }
    }

    fn let_go(&mut self, at: usize, number: i64) {
        let slot = &mut self.slots[at];
        slot.number = None;
        if std::mem::take(&mut slot.mapped) {
            self.by_number.remove(&number);
        }
        if slot.step.is_large() {
            slot.step = Step::default();
        }
        self.free.push(at);
    }

    /// The same for all.
    pub fn shrink_all(&mut self) {
        for at in 0..self.slots.len() {
            if let (Some(number), true) = (self.slots[at].number, self.slots[at].step.is_empty()) {
                self.let_go(at, number);
            }
        }
    }

    /// The step is over: its memory goes, if it is much and nothing is left in it.
    #[inline(never)]
    pub fn end(&mut self, number: i64) {
        match self.last(number) {
            Some(step) if !step.is_large() || !step.is_empty() => {}
            Some(step) => *step = Step::default(),
            None => self.shrink_other(number),
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

    /// Whether there is none, but for an empty one that was found last.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        let mut numbers = self.slots.iter().enumerate().filter(|(_, slot)| slot.number.is_some());
        numbers.all(|(at, slot)| at == self.last && slot.step.is_empty())
            && self.by_number.len() == self.slots.iter().filter(|slot| slot.mapped).count()
    }
}
