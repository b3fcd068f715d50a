//! The receiving side: a receive, from the call until it is asked for; its cancellation and release.

use super::keys::Key;
use super::leave::request_in_step;
use super::{Named, public_id};
use crate::api::*;
use crate::engine::channel::ChanId;
use crate::engine::list::Links;
use crate::engine::transfer::inbound::{AfterAlloc, Request, State};
use crate::engine::{Due, Engine, Fx, Held, Retained};
use crate::fabric::Access;
use crate::protocol::message::{self, Fits, Message, Short};
use crate::status::{Code, Reason, Status};

/// What is known of a receive before it is asked for.
struct Known {
    /// Metadata of the last tensor of this key, if the destination takes it.
    meta: Option<Meta>,
    /// The connection on which it may be asked for at once.
    ch: Option<ChanId>,
}

impl Engine {
    /// Begins a receive; its public id.
    #[inline(always)]
    pub fn recv(
        &mut self,
        fx: &mut impl Fx,
        peer: Option<&str>,
        key: &[u8],
        step: i64,
        options: RecvOptions,
        done: OnRecv,
    ) -> Result<u64, Status> {
        if self.closing {
            return Err(Self::ending());
        }
        Self::check_key(key)?;
        self.check_device(options.device)?;
        if let Some(status) = self.table.aborted(step) {
            return Err(status.clone());
        }
        let peer = self.sender(peer)?;
        self.admit(fx)?;
        self.table.make_room(step)?;
        if options.keep {
            crate::room::grow(&mut self.kept, 1, "requests that are kept")?;
        }
        let key = self.table.keys().copy(key)?;
        let keep = options.keep;
        let Some(peer) = peer else {
            let known = Known { meta: None, ch: None };
            let (index, id) =
                self.insert_request(fx.now(), None, key, step, options, known, done)?;
            self.keep(id, keep);
            let begun = self.recv_local(fx, index);
            return begun.map(|()| id).inspect_err(|_| self.refuse_recv(index, id));
        };
        let known = self.known(peer, &key, &options.target);
        let ch = known.ch;
        let (index, id) =
            self.insert_request(fx.now(), Some(peer), key, step, options, known, done)?;
        self.keep(id, keep);
        match ch {
            Some(ch) => {
                self.send_request(fx, index, ch);
                self.settle(fx, ch);
            }
            None => self.begin(fx, index),
        }
        Ok(id)
    }

    /// The request will be released by the application.
    #[inline]
    fn keep(&mut self, id: u64, keep: bool) {
        if keep {
            self.kept.insert(id, Retained::Running);
        }
    }

    /// A receive is not accepted after all.
    #[cold]
    fn refuse_recv(&mut self, index: u32, id: u64) {
        if let Some(done) = self.remove_request(index) {
            done.refuse();
        }
        self.kept.remove(&id);
    }

    /// What is known of a receive from a peer before it is asked for.
    #[inline(always)]
    fn known(&mut self, peer: u32, key: &[u8], target: &Target) -> Known {
        let Some(p) = self.peers.get_mut(peer) else { return Known { meta: None, ch: None } };
        let cached = p.cache.get(key);
        let own = &self.stats.own;
        if cached.is_some() { &own.meta_hits } else { &own.meta_misses }.add(1);
        let known = match target {
            Target::Given { len, .. } => {
                Known { meta: cached.filter(|meta| meta.nbytes <= *len).cloned(), ch: p.asks_on() }
            }
            // First memory for it has to be found.
            _ => Known { meta: cached.cloned(), ch: None },
        };
        if p.guest {
            // Named by the application, just now.
            self.peers.keep(peer);
        }
        known
    }

    /// The peer of this name; `None`: this manager itself.
    #[inline]
    fn sender(&mut self, name: Option<&str>) -> Result<Option<u32>, Status> {
        match name {
            Some(name) if self.name != *name => match self.peers.find_again(name) {
                Some(peer) => Ok(Some(peer)),
                None => Err(crate::name::unknown(name)),
            },
            _ => Ok(None),
        }
    }

    /// Takes a request in: into the slab, its step and the deadlines. Its index and its public id.
    #[allow(clippy::too_many_arguments, reason = "the facts of one receive")]
    #[inline(always)]
    fn insert_request(
        &mut self,
        now: u64,
        peer: Option<u32>,
        key: Key,
        step: i64,
        options: RecvOptions,
        known: Known,
        done: OnRecv,
    ) -> Result<(u32, u64), Status> {
        let RecvOptions { timeout, target, device, keep } = options;
        let timeout = timeout.map_or(self.settings.timeout, |t| t.as_nanos() as u64);
        let deadline = now.saturating_add(timeout);
        let dst = if let Target::Given { addr, .. } = target { addr } else { 0 };
        let Some(vacancy) = self.requests.vacancy() else { return Err(self.too_many_receives()) };
        if !self.deadlines.has_timer(vacancy.index()) {
            return Err(crate::room::none(size_of::<Request>(), "a receive"));
        }
        let id = public_id(self.next_id, vacancy.index());
        self.next_id += 1;
        let index = vacancy.fill(Request {
            named: Named { id, key, step, in_step: Links::default() },
            peer,
            ch: None,
            in_queue: Links::default(),
            place: None,
            started: now,
            deadline,
            target,
            device,
            keep,
            done: Due::new(done, self.owner.0),
            state: State::Queued,
            known: known.meta.is_some(),
            meta: known.meta,
            dst,
            buffer: None,
            landing: None,
            legs: None,
            stripes: None,
            flow: None,
            checksum: None,
            protocol: Protocol::Auto,
            ended: None,
            copying: false,
        });
        self.table.members(step).requests.push(&mut self.requests, request_in_step, index);
        self.deadlines.set(index, deadline);
        self.next_deadline = self.next_deadline.min(deadline);
        Ok((index, id))
    }

    #[cold]
    fn too_many_receives(&self) -> Status {
        let text = text!("{} receives are outstanding: no room for more", self.requests.len());
        Status::new(Code::ResourceExhausted, text)
    }

    /// A receive from a peer that is not connected, or into memory that is to be found where the size is known from before.
    #[inline(never)]
    fn begin(&mut self, fx: &mut impl Fx, index: u32) {
        let Some(r) = self.requests.get_mut(index) else { return };
        let given = matches!(r.target, Target::Given { .. });
        let ready = match if given { None } else { r.meta.take() } {
            Some(meta) => self.prepare(fx, index, meta, AfterAlloc::Request, true),
            None => Ok(true),
        };
        match ready {
            Ok(true) => self.submit(fx, index),
            Ok(false) => {}
            Err(_) => self.distrust_cache(fx, index),
        }
        self.settle_request(fx, index);
    }

    /// The living request of this public id.
    fn by_id(&self, id: u64) -> Option<u32> {
        let (index, r) = self.requests.occupant(id as u32)?;
        (r.named.id == id).then_some(index)
    }

    /// TENSOR_REQUEST: asks for the tensor.
    #[inline]
    pub(in crate::engine) fn send_request(&mut self, fx: &mut impl Fx, index: u32, ch: ChanId) {
        let mut head = Short::default();
        if let (Some(c), Some(r)) = (self.channels.get_mut(ch), self.requests.get_mut(index))
            && c.seal.is_none()
            && let len = r.expected()
            && !self.settings.exposes(len, self.settings.room_at(fx, c, r.dst, len).eager)
            && c.takes_asks()
            && let given = matches!(r.target, Target::Given { .. })
            && (r.meta.is_some() && !self.settings.says_room(c) || !given)
            && head.request(index, r.named.step, !given, r.meta.as_ref())
        {
            (r.ch, r.state) = (Some(ch), State::Requested);
            c.counters.requests_sent.add(1);
            r.place = c.ask_short(fx, index, &mut head, &r.named.key);
            return;
        }
        self.send_any_request(fx, index, ch);
    }

    /// The same with an exposed destination, where one may be of use.
    #[inline(never)]
    fn send_any_request(&mut self, fx: &mut impl Fx, index: u32, ch: ChanId) {
        let Some(c) = self.channels.get(ch) else {
            return self.fail_by_defect(
                fx,
                index,
                "a receive was given to a connection that ended",
            );
        };
        let (sealed, full) = (c.seal.is_some(), c.too_many_asks());
        let Some(r) = self.requests.get_mut(index) else { return };
        r.ch = Some(ch);
        let len = r.expected();
        let eager_max = self.settings.room_at(fx, c, r.dst, len).eager;
        if let Some(status) = full {
            return self.fail(fx, index, status);
        }
        c.counters.requests_sent.add(1);
        r.state = State::Requested;
        let any_meta = r.takes_any_meta();
        let expose = self.settings.exposes(len, eager_max);
        if expose && let Err(why) = self.open_landing(fx, index, ch, len, Access::REMOTE_WRITE) {
            // The length is a guess by what is cached, or the room given: the tensor may be smaller. Asked
            // without a destination, its sender tells.
            crate::log::debug(format_args!("a destination of {len} bytes is not opened: {why}"));
        }
        let Some(r) = self.requests.get_mut(index) else { return };
        if let (Fits::UpTo(room), None, None, false) = (r.fits(false), &r.landing, &r.meta, sealed)
            && let Some(c) = self.channels.get_mut(ch)
        {
            let mut head = Short::default();
            head.request_with_room(index, r.named.step, room);
            r.place = c.ask_short(fx, index, &mut head, &r.named.key);
            return;
        }
        let dst = r.landing.as_ref().and_then(|l| {
            let keys = &l.window.as_ref()?.keys;
            Some((self.channels.get(ch)?.place(fx, l.addr, keys), l.len))
        });
        let m = Message::Request(message::Request {
            index,
            step: r.named.step,
            any_meta: any_meta && dst.is_some(),
            fits: r.fits(any_meta && dst.is_some()),
            dst,
            checksum: sealed,
            cached: r.meta.clone(),
            key: &r.named.key,
        });
        r.place = self.channels.get_mut(ch).and_then(|c| c.ask(fx, index, &m, &r.named.key));
    }

    /// The application no longer wants a receive.
    pub fn cancel(&mut self, fx: &mut impl Fx, id: u64) -> Result<(), Status> {
        let index = self.by_id(id).ok_or_else(|| {
            Status::new(Code::NotFound, text!("request {id} is not known or has ended"))
        })?;
        let status = Status::new(Code::Cancelled, "the receive was cancelled");
        self.end(fx, index, status.because(Reason::Cancelled));
        Ok(())
    }

    /// Caches the metadata of a receive that ends well: the only place that does, so no tensor for
    /// which there was no memory is ever in the cache.
    pub(in crate::engine) fn remember(&mut self, index: u32, meta: &Meta) {
        let Some(r) = self.requests.get(index) else { return };
        if r.known {
            return; // It came from there.
        }
        if let Some(peer) = r.peer.and_then(|p| self.peers.get_mut(p))
            && peer.cache.get(&r.named.key).is_none_or(|known| !known.is_like(meta))
        {
            peer.cache.put(&r.named.key, meta);
        }
    }

    /// There was no memory for what the cached metadata says. The sender's tensor may be another by
    /// now: the request goes out as one that knows nothing.
    pub(in crate::engine) fn distrust_cache(&mut self, fx: &mut impl Fx, index: u32) {
        let Some(r) = self.requests.get_mut(index) else { return };
        (r.meta, r.known) = (None, false);
        if let Some(buffer) = r.buffer.take() {
            fx.free(buffer);
        }
        if let Some(peer) = r.peer.and_then(|p| self.peers.get_mut(p)) {
            peer.cache.remove(&r.named.key);
        }
        self.submit(fx, index);
    }

    /// Gives up what a kept request holds. Until its callback has returned that is in use there,
    /// and comes from [`returned`](Self::returned) instead.
    pub fn release(&mut self, id: u64) -> Result<Held, Status> {
        match self.kept.get_mut(&id) {
            Some(kept @ Retained::Running) => {
                *kept = Retained::Released;
                Ok(Held::Nothing)
            }
            None | Some(Retained::Released) => {
                let text = text!("request {id} is not known, not kept, or was released");
                Err(Status::new(Code::NotFound, text))
            }
            Some(Retained::Ended(held)) => {
                let held = std::mem::take(held);
                self.kept.remove(&id);
                Ok(held)
            }
        }
    }

    /// The callback of a kept request has returned. What the request holds stays, or is given back
    /// by the caller if it was released meanwhile.
    pub fn returned(&mut self, id: u64, held: Held) -> Held {
        match self.kept.get_mut(&id) {
            Some(kept @ Retained::Running) => {
                *kept = Retained::Ended(held);
                Held::Nothing
            }
            _ => {
                self.kept.remove(&id);
                held
            }
        }
    }

    /// What requests hold that were never released, at the end.
    pub fn unreleased(&mut self) -> Vec<Held> {
        let ended = |kept| match kept {
            Retained::Ended(held) => Some(held),
            Retained::Running | Retained::Released => None,
        };
        std::mem::take(&mut self.kept).into_values().filter_map(ended).collect()
    }
}
