//! No place of the library floods the log, whoever causes its lines.
//!
//! Which lines a stranger can cause is hard to tell for each, and easily wrong after a change. So every
//! line goes through here: each place in the code that logs has its own bucket, which holds a hundred
//! lines and fills by ten a second. Lines that find it empty are counted and not written, and
//! the count is told with the next line of that place, or by [`settle`] when the flood is over.

use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Level;

/// Lines of one place that may come at once.
pub const BURST: u32 = 100;
/// Time after which one place may write one line more.
pub const PAUSE: Duration = Duration::from_millis(100);
/// Longest part of a line that is repeated when those like it are counted.
const SHOWN: usize = 120;

type Place = &'static Location<'static>;

struct Bucket {
    place: Place,
    level: Level,
    left: u32,
    /// Up to when lines were given back.
    filled: Instant,
    left_out: u64,
    /// The beginning of the last line that was written.
    last: String,
}

/// As many as there are places in the code.
static BUCKETS: Mutex<Vec<Bucket>> = Mutex::new(Vec::new());
/// Lines left out that nobody was told of yet.
static UNTOLD: AtomicU64 = AtomicU64::new(0);

impl Bucket {
    fn refill(&mut self, now: Instant) {
        let due = now.saturating_duration_since(self.filled).as_millis() / PAUSE.as_millis();
        if due > 0 {
            self.left = self.left.saturating_add(due.min(u128::from(BURST)) as u32).min(BURST);
            self.filled = now;
        }
    }

    /// The count, told once.
    fn told(&mut self) -> u64 {
        let n = std::mem::take(&mut self.left_out);
        UNTOLD.fetch_sub(n, Ordering::Relaxed);
        n
    }
}

/// The text to write for a line of this place, with a word on those that were left out before it;
/// `None`: it is left out.
pub fn admit(
    place: Place,
    level: Level,
    now: Instant,
    text: impl FnOnce() -> String,
) -> Option<String> {
    let mut buckets = BUCKETS.lock();
    let at = buckets.iter().position(|b| b.place == place).unwrap_or(buckets.len());
    if at == buckets.len() {
        let (left, left_out, last) = (BURST, 0, String::new());
        buckets.push(Bucket { place, level, left, filled: now, left_out, last });
    }
    let bucket = buckets.get_mut(at)?;
    bucket.refill(now);
    if bucket.left == 0 {
        bucket.left_out += 1;
        UNTOLD.fetch_add(1, Ordering::Relaxed);
        return None;
    }
    bucket.left -= 1;
    let mut text = text();
    bucket.last = text.chars().take(SHOWN).collect();
    match bucket.told() {
        0 => {}
        n => text.push_str(&format!(" ({n} lines like it were left out before it)")),
    }
    Some(text)
}

/// Whether lines were left out and their number was not told yet.
pub fn owes() -> bool {
    UNTOLD.load(Ordering::Relaxed) > 0
}

/// The lines that tell of those left out, where the flood has let up.
pub fn settle(now: Instant) -> Vec<(Level, String)> {
    if !owes() {
        return Vec::new();
    }
    let mut lines = Vec::new();
    for bucket in BUCKETS.lock().iter_mut().filter(|b| b.left_out > 0) {
        bucket.refill(now);
        // A whole second's worth: not in the middle of the flood.
        if bucket.left >= 10 {
            bucket.left -= 1;
            let n = bucket.told();
            lines.push((bucket.level, format!("{n} lines were left out like: {}", bucket.last)));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r10_one_place_floods_and_is_counted() {
        let (here, there) = (Location::caller(), other());
        let start = Instant::now();
        let line = |place, after: u64| {
            let now = start + Duration::from_millis(after);
            admit(place, Level::Warn, now, || "turned away".to_owned())
        };
        let written = (0..100_000).filter(|_| line(here, 0).is_some()).count();
        assert_eq!(written, BURST as usize);
        assert!(line(there, 0).is_some(), "another place is not held back");
        assert!(owes());
        let next = line(here, 100).unwrap();
        assert_eq!(next, "turned away (99900 lines like it were left out before it)");
        assert_eq!(line(here, 100), None);
        let told = |after: u64| {
            let lines = settle(start + Duration::from_millis(after));
            lines.into_iter().filter(|(_, l)| l.contains("turned away")).collect::<Vec<_>>()
        };
        assert_eq!(told(300), [], "the flood may go on");
        let text = "1 lines were left out like: turned away".to_owned();
        assert_eq!(told(5_000), [(Level::Warn, text)]);
        assert_eq!(told(9_000), []);
    }

    #[track_caller]
    fn other() -> Place {
        Location::caller()
    }
}
