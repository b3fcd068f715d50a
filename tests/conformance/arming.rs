//! Sleeping and waking.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rdma_transport::fabric::Mr;

use crate::harness::*;

/// Whether the descriptor is readable, now or within the time.
fn readable(node: &Node, wait: Duration) -> bool {
    let fd = node.ad.fd().expect("a descriptor");
    let mut p = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry.
    unsafe { libc::poll(&mut p, 1, wait.as_millis() as i32) == 1 }
}

/// An event loop as applications have it: once armed it does nothing until the descriptor wakes it.
#[derive(Default)]
struct Sleeper {
    asleep: bool,
}

impl Sleeper {
    fn step(&mut self, node: &mut Node) {
        if self.asleep && !readable(node, Duration::ZERO) {
            return;
        }
        node.poll();
        self.asleep = node.ad.arm();
    }
}

/// Arms `node`, polling both until there is nothing to do.
fn sleep(pair: &mut Pair, which: fn(&mut Pair) -> &mut Node) {
    until("quiet", || {
        pair.poll();
        let node = which(pair);
        (node.ad.arm() && !readable(node, Duration::ZERO)).then_some(())
    });
}

fn a(p: &mut Pair) -> &mut Node {
    &mut p.a
}

fn b(p: &mut Pair) -> &mut Node {
    &mut p.b
}

/// After `trigger` at a, b's descriptor wakes it, as often as needed until `cond`. While b sleeps
/// only a is polled.
fn wakes<T>(
    pair: &mut Pair,
    trigger: impl FnOnce(&mut Pair),
    mut cond: impl FnMut(&mut Node) -> Option<T>,
) -> T {
    sleep(pair, b);
    let mut sleeper = Sleeper { asleep: true };
    trigger(pair);
    until("wake of b", || {
        sleeper.step(&mut pair.b);
        pair.a.poll();
        cond(&mut pair.b)
    })
}

pub fn wake_by_message<F: Fixture>() {
    let mut pair = Pair::new::<F>();
    for n in 0..50u8 {
        let got = wakes(
            &mut pair,
            |p| {
                p.a.send(&[n; 20]).expect("send");
                p.a.ad.flush();
                // This one needs no help of a's poll.
                assert!(readable(&p.b, Duration::from_secs(10)), "message {n} does not wake");
            },
            |b| b.arrival(),
        );
        assert_eq!(got, Ev::Message(vec![n; 20]));
    }
    // A thread that really sleeps.
    sleep(&mut pair, b);
    let Pair { mut a, mut b } = pair;
    let sleeper = std::thread::spawn(move || {
        assert!(readable(&b, Duration::from_secs(20)), "no wake");
        until("message", || {
            b.poll();
            b.arrival()
        });
        b
    });
    std::thread::sleep(Duration::from_millis(20));
    a.send(b"wake").expect("send");
    a.ad.flush();
    sleeper.join().expect("sleeper");
}

pub fn wake_by_write<F: Fixture>() {
    let (src, dst) = (Buf::pattern(4 << 20, 40), Buf::new(4 << 20));
    let mut pair = Pair::new::<F>();
    let lkey = pair.a.lkey(&src);
    let Mr { rkey, .. } = pair.b.register(&dst, ALL);
    for (n, len) in [0, 8, 100_000, 4 << 20].into_iter().enumerate() {
        let post = |p: &mut Pair| {
            let r = remote(&dst, 0, rkey);
            p.a.write(1, src.mem(0, len, lkey), r, Some(n as u32)).expect("write");
            p.a.ad.flush();
        };
        assert_eq!(wakes(&mut pair, post, |b| b.arrival()), Ev::Written(n as u32));
        same(&dst.bytes()[..len], &src.bytes()[..len], "what was written");
        assert_eq!(pair.done_a(1), Ok(()));
    }
}

/// The initiator sleeps until its READ and its WRITE have ended.
pub fn wake_by_completion<F: Fixture>() {
    let (src, dst) = (Buf::pattern(4 << 20, 41), Buf::new(4 << 20));
    let mut pair = Pair::new::<F>();
    let lkey = pair.a.lkey(&dst);
    let Mr { rkey, .. } = pair.b.register(&src, ALL);
    for len in [8, 100_000, 4 << 20] {
        for read in [pair.a.ad.caps().read, false] {
            sleep(&mut pair, a);
            let (mem, r) = (dst.mem(0, len, lkey), remote(&src, 0, rkey));
            match read {
                true => pair.a.read(1, mem, r).expect("read"),
                false => pair.a.write(1, mem, r, None).expect("write"),
            }
            pair.a.ad.flush();
            // Posting woke a; both sleep whenever they have nothing to do.
            let (mut sa, mut sb) = (Sleeper::default(), Sleeper::default());
            let result = until("completion", || {
                sa.step(&mut pair.a);
                sb.step(&mut pair.b);
                pair.a.done(1)
            });
            assert_eq!(result, Ok(()));
            if read {
                same(&dst.bytes()[..len], &src.bytes()[..len], "what was read");
            }
        }
    }
}

pub fn wake_by_end<F: Fixture>() {
    let mut pair = Pair::new::<F>();
    wakes(
        &mut pair,
        |p| {
            let ep = p.a.ep;
            p.a.ad.destroy(ep);
            let theirs = p.b.ep;
            p.b.notice_end::<F>(theirs);
            p.b.ad.flush();
            assert!(readable(&p.b, Duration::from_secs(10)), "the end does not wake");
        },
        |b| b.down(),
    );
    let ep = pair.b.ep;
    pair.b.ad.destroy(ep);
    // Sleeps again, with nothing left.
    sleep(&mut pair, b);
}

/// `arm` says no while there is something to poll, or the descriptor is readable at once.
pub fn no_sleep_with_work<F: Fixture>() {
    let mut pair = Pair::new::<F>();
    for n in 0..20u8 {
        sleep(&mut pair, b);
        pair.b.poll();
        pair.a.send(&[n]).expect("send");
        pair.a.ad.flush();
        // It is there, whether it came before or after arming.
        let can_sleep = pair.b.ad.arm();
        assert!(
            !can_sleep || readable(&pair.b, Duration::from_secs(10)),
            "would sleep over a message"
        );
        assert_eq!(pair.arrival_b(), Ev::Message(vec![n]));
    }
    // A connection that is not reported yet counts, too.
    let (ea, _) = join::<F>(&mut pair.a, &mut pair.b);
    let mut sleeper = Sleeper { asleep: pair.a.ad.arm() };
    until("connection while sleeping", || {
        sleeper.step(&mut pair.a);
        pair.b.poll();
        (!pair.a.log.is_empty()).then_some(())
    });
    assert_eq!(pair.a.log, [(ea, Ev::Connected)]);
}

/// A sender with more than fits sleeps until the peer makes room, and all arrives.
pub fn wake_for_output<F: Fixture>() {
    const N: usize = 20;
    let src = Buf::pattern(N << 20, 42);
    let dst = Buf::new(N << 20);
    let mut pair = Pair::new::<F>();
    let lkey = pair.a.lkey(&src);
    let Mr { rkey, .. } = pair.b.register(&dst, ALL);
    for i in 0..N {
        let mem = src.mem(i << 20, 1 << 20, lkey);
        let to = remote(&dst, i << 20, rkey);
        patiently(&mut pair, |p| p.a.write(i as u64, mem, to, None));
    }
    pair.a.send(b"all").expect("send");
    pair.a.ad.flush();
    let (mut sa, mut sb) = (Sleeper::default(), Sleeper::default());
    until("last message", || {
        sa.step(&mut pair.a);
        sb.step(&mut pair.b);
        pair.b.arrival()
    });
    same(dst.bytes(), src.bytes(), "what was written");
    for i in 0..N {
        // Until the acknowledgements are there, nobody is polled who is not woken.
        until("completion", || {
            sa.step(&mut pair.a);
            sb.step(&mut pair.b);
            pair.a.done(i as u64)
        })
        .expect("write");
    }
}

/// A writer that sleeps whenever it may, while its peer, on another thread, takes all at once: output
/// never finds the way closed, so room alone would wake nobody.
pub fn no_sleep_with_output<F: Fixture>() {
    let len = F::LARGE;
    let (src, dst) = (Buf::pattern(len, 43), Buf::new(len));
    let mut pair = Pair::new::<F>();
    let lkey = pair.a.lkey(&src);
    let Mr { rkey, .. } = pair.b.register(&dst, ALL);
    let Pair { mut a, mut b } = pair;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let peer = std::thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            b.poll();
        }
        b
    });
    for wr in 0..10 {
        a.write(wr, src.mem(0, len, lkey), remote(&dst, 0, rkey), None).expect("write");
        a.ad.flush();
        let mut sleeper = Sleeper::default();
        let result = until("completion", || {
            sleeper.step(&mut a);
            a.done(wr)
        });
        assert_eq!(result, Ok(()));
    }
    stop.store(true, Ordering::Relaxed);
    drop(peer.join().expect("peer"));
    same(dst.bytes(), src.bytes(), "what was written");
}

/// A READ behind a WRITE: the target sleeps only once both are answered, whatever its turn made of the WRITE.
pub fn wake_behind_a_write<F: Fixture>() {
    let (src, dst) = (Buf::pattern(1 << 20, 44), Buf::new(1 << 20));
    let mut pair = Pair::new::<F>();
    if !pair.a.ad.caps().read {
        return;
    }
    let lkey = pair.a.lkey(&src);
    let Mr { rkey, .. } = pair.b.register(&dst, ALL);
    for len in [8, 10_000, 400_000] {
        sleep(&mut pair, b);
        let (to, from) = (remote(&dst, 0, rkey), remote(&dst, 1 << 19, rkey));
        pair.a.write(1, src.mem(0, len, lkey), to, None).expect("write");
        pair.a.read(2, src.mem(1 << 19, len, lkey), from).expect("read");
        pair.a.ad.flush();
        let (mut sa, mut sb) = (Sleeper::default(), Sleeper::default());
        for wr in [1, 2] {
            let result = until("completion", || {
                sa.step(&mut pair.a);
                sb.step(&mut pair.b);
                pair.a.done(wr)
            });
            assert_eq!(result, Ok(()));
        }
        same(&dst.bytes()[..len], &src.bytes()[..len], "what was written");
        assert!(all(&src.bytes()[1 << 19..(1 << 19) + len], 0), "what was read");
    }
}
