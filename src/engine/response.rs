//! The sending side of a transfer: a response to a peer's request.
//!
//! A tensor that is there and small never becomes a response: its content goes out at once. The
//! others live here while they wait for the tensor, for the runtime, for a copy off a device, for
//! the receiver's answer, or for their writes.

use super::channel::ChanId;
use super::request::pieces;
use super::{Buffer, Engine, Fx, MapError, Planted, WR_RESPONSE, Window, Work, checksum};
use crate::api::*;
use crate::fabric::{Access, Mem, Remote};
use crate::protocol::message::{self, Message, MetaResponse};
use crate::protocol::select::{Choice, Facts, select};
use crate::rendezvous::{MAX_TENSORS, RecvOutcome, SendOutcome, Sent, Waiter};
use crate::status::{Code, Reason, Status};

/// What the peer asked for.
#[derive(Clone)]
pub(super) struct Asked {
    pub ch: ChanId,
    pub index: u32,
    pub dst: Option<(Remote, u64)>,
    pub any_meta: bool,
    pub checksum: bool,
    pub cached: Option<Meta>,
    /// The receiver knows the metadata and `dst` is for just this tensor: what is left is the write.
    pub granted: bool,
}

impl Asked {
    /// The destination was given up front, and has no room for so many bytes.
    fn too_short(&self, nbytes: u64) -> bool {
        self.any_meta && self.dst.is_some_and(|(_, len)| nbytes > len)
    }
}

/// A tensor on its way out.
pub(super) struct Source {
    pub tensor: Tensor,
    pub done: Option<SendDone>,
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
    /// The content is being copied to host or registered memory.
    Staging(Source),
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
    pub key: Box<[u8]>,
    pub step: i64,
    pub asked: Asked,
    pub state: RState,
    /// The receiver gave up; it waits for word that nothing is written any more.
    pub cancelled: bool,
}

const PUBLIC_SLOT_BITS: u32 = 20;

impl Engine {
    /// Offers a tensor under a key: to whoever waits for it, or to the table.
    pub fn post_send(
        &mut self,
        fx: &mut dyn Fx,
        key: &[u8],
        step: i64,
        tensor: Tensor,
        timeout: Option<u64>,
        done: Option<SendDone>,
    ) -> Result<(), Status> {
        if self.closing {
            return Err(Status::new(Code::FailedPrecondition, "the manager is being destroyed"));
        }
        Self::check_key(key)?;
        self.device(tensor.device)?;
        let deadline = timeout.map_or(u64::MAX, |t| fx.now().saturating_add(t));
        self.next_deadline = self.next_deadline.min(deadline);
        match self.table.send(key, step, Sent { tensor, done, deadline }).0 {
            SendOutcome::Stored => Ok(()),
            SendOutcome::Matched(Waiter::Local(index), sent) => {
                self.deliver_local(fx, index, sent);
                Ok(())
            }
            SendOutcome::Matched(Waiter::Remote(index), sent) => {
                self.answer(fx, index, sent);
                Ok(())
            }
            SendOutcome::Duplicate => Err(Status::new(
                Code::Aborted,
                format!(
                    "duplicate send: '{}' of step {step} waits already",
                    String::from_utf8_lossy(key)
                ),
            )),
            SendOutcome::Aborted(status) => Err(status),
            SendOutcome::Full => Err(Status::new(
                Code::ResourceExhausted,
                format!("{MAX_TENSORS} tensors wait to be taken; clean their steps up"),
            )),
        }
    }

    pub(super) fn on_request(&mut self, fx: &mut dyn Fx, ch: ChanId, r: message::Request<'_>) {
        let Some(c) = self.channels.get(ch) else { return };
        let peer = c.peer;
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
        let full = self.peers[peer as usize].waiting >= self.settings.max_waiting;
        let source = self.source.clone();
        let tolerate = self.settings.tolerate_dup_recv;
        let (responses, next_id) = (&mut self.responses, &mut self.next_id);
        let mut made = None;
        let mut make = || {
            if full {
                return None;
            }
            let (key, asked) = (r.key.into(), asked.clone());
            let state = if source.is_some() { RState::Asking } else { RState::Waiting };
            let response =
                Response { id: 0, peer, key, step: r.step, asked, state, cancelled: false };
            let index = responses.insert(response)?;
            let id =
                *next_id << PUBLIC_SLOT_BITS | u64::from(index) & ((1 << PUBLIC_SLOT_BITS) - 1);
            *next_id += 1;
            responses.get_mut(index)?.id = id;
            made = Some((index, id));
            Some(Waiter::Remote(index))
        };
        let outcome = if source.is_some() && !self.table.has_tensor(r.key, r.step) {
            match self.table.aborted(r.step) {
                Some(status) => RecvOutcome::Aborted(status.clone()),
                None => {
                    make();
                    RecvOutcome::Waiting
                }
            }
        } else {
            self.table.recv(r.key, r.step, tolerate, make)
        };
        match outcome {
            RecvOutcome::Matched(sent) => self.respond(fx, asked, r.key, r.step, sent),
            RecvOutcome::Waiting => match made {
                Some((index, id)) => self.owe(fx, ch, peer, index, id, source),
                None => {
                    let text = format!("{} requests of this peer wait", self.settings.max_waiting);
                    let status = Status::new(Code::ResourceExhausted, text);
                    self.send_error(fx, ch, r.index, &status);
                }
            },
            RecvOutcome::Duplicate => {
                let text = format!(
                    "duplicate receive: a request for '{}' of step {} waits already",
                    String::from_utf8_lossy(r.key),
                    r.step
                );
                self.send_error(fx, ch, r.index, &Status::new(Code::Aborted, text));
            }
            RecvOutcome::Aborted(status) => self.send_error(fx, ch, r.index, &status),
        }
    }

    fn owe(
        &mut self,
        fx: &mut dyn Fx,
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
        self.peers[peer as usize].waiting += 1;
        if let Some(source) = source {
            let (key, step) = (r.key.clone(), r.step);
            let peer = self.peers[peer as usize].name.clone();
            fx.run(Work::Source { source, response: id, peer, key, step });
        }
    }

    fn forget(&mut self, index: u32) -> Option<Response> {
        let r = self.responses.remove(index)?;
        if let Some(c) = self.channels.get_mut(r.asked.ch) {
            c.responses.remove(&r.asked.index);
        }
        let p = &mut self.peers[r.peer as usize];
        p.waiting = p.waiting.saturating_sub(1);
        Some(r)
    }

    /// A response that waited has its tensor.
    pub(super) fn answer(&mut self, fx: &mut dyn Fx, index: u32, sent: Sent) {
        let Some(r) = self.forget(index) else { return };
        let ch = r.asked.ch;
        self.respond(fx, r.asked, &r.key, r.step, sent);
        self.settle(fx, ch);
    }

    /// Sends a tensor to who asked for it.
    fn respond(&mut self, fx: &mut dyn Fx, asked: Asked, key: &[u8], step: i64, sent: Sent) {
        let n = sent.tensor.meta.nbytes;
        if asked.too_short(n) {
            return self.too_long(fx, asked, key, step, sent);
        }
        let source = Source {
            tensor: sent.tensor,
            done: sent.done,
            staged: None,
            window: None,
            started: fx.now(),
            protocol: Protocol::Eager,
        };
        if source.tensor.device != 0 && n > 0 {
            return self.stage(fx, asked, key, step, source);
        }
        self.send_content(fx, asked, key, step, source);
    }

    /// The destination is too short: the receiver fails, the tensor goes to the next who waits for
    /// it, or back to the table.
    fn too_long(&mut self, fx: &mut dyn Fx, asked: Asked, key: &[u8], step: i64, mut sent: Sent) {
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
                    return self.end_send(fx, refused.done, Err(status), info, false);
                }
                (_, None) => return,
            };
            match waiter {
                Waiter::Local(index) => return self.deliver_local(fx, index, sent),
                Waiter::Remote(index) => {
                    let Some(r) = self.forget(index) else { return };
                    if !r.asked.too_short(sent.tensor.meta.nbytes) {
                        let ch = r.asked.ch;
                        self.respond(fx, r.asked, key, step, sent);
                        return self.settle(fx, ch);
                    }
                    asked = r.asked;
                }
            }
        }
    }

    fn send_too_long(&mut self, fx: &mut dyn Fx, asked: &Asked, key: &[u8], meta: &Meta) -> Status {
        let text = format!(
            "tensor '{}' has {} bytes, the destination given has {}",
            String::from_utf8_lossy(key),
            meta.nbytes,
            asked.dst.map_or(0, |(_, len)| len)
        );
        let status = Status::new(Code::OutOfRange, text);
        self.send_error(fx, asked.ch, asked.index, &status);
        status
    }

    /// Whether another response can be taken in on this channel.
    fn room(&self, ch: ChanId) -> Result<(), Status> {
        if self.channels.get(ch).is_none() {
            return Err(Status::gone("the connection of the receiver ended"));
        }
        if self.responses.len() >= super::slab::CAPACITY {
            return Err(Status::new(Code::ResourceExhausted, "too many responses are under way"));
        }
        Ok(())
    }

    /// Takes a response in. `None` only without `room`.
    fn response(&mut self, asked: Asked, key: &[u8], step: i64, state: RState) -> Option<u32> {
        let c = self.channels.get_mut(asked.ch)?;
        let (ch, request, peer) = (asked.ch, asked.index, c.peer);
        let r = Response { id: 0, peer, key: key.into(), step, asked, state, cancelled: false };
        let index = self.responses.insert(r)?;
        if let Some(c) = self.channels.get_mut(ch) {
            c.responses.insert(request, index);
        }
        self.peers[peer as usize].waiting += 1;
        Some(index)
    }

    /// Ends the send of a source that cannot go out.
    fn undeliverable(&mut self, fx: &mut dyn Fx, asked: &Asked, source: Source, status: Status) {
        self.send_error(fx, asked.ch, asked.index, &status);
        self.end_source(fx, asked.ch, source, Err(status), false);
    }

    fn end_source(
        &mut self,
        fx: &mut dyn Fx,
        ch: ChanId,
        mut source: Source,
        result: Result<(), Status>,
        inline: bool,
    ) {
        if let Some(window) = source.window.take() {
            fx.close(ch, window);
        }
        if let Some(staged) = source.staged.take() {
            fx.free(staged);
        }
        let peer = self.channels.get(ch).map(|c| c.peer);
        let mut info = self.info(peer, Some(ch), source.protocol);
        info.elapsed_ns = fx.now().saturating_sub(source.started);
        if result.is_ok() {
            info.bytes = source.tensor.meta.nbytes;
        }
        let code = result.as_ref().map_or_else(|s| s.code, |_| Code::Ok);
        if let Some(c) = self.channels.get(ch) {
            c.counters.send_done(info.bytes, code, info.protocol);
        }
        self.end_send(fx, source.done, result, info, inline);
    }

    /// Copies the content to memory of the library: off a device, or to where it is registered.
    fn stage(&mut self, fx: &mut dyn Fx, asked: Asked, key: &[u8], step: i64, mut source: Source) {
        let len = source.tensor.meta.nbytes;
        self.stats.own.proxy_bytes.add(len);
        let (device, from) = (source.tensor.device, source.tensor.addr);
        let ready = self.device(device).and_then(|ops| Ok((ops, fx.alloc(len)?)));
        let (ops, staged) = match ready {
            Ok(ready) => ready,
            Err(status) => return self.undeliverable(fx, &asked, source, status),
        };
        let dst = staged.addr;
        source.staged = Some(staged);
        if let Err(status) = self.room(asked.ch) {
            return self.undeliverable(fx, &asked, source, status);
        }
        let state = RState::Staging(source);
        let Some(index) = self.response(asked, key, step, state) else { return };
        let token = WR_RESPONSE | u64::from(index);
        fx.run(match ops {
            Some(ops) => {
                Work::DeviceCopy { token, ops, to_host: true, host: dst, device: from, len }
            }
            None => Work::HostCopy { token, dst, src: from, len },
        });
    }

    pub(super) fn response_copied(
        &mut self,
        fx: &mut dyn Fx,
        index: u32,
        result: Result<(), Status>,
    ) {
        let Some(r) = self.forget(index) else { return };
        let RState::Staging(source) = r.state else { return };
        let ch = r.asked.ch;
        if r.cancelled || self.channels.get(ch).is_none() {
            if r.cancelled {
                self.send(fx, ch, &Message::CancelAck { index: r.asked.index }, &[]);
            }
            let status = Status::new(Code::Cancelled, "the receiver no longer wants the tensor");
            self.end_source(fx, ch, source, Err(status.because(Reason::RemoteError)), false);
        } else {
            match result {
                Ok(()) => self.send_content(fx, r.asked, &r.key, r.step, source),
                Err(status) => self.undeliverable(fx, &r.asked, source, status),
            }
        }
        self.settle(fx, ch);
    }

    /// Sends content that is in host memory.
    fn send_content(
        &mut self,
        fx: &mut dyn Fx,
        asked: Asked,
        key: &[u8],
        step: i64,
        mut source: Source,
    ) {
        let ch = asked.ch;
        let (eager_max, message_max) = (self.eager_max(ch), self.message_max(ch));
        let Some(c) = self.channels.get_mut(ch) else {
            let status = Status::gone("the connection of the receiver ended");
            return self.end_source(fx, ch, source, Err(status), false);
        };
        let meta = &source.tensor.meta;
        let facts = Facts {
            nbytes: meta.nbytes,
            eager_max,
            message_max,
            dst_len: asked.dst.map(|(_, len)| len),
            meta_known: asked.cached.as_ref() == Some(meta),
            any_meta: asked.any_meta,
            can_read: c.caps.read,
            forced: self.settings.protocol,
        };
        let sum = asked.checksum && meta.nbytes > 0;
        // SAFETY: the sender keeps the tensor valid and unchanged until its callback, which comes
        // from here later; a staged copy is ours.
        let content = unsafe { fx.bytes(source.addr(), meta.nbytes) };
        let sum = if sum { Some(checksum(content)) } else { None };
        let choice = if asked.granted { Choice::Put { tell: false } } else { select(facts) };
        match choice {
            Choice::Eager => {
                let meta = meta.clone();
                let m = Message::Content { index: asked.index, checksum: sum, meta, content };
                c.send(fx, &m, content);
                self.end_source(fx, ch, source, Ok(()), true);
            }
            Choice::Put { tell } => {
                if tell {
                    let m = MetaResponse {
                        index: asked.index,
                        response: 0,
                        follows: true,
                        source: None,
                        checksum: None,
                        meta: meta.clone(),
                    };
                    c.send(fx, &Message::Meta(m), &[]);
                }
                let dst = asked.dst.map(|(remote, _)| remote);
                source.protocol = Protocol::DirectPut;
                self.put(fx, asked, key, step, source, dst, sum);
            }
            choice => {
                let offer = choice == Choice::OfferGet;
                source.protocol = if offer { Protocol::DirectGet } else { Protocol::DirectPut };
                self.tell(fx, asked, key, step, source, offer, sum);
            }
        }
    }

    /// Opens the source for an operation; `Ok(None)`: it needs a registered copy first.
    fn open_source(
        &mut self,
        fx: &mut dyn Fx,
        ch: ChanId,
        source: &Source,
        access: Access,
    ) -> Result<Option<Window>, Status> {
        match fx.open(ch, source.addr(), source.tensor.meta.nbytes, access) {
            Ok(window) => Ok(Some(window)),
            Err(MapError::NeedProxy) if source.staged.is_none() => Ok(None),
            Err(MapError::NeedProxy) => {
                Err(Status::internal("the proxy's memory is not registered"))
            }
            Err(MapError::Failed(status)) => Err(status),
        }
    }

    /// META_DATA_RESPONSE: the receiver allocates, then reads or asks again.
    #[allow(clippy::too_many_arguments, reason = "the facts of one transfer")]
    fn tell(
        &mut self,
        fx: &mut dyn Fx,
        asked: Asked,
        key: &[u8],
        step: i64,
        mut source: Source,
        offer: bool,
        sum: Option<u64>,
    ) {
        if offer {
            match self.open_source(fx, asked.ch, &source, Access::REMOTE_READ) {
                Ok(Some(window)) => source.window = Some(window),
                Ok(None) => return self.stage(fx, asked, key, step, source),
                Err(status) => return self.undeliverable(fx, &asked, source, status),
            }
        }
        let remote = source.window.map(|w| Remote { addr: source.addr(), rkey: w.mr.rkey });
        let meta = source.tensor.meta.clone();
        let (ch, request) = (asked.ch, asked.index);
        if let Err(status) = self.room(ch) {
            return self.undeliverable(fx, &asked, source, status);
        }
        let state = RState::Told(source);
        let Some(response) = self.response(asked, key, step, state) else { return };
        let m = MetaResponse {
            index: request,
            response,
            follows: false,
            source: remote,
            checksum: sum,
            meta,
        };
        self.send(fx, ch, &Message::Meta(m), &[]);
    }

    /// Writes the content to the destination, in pieces where it is longer than the provider takes.
    #[allow(clippy::too_many_arguments, reason = "the facts of one transfer")]
    fn put(
        &mut self,
        fx: &mut dyn Fx,
        asked: Asked,
        key: &[u8],
        step: i64,
        mut source: Source,
        dst: Option<Remote>,
        sum: Option<u64>,
    ) {
        let ch = asked.ch;
        let (Some(dst), Some(c)) = (dst, self.channels.get(ch)) else { return };
        let (windows, max) = (c.caps.windows, c.caps.max_rdma);
        if !windows && source.window.is_none() {
            match self.open_source(fx, ch, &source, Access::empty()) {
                Ok(Some(window)) => source.window = Some(window),
                Ok(None) => {
                    // After the copy it goes on from here, without telling the metadata again.
                    let dst = Some((dst, source.tensor.meta.nbytes));
                    let asked = Asked { dst, granted: true, ..asked };
                    return self.stage(fx, asked, key, step, source);
                }
                Err(status) => return self.undeliverable(fx, &asked, source, status),
            }
        }
        let (addr, nbytes) = (source.addr(), source.tensor.meta.nbytes);
        let lkey = source.window.map_or(0, |w| w.mr.lkey);
        let request = asked.index;
        let left = nbytes.div_ceil(max) as u32;
        if let Err(status) = self.room(ch) {
            return self.undeliverable(fx, &asked, source, status);
        }
        let state = RState::Writing { source, left, failed: None };
        let Some(index) = self.response(asked, key, step, state) else { return };
        let Some(c) = self.channels.get_mut(ch) else { return };
        let wr = WR_RESPONSE | u64::from(index);
        for (at, len) in pieces(nbytes, max) {
            let last = at + len == nbytes;
            // SAFETY: the source is valid until the sender's callback, which comes after the last
            // `Done` or after the channel has ended.
            let local = unsafe { Mem::new(addr + at, len, lkey) };
            let remote = Remote { addr: dst.addr.wrapping_add(at), ..dst };
            let imm = (last && sum.is_none()).then_some(request);
            c.write(fx, wr, local, remote, imm);
        }
        if let Some(checksum) = sum {
            c.send(fx, &Message::ContentDone { index: request, checksum }, &[]);
        }
    }

    pub(super) fn on_re_request(
        &mut self,
        fx: &mut dyn Fx,
        ch: ChanId,
        index: u32,
        dst: Remote,
        len: u64,
    ) {
        let told = self
            .responses
            .get(index)
            .is_some_and(|r| r.asked.ch == ch && matches!(r.state, RState::Told(_)));
        if !told {
            self.stale += 1;
            return;
        }
        let Some(r) = self.forget(index) else { return };
        let RState::Told(mut source) = r.state else { return };
        if len < source.tensor.meta.nbytes {
            let status = Status::invalid(format!(
                "TENSOR_RE_REQUEST with room for {len} bytes, the tensor has {}",
                source.tensor.meta.nbytes
            ));
            return self.undeliverable(fx, &r.asked, source, status);
        }
        source.protocol = Protocol::DirectPut;
        let sum = r.asked.checksum.then(|| {
            // SAFETY: as in `send_content`.
            checksum(unsafe { fx.bytes(source.addr(), source.tensor.meta.nbytes) })
        });
        self.put(fx, r.asked, &r.key, r.step, source, Some(dst), sum);
    }

    pub(super) fn on_get_done(&mut self, fx: &mut dyn Fx, ch: ChanId, index: u32, ok: bool) {
        let told = self
            .responses
            .get(index)
            .is_some_and(|r| r.asked.ch == ch && matches!(r.state, RState::Told(_)));
        if !told {
            self.stale += 1;
            return;
        }
        let Some(r) = self.forget(index) else { return };
        let RState::Told(source) = r.state else { return };
        let result = if ok {
            Ok(())
        } else {
            let status = Status::new(Code::Cancelled, "the receiver gave the tensor up");
            Err(status.because(Reason::RemoteError))
        };
        self.end_source(fx, ch, source, result, false);
    }

    pub(super) fn on_write_done(
        &mut self,
        fx: &mut dyn Fx,
        ch: ChanId,
        index: u32,
        result: Result<(), Status>,
    ) {
        let Some(r) = self.responses.get_mut(index) else { return };
        let RState::Writing { left, failed, .. } = &mut r.state else { return };
        *left -= 1;
        if let Err(status) = result {
            failed.get_or_insert(status);
        }
        if *left > 0 {
            return;
        }
        let Some(r) = self.forget(index) else { return };
        let RState::Writing { source, failed, .. } = r.state else { return };
        if r.cancelled {
            self.send(fx, ch, &Message::CancelAck { index: r.asked.index }, &[]);
        }
        match failed {
            None => self.end_source(fx, ch, source, Ok(()), false),
            Some(status) => self.undeliverable(fx, &r.asked, source, status),
        }
    }

    pub(super) fn on_cancel(&mut self, fx: &mut dyn Fx, ch: ChanId, request: u32) {
        let found = self.channels.get(ch).and_then(|c| c.responses.get(&request).copied());
        let busy = found.and_then(|i| self.responses.get_mut(i)).is_some_and(|r| {
            let busy = matches!(r.state, RState::Writing { .. } | RState::Staging(_));
            r.cancelled |= busy;
            busy
        });
        if busy {
            return; // Acknowledged when the writes have ended.
        }
        if let Some(r) = found.and_then(|i| self.forget_waiting(i))
            && let RState::Told(source) = r.state
        {
            let status = Status::new(Code::Cancelled, "the receiver cancelled");
            self.end_source(fx, ch, source, Err(status.because(Reason::RemoteError)), false);
        }
        self.send(fx, ch, &Message::CancelAck { index: request }, &[]);
    }

    /// Removes a response, also from the table if it waits there.
    fn forget_waiting(&mut self, index: u32) -> Option<Response> {
        let r = self.forget(index)?;
        if matches!(r.state, RState::Waiting) {
            self.table.remove_waiter(&r.key, r.step, Waiter::Remote(index));
        }
        Some(r)
    }

    pub(super) fn close_source(&mut self, fx: &mut dyn Fx, index: u32) {
        let Some(r) = self.responses.get_mut(index) else { return };
        let ch = r.asked.ch;
        if let RState::Told(source) | RState::Writing { source, .. } = &mut r.state
            && let Some(window) = source.window.take()
        {
            fx.close(ch, window);
        }
    }

    pub(super) fn response_lost_channel(&mut self, fx: &mut dyn Fx, index: u32, status: &Status) {
        let staging =
            self.responses.get(index).is_some_and(|r| matches!(r.state, RState::Staging(_)));
        if staging {
            return; // The copy writes to our buffer; `response_copied` ends it.
        }
        let Some(r) = self.forget_waiting(index) else { return };
        if let RState::Told(source) | RState::Writing { source, .. } = r.state {
            let peer = &self.peers[r.peer as usize].name;
            let mut status = status.clone();
            status.message = format!(
                "'{}' of step {} to peer '{peer}': {}",
                String::from_utf8_lossy(&r.key),
                r.step,
                status.message
            );
            self.end_source(fx, r.asked.ch, source, Err(status), false);
        }
    }

    /// Ends a remote receive that waits here, with an error.
    pub(super) fn refuse(&mut self, fx: &mut dyn Fx, index: u32, status: &Status) {
        let Some(r) = self.forget(index) else { return };
        self.send_error(fx, r.asked.ch, r.asked.index, status);
        self.settle(fx, r.asked.ch);
    }

    fn asked_of_runtime(&mut self, id: u64) -> Result<u32, Status> {
        let found = self.responses.occupant(id as u32).filter(|(_, r)| r.id == id);
        match found {
            Some((index, r)) if matches!(r.state, RState::Asking) => Ok(index),
            _ => {
                let text =
                    format!("response {id} is not known: answered, or given up by its receiver");
                Err(Status::new(Code::NotFound, text))
            }
        }
    }

    /// The runtime answers a request that was passed to its source callback.
    pub fn response_send(
        &mut self,
        fx: &mut dyn Fx,
        id: u64,
        tensor: Tensor,
        done: Option<SendDone>,
    ) -> Result<(), Status> {
        self.device(tensor.device)?;
        let index = self.asked_of_runtime(id)?;
        let short = |r: &Response| r.asked.too_short(tensor.meta.nbytes);
        if self.responses.get(index).is_some_and(short) {
            return self.answered_too_long(fx, index, &tensor.meta, done);
        }
        self.answer(fx, index, Sent { tensor, done, deadline: u64::MAX });
        Ok(())
    }

    /// The runtime's tensor does not fit. It is not put into the table, of which the runtime, having
    /// a rendezvous of its own, knows nothing.
    fn answered_too_long(
        &mut self,
        fx: &mut dyn Fx,
        index: u32,
        meta: &Meta,
        done: Option<SendDone>,
    ) -> Result<(), Status> {
        let Some(r) = self.forget(index) else { return Ok(()) };
        let status = self.send_too_long(fx, &r.asked, &r.key, meta);
        let info = self.info(Some(r.peer), None, Protocol::Auto);
        self.end_send(fx, done, Err(status), info, false);
        self.settle(fx, r.asked.ch);
        Ok(())
    }

    /// The runtime has no tensor for the request.
    pub fn response_fail(
        &mut self,
        fx: &mut dyn Fx,
        id: u64,
        status: &Status,
    ) -> Result<(), Status> {
        let index = self.asked_of_runtime(id)?;
        if self.planted == Some(Planted::NeverEnds) {
            self.forget(index);
            return Ok(());
        }
        self.refuse(fx, index, status);
        Ok(())
    }

    /// Responses of this step that the runtime was asked for.
    pub(super) fn asked_in_step(&self, step: i64) -> Vec<u32> {
        let of_step = |r: &Response| r.step == step && matches!(r.state, RState::Asking);
        self.responses.iter().filter(|(_, r)| of_step(r)).map(|(i, _)| i).collect()
    }
}
