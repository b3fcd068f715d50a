//! Hostile and broken peers; what the conformance suite cannot show from outside.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use super::frame::Frame;
use super::*;
use crate::config::Config;
use crate::fabric::regions::Refusal;
use crate::fabric::{Adapter, Event};
use crate::local_fd::Local;
use crate::status::{Code, Reason};

mod lost;
mod polling;

/// A frame with its payload, as it is sent.
fn whole(frame: Frame, payload: &[u8]) -> Vec<u8> {
    let (head, tail) = (frame.encode(), frame.encode().tail());
    let tail = if payload.is_empty() { &[] } else { tail.bytes() };
    [head.bytes(), payload, tail].concat()
}

/// A message as it is sent.
fn message(seq: u32, bytes: &[u8]) -> Vec<u8> {
    whole(Frame::Send { seq, len: bytes.len() as u32 }, bytes)
}

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let a = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    a.set_nodelay(true).expect("nodelay");
    (a, listener.accept().expect("accept").0)
}

/// An adapter whose peer is the test itself, by bytes.
struct Victim {
    ad: TcpAdapter,
    ep: EpId,
    peer: TcpStream,
    events: Vec<Event>,
}

impl Victim {
    fn new() -> Victim {
        Victim::of(false)
    }

    /// Copies of content are left to the test.
    fn of(leave: bool) -> Victim {
        let mut ad = TcpAdapter::open(&Config::default()).expect("open");
        if leave {
            ad.leave_moves();
        }
        let ep = ad.create("mallory").expect("create");
        let (peer, sock) = sockets();
        ad.connect(ep, ADDRESS, true, Some(Local::new(sock.into()))).expect("connect");
        let mut v = Victim { ad, ep, peer, events: Vec::new() };
        v.until(|v| matches!(v.events[..], [Event::Connected(_)]));
        v.events.clear();
        v
    }

    fn until(&mut self, cond: impl Fn(&Victim) -> bool) {
        let start = Instant::now();
        while !cond(self) {
            self.ad.poll(&mut self.events);
            assert!(start.elapsed() < Duration::from_secs(20), "{:?}", self.events);
        }
    }

    fn tell(&mut self, frame: Frame) {
        self.peer.write_all(frame.encode().bytes()).expect("write");
    }

    /// The next frame from the adapter.
    fn hear(&mut self) -> Frame {
        self.peer.set_nonblocking(true).expect("nonblocking");
        let (mut bytes, start) = (Vec::new(), Instant::now());
        loop {
            let mut one = [0];
            match self.peer.read(&mut one) {
                Ok(1) => bytes.push(one[0]),
                Ok(_) => panic!("closed"),
                Err(_) => {
                    self.ad.flush();
                    self.ad.poll(&mut self.events);
                    self.ad.arm();
                }
            }
            if let Some((frame, _)) = Frame::parse(&bytes).expect("frame") {
                self.peer.set_nonblocking(false).expect("blocking");
                return frame;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "no frame");
        }
    }

    /// The endpoint goes down because of what the peer sent.
    fn rejects(mut self, what: &str) {
        self.until(|v| matches!(v.events.last(), Some(Event::Down { .. })));
        match self.events.last() {
            Some(Event::Down { ep, status }) if *ep == self.ep => {
                assert_eq!(status.code, Code::DataLoss, "{what}: {status}");
                assert!(status.message.contains("mallory"), "{status}");
            }
            other => panic!("{what}: {other:?}"),
        }
    }

    fn dones(&self) -> usize {
        self.events.iter().filter(|e| matches!(e, Event::Done { .. })).count()
    }
}

const W: Frame = Frame::Write { seq: 0, len: 4, imm: None, rkey: 1, addr: 4096, total: 8 };

#[test]
fn malformed_streams_end_the_connection() {
    let cases: &[(&str, &[Frame])] = &[
        ("ack of nothing", &[Frame::Ack { seq: 0 }]),
        ("nak of nothing", &[Frame::Nak { seq: 0, why: Refusal::Key }]),
        ("answer to nothing", &[Frame::Data { seq: 0, len: 8 }]),
        ("end of nothing", &[Frame::End { seq: 0, why: None }]),
        ("refusal of nothing", &[Frame::End { seq: 0, why: Some(Refusal::Key) }]),
        ("chunk of nothing", &[Frame::More { seq: 0, len: 8 }]),
        (
            "WRITE out of order",
            &[Frame::Write { seq: 1, len: 0, imm: None, rkey: 0, addr: 0, total: 0 }],
        ),
        ("READ out of order", &[Frame::Read { seq: 7, rkey: 0, addr: 0, total: 0 }]),
    ];
    for (what, frames) in cases {
        let mut v = Victim::new();
        frames.iter().for_each(|f| v.tell(*f));
        v.rejects(what);
    }
    // Inside of a WRITE.
    let send = Frame::Send { seq: 0, len: 0 };
    let read = Frame::Read { seq: 0, rkey: 0, addr: 0, total: 0 };
    for next in [send, W, read, Frame::More { seq: 1, len: 4 }, Frame::More { seq: 0, len: 5 }] {
        let mut v = Victim::new();
        v.peer.write_all(&whole(W, b"1234")).expect("write");
        v.tell(next);
        v.rejects(&format!("{next:?} inside of a WRITE"));
    }
    for bytes in [
        &b"GET / HTTP/1.1\r\nHost: example\r\n\r\n"[..],
        &[0x16, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3, 0, 0, 0, 0, 0, 0],
        &[0xff; 64],
        &[0; 64],
    ] {
        let mut v = Victim::new();
        v.peer.write_all(bytes).expect("write");
        v.rejects("another protocol");
    }
}

/// A WRITE must not end before its bytes are with the socket: its source is still read.
#[test]
fn early_acknowledgement_is_refused() {
    let src = vec![7u8; 64 << 20];
    let mut v = Victim::new();
    // SAFETY: the buffer outlives the adapter.
    let mem = unsafe { Mem::new(src.as_ptr() as u64, src.len() as u64, 0) };
    v.ad.write(v.ep, 1, mem, Remote { addr: 4096, rkey: 1 }, None).expect("write");
    v.ad.flush();
    v.tell(Frame::Ack { seq: 0 });
    v.until(|v| matches!(v.events.last(), Some(Event::Down { .. })));
    assert!(
        matches!(&v.events[..], [Event::Done { wr: 1, result: Err(_), .. }, Event::Down { .. }]),
        "{:?}",
        v.events
    );
}

/// Answers are taken for the READ that they are for, and no further than it reaches.
#[test]
fn wrong_answers() {
    let mut dst = vec![0u8; 64];
    for (frames, dones) in [
        (vec![Frame::Data { seq: 0, len: 17 }], 1),
        (vec![Frame::Data { seq: 1, len: 16 }], 1),
        (vec![Frame::End { seq: 0, why: None }], 1),
        (vec![Frame::End { seq: 0, why: Some(Refusal::Key) }, Frame::Data { seq: 0, len: 1 }], 1),
    ] {
        let mut v = Victim::new();
        // SAFETY: the buffer outlives the adapter.
        let mem = unsafe { Mem::new(dst.as_mut_ptr() as u64 + 24, 16, 0) };
        v.ad.read(v.ep, 1, mem, Remote { addr: 4096, rkey: 1 }).expect("read");
        assert_eq!(v.hear(), Frame::Read { seq: 0, rkey: 1, addr: 4096, total: 16 });
        frames.iter().for_each(|f| v.tell(*f));
        v.peer.write_all(&[0xee; 64]).expect("write");
        v.until(|v| matches!(v.events.last(), Some(Event::Down { .. })));
        assert_eq!(v.dones(), dones);
        drop(v);
        assert_eq!(dst, [0; 64], "{frames:?}");
    }
}

/// The peer cannot make the adapter keep more than a bounded number of answers.
#[test]
fn unread_answers_are_bounded() {
    let mut v = Victim::new();
    let src = vec![1u8; 32 << 20];
    // SAFETY: the buffer outlives the adapter.
    let mr = unsafe { v.ad.register(src.as_ptr() as u64, src.len() as u64, Access::REMOTE_READ) };
    let rkey = mr.expect("register").rkey;
    let (addr, total) = (src.as_ptr() as u64, src.len() as u64);
    for seq in 0..MAX_OPS as u32 + 100 {
        // It never reads an answer.
        let read = Frame::Read { seq, rkey, addr, total };
        if v.peer.write_all(read.encode().bytes()).is_err() {
            break;
        }
    }
    v.rejects("too many READs");
}

#[test]
fn unread_refusals_are_bounded() {
    let mut v = Victim::new();
    let mut peer = v.peer.try_clone().expect("clone");
    let writer = std::thread::spawn(move || {
        // It never reads a refusal. Ends when the connection does.
        for seq in 0.. {
            let bad = Frame::Write { seq, len: 1, imm: None, rkey: 0, addr: 1, total: 1 };
            if peer.write_all(&whole(bad, b"x")).is_err() {
                return;
            }
        }
    });
    v.until(|v| !v.events.is_empty());
    v.rejects("too many refusals");
    writer.join().expect("writer");
}

/// Everything in single bytes, and everything at once.
#[test]
fn any_split_of_the_stream() {
    for piece in [1, 3, 16, 17, 39, 41, 1000] {
        let mut v = Victim::new();
        let mut dst = vec![0u8; 16];
        let (addr, len) = (dst.as_mut_ptr() as u64, 16);
        // SAFETY: the buffer outlives the adapter.
        let mr = unsafe { v.ad.register(addr, len, Access::REMOTE_WRITE) }.expect("register");
        let rkey = mr.rkey;
        let write = Frame::Write { seq: 0, len: 5, imm: Some(3), rkey, addr, total: 16 };
        let bad = Frame::Write { seq: 1, len: 2, imm: Some(4), rkey: 0, addr, total: 2 };
        let stream = [
            message(0, b"hello"),
            whole(write, b"01234"),
            whole(Frame::More { seq: 0, len: 11 }, b"56789abcdef"),
            whole(bad, b"zz"),
            message(1, b""),
        ]
        .concat();
        let (mut seen, mut parts) = (Vec::new(), stream.chunks(piece));
        let start = Instant::now();
        while seen.len() < 3 && start.elapsed() < Duration::from_secs(20) {
            if let Some(part) = parts.next() {
                v.peer.write_all(part).expect("write");
            }
            for _ in 0..3 {
                v.ad.poll(&mut v.events);
                for e in v.events.drain(..) {
                    seen.push(match e {
                        Event::Message { bytes, .. } => bytes.bytes().to_vec(),
                        Event::Written { imm, .. } => vec![imm as u8],
                        other => panic!("{other:?}"),
                    });
                }
            }
        }
        assert_eq!(seen, [b"hello".to_vec(), vec![3], vec![]], "in pieces of {piece}");
        // The refusal acknowledges what was before it.
        let mut frame = v.hear();
        if frame == (Frame::Ack { seq: 0 }) {
            frame = v.hear();
        }
        assert_eq!(frame, Frame::Nak { seq: 1, why: Refusal::Key });
        drop(v);
        assert_eq!(dst, b"0123456789abcdef");
    }
}

/// The other end gave its handshake up after its last word, which this end had read by then: it finds REJECT where frames begin. Nothing was
/// damaged; the other end is gone. Behind a frame the same bytes are damage.
#[test]
fn a_handshake_that_was_given_up_is_no_damage() {
    let reject = [&frame::GIVEN_UP[..], &[10, 0, 0, 0, 1, 0, 0, 0, 4, 0], b"text"].concat();
    for (before, code) in [(vec![], Code::Unavailable), (message(0, b"hello"), Code::DataLoss)] {
        for piece in [1, 7, 8, 15, 16, 1000] {
            let (regions, mut events, mut held) = (RegionTable::new(), Vec::new(), Vec::new());
            let mut stream = Stream::new(EpId(1), "n1", 16);
            let bytes = [&before[..], &reject].concat();
            let ended = bytes.chunks(piece).find_map(|part| {
                let (events, held) = (&mut events, &mut held);
                let mut cx = Cx { regions: &regions, events, held, viewed: false, ends: 0 };
                // SAFETY: `bytes` outlive the events.
                unsafe { stream.feed(part, &mut cx) }.err()
            });
            assert_eq!(ended.expect("no frame").code, code, "in pieces of {piece}");
        }
    }
}

/// A reset connection: what was under way ends, then the endpoint is down.
#[test]
fn reset() {
    let mut v = Victim::new();
    let src = vec![1u8; 8 << 20];
    // SAFETY: the buffer outlives the adapter.
    let mem = unsafe { Mem::new(src.as_ptr() as u64, src.len() as u64, 0) };
    v.ad.write(v.ep, 5, mem, Remote { addr: 4096, rkey: 1 }, None).expect("write");
    v.ad.flush();
    let (other, _keep) = sockets();
    // Closing with unread bytes resets.
    v.peer = other;
    v.until(|v| matches!(v.events.last(), Some(Event::Down { .. })));
    match &v.events[..] {
        [Event::Done { wr: 5, result: Err(e), .. }, Event::Down { status, .. }] => {
            assert_eq!((e.reason, status.reason), (Reason::PeerGone, Reason::PeerGone));
        }
        other => panic!("{other:?}"),
    }
    v.ad.destroy(v.ep);
}

/// What other peers send at the same time fills the buffer that all share: what a peer sent before its end still comes
/// before it.
#[test]
fn what_came_before_the_end_is_heard_though_the_buffer_is_full() {
    // Each poll begins with another endpoint: in one of them the last is the last.
    for turns in 0..5 {
        let mut ad = TcpAdapter::open(&Config::default()).expect("open");
        let mut ends: Vec<(EpId, TcpStream)> = ["a", "b", "c", "d", "last"]
            .into_iter()
            .map(|name| {
                let ep = ad.create(name).expect("create");
                let (peer, sock) = sockets();
                ad.connect(ep, ADDRESS, true, Some(Local::new(sock.into()))).expect("connect");
                (ep, peer)
            })
            .collect();
        let mut events = Vec::new();
        for _ in 0..turns {
            ad.poll(&mut events);
        }
        events.clear();
        let (last, mut peer) = ends.pop().expect("five");
        let messages: Vec<u8> = (0..140).flat_map(|seq| message(seq, &[7; 512])).collect();
        for (_, other) in &mut ends {
            other.write_all(&messages).expect("write");
        }
        peer.write_all(&message(0, &[7; 512])).expect("write");
        drop(peer);
        let start = Instant::now();
        while ad.eps[&last.0].broken.is_none() {
            ad.send(last, &[b"hello"]).expect("send");
            ad.flush();
            assert!(start.elapsed() < Duration::from_secs(20), "it takes what is sent");
        }
        let mut heard = 0;
        let is_down = |e: &Event| matches!(e, Event::Down { ep, .. } if *ep == last);
        while !events.iter().any(is_down) {
            events.clear();
            ad.poll(&mut events);
            let ours = |e: &&Event| matches!(e, Event::Message { ep, .. } if *ep == last);
            heard += events.iter().filter(ours).count();
            assert!(start.elapsed() < Duration::from_secs(20), "no end");
        }
        assert_eq!(heard, 1, "after {turns} polls");
    }
}

#[test]
fn only_stream_sockets() {
    let mut ad = TcpAdapter::open(&Config::default()).expect("open");
    let ep = ad.create("b").expect("create");
    assert!(ad.connect(ep, ADDRESS, true, None).is_err());
    let udp = UdpSocket::bind("127.0.0.1:0").expect("bind");
    let err = ad.connect(ep, ADDRESS, true, Some(Local::new(udp.into()))).unwrap_err();
    assert_eq!(err.code, Code::InvalidArgument);
    let file = std::fs::File::open("/dev/null").expect("open");
    assert!(ad.connect(ep, ADDRESS, true, Some(Local::new(file.into()))).is_err());
    // After all that it still connects.
    let (a, _b) = sockets();
    assert!(ad.connect(ep, ADDRESS, true, Some(Local::new(a.into()))).is_ok());
}

/// Random bytes and damaged good streams; the addresses of the fuzz target's buffers are not known
/// to the bytes, so whatever they do must end in a refusal.
#[test]
fn damaged_streams() {
    let mut rng = 0x1234_5678_9abc_def0u64;
    let mut next = || {
        rng ^= rng << 13;
        rng ^= rng >> 7;
        rng ^= rng << 17;
        rng
    };
    let good = [
        Frame::Send { seq: 0, len: 3 },
        Frame::Write { seq: 0, len: 3, imm: Some(1), rkey: 9, addr: 4096, total: 6 },
        Frame::Data { seq: 0, len: 3 },
        Frame::More { seq: 0, len: 3 },
        Frame::End { seq: 0, why: Some(Refusal::Key) },
        Frame::Ack { seq: 0 },
        Frame::Read { seq: 0, rkey: 3, addr: 4096, total: 100 },
        Frame::Nak { seq: 1, why: Refusal::Bounds },
    ];
    for round in 0..20_000 {
        let mut bytes = vec![next() as u8];
        for f in good {
            let has_payload = matches!(
                f,
                Frame::Send { .. } | Frame::Write { .. } | Frame::Data { .. } | Frame::More { .. }
            );
            bytes.extend(whole(f, if has_payload { b"abc" } else { b"" }));
        }
        for _ in 0..next() % 4 {
            let at = (next() % bytes.len() as u64) as usize;
            match next() % 3 {
                0 => bytes[at] = next() as u8,
                1 => bytes[at] ^= 1 << (next() % 8),
                _ => bytes.truncate(at.max(1)),
            }
        }
        if round % 10 == 0 {
            bytes.iter_mut().skip(1).for_each(|b| *b = next() as u8);
        }
        fuzz_frames(&bytes);
    }
}

/// Pages that nobody may touch.
struct NoAccess(*mut libc::c_void, usize);

impl NoAccess {
    fn new(len: usize) -> NoAccess {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, wherever there is room.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        NoAccess(at, len)
    }
}

impl Drop for NoAccess {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`.
        unsafe { libc::munmap(self.0, self.1) };
    }
}

/// Bytes of the first send that the driver is asked to make of a WRITE of 2 MiB, while the peer has sent this.
fn first_send(came: &[u8]) -> usize {
    let mut v = Victim::of(true);
    let (mut to, from) = (vec![0u8; 4096], vec![1u8; 2 << 20]);
    // SAFETY: the vector outlives the adapter.
    let mr = unsafe { v.ad.register(to.as_mut_ptr().addr() as u64, 4096, Access::REMOTE_WRITE) };
    let rkey = mr.expect("register").rkey;
    if !came.is_empty() {
        let (len, addr) = (came.len() as u32, to.as_ptr().addr() as u64);
        let frame = Frame::Write { seq: 0, len, imm: None, rkey, addr, total: 4096 };
        v.peer.write_all(&whole(frame, came)).expect("write");
        v.until(|v| v.ad.eps[&v.ep.0].stream.is_amid_content());
    }
    // SAFETY: as above.
    let local = unsafe { Mem::new(from.as_ptr().addr() as u64, from.len() as u64, 0) };
    v.ad.write(v.ep, 7, local, Remote { addr: 4096, rkey: 1 }, None).expect("write");
    v.ad.flush();
    loop {
        // Content that came may have its turn before.
        let one = v.ad.take_move(&mut v.events).expect("a move");
        let sent = v.ad.eps[&v.ep.0].moves.out;
        let done = one.run();
        v.ad.moved(done, &mut v.events);
        if let Some(sent) = sent {
            return sent as usize;
        }
        v.ad.flush();
    }
}

#[test]
fn who_is_sent_content_as_well_looks_at_it_soon() {
    let (alone, both) = (first_send(&[]), first_send(&[9; 100]));
    assert!(alone > 1 << 20, "nothing comes: {alone} bytes");
    assert!((1..=768 << 10).contains(&both), "content comes: {both} bytes");
}

/// The socket's words for it (Bad address) would say nothing of the application's memory.
#[test]
fn memory_that_cannot_be_read_is_named_as_what_ended_the_connection() {
    let (mut v, memory) = (Victim::new(), NoAccess::new(1 << 20));
    // SAFETY: the system alone reads it, and finds that it cannot.
    let local = unsafe { Mem::new(memory.0.addr() as u64, memory.1 as u64, 0) };
    v.ad.write(v.ep, 7, local, Remote { addr: 4096, rkey: 1 }, None).expect("write");
    v.ad.flush();
    v.until(|v| matches!(v.events.last(), Some(Event::Down { .. })));
    let [Event::Done { wr: 7, result: Err(of_write), .. }, Event::Down { status, .. }] =
        &v.events[..]
    else {
        panic!("{:?}", v.events)
    };
    for status in [of_write, status] {
        assert_eq!((status.code, status.reason), (Code::Unavailable, Reason::LocalError));
        for part in ["mallory", "memory of the application at this end", "could not be read"] {
            assert!(status.message.contains(part), "{status}");
        }
    }
}
