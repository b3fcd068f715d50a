//! Changes that their caller has given up, and that the server has yet to hear of.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rdma_transport::status::{Code, Status};
use rdma_transport::store::tcp::{Client, server::Server};
use rdma_transport::store::{Patience, in_redis};

use super::redis_server::Redis;
use super::*;

/// Names the process that serves a store for the tests here.
const SERVES: &str = "RDMA_TEST_STORE_SERVES";
/// Lengths of values: within the first read of a server, and beyond what its socket takes while it stands still.
const LENGTHS: [usize; 3] = [1, 1000, 200_000];
const UNKNOWN: &str = "it is not known whether this was done";

/// No test: the other process.
#[test]
fn serves_a_store_in_a_process_of_its_own() {
    if std::env::var_os(SERVES).is_none() {
        return;
    }
    let server = Server::new("127.0.0.1:0", None, false).unwrap();
    println!("\nserves {}", server.bound());
    let _ = std::io::stdin().read_line(&mut String::new());
}

struct Process {
    child: Child,
    address: String,
}

impl Process {
    fn start() -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "late::serves_a_store_in_a_process_of_its_own", "--nocapture"])
            .env(SERVES, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address =
            lines.find_map(|line| line.unwrap().strip_prefix("serves ").map(str::to_owned));
        Process { child, address: address.unwrap() }
    }

    fn store(&self) -> Store {
        store(Arc::new(Client::new(&self.address, None).unwrap()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All of its threads stand still.
fn stop(pid: u32) {
    let mut status = 0;
    // SAFETY: a live place for the status; it is a child of this process, which nobody has waited for.
    let stopped = unsafe {
        libc::kill(pid as libc::pid_t, libc::SIGSTOP);
        libc::waitpid(pid as libc::pid_t, &mut status, libc::WUNTRACED)
    };
    assert!(stopped == pid as libc::pid_t && libc::WIFSTOPPED(status), "{status:#x}");
}

fn go_on(pid: u32) {
    // SAFETY: no pointers; as above.
    unsafe { libc::kill(pid as libc::pid_t, libc::SIGCONT) };
}

fn is_unsure(status: &Status, what: &str) {
    assert_eq!(status.code, Code::DeadlineExceeded, "{what}: {status}");
    assert!(status.message.contains(UNKNOWN), "{what}: {status}");
    assert!(!status.message.contains("not reached"), "{what}: {status}");
}

/// A server that stands still has the question in its socket, and would carry it out when its caller has long given it up,
/// behind what is asked later.
#[test]
fn what_was_given_up_at_a_tcp_store_is_told_and_overtakes_nothing() {
    let process = Process::start();
    let pid = process.child.id();
    let (one, other) = (process.store(), process.store());
    for round in 0..12 {
        let key = format!("key {round}").into_bytes();
        let value = vec![b'A'; LENGTHS[round % 3]];
        set(&one, &key, b"earlier");
        set(&other, b"rests", b"");
        stop(pid);
        let given_up = match round % 4 {
            3 => one.delete(&[&key], SHORT).map(drop),
            _ => one.set(&[(&key, &value)], SHORT),
        };
        let later = if round % 2 == 0 { &one } else { &other };
        std::thread::scope(|scope| {
            let sets = scope.spawn(|| later.set(&[(&key, b"later")], LONG));
            std::thread::sleep(Duration::from_millis(30));
            go_on(pid);
            sets.join().unwrap().unwrap();
        });
        is_unsure(&given_up.unwrap_err(), &format!("round {round}"));
        // By then it has taken all that it has, and more.
        std::thread::sleep(Duration::from_millis(20));
        set(&other, b"rests", b"");
        assert_eq!(get(&other, &key), b"later", "round {round}");
    }
}

#[test]
fn what_was_given_up_at_a_redis_store_is_told() {
    let Some(redis) = Redis::start() else { return };
    let [s, other] = [(); 2].map(|()| store(in_redis(&redis.address(), None).unwrap()));
    set(&s, b"k", b"v");
    set(&other, b"k", b"v");
    redis.signal(libc::SIGSTOP);
    is_unsure(&s.set(&[(b"k", b"w")], SHORT).unwrap_err(), "set");
    is_unsure(&other.delete(&[b"k"], SHORT).map(drop).unwrap_err(), "delete");
    // What only looks has nothing to be sure of.
    let status = s.check(&[b"k"], SHORT).map(drop).unwrap_err();
    assert!(!status.message.contains(UNKNOWN), "{status}");
    redis.signal(libc::SIGCONT);
}

/// What has certainly not been sent as a whole was not done, and its error says no more than that it was not reached.
#[test]
fn what_was_never_sent_is_not_called_unsure() {
    let mut process = Process::start();
    let s = process.store();
    set(&s, b"k", b"v");
    let sure = |status: Status| {
        assert_eq!(status.code, Code::DeadlineExceeded, "{status}");
        assert!(status.message.contains("was not reached"), "{status}");
        assert!(!status.message.contains("not known"), "{status}");
    };
    stop(process.child.id());
    sure(
        s.set(&[(b"k", &vec![1; 16 << 20])], Patience::For(Duration::from_millis(300)))
            .unwrap_err(),
    );
    process.child.kill().unwrap();
    process.child.wait().unwrap();
    sure(s.set(&[(b"k", b"w")], SHORT).unwrap_err());
    sure(s.delete(&[b"k"], SHORT).map(drop).unwrap_err());
    sure(s.add(b"n", 1, SHORT).map(drop).unwrap_err());
}
