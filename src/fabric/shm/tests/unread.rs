//! A peer whose memory could be read, and can be read no longer: it has other rights now, or a filter of system calls.

use super::super::process::tests::ALLOWED;
use super::*;
use crate::fabric::moves::{Move, Moved};

const LENGTHS: [usize; 8] = [300_000, 2_500_000, 40_000, 100, 700_000, 0, 1 << 20, 70_001];

struct Ends {
    here: ShmAdapter,
    there: ShmAdapter,
    ep: EpId,
    back: EpId,
}

fn ends(path: Option<&str>) -> Ends {
    let (mut here, mut there) = (open(path), open(path));
    let (ep, back) = connect(&mut here, &mut there);
    Ends { here, there, ep, back }
}

fn content(round: usize) -> Vec<Vec<u8>> {
    let byte = |at: usize, i: usize| (at * 31 + (at >> 9) + i * 7 + round) as u8;
    LENGTHS.iter().enumerate().map(|(i, &len)| (0..len).map(|at| byte(at, i)).collect()).collect()
}

impl Ends {
    /// All of the lengths, a message behind each, posted at once; what they wrote, and in which order that was told.
    fn write(&mut self, round: usize) {
        let mut from = content(round);
        let mut to: Vec<Vec<u8>> = LENGTHS.iter().map(|&len| vec![0; len.max(1)]).collect();
        for (i, (from, to)) in from.iter_mut().zip(&mut to).enumerate() {
            let base = to.as_mut_ptr().addr() as u64;
            // SAFETY: `to` outlives the operation.
            let region = unsafe { self.there.register(base, to.len() as u64, Access::all()) };
            let remote = Remote { addr: base, rkey: region.unwrap().rkey };
            let addr = from.as_mut_ptr().addr() as u64;
            // SAFETY: `from` does, too.
            let local = unsafe { Mem::new(addr, from.len() as u64, 0) };
            self.here.write(self.ep, i as u64, local, remote, Some(i as u32)).unwrap();
            self.here.send(self.ep, &[&[i as u8]]).unwrap();
        }
        // What goes through the stream is put there before the target has looked at it.
        for _ in 0..round % 3 * 8 {
            self.here.poll(&mut Vec::new());
        }
        let mut told = Vec::new();
        let (here, there) = (&mut self.here, &mut self.there);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut ended = 0;
                while ended < LENGTHS.len() {
                    let mut events = Vec::new();
                    here.poll(&mut events);
                    for event in events {
                        let Event::Done { wr, result, .. } = event else { panic!("{event:?}") };
                        assert_eq!((wr, result), (ended as u64, Ok(())));
                        ended += 1;
                    }
                }
            });
            while told.len() < 2 * LENGTHS.len() {
                let mut events = Vec::new();
                there.poll(&mut events);
                told.extend(events.drain(..).map(|event| match event {
                    Event::Written { imm, .. } => (imm, true),
                    Event::Message { bytes, .. } => (u32::from(bytes.bytes()[0]), false),
                    other => panic!("{other:?}"),
                }));
            }
        });
        let order: Vec<(u32, bool)> =
            (0..LENGTHS.len() as u32).flat_map(|i| [(i, true), (i, false)]).collect();
        assert_eq!(told, order);
        assert!(to.iter().zip(&from).all(|(to, from)| to[..from.len()] == from[..]));
    }

    /// The same by READs of the other end.
    fn read(&mut self, round: usize) {
        let mut from = content(round);
        let mut to: Vec<Vec<u8>> = LENGTHS.iter().map(|&len| vec![0; len]).collect();
        for (i, (from, to)) in from.iter_mut().zip(&mut to).enumerate() {
            let (addr, len) = (from.as_mut_ptr().addr() as u64, from.len().max(1) as u64);
            // SAFETY: both outlive the operation.
            let region = unsafe { self.here.register(addr, len, Access::all()) }.unwrap();
            // SAFETY: as above.
            let local = unsafe { Mem::new(to.as_mut_ptr().addr() as u64, to.len() as u64, 0) };
            let remote = Remote { addr, rkey: region.rkey };
            self.there.read(self.back, i as u64, local, remote).unwrap();
        }
        let mut ended = 0;
        while ended < LENGTHS.len() {
            let mut events = Vec::new();
            self.there.poll(&mut events);
            self.here.poll(&mut Vec::new());
            for event in events {
                let Event::Done { result, .. } = event else { panic!("{event:?}") };
                result.unwrap();
                ended += 1;
            }
        }
        assert!(to == from);
    }
}

/// Whenever that happens, content that was under way and all that follows comes through the stream, in order.
#[test]
fn r41_a_process_that_forbids_to_be_read_is_asked_for_its_content() {
    for path in [None, Some("cma")] {
        for allowed in 0..30 {
            let mut ends = ends(path);
            // It has learnt which way is quicker, or not.
            (0..allowed as usize % 4).for_each(|round| ends.write(round));
            ALLOWED.set(allowed);
            (1..4).for_each(|round| ends.write(round));
            // What both copy is read where the other end is late, or when it is time to try the other way.
            (4..40).take_while(|_| ALLOWED.get() > 0).for_each(|round| ends.write(round));
            let refused = ALLOWED.replace(u32::MAX) == 0;
            assert!(refused || allowed > 10, "{allowed} reads were never made");
            // That it may be read again changes nothing.
            ends.write(5);
        }
        for allowed in 0..12 {
            let mut ends = ends(path);
            ALLOWED.set(allowed);
            (1..3).for_each(|round| ends.read(round));
            ALLOWED.set(u32::MAX);
            ends.write(0);
        }
    }
}

/// Two ends that write to each other and read from each other, whose copies are made by the test, in any order.
struct Turns {
    ends: [ShmAdapter; 2],
    eps: [EpId; 2],
    /// Copies that were made, and not told yet.
    made: [Vec<Moved>; 2],
    events: [Vec<Event>; 2],
    random: Random,
}

impl Turns {
    fn new(seed: u64) -> Turns {
        let mut ends = [open(None), open(None)];
        ends.iter_mut().for_each(|end| end.leave_moves());
        let [a, b] = &mut ends;
        let (ea, eb) = connect(a, b);
        let random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        Turns { ends, eps: [ea, eb], made: Default::default(), events: Default::default(), random }
    }

    /// One end polls, makes a copy, or hears that one was made.
    fn turn(&mut self) {
        let side = (self.random.next() % 2) as usize;
        let (end, events) = (&mut self.ends[side], &mut self.events[side]);
        match self.random.next() % 4 {
            0 => {
                end.poll(events);
            }
            1 | 2 => self.made[side].extend(end.take_move(events).map(Move::run)),
            _ if self.made[side].is_empty() => {}
            _ => end.moved(self.made[side].remove(0), events),
        }
    }

    /// Both write or read so many, of any length; every one ends well.
    fn transfer(&mut self, count: usize) {
        let mut memory = Vec::new();
        for i in 0..2 * count {
            let (side, len) = (i % 2, 1 + self.random.next() as usize % 700_000);
            let byte = |at: usize| (at * 31 + (at >> 9) + i * 7) as u8;
            let (from, to): (Vec<u8>, _) = ((0..len).map(byte).collect(), vec![0u8; len]);
            let (source, place) = (from.as_ptr().addr() as u64, to.as_ptr().addr() as u64);
            let writes = !self.random.next().is_multiple_of(3);
            let (far, near) = if writes { (place, source) } else { (source, place) };
            // SAFETY: all of `memory` outlives the operations.
            let region = unsafe { self.ends[1 - side].register(far, len as u64, Access::all()) };
            let remote = Remote { addr: far, rkey: region.unwrap().rkey };
            // SAFETY: as above.
            let local = unsafe { Mem::new(near, len as u64, 0) };
            let (end, ep) = (&mut self.ends[side], self.eps[side]);
            match writes {
                true => end.write(ep, i as u64, local, remote, None).unwrap(),
                false => end.read(ep, i as u64, local, remote).unwrap(),
            }
            memory.push((from, to));
        }
        let (mut ended, began) = (0, std::time::Instant::now());
        while ended < memory.len() {
            self.turn();
            for event in self.events.iter_mut().flat_map(|events| events.drain(..)) {
                match event {
                    Event::Done { result: Ok(()), .. } => ended += 1,
                    other => panic!("{other:?}"),
                }
            }
            assert!(began.elapsed().as_secs() < 20, "{ended} of {} have ended", memory.len());
        }
        assert!(memory.iter().all(|(from, to)| from == to));
    }
}

/// What both ends copy is in the stream in part, or being put there, when the memory is found to be closed.
#[test]
fn r41_content_that_both_ends_were_copying_is_whole_however_they_take_turns() {
    for seed in 0..700 {
        let mut turns = Turns::new(seed);
        ALLOWED.set((seed % 7) as u32);
        turns.transfer(4);
        ALLOWED.set(u32::MAX);
        turns.transfer(1);
    }
}
