//! An honest manager in a process of its own, as the target of an attack.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdma_transport::config::{Config, Progress};
use rdma_transport::engine::transfer::sizes::MAX_RDMA_PER_REQUEST;
use rdma_transport::fabric::ProviderKind;
use rdma_transport::status::Code;

use crate::honest::{Got, Honest};
use crate::{PATIENCE, eventually};

/// What the victim is started with. [`Options::default`]: tcp, no secret, a progress thread, a source
/// that answers keys `gen:<length>...`.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its name.
    pub name: String,
    /// Required provider; `None`: any.
    pub provider: Option<ProviderKind>,
    /// Shared secret.
    pub secret: Option<String>,
    /// The checksum option.
    pub checksum: bool,
    /// Forced protocol, by number; 0: none.
    pub protocol: u32,
    /// Silence after which a peer counts as stalled, milliseconds.
    pub peer_timeout_ms: u64,
    /// It answers keys `gen:<length>...`, see [`Honest::serve`].
    pub source: bool,
    /// Manual progress: nothing moves. For attacks on a manager that does not turn.
    pub manual: bool,
    /// Connections that long content goes over, `max_rdma_per_request`.
    pub connections: i64,
    /// Bound of its address space in bytes (RLIMIT_AS), 0: none.
    pub address_space: u64,
    /// Bound of its descriptors (RLIMIT_NOFILE), 0: none.
    pub descriptors: u64,
    /// Further environment.
    pub env: Vec<(String, String)>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            name: "victim".into(),
            provider: Some(ProviderKind::Tcp),
            secret: None,
            checksum: false,
            protocol: 0,
            peer_timeout_ms: 10_000,
            source: true,
            manual: false,
            connections: 1,
            address_space: 0,
            descriptors: 0,
            env: Vec::new(),
        }
    }
}

impl Options {
    fn args(&self) -> Vec<String> {
        let mut args = vec![
            format!("name={}", self.name),
            format!("checksum={}", u8::from(self.checksum)),
            format!("protocol={}", self.protocol),
            format!("peer_timeout_ms={}", self.peer_timeout_ms),
            format!("source={}", u8::from(self.source)),
            format!("manual={}", u8::from(self.manual)),
            format!("connections={}", self.connections),
        ];
        args.extend(self.provider.map(|p| format!("provider={}", p.name())));
        args.extend(self.secret.as_ref().map(|s| format!("secret={s}")));
        args
    }

    /// The settings of an honest peer of such a victim.
    pub fn peer(&self, name: &str) -> Config {
        let mut config = config_of(&self.args());
        config.name = name.into();
        config.progress = Progress::Thread;
        config
    }
}

/// Settings from the victim's arguments, `name=value` each.
pub fn config_of(args: &[String]) -> Config {
    let mut config = Config::default();
    for (name, value) in args.iter().filter_map(|a| a.split_once('=')) {
        match name {
            "name" => config.name = value.into(),
            "provider" => config.provider = ProviderKind::from_name(value),
            "secret" => config.secret = Some(value.as_bytes().to_vec()),
            "checksum" => config.checksum = value == "1",
            "peer_timeout_ms" => config.peer_timeout_ms = value.parse().expect("a number"),
            "protocol" => config.protocol = value.parse().expect("a number"),
            "connections" => {
                config.sizes.choose(MAX_RDMA_PER_REQUEST, value.parse().expect("a number"));
            }
            "manual" if value == "1" => config.progress = Progress::Manual,
            _ => {}
        }
    }
    config
}

/// What is at this place of a message that a victim receives.
pub fn byte_at(at: usize) -> u8 {
    (at % 251) as u8
}

/// Bytes as hexadecimal digits.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The reverse; panics at anything else.
pub fn from_hex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(text.get(at..at + 2).expect("even"), 16);
    (0..text.len()).step_by(2).map(|at| digit(at).expect("hexadecimal")).collect()
}

/// How an operation of the victim ended: a send or a receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The number that the operation was given.
    pub op: u64,
    /// Its status.
    pub code: Code,
    /// Receives: bytes.
    pub nbytes: u64,
    /// Receives: the content is just that of key and step.
    pub right: bool,
    /// The status's text.
    pub text: String,
}

/// A process with one manager. Dropping it kills the process; [`Victim::finish`] checks it first.
pub struct Victim {
    options: Options,
    child: Child,
    stdin: ChildStdin,
    answers: Receiver<String>,
    events: Receiver<String>,
    ended: VecDeque<Ended>,
    log: Arc<Mutex<Vec<String>>>,
    next_op: u64,
    address: String,
}

fn program() -> PathBuf {
    let test = std::env::current_exe().expect("this program's path");
    let folder = test.parent().and_then(|p| p.parent()).expect("target folder");
    folder.join("hostile-victim")
}

impl Victim {
    /// Starts it; it listens on a free port of 127.0.0.1.
    pub fn start(options: Options) -> Victim {
        let mut command = Command::new(program());
        command.args(options.args()).envs(options.env.iter().map(|(k, v)| (k, v)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        limit(&mut command, libc::RLIMIT_AS, options.address_space);
        limit(&mut command, libc::RLIMIT_NOFILE, options.descriptors);
        let mut child = command.spawn().expect("the victim's program");
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (answer, answers) = channel();
        let (event, events) = channel();
        let stdout = BufReader::new(stdout.expect("piped"));
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let to = if line.starts_with(['=', '!']) { &answer } else { &event };
                let _ = to.send(line);
            }
        });
        let log = Arc::new(Mutex::new(Vec::new()));
        let (lines, stderr) = (log.clone(), BufReader::new(child.stderr.take().expect("piped")));
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                lines.lock().expect("log").push(line);
            }
        });
        let stdin = stdin.expect("piped");
        let mut victim = Victim {
            options,
            child,
            stdin,
            answers,
            events,
            ended: VecDeque::new(),
            log,
            next_op: 0,
            address: String::new(),
        };
        assert_eq!(victim.answer(), Ok("ready".into()), "log: {:?}", victim.log());
        let blob = from_hex(&victim.tell("blob"));
        let blob = rdma_transport::bootstrap::AddressBlob::decode(&blob).expect("its own address");
        victim.address = blob.addrs[0].to_string();
        victim
    }

    fn answer(&mut self) -> Result<String, String> {
        match self.answers.recv_timeout(PATIENCE) {
            Ok(line) if line.starts_with("= ") => Ok(line[2..].into()),
            Ok(line) => Err(line[2..].into()),
            Err(e) => {
                let state = self.child.try_wait();
                panic!("the victim gives no answer: {e}, {state:?}; log: {:?}", self.log())
            }
        }
    }

    /// One command, which may fail; see `src/bin/victim.rs`.
    pub fn try_tell(&mut self, line: &str) -> Result<String, String> {
        let written = writeln!(self.stdin, "{line}").and_then(|()| self.stdin.flush());
        if let Err(e) = written {
            panic!("the victim is gone: {e}; log: {:?}", self.log());
        }
        self.answer()
    }

    /// One command, which succeeds.
    pub fn tell(&mut self, line: &str) -> String {
        self.try_tell(line).unwrap_or_else(|e| panic!("{line}: {e}"))
    }

    /// The same about a peer that has connected: to it that is known a moment before it is here.
    fn tell_of_peer(&mut self, line: &str) {
        let mut answer = Err(String::new());
        let known = crate::eventually(crate::PATIENCE, || {
            answer = self.try_tell(line);
            !matches!(&answer, Err(e) if e.contains("is not known"))
        });
        if let (false, _) | (_, Err(_)) = (known, &answer) {
            panic!("{line}: {answer:?}");
        }
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Offers a tensor with the pattern of key and step; the operation's number.
    pub fn send(&mut self, key: &[u8], step: i64, len: usize) -> u64 {
        self.next_op += 1;
        let (op, key) = (self.next_op, to_hex(key));
        self.tell(&format!("send {op} {key} {step} {len}"));
        op
    }

    /// Sends a message of so many zeros; the operation's number.
    pub fn send_message(&mut self, peer: &str, tag: u64, len: usize) -> u64 {
        self.next_op += 1;
        let op = self.next_op;
        self.tell_of_peer(&format!("message {op} {peer} {tag} {len}"));
        op
    }

    /// The same from memory in two pieces, or of a device, whose addresses are none of the host's.
    pub fn send_message_from(&mut self, peer: &str, tag: u64, len: usize, from: &str) -> u64 {
        self.next_op += 1;
        let op = self.next_op;
        self.tell_of_peer(&format!("message {op} {peer} {tag} {len} {from}"));
        op
    }

    /// Receives a message, which should be of [`byte_at`], into so much memory; the operation's number.
    pub fn recv_message(&mut self, peer: &str, tag: u64, room: usize) -> u64 {
        self.next_op += 1;
        let op = self.next_op;
        self.tell_of_peer(&format!("message-recv {op} {peer} {tag} {room}"));
        op
    }

    /// The same into memory in two pieces.
    pub fn recv_message_in_pieces(&mut self, peer: &str, tag: u64, room: usize) -> u64 {
        self.next_op += 1;
        let op = self.next_op;
        self.tell_of_peer(&format!("message-recv {op} {peer} {tag} {room} pieces"));
        op
    }

    /// Offers a tensor of zeros whose memory does not come until the command `serve`; the operation's number. `None`:
    /// such memory is not to be had here.
    pub fn send_slow(&mut self, key: &[u8], step: i64, len: usize) -> Option<u64> {
        let key = to_hex(key);
        let op = self.next_op + 1;
        self.try_tell(&format!("send-slow {op} {key} {step} {len}")).ok()?;
        self.next_op = op;
        Some(op)
    }

    /// Asks `peer` for a tensor of that length; `given`: into memory given up front.
    pub fn recv(
        &mut self,
        peer: &str,
        key: &[u8],
        step: i64,
        len: usize,
        given: bool,
        timeout: Duration,
    ) -> u64 {
        self.next_op += 1;
        let (op, key, given) = (self.next_op, to_hex(key), u8::from(given));
        let ms = timeout.as_millis();
        self.tell_of_peer(&format!("recv {op} {peer} {key} {step} {len} {given} {ms}"));
        op
    }

    /// Waits until this operation has ended; `None` if it has not within `limit`. Panics if an
    /// operation ended twice.
    pub fn wait(&mut self, op: u64, limit: Duration) -> Option<Ended> {
        let until = Instant::now() + limit;
        loop {
            if let Some(at) = self.ended.iter().position(|e| e.op == op) {
                let found = self.ended[at].clone();
                let times = self.ended.iter().filter(|e| e.op == op).count();
                assert_eq!(times, 1, "operation {op} ended more than once");
                return Some(found);
            }
            let left = until.saturating_duration_since(Instant::now());
            let line = self.events.recv_timeout(left).ok()?;
            self.ended.push_back(parse(&line));
        }
    }

    /// All that has ended so far, in order.
    pub fn ended(&mut self) -> Vec<Ended> {
        self.ended.extend(self.events.try_iter().map(|l| parse(&l)));
        self.ended.iter().cloned().collect()
    }

    /// What it has written to standard error: its log.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().expect("log").clone()
    }

    fn status(&self, field: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let text = text.unwrap_or_default();
        let line = text.lines().find_map(|l| l.strip_prefix(field)).unwrap_or(": 0");
        line.trim_start_matches(':').split_whitespace().next().map_or(0, |n| n.parse().unwrap_or(0))
    }

    /// Resident memory in bytes.
    pub fn rss(&self) -> u64 {
        self.status("VmRSS") << 10
    }

    /// The most resident memory that it ever had, in bytes.
    pub fn peak_rss(&self) -> u64 {
        self.status("VmHWM") << 10
    }

    /// Address space in bytes.
    pub fn address_space(&self) -> u64 {
        self.status("VmSize") << 10
    }

    /// Threads.
    pub fn threads(&self) -> u64 {
        self.status("Threads")
    }

    /// Open descriptors.
    pub fn open_descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).map_or(0, |d| d.count())
    }

    /// Processor time used so far.
    pub fn cpu(&self) -> Duration {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        let text = text.unwrap_or_default();
        let rest = text.rsplit_once(") ").map_or("", |(_, r)| r);
        let ticks: u64 =
            rest.split(' ').skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
        Duration::from_millis(ticks * 10)
    }

    /// Whether the process lives.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Stops (SIGSTOP) or continues (SIGCONT) it, or sends it any other signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: the process is this one's child, which has not been waited for.
        assert_eq!(unsafe { libc::kill(self.pid() as i32, signal) }, 0);
    }

    /// An honest peer that connects, asks for a tensor and is asked for one; panics if either is
    /// wrong or takes longer than `limit`. Returns the time from its start.
    pub fn check_honest_within(&mut self, limit: Duration) -> Duration {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let n = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("honest-{}-{n}", std::process::id());
        let start = Instant::now();
        let honest = Honest::start(self.options.peer(&name));
        honest.serve();
        let blob = from_hex(&self.tell("blob"));
        let peer = honest.manager.import_address(&blob).expect("the victim's address");
        for (step, len) in [5usize, 70_001].into_iter().enumerate() {
            let (key, step) = (format!("check {name}").into_bytes(), step as i64);
            let sent = self.send(&key, step, len);
            let got: Got = honest.ask(&peer, &key, step, len, limit);
            assert_eq!((got.code, got.right), (Code::Ok, true), "an honest peer: {got:?}");
            let sent = self.wait(sent, limit).expect("the victim's send ended");
            assert_eq!(sent.code, Code::Ok, "{sent:?}");
            let key = format!("gen:{len} {name}").into_bytes();
            let asked = self.recv(&name, &key, step, len, len % 2 == 0, limit);
            let got = self.wait(asked, limit + PATIENCE).expect("the victim's receive ended");
            assert_eq!((got.code, got.right), (Code::Ok, true), "from an honest peer: {got:?}");
        }
        let took = start.elapsed();
        assert!(took < limit, "an honest peer was served only after {took:?}");
        took
    }

    /// The same within [`PATIENCE`].
    pub fn check_honest(&mut self) -> Duration {
        self.check_honest_within(PATIENCE)
    }

    /// The end of an attack: it lives, serves an honest peer, and ends in order with every operation
    /// ended exactly once.
    pub fn finish(mut self) {
        assert!(self.is_alive(), "the victim died: {:?}; log: {:?}", self.child.wait(), self.log());
        self.check_honest();
        assert_eq!(self.try_tell("exit"), Ok("ok".into()));
        assert!(eventually(PATIENCE, || !self.is_alive()), "the victim does not end");
        let status = self.child.wait().expect("its status");
        assert!(status.success(), "the victim ended with {status}; log: {:?}", self.log());
        let ended = self.ended();
        for op in 1..=self.next_op {
            let times = ended.iter().filter(|e| e.op == op).count();
            assert_eq!(times, 1, "operation {op} ended {times} times");
        }
    }
}

fn parse(line: &str) -> Ended {
    let mut words = line.splitn(6, ' ');
    let kind = words.next().unwrap_or("");
    assert!(kind == "sent" || kind == "got", "the victim says {line:?}");
    let mut number = || words.next().and_then(|w| w.parse::<i64>().ok()).unwrap_or(0);
    let (op, code, nbytes, right) = (number() as u64, number(), number() as u64, number() == 1);
    let code = Code::from_i32(code as i32).unwrap_or_else(|| panic!("code {code}"));
    Ended { op, code, nbytes, right, text: words.next().unwrap_or("").into() }
}

fn limit(command: &mut Command, what: libc::__rlimit_resource_t, most: u64) {
    use std::os::unix::process::CommandExt;
    if most == 0 {
        return;
    }
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    let set = move || {
        // SAFETY: `limit` is a whole value; the call is allowed between fork and exec.
        match unsafe { libc::setrlimit(what, &limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(set) };
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
