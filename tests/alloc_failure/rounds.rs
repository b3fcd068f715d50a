//! Children that do rounds of a front end: in each another call fails, until one aborts; the next child goes on behind that.

use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::sweep::{Child, End, Found, PROVIDERS, What, all_end, number};

/// A call of a round.
#[derive(Clone, Copy)]
struct Call {
    number: u64,
    /// Whatever fails with this at the top of its stack comes to the same, if that is an abort.
    top: u64,
}

/// Calls that a child has fail, in its first round or in those after it.
struct Job {
    cold: bool,
    calls: Vec<Call>,
}

/// Calls of one child: each costs a round or two, and a child what it takes to have managers that are connected.
const BATCH: usize = 60;
/// What a life leaves behind, in tables that are the process's and in threads that end a little later, may differ by so many bytes.
const SLACK: i64 = 8000;

/// Whether everything is tried that is distinct, and not one of what is alike.
fn is_whole() -> bool {
    std::env::var_os("ALLOC_WHOLE").is_some()
}

/// What was tried already, over whatever provider.
#[derive(Default)]
struct Tried {
    stacks: HashSet<(bool, u64)>,
}

impl Tried {
    /// Of each stack of a round the first call and the last. Of the first round only what no later one has, and of what is alike
    /// at its top one, each call alone: it finds nothing there.
    fn jobs(&mut self, text: &str) -> Vec<Job> {
        let list = |word: &str| {
            let list = text.split_once(word).and_then(|(_, rest)| rest.lines().next());
            let list = list.unwrap_or_else(|| panic!("{text}")).split(',');
            let numbers = |one: &str| -> [u64; 4] {
                let all: Vec<u64> = one.split(' ').map(|n| n.parse().unwrap()).collect();
                all.try_into().unwrap()
            };
            list.map(numbers).collect::<Vec<[u64; 4]>>()
        };
        let (cold, warm) = (list("COLD "), list("WARM "));
        let again: HashSet<u64> = warm.iter().map(|call| call[0]).collect();
        let mut jobs = Vec::new();
        for [deep, number, _, top] in cold {
            let alike = if is_whole() { deep } else { top };
            if !again.contains(&deep) && self.stacks.insert((true, alike)) {
                jobs.push(Job { cold: true, calls: vec![Call { number, top }] });
            }
        }
        let mut calls = Vec::new();
        for [deep, first, last, top] in warm {
            if self.stacks.insert((false, deep)) {
                let last = Some(last).filter(|last| *last != first);
                calls.extend(
                    [Some(first), last].into_iter().flatten().map(|number| Call { number, top }),
                );
            }
        }
        calls.sort_by_key(|call| call.number);
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
    /// At the top of stacks whose calls aborted.
    aborted: &'a Mutex<HashSet<u64>>,
    tried: AtomicUsize,
    wrong: Mutex<Vec<String>>,
}

impl Rounds<'_> {
    /// Has all calls of a job fail, in as many children as that takes.
    fn run(&self, job: &Job) {
        let mut rest = job.calls.clone();
        loop {
            let aborted = self.aborted.lock().unwrap();
            rest.retain(|call| is_whole() || !aborted.contains(&call.top));
            drop(aborted);
            if rest.is_empty() {
                return;
            }
            let calls: Vec<u64> = rest.iter().map(|call| call.number).collect();
            let how = job.cold.then_some("ALLOC_COLD");
            let (at, end) = Child { what: self.what, calls: &calls, how }.end(self.found);
            self.tried.fetch_add((at + 1).min(calls.len()), Ordering::Relaxed);
            match end {
                End::Good(now) if now <= self.live + SLACK => {}
                End::Good(now) => {
                    let (what, kept) = (self.what, now - self.live);
                    self.say(format!("{what}, calls {calls:?}: {kept} bytes are not given back"));
                }
                End::Aborted(size, site) => {
                    self.aborted.lock().unwrap().insert(rest[at].top);
                    self.found.aborted(size, site);
                }
                End::Wrong(why) => self.say(why),
            }
            rest.drain(..(at + 1).min(calls.len()));
        }
    }

    fn say(&self, why: String) {
        self.wrong.lock().unwrap().push(why);
    }
}

/// Rounds of these, two children at a time. What was wrong.
fn sweep(of: impl Iterator<Item = What>, found: &Found) -> Vec<String> {
    let (mut tried, aborted) = (Tried::default(), Mutex::new(HashSet::new()));
    let only = std::env::var("ALLOC_ONLY").unwrap_or_default();
    let mut wrong = Vec::new();
    for what in of.filter(|what| what.to_string().contains(&only)) {
        let (text, ..) = Child { what, calls: &[0], how: Some("ALLOC_STACKS") }.run(found);
        let live = number(&text, "LIVE ").unwrap_or_else(|| panic!("{what}: {text}"));
        let jobs: Mutex<VecDeque<Job>> = Mutex::new(tried.jobs(&text).into());
        let (children, before) = (jobs.lock().unwrap().len(), aborted.lock().unwrap().len());
        let count = jobs.lock().unwrap().iter().map(|job| job.calls.len()).sum::<usize>();
        let (tried, ours) = (AtomicUsize::new(0), Mutex::default());
        let rounds = Rounds { what, found, live, aborted: &aborted, tried, wrong: ours };
        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    while let Some(job) = { jobs.lock().unwrap().pop_front() } {
                        rounds.run(&job);
                    }
                });
            }
        });
        let (tried, now) = (rounds.tried.into_inner(), aborted.lock().unwrap().len() - before);
        println!(
            "{what}: {tried} calls of {count} failed once each, {now} aborted, of {children} children at first"
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
        let (text, signal, well) = Child { what, calls: &[0], how: None }.run(&Found::default());
        assert!(well && text.contains("afterwards"), "{signal:?}: {text}");
    }
}

/// A pool for which there is no memory is an answer.
#[test]
fn r20_a_pool_for_which_there_is_no_memory_is_none() {
    let what = What { front: "pools", kind: "memory" };
    let (text, signal, well) = Child { what, calls: &[1], how: None }.run(&Found::default());
    assert!(well && text.contains("POOLS "), "{signal:?}: {text}");
}

/// The same of stores, and of meshes.
#[test]
fn r20_whatever_allocation_of_a_store_fails_it_goes_on() {
    let stores = ["memory", "file", "tcp"].map(|kind| What { front: "stores", kind });
    let mesh = What { front: "meshes", kind: "memory" };
    all_end(|found| sweep(stores.into_iter().chain([mesh]), found));
}
