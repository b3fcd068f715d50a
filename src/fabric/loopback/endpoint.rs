//! An endpoint, and the operations that it runs in their order.

use std::collections::VecDeque;
use std::sync::Arc;

use super::hub::{End, Item, What};
use super::transfer::Rdma;
use crate::fabric::{EpId, Event};
use crate::status::{Code, Status};

/// What an endpoint does one after the other.
pub(super) enum Op {
    Send(Box<[u8]>),
    Rdma(Rdma),
}

/// One end of a connection.
pub(super) struct Endpoint {
    pub(super) peer: String,
    pub(super) me: Arc<End>,
    /// The endpoint given to `connect`.
    pub(super) remote: Option<Arc<End>>,
    /// Tokens of those who have connected to this one.
    pub(super) hellos: Vec<u64>,
    pub(super) up: bool,
    /// It had its connection.
    pub(super) down: bool,
    pub(super) ops: VecDeque<Op>,
    /// What its peer has for it, in order.
    pub(super) inbox: VecDeque<Item>,
    /// WRITEs and READs accepted and not reported.
    pub(super) under_way: usize,
    /// A piece of this operation is being moved.
    pub(super) moving: Option<u64>,
}

/// The peer has closed its end.
pub(super) fn gone(peer: &str) -> Status {
    Status::gone(text!("the loopback endpoint of peer '{peer}' is gone"))
}

impl Endpoint {
    /// Why nothing can be posted here.
    #[cold]
    pub(super) fn not_up(&self) -> Status {
        // Whoever posts may not have heard of its end yet.
        if self.down || (self.up && self.remote.is_some()) {
            return gone(&self.peer);
        }
        let text = text!("the loopback endpoint to peer '{}' is not connected", self.peer);
        Status::new(Code::FailedPrecondition, text)
    }

    /// Runs operations in order while `budget` lasts; true if all are done.
    pub(super) fn run(&mut self, budget: &mut u64, ready: &mut VecDeque<Event>) -> bool {
        let Some(remote) = self.remote.clone() else { return true };
        while let Some(op) = self.ops.front_mut() {
            let r = match op {
                Op::Send(bytes) => {
                    let bytes = std::mem::take(bytes);
                    self.ops.pop_front();
                    self.tell(&remote, What::Message(bytes));
                    continue;
                }
                Op::Rdma(r) => r,
            };
            let result =
                match r.failed.take().map_or_else(|| r.step(&remote, budget, &self.peer), Err) {
                    Ok(true) => Ok(()),
                    Ok(false) => return false,
                    Err(status) => Err(status),
                };
            let (wr, imm) = (r.wr, r.imm);
            self.ops.pop_front();
            match imm {
                Some(imm) if result.is_ok() => self.tell(&remote, What::Written(imm)),
                Some(_) => remote.release(0),
                None => {}
            }
            ready.push_back(Event::Done { ep: EpId(self.me.id), wr, result });
        }
        true
    }

    pub(super) fn tell(&self, remote: &End, what: What) {
        remote.hub.push(Item { to: remote.id, from: self.me.token, what });
    }
}
