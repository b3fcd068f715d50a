//! Attacks on the shm provider: strangers and peers that hand over what nobody asked for.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rdma_hostile::honest::Honest;
use rdma_hostile::shm;
use rdma_hostile::victim::{Options, Victim, from_hex};
use rdma_hostile::{PATIENCE, eventually};
use rdma_transport::fabric::ProviderKind;
use rdma_transport::status::Code;

/// An honest peer is served by then; a socket that lingers takes twice as long.
const SOON: Duration = Duration::from_secs(15);
const LINGER: i32 = 30;

fn options() -> Options {
    Options { provider: Some(ProviderKind::Shm), ..Options::default() }
}

/// A socket whose last close takes [`LINGER`] seconds; the other end is to be kept.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listener");
    let mut ours = TcpStream::connect(listener.local_addr().expect("address")).expect("socket");
    let (theirs, _) = listener.accept().expect("socket");
    ours.set_nonblocking(true).expect("flag");
    while ours.write(&[0; 65536]).is_ok() {}
    let linger = libc::linger { l_onoff: 1, l_linger: LINGER };
    let (at, len) = ((&raw const linger).cast(), size_of_val(&linger) as u32);
    // SAFETY: a valid option value.
    let rc =
        unsafe { libc::setsockopt(ours.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, at, len) };
    assert_eq!(rc, 0);
    (ours, theirs)
}

/// The stranger: in another process, perhaps of another user. Says how many connections it got.
#[test]
#[ignore = "started by the others"]
fn stranger() {
    let Ok(sockets) = std::env::var("HOSTILE_STRANGER") else { return };
    let mut kept = Vec::new();
    for path in sockets.split(' ') {
        for sort in 0..3 {
            let Ok(sock) = shm::dial(path) else { continue };
            let (ours, theirs) = lingering();
            // One that is heard; more that are not; none that is one of this protocol.
            let texts: &[&[u8]] = match sort {
                0 => &[b"x"],
                1 => &[b"x", b"y", b""],
                _ => &[b""],
            };
            texts.iter().for_each(|text| shm::send(&sock, text, &[ours.as_raw_fd()]));
            // The victim is the last to hold it.
            drop((ours, sock));
            kept.push(theirs);
        }
    }
    println!(">>{}", kept.len());
    std::io::stdout().flush().expect("output");
    let _ = std::io::stdin().read_line(&mut String::new());
}

fn start_stranger(victim: &Victim, user: Option<u32>) -> (Child, usize) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["stranger", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    let sockets = shm::sockets_of(victim.pid());
    assert!(!sockets.is_empty(), "it has no socket");
    command.env("HOSTILE_STRANGER", sockets.join(" ")).current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    let mut child = command.spawn().expect("the stranger");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut said = lines.map_while(Result::ok).filter_map(|l| l.split_once(">>")?.1.parse().ok());
    (child, said.next().expect("what it reached"))
}

#[test]
fn r13_strangers_reach_nothing_and_hold_up_nobody() {
    // SAFETY: reads a number.
    let root = unsafe { libc::geteuid() } == 0;
    let users: &[Option<u32>] = if root { &[None, Some(65534)] } else { &[None] };
    if !root {
        println!(
            "SKIPPED r13_strangers_reach_nothing_and_hold_up_nobody (another user): needs root"
        );
    }
    for user in users {
        let mut victim = Victim::start(options());
        victim.check_honest();
        // While it stands still nothing is taken, so that it is the last to hold what it was sent.
        victim.signal(libc::SIGSTOP);
        let (mut child, reached) = start_stranger(&victim, *user);
        victim.signal(libc::SIGCONT);
        match user {
            // The same user can connect, and do no harm by it.
            None => assert!(reached > 0, "the attack came to nothing"),
            Some(_) => assert_eq!(reached, 0, "another user got a connection"),
        }
        victim.check_honest_within(SOON);
        let _ = child.kill();
        let _ = child.wait();
        victim.finish();
    }
}

#[test]
fn r14_no_memory_of_a_manager_can_be_mapped_for_writing() {
    let mut victim = Victim::start(options());
    let honest = Honest::start(options().peer("reader"));
    honest.serve();
    let blob = from_hex(&victim.tell("blob"));
    let peer = honest.manager.import_address(&blob).expect("the victim's address");
    honest.manager.connect(&peer, Some(SOON)).expect("a connection");
    // Not known before the victim has taken the connection.
    assert!(eventually(PATIENCE, || victim.try_tell("channels reader").as_deref() == Ok("1")));
    // Results in the library's memory, which is the pool.
    for n in 0..20 {
        let key = format!("gen:300000 {n}");
        let op = victim.recv("reader", key.as_bytes(), 0, 300_000, false, SOON);
        let got = victim.wait(op, SOON).expect("an end");
        assert_eq!((got.code, got.right), (Code::Ok, true), "{got:?}");
    }
    let files = shm::memory_of(victim.pid());
    for kind in ["rdma-transport-pool", "rdma-transport-exports"] {
        assert!(files.iter().any(|(name, _)| name.contains(kind)), "no {kind} in {files:?}");
    }
    for (name, path) in &files {
        let file = std::fs::File::options().read(true).write(true).open(path).expect(name);
        assert!(shm::map_writable(&file).is_err(), "{name} can be mapped for writing");
    }
    drop(honest);
    victim.finish();
}

#[test]
fn r14_a_peer_that_announces_endless_pools_is_not_believed() {
    let mut victim = Victim::start(options());
    let before = victim.address_space();
    let evil = Honest::start(options().peer("evil"));
    evil.serve();
    let blob = from_hex(&victim.tell("blob"));
    let peer = evil.manager.import_address(&blob).expect("the victim's address");
    evil.manager.connect(&peer, Some(SOON)).expect("a connection");
    let socks = shm::sockets_to(victim.pid());
    assert!(!socks.is_empty(), "no socket of the connection was found");
    for id in 0..76 {
        // SAFETY: a new descriptor, which nobody else owns.
        let file = unsafe {
            let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
            OwnedFd::from_raw_fd(libc::memfd_create(c"endless".as_ptr(), flags))
        };
        const LEN: u64 = 8 << 40;
        // SAFETY: plain system calls on an owned descriptor.
        unsafe {
            assert_eq!(libc::ftruncate(file.as_raw_fd(), LEN as i64), 0);
            let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
            assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals), 0);
        }
        for sock in &socks {
            // The queue is short: the victim takes them one by one.
            let message = shm::pool_message(1000 + id, LEN);
            let send = || shm::try_send(sock, &message, &[file.as_raw_fd()]);
            assert!(eventually(PATIENCE, send), "announcement {id} was not taken");
        }
    }
    // It goes on with this very peer.
    let op = victim.recv("evil", b"gen:100000 go on", 0, 100_000, false, SOON);
    let got = victim.wait(op, SOON).expect("an end");
    assert_eq!((got.code, got.right), (Code::Ok, true), "{got:?}");
    let grown = victim.address_space().saturating_sub(before);
    assert!(grown < 8 << 40, "{grown} bytes of address space");
    drop(evil);
    victim.finish();
}
