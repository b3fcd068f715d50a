//! Pairs, and unbound buffers, in the storm.

use std::time::Duration;

use super::messages::{COMM, bytes, size};
use super::{LONG, Storm, content};
use crate::engine::front::pair::{Slot, Way};
use crate::manager::Timeout;
use crate::status::{Code, Status};

/// Each send of an end has a place of its own, at both ends.
const PLACE: usize = 9000;
const LENGTHS: [usize; 6] = [0, 1, 300, 4000, 8192, PLACE];
/// Most sends of an end.
const SENDS: usize = 8;
const PAIRS: usize = 24;
/// Slots of unbound buffers: tags that no other message of the storm has.
const SLOTS: std::ops::Range<u64> = 100..107;

/// One end of a pair, with a buffer for each way.
struct End {
    node: usize,
    id: u64,
    out: (u64, Box<[u8]>),
    into: (u64, Box<[u8]>),
    sent: usize,
    ended: usize,
    came: usize,
    /// It is broken.
    broken: bool,
    /// What its memory was when it was closed.
    after: Option<[Vec<u8>; 2]>,
}

/// Two ends.
pub struct Pair {
    ends: [End; 2],
}

/// An unbound buffer, with one operation.
pub struct Unbound {
    node: usize,
    id: u64,
    way: Way,
    slot: u64,
    data: Box<[u8]>,
    ended: bool,
    /// What its memory was when it was destroyed.
    after: Option<Vec<u8>>,
}

fn length(end: usize, number: usize) -> usize {
    LENGTHS[(3 * end + number) % LENGTHS.len()]
}

fn sent_bytes(pair: usize, end: usize, number: usize) -> Vec<u8> {
    content((2 * pair + end) as u64, number as i64, length(end, number))
}

fn place(number: usize) -> std::ops::Range<usize> {
    number * PLACE..(number + 1) * PLACE
}

/// A WRITE may meet a buffer that is being closed.
fn plausible(status: &Status) {
    if status.code != Code::PermissionDenied {
        super::plausible(status);
    }
}

impl Storm {
    fn new_end(&self, node: usize, number: (usize, usize)) -> End {
        let manager = &self.all[node].0;
        let id = manager.pair_create(number.1 as u64, Timeout::After(LONG)).expect("pair");
        let (mut out, mut into) = (vec![0; SENDS * PLACE], vec![0xCD; SENDS * PLACE]);
        for i in 0..SENDS {
            let bytes = sent_bytes(number.0, number.1, i);
            out[place(i)][..bytes.len()].copy_from_slice(&bytes);
        }
        let buffer = |way, memory: &mut [u8]| {
            let addr = memory.as_mut_ptr() as u64;
            let slot = Slot { way, slot: 5, addr, len: memory.len() as u64 };
            // SAFETY: the memory lives as long as the run.
            unsafe { manager.buffer_create(id, slot, None) }.expect("buffer")
        };
        let out = (buffer(Way::Send, &mut out), out.into());
        let into = (buffer(Way::Recv, &mut into), into.into());
        End { node, id, out, into, sent: 0, ended: 0, came: 0, broken: false, after: None }
    }

    fn new_pair(&mut self) {
        let count = self.all.len() as u64;
        let a = self.luck.below(count) as usize;
        let b = (a + 1 + self.luck.below(count - 1) as usize) % self.all.len();
        let number = self.pairs.len();
        let ends = [self.new_end(a, (number, 0)), self.new_end(b, (number, 1))];
        for (own, other) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
            let address = self.all[other.node].0.pair_address(other.id).expect("address");
            let begun = self.all[own.node].0.pair_connect(own.id, &address, None);
            // Its connection may have been cut meanwhile.
            let _ = begun.map_err(|status| plausible(&status));
        }
        self.pairs.push(Pair { ends });
    }

    fn pair_send(&mut self, pair: usize, which: usize) {
        let end = &mut self.pairs[pair].ends[which];
        if end.after.is_some() || end.sent == SENDS {
            return;
        }
        let at = place(end.sent).start as u64;
        let len = length(which, end.sent) as u64;
        // SAFETY: the memory lives as long as the run, and is not changed before the send's end.
        match unsafe { self.all[end.node].0.buffer_send(end.out.0, at, len, at) } {
            Ok(()) => end.sent += 1,
            Err(status) => {
                plausible(&status);
                end.broken = true;
            }
        }
    }

    fn close_end(&mut self, pair: usize, which: usize) {
        let node = self.pairs[pair].ends[which].node;
        if self.pairs[pair].ends[which].after.is_some() {
            return;
        }
        self.all[node].0.pair_close(self.pairs[pair].ends[which].id).expect("close");
        let end = &mut self.pairs[pair].ends[which];
        // Who reads it from now on gets something else.
        end.out.1.fill(0x77);
        end.after = Some([end.out.1.to_vec(), end.into.1.to_vec()]);
    }

    /// Something that an application does with pairs and unbound buffers.
    pub fn act_on_pairs(&mut self) {
        if self.luck.below(3) == 0 {
            return self.act_on_unbound();
        }
        let (count, which) = (self.pairs.len(), self.luck.below(2) as usize);
        let some = self.luck.below(count.max(1) as u64) as usize;
        match self.luck.below(12) {
            0..3 if count < PAIRS => self.new_pair(),
            3..11 if count > 0 => {
                (0..=self.luck.below(3)).for_each(|_| self.pair_send(some, which));
            }
            11 if count > 0 => self.close_end(some, which),
            _ => {}
        }
    }

    fn act_on_unbound(&mut self) {
        let count = self.all.len() as u64;
        let [node, other] = [(); 2].map(|()| self.luck.below(count) as usize);
        let slot = SLOTS.start + self.luck.below(SLOTS.end - SLOTS.start);
        let way = if self.luck.below(2) == 0 { Way::Send } else { Way::Recv };
        let mut data: Box<[u8]> = match way {
            Way::Send => bytes(slot).into(),
            Way::Recv => vec![0xCD; size(slot)].into(),
        };
        let (party, len) = (self.party(node, other), data.len() as u64);
        // All of them end by themselves.
        let timeout = Timeout::After(Duration::from_millis(20 + self.luck.below(300)));
        let manager = &self.all[node].0;
        // SAFETY: `data` lives as long as the run.
        let id = unsafe { manager.unbound_create(COMM, data.as_mut_ptr() as u64, len) };
        let id = id.expect("unbound buffer");
        let begun = match way {
            Way::Send => manager.unbound_send(id, party, slot, (0, len), timeout),
            Way::Recv => {
                let sources = [party];
                let sources = if slot.is_multiple_of(2) { &sources[..] } else { &[] };
                manager.unbound_recv(id, sources, slot, (0, len), timeout)
            }
        };
        let ended = begun.map_err(|status| plausible(&status)).is_err();
        self.unbound.push(Unbound { node, id, way, slot, data, ended, after: None });
    }

    fn take_sent(&mut self, pair: usize, which: usize) {
        let end = &mut self.pairs[pair].ends[which];
        let manager = &self.all[end.node].0;
        match manager.buffer_wait(end.out.0, Way::Send, Timeout::After(Duration::ZERO)) {
            Ok(()) => {
                assert!(end.ended < end.sent, "more sends ended than there were");
                // Who reads it from now on gets something else.
                end.out.1[place(end.ended)].fill(0x77);
                end.ended += 1;
            }
            Err(status) => {
                plausible(&status);
                end.broken = true;
            }
        }
    }

    fn take_arrival(&mut self, pair: usize, which: usize) {
        let sent = self.pairs[pair].ends[1 - which].sent;
        let end = &mut self.pairs[pair].ends[which];
        let manager = &self.all[end.node].0;
        match manager.buffer_wait(end.into.0, Way::Recv, Timeout::After(Duration::ZERO)) {
            Ok(()) => {
                assert!(end.came < sent, "more came than was sent");
                let want = sent_bytes(pair, 1 - which, end.came);
                let got = &end.into.1[place(end.came)];
                assert!(got[..want.len()] == want, "other content than was sent, over a pair");
                assert!(got[want.len()..].iter().all(|&b| b == 0xCD), "more than was sent");
                end.came += 1;
            }
            Err(status) => {
                plausible(&status);
                end.broken = true;
            }
        }
    }

    /// Takes what ended and what came.
    pub fn look_at_pairs(&mut self) {
        for pair in 0..self.pairs.len() {
            for which in 0..2 {
                let end = &self.pairs[pair].ends[which];
                if end.after.is_some() || end.broken {
                    continue;
                }
                let manager = &self.all[end.node].0;
                let count = |buffer| manager.core.lock().engine.buffer_counts(buffer);
                let (sent, came) = (count(end.out.0), count(end.into.0));
                (0..sent.map_or(1, |c| c.0)).for_each(|_| self.take_sent(pair, which));
                (0..came.map_or(1, |c| c.1)).for_each(|_| self.take_arrival(pair, which));
            }
        }
        self.look_at_unbound();
    }

    fn look_at_unbound(&mut self) {
        for u in self.unbound.iter_mut().filter(|u| u.after.is_none()) {
            let manager = &self.all[u.node].0;
            if !u.ended {
                let thread = crate::thread::Thread::this();
                let (sent, came) = manager.unbound_counts(thread, u.id).expect("counts");
                if sent + came == 0 {
                    continue;
                }
                let end = manager.unbound_wait(u.id, u.way, Timeout::After(Duration::ZERO));
                match end.map(|end| (end.result, end.len)) {
                    Ok((Ok(()), len)) if u.way == Way::Recv => {
                        assert_eq!(len, u.data.len() as u64, "another length than was sent");
                        assert!(*u.data == *bytes(u.slot), "other content than was sent");
                    }
                    Ok((Ok(()), _)) => {}
                    Ok((Err(status), _)) | Err(status) => plausible(&status),
                }
                u.ended = true;
            }
            manager.unbound_destroy(u.id).expect("destroy");
            if u.way == Way::Send {
                // Who reads it from now on gets something else.
                u.data.fill(0x77);
            }
            u.after = Some(u.data.to_vec());
        }
    }

    /// Every unbound buffer has ended; pairs are closed.
    pub fn close_pairs(&mut self) {
        self.until("each unbound buffer ends", |s| s.unbound.iter().all(|u| u.after.is_some()));
        for pair in 0..self.pairs.len() {
            let first = self.luck.below(2) as usize;
            for which in [first, 1 - first] {
                self.close_end(pair, which);
            }
        }
    }

    /// How many sends of pairs arrived, after the end of all managers.
    pub fn judge_pairs(&self) -> usize {
        let ends = || self.pairs.iter().flat_map(|pair| &pair.ends);
        for end in ends() {
            let now = [end.out.1.to_vec(), end.into.1.to_vec()];
            assert!(end.after.as_ref() == Some(&now), "memory of a pair was touched after its end");
        }
        for u in &self.unbound {
            let same = u.after.as_deref() == Some(&*u.data);
            assert!(same, "memory of an unbound buffer was touched after its end");
        }
        ends().map(|end| end.came).sum()
    }
}
