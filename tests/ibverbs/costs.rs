//! Connecting through rdma_cm, and what things cost.

use std::time::{Duration, Instant};

use rdma_transport::fabric::{Access, Adapter, EpId};

use super::ends::*;

/// Connects as rdma_cm does, with events between.
fn join_by_cm(e: &mut Ends, passive_first: bool) -> (EpId, EpId) {
    let (ea, eb) =
        (e.a.ad.create("beta").expect("create"), e.b.ad.create("alpha").expect("create"));
    let (aa, ab) = (e.a.ad.address(ea).expect("address"), e.b.ad.address(eb).expect("address"));
    if passive_first {
        e.b.ad.connect(eb, &aa, false, None).expect("connect");
    }
    e.a.ad.connect(ea, &ab, true, None).expect("connect");
    if !passive_first {
        // The request comes before the passive end is told of it.
        for _ in 0..200 {
            e.a.poll();
            e.b.poll();
            std::thread::sleep(Duration::from_millis(1));
        }
        e.b.ad.connect(eb, &aa, false, None).expect("connect");
    }
    let up = |n: &mut Node, ep| n.take(ep, |v| (*v == Ev::Connected).then_some(()));
    e.until("connection of a", |e| up(&mut e.a, ea));
    e.until("connection of b", |e| up(&mut e.b, eb));
    (ea, eb)
}

#[test]
fn rdma_cm_connects_and_tells_of_the_end() {
    let Some((da, db)) = devices() else { return };
    let (mut ca, mut cb) = (config("alpha", &da), config("beta", &db));
    (ca.ib.use_rdma_cm, cb.ib.use_rdma_cm) = (true, true);
    let (a, b) = (Node::open(&ca), Node::open(&cb));
    let mut e = Ends { a, b, ea: EpId(0), eb: EpId(0) };
    for passive_first in [true, false, true] {
        (e.ea, e.eb) = join_by_cm(&mut e, passive_first);
        e.check_alive();
        let src: Vec<u8> = (0..100_000).map(|i: u32| (i * 3) as u8).collect();
        let dst = vec![0u8; src.len()];
        let ms = e.a.register(&src, Access::empty());
        let md = e.b.register(&dst, Access::REMOTE_WRITE);
        e.a.ad.write(e.ea, 1, mem(&src, ms), remote(&dst, 0, md), None).expect("write");
        assert_eq!(e.done_a(1), Ok(()));
        assert!(src == dst);
        e.a.ad.deregister(ms).expect("deregister");
        e.b.ad.deregister(md).expect("deregister");
        e.b.ad.send(e.eb, &[b"last words"]).expect("send");
        e.b.ad.flush();
        let (ea, eb) = (e.ea, e.eb);
        e.until("last words", |e| e.a.message(ea));
        e.b.ad.destroy(eb);
        let s = e.until("end", |e| e.a.down(ea));
        assert!(s.message.contains("disconnected"), "{s}");
        e.a.ad.destroy(ea);
    }
    // An address of the other way to connect is refused.
    let ep = e.a.ad.create("x").expect("create");
    assert!(e.a.ad.connect(ep, &[0; 40], true, None).is_err());
    e.a.ad.destroy(ep);
    // Nobody listens there.
    let (ep, mut far) = (e.a.ad.create("x").expect("create"), e.b.ad.address(EpId(0)));
    if let Ok(address) = &mut far {
        address[24] ^= 1;
    }
    e.a.ad.destroy(ep);
}

fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("statm");
    text.split(' ').nth(1).and_then(|n| n.parse::<usize>().ok()).expect("pages") * 4
}

#[test]
fn costs() {
    let Some((dev, _)) = devices() else { return };
    println!();
    let start = Instant::now();
    let mut n = Node::open(&config("alpha", &dev));
    println!("cost: open {:?}", start.elapsed());
    for len in [4096, 1 << 20, 16 << 20] {
        let buf = vec![1u8; len];
        let start = Instant::now();
        let mr = n.register(&buf, Access::all());
        let there = start.elapsed();
        n.ad.deregister(mr).expect("deregister");
        println!("cost: register {len} bytes {there:?}, deregister {:?}", start.elapsed() - there);
    }
    // 256 peers, each of a queue pair; the queue's own memory is the device's matter.
    const PEERS: usize = 256;
    let before = resident();
    let start = Instant::now();
    let eps: Vec<EpId> = (0..PEERS).map(|_| n.ad.create("peer").expect("create")).collect();
    let each = (resident() - before) / PEERS;
    println!("cost: {PEERS} endpoints, each {:?}, {each} KiB", start.elapsed() / PEERS as u32);
    // 68 KiB of receive buffers; the rest is queues of depth 128 and their completions.
    assert!(each <= 512, "{each} KiB per endpoint");
    eps.into_iter().for_each(|ep| n.ad.destroy(ep));
}
