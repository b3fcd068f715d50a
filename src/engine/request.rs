//! The receiving side of a transfer: a request, from the call to its one callback.

mod arrival;
mod ending;
mod landing;

use super::channel::ChanId;
use super::deadlines::Timer;
use super::list::Links;
use super::{
    AllocFn, Buffer, Due, Engine, Fx, Held, Kept, MapError, WR_REQUEST, Window, Work, checksum,
};
use crate::api::*;
use crate::fabric::keys::{Place, pieces};
use crate::fabric::{Access, Mem};
use crate::protocol::message::{self, Message, MetaResponse};
use crate::rendezvous::keys::Key;
use crate::rendezvous::{Sent, Waiter};
use crate::status::{Code, Reason, Status};

/// Where the bytes of a transfer land.
pub(super) struct Landing {
    pub addr: u64,
    pub len: u64,
    pub window: Option<Window>,
    /// A registered proxy, copied to the destination afterwards.
    pub staged: Option<Buffer>,
}

/// What an allocation was for.
pub(super) enum AfterAlloc {
    Request,
    Eager(Vec<u8>),
    Meta { response: u32, source: Option<Place> },
    Local(Sent),
}

pub(super) enum State {
    /// Waits for a connection.
    Queued,
    /// The allocation callback is out.
    Allocating(AfterAlloc),
    /// TENSOR_REQUEST is out; content, metadata or an error comes back.
    Requested,
    /// The metadata is known; the content is being written.
    Awaiting,
    /// The source is being read.
    Reading { left: u32, response: u32, failed: Option<Status> },
    /// The checksum of the landing is being computed, or it is being copied to the destination.
    Copying,
    /// Waits in this manager's own table.
    LocalWait,
    /// Copied from a local sender's tensor.
    LocalCopy(Sent),
    /// Ended for the application, but its memory may still be written.
    Quiescing { status: Status, left: u32, response: Option<u32> },
}

/// See the module's text.
pub(super) struct Request {
    pub id: u64,
    pub peer: Option<u32>,
    pub ch: Option<ChanId>,
    /// Where what asks for it waits on the channel.
    pub place: Option<u64>,
    pub key: Key,
    pub step: i64,
    pub started: u64,
    pub deadline: u64,
    pub target: Target,
    pub device: u32,
    pub keep: bool,
    pub done: Due<OnRecv>,
    pub state: State,
    /// Metadata for which `dst` was made; the result's in the end.
    pub meta: Option<Meta>,
    pub dst: u64,
    pub buffer: Option<Buffer>,
    pub landing: Option<Landing>,
    pub checksum: Option<u64>,
    pub protocol: Protocol,
    /// The request ends with this as soon as the callback or copy that is out returns.
    pub ended: Option<Status>,
    /// A copy from or to its memory runs, outside of the engine.
    pub copying: bool,
    /// Its place among the deadlines.
    pub timer: Timer,
    /// Its place in its step.
    pub in_step: Links,
}

pub(super) fn request_in_step(r: &mut Request) -> &mut Links {
    &mut r.in_step
}

/// Dimensions that leave the room for content in a message as it is.
pub(super) const USUAL_DIMS: usize = 16;

/// A public id is a sequence number followed by the slot: monotonic, and found without a map.
const PUBLIC_SLOT_BITS: u32 = 20;

impl Engine {
    /// Begins a receive; its public id.
    pub fn recv(
        &mut self,
        fx: &mut impl Fx,
        peer: Option<&str>,
        key: &[u8],
        step: i64,
        options: RecvOptions,
        done: OnRecv,
    ) -> Result<u64, Status> {
        if self.closing {
            return Err(Self::ending());
        }
        Self::check_key(key)?;
        self.device(options.device)?;
        if let Some(status) = self.table.aborted(step) {
            return Err(status.clone());
        }
        let local = peer.is_none_or(|p| *p == *self.name);
        let peer = match peer {
            Some(name) if !local => Some(self.find_peer(name).ok_or_else(|| {
                Status::new(Code::NotFound, format!("peer '{name}' is not known; add it first"))
            })?),
            _ => None,
        };
        let key = self.table.keys().copy(key)?;
        self.admit(fx)?;
        self.table.make_room()?;
        if options.keep {
            crate::room::grow(&mut self.kept, 1, "requests that are kept")?;
        }
        let now = fx.now();
        let timeout = options.timeout.map_or(self.settings.timeout, |t| t.as_nanos() as u64);
        let deadline = now.saturating_add(timeout);
        let sequence = self.id();
        let request = Request {
            id: 0,
            peer,
            ch: None,
            place: None,
            key,
            step,
            started: now,
            deadline,
            target: options.target,
            device: options.device,
            keep: options.keep,
            done: self.due(done),
            state: State::Queued,
            meta: None,
            dst: 0,
            buffer: None,
            landing: None,
            checksum: None,
            protocol: Protocol::Auto,
            ended: None,
            copying: false,
            timer: Timer::default(),
            in_step: Links::default(),
        };
        let keep = request.keep;
        let index = self.requests.insert(request).map_err(|request| {
            request.done.refuse();
            let text =
                format!("{} receives are outstanding: no room for more", self.requests.len());
            Status::new(Code::ResourceExhausted, text)
        })?;
        let slot = u64::from(index) & ((1 << PUBLIC_SLOT_BITS) - 1);
        let id = sequence << PUBLIC_SLOT_BITS | slot;
        if let Some(r) = self.requests.get_mut(index) {
            r.id = id;
        }
        if keep {
            self.kept.insert(id, Kept::Running);
        }
        self.table.members(step).requests.push(&mut self.requests, request_in_step, index);
        self.set_deadline(index, deadline);
        let begun = match peer {
            None => self.recv_local(fx, index),
            Some(p) => self.begin(fx, index, p),
        };
        if let Err(status) = begun {
            if let Some(request) = self.remove_request(index) {
                request.done.refuse();
            }
            self.kept.remove(&id);
            return Err(status);
        }
        Ok(id)
    }

    /// A request leaves the table, and what refers to it there.
    pub(super) fn remove_request(&mut self, index: u32) -> Option<Request> {
        // Looked at where it comes to lie: it is long.
        let gone = self.requests.remove(index);
        let r = gone.as_ref()?;
        self.deadlines.remove(&mut self.requests, index, r.timer);
        if let Some(members) = self.table.members_of(r.step) {
            members.requests.remove(&mut self.requests, request_in_step, index, r.in_step);
            self.table.left(r.step);
        }
        gone
    }

    /// The request ends then, if not before; `u64::MAX`: never.
    pub(super) fn set_deadline(&mut self, index: u32, at: u64) {
        if let Some(r) = self.requests.get_mut(index) {
            r.deadline = at;
            self.deadlines.set(&mut self.requests, index, at);
            self.next_deadline = self.next_deadline.min(at);
        }
    }

    fn begin(&mut self, fx: &mut impl Fx, index: u32, peer: u32) -> Result<(), Status> {
        let Some(r) = self.requests.get_mut(index) else { return Ok(()) };
        // Named by the application.
        self.peers.keep(peer);
        let cached = self.peers.get_mut(peer).and_then(|p| p.cache.get(&r.key).cloned());
        let own = &self.stats.own;
        if cached.is_some() { &own.meta_hits } else { &own.meta_misses }.add(1);
        if let Target::Given { addr, .. } = r.target {
            r.dst = addr;
        }
        match cached {
            Some(meta) => {
                let fits = match r.target {
                    Target::Given { len, .. } => meta.nbytes <= len,
                    _ => true,
                };
                let ready = !fits || {
                    match self.prepare(fx, index, meta, AfterAlloc::Request, true) {
                        Ok(ready) => ready,
                        Err(_) => {
                            self.distrust_cache(fx, index);
                            false
                        }
                    }
                };
                if ready {
                    self.submit(fx, index);
                }
            }
            None => self.submit(fx, index),
        }
        self.settle_request(fx, index);
        Ok(())
    }

    fn settle_request(&mut self, fx: &mut impl Fx, index: u32) {
        if let Some(ch) = self.requests.get(index).and_then(|r| r.ch) {
            self.settle(fx, ch);
        }
    }

    /// The living request of this public id.
    fn by_id(&self, id: u64) -> Option<u32> {
        let (index, r) = self.requests.occupant(id as u32)?;
        (r.id == id).then_some(index)
    }

    pub(super) fn send_request(&mut self, fx: &mut impl Fx, index: u32, ch: ChanId) {
        let eager_max = self.eager_max(ch);
        let Some(r) = self.requests.get_mut(index) else { return };
        let Some(c) = self.channels.get(ch) else {
            return self.fail_by_defect(
                fx,
                index,
                "a receive was given to a connection that ended",
            );
        };
        r.ch = Some(ch);
        if let Some(status) = c.too_many_asks() {
            return self.fail(fx, index, status);
        }
        c.counters.requests_sent.add(1);
        r.state = State::Requested;
        let any_meta = matches!(r.target, Target::Given { .. }) && r.device == 0;
        let len = match r.target {
            Target::Given { len, .. } if any_meta => len,
            _ => r.meta.as_ref().map_or(0, |m| m.nbytes),
        };
        let forced = self.settings.protocol;
        let expose = len > if forced == Protocol::DirectPut { 0 } else { eager_max }
            && forced != Protocol::DirectGet;
        if expose && let Err(why) = self.open_landing(fx, index, ch, len, Access::REMOTE_WRITE) {
            // The length is a guess by what is cached, or the room given: the tensor may be smaller. Asked
            // without a destination, its sender tells.
            crate::log::debug(format_args!("a destination of {len} bytes is not opened: {why}"));
        }
        let sealed = self.sealed(ch);
        let Some(r) = self.requests.get_mut(index) else { return };
        let dst = r.landing.as_ref().and_then(|l| {
            let rkeys = l.window.as_ref()?.keys.map(|mr| mr.rkey);
            Some((Place { addr: l.addr, rkeys }, l.len))
        });
        let key = std::mem::take(&mut r.key);
        let m = Message::Request(message::Request {
            index,
            step: r.step,
            any_meta: any_meta && dst.is_some(),
            dst,
            checksum: sealed,
            cached: r.meta.clone(),
            key: &key,
        });
        let place = self.channels.get_mut(ch).and_then(|c| c.ask(fx, index, &m, &key));
        if let Some(r) = self.requests.get_mut(index) {
            (r.key, r.place) = (key, place);
        }
    }

    /// Whether all that goes over this channel has a checksum.
    pub(super) fn sealed(&self, ch: ChanId) -> bool {
        self.channels.get(ch).is_some_and(|c| c.seal.is_some())
    }

    /// Largest content that goes out inside the response message on this channel.
    pub fn eager_max(&self, ch: ChanId) -> u64 {
        let Some(c) = self.channels.get(ch) else { return 0 };
        let chosen = self.settings.eager_max.unwrap_or(c.caps.eager_max);
        chosen.min(self.message_max(ch) as usize) as u64
    }

    /// Most content that fits into one message beside the metadata of a tensor with up to
    /// [`USUAL_DIMS`] dimensions.
    pub(super) fn message_max(&self, ch: ChanId) -> u64 {
        const OVERHEAD: usize = 4 + 4 + 8 + 14 + 8 * USUAL_DIMS;
        self.channels.get(ch).map_or(0, |c| c.room().saturating_sub(OVERHEAD)) as u64
    }
}

fn data_loss(want: u64, got: u64) -> Status {
    let text = format!("checksum of the content is {got:016x}, the sender's is {want:016x}");
    Status::new(Code::DataLoss, text).because(Reason::LocalError)
}
