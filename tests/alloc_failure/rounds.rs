//! Children that do rounds of a front end: in each another call fails, until one aborts; the next child goes on behind that.

use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::sweep::{Child, End, Found, PROVIDERS, What, all_end, number};

/// Calls that a child has fail, in its first round or in those after it.
struct Job {
    cold: bool,
    calls: Vec<u64>,
}

/// Calls of one child: each costs a round or two, and a child what it takes to have managers that are connected.
const BATCH: usize = 60;
/// What a life leaves behind, in tables that are the process's and in threads that end a little later, may differ by so many bytes.
const SLACK: i64 = 8000;

/// A stack of a child's calls: its number, its first call and its last.
type Stack = [u64; 3];

/// Those that a child has told behind a word.
fn stacks(text: &str, word: &str) -> Vec<Stack> {
    let list = text.split_once(word).and_then(|(_, rest)| rest.lines().next());
    let list = list.unwrap_or_else(|| panic!("{text}")).split(',');
    let numbers = |one: &str| -> Stack {
        let all: Vec<u64> = one.split(' ').map(|n| n.parse().unwrap()).collect();
        all.try_into().unwrap()
    };
    list.map(numbers).collect()
}

/// What was tried already, over whatever provider.
#[derive(Default)]
struct Tried {
    stacks: HashSet<(bool, u64)>,
}

impl Tried {
    /// Of each stack of a round the first call and the last. Of the first round only what no later one has, each call alone: it finds
    /// nothing there.
    fn jobs(&mut self, text: &str) -> Vec<Job> {
        let (cold, warm) = (stacks(text, "COLD "), stacks(text, "WARM "));
        let again: HashSet<u64> = warm.iter().map(|call| call[0]).collect();
        let mut jobs = Vec::new();
        for [stack, first, _] in cold {
            if !again.contains(&stack) && self.stacks.insert((true, stack)) {
                jobs.push(Job { cold: true, calls: vec![first] });
            }
        }
        let new = warm.into_iter().filter(|call| self.stacks.insert((false, call[0])));
        let mut calls: Vec<u64> = new.flat_map(|[_, first, last]| [first, last]).collect();
        calls.sort_unstable();
        calls.dedup();
        jobs.extend(calls.chunks(BATCH).map(|some| Job { cold: false, calls: some.to_vec() }));
        jobs
    }
}

/// The children of one front end over one provider.
struct Rounds<'a> {
    what: What,
    found: &'a Found,
    /// What a process holds at its end in which nothing failed.
    live: i64,
    tried: AtomicUsize,
    aborted: AtomicUsize,
    wrong: Mutex<Vec<String>>,
}

impl Rounds<'_> {
    /// Has all calls of a job fail, in as many children as that takes.
    fn run(&self, job: &Job) {
        let mut calls = &job.calls[..];
        while !calls.is_empty() {
            let how = job.cold.then_some("ALLOC_COLD");
            let (at, end) = Child { what: self.what, calls, how }.end(self.found);
            self.tried.fetch_add((at + 1).min(calls.len()), Ordering::Relaxed);
            match end {
                End::Good(now) if now <= self.live + SLACK => {}
                End::Good(now) => {
                    let (what, kept) = (self.what, now - self.live);
                    self.say(format!("{what}, calls {calls:?}: {kept} bytes are not given back"));
                }
                End::Aborted(size, site) => {
                    self.aborted.fetch_add(1, Ordering::Relaxed);
                    self.found.aborted(size, site);
                }
                End::Wrong(why) => self.say(why),
            }
            calls = &calls[(at + 1).min(calls.len())..];
        }
    }

    fn say(&self, why: String) {
        self.wrong.lock().unwrap().push(why);
    }
}

/// Rounds of these, two children at a time. What was wrong.
fn sweep(of: impl Iterator<Item = What>, found: &Found) -> Vec<String> {
    let mut tried = Tried::default();
    let only = std::env::var("ALLOC_ONLY").unwrap_or_default();
    let mut wrong = Vec::new();
    for what in of.filter(|what| what.to_string().contains(&only)) {
        let (text, ..) = Child { what, calls: &[0], how: Some("ALLOC_STACKS") }.run();
        let live = number(&text, "LIVE ").unwrap_or_else(|| panic!("{what}: {text}"));
        let jobs: Mutex<VecDeque<Job>> = Mutex::new(tried.jobs(&text).into());
        let children = jobs.lock().unwrap().len();
        let [done, aborted] = [0; 2].map(AtomicUsize::new);
        let rounds = Rounds { what, found, live, tried: done, aborted, wrong: Mutex::default() };
        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    while let Some(job) = { jobs.lock().unwrap().pop_front() } {
                        rounds.run(&job);
                    }
                });
            }
        });
        let [done, aborted] = [rounds.tried, rounds.aborted].map(AtomicUsize::into_inner);
        println!(
            "{what}: {done} calls failed once each, {aborted} aborted, of {children} children at first"
        );
        wrong.append(&mut rounds.wrong.into_inner().unwrap());
    }
    wrong
}

/// Whatever call of the allocator fails between managers that are connected, all ends, or the process aborts at a place of the list;
/// and soon it goes on as if nothing had failed.
#[test]
fn r20_whatever_allocation_of_a_front_end_fails_it_goes_on() {
    let over = |front| PROVIDERS.map(|kind| What { front, kind });
    all_end(|found| {
        sweep(["steps", "pairs", "unbound", "messages"].into_iter().flat_map(over), found)
    });
}

/// The text of a step that is aborted is there once, however many receives end with it, and goes with them.
#[test]
fn ends_keep_no_text() {
    for kind in PROVIDERS {
        let what = What { front: "texts", kind };
        let (text, signal, well) = Child { what, calls: &[0], how: None }.run();
        assert!(well && text.contains("afterwards"), "{signal:?}: {text}");
    }
}

/// A pool for which there is no memory is an answer.
#[test]
fn r20_a_pool_for_which_there_is_no_memory_is_none() {
    let what = What { front: "pools", kind: "memory" };
    let (text, signal, well) = Child { what, calls: &[1], how: None }.run();
    assert!(well && text.contains("POOLS "), "{signal:?}: {text}");
}

/// The same of stores, and of meshes.
#[test]
fn r20_whatever_allocation_of_a_store_fails_it_goes_on() {
    let stores = ["memory", "file", "tcp"].map(|kind| What { front: "stores", kind });
    let mesh = What { front: "meshes", kind: "memory" };
    all_end(|found| sweep(stores.into_iter().chain([mesh]), found));
}
