//! A send whose content was copied by its call, as it is where that is short: it is posted at once, or goes the way of all sends.

use super::calls::Part;
use super::{Send, Step, Target, Way, of_buffer};
use crate::engine::{Engine, Fx, WR_SLOT};
use crate::fabric::Remote;
use crate::limits::PAIR_SENDS;
use crate::protocol::message::IMM_SLOT;

impl Engine {
    /// Posts a part of a buffer, of which `content` is a copy, if its slot is open, nothing is before it, the provider takes copies, and it
    /// is in one piece over there. False: nothing was done.
    pub(super) fn send_copied(
        &mut self,
        fx: &mut impl Fx,
        buffer: u32,
        Part { offset, len }: Part,
        at: u64,
        content: &[u8],
    ) -> bool {
        let pairs = &mut self.pairs;
        let Some(b) = pairs.buffers.get_mut(buffer) else { return false };
        let Some(p) = pairs.pairs.get_mut(b.pair) else { return false };
        let within = offset.checked_add(len).is_some_and(|end| end <= b.len);
        let goes = b.way == Way::Send && within && content.len() as u64 == len;
        let free = p.is_connected() && p.going.is_none() && p.sends + p.unheard < PAIR_SENDS;
        let Some(Target { grant: Some(grant), waiting }) = p.targets.get(&b.slot) else {
            return false;
        };
        let (rkey, border) = grant.place.rkeys.at(at);
        let fits = at.checked_add(len).is_some_and(|end| end <= grant.len.min(border));
        if !(goes && free && fits && waiting.is_empty()) {
            return false;
        }
        let ch = grant.ch;
        let Some(c) = self.channels.get_mut(ch) else { return false };
        let Some(vacancy) = pairs.sends.vacancy() else { return false };
        if c.seal.is_some() || len > c.caps.max_rdma || !pairs.deadlines.has_timer(vacancy.index())
        {
            return false;
        }
        let remote = Remote { addr: grant.place.addr.wrapping_add(at), rkey };
        let (wr, imm) = (WR_SLOT | u64::from(vacancy.index()), IMM_SLOT | grant.number);
        if !c.write_copied(fx, wr, content, remote, imm) {
            return false;
        }
        let now = fx.now();
        let step = Step::Writing { ch, left: 1, unchecked: false };
        let deadline = now.saturating_add(p.timeout);
        let send = Send::new(buffer, Part { offset, len }, at, step, now, deadline);
        let send = vacancy.fill(Send { copied: true, ..send });
        p.sends += 1;
        b.under_way += 1;
        b.sends.push(&mut pairs.sends, of_buffer, send);
        self.settle(fx, ch);
        true
    }
}
