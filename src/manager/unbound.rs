//! Unbound buffers: memory from which messages go to any peer, and to which they come from any, by slot.
//!
//! They are made of tagged messages: a slot is a tag of the buffer's communicator. What an operation's end is told to is
//! the buffer, whose waits take the ends. So a wait costs the same however many operations are under way.
//!
//! An end says whose it is by peer and slot alone. Of several operations with one peer and slot it is therefore that of the one that
//! was called first: who has two receives under way, and is told of one, reads the first's place. Contents arrive in another order
//! than their messages (a short one overtakes a long one; two threads that drive copy at once), so an end waits in its [`Lane`] for
//! those before it.

use std::collections::VecDeque;

use foldhash::HashMap;

use super::*;
use crate::api::Words;
use crate::engine::front::message::{
    Memory, MessageEnd, Mode, OnMessage, Party, Sending, Sources, Wanted,
};
use crate::engine::front::pair::Way;
use crate::engine::list::{Fifo, Links};
use crate::engine::slab::Slab;
use crate::protocol::message::{Envelope, Extra};

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

/// Operations with the same peers and of the same slot: of two of these, a message of one of the peers meets the one that was called
/// first.
#[derive(PartialEq, Eq, Hash)]
struct Lane {
    slot: u64,
    peers: Peers,
}

#[derive(PartialEq, Eq, Hash)]
enum Peers {
    /// Or anybody.
    One(Party),
    /// In order, each once.
    Some(Vec<Party>),
}

impl Lane {
    /// Of these peers, in order, each once; of none: of anybody.
    fn of(slot: u64, peers: &[Party]) -> Result<Lane, Status> {
        let peers = match *peers {
            [] => Peers::One(Party::ANY),
            [one] => Peers::One(one),
            _ => {
                let mut copy = Vec::new();
                crate::room::grow(&mut copy, peers.len(), "peers of a receive")?;
                copy.extend_from_slice(peers);
                Peers::Some(copy)
            }
        };
        Ok(Lane { slot, peers })
    }

    fn copy(&self) -> Result<Lane, Status> {
        match &self.peers {
            Peers::One(one) => Ok(Lane { slot: self.slot, peers: Peers::One(*one) }),
            Peers::Some(peers) => Lane::of(self.slot, peers),
        }
    }
}

/// With so many lanes one that becomes empty is kept: it is mostly used again.
const LANES: usize = 64;

/// Its operations in one direction.
#[derive(Default)]
struct Side {
    /// Those under way, and those whose end waits for one before it.
    begun: Slab<UnderWay>,
    /// The same by lane, in the order of the calls. Of more than [`LANES`] none is empty.
    lanes: HashMap<Lane, Fifo>,
    /// Rises as a call begins an operation, and as it returns.
    serial: u64,
    /// Ends that were not taken. There is always room for those of all that have begun.
    ended: VecDeque<MessageEnd>,
    /// So many waits, those under way first, are to return.
    aborts: u64,
    /// The buffer is being destroyed.
    gone: bool,
}

/// An operation under way.
struct UnderWay {
    /// When its call began, and returned.
    serial: u64,
    returned: u64,
    lane: Lane,
    links: Links,
    /// Its request, once that is known.
    request: Option<u64>,
    /// How it has ended; one before it has not.
    end: Option<MessageEnd>,
}

fn links(op: &mut UnderWay) -> &mut Links {
    &mut op.links
}

impl Side {
    /// Takes an operation in, whose call begins: its place, and when that was.
    fn begin(&mut self, id: u64, lane: Lane) -> Result<(u32, u64), Status> {
        let under_way = self.begun.len() + 1;
        crate::room::grow(&mut self.ended, under_way, "operations of an unbound buffer")?;
        let queue = match self.lanes.get_mut(&lane) {
            Some(queue) => queue,
            None => {
                crate::room::grow(&mut self.lanes, 1, "operations of an unbound buffer")?;
                self.lanes.entry(lane.copy()?).or_default()
            }
        };
        self.serial += 1;
        let (serial, returned) = (self.serial, u64::MAX);
        let op =
            UnderWay { serial, returned, lane, links: Links::default(), request: None, end: None };
        let number = self.begun.insert(op).map_err(|_| {
            let text = format!(
                "{} operations of unbound buffer {id} are under way: no room for more",
                under_way - 1
            );
            Status::new(Code::ResourceExhausted, text)
        })?;
        queue.push(&mut self.begun, links, number);
        Ok((number, serial))
    }

    /// Its call returns, and it has this request. False: it has ended meanwhile, and another may be in its place.
    fn returned(&mut self, number: u32, serial: u64, request: u64) -> bool {
        let Some(op) = self.begun.get_mut(number).filter(|op| op.serial == serial) else {
            return false;
        };
        self.serial += 1;
        (op.returned, op.request) = (self.serial, Some(request));
        true
    }

    /// An operation has ended.
    fn end(&mut self, number: u32, end: MessageEnd) {
        if end.result.is_err() {
            // It may have met nothing, while those before it wait for something: nobody takes it for one of these.
            self.ended.push_back(end);
            self.leave(number);
        } else if let Some(op) = self.begun.get_mut(number) {
            op.end = Some(end);
            self.let_go(number);
        }
    }

    /// It is not there any more. What ended behind it can be taken, if nothing else is before that.
    fn leave(&mut self, number: u32) {
        let Some(op) = self.begun.remove(number) else { return };
        let Some(lane) = self.lanes.get_mut(&op.lane) else { return };
        lane.remove(&mut self.begun, links, number, op.links);
        match lane.first() {
            Some(first) => self.let_go(first),
            None if self.lanes.len() > LANES => drop(self.lanes.remove(&op.lane)),
            None => {}
        }
    }

    /// Ends of this one's lane that can be taken are: those before which all has ended whose calls had returned before theirs began.
    /// Of calls that were made at once nobody knows which came first, and a message may meet either.
    fn let_go(&mut self, number: u32) {
        let Some(lane) = self.begun.get(number).and_then(|op| self.lanes.get_mut(&op.lane)) else {
            return;
        };
        let (mut at, mut before) = (lane.first(), u64::MAX);
        while let Some((number, op)) = at.and_then(|at| Some((at, self.begun.get_mut(at)?))) {
            if op.serial > before {
                return;
            }
            at = op.links.next();
            let Some(end) = op.end.take() else {
                before = before.min(op.returned);
                continue;
            };
            let around = op.links;
            self.ended.push_back(end);
            lane.remove(&mut self.begun, links, number, around);
            let gone = self.begun.remove(number);
            if let (Some(op), true) = (gone, at.is_none() && lane.is_empty()) {
                if self.lanes.len() > LANES {
                    self.lanes.remove(&op.lane);
                }
                return;
            }
        }
    }

    /// The request of an operation under way, from place `at` on.
    fn next_request(&mut self, at: &mut usize) -> Option<u64> {
        let index = self.begun.next(at, |op| op.request.is_some())?;
        self.begun.get(index)?.request
    }
}

impl Unbound {
    fn side(&self, way: Way) -> &Mutex<Side> {
        if way == Way::Send { &self.sends } else { &self.recvs }
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
        (offset, len): (u64, u64),
        timeout: Timeout,
    ) -> Result<(), Status> {
        let unbound = self.unbound(id)?;
        let memory = unbound.part(offset, len)?;
        let envelope = Envelope { comm: unbound.comm, tag: slot };
        let post = Post { to, envelope, extra: &Extra::default(), mode: Mode::Standard, timeout };
        let lane = (Way::Send, Lane::of(slot, &[to])?);
        self.unbound_begin(id, unbound, lane, |done| {
            // SAFETY: within the buffer, which is valid until all its operations have ended.
            let sending = unsafe { self.message_isend(&post, Where::Whole(memory), done) }?;
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
        sources: Vec<Party>,
        slot: u64,
        (offset, len): (u64, u64),
        timeout: Timeout,
    ) -> Result<(), Status> {
        let unbound = self.unbound(id)?;
        let memory = unbound.part(offset, len)?;
        let (comm, mask) = (unbound.comm, u64::MAX);
        let from = match *sources {
            [] => Some(Party::ANY),
            [one] => Some(one),
            _ => None,
        };
        let sources = Sources::new(sources);
        let lane = (Way::Recv, Lane::of(slot, sources.parties())?);
        self.unbound_begin(id, unbound, lane, |done| {
            // SAFETY: within the buffer, which is valid until all its operations have ended.
            let received = unsafe {
                match from {
                    Some(from) => {
                        let wanted = Wanted { from, comm, tag: slot, mask };
                        self.message_irecv(wanted, Where::Whole(memory), timeout, done)
                    }
                    None => {
                        let envelope = Envelope { comm, tag: slot };
                        self.message_irecv_from(sources, envelope, memory, timeout, done)
                    }
                }
            }?;
            Ok(match received {
                Received::Done(end) => Begun::Ended(end),
                Received::Begun(request) => Begun::UnderWay(request),
            })
        })
    }

    /// Begins an operation of a buffer, whose end the buffer is told.
    fn unbound_begin(
        &self,
        id: u64,
        unbound: Arc<Unbound>,
        (way, lane): (Way, Lane),
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
                ticket.unbound.side(way).lock().leave(number);
                Err(status)
            }
        }
    }

    /// Takes the end of a send, or of a receive; waits until there is one.
    pub fn unbound_wait(&self, id: u64, way: Way, timeout: Timeout) -> Result<MessageEnd, Status> {
        let call =
            if way == Way::Send { "rdma_unbound_wait_send" } else { "rdma_unbound_wait_recv" };
        self.refuse_inside(call)?;
        let unbound = self.unbound(id)?;
        let limit = match timeout {
            Timeout::Default => Some(Duration::from_millis(self.config.timeout_ms)),
            Timeout::After(limit) => Some(limit),
            Timeout::Never => None,
        };
        let take = || {
            let mut side = unbound.side(way).lock();
            if side.gone {
                return Some(Err(unknown(id)));
            }
            if side.aborts > 0 {
                side.aborts -= 1;
                let text = format!("unbound buffer {id}: the wait was aborted");
                return Some(Err(Status::new(Code::Cancelled, text).because(Reason::Cancelled)));
            }
            let ended = side.ended.pop_front();
            drop(side);
            // At the manager's end whoever waits is woken, and looks once more.
            ended.map(Ok).or_else(|| self.refuse_closing().err().map(Err))
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
        let peers = match &first.lane.peers {
            Peers::One(one) => std::slice::from_ref(one),
            Peers::Some(some) => &some[..],
        };
        let (count, slot, peers) = (waits().count(), first.lane.slot, peers.to_vec());
        drop(side);
        let name = |&party: &Party| match self.party_name(party) {
            Ok(name) => format!("peer '{name}'"),
            Err(_) => "anybody".to_owned(),
        };
        let whose = crate::store::named(peers.iter().map(name));
        let (way, comm) = (if way == Way::Send { "to" } else { "from" }, unbound.comm);
        format!("{count} under way, the first of slot {slot} of communicator {comm} {way} {whose}")
    }

    /// Ends of sends and of receives that could be taken at once. Drives progress once if there are none.
    pub fn unbound_counts(&self, id: u64) -> Result<(u64, u64), Status> {
        let unbound = self.unbound(id)?;
        let counts = || {
            let ended = |way| unbound.side(way).lock().ended.len() as u64;
            (ended(Way::Send), ended(Way::Recv))
        };
        if counts() == (0, 0) && !self.inside_callback() {
            self.turn();
        }
        Ok(counts())
    }

    /// The wait that is under way, or else the next one, returns.
    pub fn unbound_abort(&self, id: u64, way: Way) -> Result<(), Status> {
        self.unbound(id)?.side(way).lock().aborts += 1;
        self.tell_others();
        Ok(())
    }

    /// Cancels what is under way and lets a buffer go. On return its memory is the caller's.
    pub fn unbound_destroy(&self, id: u64) -> Result<(), Status> {
        self.refuse_inside("rdma_unbound_destroy")?;
        let unbound = self.unbound.lock().all.remove(&id).ok_or_else(|| unknown(id))?;
        for way in [Way::Send, Way::Recv] {
            unbound.side(way).lock().gone = true;
            let mut at = 0;
            // Not within the lock, which the ends take.
            while let Some(request) = unbound.side(way).lock().next_request(&mut at) {
                // It may have ended meanwhile.
                let _ = self.message_give_up(request);
            }
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

fn unknown(id: u64) -> Status {
    Status::new(Code::NotFound, format!("unbound buffer {id} is not known, or was destroyed"))
}

fn being_destroyed() -> Status {
    Status::new(Code::NotFound, "the unbound buffer is being destroyed")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(len: u64, code: Code) -> MessageEnd {
        let result = if code == Code::Ok { Ok(()) } else { Err(Status::new(code, "")) };
        let (party, envelope) = (Party::peer(1), Envelope { comm: 0, tag: 7 });
        MessageEnd { result, party, envelope, len, extra: None, short: Default::default() }
    }

    fn begin(side: &mut Side, slot: u64) -> (u32, u64) {
        side.begin(1, Lane::of(slot, &[Party::peer(1)]).unwrap()).unwrap()
    }

    fn ended(side: &mut Side) -> Vec<u64> {
        side.ended.drain(..).map(|end| end.len).collect()
    }

    #[test]
    fn an_end_waits_for_those_before_it_and_for_no_failure() {
        let mut side = Side::default();
        let ops: Vec<u32> = (0..5)
            .map(|i| {
                let (number, serial) = begin(&mut side, 7);
                assert!(side.returned(number, serial, i));
                number
            })
            .collect();
        let (other, _) = begin(&mut side, 8);
        side.end(ops[1], end(1, Code::Ok));
        side.end(ops[3], end(3, Code::DeadlineExceeded));
        side.end(ops[4], end(4, Code::Ok));
        side.end(other, end(8, Code::Ok));
        assert_eq!(ended(&mut side), [3, 8]);
        side.end(ops[0], end(0, Code::Cancelled));
        assert_eq!(ended(&mut side), [0, 1]);
        // Its call fails: it has no end.
        side.leave(ops[2]);
        assert_eq!(ended(&mut side), [4]);
        assert!(side.begun.is_empty() && side.lanes.values().all(|lane| lane.is_empty()));
    }

    #[test]
    fn of_calls_made_at_once_neither_waits_for_the_other() {
        let mut side = Side::default();
        let [a, b] = [(); 2].map(|()| begin(&mut side, 7));
        assert!(side.returned(b.0, b.1, 2) && side.returned(a.0, a.1, 1));
        let c = begin(&mut side, 7);
        side.end(c.0, end(3, Code::Ok));
        assert!(side.returned(c.0, c.1, 3), "it is not gone");
        assert!(side.ended.is_empty());
        side.end(b.0, end(2, Code::Ok));
        assert_eq!(ended(&mut side), [2]);
        side.end(a.0, end(1, Code::Ok));
        assert_eq!(ended(&mut side), [1, 3]);
        assert!(side.begun.is_empty() && side.lanes.values().all(|lane| lane.is_empty()));
        assert!(!side.returned(a.0, a.1, 1));
    }

    #[test]
    fn lanes_that_are_empty_are_bounded() {
        let mut side = Side::default();
        for slot in 0..10 * LANES as u64 {
            let [a, b] = [(); 2].map(|()| begin(&mut side, slot));
            side.leave(a.0);
            side.end(b.0, end(slot, Code::Ok));
            let [c, d] = [(); 2].map(|()| begin(&mut side, slot));
            side.end(d.0, end(slot, Code::Ok));
            side.leave(c.0);
        }
        assert!(side.begun.is_empty() && side.lanes.len() <= LANES + 1);
    }
}
