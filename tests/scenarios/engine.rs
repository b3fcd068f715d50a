//! The engines of a scenario: the only file here that calls them.

use std::sync::Arc;
use std::time::Duration;

use rdma_transport::api::*;
use rdma_transport::engine::{Claim, Engine, Held, Hooks, Offer, Range, checksum};
use rdma_transport::status::{Code, Status};

use super::common::fx::{NodeFx, hear};
use super::common::memory::Who;
use super::common::net::NetEvent;
use super::ops::{Mail, Note};
use super::script::{Script, Setup};
use super::{World, stage::Stage};

pub type ScriptFx<'a> = NodeFx<'a, Script>;

/// Copies of devices are made by the scenario; these are never called.
struct NoCopies;

impl DeviceOps for NoCopies {
    fn copy_to_host(&self, _: u64, _: u64, _: u64, _: CopyDone) {
        panic!("the scenario copies");
    }
    fn copy_from_host(&self, _: u64, _: u64, _: u64, _: CopyDone) {
        panic!("the scenario copies");
    }
}

/// The identity of a node that has begun so often.
pub fn incarnation(node: usize, inc: u64) -> [u8; 16] {
    let mut incarnation = [inc as u8; 16];
    incarnation[0] = node as u8;
    incarnation
}

/// The engine of a node that begins: it knows the other one, and has one device.
pub fn boot(node: usize, inc: u64, setup: &Setup) -> Engine {
    let mut engine = Engine::new(&format!("node{node}"), setup.settings[node].clone());
    engine.set_incarnation(&incarnation(node, inc));
    engine.add_device(Arc::new(NoCopies)).unwrap();
    if !setup.guests {
        engine.add_peer(&format!("node{}", 1 - node)).unwrap();
    }
    engine
}

/// The checksum that a copy's owner computes.
pub fn hash(bytes: &[u8]) -> u64 {
    checksum(bytes)
}

impl Stage {
    /// Calls an engine, then runs the callbacks that this queued.
    pub fn call<T>(
        &mut self,
        node: usize,
        f: impl FnOnce(&mut Engine, &mut ScriptFx<'_>) -> T,
    ) -> T {
        let result = self.call_only(node, |engine, fx| {
            let result = f(engine, fx);
            engine.end_lost(fx);
            result
        });
        self.work(node);
        result
    }

    /// The same, and nobody runs the callbacks.
    pub fn call_only<T>(
        &mut self,
        node: usize,
        f: impl FnOnce(&mut Engine, &mut ScriptFx<'_>) -> T,
    ) -> T {
        let engine = self.engines[node].as_mut().expect("the node lives");
        f(engine, &mut ScriptFx { w: &mut self.w, node })
    }

    /// Passes requests that find no tensor to the application, as [`Note::Asked`] tells.
    pub fn set_source(&mut self, node: usize) {
        let (asked, ended): (Mail, Mail) = (self.mail.clone(), self.mail.clone());
        let engine = self.engines[node].as_mut().unwrap();
        engine.set_source(Some(Arc::new(move |response, _: &str, key: &[u8], step| {
            let note = Note::Asked { response, key: key.to_vec(), step };
            asked.lock().unwrap().push(note);
        })));
        let tell = move |response, status: &Status| {
            ended.lock().unwrap().push(Note::AskedInVain { response, status: status.clone() });
        };
        engine.set_hooks(Hooks { ended: Some(Arc::new(tell)), peer: None });
    }

    pub fn source_returned(&mut self, node: usize, response: u64) {
        self.call(node, |e, fx| e.source_returned(fx, response));
    }

    pub fn engine_recv(
        &mut self,
        node: usize,
        from: Option<&str>,
        (key, step): (&[u8], i64),
        (target, device, timeout): (Target, u32, Option<u64>),
        done: RecvDone,
    ) -> Result<u64, Status> {
        let timeout = timeout.map(Duration::from_nanos);
        let options = RecvOptions { timeout, target, device, keep: false };
        let begun = self.call(node, |e, fx| e.recv(fx, from, key, step, options, done.into()));
        self.w.nodes[node].recvs_begun += usize::from(begun.is_ok());
        begun
    }

    pub fn engine_send(
        &mut self,
        node: usize,
        (key, step): (&[u8], i64),
        tensor: Tensor,
        timeout: Option<u64>,
        done: SendDone,
    ) -> Result<(), Status> {
        let mut offer = Offer { tensor, content: &[], done: Some(done.into()) };
        self.call(node, |e, fx| e.post_send(fx, key, step, &mut offer, timeout))
    }

    pub fn engine_answer(
        &mut self,
        node: usize,
        response: u64,
        tensor: Tensor,
        done: SendDone,
    ) -> Result<(), Status> {
        let offer = Offer { tensor, content: &[], done: Some(done.into()) };
        self.call(node, |e, fx| e.response_send(fx, response, offer))
    }

    /// The application has no tensor for a request that it was asked for.
    pub fn answer_none(&mut self, node: usize, response: u64) -> Result<(), Status> {
        let status = Status::new(Code::NotFound, "the runtime has no such tensor");
        self.call(node, |e, fx| e.response_fail(fx, response, &status))
    }

    pub fn engine_cancel(&mut self, node: usize, id: u64) -> Result<(), Status> {
        self.call(node, |e, fx| e.cancel(fx, id))
    }

    pub fn abort(&mut self, node: usize, step: i64) {
        let status = Status::new(Code::Aborted, "the step was aborted");
        self.call(node, |e, fx| e.step_abort(fx, step, status)).unwrap();
    }

    pub fn cleanup(&mut self, node: usize, step: i64) {
        self.call(node, |e, fx| e.step_cleanup(fx, step)).unwrap();
    }

    pub fn disconnect(&mut self, node: usize) {
        self.call(node, |e, fx| {
            let peer = e.find_peer(&format!("node{}", 1 - node)).unwrap();
            e.disconnect(fx, peer)
        });
    }

    pub fn shut_down(&mut self, node: usize) {
        self.call(node, |e, fx| e.shut_down(fx));
        self.w.nodes[node].closing = true;
    }

    /// Takes memory back; whether nothing touches it any more.
    pub fn reclaim(
        &mut self,
        node: usize,
        (addr, len, device): (u64, u64, u32),
        force: bool,
    ) -> bool {
        let range = Range { addr, len, device };
        self.call(node, |e, fx| e.reclaim(fx, &range, force))
    }

    pub fn allocated(&mut self, node: usize, request: u32, alloc: AllocFn, addr: Option<u64>) {
        self.call(node, |e, fx| e.allocated(fx, request, alloc, addr));
    }

    pub fn copied(&mut self, node: usize, token: u64, result: Result<(), Status>) {
        self.call(node, |e, fx| e.copied(fx, token, result));
    }

    pub fn hashed(&mut self, node: usize, token: u64, result: Result<u64, Status>) {
        self.call(node, |e, fx| e.hashed(fx, token, result));
    }

    /// Whether what was to be touched may be.
    pub fn copy_begins(&mut self, node: usize, token: u64) -> Result<(), Status> {
        self.call(node, |e, _| e.copy_begins(token))
    }

    /// A node finds an event of its end of a connection.
    pub fn event(&mut self, node: usize, ch: u32, event: NetEvent) {
        self.call(node, |e, fx| match event {
            NetEvent::Message(bytes) => hear(e, fx, ch, &bytes),
            NetEvent::Written(imm) => e.on_imm(fx, ch, imm),
            NetEvent::Done(wr, result) => e.on_done(fx, ch, wr, result),
            NetEvent::Down(status) => e.channel_down(fx, ch, status),
        });
    }

    pub fn flush(&mut self, node: usize) {
        self.call(node, |e, fx| e.flush_all(fx));
    }

    /// When a node's timer is due.
    pub fn next_tick(&self, node: usize) -> u64 {
        self.engines[node].as_ref().map_or(u64::MAX, Engine::next_tick)
    }

    pub fn tick(&mut self, node: usize) {
        self.call(node, |e, fx| e.tick(fx));
    }

    /// One end learns that it is connected. `Err`: it is not wanted; `Ok(None)`: ask again.
    pub fn engine_open(&mut self, who: Who, peer: Who, conn: usize) -> Result<Option<u32>, ()> {
        let incarnation = incarnation(peer.node, peer.inc);
        let name = format!("node{}", peer.node);
        let (caps, manual, proved) =
            (self.w.nodes[who.node].caps.clone(), self.setup.manual, self.proved);
        if !proved {
            match self.call(who.node, |e, fx| e.claim(fx, &name, &incarnation)) {
                Claim::Free => {}
                Claim::Probing => return Ok(None),
                Claim::Living => return Err(()),
            }
        }
        let rail = self.w.conns[conn].rail.is_some();
        let opened = self.call(who.node, |e, fx| {
            let index = e.guest(&name).unwrap();
            if rail {
                return e.rail_new(fx, index, &incarnation, caps, manual);
            }
            e.channel_new(fx, index, incarnation, proved, caps, manual)
        });
        let ch = opened.map_err(|_| ())?;
        self.call(who.node, |e, _| e.channel_name(ch, [conn as u8; 16]));
        if self.setup.settings.iter().any(|s| s.checksum) {
            let seed = |node: usize| conn as u64 * 2 + node as u64;
            self.call(who.node, |e, _| e.channel_seal(ch, [seed(who.node), seed(peer.node)]));
        }
        Ok(Some(ch))
    }

    /// Begins to use a connection.
    pub fn engine_begin(&mut self, node: usize, ch: u32, conn: usize, dialled: bool) {
        let rail = self.w.conns[conn].rail;
        let cards = self.w.cards(conn, usize::from(!dialled));
        let [dialler, other] = [0, 1].map(|end| self.w.conns[conn].ends[end].who.node);
        let lower = node == dialler.min(other);
        self.call(node, |e, fx| {
            if rail.is_some() {
                e.rail_devices(ch, cards);
                return e.rail_open(fx, ch, rail.filter(|_| dialled));
            }
            if dialled == lower {
                e.channel_prefer(ch);
            }
            e.channel_open(fx, ch);
            if dialled {
                e.want_rails(fx, ch);
            }
        });
    }

    /// Whether a rail of this channel is still to be made.
    pub fn engine_wants_rail(&self, node: usize, main: u32) -> bool {
        self.engines[node].as_ref().unwrap().wants_rail(main)
    }

    /// Rails that a node has in use.
    pub fn rails(&self, node: usize) -> usize {
        let engine = self.engines[node].as_ref().unwrap();
        let peer = engine.find_peer(&format!("node{}", 1 - node)).unwrap();
        let channels = &engine.peer(peer).unwrap().channels;
        channels.iter().map(|&ch| engine.channel(ch).unwrap().rails().count()).sum()
    }

    /// A try to connect failed; whether another follows.
    pub fn connect_failed(&mut self, node: usize, retryable: bool) -> bool {
        let status = Status::new(Code::Unavailable, "scripted: no connection");
        self.call(node, |e, fx| {
            let peer = e.find_peer(&format!("node{}", 1 - node)).unwrap();
            e.connect_failed(fx, peer, status, retryable);
            let again = retryable && e.wants_connection(peer);
            if again {
                e.connecting(peer);
            }
            again
        })
    }

    /// What a node knows of the other one.
    pub fn peer_state(&self, node: usize) -> (PeerState, usize) {
        let engine = self.engines[node].as_ref().unwrap();
        let peer = engine.find_peer(&format!("node{}", 1 - node)).unwrap();
        let peer = engine.peer(peer).unwrap();
        (peer.state, peer.channels.len())
    }

    /// Messages and writes that met nobody.
    pub fn stale(&self, node: usize) -> u64 {
        self.engines[node].as_ref().unwrap().stale
    }

    /// Requests, responses; tensors and receives in the table.
    pub fn outstanding(&self, node: usize) -> [usize; 4] {
        let engine = self.engines[node].as_ref().unwrap();
        let ((a, b), (c, d)) = (engine.outstanding(), engine.waiting());
        [a, b, c, d]
    }

    /// Whether posts wait.
    pub fn has_pending(&self, node: usize) -> bool {
        self.engines[node].as_ref().unwrap().has_pending()
    }

    /// Requests of the other one that wait, and the bytes that they take.
    pub fn owes(&self, node: usize) -> (usize, usize) {
        let engine = self.engines[node].as_ref().unwrap();
        engine.peers().fold((0, 0), |(n, bytes), p| (n + p.waiting, bytes + p.waiting_bytes))
    }

    /// Persistent buffers of a node that are in nobody's hands, and those of them that it gave to its peer.
    pub fn buffers_kept(&self, node: usize) -> usize {
        let held = self.engines[node].as_ref().map_or([(0, 0); 2], |e| e.buffers_held());
        held[0].0 + held[1].0
    }

    pub fn buffers_given(&self, node: usize) -> usize {
        self.engines[node].as_ref().map_or(0, |e| e.buffers_held()[1].0)
    }

    /// A message operation has ended.
    pub fn message_ended(&mut self, node: usize, op: u32) {
        self.engines[node].as_mut().unwrap().message_ended(op);
    }

    /// What a finished receive held.
    pub fn give_back(&mut self, node: usize, held: Held) {
        match held {
            Held::Nothing => {}
            Held::Buffer(buffer) => free(&mut self.w, node, buffer),
            Held::Source(done, info) => {
                if let Some(mut done) = done {
                    done.end(Ok(()), &info);
                }
            }
        }
    }
}

fn free(w: &mut World, node: usize, buffer: rdma_transport::engine::Buffer) {
    use rdma_transport::engine::Fx;
    ScriptFx { w, node }.free(buffer);
}
