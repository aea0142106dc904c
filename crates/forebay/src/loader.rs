//! The loader's public face: which epoch, which step, which options.

use std::sync::{Arc, Mutex, Once, OnceLock};

use forebay_core::sync::lock;
use forebay_core::{ByteBudget, Error, Result};
use forebay_exec::{EpochRun, LoaderConfig, OutputOptions, Share, Stats};
use forebay_feed::Batch;
use forebay_plan::schedule::{DEFAULT_MIX, Schedule, ScheduleSpec};
use forebay_plan::{Format, LoaderOptions, LoaderState, SnapshotId};

use crate::dataset::Dataset;
use crate::position::{Place, Position, Turn};
use crate::{Tick, machine};

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
    snapshot: OnceLock<SnapshotId>,
    /// Whether it was said that ranks share lanes.
    said: Once,
}

/// Rank or world size from the launcher's environment (torchrun, Slurm wrappers, Ray Train).
fn launcher(name: &str) -> Result<Option<u64>> {
    match std::env::var(name) {
        Err(_) => Ok(None),
        Ok(text) => text.trim().parse().map(Some).map_err(|_| {
            Error::invalid(format!("the variable {name} is {text:?}, which is not a number"))
                .at_place("loader()")
                .with_hint(format!("give rank= and world_size=, or correct {name}"))
        }),
    }
}

impl Loader {
    /// Opens a loader under a budget. Rows are counted where filters make that necessary; `tick`
    /// may stop it.
    pub fn open(
        dataset: &Dataset,
        options: &LoaderOptions,
        budget: &ByteBudget,
        tick: Tick<'_>,
    ) -> Result<Self> {
        options.validate()?;
        if options.pin_memory == Some(true) {
            tracing::warn!(
                "pin_memory: there is no CUDA device here; batches stay in ordinary memory"
            );
        }
        // Explicit arguments first, the launcher's variables second, one process otherwise. Half
        // of a pair is an error rather than a guess.
        let (rank, world) = match (options.rank, options.world_size) {
            (Some(rank), Some(world)) => (rank, world),
            (None, None) => match (launcher("RANK")?, launcher("WORLD_SIZE")?) {
                (Some(rank), Some(world)) => (rank, world),
                (None, None) => (0, 1),
                // Rank 0 of 1 would give every process the same rows.
                (rank, _) => {
                    let (have, lack) = if rank.is_some() {
                        ("RANK", "WORLD_SIZE")
                    } else {
                        ("WORLD_SIZE", "RANK")
                    };
                    return Err(Error::invalid(format!(
                        "the variable {have} is set and {lack} is not"
                    ))
                    .at_place("loader()")
                    .with_hint(format!(
                        "set both {have} and {lack}, as torchrun does, or give rank= and world_size="
                    )));
                }
            },
            (rank, world) => {
                let (have, lack) =
                    if rank.is_some() { ("rank", "world_size") } else { ("world_size", "rank") };
                let _ = world;
                return Err(Error::invalid(format!("{have} is given without {lack}"))
                    .at_place(format!("loader({have}=...)"))
                    .with_hint("give both, or neither"));
            }
        };
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
            },
            outputs: OutputOptions {
                arrow: options.format == Format::Arrow,
                fill: options.fill.clone(),
                lists: options.lists.clone(),
            },
            threads: options.num_threads.map_or_else(machine::cpus, |n| n as usize),
            memory_limit: options.memory_limit,
            prefetch: options.prefetch.map(|n| n as usize),
        };
        let inner = forebay_exec::Loader::open(dataset.pipeline().clone(), config, budget, tick)?;
        Ok(Self(Arc::new(Shared {
            current: Mutex::new(Arc::new(inner.clone())),
            opened: inner,
            position: Mutex::default(),
            options: options.clone(),
            snapshot: OnceLock::new(),
            said: Once::new(),
        })))
    }

    fn current(&self) -> Arc<forebay_exec::Loader> {
        Arc::clone(&lock(&self.0.current))
    }

    /// Steps of one whole epoch.
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

    /// The epoch that the next [`Self::iter`] delivers.
    pub fn epoch(&self) -> u64 {
        lock(&self.0.position).now().epoch
    }

    /// Chooses the epoch that the next [`Self::iter`] delivers. A loaded position in that epoch stays.
    pub fn set_epoch(&self, epoch: u64) {
        lock(&self.0.position).set_epoch(epoch);
    }

    /// Takes another place among the processes, where it was not known when the loader was made.
    ///
    /// # Errors
    /// A world size that does not divide the global batch, a rank outside of it, an order that does
    /// not fit the memory.
    pub fn set_world(&self, rank: u64, world_size: u64) -> Result<()> {
        let global_batch = global_batch(&self.0.options, world_size)?;
        let mut current = lock(&self.0.current);
        let spec = current.schedule().spec().clone();
        *current =
            Arc::new(current.with(ScheduleSpec { rank, world_size, global_batch, ..spec })?);
        Ok(())
    }

    /// The position: what was delivered, not what was prefetched. Every rank that has made the same
    /// number of steps has the same state, and a rank of any world size may load it.
    pub fn state(&self) -> LoaderState {
        let at = lock(&self.0.position).now();
        let current = self.current();
        let (schedule, pipeline) = (current.schedule(), current.pipeline());
        LoaderState {
            snapshot: *self.0.snapshot.get_or_init(|| pipeline.dataset.id()),
            plan: pipeline.plan.hash(),
            shuffle: schedule.spec().shuffle,
            seed: schedule.spec().seed,
            epoch: at.epoch,
            samples: at.samples,
            finished: at.finished,
            global_batch: schedule.spec().global_batch,
            lanes: schedule.lanes(),
            window: schedule.window(),
        }
    }

    /// The next [`Self::iter`] goes on from a state. Its lanes and window hold from then on; the batch
    /// size may be another one.
    ///
    /// # Errors
    /// A state of another dataset, plan, shuffle or seed, or of a place that the epoch does not have.
    /// The loader is then as it was.
    pub fn load_state(&self, state: &LoaderState) -> Result<()> {
        state.check_fits(&self.state())?;
        let mut current = lock(&self.0.current);
        let schedule = current.schedule();
        if state.samples > schedule.rows() {
            return Err(Error::invalid(format!(
                "the state has {} samples of an epoch, and an epoch has {}",
                state.samples,
                schedule.rows()
            ))
            .at_place("load_state_dict(...)")
            .with_hint("give what loader.state_dict() gave, unchanged"));
        }
        if (schedule.lanes(), schedule.window()) != (state.lanes, state.window) {
            let (lanes, window) = (Some(state.lanes), Some(state.window));
            let spec = ScheduleSpec { lanes, window, ..schedule.spec().clone() };
            *current = Arc::new(current.with(spec)?);
        }
        let (epoch, samples, finished) = (state.epoch, state.samples, state.finished);
        lock(&self.0.position).load(Place { epoch, samples, finished });
        Ok(())
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
        self.0.said.call_once(|| tell_shared_lanes(current.schedule()));
        let (turn, at) = lock(&self.0.position).begin();
        let samples = if at.finished { current.schedule().rows() } else { at.samples };
        let run = current.epoch(at.epoch, samples, share)?;
        Ok(Epoch { run: Some(run), loader: self.clone(), number: at.epoch, turn })
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
                let (samples, finished) = (run.samples(), run.finished());
                lock(&self.loader.0.position).delivered(self.turn, samples, finished);
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
                lock(&self.loader.0.position).ended(self.turn);
                None
            }
        }
    }

    /// The epoch's number.
    pub fn number(&self) -> u64 {
        self.number
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
