//! READs: pulled by the initiator under the owner's table of regions, or, where neither the pool
//! nor the kernel allows that, asked for and streamed by the owner.

use super::exports::Export;
use super::link::Link;
use super::moving::Running;
use super::operations::{How, Reading};
use super::pieces::{self, Feed};
use super::ring::{MAX_POOLS, load64};
use super::stream::{Job, READ};
use super::wire::{Ask, kind, outcome};
use super::{Core, Kind};
use crate::bulk::Way;
use crate::fabric::moves::{KeepAlive, MOVE_MAX, Move};
use crate::fabric::{Access, Event};
use crate::room::{self, Grows};
use crate::status::Status;

impl Link {
    /// Moves our READs on. True if something happened.
    pub(crate) fn advance_reads(
        &mut self,
        core: &mut Core,
        events: &mut Vec<Event>,
    ) -> Result<bool, Status> {
        let mut busy = false;
        let mut at = 0;
        while at < self.reads.len() {
            let mut read = self.reads[at];
            let ended = match read.how {
                How::Direct | How::Shared(_) if self.is_running(Kind::Read) => return Ok(busy),
                How::Direct | How::Shared(_) => match self.read_piece(core, &mut read)? {
                    Looked::Ended(code) => Some(code),
                    Looked::Ask => None,
                    Looked::Wait => {
                        self.reads[at] = read;
                        if let How::Shared(_) = read.how {
                            self.ask_ahead(core, at + 1)?;
                        }
                        return Ok(busy);
                    }
                },
                How::Ask => {
                    let Reading { remote, len, .. } = read;
                    let ask = Ask { addr: remote.addr, len, rkey: remote.rkey, helps: false };
                    if !self.record(kind::READ_ASK, &ask.encode())? {
                        // Asks go out in order.
                        return Ok(busy);
                    }
                    read.how = How::Asked(self.asked);
                    self.asked += 1;
                    self.asking += 1;
                    None
                }
                How::Asked(_) => {
                    at += 1;
                    continue;
                }
            };
            busy = true;
            match ended {
                None => self.reads[at] = read,
                Some(code) => {
                    self.counts(code)?;
                    self.reads.remove(at);
                    self.read_ended(&read, code);
                    let result = self.result("READ", code, read.remote, read.len);
                    events.push(Event::Done { ep: self.ep, wr: read.wr, result });
                }
            }
        }
        Ok(busy)
    }

    /// Begins to copy one piece of a READ.
    fn read_piece(&mut self, core: &mut Core, read: &mut Reading) -> Result<Looked, Status> {
        if read.len == 0 {
            return Ok(Looked::Ended(outcome::OK));
        }
        let remote = read.remote;
        let look = self.exports.look(remote.rkey);
        let Some((seq, region)) = look else { return Ok(Looked::Ended(outcome::DENIED)) };
        if !region.allows(remote.addr, read.len, Access::REMOTE_READ) {
            return Ok(Looked::Ended(outcome::DENIED));
        }
        if let How::Shared(_) = read.how {
            return self.share_read(core, read, seq);
        }
        let want = (read.len - read.done).min(MOVE_MAX as u64) as usize;
        let dst = read.local.wrapping_add(read.done);
        let (ep, what, id) = (self.ep, Kind::Read as u32, read.id);
        let mapped = if core.policy.pool { self.mapped(&region, read)? } else { None };
        if let Some((src, map)) = mapped {
            let way = Way::to_place(read.len);
            self.begin(core, Kind::Read, Running::Piece { id, seq, process: false }, |_| {
                // SAFETY: the source was checked against the segment, whose mapping is kept; the
                // destination is what is left of the READ's local memory, valid by the contract of
                // Mem.
                unsafe { Move::copy(ep, what, src, dst, want, way) }.keeping(map)
            });
        } else if let Some(process) = self.process.filter(|_| core.policy.process) {
            if read.done == 0 && self.ask_for_help(core, read)? {
                return self.share_read(core, read, seq);
            }
            let src = remote.addr.wrapping_add(read.done);
            self.begin(core, Kind::Read, Running::Piece { id, seq, process: true }, |_| {
                // SAFETY: as above.
                unsafe { Move::process(ep, what, process, src, dst, want) }
            });
        } else {
            read.how = How::Ask;
            read.done = 0;
            return Ok(Looked::Ask);
        }
        Ok(Looked::Wait)
    }

    /// Where the rest of the READ's source is mapped here, if it lies in a pool segment of the
    /// peer. One that is not mapped yet is asked for.
    fn mapped(
        &mut self,
        region: &Export,
        read: &Reading,
    ) -> Result<Option<(u64, KeepAlive)>, Status> {
        let Some((id, base)) = region.pool else { return Ok(None) };
        self.take_pools()?;
        if !self.pools.has(id) {
            let key = read.remote.rkey;
            if self.pools_wanted.len() < MAX_POOLS
                && self.pools_wanted.fits(1)
                && !self.pools_wanted.contains(&id)
                && self.record(kind::POOL_ASK, &key.to_le_bytes())?
            {
                self.pools_wanted.push(id);
            }
            return Ok(None);
        }
        let offset = (read.remote.addr - region.base).checked_add(read.done);
        let offset = offset.and_then(|o| o.checked_add(base));
        Ok(offset.and_then(|o| self.pools.at(id, o, read.len - read.done)))
    }

    /// Feeds our stream, and answers the peer's READs. True if something happened.
    pub(crate) fn feed(&mut self, core: &mut Core) -> Result<bool, Status> {
        let mut busy = self.begin_answers(core)?;
        if self.peer_reads && !self.writes.is_empty() {
            self.feed_asked()?;
        }
        if !self.out.jobs.is_empty() && !self.is_running(Kind::Out) {
            let taken = load64(&self.theirs().stream_taken);
            if !self.out.see_taken(taken) {
                return Err(self.broken("stream position"));
            }
            while self.feed_pieces(core) {
                busy = true;
            }
        }
        while let Some(&code) = self.ends.front() {
            if !self.record(kind::READ_END, &[code])? {
                break;
            }
            self.ends.pop_front();
            busy = true;
        }
        Ok(busy)
    }

    /// Puts READs that the peer has asked for in line with our own stream jobs.
    fn begin_answers(&mut self, core: &Core) -> Result<bool, Status> {
        let mut busy = false;
        while let Some(Ask { addr, len, rkey, helps }) = self.asks.pop_front() {
            room::grow(&mut self.out.jobs, 1, "answers to READs")?;
            room::grow(&mut self.ends, self.out.jobs.len() + 1, "ends of READs")?;
            let denied =
                core.exports.check(self.ep, rkey, addr, len, Access::REMOTE_READ).is_none();
            // Who asks for help alone does without.
            let denied = denied || (helps && self.open_stream().is_err());
            if !denied {
                self.open_stream()?;
            }
            let op = READ | self.asks_begun;
            self.asks_begun += 1;
            let (rkey, optional) = (Some(rkey), helps);
            self.out.jobs.push_back(Job { op, addr, len, done: 0, rkey, denied, optional });
            busy = true;
        }
        Ok(busy)
    }

    /// Moves the first job on; false if there is none, or it waits for a slot or for a copy.
    fn feed_pieces(&mut self, core: &mut Core) -> bool {
        if self.is_running(Kind::Out) {
            return false;
        }
        let Some(mut job) = self.out.jobs.front().copied() else { return false };
        if let Some(key) = job.rkey {
            let need = Access::REMOTE_READ;
            job.denied |= core.exports.check(self.ep, key, job.addr, job.len, need).is_none();
        }
        if !job.denied && job.done < job.len && !pieces::is_over(&job, self.theirs()) {
            let Some(segment) = self.out.segment() else { return false };
            let of = Running::Fill { op: job.op, done: job.done };
            let (ep, what) = (self.ep, Kind::Out as u32);
            let way = if self.out.is_far() { Way::Past } else { Way::to_reader(job.len) };
            self.begin(core, Kind::Out, of, |link| {
                let feed = Feed::new(segment, link.pages(), job, link.out.put, way);
                // SAFETY: the source of a WRITE is readable by the contract of Mem until we have
                // reported its end, that of a READ lies in a live region, as just checked.
                unsafe { Move::feed(ep, what, feed) }
            });
            return false;
        }
        self.out_done(job);
        true
    }

    /// The first job has ended.
    pub(crate) fn out_done(&mut self, job: Job) {
        self.out.jobs.pop_front();
        if job.rkey.is_some() && !job.optional {
            self.ends.push_back(if job.denied { outcome::DENIED } else { outcome::OK });
        }
    }
}

/// What a look at a READ came to.
pub(super) enum Looked {
    /// It has ended.
    Ended(u8),
    /// The peer is to be asked.
    Ask,
    /// It is being copied.
    Wait,
}
