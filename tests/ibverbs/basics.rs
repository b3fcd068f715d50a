//! What works.

use std::time::Instant;

use rdma_transport::fabric::{Access, Adapter, PostError};

use super::ends::*;

macro_rules! ends {
    () => {
        ends!(|_| {})
    };
    ($change:expr) => {
        match Ends::connected($change) {
            Some(e) => e,
            None => return,
        }
    };
}

#[test]
fn messages_pass_both_ways() {
    let mut e = ends!();
    println!("{:?}", e.a.ad.notes());
    e.check_alive();
    let max = e.a.ad.caps().max_send;
    for len in [0, 1, 63, 64, 255, 256, 257, 4096, max] {
        let m: Vec<u8> = (0..len).map(|i| i as u8 ^ len as u8).collect();
        e.a.ad.send(e.ea, &[&m[..len / 2], &m[len / 2..]]).expect("send");
        let eb = e.eb;
        assert_eq!(e.until("message", |e| e.b.message(eb)), m);
    }
    let m = vec![0; max + 1];
    assert!(matches!(e.a.ad.send(e.ea, &[&m]), Err(PostError::Failed(_))));
    e.check_alive();
}

#[test]
fn writes_and_reads_arrive_whole() {
    let mut e = ends!();
    for len in [1usize, 100, 4096, 65536, 1 << 20] {
        let src: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
        let dst = vec![0u8; len];
        let back = vec![0u8; len];
        let ms = e.a.register(&src, Access::empty());
        let md = e.b.register(&dst, Access::REMOTE_WRITE | Access::REMOTE_READ);
        let mb = e.a.register(&back, Access::LOCAL_WRITE);
        e.a.ad.write(e.ea, 1, mem(&src, ms), remote(&dst, 0, md), Some(77)).expect("write");
        let eb = e.eb;
        e.until("written", |e| e.b.take(eb, |v| (*v == Ev::Written(77)).then_some(())));
        assert!(dst == src, "{len} bytes written");
        assert_eq!(e.done_a(1), Ok(()));
        e.a.ad.read(e.ea, 2, mem(&back, mb), remote(&dst, 0, md)).expect("read");
        assert_eq!(e.done_a(2), Ok(()));
        assert!(back == src, "{len} bytes read");
        e.a.ad.deregister(ms).expect("deregister");
        e.a.ad.deregister(mb).expect("deregister");
        e.b.ad.deregister(md).expect("deregister");
        assert!(e.b.ad.deregister(md).is_err());
    }
}

#[test]
fn queue_depth_one_works() {
    let mut e = ends!(|c| c.queue_depth = 1);
    let eb = e.eb;
    for i in 0..20u8 {
        while e.a.ad.send(e.ea, &[&[i]]) == Err(PostError::QueueFull) {
            e.a.poll();
        }
        assert!(e.a.ad.send(e.ea, &[b"x"]) == Err(PostError::QueueFull));
        assert_eq!(e.until("message", |e| e.b.message(eb)), [i]);
    }
}

/// The second end sleeps, a message wakes it.
fn sleep_once(e: &mut Ends, round: u8) {
    let (ea, eb) = (e.ea, e.eb);
    let mut fds = [libc::pollfd { fd: e.b.ad.fd().expect("fd"), events: libc::POLLIN, revents: 0 }];
    while !e.b.ad.arm() {
        e.b.poll();
    }
    // SAFETY: one live entry.
    assert_eq!(unsafe { libc::poll(fds.as_mut_ptr(), 1, 20) }, 0, "round {round}");
    e.a.ad.send(ea, &[&[round]]).expect("send");
    e.a.ad.flush();
    let start = Instant::now();
    // SAFETY: as above.
    assert_eq!(unsafe { libc::poll(fds.as_mut_ptr(), 1, 10_000) }, 1, "round {round}");
    assert!(start.elapsed() < PATIENCE);
    assert_eq!(e.until("message", |e| e.b.message(eb)), [round]);
}

#[test]
fn sleeps_until_something_comes() {
    let mut e = ends!();
    (0..10).for_each(|round| sleep_once(&mut e, round));
}

/// Destroying a completion queue waits until each of its events is acknowledged, those of the last batch, too.
#[test]
fn completion_events_are_acknowledged_before_the_queue_goes() {
    if devices().is_none() {
        return;
    }
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut e = ends!();
        (0..70).for_each(|round| sleep_once(&mut e, round));
        drop(e);
        done.send(()).expect("the test is there");
    });
    ended.recv_timeout(2 * PATIENCE).expect("its adapters are not gone");
}

#[test]
fn a_connection_made_while_asleep_wakes() {
    let mut e = ends!();
    while !e.a.ad.arm() {
        e.a.poll();
    }
    let (ea, eb) =
        (e.a.ad.create("beta").expect("create"), e.b.ad.create("alpha").expect("create"));
    let (near, far) = (e.a.ad.address(ea).expect("address"), e.b.ad.address(eb).expect("address"));
    e.a.ad.connect(ea, &far, true, None).expect("connect");
    e.b.ad.connect(eb, &near, false, None).expect("connect");
    let mut fds = [libc::pollfd { fd: e.a.ad.fd().expect("fd"), events: libc::POLLIN, revents: 0 }];
    // SAFETY: one live entry.
    assert_eq!(unsafe { libc::poll(fds.as_mut_ptr(), 1, 5000) }, 1);
    e.until("connection", |e| e.a.take(ea, |v| (*v == Ev::Connected).then_some(())));
    e.until("connection", |e| e.b.take(eb, |v| (*v == Ev::Connected).then_some(())));
    while !e.a.ad.arm() {
        e.a.poll();
    }
    // SAFETY: as above.
    assert_eq!(unsafe { libc::poll(fds.as_mut_ptr(), 1, 20) }, 0, "no more work");
}

#[test]
fn a_peer_that_does_not_poll_gets_all_later() {
    let mut e = ends!();
    let (ea, eb) = (e.ea, e.eb);
    let depth = e.a.ad.caps().recv_depth;
    let mut sent = 0u32;
    // Past its depth the provider may refuse, never lose.
    while sent < depth * 4 {
        match e.a.ad.send(ea, &[&sent.to_le_bytes()]) {
            Ok(()) => sent += 1,
            Err(PostError::QueueFull) if sent >= depth => break,
            Err(PostError::QueueFull) => e.a.poll(),
            Err(x) => panic!("{x:?}"),
        }
        e.a.ad.flush();
    }
    assert!(sent >= depth);
    for i in 0..sent {
        assert_eq!(e.until("message", |e| e.b.message(eb)), i.to_le_bytes());
    }
    e.check_alive();
}

#[test]
fn leaks_nothing_over_200_connections() {
    let mut e = ends!();
    let show = || {
        let out = std::process::Command::new("rdma").args(["resource", "show"]).output();
        String::from_utf8(out.expect("rdma").stdout).expect("text")
    };
    let before = show();
    for _ in 0..200 {
        let (ea, eb) = join(&mut e.a, &mut e.b);
        e.a.ad.send(ea, &[b"hello"]).expect("send");
        e.until("hello", |e| e.b.message(eb));
        e.a.ad.destroy(ea);
        e.b.ad.destroy(eb);
    }
    assert_eq!(show(), before);
    e.check_alive();
}
