//! Unbound buffers: memory from which messages go to any peer, and to which they come from any, by slot.
//!
//! They are made of tagged messages: a slot is a tag of the buffer's communicator. What an operation's end is told to is
//! the buffer, whose waits take the ends. So a wait costs the same however many operations are under way.
//!
//! An end says whose it is by peer and slot alone. Of several operations with one peer and slot it is therefore that of the one that
//! was called first: who has two receives under way, and is told of one, reads the first's place. Contents arrive in another order
//! than their messages (a short one overtakes a long one; two threads that drive copy at once), so an end waits in its [`Lane`] for
//! those before it.

mod ends;
mod side;
mod waits;

use super::*;
use crate::api::Words;
use crate::engine::front::message::{
    Memory, MessageEnd, Mode, OnMessage, Party, Sending, Sources, Wanted,
};
use crate::engine::front::pair::Way;
use crate::engine::front::rendezvous::public_id;
use crate::engine::slab::{CAPACITY, SLOT_MASK, Slab};
use crate::protocol::message::{Envelope, Extra, UsualMsg};
use side::{Lane, Side};

/// The unbound buffers of a manager, behind its lock.
#[derive(Default)]
pub(super) struct AllUnbound {
    last: u64,
    all: Slab<Unbound>,
}

impl AllUnbound {
    fn insert(&mut self, comm: u32, addr: u64, len: u64) -> Result<u64, Status> {
        if !self.all.make_room() {
            return Err(crate::room::none(size_of::<Unbound>(), "an unbound buffer"));
        }
        let Some(vacancy) = self.all.vacancy() else {
            let text = text!("there are {CAPACITY} unbound buffers already: no room for more");
            return Err(Status::new(Code::ResourceExhausted, text));
        };
        self.last += 1;
        let id = public_id(self.last, vacancy.index());
        let (sends, recvs) = Default::default();
        vacancy.fill(Unbound { id, comm, addr, len, gone: false, sends, recvs });
        Ok(id)
    }

    /// The buffer of this number, unless somebody destroys it.
    #[inline]
    fn find(&mut self, id: u64) -> Result<&mut Unbound, Status> {
        self.find_any(id).filter(|unbound| !unbound.gone).ok_or_else(|| unknown(id))
    }

    /// The same while it is there.
    #[inline]
    fn find_any(&mut self, id: u64) -> Option<&mut Unbound> {
        let (_, unbound) = self.all.occupant_mut(id as u32)?;
        (unbound.id == id).then_some(unbound)
    }

    fn remove(&mut self, id: u64) {
        let index = self.all.occupant(id as u32).filter(|(_, unbound)| unbound.id == id);
        if let Some((index, _)) = index {
            self.all.remove(index);
        }
    }
}

/// One of them.
struct Unbound {
    id: u64,
    comm: u32,
    addr: u64,
    len: u64,
    /// It is being destroyed: nothing else begins.
    gone: bool,
    sends: Side,
    recvs: Side,
}

impl Unbound {
    #[inline]
    fn side(&mut self, way: Way) -> &mut Side {
        if way == Way::Send { &mut self.sends } else { &mut self.recvs }
    }

    fn is_free(&self) -> bool {
        self.sends.begun.is_empty() && self.recvs.begun.is_empty()
    }

    /// The part of its memory that an operation is about.
    fn part(&self, (offset, len): (u64, u64)) -> Result<Memory, Status> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            let text = text!(
                "{len} bytes at offset {offset} of an unbound buffer of {} bytes, allowed are those within it",
                self.len
            );
            return Err(Status::new(Code::OutOfRange, text));
        }
        Ok(Memory { addr: self.addr + offset, len, device: 0 })
    }
}

/// An operation that begins.
struct Beginning {
    ticket: Ticket,
    /// When its call began.
    serial: u64,
    /// Its part of the buffer.
    memory: Memory,
    envelope: Envelope,
}

/// An operation's place in its buffer.
#[derive(Clone, Copy)]
struct Ticket {
    id: u64,
    /// Its place among those under way.
    number: u32,
    way: Way,
}

impl Ticket {
    /// What its end is told with. A buffer with an operation under way stays in its place, by which it is found.
    fn done(self, manager: &Manager) -> OnMessage {
        let way = usize::from(self.way == Way::Recv);
        let place = (self.id as u32 & SLOT_MASK) as usize;
        let words =
            [std::ptr::from_ref(manager) as usize, (place << 32 | self.number as usize) << 1 | way];
        OnMessage::Plain(told, words)
    }
}

const _: () =
    assert!(usize::BITS > SLOT_MASK.count_ones() + u32::BITS, "a place, a number and a way");

fn told([manager, place]: Words, end: &MessageEnd) {
    let way = if place & 1 == 0 { Way::Send } else { Way::Recv };
    let (number, place) = ((place >> 1) as u32, (place >> 33) as u32);
    // SAFETY: a manager alone tells of the ends of its operations, whose words are of `Ticket::done`.
    let manager = unsafe { &*(manager as *const Manager) };
    let mut core = manager.core.lock();
    if let Some((_, unbound)) = core.unbound.all.occupant_mut(place) {
        unbound.side(way).end(number, end.again());
    }
}

impl Manager {
    /// Makes an unbound buffer over memory of the host.
    ///
    /// # Safety
    /// The memory stays valid until `unbound_destroy` has returned well, or the manager is gone.
    pub unsafe fn unbound_create(&self, comm: u32, addr: u64, len: u64) -> Result<u64, Status> {
        self.refuse_closing()?;
        self.core.lock().unbound.insert(comm, addr, len)
    }

    /// Sends a part of a buffer to a slot of a peer.
    pub fn unbound_send(
        &self,
        id: u64,
        to: Party,
        slot: u64,
        part: (u64, u64),
        timeout: Timeout,
    ) -> Result<(), Status> {
        self.unbound_send_on(Thread::this(), id, (to, Mode::Standard), slot, part, timeout)
    }

    /// The same on this thread; in standard or synchronous mode.
    pub(crate) fn unbound_send_on(
        &self,
        thread: Thread,
        id: u64,
        (to, mode): (Party, Mode),
        slot: u64,
        part: (u64, u64),
        timeout: Timeout,
    ) -> Result<(), Status> {
        let lane = Lane::of(slot, &[to])?;
        let begins = self.unbound_begin(thread, id, Way::Send, &lane, part)?;
        let Beginning { ticket, memory, envelope, .. } = begins;
        let beside = UsualMsg { envelope, active: false, user: &[], content: &[] };
        // SAFETY: within the buffer, which is valid until all its operations have ended.
        let sending = unsafe {
            let sent = mode == Mode::Standard
                && self.message_send_short(thread, to, beside, &memory, Follows::Poll);
            match sent {
                true => Ok(Sending::Done),
                false => {
                    let (extra, incarnation) = (&Extra::default(), 0);
                    let post = Post { to, incarnation, envelope, extra, mode, timeout };
                    let done = ticket.done(self);
                    self.message_isend_on(thread, &post, Where::Whole(memory), done)
                }
            }
        };
        let begun = sending.map(|sending| match sending {
            Sending::Done => {
                let (result, extra, short) = (Ok(()), None, Default::default());
                let len = memory.len;
                Begun::Ended(MessageEnd {
                    result,
                    party: to,
                    incarnation: 0,
                    envelope,
                    len,
                    extra,
                    short,
                })
            }
            Sending::Begun(request) => Begun::UnderWay(request),
        });
        self.unbound_begun(thread, &begins, begun)
    }

    /// Receives into a part of a buffer what comes first to a slot from one of these peers; of none: from anybody.
    pub fn unbound_recv(
        &self,
        id: u64,
        sources: &[Party],
        slot: u64,
        part: (u64, u64),
        timeout: Timeout,
    ) -> Result<(), Status> {
        self.unbound_recv_on(Thread::this(), id, sources, slot, part, timeout)
    }

    /// The same on this thread.
    pub(crate) fn unbound_recv_on(
        &self,
        thread: Thread,
        id: u64,
        sources: &[Party],
        slot: u64,
        part: (u64, u64),
        timeout: Timeout,
    ) -> Result<(), Status> {
        let from = match *sources {
            [] => Party::ANY,
            [one] => one,
            _ => return self.unbound_recv_of(thread, id, sources, slot, part, timeout),
        };
        let lane = Lane::of(slot, &[from])?;
        let begins = self.unbound_begin(thread, id, Way::Recv, &lane, part)?;
        let (memory, done) = (begins.memory, begins.ticket.done(self));
        let wanted = Wanted { from, comm: begins.envelope.comm, tag: slot, mask: u64::MAX };
        // SAFETY: within the buffer, which is valid until all its operations have ended.
        let begun = unsafe {
            match self.message_post(thread, &wanted, &memory, timeout, done) {
                Some(request) => Ok(Begun::UnderWay(request)),
                None => {
                    let at = Where::Whole(memory);
                    self.message_irecv_on(thread, (wanted, 0), at, timeout, done, false)
                        .map(Begun::from)
                }
            }
        };
        self.unbound_begun(thread, &begins, begun)
    }

    /// The same of several peers.
    fn unbound_recv_of(
        &self,
        thread: Thread,
        id: u64,
        sources: &[Party],
        slot: u64,
        part: (u64, u64),
        timeout: Timeout,
    ) -> Result<(), Status> {
        let mut parties = Vec::new();
        crate::room::grow(&mut parties, sources.len(), "sources of a receive")?;
        parties.extend_from_slice(sources);
        let sources = Sources::new(parties);
        let lane = Lane::of(slot, sources.parties())?;
        let begins = self.unbound_begin(thread, id, Way::Recv, &lane, part)?;
        let Beginning { ticket, memory, envelope, .. } = begins;
        let done = ticket.done(self);
        // SAFETY: within the buffer, which is valid until all its operations have ended.
        let received =
            unsafe { self.message_irecv_from(thread, sources, envelope, memory, timeout, done) };
        self.unbound_begun(thread, &begins, received.map(Begun::from))
    }

    /// Takes in an operation of a buffer that begins, whose end the buffer is told.
    fn unbound_begin(
        &self,
        thread: Thread,
        id: u64,
        way: Way,
        lane: &Lane,
        part: (u64, u64),
    ) -> Result<Beginning, Status> {
        let mut core = self.core.lock_on(thread);
        let unbound = core.unbound.find(id)?;
        let memory = unbound.part(part)?;
        let envelope = Envelope { comm: unbound.comm, tag: lane.slot };
        let (number, serial) = unbound.side(way).begin(id, lane)?;
        Ok(Beginning { ticket: Ticket { id, number, way }, serial, memory, envelope })
    }

    /// It has begun, or has ended in its call, or was refused.
    fn unbound_begun(
        &self,
        thread: Thread,
        begins: &Beginning,
        begun: Result<Begun, Status>,
    ) -> Result<(), Status> {
        let Ticket { id, number, way } = begins.ticket;
        let mut core = self.core.lock_on(thread);
        // Not there any more: this operation has ended meanwhile, and somebody has destroyed the buffer.
        let Some(unbound) = core.unbound.find_any(id) else { return Ok(()) };
        let gone = unbound.gone;
        match begun {
            Ok(Begun::UnderWay(request)) => {
                let waits = unbound.side(way).returned(number, begins.serial, request);
                drop(core);
                if gone && waits {
                    // Who destroys the buffer did not find the request.
                    let _ = self.message_give_up(request);
                }
                Ok(())
            }
            Ok(Begun::Ended(end)) => {
                unbound.side(way).end(number, end);
                drop(core);
                self.tell_others();
                Ok(())
            }
            Err(status) => {
                unbound.side(way).leave(number);
                drop(core);
                if gone {
                    // Who destroys the buffer waits for this.
                    self.tell_others();
                }
                Err(status)
            }
        }
    }

    /// Cancels what is under way and lets a buffer go. On return its memory is the caller's.
    pub fn unbound_destroy(&self, id: u64) -> Result<(), Status> {
        self.refuse_inside()?;
        self.core.lock().unbound.find(id)?.gone = true;
        self.unbound_give_up(id);
        let free = || self.core.lock().unbound.find_any(id).is_none_or(|unbound| unbound.is_free());
        let waiter = Arc::new(Waiter::default());
        self.waiting(|| while !free() && !self.block(&waiter, None, free) {});
        self.core.lock().unbound.remove(id);
        Ok(())
    }

    /// Asks for the end of what is under way.
    pub fn unbound_cancel(&self, id: u64) -> Result<(), Status> {
        self.core.lock().unbound.find(id)?;
        self.unbound_give_up(id);
        Ok(())
    }

    fn unbound_give_up(&self, id: u64) {
        for way in [Way::Send, Way::Recv] {
            let mut at = 0;
            while let Some(request) = self.next_of_unbound(id, way, &mut at) {
                // It may have ended meanwhile.
                let _ = self.message_give_up(request);
            }
        }
        self.tell_others();
    }

    /// The next request of an operation under way.
    fn next_of_unbound(&self, id: u64, way: Way, at: &mut usize) -> Option<u64> {
        self.core.lock().unbound.find_any(id)?.side(way).next_request(at)
    }
}

enum Begun {
    Ended(MessageEnd),
    UnderWay(u64),
}

impl From<Received> for Begun {
    fn from(received: Received) -> Begun {
        match received {
            Received::Done(end) => Begun::Ended(end),
            Received::Begun(request) => Begun::UnderWay(request),
        }
    }
}

fn unknown(id: u64) -> Status {
    Status::new(Code::NotFound, text!("unbound buffer {id} is not known, or was destroyed"))
}

fn aborted(id: u64) -> Status {
    let text = text!("unbound buffer {id}: the wait was aborted");
    Status::new(Code::Cancelled, text).because(Reason::Cancelled)
}
