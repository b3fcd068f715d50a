//! Peers that flood, beside one that works.

use std::io::Read;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rdma_hostile::honest::Honest;
use rdma_hostile::victim::{Options, Victim, from_hex};
use rdma_hostile::wire::frames::Frame;
use rdma_hostile::wire::{Client, Facts, message};
use rdma_hostile::{PATIENCE, eventually};
use rdma_transport::status::Code;

const FLOODERS: u64 = 8;
/// PINGs of one write.
const BURST: usize = 64;
/// Transfers of the honest peer, one after the other.
const TRANSFERS: u64 = 200;
/// PINGs of all flooders that the victim may answer while it serves one of them. A transfer takes the victim a few polls
/// (some 600 PINGs on two idle processors). The honest peer waits for a processor in many of them, on a busy machine, but
/// hardly in three of four; a victim that takes too much of the flood at a time does so in all.
const SHARE: u64 = 25_000;

/// A peer that sends PINGs as fast as the victim takes them, and throws away what comes back.
struct Flooder {
    answers: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Flooder {
    fn start(address: &str, n: u64) -> Flooder {
        let mut c = Client::dial(address, Facts::new(&format!("flooder-{n}"), n), None).unwrap();
        c.message(&message::credit(64)).unwrap();
        // The victim takes it for a peer now; before that it bears less.
        c.message(&message::ping()).unwrap();
        c.next_message(message::PONG).unwrap();
        let (answers, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, over) = (answers.clone(), stop.clone());
        let mut back = c.stream.try_clone().unwrap();
        // Each returns the credit of the answer to another.
        let ping = Frame::send(&message::any(message::PING, 0, 1, &[]));
        let answer = Frame::send(&message::pong()).bytes().len() as u64;
        let write = std::thread::spawn(move || {
            let mut go_on = true;
            while go_on && !over.load(Ordering::Relaxed) {
                let burst: Vec<u8> = (0..BURST).flat_map(|_| c.numbered(&ping)).collect();
                go_on = c.raw(&burst).is_ok();
            }
            let _ = c.stream.shutdown(Shutdown::Both);
        });
        let read = std::thread::spawn(move || {
            let mut bytes = vec![0; 64 << 10];
            while let Ok(n @ 1..) = back.read(&mut bytes) {
                count.fetch_add(n as u64 / answer, Ordering::Relaxed);
            }
        });
        Flooder { answers, stop, threads: vec![write, read] }
    }

    fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    fn is_at_it(&self) -> bool {
        self.threads.iter().all(|t| !t.is_finished())
    }
}

impl Drop for Flooder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[test]
fn r05_a_flood_of_pings_beside_an_honest_peer() {
    let mut victim = Victim::start(Options::default());
    let honest = Honest::start(Options::default().peer("honest"));
    let peer = honest.manager.import_address(&from_hex(&victim.tell("blob"))).unwrap();
    honest.manager.connect(&peer, Some(PATIENCE)).unwrap();
    let address = victim.address().to_owned();
    let flooders: Vec<Flooder> = (1..=FLOODERS).map(|n| Flooder::start(&address, n)).collect();
    let floods = eventually(PATIENCE, || flooders.iter().all(|f| f.answers() > 10_000));
    assert!(floods, "no flood: {:?}", victim.log());
    let answers = || flooders.iter().map(Flooder::answers).sum::<u64>();
    let begun = answers();
    let mut shares = Vec::new();
    for step in 0..TRANSFERS {
        let before = answers();
        let got = honest.ask(&peer, b"gen:1000 beside", step as i64, 1000, PATIENCE);
        assert_eq!((got.code, got.right), (Code::Ok, true), "{got:?}");
        shares.push(answers() - before);
    }
    assert!(answers() > begun, "no flood");
    assert!(flooders.iter().all(Flooder::is_at_it), "the flood went on all the time");
    shares.sort_unstable();
    let quarter = shares[shares.len() / 4];
    println!(
        "{quarter} answers to PINGs in a quarter of the transfers, or less; at most {:?}",
        shares.last()
    );
    assert!(quarter < SHARE, "{quarter} PINGs were answered for each transfer: {shares:?}");
    drop(flooders);
    victim.finish();
}
