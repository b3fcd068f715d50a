//! One client of a TCP store, as its server sees it: bytes in, bytes out. No socket, no clock.

use std::time::Duration;

use super::messages::{Reply, Request};
use super::wire::{self, MAX_FIRST, MAX_MESSAGE, kind, malformed};
use crate::bootstrap::auth::{Keys, TAG};
use crate::room;
use crate::status::Status;
use crate::store::memory::Memory;
use crate::store::{Kind, Until};
use crate::wire::Writer;

/// A client that waits for keys.
pub struct Waiting {
    keys: Vec<Box<[u8]>>,
    /// What they take.
    bytes: usize,
    /// Those before this have been there.
    at: usize,
    /// What is left of its time, until the server has made a deadline of it.
    pub time: Option<Option<Duration>>,
}

enum Phase {
    Hello,
    /// It has been welcomed, and is to prove the secret.
    Proof(Keys),
    /// It asks. How many messages came, and went.
    Open {
        keys: Keys,
        came: u64,
        went: u64,
    },
}

/// One client of a server: how far it has come in, its bytes, and what it waits for.
pub struct Session {
    /// As the store knows who waits.
    number: u32,
    phase: Phase,
    input: Vec<u8>,
    /// Bytes of `input` that are done with.
    read: usize,
    output: Vec<u8>,
    /// Bytes of `output` that are on their way.
    sent: usize,
    waiting: Option<Waiting>,
    /// A question whose tag was checked, and whose answer is too long for now.
    put_off: Option<Vec<u8>>,
    /// Questions and answers that are done with.
    turns: u64,
}

/// What of a server's memory there is for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Any.
    Any,
    /// A short one: a long one waits.
    Short,
}

/// What a key that is waited for takes beyond its bytes.
const KEY: usize = 32;
/// Memory of input and output beyond that is given back when it is not used: there may be thousands of clients.
const KEEP: usize = 4 << 10;
/// Most input of a client that waits.
const BESIDE: usize = 64 << 10;
/// Longest value of a short answer.
const SHORT: usize = 16 << 10;

impl Session {
    /// A client that has just connected, by a number that no other has.
    pub fn new(number: u32) -> Session {
        Session {
            number,
            phase: Phase::Hello,
            input: Vec::new(),
            read: 0,
            output: Vec::new(),
            sent: 0,
            waiting: None,
            put_off: None,
            turns: 0,
        }
    }

    /// Whether it has proved the secret.
    pub fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open { .. })
    }

    /// Memory that it holds: of messages, and of keys that it waits for.
    pub fn bytes(&self) -> usize {
        let waits = self.waiting.as_ref().map_or(0, |waiting| waiting.bytes);
        let put_off = self.put_off.as_ref().map_or(0, Vec::capacity);
        self.input.capacity() + self.output.capacity() + waits + put_off
    }

    /// Rises with each question that was taken, and each answer that has gone: what it holds then is something else.
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// What is to be sent.
    pub fn output(&self) -> &[u8] {
        &self.output[self.sent..]
    }

    /// So much of it was.
    pub fn sent(&mut self, count: usize) {
        self.sent += count;
        if self.sent >= self.output.len() {
            self.turns += u64::from(!self.output.is_empty());
            self.sent = 0;
            self.output.clear();
            if self.output.capacity() > KEEP {
                self.output = Vec::new();
            }
        }
    }

    /// Whether more of it is read: not while an answer is under way, or put off, nor while there is a question to be answered.
    pub fn takes_input(&self) -> bool {
        self.output.is_empty() && !self.has_question()
    }

    /// Whether a message has begun to come, and is not there.
    pub fn has_part(&self) -> bool {
        self.waiting.is_none() && !self.has_question() && self.read < self.input.len()
    }

    /// Whether nothing of it is under way.
    pub fn rests(&self) -> bool {
        let idle = self.waiting.is_none() && self.put_off.is_none() && self.output.is_empty();
        idle && self.read >= self.input.len()
    }

    /// Whether a question is here that nobody has looked at, or whose answer was put off.
    pub fn has_question(&self) -> bool {
        self.put_off.is_some()
            || self.waiting.is_none() && matches!(self.whole(), Ok(Some(_)) | Err(_))
    }

    /// Whether an answer was put off.
    pub fn is_put_off(&self) -> bool {
        self.put_off.is_some()
    }

    /// The length of the message that is next, if it is here.
    fn whole(&self) -> Result<Option<usize>, Status> {
        let rest = self.input.get(self.read..).unwrap_or_default();
        let most = if self.is_open() { MAX_MESSAGE + TAG } else { MAX_FIRST };
        Ok(wire::whole(rest, most)?.filter(|&len| rest.len() >= len))
    }

    /// What waits for keys.
    pub fn waiting(&mut self) -> Option<&mut Waiting> {
        self.waiting.as_mut()
    }

    /// Bytes that came.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), Status> {
        self.input.drain(..self.read);
        self.read = 0;
        room::grow(&mut self.input, bytes.len(), "bytes of a client")?;
        self.input.extend_from_slice(bytes);
        if self.waiting.is_some() && self.input.len() > BESIDE {
            return Err(malformed("a question beside one that waits"));
        }
        Ok(())
    }

    /// Answers the next question, if it is here. An error ends the connection, after what is to be sent.
    pub fn step(
        &mut self,
        store: &Memory,
        secret: Option<&[u8]>,
        room: Room,
        until: Until<'_>,
    ) -> Result<(), Status> {
        if self.waiting.is_some() || !self.output.is_empty() {
            return Ok(());
        }
        if let Some(question) = self.put_off.take() {
            return self.on_question(question, store, room, until);
        }
        let Some(message) = self.next()? else { return Ok(()) };
        let result = self.on_message(message, store, secret, room, until);
        result.inspect_err(|status| self.reject(status))
    }

    /// Takes the next message.
    fn next(&mut self) -> Result<Option<Vec<u8>>, Status> {
        let Some(len) = self.whole()? else { return Ok(None) };
        self.turns += 1;
        if self.read == 0 && self.input.len() == len {
            return Ok(Some(std::mem::take(&mut self.input)));
        }
        let message = room::copy(&self.input[self.read..self.read + len], "a message")?;
        self.read += len;
        if self.read >= self.input.len() {
            self.read = 0;
            self.input.clear();
            if self.input.capacity() > KEEP {
                self.input = Vec::new();
            }
        }
        Ok(Some(message))
    }

    /// Who does not yet know the protocol's keys is told why it is turned away.
    fn reject(&mut self, status: &Status) {
        if !self.is_open() {
            let at = wire::begin(&mut self.output, kind::REJECT);
            wire::put_status(&mut Writer::new(&mut self.output), status);
            wire::finish(&mut self.output, at, 0);
        }
    }

    fn on_message(
        &mut self,
        whole: Vec<u8>,
        store: &Memory,
        secret: Option<&[u8]>,
        room: Room,
        until: Until<'_>,
    ) -> Result<(), Status> {
        match &mut self.phase {
            Phase::Hello => {
                let theirs = wire::greeted(kind::HELLO, &whole[4..])?;
                let ours = random_nonce()?;
                let welcome = wire::greeting(kind::WELCOME, &ours);
                let keys = wire::derive(secret, &whole, &welcome, [&theirs, &ours])?;
                self.output.extend_from_slice(&welcome);
                self.phase = Phase::Proof(keys);
            }
            Phase::Proof(keys) => {
                if whole[4] != kind::AUTH {
                    return Err(malformed(text!("type {} instead of a proof", whole[4])));
                }
                keys.verify_proof(true, &whole[5..])?;
                self.output.extend_from_slice(&wire::proof(kind::READY, &keys.proof(false)));
                let Phase::Proof(keys) = std::mem::replace(&mut self.phase, Phase::Hello) else {
                    return Err(Status::internal("a store's client in no phase"));
                };
                self.phase = Phase::Open { keys, came: 0, went: 0 };
            }
            Phase::Open { keys, came, .. } => {
                wire::open(&whole, keys, true, *came)?;
                *came += 1;
                return self.on_question(whole, store, room, until);
            }
        }
        Ok(())
    }

    /// A whole message, whose tag was checked.
    fn on_question(
        &mut self,
        whole: Vec<u8>,
        store: &Memory,
        room: Room,
        until: Until<'_>,
    ) -> Result<(), Status> {
        let request = Request::decode(wire::body(&whole)?)?;
        if room == Room::Short && most_of_answer(store, &request) > SHORT {
            self.put_off = Some(whole);
            return Ok(());
        }
        if let Request::Wait { time, keys } = request {
            let bytes = keys.iter().map(|key| key.len() + KEY).sum();
            let mut all = Vec::new();
            room::grow(&mut all, keys.len(), "keys")?;
            for key in &*keys {
                all.push(room::key(key)?);
            }
            let keys = all;
            self.waiting = Some(Waiting { keys, bytes, at: 0, time: Some(time) });
            return self.look(store);
        }
        let reply = execute(store, request, until);
        // The answer may be as long: both are not held at a time.
        drop(whole);
        self.answer(&reply)
    }

    fn answer(&mut self, reply: &Reply) -> Result<(), Status> {
        let Phase::Open { keys, went, .. } = &mut self.phase else {
            return Err(Status::internal("an answer before the secret was proved"));
        };
        let at = reply.encode(&mut self.output)?;
        wire::seal(&mut self.output, at, keys, false, *went);
        *went += 1;
        Ok(())
    }

    /// Looks whether what it waits for is there; what is not wakes it when it comes.
    pub fn look(&mut self, store: &Memory) -> Result<(), Status> {
        let Some(waiting) = &mut self.waiting else { return Ok(()) };
        waiting.at += store.there_or_wait(&waiting.keys, waiting.at, self.number)?;
        if waiting.at < waiting.keys.len() {
            return Ok(());
        }
        self.waiting = None;
        self.answer(&Reply::Indices(Vec::new()))
    }

    /// It waits no more.
    pub fn leave(&mut self, store: &Memory) -> Option<Waiting> {
        let waiting = self.waiting.take()?;
        waiting.keys.get(waiting.at).inspect(|key| store.part(key, self.number));
        Some(waiting)
    }

    /// Its time is over: tells it what is missing.
    pub fn time_out(&mut self, store: &Memory) -> Result<(), Status> {
        let Some(waiting) = self.leave(store) else { return Ok(()) };
        let is_missing = |&i: &usize| store.there(&waiting.keys[i..=i], 0) == 0;
        let missing = (waiting.at..waiting.keys.len()).filter(is_missing);
        self.answer(&Reply::Indices(room::collect(missing, "keys")?))
    }
}

/// 32 random bytes.
pub fn random_nonce() -> Result<[u8; 32], Status> {
    let mut nonce = [0; 32];
    let halves = [crate::bootstrap::random_id()?, crate::bootstrap::random_id()?];
    nonce.copy_from_slice(halves.as_flattened());
    Ok(nonce)
}

/// About how many bytes of values an answer may have.
fn most_of_answer(store: &Memory, request: &Request<'_>) -> usize {
    match request {
        Request::Get { keys } => store.lengths(keys),
        Request::CompareSet { key, .. } => store.lengths(&[key]),
        _ => 0,
    }
}

/// Does what a client asks for, but waiting.
fn execute(store: &Memory, request: Request<'_>, until: Until<'_>) -> Reply {
    let done = |result: Result<(), Status>| result.map(|()| Reply::Done);
    let result = match request {
        Request::Set { lease, items } => done(store.set(&items, lease, until)),
        Request::Get { keys } => store.get(&keys, until).map(Reply::Values),
        Request::Wait { .. } => Err(Status::internal("a wait that was to wait")),
        Request::Add { lease, key, delta } => {
            store.add(key, delta, lease, until).map(Reply::Number)
        }
        Request::CompareSet { lease, key, expected, desired } => {
            store.compare_set(key, expected, desired, lease, until).map(Reply::Compared)
        }
        Request::Delete { keys } => {
            store.delete(&keys, until).map(|count| Reply::Number(count as i64))
        }
        Request::Missing { keys } => store.missing(&keys, until).map(Reply::Indices),
        Request::Lease { id, ttl } => done(store.lease(id, ttl, until)),
        Request::Release { id } => done(store.release(id, until)),
    };
    result.unwrap_or_else(Reply::Failed)
}

/// For the fuzzer: a stranger's bytes to a server, and what one who knows the secret may ask, and how it may be answered.
pub fn fuzz_store(bytes: &[u8]) {
    let (store, Ok(stop)) = (Memory::new(), crate::store::stop::Stop::new()) else { return };
    let until = Until::after(Some(Duration::ZERO), &stop);
    let Some((&mode, rest)) = bytes.split_first() else { return };
    match mode % 5 {
        0 => {
            let mut session = Session::new(0);
            for piece in rest.chunks(usize::from(mode / 5) + 1) {
                let mut failed = session.receive(piece).is_err();
                while !failed && session.has_question() {
                    failed = session.step(&store, None, Room::Any, until).is_err();
                    let count = session.output().len();
                    session.sent(count);
                }
                if failed {
                    break;
                }
            }
            assert!(!session.is_open(), "proved by chance");
        }
        1 => {
            let _ = store.lease(7, Duration::from_secs(1), until);
            for message in rest.split(|&b| b == 0xFF) {
                let Ok(request) = Request::decode(message) else { continue };
                let mut again = Vec::new();
                let at = request.encode(&mut again).unwrap_or_default();
                assert!(Request::decode(&again[at + 4..]).is_ok(), "what was read can be read");
                if !matches!(request, Request::Wait { .. }) {
                    execute(&store, request, until);
                }
            }
        }
        2 => {
            let asked = usize::from(mode / 5);
            if let Ok(reply) = Reply::decode(rest, asked) {
                let mut again = Vec::new();
                let at = reply.encode(&mut again).unwrap_or_default();
                let same = Reply::decode(&again[at + 4..], asked);
                assert!(same.is_ok_and(|same| match (&same, &reply) {
                    (Reply::Failed(a), Reply::Failed(b)) => a.code == b.code,
                    (a, b) => a == b,
                }));
            }
        }
        3 => crate::store::file::fuzz_file(rest),
        _ => crate::mesh::fuzz_value(rest),
    }
}
