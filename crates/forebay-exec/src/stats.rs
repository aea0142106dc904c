//! What a run has done so far, and which stage holds it up.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_core::Result;
use forebay_io::{Fetched, retries};
use tracing::Instrument;

use crate::queue::Queue;

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

/// Counters of one run, which only grow, and its queue.
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
    /// Bytes of their values.
    pub batch_bytes: AtomicU64,
    /// Bytes fetched from storage.
    pub bytes_read: AtomicU64,
    /// Attempts at reads that failed and were made again.
    pub retries: Arc<AtomicU64>,
    /// Waiting for storage, summed over concurrent reads.
    pub fetch: Stage,
    /// Decompressing and decoding.
    pub decode: Stage,
    /// Expressions, conversion, and operators on pictures with their decoding.
    pub transform: Stage,
    /// Gathering the rows of batches, and mixing within them.
    pub assemble: Stage,
    /// Encoding and writing.
    pub write: Stage,
    /// The consumer waiting for a batch.
    pub consumer_wait: Stage,
    /// Batches on their way, and the engine waiting for the consumer.
    pub queue: Arc<Queue>,
}

impl Stats {
    /// Counts a read: its time, its bytes, and its retries.
    pub async fn fetching(&self, read: impl Future<Output = Result<Fetched>>) -> Result<Fetched> {
        self.read(read, |fetched| Some(fetched)).await
    }

    /// The same for one that may not be made.
    pub async fn fetching_some(
        &self,
        read: impl Future<Output = Result<Option<Fetched>>>,
    ) -> Result<Option<Fetched>> {
        self.read(read, Option::as_ref).await
    }

    async fn read<T>(
        &self,
        read: impl Future<Output = Result<T>>,
        fetched: impl FnOnce(&T) -> Option<&Fetched>,
    ) -> Result<T> {
        let start = Instant::now();
        let span = tracing::info_span!("read", bytes = tracing::field::Empty);
        let read = retries::counted(Arc::clone(&self.retries), read).instrument(span.clone());
        let result = read.await?;
        if let Some(fetched) = fetched(&result) {
            self.fetch.add(start.elapsed());
            self.bytes_read.fetch_add(fetched.bytes(), Ordering::Relaxed);
            span.record("bytes", fetched.bytes());
        }
        Ok(result)
    }

    /// The stage that holds the run up: the consumer when batches wait for it, else the busiest
    /// CPU stage, or storage when the threads were mostly idle. `elapsed` is the run's wall time.
    pub fn bottleneck(&self, elapsed: Duration, threads: usize) -> &'static str {
        let wall = elapsed.as_secs_f64().max(1e-9);
        let transform = self.transform.seconds() + self.assemble.seconds();
        let stages = [("decode", self.decode.seconds()), ("transform", transform)];
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
