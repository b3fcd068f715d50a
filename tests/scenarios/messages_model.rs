//! What MPI says of matching, held against what became of all messages and receives; their ends, and deaths of the nodes.

use rdma_transport::engine::front::message::{MessageEnd, Party, Wanted};
use rdma_transport::status::Status;

use super::messages::{Op, Post, is_ok};
use super::script::LARGE;

/// Whether a receive is for such a message, whoever has sent it.
fn is_for(recv: &Op, send: &Op) -> bool {
    let (asks, sent) = (&recv.wanted, &send.wanted);
    asks.comm == sent.comm && (asks.tag ^ sent.tag) & asks.mask == 0
}

/// Whether both are of the same node, in the same life.
fn share_a_life(a: &Op, b: &Op) -> bool {
    (a.node, a.inc) == (b.node, b.inc)
}

impl Post {
    /// Receives, and what each has met, among those messages that can be told apart.
    fn meetings(&self) -> Vec<(usize, usize)> {
        let of = |(r, recv): (usize, &Op)| Some((r, self.met(recv)?));
        self.recvs.iter().enumerate().filter_map(of).collect()
    }

    /// Each message was met once, by a receive that is for it, and in order.
    fn check_order(&self) {
        let mut by: Vec<Option<usize>> = vec![None; self.sends.len()];
        for (r, s) in self.meetings() {
            assert_eq!(by[s].replace(r), None, "message {s} was received twice");
            let (send, recv) = (&self.sends[s], &self.recvs[r]);
            assert!(recv.claimed || is_for(recv, send), "receive {r} is not for message {s}");
            assert_eq!(recv.ended.as_ref().unwrap().envelope.tag, send.wanted.tag);
        }
        for (r, s) in self.meetings().into_iter().filter(|&(r, _)| !self.recvs[r].claimed) {
            self.check_messages_before(r, s, &by);
            self.check_receives_before(r, s);
        }
    }

    /// A receive takes the first message of a sender that it is for.
    fn check_messages_before(&self, r: usize, s: usize, by: &[Option<usize>]) {
        let (recv, second) = (&self.recvs[r], &self.sends[s]);
        for (s1, first) in self.sends.iter().enumerate().take(s) {
            let same = share_a_life(first, second)
                && first.wanted.from == second.wanted.from
                && first.wanted.comm == second.wanted.comm
                && is_for(recv, first)
                && first.memory.len >= 8
                && is_ok(first);
            let Some(r1) = by[s1] else {
                // Met by one that was too small, or one whose end was bad.
                continue;
            };
            let overtaken = same && !self.recvs[r1].claimed && self.recvs[r1].number > recv.number;
            assert!(!overtaken, "message {s} overtook {s1}");
        }
    }

    /// A message goes to the first receive that is for it: it passes none that waited, whatever became of that later.
    fn check_receives_before(&self, r: usize, s: usize) {
        let (recv, send) = (&self.recvs[r], &self.sends[s]);
        let sender = recv.ended.as_ref().unwrap().party;
        for (q, first) in self.recvs.iter().enumerate().take(r) {
            let fits = share_a_life(first, recv)
                && !first.claimed
                && is_for(first, send)
                && [Party::ANY, sender].contains(&first.wanted.from);
            // What it has met later was sent when this one was over, or it has met nothing.
            let met = self.met(first).map_or(0, |s| self.sends[s].begun);
            let waited = first.waited.max(met);
            assert!(!fits || waited < recv.over, "message {s} passed receive {q}, which waited");
        }
    }

    /// No receive waits for a message that is here.
    fn check_meetings(&mut self) {
        for i in 0..self.recvs.len() {
            let Op { node, wanted, ended: None, claimed: false, .. } = self.recvs[i] else {
                continue;
            };
            let found = self.probe(node, wanted, false);
            assert_eq!(found, None, "receive {i} waits for a message that is here");
        }
    }

    /// Whether a node takes operations.
    pub fn lives(&self, node: usize) -> bool {
        self.s.engines[node].is_some() && !self.s.w.nodes[node].closing
    }

    /// A manager that has ended has no operation left.
    pub fn has_ended_all(&self, node: usize) {
        let inc = self.s.w.who(node).inc;
        let own = |op: &&Op| (op.node, op.inc) == (node, inc) && op.ended.is_none();
        let left = self.sends.iter().chain(&self.recvs).find(own).map(|op| op.number);
        assert_eq!(left, None, "an operation outlives its manager");
    }

    /// A process ends, and all that it has begun; `silent`: nobody hears of it.
    pub fn crash(&mut self, node: usize, silent: bool) {
        self.s.crash(node, silent);
        self.claims.retain(|(of, _)| *of != node);
        let own = |op: &&mut Op| op.node == node && op.ended.is_none();
        for op in self.sends.iter_mut().chain(&mut self.recvs).filter(own) {
            let result = Err(Status::gone("its own process ended"));
            let (party, len, envelope) = (op.wanted.from, op.memory.len, op.envelope());
            let (incarnation, extra, short) = Default::default();
            op.ended = Some(MessageEnd { result, party, incarnation, envelope, len, extra, short });
        }
    }

    /// What no receive has met: a receive for each, so that everything comes.
    fn take_what_is_left(&mut self, node: usize) {
        for comm in 0..3 {
            let wanted = Wanted { from: Party::ANY, comm, tag: 0, mask: 0 };
            while self.probe(node, wanted, false).is_some() {
                self.recv(node, wanted, 2 * LARGE);
                self.run();
            }
        }
    }

    /// Ends what is left, and the stage.
    pub fn finish(&mut self) {
        self.s.failing.clear();
        self.s.let_all_go();
        self.look();
        self.check_meetings();
        for (node, found) in std::mem::take(&mut self.claims) {
            if self.lives(node) {
                let wanted = Wanted { from: Party::ANY, comm: 0, tag: 0, mask: 0 };
                self.recv_into(node, wanted, 2 * LARGE, 0, Some(found.message));
            }
        }
        for node in [0, 1].into_iter().filter(|&node| self.lives(node)).collect::<Vec<_>>() {
            self.take_what_is_left(node);
        }
        for i in 0..self.recvs.len() {
            if self.recvs[i].ended.is_none() {
                let Op { node, id, .. } = self.recvs[i];
                self.cancel(node, id).unwrap();
            }
        }
        self.run();
        for op in self.sends.iter().chain(&self.recvs) {
            assert!(op.ended.is_some(), "operation {} has no end", op.number);
        }
        self.check_order();
        self.s.finish();
    }
}
