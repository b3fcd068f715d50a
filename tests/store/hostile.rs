//! Strangers at a TCP store, and servers that are none.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_transport::limits::{STORE_CLIENTS, STORE_STRANGERS};
use rdma_transport::status::Code;
use rdma_transport::store::tcp::{Client, fuzz_store, server::Server};
use rdma_transport::store::{Patience, in_redis};

use super::*;

fn client(server: &Server, secret: Option<&[u8]>) -> Store {
    store(Arc::new(Client::new(&server.bound().to_string(), secret).unwrap()))
}

fn hello() -> Vec<u8> {
    let mut hello = vec![43, 0, 0, 0, 1];
    hello.extend(b"RDMSTORE\x01\0");
    hello.extend([7; 32]);
    hello
}

/// Whether the server closes this connection; what it said before.
fn closes(mut socket: TcpStream) -> Vec<u8> {
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut said = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match socket.read(&mut piece) {
            Ok(0) => return said,
            Ok(n) => said.extend_from_slice(&piece[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return said,
            Err(e) => panic!("the server keeps the connection: {e}"),
        }
    }
}

#[test]
fn strangers_are_dropped_and_nobody_else() {
    let server = Server::new("127.0.0.1:0", Some(b"secret"), false).unwrap();
    let honest = client(&server, Some(b"secret"));
    set(&honest, b"k", b"v");
    let mut damaged = hello();
    damaged[6] ^= 1;
    let mut proof = hello();
    proof.extend([33, 0, 0, 0, 3]);
    proof.extend([0; 32]);
    let mut early = hello();
    early.extend([5, 0, 0, 0, 32, 0, 0, 0, 0]);
    let inputs: [&[u8]; 9] = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\xff\xff\xff\xff\x01",
        b"\x00\x00\x00\x00",
        b"\x59\x02\x00\x00\x01",
        b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nx\r\n",
        &damaged,
        &proof,
        &early,
    ];
    for input in inputs {
        let mut socket = TcpStream::connect(server.bound()).unwrap();
        socket.write_all(input).unwrap();
        closes(socket);
        assert_eq!(get(&honest, b"k"), b"v");
    }
    // One that says half of something and goes.
    for len in [1, 4, 5, 20, 46] {
        let mut socket = TcpStream::connect(server.bound()).unwrap();
        socket.write_all(&hello()[..len]).unwrap();
    }
    set(&honest, b"k", b"w");
}

#[test]
fn a_wrong_secret_is_told_at_once() {
    let server = Server::new("127.0.0.1:0", Some(b"secret"), false).unwrap();
    for wrong in [None, Some(&b"Secret"[..])] {
        let s = client(&server, wrong);
        let status = s.set(&[(b"k", b"v")], LONG).unwrap_err();
        assert_eq!(status.code, Code::Unauthenticated, "{status}");
        assert!(status.message.contains(s.name()), "{status}");
    }
    let open = Server::new("127.0.0.1:0", None, false).unwrap();
    let s = client(&open, Some(b"secret"));
    assert_eq!(s.set(&[(b"k", b"v")], LONG).unwrap_err().code, Code::Unauthenticated);
}

#[test]
fn beyond_loopback_it_takes_a_secret() {
    let refused = Server::new("0.0.0.0:0", None, false).map(drop).unwrap_err();
    assert_eq!(refused.code, Code::FailedPrecondition);
    assert!(refused.message.contains("options.secret"), "{refused}");
    assert!(Server::new("0.0.0.0:0", Some(b"secret"), false).is_ok());
    assert!(Server::new("0.0.0.0:0", None, true).is_ok());
}

/// Silent strangers take no place of those who prove the secret.
#[test]
fn many_silent_strangers_keep_nobody_out() {
    let server = Server::new("127.0.0.1:0", Some(b"secret"), false).unwrap();
    let known = client(&server, Some(b"secret"));
    set(&known, b"k", b"v");
    let crowd: Vec<TcpStream> =
        (0..STORE_STRANGERS + 100).map_while(|_| TcpStream::connect(server.bound()).ok()).collect();
    assert_eq!(get(&known, b"k"), b"v");
    assert_eq!(get(&client(&server, Some(b"secret")), b"k"), b"v");
    // The oldest had to go.
    closes(crowd.into_iter().next().unwrap());
}

/// A client that takes no answer holds up nobody but itself.
#[test]
fn a_client_that_does_not_read_costs_the_others_nothing() {
    let server = Server::new("127.0.0.1:0", None, false).unwrap();
    let honest = client(&server, None);
    set(&honest, b"large", &vec![1; 16 << 20]);
    // It waits in the kernel with a full window: a client that is stopped in the middle of its answer.
    let lazy = std::thread::spawn({
        let address = server.bound().to_string();
        move || {
            let s = store(Arc::new(Client::new(&address, None).unwrap()));
            s.get(&[b"large"], Patience::For(Duration::from_millis(1))).map(drop)
        }
    });
    for i in 0..50u8 {
        set(&honest, b"k", &[i]);
        assert_eq!(get(&honest, b"k"), [i]);
    }
    let _ = lazy.join().unwrap();
}

/// However many have proved the secret and rest, one more gets in.
#[test]
fn r08_clients_that_rest_keep_nobody_out() {
    // Both ends of each are here.
    let needed = 2 * STORE_CLIENTS as u64 + 500;
    // SAFETY: valid structs to fill and to read.
    let fits = unsafe {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_cur.max(needed.min(limit.rlim_max));
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur >= needed
    };
    if !fits {
        return skip::skip("too few descriptors are allowed");
    }
    let server = Server::new("127.0.0.1:0", Some(b"secret"), false).unwrap();
    let crowd: Vec<Arc<Client>> = (0..STORE_CLIENTS)
        .map(|_| Arc::new(Client::new(&server.bound().to_string(), Some(b"secret")).unwrap()))
        .collect();
    let stop = rdma_transport::store::stop::Stop::new().unwrap();
    let until = rdma_transport::store::Until::after(Some(Duration::from_secs(120)), &stop);
    for one in &crowd {
        rdma_transport::store::Kind::set(&**one, &[(b"k", b"v")], None, until).unwrap();
    }
    let honest = client(&server, Some(b"secret"));
    honest.set(&[(b"k", b"w")], Patience::For(Duration::from_secs(20))).unwrap();
    assert_eq!(get(&honest, b"k"), b"w");
    // Those that made room come again.
    rdma_transport::store::Kind::set(&*crowd[0], &[(b"k", b"x")], None, until).unwrap();
}

/// Any start order: clients may be there first.
#[test]
fn a_server_that_comes_later_is_waited_for() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let early = store(Arc::new(Client::new(&address, None).unwrap()));
    let status = early.set(&[(b"k", b"v")], SHORT).unwrap_err();
    assert_eq!(status.code, Code::DeadlineExceeded);
    assert!(status.message.contains(&address) && status.message.contains("refused"), "{status}");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| early.wait(&[b"k"], LONG));
        std::thread::sleep(Duration::from_millis(30));
        let server = Arc::new(Server::new(&address, None, false).unwrap());
        set(&store(server.clone()), b"k", b"v");
        waits.join().unwrap().unwrap();
        // One that goes, and another in its place, which knows nothing.
        let waits = scope.spawn(|| early.wait(&[b"l"], LONG));
        std::thread::sleep(Duration::from_millis(30));
        drop(server);
        let begun = Instant::now();
        let server = loop {
            match Server::new(&address, None, false) {
                Ok(server) => break Arc::new(server),
                Err(e) => assert!(begun.elapsed() < Duration::from_secs(60), "{e}"),
            }
        };
        set(&store(server.clone()), b"l", b"v");
        waits.join().unwrap().unwrap();
    });
}

/// A server that is none: what it says is an error, and no hang.
#[test]
fn a_client_believes_no_stranger() {
    let answers: [&[u8]; 6] = [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"",
        b"\x2b\0\0\0\x02RDMSTORE\x02\0",
        &[43, 0, 0, 0, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0],
        b"\xff\xff\xff\x7f\x02",
        b"\x09\0\0\0\x05\x09\0\0\0\x02\0no",
    ];
    for answer in answers {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // It is asked again where it only went away.
                while let Ok((mut socket, _)) = listener.accept() {
                    let mut piece = [0; 100];
                    if socket.read(&mut piece).unwrap_or(0) == 4 {
                        return;
                    }
                    let mut answer = answer.to_vec();
                    answer.resize(answer.len().max(47), 0);
                    let _ = socket.write_all(&answer);
                }
            });
            let s = store(Arc::new(Client::new(&address, None).unwrap()));
            let status = s.set(&[(b"k", b"v")], Patience::For(Duration::from_millis(200)));
            let status = status.unwrap_err();
            assert!(status.message.contains(&address), "{status}");
            if answer.starts_with(b"HTTP") {
                let none = "no store of rdma-transport: it begins with 'HTTP/1.1 400";
                assert_eq!(status.code, Code::InvalidArgument);
                assert!(status.message.contains(none), "{status}");
            }
            let mut end = TcpStream::connect(&address).unwrap();
            end.write_all(b"stop").unwrap();
        });
    }
}

/// A server whose answer has no end, and no pause, keeps nobody beyond a deadline.
#[test]
fn an_answer_without_end_ends_by_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        while let Ok((mut socket, _)) = listener.accept() {
            std::thread::spawn(move || {
                let numbers = b":1\r\n".repeat(4096);
                let _ = socket.read(&mut [0; 4096]);
                let _ = socket.write_all(b"*9000000000\r\n");
                while socket.write_all(&numbers).is_ok() {}
            });
        }
    });
    let s = store(in_redis(&address, None).unwrap());
    let status = s.get(&[b"k"], Patience::For(Duration::from_millis(100))).unwrap_err();
    assert_eq!(status.code, Code::DeadlineExceeded, "{status}");
}

/// What the fuzzer runs, over damaged forms of what is usual.
#[test]
fn damaged_messages_are_errors() {
    let mut seed = 1u64;
    let mut random = move || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as usize
    };
    let lease = [0u8; 16];
    let request = |kind: u8, rest: &[&[u8]]| [&[1, kind], &rest.concat()[..]].concat();
    let inputs = [
        [&[0][..], &hello()].concat(),
        request(16, &[&lease, &[1, 0, 0, 0, 1, 0, b'k', 1, 0, 0, 0, b'v']]),
        request(17, &[&[2, 0, 0, 0, 1, 0, b'k', 1, 0, b'l']]),
        request(18, &[&[9; 8], &[1, 0, 0, 0, 1, 0, b'k']]),
        request(19, &[&lease, &[1; 8], &[1, 0, b'k']]),
        request(20, &[&lease, &[1, 1, 0, b'k', 1, 0, 0, 0, b'v', 0, 0, 0, 0]]),
        request(23, &[&[3; 16], &[100, 0, 0, 0, 0, 0, 0, 0]]),
        [&[17, 33, 2, 0, 0, 0, 1, 1, 0, 0, 0, b'v', 0, 0, 0, 0, 0][..]].concat(),
        [&[17, 36, 2, 1, 0, 0, 0, b'v'][..]].concat(),
        [&[17, 37, 5, 0, 0, 0, 2, 0, b'n', b'o'][..]].concat(),
    ];
    for input in &inputs {
        fuzz_store(input);
        for _ in 0..2000 {
            let mut damaged = input.clone();
            for _ in 0..1 + random() % 3 {
                let at = random() % damaged.len();
                match random() % 4 {
                    0 => damaged[at] = random() as u8,
                    1 => damaged.truncate(at.max(1)),
                    2 => damaged.insert(at, random() as u8),
                    _ => damaged[at] ^= 1 << (random() % 8),
                }
            }
            fuzz_store(&damaged);
        }
    }
}
