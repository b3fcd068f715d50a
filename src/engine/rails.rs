//! Rails: further connections to a peer that carry a part of one main connection's READs and WRITEs.
//!
//! Who dialled the main connection dials its rails. All messages go over the main one, and so does their order; a rail
//! has a channel of its own for its credits and signs of life, and nothing else may come by it. It joins by a nonce
//! that its maker says on both connections, and that the other end, having heard both, says again on the main one: who
//! has only the peer's name can be neither end of a rail.
//!
//! A rail that ends hands what was under way on it to the others (`transfer/protocols/stripes.rs`). What it was to READ is
//! read anew at once. What it was to WRITE could still be on its way, so that is written anew only when the peer has
//! said that its end of the rail is closed, too: RAIL_END. With the main connection its rails end.

use super::channel::{ChanId, Channel};
use super::{Engine, Fx};
use crate::fabric::keys::{Keys, Place};
use crate::fabric::{Caps, Mr};
use crate::limits::MAX_RAILS;
use crate::protocol::message::{MAX_REGIONS, Message, Nonce, RailMessage};
use crate::status::{Code, Reason, Status};

/// A rail that did not join for so long is closed.
const JOIN_TIME: u64 = 5_000_000_000;

/// What a channel that is a rail knows of it.
#[derive(Debug)]
pub(super) struct Rail {
    /// The connection whose READs and WRITEs it carries, once it has joined that.
    pub main: Option<ChanId>,
    /// Its name, once it was heard.
    nonce: Option<Nonce>,
    /// When it came.
    pub(super) since: u64,
    /// The devices at its ends, here and at the peer, by number; 0 where the main connection's is.
    pub(super) devices: (u8, u8),
}

/// A rail, as its main channel knows it.
#[derive(Debug)]
struct Joined {
    nonce: Nonce,
    ch: ChanId,
    /// This end is open, and in use.
    open: bool,
    /// The peer has said that its end is closed.
    closed_there: bool,
}

/// The rails of a main channel.
#[derive(Debug, Default)]
pub(super) struct Rails {
    joined: Vec<Joined>,
    /// Nonces that the peer has said, and of which no rail was heard yet.
    added: Vec<Nonce>,
    /// So many are to be dialled, one after the other.
    wanted: usize,
    /// Further devices here that one of them leads to, a bit for each.
    devices: u32,
}

impl Rails {
    /// Those in use.
    pub fn open(&self) -> impl Iterator<Item = ChanId> {
        self.joined.iter().filter(|j| j.open).map(|j| j.ch)
    }

    /// Whether there is any.
    #[inline]
    pub fn any(&self) -> bool {
        self.joined.iter().any(|j| j.open)
    }

    /// Further devices here that one of them leads to, in order.
    fn devices(&self) -> impl Iterator<Item = u8> {
        let set = self.devices;
        (1..u32::BITS as u8).filter(move |&device| set & 1 << device != 0)
    }

    fn find(&mut self, nonce: &Nonce) -> Option<&mut Joined> {
        self.joined.iter_mut().find(|j| j.nonce == *nonce)
    }

    fn of(&mut self, ch: ChanId) -> Option<&mut Joined> {
        self.joined.iter_mut().find(|j| j.ch == ch)
    }
}

impl Channel {
    /// Whether it is a rail, or is to be one.
    pub fn is_rail(&self) -> bool {
        self.rail.is_some()
    }

    /// Its rails that are in use.
    pub fn rails(&self) -> impl Iterator<Item = ChanId> {
        self.rails.open()
    }

    /// Memory here as the peer is told of it: with its keys for all devices that the peer may come by.
    #[inline]
    pub fn place(&self, fx: &impl Fx, addr: u64, keys: &Keys<Mr>) -> Place {
        let mut place = Place { addr, rkeys: keys.map(|mr| mr.rkey) };
        if self.rails.devices != 0 {
            for device in self.rails.devices() {
                let on = |mr| fx.on_device(self.id, mr, device).map(|mr: Mr| mr.rkey);
                place.add_device(device, keys, MAX_REGIONS - 1, on);
            }
        }
        place
    }

    /// The devices at both ends, here and at the peer.
    pub fn devices(&self) -> (u8, u8) {
        self.rail.as_ref().map_or((0, 0), |rail| rail.devices)
    }
}

impl Engine {
    /// This side made a connection, and the peer takes rails: dials as many as the settings say.
    pub fn want_rails(&mut self, fx: &mut impl Fx, ch: ChanId) {
        let most = self.sizes(ch).max_rdma_per_request as usize;
        let Some(c) = self.channels.get_mut(ch) else { return };
        c.rails.wanted = most.saturating_sub(1).min(MAX_RAILS);
        self.want_rail(fx, ch);
    }

    fn want_rail(&mut self, fx: &mut impl Fx, ch: ChanId) {
        let Some(c) = self.channels.get(ch) else { return };
        if c.rails.joined.len() < c.rails.wanted {
            let (peer, name) = (c.peer, c.name.clone());
            fx.connect_rail(peer, &name, ch);
        }
    }

    /// Whether a rail that was dialled for this channel is still wanted.
    pub fn wants_rail(&self, ch: ChanId) -> bool {
        let found = self.channels.get(ch).filter(|_| !self.closing);
        found.is_some_and(|c| c.rails.joined.len() < c.rails.wanted)
    }

    /// A connection is there that is to be a rail: gives it an id, or says why it is not wanted. `rail_open` follows,
    /// once the id is mapped.
    pub fn rail_new(
        &mut self,
        fx: &mut impl Fx,
        peer: u32,
        incarnation: &[u8; 16],
        caps: Caps,
        remote_manual: bool,
    ) -> Result<ChanId, Status> {
        let refuse = |text: &str| Err(Status::new(Code::FailedPrecondition, text));
        if self.settings.sizes[caps.provider as usize].max_rdma_per_request <= 1 {
            return refuse("transfers go over one connection here (max_rdma_per_request is 1)");
        }
        let known = self.peers.get(peer).filter(|p| p.incarnation == *incarnation);
        let Some(p) = known.filter(|p| !p.channels.is_empty() && !self.closing) else {
            return refuse("there is no connection that it could be a part of");
        };
        let name = p.name.clone();
        self.room_for_rail(fx, peer);
        let counters = self.stats.peer(&name, caps.provider.name());
        counters.connects.add(1);
        self.happened += 1;
        let now = fx.now();
        let mut channel =
            Channel::new((peer, name), caps, remote_manual, counters, now, self.owed.clone());
        channel.rail =
            Some(Box::new(Rail { main: None, nonce: None, since: now, devices: (0, 0) }));
        let none = |_| crate::room::none(size_of::<Channel>(), "a connection");
        let ch = self.channels.insert(channel).map_err(none)?;
        if let Some(c) = self.channels.get_mut(ch) {
            c.id = ch;
        }
        self.next_keepalive = self.next_keepalive.min(now + self.keepalive_interval());
        Ok(ch)
    }

    /// Where many of a peer are to be a part of another connection and are of none yet, the one that has been so for longest makes
    /// room: whose they are is not known, and one that is the peer's joins at once.
    fn room_for_rail(&mut self, fx: &mut impl Fx, peer: u32) {
        let unjoined = || self.channels.iter().filter(|(_, c)| c.peer == peer && c.is_unjoined());
        if unjoined().count() < MAX_RAILS {
            return;
        }
        let since = |c: &Channel| c.rail.as_ref().map(|rail| rail.since);
        let oldest = unjoined().min_by_key(|(ch, c)| (since(c), *ch)).map(|(ch, _)| ch);
        if let Some(oldest) = oldest {
            self.close_rail(fx, oldest);
        }
    }

    /// Between which devices it goes, by their numbers here and at the peer, unless between the first ones.
    pub fn rail_devices(&mut self, ch: ChanId, devices: (u8, u8)) {
        if let Some(rail) = self.channels.get_mut(ch).and_then(|c| c.rail.as_mut()) {
            rail.devices = devices;
        }
    }

    /// Begins to use it. Who dialled says for which channel, and draws its name.
    pub fn rail_open(&mut self, fx: &mut impl Fx, ch: ChanId, dialled: Option<(ChanId, Nonce)>) {
        let Some(c) = self.channels.get_mut(ch) else { return };
        c.announce(fx);
        if let Some((main, nonce)) = dialled {
            if let Some(rail) = &mut c.rail {
                rail.nonce = Some(nonce);
            }
            c.send(fx, &Message::Rail(RailMessage::Join { nonce }), &[]);
            self.send(fx, main, &Message::Rail(RailMessage::Add { nonce }), &[]);
            self.settle(fx, main);
        }
        self.settle(fx, ch);
    }

    /// Whether a message of this kind may come by this channel.
    #[inline]
    pub(super) fn may_come_by(&self, ch: ChanId, message: &Message<'_>) -> bool {
        let rail = self.channels.get(ch).is_some_and(Channel::is_rail);
        match message {
            Message::Rail(RailMessage::Join { .. }) => rail,
            Message::Ping | Message::Pong | Message::Credit { .. } | Message::Goodbye { .. } => {
                true
            }
            _ => !rail,
        }
    }

    /// A message about a rail arrived.
    pub(super) fn on_rail(&mut self, fx: &mut impl Fx, ch: ChanId, m: RailMessage) {
        match m {
            RailMessage::Add { nonce } => self.on_rail_add(fx, ch, nonce),
            RailMessage::Join { nonce } => self.on_rail_join(fx, ch, nonce),
            RailMessage::Joined { nonce } => self.on_rail_joined(fx, ch, nonce),
            RailMessage::End { nonce } => self.on_rail_end(fx, ch, nonce),
        }
    }

    /// The main connection named a rail.
    fn on_rail_add(&mut self, fx: &mut impl Fx, main: ChanId, nonce: Nonce) {
        let Some(c) = self.channels.get_mut(main) else { return };
        let here = c.peer;
        if c.rails.added.len() + c.rails.joined.len() >= 2 * MAX_RAILS {
            let text = text!("more than {} rails of a connection", 2 * MAX_RAILS);
            return self.violation(main, Status::invalid(text));
        }
        if let Err(status) = crate::room::grow(&mut c.rails.added, 1, "rails") {
            return self.violation(main, status);
        }
        c.rails.added.push(nonce);
        let named = |c: &Channel| c.peer == here && c.is_unjoined_of(&nonce);
        let found = self.channels.iter().find(|(_, c)| named(c)).map(|(ch, _)| ch);
        if let Some(rail) = found {
            self.join(fx, main, rail, nonce);
        }
    }

    /// A rail said its name.
    fn on_rail_join(&mut self, fx: &mut impl Fx, ch: ChanId, nonce: Nonce) {
        let Some(c) = self.channels.get_mut(ch) else { return };
        let peer = c.peer;
        let Some(rail) = c.rail.as_mut().filter(|r| r.nonce.is_none()) else {
            return self.violation(ch, Status::invalid("a rail that says its name twice"));
        };
        rail.nonce = Some(nonce);
        let named = |c: &Channel| c.peer == peer && c.rails.added.contains(&nonce);
        let found = self.channels.iter().find(|(_, c)| named(c)).map(|(ch, _)| ch);
        if let Some(main) = found {
            self.join(fx, main, ch, nonce);
        }
    }

    /// Both connections said the same name: they lead to one process.
    fn join(&mut self, fx: &mut impl Fx, main: ChanId, rail: ChanId, nonce: Nonce) {
        if let Some(c) = self.channels.get_mut(main) {
            c.rails.added.retain(|n| *n != nonce);
        }
        if !self.bind(main, rail, nonce) {
            return self.settle(fx, rail);
        }
        self.send(fx, main, &Message::Rail(RailMessage::Joined { nonce }), &[]);
        self.settle(fx, main);
    }

    /// The peer has heard of a rail of ours on both connections.
    fn on_rail_joined(&mut self, fx: &mut impl Fx, main: ChanId, nonce: Nonce) {
        let Some(peer) = self.channels.get(main).map(|c| c.peer) else { return };
        let named = |c: &Channel| c.peer == peer && c.is_unjoined_of(&nonce);
        let found = self.channels.iter().find(|(_, c)| named(c)).map(|(ch, _)| ch);
        match found {
            Some(rail) if self.bind(main, rail, nonce) => {
                self.settle(fx, rail);
                return self.want_rail(fx, main);
            }
            // It ends as none of this connection.
            Some(rail) => self.settle(fx, rail),
            // It has ended here meanwhile.
            None => {}
        }
        // The peer is to know: it has joined there.
        self.send(fx, main, &Message::Rail(RailMessage::End { nonce }), &[]);
    }

    /// Makes it a rail. False: the two do not fit, and it is ended.
    fn bind(&mut self, main: ChanId, rail: ChanId, nonce: Nonce) -> bool {
        let (Some(m), Some(r)) = (self.channels.get(main), self.channels.get(rail)) else {
            return false;
        };
        let fits = m.caps.provider == r.caps.provider
            && m.rail.is_none()
            && m.rails.joined.len() < MAX_RAILS
            && m.seal.is_some() == r.seal.is_some();
        if !fits {
            let text = "a rail of another kind than its connection, or one too many";
            self.violation(rail, Status::new(Code::FailedPrecondition, text));
            return false;
        }
        let room =
            self.channels.get_mut(main).map(|m| crate::room::grow(&mut m.rails.joined, 1, "rails"));
        if let Some(Err(status)) = room {
            self.violation(rail, status);
            return false;
        }
        let mut here = 0;
        if let Some(r) = self.channels.get_mut(rail).and_then(|c| c.rail.as_mut()) {
            r.main = Some(main);
            here = r.devices.0;
        }
        if let Some(m) = self.channels.get_mut(main) {
            m.rails.joined.push(Joined { nonce, ch: rail, open: true, closed_there: false });
            m.rails.devices |= 1u32.checked_shl(here.into()).unwrap_or(0) & !1;
        }
        self.happened += 1;
        true
    }

    /// The peer's end of a rail is closed.
    fn on_rail_end(&mut self, fx: &mut impl Fx, main: ChanId, nonce: Nonce) {
        let Some(c) = self.channels.get_mut(main) else { return };
        c.rails.added.retain(|n| *n != nonce);
        let Some(joined) = c.rails.find(&nonce) else { return };
        joined.closed_there = true;
        let (ch, open) = (joined.ch, joined.open);
        match open {
            true => self.channel_down(fx, ch, Status::gone("the peer closed the rail")),
            false => self.rail_is_over(fx, main, ch),
        }
    }

    /// Both ends of a rail are closed: what it was to write is written another way.
    fn rail_is_over(&mut self, fx: &mut impl Fx, main: ChanId, rail: ChanId) {
        if let Some(c) = self.channels.get_mut(main) {
            c.rails.joined.retain(|j| j.ch != rail);
            // It is not dialled again.
            c.rails.wanted = c.rails.wanted.saturating_sub(1);
        }
        self.write_stripes_anew(fx, main, rail);
    }

    /// A rail has ended, and is out of the table of channels.
    pub(super) fn rail_down(&mut self, fx: &mut impl Fx, ch: ChanId, rail: &Rail, status: &Status) {
        fx.hang_up(ch);
        fx.end_channel(ch);
        let Some(main) = rail.main else { return };
        let Some(joined) = self.channels.get_mut(main).and_then(|c| c.rails.of(ch)) else { return };
        joined.open = false;
        let (nonce, over) = (joined.nonce, joined.closed_there);
        let name = self.channels.get(main).map(|c| c.name.clone()).unwrap_or_default();
        crate::log::info(format_args!(
            "one of several connections to peer '{name}' ended, the others go on: {status}"
        ));
        self.send(fx, main, &Message::Rail(RailMessage::End { nonce }), &[]);
        self.read_stripes_anew(fx, main, ch, status);
        if over {
            self.rail_is_over(fx, main, ch);
        }
        self.settle(fx, main);
    }

    /// A main channel ends, and is out of the table: its rails do, before anything of it.
    pub(super) fn end_rails(&mut self, fx: &mut impl Fx, channel: &mut Channel) {
        for joined in std::mem::take(&mut channel.rails.joined) {
            if joined.open {
                self.close_rail(fx, joined.ch);
            }
        }
        // What has not joined yet may be one of it, by which the peer, who knows that, writes already. One of another main connection is
        // missed by nobody.
        let peer = channel.peer;
        let mut at = 0;
        while let Some(ch) =
            self.channels.next(&mut at, |c: &Channel| c.peer == peer && c.is_unjoined())
        {
            self.close_rail(fx, ch);
        }
    }

    fn close_rail(&mut self, fx: &mut impl Fx, ch: ChanId) {
        if let Some(c) = self.channels.remove(ch) {
            c.counters.disconnects.add(1);
            self.happened += 1;
            fx.hang_up(ch);
            fx.end_channel(ch);
        }
    }

    /// Whether a rail waits to join for too long, and why it is closed then.
    pub(super) fn is_late(&self, ch: ChanId, now: u64) -> Option<Status> {
        let rail = self.channels.get(ch)?.rail.as_ref()?;
        let late = rail.main.is_none() && now.saturating_sub(rail.since) >= JOIN_TIME;
        let text = "it was to be a part of another connection, which did not say so in time";
        late.then(|| Status::new(Code::Unavailable, text).because(Reason::RemoteError))
    }
}

impl Channel {
    /// It is to be a rail, and has joined no connection yet.
    fn is_unjoined(&self) -> bool {
        self.rail.as_ref().is_some_and(|r| r.main.is_none())
    }

    /// The same, and this is its name.
    fn is_unjoined_of(&self, nonce: &Nonce) -> bool {
        self.is_unjoined() && self.rail.as_ref().is_some_and(|r| r.nonce == Some(*nonce))
    }
}
