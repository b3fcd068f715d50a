//! What a peer asks for: a tensor that is there goes out, the others wait as responses.

use super::keys::Key;
use super::leave::response_in_step;
use super::table::Free;
use super::{Named, RecvOutcome, Waiter, public_id};
use crate::engine::channel::ChanId;
use crate::engine::list::Links;
use crate::engine::slab::CAPACITY;
use crate::engine::transfer::ending::source_memory;
use crate::engine::transfer::outbound::{Asked, RState, Response, To};
use crate::engine::{Engine, Fx, Work, seal};
use crate::protocol::message::{self, IMM_SLOT, UsualMeta, UsualRequest};
use crate::status::{Code, Status};

impl Asked {
    /// About how much memory a response to this takes, beside the tensor: the key is in the table,
    /// too.
    fn cost(&self, key: &[u8]) -> usize {
        let regions = self.dst.as_ref().map_or(0, |(place, _)| place.rkeys.rest().len());
        Asked::cost_of(key, regions, self.cached.as_ref().map_or(0, |meta| meta.dims.len()))
    }

    /// The same by its parts.
    #[inline]
    fn cost_of(key: &[u8], regions: usize, dims: usize) -> usize {
        size_of::<Response>() + 2 * key.len() + 16 * regions + 8 * dims
    }
}

impl Engine {
    /// TENSOR_REQUEST arrived, as it mostly is.
    #[inline]
    pub(in crate::engine) fn on_usual_request(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        r: UsualRequest<'_>,
    ) {
        let to = To { ch, request: r.index, checksum: false, told: false };
        let UsualRequest { key, step, any_len, cached, .. } = r;
        let room = match cached {
            Some(cached) if !any_len => cached.nbytes(),
            _ => u64::MAX,
        };
        let Some(peer) = self.is_asked(fx, to) else { return };
        if self.source.is_some() {
            return self.look_up(fx, peer, usually_asked(to, room, cached), key, step);
        }
        match self.table.recv(key, step, self.settings.tolerate_dup_recv) {
            RecvOutcome::Nobody(free) => {
                let cost = Asked::cost_of(key, 0, cached.map_or(0, |meta| meta.ndims()));
                // Made where it will lie: it is long.
                let asked = || usually_asked(to, room, cached);
                self.wait_for_tensor(fx, peer, to, cost, key, step, free, asked);
            }
            RecvOutcome::Matched(sent) => {
                let meta = &sent.tensor.meta;
                let same = cached.is_some_and(|cached| cached.is(meta));
                let fits = same || meta.nbytes <= room;
                if fits && self.eager_at_once(fx, to, &sent.tensor, &sent.content, same) {
                    let (of, memory) = (self.traced(fx, key, step), source_memory(&sent.tensor));
                    self.sent_at_once(fx, ch, sent.done, memory, sent.tensor.meta.nbytes, of);
                } else {
                    self.respond(fx, usually_asked(to, room, cached), key, step, sent);
                }
            }
            other => self.refuse_asked_for(fx, to, key, step, other),
        }
    }

    /// TENSOR_REQUEST arrived.
    pub(in crate::engine) fn on_request(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        r: message::Request<'_>,
    ) {
        let to = To { ch, request: r.index, checksum: r.checksum, told: r.dst.is_some() };
        if let Some(peer) = self.is_asked(fx, to) {
            let asked = Asked::new(to, r.dst, r.any_meta, r.fits, r.cached);
            self.look_up(fx, peer, asked, r.key, r.step);
        }
    }

    /// Notes that a peer asks, and makes room for what comes of it; who asks. `None`: it must not, or there is none.
    #[inline(always)]
    fn is_asked(&mut self, fx: &mut impl Fx, to: To) -> Option<u32> {
        let c = self.channels.get_mut(to.ch)?;
        let peer = c.peer;
        let taken = to.request >= IMM_SLOT || c.responses.get(to.request).is_some();
        if taken || c.seal.is_some() != to.checksum {
            self.must_not_ask(to);
            return None;
        }
        c.used = c.last_rx;
        c.counters.requests_received.add(1);
        let has_place = c.responses.has_place(to.request);
        self.happened += 1;
        let mut room = self.admit(fx);
        if !has_place && room.is_ok() {
            room = self.room_to_owe(to.ch);
        }
        match room {
            Ok(()) => Some(peer),
            Err(status) => {
                self.send_error(fx, to.ch, to.request, &status);
                None
            }
        }
    }

    #[cold]
    fn must_not_ask(&mut self, to: To) {
        let status = if self.sealed(to.ch) == to.checksum {
            Status::invalid(text!("the request index {:#x}, in use or reserved", to.request))
        } else {
            let text = "a request that does not ask for a checksum, or asks where there are none";
            seal::loss(text.into())
        };
        self.violation(to.ch, status);
    }

    /// Looks for what was asked: it goes out, or is waited for.
    #[inline(never)]
    fn look_up(&mut self, fx: &mut impl Fx, peer: u32, asked: Asked, key: &[u8], step: i64) {
        if self.source.is_some() && !self.table.has_tensor(key, step) {
            return self.ask_runtime(fx, peer, asked, key, step);
        }
        let to = asked.to;
        match self.table.recv(key, step, self.settings.tolerate_dup_recv) {
            RecvOutcome::Matched(sent) => self.respond(fx, asked, key, step, sent),
            RecvOutcome::Nobody(free) => {
                let cost = asked.cost(key);
                self.wait_for_tensor(fx, peer, to, cost, key, step, free, || asked);
            }
            other => self.refuse_asked_for(fx, to, key, step, other),
        }
    }

    #[cold]
    fn refuse_asked_for(
        &mut self,
        fx: &mut impl Fx,
        to: To,
        key: &[u8],
        step: i64,
        why: RecvOutcome,
    ) {
        let status = match why {
            RecvOutcome::Refused(status) => status,
            _ => {
                let key = crate::shown::key(key);
                let text =
                    text!("duplicate receive: a request for '{key}' of step {step} waits already");
                Status::new(Code::Aborted, text)
            }
        };
        self.send_error(fx, to.ch, to.request, &status);
    }

    /// The tensor is not there: a response takes what was asked, and waits in the table, which keeps its key.
    #[allow(clippy::too_many_arguments, reason = "the facts of one request")]
    #[inline(always)]
    fn wait_for_tensor(
        &mut self,
        fx: &mut impl Fx,
        peer: u32,
        to: To,
        cost: usize,
        key: &[u8],
        step: i64,
        free: Free,
        asked: impl FnOnce() -> Asked,
    ) {
        if self.has_too_many_waiting(peer, cost) {
            self.table.leave(free, step);
            return self.refuse_too_many(fx, peer, to);
        }
        let Some(vacancy) = self.responses.vacancy() else {
            self.table.leave(free, step);
            let status = crate::room::none(size_of::<Response>(), "a request that waits");
            return self.send_error(fx, to.ch, to.request, &status);
        };
        let id = public_id(self.next_id, vacancy.index());
        self.next_id += 1;
        let named = Named { id, key: Key::default(), step, in_step: Links::default() };
        let state = RState::Waiting(free.hash());
        let index = vacancy.fill(Response::new(peer, named, asked(), state, cost));
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
        // A manager that ends says so of all that it was asked for: to the peer it is gone, and nobody has cancelled.
        if !self.closing {
            self.send_error(fx, to.ch, to.request, status);
        }
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
        let text = text!(
            "{waiting} requests of this peer wait, with {bytes} bytes of keys and places; {} with {} are \
             allowed, and of all peers {} bytes, of which {} are used",
            s.max_waiting,
            s.max_waiting_bytes,
            s.max_waiting_bytes_all,
            self.waiting_bytes
        );
        Status::new(Code::ResourceExhausted, text)
    }
}

/// What a usual request asks for.
#[inline(always)]
fn usually_asked(to: To, room: u64, cached: Option<UsualMeta<'_>>) -> Asked {
    let cached = cached.and_then(|cached| cached.read());
    Asked { to, dst: None, any_meta: false, room, room_told: false, cached, granted: false }
}
