//! Peers and the life of their connections.

use super::channel::{ChanId, Channel};
use super::known::Peer;
use super::lost::LostNames;
use super::seal::Seal;
use super::transfer::inbound::{State, request_in_queue};
use super::tries::Tries;
use super::{Engine, Fx};
use crate::api::PeerState;
use crate::fabric::{Caps, ProviderKind};
use crate::limits::CHANNELS_PER_PEER;
use crate::name::Name;
use crate::protocol::message::{MAX_ERROR_TEXT, Message};
use crate::room::Grows;
use crate::status::{Code, Reason, Status};

/// Descriptors that a connection uses here: the socket of the handshake; on shm also its own socket, its
/// process, and segments while they are passed.
fn descriptors(kind: ProviderKind) -> usize {
    if kind == ProviderKind::Shm { 4 } else { 1 }
}

impl Engine {
    /// Index of a peer that the application named; made known if it was not, and kept.
    pub fn add_peer(&mut self, name: &str) -> Result<u32, Status> {
        let peer = self.peer_of(name, false)?;
        self.peers.keep(peer);
        Ok(peer)
    }

    /// Index of a peer that connected. One that is not known becomes a guest.
    pub fn guest(&mut self, name: &str) -> Result<u32, Status> {
        let peer = self.peer_of(name, true)?;
        self.peers.touch(peer);
        Ok(peer)
    }

    fn peer_of(&mut self, name: &str, guest: bool) -> Result<u32, Status> {
        if let Some(peer) = self.peers.find(name) {
            return Ok(peer);
        }
        let all = self.peers.len();
        let room = self.notices.fits_peers(all + 1) && self.forgotten.fits(all);
        room.then_some(())
            .ok_or_else(|| Status::new(Code::ResourceExhausted, "no memory for one more peer"))?;
        if self.peers.is_full(guest) {
            self.peers.forget_some(|index, name| {
                self.stats.forget(name);
                self.forgotten.push(index);
            });
        }
        self.peers.insert(name, guest, self.settings.meta_cache_entries)
    }

    /// Whether [`take_forgotten`](Self::take_forgotten) has any.
    #[inline]
    pub fn has_forgotten(&self) -> bool {
        !self.forgotten.is_empty()
    }

    /// Peers that are not known any more, since the last call.
    pub fn take_forgotten(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.forgotten)
    }

    /// Index of a peer that is known.
    pub fn find_peer(&self, name: &str) -> Option<u32> {
        self.peers.find(name)
    }

    /// A peer by index, unless it was forgotten.
    pub fn peer(&self, peer: u32) -> Option<&Peer> {
        self.peers.get(peer)
    }

    /// All peers.
    pub fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.peers.iter()
    }

    pub(super) fn peer_name(&self, peer: Option<u32>) -> Name {
        let known = peer.and_then(|p| self.peers.get(p));
        known.map_or_else(|| self.no_peer.clone(), |p| p.name.clone())
    }

    /// Whether this peer may have one more connection, of this provider. A guest may have to make room
    /// for another guest.
    pub fn room_for_channel(
        &mut self,
        fx: &mut impl Fx,
        peer: u32,
        kind: ProviderKind,
    ) -> Result<(), Status> {
        let Some(p) = self.peers.get(peer) else {
            return Err(Status::gone("the peer was forgotten"));
        };
        if p.channels.len() >= CHANNELS_PER_PEER {
            let text = text!(
                "peer '{}' has {CHANNELS_PER_PEER} connections, more are not allowed",
                p.name.escape_debug()
            );
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        if !p.guest {
            return Ok(());
        }
        let name = p.name.clone();
        let allowed = self.settings.guest_descriptors;
        while self.guests_hold() + descriptors(kind) > allowed {
            if !self.dismiss_guest(fx) {
                let text = text!(
                    "'{}': connections of guests may use {allowed} descriptors (half of `ulimit -n`), which do; \
                     a peer that was added may always connect",
                    name.escape_debug()
                );
                return Err(Status::new(Code::ResourceExhausted, text));
            }
        }
        Ok(())
    }

    /// Descriptors that the connections of guests use.
    fn guests_hold(&self) -> usize {
        let of_guest = |c: &&Channel| self.peers.get(c.peer).is_some_and(|p| p.guest);
        let channels = self.channels.iter().map(|(_, c)| c).filter(of_guest);
        channels.map(|c| descriptors(c.caps.provider)).sum()
    }

    /// Closes the connection that a guest has not used for longest and on which nothing is under way.
    fn dismiss_guest(&mut self, fx: &mut impl Fx) -> bool {
        let idle = |c: &Channel| {
            let guest = self.peers.get(c.peer).is_some_and(|p| p.guest);
            let unused = c.responses.is_empty() && !c.waits() && c.flow.is_idle();
            guest && unused && !c.is_rail() && !self.pairs.use_channel(c.id)
        };
        let receives = |ch: ChanId| self.requests.iter().any(|(_, r)| r.ch == Some(ch));
        let mut busy = None;
        let found = loop {
            let channels = self.channels.iter().filter(|(_, c)| idle(c)).map(|(i, c)| (c.used, i));
            let oldest = channels.filter(|&at| busy.is_none_or(|busy| at > busy)).min();
            match oldest {
                Some((_, ch)) if receives(ch) => busy = oldest,
                _ => break oldest,
            }
        };
        let Some((_, ch)) = found else { return false };
        let status = Status::gone("closed to make room for another guest: nothing was under way");
        self.say_goodbye(fx, ch, &status);
        self.channel_down(fx, ch, status);
        true
    }

    /// The channel of this id.
    pub fn channel(&self, ch: ChanId) -> Option<&Channel> {
        self.channels.get(ch)
    }

    /// Marks a connection attempt as begun.
    pub fn connecting(&mut self, peer: u32) {
        // Whom this side wants to reach, the application has named.
        self.peers.keep(peer);
        let Some(p) = self.peers.get_mut(peer) else { return };
        if p.channels.is_empty() {
            p.state = PeerState::Connecting;
        }
    }

    /// Nobody here tries to connect yet: whatever else wants a connection says so again.
    pub fn left_to_dial(&mut self, peer: u32) {
        if let Some(p) = self.peers.get_mut(peer).filter(|p| p.state == PeerState::Connecting) {
            p.state = PeerState::Idle;
        }
    }

    /// There is no way to try.
    pub fn cannot_try(&mut self, peer: u32, why: &str) {
        if let Some(p) = self.peers.get_mut(peer) {
            p.tries.add(why);
        }
    }

    /// Whether requests wait for a connection to this peer.
    pub fn wants_connection(&self, peer: u32) -> bool {
        self.peers.get(peer).is_some_and(|p| {
            let waits = !p.queue.is_empty() || !p.outbox.is_empty() || p.pairs > 0;
            p.channels.is_empty() && waits
        })
    }

    /// Ends the channels of a peer's other incarnations. Only for who proved more than the peer's name.
    pub fn end_earlier(&mut self, fx: &mut impl Fx, peer: u32, incarnation: &[u8; 16]) {
        let Some(p) = self.peers.get(peer).filter(|p| p.incarnation != *incarnation) else {
            return;
        };
        let text = text!("peer '{}' restarted: it is a new incarnation", p.name);
        for ch in p.channels.clone().into_iter().rev() {
            let status = Status::new(Code::Unavailable, &*text).because(Reason::PeerRestarted);
            self.channel_down(fx, ch, status);
        }
    }

    /// Whether all ends: connections that come are not wanted any more.
    pub fn is_closing(&self) -> bool {
        self.closing
    }

    /// A connection is there: gives it an id. `channel_open` follows, once the id is mapped.
    ///
    /// Another incarnation than the last one's has restarted. The channels of the last one end here only
    /// if the newcomer `proved` more than its name; otherwise it gets none before they have ended.
    pub fn channel_new(
        &mut self,
        fx: &mut impl Fx,
        peer: u32,
        incarnation: [u8; 16],
        proved: bool,
        mut caps: Caps,
        remote_manual: bool,
    ) -> Result<ChanId, Status> {
        if self.closing || (!proved && self.contested(peer, &incarnation)) {
            return Err(Status::gone("it is not wanted any more"));
        }
        let forgotten = || Status::gone("the peer was forgotten");
        let known = self.peers.get(peer).ok_or_else(forgotten)?;
        let name = known.name.clone();
        if known.incarnation != incarnation {
            self.end_earlier(fx, peer, &incarnation);
            self.fail_for_earlier(fx, peer, &incarnation);
            let p = self.peers.get_mut(peer).ok_or_else(forgotten)?;
            p.cache.clear();
            p.carriers.forget_heard();
            p.lost = LostNames::default();
        }
        let counters = self.stats.peer(&name, caps.provider.name());
        counters.connects.add(1);
        self.happened += 1;
        match self.settings.sizes[caps.provider as usize].eager_limit {
            0 => {}
            tuned => {
                // Wherever the content lies.
                caps.eager_max = usize::try_from(tuned).unwrap_or(usize::MAX);
                caps.plain_max = caps.plain_max.min(caps.eager_max);
                caps.direct_max = 0;
            }
        }
        let channel =
            Channel::new((peer, name), caps, remote_manual, counters, fx.now(), self.owed.clone());
        let none = |_| crate::room::none(size_of::<Channel>(), "a connection");
        let ch = self.channels.insert(channel).map_err(none)?;
        if let Some(c) = self.channels.get_mut(ch) {
            c.id = ch;
            c.incarnation = crate::api::incarnation_word(&incarnation);
        }
        let p = self.peers.get_mut(peer).ok_or_else(forgotten)?;
        p.incarnation = incarnation;
        p.channels.push(ch);
        p.state = PeerState::Connected;
        p.last_error = None;
        if p.carriers.has_heard()
            && let Some(c) = self.channels.get_mut(ch)
        {
            c.flow.stop();
        }
        let first = p.channels.len() == 1;
        p.tries = Tries::default();
        if first {
            self.peer_changed(fx, peer, None);
        }
        self.next_keepalive = self.next_keepalive.min(fx.now() + self.keepalive_interval());
        Ok(ch)
    }

    /// Where both ends have dialled there are two connections. The ends agree on this one for what they ask for from now on: a request
    /// and the content that is sent the other way then go by one, which tcp sends together, and the other one rests. Messages keep
    /// their order, and so their connection, if any was sent. Between `channel_new` and `channel_open`.
    pub fn channel_prefer(&mut self, ch: ChanId) {
        let Some(p) = self.channels.get(ch).and_then(|c| self.peers.get_mut(c.peer)) else {
            return;
        };
        p.preferred = Some(ch);
        let first = p.channels.first().and_then(|&first| self.channels.get(first));
        let unused = first.is_some_and(|first| first.flow.is_unused());
        if unused && p.outbox.is_empty() && p.pairs == 0 {
            p.channels.retain(|&c| c != ch);
            p.channels.insert(0, ch);
        }
    }

    /// Both sides agreed in the handshake that every message and all content has a checksum; `seeds`
    /// are those of what is sent and of what is received. Between `channel_new` and `channel_open`.
    pub fn channel_seal(&mut self, ch: ChanId, seeds: [u64; 2]) {
        if let Some(c) = self.channels.get_mut(ch) {
            c.seal = Some(Seal::new(seeds));
        }
    }

    /// Begins to use a channel: requests that waited for it are sent.
    pub fn channel_open(&mut self, fx: &mut impl Fx, ch: ChanId) {
        let Some(c) = self.channels.get_mut(ch) else { return };
        let peer = c.peer;
        if self.settings.checksum && c.seal.is_none() {
            let text = "a connection without checksums, which this manager's options ask for";
            return self.channel_down(fx, ch, Status::internal(text));
        }
        c.announce(fx);
        self.tell_lost(fx, ch);
        self.tell_carrier(fx, peer);
        self.empty_queue(peer, |engine, request| engine.submit(fx, request));
        if let Some(c) = self.channels.get_mut(ch) {
            c.flow.queued = true;
        }
        self.pairs_channel_open(fx, peer, ch);
        self.settle(fx, ch);
    }

    /// Tells the peer that the connection ends, and why. If it cannot be sent at once, it is not.
    pub(super) fn say_goodbye(&mut self, fx: &mut impl Fx, ch: ChanId, status: &Status) {
        let mut room = [0; MAX_ERROR_TEXT];
        let text = super::cut(&status.message, MAX_ERROR_TEXT, &mut room);
        let m = Message::Goodbye { code: status.code as i32, text };
        self.send(fx, ch, &m, text);
    }

    /// GOODBYE arrived.
    pub(super) fn on_goodbye(&mut self, ch: ChanId, code: i32, text: &[u8]) {
        let mut status = Status::gone("the peer closed the connection");
        if code != Code::Ok as i32 && !text.is_empty() {
            let text = crate::room::heard(&text[..text.len().min(MAX_ERROR_TEXT)]);
            status = status.with_message(text!("the peer closed the connection: {text}"));
        }
        if let Some(c) = self.channels.get_mut(ch) {
            // Nobody has to be told that it has ended.
            c.nonce = None;
        }
        self.violation(ch, status);
    }

    /// Ends a channel: what was under way on it fails with this status, once each.
    pub fn channel_down(&mut self, fx: &mut impl Fx, ch: ChanId, status: Status) {
        let Some(mut channel) = self.channels.remove(ch) else { return };
        channel.counters.disconnects.add(1);
        self.happened += 1;
        if let Some(rail) = channel.rail.take() {
            drop(channel);
            return self.rail_down(fx, ch, &rail, &status);
        }
        let (mut carried, mut left, peer) = (None, None, channel.peer);
        if let Some(peer) = self.peers.get_mut(peer) {
            carried = (peer.channels.first() == Some(&ch)).then_some(channel.peer);
            peer.channels.retain(|&c| c != ch);
            peer.preferred = peer.preferred.filter(|&c| c != ch);
            peer.carriers.forget(ch);
            channel.nonce.into_iter().for_each(|name| peer.lost.add(name));
            left = peer.channels.first().copied();
            if peer.channels.is_empty() {
                peer.state = PeerState::Idle;
                if status.reason != Reason::Cancelled {
                    peer.last_error = Some(status.clone());
                }
                self.peer_changed(fx, channel.peer, Some(status.clone()));
            }
        }
        if let Some(left) = left.filter(|_| !self.closing) {
            self.tell_lost(fx, left);
        }
        if carried.is_some() && !self.closing {
            self.lost_carrier(fx, peer);
        }
        // First: they may touch what is closed next.
        self.end_rails(fx, &mut channel);
        let provider = channel.caps.provider.name();
        let responses = std::mem::take(&mut channel.responses);
        drop(channel);
        fx.hang_up(ch);
        // First nothing may touch memory any more; then callbacks say so.
        let mut at = 0;
        while let Some(i) = self.requests.next(&mut at, |r| r.ch == Some(ch)) {
            self.close_landing(fx, i);
        }
        for i in responses.responses() {
            self.close_source(fx, i);
        }
        self.close_pairs_windows(fx, ch);
        self.close_buffers(fx, ch);
        fx.end_channel(ch);
        self.drop_buffers(fx, ch);
        at = 0;
        while let Some(i) = self.requests.next(&mut at, |r| r.ch == Some(ch)) {
            #[cfg(feature = "planted")]
            if self.planted == Some(super::Planted::NeverEnds) {
                continue;
            }
            self.request_lost_channel(fx, i, &status, provider);
        }
        for i in responses.responses() {
            self.response_lost_channel(fx, i, &status);
        }
        self.messages_lost_channel(fx, ch, &status);
        self.fail_receives_of_gone(fx, peer, &status);
        self.pairs_lost_channel(fx, ch, &status);
        // They were to come after what was lost.
        if let Some(peer) = carried {
            self.fail_outbox(fx, peer, &status);
        }
        self.reconnect_pairs(fx, peer);
    }

    /// The application ends the connections to a peer, and with them the attempts to connect: what
    /// waits for one fails too, and the next request asks for a new one.
    pub fn disconnect(&mut self, fx: &mut impl Fx, peer: u32) {
        let Some(p) = self.peers.get_mut(peer) else { return };
        let text = text!("disconnected from peer '{}'", p.name);
        let status = Status::new(Code::Unavailable, text).because(Reason::Cancelled);
        let channels = p.channels.clone();
        if channels.is_empty() {
            p.state = PeerState::Idle;
        }
        self.empty_queue(peer, |engine, request| engine.fail(fx, request, status.clone()));
        self.fail_outbox(fx, peer, &status);
        self.fail_pairs(fx, peer, &status);
        // That which carries messages is the last: no other takes over, and what goes by it arrives before its end.
        for ch in channels.into_iter().rev() {
            self.say_goodbye(fx, ch, &status);
            self.channel_down(fx, ch, status.clone());
        }
    }

    /// An attempt to connect failed. If another may succeed, requests keep waiting.
    pub fn connect_failed(&mut self, fx: &mut impl Fx, peer: u32, status: Status, retryable: bool) {
        let Some(p) = self.peers.get_mut(peer) else { return };
        if !p.channels.is_empty() {
            return;
        }
        p.tries.add(&status.message);
        let status = match retryable {
            true => status,
            // The last word: it tells what every try met.
            false => status.with_message(p.tries.text()),
        };
        p.state = PeerState::Failed;
        p.last_error = Some(status.clone());
        if retryable {
            return self.tire_lost_pairs(fx, peer, &status);
        }
        self.empty_queue(peer, |engine, request| engine.fail(fx, request, status.clone()));
        self.fail_outbox(fx, peer, &status);
        self.fail_pairs(fx, peer, &status);
    }

    /// Gives a request to its peer's channel, or queues it and asks for a connection.
    pub(super) fn submit(&mut self, fx: &mut impl Fx, request: u32) {
        let Some(r) = self.requests.get_mut(request) else { return };
        let Some((peer, p)) = r.peer.and_then(|i| Some((i, self.peers.get_mut(i)?))) else {
            return self.fail_by_defect(fx, request, "the peer of a receive is not known any more");
        };
        match p.asks_on() {
            Some(ch) => {
                self.send_request(fx, request, ch);
            }
            None => {
                r.state = State::Queued;
                p.queue.push(&mut self.requests, request_in_queue, request);
                self.want_connection(fx, peer);
            }
        }
    }

    /// Receives that wait for a connection to a peer wait no more, in their order: each goes to `then`.
    fn empty_queue(&mut self, peer: u32, mut then: impl FnMut(&mut Engine, u32)) {
        let queue = self.peers.get_mut(peer).map(|p| std::mem::take(&mut p.queue));
        let mut at = queue.and_then(|queue| queue.first());
        while let Some((index, r)) = at.and_then(|i| Some((i, self.requests.get_mut(i)?))) {
            at = std::mem::take(&mut r.in_queue).next();
            then(self, index);
        }
    }

    /// A receive that waits for a connection does so no more.
    pub(super) fn leave_queue(&mut self, index: u32) {
        let Some(r) = self.requests.get_mut(index) else { return };
        let (links, peer) = (std::mem::take(&mut r.in_queue), r.peer);
        if let Some(p) = peer.and_then(|p| self.peers.get_mut(p)) {
            p.queue.remove(&mut self.requests, request_in_queue, index, links);
        }
    }

    /// Asks for a connection to a peer, if nobody has.
    pub(super) fn want_connection(&mut self, fx: &mut impl Fx, peer: u32) {
        let Some(p) = self.peers.get_mut(peer) else { return };
        if p.state != PeerState::Connecting {
            p.state = PeerState::Connecting;
            let name = p.name.clone();
            fx.connect(peer, &name);
        }
    }
}
