//! The network changes under a connection: on two devices joined by a wire only.

use std::process::Command;

use rdma_transport::fabric::{Access, Adapter};
use rdma_transport::status::{Code, Reason};

use super::ends::*;

fn ip(args: &str) {
    let ok = Command::new("ip").args(args.split_whitespace()).status().expect("ip").success();
    assert!(ok, "ip {args}");
}

/// The machine's two-host network: `rxeA` is on `veA`.
fn wire() -> bool {
    devices().is_some_and(|(a, _)| a == "rxeA")
}

fn transfer(e: &mut Ends, mut during: impl FnMut(&mut Ends)) {
    let src: Vec<u8> = (0..2 << 20).map(|i: u32| (i * 31) as u8).collect();
    let dst = vec![0u8; src.len()];
    let ms = e.a.register(&src, Access::empty());
    let md = e.b.register(&dst, Access::REMOTE_WRITE);
    e.a.ad.write(e.ea, 1, mem(&src, ms), remote(&dst, 0, md), Some(1)).expect("write");
    e.a.ad.flush();
    during(e);
    assert_eq!(e.done_a(1), Ok(()));
    assert!(dst == src);
    e.b.log.clear();
    e.a.ad.deregister(ms).expect("deregister");
    e.b.ad.deregister(md).expect("deregister");
}

#[test]
fn link_down_and_up_in_mid_transfer_is_bridged() {
    if !wire() {
        return;
    }
    let mut e = Ends::connected(|c| c.ib.timeout = 17).expect("device");
    transfer(&mut e, |_| {
        // The far side of the wire: the device itself stays up.
        ip("-n router link set rA down");
        std::thread::sleep(std::time::Duration::from_millis(300));
        ip("-n router link set rA up");
        ip("-n router -6 addr replace fd00:7:1::fe/64 dev rA nodad");
    });
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
