//! Bytes that are lost on their way, as by a middle box that passes on less than it took. TCP itself loses none.

use super::*;
use crate::fabric::EpId;

/// What the peer sends, and what each frame of it brings: a message, or a WRITE's content, which begins with its immediate.
struct Sent {
    stream: Vec<u8>,
    messages: Vec<Vec<u8>>,
    writes: Vec<Vec<u8>>,
}

/// Messages and WRITEs in turns. No two bytes near each other are the same, or a loss would change nothing.
fn sent(rkey: u32, addr: u64) -> Sent {
    let mut it = Sent { stream: Vec::new(), messages: Vec::new(), writes: Vec::new() };
    for seq in 0..6u32 {
        let content =
            |len: usize| (0..len).map(|i| (i * 7 + seq as usize) as u8).collect::<Vec<u8>>();
        let said = content(20 + seq as usize);
        it.stream.extend(message(seq, &said));
        it.messages.push(said);
        let written = content(50);
        let write = Frame::Write { seq, len: 30, imm: Some(seq), rkey, addr, total: 50 };
        it.stream.extend(whole(write, &written[..30]));
        it.stream.extend(whole(Frame::More { seq, len: 20 }, &written[30..]));
        it.writes.push(written);
    }
    it
}

/// What a stream in these pieces brings, and whether it is refused. A WRITE is looked at as soon as it is told of.
fn takes(bytes: &[u8], piece: usize, memory: &mut [u8], regions: &RegionTable, it: &Sent) -> bool {
    let mut stream = Stream::new(EpId(1), "mallory", 16);
    let (mut events, mut held, mut messages) = (Vec::new(), Vec::new(), it.messages.iter());
    for part in bytes.chunks(piece) {
        let (events, held) = (&mut events, &mut held);
        let mut cx = Cx { regions, events, held, viewed: false, ends: 0 };
        // SAFETY: `bytes` outlive the events.
        let fed = unsafe { stream.feed(part, &mut cx) };
        for event in events.drain(..) {
            match event {
                Event::Message { bytes, .. } => {
                    assert_eq!(Some(bytes.bytes()), messages.next().map(Vec::as_slice));
                }
                Event::Written { imm, .. } => assert_eq!(memory, it.writes[imm as usize]),
                other => panic!("{other:?}"),
            }
        }
        if fed.is_err() {
            return true;
        }
    }
    false
}

/// Whatever is lost, in a header, in content, of several frames or all of some: what counts as arrived is what was sent, and the rest is refused
/// as soon as enough of it has come.
#[test]
fn what_is_shifted_is_never_taken_for_what_was_sent() {
    let (mut memory, mut regions) = (vec![0u8; 50], RegionTable::new());
    let addr = memory.as_mut_ptr() as u64;
    // SAFETY: the memory outlives every use of the table.
    let mr = unsafe { regions.insert(addr, 50, Access::REMOTE_WRITE) }.expect("register");
    let it = sent(mr.rkey, addr);
    // One byte at a time: else a WRITE is looked at when the next has written there.
    assert!(!takes(&it.stream, 1, &mut memory, &regions, &it), "as it was sent");
    for lost in [1, 2, 4, 16, 20, 24, 39, 40, 44, 100] {
        for at in 0..it.stream.len() - lost {
            let bytes = [&it.stream[..at], &it.stream[at + lost..]].concat();
            let refused = takes(&bytes, 1, &mut memory, &regions, &it);
            // Of the last ones nobody knows what would have come.
            let enough = at + lost + 250 < it.stream.len();
            assert!(refused || !enough, "{lost} bytes are lost at {at}");
        }
    }
}

/// A peer that waits for an answer asks whether this end lives. Where bytes of a message were lost before, its questions are taken for the rest of
/// that message, and nothing is heard: that they come is no sign of life. Long content is one.
#[test]
fn few_bytes_of_a_message_are_no_sign_of_life() {
    let mut v = Victim::new();
    v.tell(Frame::Send { seq: 0, len: 100_000 });
    let mark = v.ad.progress_mark(v.ep);
    for _ in 0..100 {
        v.peer.write_all(&[0; 24]).expect("write");
        v.ad.poll(&mut v.events);
    }
    assert_eq!(v.ad.progress_mark(v.ep), mark);
    v.peer.write_all(&[0; 60_000]).expect("write");
    v.until(|v| v.ad.progress_mark(v.ep) != mark);
}
