//! Section 15: a proxy between honest managers changes, drops, repeats and moves what passes. With the
//! checksum option no receive reports success over anything but just its tensor.
//!
//! `RDMA_PROXY_SECONDS` (10), `RDMA_PROXY_CONNECTIONS` (0): goes on until both are reached.
//! `RDMA_PROXY_SEED`: where the seeds begin.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rdma_hostile::honest::{Got, Honest};
use rdma_hostile::proxy::Proxy;
use rdma_hostile::{PATIENCE, Rng};
use rdma_transport::config::Config;
use rdma_transport::fabric::ProviderKind;
use rdma_transport::status::Code;

const WORKERS: u64 = 12;
/// Long enough for a transfer on a busy machine, short enough not to wait for lost frames for ever.
const OPERATION: Duration = Duration::from_millis(700);

#[derive(Default)]
struct Tally {
    connections: AtomicU64,
    harmed: AtomicU64,
    right: AtomicU64,
    failed: AtomicU64,
    losses: AtomicU64,
    wrong: AtomicU64,
    stop: AtomicBool,
}

fn config(name: &str, worker: u64, checksum: bool) -> Config {
    Config {
        name: name.into(),
        provider: Some(ProviderKind::Tcp),
        secret: worker.is_multiple_of(3).then(|| b"a secret".to_vec()),
        protocol: [0, 0, 3, 4][(worker % 4) as usize],
        busy_poll_us: 0,
        peer_timeout_ms: 400,
        checksum,
        ..Config::default()
    }
}

/// One connection: `a` asks, and `b` once it knows `a`; returns when everything has ended.
fn round(a: &Honest, b: &Honest, rng: &mut Rng, tally: &Tally) {
    let mut asked: Vec<(u64, Receiver<Got>)> = Vec::new();
    for i in 0..8 {
        let len = [1, 60, 61, 3000, 33_000, 34_000, 70_001, 150_000][rng.below(8) as usize];
        let (me, peer) = if i < 5 { (a, "b") } else { (b, "a") };
        // Keys that differ by one bit, and lengths by one digit: a changed key is another tensor.
        let beside = if rng.one_in(2) { "+" } else { "" };
        let key = format!("gen:{len}:{}{beside}", rng.below(4));
        let step = rng.below(4) as i64;
        let (tx, rx) = channel();
        let then = move |got| tx.send(got).expect("the test has given up");
        let what = (key.as_bytes(), step, len as usize);
        if me.ask_then(peer, what, rng.one_in(2), OPERATION, then).is_ok() {
            asked.push((i, rx));
        }
    }
    for (i, rx) in asked {
        let got = rx.recv_timeout(OPERATION + PATIENCE).expect("a receive that never ended");
        let count = match (got.code, got.right) {
            (Code::Ok, true) => &tally.right,
            (Code::Ok, false) => &tally.wrong,
            (Code::DataLoss, _) => &tally.losses,
            _ => &tally.failed,
        };
        count.fetch_add(1, Ordering::Relaxed);
        if got.code == Code::Ok && !got.right {
            println!("receive {i} is wrong with OK: {got:?}");
        }
    }
}

fn worker(number: u64, first_seed: u64, checksum: bool, tally: &Tally) {
    // The option at either side is enough.
    let (at_a, at_b) = (checksum && number % 3 != 1, checksum && number % 3 != 2);
    let mut config_b = config("b", number, at_b);
    config_b.listen = Some("127.0.0.1:0".into());
    let b = Honest::start(config_b);
    let a = Honest::quiet(config("a", number, at_a));
    a.serve();
    b.serve();
    let address = b.manager.listen("127.0.0.1:0").expect("listening");
    let proxy = Proxy::start(address.parse().expect("an address"));
    a.manager.add_peer("b", &proxy.address().to_string()).expect("a peer");
    let mut seed = first_seed + number;
    let mut before = (0, 0);
    while !tally.stop.load(Ordering::Acquire) {
        proxy.seed(seed);
        round(&a, &b, &mut Rng::new(seed), tally);
        let _ = (a.manager.disconnect("b"), b.manager.disconnect("a"));
        let now = proxy.counts();
        tally.connections.fetch_add(now.0 - before.0, Ordering::Relaxed);
        tally.harmed.fetch_add(now.1 - before.1, Ordering::Relaxed);
        before = now;
        seed += WORKERS;
    }
    let counts = [a.counts.clone(), b.counts.clone()];
    drop((a, b));
    for c in counts {
        let (begun, ended) = c.get();
        assert_eq!(begun, ended, "sends of worker {number} that did not end once");
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |v| v.parse().expect("a number"))
}

fn run(checksum: bool, mut enough: impl FnMut(&Tally) -> bool) -> Arc<Tally> {
    rdma_transport::log::set_level(rdma_transport::log::Level::Error);
    let tally = Arc::new(Tally::default());
    let seed = number("RDMA_PROXY_SEED", 1);
    let threads: Vec<_> = (0..WORKERS)
        .map(|n| {
            let tally = tally.clone();
            std::thread::spawn(move || worker(n, seed, checksum, &tally))
        })
        .collect();
    while !enough(&tally) && threads.iter().all(|t| !t.is_finished()) {
        std::thread::sleep(Duration::from_millis(50));
    }
    tally.stop.store(true, Ordering::Release);
    for thread in threads {
        thread.join().expect("a worker");
    }
    let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
    println!(
        "checksum {checksum}: {} connections, {} frames harmed, receives: {} right, {} data loss, {} other \
         errors, {} wrong",
        get(&tally.connections),
        get(&tally.harmed),
        get(&tally.right),
        get(&tally.losses),
        get(&tally.failed),
        get(&tally.wrong)
    );
    tally
}

#[test]
fn r15_a_mutating_proxy_gets_nothing_wrong_past_the_checksum() {
    let seconds = Duration::from_secs(number("RDMA_PROXY_SECONDS", 10));
    let connections = number("RDMA_PROXY_CONNECTIONS", 0);
    let start = Instant::now();
    let tally = run(true, |t| {
        let many = t.connections.load(Ordering::Relaxed) >= connections;
        many && start.elapsed() >= seconds || t.wrong.load(Ordering::Relaxed) > 0
    });
    assert_eq!(tally.wrong.load(Ordering::Relaxed), 0, "wrong results with RDMA_OK");
    assert!(tally.right.load(Ordering::Relaxed) > 0, "nothing went through at all");
    assert!(tally.losses.load(Ordering::Relaxed) > 0, "no damage was found at all");
}

/// The same without the option does get wrong bytes through: the proxy and the comparison work.
#[test]
fn r15_without_the_checksum_the_proxy_is_not_noticed() {
    let start = Instant::now();
    let tally = run(false, |t| {
        t.wrong.load(Ordering::Relaxed) > 0 || start.elapsed() > Duration::from_secs(120)
    });
    assert!(tally.wrong.load(Ordering::Relaxed) > 0, "the proxy changes nothing that matters");
}
