//! Ranks: managers that find each other through a store, and know each other by number from then on.
//!
//! What an earlier job, or an earlier life of a rank, left in the store must not be taken for this one's. So rank 0 begins
//! a *session*, whose name is its manager's incarnation, and tells it under one key, "session". Every rank publishes its one
//! value, its address, within the session ("SESSION/RANK"). Rank 0 waits for all of them, and then tells which lives of the
//! ranks it has seen ("SESSION/all"). A rank that finds its own among them knows that rank 0 is alive, and that every value
//! was written in this session, and so are the others. A session that it is not part of is an earlier one: it looks again
//! until rank 0 has begun another.
//!
//! Who waits looks every `SLICE` whether what it has said is still there, so that a store that was lost and came back
//! empty loses nobody. Keys are under a lease where the store has leases. Nothing connects here: the first use of a peer
//! does, or [`crate::manager::Manager::connect_all`].

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::bootstrap::AddressBlob;
use crate::engine::front::message::Party;
use crate::limits::MESH_RANKS;
use crate::manager::Manager;
use crate::room;
use crate::shown;
use crate::status::{Code, Reason, Status};
use crate::store::lease::{MAX_TTL, MIN_TTL};
use crate::store::{Patience, Store, named, slices};
use crate::wire::{Reader, Writer};

/// How long what ranks tell each other is kept after they have met.
pub const KEEP: Duration = Duration::from_secs(60);
/// Least time: between two looks the lease is not renewed.
const LEAST: Duration = Duration::from_secs(1);
/// Time between looks at what may have been lost; of more ranks more, since each of them looks, and at one store.
const SLICE: Duration = Duration::from_millis(200);
const MOST_SLICE: Duration = Duration::from_secs(2);
const SLICE_RANKS: usize = 64;
/// Time for one question to a store, before it is asked again.
const ANSWER: Duration = Duration::from_secs(5);
/// Least time for the last one, behind the deadline if need be.
const LAST: Duration = Duration::from_millis(100);
/// Pause before another look at a session of an earlier job.
const PAUSE: Duration = Duration::from_millis(20);
/// So often in a row a store may refuse a write under a lease that was renewed before.
const REFUSED: u32 = 3;
const SESSION: &[u8] = b"session";
const MAGIC: [u8; 4] = *b"RDMR";
const VERSION: u16 = 1;
/// Bytes of a rank's value before its address.
const BEFORE_ADDRESS: usize = 14;

mod verdict;

use verdict::{Found, KnownVerdict};

type Life = [u8; 16];

/// A rank on its way into a mesh.
pub struct Meeting<'a> {
    rank: usize,
    size: usize,
    /// What it publishes, and which life of its manager that is.
    value: Vec<u8>,
    life: Life,
    store: &'a Store,
    /// Where it writes.
    lent: Store,
    begun: Instant,
    limit: Option<Duration>,
    between_looks: Duration,
}

/// A mesh: which peer is which rank.
pub struct Mesh {
    parties: Vec<Party>,
    ranks: HashMap<Party, usize>,
    /// Names of the other ranks, in their order.
    pub peers: Vec<String>,
    /// How many of them are below ours.
    pub below: usize,
}

/// A rank's value.
fn encode(rank: usize, size: usize, blob: &[u8]) -> Result<Vec<u8>, Status> {
    let mut value = room::vec(blob.len() + BEFORE_ADDRESS, "a rank's value")?;
    Writer::new(&mut value)
        .bytes(&MAGIC)
        .u16(VERSION)
        .u32(rank as u32)
        .u32(size as u32)
        .bytes(blob);
    Ok(value)
}

/// Takes a stranger's value apart.
fn decode(value: &[u8], rank: usize, size: usize) -> Result<AddressBlob, Status> {
    let bad = |why: String| {
        let text = text!("what the store has of rank {rank} is no rank's value: {why}");
        Status::new(Code::DataLoss, text)
    };
    let cut = |e: crate::wire::Truncated| bad(e.to_string());
    let mut r = Reader::new(value);
    if r.array().map_err(cut)? != MAGIC {
        return Err(bad(text!("it begins with '{}'", shown::key(&value[..value.len().min(8)]))));
    }
    let version = r.u16().map_err(cut)?;
    if version != VERSION {
        return Err(bad(text!("version {version}; this side reads {VERSION}")));
    }
    let (its_rank, its_size) = (r.u32().map_err(cut)? as usize, r.u32().map_err(cut)? as usize);
    if its_rank != rank {
        return Err(bad(text!("it is of rank {its_rank}")));
    }
    if its_size != size {
        let text =
            text!("rank {rank} says that there are {its_size} ranks, rank 0 that there are {size}");
        return Err(Status::invalid(text));
    }
    AddressBlob::decode(r.rest()).map_err(|e| bad(e.into_message()))
}

fn key(session: &Life, what: &str) -> Vec<u8> {
    let mut key: Vec<u8> = session.iter().flat_map(|b| format!("{b:02x}").into_bytes()).collect();
    key.push(b'/');
    key.extend_from_slice(what.as_bytes());
    key
}

/// Why nothing is lent to ranks that are to meet: how long it would last is theirs to say.
fn about_keep(status: Status, keep: Duration) -> Status {
    if (MIN_TTL..=MAX_TTL).contains(&keep) || status.code != Code::InvalidArgument {
        return status;
    }
    let [least, most] = [MIN_TTL, MAX_TTL].map(|ttl| ttl.as_millis());
    let text = text!(
        "options.keep_ms is {}, allowed are 0 (60000) and {least} to {most}",
        keep.as_millis()
    );
    status.with_message(text)
}

impl<'a> Meeting<'a> {
    /// Begins: `blob` is the manager's exported address. What is published lasts for `keep` after the last look.
    pub fn new(
        store: &'a Store,
        blob: &[u8],
        rank: usize,
        size: usize,
        keep: Duration,
        patience: Patience,
    ) -> Result<Meeting<'a>, Status> {
        if size == 0 || size > MESH_RANKS || rank >= size {
            let text = text!(
                "rank is {rank} and size {size}, allowed are sizes of 1 to {MESH_RANKS}, and ranks below them"
            );
            return Err(Status::invalid(text));
        }
        let life = AddressBlob::decode(blob)?.incarnation;
        let limit = store.until(patience).left();
        // What would be refused stays so.
        let ttl = if keep < MIN_TTL { keep } else { keep.max(LEAST) };
        let (begun, lent) =
            (Instant::now(), store.lent(ttl, patience).map_err(|status| about_keep(status, keep))?);
        let value = encode(rank, size, blob)?;
        // The lease is renewed with each look.
        let between_looks = (SLICE * (1 + size / SLICE_RANKS) as u32).min(MOST_SLICE).min(ttl / 4);
        Ok(Meeting { rank, size, value, life, store, lent, begun, limit, between_looks })
    }

    /// What is left of the time. `None`: no limit.
    pub fn left(&self) -> Option<Duration> {
        self.limit.map(|limit| limit.saturating_sub(self.begun.elapsed()))
    }

    fn is_over(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }

    fn slice(&self, most: Duration) -> Duration {
        self.left().unwrap_or(most).min(most).max(Duration::from_millis(1))
    }

    /// For one look, or to write something.
    fn look(&self) -> Patience {
        Patience::Look(self.slice(ANSWER))
    }

    /// For one that says why the meeting ends: the deadline may leave it no time, and a store that is busy takes some.
    fn last_look(&self) -> Patience {
        Patience::Look(self.slice(ANSWER).max(LAST))
    }

    fn find(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Status> {
        self.find_at(key, self.look())
    }

    fn find_at(&self, key: &[u8], patience: Patience) -> Result<Option<Vec<u8>>, Status> {
        match self.store.get(&[key], patience) {
            Ok(mut values) => Ok(values.pop()),
            Err(status) if status.code == Code::NotFound => Ok(None),
            Err(status) => Err(status),
        }
    }

    fn set(&self, key: &[u8], value: &[u8]) -> Result<(), Status> {
        self.lent.set(&[(key, value)], self.look())
    }

    /// Waits until the next look at what may have been lost; which of the keys are not there.
    fn wait(&self, keys: &[&[u8]]) -> Result<Vec<usize>, Status> {
        self.store.wait_for(keys, Patience::For(self.slice(self.between_looks)))
    }

    /// Goes on until there is an answer. A store that is not reached, or only too late, is one that may come back. One that came
    /// back empty knows nothing of our lease, until it is renewed.
    fn rounds<T>(
        &self,
        alive: &dyn Fn() -> Result<(), Status>,
        mut round: impl FnMut() -> Result<Option<T>, Status>,
        late: impl Fn() -> Result<Status, Status>,
    ) -> Result<T, Status> {
        let (mut refused, mut answered) = (0, false);
        loop {
            let done = self.lent.renew(self.look()).and_then(|()| round());
            alive()?;
            match done {
                Ok(Some(done)) => return Ok(done),
                Ok(None) if self.is_over() => return Err(late()?),
                Ok(None) => (refused, answered) = (0, true),
                // A store that has answered until now, and had too little time for this: who is missing is what there is to say.
                Err(status) if status.code == Code::DeadlineExceeded && self.is_over() => {
                    return Err(if answered { late()? } else { status });
                }
                Err(status) if status.code == Code::DeadlineExceeded => answered = false,
                Err(status)
                    if status.code == Code::FailedPrecondition
                        && self.lent.holds()
                        && refused < REFUSED
                        && !self.is_over() =>
                {
                    refused += 1;
                    self.store.until(Patience::For(self.slice(PAUSE))).sleep(PAUSE)?;
                }
                Err(status) => return Err(status),
            }
        }
    }

    fn rank_keys(&self, session: &Life) -> Result<Vec<Vec<u8>>, Status> {
        room::collect((0..self.size).map(|rank| key(session, &rank.to_string())), "ranks")
    }

    /// The addresses of all ranks. `alive` is asked now and then whether to go on.
    pub fn meet(&self, alive: impl Fn() -> Result<(), Status>) -> Result<Vec<AddressBlob>, Status> {
        match self.rank {
            0 => self.lead(&alive),
            _ => self.follow(&alive),
        }
    }

    fn lead(&self, alive: &dyn Fn() -> Result<(), Status>) -> Result<Vec<AddressBlob>, Status> {
        let session = self.life;
        let keys = self.rank_keys(&session)?;
        let keys = slices(&keys)?;
        let (mut begun, mut found) = (false, Found::default());
        let round = || {
            match self.find(SESSION)? {
                Some(there) if there == session => {}
                Some(_) if begun => {
                    let text = "another manager has taken rank 0 over";
                    return Err(Status::new(Code::Aborted, text));
                }
                earlier => {
                    if let Some(Ok(earlier)) = earlier.map(|bytes| Life::try_from(&bytes[..])) {
                        self.clear(&earlier)?;
                    }
                    self.set(SESSION, &session)?;
                }
            }
            begun = true;
            self.keep_own(&session)?;
            let missing = self.wait(&keys)?;
            self.look_at_all(&keys, &missing, &mut found)
                .map_err(|status| self.tell(&keys, status))?;
            if !missing.is_empty() {
                return Ok(None);
            }
            let blobs = self.read(&keys).map_err(|status| self.tell(&keys, status))?;
            let lives = room::collect(blobs.iter().map(|blob| blob.incarnation), "ranks")?;
            self.set(&key(&session, "all"), lives.as_flattened())?;
            Ok(Some(blobs))
        };
        let late = || Ok(self.missing(&self.store.wait_for(&keys, self.last_look())?));
        self.rounds(alive, round, late)
    }

    /// Removes what an earlier session of as many ranks has left.
    fn clear(&self, session: &Life) -> Result<(), Status> {
        let mut keys = self.rank_keys(session)?;
        room::grow(&mut keys, 2, "ranks")?;
        keys.extend(["all", "no"].map(|what| key(session, what)));
        let keys = slices(&keys)?;
        match self.lent.delete(&keys, self.look()) {
            Err(status) if status.code == Code::Unimplemented => Ok(()),
            done => done.map(drop),
        }
    }

    /// Sees to it that our value is there, unless another manager has put its own.
    fn keep_own(&self, session: &Life) -> Result<(), Status> {
        let own = key(session, &self.rank.to_string());
        match self.find(&own)? {
            Some(there) if there == self.value => return Ok(()),
            Some(other) => {
                let other = decode(&other, self.rank, self.size).ok();
                if let Some(other) = other.filter(|other| other.incarnation != self.life) {
                    let text = self.taken_twice(&other.name);
                    return Err(Status::new(Code::Aborted, text));
                }
            }
            None => {}
        }
        self.set(&own, &self.value)
    }

    fn follow(&self, alive: &dyn Fn() -> Result<(), Status>) -> Result<Vec<AddressBlob>, Status> {
        let (mut published, mut told) = (None, KnownVerdict::default());
        let round = || {
            let Some(session) = self.session()? else { return Ok(None) };
            if published != Some(session) {
                told.begin(self.verdict(&session)?);
                // Of an earlier life of this rank there may be another value.
                self.set(&key(&session, &self.rank.to_string()), &self.value)?;
                published = Some(session);
            }
            self.keep_own(&session)?;
            self.hear(&session, &told)
        };
        let late = || {
            let Some(session) = self.session_at(self.last_look())? else {
                return Ok(self.leaderless());
            };
            let keys = self.rank_keys(&session)?;
            let keys = slices(&keys)?;
            let missing = self.store.wait_for(&keys, self.last_look())?;
            if !missing.is_empty() {
                return Ok(self.missing(&missing));
            }
            // If all are there, and rank 0 has not seen us, then what is there is of an earlier job, or it is gone.
            let met = self.find_at(&key(&session, "all"), self.last_look())?.is_some();
            let late = self.leaderless();
            let text = text!(
                "{}; the ranks that the store has met before this one came, with another manager as rank {}, and meet \
                 again when rank 0 does",
                late.message,
                self.rank
            );
            Ok(if met { late.with_message(text) } else { late })
        };
        self.rounds(alive, round, late)
    }

    /// The session that rank 0 has begun.
    fn session(&self) -> Result<Option<Life>, Status> {
        match self.wait(&[SESSION])?.is_empty() {
            true => self.session_at(self.look()),
            false => Ok(None),
        }
    }

    /// The same, if it is there.
    fn session_at(&self, patience: Patience) -> Result<Option<Life>, Status> {
        let Some(bytes) = self.find_at(SESSION, patience)? else { return Ok(None) };
        Life::try_from(&bytes[..]).map(Some).map_err(|_| {
            let text = text!("what the store has as session is {} bytes, not 16", bytes.len());
            Status::new(Code::DataLoss, text)
        })
    }

    /// Waits for rank 0's word in this session; the addresses, if we are part of it.
    fn hear(
        &self,
        session: &Life,
        told: &KnownVerdict,
    ) -> Result<Option<Vec<AddressBlob>>, Status> {
        let all = key(session, "all");
        if !self.wait(&[&all])?.is_empty() {
            self.hear_verdict(session, told)?;
            return Ok(None);
        }
        let lives = self.find(&all)?.unwrap_or_default();
        let (lives, rest) = lives.as_chunks::<16>();
        let ours = lives.len() == self.size && lives.get(self.rank) == Some(&self.life);
        if !ours || !rest.is_empty() {
            // What all have met by may be of an earlier call.
            self.hear_verdict(session, told)?;
            self.store.until(Patience::For(self.slice(PAUSE))).sleep(PAUSE)?;
            return Ok(None);
        }
        let keys = self.rank_keys(session)?;
        let keys = slices(&keys)?;
        let blobs = self.read(&keys)?;
        let same = blobs.iter().map(|blob| &blob.incarnation).eq(lives);
        Ok(Some(blobs).filter(|_| same))
    }

    fn read(&self, keys: &[&[u8]]) -> Result<Vec<AddressBlob>, Status> {
        let ranks = room::collect(0..self.size, "ranks")?;
        self.read_of(keys, &ranks)
    }

    /// What these ranks say, if it fits.
    fn read_of(&self, keys: &[&[u8]], ranks: &[usize]) -> Result<Vec<AddressBlob>, Status> {
        let theirs = room::collect(ranks.iter().map(|&rank| keys[rank]), "ranks")?;
        let values = self.store.get(&theirs, Patience::For(self.slice(ANSWER)))?;
        let mut blobs = Vec::new();
        room::grow(&mut blobs, values.len(), "ranks")?;
        for (&rank, value) in ranks.iter().zip(&values) {
            blobs.push(decode(value, rank, self.size)?);
        }
        let mut names = HashMap::new();
        room::grow(&mut names, blobs.len(), "ranks")?;
        for (&rank, blob) in ranks.iter().zip(&blobs) {
            if let Some(other) = names.insert(&blob.name, rank) {
                let text = text!(
                    "ranks {other} and {rank} both have the name '{}'; names have to differ",
                    blob.name
                );
                return Err(Status::invalid(text));
            }
        }
        Ok(blobs)
    }

    fn taken_twice(&self, other: &str) -> String {
        let own = AddressBlob::decode(&self.value[BEFORE_ADDRESS..]).map(|blob| blob.name);
        let own = own.unwrap_or_default();
        format!("rank {} is the manager '{own}', and is also the manager '{other}'", self.rank)
    }

    /// Rank 0 did not come, for whose word the others wait before they publish anything.
    fn leaderless(&self) -> Status {
        let time = self.begun.elapsed().as_secs_f64();
        let others = match self.size - 2 {
            0 => String::new(),
            1 => "; of the other one that is not known, since it waits for its word".to_owned(),
            count => {
                format!("; of the {count} others that is not known, since they wait for its word")
            }
        };
        let (name, size) = (self.store.name(), self.size);
        let text = text!("{name}: rank 0 of {size} ranks did not come in {time:.3} s{others}");
        Status::new(Code::DeadlineExceeded, text).because(Reason::Deadline)
    }

    fn missing(&self, missing: &[usize]) -> Status {
        let text = text!(
            "{}: {} of {} ranks did not come in {:.3} s: {}",
            self.store.name(),
            missing.len(),
            self.size,
            self.begun.elapsed().as_secs_f64(),
            named(missing.iter().map(|rank| format!("rank {rank}")))
        );
        Status::new(Code::DeadlineExceeded, text).because(Reason::Deadline)
    }
}

impl Mesh {
    /// Makes the ranks known to a manager.
    pub fn introduce(
        manager: &Manager,
        rank: usize,
        blobs: &[AddressBlob],
    ) -> Result<Mesh, Status> {
        let mut mesh =
            Mesh { parties: Vec::new(), ranks: HashMap::new(), peers: Vec::new(), below: rank };
        room::grow(&mut mesh.parties, blobs.len(), "ranks")?;
        room::grow(&mut mesh.ranks, blobs.len(), "ranks")?;
        room::grow(&mut mesh.peers, blobs.len(), "ranks")?;
        for (r, blob) in blobs.iter().enumerate() {
            let party = if r == rank {
                Party::OWN
            } else {
                let name = manager.import_address(&blob.encode()?)?;
                let party = manager.peer_lookup(&name)?;
                mesh.peers.push(name);
                party
            };
            mesh.parties.push(party);
            mesh.ranks.insert(party, r);
        }
        Ok(mesh)
    }

    /// The peer that is this rank.
    pub fn peer(&self, rank: usize) -> Result<Party, Status> {
        self.parties.get(rank).copied().ok_or_else(|| {
            let text = text!("rank is {rank}, allowed are 0 to {}", self.parties.len() - 1);
            Status::invalid(text)
        })
    }

    /// The rank that this peer is.
    pub fn rank(&self, party: Party) -> Result<usize, Status> {
        self.ranks.get(&party).copied().ok_or_else(|| {
            Status::new(Code::NotFound, text!("peer {} is no rank of this mesh", party.handle()))
        })
    }
}

/// Takes a rank's value apart: for the fuzzer.
pub fn fuzz_value(bytes: &[u8]) {
    let _ = decode(bytes, 3, 4);
}

#[cfg(test)]
mod tests;
