//! Pairs by hand: tokens that are guessed, grants that are given twice, writes to what is closed or beyond a buffer.

use std::time::Duration;

use rdma_hostile::victim::{Options, Victim, from_hex, to_hex};
use rdma_hostile::wire::frames::{self, Frame};
use rdma_hostile::wire::{Client, Facts, message};
use rdma_hostile::{PATIENCE, eventually};
use rdma_transport::bootstrap::AddressBlob;

const HELLO: u8 = 32;
const BYE: u8 = 33;
const OPEN: u8 = 34;
const CLOSE: u8 = 35;
const CLOSED: u8 = 36;
const DONE: u8 = 37;
const IMM: u32 = 0xFFE0_0000;
/// The attacker's own token.
const MINE: u64 = 0x5eed;

fn words(kind: u8, words: &[u64]) -> Vec<u8> {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    message::any(kind, 0, 0, &[&bytes])
}

fn open(to: u64, slot: u64, grant: u32, addr: u64, len: u64) -> Vec<u8> {
    let fields = [&to.to_le_bytes()[..], &slot.to_le_bytes(), &grant.to_le_bytes()].concat();
    let place = [&addr.to_le_bytes()[..], &7u32.to_le_bytes(), &len.to_le_bytes()].concat();
    message::any(OPEN, 0, 0, &[&fields, &place])
}

fn numbered(kind: u8, number: u32) -> Vec<u8> {
    message::any(kind, 0, 0, &[&number.to_le_bytes()])
}

fn done(grant: u32) -> Vec<u8> {
    message::any(DONE, 0, 0, &[&grant.to_le_bytes(), &[0; 28]])
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn facts(name: &str) -> Facts {
    Facts::new(name, 1)
}

fn stranger(victim: &Victim, name: &str) -> Client {
    let mut c = Client::dial(victim.address(), facts(name), None).unwrap();
    c.message(&message::credit(1024)).unwrap();
    c.next_message(message::CREDIT).unwrap();
    c
}

/// The address of a pair that this attacker pretends to have.
fn address_of(name: &str) -> Vec<u8> {
    let f = facts(name);
    let blob = AddressBlob {
        name: name.into(),
        incarnation: f.incarnation,
        host_id: f.host,
        addrs: vec!["127.0.0.1:9".parse().unwrap()],
    };
    let mut address = b"RDMP\x01\0".to_vec();
    address.extend(MINE.to_le_bytes());
    address.extend(blob.encode().unwrap());
    address
}

/// A connection whose pair the victim has connected, the victim's token, and its number there.
fn paired(victim: &mut Victim, name: &str) -> (Client, u64, String) {
    let mut c = stranger(victim, name);
    assert!(eventually(PATIENCE, || victim.try_tell(&format!("channels {name}")) == Ok("1".into())));
    let pair = victim.tell("pair");
    let token = word(&from_hex(&victim.tell(&format!("pair-address {pair}"))), 6);
    victim.tell(&format!("pair-connect {pair} {}", to_hex(&address_of(name))));
    let hello = c.next_message(HELLO).unwrap();
    assert_eq!((word(&hello, 4), word(&hello, 12)), (MINE, token));
    c.message(&words(HELLO, &[token, MINE])).unwrap();
    let connected = || victim.tell(&format!("pair-state {pair}")) == "2";
    assert!(eventually(PATIENCE, connected));
    (c, token, pair)
}

fn still_serves(victim: &Victim) {
    let mut bystander = stranger(victim, "bystander");
    bystander.message(&message::request(7, 3, b"gen:100")).unwrap();
    bystander.next_message(message::CONTENT).unwrap();
}

/// Tokens that nobody has are answered, however many; a right one from the wrong peer connects nothing.
#[test]
fn r15_tokens_that_are_guessed() {
    let mut victim = Victim::start(Options::default());
    let mut c = stranger(&victim, "guesser");
    for i in 0..20_000u64 {
        c.message(&words(HELLO, &[i + 1, i])).unwrap();
        if i % 100 == 0 {
            let bye = c.next_message(BYE).unwrap();
            assert_eq!(bye[20..24], 5i32.to_le_bytes(), "NOT_FOUND");
        }
    }
    let (mut good, token, pair) = paired(&mut victim, "partner");
    for m in [words(HELLO, &[token, MINE]), words(BYE, &[token, MINE]), open(token, 1, 1, 0, 8)] {
        c.message(&[&m[..], &[0; 4]].concat()[..m.len()]).unwrap();
    }
    good.message(&message::request(8, 3, b"gen:100")).unwrap();
    good.next_message(message::CONTENT).unwrap();
    assert_eq!(victim.tell(&format!("pair-state {pair}")), "2", "ended by a stranger");
    still_serves(&victim);
    assert!(victim.rss() < 200 << 20);
    victim.finish();
}

/// What no other end of good will says ends its own connection.
#[test]
fn r15_grants_that_break_the_rules() {
    let mut victim = Victim::start(Options::default());
    type Attack = (&'static str, fn(u64) -> Vec<Vec<u8>>);
    let attacks: Vec<Attack> = vec![
        ("twice", |t| vec![open(t, 1, 1, 0, 8), open(t, 1, 2, 0, 8)]),
        ("numbers", |t| vec![open(t, 1, 1, 0, 8), open(t, 2, 1, 0, 8)]),
        ("range", |t| vec![open(t, 1, 1 << 20, 0, 8)]),
        ("length", |t| vec![open(t, 1, 1, 0, u64::MAX)]),
        ("wraps", |t| vec![open(t, 1, 1, u64::MAX - 3, 8)]),
        ("cut", |t| vec![open(t, 1, 1, 0, 8)[..30].to_vec()]),
        ("hello", |t| vec![words(HELLO, &[t, MINE])[..12].to_vec()]),
        ("unsealed", |_| vec![done(0)]),
    ];
    for (what, messages) in attacks {
        let (mut c, token, pair) = paired(&mut victim, what);
        for m in messages(token) {
            c.message(&m).unwrap();
        }
        assert!(c.closed_within(PATIENCE), "{what}: not closed");
        assert!(
            eventually(PATIENCE, || victim.tell(&format!("pair-state {pair}")) == "3"),
            "{what}"
        );
    }
    still_serves(&victim);
    victim.finish();
}

/// A million slots: the pair ends, with room to spare, and the connection lives.
#[test]
fn r15_more_slots_than_are_allowed() {
    let mut victim = Victim::start(Options::default());
    let (mut c, token, pair) = paired(&mut victim, "greedy");
    for i in 0..65_537 {
        c.message(&open(token, u64::from(i), i, 0, 8)).unwrap();
    }
    let bye = c.next_message(BYE).unwrap();
    assert_eq!(bye[20..24], 8i32.to_le_bytes(), "RESOURCE_EXHAUSTED");
    assert_eq!(victim.tell(&format!("pair-state {pair}")), "3");
    c.message(&message::request(8, 3, b"gen:100")).unwrap();
    c.next_message(message::CONTENT).unwrap();
    assert!(victim.rss() < 200 << 20, "{}", victim.rss());
    victim.finish();
}

/// The victim's grant of a slot: its number, address, key and length.
fn granted(c: &mut Client) -> (u32, u64, u32, u64) {
    let m = c.next_message(OPEN).unwrap();
    let u32_at = |at: usize| u32::from_le_bytes(m[at..at + 4].try_into().unwrap());
    (u32_at(20), word(&m, 24), u32_at(32), word(&m, 36))
}

fn refused(c: &mut Client) -> bool {
    loop {
        match c.next_frame().unwrap() {
            f if f.kind == frames::NAK => return true,
            f if f.kind == frames::ACK => return false,
            _ => {}
        }
    }
}

/// Writes beyond a buffer, to one that is closed, with an old grant, and notices of nothing.
#[test]
fn r15_writes_to_slots() {
    let mut victim = Victim::start(Options::default());
    let (mut c, _, pair) = paired(&mut victim, "writer");
    let buffer = victim.tell(&format!("slot {pair} 5 4096"));
    let (grant, addr, rkey, len) = granted(&mut c);
    assert_eq!(len, 4096);
    let mut seq = 0;
    let mut write_with = |c: &mut Client, key: u32, at: u64, imm: Option<u32>, n: usize| {
        c.frame(&Frame::write(seq, key, at, imm, &vec![1; n])).unwrap();
        seq += 1;
        refused(c)
    };
    let mut write = |c: &mut Client, at, imm, n| write_with(c, rkey, at, imm, n);
    assert!(!write(&mut c, addr, Some(IMM | grant), 4096));
    for (at, n) in [(addr + 1, 4096), (addr - 1, 8), (addr + 4096, 1), (u64::MAX - 2, 8)] {
        assert!(write(&mut c, at, Some(IMM | grant), n), "{n} bytes at {at:#x} were taken");
    }
    // Notices for other buffers, and for none.
    for imm in [IMM, IMM | 0xF_FFFF, IMM | grant ^ 1] {
        if imm != IMM | grant {
            assert!(!write(&mut c, addr, Some(imm), 1));
        }
    }
    assert_eq!(victim.tell(&format!("arrived {buffer}")), "1");
    for m in [numbered(CLOSE, 99), numbered(CLOSED, grant), numbered(CLOSED, 0xF_FFFF)] {
        c.message(&m).unwrap();
    }
    c.next_message(CLOSED).unwrap();
    victim.tell(&format!("slot-end {buffer}"));
    let closed = c.next_message(CLOSE).unwrap();
    assert_eq!(closed[4..8], grant.to_le_bytes());
    assert!(write(&mut c, addr, Some(IMM | grant), 8), "a closed buffer was written to");
    // It never says SLOT_CLOSED: the number stays taken, and the slot goes on with another.
    let again = victim.tell(&format!("slot {pair} 5 4096"));
    let (next, new_addr, new_rkey, _) = granted(&mut c);
    assert_ne!(next, grant);
    // With the old grant where the slot is now, and where it was.
    assert!(write(&mut c, new_addr, Some(IMM | grant), 8), "the old key is of the new buffer");
    assert!(write(&mut c, addr, Some(IMM | grant), 8), "a closed buffer was written to");
    // Who has the new key may write there, but its old number tells the new buffer of nothing.
    assert!(!write_with(&mut c, new_rkey, new_addr, Some(IMM | grant), 8));
    assert!(!write_with(&mut c, new_rkey, new_addr, Some(IMM | next), 8));
    let mut arrived = || victim.tell(&format!("arrived {again}"));
    assert!(eventually(PATIENCE, || arrived() != "0"));
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(arrived(), "1", "an old notice was counted");
    assert_eq!(victim.tell(&format!("pair-state {pair}")), "2");
    still_serves(&victim);
    victim.finish();
}

/// Whether anything is written to this peer before it has an answer to what it said so far.
fn is_written_to(c: &mut Client) -> bool {
    c.message(&message::ping()).unwrap();
    let mut written = false;
    loop {
        let frame = c.next_frame().unwrap();
        written |= frame.kind == frames::WRITE;
        if frame.kind == frames::SEND && frame.payload.first() == Some(&message::PONG) {
            return written;
        }
    }
}

/// Who has read a pair's address says that it is the other end, before the application has said who is: what waits is not
/// written to it, and nothing that it opened is in the way of the right one. Nor is its end the pair's.
#[test]
fn r15_a_slot_that_a_stranger_opens() {
    for (token, leaves) in [(MINE, false), (MINE + 1, false), (MINE, true), (MINE + 1, true)] {
        let mut victim = Victim::start(Options::default());
        let mut thief = stranger(&victim, "thief");
        let mut partner = stranger(&victim, "partner");
        let known = || victim.try_tell("channels partner") == Ok("1".into());
        assert!(eventually(PATIENCE, known));
        let pair = victim.tell("pair");
        let to = word(&from_hex(&victim.tell(&format!("pair-address {pair}"))), 6);
        victim.tell(&format!("slot-send {pair} 5 4096"));
        thief.message(&words(HELLO, &[to, token])).unwrap();
        thief.message(&open(to, 5, 1, 0x1000, 4096)).unwrap();
        thief.message(&open(to, 6, 2, 0x1000, 8)).unwrap();
        assert!(!is_written_to(&mut thief), "the content of the first send");
        victim.tell(&format!("slot-send {pair} 5 4096"));
        victim.tell(&format!("slot-send {pair} 6 4096"));
        assert!(!is_written_to(&mut thief), "that of the others");
        let mut thief = Some(thief);
        if leaves {
            drop(thief.take());
            assert!(eventually(PATIENCE, || victim.tell("channels thief") == "0"));
        }
        assert_eq!(victim.tell(&format!("pair-state {pair}")), "0");
        victim.tell(&format!("pair-connect {pair} {}", to_hex(&address_of("partner"))));
        partner.next_message(HELLO).unwrap();
        partner.message(&words(HELLO, &[to, MINE])).unwrap();
        for slot in [5, 6] {
            partner.message(&open(to, slot, 1 + slot as u32, 0x2000, 4096)).unwrap();
        }
        let mut imms = Vec::new();
        while imms.len() < 3 {
            let frame = partner.next_frame().unwrap();
            if frame.kind == frames::WRITE && frame.flags & 1 != 0 {
                assert_eq!((frame.addr, frame.total), (0x2000, 4096));
                imms.push(frame.imm);
            }
        }
        imms.sort_unstable();
        assert_eq!(imms, [IMM | 6, IMM | 6, IMM | 7]);
        assert_eq!(victim.tell(&format!("pair-state {pair}")), "2");
        if let Some(mut thief) = thief {
            assert!(!is_written_to(&mut thief), "afterwards");
        }
        still_serves(&victim);
        victim.finish();
    }
}
