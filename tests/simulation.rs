//! A seeded simulation: two or three engines over a simulated fabric in virtual time.
//!
//! Each seed draws a provider, settings, an application of tensors and, mostly, of messages, and faults (`profile`, `app`,
//! `messages`), runs them to the end and checks what has to hold (`check`, `memory`). The same seed gives the same run:
//! `SIM_SEED=n` replays one, with `SIM_TRACE=1` it prints what happens, `SIM_SEEDS=n` runs so many,
//! `SIM_FROM=n` others.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use rdma_transport::engine::Planted;

#[path = "simulation/acts.rs"]
mod acts;
#[path = "simulation/app.rs"]
mod app;
#[path = "simulation/check.rs"]
mod check;
#[path = "world/mod.rs"]
mod common;
#[path = "simulation/messages.rs"]
mod messages;
#[path = "simulation/profile.rs"]
mod profile;
#[path = "simulation/sim.rs"]
mod sim;
#[path = "simulation/world.rs"]
mod world;

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|v| v.parse().unwrap_or_else(|_| panic!("{name}={v}: a number")))
}

type Met = BTreeMap<String, u64>;

/// Runs one seed; its hash and what it met, or what failed.
fn run(seed: u64, planted: Option<Planted>) -> Result<(u64, Met), String> {
    let tracing = std::env::var_os("SIM_TRACE").is_some();
    let ran = catch_unwind(AssertUnwindSafe(|| {
        let mut sim = sim::Sim::new(seed, planted, tracing);
        sim.run();
        (sim.w.hash, std::mem::take(&mut sim.w.met))
    }));
    ran.map_err(|e| match (e.downcast_ref::<String>(), e.downcast_ref::<&str>()) {
        (Some(s), _) => s.clone(),
        (_, Some(s)) => (*s).to_owned(),
        _ => "a panic without text".to_owned(),
    })
}

/// Runs seeds on all processors; those that failed, with why.
fn run_many(from: u64, count: u64, planted: Option<Planted>, enough: usize) -> Vec<(u64, String)> {
    let (next, failed) = (AtomicU64::new(from), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + count || failed.lock().unwrap().len() >= enough {
                        break;
                    }
                    if let Err(text) = run(seed, planted) {
                        failed.lock().unwrap().push((seed, text));
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap()
}

#[test]
fn seeds_hold() {
    let failed = match env("SIM_SEED") {
        Some(seed) => run_many(seed, 1, None, 1),
        None => run_many(env("SIM_FROM").unwrap_or(0), env("SIM_SEEDS").unwrap_or(2000), None, 20),
    };
    for (seed, text) in &failed {
        println!("SIM_SEED={seed}: {text}");
    }
    assert!(failed.is_empty(), "{} seeds failed; replay one with SIM_SEED=n", failed.len());
}

#[test]
fn a_seed_replays() {
    for seed in 0..env("SIM_REPLAYS").unwrap_or(50) {
        let first = run(seed, None);
        assert_eq!(first, run(seed, None), "seed {seed} ran in two ways");
        println!("seed {seed}: {:x?}", first.map(|f| f.0)); // To compare two processes.
    }
}

/// A simulation that never gets into trouble proves nothing.
#[test]
fn seeds_reach_the_hard_cases() {
    let mut met = Met::new();
    for (what, n) in (0..400).filter_map(|seed| run(seed, None).ok()).flat_map(|(_, met)| met) {
        *met.entry(what).or_default() += n;
    }
    println!("{met:#?}");
    let must = [
        "connection lost amid a write or read",
        "message Cancelled Cancelled",
        "message Cancelled RemoteError",
        "message DeadlineExceeded Deadline",
        "message OutOfRange LocalError",
        "message Unavailable PeerGone",
        "message Unavailable PeerRestarted",
        "message Unavailable PeerStalled",
        "message received",
        "message sent",
        "proxy",
        "several regions",
        "device memory opened",
        "queue full",
        "receive Aborted RemoteError",
        "receive Aborted StepAborted",
        "receive Cancelled Cancelled",
        "receive DeadlineExceeded Deadline",
        "receive NotFound RemoteError",
        "receive OutOfRange None",
        "receive OutOfRange RemoteError",
        "receive ResourceExhausted LocalError",
        "receive ResourceExhausted RemoteError",
        "receive Unavailable PeerGone",
        "receive Unavailable PeerRestarted",
        "receive Unavailable PeerStalled",
        "received DirectGet",
        "received DirectPut",
        "received Eager",
        "received Local",
        "received Persistent",
        "refused operation",
        "send Aborted StepAborted",
        "send Cancelled Cancelled",
        "send Cancelled RemoteError",
        "send DeadlineExceeded Deadline",
        "send Unavailable PeerGone",
        "send Unavailable PeerStalled",
        "stale message",
        "stripe over a rail",
        "stripe between other devices",
        "rail lost amid a stripe",
    ];
    for what in must {
        assert!(met.get(what).is_some_and(|&n| n >= 3), "'{what}' is hardly ever met");
    }
}

/// The simulation would be worth nothing if it held over a broken engine.
#[test]
fn planted_bugs_are_found() {
    for planted in [Planted::DoubleCompletion, Planted::WrongBytes, Planted::NeverEnds] {
        let failed = run_many(0, 100, Some(planted), 1);
        assert!(!failed.is_empty(), "{planted:?} was not found in 100 seeds");
    }
}

/// An operation that the engine drops ends all the same, and loudly: nothing else is wrong with any run.
#[test]
fn r21_a_dropped_operation_ends_with_internal() {
    for (planted, what) in [
        (
            Planted::LosesSend,
            "ended for no good reason: INTERNAL: the callback of a send was dropped",
        ),
        (Planted::LosesRecv, "request 0 ended, which was not begun"),
    ] {
        let failed = run_many(0, 100, Some(planted), 10);
        assert!(!failed.is_empty(), "{planted:?} was not found in 100 seeds");
        for (seed, text) in failed {
            assert!(text.contains(what), "{planted:?}, seed {seed}: {text}");
        }
    }
}
