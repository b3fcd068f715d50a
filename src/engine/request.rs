//! The receiving side of a transfer: a request, from the call to its one callback.

use super::channel::ChanId;
use super::{
    AllocFn, Buffer, Engine, Fx, Held, MapError, Planted, WR_REQUEST, Window, Work, checksum,
};
use crate::api::*;
use crate::fabric::{Access, Mem, Remote};
use crate::protocol::message::{self, Message, MetaResponse};
use crate::rendezvous::{Sent, Waiter};
use crate::status::{Code, Reason, Status};

/// Where the bytes of a transfer land.
pub(super) struct Landing {
    pub addr: u64,
    pub len: u64,
    pub window: Option<Window>,
    /// A registered proxy, copied to the destination afterwards.
    pub staged: Option<Buffer>,
}

/// What an allocation was for.
pub(super) enum AfterAlloc {
    Request,
    Eager(Vec<u8>),
    Meta { response: u32, source: Option<Remote> },
    Local(Sent),
}

pub(super) enum State {
    /// Waits for a connection.
    Queued,
    /// The allocation callback is out.
    Allocating(AfterAlloc),
    /// TENSOR_REQUEST is out; content, metadata or an error comes back.
    Requested,
    /// The metadata is known; the content is being written.
    Awaiting,
    /// The source is being read.
    Reading { left: u32, response: u32, failed: Option<Status> },
    /// From the landing to the destination.
    Copying,
    /// Waits in this manager's own table.
    LocalWait,
    /// Copied from a local sender's tensor.
    LocalCopy(Sent),
    /// Ended for the application, but its memory may still be written.
    Quiescing { status: Status, left: u32, response: Option<u32> },
}

/// See the module's text.
pub(super) struct Request {
    pub id: u64,
    pub peer: Option<u32>,
    pub ch: Option<ChanId>,
    pub key: Box<[u8]>,
    pub step: i64,
    pub started: u64,
    pub deadline: u64,
    pub target: Target,
    pub device: u32,
    pub keep: bool,
    pub done: Option<RecvDone>,
    pub state: State,
    /// Metadata for which `dst` was made; the result's in the end.
    pub meta: Option<Meta>,
    pub dst: u64,
    pub buffer: Option<Buffer>,
    pub landing: Option<Landing>,
    pub checksum: Option<u64>,
    pub protocol: Protocol,
    /// The request ends with this as soon as the callback or copy that is out returns.
    pub ended: Option<Status>,
}

/// A public id is a sequence number followed by the slot: monotonic, and found without a map.
const PUBLIC_SLOT_BITS: u32 = 20;

impl Engine {
    /// Begins a receive; its public id.
    pub fn recv(
        &mut self,
        fx: &mut dyn Fx,
        peer: Option<&str>,
        key: &[u8],
        step: i64,
        options: RecvOptions,
        done: RecvDone,
    ) -> Result<u64, Status> {
        if self.closing {
            return Err(Status::new(Code::FailedPrecondition, "the manager is being destroyed"));
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
        let now = fx.now();
        let timeout = options.timeout.map_or(self.settings.timeout, |t| t.as_nanos() as u64);
        let deadline = now.saturating_add(timeout);
        let sequence = self.id();
        let request = Request {
            id: 0,
            peer,
            ch: None,
            key: key.into(),
            step,
            started: now,
            deadline,
            target: options.target,
            device: options.device,
            keep: options.keep,
            done: Some(done),
            state: State::Queued,
            meta: None,
            dst: 0,
            buffer: None,
            landing: None,
            checksum: None,
            protocol: Protocol::Auto,
            ended: None,
        };
        let keep = request.keep;
        let index = self.requests.insert(request).ok_or_else(|| {
            let text = format!("{} receives are outstanding", super::slab::CAPACITY);
            Status::new(Code::ResourceExhausted, text)
        })?;
        let slot = u64::from(index) & ((1 << PUBLIC_SLOT_BITS) - 1);
        let id = sequence << PUBLIC_SLOT_BITS | slot;
        if let Some(r) = self.requests.get_mut(index) {
            r.id = id;
        }
        if keep {
            self.kept.insert(id, None);
        }
        self.next_deadline = self.next_deadline.min(deadline);
        let begun = match peer {
            None => self.recv_local(fx, index),
            Some(p) => self.begin(fx, index, p),
        };
        if let Err(status) = begun {
            self.requests.remove(index);
            self.kept.remove(&id);
            return Err(status);
        }
        Ok(id)
    }

    fn begin(&mut self, fx: &mut dyn Fx, index: u32, peer: u32) -> Result<(), Status> {
        let Some(r) = self.requests.get_mut(index) else { return Ok(()) };
        let cached = self.peers[peer as usize].cache.get(&r.key).cloned();
        let own = &self.stats.own;
        if cached.is_some() { &own.meta_hits } else { &own.meta_misses }.add(1);
        if let Target::Given { addr, .. } = r.target {
            r.dst = addr;
        }
        match cached {
            Some(meta) => {
                let fits = match r.target {
                    Target::Given { len, .. } => meta.nbytes <= len,
                    _ => true,
                };
                if !fits || self.prepare(fx, index, meta, AfterAlloc::Request, true)? {
                    self.submit(fx, index);
                }
            }
            None => self.submit(fx, index),
        }
        self.settle_request(fx, index);
        Ok(())
    }

    fn settle_request(&mut self, fx: &mut dyn Fx, index: u32) {
        if let Some(ch) = self.requests.get(index).and_then(|r| r.ch) {
            self.settle(fx, ch);
        }
    }

    /// The living request of this public id.
    fn by_id(&self, id: u64) -> Option<u32> {
        let (index, r) = self.requests.occupant(id as u32)?;
        (r.id == id).then_some(index)
    }

    /// Finds memory for a result of this metadata. True: it is there. False: the application's
    /// callback was asked, and `after` says how to go on.
    pub(super) fn prepare(
        &mut self,
        fx: &mut dyn Fx,
        index: u32,
        meta: Meta,
        after: AfterAlloc,
        inline: bool,
    ) -> Result<bool, Status> {
        let Some(r) = self.requests.get_mut(index) else { return Ok(false) };
        if meta.nbytes == 0 {
            r.meta = Some(meta);
            return Ok(true);
        }
        match &mut r.target {
            Target::Given { addr, len } => {
                if meta.nbytes > *len {
                    return Err(Status::new(
                        Code::OutOfRange,
                        format!(
                            "tensor '{}' has {} bytes, the destination given has {len}",
                            String::from_utf8_lossy(&r.key),
                            meta.nbytes
                        ),
                    ));
                }
                r.dst = *addr;
                r.meta = Some(meta);
                Ok(true)
            }
            Target::Library => {
                if let Some(old) = r.buffer.take() {
                    fx.free(old);
                }
                let buffer = fx.alloc(meta.nbytes)?;
                r.dst = buffer.addr;
                r.buffer = Some(buffer);
                r.meta = Some(meta);
                Ok(true)
            }
            Target::Alloc(f) => {
                // The callback is out of the request while it runs; nothing asks for it then.
                let nothing: AllocFn = Box::new(|_| None);
                let alloc = std::mem::replace(f, nothing);
                r.meta = Some(meta.clone());
                r.state = State::Allocating(after);
                fx.run(Work::Alloc { request: index, alloc, meta, inline });
                Ok(false)
            }
        }
    }

    /// The allocation callback has returned.
    pub fn allocated(&mut self, fx: &mut dyn Fx, index: u32, alloc: AllocFn, addr: Option<u64>) {
        let Some(r) = self.requests.get_mut(index) else { return };
        let State::Allocating(after) = std::mem::replace(&mut r.state, State::Queued) else {
            return;
        };
        r.target = Target::Alloc(alloc);
        let status = match (r.ended.take(), addr) {
            (Some(status), _) => Some(status),
            (None, Some(addr)) => {
                r.dst = addr;
                None
            }
            (None, None) => Some(
                Status::new(
                    Code::ResourceExhausted,
                    format!(
                        "the allocation callback gave no memory for {} bytes of '{}'",
                        r.meta.as_ref().map_or(0, |m| m.nbytes),
                        String::from_utf8_lossy(&r.key)
                    ),
                )
                .because(Reason::LocalError),
            ),
        };
        match (after, status) {
            (AfterAlloc::Local(sent), status) => self.local_ready(fx, index, sent, status),
            (AfterAlloc::Meta { response, .. }, Some(status)) => {
                self.drop_response(fx, index, response);
                self.fail(fx, index, status);
            }
            (_, Some(status)) => self.fail(fx, index, status),
            (AfterAlloc::Request, None) => self.submit(fx, index),
            (AfterAlloc::Eager(bytes), None) => self.deliver(fx, index, &bytes),
            (AfterAlloc::Meta { response, source }, None) => {
                self.after_meta(fx, index, response, source)
            }
        }
        self.settle_request(fx, index);
    }

    /// The sender's response is not wanted: tell it.
    fn drop_response(&mut self, fx: &mut dyn Fx, index: u32, response: u32) {
        if let Some(ch) = self.requests.get(index).and_then(|r| r.ch) {
            self.send(fx, ch, &Message::GetDone { response, ok: false }, &[]);
        }
    }

    fn open_landing(
        &mut self,
        fx: &mut dyn Fx,
        index: u32,
        ch: ChanId,
        len: u64,
        access: Access,
    ) -> Result<(), Status> {
        let Some(r) = self.requests.get_mut(index) else { return Ok(()) };
        if r.device == 0 {
            match fx.open(ch, r.dst, len, access) {
                Ok(window) => {
                    let window = Some(window);
                    r.landing = Some(Landing { addr: r.dst, len, window, staged: None });
                    return Ok(());
                }
                Err(MapError::Failed(status)) => return Err(status),
                Err(MapError::NeedProxy) => {}
            }
        }
        let staged = fx.alloc(len)?;
        match fx.open(ch, staged.addr, len, access) {
            Ok(window) => {
                let (addr, window) = (staged.addr, Some(window));
                r.landing = Some(Landing { addr, len, window, staged: Some(staged) });
                Ok(())
            }
            Err(e) => {
                fx.free(staged);
                Err(match e {
                    MapError::Failed(status) => status,
                    MapError::NeedProxy => Status::internal("the proxy's memory is not registered"),
                })
            }
        }
    }

    pub(super) fn close_landing(&mut self, fx: &mut dyn Fx, index: u32) {
        let Some(r) = self.requests.get_mut(index) else { return };
        if let (Some(l), Some(ch)) = (&mut r.landing, r.ch)
            && let Some(window) = l.window.take()
        {
            fx.close(ch, window);
        }
    }

    /// Closes the landing and gives back its proxy: the content comes another way.
    fn drop_landing(&mut self, fx: &mut dyn Fx, index: u32) {
        self.close_landing(fx, index);
        let landing = self.requests.get_mut(index).and_then(|r| r.landing.take());
        if let Some(staged) = landing.and_then(|l| l.staged) {
            fx.free(staged);
        }
    }

    pub(super) fn send_request(&mut self, fx: &mut dyn Fx, index: u32, ch: ChanId) {
        let eager_max = self.eager_max(ch);
        let Some(r) = self.requests.get_mut(index) else { return };
        if let Some(c) = self.channels.get(ch) {
            c.counters.requests_sent.add(1);
        }
        r.ch = Some(ch);
        r.state = State::Requested;
        let any_meta = matches!(r.target, Target::Given { .. }) && r.device == 0;
        let len = match r.target {
            Target::Given { len, .. } if any_meta => len,
            _ => r.meta.as_ref().map_or(0, |m| m.nbytes),
        };
        let forced = self.settings.protocol;
        let expose = len > if forced == Protocol::DirectPut { 0 } else { eager_max }
            && forced != Protocol::DirectGet;
        if expose && let Err(status) = self.open_landing(fx, index, ch, len, Access::REMOTE_WRITE) {
            return self.fail(fx, index, status);
        }
        let Some(r) = self.requests.get(index) else { return };
        let dst = r
            .landing
            .as_ref()
            .and_then(|l| l.window.map(|w| (Remote { addr: l.addr, rkey: w.mr.rkey }, l.len)));
        let key = r.key.clone();
        let m = Message::Request(message::Request {
            index,
            step: r.step,
            any_meta: any_meta && dst.is_some(),
            dst,
            checksum: self.settings.checksum,
            cached: r.meta.clone(),
            key: &key,
        });
        self.send(fx, ch, &m, &key);
    }

    pub(super) fn eager_max(&self, ch: ChanId) -> u64 {
        let Some(c) = self.channels.get(ch) else { return 0 };
        let chosen = self.settings.eager_max.unwrap_or(c.caps.eager_max);
        chosen.min(self.message_max(ch) as usize) as u64
    }

    /// Most content that fits into one message beside the longest metadata.
    pub(super) fn message_max(&self, ch: ChanId) -> u64 {
        const OVERHEAD: usize = 4 + 4 + 8 + 14 + 8 * 16;
        self.channels.get(ch).map_or(0, |c| c.caps.max_send.saturating_sub(OVERHEAD)) as u64
    }

    /// The request of this index, if it is on this channel and waits for an answer.
    fn answered(&mut self, ch: ChanId, index: u32) -> Option<&mut Request> {
        let live = self.requests.get(index).is_some_and(|r| {
            r.ch == Some(ch) && matches!(r.state, State::Requested | State::Awaiting)
        });
        if !live {
            self.stale += 1;
            return None;
        }
        self.requests.get_mut(index)
    }

    fn remember(&mut self, index: u32, meta: &Meta) {
        let Some(r) = self.requests.get(index) else { return };
        let Some(peer) = r.peer else { return };
        let cache = &mut self.peers[peer as usize].cache;
        if cache.get(&r.key) != Some(meta) {
            cache.put(r.key.clone(), meta.clone());
        }
    }

    pub(super) fn on_content(
        &mut self,
        fx: &mut dyn Fx,
        ch: ChanId,
        index: u32,
        sum: Option<u64>,
        meta: Meta,
        content: &[u8],
    ) {
        let Some(r) = self.answered(ch, index) else { return };
        r.protocol = Protocol::Eager;
        let ready = r.meta.as_ref() == Some(&meta);
        self.remember(index, &meta);
        self.drop_landing(fx, index);
        if let Some(sum) = sum
            && sum != checksum(content)
        {
            return self.fail(fx, index, data_loss(sum, checksum(content)));
        }
        if ready || meta.nbytes == 0 {
            if let Some(r) = self.requests.get_mut(index) {
                r.meta = Some(meta);
            }
            return self.deliver(fx, index, content);
        }
        // Only the callback's memory comes later: then the content has to be kept aside.
        let later = matches!(self.requests.get(index).map(|r| &r.target), Some(Target::Alloc(_)));
        let kept = if later { content.to_vec() } else { Vec::new() };
        match self.prepare(fx, index, meta, AfterAlloc::Eager(kept), false) {
            Ok(true) => self.deliver(fx, index, content),
            Ok(false) => {}
            Err(status) => self.fail(fx, index, status),
        }
    }

    /// Puts eager content in its place and ends the request.
    fn deliver(&mut self, fx: &mut dyn Fx, index: u32, content: &[u8]) {
        let Some(r) = self.requests.get_mut(index) else { return };
        if content.is_empty() {
            return self.finish(fx, index, Ok(()));
        }
        if r.device == 0 || matches!(r.target, Target::Library) {
            // SAFETY: `dst` was given or allocated for `meta.nbytes`, which the decoder found equal
            // to the content's length; it is the application's until the callback.
            unsafe { fx.copy_in(r.dst, content) };
            return self.finish(fx, index, Ok(()));
        }
        match fx.alloc(content.len() as u64) {
            Ok(staged) => {
                // SAFETY: `staged` has just been allocated with this length.
                unsafe { fx.copy_in(staged.addr, content) };
                let (addr, len) = (staged.addr, staged.len);
                r.landing = Some(Landing { addr, len, window: None, staged: Some(staged) });
                self.land(fx, index);
            }
            Err(status) => self.fail(fx, index, status),
        }
    }

    pub(super) fn on_meta(&mut self, fx: &mut dyn Fx, ch: ChanId, m: MetaResponse) {
        let index = m.index;
        let Some(r) = self.answered(ch, index) else { return };
        r.checksum = m.checksum;
        if m.follows {
            // The content is on its way to what the request exposed.
            match &r.landing {
                Some(l) if m.meta.nbytes <= l.len => {
                    r.state = State::Awaiting;
                    r.meta = Some(m.meta.clone());
                    self.remember(index, &m.meta);
                }
                _ => self.violation(ch, Status::invalid("content announced that does not fit")),
            }
            return;
        }
        r.protocol = Protocol::DirectGet;
        self.remember(index, &m.meta);
        self.drop_landing(fx, index);
        let same = self.requests.get(index).is_some_and(|r| r.meta.as_ref() == Some(&m.meta));
        let after = AfterAlloc::Meta { response: m.response, source: m.source };
        let ready = if same { Ok(true) } else { self.prepare(fx, index, m.meta, after, false) };
        match ready {
            Ok(true) => self.after_meta(fx, index, m.response, m.source),
            Ok(false) => {}
            Err(status) => {
                self.drop_response(fx, index, m.response);
                self.fail(fx, index, status);
            }
        }
    }

    /// The destination is there: read the source, or ask for the content to be written.
    fn after_meta(&mut self, fx: &mut dyn Fx, index: u32, response: u32, source: Option<Remote>) {
        let Some(r) = self.requests.get(index) else { return };
        let (Some(ch), Some(meta)) = (r.ch, &r.meta) else { return };
        let nbytes = meta.nbytes;
        let (read, max) = match self.channels.get(ch) {
            Some(c) => (c.caps.read, c.caps.max_rdma),
            None => return,
        };
        let source = source.filter(|_| read);
        let access = if source.is_some() { Access::LOCAL_WRITE } else { Access::REMOTE_WRITE };
        if let Err(status) = self.open_landing(fx, index, ch, nbytes, access) {
            self.drop_response(fx, index, response);
            return self.fail(fx, index, status);
        }
        let Some(r) = self.requests.get_mut(index) else { return };
        let Some(Landing { addr, window: Some(window), .. }) = r.landing else { return };
        match source {
            None => {
                r.state = State::Awaiting;
                r.protocol = Protocol::DirectPut;
                let dst = Remote { addr, rkey: window.mr.rkey };
                self.send(fx, ch, &Message::ReRequest { response, dst, len: nbytes }, &[]);
            }
            Some(source) => {
                let left = nbytes.div_ceil(max) as u32;
                r.state = State::Reading { left, response, failed: None };
                let Some(c) = self.channels.get_mut(ch) else { return };
                for (at, len) in pieces(nbytes, max) {
                    // SAFETY: the landing stays valid until the last `Done`, or until the channel
                    // has ended: the request ends only then.
                    let local = unsafe { Mem::new(addr + at, len, window.mr.lkey) };
                    let remote = Remote { addr: source.addr.wrapping_add(at), ..source };
                    c.read(fx, WR_REQUEST | u64::from(index), local, remote);
                }
            }
        }
    }

    /// All content was written: the immediate, or CONTENT_DONE with the checksum, arrived.
    pub(super) fn on_written(&mut self, fx: &mut dyn Fx, ch: ChanId, index: u32, sum: Option<u64>) {
        let Some(r) = self.answered(ch, index) else { return };
        let fits = match (&r.landing, &r.meta) {
            (Some(l), Some(m)) => l.window.is_some() && m.nbytes <= l.len,
            _ => false,
        };
        if !fits {
            return self.violation(ch, Status::invalid("content that was not asked for"));
        }
        r.protocol = Protocol::DirectPut;
        r.checksum = sum;
        self.arrived(fx, index);
    }

    pub(super) fn on_read_done(
        &mut self,
        fx: &mut dyn Fx,
        ch: ChanId,
        index: u32,
        result: Result<(), Status>,
    ) {
        let Some(r) = self.requests.get_mut(index) else { return };
        match &mut r.state {
            State::Reading { left, response, failed } => {
                *left -= 1;
                if let Err(status) = result {
                    failed.get_or_insert(status);
                }
                if *left > 0 {
                    return;
                }
                let (response, failed) = (*response, failed.take());
                let ok = failed.is_none();
                self.send(fx, ch, &Message::GetDone { response, ok }, &[]);
                match failed {
                    None => self.arrived(fx, index),
                    Some(status) => self.fail(fx, index, status),
                }
            }
            State::Quiescing { status, left, response } if *left > 0 => {
                *left -= 1;
                if *left == 0 {
                    let (status, response) = (status.clone(), response.take());
                    if let Some(response) = response {
                        self.send(fx, ch, &Message::GetDone { response, ok: false }, &[]);
                    }
                    self.fail(fx, index, status);
                }
            }
            _ => {}
        }
    }

    /// The content is complete in its landing.
    fn arrived(&mut self, fx: &mut dyn Fx, index: u32) {
        self.close_landing(fx, index);
        let Some(r) = self.requests.get(index) else { return };
        if let (Some(want), Some(l), Some(m)) = (r.checksum, &r.landing, &r.meta) {
            // SAFETY: the landing is valid for its length, and no peer writes to it any more.
            let got = checksum(unsafe { fx.bytes(l.addr, m.nbytes) });
            if want != got {
                return self.fail(fx, index, data_loss(want, got));
            }
        }
        self.land(fx, index);
    }

    /// Copies from a proxy to the destination where there is one, and ends the request.
    fn land(&mut self, fx: &mut dyn Fx, index: u32) {
        let device = self.requests.get(index).map_or(0, |r| r.device);
        let ops = self.device(device);
        let Some(r) = self.requests.get_mut(index) else { return };
        let (Some(l), Some(m)) = (&r.landing, &r.meta) else { return };
        if l.staged.is_none() {
            return self.finish(fx, index, Ok(()));
        }
        let (src, dst, len) = (l.addr, r.dst, m.nbytes);
        let token = WR_REQUEST | u64::from(index);
        r.state = State::Copying;
        match ops {
            Ok(Some(ops)) if !matches!(r.target, Target::Library) => {
                let work =
                    Work::DeviceCopy { token, ops, to_host: false, host: src, device: dst, len };
                fx.run(work);
            }
            Ok(_) => fx.run(Work::HostCopy { token, dst, src, len }),
            Err(status) => self.fail(fx, index, status),
        }
    }

    /// A copy that the engine had asked for has ended.
    pub fn copied(&mut self, fx: &mut dyn Fx, token: u64, result: Result<(), Status>) {
        let index = token as u32;
        if token & super::WR_KIND == super::WR_RESPONSE {
            return self.response_copied(fx, index, result);
        }
        let Some(r) = self.requests.get_mut(index) else { return };
        let result = match r.ended.take() {
            Some(status) => Err(status),
            None => result,
        };
        match std::mem::replace(&mut r.state, State::Copying) {
            State::Copying => match result {
                Ok(()) => self.finish(fx, index, Ok(())),
                Err(status) => self.fail(fx, index, status),
            },
            State::LocalCopy(sent) => self.local_copied(fx, index, sent, result),
            other => r.state = other,
        }
    }

    pub(super) fn on_error(
        &mut self,
        fx: &mut dyn Fx,
        ch: ChanId,
        index: u32,
        code: i32,
        text: &[u8],
    ) {
        if self.answered(ch, index).is_none() {
            return;
        }
        let code = Code::from_i32(code).filter(|&c| c != Code::Ok).unwrap_or(Code::Unknown);
        let text = String::from_utf8_lossy(text).into_owned();
        self.fail(fx, index, Status::new(code, text).because(Reason::RemoteError));
    }

    pub(super) fn on_cancel_ack(&mut self, fx: &mut dyn Fx, ch: ChanId, index: u32) {
        let Some(r) = self.requests.get(index) else { return };
        if let (State::Quiescing { status, left: 0, .. }, true) = (&r.state, r.ch == Some(ch)) {
            let status = status.clone();
            self.fail(fx, index, status);
        }
    }

    /// The application no longer wants a receive.
    pub fn cancel(&mut self, fx: &mut dyn Fx, id: u64) -> Result<(), Status> {
        let index = self.by_id(id).ok_or_else(|| {
            Status::new(Code::NotFound, format!("request {id} is not known or has ended"))
        })?;
        let status = Status::new(Code::Cancelled, "the receive was cancelled");
        self.end(fx, index, status.because(Reason::Cancelled));
        Ok(())
    }

    /// Ends a request early: at once where nothing can touch its memory any more, otherwise as soon
    /// as that is so.
    pub(super) fn end(&mut self, fx: &mut dyn Fx, index: u32, status: Status) {
        let now = fx.now();
        let grace = self.quiesce_grace();
        let Some(r) = self.requests.get_mut(index) else { return };
        let windows = r.ch.and_then(|ch| self.channels.get(ch)).is_some_and(|c| c.caps.windows);
        match &mut r.state {
            State::Queued => {
                if let Some(p) = r.peer {
                    self.peers[p as usize].queue.retain(|&q| q != index);
                }
                self.fail(fx, index, status);
            }
            State::LocalWait => {
                let (key, step) = (r.key.clone(), r.step);
                self.table.remove_waiter(&key, step, Waiter::Local(index));
                self.fail(fx, index, status);
            }
            State::Allocating(_) | State::Copying | State::LocalCopy(_) => {
                r.ended.get_or_insert(status);
            }
            State::Requested | State::Awaiting => {
                let exposed = r.landing.as_ref().is_some_and(|l| l.window.is_some());
                let ch = r.ch;
                if exposed && !windows {
                    r.state = State::Quiescing { status, left: 0, response: None };
                    r.deadline = now + grace;
                    self.next_deadline = self.next_deadline.min(now + grace);
                } else {
                    self.fail(fx, index, status);
                }
                if let Some(ch) = ch {
                    self.send(fx, ch, &Message::Cancel { index }, &[]);
                    self.settle(fx, ch);
                }
            }
            State::Reading { left, response, .. } => {
                let (left, response) = (*left, Some(*response));
                r.state = State::Quiescing { status, left, response };
                r.deadline = now + grace;
                self.next_deadline = self.next_deadline.min(now + grace);
            }
            State::Quiescing { .. } => {}
        }
    }

    pub(super) fn request_lost_channel(
        &mut self,
        fx: &mut dyn Fx,
        index: u32,
        status: &Status,
        provider: &'static str,
    ) {
        let Some(r) = self.requests.get_mut(index) else { return };
        r.ch = None;
        match &r.state {
            State::Allocating(_) | State::Copying => {
                // A copy from a complete landing needs the channel no more.
                if matches!(r.state, State::Allocating(_)) {
                    r.ended.get_or_insert(status.clone());
                }
            }
            State::Quiescing { status, .. } => {
                let status = status.clone();
                self.fail(fx, index, status);
            }
            _ => {
                let mut status = status.clone();
                status.message = format!(
                    "'{}' of step {} from peer '{}' over {provider}: {}",
                    String::from_utf8_lossy(&r.key),
                    r.step,
                    self.peers[r.peer.unwrap_or(0) as usize].name,
                    status.message
                );
                self.fail(fx, index, status);
            }
        }
    }

    pub(super) fn fail(&mut self, fx: &mut dyn Fx, index: u32, status: Status) {
        self.finish(fx, index, Err(status));
    }

    /// Ends a request with its one callback.
    pub(super) fn finish(&mut self, fx: &mut dyn Fx, index: u32, result: Result<(), Status>) {
        self.finish_held(fx, index, result, Held::Nothing, None);
    }

    /// The same; `held` is what a local result refers to, at `addr`.
    pub(super) fn finish_held(
        &mut self,
        fx: &mut dyn Fx,
        index: u32,
        result: Result<(), Status>,
        mut held: Held,
        at: Option<(u64, u32)>,
    ) {
        self.close_landing(fx, index);
        let Some(mut r) = self.requests.remove(index) else { return };
        if let Some(staged) = r.landing.take().and_then(|l| l.staged) {
            fx.free(staged);
        }
        let elapsed_ns = fx.now().saturating_sub(r.started);
        let mut info = TransferInfo { elapsed_ns, ..self.info(r.peer, r.ch, r.protocol) };
        let code = result.as_ref().map_or_else(|s| s.code, |_| Code::Ok);
        let counters = self.counters(r.peer, r.ch);
        self.happened += 1;
        let result = match (result, r.meta.take()) {
            (Ok(()), Some(meta)) => {
                info.bytes = meta.nbytes;
                let library = matches!(r.target, Target::Library);
                let (addr, device) = at.unwrap_or(match meta.nbytes {
                    0 => (0, 0),
                    _ => (r.dst, if library { 0 } else { r.device }),
                });
                if let Some(buffer) = r.buffer.take() {
                    held = Held::Buffer(buffer);
                }
                if self.planted == Some(Planted::WrongBytes) && meta.nbytes > 0 && device == 0 {
                    // SAFETY: the destination holds `nbytes` bytes.
                    unsafe { fx.copy_in(addr, &[0x5a]) };
                }
                Ok(Tensor { meta, addr, device })
            }
            (Ok(()), None) => Err(Status::internal("a receive ended without metadata")),
            (Err(status), _) => {
                info.reason = status.reason;
                if let Some(buffer) = r.buffer.take() {
                    fx.free(buffer);
                }
                Err(status)
            }
        };
        if r.keep {
            let kept = std::mem::take(&mut held);
            self.kept.insert(r.id, Some(kept));
        }
        counters.recv_done(info.bytes, elapsed_ns, code, info.protocol);
        let (request, key, step) = (r.id, r.key, r.step);
        if self.planted == Some(Planted::DoubleCompletion) {
            let (result, info) = (result.clone(), info.clone());
            let (key, after) = (key.clone(), Held::Nothing);
            fx.run(Work::RecvDone { request, key, step, done: None, result, info, after });
        }
        let done = r.done.take();
        fx.run(Work::RecvDone { request, key, step, done, result, info, after: held });
    }

    /// Gives up what a kept request holds.
    pub fn release(&mut self, id: u64) -> Result<Held, Status> {
        match self.kept.remove(&id) {
            Some(Some(held)) => Ok(held),
            Some(None) => {
                self.kept.insert(id, None);
                let text = format!("request {id} has not ended; cancel it first");
                Err(Status::new(Code::FailedPrecondition, text))
            }
            None => {
                let text = format!("request {id} is not known, not kept, or was released");
                Err(Status::new(Code::NotFound, text))
            }
        }
    }
}

fn data_loss(want: u64, got: u64) -> Status {
    let text = format!("checksum of the content is {got:016x}, the sender's is {want:016x}");
    Status::new(Code::DataLoss, text).because(Reason::LocalError)
}

/// Splits `total` bytes into pieces of at most `max`: offset and length of each.
pub(super) fn pieces(total: u64, max: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..total.div_ceil(max)).map(move |i| (i * max, (total - i * max).min(max)))
}
