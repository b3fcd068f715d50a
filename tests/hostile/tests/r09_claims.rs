//! A name alone ends no living channel.

use std::time::{Duration, Instant};

use rdma_hostile::honest::Honest;
use rdma_hostile::victim::{Options, Victim, from_hex};
use rdma_hostile::wire::{Client, Facts, message};
use rdma_hostile::{PATIENCE, eventually};
use rdma_transport::status::Code;

/// An honest peer is served without a failure while strangers claim its name without a pause.
#[test]
fn r09_claims_of_a_name_do_not_end_the_honest_peer() {
    let mut victim = Victim::start(Options::default());
    let honest = Honest::start(Options::default().peer("honest"));
    let blob = from_hex(&victim.tell("blob"));
    honest.manager.import_address(&blob).unwrap();
    let address = victim.address().to_owned();
    let first = honest.ask("victim", b"gen:1000 first", 0, 1000, PATIENCE);
    assert!(first.right, "{first:?}");
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = stop.clone();
    let attack = std::thread::spawn(move || {
        let mut refused = 0;
        for seed in 1.. {
            if stopped.load(std::sync::atomic::Ordering::Relaxed) {
                break;
            }
            // Does all that an honest worker does, under its name.
            match Client::dial(&address, Facts::new("honest", seed), None) {
                Ok(_) => panic!("claim {seed} of a living peer's name succeeded"),
                Err(e) => refused += u32::from(e.to_string().contains("another process")),
            }
        }
        refused
    });
    let start = Instant::now();
    let mut step = 0;
    while start.elapsed() < Duration::from_secs(3) {
        step += 1;
        let got = honest.ask("victim", b"gen:50000", step, 50_000, PATIENCE);
        assert!(got.right, "step {step}: {got:?}");
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let refused = attack.join().unwrap();
    assert!(refused > 0, "no claim was refused: no attack");
    println!("{step} receives, {refused} claims refused");
    assert_eq!(victim.tell("channels honest"), "1");
    victim.finish();
}

/// A peer that is merely stopped keeps its channel; one that is dead loses it at once.
#[test]
fn r09_a_paused_peer_keeps_its_channel_and_a_dead_one_does_not() {
    let mut victim = Victim::start(Options { peer_timeout_ms: 600_000, ..Options::default() });
    let mut peer = Victim::start(Options {
        name: "peer".into(),
        peer_timeout_ms: 600_000,
        ..Options::default()
    });
    let blob = victim.tell("blob");
    peer.tell(&format!("import {blob}"));
    peer.tell("connect victim 30000");
    // The side that dialled is done first: stopped there, it would leave the victim in the middle of the handshake.
    assert!(eventually(PATIENCE, || victim.try_tell("channels peer").as_deref() == Ok("1")));
    peer.signal(libc::SIGSTOP);
    let address = victim.address().to_owned();
    for seed in 1..4 {
        let refused = Client::dial(&address, Facts::new("peer", seed), None);
        assert!(refused.is_err(), "a claim of a stopped peer's name succeeded");
    }
    assert_eq!(victim.tell("channels peer"), "1");
    peer.signal(libc::SIGCONT);
    let op = peer.recv("victim", b"gen:1000", 1, 1000, false, PATIENCE);
    let got = peer.wait(op, PATIENCE).unwrap();
    assert_eq!((got.code, got.right), (Code::Ok, true), "{got:?}");

    // Now it dies without a word, and the next of its name gets in.
    peer.signal(libc::SIGKILL);
    let mut seed = 10;
    let entered = || {
        seed += 1;
        Client::dial(&address, Facts::new("peer", seed), None).ok()
    };
    let mut next = None;
    let mut entered = entered;
    assert!(eventually(PATIENCE, || {
        next = entered();
        next.is_some()
    }));
    let mut next = next.unwrap();
    next.message(&message::credit(64)).unwrap();
    next.message(&message::request(7, 3, b"gen:100")).unwrap();
    next.next_message(message::CONTENT).unwrap();
    victim.finish();
}

/// Who proves the secret may take over a name at once: a restarted peer whose old process hangs.
#[test]
fn r09_the_secret_takes_a_name_over() {
    let secret = Some("sesame".to_owned());
    let mut victim = Victim::start(Options { secret, ..Options::default() });
    let address = victim.address().to_owned();
    let mut old = Client::dial(&address, Facts::new("peer", 1), Some(b"sesame")).unwrap();
    old.message(&message::credit(64)).unwrap();
    // Not known before the victim has taken the connection.
    assert!(eventually(PATIENCE, || victim.try_tell("channels peer").as_deref() == Ok("1")));
    let mut new = Client::dial(&address, Facts::new("peer", 2), Some(b"sesame")).unwrap();
    new.message(&message::credit(64)).unwrap();
    assert!(old.closed_within(PATIENCE));
    assert!(eventually(PATIENCE, || victim.tell("channels peer") == "1"));
    victim.finish();
}

/// The same where the hanging process has as many connections as a peer may have.
#[test]
fn r09_the_secret_takes_a_name_over_with_all_its_connections() {
    let secret = Some("sesame".to_owned());
    let mut victim = Victim::start(Options { secret, ..Options::default() });
    let address = victim.address().to_owned();
    let most = rdma_transport::limits::CHANNELS_PER_PEER;
    let mut old: Vec<Client> = (1..=most)
        .map(|n| {
            let facts = Facts { incarnation: [1; 16], ..Facts::new("peer", n as u64) };
            let mut client = Client::dial(&address, facts, Some(b"sesame")).unwrap();
            client.message(&message::credit(64)).unwrap();
            let n = n.to_string();
            assert!(eventually(PATIENCE, || victim.try_tell("channels peer").as_deref() == Ok(&n)));
            client
        })
        .collect();
    let mut new = Client::dial(&address, Facts::new("peer", 100), Some(b"sesame")).unwrap();
    new.message(&message::credit(64)).unwrap();
    new.message(&message::request(7, 3, b"gen:100")).unwrap();
    new.next_message(message::CONTENT).unwrap();
    assert!(old.iter_mut().all(|client| client.closed_within(PATIENCE)));
    assert_eq!(victim.tell("channels peer"), "1");
    victim.finish();
}

/// A host that vanished acknowledges nothing. Its successor gets in long before the peer timeout.
#[test]
fn r09_a_vanished_host_loses_its_name() {
    use std::os::fd::AsRawFd;
    let mut victim = Victim::start(Options { peer_timeout_ms: 600_000, ..Options::default() });
    let address = victim.address().to_owned();
    let mut old = Client::dial(&address, Facts::new("peer", 1), None).unwrap();
    old.message(&message::credit(64)).unwrap();
    assert!(eventually(PATIENCE, || victim.try_tell("channels peer").as_deref() == Ok("1")));
    // From here on this end's kernel drops whatever comes, before it is acknowledged.
    let mut drop_all = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &mut drop_all };
    let (fd, len) = (old.stream.as_raw_fd(), size_of::<libc::sock_fprog>() as libc::socklen_t);
    let option = (&raw const program).cast();
    // SAFETY: the program and its one instruction live through the call.
    let rc = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, option, len) };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    let start = Instant::now();
    let mut seed = 1;
    assert!(eventually(2 * PATIENCE, || {
        seed += 1;
        Client::dial(&address, Facts::new("peer", seed), None).is_ok()
    }));
    println!("the name was free after {:?}", start.elapsed());
    assert!(seed > 2, "the first claim succeeded: nobody was asked");
    victim.finish();
}

/// Without a secret a stranger may know all that an honest peer says of itself, its incarnation as well. It takes nothing of what
/// goes to the connection that is there.
#[test]
fn r09_who_copies_an_incarnation_is_asked_for_nothing() {
    let mut victim = Victim::start(Options::default());
    let address = victim.address().to_owned();
    for seed in 0..8u64 {
        let name = format!("honest-{seed}");
        let honest = Honest::start(Options::default().peer(&name));
        honest.serve();
        let blob = from_hex(&victim.tell("blob"));
        honest.manager.import_address(&blob).unwrap();
        assert!(honest.ask("victim", b"gen:100", 1, 100, PATIENCE).right);
        let own = honest.manager.export_address().unwrap();
        let incarnation = rdma_transport::bootstrap::AddressBlob::decode(&own).unwrap().incarnation;
        let facts = Facts { incarnation, ..Facts::new(&name, 1000 + seed) };
        let mut copies = Vec::new();
        if let Ok(mut copy) = Client::dial(&address, facts, None) {
            let _ = copy.message(&message::credit(64));
            copies.push(copy);
        }
        let op = victim.recv(&name, b"gen:100", 7, 100, false, PATIENCE / 2);
        let ended = victim.wait(op, PATIENCE).unwrap();
        assert_eq!((ended.code, ended.right), (Code::Ok, true), "{seed}: {ended:?}");
    }
    victim.finish();
}
