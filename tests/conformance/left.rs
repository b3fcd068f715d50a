//! An adapter that leaves its copies to be made outside, as a manager has it, behind the face of one
//! that does not: the whole suite runs over it too.

use std::os::fd::{OwnedFd, RawFd};

use rdma_transport::fabric::moves::MOVE_MAX;
use rdma_transport::fabric::{
    Access, Adapter, Caps, EpId, Event, Mem, Mr, PoolSegment, PostError, Remote,
};
use rdma_transport::local_fd::Local;
use rdma_transport::status::Status;

/// An adapter that makes the copies which the one in it leaves.
pub struct Left(Box<dyn Adapter>);

impl Left {
    /// Asks for it.
    pub fn new(mut adapter: Box<dyn Adapter>) -> Left {
        adapter.leave_moves();
        Left(adapter)
    }
}

impl Adapter for Left {
    fn caps(&self) -> &Caps {
        self.0.caps()
    }
    unsafe fn register(&mut self, addr: u64, len: u64, access: Access) -> Result<Mr, Status> {
        // SAFETY: the caller's promise.
        unsafe { self.0.register(addr, len, access) }
    }
    fn deregister(&mut self, mr: Mr) -> Result<(), Status> {
        self.0.deregister(mr)
    }
    fn add_pool(&mut self, segment: PoolSegment) -> Result<(), Status> {
        self.0.add_pool(segment)
    }
    fn create(&mut self, peer: &str) -> Result<EpId, Status> {
        self.0.create(peer)
    }
    fn address(&self, ep: EpId) -> Result<Vec<u8>, Status> {
        self.0.address(ep)
    }
    fn connect(
        &mut self,
        ep: EpId,
        remote: &[u8],
        active: bool,
        sock: Option<Local<OwnedFd>>,
    ) -> Result<(), Status> {
        self.0.connect(ep, remote, active, sock)
    }
    fn send(&mut self, ep: EpId, parts: &[&[u8]]) -> Result<(), PostError> {
        self.0.send(ep, parts)
    }
    fn write(
        &mut self,
        ep: EpId,
        wr: u64,
        local: Mem,
        remote: Remote,
        imm: Option<u32>,
    ) -> Result<(), PostError> {
        self.0.write(ep, wr, local, remote, imm)
    }
    fn write_copied(
        &mut self,
        ep: EpId,
        wr: u64,
        content: &[u8],
        remote: Remote,
        imm: Option<u32>,
    ) -> Result<(), PostError> {
        self.0.write_copied(ep, wr, content, remote, imm)
    }
    fn read(&mut self, ep: EpId, wr: u64, local: Mem, remote: Remote) -> Result<(), PostError> {
        self.0.read(ep, wr, local, remote)
    }
    fn flush(&mut self) -> bool {
        self.0.flush()
    }
    fn poll(&mut self, events: &mut Vec<Event>) -> bool {
        self.0.poll(events);
        let mut left = MOVE_MAX;
        while left > 0
            && let Some(one) = self.0.take_move(events)
        {
            let done = one.run();
            left = left.saturating_sub(done.result.as_ref().map_or(0, |&n| n).max(4096));
            self.0.moved(done, events);
        }
        self.0.flush();
        false
    }
    fn arm(&mut self) -> bool {
        self.0.arm()
    }
    fn fd(&self) -> Option<RawFd> {
        self.0.fd()
    }
    fn progress_mark(&self, ep: EpId) -> u64 {
        self.0.progress_mark(ep)
    }
    fn sign_of_life(&self, ep: EpId) -> u64 {
        self.0.sign_of_life(ep)
    }
    fn has_delivered(&mut self) -> bool {
        self.0.has_delivered()
    }
    fn hang_up(&mut self, ep: EpId) {
        self.0.hang_up(ep);
    }

    fn destroy(&mut self, ep: EpId) {
        self.0.destroy(ep);
    }
}
