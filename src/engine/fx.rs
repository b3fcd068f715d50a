//! What the engine acts on, and what it leaves to be done outside of it. The manager implements it over
//! adapters, the simulation over virtual time.

use std::sync::Arc;

use super::Due;
use super::channel::ChanId;
use super::front::message::{Active, ActiveFn, EndCallback, MessageEnd};
use super::layout::Spot;
use crate::api::*;
use crate::fabric::keys::Keys;
use crate::fabric::{Access, HEAD_ROOM, Mem, Mr, PostError, Remote, SHORT_HEAD};
use crate::name::Name;
use crate::status::Status;
use crate::trials::Trial;

/// Memory of the library, given and taken back through `Fx`.
#[derive(Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Address.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
}

/// What becomes of content that may be copied before a peer reads it.
#[derive(Debug, Default)]
pub struct Stage {
    /// It is copied there; nothing: it stays where it is.
    pub buffer: Option<Buffer>,
    /// Its time is taken: [`Fx::moved`] is to be told when it has gone.
    pub trial: Option<Trial>,
}

/// A tensor that the application gives.
pub struct Offer<'a> {
    /// The tensor.
    pub tensor: Tensor,
    /// A copy of its content, made before the engine was held; empty: none. It may go into a message,
    /// which is built where nobody may wait for a page of the application's memory.
    pub content: &'a [u8],
    /// Ends the send.
    pub done: Option<OnSend>,
}

impl Offer<'_> {
    /// Takes the tensor out, which is long: mostly it is only looked at.
    #[inline]
    pub fn take_tensor(&mut self) -> Tensor {
        let Tensor { meta, addr, device } = &mut self.tensor;
        Tensor { meta: std::mem::take(meta), addr: *addr, device: *device }
    }
}

/// Memory opened to one channel for one transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Keys of the regions that it lies in.
    pub keys: Keys<Mr>,
    /// Whose registration it is.
    pub origin: Origin,
}

/// What closing a window does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nothing: the application registered the memory.
    Registered,
    /// The region was made for this transfer, and is closed.
    Transfer,
    /// The registration is kept for the next transfer of this memory.
    Cached(Cached),
}

/// A registration that is kept: its number, the provider's, and where it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cached {
    /// No other has it, ever.
    pub id: u64,
    /// `ProviderKind as usize`.
    pub kind: usize,
    /// Address of its first byte.
    pub addr: u64,
}

/// Why memory could not be opened.
#[derive(Debug)]
pub enum MapError {
    /// Not registered, and cheaper to copy than to register.
    NeedProxy,
    /// It cannot be opened.
    Failed(Status),
}

/// What the engine can do to the world. The manager and the simulation implement it.
pub trait Fx {
    /// Monotonic time in nanoseconds.
    fn now(&self) -> u64;
    /// The time when somebody last asked for it: some turns ago at most. Costs nothing.
    #[inline]
    fn lately(&self) -> u64 {
        self.now()
    }
    /// Sends a message on a channel; see `Adapter::send`.
    fn send(&mut self, ch: ChanId, parts: &[&[u8]]) -> Result<(), PostError>;
    /// The same; see `Adapter::send_short`.
    #[inline]
    fn send_short(
        &mut self,
        ch: ChanId,
        head: &[u8; SHORT_HEAD],
        content: &[u8],
    ) -> Result<(), PostError> {
        self.send(ch, &[head, content])
    }
    /// The same; see `Adapter::send_head`.
    #[inline]
    fn send_head(
        &mut self,
        ch: ChanId,
        head: &[u8; HEAD_ROOM],
        len: usize,
        content: &[u8],
    ) -> Result<(), PostError> {
        self.send(ch, &[&head[..len], content])
    }
    /// See `Adapter::write`.
    fn write(
        &mut self,
        ch: ChanId,
        wr: u64,
        local: Mem,
        remote: Remote,
        imm: Option<u32>,
    ) -> Result<(), PostError>;
    /// See `Adapter::write_copied`.
    fn write_copied(
        &mut self,
        ch: ChanId,
        wr: u64,
        content: &[u8],
        remote: Remote,
        imm: Option<u32>,
    ) -> Result<(), PostError> {
        let _ = (ch, wr, content, remote, imm);
        Err(PostError::QueueFull)
    }
    /// See `Adapter::read`.
    fn read(&mut self, ch: ChanId, wr: u64, local: Mem, remote: Remote) -> Result<(), PostError>;
    /// Whether this memory lies in the pool of the library.
    fn pooled(&self, addr: u64, len: u64) -> bool {
        let _ = (addr, len);
        false
    }
    /// See `Adapter::is_half_free`.
    fn is_half_free(&mut self, ch: ChanId) -> bool {
        let _ = ch;
        true
    }
    /// Whether this memory is registered for as long as it is there.
    fn registered(&self, ch: ChanId, addr: u64, len: u64) -> bool {
        let _ = (ch, addr, len);
        false
    }
    /// Opens memory for operations on this channel, by either end as `access` says.
    fn open(&mut self, ch: ChanId, addr: u64, len: u64, access: Access)
    -> Result<Window, MapError>;
    /// Opens memory for as long as it is wanted, which a copy would not do for: it is registered if it is not.
    fn pin(&mut self, ch: ChanId, addr: u64, len: u64, access: Access) -> Result<Window, Status> {
        match self.open(ch, addr, len, access) {
            Ok(window) => Ok(window),
            Err(MapError::Failed(status)) => Err(status),
            Err(MapError::NeedProxy) => {
                let text = text!("{len} bytes at {addr:#x} are not registered");
                Err(Status::new(crate::status::Code::ResourceExhausted, text))
            }
        }
    }
    /// Opens memory of a device, if it is registered and the channel's provider reaches it there.
    fn open_device(&mut self, ch: ChanId, addr: u64, len: u64, device: u32) -> Option<Window>;
    /// Closes it; afterwards no peer touches it through this window.
    fn close(&mut self, ch: ChanId, window: Window);
    /// A channel is about to end: the peer is to find that out before it finds memory closed.
    fn hang_up(&mut self, ch: ChanId) {
        let _ = ch;
    }
    /// Ends a channel; afterwards nothing is touched on its behalf and no event of it comes.
    fn end_channel(&mut self, ch: ChanId);
    /// A number that changes when the channel moves data in either direction, or its peer shows that it drives; see
    /// `Adapter::sign_of_life`.
    fn sign_of_life(&self, ch: ChanId) -> u64;
    /// Whether memory that was posted on the channel may still be read; see `Adapter::reads_sources`.
    fn reads_sources(&self, ch: ChanId) -> bool {
        let _ = ch;
        true
    }
    /// Whether the channel's provider finds that the peer's host does not answer; see
    /// `Adapter::is_unreachable`.
    fn is_unreachable(&self, ch: ChanId) -> bool {
        let _ = ch;
        false
    }
    /// Whether somebody wants to know more of each transfer than its callback needs.
    fn tracing(&self) -> bool {
        false
    }
    /// A connection to this peer is wanted; `Engine::channel_new` or `connect_failed` follows.
    fn connect(&mut self, peer: u32, name: &str);
    /// One more connection to this peer is wanted, which is to be a rail of this channel: `Engine::rail_new` follows, or nothing.
    fn connect_rail(&mut self, peer: u32, name: &str, main: ChanId) {
        let _ = (peer, name, main);
    }
    /// Keys of the same region for a further device of the channel's provider; see `Adapter::on_device`.
    fn on_device(&self, ch: ChanId, mr: Mr, device: u8) -> Option<Mr> {
        let _ = (ch, mr, device);
        None
    }
    /// Memory of the library.
    fn alloc(&mut self, len: u64) -> Result<Buffer, Status>;
    /// Takes it back.
    fn free(&mut self, buffer: Buffer);
    /// Memory of the library for content that is copied there to be read by a peer once, if there is some to spare and that
    /// pays; perhaps more than was asked for. `alone`: nothing else is on its way to that peer.
    /// `here`: the call that is in progress makes the copy, whatever its length.
    fn stage(&mut self, len: u64, alone: bool, here: bool) -> Stage {
        let _ = (alone, here);
        Stage { buffer: self.alloc(len).ok(), trial: None }
    }
    /// What `stage` was asked for has gone, copied or not, and the peer has it.
    fn moved(&mut self, trial: Trial, len: u64) {
        let _ = (trial, len);
    }
    /// Takes it back.
    fn unstage(&mut self, buffer: Buffer) {
        self.free(buffer);
    }
    /// Copies bytes into memory of the library, as far as there is room.
    fn copy_in(&mut self, to: &Buffer, bytes: &[u8]);
    /// What memory of the library holds.
    ///
    /// # Safety
    /// It stays unchanged, and is not freed, while the slice lives.
    unsafe fn bytes<'a>(&self, of: &Buffer) -> &'a [u8];
    /// Puts content into memory of the application: without the engine being held, since that memory
    /// may take long to come, and before work runs that is queued after this call.
    ///
    /// # Safety
    /// The destination is valid for the content's length until such work runs.
    unsafe fn deliver(&mut self, dst: u64, content: &[u8]) -> Result<(), Status>;
    /// The same of content that lies there, in a message that an adapter has left where it came ([`Left`](crate::fabric::Left)) and that
    /// is being heard.
    ///
    /// # Safety
    /// As for [`deliver`](Self::deliver); so many bytes lie there, of that message.
    unsafe fn deliver_left(&mut self, dst: u64, at: u64, len: usize) -> Result<(), Status>;
    /// The same of a part of what an operation receives, which ends later: by another thread, perhaps, which does not wait for
    /// whoever puts this in its place. Until it is there that counts as a copy that runs.
    ///
    /// # Safety
    /// The destination is valid for the content's length until the operation's end is told.
    unsafe fn deliver_part(&mut self, dst: u64, content: &[u8]) -> Result<(), Status> {
        // SAFETY: by this function's contract.
        unsafe { self.deliver(dst, content) }
    }
    /// Whether a copy that runs may touch this memory: then work that gives it back waits for that, once it is queued.
    fn copies_touch(&self, memory: (u64, u64)) -> bool {
        let _ = memory;
        false
    }
    /// Whether `run` finds room for so many more; called before an operation is accepted.
    fn fits(&mut self, work: usize) -> bool {
        let _ = work;
        true
    }
    /// A peer's name, for what a callback is told that may run `inline`: shared, or one that a callback was told before.
    fn name(&mut self, name: &Name, inline: bool) -> Name {
        let _ = inline;
        name.clone()
    }
    /// Queues work that runs without the engine being held.
    fn run(&mut self, work: Work);
    /// The same of the end of a send or of a receive that gives this memory back, and may run `inline`; `make` is called once, and
    /// makes it where it will lie.
    #[inline]
    fn run_end(&mut self, memory: (u64, u64), inline: bool, make: &mut impl FnMut() -> Work) {
        let _ = (memory, inline);
        self.run(make());
    }
    /// The same of [`Work::Active`] that has just come with this header and content.
    fn hand(
        &mut self,
        handler: &ActiveFn,
        end: MessageEnd,
        user: &[u8],
        content: &[u8],
    ) -> Result<(), Status> {
        let (handler, active) = (handler.clone(), Active::came(end, user, content, None)?);
        self.run(Work::Active { handler, active });
        Ok(())
    }
    /// The same of a header and of content at these addresses, of these lengths, in a message that an adapter has left where it came
    /// and that is being heard.
    ///
    /// # Safety
    /// So many bytes of that message lie there.
    unsafe fn hand_left(
        &mut self,
        handler: &ActiveFn,
        end: MessageEnd,
        header: (u64, usize),
        place: (u64, usize),
    ) -> Result<(), Status> {
        let _ = (handler, end, header, place);
        Err(Status::internal("a message that was not left anywhere"))
    }
    /// The same of [`Work::MessageEnded`], of which there is much; it may come before other work that is queued.
    fn ended(&mut self, op: u32, memory: (u64, u64)) {
        self.run(Work::MessageEnded { op, memory });
    }
}

/// What is done outside of the engine, in order. Each is run exactly once.
pub enum Work {
    /// Ends a receive.
    RecvDone {
        /// The request's public id.
        request: u64,
        /// Key and step, if [`Fx::tracing`].
        of: Option<(Box<[u8]>, i64)>,
        /// The callback.
        done: Due<OnRecv>,
        /// The result.
        result: Result<Tensor, Status>,
        /// How it went.
        info: TransferInfo,
        /// What is given back after the callback, unless `Engine::returned` keeps it.
        after: Held,
        /// The application releases the request itself.
        keep: bool,
        /// Memory of the host that is the application's again from then on: address and length.
        memory: (u64, u64),
    },
    /// Ends a send.
    SendDone {
        /// The callback.
        done: Due<OnSend>,
        /// The result.
        result: Result<(), Status>,
        /// How it went.
        info: TransferInfo,
        /// Key and step, if [`Fx::tracing`] and it had them.
        of: Option<(Box<[u8]>, i64)>,
        /// The content was copied within the call that started this: may run before it returns.
        inline: bool,
        /// As in `RecvDone`.
        memory: (u64, u64),
    },
    /// Asks for memory; `Engine::allocated` follows.
    Alloc {
        /// The request's index.
        request: u32,
        /// The callback.
        alloc: AllocFn,
        /// What the memory is for.
        meta: Meta,
        /// Runs inside the call that started the request.
        inline: bool,
    },
    /// Asks the runtime's own rendezvous.
    Source {
        /// The callback.
        source: SourceFn,
        /// The response's public id.
        response: u64,
        /// Who asks.
        peer: Name,
        /// Key.
        key: Box<[u8]>,
        /// Step.
        step: i64,
    },
    /// Tells who is to be told that a message operation has ended.
    MessageDone {
        /// How it ended.
        end: MessageEnd,
        /// Who is told.
        done: EndCallback,
        /// As in `RecvDone`.
        memory: (u64, u64),
    },
    /// A message operation whose end is asked for has ended; `Engine::message_ended` follows.
    MessageEnded {
        /// The operation.
        op: u32,
        /// As in `RecvDone`.
        memory: (u64, u64),
    },
    /// Gives an active message to its handler.
    Active {
        /// The handler.
        handler: ActiveFn,
        /// The message.
        active: Active,
    },
    /// Tells the application something.
    Call(Box<dyn FnOnce() + Send>),
    /// Tells it of peers; see `Engine::next_peer_event`.
    PeerEvents,
    /// Tells it of a buffer; see `Engine::next_buffer_event`.
    BufferEvents {
        /// The buffer.
        buffer: u32,
        /// As in `RecvDone`.
        memory: (u64, u64),
    },
    /// Copies within the host; `Engine::copied` follows.
    HostCopy {
        /// Token for `copied`.
        token: u64,
        /// Destination.
        dst: u64,
        /// Source.
        src: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The same, where the memory of either side lies in pieces.
    Spread {
        /// Token for `copied`.
        token: u64,
        /// Destination.
        dst: Spot,
        /// Source.
        src: Spot,
        /// Length in bytes.
        len: u64,
    },
    /// Computes the checksum of host memory; `Engine::hashed` follows.
    HostHash {
        /// Token for `hashed`.
        token: u64,
        /// First byte.
        addr: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Copies from or to a device; `Engine::copied` follows.
    DeviceCopy {
        /// Token for `copied`.
        token: u64,
        /// The device.
        ops: Arc<dyn DeviceOps>,
        /// Towards the host.
        to_host: bool,
        /// Host address.
        host: u64,
        /// Device address.
        device: u64,
        /// Length in bytes.
        len: u64,
    },
}

impl Work {
    /// Which memory of an application it reads, if it is a job that touches no other of one: it stages content, or computes a
    /// checksum.
    pub fn reads(&self) -> Option<(u64, u64)> {
        match *self {
            Work::HostCopy { token, src, len, .. }
                if matches!(token & super::WR_KIND, super::WR_RESPONSE | super::WR_MESSAGE) =>
            {
                Some((src, len))
            }
            Work::HostHash { addr, len, .. } => Some((addr, len)),
            _ => None,
        }
    }
}

/// What a finished receive still holds.
#[derive(Default)]
pub enum Held {
    /// Nothing.
    #[default]
    Nothing,
    /// Memory of the library.
    Buffer(Buffer),
    /// A local sender's tensor, by reference.
    Source(Option<Due<OnSend>>, TransferInfo),
}
