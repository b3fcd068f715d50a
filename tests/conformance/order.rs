//! In which order content, notices and messages arrive.

use rdma_transport::fabric::{Mem, Mr, PostError, Remote};

use crate::harness::*;

/// Places of b, which a fills one after the other: the first bytes of each, with an immediate, and a message behind.
struct Places {
    src: Buf,
    dst: Buf,
    lkey: u32,
    rkey: u32,
    /// Bytes of a place, and how many of them are filled.
    slot: usize,
    size: fn(usize) -> usize,
    /// What has arrived, twice for each place.
    seen: usize,
}

impl Places {
    /// The pair is dropped before them.
    fn new<F: Fixture>(
        n: usize,
        slot: usize,
        seed: u64,
        size: fn(usize) -> usize,
    ) -> (Places, Pair) {
        let (src, dst) = (Buf::pattern(slot * n, seed), Buf::new(slot * n));
        let mut pair = Pair::new::<F>();
        let lkey = pair.a.lkey(&src);
        let Mr { rkey, .. } = pair.b.register(&dst, ALL);
        (Places { src, dst, lkey, rkey, slot, size, seen: 0 }, pair)
    }

    /// Bytes of a place, at both ends.
    fn part(&self, i: usize, at: usize, len: usize) -> (Mem, Remote) {
        let at = self.slot * i + at;
        (self.src.mem(at, len, self.lkey), remote(&self.dst, at, self.rkey))
    }

    /// Sends the message behind a place.
    fn follow(&mut self, pair: &mut Pair, i: usize) {
        patiently(pair, |p| p.a.send(&(i as u64).to_le_bytes()));
        self.check(pair);
    }

    /// Immediates come after the data, and all arrivals in the order posted.
    fn check(&mut self, pair: &mut Pair) {
        while let Some(e) = pair.b.arrival() {
            let (i, kind) = (self.seen / 2, self.seen % 2);
            let filled = self.slot * i..self.slot * i + (self.size)(i);
            same(&self.dst.bytes()[filled.clone()], &self.src.bytes()[filled], "slot");
            match (kind, e) {
                (0, Ev::Written(imm)) => assert_eq!(imm, i as u32),
                (1, Ev::Message(m)) => assert_eq!(m, (i as u64).to_le_bytes()),
                other => panic!("arrival {}: {other:?}", self.seen),
            }
            self.seen += 1;
        }
    }

    /// All arrives, and so many operations end well.
    fn finish(&mut self, pair: &mut Pair, posted: usize) {
        let all = 2 * self.src.len() / self.slot;
        pair.until("all arrivals", |p| {
            self.check(p);
            (self.seen == all).then_some(())
        });
        for wr in 0..posted as u64 {
            assert_eq!(pair.done_a(wr), Ok(()));
        }
    }
}

pub fn write_order<F: Fixture>() {
    const N: usize = 60;
    const SLOT: usize = 200_000;
    let size = |i: usize| [0, 1, 300, 9000, 70_000, SLOT][i % 6];
    let (mut places, mut pair) = Places::new::<F>(N, SLOT, 3, size);
    for i in 0..N {
        let (wr, half) = (2 * i as u64, size(i) / 2);
        // With and without immediate: the plain one is first, and seen with the second.
        patiently(&mut pair, |p| {
            let (mem, r) = places.part(i, 0, half);
            p.a.write(wr, mem, r, None)
        });
        patiently(&mut pair, |p| {
            let (mem, r) = places.part(i, half, size(i) - half);
            p.a.write(wr + 1, mem, r, Some(i as u32))
        });
        places.follow(&mut pair, i);
    }
    places.finish(&mut pair, 2 * N);
    pair.check_alive();
}

/// Content that a post copies arrives as it was then, in its place among WRITEs and messages; what a provider does not
/// take so is written as ever.
pub fn copied_writes<F: Fixture>() {
    const N: usize = 120;
    const SLOT: usize = 10_000;
    let size = |i: usize| [0, 1, 8, 300, 4096, 8192, SLOT][i % 7];
    let (mut places, mut pair) = Places::new::<F>(N, SLOT, 5, size);
    for i in 0..N {
        let (wr, imm) = (i as u64, Some(i as u32));
        patiently(&mut pair, |p| {
            let (mem, r) = places.part(i, 0, size(i));
            if i % 3 > 0 {
                let copy = places.src.bytes()[SLOT * i..][..size(i)].to_vec();
                match p.a.ad.write_copied(p.a.ep, wr, &copy, r, imm) {
                    Err(PostError::QueueFull) => {}
                    done => return done,
                }
            }
            p.a.write(wr, mem, r, imm)
        });
        places.follow(&mut pair, i);
    }
    places.finish(&mut pair, N);
    // Refused as any other.
    let r = places.part(0, 0, 0).1;
    let wrong = Remote { rkey: r.rkey ^ 0x55, ..r };
    match pair.a.ad.write_copied(pair.a.ep, 1000, &[1; 100], wrong, Some(1)) {
        Err(PostError::QueueFull) => pair.check_alive(),
        done => {
            done.expect("posted");
            assert!(pair.done_a(1000).is_err());
        }
    }
}

/// A WRITE posted after a READ of the same range does not show in what is read, and the READ
/// shows what a WRITE before it wrote.
pub fn read_is_not_overtaken<F: Fixture>() {
    let len = F::LARGE.min(8 << 20);
    let (old, new) = (Buf::pattern(len, 5), Buf::pattern(len, 6));
    let (dst, mut there) = (Buf::new(len), Buf::new(len));
    let mut pair = Pair::new::<F>();
    if !pair.a.ad.caps().read {
        return;
    }
    let (lo, ln, ld) = (pair.a.lkey(&old), pair.a.lkey(&new), pair.a.lkey(&dst));
    let Mr { rkey, .. } = pair.b.register(&there, ALL);
    for round in 0..3 {
        there.fill(0);
        let r = remote(&there, 0, rkey);
        pair.a.write(1, old.mem(0, len, lo), r, None).expect("write");
        patiently(&mut pair, |p| p.a.read(2, dst.mem(0, len, ld), r));
        patiently(&mut pair, |p| p.a.write(3, new.mem(0, len, ln), r, Some(round)));
        patiently(&mut pair, |p| p.a.send(b"after"));
        assert_eq!(pair.done_a(2), Ok(()));
        same(dst.bytes(), old.bytes(), "what was read");
        assert_eq!((pair.done_a(1), pair.done_a(3)), (Ok(()), Ok(())));
        assert_eq!(pair.arrival_b(), Ev::Written(round));
        assert_eq!(pair.arrival_b(), Ev::Message(b"after".to_vec()));
        same(there.bytes(), new.bytes(), "what was written last");
    }
    pair.check_alive();
}
