//! Datasets: files and steps, checked as they are written down.

use std::sync::Arc;

use arrow_schema::SchemaRef;
use forebay_core::{ByteBudget, Result};
use forebay_exec::index;
use forebay_exec::job::{self, JobSummary, Progress, Run};
use forebay_exec::outputs::{OutputOptions, output_schema, resolve};
use forebay_exec::{Pipeline, Stats, runtime};
use forebay_io::survey;
use forebay_plan::{
    LoaderOptions, MapImage, MixImages, ParquetSink, ParquetSource, Plan, Sink, Source, Step,
    StorageOptions,
};

use crate::explain::Explain;
use crate::loader::Loader;
use crate::snapshot::Snapshot;
use crate::{Tick, machine, process_budget};

/// Files and the steps on their rows. Cheap to clone; every method returns a new dataset.
#[derive(Clone)]
pub struct Dataset {
    pipeline: Pipeline,
}

impl Dataset {
    /// Lists Parquet files and reads their footers: paths, globs, folders or `s3://` URIs, in the
    /// order given.
    ///
    /// # Errors
    /// A missing path, an empty glob or folder, a file that is not Parquet, schemas that do not fit
    /// each other, a store that does not let us in.
    pub fn read_parquet<S: Into<String>>(uri: impl IntoIterator<Item = S>) -> Result<Self> {
        let uri = uri.into_iter().map(Into::into).collect();
        Self::open(ParquetSource { uri, ..ParquetSource::default() })
    }

    /// Opens a saved snapshot: nothing is listed, and no footer is read.
    ///
    /// # Errors
    /// A missing file, one that is not a snapshot, is damaged, or of a later version.
    pub fn read_snapshot(uri: impl Into<String>) -> Result<Self> {
        Self::open(ParquetSource { snapshot: Some(uri.into()), ..ParquetSource::default() })
    }

    /// The same with columns and storage options.
    pub fn open(source: ParquetSource) -> Result<Self> {
        Self::from_plan(&Plan { source: Source::Parquet(source), steps: Vec::new(), sink: None })
    }

    /// A dataset from a plan, e.g. of a job file. The plan's sink is kept.
    pub fn from_plan(plan: &Plan) -> Result<Self> {
        Self::from_plan_with(plan, &mut crate::no_tick)
    }

    /// [`Self::from_plan`], calling `tick` while the store is waited for.
    pub fn from_plan_with(plan: &Plan, tick: Tick<'_>) -> Result<Self> {
        plan.validate()?;
        Ok(Self { pipeline: runtime::wait_with(Pipeline::open(plan), tick)?? })
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.pipeline.plan
    }

    /// The plan as another process would write it, whatever its working directory: local paths are
    /// absolute, and there is no sink.
    ///
    /// # Errors
    /// A path that is no text.
    pub fn portable_plan(&self) -> Result<Plan> {
        let mut plan = (*self.pipeline.plan).clone();
        let Source::Parquet(source) = &mut plan.source else { return Ok(plan) };
        for uri in source.uri.iter_mut().chain(source.snapshot.as_mut()) {
            *uri = forebay_io::absolute(uri)?;
        }
        plan.sink = None;
        Ok(plan)
    }

    /// The bound plan, with the dataset's files.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// Adds a step.
    ///
    /// # Errors
    /// An unknown column (with the nearest name), a wrong type, a SQL error.
    pub fn step(&self, step: Step) -> Result<Self> {
        let mut plan = (*self.pipeline.plan).clone();
        plan.steps.push(step);
        self.rebind(&plan)
    }

    fn rebind(&self, plan: &Plan) -> Result<Self> {
        plan.validate()?;
        Ok(Self { pipeline: Pipeline::bind(plan, Arc::clone(&self.pipeline.dataset))? })
    }

    /// Keeps the rows for which the SQL expression is true.
    pub fn filter(&self, expr: impl Into<String>) -> Result<Self> {
        self.step(Step::Filter(expr.into()))
    }

    /// Keeps these columns, in this order.
    pub fn select<S: Into<String>>(&self, columns: impl IntoIterator<Item = S>) -> Result<Self> {
        self.step(Step::Select(columns.into_iter().map(Into::into).collect()))
    }

    /// Leaves these columns out.
    pub fn drop<S: Into<String>>(&self, columns: impl IntoIterator<Item = S>) -> Result<Self> {
        self.step(Step::Drop(columns.into_iter().map(Into::into).collect()))
    }

    /// Adds a column, or replaces one in its place, with the value of a SQL expression.
    pub fn with_column(&self, name: impl Into<String>, expr: impl Into<String>) -> Result<Self> {
        self.step(Step::WithColumn { name: name.into(), expr: expr.into() })
    }

    /// Gives a row for each element of a column of lists, the other columns repeated. A row whose list is
    /// null or empty gives none.
    pub fn explode(&self, column: impl Into<String>) -> Result<Self> {
        self.step(Step::Explode(column.into()))
    }

    /// Keeps the first rows.
    pub fn limit(&self, rows: u64) -> Result<Self> {
        self.step(Step::Limit(rows))
    }

    /// Decodes and transforms the images of a column.
    pub fn map_image(&self, map: MapImage) -> Result<Self> {
        self.step(Step::MapImage(map))
    }

    /// Mixes the images of each batch of a loader with each other, and their labels by the same shares:
    /// MixUp and CutMix. Which rows meet in a batch depends on the world size, so what comes out does.
    ///
    /// ```no_run
    /// use forebay::plan::{ImageOp, MapImage, MixImages, MixOp};
    ///
    /// let crop = ImageOp::random_resized_crop([224, 224]);
    /// let mix = vec![MixOp::MixUp { alpha: 0.2, num_classes: Some(1000) }, MixOp::cut_mix(1000)];
    /// let ds = forebay::Dataset::read_parquet(["examples/data/photos"])?
    ///     .map_image(MapImage::new("image", vec![crop]))?
    ///     .mix_images(MixImages::new("image", "label", mix))?;
    /// # Ok::<(), forebay::Error>(())
    /// ```
    ///
    /// # Errors
    /// Images that `map_image` has not decoded, labels that are neither class indices nor shares of
    /// classes, class indices without the number of classes.
    pub fn mix_images(&self, mix: MixImages) -> Result<Self> {
        self.step(Step::MixImages(mix))
    }

    /// The Arrow schema of the relational result: images still encoded, stacks not yet stacked.
    pub fn input_schema(&self) -> SchemaRef {
        self.pipeline.schema()
    }

    /// The Arrow schema of what a job over this dataset writes.
    pub fn schema(&self) -> Result<SchemaRef> {
        let outputs =
            resolve(&self.pipeline.normal, &self.pipeline.schema(), &OutputOptions::arrow())?;
        output_schema(&outputs, &self.pipeline.schema())
    }

    /// The number of rows. From the footers alone where no step leaves rows out or multiplies them;
    /// otherwise the columns that decide are read. `tick` may stop it.
    pub fn count_with(&self, budget: &ByteBudget, tick: impl FnMut() -> Result<()>) -> Result<u64> {
        let stats = Arc::new(Stats::default());
        let account = budget.open(budget.limit(), 0);
        if self.pipeline.split.is_some() {
            return index::count_items(&self.pipeline, account, machine::cpus(), &stats, tick);
        }
        index::build(&self.pipeline, account, machine::cpus(), &stats, tick)
            .map(|sets| sets.total())
    }

    /// [`Self::count_with`] under the process's budget.
    pub fn count(&self) -> Result<u64> {
        self.count_with(process_budget()?, crate::no_tick)
    }

    /// The files as they were listed, to be saved and shared.
    pub fn snapshot(&self) -> Snapshot {
        let Source::Parquet(source) = &self.pipeline.plan.source else {
            return Snapshot::new(Arc::clone(&self.pipeline.dataset), StorageOptions::default());
        };
        Snapshot::new(Arc::clone(&self.pipeline.dataset), source.storage.clone())
    }

    /// What would be read, done and written.
    pub fn explain(&self) -> Result<Explain> {
        Explain::of(&self.pipeline)
    }

    /// A loader.
    pub fn loader(&self, options: &LoaderOptions) -> Result<Loader> {
        Loader::open(self, options, process_budget()?, &mut crate::no_tick)
    }

    /// The rows in file order as Arrow batches of whatever size is at hand.
    pub fn run(&self) -> Result<Run> {
        Run::start(&self.pipeline, process_budget()?, machine::cpus())
    }

    /// Runs the plan's job: reads, transforms, writes and commits.
    ///
    /// # Errors
    /// Any failure; then nothing is committed, and the error says what was left behind.
    pub fn execute(
        &self,
        threads: usize,
        tick: impl FnMut(&Progress) -> Result<()>,
    ) -> Result<JobSummary> {
        // Before anything is read: a target that may not be written to costs nobody an hour.
        if let Some(Sink::Parquet(sink)) = &self.pipeline.plan.sink {
            runtime::wait(survey(sink, &self.pipeline.dataset))??;
        }
        job::run(&self.pipeline, process_budget()?, threads, tick)
    }

    /// The same dataset with a sink.
    pub fn with_sink(&self, sink: ParquetSink) -> Result<Self> {
        let mut plan = (*self.pipeline.plan).clone();
        plan.sink = Some(Sink::Parquet(sink));
        self.rebind(&plan)
    }

    /// Writes the dataset as Parquet.
    pub fn write_parquet(&self, sink: ParquetSink) -> Result<JobSummary> {
        self.with_sink(sink)?.execute(machine::cpus(), |_| Ok(()))
    }
}

impl std::fmt::Debug for Dataset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Dataset").field(&self.pipeline.plan).finish()
    }
}
