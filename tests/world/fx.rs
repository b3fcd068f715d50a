//! What one engine can do to the world.

use rdma_transport::engine::{Buffer, ChanId, Engine, Fx, MapError, Origin, Window, Work};
use rdma_transport::fabric::keys::Keys;
use rdma_transport::fabric::{Access, Left, Mem, Mr, PostError, Remote};
use rdma_transport::protocol::message::{self, Message};
use rdma_transport::status::{Code, Status};

use super::memory::Region;
use super::net::Op;
use super::{Fate, Fault, World};

pub struct NodeFx<'a, F> {
    pub w: &'a mut World<F>,
    pub node: usize,
}

/// A node hears a message. Of each other length no more than its head, as of an adapter that leaves the rest where it came.
pub fn hear(e: &mut Engine, fx: &mut impl Fx, ch: ChanId, bytes: &[u8]) {
    let left = bytes.first_chunk().filter(|_| bytes.len().is_multiple_of(2)).map(|head| Left {
        head,
        len: bytes.len(),
        at: bytes.as_ptr() as u64,
    });
    match left.map_or(Ok(false), |left| e.on_left(fx, ch, left)) {
        Ok(true) => {}
        Ok(false) => e.on_message(fx, ch, bytes),
        Err(unheard) => e.on_unheard(fx, ch, bytes, unheard),
    }
}

fn injected(what: &str) -> Status {
    Status::new(Code::ResourceExhausted, format!("injected: {what}"))
}

impl<F: Fate> NodeFx<'_, F> {
    fn register(&mut self, addr: u64, len: u64, access: Access, owned: bool) -> Mr {
        let who = self.w.who(self.node);
        let rkey = self.w.register(Region { who, addr, len, access, open: true, owned, card: 0 });
        let windows = self.w.nodes[self.node].caps.windows;
        Mr { lkey: if windows { 0 } else { rkey }, rkey }
    }

    /// Opens memory for one transfer, in several regions where the device limits their length.
    fn window(&mut self, addr: u64, len: u64, access: Access) -> Window {
        let max = self.w.max_region;
        let mut keys = Keys::one(self.register(addr, len.min(max), access, true));
        let mut at = max;
        while at < len {
            let mr = self.register(addr + at, max.min(len - at), access, true);
            assert!(keys.push(at, mr));
            at += max;
            self.w.fate.meet("several regions");
        }
        Window { keys, origin: Origin::Transfer }
    }
}

impl<F: Fate> Fx for NodeFx<'_, F> {
    fn now(&self) -> u64 {
        self.w.now
    }

    fn send(&mut self, ch: ChanId, parts: &[&[u8]]) -> Result<(), PostError> {
        let bytes = parts.concat();
        let max = self.w.nodes[self.node].caps.max_send;
        assert!(bytes.len() <= max, "a SEND of {} bytes, at most {max} are allowed", bytes.len());
        let told = match message::decode(&bytes) {
            Ok((Message::Meta(m), _)) => Some(m.index),
            _ => None,
        };
        self.w.post(self.node, ch, Op::Send(bytes))?;
        if let Some(index) = told {
            let (who, new) = (self.w.who(self.node), (ch, index));
            assert!(self.w.told.insert((who, new)), "{who:?} tells a receiver its metadata twice");
        }
        Ok(())
    }

    fn write(
        &mut self,
        ch: ChanId,
        wr: u64,
        local: Mem,
        remote: Remote,
        imm: Option<u32>,
    ) -> Result<(), PostError> {
        let max = self.w.nodes[self.node].caps.max_rdma;
        assert!(local.len() <= max, "a WRITE of {} bytes, at most {max}", local.len());
        self.w.post(self.node, ch, Op::Write { wr, local, remote, imm, at: 0 })
    }

    fn read(&mut self, ch: ChanId, wr: u64, local: Mem, remote: Remote) -> Result<(), PostError> {
        let caps = &self.w.nodes[self.node].caps;
        assert!(caps.read, "a READ on a provider that has none");
        assert!(local.len() <= caps.max_rdma, "a READ of {} bytes", local.len());
        self.w.post(self.node, ch, Op::Read { wr, local, remote, at: 0 })
    }

    fn registered(&self, _: ChanId, addr: u64, _: u64) -> bool {
        self.w.mem.registration(addr).is_some()
    }

    fn open(
        &mut self,
        ch: ChanId,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Window, MapError> {
        assert!(self.w.nodes[self.node].chans.contains_key(&ch), "open on an ended channel");
        // The memory has to be there, on the host, and the engine's to use.
        let who = self.w.who(self.node);
        self.w.mem.read(who, false, addr, len, "open");
        if self.w.fate.fails(self.node, Fault::Open) {
            return Err(MapError::Failed(injected("open")));
        }
        if !self.w.nodes[self.node].caps.windows {
            if let Some(rkey) = self.w.mem.registration(addr) {
                let keys = Keys::one(Mr { lkey: rkey, rkey });
                return Ok(Window { keys, origin: Origin::Registered });
            }
            if self.w.fate.needs_proxy() {
                self.w.fate.meet("proxy");
                return Err(MapError::NeedProxy);
            }
        }
        Ok(self.window(addr, len, access))
    }

    fn open_device(&mut self, ch: ChanId, addr: u64, len: u64, device: u32) -> Option<Window> {
        assert!(self.w.nodes[self.node].chans.contains_key(&ch), "open on an ended channel");
        assert!(device != 0 && self.w.mem.on_device(addr));
        let windows = self.w.nodes[self.node].caps.windows;
        if windows || !self.w.fate.opens_device() {
            return None;
        }
        self.w.fate.meet("device memory opened");
        Some(self.window(addr, len, Access::all()))
    }

    fn close(&mut self, _: ChanId, window: Window) {
        if window.origin == Origin::Transfer {
            let who = self.w.who(self.node);
            for mr in window.keys.iter() {
                let region = self.w.mem.regions.get(&mr.rkey);
                assert!(region.is_some_and(|r| r.open && r.who == who), "a window is closed twice");
                self.w.mem.close(mr.rkey);
            }
        }
    }

    fn on_device(&self, ch: ChanId, mr: Mr, device: u8) -> Option<Mr> {
        assert!(self.w.nodes[self.node].chans.contains_key(&ch), "keys for an ended channel");
        let rkey = self.w.mem.on_card(mr.rkey, device)?;
        Some(Mr { lkey: rkey, rkey })
    }

    fn end_channel(&mut self, ch: ChanId) {
        let Some(&(conn, side)) = self.w.nodes[self.node].chans.get(&ch) else {
            panic!("channel {ch:#x} is ended twice");
        };
        self.w.end(conn, side, true);
    }

    fn sign_of_life(&self, ch: ChanId) -> u64 {
        let &(conn, side) = &self.w.nodes[self.node].chans[&ch];
        self.w.conns[conn].ends[side].mark
    }

    fn connect(&mut self, peer: u32, name: &str) {
        // Peers are made known in the order of the nodes, and named by it.
        let to: usize = name.trim_start_matches("node").parse().unwrap();
        assert_ne!(to, self.node);
        let _ = peer;
        self.w.dial(self.node, to);
    }

    fn connect_rail(&mut self, _: u32, name: &str, main: ChanId) {
        let to: usize = name.trim_start_matches("node").parse().unwrap();
        let who = self.w.who(self.node);
        self.w.fate.dials_rail(self.w.now, who, to, main);
    }

    fn alloc(&mut self, len: u64) -> Result<Buffer, Status> {
        if self.w.fate.fails(self.node, Fault::Alloc) {
            return Err(injected("memory"));
        }
        let who = self.w.who(self.node);
        let addr = self.w.mem.alloc(who, 0, len, 0xDD, format!("library buffer of {len} bytes"));
        self.w.mem.at(addr).library = true;
        if !self.w.nodes[self.node].caps.windows {
            let mr = self.register(addr, len, Access::all(), false);
            self.w.mem.at(addr).registered = Some(mr.rkey);
        }
        Ok(Buffer { addr, len })
    }

    fn free(&mut self, buffer: Buffer) {
        self.w.mem.free(buffer.addr, "freed by the engine");
    }

    fn copy_in(&mut self, to: &Buffer, bytes: &[u8]) {
        let who = self.w.who(self.node);
        assert!(self.w.mem.at(to.addr).library, "the engine writes to the application's memory");
        self.w.mem.write(who, false, to.addr, bytes, "copy in");
    }

    unsafe fn bytes<'a>(&self, of: &Buffer) -> &'a [u8] {
        self.w.mem.read(self.w.who(self.node), false, of.addr, of.len, "bytes")
    }

    unsafe fn deliver_left(&mut self, dst: u64, at: u64, len: usize) -> Result<(), Status> {
        // SAFETY: of a message that `hear` has, and by this function's contract.
        unsafe { self.deliver(dst, std::slice::from_raw_parts(at as *const u8, len)) }
    }

    unsafe fn deliver(&mut self, dst: u64, content: &[u8]) -> Result<(), Status> {
        if self.w.fate.fails(self.node, Fault::Deliver) {
            return Err(injected("memory"));
        }
        self.w.nodes[self.node].deliveries.push((dst, content.to_vec()));
        Ok(())
    }

    fn run(&mut self, work: Work) {
        let node = &mut self.w.nodes[self.node];
        node.recvs_ended += usize::from(matches!(work, Work::RecvDone { .. }));
        node.work.push_back(work);
    }
}
