//! The tools themselves, and the first attacks with them.

use rdma_hostile::victim::{Options, Victim};
use rdma_hostile::wire::{Client, Facts, message};
use rdma_hostile::{PATIENCE, honest};

/// The client speaks the protocol: a victim takes it for a peer, with and without a secret.
#[test]
fn the_client_is_understood() {
    for secret in [None, Some("sesame")] {
        let options = Options { secret: secret.map(Into::into), ..Options::default() };
        let mut victim = Victim::start(options);
        let facts = Facts::new("stranger", 1);
        let mut c = Client::dial(victim.address(), facts, secret.map(str::as_bytes)).unwrap();
        c.message(&message::credit(64)).unwrap();
        c.message(&message::request(7, 3, b"gen:100")).unwrap();
        let content = c.next_message(message::CONTENT).unwrap();
        assert_eq!(message::index_of(&content), Some(7));
        assert!(content.ends_with(&honest::pattern(b"gen:100", 3, 100)));
        assert_eq!(victim.tell("channels stranger"), "1");
        victim.finish();
    }
}

/// The other direction: the victim dials, asks, and gets what a stranger gives.
#[test]
fn the_victim_dials_a_client() {
    let mut victim = Victim::start(Options::default());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    victim.tell(&format!("add stranger {}", listener.local_addr().unwrap()));
    let op = victim.recv("stranger", b"k", 1, 9, false, PATIENCE);
    let (stream, _) = listener.accept().unwrap();
    let mut c = Client::accept(stream, Facts::new("stranger", 2), None).unwrap();
    c.message(&message::credit(64)).unwrap();
    let request = c.next_message(message::REQUEST).unwrap();
    let index = message::index_of(&request).unwrap();
    let meta = message::meta(4, 0, &[9], 9);
    c.message(&message::content(index, &meta, &honest::pattern(b"k", 1, 9))).unwrap();
    let got = victim.wait(op, PATIENCE).unwrap();
    assert!(got.right, "{got:?}");
    victim.finish();
}

/// A wrong secret is refused, garbage after the handshake ends that connection alone.
#[test]
fn wrong_secrets_and_garbage_frames_end_one_connection() {
    let options = Options { secret: Some("sesame".into()), ..Options::default() };
    let mut victim = Victim::start(options);
    let address = victim.address().to_owned();
    let refused = Client::dial(&address, Facts::new("a", 3), Some(b"wrong"));
    assert!(refused.err().unwrap().to_string().contains("secret"));
    let mut c = Client::dial(&address, Facts::new("b", 4), Some(b"sesame")).unwrap();
    c.raw(&[0xFF; 64]).unwrap();
    assert!(c.closed_within(PATIENCE));
    assert!(victim.is_alive());
    victim.finish();
}
