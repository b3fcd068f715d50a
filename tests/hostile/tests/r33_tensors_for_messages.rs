//! Answers to named tensors, said of a request that receives a tagged message: by legs its destination is that of one leg.

use rdma_hostile::PATIENCE;
use rdma_hostile::victim::{Options, Victim, byte_at};
use rdma_hostile::wire::frames::Frame;
use rdma_hostile::wire::{Client, Facts, message};
use rdma_transport::status::Code;

const OFFER: u8 = 16;
const GRANT: u8 = 17;
const BUFFER_REQUEST: u8 = 40;
const BUFFER_RESPONSE: u8 = 41;
const TENSOR_WRITE: u8 = 43;
const BUFFER_IMM: u32 = 0xFFF0_0000;
const LEG: u64 = 4096;
const LEN: u64 = 2 * LEG;

fn stranger(victim: &Victim) -> Client {
    let mut c = Client::dial(victim.address(), Facts::new("stranger", 1), None).unwrap();
    c.message(&message::credit(1024)).unwrap();
    c.next_message(message::CREDIT).unwrap();
    c
}

fn u32_at(m: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(m[at..at + 4].try_into().unwrap())
}

fn u64_at(m: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(m[at..at + 8].try_into().unwrap())
}

/// A place that the victim gave: its number, address and key.
#[derive(Clone, Copy)]
struct Given(u32, u64, u32);

/// The request that a grant is for, and its destination.
fn granted(c: &mut Client) -> Given {
    let m = c.next_message(GRANT).unwrap();
    Given(u32_at(&m, 8), u64_at(&m, 12), u32_at(&m, 20))
}

/// A persistent buffer of the victim's.
fn buffer(c: &mut Client, len: u64) -> Given {
    let number = 1u32.to_le_bytes();
    c.message(&message::any(BUFFER_REQUEST, 0, 1, &[&number, &len.to_le_bytes()])).unwrap();
    let m = c.next_message(BUFFER_RESPONSE).unwrap();
    assert_eq!(m[1] & 1, 1, "no buffer was given");
    Given(u32_at(&m, 8), u64_at(&m, 12), u32_at(&m, 20))
}

fn offer() -> Vec<u8> {
    let fields = [&5u64.to_le_bytes()[..], &9u32.to_le_bytes(), &LEN.to_le_bytes()].concat();
    message::any(OFFER, 8, 0, &[&1u32.to_le_bytes(), &fields, &(LEG as u32).to_le_bytes()])
}

fn content(n: u64) -> Vec<u8> {
    (0..n as usize).map(byte_at).collect()
}

fn bytes(n: u64) -> Vec<u8> {
    message::meta(1, 0, &[n as i64], n)
}

/// META_DATA_RESPONSE of a tensor of so many bytes.
fn told(request: u32, flags: u8, nbytes: u64) -> Vec<u8> {
    let (index, response) = (request.to_le_bytes(), 9u32.to_le_bytes());
    let source = [&0x1000u64.to_le_bytes()[..], &1u32.to_le_bytes()].concat();
    let source = if flags & 2 != 0 { &source[..] } else { &[] };
    message::any(message::META, flags, 0, &[&index, &response, source, &bytes(nbytes)])
}

/// TENSOR_WRITE by this buffer.
fn announced(request: u32, buffer: u32, flags: u8, meta: &[u8]) -> Vec<u8> {
    message::any(TENSOR_WRITE, flags, 0, &[&request.to_le_bytes(), &buffer.to_le_bytes(), meta])
}

/// The content of a buffer is there.
fn filled(seq: u32, Given(buffer, addr, rkey): Given) -> Frame {
    Frame::write(seq, rkey, addr, Some(BUFFER_IMM | buffer), &[0xEE; 64])
}

type Attack = (&'static str, fn(&mut Client, u32, Given));

const ATTACKS: [Attack; 8] = [
    ("content of which the metadata is known", |c, request, _| {
        let fields = [&request.to_le_bytes()[..], &content(LEN)].concat();
        c.message(&message::any(message::CONTENT, 1, 0, &[&fields])).unwrap();
    }),
    ("content with its metadata", |c, request, _| {
        c.message(&message::content(request, &bytes(LEN), &content(LEN))).unwrap();
    }),
    ("content that is shorter", |c, request, _| {
        c.message(&message::content(request, &bytes(1), &content(1))).unwrap();
    }),
    ("metadata of the same length", |c, request, _| {
        c.message(&told(request, 2, LEN)).unwrap();
    }),
    ("metadata of less than is there", |c, request, _| {
        c.message(&told(request, 0, LEG / 2)).unwrap();
    }),
    ("metadata of what follows", |c, request, _| {
        c.message(&told(request, 1, LEG / 2)).unwrap();
    }),
    ("a buffer with metadata", |c, request, b| {
        c.message(&announced(request, b.0, 0, &bytes(1))).unwrap();
        c.frame(&filled(1, b)).unwrap();
    }),
    ("a buffer without", |c, request, b| {
        c.message(&announced(request, b.0, 1, &[])).unwrap();
        c.frame(&filled(1, b)).unwrap();
    }),
];

/// Each ends the connection and the receive; nothing is written behind its memory.
#[test]
fn r33_a_message_takes_no_answer_of_a_tensor() {
    for in_pieces in [false, true] {
        for (what, attack) in ATTACKS {
            let mut victim = Victim::start(Options::default());
            let mut c = stranger(&victim);
            let op = match in_pieces {
                true => victim.recv_message_in_pieces("stranger", 5, LEN as usize),
                false => victim.recv_message("stranger", 5, LEN as usize),
            };
            let b = buffer(&mut c, 64 << 20);
            c.message(&offer()).unwrap();
            let Given(request, addr, rkey) = granted(&mut c);
            c.frame(&Frame::write(0, rkey, addr, Some(request), &content(LEG))).unwrap();
            assert_eq!(granted(&mut c).0, request, "the next leg");
            attack(&mut c, request, b);
            assert!(c.closed_within(PATIENCE), "{what}: not closed");
            let end = victim.wait(op, PATIENCE).expect("the receive ends");
            assert!(end.code != Code::Ok && end.code != Code::Internal, "{what}: {end:?}");
            assert!(end.right, "{what}, in pieces {in_pieces}: written behind its memory");
            victim.finish();
        }
    }
}

/// TENSOR_RE_REQUEST for a message that the victim offers ends the connection; nothing is read from where it does not lie.
#[test]
fn r33_an_offered_message_takes_no_re_request() {
    for from in ["pieces", "device"] {
        let mut victim = Victim::start(Options::default());
        let mut c = stranger(&victim);
        let op = victim.send_message_from("stranger", 5, 300_000, from);
        let m = c.next_message(OFFER).unwrap();
        let at = [&m[16..20], &[0; 12], &300_000u64.to_le_bytes()].concat();
        c.message(&message::any(message::RE_REQUEST, 0, 0, &[&at])).unwrap();
        assert!(c.closed_within(PATIENCE), "{from}: not closed");
        // Not since the system found no memory at such an address.
        let end = victim.wait(op, PATIENCE).expect("the send ends");
        assert_eq!(end.code, Code::InvalidArgument, "{from}: {end:?}");
        victim.finish();
    }
}
