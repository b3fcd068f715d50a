//! RDMA Direct Put (TensorFlow contrib/verbs, ob1's): the sender writes into the destination that the receiver exposed.
//!
//! The destination (ob1's C) comes with the request (its length is known from before, or the application gave it), or, after
//! META_DATA_RESPONSE (A), with TENSOR_RE_REQUEST; of a message after MSG_OFFER (A), with MSG_GRANT. The last WRITE (E)
//! carries the request's index as its immediate, which is ob1's FIN (F to H); with a checksum CONTENT_DONE follows
//! instead. Until the last WRITE has ended both ends keep their memory; then each closes its own (F, I).

use crate::api::*;
use crate::engine::channel::ChanId;
use crate::engine::transfer::inbound::{Landing, State};
use crate::engine::transfer::outbound::{RState, Response};
use crate::engine::{Engine, Fx, WR_RESPONSE, checksum};
use crate::fabric::keys::{Keys, Place, pieces};
use crate::fabric::{Access, Mem};
use crate::protocol::message::{Message, MetaResponse};
use crate::status::Status;

impl Engine {
    /// Writes into the destination that came with the request; `tell`: after the metadata, which the receiver does not
    /// know.
    pub(in crate::engine) fn put_asked(&mut self, fx: &mut impl Fx, index: u32, tell: bool) {
        let Some((asked, source)) = self.responses.get_mut(index).and_then(Response::parts) else {
            return;
        };
        source.protocol = Protocol::DirectPut;
        if tell {
            let (ch, meta) = (asked.to.ch, source.tensor.meta.clone());
            let m = MetaResponse {
                index: asked.to.request,
                response: 0,
                follows: true,
                source: None,
                checksum: None,
                meta,
            };
            self.send(fx, ch, &Message::Meta(m), &[]);
        }
        self.put(fx, index);
    }

    /// META_DATA_RESPONSE without a source: the receiver allocates and asks again.
    pub(in crate::engine) fn tell_for_put(&mut self, fx: &mut impl Fx, index: u32) {
        if let Some((_, source)) = self.responses.get_mut(index).and_then(Response::parts) {
            source.protocol = Protocol::DirectPut;
            self.tell(fx, index, None);
        }
    }

    /// Tells the metadata, with the source where it may be read, and waits for what the receiver says.
    pub(super) fn tell(&mut self, fx: &mut impl Fx, index: u32, place: Option<Place>) {
        let Some(r) = self.responses.get_mut(index) else { return };
        let Some(source) = &r.source else { return };
        let m = MetaResponse {
            index: r.asked.to.request,
            response: index,
            follows: false,
            source: place,
            checksum: source.sum,
            meta: source.tensor.meta.clone(),
        };
        r.state = RState::Told;
        let ch = r.asked.to.ch;
        self.send(fx, ch, &Message::Meta(m), &[]);
    }

    /// Writes the content to the destination, in pieces where it is longer than the provider takes.
    pub(super) fn put(&mut self, fx: &mut impl Fx, index: u32) {
        let Some(r) = self.responses.get_mut(index) else { return };
        let Some(c) = self.channels.get(r.asked.to.ch) else {
            let status = Status::gone("the connection of the receiver ended");
            return self.undeliverable(fx, index, status);
        };
        let (windows, max) = (c.caps.windows, c.caps.max_rdma);
        if r.asked.dst.is_none() {
            let status = self.defect("a tensor is to be written to no place");
            return self.undeliverable(fx, index, status);
        }
        if !windows {
            match self.open_source(fx, index, Access::empty()) {
                Ok(true) => {}
                Ok(false) => {
                    // After the copy it goes on from here, without telling the metadata again.
                    if let Some(r) = self.responses.get_mut(index) {
                        r.asked.granted = true;
                    }
                    return self.stage(fx, index);
                }
                Err(status) => return self.undeliverable(fx, index, status),
            }
        }
        self.write_all(fx, index, max);
    }

    fn write_all(&mut self, fx: &mut impl Fx, index: u32, max: u64) {
        if self.write_striped(fx, index) {
            return;
        }
        let Some(r) = self.responses.get_mut(index) else { return };
        let (Some(source), Some((dst, _))) = (&r.source, &r.asked.dst) else { return };
        let Some(c) = self.channels.get_mut(r.asked.to.ch) else { return };
        let (addr, nbytes, sum) = (source.addr(), source.len(), source.sum);
        let sum = if r.asked.to.checksum { sum } else { None };
        let lkeys = source.window.as_ref().map_or(Keys::one(0), |w| w.keys.map(|mr| mr.lkey));
        let request = r.asked.to.request;
        let parts = pieces(nbytes, max, &lkeys, dst);
        r.state = RState::Writing { left: parts.clone().count() as u32, failed: None };
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

    /// TENSOR_RE_REQUEST arrived at the sender.
    pub(in crate::engine) fn on_re_request(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        index: u32,
        dst: Place,
        len: u64,
    ) {
        let Some(r) = self.told(ch, index) else { return };
        if r.is_message() {
            // Of a layout, or a device, nothing can be written from where it lies.
            let text = "TENSOR_RE_REQUEST for a tagged message";
            return self.violation(ch, Status::invalid(text));
        }
        r.state = RState::Ready;
        let (asked, Some(source)) = (&mut r.asked, &mut r.source) else { return };
        let nbytes = source.tensor.meta.nbytes;
        if len < nbytes {
            let status = Status::invalid(text!(
                "TENSOR_RE_REQUEST with room for {len} bytes, the tensor has {nbytes}"
            ));
            return self.undeliverable(fx, index, status);
        }
        source.protocol = Protocol::DirectPut;
        if asked.to.checksum {
            // Known since the metadata went out, but of nothing.
            source.sum.get_or_insert_with(|| checksum(&[]));
        }
        asked.dst = Some((dst, nbytes));
        asked.granted = true;
        self.put(fx, index);
    }

    /// A WRITE of a response has ended.
    pub(in crate::engine) fn on_write_done(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        index: u32,
        result: Result<(), Status>,
    ) {
        let Some(r) = self.responses.get_mut(index) else { return };
        let RState::Writing { left, failed } = &mut r.state else { return };
        *left -= 1;
        if let Err(status) = result {
            failed.get_or_insert(status);
        }
        if *left > 0 {
            return;
        }
        let failed = failed.take();
        let unfinished = r.source.as_ref().is_some_and(|s| s.left() > 0);
        let buffer = r.source.as_ref().and_then(|s| s.buffer);
        if r.cancelled {
            let request = r.asked.to.request;
            self.send(fx, ch, &Message::CancelAck { index: request }, &[]);
        }
        if unfinished && failed.is_none() {
            return self.leg_written(fx, index);
        }
        if let (Some(buffer), true) = (buffer, failed.is_some()) {
            self.distrust_buffer(buffer);
        }
        match failed {
            None => self.end_response(fx, index, Ok(())),
            Some(status) => self.undeliverable(fx, index, status),
        }
    }

    /// The receiver asks for the content to be written: its destination is open.
    pub(super) fn ask_for_put(&mut self, fx: &mut impl Fx, index: u32, ch: ChanId, response: u32) {
        let Some(r) = self.requests.get_mut(index) else { return };
        let Some(Landing { addr, window: Some(window), .. }) = &r.landing else {
            return self.fail_by_defect(fx, index, "a destination was opened and is not there");
        };
        let Some(c) = self.channels.get(ch) else {
            let status = Status::gone("the connection of the sender ended");
            return self.fail(fx, index, status);
        };
        let dst = c.place(fx, *addr, &window.keys);
        let len = r.leg_len();
        r.state = State::Awaiting;
        r.protocol = Protocol::DirectPut;
        let m = match r.done.is_message() {
            true => Message::MsgGrant { response, request: index, dst, len, pipeline: false },
            false => Message::ReRequest { response, dst, len },
        };
        self.send(fx, ch, &m, &[]);
    }

    /// The content is on its way to what the request exposed.
    pub(super) fn on_follows(&mut self, ch: ChanId, index: u32, meta: Meta) {
        let Some(r) = self.requests.get_mut(index) else { return };
        match &r.landing {
            Some(l) if meta.nbytes <= l.len => {
                r.state = State::Awaiting;
                r.told(meta);
            }
            _ => self.violation(ch, Status::invalid("content announced that does not fit")),
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
        if self.answered(ch, index).is_none() || self.fragment_written(fx, ch, index) {
            return;
        }
        let Some(r) = self.requests.get_mut(index) else { return };
        let fits = match (&r.landing, &r.meta) {
            (Some(l), Some(_)) => l.window.is_some() && r.leg_len() <= l.len,
            _ => false,
        };
        if !fits {
            return self.violation(ch, Status::invalid("content that was not asked for"));
        }
        r.protocol = Protocol::DirectPut;
        r.checksum = sum;
        self.arrived(fx, index);
    }
}
