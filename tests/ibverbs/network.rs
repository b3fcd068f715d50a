//! The network changes under a connection: on two devices joined by a wire only.

use std::process::Command;

use rdma_transport::fabric::{Access, Adapter, EpId, Mr};
use rdma_transport::status::{Code, Reason, Status};

use super::costs::join_by_cm;
use super::ends::*;

fn ip(args: &str) {
    let ok = Command::new("ip").args(args.split_whitespace()).status().expect("ip").success();
    assert!(ok, "ip {args}");
}

/// The machine's two-host network: `rxeA` is on `veA`.
fn wire() -> bool {
    devices().is_some_and(|(a, _)| a == "rxeA")
}

/// Buffers at both ends of a stream of writes.
struct Stream {
    src: Vec<u8>,
    dst: Vec<u8>,
    ms: Mr,
    md: Mr,
}

impl Stream {
    fn new(e: &mut Ends) -> Stream {
        let src: Vec<u8> = (0..1 << 20).map(|i: u32| (i * 31) as u8).collect();
        let dst = vec![0u8; src.len()];
        let ms = e.a.register(&src, Access::empty());
        let md = e.b.register(&dst, Access::REMOTE_WRITE);
        Stream { src, dst, ms, md }
    }

    /// Writes without a pause, three at a time, until `count` have ended or one failed. `during` runs
    /// after the third, with others under way.
    fn run(&self, e: &mut Ends, count: u64, during: impl FnOnce()) -> Result<(), Status> {
        let mut during = Some(during);
        let mut posted = 0;
        for wr in 0..count {
            while posted < count.min(wr + 3) {
                let to = remote(&self.dst, 0, self.md);
                e.a.ad.write(e.ea, posted, mem(&self.src, self.ms), to, None).expect("write");
                e.a.ad.flush();
                posted += 1;
            }
            e.done_a(wr)?;
            if wr == 2
                && let Some(during) = during.take()
            {
                during();
            }
        }
        assert!(self.dst == self.src);
        Ok(())
    }
}

#[test]
fn link_down_and_up_in_mid_transfer_is_bridged() {
    if !wire() {
        return;
    }
    let mut e = Ends::connected(|c| c.ib.timeout = 17).expect("device");
    let stream = Stream::new(&mut e);
    // The far side of the wire: what the device sends is lost. (Linux 6.12's Soft-RoCE fails a queue pair whose own
    // interface takes no packets.)
    let flap = || {
        ip("-n router link set rB down");
        std::thread::sleep(std::time::Duration::from_millis(300));
        ip("-n router link set rB up");
        ip("-n router -6 addr replace fd00:7:2::fe/64 dev rB nodad");
    };
    assert_eq!(stream.run(&mut e, 10, flap), Ok(()));
    e.check_alive();
}

#[test]
fn own_port_down_is_noted_and_refuses_new_endpoints() {
    if !wire() {
        return;
    }
    let mut e = Ends::connected(|c| c.ib.timeout = 19).expect("device");
    e.check_alive();
    ip("-n router link set rA down");
    e.until("note", |e| e.a.ad.notes().iter().any(|n| n.contains("went down")).then_some(()));
    assert_eq!(e.a.ad.create("x").unwrap_err().code, Code::Unavailable);
    ip("-n router link set rA up");
    e.until("note", |e| e.a.ad.notes().iter().any(|n| n.contains("is up")).then_some(()));
    ip("-n router -6 addr replace fd00:7:1::fe/64 dev rA nodad");
    std::thread::sleep(std::time::Duration::from_millis(500));
    let (ea, eb) = join(&mut e.a, &mut e.b);
    e.a.ad.send(ea, &[b"again"]).expect("send");
    e.until("again", |e| e.b.message(eb));
}

#[test]
fn a_vanished_address_ends_the_connections() {
    if !wire() || std::env::var("RDMA_TEST_GID_INDEX").is_ok() {
        return;
    }
    let mut e = Ends::connected(|_| {}).expect("device");
    e.check_alive();
    ip("addr del 10.7.1.1/24 dev veA");
    let ea = e.ea;
    let s = e.until("down", |e| e.a.down(ea));
    assert_eq!((s.code, s.reason), (Code::Unavailable, Reason::PeerGone), "{s}");
    assert!(s.message.contains("10.7.1.1"), "{s}");
    ip("addr add 10.7.1.1/24 dev veA");
    ip("route replace default via 10.7.1.254 dev veA table 101");
    // A new adapter, since the old one has moved to the IPv6 address.
    let mut e = Ends::connected(|_| {}).expect("device");
    e.check_alive();
}

/// Both ends on one device, which loses the address that they were opened with.
#[test]
fn rdma_cm_and_the_mtu_follow_the_port() {
    if !wire() || std::env::var("RDMA_TEST_GID_INDEX").is_ok() {
        return;
    }
    let open = |name| {
        let mut cfg = config(name, "rxeA");
        cfg.ib.use_rdma_cm = true;
        Node::open(&cfg)
    };
    let (a, b) = (open("alpha"), open("beta"));
    let mut e = Ends { a, b, ea: EpId(0), eb: EpId(0) };
    (e.ea, e.eb) = join_by_cm(&mut e, true);
    e.check_alive();
    ip("link set veA mtu 1500");
    ip("addr del 10.7.1.1/24 dev veA");
    let (ea, eb) = (e.ea, e.eb);
    e.until("down", |e| e.a.down(ea));
    e.until("down", |e| e.b.down(eb));
    for n in [&e.a, &e.b] {
        assert!(n.ad.notes().iter().any(|n| n.contains("MTU is 1024")), "{:?}", n.ad.notes());
    }
    e.a.ad.destroy(ea);
    e.b.ad.destroy(eb);
    (e.ea, e.eb) = join_by_cm(&mut e, true);
    e.check_alive();
    ip("link set veA mtu 4200");
    ip("addr add 10.7.1.1/24 dev veA");
    ip("route replace default via 10.7.1.254 dev veA table 101");
}

/// The peer's interface goes down and stays down: its connections end, others do not notice.
#[test]
fn an_interface_that_stays_down_ends_its_connections_only() {
    if !wire() || std::env::var("RDMA_TEST_GID_INDEX").is_ok() {
        return;
    }
    let mut e = Ends::connected(|_| {}).expect("device");
    let other = || Node::open(&config("other", "rxe0"));
    let (mut a, mut b) = (other(), other());
    let (ea, eb) = join(&mut a, &mut b);
    let mut others = Ends { a, b, ea, eb };
    let stream = Stream::new(&mut e);
    let s = stream.run(&mut e, 20, || ip("link set veB down")).expect_err("nothing arrives");
    assert_eq!((s.code, s.reason), (Code::Unavailable, Reason::PeerGone), "{s}");
    others.check_alive();
    let ea = e.ea;
    e.until("down", |e| e.a.down(ea));
    e.a.ad.destroy(ea);
    ip("link set veB up");
    ip("-6 addr replace fd00:7:2::1/64 dev veB nodad");
    ip("route replace default via 10.7.2.254 dev veB table 102");
    ip("-6 route replace default via fd00:7:2::fe dev veB table 102");
    std::thread::sleep(std::time::Duration::from_millis(500));
    Ends::connected(|_| {}).expect("device").check_alive();
    others.check_alive();
}
