//! The end of a step: whatever of it is under way is given up.

use super::{Drained, Sent, Waiter};
use crate::api::*;
use crate::engine::transfer::outbound::Response;
use crate::engine::{Engine, Fx};
use crate::status::{Code, Reason, Status};

impl Engine {
    /// Ends everything of a step with this status, now and until it is cleaned up.
    pub fn step_abort(
        &mut self,
        fx: &mut impl Fx,
        step: i64,
        status: Status,
    ) -> Result<(), Status> {
        if status.code == Code::Ok {
            return Err(Status::invalid("a step cannot be aborted with OK"));
        }
        let status = status.because(Reason::StepAborted);
        let drained = self.table.abort(step, status.clone())?;
        self.stats.own.steps_aborted.add(1);
        self.give_up(fx, step, drained, &status);
        Ok(())
    }

    /// Forgets a step. What is still under way in it is aborted.
    #[inline]
    pub fn step_cleanup(&mut self, fx: &mut impl Fx, step: i64) -> Result<(), Status> {
        if !self.end_of_empty_step(step) {
            self.end_step(fx, step);
        }
        Ok(())
    }

    /// Forgets a step in which there is nothing: the usual end, and nobody is to be told why. False: there is something.
    #[inline]
    pub fn end_of_empty_step(&mut self, step: i64) -> bool {
        self.table.end_of_empty(step)
    }

    #[inline(never)]
    fn end_step(&mut self, fx: &mut impl Fx, step: i64) {
        let drained = self.table.cleanup(step);
        // It was aborted, and what was in it has ended.
        if drained.is_empty() && !self.is_under_way(step) {
            return;
        }
        let text = text!("step {step} was cleaned up");
        let status = Status::new(Code::Aborted, text).because(Reason::StepAborted);
        self.give_up(fx, step, drained, &status);
    }

    /// Whether requests or responses of a step are under way.
    fn is_under_way(&mut self, step: i64) -> bool {
        self.table.members_of(step).is_some_and(|members| !members.is_empty())
    }

    fn give_up(&mut self, fx: &mut impl Fx, step: i64, drained: Drained, status: &Status) {
        self.give_up_drained(fx, drained, status);
        let mut at = self.first_response(step);
        while let Some(index) = at {
            let next = self.responses.get(index).and_then(|r| r.named.in_step.next());
            if self.responses.get(index).is_some_and(Response::is_asking) {
                self.refuse_asked(fx, index, status);
            } else if let Some(r) = self.responses.get_mut(index) {
                // It goes on; what its receiver leaves does not come to a step that is over.
                r.no_table = true;
            }
            // One that ended with this one is no way on; each time, there are fewer.
            let gone = next.is_some_and(|n| self.responses.get(n).is_none());
            at = if gone { self.first_response(step) } else { next };
        }
        at = self.first_request(step);
        while let Some(index) = at {
            let next = self.requests.get(index).and_then(|r| r.named.in_step.next());
            self.end(fx, index, status.clone());
            let gone = next.is_some_and(|n| self.requests.get(n).is_none());
            at = if gone { self.first_request(step) } else { next };
        }
    }

    fn first_response(&mut self, step: i64) -> Option<u32> {
        self.table.members_of(step)?.responses.first()
    }

    fn first_request(&mut self, step: i64) -> Option<u32> {
        self.table.members_of(step)?.requests.first()
    }

    pub(in crate::engine) fn give_up_drained(
        &mut self,
        fx: &mut impl Fx,
        drained: Drained,
        status: &Status,
    ) {
        // Two closures, of which one runs at a time.
        let both = std::cell::RefCell::new((self, fx));
        let tensor = |sent: Sent| {
            let (engine, fx) = &mut *both.borrow_mut();
            let info = engine.info(None, None, Protocol::Auto);
            engine.end_send(*fx, sent.done, Err(status.clone()), info);
        };
        let waiter = |waiter| {
            let (engine, fx) = &mut *both.borrow_mut();
            match waiter {
                Waiter::Local(index) => engine.fail(*fx, index, status.clone()),
                Waiter::Remote(index) => engine.refuse(*fx, index, status),
            }
        };
        drained.end(tensor, waiter);
    }
}
