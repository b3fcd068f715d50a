//! A copy that waits for memory is no silence of a process that drives; and the end of one hides nothing of what it said before.

use super::*;

fn marks(a: &ShmAdapter, b: &ShmAdapter, (ea, eb): (EpId, EpId)) -> [u64; 2] {
    [a.sign_of_life(ea), b.sign_of_life(eb)]
}

#[test]
fn r19_who_polls_while_a_copy_waits_shows_life_and_nobody_else() {
    for copy in ["cma", "ring"] {
        let (mut a, mut b) = (open(Some(copy)), open(Some(copy)));
        let eps = connect(&mut a, &mut b);
        [&mut a, &mut b].into_iter().for_each(|side| side.leave_moves());
        let (mut from, mut to) = (vec![1u8; 100_000], vec![0u8; 100_000]);
        let [from, base] = [&mut from, &mut to].map(|memory| memory.as_mut_ptr().addr() as u64);
        // SAFETY: `to` outlives the adapters.
        let mr = unsafe { b.register(base, 100_000, Access::all()) }.unwrap();
        // SAFETY: as above, of `from`.
        let local = unsafe { Mem::new(from, 100_000, 0) };
        a.write(eps.0, 1, local, Remote { addr: base, rkey: mr.rkey }, None).unwrap();
        let mut events = Vec::new();
        // One of them has a copy to make, which lasts.
        let (mut waits, one) = loop {
            b.poll(&mut events);
            a.poll(&mut events);
            if let Some(one) = b.take_move(&mut events) {
                break (false, one);
            }
            if let Some(one) = a.take_move(&mut events) {
                break (true, one);
            }
        };
        assert_eq!(waits, copy == "ring", "the sender");
        for _ in 0..3 {
            // It is asked for a sign of life, and answers: nobody hears that.
            a.send(eps.0, &[b"ask"]).unwrap();
            b.send(eps.1, &[b"answer"]).unwrap();
            let before = marks(&a, &b, eps);
            b.housekeeping(&mut events);
            let after = marks(&a, &b, eps);
            assert!(after[0] != before[0], "{copy}: b drives");
            assert_eq!(after[1], before[1], "{copy}: a does not");
            a.housekeeping(&mut events);
            let last = marks(&a, &b, eps);
            assert_eq!(last[0], after[0], "{copy}: b does not any more");
            assert!(last[1] != after[1], "{copy}: a drives");
        }
        // No content has moved.
        assert_eq!([a.progress_mark(eps.0), b.progress_mark(eps.1)], [0; 2]);
        let mut next = Some(one);
        let done = |events: &[Event]| events.iter().any(|e| matches!(e, Event::Done { .. }));
        while !done(&events) || next.is_some() {
            if let Some(one) = next.take() {
                let moved = one.run();
                if waits { a.moved(moved, &mut events) } else { b.moved(moved, &mut events) }
            }
            a.poll(&mut events);
            b.poll(&mut events);
            next = a.take_move(&mut events);
            waits = next.is_some();
            if next.is_none() {
                next = b.take_move(&mut events);
            }
        }
        while link(&mut a, eps.0).is_behind() || link(&mut b, eps.1).is_behind() {
            events.clear();
            a.poll(&mut events);
            b.poll(&mut events);
        }
        // Who is heard says nothing besides.
        let before = marks(&a, &b, eps);
        [&mut a, &mut b].into_iter().for_each(|side| side.housekeeping(&mut events));
        assert_eq!(marks(&a, &b, eps), before);
    }
}

/// What comes of these polls: messages, and then the end.
fn last_words(adapter: &mut ShmAdapter, mut events: Vec<Event>) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    loop {
        for event in events.drain(..) {
            match event {
                Event::Message { bytes, .. } => words.push(bytes.bytes().to_vec()),
                Event::Down { .. } => return words,
                other => panic!("{other:?}"),
            }
        }
        adapter.poll(&mut events);
    }
}

/// It was there when that was looked at, and its socket is at its end when that is read.
#[test]
fn r43_last_words_of_a_peer_that_leaves_while_its_socket_is_read() {
    let (mut a, mut b) = (open(None), open(None));
    let (ea, eb) = connect(&mut a, &mut b);
    a.send(ea, &[b"received"]).unwrap();
    drop(a);
    let (at, mut events) = (b.index[&eb.0], Vec::new());
    b.hear_link(at, false, &mut events);
    assert_eq!(last_words(&mut b, events), [b"received"]);
}

/// Meanwhile a message of another was heard, and no more than that was looked at.
#[test]
fn r43_last_words_of_a_peer_while_another_is_heard() {
    let (mut a, mut b, mut c) = (open(None), open(None), open(None));
    let (ea, eb) = connect(&mut a, &mut b);
    let (ec, _) = connect(&mut c, &mut b);
    a.send(ea, &[b"received"]).unwrap();
    a.hang_up(ea);
    let (at, mut events) = (b.index[&eb.0], Vec::new());
    for _ in 0..3 {
        let gone = link(&mut b, eb).gone();
        b.ended(at, gone, &mut events);
        // The turn is that of the one that left after each other one's.
        b.heard = at;
        b.flush();
        c.send(ec, &[b"other"]).unwrap();
        assert!(matches!(b.poll_one(), One::Message(..)));
    }
    assert!(events.is_empty(), "{events:?}");
    drop(a);
    let words = last_words(&mut b, events);
    assert!(words.contains(&b"received".to_vec()), "{words:?}");
}
