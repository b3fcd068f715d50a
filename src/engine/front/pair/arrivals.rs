//! What the other ends of pairs send.

use super::moving::WR_ARRIVED;
use super::{Grant, Pair, PairState, Stage, Target, Unchecked, Way};
use crate::engine::channel::ChanId;
use crate::engine::slab::SLOT_MASK;
use crate::engine::{Engine, Fx, WR_SLOT, Work, checksum};
use crate::fabric::Access;
use crate::fabric::keys::{Keys, Place};
use crate::limits::{GRANT_REGIONS, GRANTS};
use crate::protocol::message::{MAX_ERROR_TEXT, Message, PairMessage};
use crate::room::Grows;
use crate::status::{Code, Reason, Status};

impl Engine {
    /// A message of a pair arrived.
    pub(in crate::engine) fn on_pair(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        message: PairMessage<'_>,
    ) {
        match message {
            PairMessage::Hello { to, from } => self.on_pair_hello(fx, ch, to, from),
            PairMessage::Bye { to, from, code, text } => {
                self.on_pair_bye(fx, ch, (to, from), code, text)
            }
            PairMessage::Open { to, slot, grant, place, len } => {
                self.on_slot_open(fx, ch, (to, slot), Grant { ch, number: grant, place, len })
            }
            PairMessage::Close { grant } => self.on_slot_close(fx, ch, grant),
            PairMessage::Closed { grant } => self.on_slot_closed(fx, ch, grant),
            PairMessage::Done { grant, number, offset, len, checksum } => {
                let begun = false;
                let it = Unchecked { ch, number, offset, len, checksum, begun };
                self.on_slot_filled(fx, ch, grant, it)
            }
            PairMessage::Checked { number, same } => self.on_slot_checked(fx, ch, number, same),
        }
    }

    /// Tells the other end of this one, on this channel, and opens to it what there is.
    pub(super) fn pair_hello(&mut self, fx: &mut impl Fx, index: u32, ch: ChanId) {
        let Some(p) = self.pairs.pairs.get_mut(index) else { return };
        p.told = Some(ch);
        let (to, from) = (p.remote, p.token);
        let mut buffers = Vec::new();
        if buffers.try_reserve(p.slots.len()).is_err() {
            let status = crate::room::none(4 * p.slots.len(), "slots");
            return self.break_pair(fx, index, status, true);
        }
        buffers.extend(p.slots.values().copied());
        self.send(fx, ch, &Message::Pair(PairMessage::Hello { to, from }), &[]);
        for buffer in buffers {
            if let Err(status) = self.open_slot(fx, buffer, ch) {
                return self.break_pair(fx, index, status, true);
            }
        }
        self.pair_meets(fx, index);
    }

    /// Pairs that wait for a connection to this peer tell their other ends.
    pub(in crate::engine) fn pairs_channel_open(
        &mut self,
        fx: &mut impl Fx,
        peer: u32,
        ch: ChanId,
    ) {
        if self.peers.get(peer).is_none_or(|p| p.pairs == 0) {
            return;
        }
        let waits = |p: &Pair| {
            p.peer == Some(peer) && p.told.is_none() && matches!(p.state, PairState::Connecting)
        };
        let mut at = 0;
        while let Some(index) = self.pairs.pairs.next(&mut at, waits) {
            self.pair_hello(fx, index, ch);
        }
    }

    /// Opens a receive buffer to the other end.
    pub(super) fn open_slot(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        ch: ChanId,
    ) -> Result<(), Status> {
        let Some(b) = self.pairs.buffers.get_mut(index) else { return Ok(()) };
        let (pair, slot, len) = (b.pair, b.slot, b.len);
        let open = self.pairs.pairs.get(pair).filter(|p| !p.is_broken());
        let Some(to) = open.map(|p| p.remote) else { return Ok(()) };
        let mut place = Place { addr: 0, rkeys: Keys::one(0) };
        // One of no bytes has a key where that is looked at.
        if len > 0 || self.channels.get(ch).is_some_and(|c| c.caps.windows) {
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            match fx.pin(ch, b.addr, len, access) {
                Ok(window) => {
                    place = Place { addr: b.addr, rkeys: window.keys.map(|mr| mr.rkey) };
                    b.window = Some(window);
                }
                Err(status) => {
                    let text = text!("slot {slot}: {}", status.message);
                    return Err(status.with_message(text));
                }
            }
        }
        (b.stage, b.ch) = (Stage::Open, Some(ch));
        let grant = index & SLOT_MASK;
        let open = PairMessage::Open { to, slot, grant, place, len };
        self.send(fx, ch, &Message::Pair(open), &[]);
        Ok(())
    }

    fn on_pair_hello(&mut self, fx: &mut impl Fx, ch: ChanId, to: u64, from: u64) {
        let found = self.pairs.by_token.get(&to).copied();
        let found = found.and_then(|i| Some((i, self.pairs.pairs.get_mut(i)?)));
        let Some((index, p)) = found.filter(|(_, p)| !p.is_broken()) else {
            let text = "there is no such pair, or no more";
            return self.refuse_hello(fx, ch, (to, from), Code::NotFound, text);
        };
        if p.heard.is_some_and(|(_, first)| first != from) {
            let text = "another pair has connected to it";
            return self.refuse_hello(fx, ch, (to, from), Code::AlreadyExists, text);
        }
        if p.heard.is_some() {
            self.stale += 1;
            return;
        }
        p.heard = Some((ch, from));
        self.pair_meets(fx, index);
    }

    fn refuse_hello(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        (to, from): (u64, u64),
        code: Code,
        text: &str,
    ) {
        let (code, text) = (code as i32, text.as_bytes());
        let bye = PairMessage::Bye { to: from, from: to, code, text };
        self.send(fx, ch, &Message::Pair(bye), text);
    }

    /// Both ends may know of each other now.
    fn pair_meets(&mut self, fx: &mut impl Fx, index: u32) {
        let Some(p) = self.pairs.pairs.get_mut(index) else { return };
        let (Some(_), Some((ch, from)), PairState::Connecting) = (p.told, p.heard, &p.state) else {
            return;
        };
        let peer = self.channels.get(ch).map(|c| c.peer);
        if from != p.remote || peer != p.peer {
            // Somebody else's word.
            p.heard = None;
            return self.drop_grants(index);
        }
        p.state = PairState::Connected;
        self.pair_settled(index);
        self.happened += 1;
        if let Err(status) = self.go_all_waiting(fx, index) {
            return self.break_pair(fx, index, status, true);
        }
        if fx.fits(1) {
            // Whoever waits for it looks.
            fx.run(Work::Call(Box::new(|| {})));
        }
    }

    /// A pair waits for its other end no more.
    pub(super) fn pair_settled(&mut self, index: u32) {
        let peer = self.pairs.pairs.get(index).and_then(|p| p.peer);
        if let Some(peer) = peer.and_then(|peer| self.peers.get_mut(peer)) {
            peer.pairs = peer.pairs.saturating_sub(1);
        }
    }

    fn on_pair_bye(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        (to, from): (u64, u64),
        code: i32,
        text: &[u8],
    ) {
        let peer = self.channels.get(ch).map(|c| c.peer);
        let index = self.pairs.by_token.get(&to).copied();
        let theirs = |p: &&Pair| p.remote == from && p.peer == peer;
        let found = index.and_then(|i| self.pairs.pairs.get(i)).filter(theirs);
        let (Some(index), Some(p)) = (index, found) else {
            self.stale += 1;
            return;
        };
        let text = crate::room::heard(&text[..text.len().min(MAX_ERROR_TEXT)]);
        let name = self.peer_name(p.peer);
        let text = match code {
            0 => text!("peer '{name}' closed the pair of rank {}", p.rank),
            _ => text!("peer '{name}' ended the pair of rank {}: {text}", p.rank),
        };
        let status = Status::new(Code::Unavailable, text).because(Reason::RemoteError);
        self.break_pair(fx, index, status, false);
    }

    fn on_slot_open(&mut self, fx: &mut impl Fx, ch: ChanId, (to, slot): (u64, u64), grant: Grant) {
        let index = self.pairs.by_token.get(&to).copied();
        let heard = |p: &&mut Pair| p.heard.is_some_and(|(heard, _)| heard == ch) && !p.is_broken();
        let pairs = &mut self.pairs;
        let found = index.and_then(|i| pairs.pairs.get_mut(i)).filter(heard);
        let (Some(index), Some(p)) = (index, found) else {
            // It ended here meanwhile, which the other end hears.
            self.stale += 1;
            return;
        };
        let key = (ch, grant.number);
        let given = p.targets.get(&slot).is_some_and(|t| t.grant.is_some());
        if given || pairs.grants.contains_key(&key) {
            let text = text!("SLOT_OPEN {} for slot {slot}, which is open", grant.number);
            return self.violation(ch, Status::invalid(text));
        }
        let (open, regions) = (p.granted, p.regions + grant.place.rkeys.rest().len());
        if !(p.targets.fits(1) && pairs.grants.fits(1)) {
            let status = crate::room::none(size_of::<Grant>(), "a slot of the other end");
            return self.break_pair(fx, index, status, true);
        }
        if open >= GRANTS || regions > GRANT_REGIONS {
            let text = text!(
                "the other end has {open} open slots and {regions} further regions of them, {GRANTS} and \
                 {GRANT_REGIONS} are allowed"
            );
            let status = Status::new(Code::ResourceExhausted, text);
            return self.break_pair(fx, index, status, true);
        }
        pairs.grants.insert(key, (index, slot));
        (p.granted, p.regions) = (open + 1, regions);
        let connected = p.is_connected();
        p.targets.entry(slot).or_default().grant = Some(grant);
        if connected {
            self.go_waiting(fx, index, slot);
        }
    }

    /// What was opened before the other end was known as such is written to now.
    fn go_all_waiting(&mut self, fx: &mut impl Fx, index: u32) -> Result<(), Status> {
        let Some(p) = self.pairs.pairs.get(index) else { return Ok(()) };
        let waits = |t: &Target| t.grant.is_some() && !t.waiting.is_empty();
        let mut slots = Vec::new();
        let count = p.targets.values().filter(|t| waits(t)).count();
        crate::room::grow(&mut slots, count, "slots")?;
        slots.extend(p.targets.iter().filter(|(_, t)| waits(t)).map(|(&slot, _)| slot));
        for slot in slots {
            self.go_waiting(fx, index, slot);
        }
        Ok(())
    }

    /// What somebody has opened who is not the other end is not written to.
    pub(super) fn drop_grants(&mut self, index: u32) {
        let pairs = &mut self.pairs;
        let Some(p) = pairs.pairs.get_mut(index) else { return };
        (p.granted, p.regions) = (0, 0);
        for grant in p.targets.values_mut().filter_map(|t| t.grant.take()) {
            pairs.grants.remove(&(grant.ch, grant.number));
        }
        p.targets.retain(|_, t| !t.waiting.is_empty());
    }

    fn on_slot_close(&mut self, fx: &mut impl Fx, ch: ChanId, grant: u32) {
        if let Some((index, slot)) = self.pairs.grants.remove(&(ch, grant))
            && let Some(p) = self.pairs.pairs.get_mut(index)
            && let Some(target) = p.targets.get_mut(&slot)
        {
            let closed = target.grant.take().map_or(0, |grant| grant.place.rkeys.rest().len());
            p.granted = p.granted.saturating_sub(1);
            p.regions = p.regions.saturating_sub(closed);
            self.wait_for_grant(index, slot);
            self.forget_target(index, slot);
        }
        // What was posted takes effect before this arrives: operations of a channel keep their order.
        self.send(fx, ch, &Message::Pair(PairMessage::Closed { grant }), &[]);
    }

    fn on_slot_closed(&mut self, fx: &mut impl Fx, ch: ChanId, grant: u32) {
        let closing = |b: &super::Buffer| b.stage == Stage::Closing && b.ch == Some(ch);
        match self.pairs.buffers.occupant(grant).filter(|(_, b)| closing(b)).map(|found| found.0) {
            Some(index) => self.buffer_closed(fx, index),
            None => self.stale += 1,
        }
    }

    /// A write with the immediate of a slot arrived: all is in its place.
    pub(in crate::engine) fn on_slot_written(&mut self, fx: &mut impl Fx, ch: ChanId, imm: u32) {
        let open =
            |b: &super::Buffer| b.way == Way::Recv && b.stage == Stage::Open && b.ch == Some(ch);
        let found = self.pairs.buffers.occupant(imm & SLOT_MASK).filter(|(_, b)| open(b));
        let Some(index) = found.map(|found| found.0) else {
            self.stale += 1;
            return;
        };
        self.buffer_received(fx, index);
    }

    /// Content has arrived in a buffer.
    fn buffer_received(&mut self, fx: &mut impl Fx, index: u32) {
        if let Some(b) = self.pairs.buffers.get_mut(index) {
            b.received += 1;
        }
        self.tell_buffer(fx, index);
    }

    /// SLOT_DONE arrived: the checksum of what was written is to be compared.
    fn on_slot_filled(&mut self, fx: &mut impl Fx, ch: ChanId, grant: u32, it: Unchecked) {
        if !self.sealed(ch) {
            return self.violation(ch, Status::invalid("SLOT_DONE without checksums"));
        }
        let found = self.pairs.buffers.occupant(grant).map(|found| found.0);
        let open = |b: &&mut super::Buffer| {
            b.way == Way::Recv && b.stage == Stage::Open && b.ch == Some(ch)
        };
        let buffer = found.and_then(|i| self.pairs.buffers.get_mut(i)).filter(open);
        let (Some(index), Some(b)) = (found, buffer) else {
            // It was closed meanwhile.
            self.stale += 1;
            return self.say_checked(fx, ch, it.number, true);
        };
        let fits = it.offset.checked_add(it.len).is_some_and(|end| end <= b.len);
        if !fits || b.unchecked.is_some() {
            let text = text!(
                "SLOT_DONE of {} bytes at {} in a buffer of {}, or before the last was checked",
                it.len,
                it.offset,
                b.len
            );
            return self.violation(ch, Status::invalid(text));
        }
        let (addr, len) = (b.addr + it.offset, it.len);
        b.unchecked = Some(it);
        match len {
            0 => self.arrival_hashed(fx, index, Ok(checksum(&[]))),
            _ => {
                let token = WR_SLOT | WR_ARRIVED | u64::from(index);
                fx.run(Work::HostHash { token, addr, len });
            }
        }
    }

    pub(super) fn say_checked(&mut self, fx: &mut impl Fx, ch: ChanId, number: u32, same: bool) {
        self.send(fx, ch, &Message::Pair(PairMessage::Checked { number, same }), &[]);
    }

    /// The checksum of what arrived was computed.
    pub(super) fn arrival_hashed(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        result: Result<u64, Status>,
    ) {
        let Some(b) = self.pairs.buffers.get_mut(index) else { return };
        let Some(it) = b.unchecked.take() else { return };
        let (slot, pair) = (b.slot, b.pair);
        // One that is being closed is not looked at any more.
        let same = b.stage != Stage::Open || result.as_ref() == Ok(&it.checksum);
        // Before the pair ends: what its other end hears then would be all it hears of this send.
        self.say_checked(fx, it.ch, it.number, same);
        match self.pairs.buffers.get(index).map(|b| b.stage) {
            Some(Stage::Open) if same => self.buffer_received(fx, index),
            Some(Stage::Open) => {
                let text = text!(
                    "{} bytes at {} of slot {slot} have another checksum than the sender's",
                    it.len,
                    it.offset
                );
                self.break_pair(fx, pair, Status::new(Code::DataLoss, text), true);
            }
            _ => self.tell_buffer(fx, index),
        }
        self.settle(fx, it.ch);
    }

    /// What is left of a target without grant and sends: nothing. One whose checksum is being computed may come back to it.
    pub(super) fn forget_target(&mut self, pair: u32, slot: u64) {
        let pairs = &mut self.pairs;
        let Some(p) = pairs.pairs.get_mut(pair) else { return };
        let over = |t: &Target| t.grant.is_none() && t.waiting.is_empty();
        let buffer = p.going.and_then(|going| pairs.sends.get(going)).map(|s| s.buffer);
        let going = buffer.and_then(|buffer| pairs.buffers.get(buffer)).map(|b| b.slot);
        if going != Some(slot) && p.targets.get(&slot).is_some_and(over) {
            p.targets.remove(&slot);
        }
    }
}
