//! One run: engines, their applications, and the loop over virtual time.

use std::sync::Arc;
use std::time::Duration;

use rdma_transport::api::*;
use rdma_transport::engine::{ChanId, Claim, Engine, Fx, Held, Offer, Planted, Work, checksum};
use rdma_transport::status::{Code, Status};

use super::app::{Act, App, Kind, Note};
use super::check;
use super::common::fx::hear;
use super::common::memory::{Region, Who, content};
use super::common::net::{Life, NetEvent};
use super::profile::{MS, US};
use super::world::SimFx;
use super::world::{Event, Later, World};

/// Copies of devices are made by the simulation, later; these are never called.
struct NoCopies;

impl DeviceOps for NoCopies {
    fn copy_to_host(&self, _: u64, _: u64, _: u64, _: CopyDone) {
        panic!("the simulation copies");
    }
    fn copy_from_host(&self, _: u64, _: u64, _: u64, _: CopyDone) {
        panic!("the simulation copies");
    }
}

pub struct Sim {
    pub w: World,
    pub engines: Vec<Option<Engine>>,
    pub app: App,
    planted: Option<Planted>,
}

impl Sim {
    pub fn new(seed: u64, planted: Option<Planted>, tracing: bool) -> Sim {
        let mut w = World::new(seed, tracing);
        w.trace(|| format!("{:#?}", w.profile));
        let app = App::plan(&mut w);
        let engines = (0..w.profile.nodes).map(|_| None).collect();
        let mut sim = Sim { w, engines, app, planted };
        for node in 0..sim.engines.len() {
            sim.boot(node);
        }
        sim
    }

    pub fn boot(&mut self, node: usize) {
        let settings = self.w.profile.per_node[node].1.clone();
        let mut engine = Engine::new(&format!("node{node}"), settings);
        engine.planted = self.planted;
        for _ in 0..2 {
            engine.add_device(Arc::new(NoCopies)).unwrap();
        }
        for other in (0..self.w.profile.nodes).filter(|&n| n != node) {
            engine.add_peer(&format!("node{other}")).unwrap();
        }
        if self.app.sources[node] {
            let (mail, who) = (self.app.mail.clone(), self.w.who(node));
            engine.set_source(Some(Arc::new(move |response, _: &str, key: &[u8], step| {
                let note = Note::Asked { who, response, key: key.to_vec(), step };
                mail.lock().unwrap().push(note);
            })));
        }
        self.engines[node] = Some(engine);
    }

    /// Runs to the end and checks it.
    pub fn run(&mut self) {
        let planned = self.app.end - self.w.now;
        self.advance(self.app.end);
        if self.w.profile.quiet {
            self.advance_while(4_000 * MS, |sim| !check::all_ended(sim));
            check::all_succeeded(self);
        } else {
            let more = self.w.rng.pick(&[0, planned, 3_000 * MS]);
            self.advance_while(more, |sim| !check::all_ended(sim));
        }
        self.w.calm = true;
        for node in 0..self.engines.len() {
            if self.engines[node].is_none() {
                self.restart(node);
            }
            let steps: Vec<i64> = self.app.steps.iter().copied().collect();
            let closing = self.w.nodes[node].closing;
            for step in steps.into_iter().filter(|_| !closing) {
                self.call(node, |e, fx| e.step_cleanup(fx, step)).unwrap();
            }
        }
        // In this time the longest deadline passes, the grace after it, and what is queued for the slowest wire goes out: a
        // megabyte in writes of 64 bytes, three at a time, 3 ms each, takes 17 s.
        self.advance_while(120_000 * MS, |sim| !check::all_ended(sim));
        check::nothing_outstanding(self);
        for node in 0..self.engines.len() {
            self.act(Act::Shutdown { node });
        }
        self.advance_while(2_000 * MS, |sim| sim.engines.iter().any(Option::is_some));
        assert!(self.engines.iter().all(Option::is_none), "a manager did not end");
    }

    /// Lets time pass until the condition no longer holds, at most so long.
    fn advance_while(&mut self, limit: u64, more: impl Fn(&Sim) -> bool) {
        let until = self.w.now + limit;
        while self.w.now < until && more(self) {
            self.advance(self.w.now + 50 * MS);
        }
    }

    fn advance(&mut self, until: u64) {
        while let Some(event) = self.w.pop(until) {
            self.handle(event);
            check::counts(self);
        }
        self.w.now = until;
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Net { conn, side } => self.w.net(conn, side),
            Event::Completion { conn, side } => self.w.completion(conn, side),
            Event::Kill { conn, side } => {
                self.w.kill(conn, side, Status::gone("the connection was dropped"));
            }
            Event::Open { conn, side } => self.open(conn, side),
            Event::Connect { who, to } => self.connect(who, to),
            Event::Rail { who, to, main } => self.connect_rail(who, to, main),
            Event::Poll { who } if self.w.lives(who) => self.poll(who.node),
            Event::Tick { who } if self.w.lives(who) => self.tick(who.node),
            Event::Work { who } if self.w.lives(who) => self.work(who.node),
            Event::Later { who, what } if self.w.lives(who) => self.later(who, what),
            Event::App(act) => self.act(act),
            Event::Poll { .. } | Event::Tick { .. } | Event::Work { .. } | Event::Later { .. } => {}
        }
    }

    /// Calls an engine, then sees to what it left to do.
    pub fn call<R>(&mut self, node: usize, f: impl FnOnce(&mut Engine, &mut SimFx<'_>) -> R) -> R {
        let engine = self.engines[node].as_mut().unwrap();
        let result = f(engine, &mut SimFx { w: &mut self.w, node });
        self.settle(node);
        result
    }

    fn settle(&mut self, node: usize) {
        let Some(engine) = &mut self.engines[node] else { return };
        engine.end_lost(&mut SimFx { w: &mut self.w, node });
        let (who, at) = (self.w.who(node), engine.next_tick());
        let stalled = self.w.nodes[node].stalled_until;
        if at < self.w.nodes[node].tick_at {
            self.w.nodes[node].tick_at = at;
            self.w.at(at.max(stalled), Event::Tick { who });
        }
        let inline = |w: &Work| matches!(w, Work::Alloc { inline: true, .. });
        if let Some(i) = self.w.nodes[node].work.iter().position(inline) {
            let work = self.w.nodes[node].work.remove(i).unwrap();
            self.run_work(who, work);
        }
        if !self.w.nodes[node].work.is_empty() && self.w.nodes[node].work_at == u64::MAX {
            let delay = if self.w.rng.percent(60) { 0 } else { self.w.delay(100 * US) };
            let at = (self.w.now + delay).max(stalled);
            self.w.nodes[node].work_at = at;
            self.w.at(at, Event::Work { who });
        }
    }

    fn open(&mut self, conn: usize, side: usize) {
        let (who, peer) =
            (self.w.conns[conn].ends[side].who, self.w.conns[conn].ends[1 - side].who);
        if !self.w.lives(who) || self.w.conns[conn].ends[side].life == Life::Ended {
            return self.w.end(conn, side, false);
        }
        let mut incarnation = [peer.inc as u8; 16];
        incarnation[0] = peer.node as u8;
        let caps = self.w.profile.per_node[who.node].0.clone();
        let manual = self.w.profile.manual;
        let name = format!("node{}", peer.node);
        // Without a proof the newcomer waits until who has the name is found dead; or is turned away.
        let proved = self.w.rng.percent(30);
        if !proved {
            match self.call(who.node, |e, fx| e.claim(fx, &name, &incarnation)) {
                Claim::Free => {}
                Claim::Probing if self.w.conns[conn].ends[side].asked < 50 => {
                    self.w.conns[conn].ends[side].asked += 1;
                    return self.w.after(20 * MS, Event::Open { conn, side });
                }
                Claim::Probing | Claim::Living => {
                    *self.w.met.entry("turned away".to_owned()).or_default() += 1;
                    return self.w.end(conn, side, false);
                }
            }
        }
        let rail = self.w.conns[conn].rail;
        let opened = self.call(who.node, |e, fx| {
            let index = e.guest(&name).unwrap();
            if rail.is_some() {
                return e.rail_new(fx, index, &incarnation, caps, manual);
            }
            e.channel_new(fx, index, incarnation, proved, caps, manual)
        });
        let Ok(ch) = opened else { return self.w.end(conn, side, false) };
        let name = (conn as u128 + 1).to_le_bytes();
        self.call(who.node, |e, _| e.channel_name(ch, name));
        let wanted = |who: Who| self.w.profile.per_node[who.node].1.checksum;
        if wanted(who) || wanted(peer) {
            // As the handshake does: one seed for each direction, the other side's the other way round.
            let seed = |side: usize| conn as u64 * 2 + side as u64;
            let seeds = [seed(side), seed(1 - side)];
            self.call(who.node, |e, _| e.channel_seal(ch, seeds));
        }
        self.w.trace(|| format!("conn {conn}.{side} of {who:?} is channel {ch:#x} to {peer:?}"));
        self.w.nodes[who.node].chans.insert(ch, (conn, side));
        let end = &mut self.w.conns[conn].ends[side];
        end.ch = Some(ch);
        let early = std::mem::take(&mut end.early);
        let inbox = &mut self.w.nodes[who.node].inbox;
        inbox.extend(early.into_iter().map(|e| (conn, side, e)));
        self.w.wake(who.node);
        let cards = self.w.cards(conn, side);
        match rail {
            Some(rail) => self.call(who.node, |e, fx| {
                e.rail_devices(ch, cards);
                e.rail_open(fx, ch, Some(rail).filter(|_| side == 0));
            }),
            None => self.call(who.node, |e, fx| {
                if (side == 0) == (who.node < peer.node) {
                    e.channel_prefer(ch);
                }
                e.channel_open(fx, ch);
                if side == 0 {
                    e.want_rails(fx, ch);
                }
            }),
        }
    }

    fn connect_rail(&mut self, who: Who, to: usize, main: ChanId) {
        let there = self.w.nodes[to].up && !self.w.nodes[to].closing;
        if !self.w.lives(who) || !there || self.w.fault(self.w.profile.connect_fails) {
            return;
        }
        if !self.engines[who.node].as_ref().unwrap().wants_rail(main) {
            return;
        }
        let conn = self.w.new_conn(who, self.w.who(to));
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&(conn as u64).to_le_bytes());
        self.w.conns[conn].rail = Some((main, nonce));
        let cards = self.w.cards;
        if cards > 1 {
            for side in [0, 1] {
                let card = self.w.rng.below(cards.into());
                self.w.conns[conn].ends[side].card = card as u8;
            }
        }
        for side in [0, 1] {
            let delay = self.w.delay(100 * US);
            self.w.after(delay, Event::Open { conn, side });
        }
    }

    fn connect(&mut self, who: Who, to: usize) {
        if !self.w.lives(who) {
            return;
        }
        self.w.nodes[who.node].dialing[to] = false;
        let name = format!("node{to}");
        let engine = self.engines[who.node].as_ref().unwrap();
        let index = engine.find_peer(&name).unwrap();
        if !engine.peer(index).unwrap().channels.is_empty() && self.w.rng.percent(50) {
            return;
        }
        let there = self.w.nodes[to].up && !self.w.nodes[to].closing;
        if there && !self.w.fault(self.w.profile.connect_fails) {
            let conn = self.w.new_conn(who, self.w.who(to));
            for side in [0, 1] {
                let delay = self.w.delay(100 * US);
                self.w.after(delay, Event::Open { conn, side });
            }
            return;
        }
        let retryable = self.w.calm || self.w.rng.percent(80);
        let status = Status::new(Code::Unavailable, "injected: no connection");
        self.call(who.node, |e, fx| e.connect_failed(fx, index, status, retryable));
        let engine = self.engines[who.node].as_mut().unwrap();
        if retryable && engine.wants_connection(index) {
            engine.connecting(index);
            self.w.dial(who.node, to);
        }
    }

    fn poll(&mut self, node: usize) {
        self.w.nodes[node].poll_at = u64::MAX;
        if self.w.now < self.w.nodes[node].stalled_until {
            return self.w.wake(node);
        }
        for _ in 0..self.w.rng.range(1, 16) {
            let Some((conn, side, event)) = self.w.nodes[node].inbox.pop_front() else { break };
            let end = &mut self.w.conns[conn].ends[side];
            if matches!(event, NetEvent::Message(_) | NetEvent::Written(_)) {
                end.unpolled -= 1;
            }
            let ch = end.ch.unwrap();
            match event {
                NetEvent::Message(bytes) => self.call(node, |e, fx| hear(e, fx, ch, &bytes)),
                NetEvent::Written(imm) => self.call(node, |e, fx| e.on_imm(fx, ch, imm)),
                NetEvent::Done(wr, result) => {
                    self.call(node, |e, fx| e.on_done(fx, ch, wr, result))
                }
                NetEvent::Down(status) => self.call(node, |e, fx| e.channel_down(fx, ch, status)),
            }
        }
        if std::mem::take(&mut self.w.nodes[node].full) {
            self.call(node, |e, fx| e.flush_all(fx));
        }
        if !self.w.nodes[node].inbox.is_empty() {
            self.w.wake(node);
        }
    }

    fn tick(&mut self, node: usize) {
        if self.w.now < self.w.nodes[node].stalled_until {
            let (at, who) = (self.w.nodes[node].stalled_until, self.w.who(node));
            return self.w.at(at, Event::Tick { who });
        }
        self.w.nodes[node].tick_at = u64::MAX;
        check::nothing_stuck(self);
        self.poll(node);
        if self.engines[node].as_ref().unwrap().next_tick() <= self.w.now {
            self.call(node, |e, fx| e.tick(fx));
        }
        self.settle(node);
    }

    fn work(&mut self, node: usize) {
        self.w.nodes[node].work_at = u64::MAX;
        let who = self.w.who(node);
        for (dst, content) in std::mem::take(&mut self.w.nodes[node].deliveries) {
            self.w.mem.write(who, false, dst, &content, "delivery");
        }
        while let Some(work) = self.w.nodes[node].work.pop_front() {
            self.run_work(who, work);
        }
    }

    fn run_work(&mut self, who: Who, work: Work) {
        match work {
            Work::RecvDone { request, mut done, result, info, mut after, keep, .. } => {
                let op = check::received(self, who, request, &result, &info);
                done.end(result.as_ref(), &info);
                if keep {
                    after = self.engines[who.node].as_mut().unwrap().returned(request, after);
                }
                if self.app.recvs[op].keep && self.app.recvs[op].held.is_none() {
                    let delay = self.w.delay(5 * MS);
                    self.w.after(delay, Event::App(Act::Release(op)));
                }
                self.give_back(who, after);
            }
            Work::SendDone { mut done, result, info, .. } => {
                done.end(result.as_ref().map(|_| ()), &info)
            }
            Work::Alloc { request, mut alloc, meta, inline } => {
                assert!(alloc(&meta).is_none());
                let addr = self.allocate(who, &meta);
                if inline {
                    return self.call(who.node, |e, fx| e.allocated(fx, request, alloc, addr));
                }
                let delay = self.w.delay(500 * US);
                let what = Later::Allocated { request, alloc, addr };
                self.w.after(delay, Event::Later { who, what });
            }
            Work::Source { source, response, peer, key, step } => {
                source(response, &peer, &key, step);
            }
            Work::Call(call) => call(),
            Work::MessageEnded { op, .. } => self.message_ended(who, op),
            Work::PeerEvents
            | Work::MessageDone { .. }
            | Work::BufferEvents { .. }
            | Work::Active { .. }
            | Work::Spread { .. } => {}
            Work::HostCopy { token, dst, src, len } => {
                let (dst, src) = ((dst, false), (src, false));
                let delay = self.w.delay(50 * US);
                let what = Later::Copy { token, dst, src, len };
                self.w.after(delay, Event::Later { who, what });
            }
            Work::HostHash { token, addr, len } => {
                let delay = self.w.delay(50 * US);
                self.w.after(delay, Event::Later { who, what: Later::Hash { token, addr, len } });
            }
            Work::DeviceCopy { token, to_host, host, device, len, .. } => {
                let (host, device) = ((host, false), (device, true));
                let (dst, src) = if to_host { (host, device) } else { (device, host) };
                let delay = self.w.delay(500 * US);
                let what = Later::Copy { token, dst, src, len };
                self.w.after(delay, Event::Later { who, what });
            }
        }
        self.read_mail();
    }

    /// Memory for a result, from the application whose callback has just been asked.
    fn allocate(&mut self, who: Who, meta: &Meta) -> Option<u64> {
        let Some(Note::Alloc(op)) = self.app.mail.lock().unwrap().pop() else {
            panic!("no allocation was asked for");
        };
        assert!(self.app.recvs[op].ended.is_none(), "memory asked for a receive that has ended");
        if self.w.fault(self.w.profile.alloc_fails) {
            return None;
        }
        Some(self.destination(op, who, meta.nbytes))
    }

    fn destination(&mut self, op: usize, who: Who, len: u64) -> u64 {
        let device = self.app.recvs[op].device;
        let addr = self.w.mem.alloc(who, device, len, 0xCD, format!("destination of receive {op}"));
        self.maybe_register(who, device, addr, len);
        self.app.recvs[op].dests.push(addr);
        addr
    }

    /// Without windows, some of the application's memory is registered for good.
    pub fn maybe_register(&mut self, who: Who, device: u32, addr: u64, len: u64) {
        let (windows, registered) =
            (self.w.nodes[who.node].caps.windows, self.w.profile.registered);
        if device == 0 && !windows && self.w.rng.percent(registered) {
            let access = rdma_transport::fabric::Access::all();
            let (open, owned, card) = (true, false, 0);
            let rkey = self.w.register(Region { who, addr, len, access, open, owned, card });
            self.w.mem.at(addr).registered = Some(rkey);
        }
    }

    fn later(&mut self, who: Who, what: Later) {
        let stalled = self.w.nodes[who.node].stalled_until;
        if self.w.now < stalled {
            return self.w.at(stalled, Event::Later { who, what });
        }
        match what {
            Later::Allocated { request, alloc, addr } => {
                self.call(who.node, |e, fx| e.allocated(fx, request, alloc, addr));
            }
            Later::Copy { token, dst, src, len } => {
                let bytes = self.w.mem.read(who, src.1, src.0, len, "source of a copy");
                self.w.mem.write(who, dst.1, dst.0, bytes, "destination of a copy");
                let failed = self.w.fault(self.w.profile.open_fails);
                let error = Status::new(Code::ResourceExhausted, "injected: copy");
                let result = if failed { Err(error) } else { Ok(()) };
                let delay = self.w.delay(50 * US);
                self.w.after(delay, Event::Later { who, what: Later::Copied { token, result } });
            }
            Later::Hash { token, addr, len } => {
                let bytes = self.w.mem.read(who, false, addr, len, "content of a checksum");
                let failed = self.w.fault(self.w.profile.open_fails);
                let error = Status::new(Code::ResourceExhausted, "injected: checksum");
                let result = if failed { Err(error) } else { Ok(checksum(bytes)) };
                let delay = self.w.delay(50 * US);
                self.w.after(delay, Event::Later { who, what: Later::Hashed { token, result } });
            }
            Later::Hashed { token, result } => {
                self.call(who.node, |e, fx| e.hashed(fx, token, result));
            }
            Later::Copied { token, result } => {
                self.call(who.node, |e, fx| e.copied(fx, token, result));
            }
        }
    }

    pub fn give_back(&mut self, who: Who, held: Held) {
        match held {
            Held::Nothing => {}
            Held::Buffer(buffer) => SimFx { w: &mut self.w, node: who.node }.free(buffer),
            Held::Source(done, info) => {
                if let Some(mut done) = done {
                    done.end(Ok(()), &info);
                }
            }
        }
        self.read_mail();
    }

    /// Handles what callbacks told.
    fn read_mail(&mut self) {
        let notes = std::mem::take(&mut *self.app.mail.lock().unwrap());
        for note in notes {
            match note {
                Note::Sent(op, result) => check::sent(self, op, result),
                Note::Received => {}
                Note::Alloc(_) => panic!("memory asked for by nobody"),
                Note::Asked { who, response, key, step } => {
                    let key = self.app.keys.iter().position(|k| *k == key).expect("a known key");
                    let delay = self.w.delay(MS);
                    let act = Act::Answer { who, response, key, step };
                    self.w.after(delay, Event::App(act));
                }
            }
        }
    }

    /// Begins a receive.
    pub fn recv(&mut self, op: usize) {
        let r = &self.app.recvs[op];
        let (node, key, step) = (r.node, self.app.keys[r.key].clone(), r.step);
        let (kind, len, device, keep, timeout) = (r.kind, r.len, r.device, r.keep, r.timeout);
        let who = self.w.who(node);
        let peer = (r.from != node || self.w.rng.percent(50)).then(|| format!("node{}", r.from));
        let target = match kind {
            Kind::Given => Target::Given { addr: self.destination(op, who, len), len },
            Kind::Library => Target::Library,
            Kind::Alloc => {
                let mail = self.app.mail.clone();
                Target::Alloc(Box::new(move |_| {
                    mail.lock().unwrap().push(Note::Alloc(op));
                    None
                }))
            }
        };
        let mail = self.app.mail.clone();
        let done = Box::new(move |_: Result<&Tensor, Status>, _: &TransferInfo| {
            mail.lock().unwrap().push(Note::Received);
        });
        let options =
            RecvOptions { timeout: timeout.map(Duration::from_nanos), target, device, keep };
        let r = &mut self.app.recvs[op];
        (r.started, r.who) = (self.w.now, Some(who));
        let engine = self.engines[node].as_mut().unwrap();
        let mut fx = SimFx { w: &mut self.w, node };
        let begun = engine.recv(&mut fx, peer.as_deref(), &key, step, options, OnRecv::Boxed(done));
        self.w.trace(|| format!("recv {op} of {who:?} from {peer:?}: {begun:?}"));
        match begun {
            Ok(id) => {
                self.app.recvs[op].id = Some(id);
                self.w.nodes[node].recvs_begun += 1;
                let old = self.app.by_id.insert((who, id), op);
                assert!(old.is_none(), "a request id was given twice");
                if keep && self.w.rng.percent(15) {
                    // Perhaps before the end, or between the end and the callback.
                    let delay = self.w.delay(5 * MS);
                    self.w.after(delay, Event::App(Act::Release(op)));
                }
            }
            Err(status) => {
                check::refused(self, &status);
                self.app.recvs[op].ended = Some(Err(status));
                for addr in self.app.recvs[op].dests.clone() {
                    self.w.mem.freeze(addr, "its receive was refused");
                }
            }
        }
        self.settle(node);
    }

    /// Offers a tensor: to the table, or as the answer to a request of the source callback.
    pub fn send(&mut self, op: usize, response: Option<u64>) {
        let s = &mut self.app.sends[op];
        let (node, key, step) = (s.from, self.app.keys[s.key].clone(), s.step);
        let (meta, device, timeout) = (s.meta.clone(), s.device, s.timeout);
        let who = self.w.who(node);
        let addr = self.w.mem.alloc(who, device, meta.nbytes, 0, format!("tensor of send {op}"));
        let bytes = content(op, meta.nbytes);
        self.w.mem.write(who, device != 0, addr, &bytes, "the application");
        self.maybe_register(who, device, addr, meta.nbytes);
        let s = &mut self.app.sends[op];
        (s.begun, s.who, s.addr) = (true, Some(who), addr);
        let mail = self.app.mail.clone();
        let done: SendDone =
            Box::new(move |result, _| mail.lock().unwrap().push(Note::Sent(op, result)));
        let tensor = Tensor { meta, addr, device };
        let copied = device == 0 && self.w.rng.percent(50);
        let content = if copied { &bytes[..] } else { &[] };
        let mut offer = Offer { tensor, content, done: Some(done.into()) };
        let begun = self.call(node, |e, fx| match response {
            Some(id) => e.response_send(fx, id, offer),
            None => e.post_send(fx, &key, step, &mut offer, timeout),
        });
        self.w.trace(|| format!("send {op} of {who:?}, for {response:?}: {begun:?}"));
        if let Err(status) = begun {
            if response.is_none() {
                check::refused(self, &status);
            }
            self.app.sends[op].ended = Some((self.w.now, Err(status)));
            self.w.mem.free(addr, "its send was refused");
        }
    }
}
