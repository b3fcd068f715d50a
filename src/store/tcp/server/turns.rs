//! What the thread of a server does, turn by turn. A turn costs what is due, however many clients there are: the epoll set says
//! who has something to say, the store whose key has come, and each list of the crowd who is next in it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Shared;
use super::client::{Client, LITTLE, prepare};
use super::crowd::{Crowd, List};
use crate::limits::{STORE_CLIENTS, STORE_STRANGERS, STORE_UNDER_WAY};
use crate::local_fd::Local;
use crate::log;
use crate::os::Epoll;
use crate::os::epoll::{EMPTY, ENDED, READ};
use crate::status::Status;
use crate::store::memory::Memory;
use crate::store::tcp::session::Room;

/// Who is closed when it has been first of a list for so long: who has not proved the secret; and whose message has begun and
/// does not get on, or who does not take its answer.
const LATE: [(List, Duration, &str); 2] = [
    (List::Strangers, Duration::from_secs(10), "it has not proved the secret in time"),
    (List::Moving, Duration::from_secs(30), "it does not get on"),
];
/// Bytes that one turn takes of one client.
const PIECE: usize = 256 << 10;
/// What a client has held for so long it may have to let go of; and one that has rested so long may make room for another.
const STAY: Duration = Duration::from_secs(1);
/// After a failed accept (no descriptors, say) nobody is accepted for so long.
const BREATH: Duration = Duration::from_millis(100);
/// Descriptors that one turn hears of.
const HEARD: usize = 64;

/// Keys of the epoll set, beside the places of clients: the end, a key that came, new clients.
const STOP: u64 = u64::MAX;
const BELL: u64 = u64::MAX - 1;
const LISTENER: u64 = u64::MAX - 2;

/// The thread's own.
pub struct Turns {
    shared: Arc<Shared>,
    listener: Local<TcpListener>,
    epoll: Epoll,
    crowd: Crowd,
    piece: Vec<u8>,
    /// Deadlines of waits, and of some that have ended. There is room for twice as many as there are clients.
    deadlines: BinaryHeap<Reverse<(Instant, u32)>>,
    /// Bytes that the clients hold.
    under_way: usize,
    /// Nobody holds more than a little for `STAY` before this.
    stays: Instant,
    /// Nobody is accepted before this.
    paused: Option<Instant>,
}

impl Turns {
    /// All that the thread needs it has before it begins.
    pub fn new(shared: Arc<Shared>, listener: Local<TcpListener>) -> Result<Turns, Status> {
        let failed = |e| Status::os("epoll set of a store", &e);
        let epoll = Epoll::new().map_err(failed)?;
        epoll.add(&shared.stop.look().fd, READ, STOP).map_err(failed)?;
        epoll.add(&*shared.bell, READ, BELL).map_err(failed)?;
        epoll.add(&listener, READ, LISTENER).map_err(failed)?;
        let mut piece = crate::room::vec(PIECE, "a store")?;
        piece.resize(PIECE, 0);
        Ok(Turns {
            shared,
            listener,
            epoll,
            crowd: Crowd::new(),
            piece,
            deadlines: BinaryHeap::new(),
            under_way: 0,
            stays: Instant::now(),
            paused: None,
        })
    }

    /// Until the store's end.
    pub fn run(&mut self) {
        while self.shared.stop.check().is_ok() {
            self.turn();
        }
    }

    fn turn(&mut self) {
        let now = Instant::now();
        let time = self.next_due(now).map_or(Duration::MAX, |at| at.saturating_duration_since(now));
        let mut places = [EMPTY; HEARD];
        let heard = self.epoll.wait_told(time, &mut places);
        let (now, mut called) = (Instant::now(), false);
        // A signal ends the sleep early.
        for (key, told) in heard.into_iter().flatten() {
            match key {
                STOP => {}
                BELL => self.shared.bell.drain(),
                LISTENER => called = true,
                _ if told & ENDED != 0 => self.see_to(key as u32, now, |client, _| client.end()),
                _ => self.hear(key as u32, now),
            }
        }
        for _ in 0..self.crowd.count(List::Again) {
            let Some((at, _)) = self.crowd.first(List::Again) else { break };
            self.see_to(at, now, |_, _| ());
        }
        // What one client set another may wait for.
        while let Some(at) = self.shared.memory.woken() {
            self.see_to(at, now, |client, memory| client.look(memory));
        }
        self.end_waits(now);
        self.end_late(now);
        if self.paused.is_some_and(|until| until <= now) {
            self.pause(None);
        }
        if called {
            self.accept(now);
        }
        self.make_space(now);
        for _ in 0..self.crowd.count(List::Held) {
            let first = self.crowd.first(List::Held).filter(|_| !self.is_full());
            let Some((at, _)) = first else { break };
            self.see_to(at, now, |_, _| ());
        }
        #[cfg(test)]
        self.shared.looks.store(self.crowd.looks(), std::sync::atomic::Ordering::SeqCst);
    }

    fn next_due(&self, now: Instant) -> Option<Instant> {
        let late =
            LATE.map(|(list, time, _)| self.crowd.first(list).map(|(_, moved)| moved + time));
        let again = (self.crowd.count(List::Again) > 0).then_some(now);
        let wait = self.deadlines.peek().map(|Reverse((at, _))| *at);
        let stays = self.is_full().then_some(self.stays);
        late.into_iter().chain([again, wait, stays, self.paused]).flatten().min()
    }

    /// Whether more is under way than may be.
    fn is_full(&self) -> bool {
        self.under_way >= STORE_UNDER_WAY
    }

    /// A client says something, or takes what is said to it.
    fn hear(&mut self, at: u32, now: Instant) {
        let full = self.is_full();
        let mut piece = std::mem::take(&mut self.piece);
        let most = if full { LITTLE } else { PIECE };
        self.see_to(at, now, |client, _| client.read(&mut piece[..most], full));
        self.piece = piece;
    }

    /// Does something to a client, if it is still there, answers what it asks, and puts it where it belongs by then.
    fn see_to(&mut self, at: u32, now: Instant, act: impl FnOnce(&mut Client, &Memory)) {
        let room = if self.is_full() { Room::Short } else { Room::Any };
        let Shared { memory, stop, secret, .. } = &*self.shared;
        let Some((client, was)) = self.crowd.get(at) else { return };
        act(client, memory);
        client.serve(memory, secret.as_deref(), room, stop);
        let bytes = client.session.bytes();
        self.under_way = self.under_way + bytes - std::mem::replace(&mut client.counted, bytes);
        #[cfg(test)]
        self.shared.peak.fetch_max(self.under_way, std::sync::atomic::Ordering::SeqCst);
        if client.is_gone() {
            return self.remove(at);
        }
        let list = client.list(self.under_way >= STORE_UNDER_WAY);
        let moves = client.settle(was, list, now);
        if bytes > LITTLE {
            self.stays = self.stays.min(client.holds.0 + STAY);
        }
        let deadline = client.begun_wait(now);
        let watched = client.watch(&self.epoll, at, list);
        if moves {
            self.crowd.put(at, list);
        }
        if let Some(deadline) = deadline {
            self.add_deadline(deadline, at);
        }
        if !watched {
            self.remove(at);
        }
    }

    fn remove(&mut self, at: u32) {
        let Some(mut gone) = self.crowd.remove(at) else { return };
        self.under_way -= gone.counted;
        gone.session.leave(&self.shared.memory);
        gone.unwatch(&self.epoll);
    }

    /// Those that have ended lie there until their time, or until there are as many as others.
    fn add_deadline(&mut self, deadline: Instant, at: u32) {
        if self.deadlines.len() == self.deadlines.capacity() {
            let Turns { deadlines, crowd, .. } = self;
            deadlines.retain(|Reverse((time, at))| {
                crowd.get(*at).is_some_and(|(client, _)| client.deadline == Some(*time))
            });
        }
        self.deadlines.push(Reverse((deadline, at)));
    }

    /// Ends the waits whose time is over.
    fn end_waits(&mut self, now: Instant) {
        while let Some(Reverse((time, at))) =
            self.deadlines.peek().copied().filter(|d| d.0.0 <= now)
        {
            self.deadlines.pop();
            self.see_to(at, now, |client, memory| {
                if client.deadline == Some(time) {
                    client.time_out(memory);
                }
            });
        }
    }

    /// Closes those that have had the time they have.
    fn end_late(&mut self, now: Instant) {
        for (list, time, why) in LATE {
            while let Some((at, _)) =
                self.crowd.first(list).filter(|(_, moved)| now >= *moved + time)
            {
                self.see_to(at, now, |client, _| client.drop_for(why));
            }
        }
    }

    /// Accepts nobody for a while, or goes on.
    fn pause(&mut self, until: Option<Instant>) {
        self.paused = until;
        let interest = if until.is_none() { READ } else { 0 };
        // It cannot fail, in a set where it is; if it did, who calls would be heard of too often, or not.
        let _ = self.epoll.modify(&self.listener, interest, LISTENER);
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..64 {
            let (socket, addr) = match self.listener.accept() {
                Ok(found) => found,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == ErrorKind::ConnectionAborted => continue,
                Err(e) => {
                    log::warn(format_args!("a store accepts nobody for a while: {e}"));
                    return self.pause(Some(now + BREATH));
                }
            };
            let Ok(socket) = prepare(socket) else { continue };
            let Some(at) = self.make_room(now) else { continue };
            let mut client = Client::new(socket, addr, at, now);
            if client.watch(&self.epoll, at, List::Strangers) {
                self.crowd.add(at, client);
            }
        }
    }

    /// A place for one more: the oldest that has not proved the secret may have to go, or the one that has rested for longest.
    fn make_room(&mut self, now: Instant) -> Option<u32> {
        let strangers = self.crowd.count(List::Strangers);
        if strangers >= STORE_STRANGERS || self.crowd.len() >= STORE_CLIENTS {
            let rested = self.crowd.first(List::Resting).filter(|(_, moved)| now >= *moved + STAY);
            let (gone, _) = self.crowd.first(List::Strangers).or(rested)?;
            self.remove(gone);
        }
        let count = 2 * (self.crowd.len() + 1);
        self.deadlines.try_reserve(count.saturating_sub(self.deadlines.len())).ok()?;
        self.crowd.place()
    }

    /// While more is under way than may be: of those who hold about the most, who has for longest lets go of it. All are looked
    /// at once a second at most, and for each that goes. Who holds a little has no part in it: all of those together hold a
    /// quarter of what may be under way at most.
    fn make_space(&mut self, now: Instant) {
        while self.is_full() && now >= self.stays {
            let large = || self.crowd.all().filter(|(_, c)| c.counted > LITTLE);
            let late = || large().filter(|(_, c)| now >= c.holds.0 + STAY);
            let most = late().map(|(_, c)| c.counted).max().unwrap_or(0);
            let gone = late().filter(|(_, c)| 2 * c.counted >= most).min_by_key(|(_, c)| c.holds.0);
            let Some((at, client)) = gone else {
                let first = large().map(|(_, client)| client.holds.0).min();
                self.stays = first.unwrap_or(now) + STAY;
                return;
            };
            let why = text!(
                "more than {STORE_UNDER_WAY} bytes are under way, or of keys that are waited for, of which it has held \
                 {} for longest",
                client.counted
            );
            self.see_to(at, now, |client, _| client.drop_for(&why));
        }
    }
}
