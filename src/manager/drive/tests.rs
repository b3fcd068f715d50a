use super::*;
use crate::config::{Config, Progress};
use crate::fabric::ProviderKind;

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
