//! Strangers do not fill the log.

use std::io::Write;
use std::net::TcpStream;

use rdma_hostile::victim::{Options, Victim};
use rdma_hostile::{PATIENCE, eventually};

#[test]
fn r10_a_flood_of_garbage_writes_few_lines_and_counts_the_rest() {
    const FLOOD: usize = 3000;
    let victim = Victim::start(Options::default());
    let start = std::time::Instant::now();
    for _ in 0..FLOOD {
        if let Ok(mut s) = TcpStream::connect(victim.address()) {
            let _ = s.write_all(b"GET / HTTP/1.1\r\n\r\n");
        }
    }
    // The count comes with a later line, or by itself once the flood is over.
    let told = |log: &[String]| log.iter().any(|l| l.contains("were left out"));
    assert!(eventually(PATIENCE, || told(&victim.log())), "no count: {:?}", victim.log().last());
    let lines = victim.log().len();
    // A hundred at once, ten a second, and a few of other places.
    let most = 100 + 10 * (start.elapsed().as_secs() as usize + 1) + 20;
    assert!(lines < most && most < FLOOD, "{lines} lines for {FLOOD} strangers, not {most}");
    println!("{lines} lines for {FLOOD} strangers: {:?}", victim.log().last());
    victim.finish();
}
