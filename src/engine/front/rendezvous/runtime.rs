//! The runtime's own rendezvous as the source: it was asked, and answers.

use super::Sent;
use crate::api::*;
#[cfg(feature = "planted")]
use crate::engine::Planted;
use crate::engine::transfer::outbound::{Content, RState, Response};
use crate::engine::{Engine, Fx, Offer};
use crate::status::{Code, Status};

impl Engine {
    fn asked_of_runtime(&mut self, id: u64) -> Result<u32, Status> {
        let found = self.responses.occupant(id as u32).filter(|(_, r)| r.named.id == id);
        match found {
            Some((index, r)) if matches!(r.state, RState::Asking) => Ok(index),
            _ => {
                let text =
                    text!("response {id} is not known: answered, or given up by its receiver");
                Err(Status::new(Code::NotFound, text))
            }
        }
    }

    /// The runtime answers a request that was passed to its source callback.
    pub fn response_send(
        &mut self,
        fx: &mut impl Fx,
        id: u64,
        offer: Offer<'_>,
    ) -> Result<(), Status> {
        let Offer { tensor, content, done } = offer;
        let index = self.asked_of_runtime(id)?;
        if let Err(status) = self.device(tensor.device) {
            self.refuse(fx, index, &status);
            return Err(status);
        }
        let done = done.map(|done| self.due(done));
        let short = |r: &Response| r.asked.too_short(tensor.meta.nbytes);
        if self.responses.get(index).is_some_and(short) {
            // It is not put into the table, of which the runtime, having a rendezvous of its own, knows nothing.
            let Some(r) = self.responses.get(index) else { return Ok(()) };
            let (asked, info) = (r.asked.clone(), self.info(Some(r.peer), None, Protocol::Auto));
            let key = crate::room::key(&r.named.key).unwrap_or_default();
            let status = self.send_too_long(fx, &asked, &key, tensor.meta.nbytes);
            self.forget(index);
            self.end_send(fx, done, Err(status), info);
            self.settle(fx, asked.to.ch);
            return Ok(());
        }
        if let Some(r) = self.responses.get_mut(index) {
            r.no_table = true;
        }
        let sent = Sent { tensor, content: Content::new(), done, deadline: u64::MAX };
        self.answer(fx, index, sent, content);
        Ok(())
    }

    /// The runtime has no tensor for the request.
    pub fn response_fail(
        &mut self,
        fx: &mut impl Fx,
        id: u64,
        status: &Status,
    ) -> Result<(), Status> {
        let index = self.asked_of_runtime(id)?;
        #[cfg(feature = "planted")]
        if self.planted == Some(Planted::NeverEnds) {
            self.forget(index);
            return Ok(());
        }
        self.refuse(fx, index, status);
        Ok(())
    }
}
