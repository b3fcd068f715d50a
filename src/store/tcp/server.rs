//! The serving side of a TCP store: one thread, which never waits for one client.
//!
//! What clients hold of its memory is bounded for all together. Beyond the bound nobody brings a long message, or is given a
//! long answer: they wait. Whoever holds most then, and has for a while, makes room; not who comes later. Likewise, where there
//! are as many connections as there may be, one that has rested for longest makes room for a new one.

mod client;
mod crowd;
mod turns;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use turns::Turns;

use crate::local_fd::Local;
use crate::os::{EventFd, above_standard};
use crate::status::{Code, Status};
use crate::store::memory::Memory;
use crate::store::stop::{self, Stop};
use crate::store::{Compared, Kind, LeaseId, Until};

/// What thread and handle share.
struct Shared {
    memory: Memory,
    bell: Arc<EventFd>,
    stop: Stop,
    secret: Option<Vec<u8>>,
    /// Most bytes that were under way.
    #[cfg(test)]
    peak: std::sync::atomic::AtomicUsize,
    /// Looks at clients.
    #[cfg(test)]
    looks: std::sync::atomic::AtomicUsize,
}

/// A TCP store that this process serves; dropping it ends the thread.
pub struct Server {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    bound: SocketAddr,
}

fn check_exposure(addrs: &[SocketAddr], secret: bool, allow_remote: bool) -> Result<(), Status> {
    let exposed = addrs.iter().find(|addr| !crate::bootstrap::is_loopback(addr));
    match exposed {
        Some(addr) if !secret && !allow_remote => Err(Status::new(
            Code::FailedPrecondition,
            format!(
                "a store at {addr} without a secret would let any host in; set options.secret, serve at a \
                 loopback address, or set options.allow_remote"
            ),
        )),
        _ => Ok(()),
    }
}

impl Server {
    /// Serves at `address`, "host:port", where port 0 is any.
    pub fn new(address: &str, secret: Option<&[u8]>, allow_remote: bool) -> Result<Server, Status> {
        let addrs = crate::bootstrap::resolve(address)?;
        check_exposure(&addrs, secret.is_some(), allow_remote)?;
        let mut last = Status::invalid(format!("'{address}' has no address"));
        for addr in addrs {
            match TcpListener::bind(addr).and_then(|l| l.set_nonblocking(true).map(|()| l)) {
                Ok(listener) => return Server::start(listener, secret),
                Err(e) => last = Status::os(format!("cannot serve a store at {addr}"), &e),
            }
        }
        Err(last)
    }

    fn start(listener: TcpListener, secret: Option<&[u8]>) -> Result<Server, Status> {
        let listener = Local::new(above_standard(listener));
        let bound = listener.local_addr().map_err(|e| Status::os("address of a store", &e))?;
        let bell = Arc::new(stop::bell()?);
        let memory =
            Memory::named(format!("tcp store at {bound} (served here)"), Some(bell.clone()));
        let secret = secret.map(|s| crate::room::copy(s, "a secret")).transpose()?;
        let shared = Arc::new(Shared {
            memory,
            bell,
            stop: Stop::new()?,
            secret,
            #[cfg(test)]
            peak: Default::default(),
            #[cfg(test)]
            looks: Default::default(),
        });
        let mut turns = Box::new(Turns::new(shared.clone(), listener)?);
        let thread = crate::store::spawn("rdma-store", move || turns.run())
            .map_err(|e| Status::os("starting the thread of a store", &e))?;
        Ok(Server { shared, thread: Some(thread), bound })
    }

    /// Most bytes that were under way.
    #[cfg(test)]
    pub(super) fn peak(&self) -> usize {
        self.shared.peak.load(std::sync::atomic::Ordering::SeqCst)
    }

    /// How often a client was looked at.
    #[cfg(test)]
    pub(super) fn looks(&self) -> usize {
        self.shared.looks.load(std::sync::atomic::Ordering::SeqCst)
    }

    /// Where it listens.
    pub fn bound(&self) -> SocketAddr {
        self.bound
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

<<<<<<< HEAD
=======
/// The thread's own.
struct Loop<'a> {
    shared: &'a Shared,
    listener: Local<TcpListener>,
    clients: Vec<Client>,
    piece: Vec<u8>,
    /// What is waited for, with room for all clients.
    looks: Looks,
    /// Bytes that the clients hold.
    under_way: usize,
    /// Each look begins with another client.
    first: usize,
    /// Nobody is accepted before this.
    paused: Option<Instant>,
}

impl<'a> Loop<'a> {
    fn new(
        shared: &'a Shared,
        listener: Local<TcpListener>,
        (piece, looks): (Vec<u8>, Looks),
    ) -> Loop<'a> {
        let clients = Vec::new();
        Loop { shared, listener, clients, piece, looks, under_way: 0, first: 0, paused: None }
    }

    fn run(&mut self) {
        while self.shared.stop.check().is_ok() {
            self.look();
            let due = self.next_due();
            self.looks.ready(due.map(|at| at.saturating_duration_since(Instant::now())));
            let now = Instant::now();
            let looks = self.looks.all();
            let (rung, called) = (looks[1].read, looks[2].read);
            if rung {
                self.shared.bell.drain();
            }
            for (i, look) in looks[OWN_LOOKS..].iter().enumerate() {
                let Some(client) = self.clients.get_mut(i) else { continue };
                let before = client.session.bytes();
                let most = if self.under_way < STORE_UNDER_WAY { PIECE } else { LITTLE };
                let moved = look.read && client.read(&mut self.piece[..most])
                    || look.write && client.write();
                self.under_way = self.under_way + client.session.bytes() - before;
                if moved {
                    client.moved = now;
                }
            }
            if called {
                self.accept(now);
            }
            self.serve(now);
            #[cfg(test)]
            self.shared.peak.fetch_max(self.under_way, std::sync::atomic::Ordering::SeqCst);
            self.make_space(now);
        }
    }

    /// What to wait for: the end, a key that came, new clients, and the clients.
    fn look(&mut self) {
        let read = |fd, read| Look { fd, read, write: false };
        let own = [
            self.shared.stop.look(),
            read(self.shared.bell.as_raw_fd(), true),
            read(self.listener.as_raw_fd(), self.paused.is_none()),
        ];
        let full = self.under_way >= STORE_UNDER_WAY;
        let clients = self.clients.iter().map(|client| Look {
            fd: client.socket.as_raw_fd(),
            // The end of one that waits is seen, too.
            read: client.session.takes_input()
                && !client.ending
                && (!full || client.session.bytes() <= LITTLE),
            write: !client.session.output().is_empty(),
        });
        self.looks.set(own.into_iter().chain(clients));
    }

    fn next_due(&self) -> Option<Instant> {
        let full = self.under_way >= STORE_UNDER_WAY;
        let due = self.clients.iter().filter_map(|client| client.due(full));
        due.chain(self.paused).min()
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
                    self.paused = Some(now + BREATH);
                    return;
                }
            };
            let socket = Local::new(above_standard(socket));
            let kept = socket
                .set_nonblocking(true)
                .and_then(|()| keep_alive(&socket, KEEPALIVE, KEEPALIVE / 4, 4));
            if kept.is_err() || !self.make_room(now) {
                continue;
            }
            let _ = socket.set_nodelay(true);
            self.clients.push(Client {
                socket,
                addr,
                session: Session::new(),
                since: now,
                moved: now,
                holds: (now, 0),
                deadline: None,
                ending: false,
            });
        }
    }

    /// Room for one more: the oldest that has not proved the secret may have to go, or the one that has rested for longest.
    fn make_room(&mut self, now: Instant) -> bool {
        let strangers = self.clients.iter().filter(|client| !client.session.is_open()).count();
        if strangers < STORE_STRANGERS && self.clients.len() < STORE_CLIENTS {
            let looks = OWN_LOOKS + self.clients.len() + 1;
            return self.clients.try_reserve(1).is_ok() && self.looks.fit(looks);
        }
        // In the order in which they came.
        let oldest = self.clients.iter().position(|client| !client.session.is_open());
        let rests = |client: &Client| client.session.rests() && now >= client.moved + STAY;
        let rested = || {
            let all = self.clients.iter().enumerate().filter(|(_, client)| rests(client));
            all.min_by_key(|(_, client)| client.moved).map(|(at, _)| at)
        };
        let Some(gone) = oldest.or_else(rested) else { return false };
        let gone = self.clients.remove(gone);
        self.under_way -= gone.session.bytes();
        true
    }

    /// Answers what came, looks after who waits, and closes who has ended.
    fn serve(&mut self, now: Instant) {
        let Shared { memory, stop, secret, .. } = self.shared;
        if self.paused.is_some_and(|until| until <= now) {
            self.paused = None;
        }
        let count = self.clients.len();
        self.first = self.first.wrapping_add(1);
        // What one client sets another may wait for, so each looks last.
        for i in 0..count {
            let client = &mut self.clients[(self.first + i) % count];
            let before = client.session.bytes();
            let full = self.under_way >= STORE_UNDER_WAY;
            let room = if full { Room::Short } else { Room::Any };
            client.serve(memory, secret.as_deref(), room, stop);
            self.under_way = self.under_way + client.session.bytes() - before;
        }
        for client in &mut self.clients {
            let before = client.session.bytes();
            client.look(memory, now);
            if let Some(why) = client.is_late(now) {
                client.drop_for(why);
            }
            self.under_way = self.under_way + client.session.bytes() - before;
        }
        let gone = |client: &Client| client.ending && client.session.output().is_empty();
        let freed: usize = self
            .clients
            .iter()
            .filter(|client| gone(client))
            .map(|client| client.session.bytes())
            .sum();
        self.under_way -= freed;
        self.clients.retain(|client| !gone(client));
    }

    /// While more is under way than may be: of those who hold about the most, who has for longest lets go of it.
    fn make_space(&mut self, now: Instant) {
        while self.under_way >= STORE_UNDER_WAY {
            let late = || self.clients.iter().enumerate().filter(|(_, c)| now >= c.holds.0 + STAY);
            let most = late().map(|(_, c)| c.session.bytes()).max().unwrap_or(0);
            let large = late().filter(|(_, c)| 2 * c.session.bytes() >= most && most > 0);
            let Some((at, _)) = large.min_by_key(|(_, c)| c.holds.0) else { return };
            let mut gone = self.clients.remove(at);
            self.under_way -= gone.session.bytes();
            gone.drop_for(&format!(
                "more than {STORE_UNDER_WAY} bytes are under way, or of keys that are waited for, of which it has held \
                 {} for longest",
                gone.session.bytes()
            ));
        }
    }
}

impl Client {
    /// Reads what is there; whether anything was.
    fn read(&mut self, piece: &mut [u8]) -> bool {
        match (&*self.socket).read(piece) {
            Ok(0) => self.end(),
            Ok(n) => {
                if let Err(status) = self.session.receive(&piece[..n]) {
                    self.drop_for(&status.message);
                }
                return true;
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.end(),
        }
        false
    }

    /// Sends what there is; whether anything went.
    fn write(&mut self) -> bool {
        let mut moved = false;
        while !self.session.output().is_empty() {
            match (&*self.socket).write(self.session.output()) {
                Ok(n) if n > 0 => {
                    self.session.sent(n);
                    moved = true;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                _ => {
                    self.end();
                    break;
                }
            }
        }
        moved
    }

    /// It is gone: nothing more is said to it.
    fn end(&mut self) {
        self.ending = true;
        let left = self.session.output().len();
        self.session.sent(left);
    }

    fn drop_for(&mut self, why: &str) {
        log::info(format_args!("a store closes its connection to {}: {why}", self.addr));
        self.end();
    }

    fn serve(&mut self, memory: &Memory, secret: Option<&[u8]>, room: Room, stop: &Stop) {
        let until = Until { deadline: None, stop };
        for _ in 0..TURNS {
            if self.ending || !self.session.has_question() || !self.session.output().is_empty() {
                return;
            }
            if let Err(status) = self.session.step(memory, secret, room, until) {
                log::info(format_args!("a store turns {} away: {status}", self.addr));
                self.ending = true;
            }
            if self.session.is_put_off() {
                return;
            }
            // What goes at once makes room for the next answer.
            self.write();
        }
    }

    fn look(&mut self, memory: &Memory, now: Instant) {
        if self.holds.1 != self.session.turns() || self.session.bytes() == 0 {
            self.holds = (now, self.session.turns());
        }
        let Some(waiting) = self.session.waiting() else { return };
        if let Some(time) = waiting.time.take() {
            self.deadline = time.and_then(|time| now.checked_add(time));
        }
        let over = self.deadline.is_some_and(|deadline| deadline <= now);
        let looked = if over { self.session.time_out(memory) } else { self.session.look(memory) };
        if looked.is_err() {
            self.end();
        }
        if self.session.waiting().is_none() {
            self.deadline = None;
            self.write();
        }
    }

    /// When to look after it, if nothing comes. `full`: more is under way than may be.
    fn due(&self, full: bool) -> Option<Instant> {
        let waits = self.session.has_question() && self.session.output().is_empty();
        if waits && !(full && self.session.is_put_off()) {
            // It had its share of the last look.
            return Some(self.since);
        }
        let stalls = !self.session.output().is_empty() || self.session.has_part();
        let proof = (!self.session.is_open()).then_some(self.since + PROOF);
        let stall = stalls.then_some(self.moved + STALL);
        let stay = (full && self.session.bytes() > 0).then_some(self.holds.0 + STAY);
        [proof, stall, stay, self.deadline].into_iter().flatten().min()
    }

    fn is_late(&self, now: Instant) -> Option<&'static str> {
        if !self.session.is_open() && now >= self.since + PROOF {
            return Some("it has not proved the secret in time");
        }
        let stalls = !self.session.output().is_empty() || self.session.has_part();
        (stalls && now >= self.moved + STALL).then_some("it does not get on")
    }
}

>>>>>>> attack
/// The server's own process asks without a socket.
impl Kind for Server {
    fn name(&self) -> &str {
        self.shared.memory.name()
    }

    fn set(
        &self,
        items: &[(&[u8], &[u8])],
        lease: Option<LeaseId>,
        until: Until<'_>,
    ) -> Result<(), Status> {
        self.shared.memory.set(items, lease, until)
    }

    fn get(&self, keys: &[&[u8]], until: Until<'_>) -> Result<Vec<Option<Vec<u8>>>, Status> {
        self.shared.memory.get(keys, until)
    }

    fn missing(&self, keys: &[&[u8]], until: Until<'_>) -> Result<Vec<usize>, Status> {
        self.shared.memory.missing(keys, until)
    }

    fn wait(&self, keys: &[&[u8]], until: Until<'_>) -> Result<Vec<usize>, Status> {
        self.shared.memory.wait(keys, until)
    }

    fn add(
        &self,
        key: &[u8],
        delta: i64,
        lease: Option<LeaseId>,
        until: Until<'_>,
    ) -> Result<i64, Status> {
        self.shared.memory.add(key, delta, lease, until)
    }

    fn compare_set(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        desired: &[u8],
        lease: Option<LeaseId>,
        until: Until<'_>,
    ) -> Result<Compared, Status> {
        self.shared.memory.compare_set(key, expected, desired, lease, until)
    }

    fn delete(&self, keys: &[&[u8]], until: Until<'_>) -> Result<usize, Status> {
        self.shared.memory.delete(keys, until)
    }

    fn lease(&self, id: LeaseId, ttl: Duration, until: Until<'_>) -> Result<(), Status> {
        self.shared.memory.lease(id, ttl, until)
    }

    fn release(&self, id: LeaseId, until: Until<'_>) -> Result<(), Status> {
        self.shared.memory.release(id, until)
    }

    fn nudge(&self) {
        self.shared.memory.nudge();
    }
}
