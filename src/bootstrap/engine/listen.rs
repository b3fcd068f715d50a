//! Listeners, and what comes in there: how many handshakes may be under way, and which ends for another.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use foldhash::HashMap;

use super::{Bootstrap, Entry};
use crate::bootstrap::conn::Conn;
use crate::bootstrap::handshake::{Ctx, Failure, Handshake};
use crate::bootstrap::sys::is_dual_stack;
use crate::bootstrap::{BootEvent, MAX_ADDRESSES, Negotiator, addr, resolve};
use crate::local_fd::Local;
use crate::os::above_standard;
use crate::os::epoll::READ;
use crate::status::{Code, Status};

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

/// A socket that listens.
pub(super) struct Listener {
    socket: Local<TcpListener>,
    bound: SocketAddr,
}

impl Bootstrap {
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
                text!("'{text}' would be more than {MAX_LISTENERS} listeners"),
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
        Err(last.unwrap_or_else(|| Status::internal(text!("'{text}' has no address"))))
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
                text!(
                    "listening on {a} without authentication would let any host in; set a secret \
                     (option secret or RDMA_AUTH_SECRET_FILE), listen on a loopback address, or \
                     set option allow_remote"
                ),
            )),
        }
    }

    fn bind(&mut self, addr: SocketAddr) -> io::Result<SocketAddr> {
        let socket = Local::new(above_standard(TcpListener::bind(addr)?));
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
            for addr in addr::reachable(l.bound, is_dual_stack(&l.socket)) {
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

    /// Closes the listeners; handshakes under way go on.
    pub fn stop_listening(&mut self) {
        for listener in std::mem::take(&mut self.listeners).into_values() {
            // A forked child may hold it too.
            let _ = self.epoll.remove(&listener.socket);
        }
        self.refresh_addresses();
    }

    pub(super) fn accept(
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
                    match self.admit(above_standard(stream), far, now) {
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
                text!(
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

    pub(super) fn resume(&mut self, now: Instant) {
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
}

fn out_of_resources(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}
