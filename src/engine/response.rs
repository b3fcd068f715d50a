//! The sending side of a transfer: a response to a peer's request.
//!
//! A tensor that is there and small never becomes a response: its content goes out at once. The
//! others live here while they wait for the tensor, for the runtime, for a copy off a device, for
//! the receiver's answer, or for their writes.

mod content;
mod ending;
mod runtime;

use super::channel::{ChanId, Channel};
use super::list::Links;
use super::{Buffer, Due, Engine, Fx, MapError, Offer, WR_RESPONSE, Window, Work, checksum};
use crate::api::*;
use crate::fabric::keys::{Keys, Place, pieces};
use crate::fabric::{Access, Mem};
use crate::protocol::message::{self, Message, MetaResponse};
use crate::protocol::select::{Choice, Facts, select};
use crate::rendezvous::keys::{Key, Keys as KeyCopies};
use crate::rendezvous::{Content, Members, RecvOutcome, SendOutcome, Sent, Waiter};
use crate::status::{Code, Reason, Status};

/// What the peer asked for.
#[derive(Clone)]
pub(super) struct Asked {
    pub ch: ChanId,
    pub index: u32,
    pub dst: Option<(Place, u64)>,
    pub any_meta: bool,
    pub checksum: bool,
    pub cached: Option<Meta>,
    /// The receiver knows the metadata and `dst` is for just this tensor: what is left is the write.
    pub granted: bool,
}

impl Asked {
    /// About how much memory a response to this takes, beside the tensor: the key is in the table,
    /// too.
    fn cost(&self, key: &[u8]) -> usize {
        let regions = self.dst.as_ref().map_or(0, |(place, _)| place.rkeys.rest().len());
        let dims = self.cached.as_ref().map_or(0, |meta| meta.dims.len());
        size_of::<Response>() + 2 * key.len() + 16 * regions + 8 * dims
    }

    /// The destination was given up front, and has no room for so many bytes.
    fn too_short(&self, nbytes: u64) -> bool {
        self.any_meta && self.dst.as_ref().is_some_and(|(_, len)| nbytes > *len)
    }
}

/// A tensor on its way out.
pub(super) struct Source {
    pub tensor: Tensor,
    pub done: Option<Due<OnSend>>,
    /// A copy of the content, if there is one.
    pub content: Content,
    /// Its checksum, once it is known.
    pub sum: Option<u64>,
    /// Copy of the content in registered or host memory.
    pub staged: Option<Buffer>,
    pub window: Option<Window>,
    pub started: u64,
    pub protocol: Protocol,
}

impl Source {
    fn addr(&self) -> u64 {
        self.staged.as_ref().map_or(self.tensor.addr, |b| b.addr)
    }
}

pub(super) enum RState {
    /// Waits in the table for the tensor.
    Waiting,
    /// The runtime was asked.
    Asking,
    /// The content is being copied to host or registered memory, or its checksum is being computed.
    Staging(Source),
    /// The content fits into a message, behind answers that wait for the peer to take them.
    Deferred(Source),
    /// The metadata is out; the receiver asks for a write, or reads and says so.
    Told(Source),
    /// Writes are under way.
    Writing { source: Source, left: u32, failed: Option<Status> },
}

/// See the module's text.
pub(super) struct Response {
    /// Public id, for the source callback.
    pub id: u64,
    pub peer: u32,
    pub key: Key,
    pub step: i64,
    pub asked: Asked,
    pub state: RState,
    /// The receiver gave up; it waits for word that nothing is written any more.
    pub cancelled: bool,
    /// The source was taken back while it waited to be copied.
    pub ended: Option<Status>,
    /// The source is being copied, outside of the engine.
    pub copying: bool,
    /// Its part of the peer's `waiting_bytes`.
    cost: usize,
    /// Its place in its step.
    pub in_step: Links,
}

pub(super) fn response_in_step(r: &mut Response) -> &mut Links {
    &mut r.in_step
}

impl Response {
    fn new(peer: u32, key: Key, step: i64, asked: Asked, state: RState, cost: usize) -> Response {
        let (cancelled, ended, copying) = (false, None, false);
        let in_step = Links::default();
        Response { id: 0, peer, key, step, asked, state, cancelled, ended, copying, cost, in_step }
    }
}

impl Response {
    /// The runtime was asked for it.
    pub fn is_asking(&self) -> bool {
        matches!(self.state, RState::Asking)
    }

    /// A tensor of ours is on its way.
    pub fn is_sending(&self) -> bool {
        matches!(
            self.state,
            RState::Staging(_) | RState::Told(_) | RState::Deferred(_) | RState::Writing { .. }
        )
    }
}

const PUBLIC_SLOT_BITS: u32 = 20;

impl Engine {
    /// Offers a tensor under a key: to whoever waits for it, or to the table.
    pub fn post_send(
        &mut self,
        fx: &mut impl Fx,
        key: &[u8],
        step: i64,
        offer: Offer<'_>,
        timeout: Option<u64>,
    ) -> Result<(), Status> {
        let Offer { tensor, content, done } = offer;
        if self.closing {
            return Err(Self::ending());
        }
        Self::check_key(key)?;
        self.device(tensor.device)?;
        self.admit(fx)?;
        let deadline = timeout.map_or(u64::MAX, |t| fx.now().saturating_add(t));
        self.next_deadline = self.next_deadline.min(deadline);
        let done = done.map(|done| self.due(done));
        let (outcome, refused) = self.table.send_copied(
            key,
            step,
            Sent { tensor, content: Content::new(), done, deadline },
            content,
        );
        if let Some(done) = refused.and_then(|sent| sent.done) {
            done.refuse();
        }
        match outcome {
            SendOutcome::Stored => Ok(()),
            SendOutcome::Matched(Waiter::Local(index), sent) => {
                self.deliver_local(fx, index, sent);
                Ok(())
            }
            SendOutcome::Matched(Waiter::Remote(index), sent) => {
                self.answer(fx, index, sent, content);
                Ok(())
            }
            SendOutcome::Duplicate => Err(Status::new(
                Code::Aborted,
                format!(
                    "duplicate send: '{}' of step {step} waits already",
                    crate::shown::key(key)
                ),
            )),
            SendOutcome::Refused(status) => Err(status),
            SendOutcome::Full => Err(Status::new(
                Code::ResourceExhausted,
                format!(
                    "{} tensors wait to be taken; clean their steps up",
                    crate::limits::TENSORS
                ),
            )),
        }
    }

    pub(super) fn on_request(&mut self, fx: &mut impl Fx, ch: ChanId, r: message::Request<'_>) {
        let Some(c) = self.channels.get(ch) else { return };
        let peer = c.peer;
        if c.seal.is_some() != r.checksum {
            let text = "a request that does not ask for a checksum, or asks where there are none";
            return self.violation(ch, super::seal::loss(text.into()));
        }
        if c.responses.contains_key(&r.index) {
            return self.violation(ch, Status::invalid("request index in use"));
        }
        let asked = Asked {
            ch,
            index: r.index,
            dst: r.dst,
            any_meta: r.any_meta,
            checksum: r.checksum,
            cached: r.cached,
            granted: false,
        };
        c.counters.requests_received.add(1);
        self.happened += 1;
        if let Some(c) = self.channels.get_mut(ch) {
            c.used = fx.now();
        }
        let cost = asked.cost(r.key);
        let full = self.has_too_many_waiting(peer, cost);
        if let Err(status) = self.admit(fx).and_then(|()| self.room_to_owe(ch)) {
            return self.send_error(fx, ch, r.index, &status);
        }
        let source = self.source.clone();
        let tolerate = self.settings.tolerate_dup_recv;
        let (responses, next_id) = (&mut self.responses, &mut self.next_id);
        let mut made = None;
        let make = |keys: &mut KeyCopies, members: &mut Members| {
            if full {
                return None;
            }
            let (key, asked) = (keys.copy(r.key).ok()?, asked.clone());
            let state = if source.is_some() { RState::Asking } else { RState::Waiting };
            let response = Response::new(peer, key, r.step, asked, state, cost);
            let index = responses.insert(response).ok()?;
            members.responses.push(responses, response_in_step, index);
            let id =
                *next_id << PUBLIC_SLOT_BITS | u64::from(index) & ((1 << PUBLIC_SLOT_BITS) - 1);
            *next_id += 1;
            responses.get_mut(index)?.id = id;
            made = Some((index, id));
            Some(Waiter::Remote(index))
        };
        let outcome = if source.is_some() && !self.table.has_tensor(r.key, r.step) {
            match self.table.aborted(r.step) {
                Some(status) => RecvOutcome::Refused(status.clone()),
                None => {
                    self.table.ask(r.step, make);
                    RecvOutcome::Waiting
                }
            }
        } else {
            self.table.recv(r.key, r.step, tolerate, make)
        };
        match outcome {
            RecvOutcome::Matched(sent) => self.respond(fx, asked, r.key, r.step, sent, &[]),
            RecvOutcome::Waiting => match made {
                Some((index, id)) => self.owe(fx, ch, peer, index, id, source),
                None => {
                    let status = self.too_many_waiting(peer);
                    self.send_error(fx, ch, r.index, &status);
                }
            },
            RecvOutcome::Duplicate => {
                let text = format!(
                    "duplicate receive: a request for '{}' of step {} waits already",
                    crate::shown::key(r.key),
                    r.step
                );
                self.send_error(fx, ch, r.index, &Status::new(Code::Aborted, text));
            }
            RecvOutcome::Refused(status) => self.send_error(fx, ch, r.index, &status),
        }
    }

    /// Makes room for one more response of a channel.
    fn room_to_owe(&mut self, ch: ChanId) -> Result<(), Status> {
        let of = self.channels.get_mut(ch).map(|c| &mut c.responses);
        of.map_or(Ok(()), |responses| crate::room::grow(responses, 1, "responses"))
    }

    fn owe(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        peer: u32,
        index: u32,
        id: u64,
        source: Option<SourceFn>,
    ) {
        let Some(r) = self.responses.get(index) else { return };
        if let Some(c) = self.channels.get_mut(ch) {
            c.responses.insert(r.asked.index, index);
        }
        let (step, cost) = (r.step, r.cost);
        let key = source.is_some().then(|| crate::room::key(&r.key));
        self.count_waiting(peer, cost);
        if let Some(Err(status)) = &key {
            return self.refuse(fx, index, status);
        }
        if let (Some(source), Some(Ok(key))) = (source, key) {
            let peer = self.peer_name(Some(peer));
            self.source_asked(id);
            fx.run(Work::Source { source, response: id, peer, key, step });
        }
    }

    pub(super) fn forget(&mut self, index: u32) -> Option<Response> {
        // Looked at where it comes to lie: it is long.
        let gone = self.responses.remove(index);
        let r = gone.as_ref()?;
        if let Some(members) = self.table.members_of(r.step) {
            members.responses.remove(&mut self.responses, response_in_step, index, r.in_step);
            self.table.left(r.step);
        }
        if let Some(c) = self.channels.get_mut(r.asked.ch) {
            c.responses.remove(&r.asked.index);
        }
        self.waiting_bytes = self.waiting_bytes.saturating_sub(r.cost);
        if let Some(p) = self.peers.get_mut(r.peer) {
            p.waiting = p.waiting.saturating_sub(1);
            p.waiting_bytes = p.waiting_bytes.saturating_sub(r.cost);
        }
        gone
    }

    fn count_waiting(&mut self, peer: u32, cost: usize) {
        self.waiting_bytes += cost;
        if let Some(p) = self.peers.get_mut(peer) {
            p.waiting += 1;
            p.waiting_bytes += cost;
        }
    }

    /// Whether one more request of this peer may not wait. Who has more than what is left for all gets no
    /// more: however many names somebody takes, as much as each of them has stays for a newcomer.
    fn has_too_many_waiting(&self, peer: u32, cost: usize) -> bool {
        let s = &self.settings;
        let slots = super::slab::CAPACITY.saturating_sub(self.responses.len());
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

    /// Keeps content where it lies until the answers before it have gone.
    fn defer(&mut self, fx: &mut impl Fx, asked: Asked, key: &[u8], step: i64, source: Source) {
        let ch = asked.ch;
        if let Some(c) = self.channels.get_mut(ch)
            && let Err(status) = crate::room::grow(&mut c.deferred, 1, "answers")
        {
            return self.undeliverable(fx, &asked, (key, step), source, status);
        }
        let Some(index) = self.response(fx, asked, key, step, source, RState::Deferred) else {
            return;
        };
        if let Some(c) = self.channels.get_mut(ch) {
            c.deferred.push_back(index);
        }
    }

    /// Sends content that was kept back, as far as it may go now.
    pub(super) fn send_deferred(&mut self, fx: &mut impl Fx, ch: ChanId) {
        while let Some(index) = self.channels.get_mut(ch).and_then(Channel::next_deferred) {
            let waits = |r: &Response| matches!(r.state, RState::Deferred(_));
            if !self.responses.get(index).is_some_and(waits) {
                continue; // Cancelled meanwhile.
            }
            let Some(r) = self.forget(index) else { continue };
            if let RState::Deferred(source) = r.state {
                self.send_content(fx, r.asked, &r.key, r.step, source, &[]);
            }
        }
    }

    /// A response that waited has its tensor; `content`: a copy of what is in it, or nothing.
    pub(super) fn answer(&mut self, fx: &mut impl Fx, index: u32, sent: Sent, content: &[u8]) {
        let Some(r) = self.forget(index) else { return };
        let ch = r.asked.ch;
        self.respond(fx, r.asked, &r.key, r.step, sent, content);
        self.table.keys().give(r.key);
        self.settle(fx, ch);
    }

    /// Sends a tensor to who asked for it.
    fn respond(
        &mut self,
        fx: &mut impl Fx,
        asked: Asked,
        key: &[u8],
        step: i64,
        sent: Sent,
        content: &[u8],
    ) {
        let n = sent.tensor.meta.nbytes;
        if asked.too_short(n) {
            return self.too_long(fx, asked, key, step, sent);
        }
        let mut source = Source {
            tensor: sent.tensor,
            done: sent.done,
            content: sent.content,
            sum: None,
            staged: None,
            window: None,
            started: fx.now(),
            protocol: Protocol::Eager,
        };
        if source.tensor.device != 0 && n > 0 {
            source.window = self.open_device_source(fx, &asked, &source.tensor);
            if source.window.is_none() {
                return self.stage(fx, asked, key, step, source);
            }
        }
        self.send_content(fx, asked, key, step, source, content);
    }

    /// Opens device memory that the provider reaches by itself, where no byte of it has to be seen
    /// here.
    fn open_device_source(
        &self,
        fx: &mut impl Fx,
        asked: &Asked,
        tensor: &Tensor,
    ) -> Option<Window> {
        let n = tensor.meta.nbytes;
        let seen = asked.checksum
            || n <= self.eager_max(asked.ch)
            || self.settings.protocol == Protocol::Eager;
        if seen { None } else { fx.open_device(asked.ch, tensor.addr, n, tensor.device) }
    }

    /// The destination is too short: the receiver fails, the tensor goes to the next who waits for
    /// it, or back to the table.
    fn too_long(&mut self, fx: &mut impl Fx, asked: Asked, key: &[u8], step: i64, mut sent: Sent) {
        let mut asked = asked;
        // A loop, not a recursion: a peer may have made very many requests of this kind.
        loop {
            let status = self.send_too_long(fx, &asked, key, &sent.tensor.meta);
            self.settle(fx, asked.ch);
            self.next_deadline = self.next_deadline.min(sent.deadline);
            let waiter = match self.table.send(key, step, sent) {
                (SendOutcome::Matched(waiter, back), _) => {
                    sent = back;
                    waiter
                }
                (_, Some(refused)) => {
                    let info = self.info(None, None, Protocol::Auto);
                    return self.end_send(fx, refused.done, Err(status), info);
                }
                (_, None) => return,
            };
            match waiter {
                Waiter::Local(index) => return self.deliver_local(fx, index, sent),
                Waiter::Remote(index) => {
                    let Some(r) = self.forget(index) else { return };
                    if !r.asked.too_short(sent.tensor.meta.nbytes) {
                        let ch = r.asked.ch;
                        self.respond(fx, r.asked, key, step, sent, &[]);
                        return self.settle(fx, ch);
                    }
                    asked = r.asked;
                }
            }
        }
    }

    fn send_too_long(
        &mut self,
        fx: &mut impl Fx,
        asked: &Asked,
        key: &[u8],
        meta: &Meta,
    ) -> Status {
        let text = format!(
            "tensor '{}' has {} bytes, the destination given has {}",
            crate::shown::key(key),
            meta.nbytes,
            asked.dst.as_ref().map_or(0, |(_, len)| *len)
        );
        let status = Status::new(Code::OutOfRange, text);
        self.send_error(fx, asked.ch, asked.index, &status);
        status
    }

    /// Takes a response in. `None`: it could not be, and the send has ended with that.
    fn response(
        &mut self,
        fx: &mut impl Fx,
        asked: Asked,
        key: &[u8],
        step: i64,
        source: Source,
        state: impl FnOnce(Source) -> RState,
    ) -> Option<u32> {
        let Some(c) = self.channels.get(asked.ch) else {
            let status = Status::gone("the connection of the receiver ended");
            self.undeliverable(fx, &asked, (key, step), source, status);
            return None;
        };
        if self.responses.len() >= super::slab::CAPACITY {
            let status = Status::new(Code::ResourceExhausted, "too many responses are under way");
            self.undeliverable(fx, &asked, (key, step), source, status);
            return None;
        }
        let (ch, request, peer) = (asked.ch, asked.index, c.peer);
        let own = self.table.keys().copy(key).and_then(|own| {
            // So nothing that follows lacks memory.
            self.room_to_owe(ch)?;
            let room = self.responses.make_room() && self.table.make_room().is_ok();
            room.then_some(own)
                .ok_or_else(|| crate::room::none(size_of::<Response>(), "a response"))
        });
        let own = match own {
            Ok(own) => own,
            Err(status) => {
                self.undeliverable(fx, &asked, (key, step), source, status);
                return None;
            }
        };
        let cost = asked.cost(key);
        let r = Response::new(peer, own, step, asked, state(source), cost);
        // There is room, see above; and if not, the callback comes back from what is dropped here.
        let index = self.responses.insert(r).ok()?;
        self.table.members(step).responses.push(&mut self.responses, response_in_step, index);
        if let Some(c) = self.channels.get_mut(ch) {
            c.responses.insert(request, index);
        }
        self.count_waiting(peer, cost);
        Some(index)
    }
}
