//! The front end of tagged messages: sends meet receives by sender, communicator and tag, as in MPI.
//!
//! A message goes out unasked. A small one carries its content; of a long one goes an offer, whose content the transfer
//! layer moves once a receive has met it. What arrives before its receive waits in `Unexpected`, within a window of
//! bytes and a number of offers for each connection (`flow`), so that a sender is held back and not this side's memory
//! filled.
//! `matching` is who waits for whom, `send` and `receive` the calls of the application, `offers` what does not go out
//! whole, `staged` what of that is copied first, `arrivals` what peers send, `ending` the one end of each operation,
//! `expiry` their deadlines.
//!
//! Order: messages of one sender to one communicator meet receives in the order in which they were sent. They go over
//! one connection, whose order holds; what has to wait for room there keeps all that comes after it waiting too.

mod active;
mod arrivals;
mod buffered;
mod ending;
mod expiry;
pub mod flow;
mod incarnations;
mod layouts;
mod matching;
mod offers;
mod receive;
mod room;
mod send;
mod staged;
mod unexpected;
mod whole;

pub(in crate::engine) use arrivals::Heard;
use buffered::Attached;
pub use ending::Ended;
use foldhash::HashMap;
use matching::Posted;
use room::RoomWait;
use unexpected::Unexpected;

use std::sync::Arc;

use crate::api::Words;
use crate::engine::Buffer;
use crate::engine::deadlines::Deadlines;
use crate::engine::layout::Layout;
use crate::engine::list::Links;
use crate::engine::slab::Slab;
pub use crate::protocol::message::Envelope;
use crate::status::Status;
pub use active::{Active, ActiveFn, Handler};
pub use layouts::{Beside, ShortHeader};
pub use matching::Sources;
pub use receive::Found;
pub use room::RoomFn;
pub use send::Outgoing;
pub use unexpected::{Bytes, ORPHANS, REGIONS};

/// The public number of what lies in this slot.
fn public(id: u64, index: u32) -> u64 {
    super::rendezvous::public_id(id, index)
}

/// A worker, as this manager numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Party(u32);

impl Party {
    /// Whoever sends.
    pub const ANY: Party = Party(u32::MAX);
    /// This manager.
    pub const OWN: Party = Party(u32::MAX - 1);
    /// Some, which a receive has apart: see [`Sources`].
    const SOME: Party = Party(u32::MAX - 2);

    /// A peer, by its index.
    pub fn peer(index: u32) -> Party {
        Party(index)
    }

    /// Its index, if it is a peer.
    pub fn index(self) -> Option<u32> {
        (self.0 < Party::SOME.0).then_some(self.0)
    }

    /// As the application knows it: 0 for anybody, and for some.
    pub fn handle(self) -> u64 {
        if self == Party::SOME {
            return 0;
        }
        u64::from(self.0.wrapping_add(1))
    }

    /// The inverse of `handle`.
    pub fn of_handle(handle: u64) -> Option<Party> {
        let handle = u32::try_from(handle).ok()?;
        Some(Party(handle.wrapping_sub(1))).filter(|&party| party != Party::SOME)
    }

    fn accepts(self, sender: Party) -> bool {
        self == Party::ANY || self == sender
    }
}

/// When a send has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Its memory may be used again.
    Standard,
    /// The same, and a receive has met it.
    Synchronous,
}

/// What a receive asks for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// From whom.
    pub from: Party,
    /// Communicator.
    pub comm: u32,
    /// Tag.
    pub tag: u64,
    /// Bits of the tag that count.
    pub mask: u64,
}

impl Wanted {
    fn accepts(&self, sender: Party, envelope: Envelope) -> bool {
        self.is_for(envelope) && self.from.accepts(sender)
    }

    /// Whether such a message will do, whoever sends it.
    fn is_for(&self, envelope: Envelope) -> bool {
        self.comm == envelope.comm && (self.tag ^ envelope.tag) & self.mask == 0
    }
}

/// Memory of the application.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Address.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// Device, 0 for the host.
    pub device: u32,
}

/// How a message operation ended.
#[derive(Debug)]
pub struct MessageEnd {
    /// The result.
    pub result: Result<(), Status>,
    /// Who sent it; of a send, who it was for.
    pub party: Party,
    /// The incarnation of its sender, in a word; of a send the one that it was for alone. 0: none.
    pub incarnation: u64,
    /// Communicator and tag; of a receive that met nothing, what it asked for.
    pub envelope: Envelope,
    /// Bytes of the message, also of one that was too long.
    pub len: u64,
    /// Of a receive: what came beside the content.
    pub extra: Option<Box<Beside>>,
    /// The same, if that was no more than a short header, and a function is told.
    pub short: ShortHeader,
}

impl MessageEnd {
    /// The same once more. Where there is no memory for what came beside the content, that is lost, and said to be.
    pub fn again(&self) -> MessageEnd {
        let MessageEnd { ref result, party, incarnation, envelope, len, ref extra, short } = *self;
        let extra = extra.as_ref().map(|beside| beside.again()).transpose();
        let (result, extra) = match (result, extra) {
            (Ok(()), Err(status)) => (Err(status), None),
            (result, extra) => (result.clone(), extra.unwrap_or_default()),
        };
        MessageEnd { result, party, incarnation, envelope, len, extra, short }
    }
}

/// A function that is told of an end, and its words.
pub type EndCallback = (fn(Words, &MessageEnd), Words);

/// Who is told of the end.
#[derive(Clone, Copy)]
pub enum OnMessage {
    /// Whoever asks for it.
    Asked,
    /// A function and its words.
    Plain(fn(Words, &MessageEnd), Words),
}

/// A send that has begun.
#[derive(Debug, PartialEq, Eq)]
pub enum Sending {
    /// It has ended well: there is no operation.
    Done,
    /// Its number.
    Begun(u64),
}

/// A receive that has begun.
pub enum Receiving {
    /// It has met a message that is here and fits: whoever called copies the content to its memory.
    Done(Bytes, MessageEnd),
    /// Its number.
    Begun(u64),
}

enum State {
    /// A send that waits for a connection, or for room on it.
    Queued,
    /// The first of those that wait; its content is being copied, or that is still to begin.
    Gathering { begun: bool },
    /// A send whose content waits for the receiver, or is on its way.
    Offered { ch: u32, response: u32 },
    /// A synchronous send whose content is out, on this channel.
    Unmatched { ch: u32 },
    /// A send to oneself that waits for its receive, as this message.
    Own { arrived: u32 },
    /// The same, which has met one.
    Met,
    /// A receive that waits.
    Posted,
    /// A receive whose content is on its way.
    Moving { request: u32 },
    /// It has ended, but its memory is not the application's yet.
    Ending,
    /// Who asks for its end is told.
    Ended,
}

/// Content of a send that waits, out of the application's memory.
#[derive(Default)]
enum Copied {
    /// It still lies there.
    #[default]
    No,
    /// Copied by the call.
    Early(Vec<u8>),
    /// Copied when its turn came.
    Late(Buffer),
    /// Copied by the call, to where it stays until the end.
    Staged(Buffer),
}

/// One operation.
pub(in crate::engine) struct Op {
    id: u64,
    /// Of a send: to whom, and its envelope.
    wanted: Wanted,
    /// Of a send: the incarnation that alone may get it. Of a receive: of the sender of what it has met; before that, that which alone
    /// may have sent it. 0: none.
    incarnation: u64,
    memory: Memory,
    mode: Mode,
    started: u64,
    /// When it is looked at next.
    deadline: u64,
    /// When the application wants it ended, whatever it is at.
    limit: u64,
    /// Why it is to end, once the peer has agreed; why it has ended, if not well.
    ended: Option<Status>,
    done: OnMessage,
    state: State,
    /// A copy of what a send that waits will carry.
    content: Copied,
    /// Bytes of the message that a receive has met.
    met: Option<u64>,
    /// What travels beside the content.
    extra: Option<Box<Beside>>,
    /// Nobody will ask for its end.
    released: bool,
    /// A send that is in the outbox of its peer.
    waits: bool,
    /// Among receives: rises with each.
    order: u64,
    /// Among receives that wait, or in the outbox.
    links: Links,
}

impl Op {
    fn envelope(&self) -> Envelope {
        Envelope { comm: self.wanted.comm, tag: self.wanted.tag }
    }

    #[cfg(test)]
    fn for_test(wanted: Wanted, memory: Memory, done: OnMessage) -> Op {
        Op {
            id: 0,
            wanted,
            incarnation: 0,
            memory,
            mode: Mode::Standard,
            started: 0,
            deadline: u64::MAX,
            limit: u64::MAX,
            ended: None,
            done,
            state: State::Posted,
            content: Copied::No,
            met: None,
            extra: None,
            released: false,
            waits: false,
            order: 0,
            links: Links::default(),
        }
    }
}

/// The tagged messages of one worker: operations that have not ended, and what has come before its receive.
pub(in crate::engine) struct Messages {
    ops: Slab<Op>,
    deadlines: Deadlines,
    posted: Posted,
    unexpected: Unexpected,
    /// This manager's own incarnation, in a word.
    own: u64,
    /// There was a receive of one incarnation alone.
    bound: bool,
    /// Handlers of active messages.
    handlers: HashMap<u32, Handler>,
    /// Memory of operations that lies in pieces.
    layouts: Slab<Arc<Layout>>,
    /// Memory of some that have gone.
    spare_layouts: Vec<Arc<Layout>>,
    /// For sends in buffered mode.
    buffer: Attached,
    /// Who waits for room.
    rooms: Vec<RoomWait>,
    /// When the first of them has waited for long enough.
    rooms_due: u64,
    /// Operations whose end can be asked for, counted over all time.
    endings: u64,
    /// Bytes of content that sends which wait have copied.
    copied: usize,
    /// Threads that wait for a message to come.
    probing: usize,
    /// When messages that wait for room are to be offered, the first of them.
    held: u64,
    /// Connections that messages went by, from the first on that was lost; 0: none was. See `carrier`.
    pub(in crate::engine) carriers: u64,
}

impl Messages {
    pub fn new() -> Messages {
        Messages {
            ops: Slab::default(),
            bound: false,
            deadlines: Deadlines::new(),
            posted: Posted::default(),
            unexpected: Unexpected::default(),
            own: 1,
            handlers: HashMap::default(),
            buffer: Default::default(),
            rooms: Vec::new(),
            rooms_due: u64::MAX,
            layouts: Slab::default(),
            spare_layouts: Vec::new(),
            endings: 0,
            copied: 0,
            probing: 0,
            held: u64::MAX,
            carriers: 0,
        }
    }

    /// Operations that have not ended; with this peer, or all.
    pub fn under_way(&self, party: Option<u32>) -> usize {
        let of = |op: &Op| party.is_none() || party == op.wanted.from.index();
        let live = |op: &Op| !matches!(op.state, State::Ended);
        self.ops.iter().filter(|(_, op)| live(op) && of(op)).count()
    }

    /// All operations.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Who waits for room, each of whom is told.
    pub fn rooms(&self) -> usize {
        self.rooms.len()
    }

    /// When the next deadline is to be looked at.
    pub fn next_deadline(&self) -> u64 {
        self.deadlines.next().min(self.held).min(self.rooms_due)
    }
}
