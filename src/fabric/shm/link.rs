//! A connected endpoint: its two rings and everything under way on it.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use smallvec::SmallVec;

use super::exports::PeerExports;
use super::foreign::Foreign;
use super::moving::Running;
use super::operations::{Inbound, Passed, Posted, Reading};
use super::pools::{MapBudget, PeerPools};
use super::process::Process;
use super::ring::{
    Consumer, Control, Header, MAX_PAYLOAD, MAX_WRITES, Page, Producer, load32, load64,
};
use super::stream::{StreamIn, StreamOut};
use super::sys;
use super::tuning::Tuning;
use super::wire::{self, Write, kind, outcome};
use super::{Core, Kind};
use crate::fabric::{EpId, Event, One, Remote, View};
use crate::limits::POLL_EVENTS;
use crate::local_fd::Local;
use crate::room::Grows;
use crate::status::{Code, Reason, Status};

/// Largest SEND.
pub(crate) const MAX_SEND: usize = 36 * 1024;
/// Largest WRITE or READ.
pub(crate) const MAX_RDMA: u64 = 1 << 40;
const _: () = assert!(MAX_SEND <= MAX_PAYLOAD);

/// A connected endpoint.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) tx: Producer,
    pub(crate) rx: Consumer,
    pub(crate) exports: PeerExports,
    pub(crate) ep: EpId,
    /// Something was published that a sleeping peer should know.
    pub(crate) dirty: bool,
    /// We wait for room for a record of this length in our ring; 0: we do not.
    pub(crate) starved: usize,
    /// The peer can read our memory.
    pub(crate) peer_reads: bool,
    /// Its control page has asked for the content of WRITEs from this number on.
    pub(crate) fed_from: Option<u64>,
    pub(crate) writes: VecDeque<Posted>,
    pub(crate) answered: u64,
    pub(crate) failures: u64,
    pub(crate) inbound: Option<Inbound>,
    /// The peer is gone; what lies before this line of its ring counts.
    pub(crate) last: Option<u64>,
    /// That was found in this poll, when it had been read up to this line.
    end_found: Option<(u32, u64)>,
    pub(crate) executed: u64,
    pub(crate) failed: u64,
    pub(crate) reads: VecDeque<Reading>,
    pub(crate) out: StreamOut,
    pub(crate) into: StreamIn,
    /// READs that the peer asked for and that have no record yet.
    pub(crate) asks: VecDeque<wire::Ask>,
    /// READs that the peer has asked for, and that we have asked for.
    pub(crate) asks_begun: u64,
    pub(crate) asked: u64,
    /// Those of ours that are not answered.
    pub(crate) asking: usize,
    /// Copies that are being made, by kind.
    pub(crate) running: [Option<Running>; 3],
    /// The content of the record that is next is in place.
    pub(crate) inline_moved: Option<(Header, Write)>,
    pub(crate) reads_begun: u64,
    /// Of WRITEs, and of READs.
    pub(crate) tuning: Tuning,
    pub(crate) reading: Tuning,
    /// READs that were asked for and have ended, or do without: all before this number, but for those that are asked for still.
    pub(crate) helped: u64,
    /// Outcomes of such READs that have no record yet.
    pub(crate) ends: VecDeque<u8>,
    pub(crate) pools_sent: SmallVec<[Passed; 8]>,
    /// Pool segments ever passed.
    pub(crate) pools_passed: u64,
    /// Those that are no more, which the peer has not been told.
    pub(crate) pools_gone: SmallVec<[u32; 8]>,
    pub(crate) pools_wanted: SmallVec<[u32; 8]>,
    pub(crate) pools: PeerPools,
    /// The peer, if we can read its memory.
    pub(crate) process: Option<Process>,
    /// It could be read, and can no longer: the peer was asked to feed all its WRITEs.
    pub(crate) fed: bool,
    pub(crate) pidfd: Option<Local<OwnedFd>>,
    pub(crate) sock: Foreign,
    pub(crate) peer: Arc<str>,
}

/// What a new link is made of.
pub(crate) struct Parts {
    pub(crate) ep: EpId,
    pub(crate) peer: Arc<str>,
    pub(crate) tx: Producer,
    pub(crate) rx: Consumer,
    pub(crate) exports: PeerExports,
    pub(crate) sock: Foreign,
    /// The peer, if we can read its memory.
    pub(crate) process: Option<Process>,
    pub(crate) pidfd: Option<Local<OwnedFd>>,
    pub(crate) peer_reads: bool,
    pub(crate) budget: Arc<MapBudget>,
}

/// The status of a peer that has left.
pub(crate) fn gone(peer: &str) -> Status {
    Status::gone(text!("shm: peer {peer} closed the connection or ended"))
}

impl Link {
    pub(crate) fn new(p: Parts) -> Link {
        Link {
            tx: p.tx,
            rx: p.rx,
            exports: p.exports,
            ep: p.ep,
            dirty: false,
            starved: 0,
            peer_reads: p.peer_reads,
            fed_from: None,
            writes: VecDeque::new(),
            answered: 0,
            failures: 0,
            inbound: None,
            last: None,
            end_found: None,
            executed: 0,
            failed: 0,
            reads: VecDeque::new(),
            out: StreamOut::new(),
            into: StreamIn::default(),
            asks: VecDeque::new(),
            asks_begun: 0,
            asked: 0,
            asking: 0,
            running: [None; 3],
            inline_moved: None,
            reads_begun: 0,
            tuning: Tuning::new(),
            reading: Tuning::new(),
            helped: 0,
            ends: VecDeque::new(),
            pools_sent: SmallVec::new(),
            pools_passed: 0,
            pools_gone: SmallVec::new(),
            pools_wanted: SmallVec::new(),
            pools: PeerPools::new(p.budget),
            process: p.process,
            fed: false,
            pidfd: p.pidfd,
            sock: p.sock,
            peer: p.peer,
        }
    }

    /// The peer's control page.
    pub(crate) fn theirs(&self) -> &Control {
        self.rx.control()
    }

    /// Both control pages, kept mapped: this side's first.
    pub(super) fn pages(&self) -> (Page, Page) {
        (self.tx.page(), self.rx.page())
    }

    /// The status of a peer that breaks the rules.
    pub(crate) fn broken(&self, what: &str) -> Status {
        Status::new(Code::Internal, text!("shm: peer {} broke the protocol: {what}", self.peer))
            .because(Reason::RemoteError)
    }

    /// The status of a peer that has left.
    pub(crate) fn gone(&self) -> Status {
        gone(&self.peer)
    }

    /// Whether the process or the connection at the other end is gone; a system call.
    pub(crate) fn is_gone(&self) -> bool {
        sys::hung_up(&self.sock, self.pidfd.as_deref())
    }

    /// Room for all that a look at this link reports, beside the ends of endpoints.
    pub(crate) fn fits(&self, ends: usize, events: &mut Vec<Event>) -> bool {
        events.fits(ends + self.writes.len() + self.reads.len() + POLL_EVENTS + 2)
    }

    /// Reports the WRITEs that the peer has answered.
    pub(crate) fn collect(&mut self, events: &mut Vec<Event>) -> Result<bool, Status> {
        let executed = load64(&self.theirs().executed);
        if executed == self.answered {
            return Ok(false);
        }
        let count = executed.wrapping_sub(self.answered);
        if count > self.writes.len() as u64 {
            return Err(self.broken("number of executed writes"));
        }
        let look = load64(&self.theirs().failed) != self.failures;
        // Their sources are not read any more.
        self.out.drop_before(executed);
        for _ in 0..count {
            let index = (self.answered % MAX_WRITES as u64) as usize;
            let code = if look {
                self.theirs().outcome[index].load(Ordering::Relaxed)
            } else {
                outcome::OK
            };
            self.counts(code)?;
            self.answered += 1;
            let Some(posted) = self.writes.pop_front() else { break };
            if let Some(timed) = posted.timed {
                self.tuning.answered(timed, posted.len);
            }
            self.failures += u64::from(code != outcome::OK);
            let result = self.result("WRITE", code, posted.remote, posted.len);
            events.push(Event::Done { ep: self.ep, wr: posted.wr, result });
        }
        self.tuning.learn();
        Ok(true)
    }

    /// Whether an operation on the peer's memory ended so; the error: the peer is gone. One that leaves closes its
    /// memory, and has said before that it leaves: then the outcome is none.
    pub(crate) fn counts(&self, code: u8) -> Result<(), Status> {
        match code != outcome::OK && (self.peer_closed() || self.is_gone()) {
            true => Err(self.gone()),
            false => Ok(()),
        }
    }

    /// The result of an operation on the peer's memory.
    pub(crate) fn result(
        &self,
        what: &str,
        code: u8,
        remote: Remote,
        len: u64,
    ) -> Result<(), Status> {
        if code == outcome::OK {
            return Ok(());
        }
        let peer = &self.peer;
        let text = text!("shm: {what} of {len} bytes at {:#x} of peer {peer}", remote.addr);
        Err(if code == outcome::DENIED {
            let text = text!("{text}: key {:#010x} does not allow it", remote.rkey);
            Status::new(Code::PermissionDenied, text).because(Reason::RemoteError)
        } else {
            // The system says no more than that a copy between the two processes failed.
            let text = text!(
                "{text}: memory of the application cannot be accessed, here or at the peer: it is not mapped, or may \
                 not be read or written"
            );
            Status::new(Code::FailedPrecondition, text)
        })
    }

    /// Ends everything under way. The peer was told that nothing of it counts any more.
    pub(crate) fn fail(&mut self, status: &Status, ends: usize, events: &mut Vec<Event>) {
        let wrs = self.writes.drain(..).map(|w| w.wr);
        let wrs = wrs.chain(self.reads.drain(..).map(|r| r.wr));
        for wr in wrs {
            // The end of the endpoint, for which there is room, ends them too.
            if events.fits(ends) {
                events.push(Event::Done { ep: self.ep, wr, result: Err(status.clone()) });
            }
        }
        self.out.jobs.clear();
        self.inbound = None;
        events.push(Event::Down { ep: self.ep, status: status.clone() });
    }

    /// Tells the peer that nothing that we posted counts any more.
    pub(crate) fn close(&mut self) {
        self.tx.control().closed.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Whether the peer has left this link.
    pub(crate) fn peer_closed(&self) -> bool {
        // What was copied before counts as copied before this look.
        fence(Ordering::SeqCst);
        load32(&self.theirs().closed) != 0
    }

    /// Whether nothing is under way here but messages.
    #[inline]
    fn is_calm(&self) -> bool {
        let queues = self.writes.len() | self.reads.len() | self.out.jobs.len();
        (queues | self.asks.len() | self.ends.len()) == 0 && self.inbound.is_none()
    }

    /// Whether a poll has nothing to do but to let go of what was read before, which is done here, and the peer told:
    /// nothing came, and nothing is under way.
    #[inline]
    pub(crate) fn rests(&mut self) -> bool {
        self.rx.release();
        let published = self.rx.is_published();
        if self.rx.can_tell() && (!published || self.rx.should_tell()) {
            self.share_room(false);
        }
        !published && self.is_calm() && !self.dirty
    }

    /// Lets go of what was read before, and takes the next record, if it is a message, and nothing else is under way.
    #[inline(always)]
    pub(crate) fn hear_one(&mut self) -> One {
        self.rx.release();
        let published = self.rx.is_published();
        if self.rx.can_tell() && (!published || self.rx.should_tell()) {
            self.share_room(false);
        }
        if self.is_running(Kind::In) || self.inline_moved.is_some() || self.dirty {
            return One::Other;
        }
        if !self.is_calm() {
            return self.hear_behind_writes(published);
        }
        if published { self.hear_published() } else { One::Nothing }
    }

    /// Takes the next record, if it is a message, and nothing else is under way. What was read before stays.
    #[inline]
    pub(crate) fn hear_next(&mut self) -> Option<View> {
        if !self.rx.is_published() || self.is_running(Kind::In) || self.inline_moved.is_some() {
            return None;
        }
        if self.is_calm() { self.rx.take(kind::SEND) } else { None }
    }

    /// Takes messages; how many. For what else there may be `work` has to be called: `false`.
    #[inline]
    pub(crate) fn hears_only(&mut self, events: &mut Vec<Event>) -> (usize, bool) {
        if !self.is_calm() || self.is_running(Kind::In) || self.inline_moved.is_some() {
            return (0, false);
        }
        let taken = self.take_messages(events);
        (taken, !self.rx.is_published() && !self.dirty)
    }

    /// Everything that a poll does for one link that does not rest, but to let go of what was reported before. So many
    /// records were taken already. True if there was something.
    pub(crate) fn work(
        &mut self,
        core: &mut Core,
        taken: usize,
        events: &mut Vec<Event>,
    ) -> Result<bool, Status> {
        let mut busy = self.receive(core, taken, events)?;
        if !self.reads.is_empty() {
            busy |= self.advance_reads(core, events)?;
        }
        busy |= self.send_out(core)?;
        if !busy && self.rx.can_tell() {
            self.share_room(false);
        }
        Ok(busy)
    }

    /// The peer is gone. What it has published before still counts, and a poll takes some of that: true, if there is more.
    pub(crate) fn take_rest(
        &mut self,
        core: &mut Core,
        events: &mut Vec<Event>,
    ) -> Result<bool, Status> {
        let begun = self.rx.position();
        // Not more than a ring has: a peer may have made one that has no end.
        let most = *self.last.get_or_insert(begun + self.rx.lines());
        self.work(core, 0, events)?;
        if self.is_coming(core) {
            return Ok(true);
        }
        let now = self.rx.position();
        // What finds no room beside what was taken before is for the next poll, which begins with an empty inbox.
        let waits = matches!(self.rx.peek(), Ok(Some(next)) if next.kind == kind::SEND && !self.rx.takes(next.len));
        Ok((now != begun || waits) && now < most && self.rx.is_published())
    }

    /// Whether the end of a peer that is gone, which something that needs it has found, is for later: messages that it published
    /// before wait here, and polls of all links take them. Each has to take some: behind a WRITE whose content is gone nothing comes.
    pub(super) fn postpones_end(&mut self, round: u32) -> bool {
        let at = self.rx.position();
        let most = *self.last.get_or_insert(at + self.rx.lines());
        let stands = self.end_found.is_some_and(|(last, before)| last != round && before == at);
        if self.inbound.is_some() || stands || at >= most || !self.rx.is_published() {
            return false;
        }
        if self.end_found.is_none_or(|(_, before)| before != at) {
            self.end_found = Some((round, at));
        }
        true
    }

    /// Whether what the peer published before waits here: for a copy, or for the next poll.
    pub(crate) fn has_rest(&self, core: &Core) -> bool {
        !self.peer_closed() && (self.is_coming(core) || self.rx.is_published())
    }

    /// Whether a copy of what the peer posted is being made, or will be.
    fn is_coming(&self, core: &Core) -> bool {
        self.is_running(Kind::In) || core.moves.wanted.contains(&(self.ep, Kind::In))
    }

    /// Feeds the stream and what belongs to it, where there is something.
    pub(crate) fn send_out(&mut self, core: &mut Core) -> Result<bool, Status> {
        let mut busy = false;
        if !(self.out.jobs.is_empty() && self.asks.is_empty() && self.ends.is_empty()) {
            busy |= self.feed(core)?;
        }
        Ok(busy)
    }

    /// Tells the peer how far it may write, and rings if it waits for that. `surely`: with a fence,
    /// so that a peer that has just begun to wait is not overlooked.
    pub(crate) fn share_room(&mut self, surely: bool) {
        if self.rx.can_tell() {
            self.rx.tell(self.tx.control());
        }
        if surely {
            fence(Ordering::SeqCst);
        }
        if load32(&self.theirs().starved) != 0 {
            self.dirty = true;
        }
    }

    /// Shows the peer that this process drives, where no record can: behind one whose content waits for a slow page, in either
    /// process, lies what it asks, or what we answered. One that is stopped changes nothing here.
    pub(crate) fn show_life(&self) {
        if self.is_behind() {
            // Nobody else writes it: a sum without a lock.
            let awake = &self.tx.control().awake;
            awake.store(load64(awake).wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// Whether records of the peer wait for content here, or ours there.
    pub(super) fn is_behind(&self) -> bool {
        self.is_running(Kind::In) || self.inbound.is_some() || self.tx.is_unread(self.theirs())
    }

    /// Whether the stream has content to take.
    pub(crate) fn has_jobs(&self) -> bool {
        !self.out.jobs.is_empty()
    }

    /// Whether the peer fetches content from here.
    pub(crate) fn owes_content(&self) -> bool {
        !self.writes.is_empty() && !self.peer_closed()
    }

    /// Whether a poll would find something.
    pub(crate) fn has_work(&mut self) -> bool {
        let coming = self.is_running(Kind::In);
        let idle_ring = coming || self.inbound.is_some() || matches!(self.rx.peek(), Ok(None));
        !idle_ring
            || self.stream_ready()
            || (!self.writes.is_empty() && load64(&self.theirs().executed) != self.answered)
            || (!self.is_running(Kind::Read) && self.reads.iter().any(Reading::needs_no_answer))
            // A READ that was seen when a copy had ended, behind the look at what is to be answered.
            || !self.asks.is_empty()
            || self.has_room_again()
            || self.has_room_for_owed()
    }

    /// Whether stream slots can be moved, in or out, or a copy is under way.
    fn stream_ready(&mut self) -> bool {
        let waits = match self.inbound {
            // Who makes the copy goes on with it.
            _ if self.is_running(Kind::In) => false,
            None => self.asking > 0,
            // It can be read without the peer's help.
            Some(inbound) if inbound.place != wire::FROM_STREAM => return true,
            Some(_) => true,
        };
        let coming = waits && load64(&self.theirs().stream_put) != self.into.taken;
        let going = !self.is_running(Kind::Out) && !self.out.jobs.is_empty() && {
            let taken = load64(&self.theirs().stream_taken);
            // An impossible count is for the next poll to find.
            !self.out.see_taken(taken) || self.out.has_slot()
        };
        coming || going
    }
}
