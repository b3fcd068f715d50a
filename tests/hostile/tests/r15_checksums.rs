//! Section 15: with the checksum option at either side, whatever comes without a checksum or with a
//! wrong one is DATA_LOSS, and an editor in the middle cannot talk the two out of it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use rdma_hostile::PATIENCE;
use rdma_hostile::honest::{Honest, pattern};
use rdma_hostile::victim::{Options, Victim};
use rdma_hostile::wire::frames::Frame;
use rdma_hostile::wire::{Client, FLAG_CHECKSUM, Facts, message};
use rdma_transport::fabric::ProviderKind;
use rdma_transport::status::Code;

const KEY: &[u8] = b"weights";
const LEN: usize = 40;

/// How a sender answers a request of this index.
type Answer = fn(&mut Client, u32, &[u8]) -> std::io::Result<()>;

fn meta() -> Vec<u8> {
    message::meta(4, 0, &[LEN as i64], LEN as u64)
}

fn honest(c: &mut Client, index: u32, content: &[u8]) -> std::io::Result<()> {
    c.message(&message::content_checked(index, &meta(), content))
}

fn without_content_checksum(c: &mut Client, index: u32, content: &[u8]) -> std::io::Result<()> {
    c.message(&message::content(index, &meta(), content))
}

fn without_message_checksum(c: &mut Client, index: u32, content: &[u8]) -> std::io::Result<()> {
    c.sealed = false;
    c.message(&message::content_checked(index, &meta(), content))
}

fn with_a_changed_byte(c: &mut Client, index: u32, content: &[u8]) -> std::io::Result<()> {
    let mut sealed = c.seal(&message::content_checked(index, &meta(), content));
    let last = sealed.len() - 9;
    sealed[last] ^= 1;
    c.frame(&Frame::send(&sealed))
}

fn with_a_changed_shape(c: &mut Client, index: u32, content: &[u8]) -> std::io::Result<()> {
    let mut sealed = c.seal(&message::content_checked(index, &meta(), content));
    sealed[16] ^= 2; // the element type
    c.frame(&Frame::send(&sealed))
}

fn with_a_changed_user_byte(c: &mut Client, index: u32, content: &[u8]) -> std::io::Result<()> {
    let beside = [&message::meta(4, 4, &[LEN as i64], LEN as u64)[..], &[6, 0], b"beside"].concat();
    let mut sealed = c.seal(&message::content_checked(index, &beside, content));
    let at = sealed.windows(6).position(|bytes| bytes == b"beside").expect("it is there");
    sealed[at] ^= 1;
    c.frame(&Frame::send(&sealed))
}

fn twice(c: &mut Client, _: u32, _: &[u8]) -> std::io::Result<()> {
    let sealed = c.seal(&message::ping());
    c.frame(&Frame::send(&sealed))?;
    c.frame(&Frame::send(&sealed))
}

fn by_immediate(c: &mut Client, index: u32, _: &[u8]) -> std::io::Result<()> {
    c.frame(&Frame::write(0, 0, 0, Some(index), b""))
}

fn credits_by_immediate(c: &mut Client, _: u32, _: &[u8]) -> std::io::Result<()> {
    c.frame(&Frame::write(0, 0, 0, Some(0xFFFF_FFFE), b""))
}

fn metadata_alone(c: &mut Client, index: u32, _: &[u8]) -> std::io::Result<()> {
    let fields = [&index.to_le_bytes()[..], &[1, 0, 0, 0], &meta()].concat();
    c.message(&message::any(message::META, 0, 0, &[&fields]))
}

/// A victim asks a sender that answers in this way.
fn ask(at_victim: bool, answer: Answer) -> (Code, bool) {
    let mut victim = Victim::start(Options { checksum: at_victim, ..Options::default() });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    victim.tell(&format!("add stranger {}", listener.local_addr().unwrap()));
    let op = victim.recv("stranger", KEY, 1, LEN, false, PATIENCE);
    let (stream, _) = listener.accept().unwrap();
    let mut facts = Facts::new("stranger", 5);
    facts.flags = if at_victim { 0 } else { FLAG_CHECKSUM };
    let mut c = Client::accept(stream, facts, None).unwrap();
    assert!(c.sealed);
    c.message(&message::credit(64)).unwrap();
    let request = c.next_message(message::REQUEST).unwrap();
    assert_eq!(request[1] & 8, 8, "the victim asks for a checksum");
    answer(&mut c, message::index_of(&request).unwrap(), &pattern(KEY, 1, LEN)).unwrap();
    let ended = victim.wait(op, PATIENCE).expect("the receive has ended");
    drop((c, listener));
    victim.finish();
    (ended.code, ended.right)
}

#[test]
fn r15_an_absent_or_wrong_checksum_is_data_loss() {
    let dishonest: [(&str, Answer); 9] = [
        ("content without", without_content_checksum),
        ("message without", without_message_checksum),
        ("changed byte", with_a_changed_byte),
        ("changed shape", with_a_changed_shape),
        ("changed user byte", with_a_changed_user_byte),
        ("twice", twice),
        ("immediate", by_immediate),
        ("credits", credits_by_immediate),
        ("metadata", metadata_alone),
    ];
    for at_victim in [true, false] {
        assert_eq!(ask(at_victim, honest), (Code::Ok, true), "option at the victim: {at_victim}");
        for (what, answer) in dishonest {
            let got = ask(at_victim, answer);
            assert_eq!(got, (Code::DataLoss, false), "{what}, option at the victim: {at_victim}");
        }
    }
}

/// A requester that leaves out that it wants a checksum gets nothing.
#[test]
fn r15_a_request_without_a_checksum_ends_the_connection() {
    let victim = Victim::start(Options { checksum: true, ..Options::default() });
    let mut c = Client::dial(victim.address(), Facts::new("stranger", 6), None).unwrap();
    c.message(&message::credit(64)).unwrap();
    c.message(&message::request(1, 1, b"gen:10")).unwrap();
    assert!(c.closed_within(PATIENCE));
    victim.finish();
}

/// An editor in the middle takes the option out of HELLO, or puts it in: there is no connection.
#[test]
fn r15_the_option_cannot_be_edited_out_of_the_handshake() {
    for (at_victim, secret) in [(true, None), (false, None), (true, Some("s"))] {
        let options =
            Options { checksum: at_victim, secret: secret.map(Into::into), ..Options::default() };
        let mut victim = Victim::start(options);
        let editor = TcpListener::bind("127.0.0.1:0").unwrap();
        let (target, address) = (victim.address().to_owned(), editor.local_addr().unwrap());
        let editing = std::thread::spawn(move || {
            let (near, _) = editor.accept().unwrap();
            let far = TcpStream::connect(target).unwrap();
            let back = (far.try_clone().unwrap(), near.try_clone().unwrap());
            let there = std::thread::spawn(move || copy_with_edit(near, far));
            copy_with_edit(back.0, back.1);
            there.join().unwrap();
        });
        let mut facts = Facts::new("stranger", 7);
        facts.flags = if at_victim { 0 } else { FLAG_CHECKSUM };
        let met = Client::dial(&address.to_string(), facts, secret.map(str::as_bytes));
        if let Ok(mut c) = met {
            // The victim refuses what this side says under other keys.
            assert!(c.closed_within(PATIENCE));
        }
        assert_eq!(victim.try_tell("channels stranger").unwrap_or("0".into()), "0");
        editing.join().unwrap();
        victim.finish();
    }
}

/// Copies one direction; flips the flag of the checksum option in HELLO and in HELLO_ACK.
fn copy_with_edit(mut from: TcpStream, mut to: TcpStream) {
    let mut head = [0; 12];
    if from.read_exact(&mut head).is_err() {
        return;
    }
    let mut body = vec![0; u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize];
    if from.read_exact(&mut body).is_err() {
        return;
    }
    let hello = match head[4] {
        rdma_hostile::wire::HELLO => 0,
        // Version, provider, reason with its length, length of the HELLO.
        _ => 2 + 1 + 2 + usize::from(u16::from_le_bytes([body[3], body[4]])) + 4,
    };
    body[hello + 36] ^= FLAG_CHECKSUM as u8;
    let _ = to.write_all(&[&head[..], &body].concat());
    let mut rest = [0; 4096];
    while let Ok(n) = from.read(&mut rest) {
        if n == 0 || to.write_all(&rest[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
    let _ = from.shutdown(std::net::Shutdown::Both);
}

/// Honest peers with the option at one side, on each provider between processes: short and long content,
/// and keys that take many fragments.
#[test]
fn r15_tensors_move_with_checksums_on_every_provider() {
    for provider in [ProviderKind::Shm, ProviderKind::Tcp] {
        for at_victim in [true, false] {
            let options =
                Options { checksum: at_victim, provider: Some(provider), ..Options::default() };
            let mut config = options.peer("honest");
            config.checksum = !at_victim;
            let mut victim = Victim::start(options);
            let honest = Honest::start(config);
            let blob = rdma_hostile::victim::from_hex(&victim.tell("blob"));
            let peer = honest.manager.import_address(&blob).unwrap();
            let long = vec![b'k'; 60_000];
            for (step, len) in [1, 64, 9_000, 40_000, 3 << 20].into_iter().enumerate() {
                for key in [KEY, &long] {
                    // Twice: the second receive knows the metadata.
                    for again in 0..2 {
                        let step = 2 * step as i64 + again;
                        let sent = victim.send(key, step, len);
                        let got = honest.ask(&peer, key, step, len, PATIENCE);
                        let what = format!("{provider:?}, {len} bytes: {got:?}");
                        assert_eq!((got.code, got.right), (Code::Ok, true), "{what}");
                        assert_eq!(victim.wait(sent, PATIENCE).unwrap().code, Code::Ok);
                    }
                }
            }
            drop(honest);
            victim.finish();
        }
    }
}
