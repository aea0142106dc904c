//! Batches between the CPU pool and the trainer, and the time for which the engine waits for the trainer
//! to take them.
//!
//! What makes batches waits where as many as may be are on their way: for a permit, or for memory. That
//! alone says nothing about the trainer, since the batches may still be in the making. Only where none is
//! in the making, and all are ready, has the engine nothing to do until one is taken; this is the time
//! that is counted.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::stats::Stage;

/// A wait that goes on is counted up to here, so that a trainer that stands still shows at once.
const LAP: Duration = Duration::from_millis(100);

/// See the module's text.
#[derive(Debug)]
pub struct Queue {
    making: AtomicU64,
    ready: AtomicU64,
    waited: Stage,
    born: Instant,
    /// When a batch was last made, in nanoseconds since `born`.
    made: AtomicU64,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            making: AtomicU64::new(0),
            ready: AtomicU64::new(0),
            waited: Stage::default(),
            born: Instant::now(),
            made: AtomicU64::new(0),
        }
    }
}

impl Queue {
    /// Batches that the CPU pool works on or has before it.
    pub fn making(&self) -> u64 {
        self.making.load(Ordering::Acquire)
    }

    /// Finished batches that the consumer has not taken.
    pub fn ready(&self) -> u64 {
        self.ready.load(Ordering::Relaxed)
    }

    /// Time for which every batch was ready and none was taken.
    pub fn waited(&self) -> &Stage {
        &self.waited
    }

    /// A batch goes into the making, until this is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> Making {
        self.making.fetch_add(1, Ordering::Relaxed);
        Making(Arc::clone(self))
    }

    /// A batch is ready, until this is dropped.
    pub(crate) fn put(self: &Arc<Self>) -> Waiting {
        self.ready.fetch_add(1, Ordering::Relaxed);
        Waiting(Arc::clone(self))
    }

    /// Waits for what the next batch needs, and counts how long that was the trainer's doing.
    pub(crate) async fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            let since = self.now();
            let ended = tokio::time::timeout(LAP, &mut work).await;
            if self.making() == 0 {
                let from = since.max(self.made.load(Ordering::Relaxed));
                self.waited.add(Duration::from_nanos(self.now().saturating_sub(from)));
            }
            if let Ok(value) = ended {
                return value;
            }
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// A batch in the making.
pub(crate) struct Making(Arc<Queue>);

impl Drop for Making {
    fn drop(&mut self) {
        // The time first: whoever sees that nothing is in the making sees since when.
        self.0.made.fetch_max(self.0.now(), Ordering::Relaxed);
        self.0.making.fetch_sub(1, Ordering::Release);
    }
}

/// A finished batch.
pub(crate) struct Waiting(Arc<Queue>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.ready.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// Longer than a lap. What is counted of it is bounded by what the test measures itself.
    async fn pause() {
        tokio::time::sleep(Duration::from_millis(300)).await;
    }

    #[test]
    fn a_wait_counts_only_while_nothing_is_in_the_making() {
        let queue = Arc::new(Queue::default());
        let making = queue.begin();
        crate::runtime::wait(queue.wait(pause())).unwrap();
        assert_eq!(queue.waited().seconds(), 0.0);

        // The batch is made in the middle of the wait: from then on the wait is the trainer's doing.
        let start = Instant::now();
        let made = async {
            pause().await;
            let before = start.elapsed().as_secs_f64();
            drop(making);
            let ready = queue.put();
            assert_eq!((queue.making(), queue.ready()), (0, 1));
            pause().await;
            drop(ready);
            before
        };
        let before = crate::runtime::wait(queue.wait(made)).unwrap();
        let waited = queue.waited().seconds();
        assert!(waited >= 0.3, "{waited}");
        assert!(waited <= start.elapsed().as_secs_f64() - before, "{waited}");
        assert_eq!((queue.making(), queue.ready()), (0, 0));
    }
}
