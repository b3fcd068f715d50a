//! The shm provider over its public contract: both ends in one process, every copy path.

mod shm_support;

use rdma_transport::fabric::{Access, Adapter, Event, Mem, PostError, Remote};
use rdma_transport::memory::pool::Pool;
use rdma_transport::status::{Code, Reason};
use shm_support::{Got, Side, pair, pair_with, pattern, wait_for};

const PATHS: [Option<&str>; 4] = [None, Some("pool"), Some("cma"), Some("ring")];

#[test]
fn messages_arrive_whole_and_in_order() {
    let (mut a, mut b) = pair(None);
    let mut sent = 0u32;
    let mut seen = 0u32;
    while seen < 20_000 {
        let len = (sent as usize * 37) % 12_289;
        let body = pattern(sent, len);
        if sent < 20_000 {
            let (head, tail) = body.split_at(len / 3);
            match a.adapter.send(a.ep, &[head, tail]) {
                Ok(()) => sent += 1,
                Err(PostError::QueueFull) => {}
                Err(e) => panic!("{e:?}"),
            }
        }
        b.pump();
        for got in b.got.drain(..) {
            let Got::Message(bytes) = got else { panic!("{got:?}") };
            assert_eq!(bytes, pattern(seen, (seen as usize * 37) % 12_289), "message {seen}");
            seen += 1;
        }
        a.pump();
    }
}

#[test]
fn a_full_ring_pushes_back_and_recovers() {
    let (mut a, mut b) = pair(None);
    let mut accepted = 0;
    while a.adapter.send(a.ep, &[&[7; 100]]).is_ok() {
        accepted += 1;
        assert!(accepted < 10_000, "the ring is never full");
    }
    assert_eq!(a.adapter.send(a.ep, &[&[7; 100]]), Err(PostError::QueueFull));
    wait_for(&mut a, &mut b, |_, b| b.messages() == accepted);
    while a.adapter.send(a.ep, &[&[8; 36_864]]) == Err(PostError::QueueFull) {
        b.pump();
    }
    let too_long = a.adapter.send(a.ep, &[&[8; 36_865]]);
    assert!(matches!(too_long, Err(PostError::Failed(s)) if s.code == Code::InvalidArgument));
}

/// WRITE of `len` bytes at odd offsets, then READ back, over one path.
fn write_and_read(path: Option<&str>, len: usize, src_pool: bool, dst_pool: bool) {
    let pools = [Pool::new(1 << 30), Pool::new(1 << 30)];
    let (mut a, mut b) = pair_with(path, [Some(&pools[0]), Some(&pools[1])]);
    let src = a.memory(&pools[0], len + 64, src_pool);
    let dst = b.memory(&pools[1], len + 64, dst_pool);
    let mut back = vec![0u8; len + 64];
    src[3..3 + len].copy_from_slice(&pattern(len as u32, len));
    dst.fill(0xEE);
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    let base = dst.as_ptr().addr() as u64;
    // SAFETY: `dst` lives until the end of this function, after the adapters' last use.
    let mr = unsafe { b.adapter.register(base, dst.len() as u64, access) }.unwrap();
    let remote = Remote { addr: base + 5, rkey: mr.rkey };
    // SAFETY: `src` lives until the end of this function.
    let local = unsafe { Mem::new(src.as_ptr().addr() as u64 + 3, len as u64, 0) };
    a.adapter.write(a.ep, 77, local, remote, Some(len as u32)).unwrap();
    a.adapter.flush();
    wait_for(&mut a, &mut b, |a, b| {
        a.got.contains(&Got::Done(77, None)) && b.got.contains(&Got::Written(len as u32))
    });
    assert!(dst[5..5 + len] == src[3..3 + len], "{path:?} {len} content");
    assert!(dst[..5].iter().chain(&dst[5 + len..]).all(|&x| x == 0xEE), "{path:?} {len} rims");
    // SAFETY: `back` lives until the end of this function.
    let into = unsafe { Mem::new(back.as_mut_ptr().addr() as u64 + 1, len as u64, 0) };
    a.adapter.read(a.ep, 78, into, remote).unwrap();
    wait_for(&mut a, &mut b, |a, _| a.got.contains(&Got::Done(78, None)));
    assert!(back[1..1 + len] == src[3..3 + len], "{path:?} {len} read");
    assert!(back[0] == 0 && back[1 + len..].iter().all(|&x| x == 0));
    b.adapter.deregister(mr).unwrap();
}

#[test]
fn writes_and_reads_by_every_path() {
    for path in PATHS {
        for len in [0, 1, 63, 4096, 4097, 70_000, 1 << 20, (5 << 20) + 13] {
            write_and_read(path, len, false, false);
            write_and_read(path, len, true, false);
            write_and_read(path, len, false, true);
            write_and_read(path, len, true, true);
        }
    }
}

#[test]
fn operations_take_effect_in_order() {
    for path in PATHS {
        let (mut a, mut b) = pair(path);
        let dst = vec![0u8; 300_000];
        let base = dst.as_ptr().addr() as u64;
        // SAFETY: `dst` outlives the adapters' use.
        let mr = unsafe { b.adapter.register(base, 300_000, Access::REMOTE_WRITE) }.unwrap();
        let sources: Vec<Vec<u8>> = (0..40u8).map(|i| vec![i; 300_000]).collect();
        for (i, src) in sources.iter().enumerate() {
            let len = if i % 3 == 0 { 300_000 } else { 100 + i as u64 };
            // SAFETY: `sources` outlives the adapters' use.
            let local = unsafe { Mem::new(src.as_ptr().addr() as u64, len, 0) };
            let remote = Remote { addr: base, rkey: mr.rkey };
            a.adapter.write(a.ep, i as u64, local, remote, Some(i as u32)).unwrap();
            a.adapter.send(a.ep, &[&[i as u8]]).unwrap();
        }
        wait_for(&mut a, &mut b, |a, b| b.got.len() == 80 && a.got.len() == 40);
        for (i, two) in b.got.chunks(2).enumerate() {
            assert_eq!(two, [Got::Written(i as u32), Got::Message(vec![i as u8])], "{path:?}");
        }
        let done: Vec<Got> = (0..40).map(|i| Got::Done(i, None)).collect();
        assert_eq!(a.got, done);
        assert!(dst.iter().all(|&x| x == 39), "{path:?}");
    }
}

#[test]
fn bad_keys_bounds_and_access_are_refused_and_the_endpoint_lives_on() {
    for path in PATHS {
        let (mut a, mut b) = pair(path);
        let dst = vec![0x55u8; 10_000];
        let base = dst.as_ptr().addr() as u64;
        // SAFETY: `dst` outlives the adapters' use.
        let (wo, ro, dead) = unsafe {
            let r = &mut b.adapter;
            let wo = r.register(base, 10_000, Access::REMOTE_WRITE).unwrap();
            let ro = r.register(base, 10_000, Access::REMOTE_READ).unwrap();
            (wo, ro, r.register(base, 10_000, Access::all()).unwrap())
        };
        b.adapter.deregister(dead).unwrap();
        let mut local = vec![9u8; 10_001];
        let ptr = local.as_mut_ptr().addr() as u64;
        let cases = [
            (true, base, wo.rkey, 10_001),
            (true, base - 1, wo.rkey, 1),
            (true, base + 9_000, wo.rkey, 1_001),
            (true, base + 10_000, wo.rkey, 1),
            (true, u64::MAX - 3, wo.rkey, 100),
            (true, base, wo.rkey ^ 0x10_0000, 8),
            (true, base, 0, 8),
            (true, base, dead.rkey, 8_000),
            (true, base, ro.rkey, 8_000),
            (false, base, wo.rkey, 8_000),
            (false, base, ro.rkey, 10_001),
            (false, base - 1, ro.rkey, 8),
            (false, base + 1, ro.rkey, 10_000),
            (false, u64::MAX - 3, ro.rkey, 100),
            (false, base, dead.rkey, 8),
        ];
        for (i, &(write, addr, rkey, len)) in cases.iter().enumerate() {
            // SAFETY: `local` outlives the adapters' use.
            let mem = unsafe { Mem::new(ptr, len, 0) };
            let remote = Remote { addr, rkey };
            if write {
                a.adapter.write(a.ep, i as u64, mem, remote, Some(1)).unwrap();
            } else {
                a.adapter.read(a.ep, i as u64, mem, remote).unwrap();
            }
            wait_for(&mut a, &mut b, |a, _| a.got.len() == i + 1);
            assert_eq!(a.got[i], Got::Done(i as u64, Some(Code::PermissionDenied)), "{path:?} {i}");
        }
        assert!(b.got.is_empty(), "{:?}", b.got);
        assert!(dst.iter().all(|&x| x == 0x55) && local.iter().all(|&x| x == 9));
        // SAFETY: as above.
        let mem = unsafe { Mem::new(ptr, 8_000, 0) };
        a.adapter.write(a.ep, 99, mem, Remote { addr: base, rkey: wo.rkey }, None).unwrap();
        wait_for(&mut a, &mut b, |a, _| a.got.contains(&Got::Done(99, None)));
        assert!(dst[..8_000].iter().all(|&x| x == 9));
    }
}

#[test]
fn a_region_closed_in_mid_write_is_not_touched_again() {
    for path in PATHS {
        let (mut a, mut b) = pair(path);
        let len = 8 << 20;
        let src = vec![3u8; len];
        let mut dst = vec![0u8; len];
        let base = dst.as_mut_ptr();
        let addr = base.addr() as u64;
        // SAFETY: `dst` outlives the adapters' use.
        let mr = unsafe { b.adapter.register(addr, len as u64, Access::REMOTE_WRITE) }.unwrap();
        // SAFETY: `src` outlives the adapters' use.
        let local = unsafe { Mem::new(src.as_ptr().addr() as u64, len as u64, 0) };
        a.adapter.write(a.ep, 1, local, Remote { addr, rkey: mr.rkey }, Some(1)).unwrap();
        // SAFETY: reads a byte of `dst`, which nobody writes at this moment.
        let byte = |at: usize| unsafe { base.add(at).read_volatile() };
        wait_for(&mut a, &mut b, |_, _| byte(0) == 3);
        assert_eq!(byte(len - 1), 0, "{path:?}: one poll copied everything");
        b.adapter.deregister(mr).unwrap();
        dst.fill(0xAA);
        wait_for(&mut a, &mut b, |a, _| !a.got.is_empty());
        assert_eq!(a.got, [Got::Done(1, Some(Code::PermissionDenied))], "{path:?}");
        assert!(b.got.is_empty() && dst.iter().all(|&x| x == 0xAA), "{path:?}");
    }
}

#[test]
fn a_region_closed_in_mid_read_fails_the_read() {
    for path in PATHS {
        let (mut a, mut b) = pair(path);
        let len = 8 << 20;
        let src = vec![3u8; len];
        let mut dst = vec![0u8; len];
        let addr = src.as_ptr().addr() as u64;
        // SAFETY: `src` outlives the adapters' use.
        let mr = unsafe { b.adapter.register(addr, len as u64, Access::REMOTE_READ) }.unwrap();
        let base = dst.as_mut_ptr();
        // SAFETY: `dst` outlives the adapters' use.
        let local = unsafe { Mem::new(base.addr() as u64, len as u64, 0) };
        a.adapter.read(a.ep, 1, local, Remote { addr, rkey: mr.rkey }).unwrap();
        // SAFETY: reads a byte of `dst`, which nobody writes at this moment.
        let byte = |at: usize| unsafe { base.add(at).read_volatile() };
        wait_for(&mut a, &mut b, |_, _| byte(0) == 3);
        b.adapter.deregister(mr).unwrap();
        wait_for(&mut a, &mut b, |a, _| !a.got.is_empty());
        assert_eq!(a.got, [Got::Done(1, Some(Code::PermissionDenied))], "{path:?}");
        dst.fill(0xAA);
        for _ in 0..100 {
            a.pump();
            b.pump();
        }
        assert!(dst.iter().all(|&x| x == 0xAA), "{path:?}: written after Done");
    }
}

#[test]
fn the_end_of_one_side_is_seen_by_the_other_after_what_was_sent() {
    for path in PATHS {
        let (mut a, mut b) = pair(path);
        let len = 8 << 20;
        let src = vec![1u8; len];
        let dst = vec![0u8; len];
        let addr = dst.as_ptr().addr() as u64;
        // SAFETY: `dst` outlives the adapters' use.
        let mr = unsafe { b.adapter.register(addr, len as u64, Access::REMOTE_WRITE) }.unwrap();
        // SAFETY: `src` outlives the adapters' use.
        let local = unsafe { Mem::new(src.as_ptr().addr() as u64, len as u64, 0) };
        a.adapter.send(a.ep, &[b"last words"]).unwrap();
        a.adapter.write(a.ep, 5, local, Remote { addr, rkey: mr.rkey }, Some(5)).unwrap();
        let ep = a.ep;
        a.adapter.destroy(ep);
        let mut events = Vec::new();
        a.adapter.poll(&mut events);
        assert!(events.is_empty(), "{events:?}");
        wait_for(&mut a, &mut b, |_, b| b.is_down());
        assert_eq!(b.got[0], Got::Message(b"last words".to_vec()));
        assert_eq!(b.got.len(), 2, "{path:?} {:?}", b.got);
        assert!(matches!(&b.got[1], Got::Down(s) if s.reason == Reason::PeerGone));
        let posted = b.adapter.send(b.ep, &[b"x"]);
        assert!(matches!(posted, Err(PostError::Failed(_))));
        assert!(matches!(a.adapter.send(ep, &[b"x"]), Err(PostError::Failed(_))));
    }
}

#[test]
fn outstanding_operations_end_before_down() {
    let (mut a, mut b) = pair(Some("ring"));
    let mut mem = vec![1u8; 4 << 20];
    // SAFETY: `mem` outlives the adapters' use.
    let local = unsafe { Mem::new(mem.as_mut_ptr().addr() as u64, mem.len() as u64, 0) };
    let remote = Remote { addr: 4096, rkey: 1 };
    a.adapter.write(a.ep, 1, local, remote, None).unwrap();
    a.adapter.read(a.ep, 2, local, Remote { addr: 1 << 40, rkey: 1 }).unwrap();
    let ep = b.ep;
    b.adapter.destroy(ep);
    wait_for(&mut a, &mut b, |a, _| a.is_down());
    assert_eq!(a.got.len(), 3, "{:?}", a.got);
    assert!(a.got.contains(&Got::Done(1, Some(Code::Unavailable))));
    assert!(a.got.contains(&Got::Done(2, Some(Code::Unavailable))));
}

#[test]
fn reads_and_writes_of_the_same_bytes_keep_their_order() {
    for path in PATHS {
        let (mut a, mut b) = pair(path);
        let region = vec![1u8; 1 << 20];
        let addr = region.as_ptr().addr() as u64;
        // SAFETY: `region` outlives the adapters' use.
        let mr = unsafe { b.adapter.register(addr, 1 << 20, Access::all()) }.unwrap();
        let remote = Remote { addr, rkey: mr.rkey };
        let ones = vec![2u8; 1 << 20];
        let mut into = vec![0u8; 1 << 20];
        // SAFETY: both outlive the adapters' use.
        let (src, dst) = unsafe {
            let src = Mem::new(ones.as_ptr().addr() as u64, 1 << 20, 0);
            (src, Mem::new(into.as_mut_ptr().addr() as u64, 1 << 20, 0))
        };
        a.adapter.read(a.ep, 1, dst, remote).unwrap();
        while a.adapter.write(a.ep, 2, src, remote, None) == Err(PostError::QueueFull) {
            a.pump();
            b.pump();
        }
        wait_for(&mut a, &mut b, |a, _| a.got.len() == 2);
        assert!(into.iter().all(|&x| x == 1), "{path:?}: READ saw a later WRITE");
        a.adapter.write(a.ep, 3, src, remote, None).unwrap();
        while a.adapter.read(a.ep, 4, dst, remote) == Err(PostError::QueueFull) {
            a.pump();
            b.pump();
        }
        wait_for(&mut a, &mut b, |a, _| a.got.len() == 4);
        assert!(into.iter().all(|&x| x == 2), "{path:?}: READ missed an earlier WRITE");
    }
}

#[test]
fn a_thousand_connections_leak_nothing() {
    let count = || {
        let fds = std::fs::read_dir("/proc/self/fd").unwrap().count();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        (fds, maps.lines().filter(|l| l.contains("memfd:rdma")).count())
    };
    let (mut a, mut b) = (Side::open(None), Side::open(None));
    let before = count();
    for i in 0..1000 {
        a.meet(&mut b);
        if i % 10 == 0 {
            // The stream segment and descriptors in flight go too.
            a.adapter.send(a.ep, &[b"hello"]).unwrap();
        }
        let (first, second) = if i % 2 == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
        first.adapter.destroy(first.ep);
        if i % 3 == 0 {
            wait_for(first, second, |_, s| s.is_down());
        }
        second.adapter.destroy(second.ep);
    }
    let mut events: Vec<Event> = Vec::new();
    a.adapter.poll(&mut events);
    b.adapter.poll(&mut events);
    // Other tests of this process open descriptors of their own; a leak would be in the thousands.
    let after = count();
    assert!(after.0 < before.0 + 300 && after.1 < before.1 + 300, "{before:?} {after:?}");
}

#[test]
fn connecting_to_nobody_ends_the_endpoint() {
    let mut a = Side::open(None);
    let mut b = Side::open(None);
    b.create();
    let address = b.adapter.address(b.ep).unwrap();
    drop(b);
    a.create();
    a.adapter.connect(a.ep, &address, true, None).unwrap();
    let mut other = Side::open(None);
    wait_for(&mut a, &mut other, |a, _| a.is_down());
    let again = a.adapter.connect(a.ep, &address, true, None).unwrap_err();
    assert_eq!(again.code, Code::FailedPrecondition);
    a.create();
    for bad in [&b""[..], b"SHM1", b"nonsense", &address[..51]] {
        let e = a.adapter.connect(a.ep, bad, true, None).unwrap_err();
        assert_eq!(e.code, Code::InvalidArgument);
    }
    let mut elsewhere = address.clone();
    elsewhere[5] ^= 1;
    let e = a.adapter.connect(a.ep, &elsewhere, true, None).unwrap_err();
    assert_eq!(e.code, Code::Unavailable);
}

#[test]
fn a_stranger_without_the_token_gets_nowhere() {
    let (mut a, mut b, mut evil) = (Side::open(None), Side::open(None), Side::open(None));
    a.create();
    b.create();
    evil.create();
    let (to_a, to_b) = (a.adapter.address(a.ep).unwrap(), b.adapter.address(b.ep).unwrap());
    // Right socket, wrong endpoint token.
    let mut guess = to_b.clone();
    guess[40] ^= 1;
    b.adapter.connect(b.ep, &to_a, false, None).unwrap();
    evil.adapter.connect(evil.ep, &guess, true, None).unwrap();
    wait_for(&mut evil, &mut b, |e, _| e.is_down());
    // Right token, but not the one that was expected.
    evil.adapter.destroy(evil.ep);
    evil.create();
    evil.got.clear();
    evil.adapter.connect(evil.ep, &to_b, true, None).unwrap();
    wait_for(&mut evil, &mut b, |e, _| e.is_down());
    a.adapter.connect(a.ep, &to_b, true, None).unwrap();
    wait_for(&mut a, &mut b, |a, b| a.connected && b.connected);
}

#[test]
fn sleeping_sides_are_woken() {
    for path in PATHS {
        let (mut a, mut b) = pair(path);
        let dst = vec![0u8; 1 << 20];
        let addr = dst.as_ptr().addr() as u64;
        // SAFETY: `dst` outlives the adapters' use.
        let mr = unsafe { b.adapter.register(addr, 1 << 20, Access::REMOTE_WRITE) }.unwrap();
        let sleeper = std::thread::spawn(move || {
            for i in 0..200u32 {
                b.sleep_until(|b| b.got.contains(&Got::Written(i)));
                assert_eq!(b.messages(), i as usize);
                b.adapter.send(b.ep, &[b"go on"]).unwrap();
                b.adapter.flush();
            }
            b
        });
        let src = vec![1u8; 1 << 20];
        for i in 0..200u32 {
            let len = [10, 5000, 300_000][i as usize % 3];
            // SAFETY: `src` outlives the adapters' use.
            let local = unsafe { Mem::new(src.as_ptr().addr() as u64, len, 0) };
            let remote = Remote { addr, rkey: mr.rkey };
            a.adapter.write(a.ep, u64::from(i), local, remote, Some(i)).unwrap();
            a.adapter.flush();
            let want = i as usize + 1;
            a.sleep_until(|a| a.messages() == want && a.got.contains(&Got::Done(i.into(), None)));
            if i < 199 {
                a.adapter.send(a.ep, &[b"next"]).unwrap();
                a.adapter.flush();
            }
        }
        sleeper.join().unwrap();
    }
}

#[test]
fn a_sender_that_waits_for_room_is_woken() {
    let (mut a, mut b) = pair(None);
    let receiver = std::thread::spawn(move || {
        b.sleep_until(|b| b.messages() == 5000);
        b
    });
    let body = vec![1u8; 9000];
    for _ in 0..5000 {
        while a.adapter.send(a.ep, &[&body]) == Err(PostError::QueueFull) {
            a.adapter.flush();
            a.sleep_once();
        }
        a.adapter.flush();
    }
    receiver.join().unwrap();
}
