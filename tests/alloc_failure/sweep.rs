//! Children, each with another call that fails.

use std::collections::BTreeMap;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::names::{Frame, Names};
use super::places::{self, BEGINNINGS, PLACES, TEXTS};

/// Where a call that failed was made: a file of `src` and a function there.
pub type Site = (String, String);
/// File of what the test itself asks for.
const OURS: &str = "(this test)";

/// What a child came to.
pub enum End {
    /// Every operation ended as it may; bytes that are not given back.
    Good(i64),
    /// It aborted: bytes that were asked for, and where.
    Aborted(usize, Site),
    /// Something else.
    Wrong(String),
}

/// What children have found out: names of frames, and the most bytes of each site at which one aborted.
#[derive(Default)]
pub struct Found {
    names: Mutex<Names>,
    seen: Mutex<BTreeMap<Site, usize>>,
}

impl Found {
    /// One aborted.
    pub fn aborted(&self, size: usize, site: Site) {
        if site.0 != OURS {
            let most = &mut *self.seen.lock().unwrap();
            let most = most.entry(site).or_default();
            *most = size.max(*most);
        }
    }
}

/// What runs: the managers' front end, and over which provider, or which kind of store.
#[derive(Clone, Copy)]
pub struct What {
    pub front: &'static str,
    pub kind: &'static str,
}

impl std::fmt::Display for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {}", self.front, self.kind)
    }
}

/// One child, in which these calls fail, one after the other.
pub struct Child<'a> {
    pub what: What,
    pub calls: &'a [u64],
    /// How it goes about it.
    pub how: Option<&'static str>,
}

impl Child<'_> {
    /// What it said, what signal ended it, and whether all was well.
    pub fn run(&self) -> (String, Option<i32>, bool) {
        let What { front, kind } = self.what;
        let calls: Vec<String> = self.calls.iter().map(u64::to_string).collect();
        // A directory for its sockets and files: what an aborted child leaves there is no concern of the next. Its name is short, as
        // those of sockets have to be.
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let own = format!("rdma-alloc-{}-{number}", std::process::id());
        let own = std::env::temp_dir().join(own);
        std::fs::DirBuilder::new().mode(0o700).create(&own).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        if let Some(how) = self.how {
            command.env(how, "1");
        }
        let output = command
            .args(["--exact", "a_run", "--nocapture", "--test-threads=1"])
            .env("ALLOC_FRONT", front)
            .env("ALLOC_KIND", kind)
            .env("ALLOC_LEAST", "1")
            .env("ALLOC_FAIL_AT", calls.join(" "))
            .env("XDG_RUNTIME_DIR", &own)
            .env("TMPDIR", &own)
            .env("RUST_BACKTRACE", "0")
            .output()
            .unwrap();
        std::fs::remove_dir_all(&own).unwrap();
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        (text, output.status.signal(), output.status.success())
    }
}

/// A function's own name, without path and types.
fn function(name: &str) -> String {
    let mut depth = 0;
    let mut plain = String::new();
    for c in name.chars() {
        depth += i32::from(c == '<');
        if depth == 0 {
            plain.push(c);
        }
        depth -= i32::from(c == '>');
    }
    let parts = plain.split("::").filter(|part| !part.is_empty() && !part.starts_with('{'));
    parts.last().unwrap_or_default().to_owned()
}

/// The function in whose text a line of the library is; none for what is derived. A trace names closures without their functions,
/// and of what is inlined whatever the compiler has left: which line it is does not depend on that.
fn function_at(file: &str, line: usize) -> Option<String> {
    let text =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(file));
    let text = text.unwrap_or_else(|why| panic!("{file}: {why}"));
    let lines: Vec<&str> = text.lines().take(line).collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    // Further to the left than all between it and the line is what that is in.
    let mut inner = indent(lines.last()?) + 1;
    for line in lines.iter().rev().filter(|line| !line.trim().is_empty() && !is_rest(line)) {
        if indent(line) >= inner {
            continue;
        }
        inner = indent(line);
        if let Some((before, after)) = line.split_once("fn ")
            && before.split_whitespace().all(is_before_fn)
        {
            let end = after.find(|c: char| !c.is_alphanumeric() && c != '_');
            return Some(after[..end.unwrap_or(after.len())].to_owned());
        }
    }
    None
}

/// Whether a line goes on with what one before it begins, as far to the left.
fn is_rest(line: &str) -> bool {
    let line = line.trim();
    line.starts_with([')', '}', ']', '{']) || line == "where"
}

/// What may stand before `fn`, word by word.
fn is_before_fn(word: &str) -> bool {
    word.starts_with("pub")
        || word.starts_with("crate")
        || ["unsafe", "extern", "\"C\"", "\"C-unwind\"", "const"].contains(&word)
}

/// The innermost function of the library, or of this test, among frames.
fn site(frames: &[Frame]) -> Option<Site> {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/");
    let is_in = |part: &str| frames.iter().any(|(name, _)| name.contains(part));
    let mut inner = "";
    for (name, at) in frames {
        let at = at.strip_prefix("./").or_else(|| at.strip_prefix(manifest)).unwrap_or(at);
        let mut at = at.split([':', ' ']);
        let (file, line) = (at.next().unwrap_or_default(), at.next().and_then(|n| n.parse().ok()));
        if file.starts_with("tests/alloc_failure") {
            // The allocator itself.
            let name = function(name);
            let own =
                ["fails", "stack", "here", "alloc", "alloc_zeroed", "realloc"].contains(&&*name);
            if own || name.starts_with("__rust") {
                continue;
            }
            return Some((OURS.to_owned(), name));
        }
        if let Some(file) = file.strip_prefix("src/") {
            // A text may be made anywhere.
            if is_in("alloc::fmt::format") || is_in("format_inner") {
                return Some((TEXTS.into(), String::new()));
            }
            // What is derived has the name of what it calls, and addr2line has another for it where it is inlined.
            let at = line.and_then(|line| function_at(file, line));
            return Some((file.to_owned(), at.unwrap_or_else(|| function(inner))));
        }
        inner = name;
    }
    // The thread that waits for the test, or one that begins.
    let ours = is_in("test::").then(|| (OURS.into(), String::new()));
    ours.or_else(|| is_in("::thread_start").then(|| (BEGINNINGS.into(), String::new())))
}

/// A child whose trace has no frames, which the system leaves out now and then, is asked so often.
const TRIES: usize = 3;

impl Child<'_> {
    /// What it came to, and how many of the calls it had come to before that.
    pub fn end(&self, found: &Found) -> (usize, End) {
        let mut said = (0, String::new());
        for _ in 0..TRIES {
            let calls = &self.calls[said.0..];
            match (Child { calls, ..*self }).end_of_one(found) {
                Ok((at, end)) => return (said.0 + at, end),
                Err((at, text)) => said = (said.0 + at, text),
            }
        }
        let why = "a place without a name (was this built without line tables?)";
        (
            said.0,
            End::Wrong(format!("{}, call {}: {why}\n{}", self.what, self.calls[said.0], said.1)),
        )
    }

    /// The same, or what it said where it aborted at a place without a name.
    fn end_of_one(&self, found: &Found) -> Result<(usize, End), (usize, String)> {
        let (text, signal, success) = self.run();
        if success {
            return Ok((self.calls.len(), End::Good(number(&text, "LIVE ").unwrap_or(0))));
        }
        let at = text.matches("TRYING ").count().saturating_sub(1);
        let about = format!("{}, call {}", self.what, self.calls[at]);
        let wrong = |why: &str| Ok((at, End::Wrong(format!("{about}: {why}\n{text}"))));
        if signal != Some(libc::SIGABRT) || !text.contains("memory allocation of ") {
            return wrong("neither an end nor an abort for want of memory");
        }
        let failed = text.split_once("FAILED ").and_then(|(_, rest)| rest.lines().next());
        let Some((size, stack)) = failed.and_then(|line| line.split_once(' ')) else {
            return wrong("no word of what failed");
        };
        let mut names = found.names.lock().unwrap();
        let mut frames = Vec::new();
        for address in stack.split(' ').filter_map(|at| usize::from_str_radix(at, 16).ok()) {
            frames.extend_from_slice(names.of(address));
        }
        let site = site(&frames).ok_or_else(|| (at, format!("{text}{frames:#?}")))?;
        Ok((at, End::Aborted(size.parse().unwrap(), site)))
    }
}

/// The number behind a word, at the beginning of a line.
pub fn number(text: &str, word: &str) -> Option<i64> {
    text.split_once(word)?.1.lines().next()?.trim().parse().ok()
}

/// The tensors' run, which begins before its managers are there.
const TENSORS: &str = "tensors";

/// Each call of a run over this provider fails once, in a child of its own, two at a time. What was wrong.
fn sweep(kind: &'static str, found: &Found) -> Vec<String> {
    let what = What { front: TENSORS, kind };
    let (text, ..) = Child { what, calls: &[0], how: None }.run();
    let calls = number(&text, "CALLS ").unwrap_or_else(|| panic!("{text}")) as u64;
    let (next, aborted) = (AtomicU64::new(1), AtomicUsize::new(0));
    let wrong = Mutex::new(Vec::new());
    let work = || {
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n > calls {
                return;
            }
            match (Child { what, calls: &[n], how: None }).end(found).1 {
                End::Good(_) => {}
                End::Aborted(size, site) => {
                    aborted.fetch_add(1, Ordering::Relaxed);
                    found.aborted(size, site);
                }
                End::Wrong(why) => wrong.lock().unwrap().push(why),
            }
        }
    };
    std::thread::scope(|s| (0..2).for_each(|_| _ = s.spawn(work)));
    println!("{kind}: {calls} calls failed once each, {} aborted", aborted.into_inner());
    wrong.into_inner().unwrap()
}

/// Whatever `sweeps` has fail: every operation ends, or the process aborts at a place of the list.
pub fn all_end(sweeps: impl FnOnce(&Found) -> Vec<String>) {
    // One after the other: they would take each other's time.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let found = Found::default();
    let mut wrong = sweeps(&found);
    for ((file, function), size) in &found.seen.into_inner().unwrap() {
        if std::env::var_os("ALLOC_PLACES").is_some() {
            println!("PLACE {file} {function} {size}");
        }
        let listed = places::of(file, function);
        if listed.is_none_or(|place| *size > place.bytes) {
            wrong.push(format!(
                "{size} bytes in `{function}` of {file}, which the list does not have"
            ));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

pub const PROVIDERS: [&str; 3] = ["loopback", "shm", "tcp"];

/// Whatever call of the allocator fails: every operation ends, or the process aborts at a place of the list.
#[test]
fn r20_whatever_allocation_fails_all_ends_or_aborts_at_a_listed_place() {
    all_end(|found| PROVIDERS.iter().flat_map(|kind| sweep(kind, found)).collect());
}

/// A page is more than any size that the code fixes.
#[test]
fn r20_no_size_that_is_chosen_reaches_an_allocator_that_aborts() {
    for place in PLACES {
        assert!(place.bytes <= 4096, "{}: {} bytes", place.file, place.bytes);
    }
}

#[test]
fn r20_the_documented_places_are_those_of_the_list() {
    let table = places::table();
    let text = include_str!("../../docs/reliability.md");
    assert!(text.contains(&table), "docs/reliability.md should have this table:\n{table}");
}
