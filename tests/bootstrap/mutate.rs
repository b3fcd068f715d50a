//! Seeded mutations of everything that comes from outside, in the ordinary test run.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use rdma_transport::bootstrap::*;
use rdma_transport::wire::Reader;

use crate::fake::*;

/// xorshift64*, so that a failure can be repeated from its number.
struct Rng(u64);

impl Rng {
    fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

fn mutate(bytes: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for _ in 0..=rng.below(3) {
        let at = rng.below(out.len());
        match rng.below(6) {
            0 if !out.is_empty() => out[at] ^= 1 << rng.below(8),
            1 if !out.is_empty() => out[at] = [0, 1, 0x7F, 0x80, 0xFF][rng.below(5)],
            2 => out.truncate(at),
            3 => out.insert(at, rng.next() as u8),
            4 => {
                let end = (at + rng.below(64)).min(out.len());
                let copy = out[at..end].to_vec();
                out.splice(at..at, copy);
            }
            _ => {
                let end = (at + rng.below(16)).min(out.len());
                out.drain(at..end);
            }
        }
    }
    out
}

/// What a connector says first.
fn hello_bytes() -> Vec<u8> {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut a = Node::plain("a");
    a.listen();
    a.dial(1, &[server.local_addr().unwrap()]);
    a.poll();
    let (mut s, _) = server.accept().unwrap();
    s.set_nonblocking(true).unwrap();
    let mut bytes = vec![0; 4096];
    let mut n = 0;
    drive(&mut [&mut a], |_| {
        n = s.read(&mut bytes).unwrap_or(0);
        n > 0
    });
    bytes.truncate(n);
    bytes
}

#[test]
fn parsers_survive_mutations() {
    let hello = hello_bytes();
    let mut node = Node::plain("a");
    node.listen();
    let blob = node.boot.blob();
    let blob_bytes = blob.encode().unwrap();
    for seed in 0..20_000 {
        let mut rng = Rng::new(seed);
        fuzz_hello(&mutate(&hello, &mut rng));
        let changed = mutate(&blob_bytes, &mut rng);
        if changed != blob_bytes {
            assert!(AddressBlob::decode(&changed).is_err(), "seed {seed}");
        }
        let mut r = Reader::new(&changed);
        while r.bytes16(rng.below(300)).is_ok() {}
        assert!(r.position() <= changed.len());
    }
}

/// Mutated handshakes against a live listener: every connection ends, no endpoint is left over,
/// and the listener goes on working.
#[test]
fn a_listener_survives_mutations() {
    let hello = hello_bytes();
    let mut b = Node::plain("b");
    let addr = b.listen();
    let mut rng = Rng::new(1);
    for seed in 0..300 {
        let mut bytes = if seed % 3 == 0 { hello.clone() } else { mutate(&hello, &mut rng) };
        // An ENDPOINT and a READY behind it, changed too, for those that get so far.
        let mut tail = b"RDMT\x05\0\0\0\x0d\0\0\0\x01\x03\0\0\x07\0tcp for".to_vec();
        tail.extend(b"RDMT\x07\0\0\0\x01\0\0\0\x01");
        bytes.extend(mutate(&tail, &mut rng));
        let mut s = TcpStream::connect(addr).unwrap();
        s.write_all(&bytes).unwrap();
        s.shutdown(Shutdown::Write).unwrap();
        drive(&mut [&mut b], |n| !n[0].events.is_empty());
        for event in b.events.drain(..) {
            if let Some(r) = as_ready(&event) {
                b.neg.discard(r.kind, r.ep);
            }
        }
        drop(s);
        drive(&mut [&mut b], |n| n[0].boot.pending() == 0);
        assert!(b.neg.live.is_empty(), "seed {seed}");
    }
    let mut a = Node::plain("a");
    a.dial(1, &[addr]);
    drive(&mut [&mut a, &mut b], |n| n.iter().all(|n| n.ready().is_some()));
}
