//! The loader: epochs of batches, prefetched in the background, delivered in order.
//!
//! # The tasks of an epoch
//!
//! Two tasks on the I/O runtime walk the same schedule. The *opener* runs ahead and opens windows
//! in the order in which they are first needed, as far as the byte budget lets it. The *feeder*
//! follows, takes one permit for each batch in flight, waits for the batch's windows, and hands its
//! rows to the CPU pool. Finished batches meet in a reorder buffer, where the consumer takes them.
//! An error takes the place of its batch, so it surfaces at the same step on every run. That end of a
//! run is `delivery`. Where rows are multiplied, what a step needs is not known beforehand, and
//! another task takes the place of these two: `stream`.

mod delivery;
mod stream;
mod substitute;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

pub use delivery::{Delivered, EpochRun};
use forebay_core::budget::Held;
use forebay_core::sync::lock;
use forebay_core::{Account, ByteBudget, Error, ErrorKind, Reservation, Result};
use forebay_feed::{Backing, SlabPool};
use forebay_io::RowSets;
use forebay_plan::schedule::{
    Bijection, BlockInfo, Epoch, EpochEnd, Piece, Schedule, ScheduleSpec, Shuffle,
};
use forebay_plan::{BadRows, OnError, OutputKind};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::arrange::Arrangement;
use crate::assemble::{Assembler, REPEAT_COLUMN};
use crate::commons::{Commons, Member, Run};
use crate::costs::{Costs, Demand, Form};
use crate::full::Full;
use crate::index;
use crate::ledger::{Ledger, Tally};
use crate::mixes;
use crate::outputs::{OutputOptions, OutputSpec, batch_bytes, resolve};
use crate::pipeline::Pipeline;
use crate::pool::{Cancel, Pool};
use crate::rows::{Rows, Window};
use crate::runtime::{Abort, io};
use crate::stats::Stats;
use crate::window::{WindowHandle, WindowSource};

pub(crate) use delivery::Delivery;
use substitute::Substitutes;

/// Bytes of finished batches that are kept ready by default: 64 MiB, about two batches of 64
/// photographs as float32, or hundreds of small table batches.
const PREFETCH_BYTES: u64 = 64 << 20;

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
    /// How many rows may be bad, and where they are listed.
    pub bad_rows: BadRows,
    /// What slabs are made of.
    pub backing: Arc<dyn Backing>,
    /// Batches that are taken before the consumer asks for them, because it is another process: it holds
    /// these as well, and how long it waits it tells by itself. 0 for a consumer of this process.
    pub on_the_way: u64,
    /// Where windows are shared with other loaders of the process. Default: they are not.
    pub commons: Option<Commons>,
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
    ledger: Arc<Ledger>,
    demand: Demand,
    /// All rows, where the order is a permutation of all of them: made once, for all epochs.
    full: Option<Arc<Full>>,
    /// The loaders that it shares windows with.
    member: Option<Arc<Member>>,
    /// What the row index holds.
    index_bytes: Arc<Reservation>,
}

/// Pictures that are written back are for who reads them later.
fn refuse_encoded(pipeline: &Pipeline) -> Result<()> {
    for output in &pipeline.normal.outputs {
        let OutputKind::Image { spec, .. } = &output.kind else { continue };
        if let Some(encoder) = spec.ops.iter().position(|op| op.encoding().is_some()) {
            let step = output.step.unwrap_or(0);
            return Err(Error::invalid("encode_image is for jobs, and a loader delivers pixels")
                .in_column(&output.name)
                .at_place(format!("steps[{step}].map_image.ops[{encoder}].encode_image"))
                .with_hint(
                    "leave encode_image out, or write the pictures with write_parquet and make the loader over those",
                ));
        }
    }
    Ok(())
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
        refuse_encoded(&pipeline)?;
        let _span = tracing::info_span!("open", files = pipeline.dataset.files.len()).entered();
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
        let ledger = Ledger::open(&config.bad_rows, &stats)
            .map_err(|e| e.map_place(|argument| format!("loader({argument}=...)")))?;
        let index = {
            let account = budget.open(limit, 0);
            Arc::new(index::build(&pipeline, account, config.threads, &stats, tick)?)
        };
        // Rows that are to be multiplied are kept as they were decoded.
        let streams = pipeline.split.is_some();
        let dense = Arrangement::widths(&outputs).filter(|_| !streams);
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
        tell_no_steps(&schedule, &pipeline);
        let slab = batch_bytes(&outputs, schedule.rank_batch());
        let prefetch = config
            .prefetch
            .unwrap_or_else(|| (PREFETCH_BYTES / slab.max(1)).clamp(2, 32) as usize)
            .max(1);
        let remote = pipeline.dataset.files.iter().any(|f| f.is_remote());
        let asked = (outputs.as_slice(), &config.outputs);
        let full = Full::of(&schedule, &pipeline, asked, &index, &costs, limit)?;
        let demand = Demand {
            slab,
            prefetch: prefetch as u64,
            threads: config.threads,
            remote,
            in_file: full.as_ref().is_some_and(|full| full.is_in_file()),
            endless: streams,
        };
        let ahead = costs.ahead(&schedule, &demand, limit)?;
        let account = budget.open(limit, slab);
        let index_bytes = Arc::new(account.force(index.bytes(), Held::Window));
        account.set_ahead(ahead.saturating_add(index.bytes()));
        let member = member(&config, &pipeline, &schedule, &account, full.is_some());
        Ok(Self {
            member,
            pipeline,
            outputs,
            dense,
            draining,
            index,
            costs,
            schedule: Arc::new(schedule),
            account,
            // Those in flight, one in the consumer's hands, one on its way back.
            slabs: SlabPool::backed(
                Arc::clone(&config.backing),
                prefetch + 2 + config.on_the_way as usize,
            ),
            stats,
            ledger,
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
        let full = self.full.is_some();
        other.config.schedule = spec;
        other.member = member(&other.config, &self.pipeline, &schedule, &self.account, full);
        other.schedule = Arc::new(schedule);
        other.demand = demand;
        Ok(other)
    }

    /// Starts an epoch of which this was delivered before; of its steps those that are `share`, of
    /// streams all. Everything runs until the returned value is dropped.
    pub fn epoch(&self, epoch: u64, from: Delivered, share: Share) -> Result<EpochRun> {
        let pool = Pool::start(self.config.threads, Cancel::default())?;
        let assembler = Assembler {
            outputs: self.outputs.clone(),
            mixes: mixes::of(&self.pipeline.normal, &self.outputs)?,
            slabs: self.slabs.clone(),
            mark_repeats: self.schedule.epoch_end() == EpochEnd::Pad,
            seed: self.config.schedule.seed,
            epoch,
            threads: self.config.threads,
            stats: Arc::clone(&self.stats),
        };
        let prefetch = self.demand.prefetch;
        let queue = Arc::clone(&self.stats.queue);
        let (account, on_the_way) = (self.account.clone(), self.config.on_the_way);
        let out = Delivery::new(account, prefetch, on_the_way, assembler, pool.handle(), queue);
        match self.pipeline.split.clone() {
            Some(split) => {
                let tally = Tally::new(Arc::clone(&self.ledger), Some(epoch));
                stream::start(self, &split, Arc::new(out), pool, from, tally)
            }
            None => self.scheduled(epoch, from.count, share, Arc::new(out), pool),
        }
    }

    /// Opens windows for rows that go through a projection and become these outputs.
    fn source(
        &self,
        projection: forebay_sql::Relation,
        outputs: Vec<OutputSpec>,
        pool: &Pool,
    ) -> Arc<WindowSource> {
        Arc::new(WindowSource {
            pipeline: self.pipeline.clone(),
            projection,
            outputs,
            dense: self.dense.clone(),
            index: Arc::clone(&self.index),
            costs: Arc::clone(&self.costs),
            pool: pool.handle(),
            threads: self.config.threads,
            stats: Arc::clone(&self.stats),
        })
    }

    /// An epoch whose every step is known beforehand.
    fn scheduled(
        &self,
        epoch: u64,
        samples: u64,
        share: Share,
        out: Arc<Delivery>,
        pool: Pool,
    ) -> Result<EpochRun> {
        let order = Arc::new(self.schedule.epoch_from(epoch, samples));
        let projection = self.pipeline.relation.projection();
        let source = self.source(projection, self.outputs.clone(), &pool);
        let (through, opened) = watch::channel(0);
        let bijection = order.bijection().map(Arc::new);
        if self.outputs.iter().any(|o| o.on_error() == OnError::Skip) {
            let (order, source) = (Arc::clone(&order), Arc::clone(&source));
            out.replace(Substitutes::new(order, bijection.clone(), share, source));
        }
        let run = self.member.as_ref().map(|member| member.run((epoch, share.step(0))));
        let shared = Arc::new(Shared {
            full: self.full.clone().zip(bijection),
            order,
            share,
            draining: self.draining,
            run,
            lanes: Mutex::default(),
            through,
            started: watch::Sender::new(false),
            out: Arc::clone(&out),
        });
        let runtime = io()?;
        let opener = Abort(runtime.spawn(open_windows(Arc::clone(&shared), Arc::clone(&source))));
        let feeder = Abort(runtime.spawn(feed(Arc::clone(&shared), source, opened)));
        let before = Delivered { count: shared.order.samples(0), ..Delivered::default() };
        let (steps, stats) = (shared.steps(), Arc::clone(&self.stats));
        let tally = Tally::new(Arc::clone(&self.ledger), Some(epoch));
        Ok(EpochRun::new(vec![opener, feeder], out, stats, pool, steps, before, tally)
            .closing(move || lock(&shared.lanes).clear()))
    }
}

/// The loader among those that have the same windows. Streams have none that others could use, and all rows
/// are kept by each loader for itself.
fn member(
    config: &LoaderConfig,
    pipeline: &Pipeline,
    schedule: &Schedule,
    account: &Account,
    full: bool,
) -> Option<Arc<Member>> {
    let commons = config.commons.as_ref().filter(|_| pipeline.split.is_none() && !full)?;
    let (dataset, spec) = (&pipeline.dataset, schedule.spec());
    let order = ScheduleSpec { rank: 0, ..spec.clone() };
    let name = format!(
        "{} {} {} {:?} {order:?} {} {}",
        dataset.id(),
        dataset.pins(),
        pipeline.plan.hash(),
        config.outputs,
        schedule.lanes(),
        schedule.window()
    );
    let lanes = schedule.touched_lanes(&schedule.epoch_from(0, 0));
    Some(Arc::new(commons.join(name, lanes, account.clone())))
}

/// Says that a loader delivers nothing, which a training loop would pass over in silence.
fn tell_no_steps(schedule: &Schedule, pipeline: &Pipeline) {
    let (rows, batch) = (schedule.rows(), schedule.spec().global_batch);
    match rows {
        _ if schedule.steps() > 0 => {}
        0 if pipeline.dataset.rows() == 0 => {
            tracing::warn!("the dataset has no rows: there are no steps");
        }
        0 => tracing::warn!("no row is left by the plan's steps: there are no steps"),
        _ => tracing::warn!(
            "{rows} rows are fewer than one global batch of {batch}, and epoch_end is drop: there are no steps; \
             use a smaller batch, or epoch_end=\"pad\" or \"partial\""
        ),
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
    draining: bool,
    /// Where windows are shared with other loaders.
    run: Option<Run>,
    /// Open windows by lane, oldest first. The opener adds at the back, the feeder leaves behind
    /// what it has passed; both see the same sequence of windows.
    lanes: Mutex<BTreeMap<u64, Lane>>,
    /// Steps whose windows the opener has opened.
    through: watch::Sender<u64>,
    /// Whether the first batch is made, or waits for its windows. Where it needs a few rows of large
    /// windows only, those come first and the windows after.
    started: watch::Sender<bool>,
    out: Arc<Delivery>,
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
            let place = shared.place(step);
            let key = shared.key(&piece);
            let keep = |handle| {
                lock(&shared.lanes)
                    .entry(piece.lane)
                    .or_default()
                    .push_back((piece.window, handle));
            };
            if let Some(open) = shared.run.as_ref().and_then(|run| run.find(key, place)) {
                keep(open);
                continue;
            }
            let cost = source.cost(&shared.order, piece.window);
            let reservation = shared.out.reserve(step, cost).await;
            let (result, handle) = WindowHandle::new();
            // Another loader may have been first while this one waited for memory.
            let other = shared.run.as_ref().and_then(|run| run.offer(key, place, &handle, cost));
            if let Some(open) = other {
                keep(open);
                continue;
            }
            keep(handle);
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
        if let Some(run) = &shared.run {
            run.arrive(shared.place(step + 1));
        }
        shared.through.send_replace(step + 1);
    }
    while loads.join_next().await.is_some() {}
}

async fn feed(shared: Arc<Shared>, source: Arc<WindowSource>, mut opened: watch::Receiver<u64>) {
    let steps = shared.steps();
    for step in 0..steps {
        let Some(permit) = shared.out.permit().await else { return };
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
            Err(e) => return shared.out.fail(step, e),
        };
        let own = shared.share.step(step);
        let count = shared.order.samples(own.saturating_add(1));
        let after = Delivered { count, ..Delivered::default() };
        let begun = Arc::clone(&shared);
        let made = move || {
            if step == 0 {
                begun.started.send_replace(true);
            }
        };
        let rows = (rows, shared.order.place(own));
        if !shared.out.make(step, rows, permit, after, made).await {
            return;
        }
    }
    shared.out.finish(steps);
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
            full.take(&mut rows, piece, order, source, &shared.out, step).await?;
            continue;
        }
        let handle = {
            let mut lanes = lock(&shared.lanes);
            let lane = lanes.entry(piece.lane).or_default();
            while lane.front().is_some_and(|(window, _)| *window != piece.window) {
                let passed = lane.pop_front();
                if let (Some(run), Some((window, _))) = (&shared.run, passed) {
                    run.leave(shared.key(&Piece { window, ..piece }));
                }
            }
            lane.front().map(|(_, handle)| handle.clone())
        };
        let Some(mut handle) = handle else {
            return Err(Error::internal("a step came before its window"));
        };
        let window = match handle.ready().await {
            // The loader that was opening it is gone.
            Err(e) if shared.run.is_some() && e.kind() == ErrorKind::Cancelled => {
                shared.open_alone(&piece, source, step).await?
            }
            ready => ready?,
        };
        window.take(&mut rows, piece.offset, piece.len, piece.repeat)?;
        let passed = piece.offset + piece.len;
        match &shared.run {
            Some(run) => {
                run.pass(shared.key(&piece), shared.place(step), &window, passed, shared.draining);
            }
            None if shared.draining => window.release(passed),
            None => {}
        }
    }
    Ok(rows)
}

impl Shared {
    /// Steps of the run.
    fn steps(&self) -> u64 {
        self.share.of(self.order.steps())
    }

    /// The place of a step of the run among those of all ranks.
    fn place(&self, step: u64) -> (u64, u64) {
        (self.order.number(), self.share.step(step))
    }

    /// The name of a window among those of all loaders.
    fn key(&self, piece: &Piece) -> (u64, u64, usize) {
        (self.order.number(), piece.lane, piece.window)
    }

    /// Opens a window that another loader was to open. It is the one that is needed next, so that it waits
    /// for no memory.
    async fn open_alone(
        &self,
        piece: &Piece,
        source: &Arc<WindowSource>,
        step: u64,
    ) -> Result<Arc<Window>> {
        let cost = source.cost(&self.order, piece.window);
        let reservation = self.out.account().force(cost, Held::Window);
        let (result, handle) = WindowHandle::new();
        let order = Arc::clone(&self.order);
        let window = Arc::clone(source).load(order, piece.window, step, reservation).await?;
        let window = Arc::new(window);
        let _ = result.send(Some(Ok(Arc::clone(&window))));
        let mut lanes = lock(&self.lanes);
        if let Some(front) = lanes.entry(piece.lane).or_default().front_mut() {
            front.1 = handle;
        }
        if let Some(run) = &self.run {
            run.leave(self.key(piece));
        }
        Ok(window)
    }

    /// The rows of a step of the run.
    fn pieces(&self, step: u64) -> Vec<Piece> {
        self.order.step(self.share.step(step))
    }
}
