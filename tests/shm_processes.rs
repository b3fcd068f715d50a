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
        let first = pattern(5, 1)[0];
        // SAFETY: reads a byte of the block, which nobody writes at this moment.
        while unsafe { base.read_volatile() } != first {
            side.pump();
        }
        assert!(side.got.is_empty(), "one poll copied everything");
        // A WRITE of ours that will never be answered, since the child runs no more.
        other.stop();
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

/// The child: posts a WRITE out of its own memory, and becomes another program under the same number.
/// A forked child keeps the connection.
#[test]
#[ignore = "started by the other tests"]
fn child_execs() {
    use std::os::unix::process::CommandExt;
    if child::args().is_none() {
        return;
    }
    let mut side = Side::open(Some("cma"));
    child::meet_parent(&mut side);
    let memory = pattern(5, LEN);
    let place = child::listen();
    let mut words = place.split(' ').map(|w| w.parse::<u64>().unwrap());
    let remote = Remote { addr: words.next().unwrap(), rkey: words.next().unwrap() as u32 };
    // SAFETY: the memory lives until the process is another program, which is the point.
    let local = unsafe { Mem::new(memory.as_ptr().addr() as u64, LEN as u64, 0) };
    side.adapter.write(side.ep, 1, local, remote, Some(1)).unwrap();
    side.adapter.flush();
    // SAFETY: the forked child makes system calls only, and ends with this process.
    unsafe {
        if libc::fork() == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            loop {
                libc::pause();
            }
        }
    }
    panic!("{}", std::process::Command::new("sleep").arg("60").exec());
}

#[test]
fn r16_a_peer_that_called_exec_is_gone_and_nothing_of_it_is_written() {
    let mut other = Other::start("child_execs", "");
    let mut side = Side::open(Some("cma"));
    let mut dst = vec![0u8; LEN];
    other.meet(&mut side);
    let addr = dst.as_mut_ptr().addr() as u64;
    // SAFETY: the memory outlives the adapter's use.
    let mr = unsafe { side.adapter.register(addr, LEN as u64, Access::REMOTE_WRITE) }.unwrap();
    other.tell(&format!("{addr} {}", mr.rkey));
    let program = format!("/proc/{}/comm", other.process.id());
    while std::fs::read_to_string(&program).unwrap().trim() != "sleep" {
        std::thread::yield_now();
    }
    while !side.is_down() {
        side.pump();
        assert!(!side.got.contains(&Got::Written(1)), "success with another program's memory");
    }
    let Some(Got::Down(status)) = side.got.last() else { panic!("{:?}", side.got) };
    assert_eq!(status.reason, Reason::PeerGone, "{status}");
    assert!(dst.iter().all(|&byte| byte == 0));
    other.kill();
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

/// From now on this process may not read the memory of others, as under a strict container policy.
fn forbid_reading() {
    const READV: u32 = libc::SYS_process_vm_readv as u32;
    let op = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let deny = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut filter = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, READV),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, deny),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: the filter is alive during the calls; they affect this thread only.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
            0
        );
    }
}

/// The child: writes its block to the parent, and reads the parent's, in spite of the kernel.
#[test]
#[ignore = "started by the other tests"]
fn child_may_not_read() {
    if child::args().is_none() {
        return;
    }
    forbid_reading();
    let mut side = Side::open(None);
    child::meet_parent(&mut side);
    let mut memory = pattern(5, LEN);
    let open = Access::REMOTE_WRITE | Access::REMOTE_READ;
    let own = memory.as_mut_ptr().addr() as u64;
    // SAFETY: the memory lives until the process ends.
    let mr = unsafe { side.adapter.register(own, LEN as u64, open) }.unwrap();
    child::say(&format!("{own} {}", mr.rkey));
    let place = child::listen();
    let mut words = place.split(' ').map(|w| w.parse::<u64>().unwrap());
    let remote = Remote { addr: words.next().unwrap(), rkey: words.next().unwrap() as u32 };
    let mut copy = vec![0u8; LEN];
    // SAFETY: the memory lives until the process ends.
    let into = unsafe { Mem::new(copy.as_mut_ptr().addr() as u64, LEN as u64, 0) };
    side.adapter.read(side.ep, 1, into, remote).unwrap();
    side.sleep_until(|s| s.got.contains(&Got::Done(1, None)));
    assert!(copy == pattern(6, LEN));
    side.adapter.send(side.ep, &[b"write now"]).unwrap();
    side.adapter.flush();
    side.sleep_until(|s| s.got.contains(&Got::Written(1)));
    assert!(memory == pattern(7, LEN));
    side.adapter.send(side.ep, &[b"well done"]).unwrap();
    side.adapter.flush();
    child::listen();
}

#[test]
fn where_the_kernel_forbids_reading_content_still_arrives() {
    let mut other = Other::start("child_may_not_read", "");
    let mut side = Side::open(None);
    let block = pattern(6, LEN);
    other.meet(&mut side);
    let addr = block.as_ptr().addr() as u64;
    // SAFETY: the block outlives the adapter's use.
    let mr = unsafe { side.adapter.register(addr, LEN as u64, Access::REMOTE_READ) }.unwrap();
    let theirs = other.hear();
    other.tell(&format!("{addr} {}", mr.rkey));
    side.sleep_until(|s| s.messages() == 1);
    let (their, rkey) = theirs.split_once(' ').unwrap();
    let remote = Remote { addr: their.parse().unwrap(), rkey: rkey.parse().unwrap() };
    let (new, mut back) = (pattern(7, LEN), vec![0u8; LEN]);
    // SAFETY: both outlive the adapter's use.
    let (local, into) = unsafe {
        let local = Mem::new(new.as_ptr().addr() as u64, LEN as u64, 0);
        (local, Mem::new(back.as_mut_ptr().addr() as u64, LEN as u64, 0))
    };
    side.adapter.write(side.ep, 1, local, remote, Some(1)).unwrap();
    side.adapter.flush();
    side.sleep_until(|s| s.messages() == 2);
    // This direction is allowed.
    side.adapter.read(side.ep, 2, into, remote).unwrap();
    side.sleep_until(|s| s.got.contains(&Got::Done(2, None)));
    assert!(back == new && side.got.contains(&Got::Done(1, None)));
    other.tell("end");
    other.finish();
}
