//! The one end of each message operation, and who asks for it.

use super::{Copied, Envelope, MessageEnd, Messages, OnMessage, Op, Party, State};
use crate::api::Protocol;
use crate::engine::{Engine, Fx, Range, Work};
use crate::protocol::message::OfferCost;
use crate::status::{Code, Reason, Status};

impl Op {
    /// Bytes that went with its offer.
    pub(super) fn offer_cost(&self) -> OfferCost {
        self.extra.as_ref().map_or_else(OfferCost::default, |beside| beside.extra().offer_cost())
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

    /// Whether there is more of it than itself, and the application's memory.
    #[inline]
    fn holds_more(&self) -> bool {
        let copied = !matches!(self.content, Copied::No);
        self.waits || copied || self.memory.device != 0 || self.extra.is_some()
    }

    /// It ends by this failure, unless it was given up before, which is what counts then. `told`: the peer knows of it.
    #[cold]
    fn fail(&mut self, status: Status, told: bool) {
        self.ended = Some(match self.ended.take() {
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
    let text = text!("message request {id} is not known, or has ended");
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
                    c.flow.offer_ended(op.offer_cost());
                }
            }
            _ => {}
        }
        if op.holds_more() {
            self.end_rare(fx, index);
        }
        let messages = &mut *self.messages;
        let Some(op) = messages.ops.get_mut(index) else { return };
        match result {
            Ok(()) => op.ended = None,
            Err(status) => op.fail(status, told),
        }
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

    /// What few operations have goes with their end: a place in an outbox, a copy, a layout, memory of the attached buffer.
    #[inline(never)]
    fn end_rare(&mut self, fx: &mut impl Fx, index: u32) {
        let Some(op) = self.messages.ops.get_mut(index) else { return };
        if op.waits {
            self.leave_outbox(index);
        }
        let Some(op) = self.messages.ops.get_mut(index) else { return };
        if !matches!(op.content, Copied::No) {
            let content = std::mem::take(&mut op.content);
            self.drop_copy(fx, content);
        }
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
    pub(super) fn is_wanted(&self, response: u32) -> bool {
        self.responses.get(response).is_some_and(|r| !r.is_offered())
    }

    /// Ends an operation early: at once, or as soon as nothing touches its memory any more.
    pub(super) fn give_up_message(&mut self, fx: &mut impl Fx, index: u32, status: Status) {
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
