//! Which endpoints have something to do, and what each does when its turn comes.

use super::super::endpoint::{Endpoint, Input};
use super::super::left::TURN;
use super::super::tx;
use super::{DIRECT, TcpAdapter};
use crate::fabric::Event;

/// So many are asked whether content comes to them.
const NEIGHBOURS: usize = 16;
/// A socket that was quiet beside others that were not is asked at each so manyth poll.
const QUIET_EVERY: usize = 8;

impl TcpAdapter {
    /// Takes an endpoint out of all lists but `eps`.
    pub(super) fn unlist(&mut self, id: u32) {
        self.order.retain(|&x| x != id);
        self.busy.retain(|&x| x != id);
        self.held.retain(|&x| x != id);
        self.fresh.retain(|&x| x != id);
    }

    /// Handles input and output of one endpoint.
    pub(super) fn service(&mut self, id: u32, events: &mut Vec<Event>) {
        let Some(e) = self.eps.get_mut(&id) else { return };
        let mut input = e.input(&mut self.shared, events);
        e.quiet = if matches!(input, Input::Quiet) { e.quiet.saturating_add(1) } else { 0 };
        self.quiet = self.quiet.min(e.quiet);
        if !e.stream.tx.is_idle() && !matches!(input, Input::Closed(_)) {
            let pause = matches!(input, Input::Quiet) || e.stream.tx.ack_urgent();
            e.output(pause, &self.shared.regions);
        }
        e.ask(&mut self.shared.wanted);
        if let (Input::Quiet, Some(status)) = (&input, &e.broken) {
            input = Input::Closed(status.clone());
        }
        if let Input::Closed(status) = input {
            e.down(&self.shared, status, events);
            self.unlist(id);
            return;
        }
        if !e.listed && (!e.stream.tx.is_idle() || e.broken.is_some()) {
            e.listed = true;
            self.busy.push(id);
        }
    }

    /// Asks each socket. One that was quiet for long costs as much as one that is about to say something: it is asked less often, as long as
    /// others are not.
    pub(super) fn poll_few(&mut self, events: &mut Vec<Event>) {
        let (n, mut ids) = (self.order.len(), [0; DIRECT]);
        ids[..n].copy_from_slice(&self.order);
        let lively = ids[..n].iter().any(|id| self.eps.get(id).is_some_and(Endpoint::is_lively));
        // By the poll alone: a count that says whose turn it is as well would be the same one's each time.
        let all = !lively || self.polled.count.is_multiple_of(QUIET_EVERY);
        for i in 0..n {
            let id = ids[(self.polled.count + i) % n];
            let asks = all || self.eps.get(&id).is_some_and(|e| e.is_lively() || e.listed);
            if asks {
                self.service(id, events);
            }
        }
    }

    /// What was kept, or held back, for more to follow goes out.
    pub(super) fn push_held(&mut self) {
        while let Some(id) = self.held.pop() {
            if let Some(e) = self.eps.get_mut(&id) {
                e.held = false;
                e.push(&self.shared.regions);
                e.ask(&mut self.shared.wanted);
            }
        }
    }

    /// Bytes of content that this endpoint's socket is given at once.
    pub(super) fn turn(&self, id: u32) -> u64 {
        let comes = |id| self.eps.get(id).is_some_and(|e| e.stream.is_amid_content());
        let long = self.eps.get(&id).is_some_and(|e| e.stream.tx.waiting() > TURN);
        let both = long && (comes(&id) || self.order.iter().take(NEIGHBOURS).any(comes));
        if both { TURN } else { tx::GATHER }
    }

    /// Drops the endpoints from `busy` that have nothing to send.
    pub(super) fn settle(&mut self) {
        let (eps, lazy) = (&mut self.eps, &mut self.lazy);
        self.busy.retain(|id| match eps.get_mut(id) {
            Some(e) if e.stream.tx.is_idle() && e.broken.is_none() => {
                e.listed = false;
                if !e.lazy {
                    e.lazy = true;
                    lazy.push(*id);
                }
                false
            }
            other => other.is_some(),
        });
    }
}
