//! Handles of objects beside the manager: the one place where the application's pointer to one becomes a reference.
//!
//! As with managers, a handle's memory is never given back to the allocator but reused much later, so that a call after its
//! end finds a dead handle. Unlike them these are not called a million times a second: a call holds a lock for reading.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use parking_lot::{MappedRwLockReadGuard, Mutex, RwLock, RwLockReadGuard};

use super::error;
use super::handle::{PROCESS, watch_forks};
use crate::status::{Code, Status};

/// Dead handles that wait before they are used again.
const QUARANTINE: usize = 256;

/// What all handles of one type have in common.
pub(super) struct Type<T: 'static> {
    /// Tells a handle from other memory.
    pub magic: u64,
    /// The argument's name.
    pub arg: &'static str,
    /// Where such handles come from.
    pub made: &'static str,
    /// Those that have ended; there is room for all that were made, so that to end one takes no memory.
    pub dead: Mutex<VecDeque<&'static Object<T>>>,
    pub count: AtomicUsize,
}

/// What is behind a handle.
pub(super) struct Object<T: 'static> {
    magic: u64,
    pid: AtomicU32,
    closing: AtomicBool,
    /// Calls hold it for reading.
    inner: RwLock<Option<T>>,
}

impl<T> Type<T> {
    /// Makes a handle.
    pub(super) fn make(&'static self, inner: T) -> Result<*mut Object<T>, Status> {
        watch_forks();
        let mut dead = self.dead.lock();
        let reused = if dead.len() > QUARANTINE { dead.pop_front() } else { None };
        if reused.is_none() {
            let count = self.count.load(Ordering::Relaxed) + 1;
            let more = count.saturating_sub(dead.len());
            crate::room::grow(&mut *dead, more, "handles")?;
            self.count.store(count, Ordering::Relaxed);
        }
        drop(dead);
        let object: &'static Object<T> = match reused {
            Some(object) => {
                *object.inner.write() = Some(inner);
                object
            }
            None => Box::leak(self.new_object(inner)?),
        };
        object.pid.store(PROCESS.load(Ordering::Relaxed), Ordering::Relaxed);
        object.closing.store(false, Ordering::Release);
        Ok(std::ptr::from_ref(object).cast_mut())
    }

    /// Memory of a handle, for which there is room among those that have ended.
    fn new_object(&self, inner: T) -> Result<Box<Object<T>>, Status> {
        let object = Object {
            magic: self.magic,
            pid: AtomicU32::new(0),
            closing: AtomicBool::new(true),
            inner: RwLock::new(Some(inner)),
        };
        let made = crate::room::boxed(object, "a handle");
        if made.is_err() {
            let _dead = self.dead.lock();
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        made
    }

    /// # Safety
    /// `ptr` is NULL or points to readable memory of a handle's size; if it came from `make`, nothing else is asked, also
    /// after `end`.
    unsafe fn check(&'static self, ptr: *const Object<T>) -> Result<&'static Object<T>, Status> {
        super::args::not_null(self.arg, ptr)?;
        let foreign =
            || Err(Status::invalid(text!("{} does not come from {}", self.arg, self.made)));
        if !ptr.is_aligned() {
            return foreign();
        }
        // SAFETY: readable by this function's contract.
        if unsafe { (&raw const (*ptr).magic).read() } != self.magic {
            return foreign();
        }
        // SAFETY: a handle; its memory is never given back.
        let object = unsafe { &*ptr };
        let (made, now) = (object.pid.load(Ordering::Relaxed), PROCESS.load(Ordering::Relaxed));
        if made != now {
            let text = text!(
                "{} was created by process {made}, and cannot be used in its forked child {now}",
                self.arg
            );
            return Err(Status::new(Code::FailedPrecondition, text));
        }
        Ok(object)
    }

    fn dead(&self) -> Status {
        Status::new(Code::FailedPrecondition, text!("{} was destroyed", self.arg))
    }

    /// What is behind the application's pointer, for the length of a call.
    ///
    /// # Safety
    /// As for `check`.
    pub(super) unsafe fn borrow(
        &'static self,
        ptr: *const Object<T>,
    ) -> Result<Borrowed<T>, Status> {
        // SAFETY: by this function's contract.
        let object = unsafe { self.check(ptr) }?;
        if object.closing.load(Ordering::Acquire) {
            return Err(self.dead());
        }
        // Recursive: a function of the application inside a call may call again, while `end` waits for both.
        let guard = object.inner.read_recursive();
        RwLockReadGuard::try_map(guard, Option::as_ref).map(Borrowed).map_err(|_| self.dead())
    }

    /// Ends it: `stop` ends the calls that are inside, which are waited for.
    ///
    /// # Safety
    /// As for `check`.
    pub(super) unsafe fn end(
        &'static self,
        ptr: *const Object<T>,
        stop: impl FnOnce(&T),
    ) -> Result<(), Status> {
        // SAFETY: by this function's contract.
        let object = unsafe { self.check(ptr) }?;
        if error::nested() {
            let text = "was called inside a callback, allowed is every other place";
            return Err(Status::new(Code::FailedPrecondition, text));
        }
        if object.closing.swap(true, Ordering::AcqRel) {
            return Err(self.dead());
        }
        if let Some(inner) = &*object.inner.read_recursive() {
            stop(inner);
        }
        let inner = object.inner.write().take();
        drop(inner);
        self.dead.lock().push_back(object);
        Ok(())
    }
}

/// An object in use by a call.
pub(super) struct Borrowed<T: 'static>(MappedRwLockReadGuard<'static, T>);

impl<T> Deref for Borrowed<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}
