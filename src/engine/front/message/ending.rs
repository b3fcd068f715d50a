//! The one end of each message operation, and who asks for it.

use super::flow::OFFERS;
use super::{Copied, Envelope, MessageEnd, Messages, OnMessage, Op, Party, State};
use crate::api::Protocol;
use crate::engine::channel::ChanId;
use crate::engine::known::Peer;
use crate::engine::timers::PATIENCE;
use crate::engine::{Engine, Fx, Range, Work};
use crate::status::{Code, Reason, Status};

/// What a receive waited for may wait itself, behind messages for which there is no receive.
const FULL: &str = "no message came, and none can: as many as are allowed (65,536 on a connection) wait here for other \
                    receives, and later ones behind them at their sender";

impl Op {
    /// Bytes that travel beside its content.
    pub(super) fn beside(&self) -> u64 {
        self.extra.as_ref().map_or(0, |beside| beside.extra().cost())
    }

    /// A receive has met this message.
    pub(super) fn meets(
        &mut self,
        (sender, incarnation): (Party, u64),
        envelope: Envelope,
        len: u64,
    ) {
        self.wanted.from = sender;
        self.incarnation = incarnation;
        self.wanted.tag = envelope.tag;
        self.met = Some(len);
    }

    /// Whether a message of this length goes to memory of the host, and fits there.
    #[inline]
    pub(super) fn takes_on_host(&self, len: u64) -> bool {
        self.memory.device == 0 && len <= self.memory.len
    }

    /// Whether who has this number may ask for its end.
    fn is(&self, id: u64) -> bool {
        self.id == id && !self.released
    }

    /// How it has ended.
    #[inline]
    pub(super) fn take_end(&mut self) -> MessageEnd {
        MessageEnd {
            result: self.ended.take().map_or(Ok(()), Err),
            party: self.wanted.from,
            incarnation: self.incarnation,
            envelope: self.envelope(),
            len: self.met.unwrap_or(self.memory.len),
            // Of a send it is what the application gave.
            extra: if self.met.is_some() { self.extra.take() } else { None },
            short: Default::default(),
        }
    }

    /// Memory of the host that is the application's again with the end.
    #[inline]
    pub(super) fn host_memory(&self) -> (u64, u64) {
        if self.memory.device == 0 { (self.memory.addr, self.memory.len) } else { (0, 0) }
    }
}

/// An operation that has ended, on its way out.
pub struct Ended<'a>(&'a mut Op);

impl Ended<'_> {
    /// Why it failed, if it did: of most nothing else is asked for, and what there is beyond that is long.
    #[inline(always)]
    pub fn failure(self) -> Option<Status> {
        self.0.ended.take()
    }

    /// How it ended.
    #[inline(always)]
    pub fn whole(self) -> MessageEnd {
        self.0.take_end()
    }
}

fn cancelled() -> Status {
    let text = "the message operation was cancelled";
    Status::new(Code::Cancelled, text).because(Reason::Cancelled)
}

#[cold]
fn unknown(id: u64) -> Status {
    let text = format!("message request {id} is not known, or has ended");
    Status::new(Code::NotFound, text)
}

impl Engine {
    /// The operation ends then, if not before; `u64::MAX`: never.
    pub(super) fn set_message_deadline(&mut self, index: u32, at: u64) {
        let messages = &mut self.messages;
        if let Some(op) = messages.ops.get_mut(index) {
            op.deadline = at;
            messages.deadlines.set(index, at);
            self.next_deadline = self.next_deadline.min(at);
        }
    }

    /// An operation leaves without an end: its call fails.
    pub(super) fn drop_op(&mut self, index: u32) {
        self.messages.ops.vacate(index);
    }

    /// Ends an operation. The only place where one does.
    pub(in crate::engine) fn end_message(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        result: Result<(), Status>,
    ) {
        let messages = &mut self.messages;
        let Some(op) = messages.ops.get_mut(index) else { return };
        let unmatched = matches!(op.state, State::Unmatched { .. });
        let told = unmatched || matches!(op.state, State::Offered { .. });
        match op.state {
            State::Ending | State::Ended => return,
            State::Offered { ch, .. } => {
                if let Some(c) = self.channels.get_mut(ch) {
                    c.flow.offer_ended(op.beside());
                }
            }
            _ => {}
        }
        if op.waits {
            self.leave_outbox(index);
        }
        let messages = &mut *self.messages;
        let Some(op) = messages.ops.get_mut(index) else { return };
        if !matches!(op.content, Copied::No) {
            let content = std::mem::take(&mut op.content);
            self.drop_copy(fx, content);
        }
        let messages = &mut *self.messages;
        let Some(op) = messages.ops.get_mut(index) else { return };
        if op.memory.device != 0 || op.extra.is_some() {
            self.end_rare(fx, index);
        }
        let messages = &mut *self.messages;
        let Some(op) = messages.ops.get_mut(index) else { return };
        // Why it was given up is what counts.
        let own = op.ended.take();
        op.ended = result.err().map(|status| match own {
            // Whether a receive has met what was to be taken back nobody has said: then it is not for sure that none has.
            Some(own)
                if told && own.code == Code::Cancelled && status.code == Code::Unavailable =>
            {
                let text =
                    "cancelled, and whether it was received is not known: its connection ended";
                Status::new(Code::Unavailable, text).because(status.reason)
            }
            own => own.unwrap_or(status),
        });
        let code = op.ended.as_ref().map(|status| status.code);
        let late = unmatched || code.is_some();
        let (party, len) = (op.wanted.from, op.memory.len);
        op.state = State::Ending;
        let memory = op.host_memory();
        match op.done {
            OnMessage::Asked => fx.ended(index, memory),
            OnMessage::Plain(told, words) => {
                let end = op.take_end();
                messages.ops.vacate(index);
                // Who waits for it among others, which it must not, finds that it is gone.
                messages.endings += 1;
                fx.run(Work::MessageDone { end, done: (told, words), memory });
            }
        }
        if late {
            self.count_late(party, len, code.unwrap_or(Code::Ok));
        }
    }

    /// Counts an end that was not counted as its content went or came: a failure, or a synchronous send's. One with whoever sends,
    /// which nobody did, is no peer's.
    #[cold]
    fn count_late(&self, party: Party, len: u64, code: Code) {
        let ch = party.index().and_then(|p| self.peers.get(p)?.channels.first().copied());
        if party.index().is_some() || party == Party::OWN {
            self.count(party.index(), ch, |c| c.send_done(len, code, Protocol::Eager));
        }
    }

    /// What few operations have goes with their end: a layout, and memory of the attached buffer.
    #[cold]
    fn end_rare(&mut self, fx: &mut impl Fx, index: u32) {
        let Some(op) = self.messages.ops.get_mut(index) else { return };
        let memory = op.memory;
        let kept = op.extra.as_mut().and_then(|extra| extra.kept.take());
        self.messages.drop_layout(&memory);
        if let Some(buffer) = kept {
            self.drop_buffer(fx, buffer, memory.len);
        }
    }

    /// The memory of an operation is the application's again: whoever asks finds its end.
    #[inline(always)]
    pub fn message_ended(&mut self, index: u32) {
        self.happened += 1;
        let messages = &mut *self.messages;
        match messages.ops.get_mut(index) {
            Some(op) if op.released => messages.ops.vacate(index),
            Some(op) => {
                op.state = State::Ended;
                messages.endings += 1;
            }
            None => {}
        }
    }

    #[inline]
    fn message_by_id(&self, id: u64) -> Result<u32, Status> {
        let found = self.messages.ops.occupant(id as u32);
        let found = found.filter(|(_, op)| op.is(id));
        found.map(|(index, _)| index).ok_or_else(|| unknown(id))
    }

    /// Whether an operation has ended.
    #[inline]
    pub fn message_has_ended(&self, id: u64) -> Result<bool, Status> {
        let index = self.message_by_id(id)?;
        Ok(self.messages.ops.get(index).is_some_and(|op| matches!(op.state, State::Ended)))
    }

    /// Where an operation is, and whether it has ended.
    #[inline]
    pub fn message_at(&self, id: u64) -> Result<(u32, bool), Status> {
        let index = self.message_by_id(id)?;
        let ended = |op: &Op| matches!(op.state, State::Ended);
        Ok((index, self.messages.ops.get(index).is_some_and(ended)))
    }

    /// What is wanted of the end of an operation whose memory is the application's as soon as who asks has done with it; it is
    /// forgotten.
    #[inline(always)]
    pub fn message_end_now<R>(
        &mut self,
        index: u32,
        wanted: impl FnOnce(Ended<'_>) -> R,
    ) -> Option<R> {
        self.happened += 1;
        self.messages.endings += 1;
        let ops = &mut self.messages.ops;
        let told = wanted(Ended(ops.get_mut(index)?));
        ops.vacate(index);
        Some(told)
    }

    /// How many operations have come to an end that could be asked for, over all time.
    pub fn message_endings(&self) -> u64 {
        self.messages.endings
    }

    /// How an operation ended, if it has; it is forgotten then.
    pub fn message_take_end(&mut self, id: u64) -> Result<Option<MessageEnd>, Status> {
        self.message_take(id, |ended| ended.whole())
    }

    /// The same of what is wanted of that.
    #[inline(always)]
    pub fn message_take<R>(
        &mut self,
        id: u64,
        wanted: impl FnOnce(Ended<'_>) -> R,
    ) -> Result<Option<R>, Status> {
        let ops = &mut self.messages.ops;
        let Some((index, op)) = ops.occupant_mut(id as u32).filter(|(_, op)| op.is(id)) else {
            return Err(unknown(id));
        };
        if !matches!(op.state, State::Ended) {
            return Ok(None);
        }
        let told = wanted(Ended(op));
        ops.vacate(index);
        Ok(Some(told))
    }

    /// Nobody will ask for the end of this operation.
    pub fn message_release(&mut self, id: u64) -> Result<(), Status> {
        let index = self.message_by_id(id)?;
        // Whoever waits for it finds that it is gone.
        self.messages.endings += 1;
        match self.messages.ops.get_mut(index) {
            Some(Op { state: State::Ended, .. }) => self.messages.ops.vacate(index),
            Some(op) => op.released = true,
            None => {}
        }
        Ok(())
    }

    /// The application no longer wants an operation. For a receive that has met its message it is too late, as in MPI: that
    /// message would be lost, though its sender may hear that all is well; and for a send whose content was asked for.
    pub fn message_cancel(&mut self, fx: &mut impl Fx, id: u64) -> Result<(), Status> {
        let index = self.message_by_id(id)?;
        let late = match self.messages.ops.get(index).map(|op| &op.state) {
            Some(State::Moving { .. }) => true,
            Some(State::Offered { response, .. }) => self.is_wanted(*response),
            _ => false,
        };
        if !late {
            self.give_up_message(fx, index, cancelled());
        }
        Ok(())
    }

    /// Ends an operation early, whatever has become of it: what a receive has met is lost, and a peer that has asked for the content of a
    /// send has to take it, or loses its connection.
    pub fn message_give_up(&mut self, fx: &mut impl Fx, id: u64) -> Result<(), Status> {
        let index = self.message_by_id(id)?;
        if let Some(op) = self.messages.ops.get_mut(index) {
            op.limit = fx.now();
        }
        self.give_up_message(fx, index, cancelled());
        Ok(())
    }

    /// Whether the receiver has asked for what was offered so, as far as is known here.
    fn is_wanted(&self, response: u32) -> bool {
        self.responses.get(response).is_some_and(|r| !r.is_offered())
    }

    /// Ends an operation early: at once, or as soon as nothing touches its memory any more.
    fn give_up_message(&mut self, fx: &mut impl Fx, index: u32, status: Status) {
        let messages = &mut self.messages;
        let Some(op) = messages.ops.get_mut(index) else { return };
        match op.state {
            State::Ending | State::Ended => {}
            State::Posted => {
                messages.posted.remove(&mut messages.ops, index);
                self.end_message(fx, index, Err(status));
            }
            State::Moving { request } => self.end(fx, request, status),
            _ => self.withdraw_send(fx, index, status),
        }
    }

    /// Ends what waits with memory of the range; what is on its way is the transfer layer's. True: it is being copied.
    pub(in crate::engine) fn reclaim_messages(&mut self, fx: &mut impl Fx, range: &Range) -> bool {
        // Also a send that waits and whose content is copied: without room for that when its turn comes, it is offered from where
        // it lies.
        let uses = |messages: &Messages, op: &Op| {
            let waits = matches!(
                op.state,
                State::Posted | State::Own { .. } | State::Gathering { .. } | State::Queued
            );
            waits && messages.meets(range, op.memory)
        };
        let (mut at, mut busy) = (0, false);
        while let Some(index) = {
            let messages = &self.messages;
            messages.ops.next(&mut at, |op| uses(messages, op))
        } {
            let Some(op) = self.messages.ops.get(index) else { continue };
            let tag = op.wanted.tag;
            let own = matches!(op.state, State::Own { .. });
            // One that was not begun is not any more.
            let gathering = matches!(op.state, State::Gathering { begun: true });
            let status = range.unregistered(format_args!("the message of tag {tag:#x}"));
            self.give_up_message(fx, index, status.clone());
            if own {
                // Also one that is claimed: who receives it hears that it is gone.
                self.end_message(fx, index, Err(status));
            }
            busy |= gathering;
        }
        busy
    }

    /// Ends the operations whose time is over.
    pub(in crate::engine) fn expire_messages(&mut self, fx: &mut impl Fx, now: u64) {
        loop {
            let messages = &mut self.messages;
            let due = messages.deadlines.pop(&messages.ops, now, |op| op.deadline);
            let Some(index) = due else { return };
            self.expire_message(fx, index);
        }
    }

    fn expire_message(&mut self, fx: &mut impl Fx, index: u32) {
        let grace = self.grace_since_woken(fx.now());
        let Some(op) = self.messages.ops.get_mut(index) else { return };
        let stalled = match op.state {
            State::Unmatched { ch } | State::Offered { ch, .. } if op.ended.is_some() => Some(ch),
            _ => None,
        };
        if let Some(ch) = stalled {
            if let Some(until) = grace.or_else(|| self.on_its_way_until(fx.now(), index)) {
                return self.set_message_deadline(index, until);
            }
            if self.end_withdrawn(fx, ch, index) {
                return;
            }
            let text = match self.is_long_over(fx.now(), index) {
                true => {
                    "the peer neither took a message nor gave it back, long after it was to end"
                }
                false => "the peer did not answer when a message was taken back",
            };
            let status = Status::new(Code::Unavailable, text).because(Reason::PeerStalled);
            return self.channel_down(fx, ch, status);
        }
        let from = op.wanted.from.index();
        let full = matches!(op.state, State::Posted) && self.is_full_of_offers(from);
        let peer = from.and_then(|peer| self.peers.get(peer));
        let apart = peer.is_some_and(|p| p.channels.is_empty());
        let whom = match peer {
            // This manager itself, or one that nobody has tried to reach.
            Some(p) if p.tries.is_empty() && p.last_error.is_none() => {
                format!(" with peer '{}'", p.name)
            }
            Some(p) => format!(" with {}", p.told()),
            None => String::new(),
        };
        let Some(op) = self.messages.ops.get_mut(index) else { return };
        let seconds = op.deadline.saturating_sub(op.started) as f64 / 1e9;
        let state = match op.state {
            State::Queued | State::Gathering { .. } if apart => "not connected",
            State::Queued | State::Gathering { .. } => "waited to be sent",
            State::Offered { .. } | State::Unmatched { .. } | State::Own { .. } => {
                "no receive met it"
            }
            State::Posted if full => FULL,
            State::Posted => "no message came",
            _ => "the content was on its way",
        };
        let Envelope { comm, tag } = op.envelope();
        op.deadline = u64::MAX;
        let text = format!(
            "message of tag {tag:#x}, communicator {comm}{whom}: {state} after {seconds:.3} s"
        );
        let status = Status::new(Code::DeadlineExceeded, text).because(Reason::Deadline);
        self.give_up_message(fx, index, status);
    }

    /// Whether a peer, of none: any, has offered as much as it may without a receive for it.
    fn is_full_of_offers(&self, peer: Option<u32>) -> bool {
        let of = |p: &Peer| {
            let mut channels = p.channels.iter().filter_map(|&ch| self.channels.get(ch));
            channels.any(|c| c.flow.offers >= OFFERS)
        };
        match peer {
            Some(peer) => self.peers.get(peer).is_some_and(of),
            None => self.peers.iter().any(of),
        }
    }

    /// A message that was taken back from a peer which drives progress itself, and is silent as long as its application computes:
    /// that is no stall. The operation ends without its word, where nothing of its memory can be read any more; what the
    /// peer says later is stale. A small one may be received all the same.
    fn end_withdrawn(&mut self, fx: &mut impl Fx, ch: ChanId, index: u32) -> bool {
        let Some(c) = self.channels.get(ch).filter(|c| c.remote_manual) else { return false };
        let windows = c.caps.windows;
        let Some(op) = self.messages.ops.get(index) else { return false };
        match op.state {
            State::Unmatched { .. } => {}
            // What this end writes ends with its connection only.
            State::Offered { response, .. } if windows && !self.is_wanted(response) => {}
            _ => return false,
        }
        let Some(status) = op.ended.clone() else { return false };
        let status = match status.code {
            Code::Cancelled if !self.closing => {
                let text =
                    "the peer, which drives progress itself, did not answer when it was taken back";
                Status::new(Code::Unavailable, text).because(Reason::PeerStalled)
            }
            _ => status,
        };
        match op.state {
            State::Offered { response, .. } => self.end_response(fx, response, Err(status)),
            _ => self.end_message(fx, index, Err(status)),
        }
        true
    }

    /// An offer that was taken back, and that a receive had met before it heard of that: it ends with its content. A receiver that asks for
    /// a WRITE has said so, and there is nothing more to wait for until the application wants an end, come what may. One that READs says
    /// nothing before it is done. From then on, both have time as long as they say anything at all, which they do when they are pinged, but
    /// not for ever: one that lives may wait itself for what was lost on its way. So has one with a small message: that it is taken back may
    /// have to wait behind content that goes there.
    fn on_its_way_until(&self, now: u64, index: u32) -> Option<u64> {
        let op = self.messages.ops.get(index)?;
        let (ch, wanted) = match op.state {
            State::Offered { ch, response } => (ch, self.is_wanted(response)),
            State::Unmatched { ch } => (ch, false),
            _ => return None,
        };
        let end = op.limit.saturating_add(self.quiesce_grace());
        if wanted && now < end {
            return Some(end);
        }
        let since = op.deadline.saturating_sub(self.quiesce_grace());
        let heard = self.channels.get(ch)?.last_rx;
        let over = self.is_long_over(now, index);
        (heard > since && !over).then(|| now + self.quiesce_grace())
    }

    /// Whether the application has wanted the end of an operation for so long that nothing is waited for any more.
    fn is_long_over(&self, now: u64, index: u32) -> bool {
        self.messages.ops.get(index).is_some_and(|op| now >= op.limit.saturating_add(PATIENCE))
    }

    /// Ends all operations, with the manager.
    pub(in crate::engine) fn end_messages(&mut self, fx: &mut impl Fx, status: &Status) {
        self.fail_rooms(fx, None, &super::room::ended());
        let mut at = 0;
        while let Some(index) = self.messages.ops.next(&mut at, |_| true) {
            self.give_up_message(fx, index, status.clone());
            // Nobody receives what was claimed any more.
            if self.messages.ops.get(index).is_some_and(|op| matches!(op.state, State::Own { .. }))
            {
                self.end_message(fx, index, Err(status.clone()));
            }
        }
    }
}
