//! Memory for the result of a receive: where it comes from, and how it is opened to the sender.

use super::inbound::{AfterAlloc, Landing, State};
use crate::api::*;
use crate::engine::channel::ChanId;
use crate::engine::layout::LAYOUT;
use crate::engine::{Engine, Fx, MapError, Work};
use crate::fabric::Access;
use crate::status::{Code, Reason, Status};

impl Engine {
    /// Finds memory for a result of this metadata. True: it is there. False: the application's
    /// callback was asked, and `after` says how to go on.
    pub(in crate::engine) fn prepare(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        meta: Meta,
        after: AfterAlloc,
        inline: bool,
    ) -> Result<bool, Status> {
        let Some(r) = self.requests.get_mut(index) else { return Ok(false) };
        r.known &= matches!(after, AfterAlloc::Request);
        if meta.nbytes == 0 {
            r.meta = Some(meta);
            return Ok(true);
        }
        match &mut r.target {
            Target::Given { addr, len } => {
                if meta.nbytes > *len {
                    return Err(Status::new(
                        Code::OutOfRange,
                        text!(
                            "tensor '{}' has {} bytes, the destination given has {len}",
                            r.named.shown(),
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
                // What an earlier call gave is the application's again.
                (r.dst, r.meta) = (0, Some(meta.clone()));
                r.state = State::Allocating(Some(after));
                fx.run(Work::Alloc { request: index, alloc, meta, inline });
                Ok(false)
            }
        }
    }

    /// The allocation callback has returned.
    pub fn allocated(&mut self, fx: &mut impl Fx, index: u32, alloc: AllocFn, addr: Option<u64>) {
        let Some(r) = self.requests.get_mut(index) else { return };
        let after = match &mut r.state {
            State::Allocating(after) => after.take(),
            _ => None,
        };
        let Some(after) = after else {
            let status = self.defect("an allocation that was not asked for");
            return self.end(fx, index, status);
        };
        r.target = Target::Alloc(alloc);
        let no_memory = r.ended.is_none() && addr.is_none();
        let status = match (r.ended.take(), addr) {
            (Some(status), _) => Some(status),
            (None, Some(addr)) => {
                r.dst = addr;
                None
            }
            (None, None) => Some(
                Status::new(
                    Code::ResourceExhausted,
                    text!(
                        "the allocation callback gave no memory for {} bytes of '{}'",
                        r.meta.as_ref().map_or(0, |m| m.nbytes),
                        r.named.shown()
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
            (AfterAlloc::Request, Some(_)) if no_memory => self.distrust_cache(fx, index),
            (_, Some(status)) => self.fail(fx, index, status),
            (AfterAlloc::Request, None) => self.submit(fx, index),
            (AfterAlloc::Buffered, None) => self.arrived(fx, index),
            (AfterAlloc::Eager(bytes), None) => self.deliver(fx, index, &bytes),
            (AfterAlloc::Meta { response, source }, None) => {
                self.after_meta(fx, index, response, source)
            }
        }
        self.settle_request(fx, index);
    }

    /// Opens the destination, or a proxy for it, to the other end of the channel.
    pub(in crate::engine) fn open_landing(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        ch: ChanId,
        len: u64,
        access: Access,
    ) -> Result<(), Status> {
        let sealed = self.sealed(ch);
        let Some(r) = self.requests.get_mut(index) else { return Ok(()) };
        if r.device == 0 {
            match fx.open(ch, r.dst, len, access) {
                Ok(window) => {
                    let window = Some(window);
                    r.landing =
                        Some(Landing { addr: r.dst, len, window, staged: None, buffer: None });
                    return Ok(());
                }
                Err(MapError::Failed(status)) => return Err(status),
                Err(MapError::NeedProxy) => {}
            }
        } else if !matches!(r.target, Target::Library)
            && r.device != LAYOUT
            && !sealed
            && let Some(window) = fx.open_device(ch, r.dst, len, r.device)
        {
            let window = Some(window);
            r.landing = Some(Landing { addr: r.dst, len, window, staged: None, buffer: None });
            return Ok(());
        }
        let staged = fx.alloc(len)?;
        match fx.open(ch, staged.addr, len, access) {
            Ok(window) => {
                let (addr, window) = (staged.addr, Some(window));
                r.landing = Some(Landing { addr, len, window, staged: Some(staged), buffer: None });
                Ok(())
            }
            Err(e) => {
                fx.free(staged);
                Err(match e {
                    MapError::Failed(status) => status,
                    MapError::NeedProxy => self.defect("the proxy's memory is not registered"),
                })
            }
        }
    }

    /// Closes the destination: the other end touches it no more.
    pub(in crate::engine) fn close_landing(&mut self, fx: &mut impl Fx, index: u32) {
        self.close_flow(fx, index);
        let Some(r) = self.requests.get_mut(index) else { return };
        if let (Some(l), Some(ch)) = (&mut r.landing, r.ch)
            && let Some(window) = l.window.take()
        {
            fx.close(ch, window);
        }
    }

    /// Closes the landing and gives back its proxy: the content comes another way.
    pub(super) fn drop_landing(&mut self, fx: &mut impl Fx, index: u32) {
        self.close_landing(fx, index);
        let landing = self.requests.get_mut(index).and_then(|r| r.landing.take());
        match landing.map(|l| (l.staged, l.buffer)) {
            Some((Some(staged), Some(buffer))) => self.buffer_emptied(fx, buffer, staged),
            Some((Some(staged), None)) => fx.free(staged),
            _ => {}
        }
    }
}
