//! The provider contract: a subset of verbs.
//!
//! A provider knows endpoints, memory keys, SEND, WRITE, WRITE WITH IMMEDIATE and READ. It knows no
//! tensor and no message type. An [`Adapter`] is one opened device of a provider; it is driven by
//! one thread at a time (`&mut self`) and never blocks in any method.
//!
//! What every provider holds, and the conformance suite checks:
//!
//! - operations of one endpoint take effect at the target in the order posted (SEND, WRITE, WRITE
//!   WITH IMMEDIATE; a READ may be overtaken by nothing posted after it that writes to its source);
//! - `Event::Written` comes after all bytes of that write and of all earlier ones are in place;
//! - each accepted WRITE and READ is reported by one `Event::Done`, at the latest before the
//!   endpoint's `Event::Down`, which ends as well what there was no memory to report; after it the
//!   local memory is no longer touched;
//! - rkey, bounds (overflow-safe) and access are checked at each operation, against the region as
//!   it is then: a bad one never touches memory, it ends with a `PermissionDenied` `Done`, and the
//!   endpoint may go down with it (it does on ibverbs);
//! - after `deregister` and after `destroy` return, nothing of that region or endpoint is touched,
//!   but by moves that run ([`moves::touched`]), where the driver has asked to make them itself.

mod any;
#[cfg(feature = "ibverbs")]
pub mod ibverbs;
pub mod keys;
pub mod loopback;
pub mod moves;
pub mod regions;
pub mod shm;
pub mod tcp;
mod types;

use std::os::fd::{OwnedFd, RawFd};

pub use self::any::AnyAdapter;
use self::moves::{KeepAlive, Move, Moved};
pub use self::types::*;
use crate::config::Config;
use crate::local_fd::Local;
use crate::status::{Code, Status};

/// One opened device of one provider, or several that carry one channel together. The head of this file says what it promises.
pub trait Adapter: Send {
    /// What it can do.
    fn caps(&self) -> &Caps;

    /// Opens a region to this adapter and, by `access`, to its peers.
    ///
    /// # Safety
    /// The memory stays valid until `deregister` returns.
    unsafe fn register(&mut self, addr: u64, len: u64, access: Access) -> Result<Mr, Status>;

    /// Longest region that `register` takes.
    fn max_region(&self) -> u64 {
        u64::MAX
    }

    /// The same for device memory, exported as the dmabuf `fd`, in which it begins at `offset`.
    /// Operations name it by the addresses from `iova` on; the CPU never touches it.
    fn register_dmabuf(
        &mut self,
        fd: RawFd,
        offset: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Mr, Status> {
        let _ = (fd, offset, len, iova, access);
        let text = text!("provider {} cannot register dmabufs", self.caps().provider.name());
        Err(Status::new(Code::Unimplemented, text))
    }

    /// Closes a region. On return no peer reads or writes it through this key any more.
    fn deregister(&mut self, mr: Mr) -> Result<(), Status>;

    /// Says that this region's key is given to this endpoint's peer, and to nobody else.
    fn grant(&mut self, ep: EpId, mr: Mr) {
        let _ = (ep, mr);
    }

    /// Makes a pool segment known (shm peers may map it); one that is known already is left alone. One
    /// at the address of another takes its place, which holds nothing any more. Segments live as long
    /// as the adapter, or until another takes their place.
    fn add_pool(&mut self, segment: PoolSegment) -> Result<(), Status> {
        let _ = segment;
        Ok(())
    }

    /// Makes an endpoint. `peer` is used in messages only.
    fn create(&mut self, peer: &str) -> Result<EpId, Status>;

    /// The same for a rail: over another of its devices than the other endpoints to this peer, where it has several.
    /// `remote`: the address that it will be connected to, if that is known; untrusted bytes.
    fn create_rail(&mut self, peer: &str, remote: Option<&[u8]>) -> Result<EpId, Status> {
        let _ = remote;
        self.create(peer)
    }

    /// The numbers of the devices at both ends of a connected endpoint, here and at the peer; 0 is the first of each.
    fn devices(&self, ep: EpId) -> (u8, u8) {
        let _ = ep;
        (0, 0)
    }

    /// Keys of the same region for a further device of this adapter; `None`: it has none, or could not register it there.
    fn on_device(&self, mr: Mr, device: u8) -> Option<Mr> {
        let _ = (mr, device);
        None
    }

    /// What the peer's endpoint needs in `connect`; at most 1 KiB.
    fn address(&self, ep: EpId) -> Result<Vec<u8>, Status>;

    /// Connects to the endpoint whose `address` is given; untrusted bytes. Exactly one of the two
    /// ends is `active`. `Event::Connected` or `Event::Down` follows. `sock` is a connected stream
    /// socket to the peer on which nothing is under way: tcp takes it for its data, the others drop
    /// it (they are given `None`).
    fn connect(
        &mut self,
        ep: EpId,
        remote: &[u8],
        active: bool,
        sock: Option<Local<OwnedFd>>,
    ) -> Result<(), Status>;

    /// Sends a message of `parts`, copied before it returns.
    fn send(&mut self, ep: EpId, parts: &[&[u8]]) -> Result<(), PostError>;

    /// The same of a message with a head of this length, as most have.
    #[inline]
    fn send_short(
        &mut self,
        ep: EpId,
        head: &[u8; SHORT_HEAD],
        content: &[u8],
    ) -> Result<(), PostError> {
        self.send(ep, &[head, content])
    }

    /// The same of a head of `len` bytes; what is behind it in its room is not sent.
    #[inline]
    fn send_head(
        &mut self,
        ep: EpId,
        head: &[u8; HEAD_ROOM],
        len: usize,
        content: &[u8],
    ) -> Result<(), PostError> {
        self.send(ep, &[&head[..len], content])
    }

    /// Whether half of the memory that SENDs to this endpoint go through is free.
    fn is_half_free(&mut self, ep: EpId) -> bool {
        let _ = ep;
        false
    }

    /// Writes `local` to `remote`; with `imm` the peer gets `Event::Written`. `local` may be empty.
    fn write(
        &mut self,
        ep: EpId,
        wr: u64,
        local: Mem,
        remote: Remote,
        imm: Option<u32>,
    ) -> Result<(), PostError>;

    /// The same of content that is copied before this returns, where that is a good way: memory of an application that
    /// was copied before anybody was held up by it. `QueueFull` if it is not, or not now: [`write`](Self::write) it then.
    fn write_copied(
        &mut self,
        ep: EpId,
        wr: u64,
        content: &[u8],
        remote: Remote,
        imm: Option<u32>,
    ) -> Result<(), PostError> {
        let _ = (ep, wr, content, remote, imm);
        Err(PostError::QueueFull)
    }

    /// Reads `remote` into `local`.
    fn read(&mut self, ep: EpId, wr: u64, local: Mem, remote: Remote) -> Result<(), PostError>;

    /// Rings the doorbell for what was posted; called after each burst of posts. Whether there are copies to be made.
    fn flush(&mut self) -> bool {
        self.has_moves()
    }

    /// The same after the posts of one call of the application. A provider whose doorbells are dear may wait for what is
    /// said to follow; [`poll`](Self::poll) and [`arm`](Self::arm) wait for nothing.
    fn flush_soon(&mut self, follows: Follows) -> bool {
        let _ = follows;
        self.flush()
    }

    /// What `flush_soon` has left for later goes out now. Whether there are copies to be made.
    fn push(&mut self) -> bool {
        self.has_moves()
    }

    /// Moves data and reports events, appended to `events`; whether there are copies to be made, as
    /// [`has_moves`](Self::has_moves) says. Bounded work per call.
    fn poll(&mut self, events: &mut Vec<Event>) -> bool;

    /// A poll for what there mostly is: nothing, or a message. What else there may be is left to `poll`.
    fn poll_one(&mut self) -> One {
        One::Other
    }

    /// The next message behind what `poll_one` has found, if one is there already; the bytes of both are good until the next poll.
    fn poll_next(&mut self) -> Option<(EpId, View)> {
        None
    }

    /// Takes the WRITE that `poll_one` has found, with its content, which the caller puts in its place without any lock, and then calls
    /// [`wrote`](Self::wrote); until that nothing else is taken in at this endpoint. `None`: `poll` has to be called.
    fn take_write(&mut self, ep: EpId, room: &mut ShortRoom) -> Option<ShortWrite> {
        let _ = (ep, room);
        None
    }

    /// The content of the WRITE that was taken is in its place. Its immediate, if it has one.
    fn wrote(&mut self, ep: EpId) -> Option<u32> {
        let _ = ep;
        None
    }

    /// Takes the end of a WRITE that `poll_one` has found and that went well: its number. `None`: there is no more, or `poll` has to be
    /// called.
    fn take_done(&mut self, ep: EpId) -> Option<u64> {
        let _ = ep;
        None
    }

    /// Keeps bytes of a message that was received, out of a view that is good, as they are for as long as what is returned
    /// lives, also beyond the next `poll`. `None`: the bytes are not of such a view, or have to be copied.
    fn keep(&mut self, ep: EpId, bytes: &[u8]) -> Option<KeepAlive> {
        let _ = (ep, bytes);
        None
    }

    /// Keeps where they are, also beyond the next `poll`, the bytes of messages that views have [left](View::left) elsewhere, until
    /// what is returned goes.
    fn keep_left(&mut self, ep: EpId) -> Option<KeepAlive> {
        let _ = ep;
        None
    }

    /// What was kept so has gone: the peers hear that there is room, which they would else from the next `poll` on. No view is good
    /// after this.
    fn let_go(&mut self) {}

    /// From now on neither `poll` nor a post touches content: the caller makes the copies that
    /// [`take_move`](Self::take_move) gives, without any lock. Where this does nothing, as on devices
    /// that move by themselves, there are none.
    fn leave_moves(&mut self) {}

    /// Whether there is a copy to be made. They come of polls and flushes.
    fn has_moves(&self) -> bool {
        false
    }

    /// The next copy to be made now, if there is one. Events may come of looking for it.
    fn take_move(&mut self, events: &mut Vec<Event>) -> Option<Move> {
        let _ = events;
        None
    }

    /// The only copy that waits, if it touches no memory of an application but this: who posted it may make it at once, and
    /// nobody has to be woken for it.
    fn take_own_move(&mut self, own: std::ops::Range<u64>) -> Option<Move> {
        let _ = own;
        None
    }

    /// A copy has been made, or failed.
    fn moved(&mut self, done: Moved, events: &mut Vec<Event>) {
        let _ = (done, events);
    }

    /// Prepares for sleep: from now on `fd` becomes readable when there is something to poll.
    /// Returns false if there already is: do not sleep. `poll` disarms.
    fn arm(&mut self) -> bool;

    /// Descriptor to wait on after `arm`.
    fn fd(&self) -> Option<RawFd>;

    /// A number that changes whenever the endpoint moves data in either direction, so that a long
    /// transfer is not taken for silence.
    fn progress_mark(&self, ep: EpId) -> u64 {
        let _ = ep;
        0
    }

    /// The same, which changes also when the peer shows in another way than by its messages that it polls: they may lie behind content
    /// that waits for memory.
    fn sign_of_life(&self, ep: EpId) -> u64 {
        self.progress_mark(ep)
    }

    /// Whether memory that a WRITE was posted for may still be read: false where all of it lies in buffers of the network,
    /// though the peer may not have it. True is always right.
    fn reads_sources(&self, ep: EpId) -> bool {
        let _ = ep;
        true
    }

    /// Whether nothing has come in its last polls, and nothing waits to go out. Said by adapters whose polls are system calls:
    /// those are then left out for some microseconds at a time while something comes on another adapter.
    fn is_quiet(&self) -> bool {
        false
    }

    /// Whether the end of a peer that is gone is yet to be reported behind what it posted before, which waits for a copy or
    /// for the next poll. Adapters whose polls take all that there is need not answer.
    fn has_rest(&self, ep: EpId) -> bool {
        let _ = ep;
        false
    }

    /// Whether what was sent to the peer's host has found no acknowledgement for seconds: the host is
    /// gone, or the way to it. A process that merely stands still does not look so. Adapters that
    /// report such an end by themselves in time need not answer.
    fn is_unreachable(&self, ep: EpId) -> bool {
        let _ = ep;
        false
    }

    /// What was decided when it was opened (device, port, address), for the log.
    fn notes(&self) -> &[String] {
        &[]
    }

    /// Whether all that was posted is where `destroy` does not take it back: at the peer, or on its way without
    /// this adapter. Asks for acknowledgements that are lacking; `poll` takes them.
    fn has_delivered(&mut self) -> bool {
        true
    }

    /// Whether of all that `has_delivered` has found waiting nothing has moved for so long. Adapters that never wait for who takes
    /// nothing need not answer.
    fn has_stalled(&self, time: std::time::Duration) -> bool {
        let _ = time;
        false
    }

    /// The endpoint is about to be destroyed: what its peer finds closed from now on is closed for that
    /// reason. Called before regions that the peer uses are deregistered.
    fn hang_up(&mut self, ep: EpId) {
        let _ = ep;
    }

    /// Ends an endpoint. No event of it follows. On return no local memory is touched on its behalf.
    fn destroy(&mut self, ep: EpId);
}

/// Opens an adapter of this provider.
pub fn open(kind: ProviderKind, config: &Config) -> Result<AnyAdapter, Status> {
    let other: Box<dyn Adapter> = match kind {
        ProviderKind::Shm => return Ok(AnyAdapter::Shm(Box::new(shm::ShmAdapter::open(config)?))),
        ProviderKind::Loopback => Box::new(loopback::LoopbackAdapter::open(config)?),
        ProviderKind::Tcp => Box::new(tcp::TcpAdapter::open(config)?),
        #[cfg(feature = "ibverbs")]
        ProviderKind::Ibverbs => ibverbs::open_all(config)?,
        #[cfg(not(feature = "ibverbs"))]
        ProviderKind::Ibverbs => {
            let text = text!("provider {} is not in this build", kind.name());
            return Err(Status::new(Code::Unimplemented, text));
        }
    };
    Ok(AnyAdapter::Other(other))
}

/// Whether this provider can be used here, and why not.
pub fn probe(kind: ProviderKind) -> Result<(), Status> {
    match kind {
        ProviderKind::Loopback => loopback::probe().map_err(unavailable),
        ProviderKind::Tcp => tcp::probe(),
        ProviderKind::Shm => shm::probe(),
        #[cfg(feature = "ibverbs")]
        ProviderKind::Ibverbs => ibverbs::probe().map_err(unavailable),
        #[cfg(not(feature = "ibverbs"))]
        ProviderKind::Ibverbs => Err(unavailable("not in this build".to_owned())),
    }
}

fn unavailable(why: String) -> Status {
    Status::new(Code::Unavailable, why)
}
