//! Where an adapter's socket is: a file in a directory that only its user can enter.
//!
//! A stranger who can connect can put descriptors into the queue of the connection before anybody has
//! looked who it is. In a directory of mode 0700 there are no such strangers. The directory is
//! `$XDG_RUNTIME_DIR/rdma-transport`, or `/tmp/rdma-transport-UID`, or a new one beside it if somebody
//! else has taken that name. Where none can be made the socket has an abstract name: then the kernel's
//! word (`SO_PEERCRED`) keeps strangers out, and what they leave in the queue is closed elsewhere
//! (`foreign`).
//!
//! The file may be removed while its process lives: whoever cleans up /tmp does that, and the end of a
//! session. Each new endpoint has a look, and the socket is made again.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Once, OnceLock};
use std::time::{Duration, SystemTime};

use super::socket::{self, own_uid};
use super::sys;
use super::wire::Home;

/// A directory's name begins so.
const DIRECTORY: &str = "rdma-transport";
/// Names in it that are looked at for what killed processes have left.
const SWEPT: usize = 1024;
/// What is younger may be about to listen.
const SWEEP_AGE: Duration = Duration::from_secs(60);
/// The time of the boot is told in whole seconds.
const BOOT_SLACK: Duration = Duration::from_secs(1);

/// A listening socket and its name, which ends with it.
#[derive(Debug)]
pub(super) struct Nest {
    home: Home,
    path: Option<PathBuf>,
    /// What the environment said of a directory, when it was read.
    runtime: Option<PathBuf>,
    /// The directory is this adapter's alone.
    own_directory: bool,
    /// A forked child removes nothing.
    pid: u32,
}

/// The name of a socket in its directory.
fn file_name(home: &Home) -> String {
    let hex: String = home.socket.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{hex}", home.pid)
}

/// Whether only this user can enter the directory.
fn is_private(directory: &Path) -> bool {
    fs::symlink_metadata(directory)
        .is_ok_and(|at| at.is_dir() && at.uid() == own_uid() && at.mode() & 0o077 == 0)
}

/// Makes a private directory, or takes one that is private already.
fn make_private(directory: &Path) -> bool {
    // One that exists is for the check.
    let _ = DirBuilder::new().mode(0o700).create(directory);
    is_private(directory)
}

/// Directories to try; the last one belongs to one adapter alone.
fn candidates(socket: &[u8; 16], runtime: Option<&Path>) -> [Option<PathBuf>; 3] {
    let runtime = runtime.filter(|dir| dir.is_absolute() && is_private(dir));
    let number = u32::from_le_bytes(std::array::from_fn(|i| socket[i]));
    let tmp = format!("/tmp/{DIRECTORY}-{}", own_uid());
    let alone = format!("{tmp}-{number:08x}");
    [runtime.map(|dir| dir.join(DIRECTORY)), Some(tmp.into()), Some(alone.into())]
}

impl Nest {
    /// Listens under a new name.
    pub(super) fn open(socket: [u8; 16]) -> io::Result<(Nest, OwnedFd)> {
        Nest::open_at(
            socket,
            crate::os::environment::variable("XDG_RUNTIME_DIR").map(PathBuf::from),
        )
    }

    fn open_at(socket: [u8; 16], runtime: Option<PathBuf>) -> io::Result<(Nest, OwnedFd)> {
        let (mut nest, listener) = Nest::open_in(socket, candidates(&socket, runtime.as_deref()))?;
        nest.runtime = runtime;
        Ok((nest, listener))
    }

    fn open_in(socket: [u8; 16], directories: [Option<PathBuf>; 3]) -> io::Result<(Nest, OwnedFd)> {
        let pid = std::process::id();
        for (i, directory) in directories.into_iter().enumerate() {
            let Some(directory) = directory else { continue };
            let Some(home) = Home::new(socket, pid, directory.as_os_str().as_bytes()) else {
                continue;
            };
            if !make_private(&directory) {
                continue;
            }
            sweep(&directory);
            let path = directory.join(file_name(&home));
            let own_directory = i == 2;
            if let Ok(listener) = socket::listen(&path) {
                let (path, runtime) = (Some(path), None);
                return Ok((Nest { home, path, runtime, own_directory, pid }, listener));
            }
            if own_directory {
                let _ = fs::remove_dir(&directory);
            }
        }
        let listener = socket::listen_abstract(&socket)?;
        let home = Home { socket, pid, directory: Default::default() };
        Ok((Nest { home, path: None, runtime: None, own_directory: false, pid }, listener))
    }

    /// Whether the file is where peers are told that it is, and of the user that this process has now.
    pub(super) fn is_there(&self) -> bool {
        let is_ours = |path: &PathBuf| {
            fs::symlink_metadata(path)
                .is_ok_and(|at| at.file_type().is_socket() && at.uid() == own_uid())
        };
        self.path.as_ref().is_none_or(is_ours)
    }

    /// Listens again, in the same place if that can be, otherwise in another.
    pub(super) fn again(&mut self) -> io::Result<OwnedFd> {
        let (nest, listener) = Nest::open_at(self.home.socket, self.runtime.clone())?;
        if self.path == nest.path {
            self.path = None;
        }
        // What is left of the old one ends with it.
        *self = nest;
        Ok(listener)
    }

    /// What a peer needs to find it.
    pub(super) fn home(&self) -> &Home {
        &self.home
    }

    /// The file, if it has one.
    pub(super) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Whether strangers cannot reach it.
    pub(super) fn is_private(&self) -> bool {
        self.path.is_some()
    }
}

impl Drop for Nest {
    fn drop(&mut self) {
        if let Some(path) = self.path.take().filter(|_| self.pid == std::process::id()) {
            let _ = fs::remove_file(&path);
            if let Some(directory) = path.parent().filter(|_| self.own_directory) {
                let _ = fs::remove_dir(directory);
            }
        }
    }
}

/// Connects to a peer's socket; `WouldBlock` if its queue is full. A peer that names another place than
/// a private directory of this user gets nothing there.
pub(super) fn dial(home: &Home) -> io::Result<OwnedFd> {
    if home.directory.is_empty() {
        return socket::dial_abstract(&home.socket);
    }
    let directory = Path::new(OsStr::from_bytes(&home.directory));
    let ours = directory.is_absolute()
        && directory.components().all(|part| part.as_os_str() != "..")
        && directory
            .file_name()
            .is_some_and(|name| name.as_bytes().starts_with(DIRECTORY.as_bytes()));
    if !ours {
        return Err(io::Error::other("the peer's socket is in no directory of this library"));
    }
    match dial_in(directory, home) {
        // The peer may see other files than this process, as in another container.
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let mut seen = format!("/proc/{}/root", home.pid).into_bytes();
            seen.extend_from_slice(&home.directory);
            let there = Path::new(OsStr::from_bytes(&seen));
            match dial_in(there, home) {
                Err(e)
                    if e.kind() == io::ErrorKind::NotFound && is_out_of_sight(directory, home) =>
                {
                    Err(lasting(format!(
                        "{} is not seen from here: the peer, or this process, has another root directory (chroot)",
                        directory.display()
                    )))
                }
                other => other,
            }
        }
        other => other,
    }
}

/// An error that no later try would be without: peers of two users do not meet.
fn lasting(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

/// Whether an error is of that kind, or that this process may not make a system call. What one refuses may be another thing: a path,
/// an address.
pub(super) fn is_lasting(e: &io::Error) -> bool {
    sys::is_refused(e) || e.kind() == io::ErrorKind::PermissionDenied && e.raw_os_error().is_none()
}

/// The peer is of another user, or was when it listened.
pub(super) fn other_user(user: u32) -> io::Error {
    let own = own_uid();
    lasting(format!(
        "it runs as another user: its socket belongs to user {user}, this process to user {own}"
    ))
}

fn dial_in(directory: &Path, home: &Home) -> io::Result<OwnedFd> {
    let own = own_uid();
    match fs::symlink_metadata(directory) {
        Ok(at) if at.uid() != own => return Err(other_user(at.uid())),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            return Err(lasting(format!(
                "user {own} may not enter the directory of its socket: most likely it runs as another user"
            )));
        }
        Err(e) => return Err(e),
        Ok(_) => {}
    }
    if !is_private(directory) {
        let text = "the directory of the peer's socket can be entered by others, or is not ours";
        return Err(io::Error::other(text));
    }
    socket::dial(&directory.join(file_name(home)))
}

/// Whether a peer whose socket is not found has it all the same: it lives, and makes its directory when it says where that is.
fn is_out_of_sight(directory: &Path, home: &Home) -> bool {
    let lives = i32::try_from(home.pid).is_ok_and(|pid| pid > 0 && sys::process_exists(pid));
    lives && fs::symlink_metadata(directory).is_err() && !Path::new("/proc/self/root").exists()
}

/// Removes, once in a process, the names of processes that ended without doing so.
fn sweep(directory: &Path) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Ok(names) = fs::read_dir(directory) else { return };
        names.flatten().take(SWEPT).for_each(|name| sweep_one(&name.path()));
    });
}

/// A name is removed if its process is not there, it is old, and nobody listens: the process may be one
/// that is not seen from here.
fn sweep_one(path: &Path) {
    let name = path.file_name().and_then(OsStr::to_str);
    let pid = name.and_then(|name| name.split_once('-')?.0.parse::<i32>().ok());
    let made = fs::symlink_metadata(path).and_then(|at| at.modified());
    if let (Some(pid), Ok(made)) = (pid.filter(|&pid| pid > 0), made)
        && made.elapsed().is_ok_and(|age| age >= SWEEP_AGE)
        && is_gone(pid, made)
        && socket::dial(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
    {
        let _ = fs::remove_file(path);
    }
}

/// Whether the process of this number that made something then is not there any more. Another one may have its number: those of
/// a container are given again each time it starts, 1 first of all.
fn is_gone(pid: i32, made: SystemTime) -> bool {
    let later = |began: SystemTime| began.duration_since(made).is_ok_and(|by| by > BOOT_SLACK);
    !sys::process_exists(pid) || began(pid).is_some_and(later)
}

/// When a process began, if that is told here.
fn began(pid: i32) -> Option<SystemTime> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The program's name, in parentheses, may have anything in it; the state behind it is the third field.
    let behind = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let fields = std::str::from_utf8(stat.get(behind..)?).ok()?;
    let ticks: u64 = fields.split_ascii_whitespace().nth(22 - 3)?.parse().ok()?;
    // SAFETY: a number of the system is asked for.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let per_second = u64::try_from(per_second).ok().filter(|&n| n > 0)?;
    let seconds = booted()?.checked_add(ticks / per_second)?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// When the machine was booted, in seconds since 1970. Read once: the file is long on a machine with many processors.
fn booted() -> Option<u64> {
    static BOOTED: OnceLock<Option<u64>> = OnceLock::new();
    *BOOTED.get_or_init(|| {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn name() -> [u8; 16] {
        sys::random().unwrap()
    }

    /// A directory for one test.
    struct Top(PathBuf);

    impl Top {
        fn new() -> Top {
            let path = format!("/tmp/rt-{:016x}", u64::from_le_bytes(sys::random().unwrap()));
            fs::create_dir(&path).unwrap();
            Top(path.into())
        }
    }

    impl Drop for Top {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn r13_a_socket_lies_where_no_stranger_can_go() {
        let (nest, listener) = Nest::open(name()).unwrap();
        let path = nest.path.clone().unwrap();
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        drop(dial(nest.home()).unwrap());
        drop((nest, listener));
        assert!(!path.exists());
    }

    #[test]
    fn r13_a_directory_that_others_can_enter_is_not_used() {
        let top = Top::new();
        let (open, link) = (top.0.join("rdma-transport-o"), top.0.join("rdma-transport-l"));
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
        let private = top.0.join("elsewhere");
        assert!(make_private(&private));
        std::os::unix::fs::symlink(&private, &link).unwrap();
        let alone = top.0.join("rdma-transport-a");
        let all = [Some(open.clone()), Some(link.clone()), Some(alone.clone())];
        let (nest, _listener) = Nest::open_in(name(), all).unwrap();
        assert_eq!(nest.path.as_ref().unwrap().parent().unwrap(), alone);
        drop(dial(nest.home()).unwrap());
        drop(nest);
        assert!(!alone.exists());
        // Nor does anybody dial there.
        for wrong in [open, link, "/run/../tmp".into(), "/var/run".into(), "tmp".into()] {
            let home = Home::new(name(), 1, wrong.as_os_str().as_bytes()).unwrap();
            assert!(dial(&home).is_err(), "{wrong:?}");
        }
        // Where there is none at all.
        let none = [None, Some("/proc/rdma-transport".into()), None];
        let (nest, _listener) = Nest::open_in(name(), none).unwrap();
        assert!(!nest.is_private());
        drop(dial(nest.home()).unwrap());
    }

    #[test]
    fn r41_a_socket_that_was_removed_is_made_again() {
        let top = Top::new();
        fs::set_permissions(&top.0, fs::Permissions::from_mode(0o700)).unwrap();
        let (mut nest, mut listener) = Nest::open_at(name(), Some(top.0.clone())).unwrap();
        let path = nest.path.clone().unwrap();
        assert_eq!(path.parent().unwrap(), top.0.join(DIRECTORY));
        let removals: [&dyn Fn(); 3] = [
            &|| fs::remove_file(&path).unwrap(),
            &|| fs::remove_dir_all(path.parent().unwrap()).unwrap(),
            &|| fs::remove_dir_all(&top.0).unwrap(),
        ];
        for (i, remove) in removals.into_iter().enumerate() {
            assert!(nest.is_there());
            remove();
            assert!(!nest.is_there() && dial(nest.home()).is_err());
            listener = nest.again().unwrap();
            assert!(nest.is_there());
            // Without the session's directory it is in another.
            assert_eq!(nest.path.as_ref() == Some(&path), i < 2);
            drop(dial(nest.home()).unwrap());
        }
        let last = nest.path.clone().unwrap();
        drop((nest, listener));
        assert!(!last.exists());
    }

    #[test]
    fn what_dead_processes_left_is_removed() {
        let top = Top::new();
        let gone = top.0.join("2147483646-00");
        drop(socket::listen(&gone).unwrap());
        sweep_one(&gone);
        assert!(gone.exists(), "it is young");
        let make_old = |path: &Path| {
            let text = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
            let past = libc::timespec { tv_sec: 1000, tv_nsec: 0 };
            // SAFETY: a path that ends with NUL, and two times.
            let rc =
                unsafe { libc::utimensat(libc::AT_FDCWD, text.as_ptr(), [past; 2].as_ptr(), 0) };
            assert_eq!(rc, 0);
        };
        make_old(&gone);
        let alive = top.0.join("2147483645-00");
        let _listener = socket::listen(&alive).unwrap();
        make_old(&alive);
        // Its number is that of a process which began later: this one.
        let again = top.0.join(format!("{}-00", std::process::id()));
        drop(socket::listen(&again).unwrap());
        sweep_one(&again);
        assert!(again.exists(), "it is young");
        make_old(&again);
        let listens = top.0.join(format!("{}-01", std::process::id()));
        let _second = socket::listen(&listens).unwrap();
        make_old(&listens);
        [&gone, &alive, &again, &listens].into_iter().for_each(|path| sweep_one(path));
        assert!(!gone.exists() && alive.exists() && !again.exists() && listens.exists());
    }

    #[test]
    fn a_process_that_may_have_made_a_name_is_not_gone() {
        let own = std::process::id() as i32;
        let began = began(own).unwrap();
        assert!(began.elapsed().is_ok_and(|age| age < Duration::from_secs(24 * 3600)), "{began:?}");
        // The second in which it began is not told exactly.
        for made in [SystemTime::now(), began, began - BOOT_SLACK] {
            assert!(!is_gone(own, made), "{made:?}");
        }
        assert!(is_gone(own, began - BOOT_SLACK - Duration::from_millis(1)));
        assert!(is_gone(i32::MAX - 1, SystemTime::now()));
    }
}
