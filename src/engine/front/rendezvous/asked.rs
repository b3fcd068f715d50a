//! What a peer asks for: a tensor that is there goes out, the others wait as responses.

use super::keys::Key;
use super::table::Free;
use super::{Named, RecvOutcome, Waiter, public_id};
use crate::engine::channel::ChanId;
use crate::engine::list::Links;
use crate::engine::slab::CAPACITY;
use crate::engine::transfer::outbound::{Asked, RState, Response, To, response_in_step};
use crate::engine::{Engine, Fx, Work, seal};
use crate::protocol::message;
use crate::status::{Code, Status};

impl Engine {
    /// TENSOR_REQUEST arrived.
    #[inline(always)]
    pub(in crate::engine) fn on_request(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        r: message::Request<'_>,
    ) {
        let now = fx.now();
        let Some(c) = self.channels.get_mut(ch) else { return };
        let peer = c.peer;
        if c.seal.is_some() != r.checksum {
            let text = "a request that does not ask for a checksum, or asks where there are none";
            return self.violation(ch, seal::loss(text.into()));
        }
        if c.responses.get(r.index).is_some() {
            return self.violation(ch, Status::invalid("request index in use"));
        }
        c.used = now;
        c.counters.requests_received.add(1);
        self.happened += 1;
        let to = To { ch, request: r.index, checksum: r.checksum };
        if let Err(status) = self.admit(fx).and_then(|()| self.room_to_owe(ch)) {
            return self.send_error(fx, ch, to.request, &status);
        }
        let (key, step) = (r.key, r.step);
        let (dst, any_meta, cached) = (r.dst, r.any_meta, r.cached);
        let asked = Asked { to, dst, any_meta, cached, granted: false };
        if self.source.is_some() && !self.table.has_tensor(key, step) {
            return self.ask_runtime(fx, peer, asked, key, step);
        }
        match self.table.recv(key, step, self.settings.tolerate_dup_recv) {
            RecvOutcome::Matched(sent) => self.respond(fx, asked, key, step, sent),
            RecvOutcome::Nobody(free) => self.wait_for_tensor(fx, peer, asked, key, step, free),
            RecvOutcome::Duplicate => {
                let text = format!(
                    "duplicate receive: a request for '{}' of step {step} waits already",
                    crate::shown::key(key)
                );
                self.send_error(fx, ch, to.request, &Status::new(Code::Aborted, text));
            }
            RecvOutcome::Refused(status) => self.send_error(fx, ch, to.request, &status),
        }
    }

    /// The tensor is not there: a response takes what was asked, and waits in the table, which keeps its key.
    #[inline]
    fn wait_for_tensor(
        &mut self,
        fx: &mut impl Fx,
        peer: u32,
        asked: Asked,
        key: &[u8],
        step: i64,
        free: Free,
    ) {
        let (to, cost) = (asked.to, asked.cost(key));
        if self.has_too_many_waiting(peer, cost) {
            self.table.leave(free, step);
            return self.refuse_too_many(fx, peer, to);
        }
        let Some(vacancy) = self.responses.vacancy() else {
            self.table.leave(free, step);
            return self.refuse_too_many(fx, peer, to);
        };
        let id = public_id(self.next_id, vacancy.index());
        self.next_id += 1;
        let named = Named { id, key: Key::default(), step, in_step: Links::default() };
        let state = RState::Waiting(free.hash());
        let index = vacancy.fill(Response::new(peer, named, asked, state, cost));
        self.table.wait(free, key, step, Waiter::Remote(index));
        let members = self.table.members(step);
        members.responses.push(&mut self.responses, response_in_step, index);
        self.list(to, peer, cost, index);
    }

    /// The runtime is asked for the tensor, and a response waits for what it says.
    fn ask_runtime(&mut self, fx: &mut impl Fx, peer: u32, asked: Asked, key: &[u8], step: i64) {
        let (to, cost) = (asked.to, asked.cost(key));
        if let Some(status) = self.table.aborted(step).cloned() {
            return self.send_error(fx, to.ch, to.request, &status);
        }
        if self.has_too_many_waiting(peer, cost) {
            return self.refuse_too_many(fx, peer, to);
        }
        match self.insert_response(asked, key, step, RState::Asking) {
            Ok(index) => self.ask_source(fx, index),
            Err(status) => self.send_error(fx, to.ch, to.request, &status),
        }
    }

    #[cold]
    fn refuse_too_many(&mut self, fx: &mut impl Fx, peer: u32, to: To) {
        let status = self.too_many_waiting(peer);
        self.send_error(fx, to.ch, to.request, &status);
    }

    /// A response for a tensor that is there and will not go out at once, or for which the runtime is asked.
    pub(super) fn insert_response(
        &mut self,
        asked: Asked,
        key: &[u8],
        step: i64,
        state: RState,
    ) -> Result<u32, Status> {
        let Some(c) = self.channels.get(asked.to.ch) else {
            return Err(Status::gone("the connection of the receiver ended"));
        };
        let peer = c.peer;
        if self.responses.len() >= CAPACITY {
            return Err(Status::new(Code::ResourceExhausted, "too many responses are under way"));
        }
        let key = self.table.keys().copy(key)?;
        self.room_to_owe(asked.to.ch)?;
        self.table.make_room(step)?;
        let cost = asked.cost(&key);
        let (to, none) = (asked.to, || crate::room::none(size_of::<Response>(), "a response"));
        let vacancy = self.responses.vacancy().ok_or_else(none)?;
        let id = public_id(self.next_id, vacancy.index());
        self.next_id += 1;
        let named = Named { id, key, step, in_step: Links::default() };
        let index = vacancy.fill(Response::new(peer, named, asked, state, cost));
        let members = self.table.members(step);
        members.responses.push(&mut self.responses, response_in_step, index);
        self.list(to, peer, cost, index);
        Ok(index)
    }

    /// The runtime is asked for what a response waits for.
    fn ask_source(&mut self, fx: &mut impl Fx, index: u32) {
        let Some(source) = self.source.clone() else { return };
        let Some(r) = self.responses.get(index) else { return };
        let (response, step, peer) = (r.named.id, r.named.step, r.peer);
        match crate::room::key(&r.named.key) {
            Ok(key) => {
                let peer = self.peer_name(Some(peer));
                self.source_asked(response);
                fx.run(Work::Source { source, response, peer, key, step });
            }
            Err(status) => self.refuse(fx, index, &status),
        }
    }

    /// Enters a response where its channel and its peer find it. The memory is there.
    #[inline]
    fn list(&mut self, to: To, peer: u32, cost: usize, index: u32) {
        if let Some(c) = self.channels.get_mut(to.ch) {
            c.responses.insert(to.request, index);
        }
        self.waiting_bytes += cost;
        if let Some(p) = self.peers.get_mut(peer) {
            p.waiting += 1;
            p.waiting_bytes += cost;
        }
    }

    /// Makes room for one more response of a channel.
    fn room_to_owe(&mut self, ch: ChanId) -> Result<(), Status> {
        let of = self.channels.get_mut(ch).map(|c| &mut c.responses);
        of.map_or(Ok(()), |responses| crate::room::grow(responses, 1, "responses"))
    }

    /// Ends a remote receive that waits here, with an error.
    pub(in crate::engine) fn refuse(&mut self, fx: &mut impl Fx, index: u32, status: &Status) {
        let Some(r) = self.responses.get(index) else { return };
        let to = r.asked.to;
        self.forget(index);
        self.send_error(fx, to.ch, to.request, status);
        self.settle(fx, to.ch);
    }

    /// The same, and the runtime, which was asked, is told.
    pub(in crate::engine) fn refuse_asked(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        status: &Status,
    ) {
        if let Some(id) = self.responses.get(index).map(|r| r.named.id) {
            self.ended_early(fx, id, status);
        }
        self.refuse(fx, index, status);
    }

    /// Whether one more request of this peer may not wait. Who has more than what is left for all gets no
    /// more: however many names somebody takes, as much as each of them has stays for a newcomer.
    fn has_too_many_waiting(&self, peer: u32, cost: usize) -> bool {
        let s = &self.settings;
        let slots = CAPACITY.saturating_sub(self.responses.len());
        let left = s.max_waiting_bytes_all.saturating_sub(self.waiting_bytes);
        self.peers.get(peer).is_none_or(|p| {
            p.waiting >= s.max_waiting.min(slots)
                || p.waiting_bytes + cost > s.max_waiting_bytes.min(left)
        })
    }

    fn too_many_waiting(&self, peer: u32) -> Status {
        let s = &self.settings;
        let (waiting, bytes) =
            self.peers.get(peer).map_or((0, 0), |p| (p.waiting, p.waiting_bytes));
        let text = format!(
            "{waiting} requests of this peer wait, with {bytes} bytes of keys and places; {} with {} are \
             allowed, and of all peers {} bytes, of which {} are used",
            s.max_waiting, s.max_waiting_bytes, s.max_waiting_bytes_all, self.waiting_bytes
        );
        Status::new(Code::ResourceExhausted, text)
    }
}
