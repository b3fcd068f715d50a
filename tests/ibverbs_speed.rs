//! Speed of the ibverbs provider beside perftest, in the same boot of the Soft-RoCE machine: run by
//! `softroce/run.sh`. Two processes, as perftest's two, that find each other by pipes.
//!
//! Prints lines `speed: <what> <bytes> ours <x> <unit>`; `softroce/guest/speed` adds perftest's.
#![cfg(feature = "ibverbs")]

#[path = "support/skip.rs"]
mod skip;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

use rdma_transport::config::Config;
use rdma_transport::fabric::ibverbs::{self, IbverbsAdapter};
use rdma_transport::fabric::{Access, Adapter, EpId, Event, Mem, Mr, PostError, Remote};

const CHILD: &str = "RDMA_SPEED_CHILD";
const MAX: usize = 1 << 20;

struct End {
    ad: IbverbsAdapter,
    ep: EpId,
    buf: Vec<u8>,
    mr: Mr,
    peer: Remote,
    events: Vec<Event>,
}

/// One line of hexadecimal: address, buffer and key.
fn exchange(out: &mut impl Write, input: &mut impl BufRead, mine: &str) -> Vec<u64> {
    writeln!(out, "{mine}").expect("write");
    out.flush().expect("flush");
    let mut line = String::new();
    while !line.starts_with("end ") {
        line.clear();
        assert!(input.read_line(&mut line).expect("read") > 0, "the peer ended");
    }
    line[4..].split_whitespace().map(|w| u64::from_str_radix(w, 16).expect("hex")).collect()
}

impl End {
    fn new(device: &str, out: &mut impl Write, input: &mut impl BufRead, active: bool) -> End {
        let mut cfg = Config { queue_depth: 128, ..Config::default() };
        cfg.ib.device = Some(device.into());
        // Emulated processors may not run for a while.
        cfg.ib.timeout = 18;
        let mut ad = ibverbs::open(&cfg).expect("open");
        let buf = vec![0u8; MAX];
        // SAFETY: the buffer lives as long as the adapter, in one struct.
        let mr = unsafe { ad.register(buf.as_ptr() as u64, MAX as u64, Access::all()) };
        let mr = mr.expect("register");
        let ep = ad.create("peer").expect("create");
        let address = ad.address(ep).expect("address");
        let mut mine = format!("end {:x} {:x}", buf.as_ptr() as u64, mr.rkey);
        address.iter().for_each(|b| mine.push_str(&format!(" {b:x}")));
        let theirs = exchange(out, input, &mine);
        let remote: Vec<u8> = theirs[2..].iter().map(|&b| b as u8).collect();
        ad.connect(ep, &remote, active, None).expect("connect");
        let peer = Remote { addr: theirs[0], rkey: theirs[1] as u32 };
        let mut end = End { ad, ep, buf, mr, peer, events: Vec::new() };
        while !end.events.iter().any(|e| matches!(e, Event::Connected(_))) {
            end.poll();
        }
        end.events.clear();
        exchange(out, input, "end 0");
        end
    }

    fn poll(&mut self) {
        self.ad.poll(&mut self.events);
        for e in &self.events {
            assert!(!matches!(e, Event::Down { .. }), "{e:?}");
        }
    }

    fn mem(&self, len: usize) -> Mem {
        // SAFETY: the buffer outlives the adapter's use of it.
        unsafe { Mem::new(self.buf.as_ptr() as u64, len as u64, self.mr.lkey) }
    }

    /// Waits for one arrival.
    fn arrival(&mut self) {
        loop {
            self.poll();
            let here = self
                .events
                .iter()
                .any(|e| matches!(e, Event::Message { .. } | Event::Written { .. }));
            self.events.clear();
            if here {
                return;
            }
        }
    }

    fn send(&mut self, len: usize) {
        while let Err(e) = self.ad.send(self.ep, &[&self.buf[..len]]) {
            assert_eq!(e, PostError::QueueFull);
            self.poll();
        }
        self.ad.flush();
    }

    /// Ping-pong of SENDs: half of the median round trip, in microseconds.
    fn send_latency(&mut self, len: usize, rounds: usize, first: bool) -> f64 {
        self.ping_pong(rounds, first, |e| e.send(len), End::arrival)
    }

    /// Ping-pong of plain WRITEs, seen in memory: as ib_write_lat.
    fn write_latency(&mut self, len: usize, rounds: usize, first: bool) -> f64 {
        // Each side writes from the first half of its buffer into the second half of the peer's,
        // and watches the last byte.
        let to = Remote { addr: self.peer.addr + (MAX / 2) as u64, rkey: self.peer.rkey };
        let mut out = 0u8;
        let mut seen = 0u8;
        let at = MAX / 2 + len - 1;
        self.ping_pong(
            rounds,
            first,
            move |e| {
                out = out.wrapping_add(1);
                // SAFETY: the buffer is ours and nobody refers into it now.
                unsafe { e.buf.as_mut_ptr().add(len - 1).write_volatile(out) };
                let mem = e.mem(len);
                e.ad.write(e.ep, 1, mem, to, None).expect("write");
                e.ad.flush();
            },
            move |e| {
                seen = seen.wrapping_add(1);
                // SAFETY: a byte of the buffer, which the device writes.
                while unsafe { e.buf.as_ptr().add(at).read_volatile() } != seen {
                    std::hint::spin_loop();
                }
                // Completions are taken once per round, as perftest does.
                e.poll();
                e.events.clear();
            },
        )
    }

    fn ping_pong(
        &mut self,
        rounds: usize,
        first: bool,
        mut send: impl FnMut(&mut End),
        mut wait: impl FnMut(&mut End),
    ) -> f64 {
        // As perftest: the processor's counter, once per round. The clock would cost a part of what is
        // measured, on an emulated processor above all.
        let mut stamps = Vec::with_capacity(rounds + 1);
        let start = (Instant::now(), ticks());
        for _ in 0..rounds {
            stamps.push(ticks());
            if first {
                send(self);
                wait(self);
            } else {
                wait(self);
                send(self);
            }
        }
        let end = ticks();
        let us = start.0.elapsed().as_nanos() as f64 / 1000.0 / (end - start.1) as f64;
        stamps.push(end);
        let half = |w: &[u64]| (w[1] - w[0]) as f64 * us / 2.0;
        let mut times: Vec<f64> = stamps.windows(2).map(half).collect();
        times.sort_by(f64::total_cmp);
        times[rounds / 2]
    }

    /// MB/s (2^20) of WRITEs or READs, several under way.
    fn bandwidth(&mut self, len: usize, count: usize, read: bool) -> f64 {
        let (mut posted, mut done) = (0, 0);
        let start = Instant::now();
        while done < count {
            while posted < count && posted - done < 64 {
                let (mem, peer) = (self.mem(len), self.peer);
                let r = match read {
                    true => self.ad.read(self.ep, posted as u64, mem, peer),
                    false => self.ad.write(self.ep, posted as u64, mem, peer, None),
                };
                if r == Err(PostError::QueueFull) {
                    break;
                }
                r.expect("post");
                posted += 1;
            }
            self.ad.flush();
            self.poll();
            for e in self.events.drain(..) {
                if let Event::Done { result, .. } = e {
                    result.expect("done");
                    done += 1;
                }
            }
        }
        (len * count) as f64 / start.elapsed().as_secs_f64() / (1 << 20) as f64
    }
}

/// The processor's counter.
fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has it.
    let n = unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    let n = {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    };
    n
}

const LATENCY_ROUNDS: usize = 500;
const LATENCY_BYTES: [usize; 2] = [8, 1024];

fn count(len: usize) -> usize {
    ((24 << 20) / len).clamp(20, 1000)
}

/// Each process on a processor of its own, as perftest's are: both spin.
fn pin(cpu: usize) {
    // SAFETY: all zeroes is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: a live set and a small number; a host without this processor refuses.
    unsafe {
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// The passive process.
fn child(device: &str) {
    pin(1);
    // SAFETY: changes an attribute of this process only.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    // The harness has begun a line.
    println!();
    let (mut out, mut input) = (std::io::stdout(), BufReader::new(std::io::stdin()));
    let mut e = End::new(device, &mut out, &mut input, false);
    for len in LATENCY_BYTES {
        e.send_latency(len, LATENCY_ROUNDS, false);
    }
    for len in LATENCY_BYTES {
        exchange(&mut out, &mut input, "end 1");
        e.write_latency(len, LATENCY_ROUNDS, false);
        exchange(&mut out, &mut input, "end 2");
        e.buf.fill(0);
    }
    // Bandwidth needs nothing of this side.
    let mut rest = String::new();
    let _ = input.read_to_string(&mut rest);
    drop(e);
    // The pipe to print a result on is closed.
    std::process::exit(0);
}

#[test]
fn speed() {
    let Ok(devices) = std::env::var("RDMA_TEST_DEVICE") else {
        return skip::skip("no RDMA device here; runs in `make softroce`");
    };
    let (here, there) = devices.split_once(':').unwrap_or((&devices, &devices));
    if std::env::var_os(CHILD).is_some() {
        return child(there);
    }
    pin(0);
    let mut peer = Command::new(std::env::current_exe().expect("test"))
        .args(["--exact", "speed", "--nocapture"])
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("child");
    let mut out = peer.stdin.take().expect("stdin");
    let mut input = BufReader::new(peer.stdout.take().expect("stdout"));
    let mut e = End::new(here, &mut out, &mut input, true);
    // The harness has begun a line.
    println!();
    for len in LATENCY_BYTES {
        let us = e.send_latency(len, LATENCY_ROUNDS, true);
        println!("speed: send_lat {len} ours {us:.2} us");
    }
    for len in LATENCY_BYTES {
        e.buf.fill(0);
        exchange(&mut out, &mut input, "end 1");
        let us = e.write_latency(len, LATENCY_ROUNDS, true);
        println!("speed: write_lat {len} ours {us:.2} us");
        exchange(&mut out, &mut input, "end 2");
    }
    for (name, read) in [("write_bw", false), ("read_bw", true)] {
        for len in [4096, 65536, MAX] {
            let mb = e.bandwidth(len, count(len), read);
            println!("speed: {name} {len} ours {mb:.2} MB/s");
        }
    }
    drop((out, input));
    assert!(peer.wait().expect("child").success());
}
