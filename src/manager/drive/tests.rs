use std::os::fd::AsRawFd;

use super::*;
use crate::config::{Config, Progress};
use crate::engine::front::pair::{PairState, Slot, Way};
use crate::fabric::ProviderKind;
use crate::manager::Timeout;

/// A driver's look on its way, in a blocking call, must not take the application's own descriptor from it: that would
/// hear of what comes afterwards when a timer is due.
#[test]
fn r01_a_driver_that_looks_leaves_the_event_descriptor_watched() {
    let (name, provider) = ("a".into(), Some(ProviderKind::Loopback));
    let config = Config { name, provider, progress: Progress::Manual, ..Config::default() };
    let manager = Manager::new(config).unwrap();
    manager.event_fd().unwrap();
    manager.look();
    assert!(manager.core.lock().wheel().is_watched());
    manager.look_watched();
    assert!(!manager.core.lock().wheel().is_watched());
    manager.progress().unwrap();
    assert!(manager.core.lock().wheel().is_watched());
    manager.destroy().unwrap();
}

/// A sleeper was woken twice, by what came and by a call: what is left of that must not make the application's
/// descriptor readable for good.
#[test]
fn r01_a_wake_up_that_nobody_needed_is_taken_back() {
    let (name, provider) = ("a".into(), Some(ProviderKind::Loopback));
    let config = Config { name, provider, progress: Progress::Manual, ..Config::default() };
    let manager = Manager::new(config).unwrap();
    let mut entry =
        libc::pollfd { fd: manager.event_fd().unwrap(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    let mut readable = || unsafe { libc::poll(&mut entry, 1, 0) > 0 };
    manager.core.signal();
    assert!(readable());
    let turns = (0..100).take_while(|_| {
        manager.progress().unwrap();
        readable()
    });
    assert!(turns.count() < 100, "it stays readable");
    manager.destroy().unwrap();
}

/// Who hears that a peer has ended, and before that what has come of it, may be a progress thread that a caller has taken the seat
/// from in its sleep: the caller is told.
#[test]
fn r01_what_is_heard_before_a_peers_end_wakes_the_caller_that_drives() {
    let [a, b] = ["a", "b"].map(|name| {
        let (name, provider) = (name.into(), Some(ProviderKind::Shm));
        Manager::new(Config { name, provider, progress: Progress::Manual, ..Config::default() })
            .unwrap()
    });
    let (mut written, content) = (0u64, 7u64);
    let (to, from) = ((&raw mut written) as u64, (&raw const content) as u64);
    let pairs = [&a, &b].map(|m| m.pair_create(0, Timeout::Never).unwrap());
    let addresses = [a.pair_address(pairs[0]).unwrap(), b.pair_address(pairs[1]).unwrap()];
    a.pair_connect(pairs[0], &addresses[1], None).unwrap();
    b.pair_connect(pairs[1], &addresses[0], None).unwrap();
    let slot = |way, addr| Slot { way, slot: 1, addr, len: 8 };
    // SAFETY: until both managers are gone.
    let (arrives, goes) = unsafe {
        (
            a.buffer_create(pairs[0], slot(Way::Recv, to), None).unwrap(),
            b.buffer_create(pairs[1], slot(Way::Send, from), None).unwrap(),
        )
    };
    let connected = |m: &Manager, pair| {
        m.turn();
        matches!(m.pair_facts(pair).unwrap().state, PairState::Connected)
    };
    while !(connected(&a, pairs[0]) & connected(&b, pairs[1])) {}
    (0..10).for_each(|_| _ = (a.turn(), b.turn()));
    // Nothing wakes who sleeps there by itself but a timer.
    let ch = {
        let core = a.core.lock();
        let peer = core.engine.find_peer("b").and_then(|peer| core.engine.peer(peer)).unwrap();
        let ch = peer.channels[0];
        let alive = core.world.connections.get(ch).unwrap().alive.as_ref().unwrap().as_raw_fd();
        let adapter = core.world.adapters[ProviderKind::Shm as usize].as_ref().unwrap();
        for fd in [alive, adapter.fd().unwrap()] {
            core.world.epoll.remove(fd);
        }
        ch
    };
    std::thread::scope(|scope| {
        let wait = scope.spawn(|| a.buffer_wait(arrives, Way::Recv, Timeout::Never));
        while !a.core.lock().wheel().sleeps() {
            std::thread::yield_now();
        }
        // SAFETY: `content` lives on.
        unsafe { b.buffer_send(goes, 0, 8, 0) }.unwrap();
        b.buffer_wait(goes, Way::Send, Timeout::Never).unwrap();
        b.destroy().unwrap();
        a.take_tags(&[Tag::Alive(ch)]);
        assert!(!a.core.lock().wheel().sleeps(), "it sleeps on");
        wait.join().unwrap().unwrap();
    });
    a.destroy().unwrap();
    assert_eq!(written, content);
}
