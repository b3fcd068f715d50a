//! How a response carries its content: in a message, by writes, or read by the receiver.

use super::*;
use crate::engine::request::USUAL_DIMS;

impl Engine {
    /// Copies the content to memory of the library: off a device, or to where it is registered.
    pub(super) fn stage(
        &mut self,
        fx: &mut impl Fx,
        asked: Asked,
        key: &[u8],
        step: i64,
        source: Source,
    ) {
        self.stats.own.proxy_bytes.add(source.tensor.meta.nbytes);
        self.gather(fx, asked, key, step, source);
    }

    /// The same copy, for a message: on its way into one content passes no proxy.
    fn gather(
        &mut self,
        fx: &mut impl Fx,
        asked: Asked,
        key: &[u8],
        step: i64,
        mut source: Source,
    ) {
        let len = source.tensor.meta.nbytes;
        let (device, from) = (source.tensor.device, source.tensor.addr);
        let ready = self.device(device).and_then(|ops| Ok((ops, fx.alloc(len)?)));
        let (ops, staged) = match ready {
            Ok(ready) => ready,
            Err(status) => return self.undeliverable(fx, &asked, (key, step), source, status),
        };
        let dst = staged.addr;
        source.staged = Some(staged);
        let Some(index) = self.response(fx, asked, key, step, source, RState::Staging) else {
            return;
        };
        let token = WR_RESPONSE | u64::from(index);
        fx.run(match ops {
            Some(ops) => {
                Work::DeviceCopy { token, ops, to_host: true, host: dst, device: from, len }
            }
            None => Work::HostCopy { token, dst, src: from, len },
        });
    }

    /// Computes the checksum of the content, of any length and on slow pages: not here.
    fn hash(&mut self, fx: &mut impl Fx, asked: Asked, key: &[u8], step: i64, source: Source) {
        let (addr, len) = (source.addr(), source.tensor.meta.nbytes);
        let Some(index) = self.response(fx, asked, key, step, source, RState::Staging) else {
            return;
        };
        fx.run(Work::HostHash { token: WR_RESPONSE | u64::from(index), addr, len });
    }

    pub(in crate::engine) fn response_hashed(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        result: Result<u64, Status>,
    ) {
        if let (Some(Response { state: RState::Staging(source), .. }), Ok(sum)) =
            (self.responses.get_mut(index), &result)
        {
            source.sum = Some(*sum);
        }
        self.response_copied(fx, index, result.map(drop));
    }

    pub(in crate::engine) fn response_copied(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        result: Result<(), Status>,
    ) {
        let staging = |r: &Response| matches!(r.state, RState::Staging(_));
        if !self.responses.get(index).is_some_and(staging) {
            self.defect("a copy of a response that was not asked for");
            return;
        }
        let Some(r) = self.forget(index) else { return };
        let RState::Staging(source) = r.state else { return };
        let ch = r.asked.ch;
        let result = r.ended.map_or(result, Err);
        if r.cancelled || self.channels.get(ch).is_none() {
            if r.cancelled {
                self.send(fx, ch, &Message::CancelAck { index: r.asked.index }, &[]);
            }
            let status = Status::new(Code::Cancelled, "the receiver no longer wants the tensor");
            self.end_source(
                fx,
                ch,
                (&r.key, r.step),
                source,
                Err(status.because(Reason::RemoteError)),
                false,
            );
        } else {
            match result {
                Ok(()) => self.send_content(fx, r.asked, &r.key, r.step, source, &[]),
                Err(status) => self.undeliverable(fx, &r.asked, (&r.key, r.step), source, status),
            }
        }
        self.settle(fx, ch);
    }

    /// Sends content that is in host memory, or opened on its device; `copied`: a copy of it, or nothing.
    pub(super) fn send_content(
        &mut self,
        fx: &mut impl Fx,
        asked: Asked,
        key: &[u8],
        step: i64,
        mut source: Source,
        copied: &[u8],
    ) {
        let ch = asked.ch;
        let more_dims = source.tensor.meta.dims.len().saturating_sub(USUAL_DIMS) as u64;
        let message_max = self.message_max(ch).saturating_sub(8 * more_dims);
        let eager_max = self.eager_max(ch).min(message_max);
        let Some(c) = self.channels.get_mut(ch) else {
            let status = Status::gone("the connection of the receiver ended");
            return self.end_source(fx, ch, (key, step), source, Err(status), false);
        };
        let meta = &source.tensor.meta;
        let facts = Facts {
            nbytes: meta.nbytes,
            eager_max,
            message_max,
            dst_len: asked.dst.as_ref().map(|(_, len)| *len),
            meta_known: asked.cached.as_ref() == Some(meta),
            any_meta: asked.any_meta,
            can_read: c.caps.read,
            forced: self.settings.protocol,
        };
        let sealed = asked.checksum && meta.nbytes > 0;
        let choice = if asked.granted { Choice::Put { tell: false } } else { select(facts) };
        if choice != Choice::Eager && sealed && source.sum.is_none() {
            return self.hash(fx, asked, key, step, source);
        }
        let sum = source.sum;
        // What can be read without touching the application's memory.
        let content = match &source.staged {
            // SAFETY: it is ours, filled, and freed only with the source.
            Some(staged) => unsafe { fx.bytes(staged) },
            None if copied.is_empty() => &source.content[..],
            None => copied,
        };
        match choice {
            Choice::Eager if content.len() as u64 != meta.nbytes => {
                self.gather(fx, asked, key, step, source)
            }
            Choice::Eager if c.is_congested() && meta.nbytes > 0 => {
                self.defer(fx, asked, key, step, source)
            }
            Choice::Eager => {
                let sum = sealed.then(|| sum.unwrap_or_else(|| checksum(content)));
                let meta = meta.clone();
                let m = Message::Content { index: asked.index, checksum: sum, meta, content };
                c.send(fx, &m, content);
                self.end_source(fx, ch, (key, step), source, Ok(()), true);
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
                let dst = asked.dst.as_ref().map(|(place, _)| place.clone());
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
        fx: &mut impl Fx,
        ch: ChanId,
        source: &Source,
        access: Access,
    ) -> Result<Option<Window>, Status> {
        match fx.open(ch, source.addr(), source.tensor.meta.nbytes, access) {
            Ok(window) => Ok(Some(window)),
            Err(MapError::NeedProxy) if source.staged.is_none() => Ok(None),
            Err(MapError::NeedProxy) => Err(self.defect("the proxy's memory is not registered")),
            Err(MapError::Failed(status)) => Err(status),
        }
    }

    /// META_DATA_RESPONSE: the receiver allocates, then reads or asks again.
    #[allow(clippy::too_many_arguments, reason = "the facts of one transfer")]
    fn tell(
        &mut self,
        fx: &mut impl Fx,
        asked: Asked,
        key: &[u8],
        step: i64,
        mut source: Source,
        offer: bool,
        sum: Option<u64>,
    ) {
        if offer && source.window.is_none() {
            match self.open_source(fx, asked.ch, &source, Access::REMOTE_READ) {
                Ok(Some(window)) => source.window = Some(window),
                Ok(None) => return self.stage(fx, asked, key, step, source),
                Err(status) => return self.undeliverable(fx, &asked, (key, step), source, status),
            }
        }
        let place = source.window.as_ref().filter(|_| offer).map(|w| {
            let rkeys = w.keys.map(|mr| mr.rkey);
            Place { addr: source.addr(), rkeys }
        });
        let meta = source.tensor.meta.clone();
        let (ch, request) = (asked.ch, asked.index);
        let Some(response) = self.response(fx, asked, key, step, source, RState::Told) else {
            return;
        };
        let m = MetaResponse {
            index: request,
            response,
            follows: false,
            source: place,
            checksum: sum,
            meta,
        };
        self.send(fx, ch, &Message::Meta(m), &[]);
    }

    /// Writes the content to the destination, in pieces where it is longer than the provider takes.
    #[allow(clippy::too_many_arguments, reason = "the facts of one transfer")]
    fn put(
        &mut self,
        fx: &mut impl Fx,
        asked: Asked,
        key: &[u8],
        step: i64,
        mut source: Source,
        dst: Option<Place>,
        sum: Option<u64>,
    ) {
        let ch = asked.ch;
        let Some(dst) = dst else {
            let status = self.defect("a tensor is to be written to no place");
            return self.undeliverable(fx, &asked, (key, step), source, status);
        };
        let Some(c) = self.channels.get(ch) else {
            let status = Status::gone("the connection of the receiver ended");
            return self.undeliverable(fx, &asked, (key, step), source, status);
        };
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
                Err(status) => return self.undeliverable(fx, &asked, (key, step), source, status),
            }
        }
        let (addr, nbytes) = (source.addr(), source.tensor.meta.nbytes);
        let lkeys = source.window.as_ref().map_or(Keys::one(0), |w| w.keys.map(|mr| mr.lkey));
        let request = asked.index;
        let parts = pieces(nbytes, max, &lkeys, &dst);
        let left = parts.clone().count() as u32;
        let state = |source| RState::Writing { source, left, failed: None };
        let Some(index) = self.response(fx, asked, key, step, source, state) else { return };
        let Some(c) = self.channels.get_mut(ch) else { return };
        let wr = WR_RESPONSE | u64::from(index);
        for p in parts {
            let last = p.at + p.len == nbytes;
            // SAFETY: the source is valid until the sender's callback, which comes after the last
            // `Done` or after the channel has ended.
            let local = unsafe { Mem::new(addr + p.at, p.len, p.lkey) };
            let imm = (last && sum.is_none()).then_some(request);
            c.write(fx, wr, local, p.remote, imm);
        }
        if let Some(checksum) = sum {
            c.send(fx, &Message::ContentDone { index: request, checksum }, &[]);
        }
    }

    /// Takes the response whose metadata the receiver answers, and its source; anything else is stale.
    fn take_told(&mut self, ch: ChanId, index: u32) -> Option<(Response, Source)> {
        let told = |r: &Response| r.asked.ch == ch && matches!(r.state, RState::Told(_));
        if !self.responses.get(index).is_some_and(told) {
            self.stale += 1;
            return None;
        }
        let mut r = self.forget(index)?;
        match std::mem::replace(&mut r.state, RState::Waiting) {
            RState::Told(source) => Some((r, source)),
            _ => None,
        }
    }

    pub(in crate::engine) fn on_re_request(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        index: u32,
        dst: Place,
        len: u64,
    ) {
        let Some((r, mut source)) = self.take_told(ch, index) else { return };
        if len < source.tensor.meta.nbytes {
            let status = Status::invalid(format!(
                "TENSOR_RE_REQUEST with room for {len} bytes, the tensor has {}",
                source.tensor.meta.nbytes
            ));
            return self.undeliverable(fx, &r.asked, (&r.key, r.step), source, status);
        }
        source.protocol = Protocol::DirectPut;
        // Known since the metadata went out, but of nothing.
        let sum = r.asked.checksum.then(|| source.sum.unwrap_or_else(|| checksum(&[])));
        self.put(fx, r.asked, &r.key, r.step, source, Some(dst), sum);
    }

    pub(in crate::engine) fn on_get_done(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        index: u32,
        ok: bool,
    ) {
        let Some((r, source)) = self.take_told(ch, index) else { return };
        #[cfg(feature = "planted")]
        if self.planted == Some(crate::engine::Planted::LosesSend) {
            return;
        }
        let result = if ok {
            Ok(())
        } else {
            let status = Status::new(Code::Cancelled, "the receiver gave the tensor up");
            Err(status.because(Reason::RemoteError))
        };
        self.end_source(fx, ch, (&r.key, r.step), source, result, false);
    }

    pub(in crate::engine) fn on_write_done(
        &mut self,
        fx: &mut impl Fx,
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
            None => self.end_source(fx, ch, (&r.key, r.step), source, Ok(()), false),
            Some(status) => self.undeliverable(fx, &r.asked, (&r.key, r.step), source, status),
        }
    }
}
