//! Log messages: filtered by level, to the application's callback or to stderr.
//!
//! The callback is application code and may call the library. So it must not run while the engine
//! holds a lock: code that may log with a lock held is bracketed by a [`Deferred`], and its
//! messages reach the callback when the outermost bracket ends. The ABI layer brackets each call;
//! threads of the library bracket each turn of their loop.
//!
//! Each place that logs is limited, so that nobody who causes a line can flood the log: see `limit`. Stderr is written
//! with locks held, and never waited for: see `stderr`.

mod limit;
mod speaker;
mod stderr;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::RwLock;
pub use speaker::Speaker;

use crate::thread::Thread;

/// How important a message is; the numbers of `RDMA_LOG_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Something failed.
    Error = 1,
    /// Something is not as expected, and went on.
    Warn = 2,
    /// Decisions and changes of state.
    Info = 3,
    /// Details.
    Debug = 4,
}

impl Level {
    /// All of them, the most important first.
    pub const ALL: [Level; 4] = [Level::Error, Level::Warn, Level::Info, Level::Debug];

    /// The name in `RDMA_LOG` and on stderr.
    pub fn name(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
        }
    }

    /// The level of this name.
    pub fn from_name(name: &str) -> Option<Level> {
        Level::ALL.into_iter().find(|l| l.name() == name)
    }

    /// The level of this number.
    pub fn from_i32(n: i32) -> Option<Level> {
        Level::ALL.into_iter().find(|&l| l as i32 == n)
    }
}

/// Receives messages.
pub type LogFn = Arc<dyn Fn(Level, &str) + Send + Sync>;

static MAX_LEVEL: AtomicU8 = AtomicU8::new(Level::Warn as u8);
static CALLBACK: RwLock<Option<LogFn>> = RwLock::new(None);
/// Set by the environment, which overrides what is set in code.
static FROM_ENV: OnceLock<Option<Level>> = OnceLock::new();

/// Messages of one thread that wait for the end of its bracket; more than this are dropped.
const MAX_PENDING: usize = 1024;

/// This module's part of [`crate::thread`].
pub(crate) struct Own {
    depth: Cell<u32>,
    delivering: Cell<bool>,
    /// `pending` is not empty, or the thread leaves, for which the end of its bracket is the time.
    waits: Cell<bool>,
    /// Empty, and so without memory, outside of brackets: it needs no destructor. So this storage is
    /// never dead, also where the application destroys a manager in a thread-local destructor.
    pending: RefCell<ManuallyDrop<Vec<(Level, String)>>>,
    /// The number of the manager on whose behalf this thread works; 0: none. A number and not a name,
    /// so that it costs nothing to set where nothing is logged, and needs no destructor.
    speaker: Cell<u32>,
}

impl Own {
    pub(crate) const fn new() -> Own {
        Own {
            depth: Cell::new(0),
            delivering: Cell::new(false),
            waits: Cell::new(false),
            pending: RefCell::new(ManuallyDrop::new(Vec::new())),
            speaker: Cell::new(0),
        }
    }

    /// The thread leaves.
    pub(crate) fn wait(&self) {
        self.waits.set(true);
    }
}

/// Takes the level from `RDMA_LOG`, once per process. A wrong value is left to
/// [`Config::apply_env`](crate::config::Config::apply_env), which can report it.
fn init() {
    FROM_ENV.get_or_init(|| {
        let level = Level::from_name(std::env::var("RDMA_LOG").ok()?.as_str())?;
        MAX_LEVEL.store(level as u8, Ordering::Relaxed);
        Some(level)
    });
}

/// Sets the level, unless the environment has.
pub fn set_level(level: Level) {
    init();
    if FROM_ENV.get().copied().flatten().is_none() {
        MAX_LEVEL.store(level as u8, Ordering::Relaxed);
    }
}

/// Replaces the receiver of messages; `None` is stderr. A message that another thread is logging
/// at this moment may still reach the earlier one.
pub fn set_callback(callback: Option<LogFn>) {
    init();
    // The old one is dropped after the lock: dropping may run foreign code.
    let old = std::mem::replace(&mut *CALLBACK.write(), callback);
    drop(old);
}

/// Whether messages of this level go anywhere. For callers whose text is costly to make.
pub fn enabled(level: Level) -> bool {
    init();
    level as u8 <= MAX_LEVEL.load(Ordering::Relaxed)
}

/// Logs a failure.
#[track_caller]
pub fn error(args: fmt::Arguments<'_>) {
    log(Level::Error, args);
}

/// Logs a surprise.
#[track_caller]
pub fn warn(args: fmt::Arguments<'_>) {
    log(Level::Warn, args);
}

/// Logs a decision or a change of state.
#[track_caller]
pub fn info(args: fmt::Arguments<'_>) {
    log(Level::Info, args);
}

/// Logs a detail.
#[track_caller]
pub fn debug(args: fmt::Arguments<'_>) {
    log(Level::Debug, args);
}

/// Logs a message, unless the place that calls this has logged too much.
#[track_caller]
pub fn log(level: Level, args: fmt::Arguments<'_>) {
    if !enabled(level) {
        return;
    }
    let place = std::panic::Location::caller();
    if let Some(text) =
        limit::admit(place, level, Instant::now(), || format!("{}{args}", speaker::prefix()))
    {
        emit(level, text);
    }
}

/// Tells of lines that were left out, once the flood is over; true: there are more to be told later.
pub fn settle() -> bool {
    for (level, text) in limit::settle(Instant::now()) {
        emit(level, text);
    }
    limit::owes()
}

/// Whether [`settle`] is to be called before long.
pub fn owes() -> bool {
    limit::owes()
}

fn emit(level: Level, text: String) {
    let Some(callback) = CALLBACK.read().clone() else {
        return stderr::put(level, &text);
    };
    let own = &Thread::this().log;
    match (own.delivering.get(), own.depth.get()) {
        // It comes from inside the callback, and would never end.
        (true, _) => {}
        (false, 0) => call(&callback, level, &text),
        (false, _) => {
            let mut pending = own.pending.borrow_mut();
            if pending.len() < MAX_PENDING {
                pending.push((level, text));
                own.waits.set(true);
            }
        }
    }
}

fn call(callback: &LogFn, level: Level, text: &str) {
    let own = &Thread::this().log;
    own.delivering.set(true);
    callback(level, text);
    own.delivering.set(false);
}

/// While it lives, messages of this thread wait; the outermost one hands them over when dropped.
/// Hold it outside of every lock.
#[derive(Debug)]
pub struct Deferred(Thread);

impl Deferred {
    /// Opens a bracket.
    #[inline]
    pub fn new() -> Deferred {
        Deferred::on(Thread::this())
    }

    /// The same, on this thread.
    #[inline]
    pub(crate) fn on(thread: Thread) -> Deferred {
        thread.log.depth.set(thread.log.depth.get() + 1);
        Deferred(thread)
    }
}

impl Default for Deferred {
    fn default() -> Self {
        Deferred::new()
    }
}

impl Drop for Deferred {
    #[inline]
    fn drop(&mut self) {
        let own = &self.0.log;
        own.depth.set(own.depth.get().wrapping_sub(1));
        if own.depth.get() == 0 && own.waits.get() {
            end_outermost(self.0);
        }
    }
}

/// The outermost bracket of a thread ends, and something waits for that.
#[cold]
fn end_outermost(thread: Thread) {
    deliver();
    // The outermost call of the library, too.
    crate::ffi::go(thread);
}

/// Hands this thread's waiting messages to the callback. The caller holds no lock; for loops that
/// block for long inside one bracket.
#[cold]
pub fn deliver() {
    let thread = Thread::this();
    let own = &thread.log;
    if own.delivering.get() || own.pending.borrow().is_empty() {
        return;
    }
    own.waits.set(thread.leaves());
    let messages = std::mem::take(&mut **own.pending.borrow_mut());
    for (level, text) in messages {
        let callback = CALLBACK.read().clone();
        if let Some(callback) = callback {
            call(&callback, level, &text);
        }
    }
}

/// The log is one per process: tests that set its callback hold this.
#[cfg(test)]
pub(crate) static ONE_TEST: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    #[test]
    fn filters_defers_and_never_recurses() {
        if std::env::var_os("RDMA_LOG").is_some() {
            return; // the environment fixes the level
        }
        let _one = ONE_TEST.lock();
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let me = std::thread::current().id();
        let sink = seen.clone();
        set_callback(Some(Arc::new(move |level, text| {
            if std::thread::current().id() != me {
                return; // other tests of this process
            }
            error(format_args!("from inside the callback"));
            sink.lock().push(format!("{} {text}", level.name()));
        })));
        set_level(Level::Info);
        info(format_args!("one"));
        debug(format_args!("filtered"));
        assert_eq!(*seen.lock(), ["info one"]);

        let outer = Deferred::new();
        {
            let _inner = Deferred::new();
            let _held = seen.lock(); // a direct call would dead-lock here
            warn(format_args!("two"));
        }
        assert_eq!(seen.lock().len(), 1, "waits for the outermost bracket");
        deliver();
        assert_eq!(seen.lock().len(), 2, "unless asked for");
        error(format_args!("three"));
        drop(outer);
        assert_eq!(*seen.lock(), ["info one", "warn two", "error three"]);

        set_level(Level::Warn);
        set_callback(None);
        assert!(enabled(Level::Error) && enabled(Level::Warn) && !enabled(Level::Debug));
    }

    #[test]
    fn names_and_numbers_match() {
        for level in Level::ALL {
            assert_eq!(Level::from_name(level.name()), Some(level));
            assert_eq!(Level::from_i32(level as i32), Some(level));
        }
        assert_eq!(Level::from_i32(0), None);
        assert_eq!(Level::from_i32(5), None);
        assert_eq!(Level::from_name("WARN"), None);
    }
}
