//! Figures of the bare provider between two pinned processes; run by hand:
//! `cargo test --release --test shm_bench -- --ignored --nocapture bench_`

mod shm_support;

use std::time::Instant;

use rdma_transport::fabric::{Access, Adapter, Event, Mem, PostError, Remote};
use rdma_transport::memory::pool::Pool;
use shm_support::Side;
use shm_support::child::{self, Other};

const LARGEST: usize = 64 << 20;

/// Polls until an event is one that counts; drops the others.
fn until(side: &mut Side, events: &mut Vec<Event>, mut counts: impl FnMut(&Event) -> bool) {
    loop {
        side.adapter.poll(events);
        let found = events.drain(..).any(|e| {
            assert!(!matches!(e, Event::Down { .. }), "{e:?}");
            counts(&e)
        });
        if found {
            return;
        }
    }
}

fn is_message(e: &Event) -> bool {
    matches!(e, Event::Message { .. })
}

fn is_written(e: &Event) -> bool {
    matches!(e, Event::Written { .. })
}

/// Rounds timed together. The best batch is what the machine can do, the median what it did.
struct Batches {
    size: usize,
    times: Vec<f64>,
}

impl Batches {
    fn new(rounds: usize) -> Batches {
        Batches { size: (rounds / 100).max(1), times: Vec::new() }
    }

    /// Runs one side's rounds; microseconds one way, best and median.
    fn run(mut self, rounds: usize, mut round: impl FnMut()) -> (f64, f64) {
        for _ in 0..rounds.div_ceil(self.size) {
            let start = Instant::now();
            (0..self.size).for_each(|_| round());
            self.times.push(start.elapsed().as_secs_f64() * 1e6 / self.size as f64 / 2.0);
        }
        self.times.sort_by(f64::total_cmp);
        (self.times[0], self.times[self.times.len() / 2])
    }
}

/// One side of a ping-pong of SENDs.
fn ping_pong(side: &mut Side, len: usize, rounds: usize, first: bool) -> (f64, f64) {
    let body = vec![1u8; len];
    let mut events = Vec::with_capacity(64);
    Batches::new(rounds).run(rounds, || {
        if !first {
            until(side, &mut events, is_message);
        }
        side.adapter.send(side.ep, &[&body]).unwrap();
        side.adapter.flush();
        if first {
            until(side, &mut events, is_message);
        }
    })
}

/// One side of a ping-pong of WRITEs with immediate.
fn write_ping_pong(
    side: &mut Side,
    local: Mem,
    remote: Remote,
    rounds: usize,
    first: bool,
) -> (f64, f64) {
    let mut events = Vec::with_capacity(64);
    Batches::new(rounds).run(rounds, || {
        if !first {
            until(side, &mut events, is_written);
        }
        side.adapter.write(side.ep, 0, local, remote, Some(1)).unwrap();
        side.adapter.flush();
        if first {
            until(side, &mut events, is_written);
        }
    })
}

/// The same, best and median of several.
fn streams(side: &mut Side, local: Mem, remote: Remote, rounds: usize) -> (f64, f64) {
    let few = (rounds / 20).max(2);
    let mut all: Vec<f64> = (0..20).map(|_| stream_writes(side, local, remote, few)).collect();
    all.sort_by(f64::total_cmp);
    (all[19], all[10])
}

/// WRITEs back to back, a few in flight; GB/s.
fn stream_writes(side: &mut Side, local: Mem, remote: Remote, rounds: usize) -> f64 {
    let mut events = Vec::with_capacity(64);
    let (mut posted, mut done) = (0, 0);
    let start = Instant::now();
    while done < rounds {
        while posted < rounds && posted - done < 16 {
            match side.adapter.write(side.ep, 0, local, remote, None) {
                Ok(()) => posted += 1,
                Err(PostError::QueueFull) => break,
                Err(e) => panic!("{e:?}"),
            }
        }
        side.adapter.flush();
        side.adapter.poll(&mut events);
        done +=
            events.drain(..).filter(|e| matches!(e, Event::Done { result: Ok(()), .. })).count();
    }
    local.len() as f64 * rounds as f64 / start.elapsed().as_secs_f64() / 1e9
}

fn sizes() -> Vec<(usize, usize)> {
    let rounds = |n: usize| ((256 << 20) / n.max(1)).clamp(8, 20_000);
    [8, 1024, 8192, 65_536, 1 << 20, 16 << 20, LARGEST].map(|n| (n, rounds(n))).to_vec()
}

/// Both sides run the same programme.
fn programme(side: &mut Side, memory: &'static mut [u8], remote: Remote, first: bool) {
    let show = |text: String| {
        if first {
            println!("{text}");
        }
    };
    for len in [8, 1024, 8192] {
        let (best, median) = ping_pong(side, len, 50_000, first);
        show(format!("SEND {len:>9} B {best:>9.3} us best {median:>9.3} us median"));
    }
    for (len, rounds) in sizes() {
        // SAFETY: the memory lives until the process ends.
        let local = unsafe { Mem::new(memory.as_ptr().addr() as u64, len as u64, 0) };
        let (best, median) = write_ping_pong(side, local, remote, rounds, first);
        let gbs = if first {
            let gbs = streams(side, local, remote, rounds);
            side.adapter.send(side.ep, &[b"next"]).unwrap();
            gbs
        } else {
            until(side, &mut Vec::new(), is_message);
            (0.0, 0.0)
        };
        let (most, usual) = gbs;
        show(format!(
            "WRITE {len:>8} B {best:>9.3} us best {median:>9.3} us median \
             {most:>7.2} GB/s best {usual:>7.2} median"
        ));
    }
}

fn set_up(side: &mut Side, pool: &Pool, pooled: bool) -> (&'static mut [u8], String) {
    let memory = side.memory(pool, 2 * LARGEST, pooled);
    memory.fill(1);
    let (source, target) = memory.split_at_mut(LARGEST);
    let addr = target.as_ptr().addr() as u64;
    // SAFETY: the memory lives until the process ends.
    let mr = unsafe { side.adapter.register(addr, LARGEST as u64, Access::REMOTE_WRITE) }.unwrap();
    (source, format!("{addr} {}", mr.rkey))
}

fn remote(text: &str) -> Remote {
    let (addr, rkey) = text.split_once(' ').unwrap();
    Remote { addr: addr.parse().unwrap(), rkey: rkey.parse().unwrap() }
}

/// The child.
#[test]
#[ignore = "started by the other tests"]
fn child_answers() {
    let Some(args) = child::args() else { return };
    let (way, pooled) = args.split_once(' ').unwrap();
    pin(1);
    let mut side = Side::open((!way.is_empty()).then_some(way));
    let pool = Pool::new(1 << 30);
    let (memory, place) = set_up(&mut side, &pool, pooled == "pooled");
    child::meet_parent(&mut side);
    child::say(&place);
    programme(&mut side, memory, remote(&child::listen()), false);
}

fn pin(cpu: usize) {
    shm_support::pin(cpu);
}

fn bench(way: &str, pooled: bool) {
    println!("path {way:?}, memory from the pool: {pooled}");
    let mut other =
        Other::start("child_answers", &format!("{way} {}", if pooled { "pooled" } else { "" }));
    pin(0);
    let mut side = Side::open((!way.is_empty()).then_some(way));
    let pool = Pool::new(1 << 30);
    let (memory, place) = set_up(&mut side, &pool, pooled);
    other.meet(&mut side);
    let theirs = remote(&other.hear());
    other.tell(&place);
    programme(&mut side, memory, theirs, true);
    other.finish();
}

/// Milliseconds of a round, the median.
fn median_ms(mut round: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..41)
        .map(|_| {
            let start = Instant::now();
            round();
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[20]
}

/// Allocating, filling and freeing: memory that the pool keeps, the same given back in between, and
/// the process's own allocator.
#[test]
#[ignore = "measures"]
fn bench_allocations() {
    for len in [1 << 20, 16 << 20, 128 << 20] {
        let pool = Pool::new(4 << 30);
        let fill = || {
            let block = pool.alloc(len).unwrap();
            // SAFETY: a live block of this length.
            unsafe { block.write_bytes(1, len) };
            pool.free(block).unwrap();
        };
        let kept = median_ms(fill);
        let given_back = median_ms(|| {
            fill();
            let later = Instant::now() + std::time::Duration::from_secs(1000);
            while pool.trim_due(later) == Some(std::time::Duration::ZERO) {
                pool.trim(later);
            }
        });
        let own = median_ms(|| {
            let mut block: Vec<u8> = Vec::with_capacity(len);
            block.resize(len, 1);
            std::hint::black_box(&block);
        });
        println!(
            "{len:>10} B {kept:>8.2} ms kept {given_back:>8.2} ms given back {own:>8.2} ms malloc"
        );
    }
}

#[test]
#[ignore = "measures"]
fn bench_pool() {
    bench("", true);
}

#[test]
#[ignore = "measures"]
fn bench_process() {
    bench("", false);
}

#[test]
#[ignore = "measures"]
fn bench_stream() {
    bench("ring", false);
}
