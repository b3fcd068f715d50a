//! What makes a meeting impossible is found by rank 0, and is told to all that have come: ranks that say another size, or have one name.
//!
//! Its *verdict* ("SESSION/no") names the lives that it is about, so that it harms nobody who comes later under a session of an
//! earlier job; and what was there when a call began is of an earlier call of the same manager. Libraries that do not know of it
//! do not look there, and wait as ever. A rank whose place another manager takes is none of this: the meeting goes on with that one.

use std::time::{Duration, Instant};

use super::{BEFORE_ADDRESS, Life, Meeting, key};
use crate::bootstrap::{AddressBlob, random_id};
use crate::room;
use crate::status::{Code, Status};
use crate::wire::{Reader, Writer};

/// So long a value that does not fit may be there while ranks are missing: of an earlier job a rank may live on, whose place the new
/// one takes when it comes.
const GRACE: Duration = Duration::from_secs(1);
const MAGIC: [u8; 4] = *b"RDMV";
const VERSION: u16 = 1;

/// What one call knows of verdicts: one that was there when it began is not for it.
#[derive(Default)]
pub(super) struct KnownVerdict(Option<Vec<u8>>);

/// What rank 0 has found so far.
#[derive(Default)]
pub(super) struct Found {
    /// Ranks that were missing at the last look.
    missing: Option<usize>,
    wrong_since: Option<Instant>,
}

fn encode(lives: &[Life], status: &Status) -> Result<Vec<u8>, Status> {
    let mut value = room::vec(30 + lives.len() * 16 + status.message.len(), "a verdict")?;
    Writer::new(&mut value)
        .bytes(&MAGIC)
        .u16(VERSION)
        .bytes(&random_id()?)
        .u32(status.code as u32)
        .u32(lives.len() as u32)
        .bytes(lives.as_flattened())
        .bytes(status.message.as_bytes());
    Ok(value)
}

/// What a verdict says to this life, if it is about it.
fn said_to(value: &[u8], life: &Life) -> Option<Status> {
    let mut r = Reader::new(value);
    if r.array().ok()? != MAGIC || r.u16().ok()? != VERSION {
        return None;
    }
    let _unique: Life = r.array().ok()?;
    let code =
        Code::from_i32(i32::try_from(r.u32().ok()?).ok()?).filter(|&code| code != Code::Ok)?;
    let count = r.u32().ok()? as usize;
    let rest = r.rest();
    let (lives, text) = rest.split_at_checked(count.checked_mul(16)?)?;
    let about_us = lives.as_chunks::<16>().0.contains(life);
    about_us.then(|| {
        let text = String::from_utf8_lossy(text);
        Status::new(code, crate::shown::text(&text).as_ref())
    })
}

impl KnownVerdict {
    /// Looks for the first time.
    pub(super) fn begin(&mut self, there: Option<Vec<u8>>) {
        self.0 = there;
    }

    fn is_new(&self, there: &[u8]) -> bool {
        self.0.as_deref() != Some(there)
    }
}

impl Meeting<'_> {
    /// What is there of a verdict.
    pub(super) fn verdict(&self, session: &Life) -> Result<Option<Vec<u8>>, Status> {
        self.find(&key(session, "no"))
    }

    /// Whether rank 0 has found that this meeting cannot be.
    pub(super) fn hear_verdict(&self, session: &Life, told: &KnownVerdict) -> Result<(), Status> {
        let there = self.verdict(session)?;
        let said = there.filter(|there| told.is_new(there)).and_then(|t| said_to(&t, &self.life));
        said.map_or(Ok(()), Err)
    }

    /// Rank 0 looks at who has come, while others are missing, and at what they say of each other.
    pub(super) fn look_at_all(
        &self,
        keys: &[&[u8]],
        missing: &[usize],
        found: &mut Found,
    ) -> Result<(), Status> {
        if missing.is_empty() {
            return Ok(());
        }
        // Nobody has come since, and those who had fitted.
        if found.missing.replace(missing.len()) == Some(missing.len())
            && found.wrong_since.is_none()
        {
            return Ok(());
        }
        let here = (0..self.size).filter(|rank| missing.binary_search(rank).is_err());
        let here = room::collect(here, "ranks")?;
        match self.read_of(keys, &here) {
            Err(status) if status.code == Code::InvalidArgument => {
                let since = *found.wrong_since.get_or_insert_with(Instant::now);
                if since.elapsed() < GRACE { Ok(()) } else { Err(status) }
            }
            _ => {
                found.wrong_since = None;
                Ok(())
            }
        }
    }

    /// Rank 0 has found that this meeting cannot be, and tells all that have come. What cannot be told is not: they wait then.
    pub(super) fn tell(&self, keys: &[&[u8]], status: Status) -> Status {
        if status.code == Code::InvalidArgument {
            let told = self.lives(keys).and_then(|lives| encode(&lives, &status));
            let _ = told.and_then(|verdict| self.set(&key(&self.life, "no"), &verdict));
        }
        status
    }

    /// The lives of all that are there, also of those that do not fit.
    fn lives(&self, keys: &[&[u8]]) -> Result<Vec<Life>, Status> {
        let missing = self.store.wait_for(keys, self.look())?;
        let here = keys.iter().enumerate().filter(|(rank, _)| missing.binary_search(rank).is_err());
        let here = room::collect(here.map(|(_, key)| *key), "ranks")?;
        let values = self.store.get(&here, self.look())?;
        let life = |value: &Vec<u8>| {
            let blob = AddressBlob::decode(value.get(BEFORE_ADDRESS..)?).ok()?;
            Some(blob.incarnation)
        };
        let mut lives = Vec::new();
        room::grow(&mut lives, values.len(), "ranks")?;
        lives.extend(values.iter().filter_map(life));
        Ok(lives)
    }
}
