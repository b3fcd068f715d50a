//! A child of a fork that does not exec, of a process that is then killed: what its parent held ends
//! with the parent. The parent is a process of its own, this program again.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::fd::RawFd;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rdma_transport::api::*;
use rdma_transport::config::Config;
use rdma_transport::fabric::ProviderKind;
use rdma_transport::manager::Manager;
use rdma_transport::status::{Code, Status};

const LONG: Duration = Duration::from_secs(60);
const ROLE: &str = "RDMA_TEST_FORKED_PARENT";

fn manager(name: &str, kind: ProviderKind) -> Arc<Manager> {
    Manager::new(Config { name: name.into(), provider: Some(kind), ..Config::default() }).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

/// A line on standard output that the test harness does not mix with its own.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n@{line}").unwrap();
    out.flush().unwrap();
}

/// The parent: listens, is connected to, forks a child that does nothing, and waits to be killed.
#[test]
fn forked_parent() {
    let Ok(kind) = std::env::var(ROLE) else { return };
    let m = manager("parent", ProviderKind::from_name(&kind).unwrap());
    say(&format!("address {}", m.listen("127.0.0.1:0").unwrap()));
    say(&format!("blob {}", hex(&m.export_address().unwrap())));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    // SAFETY: the child calls nothing but what is safe for signals.
    let child = match unsafe { libc::fork() } {
        0 => loop {
            // SAFETY: as above.
            unsafe { libc::pause() };
        },
        pid => pid,
    };
    say(&format!("child {child}"));
    std::io::stdin().read_line(&mut line).unwrap();
}

struct Parent {
    process: Child,
    stdin: ChildStdin,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    forked: Option<i32>,
}

impl Parent {
    fn start(kind: ProviderKind) -> Parent {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "forked_parent", "--nocapture"])
            .env(ROLE, kind.name())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = process.stdin.take().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Parent { process, stdin, lines, forked: None }
    }

    fn expect(&mut self, what: &str) -> String {
        loop {
            let line = self.lines.next().expect("the parent ended").unwrap();
            if let Some(rest) = line.strip_prefix(&format!("@{what} ")) {
                return rest.to_owned();
            }
        }
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        let _ = (self.process.kill(), self.process.wait());
        if let Some(pid) = self.forked {
            // SAFETY: a plain system call about a process that this test made.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
}

/// What the process holds, apart from files and pipes.
fn held(pid: i32) -> Vec<(RawFd, String)> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().filter_map(Result::ok);
    let links = entries.filter_map(|e| {
        let to = std::fs::read_link(e.path()).ok()?.to_string_lossy().into_owned();
        Some((e.file_name().to_str()?.parse().ok()?, to))
    });
    links.filter(|(_, to)| to.starts_with("socket:") || to.starts_with("anon_inode:")).collect()
}

fn recv(m: &Manager, peer: &str) -> mpsc::Receiver<Result<(), Status>> {
    let (tx, rx) = mpsc::channel();
    let done: RecvDone = Box::new(move |r, _| drop(tx.send(r.map(|_| ()))));
    let (timeout, target) = (Some(10 * LONG), Target::Library);
    let options = RecvOptions { timeout, target, device: 0, keep: false };
    // SAFETY: library memory.
    unsafe { m.recv_async(Some(peer), b"never", 1, options, done) }.unwrap();
    rx
}

fn killed_parent(kind: ProviderKind) {
    let mut parent = Parent::start(kind);
    let address = parent.expect("address");
    let blob = unhex(&parent.expect("blob"));
    let m = manager("m", kind);
    let name = m.import_address(&blob).unwrap();
    m.connect(&name, Some(LONG)).unwrap();
    let pending = recv(&m, &name);
    writeln!(parent.stdin, "fork").unwrap();
    let child: i32 = parent.expect("child").parse().unwrap();
    parent.forked = Some(child);
    // The parent may tell of its child before the child has run.
    let begun = Instant::now();
    while !held(child).is_empty() {
        assert!(begun.elapsed() < LONG, "of its parent the child holds {:?}", held(child));
        std::thread::sleep(Duration::from_millis(5));
    }
    // The parent goes on undisturbed, until it is killed.
    assert!(pending.recv_timeout(Duration::from_millis(100)).is_err());
    parent.process.kill().unwrap();
    parent.process.wait().unwrap();
    let status = pending.recv_timeout(LONG).unwrap().unwrap_err();
    assert_eq!(status.code, Code::Unavailable, "{status}");
    let begun = Instant::now();
    while let Err(e) = TcpListener::bind(&address) {
        assert!(begun.elapsed() < LONG, "the dead parent's port stays taken: {e}");
    }
    // SAFETY: a plain system call.
    assert_eq!(unsafe { libc::kill(child, 0) }, 0, "the child lived until here");
    m.destroy().unwrap();
}

#[test]
fn r11_a_killed_parent_is_dead_although_its_child_lives_tcp() {
    killed_parent(ProviderKind::Tcp);
}

#[test]
fn r11_a_killed_parent_is_dead_although_its_child_lives_shm() {
    killed_parent(ProviderKind::Shm);
}
