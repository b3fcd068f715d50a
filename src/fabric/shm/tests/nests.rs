//! Sockets that are gone, or of which no peer can come.

use std::os::unix::fs::DirBuilderExt;

use super::*;
use crate::fabric::shm::socket::own_uid;
use crate::fabric::shm::wire::Home;

/// Whoever cleans up /tmp has removed the file.
#[test]
fn r41_new_peers_find_a_socket_that_was_removed() {
    let (mut a, mut b) = (open(None), open(None));
    let first = connect(&mut a, &mut b);
    let removed = b.greeter.path().map(std::fs::remove_file);
    removed.expect("a file").unwrap();
    let second = connect(&mut a, &mut b);
    for (ea, eb) in [first, second] {
        a.send(ea, &[b"hello"]).unwrap();
        let mut events = Vec::new();
        b.poll(&mut events);
        assert!(matches!(events[..], [Event::Message { ep, .. }] if ep == eb), "{events:?}");
    }
}

/// Only root can make a directory that belongs to another user.
#[test]
fn r41_a_peer_of_another_user_is_told_at_once() {
    if own_uid() != 0 {
        return;
    }
    let number = u64::from_le_bytes(sys::random().unwrap());
    let directory = std::env::temp_dir().join(format!("rdma-transport-{number:016x}"));
    std::fs::DirBuilder::new().mode(0o700).create(&directory).unwrap();
    std::os::unix::fs::chown(&directory, Some(12_345), None).unwrap();
    let mut a = open(None);
    let ep = a.create("b").unwrap();
    let home = Home::new(sys::random().unwrap(), 1, directory.as_os_str().as_encoded_bytes());
    let remote = Address { host: a.core.host, home: home.unwrap(), token: [1; 16] };
    a.connect(ep, &remote.encode(), true, None).unwrap();
    let mut events = Vec::new();
    while events.is_empty() {
        a.poll(&mut events);
    }
    std::fs::remove_dir(&directory).unwrap();
    let [Event::Down { status, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(status.code, Code::FailedPrecondition, "{status}");
    assert!(status.message.contains("user 12345, this process to user 0"), "{status}");
}
