//! Which managers' callbacks this thread is inside of, and whose progress or stand-by thread it is.
//!
//! Kept with what else belongs to a thread, which is never dead: see [`crate::thread`].

use std::cell::Cell;

use crate::thread::Thread;

/// Different managers in one another's callbacks. A thread that is inside of more is taken to be
/// inside of every manager: calls that block are then refused, which is safe.
const DEPTH: usize = 16;

pub(crate) struct Frames {
    /// How many are entered, also beyond `DEPTH`.
    count: Cell<usize>,
    /// Managers by address, the outermost first.
    managers: [Cell<usize>; DEPTH],
    /// The manager whose progress or stand-by thread this is, or 0.
    drives: Cell<usize>,
    /// A call runs callbacks.
    in_call: Cell<bool>,
}

impl Frames {
    pub(crate) const fn new() -> Frames {
        Frames {
            count: Cell::new(0),
            managers: [const { Cell::new(0) }; DEPTH],
            drives: Cell::new(0),
            in_call: Cell::new(false),
        }
    }

    /// Whether a callback of any manager runs on this thread.
    pub(crate) fn any(&self) -> bool {
        self.count.get() > 0
    }

    /// Whether a call runs callbacks on this thread, of whatever manager. What ends in a call out of such a one is left to a turn:
    /// callbacks that call, whose calls run callbacks, would go on until the stack is used up.
    #[inline]
    pub(super) fn is_in_call(&self) -> bool {
        self.in_call.get()
    }
}

fn address<T>(manager: &T) -> usize {
    std::ptr::from_ref(manager) as usize
}

/// Lives on the stack of a thread while a callback of a manager runs there.
pub(super) struct Inside {
    /// An outer frame has not entered this manager.
    counted: bool,
    thread: Thread,
}

impl Inside {
    pub(super) fn enter<T>(manager: &T, thread: Thread) -> Inside {
        let counted = !contains(manager, thread);
        if counted {
            let f = &thread.frames;
            let at = f.count.replace(f.count.get() + 1);
            if let Some(slot) = f.managers.get(at) {
                slot.set(address(manager));
            }
        }
        Inside { counted, thread }
    }
}

/// Lives on the stack of a thread while a call runs callbacks.
pub(super) struct InCall {
    before: bool,
    thread: Thread,
}

impl InCall {
    pub(super) fn enter(thread: Thread) -> InCall {
        InCall { before: thread.frames.in_call.replace(true), thread }
    }
}

impl Drop for InCall {
    fn drop(&mut self) {
        self.thread.frames.in_call.set(self.before);
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if self.counted {
            let count = &self.thread.frames.count;
            count.set(count.get().saturating_sub(1));
        }
    }
}

/// Whether a callback of this manager runs on this thread.
#[inline]
pub(super) fn contains<T>(manager: &T, thread: Thread) -> bool {
    // Inside of none, as a rule.
    let count = thread.frames.count.get();
    count > 0 && among(&thread.frames, count, address(manager))
}

fn among(frames: &Frames, count: usize, manager: usize) -> bool {
    count > DEPTH || frames.managers[..count].iter().any(|slot| slot.get() == manager)
}

/// From now on this thread is one of the manager's own, which its end waits for.
pub(super) fn begin_to_drive<T>(manager: &T) {
    Thread::this().frames.drives.set(address(manager));
}

/// Whether this thread is one of the manager's own.
pub(super) fn drives<T>(manager: &T) -> bool {
    Thread::this().frames.drives.get() == address(manager)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r04_frames_nest_and_overflow_to_the_safe_side() {
        let thread = Thread::this();
        let managers: Vec<Box<u64>> = (0..DEPTH as u64 + 1).map(Box::new).collect();
        let outside = Box::new(0u64);
        let mut frames: Vec<Inside> = Vec::new();
        for m in &managers[..DEPTH] {
            assert!(!contains(&**m, thread));
            frames.push(Inside::enter(&**m, thread));
            // The same one again takes no place, and its end leaves the outer one.
            drop(Inside::enter(&**m, thread));
            assert!(contains(&**m, thread));
        }
        assert!(!contains(&*outside, thread));
        frames.push(Inside::enter(&*managers[DEPTH], thread));
        assert!(contains(&*outside, thread), "beyond the bound everything counts as inside");
        while frames.pop().is_some() {}
        assert!(managers.iter().all(|m| !contains(&**m, thread)));
    }
}
