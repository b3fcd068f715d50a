//! Long content over several connections between two managers: that it does, that a connection that breaks ends nothing, and
//! who wants only one.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rdma_transport::api::*;
use rdma_transport::config::Config;
use rdma_transport::engine::front::message::{Envelope, Memory, Mode, Party, Wanted};
use rdma_transport::engine::transfer::sizes::MAX_RDMA_PER_REQUEST;
use rdma_transport::fabric::ProviderKind;
use rdma_transport::manager::{Manager, Post, Timeout, Where};
use rdma_transport::protocol::message::Extra;

#[path = "support/skip.rs"]
mod skip;

const LONG: Duration = Duration::from_secs(60);
const LEN: usize = 8 << 20;

fn config(name: &str, kind: ProviderKind, connections: u32) -> Config {
    let mut config = Config { name: name.into(), provider: Some(kind), ..Config::default() };
    config.sizes.choose(MAX_RDMA_PER_REQUEST, connections.into());
    config
}

fn pair(a: Config, b: Config) -> (Arc<Manager>, Arc<Manager>) {
    let (a, b) = (Manager::new(a).unwrap(), Manager::new(b).unwrap());
    a.import_address(&b.export_address().unwrap()).unwrap();
    (a, b)
}

fn content(salt: usize) -> Vec<u8> {
    (0..LEN).map(|i| (i * 31 + i / 4096 + salt * 7) as u8).collect()
}

/// `from` sends a tensor, `to` receives it: into memory that it gives, which is written to, or reading it.
fn transfer((to, from, name): (&Manager, &Manager, &str), step: i64, given: bool) {
    let bytes = content(step as usize);
    let mut room = vec![0u8; LEN];
    let at = room.as_mut_ptr() as u64;
    let target = match given {
        true => Target::Given { addr: at, len: LEN as u64 },
        false => Target::Alloc(Box::new(move |_: &Meta| Some(at))),
    };
    let (tx, received) = mpsc::channel();
    let done: RecvDone = Box::new(move |result, _| drop(tx.send(result.map(|t| t.meta.nbytes))));
    let options = RecvOptions { timeout: Some(LONG), target, device: 0, keep: false };
    let key = format!("key {step}");
    // SAFETY: `room` lives until the receive has ended, below.
    unsafe { to.recv_async(Some(name), key.as_bytes(), step, options, done) }.unwrap();
    let mut meta = Meta { dtype: 1, nbytes: LEN as u64, ..Default::default() };
    meta.dims.push(LEN as i64);
    let tensor = Tensor { meta, addr: bytes.as_ptr() as u64, device: 0 };
    let (tx, sent) = mpsc::channel();
    let done: SendDone = Box::new(move |result, _| drop(tx.send(result)));
    // SAFETY: `bytes` lives until the send has ended, below.
    unsafe { from.send(key.as_bytes(), step, tensor, None, Some(done.into())) }.unwrap();
    let received = received.recv_timeout(LONG).unwrap();
    let sent = sent.recv_timeout(LONG).unwrap();
    assert_eq!((received, sent), (Ok(LEN as u64), Ok(())));
    assert!(room == bytes, "step {step}: other content than was sent");
}

/// The same as a message, of this tag; `name` is the receiver's.
fn message((to, from, name): (&Manager, &Manager, &str), tag: u64) {
    let (bytes, mut room) = (content(tag as usize), vec![0u8; LEN]);
    let at = |addr| Where::Whole(Memory { addr, len: LEN as u64, device: 0 });
    let (source, place) = (at(bytes.as_ptr() as u64), at(room.as_mut_ptr() as u64));
    let party = from.peer_lookup(name).unwrap();
    std::thread::scope(|scope| {
        let sent = scope.spawn(move || {
            let post = Post {
                to: party,
                incarnation: 0,
                envelope: Envelope { comm: 0, tag },
                extra: &Extra::NONE,
                mode: Mode::Standard,
                timeout: Timeout::After(LONG),
            };
            // SAFETY: `bytes` lives until this has returned, and nobody changes it.
            unsafe { from.message_send(&post, source) }
        });
        let wanted = Wanted { from: Party::ANY, comm: 0, tag, mask: u64::MAX };
        // SAFETY: `room` lives until this has returned.
        let end = unsafe { to.message_recv(wanted, 0, place, Timeout::After(LONG)) }.unwrap();
        assert_eq!((end.result, end.len, sent.join().unwrap()), (Ok(()), LEN as u64, Ok(())));
    });
    assert!(room == bytes, "message {tag}: other content than was sent");
}

/// Waits until a manager has so many connections to a peer.
fn until_connections(m: &Manager, peer: &str, want: u32) {
    let begun = Instant::now();
    while m.peer_info(peer).unwrap().channels != want {
        let have = m.peer_info(peer).unwrap().channels;
        assert!(begun.elapsed() < LONG, "{have} connections, and not {want}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn rail_bytes(m: &Manager) -> u64 {
    let stats = m.stats_json().unwrap();
    let value = |part: &str| part.split([',', '}']).next().unwrap().trim().parse::<u64>().unwrap();
    stats.split("\"rail_bytes\":").skip(1).map(value).sum()
}

fn long_content(kind: ProviderKind, device: Option<&str>) {
    for (connections, checksum, secret) in [(2, false, false), (4, false, true), (3, true, false)] {
        let of = |name| {
            let secret = secret.then(|| b"secret".to_vec());
            let mut config = Config { checksum, secret, ..config(name, kind, connections) };
            config.ib.device = device.map(str::to_owned);
            config
        };
        let (a, b) = pair(of("a"), of("b"));
        a.connect("b", Some(LONG)).unwrap();
        until_connections(&a, "b", connections);
        until_connections(&b, "a", connections);
        // Read and written, to who has dialled and from there.
        for (step, given) in [(1, false), (2, true)] {
            transfer((&a, &b, "b"), step, given);
            transfer((&b, &a, "a"), step + 10, given);
        }
        for m in [&a, &b] {
            let moved = rail_bytes(m);
            assert!(moved > 0 && moved < 2 * LEN as u64, "{kind:?}: {moved} bytes over rails");
        }
        a.destroy().unwrap();
        b.destroy().unwrap();
    }
}

#[test]
fn long_content_goes_over_all_connections() {
    for kind in [ProviderKind::Loopback, ProviderKind::Tcp] {
        long_content(kind, None);
    }
}

/// Queue pairs of one device.
#[test]
fn ibverbs_long_content_goes_over_all_connections() {
    let Ok(device) = std::env::var("RDMA_TEST_DEVICE") else {
        skip::skip("no RDMA device here; runs in `make softroce`");
        return;
    };
    long_content(ProviderKind::Ibverbs, Some(&device));
}

/// Packets that a Soft-RoCE device has sent.
fn packets_of(device: &str) -> u64 {
    let path = format!("/sys/class/infiniband/{device}/ports/1/hw_counters/sent_pkts");
    std::fs::read_to_string(&path).unwrap().trim().parse().unwrap()
}

/// The names of two devices in one network each, or `None`, and it was said.
fn two_devices() -> Option<(String, String)> {
    let list = std::env::var("RDMA_TEST_DEVICES").ok();
    if list.is_none() {
        skip::skip("no RDMA device here; runs in `make softroce`");
    }
    list.map(|list| {
        let (first, second) = list.split_once(',').expect("RDMA_TEST_DEVICES=first,second");
        (first.to_owned(), second.to_owned())
    })
}

/// Queue pairs of two devices; by default as many as there are devices.
#[test]
fn ibverbs_several_devices_carry_parts_of_long_content() {
    let Some((first, second)) = two_devices() else { return };
    for (connections, checksum) in [(0, false), (4, false), (2, true)] {
        let of = |name| {
            let mut config = config(name, ProviderKind::Ibverbs, connections.max(1));
            if connections == 0 {
                config.sizes = Box::default();
            }
            config.checksum = checksum;
            config.ib.device = Some(format!("{first},{second}:1"));
            config
        };
        let (a, b) = pair(of("a"), of("b"));
        a.connect("b", Some(LONG)).unwrap();
        let want = if connections == 0 { 2 } else { connections };
        until_connections(&a, "b", want);
        until_connections(&b, "a", want);
        let before = [&first, &second].map(|device| packets_of(device));
        for (step, given) in [(1, false), (2, true)] {
            transfer((&a, &b, "b"), step, given);
            transfer((&b, &a, "a"), step + 10, given);
        }
        // A packet has 4 KiB at most; the two of them share 32 MiB.
        for (device, before) in [&first, &second].into_iter().zip(before) {
            let sent = packets_of(device) - before;
            assert!(sent > 1000, "{device} sent {sent} packets, {connections} connections");
        }
        a.destroy().unwrap();
        b.destroy().unwrap();
    }
}

/// What it carried goes over the other one; transfers end well, then and later.
#[test]
fn ibverbs_a_device_whose_link_fails_ends_no_transfer() {
    let Some((first, second)) = two_devices() else { return };
    let Ok(interface) = std::env::var("RDMA_TEST_INTERFACE") else {
        panic!("of the second device")
    };
    let link = |way: &str| {
        let args = ["link", "set", &interface, way];
        assert!(std::process::Command::new("ip").args(args).status().unwrap().success());
    };
    let of = |name| {
        let mut config = config(name, ProviderKind::Ibverbs, 2);
        config.ib.device = Some(format!("{first},{second}"));
        config
    };
    let (a, b) = pair(of("a"), of("b"));
    a.connect("b", Some(LONG)).unwrap();
    until_connections(&a, "b", 2);
    until_connections(&b, "a", 2);
    transfer((&a, &b, "b"), 1, true);
    std::thread::scope(|s| {
        s.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            link("down");
        });
        for (step, given) in (2..).zip([true, false, true, false, true, false]) {
            transfer((&a, &b, "b"), step, given);
        }
    });
    until_connections(&a, "b", 1);
    until_connections(&b, "a", 1);
    transfer((&b, &a, "a"), 20, false);
    a.destroy().unwrap();
    b.destroy().unwrap();
    link("up");
}

#[test]
fn either_side_may_want_only_one() {
    for (ours, theirs, kind) in [
        (1, 4, ProviderKind::Tcp),
        (4, 1, ProviderKind::Tcp),
        // It copies by both ends already.
        (4, 4, ProviderKind::Shm),
    ] {
        let (a, b) = pair(config("a", kind, ours), config("b", kind, theirs));
        a.connect("b", Some(LONG)).unwrap();
        transfer((&a, &b, "b"), 1, false);
        transfer((&b, &a, "a"), 2, true);
        assert_eq!(a.peer_info("b").unwrap().channels, 1);
        assert_eq!(b.peer_info("a").unwrap().channels, 1);
        assert_eq!(rail_bytes(&a) + rail_bytes(&b), 0);
        a.destroy().unwrap();
        b.destroy().unwrap();
    }
}

/// Connections pass through it; all but the first break after so many bytes.
fn proxy(to: String, bytes: usize, broken: Arc<AtomicUsize>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for (number, near) in listener.incoming().enumerate() {
            let (Ok(near), Ok(far)) = (near, TcpStream::connect(&to)) else { return };
            for (mut from, mut into) in [
                (near.try_clone().unwrap(), far.try_clone().unwrap()),
                (far.try_clone().unwrap(), near.try_clone().unwrap()),
            ] {
                let broken = broken.clone();
                std::thread::spawn(move || {
                    let (mut left, mut buffer) = (bytes, vec![0; 64 << 10]);
                    while let Ok(n @ 1..) = from.read(&mut buffer) {
                        if number > 0 && n >= left {
                            broken.fetch_add(1, Ordering::SeqCst);
                            break;
                        }
                        left = left.saturating_sub(n);
                        if into.write_all(&buffer[..n]).is_err() {
                            break;
                        }
                    }
                    let _ = (from.shutdown(Shutdown::Both), into.shutdown(Shutdown::Both));
                });
            }
        }
    });
    address
}

/// Of three connections two break in the middle of a transfer, which ends well; so do those after it.
#[test]
fn connections_that_break_hand_their_part_to_the_others() {
    for given in [false, true] {
        let (a, b) = ("a", "b");
        let a = Manager::new(config(a, ProviderKind::Tcp, 3)).unwrap();
        let b = Manager::new(config(b, ProviderKind::Tcp, 3)).unwrap();
        let broken = Arc::new(AtomicUsize::new(0));
        let listens = b.listen("127.0.0.1:0").unwrap();
        a.add_peer("b", &proxy(listens, 1 << 20, broken.clone())).unwrap();
        a.connect("b", Some(LONG)).unwrap();
        until_connections(&a, "b", 3);
        until_connections(&b, "a", 3);
        for step in 0..4 {
            transfer((&a, &b, "b"), step, given);
        }
        assert!(broken.load(Ordering::SeqCst) >= 2);
        until_connections(&a, "b", 1);
        until_connections(&b, "a", 1);
        let stats = a.stats_json().unwrap();
        assert!(stats.contains("\"internal_ends\":0"), "{stats}");
        a.destroy().unwrap();
        b.destroy().unwrap();
    }
}

/// The same of messages, which are read or written.
#[test]
fn connections_that_break_in_a_message_hand_their_part_to_the_others() {
    for (protocol, there) in [
        (Protocol::DirectGet, false),
        (Protocol::DirectPut, false),
        (Protocol::DirectGet, true),
        (Protocol::DirectPut, true),
    ] {
        let of = |name| {
            let protocol = protocol as u32;
            Manager::new(Config { protocol, ..config(name, ProviderKind::Tcp, 3) }).unwrap()
        };
        let (a, b) = (of("a"), of("b"));
        let broken = Arc::new(AtomicUsize::new(0));
        let listens = b.listen("127.0.0.1:0").unwrap();
        a.add_peer("b", &proxy(listens, 1 << 20, broken.clone())).unwrap();
        a.connect("b", Some(LONG)).unwrap();
        until_connections(&a, "b", 3);
        until_connections(&b, "a", 3);
        for tag in 0..4 {
            match there {
                true => message((&b, &a, "b"), tag),
                false => message((&a, &b, "a"), tag),
            }
        }
        assert!(broken.load(Ordering::SeqCst) >= 2, "{protocol:?}, there: {there}");
        until_connections(&a, "b", 1);
        until_connections(&b, "a", 1);
        assert!(rail_bytes(&a) + rail_bytes(&b) > 0);
        a.destroy().unwrap();
        b.destroy().unwrap();
    }
}

/// Whoever names a peer's address again while its rails are dialled loses none.
#[test]
fn a_peer_that_is_named_again_has_all_its_connections() {
    let (a, b) = pair(config("a", ProviderKind::Tcp, 8), config("b", ProviderKind::Tcp, 8));
    let address = b.export_address().unwrap();
    a.connect("b", Some(LONG)).unwrap();
    let begun = Instant::now();
    while a.peer_info("b").unwrap().channels != 8 {
        a.import_address(&address).unwrap();
        let have = a.peer_info("b").unwrap().channels;
        assert!(begun.elapsed() < Duration::from_secs(20), "{have} connections, and not 8");
    }
    transfer((&a, &b, "b"), 1, false);
    a.destroy().unwrap();
    b.destroy().unwrap();
}

/// Both ends of a TCP connection of this process, the accepted one at `port`.
fn ends_of_a_connection_to(port: u16) -> [i32; 2] {
    let name = |fd: i32, of: unsafe extern "C" fn(i32, *mut libc::sockaddr, *mut u32) -> i32| {
        // SAFETY: zeros are an address; its size is said.
        let (mut at, mut len) = (unsafe { std::mem::zeroed::<libc::sockaddr_in>() }, 16);
        // SAFETY: room for so many bytes; a descriptor that is no socket is refused.
        let code = unsafe { of(fd, (&raw mut at).cast(), &mut len) };
        (code == 0 && at.sin_family == libc::AF_INET as u16).then(|| u16::from_be(at.sin_port))
    };
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let fds: Vec<i32> =
        entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect();
    let accepted = |fd: &i32| name(*fd, libc::getsockname) == Some(port);
    let with_peer = |fd: i32| Some((fd, name(fd, libc::getpeername)?));
    let (one, peer) = fds.iter().copied().filter(accepted).find_map(with_peer).unwrap();
    let other = fds.iter().find(|&&fd| name(fd, libc::getsockname) == Some(peer)).unwrap();
    [one, *other]
}

/// A connection on which nothing comes through, so that not even a sign of life is acknowledged, while others speak.
#[test]
fn a_silent_connection_does_not_keep_a_manager_that_ends() {
    let named = |name| Manager::new(config(name, ProviderKind::Tcp, 4)).unwrap();
    let (a, b) = (named("a"), named("b"));
    let address = b.listen("127.0.0.1:0").unwrap();
    a.add_peer("b", &address).unwrap();
    transfer((&a, &b, "b"), 1, true);
    until_connections(&b, "a", 4);
    let port = address.rsplit(':').next().unwrap().parse().unwrap();
    let nothing = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 };
    let filter = libc::sock_fprog { len: 1, filter: (&raw const nothing).cast_mut() };
    for fd in ends_of_a_connection_to(port) {
        let len = size_of_val(&filter) as u32;
        let at = (&raw const filter).cast();
        // SAFETY: a program of one instruction, that lives until the call has copied it.
        let code =
            unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, at, len) };
        assert_eq!(code, 0, "SO_ATTACH_FILTER: {}", std::io::Error::last_os_error());
    }
    // Until it is asked for a sign of life.
    std::thread::sleep(Duration::from_millis(2500));
    let begun = Instant::now();
    b.destroy().unwrap();
    let took = begun.elapsed();
    assert!(took > Duration::from_millis(900), "nothing was silent: {took:?}");
    assert!(took < Duration::from_secs(4), "{took:?}: the others' words were taken for this one's");
    a.destroy().unwrap();
}
