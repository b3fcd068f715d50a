//! RDMA Direct Get (ob1's): the receiver reads the source.
//!
//! META_DATA_RESPONSE, of a message MSG_OFFER, carries the source's address and keys (A); the receiver, having found memory
//! of that size, READs it (C), and says GET_DONE (D). Until then the sender keeps the source (F, G); until its last READ has
//! ended the receiver keeps its destination. A receiver that cannot read asks for a put.

use crate::api::*;
use crate::engine::channel::ChanId;
use crate::engine::seal::loss;
use crate::engine::transfer::inbound::{AfterAlloc, Landing, State};
use crate::engine::{Engine, Fx, WR_REQUEST};
use crate::fabric::keys::{Place, pieces};
use crate::fabric::{Access, Mem};
use crate::protocol::message::{Message, MetaResponse};
use crate::status::{Code, Reason, Status};

impl Engine {
    /// META_DATA_RESPONSE with the source: the receiver reads it.
    pub(in crate::engine) fn offer_get(&mut self, fx: &mut impl Fx, index: u32) {
        match self.open_source(fx, index, Access::REMOTE_READ) {
            Ok(true) => {}
            Ok(false) => return self.stage(fx, index),
            // The receiver asks for a put, which opens nothing that it reads by itself.
            Err(status) if status.code == Code::ResourceExhausted => {
                return self.tell(fx, index, None);
            }
            Err(status) => return self.undeliverable(fx, index, status),
        }
        let Some(r) = self.responses.get_mut(index) else { return };
        let c = self.channels.get(r.asked.to.ch);
        let Some(source) = r.source.as_mut() else { return };
        source.protocol = Protocol::DirectGet;
        let place = source.window.as_ref().zip(c).map(|(w, c)| c.place(fx, source.addr(), &w.keys));
        self.tell(fx, index, place);
    }

    /// META_DATA_RESPONSE arrived.
    pub(in crate::engine) fn on_meta(&mut self, fx: &mut impl Fx, ch: ChanId, m: MetaResponse) {
        let index = m.index;
        // With `follows` the checksum comes in CONTENT_DONE.
        if m.checksum.is_none() && m.meta.nbytes > 0 && !m.follows && self.sealed(ch) {
            return self.violation(ch, loss("metadata".into()));
        }
        let Some(r) = self.answered_tensor(ch, index, "META_DATA_RESPONSE") else { return };
        r.checksum = m.checksum;
        if m.follows {
            return self.on_follows(ch, index, m.meta);
        }
        r.protocol = Protocol::DirectGet;
        self.drop_landing(fx, index);
        let same = self.requests.get_mut(index).is_some_and(|r| r.is_as_known(&m.meta));
        let after = AfterAlloc::Meta { response: m.response, source: m.source.clone() };
        let ready = if same { Ok(true) } else { self.prepare(fx, index, m.meta, after, false) };
        match ready {
            Ok(true) => self.after_meta(fx, index, m.response, m.source),
            Ok(false) => {}
            Err(status) => {
                // Memory given up front that is too short: the next may have more.
                if status.code == Code::OutOfRange {
                    self.send(fx, ch, &Message::TooLong { response: m.response }, &[]);
                } else {
                    self.drop_response(fx, index, m.response);
                }
                self.fail(fx, index, status);
            }
        }
    }

    /// The destination is there: read the source, or ask for the content to be written.
    pub(in crate::engine) fn after_meta(
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
        let (nbytes, read) = (meta.nbytes, c.caps.read);
        let source = source.filter(|_| read);

        let access = if source.is_some() { Access::LOCAL_WRITE } else { Access::REMOTE_WRITE };
        if let Err(status) = self.open_landing(fx, index, ch, nbytes, access) {
            self.drop_response(fx, index, response);
            return self.fail(fx, index, status);
        }
        match source {
            None => self.ask_for_put(fx, index, ch, response),
            Some(source) => self.read_all(fx, index, ch, response, &source),
        }
    }

    pub(super) fn read_all(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        ch: ChanId,
        response: u32,
        source: &Place,
    ) {
        if self.read_striped(fx, index, (ch, response), source) {
            return;
        }
        let found = (self.requests.get_mut(index), self.channels.get_mut(ch));
        let (Some(r), Some(c)) = found else {
            return self.fail_by_defect(fx, index, "a connection ended before a READ of it");
        };
        let Some(Landing { addr, window: Some(window), .. }) = &r.landing else {
            return self.fail_by_defect(fx, index, "a destination was opened and is not there");
        };
        let addr = *addr;
        let lkeys = window.keys.map(|mr| mr.lkey);
        let parts = pieces(r.leg_len(), c.caps.max_rdma, &lkeys, source);
        let left = parts.clone().count() as u32;
        r.state = State::Reading { left, response, failed: None };
        for p in parts {
            // SAFETY: the landing stays valid until the last `Done`, or until the channel
            // has ended: the request ends only then.
            let local = unsafe { Mem::new(addr + p.at, p.len, p.lkey) };
            c.read(fx, WR_REQUEST | u64::from(index), local, p.remote);
        }
    }

    /// A READ of a request has ended.
    pub(in crate::engine) fn on_read_done(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        index: u32,
        result: Result<(), Status>,
    ) {
        let Some(r) = self.requests.get_mut(index) else { return };
        let goes_on = r.goes_on();
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
                if !(ok && goes_on) {
                    self.send(fx, ch, &Message::GetDone { response, ok }, &[]);
                }
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

    /// The receiver, which was told of a tensor, has too little room: the same as where that was known before.
    #[cold]
    pub(in crate::engine) fn on_too_long(&mut self, fx: &mut impl Fx, ch: ChanId, index: u32) {
        let Some(r) = self.told(ch, index) else { return };
        if r.is_message() {
            let text = "GET_DONE of too little room for a tagged message";
            return self.violation(ch, Status::invalid(text));
        }
        let Some(nbytes) = r.source.as_ref().map(|source| source.tensor.meta.nbytes) else {
            return;
        };
        let text = text!(
            "tensor '{}' has {nbytes} bytes, for which the receiver has too little room",
            r.named.shown()
        );
        let status = Status::new(Code::OutOfRange, text).because(Reason::RemoteError);
        if r.no_table {
            let status = r.ended.take().unwrap_or(status);
            return self.end_response(fx, index, Err(status));
        }
        let Some(sent) = self.take_back(fx, ch, index) else { return };
        self.forget_and_hand_on(fx, index, sent, status);
        self.settle(fx, ch);
    }

    /// GET_DONE arrived at the sender.
    pub(in crate::engine) fn on_get_done(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        index: u32,
        ok: bool,
    ) {
        if !ok && self.given_up_in_a_leg(ch, index) || self.told(ch, index).is_none() {
            return;
        }
        #[cfg(feature = "planted")]
        if self.planted == Some(crate::engine::Planted::LosesSend) {
            self.forget(index);
            return;
        }
        let result = if ok {
            Ok(())
        } else {
            let status = Status::new(
                Code::Cancelled,
                "the receiver gave it up: it was cancelled, its time was over, or the content could not be read from this side's memory",
            );
            Err(status.because(Reason::RemoteError))
        };
        self.end_response(fx, index, result);
    }
}
