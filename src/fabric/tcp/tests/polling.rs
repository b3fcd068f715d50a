//! Who polls, who sleeps, and what a socket holds back meanwhile.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::RawFd;
use std::time::Duration;

use super::{Victim, message, sockets};
use crate::config::Config;
use crate::fabric::tcp::{ADDRESS, TcpAdapter};
use crate::fabric::{Adapter, Event, Follows};
use crate::local_fd::Local;

fn readable(fd: RawFd, limit: Duration) -> bool {
    let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry.
    unsafe { libc::poll(&mut entry, 1, limit.as_millis() as i32) > 0 }
}

/// Bytes of a message on the wire.
fn framed(len: usize) -> usize {
    message(0, &vec![0; len]).len()
}

/// A driver sleeps on the adapter's descriptor while a call posts more than the socket takes: the descriptor has to tell
/// when it takes more, though nothing comes from the peer.
#[test]
fn who_sleeps_is_told_of_room_for_what_a_call_posts() {
    let mut v = Victim::new();
    assert!(v.ad.arm());
    let message = [7; 16 << 10];
    let mut posted = 0;
    while !v.ad.eps[&v.ep.0].stream.tx.wants_write() {
        v.ad.send(v.ep, &[&message]).expect("send");
        v.ad.flush();
        posted += 1;
    }
    let fd = v.ad.fd().expect("a descriptor");
    let (mut peer, bytes) = (v.peer.try_clone().expect("clone"), posted * framed(message.len()));
    let reader = std::thread::spawn(move || {
        let mut all = vec![0; bytes];
        peer.read_exact(&mut all).expect("read");
    });
    while v.ad.eps[&v.ep.0].stream.tx.wants_write() {
        assert!(readable(fd, Duration::from_secs(20)), "nobody is told that the socket takes more");
        v.ad.poll(&mut v.events);
        v.ad.arm();
    }
    reader.join().expect("reader");
}

/// A driver that polls anyway is told of room for nothing: each look of its would find the socket ready.
#[test]
fn who_polls_is_not_told_of_room() {
    let mut v = Victim::new();
    assert!(v.ad.arm());
    v.ad.poll(&mut v.events);
    while !v.ad.eps[&v.ep.0].stream.tx.wants_write() {
        v.ad.send(v.ep, &[&[7; 16 << 10]]).expect("send");
        v.ad.flush();
    }
    assert!(!v.ad.eps[&v.ep.0].out);
    v.ad.arm();
    assert!(v.ad.eps[&v.ep.0].out);
}

/// Posts small sends until the socket is seen to hold some back; how many.
fn hold_some_back(v: &mut Victim) -> usize {
    for posted in 1..1_000_000 {
        // A machine that is busy with other things may let time pass between any two.
        if posted % 16 == 1 {
            v.ad.poll(&mut v.events);
        }
        v.ad.send(v.ep, &[b"12345678"]).expect("send");
        v.ad.flush_soon(Follows::Perhaps);
        if v.ad.eps[&v.ep.0].burst.is_held() {
            return posted;
        }
        if posted % 1024 == 0 {
            v.peer.read_exact(&mut vec![0; 1024 * framed(8)]).expect("read");
        }
    }
    panic!("no send was held back");
}

#[test]
fn what_is_held_back_goes_out_by_the_next_poll_by_arming_or_by_itself() {
    type Then = fn(&mut Victim);
    let ways: [Then; 4] = [
        |v| {
            v.ad.poll(&mut v.events);
        },
        |v| {
            v.ad.arm();
        },
        |v| {
            v.ad.send(v.ep, &[b""]).expect("send");
            v.ad.flush();
        },
        |_| (),
    ];
    for (i, then) in ways.into_iter().enumerate() {
        let mut v = Victim::new();
        let posted = hold_some_back(&mut v);
        then(&mut v);
        assert_eq!(v.ad.eps[&v.ep.0].burst.is_held(), i == 3);
        v.peer.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
        let read = posted / 1024 * 1024;
        v.peer.read_exact(&mut vec![0; (posted - read) * framed(8)]).expect("read");
    }
}

/// A socket that was quiet for long is asked less often than one that is not, but it is asked.
#[test]
fn who_was_quiet_for_long_is_heard_beside_who_is_not() {
    let mut ad = TcpAdapter::open(&Config::default()).expect("open");
    let mut peers = ["a", "b"].map(|name| {
        let (peer, sock) = sockets();
        let ep = ad.create(name).expect("create");
        ad.connect(ep, ADDRESS, true, Some(Local::new(sock.into()))).expect("connect");
        (ep, peer, 0)
    });
    for _ in 0..2 {
        let [(_, loud, said), (quiet, rests, rested)] = &mut peers;
        let say = |sock: &mut TcpStream, seq: &mut u32| {
            sock.write_all(&message(*seq, b"x")).expect("write");
            *seq += 1;
        };
        let mut heard = false;
        for poll in 0..1000 {
            say(loud, said);
            if poll == 500 {
                say(rests, rested);
            }
            let mut events = Vec::new();
            ad.poll(&mut events);
            heard |= events.iter().any(|e| matches!(e, Event::Message { ep, .. } if ep == quiet));
        }
        assert!(heard, "{quiet:?} is not asked");
        peers.reverse();
    }
}
