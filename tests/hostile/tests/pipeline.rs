//! The RDMA pipeline of messages by hand, from either end.

use rdma_hostile::victim::{Options, Victim, byte_at};
use rdma_hostile::wire::frames::Frame;
use rdma_hostile::wire::{Client, Facts, message};
use rdma_hostile::{PATIENCE, eventually};
use rdma_transport::status::Code;

const OFFER: u8 = 16;
const GRANT: u8 = 17;
const ACK: u8 = 22;
const FRAG: u8 = 23;
const RESERVED: u32 = 0xFFF0_0000;
/// `RDMA_PROTOCOL=pipeline`.
const PIPELINE: u32 = 6;
const LEN: u64 = 3 << 20;
const FIRST: u64 = 100;

fn peer_of(victim: &Victim, name: &str) -> Client {
    let mut c = Client::dial(victim.address(), Facts::new(name, 1), None).unwrap();
    c.message(&message::credit(1024)).unwrap();
    c.next_message(message::CREDIT).unwrap();
    c
}

fn content(from: u64, to: u64) -> Vec<u8> {
    (from..to).map(|at| byte_at(at as usize)).collect()
}

/// An offer of `nbytes` with these first bytes of it.
fn offer(response: u32, nbytes: u64, first: &[u8]) -> Vec<u8> {
    let first = [&(first.len() as u16).to_le_bytes()[..], first].concat();
    let (tag, response, nbytes) =
        (5u64.to_le_bytes(), response.to_le_bytes(), nbytes.to_le_bytes());
    message::any(OFFER, 4, 0, &[&1u32.to_le_bytes(), &tag, &response, &nbytes, &first])
}

fn ack(response: u32, request: u32, at: u64, len: u64) -> Vec<u8> {
    let (response, request) = (response.to_le_bytes(), request.to_le_bytes());
    message::any(ACK, 0, 0, &[&response, &request, &at.to_le_bytes(), &len.to_le_bytes()])
}

fn frag(request: u32, at: u64, content: &[u8]) -> Vec<u8> {
    message::any(FRAG, 0, 0, &[&request.to_le_bytes(), &at.to_le_bytes(), content])
}

fn grant(response: u32, request: u32, len: u64) -> Vec<u8> {
    let (addr, rkey) = (4096u64.to_le_bytes(), 1u32.to_le_bytes());
    let (response, request) = (response.to_le_bytes(), request.to_le_bytes());
    message::any(GRANT, 4, 0, &[&response, &request, &addr, &rkey, &len.to_le_bytes()])
}

fn u32_at(m: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(m[at..at + 4].try_into().unwrap())
}

fn u64_at(m: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(m[at..at + 8].try_into().unwrap())
}

/// What a victim that receives asks for: its request, the bytes by messages, and its first fragment's place, key and length.
struct Asked {
    request: u32,
    at: u64,
    len: u64,
    dst: (u64, u32, u64),
}

impl Asked {
    /// Offers, and hears what the receiver asks for.
    fn by(c: &mut Client) -> Asked {
        c.message(&offer(9, LEN, &content(0, FIRST))).unwrap();
        let m = c.next_message(ACK).unwrap();
        let (request, at, len) = (u32_at(&m, 8), u64_at(&m, 12), u64_at(&m, 20));
        let m = c.next_message(GRANT).unwrap();
        assert_eq!((u32_at(&m, 4), u32_at(&m, 8)), (9, request));
        Asked { request, at, len, dst: (u64_at(&m, 12), u32_at(&m, 20), u64_at(&m, 24)) }
    }

    /// Sends all that is asked for, as an honest sender does.
    fn serve(&self, c: &mut Client) {
        let Asked { request, at, len, dst } = *self;
        let ((mut addr, mut rkey, mut granted), mut from, mut seq) = (dst, FIRST, 0);
        loop {
            let bytes = content(from, from + granted);
            c.frame(&Frame::write(seq, rkey, addr, Some(request), &bytes)).unwrap();
            (from, seq) = (from + granted, seq + 1);
            if from >= at {
                break;
            }
            let m = c.next_message(GRANT).unwrap();
            (addr, rkey, granted) = (u64_at(&m, 12), u32_at(&m, 20), u64_at(&m, 24));
        }
        for from in (at..at + len).step_by(1000) {
            let to = (from + 1000).min(at + len);
            c.message(&frag(request, from, &content(from, to))).unwrap();
        }
    }
}

type Attack = fn(&mut Client, &Asked);

/// A sender that does not keep to what was asked for ends its connection, and the receive that it was for; nothing is
/// written beside its memory.
#[test]
fn r15_senders_in_a_pipeline() {
    let attacks: [(&str, bool, Attack); 9] = [
        ("honest", false, |c, asked| asked.serve(c)),
        ("more than was asked for", true, |c, a| {
            let beyond = content(a.at, a.at + a.len + 1);
            for part in beyond.chunks(1000).enumerate() {
                let _ = c.message(&frag(a.request, a.at + 1000 * part.0 as u64, part.1));
            }
        }),
        ("what was not asked for", true, |c, a| c.message(&frag(a.request, 0, b"x")).unwrap()),
        ("the end before the rest", true, |c, a| {
            c.message(&frag(a.request, a.at + a.len - 1, b"x")).unwrap()
        }),
        ("nothing", true, |c, a| c.message(&frag(a.request, a.at, b"")).unwrap()),
        ("another's, then its own", false, |c, a| {
            c.message(&frag(a.request ^ 1 << 22, a.at, b"x")).unwrap();
            c.message(&frag(u32::MAX, u64::MAX, b"x")).unwrap();
            a.serve(c);
        }),
        ("the same fragment for ever", true, |c, a| {
            for seq in 0..5000 {
                let _ = c.frame(&Frame::write(seq, 0, 0, Some(a.request), b""));
            }
        }),
        ("beyond its fragment", true, |c, a| {
            let (addr, rkey, len) = a.dst;
            let bytes = content(0, len + 1);
            let _ = c.frame(&Frame::write(0, rkey, addr, Some(a.request), &bytes));
        }),
        ("behind its memory", true, |c, a| {
            let (addr, rkey, _) = a.dst;
            let _ = c.frame(&Frame::write(0, rkey, addr + LEN, Some(a.request), &[7; 64]));
        }),
    ];
    let mut victim = Victim::start(Options::default());
    for (n, (what, closes, attack)) in attacks.into_iter().enumerate() {
        let name = format!("sender{n}");
        let mut c = peer_of(&victim, &name);
        let channels = format!("channels {name}");
        assert!(eventually(PATIENCE, || victim.try_tell(&channels).as_deref() == Ok("1")));
        let op = victim.recv_message(&name, 5, LEN as usize);
        let asked = Asked::by(&mut c);
        assert!(asked.at > FIRST && asked.at + asked.len == LEN, "{what}");
        attack(&mut c, &asked);
        let closed = closes && c.closed_within(PATIENCE);
        assert_eq!(closed, closes, "{what}: not closed");
        let end = victim.wait(op, PATIENCE).unwrap_or_else(|| panic!("{what}: no end"));
        assert_eq!(end.code == Code::Ok, !closes, "{what}: {end:?}");
        assert!(end.right && end.code != Code::Internal, "{what}: {end:?}");
    }
    // In the middle of it, it is gone.
    let mut c = peer_of(&victim, "mortal");
    assert!(eventually(PATIENCE, || victim.try_tell("channels mortal").as_deref() == Ok("1")));
    let op = victim.recv_message("mortal", 5, LEN as usize);
    let asked = Asked::by(&mut c);
    c.message(&frag(asked.request, asked.at, &content(asked.at, asked.at + 1))).unwrap();
    drop(c);
    let end = victim.wait(op, PATIENCE).expect("it ends");
    assert!(end.right && end.code == Code::Unavailable, "{end:?}");
    // First segments that cannot be.
    for (what, nbytes, first) in [("all of it", 100, 100), ("more than it", 10, 100)] {
        let mut c = peer_of(&victim, what);
        c.message(&offer(9, nbytes, &content(0, first))).unwrap();
        assert!(c.closed_within(PATIENCE), "{what}: not closed");
    }
    victim.finish();
}

/// A receiver that asks for what there is not ends its connection; the send ends once, and others as they should.
#[test]
fn r15_receivers_in_a_pipeline() {
    type Attack = fn(&mut Client, u32, u64);
    // The response, and the bytes that are left of the message.
    let attacks: [(&str, Option<Code>, Attack); 10] = [
        ("honest, by messages", Some(Code::Ok), |c, r, left| {
            c.message(&ack(r, 3, LEN - left, left)).unwrap();
            let mut at = LEN - left;
            while at < LEN {
                let m = c.next_message(FRAG).unwrap();
                assert_eq!((u32_at(&m, 4), u64_at(&m, 8)), (3, at));
                at += m.len() as u64 - 16;
            }
        }),
        ("more than is left", None, |c, r, left| c.message(&ack(r, 3, 0, left + 1)).unwrap()),
        ("behind its end", None, |c, r, left| c.message(&ack(r, 3, LEN, left)).unwrap()),
        ("so far that it wraps", None, |c, r, _| c.message(&ack(r, 3, u64::MAX, 2)).unwrap()),
        ("a request of a reserved index", None, |c, r, left| {
            c.message(&ack(r, RESERVED, 0, left)).unwrap()
        }),
        ("everything twice", None, |c, r, left| {
            c.message(&ack(r, 3, LEN - left, left - 1)).unwrap();
            c.message(&ack(r, 3, LEN - left, left - 1)).unwrap();
        }),
        ("too many fragments", None, |c, r, _| {
            c.message(&ack(r, 3, 0, 0)).unwrap();
            for _ in 0..5000 {
                let _ = c.message(&grant(r, 3, 1 << 10));
            }
        }),
        ("fragments of nothing", None, |c, r, _| {
            c.message(&ack(r, 3, 0, 0)).unwrap();
            c.message(&grant(r, 3, 0)).unwrap();
        }),
        ("for another request, and then no more", Some(Code::Cancelled), |c, r, _| {
            c.message(&ack(r, 3, 0, 0)).unwrap();
            c.message(&ack(r, 4, 0, 10)).unwrap();
            c.message(&grant(r, 4, 10)).unwrap();
            c.message(&message::cancel(3)).unwrap();
            c.next_message(9).unwrap();
        }),
        ("once, and is silent", None, |c, r, _| {
            c.message(&ack(r, 3, 0, 10)).unwrap();
            c.next_message(FRAG).unwrap();
        }),
    ];
    let mut victim = Victim::start(Options { protocol: PIPELINE, ..Options::default() });
    for (n, (what, code, attack)) in attacks.into_iter().enumerate() {
        let (name, other) = (format!("receiver{n}"), format!("other{n}"));
        let (mut c, mut bystander) = (peer_of(&victim, &name), peer_of(&victim, &other));
        for name in [&name, &other] {
            let channels = format!("channels {name}");
            assert!(eventually(PATIENCE, || victim.try_tell(&channels).as_deref() == Ok("1")));
        }
        let op = victim.send_message(&name, 5, LEN as usize);
        let theirs = victim.send_message(&other, 6, LEN as usize);
        let m = c.next_message(OFFER).unwrap();
        let first = u64::from(u16::from_le_bytes([m[28], m[29]]));
        assert!(m[1] & 4 != 0 && u64_at(&m, 20) == LEN && first < LEN);
        let kept = u32_at(&bystander.next_message(OFFER).unwrap(), 16);
        // Another's offer is not this peer's to take up.
        c.message(&ack(kept, 3, 0, 10)).unwrap();
        c.message(&grant(kept, 3, 10)).unwrap();
        attack(&mut c, u32_at(&m, 16), LEN - first);
        if code.is_none() && n + 1 < 10 {
            assert!(c.closed_within(PATIENCE), "{what}: not closed");
        }
        drop(c);
        let end = victim.wait(op, PATIENCE).unwrap_or_else(|| panic!("{what}: no end"));
        assert!(end.code != Code::Internal, "{what}: {end:?}");
        match code {
            Some(code) => assert_eq!(end.code, code, "{what}: {end:?}"),
            None => assert_ne!(end.code, Code::Ok, "{what}: {end:?}"),
        }
        assert!(victim.ended().iter().all(|e| e.op != theirs), "{what}");
        bystander.message(&message::any(message::GET_DONE, 1, 0, &[&kept.to_le_bytes()])).unwrap();
        assert_eq!(victim.wait(theirs, PATIENCE).unwrap().code, Code::Ok);
    }
    victim.finish();
}
