//! Traces in Chrome's trace-event format, which Perfetto and chrome://tracing open.
//!
//! Events gather in a bounded buffer, which goes to the file when it is full and at the end. After
//! each write the file is complete JSON, so that a process that dies leaves a usable trace.

use std::cell::Cell;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use foldhash::HashMap;
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::render::Json;
use crate::log;
use crate::os::without_write_signals;
use crate::status::{Code, Status};

/// Events that wait in memory.
const BUFFERED: usize = 4096;
/// Events of one trace; what comes later is dropped and counted.
const MAX_EVENTS: u64 = 10_000_000;
/// Bytes of a key that are kept.
const KEY_SHOWN: usize = 64;
/// End of the file, overwritten by the next events.
const END: &[u8] = b"\n]\n";

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

struct Event {
    name: &'static str,
    category: &'static str,
    start: Instant,
    duration: Duration,
    thread: u32,
    /// 0: nests on its thread. Otherwise it overlaps with others and has a track of its own.
    id: u64,
    peer: SmallVec<[u8; 24]>,
    key: SmallVec<[u8; KEY_SHOWN]>,
    step: i64,
    bytes: u64,
    provider: &'static str,
    protocol: &'static str,
    code: Option<Code>,
    by: &'static str,
}

struct Recorder {
    path: String,
    file: File,
    process: u32,
    /// One moment on the clock of events and, in nanoseconds, on the system's monotonic clock, so
    /// that traces of several processes of a host can be laid over each other.
    anchor: (Instant, u64),
    events: Vec<Event>,
    recorded: u64,
    dropped: u64,
}

/// The trace of a manager; off until started.
#[derive(Default)]
pub struct Trace {
    on: AtomicBool,
    /// Numbers those that have none.
    next: AtomicU64,
    recorder: Mutex<Option<Recorder>>,
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
                format!("a trace to {:?} is running, stop it first", running.path),
            ));
        }
        let process = std::process::id();
        let path =
            path.replace("%p", &process.to_string()).replace("%n", &manager.replace('/', "-"));
        *recorder = Some(Recorder::create(path, process, manager)?);
        self.on.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Completes the file and closes it.
    pub fn stop(&self) -> Result<(), Status> {
        self.on.store(false, Ordering::Relaxed);
        self.asked.lock().clear();
        *self.spin.lock() = None;
        let Some(mut recorder) = self.recorder.lock().take() else {
            return Err(Status::new(Code::FailedPrecondition, "no trace is running"));
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

impl Recorder {
    fn create(path: String, process: u32, manager: &str) -> Result<Recorder, Status> {
        let os = |e| Status::os(format_args!("trace to {path:?}"), &e);
        let mut file = File::create(&path).map_err(os)?;
        let head = format!(
            "[\n{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{process},\"tid\":0,\
             \"args\":{{\"name\":{}}}}}\n]\n",
            Json(manager)
        );
        without_write_signals(|| file.write_all(head.as_bytes())).map_err(os)?;
        Ok(Recorder {
            file,
            process,
            anchor: (Instant::now(), monotonic_ns()),
            events: Vec::with_capacity(BUFFERED),
            recorded: 0,
            dropped: 0,
            path,
        })
    }

    fn push(&mut self, event: Event) -> Result<(), Status> {
        if self.recorded == MAX_EVENTS {
            self.dropped += 1;
            return Ok(());
        }
        self.recorded += 1;
        self.events.push(event);
        if self.events.len() == BUFFERED { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Status> {
        let mut text = String::new();
        for event in std::mem::take(&mut self.events) {
            let _ = self.write_event(&mut text, &event);
        }
        self.events.reserve(BUFFERED);
        self.append(&text)
    }

    /// Writes events over the end of the file, and the end after them.
    fn append(&mut self, text: &str) -> Result<(), Status> {
        if text.is_empty() {
            return Ok(());
        }
        let path = &self.path;
        let os = |e| Status::os(format_args!("trace to {path:?}"), &e);
        self.file.seek(SeekFrom::End(-(END.len() as i64))).map_err(os)?;
        let mut bytes = Vec::with_capacity(text.len() + END.len());
        bytes.extend_from_slice(text.as_bytes());
        bytes.extend_from_slice(END);
        without_write_signals(|| self.file.write_all(&bytes)).map_err(os)
    }

    fn finish(&mut self) -> Result<(), Status> {
        self.flush()?;
        if self.dropped == 0 {
            return Ok(());
        }
        log::warn(format_args!(
            "the trace {:?} lacks its last {} events, at most {MAX_EVENTS} are written",
            self.path, self.dropped
        ));
        self.append(&format!(
            ",\n{{\"name\":\"dropped_events\",\"ph\":\"M\",\"pid\":{},\"tid\":0,\
             \"args\":{{\"count\":{}}}}}",
            self.process, self.dropped
        ))
    }

    fn write_event(&self, out: &mut String, event: &Event) -> std::fmt::Result {
        let ts = self.nanos(event.start);
        let end = ts + event.duration.as_nanos() as u64;
        // By key, so that one tensor's way is found by its name in every process.
        let name = match event.key.is_empty() {
            true => event.name.to_owned(),
            false => format!("{} {}", event.name, crate::shown::key(&event.key)),
        };
        let (name, category) = (Json(&name), Json(event.category));
        let process = self.process;
        let common = |out: &mut String, phase: char, ts: u64| {
            let (us, ns) = (ts / 1000, ts % 1000);
            write!(
                out,
                ",\n{{\"name\":{name},\"cat\":{category},\"ph\":\"{phase}\",\"ts\":{us}.{ns:03},\
                 \"pid\":{process},\"tid\":{}",
                event.thread
            )
        };
        if event.id == 0 {
            common(out, 'X', ts)?;
            let (us, ns) = ((end - ts) / 1000, (end - ts) % 1000);
            write!(out, ",\"dur\":{us}.{ns:03}")?;
            write_args(out, event)?;
            out.push('}');
            return Ok(());
        }
        common(out, 'b', ts)?;
        write!(out, ",\"id\":\"{:#x}\"", event.id)?;
        write_args(out, event)?;
        out.push('}');
        common(out, 'e', end)?;
        write!(out, ",\"id\":\"{:#x}\"}}", event.id)
    }

    /// On the system's monotonic clock.
    fn nanos(&self, at: Instant) -> u64 {
        let (instant, ns) = self.anchor;
        match at.checked_duration_since(instant) {
            Some(after) => ns.saturating_add(after.as_nanos() as u64),
            None => ns.saturating_sub(instant.duration_since(at).as_nanos() as u64),
        }
    }
}

fn write_args(out: &mut String, event: &Event) -> std::fmt::Result {
    write!(out, ",\"args\":{{\"bytes\":{}", event.bytes)?;
    if !event.peer.is_empty() {
        write!(out, ",\"peer\":{}", Json(&String::from_utf8_lossy(&event.peer)))?;
    }
    if !event.key.is_empty() {
        let key = event.key.escape_ascii().to_string();
        write!(out, ",\"key\":{},\"step\":{}", Json(&key), event.step)?;
    }
    for (name, value) in [
        ("provider", event.provider),
        ("protocol", event.protocol),
        ("code", event.code.map_or("", Code::name)),
        ("by", event.by),
    ] {
        if !value.is_empty() {
            write!(out, ",\"{name}\":{}", Json(value))?;
        }
    }
    out.push('}');
    Ok(())
}

fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the struct it is given; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
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
mod tests {
    use super::*;
    use serde_json::Value;

    fn read(path: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(path).unwrap();
        serde_json::from_str::<Value>(&text).unwrap().as_array().unwrap().clone()
    }

    fn path(name: &str) -> String {
        let dir = std::env::temp_dir();
        dir.join(format!("rdma-trace-{}-{name}", std::process::id())).to_str().unwrap().to_owned()
    }

    #[test]
    fn events_reach_the_file() {
        let path = path("events-%n.json");
        let trace = Trace::new();
        assert!(!trace.enabled());
        trace.span("before", "test", Instant::now(), &Args::default());
        trace.start(&path, "a/b").unwrap();
        let again = trace.start(&path, "a/b").unwrap_err();
        assert_eq!(again.code, Code::FailedPrecondition);
        let start = Instant::now();
        trace.span("copy", "memory", start, &Args { bytes: 7, ..Args::default() });
        let args = Args {
            peer: "w\"1",
            key: b"k\xff;\"",
            step: -3,
            bytes: 4096,
            provider: "shm",
            protocol: "eager",
            code: Some(Code::Ok),
            by: "",
        };
        trace.transfer("recv", "transfer", start, 9, &args);
        trace.stop().unwrap();
        assert_eq!(trace.stop().unwrap_err().code, Code::FailedPrecondition);
        trace.span("after", "test", Instant::now(), &Args::default());

        let path = path.replace("%n", "a-b");
        let events = read(&path);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(events.len(), 4);
        assert_eq!(events[0]["args"]["name"], "a/b");
        assert_eq!((&events[1]["ph"], &events[1]["name"]), (&"X".into(), &"copy".into()));
        assert_eq!(events[1]["args"], serde_json::json!({"bytes": 7}));
        assert!(events[1]["dur"].as_f64().unwrap() >= 0.0);
        assert_eq!((&events[2]["ph"], &events[3]["ph"]), (&"b".into(), &"e".into()));
        assert_eq!(events[2]["id"], events[3]["id"]);
        assert!(events[3]["ts"].as_f64().unwrap() >= events[2]["ts"].as_f64().unwrap());
        let args = &events[2]["args"];
        assert_eq!((&args["peer"], &args["step"]), (&"w\"1".into(), &(-3).into()));
        assert_eq!((&args["key"], &args["code"]), (&"k\\xff;\\\"".into(), &"OK".into()));
    }

    #[test]
    fn r26_spans_are_named_by_key_and_say_who_waited() {
        let path = path("explains.json");
        let trace = Trace::new();
        trace.looked(0);
        assert!(trace.sleeps().is_none(), "costs nothing while off");
        trace.asked(1, "w", b"k", 1);
        trace.start(&path, "w").unwrap();
        trace.looked(0);
        trace.looked(0);
        trace.looked(3); // a spin ends
        trace.looked(1);
        trace.looked(0);
        let since = trace.sleeps(); // another one does
        trace.slept(since, "adapter tcp");
        trace.asked(7, "worker", b"layer/w\xff", 3);
        trace.answered(7, Code::NotFound);
        trace.answered(7, Code::Ok);
        trace.answered(1, Code::Ok);
        let start = Instant::now();
        let args = Args { peer: "worker", key: b"layer/w", step: 3, ..Args::default() };
        trace.transfer("recv", "transfer", start, 9, &args);
        trace.stop().unwrap();
        let events = read(&path);
        std::fs::remove_file(&path).unwrap();
        let names: Vec<&str> = events[1..].iter().map(|e| e["name"].as_str().unwrap()).collect();
        let source = "source layer/w\\xff";
        assert_eq!(
            names,
            ["spin", "spin", "sleep", source, source, "recv layer/w", "recv layer/w"]
        );
        assert_eq!(events[3]["args"]["by"], "adapter tcp");
        assert_eq!(events[4]["args"]["code"], "NOT_FOUND");
        assert_eq!(events[4]["args"]["peer"], "worker");
    }

    #[test]
    fn the_file_is_complete_json_before_it_is_stopped() {
        let path = path("unstopped.json");
        let trace = Trace::new();
        trace.start(&path, "w").unwrap();
        assert_eq!(read(&path).len(), 1);
        for _ in 0..2 * BUFFERED + 5 {
            trace.span("turn", "test", Instant::now(), &Args::default());
        }
        assert_eq!(read(&path).len(), 1 + 2 * BUFFERED, "full buffers are written");
        drop(trace);
        assert_eq!(read(&path).len(), 1 + 2 * BUFFERED + 5, "the rest at the end");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_file_that_cannot_be_written_is_an_error() {
        let trace = Trace::new();
        let err = trace.start("/nonexistent/dir/t.json", "w").unwrap_err();
        assert_eq!(err.code, Code::NotFound);
        assert!(err.message.contains("/nonexistent/dir/t.json"));
        assert!(!trace.enabled());
    }

    #[test]
    fn a_full_disk_ends_the_trace_only() {
        let trace = Trace::new();
        if trace.start("/dev/full", "w").is_err() {
            return; // the first bytes are refused already
        }
        for _ in 0..BUFFERED {
            trace.span("turn", "test", Instant::now(), &Args::default());
        }
        assert!(!trace.enabled());
    }
}
