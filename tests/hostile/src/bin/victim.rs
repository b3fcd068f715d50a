//! An honest manager that does what the attack's program tells it: one command a line on standard
//! input, one answer each on standard output, and lines of what happened in between.
//!
//! ```text
//! > listen                          = 127.0.0.1:1234
//! > blob                            = <hex>
//! > add <name> <address>            = ok
//! > import <hex>                    = <name>
//! > connect <name> <ms>             = ok | ! CODE text
//! > send <op> <hex key> <step> <length>
//!                                   = ok     later:  sent <op> CODE
//! > send-slow <op> <hex key> <step> <length>
//!                                   = ok | ! of memory that does not come until `serve`
//! > touched <ms>                    = 0 | 1, whether somebody waits for that memory
//! > serve                           = ok
//! > recv <op> <peer> <hex key> <step> <length> <given 0|1> <ms>
//!                                   = ok     later:  got <op> CODE <length> <right 0|1> text
//! > message <op> <peer> <tag> <length> [pieces | device]
//!                                   = ok     later:  sent <op> CODE
//! > message-recv <op> <peer> <tag> <room> [pieces]
//!                                   = ok     later:  got <op> CODE <length> <right 0|1> text
//! > pair                            = <number>
//! > pair-address <pair>             = <hex>
//! > pair-connect <pair> <hex>       = ok
//! > pair-state <pair>               = 0 to 3, as RDMA_PAIR_*
//! > slot <pair> <slot> <length>     = <number of a receive buffer>
//! > arrived <buffer>                = <arrivals that were not taken>
//! > slot-send <pair> <slot> <length>
//!                                 = <number of a send buffer, of which all is being sent>
//! > slot-end <buffer>               = ok
//! > channels <peer>                 = <number>
//! > stats                           = <json>
//! > exit                            = ok, after the manager has been destroyed
//! ```

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

use rdma_hostile::honest::{Honest, meta};
use rdma_hostile::slow::Slow;
use rdma_hostile::victim::{byte_at, config_of, from_hex, to_hex};
use rdma_transport::api::{CopyDone, DeviceOps, SendDone, Tensor};
use rdma_transport::engine::front::message::{
    Envelope, Memory, MessageEnd, Mode, OnMessage, Sending, Wanted,
};
use rdma_transport::engine::front::pair::{PairState, Slot, Way};
use rdma_transport::engine::layout::{Layout, Piece};
use rdma_transport::manager::{Post, Timeout, Where};
use rdma_transport::protocol::message::Extra;
use rdma_transport::status::{Code, Status};

fn say(line: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let me = Honest::start(config_of(&args));
    if args.iter().any(|a| a == "source=1") {
        me.serve();
    }
    say(format_args!("= ready"));
    let mut slow = None;
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        if words[0] == "exit" {
            break;
        }
        match command(&me, &words, &mut slow) {
            Ok(answer) => say(format_args!("= {answer}")),
            Err(s) => say(format_args!("! {} {}", s.code as i32, one_line(&s.message))),
        }
    }
    let ended = me.manager.destroy();
    say(format_args!("= {}", ended.map_or_else(Status::into_message, |()| "ok".into())));
}

fn one_line(text: &str) -> String {
    text.replace('\n', " ")
}

fn number<T: std::str::FromStr>(words: &[&str], at: usize) -> Result<T, Status> {
    let word = words.get(at).copied().unwrap_or("");
    word.parse().map_err(|_| Status::invalid(format!("{word:?} is no number of {}", words[0])))
}

fn command(me: &Honest, words: &[&str], slow: &mut Option<Slow>) -> Result<String, Status> {
    let word = |at: usize| words.get(at).copied().unwrap_or("").to_owned();
    match words[0] {
        "listen" => me.manager.listen("127.0.0.1:0"),
        "blob" => me.manager.export_address().map(|b| to_hex(&b)),
        "add" => me.manager.add_peer(&word(1), &word(2)).map(|()| "ok".into()),
        "import" => me.manager.import_address(&from_hex(&word(1))),
        "connect" => {
            let timeout = Duration::from_millis(number(words, 2)?);
            me.manager.connect(&word(1), Some(timeout)).map(|()| "ok".into())
        }
        "send" => {
            let op: u64 = number(words, 1)?;
            let told = move |code: Code| say(format_args!("sent {op} {}", code as i32));
            let (step, len) = (number(words, 3)?, number(words, 4)?);
            me.offer_then(&from_hex(&word(2)), step, len, told).map(|()| "ok".into())
        }
        "send-slow" => {
            let op: u64 = number(words, 1)?;
            let (key, step, len) = (from_hex(&word(2)), number(words, 3)?, number(words, 4)?);
            let none = || Status::new(Code::Unavailable, "userfaultfd is not allowed here");
            let memory = Slow::new(len).ok_or_else(none)?;
            let tensor = Tensor { meta: meta(len), addr: memory.addr(), device: 0 };
            *slow = Some(memory);
            let done: SendDone = Box::new(move |result, _| {
                let code = result.map_or_else(|s| s.code, |()| Code::Ok);
                say(format_args!("sent {op} {}", code as i32));
            });
            // SAFETY: the mapping stays until the process ends.
            unsafe { me.manager.send(&key, step, tensor, None, Some(done.into())) }
                .map(|()| "ok".into())
        }
        "touched" => {
            let limit = Duration::from_millis(number(words, 1)?);
            let touched = slow.as_ref().is_some_and(|slow| slow.is_touched_within(limit));
            Ok(u8::from(touched).to_string())
        }
        "serve" => {
            slow.as_ref().inspect(|slow| slow.serve());
            Ok("ok".into())
        }
        "recv" => {
            let op: u64 = number(words, 1)?;
            let (step, len) = (number(words, 4)?, number(words, 5)?);
            let timeout = Duration::from_millis(number(words, 7)?);
            let told = move |g: rdma_hostile::honest::Got| {
                let (code, right) = (g.code as i32, u8::from(g.right));
                say(format_args!("got {op} {code} {} {right} {}", g.nbytes, one_line(&g.text)));
            };
            let key = from_hex(&word(3));
            me.ask_then(&word(2), (&key, step, len), word(6) == "1", timeout, told)
                .map(|_| "ok".into())
        }
        "message" => {
            let (op, tag, len): (usize, u64, usize) =
                (number(words, 1)?, number(words, 3)?, number(words, 4)?);
            let to = me.manager.peer_lookup(&word(2))?;
            let content: &'static [u8] = vec![0; len].leak();
            let memory = Memory { addr: content.as_ptr() as u64, len: len as u64, device: 0 };
            let from = match words.get(5) {
                None => Where::Whole(memory),
                Some(&"pieces") => halves_of(memory)?,
                Some(_) => {
                    let device = me.manager.register_device(Arc::new(Zeros))?;
                    Where::Whole(Memory { addr: 64, device, ..memory })
                }
            };
            let told = |words: [usize; 2], end: &MessageEnd| {
                let code = end.result.as_ref().map_or_else(|s| s.code, |()| Code::Ok);
                say(format_args!("sent {} {}", words[0], code as i32));
            };
            let (envelope, done) = (Envelope { comm: 1, tag }, OnMessage::Plain(told, [op, 0]));
            let (mode, timeout, extra) = (Mode::Standard, Timeout::Never, &Extra::NONE);
            let post = Post { to, incarnation: 0, envelope, extra, mode, timeout };
            // SAFETY: the content stays until the process ends.
            let sending = unsafe { me.manager.message_isend(&post, from, done) }?;
            if sending == Sending::Done {
                say(format_args!("sent {op} 0"));
            }
            Ok("ok".into())
        }
        "message-recv" => message_recv(me, words),
        "pair" | "pair-address" | "pair-connect" | "pair-state" | "slot" | "arrived"
        | "slot-end" | "slot-send" => pairs(me, words),
        "channels" => me.manager.peer_info(&word(1)).map(|i| i.channels.to_string()),
        "stats" => me.manager.stats_json().map(|s| one_line(&s)),
        other => Err(Status::invalid(format!("command {other:?} is not known"))),
    }
}

/// A device whose memory is all zeros, and that keeps nothing.
struct Zeros;

impl DeviceOps for Zeros {
    fn copy_to_host(&self, host: u64, _: u64, nbytes: u64, done: CopyDone) {
        // SAFETY: the library has so much memory there.
        unsafe { std::ptr::write_bytes(host as *mut u8, 0, nbytes as usize) };
        done(Ok(()));
    }

    fn copy_from_host(&self, _: u64, _: u64, _: u64, done: CopyDone) {
        done(Ok(()));
    }
}

/// The same memory, as two pieces.
fn halves_of(memory: Memory) -> Result<Where, Status> {
    let (addr, half) = (memory.addr, memory.len / 2);
    let halves = [(addr, half), (addr + half, memory.len - half)];
    let halves = halves.map(|(addr, len)| Piece { addr, len }).into_iter();
    Ok(Where::Pieces(Arc::new(Layout::listed(halves, false)?)))
}

/// Memory of a receive, and bytes behind it that nobody may write.
struct Guarded {
    all: &'static [u8],
    room: usize,
}

/// Bytes behind the memory of a receive, and what they are.
const GUARD: usize = 4096;
const UNTOUCHED: u8 = 0xCD;

impl Guarded {
    /// Whether the first `len` bytes are those of a message, and nothing is written behind the memory.
    fn is_right(&self, len: usize) -> bool {
        let (content, guard) = self.all.split_at(self.room);
        let right = content.iter().take(len).enumerate().all(|(i, &b)| b == byte_at(i));
        right && guard.iter().all(|&b| b == UNTOUCHED)
    }
}

/// Begins to receive a message.
fn message_recv(me: &Honest, words: &[&str]) -> Result<String, Status> {
    let (op, tag, room): (usize, u64, usize) =
        (number(words, 1)?, number(words, 3)?, number(words, 4)?);
    let from = me.manager.peer_lookup(words[2])?;
    let all: &'static mut [u8] = vec![UNTOUCHED; room + GUARD].leak();
    let memory = Memory { addr: all.as_mut_ptr() as u64, len: room as u64, device: 0 };
    let place: &'static Guarded = Box::leak(Box::new(Guarded { all, room }));
    let told = |[op, place]: [usize; 2], end: &MessageEnd| {
        // SAFETY: it was leaked below, so it is there until the process ends.
        let place = unsafe { &*(place as *const Guarded) };
        let (code, text) = match &end.result {
            Ok(()) => (Code::Ok, String::new()),
            Err(status) => (status.code, one_line(&status.message)),
        };
        let len = if code == Code::Ok { end.len } else { 0 };
        let right = u8::from(place.is_right(len as usize));
        say(format_args!("got {op} {} {len} {right} {text}", code as i32));
    };
    let into = if words.get(5).is_some() { halves_of(memory)? } else { Where::Whole(memory) };
    let wanted = Wanted { from, comm: 1, tag, mask: u64::MAX };
    let done = OnMessage::Plain(told, [op, std::ptr::from_ref(place) as usize]);
    // SAFETY: the memory stays until the process ends, and is read only where the receive does not write.
    unsafe { me.manager.message_irecv(wanted, into, Timeout::Never, done) }?;
    Ok("ok".into())
}

/// The commands of pairs.
fn pairs(me: &Honest, words: &[&str]) -> Result<String, Status> {
    if words[0] == "pair" {
        return me.manager.pair_create(1, Timeout::Default).map(|pair| pair.to_string());
    }
    let of: u64 = number(words, 1)?;
    match words[0] {
        "pair-address" => me.manager.pair_address(of).map(|a| to_hex(&a)),
        "pair-connect" => {
            let address = from_hex(words.get(2).copied().unwrap_or(""));
            me.manager.pair_connect(of, &address, None).map(|()| "ok".into())
        }
        "pair-state" => me.manager.pair_facts(of).map(|facts| {
            let state = match facts.state {
                PairState::Created => 0,
                PairState::Connecting => 1,
                PairState::Connected => 2,
                PairState::Broken(_) => 3,
            };
            state.to_string()
        }),
        "slot" | "slot-send" => {
            let (slot, len): (u64, usize) = (number(words, 2)?, number(words, 3)?);
            let memory: &'static [u8] = vec![0; len].leak();
            let (addr, len) = (memory.as_ptr() as u64, len as u64);
            let way = if words[0] == "slot" { Way::Recv } else { Way::Send };
            let slot = Slot { way, slot, addr, len };
            // SAFETY: the memory stays until the process ends.
            let buffer = unsafe { me.manager.buffer_create(of, slot, None) }?;
            if way == Way::Send {
                // SAFETY: as above.
                unsafe { me.manager.buffer_send(buffer, 0, len, 0) }?;
            }
            Ok(buffer.to_string())
        }
        "arrived" => me.manager.buffer_counts(of).map(|(_, received)| received.to_string()),
        _ => me.manager.buffer_destroy(of).map(|()| "ok".into()),
    }
}
