//! The last part of the handshake: endpoints are made, connected and, if need be, given up for
//! those of the next provider.

use std::time::{Duration, Instant};

use crate::fabric::{EpId, ProviderKind};
use crate::shown;
use crate::status::{Code, Reason, Status};
use crate::wire::{Reader, Writer};

use super::auth::{Keys, TAG};
use super::choice::{self, Choice};
use super::frame::{self, Frame, Kind, clean, malformed};
use super::handshake::Ctx;
use super::{MAX_ENDPOINT_ADDRESS, PeerHello, hello};

/// What goes out, and the tags on it.
pub(super) struct Outbox {
    pub active: bool,
    pub tx: Vec<u8>,
    pub keys: Option<Keys>,
    sent: u64,
    received: u64,
}

impl Outbox {
    pub(super) fn new(active: bool) -> Outbox {
        Outbox { active, tx: Vec::new(), keys: None, sent: 0, received: 0 }
    }

    /// Queues a frame, with a tag if there is a session key.
    fn send(&mut self, kind: Kind, body: impl FnOnce(&mut Writer<'_>)) {
        let tail = if self.keys.is_some() { TAG } else { 0 };
        let frame = frame::build(kind, tail, body);
        self.tx.extend_from_slice(&frame);
        if let Some(keys) = &self.keys {
            self.tx.extend_from_slice(&keys.seal(self.active, self.sent, &frame));
            self.sent += 1;
        }
    }

    /// Checks and removes the tag of a received frame; returns the body.
    pub(super) fn open<'f>(&mut self, frame: &'f Frame) -> Result<&'f [u8], Status> {
        let Some(keys) = &self.keys else { return Ok(frame.body()) };
        let (Some((signed, tag)), Some((body, _))) =
            (frame.raw.split_last_chunk::<TAG>(), frame.body().split_last_chunk::<TAG>())
        else {
            return Err(malformed(text!("{} without its tag", frame.kind.name())));
        };
        keys.verify_seal(!self.active, self.received, signed, tag)?;
        self.received += 1;
        Ok(body)
    }
}

/// One provider's try.
pub(super) struct Attempt {
    pub kind: ProviderKind,
    pub ep: EpId,
    pub reason: String,
    /// The peer's endpoint, once known: from then on this side connects.
    pub remote: Option<Vec<u8>>,
    /// How long it has, and until when.
    limit: Duration,
    deadline: Instant,
    ready_sent: bool,
    ready_received: bool,
}

/// The tries of one handshake. The acceptor proposes, the connector follows.
pub(super) struct Rounds {
    choice: Choice,
    next: usize,
    failures: Vec<(ProviderKind, String)>,
    last_code: Code,
    /// Each of them was the peer's end of a connection.
    all_gone: bool,
    round: u8,
    current: Option<Attempt>,
    /// This side has said READY, in whichever round.
    said_ready: bool,
    /// Why this side, a connector, has given the present round up, if it is for something that stays as it is.
    refusal: Option<Status>,
}

impl Rounds {
    pub(super) fn new(choice: Choice) -> Rounds {
        Rounds {
            choice,
            next: 0,
            failures: Vec::new(),
            last_code: Code::Unavailable,
            all_gone: true,
            round: 0,
            current: None,
            said_ready: false,
            refusal: None,
        }
    }

    /// Why the peer has found nothing that works, if that is for what this side had told it.
    pub(super) fn take_refusal(&mut self) -> Option<Status> {
        self.refusal.take()
    }

    /// Acceptor: makes an endpoint of the next provider that gives one, and proposes it.
    pub(super) fn propose(
        &mut self,
        ctx: &mut Ctx<'_>,
        peer: &PeerHello,
        out: &mut Outbox,
    ) -> Result<(), Status> {
        while let Some(&kind) = self.choice.candidates.get(self.next) {
            self.next += 1;
            self.round += 1;
            match create(ctx, kind, peer, None) {
                Ok((ep, address)) => {
                    let reason = self.choice.reason(kind, &self.failures);
                    send_endpoint(out, self.round, kind, &reason, &address);
                    self.current =
                        Some(Attempt::new(ctx.now, self.limit(ctx, kind), kind, ep, reason));
                    return Ok(());
                }
                Err(status) => self.note(kind, status),
            }
        }
        let tried = choice::list(&self.failures);
        let others = choice::list(&self.choice.against);
        let sep = if others.is_empty() { "" } else { "; " };
        let text = text!("no provider works with '{}': {tried}{sep}{others}", peer.name);
        let status = Status::new(self.last_code, text);
        let gone = self.all_gone && !self.failures.is_empty();
        Err(if gone { status.because(Reason::PeerGone) } else { status })
    }

    /// How long an endpoint has before the next provider is tried.
    fn limit(&self, ctx: &Ctx<'_>, kind: ProviderKind) -> Duration {
        let config = &ctx.shared.config;
        match kind {
            ProviderKind::Ibverbs => config.endpoint_timeout,
            // No other would be tried.
            _ if self.choice.candidates.last() == Some(&kind) => config.patience,
            _ => config.local_timeout,
        }
    }

    fn note(&mut self, kind: ProviderKind, status: Status) {
        // An endpoint that is not there any more: its manager ends, or has given up.
        let gone = status.code == Code::NotFound;
        self.last_code = if gone { Code::Unavailable } else { status.code };
        self.all_gone &= status.reason == Reason::PeerGone;
        self.failures.push((kind, status.into_message()));
    }

    /// A frame of this part. Those of earlier rounds were under way when the round ended.
    pub(super) fn on_frame(
        &mut self,
        ctx: &mut Ctx<'_>,
        peer: &PeerHello,
        out: &mut Outbox,
        kind: Kind,
        body: &[u8],
    ) -> Result<(), Status> {
        let mut r = Reader::new(body);
        let round = r.u8().map_err(malformed)?;
        let message = match kind {
            Kind::Endpoint => {
                let provider = hello::provider(&mut r)?;
                let reason = hello::text(&mut r)?;
                let address = r.bytes16(MAX_ENDPOINT_ADDRESS).map_err(malformed)?;
                EndpointFrame::Endpoint { provider, reason, address }
            }
            Kind::Downgrade => {
                let code = Code::from_i32(r.i32().map_err(malformed)?).unwrap_or(Code::Unknown);
                EndpointFrame::Downgrade { code, text: hello::text(&mut r)? }
            }
            _ => EndpointFrame::Ready,
        };
        if !r.is_empty() {
            return Err(malformed(text!("{} is too long", kind.name())));
        }
        match (message, out.active) {
            (EndpointFrame::Endpoint { provider, reason, address }, true) => {
                self.follow(ctx, peer, out, (round, provider), reason, address)
            }
            _ if round < self.round => Ok(()),
            _ if round > self.round => Err(malformed(text!("round {round} of {}", self.round))),
            (EndpointFrame::Endpoint { provider, address, .. }, false) => {
                self.answered(ctx, peer, out, provider, address)
            }
            (EndpointFrame::Downgrade { code, text }, false) => {
                let code = if code == Code::Ok { Code::Unknown } else { code };
                let text = text!("{text} (at '{}')", peer.name);
                self.give_up(ctx, peer, out, Status::new(code, text))
            }
            (EndpointFrame::Downgrade { .. }, true) => {
                Err(malformed("DOWNGRADE from the acceptor"))
            }
            (EndpointFrame::Ready, _) => self.peer_ready(),
        }
    }

    /// Connector: makes its endpoint of the proposed provider and connects it.
    fn follow(
        &mut self,
        ctx: &mut Ctx<'_>,
        peer: &PeerHello,
        out: &mut Outbox,
        (round, kind): (u8, ProviderKind),
        reason: String,
        address: &[u8],
    ) -> Result<(), Status> {
        if round <= self.round {
            return Err(malformed(text!("round {round} after {}", self.round)));
        }
        if !self.choice.candidates.contains(&kind) {
            return Err(malformed(text!("provider {} is not usable here", kind.name())));
        }
        self.abandon(ctx);
        (self.round, self.refusal) = (round, None);
        match create(ctx, kind, peer, Some(address)) {
            Ok((ep, own)) => {
                send_endpoint(out, round, kind, "", &own);
                let limit = self.limit(ctx, kind);
                let mut attempt = Attempt::new(ctx.now, limit, kind, ep, reason);
                attempt.remote = Some(address.to_vec());
                self.current = Some(attempt);
                self.connect(ctx, peer, out)
            }
            Err(status) => {
                send_downgrade(out, round, &status);
                Ok(())
            }
        }
    }

    /// Acceptor: the connector has made its endpoint.
    fn answered(
        &mut self,
        ctx: &mut Ctx<'_>,
        peer: &PeerHello,
        out: &mut Outbox,
        kind: ProviderKind,
        address: &[u8],
    ) -> Result<(), Status> {
        match &mut self.current {
            Some(a) if a.kind == kind && a.remote.is_none() => a.remote = Some(address.to_vec()),
            _ => return Err(malformed("ENDPOINT that answers nothing")),
        }
        self.connect(ctx, peer, out)
    }

    /// Starts to connect this side's endpoint. Tcp waits: its socket is in use until READY.
    fn connect(
        &mut self,
        ctx: &mut Ctx<'_>,
        peer: &PeerHello,
        out: &mut Outbox,
    ) -> Result<(), Status> {
        let Some(a) = &mut self.current else { return Ok(()) };
        if a.kind == ProviderKind::Tcp {
            (a.ready_sent, self.said_ready) = (true, true);
            send_ready(out, self.round);
            return Ok(());
        }
        let remote = a.remote.as_deref().unwrap_or_default();
        match ctx.neg.connect(a.kind, a.ep, remote, out.active, None) {
            Ok(()) => self.poll(ctx, peer, out),
            Err(status) => self.give_up(ctx, peer, out, status),
        }
    }

    /// Asks after an endpoint that is connecting.
    pub(super) fn poll(
        &mut self,
        ctx: &mut Ctx<'_>,
        peer: &PeerHello,
        out: &mut Outbox,
    ) -> Result<(), Status> {
        let Some(a) = self.current.as_mut().filter(|a| a.connecting()) else { return Ok(()) };
        match ctx.neg.connected(a.kind, a.ep) {
            Some(Ok(())) => {
                (a.ready_sent, self.said_ready) = (true, true);
                send_ready(out, self.round);
                Ok(())
            }
            Some(Err(status)) => self.give_up(ctx, peer, out, status),
            None if ctx.now >= a.deadline => {
                let limit = shown::time(a.limit);
                let status = Status::new(
                    Code::Unavailable,
                    text!("the endpoint was not connected within {limit}"),
                );
                self.give_up(ctx, peer, out, status)
            }
            None => Ok(()),
        }
    }

    fn give_up(
        &mut self,
        ctx: &mut Ctx<'_>,
        peer: &PeerHello,
        out: &mut Outbox,
        status: Status,
    ) -> Result<(), Status> {
        let Some(kind) = self.abandon(ctx) else { return Ok(()) };
        if out.active {
            send_downgrade(out, self.round, &status);
            self.refusal = Some(status).filter(|s| s.code == Code::FailedPrecondition);
            return Ok(());
        }
        self.note(kind, status);
        self.propose(ctx, peer, out)
    }

    fn peer_ready(&mut self) -> Result<(), Status> {
        match &mut self.current {
            // This side has already asked for another provider.
            None => Ok(()),
            Some(a) if a.remote.is_some() && !a.ready_received => {
                a.ready_received = true;
                Ok(())
            }
            Some(_) => Err(malformed("unexpected READY")),
        }
    }

    /// Whether both sides are ready.
    pub(super) fn finished(&self) -> bool {
        self.current.as_ref().is_some_and(|a| a.ready_sent && a.ready_received)
    }

    /// Whether the peer may have come to the end of the handshake, whatever becomes of it here.
    pub(super) fn said_ready(&self) -> bool {
        self.said_ready
    }

    /// Hands the successful try over.
    pub(super) fn take(&mut self) -> Option<Attempt> {
        self.current.take()
    }

    /// Whether the manager must be asked, and until when.
    pub(super) fn waits_until(&self) -> Option<Instant> {
        self.current.as_ref().filter(|a| a.connecting()).map(|a| a.deadline)
    }

    /// Gives the endpoint of the current try back.
    pub(super) fn abandon(&mut self, ctx: &mut Ctx<'_>) -> Option<ProviderKind> {
        let a = self.current.take()?;
        ctx.neg.discard(a.kind, a.ep);
        Some(a.kind)
    }
}

impl Attempt {
    fn new(now: Instant, limit: Duration, kind: ProviderKind, ep: EpId, reason: String) -> Attempt {
        Attempt {
            kind,
            ep,
            reason,
            remote: None,
            limit,
            deadline: now + limit,
            ready_sent: false,
            ready_received: false,
        }
    }

    fn connecting(&self) -> bool {
        self.remote.is_some() && !self.ready_sent
    }
}

/// A frame by which the two sides come to their endpoints, decoded.
enum EndpointFrame<'a> {
    Endpoint { provider: ProviderKind, reason: String, address: &'a [u8] },
    Downgrade { code: Code, text: String },
    Ready,
}

fn create(
    ctx: &mut Ctx<'_>,
    kind: ProviderKind,
    peer: &PeerHello,
    remote: Option<&[u8]>,
) -> Result<(EpId, Vec<u8>), Status> {
    let (ep, address) = ctx.neg.create(kind, peer, remote)?;
    if address.len() > MAX_ENDPOINT_ADDRESS {
        ctx.neg.discard(kind, ep);
        return Err(Status::internal(text!(
            "endpoint address of {} bytes; allowed are {MAX_ENDPOINT_ADDRESS}",
            address.len()
        )));
    }
    Ok((ep, address))
}

fn send_endpoint(out: &mut Outbox, round: u8, kind: ProviderKind, reason: &str, address: &[u8]) {
    out.send(Kind::Endpoint, |w| {
        w.u8(round).u8(kind as u8).bytes16(clean(reason).as_bytes()).bytes16(address);
    });
}

fn send_downgrade(out: &mut Outbox, round: u8, status: &Status) {
    out.send(Kind::Downgrade, |w| {
        w.u8(round).i32(status.code as i32).bytes16(clean(&status.message).as_bytes());
    });
}

fn send_ready(out: &mut Outbox, round: u8) {
    out.send(Kind::Ready, |w| {
        w.u8(round);
    });
}
