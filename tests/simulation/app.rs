//! What the applications on top of the engines do, and what they expect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use rdma_transport::api::{Meta, TENSOR_DEAD, TENSOR_SERIALIZED};
use rdma_transport::engine::Held;
use rdma_transport::status::Status;
use rdma_transport::user::UserBytes;

use super::common::memory::{Who, content};
use super::messages::{self, MessageOp};
use super::profile::{MS, US};
use super::world::{Event, World};

/// An act of an application, or of fate.
#[derive(Clone, Debug)]
pub enum Act {
    Send(usize),
    Recv(usize),
    Cancel(usize),
    Release(usize),
    Abort { node: usize, step: i64 },
    Cleanup { node: usize, step: i64 },
    Answer { who: Who, response: u64, key: usize, step: i64 },
    Disconnect { node: usize },
    Drop,
    Message(usize),
    MessageCancel { op: usize, give_up: bool },
    Stall { node: usize },
    Crash { node: usize },
    Restart { node: usize },
    Shutdown { node: usize },
    Destroyed { who: Who },
}

/// What a callback tells.
pub enum Note {
    Sent(usize, Result<(), Status>),
    Received,
    Alloc(usize),
    Asked { who: Who, response: u64, key: Vec<u8>, step: i64 },
}

pub type Mail = Arc<Mutex<Vec<Note>>>;

pub struct SendOp {
    pub from: usize,
    pub key: usize,
    pub step: i64,
    pub meta: Meta,
    pub device: u32,
    pub timeout: Option<u64>,
    pub begun: bool,
    pub who: Option<Who>,
    pub addr: u64,
    /// Set once, with the time: its one end.
    pub ended: Option<(u64, Result<(), Status>)>,
    /// A receive has got it.
    pub taken: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Given,
    Alloc,
    Library,
}

pub struct RecvOp {
    pub node: usize,
    pub from: usize,
    pub key: usize,
    pub step: i64,
    pub kind: Kind,
    pub len: u64,
    pub device: u32,
    pub keep: bool,
    pub timeout: Option<u64>,
    pub who: Option<Who>,
    pub id: Option<u64>,
    pub dests: Vec<u64>,
    pub started: u64,
    pub ended: Option<Result<(), Status>>,
    /// What the callback left to be given back, and the send that was received.
    pub held: Option<Held>,
    pub got: Option<(usize, u64, u32)>,
}

impl RecvOp {
    /// The application holds it and has to let it go.
    pub fn must_release(&self, w: &World) -> bool {
        self.keep
            && self.id.is_some()
            && self.held.is_none()
            && self.who.is_some_and(|who| w.lives(who))
    }
}

#[derive(Default)]
pub struct App {
    /// The planned acts are over.
    pub end: u64,
    pub sends: Vec<SendOp>,
    pub recvs: Vec<RecvOp>,
    pub messages: Vec<MessageOp>,
    pub keys: Vec<Vec<u8>>,
    pub steps: BTreeSet<i64>,
    pub by_id: BTreeMap<(Who, u64), usize>,
    pub by_key: BTreeMap<(usize, usize, i64), Vec<usize>>,
    shapes: BTreeMap<(usize, usize), Meta>,
    pub mail: Mail,
    /// Nodes whose requests go to the source callback.
    pub sources: Vec<bool>,
}

impl App {
    /// Plans the run.
    pub fn plan(w: &mut World) -> App {
        let mut app = App::default();
        for i in 0..6u8 {
            let len = match w.rng.below(200) {
                0 => 65_536,
                1..=20 => w.rng.range(100, 3000),
                _ => w.rng.range(1, 20),
            };
            let mut key = vec![b'a' + i; len as usize];
            key[0] = i;
            app.keys.push(key);
        }
        app.sources =
            (0..w.profile.nodes).map(|_| w.profile.sources && w.rng.percent(50)).collect();
        let begin = w.now;
        let gap = w.rng.pick(&[5, 50, 300]) * US;
        let mut at = w.now + 10 * US;
        let mut seen = BTreeSet::new();
        for i in 0..w.profile.pairs {
            at += w.delay(gap);
            let nodes = w.profile.nodes as u64;
            let from = w.rng.below(nodes) as usize;
            let away = if w.rng.percent(15) { 0 } else { w.rng.range(1, nodes - 1) as usize };
            let to = (from + away) % w.profile.nodes;
            let (key, step) = (w.rng.below(6) as usize, 100 + i as i64 / 6);
            if !seen.insert((from, key, step)) && w.profile.quiet {
                continue;
            }
            app.pair(w, at, (from, to, key, step));
        }
        let end = at + 2 * MS;
        app.faults(w, end);
        app.messages = messages::plan(w, (begin, end));
        app.end = end + 3 * MS;
        app
    }

    fn pair(&mut self, w: &mut World, at: u64, (from, to, key, step): (usize, usize, usize, i64)) {
        self.steps.insert(step);
        let spread = w.rng.pick(&[10, 100, 2000]) * US;
        let send = self.new_send(w, from, key, step);
        let nbytes = self.sends[send].meta.nbytes;
        let (sent, received) = (at + w.delay(spread), at + w.delay(spread));
        let stray = w.fault(w.profile.strays);
        let asked = self.sources[from] && from != to;
        if !(asked && (w.profile.quiet || w.rng.percent(80)) || stray && w.rng.percent(50)) {
            w.at(sent, Event::App(Act::Send(send)));
            if stray {
                let again = self.new_send(w, from, key, step);
                w.at(sent + spread / 2, Event::App(Act::Send(again)));
            }
        }
        if stray && w.rng.percent(30) {
            return;
        }
        let recv = self.new_recv(w, (from, to, key, step), nbytes);
        w.at(received, Event::App(Act::Recv(recv)));
        if stray {
            let again = self.new_recv(w, (from, to, key, step), nbytes);
            w.at(received + spread / 2, Event::App(Act::Recv(again)));
        }
        if w.fault(w.profile.cancels) {
            let delay = w.delay(3 * spread);
            w.at(received + delay, Event::App(Act::Cancel(recv)));
        }
        if w.fault(w.profile.aborts) {
            let delay = w.delay(3 * spread);
            let node = if w.rng.percent(50) { from } else { to };
            w.at(received + delay, Event::App(Act::Abort { node, step }));
            if w.rng.percent(50) {
                let delay = w.delay(10 * MS);
                w.at(received + 3 * spread + delay, Event::App(Act::Cleanup { node, step }));
            }
        }
    }

    fn faults(&mut self, w: &mut World, end: u64) {
        let (begin, nodes) = (w.now, w.profile.nodes as u64);
        let p = w.profile.clone();
        let put = |w: &mut World, n: u64, act: &dyn Fn(usize) -> Act| {
            for _ in 0..n {
                let (at, node) = (w.rng.range(begin, end), w.rng.below(nodes) as usize);
                w.at(at, Event::App(act(node)));
            }
        };
        put(w, p.drops, &|_| Act::Drop);
        put(w, p.stalls, &|node| Act::Stall { node });
        put(w, p.crashes, &|node| Act::Crash { node });
        put(w, p.disconnects, &|node| Act::Disconnect { node });
        put(w, p.shutdowns, &|node| Act::Shutdown { node });
    }

    /// A shape for the key: mostly the last one.
    fn shape(&mut self, w: &mut World, from: usize, key: usize) -> Meta {
        if let Some(meta) = self.shapes.get(&(from, key)).filter(|_| w.rng.percent(75)) {
            return meta.clone();
        }
        let (kind, large) = (w.rng.below(10), w.profile.large);
        let nbytes = match kind {
            0 | 1 => 0,
            2..=4 => w.rng.range(1, 64),
            5..=7 => w.rng.range(65, 2000),
            _ => w.rng.range(2000, large),
        };
        let flags = match kind {
            0 => TENSOR_DEAD,
            4 | 7 => TENSOR_SERIALIZED,
            _ => 0,
        };
        let ndims = if w.rng.percent(3) { 254 } else { w.rng.below(5) };
        let dims = (0..ndims).map(|_| w.rng.range(0, 3) as i64).collect();
        let meta = Meta { dtype: w.rng.below(3) as u32, flags, dims, nbytes, ..Meta::default() };
        self.shapes.insert((from, key), meta.clone());
        meta
    }

    pub fn new_send(&mut self, w: &mut World, from: usize, key: usize, step: i64) -> usize {
        let mut meta = self.shape(w, from, key);
        meta.user = user_bytes(self.sends.len());
        let timeout = w.fault(w.profile.short_timeouts).then(|| w.rng.range(0, 5 * MS));
        let op = SendOp {
            from,
            key,
            step,
            meta,
            device: self.a_device(w),
            timeout,
            begun: false,
            who: None,
            addr: 0,
            ended: None,
            taken: false,
        };
        self.sends.push(op);
        let index = self.sends.len() - 1;
        self.by_key.entry((from, key, step)).or_default().push(index);
        index
    }

    fn a_device(&self, w: &mut World) -> u32 {
        if w.profile.devices && w.rng.percent(40) { w.rng.range(1, 2) as u32 } else { 0 }
    }

    fn new_recv(
        &mut self,
        w: &mut World,
        (from, node, key, step): (usize, usize, usize, i64),
        nbytes: u64,
    ) -> usize {
        let kind = w.rng.pick(&[Kind::Given, Kind::Alloc, Kind::Library]);
        let len = match w.rng.below(10) {
            0 if !w.profile.quiet => w.rng.below(nbytes + 1),
            1..=4 => nbytes + w.rng.below(1000),
            _ => nbytes,
        };
        let device = if kind == Kind::Library { 0 } else { self.a_device(w) };
        let timeout = w.fault(w.profile.short_timeouts).then(|| w.rng.range(0, 5 * MS));
        let keep = w.rng.percent(30);
        let op = RecvOp {
            node,
            from,
            key,
            step,
            kind,
            len,
            device,
            keep,
            timeout,
            who: None,
            id: None,
            dests: Vec::new(),
            started: 0,
            ended: None,
            held: None,
            got: None,
        };
        self.recvs.push(op);
        self.recvs.len() - 1
    }
}

/// What this send says beside its content, if anything: of its own, under a shape that others have, too.
fn user_bytes(op: usize) -> UserBytes {
    let len = if op % 3 == 1 { 1 + op as u64 * 37 % 512 } else { 0 };
    UserBytes::copy(&content(op + 1_000_000, len)).expect("memory")
}
