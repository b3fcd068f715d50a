//! The file of a trace, in Chrome's trace-event format: events gather in a bounded buffer, and after each write the file is
//! complete JSON.

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::log;
use crate::observe::render::Json;
use crate::os::{files, without_write_signals};
use crate::status::{Code, Status};

/// Events that wait in memory.
pub(super) const BUFFERED: usize = 4096;
/// So often they are written, while they come.
const EVERY: Duration = Duration::from_secs(1);
/// Events of one trace; what comes later is dropped and counted.
const MAX_EVENTS: u64 = 10_000_000;
/// Bytes of a key that are kept.
pub(super) const KEY_SHOWN: usize = 64;
/// End of the file, overwritten by the next events.
const END: &[u8] = b"\n]\n";

/// An event, as it waits to be written.
pub(super) struct Event {
    pub(super) name: &'static str,
    pub(super) category: &'static str,
    pub(super) start: Instant,
    pub(super) duration: Duration,
    pub(super) thread: u32,
    /// 0: nests on its thread. Otherwise it overlaps with others and has a track of its own.
    pub(super) id: u64,
    pub(super) peer: SmallVec<[u8; 24]>,
    pub(super) key: SmallVec<[u8; KEY_SHOWN]>,
    pub(super) step: i64,
    pub(super) bytes: u64,
    pub(super) provider: &'static str,
    pub(super) protocol: &'static str,
    pub(super) code: Option<Code>,
    pub(super) by: &'static str,
}

/// The file of a trace, and what waits to go there.
pub(super) struct Recorder {
    pub(super) path: String,
    file: File,
    process: u32,
    /// One moment on the clock of events and, in nanoseconds, on the system's monotonic clock, so
    /// that traces of several processes of a host can be laid over each other.
    anchor: (Instant, u64),
    events: Vec<Event>,
    /// When they went to the file last.
    written: Instant,
    /// Where the end of the file begins.
    end: u64,
    recorded: u64,
    dropped: u64,
}

impl Drop for Recorder {
    fn drop(&mut self) {
        files::release(&self.file);
    }
}

/// Each would write over what the other has written.
fn in_use(path: &str) -> Status {
    let text = text!(
        "trace to {path:?}: another manager, of this process or of another, writes its trace there; give each a file \
         of its own: %n in the path is the manager's name, %p the process id"
    );
    Status::new(Code::FailedPrecondition, text)
}

impl Recorder {
    pub(super) fn create(path: String, process: u32, manager: &str) -> Result<Recorder, Status> {
        let os = |e| Status::os(format_args!("trace to {path:?}"), &e);
        let file = files::create(&path).map_err(|e| match e.kind() {
            io::ErrorKind::ResourceBusy => in_use(&path),
            _ => os(e),
        })?;
        let head = format!(
            "[\n{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{process},\"tid\":0,\
             \"args\":{{\"name\":{}}}}}\n]\n",
            Json(manager)
        );
        without_write_signals(|| file.write_all_at(head.as_bytes(), 0)).map_err(os)?;
        Ok(Recorder {
            file,
            process,
            anchor: (Instant::now(), monotonic_ns()),
            events: Vec::with_capacity(BUFFERED),
            written: Instant::now(),
            end: (head.len() - END.len()) as u64,
            recorded: 0,
            dropped: 0,
            path,
        })
    }

    pub(super) fn push(&mut self, event: Event) -> Result<(), Status> {
        if self.recorded == MAX_EVENTS {
            self.dropped += 1;
            return Ok(());
        }
        self.recorded += 1;
        let now = event.start + event.duration;
        self.events.push(event);
        // A process that dies leaves what was before that.
        let due = now.saturating_duration_since(self.written) >= EVERY;
        if !due && self.events.len() < BUFFERED {
            return Ok(());
        }
        self.written = now;
        self.flush()
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
        let mut bytes = Vec::with_capacity(text.len() + END.len());
        bytes.extend_from_slice(text.as_bytes());
        bytes.extend_from_slice(END);
        without_write_signals(|| {
            let written = self.file.write_all_at(&bytes, self.end);
            if written.is_err() {
                // What was there before is complete again: the end lies where it lay.
                let _ = self.file.set_len(self.end);
                let _ = self.file.write_all_at(END, self.end);
            }
            written
        })
        .map_err(os)?;
        self.end += text.len() as u64;
        Ok(())
    }

    pub(super) fn finish(&mut self) -> Result<(), Status> {
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
