//! How a connection ends: what was posted is flushed, reported, and given back.

use rdma_sys::{ibv_send_flags, ibv_wr_opcode};

use crate::fabric::Event;
use crate::status::Status;

use super::super::qp::Wqe;
use super::super::send::SendPool;
use super::super::status;
use super::{Endpoint, MARKER, State};

impl Endpoint {
    /// Begins to end it because of `root`: what was posted is flushed, then `Event::Down` follows.
    pub fn fail(&mut self, root: Status, pool: &mut SendPool, events: &mut Vec<Event>) {
        if matches!(self.state, State::New | State::Connecting | State::Ready) {
            self.state = State::Failing(root);
            self.abandon();
        }
        self.settle(pool, events);
    }

    /// The same where `root` does not say why. What its completions say replaces it, if they come
    /// before the end.
    pub fn fail_for_now(&mut self, root: Status, pool: &mut SendPool, events: &mut Vec<Event>) {
        self.vague = matches!(self.state, State::New | State::Connecting | State::Ready);
        self.fail(root, pool, events);
    }

    /// Puts the queue pair into error and posts the marker behind all else.
    fn abandon(&mut self) {
        let Some(qp) = &self.qp else { return };
        let idle = self.posted.len() == self.batch.len();
        self.batch.clear();
        let mut marker = Wqe::new(ibv_wr_opcode::IBV_WR_SEND_WITH_IMM, MARKER);
        marker.flag(ibv_send_flags::IBV_SEND_SIGNALED);
        let result = qp.to_error().and_then(|()| {
            if idle || self.draining {
                return Ok(());
            }
            // SAFETY: it names no memory.
            match unsafe { qp.post(std::slice::from_mut(&mut marker)) } {
                (_, 0) => {
                    self.draining = true;
                    Ok(())
                }
                (_, n) => Err(Status::os("flushing", &std::io::Error::from_raw_os_error(n))),
            }
        });
        if let Err(e) = result {
            super::super::log_failure("end queue pair", &e.message);
            // Without it, nothing is under way.
            self.qp = None;
            self.draining = false;
        }
    }

    /// The device is lost: nothing will be flushed, so the queue pair goes first.
    pub fn lose(&mut self, root: Status, pool: &mut SendPool, events: &mut Vec<Event>) {
        self.qp = None;
        self.draining = false;
        self.batch.clear();
        if matches!(self.state, State::New | State::Connecting | State::Ready) {
            self.state = State::Failing(root);
        }
        self.settle(pool, events);
    }

    /// Fails what nobody will complete any more; reports the end when nothing is left.
    pub(super) fn settle(&mut self, pool: &mut SendPool, events: &mut Vec<Event>) {
        let State::Failing(root) = &self.state else { return };
        if self.draining {
            return;
        }
        let (root, result) = (root.clone(), status::flushed(root));
        self.batch.clear();
        while !self.posted.is_empty() {
            self.retire(Err(result.clone()), pool, events);
        }
        events.push(Event::Down { ep: self.id, status: status::down(&self.peer, &root) });
        self.state = State::Down(root);
    }

    /// Ends it for good, without events. `drain` takes completions until this endpoint has none
    /// under way or patience ends.
    pub fn close(&mut self, pool: &mut SendPool, drain: impl FnOnce(&mut Endpoint, &mut SendPool)) {
        if !self.draining {
            self.abandon();
        }
        drain(self, pool);
        // From here on the device touches nothing of it.
        self.qp = None;
        let mut unheard = Vec::new();
        while !self.posted.is_empty() {
            self.retire(Ok(()), pool, &mut unheard);
        }
    }
}
