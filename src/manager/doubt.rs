//! Why a connection ended is said after the peer was heard, not when its device answers.
//!
//! The device of a process that is being killed goes on answering, while the kernel takes the process apart: memory
//! regions first, queue pairs later, sockets last. So accesses of a peer that dies are refused just as those of a peer that lives and
//! has revoked a region. The first is `UNAVAILABLE`, to be tried again; the second is `PERMISSION_DENIED`, a bug of somebody.
//!
//! A refusal by the peer's device therefore puts the channel in doubt. Its events are kept, in order, and nothing more is
//! posted on it, until one of these is known:
//!
//! - the liveness socket ended: the peer is gone, whatever its device said;
//! - a byte came on it: the peer lives, and its own device told it of the failed connection. The refusal stands;
//! - neither within [`GRACE`]: the peer is alive as far as anybody knows, and the refusal stands.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use super::core::Core;
use super::world::{Connection, World};
use crate::engine::ChanId;
use crate::fabric::{Event, ProviderKind};
use crate::os::ticks;
use crate::status::{Reason, Status};

/// The longest doubt, in nanoseconds. The kernel takes some 0.1 s for each GiB of registered memory of a killed process,
/// and several times that on a busy machine; a peer that lives, and has a progress thread, answers at once.
const GRACE: u64 = 20_000_000_000;

/// What a manager says on the liveness socket before it closes it, where its own provider reported the end.
const FAILED_HERE: [u8; 1] = [1];

/// What is known of the peer by its liveness socket.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Word {
    /// Nothing yet.
    None,
    /// It lives, and its end of the connection failed.
    Failed,
    /// The socket ended, or failed with this error.
    Gone(Option<String>),
}

/// Asks a liveness socket.
fn hear(socket: &OwnedFd) -> Word {
    let mut byte = [0u8; 1];
    // SAFETY: `byte` is valid for one byte.
    let n =
        unsafe { libc::recv(socket.as_raw_fd(), byte.as_mut_ptr().cast(), 1, libc::MSG_DONTWAIT) };
    let error = std::io::Error::last_os_error();
    match n {
        0 => Word::Gone(None),
        1.. => Word::Failed,
        _ => match error.kind() {
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted => Word::None,
            _ => Word::Gone(Some(error.to_string())),
        },
    }
}

/// An event that waits, with its bytes.
enum DelayedEvent {
    Message(Vec<u8>),
    Written(u32),
    Done(u64, Result<(), Status>),
    Down(Status),
}

/// Whether what the provider says of a channel's end is believed.
#[derive(Default)]
pub enum Doubt {
    /// Nothing was refused.
    #[default]
    None,
    /// The peer's device refused something; this waits, until then at most.
    Since(u64, Waiting),
    /// The refusal stands.
    Over,
}

/// The events of a channel in doubt, in order.
#[derive(Default)]
pub struct Waiting(Vec<DelayedEvent>);

impl Doubt {
    /// Until when; `None`: there is no doubt.
    pub fn until(&self) -> Option<u64> {
        match self {
            Doubt::Since(until, _) => Some(*until),
            Doubt::None | Doubt::Over => None,
        }
    }
}

/// Whether the status says that the peer's device, not the peer, answered.
fn is_refusal(kind: ProviderKind, event: &Event) -> bool {
    kind == ProviderKind::Ibverbs
        && match event {
            Event::Done { result: Err(status), .. } | Event::Down { status, .. } => {
                status.reason == Reason::RemoteError
            }
            _ => false,
        }
}

impl World {
    /// Whether a channel of this provider may be in doubt, or come to be.
    #[inline]
    pub(super) fn may_doubt(&self, kind: ProviderKind) -> bool {
        kind == ProviderKind::Ibverbs || self.connections.has_doubts()
    }
}

impl Core {
    /// Keeps the event if its channel is in doubt, or comes to be by it; else gives it back.
    pub(super) fn in_doubt(
        &mut self,
        kind: ProviderKind,
        ch: ChanId,
        event: Event,
    ) -> Option<Event> {
        let now = self.world.clock.now();
        let timed = &mut self.timed;
        let begins = |connection: &Connection| {
            let refused = connection.alive.is_some() && is_refusal(kind, &event);
            *timed |= refused;
            refused.then(|| now.saturating_add(GRACE))
        };
        let doubt = self.world.connections.doubt(ch, begins);
        let Some(Doubt::Since(_, waiting)) = doubt else { return Some(event) };
        waiting.0.push(match event {
            Event::Connected(_) => return None,
            // What came before the end: no more than the receive queue has room for.
            Event::Message { bytes, .. } => match crate::room::copy(bytes.bytes(), "a message") {
                Ok(bytes) => DelayedEvent::Message(bytes),
                Err(status) => DelayedEvent::Down(status),
            },
            Event::Written { imm, .. } => DelayedEvent::Written(imm),
            Event::Done { wr, result, .. } => DelayedEvent::Done(wr, result),
            Event::Down { status, .. } => DelayedEvent::Down(status),
        });
        None
    }

    /// Looks at the peers of channels in doubt. Not while events are being handled.
    #[inline(always)]
    pub(super) fn settle_doubts(&mut self) {
        if self.world.connections.has_doubts() {
            self.look_at_doubts();
        }
    }

    #[inline(never)]
    fn look_at_doubts(&mut self) {
        let now = self.world.clock.now();
        for (ch, until) in self.world.connections.doubtful() {
            self.check_alive(ch);
            if now >= until {
                self.refusal_stands(ch);
            }
        }
    }

    /// The peer lives: what was kept happens now.
    pub(super) fn refusal_stands(&mut self, ch: ChanId) {
        let Some(connection) = self.world.connections.get_mut(ch) else { return };
        let Doubt::Since(_, waiting) = std::mem::replace(&mut connection.doubt, Doubt::Over) else {
            return;
        };
        for kept in waiting.0 {
            // One of them may end the channel.
            if self.world.connections.get(ch).is_none() {
                return;
            }
            let (engine, world) = (&mut self.engine, &mut self.world);
            match kept {
                DelayedEvent::Message(bytes) => engine.on_message(world, ch, &bytes),
                DelayedEvent::Written(imm) => engine.on_imm(world, ch, imm),
                DelayedEvent::Done(wr, result) => engine.on_done(world, ch, wr, result),
                DelayedEvent::Down(status) => self.provider_ended(ch, status),
            }
        }
    }

    /// The provider says that a channel ended. The peer hears of it, so that it knows a refusal from a death.
    pub(super) fn provider_ended(&mut self, ch: ChanId, status: Status) {
        if let Some(alive) = self.world.connections.get(ch).and_then(|c| c.alive.as_ref()) {
            // SAFETY: the constant is valid for its length. A peer that is gone need not hear it.
            unsafe {
                libc::send(
                    alive.as_raw_fd(),
                    FAILED_HERE.as_ptr().cast(),
                    FAILED_HERE.len(),
                    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                )
            };
        }
        self.engine.channel_down(&mut self.world, ch, status);
    }

    /// The liveness socket of a channel became readable: its peer is gone, or says that its end failed. What it
    /// had sent before is taken first.
    pub(super) fn check_alive(&mut self, ch: u32) {
        let Some(socket) = self.world.connections.get(ch).and_then(|c| c.alive.as_ref()) else {
            return;
        };
        let word = hear(socket);
        if word == Word::None {
            return;
        }
        self.world.tick();
        let heard = |core: &Core| core.engine.channel(ch).map(|c| c.heard);
        let before = heard(self);
        self.poll_adapters(true, ticks());
        if matches!(word, Word::Gone(_)) && (heard(self) != before || self.world.has_rest(ch)) {
            // A poll takes some of what is there. The socket stays readable: this is asked again.
            return;
        }
        let text = match word {
            Word::Gone(Some(error)) => format!("the peer's connection failed: {error}"),
            Word::Gone(None) => "the peer's process or manager ended".to_owned(),
            Word::Failed | Word::None => {
                self.refusal_stands(ch);
                "the peer's end of the connection failed".to_owned()
            }
        };
        self.engine.channel_down(&mut self.world, ch, Status::gone(text));
    }

    /// When the first doubt ends by itself.
    pub(super) fn doubt_ends(&self) -> Option<Duration> {
        if !self.world.connections.has_doubts() {
            return None;
        }
        let elapsed = self.world.clock.start().elapsed();
        let until = self.world.connections.iter().filter_map(|(_, c)| c.doubt.until()).min()?;
        Some(Duration::from_nanos(until).saturating_sub(elapsed))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use super::*;
    use crate::config::{Config, Progress};
    use crate::fabric::{EpId, PostError};
    use crate::manager::Manager;
    use crate::status::Code;

    const EP: EpId = EpId(1);

    /// A manager with a channel that nobody drives, and the peer's end of its liveness socket.
    fn channel() -> (Arc<Manager>, ChanId, UnixStream) {
        let config = Config {
            name: "a".into(),
            provider: Some(ProviderKind::Loopback),
            progress: Progress::Manual,
            ..Config::default()
        };
        let manager = Manager::new(config).expect("manager");
        let (mine, theirs) = UnixStream::pair().expect("sockets");
        let mut core = manager.core.lock();
        let Core { engine, world, .. } = &mut *core;
        let caps =
            world.adapters[ProviderKind::Loopback as usize].as_ref().map(|a| a.caps().clone());
        let peer = engine.add_peer("b").unwrap();
        let ch = engine
            .channel_new(world, peer, [1; 16], true, caps.expect("caps"), false)
            .expect("channel");
        let ep = (ProviderKind::Ibverbs, EP);
        world.connections.link(
            ch,
            Connection {
                ep,
                alive: Some(crate::local_fd::Local::new(mine.into())),
                doubt: Doubt::None,
            },
        );
        drop(core);
        (manager, ch, theirs)
    }

    fn refusal() -> Event {
        let status = Status::new(Code::Unavailable, "connection to b ended: remote access error");
        Event::Down { ep: EP, status: status.because(Reason::RemoteError) }
    }

    /// What the channel ended with; `None`: it lives.
    fn end(core: &Core, ch: ChanId) -> Option<Status> {
        let peer = core.engine.find_peer("b").expect("peer");
        let live = core.world.connections.get(ch).is_some();
        (!live).then(|| core.engine.peer(peer).unwrap().last_error.clone().expect("status"))
    }

    #[test]
    fn r27_a_peer_that_died_is_gone_whatever_its_device_said() {
        let (manager, ch, theirs) = channel();
        let mut core = manager.core.lock();
        core.on_event(ProviderKind::Ibverbs, refusal());
        core.settle_doubts();
        assert_eq!(end(&core, ch), None, "the peer was not heard yet");
        let post = crate::engine::Fx::send(&mut core.world, ch, &[b"x"]);
        assert!(matches!(post, Err(PostError::QueueFull)), "{post:?}");
        assert!(core.idle_time() <= Duration::from_nanos(GRACE));
        drop(theirs);
        core.settle_doubts();
        let status = end(&core, ch).expect("ended");
        assert_eq!((status.code, status.reason), (Code::Unavailable, Reason::PeerGone), "{status}");
        core.settle_doubts();
        assert!(!core.world.connections.has_doubts());
    }

    #[test]
    fn r27_a_peer_that_lives_and_refuses_is_believed() {
        let (manager, ch, mut theirs) = channel();
        let mut core = manager.core.lock();
        core.on_event(ProviderKind::Ibverbs, refusal());
        theirs.write_all(&FAILED_HERE).expect("write");
        drop(theirs);
        core.settle_doubts();
        let status = end(&core, ch).expect("ended");
        assert!(status.message.contains("remote access error"), "{status}");
        assert_eq!(status.reason, Reason::RemoteError);
    }

    #[test]
    fn r27_a_peer_that_says_nothing_is_not_waited_for_without_end() {
        let (manager, ch, _theirs) = channel();
        let mut core = manager.core.lock();
        core.on_event(ProviderKind::Ibverbs, refusal());
        match &mut core.world.connections.get_mut(ch).expect("connection").doubt {
            Doubt::Since(until, _) => *until = 0,
            _ => panic!("no doubt"),
        }
        core.settle_doubts();
        assert_eq!(end(&core, ch).expect("ended").reason, Reason::RemoteError);
    }

    /// Who finds its own end failed says so, and is not taken for dead.
    #[test]
    fn r27_who_lives_says_so_before_its_socket_ends() {
        let (manager, ch, theirs) = channel();
        let mut core = manager.core.lock();
        let status = Status::gone("the queue pair is in error");
        core.on_event(ProviderKind::Ibverbs, Event::Down { ep: EP, status });
        assert!(end(&core, ch).is_some(), "nothing was refused: there is no doubt");
        assert_eq!(hear(&theirs.into()), Word::Failed);
    }
}
