//! Who waits for room to send.

use super::Party;
use super::flow::{ROOM, WINDOW};
use crate::engine::{Engine, Fx, Work};
use crate::status::{Code, Reason, Status};

/// Told, once: so many bytes may be sent, or why that will not be.
pub type RoomFn = Box<dyn FnOnce(Result<u64, Status>) + Send>;

pub(super) struct RoomWait {
    peer: u32,
    bytes: u64,
    deadline: u64,
    told: RoomFn,
}

impl Engine {
    /// Whether messages to this peer would wait, and how many bytes of content a message may have that does not.
    pub fn message_room(&self, party: Party) -> Result<u64, Status> {
        if party == Party::OWN {
            return Ok(WINDOW);
        }
        let peer = self.known_party(party)?;
        Ok(self.room_for(peer))
    }

    fn room_for(&self, peer: u32) -> u64 {
        let p = self.peers.get(peer).filter(|p| p.outbox.is_empty());
        let c = p.and_then(|p| self.channels.get(*p.channels.first()?));
        c.filter(|c| c.takes_messages()).map_or(0, |c| c.flow.room())
    }

    /// Tells, once, when so many bytes may be sent to a peer.
    pub fn message_on_room(
        &mut self,
        fx: &mut impl Fx,
        party: Party,
        bytes: u64,
        told: RoomFn,
    ) -> Result<(), Status> {
        if self.closing {
            return Err(Self::ending());
        }
        if bytes == 0 || bytes > WINDOW {
            let text = format!("bytes is {bytes}, allowed are 1 to {WINDOW}");
            return Err(Status::invalid(text));
        }
        // More than that there may not be again, whatever is taken.
        let bytes = bytes.min(ROOM);
        let room = self.message_room(party)?;
        self.admit(fx)?;
        if room >= bytes {
            fx.run(Work::Call(Box::new(move || told(Ok(room)))));
            return Ok(());
        }
        let peer = self.known_party(party)?;
        crate::room::grow(&mut self.messages.rooms, 1, "events")?;
        self.peers.keep(peer);
        let deadline = fx.now().saturating_add(self.settings.timeout);
        self.messages.rooms.push(RoomWait { peer, bytes, deadline, told });
        self.rooms_due_by(deadline);
        if !self.await_room(peer, true) {
            self.want_connection(fx, peer);
        }
        Ok(())
    }

    /// The connection by which messages go to this peer is looked at for room whenever something happens on it, or no more.
    /// False: there is none.
    fn await_room(&mut self, peer: u32, awaited: bool) -> bool {
        let first = self.peers.get(peer).and_then(|p| p.channels.first().copied());
        let c = first.and_then(|ch| self.channels.get_mut(ch));
        c.map(|c| c.flow.awaited = awaited).is_some()
    }

    /// There may be room for messages to this peer.
    #[cold]
    pub(in crate::engine) fn tell_rooms(&mut self, fx: &mut impl Fx, peer: u32) {
        let room = self.room_for(peer);
        let (mut at, mut awaited) = (0, false);
        while let Some(wait) = self.messages.rooms.get(at) {
            if wait.peer == peer && wait.bytes <= room && fx.fits(1) {
                let told = self.messages.rooms.remove(at).told;
                fx.run(Work::Call(Box::new(move || told(Ok(room)))));
            } else {
                awaited |= wait.peer == peer;
                at += 1;
            }
        }
        self.await_room(peer, awaited);
    }

    /// There will be none: to this peer, or to any.
    pub(in crate::engine) fn fail_rooms(
        &mut self,
        fx: &mut impl Fx,
        peer: Option<u32>,
        status: &Status,
    ) {
        let mut at = 0;
        while let Some(wait) = self.messages.rooms.get(at) {
            if peer.is_some_and(|peer| peer != wait.peer) {
                at += 1;
                continue;
            }
            let (told, status) = (self.messages.rooms.remove(at).told, status.clone());
            fx.run(Work::Call(Box::new(move || told(Err(status)))));
        }
    }

    fn rooms_due_by(&mut self, deadline: u64) {
        self.messages.rooms_due = self.messages.rooms_due.min(deadline);
        self.next_deadline = self.next_deadline.min(deadline);
    }

    /// Tells those for whom there was no room in time.
    pub(super) fn expire_rooms(&mut self, fx: &mut impl Fx, now: u64) {
        if now < self.messages.rooms_due {
            return;
        }
        self.messages.rooms_due = u64::MAX;
        let mut at = 0;
        while let Some(wait) = self.messages.rooms.get(at) {
            let (peer, deadline) = (wait.peer, wait.deadline);
            if now < deadline || !fx.fits(1) {
                // Without memory to tell it, it is tried again.
                self.rooms_due_by(deadline);
                at += 1;
                continue;
            }
            let whom = self.peers.get(peer).map_or_else(String::new, |p| p.told());
            let time = self.settings.timeout as f64 / 1e9;
            let text = format!("{whom} had no room for messages within {time:.3} s");
            let status = Status::new(Code::DeadlineExceeded, text).because(Reason::Deadline);
            let told = self.messages.rooms.remove(at).told;
            fx.run(Work::Call(Box::new(move || told(Err(status)))));
        }
    }

    /// What waits for room is to be offered then, if there is none before.
    pub(super) fn offer_later(&mut self, at: u64) {
        self.messages.held = self.messages.held.min(at);
        self.next_deadline = self.next_deadline.min(at);
    }

    /// Offers what has waited for room for long enough.
    pub(in crate::engine) fn offer_held(&mut self, fx: &mut impl Fx, now: u64) {
        if now < self.messages.held {
            return;
        }
        self.messages.held = u64::MAX;
        let mut at = 0;
        while let Some(ch) = self.channels.next(&mut at, |c| c.flow.held().is_some()) {
            let Some(c) = self.channels.get_mut(ch) else { continue };
            match c.flow.held() {
                Some(until) if now < until => self.offer_later(until),
                _ => {
                    c.flow.ripen(now);
                    self.settle(fx, ch);
                }
            }
        }
    }

    /// Whether anybody waits for room.
    pub(in crate::engine) fn awaits_room(&self) -> bool {
        !self.messages.rooms.is_empty()
    }
}

/// A manager that ends gives no room.
pub(super) fn ended() -> Status {
    Status::new(Code::Cancelled, "the manager is being destroyed").because(Reason::Cancelled)
}
