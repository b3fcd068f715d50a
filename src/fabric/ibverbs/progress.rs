//! What the device reports: completions, asynchronous events, and the end of an endpoint.

use std::time::{Duration, Instant};

use rdma_sys::{ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};

use crate::fabric::{EpId, Event, View};
use crate::status::{Code, Reason, Status};

use super::adapter::IbverbsAdapter;
use super::cm::{Cm, CmEvent};
use super::cq::{Cq, empty_wc};
use super::endpoint::probe::IMM_PROBE;
use super::endpoint::{Endpoint, IMM_MESSAGE};
use super::events::Happening;
use super::select::{self, PortInfo};
use super::send::SendPool;
use super::{RECV_BIT, gid, recv, status};

/// Completions taken at once.
pub(super) const BATCH: usize = 32;
/// How often each completion queue is asked in one poll.
pub(super) const ROUNDS: usize = 2;
/// Patience with a device that flushes slowly, when an endpoint is destroyed.
const FLUSH_PATIENCE: Duration = Duration::from_millis(500);

impl IbverbsAdapter {
    /// Handles one completion. Only `wr_id`, `status`, `qp_num` and `vendor_err` are valid on
    /// error.
    pub(super) fn complete(&mut self, wc: &ibv_wc) {
        let ok = wc.status == ibv_wc_status::IBV_WC_SUCCESS;
        if wc.wr_id & RECV_BIT != 0 {
            let index = (wc.wr_id & !RECV_BIT) as u32;
            if self.recv.has(index) {
                self.recv.hold(index, wc.qp_num);
                self.received(wc, index, ok);
            }
            return;
        }
        let Some(id) = self.by_qpn.get(&wc.qp_num) else { return };
        let Some(ep) = self.endpoints.get_mut(id) else { return };
        let error = (!ok).then_some((wc.status, wc.vendor_err));
        ep.completed(wc.wr_id, error, &mut self.send, &mut self.ready);
    }

    fn received(&mut self, wc: &ibv_wc, index: u32, ok: bool) {
        let Some(&id) = self.by_qpn.get(&wc.qp_num) else { return };
        let Some(ep) = self.endpoints.get_mut(&id) else { return };
        if ep.is_down() {
            return;
        }
        ep.moved += 1;
        if !ok {
            let what = "receive";
            let s = status::completion(wc.status, wc.vendor_err, what, &self.name, ep.peer());
            ep.fail(s, &mut self.send, &mut self.ready);
            return;
        }
        let has_imm = wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
        // SAFETY: both variants of the union are a number.
        let imm = u32::from_be(unsafe { wc.imm_data_invalidated_rkey_union.imm_data });
        let ep_id = EpId(id);
        match wc.opcode {
            ibv_wc_opcode::IBV_WC_RECV if has_imm && imm == IMM_MESSAGE => {
                let len = (wc.byte_len as usize).min(recv::BUFFER);
                // SAFETY: the buffer is posted again by the next poll at the earliest, and the
                // device does not write to it before.
                let bytes = unsafe { View::new(self.recv.bytes(index), len) };
                self.ready.push(Event::Message { ep: ep_id, bytes });
            }
            ibv_wc_opcode::IBV_WC_RECV if has_imm && imm == IMM_PROBE => {
                if ep.probe_heard(&mut self.send, &mut self.ready) {
                    self.dirty.push(id);
                }
            }
            ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM if has_imm => {
                self.ready.push(Event::Written { ep: ep_id, imm });
            }
            op => {
                let s = Status::invalid(text!(
                    "{} sent something that is no message (opcode {op}, immediate {imm:#x})",
                    ep.peer()
                ));
                ep.fail(s, &mut self.send, &mut self.ready);
            }
        }
    }

    pub(super) fn take_happenings(&mut self) {
        for h in self.events.take() {
            match h {
                Happening::QueuePair(qpn, what) => self.queue_pair_failed(qpn, Some(what)),
                Happening::LastReceive(qpn) => self.queue_pair_failed(qpn, None),
                Happening::PortDown(p) if p == self.choice.port.number => {
                    // Connections live on: a short outage is bridged by retransmission.
                    self.port_down = true;
                    self.note(format!("port {p} went down"));
                }
                Happening::PortUp(p) if p == self.choice.port.number => {
                    self.port_down = false;
                    self.note(format!("port {p} is up"));
                    self.port_changed("state");
                }
                Happening::PortChanged(p, what) if p == self.choice.port.number => {
                    self.port_changed(what);
                }
                Happening::QueueLost(id) => self.queue_lost(id),
                Happening::DeviceLost(what) => self.device_lost(what),
                _ => {}
            }
        }
    }

    fn note(&mut self, text: String) {
        /// Notes kept; a flapping port must not fill memory.
        const MAX_NOTES: usize = 256;
        crate::log::warn(format_args!("{}: {text}", self.info.name));
        if self.notes.len() < MAX_NOTES {
            self.notes.push(format!("{}: {text}", self.info.name));
        }
    }

    /// The device says that a queue pair failed; without `what` only that it is in error. What went
    /// wrong is in its completions, if in any, and those may come first or later.
    fn queue_pair_failed(&mut self, qpn: u32, what: Option<&str>) {
        self.take_completions();
        let Some(ep) = self.by_qpn.get(&qpn).and_then(|id| self.endpoints.get_mut(id)) else {
            return;
        };
        let text = what.unwrap_or("the queue pair is in error");
        let s = Status::gone(text!("connection of {} and {}: {text}", self.name, ep.peer()));
        if what.is_some() {
            ep.fail(s, &mut self.send, &mut self.ready);
        } else {
            ep.fail_for_now(s, &mut self.send, &mut self.ready);
        }
    }

    /// Looks at the port again. Endpoints use the GID and LID that they were made with, so they
    /// end when it is gone; new ones get what there is now.
    fn port_changed(&mut self, what: &str) {
        let Ok(port) = self.context.port(self.choice.port.number) else { return };
        self.new_mtu(&port);
        let old = self.choice.gid.clone();
        let same_lid = port.lid == self.choice.port.lid;
        if same_lid && port.gids.contains(&old) {
            self.choice.port = port;
            return;
        }
        let why = text!(
            "the {what} of {} port {} changed: GID {} or its LID is gone",
            self.info.name,
            port.number,
            gid::text(&old.gid)
        );
        if self.cfg.gid_index < 0 {
            if let Some((g, text)) = gid::choose(&port.gids) {
                self.choice.gid = g.clone();
                self.note(format!("{why}; now {text}"));
            } else {
                self.note(why.clone());
            }
        } else if let Some(g) = port.gids.iter().find(|g| g.index == old.index) {
            self.choice.gid = g.clone();
            self.note(why.clone());
        }
        self.choice.port = port;
        let s = Status::gone(why);
        for ep in self.endpoints.values_mut().filter(|e| !e.is_down()) {
            ep.fail(s.clone(), &mut self.send, &mut self.ready);
        }
        if self.cfg.use_rdma_cm
            && let Err(e) = self.restart_cm()
        {
            // `create` tries again.
            self.note(e.into_message());
        }
    }

    /// New connections use the port's present MTU; those that live keep theirs.
    fn new_mtu(&mut self, port: &PortInfo) {
        let mtu = select::mtu_now(self.cfg.mtu, port);
        if mtu == self.choice.mtu {
            return;
        }
        self.choice.mtu = mtu;
        if let Some(cm) = &mut self.cm {
            cm.set_mtu(mtu);
        }
        self.note(format!("the MTU is {} bytes now", select::mtu_bytes(mtu)));
    }

    /// A completion queue overran. Completions are missing, so its endpoints end; the others live on.
    fn queue_lost(&mut self, id: usize) {
        let Some(index) = self.cqs.iter().position(|s| s.id == id && !s.lost) else { return };
        self.cqs[index].lost = true;
        self.note(format!("completion queue {id} overran"));
        let s = Status::internal("completion queue overrun").because(Reason::LocalError);
        for ep in self.endpoints.values_mut().filter(|e| e.cq == index && !e.is_down()) {
            ep.lose(s.clone(), &mut self.send, &mut self.ready);
        }
    }

    pub(super) fn device_lost(&mut self, what: &str) {
        if self.lost.is_some() {
            return;
        }
        // The descriptors of a removed device are readable for good: whoever sleeps on them would spin.
        self.unwatch(self.channel.fd());
        if let Some(fd) = self.cm.as_ref().map(Cm::fd) {
            self.unwatch(fd);
        }
        let s = Status::new(Code::Unavailable, text!("{}: {what}", self.info.name));
        self.note(what.to_string());
        for ep in self.endpoints.values_mut().filter(|e| !e.is_down()) {
            ep.lose(s.clone(), &mut self.send, &mut self.ready);
        }
        self.lost = Some(s);
    }

    /// Takes what completion queue `index` has, for the next poll, except what `mine` wants.
    pub(super) fn drain_cq(
        cq: &Cq,
        wcs: &mut [ibv_wc],
        stash: &mut Vec<ibv_wc>,
        mut mine: impl FnMut(&ibv_wc) -> bool,
    ) -> usize {
        let n = cq.poll(wcs);
        for wc in &mut wcs[..n] {
            if !mine(wc) {
                stash.push(std::mem::replace(wc, empty_wc()));
            }
        }
        n
    }

    /// Takes what rdma_cm reports.
    pub(super) fn poll_connections(&mut self) {
        let mut events = Vec::new();
        if let Some(cm) = &mut self.cm {
            cm.poll(&mut events);
        }
        for e in events {
            self.connection_event(e);
        }
    }

    pub(super) fn connection_event(&mut self, event: CmEvent) {
        let (id, result) = match event {
            CmEvent::Ready(id) => {
                let qp = self.endpoints.get(&id).and_then(|e| e.qp());
                let (Some(cm), Some(qp)) = (&mut self.cm, qp) else { return };
                match cm.go_on(id, qp) {
                    // The passive end is told when the peer has heard.
                    Ok(()) if !cm.is_up(id) => return,
                    r => (id, r),
                }
            }
            CmEvent::Connected(id) => (id, Ok(())),
            CmEvent::Ended(id, s) => {
                // What the peer sent before it ended comes first.
                self.take_completions();
                (id, Err(s))
            }
        };
        let result = result.and_then(|()| {
            let (active, mtu) = self.cm.as_ref().map_or((false, 0), |cm| cm.terms_of(id));
            self.probe(id, mtu, active)
        });
        let Some(ep) = self.endpoints.get_mut(&id) else { return };
        if let Err(s) = result {
            ep.fail(s, &mut self.send, &mut self.ready);
        }
    }

    /// The queue pair of an endpoint is ready: it counts as connected when the path has shown to work.
    pub(super) fn probe(&mut self, id: u32, mtu: u32, active: bool) -> Result<(), Status> {
        let Some(ep) = self.endpoints.get_mut(&id) else { return Ok(()) };
        ep.probe(mtu, active, &mut self.send)?;
        self.dirty.push(id);
        self.ring();
        Ok(())
    }

    /// Handles all completions that are there. They are bounded: nothing is posted meanwhile.
    fn take_completions(&mut self) {
        for wc in std::mem::take(&mut self.stash) {
            self.complete(&wc);
        }
        let mut wcs = std::mem::take(&mut self.wcs);
        for i in 0..self.cqs.len() {
            loop {
                let n = self.cqs[i].cq.poll(&mut wcs);
                wcs[..n].iter().for_each(|wc| self.complete(wc));
                if n < BATCH {
                    break;
                }
            }
        }
        self.wcs = wcs;
    }

    /// Forgets completions of an earlier queue pair with a new one's number.
    pub(super) fn forget_completions(&mut self, qpn: u32) {
        for slot in &self.cqs {
            while Self::drain_cq(&slot.cq, &mut self.wcs, &mut self.stash, |_| false) == BATCH {}
        }
        self.stash.retain(|wc| {
            if wc.qp_num == qpn && wc.wr_id & RECV_BIT != 0 {
                self.recv.hold((wc.wr_id & !RECV_BIT) as u32, qpn);
            }
            wc.qp_num != qpn
        });
    }

    /// Ends an endpoint that is no longer in the tables.
    pub(super) fn close(&mut self, mut ep: Endpoint) {
        let qpn = ep.qpn();
        let cq = self.cqs[ep.cq].cq.clone();
        self.cqs[ep.cq].users -= 1;
        let (recv, stash, wcs) = (&mut self.recv, &mut self.stash, &mut self.wcs);
        let mut absorb = |ep: &mut Endpoint, pool: &mut SendPool, wc: &ibv_wc| {
            if wc.qp_num != qpn {
                return false;
            }
            if wc.wr_id & RECV_BIT != 0 {
                recv.hold((wc.wr_id & !RECV_BIT) as u32, qpn);
            } else {
                ep.completed(wc.wr_id, None, pool, &mut Vec::new());
            }
            true
        };
        ep.close(&mut self.send, |ep, pool| {
            stash.retain(|wc| !absorb(ep, pool, wc));
            let end = Instant::now() + FLUSH_PATIENCE;
            loop {
                let n = Self::drain_cq(&cq, wcs, stash, |wc| absorb(ep, pool, wc));
                if n == 0 && (!ep.draining() || Instant::now() > end) {
                    break;
                }
            }
        });
        // The queue pair is gone; completions of it that came meanwhile must not meet another
        // one with its number.
        let mut rest = true;
        while rest {
            let mine = |wc: &ibv_wc| absorb(&mut ep, &mut self.send, wc);
            rest = Self::drain_cq(&cq, wcs, stash, mine) == BATCH;
        }
        self.recv.remove_endpoint(qpn);
        self.events.forget(qpn);
    }
}
