//! Memory that runs out. Two managers in a child process create, connect, send, receive and end over an
//! allocator whose n-th call fails; each child is this program again.
//!
//! Every operation ends, well or with `RESOURCE_EXHAUSTED` (or with the other side's word for it), or the
//! process aborts, at one of the places of [`places`], whose sizes the code fixes. One child by hand:
//! `ALLOC_KIND=tcp ALLOC_LEAST=1 ALLOC_FAIL_AT=300 ALLOC_TRACE=1 cargo test --test alloc_failure -- --exact a_run`.

mod places;
mod sweep;

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rdma_transport::api::*;
use rdma_transport::config::{Config, Progress};
use rdma_transport::fabric::ProviderKind;
use rdma_transport::manager::Manager;
use rdma_transport::status::{Code, Status};
use rdma_transport::user::UserBytes;

struct Failing;

/// Calls of at least so many bytes are counted; none before the run begins.
static LEAST: AtomicUsize = AtomicUsize::new(usize::MAX);
static COUNT: AtomicU64 = AtomicU64::new(0);
static FAIL_AT: AtomicU64 = AtomicU64::new(0);

fn fails(size: usize) -> bool {
    if size < LEAST.load(Ordering::Relaxed) {
        return false;
    }
    let fails = COUNT.fetch_add(1, Ordering::Relaxed) + 1 == FAIL_AT.load(Ordering::Relaxed);
    if fails {
        LEAST.store(usize::MAX, Ordering::Relaxed);
        let place = Failed { size, stack: stack(), trace: Backtrace::force_capture() };
        *FAILED.lock().unwrap() = Some(place);
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

// SAFETY: the system's allocator, which may fail.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if fails(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: by the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if fails(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: by the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if fails(size) {
            return std::ptr::null_mut();
        }
        // SAFETY: by the caller's promise.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: by the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Failing = Failing;

/// How each operation ended.
static ENDED: Mutex<Vec<(&str, Code)>> = Mutex::new(Vec::new());

fn ended(what: &'static str, result: Result<(), Status>) {
    if let Err(status) = &result {
        eprintln!("{what}: {status}");
    }
    ENDED.lock().unwrap().push((what, result.map_or_else(|s| s.code, |()| Code::Ok)));
}

const OPERATIONS: usize = 10;
/// Longest key, and tensors that are small, that need memory of the receiver's, and that are written.
const KEY: usize = MAX_KEY_LEN;

fn pair(kind: ProviderKind) -> Result<[std::sync::Arc<Manager>; 2], Status> {
    let config = |name: &str| Config {
        name: name.into(),
        provider: Some(kind),
        listen: Some("127.0.0.1:0".into()),
        progress: Progress::Manual,
        ..Config::default()
    };
    let (a, b) = (Manager::new(config("a"))?, Manager::new(config("b"))?);
    a.import_address(&b.export_address()?)?;
    Ok([a, b])
}

fn transfer(a: &Manager, b: &Manager, key: &[u8], content: &'static [u8], target: Target) {
    let mut meta = Meta { dtype: 1, nbytes: content.len() as u64, ..Default::default() };
    meta.dims.push(content.len() as i64);
    // What is beside the content of some, too, may find no memory.
    let beside = if key[0] % 2 == 1 { &content[..300] } else { &[] };
    meta.user = match UserBytes::copy(beside) {
        Ok(user) => user,
        Err(status) => {
            ended("receive", Err(status.clone()));
            return ended("send", Err(status));
        }
    };
    let tensor = Tensor { meta, addr: content.as_ptr() as u64, device: 0 };
    let timeout = Some(Duration::from_secs(20));
    let sent: SendDone = Box::new(|result, _| ended("send", result));
    let received: RecvDone = Box::new(|result, _| {
        let right = result.as_ref().map(|t| {
            // SAFETY: the result lives as long as this call.
            (0..t.meta.nbytes).all(|i| unsafe { *((t.addr + i) as *const u8) } == 7)
        });
        assert!(right.unwrap_or(true), "other content than was sent");
        ended("receive", result.map(drop))
    });
    // SAFETY: the content is static.
    if let Err(status) = unsafe { b.send(key, 1, tensor, timeout, Some(sent.into())) } {
        // Nobody would answer the receive.
        ended("receive", Err(status.clone()));
        return ended("send", Err(status));
    }
    let options = RecvOptions { timeout, target, device: 0, keep: false };
    // SAFETY: the target is static.
    if let Err(status) = unsafe { a.recv_async(Some("b"), key, 1, options, received) } {
        ended("receive", Err(status));
        // Nobody takes the tensor then.
        let _ = b.step_cleanup(1);
    }
}

fn drive(managers: &[std::sync::Arc<Manager>], until: usize) {
    let late = Instant::now() + Duration::from_secs(15);
    while ENDED.lock().unwrap().len() < until {
        if Instant::now() > late {
            report();
            panic!("an operation has not ended: {:?}", ENDED.lock().unwrap());
        }
        for m in managers {
            let _ = m.progress();
        }
        // A receive that failed here leaves its tensor at the sender.
        let failed = |e: &(&str, Code)| e.0 == "receive" && e.1 != Code::Ok;
        if ENDED.lock().unwrap().iter().any(failed) {
            let _ = managers[1].step_cleanup(1);
        }
    }
}

fn run(kind: ProviderKind, mut key: Vec<u8>) {
    static SMALL_CONTENT: [u8; 4000] = [7; 4000];
    static LARGE: [u8; 300_000] = [7; 300_000];
    static PLACE: Mutex<[u8; 300_000]> = Mutex::new([0; 300_000]);
    let [a, b] = match pair(kind) {
        Ok(pair) => pair,
        Err(status) => {
            assert_eq!(status.code, Code::ResourceExhausted, "create: {status}");
            return;
        }
    };
    let place = || PLACE.lock().unwrap().as_mut_ptr() as u64;
    let targets: [(&'static [u8], Target); OPERATIONS / 2] = [
        (&SMALL_CONTENT, Target::Library),
        (&SMALL_CONTENT, Target::Alloc(Box::new(move |_| Some(place())))),
        (&LARGE, Target::Library),
        (&LARGE, Target::Alloc(Box::new(move |_| Some(place())))),
        (&LARGE, Target::Given { addr: place(), len: 300_000 }),
    ];
    for (i, (content, target)) in targets.into_iter().enumerate() {
        key[0] = i as u8;
        transfer(&a, &b, &key, content, target);
        drive(&[a.clone(), b.clone()], 2 * (i + 1));
    }
    for m in [a, b] {
        if let Err(status) = m.destroy() {
            panic!("destroy: {status}");
        }
    }
}

/// The run by itself, and what the other tests run in a child.
#[test]
fn a_run() {
    let number = |name: &str| std::env::var(name).ok().map(|n| n.parse::<u64>().unwrap());
    let kind = match std::env::var("ALLOC_KIND").as_deref() {
        Ok("loopback") => ProviderKind::Loopback,
        Ok("tcp") => ProviderKind::Tcp,
        _ => ProviderKind::Shm,
    };
    let fail_at = number("ALLOC_FAIL_AT");
    FAIL_AT.store(fail_at.unwrap_or(0), Ordering::Relaxed);
    let key = vec![b'k'; KEY];
    // SAFETY: plain calls; the handler is a function of the right kind.
    unsafe {
        if fail_at.is_some() {
            // A child that hangs.
            libc::alarm(60);
        }
        libc::signal(libc::SIGABRT, on_abort as *const () as libc::sighandler_t);
    }
    LEAST.store(number("ALLOC_LEAST").unwrap_or(1) as usize, Ordering::Relaxed);
    run(kind, key);
    LEAST.store(usize::MAX, Ordering::Relaxed);
    report();
    let all = ENDED.lock().unwrap();
    for (what, code) in all.iter() {
        // The other side of an operation, or of the connection, whose memory ran out hears so.
        let fair = [Code::Ok, Code::ResourceExhausted, Code::Unavailable, Code::Aborted];
        let given_up = *what == "send" && *code == Code::Cancelled;
        assert!(given_up || fair.contains(code), "{what} ended with {code:?}");
        assert!(fail_at.is_some() || *code == Code::Ok, "{what} ended with {code:?}");
    }
    println!("CALLS {}", COUNT.load(Ordering::Relaxed));
}
