//! Who polls, who sleeps, and what a socket holds back meanwhile.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::RawFd;
use std::time::Duration;

use super::{Victim, message, sockets, whole};
use crate::config::Config;
use crate::fabric::regions::RegionTable;
use crate::fabric::tcp::frame::Frame;
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

/// Posts small sends until some are seen to be held back; how many.
fn hold_some_back(v: &mut Victim, follows: Follows) -> usize {
    for posted in 1..1_000_000 {
        // A machine that is busy with other things may let time pass between any two.
        if posted % 16 == 1 {
            v.ad.poll(&mut v.events);
        }
        v.ad.send(v.ep, &[b"12345678"]).expect("send");
        v.ad.flush_soon(follows);
        if is_held_back(v) {
            return posted;
        }
        if posted % 1024 == 0 {
            v.peer.read_exact(&mut vec![0; 1024 * framed(8)]).expect("read");
        }
    }
    panic!("no send was held back");
}

/// By the socket, or here.
fn is_held_back(v: &Victim) -> bool {
    let e = &v.ad.eps[&v.ep.0];
    e.kept || e.burst.is_held()
}

#[test]
fn what_is_held_back_goes_out_by_the_next_poll_by_arming_or_by_itself() {
    type Then = fn(&mut Victim);
    let ways: [Then; 5] = [
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
        |v| v.ad.destroy(v.ep),
        |_| (),
    ];
    // What is kept for a poll that is sure to come does not go by itself.
    let tries = ways.iter().map(|way| (Follows::Perhaps, way));
    for (follows, then) in tries.chain(ways[..4].iter().map(|way| (Follows::Poll, way))) {
        let mut v = Victim::new();
        let posted = hold_some_back(&mut v, follows);
        assert_eq!(v.ad.eps[&v.ep.0].kept, follows == Follows::Poll);
        then(&mut v);
        let by_itself = std::ptr::fn_addr_eq(*then, ways[4]);
        assert_eq!(v.ad.eps.contains_key(&v.ep.0) && is_held_back(&v), by_itself);
        v.peer.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
        let read = posted / 1024 * 1024;
        v.peer.read_exact(&mut vec![0; (posted - read) * framed(8)]).expect("read");
    }
}

/// Messages and copies of content, more than one call of the system takes parts of, and more than are kept.
#[test]
fn what_is_kept_goes_out_whole_and_in_order() {
    let (mut v, mut posted, mut sent, regions) = (Victim::new(), Vec::new(), 0, RegionTable::new());
    for seq in 0..2000u32 {
        let content = vec![seq as u8; (seq % 200) as usize + 1];
        let len = content.len() as u32;
        let e = v.ad.eps.get_mut(&v.ep.0).expect("endpoint");
        let frame = if seq % 4 == 0 {
            let frame = Frame::Send { seq: sent, len };
            sent += 1;
            e.stream.tx.send(&[&content], content.len()).expect("send");
            frame
        } else {
            e.stream.tx.write_copied(seq, &content, 0, 7, None).expect("write");
            Frame::Write { seq, len, imm: None, rkey: 7, addr: 0, total: len.into() }
        };
        posted.extend_from_slice(&whole(frame, &content));
        match seq {
            100 => assert!(e.stream.tx.keeps(64 << 10)),
            999 => assert!(!e.stream.tx.keeps(64 << 10)),
            _ => (),
        }
        if seq == 1000 || seq == 1999 {
            e.kept = true;
            e.push(&regions);
            assert!(!e.kept && !e.stream.tx.wants_write());
            assert!(!e.stream.tx.keeps(64 << 10), "nothing waits");
        }
    }
    v.peer.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
    let mut read = vec![0; posted.len()];
    v.peer.read_exact(&mut read).expect("read");
    assert!(read == posted);
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
