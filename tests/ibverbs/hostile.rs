//! A hostile peer that speaks raw verbs: each attack ends its own connection at most, with the status
//! promised; nothing of the victim is touched that was not opened, and its other connections live on.

use rdma_sys::{ibv_wc_status as wc, ibv_wr_opcode as op};
use rdma_transport::fabric::ibverbs::address::Address;
use rdma_transport::fabric::{Access, Adapter, EpId, Remote};
use rdma_transport::status::{Code, Reason, Status};

use super::ends::*;
use super::raw::{Post, Raw};

const N: usize = 8192;

/// The victim, node `b`, with an honest connection to `a` and one to a raw peer.
struct Scene {
    e: Ends,
    raw: Raw,
    ep: EpId,
    device: String,
}

impl Scene {
    fn new() -> Option<Scene> {
        let (device, _) = devices()?;
        let mut e = Ends::connected(|_| {})?;
        let (raw, ep) = join_raw(&mut e, &device, 7);
        Some(Scene { e, raw, ep, device })
    }

    /// A new raw connection, in place of the one that ended.
    fn again(&mut self, rnr_retry: u8) {
        self.e.b.ad.destroy(self.ep);
        let ep = self.ep;
        self.e.b.log.retain(|(e, _)| *e != ep);
        (self.raw, self.ep) = join_raw(&mut self.e, &self.device, rnr_retry);
    }

    /// Posts and waits for the raw peer's completion, while both honest ends go on.
    fn attack(&mut self, post: &Post) -> u32 {
        self.raw.post(post);
        let (raw, e) = (&self.raw, &mut self.e);
        raw.wait(|| {
            e.a.poll();
            e.b.poll();
        })
    }

    /// The victim's end of the attacked connection goes down.
    fn down(&mut self) -> Status {
        let ep = self.ep;
        self.e.until("down", |e| e.b.down(ep))
    }
}

fn join_raw(e: &mut Ends, device: &str, rnr_retry: u8) -> (Raw, EpId) {
    let ep = e.b.ad.create("mallory").expect("create");
    let like = e.a.ad.address(e.ea).expect("address");
    let raw = Raw::new(device, &like);
    raw.connect(&e.b.ad.address(ep).expect("address"), rnr_retry);
    e.b.ad.connect(ep, &raw.address(), false, None).expect("connect");
    e.until("connection", |e| {
        raw.idle();
        e.b.take(ep, |v| (*v == Ev::Connected).then_some(()))
    });
    (raw, ep)
}

/// The peer's device answers, the peer says nothing.
#[test]
fn a_peer_that_is_not_heard_is_not_connected() {
    let Some((device, _)) = devices() else { return };
    let mut e = Ends::connected(|_| {}).expect("device");
    let ep = e.b.ad.create("mallory").expect("create");
    let like = e.a.ad.address(e.ea).expect("address");
    let raw = Raw::new(&device, &like);
    raw.ready(&e.b.ad.address(ep).expect("address"), 7);
    e.b.ad.connect(ep, &raw.address(), false, None).expect("connect");
    // What the victim sends is as long as the path allows.
    let probe = e.until("the victim's probe", |_| raw.probe());
    assert!([1024, 2048, 4096].contains(&probe), "{probe} bytes");
    e.check_alive();
    assert!(e.b.take(ep, |v| (*v == Ev::Connected).then_some(())).is_none());
    raw.say_hello();
    e.until("connection", |e| {
        raw.idle();
        e.b.take(ep, |v| (*v == Ev::Connected).then_some(()))
    });
    e.check_alive();
}

/// Packet sequence numbers begin at random, and who begins with another than its address says is not heard.
#[test]
fn packet_sequence_numbers_are_random_and_have_to_be_right() {
    let Some((device, _)) = devices() else { return };
    let mut e = Ends::connected(|_| {}).expect("device");
    let mut first = |_| {
        let ep = e.a.ad.create("beta").expect("create");
        Address::decode(&e.a.ad.address(ep).expect("address")).expect("address").psn
    };
    let numbers: Vec<u32> = (0..8).map(&mut first).collect();
    let step = |i: usize| numbers[i].wrapping_sub(numbers[i - 1]);
    assert!((2..8).any(|i| step(i) != step(1)), "{numbers:?}");

    let like = e.a.ad.address(e.ea).expect("address");
    for wrong in [78, 0x80_0000] {
        let ep = e.b.ad.create("mallory").expect("create");
        let raw = Raw::new(&device, &like);
        let mut said = Address::decode(&raw.address()).expect("address");
        assert_ne!(said.psn, wrong);
        said.psn = wrong;
        raw.connect(&e.b.ad.address(ep).expect("address"), 7);
        e.b.ad.connect(ep, &said.encode(), false, None).expect("connect");
        e.until("the victim's probe", |_| raw.probe());
        for _ in 0..20 {
            e.check_alive();
            raw.idle();
        }
        assert!(e.b.take(ep, |v| (*v == Ev::Connected).then_some(())).is_none(), "{wrong}");
    }
    join_raw(&mut e, &device, 7);
}

/// Its receives are posted before its queue pair is ready for anything: who sends as early as it can, and does not try again
/// where no receive is posted, is heard. Nobody polls meanwhile.
#[test]
fn receives_are_posted_before_it_connects() {
    let Some((device, _)) = devices() else { return };
    for _ in 0..10 {
        let mut victim = Node::open(&config("victim", &device));
        let ep = victim.ad.create("mallory").expect("create");
        let address = victim.ad.address(ep).expect("address");
        let raw = Raw::new(&device, &address);
        raw.ready(&address, 0);
        raw.post(&Post::message(100));
        victim.ad.connect(ep, &raw.address(), false, None).expect("connect");
        assert_eq!(raw.wait(|| ()), wc::IBV_WC_SUCCESS);
    }
}

#[test]
fn a_raw_peer_that_behaves_is_served() {
    let Some(mut s) = Scene::new() else { return };
    let bytes = s.raw.buf[..100].to_vec();
    assert_eq!(s.attack(&Post::message(100)), wc::IBV_WC_SUCCESS);
    let ep = s.ep;
    assert_eq!(s.e.until("message", |e| e.b.message(ep)), bytes);
    s.e.check_alive();
}

/// Every way to reach for memory that is not open, and one that is allowed.
#[test]
fn memory_that_is_not_open_is_not_reached() {
    let Some(mut s) = Scene::new() else { return };
    let victim = vec![0x11u8; 3 * N];
    let at = victim.as_ptr() as u64 + N as u64;
    let mut open = |access| {
        // SAFETY: the buffer outlives the region.
        unsafe { s.e.b.ad.register(at, N as u64, access) }.expect("register")
    };
    let both = open(Access::REMOTE_READ | Access::REMOTE_WRITE);
    let (none, revoked) = (open(Access::LOCAL_WRITE), open(Access::all()));
    s.e.b.ad.deregister(revoked).expect("deregister");
    let (n, write, read) = (N as u32, op::IBV_WR_RDMA_WRITE, op::IBV_WR_RDMA_READ);
    let imm = op::IBV_WR_RDMA_WRITE_WITH_IMM;
    let attacks: [(&str, op::Type, u64, u32, u32); 13] = [
        ("one byte past the rear", write, at + 1, n, both.rkey),
        ("one byte before the front", write, at - 1, n, both.rkey),
        ("behind the rear", write, at + u64::from(n), 1, both.rkey),
        ("at the end of the address space", write, u64::MAX - 3, 8, both.rkey),
        ("with immediate past the rear", imm, at + 1, n, both.rkey),
        ("read past the rear", read, at + 1, n, both.rkey),
        ("read before the front", read, at - 1, 8, both.rkey),
        ("wrong key", write, at, 8, both.rkey ^ 0x5500),
        ("key 0", write, at, 8, 0),
        ("not open for writing", write, at, 8, none.rkey),
        ("not open for reading", read, at, 8, none.rkey),
        ("revoked", write, at, 8, revoked.rkey),
        ("atomics are not allowed", op::IBV_WR_ATOMIC_FETCH_AND_ADD, at, 8, both.rkey),
    ];
    for (what, opcode, addr, len, rkey) in attacks {
        let status = s.attack(&Post { opcode, imm: 1, len, to: (addr, rkey) });
        let refused = [wc::IBV_WC_REM_ACCESS_ERR, wc::IBV_WC_REM_INV_REQ_ERR];
        assert!(refused.contains(&status), "{what}: status {status}");
        assert!(victim.iter().all(|&b| b == 0x11), "{what}: the victim's memory changed");
        assert!(s.raw.buf.iter().all(|&b| b == 0x5a), "{what}: something was read");
        s.e.check_alive();
        s.again(7);
    }
    let exact = Post { opcode: write, imm: 0, len: n, to: (at, both.rkey) };
    assert_eq!(s.attack(&exact), wc::IBV_WC_SUCCESS);
    assert!(victim[N..2 * N].iter().all(|&b| b == 0x5a));
    assert!(victim[..N].iter().chain(&victim[2 * N..]).all(|&b| b == 0x11));
    let nothing = Post { opcode: write, imm: 0, len: 0, to: (at, both.rkey) };
    assert_eq!(s.attack(&nothing), wc::IBV_WC_SUCCESS, "zero bytes are allowed");
    s.e.check_alive();
}

#[test]
fn what_is_no_message_ends_the_connection() {
    let Some(mut s) = Scene::new() else { return };
    let plain = Post { opcode: op::IBV_WR_SEND, imm: 0, len: 64, to: (0, 0) };
    let other_imm = Post { imm: 5, ..Post::message(64) };
    for post in [plain, other_imm] {
        s.attack(&post);
        let status = s.down();
        assert_eq!(status.code, Code::Unavailable, "{status}");
        assert!(status.message.contains("no message"), "{status}");
        s.e.check_alive();
        s.again(7);
    }
    // Longer than any receive buffer.
    let status = s.attack(&Post::message(60_000));
    assert_ne!(status, wc::IBV_WC_SUCCESS);
    let down = s.down();
    assert_eq!(down.code, Code::Unavailable, "{down}");
    assert!(down.message.contains("receive between beta and mallory"), "{down}");
    s.e.check_alive();
}

/// The receive queue is shared: a peer that keeps to no credits empties it while nothing is polled.
#[test]
fn an_exhausted_receive_queue_delays_and_loses_nothing() {
    let Some(mut s) = Scene::new() else { return };
    s.again(1);
    let mut delivered = 0;
    for i in 0..400u32 {
        s.raw.buf[..4].copy_from_slice(&i.to_le_bytes());
        s.raw.post(&Post::message(4));
        let status = s.raw.wait(std::thread::yield_now);
        if status != wc::IBV_WC_SUCCESS {
            assert_eq!(status, wc::IBV_WC_RNR_RETRY_EXC_ERR);
            break;
        }
        delivered += 1;
    }
    assert!(delivered < 400, "the victim's receive queue has no end");
    // An honest message finds the queue empty, too; it waits until the victim polls.
    let (ea, eb, ep) = (s.e.ea, s.e.eb, s.ep);
    s.e.a.ad.send(ea, &[b"patience"]).expect("send");
    s.e.a.ad.flush();
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(s.e.until("honest message", |e| e.b.message(eb)), b"patience");
    for i in 0..delivered {
        assert_eq!(s.e.until("message", |e| e.b.message(ep)), (i as u32).to_le_bytes());
    }
    s.e.check_alive();
}

#[test]
fn a_peer_whose_queue_pair_fails_is_gone() {
    let Some(mut s) = Scene::new() else { return };
    s.raw.error();
    s.e.b.ad.send(s.ep, &[b"anybody there?"]).expect("send");
    let down = s.down();
    assert_eq!((down.code, down.reason), (Code::Unavailable, Reason::PeerGone), "{down}");
    s.e.check_alive();
}

/// Our own queue pair fails, as if the device had put it into the error state.
#[test]
fn an_own_queue_pair_that_fails_ends_each_operation_once() {
    let Some(mut s) = Scene::new() else { return };
    let (ea2, eb2) = join(&mut s.e.a, &mut s.e.b);
    let buf = vec![7u8; 4096];
    let m = s.e.a.register(&buf, Access::empty());
    let far = vec![0u8; 4096];
    let mf = s.e.b.register(&far, Access::REMOTE_WRITE);
    // Nobody answers, so the writes stay under way.
    s.e.b.ad.destroy(eb2);
    for wr in 0..4 {
        s.e.a.ad.write(ea2, wr, mem(&buf, m), remote(&far, 0, mf), None).expect("write");
    }
    s.e.a.ad.flush();
    s.e.a.ad.force_error(ea2).expect("error");
    let down = s.e.until("down", |e| e.a.down(ea2));
    assert_eq!(down.code, Code::Unavailable, "{down}");
    for wr in 0..4 {
        let done = s.e.a.done(ea2, wr).expect("each ends before the end is told");
        assert_eq!(done.expect_err("flushed").code, Code::Unavailable, "{wr}");
        assert!(s.e.a.done(ea2, wr).is_none(), "{wr} ended twice");
    }
    s.e.a.ad.destroy(ea2);
    s.e.check_alive();
}

/// The device says that the queue pair is in error before the completion that says why is looked at.
#[test]
fn an_event_does_not_hide_what_went_wrong() {
    let Some(mut s) = Scene::new() else { return };
    let (ea, buf) = (s.e.ea, vec![7u8; 64]);
    let m = s.e.a.register(&buf, Access::empty());
    let nowhere = Remote { addr: buf.as_ptr() as u64, rkey: 0x1234_5600 };
    s.e.a.ad.write(ea, 1, mem(&buf, m), nowhere, None).expect("write");
    s.e.a.ad.flush();
    // The completion is there when the descriptor says so.
    while s.e.a.ad.arm() {
        s.e.b.poll();
        let fd = s.e.a.ad.fd().expect("fd");
        let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
        // SAFETY: one live entry.
        if unsafe { libc::poll(fds.as_mut_ptr(), 1, 1) } == 1 {
            break;
        }
    }
    s.e.a.ad.force_last_receive(ea).expect("event");
    let done = s.e.done_a(1).expect_err("refused");
    assert_eq!(done.code, Code::PermissionDenied, "{done}");
    let down = s.e.until("down", |e| e.a.down(ea));
    assert!(down.message.contains("remote access error"), "{down}");
}

/// Descriptors of a removed device stay readable: nobody may sleep on them.
#[test]
fn a_lost_device_ends_all_and_lets_its_owner_sleep() {
    let Some(mut e) = Ends::connected(|_| {}) else { return };
    let (ea, fd) = (e.ea, e.a.ad.fd().expect("fd"));
    let watched = || {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).expect("fdinfo");
        info.matches("tfd:").count()
    };
    assert_eq!(watched(), 2);
    e.a.ad.force_loss();
    let down = e.until("down", |e| e.a.down(ea));
    assert_eq!(down.code, Code::Unavailable, "{down}");
    assert_eq!(watched(), 1, "of the events alone");
    e.a.ad.destroy(ea);
    assert!(e.a.ad.arm());
    assert_eq!(e.a.ad.create("late").expect_err("lost").code, Code::Unavailable);
}

/// With queues of the right size it cannot happen; here one is made too small.
#[test]
fn a_completion_queue_that_overruns_ends_its_own_connections_only() {
    let Some((_, db)) = devices() else { return };
    let mut e = Ends::connected(|_| {}).expect("device");
    let mut cfg = config("gamma", &db);
    cfg.ib.cq_entries = 16;
    let mut small = Node::open(&cfg);
    let (ea, es) = join(&mut e.a, &mut small);
    for i in 0..60u8 {
        e.a.ad.send(ea, &[&[i]]).expect("send");
        e.a.poll();
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let start = std::time::Instant::now();
    let down = loop {
        small.poll();
        e.a.poll();
        if let Some(s) = small.down(es) {
            break s;
        }
        assert!(start.elapsed() < PATIENCE, "the overrun was not noticed: {:?}", small.ad.notes());
    };
    assert_eq!(down.code, Code::Unavailable, "{down}");
    assert!(down.message.contains("overrun"), "{down}");
    small.ad.destroy(es);
    e.a.ad.destroy(ea);
    // The adapter goes on, on a new queue.
    let (ea, es) = join(&mut e.a, &mut small);
    e.a.ad.send(ea, &[b"again"]).expect("send");
    e.a.ad.flush();
    let start = std::time::Instant::now();
    while small.message(es).is_none() {
        small.poll();
        e.a.poll();
        assert!(start.elapsed() < PATIENCE);
    }
    e.check_alive();
}
