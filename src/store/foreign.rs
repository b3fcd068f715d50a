//! The application's own store, by functions that it gives.

use std::time::{Duration, Instant};

use super::{Compared, Kind, LeaseId, Until, poll};
use crate::limits::STORE_VALUE;
use crate::status::{Code, Status};

/// A wait of the application's is asked for so long at a time, so that the end of a view is seen in between.
const SLICE: Duration = Duration::from_millis(500);
/// What an operation without deadline is given.
const LONG: Duration = Duration::from_secs(365 * 24 * 3600);

/// What the application gives. Functions that return an `Option` need not be there.
pub trait Runtime: Send + Sync {
    /// Sets a key.
    fn set(&self, key: &[u8], value: &[u8], time: Duration) -> Result<(), Status>;
    /// One look at a key; a value of more than so many bytes is an error.
    fn get(&self, key: &[u8], most: usize, time: Duration) -> Result<Option<Vec<u8>>, Status>;
    /// Whether a key is there.
    fn check(&self, key: &[u8], time: Duration) -> Option<Result<bool, Status>>;
    /// Waits for keys; false: the time was over.
    fn wait(&self, keys: &[&[u8]], time: Duration) -> Option<Result<bool, Status>>;
    /// Adds to a number.
    fn add(&self, key: &[u8], delta: i64, time: Duration) -> Option<Result<i64, Status>>;
    /// Sets a key if its value is what is expected.
    fn compare_set(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        desired: &[u8],
        time: Duration,
    ) -> Option<Result<Compared, Status>>;
    /// Deletes a key; whether it was there.
    fn delete(&self, key: &[u8], time: Duration) -> Option<Result<bool, Status>>;
}

/// A store of the application, called through its functions.
pub struct Foreign {
    name: String,
    runtime: Box<dyn Runtime>,
}

fn time_left(until: Until<'_>) -> Duration {
    until.left().unwrap_or(LONG)
}

impl Foreign {
    /// A store by these functions.
    pub fn new(runtime: Box<dyn Runtime>) -> Foreign {
        Foreign { name: "the application's store".to_owned(), runtime }
    }

    fn lacks(&self, what: &str) -> Status {
        let text = text!("{} has no {what}", self.name);
        Status::new(Code::Unimplemented, text)
    }

    fn refuse_lease(&self, lease: Option<LeaseId>) -> Result<(), Status> {
        if lease.is_some() { Err(self.lacks("leases")) } else { Ok(()) }
    }

    fn is_there(&self, key: &[u8], until: Until<'_>) -> Result<bool, Status> {
        let time = time_left(until);
        match self.runtime.check(key, time) {
            Some(found) => found,
            None => Ok(self.runtime.get(key, STORE_VALUE, time)?.is_some()),
        }
    }
}

impl Kind for Foreign {
    fn name(&self) -> &str {
        &self.name
    }

    fn set(
        &self,
        items: &[(&[u8], &[u8])],
        lease: Option<LeaseId>,
        until: Until<'_>,
    ) -> Result<(), Status> {
        self.refuse_lease(lease)?;
        items.iter().try_for_each(|(key, value)| self.runtime.set(key, value, time_left(until)))
    }

    fn get(&self, keys: &[&[u8]], until: Until<'_>) -> Result<Vec<Option<Vec<u8>>>, Status> {
        // One at a time: how many bytes they are shows afterwards.
        let first = keys.first().map(|key| self.runtime.get(key, STORE_VALUE, time_left(until)));
        first.into_iter().collect()
    }

    fn missing(&self, keys: &[&[u8]], until: Until<'_>) -> Result<Vec<usize>, Status> {
        let mut missing = Vec::new();
        for (i, key) in keys.iter().enumerate() {
            if !self.is_there(key, until)? {
                crate::room::grow(&mut missing, 1, "keys")?;
                missing.push(i);
            }
        }
        Ok(missing)
    }

    fn wait(&self, keys: &[&[u8]], until: Until<'_>) -> Result<Vec<usize>, Status> {
        loop {
            until.stop.check()?;
            let begun = Instant::now();
            let time = time_left(until).min(SLICE);
            match self.runtime.wait(keys, time) {
                None => return poll(keys, until, |keys| self.missing(keys, until)),
                Some(Err(status)) => return Err(status),
                Some(Ok(true)) => return Ok(Vec::new()),
                Some(Ok(false)) if until.is_over() => return self.missing(keys, until),
                // A function that does not wait is not asked in a busy loop.
                Some(Ok(false)) => until
                    .sleep(Duration::from_millis(2).min(time.saturating_sub(begun.elapsed())))?,
            }
        }
    }

    fn add(
        &self,
        key: &[u8],
        delta: i64,
        lease: Option<LeaseId>,
        until: Until<'_>,
    ) -> Result<i64, Status> {
        self.refuse_lease(lease)?;
        self.runtime.add(key, delta, time_left(until)).unwrap_or_else(|| Err(self.lacks("add")))
    }

    fn compare_set(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        desired: &[u8],
        lease: Option<LeaseId>,
        until: Until<'_>,
    ) -> Result<Compared, Status> {
        self.refuse_lease(lease)?;
        self.runtime
            .compare_set(key, expected, desired, time_left(until))
            .unwrap_or_else(|| Err(self.lacks("compare_set")))
    }

    fn delete(&self, keys: &[&[u8]], until: Until<'_>) -> Result<usize, Status> {
        let mut count = 0;
        for key in keys {
            let deleted = self.runtime.delete(key, time_left(until));
            count += usize::from(deleted.unwrap_or_else(|| Err(self.lacks("delete")))?);
        }
        Ok(count)
    }

    fn lease(&self, _id: LeaseId, _ttl: Duration, _until: Until<'_>) -> Result<(), Status> {
        Err(self.lacks("leases"))
    }

    fn release(&self, _id: LeaseId, _until: Until<'_>) -> Result<(), Status> {
        Ok(())
    }
}
