//! The panic boundary around every exported function, and this thread's last error.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::types::{RDMA_OK, rdma_code_t};
use crate::log;
use crate::status::{Code, Status};

thread_local! {
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Runs the body of the exported function `function`. A panic becomes `RDMA_INTERNAL`; an error
/// becomes its code, with its text as this thread's last error. Log messages of the body reach
/// the application's callback after it, when no lock is held.
pub(super) fn guard(
    function: &'static str,
    body: impl FnOnce() -> Result<(), Status>,
) -> rdma_code_t {
    let deferred = log::Deferred::new();
    let result = {
        let _depth = Depth::enter();
        catch_unwind(AssertUnwindSafe(body))
    };
    let error = match result {
        Ok(Ok(())) => None,
        Ok(Err(status)) if status.code == Code::Ok => {
            Some(Status::internal(format!("an error without a code: {}", status.message)))
        }
        Ok(Err(status)) => Some(status),
        Err(payload) => Some(panicked(function, payload)),
    };
    // The application's log callback may call the library, so the error is recorded after it.
    drop(deferred);
    match error {
        None => RDMA_OK,
        Some(status) => {
            record(function, &status);
            status.code as rdma_code_t
        }
    }
}

/// Turns a caught panic into a status, and logs it.
pub(super) fn panicked(place: &str, payload: Box<dyn Any + Send>) -> Status {
    let text = payload
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "unknown panic".to_owned());
    // Dropping a foreign payload could panic again.
    std::mem::forget(payload);
    log::error(format_args!("{place}: caught a panic: {text}"));
    Status::internal(format!("caught a panic, which is a defect of the library: {text}"))
}

fn record(function: &str, status: &Status) {
    let _ = LAST.try_with(|last| {
        let mut last = last.borrow_mut();
        last.clear();
        let _ = write!(last, "{function}: {}", crate::shown::for_c(&status.message));
    });
}

/// Hands this thread's last error to `read`; empty if there was none, or the thread is ending.
pub(super) fn with_last<R>(read: impl Fn(&str) -> R) -> R {
    LAST.try_with(|last| read(&last.borrow())).unwrap_or_else(|_| read(""))
}

/// Whether this thread is inside another exported function, that is inside a callback.
pub(super) fn nested() -> bool {
    DEPTH.get() > 1
}

/// This thread's depth. A pointer, so that it also stays on its thread.
struct Depth(*const Cell<u32>);

// What needs no drop needs no destructor, and is never dead.
const _: () = assert!(!std::mem::needs_drop::<Cell<u32>>());

impl Depth {
    #[inline]
    fn enter() -> Depth {
        DEPTH.with(|depth| {
            depth.set(depth.get() + 1);
            Depth(depth)
        })
    }
}

impl Drop for Depth {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this thread's storage, which has no destructor and lives as long as the thread.
        let depth = unsafe { &*self.0 };
        depth.set(depth.get().saturating_sub(1));
    }
}
