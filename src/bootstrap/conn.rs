//! One handshake on one socket.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::api::VANISHED;
use crate::fabric::{EpId, ProviderKind};
use crate::local_fd::Local;
use crate::os::epoll::{Epoll, READ, WRITE};
use crate::os::{self, again};
use crate::shown;
use crate::status::{Code, Reason, Status};

use super::addr::on_link;
use super::endpoint::Attempt;
use super::frame::{Broken, FrameReader, REJECTS};
use super::handshake::{Ctx, Failure, Handshake};
use super::sys::{broken, unconnected};
use super::{BootEvent, Met, PeerHello};

/// When the system asks the host of a peer that is silent whether it is there, so that it is found in the peer timeout: for the
/// first time after so many seconds, again after so many, so often.
fn host_questions(peer_timeout_ms: u32) -> [libc::c_int; 3] {
    const COUNT: u32 = 4;
    let all = match peer_timeout_ms {
        u32::MAX => VANISHED.as_secs() as u32,
        ms => ms / 1000,
    };
    // What the system allows.
    let seconds = |n: u32| n.clamp(1, 32_767) as libc::c_int;
    [seconds(all / 2), seconds(all / 2 / COUNT), COUNT as libc::c_int]
}

/// How long a refused peer has to read why.
const LINGER: Duration = Duration::from_secs(1);
/// Most bytes that are thrown away meanwhile, so that closing does not destroy the refusal.
const LINGER_BYTES: usize = 256 * 1024;

enum Phase {
    /// Not connected yet.
    Connecting,
    Handshaking,
    /// The tcp provider has the socket and opens its endpoint.
    Opening(Attempt, Box<PeerHello>),
    /// Refused; the refusal is on its way.
    Lingering(usize),
}

/// What became of a connection.
#[expect(clippy::large_enum_variant, reason = "memory for a box may lack, and it is not kept")]
pub(super) enum Outcome {
    /// Nothing yet.
    Pending,
    /// The handshake succeeded.
    Ready(Success),
    /// It failed; the connection may linger.
    Failed(Status),
    /// A refused connection has ended.
    Ended,
}

/// A finished handshake.
pub(super) struct Success {
    hello: PeerHello,
    kind: ProviderKind,
    reason: String,
    ep: EpId,
    sock: Option<Local<OwnedFd>>,
}

impl Success {
    pub(super) fn event(self, token: Option<u64>, addr: SocketAddr) -> BootEvent {
        let Success { mut hello, kind, reason, ep, sock } = self;
        on_link(&mut hello.addrs, &addr);
        let initiator = token.is_some();
        BootEvent::Ready { token, hello, kind, reason, ep, sock, initiator, addr }
    }
}

/// A socket with its handshake.
pub(super) struct Conn {
    id: u64,
    pub addr: SocketAddr,
    started: Instant,
    got_on: Instant,
    deadline: Instant,
    phase: Phase,
    stream: Option<Local<TcpStream>>,
    interest: u32,
    reader: FrameReader,
    sent: usize,
    hs: Handshake,
    met: Met,
}

impl Conn {
    /// Watches `stream`. If it is not `connected`, it becomes writable when it is.
    pub(super) fn new(
        epoll: &Epoll,
        id: u64,
        stream: TcpStream,
        addr: SocketAddr,
        hs: Handshake,
        (connected, now, deadline): (bool, Instant, Instant),
    ) -> io::Result<Conn> {
        let (phase, interest) =
            if connected { (Phase::Handshaking, READ) } else { (Phase::Connecting, WRITE) };
        let stream = Local::new(stream);
        // Frames are small and each waits for the other side's.
        stream.set_nodelay(true)?;
        epoll.add(&stream, interest, id)?;
        Ok(Conn {
            id,
            addr,
            started: now,
            got_on: now,
            deadline,
            phase,
            stream: Some(stream),
            interest,
            reader: FrameReader::default(),
            sent: 0,
            hs,
            met: Met::Unclear,
        })
    }

    /// The time of the next step if nothing else happens.
    pub(super) fn next_deadline(&self) -> Instant {
        match self.phase {
            Phase::Handshaking => {
                self.hs.waits_until().map_or(self.deadline, |d| d.min(self.deadline))
            }
            _ => self.deadline,
        }
    }

    /// Whether `step` is to be called at every poll.
    pub(super) fn is_waiting_for_endpoint(&self) -> bool {
        match self.phase {
            Phase::Opening(..) => true,
            Phase::Handshaking => self.hs.waits_until().is_some(),
            _ => false,
        }
    }

    /// A connection whose far end may be anybody: it has not proved that it knows the secret.
    pub(super) fn is_stranger(&self) -> bool {
        matches!(self.phase, Phase::Handshaking | Phase::Opening(..)) && !self.hs.has_proved()
    }

    /// The far end may take the handshake for finished, and knows this side by its name.
    pub(super) fn said_ready(&self) -> bool {
        self.hs.said_ready()
    }

    /// A peer of this name may take the handshake for finished, and what it has said since may be on the way.
    pub(super) fn is_with(&self, name: &str) -> bool {
        match &self.phase {
            Phase::Opening(_, hello) => hello.name == name,
            Phase::Handshaking => self.said_ready() && self.hs.is_with(name),
            _ => false,
        }
    }

    /// It has not said HELLO.
    pub(super) fn is_silent(&self) -> bool {
        matches!(self.phase, Phase::Handshaking) && self.hs.is_anonymous()
    }

    /// When it last got on: was accepted, or said what it had to say next.
    pub(super) fn got_on(&self) -> Instant {
        self.got_on
    }

    /// What is missing, for messages.
    pub(super) fn awaits(&self) -> &'static str {
        self.hs.awaits()
    }

    /// What its end tells of the far end.
    pub(super) fn met(&self) -> Met {
        self.met
    }

    /// It had introduced itself, and with a secret proved it, when it closed the connection.
    pub(super) fn has_left(&self, secret: bool) -> bool {
        self.met == Met::Broken && (!secret || self.hs.has_proved())
    }

    pub(super) fn is_lingering(&self) -> bool {
        matches!(self.phase, Phase::Lingering(_))
    }

    /// Does what can be done now.
    pub(super) fn step(&mut self, epoll: &Epoll, ctx: &mut Ctx<'_>) -> Outcome {
        let result = match self.phase {
            Phase::Lingering(_) => return self.linger(epoll, ctx.now),
            Phase::Opening(..) => self.open(ctx),
            Phase::Connecting => self
                .connecting()
                .and_then(|connected| if connected { self.exchange(epoll, ctx) } else { Ok(None) }),
            Phase::Handshaking => self.exchange(epoll, ctx),
        };
        let failure = match result {
            Ok(Some(success)) => return Outcome::Ready(success),
            Ok(None) if ctx.now < self.deadline => match self.update_interest(epoll) {
                Ok(()) => return Outcome::Pending,
                Err(e) => unconnected("epoll_ctl", &e).into(),
            },
            Ok(None) => self.timeout(),
            Err(failure) => failure,
        };
        self.fail(epoll, ctx, failure)
    }

    /// Ends it from this side.
    pub(super) fn fail(&mut self, epoll: &Epoll, ctx: &mut Ctx<'_>, failure: Failure) -> Outcome {
        let introduced = matches!(self.phase, Phase::Opening(..)) || !self.hs.is_anonymous();
        if introduced && failure.status.reason == Reason::PeerGone {
            self.met = Met::Broken;
        }
        self.hs.abandon(ctx);
        if let Phase::Opening(attempt, _) = &self.phase {
            ctx.neg.discard(attempt.kind, attempt.ep);
        }
        let tell = failure.tell && matches!(self.phase, Phase::Handshaking);
        self.phase = Phase::Lingering(0);
        if tell && self.stream.is_some() {
            self.hs.reject(&failure.status);
            self.deadline = ctx.now + LINGER;
            if matches!(self.linger(epoll, ctx.now), Outcome::Ended) {
                self.close(epoll);
            }
        } else {
            self.close(epoll);
        }
        Outcome::Failed(failure.status)
    }

    /// Closes the socket, and stops watching it first: a forked child may hold it too, and would keep
    /// it in the epoll set for ever.
    pub(super) fn close(&mut self, epoll: &Epoll) {
        if let Some(stream) = self.stream.take() {
            let _ = epoll.remove(&stream);
        }
    }

    /// Nothing is left to be done.
    pub(super) fn is_closed(&self) -> bool {
        self.stream.is_none() && self.is_lingering()
    }

    fn timeout(&self) -> Failure {
        let limit = shown::time(self.deadline.saturating_duration_since(self.started));
        let (status, tell) = match self.phase {
            Phase::Connecting => {
                (Status::new(Code::Unavailable, text!("no connection within {limit}")), false)
            }
            Phase::Opening(..) => {
                let text = text!("the tcp endpoint was not open within {limit}");
                (Status::new(Code::Unavailable, text), false)
            }
            _ => {
                let awaits = self.hs.awaits();
                let text = text!("no {awaits} within {limit} of connecting");
                let status = Status::new(Code::Unavailable, text).because(Reason::PeerStalled);
                (status, !self.hs.is_anonymous())
            }
        };
        Failure { status, tell }
    }

    fn connecting(&mut self) -> Result<bool, Failure> {
        let Some(stream) = &self.stream else { return Ok(false) };
        let silent = |e: &io::Error| {
            let status = match e.kind() {
                ErrorKind::PermissionDenied => Status::os("connect", e),
                // The system does not tell where it leads.
                ErrorKind::Unsupported => unconnected("getpeername", e),
                _ => Status::gone(text!("connect: {e}")),
            };
            Failure { status, tell: false }
        };
        // Not what became of the connection, but that the system does not tell.
        let untold = |e: io::Error| Failure { status: unconnected("getsockopt", &e), tell: false };
        if let Some(e) = stream.take_error().map_err(untold)? {
            if e.kind() == ErrorKind::ConnectionRefused {
                self.met = Met::Nobody;
            }
            return Err(silent(&e));
        }
        let far = match stream.peer_addr() {
            Ok(far) => far,
            Err(e) if e.kind() == ErrorKind::NotConnected => return Ok(false),
            Err(e) => return Err(silent(&e)),
        };
        // Nobody listens at a port of the ephemeral range, and the system drew just that port for
        // this end: TCP then connects the socket to itself.
        if stream.local_addr().ok() == Some(far) {
            self.met = Met::Nobody;
            let status = Status::gone("connect: nobody listens there");
            return Err(Failure { status, tell: false });
        }
        self.phase = Phase::Handshaking;
        Ok(true)
    }

    /// Moves frames until one is not complete.
    fn exchange(&mut self, epoll: &Epoll, ctx: &mut Ctx<'_>) -> Result<Option<Success>, Failure> {
        loop {
            self.hs.poll(ctx)?;
            let flushed =
                self.flush().map_err(|e| Failure { status: broken("sendto", &e), tell: false })?;
            if self.hs.finished() && !self.is_called_off() {
                return if flushed { self.finish(epoll, ctx) } else { Ok(None) };
            }
            if self.hs.is_deciding() {
                self.still_there()?;
                return Ok(None);
            }
            let Some(stream) = &mut self.stream else { return Ok(None) };
            let frame = self.reader.next(&mut **stream).map_err(|broken| match broken {
                Broken::Gone(status) | Broken::Foreign(status) => Failure { status, tell: false },
                Broken::Malformed(status) => status.into(),
            })?;
            match frame {
                Some(frame) => {
                    self.hs.on_frame(ctx, frame)?;
                    self.got_on = ctx.now;
                    if self.hs.is_trusted() {
                        // Slow is all that such a peer may be, and what it has heard cannot be taken back.
                        let patience = ctx.shared.config.patience;
                        self.deadline = self.deadline.max(self.started + patience);
                    }
                }
                None => return Ok(None),
            }
        }
    }

    /// The peer has said READY, has waited for this side's for as long as it would, and has said so since: had this side not looked, it would
    /// take for a connection what nobody holds at the other end.
    fn is_called_off(&self) -> bool {
        let mut next = [0; REJECTS.len()];
        let peeked = self.stream.as_ref().map(|stream| stream.peek(&mut next));
        matches!(peeked, Some(Ok(n)) if n == next.len()) && next == REJECTS
    }

    /// While no frame is read: whether the far end is still there.
    fn still_there(&self) -> Result<(), Failure> {
        let Some(stream) = &self.stream else { return Ok(()) };
        let status = match stream.peek(&mut [0]) {
            Ok(0) => Status::gone("it closed the connection during the handshake"),
            Err(e) if !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                broken("recvfrom", &e)
            }
            _ => return Ok(()),
        };
        Err(Failure { status, tell: false })
    }

    /// Returns whether everything is out.
    fn flush(&mut self) -> io::Result<bool> {
        let Some(stream) = &mut self.stream else { return Ok(true) };
        let tx = &mut self.hs.out.tx;
        while let Some(rest) = tx.get(self.sent..).filter(|r| !r.is_empty()) {
            match again(|| stream.write(rest)) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        tx.clear();
        self.sent = 0;
        Ok(true)
    }

    fn update_interest(&mut self, epoll: &Epoll) -> io::Result<()> {
        let Some(stream) = &self.stream else { return Ok(()) };
        let unsent = self.sent < self.hs.out.tx.len();
        let wanted = match self.phase {
            Phase::Connecting => WRITE,
            // What follows READY belongs to the tcp provider: it is not even looked at.
            _ if self.hs.finished() => WRITE,
            // Nothing is read before the manager has decided: what came would be ready all the time.
            _ if self.hs.is_deciding() => u32::from(unsent) * WRITE,
            _ if unsent => READ | WRITE,
            _ => READ,
        };
        if wanted != self.interest {
            epoll.modify(stream, wanted, self.id)?;
            self.interest = wanted;
        }
        Ok(())
    }

    fn finish(&mut self, epoll: &Epoll, ctx: &mut Ctx<'_>) -> Result<Option<Success>, Failure> {
        let (Some((attempt, hello)), Some(stream)) = (self.hs.take(), self.stream.take()) else {
            return Err(Status::internal("handshake finished without a result").into());
        };
        // The descriptor lives on with its new owner; if this fails it was not watched.
        let _ = epoll.remove(&stream);
        let [idle, pause, count] = host_questions(ctx.shared.identity.peer_timeout_ms);
        // Without it a host that has vanished is found when something is to be sent there.
        let _ = os::keep_alive(&stream, idle, pause, count);
        let sock = stream.convert();
        if attempt.kind != ProviderKind::Tcp {
            let Attempt { kind, ep, reason, .. } = attempt;
            // Within a process an endpoint tells by itself that the other has ended.
            let sock = (kind != ProviderKind::Loopback).then_some(sock);
            return Ok(Some(Success { hello, kind, reason, ep, sock }));
        }
        let (kind, ep) = (attempt.kind, attempt.ep);
        let remote = attempt.remote.clone().unwrap_or_default();
        self.phase = Phase::Opening(attempt, Box::new(hello));
        ctx.neg.connect(kind, ep, &remote, self.hs.out.active, Some(sock))?;
        self.open(ctx)
    }

    fn open(&mut self, ctx: &mut Ctx<'_>) -> Result<Option<Success>, Failure> {
        let Phase::Opening(attempt, _) = &self.phase else { return Ok(None) };
        match ctx.neg.connected(attempt.kind, attempt.ep) {
            None => return Ok(None),
            Some(result) => result?,
        }
        match std::mem::replace(&mut self.phase, Phase::Lingering(0)) {
            Phase::Opening(Attempt { kind, ep, reason, .. }, hello) => {
                Ok(Some(Success { hello: *hello, kind, reason, ep, sock: None }))
            }
            _ => Ok(None),
        }
    }

    /// Sends the rest, then waits for the peer to close: closing with unread bytes would reset the
    /// connection, and the refusal would be lost.
    fn linger(&mut self, epoll: &Epoll, now: Instant) -> Outcome {
        if now >= self.deadline {
            return Outcome::Ended;
        }
        match self.flush() {
            Err(_) => return Outcome::Ended,
            Ok(true) => {
                let shut = self.stream.as_ref().map(|s| s.shutdown(std::net::Shutdown::Write));
                if !matches!(shut, Some(Ok(()))) {
                    return Outcome::Ended;
                }
            }
            Ok(false) => {}
        }
        let (Phase::Lingering(drained), Some(stream)) = (&mut self.phase, &mut self.stream) else {
            return Outcome::Ended;
        };
        let mut scrap = [0; 2048];
        while *drained < LINGER_BYTES {
            match again(|| stream.read(&mut scrap)) {
                Ok(n) if n > 0 => *drained += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    return match self.update_interest(epoll) {
                        Ok(()) => Outcome::Pending,
                        Err(_) => Outcome::Ended,
                    };
                }
                _ => break,
            }
        }
        Outcome::Ended
    }
}
