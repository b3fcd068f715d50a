//! Lines to stderr, without waiting for whoever reads it.
//!
//! A terminal that is stopped (Ctrl-S), a pager, a collector of logs that hangs: a pipe that is full takes nothing, and a write to it
//! lasts until somebody reads. Whoever logs may hold the manager's lock, and drives it: all transfers would stand still, and no deadline
//! would hold. So lines that are not taken at once are counted and left out, and the next one that is taken says how many.

use std::io::{ErrorKind, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use super::Level;
use super::speaker::Stamp;
use crate::os::again;

/// What a pipe takes in one piece if it takes anything (`PIPE_BUF`).
const PIECE: usize = 4096;

/// Lines that were not taken and that nobody was told of yet.
static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

/// Writes a line, or counts it.
pub(super) fn put(level: Level, text: &str) {
    let mut to = std::io::stderr().lock();
    let before = LEFT_OUT.swap(0, Ordering::Relaxed);
    // A closed stderr is no reason to fail.
    let left_out = crate::os::without_write_signals(|| {
        if before > 0 {
            let text = text!("{before} lines were left out, since nobody read stderr");
            if !taken(&mut to, line(Level::Warn, &text).as_bytes()) {
                return before + 1;
            }
        }
        u64::from(!taken(&mut to, line(level, text).as_bytes()))
    });
    if left_out > 0 {
        LEFT_OUT.fetch_add(left_out, Ordering::Relaxed);
    }
}

fn line(level: Level, text: &str) -> String {
    format!("{} rdma_transport {}: {text}\n", Stamp::now(), level.name())
}

/// Whether all was taken at once, or can be taken by nobody. In one write, if it is short, so that lines of threads do not mix.
fn taken(to: &mut (impl Write + AsRawFd), line: &[u8]) -> bool {
    for piece in line.chunks(PIECE) {
        let mut rest = piece;
        while !rest.is_empty() {
            // SAFETY: the descriptor is open, or the call says that it is not.
            if !takes_output(unsafe { BorrowedFd::borrow_raw(to.as_raw_fd()) }) {
                return false;
            }
            match again(|| to.write(rest)) {
                Ok(0) => return true,
                Ok(n) => rest = rest.get(n..).unwrap_or_default(),
                Err(e) => return e.kind() != ErrorKind::WouldBlock,
            }
        }
    }
    true
}

/// Whether a write returns at once, be it with an error.
fn takes_output(fd: BorrowedFd<'_>) -> bool {
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: one entry.
    unsafe { libc::poll(&mut entry, 1, 0) > 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, pipe};
    use std::os::fd::OwnedFd;

    #[test]
    fn a_full_pipe_keeps_nobody() {
        let (mut reader, writer) = pipe().unwrap();
        let mut writer = File::from(OwnedFd::from(writer));
        let line = [b'x'; 5000];
        let mut lines = 0;
        while taken(&mut writer, &line) {
            lines += 1;
            assert!(lines < 1000, "the pipe has no end");
        }
        assert!(lines > 0 && !taken(&mut writer, b"y"));
        // Somebody reads again.
        let mut read = vec![0; 3 * PIECE];
        reader.read_exact(&mut read).unwrap();
        assert!(taken(&mut writer, b"y"));
        drop(reader);
        let closed = crate::os::without_write_signals(|| taken(&mut writer, b"z"));
        assert!(closed, "nobody will ever read it");
    }
}
