//! Blocks in file order: fetched ahead, worked on by all threads, given out in sequence.
//!
//! Batch jobs and the loader's row index both walk the dataset this way. The byte budget bounds how
//! far fetching runs ahead; dropping the scan stops everything.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use forebay_core::reorder::{Next, Reorder};
use forebay_core::{Account, Error, ErrorKind, Reservation, Result};
use forebay_io::{BlockReader, Selection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use crate::pool::{Cancel, Pool, Worker};
use crate::runtime::{Abort, io};
use crate::stats::Stats;

/// A block to be read.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its number in the dataset.
    pub block: usize,
    /// The rows of it that statistics of pages leave; `None` for all.
    pub rows: Option<Selection>,
}

/// What is done with the decoded batches of one block.
pub type BlockWork<T> =
    dyn Fn(&Candidate, Vec<RecordBatch>, &mut Worker) -> Result<T> + Send + Sync;

/// A finished block: its value, and the bytes that it holds.
pub struct Scanned<T> {
    /// Position in the list of blocks.
    pub position: usize,
    /// What the work gave.
    pub value: T,
    _reservation: Reservation,
    _permit: OwnedSemaphorePermit,
}

/// Blocks that may be in flight beyond the threads, so that the network is never idle while all
/// threads decode.
const AHEAD: usize = 4;

/// Between two calls of the owner's tick, which is where Ctrl-C is seen.
const TICK: Duration = Duration::from_millis(50);

/// The scan. Fields are dropped in order: first the reads, then the threads.
pub struct Scan<T: Send + 'static> {
    _feeder: Abort,
    ready: Arc<Reorder<Result<Scanned<T>>>>,
    account: Account,
    pool: Pool,
    ticked: Instant,
}

impl<T: Send + 'static> Scan<T> {
    /// Starts scanning `blocks` in order.
    pub fn start(
        reader: BlockReader,
        blocks: Vec<Candidate>,
        account: Account,
        threads: usize,
        stats: Arc<Stats>,
        work: Arc<BlockWork<T>>,
    ) -> Result<Self> {
        let cancel = Cancel::default();
        let pool = Pool::start(threads, cancel)?;
        let ready = Arc::new(Reorder::new(0));
        let feeder = {
            let (ready, account, handle) = (Arc::clone(&ready), account.clone(), pool.handle());
            io()?.spawn(async move {
                let places = Arc::new(Semaphore::new(threads + AHEAD));
                let mut tasks = JoinSet::new();
                let end = blocks.len() as u64;
                for (seq, block) in blocks.into_iter().enumerate() {
                    let Ok(permit) = Arc::clone(&places).acquire_owned().await else { return };
                    let cost = reader.cost_of(block.block, block.rows.as_ref());
                    let reservation = account.reserve(seq as u64, cost.fetch + cost.decoded).await;
                    let (reader, handle, stats) =
                        (reader.clone(), handle.clone(), Arc::clone(&stats));
                    let (ready, work) = (Arc::clone(&ready), Arc::clone(&work));
                    tasks.spawn(async move {
                        let result =
                            one(&reader, &handle, &stats, seq, block, work, reservation, permit)
                                .await;
                        ready.put(seq as u64, result);
                    });
                    // Finished tasks leave at once; the set stays as small as the permits.
                    while tasks.try_join_next().is_some() {}
                }
                ready.finish(end);
                while tasks.join_next().await.is_some() {}
            })
        };
        Ok(Self { _feeder: Abort(feeder), ready, account, pool, ticked: Instant::now() })
    }

    /// The next block in sequence; `None` at the end. `tick` is called about ten times a second,
    /// whether blocks come or not, and may stop the scan with an error.
    pub fn next(&mut self, mut tick: impl FnMut() -> Result<()>) -> Option<Result<Scanned<T>>> {
        loop {
            // Not only where the wait is long: small blocks come faster than any wait ends.
            if self.ticked.elapsed() >= TICK {
                self.ticked = Instant::now();
                if let Err(e) = tick() {
                    return Some(Err(e));
                }
            }
            match self.ready.take(TICK) {
                Next::Item(item) => {
                    self.account.set_head(self.ready.position());
                    return Some(item);
                }
                Next::End => return None,
                Next::Closed => {
                    return Some(Err(Error::new(ErrorKind::Cancelled, "the run was stopped")));
                }
                Next::TimedOut => {}
            }
        }
    }

    /// The scan's pool, for further work on its results.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }
}

#[expect(clippy::too_many_arguments, reason = "the parts of one task, moved into it")]
async fn one<T: Send + 'static>(
    reader: &BlockReader,
    pool: &crate::pool::PoolHandle,
    stats: &Arc<Stats>,
    seq: usize,
    candidate: Candidate,
    work: Arc<BlockWork<T>>,
    reservation: Reservation,
    permit: OwnedSemaphorePermit,
) -> Result<Scanned<T>> {
    let fetched = stats.fetching(reader.fetch(candidate.block, candidate.rows.as_ref())).await?;
    let decoder = reader.clone();
    let stats = Arc::clone(stats);
    let value = pool
        .run(seq as u64, move |worker| {
            let batches = stats.decode.time(|| decoder.decode(fetched))?;
            stats.transform.time(|| work(&candidate, batches, worker))
        })
        .await?;
    Ok(Scanned { position: seq, value, _reservation: reservation, _permit: permit })
}
