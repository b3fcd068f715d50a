//! The store in a directory: strangers' files, full disks, killed writers.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use rdma_transport::status::Code;
use rdma_transport::store::Patience;

use super::kinds::dir_store;
use super::*;

/// A directory that is removed at its end.
pub struct Dir {
    pub path: PathBuf,
}

impl Dir {
    pub fn new() -> Dir {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name =
            format!("rdma-store-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Dir { path }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[test]
fn what_is_no_value_is_an_error_that_names_it() {
    let dir = Dir::new();
    let s = store(dir_store(&dir.path));
    set(&s, b"k", b"the value");
    let file = dir.path.join("k");
    let good = fs::read(&file).unwrap();
    let refused = |why: &str| {
        let status = s.get(&[b"k"], SHORT).unwrap_err();
        assert_eq!(status.code, Code::DataLoss, "{why}: {status}");
        assert!(status.message.contains("/k'"), "{why}: {status}");
        assert!(s.add(b"k", 1, LONG).is_err() && s.compare_set(b"k", None, b"", LONG).is_err());
    };
    for len in 0..good.len() {
        fs::write(&file, &good[..len]).unwrap();
        refused("cut");
        // A look at what is there reads no more than the front.
        let looked = s.check(&[b"k"], LONG).map_err(|status| status.code);
        assert!([Ok(true), Err(Code::DataLoss)].contains(&looked), "{len}: {looked:?}");
    }
    for at in 0..good.len() {
        let mut damaged = good.clone();
        damaged[at] ^= 0x10;
        fs::write(&file, &damaged).unwrap();
        let got = s.get(&[b"k"], Patience::Now);
        assert!(got.is_err(), "byte {at}: {got:?}");
    }
    fs::write(&file, [&good[..], b"x"].concat()).unwrap();
    refused("too long");
    fs::write(&file, vec![0; 40 << 20]).unwrap();
    refused("huge");
    set(&s, b"other", b"o");
    fs::copy(dir.path.join("other"), &file).unwrap();
    refused("another key's");
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &file).unwrap();
    refused("a link");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    refused("a directory");
    fs::remove_dir(&file).unwrap();
    let path = std::ffi::CString::new(file.to_str().unwrap()).unwrap();
    // SAFETY: a path with its NUL.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    refused("a pipe, at which nobody may wait");
    // Writing and deleting put it right.
    set(&s, b"k", b"new");
    assert_eq!(get(&s, b"k"), b"new");
    fs::write(&file, b"nonsense").unwrap();
    assert_eq!(s.delete(&[b"k"], LONG).unwrap(), 1);
    assert!(!s.check(&[b"k"], LONG).unwrap());
}

/// What strangers have put among the leases is waited for by nobody, and not read to its end.
#[test]
fn what_is_no_lease_holds_up_nobody() {
    let dir = Dir::new();
    drop(store(dir_store(&dir.path)));
    let at = |n: usize| dir.path.join(format!(".lease-{n:032x}"));
    let pipe = std::ffi::CString::new(at(1).to_str().unwrap()).unwrap();
    // SAFETY: a path with its NUL.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    std::os::unix::fs::symlink("/dev/zero", at(2)).unwrap();
    std::os::unix::fs::symlink("/dev/tty", at(3)).unwrap();
    fs::create_dir(at(4)).unwrap();
    fs::File::create(at(5)).unwrap().set_len(1 << 40).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let path = dir.path.clone();
    std::thread::spawn(move || {
        let s = store(dir_store(&path));
        let leased = s.leased(Duration::from_secs(3600)).unwrap();
        set(&leased, b"held", b"v");
        set(&s, b"k", b"v");
        let _ = tell.send(get(&s, b"held"));
    });
    let got = told.recv_timeout(Duration::from_secs(60));
    assert_eq!(got.as_deref(), Ok(&b"v"[..]), "somebody waits for what is no lease");
}

#[test]
fn a_directory_that_cannot_be_used_is_an_error_at_once() {
    let open = |path: &str| {
        let kind = rdma_transport::store::file::FileStore::open(path.as_ref());
        kind.map(drop).unwrap_err()
    };
    assert_eq!(open("/nonexistent/parent/dir").code, Code::NotFound);
    let status = open("/etc/passwd");
    assert!(status.message.contains("/etc/passwd"), "{status}");
    assert_ne!(open("/proc").code, Code::Ok);
}

/// Fills a small file system, if one may be mounted, in a process of its own.
#[test]
fn a_full_disk_is_an_error_and_keeps_what_was_there() {
    let dir = Dir::new();
    let path = std::ffi::CString::new(dir.path.to_str().unwrap()).unwrap();
    // SAFETY: texts with their NULs.
    let mounted = unsafe {
        let (kind, size) = (c"tmpfs", c"size=256k,mode=0700");
        libc::mount(kind.as_ptr(), path.as_ptr(), kind.as_ptr(), 0, size.as_ptr().cast()) == 0
    };
    if !mounted {
        return skip::skip("no file system can be mounted here");
    }
    let s = store(dir_store(&dir.path));
    set(&s, b"k", b"the earlier value");
    let status = s.set(&[(b"k", &vec![7; 1 << 20])], LONG).unwrap_err();
    assert_eq!(status.code, Code::ResourceExhausted, "{status}");
    for part in ["file store", "'k'", "1048576"] {
        assert!(status.message.contains(part), "{part}: {status}");
    }
    assert_eq!(get(&s, b"k"), b"the earlier value");
    let names: Vec<_> = fs::read_dir(&dir.path).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(!names.iter().any(|n| n.to_string_lossy().starts_with(".new")), "{names:?}");
    // Whatever is left fits, until the disk is full: then deleting still works.
    let mut count = 0;
    while s.set(&[(format!("more{count}").as_bytes(), &[1; 4000])], LONG).is_ok() {
        count += 1;
        assert!(count < 1000);
    }
    assert_eq!(
        s.leased(Duration::from_secs(1)).map(drop).unwrap_err().code,
        Code::ResourceExhausted
    );
    assert_eq!(s.delete(&[b"more0", b"more1"], LONG).unwrap(), 2);
    set(&s, b"more0", &[2; 4000]);
    drop(s);
    // SAFETY: a text with its NUL.
    assert_eq!(unsafe { libc::umount(path.as_ptr()) }, 0);
}

#[test]
fn a_writer_that_holds_the_lock_is_waited_for_until_the_deadline() {
    use std::os::fd::AsRawFd;
    let dir = Dir::new();
    let s = store(dir_store(&dir.path));
    let lock = fs::File::open(dir.path.join(".lock")).unwrap();
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) }, 0);
    let status = s.set(&[(b"k", b"v")], SHORT).unwrap_err();
    assert_eq!(status.code, Code::DeadlineExceeded);
    assert!(status.message.contains(".lock") && status.message.contains("'k'"), "{status}");
    drop(lock);
    set(&s, b"k", b"v");
}

#[test]
fn what_dead_writers_and_leases_left_is_swept() {
    let dir = Dir::new();
    let s = store(dir_store(&dir.path));
    let leased = s.leased(Duration::from_secs(3600)).unwrap();
    set(&leased, b"held", b"v");
    set(&s, b"stays", b"v");
    let named = |part: &str| {
        let all = fs::read_dir(&dir.path).unwrap().map(|e| e.unwrap().file_name());
        all.filter(|n| n.to_string_lossy().contains(part)).count()
    };
    let left = dir.path.join(".new-0");
    fs::write(&left, b"half a val").unwrap();
    fs::set_permissions(&left, fs::Permissions::from_mode(0o600)).unwrap();
    store(dir_store(&dir.path));
    assert_eq!((named(".new-"), named("held")), (1, 1), "it may still be written");
    // As if its process had been killed an hour ago.
    let hour = SystemTime::now() - Duration::from_secs(7200);
    let age =
        |path: &PathBuf| fs::File::options().write(true).open(path).unwrap().set_modified(hour);
    age(&left).unwrap();
    for entry in fs::read_dir(&dir.path).unwrap() {
        let path = entry.unwrap().path();
        if path.to_string_lossy().contains(".lease-") {
            age(&path).unwrap();
        }
    }
    assert!(!s.check(&[b"held"], LONG).unwrap(), "its lease is over");
    store(dir_store(&dir.path));
    assert_eq!((named(".new-"), named("held"), named("stays")), (0, 0, 1));
}

/// Who cleans up takes the lock's file away, as often as it comes: writers exclude each other nevertheless.
#[test]
fn a_lock_that_is_removed_loses_no_addition() {
    let dir = Dir::new();
    let end = AtomicBool::new(false);
    let count = std::thread::scope(|scope| {
        let adders: Vec<_> = (0..4)
            .map(|_| {
                let s = store(dir_store(&dir.path));
                let end = &end;
                scope.spawn(move || {
                    let mut count = 0;
                    while !end.load(Ordering::Acquire) {
                        s.add(b"n", 1, LONG).unwrap();
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        let begun = std::time::Instant::now();
        while begun.elapsed() < Duration::from_secs(2) {
            let _ = fs::remove_file(dir.path.join(".lock"));
            std::thread::sleep(Duration::from_micros(500));
        }
        end.store(true, Ordering::Release);
        adders.into_iter().map(|adder| adder.join().unwrap()).sum::<u64>()
    });
    assert_eq!(get(&store(dir_store(&dir.path)), b"n"), count.to_string().into_bytes());
}

/// A directory that is gone is no key that has yet to come.
#[test]
fn a_directory_that_is_gone_is_told_at_once() {
    let dir = Dir::new();
    let s = store(dir_store(&dir.path));
    set(&s, b"k", b"v");
    let leased = s.leased(Duration::from_secs(60)).unwrap();
    fs::remove_dir_all(&dir.path).unwrap();
    let ends: [(&str, Result<(), _>); 9] = [
        ("get", s.get(&[b"k"], LONG).map(drop)),
        ("look", s.get(&[b"k"], Patience::Now).map(drop)),
        ("wait", s.wait(&[b"k"], LONG)),
        ("check", s.check(&[b"k"], LONG).map(drop)),
        ("set", s.set(&[(b"k", b"v")], LONG)),
        ("add", s.add(b"n", 1, LONG).map(drop)),
        ("delete", s.delete(&[b"k"], LONG).map(drop)),
        ("lease", s.leased(Duration::from_secs(60)).map(drop)),
        ("leased set", leased.set(&[(b"k", b"v")], LONG)),
    ];
    let path = dir.path.to_str().unwrap();
    for (what, end) in ends {
        let status = end.expect_err(what);
        assert_eq!(status.code, Code::Unavailable, "{what}: {status}");
        for part in ["is gone", path, s.name()] {
            assert!(status.message.contains(part), "{what}: {part}: {status}");
        }
    }
    fs::create_dir(&dir.path).unwrap();
    set(&s, b"k", b"v");
    assert_eq!(get(&s, b"k"), b"v");
}
