//! Listeners, dials and the loop over their handshakes.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use foldhash::HashMap;

use crate::local_fd::Local;
use crate::status::{Code, Reason, Status};

use super::conn::{Conn, Outcome};
use super::handshake::{Ctx, Expect, Failure, Handshake, Shared};
use super::sys::{Epoll, READ, start_connect};
use super::{
    AddressBlob, BootConfig, BootEvent, Identity, MAX_ADDRESSES, Met, Negotiator, addr, resolve,
};

/// Most listeners of one manager.
const MAX_LISTENERS: usize = 16;
/// Pause of accepting at a bound, of handshakes or of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(5);
/// A connection that has said nothing yet keeps its place so long, whoever wants it: an honest one says
/// HELLO at once.
const SILENT_STAY: Duration = Duration::from_millis(5);
/// One that got on keeps its place so long since then: many honest peers that start together wait
/// for each other rather than push each other out.
const STAY: Duration = Duration::from_millis(50);
/// Connections accepted from one listener in one poll.
const ACCEPT_BATCH: usize = 64;
/// Least time for one of several addresses.
const LEAST_TRY: Duration = Duration::from_secs(1);

struct Dial {
    token: u64,
    addrs: VecDeque<SocketAddr>,
    expect: Option<Expect>,
    rail: bool,
    deadline: Instant,
    errors: Vec<(SocketAddr, Status)>,
    met: Vec<Met>,
}

struct Listener {
    socket: Local<TcpListener>,
    bound: SocketAddr,
}

struct Entry {
    conn: Conn,
    /// `None`: incoming, or a refused one that lingers.
    dial: Option<Dial>,
    cancelled: bool,
}

/// Finds and authenticates peers; see the module's text.
pub struct Bootstrap {
    shared: Shared,
    epoll: Epoll,
    created: Instant,
    next_id: u64,
    listeners: BTreeMap<u64, Listener>,
    /// Set while new connections are left in the backlog.
    paused_until: Option<Instant>,
    entries: BTreeMap<u64, Box<Entry>>,
    queue: VecDeque<Dial>,
    ready: Vec<u64>,
}

impl Bootstrap {
    /// For a manager of this identity.
    pub fn new(identity: Identity, config: BootConfig) -> Result<Bootstrap, Status> {
        identity.validate()?;
        if config.secret.as_ref().is_some_and(Vec::is_empty) {
            return Err(Status::invalid("the secret is empty; leave it out for no authentication"));
        }
        Ok(Bootstrap {
            shared: Shared { identity, config, addrs: Vec::new() },
            epoll: Epoll::new().map_err(|e| Status::os("epoll_create1", &e))?,
            created: Instant::now(),
            next_id: 0,
            listeners: BTreeMap::new(),
            paused_until: None,
            entries: BTreeMap::new(),
            queue: VecDeque::new(),
            ready: Vec::new(),
        })
    }

    /// Listens at `host:port`, `[v6]:port` or a host (any port); returns what was bound. A name
    /// other than "localhost" is resolved, which blocks. May be called for several addresses.
    pub fn listen(&mut self, text: &str) -> Result<String, Status> {
        self.listen_on(text, resolve(text)?)
    }

    /// The same where `text` was resolved already: listens at the first of `addrs` that can be bound.
    pub fn listen_on(&mut self, text: &str, addrs: Vec<SocketAddr>) -> Result<String, Status> {
        if self.listeners.len() >= MAX_LISTENERS {
            return Err(Status::new(
                Code::ResourceExhausted,
                format!("'{text}' would be more than {MAX_LISTENERS} listeners"),
            ));
        }
        self.check_exposure(&addrs)?;
        let mut last = None;
        for addr in addrs {
            match self.bind(addr) {
                Ok(bound) => return Ok(bound.to_string()),
                Err(e) => last = Some(Status::os(format!("cannot listen on {addr}"), &e)),
            }
        }
        Err(last.unwrap_or_else(|| Status::internal(format!("'{text}' has no address"))))
    }

    fn check_exposure(&self, addrs: &[SocketAddr]) -> Result<(), Status> {
        let config = &self.shared.config;
        if config.secret.is_some() || config.allow_remote {
            return Ok(());
        }
        match addrs.iter().find(|a| !addr::is_loopback(a)) {
            None => Ok(()),
            Some(a) => Err(Status::new(
                Code::FailedPrecondition,
                format!(
                    "listening on {a} without authentication would let any host in; set a secret \
                     (option secret or RDMA_AUTH_SECRET_FILE), listen on a loopback address, or \
                     set option allow_remote"
                ),
            )),
        }
    }

    fn bind(&mut self, addr: SocketAddr) -> io::Result<SocketAddr> {
        let socket = Local::new(TcpListener::bind(addr)?);
        socket.set_nonblocking(true)?;
        let bound = socket.local_addr()?;
        let id = self.new_id();
        let interest = if self.paused_until.is_some() { 0 } else { READ };
        self.epoll.add(&socket, interest, id)?;
        self.listeners.insert(id, Listener { socket, bound });
        self.refresh_addresses();
        Ok(bound)
    }

    fn refresh_addresses(&mut self) {
        let mut all: Vec<SocketAddr> = Vec::new();
        for l in self.listeners.values() {
            for addr in addr::reachable(l.bound, super::sys::is_dual_stack(&l.socket)) {
                if !all.contains(&addr) {
                    all.push(addr);
                }
            }
        }
        all.sort_by_key(addr::is_loopback);
        all.truncate(MAX_ADDRESSES);
        self.shared.addrs = all;
    }

    /// Where peers reach this manager; a wildcard stands for the interfaces' addresses, loopback
    /// last. As of the last `listen`.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.shared.addrs
    }

    /// This manager's address, to be exported.
    pub fn blob(&self) -> AddressBlob {
        let id = &self.shared.identity;
        AddressBlob {
            name: id.name.clone(),
            incarnation: id.incarnation,
            host_id: id.host_id,
            addrs: self.shared.addrs.clone(),
        }
    }

    /// Both sides of every connection prove that they know a secret.
    pub fn has_secret(&self) -> bool {
        self.shared.config.secret.is_some()
    }

    /// Another name for this manager, as long as no handshake is telling the old one.
    pub fn rename(&mut self, name: &str) -> Result<(), Status> {
        super::identity::check_name(name)?;
        if self.pending() > 0 {
            let text =
                "a connection is being made, allowed is a new name before the first connection";
            return Err(Status::new(Code::FailedPrecondition, text));
        }
        name.clone_into(&mut self.shared.identity.name);
        Ok(())
    }

    /// Who this side says it is.
    pub fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    /// Closes the listeners; handshakes under way go on.
    pub fn stop_listening(&mut self) {
        for listener in std::mem::take(&mut self.listeners).into_values() {
            // A forked child may hold it too.
            let _ = self.epoll.remove(&listener.socket);
        }
        self.refresh_addresses();
    }

    /// Connects to the first of `addrs` that leads to `expect` (its name and, if given, its
    /// incarnation). Starts at the next `poll`, ends in one `Ready` or `Failed` with this token,
    /// at `deadline` at the latest. One pass over the addresses: to try again, with a pause, is
    /// the caller's, and so are the deadlines of the operations that wait for it.
    pub fn dial(
        &mut self,
        token: u64,
        addrs: &[SocketAddr],
        expect: Option<(&str, Option<[u8; 16]>)>,
        deadline: Instant,
    ) {
        self.dial_for(token, addrs, expect, deadline, false);
    }

    /// The same of a connection that is to be a part of one that is there: it finds the peer of that one.
    pub fn dial_rail(
        &mut self,
        token: u64,
        addrs: &[SocketAddr],
        (name, incarnation): (&str, [u8; 16]),
        deadline: Instant,
    ) {
        self.dial_for(token, addrs, Some((name, Some(incarnation))), deadline, true);
    }

    fn dial_for(
        &mut self,
        token: u64,
        addrs: &[SocketAddr],
        expect: Option<(&str, Option<[u8; 16]>)>,
        deadline: Instant,
        rail: bool,
    ) {
        let expect =
            expect.map(|(name, incarnation)| Expect { name: name.to_owned(), incarnation });
        let addrs = addrs.iter().take(MAX_ADDRESSES).copied().collect();
        self.queue.push_back(Dial {
            token,
            addrs,
            expect,
            rail,
            deadline,
            errors: Vec::new(),
            met: Vec::new(),
        });
    }

    /// Forgets a dial: no event of this token follows. Its endpoint, if it has one, is discarded at
    /// the next `poll`.
    pub fn cancel(&mut self, token: u64) {
        self.queue.retain(|d| d.token != token);
        for entry in self.entries.values_mut() {
            entry.cancelled |= entry.dial.as_ref().is_some_and(|d| d.token == token);
        }
    }

    /// An epoll descriptor, readable when a socket of the handshakes needs `poll`.
    pub fn fd(&self) -> RawFd {
        self.epoll.raw()
    }

    /// Dials and handshakes under way. While it is 0, `poll` has only new connections to accept,
    /// which [`fd`](Self::fd) tells; otherwise `poll` is due after each poll of the adapters too,
    /// since it asks after endpoints that are connecting.
    pub fn pending(&self) -> usize {
        self.queue.len() + self.entries.len()
    }

    /// When `poll` is due at the latest. In the past if it is due now.
    pub fn next_deadline(&self) -> Option<Instant> {
        if !self.queue.is_empty() || self.entries.values().any(|e| e.cancelled) {
            return Some(self.created);
        }
        let conns = self.entries.values().map(|e| e.conn.next_deadline());
        conns.chain(self.paused_until).min()
    }

    /// Does what can be done without blocking and appends what happened.
    pub fn poll(&mut self, now: Instant, neg: &mut dyn Negotiator, events: &mut Vec<BootEvent>) {
        self.start_dials(now, events);
        self.resume(now);
        let mut ready = std::mem::take(&mut self.ready);
        ready.clear();
        if let Err(e) = self.epoll.ready(&mut ready)
            && e.kind() != io::ErrorKind::Interrupted
        {
            // Cannot happen with a valid epoll; then timers and the next poll carry on.
            debug_assert!(false, "epoll_wait: {e}");
        }
        for (&id, e) in &self.entries {
            let c = &e.conn;
            let due = e.cancelled || c.is_waiting_for_endpoint() || c.next_deadline() <= now;
            if due && !ready.contains(&id) {
                ready.push(id);
            }
        }
        // Who has something to say gets on before somebody new could push it out.
        for &id in ready.iter().filter(|id| self.entries.contains_key(id)).collect::<Vec<_>>() {
            self.step(id, now, neg, events);
        }
        for &id in &ready {
            if self.listeners.contains_key(&id) {
                self.accept(id, now, neg, events);
            }
        }
        self.ready = ready;
        self.start_dials(now, events);
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn step(
        &mut self,
        id: u64,
        now: Instant,
        neg: &mut dyn Negotiator,
        events: &mut Vec<BootEvent>,
    ) {
        let Some(mut entry) = self.entries.remove(&id) else { return };
        let ctx = &mut Ctx { shared: &self.shared, now, neg };
        let outcome = if entry.cancelled {
            let status = Status::new(Code::Cancelled, "the connector has given up");
            entry.dial = None;
            entry.cancelled = false;
            entry.conn.fail(&self.epoll, ctx, status.because(Reason::Cancelled).into());
            Outcome::Pending
        } else {
            entry.conn.step(&self.epoll, ctx)
        };
        let addr = entry.conn.addr;
        match outcome {
            Outcome::Pending => {}
            Outcome::Ended => return entry.conn.close(&self.epoll),
            Outcome::Ready(success) => {
                events.push(success.event(entry.dial.map(|d| d.token), addr));
                return;
            }
            Outcome::Failed(status) => match entry.dial.take() {
                Some(dial) => self.next_address(dial, addr, (status, entry.conn.met()), events),
                None => {
                    let left = entry.conn.has_left(self.shared.config.secret.is_some());
                    events.push(BootEvent::Rejected { addr: Some(addr), status, left });
                }
            },
        }
        if !entry.conn.is_closed() {
            self.entries.insert(id, entry);
        }
    }

    fn accept(
        &mut self,
        listener: u64,
        now: Instant,
        neg: &mut dyn Negotiator,
        events: &mut Vec<BootEvent>,
    ) {
        for _ in 0..ACCEPT_BATCH {
            if !self.make_room(now, neg, events) {
                return self.pause(now);
            }
            let Some(l) = self.listeners.get(&listener) else { return };
            match l.socket.accept() {
                Ok((stream, far)) => {
                    let far = addr::canonical(far);
                    match self.admit(stream, far, now) {
                        Ok(id) => self.step(id, now, neg, events),
                        Err(status) => {
                            events.push(BootEvent::Rejected {
                                addr: Some(far),
                                status,
                                left: false,
                            });
                        }
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if out_of_resources(&e) => {
                    let status = Status::os("accept", &e);
                    events.push(BootEvent::Rejected { addr: None, status, left: false });
                    // Strangers may be what took the descriptors.
                    if !self.evict(now, neg, events) {
                        return self.pause(now);
                    }
                }
                // The connection broke before it was accepted: the next one.
                Err(_) => {}
            }
        }
    }

    fn admit(&mut self, stream: TcpStream, far: SocketAddr, now: Instant) -> Result<u64, Status> {
        let os = |e: io::Error| Status::os(format!("connection from {far}"), &e);
        stream.set_nonblocking(true).map_err(os)?;
        let id = self.new_id();
        let hs = Handshake::accept()?;
        let deadline = now + self.shared.config.handshake_timeout;
        let conn =
            Conn::new(&self.epoll, id, stream, far, hs, (true, now, deadline)).map_err(os)?;
        self.entries.insert(id, Box::new(Entry { conn, dial: None, cancelled: false }));
        Ok(id)
    }

    /// Whether another incoming handshake may begin. At the bound, one ends for it.
    fn make_room(
        &mut self,
        now: Instant,
        neg: &mut dyn Negotiator,
        events: &mut Vec<BootEvent>,
    ) -> bool {
        let incoming = self.entries.values().filter(|e| e.dial.is_none()).count();
        incoming < self.shared.config.max_handshakes || self.evict(now, neg, events)
    }

    /// Which incoming handshake ends for another: one that lingers; else, of the source that has the
    /// most, the one that has not got on for longest. So a crowd pushes out its own, and who goes
    /// through the handshake step by step is the last to be pushed. Nobody is at once.
    fn victim(&self, now: Instant) -> Option<u64> {
        let incoming = || self.entries.iter().filter(|(_, e)| e.dial.is_none());
        if let Some((&id, _)) = incoming().find(|(_, e)| e.conn.is_lingering()) {
            return Some(id);
        }
        let strangers = || incoming().filter(|(_, e)| e.conn.is_stranger());
        let mut counts: HashMap<IpAddr, usize> = HashMap::default();
        for (_, e) in strangers() {
            *counts.entry(addr::source(&e.conn.addr)).or_default() += 1;
        }
        let (crowd, _) = counts.into_iter().max_by_key(|&(ip, n)| (n, ip))?;
        let of_crowd = strangers().filter(|(_, e)| addr::source(&e.conn.addr) == crowd);
        let due = of_crowd.filter(|(_, e)| {
            let stay = if e.conn.is_silent() { SILENT_STAY } else { STAY };
            now >= e.conn.got_on() + stay
        });
        due.min_by_key(|(_, e)| e.conn.got_on()).map(|(&id, _)| id)
    }

    /// Ends one handshake for another; false if there is none that may be ended now.
    fn evict(
        &mut self,
        now: Instant,
        neg: &mut dyn Negotiator,
        events: &mut Vec<BootEvent>,
    ) -> bool {
        let Some(id) = self.victim(now) else { return false };
        let Some(mut entry) = self.entries.remove(&id) else { return false };
        if !entry.conn.is_lingering() {
            let status = Status::new(
                Code::ResourceExhausted,
                format!(
                    "{} missing, and {} handshakes are under way: it made room for another",
                    entry.conn.awaits(),
                    self.entries.len() + 1
                ),
            );
            let ctx = &mut Ctx { shared: &self.shared, now, neg };
            let failure = Failure { status: status.clone(), tell: false };
            entry.conn.fail(&self.epoll, ctx, failure);
            let addr = Some(entry.conn.addr);
            events.push(BootEvent::Rejected { addr, status, left: false });
        }
        entry.conn.close(&self.epoll);
        true
    }

    fn pause(&mut self, now: Instant) {
        self.paused_until = Some(now + ACCEPT_PAUSE);
        self.watch_listeners(0);
    }

    fn resume(&mut self, now: Instant) {
        if self.paused_until.is_some_and(|at| now >= at) {
            self.paused_until = None;
            self.watch_listeners(READ);
        }
    }

    fn watch_listeners(&self, interest: u32) {
        for (&id, l) in &self.listeners {
            // Fails only for a descriptor that is not watched, and these are.
            let _ = self.epoll.modify(&l.socket, interest, id);
        }
    }

    fn start_dials(&mut self, now: Instant, events: &mut Vec<BootEvent>) {
        for _ in 0..self.queue.len() {
            if let Some(dial) = self.queue.pop_front() {
                self.start_dial(dial, now, events);
            }
        }
    }

    fn start_dial(&mut self, mut dial: Dial, now: Instant, events: &mut Vec<BootEvent>) {
        let left = dial.addrs.len() as u32;
        let Some(addr) = dial.addrs.pop_front() else {
            return events.push(dial.failed());
        };
        let remaining = dial.deadline.saturating_duration_since(now);
        if remaining.is_zero() {
            dial.addrs.push_front(addr);
            return events.push(dial.failed());
        }
        let share = (remaining / left.max(1)).max(LEAST_TRY).min(remaining);
        let deadline = now + share.min(self.shared.config.handshake_timeout);
        match self.open_dial(&dial, addr, now, deadline) {
            Ok((id, conn)) => {
                self.entries
                    .insert(id, Box::new(Entry { conn, dial: Some(dial), cancelled: false }));
            }
            Err(status) => self.next_address(dial, addr, (status, Met::Unclear), events),
        }
    }

    fn open_dial(
        &mut self,
        dial: &Dial,
        addr: SocketAddr,
        now: Instant,
        deadline: Instant,
    ) -> Result<(u64, Conn), Status> {
        if addr.port() == 0 {
            return Err(Status::invalid(format!("address {addr} has no port")));
        }
        let hs = Handshake::connect(&self.shared, dial.expect.clone(), dial.rail)?;
        let stream = TcpStream::from(start_connect(&addr).map_err(|e| Status::os("connect", &e))?);
        let id = self.new_id();
        let conn = Conn::new(&self.epoll, id, stream, addr, hs, (false, now, deadline))
            .map_err(|e| Status::os("connect", &e))?;
        Ok((id, conn))
    }

    fn next_address(
        &mut self,
        mut dial: Dial,
        addr: SocketAddr,
        (status, met): (Status, Met),
        events: &mut Vec<BootEvent>,
    ) {
        dial.errors.push((addr, status));
        dial.met.push(met);
        if dial.addrs.is_empty() {
            events.push(dial.failed());
        } else {
            self.queue.push_back(dial);
        }
    }
}

impl Dial {
    /// The end of a dial: the status of the most telling try, and the texts of all.
    fn failed(self) -> BootEvent {
        let whom = self.expect.as_ref().map_or(String::new(), |e| format!(" to '{}'", e.name));
        let tries: Vec<String> =
            self.errors.iter().map(|(a, s)| format!("{a}: {}", s.message)).collect();
        let decisive = self.errors.iter().find(|(_, s)| !is_retryable(s) && !is_elsewhere(s));
        let chosen = decisive
            .or_else(|| self.errors.iter().find(|(_, s)| is_retryable(s)))
            .or(self.errors.last());
        let mut status = match chosen {
            Some((_, s)) => s.clone(),
            None if self.addrs.is_empty() => Status::invalid("there is no address"),
            None => Status::new(Code::Unavailable, "there was no time to try"),
        };
        if is_of_an_operation(status.code) {
            status.code = Code::Unavailable;
        }
        let met = match &self.met[..] {
            all if all.contains(&Met::Broken) => Met::Broken,
            // Addresses that there was no time for may lead to it.
            [] => Met::Unclear,
            all if self.addrs.is_empty() && all.iter().all(|&m| m == Met::Nobody) => Met::Nobody,
            _ => Met::Unclear,
        };
        let what = if tries.is_empty() { status.message.clone() } else { tries.join("; ") };
        let retryable = is_retryable(&status);
        status.message = format!("cannot connect{whom}: {what}");
        BootEvent::Failed { token: self.token, status, retryable, met }
    }
}

/// Codes that only an operation can end with, by its own deadline or caller. A peer's refusal may
/// carry them: then they tell of an operation of the peer's.
fn is_of_an_operation(code: Code) -> bool {
    matches!(code, Code::DeadlineExceeded | Code::Cancelled)
}

/// Whether the same attempt may succeed later.
fn is_retryable(status: &Status) -> bool {
    match status.code {
        Code::Unavailable => status.reason != Reason::PeerRestarted,
        Code::ResourceExhausted => true,
        code => is_of_an_operation(code),
    }
}

/// Somebody else lives at the address: says nothing of the peer that was meant.
fn is_elsewhere(status: &Status) -> bool {
    matches!(status.code, Code::NotFound | Code::InvalidArgument)
}

fn out_of_resources(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}
