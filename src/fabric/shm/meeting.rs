//! What either end of a meeting (`handshake`) says, maps and checks.

use std::io;
use std::os::fd::AsRawFd;

use super::exports::PeerExports;
use super::foreign::Foreign;
use super::handshake::{Guest, INPUT, State, key};
use super::link::{Link, Parts};
use super::nest;
use super::process::Process;
use super::ring::{Consumer, Producer};
use super::socket::{self, PeerCred};
use super::sys;
use super::wire::{Address, Hello, SocketMessage};
use super::{Core, Endpoint};
use crate::local_fd::Local;
use crate::status::{Code, Status};

/// The status of a meeting that came to nothing.
pub(super) fn refused(peer: &str, e: &io::Error) -> Status {
    let why = match e.kind() {
        io::ErrorKind::UnexpectedEof => {
            "it ended, or ended this connection: its log says why, perhaps that it is out of descriptors \
             (`ulimit -n`) or memory"
                .to_owned()
        }
        _ => e.to_string(),
    };
    let text = text!("shm: peer {peer} cannot be reached: {why}");
    match nest::is_lasting(e) {
        true => Status::new(Code::FailedPrecondition, text),
        false => Status::gone(text),
    }
}

/// Our part of a meeting.
fn introduce(core: &Core, own: [u8; 16], to: [u8; 16], reads: bool) -> Hello {
    let nonce_addr = (&raw const *core.nonce).addr() as u64;
    Hello { to, from: own, nonce_addr, nonce: *core.nonce, reads }
}

/// Dials and says Hello.
pub(super) fn dial(core: &Core, endpoint: &Endpoint, remote: Address) -> io::Result<State> {
    if core.closer.is_full() {
        return Err(io::Error::other("descriptors that others have passed are not closed"));
    }
    let sock = Foreign::new(nest::dial(&remote.home)?, &core.closer);
    let user = socket::peer_cred(&sock)?.uid;
    if user != socket::own_uid() {
        return Err(nest::other_user(user));
    }
    let (ring, fd) = Producer::create()?;
    let ring = crate::room::boxed(ring, "a ring").map_err(|_| io::ErrorKind::OutOfMemory)?;
    let hello = introduce(core, endpoint.token, remote.token, false);
    let fds = [fd.as_raw_fd(), core.exports.fd().as_raw_fd(), core.bell.as_raw_fd()];
    socket::send(&sock, &SocketMessage::Hello(hello).encode(), &fds)?;
    core.epoll.add(&sock, INPUT, key(endpoint.id)).map_err(sys::called("epoll_ctl"))?;
    Ok(State::AwaitWelcome { remote, sock, ring })
}

/// Makes the passive side's link and says Welcome.
pub(super) fn welcome(core: &Core, endpoint: &Endpoint, guest: Guest) -> io::Result<Link> {
    let to = guest.hello.from;
    let (ring, fd) = Producer::create()?;
    let link = make_link(core, endpoint, ring, guest)?;
    let answer = introduce(core, endpoint.token, to, link.process.is_some());
    let fds = [fd.as_raw_fd(), core.exports.fd().as_raw_fd(), core.bell.as_raw_fd()];
    socket::send(&link.sock, &SocketMessage::Welcome(answer).encode(), &fds)?;
    core.epoll.add(&link.sock, INPUT, key(endpoint.id)).map_err(sys::called("epoll_ctl"))?;
    Ok(link)
}

/// Maps what the peer has brought.
pub(super) fn make_link(
    core: &Core,
    own: &Endpoint,
    tx: Producer,
    guest: Guest,
) -> io::Result<Link> {
    let Guest { sock, hello, fds: [ring, exports, bell] } = guest;
    let budget = core.map_budget.clone();
    let PeerCred { pid, .. } = socket::peer_cred(&sock)?;
    let rx = Consumer::map(&ring).map_err(sys::mapping("its ring"))?;
    let exports = PeerExports::map(&exports, bell)
        .map_err(sys::mapping("its table of regions, or see its doorbell"))?;
    // Our own process does not end before we do.
    let other = pid > 0 && u32::try_from(pid) != Ok(std::process::id());
    let pidfd = if other { sys::pidfd(pid).ok().map(Local::new) } else { None };
    let process = core.policy.process.then(|| Process::open(pid, hello.nonce_addr, hello.nonce));
    let process = process.flatten();
    let (ep, peer) = (own.id, own.peer.clone());
    let peer_reads = hello.reads;
    Ok(Link::new(Parts { ep, peer, tx, rx, exports, sock, process, pidfd, peer_reads, budget }))
}
