//! Who drives a manager, who sleeps, and what wakes them. The protocol itself is checked by the model in
//! `src/manager/wheel/model.rs`.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rdma_transport::api::*;
use rdma_transport::config::{Config, Progress};
use rdma_transport::fabric::ProviderKind;
use rdma_transport::manager::Manager;
use rdma_transport::status::Code;

#[path = "support/skip.rs"]
mod skip;

const LONG: Duration = Duration::from_secs(30);

fn manager(name: &str, kind: ProviderKind, progress: Progress) -> Arc<Manager> {
    let config = Config {
        name: name.into(),
        provider: Some(kind),
        listen: Some("127.0.0.1:0".into()),
        progress,
        ..Config::default()
    };
    Manager::new(config).unwrap()
}

fn pair(kind: ProviderKind, progress: Progress) -> (Arc<Manager>, Arc<Manager>) {
    let a = manager("a", kind, progress);
    let b = manager("b", kind, Progress::Thread);
    let blob = b.export_address().unwrap();
    a.import_address(&blob).unwrap();
    (a, b)
}

static DATA: [u8; 1024] = [7; 1024];

fn send(from: &Manager, step: i64) {
    let meta = Meta { dtype: 1, nbytes: DATA.len() as u64, ..Default::default() };
    let tensor = Tensor { meta, addr: DATA.as_ptr() as u64, device: 0 };
    // SAFETY: static memory.
    unsafe { from.send(b"key", step, tensor, None, None) }.unwrap();
}

fn options(target: Target, keep: bool) -> RecvOptions {
    RecvOptions { timeout: Some(LONG), target, device: 0, keep }
}

fn receive(a: &Manager, step: i64) {
    // SAFETY: library memory.
    let (_, id) =
        unsafe { a.recv(Some("b"), b"key", step, options(Target::Library, true)) }.unwrap();
    a.request_release(id).unwrap();
}

/// Blocking receives while another thread turns the manager, too: a turn disarms the adapters under whoever sleeps.
/// Where that loses wake-ups each receive waits for the next timer, a tenth of a second or more.
#[test]
fn r01_turns_beside_a_sleeping_caller_lose_no_wake_up() {
    const ROUNDS: i64 = 100;
    let (a, b) = pair(ProviderKind::Shm, Progress::Thread);
    let stop = Arc::new(AtomicBool::new(false));
    let (other, ended) = (a.clone(), stop.clone());
    let visitor = std::thread::spawn(move || {
        while !ended.load(Ordering::Relaxed) {
            other.progress().unwrap();
            std::thread::sleep(Duration::from_micros(500));
        }
    });
    let mut slow = 0;
    for step in 0..ROUNDS {
        let from = b.clone();
        let sender = std::thread::spawn(move || {
            // The receiver sleeps by then.
            std::thread::sleep(Duration::from_millis(2));
            send(&from, step);
        });
        let began = Instant::now();
        receive(&a, step);
        slow += i64::from(began.elapsed() > Duration::from_millis(90));
        sender.join().unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    visitor.join().unwrap();
    assert!(slow < ROUNDS / 2, "{slow} of {ROUNDS} receives waited for a timer");
    a.destroy().unwrap();
    b.destroy().unwrap();
}

/// A wait ends with the callback that ran in it, although the operation was decided before it began.
#[test]
fn r03_a_wait_counts_the_callback_and_not_the_decision() {
    let (a, b) = pair(ProviderKind::Shm, Progress::Manual);
    a.connect("b", Some(LONG)).unwrap();
    let ran = Arc::new(AtomicU32::new(0));
    for step in 0..50 {
        send(&b, step);
        let memory = Box::leak(Box::new([0u8; DATA.len()])).as_mut_ptr() as u64;
        let target = Target::Alloc(Box::new(move |_| Some(memory)));
        let counted = ran.clone();
        let done: RecvDone = Box::new(move |result, _| {
            result.unwrap();
            counted.fetch_add(1, Ordering::Relaxed);
        });
        // SAFETY: the memory is leaked.
        unsafe { a.recv_async(Some("b"), b"key", step, options(target, false), done) }.unwrap();
        while ran.load(Ordering::Relaxed) == step as u32 {
            a.wait(LONG).unwrap();
        }
    }
    assert_eq!(a.wait(Duration::ZERO).unwrap_err().code, Code::DeadlineExceeded);
    a.destroy().unwrap();
    b.destroy().unwrap();
}

/// A callback that runs on the progress thread, between the application's look and its wait, is not missed.
#[test]
fn r03_a_wait_sees_what_happened_before_it() {
    let (a, b) = pair(ProviderKind::Shm, Progress::Thread);
    let ran = Arc::new(AtomicBool::new(false));
    for step in 0..20 {
        send(&b, step);
        let told = ran.clone();
        let done: RecvDone = Box::new(move |_, _| told.store(true, Ordering::SeqCst));
        // SAFETY: library memory.
        unsafe { a.recv_async(Some("b"), b"key", step, options(Target::Library, false), done) }
            .unwrap();
        let began = Instant::now();
        while !ran.swap(false, Ordering::SeqCst) {
            assert!(began.elapsed() < LONG);
            std::thread::yield_now();
        }
        // The callback ran on the other thread; its run is counted just behind it.
        a.wait(LONG).unwrap();
    }
    a.destroy().unwrap();
    b.destroy().unwrap();
}

/// A limit on file sizes costs what a file would give, here that the pool is shared, and what is written to one: SIGXFSZ would end the
/// process.
#[test]
fn r05_a_limit_on_file_sizes_ends_no_process() {
    use std::os::unix::process::CommandExt;
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "--ignored", "r05_child_under_a_limit_on_file_sizes"]);
    let limit = || {
        let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
        // SAFETY: the struct lives through the call.
        match unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: only a system call runs between fork and exec.
    let output = unsafe { child.pre_exec(limit) }.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
#[ignore = "the child of r05_a_limit_on_file_sizes_ends_no_process"]
fn r05_child_under_a_limit_on_file_sizes() {
    let (a, b) = pair(ProviderKind::Tcp, Progress::Thread);
    let memory = a.mem_alloc(64 << 20).unwrap() as *mut u8;
    // SAFETY: so much was given.
    unsafe { memory.write_bytes(1, 64 << 20) };
    let trace = std::env::temp_dir().join(format!("r05-{}.json", std::process::id()));
    a.trace_start(trace.to_str().unwrap()).unwrap();
    send(&b, 1);
    let mut memory = [0u8; DATA.len()];
    let target = Target::Given { addr: memory.as_mut_ptr() as u64, len: memory.len() as u64 };
    // SAFETY: the memory outlives the blocking call.
    unsafe { a.recv(Some("b"), b"key", 1, options(target, false)) }.unwrap();
    assert_eq!(memory, DATA);
    a.destroy().unwrap();
    b.destroy().unwrap();
    let _ = std::fs::remove_file(trace);
}

/// Processor time of this process's progress threads, in clock ticks.
fn progress_time() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
    let stats = tasks.filter_map(|t| std::fs::read_to_string(t.path().join("stat")).ok());
    let times = stats.filter(|s| s.contains("(rdma-progress)")).map(|s| {
        let fields: Vec<&str> = s.rsplit(") ").next().unwrap().split(' ').collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    });
    times.sum()
}

/// What the pool gives back after a while is given back by a driver that sleeps, and does not keep it from sleeping. In a
/// process of its own: the drivers of other tests would count.
#[test]
fn r25_a_pool_that_shrinks_keeps_nobody_awake() {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "--ignored", "r25_child_whose_pool_shrinks"]);
    let output = child.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
#[ignore = "the child of r25_a_pool_that_shrinks_keeps_nobody_awake"]
fn r25_child_whose_pool_shrinks() {
    let (a, b) = pair(ProviderKind::Shm, Progress::Thread);
    a.connect("b", Some(LONG)).unwrap();
    for _ in 0..4 {
        let addr = a.mem_alloc(32 << 20).unwrap();
        // SAFETY: just allocated, of this length.
        unsafe { (addr as *mut u8).write_bytes(1, 32 << 20) };
        a.mem_free(addr).unwrap();
    }
    // Over the time at which the first half is due.
    std::thread::sleep(Duration::from_secs(12));
    let before = progress_time();
    std::thread::sleep(Duration::from_secs(2));
    let spent = progress_time() - before;
    // SAFETY: no pointers.
    let second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as u64;
    assert!(spent < second / 2, "{spent} of {} ticks while idle", 2 * second);
    a.destroy().unwrap();
    b.destroy().unwrap();
}

/// How long the scheduler lets the calling thread run at once, in nanoseconds; 0: this system does not say.
fn slice() -> u64 {
    let mut attr = [0u64; 8];
    // SAFETY: so many writable bytes; 0 is the calling thread.
    unsafe { libc::syscall(libc::SYS_sched_getattr, 0, attr.as_mut_ptr(), 56, 0) };
    attr[3]
}

/// Receives a tensor; what `f` says of it on the progress thread.
fn receive_async<T: Send + 'static>(
    m: &Manager,
    step: i64,
    f: impl FnOnce() -> T + Send + 'static,
) -> mpsc::Receiver<T> {
    let (tx, rx) = mpsc::channel();
    let done: RecvDone = Box::new(move |result, _| {
        result.unwrap();
        tx.send(f()).unwrap();
    });
    // SAFETY: library memory.
    unsafe { m.recv_async(Some("b"), b"key", step, options(Target::Library, false), done) }
        .unwrap();
    rx
}

/// Where many events come at once the progress thread asks to run for a short time, so that who is woken by the first callback does not
/// take the processor before the others; where one comes after the other it does not.
#[test]
fn r24_the_slice_is_short_while_many_events_come_at_once() {
    const MANY: i64 = 40;
    let (a, b) = pair(ProviderKind::Shm, Progress::Thread);
    let mut step = 0;
    let mut one = || {
        step += 1;
        let seen = receive_async(&a, step, slice);
        send(&b, step);
        seen.recv_timeout(LONG).unwrap()
    };
    let usual = one();
    if usual == 0 {
        return skip::skip("the scheduler has no slices (Linux 6.12)");
    }
    assert!(usual > 100_000, "{usual}");
    assert!((0..100).all(|_| one() == usual));
    let mut bursts = (1..=20i64).map(|round| {
        let first = round * 1_000;
        let (begun, begins) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let held = receive_async(&a, first, move || {
            begun.send(()).unwrap();
            released.recv_timeout(LONG).unwrap();
        });
        let waiting: Vec<_> = (1..=MANY).map(|i| receive_async(&a, first + i, slice)).collect();
        send(&b, first);
        begins.recv_timeout(LONG).unwrap();
        // The progress thread is in the callback while these come.
        (1..=MANY).for_each(|i| send(&b, first + i));
        release.send(()).unwrap();
        held.recv_timeout(LONG).unwrap();
        waiting.into_iter().map(|seen| seen.recv_timeout(LONG).unwrap()).min().unwrap()
    });
    assert!(bursts.any(|seen| seen == 100_000), "never short");
    assert!((0..200).any(|_| one() == usual), "short for good");
    a.destroy().unwrap();
    b.destroy().unwrap();
}
