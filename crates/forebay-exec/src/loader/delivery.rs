//! The end of a run: rows become batches on the CPU pool, meet in a reorder buffer, and the consumer
//! takes them in order. How rows were chosen is no concern of this room.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use forebay_core::budget::{Held, Reserve};
use forebay_core::reorder::{Next, Reorder};
use forebay_core::sync::lock;
use forebay_core::{Account, Error, ErrorKind, Result, text};
use forebay_feed::Batch;
use forebay_plan::schedule::LaneProgress;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinSet;

use super::substitute::Substitutes;
use crate::assemble::{Assembled, Assembler, Made, Unfinished};
use crate::ledger::Tally;
use crate::outputs::{OutputSpec, batch_bytes};
use crate::pool::{Pool, PoolHandle};
use crate::queue::{Queue, Waiting};
use crate::rows::Rows;
use crate::runtime::{Abort, io};
use crate::stats::Stats;

/// Batches that a plain loop holds: its variable, until the next batch is assigned to it, and that next
/// one. They are never too many, however small the memory.
const LOOP_HOLDS: u64 = 2;

/// Batches in the hands of the consumer from which on it is told: more than any training loop keeps,
/// fewer than a list of an epoch.
const MANY_HELD: u64 = 64;

/// How far an epoch is: what a checkpoint says of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Samples on all ranks together; steps where lanes are streams.
    pub count: u64,
    /// The lanes of this rank, where they are streams.
    pub lanes: Arc<[LaneProgress]>,
}

/// What makes batches and hands them over.
pub struct Delivery {
    account: Account,
    /// The account's number of step 0. Its head is where the run before has left it, and all that is
    /// numbered below is admitted at once.
    base: u64,
    ready: Reorder<Result<Ready>>,
    permits: Arc<Semaphore>,
    assembler: Arc<Assembler>,
    pool: PoolHandle,
    queue: Arc<Queue>,
    warned: AtomicBool,
    /// Batches that a consumer in another process holds without having asked for them yet.
    on_the_way: u64,
    /// What is delivered in the place of bad rows, where they are skipped.
    substitutes: OnceLock<Substitutes>,
    /// Batches that wait for substitutes.
    mending: Mutex<JoinSet<()>>,
}

struct Ready {
    made: Made,
    after: Delivered,
    _permit: OwnedSemaphorePermit,
    _waiting: Waiting,
}

impl Delivery {
    /// Nothing is made yet.
    pub fn new(
        account: Account,
        prefetch: u64,
        on_the_way: u64,
        assembler: Assembler,
        pool: PoolHandle,
        queue: Arc<Queue>,
    ) -> Self {
        Self {
            base: account.head(),
            account,
            ready: Reorder::new(0),
            permits: Arc::new(Semaphore::new(prefetch as usize)),
            assembler: Arc::new(assembler),
            pool,
            queue,
            warned: AtomicBool::new(false),
            on_the_way,
            substitutes: OnceLock::new(),
            mending: Mutex::default(),
        }
    }

    /// Bad rows are replaced from now on.
    pub(super) fn replace(&self, substitutes: Substitutes) {
        let _ = self.substitutes.set(substitutes);
    }

    /// What makes the batches.
    pub(super) fn assembler(&self) -> &Arc<Assembler> {
        &self.assembler
    }

    /// The loader's part of the budget.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Waits for bytes for work of a step.
    pub fn reserve(&self, step: u64, bytes: u64) -> Reserve {
        self.account.reserve(self.base.saturating_add(step), bytes)
    }

    /// The CPU pool.
    pub fn pool(&self) -> &PoolHandle {
        &self.pool
    }

    /// Waits until one more batch may be in the making. None where the run is gone.
    pub async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        self.queue.wait(Arc::clone(&self.permits).acquire_owned()).await.ok()
    }

    /// Puts an error in the place of a step's batch.
    pub fn fail(&self, step: u64, error: Error) {
        self.ready.put(step, Err(error));
    }

    /// There is no step from this one on.
    pub fn finish(&self, steps: u64) {
        self.ready.finish(steps);
    }

    /// Makes the batch of a step out of its rows, the first of which is at `first` in the epoch; `after` is how far the epoch is with it, and `made` is
    /// called when it is there. False where the run ends in an error with it.
    pub async fn make(
        self: &Arc<Self>,
        step: u64,
        (rows, first): (Rows, u64),
        permit: OwnedSemaphorePermit,
        after: Delivered,
        made: impl FnOnce() + Send + 'static,
    ) -> bool {
        let bytes = batch_bytes(&self.assembler.outputs, rows.len() as u64);
        let reservation = {
            let mut r = self.queue.wait(self.reserve(step, bytes)).await;
            r.set_kind(Held::Slab);
            r
        };
        let (batches, held) =
            (self.account.number(Held::Consumer), self.account.held(Held::Consumer));
        if batches > LOOP_HOLDS + self.on_the_way && held + bytes > self.account.limit() {
            self.fail(step, held_too_long(batches, held, self.account.limit()));
            return false;
        }
        if batches > MANY_HELD && !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "the program holds {batches} batches; each further one takes fresh memory, up to memory_limit"
            );
        }
        let done = Arc::clone(self);
        // Which error comes, and of which sample, must not depend on the threads: where the first
        // sample decides what the others must be like, its batch is made before any other.
        let decides = step == 0 && self.assembler.outputs.iter().any(OutputSpec::is_open);
        let (ended, wait) = oneshot::channel::<()>();
        let making = (
            self.queue.begin(),
            tracing::info_span!(parent: None, "batch", step, rows = rows.len()),
        );
        self.assembler.start(&self.pool, step, (rows, first), Some(reservation), move |result| {
            let waiting = done.queue.clone();
            let ready = move |made| Ready { made, after, _permit: permit, _waiting: waiting.put() };
            match result {
                Ok(Assembled::Gaps(unfinished)) => {
                    let this = Arc::clone(&done);
                    done.later(step, async move {
                        let result = this.mend(step, unfinished).await;
                        this.ready.put(step, result.map(ready));
                        drop(making);
                    });
                }
                Ok(Assembled::Whole(made)) => {
                    done.ready.put(step, Ok(ready(made)));
                    drop(making);
                }
                Err(e) => done.ready.put(step, Err(e)),
            }
            made();
            drop(ended);
        });
        if decides {
            // It ends when the sender is gone, whatever became of the batch.
            let _ = wait.await;
        }
        true
    }
}

impl Delivery {
    /// Runs work on the I/O runtime that ends with the run.
    fn later(&self, step: u64, work: impl Future<Output = ()> + Send + 'static) {
        match io() {
            Ok(runtime) => {
                let mut mending = lock(&self.mending);
                while mending.try_join_next().is_some() {}
                mending.spawn_on(work, runtime.handle());
            }
            Err(e) => self.fail(step, e),
        }
    }

    /// Finishes a batch with other rows in the place of bad ones.
    async fn mend(&self, step: u64, unfinished: Unfinished) -> Result<Made> {
        let Some(substitutes) = self.substitutes.get() else {
            return Err(Error::internal("rows are skipped that nothing replaces"));
        };
        let mended = substitutes.replace(step, &unfinished, self).await?;
        let (assembler, cancel) = (Arc::clone(&self.assembler), self.pool.cancel().clone());
        let check = move || cancel.check();
        self.pool
            .run(step, move |worker| {
                let mend = || assembler.mend(unfinished, mended, &mut worker.scratch, check);
                assembler.stats.transform.time(mend)
            })
            .await
    }
}

fn held_too_long(batches: u64, held: u64, limit: u64) -> Error {
    Error::new(
        ErrorKind::Resource,
        format!(
            "the trainer still holds {batches} batches ({}), and the next one does not fit the loader's {}",
            text::bytes(held),
            text::bytes(limit)
        ),
    )
    .with_hint("let go of batches that are done (a list of them keeps all), copy what must stay, or raise memory_limit")
}

/// A running epoch. Dropping it stops all of its work and gives its memory back.
pub struct EpochRun {
    _tasks: Vec<Abort>,
    out: Arc<Delivery>,
    stats: Arc<Stats>,
    pool: Option<Pool>,
    steps: u64,
    delivered: Delivered,
    /// Apart, so that a run is small to move.
    tally: Box<Tally>,
    /// Lets go of the open windows that tasks still share.
    close: Option<Box<dyn FnOnce() + Send>>,
}

impl EpochRun {
    /// A run of `steps` steps, which `tasks` feed into `out`; the epoch was `delivered` so far before.
    pub(super) fn new(
        tasks: Vec<Abort>,
        out: Arc<Delivery>,
        stats: Arc<Stats>,
        pool: Pool,
        steps: u64,
        delivered: Delivered,
        tally: Tally,
    ) -> Self {
        let tally = Box::new(tally);
        Self { _tasks: tasks, out, stats, pool: Some(pool), steps, delivered, tally, close: None }
    }

    /// Calls `close` when everything has stopped.
    pub(super) fn closing(mut self, close: impl FnOnce() + Send + 'static) -> Self {
        self.close = Some(Box::new(close));
        self
    }

    /// The next batch; `None` at the epoch's end. Blocks; `tick` is called about ten times a second
    /// while nothing comes, and may end the wait with an error (after which the run goes on).
    pub fn next(&mut self, mut tick: impl FnMut() -> Result<()>) -> Option<Result<Batch>> {
        loop {
            let start = Instant::now();
            let next = self.out.ready.take(Duration::from_millis(100));
            // Of another process only that one knows.
            if self.out.on_the_way == 0 {
                self.stats.consumer_wait.add(start.elapsed());
            }
            let result = match next {
                Next::TimedOut => match tick() {
                    Ok(()) => continue,
                    Err(e) => return Some(Err(e)),
                },
                Next::End => return self.tally.end().err().map(Err),
                Next::Closed => Err(Error::new(ErrorKind::Cancelled, "the run was stopped")),
                Next::Item(item) => item,
            };
            self.out.account.set_head(self.out.base + self.out.ready.position());
            // A batch with one bad row too many is not delivered.
            let result = result.and_then(|ready| {
                let Made { batch, bad } = ready.made;
                self.tally.add(batch.rows as u64, &bad, ready.after.count)?;
                self.delivered = ready.after;
                Ok(batch)
            });
            let batch = match result {
                Ok(batch) => batch,
                Err(e) => {
                    // What was prefetched behind the error is of no use to anybody.
                    self.out.ready.close();
                    return Some(Err(e));
                }
            };
            for (_, column) in &batch.columns {
                column.hand_over();
            }
            self.stats.batches.fetch_add(1, Ordering::Relaxed);
            self.stats.rows_out.fetch_add(batch.rows as u64, Ordering::Relaxed);
            self.stats.batch_bytes.fetch_add(batch.byte_len(), Ordering::Relaxed);
            return Some(Ok(batch));
        }
    }

    /// How far the epoch is, by all runs of it.
    pub fn delivered(&self) -> &Delivered {
        &self.delivered
    }

    /// Whether the last batch was delivered.
    pub fn finished(&self) -> bool {
        self.out.ready.position() >= self.steps
    }
}

impl Drop for EpochRun {
    fn drop(&mut self) {
        self.out.ready.close();
        lock(&self.out.mending).abort_all();
        self.pool = None;
        if let Some(close) = self.close.take() {
            close();
        }
    }
}
