//! Reliable-connection queue pairs: RESET, INIT, RTR, RTS, and ERROR when they end.

use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::*;

use crate::status::{Code, Status};

use super::address::{Address, LinkLayer};
use super::cq::Cq;
use super::mr::Pd;
use super::recv::Srq;
use super::{log_failure, sys};

/// Inline bytes to ask for, most wanted first: devices refuse what they lack.
const INLINE: [u32; 4] = [256, 128, 64, 0];
/// Time that a peer waits after "receiver not ready": code 12 is 0.64 ms.
pub(super) const RNR_TIMER: u8 = 12;
/// Without end. The peer's receive queue is empty only while the peer does not poll; when that has
/// lasted too long is for the layer above to say, which has deadlines and tells stalled from gone.
const RNR_RETRY: u8 = 7;
/// What peers may do where regions allow it.
pub(super) const ACCESS: ibv_access_flags = ibv_access_flags(
    ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0 | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0,
);
/// Routers that a packet may pass.
const HOP_LIMIT: u8 = 64;

/// A queue pair and all that it needs alive.
pub(super) struct Qp {
    raw: NonNull<ibv_qp>,
    max_inline: u32,
    pd: Arc<Pd>,
    _cq: Arc<Cq>,
    _srq: Option<Arc<Srq>>,
}

// SAFETY: libibverbs' functions on a queue pair may be called from any thread.
unsafe impl Send for Qp {}

/// What is to be made.
pub(super) struct QpDepth {
    /// Send work requests.
    pub send: u32,
    /// Receive work requests, where there is no shared receive queue.
    pub recv: u32,
}

fn blank() -> ibv_qp_attr {
    // SAFETY: all zeroes is a valid value of this plain struct.
    unsafe { std::mem::zeroed() }
}

impl Qp {
    /// A queue pair in RESET.
    pub fn new(
        pd: &Arc<Pd>,
        cq: &Arc<Cq>,
        srq: Option<&Arc<Srq>>,
        depth: &QpDepth,
    ) -> Result<Qp, Status> {
        let create = pd.context().verbs().create_qp;
        let mut error = None;
        for inline in INLINE {
            // SAFETY: all zeroes is a valid value of this plain struct.
            let mut a: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
            a.send_cq = cq.raw();
            a.recv_cq = cq.raw();
            a.srq = srq.map_or(std::ptr::null_mut(), |s| s.raw());
            a.cap.max_send_wr = depth.send;
            a.cap.max_recv_wr = if srq.is_some() { 0 } else { depth.recv };
            a.cap.max_send_sge = 1;
            a.cap.max_recv_sge = if srq.is_some() { 0 } else { 1 };
            a.cap.max_inline_data = inline;
            a.qp_type = ibv_qp_type::IBV_QPT_RC;
            // SAFETY: all objects named live, and the queue pair keeps them alive.
            if let Some(raw) = NonNull::new(unsafe { create(pd.raw(), &mut a) }) {
                return Ok(Qp {
                    raw,
                    max_inline: a.cap.max_inline_data,
                    pd: pd.clone(),
                    _cq: cq.clone(),
                    _srq: srq.cloned(),
                });
            }
            let e = sys::last_error();
            let again = matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ENOMEM));
            error = Some(e);
            if !again {
                break;
            }
        }
        let e = error.unwrap_or_else(sys::last_error);
        Err(Status::os(format!("queue pair of depth {}", depth.send), &e))
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        // SAFETY: a live queue pair.
        unsafe { self.raw.as_ref().qp_num }
    }
    /// Bytes that a work request may carry in itself.
    pub fn max_inline(&self) -> u32 {
        self.max_inline
    }

    /// Changes its state and what else the mask names.
    pub fn modify(
        &self,
        what: &str,
        a: &mut ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> Result<(), Status> {
        let rc =
            // SAFETY: a live queue pair and a filled-in struct.
            unsafe { (self.pd.context().verbs().modify_qp)(self.raw.as_ptr(), a, mask.0 as i32) };
        sys::check(rc).map_err(|e| Status::os(format!("queue pair to {what}"), &e))
    }

    /// RESET to INIT: peers may read and write where regions allow it.
    pub fn to_init(&self, port: u8, pkey_index: u16) -> Result<(), Status> {
        let mut a = blank();
        a.qp_state = ibv_qp_state::IBV_QPS_INIT;
        a.port_num = port;
        a.pkey_index = pkey_index;
        a.qp_access_flags = ACCESS.0;
        let m = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
            | ibv_qp_attr_mask::IBV_QP_PORT
            | ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS;
        self.modify("INIT", &mut a, m)
    }

    /// INIT to RTR: knows the peer.
    pub fn to_rtr(&self, path: &Path, local: &Address, remote: &Address) -> Result<(), Status> {
        let mut a = blank();
        a.qp_state = ibv_qp_state::IBV_QPS_RTR;
        a.path_mtu = u32::from(local.mtu.min(remote.mtu));
        a.dest_qp_num = remote.qpn;
        a.rq_psn = remote.psn;
        a.max_dest_rd_atomic = local.reads_in;
        a.min_rnr_timer = RNR_TIMER;
        a.ah_attr = path.to(local, remote);
        let m = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_AV
            | ibv_qp_attr_mask::IBV_QP_PATH_MTU
            | ibv_qp_attr_mask::IBV_QP_DEST_QPN
            | ibv_qp_attr_mask::IBV_QP_RQ_PSN
            | ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER;
        self.modify("RTR", &mut a, m).map_err(|e| unreachable_hint(e, local, remote))
    }

    /// RTR to RTS: may send.
    pub fn to_rts(&self, timeout: u8, retries: u8, psn: u32, reads_out: u8) -> Result<(), Status> {
        let mut a = blank();
        a.qp_state = ibv_qp_state::IBV_QPS_RTS;
        a.timeout = timeout;
        a.retry_cnt = retries;
        a.rnr_retry = RNR_RETRY;
        a.sq_psn = psn;
        a.max_rd_atomic = reads_out;
        let m = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_TIMEOUT
            | ibv_qp_attr_mask::IBV_QP_RETRY_CNT
            | ibv_qp_attr_mask::IBV_QP_RNR_RETRY
            | ibv_qp_attr_mask::IBV_QP_SQ_PSN
            | ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify("RTS", &mut a, m)
    }

    /// To ERROR: all that is posted is flushed.
    pub fn to_error(&self) -> Result<(), Status> {
        let mut a = blank();
        a.qp_state = ibv_qp_state::IBV_QPS_ERR;
        self.modify("ERROR", &mut a, ibv_qp_attr_mask::IBV_QP_STATE)
    }

    /// Posts a chain of send work requests: how many were taken, and errno if not all.
    ///
    /// # Safety
    /// Each request's local memory stays valid until its completion, or until the queue pair is
    /// destroyed.
    pub unsafe fn post(&self, chain: &mut [Wqe]) -> (usize, i32) {
        let n = chain.len();
        if n == 0 {
            return (0, 0);
        }
        let first = chain.as_mut_ptr();
        for i in 0..n {
            // SAFETY: inside the slice; the pointers are used only during this call.
            unsafe {
                let w = first.add(i);
                (*w).wr.sg_list = &raw mut (*w).sge;
                (*w).wr.next =
                    if i + 1 < n { &raw mut (*first.add(i + 1)).wr } else { std::ptr::null_mut() };
            }
        }
        let mut bad: *mut ibv_send_wr = std::ptr::null_mut();
        // SAFETY: a live queue pair and a NULL-terminated chain.
        let rc = unsafe { ibv_post_send(self.raw.as_ptr(), &raw mut (*first).wr, &mut bad) };
        if rc == 0 {
            return (n, 0);
        }
        let taken = chain.iter().position(|w| std::ptr::eq(&w.wr, bad)).unwrap_or(0);
        (taken, rc.abs())
    }

    /// Posts one receive of `len` bytes at `addr`; for queue pairs without a shared queue.
    ///
    /// # Safety
    /// The memory stays valid until the receive's completion or the queue pair's end.
    pub unsafe fn post_recv(&self, wr: &mut ibv_recv_wr) -> Result<(), std::io::Error> {
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live queue pair and a NULL-terminated chain.
        sys::check(unsafe { ibv_post_recv(self.raw.as_ptr(), wr, &mut bad) })
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        if self.pd.context().forked() {
            return;
        }
        // SAFETY: created once, destroyed once.
        if unsafe { (self.pd.context().verbs().destroy_qp)(self.raw.as_ptr()) } != 0 {
            log_failure("destroy queue pair", self.pd.context().name());
        }
    }
}

/// A send work request with its one scatter/gather element.
#[repr(C)]
pub(super) struct Wqe {
    /// The request; its pointers are set when it is posted.
    pub wr: ibv_send_wr,
    /// Its local memory.
    pub sge: ibv_sge,
}

// SAFETY: its pointers are set and used only within `Qp::post`.
unsafe impl Send for Wqe {}

impl Wqe {
    /// An empty request of this kind.
    pub fn new(opcode: ibv_wr_opcode::Type, id: u64) -> Wqe {
        // SAFETY: all zeroes is a valid value of both plain structs.
        let mut w: Wqe = unsafe { std::mem::zeroed() };
        w.wr.opcode = opcode;
        w.wr.wr_id = id;
        w
    }
    /// Sets the local memory.
    pub fn local(&mut self, addr: u64, len: u32, lkey: u32) {
        self.sge = ibv_sge { addr, length: len, lkey };
        self.wr.num_sge = i32::from(len != 0);
    }
    /// Sets the peer's memory.
    pub fn remote(&mut self, addr: u64, rkey: u32) {
        self.wr.wr.rdma = rdma_t { remote_addr: addr, rkey };
    }
    /// Sets the immediate.
    pub fn immediate(&mut self, imm: u32) {
        self.wr.imm_data_invalidated_rkey_union.imm_data = imm.to_be();
    }
    /// Adds flags.
    pub fn flag(&mut self, flags: ibv_send_flags) {
        self.wr.send_flags |= flags.0;
    }
}

/// How packets leave this end.
pub(super) struct Path {
    /// Port.
    pub port: u8,
    /// Index of our GID.
    pub gid_index: u8,
    /// Service level.
    pub sl: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

impl Path {
    /// The address vector to `remote`. On InfiniBand, which is one subnet here, LIDs suffice unless one of
    /// the ports asks for more; on Ethernet packets carry a global route header.
    fn to(&self, local: &Address, remote: &Address) -> ibv_ah_attr {
        // SAFETY: all zeroes is a valid value of this plain struct.
        let mut ah: ibv_ah_attr = unsafe { std::mem::zeroed() };
        ah.port_num = self.port;
        ah.sl = self.sl;
        ah.dlid = remote.lid;
        if needs_grh(local, remote) {
            ah.is_global = 1;
            ah.grh.dgid = ibv_gid { raw: remote.gid };
            ah.grh.sgid_index = self.gid_index;
            ah.grh.hop_limit = HOP_LIMIT;
            ah.grh.traffic_class = self.traffic_class;
        }
        ah
    }
}

fn needs_grh(local: &Address, remote: &Address) -> bool {
    local.link == LinkLayer::Ethernet || local.grh_required || remote.grh_required
}

fn unreachable_hint(e: Status, local: &Address, remote: &Address) -> Status {
    use super::gid::text;
    let hint = text!(
        "{}; from GID {} to {}: is there a route between them?",
        e.message,
        text(&local.gid),
        text(&remote.gid)
    );
    e.with_code(Code::Unavailable).with_message(hint)
}

#[cfg(test)]
mod tests {
    use super::super::gid::GidKind;
    use super::*;

    fn end(link: LinkLayer, prefix: u8) -> Address {
        let mut gid = [0; 16];
        gid[0] = prefix;
        let gid_kind = GidKind::Ib;
        let grh_required = false;
        let (mtu, reads_in, device, lid, qpn, psn) = (5, 1, 0, 7, 2, 0);
        Address { link, gid_kind, mtu, reads_in, grh_required, device, lid, qpn, psn, gid }
    }

    #[test]
    fn lids_without_route_header_where_no_port_asks_for_one() {
        let path = Path { port: 1, gid_index: 3, sl: 2, traffic_class: 104 };
        let a = end(LinkLayer::InfiniBand, 0xfe);
        assert_eq!(path.to(&a, &a).is_global, 0);
        assert_eq!(path.to(&a, &a).dlid, 7);
        let virtual_port = Address { grh_required: true, ..a };
        for (from, to) in [(a, virtual_port), (virtual_port, a)] {
            let ah = path.to(&from, &to);
            assert_eq!((ah.is_global, ah.grh.sgid_index, ah.grh.traffic_class), (1, 3, 104));
            assert_eq!(ah.dlid, 7);
        }
        let eth = end(LinkLayer::Ethernet, 0xfe);
        assert_eq!(path.to(&eth, &eth).is_global, 1);
        assert!(path.to(&eth, &eth).grh.hop_limit > 1);
    }

    #[test]
    fn layouts_are_those_of_c() {
        assert_eq!(size_of::<ibv_wc>(), 48);
        assert_eq!(size_of::<ibv_send_wr>(), 128);
        assert_eq!(size_of::<ibv_sge>(), 16);
    }
}
