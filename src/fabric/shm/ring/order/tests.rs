//! Every interleaving, and every value that the memory model lets a load see, of a producer and a consumer on a ring of
//! four lines that is written round and round.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;

use super::*;

const LINES: u64 = 4;

struct Model {
    words: Vec<AtomicU64>,
    /// What the rest of a line holds; the checker reports unordered accesses.
    bodies: Vec<UnsafeCell<u64>>,
    consumed: AtomicU64,
}

impl Model {
    fn new() -> Arc<Model> {
        Arc::new(Model {
            words: (0..LINES).map(|_| AtomicU64::new(0)).collect(),
            bodies: (0..LINES).map(|_| UnsafeCell::new(0)).collect(),
            consumed: AtomicU64::new(0),
        })
    }
    fn word(&self, line: u64) -> &AtomicU64 {
        &self.words[(line % LINES) as usize]
    }
    fn body(&self, line: u64) -> &UnsafeCell<u64> {
        &self.bodies[(line % LINES) as usize]
    }
}

impl Words for Model {
    fn lines(&self) -> u64 {
        LINES
    }
    fn clear(&self, line: u64) {
        self.word(line).store(0, Ordering::Relaxed);
    }
    fn publish(&self, line: u64, header: u64) {
        self.word(line).store(header, Ordering::Release);
    }
    fn load(&self, line: u64) -> u64 {
        let word = self.word(line).load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        word
    }
}

/// A header is the record's number and its lines; every other word of a ring looks like one, but a wrong one.
fn header(number: u64, need: u64) -> u64 {
    (number + 1) << 8 | need
}

const GARBAGE: u64 = 0xbad00 | 1;

/// Writes record `number`; false if there is no room.
fn write(ring: &Model, order: &mut Writing, number: u64, need: u64) -> bool {
    let look = || {
        let consumed = ring.consumed.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        consumed
    };
    match order.room(ring, need, look) {
        Err(NoRoom::Full) => return false,
        Err(NoRoom::Broken) => panic!("the consumer's position is impossible"),
        Ok(()) => {}
    }
    for line in order.head..order.head + need {
        // SAFETY: the model checker watches the accesses.
        ring.body(line).with_mut(|body| unsafe { *body = number });
        if line > order.head {
            // Payload lies over the words of all lines but the first.
            ring.word(line).store(GARBAGE, Ordering::Relaxed);
        }
    }
    order.publish(ring, need, header(number, need));
    true
}

/// Reads one record, if there is one, and checks it.
fn read(ring: &Model, order: &mut Reading, number: u64, need: u64) -> bool {
    let Some(word) = order.peek(ring) else { return false };
    assert_eq!(word, header(number, need), "not the header of record {number}");
    assert!(order.fits(ring, need), "record {number} was written without room");
    for line in order.head..order.head + need {
        // SAFETY: the model checker watches the accesses.
        ring.body(line).with(|body| assert_eq!(unsafe { *body }, number, "content"));
    }
    order.head += need;
    true
}

/// Passes records of these many lines; the consumer gives lines back after every `batch` records.
fn pass(records: &'static [u64], batch: u64) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let ring = Model::new();
        let theirs = ring.clone();
        let producer = thread::spawn(move || {
            let mut order = Writing::new(&*theirs);
            for (number, &need) in records.iter().enumerate() {
                while !write(&theirs, &mut order, number as u64, need) {
                    thread::yield_now();
                }
            }
        });
        let mut order = Reading::default();
        for (number, &need) in records.iter().enumerate() {
            while !read(&ring, &mut order, number as u64, need) {
                thread::yield_now();
            }
            order.release();
            if (number as u64 + 1).is_multiple_of(batch) {
                ring.consumed.store(order.tell(), Ordering::Release);
            }
        }
        producer.join().unwrap();
        assert_eq!(order.peek(&*ring), None, "something behind the last record");
    });
}

#[test]
fn short_records_round_the_ring() {
    pass(&[1, 1, 1, 1, 1, 1], 1);
}

#[test]
fn short_records_given_back_late() {
    pass(&[1, 1, 1, 1, 1, 1], 3);
}

#[test]
fn records_over_several_lines() {
    pass(&[2, 1, 2, 1, 2], 1);
}

#[test]
fn a_record_as_long_as_the_ring_takes() {
    pass(&[3, 1, 3], 1);
}
