//! Matching of sends and receives by step and key.
//!
//! A send before its receive waits as a tensor; a receive before its send waits as a waiter. A step
//! need not exist: it comes into being with its first entry and goes with its last, unless it was
//! aborted; then it stays, with its status, until cleaned up.

use std::collections::VecDeque;

use foldhash::HashMap;
use smallvec::SmallVec;

use crate::api::{SendDone, Tensor};
use crate::engine::Due;
use crate::limits::{ABORTED_STEPS, TENSORS};
use crate::room::{self, Grows};
use crate::status::Status;

/// A tensor that was sent and not yet taken.
pub struct Sent {
    /// The tensor; its memory is the sender's until `done`.
    pub tensor: Tensor,
    /// A copy of its content, if it has waited here, or nothing.
    pub content: Content,
    /// Ends the send.
    pub done: Option<Due<SendDone>>,
    /// Time at which the send fails if nobody took the tensor; `u64::MAX`: never.
    pub deadline: u64,
}

/// A copy of content; the shortest need no memory of their own.
pub type Content = SmallVec<[u8; 16]>;

/// Who waits for a tensor: an index into the engine's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Waiter {
    /// A request of this manager itself.
    Local(u32),
    /// A response owed to a peer.
    Remote(u32),
}

enum Item {
    Tensor(Sent),
    Waiters(SmallVec<[Waiter; 1]>),
}

#[derive(Default)]
struct Step {
    aborted: Option<Status>,
    items: HashMap<Box<[u8]>, Item>,
}

/// What a send met.
pub enum SendOutcome {
    /// The tensor waits in the table.
    Stored,
    /// The first waiter takes it.
    Matched(Waiter, Sent),
    /// A tensor of this key waits already.
    Duplicate,
    /// The step was aborted, or memory lacks.
    Refused(Status),
    /// So many tensors wait already.
    Full,
}

/// What a receive met.
pub enum RecvOutcome {
    /// The receive waits in the table.
    Waiting,
    /// The tensor was there.
    Matched(Sent),
    /// A receive of this key waits already.
    Duplicate,
    /// The step was aborted, or memory lacks.
    Refused(Status),
}

/// A tensor that was taken out, with its key and step.
pub type Withdrawn = (Box<[u8]>, i64, Sent);

/// Everything that a step held, where it was: giving up needs no memory.
#[derive(Default)]
pub struct Drained(HashMap<Box<[u8]>, Item>);

const MAX_SPARE: usize = 64;
/// Bytes of copied content that wait with their tensors; of others the content is copied when it is asked for.
const COPIES: usize = 16 << 20;

/// The table. See the module's text.
#[derive(Default)]
pub struct Table {
    steps: HashMap<i64, Step>,
    // Emptied steps, kept for their allocated maps: a training loop makes one per step.
    spare: Vec<Step>,
    aborted: VecDeque<i64>,
    earliest: u64,
    tensors: usize,
    /// Bytes of the copies of their content that take memory.
    copies: usize,
}

impl Table {
    /// An empty table.
    pub fn new() -> Table {
        Table { earliest: u64::MAX, ..Default::default() }
    }

    fn step(&mut self, step: i64) -> Result<&mut Step, Status> {
        if !self.steps.contains_key(&step) {
            room::grow(&mut self.steps, 1, "steps")?;
        }
        let spare = &mut self.spare;
        Ok(self.steps.entry(step).or_insert_with(|| spare.pop().unwrap_or_default()))
    }

    /// Tensors that wait.
    pub fn tensors(&self) -> usize {
        self.tensors
    }

    /// A tensor is no longer in the table.
    fn taken(&mut self, sent: &Sent) {
        self.tensors -= 1;
        self.copies -= sent.content.len();
    }

    fn shrink(&mut self, step: i64) {
        let empty =
            self.steps.get(&step).is_some_and(|s| s.items.is_empty() && s.aborted.is_none());
        if empty
            && let Some(s) = self.steps.remove(&step)
            && self.spare.len() < MAX_SPARE
            && self.spare.fits(1)
        {
            self.spare.push(s);
        }
    }

    /// The status with which the step was aborted, if it was.
    pub fn aborted(&self, step: i64) -> Option<&Status> {
        self.steps.get(&step).and_then(|s| s.aborted.as_ref())
    }

    /// Puts a tensor in, or hands it to the first waiter.
    pub fn send(&mut self, key: &[u8], step: i64, sent: Sent) -> (SendOutcome, Option<Sent>) {
        self.send_copied(key, step, sent, &[])
    }

    /// The same; `content` is the tensor's, or nothing.
    pub fn send_copied(
        &mut self,
        key: &[u8],
        step: i64,
        mut sent: Sent,
        content: &[u8],
    ) -> (SendOutcome, Option<Sent>) {
        let deadline = sent.deadline;
        let (full, left) = (self.tensors >= TENSORS, COPIES - self.copies);
        let s = match self.step(step) {
            Ok(s) => s,
            Err(status) => return (SendOutcome::Refused(status), Some(sent)),
        };
        if let Some(status) = &s.aborted {
            return (SendOutcome::Refused(status.clone()), Some(sent));
        }
        match s.items.get_mut(key) {
            None if full => {
                self.shrink(step);
                (SendOutcome::Full, Some(sent))
            }
            None => {
                let key = match entry(&mut s.items, key) {
                    Ok(key) => key,
                    Err(status) => {
                        self.shrink(step);
                        return (SendOutcome::Refused(status), Some(sent));
                    }
                };
                if content.len() <= left {
                    // Where memory lacks, it is copied when it is asked for.
                    let room = sent.content.try_reserve_exact(content.len());
                    sent.content.extend_from_slice(if room.is_ok() { content } else { &[] });
                }
                let copied = sent.content.len();
                s.items.insert(key, Item::Tensor(sent));
                self.tensors += 1;
                self.copies += copied;
                self.earliest = self.earliest.min(deadline);
                (SendOutcome::Stored, None)
            }
            Some(Item::Tensor(_)) => (SendOutcome::Duplicate, Some(sent)),
            Some(Item::Waiters(waiters)) => {
                let waiter = waiters.remove(0);
                if waiters.is_empty() {
                    s.items.remove(key);
                    self.shrink(step);
                }
                (SendOutcome::Matched(waiter, sent), None)
            }
        }
    }

    /// Takes the tensor, or puts a waiter in (made by `waiter` only then; `None` from it gives up).
    pub fn recv(
        &mut self,
        key: &[u8],
        step: i64,
        tolerate_duplicates: bool,
        waiter: impl FnOnce() -> Option<Waiter>,
    ) -> RecvOutcome {
        let s = match self.step(step) {
            Ok(s) => s,
            Err(status) => return RecvOutcome::Refused(status),
        };
        if let Some(status) = &s.aborted {
            return RecvOutcome::Refused(status.clone());
        }
        match s.items.get_mut(key) {
            Some(Item::Tensor(_)) => {
                let Some(Item::Tensor(sent)) = s.items.remove(key) else { unreachable!() };
                self.taken(&sent);
                self.shrink(step);
                return RecvOutcome::Matched(sent);
            }
            Some(Item::Waiters(waiters)) => {
                if !tolerate_duplicates {
                    return RecvOutcome::Duplicate;
                }
                if let Err(status) = room::grow(waiters, 1, "receives of one key") {
                    return RecvOutcome::Refused(status);
                }
                waiters.extend(waiter());
            }
            None => {
                // First the memory: who waits must not have been made in vain.
                let key = match entry(&mut s.items, key) {
                    Ok(key) => key,
                    Err(status) => {
                        self.shrink(step);
                        return RecvOutcome::Refused(status);
                    }
                };
                if let Some(w) = waiter() {
                    s.items.insert(key, Item::Waiters(smallvec::smallvec![w]));
                }
            }
        }
        self.shrink(step);
        RecvOutcome::Waiting
    }

    /// Whether a tensor of this key waits.
    pub fn has_tensor(&self, key: &[u8], step: i64) -> bool {
        matches!(self.steps.get(&step).and_then(|s| s.items.get(key)), Some(Item::Tensor(_)))
    }

    /// Takes one waiter out, wherever it stands.
    pub fn remove_waiter(&mut self, key: &[u8], step: i64, waiter: Waiter) {
        let Some(s) = self.steps.get_mut(&step) else { return };
        if let Some(Item::Waiters(waiters)) = s.items.get_mut(key) {
            waiters.retain(|w| *w != waiter);
            if waiters.is_empty() {
                s.items.remove(key);
            }
        }
        self.shrink(step);
    }

    /// Marks the step as aborted and gives up all it holds. A second abort keeps the first status.
    pub fn abort(&mut self, step: i64, status: Status) -> Result<Drained, Status> {
        room::grow(&mut self.aborted, 1, "aborted steps")?;
        let s = self.step(step)?;
        let items = std::mem::take(&mut s.items);
        if s.aborted.is_none() {
            s.aborted = Some(status);
            self.aborted.push_back(step);
            while self.aborted.len() > ABORTED_STEPS {
                if let Some(old) = self.aborted.pop_front() {
                    self.steps.remove(&old);
                }
            }
        }
        Ok(self.give_up(items))
    }

    /// Forgets the step and gives up all it holds.
    pub fn cleanup(&mut self, step: i64) -> Drained {
        let Some(s) = self.steps.remove(&step) else { return Drained::default() };
        if s.aborted.is_some() {
            self.aborted.retain(|&a| a != step);
        }
        self.give_up(s.items)
    }

    fn give_up(&mut self, items: HashMap<Box<[u8]>, Item>) -> Drained {
        for item in items.values() {
            if let Item::Tensor(sent) = item {
                self.taken(sent);
            }
        }
        Drained(items)
    }

    /// The steps that are there, in order; as many as there is memory for, at least one if there is any.
    pub fn steps(&self) -> SmallVec<[i64; 1]> {
        let mut steps = SmallVec::new();
        for &step in self.steps.keys() {
            if !steps.fits(1) {
                break;
            }
            steps.push(step);
        }
        steps.sort_unstable();
        steps
    }

    /// Earliest deadline of a waiting tensor, or earlier; `u64::MAX`: none.
    pub fn next_deadline(&self) -> u64 {
        self.earliest
    }

    /// Takes out the tensors whose deadline has passed, as many as there is memory for: the rest is due next time.
    pub fn expire(&mut self, now: u64) -> Vec<Sent> {
        let mut out = Vec::new();
        if now < self.earliest {
            return out;
        }
        self.earliest = u64::MAX;
        for s in self.steps.values_mut() {
            let due = |item: &Item| matches!(item, Item::Tensor(t) if t.deadline <= now);
            let count = s.items.values().filter(|item| due(item)).count();
            if out.fits(count) {
                for (_, item) in s.items.extract_if(|_, item| due(item)) {
                    if let Item::Tensor(sent) = item {
                        out.push(sent);
                    }
                }
            }
            for item in s.items.values() {
                if let Item::Tensor(t) = item {
                    self.earliest = self.earliest.min(t.deadline);
                }
            }
        }
        out.iter().for_each(|sent| self.taken(sent));
        self.steps.retain(|_, s| !s.items.is_empty() || s.aborted.is_some());
        out
    }

    /// Takes out the tensors that `which` picks, with their keys and steps. False: some are left, since memory
    /// lacks.
    pub fn withdraw(&mut self, which: impl Fn(&Tensor) -> bool) -> (Vec<Withdrawn>, bool) {
        let (mut out, mut whole) = (Vec::new(), true);
        let picked = |item: &Item| matches!(item, Item::Tensor(t) if which(&t.tensor));
        for (&step, s) in &mut self.steps {
            let count = s.items.values().filter(|item| picked(item)).count();
            if !out.fits(count) {
                whole = false;
                continue;
            }
            for (key, item) in s.items.extract_if(|_, item| picked(item)) {
                if let Item::Tensor(sent) = item {
                    out.push((key, step, sent));
                }
            }
        }
        out.iter().for_each(|(_, _, sent)| self.taken(sent));
        self.steps.retain(|_, s| !s.items.is_empty() || s.aborted.is_some());
        (out, whole)
    }

    /// Entries, for reports: waiting tensors and waiting receives.
    pub fn counts(&self) -> (usize, usize) {
        let (mut tensors, mut waiters) = (0, 0);
        for item in self.steps.values().flat_map(|s| s.items.values()) {
            match item {
                Item::Tensor(_) => tensors += 1,
                Item::Waiters(w) => waiters += w.len(),
            }
        }
        (tensors, waiters)
    }
}

impl Drained {
    /// Nothing was given up.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Ends each: tensors that nobody took, and receives that nobody served.
    pub fn end(self, mut tensor: impl FnMut(Sent), mut waiter: impl FnMut(Waiter)) {
        let mut all: SmallVec<[Waiter; 4]> = SmallVec::new();
        for item in self.0.into_values() {
            match item {
                Item::Tensor(sent) => tensor(sent),
                Item::Waiters(waiters) if all.fits(waiters.len()) => all.extend(waiters),
                Item::Waiters(waiters) => waiters.into_iter().for_each(&mut waiter),
            }
        }
        // The same in every run, but where memory lacks.
        all.sort_unstable();
        all.into_iter().for_each(waiter);
    }
}

/// Makes room for one more item; its key.
fn entry(items: &mut HashMap<Box<[u8]>, Item>, key: &[u8]) -> Result<Box<[u8]>, Status> {
    let none = |_| room::none(key.len(), "a table of keys");
    items.try_reserve(1).map_err(none)?;
    room::key(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Meta;
    use crate::status::Code;

    fn sent(n: u64) -> Sent {
        Sent {
            tensor: Tensor { meta: Meta { nbytes: n, ..Default::default() }, addr: 0, device: 0 },
            content: Content::new(),
            done: None,
            deadline: u64::MAX,
        }
    }

    #[test]
    fn r19_copies_that_wait_are_bounded() {
        let mut t = Table::new();
        let content = [1; 8 << 10];
        let most = COPIES / content.len();
        for i in 0..=most {
            t.send_copied(&i.to_le_bytes(), i as i64 % 2, sent(1), &content);
        }
        assert_eq!(t.copies, COPIES);
        let mut copied = |i: usize| match t.recv(&i.to_le_bytes(), i as i64 % 2, false, || None) {
            RecvOutcome::Matched(sent) => sent.content.len(),
            _ => panic!("it waits"),
        };
        assert_eq!((copied(0), copied(most)), (content.len(), 0));
        assert_eq!(t.copies, COPIES - content.len());
        t.cleanup(0);
        t.abort(1, Status::new(Code::Aborted, "stop")).unwrap();
        assert_eq!((t.copies, t.tensors), (0, 0));
    }

    #[test]
    fn send_then_receive_and_the_other_way() {
        let mut t = Table::new();
        assert!(matches!(t.send(b"k", 1, sent(5)).0, SendOutcome::Stored));
        assert!(matches!(t.send(b"k", 1, sent(5)).0, SendOutcome::Duplicate));
        let got = t.recv(b"k", 1, false, || None);
        assert!(matches!(got, RecvOutcome::Matched(s) if s.tensor.meta.nbytes == 5));
        let waiting = t.recv(b"k", 1, false, || Some(Waiter::Local(3)));
        assert!(matches!(waiting, RecvOutcome::Waiting));
        let dup = t.recv(b"k", 1, false, || Some(Waiter::Local(4)));
        assert!(matches!(dup, RecvOutcome::Duplicate));
        let dup = t.recv(b"k", 1, true, || Some(Waiter::Remote(5)));
        assert!(matches!(dup, RecvOutcome::Waiting));
        let first = t.send(b"k", 1, sent(1)).0;
        assert!(matches!(first, SendOutcome::Matched(Waiter::Local(3), _)));
        let second = t.send(b"k", 1, sent(1)).0;
        assert!(matches!(second, SendOutcome::Matched(Waiter::Remote(5), _)));
        assert!(t.steps.is_empty());
    }

    #[test]
    fn abort_and_cleanup() {
        let mut t = Table::new();
        t.send(b"a", 1, sent(1));
        t.recv(b"b", 1, false, || Some(Waiter::Local(1)));
        let drained = t.abort(1, Status::new(Code::Aborted, "stop")).unwrap();
        let (mut tensors, mut waiters) = (0, 0);
        drained.end(|_| tensors += 1, |_| waiters += 1);
        assert_eq!((tensors, waiters, t.tensors()), (1, 1, 0));
        assert!(matches!(t.send(b"a", 1, sent(1)).0, SendOutcome::Refused(_)));
        assert!(matches!(t.recv(b"a", 1, false, || None), RecvOutcome::Refused(_)));
        t.cleanup(1);
        assert!(matches!(t.send(b"a", 1, sent(1)).0, SendOutcome::Stored));
    }

    #[test]
    fn expires() {
        let mut t = Table::new();
        t.send(b"a", 1, Sent { deadline: 10, ..sent(1) });
        t.send(b"b", 1, Sent { deadline: 20, ..sent(1) });
        assert_eq!(t.expire(9).len(), 0);
        assert_eq!(t.expire(10).len(), 1);
        assert_eq!(t.next_deadline(), 20);
        assert_eq!(t.expire(30).len(), 1);
        assert!(t.steps.is_empty());
    }
}
