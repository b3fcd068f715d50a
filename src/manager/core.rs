//! One turn of a manager: adapters, handshakes, timers. Runs with the manager's lock held and never
//! blocks; what it leaves in the world's queue of callbacks runs without the lock.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::copies::Copies;
use super::doubt::{self, Doubt, Word};
use super::early::Early;
use super::gate::{self, Gate};
use super::sys::Tag;
use super::wheel::Ground;
use super::world::{EpKey, Link, World};
use crate::bootstrap::{BootEvent, Bootstrap, Met, PeerHello};
use crate::engine::Engine;
use crate::fabric::{Event, ProviderKind};
use crate::limits::HANDSHAKES;
use crate::local_fd::Local;
use crate::log;
use crate::observe::{Args, Trace};
use crate::os::ticks;
use crate::room::Grows;
use crate::status::{Code, Status};
use crate::thread::Thread;

/// One dial, over all addresses of a peer.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Events for which there is always room.
const EVENTS: usize = 64;
/// Why a peer that connected by itself is not dialled.
const NO_ADDRESS: &str = "its address was not given here: add the peer, or it has to connect by itself \
                          (addresses that a peer names are used only where a secret was proved)";
/// Handshakes are looked at so often while nothing says that they need it.
const BOOT_INTERVAL: u64 = 1_000_000;
/// Processor ticks (some microseconds) between two looks at timers, handshakes and dials.
const WHOLE_EVERY: u64 = 1 << 14;
/// Longest sleep while lines of the log were left out and not counted yet.
const TELL: Duration = Duration::from_secs(1);
/// Longest sleep while something waits for room in a queue.
const RETRY: Duration = Duration::from_millis(1);

/// Everything behind the manager's lock.
pub struct Core {
    /// The protocol.
    pub engine: Engine,
    /// What it acts on.
    pub world: World,
    /// The handshakes.
    pub boot: Bootstrap,
    /// Some descriptor of the handshakes is ready.
    pub boot_ready: bool,
    /// The next turn looks at the clock in any case.
    pub whole: bool,
    /// A time limit was set that a sleeper may not know of: it must look.
    pub timed: bool,
    /// Times in a row that a driver found something due at once, and then nothing to do.
    pub(super) restless: u32,
    /// The adapters are armed: nothing was done to them since.
    pub(super) armed: bool,
    next_boot: u64,
    last_whole: u64,
    /// Copies that turns make without the lock.
    pub(super) copies: Copies,
    pub(super) events: Vec<Event>,
    boot_events: Vec<BootEvent>,
    /// Peers that are being asked for their name.
    pub(super) meetings: super::meet::Meetings,
    /// Whose messages it logs.
    pub(super) speaker: log::Speaker,
}

impl Core {
    /// Puts the parts together.
    pub fn new(engine: Engine, world: World, boot: Bootstrap, speaker: log::Speaker) -> Core {
        Core {
            engine,
            world,
            boot,
            boot_ready: false,
            whole: true,
            timed: false,
            restless: 0,
            armed: false,
            next_boot: 0,
            last_whole: 0,
            copies: Copies::default(),
            events: Vec::new(),
            boot_events: Vec::new(),
            meetings: Default::default(),
            speaker,
        }
    }

    /// Does what there is to do; the number of events handled.
    #[inline(always)]
    pub fn turn(&mut self, thread: Thread) -> u32 {
        let _speaking = self.speaker.speak_on(thread);
        self.begin_copies();
        let ticks = ticks();
        let whole = self.whole || ticks.wrapping_sub(self.last_whole) >= WHOLE_EVERY;
        let count = self.poll_adapters(whole);
        self.world.trace.looked(count);
        self.settle_doubts();
        if whole || self.world.full {
            return self.turn_whole(ticks, count);
        }
        if count > 0 {
            self.finish();
        }
        count
    }

    /// The rest of a turn that looks at timers, handshakes and dials, too.
    #[inline(never)]
    fn turn_whole(&mut self, ticks: u64, mut count: u32) -> u32 {
        self.whole = false;
        self.last_whole = ticks;
        self.world.tick();
        let now = self.world.clock.now();
        if self.boot_ready || self.boot.pending() > 0 || now >= self.next_boot {
            count += self.poll_boot();
        }
        if now >= self.engine.next_tick() {
            self.engine.tick(&mut self.world);
        }
        if std::mem::take(&mut self.world.full) {
            self.engine.flush_all(&mut self.world);
        }
        self.finish();
        count
    }

    /// After each call into the engine: dials that are wanted, doorbells, endpoints that ended.
    #[inline]
    pub fn finish(&mut self) {
        if self.engine.has_forgotten() || self.engine.has_lost() || self.world.is_unfinished() {
            self.finish_all();
        }
    }

    #[inline(never)]
    fn finish_all(&mut self) {
        if self.engine.has_forgotten() {
            for peer in self.engine.take_forgotten() {
                self.world.routes.remove(&peer);
            }
        }
        self.engine.end_lost(&mut self.world);
        self.world.flush();
        self.world.bury();
        self.world.let_go();
        self.dial_wanted();
    }

    /// Room for the end of each endpoint, and some events more: what an adapter cannot report otherwise waits
    /// there. It is made before an endpoint is, so it lacks only if memory was never there.
    #[inline]
    pub(super) fn room_for_events(&mut self) -> bool {
        self.events.fits(self.world.endpoints.len() + HANDSHAKES + EVENTS)
    }

    /// Asks the adapters for events; those that have no endpoint, and so no more than strangers at their door, only if
    /// `all`.
    #[inline(always)]
    fn poll_adapters(&mut self, all: bool) -> u32 {
        let mut count = 0;
        self.armed = false;
        if !self.room_for_events() {
            return 0;
        }
        for kind in self.world.endpoints.kinds(all) {
            let Some(adapter) = self.world.adapters[kind as usize].as_mut() else { continue };
            adapter.poll(&mut self.events);
            if !self.events.is_empty() {
                count += self.take_events(kind, count == 0);
            }
        }
        count
    }

    /// Handles what an adapter reported; the first of a turn reads the clock.
    #[inline(never)]
    fn take_events(&mut self, kind: ProviderKind, first: bool) -> u32 {
        if first {
            self.world.tick();
        }
        let mut events = std::mem::take(&mut self.events);
        let count = events.len() as u32;
        for event in events.drain(..) {
            self.on_event(kind, event);
        }
        self.events = events;
        count
    }

    pub(super) fn on_event(&mut self, kind: ProviderKind, event: Event) {
        let ep = match &event {
            Event::Connected(ep)
            | Event::Message { ep, .. }
            | Event::Written { ep, .. }
            | Event::Done { ep, .. }
            | Event::Down { ep, .. } => *ep,
        };
        let Some(ch) = self.world.channel_of((kind, ep)) else {
            return self.world.keep_early((kind, ep), event);
        };
        let event = match self.may_doubt(kind) {
            false => event,
            true => match self.in_doubt(kind, ch, event) {
                Some(event) => event,
                None => return,
            },
        };
        let (engine, world) = (&mut self.engine, &mut self.world);
        match event {
            Event::Connected(_) => {}
            Event::Message { bytes, .. } => engine.on_message(world, ch, bytes.bytes()),
            Event::Written { imm, .. } => engine.on_imm(world, ch, imm),
            Event::Done { wr, result, .. } => engine.on_done(world, ch, wr, result),
            Event::Down { status, .. } => self.provider_ended(ch, status),
        }
    }

    /// Looks at what the epoll set reported.
    fn on_tags(&mut self, tags: &[Tag]) {
        for tag in tags {
            match *tag {
                Tag::Boot => self.boot_ready = true,
                Tag::Alive(ch) => self.check_alive(ch),
                Tag::Wake | Tag::Adapter(_) => {}
            }
        }
    }

    /// The liveness socket of a channel became readable: its peer is gone, or says that its end failed. What it
    /// had sent before is taken first.
    pub(super) fn check_alive(&mut self, ch: u32) {
        let Some(socket) = self.world.links.get(&ch).and_then(|l| l.alive.as_ref()) else { return };
        let word = doubt::hear(socket);
        if word == Word::None {
            return;
        }
        self.world.tick();
        let heard = |core: &Core| core.engine.channel(ch).map(|c| c.heard);
        let before = heard(self);
        self.poll_adapters(true);
        if matches!(word, Word::Gone(_)) && heard(self) != before {
            // A poll takes some of what is there. The socket stays readable: this is asked again.
            return;
        }
        let text = match word {
            Word::Gone(Some(error)) => format!("the peer's connection failed: {error}"),
            Word::Gone(None) => "the peer's process or manager ended".to_owned(),
            Word::Failed | Word::None => {
                self.refusal_stands(ch);
                "the peer's end of the connection failed".to_owned()
            }
        };
        self.engine.channel_down(&mut self.world, ch, Status::gone(text));
    }

    fn poll_boot(&mut self) -> u32 {
        self.boot_ready = false;
        self.next_boot = self.world.clock.now() + BOOT_INTERVAL;
        if !self.room_for_events() {
            return 0;
        }
        let mut events = std::mem::take(&mut self.boot_events);
        let pending = self.boot.pending();
        let gate = &mut Gate { engine: &mut self.engine, world: &mut self.world };
        self.boot.poll(Instant::now(), gate, &mut events);
        self.timed |= self.boot.pending() != pending;
        let count = events.len() as u32;
        for event in events.drain(..) {
            match event {
                BootEvent::Ready { token, hello, kind, reason, ep, sock, addr, .. } => {
                    let text = addr.to_string();
                    self.ready(token, &hello, (kind, ep), reason, sock, text);
                }
                BootEvent::Failed { token, status, retryable, met } => {
                    self.dial_failed(token as u32, status, retryable, met)
                }
                BootEvent::Rejected { addr, status } => {
                    let from = addr.map_or_else(|| "?".to_owned(), |a| a.to_string());
                    log::warn(format_args!("a connection from {from} was turned away: {status}"));
                }
            }
        }
        self.boot_events = events;
        log::settle();
        count
    }

    fn ready(
        &mut self,
        token: Option<u64>,
        hello: &PeerHello,
        key: EpKey,
        reason: String,
        sock: Option<Local<std::os::fd::OwnedFd>>,
        address: String,
    ) {
        let proved = self.boot.has_secret();
        let peer = match self.room_for_peer(hello, key.0, proved) {
            Ok(peer) => peer,
            Err(status) => {
                log::warn(format_args!("a connection was turned away: {status}"));
                self.world.fresh.remove(&key);
                return self.world.dying.push(key);
            }
        };
        let unnamed = token.filter(|&t| Core::is_unnamed(t as u32));
        if let Some(token) = unnamed {
            self.met(token as u32, &hello.name, peer);
            self.engine.keep_peer(peer);
        }
        let contested = !proved && self.engine.contested(peer, &hello.incarnation);
        let route = self.world.routes.entry(peer).or_default();
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
            self.world.fresh.remove(&key);
            return self.world.dying.push(key);
        }
        route.wanted = false;
        route.broke = false;
        route.next_try = None;
        let began = route.dialled.take();
        route.backoff.reset();
        if route.addrs.is_empty() {
            route.text = address;
            // Without the secret a stranger would choose whom this process connects to.
            if proved {
                route.addrs = hello.addrs.clone();
            }
        }
        log::info(format_args!("connected to peer '{}' by {}: {reason}", hello.name, key.0.name()));
        trace_connect(&self.world.trace, &hello.name, key.0.name(), began, Code::Ok);
        route.reason = reason;
        let fresh = self.world.fresh.remove(&key).unwrap_or_default();
        let caps = match &self.world.adapters[key.0 as usize] {
            Some(adapter) => adapter.caps().clone(),
            None => return,
        };
        let (engine, world) = (&mut self.engine, &mut self.world);
        let manual = hello.manual_progress;
        let ch = match engine.channel_new(world, peer, hello.incarnation, proved, caps, manual) {
            Ok(ch) => ch,
            Err(status) => {
                world.dying.push(key);
                return self.try_again(peer, status);
            }
        };
        if let Some(fd) = &sock
            && let Err(status) = world.epoll.add(fd.as_raw_fd(), super::world::alive_tag(ch))
        {
            log::warn(format_args!("cannot watch peer '{}': {status}", hello.name));
        }
        world.links.insert(ch, Link { ep: key, alive: sock, doubt: Doubt::None });
        world.chans.insert(key, ch);
        if let Some(seeds) = hello.seeds {
            engine.channel_seal(ch, seeds);
        }
        engine.channel_open(world, ch);
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
        log::warn(format_args!("a connection was turned away: {status}"));
        self.engine.connect_failed(&mut self.world, peer, status, true);
        let again = self.engine.wants_connection(peer);
        let Some(route) = self.world.routes.get_mut(&peer) else { return };
        if again && !route.dialing {
            let pause = route.backoff.pause(random());
            route.next_try = Some(Instant::now() + pause);
            self.world.tries = true;
        }
    }

    /// A pass over a peer's addresses found no way. Only an answer that the next pass would hear too
    /// ends what waits for the connection; silence and chance are tried again, until each operation's
    /// own deadline.
    fn dial_failed(&mut self, peer: u32, status: Status, retryable: bool, met: Met) {
        if Core::is_unnamed(peer) {
            let pause = self.world.routes.get_mut(&peer).map(|r| r.backoff.pause(random()));
            return self.not_met(peer, status, retryable, pause.unwrap_or_default());
        }
        let died = self.world.routes.get_mut(&peer).is_some_and(|route| match met {
            Met::Unclear => false,
            Met::Broken => {
                route.broke = true;
                false
            }
            // It was there a moment ago, in the middle of connecting, and now nobody listens.
            Met::Nobody => std::mem::take(&mut route.broke),
        });
        let (status, retryable) = match died {
            true => (Status::gone(format!("it ended while connecting: {}", status.message)), false),
            false => (status, retryable),
        };
        let Some(name) = self.engine.peer(peer).map(|p| p.name.clone()) else { return };
        log::info(format_args!("connecting to peer '{name}' failed: {status}"));
        let began = self.world.routes.get_mut(&peer).and_then(|r| r.dialled.take());
        trace_connect(&self.world.trace, &name, "", began, status.code);
        self.engine.connect_failed(&mut self.world, peer, status, retryable);
        let again = retryable && self.engine.wants_connection(peer);
        let Some(route) = self.world.routes.get_mut(&peer) else { return };
        route.dialing = false;
        route.wanted &= retryable;
        route.next_try = None;
        if route.wanted || again {
            let pause = route.backoff.pause(random());
            route.next_try = Some(Instant::now() + pause);
            self.world.tries = true;
        }
    }

    /// Starts the dials that are due.
    fn dial_wanted(&mut self) {
        if !std::mem::take(&mut self.world.tries) {
            return;
        }
        let mut now = None;
        for (&peer, route) in &mut self.world.routes {
            let Some(at) = route.next_try else { continue };
            let now = *now.get_or_insert_with(Instant::now);
            if at > now || route.dialing {
                self.world.tries = true;
                continue;
            }
            if Core::is_unnamed(peer) {
                (route.next_try, route.dialing, route.dialled) = (None, true, Some(now));
                self.boot.dial(u64::from(peer), &route.addrs, None, now + DIAL_TIMEOUT);
                self.timed = true;
                continue;
            }
            let Some(known) = self.engine.peer(peer) else { continue };
            let needed =
                known.channels.is_empty() && (route.wanted || self.engine.wants_connection(peer));
            route.next_try = None;
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
            self.timed = true;
            self.engine.connecting(peer);
        }
    }

    /// How long nothing but an event can be due.
    pub(super) fn idle_time(&self) -> Duration {
        let elapsed = self.world.clock.start().elapsed();
        let tick = match self.engine.next_tick() {
            u64::MAX => Duration::from_secs(60),
            at => Duration::from_nanos(at).saturating_sub(elapsed),
        };
        let now = Instant::now();
        let until = |at: Instant| at.saturating_duration_since(now);
        let boot = self.boot.next_deadline().map(until);
        let dials = self.world.routes.values().filter_map(|r| r.next_try).map(until).min();
        let retry = self.engine.has_pending() || self.world.waits_for_copies();
        let retry = retry.then_some(RETRY);
        let trim = self.world.pool.trim_due(now);
        let untold = log::owes().then_some(TELL);
        let all = [boot, dials, retry, trim, untold, self.doubt_ends()];
        all.into_iter().flatten().fold(tick, Duration::min)
    }

    /// Until when nothing but an event can be due, in nanoseconds, and how long that is.
    pub fn idle_until(&mut self) -> (u64, Duration) {
        self.world.tick();
        // Before it is asked when the next is due: who does not sleep would else never come to it.
        self.world.trim_pool();
        let idle = self.idle_time();
        (self.world.clock.now().saturating_add(idle.as_nanos() as u64), idle)
    }

    /// Takes what the epoll set reported.
    pub fn take_tags(&mut self, tags: &[Tag]) {
        if !tags.is_empty() {
            self.on_tags(tags);
            self.finish();
        }
    }

    /// When the next dial is due, in nanoseconds.
    fn next_dial(&self) -> u64 {
        if !self.world.tries {
            return u64::MAX;
        }
        let start = self.world.clock.start();
        let next = self.world.routes.values().filter_map(|r| r.next_try).min();
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

    /// Index of a peer that must be known.
    pub fn peer(&self, name: &str) -> Result<u32, Status> {
        self.engine.find_peer(name).ok_or_else(|| {
            Status::new(Code::NotFound, format!("peer '{name}' is not known; add it first"))
        })
    }

    /// Whether nothing of what was sent would be lost if the connections ended.
    pub fn has_delivered(&mut self) -> bool {
        // Each is asked, so that their acknowledgements come side by side.
        let waiting = self
            .world
            .adapters
            .iter_mut()
            .flatten()
            .filter_map(|a| (!a.has_delivered()).then_some(()));
        waiting.count() == 0 && !self.engine.has_pending()
    }

    /// Ends endpoints that never became channels.
    pub fn drop_fresh(&mut self) {
        while let Some(&key) = self.world.fresh.keys().next() {
            self.world.fresh.remove(&key);
            self.world.dying.push(key);
        }
        self.world.bury();
    }
}

impl Ground for Core {
    fn due(&mut self) -> bool {
        !self.world.work.is_empty() || self.copies_wait() || std::mem::take(&mut self.timed)
    }

    fn next(&self) -> u64 {
        let retry = match self.world.full {
            true => self.world.clock.now().saturating_add(RETRY.as_nanos() as u64),
            false => u64::MAX,
        };
        self.engine.next_tick().min(self.next_dial()).min(retry)
    }

    fn arm(&mut self) -> bool {
        // Every adapter is armed, so that none misses its wake-up because of another.
        let idle = self.world.adapters.iter_mut().flatten().filter_map(|a| a.arm().then_some(()));
        self.armed = idle.count() == self.world.adapters.iter().flatten().count();
        self.armed
    }

    fn armed(&self) -> bool {
        self.armed
    }

    fn now(&mut self) -> u64 {
        self.world.tick();
        self.world.clock.now()
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

/// Random bits for pauses; nothing secret depends on them.
fn random() -> u64 {
    getrandom::u64().unwrap_or(0)
}
