//! A process that is killed, and what it had posted before: that a copy of content takes longer than one turn must not
//! cost what comes behind it. The killed process is this program again.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rdma_transport::api::*;
use rdma_transport::config::{Config, Progress};
use rdma_transport::fabric::ProviderKind;
use rdma_transport::manager::Manager;
use rdma_transport::status::Status;

const LONG: Duration = Duration::from_secs(60);
const ROLE: &str = "RDMA_TEST_LAST_WORDS";
/// More than the copies of one turn.
const CONTENT: u64 = 64 << 20;
const WORDS: &[u8] = b"last words";

fn manager(name: &str, progress: Progress) -> Arc<Manager> {
    let config = Config {
        name: name.into(),
        provider: Some(ProviderKind::Shm),
        progress,
        ..Config::default()
    };
    Manager::new(config).unwrap()
}

fn tensor(addr: u64, nbytes: u64) -> Tensor {
    let meta = Meta { dtype: 1, nbytes, ..Default::default() };
    Tensor { meta, addr, device: 0 }
}

/// A line on standard output that the test harness does not mix with its own.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n@{line}").unwrap();
    out.flush().unwrap();
}

fn has_line() -> bool {
    let mut entry = libc::pollfd { fd: 0, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&mut entry, 1, 0) > 0 }
}

/// The killed process: has both sent, content out of its pool first, and waits for its end.
#[test]
fn child_with_last_words() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let m = manager("child", Progress::Manual);
    say(&format!("address {}", m.listen("127.0.0.1:0").unwrap()));
    let addr = m.mem_alloc(CONTENT as usize).unwrap();
    // SAFETY: just allocated, of this length.
    unsafe { (addr as *mut u8).write_bytes(7, CONTENT as usize) };
    // SAFETY: pool memory, and static memory; both live until the process ends.
    unsafe {
        // The first makes the pool known to the other end.
        for step in [0, 1] {
            m.send(b"content", step, tensor(addr, CONTENT), None, None).unwrap();
        }
        m.send(b"words", 1, tensor(WORDS.as_ptr() as u64, WORDS.len() as u64), None, None).unwrap();
    }
    // Until there is a line; both requests are in the ring by then, and these turns answer them.
    let mut turns = 0;
    while turns < 100 {
        m.progress().unwrap();
        turns += u32::from(turns > 0 || has_line());
    }
    say("posted .");
    loop {
        std::thread::park();
    }
}

type Ended = mpsc::Receiver<Result<u64, Status>>;

fn receive(m: &Manager, key: &[u8], step: i64, memory: &mut [u8]) -> Ended {
    let (tx, ended) = mpsc::channel();
    let target = Target::Given { addr: memory.as_mut_ptr() as u64, len: memory.len() as u64 };
    let options = RecvOptions { timeout: Some(LONG), target, device: 0, keep: false };
    let done: RecvDone = Box::new(move |r, _| drop(tx.send(r.map(|got| got.meta.nbytes))));
    // SAFETY: the memory outlives the manager.
    unsafe { m.recv_async(Some("child"), key, step, options, done) }.unwrap();
    ended
}

#[test]
fn a_small_send_behind_a_long_copy_survives_its_sender() {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_with_last_words", "--nocapture"])
        .env(ROLE, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = process.stdin.take().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let mut expect = |what: &str| loop {
        let line = lines.next().expect("the child ended").unwrap();
        if let Some(rest) = line.strip_prefix(&format!("@{what} ")) {
            return rest.to_owned();
        }
    };
    let m = manager("m", Progress::Manual);
    m.event_fd().unwrap();
    m.add_peer("child", &expect("address")).unwrap();
    m.connect("child", Some(LONG)).unwrap();
    let (mut content, mut words) = (vec![0u8; CONTENT as usize], vec![0u8; WORDS.len()]);
    let end_of = |ended: Ended| {
        let began = Instant::now();
        loop {
            m.progress().unwrap();
            match ended.try_recv() {
                Ok(result) => break result.map_err(|s| s.to_string()),
                Err(_) => assert!(began.elapsed() < LONG, "no end"),
            }
        }
    };
    assert_eq!(end_of(receive(&m, b"content", 0, &mut content)), Ok(CONTENT));
    content.fill(0);
    let both = [receive(&m, b"content", 1, &mut content), receive(&m, b"words", 1, &mut words)];
    writeln!(stdin).unwrap();
    expect("posted");
    process.kill().unwrap();
    process.wait().unwrap();
    let ends = both.map(end_of);
    assert_eq!(ends, [Ok(CONTENT), Ok(WORDS.len() as u64)]);
    assert!(content.iter().all(|&b| b == 7) && words == WORDS);
    m.destroy().unwrap();
}
