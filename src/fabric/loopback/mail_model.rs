//! Letters on atomics of a model checker, which tries every interleaving, and every value that the memory model lets a load see.

use self::mail::{Inbox, Lane, Reader};

#[path = "mail.rs"]
#[allow(dead_code, reason = "not all of it is tried here")]
#[allow(clippy::duplicate_mod, reason = "on other atomics")]
mod mail;

mod atomic {
    pub(super) use loom::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
}

/// Something whose use without order the model checker reports.
struct Body(loom::cell::UnsafeCell<u32>);

impl Default for Body {
    fn default() -> Body {
        Body(loom::cell::UnsafeCell::new(0))
    }
}

impl Body {
    fn set(&self, to: u32) {
        // SAFETY: the model checker reports whoever else is there.
        self.0.with_mut(|at| unsafe { *at = to });
    }
    fn get(&self) -> u32 {
        // SAFETY: as above.
        self.0.with(|at| unsafe { *at })
    }
}

/// Sends `each` numbers from `from` on, in two letters that the reader gives back, and ends.
fn model_sender(inbox: &Inbox<Body>, from: u32, each: u32) {
    let mut lane: Box<Lane<Body>> = Box::new(Lane::new(Body::default()).unwrap());
    for value in from..from + each {
        while lane.count() == 2 {
            lane.take_back(|body| body.get() > 0);
            loom::thread::yield_now();
        }
        let own = lane.take_free().or_else(|| lane.take_new(Body::default())).unwrap();
        own.set(value);
        lane.send(own, inbox);
    }
    lane.end(inbox);
}

fn model_of(senders: u32, each: u32) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let mut reader = Reader::<Body>::new().unwrap();
        let threads: Vec<_> = (0..senders)
            .map(|id| {
                let inbox = reader.inbox().clone();
                loom::thread::spawn(move || model_sender(&inbox, 1 + 10 * id, each))
            })
            .collect();
        let mut seen = Vec::new();
        while seen.len() < (senders * each) as usize {
            match reader.next() {
                Some(mut read) => {
                    let value = reader.value(&mut read).get();
                    if value > 0 {
                        seen.push(value);
                    }
                    reader.done(read);
                    reader.clear();
                }
                None => loom::thread::yield_now(),
            }
        }
        for id in 0..senders {
            let of = |&value: &u32| value / 10 == id;
            let own: Vec<_> = seen.iter().copied().filter(of).collect();
            assert_eq!(own, (1 + 10 * id..1 + 10 * id + each).collect::<Vec<_>>());
        }
        drop(reader);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn every_order_of_a_sender_and_the_reader() {
    model_of(1, 3);
}

#[test]
fn every_order_of_two_senders_and_the_reader() {
    model_of(2, 2);
}
