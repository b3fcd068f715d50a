//! The shm provider where there are no more descriptors. The limit is that of a process: these tests
//! have one of their own, and take turns.

mod shm_support;

use std::sync::{Mutex, MutexGuard, PoisonError};

use rdma_transport::fabric::Adapter;
use shm_support::{Side, wait_for};

static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While this lives, no call gives a new descriptor.
struct NoMore(libc::rlimit);

impl NoMore {
    fn begin() -> NoMore {
        let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `old` is a valid place for the result, the new limit a valid value.
        unsafe {
            assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut old), 0);
            // Input, output and errors are open; poll takes no more entries than this.
            let new = libc::rlimit { rlim_cur: 3, ..old };
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &new), 0);
        }
        assert!(std::fs::File::open("/dev/null").is_err());
        NoMore(old)
    }
}

impl Drop for NoMore {
    fn drop(&mut self) {
        // SAFETY: a valid value.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &self.0) };
    }
}

fn is_readable(fd: std::os::fd::RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

#[test]
fn a_peer_that_cannot_be_accepted_yet_keeps_nobody_awake() {
    let _turn = turn();
    let (mut a, mut b) = (Side::open(None), Side::open(None));
    a.create();
    b.create();
    let (to_a, to_b) = (a.adapter.address(a.ep).unwrap(), b.adapter.address(b.ep).unwrap());
    a.adapter.connect(a.ep, &to_b, false, None).unwrap();
    b.adapter.connect(b.ep, &to_a, true, None).unwrap();
    // So many that it looks at its sockets.
    (0..100).for_each(|_| b.pump());
    let limit = NoMore::begin();
    let fd = a.adapter.fd().unwrap();
    let rests = (0..10_000).any(|_| {
        a.pump();
        !is_readable(fd)
    });
    drop(limit);
    assert!(rests, "its descriptor was always readable");
    wait_for(&mut a, &mut b, |a, b| a.connected && b.connected);
}
