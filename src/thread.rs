//! What the library keeps for each thread, in one place: to find it costs a call in a shared library, so each call of
//! the ABI finds it once and hands it on.
//!
//! It has no destructor, so it is never dead: every call, also `rdma_mgr_destroy`, works in a static or thread-local
//! destructor of the application, whichever of the two the C library runs first.

use std::ops::Deref;

use crate::ffi::{Callers, Depth};
use crate::log;
use crate::manager::{Frames, Waits};

/// Each part belongs to the module of its type.
pub struct Own {
    pub(crate) log: log::Own,
    pub(crate) depth: Depth,
    pub(crate) callers: Callers,
    pub(crate) frames: Frames,
    pub(crate) waits: Waits,
}

thread_local! {
    static OWN: Own = const {
        Own {
            log: log::Own::new(),
            depth: Depth::new(),
            callers: Callers::new(),
            frames: Frames::new(),
            waits: Waits::new(),
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
