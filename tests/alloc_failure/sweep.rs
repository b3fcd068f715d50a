//! Children, each with another call that fails.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::places::{self, BEGINNINGS, PLACES, TEXTS};

/// Where a call that failed was made: a file of `src` and a function there.
type Site = (String, String);
/// File of what the test itself asks for.
const OURS: &str = "(this test)";

/// What a child came to.
enum End {
    /// Every operation ended as it may; bytes that are not given back.
    Good(i64),
    /// It aborted: bytes that were asked for, and where.
    Aborted(usize, Site),
    /// Something else.
    Wrong(String),
}

/// Sites by stack, as far as a child has named them.
type Known = Mutex<HashMap<String, Site>>;

/// What runs: the managers' front end, and over which provider, or which kind of store.
#[derive(Clone, Copy)]
struct What {
    front: &'static str,
    kind: &'static str,
}

impl std::fmt::Display for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {}", self.front, self.kind)
    }
}

fn run(what: What, fail_at: u64, known: &Known) -> (String, Option<i32>, bool) {
    let What { front, kind } = what;
    // A directory for its sockets: what an aborted child leaves there is no concern of the next.
    let own = format!("rdma-alloc-{}-{front}-{kind}-{fail_at}", std::process::id());
    let own = std::env::temp_dir().join(own);
    std::fs::DirBuilder::new().mode(0o700).create(&own).unwrap();
    let stacks: Vec<String> = known.lock().unwrap().keys().cloned().collect();
    let mut command = Command::new(std::env::current_exe().unwrap());
    if fail_at == 0 && front != TENSORS {
        command.env("ALLOC_STACKS", "1");
    }
    let output = command
        .args(["--exact", "a_run", "--nocapture", "--test-threads=1"])
        .env("ALLOC_FRONT", front)
        .env("ALLOC_KIND", kind)
        .env("ALLOC_LEAST", "1")
        .env("ALLOC_FAIL_AT", fail_at.to_string())
        .env("ALLOC_KNOWN", stacks.join(" "))
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

/// The function's own name, without path and types; nothing for a closure that is named without its function.
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

/// The innermost function of the library, or of this test, in a trace.
fn site(trace: &str) -> Option<Site> {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/");
    let lines: Vec<&str> = trace.lines().map(str::trim).collect();
    let text =
        lines.iter().any(|l| l.contains("alloc::fmt::format") || l.ends_with(": format_inner"));
    let mut found: Option<Site> = None;
    for pair in lines.windows(2) {
        let (Some((_, name)), Some(at)) = (pair[0].split_once(": "), pair[1].strip_prefix("at "))
        else {
            continue;
        };
        let at = at.strip_prefix("./").or_else(|| at.strip_prefix(manifest)).unwrap_or(at);
        let file = match at.split(':').next() {
            Some(file) if file.starts_with("tests/alloc_failure") => OURS,
            Some(file) if file.starts_with("src/") => &file[4..],
            _ => continue,
        };
        // What is inlined may be named as what it is inlined into is not: then the next line has the name.
        let of_std = ["alloc::", "core::", "std::", "<alloc::", "<core::", "<std::"];
        let name = if of_std.iter().any(|std| name.starts_with(std)) { "" } else { name };
        let name = function(name);
        // The allocator itself.
        let own = ["fails", "stack", "alloc", "alloc_zeroed", "realloc"].contains(&&*name);
        if file == OURS && (own || name.starts_with("__rust")) {
            continue;
        }
        if let Some((first, _)) = &found
            && first != file
        {
            break;
        }
        let named = !name.is_empty();
        found = Some((file.to_owned(), name));
        if named {
            break;
        }
    }
    if found.is_none() && trace.contains(": test::") {
        // The thread that waits for the test.
        return Some((OURS.into(), String::new()));
    }
    if found.is_none() && trace.contains("::thread_start") {
        return Some((BEGINNINGS.into(), String::new()));
    }
    // A text may be made anywhere.
    found.map(|site| if text && site.0 != OURS { (TEXTS.into(), String::new()) } else { site })
}

/// A child whose trace has no frames, which the system leaves out now and then, is asked so often.
const TRIES: usize = 3;

fn end(kind: What, fail_at: u64, known: &Known) -> End {
    let mut said = String::new();
    for _ in 0..TRIES {
        match end_of_one(kind, fail_at, known) {
            Ok(end) => return end,
            Err(text) => said = text,
        }
    }
    let why = "a place without a name (was this built without line tables?)";
    End::Wrong(format!("{kind}, call {fail_at}: {why}\n{said}"))
}

/// What one child came to, or what it said where it aborted at a place without a name.
fn end_of_one(kind: What, fail_at: u64, known: &Known) -> Result<End, String> {
    let (text, signal, success) = run(kind, fail_at, known);
    if success {
        return Ok(End::Good(number(&text, "LIVE ").unwrap_or(0)));
    }
    let wrong = |why: &str| Ok(End::Wrong(format!("{kind}, call {fail_at}: {why}\n{text}")));
    if signal != Some(libc::SIGABRT) || !text.contains("memory allocation of ") {
        return wrong("neither an end nor an abort for want of memory");
    }
    let failed = text.split_once("FAILED ").and_then(|(_, rest)| rest.lines().next());
    let Some((size, stack)) = failed.and_then(|line| line.split_once(' ')) else {
        return wrong("no word of what failed");
    };
    let trace = text.split_once("TRACE\n").and_then(|(_, rest)| rest.split_once("\nEND"));
    let mut known = known.lock().unwrap();
    if let Some(site) = trace.and_then(|(trace, _)| site(trace)) {
        known.insert(stack.to_owned(), site);
    }
    let site = known.get(stack).cloned().ok_or_else(|| text.clone())?;
    Ok(End::Aborted(size.parse().unwrap(), site))
}

/// The number behind a word, at the beginning of a line.
fn number(text: &str, word: &str) -> Option<i64> {
    text.split_once(word)?.1.lines().next()?.trim().parse().ok()
}

/// The tensors' run, which begins before its managers are there.
const TENSORS: &str = "tensors";
/// Calls of that run up to this one are tried,
const MOST: u64 = 2000;
/// of those before this one, which open the managers, each fourth, then each second; with `ALLOC_WHOLE` all.
const SETUP: u64 = 200;
/// What a manager's life leaves behind, in tables that are the process's and in threads that end a little later, may differ by so many bytes.
const SLACK: i64 = 3000;

/// Which calls of a run are to fail. Of other front ends than tensors the first and the last that each stack makes: the first finds no
/// memory of its kind there, the last finds what was left.
fn chosen(what: What, calls: u64, text: &str) -> Vec<u64> {
    let whole = std::env::var_os("ALLOC_WHOLE").is_some();
    if what.front == TENSORS || whole {
        let every = |n: u64| {
            if whole {
                1
            } else if n < SETUP {
                4
            } else {
                2
            }
        };
        return (1..=calls.min(MOST)).filter(|n| n.is_multiple_of(every(*n))).collect();
    }
    let stacks = text.split_once("STACKS ").and_then(|(_, rest)| rest.lines().next());
    let mut by_stack: HashMap<&str, (u64, u64)> = HashMap::new();
    for (n, stack) in (1..).zip(stacks.unwrap_or_else(|| panic!("{text}")).split(' ')) {
        by_stack.entry(stack).or_insert((n, n)).1 = n;
    }
    let all: BTreeSet<u64> = by_stack.into_values().flat_map(|(a, b)| [a, b]).collect();
    all.into_iter().collect()
}

/// Calls of a run fail once, each in a child of its own, two at a time. What was wrong.
fn sweep(what: What, known: &Known, seen: &Mutex<BTreeMap<Site, usize>>) -> Vec<String> {
    let (text, ..) = run(what, 0, known);
    let calls = number(&text, "CALLS ").unwrap_or_else(|| panic!("{what}: {text}")) as u64;
    let (live, chosen) = (number(&text, "LIVE ").unwrap_or(0), chosen(what, calls, &text));
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let aborted = AtomicU64::new(0);
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while let Some(&n) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match end(what, n, known) {
                        End::Good(now) if now <= live + SLACK => {}
                        End::Good(now) => {
                            let kept = now - live;
                            let text = format!("{what}, call {n}: {kept} bytes are not given back");
                            wrong.lock().unwrap().push(text);
                        }
                        End::Aborted(size, site) => {
                            aborted.fetch_add(1, Ordering::Relaxed);
                            if site.0 == OURS {
                                continue;
                            }
                            let most = &mut *seen.lock().unwrap();
                            let most = most.entry(site).or_default();
                            *most = size.max(*most);
                        }
                        End::Wrong(why) => wrong.lock().unwrap().push(why),
                    }
                }
            });
        }
    });
    let (tried, aborted) = (chosen.len(), aborted.into_inner());
    println!("{what}: {tried} of {calls} calls failed once each, {aborted} aborted");
    wrong.into_inner().unwrap()
}

/// Whatever fails in these: every operation ends, or the process aborts at a place of the list.
fn all_end(of: impl Iterator<Item = What>) {
    // One after the other: they would take each other's time.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (known, seen) = (Known::default(), Mutex::default());
    let only = std::env::var("ALLOC_ONLY").unwrap_or_default();
    let of = of.filter(|what| what.to_string().contains(&only));
    let mut wrong: Vec<String> = of.flat_map(|what| sweep(what, &known, &seen)).collect();
    let seen = seen.into_inner().unwrap();
    for ((file, function), size) in &seen {
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

const PROVIDERS: [&str; 3] = ["loopback", "shm", "tcp"];

/// Whatever call of the allocator fails: every operation ends, or the process aborts at a place of the list.
#[test]
fn r20_whatever_allocation_fails_all_ends_or_aborts_at_a_listed_place() {
    all_end(PROVIDERS.map(|kind| What { front: TENSORS, kind }).into_iter());
}

/// The same of what else managers do, between managers that are connected; and soon it goes on as if nothing had failed.
#[test]
fn r20_whatever_allocation_of_a_front_end_fails_it_goes_on() {
    let over = |front| PROVIDERS.map(|kind| What { front, kind });
    all_end(["pairs", "unbound", "messages"].into_iter().flat_map(over));
}

/// The same of stores, and of meshes.
#[test]
fn r20_whatever_allocation_of_a_store_fails_it_goes_on() {
    let stores = ["memory", "file", "tcp"].map(|kind| What { front: "stores", kind });
    all_end(stores.into_iter().chain([What { front: "meshes", kind: "memory" }]));
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
