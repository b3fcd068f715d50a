//! How peers find each other, prove who they are and agree on a provider.
//!
//! [`Bootstrap`] listens, dials and carries out the handshake on nonblocking sockets. It has no
//! thread: everything happens inside [`Bootstrap::poll`]. Endpoints are made and connected by the
//! manager through [`Negotiator`]; a finished handshake is a [`BootEvent::Ready`].
//!
//! The handshake, connector on the left:
//!
//! ```text
//! HELLO {versions, nonce, facts}      ->
//!                                     <-  HELLO_ACK {version, nonce, facts, provider, reason}
//! AUTH {HMAC}                         ->                                   only with a secret
//!                                     <-  AUTH {HMAC}
//!                                     <-  ENDPOINT {round, provider, reason, address}
//! ENDPOINT {round, provider, address} ->
//!             both connect their endpoint; tcp uses this very socket, after READY
//! READY {round}                       <-> READY {round}
//! ```
//!
//! Either side may answer `REJECT {code, text}` at any point before its READY. An endpoint that
//! cannot be made or connected ends its round: the connector says `DOWNGRADE {round, text}`, the
//! acceptor proposes the next provider. Every frame from ENDPOINT on carries a tag under a session key
//! that both derive from both HELLOs and the secret: with one, nobody on the path can change anything
//! said before or an endpoint's address; without one (the secret is then empty), damage is found.
//! Everything a peer sends is bounded before it is stored.

mod addr;
pub(crate) mod auth;
mod backoff;
mod blob;
mod choice;
mod conn;
mod endpoint;
mod engine;
mod frame;
mod handshake;
mod hello;
mod identity;
mod sys;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::fabric::{EpId, ProviderKind};
use crate::local_fd::Local;
use crate::status::Status;

pub use addr::{format_address, resolve};
pub(crate) use addr::{is_loopback, resolve_at_once, resolve_peer, split, split_peer};
pub use backoff::Backoff;
pub use blob::AddressBlob;
pub use choice::{Choice, choose};
pub use engine::Bootstrap;
pub use hello::fuzz_hello;
pub(crate) use identity::check_name;
pub(crate) use identity::known_host;
pub use identity::{host_id, process_id, random_id};
pub(crate) use sys::start_connect;

/// First version of the handshake that this side speaks.
pub const VERSION_MIN: u16 = 12;
/// Last version of the handshake that this side speaks.
pub const VERSION_MAX: u16 = 12;
/// Longest HELLO or HELLO_ACK in bytes.
pub const MAX_HELLO: usize = 16 * 1024;
/// Longest endpoint address in bytes.
pub const MAX_ENDPOINT_ADDRESS: usize = 1024;
/// Longest text in a handshake message, in bytes.
pub const MAX_TEXT: usize = 512;
/// Most socket addresses in a HELLO or an address blob.
pub const MAX_ADDRESSES: usize = 64;

/// A provider and whether this side can use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Which provider.
    pub kind: ProviderKind,
    /// Why it cannot be used, `None` if it can.
    pub unavailable: Option<String>,
}

/// What a manager says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The worker's name: 1 to 255 bytes, no control characters.
    pub name: String,
    /// Random per manager; a restarted peer has another. Not zero.
    pub incarnation: [u8; 16],
    /// Equal where shared memory works: see [`host_id`].
    pub host_id: [u8; 16],
    /// Equal inside one process: see [`process_id`].
    pub process_id: [u8; 16],
    /// The application drives progress; silence of such a peer proves nothing.
    pub manual_progress: bool,
    /// Silence after which this side counts a peer as stalled, in milliseconds; not 0. `u32::MAX`: never.
    pub peer_timeout_ms: u32,
    /// Providers; one that is missing is not offered, which is how a provider is required.
    pub providers: Vec<Offer>,
    /// Control messages in flight; not 0.
    pub queue_depth: u32,
    /// Messages and content are checked end to end; one side that has this is enough.
    pub checksum: bool,
    /// This side takes further connections that carry a part of one's READs and WRITEs.
    pub rails: bool,
}

/// What a peer says of itself, checked. Reads like its [`Identity`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerHello {
    /// The facts.
    pub identity: Identity,
    /// Where it listens, by its own account; may be empty.
    pub addrs: Vec<SocketAddr>,
    /// The connection is to be such a one, of another that there is: the connector says so.
    pub rail: bool,
    /// Where either side has the checksum option, once the handshake is over: the seeds of the checksums
    /// on all messages, of those sent and of those received.
    pub seeds: Option<[u64; 2]>,
    /// A name of the connection that both ends know, once the handshake is over.
    pub connection: [u8; 16],
}

impl std::ops::Deref for PeerHello {
    type Target = Identity;
    fn deref(&self) -> &Identity {
        &self.identity
    }
}

/// What the handshake needs of the manager. No method blocks.
pub trait Negotiator {
    /// May refuse a peer, which has `proved` that it knows the secret, where there is one. The code and
    /// the text reach the peer. `None`: not known yet; it is asked again at each poll, for a second.
    fn check(&mut self, peer: &PeerHello, proved: bool) -> Option<Result<(), Status>>;

    /// Makes an endpoint and tells its address, at most [`MAX_ENDPOINT_ADDRESS`] bytes. `remote`: that of the peer's
    /// endpoint, if it is known; untrusted.
    fn create(
        &mut self,
        kind: ProviderKind,
        peer: &PeerHello,
        remote: Option<&[u8]>,
    ) -> Result<(EpId, Vec<u8>), Status>;

    /// Connects the endpoint to the peer's; `remote` is untrusted. The connector is `active`. With
    /// tcp `sock` is the socket on which the handshake ran, and nothing else is under way on it.
    fn connect(
        &mut self,
        kind: ProviderKind,
        ep: EpId,
        remote: &[u8],
        active: bool,
        sock: Option<Local<OwnedFd>>,
    ) -> Result<(), Status>;

    /// How `connect` went; `None` while it is under way.
    fn connected(&mut self, kind: ProviderKind, ep: EpId) -> Option<Result<(), Status>>;

    /// The handshake failed or chose another provider: the endpoint is to be destroyed.
    fn discard(&mut self, kind: ProviderKind, ep: EpId);
}

/// What a failed dial tells of the peer, beside its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    /// Nothing: silence, a refusal, somebody else.
    Unclear,
    /// The peer introduced itself; then the connection broke.
    Broken,
    /// Nobody listens at any of the addresses.
    Nobody,
}

/// What [`Bootstrap::poll`] reports.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there are few, and none lasts")]
pub enum BootEvent {
    /// Both endpoints are connected.
    ///
    /// The peer may have got here first and used its endpoint: messages of `ep` may arrive from its
    /// adapter before this event, from the moment `Negotiator::connected` said yes.
    Ready {
        /// The token of the dial, `None` if the peer connected.
        token: Option<u64>,
        /// Who the peer is.
        hello: PeerHello,
        /// Provider of the endpoint.
        kind: ProviderKind,
        /// Why this one and none that is better.
        reason: String,
        /// The endpoint.
        ep: EpId,
        /// Kept open, it tells by its end that the peer is gone. `None` for tcp, which took it, and for loopback, where it would tell nothing more.
        sock: Option<Local<OwnedFd>>,
        /// This side connected.
        initiator: bool,
        /// The far end of the handshake's socket.
        addr: SocketAddr,
    },
    /// A dial failed at every address. Never as `DeadlineExceeded` or `Cancelled`: a dial belongs to
    /// no operation, and the deadlines of those that wait for it are their own.
    Failed {
        /// The token of the dial.
        token: u64,
        /// Why.
        status: Status,
        /// The same dial may succeed later.
        retryable: bool,
        /// What it tells of the peer.
        met: Met,
        /// So many of the addresses were tried, from the first on. For the others there was no time.
        tried: usize,
    },
    /// An incoming connection was turned away. For the log and the counters; nothing is to be done.
    Rejected {
        /// Where it came from, if known.
        addr: Option<SocketAddr>,
        /// Why.
        status: Status,
        /// A peer had introduced itself, with the secret if there is one, and left: as one does that ends.
        left: bool,
    },
}

/// Settings of a [`Bootstrap`].
#[derive(Clone)]
pub struct BootConfig {
    /// Shared secret; with one, both sides must prove that they know it.
    pub secret: Option<Vec<u8>>,
    /// May listen beyond loopback without a secret.
    pub allow_remote: bool,
    /// Longest time of one handshake.
    pub handshake_timeout: Duration,
    /// The same of one whose peer has introduced itself, and proved the secret if there is one: it is just slow.
    pub patience: Duration,
    /// Longest time for one endpoint of a device to connect, before the next provider is tried: the way between the two may be
    /// a dead end.
    pub endpoint_timeout: Duration,
    /// The same of other endpoints, for which only the peer has to do its part.
    pub local_timeout: Duration,
    /// Most incoming handshakes at a time. One more makes room for itself: of the source that has the
    /// most, the one ends that has not got on for longest (but for some milliseconds). Who proved the
    /// secret stays.
    pub max_handshakes: usize,
}

impl Default for BootConfig {
    fn default() -> Self {
        BootConfig {
            secret: None,
            allow_remote: false,
            handshake_timeout: Duration::from_secs(10),
            patience: Duration::from_secs(30),
            endpoint_timeout: Duration::from_secs(3),
            local_timeout: Duration::from_secs(10),
            max_handshakes: crate::limits::HANDSHAKES,
        }
    }
}

impl std::fmt::Debug for BootConfig {
    /// Without the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BootConfig")
            .field("secret", &self.secret.as_ref().map(|_| "set"))
            .field("allow_remote", &self.allow_remote)
            .field("handshake_timeout", &self.handshake_timeout)
            .field("patience", &self.patience)
            .field("endpoint_timeout", &self.endpoint_timeout)
            .field("local_timeout", &self.local_timeout)
            .field("max_handshakes", &self.max_handshakes)
            .finish()
    }
}
