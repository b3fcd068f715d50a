//! A process that is killed, or a manager that ends, and what it had posted before: that a copy of content takes longer than one turn
//! must not cost what comes behind it. The killed process is this program again.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdma_transport::api::*;
use rdma_transport::config::{Config, Progress};
use rdma_transport::engine::front::message::{
    Envelope, Memory, MessageEnd, Mode, OnMessage, Party, Sending, Wanted,
};
use rdma_transport::fabric::ProviderKind;
use rdma_transport::manager::{Manager, Post, Timeout, Where};
use rdma_transport::protocol::message::Extra;
use rdma_transport::status::{Code, Status};

const LONG: Duration = Duration::from_secs(60);
const ROLE: &str = "RDMA_TEST_LAST_WORDS";
/// More than the copies of one turn.
const CONTENT: u64 = 64 << 20;
const WORDS: &[u8] = b"last words";

fn manager(name: &str, progress: Progress) -> Arc<Manager> {
    let config = Config {
        name: name.into(),
        provider: Some(ProviderKind::Shm),
        progress,
        ..Config::default()
    };
    Manager::new(config).unwrap()
}

fn tensor(addr: u64, nbytes: u64) -> Tensor {
    let meta = Meta { dtype: 1, nbytes, ..Default::default() };
    Tensor { meta, addr, device: 0 }
}

/// A line on standard output that the test harness does not mix with its own.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n@{line}").unwrap();
    out.flush().unwrap();
}

fn has_line() -> bool {
    let mut entry = libc::pollfd { fd: 0, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&mut entry, 1, 0) > 0 }
}

/// The killed process: has both sent, content out of its pool first, and waits for its end.
#[test]
fn child_with_last_words() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let m = manager("child", Progress::Manual);
    say(&format!("address {}", m.listen("127.0.0.1:0").unwrap()));
    let addr = m.mem_alloc(CONTENT as usize).unwrap();
    // SAFETY: just allocated, of this length.
    unsafe { (addr as *mut u8).write_bytes(7, CONTENT as usize) };
    // SAFETY: pool memory, and static memory; both live until the process ends.
    unsafe {
        // The first makes the pool known to the other end.
        for step in [0, 1] {
            m.send(b"content", step, tensor(addr, CONTENT), None, None).unwrap();
        }
        m.send(b"words", 1, tensor(WORDS.as_ptr() as u64, WORDS.len() as u64), None, None).unwrap();
    }
    // Until there is a line; both requests are in the ring by then, and these turns answer them.
    let mut turns = 0;
    while turns < 100 {
        m.progress().unwrap();
        turns += u32::from(turns > 0 || has_line());
    }
    say("posted .");
    loop {
        std::thread::park();
    }
}

type Ended = mpsc::Receiver<Result<u64, Status>>;

fn receive(m: &Manager, key: &[u8], step: i64, memory: &mut [u8]) -> Ended {
    receive_from(m, "child", key, step, memory)
}

fn receive_from(m: &Manager, peer: &str, key: &[u8], step: i64, memory: &mut [u8]) -> Ended {
    let (tx, ended) = mpsc::channel();
    let target = Target::Given { addr: memory.as_mut_ptr() as u64, len: memory.len() as u64 };
    let options = RecvOptions { timeout: Some(LONG), target, device: 0, keep: false };
    let done: RecvDone = Box::new(move |r, _| drop(tx.send(r.map(|got| got.meta.nbytes))));
    // SAFETY: the memory outlives the manager.
    unsafe { m.recv_async(Some(peer), key, step, options, done) }.unwrap();
    ended
}

#[test]
fn a_small_send_behind_a_long_copy_survives_its_sender() {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_with_last_words", "--nocapture"])
        .env(ROLE, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = process.stdin.take().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let mut expect = |what: &str| loop {
        let line = lines.next().expect("the child ended").unwrap();
        if let Some(rest) = line.strip_prefix(&format!("@{what} ")) {
            return rest.to_owned();
        }
    };
    let m = manager("m", Progress::Manual);
    m.event_fd().unwrap();
    m.add_peer("child", &expect("address")).unwrap();
    m.connect("child", Some(LONG)).unwrap();
    let (mut content, mut words) = (vec![0u8; CONTENT as usize], vec![0u8; WORDS.len()]);
    let end_of = |ended: Ended| {
        let began = Instant::now();
        loop {
            m.progress().unwrap();
            match ended.try_recv() {
                Ok(result) => break result.map_err(|s| s.to_string()),
                Err(_) => assert!(began.elapsed() < LONG, "no end"),
            }
        }
    };
    assert_eq!(end_of(receive(&m, b"content", 0, &mut content)), Ok(CONTENT));
    content.fill(0);
    let both = [receive(&m, b"content", 1, &mut content), receive(&m, b"words", 1, &mut words)];
    writeln!(stdin).unwrap();
    expect("posted");
    process.kill().unwrap();
    process.wait().unwrap();
    let ends = both.map(end_of);
    assert_eq!(ends, [Ok(CONTENT), Ok(WORDS.len() as u64)]);
    assert!(content.iter().all(|&b| b == 7) && words == WORDS);
    m.destroy().unwrap();
}

/// The same where the sender's manager ends in good order, right after the small one was reported as sent.
#[test]
fn a_small_send_behind_a_long_copy_survives_its_manager() {
    let (s, m) = (manager("sender", Progress::Manual), manager("m", Progress::Thread));
    m.add_peer("sender", &s.listen("127.0.0.1:0").unwrap()).unwrap();
    let (from, mut content) = (vec![7u8; CONTENT as usize], vec![0u8; CONTENT as usize]);
    let mut words = vec![0u8; WORDS.len()];
    let both = [
        receive_from(&m, "sender", b"content", 1, &mut content),
        receive_from(&m, "sender", b"words", 1, &mut words),
    ];
    let (told, sent) = mpsc::channel();
    let done: SendDone = Box::new(move |result, _| drop(told.send(result.map(|_| ()))));
    let words_of = tensor(WORDS.as_ptr() as u64, WORDS.len() as u64);
    // SAFETY: `from` outlives the managers, and the words are static.
    unsafe {
        s.send(b"content", 1, tensor(from.as_ptr() as u64, CONTENT), None, None).unwrap();
        s.send(b"words", 1, words_of, None, Some(done.into())).unwrap();
    }
    let began = Instant::now();
    let result = loop {
        s.progress().unwrap();
        match sent.try_recv() {
            Ok(result) => break result,
            Err(_) => assert!(began.elapsed() < LONG, "no end"),
        }
    };
    result.unwrap();
    s.destroy().unwrap();
    let ends = both.map(|ended| ended.recv_timeout(LONG).unwrap().map_err(|e| e.to_string()));
    assert_eq!(ends, [Ok(CONTENT), Ok(WORDS.len() as u64)]);
    assert!(content.iter().all(|&b| b == 7) && words == WORDS);
    m.destroy().unwrap();
}

/// A receiver that has all of it may end at once: that the content was executed at its end, which is the last that its process says of
/// it, must not be lost behind its goodbye. The sender would send it once more.
#[test]
fn a_send_whose_receiver_ends_at_once_has_ended_well() {
    let protocols = [Protocol::Auto, Protocol::DirectPut, Protocol::DirectGet, Protocol::Eager];
    let kinds = [ProviderKind::Shm, ProviderKind::Loopback, ProviderKind::Tcp];
    let all =
        kinds.iter().flat_map(|kind| protocols.iter().map(move |protocol| (*kind, *protocol)));
    let lengths = [200, 20_000, 4 << 20];
    for ((kind, protocol), len) in all.flat_map(|case| lengths.map(|len| (case, len))) {
        let with = |name: &str| {
            let config = Config {
                name: name.into(),
                provider: Some(kind),
                listen: Some("127.0.0.1:0".into()),
                progress: Progress::Manual,
                protocol: protocol as u32,
                ..Config::default()
            };
            Manager::new(config).unwrap()
        };
        let (a, b) = (with("a"), with("b"));
        b.import_address(&a.export_address().unwrap()).unwrap();
        let content = vec![7u8; len];
        let (tx, sent) = mpsc::channel();
        let done: SendDone = Box::new(move |result, _| drop(tx.send(result)));
        let content_len = content.len() as u64;
        // SAFETY: the content outlives the manager.
        unsafe {
            let tensor = tensor(content.as_ptr() as u64, content_len);
            a.send(b"content", 1, tensor, None, Some(done.into())).unwrap();
        }
        let mut memory = vec![0u8; len];
        let got = receive_from(&b, "a", b"content", 1, &mut memory);
        let began = Instant::now();
        let end = loop {
            b.progress().unwrap();
            if let Ok(end) = got.try_recv() {
                break end;
            }
            a.progress().unwrap();
            assert!(began.elapsed() < LONG, "no end");
        };
        assert_eq!(
            end.map_err(|s| s.to_string()),
            Ok(content_len),
            "{kind:?}, {protocol:?}, {len}"
        );
        b.destroy().unwrap();
        let end = loop {
            a.progress().unwrap();
            match sent.try_recv() {
                Ok(end) => break end,
                Err(_) => assert!(began.elapsed() < LONG, "no end"),
            }
        };
        assert!(end.is_ok(), "{kind:?}, {protocol:?}, {len}: {}", end.unwrap_err());
        assert!(memory == content);
        a.destroy().unwrap();
    }
}

/// Tags of sends that have ended well.
type Sent = Mutex<Vec<u64>>;

fn note(words: Words, end: &MessageEnd) {
    // SAFETY: the one who sends keeps it until the manager is gone.
    let sent = unsafe { &*(words[0] as *const Sent) };
    if end.result.is_ok() {
        sent.lock().unwrap().push(end.envelope.tag);
    }
}

/// The tags of what is received, until there is nothing for half a second.
fn tags(m: &Manager, mut room: Vec<u8>) -> Vec<u64> {
    let mut got = vec![];
    loop {
        let (addr, len) = (room.as_mut_ptr() as u64, room.len() as u64);
        let (place, limit) = (Memory { addr, len, device: 0 }, Duration::from_millis(500));
        let wanted = Wanted { from: Party::ANY, comm: 0, tag: 0, mask: 0 };
        // SAFETY: `room` lives until this has returned.
        let end = unsafe { m.message_recv(wanted, 0, Where::Whole(place), Timeout::After(limit)) };
        let end = end.unwrap();
        match end.result {
            Ok(()) => got.push(end.envelope.tag),
            Err(status) if status.code == Code::DeadlineExceeded => return got,
            // The long one, whose memory is gone.
            Err(status) => assert_eq!(status.code, Code::Unavailable, "{status}"),
        }
    }
}

/// What was reported as sent comes, though the receiver finds in the middle of a long message that the sender has ended.
#[test]
fn short_messages_behind_a_long_one_survive_its_manager() {
    const LEN: usize = 500_000;
    for round in 0..20 {
        let (a, b) = (manager("a", Progress::Thread), manager("b", Progress::Thread));
        a.add_peer("b", &b.listen("127.0.0.1:0").unwrap()).unwrap();
        a.connect("b", Some(LONG)).unwrap();
        let to = a.peer_lookup("b").unwrap();
        let (content, sent) = (vec![7u8; LEN], Sent::default());
        std::thread::scope(|scope| {
            let receives = scope.spawn(|| tags(&b, vec![0u8; LEN]));
            for tag in 0..15 {
                let len = if tag % 7 == 0 { LEN as u64 } else { 100 };
                let post = Post {
                    to,
                    incarnation: 0,
                    envelope: Envelope { comm: 0, tag },
                    extra: &Extra::NONE,
                    mode: Mode::Standard,
                    timeout: Timeout::After(LONG),
                };
                let at = Where::Whole(Memory { addr: content.as_ptr() as u64, len, device: 0 });
                let done = OnMessage::Plain(note, [(&raw const sent) as usize, 0]);
                // SAFETY: `content` lives longer than the manager.
                if unsafe { a.message_isend(&post, at, done) }.unwrap() == Sending::Done {
                    sent.lock().unwrap().push(tag);
                }
            }
            a.destroy().unwrap();
            let (got, sent) = (receives.join().unwrap(), sent.lock().unwrap());
            let lost: Vec<_> = sent.iter().filter(|tag| !got.contains(tag)).collect();
            assert!(sent.len() > 3 && lost.is_empty(), "{round}: {lost:?} of {sent:?} are lost");
        });
        b.destroy().unwrap();
    }
}
