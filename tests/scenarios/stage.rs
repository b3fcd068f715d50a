//! Two engines on a wire on which nothing moves but by the script.
//!
//! [`Stage::run`] lets everything happen that is not held back. What is held back stays where it is, and
//! what the provider contract keeps in order stays behind it: the operations of one end of a connection,
//! in the order posted. Ends of operations, answers of the application and of copies, and the opening of
//! either end have no order among each other or with the other direction: the script gives them one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rdma_transport::api::AllocFn;
use rdma_transport::engine::Engine;
use rdma_transport::engine::layout::Spot;
use rdma_transport::status::{Code, Reason, Status};

use super::World;
use super::common::memory::Who;
use super::common::net::{Life, Op};
use super::engine::{boot, hash};
use super::kind::Kind;
use super::ops::{Mail, RecvOp, SendOp};
use super::script::{MS, Setup};

/// An answer that takes its time.
pub enum Answer {
    Alloc { request: u32, alloc: AllocFn, len: u64 },
    Copy { token: u64, dst: (u64, bool), src: (u64, bool), len: u64 },
    Spread { token: u64, dst: Spot, src: Spot, len: u64 },
    Hash { token: u64, addr: u64, len: u64 },
}

impl Answer {
    fn kind(&self) -> Kind {
        match self {
            Answer::Alloc { .. } => Kind::Alloc,
            Answer::Copy { .. } | Answer::Spread { .. } => Kind::Copy,
            Answer::Hash { .. } => Kind::Hash,
        }
    }
}

pub struct Stage {
    pub w: World,
    pub setup: Setup,
    pub engines: [Option<Engine>; 2],
    pub sends: Vec<SendOp>,
    pub recvs: Vec<RecvOp>,
    /// Responses that the application was asked for, and those of them that ended without it.
    pub asked: Vec<u64>,
    pub in_vain: Vec<(u64, Code, Reason)>,
    /// The application's memory is registered, where there are no windows.
    pub registered: bool,
    /// Newcomers prove more than their name.
    pub proved: bool,
    /// These answers and openings fail.
    pub failing: BTreeSet<(usize, Kind)>,
    /// This node stands still: it sees and does nothing.
    pub stalled: [bool; 2],
    pub mail: Mail,
    pub beginning: Option<usize>,
    holds: BTreeSet<(usize, Kind)>,
    later: VecDeque<(Who, Answer)>,
    opens: VecDeque<(usize, usize)>,
    /// Messages that arrived, by who sent them.
    pub arrived: Vec<(usize, Kind, Vec<u8>)>,
    /// Credits that came back, by connection and side.
    pub returned: BTreeMap<(usize, usize), u32>,
}

impl Setup {
    /// Two nodes that are not connected.
    pub fn stage(self) -> Stage {
        let w = self.world();
        let engines = [0, 1].map(|node| Some(boot(node, w.who(node).inc, &self)));
        Stage {
            w,
            setup: self,
            engines,
            sends: Vec::new(),
            recvs: Vec::new(),
            asked: Vec::new(),
            in_vain: Vec::new(),
            registered: false,
            proved: true,
            failing: BTreeSet::new(),
            stalled: [false; 2],
            mail: Mail::default(),
            beginning: None,
            holds: BTreeSet::new(),
            later: VecDeque::new(),
            opens: VecDeque::new(),
            arrived: Vec::new(),
            returned: BTreeMap::new(),
        }
    }

    /// The same, connected.
    pub fn connected(self) -> Stage {
        let mut s = self.stage();
        s.connect(0);
        s.run();
        s
    }
}

impl Stage {
    /// From now on this stays where it is: messages and operations that the node posted, answers that its
    /// engine waits for.
    pub fn hold(&mut self, node: usize, kind: Kind) {
        self.holds.insert((node, kind));
    }

    /// It goes on, with whatever else may.
    pub fn let_go(&mut self, node: usize, kind: Kind) {
        assert!(self.holds.remove(&(node, kind)), "{kind:?} was not held");
        self.run();
    }

    /// So does all that is held.
    pub fn let_all_go(&mut self) {
        self.holds.clear();
        self.run();
    }

    /// From now on this fails.
    pub fn fail(&mut self, node: usize, kind: Kind) {
        self.failing.insert((node, kind));
    }

    pub fn may(&self, node: usize, kind: Kind) -> bool {
        !self.holds.contains(&(node, kind))
    }

    /// Everything happens that may. Time stands still.
    pub fn run(&mut self) {
        for _ in 0..1_000_000 {
            let more = self.open_one()
                || self.dial_one()
                || self.rail_one()
                || self.poll_one()
                || self.answer_one()
                || self.complete_one()
                || self.move_one();
            if !more {
                return;
            }
        }
        panic!("it goes on for ever");
    }

    /// Time passes, and timers run.
    pub fn pass(&mut self, ms: u64) {
        let until = self.w.now + ms * MS;
        loop {
            self.run();
            let due = |n: usize| if self.stalled[n] { u64::MAX } else { self.next_tick(n) };
            let (node, at) = [0, 1].map(|n| (n, due(n))).into_iter().min_by_key(|d| d.1).unwrap();
            if at > until {
                break;
            }
            self.w.now = self.w.now.max(at);
            self.tick(node);
        }
        self.w.now = until;
        self.run();
    }

    // Connections.

    /// A node connects to the other one, of itself.
    pub fn connect(&mut self, from: usize) {
        let conn = self.w.new_conn(self.w.who(from), self.w.who(1 - from));
        self.opens.extend([(conn, 0), (conn, 1)]);
    }

    /// Both nodes, which dial each other, connect at once, and each sees its own connection first. That of node 0, and that of node 1.
    pub fn cross(&mut self) -> [usize; 2] {
        for (who, to) in self.w.fate.dials.drain(..) {
            self.w.nodes[who.node].dialing[to] = false;
        }
        let conns = [0, 1].map(|from| self.w.new_conn(self.w.who(from), self.w.who(1 - from)));
        self.opens
            .extend(conns.map(|conn| (conn, 0)).into_iter().chain(conns.map(|conn| (conn, 1))));
        conns
    }

    /// A process that has the other node's name, and another incarnation, connects. Nothing more is heard
    /// of it. Whether it was let in; `None`: it is to ask again.
    pub fn stranger(&mut self, to: usize) -> Option<bool> {
        let (who, other) = (self.w.who(to), self.w.who(1 - to));
        let new = Who { inc: other.inc + 1, ..other };
        let conn = self.w.new_conn(who, new);
        self.w.conns[conn].silent = true;
        match self.engine_open(who, new, conn) {
            Ok(Some(ch)) => {
                self.w.nodes[to].chans.insert(ch, (conn, 0));
                self.w.conns[conn].ends[0].ch = Some(ch);
                self.engine_begin(to, ch, conn, false);
                Some(true)
            }
            asked => {
                self.w.end(conn, 0, false);
                asked.is_err().then_some(false)
            }
        }
    }

    /// A process that has the other node's name and incarnation connects to be a rail. Nothing more is heard of it.
    pub fn stranger_rail(&mut self, to: usize) {
        let conn = self.w.new_conn(self.w.who(1 - to), self.w.who(to));
        self.w.conns[conn].rail = Some((0, [0; 16]));
        self.w.conns[conn].silent = true;
        self.opens.push_back((conn, 1));
        self.run();
    }

    /// The last connection that was made.
    pub fn conn(&self) -> usize {
        self.w.conns.len() - 1
    }

    /// Which of its ends is the node's.
    pub fn side(&self, conn: usize, node: usize) -> usize {
        usize::from(self.w.conns[conn].ends[0].who.node != node)
    }

    fn open_one(&mut self) -> bool {
        let Some(at) = self.opens.iter().position(|&(conn, side)| {
            let node = self.w.conns[conn].ends[side].who.node;
            self.may(node, Kind::Open) && !self.stalled[node]
        }) else {
            return false;
        };
        let (conn, side) = self.opens.remove(at).unwrap();
        let ends = &self.w.conns[conn].ends;
        let (who, peer) = (ends[side].who, ends[1 - side].who);
        if !self.w.lives(who) || ends[side].life == Life::Ended {
            self.w.end(conn, side, false);
            return true;
        }
        match self.engine_open(who, peer, conn) {
            Err(()) => self.w.end(conn, side, false),
            // Asked again when something else has happened.
            Ok(None) => {
                self.opens.push_back((conn, side));
                self.hold(who.node, Kind::Open);
            }
            Ok(Some(ch)) => {
                self.w.nodes[who.node].chans.insert(ch, (conn, side));
                let end = &mut self.w.conns[conn].ends[side];
                end.ch = Some(ch);
                let early = std::mem::take(&mut end.early);
                let inbox = &mut self.w.nodes[who.node].inbox;
                inbox.extend(early.into_iter().map(|e| (conn, side, e)));
                self.engine_begin(who.node, ch, conn, side == 0);
            }
        }
        true
    }

    fn rail_one(&mut self) -> bool {
        let Some(&(who, main)) = self.w.fate.rails.front() else { return false };
        if !self.may(who.node, Kind::Dial) {
            return false;
        }
        self.w.fate.rails.pop_front();
        if self.w.lives(who) && self.engine_wants_rail(who.node, main) {
            self.connect(who.node);
            let conn = self.conn();
            self.w.conns[conn].rail = Some((main, [conn as u8; 16]));
            let last = self.w.cards - 1;
            self.w.conns[conn].ends.iter_mut().for_each(|end| end.card = last);
        }
        true
    }

    fn dial_one(&mut self) -> bool {
        let Some(&(who, to)) = self.w.fate.dials.front() else { return false };
        if self.w.lives(who) && !self.may(who.node, Kind::Dial) {
            return false;
        }
        self.w.fate.dials.pop_front();
        if self.w.lives(who) {
            self.w.nodes[who.node].dialing[to] = false;
            if self.w.nodes[to].up && !self.w.nodes[to].closing {
                self.connect(who.node);
            } else if self.connect_failed(who.node, true) {
                self.w.dial(who.node, to);
                self.hold(who.node, Kind::Dial);
            }
        }
        true
    }

    /// The try to connect that is held fails.
    pub fn refuse_dial(&mut self, node: usize, retryable: bool) {
        let (who, to) = self.w.fate.dials.pop_front().expect("nobody dials");
        assert_eq!(who.node, node);
        self.w.nodes[node].dialing[to] = false;
        if self.connect_failed(node, retryable) {
            self.w.dial(node, to);
        }
    }

    /// Whether somebody tries to connect.
    pub fn dials(&self) -> usize {
        self.w.fate.dials.len()
    }

    /// One end of the last connection finds that it is lost.
    pub fn lose(&mut self, node: usize) {
        self.lose_of(self.conn(), node);
    }

    /// One end of this one does.
    pub fn lose_of(&mut self, conn: usize, node: usize) {
        let side = self.side(conn, node);
        self.w.kill(conn, side, Status::gone("the scripted connection went down"));
        self.poll(node);
    }

    /// One end finds that it is lost; the messages that it has posted are on their way still, and arrive.
    pub fn lose_late(&mut self, conn: usize, node: usize) {
        let side = self.side(conn, node);
        let out = &mut self.w.conns[conn].ends[side].out;
        let on_their_way: Vec<Op> = out.drain(..).filter(|op| matches!(op, Op::Send(_))).collect();
        self.w.kill(conn, side, Status::gone("the scripted connection went down"));
        self.w.conns[conn].ends[side].out.extend(on_their_way);
        self.poll(node);
    }

    /// Both do.
    pub fn cut(&mut self) {
        self.lose(0);
        self.lose(1);
    }

    /// Both find that this one is lost.
    pub fn cut_one(&mut self, conn: usize) {
        [0, 1].into_iter().for_each(|node| self.lose_of(conn, node));
    }

    /// A process ends; `silent`: its host, too, so that nobody hears of it.
    pub fn crash(&mut self, node: usize, silent: bool) {
        self.engines[node] = None;
        let who = self.w.who(node);
        self.later.retain(|(of, _)| *of != who);
        for conn in 0..self.w.conns.len() {
            for side in [0, 1] {
                if self.w.conns[conn].ends[side].who == who {
                    self.w.end(conn, side, false);
                    self.w.conns[conn].silent |= silent;
                }
            }
        }
        self.ops_crashed(node);
        self.w.nodes[node].crash();
    }

    /// It begins again, as another incarnation.
    pub fn restart(&mut self, node: usize) {
        self.w.nodes[node].restart();
        self.engines[node] = Some(boot(node, self.w.who(node).inc, &self.setup));
    }

    // Answers.

    pub fn later(&mut self, node: usize, answer: Answer) {
        self.later.push_back((self.w.who(node), answer));
    }

    /// Answers that a node's engine waits for.
    pub fn awaited(&self, node: usize) -> Vec<Kind> {
        let of = |(who, answer): &(Who, Answer)| (who.node == node).then(|| answer.kind());
        self.later.iter().filter_map(of).collect()
    }

    fn answer_one(&mut self) -> bool {
        let free =
            |(who, a): &(Who, Answer)| !self.stalled[who.node] && self.may(who.node, a.kind());
        let Some(at) = self.later.iter().position(free) else { return false };
        let (who, answer) = self.later.remove(at).unwrap();
        let node = who.node;
        let fails = self.failing.contains(&(node, answer.kind()));
        let failed = || Status::new(Code::ResourceExhausted, "scripted: it fails");
        match answer {
            Answer::Alloc { request, alloc, len } => {
                let addr = (!fails).then(|| self.destination(node, request, len));
                self.allocated(node, request, alloc, addr);
            }
            Answer::Copy { token, dst, src, len } => {
                let mut result = if fails { Err(failed()) } else { self.copy_begins(node, token) };
                if result.is_ok() {
                    let bytes = self.w.mem.read(who, src.1, src.0, len, "source of a copy");
                    self.w.mem.write(who, dst.1, dst.0, bytes, "destination of a copy");
                }
                result = result.map_err(|status| {
                    let text = format!("{} (copy)", status.message);
                    status.with_message(text)
                });
                self.copied(node, token, result);
            }
            Answer::Spread { token, dst, src, len } => {
                let result = if fails { Err(failed()) } else { self.copy_begins(node, token) };
                if result.is_ok() {
                    let mut bytes = Vec::new();
                    let mem = &mut self.w.mem;
                    src.each(len, |p| {
                        bytes.extend_from_slice(mem.read(who, false, p.addr, p.len, "a piece"));
                    });
                    let mut at = 0;
                    dst.each(len, |p| {
                        let end = at + p.len as usize;
                        mem.write(who, false, p.addr, &bytes[at..end], "a piece");
                        at = end;
                    });
                }
                self.copied(node, token, result);
            }
            Answer::Hash { token, addr, len } => {
                let begins = if fails { Err(failed()) } else { self.copy_begins(node, token) };
                let sum = begins
                    .map(|()| hash(self.w.mem.read(who, false, addr, len, "content of a hash")));
                self.hashed(node, token, sum);
            }
        }
        true
    }

    /// Callbacks that both nodes owe.
    pub fn work_all(&mut self) {
        for node in [0, 1] {
            self.work(node);
            self.read_mail(node);
        }
    }
}
