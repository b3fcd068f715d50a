//! Memory that pages in slowly, of pairs, of unbound buffers and of tagged messages: it holds up what is in it, and nothing else.

use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use rdma_transport::api::*;
use rdma_transport::engine::front::message::{Memory, MessageEnd, Mode, OnMessage, Party, Wanted};
use rdma_transport::engine::front::pair::{Slot, Way};
use rdma_transport::fabric::ProviderKind;
use rdma_transport::manager::{Post, Timeout, Where};
use rdma_transport::protocol::message::{Envelope, Extra};
use rdma_transport::status::Code;

#[path = "support/slow_memory.rs"]
mod slow_memory;

use slow_memory::*;

/// What a pair sends is mostly short, and comes in its record: it is put in its place without the lock, too, and the memory is not free before.
#[test]
fn r19_a_slow_destination_of_a_pair_holds_up_its_own_send_only() {
    for kind in KINDS {
        let Some(dst) = slow(SMALL) else { return };
        let (a, b, other) = three(kind);
        let ends = [&a, &b].map(|node| node.m.pair_create(1, Timeout::Default).unwrap());
        let addresses =
            [(&b, ends[1]), (&a, ends[0])].map(|(n, end)| n.m.pair_address(end).unwrap());
        let (mut near, source) = ([0u8; 8], [7u8; 8]);
        let create = |node: &Node, end, way, slot, addr| {
            let slot = Slot { way, slot, addr, len: 8 };
            // SAFETY: the memory outlives the managers.
            unsafe { node.m.buffer_create(end, slot, None) }.unwrap()
        };
        let far = create(&b, ends[1], Way::Recv, 1, dst.addr);
        let first = create(&b, ends[1], Way::Recv, 2, near.as_mut_ptr() as u64);
        let sends = [2, 1].map(|slot| create(&a, ends[0], Way::Send, slot, source.as_ptr() as u64));
        a.m.pair_connect(ends[0], &addresses[0], None).unwrap();
        b.m.pair_connect(ends[1], &addresses[1], Some(LONG)).unwrap();
        // The end of the first tells that both slots are open.
        // SAFETY: as above.
        unsafe { a.m.buffer_send(sends[0], 0, 8, 0) }.unwrap();
        b.m.buffer_wait(first, Way::Recv, Timeout::After(LONG)).unwrap();
        // SAFETY: as above.
        unsafe { a.m.buffer_send(sends[1], 0, 8, 0) }.unwrap();
        dst.wait_for_fault();
        goes_on(&b.m, "b", &other.m, &format!("{kind:?}, the receiver"));
        assert_eq!(b.m.buffer_counts(far).unwrap(), (0, 0), "{kind:?}");
        let ((tx, free), m) = (mpsc::channel(), b.m.clone());
        let destroy = std::thread::spawn(move || tx.send(m.buffer_destroy(far)).unwrap());
        let early = free.recv_timeout(Duration::from_millis(300));
        dst.serve();
        assert!(early.is_err(), "{kind:?}: given back while it is written to");
        free.recv_timeout(LONG).unwrap().unwrap();
        destroy.join().unwrap();
        [b, a, other].into_iter().for_each(Node::end);
    }
}

/// Who has two receives of one slot under way, and is told of one, takes the first's place for filled.
#[test]
fn r19_the_end_of_a_receive_waits_for_the_one_before_it() {
    const LEN: u64 = 400;
    // The second message is there before its receive, or comes after it.
    for (kind, early) in KINDS.into_iter().flat_map(|kind| [(kind, true), (kind, false)]) {
        let Some(mut dst) = slow(2 * SMALL) else { return };
        dst.serve();
        // Only the first page of it will be missing.
        dst.len = SMALL;
        let (a, b, other) = three(kind);
        let (to, from) = (a.m.peer_lookup("b").unwrap(), b.m.peer_lookup("a").unwrap());
        let data = [[3u8; LEN as usize], [4u8; LEN as usize]].concat();
        // SAFETY: these outlive the managers.
        let (sends, receives) = unsafe {
            let sends = a.m.unbound_create(5, data.as_ptr() as u64, 2 * LEN).unwrap();
            (sends, b.m.unbound_create(5, dst.addr, 2 * SMALL as u64).unwrap())
        };
        let send = |at| a.m.unbound_send(sends, to, 9, (at, LEN), Timeout::Never).unwrap();
        let receive = |at| {
            b.m.unbound_recv(receives, &[from], 9, (at as u64, LEN), Timeout::Never).unwrap();
        };
        let wait = |limit| b.m.unbound_wait(receives, Way::Recv, Timeout::After(limit));
        // SAFETY: the mapping is alive.
        let byte = |at: usize| unsafe { (dst.addr as *const u8).add(at).read_volatile() };
        receive(0);
        dst.evict();
        send(0);
        if early {
            send(LEN);
        }
        dst.wait_for_fault();
        if early {
            std::thread::sleep(Duration::from_millis(30));
        }
        receive(SMALL);
        if !early {
            send(LEN);
        }
        let status = wait(Duration::from_millis(300)).map(|end| end.len).unwrap_err();
        assert_eq!(status.code, Code::DeadlineExceeded, "{kind:?}, {early}: {status}");
        dst.serve();
        for (at, value) in [(0, 3), (SMALL, 4)] {
            wait(LONG).unwrap().result.unwrap();
            let got = [byte(at), byte(at + LEN as usize - 1)];
            assert_eq!(got, [value; 2], "{kind:?}, {early}: at {at}");
        }
        [b, a, other].into_iter().for_each(Node::end);
    }
}

/// A message of this tag has ended.
type Ends = Arc<Mutex<Vec<(u64, bool)>>>;

fn tell(told: &Ends) -> OnMessage {
    fn end(words: Words, end: &MessageEnd) {
        // SAFETY: the one who asked keeps it until the managers are gone.
        let told = unsafe { &*(words[0] as *const Mutex<Vec<(u64, bool)>>) };
        told.lock().unwrap().push((end.envelope.tag, end.result.is_ok()));
    }
    OnMessage::Plain(end, [Arc::as_ptr(told) as usize, 0])
}

/// The first bytes of a message by the pipeline are put in their place by the thread that heard of it, the others by whoever drives
/// meanwhile: the end comes after all.
#[test]
fn r19_the_beginning_of_a_message_that_waits_holds_up_its_end() {
    for kind in KINDS {
        let Some(dst) = slow(BIG) else { return };
        dst.serve();
        dst.evict_first(SMALL);
        let [a, b] = ["a", "b"].map(|name| Node::forced(name, kind, false, Protocol::Pipeline));
        a.knows(&b);
        a.m.connect("b", Some(LONG)).unwrap();
        let (data, mut small, told) = (vec![3u8; BIG], [0u8; 8], Ends::default());
        let whole =
            |addr: u64, len: usize| Where::Whole(Memory { addr, len: len as u64, device: 0 });
        for (tag, addr, len) in [(1, dst.addr, BIG), (2, small.as_mut_ptr() as u64, small.len())] {
            let wanted = Wanted { from: Party::ANY, comm: 0, tag, mask: u64::MAX };
            // SAFETY: the memory outlives the managers.
            unsafe { b.m.message_irecv(wanted, whole(addr, len), Timeout::Never, tell(&told)) }
                .unwrap();
        }
        let (to, sent) = (a.m.peer_lookup("b").unwrap(), Ends::default());
        // The end of the second is what the first bytes of the first are put in their place before.
        for (tag, len) in [(1, BIG), (2, 8)] {
            let (extra, envelope) = (&Extra::default(), Envelope { comm: 0, tag });
            let (mode, timeout) = (Mode::Standard, Timeout::Never);
            let post = Post { to, incarnation: 0, envelope, extra, mode, timeout };
            // SAFETY: as above.
            unsafe { a.m.message_isend(&post, whole(data.as_ptr() as u64, len), tell(&sent)) }
                .unwrap();
        }
        dst.wait_for_fault();
        // Longer than it takes for another thread to drive, and for it to get the rest.
        std::thread::sleep(Duration::from_secs(2));
        let early = told.lock().unwrap().clone();
        assert!(
            early.iter().all(|(tag, _)| *tag != 1),
            "{kind:?}: {early:?} before its first bytes"
        );
        dst.serve_first(SMALL);
        let begun = Instant::now();
        while told.lock().unwrap().len() < 2 {
            assert!(begun.elapsed() < LONG, "{kind:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        // SAFETY: the whole of it is there.
        let got = unsafe { std::slice::from_raw_parts(dst.addr as *const u8, BIG) };
        assert!(got == data && small == [3; 8], "{kind:?}");
        assert!(told.lock().unwrap().iter().all(|(_, well)| *well));
        [a, b].into_iter().for_each(Node::end);
    }
}

/// A call that reads a buffer's memory has begun no send yet: who destroys the buffer waits for it all the same.
#[test]
fn a_buffer_is_not_free_while_a_call_reads_it() {
    let Some(source) = slow(SMALL) else { return };
    let a = Node::with("a", ProviderKind::Tcp, false);
    let pair = a.m.pair_create(1, Timeout::Default).unwrap();
    let slot = Slot { way: Way::Send, slot: 1, addr: source.addr, len: SMALL as u64 };
    // SAFETY: the mapping outlives the manager.
    let buffer = unsafe { a.m.buffer_create(pair, slot, None) }.unwrap();
    let (from, to) = (a.m.clone(), a.m.clone());
    // SAFETY: as above.
    let call = std::thread::spawn(move || unsafe { from.buffer_send(buffer, 0, SMALL as u64, 0) });
    source.wait_for_fault();
    let (tx, free) = mpsc::channel();
    let destroy = std::thread::spawn(move || tx.send(to.buffer_destroy(buffer)).unwrap());
    while a.m.buffer_counts(buffer).is_ok() {
        std::thread::yield_now();
    }
    // Longer than it waits for a connection, which is not what uses the memory.
    let early = free.recv_timeout(Duration::from_millis(2500));
    source.serve();
    assert!(early.is_err(), "given back while a call reads it");
    free.recv_timeout(LONG).unwrap().unwrap();
    let end = call.join().unwrap().unwrap_err();
    assert_eq!(end.code, Code::NotFound, "{end}");
    destroy.join().unwrap();
    assert_eq!(a.m.pair_facts(pair).unwrap().buffers, 0);
    a.end();
}
