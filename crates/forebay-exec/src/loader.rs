//! The loader: epochs of batches, prefetched in the background, delivered in order.
//!
//! # The tasks of an epoch
//!
//! Two tasks on the I/O runtime walk the same schedule. The *opener* runs ahead and opens windows
//! in the order in which they are first needed, as far as the byte budget lets it. The *feeder*
//! follows, takes one permit for each batch in flight, waits for the batch's windows, and hands its
//! rows to the CPU pool. Finished batches meet in a reorder buffer, where the consumer takes them.
//! An error takes the place of its batch, so it surfaces at the same step on every run.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_core::budget::Held;
use forebay_core::reorder::{Next, Reorder};
use forebay_core::sync::lock;
use forebay_core::{Account, ByteBudget, Error, ErrorKind, Reservation, Result, text};
use forebay_feed::{Batch, SlabPool};
use forebay_io::RowSets;
use forebay_plan::schedule::{
    Bijection, BlockInfo, Epoch, EpochEnd, Piece, Schedule, ScheduleSpec, Shuffle,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::task::JoinSet;

use crate::arrange::Arrangement;
use crate::assemble::{Assembler, REPEAT_COLUMN};
use crate::costs::{Costs, Demand, Form};
use crate::full::Full;
use crate::index;
use crate::outputs::{OutputOptions, OutputSpec, batch_bytes, resolve};
use crate::pipeline::Pipeline;
use crate::pool::{Cancel, Pool, PoolHandle};
use crate::rows::Rows;
use crate::runtime::{Abort, io};
use crate::stats::Stats;
use crate::window::{WindowHandle, WindowSource};

/// Bytes of finished batches that are kept ready by default: 64 MiB, about two batches of 64
/// photographs as float32, or hundreds of small table batches.
const PREFETCH_BYTES: u64 = 64 << 20;

/// Batches that a plain loop holds: its variable, until the next batch is assigned to it, and that next
/// one. They are never too many, however small the memory.
const LOOP_HOLDS: u64 = 2;

/// Batches in the hands of the consumer from which on it is told: more than any training loop keeps,
/// fewer than a list of an epoch.
const MANY_HELD: u64 = 64;

/// What a loader is asked for, beyond the plan.
#[derive(Clone, Debug)]
pub struct LoaderConfig {
    /// Batch, shuffle, rank and world size.
    pub schedule: ScheduleSpec,
    /// Form of the columns.
    pub outputs: OutputOptions,
    /// CPU threads. Default: the CPUs of the cgroup.
    pub threads: usize,
    /// Most bytes that the loader may hold. Default: the budget of the process.
    pub memory_limit: Option<u64>,
    /// Batches in flight or ready. Default: 64 MiB of them, at least 2 and at most 32.
    pub prefetch: Option<usize>,
}

/// A loader over a bound plan. Cheap to clone.
#[derive(Clone)]
pub struct Loader {
    pipeline: Pipeline,
    config: LoaderConfig,
    outputs: Vec<OutputSpec>,
    /// The bytes of a row of each output, where all are dense.
    dense: Option<Vec<usize>>,
    /// Whether windows give their memory back while they are consumed.
    draining: bool,
    index: Arc<RowSets>,
    costs: Arc<Costs>,
    schedule: Arc<Schedule>,
    account: Account,
    slabs: SlabPool,
    stats: Arc<Stats>,
    demand: Demand,
    /// All rows, where the order is a permutation of all of them: made once, for all epochs.
    full: Option<Arc<Full>>,
    /// What the row index holds.
    index_bytes: Arc<Reservation>,
}

impl Loader {
    /// Counts the rows, lays out the schedule and checks that it fits the memory. `tick` is called
    /// while rows are being counted and may stop it.
    pub fn open(
        pipeline: Pipeline,
        config: LoaderConfig,
        budget: &ByteBudget,
        tick: impl FnMut() -> Result<()>,
    ) -> Result<Self> {
        let outputs = resolve(&pipeline.normal, &pipeline.schema(), &config.outputs)?;
        let pads = config.schedule.epoch_end == Some(EpochEnd::Pad);
        if pads && outputs.iter().any(|o| &*o.name == REPEAT_COLUMN) {
            return Err(Error::invalid(format!(
                "the dataset has a column {REPEAT_COLUMN:?}, the name under which repeats are marked"
            ))
            .at_place("loader(epoch_end=\"pad\")")
            .with_hint(format!("rename it with rename({{{REPEAT_COLUMN:?}: \"...\"}}), or drop it")));
        }
        let limit = config.memory_limit.unwrap_or_else(|| budget.limit());
        let stats = Arc::new(Stats::default());
        let index = {
            let account = budget.open(limit, 0);
            Arc::new(index::build(&pipeline, account, config.threads, &stats, tick)?)
        };
        let dense = Arrangement::widths(&outputs);
        // Repeats come from the lane's end backwards, out of windows that are open already.
        let shuffle = config.schedule.shuffle;
        let draining = dense.is_some() && !pads && shuffle != Shuffle::Full;
        let permuted = shuffle == Shuffle::Window;
        let form = Form { arranged: dense.is_some(), permuted, draining };
        let costs = Arc::new(Costs::new(&pipeline, &outputs, &index, form)?);
        let blocks: Vec<BlockInfo> = (0..pipeline.dataset.blocks.len())
            .map(|b| BlockInfo { rows: index.count(b), bytes: costs.decoded(b) })
            .collect();
        let schedule = Schedule::new(&blocks, config.schedule.clone())?;
        if schedule.steps() == 0 && schedule.rows() > 0 {
            tracing::warn!(
                rows = schedule.rows(),
                batch = config.schedule.global_batch,
                "the dataset has fewer rows than one global batch and epoch_end is drop: there are no steps"
            );
        }
        let slab = batch_bytes(&outputs, schedule.rank_batch());
        let prefetch = config
            .prefetch
            .unwrap_or_else(|| (PREFETCH_BYTES / slab.max(1)).clamp(2, 32) as usize)
            .max(1);
        let remote = pipeline.dataset.files.iter().any(|f| f.is_remote());
        let asked = (outputs.as_slice(), &config.outputs);
        let full = Full::of(&schedule, &pipeline, asked, &index, &costs, limit)?;
        let in_file = full.as_ref().is_some_and(|full| full.is_in_file());
        let threads = config.threads;
        let demand = Demand { slab, prefetch: prefetch as u64, threads, remote, in_file };
        let ahead = costs.ahead(&schedule, &demand, limit)?;
        let account = budget.open(limit, slab);
        let index_bytes = Arc::new(account.force(index.bytes(), Held::Window));
        account.set_ahead(ahead.saturating_add(index.bytes()));
        Ok(Self {
            pipeline,
            outputs,
            dense,
            draining,
            index,
            costs,
            schedule: Arc::new(schedule),
            account,
            // Those in flight, one in the consumer's hands, one on its way back.
            slabs: SlabPool::new(prefetch + 2),
            stats,
            demand,
            full,
            config,
            index_bytes,
        })
    }

    /// The resolved schedule.
    pub fn schedule(&self) -> &Arc<Schedule> {
        &self.schedule
    }

    /// The counters.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// The loader's part of the budget.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// The bound plan.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// CPU threads.
    pub fn threads(&self) -> usize {
        self.config.threads
    }

    /// The same loader with another place in the world, or another layout of the order.
    pub fn with(&self, spec: ScheduleSpec) -> Result<Self> {
        let schedule = self.schedule.with(spec.clone())?;
        let slab = batch_bytes(&self.outputs, schedule.rank_batch());
        let demand = Demand { slab, ..self.demand };
        let ahead = self.costs.ahead(&schedule, &demand, self.account.limit())?;
        self.account.set_ahead(ahead.saturating_add(self.index_bytes.bytes()));
        let mut other = self.clone();
        other.schedule = Arc::new(schedule);
        other.demand = demand;
        other.config.schedule = spec;
        Ok(other)
    }

    /// Starts an epoch of which this many samples were delivered before; of its steps those that are
    /// `share`. Everything runs until the returned value is dropped.
    pub fn epoch(&self, epoch: u64, samples: u64, share: Share) -> Result<EpochRun> {
        let order = Arc::new(self.schedule.epoch_from(epoch, samples));
        let cancel = Cancel::default();
        let pool = Pool::start(self.config.threads, cancel)?;
        let assembler = Arc::new(Assembler {
            outputs: self.outputs.clone(),
            slabs: self.slabs.clone(),
            mark_repeats: self.schedule.epoch_end() == EpochEnd::Pad,
            seed: self.config.schedule.seed,
            epoch,
            threads: self.config.threads,
        });
        let source = Arc::new(WindowSource {
            pipeline: self.pipeline.clone(),
            projection: self.pipeline.relation.projection(),
            outputs: self.outputs.clone(),
            dense: self.dense.clone(),
            index: Arc::clone(&self.index),
            costs: Arc::clone(&self.costs),
            pool: pool.handle(),
            threads: self.config.threads,
            stats: Arc::clone(&self.stats),
        });
        let (through, opened) = watch::channel(0);
        let shared = Arc::new(Shared {
            full: self.full.clone().zip(order.bijection().map(Arc::new)),
            order,
            share,
            slab: self.demand.slab,
            draining: self.draining,
            account: self.account.clone(),
            lanes: Mutex::default(),
            through,
            ready: Reorder::new(0),
            started: watch::Sender::new(false),
            permits: Arc::new(Semaphore::new(self.demand.prefetch as usize)),
            assembler,
            pool: pool.handle(),
        });
        self.account.set_head(0);
        let runtime = io()?;
        let opener = Abort(runtime.spawn(open_windows(Arc::clone(&shared), Arc::clone(&source))));
        let feeder = Abort(runtime.spawn(feed(Arc::clone(&shared), source, opened)));
        Ok(EpochRun {
            _tasks: [opener, feeder],
            shared,
            stats: Arc::clone(&self.stats),
            pool: Some(pool),
        })
    }
}

/// Which steps of an epoch a run delivers: `first`, `first + stride`, and so on. They are numbered from 0
/// in the run, whatever they are in the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The first step.
    pub first: u64,
    /// How many steps on the next one is; at least 1.
    pub stride: u64,
}

impl Share {
    /// All steps.
    pub const ALL: Self = Self { first: 0, stride: 1 };

    /// How many of `steps` they are.
    fn of(self, steps: u64) -> u64 {
        steps.saturating_sub(self.first).div_ceil(self.stride.max(1))
    }

    /// The step of the epoch that is number `index` of the run.
    fn step(self, index: u64) -> u64 {
        self.first.saturating_add(index.saturating_mul(self.stride.max(1)))
    }
}

type Lane = VecDeque<(usize, WindowHandle)>;

/// What the tasks of one epoch share.
struct Shared {
    order: Arc<Epoch>,
    /// All rows and their permutation, where the order is that.
    full: Option<(Arc<Full>, Arc<Bijection>)>,
    share: Share,
    /// Bytes of a whole batch.
    slab: u64,
    draining: bool,
    account: Account,
    /// Open windows by lane, oldest first. The opener adds at the back, the feeder leaves behind
    /// what it has passed; both see the same sequence of windows.
    lanes: Mutex<BTreeMap<u64, Lane>>,
    /// Steps whose windows the opener has opened.
    through: watch::Sender<u64>,
    ready: Reorder<Result<Ready>>,
    /// Whether the first batch is made, or waits for its windows. Where it needs a few rows of large
    /// windows only, those come first and the windows after.
    started: watch::Sender<bool>,
    permits: Arc<Semaphore>,
    assembler: Arc<Assembler>,
    pool: PoolHandle,
}

struct Ready {
    batch: Batch,
    _permit: OwnedSemaphorePermit,
}

async fn open_windows(shared: Arc<Shared>, source: Arc<WindowSource>) {
    let mut current: BTreeMap<u64, usize> = BTreeMap::new();
    let mut loads = JoinSet::new();
    if shared.full.is_some() {
        // The rows are looked up in what is kept: there is nothing to open.
        shared.through.send_replace(u64::MAX);
        return;
    }
    for step in 0..shared.steps() {
        for piece in shared.pieces(step) {
            if current.insert(piece.lane, piece.window) == Some(piece.window) {
                continue;
            }
            let cost = source.cost(&shared.order, piece.window);
            let reservation = shared.account.reserve(step, cost).await;
            let (result, handle) = WindowHandle::new();
            lock(&shared.lanes).entry(piece.lane).or_default().push_back((piece.window, handle));
            let (source, order) = (Arc::clone(&source), Arc::clone(&shared.order));
            let mut started = shared.started.subscribe();
            loads.spawn(async move {
                // An error means that the run is gone.
                let _ = started.wait_for(|started| *started).await;
                let window = source.load(order, piece.window, step, reservation).await;
                // Nobody waits any more when the run was dropped.
                let _ = result.send(Some(window.map(Arc::new)));
            });
            while loads.try_join_next().is_some() {}
        }
        shared.through.send_replace(step + 1);
    }
    while loads.join_next().await.is_some() {}
}

async fn feed(shared: Arc<Shared>, source: Arc<WindowSource>, mut opened: watch::Receiver<u64>) {
    let steps = shared.steps();
    let mut warned = false;
    for step in 0..steps {
        let Ok(permit) = Arc::clone(&shared.permits).acquire_owned().await else { return };
        let early = if step == 0 { sparse_rows(&shared, &source, step).await } else { Ok(None) };
        // A first batch that waits for its windows must not keep them waiting.
        if !matches!(early, Ok(Some(_))) {
            shared.started.send_replace(true);
        }
        if opened.wait_for(|through| *through > step).await.is_err() {
            return;
        }
        let rows = match early {
            Ok(Some(rows)) => Ok(rows),
            Ok(None) => gather_rows(&shared, &source, step).await,
            Err(e) => Err(e),
        };
        let rows = match rows {
            Ok(rows) => rows,
            Err(e) => {
                shared.ready.put(step, Err(e));
                return;
            }
        };
        let bytes = batch_bytes(&shared.assembler.outputs, rows.len() as u64);
        let reservation = {
            let mut r = shared.account.reserve(step, bytes).await;
            r.set_kind(Held::Slab);
            r
        };
        let held = shared.account.held(Held::Consumer);
        if held > LOOP_HOLDS * shared.slab && held + bytes > shared.account.limit() {
            shared.ready.put(step, Err(held_too_long(held, shared.slab, shared.account.limit())));
            return;
        }
        // In whole batches: the last one of an epoch may have few rows, or none.
        let batches = held / shared.slab.max(1);
        if batches > MANY_HELD && !warned {
            warned = true;
            tracing::warn!(
                "the program holds {batches} batches; each further one takes fresh memory, up to memory_limit"
            );
        }
        let done = Arc::clone(&shared);
        // Which error comes, and of which sample, must not depend on the threads: where the first
        // sample decides what the others must be like, its batch is made before any other.
        let decides = step == 0 && shared.assembler.outputs.iter().any(OutputSpec::is_open);
        let (made, wait) = oneshot::channel::<()>();
        shared.assembler.start(&shared.pool, step, rows, Some(reservation), move |result| {
            done.ready.put(step, result.map(|batch| Ready { batch, _permit: permit }));
            if step == 0 {
                done.started.send_replace(true);
            }
            drop(made);
        });
        if decides {
            // It ends when the sender is gone, whatever became of the batch.
            let _ = wait.await;
        }
    }
    shared.ready.finish(steps);
}

fn held_too_long(held: u64, bytes: u64, limit: u64) -> Error {
    Error::new(
        ErrorKind::Resource,
        format!(
            "the trainer still holds {} batches ({}), and the next one does not fit the loader's {}",
            (held / bytes.max(1)).max(1),
            text::bytes(held),
            text::bytes(limit)
        ),
    )
    .with_hint("let go of batches that are done (a list of them keeps all), copy what must stay, or raise memory_limit")
}

/// The rows of a step by themselves, where its windows are much larger; `None` where they are not.
async fn sparse_rows(
    shared: &Shared,
    source: &Arc<WindowSource>,
    step: u64,
) -> Result<Option<Rows>> {
    let mut rows = Rows::default();
    if shared.full.is_some() {
        return Ok(None);
    }
    for piece in shared.pieces(step) {
        let (source, order) = (Arc::clone(source), Arc::clone(&shared.order));
        let range = (piece.offset, piece.len);
        let Some(chunk) = source.sparse(order, piece.window, range, step).await? else {
            return Ok(None);
        };
        rows.push(&Arc::new(chunk), 0, piece.len, piece.repeat);
    }
    Ok(Some(rows))
}

async fn gather_rows(shared: &Shared, source: &Arc<WindowSource>, step: u64) -> Result<Rows> {
    let mut rows = Rows::default();
    for piece in shared.pieces(step) {
        if let Some((full, permutation)) = &shared.full {
            let order = (&shared.order, permutation);
            full.take(&mut rows, piece, order, source, &shared.account, step).await?;
            continue;
        }
        let handle = {
            let mut lanes = lock(&shared.lanes);
            let lane = lanes.entry(piece.lane).or_default();
            while lane.front().is_some_and(|(window, _)| *window != piece.window) {
                lane.pop_front();
            }
            lane.front().map(|(_, handle)| handle.clone())
        };
        let Some(mut handle) = handle else {
            return Err(Error::internal("a step came before its window"));
        };
        let window = handle.ready().await?;
        window.take(&mut rows, piece.offset, piece.len, piece.repeat)?;
        if shared.draining {
            window.release(piece.offset + piece.len);
        }
    }
    Ok(rows)
}

/// A running epoch. Dropping it stops all of its work and gives its memory back.
pub struct EpochRun {
    _tasks: [Abort; 2],
    shared: Arc<Shared>,
    stats: Arc<Stats>,
    pool: Option<Pool>,
}

impl EpochRun {
    /// The next batch; `None` at the epoch's end. Blocks; `tick` is called about ten times a second
    /// while nothing comes, and may end the wait with an error (after which the run goes on).
    pub fn next(&mut self, mut tick: impl FnMut() -> Result<()>) -> Option<Result<Batch>> {
        let start = Instant::now();
        loop {
            let next = self.shared.ready.take(Duration::from_millis(100));
            let result = match next {
                Next::TimedOut => match tick() {
                    Ok(()) => continue,
                    Err(e) => return Some(Err(e)),
                },
                Next::End => return None,
                Next::Closed => Err(Error::new(ErrorKind::Cancelled, "the run was stopped")),
                Next::Item(item) => item,
            };
            self.stats.consumer_wait.add(start.elapsed());
            self.shared.account.set_head(self.shared.ready.position());
            let batch = match result {
                Ok(ready) => ready.batch,
                Err(e) => {
                    // What was prefetched behind the error is of no use to anybody.
                    self.shared.ready.close();
                    return Some(Err(e));
                }
            };
            for (_, column) in &batch.columns {
                column.hand_over();
            }
            self.stats.batches.fetch_add(1, Ordering::Relaxed);
            self.stats.rows_out.fetch_add(batch.rows as u64, Ordering::Relaxed);
            return Some(Ok(batch));
        }
    }

    /// Samples of the epoch that were delivered, on all ranks together and by all runs.
    pub fn samples(&self) -> u64 {
        match self.shared.ready.position() {
            0 => self.shared.order.samples(0),
            delivered => self.shared.order.samples(self.shared.share.step(delivered - 1) + 1),
        }
    }

    /// Whether the last batch was delivered.
    pub fn finished(&self) -> bool {
        self.shared.ready.position() >= self.shared.steps()
    }
}

impl Shared {
    /// Steps of the run.
    fn steps(&self) -> u64 {
        self.share.of(self.order.steps())
    }

    /// The rows of a step of the run.
    fn pieces(&self, step: u64) -> Vec<Piece> {
        self.order.step(self.share.step(step))
    }
}

impl Drop for EpochRun {
    fn drop(&mut self) {
        self.shared.ready.close();
        self.pool = None;
        lock(&self.shared.lanes).clear();
    }
}
