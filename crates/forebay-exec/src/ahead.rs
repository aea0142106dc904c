//! How much of local files is read ahead of its decoding.
//!
//! What was read is freed once it is decoded, and its memory serves the next read, if that comes after
//! and not before. Fresh memory costs as much as the copy out of the page cache: the kernel clears it.
//! From an object store everything is read at once all the same, since its latency is what counts.

use forebay_core::{Error, Result, alloc};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Bytes that may be read and not yet decoded: what the allocator keeps to give out again.
const MOST: u64 = alloc::KEPT as u64;

/// What is counted; a smaller read counts as much.
const UNIT: u64 = 64 << 10;

/// The room that reads of local files have together.
#[derive(Debug)]
pub struct ReadAhead(Semaphore);

impl ReadAhead {
    /// All of it is free.
    pub fn new() -> Self {
        Self(Semaphore::new((MOST / UNIT) as usize))
    }

    /// Waits for the room of so many bytes, in order of asking. It is to be held until they are decoded.
    /// What is larger than all of it waits for all of it.
    pub async fn enter(&self, bytes: u64) -> Result<SemaphorePermit<'_>> {
        let units = bytes.clamp(UNIT, MOST) / UNIT;
        let entered = self.0.acquire_many(units as u32).await;
        entered.map_err(|e| Error::internal("the room for reads is closed").with_source(e))
    }
}
