//! The sending end of a transfer: a response to a peer's request.
//!
//! A tensor that is there and small never becomes a response: its content goes out at once. The others live here, each
//! in its place from the first word to the last, while they wait for the tensor, for the runtime, for a copy off a
//! device, for the receiver's answer, or for their writes.

use smallvec::SmallVec;

use super::choose::{Choice, Facts, select};
use super::protocols::Outflow;
use super::protocols::stripes::Stripes;
use crate::api::*;
use crate::engine::channel::{ChanId, Channel};
use crate::engine::front::rendezvous::Named;
use crate::engine::layout::LAYOUT;
use crate::engine::list::Links;
use crate::engine::{Buffer, Due, Engine, Fx, MapError, Window};
use crate::fabric::Access;
use crate::fabric::keys::Place;
use crate::protocol::message::Fits;
use crate::status::{Code, Status};
use crate::trials::Trial;

/// A copy of content; the shortest need no memory of their own.
pub type Content = SmallVec<[u8; 16]>;

/// A tensor that its sender gave, until it is taken.
pub struct Sent {
    /// The tensor; its memory is the sender's until `done`.
    pub tensor: Tensor,
    /// A copy of its content, or nothing.
    pub content: Content,
    /// Ends the send.
    pub done: Option<Due<OnSend>>,
    /// Time at which the send fails if nobody took the tensor; `u64::MAX`: never.
    pub deadline: u64,
}

/// Who asked, and how the answer reaches it.
#[derive(Clone, Copy)]
pub(in crate::engine) struct To {
    pub ch: ChanId,
    /// The receiver's index of its request.
    pub request: u32,
    /// What goes there has a checksum.
    pub checksum: bool,
    /// The receiver has told where its memory lies.
    pub told: bool,
}

/// What the peer asked for.
#[derive(Clone)]
pub(in crate::engine) struct Asked {
    pub to: To,
    pub dst: Option<(Place, u64)>,
    pub any_meta: bool,
    /// A tensor of so many bytes fits; of a longer one that is not known, unless `room_told`: then it does not.
    pub room: u64,
    pub room_told: bool,
    pub cached: Option<Meta>,
    /// The receiver knows the metadata and `dst` is for just this tensor: what is left is the write.
    pub granted: bool,
}

impl Asked {
    pub fn new(
        to: To,
        dst: Option<(Place, u64)>,
        any_meta: bool,
        fits: Fits,
        cached: Option<Meta>,
    ) -> Asked {
        let (room, room_told) = match (fits, &dst) {
            (Fits::UpTo(len), _) => (len, true),
            (Fits::Any, _) => (u64::MAX, false),
            (Fits::Known, Some((_, len))) if any_meta => (*len, true),
            (Fits::Known, _) => (cached.as_ref().map_or(u64::MAX, |meta| meta.nbytes), false),
        };
        Asked { to, dst, any_meta, room, room_told, cached, granted: false }
    }

    /// The destination was given up front, and has no room for so many bytes.
    #[inline]
    pub fn too_short(&self, nbytes: u64) -> bool {
        self.room_told && nbytes > self.room
    }

    /// So many bytes are known to fit. What may not is told of first, whatever its length.
    #[inline]
    pub fn fits(&self, nbytes: u64) -> bool {
        nbytes <= self.room
    }
}

/// The part of the content that the receiver has asked for, where it does not ask for all at once.
#[derive(Default)]
pub(in crate::engine) struct Leg {
    /// Where it begins.
    pub at: u64,
    /// Bytes.
    pub len: u64,
    /// Where the next goes, if the end of this one's writes was not seen yet.
    pub next: Option<(Place, u64)>,
}

/// A tensor on its way out.
pub(in crate::engine) struct Source {
    pub tensor: Tensor,
    pub done: Option<Due<OnSend>>,
    /// A copy of the content, if there is one.
    pub content: Content,
    /// Its checksum, once it is known.
    pub sum: Option<u64>,
    /// Copy of the content in registered or host memory.
    pub staged: Option<Buffer>,
    /// That was made since it pays, not for need.
    pub ahead: bool,
    /// That is the memory of this buffer, which lasts.
    pub buffer: Option<u32>,
    /// There was no buffer of its name to be had.
    pub unbuffered: bool,
    pub window: Option<Window>,
    pub leg: Option<Box<Leg>>,
    /// A pipeline was offered, with so many bytes of the content; what of the others has gone.
    pub first: Option<u64>,
    pub flow: Option<Box<Outflow>>,
    /// Its WRITEs go over several connections.
    pub stripes: Option<Box<Stripes>>,
    pub started: u64,
    pub protocol: Protocol,
    /// That of the send, if the tensor is put back.
    pub deadline: u64,
    /// Its time is taken, by whoever said whether it is copied first.
    pub trial: Option<Trial>,
}

impl Source {
    pub fn new(sent: Sent, now: u64) -> Source {
        Source {
            tensor: sent.tensor,
            done: sent.done,
            content: sent.content,
            sum: None,
            staged: None,
            ahead: false,
            buffer: None,
            unbuffered: false,
            window: None,
            leg: None,
            first: None,
            flow: None,
            stripes: None,
            started: now,
            protocol: Protocol::Eager,
            deadline: sent.deadline,
            trial: None,
        }
    }

    /// Where what goes out now lies.
    pub fn addr(&self) -> u64 {
        let at = self.leg.as_ref().map_or(0, |leg| leg.at);
        self.staged.as_ref().map_or_else(|| self.tensor.addr + at, |b| b.addr)
    }

    /// Its bytes.
    pub fn len(&self) -> u64 {
        self.leg.as_ref().map_or(self.tensor.meta.nbytes, |leg| leg.len)
    }

    /// Bytes that are to go out after that.
    pub fn left(&self) -> u64 {
        let end = self.leg.as_ref().map(|leg| leg.at + leg.len);
        end.map_or(0, |end| self.tensor.meta.nbytes - end)
    }
}

pub(in crate::engine) enum RState {
    /// Waits for the tensor; the front end finds it by this.
    Waiting(u64),
    /// The runtime was asked.
    Asking,
    /// It has its tensor; the next protocol is being chosen.
    Ready,
    /// The content is being copied to host or registered memory, or its checksum is being computed.
    Staging,
    /// The content fits into a message, behind answers that wait for the peer to take them.
    Deferred,
    /// It waits until the buffer of its name is there, and idle.
    Buffering(u32),
    /// The metadata is out; the receiver asks for a write, or reads and says so.
    Told,
    /// By the pipeline: parts of it are asked for, copied and written.
    Piping,
    /// Writes are under way.
    Writing { left: u32, failed: Option<Status> },
}

/// A tensor that a peer has asked for, from its request to the end of the last write.
pub(in crate::engine) struct Response {
    /// The front end's part.
    pub named: Named,
    pub peer: u32,
    pub asked: Asked,
    /// There from `Ready` on.
    pub source: Option<Source>,
    pub state: RState,
    /// The receiver gave up; it waits for word that nothing is written any more.
    pub cancelled: bool,
    /// The source was taken back while it waited to be copied, or while a copy of it was on its way.
    pub ended: Option<Status>,
    /// The source is being copied, outside of the engine.
    pub copying: bool,
    /// Its part of the peer's `waiting_bytes`.
    pub cost: usize,
    /// Its place among those that wait for a buffer.
    pub in_buffer: Links,
    /// The tensor goes back to no table: it is the runtime's own, its step was aborted or cleaned up, or its memory is gone.
    pub no_table: bool,
}

/// No request of a peer has this index or a higher one: a response that nobody has asked for yet, an offered message, is
/// found on its channel by this and its slot.
pub(in crate::engine) const UNASKED: u32 = 0xFFF0_0000;

impl Response {
    /// It brings the content of a tagged message.
    pub fn is_message(&self) -> bool {
        let done = self.source.as_ref().and_then(|source| source.done.as_ref());
        done.is_some_and(|done| done.is_message())
    }

    /// It is an offered message that the receiver has not asked for, as far as is known here.
    pub fn is_offered(&self) -> bool {
        matches!(self.state, RState::Told) && self.is_unasked()
    }

    /// Nobody has asked for it yet.
    pub fn is_unasked(&self) -> bool {
        self.asked.to.request >= UNASKED
    }

    #[inline(always)]
    pub fn new(peer: u32, named: Named, asked: Asked, state: RState, cost: usize) -> Response {
        let (source, cancelled, ended, copying) = (None, false, None, false);
        let (in_buffer, no_table) = (Links::default(), false);
        Response {
            named,
            peer,
            asked,
            source,
            state,
            cancelled,
            ended,
            copying,
            cost,
            in_buffer,
            no_table,
        }
    }

    /// The runtime was asked for it.
    pub fn is_asking(&self) -> bool {
        matches!(self.state, RState::Asking)
    }

    /// A tensor of ours is on its way.
    pub fn is_sending(&self) -> bool {
        self.source.is_some()
    }

    /// The channel, the tensor and the rest of what a protocol needs.
    pub fn parts(&mut self) -> Option<(&Asked, &mut Source)> {
        Some((&self.asked, self.source.as_mut()?))
    }
}

impl Engine {
    /// A response has its tensor: chooses how the content goes, and begins that. Comes again after a copy or a
    /// checksum was made for it. `content`: a copy of it that the caller has, or nothing.
    pub(in crate::engine) fn go(&mut self, fx: &mut impl Fx, index: u32, content: &[u8]) {
        if self.choice(fx, index) == Some(Choice::Persist) {
            return self.persist(fx, index); // From wherever it lies.
        }
        let Some(r) = self.responses.get_mut(index) else { return };
        let Some(source) = &r.source else { return self.end_by_defect(fx, index) };
        let n = source.tensor.meta.nbytes;
        let on_device = source.tensor.device != 0 && n > 0;
        if on_device && source.staged.is_none() && source.window.is_none() {
            let window = self.open_device_source(fx, index);
            if window.is_none() {
                return self.stage(fx, index);
            }
            if let Some(source) = self.responses.get_mut(index).and_then(|r| r.source.as_mut()) {
                source.window = window;
            }
        }
        let Some(choice) = self.choice(fx, index) else {
            let status = Status::gone("the connection of the receiver ended");
            return self.end_response(fx, index, Err(status));
        };
        let Some((asked, source)) = self.responses.get_mut(index).and_then(Response::parts) else {
            return;
        };
        if choice != Choice::Eager && asked.to.checksum && n > 0 && source.sum.is_none() {
            return self.hash(fx, index);
        }
        if !matches!(choice, Choice::Eager | Choice::Persist) && self.stage_ahead(fx, index) {
            return;
        }
        match choice {
            Choice::Eager => self.send_eager(fx, index, content),
            Choice::Put { tell } => self.put_asked(fx, index, tell),
            Choice::OfferGet => self.offer_get(fx, index),
            Choice::TellMeta => self.tell_for_put(fx, index),
            Choice::Persist => self.persist(fx, index),
        }
    }

    /// How the content of a response goes. `None`: its channel has ended.
    fn choice(&self, fx: &impl Fx, index: u32) -> Option<Choice> {
        let r = self.responses.get(index)?;
        let (asked, source) = (&r.asked, r.source.as_ref()?);
        let (tensor, meta) = (&source.tensor, &source.tensor.meta);
        let c = self.channels.get(asked.to.ch)?;
        if asked.granted {
            return Some(Choice::Put { tell: false });
        }
        Some(select(Facts {
            nbytes: meta.nbytes,
            fits: asked.fits(meta.nbytes),
            room: self.settings.room_for(fx, c, tensor, asked.to.told),
            dst_len: asked.dst.as_ref().map(|(_, len)| *len),
            meta_known: asked.cached.as_ref().is_some_and(|known| known.is_like(meta)),
            user: !meta.user.is_empty(),
            any_meta: asked.any_meta,
            can_read: c.caps.read,
            buffers: source.buffer.is_some() || !source.unbuffered && r.named.is_tensor(),
            forced: self.settings.protocol,
        }))
    }

    /// Opens device memory that the provider reaches by itself, where no byte of it has to be seen
    /// here.
    fn open_device_source(&self, fx: &mut impl Fx, index: u32) -> Option<Window> {
        let r = self.responses.get(index)?;
        let (asked, tensor) = (&r.asked, &r.source.as_ref()?.tensor);
        let n = tensor.meta.nbytes;
        let seen = asked.to.checksum
            || tensor.device == LAYOUT
            || n <= self.eager_max(asked.to.ch)
            || self.settings.protocol == Protocol::Eager;
        if seen { None } else { fx.open_device(asked.to.ch, tensor.addr, n, tensor.device) }
    }

    /// Opens the source of a response for an operation; false: it needs a registered copy first.
    pub(in crate::engine) fn open_source(
        &mut self,
        fx: &mut impl Fx,
        index: u32,
        access: Access,
    ) -> Result<bool, Status> {
        let found = self.responses.get_mut(index).and_then(Response::parts);
        let Some((asked, source)) = found else { return Ok(true) };
        if source.window.is_some() {
            return Ok(true);
        }
        match fx.open(asked.to.ch, source.addr(), source.len(), access) {
            Ok(window) => {
                source.window = Some(window);
                Ok(true)
            }
            Err(MapError::NeedProxy) if source.staged.is_none() => Ok(false),
            Err(MapError::NeedProxy) => Err(self.defect("the proxy's memory is not registered")),
            Err(MapError::Failed(status)) => Err(status),
        }
    }

    /// Keeps content where it lies until the answers before it have gone.
    pub(super) fn defer(&mut self, fx: &mut impl Fx, index: u32) {
        let Some(r) = self.responses.get_mut(index) else { return };
        r.state = RState::Deferred;
        let Some(c) = self.channels.get_mut(r.asked.to.ch) else { return };
        match crate::room::grow(&mut c.deferred, 1, "answers") {
            Ok(()) => c.deferred.push_back(index),
            Err(status) => self.undeliverable(fx, index, status),
        }
    }

    /// Sends content that was kept back, as far as it may go now.
    pub(in crate::engine) fn send_deferred(&mut self, fx: &mut impl Fx, ch: ChanId) {
        while let Some(index) = self.channels.get_mut(ch).and_then(Channel::next_deferred) {
            let Some(r) = self.responses.get_mut(index) else { continue }; // Cancelled meanwhile.
            match r.state {
                RState::Deferred => {
                    r.state = RState::Ready;
                    self.go(fx, index, &[]);
                }
                RState::Piping => self.go_on_deferred(fx, index),
                _ => {}
            }
        }
    }

    /// The response whose metadata or offer the receiver answers; anything else is stale.
    pub(super) fn told(&mut self, ch: ChanId, index: u32) -> Option<&mut Response> {
        let told = |r: &&mut Response| r.asked.to.ch == ch && matches!(r.state, RState::Told);
        let found = self.responses.get_mut(index).filter(told);
        if found.is_none() {
            self.stale += 1;
        }
        found
    }

    fn end_by_defect(&mut self, fx: &mut impl Fx, index: u32) {
        let status = self.defect("a response goes on without a tensor");
        self.undeliverable(fx, index, status);
    }
}

/// The code of a result.
pub(super) fn code_of<T>(result: &Result<T, Status>) -> Code {
    result.as_ref().map_or_else(|s| s.code, |_| Code::Ok)
}
