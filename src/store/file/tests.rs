//! What the tests of all stores do not see: files, locks and what is kept of leases.

use super::value::PLAIN_NAME;
use super::*;
use crate::store::stop::Stop;

/// A directory that is removed at its end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let name = format!("rdma-store-unit-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Dir(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process forks while one of its threads writes: the child, which lives on, holds up no writer.
#[test]
fn r11_a_forked_child_holds_no_lock_of_a_store() {
    let dir = Dir::new("fork");
    let store = FileStore::open(&dir.0).unwrap();
    let stop = Stop::new().unwrap();
    let lock = store.lock(Until::after(None, &stop)).unwrap();
    // SAFETY: the child makes system calls only.
    let child = unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::pause();
            libc::_exit(0);
        }
        child
    };
    drop(lock);
    let until = Until::after(Some(Duration::from_millis(200)), &stop);
    let set = store.set(&[(b"k", b"v")], None, until);
    // SAFETY: a child of this test, which is waited for.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    set.unwrap();
}

/// What is gone, or somebody else's by now, is no key of a lease.
#[test]
fn keys_that_are_gone_are_forgotten() {
    let dir = Dir::new("held");
    let store = FileStore::open(&dir.0).unwrap();
    let stop = Stop::new().unwrap();
    let until = Until::after(None, &stop);
    store.lease(1, Duration::from_secs(60), until).unwrap();
    store.lease(2, Duration::from_secs(60), until).unwrap();
    for i in 0..10_000 {
        let key = i.to_string().into_bytes();
        store.set(&[(&key, b"v")], Some(1), until).unwrap();
        store.delete(&[&key], until).unwrap();
    }
    assert!(store.held.keys(1).unwrap().is_empty());
    for (i, lease) in [None, Some(2)].into_iter().enumerate() {
        let of = |what: &str| format!("{what} {i}").into_bytes();
        for what in ["set", "add", "compared", "ours"] {
            store.set(&[(&of(what), b"1")], Some(1), until).unwrap();
        }
        store.set(&[(&of("set"), b"v")], lease, until).unwrap();
        store.add(&of("add"), 1, lease, until).unwrap();
        store.compare_set(&of("compared"), Some(b"1"), b"v", lease, until).unwrap();
        store.add(&of("ours"), 1, Some(1), until).unwrap();
    }
    assert_eq!([1, 2].map(|id| store.held.keys(id).unwrap().len()), [2, 3]);
}

#[test]
fn names_of_files_are_plain_and_differ() {
    assert_eq!(file_name(b"job-1_a.b"), "job-1_a.b");
    assert_eq!(file_name(b"a/b"), "a%2Fb");
    assert_eq!(file_name(b"../x"), "%2E.%2Fx");
    assert_eq!(file_name(b".lock"), "%2Elock");
    assert_eq!(file_name(b"=x%\0"), "%3Dx%25%00");
    let (long, other) = ([b'k'; 4096], [b'k'; 4095]);
    assert_eq!(file_name(&long).len(), 65);
    assert_ne!(file_name(&long), file_name(&other));
    assert_eq!(file_name(&[b'k'; PLAIN_NAME]).len(), PLAIN_NAME);
}

/// Whoever meets again and again leaves each meeting's lease to its time, and keeps nothing of it.
#[test]
fn leases_that_are_left_to_their_time_are_forgotten() {
    let dir = Dir::new("lent");
    let kind = std::sync::Arc::new(FileStore::open(&dir.0).unwrap());
    let store = crate::store::Store::new(kind.clone(), LEFT).unwrap();
    let patience = crate::store::Patience::Default;
    for i in 0..4 {
        let lent = store.lent(LEFT, patience).unwrap();
        lent.set(&[(format!("key {i}").as_bytes(), b"v")], patience).unwrap();
        assert_eq!(kind.held.leases(), 1);
    }
    assert_eq!(kind.held.leases(), 0);
    assert!(store.check(&[b"key 0", b"key 3"], patience).unwrap(), "they last for their time");
}

/// A file of a lease that says no ttl is of a process that was killed before it had, and is not kept for ever.
#[test]
fn a_lease_that_was_never_written_is_swept() {
    let dir = Dir::new("lease");
    let old = SystemTime::now() - 2 * LEFT;
    for (name, text, at) in [("1", "", old), ("2", "", SystemTime::now()), ("3", "900000", old)] {
        let path = dir.0.join(format!("{LEASE}{name}"));
        fs::write(&path, text).unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(at).unwrap();
    }
    FileStore::open(&dir.0).unwrap();
    let left = ["1", "2", "3"].map(|name| dir.0.join(format!("{LEASE}{name}")).exists());
    assert_eq!(left, [false, true, true]);
}

/// Somebody removes the file of a lease: it is over, and stays over, however often it is renewed; the holder is told.
#[test]
fn r37_a_lease_whose_file_was_removed_stays_over() {
    let dir = Dir::new("removed");
    let kind = std::sync::Arc::new(FileStore::open(&dir.0).unwrap());
    let stop = Stop::new().unwrap();
    let until = Until::after(None, &stop);
    let (id, ttl) = (7, Duration::from_secs(60));
    kind.lease(id, ttl, until).unwrap();
    kind.set(&[(b"before", b"v")], Some(id), until).unwrap();
    kind.lease(id, ttl, until).unwrap();
    let path = dir.0.join(lease_name(id));
    fs::remove_file(&path).unwrap();
    for _ in 0..3 {
        let renewed = kind.lease(id, ttl, until).unwrap_err();
        assert_eq!(renewed.code, Code::FailedPrecondition, "{renewed}");
        let set = kind.set(&[(b"after", b"v")], Some(id), until).unwrap_err();
        assert_eq!(set.code, Code::FailedPrecondition, "{set}");
        assert!(!path.exists() && kind.get(&[b"before"], until).unwrap() == [None]);
    }
    // Another may begin.
    kind.lease(id + 1, ttl, until).unwrap();

    let store = crate::store::Store::new(kind.clone(), LEFT).unwrap();
    let patience = crate::store::Patience::Default;
    let lent = store.lent(Duration::from_millis(900), patience).unwrap();
    lent.set(&[(b"lent", b"v")], patience).unwrap();
    let held = |name: &OsStr| name.as_bytes().starts_with(LEASE.as_bytes());
    for entry in fs::read_dir(&dir.0).unwrap().flatten().filter(|e| held(&e.file_name())) {
        fs::remove_file(entry.path()).unwrap();
    }
    let end = std::time::Instant::now() + Duration::from_millis(1200);
    while std::time::Instant::now() < end {
        let set = lent.set(&[(b"lent", b"v")], patience).unwrap_err();
        assert_eq!(set.code, Code::FailedPrecondition, "{set}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Whatever a stranger puts where a value or a lease would be is told as that.
#[test]
fn a_socket_in_the_place_of_a_key_is_damage() {
    let dir = Dir::new("socket");
    let store = FileStore::open(&dir.0).unwrap();
    let stop = Stop::new().unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(dir.0.join("key")).unwrap();
    let got = store.get(&[b"key"], Until::after(None, &stop)).unwrap_err();
    assert_eq!(got.code, Code::DataLoss, "{got}");
}
