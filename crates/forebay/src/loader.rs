//! The loader's public face: which epoch, which step, which options.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::{ByteBudget, Error, Result};
use forebay_exec::{EpochRun, LoaderConfig, OutputOptions, Stats};
use forebay_feed::Batch;
use forebay_plan::schedule::{DEFAULT_MIX, Schedule, ScheduleSpec};
use forebay_plan::{Format, LoaderOptions};

use crate::dataset::Dataset;
use crate::{Tick, machine};

/// Epochs of batches over a dataset. Cheap to clone; clones share the epoch number.
#[derive(Clone)]
pub struct Loader {
    inner: Arc<forebay_exec::Loader>,
    epoch: Arc<AtomicU64>,
    options: Arc<LoaderOptions>,
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
        let global_batch = options.batch.global(world).ok_or_else(|| {
            Error::invalid("the global batch is too large to count")
                .at_place("loader(batch_size=...)")
                .with_hint("use a smaller batch_size")
        })?;
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
        Ok(Self {
            inner: Arc::new(inner),
            epoch: Arc::new(AtomicU64::new(0)),
            options: Arc::new(options.clone()),
        })
    }

    /// Steps of one epoch.
    pub fn len(&self) -> u64 {
        self.inner.schedule().steps()
    }

    /// Whether an epoch has no step.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The options as given.
    pub fn options(&self) -> &LoaderOptions {
        &self.options
    }

    /// The resolved schedule: lanes, window, epoch end.
    pub fn schedule(&self) -> &Schedule {
        self.inner.schedule()
    }

    /// Counters over all epochs.
    pub fn stats(&self) -> &Arc<Stats> {
        self.inner.stats()
    }

    /// The loader's part of the budget.
    pub fn account(&self) -> &forebay_core::Account {
        self.inner.account()
    }

    /// CPU threads.
    pub fn threads(&self) -> usize {
        self.inner.threads()
    }

    /// The epoch that the next [`Self::iter`] starts.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Chooses the epoch that the next [`Self::iter`] starts.
    pub fn set_epoch(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::Relaxed);
    }

    /// Starts the current epoch. Reading the last batch and then the end raises the epoch by one;
    /// dropping the iterator before does not.
    pub fn iter(&self) -> Result<Epoch> {
        let number = self.epoch();
        let run = self.inner.epoch(number, 0)?;
        Ok(Epoch { run: Some(run), loader: self.clone(), number })
    }
}

/// The batches of one epoch, in order. Dropping it stops all background work.
pub struct Epoch {
    run: Option<EpochRun>,
    loader: Loader,
    number: u64,
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
            Some(Ok(batch)) => Some(Ok(batch)),
            Some(Err(e)) => {
                if !ticked {
                    self.run = None;
                }
                Some(Err(e))
            }
            None => {
                self.run = None;
                // Another epoch may have been set meanwhile; then that choice stands.
                let _ = self.loader.epoch.compare_exchange(
                    self.number,
                    self.number + 1,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
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
