//! One turn of a manager: adapters, handshakes, timers. Runs with the manager's lock held and never
//! blocks; what it leaves in the world's queue of callbacks runs without the lock.

use std::time::Instant;

use super::copies::Copies;
use super::gate::Gate;
use super::quiet::Quiet;
use super::rails;
use super::sys::Tag;
use super::world::World;
use super::writes::Found;
use crate::bootstrap::{BootEvent, Bootstrap};
use crate::engine::{ChanId, Engine};
use crate::fabric::{EpId, Event, One, ProviderKind, View};
use crate::limits::HANDSHAKES;
use crate::log;
use crate::os::ticks;
use crate::room::Grows;
use crate::status::Status;
use crate::thread::Thread;

/// Events for which there is always room.
const EVENTS: usize = 64;
/// Handshakes are looked at so often while nothing says that they need it.
const BOOT_INTERVAL: u64 = 1_000_000;
/// Processor ticks (some microseconds) between two looks at timers and dials while there are handshakes.
const WHOLE_SOON: u64 = 1 << 14;
/// The same at other times: a fraction of a millisecond.
const WHOLE_EVERY: u64 = 1 << 19;
/// So many turns that find messages ask not what else is due: to read the processor's counter takes as long as a hundred
/// instructions.
const BLIND: u32 = 8;

/// Everything behind the manager's lock.
pub struct Core {
    /// The protocol.
    pub engine: Engine,
    /// What it acts on.
    pub world: World,
    /// The handshakes. Apart: a manager is to fit a page.
    pub boot: Box<Bootstrap>,
    /// Some descriptor of the handshakes is ready.
    pub boot_ready: bool,
    /// The next turn looks at the clock in any case.
    pub whole: bool,
    /// A time limit was set that a sleeper may not know of: it must look.
    pub timed: bool,
    /// What had happened in the engine when those who wait were told last.
    pub(super) told: u64,
    /// Turns of drivers, so that one is told apart that takes none. It wraps.
    pub(super) turns: u32,
    /// Times in a row that a driver found something due at once, and then nothing to do.
    pub(super) restless: u32,
    /// The adapters are armed: nothing was done to them since.
    pub(super) armed: bool,
    next_boot: u64,
    last_whole: u64,
    /// Turns that found messages, since the processor's counter was last read for what is due.
    blind: u32,
    pub(super) quiet: Quiet,
    /// What a short turn has found, for a long one.
    pub(super) found: Found,
    whole_every: u64,
    /// Copies that turns make without the lock.
    pub(super) copies: Copies,
    pub(super) events: Vec<Event>,
    boot_events: Vec<BootEvent>,
    /// Peers that are being asked for their name.
    pub(super) meetings: super::meet::Meetings,
    /// Whose messages it logs.
    pub(super) speaker: log::Speaker,
    /// Unbound buffers.
    pub(super) unbound: super::unbound::AllUnbound,
}

/// A message has come. What is long was left where it came, and goes to its place from there.
#[inline(always)]
fn on_view(engine: &mut Engine, world: &mut World, ch: ChanId, bytes: &View) {
    let heard = match bytes.left() {
        Some(left) => engine.on_left(world, ch, left),
        None => Ok(false),
    };
    match heard {
        Ok(true) => {}
        Ok(false) => engine.on_message(world, ch, bytes.bytes()),
        Err(unheard) => engine.on_unheard(world, ch, bytes.bytes(), unheard),
    }
}

impl Core {
    /// Puts the parts together.
    pub fn new(engine: Engine, world: World, boot: Box<Bootstrap>, speaker: log::Speaker) -> Core {
        Core {
            engine,
            world,
            boot,
            boot_ready: false,
            whole: true,
            timed: false,
            told: 0,
            turns: 0,
            restless: 0,
            armed: false,
            next_boot: 0,
            last_whole: 0,
            blind: 0,
            quiet: Quiet::default(),
            found: Found::default(),
            whole_every: WHOLE_SOON,
            copies: Copies::default(),
            events: Vec::new(),
            boot_events: Vec::new(),
            meetings: Default::default(),
            speaker,
            unbound: Default::default(),
        }
    }

    /// Does what there is to do; the number of events handled.
    #[inline(always)]
    pub fn turn(&mut self, thread: Thread) -> u32 {
        let _speaking = self.speaker.speak_on(thread);
        let ticks = ticks();
        let whole = self.whole || ticks.wrapping_sub(self.last_whole) >= self.whole_every;
        let mut count = self.poll_adapters(whole, ticks);
        self.world.trace.looked(count);
        self.settle_doubts();
        if whole {
            count += self.turn_whole(ticks);
        }
        if self.world.full {
            self.flush_full();
        }
        if count > 0 {
            self.finish();
        }
        count
    }

    /// The same where there is mostly nothing, or messages over the only provider in use, of which it handles `most`. `None`: nothing
    /// was done, and `turn` has to be called. It is looked `looks` times for one that comes soon.
    #[inline(always)]
    pub fn turn_short(&mut self, thread: Thread, looks: u32, most: u32) -> Option<u32> {
        if self.whole || self.world.full || self.world.trace.enabled() || !self.events.is_empty() {
            return None;
        }
        let (kind, seen) = match self.world.connections.endpoints().only() {
            Some(kind) => (kind, None),
            None => {
                let now = ticks();
                (self.only_lively(now)?, Some(now))
            }
        };
        if self.world.may_doubt(kind) {
            return None;
        }
        let adapter = self.world.adapters[kind as usize].as_mut()?;
        let mut one = adapter.poll_one();
        for _ in 1..looks {
            if !matches!(one, One::Nothing) {
                break;
            }
            std::hint::spin_loop();
            one = adapter.poll_one();
        }
        match one {
            One::Other => None,
            One::Write(ep) => {
                self.found = Found::Write(kind, ep);
                None
            }
            One::Done(ep) => {
                self.found = Found::Done(kind, ep);
                None
            }
            One::Nothing if self.is_whole_due(seen.unwrap_or_else(ticks)) => None,
            One::Nothing => {
                self.armed = false;
                Some(0)
            }
            One::Message(ep, bytes) => {
                self.armed = false;
                self.blind += 1;
                if self.blind >= BLIND || seen.is_some() {
                    let now = seen.unwrap_or_else(ticks);
                    self.whole = self.is_whole_due(now);
                    self.quiet.hear(now);
                }
                Some(self.hear(kind, (ep, bytes), thread, most))
            }
        }
    }

    /// Whether more than a look at the adapters is due by now.
    #[inline]
    fn is_whole_due(&mut self, now: u64) -> bool {
        self.blind = 0;
        now.wrapping_sub(self.last_whole) >= self.whole_every
    }

    /// The provider in use that is not quiet, if there is one alone and the others are left alone.
    #[inline(never)]
    fn only_lively(&self, ticks: u64) -> Option<ProviderKind> {
        if !self.quiet.leaves(ticks) {
            return None;
        }
        let mut lively =
            self.world.connections.endpoints().kinds(false).filter(|&kind| !self.is_quiet(kind));
        lively.next().filter(|_| lively.next().is_none())
    }

    fn is_quiet(&self, kind: ProviderKind) -> bool {
        self.world.adapters[kind as usize].as_ref().is_some_and(|adapter| adapter.is_quiet())
    }

    /// Handles a message, and those behind it, `most` in all; how many it was.
    #[inline(always)]
    fn hear(&mut self, kind: ProviderKind, first: (EpId, View), thread: Thread, most: u32) -> u32 {
        let _speaking = self.speaker.speak_on(thread);
        self.world.tick();
        let (mut next, mut count) = (first, 0);
        loop {
            self.hear_one(kind, next.0, next.1);
            count += 1;
            let adapter =
                if count < most { self.world.adapters[kind as usize].as_mut() } else { None };
            match adapter.and_then(|adapter| adapter.poll_next()) {
                Some(another) => next = another,
                None => break,
            }
        }
        self.finish();
        count
    }

    #[inline(always)]
    fn hear_one(&mut self, kind: ProviderKind, ep: EpId, bytes: View) {
        match self.world.channel_of((kind, ep)) {
            // A message before it may have raised a doubt.
            Some(ch) if !self.world.may_doubt(kind) => {
                self.world.hearing = (kind, ep);
                on_view(&mut self.engine, &mut self.world, ch, &bytes);
            }
            _ => self.on_event(kind, Event::Message { ep, bytes }),
        }
    }

    /// What is due by the time: handshakes, timers, dials; the number of handshakes that came on.
    #[inline(never)]
    fn turn_whole(&mut self, ticks: u64) -> u32 {
        let mut count = 0;
        self.whole = false;
        self.last_whole = ticks;
        // What was handled before may have read the clock since.
        self.world.tick();
        let now = self.world.clock.now();
        if self.boot_ready || self.boot.pending() > 0 || now >= self.next_boot {
            count = self.poll_boot();
        }
        self.whole_every = if self.boot.pending() > 0 { WHOLE_SOON } else { WHOLE_EVERY };
        if now >= self.engine.next_tick() {
            self.engine.tick(&mut self.world);
        }
        self.finish();
        count
    }

    /// Posts again what found no room.
    #[inline(never)]
    fn flush_full(&mut self) {
        self.world.tick();
        self.world.full = false;
        self.engine.flush_all(&mut self.world);
        self.finish();
    }

    /// After each call into the engine: doorbells, dials that are wanted, endpoints that ended.
    #[inline(always)]
    pub fn finish(&mut self) {
        if !self.world.posted_to.is_empty() {
            self.world.flush();
        }
        if self.engine.has_forgotten() || self.engine.has_lost() || self.world.is_unfinished() {
            self.finish_all();
        }
    }

    #[inline(never)]
    fn finish_all(&mut self) {
        if self.engine.has_forgotten() {
            for peer in self.engine.take_forgotten() {
                self.world.routes.remove(peer);
            }
        }
        self.engine.end_lost(&mut self.world);
        self.world.flush();
        self.world.destroy_ended();
        self.world.let_go();
        self.dial_wanted();
    }

    /// Room for the end of each endpoint, and some events more: what an adapter cannot report otherwise waits
    /// there. It is made before an endpoint is, so it lacks only if memory was never there.
    #[inline]
    pub(super) fn room_for_events(&mut self) -> bool {
        self.events.fits(self.world.connections.endpoints().len() + HANDSHAKES + EVENTS)
    }

    /// Asks the adapters for events; those that have no endpoint, and so no more than strangers at their door, only if
    /// `all`.
    #[inline(always)]
    pub(super) fn poll_adapters(&mut self, all: bool, now: u64) -> u32 {
        let mut count = 0;
        self.armed = false;
        if !self.room_for_events() {
            return 0;
        }
        let mixed = self.world.connections.endpoints().only().is_none();
        let leaves = mixed && !all && self.quiet.leaves(now);
        for kind in self.world.connections.endpoints().kinds(all) {
            let quiet = mixed && self.is_quiet(kind);
            if quiet && leaves {
                continue;
            }
            let Some(adapter) = self.world.adapters[kind as usize].as_mut() else { continue };
            let began = if quiet { ticks() } else { 0 };
            if adapter.poll(&mut self.events) {
                self.world.moving.add(kind);
            }
            if quiet {
                self.quiet.asked(began, ticks());
            }
            if !self.events.is_empty() {
                self.quiet.hear(now);
                count += self.take_events(kind);
            }
        }
        count
    }

    /// Handles what an adapter reported; how much it was.
    #[inline(always)]
    pub(super) fn take_events(&mut self, kind: ProviderKind) -> u32 {
        self.world.tick();
        let mut at = 0;
        while let Some(event) = self.events.get_mut(at) {
            at += 1;
            // A message on a channel, as a rule.
            if let Event::Message { ep, bytes } = event
                && let Some(ch) = self.world.channel_of((kind, *ep))
                && !self.world.may_doubt(kind)
            {
                self.world.hearing = (kind, *ep);
                on_view(&mut self.engine, &mut self.world, ch, bytes);
                continue;
            }
            let seen = Event::Connected(EpId(0));
            let event = std::mem::replace(event, seen);
            self.on_event(kind, event);
        }
        self.events.clear();
        at as u32
    }

    #[inline(never)]
    pub(super) fn on_event(&mut self, kind: ProviderKind, event: Event) {
        let ep = match &event {
            Event::Connected(ep)
            | Event::Message { ep, .. }
            | Event::Written { ep, .. }
            | Event::Done { ep, .. }
            | Event::Down { ep, .. } => *ep,
        };
        let Some(ch) = self.world.channel_of((kind, ep)) else {
            return self.world.connections.keep_early((kind, ep), event);
        };
        let event = match self.world.may_doubt(kind) {
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
                Tag::Boot => (self.boot_ready, self.whole) = (true, true),
                Tag::Alive(ch) => self.check_alive(ch),
                Tag::Adapter(_) => self.quiet.ask(),
                Tag::Wake => {}
            }
        }
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
        // A peer that connects and ends at once is heard before a dial finds that it is gone.
        for event in events.extract_if(.., |event| matches!(event, BootEvent::Ready { .. })) {
            self.on_boot(event);
        }
        for event in events.drain(..) {
            self.on_boot(event);
        }
        self.boot_events = events;
        log::settle();
        count
    }

    fn on_boot(&mut self, event: BootEvent) {
        match event {
            BootEvent::Ready { token, hello, kind, reason, ep, sock, addr, .. } => {
                let dialled = token.and_then(rails::rail_of);
                if dialled.is_some() || hello.rail {
                    return self.rail_ready(dialled, &hello, (kind, ep), sock);
                }
                self.hear_older(&hello.name);
                self.ready(token, &hello, (kind, ep), reason, sock, text!("{addr}"));
            }
            BootEvent::Failed { token, status, .. } if rails::rail_of(token).is_some() => {
                self.rail_failed(token as u32, &status)
            }
            BootEvent::Failed { token, status, retryable, met, tried } => {
                self.dial_failed(token as u32, status, retryable, (met, tried))
            }
            BootEvent::Rejected { addr, status, left } => {
                let from = addr.map_or_else(|| text!("?"), |a| text!("{a}"));
                // A peer that leaves is nothing to look at.
                let text = format_args!("a connection from {from} was turned away: {status}");
                if left { log::debug(text) } else { log::warn(text) }
            }
        }
    }

    /// Takes what the epoll set reported.
    pub fn take_tags(&mut self, tags: &[Tag]) {
        if !tags.is_empty() {
            self.on_tags(tags);
            self.finish();
        }
    }

    /// Index of a peer that must be known.
    pub fn peer(&self, name: &str) -> Result<u32, Status> {
        self.engine.find_peer(name).ok_or_else(|| crate::name::unknown(name))
    }

    /// Ends endpoints that never became channels.
    pub fn drop_fresh(&mut self) {
        self.world.connections.give_up_fresh();
        self.world.destroy_ended();
    }
}
