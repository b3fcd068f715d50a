//! The protocol engine: a state machine without input or output of its own.
//!
//! It takes events (calls of the application, messages, completions, timers) one at a time and acts
//! through [`Fx`]: posting work, opening memory, asking for a connection, queueing callbacks. It
//! never blocks, takes no lock and reads no clock but `Fx::now`, so the same code runs over every
//! provider and in the seeded simulation in virtual time.
//!
//! Layers: [`front`] (names and matching), [`transfer`] (moves content between the two ends of a channel, a file for each
//! protocol), [`channel`] (credits, order, fragments); beside them `peer` (connections) and `timers`.

use std::sync::Arc;

use foldhash::HashMap;

use crate::api::*;
use crate::limits::OWED_BYTES_ALL;
use crate::name::Name;
use crate::observe::{PeerCounters, Stats};
use crate::protocol::message::{self, Message};
use crate::status::{Code, Status};

mod carrier;
pub mod channel;
mod claim;
mod deadlines;
mod due;
mod events;
pub mod front;
mod fx;
mod hooks;
mod known;
pub mod layout;
pub(crate) mod list;
mod lost;
mod peer;
#[cfg(feature = "planted")]
mod planted;
mod queue;
pub mod rails;
mod reclaim;
mod responses;
pub mod seal;
mod settings;
pub mod slab;
mod timers;
pub mod transfer;
mod tries;

use channel::Owed;
pub use channel::{ChanId, Channel, INITIAL_CREDITS};
pub use claim::Claim;
use deadlines::Deadlines;
use due::Ownership;
pub use due::{Callback, Due};
pub use events::Unheard;
use front::message::Messages;
use front::pair::Pairs;
use front::rendezvous::Table;
pub use fx::{Buffer, Cached, Fx, Held, MapError, Offer, Origin, Stage, Window, Work};
pub use hooks::{EndedFn, Hooks, PeerFn};
pub use known::Peer;
use known::Peers;
#[cfg(feature = "planted")]
pub use planted::Planted;
pub use reclaim::Range;
pub use settings::Settings;
use slab::Slab;
use transfer::buffers::Buffers;
use transfer::inbound::Request;
use transfer::outbound::Response;
use transfer::sizes::Sizes;
pub use tries::Tries;

/// Most devices of one manager.
pub const MAX_DEVICES: usize = 256;
/// Tag of writes that nobody waits for.
pub const WR_ACK: u64 = 0;
/// Longest text of an error behind many answers that wait.
const SHORT_ERROR_TEXT: usize = 64;
const WR_RESPONSE: u64 = 1 << 56;
const WR_REQUEST: u64 = 2 << 56;
const WR_MESSAGE: u64 = 3 << 56;
const WR_SLOT: u64 = 4 << 56;
/// Of a stripe: a WRITE of a response, a READ of a request. The tag has its number where a pipeline has its part's.
const WR_STRIPE_OUT: u64 = 5 << 56;
const WR_STRIPE_IN: u64 = 6 << 56;
/// Set in the tag of writes with immediate.
const WR_IMM: u64 = 1 << 32;
/// From this bit on 16 bits of the tag tell which part of a pipeline a write is of.
const WR_PART: u32 = 33;
const WR_KIND: u64 = 0xFF << 56;

/// Whether the copy of this token is of a source, to where a peer reads it.
pub fn is_staging(token: u64) -> bool {
    token & WR_KIND == WR_RESPONSE
}

/// A request that the application is to release.
enum Retained {
    /// It has not ended, or its callback has not returned.
    Running,
    /// The same, and it is released already.
    Released,
    /// It has ended and holds this.
    Ended(Held),
}

/// The protocol engine of one worker: its peers, its channels, and all operations that are under way.
pub struct Engine {
    /// Settings.
    pub settings: Settings,
    /// This worker's name.
    pub name: Name,
    /// Counters.
    pub stats: Arc<Stats>,
    /// Messages and writes that belonged to no living request.
    pub stale: u64,
    /// A planted bug, for the test that shows that the simulation finds it.
    #[cfg(feature = "planted")]
    pub planted: Option<Planted>,
    peers: Peers,
    /// Peers that are not known any more, for [`Engine::take_forgotten`].
    forgotten: Vec<u32>,
    /// Answers that wait, of all channels.
    owed: Arc<Owed>,
    /// Bytes of requests that wait, of all peers.
    waiting_bytes: usize,
    channels: Slab<Channel>,
    requests: Slab<Request>,
    deadlines: Deadlines,
    responses: Slab<Response>,
    table: Table,
    /// Apart: a manager is to fit a page.
    messages: Box<Messages>,
    pairs: Box<Pairs>,
    buffers: Box<Buffers>,
    kept: HashMap<u64, Retained>,
    devices: Vec<Arc<dyn DeviceOps>>,
    source: Option<SourceFn>,
    hooks: Hooks,
    notices: hooks::Notices,
    next_id: u64,
    next_deadline: u64,
    next_keepalive: u64,
    /// When it last went on after it had stood still; 0: never.
    woke: u64,
    closing: bool,
    no_peer: Name,
    local: Arc<PeerCounters>,
    happened: u64,
    /// As callbacks know it; last, for all others to be gone before.
    owner: Ownership,
}

impl Engine {
    /// An engine without peers.
    pub fn new(name: &str, settings: Settings) -> Engine {
        let stats = Arc::new(Stats::new(name));
        Engine {
            settings,
            name: name.into(),
            local: stats.peer("", "local"),
            stats,
            stale: 0,
            happened: 0,
            #[cfg(feature = "planted")]
            planted: None,
            owner: Ownership::new(),
            peers: Peers::default(),
            forgotten: Vec::new(),
            owed: Arc::default(),
            waiting_bytes: 0,
            channels: Slab::default(),
            requests: Slab::default(),
            deadlines: Deadlines::new(),
            responses: Slab::default(),
            table: Table::new(),
            messages: Box::new(Messages::new()),
            pairs: Box::new(Pairs::new()),
            buffers: Box::default(),
            kept: HashMap::default(),
            devices: Vec::new(),
            source: None,
            hooks: Hooks::default(),
            notices: hooks::Notices::default(),
            next_id: 1,
            next_deadline: u64::MAX,
            next_keepalive: u64::MAX,
            woke: 0,
            closing: false,
            no_peer: "".into(),
        }
    }

    /// Makes a device known; its id.
    pub fn add_device(&mut self, ops: Arc<dyn DeviceOps>) -> Result<u32, Status> {
        if self.devices.len() >= MAX_DEVICES {
            let text = text!("{MAX_DEVICES} devices are registered, more are not allowed");
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        crate::room::grow(&mut self.devices, 1, "devices")?;
        self.devices.push(ops);
        Ok(self.devices.len() as u32)
    }

    /// Sets or removes the source callback.
    pub fn set_source(&mut self, source: Option<SourceFn>) {
        self.source = source;
    }

    /// Operations that have not ended: requests and messages, responses.
    pub fn outstanding(&self) -> (usize, usize) {
        let front = self.messages.under_way(None) + self.pairs.ending();
        (self.requests.len() + front, self.responses.len())
    }

    /// Waiting tensors and receives in the table.
    pub fn waiting(&self) -> (usize, usize) {
        self.table.counts()
    }

    /// Before an operation is accepted: room for whatever it and all that are under way put into the queue of
    /// work. Each has at most one entry there at a time; a receive may hold the send that it met, too.
    #[inline(always)]
    fn admit(&mut self, fx: &mut impl Fx) -> Result<(), Status> {
        // This one, and word of peers.
        let live = 2 * self.requests.len()
            + self.responses.len()
            + self.table.tensors()
            + self.messages.len()
            + self.messages.rooms()
            + self.pairs.load()
            + 5;
        let told = self.source.is_none() || self.notices.fits(self.responses.len() + 1);
        let room = told && fx.fits(live);
        let text = "no memory for one more operation";
        room.then_some(()).ok_or_else(|| Status::new(Code::ResourceExhausted, text))
    }

    /// A device's functions, `None` for the host.
    pub fn device_ops(&self, device: u32) -> Result<Option<Arc<dyn DeviceOps>>, Status> {
        self.device(device)
    }

    fn device(&self, device: u32) -> Result<Option<Arc<dyn DeviceOps>>, Status> {
        match device {
            0 => Ok(None),
            d => match self.devices.get(d as usize - 1) {
                Some(ops) => Ok(Some(ops.clone())),
                None => Err(Status::new(
                    Code::NotFound,
                    text!(
                        "device {d} is not registered; 0 (host) to {} are allowed",
                        self.devices.len()
                    ),
                )),
            },
        }
    }

    /// Who copies from and to memory of this device; nobody where it lies in pieces of the host's.
    fn copier(&self, device: u32) -> Result<Option<Arc<dyn DeviceOps>>, Status> {
        if device == layout::LAYOUT { Ok(None) } else { self.device(device) }
    }

    /// Whether there is such a device.
    #[inline]
    fn check_device(&self, device: u32) -> Result<(), Status> {
        if device == 0 { Ok(()) } else { self.device(device).map(drop) }
    }

    fn ending() -> Status {
        let status = Status::new(Code::Cancelled, "the manager is being destroyed");
        status.because(crate::status::Reason::Cancelled)
    }

    #[inline]
    fn check_key(key: &[u8]) -> Result<(), Status> {
        if key.is_empty() || key.len() > MAX_KEY_LEN {
            return Err(bad_key(key.len()));
        }
        Ok(())
    }

    /// Answers that all channels together may not hold: the channel with most of them ends.
    fn end_most_owing(&mut self, fx: &mut impl Fx) -> bool {
        let channels = self.channels.iter().map(|(i, c)| (c.owed(), i));
        let Some((bytes, ch)) = channels.max().filter(|&(bytes, _)| bytes > 0) else {
            return false;
        };
        let text = text!(
            "{bytes} bytes of answers wait for the peer, which takes them too slowly; for all peers together {} wait, \
             {OWED_BYTES_ALL} are allowed",
            self.owed.bytes()
        );
        self.channel_down(fx, ch, Status::new(Code::ResourceExhausted, text));
        true
    }

    /// Posts what waits on any channel, after the providers made room.
    pub fn flush_all(&mut self, fx: &mut impl Fx) {
        let mut at = 0;
        while let Some(ch) = self.channels.next(&mut at, Channel::waits) {
            self.settle(fx, ch);
        }
    }

    /// Something happened that nobody else counts.
    pub fn poke(&mut self) {
        self.happened += 1;
    }

    /// A number that changes when a connection comes or goes, or a peer asks. Callbacks are counted where they run.
    pub fn happened(&self) -> u64 {
        self.happened
    }

    /// Counts an operation: with its channel, or by name where there is none.
    #[inline]
    fn count(&self, peer: Option<u32>, ch: Option<ChanId>, f: impl FnOnce(&PeerCounters)) {
        match (ch.and_then(|c| self.channels.get(c)), peer) {
            (Some(c), _) => f(&c.counters),
            (None, Some(_)) => f(&self.stats.peer(&self.peer_name(peer), "")),
            (None, None) => f(&self.local),
        }
    }

    /// Whether anything waits to be posted.
    pub fn has_pending(&self) -> bool {
        self.channels.iter().any(|(_, c)| c.waits())
    }

    /// Sends a message on a channel, if it is still there.
    fn send(&mut self, fx: &mut impl Fx, ch: ChanId, message: &Message<'_>, tail: &[u8]) {
        if let Some(c) = self.channels.get_mut(ch) {
            c.send(fx, message, tail);
        }
    }

    fn send_error(&mut self, fx: &mut impl Fx, ch: ChanId, index: u32, status: &Status) {
        // Many wait already: the code is what matters.
        let short = self.channels.get(ch).is_some_and(Channel::is_congested);
        let most = if short { SHORT_ERROR_TEXT } else { message::MAX_ERROR_TEXT };
        let mut room = [0; message::MAX_ERROR_TEXT];
        let text = cut(&status.message, most, &mut room);
        let m = Message::Error { index, code: status.code as i32, text };
        self.send(fx, ch, &m, text);
    }

    /// Whether all that goes over this channel has a checksum.
    fn sealed(&self, ch: ChanId) -> bool {
        self.channels.get(ch).is_some_and(|c| c.seal.is_some())
    }

    /// By what sizes content on this channel is cut.
    fn sizes(&self, ch: ChanId) -> Sizes {
        let of = |c: &Channel| self.settings.sizes[c.caps.provider as usize];
        self.channels.get(ch).map_or_else(Sizes::default, of)
    }

    /// Largest content that goes out inside the response message on this channel.
    pub fn eager_max(&self, ch: ChanId) -> u64 {
        self.channels.get(ch).map_or(0, |c| self.settings.room_of(c, 0).eager)
    }

    /// How a transfer over a channel went, as far as it is known at its beginning.
    fn info_of(&self, ch: ChanId, protocol: Protocol) -> TransferInfo {
        self.info(self.channels.get(ch).map(|c| c.peer), Some(ch), protocol)
    }

    #[inline]
    fn info(&self, peer: Option<u32>, ch: Option<ChanId>, protocol: Protocol) -> TransferInfo {
        let (provider, peer) = match ch.and_then(|c| self.channels.get(c)) {
            Some(c) => (Carrier::Provider(c.caps.provider), c.name.clone()),
            None if protocol == Protocol::Local => (Carrier::Local, self.peer_name(peer)),
            None => (Carrier::None, self.peer_name(peer)),
        };
        let reason = crate::status::Reason::None;
        TransferInfo { bytes: 0, elapsed_ns: 0, provider, peer, protocol, reason }
    }

    /// Key and step for a trace, if there is one.
    fn traced(&self, fx: &impl Fx, key: &[u8], step: i64) -> Option<(Box<[u8]>, i64)> {
        if fx.tracing() { Some((crate::room::key(key).ok()?, step)) } else { None }
    }

    /// Ends a send that never met a receiver: its callback is queued.
    fn end_send(
        &mut self,
        fx: &mut impl Fx,
        done: Option<Due<OnSend>>,
        result: Result<(), Status>,
        info: TransferInfo,
    ) {
        self.end_send_of(fx, None, done, result, info, false, (0, 0));
    }

    /// Ends the send of a tensor by key and step: its callback is queued.
    #[allow(clippy::too_many_arguments, reason = "the facts of one transfer")]
    fn end_send_of(
        &mut self,
        fx: &mut impl Fx,
        of: Option<(&[u8], i64)>,
        done: Option<Due<OnSend>>,
        result: Result<(), Status>,
        mut info: TransferInfo,
        inline: bool,
        memory: (u64, u64),
    ) {
        if let Err(s) = &result {
            info.reason = s.reason;
        }
        if let Some(mut done) = done {
            if let Some(op) = done.take_message() {
                return self.end_message(fx, op, result);
            }
            let of = of.and_then(|(key, step)| self.traced(fx, key, step));
            fx.run(Work::SendDone { done, result, info, of, inline, memory });
        }
    }
}

#[cold]
fn bad_key(len: usize) -> Status {
    Status::invalid(text!("key of {len} bytes, 1 to {MAX_KEY_LEN} are allowed"))
}

/// A text, or where it is longer than so many bytes its beginning, and that it was cut.
fn cut<'a>(text: &'a str, most: usize, room: &'a mut Cut) -> &'a [u8] {
    const MARK: &[u8] = b"...";
    if text.len() <= most {
        return text.as_bytes();
    }
    let mut end = most.min(room.len()).saturating_sub(MARK.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    room[..end].copy_from_slice(&text.as_bytes()[..end]);
    room[end..end + MARK.len()].copy_from_slice(MARK);
    &room[..end + MARK.len()]
}

/// Room for a text that is cut.
type Cut = [u8; message::MAX_ERROR_TEXT];

/// The checksum of a tensor's content.
pub fn checksum(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}
