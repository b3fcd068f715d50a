//! The handshake as a state machine: frames in, bytes out, no socket.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::status::{Code, Reason, Status};
use crate::wire::Reader;

use super::auth::{Keys, Transcript};
use super::choice::choose;
use super::endpoint::{Attempt, Outbox, Rounds};
use super::frame::{self, Frame, Kind, clean, malformed};
use super::hello::{self, Ack, Hello};
use super::{BootConfig, Identity, Negotiator, PeerHello, sys};

/// What all handshakes of a manager share.
pub(super) struct Shared {
    pub identity: Identity,
    pub config: BootConfig,
    /// Where this side listens.
    pub addrs: Vec<SocketAddr>,
}

/// What a step may use.
pub(super) struct Ctx<'a> {
    pub shared: &'a Shared,
    pub now: Instant,
    pub neg: &'a mut dyn Negotiator,
}

/// Whom a dial must find.
#[derive(Clone, Debug)]
pub(super) struct Expect {
    pub name: String,
    pub incarnation: Option<[u8; 16]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Acceptor, before HELLO.
    Hello,
    /// Connector, before HELLO_ACK.
    Ack,
    /// Before the peer's AUTH.
    Auth,
    /// The manager finds out whether the peer may have its name.
    Claim,
    /// ENDPOINT, DOWNGRADE, READY.
    Endpoints,
}

/// So long a newcomer waits while the one who has its name is asked for a sign of life.
const CLAIM_TIME: Duration = Duration::from_secs(1);

/// Why a handshake ended, and whether the peer should hear of it.
#[derive(Debug)]
pub(super) struct Failure {
    pub status: Status,
    pub tell: bool,
}

impl From<Status> for Failure {
    fn from(status: Status) -> Failure {
        Failure { status, tell: true }
    }
}

/// One side of one handshake.
pub(super) struct Handshake {
    state: State,
    pub out: Outbox,
    nonce: [u8; 32],
    /// This side's HELLO or HELLO_ACK, for the transcript.
    own: Vec<u8>,
    expect: Option<Expect>,
    peer: Option<PeerHello>,
    rounds: Option<Rounds>,
    claim_until: Option<Instant>,
    /// The peer's proof of the secret was checked.
    proved: bool,
    /// Either side has the checksum option.
    checksum: bool,
    /// The connector's: the connection is to be a part of another.
    rail: bool,
}

impl Handshake {
    /// The acceptor's side, waiting for HELLO.
    pub(super) fn accept() -> Result<Handshake, Status> {
        Self::new(false, State::Hello, None)
    }

    /// The connector's side; HELLO is queued.
    pub(super) fn connect(
        shared: &Shared,
        expect: Option<Expect>,
        rail: bool,
    ) -> Result<Handshake, Status> {
        let mut hs = Self::new(true, State::Ack, expect)?;
        hs.rail = rail;
        hs.own = hs.hello(shared).encode();
        hs.out.tx.extend_from_slice(&hs.own);
        Ok(hs)
    }

    fn new(active: bool, state: State, expect: Option<Expect>) -> Result<Handshake, Status> {
        let mut nonce = [0; 32];
        sys::random(&mut nonce)?;
        let out = Outbox::new(active);
        Ok(Handshake {
            state,
            out,
            nonce,
            own: Vec::new(),
            expect,
            peer: None,
            rounds: None,
            claim_until: None,
            proved: false,
            checksum: false,
            rail: false,
        })
    }

    fn hello(&self, shared: &Shared) -> Hello {
        let auth = shared.config.secret.is_some();
        let mut hello = Hello::new(self.nonce, auth, &shared.identity, &shared.addrs);
        hello.peer.rail = self.rail;
        hello
    }

    /// A frame of the peer.
    pub(super) fn on_frame(&mut self, ctx: &mut Ctx<'_>, frame: Frame) -> Result<(), Failure> {
        match (self.state, frame.kind) {
            (_, Kind::Reject) => {
                let status = read_reject(frame.body()).unwrap_or_else(|status| status);
                // What this side has ended for good ended at the peer, too, which may take it for a broken connection.
                let own = self.rounds.as_mut().and_then(Rounds::take_refusal);
                let lasts = status.code == Code::FailedPrecondition;
                let status = own.filter(|_| !lasts).unwrap_or(status);
                Err(Failure { status, tell: false })
            }
            (State::Hello, Kind::Hello) => Ok(self.on_hello(ctx, &frame)?),
            (State::Ack, Kind::Ack) => Ok(self.on_ack(ctx, &frame)?),
            (State::Auth, Kind::Auth) => Ok(self.on_auth(ctx, &frame)?),
            (State::Endpoints, Kind::Endpoint | Kind::Downgrade | Kind::Ready) => {
                let body = self.out.open(&frame)?;
                if let (Some(rounds), Some(peer)) = (&mut self.rounds, &self.peer) {
                    rounds.on_frame(ctx, peer, &mut self.out, frame.kind, body)?;
                }
                Ok(())
            }
            (state, kind) => {
                let text = text!("{} while waiting for {}", kind.name(), state.awaits());
                Err(malformed(text).into())
            }
        }
    }

    fn on_hello(&mut self, ctx: &mut Ctx<'_>, frame: &Frame) -> Result<(), Status> {
        let theirs = Hello::decode(frame.body())?;
        let version = hello::common_version(theirs.versions)?;
        check_auth(ctx.shared, &theirs)?;
        let choice = choose(&ctx.shared.identity, &theirs.peer)?;
        let kind = choice.candidates.first().copied();
        let kind = kind.ok_or_else(|| Status::internal("a choice without a provider"))?;
        let reason = choice.reason(kind, &[]);
        self.own = Ack { version, kind, reason, hello: self.hello(ctx.shared) }.encode();
        self.out.tx.extend_from_slice(&self.own);
        self.rounds = Some(Rounds::new(choice));
        self.greeted(ctx, theirs, frame)
    }

    fn on_ack(&mut self, ctx: &mut Ctx<'_>, frame: &Frame) -> Result<(), Status> {
        let ack = Ack::decode(frame.body())?;
        check_auth(ctx.shared, &ack.hello)?;
        self.check_expected(&ack.hello.peer)?;
        let choice = choose(&ctx.shared.identity, &ack.hello.peer)?;
        if !choice.candidates.contains(&ack.kind) {
            let text = text!("provider {} was chosen, which is not usable here", ack.kind.name());
            return Err(malformed(text));
        }
        self.rounds = Some(Rounds::new(choice));
        let mut theirs = ack.hello;
        // It is what the connector makes it, whatever the acceptor says.
        theirs.peer.rail = self.rail;
        self.greeted(ctx, theirs, frame)
    }

    fn check_expected(&self, peer: &PeerHello) -> Result<(), Status> {
        let Some(expect) = &self.expect else { return Ok(()) };
        if peer.name != expect.name {
            let text = text!("'{}' was expected there, '{}' answers", expect.name, peer.name);
            return Err(Status::new(Code::NotFound, text));
        }
        if expect.incarnation.is_some_and(|i| i != peer.incarnation) {
            let text = text!("'{}' is another incarnation than expected", peer.name);
            return Err(Status::new(Code::Unavailable, text).because(Reason::PeerRestarted));
        }
        Ok(())
    }

    /// Both have introduced themselves: goes on to AUTH, or past it if there is no secret.
    fn greeted(&mut self, ctx: &mut Ctx<'_>, theirs: Hello, frame: &Frame) -> Result<(), Status> {
        // Both have seen the same two flags, or the first frame with a tag shows that they have not.
        self.checksum = ctx.shared.identity.checksum || theirs.peer.checksum;
        self.peer = Some(theirs.peer);
        let secret = ctx.shared.config.secret.as_deref();
        let (mine, other) = ((&self.nonce, &self.own[..]), (&theirs.nonce, &frame.raw[..]));
        let (first, second) = if self.out.active { (mine, other) } else { (other, mine) };
        let transcript = Transcript { nonces: [first.0, second.0], frames: [first.1, second.1] };
        self.out.keys = Some(Keys::new(secret, &transcript)?);
        if secret.is_none() {
            return self.trusted(ctx);
        }
        self.state = State::Auth;
        if self.out.active {
            self.send_proof();
        }
        Ok(())
    }

    fn send_proof(&mut self) {
        if let Some(keys) = &self.out.keys {
            let proof = keys.proof(self.out.active);
            self.out.tx.extend(frame::build(Kind::Auth, 0, |w| {
                w.bytes(&proof);
            }));
        }
    }

    fn on_auth(&mut self, ctx: &mut Ctx<'_>, frame: &Frame) -> Result<(), Status> {
        let keys = self.out.keys.as_ref();
        let keys = keys.ok_or_else(|| Status::internal("AUTH without keys"))?;
        keys.verify_proof(!self.out.active, frame.body())?;
        self.proved = true;
        if !self.out.active {
            self.send_proof();
        }
        self.trusted(ctx)
    }

    /// The peer is who it claims to be, as far as can be known.
    fn trusted(&mut self, ctx: &mut Ctx<'_>) -> Result<(), Status> {
        self.state = State::Claim;
        self.claim_until = Some(ctx.now + CLAIM_TIME);
        self.decide(ctx)
    }

    /// Asks the manager whether the peer may come in, and goes on if it may.
    fn decide(&mut self, ctx: &mut Ctx<'_>) -> Result<(), Status> {
        let (Some(rounds), Some(peer)) = (&mut self.rounds, &self.peer) else {
            return Err(Status::internal("handshake without a peer"));
        };
        match ctx.neg.check(peer, self.proved) {
            Some(answer) => answer?,
            None if self.claim_until.is_some_and(|at| ctx.now < at) => return Ok(()),
            None => {
                let text = text!(
                    "another process is connected as '{}', and has not been found dead yet: it did not \
                     answer within {CLAIM_TIME:?}",
                    peer.name
                );
                return Err(Status::new(Code::Unavailable, text));
            }
        }
        self.claim_until = None;
        self.state = State::Endpoints;
        if self.out.active {
            return Ok(());
        }
        rounds.propose(ctx, peer, &mut self.out)
    }

    /// Asks the manager after endpoints that are connecting.
    pub(super) fn poll(&mut self, ctx: &mut Ctx<'_>) -> Result<(), Failure> {
        if self.is_deciding() {
            self.decide(ctx)?;
        }
        if let (Some(rounds), Some(peer)) = (&mut self.rounds, &self.peer) {
            rounds.poll(ctx, peer, &mut self.out)?;
        }
        Ok(())
    }

    /// Both sides have said READY: no byte of the handshake is to come.
    pub(super) fn finished(&self) -> bool {
        self.rounds.as_ref().is_some_and(Rounds::finished)
    }

    /// The peer may take it for finished.
    pub(super) fn said_ready(&self) -> bool {
        self.rounds.as_ref().is_some_and(Rounds::said_ready)
    }

    /// The result.
    pub(super) fn take(&mut self) -> Option<(Attempt, PeerHello)> {
        let attempt = self.rounds.as_mut()?.take()?;
        let (mut peer, keys) = (self.peer.take()?, self.out.keys.as_ref()?);
        peer.seeds = self.checksum.then(|| keys.seeds(self.out.active));
        peer.connection = keys.name();
        Some((attempt, peer))
    }

    /// When to give up the present endpoint; `Some` too if `poll` is to be called.
    pub(super) fn waits_until(&self) -> Option<Instant> {
        self.claim_until.or_else(|| self.rounds.as_ref().and_then(Rounds::waits_until))
    }

    /// Gives everything back.
    pub(super) fn abandon(&mut self, ctx: &mut Ctx<'_>) {
        if let Some(rounds) = &mut self.rounds {
            rounds.abandon(ctx);
        }
    }

    /// Queues REJECT.
    pub(super) fn reject(&mut self, status: &Status) {
        self.out.tx.extend(frame::build(Kind::Reject, 0, |w| {
            w.i32(status.code as i32).bytes16(clean(&status.message).as_bytes());
        }));
    }

    /// The peer has not introduced itself yet.
    pub(super) fn is_anonymous(&self) -> bool {
        self.peer.is_none()
    }

    /// The peer has introduced itself by this name.
    pub(super) fn is_with(&self, name: &str) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.name == name)
    }

    /// The peer has proved that it knows the secret. Without a secret nobody has proved anything.
    pub(super) fn has_proved(&self) -> bool {
        self.proved
    }

    /// The manager lets the peer in.
    pub(super) fn is_trusted(&self) -> bool {
        self.state == State::Endpoints
    }

    /// The manager is being asked; no frame is read meanwhile.
    pub(super) fn is_deciding(&self) -> bool {
        self.state == State::Claim
    }

    /// What is missing, for messages.
    pub(super) fn awaits(&self) -> &'static str {
        self.state.awaits()
    }
}

impl State {
    fn awaits(self) -> &'static str {
        match self {
            State::Hello => "HELLO",
            State::Ack => "HELLO_ACK",
            State::Auth => "AUTH",
            State::Claim => "sign of life or death of who has its name",
            State::Endpoints => "ENDPOINT or READY",
        }
    }
}

/// A secret on one side only is a mistake in the set-up, and says so.
fn check_auth(shared: &Shared, theirs: &Hello) -> Result<(), Status> {
    let own = &shared.identity.name;
    let (with, without) = match (shared.config.secret.is_some(), theirs.auth) {
        (true, false) => (own, &theirs.peer.name),
        (false, true) => (&theirs.peer.name, own),
        _ => return Ok(()),
    };
    Err(Status::new(
        Code::Unauthenticated,
        text!("'{with}' requires authentication and '{without}' has no secret"),
    ))
}

fn read_reject(body: &[u8]) -> Result<Status, Status> {
    let mut r = Reader::new(body);
    let code = Code::from_i32(r.i32().map_err(malformed)?).filter(|&c| c != Code::Ok);
    let text = hello::text(&mut r)?;
    let status = Status::new(code.unwrap_or(Code::Unknown), format!("refused by the peer: {text}"));
    Ok(status.because(Reason::RemoteError))
}
