//! Unbound buffers: memory from which messages go to any peer, and to which they come from any, by slot.
//!
//! They are made of tagged messages: a slot is a tag of the buffer's communicator. What an operation's end is told to is
//! the buffer, whose waits take the ends. So a wait costs the same however many operations are under way.
//!
//! An end says whose it is by peer and slot alone. Of several operations with one peer and slot it is therefore that of the one that
//! was called first: who has two receives under way, and is told of one, reads the first's place. Contents arrive in another order
//! than their messages (a short one overtakes a long one; two threads that drive copy at once), so an end waits in its [`Lane`] for
//! those before it.

mod side;
mod waits;

use foldhash::HashMap;

use super::*;
use crate::api::Words;
use crate::engine::front::message::{
    Memory, MessageEnd, Mode, OnMessage, Party, Sending, Sources, Wanted,
};
use crate::engine::front::pair::Way;
use crate::protocol::message::{Envelope, Extra, UsualMsg};
use side::{Lane, Peers, Side};

/// The unbound buffers of a manager.
#[derive(Default)]
pub(super) struct AllUnbound {
    last: u64,
    all: HashMap<u64, Arc<Unbound>>,
}

/// One of them.
struct Unbound {
    comm: u32,
    addr: u64,
    len: u64,
    sends: Mutex<Side>,
    recvs: Mutex<Side>,
}

impl Unbound {
    fn side(&self, way: Way) -> &Mutex<Side> {
        if way == Way::Send { &self.sends } else { &self.recvs }
    }

    /// Gives up what is under way in one direction; nothing else begins there.
    fn give_up(&self, way: Way, mut give_up: impl FnMut(u64)) {
        let side = self.side(way);
        side.lock().gone = true;
        let mut at = 0;
        loop {
            // Not within the lock, which the ends take.
            let next = side.lock().next_request(&mut at);
            let Some(request) = next else { return };
            give_up(request);
        }
    }

    /// The part of its memory that an operation is about.
    fn part(&self, offset: u64, len: u64) -> Result<Memory, Status> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            let text = format!(
                "{len} bytes at offset {offset} of an unbound buffer of {} bytes, allowed are those within it",
                self.len
            );
            return Err(Status::new(Code::OutOfRange, text));
        }
        Ok(Memory { addr: self.addr + offset, len, device: 0 })
    }
}

/// A wait for an end, until it is dropped.
struct Wait<'a> {
    side: &'a Mutex<Side>,
    number: u64,
}

impl<'a> Wait<'a> {
    fn begin(side: &'a Mutex<Side>) -> Result<Wait<'a>, Status> {
        let number = side.lock().waits.begin()?;
        Ok(Wait { side, number })
    }

    /// An end, or why there will be none.
    fn take(&self, id: u64) -> Option<Result<MessageEnd, Status>> {
        let mut side = self.side.lock();
        if side.gone {
            return Some(Err(unknown(id)));
        }
        if side.waits.is_aborted(self.number) {
            return Some(Err(aborted(id)));
        }
        let end = side.ended.pop_front()?;
        // From now on an abort is for others.
        side.waits.end(self.number);
        Some(Ok(end))
    }

    /// It is over. True: it was aborted.
    fn end(&self) -> bool {
        self.side.lock().waits.end(self.number)
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// An operation's share in its buffer, as the two words that its end is told with.
struct Ticket {
    unbound: Arc<Unbound>,
    /// Its place among those under way.
    number: u32,
    way: Way,
}

impl Ticket {
    fn words(self) -> Words {
        let way = usize::from(self.way == Way::Recv);
        [Arc::into_raw(self.unbound) as usize, (self.number as usize) << 1 | way]
    }

    /// # Safety
    /// The words are of `words`, and this is the only call with them.
    unsafe fn of([unbound, number]: Words) -> Ticket {
        // SAFETY: by this function's contract, `words` has let go of one reference.
        let unbound = unsafe { Arc::from_raw(unbound as *const Unbound) };
        let way = if number & 1 == 0 { Way::Send } else { Way::Recv };
        Ticket { unbound, number: (number >> 1) as u32, way }
    }

    fn end(self, end: MessageEnd) {
        self.unbound.side(self.way).lock().end(self.number, end);
    }
}

fn told(words: Words, end: &MessageEnd) {
    // SAFETY: an operation ends once, and these are the words of its ticket.
    unsafe { Ticket::of(words) }.end(end.clone());
}

impl Manager {
    /// Makes an unbound buffer over memory of the host.
    ///
    /// # Safety
    /// The memory stays valid until `unbound_destroy` has returned well, or the manager is gone.
    pub unsafe fn unbound_create(&self, comm: u32, addr: u64, len: u64) -> Result<u64, Status> {
        self.refuse_closing()?;
        let mut kept = self.unbound.lock();
        crate::room::grow(&mut kept.all, 1, "unbound buffers")?;
        kept.last += 1;
        let (id, (sends, recvs)) = (kept.last, Default::default());
        kept.all.insert(id, Arc::new(Unbound { comm, addr, len, sends, recvs }));
        Ok(id)
    }

    fn unbound(&self, id: u64) -> Result<Arc<Unbound>, Status> {
        self.unbound.lock().all.get(&id).cloned().ok_or_else(|| unknown(id))
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
        self.unbound_send_on(Thread::this(), id, to, slot, part, timeout)
    }

    /// The same on this thread.
    pub(crate) fn unbound_send_on(
        &self,
        thread: Thread,
        id: u64,
        to: Party,
        slot: u64,
        (offset, len): (u64, u64),
        timeout: Timeout,
    ) -> Result<(), Status> {
        let unbound = self.unbound(id)?;
        let memory = unbound.part(offset, len)?;
        let envelope = Envelope { comm: unbound.comm, tag: slot };
        let lane = Lane::of(slot, &[to])?;
        self.unbound_begin(id, unbound, (Way::Send, &lane), |done| {
            let beside = UsualMsg { envelope, active: false, user: &[], content: &[] };
            // SAFETY: within the buffer, which is valid until all its operations have ended.
            let sending = unsafe {
                match self.message_send_short(thread, to, beside, &memory) {
                    true => Sending::Done,
                    false => {
                        let (extra, mode) = (&Extra::default(), Mode::Standard);
                        let post = Post { to, envelope, extra, mode, timeout };
                        self.message_isend_on(thread, &post, Where::Whole(memory), done)?
                    }
                }
            };
            Ok(match sending {
                Sending::Done => {
                    let (result, extra) = (Ok(()), None);
                    let short = Default::default();
                    Begun::Ended(MessageEnd { result, party: to, envelope, len, extra, short })
                }
                Sending::Begun(request) => Begun::UnderWay(request),
            })
        })
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
        (offset, len): (u64, u64),
        timeout: Timeout,
    ) -> Result<(), Status> {
        let unbound = self.unbound(id)?;
        let memory = unbound.part(offset, len)?;
        let (comm, mask) = (unbound.comm, u64::MAX);
        let from = match *sources {
            [] => Party::ANY,
            [one] => one,
            _ => return self.unbound_recv_of(id, unbound, sources, slot, memory, timeout),
        };
        let lane = Lane::of(slot, &[from])?;
        self.unbound_begin(id, unbound, (Way::Recv, &lane), |done| {
            let wanted = Wanted { from, comm, tag: slot, mask };
            // SAFETY: within the buffer, which is valid until all its operations have ended.
            unsafe {
                if let Some(id) = self.message_post(thread, &wanted, &memory, timeout, done) {
                    return Ok(Begun::UnderWay(id));
                }
                let at = Where::Whole(memory);
                self.message_irecv_on(thread, wanted, at, timeout, done).map(Begun::from)
            }
        })
    }

    /// The same of several peers.
    fn unbound_recv_of(
        &self,
        id: u64,
        unbound: Arc<Unbound>,
        sources: &[Party],
        slot: u64,
        memory: Memory,
        timeout: Timeout,
    ) -> Result<(), Status> {
        let mut parties = Vec::new();
        crate::room::grow(&mut parties, sources.len(), "sources of a receive")?;
        parties.extend_from_slice(sources);
        let (sources, envelope) =
            (Sources::new(parties), Envelope { comm: unbound.comm, tag: slot });
        let lane = Lane::of(slot, sources.parties())?;
        self.unbound_begin(id, unbound, (Way::Recv, &lane), |done| {
            // SAFETY: within the buffer, which is valid until all its operations have ended.
            let received =
                unsafe { self.message_irecv_from(sources, envelope, memory, timeout, done) };
            received.map(Begun::from)
        })
    }

    /// Begins an operation of a buffer, whose end the buffer is told.
    fn unbound_begin(
        &self,
        id: u64,
        unbound: Arc<Unbound>,
        (way, lane): (Way, &Lane),
        begin: impl FnOnce(OnMessage) -> Result<Begun, Status>,
    ) -> Result<(), Status> {
        let (number, serial) = {
            let mut side = unbound.side(way).lock();
            if side.gone {
                return Err(being_destroyed());
            }
            side.begin(id, lane)?
        };
        let words = Ticket { unbound: unbound.clone(), number, way }.words();
        match begin(OnMessage::Plain(told, words)) {
            Ok(Begun::UnderWay(request)) => {
                let mut side = unbound.side(way).lock();
                let (gone, waits) = (side.gone, side.returned(number, serial, request));
                drop(side);
                if gone && waits {
                    // Who destroys the buffer did not find the request.
                    let _ = self.message_give_up(request);
                }
                Ok(())
            }
            Ok(Begun::Ended(end)) => {
                // SAFETY: an operation that ended in its call tells nobody else.
                unsafe { Ticket::of(words) }.end(end);
                self.tell_others();
                Ok(())
            }
            Err(status) => {
                // SAFETY: what was not begun tells nobody.
                let ticket = unsafe { Ticket::of(words) };
                let mut side = ticket.unbound.side(way).lock();
                side.leave(number);
                let gone = side.gone;
                drop(side);
                if gone {
                    // Who destroys the buffer waits for this.
                    self.tell_others();
                }
                Err(status)
            }
        }
    }

    /// Takes the end of a send, or of a receive; waits until there is one.
    pub fn unbound_wait(&self, id: u64, way: Way, timeout: Timeout) -> Result<MessageEnd, Status> {
        self.unbound_wait_on(Thread::this(), id, way, timeout)
    }

    /// The same on this thread.
    pub(crate) fn unbound_wait_on(
        &self,
        thread: Thread,
        id: u64,
        way: Way,
        timeout: Timeout,
    ) -> Result<MessageEnd, Status> {
        let call =
            if way == Way::Send { "rdma_unbound_wait_send" } else { "rdma_unbound_wait_recv" };
        self.refuse_inside_on(call, thread)?;
        let unbound = self.unbound(id)?;
        let limit = match timeout {
            Timeout::Default => Some(Duration::from_millis(self.config.timeout_ms)),
            Timeout::After(limit) => Some(limit),
            Timeout::Never => None,
        };
        let wait = Wait::begin(unbound.side(way))?;
        let take = || {
            let taken = wait.take(id);
            // At the manager's end whoever waits is woken, and looks once more.
            taken.or_else(|| self.refuse_closing().err().map(Err))
        };
        let mut taken = take();
        if taken.is_none() {
            let waiter = Arc::new(Waiter::default());
            self.waiting(|| {
                self.block(&waiter, limit, || {
                    taken = take();
                    taken.is_some()
                })
            });
        }
        // An abort that came with the end of the time is not for the next wait.
        let was_aborted = wait.end();
        taken = taken.or_else(|| was_aborted.then(|| Err(aborted(id))));
        taken.unwrap_or_else(|| {
            self.refuse_closing()?;
            let what = if way == Way::Send { "no send ended" } else { "no receive ended" };
            let time = limit.map_or_else(String::new, |l| format!(" within {}", seconds(l)));
            let waits = self.waits_for(&unbound, way);
            let text = format!("unbound buffer {id}: {what}{time}; {waits}");
            Err(Status::new(Code::DeadlineExceeded, text).because(Reason::Deadline))
        })
    }

    /// What of an unbound buffer has not ended, for the error of who waits for that.
    fn waits_for(&self, unbound: &Unbound, way: Way) -> String {
        let side = unbound.side(way).lock();
        let waits = || side.begun.iter().map(|(_, op)| op).filter(|op| op.end.is_none());
        let Some(first) = waits().min_by_key(|op| op.serial) else {
            return "none is under way".to_owned();
        };
        let Some(lane) = side.lane(first) else { return "none is under way".to_owned() };
        let peers = match &lane.peers {
            Peers::One(one) => std::slice::from_ref(one),
            Peers::Some(some) => &some[..],
        };
        let (count, slot, peers) = (waits().count(), lane.slot, peers.to_vec());
        drop(side);
        let name = |&party: &Party| match self.party_name(party) {
            Ok(name) => format!("peer '{name}'"),
            Err(_) => "anybody".to_owned(),
        };
        let whose = crate::store::named(peers.iter().map(name));
        let (way, comm) = (if way == Way::Send { "to" } else { "from" }, unbound.comm);
        format!("{count} under way, the first of slot {slot} of communicator {comm} {way} {whose}")
    }

    /// Ends of sends and of receives that could be taken at once. Drives progress once if there are none, on this thread, whose log
    /// messages wait already.
    pub(crate) fn unbound_counts(&self, thread: Thread, id: u64) -> Result<(u64, u64), Status> {
        let unbound = self.unbound(id)?;
        let counts = || {
            let ended = |way| unbound.side(way).lock().ended.len() as u64;
            (ended(Way::Send), ended(Way::Recv))
        };
        let now = counts();
        if now != (0, 0) || inside::contains(self, thread) {
            return Ok(now);
        }
        self.turn_on(thread);
        Ok(counts())
    }

    /// A wait that is under way, or else the next one, returns.
    pub fn unbound_abort(&self, id: u64, way: Way) -> Result<(), Status> {
        self.unbound(id)?.side(way).lock().waits.abort();
        self.tell_others();
        Ok(())
    }

    /// Cancels what is under way and lets a buffer go. On return its memory is the caller's.
    pub fn unbound_destroy(&self, id: u64) -> Result<(), Status> {
        self.refuse_inside("rdma_unbound_destroy")?;
        let unbound = self.unbound.lock().all.remove(&id).ok_or_else(|| unknown(id))?;
        for way in [Way::Send, Way::Recv] {
            // It may have ended meanwhile.
            unbound.give_up(way, |request| _ = self.message_give_up(request));
        }
        self.tell_others();
        let free =
            || [Way::Send, Way::Recv].iter().all(|&w| unbound.side(w).lock().begun.is_empty());
        let waiter = Arc::new(Waiter::default());
        self.waiting(|| while !free() && !self.block(&waiter, None, free) {});
        Ok(())
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
    Status::new(Code::NotFound, format!("unbound buffer {id} is not known, or was destroyed"))
}

fn aborted(id: u64) -> Status {
    let text = format!("unbound buffer {id}: the wait was aborted");
    Status::new(Code::Cancelled, text).because(Reason::Cancelled)
}

fn being_destroyed() -> Status {
    Status::new(Code::NotFound, "the unbound buffer is being destroyed")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A callback that runs within the call may wait for whoever takes an end, and that is who waits for the lock.
    #[test]
    fn nobody_is_kept_from_the_ends_while_what_is_under_way_is_given_up() {
        let (sends, recvs) = Default::default();
        let unbound = Unbound { comm: 0, addr: 0, len: 8, sends, recvs };
        let mut side = unbound.recvs.lock();
        for request in 1..=3 {
            let (number, serial) = side.begin(1, &Lane::of(7, &[]).unwrap()).unwrap();
            assert!(side.returned(number, serial, request));
        }
        drop(side);
        let mut given_up = Vec::new();
        unbound.give_up(Way::Recv, |request| {
            assert!(unbound.recvs.try_lock().is_some(), "the lock is held");
            given_up.push(request);
        });
        assert_eq!(given_up, [1, 2, 3]);
        assert!(unbound.recvs.lock().gone && !unbound.sends.lock().gone);
    }
}
