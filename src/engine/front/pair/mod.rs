//! The front end of pairs (Gloo's transport): buffers are addressed by slot, and a slot's grant lasts.
//!
//! A *pair* is one end of a connection between two ranks; the other end is a pair of another manager. Each end has a
//! token, which travels in its address. A *receive buffer* opens its memory to the other end once (SLOT_OPEN, a *grant*);
//! from then on a send of the *send buffer* of the same slot is a WRITE whose last piece has the grant's number as its
//! immediate, and no other message. A send that finds no grant waits for it, until its deadline.
//!
//! `calls` is what the application does, `events` what it is told, `arrivals` what the other end sends, `moving` how content goes (`short`: how most of it does),
//! `ending` how buffers and pairs end.
//!
//! Order: sends of one slot take effect in the order of the calls; those of a pair, too, but for sends that wait for
//! their grant. When a notice arrives, the content of all sends that were posted before it is in its place.
//!
//! Both ends choose a channel for what they tell; a grant is used on the channel that it came by. So a pair lives on one
//! channel or, where both sides dialled, on two. An end that loses the one that it told by breaks: what was written to it and not
//! yet told would be unknown. One that loses the other can only send no more (`mute`): what was written to it may be on its way, and
//! behind that the other end's word that it has ended, for whom it is the channel that it told by. Before a pair is connected nothing is
//! written: then it takes the next channel.

mod arrivals;
mod calls;
mod ending;
mod events;
mod moving;
mod short;

use foldhash::HashMap;

use crate::api::Words;
use crate::engine::Window;
use crate::engine::channel::ChanId;
use crate::engine::deadlines::Deadlines;
use crate::engine::list::{Fifo, Links};
use crate::engine::slab::Slab;
use crate::fabric::keys::Place;
use crate::status::{Code, Status};

pub use calls::{Connecting, PairFacts, Part, Slot};
pub use ending::Released;

/// Which way a buffer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Its content is sent.
    Send,
    /// It is written to.
    Recv,
}

/// Where a pair stands.
#[derive(Clone, Debug)]
pub enum PairState {
    /// Its other end is not known yet.
    Created,
    /// Its other end is known, and has not answered.
    Connecting,
    /// Both ends know each other.
    Connected,
    /// It has ended.
    Broken(Status),
}

/// What a buffer's owner is told.
#[derive(Clone, Debug)]
pub enum BufferEvent {
    /// A send has ended.
    Sent(Result<(), Status>),
    /// Content has arrived.
    Received,
    /// The pair has ended, and nothing will arrive any more. Once.
    Broken(Status),
}

/// Who is told of the events of a buffer: nobody, who asks then; or a function and its words.
pub type OnBuffer = Option<(fn(Words, u64, &BufferEvent), Words)>;

/// A grant of the other end.
struct Grant {
    ch: ChanId,
    number: u32,
    place: Place,
    len: u64,
}

/// A slot of the other end, as far as it is known.
#[derive(Default)]
struct Target {
    grant: Option<Grant>,
    /// Sends that wait for it, or, with a grant, behind a send whose checksum is being computed.
    waiting: Fifo,
}

/// One end of a pair.
struct Pair {
    id: u64,
    rank: u64,
    /// Its name on the wire.
    token: u64,
    /// How long a send waits, nanoseconds.
    timeout: u64,
    state: PairState,
    /// The other end's manager.
    peer: Option<u32>,
    /// The other end's token; 0: not known.
    remote: u64,
    /// Where it was told of this end.
    told: Option<ChanId>,
    /// Where this end heard of it, and its token.
    heard: Option<(ChanId, u64)>,
    /// When a connection ended before it was connected, for the first time, and why.
    lost: Option<Box<(u64, Status)>>,
    /// Why it sends no more, where the channel that its writes went by has ended and not yet the one that it is written to by.
    mute: Option<Box<Status>>,
    targets: HashMap<u64, Target>,
    /// Receive buffers by slot.
    slots: HashMap<u64, u32>,
    /// Targets that have a grant, and further regions of these.
    granted: usize,
    regions: usize,
    /// Where there are checksums, one send at a time goes: the next might write over what is to be compared.
    going: Option<u32>,
    /// Sends with a grant that come after it.
    behind: Fifo,
    /// All its buffers, and how many there are.
    all: Fifo,
    buffers: usize,
    /// Sends that have not ended.
    sends: usize,
    /// Sends that failed, and that nobody has heard of.
    unheard: usize,
    /// The application has let it go.
    released: bool,
}

impl Pair {
    fn is_broken(&self) -> bool {
        matches!(self.state, PairState::Broken(_))
    }

    /// Only then anything goes: what is heard before may be anybody's word.
    fn is_connected(&self) -> bool {
        matches!(self.state, PairState::Connected)
    }

    /// Why nothing can be sent, if nothing can.
    fn sends_no_more(&self) -> Option<&Status> {
        match (&self.mute, &self.state) {
            (Some(status), _) => Some(status),
            (None, PairState::Broken(status)) => Some(status),
            _ => None,
        }
    }

    /// Whether it is written to by another channel than the one by which it writes, which is this.
    fn only_writes_by(&self, ch: ChanId) -> bool {
        let heard = self.heard.is_some_and(|(heard, _)| heard == ch);
        self.is_connected() && heard && self.told.is_some_and(|told| told != ch)
    }

    fn uses(&self, ch: ChanId) -> bool {
        self.told == Some(ch) || self.heard.is_some_and(|(heard, _)| heard == ch)
    }
}

/// How far a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Its pair is not connected, or has ended: nobody touches it.
    Idle,
    /// It may be touched, through its window.
    Open,
    /// The other end was asked to stop.
    Closing,
}

/// Content that was written with a checksum, which is to be compared.
struct Unchecked {
    /// Where it came from, and is answered.
    ch: ChanId,
    /// The sender's number of the send.
    number: u32,
    offset: u64,
    len: u64,
    checksum: u64,
    /// Its own is being computed; otherwise that is still to begin.
    begun: bool,
}

/// A buffer.
struct Buffer {
    id: u64,
    pair: u32,
    way: Way,
    slot: u64,
    addr: u64,
    len: u64,
    told: OnBuffer,
    stage: Stage,
    /// On which channel its window is.
    ch: Option<ChanId>,
    window: Option<Window>,
    /// It is being closed, and what the other end sends until it has heard of that does not fail.
    lasts: bool,
    /// Its place among those of its pair.
    of_pair: Links,
    /// Its sends that have not ended.
    sends: Fifo,
    /// Sends that failed, and that nobody has heard of; how many.
    failed: Fifo,
    failures: u64,
    /// Sends that ended well, and that nobody has heard of; of these, those after the last that failed.
    sent: u64,
    sent_since: u64,
    /// Arrivals that nobody has heard of.
    received: u64,
    /// Its owner was told that the pair is broken.
    broken_told: bool,
    /// Sends that have not ended.
    under_way: usize,
    /// Calls that read its memory, without the lock, for a send that they are about to begin.
    calls: usize,
    /// A checksum is being computed of this.
    unchecked: Option<Unchecked>,
    /// Somebody is telling its owner, or is about to.
    telling: bool,
    /// The application has let it go: it leaves when nothing touches it any more.
    released: bool,
}

/// Where a send is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It waits for a grant, or behind a send whose checksum is being computed.
    Waiting,
    /// Its checksum is being computed, or that is still to begin.
    Hashing { begun: bool },
    /// Its writes are under way, or, where there are checksums, the other end has not compared its own.
    Writing { ch: ChanId, left: u32, unchecked: bool },
    /// It failed, which nobody has heard of. So many that ended well before it come before it.
    Failed { after: u64 },
}

/// A send.
struct Send {
    buffer: u32,
    offset: u64,
    len: u64,
    /// Where it goes in the other end's buffer.
    at: u64,
    step: Step,
    started: u64,
    deadline: u64,
    /// Its content was copied.
    copied: bool,
    /// It is among those of its slot that wait.
    waits: bool,
    /// It waits for a grant; only then its deadline counts.
    ungranted: bool,
    /// It is among those of its pair that are behind another.
    behind: bool,
    /// Why it failed, or is about to. None where it failed as its pair ended: for the pair's reason.
    failed: Option<Status>,
    /// Its places among those of its buffer, of its slot, and of its pair.
    of_buffer: Links,
    of_slot: Links,
    of_pair: Links,
}

impl Send {
    /// One that has just been taken in.
    pub(super) fn new(
        buffer: u32,
        Part { offset, len }: Part,
        at: u64,
        step: Step,
        started: u64,
        deadline: u64,
    ) -> Send {
        Send {
            buffer,
            offset,
            len,
            at,
            step,
            started,
            deadline,
            copied: false,
            waits: false,
            ungranted: false,
            behind: false,
            failed: None,
            of_buffer: Links::default(),
            of_slot: Links::default(),
            of_pair: Links::default(),
        }
    }
}

fn of_buffer(send: &mut Send) -> &mut Links {
    &mut send.of_buffer
}

fn of_slot(send: &mut Send) -> &mut Links {
    &mut send.of_slot
}

fn of_pair(send: &mut Send) -> &mut Links {
    &mut send.of_pair
}

fn buffer_of_pair(buffer: &mut Buffer) -> &mut Links {
    &mut buffer.of_pair
}

/// The pairs of one worker, with their buffers and with the sends that have not ended.
pub(in crate::engine) struct Pairs {
    pairs: Slab<Pair>,
    by_token: HashMap<u64, u32>,
    buffers: Slab<Buffer>,
    sends: Slab<Send>,
    deadlines: Deadlines,
    /// Grants of other ends: the pair and the slot.
    grants: HashMap<(ChanId, u32), (u32, u64)>,
}

impl Pairs {
    pub fn new() -> Pairs {
        Pairs {
            pairs: Slab::default(),
            by_token: HashMap::default(),
            buffers: Slab::default(),
            sends: Slab::default(),
            deadlines: Deadlines::new(),
            grants: HashMap::default(),
        }
    }

    /// Entries in the queue of work that there may be because of it: events and a checksum of each buffer, one of each
    /// send.
    pub fn load(&self) -> usize {
        2 * self.buffers.len() + self.sends.len()
    }

    /// When the next deadline is to be looked at.
    pub fn next_deadline(&self) -> u64 {
        self.deadlines.next()
    }

    /// Sends that have not ended; to this peer, or all.
    pub fn under_way(&self, peer: Option<u32>) -> usize {
        let of = |p: &Pair| peer.is_none() || p.peer == peer;
        self.pairs.iter().filter(|(_, p)| of(p)).map(|(_, p)| p.sends).sum()
    }

    /// Buffers that are on their way out.
    pub fn ending(&self) -> usize {
        self.buffers.iter().filter(|(_, b)| b.is_touched() || b.telling).count()
    }

    /// Whether a pair lives on this channel.
    pub fn use_channel(&self, ch: ChanId) -> bool {
        self.pairs.iter().any(|(_, p)| p.uses(ch))
    }

    fn pair_by_id(&self, id: u64) -> Result<u32, Status> {
        let found = self.pairs.occupant(id as u32);
        match found.filter(|(_, p)| p.id == id && !p.released) {
            Some((index, _)) => Ok(index),
            None => Err(Status::new(Code::NotFound, text!("pair {id} is not known"))),
        }
    }

    fn buffer_by_id(&self, id: u64) -> Result<u32, Status> {
        let found = self.buffers.occupant(id as u32);
        match found.filter(|(_, b)| b.id == id && !b.released) {
            Some((index, _)) => Ok(index),
            None => Err(Status::new(Code::NotFound, text!("buffer {id} is not known"))),
        }
    }
}

impl Buffer {
    /// Whether its memory may be touched, by this side or the other.
    fn is_touched(&self) -> bool {
        self.is_in_use() || self.calls > 0
    }

    /// The same by what a connection carries, and its end ends.
    fn is_in_use(&self) -> bool {
        self.window.is_some() || self.unchecked.is_some() || self.under_way > 0 || self.lasts
    }
}
