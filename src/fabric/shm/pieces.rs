//! Several pieces through a stream in one move: one end puts a slot after the other, the other end takes them, each as long as the
//! other keeps up. So a piece costs two lines that go from one processor to the other, and not a turn of the manager at each end, and
//! may be short: the second copy begins soon after the first, and both find slots in the caches.
//!
//! Nothing of the link is needed meanwhile but its two control pages, which are kept mapped. No other copy of the link uses that
//! stream until the move has ended, and what it has done is in the page of its own side.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::ring::{Control, Page, load64};
use super::stream::{self, Job, READ, SLOTS, Slot};
use super::sys::Mapping;
use super::wire;
use crate::bulk::{self, Way};
use crate::fabric::moves::MOVE_MAX;
use crate::os::ticks;

/// Processor ticks, a quarter of a microsecond, for which the other end's next step is waited for before the manager looks at all else. Where
/// there are more ranks than processors, that end may not be running: with two microseconds four of them on two took a twentieth longer.
const SOON: u64 = 600;

/// What both ends need.
#[derive(Debug)]
struct Ends {
    segment: Arc<Mapping>,
    own: Page,
    theirs: Page,
}

/// Waits until something is so, or for [`SOON`].
fn soon(mut is_so: impl FnMut() -> bool) -> bool {
    if is_so() {
        return true;
    }
    let began = ticks();
    while ticks().wrapping_sub(began) < SOON {
        spin_loop();
        if is_so() {
            return true;
        }
    }
    false
}

/// Pieces of a job into our stream.
#[derive(Debug)]
pub(crate) struct Feed {
    ends: Ends,
    job: Job,
    /// Slots put before.
    put: u64,
    way: Way,
}

impl Feed {
    /// From where the job is.
    pub(crate) fn new(
        segment: Arc<Mapping>,
        (own, theirs): (Page, Page),
        job: Job,
        put: u64,
        way: Way,
    ) -> Feed {
        Feed { ends: Ends { segment, own, theirs }, job, put, way }
    }

    /// What is read: address and length.
    pub(crate) fn source(&self) -> (u64, u64) {
        let left = (self.job.len - self.job.done).min(MOVE_MAX as u64);
        (self.job.addr.wrapping_add(self.job.done), left)
    }

    /// Copies them; how many bytes.
    ///
    /// # Safety
    /// The source is readable.
    pub(crate) unsafe fn run(&self) -> usize {
        let Ends { segment, own, theirs } = &self.ends;
        let (src, most) = self.source();
        let (mut job, mut put, mut moved) = (self.job, self.put, 0);
        while moved < most && !is_over(&job, theirs.control()) && soon(|| is_free(put, theirs)) {
            let n = (job.piece() as u64).min(most - moved);
            // SAFETY: so much of the source is left, by the caller; a slot has more, and what is not put yet nobody reads.
            unsafe {
                let to = stream::bytes(segment, put);
                bulk::copy((src + moved) as *const u8, to, n as usize, self.way);
            }
            stream::mark(segment, put, Slot { op: job.op, offset: job.done, len: n as usize });
            put += 1;
            own.control().stream_put.store(put, Ordering::Release);
            job.done += n;
            moved += n;
        }
        moved as usize
    }
}

/// Whether there is a slot after so many. An impossible count is for the next look at the link to find.
fn is_free(put: u64, theirs: &Page) -> bool {
    put.wrapping_sub(load64(&theirs.control().stream_taken)) < SLOTS as u64
}

/// Whether the other end does without what is left of this job.
pub(super) fn is_over(job: &Job, theirs: &Control) -> bool {
    let number = job.op & !READ;
    let (over, pulled) = match job.rkey {
        Some(_) if !job.optional => return false,
        Some(_) => (&theirs.reads_over, &theirs.read_pulled),
        None => (&theirs.executed, &theirs.pulled),
    };
    number < load64(over) || (job.optional && wire::has_pulled(load64(pulled), number, job.done))
}

/// Slots of one operation out of the peer's stream.
#[derive(Debug)]
pub(crate) struct Drain {
    ends: Ends,
    what: Wanted,
    /// Slots taken before.
    taken: u64,
    way: Way,
}

/// The slots that are taken, and where their content goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// The operation, as in their labels.
    pub(crate) op: u64,
    /// Where in its content they begin.
    pub(crate) offset: u64,
    /// Where the first byte goes.
    pub(crate) dst: u64,
    /// Bytes that are wanted.
    pub(crate) room: u64,
    /// Bytes of the content from there on.
    pub(crate) left: u64,
}

impl Drain {
    /// From slot `taken` on, which is one of these.
    pub(crate) fn new(
        segment: Arc<Mapping>,
        (own, theirs): (Page, Page),
        what: Wanted,
        taken: u64,
        way: Way,
    ) -> Drain {
        Drain { ends: Ends { segment, own, theirs }, what, taken, way }
    }

    /// What is written: address and length.
    pub(crate) fn destination(&self) -> (u64, u64) {
        (self.what.dst, self.what.room.min(MOVE_MAX as u64))
    }

    /// Copies what is there and what comes soon; how many bytes.
    ///
    /// # Safety
    /// The destination is writable.
    pub(crate) unsafe fn run(&self) -> usize {
        let Ends { segment, own, theirs } = &self.ends;
        let (dst, most) = self.destination();
        let Wanted { op, mut offset, mut left, .. } = self.what;
        let (mut taken, mut moved) = (self.taken, 0);
        while moved < most && soon(|| is_there(taken, theirs)) {
            // One that does not belong here is for the next look at the link to judge.
            let Some(slot) = stream::read(segment, taken) else { break };
            if slot.op != op || slot.offset != offset || slot.len as u64 > left {
                break;
            }
            let n = slot.len as u64;
            // The last that are wanted may be less than a slot; of others a part of one is left for the next move.
            if n > most - moved && most < self.what.room {
                break;
            }
            let wanted = n.min(most - moved);
            // SAFETY: so much of the destination is left, by the caller; the slot has more. The peer may change it meanwhile, and
            // harms its own content only.
            unsafe {
                let from = stream::bytes(segment, taken);
                bulk::copy(from, (dst + moved) as *mut u8, wanted as usize, self.way);
            }
            taken += 1;
            own.control().stream_taken.store(taken, Ordering::Release);
            (offset, left, moved) = (offset + n, left - n, moved + wanted);
        }
        moved as usize
    }
}

/// Whether there is a slot after so many; not, where the count is impossible.
fn is_there(taken: u64, theirs: &Page) -> bool {
    let there = load64(&theirs.control().stream_put).wrapping_sub(taken);
    there != 0 && there <= SLOTS as u64
}
