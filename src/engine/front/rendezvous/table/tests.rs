use super::*;
use crate::api::Meta;
use crate::status::Code;

fn sent(n: u64) -> Sent {
    Sent {
        tensor: Tensor { meta: Meta { nbytes: n, ..Default::default() }, addr: 0, device: 0 },
        content: Content::new(),
        done: None,
        deadline: u64::MAX,
    }
}

/// Offers a tensor: what it met, as the words of the tests.
fn send(t: &mut Table, key: &[u8], step: i64, sent: Sent) -> &'static str {
    send_copied(t, key, step, sent, &[])
}

fn send_copied(t: &mut Table, key: &[u8], step: i64, sent: Sent, content: &[u8]) -> &'static str {
    match t.meet(key, step) {
        Meeting::Waiter(Waiter::Local(3), _) => "local 3",
        Meeting::Waiter(Waiter::Remote(5), _) => "remote 5",
        Meeting::Waiter(..) => "another",
        Meeting::Nobody(free) => {
            t.store(free, step, sent, content);
            "stored"
        }
        Meeting::Duplicate => "duplicate",
        Meeting::Refused(_) => "refused",
        Meeting::Full => "full",
    }
}

/// Whether somebody waits for a tensor from now on.
fn wait(t: &mut Table, key: &[u8], step: i64, tolerate: bool, waiter: Waiter) -> bool {
    match t.recv(key, step, tolerate) {
        RecvOutcome::Nobody(free) => {
            t.wait(free, key, step, waiter);
            true
        }
        RecvOutcome::Duplicate => false,
        RecvOutcome::Matched(_) | RecvOutcome::Refused(_) => panic!("nothing is there"),
    }
}

#[test]
fn r19_copies_that_wait_are_bounded() {
    let mut t = Table::new();
    let content = [1; 8 << 10];
    let most = COPIES / content.len();
    for i in 0..=most {
        send_copied(&mut t, &i.to_le_bytes(), i as i64 % 2, sent(1), &content);
    }
    assert_eq!(t.copies, COPIES);
    let mut copied = |i: usize| match t.recv(&i.to_le_bytes(), i as i64 % 2, false) {
        RecvOutcome::Matched(sent) => sent.content.len(),
        _ => panic!("it waits"),
    };
    assert_eq!((copied(0), copied(most)), (content.len(), 0));
    assert_eq!(t.copies, COPIES - content.len());
    t.cleanup(0);
    t.abort(1, Status::new(Code::Aborted, "stop")).unwrap();
    assert_eq!((t.copies, t.tensors), (0, 0));
}

#[test]
fn send_then_receive_and_the_other_way() {
    let mut t = Table::new();
    assert_eq!(send(&mut t, b"k", 1, sent(5)), "stored");
    assert_eq!(send(&mut t, b"k", 1, sent(5)), "duplicate");
    let got = t.recv(b"k", 1, false);
    assert!(matches!(got, RecvOutcome::Matched(s) if s.tensor.meta.nbytes == 5));
    assert!(wait(&mut t, b"k", 1, false, Waiter::Local(3)));
    assert!(!wait(&mut t, b"k", 1, false, Waiter::Local(4)), "a duplicate");
    assert!(wait(&mut t, b"k", 1, true, Waiter::Remote(5)));
    assert_eq!(send(&mut t, b"k", 1, sent(1)), "local 3");
    assert_eq!(send(&mut t, b"k", 1, sent(1)), "remote 5");
    assert!(t.steps.is_empty());
}

#[test]
fn abort_and_cleanup() {
    let mut t = Table::new();
    send(&mut t, b"a", 1, sent(1));
    assert!(wait(&mut t, b"b", 1, false, Waiter::Local(1)));
    let drained = t.abort(1, Status::new(Code::Aborted, "stop")).unwrap();
    let (mut tensors, mut waiters) = (0, 0);
    drained.end(|_| tensors += 1, |_| waiters += 1);
    assert_eq!((tensors, waiters, t.tensors()), (1, 1, 0));
    assert_eq!(send(&mut t, b"a", 1, sent(1)), "refused");
    assert!(matches!(t.recv(b"a", 1, false), RecvOutcome::Refused(_)));
    t.cleanup(1);
    assert_eq!(send(&mut t, b"a", 1, sent(1)), "stored");
}

#[test]
fn expires() {
    let mut t = Table::new();
    send(&mut t, b"a", 1, Sent { deadline: 10, ..sent(1) });
    send(&mut t, b"b", 1, Sent { deadline: 20, ..sent(1) });
    assert_eq!(t.expire(9).len(), 0);
    assert_eq!(t.expire(10).len(), 1);
    assert_eq!(t.next_deadline(), 20);
    assert_eq!(t.expire(30).len(), 1);
    assert!(t.steps.is_empty());
}

#[test]
fn a_waiter_leaves_by_the_hash_of_its_key_and_the_last_takes_the_key() {
    let mut t = Table::new();
    for waiter in [Waiter::Remote(1), Waiter::Remote(2), Waiter::Remote(3)] {
        assert!(wait(&mut t, b"k", 1, true, waiter));
    }
    assert!(wait(&mut t, b"other", 1, false, Waiter::Remote(4)));
    let hash = t.hash(b"k");
    t.remove_waiter(hash, 1, Waiter::Remote(4));
    t.remove_waiter(hash, 1, Waiter::Remote(1));
    for left in [2, 3] {
        let met = t.meet(b"k", 1);
        assert!(
            matches!(met, Meeting::Waiter(Waiter::Remote(i), key) if i == left && *key == *b"k")
        );
    }
    assert_eq!(t.counts(), (0, 1));
    t.cleanup(1);
    assert!(t.steps.is_empty());
}

/// However steps follow each other, each is found while something is in it, and none is left behind.
#[test]
fn steps_come_and_go_in_any_order() {
    let (mut t, mut held) = (Table::new(), std::collections::BTreeSet::new());
    let mut seed = 3u32;
    for _ in 0..20_000 {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let step = i64::from(seed >> 28);
        match seed >> 25 & 7 {
            0..4 if held.insert(step) => assert_eq!(send(&mut t, b"k", step, sent(1)), "stored"),
            0..6 => assert_eq!(matches!(t.recv(b"k", step, false), RecvOutcome::Matched(_)), {
                held.remove(&step)
            }),
            _ => assert_eq!(t.cleanup(step).is_empty(), !held.remove(&step)),
        }
        assert_eq!(t.steps().to_vec(), held.iter().copied().collect::<Vec<_>>());
    }
    held.iter().for_each(|&step| drop(t.cleanup(step)));
    assert!(t.steps.is_empty());
}
