//! A server and clients that break what is asked of them, in one process.

use std::os::fd::AsRawFd;

use super::*;
use crate::limits::{STORE_KEY, STORE_UNDER_WAY};
use crate::store::stop::Stop;
use server::Server;

fn soon(stop: &Stop) -> Until<'_> {
    Until::after(Some(Duration::from_secs(60)), stop)
}

fn connect(server: &Server, until: Until<'_>) -> Connection {
    let client = Client::new(&server.bound().to_string(), None).unwrap();
    client.connection(until).map_err(|_| "no connection").unwrap()
}

fn option(socket: &ClientSocket, level: libc::c_int, name: libc::c_int) -> libc::c_int {
    let (mut value, mut len) = (0 as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
    let out = (&raw mut value).cast();
    // SAFETY: `value` has room for `len` bytes.
    let rc = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, out, &mut len) };
    assert_eq!(rc, 0);
    value
}

/// A server whose host has gone without a word is found by who waits for it.
#[test]
fn r07_a_client_asks_whether_its_server_is_there() {
    let server = Server::new("127.0.0.1:0", None, false).unwrap();
    let stop = Stop::new().unwrap();
    let one = connect(&server, soon(&stop));
    assert_eq!(option(&one.link, libc::SOL_SOCKET, libc::SO_KEEPALIVE), 1);
    assert!(option(&one.link, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) <= 10);
    let limit = option(&one.link, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT);
    assert!((1..=30_000).contains(&limit), "{limit}");
}

/// Clients that wait for more than a server keeps are turned away, and nobody else.
#[test]
fn r08_keys_that_are_waited_for_are_bounded() {
    const BYTES: usize = 31 << 20;
    let server = Server::new("127.0.0.1:0", None, false).unwrap();
    let stop = Stop::new().unwrap();
    let until = soon(&stop);
    let honest = Client::new(&server.bound().to_string(), None).unwrap();
    honest.set(&[(b"k", b"v")], None, until).unwrap();
    let key = vec![b'k'; STORE_KEY];
    let keys = vec![&key[..]; BYTES / STORE_KEY];
    let mut hostile = Vec::new();
    for _ in 0..STORE_UNDER_WAY / BYTES + 4 {
        let mut one = connect(&server, until);
        let mut out = Vec::new();
        let request = Request::Wait { time: None, keys: keys.clone().into() };
        let at = request.encode(&mut out).unwrap();
        wire::seal(&mut out, at, &one.keys, true, one.went);
        one.went += 1;
        // One that is closed in the middle may see that here.
        let _ = one.link.send(&out, until);
        hostile.push(one);
    }
    // Once the last is answered for, each was looked at.
    let begun = Instant::now();
    while hostile.iter().all(Connection::rests) {
        assert!(begun.elapsed() < Duration::from_secs(60), "all of them are kept");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(hostile.iter().any(Connection::rests), "those that fit stay");
    assert_eq!(honest.get(&[b"k"], until).unwrap(), [Some(b"v".to_vec())]);
    assert_eq!(honest.missing(&[b"l"], until).unwrap(), [0]);
}

/// A client that asks, and does not take the answer.
fn ask_only(one: &mut Connection, request: &Request<'_>, until: Until<'_>) {
    let mut out = Vec::new();
    let at = request.encode(&mut out).unwrap();
    wire::seal(&mut out, at, &one.keys, true, one.went);
    one.went += 1;
    // One that is closed in the middle may see that here.
    let _ = one.link.send(&out, until);
}

/// However many ask for long values and take none, no more of their answers is made than may be under way; and who takes what
/// it asks for gets it, whoever came first.
#[test]
fn r08_answers_that_nobody_takes_are_bounded_and_keep_nobody_out() {
    const LONG: usize = 16 << 20;
    let server = Server::new("127.0.0.1:0", None, false).unwrap();
    let stop = Stop::new().unwrap();
    let until = soon(&stop);
    server.set(&[(b"long", &vec![7; LONG])], None, until).unwrap();
    let mut hostile: Vec<Connection> = (0..64).map(|_| connect(&server, until)).collect();
    let long = Request::Get { keys: vec![&b"long"[..]].into() };
    hostile.iter_mut().for_each(|one| ask_only(one, &long, until));
    let honest = Client::new(&server.bound().to_string(), None).unwrap();
    for i in 0..4u8 {
        honest.set(&[(b"short", &[i])], None, until).unwrap();
        assert_eq!(honest.get(&[b"short"], until).unwrap(), [Some(vec![i])]);
        let got = honest.get(&[b"long"], until).unwrap();
        assert_eq!(got[0].as_ref().map(Vec::len), Some(LONG));
    }
    // One answer more, and what a look takes of some.
    let most = STORE_UNDER_WAY + 2 * LONG + (16 << 20);
    assert!(server.peak() <= most, "{} bytes were under way", server.peak());
}

/// Who holds on to what it has begun to send lets go of it for who has come later and gets on; and not who has held a little
/// for longer.
#[test]
fn r08_messages_that_are_never_whole_keep_nobody_out() {
    const PART: usize = 7 << 20;
    let server = Server::new("127.0.0.1:0", None, false).unwrap();
    let stop = Stop::new().unwrap();
    let until = soon(&stop);
    let mut rest: Vec<Connection> = (0..8).map(|_| connect(&server, until)).collect();
    for one in &mut rest {
        let keys = vec![&b"k"[..]].into();
        assert!(one.ask(&Request::Missing { keys }, 1, until).is_ok());
    }
    let mut begun = (PART as u32 + 1000).to_le_bytes().to_vec();
    begun.resize(PART, kind::SET);
    let hostile: Vec<Connection> = (0..STORE_UNDER_WAY / PART + 2)
        .map(|_| {
            let one = connect(&server, until);
            let _ = one.link.send(&begun, until.at_most(Duration::from_secs(5)));
            one
        })
        .collect();
    let honest = Client::new(&server.bound().to_string(), None).unwrap();
    for i in 0..4u8 {
        honest.set(&[(b"long", &vec![i; 16 << 20])], None, until).unwrap();
        let got = honest.get(&[b"long"], until).unwrap();
        assert_eq!(got[0].as_ref().map(|value| value[1000]), Some(i));
    }
    assert!(rest.iter().all(Connection::rests), "who holds a little is closed");
    drop(hostile);
}

/// Leases that end one after the other cost what ends, and not what is there.
#[test]
fn r08_leases_that_end_one_by_one_cost_no_look_at_all() {
    let server = Server::new("127.0.0.1:0", None, false).unwrap();
    let stop = Stop::new().unwrap();
    let until = soon(&stop);
    let first = Instant::now() + Duration::from_secs(4);
    for id in 1..=300_000u128 {
        let ttl = first - Instant::now() + Duration::from_micros(10 * id as u64);
        server.lease(id, ttl, until).unwrap();
    }
    std::thread::sleep(first.saturating_duration_since(Instant::now()));
    let (begun, mut looks) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(1) {
        server.get(&[b"k"], until).unwrap();
        looks += 1;
    }
    // A look at all of them takes ten milliseconds, and each of these looks would be one.
    assert!(looks > 2_000, "{looks} looks in a second");
}

/// Clients for whom nothing is due are not looked at: those that rest, that wait for other keys, that have begun a message, that
/// have not proved the secret.
#[test]
fn r08_clients_for_whom_nothing_is_due_cost_no_look() {
    const CROWD: usize = 100;
    const ASKED: usize = 200;
    let server = Server::new("127.0.0.1:0", None, false).unwrap();
    let stop = Stop::new().unwrap();
    let until = soon(&stop);
    let honest = Client::new(&server.bound().to_string(), None).unwrap();
    let rest: Vec<Connection> = (0..CROWD).map(|_| connect(&server, until)).collect();
    let mut wait: Vec<Connection> = (0..CROWD).map(|_| connect(&server, until)).collect();
    for one in &mut wait {
        let time = Some(Duration::from_secs(3600));
        ask_only(one, &Request::Wait { time, keys: vec![&b"other"[..]].into() }, until);
    }
    let begun: Vec<Connection> = (0..CROWD).map(|_| connect(&server, until)).collect();
    assert!(begun.iter().all(|one| one.link.send(&[100, 0, 0, 0, 1], until).is_ok()));
    let addr = server.bound();
    let strangers: Vec<ClientSocket> =
        (0..CROWD).map_while(|_| ClientSocket::tcp(addr, until).ok()).collect();
    assert_eq!(strangers.len(), CROWD);
    let ask = || {
        for i in 0..ASKED {
            honest.set(&[(b"k", &[i as u8])], None, until).unwrap();
            assert_eq!(honest.get(&[b"k"], until).unwrap(), [Some(vec![i as u8])]);
        }
    };
    // By then all that was sent before has been taken.
    ask();
    let before = server.looks();
    ask();
    let looks = server.looks() - before;
    assert!(looks <= 4 * ASKED, "{looks} looks at clients for {} questions", 2 * ASKED);
    // And who waits is told.
    let before = server.looks();
    server.set(&[(b"other", b"v")], None, until).unwrap();
    for one in &mut wait {
        let answer = receive(&one.link, &mut one.input, MAX_MESSAGE, until);
        assert!(answer.is_ok());
    }
    honest.missing(&[b"k"], until).unwrap();
    honest.missing(&[b"k"], until).unwrap();
    let looks = server.looks() - before;
    assert!((CROWD..2 * CROWD).contains(&looks), "{looks} looks at {CROWD} that waited");
    drop((rest, begun, strangers));
}
