//! The acts of applications and of fate, carried out.

use rdma_transport::engine::Held;
use rdma_transport::status::{Code, Status};

use super::app::Act;
use super::check;
use super::common::memory::{Who, content};
use super::common::net::Life;
use super::profile::{MS, US};
use super::sim::Sim;
use super::world::Event;

impl Sim {
    /// Whether the application of this node runs and may call.
    fn usable(&self, node: usize) -> bool {
        self.engines[node].is_some() && !self.w.nodes[node].closing
    }

    pub fn act(&mut self, act: Act) {
        self.w.trace(|| format!("{act:?}"));
        match act {
            // It may have been the answer to a request already.
            Act::Send(op) if self.app.sends[op].begun => {}
            Act::Send(op) if self.usable(self.app.sends[op].from) => self.send(op, None),
            Act::Recv(op) if self.usable(self.app.recvs[op].node) => self.recv(op),
            Act::Cancel(op) => self.cancel(op),
            Act::Message(op) if self.usable(self.app.messages[op].node()) => self.message(op),
            Act::MessageCancel { op, give_up } => self.message_cancel(op, give_up),
            Act::Release(op) => self.release(op),
            Act::Abort { node, step } if self.usable(node) => {
                let status = Status::new(Code::Aborted, "the step was aborted");
                self.call(node, |e, fx| e.step_abort(fx, step, status)).unwrap();
            }
            Act::Cleanup { node, step } if self.usable(node) => {
                self.call(node, |e, fx| e.step_cleanup(fx, step)).unwrap();
            }
            Act::Answer { who, response, key, step } if self.w.lives(who) => {
                self.answer(who, response, key, step);
            }
            Act::Disconnect { node } if self.usable(node) => {
                let peers = self.w.profile.nodes as u64 - 1;
                let peer = self.w.rng.below(peers) as u32;
                self.call(node, |e, fx| e.disconnect(fx, peer));
            }
            Act::Drop => self.drop_conn(),
            Act::Stall { node } => {
                let time = self.w.rng.range(1, 1500) * MS;
                let until = &mut self.w.nodes[node].stalled_until;
                *until = (*until).max(self.w.now + time);
            }
            Act::Crash { node } if self.engines[node].is_some() => {
                let silent = self.w.rng.percent(40);
                self.crash(node, silent);
                self.restart_later(node);
            }
            Act::Restart { node } if self.engines[node].is_none() && !self.w.calm => {
                self.restart(node)
            }
            Act::Shutdown { node } if self.usable(node) => {
                self.call(node, |e, fx| e.shut_down(fx));
                self.w.nodes[node].closing = true;
                let who = self.w.who(node);
                self.w.after(100 * MS, Event::App(Act::Destroyed { who }));
            }
            Act::Destroyed { who } if self.w.lives(who) => self.destroyed(who),
            _ => {}
        }
    }

    fn cancel(&mut self, op: usize) {
        let r = &self.app.recvs[op];
        if let (Some(id), Some(who)) = (r.id, r.who)
            && self.w.lives(who)
        {
            let ended = r.ended.is_some();
            let result = self.call(who.node, |e, fx| e.cancel(fx, id));
            assert!(!(ended && result.is_ok()), "an ended receive was cancelled");
        }
    }

    fn release(&mut self, op: usize) {
        let r = &self.app.recvs[op];
        let (Some(id), Some(who)) = (r.id, r.who) else { return };
        if !self.w.lives(who) || r.held.is_some() {
            return;
        }
        let held = self.engines[who.node].as_mut().unwrap().release(id);
        let held = held.unwrap_or_else(|s| panic!("a kept receive cannot be released: {s}"));
        if let Some((send, addr, device)) = self.app.recvs[op].got {
            // Until now the content stayed what it was.
            let n = self.app.sends[send].meta.nbytes;
            let bytes = self.w.mem.read(who, device != 0, addr, n, "a kept result");
            assert!(*bytes == content(send, n), "the result of receive {op} changed while kept");
        }
        let again = self.engines[who.node].as_mut().unwrap().release(id);
        assert!(again.is_err(), "a receive was released twice");
        self.app.recvs[op].held = Some(Held::Nothing);
        self.give_back(who, held);
    }

    fn answer(&mut self, who: Who, response: u64, key: usize, step: i64) {
        let node = who.node;
        if !self.w.profile.quiet && self.w.rng.percent(15) {
            let status = Status::new(Code::NotFound, "the runtime has no such tensor");
            let _ = self.call(node, |e, fx| e.response_fail(fx, response, &status));
            return;
        }
        let planned = self
            .app
            .by_key
            .get(&(node, key, step))
            .and_then(|all| all.iter().copied().find(|&s| !self.app.sends[s].begun));
        let op = match planned {
            Some(op) => op,
            None => self.app.new_send(&mut self.w, node, key, step),
        };
        self.send(op, Some(response));
    }

    fn drop_conn(&mut self) {
        let live = |c: &&usize| self.w.conns[**c].ends.iter().any(|e| e.life == Life::Up);
        let all: Vec<usize> = (0..self.w.conns.len()).collect();
        let live: Vec<usize> = all.iter().filter(live).copied().collect();
        if live.is_empty() {
            return;
        }
        // Rails as often as all others together: there are few.
        let rails: Vec<usize> =
            live.iter().copied().filter(|&c| self.w.conns[c].rail.is_some()).collect();
        let among = if self.w.rng.percent(50) && !rails.is_empty() { &rails } else { &live };
        let conn = self.w.rng.pick(among);
        for side in [0, 1] {
            let delay = self.w.delay(500 * US);
            self.w.after(delay, Event::Kill { conn, side });
        }
    }

    /// The process ends without a word.
    fn crash(&mut self, node: usize, silent: bool) {
        let who = self.w.who(node);
        self.w.trace(|| format!("{who:?} is gone, silently: {silent}"));
        if let Some(engine) = self.engines[node].take() {
            *self.w.met.entry("stale message".to_owned()).or_default() += engine.stale;
        }
        for conn in 0..self.w.conns.len() {
            for side in [0, 1] {
                if self.w.conns[conn].ends[side].who == who {
                    self.w.end(conn, side, false);
                    self.w.conns[conn].silent |= silent;
                }
            }
        }
        let now = self.w.now;
        let gone = || Status::gone("its own process ended");
        for s in self.app.sends.iter_mut().filter(|s| s.who == Some(who)) {
            s.ended.get_or_insert_with(|| (now, Err(gone())));
        }
        for r in self.app.recvs.iter_mut().filter(|r| r.who == Some(who)) {
            r.ended.get_or_insert_with(|| Err(gone()));
        }
        self.messages_crashed(who);
        self.w.mem.crash(who);
        self.w.nodes[node].crash();
    }

    fn restart_later(&mut self, node: usize) {
        let delay = self.w.rng.pick(&[1, 10, 300]) * MS;
        self.w.after(delay, Event::App(Act::Restart { node }));
    }

    pub fn restart(&mut self, node: usize) {
        self.w.nodes[node].restart();
        self.boot(node);
    }

    /// A manager was told to end some time ago: all of it must have ended by now.
    fn destroyed(&mut self, who: Who) {
        let node = who.node;
        let n = &self.w.nodes[node];
        if self.w.now < n.stalled_until + 20 * MS {
            // What it had to run did not run meanwhile.
            let at = n.stalled_until + 20 * MS;
            return self.w.at(at, Event::App(Act::Destroyed { who }));
        }
        assert!(n.work.is_empty(), "{who:?}: callbacks queued long after shut_down");
        assert!(n.chans.is_empty(), "{who:?}: channels after shut_down: {:?}", n.chans);
        let engine = self.engines[node].as_ref().unwrap();
        assert_eq!(engine.outstanding(), (0, 0), "{who:?}: requests, responses after shut_down");
        assert_eq!(engine.waiting(), (0, 0), "{who:?}: tensors, receives after shut_down");
        let kept: Vec<usize> = (0..self.app.recvs.len())
            .filter(|&i| {
                let r = &self.app.recvs[i];
                r.who == Some(who) && r.must_release(&self.w)
            })
            .collect();
        for op in kept {
            self.release(op);
        }
        for (i, s) in self.app.sends.iter().enumerate().filter(|(_, s)| s.who == Some(who)) {
            assert!(s.ended.is_some(), "send {i} did not end with its manager");
        }
        for (i, r) in self.app.recvs.iter().enumerate().filter(|(_, r)| r.who == Some(who)) {
            assert!(r.ended.is_some(), "receive {i} did not end with its manager");
        }
        assert_eq!(self.messages_open(Some(who)), 0, "messages did not end with their manager");
        check::nothing_left(self, node, "after shut_down");
        self.crash(node, false);
        if !self.w.calm {
            self.restart_later(node);
        }
    }
}
