//! The store over TCP: one process serves ([`server`]), others connect.
//!
//! A call takes a connection that rests, or makes one, and gives it back: a wait holds its own, so calls of many threads do
//! not wait for each other. What is asked may be asked again over another connection, but for add and compare-and-set: of
//! these it is not known, when a connection breaks, whether they were done. Nor is it of a change that was sent and whose
//! deadline came before its answer; but the server does nothing for who has gone, so that what is asked next, which comes
//! later, is not undone by it as long as the network keeps that order.

mod messages;
pub mod server;
mod session;
mod wire;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::idle::Idle;
use super::names::Names;
use super::socket::ClientSocket;
use super::{Compared, Failed, Kind, LeaseId, Until, patiently};
use crate::bootstrap::auth::{Keys, TAG};
use crate::limits::{STORE_CALL, STORE_REPLY};
use crate::status::{Code, Status};
use messages::{Reply, Request};
pub use session::fuzz_store;
use wire::{MAX_FIRST, MAX_MESSAGE, kind};

/// Bytes of what is no store that its error shows.
const SHOWN: usize = 32;
/// A try to connect, with the proof of the secret, takes no longer.
const TRY: Duration = Duration::from_secs(5);
/// So long before a wait's deadline the server is to say what is missing: its answer has to come before it.
const SPARE: Duration = Duration::from_millis(250);

/// A TCP store as a client: its address, and the connections that rest.
pub struct Client {
    name: String,
    names: Names,
    secret: Option<Vec<u8>>,
    idle: Idle<Connection>,
}

/// How a question that was asked over one connection was answered.
type Answer = Result<Reply, Failed>;

struct Connection {
    link: ClientSocket,
    keys: Keys,
    came: u64,
    went: u64,
    input: Vec<u8>,
}

/// The next whole message, with its length. What comes is stored as it comes, and not by what it claims.
fn receive(
    link: &ClientSocket,
    input: &mut Vec<u8>,
    most: usize,
    until: Until<'_>,
) -> Result<Vec<u8>, Failed> {
    let mut piece = [0; 16 << 10];
    loop {
        if let Some(len) = wire::whole(input, most)?
            && input.len() >= len
        {
            return Ok(match input.len() == len {
                true => std::mem::take(input),
                false => {
                    let message = crate::room::copy(&input[..len], "an answer")?;
                    input.drain(..len);
                    message
                }
            });
        }
        let n = match input.is_empty() {
            true => link.read(&mut piece, until)?,
            false => link.read_on(&mut piece, until)?,
        };
        crate::room::grow(input, n, "bytes of an answer")?;
        input.extend_from_slice(&piece[..n]);
    }
}

/// What failed before the server had said what it is: of what did not begin as a store does, that it is none.
fn of_stranger(failed: Failed, input: &[u8]) -> Failed {
    let Failed::Finally(status) = &failed else { return failed };
    if status.code != Code::DataLoss || input.is_empty() {
        return failed;
    }
    let said = crate::shown::key(&input[..input.len().min(SHOWN)]);
    let text = text!("the far end is no store of rdma-transport: it begins with '{said}'");
    Failed::Finally(Status::new(Code::InvalidArgument, text))
}

impl Connection {
    /// Connects, and proves the secret.
    fn open(
        addr: SocketAddr,
        secret: Option<&[u8]>,
        until: Until<'_>,
    ) -> Result<Connection, Failed> {
        let until = until.at_most(TRY);
        let link = ClientSocket::tcp(addr, until)?;
        let ours = session::random_nonce()?;
        let hello = wire::greeting(kind::HELLO, &ours);
        link.send(&hello, until)?;
        let mut input = Vec::new();
        let welcome = receive(&link, &mut input, MAX_FIRST, until);
        let welcome = welcome.map_err(|failed| of_stranger(failed, &input))?;
        let theirs = wire::greeted(kind::WELCOME, &welcome[4..])?;
        let keys = wire::derive(secret, &hello, &welcome, [&ours, &theirs])?;
        link.send(&wire::proof(kind::AUTH, &keys.proof(true)), until)?;
        let ready = receive(&link, &mut input, MAX_FIRST, until)?;
        match ready.get(4) {
            Some(&kind::READY) => keys.verify_proof(false, &ready[5..])?,
            Some(&kind::REJECT) => {
                let status = wire::get_status(&mut crate::wire::Reader::new(&ready[5..]))?;
                return Err(Failed::Finally(status));
            }
            _ => return Err(Failed::Finally(wire::malformed("no proof of the secret"))),
        }
        Ok(Connection { link, keys, came: 0, went: 0, input })
    }

    /// A connection that rests is silent; one that has ended is not.
    fn rests(&self) -> bool {
        self.link.is_silent() && self.input.is_empty()
    }

    fn ask(
        &mut self,
        request: &Request<'_>,
        asked: usize,
        until: Until<'_>,
    ) -> Result<Reply, Failed> {
        let mut out = Vec::new();
        let at = request.encode(&mut out)?;
        wire::seal(&mut out, at, &self.keys, true, self.went);
        self.went += 1;
        // A part of it is no question.
        self.link.send(&out, until).inspect_err(|_| self.link.abandon())?;
        drop(out);
        let message = receive(&self.link, &mut self.input, MAX_MESSAGE + TAG, until);
        let message = message.map_err(|failed| {
            self.link.abandon();
            match failed {
                Failed::Again(why) => request.effect().unheard(why),
                failed => failed,
            }
        })?;
        let message = wire::open(&message, &self.keys, false, self.came)?;
        self.came += 1;
        Ok(Reply::decode(message, asked)?)
    }
}

/// An answer of a type that does not belong to its question.
fn unexpected() -> Status {
    wire::malformed("an answer to another question")
}

impl Client {
    /// A client of the store at `address`, "host:port". Connects when it is used.
    pub fn new(address: &str, secret: Option<&[u8]>) -> Result<Client, Status> {
        let name = format!("tcp store at {address}");
        let secret = secret.map(|s| crate::room::copy(s, "a secret")).transpose()?;
        let names = Names::new(address)?;
        Ok(Client { name, names, secret, idle: Idle::new() })
    }

    fn connection(&self, until: Until<'_>) -> Result<Connection, Failed> {
        if let Some(resting) = self.idle.take(Connection::rests) {
            return Ok(resting);
        }
        let addrs = self.names.resolve(until)?;
        let mut last = Failed::Again(Status::new(Code::Unavailable, "no address"));
        for addr in addrs {
            match Connection::open(addr, self.secret.as_deref(), until) {
                Ok(connection) => return Ok(connection),
                Err(failed) => last = failed,
            }
            until.stop.check()?;
        }
        Err(last)
    }

    /// Asks until it is answered.
    fn ask(&self, request: &Request<'_>, asked: usize, until: Until<'_>) -> Result<Reply, Status> {
        self.ask_anew(|ask| ask(request), asked, until)
    }

    /// The same, with a question that depends on when it is asked.
    fn ask_anew(
        &self,
        with: impl Fn(&mut dyn FnMut(&Request<'_>) -> Answer) -> Answer,
        asked: usize,
        until: Until<'_>,
    ) -> Result<Reply, Status> {
        let answer = patiently(&self.name, until, || {
            let mut connection = self.connection(until)?;
            let reply = with(&mut |request| connection.ask(request, asked, until))?;
            self.idle.keep(connection);
            Ok(reply)
        })?;
        match answer {
            Reply::Failed(status) => Err(status),
            reply => Ok(reply),
        }
    }

    fn done(&self, request: &Request<'_>, until: Until<'_>) -> Result<(), Status> {
        match self.ask(request, 0, until)? {
            Reply::Done => Ok(()),
            _ => Err(unexpected()),
        }
    }

    fn indices(
        &self,
        request: &Request<'_>,
        asked: usize,
        until: Until<'_>,
    ) -> Result<Vec<usize>, Status> {
        indices(self.ask(request, asked, until)?)
    }

    /// Waits for keys that fit into one question. The server is asked to answer before the time is over, and again for what is
    /// left: one that is silent costs no more than that, and one that is not has said what is missing.
    fn wait_for(&self, keys: &[&[u8]], until: Until<'_>) -> Result<Vec<usize>, Status> {
        let mut heard: Option<(Instant, Vec<usize>)> = None;
        loop {
            let looked = heard.is_some();
            let waits = |ask: &mut dyn FnMut(&Request<'_>) -> Answer| {
                let time = until.left().map(|left| match left.checked_sub(SPARE) {
                    Some(time) if !time.is_zero() => time,
                    // The first answer may be the last that comes in time.
                    _ if !looked => Duration::ZERO,
                    _ => left - left / 4,
                });
                ask(&Request::Wait { time, keys: keys.into() })
            };
            let answer = self.ask_anew(waits, keys.len(), until).and_then(indices);
            match (answer, heard) {
                (Ok(missing), _) if missing.is_empty() || until.is_over() => return Ok(missing),
                (Ok(missing), _) => heard = Some((Instant::now(), missing)),
                // It was there a moment ago.
                (Err(status), Some((at, missing)))
                    if status.code == Code::DeadlineExceeded && at.elapsed() <= 2 * SPARE =>
                {
                    return Ok(missing);
                }
                (Err(status), _) => return Err(status),
            }
            until.sleep(Duration::from_millis(1))?;
            if let Some((_, missing)) = heard.take_if(|_| until.is_over()) {
                return Ok(missing);
            }
        }
    }
}

fn indices(reply: Reply) -> Result<Vec<usize>, Status> {
    match reply {
        Reply::Indices(all) => Ok(all),
        _ => Err(unexpected()),
    }
}

/// How many of these, one at least, fit into one message.
fn fit(sizes: impl Iterator<Item = usize>) -> usize {
    let mut sum = 0;
    let fits = sizes.take(STORE_CALL).take_while(|size| {
        sum += size + 8;
        sum <= STORE_REPLY
    });
    fits.count().max(1)
}

/// The keys in parts that fit into one message, each with the index of its first.
fn parts<'a>(keys: &'a [&'a [u8]]) -> impl Iterator<Item = (usize, &'a [&'a [u8]])> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = keys.get(at..).filter(|rest| !rest.is_empty())?;
        let count = fit(rest.iter().map(|key| key.len()));
        at += count;
        Some((at - count, &rest[..count]))
    })
}

impl Kind for Client {
    fn name(&self) -> &str {
        &self.name
    }

    fn set(
        &self,
        items: &[(&[u8], &[u8])],
        lease: Option<LeaseId>,
        until: Until<'_>,
    ) -> Result<(), Status> {
        let mut rest = items;
        while !rest.is_empty() {
            let count = fit(rest.iter().map(|(key, value)| key.len() + value.len()));
            let request = Request::Set { lease, items: rest[..count].into() };
            self.done(&request, until)?;
            rest = &rest[count..];
        }
        Ok(())
    }

    fn get(&self, keys: &[&[u8]], until: Until<'_>) -> Result<Vec<Option<Vec<u8>>>, Status> {
        let Some((_, keys)) = parts(keys).next() else { return Ok(Vec::new()) };
        match self.ask(&Request::Get { keys: keys.into() }, keys.len(), until)? {
            Reply::Values(values) if !values.is_empty() => Ok(values),
            _ => Err(unexpected()),
        }
    }

    fn missing(&self, keys: &[&[u8]], until: Until<'_>) -> Result<Vec<usize>, Status> {
        let mut missing = Vec::new();
        for (first, keys) in parts(keys) {
            let request = Request::Missing { keys: keys.into() };
            let some = self.indices(&request, keys.len(), until)?;
            crate::room::grow(&mut missing, some.len(), "keys")?;
            missing.extend(some.into_iter().map(|at| first + at));
        }
        Ok(missing)
    }

    fn wait(&self, keys: &[&[u8]], until: Until<'_>) -> Result<Vec<usize>, Status> {
        if parts(keys).nth(1).is_none() {
            return self.wait_for(keys, until);
        }
        // While one part is waited for the time of the others passes: of these it is known what was missing at first.
        let absent = self.missing(keys, until)?;
        let wanted = crate::room::collect(absent.iter().map(|&at| keys[at]), "keys")?;
        let mut missing = Vec::new();
        for (first, keys) in parts(&wanted) {
            let some = match until.is_over() {
                true => crate::room::collect(0..keys.len(), "keys")?,
                false => self.wait_for(keys, until)?,
            };
            crate::room::grow(&mut missing, some.len(), "keys")?;
            missing.extend(some.into_iter().map(|at| absent[first + at]));
        }
        Ok(missing)
    }

    fn add(
        &self,
        key: &[u8],
        delta: i64,
        lease: Option<LeaseId>,
        until: Until<'_>,
    ) -> Result<i64, Status> {
        match self.ask(&Request::Add { lease, key, delta }, 1, until)? {
            Reply::Number(sum) => Ok(sum),
            _ => Err(unexpected()),
        }
    }

    fn compare_set(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        desired: &[u8],
        lease: Option<LeaseId>,
        until: Until<'_>,
    ) -> Result<Compared, Status> {
        let request = Request::CompareSet { lease, key, expected, desired };
        match self.ask(&request, 1, until)? {
            Reply::Compared(compared) => Ok(compared),
            _ => Err(unexpected()),
        }
    }

    fn delete(&self, keys: &[&[u8]], until: Until<'_>) -> Result<usize, Status> {
        let mut count = 0;
        for (_, keys) in parts(keys) {
            match self.ask(&Request::Delete { keys: keys.into() }, keys.len(), until)? {
                Reply::Number(n) => count += usize::try_from(n).map_err(|_| unexpected())?,
                _ => return Err(unexpected()),
            }
        }
        Ok(count)
    }

    fn lease(&self, id: LeaseId, ttl: Duration, until: Until<'_>) -> Result<(), Status> {
        self.done(&Request::Lease { id, ttl }, until)
    }

    fn release(&self, id: LeaseId, until: Until<'_>) -> Result<(), Status> {
        self.done(&Request::Release { id }, until)
    }
}

#[cfg(test)]
mod tests;
