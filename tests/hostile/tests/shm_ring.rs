//! A peer that changes, without end, what it has already sent: it scribbles in its own ring while the
//! victim reads there. Alone in its process, since it scribbles in every ring that it finds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rdma_hostile::honest::Honest;
use rdma_hostile::shm;
use rdma_hostile::victim::{Options, Victim, from_hex};
use rdma_transport::fabric::ProviderKind;
use rdma_transport::status::Code;

const SENDS: usize = 2000;
const MARK: &[u8] = b"flip:";

#[test]
fn r12_a_peer_that_changes_what_it_sent_harms_itself_only() {
    let options = Options { provider: Some(ProviderKind::Shm), ..Options::default() };
    let mut victim = Victim::start(options.clone());
    let evil = Honest::start(options.peer("evil"));
    let blob = from_hex(&victim.tell("blob"));
    let peer = evil.manager.import_address(&blob).expect("the victim's address");
    evil.manager.connect(&peer, Some(Duration::from_secs(20))).expect("a connection");
    let rings = shm::own_mappings("rdma-transport-ring");
    assert!(!rings.is_empty(), "this process has no ring to scribble in");
    let (over, flips) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let scribbler = std::thread::spawn({
        let (over, flips) = (over.clone(), flips.clone());
        move || {
            while !over.load(Ordering::Relaxed) {
                flips.fetch_add(
                    rings.iter().map(|ring| ring.flip_behind(MARK)).sum(),
                    Ordering::Relaxed,
                );
            }
        }
    });
    let done = Arc::new(AtomicUsize::new(0));
    for n in 0..SENDS {
        let key = format!("flip:{n:04} and a tail so long that it takes a while to look at");
        victim.send(key.as_bytes(), 0, 100);
        let done = done.clone();
        let count = move |_| _ = done.fetch_add(1, Ordering::Relaxed);
        let timeout = Duration::from_secs(3);
        let asked = (key.as_bytes(), 0, 100);
        // Its own end of the connection may be gone: then it comes back.
        let _ = evil.ask_then(&peer, asked, false, timeout, count);
    }
    let counts = || (done.load(Ordering::Relaxed), flips.load(Ordering::Relaxed));
    let enough = || counts().0 >= SENDS / 2 && counts().1 > SENDS;
    let attacked = rdma_hostile::eventually(rdma_hostile::PATIENCE, enough);
    assert!(attacked, "the attack came to nothing: {:?} ended and scribbled upon", counts());
    over.store(true, Ordering::Relaxed);
    scribbler.join().expect("the scribbler");
    drop(evil);
    let sent = victim.ended().iter().filter(|e| e.code == Code::Ok).count();
    assert!(sent > 0, "nothing was ever sent");
    // It lives, serves others, and ends each send once.
    victim.finish();
}
