//! A histogram of times, whose buckets double.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of buckets. Bucket `i` counts values below 2^i nanoseconds that bucket `i - 1` does not.
pub const BUCKETS: usize = 65;

/// Counts values by their number of binary digits, without a lock.
#[derive(Debug)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { buckets: [const { AtomicU64::new(0) }; BUCKETS], sum: AtomicU64::new(0) }
    }
}

impl Histogram {
    /// Counts a value.
    pub fn record(&self, ns: u64) {
        let bucket = (u64::BITS - ns.leading_zeros()) as usize;
        // One thread at a time, as for every counter: see `Counter::add`.
        let add = |to: &AtomicU64, n| {
            to.store(to.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed)
        };
        add(&self.buckets[bucket], 1);
        add(&self.sum, ns);
    }

    /// The counts now. Values recorded meanwhile may be in some and not in others.
    pub fn snapshot(&self) -> HistogramSnapshot {
        let buckets = array::from_fn(|i| self.buckets[i].load(Ordering::Relaxed));
        HistogramSnapshot {
            buckets,
            count: buckets.iter().sum(),
            sum: self.sum.load(Ordering::Relaxed),
        }
    }
}

/// The counts of a histogram at one moment.
#[derive(Clone, Debug)]
pub struct HistogramSnapshot {
    /// Values per bucket.
    pub buckets: [u64; BUCKETS],
    /// All values.
    pub count: u64,
    /// Their sum.
    pub sum: u64,
}

impl Default for HistogramSnapshot {
    fn default() -> Self {
        HistogramSnapshot { buckets: [0; BUCKETS], count: 0, sum: 0 }
    }
}

impl HistogramSnapshot {
    /// Largest value that bucket `i` counts.
    pub fn upper(i: usize) -> u64 {
        if i >= 64 { u64::MAX } else { (1 << i) - 1 }
    }

    /// The value which `percent` of all do not exceed, rounded up to its bucket's end; 0 if there
    /// is none.
    pub fn percentile(&self, percent: u64) -> u64 {
        let rank = (u128::from(self.count) * u128::from(percent)).div_ceil(100) as u64;
        let mut seen = 0;
        for (i, &n) in self.buckets.iter().enumerate() {
            seen += n;
            if n > 0 && seen >= rank {
                return HistogramSnapshot::upper(i);
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_land_in_the_bucket_of_their_length() {
        let h = Histogram::default();
        for ns in [0, 1, 2, 3, 4, 1000, u64::MAX] {
            h.record(ns);
        }
        let s = h.snapshot();
        assert_eq!(s.count, 7);
        for (bucket, n) in [(0, 1), (1, 1), (2, 2), (3, 1), (10, 1), (64, 1)] {
            assert_eq!(s.buckets[bucket], n, "bucket {bucket}");
        }
        for (i, ns) in [(0, 0), (1, 1), (2, 3), (10, 1023), (64, u64::MAX)] {
            assert_eq!(HistogramSnapshot::upper(i), ns);
        }
    }

    #[test]
    fn percentiles_round_up_to_a_bucket() {
        let h = Histogram::default();
        assert_eq!(h.snapshot().percentile(50), 0);
        for ns in 1..=100 {
            h.record(ns);
        }
        let s = h.snapshot();
        assert_eq!((s.percentile(0), s.percentile(1)), (1, 1));
        assert_eq!((s.percentile(50), s.percentile(99)), (63, 127));
    }
}
