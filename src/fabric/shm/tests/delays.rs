//! What a peer leaves, or does not, holds up no poll and no sleeper.

use super::*;
use crate::fabric::shm::stream::SLOTS;

/// Polls while a peer does something again and again; `count` tells how much of that was taken. The most of one poll.
fn most_of_a_poll(
    good: &mut ShmAdapter,
    mut deed: impl FnMut() + Send,
    count: impl Fn(&mut ShmAdapter) -> u64,
) -> u64 {
    let (begun, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                deed();
                begun.store(true, Ordering::Relaxed);
            }
        });
        while !begun.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        let mut most = 0;
        // What polls without end is stopped here: the peer is, too.
        for _ in 0..1000 {
            let before = count(good);
            let mut events = Vec::new();
            good.poll(&mut events);
            good.housekeeping(&mut events);
            if events.iter().any(|e| matches!(e, Event::Down { .. })) {
                break;
            }
            most = most.max(count(good) - before);
            std::thread::yield_now();
        }
        done.store(true, Ordering::Relaxed);
        most
    })
}

fn job(op: u64) -> Job {
    Job { op, addr: 0, len: 4096, done: 0, rkey: None, denied: false, optional: false }
}

/// The bytes of copies are what a poll counts.
#[test]
fn r05_a_slot_without_content_ends_the_endpoint() {
    let (mut good, mut evil) = (open(None), open(None));
    let (_, e) = connect(&mut good, &mut evil);
    let hostile = link(&mut evil, e);
    hostile.open_stream().unwrap();
    hostile.out.filled(&job(0), 0);
    hostile.tx.control().stream_put.store(1, Ordering::Relaxed);
    let mut memory = vec![0u8; 4096];
    let base = memory.as_mut_ptr().addr() as u64;
    // SAFETY: `memory` outlives the adapters.
    let mr = unsafe { good.register(base, 4096, Access::all()) }.unwrap();
    let to = Write { dst: base, rkey: mr.rkey, imm: 0 }.encode();
    let from = ContentAt { at: 0, len: 4096, pool: 0 }.encode();
    let mut slot = hostile.tx.reserve(to.len() + from.len(), hostile.rx.control()).unwrap();
    slot.put(&to);
    slot.put(&from);
    slot.publish(kind::WRITE, wire::FROM_STREAM);
    let mut events = Vec::new();
    good.poll(&mut events);
    assert!(matches!(&events[..], [Event::Down { .. }]), "{events:?}");
}

/// A WRITE is fed by the stream, and the peer puts slots of another that has ended, as fast as they are taken.
#[test]
fn r05_slots_that_nobody_needs_hold_up_no_poll() {
    let (mut good, mut evil) = (open(None), open(None));
    let (g, e) = connect(&mut good, &mut evil);
    let mut memory = vec![0u8; 4096];
    let base = memory.as_mut_ptr().addr() as u64;
    // SAFETY: `memory` outlives the adapters.
    let mr = unsafe { good.register(base, 4096, Access::all()) }.unwrap();
    // SAFETY: as above.
    let local = unsafe { Mem::new(base, 0, 0) };
    evil.write(e, 1, local, Remote { addr: base, rkey: mr.rkey }, None).unwrap();
    wait_done(&mut evil, &mut good).unwrap();
    let hostile = link(&mut evil, e);
    hostile.open_stream().unwrap();
    let to = Write { dst: base, rkey: mr.rkey, imm: 0 }.encode();
    let from = ContentAt { at: 0, len: 4096, pool: 0 }.encode();
    let mut slot = hostile.tx.reserve(to.len() + from.len(), hostile.rx.control()).unwrap();
    slot.put(&to);
    slot.put(&from);
    slot.publish(kind::WRITE, wire::FROM_STREAM);
    // Of WRITE 0, which has ended.
    (0..SLOTS).for_each(|_| hostile.out.filled(&job(0), 1));
    let deed = move || {
        let taken = ring::load64(&hostile.theirs().stream_taken);
        hostile.tx.control().stream_put.store(taken + SLOTS as u64, Ordering::Relaxed);
    };
    let most = most_of_a_poll(&mut good, deed, |good| link(good, g).into.taken);
    assert!((1..=32).contains(&most), "{most} slots in one poll");
}

/// The same with messages on the socket.
#[test]
fn r05_messages_on_the_socket_hold_up_no_poll() {
    let (mut good, mut evil) = (open(None), open(None));
    let (_, e) = connect(&mut good, &mut evil);
    let hostile = link(&mut evil, e);
    let message = wire::SocketMessage::PoolGone { id: 1 }.encode();
    let sent = AtomicU64::new(0);
    let deed = || {
        if socket::send(&hostile.sock, &message, &[]).is_ok() {
            sent.fetch_add(1, Ordering::Relaxed);
        }
    };
    let most = most_of_a_poll(&mut good, deed, |_| sent.load(Ordering::Relaxed));
    assert!(most < 8192, "{most} messages in one poll");
}

/// The READ is seen once the WRITE before it is in place, behind the look at what is to be answered.
#[test]
fn r01_who_owes_an_answer_does_not_sleep() {
    let (mut a, mut b) = (open(Some("ring")), open(Some("ring")));
    let (ea, eb) = connect(&mut a, &mut b);
    let mut memory = vec![1u8; 8192];
    let base = memory.as_mut_ptr().addr() as u64;
    // SAFETY: `memory` outlives the adapters.
    let rkey = unsafe { b.register(base, 8192, Access::all()) }.unwrap().rkey;
    let mut own = vec![2u8; 4096];
    // SAFETY: `own` outlives the adapters.
    let mem = |at: usize| unsafe { Mem::new(own.as_mut_ptr().addr() as u64 + at as u64, 8, 0) };
    let mut mem = mem;
    a.write(ea, 1, mem(0), Remote { addr: base, rkey }, None).unwrap();
    a.read(ea, 2, mem(64), Remote { addr: base + 4096, rkey }).unwrap();
    a.poll(&mut Vec::new());
    b.poll(&mut Vec::new());
    let sleeps = b.arm();
    let owes = link(&mut b, eb).asks.len();
    assert!(!sleeps || owes == 0, "it sleeps and owes {owes} answers");
}

/// A call posts while whoever drives sleeps, by what was armed before: what only a poll begins has to be told, so that somebody polls.
#[test]
fn r01_what_a_call_posts_for_the_next_poll_is_told() {
    const LEN: u64 = 64 << 10;
    let mut memory = vec![0u8; 2 * LEN as usize];
    let base = memory.as_mut_ptr().addr() as u64;
    for (copy, writes) in [(None, false), (Some("ring"), false), (Some("ring"), true)] {
        let (mut a, mut b) = (open(copy), open(copy));
        a.leave_moves();
        let (ea, _) = connect(&mut a, &mut b);
        // SAFETY: `memory` outlives the adapters.
        let mr = unsafe { b.register(base, LEN, Access::all()) }.unwrap();
        // SAFETY: as above.
        let local = unsafe { Mem::new(base + LEN, LEN, 0) };
        let remote = Remote { addr: base, rkey: mr.rkey };
        let mut events = Vec::new();
        while !a.arm() {
            a.poll(&mut events);
        }
        match writes {
            true => a.write(ea, 1, local, remote, None).unwrap(),
            false => a.read(ea, 1, local, remote).unwrap(),
        }
        assert!(a.flush(), "{copy:?}, a WRITE: {writes}");
    }
}

pub(super) fn is_readable(adapter: &ShmAdapter) -> bool {
    let mut entry = libc::pollfd { fd: adapter.fd().unwrap(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry.
    unsafe { libc::poll(&mut entry, 1, 0) == 1 }
}

/// A READ waits for room to be asked for. Room that came went to messages, which did not have to wait: the READ does.
#[test]
fn r01_who_waits_for_room_is_told_though_others_found_some() {
    let (mut a, mut b) = (open(Some("ring")), open(Some("ring")));
    let (ea, _) = connect(&mut a, &mut b);
    let mut memory = vec![1u8; 4096];
    let base = memory.as_mut_ptr().addr() as u64;
    // SAFETY: `memory` outlives the adapters.
    let rkey = unsafe { b.register(base, 4096, Access::all()) }.unwrap().rkey;
    let mut own = vec![2u8; 64];
    // SAFETY: `own` outlives the adapters.
    let mem = unsafe { Mem::new(own.as_mut_ptr().addr() as u64, 8, 0) };
    let fill = |a: &mut ShmAdapter| {
        for len in [1000, 40] {
            loop {
                let link = link(a, ea);
                if link.tx.room(len, link.rx.control()).is_err() {
                    break;
                }
                a.send(ea, &[&vec![7; len]]).unwrap();
            }
        }
    };
    fill(&mut a);
    a.read(ea, 1, mem, Remote { addr: base, rkey }).unwrap();
    a.poll(&mut Vec::new());
    while link(&mut a, ea).tx.room(1000, link(&mut b, EpId(1)).tx.control()).is_err() {
        b.poll(&mut Vec::new());
    }
    fill(&mut a);
    assert!(a.arm());
    for _ in 0..20 {
        b.poll(&mut Vec::new());
        b.arm();
    }
    assert!(is_readable(&a), "nobody says that there is room");
    assert!(wait_done(&mut a, &mut b).is_ok());
}

/// A descriptor whose close takes for ever, and more of them behind it: they do not fill this process's table.
#[test]
fn r13_descriptors_that_wait_to_be_closed_are_bounded() {
    let (mut good, mut evil) = (open(None), open(None));
    let (g, e) = connect(&mut good, &mut evil);
    assert_eq!(good.core.closer.held_up(), 0);
    let fd = std::fs::File::open("/dev/null").unwrap();
    let mut events = Vec::new();
    let mut pass = |good: &mut ShmAdapter, id, events: &mut Vec<Event>| {
        let message = wire::SocketMessage::Pool { id, len: 4096 }.encode();
        let _ = socket::send(&link(&mut evil, e).sock, &message, &[fd.as_raw_fd()]);
        good.housekeeping(events);
    };
    (0..70).for_each(|id| pass(&mut good, id, &mut events));
    assert!(events.is_empty(), "a thread that is late is waited for: {events:?}");
    let mut id = 70;
    while events.is_empty() {
        pass(&mut good, id, &mut events);
        id += 1;
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let waiting = good.core.closer.held_up();
    assert!((32..80).contains(&waiting), "{waiting} descriptors wait");
    assert!(matches!(&events[..], [Event::Down { ep, .. }] if *ep == g), "{events:?}");
    // Nobody else is let in who may bring some.
    let _silent = nest::dial(good.greeter.home()).unwrap();
    good.housekeeping(&mut events);
    assert!(good.greeter.strangers().is_empty());
}

/// Room is made for who comes, and for nobody else.
#[test]
fn r13_a_stranger_goes_only_when_another_comes() {
    let mut good = open(None);
    let mut silent: Vec<OwnedFd> = Vec::new();
    for count in [100, 156] {
        silent.extend((0..count).map(|_| nest::dial(good.greeter.home()).unwrap()));
        for _ in 0..20 {
            good.housekeeping(&mut Vec::new());
        }
    }
    assert_eq!(good.greeter.strangers().len(), silent.len());
}
