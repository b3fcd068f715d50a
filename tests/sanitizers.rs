//! Errors planted for `make sanitize`: each shows that its sanitizer is on. Ignored, since without a
//! sanitizer they prove nothing.

use std::cell::UnsafeCell;
use std::hint::black_box;
use std::sync::Arc;

struct Shared(UnsafeCell<u64>);

// SAFETY: it is not, which is the point: ThreadSanitizer has to say so.
unsafe impl Sync for Shared {}

fn add(shared: &Shared) {
    for _ in 0..1000 {
        // SAFETY: two threads do this at once: the planted race.
        unsafe { *shared.0.get() += 1 };
    }
}

#[test]
#[ignore = "a planted error, for ThreadSanitizer"]
fn planted_race() {
    let shared = Arc::new(Shared(UnsafeCell::new(0)));
    let theirs = shared.clone();
    let thread = std::thread::spawn(move || add(&theirs));
    add(&shared);
    thread.join().unwrap();
}

#[test]
#[ignore = "a planted error, for AddressSanitizer"]
fn planted_overrun() {
    let bytes = black_box(vec![1u8; 16]);
    // SAFETY: it is one byte beyond the end: the planted overrun.
    let beyond = unsafe { *bytes.as_ptr().add(black_box(16)) };
    println!("{}", black_box(beyond));
}
