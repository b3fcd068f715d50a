//! The words of the contract: providers, keys, capabilities, events.

use std::cell::Cell;
use std::ffi::CStr;
use std::os::fd::RawFd;
use std::ptr::NonNull;

use bitflags::bitflags;

use crate::few;
use crate::status::Status;

/// A provider, in the order in which `auto` tries them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum ProviderKind {
    /// Same process.
    Loopback = 0,
    /// Same host, shared memory.
    Shm = 1,
    /// RDMA devices through libibverbs.
    Ibverbs = 2,
    /// Any host, sockets.
    Tcp = 3,
}

impl ProviderKind {
    /// All of them, in order of preference.
    pub const ALL: [ProviderKind; 4] =
        [ProviderKind::Loopback, ProviderKind::Shm, ProviderKind::Ibverbs, ProviderKind::Tcp];

    /// The name in options, environment and reports.
    pub fn name(self) -> &'static str {
        match self {
            ProviderKind::Loopback => "loopback",
            ProviderKind::Shm => "shm",
            ProviderKind::Ibverbs => "ibverbs",
            ProviderKind::Tcp => "tcp",
        }
    }

    /// The same for C.
    pub fn c_name(self) -> &'static CStr {
        match self {
            ProviderKind::Loopback => c"loopback",
            ProviderKind::Shm => c"shm",
            ProviderKind::Ibverbs => c"ibverbs",
            ProviderKind::Tcp => c"tcp",
        }
    }

    /// The provider of this name.
    pub fn from_name(name: &str) -> Option<ProviderKind> {
        Self::ALL.into_iter().find(|p| p.name() == name)
    }

    /// The provider of this wire number.
    pub fn from_u8(n: u8) -> Option<ProviderKind> {
        Self::ALL.into_iter().find(|&p| p as u8 == n)
    }
}

/// An endpoint of one adapter. Never reused by that adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EpId(pub u32);

bitflags! {
    /// What a region allows. Local reading is always allowed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Access: u32 {
        /// The owner's own READ operations may write here.
        const LOCAL_WRITE = 1;
        /// Peers may READ.
        const REMOTE_READ = 2;
        /// Peers may WRITE.
        const REMOTE_WRITE = 4;
    }
}

/// Keys of a registered region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mr {
    /// For the owner's own operations; 0 where the provider needs none.
    pub lkey: u32,
    /// For peers. Drawn from a CSPRNG by software providers; never 0.
    pub rkey: u32,
}

/// Memory of this process that an operation reads or writes.
#[derive(Clone, Copy, Debug)]
pub struct Mem {
    addr: u64,
    len: u64,
    lkey: u32,
}

impl Mem {
    /// Names `len` bytes at `addr`, covered by `lkey` where the provider needs one.
    ///
    /// # Safety
    /// The memory stays valid (for reading as the source of a WRITE, for writing as the destination
    /// of a READ) until the operation's `Event::Done` or `Adapter::destroy` of its endpoint.
    pub unsafe fn new(addr: u64, len: u64, lkey: u32) -> Mem {
        Mem { addr, len, lkey }
    }
    /// Address of the first byte.
    pub fn addr(&self) -> u64 {
        self.addr
    }
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }
    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// The local key.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address in the peer's address space.
    pub addr: u64,
    /// The peer's key for it.
    pub rkey: u32,
}

/// What an adapter can do; constant for its life.
#[derive(Clone, Debug)]
pub struct Caps {
    /// Which provider.
    pub provider: ProviderKind,
    /// Largest SEND in bytes.
    pub max_send: usize,
    /// Up to here content is better inside a SEND than moved by WRITE or READ.
    pub eager_max: usize,
    /// Largest WRITE or READ in bytes.
    pub max_rdma: u64,
    /// READ is available.
    pub read: bool,
    /// Registration is a table entry, revocable at once even while a peer writes: regions may be
    /// opened per request. Operations need no `lkey` for local memory. A WRITE of no content that names a key (not 0) needs one that
    /// is good, so that it tells of what was closed; RDMA hardware does not look at it.
    pub windows: bool,
    /// SENDs plus WRITEs WITH IMMEDIATE that may be on their way to one endpoint which does not
    /// poll; the layer above keeps within it by credits.
    pub recv_depth: u32,
    /// Up to here the content of a message, and of a tensor that does not lie in the pool, is better inside a SEND, where that is
    /// beyond `eager_max`.
    pub plain_max: usize,
    /// The same of the content of a message that lies in no pool and is at hand in the call that sends it, while what SENDs go
    /// through is [half free](crate::fabric::Adapter::is_half_free).
    pub direct_max: usize,
    /// Up to here the content of a message that is too long for a SEND and does not lie in the pool is better copied there
    /// first, by its sender; 0: never.
    pub staged_max: u64,
}

/// What follows the posts of a call, as far as is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Follows {
    /// Perhaps nothing for long.
    #[default]
    Nothing,
    /// Perhaps more posts. Only the application drives, by its calls.
    Perhaps,
    /// Perhaps more posts, and a poll within a millisecond in any case: a thread drives that is awake.
    Poll,
}

/// Why a post was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PostError {
    /// No room now; post again after a poll. Nothing was sent.
    QueueFull,
    /// The endpoint is down or not connected, or the arguments are wrong.
    Failed(Status),
}

/// Bytes of a received SEND, inside the adapter's receive memory.
///
/// Valid until the adapter's next `poll`, `arm` or `destroy`; the holder processes or copies it before.
///
/// Two words, which are handed on in registers: that saved a sixth of the time of a message of 8 B in a stream.
#[derive(Debug)]
pub struct View {
    ptr: NonNull<u8>,
    /// And, as its highest bit, that no more than the head is there. Then behind that lies the address of all of it.
    len: Cell<usize>,
}

/// Bytes that a view has in any case.
pub const VIEW_HEAD: usize = 64;
/// See [`View::len`].
const IS_LEFT: usize = 1 << (usize::BITS - 1);

// SAFETY: a view is a pointer into memory owned by an adapter, which is itself Send; it is only
// used by the thread that drives that adapter.
unsafe impl Send for View {}

impl View {
    /// Wraps received bytes.
    ///
    /// # Safety
    /// `ptr..ptr+len` stays readable and unchanged until the adapter's next `poll`, `arm` or
    /// `destroy`, and the caller of `poll` drops the view before any of them.
    #[inline(always)]
    pub unsafe fn new(ptr: *const u8, len: usize) -> View {
        let ptr = NonNull::new(ptr as *mut u8).unwrap_or(NonNull::dangling());
        View { ptr, len: Cell::new(len) }
    }

    /// The same of bytes of which [`VIEW_HEAD`] are there; all of them lie at `source`, from where the others are copied once they
    /// are asked for, if they are.
    ///
    /// # Safety
    /// So long, `ptr..ptr+len` is nobody else's, with its first [`VIEW_HEAD`] bytes written, and `source` is readable for `len`
    /// bytes, which is more than those and a word.
    pub unsafe fn with_head(ptr: NonNull<u8>, len: usize, source: NonNull<u8>) -> View {
        // SAFETY: by this function's contract.
        unsafe { ptr.add(VIEW_HEAD).cast::<NonNull<u8>>().write_unaligned(source) };
        View { ptr, len: Cell::new(len | IS_LEFT) }
    }

    /// How many there are.
    #[allow(clippy::len_without_is_empty, reason = "no message is")]
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len.get() & !IS_LEFT
    }

    #[inline(always)]
    fn is_left(&self) -> bool {
        self.len.get() & IS_LEFT != 0
    }

    /// Where all of it lies.
    ///
    /// # Safety
    /// No more than its head is there.
    unsafe fn source(&self) -> NonNull<u8> {
        // SAFETY: by the contract of `with_head`.
        unsafe { self.ptr.add(VIEW_HEAD).cast::<NonNull<u8>>().read_unaligned() }
    }

    /// The bytes.
    #[inline(always)]
    pub fn bytes(&self) -> &[u8] {
        if self.is_left() {
            self.fill();
        }
        // SAFETY: by the contract of `new`, or that of `with_head`, and all are there.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len.get()) }
    }

    #[inline(never)]
    fn fill(&self) {
        let len = self.len();
        // SAFETY: the rest is not there; by the contract of `with_head`; nobody has a reference to more than the head before this.
        unsafe {
            let (from, to) = (self.source().add(VIEW_HEAD), self.ptr.add(VIEW_HEAD));
            few::copy(from.as_ptr(), to.as_ptr(), len - VIEW_HEAD);
        }
        self.len.set(len);
    }

    /// Where all of it lies, how long it is, and its head, if no more than that was copied from there yet.
    #[inline(always)]
    pub fn left(&self) -> Option<Left<'_>> {
        if !self.is_left() {
            return None;
        }
        // SAFETY: by the contract of `with_head`.
        let (head, source) =
            unsafe { (self.ptr.cast::<[u8; VIEW_HEAD]>().as_ref(), self.source()) };
        Some(Left { head, len: self.len(), at: source.addr().get() as u64 })
    }
}

/// A message of which no more than the head was copied. What lies behind it the peer may change until it is.
#[derive(Clone, Copy, Debug)]
pub struct Left<'a> {
    /// Its first bytes, which stay as they are.
    pub head: &'a [u8; VIEW_HEAD],
    /// How many it has.
    pub len: usize,
    /// Where all of them lie: as long as the view is good, and while what
    /// [`Adapter::keep_left`](super::Adapter::keep_left) gave is kept.
    pub at: u64,
}

/// What `Adapter::poll` reports.
#[derive(Debug)]
pub enum Event {
    /// The endpoint can be posted to.
    Connected(EpId),
    /// A SEND arrived.
    Message {
        /// At this endpoint.
        ep: EpId,
        /// Its bytes.
        bytes: View,
    },
    /// A WRITE WITH IMMEDIATE arrived and all its bytes are in place.
    Written {
        /// At this endpoint.
        ep: EpId,
        /// Its immediate.
        imm: u32,
    },
    /// A WRITE or READ posted here has ended.
    Done {
        /// At this endpoint.
        ep: EpId,
        /// The caller's tag of the operation.
        wr: u64,
        /// How it ended.
        result: Result<(), Status>,
    },
    /// The endpoint is dead. Last event of this endpoint; `destroy` is still due.
    Down {
        /// This endpoint.
        ep: EpId,
        /// Why.
        status: Status,
    },
}

/// A shared segment of the memory pool behind `rdma_mem_alloc`. Its file is sealed when it is offered to
/// peers: nobody but the pool, which has it mapped, can write to it.
#[derive(Clone, Copy, Debug)]
pub struct PoolSegment {
    /// Identifies the segment for the life of its manager; never used again.
    pub id: u32,
    /// The memfd behind it; owned by the pool, open as long as the segment lives. None: memory that no peer can map.
    pub fd: Option<RawFd>,
    /// Address here.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
}

/// What [`Adapter::poll_one`](super::Adapter::poll_one) found.
pub enum One {
    /// Nothing, and `poll` would find nothing.
    Nothing,
    /// A message at this endpoint; its bytes are good until the next poll.
    Message(EpId, View),
    /// A WRITE to this endpoint whose content came with it and is short:
    /// [`Adapter::take_write`](super::Adapter::take_write) takes it, or `poll` has to be called.
    Write(EpId),
    /// WRITEs of this endpoint have ended: [`Adapter::take_done`](super::Adapter::take_done) takes them, or `poll` has to be called.
    Done(EpId),
    /// `poll` has to be called.
    Other,
}

/// Room for short content on its way, on the stack of who puts it in its place.
pub type ShortRoom = [std::mem::MaybeUninit<u8>; 256];

/// A WRITE whose content is in such a room, and goes to its place now.
#[derive(Debug)]
pub struct ShortWrite {
    /// Its place.
    pub dst: u64,
    /// Bytes.
    pub len: usize,
}

/// Bytes of the heads of [`Adapter::send_short`](super::Adapter::send_short).
pub const SHORT_HEAD: usize = 16;
/// Room for the heads of [`Adapter::send_head`](super::Adapter::send_head).
pub const HEAD_ROOM: usize = 56;
