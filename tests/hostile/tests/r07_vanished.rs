//! Hosts that vanish without a word: from one moment on nothing comes, and nothing is acknowledged.

use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use rdma_hostile::eventually;
use rdma_hostile::victim::{Options, Victim};
use rdma_hostile::wire::{Client, FLAG_MANUAL, Facts, message};

/// From here on this end's kernel drops whatever comes, before it is acknowledged.
fn vanish(client: &Client) {
    let mut drop_all = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &mut drop_all };
    let (fd, len) = (client.stream.as_raw_fd(), size_of::<libc::sock_fprog>() as libc::socklen_t);
    let option = (&raw const program).cast();
    // SAFETY: the program and its one instruction live through the call.
    let rc = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, option, len) };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}

/// How long a receive from a peer whose host vanishes, as `lose` has it, lasts, that has this flag and returns so many credits.
fn found_after(flags: u32, credits: bool, lose: fn(&Client)) -> Duration {
    const PEER_TIMEOUT: u64 = 4_000;
    let mut victim = Victim::start(Options { peer_timeout_ms: PEER_TIMEOUT, ..Options::default() });
    let facts = Facts { flags, ..Facts::new("peer", 1) };
    let mut peer = Client::dial(victim.address(), facts, None).unwrap();
    if credits {
        peer.message(&message::credit(64)).unwrap();
    } else {
        // What it gets takes the credits up, so that no question for a sign of life can be sent.
        for index in 0..6 {
            peer.message(&message::request(index, 3, b"gen:100")).unwrap();
        }
        while peer.next_message(message::CONTENT).is_ok() {
            if peer.next_message(message::CONTENT).is_err() {
                break;
            }
        }
    }
    let op = victim.recv("peer", b"never", 1, 100, false, Duration::from_secs(600));
    std::thread::sleep(Duration::from_millis(100));
    lose(&peer);
    let start = Instant::now();
    let mut ended = None;
    eventually(Duration::from_secs(60), || {
        ended = victim.wait(op, Duration::from_millis(100));
        ended.is_some()
    });
    let took = start.elapsed();
    let ended = ended.unwrap_or_else(|| panic!("nobody noticed in {took:?}"));
    println!("{took:?}: {}", ended.text);
    if std::env::var_os(ALONE).is_some() {
        // For whom the victim is asked whether it works.
        loopback(true);
    }
    victim.finish();
    took
}

#[test]
fn r07_a_vanished_host_is_found_in_the_peer_timeout() {
    found_after(0, true, vanish);
}

/// Its application drives progress, so its silence proves nothing. That of its host does.
#[test]
fn r07_a_vanished_host_whose_application_drives_is_found() {
    found_after(FLAG_MANUAL, true, vanish);
}

/// Nothing is on its way to it, and nothing can be: only the system can ask.
#[test]
fn r07_a_vanished_host_to_which_nothing_may_be_sent_is_found() {
    found_after(FLAG_MANUAL, false, vanish);
}

/// Loopback of this network namespace goes up or down.
fn loopback(up: bool) {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    // SAFETY: zeros are a request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    (request.ifr_name[0], request.ifr_name[1]) = (b'l' as _, b'o' as _);
    request.ifr_ifru.ifru_flags = if up { (libc::IFF_UP | libc::IFF_RUNNING) as _ } else { 0 };
    // SAFETY: a request of that kind, that lives through the call.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &request) };
    assert_eq!(rc, 0, "SIOCSIFFLAGS: {}", std::io::Error::last_os_error());
}

const ALONE: &str = "RDMA_TEST_ALONE";

/// The way to a peer on this very host is gone: then the system sends nothing, so that nothing of what it sends again is counted.
#[test]
fn r07_a_lost_path_of_ones_own_host_is_found() {
    if std::env::var_os(ALONE).is_some() {
        loopback(true);
        found_after(FLAG_MANUAL, true, |_| loopback(false));
        return;
    }
    // Again, where loopback is nobody else's.
    let mut again = Command::new(std::env::current_exe().unwrap());
    again
        .args(["--exact", "r07_a_lost_path_of_ones_own_host_is_found", "--nocapture"])
        .env(ALONE, "1");
    // SAFETY: system calls alone.
    unsafe {
        again.pre_exec(|| {
            let own = libc::unshare(libc::CLONE_NEWNET) == 0
                || libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET) == 0;
            if own { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        });
    }
    let status = again.status().expect("a network namespace of its own");
    assert!(status.success(), "{status}");
}
