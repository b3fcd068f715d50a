//! The panic boundary around every exported function, and this thread's last error.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::types::{RDMA_OK, rdma_code_t};
use crate::log;
use crate::status::{Code, Status};
use crate::thread::Thread;

thread_local! {
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs the body of the exported function `function`. A panic becomes `RDMA_INTERNAL`; an error
/// becomes its code, with its text as this thread's last error. Log messages of the body reach
/// the application's callback after it, when no lock is held.
#[inline]
pub(super) fn guard(
    function: &'static str,
    body: impl FnOnce() -> Result<(), Status>,
) -> rdma_code_t {
    guard_on(function, |_| body())
}

/// The same; the body is told its thread.
#[inline]
pub(super) fn guard_on(
    function: &'static str,
    body: impl FnOnce(Thread) -> Result<(), Status>,
) -> rdma_code_t {
    let thread = Thread::this();
    let deferred = log::Deferred::on(thread);
    let result = {
        let _nested = Nested::enter(thread);
        catch_unwind(AssertUnwindSafe(|| body(thread)))
    };
    match result {
        Ok(Ok(())) => RDMA_OK,
        failed => end(function, failed, deferred),
    }
}

/// What a failed function returns.
#[cold]
fn end(
    function: &'static str,
    failed: Result<Result<(), Status>, Box<dyn Any + Send>>,
    deferred: log::Deferred,
) -> rdma_code_t {
    let status = match failed {
        Ok(Ok(())) => return RDMA_OK,
        Ok(Err(status)) if status.code == Code::Ok => {
            Status::internal(text!("an error without a code: {}", status.message))
        }
        Ok(Err(status)) => status,
        Err(payload) => panicked(function, payload),
    };
    // The application's log callback may call the library, so the error is recorded after it.
    drop(deferred);
    record(function, &status);
    status.code as rdma_code_t
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
    Status::internal(text!("caught a panic, which is a defect of the library: {text}"))
}

/// Makes a status this thread's last error.
pub(super) fn record(function: &str, status: &Status) {
    let _ = LAST.try_with(|last| {
        let mut last = last.borrow_mut();
        last.clear();
        let text = crate::shown::for_c(&status.message);
        // A text may have a path of the application's in it. Where there is no memory for it there is none.
        if last.try_reserve(function.len() + 2 + text.len()).is_ok() {
            let _ = write!(last, "{function}: {text}");
        }
    });
}

/// Hands this thread's last error to `read`; empty if there was none, or the thread is ending.
pub(super) fn with_last<R>(read: impl Fn(&str) -> R) -> R {
    LAST.try_with(|last| read(&last.borrow())).unwrap_or_else(|_| read(""))
}

/// Whether this thread is inside a callback: of another exported function, or on a thread of the library, which has called
/// none.
pub(super) fn nested() -> bool {
    let thread = Thread::this();
    thread.depth.0.get() > 1 || thread.frames.any()
}

/// How many exported functions a thread is inside of; this module's part of [`crate::thread`].
pub(crate) struct Depth(Cell<u32>);

impl Depth {
    pub(crate) const fn new() -> Depth {
        Depth(Cell::new(0))
    }
}

/// One of them.
struct Nested(Thread);

impl Nested {
    #[inline]
    fn enter(thread: Thread) -> Nested {
        let depth = &thread.depth.0;
        depth.set(depth.get() + 1);
        Nested(thread)
    }
}

impl Drop for Nested {
    #[inline]
    fn drop(&mut self) {
        let depth = &self.0.depth.0;
        depth.set(depth.get().wrapping_sub(1));
    }
}
