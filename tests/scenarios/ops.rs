//! The operations of a scenario, and what has to hold for each: one end, with the code that the scenario
//! says, the right content, and memory that nobody touches after it.

use std::sync::{Arc, Mutex};

use rdma_transport::api::*;
use rdma_transport::engine::Work;
use rdma_transport::fabric::Access;
use rdma_transport::status::{Code, Reason, Status};
use rdma_transport::user::UserBytes;

use super::common::memory::{Region, content};
use super::stage::{Answer, Stage};

/// What callbacks tell.
pub enum Note {
    Sent(usize, Result<(), Status>),
    Asked { response: u64, key: Vec<u8>, step: i64 },
    AskedInVain { response: u64, status: Status },
}

pub type Mail = Arc<Mutex<Vec<Note>>>;

/// Where a result goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Into {
    /// Memory given up front, so long.
    Given(u64),
    /// Memory from a callback.
    Callback,
    /// Memory of the library.
    Library,
    /// Memory of a device from a callback.
    Device,
}

/// A send or a receive, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendId(pub usize);
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvId(pub usize);

pub struct SendOp {
    pub node: usize,
    pub inc: u64,
    pub key: Vec<u8>,
    pub step: i64,
    pub meta: Meta,
    pub addr: u64,
    pub device: u32,
    pub ended: Option<Result<(), Status>>,
}

pub struct RecvOp {
    pub node: usize,
    pub inc: u64,
    pub id: u64,
    pub key: Vec<u8>,
    pub step: i64,
    pub into: Into,
    pub dests: Vec<(u64, u64)>,
    pub ended: Option<Result<(), Status>>,
    pub protocol: Protocol,
}

/// A send that is begun: by default one tensor on the host, under the first key, in the first step.
#[derive(Clone, Copy, Debug)]
pub struct Tell<'a> {
    pub key: &'a str,
    pub step: i64,
    pub dtype: u32,
    pub device: u32,
    pub timeout: Option<u64>,
    pub user: &'static [u8],
}

/// The first key in the first step.
pub const K: Tell<'static> =
    Tell { key: "k", step: 1, dtype: 1, device: 0, timeout: None, user: b"" };

/// What an end was, without its text.
pub type End = Option<(Code, Reason)>;
pub const OK: End = Some((Code::Ok, Reason::None));

fn end(of: &Option<Result<(), Status>>) -> End {
    let of = of.as_ref()?;
    Some(of.as_ref().map_or_else(|s| (s.code, s.reason), |()| (Code::Ok, Reason::None)))
}

impl Stage {
    /// Memory of the application.
    pub fn memory(&mut self, node: usize, device: u32, len: u64, what: String) -> u64 {
        let who = self.w.who(node);
        let addr = self.w.mem.alloc(who, device, len, 0xCD, what);
        if self.registered && device == 0 && !self.w.nodes[node].caps.windows {
            let (access, open, owned, card) = (Access::all(), true, false, 0);
            let rkey = self.w.register(Region { who, addr, len, access, open, owned, card });
            self.w.mem.at(addr).registered = Some(rkey);
        }
        addr
    }

    fn tensor(&mut self, node: usize, of: Tell<'_>, len: u64) -> (SendId, Tensor, SendDone) {
        let op = self.sends.len();
        let addr = self.memory(node, of.device, len, format!("tensor of send {op}"));
        let who = self.w.who(node);
        self.w.mem.write(who, of.device != 0, addr, &content(op, len), "the application");
        let user = UserBytes::copy(of.user).expect("memory");
        let meta = Meta { dtype: of.dtype, nbytes: len, user, ..Meta::default() };
        let (key, step) = (of.key.as_bytes().to_vec(), of.step);
        let tensor = Tensor { meta: meta.clone(), addr, device: of.device };
        let op =
            SendOp { node, inc: who.inc, key, step, meta, addr, device: of.device, ended: None };
        self.sends.push(op);
        let (id, mail) = (SendId(self.sends.len() - 1), self.mail.clone());
        let done: SendDone =
            Box::new(move |result, _| mail.lock().unwrap().push(Note::Sent(id.0, result)));
        (id, tensor, done)
    }

    /// Offers a tensor of so many bytes.
    pub fn send(&mut self, node: usize, of: Tell<'_>, len: u64) -> SendId {
        let (id, tensor, done) = self.tensor(node, of, len);
        let begun = self.engine_send(node, (of.key.as_bytes(), of.step), tensor, of.timeout, done);
        self.begun_send(id, begun);
        id
    }

    fn begun_send(&mut self, id: SendId, begun: Result<(), Status>) {
        if let Err(status) = begun {
            self.sent(id.0, Err(status));
        }
        self.work_all();
    }

    /// The application answers a request that it was asked for.
    pub fn answer(&mut self, node: usize, response: u64, of: Tell<'_>, len: u64) -> SendId {
        let (id, tensor, done) = self.tensor(node, of, len);
        let begun = self.engine_answer(node, response, tensor, done);
        self.begun_send(id, begun);
        id
    }

    /// Begins a receive from the other node.
    pub fn recv(&mut self, node: usize, of: Tell<'_>, into: Into) -> RecvId {
        let from = format!("node{}", 1 - node);
        self.recv_from(node, Some(&from), of, into)
    }

    /// Begins a receive from the node itself.
    pub fn recv_local(&mut self, node: usize, of: Tell<'_>, into: Into) -> RecvId {
        self.recv_from(node, None, of, into)
    }

    fn recv_from(&mut self, node: usize, from: Option<&str>, of: Tell<'_>, into: Into) -> RecvId {
        let op = self.recvs.len();
        let (key, step) = (of.key.as_bytes().to_vec(), of.step);
        let mut dests = Vec::new();
        let target = match into {
            Into::Given(len) => {
                let addr = self.memory(node, 0, len, format!("destination of receive {op}"));
                dests.push((addr, len));
                Target::Given { addr, len }
            }
            Into::Callback | Into::Device => Target::Alloc(Box::new(|_| None)),
            Into::Library => Target::Library,
        };
        let device = u32::from(into == Into::Device);
        let done: RecvDone = Box::new(|_, _| {});
        let (inc, protocol) = (self.w.nodes[node].inc, Protocol::Auto);
        self.recvs.push(RecvOp { node, inc, id: 0, key, step, into, dests, ended: None, protocol });
        self.beginning = Some(op);
        let options = (target, device, of.timeout);
        let begun = self.engine_recv(node, from, (of.key.as_bytes(), step), options, done);
        self.beginning = None;
        match begun {
            Ok(id) => self.recvs[op].id = id,
            Err(status) => self.received(op, Err(status)),
        }
        RecvId(op)
    }

    pub fn cancel(&mut self, recv: RecvId) -> Result<(), Status> {
        let (node, id) = (self.recvs[recv.0].node, self.recvs[recv.0].id);
        self.engine_cancel(node, id)
    }

    /// The end of a receive, or of a send, so far.
    pub fn recv_end(&self, recv: RecvId) -> End {
        end(&self.recvs[recv.0].ended)
    }
    pub fn send_end(&self, send: SendId) -> End {
        end(&self.sends[send.0].ended)
    }

    /// What the error of a receive says.
    pub fn recv_text(&self, recv: RecvId) -> &str {
        match &self.recvs[recv.0].ended {
            Some(Err(status)) => &status.message,
            _ => "",
        }
    }

    /// The protocol that carried a receive.
    pub fn carried(&self, recv: RecvId) -> Protocol {
        assert_eq!(self.recv_end(recv), OK);
        self.recvs[recv.0].protocol
    }

    fn received(&mut self, op: usize, result: Result<(), Status>) {
        self.w.trace(|| format!("receive {op}: {result:?}"));
        let r = &mut self.recvs[op];
        assert!(r.ended.is_none(), "receive {op} ended twice");
        r.ended = Some(result);
        for (addr, _) in r.dests.clone() {
            self.w.mem.freeze(addr, "its receive has ended");
        }
    }

    fn sent(&mut self, op: usize, result: Result<(), Status>) {
        self.w.trace(|| format!("send {op}: {result:?}"));
        let s = &mut self.sends[op];
        assert!(s.ended.is_none(), "send {op} ended twice");
        s.ended = Some(result);
        let addr = s.addr;
        self.w.mem.free(addr, "its send has ended");
    }

    /// A receive ended well: with what was sent under its key in its step, in the memory that is its own.
    fn check_result(&self, op: usize, tensor: &Tensor) {
        let (r, n) = (&self.recvs[op], tensor.meta.nbytes);
        let who = self.w.who(r.node);
        let got = self.w.mem.read(who, tensor.device != 0, tensor.addr, n, "result of a receive");
        if r.into != Into::Library && n > 0 {
            assert_eq!(
                r.dests.last().map(|d| d.0),
                Some(tensor.addr),
                "receive {op}: other memory"
            );
        }
        let fits = |(i, s): (usize, &SendOp)| {
            s.key == r.key && s.step == r.step && s.meta == tensor.meta && content(i, n) == got
        };
        let found = self.sends.iter().enumerate().any(fits);
        assert!(found, "receive {op} ended well with what was not sent for it");
    }

    fn op_of(&self, node: usize, request: u64) -> usize {
        let inc = self.w.nodes[node].inc;
        let of = |r: &RecvOp| (r.node, r.inc, r.id) == (node, inc, request);
        let found = self.recvs.iter().position(of);
        // One that ends within the call that begins it has no number yet.
        found.or(self.beginning).expect("a receive ended that was not begun")
    }

    /// Runs what an engine queued; what takes its time is answered later.
    pub fn work(&mut self, node: usize) {
        let who = self.w.who(node);
        while let Some(work) = {
            for (dst, bytes) in std::mem::take(&mut self.w.nodes[node].deliveries) {
                self.w.mem.write(who, false, dst, &bytes, "delivery");
            }
            self.w.nodes[node].work.pop_front()
        } {
            self.run_work(node, work);
        }
    }

    fn run_work(&mut self, node: usize, work: Work) {
        match work {
            Work::RecvDone { request, mut done, result, info, after, .. } => {
                let op = self.op_of(node, request);
                if let Ok(tensor) = &result {
                    self.check_result(op, tensor);
                }
                self.recvs[op].protocol = info.protocol;
                done.end(result.as_ref(), &info);
                self.received(op, result.map(drop));
                self.give_back(node, after);
            }
            Work::SendDone { mut done, result, info, .. } => {
                done.end(result.as_ref().map(|_| ()), &info);
            }
            Work::Alloc { request, mut alloc, meta, .. } => {
                assert!(alloc(&meta).is_none());
                self.later(node, Answer::Alloc { request, alloc, len: meta.nbytes });
            }
            Work::Source { source, response, peer, key, step } => {
                source(response, &peer, &key, step);
            }
            Work::MessageDone { .. } => unreachable!("every end is asked for"),
            Work::MessageEnded { op, .. } => self.message_ended(node, op),
            Work::Active { handler, active } => {
                if !handler(&active) && active.message != 0 {
                    self.call(node, |e, fx| e.message_drop(fx, active.message));
                }
            }
            Work::Call(call) => call(),
            Work::PeerEvents => {}
            Work::BufferEvents { buffer, .. } => self.buffer_events(node, buffer),
            Work::HostCopy { token, dst, src, len } => {
                self.later(node, Answer::Copy { token, dst: (dst, false), src: (src, false), len });
            }
            Work::Spread { token, dst, src, len } => {
                self.later(node, Answer::Spread { token, dst, src, len });
            }
            Work::HostHash { token, addr, len } => {
                self.later(node, Answer::Hash { token, addr, len });
            }
            Work::DeviceCopy { token, to_host, host, device, len, .. } => {
                let (host, device) = ((host, false), (device, true));
                let (dst, src) = if to_host { (host, device) } else { (device, host) };
                self.later(node, Answer::Copy { token, dst, src, len });
            }
        }
        self.read_mail(node);
    }

    pub fn read_mail(&mut self, node: usize) {
        let notes = std::mem::take(&mut *self.mail.lock().unwrap());
        for note in notes {
            match note {
                Note::Sent(op, result) => self.sent(op, result),
                Note::Asked { response, key, step } => {
                    assert!(!key.is_empty(), "step {step}");
                    self.asked.push(response);
                    self.source_returned(node, response);
                }
                Note::AskedInVain { response, status } => {
                    self.in_vain.push((response, status.code, status.reason));
                }
            }
        }
    }

    /// Memory for the result of a request whose callback was asked.
    pub fn destination(&mut self, node: usize, request: u32, len: u64) -> u64 {
        // A request has the low bits of its public number.
        let slot = |id: u64| id as u32 & ((1 << 20) - 1);
        let mine = |r: &RecvOp| {
            r.node == node && r.ended.is_none() && slot(r.id) == request & ((1 << 20) - 1)
        };
        let op = self.recvs.iter().rposition(mine).expect("memory asked for a receive that lives");
        let device = u32::from(self.recvs[op].into == Into::Device);
        let addr = self.memory(node, device, len, format!("destination of receive {op}"));
        self.recvs[op].dests.push((addr, len));
        addr
    }

    /// A process is gone, and its operations with it.
    pub fn ops_crashed(&mut self, node: usize) {
        let gone = || Status::gone("its own process ended");
        let inc = self.w.nodes[node].inc;
        for s in self.sends.iter_mut().filter(|s| (s.node, s.inc) == (node, inc)) {
            s.ended.get_or_insert_with(|| Err(gone()));
        }
        for r in self.recvs.iter_mut().filter(|r| (r.node, r.inc) == (node, inc)) {
            r.ended.get_or_insert_with(|| Err(gone()));
        }
        self.w.mem.crash(self.w.who(node));
    }
}
