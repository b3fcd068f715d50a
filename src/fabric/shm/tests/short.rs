//! Short WRITEs that are taken one by one.

use std::mem::MaybeUninit;

use super::*;
use crate::fabric::{One, ShortRoom, ShortWrite};

/// Bytes of `b` that `a` may write to, with the endpoints.
struct Two {
    a: ShmAdapter,
    b: ShmAdapter,
    at_a: EpId,
    at_b: EpId,
    memory: Box<[u8; 64]>,
    mr: Mr,
}

impl Two {
    fn new() -> Two {
        let (mut a, mut b) = (open(None), open(None));
        let (at_a, at_b) = connect(&mut a, &mut b);
        b.leave_moves();
        let mut memory = Box::new([0; 64]);
        let base = memory.as_mut_ptr().addr() as u64;
        // SAFETY: `memory` outlives the adapters.
        let mr = unsafe { b.register(base, 64, Access::all()) }.unwrap();
        Two { a, b, at_a, at_b, memory, mr }
    }

    fn write(&mut self, wr: u64, content: &[u8], imm: Option<u32>) {
        let addr = self.memory.as_ptr().addr() as u64;
        let remote = Remote { addr, rkey: self.mr.rkey };
        self.a.write_copied(self.at_a, wr, content, remote, imm).unwrap();
        self.a.flush();
    }

    /// The first look at the other end that is no full poll.
    fn find(adapter: &mut ShmAdapter) -> One {
        loop {
            match adapter.poll_one() {
                One::Other => assert!(!adapter.poll(&mut Vec::new())),
                found => return found,
            }
        }
    }

    fn wrote(&mut self) -> Option<u32> {
        let imm = self.b.wrote(self.at_b);
        self.b.flush();
        imm
    }

    fn take(&mut self, room: &mut ShortRoom) -> ShortWrite {
        // Polls by the way take nothing, since the copy is left to who asks for it.
        for _ in 0..3 {
            if let One::Write(ep) = self.b.poll_one() {
                assert_eq!(ep, self.at_b);
                return self.b.take_write(ep, room).unwrap();
            }
        }
        panic!("no WRITE was found");
    }
}

#[test]
fn a_short_write_is_answered_once_it_is_in_its_place() {
    let mut two = Two::new();
    two.write(7, b"content", Some(5));
    two.write(8, b"more", None);
    two.a.send(two.at_a, &[b"behind"]).unwrap();
    two.a.flush();
    let mut room: ShortRoom = [const { MaybeUninit::uninit() }; _];
    let write = two.take(&mut room);
    assert_eq!((write.dst, write.len), (two.memory.as_ptr().addr() as u64, 7));
    // SAFETY: so much of it was filled.
    let content = unsafe { std::slice::from_raw_parts(room.as_ptr().cast::<u8>(), write.len) };
    assert_eq!(content, b"content");
    // Nothing behind it is taken in, and nothing is answered.
    assert!(two.b.take_write(two.at_b, &mut room).is_none());
    let mut events = Vec::new();
    two.b.poll(&mut events);
    assert!(events.is_empty() && two.a.take_done(two.at_a).is_none(), "{events:?}");
    assert_eq!(two.wrote(), Some(5));
    assert_eq!((two.a.take_done(two.at_a), two.a.take_done(two.at_a)), (Some(7), None));
    let write = two.b.take_write(two.at_b, &mut room).unwrap();
    assert_eq!(write.len, 4);
    assert_eq!(two.wrote(), None);
    assert!(matches!(Two::find(&mut two.a), One::Done(ep) if ep == two.at_a));
    assert_eq!(two.a.take_done(two.at_a), Some(8));
    assert!(
        matches!(Two::find(&mut two.b), One::Message(ep, bytes) if ep == two.at_b && bytes.bytes() == b"behind")
    );
}

#[test]
fn a_region_that_is_closed_meanwhile_was_not_written_to() {
    let mut two = Two::new();
    two.write(7, b"content", Some(5));
    let mut room: ShortRoom = [const { MaybeUninit::uninit() }; _];
    two.take(&mut room);
    two.b.deregister(two.mr).unwrap();
    assert_eq!(two.wrote(), None);
    assert!(two.a.take_done(two.at_a).is_none(), "it went well");
    let mut events = Vec::new();
    two.a.poll(&mut events);
    let denied = |e: &Event| matches!(e, Event::Done { wr: 7, result: Err(why), .. } if why.code == Code::PermissionDenied);
    assert!(events.iter().any(denied), "{events:?}");
    // What is denied from the beginning is left to a poll, which says so.
    two.write(8, b"content", Some(5));
    let found = (0..3).find_map(|_| match two.b.poll_one() {
        One::Write(ep) => Some(ep),
        _ => None,
    });
    assert!(two.b.take_write(found.unwrap(), &mut room).is_none());
    events.clear();
    two.b.poll(&mut Vec::new());
    two.a.poll(&mut events);
    assert!(matches!(&events[..], [Event::Done { wr: 8, result: Err(_), .. }]), "{events:?}");
}
