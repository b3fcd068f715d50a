//! System calls on sockets.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::os::again;
use crate::os::epoll::{self, Epoll};
use crate::status::{Code, Status};

fn cvt(rc: isize) -> io::Result<usize> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc as usize) }
}

/// Sends the parts; never blocks, never raises a signal. `hold`: more follows, the socket may wait for it.
///
/// # Safety
/// Each part is readable.
pub unsafe fn send(fd: BorrowedFd<'_>, parts: &mut [libc::iovec], hold: bool) -> io::Result<usize> {
    again(|| {
        let more = if hold { libc::MSG_MORE } else { 0 };
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | more;
        if let [one] = parts {
            // SAFETY: by the contract of this function.
            return cvt(unsafe { libc::send(fd.as_raw_fd(), one.iov_base, one.iov_len, flags) });
        }
        // SAFETY: all zeros is a valid message header without anything.
        let mut msg: libc::msghdr = unsafe { zeroed() };
        msg.msg_iov = parts.as_mut_ptr();
        msg.msg_iovlen = parts.len() as _;
        // SAFETY: the header names `parts`, readable by the contract of this function.
        cvt(unsafe { libc::sendmsg(fd.as_raw_fd(), &msg, flags) })
    })
}

/// Receives into the parts, in order; never blocks. 0: the peer closed.
///
/// # Safety
/// Each part is writable and nothing else uses it.
pub unsafe fn recv(fd: BorrowedFd<'_>, parts: &mut [libc::iovec]) -> io::Result<usize> {
    again(|| {
        let flags = libc::MSG_DONTWAIT;
        if let [one] = parts {
            // SAFETY: by the contract of this function.
            return cvt(unsafe { libc::recv(fd.as_raw_fd(), one.iov_base, one.iov_len, flags) });
        }
        // SAFETY: all zeros is a valid message header without anything.
        let mut msg: libc::msghdr = unsafe { zeroed() };
        msg.msg_iov = parts.as_mut_ptr();
        msg.msg_iovlen = parts.len() as _;
        // SAFETY: the header names `parts`, writable by the contract of this function.
        cvt(unsafe { libc::recvmsg(fd.as_raw_fd(), &mut msg, flags) })
    })
}

/// Whether something has arrived, the end included.
pub fn has_input(fd: BorrowedFd<'_>) -> bool {
    let mut byte = 0u8;
    let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
    // SAFETY: one writable byte.
    let n = again(|| cvt(unsafe { libc::recv(fd.as_raw_fd(), (&raw mut byte).cast(), 1, flags) }));
    !matches!(n, Err(e) if e.kind() == io::ErrorKind::WouldBlock)
}

/// Whether the socket takes output, or has failed.
pub fn takes_output(fd: BorrowedFd<'_>) -> bool {
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: one entry.
    unsafe { libc::poll(&mut entry, 1, 0) > 0 }
}

fn set<T>(fd: BorrowedFd<'_>, level: i32, option: i32, value: &[T]) -> io::Result<()> {
    let len = size_of_val(value) as libc::socklen_t;
    // SAFETY: pointer and length are those of `value`.
    let rc = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, value.as_ptr().cast(), len) };
    cvt(rc as isize).map(drop)
}

/// Sends what the socket holds back. To say that nothing is to be delayed, which was said before, does that.
pub fn push(fd: BorrowedFd<'_>) {
    // Other sockets than TCP's hold nothing back.
    let _ = set(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &[1i32]);
}

/// How often the oldest unacknowledged bytes were sent again since the last acknowledgement of
/// anything, or, where nothing leaves this host, how often that was tried. A closed window is no such case: the peer's system acknowledges
/// the probes.
pub fn retransmits(fd: BorrowedFd<'_>) -> u8 {
    // SAFETY: an all-zero value is valid for this plain C structure.
    let mut info: libc::tcp_info = unsafe { zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    let out = (&raw mut info).cast();
    let rc =
        // SAFETY: `info` has room for `len` bytes; the kernel writes no more.
        unsafe { libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, out, &mut len) };
    // What the kernel did not write is zero; other sockets than TCP's have no such thing.
    if rc == 0 { info.tcpi_retransmits.max(info.tcpi_probes) } else { 0 }
}

fn get_int(fd: BorrowedFd<'_>, option: i32) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    let out = (&raw mut value).cast();
    // SAFETY: the buffer and its length belong together.
    let rc = unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, option, out, &mut len) };
    cvt(rc as isize).map(|_| value)
}

/// Bytes that the socket took and the peer's system has not: a reset, as of a socket that is closed with input that nobody
/// has read, takes them back.
pub fn unacknowledged(fd: BorrowedFd<'_>) -> u64 {
    // What another socket of this system took lies at the peer's.
    if get_int(fd, libc::SO_DOMAIN).is_ok_and(|domain| domain == libc::AF_UNIX) {
        return 0;
    }
    // Within one host what left the socket lies at the other one, though that may let 40 ms go by before it says so.
    let there = is_loopback(fd) && retransmits(fd) == 0;
    let request = if there { SIOCOUTQNSD } else { libc::TIOCOUTQ };
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request (of a socket: SIOCOUTQ, or the above) writes one int.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut bytes) };
    if rc == 0 { bytes.max(0) as u64 } else { 0 }
}

/// Asks for the bytes that a socket has not sent at all (linux/sockios.h).
const SIOCOUTQNSD: libc::c_ulong = 0x894B;

/// Receive buffer of a connection on this host, in bytes; a limit, not memory that is used.
const LOOPBACK_BUFFER: i32 = 4 << 20;

/// Whether the other end of the socket is on this host, as far as its address tells.
fn is_loopback(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: all zeros is a valid address buffer.
    let mut addr: libc::sockaddr_storage = unsafe { zeroed() };
    let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: the buffer and its length belong together.
    let rc = unsafe { libc::getpeername(fd.as_raw_fd(), (&raw mut addr).cast(), &mut len) };
    if rc != 0 {
        return false;
    }
    match addr.ss_family as i32 {
        libc::AF_INET => {
            // SAFETY: the family says that it is such an address; the storage is large enough.
            let a = unsafe { &*(&raw const addr).cast::<libc::sockaddr_in>() };
            std::net::Ipv4Addr::from(u32::from_be(a.sin_addr.s_addr)).is_loopback()
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let a = unsafe { &*(&raw const addr).cast::<libc::sockaddr_in6>() };
            let ip = std::net::Ipv6Addr::from(a.sin6_addr.s6_addr);
            ip.is_loopback() || ip.to_ipv4_mapped().is_some_and(|v4| v4.is_loopback())
        }
        _ => false,
    }
}

/// Checks that this is a connected stream socket and sets its options.
pub fn prepare(fd: BorrowedFd<'_>) -> Result<(), Status> {
    let kind = get_int(fd, libc::SO_TYPE).map_err(|e| Status::os("type of the socket", &e))?;
    if kind != libc::SOCK_STREAM {
        return Err(Status::invalid(text!("socket of type {kind}; a stream socket is needed")));
    }
    // Both fail on sockets that are not TCP, which work as well. Losses do not happen inside one
    // host, so the pacing of other congestion controls only costs there: reno moves large blocks
    // about twice as fast as bbr. Refused where the system does not allow it.
    let _ = set(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &[1i32]);
    if is_loopback(fd) {
        let _ = set(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, b"reno");
        // The loopback's segments are as long as the buffer that a new connection begins with. A
        // receiver that looks away for a moment then drops some, and its sender waits 200 ms.
        let _ = set(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &[LOOPBACK_BUFFER]);
    }
    Ok(())
}

/// An empty epoll set, for sockets by their endpoints' numbers.
pub fn epoll() -> Result<Epoll, Status> {
    Epoll::new().map_err(|e| Status::os("epoll_create1", &e))
}

/// Watches an endpoint's socket for input.
pub fn watch(epoll: &Epoll, fd: BorrowedFd<'_>, id: u32) -> Result<(), Status> {
    epoll.add(&fd, epoll::READ, id.into()).map_err(|e| match e.raw_os_error() {
        Some(libc::EPERM | libc::EBADF) => {
            Status::new(Code::InvalidArgument, text!("not a socket: {e}"))
        }
        _ => Status::os("epoll_ctl", &e),
    })
}
