//! What the library keeps for each thread, in one place: to find it costs a call in a shared library, so each call of
//! the ABI finds it once and hands it on.
//!
//! It has no destructor, so it is never dead: every call, also `rdma_mgr_destroy`, works in a static or thread-local
//! destructor of the application, whichever of the two the C library runs first.

use std::cell::Cell;
use std::ops::Deref;

use crate::ffi::{Callers, Depth, Leaving};
use crate::log;
use crate::manager::{Frames, Waits};

/// Each part belongs to the module of its type.
pub struct Own {
    pub(crate) log: log::Own,
    pub(crate) depth: Depth,
    pub(crate) callers: Callers,
    pub(crate) leaving: Leaving,
    pub(crate) frames: Frames,
    pub(crate) waits: Waits,
    /// The library has started it.
    own: Cell<bool>,
}

thread_local! {
    static OWN: Own = const {
        Own {
            log: log::Own::new(),
            depth: Depth::new(),
            callers: Callers::new(),
            leaving: Leaving::new(),
            frames: Frames::new(),
            waits: Waits::new(),
            own: Cell::new(false),
        }
    };
}

const _: () = assert!(!std::mem::needs_drop::<Own>());

/// This thread's. A pointer, so that it also stays on its thread.
#[derive(Clone, Copy, Debug)]
pub struct Thread(*const Own);

impl Thread {
    /// Finds it.
    #[inline]
    pub fn this() -> Thread {
        OWN.with(|own| Thread(own))
    }

    /// This thread is one that the library has started.
    pub(crate) fn is_started() {
        Thread::this().own.set(true);
    }

    /// Whether it is.
    pub(crate) fn is_own(self) -> bool {
        self.own.get()
    }

    /// Whether it ends as soon as its outermost call of the library does.
    pub(crate) fn leaves(self) -> bool {
        self.leaving.is_set()
    }

    /// Tells it from all threads that live. Never 0.
    #[inline]
    pub fn number(self) -> usize {
        self.0.addr()
    }
}

impl Deref for Thread {
    type Target = Own;
    #[inline]
    fn deref(&self) -> &Own {
        // SAFETY: this thread's storage, which has no destructor and lives as long as the thread; the value cannot
        // leave its thread.
        unsafe { &*self.0 }
    }
}
