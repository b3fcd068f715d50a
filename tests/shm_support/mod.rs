//! Two shm adapters and what they have reported.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::time::{Duration, Instant};

use rdma_transport::config::Config;
use rdma_transport::fabric::shm::ShmAdapter;
use rdma_transport::fabric::{Adapter, EpId, Event};
use rdma_transport::memory::pool::Pool;
use rdma_transport::status::{Code, Status};

/// A test that is not over by then hangs.
const HANG: Duration = Duration::from_secs(40);

/// An event, with owned content.
#[derive(Clone, Debug, PartialEq)]
pub enum Got {
    Message(Vec<u8>),
    Written(u32),
    Done(u64, Option<Code>),
    Down(Status),
}

/// An adapter with one endpoint.
pub struct Side {
    pub adapter: ShmAdapter,
    pub ep: EpId,
    pub connected: bool,
    pub got: Vec<Got>,
}

impl Side {
    pub fn open(path: Option<&str>) -> Side {
        let config = Config { shm_copy: path.map(str::to_owned), ..Config::default() };
        let adapter = ShmAdapter::open(&config).unwrap();
        Side { adapter, ep: EpId(0), connected: false, got: Vec::new() }
    }

    pub fn create(&mut self) {
        self.ep = self.adapter.create("other").unwrap();
        self.connected = false;
    }

    /// Connects a new endpoint of each.
    pub fn meet(&mut self, other: &mut Side) {
        self.create();
        other.create();
        let (mine, theirs) =
            (self.adapter.address(self.ep).unwrap(), other.adapter.address(other.ep).unwrap());
        self.got.clear();
        other.got.clear();
        // The active side may come first: its Hello waits.
        self.adapter.connect(self.ep, &theirs, true, None).unwrap();
        self.pump();
        other.pump();
        other.adapter.connect(other.ep, &mine, false, None).unwrap();
        wait_for(self, other, |a, b| a.connected && b.connected);
    }

    /// Polls once.
    pub fn pump(&mut self) {
        let mut events = Vec::new();
        self.adapter.poll(&mut events);
        for event in events {
            let (ep, got) = match event {
                Event::Connected(ep) => {
                    assert_eq!(ep, self.ep);
                    self.connected = true;
                    continue;
                }
                Event::Message { ep, bytes } => (ep, Got::Message(bytes.bytes().to_vec())),
                Event::Written { ep, imm } => (ep, Got::Written(imm)),
                Event::Done { ep, wr, result } => (ep, Got::Done(wr, result.err().map(|s| s.code))),
                Event::Down { ep, status } => (ep, Got::Down(status)),
            };
            assert_eq!(ep, self.ep, "{got:?}");
            assert!(!self.is_down(), "{got:?} after Down");
            self.got.push(got);
        }
    }

    pub fn is_down(&self) -> bool {
        matches!(self.got.last(), Some(Got::Down(_)))
    }

    pub fn messages(&self) -> usize {
        self.got.iter().filter(|g| matches!(g, Got::Message(_))).count()
    }

    /// Sleeps on the descriptor, if there is nothing to do, and polls. Panics when nobody wakes it.
    pub fn sleep_once(&mut self) {
        if self.adapter.arm() {
            let fd = self.adapter.fd().unwrap();
            let mut p = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one valid entry.
            let n = unsafe { libc::poll(&mut p, 1, HANG.as_millis() as i32) };
            assert_eq!(n, 1, "nobody woke this side; it has {:?}", self.got.last());
        }
        self.pump();
    }

    pub fn sleep_until(&mut self, mut over: impl FnMut(&Side) -> bool) {
        while !over(self) {
            assert!(!self.is_down(), "{:?}", self.got.last());
            self.sleep_once();
        }
    }

    /// Memory from the pool, or not; never freed before the process ends.
    pub fn memory(&mut self, pool: &Pool, len: usize, pooled: bool) -> &'static mut [u8] {
        if !pooled {
            return vec![0; len].leak();
        }
        let ptr = pool.alloc(len).unwrap();
        for segment in pool.segments() {
            self.adapter.add_pool(segment).unwrap();
        }
        // SAFETY: a live block of the pool, which each test keeps until its adapters are gone.
        unsafe { std::slice::from_raw_parts_mut(ptr, len) }
    }
}

/// Two connected sides that copy by `path`.
pub fn pair(path: Option<&str>) -> (Side, Side) {
    let (mut a, mut b) = (Side::open(path), Side::open(path));
    a.meet(&mut b);
    (a, b)
}

/// The same, with the segments of their pools known.
pub fn pair_with(path: Option<&str>, pools: [Option<&Pool>; 2]) -> (Side, Side) {
    let (mut a, mut b) = (Side::open(path), Side::open(path));
    for (side, pool) in [&mut a, &mut b].into_iter().zip(pools) {
        for segment in pool.iter().flat_map(|p| p.segments()) {
            side.adapter.add_pool(segment).unwrap();
        }
    }
    a.meet(&mut b);
    (a, b)
}

/// Pumps both until it is so.
pub fn wait_for(a: &mut Side, b: &mut Side, mut over: impl FnMut(&Side, &Side) -> bool) {
    let start = Instant::now();
    while !over(a, b) {
        a.pump();
        b.pump();
        assert!(start.elapsed() < HANG, "hangs; a has {:?}, b {:?}", a.got, b.got);
    }
}

/// Content that differs by number and place.
pub fn pattern(seed: u32, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u32).wrapping_mul(31).wrapping_add(seed * 7 + 1) as u8).collect()
}

/// The other end in another process: this test binary again, running one `#[ignore]`d test.
pub mod child {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

    use super::{Side, wait_connected};
    use rdma_transport::fabric::Adapter;

    /// Starts the test `role` of this binary with arguments.
    pub struct Other {
        pub process: Child,
        input: ChildStdin,
        output: BufReader<ChildStdout>,
    }

    impl Other {
        pub fn start(role: &str, args: &str) -> Other {
            let mut process = Command::new(std::env::current_exe().unwrap())
                .args([role, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
                .env("SHM_TEST_CHILD", args)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let input = process.stdin.take().unwrap();
            let output = BufReader::new(process.stdout.take().unwrap());
            Other { process, input, output }
        }

        /// The next line for us; the test harness prints others.
        pub fn hear(&mut self) -> String {
            let mut line = String::new();
            loop {
                line.clear();
                assert!(self.output.read_line(&mut line).unwrap() > 0, "the child ended");
                // The harness leaves "test name ... " at the start of the line.
                if let Some((_, said)) = line.split_once(">>") {
                    return said.trim().to_owned();
                }
            }
        }

        pub fn tell(&mut self, text: &str) {
            writeln!(self.input, "{text}").unwrap();
        }

        /// Connects a new endpoint of `side` with the child's.
        pub fn meet(&mut self, side: &mut Side) {
            side.create();
            let theirs = unhex(&self.hear());
            self.tell(&hex(&side.adapter.address(side.ep).unwrap()));
            side.adapter.connect(side.ep, &theirs, true, None).unwrap();
            wait_connected(side);
        }

        /// Stops the child; when this returns it runs no more.
        pub fn stop(&self) {
            let pid = self.process.id() as i32;
            let mut state = 0;
            // SAFETY: a signal to our own child, and a wait that leaves it a child.
            unsafe {
                assert_eq!(libc::kill(pid, libc::SIGSTOP), 0);
                assert_eq!(libc::waitpid(pid, &raw mut state, libc::WUNTRACED), pid);
            }
            assert!(libc::WIFSTOPPED(state), "the child ended: {state}");
        }

        pub fn kill(mut self) {
            self.process.kill().unwrap();
            self.process.wait().unwrap();
        }

        pub fn finish(mut self) {
            drop(self.input);
            assert!(self.process.wait().unwrap().success());
        }
    }

    /// In the child: the arguments, or `None` in an ordinary test run.
    pub fn args() -> Option<String> {
        std::env::var("SHM_TEST_CHILD").ok()
    }

    pub fn say(text: &str) {
        println!(">>{text}");
        std::io::stdout().flush().unwrap();
    }

    pub fn listen() -> String {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// In the child: connects with the parent's endpoint.
    pub fn meet_parent(side: &mut Side) {
        side.create();
        say(&hex(&side.adapter.address(side.ep).unwrap()));
        let theirs = unhex(&listen());
        side.adapter.connect(side.ep, &theirs, false, None).unwrap();
        wait_connected(side);
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    fn unhex(text: &str) -> Vec<u8> {
        let digit = |i: usize| u8::from_str_radix(&text[i..i + 2], 16).unwrap();
        (0..text.len()).step_by(2).map(digit).collect()
    }
}

/// Pumps until the endpoint is connected.
pub fn wait_connected(side: &mut Side) {
    let start = Instant::now();
    while !side.connected {
        side.pump();
        assert!(!side.is_down() && start.elapsed() < HANG, "{:?}", side.got);
    }
}

/// Pins this thread to a processor.
pub fn pin(cpu: usize) {
    // SAFETY: an all-zero set is valid; the call reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}
