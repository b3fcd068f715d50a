//! A random walk: everything mixed, against a model of the memory.

use std::collections::VecDeque;

use rdma_transport::fabric::{Mr, PostError, Remote};
use rdma_transport::status::Code;

use crate::harness::*;

const SLOTS: usize = 12;
const SLOT: usize = 300_000;
const STEPS: usize = 3000;

/// What an operation under way does, and to which slot.
enum Op {
    Write { slot: usize, at: usize, from: usize, len: usize },
    Read { slot: usize, at: usize, len: usize },
    Bad,
}

/// One direction: operations of an initiator on a target's memory.
struct Side {
    src: Buf,
    /// Results of READs, a slot each, and one that no READ may fill.
    got: Buf,
    /// The target's memory, and what should be in it.
    there: Buf,
    model: Vec<u8>,
    mr: Option<Mr>,
    lkeys: (u32, u32),
    under_way: Vec<(u64, Op)>,
    expect: VecDeque<Ev>,
    next: u64,
}

impl Side {
    fn new(seed: u64) -> Side {
        let there = Buf::pattern(SLOTS * SLOT, seed);
        Side {
            src: Buf::pattern(SLOT, seed ^ 1),
            got: Buf::new((SLOTS + 1) * SLOT),
            model: there.bytes().to_vec(),
            there,
            mr: None,
            lkeys: (0, 0),
            under_way: Vec::new(),
            expect: VecDeque::new(),
            next: 0,
        }
    }

    fn free_slot(&self, rng: &mut Rng) -> Option<usize> {
        let slot = rng.below(SLOTS);
        let taken = self.under_way.iter().any(|(_, op)| match op {
            Op::Write { slot: s, .. } | Op::Read { slot: s, .. } => *s == slot,
            Op::Bad => false,
        });
        (!taken).then_some(slot)
    }

    /// Posts something at random.
    fn post<F: Fixture>(&mut self, rng: &mut Rng, me: &mut Node, peer: &mut Node) {
        let mr = *self.mr.get_or_insert_with(|| peer.register(&self.there, ALL));
        let len = match rng.below(4) {
            0 => rng.below(64),
            1 => rng.below(5000),
            _ => rng.below(SLOT),
        };
        let at = rng.below(SLOT - len + 1);
        let wr = self.next;
        let accepted = match rng.below(10) {
            0..3 => {
                let max = me.ad.caps().max_send;
                let m = [&wr.to_le_bytes()[..], &self.src.bytes()[..len.min(max - 8)]].concat();
                let r = me.send(&m);
                if r.is_ok() {
                    self.expect.push_back(Ev::Message(m));
                }
                r
            }
            3..6 => {
                let Some(slot) = self.free_slot(rng) else { return };
                let from = rng.below(SLOT - len + 1);
                let imm = (rng.below(2) == 0).then_some(rng.next() as u32);
                let mem = self.src.mem(from, len, self.lkeys.0);
                let r = me.write(wr, mem, remote(&self.there, slot * SLOT + at, mr.rkey), imm);
                if r.is_ok() {
                    self.expect.extend(imm.map(Ev::Written));
                    self.under_way.push((wr, Op::Write { slot, at, from, len }));
                }
                r
            }
            6..8 if me.ad.caps().read => {
                let Some(slot) = self.free_slot(rng) else { return };
                let mem = self.got.mem(slot * SLOT + at, len, self.lkeys.1);
                let r = me.read(wr, mem, remote(&self.there, slot * SLOT + at, mr.rkey));
                if r.is_ok() {
                    self.under_way.push((wr, Op::Read { slot, at, len }));
                }
                r
            }
            8 if F::SURVIVES => {
                let r = match rng.below(3) {
                    0 => Remote { addr: self.there.addr(), rkey: mr.rkey ^ (1 << rng.below(32)) },
                    1 => Remote { addr: self.there.addr().wrapping_sub(1), rkey: mr.rkey },
                    _ => Remote { addr: rng.next() | 1 << 63, rkey: mr.rkey },
                };
                let len = len.max(1);
                let r = match me.ad.caps().read && rng.below(2) == 0 {
                    true => me.read(wr, self.got.mem(SLOTS * SLOT, len, self.lkeys.1), r),
                    false => me.write(wr, self.src.mem(0, len, self.lkeys.0), r, Some(1)),
                };
                if r.is_ok() {
                    self.under_way.push((wr, Op::Bad));
                }
                r
            }
            9 if self.under_way.is_empty() => {
                // The region changes its key between operations.
                if let Some(mr) = self.mr.take() {
                    peer.ad.deregister(mr).expect("deregister");
                }
                return;
            }
            _ => return,
        };
        match accepted {
            Ok(()) => self.next += 1,
            Err(PostError::QueueFull) => {}
            Err(e) => panic!("post: {e:?}"),
        }
    }

    /// Checks what was reported at both ends.
    fn check(&mut self, me: &mut Node, peer: &mut Node) {
        while let Some(e) = peer.arrival() {
            assert!(self.expect.pop_front() == Some(e), "an arrival out of order or damaged");
        }
        let mut i = 0;
        while i < self.under_way.len() {
            let Some(result) = me.done(self.under_way[i].0) else {
                i += 1;
                continue;
            };
            match (self.under_way.swap_remove(i).1, result) {
                (Op::Bad, Err(s)) => assert_eq!(s.code, Code::PermissionDenied, "{s}"),
                (Op::Write { slot, at, from, len }, Ok(())) => {
                    let new = &self.src.bytes()[from..from + len];
                    self.model[slot * SLOT + at..][..len].copy_from_slice(new);
                    same(&self.there.bytes()[slot * SLOT + at..][..len], new, "written range");
                }
                (Op::Read { slot, at, len }, Ok(())) => {
                    let range = slot * SLOT + at..slot * SLOT + at + len;
                    same(&self.got.bytes()[range.clone()], &self.model[range], "range read");
                }
                (Op::Bad, Ok(())) => panic!("a bad operation was accepted"),
                (_, Err(s)) => panic!("a good operation failed: {s}"),
            }
        }
    }
}

pub fn walk<F: Fixture>() {
    let given = std::env::var("CONFORMANCE_SEED").ok().and_then(|s| s.parse().ok());
    let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |d| d.as_nanos() as u64);
    let seed = given.unwrap_or(now);
    println!("CONFORMANCE_SEED={seed}");
    let mut rng = Rng(seed);
    // Two connections of the same adapters; on each, both ends are initiators.
    let mut sides: Vec<Side> = (0..4).map(|i| Side::new(seed ^ (i << 8))).collect();
    let mut pair = Pair::new::<F>();
    let first = (pair.a.ep, pair.b.ep);
    let second = join::<F>(&mut pair.a, &mut pair.b);
    pair.until("connection", |p| (!p.a.log.is_empty() && !p.b.log.is_empty()).then_some(()));
    let mut logs: [Vec<(_, Ev)>; 4] = Default::default();
    for (i, side) in sides.iter_mut().enumerate() {
        let node = if i % 2 == 0 { &mut pair.a } else { &mut pair.b };
        side.lkeys = (node.lkey(&side.src), node.lkey(&side.got));
        // Tags differ between the connections of an adapter.
        side.next = (i as u64) << 32;
    }
    pair.a.log.clear();
    pair.b.log.clear();
    for step in 0.. {
        // Which connection; the logs of the other one are put aside.
        let c = rng.below(2);
        (pair.a.ep, pair.b.ep) = if c == 0 { first } else { second };
        for (n, node) in [&mut pair.a, &mut pair.b].into_iter().enumerate() {
            let ep = node.ep;
            let all = std::mem::take(&mut node.log);
            let (mine, other): (Vec<_>, Vec<_>) = all.into_iter().partition(|(e, _)| *e == ep);
            node.log.append(&mut logs[2 * c + n]);
            node.log.extend(mine);
            logs[2 * (1 - c) + n].extend(other);
        }
        let Pair { a, b } = &mut pair;
        if step < STEPS {
            for _ in 0..rng.below(6) {
                sides[2 * c].post::<F>(&mut rng, a, b);
                sides[2 * c + 1].post::<F>(&mut rng, b, a);
            }
        }
        for _ in 0..rng.below(4) {
            if rng.below(2) == 0 {
                a.poll()
            } else {
                b.poll()
            }
            if rng.below(8) == 0 {
                a.ad.arm();
            }
        }
        // Events of the other connection wait for their turn.
        for node in [&mut *a, &mut *b] {
            assert!(node.down().is_none(), "{:?}", node.down());
        }
        let keep = |n: &mut Node| {
            let ep = n.ep;
            let all = std::mem::take(&mut n.log);
            let (mine, other) = all.into_iter().partition(|(e, _)| *e == ep);
            n.log = mine;
            other
        };
        let (oa, ob): (Vec<_>, Vec<_>) = (keep(a), keep(b));
        sides[2 * c].check(a, b);
        sides[2 * c + 1].check(b, a);
        assert!(a.log.is_empty() && b.log.is_empty(), "{:?} {:?}", a.log, b.log);
        logs[2 * (1 - c)].extend(oa);
        logs[2 * (1 - c) + 1].extend(ob);
        let quiet = |s: &Side| s.under_way.is_empty() && s.expect.is_empty();
        if step >= STEPS && sides.iter().all(quiet) {
            break;
        }
        assert!(step < STEPS + 2_000_000, "operations do not end");
    }
    for side in &sides {
        same(side.there.bytes(), &side.model, "memory at the end");
        assert!(all(&side.got.bytes()[SLOTS * SLOT..], 0), "a refused READ brought something");
    }
    assert!(sides.iter().all(|s| s.next & 0xffff_ffff > 50), "the walk did almost nothing");
}
