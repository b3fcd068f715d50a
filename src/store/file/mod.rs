//! The store in a directory: one file a key, for processes that share a file system.
//!
//! A value is written to a file of its own, which then takes the name of its key: who reads finds the earlier value or the
//! whole new one. Writes exclude each other by a lock on one file (`flock`, which ends with its process, and which no child that
//! is forked meanwhile keeps), so that add and compare-and-set are atomic, too. Who removes that file, as one who cleans up may,
//! lets others lock another of its name: so the directory is locked, too, where its file system can do that. A file says its key, lease and checksum: what
//! was cut, damaged or put there by somebody else is an error that names it.
//!
//! A lease is a file whose time of change is renewed; it is over when that is older than its ttl, and then stays over, so hosts
//! that share a directory have to agree on the time as far as their ttl needs it. Who opens the directory, or begins a lease,
//! sweeps what leases that are over and writers that were killed have left.

#[cfg(test)]
mod tests;
mod value;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::lease::{LeasedKeys, ended};
use super::{Compared, Kind, LeaseId, Until, sum};
use crate::limits::STORE_REPLY;
use crate::local_fd::Local;
use crate::os::without_write_signals;
use crate::room;
use crate::status::{Code, Reason, Status};
pub use value::fuzz_file;
use value::{encode, failed, file_name, open_lease, read_file, read_header};

const LOCK: &str = ".lock";
/// Beginnings of other names; no key's name begins with a dot.
const LEASE: &str = ".lease-";
const NEW: &str = ".new-";
/// A file that its writer has not renamed for so long was left behind.
const LEFT: Duration = Duration::from_secs(300);

/// A store in one directory, with the leases that this process holds there.
pub struct FileStore {
    name: String,
    dir: PathBuf,
    held: LeasedKeys,
}

fn lease_name(id: LeaseId) -> String {
    format!("{LEASE}{id:032x}")
}

/// A lease's file was changed just now.
fn renew(file: &File) -> io::Result<()> {
    let now = libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW };
    let times = [now, now];
    // SAFETY: two times, as the call reads.
    match unsafe { libc::futimens(file.as_raw_fd(), times.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A lock, until it is dropped.
struct Lock(Local<File>);

impl Drop for Lock {
    fn drop(&mut self) {
        // The lock is one of the open file, which a forked child may hold, too: closing it is not enough.
        if self.0.is_ours() {
            // SAFETY: no pointers.
            unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_UN) };
        }
    }
}

/// The locks of a directory: that of its own, if it has one, and that of the file in it.
struct Locked {
    _dir: Option<Lock>,
    _file: Lock,
}

impl FileStore {
    /// Opens a directory, which is made if its parent is there.
    pub fn open(path: &Path) -> Result<FileStore, Status> {
        let parts = [b"file store '", path.as_os_str().as_bytes(), b"'"];
        let name = String::from_utf8(room::concat(&parts, "a path")?.into_vec())
            .map_err(|_| Status::invalid("the path of a file store is not UTF-8"))?;
        let named = |status: Status| {
            let text = text!("{name}: {}", status.message);
            status.with_message(text)
        };
        match fs::DirBuilder::new().mode(0o700).create(path) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => {
                return Err(named(failed("cannot make the directory", path, &e)));
            }
            _ => {}
        }
        let dir = fs::canonicalize(path)
            .map_err(|e| named(failed("cannot use the directory", path, &e)))?;
        let store = FileStore { name: String::new(), dir, held: LeasedKeys::default() };
        store.lock_file().map_err(named)?;
        store.sweep();
        Ok(FileStore { name, ..store })
    }

    fn lock_file(&self) -> Result<File, Status> {
        let path = self.at(LOCK)?;
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)
            .map_err(|e| self.unless_gone("cannot open", &path, &e))
    }

    /// Waits until nobody else writes.
    fn lock(&self, until: Until<'_>) -> Result<Locked, Status> {
        let file = loop {
            let (file, path) = (self.lock_file()?, self.at(LOCK)?);
            let file = self.lock_one(file, until)?.map_err(|e| failed("cannot lock", &path, &e))?;
            // Whose file was removed meanwhile excludes nobody who comes now.
            let (ours, there) = (file.0.metadata(), fs::symlink_metadata(&path));
            let ours = ours.map_err(|e| failed("cannot look at", &path, &e))?;
            if there.is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())) {
                break file;
            }
            until.stop.check()?;
            if until.is_over() {
                let text = text!("'{}' is removed again and again", path.display());
                return Err(Status::new(Code::DeadlineExceeded, text).because(Reason::Deadline));
            }
        };
        // A file system whose directories have no locks, as that of a network, leaves it at that.
        let dir = File::open(&self.dir).ok().map(|dir| self.lock_one(dir, until)).transpose()?;
        Ok(Locked { _dir: dir.and_then(Result::ok), _file: file })
    }

    /// Waits until nobody else has this file locked; or the system's error.
    fn lock_one(&self, file: File, until: Until<'_>) -> Result<io::Result<Lock>, Status> {
        let file = Local::new(file);
        let mut pause = Duration::from_micros(100);
        loop {
            // SAFETY: no pointers.
            if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
                return Ok(Ok(Lock(file)));
            }
            let error = io::Error::last_os_error();
            if !matches!(error.raw_os_error(), Some(libc::EWOULDBLOCK | libc::EINTR)) {
                return Ok(Err(error));
            }
            until.stop.check()?;
            if until.is_over() {
                let path = self.at(LOCK)?;
                let text = text!("another writer held '{}' locked", path.display());
                return Err(Status::new(Code::DeadlineExceeded, text).because(Reason::Deadline));
            }
            until.sleep(pause)?;
            pause = (pause * 2).min(Duration::from_millis(5));
        }
    }

    /// The path of a file of this name, which begins with one as long as the application chose.
    fn at(&self, name: impl AsRef<OsStr>) -> Result<PathBuf, Status> {
        let parts = [self.dir.as_os_str().as_bytes(), b"/", name.as_ref().as_bytes()];
        if parts.iter().map(|part| part.len()).sum::<usize>() >= libc::PATH_MAX as usize {
            let error = io::Error::from_raw_os_error(libc::ENAMETOOLONG);
            return Err(failed("no file has so long a path in", &self.dir, &error));
        }
        let path = room::concat(&parts, "a path")?.into_vec();
        Ok(OsString::from_vec(path).into())
    }

    /// An error if the directory is not there: then no key is, nor will be.
    fn is_there(&self) -> Result<(), Status> {
        let there = fs::metadata(&self.dir).map(drop);
        there.map_err(|e| self.unless_gone("cannot look at", &self.dir, &e))
    }

    /// A failed call, or that there is no directory in which it could go well.
    fn unless_gone(&self, what: &str, path: &Path, error: &io::Error) -> Status {
        let gone = |e: io::Error| e.kind() == ErrorKind::NotFound;
        if error.kind() == ErrorKind::NotFound && fs::metadata(&self.dir).is_err_and(gone) {
            let text = text!("the directory '{}' is gone", self.dir.display());
            return Status::new(Code::Unavailable, text);
        }
        failed(what, path, error)
    }

    fn path(&self, key: &[u8]) -> Result<PathBuf, Status> {
        self.at(file_name(key))
    }

    /// Whether a lease that ends so long after its last renewal still lasts.
    fn lasts(&self, id: LeaseId, ttl: Duration) -> Result<bool, Status> {
        let changed = fs::metadata(self.at(lease_name(id))?).and_then(|m| m.modified());
        // A time in the future is one of a clock that is ahead.
        let lasts = |at| SystemTime::now().duration_since(at).map_or(true, |age| age < ttl);
        Ok(changed.is_ok_and(lasts))
    }

    /// What a file holds: nothing, if it is not there or its lease is over.
    fn read(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Status> {
        let Some((lease, ttl, value)) = read_file(&self.path(key)?, Some(key))? else {
            return Ok(None);
        };
        Ok(if lease == 0 || self.lasts(lease, ttl)? { Some(value) } else { None })
    }

    /// Writes a value to its place; the directory is locked.
    fn put(
        &self,
        _lock: &Locked,
        key: &[u8],
        value: &[u8],
        lease: Option<LeaseId>,
    ) -> Result<(), Status> {
        let (mut id, mut ttl_ms) = (0, 0);
        if let Some(held) = lease {
            (id, ttl_ms) = (held, self.ttl_of(held)?);
            if !self.lasts(id, Duration::from_millis(ttl_ms))? {
                return Err(ended());
            }
            self.held.add(held, std::iter::once(key))?;
        }
        let bytes = encode(id, ttl_ms, key, value)?;
        let random = u128::from_le_bytes(crate::bootstrap::random_id()?);
        let (new, path) = (self.at(format!("{NEW}{random:032x}"))?, self.path(key)?);
        let written = without_write_signals(|| {
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&new)
                .map_err(|e| failed("cannot make", &new, &e))?;
            file.write_all(&bytes).map_err(|e| {
                failed(&format!("cannot write a value of {} bytes to", value.len()), &new, &e)
            })?;
            fs::rename(&new, &path).map_err(|e| failed("cannot rename a new value to", &path, &e))
        });
        match &written {
            Ok(()) => self.held.part(std::iter::once(key), lease, self.held.writes()),
            Err(_) => drop(fs::remove_file(&new)),
        }
        written
    }

    /// The ttl of a lease of this process, as its file says.
    fn ttl_of(&self, id: LeaseId) -> Result<u64, Status> {
        let path = self.at(lease_name(id))?;
        let (_, ttl) = open_lease(&path)?.ok_or_else(ended)?;
        let text = || text!("'{}' is damaged", path.display());
        ttl.ok_or_else(|| Status::invalid(text()))
    }

    /// Deletes a key if it is under this lease.
    fn drop_leased(&self, key: &[u8], id: LeaseId) {
        let Ok(path) = self.path(key) else { return };
        if let Ok(Some((lease, ..))) = read_file(&path, Some(key))
            && lease == id
        {
            let _ = fs::remove_file(&path);
        }
    }

    /// Removes what nobody will: values of leases that are over, and files that their writer never renamed.
    fn sweep(&self) {
        let Ok(stop) = super::stop::Stop::new() else { return };
        // Somebody who writes now does not have to be waited for: the next one sweeps.
        let Ok(_lock) = self.lock(Until::after(Some(Duration::ZERO), &stop)) else { return };
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Ok(path) = self.at(&name) else { continue };
            let name = name.to_string_lossy();
            let age = entry.metadata().and_then(|m| m.modified()).ok();
            let age = age.and_then(|at| SystemTime::now().duration_since(at).ok());
            let left = if name.starts_with(NEW) {
                age.is_some_and(|age| age > LEFT)
            } else if name.starts_with(LEASE) {
                // Long after its end, in case that its holder's clock is behind. One that does not tell its ttl is of a process
                // that was killed before it had written it, or of a disk that was full.
                let ttl = open_lease(&path).ok().flatten().and_then(|(_, ttl)| ttl);
                let ttl = Duration::from_millis(ttl.unwrap_or(0));
                age.is_some_and(|age| age > ttl.saturating_add(LEFT))
            } else if name.starts_with('.') {
                false
            } else {
                let found = read_header(&path).ok().flatten();
                found.is_some_and(|(id, ttl)| id != 0 && self.lasts(id, ttl) == Ok(false))
            };
            if left {
                let _ = fs::remove_file(&path);
            }
        }
    }
}

impl Kind for FileStore {
    fn name(&self) -> &str {
        &self.name
    }

    fn set(
        &self,
        items: &[(&[u8], &[u8])],
        lease: Option<LeaseId>,
        until: Until<'_>,
    ) -> Result<(), Status> {
        let lock = self.lock(until)?;
        items.iter().try_for_each(|(key, value)| self.put(&lock, key, value, lease))
    }

    fn get(&self, keys: &[&[u8]], _until: Until<'_>) -> Result<Vec<Option<Vec<u8>>>, Status> {
        let mut found = Vec::new();
        room::grow(&mut found, keys.len(), "values")?;
        let mut bytes = 0;
        for key in keys {
            let value = self.read(key)?;
            bytes += value.as_ref().map_or(0, Vec::len);
            found.push(value);
            if bytes > STORE_REPLY {
                break;
            }
        }
        if found.contains(&None) {
            self.is_there()?;
        }
        Ok(found)
    }

    fn missing(&self, keys: &[&[u8]], _until: Until<'_>) -> Result<Vec<usize>, Status> {
        let mut missing = Vec::new();
        for (i, key) in keys.iter().enumerate() {
            let there = match read_header(&self.path(key)?)? {
                Some((id, ttl)) => id == 0 || self.lasts(id, ttl)?,
                None => false,
            };
            if !there {
                crate::room::grow(&mut missing, 1, "keys")?;
                missing.push(i);
            }
        }
        if !missing.is_empty() {
            self.is_there()?;
        }
        Ok(missing)
    }

    fn add(
        &self,
        key: &[u8],
        delta: i64,
        lease: Option<LeaseId>,
        until: Until<'_>,
    ) -> Result<i64, Status> {
        let lock = self.lock(until)?;
        let sum = sum(self.read(key)?.as_deref(), delta)?;
        self.put(&lock, key, sum.to_string().as_bytes(), lease)?;
        Ok(sum)
    }

    fn compare_set(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        desired: &[u8],
        lease: Option<LeaseId>,
        until: Until<'_>,
    ) -> Result<Compared, Status> {
        let lock = self.lock(until)?;
        match (self.read(key)?, expected) {
            (None, Some(_)) => return Ok(Compared::Absent),
            (Some(there), expected) if expected != Some(&*there) => {
                return Ok(Compared::Differs(there));
            }
            _ => {}
        }
        self.put(&lock, key, desired, lease)?;
        Ok(Compared::Set)
    }

    fn delete(&self, keys: &[&[u8]], until: Until<'_>) -> Result<usize, Status> {
        let _lock = self.lock(until)?;
        let mut count = 0;
        for key in keys {
            let path = self.path(key)?;
            let there = match self.read(key) {
                Ok(value) => value.is_some(),
                // Whether it is there is not known.
                Err(status) if status.code == Code::ResourceExhausted => return Err(status),
                // What is damaged goes as well.
                Err(_) => true,
            };
            match fs::remove_file(&path) {
                Ok(()) => count += usize::from(there),
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => return Err(failed("cannot delete", &path, &e)),
            }
            self.held.part(std::iter::once(*key), None, self.held.writes());
        }
        Ok(count)
    }

    fn lease(&self, id: LeaseId, ttl: Duration, _until: Until<'_>) -> Result<(), Status> {
        let path = self.at(lease_name(id))?;
        if let Some((file, _)) = open_lease(&path)? {
            // One that is over stays there until it is swept with its keys: to begin it anew would bring them back.
            if !self.lasts(id, ttl)? {
                return Err(ended());
            }
            return renew(&file).map_err(|e| failed("cannot renew", &path, &e));
        }
        // Somebody has removed its file: what was written under it is gone for whoever looks, and would not come back with a new one
        // once it is swept.
        if self.held.has(id) {
            self.is_there()?;
            return Err(ended());
        }
        self.sweep();
        self.held.begin(id)?;
        let text = ttl.as_millis().to_string();
        let written = without_write_signals(|| {
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            file.write_all(text.as_bytes())
        });
        written.map_err(|e| {
            let _ = fs::remove_file(&path);
            self.unless_gone("cannot make", &path, &e)
        })
    }

    fn release(&self, id: LeaseId, until: Until<'_>) -> Result<(), Status> {
        // From here on its keys are gone for whoever looks.
        let path = self.at(lease_name(id)).inspect_err(|_| self.forget(id))?;
        let _ = fs::remove_file(path);
        let keys = self.held.end(id);
        let _lock = self.lock(until)?;
        keys.keys().for_each(|key| self.drop_leased(key, id));
        Ok(())
    }

    fn forget(&self, id: LeaseId) {
        self.held.end(id);
    }
}
