//! The few system calls that the standard library does not offer.

use std::ffi::CString;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use crate::os::{check, is_refused, owned};
use crate::status::{Code, Status};

/// A nonblocking stream socket on its way to `addr`: writable once connected or failed.
pub(crate) fn start_connect(addr: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    let fd = owned(unsafe { libc::socket(family, kind, 0) })?;
    let rc = match addr {
        SocketAddr::V4(a) => {
            let sa = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: a.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(a.ip().octets()) },
                sin_zero: [0; 8],
            };
            connect(&fd, &sa)
        }
        SocketAddr::V6(a) => {
            let sa = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: a.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
                sin6_scope_id: a.scope_id(),
            };
            connect(&fd, &sa)
        }
    };
    match rc {
        Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => Err(e),
        _ => Ok(fd),
    }
}

/// `S` is `sockaddr_in` or `sockaddr_in6`.
fn connect<S>(fd: &OwnedFd, sa: &S) -> io::Result<()> {
    let len = size_of::<S>() as libc::socklen_t;
    // SAFETY: `sa` is a live socket address structure of `len` bytes.
    check(unsafe { libc::connect(fd.as_raw_fd(), (sa as *const S).cast(), len) })?;
    Ok(())
}

/// What a call for a connection met. One that this system does not know, or that a sandbox refuses so, will not be there for the next
/// try either: that is told at once, where other errors may be tried again.
pub(super) fn unconnected(what: &str, e: &io::Error) -> Status {
    match e.raw_os_error() {
        Some(libc::ENOSYS) => {
            let text =
                text!("{what}: {e}: this system, or the sandbox of this process, refuses it");
            Status::new(Code::FailedPrecondition, text)
        }
        _ => Status::os(what, e),
    }
}

/// What a call on a connection that is there met: the connection broke, or this process may not make the call, which is no fault of the
/// peer's and is told at once as by [`unconnected`].
pub(super) fn broken(what: &str, e: &io::Error) -> Status {
    match is_refused(e) {
        true => unconnected(what, e),
        false => Status::gone(text!("the connection broke during the handshake: {e}")),
    }
}

/// Random bytes for a handshake.
pub(super) fn random(buf: &mut [u8]) -> Result<(), Status> {
    getrandom::fill(buf).map_err(|e| match e.raw_os_error() {
        Some(errno) => unconnected(
            "system's random generator (getrandom)",
            &io::Error::from_raw_os_error(errno),
        ),
        None => Status::random(e),
    })
}

/// Whether an IPv6 wildcard listener takes IPv4 connections too.
pub(super) fn is_dual_stack(fd: &impl AsRawFd) -> bool {
    let mut only_v6: libc::c_int = 1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: value and length outlive the call and `len` is the value's size.
    let rc = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_IPV6,
            libc::IPV6_V6ONLY,
            (&raw mut only_v6).cast(),
            &mut len,
        )
    };
    rc == 0 && only_v6 == 0
}

/// The number of the interface of this name.
pub(super) fn interface(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: a text that ends in NUL.
    Some(unsafe { libc::if_nametoindex(name.as_ptr()) }).filter(|&number| number != 0)
}

/// Whether there is an interface of this number.
pub(super) fn has_interface(number: u32) -> bool {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: room for the longest name.
    !unsafe { libc::if_indextoname(number, name.as_mut_ptr()) }.is_null()
}

/// Addresses of the interfaces that are up; none where they cannot be listed.
pub(super) fn interface_addresses() -> Vec<IpAddr> {
    let mut list = MaybeUninit::<*mut libc::ifaddrs>::uninit();
    // SAFETY: on success the call fills in the head of a list, which is freed below.
    if unsafe { libc::getifaddrs(list.as_mut_ptr()) } != 0 {
        return Vec::new();
    }
    // SAFETY: initialised by the successful call.
    let head = unsafe { list.assume_init() };
    let mut ips = Vec::new();
    let mut at = head;
    while !at.is_null() {
        // SAFETY: a node of the list, which lives until `freeifaddrs`.
        let node = unsafe { &*at };
        if node.ifa_flags & libc::IFF_UP as u32 != 0 {
            // SAFETY: null or the socket address of this node.
            ips.extend(unsafe { ip_of(node.ifa_addr) });
        }
        at = node.ifa_next;
    }
    // SAFETY: the list of the call above; nothing of it is used from here on.
    unsafe { libc::freeifaddrs(head) };
    ips
}

/// The address in a socket address structure.
///
/// # Safety
/// `sa` is null or points to a structure as long as its family says.
unsafe fn ip_of(sa: *const libc::sockaddr) -> Option<IpAddr> {
    if sa.is_null() {
        return None;
    }
    // SAFETY: every socket address begins with its family; read unaligned to assume nothing.
    let family = unsafe { (&raw const (*sa).sa_family).read_unaligned() };
    match libc::c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: the family says so.
            let sin = unsafe { sa.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(sin.sin_addr.s_addr.to_ne_bytes()).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says so.
            let sin6 = unsafe { sa.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(sin6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}
