//! Dials: the addresses that lead to a peer, one after the other, and what their end says.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::{Bootstrap, Entry};
use crate::bootstrap::conn::Conn;
use crate::bootstrap::handshake::{Expect, Handshake};
use crate::bootstrap::sys::{start_connect, unconnected};
use crate::bootstrap::{BootEvent, MAX_ADDRESSES, Met};
use crate::status::{Code, Reason, Status};

/// Least time for one of several addresses.
const LEAST_TRY: Duration = Duration::from_secs(1);

/// One that is to be made, and what came of it so far.
pub(super) struct Dial {
    pub(super) token: u64,
    addrs: VecDeque<SocketAddr>,
    expect: Option<Expect>,
    rail: bool,
    deadline: Instant,
    errors: Vec<(SocketAddr, Status)>,
    met: Vec<Met>,
}

impl Bootstrap {
    /// Connects to the first of `addrs` that leads to `expect` (its name and, if given, its
    /// incarnation). Starts at the next `poll`, ends in one `Ready` or `Failed` with this token,
    /// at `deadline` at the latest. One pass over the addresses: to try again, with a pause, and first
    /// those that there was no time for, is the caller's, and so are the deadlines of the operations that wait for it.
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

    pub(super) fn start_dials(&mut self, now: Instant, events: &mut Vec<BootEvent>) {
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
            return Err(Status::invalid(text!("address {addr} has no port")));
        }
        let hs = Handshake::connect(&self.shared, dial.expect.clone(), dial.rail)?;
        let stream = TcpStream::from(start_connect(&addr).map_err(|e| unconnected("connect", &e))?);
        let id = self.new_id();
        let conn = Conn::new(&self.epoll, id, stream, addr, hs, (false, now, deadline))
            .map_err(|e| unconnected("setsockopt or epoll_ctl, to connect", &e))?;
        Ok((id, conn))
    }

    pub(super) fn next_address(
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
            status = status.with_code(Code::Unavailable);
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
        let status = status.with_message(text!("cannot connect{whom}: {what}"));
        let tried = self.errors.len();
        BootEvent::Failed { token: self.token, status, retryable, met, tried }
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
