//! Long messages, of which no more than the head is copied until somebody asks for the rest.

use super::*;
use crate::fabric::View;

/// One end has sent these to the other, which has polled.
fn sent(texts: &[Vec<u8>]) -> (ShmAdapter, ShmAdapter, (EpId, EpId), Vec<Event>) {
    let (mut a, mut b) = (open(None), open(None));
    let (ea, eb) = connect(&mut a, &mut b);
    texts.iter().for_each(|text| a.send(ea, &[text]).unwrap());
    let mut events = Vec::new();
    b.poll(&mut events);
    assert_eq!(events.len(), texts.len());
    (a, b, (ea, eb), events)
}

fn text(len: usize, tag: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + tag) as u8).collect()
}

fn view(event: &Event) -> &View {
    match event {
        Event::Message { bytes, .. } => bytes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_long_message_is_all_there_once_it_is_asked_for() {
    let lens = [1, 64, 2047, 2048, 2049, 8192, 30_000];
    let texts: Vec<_> = lens.iter().map(|&len| text(len, 3)).collect();
    let (_a, _b, _, events) = sent(&texts);
    for (event, text) in events.iter().zip(&texts) {
        let view = view(event);
        assert_eq!((view.len(), view.left().is_some()), (text.len(), text.len() >= 2048));
        if let Some(left) = view.left() {
            assert_eq!((&left.head[..], left.len), (&text[..64], text.len()));
            // SAFETY: the view is good, so the message lies there.
            let there = unsafe { std::slice::from_raw_parts(left.at as *const u8, left.len) };
            assert!(there == text);
        }
        assert!(view.bytes() == text && view.left().is_none());
        assert!(view.bytes() == text, "once more");
    }
}

#[test]
fn r12_a_long_message_changes_no_more_once_it_was_asked_for() {
    let texts: Vec<_> = (0..5).map(|tag| text(2048 + tag * 999, tag)).collect();
    let (mut a, _b, (ea, _), events) = sent(&texts);
    view(&events[1]).bytes();
    link(&mut a, ea).tx.spoil(0xEE);
    assert!(view(&events[1]).bytes() == texts[1]);
    // Of another the head is what it was, and the rest what the peer has made of it.
    let other = view(&events[2]).bytes();
    assert_eq!((&other[..64], other[64]), (&texts[2][..64], 0xEE));
}

#[test]
fn r01_what_is_still_copied_is_not_written_again_and_the_sender_hears_when_it_is_over() {
    let (mut a, mut b, (ea, eb), mut events) = sent(&[text(8192, 1)]);
    let left = view(&events[0]).left().unwrap();
    let (at, len) = (left.at, left.len);
    let kept = b.keep_left(eb).unwrap();
    events.clear();
    // As many as find room, in polls in between, of which none gives room back.
    let (mut more, mut polled) = (0, 0);
    for round in 0..100 {
        while a.send(ea, &[&text(8192, 2)]).is_ok() {
            more += 1;
        }
        loop {
            b.poll(&mut events);
            if events.is_empty() {
                break;
            }
            polled += events.len();
            events.clear();
        }
        a.poll(&mut events);
        assert!(b.arm(), "round {round}: nothing is to be done but by who copies");
        b.let_go();
    }
    assert_eq!((more, polled), (30, 30));
    // SAFETY: it is kept.
    let there = unsafe { std::slice::from_raw_parts(at as *const u8, len) };
    assert!(there == text(8192, 1));
    drop(kept);
    // It sleeps still.
    b.let_go();
    a.poll(&mut events);
    assert!(a.send(ea, &[&text(8192, 2)]).is_ok(), "there is room again");
}

/// What is kept outlives the endpoint.
#[test]
fn what_is_kept_is_there_after_the_endpoint_is_gone() {
    let (mut a, mut b, (ea, eb), mut events) = sent(&[text(9000, 1)]);
    let left = view(&events[0]).left().unwrap();
    let (at, len) = (left.at, left.len);
    let kept = b.keep_left(eb).unwrap();
    events.clear();
    a.destroy(ea);
    b.destroy(eb);
    assert!(b.keep_left(eb).is_none());
    drop((a, b));
    // SAFETY: it is kept.
    let there = unsafe { std::slice::from_raw_parts(at as *const u8, len) };
    assert!(there == text(9000, 1));
    drop(kept);
}
