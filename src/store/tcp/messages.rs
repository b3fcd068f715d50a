//! What the clients of a TCP store ask, and what it answers.

use std::borrow::Cow;
use std::time::Duration;

use super::wire::{HEADER, begin, finish, get_status, kind, malformed, put_status};
use crate::bootstrap::auth::TAG;
use crate::limits::{STORE_CALL, STORE_KEY, STORE_VALUE};
use crate::room;
use crate::status::Status;
use crate::store::lease::MAX_TTL;
use crate::store::{Compared, Effect, LeaseId};
use crate::wire::{Reader, Writer};

/// A wait without end.
const FOREVER: u64 = u64::MAX;

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

    /// What it does to the store.
    pub fn effect(&self) -> Effect {
        match self {
            Request::Get { .. } | Request::Wait { .. } | Request::Missing { .. } => Effect::Look,
            Request::Add { .. } | Request::CompareSet { .. } => Effect::Once,
            Request::Set { .. }
            | Request::Delete { .. }
            | Request::Lease { .. }
            | Request::Release { .. } => Effect::Write,
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
            return Err(malformed(text!("{count} keys; allowed are {STORE_CALL}")));
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
            n => Err(malformed(text!("{n} bytes too many"))),
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
                if id == 0 || ttl > MAX_TTL {
                    return Err(malformed(text!("a lease of {} ms", ttl.as_millis())));
                }
                Request::Lease { id, ttl }
            }
            kind::RELEASE => Request::Release { id: f.id()? },
            other => return Err(malformed(text!("type {other}"))),
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
            false => Err(malformed(text!("{count} answers for {asked} keys"))),
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
                        return Err(malformed(text!("key {at} of {asked}")));
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
                other => return Err(malformed(text!("comparison {other}"))),
            }),
            kind::FAILED => Reply::Failed(get_status(&mut f.0)?),
            other => return Err(malformed(text!("type {other}"))),
        };
        f.end()?;
        Ok(reply)
    }
}
