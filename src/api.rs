//! The types in which the application and the engine speak.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::fabric::ProviderKind;
use crate::name::Name;
use crate::status::{Reason, Status};
use crate::user::UserBytes;

/// Longest key in bytes.
pub const MAX_KEY_LEN: usize = 65536;
/// Most dimensions of a tensor.
pub const MAX_DIMS: usize = 254;
/// Longest name of a worker in bytes.
pub const MAX_NAME_LEN: usize = 255;
/// Without a peer timeout, a host that has vanished without a word is found after so long: about when the system gives up sending
/// it what it does not acknowledge.
pub const VANISHED: Duration = Duration::from_secs(900);
/// `Meta::flags`: a dead tensor, without content.
pub const TENSOR_DEAD: u32 = 1;
/// `Meta::flags`: the content is the runtime's serialised form.
pub const TENSOR_SERIALIZED: u32 = 2;

/// What a tensor is, apart from its content.
#[derive(Debug, Default)]
pub struct Meta {
    /// The runtime's number of the element type.
    pub dtype: u32,
    /// `TENSOR_*`
    pub flags: u32,
    /// Dimensions.
    pub dims: SmallVec<[i64; 6]>,
    /// Length of the content in bytes.
    pub nbytes: u64,
    /// Bytes of the application, which belong to this one transfer.
    pub user: UserBytes,
}

impl Meta {
    /// Whether it says the same of the tensor, whatever the application says beside it.
    #[inline]
    pub fn is_like(&self, other: &Meta) -> bool {
        let of = |meta: &Meta| (meta.dtype, meta.flags, meta.nbytes);
        // Mostly there are none or few dimensions: a call to compare none takes longer than all else.
        let alike = of(self) == of(other) && self.dims.len() == other.dims.len();
        alike && self.dims.iter().zip(&other.dims).all(|(own, other)| own == other)
    }

    /// A copy of what may be true of the next tensor of this name, too.
    pub fn lasting(&self) -> Meta {
        Meta { user: UserBytes::NONE, ..self.clone() }
    }
}

impl PartialEq for Meta {
    #[inline]
    fn eq(&self, other: &Meta) -> bool {
        let none = self.user.is_empty() && other.user.is_empty();
        self.is_like(other) && (none || self.user == other.user)
    }
}

impl Eq for Meta {}

impl Clone for Meta {
    #[inline(always)]
    fn clone(&self) -> Meta {
        // In one go; the derived one goes from dimension to dimension.
        let dims = match &self.dims[..] {
            [] => SmallVec::new(),
            some => SmallVec::from_slice(some),
        };
        let Meta { dtype, flags, nbytes, .. } = *self;
        Meta { dtype, flags, dims, nbytes, user: self.user.clone() }
    }
}

/// A tensor in memory of this process.
#[derive(Clone, Debug, Default)]
pub struct Tensor {
    /// What it is.
    pub meta: Meta,
    /// Address of the content on its device.
    pub addr: u64,
    /// Device, 0 for the host.
    pub device: u32,
}

/// Protocol that carried a transfer; the numbers of `RDMA_PROTOCOL_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Protocol {
    /// Not chosen yet.
    Auto = 0,
    /// Both ends in this manager.
    Local = 1,
    /// Content inside the response message.
    Eager = 2,
    /// RDMA write with immediate.
    DirectPut = 3,
    /// RDMA read by the receiver.
    DirectGet = 4,
    /// TensorFlow's first design: by way of a buffer that lasts, one of each name at either end.
    Persistent = 5,
    /// Long messages in three segments: memory is registered while other memory is moved.
    Pipeline = 6,
}

/// What carried a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// Nothing did.
    None,
    /// This manager alone.
    Local,
    /// A provider.
    Provider(ProviderKind),
}

impl Carrier {
    /// Its name, "" for none.
    pub fn name(self) -> &'static str {
        match self {
            Carrier::None => "",
            Carrier::Local => "local",
            Carrier::Provider(kind) => kind.name(),
        }
    }

    /// The same for C.
    pub fn c_name(self) -> &'static CStr {
        match self {
            Carrier::None => c"",
            Carrier::Local => c"local",
            Carrier::Provider(kind) => kind.c_name(),
        }
    }
}

/// How a transfer went.
#[derive(Clone, Debug)]
pub struct TransferInfo {
    /// Content bytes.
    pub bytes: u64,
    /// Nanoseconds from the call (receive) or the match (send).
    pub elapsed_ns: u64,
    /// Provider that carried it.
    pub provider: Carrier,
    /// Peer's name, "" for oneself.
    pub peer: Name,
    /// Protocol that carried it.
    pub protocol: Protocol,
    /// Why it ended so.
    pub reason: Reason,
}

/// Ends a send; see `rdma_send_done_fn`.
pub type SendDone = Box<dyn FnOnce(Result<(), Status>, &TransferInfo) + Send>;
/// Ends a receive; see `rdma_recv_done_fn`.
pub type RecvDone = Box<dyn FnOnce(Result<&Tensor, Status>, &TransferInfo) + Send>;
/// What a record carries for its function: addresses, as C passes them.
pub type Words = [usize; 2];

/// Runs once at the end of a send. A record of C, a function and what it carries, takes no memory.
pub enum OnSend {
    /// A function and its words.
    Plain(fn(Words, Result<(), &Status>, &TransferInfo), Words),
    /// Anything.
    Boxed(SendDone),
    /// A message operation of the engine, which ends it.
    Message(u32),
}

impl OnSend {
    /// Runs it.
    pub fn end(self, result: Result<(), &Status>, info: &TransferInfo) {
        match self {
            OnSend::Plain(run, words) => run(words, result, info),
            OnSend::Boxed(run) => run(result.map_err(Status::clone), info),
            OnSend::Message(_) => {}
        }
    }
}

impl From<SendDone> for OnSend {
    fn from(done: SendDone) -> OnSend {
        OnSend::Boxed(done)
    }
}

/// Runs once at the end of a receive; as [`OnSend`].
pub enum OnRecv {
    /// A function and its words.
    Plain(fn(Words, Result<&Tensor, &Status>, &TransferInfo), Words),
    /// Anything.
    Boxed(RecvDone),
    /// A message operation of the engine, which ends it.
    Message(u32),
}

impl OnRecv {
    /// Runs it.
    pub fn end(self, result: Result<&Tensor, &Status>, info: &TransferInfo) {
        match self {
            OnRecv::Plain(run, words) => run(words, result, info),
            OnRecv::Boxed(run) => run(result.map_err(Status::clone), info),
            OnRecv::Message(_) => {}
        }
    }
}

impl From<RecvDone> for OnRecv {
    fn from(done: RecvDone) -> OnRecv {
        OnRecv::Boxed(done)
    }
}

/// Gives memory for a result; `None` fails the request.
pub type AllocFn = Box<dyn FnMut(&Meta) -> Option<u64> + Send>;
/// A peer asks for a key that the local table lacks: `(response, peer, key, step)`.
pub type SourceFn = Arc<dyn Fn(u64, &str, &[u8], i64) + Send + Sync>;

/// Where a result goes.
pub enum Target {
    /// Memory given up front.
    Given {
        /// Address.
        addr: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Memory from a callback, once the size is known.
    Alloc(AllocFn),
    /// Memory of the library.
    Library,
}

/// Options of a receive.
pub struct RecvOptions {
    /// Deadline; `None`: the manager's.
    pub timeout: Option<Duration>,
    /// Where the result goes.
    pub target: Target,
    /// Device of the target.
    pub device: u32,
    /// Library memory outlives the callback, until `request_release`.
    pub keep: bool,
}

/// Called once when a device copy has ended.
pub type CopyDone = Box<dyn FnOnce(Result<(), Status>) + Send>;

/// An accelerator's copy functions. They may return before the copy is complete.
pub trait DeviceOps: Send + Sync {
    /// Copies from the device to the host.
    fn copy_to_host(&self, host: u64, device: u64, nbytes: u64, done: CopyDone);
    /// Copies from the host to the device.
    fn copy_from_host(&self, device: u64, host: u64, nbytes: u64, done: CopyDone);
    /// Exports memory as a dmabuf, and says where in it the memory begins. `None`: it cannot.
    fn export_dmabuf(&self, device: u64, nbytes: u64) -> Option<Result<(OwnedFd, u64), Status>> {
        let _ = (device, nbytes);
        None
    }
}

/// State of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum PeerState {
    /// Not connected, nothing under way.
    Idle = 0,
    /// Connecting.
    Connecting = 1,
    /// Connected.
    Connected = 2,
    /// The last attempt failed; retried on use.
    Failed = 3,
}

/// An incarnation in one word, as messages tell it: never 0.
pub fn incarnation_word(incarnation: &[u8; 16]) -> u64 {
    let both = u128::from_le_bytes(*incarnation);
    let (low, high) = (both as u64, (both >> 64) as u64);
    // The halves may be alike.
    low.wrapping_add(high.wrapping_mul(0x9e37_79b9_7f4a_7c15)).max(1)
}

/// What is known of a peer.
#[derive(Clone, Debug)]
pub struct PeerInfo {
    /// Its name.
    pub name: String,
    /// Provider of the connection, "" without one.
    pub provider: &'static str,
    /// Why this provider, or the last error.
    pub reason: String,
    /// Where it is reached.
    pub address: String,
    /// Its incarnation, zero while unknown.
    pub incarnation: [u8; 16],
    /// State.
    pub state: PeerState,
    /// Live connections.
    pub channels: u32,
    /// Largest content that rides in the response message; 0 without a connection.
    pub eager_max: u64,
    /// Largest message that is not sent in fragments; 0 without a connection.
    pub max_message: u64,
    /// Content sent, bytes.
    pub bytes_sent: u64,
    /// Content received, bytes.
    pub bytes_received: u64,
    /// Requests made of it.
    pub requests_sent: u64,
    /// Requests it made.
    pub requests_received: u64,
}
