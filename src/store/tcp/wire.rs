//! Messages between a TCP store and its clients.
//!
//! A message is its length (4 bytes, little-endian, of what follows), its type (1), its fields, and, once both sides have
//! proved the secret, a tag (32). A client says HELLO and AUTH, the server WELCOME and READY; then the client asks, one
//! question at a time, and the server answers. Without a secret the proofs and tags are those of an empty one: damage is
//! found, and nothing else.

use std::borrow::Cow;
use std::time::Duration;

use crate::bootstrap::auth::{Keys, TAG, Transcript};
use crate::limits::{STORE_CALL, STORE_KEY, STORE_VALUE};
use crate::room;
use crate::status::{Code, Status};
use crate::store::{Compared, LeaseId};
use crate::wire::{Reader, Writer};

/// First bytes of a HELLO and a WELCOME.
pub const MAGIC: [u8; 8] = *b"RDMSTORE";
/// The one version.
pub const VERSION: u16 = 1;
/// Length and type.
pub const HEADER: usize = 5;
/// Longest message before the secret was proved.
pub const MAX_FIRST: usize = 600;
/// Longest message: a comparison, with the value that is expected and the new one.
pub const MAX_MESSAGE: usize = 2 * STORE_VALUE + STORE_KEY + 4096;
/// Longest text of an error.
pub const MAX_TEXT: usize = 512;
/// A wait without end.
const FOREVER: u64 = u64::MAX;

/// Types of messages.
pub mod kind {
    pub const HELLO: u8 = 1;
    pub const WELCOME: u8 = 2;
    pub const AUTH: u8 = 3;
    pub const READY: u8 = 4;
    pub const REJECT: u8 = 5;
    pub const SET: u8 = 16;
    pub const GET: u8 = 17;
    pub const WAIT: u8 = 18;
    pub const ADD: u8 = 19;
    pub const COMPARE_SET: u8 = 20;
    pub const DELETE: u8 = 21;
    pub const MISSING: u8 = 22;
    pub const LEASE: u8 = 23;
    pub const RELEASE: u8 = 24;
    pub const DONE: u8 = 32;
    pub const VALUES: u8 = 33;
    pub const INDICES: u8 = 34;
    pub const NUMBER: u8 = 35;
    pub const COMPARED: u8 = 36;
    pub const FAILED: u8 = 37;
}

/// A key and its value.
pub type Item<'a> = (&'a [u8], &'a [u8]);

/// What is asked of several keys: of who asks, or of who has heard it.
pub type Many<'a, T> = Cow<'a, [T]>;

/// What a client asks for.
#[derive(Debug)]
pub enum Request<'a> {
    Set {
        lease: Option<LeaseId>,
        items: Many<'a, Item<'a>>,
    },
    Get {
        keys: Many<'a, &'a [u8]>,
    },
    Wait {
        time: Option<Duration>,
        keys: Many<'a, &'a [u8]>,
    },
    Add {
        lease: Option<LeaseId>,
        key: &'a [u8],
        delta: i64,
    },
    CompareSet {
        lease: Option<LeaseId>,
        key: &'a [u8],
        expected: Option<&'a [u8]>,
        desired: &'a [u8],
    },
    Delete {
        keys: Many<'a, &'a [u8]>,
    },
    Missing {
        keys: Many<'a, &'a [u8]>,
    },
    Lease {
        id: LeaseId,
        ttl: Duration,
    },
    Release {
        id: LeaseId,
    },
}

/// What the server answers.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    Done,
    Values(Vec<Option<Vec<u8>>>),
    Indices(Vec<usize>),
    Number(i64),
    Compared(Compared),
    Failed(Status),
}

/// A message that breaks the protocol.
pub fn malformed(what: impl std::fmt::Display) -> Status {
    Status::new(Code::DataLoss, format!("malformed message of a store: {what}"))
}

/// Begins a message; [`finish`] ends it.
pub fn begin(out: &mut Vec<u8>, kind: u8) -> usize {
    let at = out.len();
    Writer::new(out).u32(0).u8(kind);
    at
}

/// Fills in the length, with the tag that follows.
pub fn finish(out: &mut Vec<u8>, at: usize, tag: usize) {
    let len = out.len() - at - 4 + tag;
    Writer::new(out).patch_u32(at, len as u32);
}

fn lease(w: &mut Writer<'_>, lease: Option<LeaseId>) {
    w.bytes(&lease.unwrap_or(0).to_le_bytes());
}

fn keys(w: &mut Writer<'_>, keys: &[&[u8]]) {
    w.u32(keys.len() as u32);
    for key in keys {
        w.bytes16(key);
    }
}

impl Request<'_> {
    /// Bytes that it needs, about, and at least.
    fn size(&self) -> usize {
        let all = |keys: &[&[u8]]| keys.iter().map(|key| key.len() + 2).sum::<usize>();
        64 + match self {
            Request::Set { items, .. } => {
                items.iter().map(|(key, value)| key.len() + value.len() + 6).sum()
            }
            Request::Get { keys }
            | Request::Wait { keys, .. }
            | Request::Delete { keys }
            | Request::Missing { keys } => all(keys),
            Request::CompareSet { key, expected, desired, .. } => {
                key.len() + expected.map_or(0, <[u8]>::len) + desired.len()
            }
            Request::Add { key, .. } => key.len(),
            Request::Lease { .. } | Request::Release { .. } => 0,
        }
    }

    /// Appends it, without its tag.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<usize, Status> {
        room::grow(out, self.size() + HEADER + TAG, "bytes of a message")?;
        let kind = match self {
            Request::Set { .. } => kind::SET,
            Request::Get { .. } => kind::GET,
            Request::Wait { .. } => kind::WAIT,
            Request::Add { .. } => kind::ADD,
            Request::CompareSet { .. } => kind::COMPARE_SET,
            Request::Delete { .. } => kind::DELETE,
            Request::Missing { .. } => kind::MISSING,
            Request::Lease { .. } => kind::LEASE,
            Request::Release { .. } => kind::RELEASE,
        };
        let at = begin(out, kind);
        let mut w = Writer::new(out);
        match self {
            Request::Set { lease: id, items } => {
                lease(&mut w, *id);
                w.u32(items.len() as u32);
                for (key, value) in &**items {
                    w.bytes16(key).bytes32(value);
                }
            }
            Request::Get { keys: all }
            | Request::Delete { keys: all }
            | Request::Missing { keys: all } => keys(&mut w, all),
            Request::Wait { time, keys: all } => {
                w.u64(time.map_or(FOREVER, |t| t.as_millis().min(1 << 62) as u64));
                keys(&mut w, all);
            }
            Request::Add { lease: id, key, delta } => {
                lease(&mut w, *id);
                w.i64(*delta).bytes16(key);
            }
            Request::CompareSet { lease: id, key, expected, desired } => {
                lease(&mut w, *id);
                w.u8(u8::from(expected.is_some()));
                w.bytes16(key).bytes32(expected.unwrap_or_default()).bytes32(desired);
            }
            Request::Lease { id, ttl } => {
                w.bytes(&id.to_le_bytes()).u64(ttl.as_millis() as u64);
            }
            Request::Release { id } => {
                w.bytes(&id.to_le_bytes());
            }
        }
        finish(out, at, TAG);
        Ok(at)
    }
}

struct Fields<'a>(Reader<'a>);

impl<'a> Fields<'a> {
    fn id(&mut self) -> Result<LeaseId, Status> {
        Ok(u128::from_le_bytes(self.0.array().map_err(malformed)?))
    }

    fn lease(&mut self) -> Result<Option<LeaseId>, Status> {
        Ok(Some(self.id()?).filter(|&id| id != 0))
    }

    fn count(&mut self) -> Result<usize, Status> {
        let count = self.0.u32().map_err(malformed)? as usize;
        // Each has two bytes at least, so that no count is larger than its message.
        if count > STORE_CALL || count > self.0.remaining() {
            return Err(malformed(format!("{count} keys; allowed are {STORE_CALL}")));
        }
        Ok(count)
    }

    fn key(&mut self) -> Result<&'a [u8], Status> {
        let key = self.0.bytes16(STORE_KEY).map_err(malformed)?;
        if key.is_empty() { Err(malformed("an empty key")) } else { Ok(key) }
    }

    fn keys(&mut self) -> Result<Many<'a, &'a [u8]>, Status> {
        let count = self.count()?;
        let mut keys = Vec::new();
        room::grow(&mut keys, count, "keys")?;
        for _ in 0..count {
            keys.push(self.key()?);
        }
        Ok(keys.into())
    }

    fn value(&mut self) -> Result<&'a [u8], Status> {
        self.0.bytes32(STORE_VALUE).map_err(malformed)
    }

    fn u64(&mut self) -> Result<u64, Status> {
        self.0.u64().map_err(malformed)
    }

    fn items(&mut self) -> Result<Many<'a, Item<'a>>, Status> {
        let count = self.count()?;
        let mut items = Vec::new();
        room::grow(&mut items, count, "keys")?;
        for _ in 0..count {
            items.push((self.key()?, self.value()?));
        }
        Ok(items.into())
    }

    fn end(&self) -> Result<(), Status> {
        match self.0.remaining() {
            0 => Ok(()),
            n => Err(malformed(format!("{n} bytes too many"))),
        }
    }
}

impl<'a> Request<'a> {
    /// Takes a message apart, without its length and tag. What is in it is within the bounds.
    pub fn decode(message: &'a [u8]) -> Result<Request<'a>, Status> {
        let mut f = Fields(Reader::new(message));
        let request = match f.0.u8().map_err(malformed)? {
            kind::SET => Request::Set { lease: f.lease()?, items: f.items()? },
            kind::GET => Request::Get { keys: f.keys()? },
            kind::WAIT => {
                let time = Some(f.u64()?).filter(|&ms| ms != FOREVER).map(Duration::from_millis);
                Request::Wait { time, keys: f.keys()? }
            }
            kind::ADD => {
                let lease = f.lease()?;
                let delta = f.0.i64().map_err(malformed)?;
                Request::Add { lease, key: f.key()?, delta }
            }
            kind::COMPARE_SET => {
                let lease = f.lease()?;
                let expects = f.0.u8().map_err(malformed)? != 0;
                let (key, expected, desired) = (f.key()?, f.value()?, f.value()?);
                let expected = expects.then_some(expected);
                Request::CompareSet { lease, key, expected, desired }
            }
            kind::DELETE => Request::Delete { keys: f.keys()? },
            kind::MISSING => Request::Missing { keys: f.keys()? },
            kind::LEASE => {
                let (id, ttl) = (f.id()?, Duration::from_millis(f.u64()?));
                if id == 0 || ttl > super::super::lease::MAX_TTL {
                    return Err(malformed(format!("a lease of {} ms", ttl.as_millis())));
                }
                Request::Lease { id, ttl }
            }
            kind::RELEASE => Request::Release { id: f.id()? },
            other => return Err(malformed(format!("type {other}"))),
        };
        f.end()?;
        Ok(request)
    }
}

impl Reply {
    /// Appends it, without its tag.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<usize, Status> {
        let size = match self {
            Reply::Values(values) => {
                values.iter().map(|value| 5 + value.as_ref().map_or(0, Vec::len)).sum()
            }
            Reply::Indices(all) => 4 * all.len(),
            Reply::Compared(Compared::Differs(value)) => value.len(),
            Reply::Failed(status) => status.message.len(),
            _ => 0,
        };
        room::grow(out, size + 64 + TAG, "bytes of an answer")?;
        let kind = match self {
            Reply::Done => kind::DONE,
            Reply::Values(_) => kind::VALUES,
            Reply::Indices(_) => kind::INDICES,
            Reply::Number(_) => kind::NUMBER,
            Reply::Compared(_) => kind::COMPARED,
            Reply::Failed(_) => kind::FAILED,
        };
        let at = begin(out, kind);
        let mut w = Writer::new(out);
        match self {
            Reply::Done => {}
            Reply::Values(values) => {
                w.u32(values.len() as u32);
                for value in values {
                    w.u8(u8::from(value.is_some())).bytes32(value.as_deref().unwrap_or_default());
                }
            }
            Reply::Indices(all) => {
                w.u32(all.len() as u32);
                for &i in all {
                    w.u32(i as u32);
                }
            }
            Reply::Number(n) => {
                w.i64(*n);
            }
            Reply::Compared(Compared::Set) => {
                w.u8(0);
            }
            Reply::Compared(Compared::Absent) => {
                w.u8(1);
            }
            Reply::Compared(Compared::Differs(value)) => {
                w.u8(2).bytes32(value);
            }
            Reply::Failed(status) => put_status(&mut w, status),
        }
        finish(out, at, TAG);
        Ok(at)
    }

    /// Takes a message apart, without its length and tag; `asked`: how many keys were asked for.
    pub fn decode(message: &[u8], asked: usize) -> Result<Reply, Status> {
        let mut f = Fields(Reader::new(message));
        let bounded = |count: usize| match count <= asked {
            true => Ok(count),
            false => Err(malformed(format!("{count} answers for {asked} keys"))),
        };
        let reply = match f.0.u8().map_err(malformed)? {
            kind::DONE => Reply::Done,
            kind::VALUES => {
                let count = bounded(f.0.u32().map_err(malformed)? as usize)?;
                let mut values = Vec::new();
                room::grow(&mut values, count, "values")?;
                for _ in 0..count {
                    let there = f.0.u8().map_err(malformed)? != 0;
                    let value = f.value()?;
                    values.push(there.then(|| room::copy(value, "a value")).transpose()?);
                }
                Reply::Values(values)
            }
            kind::INDICES => {
                let count = bounded(f.0.u32().map_err(malformed)? as usize)?;
                let mut all = Vec::new();
                room::grow(&mut all, count, "keys")?;
                for _ in 0..count {
                    let at = f.0.u32().map_err(malformed)? as usize;
                    if at >= asked {
                        return Err(malformed(format!("key {at} of {asked}")));
                    }
                    all.push(at);
                }
                Reply::Indices(all)
            }
            kind::NUMBER => Reply::Number(f.0.i64().map_err(malformed)?),
            kind::COMPARED => Reply::Compared(match f.0.u8().map_err(malformed)? {
                0 => Compared::Set,
                1 => Compared::Absent,
                2 => Compared::Differs(room::copy(f.value()?, "a value")?),
                other => return Err(malformed(format!("comparison {other}"))),
            }),
            kind::FAILED => Reply::Failed(get_status(&mut f.0)?),
            other => return Err(malformed(format!("type {other}"))),
        };
        f.end()?;
        Ok(reply)
    }
}

/// An error's code and text.
pub fn put_status(w: &mut Writer<'_>, status: &Status) {
    let mut end = status.message.len().min(MAX_TEXT);
    while !status.message.is_char_boundary(end) {
        end -= 1;
    }
    w.i32(status.code as i32).bytes16(&status.message.as_bytes()[..end]);
}

/// An error of the other side: its text is a stranger's.
pub fn get_status(r: &mut Reader<'_>) -> Result<Status, Status> {
    let number = r.i32().map_err(malformed)?;
    let code = Code::from_i32(number).filter(|&code| code != Code::Ok);
    let code = code.ok_or_else(|| malformed(format!("code {number}")))?;
    let text = r.bytes16(MAX_TEXT).map_err(malformed)?;
    Ok(Status::new(code, crate::shown::text(&String::from_utf8_lossy(text)).into_owned()))
}

/// A HELLO or a WELCOME.
pub fn greeting(kind: u8, nonce: &[u8; 32]) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    let at = begin(&mut out, kind);
    Writer::new(&mut out).bytes(&MAGIC).u16(VERSION).bytes(nonce);
    finish(&mut out, at, 0);
    out
}

/// The nonce of a greeting, without its length.
pub fn greeted(kind: u8, message: &[u8]) -> Result<[u8; 32], Status> {
    let mut r = Reader::new(message);
    let found = r.u8().map_err(malformed)?;
    if found == kind::REJECT {
        return Err(get_status(&mut r)?);
    }
    if found != kind || r.array::<8>().map_err(malformed)? != MAGIC {
        let text = "the far end is no store of rdma-transport";
        return Err(Status::new(Code::InvalidArgument, text));
    }
    let version = r.u16().map_err(malformed)?;
    if version != VERSION {
        let text = format!("the far end speaks version {version}, this library version {VERSION}");
        return Err(Status::new(Code::FailedPrecondition, text));
    }
    let nonce = r.array().map_err(malformed)?;
    if r.is_empty() { Ok(nonce) } else { Err(malformed("a greeting that is too long")) }
}

/// A proof of the secret, as a message.
pub fn proof(kind: u8, proof: &[u8; TAG]) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    let at = begin(&mut out, kind);
    Writer::new(&mut out).bytes(proof);
    finish(&mut out, at, 0);
    out
}

/// The keys of a connection, from both greetings as they were sent.
pub fn derive(
    secret: Option<&[u8]>,
    hello: &[u8],
    welcome: &[u8],
    nonces: [&[u8; 32]; 2],
) -> Result<Keys, Status> {
    Keys::new(secret, &Transcript { nonces, frames: [hello, welcome] })
}

/// Appends the tag to a message that begins at `at`: the whole of it, with its length.
pub fn seal(out: &mut Vec<u8>, at: usize, keys: &Keys, client: bool, seq: u64) {
    let tag = keys.seal(client, seq, &out[at..]);
    out.extend_from_slice(&tag);
}

/// Checks and takes off length and tag of a whole message.
pub fn open<'a>(whole: &'a [u8], keys: &Keys, client: bool, seq: u64) -> Result<&'a [u8], Status> {
    let body = body(whole)?;
    let (said, tag) = whole.split_at(4 + body.len());
    keys.verify_seal(client, seq, said, tag).map(|()| body)
}

/// A whole message without its length and tag.
pub fn body(whole: &[u8]) -> Result<&[u8], Status> {
    let end = whole.len().checked_sub(TAG).filter(|&end| end >= HEADER);
    end.map(|end| &whole[4..end]).ok_or_else(|| malformed("a message without tag"))
}

/// Length of the message at the front, with its length field, once that is there.
pub fn whole(bytes: &[u8], most: usize) -> Result<Option<usize>, Status> {
    let Some(len) = bytes.first_chunk::<4>() else { return Ok(None) };
    let len = u32::from_le_bytes(*len) as usize;
    if len == 0 || len > most {
        return Err(malformed(format!("{len} bytes; allowed are 1 to {most}")));
    }
    Ok(Some(len + 4))
}
