//! Connections as they come and go: dials that are due, handshakes that ended, well or not.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use super::core::Core;
use super::doubt::Doubt;
use super::early::{Early, Fresh};
use super::gate;
use super::rails::rail_token;
use super::routes::{LEFT, Route};
use super::world::{Connection, EpKey, World};
use crate::bootstrap::{Met, PeerHello};
use crate::engine::{ChanId, Engine};
use crate::fabric::ProviderKind;
use crate::local_fd::Local;
use crate::log;
use crate::observe::{Args, Trace};
use crate::os::ticks;
use crate::status::{Code, Status};

/// One dial, over all addresses of a peer.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// A dial that is wanted while another is under way to the same peer is looked at so often.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Connections that are not dry after so many looks are busy rather than lost.
const OLDER_TURNS: u32 = 32;
/// Why a peer that connected by itself is not dialled.
const NO_ADDRESS: &str = "its address was not given here: add the peer, or it has to connect by itself \
                          (addresses that a peer names are used only where a secret was proved)";

impl Core {
    /// What has come by older connections of a peer is heard before a further one is there: by that the peer may say that it has lost
    /// them, and nothing of them counts from then on.
    pub(super) fn hear_older(&mut self, name: &str) {
        let known = self.engine.find_peer(name).and_then(|peer| self.engine.peer(peer));
        if known.is_some_and(|p| !p.channels.is_empty()) {
            let _ = (0..OLDER_TURNS).find(|_| self.poll_adapters(true, ticks()) == 0);
        }
    }

    /// A handshake is over: its endpoint becomes a channel, if there is room for the peer and nobody else has its name.
    pub(super) fn ready(
        &mut self,
        token: Option<u64>,
        hello: &PeerHello,
        key: EpKey,
        reason: String,
        sock: Option<Local<OwnedFd>>,
        address: String,
    ) {
        let proved = self.boot.has_secret();
        let peer = match self.room_for_peer(hello, key.0, proved) {
            Ok(peer) => peer,
            Err(status) => {
                log::warn(format_args!("a connection was turned away: {status}"));
                self.turn_away(key);
                return self.dialled_in_vain(token, status);
            }
        };
        let unnamed = token.filter(|&t| Core::is_unnamed(t as u32));
        if let Some(token) = unnamed {
            self.met(token as u32, &hello.name, peer);
            self.engine.keep_peer(peer);
        }
        let contested = !proved && self.engine.contested(peer, &hello.incarnation);
        let route = self.world.routes.enter(peer);
        if let Some(token) = token
            && unnamed.is_none()
        {
            // Dialled peers were checked by name: this is the peer that was meant.
            debug_assert_eq!(token as u32, peer);
            route.dialing = false;
        }
        if contested {
            // Its name was free when the handshake asked, and was taken since.
            let status = gate::taken(&hello.name);
            log::warn(format_args!("a connection from {address} was turned away: {status}"));
            return self.turn_away(key);
        }
        log::info(format_args!("connected to peer '{}' by {}: {reason}", hello.name, key.0.name()));
        let began = route.arrived(hello, proved, reason, address);
        trace_connect(&self.world.trace, &hello.name, key.0.name(), began, Code::Ok);
        let dialled = token.is_some();
        if dialled && let Some(route) = self.world.routes.get_mut(peer) {
            route.met_at = Some(Instant::now());
        }
        self.open_channel(peer, hello, key, sock, proved, dialled);
    }

    /// A dial led to a connection for which there is no room here: there may be later.
    fn dialled_in_vain(&mut self, token: Option<u64>, status: Status) {
        let Some(id) = token.map(|token| token as u32) else { return };
        let Some(route) = self.world.routes.get_mut(id) else { return };
        if Core::is_unnamed(id) {
            return self.not_met(id, status, true);
        }
        route.dialing = false;
        self.try_again(id, status);
    }

    /// A connection that is not kept.
    pub(super) fn turn_away(&mut self, key: EpKey) {
        self.world.connections.give_up(key);
    }

    /// An endpoint whose handshake is over becomes a channel, which hears what came before.
    fn open_channel(
        &mut self,
        peer: u32,
        hello: &PeerHello,
        key: EpKey,
        sock: Option<Local<OwnedFd>>,
        proved: bool,
        dialled: bool,
    ) {
        let fresh = self.world.connections.take_fresh(key);
        let caps = match &self.world.adapters[key.0 as usize] {
            Some(adapter) => adapter.caps().clone(),
            None => return,
        };
        let own = self.boot.identity().incarnation;
        let (engine, world) = (&mut self.engine, &mut self.world);
        let manual = hello.manual_progress;
        let ch = match engine.channel_new(world, peer, hello.incarnation, proved, caps, manual) {
            Ok(ch) => ch,
            Err(status) => {
                world.connections.give_up(key);
                return self.try_again(peer, status);
            }
        };
        // Of two that were dialled at once both ends mean the same. Who comes at another time and has proved nothing may be anybody:
        // an incarnation is told to whoever asks.
        let crosses = || world.routes.get(peer).is_some_and(|route| route.crosses(Instant::now()));
        if dialled == (own < hello.incarnation) && (proved || dialled || crosses()) {
            engine.channel_prefer(ch);
        }
        link(engine, world, ch, (hello, key), sock);
        engine.channel_open(world, ch);
        if dialled && hello.rails && key.0 != ProviderKind::Shm {
            engine.want_rails(world, ch);
        }
        self.hear_early(ch, fresh);
    }

    /// What came before an endpoint was a channel.
    pub(super) fn hear_early(&mut self, ch: ChanId, fresh: Fresh) {
        let (engine, world) = (&mut self.engine, &mut self.world);
        for event in fresh.early {
            match event {
                Early::Message(bytes) => engine.on_message(world, ch, &bytes),
                Early::Written(imm) => engine.on_imm(world, ch, imm),
                Early::Down(status) => engine.channel_down(world, ch, status),
            }
        }
    }

    /// A connection was made and could not be kept: what waits for one gets another try.
    fn try_again(&mut self, peer: u32, status: Status) {
        // Nor is one that comes while this manager ends.
        let text = format_args!("a connection was turned away: {status}");
        if self.engine.is_closing() {
            log::debug(text)
        } else {
            log::warn(text)
        }
        self.engine.connect_failed(&mut self.world, peer, status, true);
        let again = self.engine.wants_connection(peer);
        let Some(route) = self.world.routes.get_mut(peer) else { return };
        if (again || route.wanted) && !route.dialing {
            let next = route.pause(Instant::now());
            route.next_try = Some(next);
            self.world.routes.try_at(next);
        }
    }

    /// A call waits for a connection to this peer.
    pub(super) fn await_connection(&mut self, peer: u32, time: Option<Duration>) {
        let until = time.and_then(|time| Instant::now().checked_add(time));
        if let (Some(route), Some(at)) = (self.world.routes.get_mut(peer), until) {
            route.await_until(at);
        }
    }

    /// Until when a peer that is about to dial by itself is left to do it: no longer than half of the time of who waits for it. `None`:
    /// it is not left that, since somebody tries already.
    pub(super) fn may_leave(&self, peer: u32, time: Option<Duration>) -> Option<Instant> {
        let route = self.world.routes.get(peer);
        let until = || Instant::now() + time.map_or(LEFT, |time| LEFT.min(time / 2));
        match route.and_then(Route::left_until) {
            None if route.is_none_or(Route::is_over) => Some(until()),
            left => left,
        }
    }

    /// The peer is left until then to dial by itself.
    pub(super) fn leave_until(&mut self, peer: u32, at: Instant) {
        if self.engine.peer(peer).is_none_or(|p| !p.channels.is_empty()) {
            return;
        }
        let Some(route) = self.world.routes.get_mut(peer) else { return };
        route.leave_until(at);
        self.world.routes.try_at(at);
        self.engine.left_to_dial(peer);
    }

    /// Whoever waits for a connection finds that nobody tries any more, though a later try may lead to one: it came and
    /// went, or another call has disconnected.
    pub(super) fn want_again(&mut self, peer: u32) {
        let Some(route) = self.world.routes.get_mut(peer).filter(|r| r.is_over()) else { return };
        let next = route.pause(Instant::now());
        (route.wanted, route.next_try) = (true, Some(next));
        self.world.routes.try_at(next);
        self.engine.connecting(peer);
    }

    /// A pass over a peer's addresses found no way. Only an answer that the next pass would hear too
    /// ends what waits for the connection; silence and chance are tried again, until each operation's
    /// own deadline.
    pub(super) fn dial_failed(
        &mut self,
        peer: u32,
        status: Status,
        retryable: bool,
        (met, tried): (Met, usize),
    ) {
        if let Some(route) = self.world.routes.get_mut(peer) {
            route.put_last(tried);
        }
        if Core::is_unnamed(peer) {
            return self.not_met(peer, status, retryable);
        }
        let Some(name) = self.engine.peer(peer).map(|p| p.name.clone()) else { return };
        // It listens no more, and has connected: that is looked at first, and then it is dialled again.
        let came = met == Met::Nobody && self.boot.is_expecting(&name);
        let met = if came { Met::Unclear } else { met };
        let died = self.world.routes.get_mut(peer).is_some_and(|route| match met {
            Met::Unclear => false,
            Met::Broken => {
                route.broke = true;
                false
            }
            // It was there a moment ago, in the middle of connecting, and now nobody listens.
            Met::Nobody => std::mem::take(&mut route.broke),
        });
        let (status, retryable) = match died {
            true => (Status::gone(text!("it ended while connecting: {}", status.message)), false),
            false => (status, retryable),
        };
        log::info(format_args!("connecting to peer '{name}' failed: {status}"));
        let began = self.world.routes.get_mut(peer).and_then(|r| r.dialled.take());
        trace_connect(&self.world.trace, &name, "", began, status.code);
        if met == Met::Nobody {
            self.engine.nobody_there(&mut self.world, peer, &status);
        }
        self.engine.connect_failed(&mut self.world, peer, status, retryable);
        let again = retryable && self.engine.wants_connection(peer);
        let Some(route) = self.world.routes.get_mut(peer) else { return };
        route.dialing = false;
        route.wanted &= retryable;
        route.refused = !retryable;
        route.next_try = None;
        if route.wanted || again {
            let next = route.pause(Instant::now());
            route.next_try = Some(next);
            self.world.routes.try_at(next);
        }
    }

    /// Starts the dials that are due. Of many peers one may wait for its next dial for ever: they are looked at when that is due, and not
    /// after each call.
    pub(super) fn dial_wanted(&mut self) {
        if self.world.routes.next_try().is_none() {
            return;
        }
        let now = Instant::now();
        if !self.world.routes.are_due(now) {
            return;
        }
        let mut next: Option<Instant> = None;
        for (peer, route) in self.world.routes.iter_mut() {
            if route.dialing_rail.is_none()
                && let Some(main) = route.rail.take()
            {
                let known = self.engine.peer(peer).filter(|_| !route.addrs.is_empty());
                if let Some(p) = known.filter(|_| self.engine.wants_rail(main)) {
                    let whom = (&*p.name, p.incarnation);
                    self.boot.dial_rail(rail_token(peer), &route.addrs, whom, now + DIAL_TIMEOUT);
                    route.dialing_rail = Some(main);
                    (self.timed, self.whole) = (true, true);
                }
            }
            let Some(at) = route.next_try else { continue };
            if at > now || route.dialing {
                let at = if route.dialing { at.max(now + LOOK_AGAIN) } else { at };
                next = Some(next.map_or(at, |earlier| earlier.min(at)));
                continue;
            }
            if Core::is_unnamed(peer) {
                (route.next_try, route.dialing, route.dialled) = (None, true, Some(now));
                self.boot.dial(u64::from(peer), &route.addrs, None, now + DIAL_TIMEOUT);
                (self.timed, self.whole) = (true, true);
                continue;
            }
            let Some(known) = self.engine.peer(peer) else { continue };
            let needed =
                known.channels.is_empty() && (route.wanted || self.engine.wants_connection(peer));
            (route.next_try, route.left) = (None, false);
            if !needed {
                continue;
            }
            if route.addrs.is_empty() {
                // The peer has to connect to us.
                self.engine.cannot_try(peer, NO_ADDRESS);
                continue;
            }
            route.dialing = true;
            route.dialled = Some(now);
            let expect = Some((&*known.name, None));
            self.boot.dial(u64::from(peer), &route.addrs, expect, now + DIAL_TIMEOUT);
            (self.timed, self.whole) = (true, true);
            self.engine.connecting(peer);
        }
        next.into_iter().for_each(|at| self.world.routes.try_at(at));
    }

    /// When the next dial is due, in nanoseconds.
    pub(super) fn next_dial(&self) -> u64 {
        let start = self.world.clock.start();
        let next = self.world.routes.next_try();
        next.map_or(u64::MAX, |at| at.saturating_duration_since(start).as_nanos() as u64)
    }

    /// The index of a peer that has connected, if there is room for it and for one more connection. Those
    /// that a restarted peer left behind take none.
    fn room_for_peer(
        &mut self,
        hello: &PeerHello,
        kind: ProviderKind,
        proved: bool,
    ) -> Result<u32, Status> {
        let peer = self.engine.guest(&hello.name)?;
        if proved {
            self.engine.end_earlier(&mut self.world, peer, &hello.incarnation);
        }
        self.engine.room_for_channel(&mut self.world, peer, kind)?;
        Ok(peer)
    }
}

/// Maps a channel and its endpoint to each other.
pub(super) fn link(
    engine: &mut Engine,
    world: &mut World,
    ch: ChanId,
    (hello, key): (&PeerHello, EpKey),
    sock: Option<Local<OwnedFd>>,
) {
    if let Some(fd) = &sock
        && let Err(status) = world.epoll.add(fd.as_raw_fd(), super::world::alive_tag(ch))
    {
        log::warn(format_args!("cannot watch peer '{}': {status}", hello.name));
    }
    world.connections.link(ch, Connection { ep: key, alive: sock, doubt: Doubt::None });
    engine.channel_name(ch, hello.connection);
    if let Some(seeds) = hello.seeds {
        engine.channel_seal(ch, seeds);
    }
}

/// Records a connection, from the dial on; an accepted one from now on.
fn trace_connect(
    trace: &Trace,
    peer: &str,
    provider: &'static str,
    began: Option<Instant>,
    code: Code,
) {
    if trace.enabled() {
        let args = Args { peer, provider, code: Some(code), ..Args::default() };
        trace.transfer("connect", "connection", began.unwrap_or_else(Instant::now), 0, &args);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Progress};
    use crate::manager::routes::LAST_TRY;
    use crate::manager::{Manager, Timeout};

    /// Somebody who waits finds who came late: no pause is longer than what is left, and the tries before the end are many.
    #[test]
    fn tries_go_on_until_the_end_of_a_wait() {
        for seconds in [0.3, 1.0, 3.0, 60.0] {
            let begun = Instant::now();
            let end = begun + Duration::from_secs_f64(seconds);
            let mut route = Route::default();
            route.await_until(end);
            route.await_until(begun);
            let (mut now, mut late) = (begun, 0);
            while end - now > 2 * LAST_TRY {
                let next = route.pause(now);
                assert!(next > now && next < end, "{seconds}: {:?} are left", end - now);
                now = next;
                late += u32::from(end - now < Duration::from_millis(250));
            }
            assert!((3..20).contains(&late), "{seconds}: {late} tries at the end");
        }
        let mut route = Route::default();
        let now = Instant::now();
        route.await_until(now);
        assert!(route.pause(now) >= now + Duration::from_millis(5), "there is nobody who waits");
    }

    /// Each call and each turn comes by there: that a peer is to be dialled later must not cost them a look at every peer.
    #[test]
    fn peers_are_looked_at_when_a_dial_is_due() {
        let config = Config {
            name: "a".into(),
            provider: Some(ProviderKind::Loopback),
            progress: Progress::Manual,
            ..Config::default()
        };
        let manager = Manager::new(config).unwrap();
        let names = ["first", "later", "untold"];
        names.iter().for_each(|name| manager.add_peer(name, "127.0.0.1:1").unwrap());
        let mut core = manager.core.lock();
        let [first, later, untold] = names.map(|name| core.peer(name).unwrap());
        let now = Instant::now();
        let hours = |n: u64| now + Duration::from_secs(n * 3600);
        for (peer, at) in [(later, hours(2)), (first, hours(1))] {
            core.world.routes.get_mut(peer).unwrap().next_try = Some(at);
            core.world.routes.try_at(at);
        }
        core.dial_wanted();
        assert_eq!(core.world.routes.next_try(), Some(hours(1)));
        // One of which nobody was told is found by whoever looks at all of them.
        core.world.routes.get_mut(untold).unwrap().next_try = Some(now);
        core.dial_wanted();
        assert_eq!(core.world.routes.get(untold).unwrap().next_try, Some(now));
        core.world.routes.try_at(now);
        core.dial_wanted();
        assert_eq!(core.world.routes.get(untold).unwrap().next_try, None);
        assert_eq!(core.world.routes.next_try(), Some(hours(1)));
        assert!(core.next_dial() > 3_500_000_000_000 && core.next_dial() < u64::MAX);
    }

    /// Both ends of a pair connect it, and the one whose name is higher leaves it to the other to dial; but not where it wants the
    /// connection for something else, before or after.
    #[test]
    fn who_needs_a_connection_does_not_leave_it_to_the_other_end() {
        let made = |name: &str| {
            let (provider, progress) = (Some(ProviderKind::Loopback), Progress::Manual);
            let config = Config { name: name.into(), provider, progress, ..Config::default() };
            Manager::new(config).unwrap()
        };
        for needs in [None, Some(false), Some(true)] {
            let [low, high] = ["a", "b"].map(made);
            let end = |m: &Manager| {
                let pair = m.pair_create(0, Timeout::Default).unwrap();
                (pair, m.pair_address(pair).unwrap())
            };
            let ends: [_; 3] = std::array::from_fn(|_| [end(&low), end(&high)]);
            let needs_it = || high.connect("a", None).unwrap();
            let blob = low.export_address().unwrap();
            high.import_address(&blob).unwrap();
            if needs == Some(false) {
                needs_it();
            }
            // Several pairs leave it to the other, and none is a reason to dial.
            for [(_, to), (pair, _)] in &ends {
                high.pair_connect(*pair, to, None).unwrap();
            }
            if needs == Some(true) {
                needs_it();
            }
            let core = high.core.lock();
            let route = core.world.routes.get(core.peer("a").unwrap()).unwrap();
            let left = route.left_until().is_some();
            assert_eq!((left, route.dialing), (needs.is_none(), needs.is_some()));
            drop(core);
            let [(pair, _), (_, to)] = &ends[0];
            low.pair_connect(*pair, to, None).unwrap();
            let core = low.core.lock();
            assert!(core.world.routes.get(core.peer("b").unwrap()).unwrap().dialing);
            drop(core);
            [low, high].into_iter().for_each(|m| m.destroy().unwrap());
        }
    }
}
