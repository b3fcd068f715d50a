//! How much may be sent before the receiver takes it: a window of bytes for each direction of a connection.
//!
//! Each message counts for its content and [`COST`]. The receiver raises the limit as messages meet their receives; a
//! sender that goes beyond it has broken the protocol.

use crate::protocol::message::OfferCost;
use crate::status::Status;

/// What a message counts for beside its content: about what it takes here to remember one.
pub const COST: u64 = 256;
/// Bytes that a peer may send before a receive has met any of them.
pub const WINDOW: u64 = 1 << 20;
/// A higher limit is told in steps of this at the least.
const STEP: u64 = WINDOW / 4;
/// So much may be sent, of what was sent before once all is taken: then the limit lags by less than a step.
pub const ROOM: u64 = WINDOW - STEP;
/// Offers of a connection that no receive has met. A message for which the window has no room for a while is offered: so a receive
/// finds it, whatever lies before it.
pub const OFFERS: u32 = 65_536;
/// Content up to this that is offered for lack of room alone goes with its offer, where that fits among [`OFFERED_FIRST`]: a receive that
/// meets it has it, and says so, which costs a third of asking for it.
pub const WHOLE_OFFER: u64 = 1024;
/// Bytes of headers and lengths of parts of these.
pub const OFFERED_BESIDE: u64 = 8 << 20;
/// Bytes of content that came with these.
pub const OFFERED_FIRST: u64 = 4 << 20;
/// Nanoseconds for which a message that would ride waits for room, before it is offered. An offer takes two messages and a
/// WRITE more, and, where more processes run than there are processors, a change of processes for each of these: a receiver that
/// takes one message after the other opens the window for a thousand short ones in that time. Longer than such a receiver is
/// kept waiting for its processor; short for one that waits for what lies behind a full window.
const HOLD: u64 = 20_000_000;
/// So many are offered then, and twice as many after each further while in which the peer has taken nothing. As long as it takes
/// offers no more than those are outstanding: a receiver that takes what comes, and was kept waiting for its processor, is not left
/// with thousands of offers, of which each costs it as much as thirty messages that ride, so that the window opens later and later. One
/// that waits for what lies behind 65,536 others has it in a quarter of a second.
const FIRST_OFFERS: u32 = 16;

/// Why a message by a connection that carries none any more ends it.
#[cold]
fn stopped() -> Status {
    Status::gone("the peer ended the connection: its messages come by another one")
}

fn with(all: OfferCost, more: OfferCost) -> OfferCost {
    OfferCost { beside: all.beside + more.beside, first: all.first + more.first }
}

fn without(all: OfferCost, less: OfferCost) -> OfferCost {
    let beside = all.beside.saturating_sub(less.beside);
    OfferCost { beside, first: all.first.saturating_sub(less.first) }
}

/// One connection's windows.
#[derive(Debug)]
pub struct Flow {
    sent: u64,
    limit: u64,
    received: u64,
    taken: u64,
    granted: u64,
    /// The peer's messages come by another connection, and none may by this: what was granted otherwise.
    stopped: Option<u64>,
    /// Offers of ours that have not ended.
    pub offered: u32,
    /// Bytes that went with them.
    offered_cost: OfferCost,
    /// Offers of the peer's that no receive has met.
    pub offers: u32,
    /// Bytes that came with them.
    offers_cost: OfferCost,
    /// Messages wait for room here.
    pub queued: bool,
    /// The first of them waits for the end of an offer, or for room until it is to be offered, and nothing else.
    pub short: bool,
    /// Until when messages that find no room wait; 0: none has found the window full since it was opened.
    held: u64,
    /// How many may be offered before they wait again.
    may_offer: u32,
    /// How many may be outstanding, and whether the peer has taken one since that was decided.
    batch: u32,
    took: bool,
    /// Somebody is to be told of room here, whatever makes it: the window, or credits of the connection.
    pub awaited: bool,
}

impl Default for Flow {
    fn default() -> Flow {
        Flow {
            sent: 0,
            limit: WINDOW,
            received: 0,
            taken: 0,
            granted: WINDOW,
            stopped: None,
            offered: 0,
            offered_cost: OfferCost { beside: 0, first: 0 },
            offers: 0,
            offers_cost: OfferCost { beside: 0, first: 0 },
            queued: false,
            short: false,
            held: 0,
            may_offer: 0,
            batch: 0,
            took: false,
            awaited: false,
        }
    }
}

impl Flow {
    /// Bytes that may be sent now.
    pub fn room(&self) -> u64 {
        self.limit - self.sent
    }

    /// Nothing was sent yet.
    pub fn is_unused(&self) -> bool {
        self.sent == 0 && self.offered == 0 && !self.queued
    }

    /// Counts a message with so much content that goes out. False: there is no room.
    pub fn send(&mut self, len: u64) -> bool {
        let fits = self.fits(len);
        if fits {
            self.count_sent(len);
        }
        fits
    }

    /// Whether there is room for a message with so much content.
    #[inline]
    pub fn fits(&self, len: u64) -> bool {
        COST + len <= self.room()
    }

    /// Counts one for which there was room.
    #[inline]
    pub fn count_sent(&mut self, len: u64) {
        self.sent += COST + len;
    }

    /// Counts one that came in.
    #[inline]
    pub fn receive(&mut self, len: u64) -> Result<(), Status> {
        let more = self.received.saturating_add(COST + len);
        if more > self.granted {
            return Err(self.too_much(more));
        }
        self.received = more;
        Ok(())
    }

    #[cold]
    fn too_much(&self, more: u64) -> Status {
        if self.stopped.is_some() {
            return stopped();
        }
        let granted = self.granted;
        Status::invalid(text!("messages of {more} bytes in all, {granted} are allowed so far"))
    }

    /// Whether nothing that the peer has sent or offered waits here for a receive.
    pub fn is_idle(&self) -> bool {
        self.received == self.taken && self.offers == 0
    }

    /// Bytes of what the peer has sent or offered, and that waits here for receives.
    pub fn waits(&self) -> u64 {
        let came = self.received - self.taken;
        came + u64::from(self.offers) * COST + self.offers_cost.sum()
    }

    /// One that came in is not here any more. A limit that is to be told.
    #[inline]
    pub fn take(&mut self, len: u64) -> Option<u64> {
        self.taken += COST + len;
        let limit = self.taken + WINDOW;
        if limit - self.granted < STEP || self.stopped.is_some() {
            return None;
        }
        self.granted = limit;
        Some(limit)
    }

    /// No message may come any more.
    pub fn stop(&mut self) {
        let granted = std::mem::take(&mut self.granted);
        self.stopped.get_or_insert(granted);
    }

    /// They may again.
    pub fn go_on(&mut self) {
        if let Some(granted) = self.stopped.take() {
            self.granted = granted;
        }
    }

    /// There is no room for a message. Until when it waits, if it is not to be offered now.
    pub fn hold(&mut self, now: u64) -> Option<u64> {
        if self.held == 0 {
            self.held = now.saturating_add(HOLD);
            (self.batch, self.took) = (FIRST_OFFERS / 2, false);
        }
        let wait = self.may_offer.checked_sub(1);
        self.may_offer = wait.unwrap_or(0);
        self.short = wait.is_none();
        self.short.then_some(self.held)
    }

    /// The time of what waits is over, and what the peer has said meanwhile is known: some of it may be offered.
    pub fn ripen(&mut self, now: u64) {
        self.held = now.saturating_add(HOLD);
        if !std::mem::take(&mut self.took) {
            self.batch = self.batch.saturating_mul(2);
        }
        self.may_offer = self.batch.saturating_sub(self.offered);
        self.short = false;
    }

    /// When what waits is to be offered, if it is not now.
    pub fn held(&self) -> Option<u64> {
        (self.queued && self.short && self.held > 0).then_some(self.held)
    }

    /// Counts an offer that goes out, with so many bytes that go with it. False: there are too many.
    pub fn offer(&mut self, cost: OfferCost) -> bool {
        let all = with(self.offered_cost, cost);
        let fits = self.offered < OFFERS
            && all.beside <= OFFERED_BESIDE
            && (cost.first == 0 || all.first <= OFFERED_FIRST);
        if fits {
            self.offered += 1;
            self.offered_cost = all;
        }
        self.short = !fits;
        fits
    }

    /// An offer of ours has ended.
    pub fn offer_ended(&mut self, cost: OfferCost) {
        self.offered = self.offered.saturating_sub(1);
        self.took = true;
        self.offered_cost = without(self.offered_cost, cost);
        self.short = false;
    }

    /// Counts an offer that came in.
    pub fn receive_offer(&mut self, cost: OfferCost) -> Result<(), Status> {
        if self.stopped.is_some() {
            return Err(stopped());
        }
        if self.offers >= OFFERS {
            let text = text!("{OFFERS} offers of messages wait, more are not allowed");
            return Err(Status::invalid(text));
        }
        let all = with(self.offers_cost, cost);
        if all.beside > OFFERED_BESIDE || all.first > OFFERED_FIRST {
            let text = text!(
                "offers of messages wait with headers of {} bytes and content of {}, {OFFERED_BESIDE} and {OFFERED_FIRST} are allowed",
                all.beside,
                all.first
            );
            return Err(Status::invalid(text));
        }
        self.offers += 1;
        self.offers_cost = all;
        Ok(())
    }

    /// It does not wait any more.
    pub fn offer_taken(&mut self, cost: OfferCost) {
        self.offers = self.offers.saturating_sub(1);
        self.offers_cost = without(self.offers_cost, cost);
    }

    /// The peer told its limit.
    pub fn widen(&mut self, limit: u64) -> Result<(), Status> {
        if limit < self.limit || limit > self.sent.saturating_add(WINDOW) {
            return Err(Status::invalid(text!(
                "a limit of {limit} bytes for messages, {} to {} are allowed now",
                self.limit,
                self.sent.saturating_add(WINDOW)
            )));
        }
        if limit > self.limit {
            (self.held, self.may_offer) = (0, 0);
        }
        self.limit = limit;
        // There may be room for it without an offer.
        self.short = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: OfferCost = OfferCost { beside: 0, first: 0 };

    #[test]
    fn what_waits_for_room_is_offered_in_growing_batches_until_the_window_opens() {
        let mut flow = Flow::default();
        assert!(flow.send(WINDOW - COST));
        let mut now = 5;
        assert_eq!(flow.hold(now), Some(now + HOLD));
        for batch in [16, 32, 64] {
            // Late is not yet that the peer has said nothing: that is known to who has heard it.
            assert_eq!(flow.hold(now + HOLD + 1), Some(now + HOLD));
            now += HOLD;
            flow.ripen(now);
            while flow.offered < batch {
                assert!(flow.hold(now).is_none() && flow.offer(NONE));
            }
        }
        // It takes some, and no more are outstanding than were.
        (0..10).for_each(|_| flow.offer_ended(NONE));
        flow.ripen(now);
        (0..10).for_each(|_| assert!(flow.hold(now).is_none() && flow.offer(NONE)));
        assert!(flow.hold(now).is_some());
        flow.widen(WINDOW + STEP).unwrap();
        assert_eq!(flow.hold(now), Some(now + HOLD));
    }

    #[test]
    fn offers_have_bounds_in_number_and_in_what_they_carry() {
        let (mut sender, mut receiver) = (Flow::default(), Flow::default());
        let one = |beside, first| OfferCost { beside, first };
        for _ in 0..OFFERED_BESIDE / 512 {
            assert!(sender.offer(one(512, 256)));
            receiver.receive_offer(one(512, 256)).unwrap();
        }
        for beyond in [one(1, 0), one(0, 1)] {
            assert!(!sender.offer(beyond) && receiver.receive_offer(beyond).is_err());
        }
        assert!(sender.offer(NONE) && receiver.receive_offer(NONE).is_ok());
        // Where one has no room the other may have some.
        sender.offer_ended(one(512, 0));
        receiver.offer_taken(one(512, 0));
        assert!(sender.offer(one(512, 0)) && receiver.receive_offer(one(512, 0)).is_ok());
        let mut many = Flow::default();
        assert_eq!((0..=OFFERS).filter(|_| many.offer(NONE)).count(), OFFERS as usize);
    }

    #[test]
    fn what_finds_a_full_window_waits_for_a_while_until_it_is_opened() {
        let mut flow = Flow::default();
        assert!(flow.send(WINDOW - COST) && !flow.fits(0));
        flow.queued = true;
        assert_eq!(flow.hold(1), Some(1 + HOLD));
        assert_eq!((flow.hold(HOLD), flow.held()), (Some(1 + HOLD), Some(1 + HOLD)));
        flow.ripen(1 + HOLD);
        assert_eq!((flow.hold(1 + HOLD), flow.short), (None, false), "then it is offered");
        flow.widen(WINDOW).unwrap();
        assert_eq!(flow.hold(2 + HOLD), None, "that did not open it");
        flow.widen(WINDOW + STEP).unwrap();
        assert_eq!(flow.hold(3 + HOLD), Some(3 + 2 * HOLD));
    }

    #[test]
    fn a_window_fills_and_opens() {
        let (mut sender, mut receiver) = (Flow::default(), Flow::default());
        let mut n = 0;
        while sender.send(1000) {
            receiver.receive(1000).unwrap();
            n += 1;
        }
        assert_eq!(n, WINDOW / (COST + 1000));
        assert!(receiver.receive(1000).is_err());
        let limits: Vec<u64> = (0..n).filter_map(|_| receiver.take(1000)).collect();
        assert!((3..=5).contains(&limits.len()), "{limits:?}");
        for limit in limits {
            sender.widen(limit).unwrap();
        }
        assert!(sender.send(1000));
        assert!(sender.widen(0).is_err() && sender.widen(u64::MAX).is_err());
    }
}
