//! The end of a scenario, after which nothing may be left.

use super::common::net::Life;
use super::ops::{Into, K, RecvId, Tell};
use super::stage::Stage;

/// Credits that are kept for their own return.
const RESERVED: u32 = 2;

impl Stage {
    /// Ends the scenario: nothing may be left, now, and after both nodes have ended.
    pub fn finish(&mut self) {
        self.failing.clear();
        self.w.fate.failing.clear();
        self.w.fate.part = None;
        self.stalled = [false; 2];
        self.let_all_go();
        self.nothing_left("when all has ended");
        self.credits_are_whole();
        for node in [0, 1] {
            if self.engines[node].is_some() && !self.w.nodes[node].closing {
                self.shut_down(node);
            }
        }
        self.run();
        let kept: usize = [0, 1].map(|node| self.buffers_kept(node)).iter().sum();
        assert_eq!(kept, 0, "persistent buffers outlive their connection");
        self.nothing_left("when both have ended");
    }

    fn nothing_left(&self, when: &str) {
        for (i, s) in self.sends.iter().enumerate() {
            assert!(s.ended.is_some(), "send {i} has no end {when}");
        }
        for (i, r) in self.recvs.iter().enumerate() {
            assert!(r.ended.is_some(), "receive {i} has no end {when}");
        }
        for node in [0, 1].into_iter().filter(|&n| self.engines[n].is_some()) {
            let who = self.w.who(node);
            assert_eq!(self.outstanding(node), [0; 4], "node {node} {when}");
            assert_eq!(self.owes(node), (0, 0), "node {node} owes {when}");
            let kept = self.buffers_kept(node);
            let live = self.w.mem.library_live(who);
            assert_eq!(live.len(), kept, "{live:?}: buffers left {when}, {kept} are persistent");
            let windows =
                if self.w.nodes[node].caps.windows { self.buffers_given(node) } else { 0 };
            assert_eq!(self.w.mem.owned_open(who), windows, "windows left open {when}");
            assert!(!self.has_pending(node), "node {node}: posts wait {when}");
            let (begun, ended) = (self.w.nodes[node].recvs_begun, self.w.nodes[node].recvs_ended);
            assert_eq!(begun, ended, "node {node}: receives begun and ended {when}");
        }
    }

    /// Where a connection lives: each side may send as many messages as its peer's receive queue has left
    /// by the account of the wire, less the reserve. So no credit was lost or made up.
    fn credits_are_whole(&mut self) {
        let up = |s: &Stage, conn: usize| {
            s.w.conns[conn].ends.iter().all(|e| e.life == Life::Up && s.w.lives(e.who))
        };
        let live: Vec<usize> = (0..self.w.conns.len()).filter(|&c| up(self, c)).collect();
        let closing = self.w.nodes.iter().any(|n| n.closing);
        let (&[conn], false, true) = (&live[..], closing, self.setup.sq_depth > 63) else { return };
        for node in [0, 1] {
            let side = self.side(conn, node);
            let back = self.returned.get(&(conn, side)).copied().unwrap_or(0);
            let depth = self.w.nodes[1 - node].caps.recv_depth;
            let free = depth + back - self.w.conns[conn].ends[side].used;
            let keys: Vec<String> = (0..depth + 3).map(|i| format!("credit {i}")).collect();
            let asked: Vec<RecvId> = keys
                .iter()
                .map(|key| {
                    let of = Tell { key, step: 99, ..K };
                    self.recv(node, of, Into::Library)
                })
                .collect();
            let out = self.w.conns[conn].ends[side].out.len() as u32;
            assert_eq!(out + RESERVED, free, "node {node}: messages that its credits allow");
            asked.into_iter().for_each(|r| self.cancel(r).unwrap());
            self.run();
        }
        self.nothing_left("after the credits were counted");
    }
}
