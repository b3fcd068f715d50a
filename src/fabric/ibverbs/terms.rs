//! This end's settings beside what rdma_cm resolved.

use rdma_sys::{ibv_qp_attr, ibv_qp_state};

use super::qp;

/// Limits and settings of a connection.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    /// READs answered at once.
    pub reads_in: u8,
    /// READs under way.
    pub reads_out: u8,
    /// Retransmissions.
    pub retries: u8,
    /// Retransmission timeout code.
    pub timeout: u8,
    /// Service level; 0 is the one that rdma_cm resolved.
    pub sl: u8,
    /// Traffic class; 0 is the one that rdma_cm resolved.
    pub traffic_class: u8,
    /// Largest MTU code.
    pub mtu: u8,
}

impl Terms {
    /// Puts this end's settings and limits into what rdma_cm resolved, for the state that it names.
    pub fn apply(&self, a: &mut ibv_qp_attr) {
        a.path_mtu = a.path_mtu.min(u32::from(self.mtu));
        match a.qp_state {
            ibv_qp_state::IBV_QPS_INIT => a.qp_access_flags = qp::ACCESS.0,
            ibv_qp_state::IBV_QPS_RTR => {
                if self.sl != 0 {
                    a.ah_attr.sl = self.sl;
                }
                if self.traffic_class != 0 {
                    a.ah_attr.grh.traffic_class = self.traffic_class;
                }
                a.max_dest_rd_atomic = a.max_dest_rd_atomic.min(self.reads_in);
                a.min_rnr_timer = qp::RNR_TIMER;
            }
            _ => {
                a.max_rd_atomic = a.max_rd_atomic.min(self.reads_out);
                a.timeout = self.timeout;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_resolved_stays_but_for_settings_and_limits() {
        let resolved = |state| {
            // SAFETY: all zeroes is a valid value of this plain struct.
            let mut a: ibv_qp_attr = unsafe { std::mem::zeroed() };
            (a.qp_state, a.path_mtu, a.ah_attr.sl, a.ah_attr.grh.traffic_class) = (state, 5, 3, 96);
            (a.max_dest_rd_atomic, a.max_rd_atomic, a.pkey_index, a.port_num) = (200, 200, 4, 2);
            a
        };
        let (reads_in, reads_out, retries, timeout) = (16, 8, 7, 14);
        let mut t =
            Terms { reads_in, reads_out, retries, timeout, sl: 0, traffic_class: 0, mtu: 3 };
        let mut a = resolved(ibv_qp_state::IBV_QPS_INIT);
        t.apply(&mut a);
        assert_eq!((a.pkey_index, a.port_num), (4, 2));
        let rtr = |t: &Terms| {
            let mut a = resolved(ibv_qp_state::IBV_QPS_RTR);
            t.apply(&mut a);
            assert_eq!((a.path_mtu, a.max_dest_rd_atomic), (3, 16));
            (a.ah_attr.sl, a.ah_attr.grh.traffic_class)
        };
        assert_eq!(rtr(&t), (3, 96));
        (t.sl, t.traffic_class) = (5, 104);
        assert_eq!(rtr(&t), (5, 104));
        let mut a = resolved(ibv_qp_state::IBV_QPS_RTS);
        t.apply(&mut a);
        assert_eq!((a.max_rd_atomic, a.timeout), (8, 14));
    }
}
