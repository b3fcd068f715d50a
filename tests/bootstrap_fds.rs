//! Descriptors are counted per process: this test has one of its own.

#[path = "bootstrap/fake.rs"]
#[allow(dead_code, reason = "shared with the other tests of bootstrap")]
mod fake;

use std::net::TcpStream;

use fake::*;
use rdma_transport::bootstrap::BootConfig;
use rdma_transport::status::{Code, Status};

fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Successes over every kind, refusals, wrong secrets, garbage: nothing stays open.
#[test]
fn a_thousand_handshakes_leave_no_descriptor() {
    let mut id = identity("b");
    let b_of = |config: BootConfig| Node::new(id.clone(), config);
    let mut b = b_of(secret("s"));
    let addr = b.listen();
    id = b.boot.identity().clone();
    let mut before = 0;
    for i in 0..1000 {
        if i == 20 {
            before = open_fds();
        }
        let mut of_a = identity("a");
        if i % 2 == 0 {
            of_a.host_id = id.host_id;
        }
        let mut a = Node::new(of_a, secret(if i % 5 == 4 { "wrong" } else { "s" }));
        b.neg.refuse = (i % 7 == 6).then(|| Status::new(Code::Aborted, "no"));
        if i % 11 == 10 {
            let _ = std::io::Write::write(&mut TcpStream::connect(addr).unwrap(), b"GET /");
        }
        a.dial(1, &[addr]);
        drive(&mut [&mut a, &mut b], |n| {
            n.iter().all(|n| !n.events.is_empty() && n.boot.pending() == 0)
        });
        b.events.clear();
        b.neg.socks.clear();
        b.neg.live.clear();
    }
    assert_eq!(open_fds(), before);
}
