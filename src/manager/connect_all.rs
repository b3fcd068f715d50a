//! Connections to many peers at once, as a full mesh has them: of two ends one dials, and not to all at the same moment.

use smallvec::SmallVec;

use super::peers::Found;
use super::*;
use crate::room::Grows;

/// Those who are to dial are left to it until none has come for so long.
const LEFT: Duration = Duration::from_secs(1);
/// While no peer comes for so long, those that were dialled before count no more: they may be dead.
const STALLED: Duration = Duration::from_secs(2);
/// Both are longer where dials are slow: so many of them.
const SLOW_DIALS: u32 = 4;

/// How many dials may be under way, by how long they take: many managers do this at once, perhaps on one host, and what one
/// begins there the others wait for. Where a handshake takes longer than it may, it is begun again, and all that it took is lost.
struct Pace {
    /// Those that ended lately took so long.
    took: Duration,
    under_way: usize,
}

impl Pace {
    /// At most.
    const MOST: usize = 8;
    /// Of dials that take so long there may be as many; of slower ones fewer.
    const QUICK: Duration = Duration::from_millis(500);

    fn new() -> Pace {
        Pace { took: Duration::ZERO, under_way: 1 }
    }

    /// A dial has ended well.
    fn note(&mut self, took: Duration) {
        self.took = took.max((self.took * 7 + took) / 8);
        let fit = Pace::QUICK.as_nanos() * Pace::MOST as u128 / self.took.as_nanos().max(1);
        // One more at a time: what a dial takes while there are many is not known yet.
        self.under_way = (self.under_way + 1).min(fit.clamp(1, Pace::MOST as u128) as usize);
    }

    /// None has ended for a while.
    fn note_none(&mut self) {
        self.under_way = (self.under_way * 2).min(Pace::MOST);
    }

    /// This time, or so long as some of these dials.
    fn at_least(&self, time: Duration) -> Duration {
        time.max(self.took * SLOW_DIALS)
    }
}

/// Those that are to be connected.
struct Wanted<'a> {
    manager: &'a Manager,
    peers: &'a [String],
    indices: Vec<u32>,
    /// The first so many are ours to dial.
    below: usize,
    /// So many are dialled from here, and asked for again, should their connections come and go.
    ours: usize,
    /// Of these so many have been begun with; those of them that may be under way, and since when.
    begun: usize,
    under_way: Vec<(Instant, usize)>,
    pace: Pace,
    /// How many are connected, and since when it is so many.
    connected: usize,
    since: Instant,
    refused: Option<Status>,
    /// Which incarnation of each was connected last, as this began.
    before: Vec<[u8; 16]>,
    /// One that has been connected since and is not, and since when that is seen.
    lost: Option<(usize, Instant)>,
}

impl Wanted<'_> {
    fn is_over(&self) -> bool {
        // Whoever waits for ever waits for the manager's end as well.
        self.refused.is_some()
            || self.connected == self.peers.len()
            || self.manager.drivers.closing.load(Ordering::Acquire)
    }

    /// Who is dialled in this place: those below from the nearest on, and then those above, so that of many ranks each dials
    /// another one, and not all the first.
    fn place(&self, nth: usize) -> usize {
        if nth < self.below { self.below - 1 - nth } else { nth }
    }

    /// Looks who is connected: all in one hold of the lock, since there are many, and much happens while they come.
    fn try_look(&mut self) -> Result<(), Status> {
        let mut connected = 0;
        let mut given_up: SmallVec<[u32; 8]> = SmallVec::new();
        let mut lost = None;
        let core = self.manager.core.lock();
        for nth in 0..self.peers.len() {
            let i = self.place(nth);
            let index = self.indices[i];
            let found = core.connection(index)?;
            let came = |p: &crate::engine::Peer| p.incarnation != self.before[i];
            if !matches!(found, Found::Connected) && core.engine.peer(index).is_some_and(came) {
                lost = lost.or(Some(i));
            }
            match found {
                Found::Connected => connected += 1,
                Found::NobodyTries if nth < self.begun && given_up.fits(1) => given_up.push(index),
                _ => {}
            }
        }
        drop(core);
        for index in given_up {
            self.manager.call(|core| core.want_again(index));
        }
        let now = Instant::now();
        self.look_at_lost(lost, now)?;
        if connected > self.connected {
            self.since = now;
        }
        self.connected = connected;
        self.forget_those_done(now)?;
        while self.begun < self.ours && self.under_way.len() < self.pace.under_way {
            let i = self.place(self.begun);
            if !self.manager.is_connected(self.indices[i], false)? {
                self.manager.connect(&self.peers[i], None)?;
                self.under_way.push((now, i));
            }
            self.begun += 1;
        }
        Ok(())
    }

    /// One that was connected is not. It may come again, as where both had dialled; or it has left, as who has all that it wanted may.
    fn look_at_lost(&mut self, lost: Option<usize>, now: Instant) -> Result<(), Status> {
        let Some(i) = lost else {
            self.lost = None;
            return Ok(());
        };
        let since = self.lost.filter(|&(seen, _)| seen == i).map_or(now, |(_, since)| since);
        self.lost = Some((i, since));
        if now.saturating_duration_since(since) < self.pace.at_least(STALLED) {
            return Ok(());
        }
        let core = self.manager.core.lock();
        let tries = core.engine.peer(self.indices[i]).map(|p| p.tries.text()).unwrap_or_default();
        Err(Status::gone(text!("peer '{}' was connected, and has ended: {tries}", self.peers[i])))
    }

    /// Dials that are connected, or may be dead, count no more.
    fn forget_those_done(&mut self, now: Instant) -> Result<(), Status> {
        let longest = self.pace.at_least(STALLED);
        let stalled = now.saturating_duration_since(self.since) >= longest;
        let (mut dead, mut at) = (false, 0);
        while let Some(&(since, i)) = self.under_way.get(at) {
            let took = now.saturating_duration_since(since);
            if self.manager.is_connected(self.indices[i], false)? {
                self.pace.note(took);
            } else if stalled && took >= longest {
                dead = true;
            } else {
                at += 1;
                continue;
            }
            self.under_way.swap_remove(at);
        }
        if dead {
            self.pace.note_none();
        }
        Ok(())
    }

    /// Waits until all are connected or the time is over; whether they are.
    fn wait(&mut self, waiter: &Arc<Waiter>, limit: Option<Duration>) -> Result<bool, Status> {
        let manager = self.manager;
        manager.waiting(|| {
            manager.block(waiter, limit, || {
                if let Err(status) = self.try_look() {
                    self.refused = Some(status);
                }
                self.is_over()
            })
        });
        match self.refused.take() {
            Some(status) => Err(status),
            None => Ok(self.is_over() && !manager.drivers.closing.load(Ordering::Acquire)),
        }
    }

    /// Who is not connected, and why.
    fn too_late(&self, timeout: Option<Duration>, called: impl Fn(usize) -> String) -> Status {
        let core = self.manager.core.lock();
        let missing = |(i, &index): (usize, &u32)| {
            let known = core.engine.peer(index);
            if known.is_some_and(|p| !p.channels.is_empty()) {
                return None;
            }
            let tries = known.map(|p| p.tries.text()).filter(|text| !text.is_empty());
            let tries = tries.unwrap_or_else(|| "no answer".to_owned());
            Some(text!("{}'{}': {tries}", called(i), self.peers[i]))
        };
        let missing: Vec<String> = self.indices.iter().enumerate().filter_map(missing).collect();
        let text = text!(
            "{} of {} peers not connected after {}: {}",
            missing.len(),
            self.peers.len(),
            seconds(timeout.unwrap_or_default()),
            crate::store::named(missing.into_iter())
        );
        Status::new(Code::DeadlineExceeded, text).because(Reason::Deadline)
    }
}

impl Manager {
    /// Waits until each of these peers is connected; dials the first `dial` of them, and leaves it to the others to dial, until none
    /// has come for a second, or half of the time is over. `None`: for as long as it takes.
    pub fn connect_all(
        &self,
        peers: &[String],
        dial: usize,
        timeout: Option<Duration>,
    ) -> Result<(), Status> {
        self.connect_all_called(peers, dial, timeout, |_| String::new())
    }

    /// The same; errors say this before a peer's name.
    pub fn connect_all_called(
        &self,
        peers: &[String],
        dial: usize,
        timeout: Option<Duration>,
        called: impl Fn(usize) -> String,
    ) -> Result<(), Status> {
        self.refuse_inside()?;
        let indices = self.call(|core| {
            let indices: Result<Vec<u32>, Status> = peers.iter().map(|p| core.peer(p)).collect();
            indices.inspect(|all| all.iter().for_each(|&i| core.await_connection(i, timeout)))
        })?;
        let before = {
            let core = self.core.lock();
            let incarnation = |&i: &u32| core.engine.peer(i).map_or([0; 16], |p| p.incarnation);
            crate::room::collect(indices.iter().map(incarnation), "peers")?
        };
        let (start, waiter) = (Instant::now(), Arc::new(Waiter::default()));
        let mut wanted = Wanted {
            manager: self,
            peers,
            indices,
            below: dial.min(peers.len()),
            ours: dial.min(peers.len()),
            begun: 0,
            under_way: Vec::new(),
            pace: Pace::new(),
            connected: 0,
            since: start,
            refused: None,
            before,
            lost: None,
        };
        let left = || timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
        // Half of the time is for the rest.
        let half = timeout.map(|timeout| start + timeout / 2);
        while !wanted.is_over() {
            let until = wanted.since + wanted.pace.at_least(LEFT);
            let until = half.map_or(until, |half| half.min(until));
            let now = Instant::now();
            if now >= until {
                break;
            }
            if wanted.wait(&waiter, Some(until - now))? {
                return Ok(());
            }
        }
        // The rest is dialled from here, too.
        wanted.ours = peers.len();
        if wanted.wait(&waiter, left())? {
            return Ok(());
        }
        self.refuse_closing()?;
        Err(wanted.too_late(timeout, called))
    }
}
