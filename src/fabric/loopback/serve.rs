//! What other adapters have for the endpoints of this one, and what is told of it.

use super::LoopbackAdapter;
use super::endpoint::{Op, gone};
use super::hub::{Item, What};
use crate::fabric::{EpId, Event, View};
use crate::limits::POLL_EVENTS;
use crate::room::Grows;

/// Items moved to their endpoints in one poll: more than all that peers may have queued at a few.
const POLL_ITEMS: usize = 1 << 16;

impl LoopbackAdapter {
    fn take(&mut self, item: Item, events: &mut Vec<Event>) {
        let ep = EpId(item.to);
        let Some(e) = self.eps.get_mut(&item.to) else {
            if let What::Hello(from, token) = item.what {
                from.hub.push(Item { to: from.id, from: token, what: What::Bye });
            }
            return;
        };
        let known = e.remote.as_ref().is_some_and(|r| r.token == item.from);
        match item.what {
            What::Hello(..) => {
                e.hellos.push(item.from);
                if known && !e.up {
                    e.up = true;
                    events.push(Event::Connected(ep));
                }
            }
            What::Message(bytes) => {
                e.me.release(bytes.len());
                if known && e.up {
                    // SAFETY: `held` keeps the bytes until the next poll.
                    let view = unsafe { View::new(bytes.as_ptr(), bytes.len()) };
                    self.held.push(bytes);
                    events.push(Event::Message { ep, bytes: view });
                }
            }
            What::Written(imm) => {
                e.me.release(0);
                if known && e.up {
                    events.push(Event::Written { ep, imm });
                }
            }
            What::Bye if known => {
                (e.up, e.down) = (false, true);
                e.remote = None;
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
            What::Bye => {}
        }
    }

    /// Gives the items to their endpoints, and takes some of each.
    pub(super) fn serve(&mut self, events: &mut Vec<Event>) {
        for _ in 0..POLL_ITEMS {
            // To ask whether it is empty is cheaper than to find it so.
            let next = || if self.hub.inbox.is_empty() { None } else { self.hub.inbox.pop() };
            let Some(item) = self.stuck.take().or_else(next) else { break };
            let to = item.to;
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
                let room = events.fits(ends) && self.held.fits(1) && e.hellos.fits(1);
                if !room {
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
