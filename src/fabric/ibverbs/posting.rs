//! Work requests on their way: to the queue of an endpoint, and from there to the device.

use crate::fabric::{EpId, Mem, PostError};
use crate::status::{Code, Status};

use super::adapter::IbverbsAdapter;
use super::endpoint::Endpoint;
use super::send::SendPool;

impl IbverbsAdapter {
    /// Runs a post on an endpoint and remembers to flush it.
    pub(super) fn post(
        &mut self,
        ep: EpId,
        f: impl FnOnce(&mut Endpoint, &mut SendPool) -> Result<bool, PostError>,
    ) -> Result<(), PostError> {
        self.own_process().map_err(PostError::Failed)?;
        let Some(e) = self.endpoints.get_mut(&ep.0) else {
            let s = Status::new(Code::NotFound, text!("endpoint {} does not exist", ep.0));
            return Err(PostError::Failed(s));
        };
        if f(e, &mut self.send)? {
            self.dirty.push(ep.0);
        }
        Ok(())
    }

    pub(super) fn check_len(&self, what: &str, local: &Mem) -> Result<(), PostError> {
        let n = local.len();
        if n > self.caps.max_rdma {
            let max = self.caps.max_rdma;
            let s = Status::invalid(text!("{what} of {n} bytes; at most {max} are allowed"));
            return Err(PostError::Failed(s));
        }
        Ok(())
    }

    /// Hands to the device what was posted.
    pub(super) fn ring(&mut self) {
        if self.dirty.is_empty() || self.context.forked() {
            return;
        }
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.retain(|id| {
            let Some(ep) = self.endpoints.get_mut(id) else { return false };
            ep.flush(&mut self.send, &mut self.ready);
            ep.waiting()
        });
        self.dirty = dirty;
    }

    /// Posts received buffers again.
    pub(super) fn repost(&mut self) {
        let (recv, endpoints, by_qpn) = (&mut self.recv, &self.endpoints, &self.by_qpn);
        let posted = recv.repost(|qpn| endpoints.get(by_qpn.get(&qpn)?)?.qp());
        if posted.is_err() && self.lost.is_none() {
            self.device_lost("receives cannot be posted");
        }
    }
}
