//! Deadlines, keep-alive, and the end of the manager.

use super::channel::ChanId;
use super::transfer::inbound::State;
use super::transfer::outbound::Response;
use super::{Engine, Fx};
use crate::api::*;
use crate::protocol::message::Message;
use crate::status::{Code, Reason, Status};

/// How long a peer may take to confirm that it writes no more, before its channel is ended.
const QUIESCE_GRACE: u64 = 2_000_000_000;

/// How long a send may go on behind its deadline: a message whatever its peer says, a tensor without a sign of life of its receiver.
pub(super) const PATIENCE: u64 = 8_000_000_000;

/// How long nothing but questions for a sign of life, and answers, has come before a connection rests.
const REST: u64 = 10_000_000_000;

/// A tick that comes so much later than it was asked for tells that nothing ran meanwhile: the process was kept, or the
/// whole machine stood still, and the peers with it.
const STOOD_STILL: u64 = 1_000_000_000;

impl Engine {
    /// Time at which `tick` is due next; `u64::MAX`: not before something else happens.
    pub fn next_tick(&self) -> u64 {
        self.next_deadline.min(self.next_keepalive)
    }

    pub(super) fn quiesce_grace(&self) -> u64 {
        QUIESCE_GRACE.min(self.settings.peer_timeout)
    }

    pub(super) fn keepalive_interval(&self) -> u64 {
        self.interval_at_rest().min(500_000_000)
    }

    /// How long a peer is silent before it is asked, where the connection rests: most connections of a full mesh do.
    fn interval_at_rest(&self) -> u64 {
        (self.settings.peer_timeout / 4).clamp(1_000_000, 5_000_000_000)
    }

    /// How long a question for a sign of life may stay without an answer, if the peer's host does not acknowledge it either.
    fn vanished_after(&self) -> u64 {
        match self.settings.peer_timeout {
            u64::MAX => VANISHED.as_nanos() as u64,
            set => set,
        }
    }

    /// Handles what is due.
    pub fn tick(&mut self, fx: &mut impl Fx) {
        let now = fx.now();
        let late = now.saturating_sub(self.next_tick());
        if late >= STOOD_STILL {
            self.stood_still(now, late);
        }
        if now >= self.next_deadline {
            self.expire(fx, now);
        }
        if now >= self.next_keepalive {
            self.keepalive(fx, now);
        }
    }

    /// Time in which nobody looked here counts against no peer: what it said lies unread, and it may have been kept as well.
    /// Deadlines of operations stay what the application made them.
    fn stood_still(&mut self, now: u64, late: u64) {
        self.woke = now;
        let mut at = 0;
        while let Some(ch) = self.channels.next(&mut at, |_| true) {
            let Some(c) = self.channels.get_mut(ch) else { continue };
            let later = |at: u64| at.saturating_add(late).min(now);
            c.last_rx = later(c.last_rx);
            c.pinged = c.pinged.map(later);
            if let Some(rail) = &mut c.rail {
                rail.since = later(rail.since);
            }
        }
    }

    /// Until when a peer has time for its answer at the least, if that is not over.
    pub(super) fn grace_since_woken(&self, now: u64) -> Option<u64> {
        let until = self.woke.saturating_add(self.quiesce_grace());
        (self.woke > 0 && now < until).then_some(until)
    }

    fn expire(&mut self, fx: &mut impl Fx, now: u64) {
        for sent in self.table.expire(now) {
            let text = "nobody took the tensor before its deadline";
            let status = Status::new(Code::DeadlineExceeded, text).because(Reason::Deadline);
            let info = self.info(None, None, Protocol::Auto);
            self.end_send(fx, sent.done, Err(status), info);
        }
        while let Some(index) = self.deadlines.pop(&self.requests, now, |r| r.deadline) {
            self.expire_request(fx, index);
        }
        self.expire_messages(fx, now);
        self.offer_held(fx, now);
        self.expire_slot_sends(fx, now);
        let earliest = self.deadlines.next().min(self.messages.next_deadline());
        let earliest = earliest.min(self.pairs.next_deadline());
        // Not more than once a millisecond, however many deadlines there are.
        let earliest = earliest.min(self.table.next_deadline());
        self.next_deadline =
            if earliest == u64::MAX { earliest } else { earliest.max(now + 1_000_000) };
    }

    fn expire_request(&mut self, fx: &mut impl Fx, index: u32) {
        let grace = self.grace_since_woken(fx.now());
        let Some(r) = self.requests.get_mut(index) else { return };
        if let (State::Quiescing { .. }, Some(ch)) = (&r.state, r.ch) {
            if let Some(until) = grace {
                return self.set_deadline(index, until);
            }
            let text = "the peer did not confirm that it writes no more";
            let status = Status::new(Code::Unavailable, text).because(Reason::PeerStalled);
            return self.channel_down(fx, ch, status);
        }
        let seconds = r.deadline.saturating_sub(r.started) as f64 / 1e9;
        let named = r.named.to_string();
        let state = match r.state {
            State::Queued => "not connected",
            // Nor does the peer tell that it has the tensor, and that its source callback or a copy off a device
            // is under way.
            State::Requested => {
                "no answer: the peer had no tensor of this key, or its application was not done with it"
            }
            State::LocalWait => "no tensor of this key was sent",
            State::Awaiting | State::Reading { .. } => "the content was on its way",
            _ => "waiting for the application",
        };
        let peer = r.peer;
        r.deadline = u64::MAX;
        let from = match peer.and_then(|p| self.peers.get(p)) {
            Some(p) => text!(" from {}", p.told()),
            None => String::new(),
        };
        let text = text!("{named}{from}: {state} after {seconds:.3} s");
        let status = Status::new(Code::DeadlineExceeded, text).because(Reason::Deadline);
        self.end(fx, index, status);
    }

    fn keepalive(&mut self, fx: &mut impl Fx, now: u64) {
        let (interval, at_rest) = (self.keepalive_interval(), self.interval_at_rest());
        let vanished = self.vanished_after();
        self.next_keepalive = if self.channels.is_empty() { u64::MAX } else { now + interval };
        let mut at = 0;
        while let Some(ch) = self.channels.next(&mut at, |_| true) {
            if let Some(status) = self.is_late(ch, now) {
                self.say_goodbye(fx, ch, &status);
                self.channel_down(fx, ch, status);
                continue;
            }
            let mark = fx.sign_of_life(ch);
            let Some(c) = self.channels.get_mut(ch) else { continue };
            if c.mark != mark {
                c.mark = mark;
                c.last_rx = now;
                c.pinged = None;
            }
            let (said, silent) = (c.heard - c.signs, now.saturating_sub(c.last_rx));
            if c.talk.0 != said {
                c.talk = (said, now);
            }
            let rests = now.saturating_sub(c.talk.1) >= REST;
            if silent < if rests { at_rest } else { interval } {
                continue;
            }
            match c.pinged {
                None => {
                    c.pinged = Some(now);
                    c.send(fx, &Message::Ping, &[]);
                    self.settle(fx, ch);
                }
                Some(at) => {
                    let (asked, seconds) = (now.saturating_sub(at), silent as f64 / 1e9);
                    let waits = c.remote_manual || self.settings.peer_timeout == u64::MAX;
                    let status = match waits {
                        // Its silence proves nothing, but the application has said how long it waits.
                        true if asked >= PATIENCE && self.has_late_send(ch, now) => {
                            let text = text!(
                                "a send has gone on behind its deadline, and the peer was silent for {seconds:.1} s"
                            );
                            Status::new(Code::Unavailable, text).because(Reason::PeerStalled)
                        }
                        _ if asked < vanished => continue,
                        false => {
                            let text =
                                text!("peer stalled: connected, but silent for {seconds:.1} s");
                            Status::new(Code::Unavailable, text).because(Reason::PeerStalled)
                        }
                        // Its silence proves nothing, but its host would acknowledge the question.
                        true if fx.is_unreachable(ch) => Status::gone(text!(
                            "the peer's host does not answer: nothing came for {seconds:.1} s, and the question for a \
                             sign of life was not acknowledged"
                        )),
                        true => continue,
                    };
                    self.say_goodbye(fx, ch, &status);
                    self.channel_down(fx, ch, status);
                }
            }
        }
    }

    /// Whether a tensor is on its way there though its send should have ended a while ago. Messages see to it themselves.
    fn has_late_send(&self, ch: ChanId, now: u64) -> bool {
        let late = |r: &Response| {
            let source = r.source.as_ref().filter(|_| !r.is_message());
            source.is_some_and(|s| now >= s.deadline.saturating_add(PATIENCE))
        };
        let Some(c) = self.channels.get(ch) else { return false };
        c.responses.responses().any(|i| self.responses.get(i).is_some_and(late))
    }

    /// Begins the end: every operation fails with `CANCELLED`; channels end. What is out in
    /// callbacks and copies ends when those return: see `outstanding`.
    pub fn shut_down(&mut self, fx: &mut impl Fx) {
        self.closing = true;
        let text = "the manager was destroyed";
        let status = Status::new(Code::Cancelled, text).because(Reason::Cancelled);
        loop {
            let steps = self.table.steps();
            for &step in &steps {
                let drained = self.table.cleanup(step);
                self.give_up_drained(fx, drained, &status);
            }
            if steps.is_empty() {
                break;
            }
        }
        let mut at = 0;
        while let Some(ch) = self.channels.next(&mut at, |_| true) {
            self.say_goodbye(fx, ch, &status);
            self.channel_down(fx, ch, status.clone());
        }
        at = 0;
        while let Some(index) = self.requests.next(&mut at, |_| true) {
            self.end(fx, index, status.clone());
        }
        at = 0;
        while let Some(index) = self.responses.next(&mut at, Response::is_asking) {
            self.refuse_asked(fx, index, &status);
        }
        self.end_messages(fx, &status);
        self.end_pairs(fx, &status);
    }
}
