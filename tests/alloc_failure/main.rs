//! Memory that runs out. Two managers in a child process create, connect, send, receive and end over an
//! allocator whose n-th call fails; each child is this program again.
//!
//! Every operation ends, well or with `RESOURCE_EXHAUSTED` (or with the other side's word for it), or the
//! process aborts, at one of the places of [`places`], whose sizes the code fixes. One child by hand:
//! `ALLOC_KIND=tcp ALLOC_LEAST=1 ALLOC_FAIL_AT=300 ALLOC_TRACE=1 cargo test --test alloc_failure -- --exact a_run`.
//!
//! What runs is a [`tensors`] run, from before its managers are made, or one of [`fronts`] between managers that are
//! connected (`ALLOC_FRONT=pairs`).

mod fronts;
mod places;
mod sweep;
mod tensors;

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
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
/// Where each call that was counted was made, if that is asked for.
static STACKS: [AtomicU64; MOST_STACKS] = [const { AtomicU64::new(0) }; MOST_STACKS];
const MOST_STACKS: usize = 1 << 16;
static WANTED: AtomicUsize = AtomicUsize::new(0);

fn fails(size: usize) -> bool {
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
        let before = LIVE.load(Ordering::Relaxed);
        let place = Failed { size, stack: stack(), trace: Backtrace::force_capture() };
        // The trace is nothing that the library holds.
        LIVE.store(before, Ordering::Relaxed);
        *FAILED.lock().unwrap() = Some(place);
        HAS_FAILED.store(1, Ordering::Relaxed);
    }
    fails
}

/// The call that failed.
struct Failed {
    size: usize,
    stack: u64,
    trace: Backtrace,
}

static FAILED: Mutex<Option<Failed>> = Mutex::new(None);
static HAS_FAILED: AtomicUsize = AtomicUsize::new(0);

/// Whether the call that is to fail has.
fn has_failed() -> bool {
    HAS_FAILED.load(Ordering::Relaxed) != 0
}

/// The top of this thread's stack in one number, the same in each child: a trace in names takes long.
fn stack() -> u64 {
    let mut frames = [std::ptr::null_mut(); 24];
    // SAFETY: room for so many.
    let n = unsafe { libc::backtrace(frames.as_mut_ptr(), frames.len() as i32) };
    let mut hasher = DefaultHasher::new();
    for frame in &frames[..usize::try_from(n).unwrap()] {
        frame.addr().wrapping_sub(fails as *const () as usize).hash(&mut hasher);
    }
    hasher.finish()
}

/// Says which call failed, by name unless the parent knows its stack.
fn report() {
    let Some(failed) = FAILED.lock().unwrap().take() else { return };
    let known = std::env::var("ALLOC_KNOWN").unwrap_or_default();
    println!("FAILED {} {:016x}", failed.size, failed.stack);
    if !known.contains(&format!("{:016x}", failed.stack)) {
        println!("TRACE\n{}\nEND", failed.trace);
    }
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

/// From here on calls are counted,
fn count_from_here() {
    let least = std::env::var("ALLOC_LEAST").ok().map(|n| n.parse().unwrap());
    if !has_failed() {
        LEAST.store(least.unwrap_or(1), Ordering::Relaxed);
    }
}

/// and from here on not.
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

/// Says what calls there were, for whoever runs this in a child.
fn tell() {
    let count = COUNT.load(Ordering::Relaxed);
    println!("CALLS {count}");
    if WANTED.load(Ordering::Relaxed) > 0 {
        let stacks = STACKS.iter().take(count as usize + 1).skip(1);
        let all: Vec<String> = stacks.map(|s| s.load(Ordering::Relaxed).to_string()).collect();
        println!("STACKS {}", all.join(" "));
    }
}

/// The run by itself, and what the other tests run in a child.
#[test]
fn a_run() {
    let number = |name: &str| std::env::var(name).ok().map(|n| n.parse::<u64>().unwrap());
    let kind = std::env::var("ALLOC_KIND").unwrap_or("shm".into());
    let fail_at = number("ALLOC_FAIL_AT");
    FAIL_AT.store(fail_at.unwrap_or(0), Ordering::Relaxed);
    if std::env::var_os("ALLOC_STACKS").is_some() {
        // What it needs itself it has before anything is counted.
        stack();
        WANTED.store(MOST_STACKS, Ordering::Relaxed);
    }
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
            count_from_here();
            tensors::run(provider);
            count_no_more();
            report();
            tensors::check(fail_at.is_some());
        }
        Ok(front) => {
            fronts::run(front, &kind);
            report();
        }
    }
    tell();
}
