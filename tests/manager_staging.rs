//! Content in ordinary memory on shm: the sender copies it to the pool, and it goes from there.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rdma_transport::api::{Meta, Protocol, RecvOptions, SendDone, Target, Tensor};
use rdma_transport::config::{Config, Progress};
use rdma_transport::engine::front::message::{
    Memory, MessageEnd, Mode, OnMessage, Party, Sending, Wanted,
};
use rdma_transport::fabric::ProviderKind;
use rdma_transport::manager::{Manager, Post, Received, Timeout, Where};
use rdma_transport::protocol::message::{Envelope, Extra};

const LONG: Duration = Duration::from_secs(120);
/// Short enough to be copied wherever the processors are.
const LEN: usize = 24 << 10;

/// Two managers that are driven by hand, and know each other.
fn both() -> (Arc<Manager>, Arc<Manager>) {
    let new = |name: &str| {
        let (provider, progress) = (Some(ProviderKind::Shm), Progress::Manual);
        Manager::new(Config { name: name.into(), provider, progress, ..Config::default() }).unwrap()
    };
    let (alpha, beta) = (new("alpha"), new("beta"));
    let address = alpha.listen("127.0.0.1:0").unwrap();
    beta.add_peer("alpha", &address).unwrap();
    (alpha, beta)
}

fn drive(all: &[&Manager], what: &str, mut until: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !until() {
        assert!(Instant::now() < end, "{what}");
        all.iter().for_each(|m| drop(m.progress()));
    }
}

/// A tensor of this key, from a waiting receive of beta's; `between`: once it was sent.
fn tensor(
    alpha: &Manager,
    beta: &Manager,
    key: &str,
    from: &mut [u8],
    between: impl FnOnce(&mut [u8]),
) -> Vec<u8> {
    let (tx, rx) = mpsc::channel();
    let (sent, told) = mpsc::channel();
    let mut got = vec![0u8; from.len()];
    let target = Target::Given { addr: got.as_mut_ptr() as u64, len: got.len() as u64 };
    let options = RecvOptions { timeout: Some(LONG), target, device: 0, keep: false };
    let done: rdma_transport::api::RecvDone =
        Box::new(move |result, _| drop(tx.send(result.map(drop))));
    // SAFETY: the destination stays until the receive has ended.
    unsafe { beta.recv_async(Some("alpha"), key.as_bytes(), 1, options, done) }.unwrap();
    let turns = Instant::now();
    drive(&[alpha, beta], "the request", || turns.elapsed() > Duration::from_millis(200));
    let mut meta = Meta { dtype: 1, nbytes: from.len() as u64, ..Default::default() };
    meta.dims.push(from.len() as i64);
    let tensor = Tensor { meta, addr: from.as_ptr() as u64, device: 0 };
    let done: SendDone = Box::new(move |result, _| drop(sent.send(result)));
    // SAFETY: the memory stays until the send has ended.
    unsafe { alpha.send(key.as_bytes(), 1, tensor, None, Some(done.into())) }.unwrap();
    between(from);
    drive(&[alpha, beta], "the receive", || match rx.try_recv() {
        Ok(result) => result.map(|()| true).unwrap(),
        Err(_) => false,
    });
    drive(&[alpha, beta], "the send", || told.try_recv().is_ok());
    got
}

/// What a send leaves in its memory is not what arrives: that was copied within the call. (Applications may not rely on it.)
#[test]
fn a_tensor_is_copied_by_the_call_that_sends_it() {
    let (alpha, beta) = both();
    // The first connects, and the second goes with the metadata known.
    tensor(&alpha, &beta, "first", &mut vec![1; LEN], |_| ());
    let got = tensor(&alpha, &beta, "second", &mut vec![2; LEN], |memory| memory.fill(0xEE));
    assert!(got.iter().all(|&b| b == 2));
}

#[test]
fn a_message_is_copied_by_the_call_that_sends_it() {
    let (alpha, beta) = both();
    tensor(&alpha, &beta, "connects", &mut [1; 8], |_| ());
    let (to, from) = (alpha.peer_lookup("beta").unwrap(), beta.peer_lookup("alpha").unwrap());
    // Longer than what rides along at all times, some of them short enough to be copied before that is known, or to ride along while there is
    // much room.
    let lengths =
        [LEN, (11 << 10) + 500, 12 << 10, (12 << 10) + 1, 33 << 10, (33 << 10) + 1, 40 << 10];
    for round in 0..140u8 {
        let len = lengths[usize::from(round) % lengths.len()];
        let mut content = vec![round; len];
        let mut got = vec![0u8; len];
        let at = |bytes: &mut [u8]| {
            Where::Whole(Memory { addr: bytes.as_mut_ptr() as u64, len: len as u64, device: 0 })
        };
        let post = Post {
            to,
            incarnation: 0,
            envelope: Envelope { comm: 0, tag: 7 },
            extra: &Extra::NONE,
            mode: Mode::Standard,
            timeout: Timeout::After(LONG),
        };
        // SAFETY: both memories stay until their operations have ended.
        let (send, recv) = unsafe {
            let send = alpha.message_isend(&post, at(&mut content), OnMessage::Asked).unwrap();
            content.fill(0xEE);
            let wanted = Wanted { from, comm: 0, tag: 7, mask: u64::MAX };
            (send, beta.message_irecv(wanted, at(&mut got), Timeout::After(LONG), OnMessage::Asked))
        };
        let end = match recv.unwrap() {
            Received::Done(end) => end,
            Received::Begun(id) => wait(&alpha, &beta, id),
        };
        assert_eq!((end.len, end.party), (len as u64, Party::peer(from.index().unwrap())));
        assert!(got.iter().all(|&b| b == round), "round {round}");
        match send {
            Sending::Begun(send) => _ = wait(&beta, &alpha, send),
            _ => assert!(len <= 33 << 10, "{len} bytes are gone before the receiver has them"),
        }
    }
}

/// The end of an operation of the second.
fn wait(other: &Manager, own: &Manager, id: u64) -> MessageEnd {
    let mut end = None;
    let mut ids = [id];
    drive(&[other, own], "a message", || {
        let found = own.message_wait(
            &mut ids,
            rdma_transport::manager::Collect::All,
            Timeout::After(Duration::from_millis(1)),
            |_, e| end = Some(e),
        );
        matches!(found, Ok(1))
    });
    let end = end.unwrap();
    end.result.clone().unwrap();
    end
}

/// How a tensor of this length went from there to here.
fn way(alpha: &Manager, beta: &Manager, key: &str, from: u64, to: u64, len: u64) -> Protocol {
    let (tx, rx) = mpsc::channel();
    let options = RecvOptions {
        timeout: Some(LONG),
        target: Target::Given { addr: to, len },
        device: 0,
        keep: false,
    };
    let done: rdma_transport::api::RecvDone =
        Box::new(move |result, info| drop(tx.send(result.map(|_| info.protocol))));
    // SAFETY: the destination stays until the receive has ended.
    unsafe { beta.recv_async(Some("alpha"), key.as_bytes(), 1, options, done) }.unwrap();
    let mut meta = Meta { dtype: 1, nbytes: len, ..Default::default() };
    meta.dims.push(len as i64);
    let tensor = Tensor { meta, addr: from, device: 0 };
    let (sent, told) = mpsc::channel();
    let done: SendDone = Box::new(move |result, _| drop(sent.send(result)));
    // SAFETY: the memory stays until the send has ended.
    unsafe { alpha.send(key.as_bytes(), 1, tensor, None, Some(done.into())) }.unwrap();
    let mut ended = None;
    drive(&[alpha, beta], "the receive", || {
        ended = rx.try_recv().ok();
        ended.is_some()
    });
    drive(&[alpha, beta], "the send", || told.try_recv().is_ok());
    ended.unwrap().unwrap()
}

/// Above the eager limit, 4 KiB: in a message up to 11 KiB, which both ends copy; but from pool to pool it is copied once.
#[test]
fn a_short_tensor_rides_along_unless_both_ends_are_of_the_pool() {
    let (alpha, beta) = both();
    tensor(&alpha, &beta, "connects", &mut [1; 8], |_| ());
    const LEN: u64 = 11 << 10;
    let (ours, mut theirs) = (vec![7u8; 2 * LEN as usize], vec![0u8; 2 * LEN as usize]);
    let pool = |manager: &Manager| manager.mem_alloc(2 * LEN as usize).unwrap();
    let from = [ours.as_ptr() as u64, pool(&alpha)];
    let to = [theirs.as_mut_ptr() as u64, pool(&beta)];
    // The first of the pool is passed with its segment.
    way(&alpha, &beta, "passes", from[1], to[1], 2 * LEN);
    for (pooled, at) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        for len in [4097, LEN - 1, LEN] {
            let key = format!("{pooled} {at} {len}");
            let went = way(&alpha, &beta, &key, from[pooled], to[at], len);
            let both = pooled == 1 && at == 1;
            assert_eq!(went, if both { Protocol::DirectPut } else { Protocol::Eager }, "{key}");
        }
        let went = way(&alpha, &beta, &format!("{pooled} {at}"), from[pooled], to[at], LEN + 1);
        assert_ne!(went, Protocol::Eager, "{pooled} {at}");
    }
}
