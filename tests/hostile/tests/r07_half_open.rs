//! Half-open connections, and addresses that a stranger names.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rdma_hostile::PATIENCE;
use rdma_hostile::victim::{Options, Victim};
use rdma_hostile::wire::{Client, FLAG_AUTH, Facts, HELLO, frame, message};

/// So many connections stand open at a time, and each that ends is followed by another.
const CROWD: usize = 1000;

/// What the crowd says before it falls silent.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Says {
    Nothing,
    Hello,
}

struct Flood {
    stop: Arc<AtomicBool>,
    opened: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Flood {
    fn start(address: &str, says: Says, auth: bool) -> Flood {
        let (stop, opened) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, count, address) = (stop.clone(), opened.clone(), address.to_owned());
        let run = move || {
            let mut open: std::collections::VecDeque<TcpStream> = Default::default();
            while !stopped.load(Ordering::Relaxed) {
                let n = count.fetch_add(1, Ordering::Relaxed);
                if let Ok(mut s) = TcpStream::connect(&address) {
                    if says == Says::Hello {
                        let mut facts = Facts::new(&format!("stranger {n}"), n);
                        facts.flags |= if auth { FLAG_AUTH } else { 0 };
                        let _ = s.write_all(&frame(HELLO, &facts.body()));
                    }
                    open.push_back(s);
                }
                if open.len() > CROWD {
                    open.pop_front();
                    // A flood of new ones too, but not one that only measures the machine.
                    std::thread::sleep(Duration::from_micros(500));
                }
            }
        };
        Flood { stop, opened, thread: Some(std::thread::spawn(run)) }
    }

    fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// Newcomers get in within two seconds on a machine that is not loaded; here within twenty, where the
/// crowd used to keep them out for as long as it went on.
#[test]
fn r07_newcomers_get_in_while_half_open_connections_flood() {
    for (says, secret) in [
        (Says::Nothing, None),
        (Says::Hello, None),
        (Says::Nothing, Some("sesame")),
        (Says::Hello, Some("sesame")),
    ] {
        let options = Options { secret: secret.map(Into::into), ..Options::default() };
        let mut victim = Victim::start(options);
        let flood = Flood::start(victim.address(), says, secret.is_some());
        assert!(rdma_hostile::eventually(PATIENCE, || flood.opened() > 2 * CROWD as u64));
        let before = flood.opened();
        for _ in 0..3 {
            let took = victim.check_honest_within(Duration::from_secs(20));
            println!("{says:?}, secret {}: an honest peer took {took:?}", secret.is_some());
        }
        assert!(flood.opened() > before, "the flood did not go on");
        drop(flood);
        victim.finish();
    }
}

/// A stranger who names addresses must not choose whom the victim connects to; a peer that proved the
/// secret may.
#[test]
fn r07_addresses_that_a_stranger_names_are_not_dialled() {
    for secret in [None, Some("sesame")] {
        let trap = TcpListener::bind("127.0.0.1:0").unwrap();
        trap.set_nonblocking(true).unwrap();
        let port = trap.local_addr().unwrap().port().to_le_bytes();
        let options = Options { secret: secret.map(Into::into), ..Options::default() };
        let mut victim = Victim::start(options);
        let mut facts = Facts::new("stranger", 5);
        facts.addresses = vec![[&[4, 127, 0, 0, 1][..], &port].concat()];
        let mut c = Client::dial(victim.address(), facts, secret.map(str::as_bytes)).unwrap();
        c.message(&message::credit(64)).unwrap();
        // Not known before the victim has taken the connection.
        let known = || victim.try_tell("channels stranger").as_deref() == Ok("1");
        assert!(rdma_hostile::eventually(PATIENCE, known));
        drop(c);
        assert!(rdma_hostile::eventually(PATIENCE, || victim.tell("channels stranger") == "0"));
        let op = victim.recv("stranger", b"key", 1, 9, false, Duration::from_secs(3));
        let ended = victim.wait(op, PATIENCE).unwrap();
        let dialled = trap.accept().is_ok();
        assert_eq!(dialled, secret.is_some(), "{ended:?}");
        assert!(dialled || ended.text.contains("its address was not given"), "{ended:?}");
        victim.finish();
    }
}
