//! What a run has done so far, and which stage holds it up.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_core::Result;
use forebay_io::Fetched;

/// Time spent in one stage, over all threads.
#[derive(Debug, Default)]
pub struct Stage(AtomicU64);

impl Stage {
    /// Counts the time of `work`.
    pub fn time<T>(&self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.add(start.elapsed());
        result
    }

    /// Counts a duration.
    pub fn add(&self, time: Duration) {
        self.0.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Seconds so far.
    pub fn seconds(&self) -> f64 {
        self.0.load(Ordering::Relaxed) as f64 / 1e9
    }
}

/// Counters of one run. All of them only grow.
#[derive(Debug, Default)]
pub struct Stats {
    /// Rows that the source gave.
    pub rows_read: AtomicU64,
    /// Rows delivered or written.
    pub rows_out: AtomicU64,
    /// Delivered or written rows with a bad value, and rows that were left out for one.
    pub bad_rows: AtomicU64,
    /// Of these, the rows that were left out.
    pub dropped_rows: AtomicU64,
    /// Rows that a loader delivered once more in place of those.
    pub repeated_rows: AtomicU64,
    /// Batches delivered.
    pub batches: AtomicU64,
    /// Bytes fetched from storage.
    pub bytes_read: AtomicU64,
    /// Waiting for storage, summed over concurrent reads.
    pub fetch: Stage,
    /// Decompressing and decoding.
    pub decode: Stage,
    /// Expressions, conversion and operators.
    pub transform: Stage,
    /// Encoding and writing.
    pub write: Stage,
    /// The consumer waiting for a batch.
    pub consumer_wait: Stage,
}

impl Stats {
    /// Counts a read: its time and its bytes.
    pub async fn fetching(&self, read: impl Future<Output = Result<Fetched>>) -> Result<Fetched> {
        let start = Instant::now();
        let fetched = read.await?;
        self.fetched(start.elapsed(), fetched.bytes());
        Ok(fetched)
    }

    /// Counts a read that is done.
    pub fn fetched(&self, time: Duration, bytes: u64) {
        self.fetch.add(time);
        self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The stage that holds the run up: the consumer when batches wait for it, else the busiest
    /// CPU stage, or storage when the threads were mostly idle. `elapsed` is the run's wall time.
    pub fn bottleneck(&self, elapsed: Duration, threads: usize) -> &'static str {
        let wall = elapsed.as_secs_f64().max(1e-9);
        let stages = [("decode", self.decode.seconds()), ("transform", self.transform.seconds())];
        let cpu: f64 = stages.iter().map(|(_, s)| s).sum();
        let writing = self.write.seconds() / wall;
        if writing > 0.5 && writing > cpu / (wall * threads.max(1) as f64) {
            return "write";
        }
        if cpu < 0.5 * wall * threads.max(1) as f64 {
            return if self.fetch.seconds() > cpu { "storage" } else { "consumer" };
        }
        stages.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or("decode", |(name, _)| name)
    }
}
