//! Whoever asks for the ends of an unbound buffer's operations: waits, counts, and the aborts of waits.

use std::sync::Arc;
use std::time::Duration;

use super::aborted;
use super::side::Peers;
use crate::engine::front::message::{MessageEnd, Party};
use crate::engine::front::pair::Way;
use crate::manager::{Manager, Timeout, Waiter, inside, seconds};
use crate::status::{Code, Reason, Status};
use crate::thread::Thread;

/// A wait for an end, until it is dropped.
struct Wait<'a> {
    manager: &'a Manager,
    id: u64,
    way: Way,
    number: u64,
}

impl Wait<'_> {
    /// An end, or why there will be none.
    fn take(&self) -> Option<Result<MessageEnd, Status>> {
        let mut core = self.manager.core.lock();
        let side = match core.unbound.find(self.id) {
            Ok(unbound) => unbound.side(self.way),
            Err(status) => return Some(Err(status)),
        };
        let taken = side.take(self.number, self.id);
        // At the manager's end whoever waits is woken, and looks once more. What is under way ends, and is the library's until then.
        if taken.is_some() || side.is_under_way() {
            return taken;
        }
        self.manager.refuse_closing().err().map(Err)
    }

    /// It is over. True: it was aborted.
    fn end(&self) -> bool {
        let mut core = self.manager.core.lock();
        let unbound = core.unbound.find_any(self.id);
        unbound.is_some_and(|unbound| unbound.side(self.way).waits.end(self.number))
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
impl Manager {
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
        self.refuse_inside_on(thread)?;
        let mut core = self.core.lock_on(thread);
        let side = core.unbound.find(id)?.side(way);
        if let Some(taken) = side.take_now(id) {
            if way == Way::Send {
                // Who has waited for a send may end the process: see `message_send`.
                core.world.push();
            }
            return taken;
        }
        let number = side.waits.begin()?;
        drop(core);
        self.unbound_wait_long(&Wait { manager: self, id, way, number }, timeout)
    }

    /// The same where no end is there.
    fn unbound_wait_long(&self, wait: &Wait<'_>, timeout: Timeout) -> Result<MessageEnd, Status> {
        let limit = match timeout {
            Timeout::Default => Some(Duration::from_millis(self.config.timeout_ms)),
            Timeout::After(limit) => Some(limit),
            Timeout::Never => None,
        };
        let (id, way) = (wait.id, wait.way);
        let waiter = Arc::new(Waiter::default());
        let mut taken = None;
        self.waiting(|| {
            self.block_to_the_end(&waiter, limit, || {
                taken = wait.take();
                taken.is_some()
            })
        });
        if way == Way::Send {
            self.push();
        }
        // An abort that came with the end of the time is not for the next wait.
        let was_aborted = wait.end();
        taken = taken.or_else(|| was_aborted.then(|| Err(aborted(id))));
        taken.unwrap_or_else(|| {
            self.refuse_closing()?;
            let what = if way == Way::Send { "no send ended" } else { "no receive ended" };
            let time = limit.map_or_else(String::new, |l| format!(" within {}", seconds(l)));
            let waits = self.waits_for(id, way);
            let text = text!("unbound buffer {id}: {what}{time}; {waits}");
            Err(Status::new(Code::DeadlineExceeded, text).because(Reason::Deadline))
        })
    }

    /// What of an unbound buffer has not ended, for the error of who waits for that.
    fn waits_for(&self, id: u64, way: Way) -> String {
        let none = || "none is under way".to_owned();
        let mut core = self.core.lock();
        let Ok(unbound) = core.unbound.find(id) else { return none() };
        let (comm, side) = (unbound.comm, unbound.side(way));
        let waits = || side.begun.iter().map(|(_, op)| op).filter(|op| op.end.is_none());
        let first = waits().min_by_key(|op| op.serial);
        let Some(lane) = first.and_then(|first| side.lane(first)) else { return none() };
        let peers = match &lane.peers {
            Peers::One(one) => std::slice::from_ref(one),
            Peers::Some(some) => &some[..],
        };
        let (count, slot, peers) = (waits().count(), lane.slot, peers.to_vec());
        drop(core);
        let name = |&party: &Party| match (self.party_name(party), self.unconnected(party)) {
            (Ok(name), None) => format!("peer '{name}'"),
            (Ok(name), Some(why)) => format!("peer '{name}' (not connected: {why})"),
            (Err(_), _) => "anybody".to_owned(),
        };
        let whose = crate::store::named(peers.iter().map(name));
        let way = if way == Way::Send { "to" } else { "from" };
        format!("{count} under way, the first of slot {slot} of communicator {comm} {way} {whose}")
    }

    /// Why a peer is not connected, if it is not.
    fn unconnected(&self, party: Party) -> Option<String> {
        let core = self.core.lock();
        let known = core.engine.peer(party.index()?)?;
        (known.channels.is_empty() && party != Party::OWN).then(|| known.tries.text())
    }

    /// Ends of sends and of receives that could be taken at once. Drives progress once if there are none, on this thread, whose log
    /// messages wait already.
    pub(crate) fn unbound_counts(&self, thread: Thread, id: u64) -> Result<(u64, u64), Status> {
        let counts = || {
            let mut core = self.core.lock_on(thread);
            let unbound = core.unbound.find(id)?;
            Ok((unbound.sends.ended.len() as u64, unbound.recvs.ended.len() as u64))
        };
        let now = counts()?;
        if now != (0, 0) || inside::contains(self, thread) {
            return Ok(now);
        }
        self.turn_on(thread);
        counts()
    }

    /// A wait that is under way, or else the next one, returns.
    pub fn unbound_abort(&self, id: u64, way: Way) -> Result<(), Status> {
        self.core.lock().unbound.find(id)?.side(way).waits.abort();
        self.tell_others();
        Ok(())
    }
}
