//! What happened to a buffer, for its owner to take or to be told of: ends of sends, arrivals, the end of the pair.

use super::{BufferEvent, OnBuffer, PairState, Pairs, Send, Step, Way, of_buffer};
use crate::engine::Engine;
use crate::status::{Code, Reason, Status};

impl Engine {
    /// Takes one event of a buffer that its owner waits for: of `Way::Send` the end of a send, of `Way::Recv` an arrival.
    /// `None`: there is none yet.
    pub fn buffer_take(&mut self, id: u64, way: Way) -> Result<Option<()>, Status> {
        let index = self.pairs.buffer_by_id(id)?;
        let pairs = &mut self.pairs;
        let Some(b) = pairs.buffers.get_mut(index) else { return Err(Self::ending()) };
        if b.told.is_some() {
            let text = text!("buffer {id} has a callback, which is told of its events");
            return Err(Status::new(Code::FailedPrecondition, text));
        }
        if b.way != way {
            let [is, not] = match way {
                Way::Send => ["receive", "sent from"],
                Way::Recv => ["send", "written to"],
            };
            let text = text!("buffer {id} is a {is} buffer: it is not {not}");
            return Err(Status::new(Code::FailedPrecondition, text));
        }
        match pairs.next_event(index) {
            Some(BufferEvent::Sent(result)) => return result.map(Some),
            Some(BufferEvent::Received) => return Ok(Some(())),
            Some(BufferEvent::Broken(_)) | None => {}
        }
        let Some(b) = pairs.buffers.get(index) else { return Err(Self::ending()) };
        if way == Way::Send && b.under_way == 0 {
            let text = text!("buffer {id}: no send is under way");
            return Err(Status::new(Code::FailedPrecondition, text));
        }
        match pairs.pairs.get(b.pair).map(|p| &p.state) {
            Some(PairState::Broken(status)) if b.under_way == 0 => Err(status.clone()),
            _ => Ok(None),
        }
    }

    /// Events of a buffer that its owner may take at once: ends of sends, arrivals.
    pub fn buffer_counts(&self, id: u64) -> Result<(u64, u64), Status> {
        self.buffer_counted(id).map(|(counts, _)| counts)
    }

    /// The same, and its address and length.
    #[allow(clippy::type_complexity, reason = "two pairs of numbers")]
    pub fn buffer_counted(&self, id: u64) -> Result<((u64, u64), (u64, u64)), Status> {
        let index = self.pairs.buffer_by_id(id)?;
        let b = self.pairs.buffers.get(index);
        Ok(b.map_or_else(Default::default, |b| {
            ((b.sent + b.failures, b.received), (b.addr, b.len))
        }))
    }

    /// Why nothing arrives in a receive buffer any more, if that is so.
    pub fn buffer_hears(&self, id: u64) -> Result<(), Status> {
        let b = self.pairs.buffers.get(self.pairs.buffer_by_id(id)?);
        let Some(b) = b.filter(|b| b.way == Way::Recv && b.received == 0 && b.under_way == 0)
        else {
            return Ok(());
        };
        match self.pairs.pairs.get(b.pair).map(|p| &p.state) {
            Some(PairState::Broken(status)) => Err(status.clone()),
            _ => Ok(()),
        }
    }

    /// The next event of a buffer that has a callback. One thread at a time asks, until there is none.
    pub fn next_buffer_event(&mut self, index: u32) -> Option<(OnBuffer, u64, BufferEvent)> {
        let pairs = &mut self.pairs;
        let b = pairs.buffers.get(index)?;
        if b.told.is_some() && !b.released {
            let (told, id) = (b.told, b.id);
            if let Some(event) = pairs.next_event(index) {
                return Some((told, id, event));
            }
            let b = pairs.buffers.get_mut(index)?;
            let broken = pairs.pairs.get(b.pair).map(|p| &p.state);
            if let Some(PairState::Broken(status)) = broken
                && b.way == Way::Recv
                && !std::mem::replace(&mut b.broken_told, true)
            {
                return Some((b.told, b.id, BufferEvent::Broken(status.clone())));
            }
        }
        pairs.buffers.get_mut(index)?.telling = false;
        self.may_leave(index);
        None
    }
}

impl Pairs {
    /// What happened to a buffer and nobody has heard of: ends of sends in the order in which they ended.
    fn next_event(&mut self, index: u32) -> Option<BufferEvent> {
        let b = self.buffers.get_mut(index)?;
        if b.received > 0 {
            b.received -= 1;
            return Some(BufferEvent::Received);
        }
        let failed = b.failed.first();
        if let Some(s) = failed.and_then(|failed| self.sends.get_mut(failed))
            && let Step::Failed { after } = &mut s.step
        {
            match after.checked_sub(1) {
                Some(left) => *after = left,
                None => {
                    let why = s.failed.take();
                    return Some(BufferEvent::Sent(Err(self.hear_failure(failed?, why))));
                }
            }
        } else if b.sent_since > 0 {
            b.sent_since -= 1;
        } else {
            return None;
        }
        b.sent -= 1;
        Some(BufferEvent::Sent(Ok(())))
    }

    /// A send that failed was heard of: why it did.
    fn hear_failure(&mut self, send: u32, why: Option<Status>) -> Status {
        let pair = self.forget_failure(send);
        let of_pair = |pair: u32| self.pairs.get(pair).and_then(|p| p.sends_no_more()).cloned();
        let unknown = || Status::gone("the pair ended").because(Reason::PeerGone);
        why.or_else(|| of_pair(pair?)).unwrap_or_else(unknown)
    }

    /// Nobody is to hear of a send that failed any more. Its pair.
    pub(super) fn forget_failure(&mut self, send: u32) -> Option<u32> {
        let Send { buffer, of_buffer: links, .. } = self.sends.remove(send)?;
        let b = self.buffers.get_mut(buffer)?;
        b.failed.remove(&mut self.sends, of_buffer, send, links);
        b.failures -= 1;
        let p = self.pairs.get_mut(b.pair)?;
        p.unheard -= 1;
        Some(b.pair)
    }
}
