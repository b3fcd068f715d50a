//! Ends of endpoints and adapters.

use rdma_transport::fabric::{Mr, PostError, ProviderKind};
use rdma_transport::status::{Code, Reason};

use crate::harness::*;

/// One end is destroyed in the middle of large transfers of the other: each operation ends exactly
/// once, then the endpoint is down, and nothing else comes.
pub fn destroyed_in_transfer<F: Fixture>() {
    let (near, far) = (Buf::pattern(F::LARGE, 30), Buf::new(F::LARGE));
    for polls in [0, 1, 3, 10, 30] {
        let mut pair = Pair::new::<F>();
        let read = pair.a.ad.caps().read;
        let lkey = pair.a.lkey(&near);
        let Mr { rkey, .. } = pair.b.register(&far, ALL);
        let half = F::LARGE / 2;
        let mut ops = vec![1, 2, 3];
        pair.a.write(1, near.mem(0, half, lkey), remote(&far, 0, rkey), None).expect("write");
        pair.a.write(2, near.mem(0, 0, lkey), remote(&far, 0, rkey), Some(1)).expect("write");
        pair.a.write(3, near.mem(0, half, lkey), remote(&far, 0, rkey), Some(2)).expect("write");
        if read {
            pair.a.read(4, near.mem(half, half, lkey), remote(&far, half, rkey)).expect("read");
            ops.push(4);
        }
        pair.a.ad.flush();
        for _ in 0..polls {
            pair.poll();
        }
        let gone = pair.b.ep;
        pair.b.ad.destroy(gone);
        // All may have ended by now.
        let ep = pair.a.ep;
        pair.a.notice_end::<F>(ep);
        let seen = pair.b.log.len();
        let status = pair.until("end of the endpoint", |p| p.a.down());
        assert_eq!((status.code, status.reason), (Code::Unavailable, Reason::PeerGone), "{status}");
        for _ in 0..100 {
            pair.poll();
        }
        assert_eq!(pair.b.log.len(), seen, "events of a destroyed endpoint");
        assert!(matches!(pair.a.log.last(), Some((_, Ev::Down(_)))), "{:?}", pair.a.log.last());
        for wr in ops {
            assert!(pair.a.done(wr).is_some(), "operation {wr} did not end");
        }
        assert_eq!(pair.a.log.len(), 1, "{:?}", pair.a.log);
        match pair.a.send(b"x") {
            Err(PostError::Failed(_)) => {}
            other => panic!("send on an endpoint that is down: {other:?}"),
        }
        // The adapters can still connect.
        let ep = pair.a.ep;
        pair.a.ad.destroy(ep);
        (pair.a.ep, pair.b.ep) = join::<F>(&mut pair.a, &mut pair.b);
        pair.a.log.clear();
        pair.b.log.clear();
        pair.until("connection", |p| (!p.a.log.is_empty() && !p.b.log.is_empty()).then_some(()));
        pair.a.log.clear();
        pair.b.log.clear();
        pair.check_alive();
    }
}

/// Messages that count as delivered arrive, although their endpoint is destroyed at once, and though the peer took
/// nothing before.
pub fn r23_what_is_delivered_arrives<F: Fixture>() {
    for count in [1, 5, 20] {
        let mut pair = Pair::new::<F>();
        for i in 0..count {
            pair.a.send(&[i; 100]).expect("send");
        }
        let Pair { mut a, mut b } = pair;
        until("delivery", || {
            a.poll();
            a.ad.has_delivered().then_some(())
        });
        let ep = a.ep;
        a.ad.destroy(ep);
        for i in 0..count {
            let arrived = until("message", || {
                b.poll();
                b.arrival()
            });
            assert_eq!(arrived, Ev::Message(vec![i; 100]));
        }
    }
}

/// Who leaves closes its memory, too, and the other side may come upon that first: it is told of the leaving.
pub fn r27_memory_of_who_leaves_is_no_refusal<F: Fixture>() {
    if F::KIND == ProviderKind::Ibverbs {
        // There the device answers, and the manager asks the peer: see `manager::doubt`.
        return;
    }
    let (near, far) = (Buf::pattern(F::LARGE, 32), Buf::new(F::LARGE));
    for polls in 0..6 {
        let mut pair = Pair::new::<F>();
        let lkey = pair.a.lkey(&near);
        let half = F::LARGE / 2;
        let mr = pair.b.register(&far, ALL);
        let rkey = mr.rkey;
        pair.a.write(1, near.mem(0, half, lkey), remote(&far, 0, rkey), None).expect("write");
        pair.a.read(2, near.mem(half, half, lkey), remote(&far, half, rkey)).expect("read");
        pair.a.ad.flush();
        for _ in 0..polls {
            pair.poll();
        }
        let ep = pair.b.ep;
        pair.b.ad.hang_up(ep);
        pair.b.ad.deregister(mr).expect("deregister");
        for _ in 0..10 {
            pair.a.poll();
        }
        // What is posted now meets closed memory, or an endpoint that is down already.
        let late = pair.a.read(3, near.mem(half, half, lkey), remote(&far, half, rkey));
        if let Err(PostError::Failed(status)) = &late {
            assert_eq!(status.code, Code::Unavailable, "{status}");
        }
        for _ in 0..10 {
            pair.a.poll();
        }
        pair.b.ad.destroy(ep);
        let ep = pair.a.ep;
        pair.a.notice_end::<F>(ep);
        let status = pair.until("end of the endpoint", |p| p.a.down());
        assert_eq!((status.code, status.reason), (Code::Unavailable, Reason::PeerGone), "{status}");
        for wr in [1, 2].into_iter().chain(late.is_ok().then_some(3)) {
            let ended = pair.a.done(wr).expect("an end");
            assert!(ended.as_ref().err().is_none_or(|s| s.code == Code::Unavailable), "{ended:?}");
        }
        let Err(PostError::Failed(status)) = pair.a.send(b"x") else { panic!("it is down") };
        assert_eq!(status.code, Code::Unavailable, "{status}");
    }
}

/// What was sent before the sender's adapter is dropped arrives, then the endpoint is down.
pub fn dropped_adapter<F: Fixture>() {
    let buf = Buf::pattern(F::LARGE, 31);
    let mut pair = Pair::new::<F>();
    let lkey = pair.a.lkey(&buf);
    pair.b.send(b"last words").expect("send");
    pair.b.poll();
    let other = Buf::new(F::LARGE);
    let Mr { rkey, .. } = pair.b.register(&other, ALL);
    pair.a.write(1, buf.mem(0, F::LARGE, lkey), remote(&other, 0, rkey), None).expect("write");
    let Pair { mut a, b } = pair;
    until("message", || {
        a.poll();
        a.arrival()
    });
    drop(b);
    let ep = a.ep;
    a.notice_end::<F>(ep);
    let status = until("end of the endpoint", || {
        a.poll();
        a.down()
    });
    assert_eq!(status.code, Code::Unavailable, "{status}");
    assert!(a.done(1).is_some());
    assert_eq!(a.log.len(), 1, "{:?}", a.log);
    drop(a);
}

/// After `destroy` no event of the endpoint comes and its memory is left alone, whatever was under
/// way; the adapter's other endpoints go on.
pub fn local_destroy<F: Fixture>() {
    let (mut near, far) = (Buf::pattern(F::LARGE, 32), Buf::new(F::LARGE));
    for polls in [0, 1, 3, 10, 30] {
        let mut pair = Pair::new::<F>();
        let read = pair.a.ad.caps().read;
        let (oa, ob) = join::<F>(&mut pair.a, &mut pair.b);
        let lkey = pair.a.lkey(&near);
        let Mr { rkey, .. } = pair.b.register(&far, ALL);
        let half = F::LARGE / 2;
        pair.until("connection", |p| (!p.a.log.is_empty() && !p.b.log.is_empty()).then_some(()));
        if read {
            pair.a.read(1, near.mem(0, half, lkey), remote(&far, 0, rkey)).expect("read");
        }
        pair.a.write(2, near.mem(half, half, lkey), remote(&far, half, rkey), None).expect("w");
        pair.b.send(b"to nobody").expect("send");
        pair.a.ad.flush();
        pair.b.ad.flush();
        for _ in 0..polls {
            pair.poll();
        }
        let gone = pair.a.ep;
        pair.a.ad.destroy(gone);
        pair.a.log.clear();
        near.fill(0x77);
        let theirs = pair.b.ep;
        pair.b.notice_end::<F>(theirs);
        pair.until("end at b", |p| p.b.down());
        for _ in 0..100 {
            pair.poll();
        }
        assert!(all(near.bytes(), 0x77), "written to after destroy");
        assert!(pair.a.log.iter().all(|(ep, _)| *ep != gone), "{:?}", pair.a.log);
        pair.a.ad.destroy(gone);
        (pair.a.ep, pair.b.ep) = (oa, ob);
        pair.a.log.clear();
        pair.b.log.clear();
        pair.check_alive();
    }
}

/// Any bytes as the peer's address: an error or the end of the endpoint, nothing worse.
pub fn garbage_addresses<F: Fixture>() {
    let mut pair = Pair::apart::<F>();
    let ep = pair.b.ad.create("a").expect("create");
    let good = pair.b.ad.address(ep).expect("address");
    let mut rng = Rng(33);
    let mut bad: Vec<Vec<u8>> = vec![vec![], vec![0], vec![0xff; 1024], vec![0; 100_000]];
    bad.extend((0..good.len()).map(|n| good[..n].to_vec()));
    bad.push([&good[..], &[0]].concat());
    for i in 0..100 {
        let mut b = good.clone();
        for _ in 0..1 + i % 4 {
            let at = rng.below(b.len().max(1));
            if let Some(byte) = b.get_mut(at) {
                *byte ^= 1 << rng.below(8);
            }
        }
        bad.push(b);
    }
    for address in bad.iter().filter(|b| **b != good) {
        let a = pair.a.ad.create("b").expect("create");
        let (sock, other) = F::sockets();
        let result = pair.a.ad.connect(a, address, true, sock);
        drop(other);
        if result.is_ok() {
            // Nobody is there: it ends, or it waits for one until it is destroyed.
            for _ in 0..50 {
                pair.poll();
            }
        }
        pair.a.ad.destroy(a);
    }
    pair.poll();
    assert!(!pair.b.log.iter().any(|(_, e)| matches!(e, Ev::Connected)), "{:?}", pair.b.log);
}

/// Nothing can be posted before the connection, and destroying then is fine.
pub fn before_connect<F: Fixture>() {
    let buf = Buf::new(64);
    let mut pair = Pair::apart::<F>();
    let ep = pair.a.ad.create("b").expect("create");
    pair.a.ep = ep;
    assert!(matches!(pair.a.send(b"x"), Err(PostError::Failed(_))));
    let r = remote(&buf, 0, 1);
    assert!(matches!(pair.a.write(1, buf.mem(0, 1, 0), r, None), Err(PostError::Failed(_))));
    assert!(matches!(pair.a.read(1, buf.mem(0, 1, 0), r), Err(PostError::Failed(_))));
    pair.poll();
    assert!(pair.a.log.is_empty(), "{:?}", pair.a.log);
    pair.a.ad.destroy(ep);
    pair.poll();
    assert!(pair.a.log.is_empty(), "{:?}", pair.a.log);
    drop(pair);
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("fd").count()
}

fn mapped_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let pages: usize = text.split(' ').next().and_then(|n| n.parse().ok()).expect("pages");
    pages * 4096
}

const CHILD: &str = "CONFORMANCE_LEAKS_CHILD";

/// Connecting and destroying 200 times leaves no descriptor and no mapping behind. Runs in a
/// process of its own, since other tests come and go in this one.
pub fn leaks<F: Fixture>() {
    if std::env::var_os(CHILD).is_none() {
        let name = format!("{}::leaks", F::NAME);
        let out = std::process::Command::new(std::env::current_exe().expect("test"))
            .args(["--exact", &name, "--test-threads=1", "--nocapture"])
            .env(CHILD, "1")
            // A thread's own arena of the C library reserves 64 MiB, whenever two threads happen to allocate at once.
            .env("MALLOC_ARENA_MAX", "1")
            .output()
            .expect("child");
        let text = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    // Several at once: where an end is noticed by a timeout, they wait for it together.
    const AT_ONCE: usize = 10;
    let dst = Buf::new(1 << 20);
    let mut pair = Pair::apart::<F>();
    let mut round = || {
        let eps: Vec<_> = (0..AT_ONCE).map(|_| join::<F>(&mut pair.a, &mut pair.b)).collect();
        pair.until("connections", |p| {
            (p.a.log.len() == AT_ONCE && p.b.log.len() == AT_ONCE).then_some(())
        });
        pair.a.log.clear();
        for (i, (ea, eb)) in eps.iter().enumerate() {
            (pair.a.ep, pair.b.ep) = (*ea, *eb);
            pair.b.log.clear();
            let mr = pair.b.register(&dst, ALL);
            let lkey = pair.a.lkey(&dst);
            pair.a.send(&[1; 4096]).expect("send");
            let (wr, r) = (i as u64, remote(&dst, 512 << 10, mr.rkey));
            pair.a.write(wr, dst.mem(0, 256 << 10, lkey), r, Some(1)).expect("write");
            pair.until("arrivals", |p| (p.b.log.len() == 2).then_some(()));
            if i.is_multiple_of(2) {
                assert_eq!(pair.done_a(wr), Ok(()));
            }
            pair.b.ad.deregister(mr).expect("deregister");
        }
        pair.b.log.clear();
        for (ea, eb) in &eps {
            pair.a.ad.destroy(*ea);
            pair.b.notice_end::<F>(*eb);
        }
        let down = |e: &(_, Ev)| matches!(e.1, Ev::Down(_));
        pair.until("ends", |p| {
            (p.b.log.iter().filter(|e| down(e)).count() == AT_ONCE).then_some(())
        });
        for (_, eb) in &eps {
            pair.b.ad.destroy(*eb);
        }
        pair = Pair::apart::<F>();
    };
    (0..2).for_each(|_| round());
    let before = (open_files(), mapped_bytes());
    (0..200 / AT_ONCE).for_each(|_| round());
    let after = (open_files(), mapped_bytes());
    assert_eq!(after.0, before.0, "open descriptors");
    // 60 KiB per cycle: below any mapping of a provider, above what allocators and sanitizers keep.
    assert!(after.1 <= before.1 + (12 << 20), "mapped {} bytes, then {}", before.1, after.1);
}
