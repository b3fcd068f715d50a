//! The shm provider between two processes, and when one of them is killed.

mod shm_support;

use rdma_transport::fabric::{Access, Adapter, Mem, PostError, Remote};
use rdma_transport::memory::pool::Pool;
use rdma_transport::status::{Code, Reason};
use shm_support::child::{self, Other};
use shm_support::{Got, Side, pattern};

const LEN: usize = 9 << 20;

/// Path and whether memory comes from the pool.
fn ways() -> [(&'static str, bool); 5] {
    [("", false), ("", true), ("pool", true), ("cma", false), ("ring", false)]
}

fn path(name: &str) -> Option<&str> {
    (!name.is_empty()).then_some(name)
}

fn flag(pooled: bool) -> &'static str {
    if pooled { "pooled" } else { "plain" }
}

/// The child: echoes messages; writes its block to where the parent says, until it is told to stop.
#[test]
#[ignore = "started by the other tests"]
fn child_writes() {
    let Some(args) = child::args() else { return };
    let (way, pooled) = args.split_once(' ').unwrap();
    let mut side = Side::open(path(way));
    let pool = Pool::new(1 << 30);
    child::meet_parent(&mut side);
    let memory = side.memory(&pool, LEN, pooled == "pooled");
    memory.copy_from_slice(&pattern(5, LEN));
    let place = child::listen();
    let mut words = place.split(' ').map(|w| w.parse::<u64>().unwrap());
    let (addr, rkey) = (words.next().unwrap(), words.next().unwrap() as u32);
    // SAFETY: the memory lives until the process ends.
    let local = unsafe { Mem::new(memory.as_ptr().addr() as u64, LEN as u64, 0) };
    for wr in 0u64.. {
        let remote = Remote { addr, rkey };
        while side.adapter.write(side.ep, wr, local, remote, Some(wr as u32))
            == Err(PostError::QueueFull)
        {
            side.pump();
        }
        side.adapter.flush();
        side.sleep_until(|s| s.got.contains(&Got::Done(wr, None)) || s.messages() > 0);
        if side.messages() > 0 {
            return;
        }
    }
}

#[test]
fn content_arrives_whole_between_processes() {
    for (way, pooled) in ways() {
        let mut other = Other::start("child_writes", &format!("{way} {}", flag(pooled)));
        let mut side = Side::open(path(way));
        let pool = Pool::new(1 << 30);
        let dst = side.memory(&pool, LEN, pooled);
        other.meet(&mut side);
        let addr = dst.as_ptr().addr() as u64;
        // SAFETY: the memory lives until the process ends.
        let mr = unsafe { side.adapter.register(addr, LEN as u64, Access::REMOTE_WRITE) }.unwrap();
        other.tell(&format!("{addr} {}", mr.rkey));
        side.sleep_until(|s| s.got.contains(&Got::Written(0)));
        assert!(dst == pattern(5, LEN), "{way} {pooled}");
        side.adapter.send(side.ep, &[b"stop"]).unwrap();
        side.adapter.flush();
        while !side.is_down() {
            side.sleep_once();
        }
        other.finish();
    }
}

#[test]
fn a_peer_killed_in_mid_write_ends_the_endpoint_and_reports_nothing_half_written() {
    for (way, pooled) in ways() {
        let mut other = Other::start("child_writes", &format!("{way} {}", flag(pooled)));
        let mut side = Side::open(path(way));
        let pool = Pool::new(1 << 30);
        let dst = side.memory(&pool, LEN, pooled);
        other.meet(&mut side);
        let base = dst.as_mut_ptr();
        let addr = base.addr() as u64;
        // SAFETY: the memory lives until the process ends.
        let mr = unsafe { side.adapter.register(addr, LEN as u64, Access::REMOTE_WRITE) }.unwrap();
        other.tell(&format!("{addr} {}", mr.rkey));
        // A WRITE of ours that will never be answered, since the child polls no more.
        let first = pattern(5, 1)[0];
        // SAFETY: reads a byte of the block, which nobody writes at this moment.
        while unsafe { base.read_volatile() } != first {
            side.pump();
        }
        assert!(side.got.is_empty(), "one poll copied everything");
        // SAFETY: as above.
        let local = unsafe { Mem::new(addr, 100, 0) };
        side.adapter.write(side.ep, 9, local, Remote { addr: 1, rkey: 1 }, None).unwrap();
        other.kill();
        while !side.is_down() {
            side.sleep_once();
        }
        let n = side.got.len();
        assert!(matches!(&side.got[n - 1], Got::Down(s) if s.reason == Reason::PeerGone));
        assert!(side.got.contains(&Got::Done(9, Some(Code::Unavailable))), "{:?}", side.got);
        // With the content mapped here it may be all there in spite of the death: then it is right.
        if side.got.contains(&Got::Written(0)) {
            assert!(pooled && dst == pattern(5, LEN), "{way}: success without the bytes");
        }
        side.adapter.destroy(side.ep);
    }
}

/// The child, alone in its process: one adapter, many peers; says what each costs.
#[test]
#[ignore = "started by the other tests"]
fn child_measures() {
    let Some(args) = child::args() else { return };
    let count: u64 = args.parse().unwrap();
    let mut side = Side::open(None);
    // What the first connection alone brings in, code for example, is not a peer's cost.
    child::meet_parent(&mut side);
    let before = kilobytes();
    for _ in 0..count {
        child::meet_parent(&mut side);
    }
    child::say(&(kilobytes() - before).div_ceil(count).to_string());
}

/// Shared and private memory of this process that is resident, KiB.
fn kilobytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = text.lines().find(|l| l.starts_with("Rss:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn an_idle_peer_costs_at_most_128_kib() {
    const PEERS: usize = 64;
    let mut other = Other::start("child_measures", &PEERS.to_string());
    let mut sides: Vec<Side> = (0..=PEERS).map(|_| Side::open(None)).collect();
    for side in &mut sides {
        other.meet(side);
    }
    let each: u64 = other.hear().parse().unwrap();
    println!("an idle peer costs {each} KiB");
    assert!((1..=128).contains(&each), "{each} KiB");
    other.finish();
}
