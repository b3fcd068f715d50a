//! Tagged messages by hand: each attack ends its own connection at most, and completes nothing of another peer's.

use std::time::{Duration, Instant};

use rdma_hostile::victim::{Options, Victim};
use rdma_hostile::wire::frames::Frame;
use rdma_hostile::wire::{Client, Facts, message};
use rdma_hostile::{PATIENCE, eventually};
use rdma_transport::status::Code;

const MSG: u8 = 15;
const OFFER: u8 = 16;
const GRANT: u8 = 17;
const MATCHED: u8 = 18;
const WINDOW: u8 = 19;
const WITHDRAW: u8 = 20;
const WITHDRAWN: u8 = 21;
const RESERVED: u32 = 0xFFF0_0000;

fn stranger(victim: &Victim, name: &str) -> Client {
    let mut c = Client::dial(victim.address(), Facts::new(name, 1), None).unwrap();
    c.message(&message::credit(1024)).unwrap();
    c.next_message(message::CREDIT).unwrap();
    c
}

fn msg(content: &[u8]) -> Vec<u8> {
    message::any(MSG, 0, 0, &[&1u32.to_le_bytes(), &2u64.to_le_bytes(), content])
}

/// A message with these flags, and with what they say between its tag and its content.
fn flagged(flags: u8, beside: &[u8], content: &[u8]) -> Vec<u8> {
    message::any(MSG, flags, 0, &[&1u32.to_le_bytes(), &2u64.to_le_bytes(), beside, content])
}

/// Parts of these lengths.
fn parts(lens: &[u64]) -> Vec<u8> {
    let all: Vec<u8> = lens.iter().flat_map(|n| n.to_le_bytes()).collect();
    [&[lens.len() as u8][..], &all].concat()
}

/// An offer with the longest header.
fn headed(response: u32) -> Vec<u8> {
    let rest = [&512u16.to_le_bytes()[..], &[7; 512]].concat();
    let (tag, len) = (1u64.to_le_bytes(), 1u64.to_le_bytes());
    message::any(OFFER, 32, 0, &[&1u32.to_le_bytes(), &tag, &response.to_le_bytes(), &len, &rest])
}

fn offer(tag: u64, response: u32, len: u64) -> Vec<u8> {
    let (tag, response) = (tag.to_le_bytes(), response.to_le_bytes());
    message::any(OFFER, 0, 0, &[&1u32.to_le_bytes(), &tag, &response, &len.to_le_bytes()])
}

fn grant(response: u32, request: u32, addr: u64, rkey: u32, len: u64) -> Vec<u8> {
    let (addr, rkey, len) = (addr.to_le_bytes(), rkey.to_le_bytes(), len.to_le_bytes());
    let fields = [&response.to_le_bytes()[..], &request.to_le_bytes(), &addr, &rkey, &len].concat();
    message::any(GRANT, 0, 0, &[&fields])
}

fn numbered(kind: u8, flags: u8, number: u32) -> Vec<u8> {
    message::any(kind, flags, 0, &[&number.to_le_bytes()])
}

fn window(limit: u64) -> Vec<u8> {
    message::any(WINDOW, 0, 0, &[&limit.to_le_bytes()])
}

/// The response index of an offer of the victim's.
fn offered(c: &mut Client) -> u32 {
    let m = c.next_message(OFFER).unwrap();
    u32::from_le_bytes(m[16..20].try_into().unwrap())
}

/// Messages that may not be end their connection, and that alone.
#[test]
fn r15_messages_that_break_the_rules() {
    let victim = Victim::start(Options::default());
    let beyond: Vec<Vec<u8>> = (0..1100).map(|_| msg(&[7; 1000])).collect();
    let attacks: Vec<(&str, Vec<Vec<u8>>)> = vec![
        ("beyond the window", beyond),
        ("a window that shrinks", vec![window(0)]),
        ("a window that jumps", vec![window(1 << 40)]),
        ("a window of everything", vec![window(u64::MAX)]),
        ("a grant of a reserved index", vec![grant(0, RESERVED, 0, 0, 8)]),
        ("a grant of the last index", vec![grant(0, u32::MAX, 0, 0, 8)]),
        ("a request of a reserved index", vec![message::request(RESERVED + 1, 1, b"later")]),
        ("an offer of enormous length", vec![offer(1, 1, u64::MAX)]),
        ("an offer cut short", vec![offer(1, 1, 1)[..20].to_vec()]),
        ("a message cut short", vec![msg(b"")[..10].to_vec()]),
        ("more offers than may wait", (0..65_537).map(|i| offer(1, i, 1)).collect()),
        ("more headers of offers than may wait", (0..16_385).map(headed).collect()),
        ("a header that is too long", vec![flagged(32, &[1, 2], &[0; 600])]),
        ("a header of nothing", vec![flagged(32, &[0, 0], b"")]),
        ("a header cut short", vec![flagged(32, &[9, 0, 1], b"")]),
        ("no parts", vec![flagged(64, &parts(&[]), b"")]),
        ("too many parts", vec![flagged(64, &parts(&[0; 65]), b"")]),
        ("parts longer than the message", vec![flagged(64, &parts(&[3, 3]), b"12345")]),
        ("parts without end", vec![flagged(64, &parts(&[u64::MAX, 6]), b"12345")]),
        (
            "legs of one byte",
            vec![message::any(
                OFFER,
                8,
                0,
                &[&1u32.to_le_bytes(), &[0; 8], &[0; 4], &9u64.to_le_bytes(), &1u32.to_le_bytes()],
            )],
        ),
        (
            "beyond the window, for a handler that is not there",
            (0..1100).map(|_| flagged(128, &[], &[7; 1000])).collect(),
        ),
    ];
    let mut bystander = stranger(&victim, "bystander");
    for (what, messages) in attacks {
        let mut c = stranger(&victim, what);
        for m in &messages {
            if c.message(m).is_err() {
                break;
            }
        }
        assert!(c.closed_within(PATIENCE), "{what}: not closed");
    }
    bystander.message(&message::request(7, 3, b"gen:100")).unwrap();
    bystander.next_message(message::CONTENT).unwrap();
    assert!(victim.rss() < 200 << 20, "{} bytes", victim.rss());
    victim.finish();
}

/// What is said of operations that are not there is stale.
#[test]
fn r15_answers_to_messages_that_never_were() {
    let victim = Victim::start(Options::default());
    let mut c = stranger(&victim, "liar");
    for number in [0, 1, 5, 0xFFFFF, RESERVED, u32::MAX] {
        for m in [
            grant(number, 3, 0, 0, u64::MAX),
            numbered(MATCHED, 0, number),
            numbered(WITHDRAW, 0, number),
            numbered(WITHDRAW, 1, number),
            numbered(WITHDRAWN, 0, number),
            numbered(WITHDRAWN, 1, number),
            numbered(message::GET_DONE, 1, number),
            message::cancel(number),
        ] {
            c.message(&m).unwrap();
        }
        c.message(&offer(u64::from(number), number, i64::MAX as u64)).unwrap();
        c.message(&numbered(WITHDRAW, 0, number)).unwrap();
        let back = c.next_message(WITHDRAWN);
        assert!(back.is_ok(), "{number:#x}: {back:?}; {:?}", victim.log());
    }
    c.message(&message::request(7, 3, b"gen:100")).unwrap();
    c.next_message(message::CONTENT).unwrap();
    victim.finish();
}

/// Offers that say in how many regions their sources lie, as many as may be, are kept without all these: the content of a
/// message is then asked for, and not read.
#[test]
fn r08_offers_whose_sources_lie_in_many_regions() {
    const REGIONS: u16 = 4095;
    let mut victim = Victim::start(Options::default());
    let mut c = stranger(&victim, "scattered");
    let regions: Vec<u8> = (1..=u64::from(REGIONS))
        .flat_map(|i| [&(i * 8).to_le_bytes()[..], &7u32.to_le_bytes()].concat())
        .collect();
    let mut offered = |response: u32| {
        let at = [&0x7000_0000u64.to_le_bytes()[..], &1u32.to_le_bytes()].concat();
        let tag = u64::from(response).to_le_bytes();
        let head = [&1u32.to_le_bytes()[..], &tag, &response.to_le_bytes()].concat();
        let len = 40_000u64.to_le_bytes();
        let fields: [&[u8]; 5] = [&head, &len, &at, &REGIONS.to_le_bytes(), &regions];
        c.message(&message::any(OFFER, 2 | 16, 0, &fields)).unwrap();
    };
    (0..4000).for_each(&mut offered);
    c.message(&message::request(7, 3, b"gen:100")).unwrap();
    c.next_message(message::CONTENT).unwrap();
    let rss = victim.rss();
    assert!(rss < 100 << 20, "{rss} bytes");
    // The last of them can be received still: it is asked for.
    let op = victim.recv_message("scattered", 3999, 40_000);
    c.next_message(GRANT).unwrap();
    drop(c);
    assert_ne!(victim.wait(op, PATIENCE).unwrap().code, Code::Ok);
    victim.finish();
}

/// Offers are taken back one by one in a time that does not grow with how many wait.
#[test]
fn r08_withdrawals_among_many_offers() {
    let victim = Victim::start(Options::default());
    let mut c = stranger(&victim, "fickle");
    for i in 0..65_000 {
        c.message(&offer(1, i, 1)).unwrap();
    }
    let start = Instant::now();
    let before = victim.cpu();
    // The last that waits, over and over: none has this number.
    for _ in 0..50 {
        let withdrawal = |i: u32| Frame::send(&numbered(WITHDRAW, 0, 1 << 24 | i));
        let many: Vec<u8> = (0..1000).flat_map(|i| c.numbered(&withdrawal(i))).collect();
        c.raw(&many).unwrap();
        // Credits are returned without a word of ours.
    }
    c.message(&message::request(7, 3, b"gen:100")).unwrap();
    c.next_message(message::CONTENT).unwrap();
    let used = victim.cpu() - before;
    println!("50,000 withdrawals took {:?}, {used:?} of the processor", start.elapsed());
    assert!(used < Duration::from_secs(2), "{used:?}");
    victim.finish();
}

/// The victim's own offers meet every wrong answer; each send ends once, others end as they should.
#[test]
fn r15_wrong_answers_to_offers() {
    const LEN: u64 = 300_000;
    for attack in 0..10 {
        let mut victim = Victim::start(Options::default());
        let mut c = stranger(&victim, "receiver");
        let mut other = stranger(&victim, "other");
        assert!(eventually(PATIENCE, || victim.try_tell("channels other").as_deref() == Ok("1")));
        let op = victim.send_message("receiver", 5, LEN as usize);
        let theirs = victim.send_message("other", 6, LEN as usize);
        let (response, kept) = (offered(&mut c), offered(&mut other));
        let (closes, code) = match attack {
            0 => {
                // Another's offer is not this peer's to answer.
                for m in [
                    numbered(message::GET_DONE, 1, kept),
                    grant(kept, 3, 0, 0, LEN),
                    numbered(WITHDRAWN, 0, kept),
                ] {
                    c.message(&m).unwrap();
                }
                c.message(&numbered(message::GET_DONE, 1, response)).unwrap();
                (false, Code::Ok)
            }
            1 => {
                c.message(&grant(response, 3, 0, 0, 0)).unwrap();
                (false, Code::InvalidArgument)
            }
            2 => {
                c.message(&grant(response, RESERVED, 0, 0, LEN)).unwrap();
                (true, Code::InvalidArgument)
            }
            3 => {
                c.message(&message::request(3, 1, b"later")).unwrap();
                c.message(&message::request(4, 1, b"gen:10")).unwrap();
                c.next_message(message::ERROR).ok();
                (false, Code::Ok)
            }
            8 | 9 => {
                // A part of it, which is refused where it goes; then all or nothing of the rest.
                c.message(&grant(response, 3, 4096, 1, 10)).unwrap();
                c.message(&grant(response, 3, 4096, 1, if attack == 8 { LEN } else { 0 })).unwrap();
                c.message(&grant(response, 3, 4096, 1, 10)).ok();
                drop(c);
                let end = victim.wait(op, PATIENCE).expect("it ends");
                assert!(end.code != Code::Internal && end.code != Code::Ok, "{end:?}");
                other.message(&numbered(message::GET_DONE, 1, kept)).unwrap();
                assert_eq!(victim.wait(theirs, PATIENCE).unwrap().code, Code::Ok);
                victim.finish();
                continue;
            }
            4 => {
                // Twice: the second is stale. The content goes where the first said, and is refused there.
                c.message(&grant(response, 3, 4096, 1, LEN)).unwrap();
                c.message(&grant(response, 4, 8192, 1, LEN)).unwrap();
                c.message(&numbered(message::GET_DONE, 1, response)).unwrap();
                c.message(&message::cancel(3)).unwrap();
                drop(c);
                let end = victim.wait(op, PATIENCE).expect("it ends");
                assert_ne!(end.code, Code::Internal, "{end:?}");
                other.message(&numbered(message::GET_DONE, 1, kept)).unwrap();
                assert_eq!(victim.wait(theirs, PATIENCE).unwrap().code, Code::Ok);
                victim.finish();
                continue;
            }
            5 => {
                c.message(&message::cancel(RESERVED)).unwrap();
                c.message(&numbered(WITHDRAWN, 0, response)).unwrap();
                (false, Code::Cancelled)
            }
            6 => {
                let at = [&response.to_le_bytes()[..], &[0; 12], &LEN.to_le_bytes()].concat();
                c.message(&message::any(message::RE_REQUEST, 0, 0, &[&at])).unwrap();
                assert!(c.closed_within(PATIENCE), "attack {attack}: not closed");
                let end = victim.wait(op, PATIENCE).expect("it ends");
                assert_ne!(end.code, Code::Internal, "{end:?}");
                other.message(&numbered(message::GET_DONE, 1, kept)).unwrap();
                assert_eq!(victim.wait(theirs, PATIENCE).unwrap().code, Code::Ok);
                victim.finish();
                continue;
            }
            _ => {
                c.message(&message::any(message::GET_DONE, 0, 0, &[&response.to_le_bytes()]))
                    .unwrap();
                (false, Code::Cancelled)
            }
        };
        if attack == 3 {
            c.message(&numbered(message::GET_DONE, 1, response)).unwrap();
        }
        let end = victim.wait(op, PATIENCE).expect("the send ends");
        assert_eq!(end.code, code, "attack {attack}: {end:?}");
        assert!(!closes || c.closed_within(PATIENCE), "attack {attack}: not closed");
        assert!(victim.ended().iter().all(|e| e.op != theirs), "attack {attack}");
        other.message(&numbered(message::GET_DONE, 1, kept)).unwrap();
        assert_eq!(victim.wait(theirs, PATIENCE).unwrap().code, Code::Ok);
        drop(c);
        victim.finish();
    }
}
