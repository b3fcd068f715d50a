//! What a kind of store does, and a view of one asks it for.

use std::time::Duration;

use super::until::{Until, poll};
use crate::status::Status;

/// Random number of a lease; never 0.
pub type LeaseId = u128;

/// How a compare-and-set ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compared {
    /// The value was as expected, and is now the new one.
    Set,
    /// Another value is there.
    Differs(Vec<u8>),
    /// Nothing is there, and something was expected.
    Absent,
}

/// What a kind of store does. Keys are whole, with their prefixes, and lengths are within bounds. Any thread may call
/// any of it at any time. A kind that needs time to be reached goes on trying until the deadline.
pub trait Kind: Send + Sync {
    /// As errors call it: "file store '/tmp/x'".
    fn name(&self) -> &str;

    /// Sets each of the keys. Those of one call need not become visible at once.
    fn set(
        &self,
        items: &[(&[u8], &[u8])],
        lease: Option<LeaseId>,
        until: Until<'_>,
    ) -> Result<(), Status>;

    /// One look at each of the keys. May stop early where the values are many bytes; one is there at least.
    fn get(&self, keys: &[&[u8]], until: Until<'_>) -> Result<Vec<Option<Vec<u8>>>, Status>;

    /// The keys that are not there, at one look.
    fn missing(&self, keys: &[&[u8]], until: Until<'_>) -> Result<Vec<usize>, Status>;

    /// Waits until each of the keys has been there; those that were not when the deadline passed.
    fn wait(&self, keys: &[&[u8]], until: Until<'_>) -> Result<Vec<usize>, Status> {
        poll(keys, until, |keys| self.missing(keys, until))
    }

    /// Adds to a decimal number; nothing counts as 0.
    fn add(
        &self,
        key: &[u8],
        delta: i64,
        lease: Option<LeaseId>,
        until: Until<'_>,
    ) -> Result<i64, Status>;

    /// Sets the key if its value is what is expected, `None`: if it is not there.
    fn compare_set(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        desired: &[u8],
        lease: Option<LeaseId>,
        until: Until<'_>,
    ) -> Result<Compared, Status>;

    /// Deletes the keys; how many were there.
    fn delete(&self, keys: &[&[u8]], until: Until<'_>) -> Result<usize, Status>;

    /// Begins or renews a lease, which is good for so long from now on.
    fn lease(&self, id: LeaseId, ttl: Duration, until: Until<'_>) -> Result<(), Status>;

    /// Ends a lease: what was written under it, and by nobody else since, is deleted.
    fn release(&self, id: LeaseId, until: Until<'_>) -> Result<(), Status>;

    /// A lease is left to its time: nobody here renews or releases it any more.
    fn forget(&self, _id: LeaseId) {}

    /// Somebody who waits here has been stopped, and is to look.
    fn nudge(&self) {}
}
