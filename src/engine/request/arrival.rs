//! What comes back for a request: content, metadata, writes, the ends of reads and copies.

use super::*;
use crate::engine::seal::loss;

impl Engine {
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

    pub(in crate::engine) fn on_content(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        index: u32,
        sum: Option<u64>,
        meta: Meta,
        content: &[u8],
    ) {
        if sum.is_none() && meta.nbytes > 0 && self.sealed(ch) {
            return self.violation(ch, loss("content".into()));
        }
        let Some(r) = self.answered(ch, index) else { return };
        r.protocol = Protocol::Eager;
        let ready = r.meta.as_ref() == Some(&meta);
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
        let kept = if later { crate::room::copy(content, "content") } else { Ok(Vec::new()) };
        let kept = match kept {
            Ok(kept) => kept,
            Err(status) => return self.fail(fx, index, status),
        };
        match self.prepare(fx, index, meta, AfterAlloc::Eager(kept), false) {
            Ok(true) => self.deliver(fx, index, content),
            Ok(false) => {}
            Err(status) => self.fail(fx, index, status),
        }
    }

    /// Puts eager content in its place and ends the request.
    pub(super) fn deliver(&mut self, fx: &mut impl Fx, index: u32, content: &[u8]) {
        let Some(r) = self.requests.get_mut(index) else { return };
        if content.is_empty() {
            return self.finish(fx, index, Ok(()));
        }
        if matches!(r.target, Target::Library) {
            let Some(buffer) = &r.buffer else {
                return self.fail_by_defect(fx, index, "content without a buffer for it");
            };
            fx.copy_in(buffer, content);
            return self.finish(fx, index, Ok(()));
        }
        if r.device == 0 {
            // SAFETY: `dst` was given or allocated for `meta.nbytes`, which the decoder found equal to the
            // content's length; it is the application's only from the callback on, which comes later.
            let result = unsafe { fx.deliver(r.dst, content) };
            return self.finish(fx, index, result);
        }
        match fx.alloc(content.len() as u64) {
            Ok(staged) => {
                fx.copy_in(&staged, content);
                let (addr, len) = (staged.addr, staged.len);
                r.landing = Some(Landing { addr, len, window: None, staged: Some(staged) });
                self.land(fx, index);
            }
            Err(status) => self.fail(fx, index, status),
        }
    }

    pub(in crate::engine) fn on_meta(&mut self, fx: &mut impl Fx, ch: ChanId, m: MetaResponse) {
        let index = m.index;
        // With `follows` the checksum comes in CONTENT_DONE.
        if m.checksum.is_none() && m.meta.nbytes > 0 && !m.follows && self.sealed(ch) {
            return self.violation(ch, loss("metadata".into()));
        }
        let Some(r) = self.answered(ch, index) else { return };
        r.checksum = m.checksum;
        if m.follows {
            // The content is on its way to what the request exposed.
            match &r.landing {
                Some(l) if m.meta.nbytes <= l.len => {
                    r.state = State::Awaiting;
                    r.meta = Some(m.meta);
                }
                _ => self.violation(ch, Status::invalid("content announced that does not fit")),
            }
            return;
        }
        r.protocol = Protocol::DirectGet;
        self.drop_landing(fx, index);
        let same = self.requests.get(index).is_some_and(|r| r.meta.as_ref() == Some(&m.meta));
        let after = AfterAlloc::Meta { response: m.response, source: m.source.clone() };
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
    pub(super) fn after_meta(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        response: u32,
        source: Option<Place>,
    ) {
        let Some(r) = self.requests.get(index) else { return };
        let channel = r.ch.and_then(|ch| Some((ch, self.channels.get(ch)?)));
        let (Some((ch, c)), Some(meta)) = (channel, &r.meta) else {
            return self.fail_by_defect(fx, index, "metadata of a receive without a connection");
        };
        let nbytes = meta.nbytes;
        let (read, max) = (c.caps.read, c.caps.max_rdma);
        let source = source.filter(|_| read);
        let access = if source.is_some() { Access::LOCAL_WRITE } else { Access::REMOTE_WRITE };
        if let Err(status) = self.open_landing(fx, index, ch, nbytes, access) {
            self.drop_response(fx, index, response);
            return self.fail(fx, index, status);
        }
        let Some(r) = self.requests.get_mut(index) else { return };
        let Some(Landing { addr, window: Some(window), .. }) = &r.landing else {
            return self.fail_by_defect(fx, index, "a destination was opened and is not there");
        };
        let addr = *addr;
        match source {
            None => {
                r.state = State::Awaiting;
                r.protocol = Protocol::DirectPut;
                let dst = Place { addr, rkeys: window.keys.map(|mr| mr.rkey) };
                self.send(fx, ch, &Message::ReRequest { response, dst, len: nbytes }, &[]);
            }
            Some(source) => {
                let lkeys = window.keys.map(|mr| mr.lkey);
                let parts = pieces(nbytes, max, &lkeys, &source);
                let left = parts.clone().count() as u32;
                r.state = State::Reading { left, response, failed: None };
                let Some(c) = self.channels.get_mut(ch) else {
                    return self.fail_by_defect(
                        fx,
                        index,
                        "a connection ended before a READ of it",
                    );
                };
                for p in parts {
                    // SAFETY: the landing stays valid until the last `Done`, or until the channel
                    // has ended: the request ends only then.
                    let local = unsafe { Mem::new(addr + p.at, p.len, p.lkey) };
                    c.read(fx, WR_REQUEST | u64::from(index), local, p.remote);
                }
            }
        }
    }

    /// All content was written: the immediate, or CONTENT_DONE with the checksum, arrived. Where there
    /// have to be checksums, an immediate does not get here.
    pub(in crate::engine) fn on_written(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        index: u32,
        sum: Option<u64>,
    ) {
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

    pub(in crate::engine) fn on_read_done(
        &mut self,
        fx: &mut impl Fx,
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
    fn arrived(&mut self, fx: &mut impl Fx, index: u32) {
        self.close_landing(fx, index);
        let Some(r) = self.requests.get_mut(index) else { return };
        if let (Some(_), Some(l), Some(m)) = (r.checksum, &r.landing, &r.meta)
            && (r.device == 0 || l.staged.is_some())
        {
            let (addr, len) = (l.addr, m.nbytes);
            r.state = State::Copying;
            return fx.run(Work::HostHash { token: WR_REQUEST | u64::from(index), addr, len });
        }
        self.land(fx, index);
    }

    /// A checksum that the engine had asked for has been computed.
    pub fn hashed(&mut self, fx: &mut impl Fx, token: u64, result: Result<u64, Status>) {
        let index = token as u32;
        if token & crate::engine::WR_KIND == crate::engine::WR_RESPONSE {
            return self.response_hashed(fx, index, result);
        }
        let Some(r) = self.requests.get_mut(index) else { return };
        match (&r.state, &r.ended, r.checksum, result) {
            (State::Copying, None, Some(want), Ok(got)) if want == got => {
                r.copying = false;
                self.land(fx, index);
            }
            (State::Copying, None, Some(want), Ok(got)) => {
                self.copied(fx, token, Err(data_loss(want, got)));
            }
            (_, _, _, result) => self.copied(fx, token, result.map(drop)),
        }
    }

    /// Copies from a proxy to the destination where there is one, and ends the request.
    fn land(&mut self, fx: &mut impl Fx, index: u32) {
        let device = self.requests.get(index).map_or(0, |r| r.device);
        let ops = self.device(device);
        let Some(r) = self.requests.get_mut(index) else { return };
        let (Some(l), Some(m)) = (&r.landing, &r.meta) else {
            return self.fail_by_defect(fx, index, "content arrived nowhere");
        };
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
    pub fn copied(&mut self, fx: &mut impl Fx, token: u64, result: Result<(), Status>) {
        let index = token as u32;
        if token & crate::engine::WR_KIND == crate::engine::WR_RESPONSE {
            return self.response_copied(fx, index, result);
        }
        let Some(r) = self.requests.get_mut(index) else { return };
        r.copying = false;
        if !matches!(r.state, State::Copying | State::LocalCopy(_)) {
            let status = self.defect("a copy that was not asked for");
            return self.end(fx, index, status);
        }
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

    pub(in crate::engine) fn on_error(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        index: u32,
        code: i32,
        text: &[u8],
    ) {
        if self.answered(ch, index).is_none() {
            return;
        }
        let code = Code::from_i32(code).filter(|&c| c != Code::Ok).unwrap_or(Code::Unknown);
        let text = crate::shown::text(&String::from_utf8_lossy(text)).into_owned();
        self.fail(fx, index, Status::new(code, text).because(Reason::RemoteError));
    }

    pub(in crate::engine) fn on_cancel_ack(&mut self, fx: &mut impl Fx, ch: ChanId, index: u32) {
        let Some(r) = self.requests.get(index) else { return };
        if let (State::Quiescing { status, left: 0, .. }, true) = (&r.state, r.ch == Some(ch)) {
            let status = status.clone();
            self.fail(fx, index, status);
        }
    }
}
