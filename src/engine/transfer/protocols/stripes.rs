//! Striping (ob1's `max_rdma_per_request`): the READs or WRITEs of one transfer over several connections to the peer.
//!
//! The content is cut into stripes. Each connection, the main one and its rails (`engine/rails.rs`), has a few of them
//! under way and gets the next when one has ended, so that a quicker one carries more. Whoever ends the transfer, by the
//! immediate, CONTENT_DONE or GET_DONE, does so on the main connection when the end of each stripe was seen: no notice
//! comes before its data. What a rail that ended did not carry goes over the main connection.
//!
//! A rail between other devices than the main connection needs keys of theirs: the peer says its own with those of the
//! first ([`Channel::place`]); the provider knows this side's. Where one is lacking the rail is left out.

use smallvec::SmallVec;

use crate::engine::channel::{ChanId, Channel};
use crate::engine::transfer::inbound::{Landing, Request, State};
use crate::engine::transfer::outbound::RState;
use crate::engine::{Engine, Fx, WR_KIND, WR_PART, WR_RESPONSE, WR_STRIPE_IN, WR_STRIPE_OUT};
use crate::fabric::keys::{Keys, Piece, Place, pieces};
use crate::fabric::{Mem, Mr, Remote};
use crate::limits::MAX_RAILS;
use crate::protocol::message::Message;
use crate::status::{Code, Status};

/// Stripes that a connection has under way.
const DEPTH: usize = 2;
/// About so many stripes for each connection, so that they end at about the same time.
const SHARE: u64 = 8;
/// None is shorter for that.
const SHORTEST: u64 = 256 << 10;

/// A stripe that is under way.
struct Flying {
    number: u16,
    ch: ChanId,
    piece: Piece,
}

/// What a transfer that goes over several connections has to do.
pub(in crate::engine) struct Stripes {
    /// Where it begins here.
    addr: u64,
    /// What is to be posted, the next one last.
    todo: Vec<Piece>,
    flying: Vec<Flying>,
    next: u16,
    /// After the last WRITE: the request's index, and the checksum if there is to be one.
    notice: Option<(u32, Option<u64>)>,
    /// The peer's memory, if a rail leads to another of its devices.
    there: Option<Place>,
    /// The rails that carry it.
    rails: SmallVec<[ChanId; MAX_RAILS]>,
}

impl Stripes {
    /// Where a piece goes that is to go to this device of the peer, which has a key for it: `reaches` has looked.
    fn remote(&self, piece: &Piece, device: u8) -> Remote {
        let key = self.there.as_ref().filter(|_| device > 0);
        let rkey = key.and_then(|there| there.key_on(device, piece.at));
        Remote { rkey: rkey.unwrap_or(piece.remote.rkey), ..piece.remote }
    }

    /// Takes one that has ended.
    fn ended(&mut self, ch: ChanId, number: u16) -> Option<Piece> {
        let at = self.flying.iter().position(|f| f.ch == ch && f.number == number)?;
        Some(self.flying.swap_remove(at).piece)
    }

    /// Takes one of those that were under way on a connection that ended.
    fn lost(&mut self, ch: ChanId) -> Option<Piece> {
        let at = self.flying.iter().position(|f| f.ch == ch)?;
        Some(self.flying.swap_remove(at).piece)
    }

    /// Drops what was not posted; how much.
    fn give_up(&mut self) -> u32 {
        let n = self.todo.len();
        self.todo.clear();
        n as u32
    }
}

/// Which end of a transfer it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    In,
    Out,
}

impl Engine {
    /// Whether memory here and at the peer has keys for the devices at the ends of a rail.
    fn reaches(&self, fx: &impl Fx, rail: ChanId, keys: Option<&Keys<Mr>>, there: &Place) -> bool {
        let Some(c) = self.channels.get(rail) else { return false };
        let (ours, theirs) = c.devices();
        // Memory without a window needs none.
        let here = ours == 0
            || keys.is_none_or(|k| k.iter().all(|mr| fx.on_device(rail, mr, ours).is_some()));
        here && there.key_on(theirs, 0).is_some()
    }

    /// The stripes of a transfer of so many bytes, if it is to go over several connections.
    fn stripes(
        &self,
        fx: &impl Fx,
        ch: ChanId,
        (addr, len): (u64, u64),
        (keys, there): (Option<&Keys<Mr>>, &Place),
    ) -> Option<Box<Stripes>> {
        let c = self.channels.get(ch)?;
        let sizes = self.sizes(ch);
        if len < sizes.min_striped_size.max(1) || !c.rails.any() {
            return None;
        }
        let most = sizes.max_rdma_per_request as usize - 1;
        let reached = c.rails.open().filter(|&rail| self.reaches(fx, rail, keys, there));
        let rails: SmallVec<[ChanId; MAX_RAILS]> = reached.take(most).collect();
        if rails.is_empty() {
            return None;
        }
        let ways = 1 + rails.len();
        let shortest = SHORTEST.min(sizes.min_striped_size).max(1);
        let most = (len / (SHARE * ways as u64)).max(shortest).min(c.caps.max_rdma);
        let lkeys = keys.map_or(Keys::one(0), |keys| keys.map(|mr| mr.lkey));
        let parts = pieces(len, most, &lkeys, there);
        let mut todo = Vec::new();
        // Without memory for them it goes over one connection.
        crate::room::grow(&mut todo, parts.clone().count(), "stripes").ok()?;
        todo.extend(parts);
        todo.reverse();
        let mut flying = Vec::new();
        crate::room::grow(&mut flying, DEPTH * (1 + MAX_RAILS), "stripes").ok()?;
        let far = |&rail: &ChanId| self.channels.get(rail).is_some_and(|c| c.devices().1 > 0);
        let there = if rails.iter().any(far) { Some(there.copied()?) } else { None };
        Some(Box::new(Stripes { addr, todo, flying, next: 0, notice: None, there, rails }))
    }

    /// Posts the first of them on each connection.
    fn begin_stripes(&mut self, fx: &mut impl Fx, way: Way, index: u32, main: ChanId) {
        let Some(s) = self.stripes_of(way, index) else { return };
        let rails = std::mem::take(&mut s.rails);
        for _ in 0..DEPTH {
            for &ch in [main].iter().chain(&rails) {
                self.post_stripe(fx, way, index, ch);
            }
        }
        // Last: one that ends here hands over what it has.
        rails.into_iter().for_each(|ch| self.settle(fx, ch));
    }

    fn stripes_of(&mut self, way: Way, index: u32) -> Option<&mut Stripes> {
        let found = match way {
            Way::In => self.requests.get_mut(index).and_then(|r| r.stripes.as_mut()),
            Way::Out => {
                let source = self.responses.get_mut(index).and_then(|r| r.source.as_mut());
                source.and_then(|s| s.stripes.as_mut())
            }
        };
        found.map(|s| &mut **s)
    }

    /// Posts the next one on a connection.
    fn post_stripe(&mut self, fx: &mut impl Fx, way: Way, index: u32, ch: ChanId) {
        let Some((_, device)) = self.channels.get(ch).map(Channel::devices) else { return };
        let Some(s) = self.stripes_of(way, index) else { return };
        let Some(piece) = s.todo.pop() else { return };
        let (number, addr, remote) = (s.next, s.addr, s.remote(&piece, device));
        s.next = s.next.wrapping_add(1);
        s.flying.push(Flying { number, ch, piece });
        // SAFETY: both ends keep their memory until each stripe's `Done` was seen, or until the channel it went over has ended.
        let local = unsafe { Mem::new(addr + piece.at, piece.len, piece.lkey) };
        let tag = u64::from(number) << WR_PART | u64::from(index);
        let Some(c) = self.channels.get_mut(ch) else { return };
        match way {
            Way::In => c.read(fx, WR_STRIPE_IN | tag, local, remote),
            Way::Out => c.write(fx, WR_STRIPE_OUT | tag, local, remote, None),
        }
    }

    fn count_stripe(&self, ch: ChanId, piece: &Piece, result: &Result<(), Status>) {
        if let Some(c) = self.channels.get(ch).filter(|c| c.is_rail() && result.is_ok()) {
            c.counters.rail_bytes.add(piece.len);
        }
    }

    /// Whether the end of a stripe is the end of the rail that it went over: then it is handed over with the rail.
    fn is_of_rail(&mut self, ch: ChanId, result: &Result<(), Status>) -> bool {
        let Err(status) = result else { return false };
        let rail = self.channels.get(ch).is_some_and(|c| c.is_rail());
        if rail && status.code == Code::Unavailable {
            self.violation(ch, status.clone());
            return true;
        }
        false
    }

    /// The READ or WRITE of a stripe has ended.
    pub(in crate::engine) fn on_stripe_done(
        &mut self,
        fx: &mut impl Fx,
        ch: ChanId,
        wr: u64,
        result: Result<(), Status>,
    ) {
        let way = if wr & WR_KIND == WR_STRIPE_IN { Way::In } else { Way::Out };
        let (index, number) = (wr as u32, (wr >> WR_PART) as u16);
        if self.is_of_rail(ch, &result) {
            return;
        }
        let main = match way {
            Way::In => self.requests.get(index).and_then(|r| r.ch),
            Way::Out => self.responses.get(index).map(|r| r.asked.to.ch),
        };
        let Some(main) = main else { return };
        let found = self.stripes_of(way, index).and_then(|s| s.ended(ch, number));
        let Some(piece) = found else { return };
        self.count_stripe(ch, &piece, &result);
        if result.is_ok() && self.goes_on(way, index) {
            self.post_stripe(fx, way, index, ch);
        }
        match way {
            Way::In => self.stripe_read(fx, index, main, result),
            Way::Out => self.stripe_written(fx, index, main, result),
        }
        self.settle(fx, main);
    }

    /// Whether no stripe of a transfer has failed, and it is not given up.
    fn goes_on(&self, way: Way, index: u32) -> bool {
        match way {
            Way::In => self.requests.get(index).is_some_and(Request::reads),
            Way::Out => {
                let state = self.responses.get(index).map(|r| &r.state);
                matches!(state, Some(RState::Writing { failed: None, .. }))
            }
        }
    }

    /// Reads the source of a request over several connections, where it has them.
    pub(super) fn read_striped(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        (ch, response): (ChanId, u32),
        source: &Place,
    ) -> bool {
        let Some(r) = self.requests.get(index) else { return false };
        let Some(Landing { addr, window: Some(window), .. }) = &r.landing else { return false };
        let keys = (Some(&window.keys), source);
        let Some(stripes) = self.stripes(fx, ch, (*addr, r.leg_len()), keys) else { return false };
        let Some(r) = self.requests.get_mut(index) else { return false };
        r.state = State::Reading { left: stripes.todo.len() as u32, response, failed: None };
        r.stripes = Some(stripes);
        self.begin_stripes(fx, Way::In, index, ch);
        true
    }

    /// One READ less. What was not posted is not, once the transfer has failed or is given up.
    fn stripe_read(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        main: ChanId,
        result: Result<(), Status>,
    ) {
        let Some(r) = self.requests.get_mut(index) else { return };
        if result.is_err() || !r.reads() {
            let dropped = r.stripes.as_mut().map_or(0, |s| s.give_up());
            if let State::Reading { left, .. } | State::Quiescing { left, .. } = &mut r.state {
                *left -= dropped;
            }
        }
        self.on_read_done(fx, main, index, result);
    }

    /// A rail has ended: what was being read over it is read over the main connection.
    pub(in crate::engine) fn read_stripes_anew(
        &mut self,
        fx: &mut impl Fx,
        main: ChanId,
        rail: ChanId,
        status: &Status,
    ) {
        let mut at = 0;
        while let Some(index) =
            self.requests.next(&mut at, |r| r.ch == Some(main) && r.stripes.is_some())
        {
            while let Some(piece) = self.stripes_of(Way::In, index).and_then(|s| s.lost(rail)) {
                if !self.goes_on(Way::In, index) {
                    self.stripe_read(fx, index, main, Err(status.clone()));
                    continue;
                }
                if let Some(s) = self.stripes_of(Way::In, index) {
                    s.todo.push(piece);
                }
                self.post_stripe(fx, Way::In, index, main);
            }
        }
    }

    /// Writes the content of a response over several connections, where it has them.
    pub(super) fn write_striped(&mut self, fx: &mut impl Fx, index: u32) -> bool {
        let Some(r) = self.responses.get(index) else { return false };
        let (Some(source), Some((dst, _))) = (&r.source, &r.asked.dst) else { return false };
        let (main, request) = (r.asked.to.ch, r.asked.to.request);
        let sum = if r.asked.to.checksum { source.sum } else { None };
        let keys = (source.window.as_ref().map(|w| &w.keys), dst);
        let Some(mut stripes) = self.stripes(fx, main, (source.addr(), source.len()), keys) else {
            return false;
        };
        let Some(r) = self.responses.get_mut(index) else { return false };
        let Some(source) = &mut r.source else { return false };
        stripes.notice = Some((request, sum));
        // The notice is a WRITE, too, or a message.
        let left = stripes.todo.len() as u32 + u32::from(sum.is_none());
        r.state = RState::Writing { left, failed: None };
        source.stripes = Some(stripes);
        self.begin_stripes(fx, Way::Out, index, main);
        true
    }

    /// One WRITE less; after the last, the notice.
    fn stripe_written(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        main: ChanId,
        result: Result<(), Status>,
    ) {
        let well = result.is_ok() && self.goes_on(Way::Out, index);
        let Some(r) = self.responses.get_mut(index) else { return };
        let Some(s) = r.source.as_mut().and_then(|s| s.stripes.as_mut()) else { return };
        let mut dropped = 0;
        if !well {
            dropped = s.give_up();
            if let Some((_, None)) = s.notice.take() {
                dropped += 1;
            }
        }
        let notice = if s.todo.is_empty() && s.flying.is_empty() { s.notice.take() } else { None };
        if let RState::Writing { left, .. } = &mut r.state {
            *left -= dropped;
        }
        match notice {
            Some((request, None)) => {
                // SAFETY: zero bytes are never touched.
                let nothing = unsafe { Mem::new(0, 0, 0) };
                if let Some(c) = self.channels.get_mut(main) {
                    let wr = WR_RESPONSE | u64::from(index);
                    c.write(fx, wr, nothing, Remote { addr: 0, rkey: 0 }, Some(request));
                }
            }
            Some((request, Some(checksum))) => {
                self.send(fx, main, &Message::ContentDone { index: request, checksum }, &[]);
            }
            None => {}
        }
        self.on_write_done(fx, main, index, result);
    }

    /// Both ends of a rail are closed: what was being written over it is written over the main connection.
    pub(in crate::engine) fn write_stripes_anew(
        &mut self,
        fx: &mut impl Fx,
        main: ChanId,
        rail: ChanId,
    ) {
        let Some(c) = self.channels.get(main) else { return };
        for index in c.responses.responses().collect::<Vec<_>>() {
            while let Some(piece) = self.stripes_of(Way::Out, index).and_then(|s| s.lost(rail)) {
                if !self.goes_on(Way::Out, index) {
                    let status = Status::gone("one of several connections ended");
                    self.stripe_written(fx, index, main, Err(status));
                    continue;
                }
                if let Some(s) = self.stripes_of(Way::Out, index) {
                    s.todo.push(piece);
                }
                self.post_stripe(fx, Way::Out, index, main);
            }
        }
    }
}

impl Request {
    /// Its source is being read, and no READ has failed.
    fn reads(&self) -> bool {
        matches!(self.state, State::Reading { failed: None, .. })
    }
}
