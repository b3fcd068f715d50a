//! A receive from oneself: it meets the tensor in the table, or waits there.

use super::{RecvOutcome, Sent, Waiter};
use crate::api::{Protocol, Target};
use crate::engine::transfer::inbound::State;
use crate::engine::{Engine, Fx};
use crate::status::{Code, Status};

impl Engine {
    /// Meets the tensor of ours that is there, or waits for it.
    pub(super) fn recv_local(&mut self, fx: &mut impl Fx, index: u32) -> Result<(), Status> {
        let tolerate = self.settings.tolerate_dup_recv;
        let Some(r) = self.requests.get_mut(index) else { return Ok(()) };
        r.state = State::LocalWait;
        r.protocol = Protocol::Local;
        let (key, step) = (&r.named.key, r.named.step);
        match self.table.recv(key, step, tolerate) {
            RecvOutcome::Nobody(free) => {
                self.table.wait(free, key, step, Waiter::Local(index));
                Ok(())
            }
            RecvOutcome::Matched(sent) => {
                self.deliver_local(fx, index, sent);
                Ok(())
            }
            RecvOutcome::Duplicate => Err(Status::new(
                Code::Aborted,
                text!(
                    "duplicate receive: '{}' of step {step} is awaited already",
                    crate::shown::key(key)
                ),
            )),
            RecvOutcome::Refused(status) => Err(status),
        }
    }

    /// A receive of ours has a tensor of ours, or, if it has too little room, the next who waits for one.
    pub(in crate::engine) fn deliver_local(&mut self, fx: &mut impl Fx, index: u32, sent: Sent) {
        let (mut index, mut sent) = (index, sent);
        // A loop, not a recursion: very many receives with too little room may wait.
        while self.has_too_little_room(index, &sent) {
            match self.put_back(fx, index, sent) {
                Some(next) => (index, sent) = next,
                None => return,
            }
        }
        self.receive_local(fx, index, sent);
    }

    fn has_too_little_room(&self, index: u32, sent: &Sent) -> bool {
        let target = self.requests.get(index).map(|r| &r.target);
        matches!(target, Some(Target::Given { len, .. }) if sent.tensor.meta.nbytes > *len)
    }

    /// Fails a receive with too little room. The tensor goes to the next who waits, which is
    /// returned if it is one of ours, or to the table.
    fn put_back(&mut self, fx: &mut impl Fx, index: u32, sent: Sent) -> Option<(u32, Sent)> {
        let r = self.requests.get_mut(index)?;
        let (key, step) = match crate::room::key(&r.named.key) {
            Ok(key) => (key, r.named.step),
            Err(status) => {
                self.local_failed(fx, index, sent, status);
                return None;
            }
        };
        let room = if let Target::Given { len, .. } = r.target { len } else { 0 };
        let text = text!(
            "tensor '{}' has {} bytes, the destination given has {room}",
            crate::shown::key(&key),
            sent.tensor.meta.nbytes
        );
        self.fail(fx, index, Status::new(Code::OutOfRange, text));
        let status = Status::new(Code::Cancelled, "the receiver had too little room");
        match self.offer_again(fx, &key, step, sent, status)? {
            (Waiter::Local(next), sent) => Some((next, sent)),
            (Waiter::Remote(next), sent) => {
                self.answer(fx, next, sent, &[]);
                None
            }
        }
    }
}
