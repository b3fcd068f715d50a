//! A child by a bare clone, for which no fork handler runs, holds every socket of its parent. It would
//! hold those of other tests too: this test has a process of its own.

#[path = "bootstrap/fake.rs"]
#[allow(dead_code, reason = "shared with the other tests of bootstrap")]
mod fake;

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;

use fake::*;
use rdma_transport::bootstrap::{BootConfig, Identity};
use rdma_transport::fabric::ProviderKind;

/// A child that does nothing, until this is dropped.
struct Child(libc::pid_t);

impl Child {
    fn fork() -> Child {
        // SAFETY: like a fork: no memory is shared; the child calls nothing but functions that are safe
        // for signals.
        match unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } {
            0 => loop {
                // SAFETY: as above.
                unsafe { libc::pause() };
            },
            pid => {
                assert!(pid > 0);
                Child(pid as libc::pid_t)
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: plain system calls about a child that was not waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

fn is_readable(fd: std::os::fd::RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

/// A forked child finds this descriptor closed.
fn is_closed_in_a_child(fd: std::os::fd::RawFd) {
    // SAFETY: the child calls nothing but what is safe for signals, and ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit((libc::fcntl(fd, libc::F_GETFD) != -1).into());
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert!(libc::WIFEXITED(status));
        assert_eq!(libc::WEXITSTATUS(status), 0, "the child holds the socket");
    }
}

/// The socket of a handshake goes on to the tcp provider, or to whoever watches the peer: at no moment would a child that
/// another thread forks keep it.
#[test]
fn r11_a_child_forked_while_a_socket_changes_hands_does_not_keep_it() {
    for kind in [ProviderKind::Tcp, ProviderKind::Shm] {
        let node = |name: &str| {
            let facts = Identity { providers: offers(&[kind]), ..identity(name) };
            Node::new(Identity { host_id: [7; 16], ..facts }, BootConfig::default())
        };
        let (mut a, mut b) = (node("a"), node("b"));
        a.neg.on_socket = Some(is_closed_in_a_child);
        b.neg.on_socket = Some(is_closed_in_a_child);
        meet(&mut a, &mut b);
        for node in [&a, &b] {
            let ready = node.ready().expect("connected");
            assert_eq!(ready.sock.is_none(), kind == ProviderKind::Tcp);
            ready.sock.inspect(|sock| is_closed_in_a_child(sock.as_raw_fd()));
        }
    }
}

/// Connections that ended in each way, and the listener, leave nothing in the epoll set.
#[test]
fn what_a_child_holds_open_is_not_watched() {
    for bytes in [&b""[..], b"GET / HTTP/1.1", b"RDMT\x01\0\0\0\x04\0\0\0\x09\0\x0c\0"] {
        let mut node = Node::plain("b");
        let addr = node.listen();
        let mut client = TcpStream::connect(addr).unwrap();
        while node.boot.pending() == 0 {
            node.poll();
        }
        let _child = Child::fork();
        client.write_all(bytes).unwrap();
        client.shutdown(Shutdown::Both).unwrap();
        while node.boot.pending() > 0 {
            node.poll();
        }
        assert!(!is_readable(node.boot.fd()), "after {bytes:?}");
        node.boot.stop_listening();
        let late = TcpStream::connect(addr);
        assert!(!is_readable(node.boot.fd()), "the listener, after {late:?}");
    }
}
