//! The manager's handle: the one place where the application's pointer becomes a reference.
//!
//! A handle's memory is never given back to the allocator but reused much later, so that a call
//! after `rdma_mgr_destroy` finds a dead handle and not another object.

use std::collections::{HashMap, VecDeque};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use parking_lot::{MappedRwLockReadGuard, Mutex, RwLock, RwLockReadGuard};

use super::callers::{self, Noted};
use super::error;
use super::types::rdma_tensor_t;
use crate::api::Meta;
use crate::manager::Manager;
use crate::status::{Code, Status};
use crate::thread::Thread;
use crate::user::UserBytes;

/// A manager: one local worker identity, which owns everything else. Opaque.
pub struct rdma_mgr {
    /// Tells a handle from other memory.
    magic: u64,
    /// The process it was made in.
    pid: AtomicU32,
    /// `rdma_mgr_destroy` is under way.
    closing: AtomicBool,
    /// Nothing is there yet, or everything has ended: no new call is let in. Otherwise threads that call until they
    /// get an error could keep `manager` borrowed among them for ever.
    retired: AtomicBool,
    /// Changes only while the handle is retired and no call is inside; see `callers`. Calls that are not noted there
    /// hold it for reading.
    manager: RwLock<Option<Arc<Manager>>>,
    /// What was handed out by `rdma_recv` beside the content, until the request is released.
    beside: Mutex<HashMap<u64, Beside>>,
}
/// A manager. Opaque.
pub type rdma_mgr_t = rdma_mgr;

/// Dimensions and user bytes of a result, at an address that stays.
#[derive(Default)]
pub(super) struct Beside {
    dims: Box<[i64]>,
    user: UserBytes,
}

impl Beside {
    /// Those of a tensor; in `c` they are named from now on.
    pub(super) fn of(meta: Meta, c: &mut rdma_tensor_t) -> Beside {
        let beside = Beside { dims: meta.dims.as_slice().into(), user: meta.user };
        c.dims = if beside.dims.is_empty() { std::ptr::null() } else { beside.dims.as_ptr() };
        beside
    }

    fn is_empty(&self) -> bool {
        self.dims.is_empty() && self.user.is_empty()
    }
}

/// Of `rdma_mgr::magic`; see [`magic`].
const MAGIC: u64 = 0x7264_6d61_5f6d_6772;
/// Dead handles that wait before they are used again.
const QUARANTINE: usize = 256;

static DEAD: Mutex<VecDeque<&'static rdma_mgr>> = Mutex::new(VecDeque::new());

/// This process; kept by a fork handler, since asking the kernel at each call costs more than the
/// call.
pub(super) static PROCESS: AtomicU32 = AtomicU32::new(0);
static WATCH_FORKS: Once = Once::new();
/// Managers of this process that have not ended.
static LIVE: AtomicUsize = AtomicUsize::new(0);
/// The process that this one was forked from had such.
static BESIDE: AtomicBool = AtomicBool::new(false);

extern "C" fn in_forked_child() {
    if LIVE.swap(0, Ordering::Relaxed) > 0 {
        BESIDE.store(true, Ordering::Relaxed);
    }
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    callers::renumber();
}

pub(super) fn watch_forks() {
    WATCH_FORKS.call_once(|| {
        in_forked_child();
        // SAFETY: the handler only stores numbers. Should it not be accepted, a child is not
        // told apart, as with any library.
        unsafe { libc::pthread_atfork(None, None, Some(in_forked_child)) };
    });
}

/// Value of `rdma_mgr::magic`. A process may have several copies of the library, in plugins that are linked with the static one: none
/// takes another's handle, whose callers and threads it does not know.
#[inline(always)]
fn magic() -> u64 {
    MAGIC ^ (&raw const PROCESS).addr() as u64
}

/// Takes a handle for a manager that is about to be made: its address is known first, for callbacks
/// that carry it.
pub(super) fn reserve() -> &'static rdma_mgr {
    watch_forks();
    callers::prepare();
    let mut dead = DEAD.lock();
    let reused = if dead.len() > QUARANTINE { dead.pop_front() } else { None };
    drop(dead);
    reused.unwrap_or_else(|| {
        Box::leak(Box::new(rdma_mgr {
            magic: magic(),
            pid: AtomicU32::new(0),
            closing: AtomicBool::new(false),
            retired: AtomicBool::new(true),
            manager: RwLock::new(None),
            beside: Mutex::new(HashMap::new()),
        }))
    })
}

/// Refuses a manager in a process that was forked beside managers: locks of theirs may be held there for ever, and lists of who waits
/// for one are of threads that the child does not have, on stacks that its own threads are given.
pub(super) fn refuse_beside() -> Result<(), Status> {
    match BESIDE.load(Ordering::Relaxed) {
        false => Ok(()),
        true => Err(Status::new(
            Code::FailedPrecondition,
            "this process was forked from one that had managers, and has not called exec since: fork before the first of them is made",
        )),
    }
}

/// Puts the manager behind its handle.
pub(super) fn fill(handle: &'static rdma_mgr, manager: Arc<Manager>) {
    LIVE.fetch_add(1, Ordering::Relaxed);
    handle.pid.store(PROCESS.load(Ordering::Relaxed), Ordering::Relaxed);
    handle.closing.store(false, Ordering::Relaxed);
    *handle.manager.write() = Some(manager);
    handle.retired.store(false, Ordering::Release);
}

/// Takes back a handle that was never given to the application; with its manager, if it has one.
pub(super) fn abandon(handle: &'static rdma_mgr) {
    handle.retired.store(true, Ordering::SeqCst);
    let manager = handle.manager.read_recursive().clone();
    if let Some(manager) = manager {
        let _ = manager.destroy();
        retire(handle, manager);
    } else {
        handle.beside.lock().clear();
        DEAD.lock().push_back(handle);
    }
}

/// Lets no new call in, waits for those that are inside, and lets go of the manager, which has ended.
fn retire(handle: &'static rdma_mgr, manager: Arc<Manager>) {
    handle.retired.store(true, Ordering::SeqCst);
    callers::wait_for_calls(handle);
    let last = handle.manager.write().take();
    drop((last, manager));
    LIVE.fetch_sub(1, Ordering::Relaxed);
    handle.beside.lock().clear();
    DEAD.lock().push_back(handle);
}

/// A manager in use by a call.
pub(super) struct Borrowed {
    handle: &'static rdma_mgr,
    by: By,
}

/// What keeps a borrowed manager.
enum By {
    /// The handle is noted as in use.
    Note { manager: *const Arc<Manager>, _noted: Noted },
    /// Its lock is held.
    Lock(MappedRwLockReadGuard<'static, Arc<Manager>>),
}

impl Deref for Borrowed {
    type Target = Arc<Manager>;
    #[inline]
    fn deref(&self) -> &Arc<Manager> {
        match &self.by {
            // SAFETY: it was there when the handle was not retired, and stays until the note is gone.
            By::Note { manager, .. } => unsafe { &**manager },
            By::Lock(manager) => manager,
        }
    }
}

/// Checks a pointer from the application. As far as it can be told, a foreign one is an error.
///
/// # Safety
/// `mgr` is NULL or points to readable memory of a handle's size; if it came from `create`, nothing
/// else is asked, also after `destroy`.
#[inline]
unsafe fn check(mgr: *const rdma_mgr_t) -> Result<&'static rdma_mgr, Status> {
    if mgr.is_null() || !mgr.is_aligned() {
        return Err(foreign(mgr));
    }
    // SAFETY: readable by this function's contract.
    let given = unsafe { (&raw const (*mgr).magic).read() };
    if given != magic() {
        return Err(foreign(mgr));
    }
    // SAFETY: a handle; its memory is never given back.
    let handle = unsafe { &*mgr };
    if handle.pid.load(Ordering::Relaxed) != PROCESS.load(Ordering::Relaxed) {
        return Err(inherited(handle));
    }
    Ok(handle)
}

#[cold]
fn foreign(mgr: *const rdma_mgr_t) -> Status {
    match super::args::not_null("mgr", mgr) {
        Err(null) => null,
        Ok(()) => {
            Status::invalid("mgr does not come from rdma_mgr_create, of this copy of the library")
        }
    }
}

#[cold]
fn inherited(handle: &rdma_mgr) -> Status {
    let text = text!(
        "mgr was created by process {}, and cannot be used in its forked child {}",
        handle.pid.load(Ordering::Relaxed),
        std::process::id()
    );
    Status::new(Code::FailedPrecondition, text)
}

#[cold]
fn destroyed() -> Status {
    Status::new(Code::FailedPrecondition, "mgr was destroyed")
}

/// The manager behind the application's pointer, for the length of a call.
///
/// # Safety
/// As for `check`.
pub(super) unsafe fn borrow(mgr: *const rdma_mgr_t) -> Result<Borrowed, Status> {
    // SAFETY: by this function's contract.
    unsafe { borrow_on(mgr, Thread::this()) }
}

/// The same on this thread.
///
/// # Safety
/// As for `check`.
#[inline(always)]
pub(super) unsafe fn borrow_on(mgr: *const rdma_mgr_t, thread: Thread) -> Result<Borrowed, Status> {
    // SAFETY: by this function's contract.
    let handle = unsafe { check(mgr) }?;
    let Some(noted) = callers::note(handle, thread) else { return borrow_by_lock(handle) };
    if handle.retired.load(Ordering::Acquire) {
        return Err(destroyed());
    }
    // SAFETY: it is only looked at, and nobody writes: the handle is not retired, and noted.
    match unsafe { &*handle.manager.data_ptr() } {
        Some(manager) => Ok(Borrowed { handle, by: By::Note { manager, _noted: noted } }),
        None => Err(destroyed()),
    }
}

#[cold]
fn borrow_by_lock(handle: &'static rdma_mgr) -> Result<Borrowed, Status> {
    if handle.retired.load(Ordering::Acquire) {
        return Err(destroyed());
    }
    // Recursive: a callback inside a call calls again, while `destroy` may wait for both.
    let guard = handle.manager.read_recursive();
    let manager = RwLockReadGuard::try_map(guard, Option::as_ref).map_err(|_| destroyed())?;
    Ok(Borrowed { handle, by: By::Lock(manager) })
}

/// Destroys the manager, waits for the calls of other threads, and retires the handle.
///
/// # Safety
/// As for `check`.
pub(super) unsafe fn destroy(mgr: *mut rdma_mgr_t) -> Result<(), Status> {
    // SAFETY: by this function's contract.
    let handle = unsafe { check(mgr) }?;
    if error::nested() {
        return Err(Status::new(
            Code::FailedPrecondition,
            "was called inside a callback, allowed is every other place",
        ));
    }
    if handle.retired.load(Ordering::Acquire) {
        return Err(destroyed());
    }
    let manager = handle.manager.read_recursive().clone().ok_or_else(destroyed)?;
    if handle.closing.swap(true, Ordering::AcqRel) {
        return Err(Status::new(
            Code::FailedPrecondition,
            "mgr is being destroyed by another thread",
        ));
    }
    let ended = manager.destroy();
    if ended.as_ref().is_err_and(|status| status.code == Code::FailedPrecondition) {
        // Refused: nothing was ended.
        handle.closing.store(false, Ordering::Release);
        return ended;
    }
    // Also after a defect the handle is dead, and calls of other threads have returned: who frees
    // what its callbacks use may do so.
    retire(handle, manager);
    ended
}

impl Borrowed {
    /// Keeps what is beside the content of a result until its request is released.
    pub(super) fn keep_beside(&self, request: u64, beside: Beside) {
        if !beside.is_empty() {
            self.handle.beside.lock().insert(request, beside);
        }
    }

    /// Frees what is beside the content of a released request.
    pub(super) fn drop_beside(&self, request: u64) {
        self.handle.beside.lock().remove(&request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_pointers_are_told() {
        let other = [1u64; 16];
        // SAFETY: NULL, and readable memory.
        let message = |p: *const rdma_mgr_t| unsafe { check(p) }.err().unwrap().into_message();
        assert_eq!(message(std::ptr::null()), "mgr is NULL");
        assert!(message(other.as_ptr().cast()).contains("rdma_mgr_create"));
        assert!(message(other.as_ptr().cast::<u8>().wrapping_add(1).cast()).contains("create"));
    }
}
