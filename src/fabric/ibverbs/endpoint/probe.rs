//! The last step of connecting: one packet of the path's full length each way. Queue pairs become ready by
//! themselves, so without it an endpoint whose packets are lost, all or only the long ones, would count
//! as connected, and no other provider would be tried.

use rdma_sys::{ibv_send_flags, ibv_wr_opcode};

use crate::fabric::Event;
use crate::status::Status;

use super::super::qp::Wqe;
use super::super::send::SendPool;
use super::{Endpoint, Kind, Posted, State};

/// SENDs that probe carry this immediate. They are no messages and use no credit.
pub(in super::super) const IMM_PROBE: u32 = 0xffff_fffd;
/// The longest path MTU.
static ZEROES: [u8; 4096] = [0; 4096];

/// How far an endpoint got.
pub(super) struct Probe {
    /// Bytes of a packet.
    len: usize,
    sent: bool,
    acknowledged: bool,
    heard: bool,
}

impl Endpoint {
    /// The queue pair can send now, in packets of `mtu` bytes. The passive end speaks first, since the active
    /// one is ready by then; the active one answers, since its peer must be ready to have sent. So no
    /// probe meets a queue pair that drops it, and waits for a retransmission.
    pub fn probe(&mut self, mtu: u32, active: bool, pool: &mut SendPool) -> Result<(), Status> {
        if !matches!(self.state, State::New | State::Connecting) {
            return Ok(());
        }
        let len = ZEROES.len().min(mtu as usize);
        self.state = State::Connecting;
        self.probe = Some(Probe { len, sent: false, acknowledged: false, heard: false });
        if active { Ok(()) } else { self.send_probe(pool) }
    }

    fn send_probe(&mut self, pool: &mut SendPool) -> Result<(), Status> {
        let Some(probe) = &mut self.probe else { return Ok(()) };
        let len = probe.len;
        let buffer = pool.fill(&[&ZEROES[..len]])?;
        probe.sent = true;
        let mut w = Wqe::new(ibv_wr_opcode::IBV_WR_SEND_WITH_IMM, self.next_id());
        w.immediate(IMM_PROBE);
        w.local(pool.address(buffer) as u64, len as u32, pool.lkey(buffer));
        w.flag(ibv_send_flags::IBV_SEND_SIGNALED);
        self.sends += 1;
        self.push(w, Posted { wr: 0, kind: Kind::Probe(buffer) });
        Ok(())
    }

    /// The peer's probe arrived: whether there is something to flush.
    pub fn probe_heard(&mut self, pool: &mut SendPool, events: &mut Vec<Event>) -> bool {
        let Some(probe) = &mut self.probe else { return false };
        probe.heard = true;
        if probe.sent {
            self.probe_ended(events);
            return false;
        }
        match self.send_probe(pool) {
            Ok(()) => true,
            Err(s) => {
                self.fail(s, pool, events);
                false
            }
        }
    }

    /// The own probe arrived at the peer's device.
    pub(super) fn probe_acknowledged(&mut self, events: &mut Vec<Event>) {
        if let Some(probe) = &mut self.probe {
            probe.acknowledged = true;
            self.probe_ended(events);
        }
    }

    fn probe_ended(&mut self, events: &mut Vec<Event>) {
        let both = self.probe.as_ref().is_some_and(|p| p.acknowledged && p.heard);
        if both && matches!(self.state, State::Connecting) {
            self.probe = None;
            self.state = State::Ready;
            events.push(Event::Connected(self.id));
        }
    }
}
