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
        Meeting::Waiter(Waiter::Local(3)) => "local 3",
        Meeting::Waiter(Waiter::Remote(5)) => "remote 5",
        Meeting::Waiter(_) => "another",
        Meeting::Nobody(free) => {
            t.store(free, step, sent, content);
            "stored"
        }
        Meeting::Duplicate => "duplicate",
        Meeting::Refused(_) => "refused",
        Meeting::Full => "full",
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
    let mut copied = |i: usize| match t.recv(&i.to_le_bytes(), i as i64 % 2, false, |_, _| None) {
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
    let got = t.recv(b"k", 1, false, |_, _| None);
    assert!(matches!(got, RecvOutcome::Matched(s) if s.tensor.meta.nbytes == 5));
    let waiting = t.recv(b"k", 1, false, |_, _| Some(Waiter::Local(3)));
    assert!(matches!(waiting, RecvOutcome::Waiting));
    let dup = t.recv(b"k", 1, false, |_, _| Some(Waiter::Local(4)));
    assert!(matches!(dup, RecvOutcome::Duplicate));
    let dup = t.recv(b"k", 1, true, |_, _| Some(Waiter::Remote(5)));
    assert!(matches!(dup, RecvOutcome::Waiting));
    assert_eq!(send(&mut t, b"k", 1, sent(1)), "local 3");
    assert_eq!(send(&mut t, b"k", 1, sent(1)), "remote 5");
    assert!(t.steps.is_empty());
}

#[test]
fn abort_and_cleanup() {
    let mut t = Table::new();
    send(&mut t, b"a", 1, sent(1));
    t.recv(b"b", 1, false, |_, _| Some(Waiter::Local(1)));
    let drained = t.abort(1, Status::new(Code::Aborted, "stop")).unwrap();
    let (mut tensors, mut waiters) = (0, 0);
    drained.end(|_| tensors += 1, |_| waiters += 1);
    assert_eq!((tensors, waiters, t.tensors()), (1, 1, 0));
    assert_eq!(send(&mut t, b"a", 1, sent(1)), "refused");
    assert!(matches!(t.recv(b"a", 1, false, |_, _| None), RecvOutcome::Refused(_)));
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
