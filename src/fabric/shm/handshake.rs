//! How endpoints meet, over a Unix socket that only their user can reach (`nest`): Hello from the active side,
//! Welcome from the passive side, Ready from the active side. Each brings its ring, its exports and
//! its doorbell as descriptors, and a word in its memory by which the other finds out whether the
//! kernel lets it read there.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::foreign::{Closer, Foreign};
use super::link::Link;
use super::meeting::{dial, make_link, refused, welcome};
use super::nest::Nest;
use super::ring::Producer;
use super::socket;
use super::sys;
use super::wire::{Address, Hello, Home, SocketMessage};
use super::{Core, Endpoint, ShmAdapter};
use crate::fabric::{EpId, Event};
use crate::local_fd::Local;
use crate::log;
use crate::os::TimerFd;
use crate::os::epoll::{self, Epoll};
use crate::room::Grows;
use crate::status::{Code, Reason, Status};

/// Connections that have not said whom they want; more are refused.
const MAX_STRANGERS: usize = 256;
/// Accepted at one time.
const ACCEPTS: usize = 64;
/// Pause of accepting when the system has no descriptor left, or too many wait to be closed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// What the adapter's descriptors are watched for.
pub(super) const INPUT: u32 = epoll::READ | epoll::END;
/// So many of them are looked at in one turn.
const READY_MAX: usize = 64;

/// Keys of epoll entries: kind in the high half, number in the low half.
const KEY_BELL: u64 = 0;
const KEY_LISTENER: u64 = 1 << 32;
const KEY_STRANGER: u64 = 2 << 32;
const KEY_ENDPOINT: u64 = 3 << 32;
const KEY_PAUSE: u64 = 4 << 32;

/// State of an endpoint.
#[derive(Debug)]
pub(super) enum State {
    /// Not connecting; the peer may have come already.
    Idle { early: Option<Box<Guest>> },
    /// Active, the listener's queue was full.
    Dial { remote: Address },
    /// Active, Hello is sent.
    AwaitWelcome { remote: Address, sock: Foreign, ring: Box<Producer> },
    /// Passive, the peer has not come.
    AwaitHello { remote: Address },
    /// Passive, Welcome is sent.
    AwaitReady { link: Box<Link> },
    /// Connected.
    Up(Box<Link>),
    /// Down; a link's memory stays for the views into it.
    Dead(Option<Box<Link>>),
}

/// A peer that has said Hello.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) sock: Foreign,
    pub(super) hello: Hello,
    pub(super) fds: [Foreign; 3],
}

/// The listener and those who have not said Hello.
#[derive(Debug)]
pub(super) struct Greeter {
    listener: Local<OwnedFd>,
    nest: Nest,
    /// The socket was made again: what surrounds this process may be another than when it began.
    renewed: bool,
    /// Readable at the end of a pause, during which the listener is not watched. Made beforehand:
    /// it is needed when there are no more descriptors.
    pause: TimerFd,
    strangers: Vec<(u32, Foreign)>,
    next: u32,
    /// Endpoints between Idle and Up.
    meeting: usize,
    dialling: usize,
}

impl Greeter {
    pub(super) fn open(core: &Core, name: [u8; 16]) -> io::Result<Greeter> {
        let (nest, listener) = Nest::open(name)?;
        // Where the system does not tell who is at the other end, each peer would be turned away.
        socket::peer_cred(&listener).map_err(socket::no_cred)?;
        core.epoll.add(&core.bell, INPUT, KEY_BELL)?;
        core.epoll.add(&listener, INPUT, KEY_LISTENER)?;
        let (listener, pause) = (Local::new(listener), TimerFd::new()?);
        core.epoll.add(&pause, INPUT, KEY_PAUSE)?;
        let strangers = Vec::new();
        let renewed = false;
        Ok(Greeter { listener, nest, renewed, pause, strangers, next: 0, meeting: 0, dialling: 0 })
    }

    /// Where peers find it.
    pub(super) fn home(&self) -> &Home {
        self.nest.home()
    }

    /// Whether only processes of this user can reach it.
    pub(super) fn is_private(&self) -> bool {
        self.nest.is_private()
    }

    /// Turns away who has come and who comes. After this there is nothing in the listener's queue that
    /// would be closed with it.
    pub(super) fn close(&mut self, closer: &Arc<Closer>) {
        sys::shut(&self.listener);
        self.strangers.clear();
        while socket::accept(&self.listener, closer).is_ok() {}
    }

    /// The file of its socket.
    #[cfg(test)]
    pub(super) fn path(&self) -> Option<&Path> {
        self.nest.path()
    }

    #[cfg(test)]
    pub(super) fn strangers(&self) -> &[(u32, Foreign)] {
        &self.strangers
    }

    /// Whether peers can be met still: a root directory without /proc shows nothing of the descriptors that they pass.
    pub(super) fn check(&self) -> Result<(), Status> {
        match self.renewed && !Path::new("/proc/self/fd").exists() {
            true => {
                let text =
                    "this end sees no /proc any more: its root directory has changed (chroot)";
                Err(Status::new(Code::FailedPrecondition, text))
            }
            false => Ok(()),
        }
    }

    /// Makes the socket again, if its file is gone, or this process can reach it no more.
    pub(super) fn renew(&mut self, core: &Core) {
        if self.nest.is_there() {
            return;
        }
        let renewed = self.nest.again().and_then(|listener| {
            core.epoll.add(&listener, INPUT, KEY_LISTENER)?;
            Ok(Local::new(listener))
        });
        let old = match renewed {
            Ok(listener) => std::mem::replace(&mut self.listener, listener),
            Err(e) => {
                return log::warn(format_args!(
                    "shm: the socket is gone, and cannot be made again ({e}): new peers cannot use shm"
                ));
            }
        };
        self.renewed = true;
        let _ = core.epoll.remove(&old);
        // As in `close`: who waits there comes again.
        sys::shut(&old);
        while socket::accept(&old, &core.closer).is_ok() {}
        let place = self.nest.path().map_or("an abstract name".into(), Path::to_string_lossy);
        log::info(format_args!(
            "shm: somebody has removed the socket of this process, or it may not look there any more: made again, {place}"
        ));
    }

    /// Whether someone is about to connect, so that sockets should be looked at often.
    pub(super) fn is_busy(&self) -> bool {
        self.meeting > 0
    }

    /// Whether a dial must be tried again.
    pub(super) fn must_dial(&self) -> bool {
        self.dialling > 0
    }
}

/// A message came without the descriptors that belong to it.
const NO_ROOM: &str =
    "descriptors missing: most likely this process has no room for more (`ulimit -n`)";

pub(super) fn key(ep: EpId) -> u64 {
    KEY_ENDPOINT | u64::from(ep.0)
}

impl ShmAdapter {
    /// Starts to connect an idle endpoint.
    pub(super) fn begin_connect(
        &mut self,
        at: usize,
        remote: Address,
        active: bool,
    ) -> Result<(), Status> {
        let endpoint = &mut self.eps[at];
        let State::Idle { early } = &mut endpoint.state else {
            return Err(Status::new(
                Code::FailedPrecondition,
                text!("shm: the endpoint to peer {} is connected already", endpoint.peer),
            ));
        };
        let early = early.take();
        self.greeter.meeting += 1;
        if active {
            endpoint.state = State::Dial { remote };
            self.greeter.dialling += 1;
            return Ok(());
        }
        endpoint.state = State::AwaitHello { remote };
        if let Some(guest) = early {
            self.welcome(at, *guest);
        }
        Ok(())
    }

    /// Looks at the sockets that have something.
    pub(super) fn check_sockets(&mut self, events: &mut Vec<Event>) {
        let mut places = [epoll::EMPTY; READY_MAX];
        for key in self.core.epoll.ready(&mut places) {
            let number = key as u32;
            match key & !u64::from(u32::MAX) {
                KEY_BELL => self.core.bell.drain(),
                KEY_LISTENER => self.accept(),
                KEY_PAUSE => self.resume_accepting(),
                KEY_STRANGER => self.hear_stranger(number),
                _ => {
                    if let Some(&at) = self.index.get(&number) {
                        self.hear(at, events);
                    }
                }
            }
        }
        if self.greeter.dialling > 0 {
            self.dial_all(events);
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS {
            if self.core.closer.is_full() {
                return self.pause_accepting();
            }
            let sock = match socket::accept(&self.greeter.listener, &self.core.closer) {
                Ok(sock) => sock,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return self.pause_accepting(),
            };
            if self.greeter.strangers.len() >= MAX_STRANGERS {
                // The one that has been silent for longest makes room.
                let (_, sock) = self.greeter.strangers.remove(0);
                let _ = self.core.epoll.remove(&sock);
            }
            let same_user =
                socket::peer_cred(&sock).is_ok_and(|cred| cred.uid == socket::own_uid());
            let number = self.greeter.next;
            self.greeter.next = number.wrapping_add(1);
            // Without memory it is sent away.
            let room = self.greeter.strangers.fits(1);
            if same_user
                && room
                && self.core.epoll.add(&sock, INPUT, KEY_STRANGER | u64::from(number)).is_ok()
            {
                self.greeter.strangers.push((number, sock));
                self.hear_stranger(number);
            }
        }
    }

    /// Leaves connections in the backlog for a while: no descriptor is left, or those of others are not closed. Without a
    /// pause the listener would keep whoever waits for this adapter awake.
    fn pause_accepting(&mut self) {
        let _ = self.core.epoll.remove(&self.greeter.listener);
        self.greeter.pause.set(ACCEPT_PAUSE);
    }

    fn resume_accepting(&mut self) {
        self.greeter.pause.drain();
        match self.core.epoll.add(&self.greeter.listener, INPUT, KEY_LISTENER) {
            // A socket that was made again meanwhile is watched already.
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                self.greeter.pause.set(ACCEPT_PAUSE);
            }
            _ => {}
        }
    }

    /// A connection may have said Hello.
    fn hear_stranger(&mut self, number: u32) {
        let strangers = &mut self.greeter.strangers;
        let Some(i) = strangers.iter().position(|s| s.0 == number) else { return };
        // What it has brought is left in its queue where nothing more can be closed.
        let received = match self.core.closer.is_full() {
            true => Err(io::Error::other("descriptors wait to be closed")),
            false => socket::receive(&strangers[i].1),
        };
        if received.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock) {
            return;
        }
        let (_, sock) = strangers.remove(i);
        let _ = self.core.epoll.remove(&sock);
        let Ok(received) = received else { return };
        let Some(SocketMessage::Hello(hello)) = SocketMessage::decode(&received.bytes) else {
            return;
        };
        let Ok(fds) = received.fds.into_inner() else { return };
        let Some(at) = self.eps.iter().position(|e| e.token == hello.to) else { return };
        let guest = Guest { sock, hello, fds };
        match &mut self.eps[at].state {
            State::Idle { early } => *early = Some(Box::new(guest)),
            State::AwaitHello { .. } => self.welcome(at, guest),
            _ => {}
        }
    }

    /// Answers a Hello. A guest who is not the expected one is sent away.
    fn welcome(&mut self, at: usize, guest: Guest) {
        let endpoint = &mut self.eps[at];
        let State::AwaitHello { remote } = &endpoint.state else { return };
        if guest.hello.from != remote.token {
            return;
        }
        match welcome(&self.core, endpoint, guest) {
            Ok(link) => endpoint.state = State::AwaitReady { link: Box::new(link) },
            // It ends the guest's socket; the active side, which may come again, reports no more than that.
            Err(e) => log::info(format_args!("shm: peer {} was not let in: {e}", endpoint.peer)),
        }
    }

    fn dial_all(&mut self, events: &mut Vec<Event>) {
        for at in 0..self.eps.len() {
            let endpoint = &mut self.eps[at];
            let State::Dial { remote } = &endpoint.state else { continue };
            match dial(&self.core, endpoint, remote.clone()) {
                Ok(state) => endpoint.state = state,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
                Err(e) => {
                    self.greeter.meeting -= 1;
                    let status = refused(&endpoint.peer, &e);
                    self.down(at, status, events);
                }
            }
            self.greeter.dialling -= 1;
        }
    }

    /// Something came on the socket of a link, whose peer was gone or not a moment ago: one that has left since then ends its
    /// socket, too, behind what it published before.
    pub(super) fn hear_link(&mut self, at: usize, gone: bool, events: &mut Vec<Event>) {
        let State::Up(link) = &mut self.eps[at].state else { return };
        match if gone { Err(link.gone()) } else { link.read_socket() } {
            Ok(()) => return,
            Err(status) if status.reason != Reason::PeerGone => {
                return self.down(at, status, events);
            }
            Err(_) => {}
        }
        match link.take_rest(&mut self.core, events) {
            // The rest is for the next polls: it stays readable.
            Ok(true) => {}
            Ok(false) => {
                let status = link.gone();
                self.down(at, status, events);
            }
            Err(status) => self.ended(at, status, events),
        }
    }

    /// Something came on an endpoint's socket, or its peer is gone.
    fn hear(&mut self, at: usize, events: &mut Vec<Event>) {
        let ends = self.eps.len() + 1;
        let endpoint = &mut self.eps[at];
        match &mut endpoint.state {
            // If there is no room for what it has, it stays readable.
            State::Up(link) if !link.fits(ends, events) => {}
            State::Up(link) => {
                let gone = link.is_gone();
                self.hear_link(at, gone, events);
            }
            State::AwaitWelcome { .. } => self.hear_welcome(at, events),
            State::AwaitReady { .. } => self.hear_ready(at, events),
            _ => {}
        }
    }

    fn hear_welcome(&mut self, at: usize, events: &mut Vec<Event>) {
        let endpoint = &mut self.eps[at];
        let State::AwaitWelcome { remote, sock, .. } = &endpoint.state else { return };
        let received = match socket::receive(sock) {
            Ok(received) => received,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
            Err(e) => return self.meeting_failed(at, &e, events),
        };
        let hello = match SocketMessage::decode(&received.bytes) {
            Some(SocketMessage::Welcome(h)) if h.from == remote.token && h.to == endpoint.token => {
                h
            }
            _ => return self.meeting_failed(at, &io::Error::other("wrong answer"), events),
        };
        let Ok(fds) = received.fds.into_inner() else {
            return self.meeting_failed(at, &io::Error::other(NO_ROOM), events);
        };
        let dead = State::Dead(None);
        let State::AwaitWelcome { sock, ring, .. } = std::mem::replace(&mut endpoint.state, dead)
        else {
            return;
        };
        // It is watched again once nothing can fail any more.
        let _ = self.core.epoll.remove(&sock);
        let guest = Guest { sock, hello, fds };
        match make_link(&self.core, endpoint, *ring, guest).and_then(|link| {
            let ready = SocketMessage::Ready(link.process.is_some()).encode();
            socket::send(&link.sock, &ready, &[])?;
            let watched = self.core.epoll.add(&link.sock, INPUT, key(endpoint.id));
            watched.map_err(sys::called("epoll_ctl"))?;
            Ok(link)
        }) {
            Ok(link) => self.connected(at, Box::new(link), events),
            Err(e) => {
                self.greeter.meeting -= 1;
                let (ep, status) = (endpoint.id, refused(&endpoint.peer, &e));
                events.push(Event::Down { ep, status });
            }
        }
    }

    fn hear_ready(&mut self, at: usize, events: &mut Vec<Event>) {
        let endpoint = &mut self.eps[at];
        let State::AwaitReady { link } = &mut endpoint.state else { return };
        match socket::receive(&link.sock) {
            Ok(received) => match SocketMessage::decode(&received.bytes) {
                Some(SocketMessage::Ready(reads)) => link.peer_reads = reads,
                _ => return self.meeting_failed(at, &io::Error::other("wrong answer"), events),
            },
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
            Err(e) => return self.meeting_failed(at, &e, events),
        }
        if let State::AwaitReady { link } =
            std::mem::replace(&mut endpoint.state, State::Dead(None))
        {
            self.connected(at, link, events);
        }
    }

    fn connected(&mut self, at: usize, link: Box<Link>, events: &mut Vec<Event>) {
        let endpoint = &mut self.eps[at];
        if let Some(pidfd) = &link.pidfd {
            // Without it the socket's end still tells.
            let _ = self.core.epoll.add(pidfd, INPUT, key(endpoint.id));
        }
        endpoint.state = State::Up(link);
        self.greeter.meeting -= 1;
        events.push(Event::Connected(endpoint.id));
    }

    fn meeting_failed(&mut self, at: usize, e: &io::Error, events: &mut Vec<Event>) {
        self.greeter.meeting -= 1;
        let status = refused(&self.eps[at].peer, e);
        self.down(at, status, events);
    }

    /// Lets go of an endpoint that nobody will hear of any more.
    pub(super) fn forget(&mut self, mut endpoint: Endpoint) {
        match &endpoint.state {
            State::Idle { .. } | State::Dead(_) => return,
            State::Dial { .. } => self.greeter.dialling -= 1,
            _ => {}
        }
        endpoint.state.hang_up(&self.core.epoll);
        if !matches!(endpoint.state, State::Up(_)) {
            self.greeter.meeting -= 1;
        }
    }
}

impl State {
    /// Ends the connection and stops watching it. Closing the descriptors is not enough for either:
    /// a forked child may hold them too.
    pub(super) fn hang_up(&mut self, epoll: &Epoll) {
        let (sock, pidfd) = match self {
            State::Up(link) | State::AwaitReady { link } => {
                link.close();
                (&link.sock, link.pidfd.as_ref())
            }
            State::AwaitWelcome { sock, .. } => (&*sock, None),
            _ => return,
        };
        let _ = epoll.remove(sock);
        if let Some(pidfd) = pidfd {
            // It is watched from Up on only; removing it earlier does nothing.
            let _ = epoll.remove(pidfd);
        }
        sys::shut(sock);
    }
}
