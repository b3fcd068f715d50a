//! What leaves this front end, by word of the transfer layer: an end of a transfer that is over, or a tensor that did not fit.

use super::keys::Key;
use super::{Named, Sent, Waiter};
use crate::engine::list::Links;
use crate::engine::transfer::inbound::Request;
use crate::engine::transfer::outbound::{RState, Response};
use crate::engine::{Engine, Fx};
use crate::status::Status;

/// What refers to one end of a transfer here, once it has left the slab.
pub(in crate::engine) struct Place {
    step: i64,
    in_step: Links,
    key: Key,
}

impl Named {
    /// What is to be unlinked; the key is gone from here.
    #[inline(always)]
    pub fn take_place(&mut self) -> Place {
        Place { step: self.step, in_step: self.in_step, key: std::mem::take(&mut self.key) }
    }
}

/// A request's links in its step.
#[inline]
pub(super) fn request_in_step(r: &mut Request) -> &mut Links {
    &mut r.named.in_step
}

/// A response's links in its step.
#[inline]
pub(super) fn response_in_step(r: &mut Response) -> &mut Links {
    &mut r.named.in_step
}

impl Engine {
    /// A request has left the slab: so it does its step.
    #[inline(always)]
    pub(in crate::engine) fn unlink_request(&mut self, index: u32, place: Place) {
        let Place { step, in_step, key } = place;
        if let Some(members) = self.table.members_of(step) {
            members.requests.remove(&mut self.requests, request_in_step, index, in_step);
            self.table.left(step);
        }
        self.table.keys().give(key);
    }

    /// The same of a response.
    #[inline(always)]
    pub(in crate::engine) fn unlink_response(&mut self, index: u32, place: Place) {
        let Place { step, in_step, key } = place;
        if let Some(members) = self.table.members_of(step) {
            members.responses.remove(&mut self.responses, response_in_step, index, in_step);
            self.table.left(step);
        }
        self.table.keys().give(key);
    }

    /// A receive from oneself waits for its tensor no more.
    pub(in crate::engine) fn wait_no_more(&mut self, index: u32) {
        let Some(r) = self.requests.get(index) else { return };
        let hash = self.table.hash(&r.named.key);
        self.table.remove_waiter(hash, r.named.step, Waiter::Local(index));
    }

    /// The receiver of a response that has no tensor yet is gone, or wants it no more: the runtime hears of it, if it was
    /// asked.
    pub(in crate::engine) fn forget_unmet(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        status: &Status,
    ) {
        let Some(r) = self.responses.get(index) else { return };
        match r.state {
            RState::Waiting(hash) => {
                self.table.remove_waiter(hash, r.named.step, Waiter::Remote(index));
                self.forget(index);
            }
            RState::Asking => {
                let id = r.named.id;
                self.forget(index);
                self.ended_early(fx, id, status);
            }
            _ => {}
        }
    }

    /// The receiver of a response has too little room: its tensor goes to the next who waits for it, or back to the
    /// table.
    pub(in crate::engine) fn forget_and_hand_on(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        sent: Sent,
        status: Status,
    ) {
        let Some(r) = self.responses.get_mut(index) else { return };
        let (key, step) = (std::mem::take(&mut r.named.key), r.named.step);
        self.forget(index);
        self.hand_on(fx, &key, step, sent, status);
        self.table.keys().give(key);
    }
}
