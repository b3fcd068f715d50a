//! Peers known by an address alone: the connection tells their name.

use std::collections::BTreeMap;

use super::*;

/// Routes of this and higher numbers lead to peers whose name is not known yet: the engine's indices
/// never have this generation.
const UNNAMED: u32 = 0xFFF0_0000;
/// Most such peers at a time.
const MAX_UNNAMED: usize = 4096;

/// A peer that is being asked for its name.
pub(super) struct Meeting {
    /// Until then it is tried again.
    deadline: Instant,
    /// What the last try met.
    last: Option<Status>,
    /// Somebody waits for the outcome, and takes it.
    awaited: bool,
    outcome: Option<Result<String, Status>>,
}

/// Those under way.
#[derive(Default)]
pub(super) struct Meetings {
    all: BTreeMap<u32, Meeting>,
    next: u32,
}

impl Meetings {
    /// A number for one more. They come round, and one of long ago may still be under way.
    fn number(&mut self) -> u32 {
        loop {
            let id = UNNAMED | self.next;
            self.next = self.next.wrapping_add(1) & !UNNAMED;
            if !self.all.contains_key(&id) {
                return id;
            }
        }
    }
}

impl Core {
    /// Whether this route leads to a peer without a name.
    pub(super) fn is_unnamed(route: u32) -> bool {
        route >= UNNAMED
    }

    /// Begins to connect to a peer whose name is not known.
    fn meet(
        &mut self,
        addrs: Vec<std::net::SocketAddr>,
        text: &str,
        limit: Duration,
        awaited: bool,
    ) -> Result<u32, Status> {
        if self.meetings.all.len() >= MAX_UNNAMED {
            let text =
                text!("{MAX_UNNAMED} addresses wait for their peer's name, more are not allowed");
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        let id = self.meetings.number();
        let now = Instant::now();
        let meeting = Meeting { deadline: now + limit, last: None, awaited, outcome: None };
        self.meetings.all.insert(id, meeting);
        let route = Route {
            addrs,
            text: text.to_owned(),
            wanted: true,
            next_try: Some(now),
            awaited: Some(now + limit),
            ..Route::default()
        };
        self.world.routes.insert(id, route);
        self.world.routes.try_at(now);
        Ok(id)
    }

    /// It has told its name: from now on its addresses are that peer's.
    pub(super) fn met(&mut self, id: u32, name: &str, peer: u32) {
        let Some(found) = self.world.routes.remove(id) else { return };
        let route = self.world.routes.enter(peer);
        (route.addrs, route.text, route.dialled) = (found.addrs, found.text, found.dialled);
        route.learned = false;
        self.met_so(id, Ok(name.to_owned()));
    }

    fn met_so(&mut self, id: u32, outcome: Result<String, Status>) {
        match self.meetings.all.get_mut(&id) {
            Some(meeting) if meeting.awaited => meeting.outcome = Some(outcome),
            _ => drop(self.meetings.all.remove(&id)),
        }
        self.engine.poke();
    }

    /// A try failed: another one follows, if there is time for it. Whoever waits has all of its time nevertheless, and then
    /// hears what the last one met.
    pub(super) fn not_met(&mut self, id: u32, status: Status, retryable: bool) {
        let Some(route) = self.world.routes.get_mut(id) else { return };
        route.dialing = false;
        let next = route.pause(Instant::now());
        let text = route.text.clone();
        let Some(meeting) = self.meetings.all.get_mut(&id) else { return };
        if retryable && next < meeting.deadline {
            meeting.last = Some(status);
            route.next_try = Some(next);
            self.world.routes.try_at(next);
            return;
        }
        log::info(format_args!("no peer met at {text}: {status}"));
        if retryable && meeting.awaited {
            meeting.last = Some(status);
            return;
        }
        self.world.routes.remove(id);
        self.met_so(id, Err(status));
    }

    /// Gives up; what the last try met.
    fn part(&mut self, id: u32) -> Option<Status> {
        if self.world.routes.remove(id).is_some_and(|route| route.dialing) {
            self.boot.cancel(u64::from(id));
        }
        self.meetings.all.remove(&id)?.last
    }
}

impl Manager {
    /// Connects to whoever listens there, and makes it known by the name that it tells. `limit` `None`:
    /// returns at once, and tries for as long as an operation may take.
    pub fn add_peer_at(
        &self,
        address: &str,
        limit: Option<Duration>,
    ) -> Result<Option<String>, Status> {
        if limit.is_some() {
            self.refuse_inside()?;
        }
        let addrs = crate::bootstrap::resolve_peer(address)?;
        let time = limit.unwrap_or(Duration::from_millis(self.config.timeout_ms));
        let id = self.call(|core| core.meet(addrs, address, time, limit.is_some()))?;
        let Some(limit) = limit else { return Ok(None) };
        let waiter = Arc::new(Waiter::default());
        let outcome = || {
            let mut core = self.core.lock();
            core.meetings.all.get_mut(&id).and_then(|m| m.outcome.take())
        };
        let mut found = None;
        self.waiting(|| {
            self.block(&waiter, Some(limit), || {
                found = outcome();
                found.is_some()
            })
        });
        let last = self.core.lock().part(id);
        match found {
            Some(Ok(name)) => Ok(Some(name)),
            Some(Err(status)) => {
                let text = text!("no peer met at {address}: {}", status.message);
                Err(status.with_message(text))
            }
            None => {
                self.refuse_closing()?;
                // What has no room here had none until the end.
                let full = last.as_ref().is_some_and(|s| s.code == Code::ResourceExhausted);
                let why = last.map_or_else(|| "no answer".to_owned(), Status::into_message);
                let text = text!("no peer met at {address} after {}: {why}", seconds(limit));
                let code = if full { Code::ResourceExhausted } else { Code::DeadlineExceeded };
                Err(Status::new(code, text).because(Reason::Deadline))
            }
        }
    }

    /// Gives this manager another name, as long as nobody has heard the old one.
    pub fn set_name(&self, name: &str) -> Result<(), Status> {
        self.call(|core| {
            if core.engine.find_peer(name).is_some() {
                let text = text!("'{name}' is the name of a peer");
                return Err(Status::new(Code::FailedPrecondition, text));
            }
            core.boot.rename(name)?;
            core.speaker.rename(name);
            core.world.name = name.to_owned();
            core.engine.rename(name);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One waits for long, and others come and go until the numbers come round.
    #[test]
    fn a_meeting_that_is_under_way_keeps_its_number() {
        let mut all = Meetings { next: !UNNAMED, ..Meetings::default() };
        let meet = |all: &mut Meetings| {
            let id = all.number();
            let meeting =
                Meeting { deadline: Instant::now(), last: None, awaited: true, outcome: None };
            assert!(all.all.insert(id, meeting).is_none(), "{id:#x} is another's");
            id
        };
        let [last, first] = [(); 2].map(|()| meet(&mut all));
        assert_eq!([last, first], [u32::MAX, UNNAMED]);
        all.next = last & !UNNAMED;
        assert_eq!(meet(&mut all), UNNAMED | 1);
    }
}
