//! Messages that go out at once with more beside their content than a header: parts, or a number by which the sender hears of the match.

use super::{Memory, Mode, Outgoing, State, Wanted, public};
use crate::api::Protocol;
use crate::engine::channel::ChanId;
use crate::engine::{Engine, Fx};
use crate::protocol::message::{Envelope, WholeMsg};
use crate::status::Code;

impl Engine {
    /// Sends a message with parts whose content is here; see `message_send_now`.
    #[inline(never)]
    pub(super) fn message_send_whole(&mut self, fx: &mut impl Fx, out: &Outgoing<'_>) -> bool {
        let cost = out.content.len() as u64 + out.extra.cost();
        let Some(ch) = self.takes_now(fx, out, cost) else { return false };
        self.send_whole_by(fx, ch, out, None)
    }

    /// The same over the connection that takes it.
    #[inline(always)]
    fn send_whole_by(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        out: &Outgoing<'_>,
        sync: Option<u32>,
    ) -> bool {
        let (cost, content) = (out.content.len() as u64 + out.extra.cost(), out.content);
        let Some(c) = self.channels.get_mut(ch) else { return false };
        let m = WholeMsg { envelope: out.envelope, sync, extra: *out.extra, content };
        let sent = c.send_whole_msg_now(fx, &m);
        if sent {
            c.flow.count_sent(cost);
            if sync.is_none() {
                c.counters.send_done(content.len() as u64, Code::Ok, Protocol::Eager);
            }
        }
        sent
    }

    /// The connection over which a message may go now that counts for so much.
    fn takes_now(&mut self, fx: &mut impl Fx, out: &Outgoing<'_>, cost: u64) -> Option<ChanId> {
        let p = out.to.index().and_then(|p| self.peers.get(p));
        let p = p.filter(|p| !p.guest && p.outbox.is_empty() && !self.closing)?;
        let ch = *p.channels.first()?;
        let c = self.channels.get_mut(ch).filter(|c| c.takes_messages() && c.flow.fits(cost))?;
        let rides = cost <= c.rides || self.settings.rides(fx, c, out.memory.addr, cost);
        rides.then_some(ch)
    }

    /// Sends a message in synchronous mode whose content is here over a connection on which nothing waits: its number. `None`: nothing
    /// was done, and [`message_send`](Self::message_send) has to see to it.
    pub fn message_send_synchronous(
        &mut self,
        fx: &mut impl Fx,
        out: &Outgoing<'_>,
    ) -> Option<u64> {
        let Memory { len, device, .. } = out.memory;
        let cost = len + out.extra.cost();
        let here = device == 0 && out.content.len() as u64 == len;
        if !here || out.extra.first.is_some() || self.is_other(out) {
            return None;
        }
        let ch = self.takes_now(fx, out, cost)?;
        let Envelope { comm, tag } = out.envelope;
        let wanted = Wanted { from: out.to, comm, tag, mask: u64::MAX };
        let (state, id) = (State::Unmatched { ch }, self.next_id);
        let index = self.insert_op(fx, state, &wanted, &out.memory, out.timeout, out.done).ok()?;
        if !self.send_whole_by(fx, ch, out, Some(index)) {
            self.drop_op(index);
            return None;
        }
        if let Some(op) = self.messages.ops.get_mut(index) {
            (op.mode, op.incarnation) = (Mode::Synchronous, out.incarnation);
        }
        Some(public(id, index))
    }
}
