//! Memory that runs out. Two managers in a child process create, connect, send, receive and end over an
//! allocator whose n-th call fails; each child is this program again.
//!
//! Every operation ends, well or with `RESOURCE_EXHAUSTED` (or with the other side's word for it), or the
//! process aborts, at one of the places of [`places`], whose sizes the code fixes. One child by hand:
//! `ALLOC_KIND=tcp ALLOC_LEAST=1 ALLOC_FAIL_AT=300 ALLOC_TRACE=1 cargo test --test alloc_failure -- --exact a_run`.
//!
//! What runs is a [`tensors`] run, from before its managers are made, or one of [`fronts`] between managers that are
//! connected (`ALLOC_FRONT=pairs`).

mod errors;
mod fronts;
mod names;
mod places;
mod rounds;
mod sweep;
mod tensors;

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};

use rdma_transport::fabric::ProviderKind;

struct Failing;

/// Calls of at least so many bytes are counted; none before the run begins.
static LEAST: AtomicUsize = AtomicUsize::new(usize::MAX);
static COUNT: AtomicU64 = AtomicU64::new(0);
static FAIL_AT: AtomicU64 = AtomicU64::new(0);
/// Bytes that were asked for and not given back.
static LIVE: AtomicI64 = AtomicI64::new(0);
/// Where each call that was counted was made, if that is asked for: its stack.
static STACKS: [AtomicU64; MOST_STACKS] = [const { AtomicU64::new(0) }; MOST_STACKS];
const MOST_STACKS: usize = 1 << 18;
static WANTED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// This thread is given nothing at all.
    static NOTHING: Cell<bool> = const { Cell::new(false) };
}

fn fails(size: usize) -> bool {
    if NOTHING.get() {
        return true;
    }
    if size < LEAST.load(Ordering::Relaxed) {
        return false;
    }
    let count = COUNT.fetch_add(1, Ordering::Relaxed) + 1;
    if (count as usize) < WANTED.load(Ordering::Relaxed) {
        STACKS[count as usize].store(stack(), Ordering::Relaxed);
    }
    let fails = count == FAIL_AT.load(Ordering::Relaxed);
    if fails {
        LEAST.store(usize::MAX, Ordering::Relaxed);
        *FAILED.lock().unwrap() = Some(Failed { size, frames: Frames::here() });
        if std::env::var_os("ALLOC_TRACE").is_some() {
            println!("{}", Backtrace::force_capture());
        }
        HAS_FAILED.store(1, Ordering::Relaxed);
    }
    fails
}

/// The call that failed.
struct Failed {
    size: usize,
    frames: Frames,
}

static FAILED: Mutex<Option<Failed>> = Mutex::new(None);
static HAS_FAILED: AtomicUsize = AtomicUsize::new(0);

/// Whether the call that is to fail has.
fn has_failed() -> bool {
    HAS_FAILED.load(Ordering::Relaxed) != 0
}

/// Frames that say where the allocator was called, and by which way of the library's.
const DEEP: usize = 24;

/// The top of a thread's stack: where its calls return to.
struct Frames([*mut libc::c_void; DEEP], usize);

// SAFETY: numbers, of which none is followed.
unsafe impl Send for Frames {}

impl Frames {
    fn here() -> Frames {
        let mut frames = [std::ptr::null_mut(); DEEP];
        // SAFETY: room for so many.
        let n = unsafe { libc::backtrace(frames.as_mut_ptr(), DEEP as i32) };
        Frames(frames, usize::try_from(n).unwrap())
    }

    /// In the program's file, where they are the same in each child.
    fn addresses(&self) -> impl Iterator<Item = usize> {
        self.0[..self.1].iter().map(|frame| names::in_file(frame.addr()))
    }
}

/// This thread's stack in one number.
fn stack() -> u64 {
    let mut hasher = DefaultHasher::new();
    Frames::here().addresses().for_each(|frame| frame.hash(&mut hasher));
    hasher.finish()
}

/// Says which call failed.
fn report() {
    let Some(failed) = FAILED.lock().unwrap().take() else { return };
    let frames: Vec<String> = failed.frames.addresses().map(|at| format!("{at:x}")).collect();
    println!("FAILED {} {}", failed.size, frames.join(" "));
}

extern "C" fn on_abort(_: libc::c_int) {
    // Not what a handler should do, but `abort` was called right here, outside of any lock that this takes.
    report();
}

fn holds(more: usize, less: usize) {
    LIVE.fetch_add(more as i64 - less as i64, Ordering::Relaxed);
}

// SAFETY: the system's allocator, which may fail.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if fails(layout.size()) {
            return std::ptr::null_mut();
        }
        holds(layout.size(), 0);
        // SAFETY: by the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if fails(layout.size()) {
            return std::ptr::null_mut();
        }
        holds(layout.size(), 0);
        // SAFETY: by the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if fails(size) {
            return std::ptr::null_mut();
        }
        holds(size, layout.size());
        // SAFETY: by the caller's promise.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        holds(0, layout.size());
        // SAFETY: by the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Failing = Failing;

/// From here on calls are counted, and this one of them fails; 0: none.
fn count_from_here(fail_at: u64) {
    HAS_FAILED.store(0, Ordering::Relaxed);
    *FAILED.lock().unwrap() = None;
    COUNT.store(0, Ordering::Relaxed);
    FAIL_AT.store(fail_at, Ordering::Relaxed);
    let least = std::env::var("ALLOC_LEAST").ok().map(|n| n.parse().unwrap());
    LEAST.store(least.unwrap_or(1), Ordering::Relaxed);
}

/// From here on they are not.
fn count_no_more() {
    LEAST.store(usize::MAX, Ordering::Relaxed);
}

/// What is called meanwhile is not counted, unless it never was.
fn pause_counting() -> usize {
    LEAST.swap(usize::MAX, Ordering::Relaxed)
}

fn go_on_counting(least: usize) {
    LEAST.store(least, Ordering::Relaxed);
}

/// Counts the calls of this, and takes down their stacks.
fn count_stacks<R>(f: impl FnOnce() -> R) -> R {
    // What that needs itself it has before anything is counted.
    stack();
    WANTED.store(MOST_STACKS, Ordering::Relaxed);
    count_from_here(0);
    let result = f();
    count_no_more();
    WANTED.store(0, Ordering::Relaxed);
    result
}

/// What [`count_stacks`] has taken down, for the parent: of each stack its number, its first call and its last.
fn told_stacks() -> String {
    let count = COUNT.load(Ordering::Relaxed) as usize;
    assert!(count < MOST_STACKS, "more calls than there is room for");
    let mut by_stack: HashMap<u64, [usize; 2]> = HashMap::new();
    for (n, stack) in STACKS.iter().enumerate().take(count + 1).skip(1) {
        by_stack.entry(stack.load(Ordering::Relaxed)).or_insert([n, n])[1] = n;
    }
    let each = by_stack.into_iter().map(|(stack, [first, last])| format!("{stack} {first} {last}"));
    each.collect::<Vec<String>>().join(",")
}

/// The run by itself, and what the other tests run in a child.
#[test]
fn a_run() {
    let kind = std::env::var("ALLOC_KIND").unwrap_or("shm".into());
    let fail_at = std::env::var("ALLOC_FAIL_AT").ok();
    let calls = fail_at.as_deref().unwrap_or("0").split(' ').map(|n| n.parse::<u64>().unwrap());
    let calls: Vec<u64> = calls.collect();
    // SAFETY: plain calls; the handler is a function of the right kind.
    unsafe {
        if fail_at.is_some() {
            // A child that hangs.
            libc::alarm(60);
        }
        libc::signal(libc::SIGABRT, on_abort as *const () as libc::sighandler_t);
    }
    match std::env::var("ALLOC_FRONT").as_deref() {
        Err(_) | Ok("tensors") => {
            let provider = match &*kind {
                "loopback" => ProviderKind::Loopback,
                "tcp" => ProviderKind::Tcp,
                _ => ProviderKind::Shm,
            };
            count_from_here(calls[0]);
            tensors::run(provider);
            count_no_more();
            report();
            tensors::check(fail_at.is_some());
            println!("CALLS {}", COUNT.load(Ordering::Relaxed));
        }
        Ok("texts") => fronts::steps::texts(&kind),
        Ok("pools") => fronts::steps::pools(),
        Ok(front) => fronts::run(front, &kind, &calls),
    }
}
