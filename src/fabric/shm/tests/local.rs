//! System calls of this side that fail are not the peer's fault; what the peer has passed and is not what it should be is.

use std::io;

use super::*;
use crate::status::Reason;

/// A system call that fails while the peer's stream is mapped, or its socket is heard, is told as what it is.
#[test]
fn what_the_system_refuses_here_is_not_the_peers_fault() {
    let (mut a, mut b) = (open(None), open(None));
    let (e, _) = connect(&mut a, &mut b);
    let link = link(&mut a, e);
    for errno in [libc::ENOMEM, libc::EMFILE, libc::EPERM, libc::EIO, libc::ENOSYS, libc::EINVAL] {
        let error = io::Error::from_raw_os_error(errno);
        for (status, what) in [
            (link.not_mapped(&error), "mapping the stream of peer"),
            (link.not_received(&error), "socket of peer"),
        ] {
            let used_up = matches!(errno, libc::ENOMEM | libc::EMFILE);
            let code = if used_up { Code::ResourceExhausted } else { Code::Unavailable };
            assert_eq!((status.code, status.reason), (code, Reason::LocalError), "{status}");
            assert!(!status.message.contains("broke"), "{status}");
            assert!(status.message.contains(what), "{status}");
            assert!(status.message.contains(&format!("os error {errno}")), "{status}");
        }
    }
    let status = link.not_received(&io::ErrorKind::Interrupted.into());
    assert!(status.message.contains("socket of peer"), "{status}");
    let gone = link.not_received(&io::Error::from_raw_os_error(libc::ECONNRESET));
    assert_eq!(gone.reason, Reason::PeerGone, "{gone}");
    let status = link.not_mapped(&io::Error::other("the wrong size"));
    assert!(status.code == Code::Internal && status.message.contains("broke"), "{status}");
}

/// Whatever a peer passes in place of its memory is found before a system call fails for it: no errno, which would be this side's.
#[test]
fn what_a_peer_should_not_pass_is_told_from_calls_that_fail() {
    let good = sys::memfd(c"good", 4096).unwrap();
    assert_eq!(sys::sealed_len(&good).unwrap(), 4096);
    // SAFETY: plain system call; nobody else owns the result.
    let open = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"open".as_ptr(), 0)) };
    let again = |flags: libc::c_int| {
        use std::os::unix::fs::OpenOptionsExt;
        let path = format!("/proc/self/fd/{}", good.as_raw_fd());
        let mut options = std::fs::File::options();
        let writes = flags & libc::O_WRONLY != 0;
        let opened =
            options.read(!writes).write(writes).custom_flags(flags & libc::O_PATH).open(path);
        OwnedFd::from(opened.unwrap())
    };
    let (socket, _) = socket::pair().unwrap();
    let bad = [
        ("unsealed", open),
        ("no memory", std::fs::File::open("/dev/zero").unwrap().into()),
        ("a directory", std::fs::File::open("/").unwrap().into()),
        ("another file system", std::fs::File::open("/proc/self/stat").unwrap().into()),
        ("a socket", socket),
        ("for writing", again(libc::O_WRONLY)),
        ("for no access", again(libc::O_PATH)),
    ];
    for (what, fd) in &bad {
        let error = sys::sealed_len(fd).unwrap_err();
        assert!(error.raw_os_error().is_none(), "{what}: {error}");
    }
    let text = sys::mapping("its ring")(io::Error::from_raw_os_error(libc::EPERM)).to_string();
    assert!(text.starts_with("this side could not map its ring: ") && text.contains("os error 1"));
    let text = sys::mapping("its ring")(io::Error::other("too short")).to_string();
    assert_eq!(text, "too short");
}

/// A sandbox that comes while peers are about to meet: each call that it refuses ends the meeting for good, with the call's name. A
/// connection that the peer has ended is made again.
#[test]
fn r41_a_meeting_names_the_call_that_is_refused() {
    let calls = [
        (libc::SYS_memfd_create, "memfd_create: "),
        (libc::SYS_ftruncate, "ftruncate: "),
        (libc::SYS_fcntl, "fcntl: "),
        (libc::SYS_madvise, "madvise: "),
        (libc::SYS_sendmsg, "sendmsg: "),
        (libc::SYS_recvmsg, "recvmsg: "),
        (libc::SYS_getsockopt, "getsockopt: "),
    ];
    for (call, name) in calls {
        for errno in [libc::EPERM, libc::EACCES, libc::ENOSYS] {
            let told = std::thread::spawn(move || {
                let (mut a, mut b) = (open(None), open(None));
                let (ea, eb) = (a.create("b").unwrap(), b.create("a").unwrap());
                let (to_a, to_b) = (a.address(ea).unwrap(), b.address(eb).unwrap());
                a.connect(ea, &to_b, true, None).unwrap();
                b.connect(eb, &to_a, false, None).unwrap();
                let mut events = Vec::new();
                // The peer has answered before this side hears of it.
                if call == libc::SYS_recvmsg {
                    a.poll(&mut events);
                    b.poll(&mut events);
                }
                crate::os::sandbox::refuse(call, errno);
                for _ in 0..10_000 {
                    a.poll(&mut events);
                    if let Some(Event::Down { status, .. }) = events.first() {
                        return status.clone();
                    }
                }
                panic!("nothing is told: {events:?}");
            });
            let status = told.join().unwrap();
            assert_eq!(status.code, Code::FailedPrecondition, "{name}{errno}: {status}");
            assert!(status.message.contains(name), "{errno}: {status}");
        }
    }
    let ended = super::super::meeting::refused("b", &io::ErrorKind::UnexpectedEof.into());
    assert_eq!(ended.reason, Reason::PeerGone, "{ended}");
    for errno in [libc::ECONNRESET, libc::EMFILE, libc::ENOMEM] {
        let passing = sys::called("x")(io::Error::from_raw_os_error(errno));
        let status = super::super::meeting::refused("b", &passing);
        assert_eq!(status.code, Code::Unavailable, "{status}");
    }
}
