//! Connecting through rdma_cm, and what things cost.

use std::time::{Duration, Instant};

use rdma_transport::fabric::{Access, Adapter, EpId};

use super::ends::*;

/// Connects as rdma_cm does, with events between.
pub fn join_by_cm(e: &mut Ends, passive_first: bool) -> (EpId, EpId) {
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
    peers(&dev);
}

/// Queue pairs that the kernel knows, by `rdma resource show qp`.
fn queue_pairs() -> usize {
    let out = std::process::Command::new("rdma").args(["resource", "show", "qp"]).output();
    let text = String::from_utf8(out.expect("rdma").stdout).expect("text");
    text.lines().filter(|l| l.contains("type RC")).count()
}

/// KiB of this process that are queues shared with the device: mappings of its file.
fn queues() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
    let (mut of_device, mut sum) = (false, 0);
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("Rss:") if of_device => {
                sum += words.next().and_then(|n| n.parse::<usize>().ok()).expect("KiB");
            }
            Some(first) if !first.ends_with(':') => of_device = line.contains("uverbs"),
            _ => {}
        }
    }
    sum
}

/// 256 peers of one process, connected.
fn peers(dev: &str) {
    const PEERS: usize = 256;
    let (mut a, mut b) = (Node::open(&config("alpha", dev)), Node::open(&config("beta", dev)));
    let (qps, memory, mapped) = (queue_pairs(), resident(), queues());
    let start = Instant::now();
    let eps: Vec<_> = (0..PEERS).map(|_| join(&mut a, &mut b)).collect();
    let took = start.elapsed() / PEERS as u32;
    let made = queue_pairs() - qps;
    // Both ends are in this process.
    let queues = (queues() - mapped) / PEERS / 2;
    let own = (resident() - memory) / PEERS / 2 - queues;
    println!("cost: {PEERS} peers: {made} queue pairs at both ends, {took:?} per connection");
    println!("cost: memory per connected peer: {own} KiB, and {queues} KiB of queues");
    assert_eq!(made, 2 * PEERS, "one queue pair per peer at each end");
    assert!(own <= 64, "{own} KiB per connected peer");
    let (ea, eb) = eps[PEERS - 1];
    a.ad.send(ea, &[b"last"]).expect("send");
    let mut e = Ends { a, b, ea, eb };
    assert_eq!(e.until("message", |e| e.b.message(eb)), b"last");
    for (ea, eb) in eps {
        e.a.ad.destroy(ea);
        e.b.ad.destroy(eb);
    }
    assert_eq!(queue_pairs(), qps);
}
