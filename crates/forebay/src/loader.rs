//! The loader's public face: which epoch, which step, which options.

use std::sync::{Arc, Mutex, Once, OnceLock};

use forebay_core::sync::lock;
use forebay_core::{ByteBudget, Error, ErrorKind, Result};
use forebay_exec::commons::Commons;
use forebay_exec::{Delivered, EpochRun, LoaderConfig, OutputOptions, Share, Stats};
use forebay_feed::{Backing, Batch};
use forebay_plan::schedule::{DEFAULT_MIX, LaneProgress, Schedule, ScheduleSpec};
use forebay_plan::{
    Format, LoaderOptions, LoaderState, PlanHash, SnapshotId, Source, StateProgress, Step,
};

use crate::dataset::Dataset;
use crate::position::{Place, Position, Turn};
use crate::{Tick, machine, pinning, world};

/// Epochs of batches over a dataset. Cheap to clone; clones share the position.
#[derive(Clone)]
pub struct Loader(Arc<Shared>);

struct Shared {
    /// As it was opened. Counters, budget and threads are those of every later layout.
    opened: forebay_exec::Loader,
    /// As it is: a loaded state may bring another layout of the order.
    current: Mutex<Arc<forebay_exec::Loader>>,
    position: Mutex<Position>,
    options: LoaderOptions,
    /// What slabs are made of.
    backing: Arc<dyn Backing>,
    snapshot: OnceLock<SnapshotId>,
    plan: OnceLock<PlanHash>,
    /// Whether what one rank reads serves the others.
    shares: bool,
    /// Whether it was said that ranks share lanes.
    said: Once,
}

/// Where the batches of a loader go.
#[derive(Clone, Debug)]
pub struct Destination {
    /// What slabs are made of.
    pub backing: Arc<dyn Backing>,
    /// Batches that are taken before they are asked for, because the consumer is another process; 0 for
    /// one in this process.
    pub on_the_way: u64,
    /// Where windows are shared with other loaders of this process that read the same data in the same
    /// order: other ranks, other workers.
    pub commons: Option<Commons>,
}

impl Loader {
    /// Opens a loader under a budget. Rows are counted where filters make that necessary; `tick`
    /// may stop it. Where batches are pinned, the CUDA driver is started on the device that is current
    /// on this thread.
    pub fn open(
        dataset: &Dataset,
        options: &LoaderOptions,
        budget: &ByteBudget,
        tick: Tick<'_>,
    ) -> Result<Self> {
        options.validate()?;
        let here = Destination {
            backing: pinning::backing(options.pin_memory),
            on_the_way: 0,
            commons: None,
        };
        Self::open_for(dataset, options, budget, here, tick)
    }

    /// [`Self::open`] for batches that go elsewhere, whatever the options say about pinning.
    pub fn open_for(
        dataset: &Dataset,
        options: &LoaderOptions,
        budget: &ByteBudget,
        destination: Destination,
        tick: Tick<'_>,
    ) -> Result<Self> {
        let Destination { backing, on_the_way, commons } = destination;
        let shares = commons.is_some();
        options.validate()?;
        options.check_counts(dataset.plan())?;
        options.check_bad_rows(dataset.plan())?;
        let (rank, world) = world::of(options)?;
        let global_batch = global_batch(options, world)?;
        let config = LoaderConfig {
            schedule: ScheduleSpec {
                shuffle: options.shuffle,
                seed: options.seed,
                global_batch,
                rank,
                world_size: world,
                epoch_end: options.epoch_end,
                lanes: options.lanes,
                window: options.window,
                mix: DEFAULT_MIX,
                steps: options.steps,
            },
            outputs: OutputOptions {
                arrow: options.format == Format::Arrow,
                fill: options.fill.clone(),
                lists: options.lists.clone(),
            },
            threads: options.num_threads.map_or_else(machine::cpus, |n| n as usize),
            memory_limit: options.memory_limit,
            prefetch: options.prefetch.map(|n| n as usize),
            bad_rows: options.bad_rows.clone(),
            backing: Arc::clone(&backing),
            on_the_way,
            commons,
        };
        let inner = forebay_exec::Loader::open(dataset.pipeline().clone(), config, budget, tick)?;
        Ok(Self(Arc::new(Shared {
            current: Mutex::new(Arc::new(inner.clone())),
            opened: inner,
            position: Mutex::default(),
            options: options.clone(),
            backing,
            shares,
            snapshot: OnceLock::new(),
            plan: OnceLock::new(),
            said: Once::new(),
        })))
    }

    fn current(&self) -> Arc<forebay_exec::Loader> {
        Arc::clone(&lock(&self.0.current))
    }

    /// Steps of one whole epoch, or iteration over streams.
    pub fn len(&self) -> u64 {
        self.current().schedule().steps()
    }

    /// Whether an epoch has no step.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The options as given.
    pub fn options(&self) -> &LoaderOptions {
        &self.0.options
    }

    /// The resolved schedule: lanes, window, epoch end, rank and world size.
    pub fn schedule(&self) -> Arc<Schedule> {
        Arc::clone(self.current().schedule())
    }

    /// Counters over all epochs.
    pub fn stats(&self) -> &Arc<Stats> {
        self.0.opened.stats()
    }

    /// The loader's part of the budget.
    pub fn account(&self) -> &forebay_core::Account {
        self.0.opened.account()
    }

    /// CPU threads.
    pub fn threads(&self) -> usize {
        self.0.opened.threads()
    }

    /// Whether batches are in page-locked memory.
    pub fn is_pinned(&self) -> bool {
        self.0.backing.is_pinned()
    }

    /// The epoch that the next [`Self::iter`] delivers.
    pub fn epoch(&self) -> u64 {
        lock(&self.0.position).now().epoch
    }

    /// Chooses the epoch that the next [`Self::iter`] delivers. A loaded position in that epoch stays.
    ///
    /// # Errors
    /// Another epoch than the current one, where rows are multiplied: each iteration begins where the one
    /// before ended, so that one in the middle can only be entered through a state.
    pub fn set_epoch(&self, epoch: u64) -> Result<()> {
        let mut position = lock(&self.0.position);
        let now = position.now().epoch;
        if self.streams() && epoch != now {
            return Err(Error::invalid(format!(
                "iteration {now} is next, and another one of a stream can only be entered through a state"
            ))
            .at_place(format!("set_epoch({epoch})"))
            .with_hint("load the state that was saved in it with load_state_dict(), or leave set_epoch out: each iteration goes on where the one before ended"));
        }
        position.set_epoch(epoch);
        Ok(())
    }

    /// Whether lanes are endless streams, because the plan multiplies rows.
    pub fn streams(&self) -> bool {
        self.0.options.steps.is_some()
    }

    /// Takes another place among the processes, where it was not known when the loader was made.
    ///
    /// # Errors
    /// A world size that does not divide the global batch, a rank outside of it, an order that does
    /// not fit the memory.
    pub fn set_world(&self, rank: u64, world_size: u64) -> Result<()> {
        let global_batch = global_batch(&self.0.options, world_size)?;
        let mut current = lock(&self.0.current);
        if self.streams() && !lock(&self.0.position).now().delivered.lanes.is_empty() {
            return Err(Error::invalid("the lanes of this loader are on their way")
                .at_place("loader()")
                .with_hint("give rank and world size before the first batch or state"));
        }
        let spec = current.schedule().spec().clone();
        *current =
            Arc::new(current.with(ScheduleSpec { rank, world_size, global_batch, ..spec })?);
        Ok(())
    }

    /// The position: what was delivered, not what was prefetched. Every rank that has made the same
    /// number of steps has the same state, and a rank of any world size may load it; where rows are
    /// multiplied, a rank has its own lanes, and [`crate::merge_states`] puts the ranks' together.
    pub fn state(&self) -> LoaderState {
        let at = lock(&self.0.position).now().clone();
        self.state_at(&self.current(), at)
    }

    /// The position at which the next [`Self::iter`] begins: that of [`Self::state`] only where it was
    /// loaded and not yet gone on from.
    pub fn next_state(&self) -> LoaderState {
        let at = lock(&self.0.position).next();
        self.state_at(&self.current(), at)
    }

    fn state_at(&self, current: &forebay_exec::Loader, at: Place) -> LoaderState {
        let (schedule, pipeline) = (current.schedule(), current.pipeline());
        let progress = if self.streams() {
            StateProgress::Stream {
                steps: at.delivered.count,
                lanes: lanes(schedule, at.delivered.lanes).to_vec(),
            }
        } else {
            StateProgress::Samples(at.delivered.count)
        };
        LoaderState {
            snapshot: *self.0.snapshot.get_or_init(|| pipeline.dataset.id()),
            plan: *self.0.plan.get_or_init(|| pipeline.plan.hash()),
            shuffle: schedule.spec().shuffle,
            seed: schedule.spec().seed,
            epoch: at.epoch,
            progress,
            finished: at.finished,
            global_batch: schedule.spec().global_batch,
            lanes: schedule.lanes(),
            window: schedule.window(),
        }
    }

    /// The next [`Self::iter`] goes on from a state. Its lanes and window hold from then on; the batch
    /// size may be another one, unless rows are multiplied.
    ///
    /// # Errors
    /// A state of another dataset, plan, shuffle or seed, or of a place that the epoch does not have; one
    /// that lacks a lane of this rank. The loader is then as it was.
    pub fn load_state(&self, state: &LoaderState) -> Result<()> {
        let own = self.state();
        state.check_fits(&own).map_err(|e| {
            // Another dataset is told first, and has a hint of its own.
            if state.snapshot != own.snapshot || state.plan == own.plan {
                return e;
            }
            e.with_better_hint(format!(
                "give the columns and steps as they were when the state was saved; now they are {}",
                self.in_words()
            ))
        })?;
        let mut current = lock(&self.0.current);
        let mut schedule = Arc::clone(current.schedule());
        let mut other = None;
        if (schedule.lanes(), schedule.window()) != (state.lanes, state.window) {
            let (lanes, window) = (Some(state.lanes), Some(state.window));
            let spec = ScheduleSpec { lanes, window, ..schedule.spec().clone() };
            let laid_out = current.with(spec)?;
            schedule = Arc::clone(laid_out.schedule());
            other = Some(laid_out);
        }
        let delivered = match &state.progress {
            StateProgress::Samples(n) => in_an_epoch(&schedule, *n),
            StateProgress::Stream { steps, lanes } => {
                in_streams(&schedule, state.global_batch, *steps, lanes)
            }
        };
        let delivered = match delivered {
            Ok(delivered) => delivered,
            Err(e) => {
                // Laying it out has told the budget; tell it again what holds.
                if other.is_some() {
                    current.with(current.schedule().spec().clone())?;
                }
                return Err(e);
            }
        };
        if let Some(other) = other {
            *current = Arc::new(other);
        }
        let (epoch, finished) = (state.epoch, state.finished);
        lock(&self.0.position).load(Place { epoch, delivered, finished });
        Ok(())
    }

    /// What the plan's hash covers, for a person who compares.
    fn in_words(&self) -> String {
        /// Characters that an error shows of it.
        const SHOWN: usize = 500;
        let plan = Arc::clone(&self.0.opened.pipeline().plan);
        let Source::Parquet(source) = &plan.source else { return String::new() };
        let columns = source.columns.as_ref().map_or("all".into(), |c| c.join(", "));
        let steps: Vec<String> = plan.steps.iter().map(Step::to_json).collect();
        let all = format!("columns: {columns}; steps: [{}]", steps.join(", "));
        match all.char_indices().nth(SHOWN) {
            Some((end, _)) => format!("{}...", &all[..end]),
            None => all,
        }
    }

    /// Starts the current epoch, or goes on from a loaded state. Reading the last batch and then the
    /// end raises the epoch by one; dropping the iterator before does not, and the next one starts
    /// the epoch again.
    pub fn iter(&self) -> Result<Epoch> {
        self.iter_share(Share::ALL)
    }

    /// [`Self::iter`] for one of several workers that share this rank's steps.
    pub fn iter_share(&self, share: Share) -> Result<Epoch> {
        let current = self.current();
        if !self.0.shares {
            self.0.said.call_once(|| tell_shared_lanes(current.schedule()));
        }
        let schedule = current.schedule();
        if self.streams() && share != Share::ALL {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "several workers cannot share the steps of a stream: which rows a step has shows only when those before it are made",
            )
            .at_place("loader.as_torch()")
            .with_hint("use num_workers=0, or the loader itself: its threads do the work"));
        }
        let (turn, at) = lock(&self.0.position).begin();
        let place = at.clone();
        let mut from = at.delivered;
        if self.streams() {
            from.lanes = lanes(schedule, from.lanes);
        } else if at.finished {
            from.count = schedule.rows();
        }
        let run = current.epoch(at.epoch, from, share)?;
        let number = at.epoch;
        Ok(Epoch { run: Some(run), loader: self.clone(), layout: current, place, number, turn })
    }
}

/// Says once what it costs that ranks share lanes, and how to avoid it.
fn tell_shared_lanes(schedule: &Schedule) {
    /// Below this the notice would cost more attention than the reading.
    const WORTH_A_WORD: f64 = 1.25;
    let Some(apart) = schedule.lanes_apart() else { return };
    let times = schedule.read_amplification();
    if times > WORTH_A_WORD {
        tracing::warn!(
            "{} ranks share {} of the shuffle, so that this one reads {times:.1} times its part of the data; \
             with lanes={apart} every rank has its own (another order, so from the beginning of a run on)",
            schedule.spec().world_size,
            if schedule.lanes() == 1 {
                "one lane".into()
            } else {
                format!("{} lanes", schedule.lanes())
            },
        );
    }
}

/// This rank's lanes: where they are, or at the beginning of all.
fn lanes(schedule: &Schedule, at: Arc<[LaneProgress]>) -> Arc<[LaneProgress]> {
    if at.is_empty() { schedule.rank_lanes().map(LaneProgress::new).collect() } else { at }
}

fn wrong_place(message: String) -> Error {
    Error::invalid(message)
        .at_place("load_state_dict(...)")
        .with_hint("give what loader.state_dict() gave, unchanged")
}

/// A place in an epoch whose samples are known.
fn in_an_epoch(schedule: &Schedule, samples: u64) -> Result<Delivered> {
    if samples > schedule.rows() {
        return Err(wrong_place(format!(
            "the state has {samples} samples of an epoch, and an epoch has {}",
            schedule.rows()
        )));
    }
    Ok(Delivered { count: samples, ..Delivered::default() })
}

/// A place in an iteration over streams: that of every lane of this rank.
fn in_streams(
    schedule: &Schedule,
    batch: u64,
    steps: u64,
    lanes: &[LaneProgress],
) -> Result<Delivered> {
    if batch != schedule.spec().global_batch {
        return Err(Error::invalid(format!(
            "the state was saved with a global batch of {batch}, and the loader has {}",
            schedule.spec().global_batch
        ))
        .at_place("load_state_dict(...)")
        .with_hint("where rows are multiplied, go on with the same global_batch_size"));
    }
    if steps > schedule.steps() {
        return Err(wrong_place(format!(
            "the state has {steps} steps of an iteration, and an iteration has {}",
            schedule.steps()
        ))
        .with_better_hint("give loader() the steps= that the state was saved with"));
    }
    let own = schedule.rank_lanes().map(|lane| {
        let found = lanes.iter().find(|at| at.lane == lane).copied();
        let at = found.ok_or_else(|| {
            Error::invalid(format!(
                "the state has no lane {lane}, and rank {} of {} has lanes {} to {}",
                schedule.spec().rank,
                schedule.spec().world_size,
                schedule.rank_lanes().start,
                schedule.rank_lanes().end - 1
            ))
            .at_place("load_state_dict(...)")
            .with_hint("it is the state of another rank: merge those of all ranks with forebay.merge_states([...]), and load the result on every rank")
        })?;
        let rows = schedule.lane_rows(lane);
        match at.begin.row.max(at.next.row) {
            row if row < rows => Ok(at),
            row => Err(wrong_place(format!("the state is at row {row} of lane {lane}, which has {rows}"))),
        }
    });
    Ok(Delivered { count: steps, lanes: own.collect::<Result<_>>()? })
}

fn global_batch(options: &LoaderOptions, world_size: u64) -> Result<u64> {
    options.batch.global(world_size).ok_or_else(|| {
        Error::invalid("the global batch is too large to count")
            .at_place("loader(batch_size=...)")
            .with_hint("use a smaller batch_size")
    })
}

/// The batches of one epoch, in order. Dropping it stops all background work.
pub struct Epoch {
    run: Option<EpochRun>,
    loader: Loader,
    /// The loader as it was when the epoch was started.
    layout: Arc<forebay_exec::Loader>,
    /// How far it is.
    place: Place,
    number: u64,
    turn: Turn,
}

impl Epoch {
    /// The next batch, calling `tick` while it waits. An error of `tick` leaves the epoch as it is;
    /// any other error ends it.
    pub fn next_with(&mut self, tick: Tick<'_>) -> Option<Result<Batch>> {
        let run = self.run.as_mut()?;
        let mut ticked = false;
        let next = run.next(|| {
            let result = tick();
            ticked = result.is_err();
            result
        });
        match next {
            Some(Ok(batch)) => {
                self.place.delivered = run.delivered().clone();
                self.place.finished = run.finished();
                let Place { delivered, finished, .. } = &self.place;
                lock(&self.loader.0.position).delivered(self.turn, delivered, *finished);
                Some(Ok(batch))
            }
            Some(Err(e)) => {
                if !ticked {
                    self.run = None;
                }
                Some(Err(e))
            }
            None => {
                self.run = None;
                self.place = self.place.next();
                lock(&self.loader.0.position).ended(self.turn);
                None
            }
        }
    }

    /// The epoch's number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The position of this iteration, which is the loader's where it is the newest one; after its end,
    /// the beginning of the next.
    pub fn state(&self) -> LoaderState {
        self.loader.state_at(&self.layout, self.place.clone())
    }

    /// The position at which the next iteration begins, should this one be left.
    pub fn restart_state(&self) -> LoaderState {
        self.loader.state_at(&self.layout, self.place.restarted())
    }

    /// The loader.
    pub fn loader(&self) -> &Loader {
        &self.loader
    }
}

impl Iterator for Epoch {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_with(&mut crate::no_tick)
    }
}
