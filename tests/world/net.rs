//! The simulated fabric: connections whose operations take effect in order, late and in parts.

use std::collections::VecDeque;

use rdma_transport::engine::ChanId;
use rdma_transport::fabric::{Access, Mem, PostError, Remote};
use rdma_transport::protocol::message::Nonce;
use rdma_transport::status::{Code, Status};

use super::memory::Who;
use super::{Fate, World};

/// What a node finds when it polls.
pub enum NetEvent {
    Message(Vec<u8>),
    Written(u32),
    Done(u64, Result<(), Status>),
    Down(Status),
}

pub enum Op {
    Send(Vec<u8>),
    Write {
        wr: u64,
        local: Mem,
        remote: Remote,
        imm: Option<u32>,
        at: u64,
    },
    Read {
        wr: u64,
        local: Mem,
        remote: Remote,
        at: u64,
    },
    /// The end of the connection, behind what was sent.
    Fin,
}

impl Op {
    /// It takes a receive of the peer's.
    fn uses_receive(&self) -> bool {
        matches!(self, Op::Send(_) | Op::Write { imm: Some(_), .. })
    }

    fn moves_content(&self) -> bool {
        matches!(self, Op::Write { local, .. } | Op::Read { local, .. } if !local.is_empty())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Up,
    /// The adapter has reported, or will, that it went down.
    Down,
    /// Destroyed by its owner, or gone with it.
    Ended,
}

/// One end of a connection.
pub struct End {
    pub who: Who,
    pub ch: Option<ChanId>,
    pub life: Life,
    pub out: VecDeque<Op>,
    moving: bool,
    /// Operations that have ended and were not reported.
    pub done: VecDeque<NetEvent>,
    done_at: u64,
    /// What arrived before the owner knew of the connection.
    pub early: Vec<NetEvent>,
    /// Messages that the owner has not polled: each occupies a receive.
    pub unpolled: u32,
    /// Receives of the peer that it used, less those of writes that were refused.
    pub used: u32,
    pub mark: u64,
    /// The owner's network device.
    pub card: u8,
    /// How often it asked whether it may have its name.
    pub asked: u32,
}

/// A connection. The two ends live and die apart.
pub struct Conn {
    pub ends: [End; 2],
    /// The network swallows everything: the peer's host is gone without a word.
    pub silent: bool,
    /// It is to be a rail: of which channel of the first end, and by what name.
    pub rail: Option<(ChanId, Nonce)>,
}

impl End {
    fn new(who: Who) -> End {
        End {
            who,
            ch: None,
            life: Life::Up,
            out: VecDeque::new(),
            moving: false,
            done: VecDeque::new(),
            done_at: 0,
            early: Vec::new(),
            unpolled: 0,
            used: 0,
            asked: 0,
            mark: 0,
            card: 0,
        }
    }

    /// Nothing of it is under way.
    pub fn idle(&self) -> bool {
        self.ch.is_some() && self.out.is_empty() && self.done.is_empty()
    }
}

impl Conn {
    /// Nothing is under way between two ends that are both up, or the connection is over.
    pub fn idle(&self) -> bool {
        let up = |e: &End| e.life == Life::Up;
        match (up(&self.ends[0]), up(&self.ends[1])) {
            (true, true) => !self.silent && self.ends.iter().all(End::idle),
            (false, false) => true,
            _ => false,
        }
    }
}

fn gone() -> Status {
    Status::gone("the simulated connection went down")
}

impl<F: Fate> World<F> {
    pub fn new_conn(&mut self, a: Who, b: Who) -> usize {
        self.conns.push(Conn { ends: [End::new(a), End::new(b)], silent: false, rail: None });
        self.conns.len() - 1
    }

    /// The numbers of the network devices at both ends, as that of `side` sees them.
    pub fn cards(&self, conn: usize, side: usize) -> (u8, u8) {
        let ends = &self.conns[conn].ends;
        (ends[side].card, ends[1 - side].card)
    }

    /// Takes an operation from the engine.
    pub fn post(&mut self, node: usize, ch: ChanId, op: Op) -> Result<(), PostError> {
        let Some(&(conn, side)) = self.nodes[node].chans.get(&ch) else {
            panic!("node {node} posts on channel {ch:#x}, which has ended");
        };
        let depth = self.nodes[node].sq_depth;
        let end = &mut self.conns[conn].ends[side];
        if end.life != Life::Up {
            return Err(PostError::Failed(gone()));
        }
        if end.out.len() + end.done.len() >= depth {
            self.nodes[node].full = true;
            self.fate.meet("queue full");
            return Err(PostError::QueueFull);
        }
        end.used += u32::from(op.uses_receive());
        end.out.push_back(op);
        self.move_soon(conn, side);
        Ok(())
    }

    fn move_soon(&mut self, conn: usize, side: usize) {
        let end = &mut self.conns[conn].ends[side];
        if !end.moving && !end.out.is_empty() {
            end.moving = true;
            self.fate.moves(self.now, conn, side);
        }
    }

    /// The first operation of a direction takes effect, or a part of it.
    pub fn net(&mut self, conn: usize, side: usize) {
        self.conns[conn].ends[side].moving = false;
        if self.conns[conn].silent {
            return;
        }
        let peer = &self.conns[conn].ends[1 - side];
        if peer.life != Life::Up || !self.lives(peer.who) {
            return self.kill(conn, side, gone());
        }
        let Some(mut op) = self.conns[conn].ends[side].out.pop_front() else { return };
        let finished = match &mut op {
            Op::Send(bytes) => {
                let bytes = std::mem::take(bytes);
                self.deliver(conn, 1 - side, NetEvent::Message(bytes));
                true
            }
            Op::Fin => {
                self.kill(conn, 1 - side, gone());
                true
            }
            Op::Write { local, remote, at, imm, .. } => {
                let n = self.fate.part(local.len() - *at);
                match self.move_write(conn, side, (*local, *at, n), *remote) {
                    Ok(()) => *at += n,
                    Err(status) => return self.refused(conn, side, op, status),
                }
                let finished = *at == local.len();
                if let (true, Some(imm)) = (finished, *imm) {
                    self.deliver(conn, 1 - side, NetEvent::Written(imm));
                }
                finished
            }
            Op::Read { local, remote, at, .. } => {
                let n = self.fate.part(local.len() - *at);
                match self.move_read(conn, side, (*local, *at, n), *remote) {
                    Ok(()) => *at += n,
                    Err(status) => return self.refused(conn, side, op, status),
                }
                *at == local.len()
            }
        };
        // A message that has left says nothing of whoever should read it.
        let moved = u64::from(op.moves_content());
        let end = &mut self.conns[conn].ends[side];
        end.mark += moved;
        if finished {
            self.complete(conn, side, op, Ok(()));
        } else {
            end.out.push_front(op);
        }
        self.conns[conn].ends[1 - side].mark += moved;
        self.move_soon(conn, side);
    }

    fn move_write(
        &mut self,
        conn: usize,
        side: usize,
        (local, at, n): (Mem, u64, u64),
        remote: Remote,
    ) -> Result<(), Status> {
        let (from, to) = (self.conns[conn].ends[side].who, self.conns[conn].ends[1 - side].who);
        let key = (remote.rkey, self.conns[conn].ends[1 - side].card);
        if n == 0 {
            // No content is held to a key that it names, by adapters that look.
            let held = local.is_empty() && remote.rkey != 0 && self.nodes[to.node].caps.windows;
            return match held && !self.mem.allowed(key, to, remote.addr, 0, Access::REMOTE_WRITE) {
                true => Err(Status::new(Code::PermissionDenied, "write refused")),
                false => Ok(()),
            };
        }
        self.check_lkey(from, local, Access::empty());
        let from_device = self.mem.on_device(local.addr());
        let bytes = self.mem.read(from, from_device, local.addr() + at, n, "source of a write");
        // The whole range is checked, as adapters do.
        if !self.mem.allowed(key, to, remote.addr, local.len(), Access::REMOTE_WRITE) {
            return Err(Status::new(Code::PermissionDenied, "write refused"));
        }
        let to_device = self.mem.on_device(remote.addr);
        self.mem.write(to, to_device, remote.addr + at, bytes, "write of the peer");
        Ok(())
    }

    fn move_read(
        &mut self,
        conn: usize,
        side: usize,
        (local, at, n): (Mem, u64, u64),
        remote: Remote,
    ) -> Result<(), Status> {
        let (to, from) = (self.conns[conn].ends[side].who, self.conns[conn].ends[1 - side].who);
        let key = (remote.rkey, self.conns[conn].ends[1 - side].card);
        if !self.mem.allowed(key, from, remote.addr, local.len(), Access::REMOTE_READ) {
            return Err(Status::new(Code::PermissionDenied, "read refused"));
        }
        self.check_lkey(to, local, Access::LOCAL_WRITE);
        let (there, here) = (self.mem.on_device(remote.addr), self.mem.on_device(local.addr()));
        let bytes = self.mem.read(from, there, remote.addr + at, n, "read of the peer");
        self.mem.write(to, here, local.addr() + at, bytes, "destination of a read");
        Ok(())
    }

    fn check_lkey(&self, who: Who, local: Mem, access: Access) {
        if !self.nodes[who.node].caps.windows {
            let key = (local.lkey(), 0);
            let ok = self.mem.allowed(key, who, local.addr(), local.len(), access);
            assert!(ok, "local memory of an operation is not covered by its key");
        }
    }

    fn refused(&mut self, conn: usize, side: usize, op: Op, status: Status) {
        let windows = self.nodes[0].caps.windows;
        self.trace(|| format!("conn {conn}.{side}: {status}"));
        self.fate.meet("refused operation");
        // Without windows a refused operation costs the connection: the engine has to see to it
        // that none happens while both ends live.
        let end = &self.conns[conn].ends[1 - side];
        assert!(windows || end.life != Life::Up, "an operation was refused on a living connection");
        self.conns[conn].ends[side].used -= u32::from(op.uses_receive());
        self.complete(conn, side, op, Err(status));
        self.move_soon(conn, side);
    }

    fn complete(&mut self, conn: usize, side: usize, op: Op, result: Result<(), Status>) {
        if let Op::Write { wr, .. } | Op::Read { wr, .. } = op {
            let rail = self.conns[conn].rail.is_some() && op.moves_content();
            let further = self.conns[conn].ends.iter().any(|end| end.card > 0);
            let end = &mut self.conns[conn].ends[side];
            if end.life != Life::Up {
                return;
            }
            if rail && result.is_ok() {
                self.fate.meet("stripe over a rail");
                if further {
                    self.fate.meet("stripe between other devices");
                }
            }
            end.done.push_back(NetEvent::Done(wr, result));
            end.done_at = self.fate.completes(self.now, conn, side, end.done_at);
        } else {
            // Nothing reports that a send has left; whoever waits for room has to look again.
            self.wake_owner(conn, side);
        }
    }

    fn wake_owner(&mut self, conn: usize, side: usize) {
        let who = self.conns[conn].ends[side].who;
        if self.lives(who) && self.nodes[who.node].full {
            self.wake(who.node);
        }
    }

    pub fn completion(&mut self, conn: usize, side: usize) {
        let end = &mut self.conns[conn].ends[side];
        if let Some(event) = end.done.pop_front() {
            self.put(conn, side, event);
        }
    }

    fn put(&mut self, conn: usize, side: usize, event: NetEvent) {
        let end = &mut self.conns[conn].ends[side];
        if end.ch.is_none() {
            end.early.push(event);
            return;
        }
        let node = end.who.node;
        self.nodes[node].inbox.push_back((conn, side, event));
        self.wake(node);
    }

    fn deliver(&mut self, conn: usize, side: usize, event: NetEvent) {
        let end = &mut self.conns[conn].ends[side];
        if end.life != Life::Up {
            return;
        }
        end.unpolled += 1;
        let (n, depth) = (end.unpolled, self.nodes[end.who.node].caps.recv_depth);
        let who = end.who;
        assert!(n <= depth, "{who:?} has {n} messages to poll, its receive queue has {depth}");
        self.put(conn, side, event);
    }

    /// An end goes down: what was under way on it is reported first.
    pub fn kill(&mut self, conn: usize, side: usize, status: Status) {
        let end = &mut self.conns[conn].ends[side];
        if end.life != Life::Up {
            return;
        }
        end.life = Life::Down;
        let mut events: Vec<NetEvent> = end.done.drain(..).collect();
        for op in end.out.drain(..) {
            if let Op::Write { wr, .. } | Op::Read { wr, .. } = op {
                events.push(NetEvent::Done(wr, Err(status.clone())));
            }
        }
        let who = end.who;
        if events.iter().any(|e| matches!(e, NetEvent::Done(_, Err(_)))) {
            self.fate.meet("connection lost amid a write or read");
            if self.conns[conn].rail.is_some() {
                self.fate.meet("rail lost amid a stripe");
            }
        }
        self.trace(|| format!("conn {conn}.{side} of {who:?} goes down"));
        if !self.lives(who) {
            return;
        }
        events.push(NetEvent::Down(status));
        for event in events {
            self.put(conn, side, event);
        }
    }

    /// The owner destroys its end, or ends with it: nothing of it is touched from now on.
    pub fn end(&mut self, conn: usize, side: usize, word: bool) {
        let who = self.conns[conn].ends[side].who;
        let end = &mut self.conns[conn].ends[side];
        if end.life == Life::Ended {
            return;
        }
        end.life = Life::Ended;
        end.done.clear();
        end.early.clear();
        // Messages were copied when they were posted; some of them still arrive.
        let keep = if word && self.fate.last_words() { usize::MAX } else { 0 };
        let end = &mut self.conns[conn].ends[side];
        let sends = end.out.iter().take_while(|op| matches!(op, Op::Send(_))).count();
        end.out.truncate(sends.min(keep));
        end.out.push_back(Op::Fin);
        if let Some(ch) = end.ch {
            self.nodes[who.node].chans.remove(&ch);
        }
        self.nodes[who.node].inbox.retain(|&(c, s, _)| (c, s) != (conn, side));
        self.move_soon(conn, side);
    }
}
