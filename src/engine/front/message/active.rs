//! Active messages: a handler of the application runs on their arrival.
//!
//! A handler has a number, which stands in the place of a communicator. A message that came with its content is given to it
//! whole. Of one whose content waits at the sender it hears as of a message that a probe has claimed, which it receives or
//! not. What comes before there is a handler of its number waits, within the bounds of all messages.

use std::sync::Arc;

use super::unexpected::{Arrived, Content};
use super::{Envelope, MessageEnd, Party, public};
use crate::engine::channel::ChanId;
use crate::engine::{Engine, Fx, Work};
use crate::protocol::message::{Extra, Message};
use crate::status::{Code, Status};

/// An active message.
pub struct Active {
    /// Who sent it, its handler and tag, its length, and what travels beside it.
    pub end: MessageEnd,
    /// Its content, if it came along.
    pub content: Vec<u8>,
    /// Its number, to be received by, if not; 0 otherwise.
    pub message: u64,
}

/// A handler. True: the message, whose content did not come along, is received later.
pub type ActiveFn = Arc<dyn Fn(&Active) -> bool + Send + Sync>;

impl Engine {
    /// Sets the handler of a number, or takes it away; what has waited for it goes to it.
    pub fn message_handler(
        &mut self,
        fx: &mut impl Fx,
        id: u32,
        handler: Option<ActiveFn>,
    ) -> Result<(), Status> {
        if self.closing {
            return Err(Self::ending());
        }
        let Some(handler) = handler else {
            self.messages.handlers.remove(&id);
            return Ok(());
        };
        crate::room::grow(&mut self.messages.handlers, 1, "handlers")?;
        self.messages.handlers.insert(id, handler.clone());
        while let Some(index) = self.messages.unexpected.find_active(id) {
            if !fx.fits(1) {
                let text = "no memory for the messages that wait for a handler";
                return Err(Status::new(Code::ResourceExhausted, text));
            }
            self.hand_over(fx, index, handler.clone());
        }
        Ok(())
    }

    /// A message with its content came for a handler.
    pub(super) fn arrive_active(
        &mut self,
        fx: &mut impl Fx,
        (sender, ch): (Party, Option<ChanId>),
        envelope: Envelope,
        sync: Option<u32>,
        extra: &Extra<'_>,
        content: &[u8],
    ) -> Result<(), Status> {
        let len = content.len() as u64;
        let bytes = crate::room::copy(content, "an active message")?;
        let content = Content::Here { bytes, sync };
        let arrived = Arrived::new(sender, ch, envelope, len, content).with(extra)?;
        self.take_active(fx, arrived).map(drop)
    }

    /// A message whose content waits came for a handler; where it waits.
    pub(super) fn offer_active(
        &mut self,
        fx: &mut impl Fx,
        arrived: Arrived,
    ) -> Result<u32, Status> {
        self.take_active(fx, arrived)
    }

    fn take_active(&mut self, fx: &mut impl Fx, arrived: Arrived) -> Result<u32, Status> {
        let handler = self.messages.handlers.get(&arrived.envelope.comm).cloned();
        if !fx.fits(1) {
            return Err(crate::room::none(size_of::<Work>(), "an active message"));
        }
        let index = self.messages.unexpected.add(arrived)?;
        if let Some(handler) = handler {
            self.hand_over(fx, index, handler);
        }
        Ok(index)
    }

    /// Gives a message that waits to its handler.
    fn hand_over(&mut self, fx: &mut impl Fx, index: u32, handler: ActiveFn) {
        let Some(a) = self.messages.unexpected.get(index) else { return };
        let (party, envelope, len, ch) = (a.sender, a.envelope, a.len, a.ch);
        let short = Default::default();
        let end = |extra| MessageEnd { result: Ok(()), party, envelope, len, extra, short };
        if let Content::Here { .. } = a.content {
            let Some(arrived) = self.messages.unexpected.remove(index) else { return };
            let (content, extra) = self.take_content(fx, arrived);
            self.count_received(party, len, &Ok(()));
            let active = Active { end: end(extra), content, message: 0 };
            return fx.run(Work::Active { handler, active: Box::new(active) });
        }
        if let (Content::There { response, .. }, 0, Some(ch)) = (&a.content, len, ch) {
            // There is nothing to wait for.
            let response = *response;
            let Some(arrived) = self.messages.unexpected.remove(index) else { return };
            let (beside, extra) = (arrived.cost(), arrived.extra);
            self.offer_taken(ch, beside);
            self.send(fx, ch, &Message::GetDone { response, ok: true }, &[]);
            let active = Active { end: end(extra), content: Vec::new(), message: 0 };
            return fx.run(Work::Active { handler, active: Box::new(active) });
        }
        let message = public(self.next_id, index);
        self.next_id += 1;
        self.messages.unexpected.claim(index, message);
        let extra = self.messages.unexpected.get(index).and_then(Arrived::copy_extra);
        let active = Active { end: end(extra), content: Vec::new(), message };
        fx.run(Work::Active { handler, active: Box::new(active) });
    }

    /// Nobody receives a message that was claimed: its sender hears that it was taken.
    pub fn message_drop(&mut self, fx: &mut impl Fx, message: u64) {
        let unexpected = &mut self.messages.unexpected;
        if let Some(arrived) =
            unexpected.claimed(message).and_then(|index| unexpected.remove(index))
        {
            let beside = arrived.cost() - arrived.len;
            self.refuse_long(fx, arrived, beside);
        }
    }
}
