//! The loop over the handshakes of listeners and dials.

mod dial;
mod listen;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use crate::os::epoll::{EMPTY, Epoll};
use crate::status::{Code, Reason, Status};

use super::conn::{Conn, Outcome};
use super::handshake::{Ctx, Shared};
use super::{AddressBlob, BootConfig, BootEvent, Identity, Negotiator};
use dial::Dial;
use listen::Listener;

/// So many descriptors are looked at in one poll; more wait for the next.
const READY_MAX: usize = 64;

struct Entry {
    conn: Conn,
    /// `None`: incoming, or a refused one that lingers.
    dial: Option<Dial>,
    cancelled: bool,
}

/// Finds and authenticates peers: the listeners, the dials, and the handshakes that are under way.
pub struct Bootstrap {
    shared: Shared,
    epoll: Epoll,
    created: Instant,
    next_id: u64,
    /// Somebody may be connected, or have been, who knows this side by its name.
    named: bool,
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
            named: false,
            listeners: BTreeMap::new(),
            paused_until: None,
            entries: BTreeMap::new(),
            queue: VecDeque::new(),
            ready: Vec::new(),
        })
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

    /// Another name for this manager, as long as no handshake is telling the old one, or has told it to somebody for whom that was the
    /// name of a connection, if only for a moment.
    pub fn rename(&mut self, name: &str) -> Result<(), Status> {
        super::identity::check_name(name)?;
        let how = if self.named { "was" } else { "is being" };
        if self.named || self.pending() > 0 {
            let text =
                text!("a connection {how} made, allowed is a new name before the first connection");
            return Err(Status::new(Code::FailedPrecondition, text));
        }
        name.clone_into(&mut self.shared.identity.name);
        Ok(())
    }

    /// Who this side says it is.
    pub fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    /// Whether a peer of this name has connected as far as it can tell, though not yet for this side.
    pub fn is_expecting(&self, name: &str) -> bool {
        self.entries.values().any(|e| e.dial.is_none() && e.conn.is_with(name))
    }

    /// An epoll descriptor, readable when a socket of the handshakes needs `poll`.
    pub fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
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
        match self.epoll.wait(Duration::ZERO, &mut [EMPTY; READY_MAX]) {
            Ok(ids) => ready.extend(ids),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            // A sandbox refuses it: whoever may be ready is looked at.
            Err(_) => ready.extend(self.entries.keys().chain(self.listeners.keys())),
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
        self.named |= entry.conn.said_ready();
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
}
