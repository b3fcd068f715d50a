//! READs that both ends copy.

use super::delays::is_readable;
use super::*;
use crate::fabric::shm::operations::How;
use crate::fabric::shm::stream::{READ, StreamIn, StreamOut};
use crate::fabric::shm::tuning::Tuning;

/// Two ends, of which `here` reads what `there` has.
struct Ends {
    here: ShmAdapter,
    there: ShmAdapter,
    ep: EpId,
    back: EpId,
    from: Vec<u8>,
    to: Vec<u8>,
    region: Mr,
    /// What has ended, and was not looked at.
    events: Vec<Event>,
}

impl Ends {
    fn new(len: usize) -> Ends {
        let (mut here, mut there) = (open(None), open(None));
        let (ep, back) = connect(&mut here, &mut there);
        let (mut from, to) = (vec![0; len], vec![0; len]);
        let addr = from.as_mut_ptr().addr() as u64;
        // SAFETY: `from` lives as long as the adapters.
        let region = unsafe { there.register(addr, len as u64, Access::all()) }.unwrap();
        Ends { here, there, ep, back, from, to, region, events: Vec::new() }
    }

    /// Begins to read all of it.
    fn read(&mut self, round: usize) {
        self.fill(round);
        self.read_part(0, self.to.len());
    }

    fn fill(&mut self, round: usize) {
        self.from
            .iter_mut()
            .enumerate()
            .for_each(|(at, b)| *b = (at * 31 + (at >> 9) + round) as u8);
        self.to.fill(0);
    }

    fn read_part(&mut self, at: usize, len: usize) {
        let addr = self.from[at..at + len].as_ptr().addr() as u64;
        let remote = Remote { addr, rkey: self.region.rkey };
        let addr = self.to[at..at + len].as_mut_ptr().addr() as u64;
        // SAFETY: `to` lives as long as the adapters.
        let local = unsafe { Mem::new(addr, len as u64, 0) };
        self.here.read(self.ep, 1, local, remote).unwrap();
    }

    /// Begins two that both copy, and that are all of it.
    fn read_halves(&mut self, round: usize) {
        link(&mut self.here, self.ep).reading = Tuning::new();
        self.fill(round);
        let half = self.to.len() / 2;
        self.read_part(0, half);
        self.read_part(half, half);
        let mut events = Vec::new();
        self.here.poll(&mut events);
        assert!(events.is_empty(), "{events:?}");
    }

    /// The same, of a READ that both copy: a link that has learnt nothing begins with that.
    fn read_shared(&mut self, round: usize) {
        link(&mut self.here, self.ep).reading = Tuning::new();
        self.read(round);
        let mut events = Vec::new();
        self.here.poll(&mut events);
        assert!(events.is_empty(), "{events:?}");
        let how = link(&mut self.here, self.ep).reads.front().map(|r| r.how);
        assert!(matches!(how, Some(How::Shared(_))), "{how:?}");
    }

    /// Polls until the READ has ended; `helps`: the other end, too, after so many polls.
    fn end(&mut self, helps: impl Fn(u64) -> bool) -> Result<(), Status> {
        for polls in 0.. {
            if self.events.is_empty() {
                self.here.poll(&mut self.events);
            }
            match self.events.drain(..1.min(self.events.len())).next() {
                None => {}
                Some(Event::Done { result, .. }) => return result,
                Some(Event::Down { status, .. }) => return Err(status),
                Some(other) => panic!("{other:?}"),
            }
            if helps(polls) {
                self.there.poll(&mut Vec::new());
            }
        }
        unreachable!()
    }
}

/// However often the owner polls, and wherever it stops, every byte is in its place; and slots of what has ended are in nobody's way.
#[test]
fn an_owner_helps_as_long_as_it_polls() {
    for len in [300_000, 3 << 20] {
        let mut ends = Ends::new(len);
        for round in 0..60 {
            ends.read_shared(round);
            let stops = round as u64 / 3;
            let helps = |polls| match round % 3 {
                0 => polls < stops,
                1 => polls % 7 == 0,
                _ => true,
            };
            ends.end(helps).unwrap();
            assert!(ends.to == ends.from, "{len}, round {round}");
        }
        assert!(link(&mut ends.here, ends.ep).into.taken > 0, "{len}: it has helped");
        // Nothing is left to feed.
        ends.there.poll(&mut Vec::new());
        assert!(!link(&mut ends.there, ends.back).has_jobs());
    }
}

/// An owner that never polls is not needed, and one that sleeps is woken for what is long only.
#[test]
fn an_owner_that_sleeps_is_read() {
    for (len, woken) in [(300_000, false), (3 << 20, true)] {
        let mut ends = Ends::new(len);
        ends.read_shared(0);
        ends.end(|_| true).unwrap();
        ends.there.poll(&mut Vec::new());
        assert!(ends.there.arm(), "it sleeps");
        ends.read_shared(7);
        assert_eq!(is_readable(&ends.there), woken, "{len}");
        ends.end(|_| false).unwrap();
        assert!(ends.to == ends.from);
    }
}

/// The owner is asked for the next READ while the first is under way, which ends first all the same.
#[test]
fn the_next_is_asked_for_meanwhile() {
    let mut ends = Ends::new(6 << 20);
    for round in 0..24 {
        ends.read_halves(round);
        let of = link(&mut ends.here, ends.ep).reads.iter().map(|r| r.how).collect::<Vec<_>>();
        let [How::Shared(first), How::Shared(next)] = of[..] else { panic!("{of:?}") };
        assert_eq!(next, first + 1);
        let stops = round as u64 / 3;
        let helps = |polls| match round % 3 {
            0 => polls < stops,
            1 => polls % 5 == 0,
            _ => true,
        };
        ends.end(helps).unwrap();
        let half = ends.from.len() / 2;
        assert!(ends.to[..half] == ends.from[..half], "round {round}");
        assert_eq!(link(&mut ends.here, ends.ep).reads.len(), 1);
        ends.end(helps).unwrap();
        assert!(ends.to == ends.from, "round {round}");
    }
    ends.there.poll(&mut Vec::new());
    assert!(!link(&mut ends.there, ends.back).has_jobs());
}

/// What was asked for ahead, and may not be read any more, is denied; what is fed of it is in nobody's way.
#[test]
fn what_was_asked_for_ahead_may_be_denied() {
    for polls in 0..6 {
        let mut ends = Ends::new(6 << 20);
        ends.read_halves(polls);
        for _ in 0..polls {
            ends.there.poll(&mut Vec::new());
        }
        ends.there.deregister(ends.region).unwrap();
        for _ in 0..2 {
            let status = ends.end(|_| true).unwrap_err();
            assert_eq!(status.code, Code::PermissionDenied, "{status:?}");
        }
        let (addr, len) = (ends.from.as_mut_ptr().addr() as u64, ends.from.len() as u64);
        // SAFETY: `from` lives as long as the adapters.
        ends.region = unsafe { ends.there.register(addr, len, Access::all()) }.unwrap();
        ends.read_shared(7);
        ends.end(|_| true).unwrap();
        assert!(ends.to == ends.from);
    }
}

/// What was copied does not count, from either side.
#[test]
fn a_region_that_is_closed_while_both_copy_is_denied() {
    for polls in 0..6 {
        let mut ends = Ends::new(3 << 20);
        ends.read_shared(polls);
        for _ in 0..polls {
            ends.there.poll(&mut Vec::new());
        }
        ends.there.deregister(ends.region).unwrap();
        let status = ends.end(|_| true).unwrap_err();
        assert_eq!(status.code, Code::PermissionDenied, "{status:?}");
    }
}

/// A slot that is not what comes next, or of no READ.
#[test]
fn a_slot_of_a_shared_read_is_checked() {
    for (number, done) in [(0, 1), (1, 0), (u64::MAX >> 1, 0)] {
        let mut ends = Ends::new(3 << 20);
        ends.read_shared(0);
        let next = link(&mut ends.here, ends.ep).asked - 1;
        let hostile = link(&mut ends.there, ends.back);
        hostile.open_stream().unwrap();
        let op = READ | (next + number);
        let job = Job { op, addr: 0, len: 4096, done, rkey: None, denied: false, optional: false };
        hostile.out.filled(&job, 4096);
        let put = hostile.out.put;
        hostile.tx.control().stream_put.store(put, Ordering::Relaxed);
        let ended = ends.end(|_| false);
        match number {
            0 => assert!(ended.unwrap_err().to_string().contains("stream slot of a READ")),
            // Nobody looks at it before something else of the stream is needed.
            _ => ended.unwrap(),
        }
    }
}

/// The owner feeds while the other end takes, each on a thread: every byte is in its place, and of many slots few looks were needed.
#[test]
fn both_go_on_piece_by_piece() {
    for len in [300_000, 1 << 20, (3 << 20) + 5] {
        let mut ends = Ends::new(len);
        for round in 0..40 {
            ends.read_shared(round);
            let (begun, over) = (AtomicBool::new(false), AtomicBool::new(false));
            let Ends { here, there, .. } = &mut ends;
            let looks = std::thread::scope(|s| {
                s.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        there.poll(&mut Vec::new());
                        begun.store(true, Ordering::Relaxed);
                    }
                });
                while !begun.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                let (mut events, mut looks) = (Vec::new(), 0);
                while events.is_empty() {
                    here.poll(&mut events);
                    looks += 1;
                }
                over.store(true, Ordering::Relaxed);
                assert!(matches!(events[..], [Event::Done { result: Ok(()), .. }]), "{events:?}");
                looks
            });
            assert!(ends.to == ends.from, "{len}, round {round}, {looks} looks");
        }
        let link = link(&mut ends.here, ends.ep);
        assert!(link.into.taken > 0, "{len}: it has helped");
    }
}

/// Who takes from a stream maps it for writing, and nobody after that; one that its owner has sealed, as older versions do, is mapped
/// all the same.
#[test]
fn r14_a_stream_is_sealed_by_its_reader() {
    for sealed in [false, true] {
        let (map, fd) = StreamOut::create().unwrap();
        if sealed {
            sys::seal_future_write(&fd).unwrap();
        }
        let mut into = StreamIn::default();
        into.open(&fd, map.len() as u64).unwrap();
        assert!(sys::Mapping::shared(sys::borrow(&fd), map.len(), true).is_err(), "{sealed}");
        sys::Mapping::shared(sys::borrow(&fd), map.len(), false).unwrap();
    }
}
