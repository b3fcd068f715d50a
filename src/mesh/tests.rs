//! Meetings of ranks through stores that go and come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::*;
use crate::store::memory::Memory;
use crate::store::{Compared, Kind, LeaseId, Until};

/// A store whose server ends just before the first value under a lease comes, and is there again, empty.
struct Restarted {
    now: Mutex<Arc<Memory>>,
    was: AtomicBool,
}

impl Restarted {
    fn now(&self) -> Arc<Memory> {
        self.now.lock().clone()
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
        self.now().set(items, lease, until)
    }
    fn get(&self, keys: &[&[u8]], until: Until<'_>) -> Result<Vec<Option<Vec<u8>>>, Status> {
        self.now().get(keys, until)
    }
    fn missing(&self, keys: &[&[u8]], until: Until<'_>) -> Result<Vec<usize>, Status> {
        self.now().missing(keys, until)
    }
    fn add(
        &self,
        key: &[u8],
        delta: i64,
        lease: Option<LeaseId>,
        until: Until<'_>,
    ) -> Result<i64, Status> {
        self.now().add(key, delta, lease, until)
    }
    fn compare_set(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        desired: &[u8],
        lease: Option<LeaseId>,
        until: Until<'_>,
    ) -> Result<Compared, Status> {
        self.now().compare_set(key, expected, desired, lease, until)
    }
    fn delete(&self, keys: &[&[u8]], until: Until<'_>) -> Result<usize, Status> {
        self.now().delete(keys, until)
    }
    fn lease(&self, id: LeaseId, ttl: Duration, until: Until<'_>) -> Result<(), Status> {
        self.now().lease(id, ttl, until)
    }
    fn release(&self, id: LeaseId, until: Until<'_>) -> Result<(), Status> {
        self.now().release(id, until)
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
    let kind = Restarted { now, was: AtomicBool::new(false) };
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
    for size in [2, 8] {
        let store = Store::new(Arc::new(Memory::new()), Duration::from_secs(60)).unwrap();
        let patience = Patience::For(Duration::from_millis(50));
        let meeting = Meeting::new(&store, &blob(1), 1, size, KEEP, patience).unwrap();
        let status = meeting.meet(|| Ok(())).map(drop).unwrap_err();
        assert_eq!(status.code, Code::DeadlineExceeded, "{status}");
        let named = format!("rank 0 of {size} ranks did not come");
        assert!(status.message.contains(&named), "{status}");
        let unknown = "of the 6 others that is not known";
        assert_eq!(status.message.contains(unknown), size == 8, "{status}");
    }
}
