//! Traces in Chrome's trace-event format, which Perfetto and chrome://tracing open.
//!
//! Events gather in a bounded buffer, which goes to the file when it is full, each second in which there are some, and at the end. After
//! each write the file is complete JSON, so that a process that dies leaves a usable trace.

mod recorder;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use foldhash::HashMap;
use parking_lot::Mutex;
use smallvec::SmallVec;

use recorder::{Event, KEY_SHOWN, Recorder};

use crate::log;
use crate::status::{Code, Status};

/// What an event tells beside its name and times.
#[derive(Clone, Debug, Default)]
pub struct Args<'a> {
    /// The peer; "" if there is none.
    pub peer: &'a str,
    /// Key of the tensor; its beginning is kept. Empty if there is none.
    pub key: &'a [u8],
    /// Step of the tensor.
    pub step: i64,
    /// Content bytes.
    pub bytes: u64,
    /// Provider, "" if there is none.
    pub provider: &'static str,
    /// Protocol, "" if there is none.
    pub protocol: &'static str,
    /// How it ended.
    pub code: Option<Code>,
    /// What ended it, "" if that says nothing: what woke a sleeper.
    pub by: &'static str,
}

/// The trace of a manager; off until started.
#[derive(Default)]
pub struct Trace {
    on: AtomicBool,
    /// Numbers those that have none.
    next: AtomicU64,
    recorder: Mutex<Option<Recorder>>,
    /// Why it has ended by itself, until that is told.
    failed: Mutex<Option<Status>>,
    /// Since when nothing has been found to do, and who looks.
    spin: Mutex<Option<(Instant, u32)>>,
    asked: Mutex<HashMap<u64, Asked>>,
}

/// A request that the source callback was given, until its answer.
struct Asked {
    begun: Instant,
    peer: SmallVec<[u8; 24]>,
    key: SmallVec<[u8; KEY_SHOWN]>,
    step: i64,
}

/// Most requests whose answer is waited for in a trace.
const MAX_ASKED: usize = 65_536;

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trace").field("on", &self.on).finish_non_exhaustive()
    }
}

impl Trace {
    /// A trace that is off.
    pub fn new() -> Trace {
        Trace::default()
    }

    /// Whether events are recorded: one relaxed load, to be asked before making an event.
    #[inline]
    pub fn enabled(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Starts to record into the file `path`, which is replaced. "%p" becomes the process id, "%n"
    /// the manager's name, its slashes made dashes.
    pub fn start(&self, path: &str, manager: &str) -> Result<(), Status> {
        let mut recorder = self.recorder.lock();
        if let Some(running) = &*recorder {
            return Err(Status::new(
                Code::FailedPrecondition,
                text!("a trace to {:?} is running, stop it first", running.path),
            ));
        }
        let process = std::process::id();
        let path =
            path.replace("%p", &process.to_string()).replace("%n", &manager.replace('/', "-"));
        *recorder = Some(Recorder::create(path, process, manager)?);
        *self.failed.lock() = None;
        self.on.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Completes the file and closes it.
    pub fn stop(&self) -> Result<(), Status> {
        self.on.store(false, Ordering::Relaxed);
        self.asked.lock().clear();
        *self.spin.lock() = None;
        let Some(mut recorder) = self.recorder.lock().take() else {
            let none = || Status::new(Code::FailedPrecondition, "no trace is running");
            return Err(self.failed.lock().take().unwrap_or_else(none));
        };
        recorder.finish()
    }

    /// Records work that nests within other work of this thread: a turn of a loop, a copy.
    pub fn span(
        &self,
        name: &'static str,
        category: &'static str,
        start: Instant,
        args: &Args<'_>,
    ) {
        self.record(name, category, start, 0, args);
    }

    /// Records something that overlaps with others of its kind: a transfer, a connection. `id` is
    /// its own among events of one name and category; 0: one is drawn.
    pub fn transfer(
        &self,
        name: &'static str,
        category: &'static str,
        start: Instant,
        id: u64,
        args: &Args<'_>,
    ) {
        let id = if id == 0 { self.next.fetch_add(1, Ordering::Relaxed) + 1 } else { id };
        self.record(name, category, start, id, args);
    }

    /// A driver looked and found nothing (`found` 0), or something: a stretch of looking in vain is a
    /// span "spin", until there is something or `sleep` begins.
    #[inline]
    pub fn looked(&self, found: u32) {
        if self.enabled() {
            self.count_look(found);
        }
    }

    #[cold]
    fn count_look(&self, found: u32) {
        let mut spin = self.spin.lock();
        let me = thread_id();
        let other = spin.as_ref().is_some_and(|&(_, thread)| thread != me);
        if found > 0 || other {
            let begun = spin.take().filter(|_| !other);
            drop(spin);
            if let Some((begun, _)) = begun {
                self.span("spin", "progress", begun, &Args::default());
            }
        } else if spin.is_none() {
            *spin = Some((Instant::now(), me));
        }
    }

    /// A driver is about to sleep; the moment to be handed to `slept`.
    pub fn sleeps(&self) -> Option<Instant> {
        if !self.enabled() {
            return None;
        }
        self.looked(1);
        Some(Instant::now())
    }

    /// It is awake; `by` says what woke it.
    pub fn slept(&self, since: Option<Instant>, by: &'static str) {
        if let Some(since) = since {
            self.span("sleep", "progress", since, &Args { by, ..Args::default() });
        }
    }

    /// The source callback is about to be given this request.
    pub fn asked(&self, id: u64, peer: &str, key: &[u8], step: i64) {
        let mut asked = self.asked.lock();
        if self.enabled() && asked.len() < MAX_ASKED {
            let (peer, key) = (peer.as_bytes(), &key[..key.len().min(KEY_SHOWN)]);
            let (peer, key) = (SmallVec::from_slice(peer), SmallVec::from_slice(key));
            asked.insert(id, Asked { begun: Instant::now(), peer, key, step });
        }
    }

    /// It was answered, or has ended without.
    pub fn answered(&self, id: u64, code: Code) {
        let Some(asked) = self.asked.lock().remove(&id) else { return };
        let peer = String::from_utf8_lossy(&asked.peer);
        let (key, step) = (&asked.key[..], asked.step);
        let args = Args { peer: &peer, key, step, code: Some(code), ..Args::default() };
        self.transfer("source", "source", asked.begun, id, &args);
    }

    fn record(
        &self,
        name: &'static str,
        category: &'static str,
        start: Instant,
        id: u64,
        args: &Args<'_>,
    ) {
        if !self.enabled() {
            return;
        }
        let event = Event {
            name,
            category,
            start,
            duration: start.elapsed(),
            thread: thread_id(),
            id,
            peer: SmallVec::from_slice(args.peer.as_bytes()),
            key: SmallVec::from_slice(&args.key[..args.key.len().min(KEY_SHOWN)]),
            step: args.step,
            bytes: args.bytes,
            provider: args.provider,
            protocol: args.protocol,
            code: args.code,
            by: args.by,
        };
        let mut guard = self.recorder.lock();
        let Some(recorder) = &mut *guard else { return };
        if let Err(status) = recorder.push(event) {
            // A full disk ends the trace, not the transfers.
            self.on.store(false, Ordering::Relaxed);
            *guard = None;
            drop(guard);
            log::error(format_args!("the trace ends: {status}"));
            *self.failed.lock() = Some(status);
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if let Some(mut recorder) = self.recorder.get_mut().take()
            && let Err(status) = recorder.finish()
        {
            log::error(format_args!("the trace is incomplete: {status}"));
        }
    }
}

/// The system's number of this thread.
fn thread_id() -> u32 {
    thread_local! {
        static ID: Cell<u32> = const { Cell::new(0) };
    }
    ID.try_with(|id| {
        if id.get() == 0 {
            // SAFETY: has no arguments and cannot fail.
            id.set(unsafe { libc::gettid() } as u32);
        }
        id.get()
    })
    .unwrap_or(0)
}

#[cfg(test)]
mod tests;
