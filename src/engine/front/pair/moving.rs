//! How the content of a send goes, and how each send ends.

use super::calls::check_place;
use super::{Buffer, Send, Stage, Step, Target, of_buffer, of_pair, of_slot};
use crate::api::Protocol;
use crate::engine::channel::ChanId;
use crate::engine::{Engine, Fx, WR_SLOT, Work, checksum};
use crate::fabric::keys::{Keys, pieces_at};
use crate::fabric::{Access, Mem, Remote};
use crate::protocol::message::{IMM_SLOT, Message, PairMessage};
use crate::status::{Code, Status};

impl Engine {
    /// A send has its grant, and nothing is before it: its writes are posted, or its checksum is computed first.
    pub(super) fn go_send(&mut self, fx: &mut impl Fx, index: u32) {
        let pairs = &mut self.pairs;
        let Some(s) = pairs.sends.get_mut(index) else { return };
        let Some(b) = pairs.buffers.get(s.buffer) else { return };
        let Some(p) = pairs.pairs.get_mut(b.pair) else { return };
        let Some(Target { grant: Some(grant), .. }) = p.targets.get(&b.slot) else { return };
        if let Err(status) = check_place(b.slot, grant.len, s.at, s.len) {
            return self.end_slot_send(fx, index, Err(Some(status)));
        }
        let ch = grant.ch;
        let Some(c) = self.channels.get(ch) else { return };
        if c.seal.is_none() {
            return self.post_slot_send(fx, index, None);
        }
        p.going = Some(index);
        if s.len == 0 {
            return self.post_slot_send(fx, index, Some(checksum(&[])));
        }
        s.step = Step::Hashing { begun: false };
        let (addr, len) = (b.addr + s.offset, s.len);
        fx.run(Work::HostHash { token: WR_SLOT | u64::from(index), addr, len });
    }

    /// Posts the writes of a send. With a checksum SLOT_DONE follows them; otherwise the last has the immediate.
    fn post_slot_send(&mut self, fx: &mut impl Fx, index: u32, sum: Option<u64>) {
        let Some((buffer, ch)) = self.grant_of(index) else { return };
        let lkeys = match self.pin(fx, buffer, ch) {
            Ok(keys) => keys,
            Err(status) => return self.end_slot_send(fx, index, Err(Some(status))),
        };
        let pairs = &mut self.pairs;
        let (Some(s), Some(b)) = (pairs.sends.get_mut(index), pairs.buffers.get(buffer)) else {
            return;
        };
        let Some(p) = pairs.pairs.get(b.pair) else { return };
        let Some(Target { grant: Some(grant), .. }) = p.targets.get(&b.slot) else { return };
        let Some(c) = self.channels.get_mut(ch) else { return };
        let (addr, len, at, number) = (b.addr + s.offset, s.len, s.at, grant.number);
        let wr = WR_SLOT | u64::from(index);
        let imm = sum.is_none().then_some(IMM_SLOT | number);
        let mut left = 0;
        if len == 0 && (imm.is_some() || c.caps.windows) {
            // SAFETY: zero bytes are never touched.
            let nothing = unsafe { Mem::new(0, 0, 0) };
            // A notice to a buffer that is gone is not done, and tells so, as content does.
            let remote = match c.caps.windows {
                true => Remote {
                    addr: grant.place.addr.wrapping_add(at),
                    rkey: grant.place.rkeys.at(at).0,
                },
                false => Remote { addr: 0, rkey: 0 },
            };
            c.write(fx, wr, nothing, remote, imm);
            left = 1;
        }
        let (here, there) = ((&lkeys, s.offset), (&grant.place, at));
        for piece in pieces_at(len, c.caps.max_rdma, here, there) {
            let last = piece.at + piece.len == len;
            // SAFETY: the buffer's memory is valid until the application lets it go, which ends after the last `Done`
            // or after the channel has ended.
            let local = unsafe { Mem::new(addr + piece.at, piece.len, piece.lkey) };
            c.write(fx, wr, local, piece.remote, imm.filter(|_| last));
            left += 1;
        }
        s.step = Step::Writing { ch, left, unchecked: sum.is_some() };
        if let Some(checksum) = sum {
            let done =
                PairMessage::Done { grant: number, number: index, offset: at, len, checksum };
            c.send(fx, &Message::Pair(done), &[]);
        }
    }

    /// The buffer of a send, and the channel of its grant.
    fn grant_of(&self, send: u32) -> Option<(u32, ChanId)> {
        let s = self.pairs.sends.get(send)?;
        let b = self.pairs.buffers.get(s.buffer)?;
        let p = self.pairs.pairs.get(b.pair)?;
        Some((s.buffer, p.targets.get(&b.slot)?.grant.as_ref()?.ch))
    }

    /// Whether a send fits what its slot is now: while its checksum was computed, another buffer may have taken the place of
    /// that which it was checked against.
    fn fits_slot(&self, send: u32) -> Result<(), Status> {
        let s = self.pairs.sends.get(send);
        let buffer = s.and_then(|s| Some((s, self.pairs.buffers.get(s.buffer)?)));
        let Some((s, b)) = buffer else { return Ok(()) };
        let target = self.pairs.pairs.get(b.pair).and_then(|p| p.targets.get(&b.slot));
        match target.and_then(|t| t.grant.as_ref()) {
            Some(grant) => check_place(b.slot, grant.len, s.at, s.len),
            None => Ok(()),
        }
    }

    /// Local keys of a send buffer; where the provider needs it, it is registered for as long as the buffer lives.
    fn pin(&mut self, fx: &mut impl Fx, index: u32, ch: ChanId) -> Result<Keys<u32>, Status> {
        let windows = self.channels.get(ch).is_none_or(|c| c.caps.windows);
        let Some(b) = self.pairs.buffers.get_mut(index) else { return Ok(Keys::one(0)) };
        if windows || b.len == 0 {
            return Ok(Keys::one(0));
        }
        if let Some(window) = &b.window {
            return Ok(window.keys.map(|mr| mr.lkey));
        }
        let window = fx.pin(ch, b.addr, b.len, Access::empty())?;
        let keys = window.keys.map(|mr| mr.lkey);
        (b.window, b.ch, b.stage) = (Some(window), Some(ch), Stage::Open);
        Ok(keys)
    }

    /// A WRITE of a send has ended.
    pub(in crate::engine) fn on_slot_done(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        result: Result<(), Status>,
    ) {
        let Some(s) = self.pairs.sends.get_mut(index) else { return };
        let Step::Writing { left, .. } = &mut s.step else { return };
        *left -= 1;
        if let Err(status) = result {
            s.failed.get_or_insert(status);
        }
        self.may_end_send(fx, index);
    }

    /// The other end has compared the checksum of a send.
    pub(super) fn on_slot_checked(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        number: u32,
        same: bool,
    ) {
        let Some(s) = self.pairs.sends.get_mut(number) else { return self.stale += 1 };
        match &mut s.step {
            Step::Writing { ch: on, unchecked, .. } if *on == ch && *unchecked => {
                *unchecked = false;
                if !same {
                    let text = "the content has another checksum at the other end";
                    s.failed.get_or_insert_with(|| Status::new(Code::DataLoss, text));
                }
                self.may_end_send(fx, number);
            }
            _ => self.stale += 1,
        }
    }

    /// Ends a send of which nothing is under way any more.
    fn may_end_send(&mut self, fx: &mut impl Fx, index: u32) {
        let Some(s) = self.pairs.sends.get_mut(index) else { return };
        if matches!(s.step, Step::Writing { left: 0, unchecked: false, .. }) {
            let result = s.failed.take().map_or(Ok(()), |status| Err(Some(status)));
            self.end_slot_send(fx, index, result);
        }
    }

    /// Ends a send. The only place where one does. `Err(None)`: as its pair has ended, or its buffer was let go.
    ///
    /// One that failed stays until its owner has heard of it; nothing is allocated here.
    pub(super) fn end_slot_send(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        result: Result<(), Option<Status>>,
    ) {
        self.send_goes(index);
        let pairs = &mut self.pairs;
        let Some(s) = pairs.sends.get_mut(index) else { return };
        let (buffer, len, step, links) = (s.buffer, s.len, s.step, s.of_buffer);
        let Some(b) = pairs.buffers.get_mut(buffer) else { return };
        let pair = b.pair;
        let Some(p) = pairs.pairs.get_mut(pair) else { return };
        let code = match &result {
            Ok(()) => Code::Ok,
            Err(Some(status)) => status.code,
            Err(None) => p.sends_no_more().map_or(Code::Cancelled, |status| status.code),
        };
        b.under_way -= 1;
        p.sends -= 1;
        b.sends.remove(&mut pairs.sends, of_buffer, index, links);
        match result {
            Err(why) if !b.released => {
                if let Some(s) = pairs.sends.get_mut(index) {
                    s.failed = why;
                    s.step = Step::Failed { after: std::mem::take(&mut b.sent_since) };
                }
                b.failed.push(&mut pairs.sends, of_buffer, index);
                b.failures += 1;
                p.unheard += 1;
            }
            ended => {
                b.sent += u64::from(ended.is_ok());
                b.sent_since += u64::from(ended.is_ok());
                pairs.sends.vacate(index);
            }
        }
        let ch = match step {
            Step::Writing { ch, .. } => Some(ch),
            _ => p.heard.map(|heard| heard.0),
        };
        if let Some(c) = ch.and_then(|ch| self.channels.get(ch)) {
            let bytes = if code == Code::Ok { len } else { 0 };
            c.counters.send_done(bytes, code, Protocol::DirectPut);
        }
        let was_going = p.going == Some(index);
        if was_going {
            p.going = None;
        }
        self.unpin(fx, buffer);
        self.tell_buffer(fx, buffer);
        if was_going {
            self.go_behind(fx, pair);
        }
    }

    /// Something happened to a buffer: its owner is told, or whoever waits looks.
    pub(super) fn tell_buffer(&mut self, fx: &mut impl Fx, index: u32) {
        let Some(b) = self.pairs.buffers.get_mut(index) else { return };
        let memory = (b.addr, b.len);
        if b.told.is_none() && !b.released && !fx.copies_touch(memory) {
            self.happened += 1;
        } else if !std::mem::replace(&mut b.telling, true) {
            fx.run(Work::BufferEvents { buffer: index, memory });
        }
    }

    /// Whether a checksum that is about to be computed is still wanted.
    pub(in crate::engine) fn slot_hash_begins(&mut self, token: u64) -> Result<(), Status> {
        let begun = match token & WR_ARRIVED {
            0 => match self.pairs.sends.get_mut(token as u32).map(|s| &mut s.step) {
                Some(Step::Hashing { begun }) => Some(begun),
                _ => None,
            },
            _ => {
                let open = |b: &&mut Buffer| b.stage == Stage::Open;
                let b = self.pairs.buffers.get_mut(token as u32).filter(open);
                b.and_then(|b| b.unchecked.as_mut()).map(|it| &mut it.begun)
            }
        };
        let over = || Status::new(Code::Cancelled, "the buffer is being closed");
        begun.map(|begun| *begun = true).ok_or_else(over)
    }

    /// A checksum has been computed: of a send, or of what arrived.
    pub(in crate::engine) fn slot_hashed(
        &mut self,
        fx: &mut impl Fx,
        token: u64,
        result: Result<u64, Status>,
    ) {
        let index = token as u32;
        if token & WR_ARRIVED != 0 {
            return self.arrival_hashed(fx, index, result);
        }
        // It may have ended before that began.
        let hashing = |s: &&mut Send| matches!(s.step, Step::Hashing { .. });
        let Some(s) = self.pairs.sends.get_mut(index).filter(hashing) else { return };
        s.step = Step::Waiting;
        let (buffer, failed) = (s.buffer, s.failed.take());
        let Some(pair) = self.pairs.buffers.get(buffer).map(|b| b.pair) else { return };
        let ch = self.grant_of(index).map(|(_, ch)| ch);
        match (failed, result) {
            (Some(status), _) | (None, Err(status)) => {
                self.end_slot_send(fx, index, Err(Some(status)));
            }
            (None, Ok(sum)) if ch.is_some() => match self.fits_slot(index) {
                Ok(()) => self.post_slot_send(fx, index, Some(sum)),
                Err(status) => self.end_slot_send(fx, index, Err(Some(status))),
            },
            // The grant was closed meanwhile: it waits for the next, before those that came after it.
            (None, Ok(_)) => {
                self.wait_again(index, pair);
                self.go_behind(fx, pair);
            }
        }
        if let Some(ch) = ch {
            self.settle(fx, ch);
        }
    }

    /// Sends that came after one that was going go on.
    fn go_behind(&mut self, fx: &mut impl Fx, pair: u32) {
        while let Some(p) = self.pairs.pairs.get(pair)
            && p.going.is_none()
            && let Some(send) = p.behind.first()
        {
            self.send_goes(send);
            self.go_send(fx, send);
        }
    }

    /// A send whose grant is gone waits for the next one of its slot, before those that came after it.
    fn wait_again(&mut self, index: u32, pair: u32) {
        let pairs = &mut self.pairs;
        let Some(s) = pairs.sends.get(index) else { return };
        let Some(b) = pairs.buffers.get(s.buffer) else { return };
        let Some(p) = pairs.pairs.get_mut(pair) else { return };
        p.going = None;
        let Some(target) = p.targets.get_mut(&b.slot) else { return };
        target.waiting.push_first(&mut pairs.sends, of_slot, index);
        self.send_waits(pair, index, false);
    }

    /// A send is among those of its slot that wait now: for a grant, with its deadline, or behind others.
    pub(super) fn send_waits(&mut self, pair: u32, index: u32, granted: bool) {
        let pairs = &mut self.pairs;
        let Some(s) = pairs.sends.get_mut(index) else { return };
        (s.waits, s.ungranted) = (true, !granted);
        let (was_behind, links) = (std::mem::replace(&mut s.behind, granted), s.of_pair);
        if !granted {
            pairs.deadlines.set(index, s.deadline);
            self.next_deadline = self.next_deadline.min(s.deadline);
        }
        let Some(p) = pairs.pairs.get_mut(pair) else { return };
        match (was_behind, granted) {
            (false, true) => p.behind.push(&mut pairs.sends, of_pair, index),
            (true, false) => p.behind.remove(&mut pairs.sends, of_pair, index, links),
            _ => {}
        }
    }

    /// A send waits no more: it goes, or ends.
    pub(super) fn send_goes(&mut self, index: u32) {
        let pairs = &mut self.pairs;
        let Some(s) = pairs.sends.get_mut(index).filter(|s| s.waits) else { return };
        (s.waits, s.ungranted) = (false, false);
        let (slot_links, pair_links) = (s.of_slot, s.of_pair);
        let behind = std::mem::take(&mut s.behind);
        let Some(b) = pairs.buffers.get(s.buffer) else { return };
        let Some(p) = pairs.pairs.get_mut(b.pair) else { return };
        if let Some(target) = p.targets.get_mut(&b.slot) {
            target.waiting.remove(&mut pairs.sends, of_slot, index, slot_links);
        }
        if behind {
            p.behind.remove(&mut pairs.sends, of_pair, index, pair_links);
        }
    }

    /// A slot was opened: what waits for it goes, or is behind what goes.
    pub(super) fn go_waiting(&mut self, fx: &mut impl Fx, pair: u32, slot: u64) {
        let mut at = self.first_waiting(pair, slot);
        while let Some(send) = at {
            let Some(p) = self.pairs.pairs.get(pair) else { return };
            if p.going.is_some() {
                at = self.pairs.sends.get(send).and_then(|s| s.of_slot.next());
                self.send_waits(pair, send, true);
            } else {
                self.send_goes(send);
                self.go_send(fx, send);
                at = self.first_waiting(pair, slot);
            }
        }
    }

    /// A slot was closed: what is behind another waits for the next grant.
    pub(super) fn wait_for_grant(&mut self, pair: u32, slot: u64) {
        let mut at = self.first_waiting(pair, slot);
        while let Some(send) = at {
            at = self.pairs.sends.get(send).and_then(|s| s.of_slot.next());
            self.send_waits(pair, send, false);
        }
    }

    fn first_waiting(&self, pair: u32, slot: u64) -> Option<u32> {
        self.pairs.pairs.get(pair)?.targets.get(&slot)?.waiting.first()
    }
}

/// In the token of a checksum: of what arrived, and not of a send.
pub(super) const WR_ARRIVED: u64 = 1 << 40;
