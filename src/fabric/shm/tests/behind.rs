//! What a peer posted behind a WRITE that does not count any more, since it has left meanwhile.

use super::*;

/// A peer leaves while its content is copied, and may change it from then on. Neither the message that says that it is there is heard,
/// which was published before, nor is the stream's next slot taken for content of the next WRITE.
#[test]
fn nothing_behind_a_write_that_does_not_count_is_heard() {
    for (len, fed) in [(1 << 20, false), (1 << 20, true), (64 << 10, false), (8 << 20, true)] {
        let (mut a, mut b) = (open(None), open(None));
        let (ea, eb) = connect(&mut a, &mut b);
        let (from, mut to) = (vec![7u8; len], vec![0u8; len]);
        let addr = to.as_mut_ptr().addr() as u64;
        // SAFETY: `to` lives as long as the adapters.
        let region = unsafe { b.register(addr, len as u64, Access::all()) }.unwrap();
        let remote = Remote { addr, rkey: region.rkey };
        for (wr, part) in [(1, len), (2, len / 8), (3, 4096)] {
            let at = from[..part].as_ptr().addr() as u64;
            // SAFETY: `from` lives as long as the adapters.
            let local = unsafe { Mem::new(at, part as u64, 0) };
            a.write(ea, wr, local, remote, None).unwrap();
        }
        a.send(ea, &[b"it is there"]).unwrap();
        b.leave_moves();
        let mut events = Vec::new();
        let mut left = false;
        for _ in 0..10_000 {
            b.poll(&mut events);
            while let Some(copy) = b.take_move(&mut events) {
                let done = copy.run();
                if !std::mem::replace(&mut left, true) {
                    if fed {
                        (0..4).for_each(|_| _ = a.poll(&mut Vec::new()));
                    }
                    a.destroy(ea);
                }
                b.moved(done, &mut events);
            }
            if !events.is_empty() {
                break;
            }
        }
        let [Event::Down { ep, status }] = &events[..] else { panic!("{len}, {fed}: {events:?}") };
        assert_eq!((*ep, status.reason), (eb, Reason::PeerGone), "{len}, {fed}: {status:?}");
    }
}
