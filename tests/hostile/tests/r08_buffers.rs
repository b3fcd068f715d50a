//! Persistent buffers by hand: too long, too many, written to without leave, given up while in use.

use std::time::Duration;

use rdma_hostile::victim::{Options, Victim};
use rdma_hostile::wire::frames::{self, Frame};
use rdma_hostile::wire::{Client, Facts, message};
use rdma_hostile::{PATIENCE, honest};

const REQUEST: u8 = 40;
const RESPONSE: u8 = 41;
const IDLE: u8 = 42;
const WRITE: u8 = 43;
const RECALL: u8 = 44;
const FREE: u8 = 45;
const IMM: u32 = 0xFFF0_0000;
/// Buffers of a page that one connection may have.
const SHARE: u32 = (128 << 20) / 4096;

fn wanted(number: u32, len: u64) -> Vec<u8> {
    // Its answer to the one before returns a credit.
    message::any(REQUEST, 0, 1, &[&number.to_le_bytes(), &len.to_le_bytes()])
}

fn numbered(kind: u8, number: u32) -> Vec<u8> {
    message::any(kind, 0, 0, &[&number.to_le_bytes()])
}

fn announced(request: u32, buffer: u32, meta: &[u8]) -> Vec<u8> {
    message::any(WRITE, 0, 0, &[&request.to_le_bytes(), &buffer.to_le_bytes(), meta])
}

fn stranger(victim: &Victim, name: &str) -> Client {
    let mut c = Client::dial(victim.address(), Facts::new(name, 1), None).unwrap();
    c.message(&message::credit(1024)).unwrap();
    c.next_message(message::CREDIT).unwrap();
    c
}

/// A buffer that the victim gave: its number, where it lies, its key.
struct Given {
    buffer: u32,
    addr: u64,
    rkey: u32,
}

fn given(c: &mut Client) -> Option<Given> {
    let m = c.next_message(RESPONSE).unwrap();
    let u32_at = |at: usize| u32::from_le_bytes(m[at..at + 4].try_into().unwrap());
    (m[1] & 1 == 1).then(|| Given {
        buffer: u32_at(8),
        addr: u64::from_le_bytes(m[12..20].try_into().unwrap()),
        rkey: u32_at(20),
    })
}

/// Whether a WRITE was refused.
fn refused(c: &mut Client) -> bool {
    loop {
        match c.next_frame().unwrap() {
            f if f.kind == frames::NAK => return true,
            f if f.kind == frames::ACK => return false,
            _ => {}
        }
    }
}

/// However long or many are asked for, a connection gets its share, and others get theirs.
#[test]
fn r08_buffers_too_long_and_too_many() {
    let mut victim = Victim::start(Options::default());
    let mut c = stranger(&victim, "greedy");
    for len in [(128 << 20) + 1, 1 << 40, i64::MAX as u64] {
        c.message(&wanted(1, len)).unwrap();
        assert!(given(&mut c).is_none(), "{len} bytes were given");
    }
    let mut got = 0;
    for number in 0..SHARE + 2000 {
        c.message(&wanted(number, 1)).unwrap();
        got += u32::from(given(&mut c).is_some());
    }
    assert_eq!(got, SHARE);
    let mut other = stranger(&victim, "modest");
    other.message(&wanted(1, 1 << 20)).unwrap();
    assert!(given(&mut other).is_some(), "nothing was left for another");
    for len in [0, u64::MAX] {
        let mut c = stranger(&victim, &format!("length {len}"));
        c.message(&wanted(1, len)).unwrap();
        assert!(c.closed_within(PATIENCE), "{len}: not closed");
    }
    victim.check_honest_within(Duration::from_secs(30));
    assert!(victim.rss() < 500 << 20, "{}", victim.rss());
    victim.finish();
}

/// What no sender of good will says ends its own connection.
#[test]
fn r08_buffers_that_are_not_what_is_said_of_them() {
    let mut victim = Victim::start(Options::default());
    let meta = |nbytes| message::meta(4, 0, &[], nbytes);
    type Attack = (&'static str, fn(&Given, Vec<u8>) -> Vec<Vec<u8>>, u64);
    let attacks: Vec<Attack> = vec![
        ("unknown", |g, m| vec![announced(0, g.buffer + 1, &m)], 10),
        ("twice", |g, m| vec![announced(0, g.buffer, &m), announced(0, g.buffer, &m)], 10),
        ("too long", |g, m| vec![announced(0, g.buffer, &m)], 4097),
        ("empty", |g, m| vec![announced(0, g.buffer, &m)], 0),
        ("freed twice", |g, _| vec![numbered(FREE, g.buffer), numbered(FREE, g.buffer)], 1),
        ("idle", |_, _| vec![numbered(IDLE, 0), numbered(FREE, u32::MAX)], 1),
        ("unasked", |_, _| vec![numbered(RESPONSE, 0)], 1),
        ("cut", |g, m| vec![announced(0, g.buffer, &m)[..15].to_vec()], 10),
    ];
    for (what, messages, nbytes) in attacks {
        let mut c = stranger(&victim, what);
        c.message(&wanted(1, 4096)).unwrap();
        let buffer = given(&mut c).unwrap();
        for m in messages(&buffer, meta(nbytes)) {
            c.message(&m).unwrap();
        }
        assert!(c.closed_within(PATIENCE), "{what}: not closed");
    }
    // The notice of content of which nothing was said.
    let mut c = stranger(&victim, "notice");
    c.message(&wanted(1, 4096)).unwrap();
    let g = given(&mut c).unwrap();
    c.frame(&Frame::write(0, g.rkey, g.addr, Some(IMM | g.buffer), &[1; 8])).unwrap();
    assert!(c.closed_within(PATIENCE), "a notice of nothing");
    victim.check_honest_within(Duration::from_secs(30));
    victim.finish();
}

/// The victim asks this client for a tensor, which comes by a buffer; then the client goes on writing.
#[test]
fn r08_writes_to_a_buffer_that_is_idle_or_gone() {
    let mut victim = Victim::start(Options::default());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    victim.tell(&format!("add stranger {}", listener.local_addr().unwrap()));
    let op = victim.recv("stranger", b"k", 1, 3000, true, PATIENCE);
    let (stream, _) = listener.accept().unwrap();
    let mut c = Client::accept(stream, Facts::new("stranger", 2), None).unwrap();
    c.message(&message::credit(64)).unwrap();
    let request = message::index_of(&c.next_message(message::REQUEST).unwrap()).unwrap();
    c.message(&wanted(9, 4096)).unwrap();
    let g = given(&mut c).unwrap();
    let mut seq = 0;
    let mut write = |c: &mut Client, at: u64, imm: Option<u32>, content: &[u8]| {
        c.frame(&Frame::write(seq, g.rkey, at, imm, content)).unwrap();
        seq += 1;
        refused(c)
    };
    // Outside of it, before and behind.
    for (at, n) in [(g.addr - 1, 1), (g.addr + 1, 4096), (g.addr + 4096, 1), (u64::MAX - 2, 8)] {
        assert!(write(&mut c, at, None, &vec![7; n]), "{n} bytes at {at:#x} were taken");
    }
    c.message(&announced(request, g.buffer, &message::meta(4, 0, &[3000], 3000))).unwrap();
    assert!(!write(&mut c, g.addr, Some(IMM | g.buffer), &honest::pattern(b"k", 1, 3000)));
    assert_eq!(message::index_of(&c.next_message(IDLE).unwrap()), Some(9));
    // It is the sender's again. What is written now is in no tensor.
    assert!(!write(&mut c, g.addr, None, &[0xEE; 4096]));
    let got = victim.wait(op, PATIENCE).unwrap();
    assert!(got.right, "{got:?}");
    // A receive that was given up gets nothing, and its buffer comes back.
    let op = victim.recv("stranger", b"k", 2, 3000, true, Duration::from_millis(50));
    let request = message::index_of(&c.next_message(message::REQUEST).unwrap()).unwrap();
    assert!(!victim.wait(op, PATIENCE).unwrap().right);
    c.message(&announced(request, g.buffer, &message::meta(4, 0, &[3000], 3000))).unwrap();
    assert!(!write(&mut c, g.addr, Some(IMM | g.buffer), &[0xDD; 3000]));
    c.next_message(IDLE).unwrap();
    c.message(&numbered(FREE, g.buffer)).unwrap();
    c.message(&message::ping()).unwrap();
    c.next_message(message::PONG).unwrap();
    assert!(write(&mut c, g.addr, None, &[0xCC; 8]), "what was given up was written to");
    victim.check_honest_within(Duration::from_secs(30));
    victim.finish();
}

/// The victim sends by a buffer of the client's, which says that it is idle when it is not busy, or never.
#[test]
fn r08_a_receiver_that_lies_about_its_buffer() {
    let protocol = rdma_transport::api::Protocol::Persistent as u32;
    let victim = Victim::start(Options { protocol, ..Options::default() });
    for idles in [0, 2] {
        let mut c = stranger(&victim, &format!("liar {idles}"));
        c.message(&message::request(7, 3, b"gen:100")).unwrap();
        let asked = c.next_message(REQUEST).unwrap();
        let number = message::index_of(&asked).unwrap();
        let place = [&[5, 0, 0, 0][..], &0x1000u64.to_le_bytes(), &[1, 0, 0, 0]].concat();
        let len = 4096u64.to_le_bytes();
        c.message(&message::any(RESPONSE, 1, 0, &[&number.to_le_bytes(), &place, &len])).unwrap();
        c.next_message(WRITE).unwrap();
        (0..idles).for_each(|_| c.message(&numbered(IDLE, number)).unwrap());
        if idles > 1 {
            assert!(c.closed_within(PATIENCE), "idle twice");
            continue;
        }
        // As often as it asks for the same name, the next waits; and goes with its CANCEL.
        for i in 0..20_000 {
            let step = i64::from(i);
            c.message(&message::request(100 + i, step, b"gen:100")).unwrap();
            let cancel = message::any(message::CANCEL, 0, 1, &[&(100 + i).to_le_bytes()]);
            c.message(&cancel).unwrap();
            c.next_message(message::CANCEL_ACK).unwrap();
        }
        // Another name is not held up.
        c.message(&message::request(8, 3, b"gen:101")).unwrap();
        c.next_message(REQUEST).unwrap();
    }
    assert!(victim.rss() < 200 << 20, "{}", victim.rss());
    victim.finish();
}

/// Who does not give back what it is asked for is passed over: another is asked.
#[test]
fn r08_a_holder_of_buffers_that_does_not_answer() {
    let victim = Victim::start(Options::default());
    let mut mute = stranger(&victim, "mute");
    // Its small ones are older than what is another's.
    for number in 0..1000 {
        mute.message(&wanted(number, 1)).unwrap();
        assert!(given(&mut mute).is_some());
    }
    for number in 1000..1010 {
        mute.message(&wanted(number, 8 << 20)).unwrap();
        assert!(given(&mut mute).is_some());
    }
    let mut other = stranger(&victim, "other");
    for number in 0..2 {
        other.message(&wanted(number, 30 << 20)).unwrap();
        assert!(given(&mut other).is_some());
    }
    // What is oldest is called back first, and then the mute one owes enough.
    let mut newcomer = stranger(&victim, "newcomer");
    let mut refused = 0;
    for number in 0..20 {
        newcomer.message(&wanted(number, 8 << 20)).unwrap();
        refused += u32::from(given(&mut newcomer).is_none());
    }
    assert!(refused > 2, "{refused} were refused");
    mute.next_message(RECALL).unwrap();
    other.message(&message::ping()).unwrap();
    let m = other.next_frame().unwrap();
    assert_eq!((m.kind, m.payload.first()), (frames::SEND, Some(&RECALL)), "it was not asked");
}
