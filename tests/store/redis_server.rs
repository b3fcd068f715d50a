//! A Redis server of the tests' own, and what happens when it goes.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rdma_transport::status::Code;
use rdma_transport::store::{Patience, in_redis};

use super::files::Dir;
use super::*;

pub struct Redis {
    child: Child,
    port: u16,
    password: Option<String>,
    dir: Dir,
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Redis {
    /// `None`: there is no redis-server here, which the test says.
    pub fn start() -> Option<Redis> {
        Redis::start_with(None)
    }

    pub fn start_with(password: Option<&str>) -> Option<Redis> {
        let (port, dir, password) = (free_port(), Dir::new(), password.map(str::to_owned));
        match run(port, &dir, password.as_deref()) {
            Ok(child) => Some(Redis { child, port, password, dir }),
            Err(e) => {
                skip::skip(&format!("no redis-server here: {e}"));
                None
            }
        }
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: no pointers; it is our child, which nobody has waited for.
        unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }

    /// At the same address, and empty.
    pub fn restart(&mut self) {
        self.child = run(self.port, &self.dir, self.password.as_deref()).unwrap();
    }

    /// Whether it is there, and not busy.
    fn ping(&self) -> bool {
        let port = self.port.to_string();
        let done = Command::new("redis-cli").args(["-p", &port, "ping"]).output().unwrap();
        done.stdout.starts_with(b"PONG")
    }

    pub fn command(&self, words: &[&str]) {
        let port = self.port.to_string();
        let done = Command::new("redis-cli").args(["-p", &port]).args(words).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    }
}

fn run(port: u16, dir: &Dir, password: Option<&str>) -> std::io::Result<Child> {
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
    command.args(["--appendonly", "no", "--dir", dir.path.to_str().unwrap()]);
    if let Some(password) = password {
        command.args(["--requirepass", password]);
    }
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let begun = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(60), "redis-server does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(child)
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
fn a_server_that_is_killed_and_comes_back_is_waited_for() {
    let Some(mut redis) = Redis::start() else { return };
    let address = redis.address();
    let connect = || store(in_redis(&address, None).unwrap());
    let (one, other) = (connect(), connect());
    set(&one, b"before", b"v");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| one.wait(&[b"after"], LONG));
        std::thread::sleep(Duration::from_millis(30));
        redis.kill();
        let status = other.set(&[(b"k", b"v")], SHORT).unwrap_err();
        assert_eq!(status.code, Code::DeadlineExceeded, "{status}");
        assert!(status.message.contains(&address), "{status}");
        let sets = scope.spawn(|| other.set(&[(b"after", b"v")], LONG));
        std::thread::sleep(Duration::from_millis(30));
        redis.restart();
        sets.join().unwrap().unwrap();
        waits.join().unwrap().unwrap();
    });
    assert!(!one.check(&[b"before"], LONG).unwrap(), "it was not to be kept");
    // A connection that rested while its server went is not taken for one that broke in the middle.
    redis.kill();
    redis.restart();
    assert_eq!(one.add(b"n", 1, LONG).unwrap(), 1);
}

#[test]
fn a_server_that_does_not_answer_is_left_at_the_deadline_and_at_the_end() {
    let Some(redis) = Redis::start() else { return };
    let s = store(in_redis(&redis.address(), None).unwrap());
    set(&s, b"k", b"v");
    let pid = redis.child.id() as libc::pid_t;
    // SAFETY: no pointers; it is our child.
    unsafe { libc::kill(pid, libc::SIGSTOP) };
    let status = s.get(&[b"k"], SHORT).unwrap_err();
    assert_eq!(status.code, Code::DeadlineExceeded, "{status}");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| s.get(&[b"k"], Patience::Forever));
        std::thread::sleep(Duration::from_millis(30));
        s.stop();
        assert_eq!(waits.join().unwrap().unwrap_err().code, Code::Cancelled);
    });
    // SAFETY: as above.
    unsafe { libc::kill(pid, libc::SIGCONT) };
}

#[test]
fn what_others_keep_there_is_an_error_that_names_it() {
    let Some(redis) = Redis::start() else { return };
    let s = store(in_redis(&redis.address(), None).unwrap());
    redis.command(&["LPUSH", "list", "x"]);
    redis.command(&["SETRANGE", "long", "17000000", "x"]);
    for (key, part) in [(&b"list"[..], "a list of Redis"), (b"long", "17000001 bytes")] {
        let status = s.get(&[key], SHORT).unwrap_err();
        assert_eq!(status.code, Code::DataLoss);
        assert!(status.message.contains(part), "{status}");
        assert_eq!(s.compare_set(key, None, b"", LONG).unwrap_err().code, Code::DataLoss);
        assert_eq!(s.add(key, 1, LONG).unwrap_err().code, Code::FailedPrecondition);
    }
    let status = s.set(&[(b"rdma-lease:k", b"")], LONG).unwrap_err();
    assert_eq!(status.code, Code::InvalidArgument, "{status}");
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(s.set(&[(b"k", b"v")], LONG).unwrap_err().code, Code::ResourceExhausted);
}

#[test]
fn nothing_is_left_of_a_lease_that_nobody_renews() {
    let Some(redis) = Redis::start() else { return };
    let s = store(in_redis(&redis.address(), None).unwrap());
    let leased = s.leased(Duration::from_millis(500)).unwrap();
    set(&leased, b"k", b"v");
    assert!(s.check(&[b"k"], LONG).unwrap());
    // As if the process had been killed: nobody renews and nobody releases.
    leased.abandon();
    let begun = Instant::now();
    while s.check(&[b"k"], LONG).unwrap() {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    // The server takes them down when it comes to it.
    let size = || {
        let port = redis.port.to_string();
        let told = Command::new("redis-cli").args(["-p", &port, "DBSIZE"]).output().unwrap();
        String::from_utf8_lossy(&told.stdout).trim().to_owned()
    };
    while size() != "0" {
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
}

#[test]
fn the_password_is_wanted() {
    let Some(redis) = Redis::start_with(Some("sesame")) else { return };
    let address = redis.address();
    set(&store(in_redis(&address, Some(b"sesame")).unwrap()), b"k", b"v");
    for wrong in [None, Some(&b"simsim"[..])] {
        let s = store(in_redis(&address, wrong).unwrap());
        let status = s.set(&[(b"k", b"v")], LONG).unwrap_err();
        assert_eq!(status.code, Code::Unauthenticated, "{status}");
    }
}

#[test]
fn addresses_are_checked() {
    for bad in ["", "host", "host:", ":1", "host:0", "host:70000", "unix:relative"] {
        let status = in_redis(bad, None).map(drop).unwrap_err();
        assert_eq!(status.code, Code::InvalidArgument, "{bad}");
    }
    assert!(in_redis("unix:/run/redis.sock", None).is_ok() && in_redis("[::1]:1", None).is_ok());
}

/// Somebody else's script, which the server runs to its end: meanwhile it answers that it is busy.
#[test]
fn a_server_that_is_busy_is_waited_for() {
    let Some(redis) = Redis::start() else { return };
    let s = store(in_redis(&redis.address(), None).unwrap());
    set(&s, b"k", b"v");
    redis.command(&["config", "set", "busy-reply-threshold", "10"]);
    std::thread::scope(|scope| {
        let script = "redis.call('SET', 'begun', '') local t = redis.call('TIME')[1] \
                      while redis.call('TIME')[1] - t < 2 do end";
        scope.spawn(|| redis.command(&["eval", script, "0"]));
        let busy = || !redis.ping();
        while !busy() {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(get(&s, b"k"), b"v");
        assert_eq!(s.add(b"n", 1, LONG).unwrap(), 1);
    });
}

/// As many clients as the server takes are there: it refuses each further one, until one of them goes.
#[test]
fn a_server_with_too_many_clients_is_waited_for() {
    let Some(redis) = Redis::start() else { return };
    redis.command(&["config", "set", "maxclients", "2"]);
    let mut others = Vec::new();
    // It may not have seen yet that who set this has gone.
    while others.len() < 2 {
        use std::io::{Read, Write};
        let mut other = TcpStream::connect(("127.0.0.1", redis.port)).unwrap();
        let mut pong = [0; 7];
        let asked = other.write_all(b"PING\r\n").and_then(|()| other.read_exact(&mut pong));
        if asked.is_ok() && &pong == b"+PONG\r\n" {
            others.push(other);
        }
    }
    let s = store(in_redis(&redis.address(), None).unwrap());
    let patience = Patience::For(Duration::from_secs(1));
    let status = s.set(&[(b"k", b"v")], patience).unwrap_err();
    assert_eq!(status.code, Code::DeadlineExceeded, "{status}");
    assert!(status.message.contains("max number of clients"), "{status}");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            others.clear();
        });
        assert_eq!(s.add(b"n", 1, LONG).unwrap(), 1, "made once, as soon as there is room");
    });
    set(&s, b"k", b"v");
}

/// What answers without end is no Redis server, and takes no memory without end.
#[test]
fn an_answer_without_end_is_given_up() {
    use std::io::Write;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serves = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        client.write_all(b"$400000000\r\n").unwrap();
        while client.write_all(&[0; 1 << 16]).is_ok() {}
    });
    let s = store(in_redis(&address, None).unwrap());
    let status = s.get(&[b"k"], LONG).unwrap_err();
    assert_eq!(status.code, Code::DataLoss, "{status}");
    serves.join().unwrap();
}
