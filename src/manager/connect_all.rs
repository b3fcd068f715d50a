//! Connections to many peers at once, as a full mesh has them: of two ends one dials, and not to all at the same moment.

use super::*;

/// So many dials are under way at a time: many managers do this at once, perhaps on one host.
const UNDER_WAY: usize = 8;
/// Those who are to dial are left to it until none has come for so long.
const LEFT: Duration = Duration::from_secs(1);
/// While no peer comes for so long, those that were dialled before count no more: they may be dead.
const STALLED: Duration = Duration::from_secs(2);

/// Those that are to be connected.
struct Wanted<'a> {
    manager: &'a Manager,
    peers: &'a [String],
    indices: Vec<u32>,
    /// The first so many are dialled from here, and asked for again, should their connections come and go.
    ours: usize,
    /// Of these so many have been begun with; those of them that may be under way, and since when.
    begun: usize,
    under_way: Vec<(Instant, usize)>,
    /// How many are connected, and since when it is so many.
    connected: usize,
    since: Instant,
    refused: Option<Status>,
}

impl Wanted<'_> {
    fn is_over(&self) -> bool {
        // Whoever waits for ever waits for the manager's end as well.
        self.refused.is_some()
            || self.connected == self.peers.len()
            || self.manager.drivers.closing.load(Ordering::Acquire)
    }

    fn try_look(&mut self) -> Result<(), Status> {
        let mut connected = 0;
        for (i, &index) in self.indices.iter().enumerate() {
            connected += usize::from(self.manager.is_connected(index, i < self.begun)?);
        }
        let now = Instant::now();
        if connected > self.connected {
            self.since = now;
        }
        self.connected = connected;
        let stalled = now.saturating_duration_since(self.since) >= STALLED;
        let waits = |&(since, i): &(Instant, usize)| {
            !(stalled && now >= since + STALLED)
                && self.manager.is_connected(self.indices[i], false) == Ok(false)
        };
        self.under_way.retain(waits);
        while self.begun < self.ours && self.under_way.len() < UNDER_WAY {
            if !self.manager.is_connected(self.indices[self.begun], false)? {
                self.manager.connect(&self.peers[self.begun], None)?;
                self.under_way.push((now, self.begun));
            }
            self.begun += 1;
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
            Some(format!("{}'{}': {tries}", called(i), self.peers[i]))
        };
        let missing: Vec<String> = self.indices.iter().enumerate().filter_map(missing).collect();
        let text = format!(
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
        let (start, waiter) = (Instant::now(), Arc::new(Waiter::default()));
        let mut wanted = Wanted {
            manager: self,
            peers,
            indices,
            ours: dial.min(peers.len()),
            begun: 0,
            under_way: Vec::new(),
            connected: 0,
            since: start,
            refused: None,
        };
        let left = || timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
        // Half of the time is for the rest.
        let half = timeout.map(|timeout| start + timeout / 2);
        while !wanted.is_over() {
            let until = half.map_or(wanted.since + LEFT, |half| half.min(wanted.since + LEFT));
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
