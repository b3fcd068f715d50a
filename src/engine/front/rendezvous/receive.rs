//! The receiving side: a receive, from the call until it is asked for; its cancellation and release.

use std::borrow::Cow;

use super::{Named, public_id};
use crate::api::*;
use crate::engine::channel::ChanId;
use crate::engine::deadlines::Timer;
use crate::engine::list::Links;
use crate::engine::transfer::inbound::{AfterAlloc, Request, State, request_in_step};
use crate::engine::{Engine, Fx, Held, Kept};
use crate::fabric::Access;
use crate::fabric::keys::Place;
use crate::protocol::message::{self, Message};
use crate::status::{Code, Reason, Status};

impl Engine {
    /// Begins a receive; its public id.
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
        self.device(options.device)?;
        if let Some(status) = self.table.aborted(step) {
            return Err(status.clone());
        }
        let local = peer.is_none_or(|p| *p == *self.name);
        let peer = match peer {
            Some(name) if !local => Some(self.find_peer(name).ok_or_else(|| {
                Status::new(Code::NotFound, format!("peer '{name}' is not known; add it first"))
            })?),
            _ => None,
        };
        let key = self.table.keys().copy(key)?;
        self.admit(fx)?;
        self.table.make_room()?;
        if options.keep {
            crate::room::grow(&mut self.kept, 1, "requests that are kept")?;
        }
        let keep = options.keep;
        let named = Named { id: 0, key, step, in_step: Links::default() };
        let index = self.insert_request(fx, peer, named, options, done)?;
        let id = public_id(self.id(), index);
        if let Some(r) = self.requests.get_mut(index) {
            r.named.id = id;
        }
        if keep {
            self.kept.insert(id, Kept::Running);
        }
        let begun = match peer {
            None => self.recv_local(fx, index),
            Some(p) => {
                self.begin(fx, index, p);
                Ok(())
            }
        };
        if let Err(status) = begun {
            if let Some(done) = self.remove_request(index) {
                done.refuse();
            }
            self.kept.remove(&id);
            return Err(status);
        }
        Ok(id)
    }

    /// Takes a request in: into the slab, its step and the deadlines.
    fn insert_request(
        &mut self,
        fx: &mut impl Fx,
        peer: Option<u32>,
        named: Named,
        options: RecvOptions,
        done: OnRecv,
    ) -> Result<u32, Status> {
        let now = fx.now();
        let timeout = options.timeout.map_or(self.settings.timeout, |t| t.as_nanos() as u64);
        let (deadline, step) = (now.saturating_add(timeout), named.step);
        let request = Request {
            named,
            peer,
            ch: None,
            place: None,
            started: now,
            deadline,
            target: options.target,
            device: options.device,
            keep: options.keep,
            done: self.due(done),
            state: State::Queued,
            meta: None,
            known: false,
            dst: 0,
            buffer: None,
            landing: None,
            checksum: None,
            protocol: Protocol::Auto,
            ended: None,
            copying: false,
            timer: Timer::default(),
        };
        let index = self.requests.insert(request).map_err(|mut request| {
            request.done.take().refuse();
            let text =
                format!("{} receives are outstanding: no room for more", self.requests.len());
            Status::new(Code::ResourceExhausted, text)
        })?;
        self.table.members(step).requests.push(&mut self.requests, request_in_step, index);
        self.set_deadline(index, deadline);
        Ok(index)
    }

    /// A receive from a peer: finds memory where the size is known from before, and asks.
    fn begin(&mut self, fx: &mut impl Fx, index: u32, peer: u32) {
        let Some(r) = self.requests.get_mut(index) else { return };
        // Named by the application.
        self.peers.keep(peer);
        let cached = self.peers.get_mut(peer).and_then(|p| p.cache.get(&r.named.key).cloned());
        let own = &self.stats.own;
        if cached.is_some() { &own.meta_hits } else { &own.meta_misses }.add(1);
        let mut room = u64::MAX;
        if let Target::Given { addr, len } = r.target {
            (r.dst, room) = (addr, len);
        }
        let ready = match cached {
            Some(meta) if meta.nbytes <= room => {
                r.known = true;
                self.prepare(fx, index, meta, AfterAlloc::Request, true)
            }
            _ => Ok(true),
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

    /// TENSOR_REQUEST: asks for the tensor, with an exposed destination where one may be of use.
    pub(in crate::engine) fn send_request(&mut self, fx: &mut impl Fx, index: u32, ch: ChanId) {
        let Some(c) = self.channels.get(ch) else {
            return self.fail_by_defect(
                fx,
                index,
                "a receive was given to a connection that ended",
            );
        };
        let (eager_max, sealed) = (self.room_of(c, 0).eager, c.seal.is_some());
        let full = c.too_many_asks();
        let Some(r) = self.requests.get_mut(index) else { return };
        r.ch = Some(ch);
        if let Some(status) = full {
            return self.fail(fx, index, status);
        }
        c.counters.requests_sent.add(1);
        r.state = State::Requested;
        let any_meta = matches!(r.target, Target::Given { .. }) && r.device == 0;
        let len = match r.target {
            Target::Given { len, .. } if any_meta => len,
            _ => r.meta.as_ref().map_or(0, |m| m.nbytes),
        };
        let forced = self.settings.protocol;
        let expose = len > if forced == Protocol::DirectPut { 0 } else { eager_max }
            && forced != Protocol::DirectGet;
        if expose && let Err(why) = self.open_landing(fx, index, ch, len, Access::REMOTE_WRITE) {
            // The length is a guess by what is cached, or the room given: the tensor may be smaller. Asked
            // without a destination, its sender tells.
            crate::log::debug(format_args!("a destination of {len} bytes is not opened: {why}"));
        }
        let Some(r) = self.requests.get_mut(index) else { return };
        let dst = r.landing.as_ref().and_then(|l| {
            let rkeys = l.window.as_ref()?.keys.map(|mr| mr.rkey);
            Some((Place { addr: l.addr, rkeys }, l.len))
        });
        let m = Message::Request(message::Request {
            index,
            step: r.named.step,
            any_meta: any_meta && dst.is_some(),
            dst,
            checksum: sealed,
            cached: r.meta.as_ref().map(Cow::Borrowed),
            key: &r.named.key,
        });
        r.place = self.channels.get_mut(ch).and_then(|c| c.ask(fx, index, &m, &r.named.key));
    }

    /// The application no longer wants a receive.
    pub fn cancel(&mut self, fx: &mut impl Fx, id: u64) -> Result<(), Status> {
        let index = self.by_id(id).ok_or_else(|| {
            Status::new(Code::NotFound, format!("request {id} is not known or has ended"))
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
            && peer.cache.get(&r.named.key) != Some(meta)
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
            Some(kept @ Kept::Running) => {
                *kept = Kept::Released;
                Ok(Held::Nothing)
            }
            None | Some(Kept::Released) => {
                let text = format!("request {id} is not known, not kept, or was released");
                Err(Status::new(Code::NotFound, text))
            }
            Some(Kept::Ended(held)) => {
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
            Some(kept @ Kept::Running) => {
                *kept = Kept::Ended(held);
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
            Kept::Ended(held) => Some(held),
            Kept::Running | Kept::Released => None,
        };
        std::mem::take(&mut self.kept).into_values().filter_map(ended).collect()
    }
}
