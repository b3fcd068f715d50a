//! Stores: keys and values by which processes of a job find each other before they can send.
//!
//! A [`Store`] is what a handle of the C ABI stands for: a view of a *kind* with a prefix, perhaps with a lease. The kinds
//! are files of their own behind the trait [`Kind`]: [`memory`], [`mod@file`], [`tcp`], [`redis`], and [`foreign`], the
//! application's. Prefixes, limits, deadlines and the words of errors are here, once for all of them.
//!
//! What one look finds is the kind's to say; how long to go on looking is said by [`Until`]. Whoever ends the view ends
//! its calls by [`stop::Stop`]: each of them sleeps where that wakes it.

pub mod file;
pub mod foreign;
mod idle;
mod kind;
pub mod lease;
pub mod memory;
mod names;
mod number;
#[cfg(feature = "redis")]
pub mod redis;
mod socket;
pub mod stop;
pub mod tcp;
mod until;
mod waiters;

use std::cell::Cell;
use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::limits::{STORE_KEY, STORE_VALUE};
use crate::os::OwnThread;
use crate::shown;
use crate::status::{Code, Reason, Status};
pub use kind::{Compared, Kind, LeaseId};
use lease::Lease;
#[cfg(feature = "redis")]
pub(crate) use number::number;
pub(crate) use number::sum;
use stop::Stop;
pub use until::Until;
pub(crate) use until::{Effect, Failed, patiently, poll};

/// Time for an operation that does not say.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(120);
/// Missing keys that an error names.
const NAMED: usize = 8;

thread_local! {
    /// This is a thread of a store, which the store's end waits for. It needs no drop, and is never dead.
    static OWN: Cell<bool> = const { Cell::new(false) };
}

/// Starts a thread of a store.
fn spawn(name: &str, f: impl FnOnce() + Send + 'static) -> std::io::Result<OwnThread> {
    crate::os::spawn(name, move || {
        OWN.set(true);
        f();
    })
}

/// Whether this is a thread of a store: what it logs may be heard there, and whoever hears it can end no store, which
/// might be its own.
pub fn on_own_thread() -> bool {
    OWN.get()
}

/// How long to look for keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// As the store was set up.
    Default,
    /// One look.
    Now,
    /// One look, for which a network has so long.
    Look(Duration),
    /// So long.
    For(Duration),
    /// Without a deadline.
    Forever,
}

impl Patience {
    fn is_one_look(self) -> bool {
        matches!(self, Patience::Now | Patience::Look(_))
    }
}

/// A view of a store, as a handle of the C ABI stands for one.
pub struct Store {
    kind: Arc<dyn Kind>,
    /// With its separator.
    prefix: Box<[u8]>,
    lease: Option<Arc<Lease>>,
    stop: Arc<Stop>,
    timeout: Duration,
}

/// Keys as kinds are given them.
pub(crate) fn slices(keys: &[impl AsRef<[u8]>]) -> Result<Vec<&[u8]>, Status> {
    crate::room::collect(keys.iter().map(AsRef::as_ref), "keys")
}

fn too_long(name: &str, what: &str, len: usize, most: usize) -> Status {
    Status::invalid(text!("{name}: a {what} of {len} bytes, allowed are at most {most}"))
}

impl Store {
    /// A view of the whole of a store; operations that do not say take at most `timeout`.
    pub fn new(kind: Arc<dyn Kind>, timeout: Duration) -> Result<Store, Status> {
        let stop = Arc::new(Stop::new()?);
        Ok(Store { kind, prefix: Box::default(), lease: None, stop, timeout })
    }

    fn view(&self) -> Result<Store, Status> {
        Ok(Store {
            kind: self.kind.clone(),
            prefix: crate::room::concat(&[&self.prefix], "a prefix")?,
            lease: self.lease.clone(),
            stop: Arc::new(Stop::new()?),
            timeout: self.timeout,
        })
    }

    /// A view of what is under `prefix`: key "k" of it is key "prefix/k" of this one.
    pub fn prefix(&self, prefix: &[u8]) -> Result<Store, Status> {
        let len = self.prefix.len() + prefix.len() + 1;
        if prefix.is_empty() || len >= STORE_KEY {
            let text = text!(
                "{}: a prefix of {} bytes behind one of {}, allowed are 1 to {} in all",
                self.kind.name(),
                prefix.len(),
                self.prefix.len(),
                STORE_KEY - 2
            );
            return Err(Status::invalid(text));
        }
        let prefix = crate::room::concat(&[&self.prefix, prefix, b"/"], "a prefix")?;
        Ok(Store { prefix, ..self.view()? })
    }

    /// A view whose writes last as long as it is renewed, which a thread does until the view ends.
    pub fn leased(&self, ttl: Duration) -> Result<Store, Status> {
        let (view, until) = (self.view()?, self.until(Patience::Default));
        let lease = Lease::begin(self.kind.clone(), ttl, true, until)
            .map_err(|status| self.about_lease(status))?;
        Ok(Store { lease: Some(Arc::new(lease)), ..view })
    }

    /// A view whose writes last for `ttl` after the last [`Store::renew`], and which ends with this one. Where this one is
    /// leased it has that lease; where the kind has no leases they last.
    pub(crate) fn lent(&self, ttl: Duration, patience: Patience) -> Result<Store, Status> {
        let prefix = crate::room::concat(&[&self.prefix], "a prefix")?;
        let lease = match &self.lease {
            Some(lease) => Some(lease.clone()),
            None => {
                let until = self.until(patience);
                match Lease::begin(self.kind.clone(), ttl, false, until) {
                    Ok(lease) => Some(Arc::new(lease)),
                    Err(status) if status.code == Code::Unimplemented => None,
                    Err(status) => return Err(self.about_lease(status)),
                }
            }
        };
        let (kind, stop) = (self.kind.clone(), self.stop.clone());
        Ok(Store { kind, prefix, lease, stop, timeout: self.timeout })
    }

    /// Whether this view's writes are under no lease, or one that is held.
    pub(crate) fn holds(&self) -> bool {
        self.lease.as_ref().is_none_or(|lease| lease.id().is_ok())
    }

    /// Renews the lease of a view that [`Store::lent`] made.
    pub(crate) fn renew(&self, patience: Patience) -> Result<(), Status> {
        let until = self.until(patience);
        self.lease.as_ref().map_or(Ok(()), |lease| lease.renew(until))
    }

    /// Leaves this view's lease to its time, as the end of the process does: for tests.
    #[doc(hidden)]
    pub fn abandon(self) {
        if let Some(lease) = &self.lease {
            lease.let_go();
        }
    }

    /// The store's name for errors.
    pub fn name(&self) -> &str {
        self.kind.name()
    }

    /// How long this view's operations may take.
    pub fn until(&self, patience: Patience) -> Until<'_> {
        let time = match patience {
            Patience::Default | Patience::Now => Some(self.timeout),
            Patience::For(time) | Patience::Look(time) => Some(time),
            Patience::Forever => None,
        };
        Until::after(time, &self.stop)
    }

    /// Ends all calls of this view, and refuses new ones.
    pub fn stop(&self) {
        self.stop.stop();
        self.kind.nudge();
    }

    fn key(&self, key: &[u8]) -> Result<Box<[u8]>, Status> {
        let len = self.prefix.len() + key.len();
        if key.is_empty() {
            let text = text!("{}: a key of 0 bytes, allowed are 1 to {STORE_KEY}", self.name());
            return Err(Status::invalid(text));
        }
        if len > STORE_KEY {
            return Err(too_long(self.name(), "key with its prefixes", len, STORE_KEY));
        }
        crate::room::concat(&[&self.prefix, key], "a key")
    }

    fn keys(&self, keys: &[&[u8]]) -> Result<Vec<Box<[u8]>>, Status> {
        let mut whole = Vec::new();
        crate::room::grow(&mut whole, keys.len(), "keys")?;
        for key in keys {
            whole.push(self.key(key)?);
        }
        Ok(whole)
    }

    fn check_value(&self, key: &[u8], value: &[u8]) -> Result<(), Status> {
        if value.len() > STORE_VALUE {
            let what = text!("value of key '{}'", shown::key(key));
            return Err(too_long(self.name(), &what, value.len(), STORE_VALUE));
        }
        Ok(())
    }

    /// The lease that a write is under. A lease that was lost takes none.
    fn writes(&self) -> Result<Option<LeaseId>, Status> {
        self.stop.check()?;
        self.lease.as_ref().map(|lease| lease.id()).transpose()
    }

    /// Names the store and the key in an error that does not yet.
    fn about(&self, key: &[u8], status: Status) -> Status {
        if status.code != Code::Cancelled && !status.message.contains(self.name()) {
            let (name, key) = (self.name(), shown::key(key));
            let text = text!("{name}: key '{key}': {}", status.message);
            return status.with_message(text);
        }
        status
    }

    /// Names the store in an error of a lease that does not yet.
    fn about_lease(&self, status: Status) -> Status {
        if status.code != Code::Cancelled && !status.message.contains(self.name()) {
            let text = text!("{}: {}", self.name(), status.message);
            return status.with_message(text);
        }
        status
    }

    fn about_all(&self, keys: &[&[u8]], status: Status) -> Status {
        match keys {
            [one] => self.about(one, status),
            _ => self.about(format!("{} keys", keys.len()).as_bytes(), status),
        }
    }

    /// Sets each key to its value.
    pub fn set(&self, items: &[(&[u8], &[u8])], patience: Patience) -> Result<(), Status> {
        let keys = crate::room::collect(items.iter().map(|(key, _)| *key), "keys")?;
        for (key, value) in items {
            self.check_value(key, value)?;
        }
        let (whole, lease) = (self.keys(&keys)?, self.writes()?);
        let items = whole.iter().zip(items).map(|(key, (_, value))| (&**key, *value));
        let items = crate::room::collect(items, "keys")?;
        self.kind
            .set(&items, lease, self.until(patience))
            .map_err(|status| self.about_all(&keys, status))
    }

    /// The values of the keys, once they are there.
    pub fn get(&self, keys: &[&[u8]], patience: Patience) -> Result<Vec<Vec<u8>>, Status> {
        let whole = self.keys(keys)?;
        let whole = slices(&whole)?;
        let (begun, until) = (Instant::now(), self.until(patience));
        let mut values = Vec::new();
        crate::room::grow(&mut values, keys.len(), "values")?;
        let mut pause = Duration::ZERO;
        while values.len() < keys.len() {
            self.stop.check()?;
            let at = values.len();
            let found = self
                .kind
                .get(&whole[at..], until)
                .map_err(|status| self.about_all(&keys[at..], status))?;
            let before = values.len();
            values.extend(found.into_iter().map_while(|value| value));
            if values.len() > before {
                pause = Duration::ZERO;
                continue;
            }
            if patience.is_one_look() {
                return Err(self.absent(Code::NotFound, keys, &[at], begun));
            }
            let missing = self
                .kind
                .wait(&whole[at..], until)
                .map_err(|status| self.about_all(&keys[at..], status))?;
            if !missing.is_empty() {
                let missing = crate::room::collect(missing.iter().map(|i| i + at), "keys")?;
                return Err(self.absent(Code::DeadlineExceeded, keys, &missing, begun));
            }
            // What has been there may be gone. A store that says so each time is not asked in a busy loop, nor for ever.
            if !pause.is_zero() {
                if until.is_over() {
                    return Err(self.absent(Code::DeadlineExceeded, keys, &[at], begun));
                }
                until.sleep(pause)?;
            }
            pause = (pause * 2).clamp(Duration::from_millis(1), Duration::from_millis(20));
        }
        Ok(values)
    }

    /// Waits until each of the keys has been there.
    pub fn wait(&self, keys: &[&[u8]], patience: Patience) -> Result<(), Status> {
        let begun = Instant::now();
        let missing = self.wait_for(keys, patience)?;
        if missing.is_empty() {
            return Ok(());
        }
        Err(self.absent(Code::DeadlineExceeded, keys, &missing, begun))
    }

    /// The same; those that are missing.
    pub(crate) fn wait_for(
        &self,
        keys: &[&[u8]],
        patience: Patience,
    ) -> Result<Vec<usize>, Status> {
        let whole = self.keys(keys)?;
        let whole = slices(&whole)?;
        self.stop.check()?;
        let until = self.until(patience);
        let missing = match patience.is_one_look() {
            true => self.kind.missing(&whole, until),
            false => self.kind.wait(&whole, until),
        };
        missing.map_err(|status| self.about_all(keys, status))
    }

    /// Whether all of the keys are there.
    pub fn check(&self, keys: &[&[u8]], patience: Patience) -> Result<bool, Status> {
        let whole = self.keys(keys)?;
        let whole = slices(&whole)?;
        self.stop.check()?;
        let missing = self.kind.missing(&whole, self.until(patience));
        Ok(missing.map_err(|status| self.about_all(keys, status))?.is_empty())
    }

    /// Adds to a decimal number; its new value.
    pub fn add(&self, key: &[u8], delta: i64, patience: Patience) -> Result<i64, Status> {
        let (whole, lease) = (self.key(key)?, self.writes()?);
        self.kind
            .add(&whole, delta, lease, self.until(patience))
            .map_err(|status| self.about(key, status))
    }

    /// Sets the key if its value is what is expected, `None`: if it is not there.
    pub fn compare_set(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        desired: &[u8],
        patience: Patience,
    ) -> Result<Compared, Status> {
        self.check_value(key, desired)?;
        self.check_value(key, expected.unwrap_or_default())?;
        let (whole, lease) = (self.key(key)?, self.writes()?);
        self.kind
            .compare_set(&whole, expected, desired, lease, self.until(patience))
            .map_err(|status| self.about(key, status))
    }

    /// Deletes the keys; how many were there.
    pub fn delete(&self, keys: &[&[u8]], patience: Patience) -> Result<usize, Status> {
        let whole = self.keys(keys)?;
        let whole = slices(&whole)?;
        self.stop.check()?;
        self.kind
            .delete(&whole, self.until(patience))
            .map_err(|status| self.about_all(keys, status))
    }

    /// The error for keys that are not there.
    fn absent(&self, code: Code, keys: &[&[u8]], missing: &[usize], begun: Instant) -> Status {
        let names = named(
            missing.iter().filter_map(|&i| keys.get(i)).map(|key| format!("'{}'", shown::key(key))),
        );
        let when = match code {
            Code::NotFound => "now".to_owned(),
            _ => format!("after {:.3} s", begun.elapsed().as_secs_f64()),
        };
        let of = if keys.len() > 1 {
            format!("{} of {} keys are", missing.len(), keys.len())
        } else {
            "one key is".to_owned()
        };
        let inside = match self.prefix.strip_suffix(b"/") {
            Some(prefix) => format!(" under '{}'", shown::key(prefix)),
            None => String::new(),
        };
        let name = self.name();
        let text = format_args!("{name}{inside}: {of} not there {when}: {names}");
        let text = crate::room::said(text);
        let reason = if code == Code::NotFound { Reason::None } else { Reason::Deadline };
        Status::new(code, text).because(reason)
    }
}

/// A store in the Redis server at `address`, "host:port" or "unix:/path".
#[cfg(feature = "redis")]
pub fn in_redis(address: &str, password: Option<&[u8]>) -> Result<Arc<dyn Kind>, Status> {
    Ok(Arc::new(redis::RedisStore::new(address, password)?))
}

/// This build has none.
#[cfg(not(feature = "redis"))]
pub fn in_redis(address: &str, _password: Option<&[u8]>) -> Result<Arc<dyn Kind>, Status> {
    let text = text!("redis store at {address}: this library was built without the feature redis");
    Err(Status::new(Code::Unimplemented, text))
}

/// The first few of many, and how many more there are.
pub(crate) fn named(all: impl Iterator<Item = impl Display>) -> String {
    let (mut text, mut count) = (String::new(), 0);
    for one in all {
        count += 1;
        if count <= NAMED {
            let comma = if count > 1 { ", " } else { "" };
            text.push_str(&format!("{comma}{one}"));
        }
    }
    if count > NAMED {
        text.push_str(&format!(" and {} more", count - NAMED));
    }
    text
}
