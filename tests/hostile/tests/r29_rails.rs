//! Strangers that would carry a part of an honest peer's transfers. Without a secret they have all that can be known of it: its
//! name and its incarnation.

use rdma_hostile::honest::Honest;
use rdma_hostile::victim::{Options, Victim, from_hex};
use rdma_hostile::wire::{Client, Facts, message};
use rdma_hostile::{PATIENCE, Rng, eventually};
use rdma_transport::bootstrap::AddressBlob;

const RAIL_ADD: u8 = 50;
const RAIL_JOIN: u8 = 51;
const RAIL_JOINED: u8 = 52;
const RAIL_END: u8 = 53;
/// HELLO's flag: it takes rails.
const TAKES_RAILS: u32 = 8;
/// It takes rails, and connects to be one.
const IS_RAIL: u32 = TAKES_RAILS | 16;
const LEN: usize = 4 << 20;

#[test]
fn r29_a_stranger_adds_no_rail() {
    let options = Options { connections: 3, ..Options::default() };
    let mut victim = Victim::start(options.clone());
    let honest = Honest::start(options.peer("honest"));
    honest.manager.import_address(&from_hex(&victim.tell("blob"))).unwrap();
    let blob = honest.manager.export_address().unwrap();
    let incarnation = AddressBlob::decode(&blob).unwrap().incarnation;
    let ask = |step| {
        let got = honest.ask("victim", b"gen:4194304", step, LEN, PATIENCE);
        assert!(got.right, "step {step}: {got:?}");
    };
    ask(0);
    let connections = || honest.manager.peer_info("victim").unwrap().channels;
    assert!(eventually(PATIENCE, || connections() == 3));
    let (mut strangers, mut told) = (Vec::new(), 0);
    for n in 1..=30u64 {
        let facts = Facts { incarnation, flags: IS_RAIL, ..Facts::new("honest", n) };
        // From the eighth on they are turned away, sooner or later in the handshake.
        let Ok(mut stranger) = Client::dial(victim.address(), facts, None) else { continue };
        let _ = stranger.message(&message::credit(64));
        let name = [n as u8; 16];
        let _ = stranger.message(&message::any(RAIL_JOIN, 0, 0, &[&name]));
        if n % 3 == 0 {
            // Nothing but its name may come by a rail.
            let _ = stranger.message(&message::request(7, 3, b"gen:100"));
            assert!(stranger.closed_within(PATIENCE), "stranger {n} asks for a tensor");
            told += 1;
        } else {
            strangers.push(stranger);
        }
        ask(n as i64);
    }
    assert!(told > 0 && strangers.len() > told, "nobody got as far as that");
    assert!(strangers.iter_mut().all(|stranger| stranger.closed_within(PATIENCE)));
    assert_eq!(connections(), 3);
    victim.finish();
}

/// Strangers that have come before an honest peer's rails, and join nothing, keep these out no more than they keep others out.
#[test]
fn r29_strangers_keep_no_rail_out() {
    let options = Options { connections: 3, ..Options::default() };
    let victim = Victim::start(options.clone());
    let mut main =
        Client::dial(victim.address(), Facts { flags: TAKES_RAILS, ..Facts::new("peer", 1) }, None)
            .unwrap();
    main.message(&message::credit(64)).unwrap();
    let rail = |n: u8| {
        let facts = Facts { flags: IS_RAIL, nonce: [n; 32], ..main.facts.clone() };
        let mut rail = Client::dial(victim.address(), facts, None)?;
        rail.message(&message::credit(64))?;
        std::io::Result::Ok(rail)
    };
    let strangers: Vec<Client> = (1..=7).map(|n| rail(n).unwrap()).collect();
    let mut own = rail(8).unwrap();
    let name = [7; 16];
    own.message(&message::any(RAIL_JOIN, 0, 0, &[&name])).unwrap();
    main.message(&message::any(RAIL_ADD, 0, 0, &[&name])).unwrap();
    let joined = main.next_message(RAIL_JOINED);
    assert!(joined.is_ok(), "{joined:?}: {:?}", victim.log());
    drop(strangers);
    victim.finish();
}

/// What a peer says about rails in one of its lives, and what it asks for to be written over them.
fn lie(victim: &str, name: &str, seed: u64) -> usize {
    let mut rng = Rng::new(seed);
    let facts = Facts { flags: TAKES_RAILS, ..Facts::new(name, seed) };
    let Ok(mut main) = Client::dial(victim, facts.clone(), None) else { return 0 };
    let mut said = usize::from(main.message(&message::credit(64)).is_ok());
    let mut rails = Vec::new();
    for n in 0..24 {
        let name = [rng.below(4) as u8; 16];
        let of = |kind| message::any(kind, 0, 0, &[&name]);
        let went = match rng.below(8) {
            0 | 1 => {
                let facts = Facts { flags: IS_RAIL, nonce: [n; 32], ..facts.clone() };
                let Ok(mut rail) = Client::dial(victim, facts, None) else { continue };
                let went = rail.message(&message::credit(64));
                rails.push(rail);
                went
            }
            2 => main.message(&of(RAIL_ADD)),
            3 | 4 if !rails.is_empty() => {
                let at = rng.below(rails.len() as u64) as usize;
                rails[at].message(&of(RAIL_JOIN))
            }
            5 => main.message(&of(RAIL_JOINED)),
            6 => main.message(&of(RAIL_END)),
            // A great one, into memory that only it knows of: it is cut, if there are rails.
            _ => {
                let there = (0x7000_0000, 1, LEN as u64);
                main.message(&message::request_into(u32::from(n), 3, there, b"gen:4194304"))
            }
        };
        said += usize::from(went.is_ok());
    }
    said
}

#[test]
fn r29_a_peer_that_lies_about_its_rails_harms_nobody() {
    let options = Options { connections: 3, ..Options::default() };
    let mut victim = Victim::start(options.clone());
    let honest = Honest::start(options.peer("honest"));
    honest.manager.import_address(&from_hex(&victim.tell("blob"))).unwrap();
    let mut said = 0;
    for seed in 0..60 {
        said += lie(victim.address(), &format!("liar {}", seed % 7), seed);
        let got = honest.ask("victim", b"gen:4194304", seed as i64, LEN, PATIENCE);
        assert!(got.right, "seed {seed}: {got:?}");
    }
    assert!(said > 500, "{said} messages were said");
    assert_eq!(honest.manager.peer_info("victim").unwrap().channels, 3);
    victim.finish();
}
