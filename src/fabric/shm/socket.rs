//! Unix sockets, with descriptors passed along.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use smallvec::SmallVec;

use super::foreign::{Closer, Foreign};
use super::sys::called;
use crate::os::{check, owned, retried};

/// Most descriptors in one message.
pub(crate) const MAX_FDS: usize = 3;
/// Longest message.
pub(crate) const MAX_MESSAGE: usize = 256;
/// Room for one control message with [`MAX_FDS`] descriptors, aligned for `cmsghdr`.
type ControlBuf = [u64; 8];

/// A received message.
#[derive(Debug)]
pub(crate) struct Received {
    /// Its bytes.
    pub(crate) bytes: SmallVec<[u8; MAX_MESSAGE]>,
    /// Its descriptors.
    pub(crate) fds: SmallVec<[Foreign; MAX_FDS]>,
    /// There were more, for which this process had no room.
    pub(crate) lacks_fds: bool,
}

/// What the kernel says of the process at the other end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerCred {
    /// Process id in our name space; 0 if it is not visible from here.
    pub(crate) pid: i32,
    /// User id.
    pub(crate) uid: u32,
}

fn new_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: plain system call.
    owned(unsafe { libc::socket(libc::AF_UNIX, kind, 0) }).map_err(called("socket"))
}

/// A socket's address.
type Name = (libc::sockaddr_un, libc::socklen_t);

/// The address with this text.
fn name_of(text: &[u8]) -> io::Result<Name> {
    // SAFETY: an all-zero sockaddr_un is a valid value of this plain C struct.
    let mut sun: libc::sockaddr_un = unsafe { zeroed() };
    sun.sun_family = libc::AF_UNIX as libc::sa_family_t;
    if text.len() >= sun.sun_path.len() {
        return Err(io::Error::other("the path is too long for a socket"));
    }
    for (to, from) in sun.sun_path.iter_mut().zip(text) {
        *to = *from as libc::c_char;
    }
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + text.len();
    Ok((sun, len as libc::socklen_t))
}

/// The abstract socket address of a 16-byte name.
fn abstract_name(name: &[u8; 16]) -> io::Result<Name> {
    let mut text = *b"\0rdma-transport.................................";
    for (pair, byte) in text[16..].chunks_exact_mut(2).zip(name) {
        pair[0] = b"0123456789abcdef"[usize::from(byte >> 4)];
        pair[1] = b"0123456789abcdef"[usize::from(byte & 15)];
    }
    text[15] = b'-';
    name_of(&text)
}

fn listen_at((sun, len): Name) -> io::Result<OwnedFd> {
    let fd = new_socket()?;
    // SAFETY: `sun` holds a valid address of `len` bytes.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const sun).cast(), len) })?;
    // SAFETY: plain system call on an owned descriptor.
    check(unsafe { libc::listen(fd.as_raw_fd(), 4096) })?;
    Ok(fd)
}

fn dial_at((sun, len): Name) -> io::Result<OwnedFd> {
    let fd = new_socket()?;
    // SAFETY: `sun` holds a valid address of `len` bytes.
    check(unsafe { libc::connect(fd.as_raw_fd(), (&raw const sun).cast(), len) })?;
    Ok(fd)
}

/// Listens at a path.
pub(crate) fn listen(path: &Path) -> io::Result<OwnedFd> {
    listen_at(name_of(path.as_os_str().as_bytes())?)
}

/// Listens on an abstract name.
pub(crate) fn listen_abstract(name: &[u8; 16]) -> io::Result<OwnedFd> {
    listen_at(abstract_name(name)?)
}

/// Connects to a path; `WouldBlock` if the listener's queue is full.
pub(crate) fn dial(path: &Path) -> io::Result<OwnedFd> {
    dial_at(name_of(path.as_os_str().as_bytes())?)
}

/// The same to an abstract name.
pub(crate) fn dial_abstract(name: &[u8; 16]) -> io::Result<OwnedFd> {
    dial_at(abstract_name(name)?)
}

/// Ends a Unix socket in both directions. Whether nothing waits in its queue, where descriptors could
/// be that are closed with it; false for everything else.
pub(crate) fn shut_and_empty(fd: &OwnedFd) -> bool {
    let option = |name| {
        let (mut value, mut len) = (0 as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
        let out = (&raw mut value).cast();
        // SAFETY: `value` has room for `len` bytes.
        let rc = unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, name, out, &mut len) };
        (rc == 0).then_some(value)
    };
    let plain = option(libc::SO_DOMAIN) == Some(libc::AF_UNIX)
        && option(libc::SO_TYPE) == Some(libc::SOCK_SEQPACKET)
        && option(libc::SO_ACCEPTCONN) == Some(0);
    if !plain {
        return false;
    }
    super::sys::shut(fd);
    // With it each message says by a flag that it is one: an empty message is not the end.
    let (on, len) = (1 as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
    let (level, name, value) = (libc::SOL_SOCKET, libc::SO_PASSCRED, (&raw const on).cast());
    // SAFETY: a valid option value.
    let set = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value, len) };
    // SAFETY: an all-zero msghdr is a valid value of this plain C struct, with room for nothing.
    let mut msg: libc::msghdr = unsafe { zeroed() };
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: `msg` is a valid place for the result.
    let n = unsafe { libc::recvmsg(fd.as_raw_fd(), &mut msg, flags) };
    set == 0 && n == 0 && msg.msg_flags & (libc::MSG_CTRUNC | libc::MSG_TRUNC) == 0
}

/// Two connected sockets.
#[cfg(test)]
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: room for two descriptors.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) })?;
    // SAFETY: the kernel has just given both to us.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// Accepts one connection.
pub(crate) fn accept(listener: &OwnedFd, closer: &Arc<Closer>) -> io::Result<Foreign> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let (addr, len) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: no address is asked for.
    let fd = owned(unsafe { libc::accept4(listener.as_raw_fd(), addr, len, flags) })?;
    Ok(Foreign::new(fd, closer))
}

/// Who is at the other end.
pub(crate) fn peer_cred(fd: &OwnedFd) -> io::Result<PeerCred> {
    let mut cred = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let out = (&raw mut cred).cast();
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: `cred` has room for `len` bytes.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, out, &mut len) })
        .map_err(called("getsockopt"))?;
    Ok(PeerCred { pid: cred.pid, uid: cred.uid })
}

/// What to say where the system does not tell that.
pub(crate) fn no_cred(e: io::Error) -> io::Error {
    io::Error::other(format!("who is at the other end (SO_PEERCRED): {e}"))
}

/// The user id of this process.
pub(crate) fn own_uid() -> u32 {
    // SAFETY: reads a number.
    unsafe { libc::geteuid() }
}

/// Sends one message with descriptors; all or nothing.
pub(crate) fn send(sock: &OwnedFd, bytes: &[u8], fds: &[RawFd]) -> io::Result<()> {
    debug_assert!(fds.len() <= MAX_FDS && bytes.len() <= MAX_MESSAGE);
    let mut control: ControlBuf = [0; 8];
    let mut iov = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
    // SAFETY: an all-zero msghdr is a valid value of this plain C struct.
    let mut msg: libc::msghdr = unsafe { zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    if !fds.is_empty() {
        let bytes = size_of_val(fds) as u32;
        msg.msg_control = control.as_mut_ptr().cast();
        // SAFETY: arithmetic only.
        msg.msg_controllen = unsafe { libc::CMSG_SPACE(bytes) } as _;
        // SAFETY: the control buffer is large enough for MAX_FDS descriptors and aligned for a
        // header; the first header lies at its start.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&msg);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(bytes) as _;
            let data = libc::CMSG_DATA(header).cast::<RawFd>();
            std::ptr::copy_nonoverlapping(fds.as_ptr(), data, fds.len());
        }
    }
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: `msg` refers to live buffers.
    let n = unsafe { libc::sendmsg(sock.as_raw_fd(), &msg, flags) };
    match usize::try_from(n) {
        Err(_) => Err(called("sendmsg")(io::Error::last_os_error())),
        Ok(n) if n == bytes.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// Receives one message; `UnexpectedEof` when the peer has closed, `InvalidData` when it is too
/// long.
pub(crate) fn receive(sock: &Foreign) -> io::Result<Received> {
    let mut control: ControlBuf = [0; 8];
    let mut bytes: SmallVec<[u8; MAX_MESSAGE]> = smallvec::smallvec![0; MAX_MESSAGE];
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: an all-zero msghdr is a valid value of this plain C struct.
    let mut msg: libc::msghdr = unsafe { zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = size_of::<ControlBuf>() as _;
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    let n = retried(|| {
        // SAFETY: `msg` refers to live buffers.
        let n = unsafe { libc::recvmsg(sock.as_raw_fd(), &mut msg, flags) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    })
    .map_err(called("recvmsg"))?;
    let fds = take_fds(&msg, sock);
    if msg.msg_flags & libc::MSG_TRUNC != 0 || fds.len() > MAX_FDS {
        return Err(io::ErrorKind::InvalidData.into());
    }
    if n == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    bytes.truncate(n);
    Ok(Received { bytes, fds, lacks_fds: msg.msg_flags & libc::MSG_CTRUNC != 0 })
}

/// Takes ownership of every descriptor of a received message.
fn take_fds(msg: &libc::msghdr, sock: &Foreign) -> SmallVec<[Foreign; MAX_FDS]> {
    let mut fds = SmallVec::new();
    // SAFETY: `msg` was filled by recvmsg and its control buffer is alive.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(msg) };
    while !header.is_null() {
        // SAFETY: a header inside the control buffer, written by the kernel.
        let h = unsafe { *header };
        if h.cmsg_level == libc::SOL_SOCKET && h.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: arithmetic only.
            let overhead = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = (h.cmsg_len as usize).saturating_sub(overhead) / size_of::<RawFd>();
            for i in 0..count {
                // SAFETY: the kernel wrote `count` descriptors here, and they are ours now.
                let fd = unsafe {
                    let at = libc::CMSG_DATA(header).cast::<RawFd>().add(i);
                    OwnedFd::from_raw_fd(at.read_unaligned())
                };
                fds.push(Foreign::new(fd, sock.closer()));
            }
        }
        // SAFETY: as above; the macro stays inside the control buffer.
        header = unsafe { libc::CMSG_NXTHDR(msg, header) };
    }
    fds
}
