//! What is on its way between the two nodes: looked at, moved, repeated, seen.

use super::common::net::{Life, NetEvent, Op};
use super::kind::{self, Kind};
use super::script::{R, S};
use super::stage::Stage;

impl Stage {
    /// What a node has posted on the last connection and has not taken effect.
    pub fn wire(&self, node: usize) -> Vec<Kind> {
        let conn = self.conn();
        self.w.conns[conn].ends[self.side(conn, node)].out.iter().map(kind::of).collect()
    }

    /// Messages of a node that arrived, of this kind.
    pub fn count(&self, node: usize, kind: Kind) -> usize {
        self.arrived.iter().filter(|(n, k, _)| (*n, *k) == (node, kind)).count()
    }

    /// The last message of this kind that a node sent.
    fn last(&self, node: usize, kind: Kind) -> &[u8] {
        let last = self.arrived.iter().rfind(|(n, k, _)| (*n, *k) == (node, kind));
        &last.expect("nothing of this kind arrived").2
    }

    /// The numbers of the buffer that was used last: the sender's, the receiver's.
    pub fn numbers_of_buffer(&self) -> (u32, u32) {
        let (idle, write) = (self.last(R, Kind::BufferIdle), self.last(S, Kind::TensorWrite));
        (kind::number_of_buffer(idle), kind::number_of_buffer(write))
    }

    /// Where the last buffer lies that a node gave.
    pub fn given_to(&self, node: usize) -> u64 {
        kind::place_of_buffer(self.last(node, Kind::BufferResponse))
    }

    /// The next operation of a node takes effect though it is held, or a part of it; and is seen.
    pub fn step(&mut self, node: usize) {
        self.step_on(self.conn(), node);
    }

    /// The same on this connection.
    pub fn step_on(&mut self, conn: usize, node: usize) {
        self.advance(conn, self.side(conn, node));
        self.poll(0);
        self.poll(1);
    }

    /// The last message of this kind that a node sent arrives again.
    pub fn repeat(&mut self, node: usize, kind: Kind) {
        let bytes = self.last(node, kind).to_vec();
        self.inject(node, bytes);
    }

    /// A message arrives as if a node had sent it.
    pub fn inject(&mut self, node: usize, bytes: Vec<u8>) {
        let conn = self.conn();
        let side = 1 - self.side(conn, node);
        self.w.conns[conn].ends[side].unpolled += 1;
        self.w.nodes[1 - node].inbox.push_back((conn, side, NetEvent::Message(bytes)));
        self.poll(1 - node);
    }

    pub fn advance(&mut self, conn: usize, side: usize) {
        let end = &self.w.conns[conn].ends[side];
        if let Some(Op::Send(bytes)) = end.out.front() {
            let (node, bytes) = (end.who.node, bytes.clone());
            self.w.trace(|| format!("node {node}: {:?}", kind::kind(&bytes)));
            self.arrived.push((node, kind::kind(&bytes), bytes));
        }
        self.w.net(conn, side);
    }

    pub fn move_one(&mut self) -> bool {
        for conn in 0..self.w.conns.len() {
            for side in [0, 1] {
                let c = &self.w.conns[conn];
                let (end, peer) = (&c.ends[side], &c.ends[1 - side]);
                let Some(front) = end.out.front() else { continue };
                let over = end.life != Life::Up && peer.life != Life::Up;
                if c.silent || over || !self.may(end.who.node, kind::of(front)) {
                    continue;
                }
                self.advance(conn, side);
                return true;
            }
        }
        false
    }

    pub fn complete_one(&mut self) -> bool {
        for conn in 0..self.w.conns.len() {
            for side in [0, 1] {
                let end = &self.w.conns[conn].ends[side];
                if !end.done.is_empty() && self.may(end.who.node, Kind::Done) {
                    self.w.completion(conn, side);
                    return true;
                }
            }
        }
        false
    }

    pub fn poll_one(&mut self) -> bool {
        [0, 1].into_iter().any(|node| self.poll(node))
    }

    /// A node sees what arrived. Whether it did.
    pub fn poll(&mut self, node: usize) -> bool {
        let mut any = false;
        while !self.stalled[node]
            && let Some((conn, side, event)) = self.w.nodes[node].inbox.pop_front()
        {
            any = true;
            self.receives(conn, side, node, &event);
            let ch = self.w.conns[conn].ends[side].ch.unwrap();
            self.event(node, ch, event);
        }
        if self.w.nodes[node].up && std::mem::take(&mut self.w.nodes[node].full) {
            self.flush(node);
        }
        any
    }

    /// Keeps account of receives and of credits.
    fn receives(&mut self, conn: usize, side: usize, node: usize, event: &NetEvent) {
        let back = match event {
            NetEvent::Message(bytes) => kind::returned(bytes),
            NetEvent::Written(imm) if kind::is_ack(*imm) => {
                self.w.nodes[1 - node].caps.recv_depth / 2
            }
            NetEvent::Written(_) => 0,
            NetEvent::Done(..) | NetEvent::Down(_) => return,
        };
        self.w.conns[conn].ends[side].unpolled -= 1;
        *self.returned.entry((conn, side)).or_default() += back;
    }
}
