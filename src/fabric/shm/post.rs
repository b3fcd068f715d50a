//! The posting side of a link: SEND, WRITE and READ become records in our ring.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::atomic::{Ordering, fence};

use super::link::{Link, MAX_RDMA, MAX_SEND};
use super::operations::{How, Passed, Posted, Reading};
use super::ring::{MAX_POOLS, NoRoom, load64};
use super::socket;
use super::stream::{Job, StreamOut};
use super::tuning::{Timed, Way};
use super::wire::{self, Ask, ContentAt, SocketMessage, Write, kind};
use super::{Core, Kind};
use crate::fabric::{HEAD_ROOM, Mem, PostError, Remote, SHORT_HEAD};
use crate::room::{self, Grows};
use crate::status::Status;

impl Link {
    /// Turns a full ring into back-pressure: the peer is told to ring when there is room.
    #[cold]
    fn no_room(&mut self, why: NoRoom, len: usize) -> PostError {
        match why {
            NoRoom::Full => {
                self.starved = self.starved.max(len.max(1));
                self.tx.control().starved.store(1, Ordering::Relaxed);
                PostError::QueueFull
            }
            NoRoom::Broken => PostError::Failed(self.broken("ring position")),
        }
    }

    /// A record of this payload was published.
    #[inline]
    fn published(&mut self, len: usize) {
        self.dirty = true;
        // A shorter one may have slipped in while a longer one waits.
        if self.starved != 0 && len >= self.starved {
            self.fed();
        }
    }

    /// Whether there is room again for what waited.
    pub(crate) fn has_room_again(&mut self) -> bool {
        let room = self.starved != 0 && self.tx.room(self.starved, self.rx.control()).is_ok();
        if room {
            self.fed();
        }
        room
    }

    fn fed(&mut self) {
        self.starved = self.owed();
        self.tx.control().starved.store(u32::from(self.starved != 0), Ordering::Relaxed);
    }

    /// Length of the record that a poll would post, and no call does; 0: there is none.
    fn owed(&self) -> usize {
        if !self.is_running(Kind::Read) && self.reads.iter().any(|r| r.how == How::Ask) {
            Ask::LEN
        } else {
            usize::from(!self.ends.is_empty())
        }
    }

    /// Whether there is such a record, and room for it. Without room the peer is to ring once there is some.
    pub(crate) fn has_room_for_owed(&mut self) -> bool {
        let len = self.owed();
        if len == 0 {
            return false;
        }
        if let Err(NoRoom::Full) = self.tx.room(len, self.rx.control()) {
            self.no_room(NoRoom::Full, len);
            // It may have made room just before it could know.
            fence(Ordering::SeqCst);
            return self.tx.room(len, self.rx.control()) != Err(NoRoom::Full);
        }
        true
    }

    /// Publishes a record of a kind that only we see; false while there is no room.
    pub(crate) fn record(&mut self, kind: u8, payload: &[u8]) -> Result<bool, Status> {
        let posted = self.tx.reserve(payload.len(), self.rx.control()).map(|mut slot| {
            slot.put(payload);
            slot.publish(kind, 0);
        });
        match posted.map_err(|why| self.no_room(why, payload.len())) {
            Ok(()) => self.published(payload.len()),
            Err(PostError::QueueFull) => return Ok(false),
            Err(PostError::Failed(status)) => return Err(status),
        }
        Ok(true)
    }

    /// The same for a record that nobody waits for: without room it is left out, and a peer that sleeps is woken only `aloud`.
    pub(super) fn whisper(
        &mut self,
        kind: u8,
        payload: &[u8],
        aloud: bool,
    ) -> Result<bool, Status> {
        match self.tx.reserve(payload.len(), self.rx.control()) {
            Ok(mut slot) => {
                slot.put(payload);
                slot.publish(kind, 0);
                self.dirty |= aloud;
                Ok(true)
            }
            Err(NoRoom::Full) => Ok(false),
            Err(NoRoom::Broken) => Err(self.broken("ring position")),
        }
    }

    /// Posts a SEND.
    #[inline]
    pub(crate) fn send(&mut self, parts: &[&[u8]]) -> Result<(), PostError> {
        let len = match parts {
            [head, tail] => head.len() + tail.len(),
            _ => parts.iter().map(|part| part.len()).sum(),
        };
        if len > MAX_SEND {
            return Err(too_long(len));
        }
        if let Err(why) = self.tx.post(kind::SEND, parts, len, self.rx.control()) {
            return Err(self.no_room(why, len));
        }
        self.published(len);
        Ok(())
    }

    /// The same of a head of this length, and content.
    #[inline(always)]
    pub(crate) fn send_short(
        &mut self,
        head: &[u8; SHORT_HEAD],
        content: &[u8],
    ) -> Result<(), PostError> {
        let len = SHORT_HEAD + content.len();
        if len > MAX_SEND {
            return Err(too_long(len));
        }
        if let Err(why) = self.tx.post_short(kind::SEND, head, content, self.rx.control()) {
            return Err(self.no_room(why, len));
        }
        self.published(len);
        Ok(())
    }

    /// The same of a head of `head_len` bytes, in the room for it.
    #[inline(always)]
    pub(crate) fn send_head(
        &mut self,
        head: &[u8; HEAD_ROOM],
        head_len: usize,
        content: &[u8],
    ) -> Result<(), PostError> {
        let len = head_len + content.len();
        if head_len > HEAD_ROOM || len > MAX_SEND {
            return Err(too_long(len));
        }
        let posted = self.tx.post_head(kind::SEND, head, head_len, content, self.rx.control());
        if let Err(why) = posted {
            return Err(self.no_room(why, len));
        }
        self.published(len);
        Ok(())
    }

    /// Posts a WRITE.
    pub(crate) fn write(
        &mut self,
        core: &Core,
        wr: u64,
        local: Mem,
        remote: Remote,
        imm: Option<u32>,
    ) -> Result<(), PostError> {
        let len = local.len();
        check_length("WRITE", len)?;
        let (to, flags) = self.begin_post(core, len, remote, imm)?;
        // Content in a record is touched by the post, which must not be held up by it.
        let mut described = 0;
        let timed = if len == 0 || (len <= core.policy.inline_max && !core.moves.left) {
            // SAFETY: the contract of Mem: readable until the operation's end.
            unsafe { self.write_inline(to, flags, local.addr() as *const u8, len as usize)? };
            None
        } else {
            let (place, timed) = self.write_described(core, to, flags, local)?;
            if place & wire::FROM_POOL == 0 {
                described = local.addr();
            }
            timed
        };
        self.writes.push_back(Posted { wr, remote, len, local: described, timed });
        Ok(())
    }

    /// Posts a WRITE whose content travels in its record, if it is short enough for that.
    pub(crate) fn write_copied(
        &mut self,
        core: &Core,
        wr: u64,
        content: &[u8],
        remote: Remote,
        imm: Option<u32>,
    ) -> Result<(), PostError> {
        let len = content.len() as u64;
        if len > core.policy.inline_max {
            return Err(PostError::QueueFull);
        }
        let (to, flags) = self.begin_post(core, len, remote, imm)?;
        // SAFETY: it is a slice.
        unsafe { self.write_inline(to, flags, content.as_ptr(), content.len())? };
        self.writes.push_back(Posted { wr, remote, len, local: 0, timed: None });
        Ok(())
    }

    /// Makes room for a WRITE; what its record says of it.
    fn begin_post(
        &mut self,
        core: &Core,
        len: u64,
        remote: Remote,
        imm: Option<u32>,
    ) -> Result<(Write, u8), PostError> {
        // What is read from there is to be read first.
        if self.writes.len() >= core.depth || overlaps_reads(&self.reads, remote, len) {
            return Err(PostError::QueueFull);
        }
        if !(self.writes.fits(1) && self.out.jobs.fits(1)) {
            return Err(PostError::Failed(room::none(size_of::<Posted>(), "a WRITE")));
        }
        let to = Write { dst: remote.addr, rkey: remote.rkey, imm: imm.unwrap_or(0) };
        Ok((to, if imm.is_some() { wire::HAS_IMM } else { 0 }))
    }

    /// A WRITE whose content travels in its record.
    ///
    /// # Safety
    /// `content` is readable for `len` bytes.
    unsafe fn write_inline(
        &mut self,
        to: Write,
        flags: u8,
        content: *const u8,
        len: usize,
    ) -> Result<(), PostError> {
        match self.tx.reserve(Write::LEN + len, self.rx.control()) {
            Ok(mut slot) => {
                slot.put(&to.encode());
                // SAFETY: by the caller.
                unsafe { slot.put_raw(content, len) };
                slot.publish(kind::WRITE_INLINE, flags);
            }
            Err(why) => return Err(self.no_room(why, Write::LEN + len)),
        }
        self.published(Write::LEN + len);
        Ok(())
    }

    /// Looks whether the peer asks for content by its control page.
    pub(crate) fn feed_asked(&mut self) -> Result<(), Status> {
        match load64(&self.theirs().feed_asked).checked_sub(1) {
            Some(op) if self.peer_reads => {
                self.fed_from = Some(op);
                self.feed_from(op)
            }
            _ => Ok(()),
        }
    }

    /// The peer can read our memory no longer: what it was told of WRITE `op` and the later ones comes through the stream instead, from
    /// the beginning, in their order.
    pub(crate) fn feed_from(&mut self, op: u64) -> Result<(), Status> {
        // One whose content was in the stream already may have ended since that was asked.
        let first = op.saturating_sub(self.answered);
        if first > self.writes.len() as u64 || !self.peer_reads {
            return Err(self.broken("feed of no WRITE"));
        }
        self.peer_reads = false;
        self.out.jobs.retain(|job| job.rkey.is_some() || job.op < op);
        self.open_stream()?;
        room::grow(&mut self.out.jobs, self.writes.len(), "WRITEs")?;
        for (at, posted) in self.writes.iter().enumerate().skip(first as usize) {
            if posted.local != 0 {
                let op = self.answered + at as u64;
                let (addr, len) = (posted.local, posted.len);
                let (rkey, denied, optional) = (None, false, false);
                self.out.jobs.push_back(Job { op, addr, len, done: 0, rkey, denied, optional });
            }
        }
        Ok(())
    }

    /// A WRITE whose record says where the content is.
    fn write_described(
        &mut self,
        core: &Core,
        to: Write,
        flags: u8,
        local: Mem,
    ) -> Result<(u8, Option<Timed>), PostError> {
        const LEN: usize = Write::LEN + ContentAt::LEN;
        if let Err(why) = self.tx.room(LEN, self.rx.control()) {
            return Err(self.no_room(why, LEN));
        }
        let (place, from, timed) = self.place(core, local)?;
        match self.tx.reserve(LEN, self.rx.control()) {
            Ok(mut slot) => {
                slot.put(&to.encode());
                slot.put(&from.encode());
                slot.publish(kind::WRITE, flags | place);
            }
            Err(why) => return Err(self.no_room(why, LEN)),
        }
        self.published(LEN);
        if place & wire::FROM_STREAM != 0 {
            let op = self.answered + self.writes.len() as u64;
            self.out.jobs.push_back(Job {
                op,
                addr: local.addr(),
                len: local.len(),
                done: 0,
                rkey: None,
                denied: false,
                optional: place & wire::FROM_PROCESS != 0,
            });
        }
        Ok((place, timed))
    }

    /// Where the target finds the content.
    fn place(
        &mut self,
        core: &Core,
        local: Mem,
    ) -> Result<(u8, ContentAt, Option<Timed>), PostError> {
        let mut from = ContentAt { at: local.addr(), len: local.len(), pool: 0 };
        if core.policy.pool
            && let Some((id, offset)) = core.pools.find(local.addr(), local.len())
            && self.pass_pool(core, id)
        {
            from = ContentAt { at: offset, pool: id, ..from };
            return Ok((wire::FROM_POOL, from, None));
        }
        if !(core.policy.process && self.peer_reads) {
            self.open_stream().map_err(PostError::Failed)?;
            return Ok((wire::FROM_STREAM, from, None));
        }
        if !core.policy.share {
            return Ok((wire::FROM_PROCESS, from, None));
        }
        let timed = self.tuning.choose(local.len());
        let both = timed.way() == Way::Both && self.open_stream().is_ok();
        let stream = if both { wire::FROM_STREAM } else { 0 };
        Ok((wire::FROM_PROCESS | stream, from, Some(timed)))
    }

    /// Whether the peer has mapped a pool segment of ours. One that it does not know is passed; what
    /// is posted until it has answered goes another way, and so does everything if it could not map
    /// the segment.
    pub(crate) fn pass_pool(&mut self, core: &Core, id: u32) -> bool {
        if let Some(at) = self.pools_sent.iter().position(|sent| sent.id == id) {
            let passed = &self.pools_sent[at];
            return passed.mapped.unwrap_or_else(|| {
                self.hear_of_pools();
                self.pools_sent[at].mapped == Some(true)
            });
        }
        // The peer's answers are read before their places are used again.
        self.hear_of_pools();
        let open = self.pools_sent.iter().filter(|sent| sent.mapped.is_none()).count();
        if self.pools_sent.len() < MAX_POOLS
            && open < MAX_POOLS
            && self.pools_sent.fits(1)
            && self.pools_gone.fits(self.pools_sent.len() + 1)
            && self.tell_gone_pools()
            && let Some((len, fd)) = core.pools.get(id)
            && socket::send(
                &self.sock,
                &SocketMessage::Pool { id, len }.encode(),
                &[fd.as_raw_fd()],
            )
            .is_ok()
        {
            self.pools_sent.push(Passed { id, at: self.pools_passed, mapped: None });
            self.pools_passed += 1;
            self.tx.control().pools_passed.store(self.pools_passed, Ordering::Release);
        }
        false
    }

    /// Takes the peer's answers to the segments that it was passed.
    fn hear_of_pools(&mut self) {
        let theirs = self.rx.control();
        let taken = load64(&theirs.pools_taken);
        for passed in self.pools_sent.iter_mut().filter(|p| p.mapped.is_none() && p.at < taken) {
            let place = (passed.at % MAX_POOLS as u64) as usize;
            let refused = theirs.pools_refused[place / 64].load(Ordering::Relaxed);
            passed.mapped = Some(refused & 1 << (place % 64) == 0);
        }
    }

    /// A segment of ours is no more.
    pub(crate) fn forget_pool(&mut self, id: u32) {
        if let Some(at) = self.pools_sent.iter().position(|sent| sent.id == id) {
            self.pools_sent.remove(at);
            self.pools_gone.push(id);
            self.tell_gone_pools();
        }
    }

    /// Tells the peer which segments it need not keep; false if it must hear of some later.
    pub(crate) fn tell_gone_pools(&mut self) -> bool {
        while let Some(&id) = self.pools_gone.last() {
            if socket::send(&self.sock, &SocketMessage::PoolGone { id }.encode(), &[]).is_err() {
                return false;
            }
            self.pools_gone.pop();
        }
        true
    }

    /// Makes sure that the peer has our stream segment.
    pub(crate) fn open_stream(&mut self) -> Result<(), Status> {
        if self.out.is_open() {
            return Ok(());
        }
        let failed = |e: std::io::Error| Status::os("shm: stream segment", &e);
        let (map, fd) = StreamOut::create().map_err(failed)?;
        let message = SocketMessage::Stream { len: map.len() as u64 }.encode();
        socket::send(&self.sock, &message, &[fd.as_raw_fd()]).map_err(failed)?;
        self.out.open(map);
        Ok(())
    }

    /// Posts a READ.
    pub(crate) fn read(
        &mut self,
        core: &Core,
        wr: u64,
        local: Mem,
        remote: Remote,
    ) -> Result<(), PostError> {
        let len = local.len();
        check_length("READ", len)?;
        // What was written there is to be in place first.
        let overlaps = |p: &Posted| ranges_overlap(p.remote.addr, p.len, remote.addr, len);
        if self.reads.len() >= core.depth || self.writes.iter().any(overlaps) {
            return Err(PostError::QueueFull);
        }
        if !self.reads.fits(1) {
            return Err(PostError::Failed(room::none(size_of::<Reading>(), "a READ")));
        }
        let direct =
            len == 0 || core.policy.pool || (core.policy.process && self.process.is_some());
        let how = if direct { How::Direct } else { How::Ask };
        let id = self.reads_begun;
        self.reads_begun += 1;
        self.reads.push_back(Reading {
            id,
            wr,
            local: local.addr(),
            remote,
            len,
            done: 0,
            back: len,
            how,
            fed: None,
            timed: None,
            ended: None,
        });
        Ok(())
    }
}

/// Whether two ranges share a byte.
pub(crate) fn ranges_overlap(a: u64, a_len: u64, b: u64, b_len: u64) -> bool {
    a_len > 0 && b_len > 0 && a < b.saturating_add(b_len) && b < a.saturating_add(a_len)
}

fn overlaps_reads(reads: &VecDeque<Reading>, remote: Remote, len: u64) -> bool {
    reads.iter().any(|r| ranges_overlap(r.remote.addr, r.len, remote.addr, len))
}

#[cold]
fn too_long(len: usize) -> PostError {
    let text = text!("shm: SEND of {len} bytes, at most {MAX_SEND} are possible");
    PostError::Failed(Status::invalid(text))
}

fn check_length(what: &str, len: u64) -> Result<(), PostError> {
    if len <= MAX_RDMA {
        return Ok(());
    }
    Err(PostError::Failed(Status::invalid(text!(
        "shm: {what} of {len} bytes, at most {MAX_RDMA} are possible"
    ))))
}
