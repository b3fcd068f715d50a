//! A socket to the server of a store: every call of it ends by a deadline, and with its view.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use super::stop::{Look, ready};
use super::{Failed, Until};
use crate::local_fd::Local;
use crate::os;
use crate::status::Status;

/// A silent server's host is asked whether it is there after so many seconds, and again after so many, so many times.
const KEEPALIVE: [libc::c_int; 3] = [10, 5, 3];

#[cfg(feature = "redis")]
type Unix = std::os::unix::net::UnixStream;

enum Socket {
    Tcp(TcpStream),
    #[cfg(feature = "redis")]
    Unix(Unix),
}

impl Socket {
    fn tcp(&self) -> io::Result<&TcpStream> {
        match self {
            Socket::Tcp(socket) => Ok(socket),
            #[cfg(feature = "redis")]
            Socket::Unix(_) => Err(ErrorKind::Unsupported.into()),
        }
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Socket::Tcp(socket) => socket.as_raw_fd(),
            #[cfg(feature = "redis")]
            Socket::Unix(socket) => socket.as_raw_fd(),
        }
    }
}

/// A connection, of which a forked child has no copy.
pub(super) struct ClientSocket(Local<Socket>);

fn again(what: &str, error: &io::Error) -> Failed {
    Failed::Again(Status::os(what, error))
}

fn gone() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "it closed the connection")
}

/// Has a silent peer's host asked whether it is there: after `idle` seconds, and `count` times more each `pause`. Then, or if
/// it takes nothing for as long, the connection ends.
pub(super) fn keep_alive(
    socket: &TcpStream,
    idle: libc::c_int,
    pause: libc::c_int,
    count: libc::c_int,
) -> io::Result<()> {
    os::keep_alive(socket, idle, pause, count)?;
    let all = (idle + pause * count) * 1000;
    os::set_option(socket, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, all)
}

impl ClientSocket {
    /// Connects to a host.
    pub fn tcp(addr: SocketAddr, until: Until<'_>) -> Result<ClientSocket, Failed> {
        let failed = |e: &io::Error| again(&format!("connecting to {addr}"), e);
        let socket =
            TcpStream::from(crate::bootstrap::start_connect(&addr).map_err(|e| failed(&e))?);
        let link = ClientSocket(Local::new(Socket::Tcp(socket)));
        link.wait_ready(true, until)?;
        let socket = link.0.tcp().map_err(|e| failed(&e))?;
        if let Some(e) = socket.take_error().unwrap_or_else(Some) {
            return Err(failed(&e));
        }
        // Nobody listens at a port of the ephemeral range, and the system drew just that port for this end: TCP then
        // connects the socket to itself.
        if socket.local_addr().is_ok_and(|own| own == addr) {
            return Err(failed(&ErrorKind::ConnectionRefused.into()));
        }
        let _ = socket.set_nodelay(true);
        let [idle, pause, count] = KEEPALIVE;
        keep_alive(socket, idle, pause, count).map_err(|e| again("keeping a connection", &e))?;
        Ok(link)
    }

    /// Connects to a socket in the file system. A server whose queue is full is to be tried again: to wait for it, as a
    /// socket that blocks does, has no end.
    #[cfg(feature = "redis")]
    pub fn unix(path: &std::path::Path) -> Result<ClientSocket, Failed> {
        use std::os::unix::ffi::OsStrExt;
        let failed = |e: &io::Error| again(&format!("connecting to '{}'", path.display()), e);
        // SAFETY: all zero is a value of this struct.
        let mut name: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        name.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let path = path.as_os_str().as_bytes();
        if path.len() >= name.sun_path.len() {
            let text = text!("a path of {} bytes is too long for a socket", path.len());
            return Err(Failed::Finally(Status::invalid(text)));
        }
        for (to, &byte) in name.sun_path.iter_mut().zip(path) {
            *to = byte as libc::c_char;
        }
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers.
        let made = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
        let fd = os::owned(made).map_err(|e| failed(&e))?;
        let link = ClientSocket(Local::new(Socket::Unix(Unix::from(fd))));
        let fd = link.0.as_raw_fd();
        let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        // SAFETY: a live address of `len` bytes, whose path ends with a NUL.
        if unsafe { libc::connect(fd, (&raw const name).cast(), len) } != 0 {
            return Err(failed(&io::Error::last_os_error()));
        }
        Ok(link)
    }

    /// Waits until the socket is ready.
    fn wait_ready(&self, write: bool, until: Until<'_>) -> Result<(), Failed> {
        let look = Look { fd: self.0.as_raw_fd(), read: !write, write };
        ready(&mut [look, until.stop.look()], until.left());
        until.stop.check()?;
        if until.is_over() {
            return Err(again("no answer", &ErrorKind::TimedOut.into()));
        }
        Ok(())
    }

    /// Sends all of it.
    pub fn send(&self, mut bytes: &[u8], until: Until<'_>) -> Result<(), Failed> {
        while !bytes.is_empty() {
            let sent = os::again(|| match &*self.0 {
                Socket::Tcp(socket) => { socket }.write(bytes),
                #[cfg(feature = "redis")]
                Socket::Unix(socket) => { socket }.write(bytes),
            });
            match sent {
                Ok(0) => return Err(again("sending", &gone())),
                Ok(n) => bytes = &bytes[n..],
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.wait_ready(true, until)?,
                Err(e) => return Err(again("sending", &e)),
            }
        }
        Ok(())
    }

    /// Waits for bytes, and reads some; at least one.
    pub fn read(&self, piece: &mut [u8], until: Until<'_>) -> Result<usize, Failed> {
        loop {
            let read = os::again(|| match &*self.0 {
                Socket::Tcp(socket) => { socket }.read(piece),
                #[cfg(feature = "redis")]
                Socket::Unix(socket) => { socket }.read(piece),
            });
            match read {
                Ok(0) => return Err(again("waiting for an answer", &gone())),
                Ok(n) => return Ok(n),
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.wait_ready(false, until)?,
                Err(e) => return Err(again("waiting for an answer", &e)),
            }
        }
    }

    /// Reads on, of an answer that has begun: one that never pauses ends by the deadline as well.
    pub fn read_on(&self, piece: &mut [u8], until: Until<'_>) -> Result<usize, Failed> {
        until.stop.check()?;
        if until.is_over() {
            return Err(again("the answer has no end", &ErrorKind::TimedOut.into()));
        }
        self.read(piece, until)
    }

    /// Nobody waits for an answer any more: what has not gone does not go, and the far end hears of that beside what has.
    pub fn abandon(&self) {
        if let Ok(socket) = self.0.tcp() {
            let now = libc::linger { l_onoff: 1, l_linger: 0 };
            let len = size_of::<libc::linger>() as libc::socklen_t;
            let (fd, level, name) = (socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER);
            // SAFETY: the value outlives the call, and `len` is its size. Where it fails the rest goes, perhaps behind what is
            // asked over another connection.
            unsafe { libc::setsockopt(fd, level, name, (&raw const now).cast(), len) };
        }
    }

    /// Nothing has come that nobody asked for, and it has not ended.
    pub fn is_silent(&self) -> bool {
        let mut look = [Look { fd: self.0.as_raw_fd(), read: true, write: false }];
        ready(&mut look, Some(Duration::ZERO));
        !look[0].read
    }
}

impl AsRawFd for ClientSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::stop::Stop;

    /// The system draws each port of its range in turn for this end of a connection, and once that of the far end. It draws
    /// those of one parity first, and for who listens at any port those of the other.
    #[test]
    fn r06_a_client_is_not_its_own_server() {
        let stop = Stop::new().unwrap();
        let until = Until::after(Some(Duration::from_secs(60)), &stop);
        let bind = |port| std::net::TcpListener::bind(("127.0.0.1", port));
        let mut any = bind(0).unwrap();
        while bind(any.local_addr().unwrap().port() ^ 1).is_err() {
            any = bind(0).unwrap();
        }
        let port = any.local_addr().unwrap().port();
        drop(any);
        for port in [port, port ^ 1] {
            let addr = ([127, 0, 0, 1], port).into();
            for _ in 0..20_000 {
                assert!(
                    ClientSocket::tcp(addr, until).is_err(),
                    "{addr}, where nobody listens, answers"
                );
            }
        }
    }
}
