//! What works.

use std::collections::HashSet;

use rdma_transport::fabric::{Mr, PostError, ProviderKind, Remote};
use rdma_transport::status::Code;

use crate::harness::*;

pub fn connect<F: Fixture>() {
    let mut pair = Pair::new::<F>();
    let caps = pair.a.ad.caps();
    assert_eq!(caps.provider, F::KIND);
    assert!(caps.max_send >= 4096 && caps.eager_max <= caps.max_send && caps.recv_depth > 0);
    pair.check_alive();
}

pub fn messages<F: Fixture>() {
    let mut pair = Pair::new::<F>();
    let max = pair.a.ad.caps().max_send;
    let content = Buf::pattern(max, 1);
    let mut sizes = vec![0, 1, 2, 7, 8, 9, 63, 64, 65, 4095, 4096, 4097, max - 1, max, 0, 1, max];
    sizes.extend((0..200).map(|i| i * 37 % 3000));
    let (mut sent, mut got) = (0, 0);
    pair.until("all messages", |p| {
        while sent < sizes.len() {
            match p.a.send(&content.bytes()[..sizes[sent]]) {
                Ok(()) => sent += 1,
                Err(PostError::QueueFull) => break,
                Err(e) => panic!("send of {} bytes: {e:?}", sizes[sent]),
            }
        }
        while let Some(e) = p.b.arrival() {
            let Ev::Message(m) = e else { panic!("{e:?}") };
            same(&m, &content.bytes()[..sizes[got]], &format!("message {got}"));
            got += 1;
        }
        (got == sizes.len()).then_some(())
    });
    pair.check_alive();
}

pub fn message_parts<F: Fixture>() {
    let mut pair = Pair::new::<F>();
    let ep = pair.a.ep;
    pair.a.ad.send(ep, &[b"ab", b"", b"c", &[7; 5000], b"end"]).expect("send");
    let want = [b"abc".as_slice(), &[7; 5000], b"end"].concat();
    assert_eq!(pair.arrival_b(), Ev::Message(want));
    pair.a.ad.send(ep, &[]).expect("send");
    assert_eq!(pair.arrival_b(), Ev::Message(vec![]));
    let long = vec![0; pair.a.ad.caps().max_send + 1];
    match pair.a.ad.send(ep, &[&long[1..], &[1]]) {
        Err(PostError::Failed(s)) => assert_eq!(s.code, Code::InvalidArgument),
        other => panic!("a message that is too long: {other:?}"),
    }
    pair.check_alive();
}

/// A peer that does not poll fills the queue; nothing is lost when it polls again.
pub fn full_queue<F: Fixture>() {
    for len in [0usize, 100, 8192] {
        let mut pair = Pair::new::<F>();
        let mut sent = 0u64;
        let message = |n: u64| [&n.to_le_bytes()[..], &vec![n as u8; len]].concat();
        loop {
            match pair.a.send(&message(sent)) {
                Ok(()) => sent += 1,
                Err(PostError::QueueFull) => break,
                Err(e) => panic!("{e:?}"),
            }
            if sent.is_multiple_of(64) {
                pair.a.poll();
            }
            assert!(sent < 4_000_000, "the queue has no bound");
        }
        assert!(sent > 0, "not one message fits");
        let mut seen = 0;
        pair.until("all messages", |p| {
            for (_, e) in p.b.log.drain(..) {
                assert!(e == Ev::Message(message(seen)), "message {seen} of {sent}: {e:?}");
                seen += 1;
            }
            (seen == sent).then_some(())
        });
        pair.check_alive();
    }
}

pub fn writes<F: Fixture>() {
    let src = Buf::pattern(F::LARGE, 2);
    let mut dst = Buf::new(F::LARGE);
    let mut pair = Pair::new::<F>();
    let lkey = pair.a.lkey(&src);
    let Mr { rkey, .. } = pair.b.register(&dst, ALL);
    for (wr, len) in [0, 1, 4096, 1 << 20, (1 << 20) + 1, F::LARGE].into_iter().enumerate() {
        for at in [0, (F::LARGE - len).min(13)] {
            dst.fill(0);
            let remote = remote(&dst, at, rkey);
            pair.a.write(wr as u64, src.mem(at, len, lkey), remote, None).expect("write");
            assert_eq!(pair.done_a(wr as u64), Ok(()));
            same(&dst.bytes()[at..at + len], &src.bytes()[at..at + len], "written range");
            assert!(all(&dst.bytes()[..at], 0));
            assert!(all(&dst.bytes()[at + len..], 0));
        }
    }
    pair.check_alive();
}

pub fn immediates<F: Fixture>() {
    let buf = Buf::new(64);
    let mut pair = Pair::new::<F>();
    let lkey = pair.a.lkey(&buf);
    let Mr { rkey, .. } = pair.b.register(&buf, ALL);
    for (wr, imm) in [0, 1, 0x8000_0000, u32::MAX, 0x0102_0304].into_iter().enumerate() {
        let mem = buf.mem(0, wr * 3, lkey);
        pair.a.write(wr as u64, mem, remote(&buf, 32, rkey), Some(imm)).expect("write");
        assert_eq!(pair.arrival_b(), Ev::Written(imm));
        assert_eq!(pair.done_a(wr as u64), Ok(()));
    }
    pair.check_alive();
}

pub fn reads<F: Fixture>() {
    let src = Buf::pattern(F::LARGE, 4);
    let mut dst = Buf::new(F::LARGE);
    let mut pair = Pair::new::<F>();
    if !pair.a.ad.caps().read {
        return;
    }
    let lkey = pair.a.lkey(&dst);
    let Mr { rkey, .. } = pair.b.register(&src, ALL);
    for (wr, len) in [0, 1, 4096, 1 << 20, (1 << 20) + 1, F::LARGE].into_iter().enumerate() {
        for at in [0, (F::LARGE - len).min(13)] {
            dst.fill(0);
            let remote = remote(&src, at, rkey);
            pair.a.read(wr as u64, dst.mem(at, len, lkey), remote).expect("read");
            assert_eq!(pair.done_a(wr as u64), Ok(()));
            same(&dst.bytes()[at..at + len], &src.bytes()[at..at + len], "range read");
            assert!(all(&dst.bytes()[..at], 0));
            assert!(all(&dst.bytes()[at + len..], 0));
        }
    }
    pair.check_alive();
}

/// Large WRITEs and READs of both ends at once.
pub fn both_directions<F: Fixture>() {
    let len = F::LARGE / 4;
    let (sa, sb) = (Buf::pattern(len, 7), Buf::pattern(len, 8));
    let (wa, wb, ra, rb) = (Buf::new(len), Buf::new(len), Buf::new(len), Buf::new(len));
    let mut pair = Pair::new::<F>();
    let read = pair.a.ad.caps().read;
    let (ka, kb) = (pair.a.register(&sa, ALL), pair.b.register(&sb, ALL));
    let (kwa, kwb) = (pair.a.register(&wa, ALL), pair.b.register(&wb, ALL));
    let (lra, lrb) = (pair.a.lkey(&ra), pair.b.lkey(&rb));
    pair.a.write(1, sa.mem(0, len, ka.lkey), remote(&wb, 0, kwb.rkey), Some(1)).expect("write");
    pair.b.write(1, sb.mem(0, len, kb.lkey), remote(&wa, 0, kwa.rkey), Some(2)).expect("write");
    if read {
        pair.a.read(2, ra.mem(0, len, lra), remote(&sb, 0, kb.rkey)).expect("read");
        pair.b.read(2, rb.mem(0, len, lrb), remote(&sa, 0, ka.rkey)).expect("read");
    }
    let mut left: HashSet<_> = [(0, 1), (1, 1)].into();
    if read {
        left.extend([(0, 2), (1, 2)]);
    }
    pair.until("all operations", |p| {
        for (n, node) in [&mut p.a, &mut p.b].into_iter().enumerate() {
            for wr in [1, 2] {
                if let Some(result) = node.done(wr) {
                    assert_eq!(result, Ok(()));
                    assert!(left.remove(&(n, wr)), "operation {wr} of {n} ended twice");
                }
            }
        }
        left.is_empty().then_some(())
    });
    assert_eq!(pair.arrival_b(), Ev::Written(1));
    assert_eq!(pair.until("immediate at a", |p| p.a.arrival()), Ev::Written(2));
    same(wb.bytes(), sa.bytes(), "written by a");
    same(wa.bytes(), sb.bytes(), "written by b");
    if read {
        same(ra.bytes(), sb.bytes(), "read by a");
        same(rb.bytes(), sa.bytes(), "read by b");
    }
    pair.check_alive();
}

pub fn many_endpoints<F: Fixture>() {
    const N: usize = 64;
    let dst = Buf::new(N * 8);
    let src = Buf::pattern(N * 8, 9);
    let mut pair = Pair::apart::<F>();
    let eps: Vec<_> = (0..N).map(|_| join::<F>(&mut pair.a, &mut pair.b)).collect();
    pair.until("connections", |p| (p.a.log.len() == N && p.b.log.len() == N).then_some(()));
    pair.a.log.clear();
    pair.b.log.clear();
    let lkey = pair.a.lkey(&src);
    let Mr { rkey, .. } = pair.b.register(&dst, ALL);
    for (i, (ea, eb)) in eps.iter().enumerate() {
        pair.a.ad.send(*ea, &[format!("to {i}").as_bytes()]).expect("send");
        let mem = src.mem(i * 8, 8, lkey);
        pair.a.ad.write(*ea, i as u64, mem, remote(&dst, i * 8, rkey), Some(i as u32)).expect("w");
        pair.b.ad.send(*eb, &[format!("back {i}").as_bytes()]).expect("send");
    }
    pair.until("everything", |p| (p.a.log.len() >= 2 * N && p.b.log.len() >= 2 * N).then_some(()));
    for (i, (ea, eb)) in eps.iter().enumerate() {
        let of = |n: &Node, ep| -> Vec<Ev> {
            n.log.iter().filter(|(e, _)| *e == ep).map(|(_, ev)| ev.clone()).collect()
        };
        let back = Ev::Message(format!("back {i}").into_bytes());
        let at_a = of(&pair.a, *ea);
        assert!(at_a.contains(&back) && at_a.contains(&Ev::Done(i as u64, Ok(()))), "{at_a:?}");
        let to = Ev::Message(format!("to {i}").into_bytes());
        assert_eq!(of(&pair.b, *eb), [to, Ev::Written(i as u32)]);
    }
    same(dst.bytes(), src.bytes(), "written by 64 endpoints");
    // Half of them go, the others stay.
    for (ea, _) in eps.iter().step_by(2) {
        pair.a.ad.destroy(*ea);
    }
    pair.a.log.clear();
    pair.b.log.clear();
    for (_, eb) in eps.iter().step_by(2) {
        pair.b.notice_end::<F>(*eb);
    }
    pair.until("ends", |p| (p.b.log.len() == N / 2).then_some(()));
    for (ea, _) in eps.iter().skip(1).step_by(2) {
        pair.a.ad.send(*ea, &[b"still"]).expect("send");
    }
    pair.until("messages", |p| (p.b.log.len() == N).then_some(()));
    assert!(pair.a.log.is_empty(), "{:?}", pair.a.log);
}

pub fn wrong_use<F: Fixture>() {
    let buf = Buf::new(64);
    let mut pair = Pair::new::<F>();
    let none = rdma_transport::fabric::EpId(0x7fff_0000);
    let failed = |r: Result<(), PostError>| match r {
        Err(PostError::Failed(_)) => {}
        other => panic!("{other:?}"),
    };
    failed(pair.a.ad.send(none, &[b"x"]));
    let r = Remote { addr: buf.addr(), rkey: 1 };
    failed(pair.a.ad.write(none, 1, buf.mem(0, 1, 0), r, None));
    failed(pair.a.ad.read(none, 1, buf.mem(0, 1, 0), r));
    assert!(pair.a.ad.address(none).is_err());
    assert!(pair.a.ad.connect(none, b"", true, None).is_err());
    pair.a.ad.destroy(none);
    let own = pair.a.ep;
    assert!(pair.a.ad.connect(own, b"", true, None).is_err());
    let mr = pair.a.register(&buf, ALL);
    assert!(pair.a.ad.deregister(mr).is_ok());
    assert!(pair.a.ad.deregister(mr).is_err());
    // SAFETY: refused.
    assert!(unsafe { pair.a.ad.register(u64::MAX - 3, 8, ALL) }.is_err());
    pair.check_alive();
}

/// Each end driven by its own thread at the same time, with registration going on.
pub fn threads<F: Fixture>() {
    const ROUNDS: u64 = 300;
    const LEN: usize = 40_000;
    let Pair { a, b } = Pair::new::<F>();
    let bufs: Vec<Buf> = (0..4).map(|i| Buf::pattern(LEN, 10 + i)).collect();
    let mut bufs = bufs.into_iter();
    let run = |mut node: Node, src: Buf, dst: Buf| {
        move || {
            let lkey = node.lkey(&src);
            let mut arrivals = Vec::new();
            for n in 0..ROUNDS {
                // Tell where this round's data goes, write to where the peer wants its, wait.
                let mr = node.register(&dst, ALL);
                let offer = [dst.addr().to_le_bytes(), u64::from(mr.rkey).to_le_bytes()].concat();
                node.send(&offer).expect("send");
                let mut want = |what: &str, node: &mut Node| {
                    until(what, || {
                        node.poll();
                        arrivals.extend(node.arrival());
                        arrivals.pop()
                    })
                };
                let Ev::Message(m) = want("offer", &mut node) else { panic!("no offer") };
                let word = |i: usize| u64::from_le_bytes(m[i..i + 8].try_into().expect("8"));
                let remote = Remote { addr: word(0), rkey: word(8) as u32 };
                node.write(n, src.mem(0, LEN, lkey), remote, Some(n as u32)).expect("write");
                assert_eq!(want("data", &mut node), Ev::Written(n as u32));
                until("completion", || {
                    node.poll();
                    node.done(n)
                })
                .expect("write");
                node.ad.deregister(mr).expect("deregister");
            }
            // Go on until the other end has everything, too.
            node.send(b"bye").expect("send");
            until("goodbye", || {
                node.poll();
                (node.arrival().is_some() || node.down().is_some()).then_some(())
            });
            for _ in 0..100 {
                node.poll();
            }
            (node, src, dst)
        }
    };
    let mut next = || bufs.next().expect("four");
    let (one, two) = (run(a, next(), next()), run(b, next(), next()));
    let one = std::thread::spawn(one);
    let two = two();
    let one = one.join().expect("thread");
    same(one.2.bytes(), two.1.bytes(), "data of b at a");
    same(two.2.bytes(), one.1.bytes(), "data of a at b");
}

/// Peers that flood do not keep others waiting: a poll takes some messages of each endpoint.
pub fn r05_a_poll_takes_few_messages_of_each_endpoint<F: Fixture>() {
    const FLOODS: usize = 8;
    if F::KIND == ProviderKind::Ibverbs {
        return; // Its queue is the device's: completions are taken in their order, few at a time.
    }
    let mut b = Node::new(F::open());
    let mut floods: Vec<Node> = (0..FLOODS).map(|_| Node::new(F::open())).collect();
    let mut honest = Node::new(F::open());
    let ends: Vec<_> = floods.iter_mut().map(|a| join::<F>(a, &mut b)).collect();
    let (from, to) = join::<F>(&mut honest, &mut b);
    until("connections", || {
        let all = floods.iter_mut().chain([&mut honest, &mut b]);
        let up = |n: &mut Node| {
            n.poll();
            n.log.iter().filter(|(_, e)| *e == Ev::Connected).count()
        };
        (all.map(up).sum::<usize>() == 2 * (FLOODS + 1)).then_some(())
    });
    b.log.clear();
    let flood = |a: &mut Node, ep| {
        for _ in 0..2000 {
            if a.ad.send(ep, &[b"ping"]).is_err() {
                break;
            }
        }
        a.ad.flush();
        a.poll();
    };
    let mut most = 0;
    for round in 0..40u32 {
        for (a, (ep, _)) in floods.iter_mut().zip(&ends) {
            flood(a, *ep);
        }
        honest.ad.send(from, &[&round.to_le_bytes()]).expect("an honest message");
        honest.ad.flush();
        let mut polls = 0;
        until("an honest message beside a flood", || {
            honest.poll();
            b.poll();
            polls += 1;
            if round > 10 {
                // By then the adapter has learnt how short these messages are.
                for (_, ep) in &ends {
                    most = most.max(b.log.iter().filter(|(e, _)| e == ep).count());
                }
            }
            let came = b.log.drain(..).any(|(e, ev)| e == to && matches!(ev, Ev::Message(_)));
            came.then_some(())
        });
    }
    assert!(most <= 64, "{most} messages of one endpoint in one poll");
}
