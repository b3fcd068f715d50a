//! A peer that breaks every rule: the other side stays whole, at worst the endpoint goes down.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicBool, AtomicU64};

use super::ring::MAX_PAYLOAD;
use super::*;
use crate::fabric::One;
use crate::fabric::shm::stream::Job;
use crate::fabric::shm::wire::{Ask, ContentAt, Write, kind};
use crate::os::epoll;

mod behind;
mod delays;
mod left;
mod life;
mod local;
mod nests;
mod pools;
mod shared;
mod short;
mod unread;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn one_of<T: Copy>(&mut self, from: &[T]) -> T {
        from[(self.next() % from.len() as u64) as usize]
    }
}

fn open(shm_copy: Option<&str>) -> ShmAdapter {
    let shm_copy = shm_copy.map(str::to_owned);
    ShmAdapter::open(&Config { shm_copy, ..Config::default() }).unwrap()
}

fn connect(a: &mut ShmAdapter, b: &mut ShmAdapter) -> (EpId, EpId) {
    let (ea, eb) = (a.create("b").unwrap(), b.create("a").unwrap());
    let (to_a, to_b) = (a.address(ea).unwrap(), b.address(eb).unwrap());
    a.connect(ea, &to_b, true, None).unwrap();
    b.connect(eb, &to_a, false, None).unwrap();
    let mut events = Vec::new();
    while events.iter().filter(|e| matches!(e, Event::Connected(_))).count() < 2 {
        a.poll(&mut events);
        b.poll(&mut events);
        assert!(!events.iter().any(|e| matches!(e, Event::Down { .. })), "{events:?}");
    }
    (ea, eb)
}

fn link(adapter: &mut ShmAdapter, ep: EpId) -> &mut Link {
    adapter.up(ep).unwrap().0
}

/// A record with a payload that is nearly right, or anything.
fn payload(random: &mut Random, kind: u8, rkey: u32, base: u64) -> Vec<u8> {
    let edges = [0, 1, 7, 100, 4096, 1 << 20, 1 << 41, u64::MAX - 5, u64::MAX];
    let addr = random.one_of(&[base, base + 1, base - 1, base + 4000, 0, 4096, u64::MAX - 10]);
    let len = random.one_of(&edges);
    let rkey = random.one_of(&[rkey, rkey ^ 1, 0, random.0 as u32]);
    let mut out = match kind {
        kind::WRITE_INLINE | kind::WRITE => {
            let to = Write { dst: addr, rkey, imm: 3 };
            let at = random.one_of(&[base, 0, 8, u64::MAX]);
            let pool = random.one_of(&[0, 1, u32::MAX]);
            [to.encode().to_vec(), ContentAt { at, len, pool }.encode().to_vec()].concat()
        }
        kind::READ_ASK | kind::READ_HELP => Ask { addr, len, rkey, helps: false }.encode().to_vec(),
        kind::READ_END => vec![random.next() as u8 % 4],
        kind::POOL_ASK => vec![random.next() as u8; 4],
        _ => Vec::new(),
    };
    if random.next().is_multiple_of(300) {
        out.resize((random.next() % 300) as usize, 0xA5);
    }
    out
}

/// One evil deed.
fn deed(random: &mut Random, evil: &mut Link, rkey: u32, base: u64) {
    let number = random.one_of(&[0, 1, 2, 17, 1 << 40, u64::MAX]);
    let page = evil.tx.control();
    match random.next() % 3000 {
        0 => page.consumed.store(number, Ordering::Relaxed),
        1 => page.executed.store(number, Ordering::Relaxed),
        2 => page.failed.store(number, Ordering::Relaxed),
        3 => page.stream_put.store(number, Ordering::Relaxed),
        4 => page.stream_taken.store(number, Ordering::Relaxed),
        5 => page.pulled.store(number, Ordering::Relaxed),
        6 => page.starved.store(number as u32, Ordering::Relaxed),
        7 => drop(evil.open_stream()),
        8 => page.reads_over.store(number, Ordering::Relaxed),
        9 => page.read_pulled.store(number, Ordering::Relaxed),
        _ => {
            // Mostly records that are right in form and wrong in what they name.
            let wild = random.next().is_multiple_of(300);
            let kind =
                random.one_of(if wild { &[0x50, 5, 6, 7, 200] } else { &[1, 2, 3, 3, 4, 6, 8] });
            let bytes = payload(random, kind, rkey, base);
            let flags = random.one_of(if wild { &[6, 255, 10, 8, 9] } else { &[2, 3, 4, 5] });
            if let Ok(mut slot) = evil.tx.reserve(bytes.len(), evil.rx.control()) {
                slot.put(&bytes);
                slot.publish(kind, flags);
            }
        }
    }
}

#[test]
fn a_hostile_peer_ends_its_endpoint_at_worst() {
    let mut downs = 0;
    for seed in 1..=400u64 {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let config = Config {
            shm_copy: [None, Some("ring".to_owned())][seed as usize % 2].clone(),
            ..Config::default()
        };
        let mut good = ShmAdapter::open(&config).unwrap();
        let mut evil = ShmAdapter::open(&config).unwrap();
        let (g, e) = connect(&mut good, &mut evil);
        // The middle page is open to the peer, its neighbours are not.
        let mut memory = vec![0u8; 3 * 4096];
        let base = memory.as_mut_ptr().addr() as u64 + 4096;
        // SAFETY: `memory` outlives the adapters.
        let mr = unsafe { good.register(base, 4096, Access::all()) }.unwrap();
        let mut own = vec![0x11u8; 100_000];
        // SAFETY: `own` outlives the adapters.
        let local = unsafe { Mem::new(own.as_mut_ptr().addr() as u64, 100_000, 0) };
        let mut events = Vec::new();
        for step in 0..150 {
            deed(&mut random, link(&mut evil, e), mr.rkey, base);
            if step % 7 == 0 {
                // Ours are under way meanwhile; they may fail, and end once.
                let remote = Remote { addr: base, rkey: 1 };
                let _ = good.write(g, step, local, remote, Some(1));
                let _ = good.read(g, 1000 + step, local, remote);
                let _ = good.send(g, &[b"hello"]);
            }
            // What is short is asked for by itself in every other run.
            if seed % 4 < 2
                && let One::Write(ep) = good.poll_one()
                && let Some(write) = good.take_write(ep, &mut [const { MaybeUninit::uninit() }; _])
            {
                let end = write.dst.checked_add(write.len as u64).unwrap();
                assert!(write.len == 0 || (write.dst >= base && end <= base + 4096));
                good.wrote(ep);
            }
            good.poll(&mut events);
            let down = events.iter().any(|e| matches!(e, Event::Down { .. }));
            for event in &events {
                if let Event::Message { bytes, .. } = event {
                    assert!(bytes.bytes().len() <= MAX_PAYLOAD);
                }
            }
            events.clear();
            if down {
                downs += 1;
                break;
            }
        }
        good.destroy(g);
        assert!(memory[..4096].iter().chain(&memory[8192..]).all(|&x| x == 0), "seed {seed}");
    }
    // Otherwise most deeds would not be tried, or do nothing.
    assert!((100..390).contains(&downs), "{downs} of 400 endpoints went down");
}

/// Two that always have content under way leave something of the polls to a third.
#[test]
fn busy_links_do_not_starve_another() {
    let config = Config { queue_depth: 2, ..Config::default() };
    let mut hub = ShmAdapter::open(&config).unwrap();
    let mut others: Vec<ShmAdapter> = (0..3).map(|_| ShmAdapter::open(&config).unwrap()).collect();
    let eps: Vec<_> = others.iter_mut().map(|other| connect(&mut hub, other)).collect();
    let (mut to, mut from) = (vec![0u8; 1 << 20], vec![7u8; 1 << 20]);
    let base = to.as_mut_ptr().addr() as u64;
    // SAFETY: `to` outlives the adapters.
    let rkey = unsafe { hub.register(base, 1 << 20, Access::all()) }.unwrap().rkey;
    let source = from.as_mut_ptr().addr() as u64;
    // SAFETY: `from` outlives the adapters.
    let mem = |len| unsafe { Mem::new(source, len, 0) };
    let remote = Remote { addr: base, rkey };
    let (third, quiet) = (eps[2].0, eps[2].1);
    others[2].write(quiet, 1, mem(64 << 10), remote, None).unwrap();
    others[2].send(quiet, &[b"behind"]).unwrap();
    let mut events = Vec::new();
    for _ in 0..200 {
        for (other, &(_, ep)) in others.iter_mut().zip(&eps[..2]) {
            while other.write(ep, 1, mem(1 << 20), remote, None).is_ok() {}
        }
        for other in &mut others {
            other.poll(&mut Vec::new());
        }
        events.clear();
        hub.poll(&mut events);
        if events.iter().any(|e| matches!(e, Event::Message { ep, .. } if *ep == third)) {
            return;
        }
    }
    panic!("nothing of the third came in 200 polls");
}

/// A ring in which every line begins a record has no end: no poll looks for it.
#[test]
fn a_ring_without_an_end_holds_up_no_poll() {
    let (mut good, mut evil) = (open(None), open(None));
    let (_, e) = connect(&mut good, &mut evil);
    (0..512).for_each(|line| link(&mut evil, e).tx.scribble(line, kind::SEND));
    for _ in 0..100 {
        let mut events = Vec::new();
        good.poll(&mut events);
        assert!(
            events.len() <= 2 * crate::limits::POLL_EVENTS,
            "{} events in one poll",
            events.len()
        );
    }
}

/// Polls until the endpoint is down; how many messages came before.
fn messages_until_down(adapter: &mut ShmAdapter) -> usize {
    let (mut heard, begun) = (0, std::time::Instant::now());
    while begun.elapsed().as_secs() < 20 {
        let mut events = Vec::new();
        adapter.poll(&mut events);
        for event in &events {
            match event {
                Event::Message { .. } => heard += 1,
                Event::Down { .. } => return heard,
                other => panic!("{other:?}"),
            }
        }
        adapter.arm();
    }
    panic!("the end of the peer is not seen after {heard} messages");
}

/// Its sends were reported as done. A poll takes some of what is there, and the end is found by the first of them.
#[test]
fn what_was_posted_before_the_end_is_heard() {
    // Also more than the inbox holds, of which the first poll leaves less than one takes.
    let counts = [0, 1, 32, 33, 64, 65, 100].into_iter();
    let all = counts.flat_map(|count| [(count, 500), (count, 2000)]).chain([(20, 12_000)]);
    for (count, len) in all {
        let (mut there, mut here) = (open(None), open(None));
        let (ep, _) = connect(&mut there, &mut here);
        assert!(here.arm());
        for _ in 0..count {
            there.send(ep, &[&[7; 12_000][..len]]).unwrap();
        }
        there.destroy(ep);
        assert_eq!(messages_until_down(&mut here), count);
    }
}

/// The same of one whose ring has no end.
#[test]
fn a_peer_that_is_gone_ends_though_its_ring_does_not() {
    let (mut good, mut evil) = (open(None), open(None));
    let (_, e) = connect(&mut good, &mut evil);
    assert!(good.arm());
    let lines = link(&mut evil, e).rx.lines();
    (0..lines).for_each(|line| link(&mut evil, e).tx.scribble(line, kind::SEND));
    evil.destroy(e);
    messages_until_down(&mut good);
}

/// What was handed over is what was checked, whatever the peer does to its ring afterwards.
#[test]
fn r12_a_message_does_not_change_after_it_was_taken() {
    let (mut good, mut evil) = (open(None), open(None));
    let (_, e) = connect(&mut good, &mut evil);
    let texts: Vec<Vec<u8>> = (0..20u8).map(|i| vec![i; 1 + usize::from(i) * 40]).collect();
    for text in &texts {
        evil.send(e, &[text]).unwrap();
    }
    let mut events = Vec::new();
    good.poll(&mut events);
    link(&mut evil, e).tx.spoil(0xEE);
    let seen: Vec<&[u8]> = events
        .iter()
        .map(|event| match event {
            Event::Message { bytes, .. } => bytes.bytes(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(seen, texts);
}

/// Whether a page is mapped in this process.
fn is_mapped(at: u64) -> bool {
    // SAFETY: nothing is mapped with such flags, and nothing is written back of these files.
    unsafe { libc::msync((at & !4095) as *mut _, 4096, libc::MS_ASYNC) == 0 }
}

#[test]
fn r11_a_forked_child_inherits_no_shared_memory() {
    let (mut a, mut b) = (open(None), open(None));
    let (e, _) = connect(&mut a, &mut b);
    let pool = crate::memory::pool::Pool::new(1 << 30);
    let block = pool.alloc(1 << 20).unwrap().addr() as u64;
    // One whose file was replaced.
    let renewed = sys::memfd(c"renewed", 4096).unwrap();
    let map = sys::Mapping::shared(sys::borrow(&renewed), 4096, true).unwrap();
    map.replace(sys::borrow(&renewed)).unwrap();
    let link = link(&mut a, e);
    let control = |control: &ring::Control| (&raw const *control).addr() as u64;
    let places = [
        block,
        block + (1 << 20) - 4096,
        map.ptr().addr() as u64,
        control(link.tx.control()),
        control(link.tx.control()) + 4096,
        control(link.rx.control()),
    ];
    assert!(places.iter().all(|&at| is_mapped(at)));
    // SAFETY: the child makes system calls only.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(places.iter().filter(|&&at| is_mapped(at)).count() as i32);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        status
    };
    assert_eq!(status, 0, "memory is shared with the child");
}

/// As after a fork: the descriptor that is closed here is not the last one of its socket.
#[test]
fn a_socket_that_someone_else_holds_too_is_not_watched_after_its_end() {
    for passive in [false, true] {
        let (mut own, mut other) = (open(None), open(None));
        let (e, o) = (own.create("other").unwrap(), other.create("own").unwrap());
        let (to_own, to_other) = (own.address(e).unwrap(), other.address(o).unwrap());
        own.connect(e, &to_other, !passive, None).unwrap();
        other.connect(o, &to_own, passive, None).unwrap();
        let mut events = Vec::new();
        let held = loop {
            if passive {
                // It says Hello, and never hears the answer.
                other.housekeeping(&mut events);
            }
            own.housekeeping(&mut events);
            match &own.eps[0].state {
                State::AwaitWelcome { sock, .. } => break sock.try_clone().unwrap(),
                State::AwaitReady { link } => break link.sock.try_clone().unwrap(),
                _ => {}
            }
        };
        drop(other);
        while !events.iter().any(|e| matches!(e, Event::Down { .. })) {
            own.housekeeping(&mut events);
        }
        let keys: Vec<u64> = own.core.epoll.ready(&mut [epoll::EMPTY; 64]).collect();
        assert!(keys.is_empty(), "{keys:x?} of {held:?}");
    }
}

/// Polls both until an operation of the first has ended.
fn wait_done(a: &mut ShmAdapter, b: &mut ShmAdapter) -> Result<(), Status> {
    loop {
        let mut events = Vec::new();
        a.poll(&mut events);
        b.poll(&mut Vec::new());
        for event in events {
            if let Event::Done { result, .. } = event {
                return result;
            }
        }
    }
}

#[test]
fn garbage_on_the_socket_is_refused() {
    let mut good = ShmAdapter::open(&Config::default()).unwrap();
    let ep = good.create("nobody").unwrap();
    let token = good.eps[0].token;
    let mut random = Random(99);
    let mut events = Vec::new();
    let (_, ring) = ring::Producer::create().unwrap();
    for round in 0..300 {
        let sock = nest::dial(good.greeter.home()).unwrap();
        let hello = wire::Hello { to: token, from: [9; 16], nonce_addr: 1, nonce: 2, reads: true };
        let mut bytes = wire::SocketMessage::Hello(hello).encode().to_vec();
        let at = (random.next() % 56) as usize;
        bytes[at] ^= (random.next() % 3) as u8;
        bytes.truncate(1 + (random.next() % 90) as usize);
        let fds = [ring.as_raw_fd(); 3];
        socket::send(&sock, &bytes, &fds[..round % 4]).unwrap();
        good.housekeeping(&mut events);
    }
    // Silent ones do not pile up.
    let silent: Vec<OwnedFd> = (0..600).map(|_| nest::dial(good.greeter.home()).unwrap()).collect();
    for _ in 0..20 {
        good.housekeeping(&mut events);
    }
    drop(silent);
    for _ in 0..20 {
        good.housekeeping(&mut events);
    }
    assert!(events.is_empty());
    // And the endpoint can still be reached by the right peer.
    good.destroy(ep);
    let mut other = ShmAdapter::open(&Config::default()).unwrap();
    connect(&mut good, &mut other);
}

#[test]
fn a_bad_setting_names_what_is_allowed() {
    let config = Config { shm_copy: Some("fast".to_owned()), ..Config::default() };
    let status = ShmAdapter::open(&config).unwrap_err();
    assert_eq!(status.code, Code::InvalidArgument);
    for word in ["RDMA_SHM_COPY", "fast", "pool", "cma", "ring"] {
        assert!(status.message.contains(word), "{status}");
    }
    assert_eq!(probe(), Ok(()));
}

/// Memory is the application's: what cannot be accessed there is no defect of the library.
#[test]
fn memory_that_cannot_be_accessed_is_no_defect() {
    let (mut a, mut b) = (open(None), open(None));
    let (e, _) = connect(&mut a, &mut b);
    let remote = Remote { addr: 4096, rkey: 1 };
    let status =
        link(&mut a, e).result("WRITE", super::wire::outcome::FAULT, remote, 8).unwrap_err();
    assert_eq!(status.code, Code::FailedPrecondition, "{status}");
    assert!(status.message.contains("memory of the application"), "{status}");
}

/// Also behind a copy: what the peer said last was told with that, and the WRITE that it had executed before by the next poll.
#[test]
fn what_the_peer_executed_is_told_before_what_it_said_afterwards() {
    let (mut own, mut other) = (open(None), open(None));
    let (e, o) = connect(&mut own, &mut other);
    own.leave_moves();
    let (mut here, mut there) = (vec![1u8; 1 << 16], vec![2u8; 1 << 16]);
    let (at, to) = (here.as_mut_ptr().addr() as u64, there.as_mut_ptr().addr() as u64);
    // SAFETY: both outlive the adapters.
    let (mr, mem) = unsafe {
        let regions = own.register(at, 1 << 16, Access::all()).unwrap();
        (regions, other.register(to, 1 << 16, Access::all()).unwrap())
    };
    // SAFETY: as above.
    let (mine, its) = unsafe { (Mem::new(at, 1 << 15, 0), Mem::new(to, 1 << 15, 0)) };
    other.write(o, 1, its, Remote { addr: at + (1 << 15), rkey: mr.rkey }, None).unwrap();
    let mut events = Vec::new();
    let copy = loop {
        own.poll(&mut events);
        other.poll(&mut Vec::new());
        if let Some(copy) = own.take_move(&mut events) {
            break copy;
        }
    };
    own.write(e, 2, mine, Remote { addr: to + (1 << 15), rkey: mem.rkey }, Some(3)).unwrap();
    let mut heard = Vec::new();
    while !heard.iter().any(|event| matches!(event, Event::Written { imm: 3, .. })) {
        other.poll(&mut heard);
    }
    other.send(o, &[b"goodbye"]).unwrap();
    assert!(events.is_empty());
    own.moved(copy.run(), &mut events);
    while !events.iter().any(|event| matches!(event, Event::Message { .. })) {
        let copy = own.take_move(&mut events).unwrap();
        own.moved(copy.run(), &mut events);
    }
    assert!(
        matches!(&events[..], [Event::Done { wr: 2, .. }, Event::Message { .. }]),
        "{events:?}"
    );
}
