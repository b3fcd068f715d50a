//! An endpoint, and the operations that it runs in their order.

use std::collections::VecDeque;
use std::sync::Arc;

use super::hub::{End, Item};
use super::mail::{Own, Read};
use super::out::Out;
use super::transfer::Rdma;
use crate::fabric::{EpId, Event};
use crate::status::{Code, Status};

/// What an endpoint does one after the other.
pub(super) enum Op {
    Send(Own<Item>),
    Rdma(Rdma),
}

/// One end of a connection.
pub(super) struct Endpoint {
    pub(super) peer: String,
    pub(super) me: Arc<End>,
    /// The endpoint given to `connect`.
    pub(super) out: Option<Out>,
    /// Tokens of those who have connected to this one.
    pub(super) hellos: Vec<u64>,
    pub(super) up: bool,
    /// It had its connection.
    pub(super) down: bool,
    pub(super) ops: VecDeque<Op>,
    /// What its peer has for it, in order.
    pub(super) inbox: VecDeque<Read<Item>>,
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
        if self.down || (self.up && self.out.is_some()) {
            return gone(&self.peer);
        }
        let text = text!("the loopback endpoint to peer '{}' is not connected", self.peer);
        Status::new(Code::FailedPrecondition, text)
    }

    /// Whether it is connected to the endpoint with this token, by its own word.
    #[inline]
    pub(super) fn is_with(&self, token: u64) -> bool {
        self.out.as_ref().is_some_and(|out| out.end.token == token)
    }

    /// Whether what that one has sent counts.
    #[inline]
    pub(super) fn hears(&self, token: u64) -> bool {
        self.up && self.is_with(token)
    }

    /// Runs operations in order while `budget` lasts; true if all are done.
    pub(super) fn run(&mut self, budget: &mut u64, ready: &mut VecDeque<Event>) -> bool {
        let Some(out) = &mut self.out else { return true };
        while let Some(op) = self.ops.front_mut() {
            let result = match op {
                Op::Send(_) => Ok(()),
                Op::Rdma(r) => {
                    let step = match r.failed.take() {
                        Some(status) => Err(status),
                        None => r.step(&out.end, budget, &self.peer),
                    };
                    match step {
                        Ok(true) => Ok(()),
                        Ok(false) => return false,
                        Err(status) => Err(status),
                    }
                }
            };
            match self.ops.pop_front() {
                Some(Op::Send(message)) => out.send(message),
                Some(Op::Rdma(r)) => {
                    match r.notice {
                        Some(notice) if result.is_ok() => out.send(notice),
                        Some(notice) => out.give_back(notice),
                        None => {}
                    }
                    ready.push_back(Event::Done { ep: EpId(self.me.id), wr: r.wr, result });
                }
                None => {}
            }
        }
        true
    }
}
