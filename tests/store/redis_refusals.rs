//! A Redis server that refuses, and servers that are none.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use rdma_transport::status::{Code, Status};
use rdma_transport::store::in_redis;

use super::redis_server::Redis;
use super::*;

type Operation = fn(&Store) -> Result<(), Status>;

/// Each with another command, or another beginning.
const OPERATIONS: [(&str, Operation); 8] = [
    ("set", |s| s.set(&[(b"k", b"v")], LONG)),
    ("large set", |s| s.set(&[(b"k", &vec![1; 12 << 20])], LONG)),
    ("get", |s| s.get(&[b"k"], LONG).map(drop)),
    ("check", |s| s.check(&[b"k"], LONG).map(drop)),
    ("add", |s| s.add(b"n", 1, LONG).map(drop)),
    ("compare", |s| s.compare_set(b"c", None, b"v", LONG).map(drop)),
    ("delete", |s| s.delete(&[b"k"], LONG).map(drop)),
    ("lease", |s| s.leased(Duration::from_secs(1)).map(drop)),
];

/// A server that gives one answer to the first question of each connection that its words choose, until the test ends.
fn fake(answer: impl Fn(&[u8]) -> Vec<u8> + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        while let Ok((mut socket, _)) = listener.accept() {
            let mut piece = vec![0; 1 << 16];
            while let Ok(n @ 1..) = socket.read(&mut piece) {
                if socket.write_all(&answer(&piece[..n])).is_err() {
                    break;
                }
            }
        }
    });
    address
}

fn is_ping(question: &[u8]) -> bool {
    question.windows(4).any(|word| word == b"PING")
}

#[test]
fn who_has_no_password_is_told_so_by_each_operation() {
    let Some(redis) = Redis::start_with(Some("sesame")) else { return };
    let s = store(in_redis(&redis.address(), None).unwrap());
    for (what, operation) in OPERATIONS {
        let status = operation(&s).expect_err(what);
        assert_eq!(status.code, Code::Unauthenticated, "{what}: {status}");
        assert!(status.message.contains(s.name()), "{what}: {status}");
    }
}

/// A user who may run scripts, and not all that is in them.
#[test]
fn a_command_of_a_script_that_is_refused_is_a_refusal() {
    let Some(redis) = Redis::start() else { return };
    let s = store(in_redis(&redis.address(), None).unwrap());
    for rule in ["-del", "-set", "-get", "-eval"] {
        redis.command(&["ACL", "SETUSER", "default", "+@all", rule]);
        let status = match rule {
            "-get" => s.add(b"n", 1, LONG).map(drop),
            _ => s.set(&[(b"k", b"v")], LONG),
        };
        let status = status.unwrap_err();
        assert_eq!(status.code, Code::PermissionDenied, "{rule}: {status}");
        assert!(!status.message.contains("redis.call"), "it prints a script: {status}");
    }
}

/// A server without memory, and one that only reads: what they say of our script is not the user's.
#[test]
fn a_refusal_of_the_server_names_no_script() {
    let Some(redis) = Redis::start() else { return };
    let s = store(in_redis(&redis.address(), None).unwrap());
    let set = || s.set(&[(b"k", b"v")], LONG).unwrap_err();
    redis.command(&["config", "set", "maxmemory", "1"]);
    let full = set();
    redis.command(&["config", "set", "maxmemory", "0"]);
    redis.command(&["replicaof", "127.0.0.1", "1"]);
    let reads = set();
    let expected = [(full, Code::ResourceExhausted), (reads, Code::FailedPrecondition)];
    for (status, code) in expected {
        assert_eq!(status.code, code, "{status}");
        assert!(!status.message.contains("script"), "{status}");
    }
}

/// What no Redis server says is told at once, and by its beginning.
#[test]
fn an_answer_that_is_none_of_redis_is_given_up_at_once() {
    for answer in
        [&b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n\r\n"[..], b"RDMSTORE\x01\0", b"\0\0\0\0"]
    {
        let s = store(in_redis(&fake(move |_| answer.to_vec()), None).unwrap());
        for (what, operation) in OPERATIONS {
            let begun = Instant::now();
            let status = operation(&s).expect_err(what);
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "{what}: it is tried again: {status}"
            );
            assert_eq!(status.code, Code::DataLoss, "{what}: {status}");
            assert!(status.message.contains("no Redis server"), "{what}: {status}");
        }
    }
}

/// A well-formed answer of another kind than the question's is no success.
#[test]
fn only_the_answer_of_the_script_is_a_success() {
    for answer in ["$-1\r\n", ":5\r\n", "*0\r\n", "+OK\r\n", "$2\r\nOK\r\n", "_\r\n"] {
        let address = fake(move |question| match is_ping(question) {
            true => b"+PONG\r\n".to_vec(),
            false => answer.as_bytes().to_vec(),
        });
        let s = store(in_redis(&address, None).unwrap());
        for (what, operation) in OPERATIONS {
            // An empty list of what is missing, and one deletion too many, are judged below.
            let fits = match what {
                "check" => answer.starts_with('*'),
                "lease" => true,
                // Its value does not come in one piece, and is answered for each.
                "large set" => true,
                _ => false,
            };
            if !fits {
                let status = operation(&s).expect_err(&format!("{what}: {answer:?}"));
                assert_eq!(status.code, Code::DataLoss, "{what}: {answer:?}: {status}");
            }
        }
    }
    let s = store(in_redis(&fake(|_| b"$-1\r\n".to_vec()), None).unwrap());
    let status = s.leased(Duration::from_secs(1)).map(drop).unwrap_err();
    assert_eq!(status.code, Code::DataLoss, "{status}");
    assert!(status.message.contains(s.name()), "{status}");
}

/// Whatever refuses a lease, its error names the store.
#[test]
fn errors_of_leases_name_the_store() {
    let s = store(Arc::new(rdma_transport::store::memory::Memory::new()));
    let status = s.leased(Duration::from_millis(5)).map(drop).unwrap_err();
    assert_eq!(status.code, Code::InvalidArgument);
    assert!(status.message.starts_with(s.name()), "{status}");
}
