//! What a hostile or unlucky peer does: each ends one connection with the status promised, and the
//! others live on.

use rdma_transport::fabric::ibverbs;
use rdma_transport::fabric::{Access, Adapter, Mr, PostError};
use rdma_transport::status::{Code, Reason};

use super::ends::*;

const N: usize = 8192;

/// What the hostile end does to the victim's buffer.
enum Attack {
    Write(i64, usize),
    Read(i64, usize),
}

/// One attack on a region of `N` bytes in the middle of a larger buffer.
fn refused(e: &mut Ends, what: &str, access: Access, attack: Attack, spoil: impl Fn(Mr) -> Mr) {
    // A second connection between the same adapters, which must not notice.
    let (ea2, eb2) = join(&mut e.a, &mut e.b);
    let victim = vec![0x11u8; 3 * N];
    let mut mine = vec![0x22u8; N];
    // SAFETY: the buffer outlives the region.
    let mv = unsafe { e.b.ad.register(victim[N..].as_ptr() as u64, N as u64, access) }
        .expect("register");
    let mm = e.a.register(&mine, Access::LOCAL_WRITE);
    let key = spoil(mv);
    if key == mv {
        // Not revoked: nothing to do.
    } else if key.rkey == mv.rkey {
        e.b.ad.deregister(mv).expect("deregister");
    }
    let result = match attack {
        Attack::Write(at, len) => {
            let to = remote(&victim[N..], at, key);
            e.a.ad.write(ea2, 9, mem(&mine[..len], mm), to, Some(5))
        }
        Attack::Read(at, len) => {
            e.a.ad.read(ea2, 9, mem(&mine[..len], mm), remote(&victim[N..], at, key))
        }
    };
    assert_eq!(result, Ok(()), "{what}");
    let done = e.until(what, |e| e.a.done(ea2, 9));
    let s = done.expect_err(what);
    assert_eq!(s.code, Code::PermissionDenied, "{what}: {s}");
    assert!(s.message.contains("alpha") && s.message.contains("beta"), "{s}");
    let down = e.until("down", |e| e.a.down(ea2));
    assert_eq!(down.code, Code::Unavailable, "{down}");
    assert!(matches!(e.a.ad.send(ea2, &[b"x"]), Err(PostError::Failed(_))));
    assert!(victim.iter().all(|&b| b == 0x11), "{what} wrote");
    assert!(mine.iter().all(|&b| b == 0x22), "{what} read");
    mine[0] = 0;
    e.check_alive();
    e.a.ad.destroy(ea2);
    e.b.ad.destroy(eb2);
    e.b.log.retain(|(ep, _)| *ep != eb2);
    e.a.ad.deregister(mm).expect("deregister");
    let _ = e.b.ad.deregister(mv);
    e.check_alive();
}

#[test]
fn bad_remote_access_is_refused_and_touches_nothing() {
    let Some(mut e) = Ends::connected(|_| {}) else { return };
    let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let same = |m: Mr| m;
    refused(&mut e, "write past the rear", both, Attack::Write(1, N), same);
    refused(&mut e, "write before the front", both, Attack::Write(-1, N), same);
    refused(&mut e, "write far behind", both, Attack::Write(N as i64, 1), same);
    refused(&mut e, "read past the rear", both, Attack::Read(N as i64 - 1, 2), same);
    refused(&mut e, "read before the front", both, Attack::Read(-1, 1), same);
    let wrong = |m: Mr| Mr { rkey: m.rkey ^ 0x5500, ..m };
    refused(&mut e, "write with a wrong key", both, Attack::Write(0, 8), wrong);
    refused(&mut e, "read with a wrong key", both, Attack::Read(0, 8), wrong);
    let stale = |m: Mr| Mr { rkey: m.rkey ^ 1, ..m };
    refused(&mut e, "write with a stale key", both, Attack::Write(0, 8), stale);
    refused(&mut e, "write to read-only", Access::REMOTE_READ, Attack::Write(0, 8), same);
    refused(&mut e, "read of write-only", Access::REMOTE_WRITE, Attack::Read(0, 8), same);
    refused(&mut e, "write to local-only", Access::LOCAL_WRITE, Attack::Write(0, 8), same);
    let revoked = |m: Mr| Mr { lkey: !m.lkey, ..m };
    refused(&mut e, "write to a revoked region", both, Attack::Write(0, 8), revoked);
    refused(&mut e, "read of a revoked region", both, Attack::Read(0, 8), revoked);
}

#[test]
fn zero_bytes_reach_the_peer_or_are_refused() {
    let Some(mut e) = Ends::connected(|_| {}) else { return };
    let buf = vec![0u8; 64];
    let m = e.b.register(&buf, Access::REMOTE_WRITE);
    let none = e.a.register(&buf, Access::empty());
    e.a.ad.write(e.ea, 1, mem(&buf[..0], none), remote(&buf, 0, m), Some(3)).expect("write");
    assert_eq!(e.done_a(1), Ok(()));
    let eb = e.eb;
    e.until("written", |e| e.b.take(eb, |v| (*v == Ev::Written(3)).then_some(())));
}

#[test]
fn a_peer_that_went_away_is_gone() {
    let Some(mut e) = Ends::connected(|c| c.ib.timeout = 12) else { return };
    let buf = vec![0u8; 64];
    let m = e.a.register(&buf, Access::LOCAL_WRITE);
    let far = e.b.register(&buf, Access::REMOTE_WRITE | Access::REMOTE_READ);
    e.b.ad.destroy(e.eb);
    for wr in 0..3 {
        e.a.ad.write(e.ea, wr, mem(&buf, m), remote(&buf, 0, far), None).expect("write");
    }
    e.a.ad.send(e.ea, &[b"into the void"]).expect("send");
    for wr in 0..3 {
        let s = e.done_a(wr).expect_err("done");
        assert_eq!((s.code, s.reason), (Code::Unavailable, Reason::PeerGone), "{s}");
    }
    let ea = e.ea;
    let s = e.until("down", |e| e.a.down(ea));
    assert_eq!((s.code, s.reason), (Code::Unavailable, Reason::PeerGone), "{s}");
    assert!(s.message.contains("retry exceeded"), "{s}");
    e.a.ad.destroy(ea);
    (e.ea, e.eb) = join(&mut e.a, &mut e.b);
    e.check_alive();
}

#[test]
fn garbage_addresses_are_refused() {
    let Some(mut e) = Ends::connected(|_| {}) else { return };
    for bytes in [&b""[..], b"IB", &[0xff; 36], &[0; 1024]] {
        let ep = e.a.ad.create("mallory").expect("create");
        let s = e.a.ad.connect(ep, bytes, true, None).unwrap_err();
        assert_eq!(s.code, Code::InvalidArgument, "{s}");
        e.a.ad.destroy(ep);
    }
    e.check_alive();
}

#[test]
fn settings_are_checked_against_the_device() {
    let Some((dev, _)) = devices() else { return };
    type Change = fn(&mut rdma_transport::config::Config);
    let cases: [(&str, Change); 9] = [
        ("options.ib_device=nope", |c| c.ib.device = Some("nope".into())),
        ("RDMA_DEVICE_PORT=9", |c| c.ib.port = 9),
        ("RDMA_GID_INDEX=200", |c| c.ib.gid_index = 200),
        ("RDMA_QP_PKEY_INDEX=77", |c| c.ib.pkey_index = 77),
        ("RDMA_QP_QUEUE_DEPTH=99999999", |c| c.queue_depth = 99_999_999),
        ("RDMA_QP_TIMEOUT=32", |c| c.ib.timeout = 32),
        ("RDMA_QP_RETRY_COUNT=8", |c| c.ib.retry_count = 8),
        ("RDMA_QP_SL=8", |c| c.ib.sl = 8),
        ("RDMA_QP_MTU=4097", |c| c.ib.mtu = 4097),
    ];
    for (want, change) in cases {
        let mut cfg = config("alpha", &dev);
        change(&mut cfg);
        let s = ibverbs::open(&cfg).err().expect(want);
        assert!(s.message.starts_with(want), "{s}");
        assert_eq!(s.code, Code::InvalidArgument);
    }
    assert_eq!(ibverbs::probe(), Ok(()));
    let mut cfg = config("alpha", &dev);
    (cfg.ib.mtu, cfg.ib.sl, cfg.ib.traffic_class) = (512, 3, 104);
    Ends::connected(|c| c.ib = cfg.ib.clone()).expect("device").check_alive();
}

#[test]
fn a_forked_child_gets_errors_and_harms_nothing() {
    let Some(mut e) = Ends::connected(|_| {}) else { return };
    // SAFETY: the child only calls the adapter, which must refuse, and exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let refused = matches!(e.a.ad.send(e.ea, &[b"child"]), Err(PostError::Failed(_)))
            && e.a.ad.create("x").is_err();
        e.a.ad.destroy(e.ea);
        drop(e);
        // SAFETY: ends the child without the test harness.
        unsafe { libc::_exit(if refused { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0);
    e.check_alive();
}
