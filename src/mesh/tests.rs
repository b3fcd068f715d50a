//! Meetings of ranks through stores that go and come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::*;
use crate::store::memory::Memory;
use crate::store::{Compared, Kind, LeaseId, Until};

/// A store whose server ends just before the first value under a lease comes, and is there again, empty; and that does not answer
/// in less time than it takes.
struct Restarted {
    now: Mutex<Arc<Memory>>,
    was: AtomicBool,
    takes: Duration,
}

impl Restarted {
    fn now(&self, until: Until<'_>) -> Result<Arc<Memory>, Status> {
        if let Some(left) = until.left().filter(|left| *left < self.takes) {
            std::thread::sleep(left);
            return Err(Status::new(Code::DeadlineExceeded, "the store was not reached"));
        }
        Ok(self.now.lock().clone())
    }
}

impl Kind for Restarted {
    fn name(&self) -> &str {
        "a store that comes back empty"
    }
    fn set(
        &self,
        items: &[(&[u8], &[u8])],
        lease: Option<LeaseId>,
        until: Until<'_>,
    ) -> Result<(), Status> {
        if !self.was.swap(true, Ordering::Relaxed) {
            *self.now.lock() = Arc::default();
        }
        self.now(until)?.set(items, lease, until)
    }
    fn get(&self, keys: &[&[u8]], until: Until<'_>) -> Result<Vec<Option<Vec<u8>>>, Status> {
        self.now(until)?.get(keys, until)
    }
    fn missing(&self, keys: &[&[u8]], until: Until<'_>) -> Result<Vec<usize>, Status> {
        self.now(until)?.missing(keys, until)
    }
    fn add(
        &self,
        key: &[u8],
        delta: i64,
        lease: Option<LeaseId>,
        until: Until<'_>,
    ) -> Result<i64, Status> {
        self.now(until)?.add(key, delta, lease, until)
    }
    fn compare_set(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        desired: &[u8],
        lease: Option<LeaseId>,
        until: Until<'_>,
    ) -> Result<Compared, Status> {
        self.now(until)?.compare_set(key, expected, desired, lease, until)
    }
    fn delete(&self, keys: &[&[u8]], until: Until<'_>) -> Result<usize, Status> {
        self.now(until)?.delete(keys, until)
    }
    fn lease(&self, id: LeaseId, ttl: Duration, until: Until<'_>) -> Result<(), Status> {
        self.now(until)?.lease(id, ttl, until)
    }
    fn release(&self, id: LeaseId, until: Until<'_>) -> Result<(), Status> {
        self.now(until)?.release(id, until)
    }
}

fn blob(rank: u8) -> Vec<u8> {
    let blob = AddressBlob {
        name: format!("rank {rank}"),
        incarnation: [rank + 1; 16],
        host_id: [0; 16],
        addrs: vec![([127, 0, 0, 1], 1).into()],
    };
    blob.encode().unwrap()
}

/// A rank meets the other; `late`: it comes so much later.
fn meet(kind: Arc<dyn Kind>, rank: u8, keep: Duration, late: Duration) -> Result<(), Status> {
    std::thread::sleep(late);
    let store = Store::new(kind, Duration::from_secs(60)).unwrap();
    let patience = Patience::For(Duration::from_secs(60));
    let meeting = Meeting::new(&store, &blob(rank), usize::from(rank), 2, keep, patience).unwrap();
    meeting.meet(|| Ok(())).map(drop)
}

fn both(kind: Arc<dyn Kind>, keep: Duration, late: Duration) {
    std::thread::scope(|scope| {
        let other = kind.clone();
        let one = scope.spawn(move || meet(other, 1, keep, Duration::ZERO));
        let zero = meet(kind, 0, keep, late);
        assert_eq!((zero, one.join().unwrap()), (Ok(()), Ok(())));
    });
}

#[test]
fn a_store_that_comes_back_empty_ends_no_meeting() {
    let now = Mutex::new(Arc::new(Memory::new()));
    let kind = Restarted { now, was: AtomicBool::new(false), takes: Duration::ZERO };
    both(Arc::new(kind), KEEP, Duration::ZERO);
}

/// What is kept for less than the ranks look again is not lost while they wait.
#[test]
fn ranks_that_keep_little_wait_for_one_that_is_late() {
    let keep = Duration::from_millis(150);
    both(Arc::new(Memory::new()), keep, Duration::from_secs(1));
}

/// Before rank 0 has come no other publishes anything: who is alone says nothing of them.
#[test]
fn who_waits_for_rank_0_claims_nothing_of_the_others() {
    for size in [2, 3, 8] {
        let store = Store::new(Arc::new(Memory::new()), Duration::from_secs(60)).unwrap();
        let patience = Patience::For(Duration::from_millis(50));
        let meeting = Meeting::new(&store, &blob(1), 1, size, KEEP, patience).unwrap();
        let status = meeting.meet(|| Ok(())).map(drop).unwrap_err();
        assert_eq!(status.code, Code::DeadlineExceeded, "{status}");
        let named = format!("rank 0 of {size} ranks did not come");
        assert!(status.message.contains(&named), "{status}");
        let unknown = match size {
            2 => None,
            3 => Some("; of the other one that is not known"),
            _ => Some("; of the 6 others that is not known"),
        };
        assert_eq!(status.message.contains("not known"), unknown.is_some(), "{status}");
        assert!(status.message.contains(unknown.unwrap_or_default()), "{status}");
    }
}

/// What is left for the last question may be less than the store takes.
#[test]
fn who_was_missing_until_the_deadline_is_named() {
    for rank in [0, 1] {
        let now = Mutex::new(Arc::new(Memory::new()));
        let takes = Duration::from_millis(60);
        let kind = Arc::new(Restarted { now, was: AtomicBool::new(true), takes });
        let store = Store::new(kind, Duration::from_secs(60)).unwrap();
        let patience = Patience::For(Duration::from_millis(430));
        let meeting = Meeting::new(&store, &blob(rank), rank.into(), 2, KEEP, patience).unwrap();
        let status = meeting.meet(|| Ok(())).map(drop).unwrap_err();
        assert_eq!(status.code, Code::DeadlineExceeded, "{status}");
        let other = format!("rank {}", 1 - rank);
        assert!(
            status.message.contains(&other) && status.message.contains("did not come"),
            "{status}"
        );
    }
}

/// One rank of a mesh, as another process would make it; how it ended, and after how long.
fn rank(
    kind: &Arc<dyn Kind>,
    name: &str,
    life: u8,
    rank: usize,
    size: usize,
) -> (Result<(), Status>, Duration) {
    let blob = AddressBlob {
        name: name.to_owned(),
        incarnation: [life; 16],
        host_id: [0; 16],
        addrs: vec![([127, 0, 0, 1], 1).into()],
    };
    let store = Store::new(kind.clone(), Duration::from_secs(60)).unwrap();
    let patience = Patience::For(Duration::from_secs(20));
    let meeting =
        Meeting::new(&store, &blob.encode().unwrap(), rank, size, KEEP, patience).unwrap();
    let begun = Instant::now();
    (meeting.meet(|| Ok(())).map(drop), begun.elapsed())
}

type Came = (&'static str, u8, usize, usize);

/// All of these come, some 30 ms after each other.
fn come(kind: &Arc<dyn Kind>, ranks: &[Came]) -> Vec<(Result<(), Status>, Duration)> {
    std::thread::scope(|scope| {
        let all: Vec<_> = ranks
            .iter()
            .map(|&(name, life, at, size)| {
                std::thread::sleep(Duration::from_millis(30));
                scope.spawn(move || rank(kind, name, life, at, size))
            })
            .collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

fn all_hear(ranks: &[Came], code: Code, words: &str) {
    let kind: Arc<dyn Kind> = Arc::new(Memory::new());
    let ends = come(&kind, ranks);
    for (result, time) in &ends {
        let status = result.as_ref().unwrap_err();
        assert_eq!((status.code, &*status.message), (code, words), "{ranks:?}");
        assert!(*time < Duration::from_secs(10), "{ranks:?}: {time:?}");
    }
    // The same managers come again, and fit now: what was said before is over.
    let life = |rank: usize| ranks.iter().find(|one| one.2 == rank).map_or(9, |one| one.1);
    for (result, _) in come(&kind, &[("b", life(1), 1, 2), ("a", life(0), 0, 2)]) {
        assert_eq!(result, Ok(()), "after {ranks:?}");
    }
}

/// Whoever has come hears why the mesh cannot be, whether or not others are missing, and whoever came first.
#[test]
fn ranks_that_do_not_fit_hear_so_at_all_of_them() {
    let sizes = "rank 1 says that there are 4 ranks, rank 0 that there are 3";
    all_hear(&[("a", 1, 0, 3), ("b", 2, 1, 4), ("c", 3, 2, 3)], Code::InvalidArgument, sizes);
    all_hear(&[("c", 3, 2, 3), ("b", 2, 1, 4), ("a", 1, 0, 3)], Code::InvalidArgument, sizes);
    all_hear(&[("a", 1, 0, 3), ("b", 2, 1, 4)], Code::InvalidArgument, sizes);
    let names = "ranks 0 and 2 both have the name 'a'; names have to differ";
    all_hear(&[("a", 1, 0, 3), ("b", 2, 1, 3), ("a", 3, 2, 3)], Code::InvalidArgument, names);
    all_hear(&[("b", 2, 1, 4), ("a", 3, 2, 4), ("a", 1, 0, 4)], Code::InvalidArgument, names);
}

/// Who comes as a rank that is here takes its place, as after a restart: the other one hears so, and the mesh is made.
#[test]
fn a_rank_that_is_replaced_ends_alone() {
    let kind: Arc<dyn Kind> = Arc::new(Memory::new());
    let ends = come(&kind, &[("a", 1, 0, 3), ("b", 2, 1, 3), ("c", 3, 1, 3), ("d", 4, 2, 3)]);
    let twice = "rank 1 is the manager 'b', and is also the manager 'c'";
    let replaced = ends[1].0.as_ref().unwrap_err();
    assert_eq!((replaced.code, &*replaced.message), (Code::Aborted, twice));
    assert!([0, 2, 3].iter().all(|&at| ends[at].0 == Ok(())), "{ends:?}");
}

/// What is left of a meeting that could not be harms no later one under the same keys.
#[test]
fn a_verdict_of_an_earlier_job_harms_nobody() {
    let kind: Arc<dyn Kind> = Arc::new(Memory::new());
    let ends = come(&kind, &[("a", 1, 0, 2), ("b", 2, 1, 3)]);
    assert!(ends.iter().all(|(result, _)| result.is_err()));
    for (result, _) in come(&kind, &[("b", 12, 1, 2), ("a", 11, 0, 2)]) {
        assert_eq!(result, Ok(()));
    }
}
