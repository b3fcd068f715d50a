//! What a peer can make a victim hold: connections, names, waiting requests, answers that it does not
//! take. The victim's memory and descriptors stay bounded, and it serves the honest.

use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::time::Duration;

use rdma_hostile::victim::{Options, Victim};
use rdma_hostile::wire::{Client, Facts, message};
use rdma_hostile::{PATIENCE, eventually, honest};
use rdma_transport::limits;
use rdma_transport::status::Code;

const MIB: u64 = 1 << 20;

/// A stranger that is connected and has said so.
fn stranger(address: &str, name: &str, seed: u64) -> io::Result<Client> {
    let mut c = Client::dial(address, Facts::new(name, seed), None)?;
    c.message(&message::credit(8))?;
    // From now on it may send as much as it likes.
    c.next_message(message::CREDIT)?;
    Ok(c)
}

/// Closing resets the connection: no port stays behind in TIME_WAIT.
fn reset_at_close(c: &Client) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let (at, len) = ((&raw const linger).cast(), size_of::<libc::linger>() as u32);
    // SAFETY: a live descriptor, and a whole value of the length given.
    let set = unsafe {
        libc::setsockopt(c.stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, at, len)
    };
    assert_eq!(set, 0);
}

/// Takes what the victim sends, without an answer, until the connection ends.
fn swallow(c: &Client) -> std::thread::JoinHandle<u64> {
    let mut stream = c.stream.try_clone().unwrap();
    stream.set_read_timeout(None).unwrap();
    std::thread::spawn(move || {
        let (mut scrap, mut taken) = (vec![0; 1 << 20], 0);
        while let Ok(n @ 1..) = stream.read(&mut scrap) {
            taken += n as u64;
        }
        taken
    })
}

#[test]
fn r08_a_thousand_connections_of_one_name() {
    let mut victim = Victim::start(Options { descriptors: 512, ..Options::default() });
    let before = victim.open_descriptors();
    let mut open = Vec::new();
    for _ in 0..1000 {
        // The same incarnation each time: one process, by its own account.
        open.extend(stranger(victim.address(), "greedy", 1));
        assert!(victim.open_descriptors() < before + 100, "after {} connections", open.len());
    }
    let most = limits::CHANNELS_PER_PEER;
    let mut channels = 0;
    let bounded = eventually(PATIENCE, || {
        channels = victim.tell("channels greedy").parse().unwrap();
        (1..=most).contains(&channels) && victim.open_descriptors() < before + 2 * most + 2
    });
    assert!(bounded, "{channels} connections, {} descriptors", victim.open_descriptors());
    victim.finish();
}

#[test]
fn r08_a_connection_of_each_of_a_thousand_names() {
    let victim = Victim::start(Options { descriptors: 512, ..Options::default() });
    let before = victim.open_descriptors();
    let mut open = Vec::new();
    for i in 0..1000 {
        // Guests may use half of the descriptors; whoever has been idle for longest makes room.
        open.push(stranger(victim.address(), &format!("name {i}"), i).unwrap());
        assert!(victim.open_descriptors() < before + 256 + 100, "after {} connections", open.len());
    }
    let mut last = open.pop().unwrap();
    last.message(&message::request(7, 3, b"gen:100")).unwrap();
    let content = last.next_message(message::CONTENT).unwrap();
    assert!(content.ends_with(&honest::pattern(b"gen:100", 3, 100)));
    assert!(open[0].closed_within(PATIENCE), "the oldest was not closed");
    victim.finish();
}

#[test]
fn r08_more_names_than_are_known() {
    // 65,536 and more in a long run: HOSTILE_NAMES=70000.
    let names =
        std::env::var("HOSTILE_NAMES").map_or(limits::GUESTS + 2000, |n| n.parse().unwrap());
    let victim = Victim::start(Options::default());
    let mut half = 0;
    for i in 0..names {
        let c = stranger(victim.address(), &format!("name {i}"), i as u64);
        reset_at_close(&c.unwrap_or_else(|e| panic!("name {i} of {names} was refused: {e}")));
        if i == names / 2 {
            half = victim.rss();
        }
    }
    let rss = victim.rss();
    assert!(
        rss < 200 * MIB,
        "{} MiB after {names} names, {} MiB after half",
        rss / MIB,
        half / MIB
    );
    victim.finish();
}

#[test]
fn r08_a_peer_that_returns_no_credits_while_asking_for_errors() {
    let options = Options { source: false, address_space: 4 << 30, ..Options::default() };
    let mut victim = Victim::start(options);
    // The first waits; each further one is a duplicate, whose error names the key.
    let key = vec![b'k'; 4000];
    let attack = |name: String, address: String| {
        let mut c = stranger(&address, &name, 9).unwrap();
        let taken = swallow(&c);
        let mut asked = 0u64;
        for index in 0..150_000 {
            if c.message(&message::request(index, 1, &key)).is_err() {
                break;
            }
            asked += 1;
        }
        let _ = c.stream.shutdown(std::net::Shutdown::Both);
        (asked, taken.join().unwrap())
    };
    let mut peak = 0;
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..4)
            .map(|i| {
                let address = victim.address().to_owned();
                scope.spawn(move || attack(format!("debtor {i}"), address))
            })
            .collect();
        while !runs.iter().all(|r| r.is_finished()) {
            peak = peak.max(victim.rss());
            victim.check_honest();
        }
        for run in runs {
            let (asked, taken) = run.join().unwrap();
            println!("asked {asked} times, was sent {taken} bytes");
        }
    });
    let peak = peak.max(victim.peak_rss());
    assert!(peak < 500 * MIB, "{} MiB", peak / MIB);
    victim.finish();
}

#[test]
fn r08_requests_that_wait_under_many_names() {
    let mut victim = Victim::start(Options { source: false, ..Options::default() });
    let mut open = Vec::new();
    let mut key = vec![b'k'; 60_000];
    for i in 0..24u32 {
        let mut c = stranger(victim.address(), &format!("waiter {i}"), i.into()).unwrap();
        for index in 0..600u32 {
            key[..8].copy_from_slice(&[i.to_le_bytes(), index.to_le_bytes()].concat());
            let sent = c.message(&message::request(index, 1, &key));
            sent.unwrap_or_else(|e| panic!("waiter {i}, {index}: {e}; {:?}", victim.log()));
            if index % 3 == 2 {
                // All three returned, so that no answer has to wait.
                c.message(&message::any(message::PONG, 0, 8, &[])).unwrap();
            }
        }
        open.push((swallow(&c), c));
        victim.check_honest();
    }
    let peak = victim.peak_rss();
    assert!(peak < 500 * MIB, "{} MiB", peak / MIB);
    // A newcomer may still wait for what is not there yet.
    let mut c = stranger(victim.address(), "newcomer", 99).unwrap();
    c.message(&message::request(1, 5, b"later")).unwrap();
    c.message(&message::request(2, 5, b"now")).unwrap();
    let sends = [victim.send(b"now", 5, 50), victim.send(b"later", 5, 50)];
    for _ in sends {
        c.next_message(message::CONTENT).unwrap();
    }
    drop(open);
    victim.finish();
}

/// An honest peer may ask for much and be slow: content then waits where it lies, and comes.
#[test]
fn r08_content_waits_where_it_lies() {
    const N: u32 = 3000;
    const LEN: usize = 1500;
    let mut victim = Victim::start(Options { source: false, ..Options::default() });
    let mut c = stranger(victim.address(), "slow", 1).unwrap();
    let key = |i: u32| format!("content {i}").into_bytes();
    let mut sends = Vec::new();
    for i in 0..N {
        sends.push(victim.send(&key(i), 1, LEN));
        c.message(&message::request(i, 1, &key(i))).unwrap();
    }
    // About a mebibyte is copied behind the credits that there are; the rest stays lent.
    assert!(victim.wait(sends[0], PATIENCE).is_some());
    assert!(victim.wait(sends[N as usize - 1], Duration::from_secs(1)).is_none());
    // Some are given up; each send ends all the same.
    for i in N - 100..N {
        c.message(&message::cancel(i)).unwrap();
    }
    let (mut got, mut acked) = (0, 0);
    while got < N - 100 || acked < 100 {
        let frame = c.next_frame().unwrap();
        match frame.payload.first() {
            Some(&message::CONTENT) => {
                let i = message::index_of(&frame.payload).unwrap();
                assert!(frame.payload.ends_with(&honest::pattern(&key(i), 1, LEN)), "tensor {i}");
                got += 1;
            }
            Some(&message::CANCEL_ACK) => acked += 1,
            _ => {}
        }
        c.message(&message::any(message::PONG, 0, 1, &[])).unwrap();
    }
    for (i, &op) in sends.iter().enumerate() {
        let ended = victim.wait(op, PATIENCE).expect("the send ends");
        let code = if i < N as usize - 100 { Code::Ok } else { Code::Cancelled };
        assert_eq!(ended.code, code, "send {i}: {ended:?}");
    }
    // The same once more, and the peer goes away in the middle of it.
    for i in 0..N {
        sends.push(victim.send(&key(i), 2, LEN));
        c.message(&message::request(i, 2, &key(i))).unwrap();
    }
    let all_asked = || victim.tell("stats").contains("\"tensors_waiting\":0,");
    assert!(eventually(PATIENCE, all_asked), "{}", victim.tell("stats"));
    drop(c);
    for &op in &sends[N as usize..] {
        assert!(victim.wait(op, PATIENCE).is_some(), "a send lost its callback");
    }
    victim.finish();
}
