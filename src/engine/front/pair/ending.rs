//! How sends, buffers and pairs end: by the application, the other end, a deadline, or with their channel.
//!
//! A receive buffer that was opened is closed in two steps: its window, where the provider has such, at once; the grant's
//! number when the other end has said that it writes no more (SLOT_CLOSED). Where there are no windows its memory may be
//! written until then.

use super::{Buffer, Pair, PairState, Stage, Step, Way, buffer_of_pair};
use crate::engine::channel::ChanId;
use crate::engine::{Engine, Fx, Range};
use crate::protocol::message::{MAX_ERROR_TEXT, Message, PairMessage};
use crate::status::{Code, Reason, Status};

/// A buffer that was let go.
#[derive(Clone, Copy, Debug)]
pub struct Released {
    index: u32,
    id: u64,
    /// Address.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
}

fn closed() -> Status {
    Status::new(Code::Cancelled, "the buffer was destroyed").because(Reason::Cancelled)
}

impl Pair {
    /// Whether it still tries, if a connection ended before it was connected: for as long as a send waits.
    fn may_try(&self, now: u64) -> bool {
        self.lost.as_ref().is_none_or(|lost| now < lost.0.saturating_add(self.timeout))
    }

    /// Its connection ends. Whether it takes the next one: nothing has gone over it, and the end was not meant, as a disconnection is, or that
    /// of a peer that is another one now.
    fn takes_another(&mut self, now: u64, why: &Status) -> bool {
        let connecting = matches!(self.state, PairState::Connecting);
        let gone = matches!(why.reason, Reason::PeerGone | Reason::PeerStalled);
        if !connecting || !gone || !self.may_try(now) {
            return false;
        }
        self.lost.get_or_insert_with(|| Box::new((now, why.clone())));
        true
    }
}

impl Engine {
    /// Ends a pair: all that is under way in it, and with `tell` the other end hears why.
    pub(super) fn break_pair(&mut self, fx: &mut impl Fx, index: u32, status: Status, tell: bool) {
        let Some(p) = self.pairs.pairs.get_mut(index).filter(|p| !p.is_broken()) else { return };
        let was = std::mem::replace(&mut p.state, PairState::Broken(status.clone()));
        let told = p.told.or(p.heard.map(|heard| heard.0));
        // By the connection that our writes go by, which the other end's grants came by: where there are two, it must not overtake them. If
        // that has ended, which is how the other end told of itself, it hears of that.
        let by = p.heard.map(|heard| heard.0).or(told);
        let heard = p.heard.map_or(0, |heard| heard.1);
        let (to, from) = (if p.remote == 0 { heard } else { p.remote }, p.token);
        if matches!(was, PairState::Connecting) {
            self.pair_settled(index);
        }
        if let (true, Some(ch)) = (tell, by) {
            let mut room = [0; MAX_ERROR_TEXT];
            let text = crate::engine::cut(&status.message, MAX_ERROR_TEXT, &mut room);
            // An end that was meant needs no reason.
            let code = if status.code == Code::Cancelled { 0 } else { status.code as i32 };
            let bye = PairMessage::Bye { to, from, code, text };
            self.send(fx, ch, &Message::Pair(bye), text);
        }
        self.drop_targets(index);
        let mut at = self.pairs.pairs.get(index).and_then(|p| p.all.first());
        while let Some(buffer) = at {
            at = self.pairs.buffers.get(buffer).and_then(|b| b.of_pair.next());
            self.give_up_sends(fx, buffer, || status.clone());
            self.close_buffer(fx, buffer);
            self.tell_buffer(fx, buffer);
        }
        self.happened += 1;
        if let Some(ch) = told {
            self.settle(fx, ch);
        }
    }

    /// The channel has ended that a pair's writes went by, and the one that it is written to by has not.
    fn mute_pair(&mut self, fx: &mut impl Fx, index: u32, status: Status) {
        let Some(p) = self.pairs.pairs.get_mut(index) else { return };
        p.mute = Some(Box::new(status.clone()));
        self.drop_targets(index);
        let mut at = self.pairs.pairs.get(index).and_then(|p| p.all.first());
        while let Some(buffer) = at {
            at = self.pairs.buffers.get(buffer).and_then(|b| b.of_pair.next());
            self.give_up_sends(fx, buffer, || status.clone());
        }
        self.happened += 1;
    }

    /// A pair needs no grants any more.
    fn drop_targets(&mut self, index: u32) {
        let pairs = &mut self.pairs;
        let Some(p) = pairs.pairs.get_mut(index) else { return };
        (p.granted, p.regions) = (0, 0);
        for (_, target) in p.targets.drain() {
            if let Some(grant) = target.grant {
                pairs.grants.remove(&(grant.ch, grant.number));
            }
        }
    }

    /// Ends the sends of a buffer early, because its pair has ended or it was let go: at once, or, with this reason, when a
    /// checksum has been computed that is being computed; one that was not begun is not any more. Those whose writes are out end with these.
    fn give_up_sends(&mut self, fx: &mut impl Fx, buffer: u32, why: impl Fn() -> Status) {
        let mut at = self.pairs.buffers.get(buffer).and_then(|b| b.sends.first());
        while let Some(send) = at {
            let Some(s) = self.pairs.sends.get_mut(send) else { return };
            at = s.of_buffer.next();
            match s.step {
                Step::Waiting | Step::Hashing { begun: false } => {
                    self.end_slot_send(fx, send, Err(None));
                }
                Step::Hashing { begun: true } => _ = s.failed.get_or_insert_with(&why),
                Step::Writing { .. } | Step::Failed { .. } => {}
            }
        }
    }

    /// Nobody is to touch a buffer any more: it is closed as far as that is up to this side.
    fn close_buffer(&mut self, fx: &mut impl Fx, index: u32) {
        let Some(b) = self.pairs.buffers.get_mut(index).filter(|b| b.stage == Stage::Open) else {
            return;
        };
        let Some(ch) = b.ch else { return };
        b.stage = Stage::Closing;
        if b.way == Way::Send {
            return self.unpin(fx, index);
        }
        let windows = self.channels.get(ch).is_none_or(|c| c.caps.windows);
        if windows && let Some(window) = b.window.take() {
            fx.close(ch, window);
        }
        // What comes until the other end has heard of it would be taken for one that came to the next buffer of the slot.
        b.lasts = !windows;
        // Nobody looks at what has arrived, unless somebody does already.
        if let Some(it) = b.unchecked.take_if(|it| !it.begun) {
            self.say_checked(fx, it.ch, it.number, true);
        }
        let grant = index & crate::engine::slab::SLOT_MASK;
        self.send(fx, ch, &Message::Pair(PairMessage::Close { grant }), &[]);
    }

    /// Lets go of the registration of a send buffer, once its last send has ended.
    pub(super) fn unpin(&mut self, fx: &mut impl Fx, index: u32) {
        let Some(b) = self.pairs.buffers.get_mut(index) else { return };
        if b.way == Way::Send && b.stage == Stage::Closing && b.under_way == 0 {
            self.buffer_closed(fx, index);
        }
    }

    /// Nobody touches a buffer any more.
    pub(super) fn buffer_closed(&mut self, fx: &mut impl Fx, index: u32) {
        let Some(b) = self.pairs.buffers.get_mut(index) else { return };
        if let (Some(window), Some(ch)) = (b.window.take(), b.ch) {
            fx.close(ch, window);
        }
        (b.stage, b.ch, b.lasts) = (Stage::Idle, None, false);
        self.tell_buffer(fx, index);
    }

    /// A buffer that its owner has let go leaves, if nothing is left of it; and so does its pair.
    pub(super) fn may_leave(&mut self, index: u32) {
        let pairs = &mut self.pairs;
        let over =
            |b: &&Buffer| b.released && b.stage == Stage::Idle && !b.is_touched() && !b.telling;
        let Some(pair) = pairs.buffers.get(index).filter(over).map(|b| b.pair) else { return };
        let Some(links) = pairs.buffers.take(index, |b| b.of_pair) else { return };
        let Some(p) = pairs.pairs.get_mut(pair) else { return };
        p.all.remove(&mut pairs.buffers, buffer_of_pair, index, links);
        p.buffers -= 1;
        self.pair_may_leave(pair);
    }

    fn pair_may_leave(&mut self, index: u32) {
        let over = |p: &&Pair| p.released && p.buffers == 0;
        if let Some(p) = self.pairs.pairs.get(index).filter(over) {
            let token = p.token;
            self.pairs.by_token.remove(&token);
            self.pairs.pairs.vacate(index);
        }
    }

    /// The application lets a buffer go. Its sends that wait end; for the rest ask [`Engine::buffer_is_free`].
    pub fn buffer_release(&mut self, fx: &mut impl Fx, id: u64) -> Result<Released, Status> {
        let index = self.pairs.buffer_by_id(id)?;
        let (addr, len) = self.buffer_memory(id)?;
        self.release_buffer(fx, index);
        Ok(Released { index, id, addr, len })
    }

    pub(super) fn release_buffer(&mut self, fx: &mut impl Fx, index: u32) {
        let pairs = &mut self.pairs;
        let Some(b) = pairs.buffers.get_mut(index).filter(|b| !b.released) else { return };
        b.released = true;
        let (way, slot, pair, ch) = (b.way, b.slot, b.pair, b.ch);
        if let Some(p) = pairs.pairs.get_mut(pair)
            && p.slots.get(&slot) == Some(&index)
        {
            p.slots.remove(&slot);
        }
        if way == Way::Send {
            self.give_up_sends(fx, index, closed);
            while let Some(failed) = self.pairs.buffers.get(index).and_then(|b| b.failed.first()) {
                self.pairs.forget_failure(failed);
            }
            self.forget_target(pair, slot);
        }
        self.close_buffer(fx, index);
        self.may_leave(index);
        if let Some(ch) = ch {
            self.settle(fx, ch);
        }
    }

    /// Whether nothing touches the memory of a buffer that was let go, and nobody is told of it any more.
    pub fn buffer_is_free(&self, it: &Released) -> bool {
        let b = self.pairs.buffers.get(it.index).filter(|b| b.id == it.id);
        b.is_none_or(|b| !b.is_touched() && !b.telling)
    }

    /// The same, but that its callback may be running.
    pub fn buffer_is_untouched(&self, it: &Released) -> bool {
        let b = self.pairs.buffers.get(it.index).filter(|b| b.id == it.id);
        b.is_none_or(|b| !b.is_touched())
    }

    /// The connection on which a buffer would still be waited for ends.
    pub fn buffer_force(&mut self, fx: &mut impl Fx, it: &Released) {
        let index = it.index;
        let Some(b) = self.pairs.buffers.get(index).filter(|b| b.id == it.id) else { return };
        let (mut of_send, mut at) = (None, b.sends.first());
        while of_send.is_none()
            && let Some(s) = at.and_then(|send| self.pairs.sends.get(send))
        {
            at = s.of_buffer.next();
            if let Step::Writing { ch, .. } = s.step {
                of_send = Some(ch);
            }
        }
        if let Some(ch) = of_send.or(b.ch).filter(|_| b.is_in_use()) {
            let text = "it did not end in time what used a buffer that was destroyed";
            let status = Status::new(Code::Unavailable, text).because(Reason::PeerStalled);
            self.channel_down(fx, ch, status);
        }
    }

    /// The application lets a pair go, with all its buffers, whose indices, numbers and memory are returned.
    pub fn pair_close(&mut self, fx: &mut impl Fx, id: u64) -> Result<Vec<Released>, Status> {
        let index = self.pairs.pair_by_id(id)?;
        let mut buffers = Vec::new();
        let n = self.pairs.pairs.get(index).map_or(0, |p| p.buffers);
        crate::room::grow(&mut buffers, n, "buffers")?;
        let mut at = self.pairs.pairs.get(index).and_then(|p| p.all.first());
        while let Some((index, b)) = at.and_then(|i| Some((i, self.pairs.buffers.get(i)?))) {
            buffers.push(Released { index, id: b.id, addr: b.addr, len: b.len });
            at = b.of_pair.next();
        }
        let status = Status::new(Code::Cancelled, "the pair was closed");
        self.break_pair(fx, index, status.because(Reason::Cancelled), true);
        if let Some(p) = self.pairs.pairs.get_mut(index) {
            p.released = true;
        }
        for buffer in &buffers {
            self.release_buffer(fx, buffer.index);
        }
        self.pair_may_leave(index);
        Ok(buffers)
    }

    /// A channel is about to end: nobody touches a buffer through it any more.
    pub(in crate::engine) fn close_pairs_windows(&mut self, fx: &mut impl Fx, ch: ChanId) {
        let mut at = 0;
        let open = |b: &Buffer| b.ch == Some(ch) && b.window.is_some();
        while let Some(index) = self.pairs.buffers.next(&mut at, open) {
            if let Some(window) = self.pairs.buffers.get_mut(index).and_then(|b| b.window.take()) {
                fx.close(ch, window);
            }
        }
    }

    /// A channel has ended: with it the pairs that live on it.
    pub(in crate::engine) fn pairs_lost_channel(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        status: &Status,
    ) {
        let mut at = 0;
        while let Some(index) = self.pairs.pairs.next(&mut at, |p| p.uses(ch) && !p.is_broken()) {
            let Some(p) = self.pairs.pairs.get_mut(index) else { continue };
            if p.told.is_none() || (!self.closing && p.takes_another(fx.now(), status)) {
                // Who was heard there may have been anybody.
                (p.told, p.heard) = (None, None);
                self.drop_grants(index);
                continue;
            }
            let (rank, peer, only_writes) = (p.rank, p.peer, p.only_writes_by(ch));
            let name = self.peer_name(peer);
            let text = text!("the pair of rank {rank} with peer '{name}': {}", status.message);
            let status = status.clone().with_message(text);
            match only_writes && !self.closing {
                true => self.mute_pair(fx, index, status),
                false => self.break_pair(fx, index, status, true),
            }
        }
        at = 0;
        let on_it = |s: &super::Send| matches!(s.step, Step::Writing { ch: on, .. } if on == ch);
        while let Some(send) = self.pairs.sends.next(&mut at, on_it) {
            let failed = self.pairs.sends.get_mut(send).and_then(|s| s.failed.take());
            self.end_slot_send(fx, send, Err(failed));
        }
        at = 0;
        while let Some(buffer) = self.pairs.buffers.next(&mut at, |b| b.ch == Some(ch)) {
            self.buffer_closed(fx, buffer);
            self.may_leave(buffer);
        }
        self.pairs.grants.retain(|(on, _), _| *on != ch);
    }

    /// Pairs that take another connection to this peer than the one that has ended get one.
    pub(in crate::engine) fn reconnect_pairs(&mut self, fx: &mut impl Fx, peer: u32) {
        let Some(p) = self.peers.get(peer).filter(|p| p.pairs > 0) else { return };
        match p.channels.first().copied() {
            Some(ch) => {
                self.pairs_channel_open(fx, peer, ch);
                self.settle(fx, ch);
            }
            None => self.want_connection(fx, peer),
        }
    }

    /// Nobody listens at any address of a peer. Who made the other end of a pair listened when it told the pair's address, and so has
    /// ended: who comes after it knows nothing of the pair.
    pub fn nobody_there(&mut self, fx: &mut impl Fx, peer: u32, status: &Status) {
        self.fail_waiting_pairs(fx, peer, status, |_, _| true);
        self.fail_for_gone(fx, peer, status);
    }

    /// A try to connect to a peer failed: pairs that have tried for long enough since they lost a connection end.
    pub(in crate::engine) fn tire_lost_pairs(
        &mut self,
        fx: &mut impl Fx,
        peer: u32,
        status: &Status,
    ) {
        self.fail_waiting_pairs(fx, peer, status, |p, now| !p.may_try(now));
    }

    /// Ends pairs that wait for a connection to this peer: for why they lost the last one, if they had one, and for this.
    fn fail_waiting_pairs(
        &mut self,
        fx: &mut impl Fx,
        peer: u32,
        status: &Status,
        over: impl Fn(&Pair, u64) -> bool,
    ) {
        let now = fx.now();
        let waits = |p: &Pair| {
            let connecting = matches!(p.state, PairState::Connecting) && p.told.is_none();
            p.peer == Some(peer) && connecting && over(p, now)
        };
        let mut at = 0;
        while let Some(index) = self.pairs.pairs.next(&mut at, waits) {
            let Some(p) = self.pairs.pairs.get(index) else { continue };
            let (rank, name, last) = (p.rank, self.peer_name(p.peer), &status.message);
            let (first, why) = match p.lost.as_deref() {
                Some((_, first)) => (first.clone(), format!("{}; then {last}", first.message)),
                None => (Status::gone(""), last.clone()),
            };
            let text = text!("the pair of rank {rank} with peer '{name}': {why}");
            self.break_pair(fx, index, first.with_message(text), false);
        }
    }

    /// No connection to this peer will come: pairs that wait for one end.
    pub(in crate::engine) fn fail_pairs(&mut self, fx: &mut impl Fx, peer: u32, status: &Status) {
        let waits = |p: &Pair| p.peer == Some(peer) && matches!(p.state, PairState::Connecting);
        let mut at = 0;
        while let Some(index) = self.pairs.pairs.next(&mut at, waits) {
            self.break_pair(fx, index, status.clone(), true);
        }
    }

    /// Ends the sends whose time is over.
    pub(in crate::engine) fn expire_slot_sends(&mut self, fx: &mut impl Fx, now: u64) {
        loop {
            let pairs = &mut self.pairs;
            let deadline = |s: &super::Send| if s.ungranted { s.deadline } else { u64::MAX };
            let due = pairs.deadlines.pop(&pairs.sends, now, deadline);
            let Some(index) = due else { return };
            let Some(s) = pairs.sends.get(index) else { continue };
            let seconds = now.saturating_sub(s.started) as f64 / 1e9;
            let Some(b) = pairs.buffers.get(s.buffer) else { continue };
            let (pair, slot) = (b.pair, b.slot);
            let Some(p) = pairs.pairs.get(pair) else { continue };
            let (rank, known) = (p.rank, p.peer.and_then(|peer| self.peers.get(peer)));
            let why = match (&p.state, known) {
                (PairState::Connected, _) => "the other end did not open the slot".to_owned(),
                (PairState::Created, _) => "the pair was not connected".to_owned(),
                (_, Some(peer)) if peer.channels.is_empty() => {
                    text!("no connection to peer '{}' ({})", peer.name, peer.tries.text())
                }
                _ => "the other end did not connect".to_owned(),
            };
            let text = text!("send to slot {slot} of rank {rank}: {why} after {seconds:.3} s");
            let status = Status::new(Code::DeadlineExceeded, text).because(Reason::Deadline);
            self.end_slot_send(fx, index, Err(Some(status)));
            self.forget_target(pair, slot);
        }
    }

    /// Ends pairs with buffers in memory that is taken back. True: some of it may still be touched.
    pub(in crate::engine) fn reclaim_pairs(
        &mut self,
        fx: &mut impl Fx,
        range: &Range,
        force: bool,
    ) -> bool {
        // One that was let go, and that nothing touches any more, waits for word from the other end: its memory is not used.
        let meets = |b: &Buffer| (!b.released || b.is_touched()) && range.meets(b.addr, b.len, 0);
        let (mut at, mut busy) = (0, false);
        while let Some(index) = self.pairs.buffers.next(&mut at, meets) {
            let Some(b) = self.pairs.buffers.get(index) else { continue };
            let it = Released { index, id: b.id, addr: b.addr, len: b.len };
            let (pair, slot) = (b.pair, b.slot);
            let status = range.unregistered(format_args!("the buffer of slot {slot}"));
            self.break_pair(fx, pair, status, true);
            if force {
                self.buffer_force(fx, &it);
            }
            busy |= self.pairs.buffers.get(index).is_some_and(Buffer::is_touched);
        }
        busy
    }

    /// Ends all pairs, with the manager.
    pub(in crate::engine) fn end_pairs(&mut self, fx: &mut impl Fx, status: &Status) {
        let mut at = 0;
        while let Some(index) = self.pairs.pairs.next(&mut at, |p| !p.is_broken()) {
            self.break_pair(fx, index, status.clone(), true);
        }
    }
}
