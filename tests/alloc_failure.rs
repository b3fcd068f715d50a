//! Memory that runs out. Two managers in a child process create, connect, send, receive and end over an
//! allocator whose n-th call fails; each child is this program again.
//!
//! What is asked for by a size that a peer or the application chose never aborts. What does abort,
//! as any Rust program does, are smaller requests than [`SMALL`], whose sizes the code fixes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rdma_transport::api::*;
use rdma_transport::config::{Config, Progress};
use rdma_transport::fabric::ProviderKind;
use rdma_transport::manager::Manager;
use rdma_transport::status::{Code, Status};

/// Requests below this may abort.
const SMALL: usize = 4097;

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
    if fails && std::env::var_os("ALLOC_TRACE").is_some() {
        LEAST.store(usize::MAX, Ordering::Relaxed);
        eprintln!("{size} bytes fail at {}", std::backtrace::Backtrace::force_capture());
    }
    fails
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
    let late = Instant::now() + Duration::from_secs(25);
    while ENDED.lock().unwrap().len() < until {
        assert!(Instant::now() < late, "an operation has not ended: {:?}", ENDED.lock().unwrap());
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
    LEAST.store(number("ALLOC_LEAST").unwrap_or(1) as usize, Ordering::Relaxed);
    run(kind, key);
    LEAST.store(usize::MAX, Ordering::Relaxed);
    let all = ENDED.lock().unwrap();
    for (what, code) in all.iter() {
        // The other side of an operation, or of the connection, whose memory ran out hears so.
        let fair = [Code::Ok, Code::ResourceExhausted, Code::Unavailable, Code::Aborted];
        assert!(fair.contains(code), "{what} ended with {code:?}");
        assert!(fail_at.is_some() || *code == Code::Ok, "{what} ended with {code:?}");
    }
    println!("CALLS {}", COUNT.load(Ordering::Relaxed));
}

struct Child {
    aborted_at: Option<usize>,
    calls: u64,
    text: String,
    good: bool,
}

fn child(kind: &str, least: usize, fail_at: u64) -> Child {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_run", "--nocapture", "--test-threads=1"])
        .env("ALLOC_KIND", kind)
        .env("ALLOC_LEAST", least.to_string())
        .env("ALLOC_FAIL_AT", fail_at.to_string())
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    let after = |word: &str| {
        let rest = text.split_once(word)?.1;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok()
    };
    Child {
        aborted_at: after("memory allocation of ").map(|n| n as usize),
        calls: after("CALLS ").unwrap_or(0),
        good: output.status.success(),
        text,
    }
}

/// Runs children over these calls, two at a time; what was wrong.
fn sweep(kind: &'static str, least: usize, step: u64) -> (u64, usize) {
    let calls = child(kind, least, 0).calls;
    assert!(calls > 0, "the child did not run");
    let next = AtomicU64::new(1);
    let (wrong, aborts) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                loop {
                    let n = next.fetch_add(step, Ordering::Relaxed);
                    if n > calls {
                        return;
                    }
                    let child = child(kind, least, n);
                    match child.aborted_at {
                        Some(size) if size < SMALL => _ = aborts.fetch_add(1, Ordering::Relaxed),
                        None if child.good => {}
                        _ => wrong.lock().unwrap().push(format!("{n}: {}", child.text)),
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} of {calls}:\n{}", wrong.len(), wrong.join("\n"));
    (calls, aborts.into_inner())
}

/// Each request of some size fails once: none of them aborts.
#[test]
fn r20_no_size_that_is_chosen_reaches_an_allocator_that_aborts() {
    for kind in ["loopback", "shm", "tcp"] {
        let (calls, aborts) = sweep(kind, SMALL, 1);
        println!("{kind}: each of {calls} calls of {SMALL} bytes and more failed");
        assert_eq!(aborts, 0);
    }
}
