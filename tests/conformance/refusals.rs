//! Operations that must not be carried out.

use rdma_transport::fabric::{Access, Mr, Remote};
use rdma_transport::status::{Code, Status};

use crate::harness::*;

/// Two buffers and what is needed to use them.
struct Setup {
    local: Buf,
    there: Buf,
    lkey: u32,
    reads: bool,
}

/// The buffers come first, so that they outlive the pair.
fn setup<F: Fixture>(len: usize) -> (Setup, Pair) {
    let mut pair = Pair::new::<F>();
    let local = Buf::pattern(len, 20);
    let there = Buf::pattern(len, 21);
    let lkey = pair.a.lkey(&local);
    let reads = pair.a.ad.caps().read;
    (Setup { local, there, lkey, reads }, pair)
}

impl Setup {
    /// Tries a WRITE (with and without immediate) and a READ of `len` bytes; nothing may change.
    fn refused<F: Fixture>(&mut self, pair: &mut Pair, what: &str, remote: Remote, len: usize) {
        self.refused_write::<F>(pair, what, remote, len);
        self.refused_read::<F>(pair, what, remote, len);
    }

    fn refused_write<F: Fixture>(&mut self, p: &mut Pair, what: &str, remote: Remote, len: usize) {
        let before = self.there.bytes().to_vec();
        for imm in [None, Some(5)] {
            p.a.write(1, self.local.mem(0, len, self.lkey), remote, imm).expect("post");
            let result = p.done_a(1);
            p.check_refused::<F>(&format!("WRITE {what}"), result);
            same(self.there.bytes(), &before, "memory after a refused WRITE");
            self.there.check_guard();
        }
    }

    fn refused_read<F: Fixture>(&mut self, p: &mut Pair, what: &str, remote: Remote, len: usize) {
        if !self.reads {
            return;
        }
        let before = self.local.bytes().to_vec();
        p.a.read(2, self.local.mem(0, len, self.lkey), remote).expect("post");
        let result = p.done_a(2);
        p.check_refused::<F>(&format!("READ {what}"), result);
        same(self.local.bytes(), &before, "memory after a refused READ");
    }
}

pub fn bad_keys<F: Fixture>() {
    let (mut s, mut pair) = setup::<F>(4096);
    let mr = pair.b.register(&s.there, ALL);
    let own = pair.a.register(&s.local, ALL);
    for rkey in [0, mr.rkey ^ 1, mr.rkey ^ 0x8000_0000, u32::MAX, own.rkey] {
        if rkey == mr.rkey {
            continue;
        }
        let r = remote(&s.there, 0, rkey);
        s.refused::<F>(&mut pair, &format!("with key {rkey:#x}, not {:#x}", mr.rkey), r, 64);
    }
    drop(pair);
}

pub fn ranges<F: Fixture>() {
    const LEN: usize = 256 << 10;
    let (mut s, mut pair) = setup::<F>(LEN);
    for (at, len) in [(4096, 8192), (100, 1), (1, LEN / 2)] {
        let base = s.there.addr();
        let cases = |rkey| {
            let r = |addr: u64| Remote { addr, rkey };
            let start = base + at as u64;
            [
                ("one byte before", r(start - 1), len),
                ("one byte in front of it", r(start - 1), 1),
                ("one byte behind", r(start + 1), len),
                ("one byte behind it", r(start + len as u64), 1),
                ("one byte too long", r(start), len + 1),
                ("much too long", r(start), LEN),
                ("at address 0", r(0), len),
                ("at the last address", r(u64::MAX), len),
                ("whose end overflows", r(u64::MAX - len as u64 + 1), len),
                ("whose end overflows into it", r(u64::MAX - 3), 64),
                ("at the sign bit", r(start | 1 << 63), len),
            ]
        };
        for i in 0..cases(0).len() {
            let Mr { rkey, .. } = pair.b.register_range(&s.there, at, len, ALL);
            let (what, remote, n) = cases(rkey)[i];
            s.refused_write::<F>(&mut pair, what, remote, n);
            let Mr { rkey, .. } = pair.b.register_range(&s.there, at, len, ALL);
            s.refused_read::<F>(&mut pair, what, cases(rkey)[i].1, n);
        }
    }
    drop(pair);
}

pub fn access_bits<F: Fixture>() {
    let (mut s, mut pair) = setup::<F>(1 << 20);
    let len = s.there.len();
    let (lw, rr, rw) = (Access::LOCAL_WRITE, Access::REMOTE_READ, Access::REMOTE_WRITE);
    for access in [Access::empty(), lw, rr, lw | rr] {
        let Mr { rkey, .. } = pair.b.register(&s.there, access);
        let r = remote(&s.there, 0, rkey);
        s.refused_write::<F>(&mut pair, &format!("to {access:?}"), r, len);
    }
    for access in [Access::empty(), lw, lw | rw] {
        let Mr { rkey, .. } = pair.b.register(&s.there, access);
        let r = remote(&s.there, 0, rkey);
        s.refused_read::<F>(&mut pair, &format!("of {access:?}"), r, len);
    }
    // What the bits allow works.
    let Mr { rkey, .. } = pair.b.register(&s.there, lw | rw);
    let r = remote(&s.there, 0, rkey);
    pair.a.write(1, s.local.mem(0, len, s.lkey), r, None).expect("write");
    assert_eq!(pair.done_a(1), Ok(()));
    same(s.there.bytes(), s.local.bytes(), "what was written");
    if s.reads {
        let Mr { rkey, .. } = pair.b.register(&s.there, rr);
        s.local.fill(0);
        let r = remote(&s.there, 0, rkey);
        pair.a.read(2, s.local.mem(0, len, s.lkey), r).expect("read");
        assert_eq!(pair.done_a(2), Ok(()));
        same(s.local.bytes(), s.there.bytes(), "what was read");
    }
    pair.check_alive();
}

/// As on RDMA hardware, an empty range touches nothing and needs no valid key; but where keys are looked at, one that is named is.
pub fn empty_ranges<F: Fixture>() {
    let (s, mut pair) = setup::<F>(4096);
    let Mr { rkey, .. } = pair.b.register(&s.there, ALL);
    let r = remote(&s.there, 4096, rkey);
    pair.a.write(1, s.local.mem(4096, 0, s.lkey), r, Some(9)).expect("write");
    assert_eq!(pair.done_a(1), Ok(()));
    assert_eq!(pair.arrival_b(), Ev::Written(9));
    if s.reads {
        pair.a.read(2, s.local.mem(0, 0, s.lkey), r).expect("read");
        assert_eq!(pair.done_a(2), Ok(()));
    }
    if F::EMPTY_IS_FREE {
        let r = Remote { addr: 0, rkey: 0 };
        pair.a.write(3, s.local.mem(0, 0, s.lkey), r, Some(10)).expect("write");
        assert_eq!(pair.done_a(3), Ok(()));
        assert_eq!(pair.arrival_b(), Ev::Written(10));
        if s.reads {
            pair.a.read(4, s.local.mem(0, 0, s.lkey), r).expect("read");
            assert_eq!(pair.done_a(4), Ok(()));
        }
    }
    if pair.a.ad.caps().windows {
        let none = pair.b.register_range(&s.there, 0, 0, ALL);
        let r = remote(&s.there, 0, none.rkey);
        pair.a.write(5, s.local.mem(0, 0, s.lkey), r, Some(11)).expect("write");
        assert_eq!(pair.done_a(5), Ok(()));
        assert_eq!(pair.arrival_b(), Ev::Written(11));
        pair.b.ad.deregister(none).expect("deregister");
        for (wr, imm) in [(6, Some(12)), (7, None)] {
            pair.a.write(wr, s.local.mem(0, 0, s.lkey), r, imm).expect("write");
            assert!(pair.done_a(wr).is_err(), "a key that is gone");
        }
    }
    pair.check_alive();
}

pub fn deregistered<F: Fixture>() {
    let (mut s, mut pair) = setup::<F>(1 << 20);
    for len in [1, 4096, 1 << 20] {
        let mr = pair.b.register(&s.there, ALL);
        pair.a
            .write(1, s.local.mem(0, len, s.lkey), remote(&s.there, 0, mr.rkey), None)
            .expect("w");
        assert_eq!(pair.done_a(1), Ok(()));
        pair.b.ad.deregister(mr).expect("deregister");
        s.refused::<F>(&mut pair, "of a closed region", remote(&s.there, 0, mr.rkey), len);
    }
    // A new region at the same place has another key.
    let old = pair.b.register(&s.there, ALL);
    pair.b.ad.deregister(old).expect("deregister");
    let new = pair.b.register(&s.there, ALL);
    if F::SURVIVES {
        assert_ne!(old.rkey, new.rkey);
        s.refused::<F>(&mut pair, "with an old key", remote(&s.there, 0, old.rkey), 64);
        assert!(pair.b.ad.deregister(new).is_ok());
    }
    drop(pair);
}

/// The end of an operation during which its region was closed: refused, or it was complete.
fn check_closed(result: &Result<(), Status>) {
    if let Err(s) = result {
        assert!(matches!(s.code, Code::PermissionDenied | Code::Unavailable), "{s}");
    }
}

/// The target's region is closed while a large WRITE arrives: not one byte changes afterwards.
pub fn closed_in_write<F: Fixture>() {
    let src = Buf::pattern(F::LARGE, 22);
    let mut dst = Buf::new(F::LARGE);
    for (round, start) in [0, 1, 7, 40].map(|n| n * (F::LARGE / 64)).into_iter().enumerate() {
        let mut pair = Pair::new::<F>();
        let lkey = pair.a.lkey(&src);
        dst.fill(0);
        let mr = pair.b.register(&dst, ALL);
        let imm = Some(round as u32);
        pair.a.write(1, src.mem(0, F::LARGE, lkey), remote(&dst, 0, mr.rkey), imm).expect("write");
        pair.a.ad.flush();
        // Close it once the byte at `start` has arrived, if that can be seen at all.
        let mut early = None;
        pair.until("first bytes", |p| {
            early = p.a.done(1);
            let there = dst.bytes()[start..start + 64] == src.bytes()[start..start + 64];
            (there || early.is_some()).then_some(())
        });
        pair.b.ad.deregister(mr).expect("deregister");
        dst.fill(0x5a);
        let result = early.clone().unwrap_or_else(|| pair.done_a(1));
        check_closed(&result);
        for _ in 0..200 {
            pair.poll();
        }
        assert!(all(dst.bytes(), 0x5a), "a closed region was written to");
        let told = pair.b.arrival();
        assert_eq!(told.is_some(), result.is_ok(), "{told:?} and {result:?}");
        if F::SURVIVES {
            pair.check_alive();
        }
    }
}

/// The source's region is closed while a large READ is answered: nothing is read afterwards.
pub fn closed_in_read<F: Fixture>() {
    let mut src = Buf::new(F::LARGE);
    let mut dst = Buf::new(F::LARGE);
    for start in [0, 3, 40].map(|n| n * (F::LARGE / 64)) {
        let mut pair = Pair::new::<F>();
        if !pair.a.ad.caps().read {
            return;
        }
        let lkey = pair.a.lkey(&dst);
        src.fill(1);
        dst.fill(0);
        let mr = pair.b.register(&src, ALL);
        pair.a.read(1, dst.mem(0, F::LARGE, lkey), remote(&src, 0, mr.rkey)).expect("read");
        let mut early = None;
        pair.until("first bytes", |p| {
            early = p.a.done(1);
            (dst.peek(start) == 1 || early.is_some()).then_some(())
        });
        pair.b.ad.deregister(mr).expect("deregister");
        src.fill(2);
        let result = early.clone().unwrap_or_else(|| pair.done_a(1));
        check_closed(&result);
        assert!(!dst.bytes().contains(&2), "a closed region was read");
        if result.is_ok() {
            assert!(all(dst.bytes(), 1), "a READ ended well without its bytes");
        }
        if F::SURVIVES {
            pair.check_alive();
        }
    }
}

/// Refused operations between good ones: each ends as it should, once, and order is kept.
pub fn refusals_among_others<F: Fixture>() {
    if !F::SURVIVES {
        return;
    }
    const N: usize = 120;
    const LEN: usize = 50_000;
    let src = Buf::pattern(N * LEN, 23);
    let dst = Buf::new(N * LEN);
    let mut pair = Pair::new::<F>();
    let lkey = pair.a.lkey(&src);
    let good = pair.b.register(&dst, ALL);
    let closed = pair.b.register(&dst, Access::empty());
    let bad = |i: usize| i % 3 == 1;
    for i in 0..N {
        let rkey = if bad(i) { closed.rkey } else { good.rkey };
        patiently(&mut pair, |p| {
            let r = remote(&dst, i * LEN, rkey);
            p.a.write(i as u64, src.mem(i * LEN, LEN, lkey), r, Some(i as u32))
        });
    }
    for i in 0..N {
        match pair.done_a(i as u64) {
            Ok(()) => assert!(!bad(i), "operation {i} was accepted"),
            Err(s) => assert!(bad(i) && s.code == Code::PermissionDenied, "operation {i}: {s}"),
        }
    }
    for i in (0..N).filter(|&i| !bad(i)) {
        assert_eq!(pair.arrival_b(), Ev::Written(i as u32));
    }
    for i in 0..N {
        let range = i * LEN..(i + 1) * LEN;
        match bad(i) {
            true => assert!(all(&dst.bytes()[range], 0)),
            false => same(&dst.bytes()[range.clone()], &src.bytes()[range], "slot"),
        }
    }
    pair.check_alive();
}
