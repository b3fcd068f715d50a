//! Letters: by themselves, and between threads.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;

use super::mail::{Inbox, Lane, Own, Reader};

/// Takes a letter, and sends it.
fn send<T: Default + Clone>(lane: &mut Lane<T>, inbox: &Inbox<T>, value: T) {
    let mut own: Own<T> =
        lane.take_free().or_else(|| lane.take_new(T::default())).expect("there is memory");
    *own = value;
    lane.send(own, inbox);
}

fn next<T: Clone>(reader: &mut Reader<T>) -> Option<T> {
    let mut read = reader.next()?;
    let value = reader.value(&mut read).clone();
    reader.done(read);
    Some(value)
}

#[test]
fn letters_come_in_their_order_and_go_back() {
    let mut reader = Reader::<u32>::new().unwrap();
    let inbox = reader.inbox().clone();
    let (mut a, mut b) = (Lane::new(100).unwrap(), Lane::new(200).unwrap());
    assert!(reader.is_empty() && reader.next().is_none());
    for value in [1, 2] {
        send(&mut a, &inbox, value);
        send(&mut b, &inbox, 10 + value);
    }
    assert!(!reader.is_empty());
    let read: Vec<_> = std::iter::from_fn(|| next(&mut reader)).collect();
    assert_eq!(read, [1, 11, 2, 12]);
    assert!(reader.is_empty());
    a.take_back(|_| true);
    assert_eq!((a.count(), b.count()), (2, 2), "until the reader lets go");
    reader.clear();
    let mut back = Vec::new();
    a.take_back(|&mut value| {
        back.push(value);
        true
    });
    assert_eq!((a.count(), back), (0, vec![1, 2]));
    b.take_back(|_| true);
    assert_eq!(b.count(), 1, "the newest stays until there is another");
    // Nothing is allocated for these: two are there, and one was given back.
    let own = a.take_free().unwrap();
    a.give_back(own, true);
    for value in [3, 4] {
        let mut own = a.take_free().unwrap();
        *own = value;
        a.send(own, &inbox);
    }
    assert!(a.take_free().is_none());
    assert_eq!((next(&mut reader), next(&mut reader)), (Some(3), Some(4)));
    b.take_back(|_| false);
    assert_eq!(b.count(), 0);
    assert!(b.take_free().is_some_and(|own| *own == 11) && b.take_free().is_none());
}

#[test]
#[should_panic(expected = "a letter of another lane")]
fn a_letter_goes_by_its_own_lane() {
    let reader = Reader::<u32>::new().unwrap();
    let (mut a, mut b) = (Lane::new(0).unwrap(), Lane::new(0).unwrap());
    let own = a.take_new(1).unwrap();
    b.send(own, reader.inbox());
}

#[test]
fn who_goes_first_leaves_nothing() {
    // By the letters' own count of what lives.
    for reader_first in [true, false] {
        let alive = Arc::new(());
        let mut reader = Reader::<Option<Arc<()>>>::new().unwrap();
        let inbox = reader.inbox().clone();
        let mut lanes: Vec<_> =
            (0..3).map(|_| Box::new(Lane::new(Some(alive.clone())).unwrap())).collect();
        for _ in 0..5 {
            lanes.iter_mut().for_each(|lane| send(lane, &inbox, Some(alive.clone())));
        }
        assert!(inbox.send_one(Some(alive.clone())));
        (0..4).for_each(|_| assert!(next(&mut reader).is_some()));
        let unsent = lanes[0].take_new(Some(alive.clone()));
        if reader_first {
            drop(reader);
            lanes.into_iter().for_each(|lane| lane.end(&inbox));
        } else {
            lanes.into_iter().for_each(|lane| lane.end(&inbox));
            while next(&mut reader).is_some() {}
            drop(reader);
        }
        drop((inbox, unsent));
        assert_eq!(Arc::strong_count(&alive), 1);
    }
}

#[test]
fn threads_lose_nothing() {
    const SENDERS: u64 = 4;
    const EACH: u64 = 20_000;
    let mut reader = Reader::<(u64, Vec<u8>)>::new().unwrap();
    let threads: Vec<_> = (0..SENDERS)
        .map(|id| {
            let inbox = reader.inbox().clone();
            thread::spawn(move || {
                let mut lane = Box::new(Lane::new((id, Vec::new())).unwrap());
                for n in 0..EACH {
                    while lane.count() >= 8 {
                        lane.take_back(|(_, bytes)| {
                            bytes.clear();
                            true
                        });
                        thread::yield_now();
                    }
                    let mut own =
                        lane.take_free().or_else(|| lane.take_new((0, Vec::new()))).unwrap();
                    own.0 = id;
                    own.1.clear();
                    own.1.extend_from_slice(&n.to_le_bytes());
                    lane.send(own, &inbox);
                }
                lane.end(&inbox);
            })
        })
        .collect();
    let (mut seen, mut ended) = (HashMap::new(), 0);
    let mut turn = 0;
    while ended < SENDERS {
        turn += 1;
        let Some(mut read) = reader.next() else {
            reader.clear();
            thread::yield_now();
            continue;
        };
        let (id, bytes) = reader.value(&mut read);
        let count = seen.entry(*id).or_insert(0u64);
        match bytes.is_empty() {
            true => ended += 1,
            false => assert_eq!(bytes[..], count.to_le_bytes(), "from {id}"),
        }
        *count += 1;
        reader.done(read);
        if turn % 5 == 0 {
            reader.clear();
        }
    }
    assert!(seen.values().all(|&count| count == EACH + 1) && seen.len() as u64 == SENDERS);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
