//! Files that others name: what is no regular file may keep whoever opens it waiting for ever.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::time::{Duration, Instant};

/// So long somebody has time to write to a FIFO that is read: `<(…)` of a shell is one.
const PATIENCE: Duration = Duration::from_secs(10);

/// The first `most` bytes of a file, and its mode. Of a FIFO whatever comes until it is closed, if that is soon.
pub fn read(path: &str, most: u64) -> io::Result<(Vec<u8>, u32)> {
    read_within(path, most, PATIENCE)
}

fn read_within(path: &str, most: u64, patience: Duration) -> io::Result<(Vec<u8>, u32)> {
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let mode = file.metadata()?.mode();
    let (mut bytes, until) = (Vec::new(), Instant::now() + patience);
    loop {
        wait(&file, until)?;
        let left = most - bytes.len() as u64;
        match (&mut file).take(left).read_to_end(&mut bytes) {
            Ok(_) => return Ok((bytes, mode)),
            // What came before that is there.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                if bytes.len() as u64 == most {
                    return Ok((bytes, mode));
                }
            }
            Err(e) => return Err(e),
        }
    }
}

/// Waits until there is something to read, or its end: a FIFO that nobody has opened to write has neither.
fn wait(file: &File, until: Instant) -> io::Result<()> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut what = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let ms = left.as_millis().min(i32::MAX as u128) as i32;
        // SAFETY: one descriptor that is open.
        match unsafe { libc::poll(&raw mut what, 1, ms) } {
            0 if left.is_zero() || ms as u128 == left.as_millis() => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "it is a FIFO or a device, and nobody wrote to it in time",
                ));
            }
            -1 => {
                let e = io::Error::last_os_error();
                // A signal ends the wait early, but does not make it longer.
                if e.kind() != io::ErrorKind::Interrupted || left.is_zero() {
                    return Err(e);
                }
            }
            0 => {}
            _ => return Ok(()),
        }
    }
}

/// A new file in which one can go back, or an old one, which is emptied, unless another that was made so is being written: that is
/// `ResourceBusy`. A FIFO or a terminal is none, and nobody waits for its reader.
pub fn create(path: &str) -> io::Result<File> {
    let none = || {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is a FIFO, a socket or a terminal, allowed is a file in which one can go back",
        )
    };
    let mut options = OpenOptions::new();
    // What another writes is not to be emptied.
    options.write(true).create(true).truncate(false).custom_flags(libc::O_NONBLOCK);
    let refused = |e: io::Error| if e.raw_os_error() == Some(libc::ENXIO) { none() } else { e };
    let mut file = options.open(path).map_err(refused)?;
    file.stream_position().map_err(|_| none())?;
    if file.metadata()?.is_file() {
        match flock(&file, libc::LOCK_EX | libc::LOCK_NB) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::ResourceBusy.into());
            }
            // Not every file system has such locks.
            _ => {}
        }
        file.set_len(0)?;
    }
    Ok(file)
}

/// A file that `create` made is another's from here on; a child that was forked meanwhile has it open, too.
pub fn release(file: &File) {
    let _ = flock(file, libc::LOCK_UN);
}

fn flock(file: &File, operation: i32) -> io::Result<()> {
    // SAFETY: a descriptor that is open.
    match unsafe { libc::flock(file.as_raw_fd(), operation) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// A FIFO of this name.
    fn fifo(name: &str) -> String {
        let path = std::env::temp_dir().join(format!("rdma-{name}-{}", std::process::id()));
        let path = path.to_str().unwrap().to_owned();
        let c = std::ffi::CString::new(path.clone()).unwrap();
        // SAFETY: a C string.
        assert_eq!(unsafe { libc::mkfifo(c.as_ptr(), 0o600) }, 0);
        path
    }

    #[test]
    fn nobody_waits_for_the_other_end_of_a_fifo_for_ever() {
        let path = fifo("fifo-alone");
        let soon = Duration::from_millis(20);
        assert_eq!(read_within(&path, 100, soon).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(create(&path).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        // Nor is it written to where somebody reads.
        let reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
        assert_eq!(create(&path).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        drop(reader);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_is_written_to_a_fifo_is_read() {
        let path = fifo("fifo-written");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut file = OpenOptions::new().write(true).open(&path).unwrap();
                for part in [&b"one "[..], b"two"] {
                    file.write_all(part).unwrap();
                    // The reader finds nothing for a while, as a rule, and goes on.
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
            assert_eq!(read(&path, 100).unwrap().0, b"one two");
        });
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn devices_that_are_files_to_everybody_are_taken() {
        assert_eq!(read("/dev/null", 100).unwrap().0, b"");
        assert_eq!(read("/dev/zero", 100).unwrap().0, [0; 100]);
        assert!(create("/dev/null").is_ok());
    }
}
