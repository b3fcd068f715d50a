//! Memory that does not come: the victim's own, for which a peer asks, and its peers', which the victim reads.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rdma_hostile::PATIENCE;
use rdma_hostile::honest::Honest;
use rdma_hostile::victim::{Options, Victim, from_hex};
use rdma_transport::fabric::ProviderKind;
use rdma_transport::status::Code;

/// More than goes into a message of any provider.
const LONG: usize = 4 << 20;
/// Attackers at a time: more than a manager has threads at first.
const ATTACKERS: usize = 4;
/// Of a receive that will miss it, but not before it has asked for the memory.
const DEADLINE: Duration = Duration::from_secs(5);

/// Connections may be silent for as long as memory is.
fn options(name: &str, provider: ProviderKind) -> Options {
    let (name, provider) = (name.to_owned(), Some(provider));
    Options { name, provider, peer_timeout_ms: 300_000, ..Options::default() }
}

fn skip(name: &str) {
    println!("SKIPPED {name}: userfaultfd is not allowed here");
}

/// Waits until somebody waits for that process's memory.
fn is_touched(owner: &mut Victim) -> bool {
    owner.tell(&format!("touched {}", PATIENCE.as_millis() / 2)) == "1"
}

/// What has to go on meanwhile: calls, transfers of others in either direction and both ways of carrying
/// content, deadlines.
fn goes_on(victim: &mut Victim, attacker: &str) {
    victim.check_honest();
    let never = victim.recv(attacker, b"never", 9, 100, false, Duration::from_millis(300));
    let ended = victim.wait(never, PATIENCE).expect("a deadline is kept");
    assert_eq!(ended.code, Code::DeadlineExceeded, "{ended:?}");
}

#[test]
fn r19_a_peer_that_asks_for_memory_that_does_not_come() {
    for provider in [ProviderKind::Tcp, ProviderKind::Shm] {
        let mut victim = Victim::start(options("victim", provider));
        let Some(sent) = victim.send_slow(b"slow", 1, LONG) else {
            return skip("r19_a_peer_that_asks_for_memory_that_does_not_come");
        };
        let mut config = options("attacker", provider).peer("attacker");
        config.listen = None;
        let attacker = Honest::start(config);
        let peer = attacker.manager.import_address(&from_hex(&victim.tell("blob"))).unwrap();
        let (tx, rx) = channel();
        let then = move |got| drop(tx.send(got));
        attacker.ask_then(&peer, (b"slow", 1, LONG), false, 4 * PATIENCE, then).unwrap();
        assert!(is_touched(&mut victim), "{provider:?}: nobody reads the source");
        goes_on(&mut victim, "attacker");
        assert!(rx.try_recv().is_err(), "{provider:?}: it has ended without its content");
        victim.tell("serve");
        let got = rx.recv_timeout(PATIENCE).unwrap();
        assert_eq!((got.code, got.nbytes), (Code::Ok, LONG as u64), "{provider:?}: {got:?}");
        assert_eq!(victim.wait(sent, PATIENCE).unwrap().code, Code::Ok);
        drop(attacker);
        victim.finish();
    }
}

/// On shm the victim reads its peers' memory. Several let it wait there. What waits ends when the memory comes, or with
/// the peer: until then it could still be written to its destination.
#[test]
fn r19_peers_whose_memory_does_not_come() {
    let mut victim = Victim::start(options("victim", ProviderKind::Shm));
    let mut attackers = Vec::new();
    for i in 0..ATTACKERS {
        let name = format!("attacker-{i}");
        let mut attacker = Victim::start(options(&name, ProviderKind::Shm));
        if attacker.send_slow(b"slow", 1, LONG).is_none() {
            return skip("r19_peers_whose_memory_does_not_come");
        }
        let blob = attacker.tell("blob");
        victim.tell(&format!("import {blob}"));
        victim.tell(&format!("connect {name} {}", PATIENCE.as_millis()));
        let op = victim.recv(&name, b"slow", 1, LONG, true, DEADLINE);
        let over = Instant::now() + DEADLINE;
        assert!(is_touched(&mut attacker), "nobody reads the memory of {name}");
        goes_on(&mut victim, &name);
        attackers.push((attacker, op, over));
    }
    for (i, (mut attacker, op, over)) in attackers.into_iter().enumerate() {
        std::thread::sleep(over.saturating_duration_since(Instant::now()));
        if i % 2 == 0 {
            attacker.tell("serve");
        } else {
            attacker.signal(libc::SIGKILL);
        }
        let ended = victim.wait(op, PATIENCE).expect("it ends with the wait");
        assert_ne!(ended.code, Code::Ok, "attacker {i}: its deadline was long over");
    }
    victim.finish();
}
