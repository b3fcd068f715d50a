//! Memory that pages in slowly holds up what is in it, and nothing else: other peers' transfers,
//! calls and deadlines of the same managers go on.

use std::time::{Duration, Instant};

use rdma_transport::api::*;
use rdma_transport::config::Config;
use rdma_transport::fabric::ProviderKind;
use rdma_transport::status::Code;

#[path = "support/slow_memory.rs"]
mod slow_memory;

use slow_memory::*;

/// Fits into a message of tcp.
const SLOW_MESSAGE: usize = 20 << 10;

#[test]
fn r19_a_slow_source_holds_up_its_own_transfer_only() {
    for kind in KINDS {
        let Some(source) = slow(BIG) else { return };
        let (a, b, other) = three(kind);
        let sent = send(&a.m, b"slow", source.tensor());
        let got = recv(&b.m, "a", b"slow", Target::Library, LONG);
        source.wait_for_fault();
        goes_on(&a.m, "a", &other.m, &format!("{kind:?}, the sender"));
        goes_on(&b.m, "b", &other.m, &format!("{kind:?}, the receiver"));
        assert!(sent.try_recv().is_err() && got.try_recv().is_err());
        source.serve();
        assert!(got.recv_timeout(LONG).unwrap().unwrap() == vec![0; BIG], "{kind:?}");
        sent.recv_timeout(LONG).unwrap().unwrap();
        [b, a, other].into_iter().for_each(Node::end);
    }
}

#[test]
fn r19_a_slow_destination_holds_up_its_own_transfer_only() {
    for kind in KINDS {
        let Some(dst) = slow(BIG) else { return };
        let (a, b, other) = three(kind);
        let data = vec![3u8; BIG];
        let sent = send(&a.m, b"slow", tensor(data.as_ptr() as u64, BIG));
        let target = Target::Given { addr: dst.addr, len: BIG as u64 };
        let got = recv(&b.m, "a", b"slow", target, LONG);
        dst.wait_for_fault();
        goes_on(&a.m, "a", &other.m, &format!("{kind:?}, the sender"));
        goes_on(&b.m, "b", &other.m, &format!("{kind:?}, the receiver"));
        assert!(got.try_recv().is_err());
        // Zeros come where a page was waited for, and elsewhere, before the content.
        dst.serve();
        assert!(got.recv_timeout(LONG).unwrap().unwrap() == data, "{kind:?}");
        sent.recv_timeout(LONG).unwrap().unwrap();
        [b, a, other].into_iter().for_each(Node::end);
    }
}

#[test]
fn r19_memory_comes_back_only_when_no_copy_touches_it() {
    for kind in KINDS {
        let Some(dst) = slow(BIG) else { return };
        let (a, b, other) = three(kind);
        let data = vec![3u8; BIG];
        let _sent = send(&a.m, b"slow", tensor(data.as_ptr() as u64, BIG));
        let target = Target::Given { addr: dst.addr, len: BIG as u64 };
        // It has to begin before its deadline.
        let limit = Duration::from_secs(3);
        let got = recv(&b.m, "a", b"slow", target, limit);
        dst.wait_for_fault();
        // Its deadline passes. The copy that waits for the page would still write to it.
        let never = recv(&b.m, "a", b"never", Target::Library, limit);
        assert!(never.recv_timeout(LONG).unwrap().is_err());
        assert!(got.try_recv().is_err(), "{kind:?}: given back while it is written");
        dst.serve();
        let status = got.recv_timeout(LONG).unwrap().unwrap_err();
        assert_eq!(status.code, Code::DeadlineExceeded, "{kind:?}: {status}");
        // SAFETY: the mapping is alive.
        unsafe { (dst.addr as *mut u8).write_bytes(9, BIG) };
        goes_on(&b.m, "b", &other.m, "afterwards");
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(dst.addr as *const u8, BIG) };
        assert!(bytes.iter().all(|&b| b == 9), "{kind:?}: written afterwards");
        [b, a, other].into_iter().for_each(Node::end);
    }
}

#[test]
fn r19_a_slow_source_of_a_message_holds_up_its_own_call_only() {
    for kind in KINDS {
        let Some(source) = slow(SMALL) else { return };
        let (a, b, other) = three(kind);
        let (from, tensor) = (a.m.clone(), source.tensor());
        let call = std::thread::spawn(move || send(&from, b"slow", tensor));
        source.wait_for_fault();
        goes_on(&a.m, "a", &other.m, &format!("{kind:?}"));
        let got = recv(&b.m, "a", b"slow", Target::Library, LONG);
        source.serve();
        assert!(got.recv_timeout(LONG).unwrap().unwrap() == vec![0; SMALL]);
        call.join().unwrap().recv_timeout(LONG).unwrap().unwrap();
        [b, a, other].into_iter().for_each(Node::end);
    }
}

#[test]
fn r19_a_source_that_turned_slow_before_it_was_asked_for() {
    // The first is in a message already, the second is copied for one, the third is longer than any.
    for (len, late) in [(SMALL, false), (SLOW_MESSAGE, true), (BIG, true)] {
        for kind in KINDS {
            let Some(source) = slow(len) else { return };
            source.serve();
            let (a, b, other) = three(kind);
            let sent = send(&a.m, b"slow", source.tensor());
            source.evict();
            let got = recv(&b.m, "a", b"slow", Target::Library, LONG);
            if late {
                source.wait_for_fault();
                goes_on(&a.m, "a", &other.m, &format!("{kind:?}, {len} bytes"));
                goes_on(&b.m, "b", &other.m, &format!("{kind:?}, {len} bytes"));
                source.serve();
            }
            assert!(got.recv_timeout(LONG).unwrap().unwrap() == vec![0; len], "{kind:?}, {len}");
            sent.recv_timeout(LONG).unwrap().unwrap();
            [b, a, other].into_iter().for_each(Node::end);
        }
    }
}

#[test]
fn r19_a_destination_of_a_message_that_turned_slow() {
    for kind in KINDS {
        let Some(dst) = slow(SMALL) else { return };
        dst.serve();
        let (a, b, other) = three(kind);
        let target = Target::Given { addr: dst.addr, len: SMALL as u64 };
        let got = recv(&b.m, "a", b"slow", target, LONG);
        dst.evict();
        let data = vec![3u8; SMALL];
        let sent = send(&a.m, b"slow", tensor(data.as_ptr() as u64, SMALL));
        dst.wait_for_fault();
        sent.recv_timeout(LONG).unwrap().unwrap();
        goes_on(&a.m, "a", &other.m, &format!("{kind:?}, the sender"));
        goes_on(&b.m, "b", &other.m, &format!("{kind:?}, the receiver"));
        assert!(got.try_recv().is_err());
        dst.serve();
        assert!(got.recv_timeout(LONG).unwrap().unwrap() == data, "{kind:?}");
        [b, a, other].into_iter().for_each(Node::end);
    }
}

#[test]
fn r19_memory_whose_checksum_is_computed_may_be_slow() {
    for kind in KINDS {
        let Some(source) = slow(BIG) else { return };
        let (a, b, other) = three_with(kind, true);
        let sent = send(&a.m, b"slow", source.tensor());
        let dst = vec![1u8; BIG];
        let target = Target::Given { addr: dst.as_ptr() as u64, len: BIG as u64 };
        let got = recv(&b.m, "a", b"slow", target, LONG);
        source.wait_for_fault();
        goes_on(&a.m, "a", &other.m, &format!("{kind:?}, the sender"));
        goes_on(&b.m, "b", &other.m, &format!("{kind:?}, the receiver"));
        assert!(got.try_recv().is_err());
        source.serve();
        assert!(got.recv_timeout(LONG).unwrap().unwrap() == vec![0; BIG], "{kind:?}");
        sent.recv_timeout(LONG).unwrap().unwrap();
        [b, a, other].into_iter().for_each(Node::end);
    }
}

#[test]
fn r19_however_many_copies_are_kept_calls_and_deadlines_go_on() {
    let (a, b, other) = three(ProviderKind::Tcp);
    let mut slow_ones = Vec::new();
    for i in 0..12 {
        let Some(source) = slow(SLOW_MESSAGE) else { return };
        let key = format!("slow {i}");
        source.serve();
        let sent = send(&a.m, key.as_bytes(), source.tensor());
        source.evict();
        let dst = vec![1u8; SLOW_MESSAGE];
        let target = Target::Given { addr: dst.as_ptr() as u64, len: dst.len() as u64 };
        let got = recv(&a.m, "a", key.as_bytes(), target, LONG);
        slow_ones.push((source, sent, got, dst));
    }
    // So many threads are kept, and the last of them is not.
    for (source, ..) in &slow_ones[..8] {
        source.wait_for_fault();
    }
    goes_on_with(&a.m, "a", &other.m, "all are kept", &[SMALL, SMALL]);
    // What goes on elsewhere.
    goes_on(&b.m, "b", &other.m, "the others");
    for (source, ..) in &slow_ones {
        source.serve();
    }
    for (_, sent, got, dst) in slow_ones {
        got.recv_timeout(LONG).unwrap().unwrap();
        sent.recv_timeout(LONG).unwrap().unwrap();
        assert!(dst == vec![0; SLOW_MESSAGE]);
    }
    goes_on(&a.m, "a", &other.m, "afterwards");
    [b, a, other].into_iter().for_each(Node::end);
}

/// The progress thread is kept, another thread in a turn of its own, and one stands in. When the second is back that one
/// leaves, and the next has seen nothing to look at for long: it has to hear of that.
#[test]
fn r19_who_watches_hears_that_who_stood_in_has_left() {
    const LEN: usize = 256 << 10;
    let (Some(first), Some(second)) = (slow(LEN), slow(LEN)) else { return };
    let (a, b, other) = three(ProviderKind::Tcp);
    let got = [(&b, &b"first"[..]), (&other, b"second")]
        .map(|(m, key)| recv(&m.m, "a", key, Target::Library, LONG));
    let asked = |peer| a.m.peer_info(peer).unwrap().requests_received > 0;
    let begun = Instant::now();
    while !(asked("b") && asked("other")) {
        assert!(begun.elapsed() < LONG, "nobody asks");
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut sent = vec![send(&a.m, b"first", first.tensor())];
    first.wait_for_fault();
    sent.push(send(&a.m, b"second", second.tensor()));
    let m = a.m.clone();
    let turns = std::thread::spawn(move || m.progress());
    second.wait_for_fault();
    // Who watches looks for a second, and then waits to be told.
    std::thread::sleep(Duration::from_millis(1500));
    second.serve();
    let never = recv(&a.m, "b", b"never", Target::Library, Duration::from_millis(300));
    let ended = never.recv_timeout(Duration::from_secs(8));
    first.serve();
    let status = ended.expect("nobody drives").unwrap_err();
    assert_eq!(status.code, Code::DeadlineExceeded, "{status}");
    for end in got {
        assert!(end.recv_timeout(LONG).unwrap().unwrap() == vec![0; LEN]);
    }
    sent.into_iter().for_each(|end| end.recv_timeout(LONG).unwrap().unwrap());
    turns.join().unwrap().unwrap();
    [b, a, other].into_iter().for_each(Node::end);
}

/// All that a peer says on shm lies behind the content that waits, and what it is asked, too. Both processes drive, and show it.
#[test]
fn r19_a_slow_page_is_no_silence_on_shm() {
    std::thread::scope(|scope| {
        for at_sender in [true, false] {
            for copy in [None, Some("cma"), Some("ring")] {
                scope.spawn(move || outlasts_the_peer_timeout(copy, at_sender));
            }
        }
    });
}

fn outlasts_the_peer_timeout(copy: Option<&str>, at_sender: bool) {
    const TIMEOUT_MS: u64 = 1500;
    let what = format!("{copy:?}, at the sender: {at_sender}");
    let Some(memory) = slow(BIG) else { return };
    let [a, b] = ["a", "b"].map(|name| {
        Node::of(Config {
            name: name.into(),
            provider: Some(ProviderKind::Shm),
            peer_timeout_ms: TIMEOUT_MS,
            shm_copy: copy.map(str::to_owned),
            ..Config::default()
        })
    });
    b.knows(&a);
    b.m.connect("a", Some(LONG)).unwrap();
    let fast = vec![0u8; BIG];
    let source = if at_sender { memory.tensor() } else { tensor(fast.as_ptr() as u64, BIG) };
    let target = match at_sender {
        true => Target::Library,
        false => Target::Given { addr: memory.addr, len: BIG as u64 },
    };
    let sent = send(&a.m, b"slow", source);
    let got = recv(&b.m, "a", b"slow", target, LONG);
    memory.wait_for_fault();
    // With half a second more a peer that is silent would have been found.
    let later = Duration::from_millis(2 * TIMEOUT_MS);
    if let Ok(end) = got.recv_timeout(later) {
        panic!("{what}: {:?}", end.map(drop));
    }
    assert!(sent.try_recv().is_err(), "{what}");
    memory.serve();
    assert!(got.recv_timeout(LONG).unwrap().unwrap() == fast, "{what}");
    sent.recv_timeout(LONG).unwrap().unwrap();
    [b, a].into_iter().for_each(Node::end);
}
