//! Which managers' callbacks this thread is inside of, and whose progress thread it is.
//!
//! Kept in thread-local storage that has no destructor: it is never dead, so that every call, also
//! `rdma_mgr_destroy`, works in a static or thread-local destructor of the application, whichever
//! of the two the C library runs first.

use std::cell::Cell;

/// Different managers in one another's callbacks. A thread that is inside of more is taken to be
/// inside of every manager: calls that block are then refused, which is safe.
const DEPTH: usize = 16;

struct Frames {
    /// How many are entered, also beyond `DEPTH`.
    count: Cell<usize>,
    /// Managers by address, the outermost first.
    managers: [Cell<usize>; DEPTH],
    /// The manager whose progress thread this is, or 0.
    drives: Cell<usize>,
}

thread_local! {
    static FRAMES: Frames = const {
        Frames {
            count: Cell::new(0),
            managers: [const { Cell::new(0) }; DEPTH],
            drives: Cell::new(0),
        }
    };
}

// What needs no drop needs no destructor, and is never dead.
const _: () = assert!(!std::mem::needs_drop::<Frames>());

fn address<T>(manager: &T) -> usize {
    std::ptr::from_ref(manager) as usize
}

/// Lives on the stack of a thread while a callback of a manager runs there.
pub(super) struct Inside {
    /// An outer frame has not entered this manager.
    counted: bool,
    /// Stays on its thread.
    _thread: std::marker::PhantomData<*const ()>,
}

impl Inside {
    pub(super) fn enter<T>(manager: &T) -> Inside {
        let counted = !contains(manager);
        if counted {
            FRAMES.with(|f| {
                let at = f.count.replace(f.count.get() + 1);
                if let Some(slot) = f.managers.get(at) {
                    slot.set(address(manager));
                }
            });
        }
        Inside { counted, _thread: std::marker::PhantomData }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if self.counted {
            FRAMES.with(|f| f.count.set(f.count.get().saturating_sub(1)));
        }
    }
}

/// Whether a callback of this manager runs on this thread.
pub(super) fn contains<T>(manager: &T) -> bool {
    FRAMES.with(|f| {
        let count = f.count.get();
        count > DEPTH || f.managers[..count].iter().any(|slot| slot.get() == address(manager))
    })
}

/// From now on this thread is the manager's progress thread.
pub(super) fn begin_to_drive<T>(manager: &T) {
    FRAMES.with(|f| f.drives.set(address(manager)));
}

/// Whether this thread is the manager's progress thread.
pub(super) fn drives<T>(manager: &T) -> bool {
    FRAMES.with(|f| f.drives.get() == address(manager))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r04_frames_nest_and_overflow_to_the_safe_side() {
        let managers: Vec<Box<u64>> = (0..DEPTH as u64 + 1).map(Box::new).collect();
        let outside = Box::new(0u64);
        let mut frames: Vec<Inside> = Vec::new();
        for m in &managers[..DEPTH] {
            assert!(!contains(&**m));
            frames.push(Inside::enter(&**m));
            // The same one again takes no place, and its end leaves the outer one.
            drop(Inside::enter(&**m));
            assert!(contains(&**m));
        }
        assert!(!contains(&*outside));
        frames.push(Inside::enter(&*managers[DEPTH]));
        assert!(contains(&*outside), "beyond the bound everything counts as inside");
        while frames.pop().is_some() {}
        assert!(managers.iter().all(|m| !contains(&**m)));
    }
}
