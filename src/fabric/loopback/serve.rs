//! What other adapters have for the endpoints of this one, and what is told of it.

use super::LoopbackAdapter;
use super::endpoint::{Op, gone};
use super::hub::{Item, What};
use super::mail::Read;
use crate::fabric::{EpId, Event, View};
use crate::limits::POLL_EVENTS;
use crate::room::Grows;

/// Items moved to their endpoints in one poll: more than all that peers may have queued at a few.
const POLL_ITEMS: usize = 1 << 16;

impl LoopbackAdapter {
    /// The next item, if it is a message for an endpoint that has nothing before it; else it waits for `serve`. The bytes are good
    /// until the reader is cleared.
    #[inline]
    pub(super) fn take_message(&mut self) -> Option<(EpId, View)> {
        let mut read = self.reader.next()?;
        let item = self.reader.value(&mut read);
        let (to, from, what) = (item.to, item.from, &item.what);
        if matches!(what, What::Message)
            && let Some(e) = self.eps.get(&to)
            && e.inbox.is_empty()
            && e.hears(from)
        {
            // SAFETY: the letter stays as it is until the next poll.
            let view = unsafe { View::new(item.bytes.as_ptr(), item.bytes.len()) };
            self.reader.done(read);
            return Some((EpId(to), view));
        }
        self.stuck = Some(read);
        None
    }

    fn take(&mut self, mut read: Read<Item>, events: &mut Vec<Event>) {
        let item = self.reader.value(&mut read);
        let (ep, from) = (EpId(item.to), item.from);
        match self.eps.get_mut(&item.to) {
            None => item.refuse(),
            Some(e) => match item.what {
                What::Nothing => {}
                What::Hello(..) => {
                    item.what = What::Nothing;
                    e.hellos.push(from);
                    if e.is_with(from) && !e.up {
                        e.up = true;
                        events.push(Event::Connected(ep));
                    }
                }
                What::Message if e.hears(from) => {
                    // SAFETY: the letter stays as it is until the next poll.
                    let view = unsafe { View::new(item.bytes.as_ptr(), item.bytes.len()) };
                    events.push(Event::Message { ep, bytes: view });
                }
                What::Written(imm) if e.hears(from) => events.push(Event::Written { ep, imm }),
                What::Bye if e.is_with(from) => self.part(ep),
                What::Message | What::Written(_) | What::Bye => {}
            },
        }
        self.reader.done(read);
    }

    /// The peer of an endpoint is gone.
    fn part(&mut self, ep: EpId) {
        let Some(e) = self.eps.get_mut(&ep.0) else { return };
        (e.up, e.down) = (false, true);
        e.out = None;
        let status = gone(&e.peer);
        for op in e.ops.drain(..) {
            if let Op::Rdma(r) = op {
                let result = Err(status.clone());
                self.ready.push_back(Event::Done { ep, wr: r.wr, result });
            }
        }
        self.busy.retain(|&x| x != ep.0);
        // Behind what is ready: completions come before the end.
        self.ready.push_back(Event::Down { ep, status });
    }

    /// Gives the items to their endpoints, and takes some of each.
    pub(super) fn serve(&mut self, events: &mut Vec<Event>) {
        for _ in 0..POLL_ITEMS {
            let Some(mut item) = self.stuck.take().or_else(|| self.reader.next()) else { break };
            let to = self.reader.value(&mut item).to;
            match self.eps.get_mut(&to) {
                Some(e) => {
                    if !e.inbox.fits(1) {
                        self.stuck = Some(item);
                        break;
                    }
                    if e.inbox.is_empty() {
                        self.served.push_back(to);
                    }
                    e.inbox.push_back(item);
                }
                None => self.take(item, events),
            }
        }
        let ends = self.eps.len() + 2;
        for _ in 0..self.served.len() {
            let Some(id) = self.served.pop_front() else { break };
            for _ in 0..POLL_EVENTS {
                let Some(e) = self.eps.get_mut(&id) else { break };
                // What an item may add to. Without memory it waits.
                if !(events.fits(ends) && e.hellos.fits(1)) {
                    break;
                }
                let Some(item) = e.inbox.pop_front() else { break };
                self.take(item, events);
            }
            if self.eps.get(&id).is_some_and(|e| !e.inbox.is_empty()) {
                self.served.push_back(id);
            }
        }
    }

    #[inline]
    pub(super) fn report(&mut self, events: &mut Vec<Event>) {
        // Nothing is ready, as a rule.
        if !self.ready.is_empty() {
            self.report_ready(events);
        }
    }

    #[inline(never)]
    fn report_ready(&mut self, events: &mut Vec<Event>) {
        let ends = self.eps.len() + 1;
        while events.fits(ends)
            && let Some(event) = self.ready.pop_front()
        {
            if let Event::Done { ep, .. } = &event
                && let Some(e) = self.eps.get_mut(&ep.0)
            {
                e.under_way = e.under_way.saturating_sub(1);
                self.posted = self.posted.saturating_sub(1);
            }
            events.push(event);
        }
    }
}
