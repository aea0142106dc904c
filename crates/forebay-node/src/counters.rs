//! The counters of a loader as they are at one moment.

use std::ops::{Add, Sub};
use std::sync::atomic::{AtomicU64, Ordering};

use forebay::Stats;

/// See the module's text. Times are in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    pub rows: f64,
    pub batches: f64,
    pub batch_bytes: f64,
    pub read_bytes: f64,
    pub fetch: f64,
    pub decode: f64,
    pub transform: f64,
    pub assemble: f64,
    pub trainer_blocked: f64,
    pub backpressure: f64,
    pub retries: f64,
    pub bad_rows: f64,
    pub dropped_rows: f64,
    pub repeated_rows: f64,
}

impl Counters {
    /// What the engine has counted so far.
    pub fn of(stats: &Stats) -> Self {
        // Whole up to 2^53, as in every consumer of the metrics.
        let count = |n: &AtomicU64| n.load(Ordering::Relaxed) as f64;
        Self {
            rows: count(&stats.rows_out),
            batches: count(&stats.batches),
            batch_bytes: count(&stats.batch_bytes),
            read_bytes: count(&stats.bytes_read),
            fetch: stats.fetch.seconds(),
            decode: stats.decode.seconds(),
            transform: stats.transform.seconds(),
            assemble: stats.assemble.seconds(),
            trainer_blocked: stats.consumer_wait.seconds(),
            backpressure: stats.queue.waited().seconds(),
            retries: count(&stats.retries),
            bad_rows: count(&stats.bad_rows),
            dropped_rows: count(&stats.dropped_rows),
            repeated_rows: count(&stats.repeated_rows),
        }
    }

    fn each(self, other: Self, f: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            rows: f(self.rows, other.rows),
            batches: f(self.batches, other.batches),
            batch_bytes: f(self.batch_bytes, other.batch_bytes),
            read_bytes: f(self.read_bytes, other.read_bytes),
            fetch: f(self.fetch, other.fetch),
            decode: f(self.decode, other.decode),
            transform: f(self.transform, other.transform),
            assemble: f(self.assemble, other.assemble),
            trainer_blocked: f(self.trainer_blocked, other.trainer_blocked),
            backpressure: f(self.backpressure, other.backpressure),
            retries: f(self.retries, other.retries),
            bad_rows: f(self.bad_rows, other.bad_rows),
            dropped_rows: f(self.dropped_rows, other.dropped_rows),
            repeated_rows: f(self.repeated_rows, other.repeated_rows),
        }
    }
}

impl Add for Counters {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.each(other, |a, b| a + b)
    }
}

impl Sub for Counters {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.each(other, |a, b| a - b)
    }
}
